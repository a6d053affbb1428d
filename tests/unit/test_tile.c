// SPDX-License-Identifier: Apache-2.0
// Tile sizes from the figures of real devices, typed in, and from random ones. No device.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "abi.h"
#include "tile.h"

enum { TILES_MAX = 16 };

// ---- devices -----------------------------------------------------------------------------------

#define DEVICE(type_, cpu_, units_, width_, group_, items_, local_)                                \
    {.type = (type_), .type_has_cpu_bit = (cpu_), .compiler = true, .compute_units = (units_),     \
     .native_width_f32 = (width_), .max_group = (group_),                                          \
     .max_items = {(items_), (items_), (items_)}, .local_bytes = (local_)}

// What the drivers of these devices report through OpenCL.
static const struct cla_caps rdna3 = // Radeon RX 7900 XTX: 48 work-group processors, 64 KiB
    DEVICE(CLA_DEVICE_GPU, false, 48, 1, 256, 1024, 65536);
static const struct cla_caps arc = // Arc A770: 512 vector engines, 64 KiB
    DEVICE(CLA_DEVICE_GPU, false, 512, 1, 1024, 1024, 65536);
static const struct cla_caps ampere = // GeForce RTX 3080: 68 multiprocessors, 48 KiB static
    DEVICE(CLA_DEVICE_GPU, false, 68, 1, 1024, 1024, 49152);
static const struct cla_caps pocl = // PoCL on a CPU with AVX2
    DEVICE(CLA_DEVICE_CPU, true, 2, 8, 4096, 4096, 524288);
static const struct cla_caps pocl_avx512 = // PoCL on a CPU with AVX-512
    DEVICE(CLA_DEVICE_CPU, true, 2, 16, 4096, 4096, 1048576);
static const struct cla_caps llvmpipe = // rusticl on llvmpipe: of type CPU, scalar work-items
    DEVICE(CLA_DEVICE_CPU, true, 8, 1, 1024, 1024, 32768);
static const struct cla_caps tiny = // 1 KiB, groups of 16
    DEVICE(CLA_DEVICE_GPU, false, 1, 1, 16, 16, 1024);
static const struct cla_caps one_item = // a CPU driver with work-groups of 1
    DEVICE(CLA_DEVICE_CPU, true, 8, 4, 1, 1, 32768);
static const struct cla_caps no_local = DEVICE(CLA_DEVICE_GPU, false, 4, 1, 256, 256, 0);

static struct cla_problem problem(int32_t dim, int32_t max_len_q, int32_t group)
{
    return (struct cla_problem){.dim_qk = dim, .dim_v = dim, .group = group, .heads_q = group,
                                .heads_kv = 1, .max_batch = INT32_MAX, .max_len_q = max_len_q,
                                .max_len_kv = INT32_MAX};
}

// ---- golden tiles ------------------------------------------------------------------------------

struct golden {
    const struct cla_caps *caps;
    int32_t dim;
    int32_t tile_q, tile_k, items_q, items_k, chunk_d;
    size_t local_bytes;
};

// The first choice of the group shape. A GPU takes the smaller of two tiles where that lets two
// work-groups share a compute unit and no more passes over Q are needed.
static const struct golden golden_group[] = {
    {&rdna3, 32, 64, 32, 32, 8, 32, 25104},    // 25 of 64 KiB: two groups fit
    {&rdna3, 64, 32, 32, 16, 8, 64, 23056},    // 64 x 32 would take 37392, more than half
    {&rdna3, 80, 32, 32, 16, 8, 80, 27152},
    {&rdna3, 128, 32, 32, 16, 8, 128, 39440},  // 16 rows would read K and V twice as often
    {&rdna3, 256, 16, 32, 8, 8, 256, 52752},
    {&arc, 32, 64, 32, 32, 8, 32, 25104},
    {&arc, 64, 32, 32, 16, 8, 64, 23056},
    {&arc, 80, 32, 32, 16, 8, 80, 27152},
    {&arc, 128, 32, 32, 16, 8, 128, 39440},
    {&arc, 256, 16, 32, 8, 8, 256, 52752},
    {&ampere, 32, 32, 32, 16, 8, 32, 14864},   // half of 48 KiB is 24576
    {&ampere, 64, 32, 32, 16, 8, 64, 23056},
    {&ampere, 80, 32, 32, 16, 8, 80, 27152},
    {&ampere, 128, 32, 32, 16, 8, 128, 39440},
    {&ampere, 256, 16, 32, 8, 8, 128, 28176},  // all 256 channels would take 52752
    {&pocl, 32, 64, 32, 32, 8, 32, 25104},     // no second group on a core: the larger tile
    {&pocl, 64, 64, 32, 32, 8, 64, 37392},
    {&pocl, 80, 32, 32, 16, 8, 80, 27152},
    {&pocl, 128, 32, 32, 16, 8, 128, 39440},
    {&pocl, 256, 16, 32, 8, 8, 256, 52752},
    {&llvmpipe, 32, 64, 32, 32, 8, 32, 25104},
    {&llvmpipe, 64, 64, 32, 32, 8, 32, 25104}, // 64 channels at a time would take 37392
    {&llvmpipe, 80, 32, 32, 16, 8, 80, 27152},
    {&llvmpipe, 128, 32, 32, 16, 8, 64, 23056},
    {&llvmpipe, 256, 16, 32, 8, 8, 128, 28176},
    {&tiny, 32, 4, 4, 4, 1, 16, 736},
    {&tiny, 64, 4, 4, 4, 1, 16, 736},
    {&tiny, 80, 4, 4, 4, 1, 20, 736},
    {&tiny, 128, 4, 4, 4, 1, 16, 736},
    {&tiny, 256, 4, 4, 4, 1, 16, 736},
    {&one_item, 64, 2, 4, 1, 1, 64, 1696},
    {&one_item, 256, 2, 4, 1, 1, 256, 6304},
};

static void test_golden_group(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden_group / sizeof golden_group[0]; i++) {
        const struct golden *g = &golden_group[i];
        const struct cla_problem p = problem(g->dim, INT32_MAX, 1);
        struct cla_tile t[TILES_MAX];
        struct cla_notes notes = {0};
        const int n = cla_tile_rank(&p, g->caps, CLATTN_KERNEL_GROUP, t, TILES_MAX, &notes);
        if (n < 1 || t[0].tile_q != g->tile_q || t[0].tile_k != g->tile_k ||
            t[0].items_q != g->items_q || t[0].items_k != g->items_k ||
            t[0].chunk_d != g->chunk_d || t[0].local_bytes != g->local_bytes)
            fail_msg("row %zu, dim %d: %s", i, (int)g->dim, n ? t[0].reason : "nothing");
        assert_int_equal(t[0].kernel, CLATTN_KERNEL_GROUP);
        assert_non_null(strstr(t[0].reason, "bytes of local memory"));
    }
}

static void test_golden_vector(void **state)
{
    (void)state;
    const struct {
        const struct cla_caps *caps;
        int32_t width;
    } row[] = {{&pocl, 8}, {&pocl_avx512, 16}, {&one_item, 4}, {&llvmpipe, 4}, {&rdna3, 4}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        for (int32_t dim = 1; dim <= 256; dim++) {
            const struct cla_problem p = problem(dim, INT32_MAX, 1);
            struct cla_tile t[TILES_MAX];
            struct cla_notes notes = {0};
            const int n =
                cla_tile_rank(&p, row[i].caps, CLATTN_KERNEL_VECTOR, t, TILES_MAX, &notes);
            assert_true(n >= 1);
            for (int k = 0; k < n; k++) {
                assert_int_equal(t[k].width, row[i].width);
                assert_int_equal(t[k].tile_q, t[k].width * t[k].vecs_q);
                assert_true(t[k].block_k >= 1 && t[k].block_d >= 1 && t[k].tile_k >= t[k].block_k);
                assert_int_equal(t[k].local_bytes, 0);
                // Accumulators, the broadcast and the vectors of Q or P fit the registers.
                const int32_t registers = t[k].width == 16 ? 32 : 16;
                assert_true((t[k].block_k + 1) * t[k].vecs_q + 1 <= registers);
                assert_true((t[k].block_d + 1) * t[k].vecs_q + 1 <= registers);
            }
        }
    }
}

static void test_vector_shape_by_facts(void **state)
{
    (void)state;
    assert_true(cla_caps_vector_shape(&pocl));
    assert_true(cla_caps_vector_shape(&pocl_avx512));
    assert_true(cla_caps_vector_shape(&one_item));
    assert_false(cla_caps_vector_shape(&llvmpipe));
    assert_false(cla_caps_vector_shape(&rdna3));
    assert_false(cla_caps_vector_shape(&tiny));
    struct cla_caps gpu = rdna3;
    gpu.native_width_f32 = 16;
    assert_false(cla_caps_vector_shape(&gpu));
}

// ---- short problems ----------------------------------------------------------------------------

static void test_short_problems_take_small_tiles(void **state)
{
    (void)state;
    struct cla_tile t[TILES_MAX];
    struct cla_notes notes = {0};
    const struct {
        int32_t len_q, group, tile_q;
    } row[] = {{1, 1, 1}, {1, 4, 4}, {2, 1, 2}, {3, 1, 4}, {1, 8, 8}, {8, 1, 8}, {1, 16, 16},
               {17, 1, 32}, {32, 1, 32}, {33, 1, 64}, {5, 8, 64}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct cla_problem p = problem(64, row[i].len_q, row[i].group);
        assert_true(cla_tile_rank(&p, &pocl, CLATTN_KERNEL_GROUP, t, TILES_MAX, &notes) >= 1);
        assert_int_equal(t[0].tile_q, row[i].tile_q);
    }
    struct cla_problem p = problem(64, 1, 8);
    assert_true(cla_tile_rank(&p, &pocl, CLATTN_KERNEL_VECTOR, t, TILES_MAX, &notes) >= 1);
    assert_int_equal(t[0].tile_q, 8);
    p = problem(64, 9, 1);
    assert_true(cla_tile_rank(&p, &pocl, CLATTN_KERNEL_VECTOR, t, TILES_MAX, &notes) >= 1);
    assert_true(t[0].tile_q > 8);
}

// ---- refusals ----------------------------------------------------------------------------------

static bool noted(const struct cla_notes *notes, const char *a, const char *b)
{
    for (int i = 0; i < notes->count; i++) {
        if (strstr(notes->text[i], a) && strstr(notes->text[i], b))
            return true;
    }
    return false;
}

static void test_refusals_name_need_and_limit(void **state)
{
    (void)state;
    struct cla_tile t[TILES_MAX];
    struct cla_notes notes = {0};
    const struct cla_problem p = problem(64, INT32_MAX, 1);
    assert_int_equal(cla_tile_rank(&p, &no_local, CLATTN_KERNEL_GROUP, t, TILES_MAX, &notes), 0);
    assert_true(noted(&notes, "no tile fits", "0 bytes"));
    memset(&notes, 0, sizeof notes);
    assert_true(cla_tile_rank(&p, &tiny, CLATTN_KERNEL_GROUP, t, TILES_MAX, &notes) >= 1);
    assert_true(noted(&notes, "64 x 32: needs 256 work-items", "allows 16"));
    assert_true(noted(&notes, "16 x 16: needs", "the device has 1024"));
}

// ---- random devices ----------------------------------------------------------------------------

static uint64_t state64;

static uint32_t random_below(uint32_t n)
{
    state64 = state64 * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
    return (uint32_t)((state64 >> 33) % n);
}

static void test_never_over_a_limit(void **state)
{
    (void)state;
    const char *given = getenv("CLATTN_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    state64 = seed;
    int served = 0;
    for (int i = 0; i < 20000; i++) {
        struct cla_caps c = {.type = 1 + (int)random_below(4), .compiler = true};
        c.type_has_cpu_bit = c.type == CLA_DEVICE_CPU;
        c.native_width_f32 = 1 << random_below(6);
        c.max_group = random_below(3) ? (size_t)1 << random_below(13) : 1 + random_below(1500);
        c.max_items[0] = random_below(4) ? c.max_group : 1 + random_below(2000);
        c.max_items[1] = c.max_items[2] = 1 + random_below(1024);
        c.local_bytes = random_below(2) ? random_below(4096) : random_below(1u << 20);
        struct cla_problem p = problem(1 + (int32_t)random_below(256),
                                       random_below(2) ? INT32_MAX : 1 + (int32_t)random_below(300),
                                       1 + (int32_t)random_below(16));
        struct cla_tile t[TILES_MAX];
        struct cla_notes notes = {0};
        const int max = 1 + (int)random_below(TILES_MAX);
        const int n = cla_tile_rank(&p, &c, CLATTN_KERNEL_GROUP, t, max, &notes);
        assert_true(n >= 0 && n <= max);
        // 128 bytes and one work-item serve everything.
        assert_int_equal(n > 0, c.local_bytes >= (size_t)CLA_GROUP_LOCAL_BYTES(1, 4, 4));
        served += n > 0;
        for (int k = 0; k < n; k++) {
            const size_t items = (size_t)(t[k].items_q * t[k].items_k);
            assert_true(items >= 1 && items <= c.max_group && items <= c.max_items[0]);
            assert_true(t[k].local_bytes <= c.local_bytes);
            assert_int_equal(t[k].local_bytes,
                             CLA_GROUP_LOCAL_BYTES(t[k].tile_q, t[k].tile_k, t[k].chunk_d));
            // What fused_group.cl demands of its literals.
            assert_int_equal(t[k].tile_q % t[k].items_q, 0);
            assert_int_equal(t[k].tile_k % (4 * t[k].items_k), 0);
            assert_true(t[k].chunk_d >= 4 && t[k].chunk_d % 4 == 0);
            assert_true(t[k].chunk_d <= CLA_ROUND_UP4(p.dim_qk));
        }
    }
    assert_true(served > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_group),
        cmocka_unit_test(test_golden_vector),
        cmocka_unit_test(test_vector_shape_by_facts),
        cmocka_unit_test(test_short_problems_take_small_tiles),
        cmocka_unit_test(test_refusals_name_need_and_limit),
        cmocka_unit_test(test_never_over_a_limit),
    };
    return cmocka_run_group_tests_name("tile", tests, NULL, NULL);
}
