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
#include "planner_devices.h"
#include "tile.h"

enum { TILES_MAX = 16 };

// ---- problems ----------------------------------------------------------------------------------

static struct cla_problem problem(int32_t dim, int32_t max_len_q, int32_t group)
{
    return (struct cla_problem){.dim_qk = dim, .dim_v = dim, .group = group, .heads_q = group,
                                .heads_kv = 1, .max_batch = INT32_MAX, .max_len_q = max_len_q,
                                .max_len_kv = INT32_MAX};
}

static int rank(const struct cla_problem *p, const struct cla_caps *caps, int32_t kernel,
                struct cla_tile t[TILES_MAX])
{
    return cla_tile_rank(p, caps, kernel, t, TILES_MAX, NULL);
}

// ---- golden tiles ------------------------------------------------------------------------------

static const int32_t dims[] = {16, 32, 64, 80, 96, 128, 192, 256, 320, 512, 576};
enum { DIMS = sizeof dims / sizeof dims[0] };

// The first choice of the group shape for each of these dimensions and 4096 queries and keys;
// docs/planner.md derives the figures.
struct golden {
    int32_t tile_q, tile_k, items_q, items_k, chunk_d;
    size_t local_bytes;
};

// AMD, Intel Arc and Xe: half of 64 KiB.
static const struct golden gpu_64k[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {64, 32, 32, 8, 32, 25104}, {64, 32, 32, 8, 32, 25104},
    {64, 32, 32, 8, 40, 28176}, {64, 32, 32, 8, 48, 31248}, {64, 32, 32, 8, 32, 25104},
    {64, 32, 32, 8, 48, 31248}, {32, 32, 16, 8, 64, 23056}, {32, 32, 32, 8, 80, 27152},
    {16, 32, 16, 8, 128, 28176}, {16, 32, 16, 8, 144, 31248},
};
// Data Center Max: half of 128 KiB.
static const struct golden gpu_128k[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {64, 32, 32, 8, 32, 25104}, {64, 32, 32, 8, 64, 37392},
    {64, 32, 32, 8, 80, 43536}, {64, 32, 32, 8, 96, 49680}, {64, 32, 32, 8, 128, 61968},
    {64, 32, 32, 8, 96, 49680}, {64, 32, 32, 8, 128, 61968}, {64, 32, 64, 8, 80, 43536},
    {64, 32, 64, 8, 128, 61968}, {16, 64, 16, 16, 144, 52752},
};
// NVIDIA: half of 48 KiB.
static const struct golden gpu_48k[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {32, 32, 16, 8, 32, 14864}, {32, 32, 16, 8, 64, 23056},
    {32, 32, 16, 8, 40, 16912}, {32, 32, 16, 8, 48, 18960}, {32, 32, 16, 8, 64, 23056},
    {32, 32, 16, 8, 48, 18960}, {32, 32, 16, 8, 64, 23056}, {16, 32, 16, 8, 80, 18960},
    {16, 32, 16, 8, 128, 28176}, {16, 32, 16, 8, 144, 31248},
};
// Adreno: half of 32 KiB; Mali: 16 KiB of cache.
static const struct golden gpu_16k[DIMS] = {
    {32, 32, 16, 8, 16, 10768}, {32, 32, 16, 8, 32, 14864}, {32, 32, 16, 8, 32, 14864},
    {16, 32, 8, 8, 40, 11280}, {16, 32, 8, 8, 48, 12816}, {32, 32, 16, 8, 32, 14864},
    {16, 32, 8, 8, 48, 12816}, {16, 32, 8, 8, 64, 15888}, {16, 32, 16, 8, 80, 18960},
    {16, 32, 16, 8, 128, 28176}, {16, 32, 16, 8, 144, 31248},
};
// work-groups of 1.
static const struct golden one_item[DIMS] = {
    {2, 4, 1, 1, 16, 544}, {2, 4, 1, 1, 32, 928}, {2, 4, 1, 1, 64, 1696},
    {2, 4, 1, 1, 80, 2080}, {2, 4, 1, 1, 96, 2464}, {2, 4, 1, 1, 128, 3232},
    {2, 4, 1, 1, 192, 4768}, {2, 4, 1, 1, 256, 6304}, {2, 4, 1, 1, 320, 7840},
    {2, 4, 1, 1, 512, 12448}, {2, 4, 1, 1, 576, 13984},
};
// 32 KiB of cache, more where 16 rows need it.
static const struct golden cpu_512k[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {64, 32, 32, 8, 32, 25104}, {64, 32, 32, 8, 32, 25104},
    {64, 32, 32, 8, 40, 28176}, {64, 32, 32, 8, 48, 31248}, {32, 32, 16, 8, 64, 23056},
    {32, 32, 16, 8, 96, 31248}, {16, 32, 8, 8, 128, 28176}, {16, 32, 16, 8, 160, 34320},
    {16, 32, 16, 8, 256, 52752}, {16, 32, 16, 8, 288, 58896},
};
// the same, and no more than 32 KiB.
static const struct golden cpu_32k[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {64, 32, 32, 8, 32, 25104}, {64, 32, 32, 8, 32, 25104},
    {64, 32, 32, 8, 40, 28176}, {64, 32, 32, 8, 48, 31248}, {32, 32, 16, 8, 64, 23056},
    {32, 32, 16, 8, 96, 31248}, {16, 32, 8, 8, 128, 28176}, {8, 32, 8, 8, 160, 27664},
    {8, 16, 8, 4, 256, 25616}, {8, 16, 8, 4, 288, 28688},
};
// 1 KiB, 16 work-items.
static const struct golden tiny[DIMS] = {
    {8, 4, 8, 1, 8, 752}, {8, 4, 8, 1, 8, 752}, {8, 4, 8, 1, 8, 752},
    {8, 4, 8, 1, 12, 752}, {8, 4, 8, 1, 12, 752}, {8, 4, 8, 1, 8, 752},
    {8, 4, 8, 1, 12, 752}, {8, 4, 8, 1, 8, 752}, {8, 4, 8, 1, 12, 752},
    {8, 4, 8, 1, 8, 752}, {8, 4, 8, 1, 12, 752},
};
// as gpu_64k without bounds on the lengths: O and what rounding put too much into it.
static const struct golden gpu_64k_long[DIMS] = {
    {64, 32, 32, 8, 16, 18960}, {64, 32, 32, 8, 32, 25104}, {64, 32, 32, 8, 32, 25104},
    {64, 32, 32, 8, 40, 28176}, {64, 32, 32, 8, 48, 31248}, {64, 32, 32, 8, 32, 25104},
    {32, 64, 16, 16, 48, 30736}, {32, 32, 32, 8, 64, 23056}, {16, 64, 16, 16, 80, 32272},
    {16, 32, 16, 8, 128, 28176}, {16, 32, 16, 8, 144, 31248},
};

static const struct golden *const golden_of[DEV_COUNT] = {
    [DEV_RDNA2] = gpu_64k,   [DEV_RDNA3] = gpu_64k,      [DEV_CDNA2] = gpu_64k,
    [DEV_CDNA3] = gpu_64k,   [DEV_ARC] = gpu_64k,        [DEV_XE_LP] = gpu_64k,
    [DEV_XE_HPC] = gpu_128k, [DEV_GEFORCE] = gpu_48k,    [DEV_HOPPER] = gpu_48k,
    [DEV_ADRENO] = gpu_16k,  [DEV_MALI] = gpu_16k,       [DEV_APPLE_CPU] = one_item,
    [DEV_POCL] = cpu_512k,   [DEV_INTEL_CPU] = cpu_512k, [DEV_LLVMPIPE] = cpu_32k,
    [DEV_TINY] = tiny,       [DEV_NO_LOCAL] = NULL,
};

static void expect_golden(const struct cla_caps *caps, const struct golden *g, int32_t len)
{
    for (int i = 0; i < DIMS; i++, g++) {
        struct cla_problem p = problem(dims[i], len, 1);
        p.max_len_kv = len;
        struct cla_tile t[TILES_MAX];
        const int n = rank(&p, caps, CLATTN_KERNEL_GROUP, t);
        if (n < 1 || t[0].tile_q != g->tile_q || t[0].tile_k != g->tile_k ||
            t[0].items_q != g->items_q || t[0].items_k != g->items_k ||
            t[0].chunk_d != g->chunk_d || t[0].local_bytes != g->local_bytes)
            fail_msg("%s, dim %d: %s", caps->name, (int)dims[i], n ? t[0].reason : "nothing");
        assert_int_equal(t[0].kernel, CLATTN_KERNEL_GROUP);
        assert_non_null(strstr(t[0].reason, "bytes of local memory"));
        // What follows asks for no more of anything, down to one item.
        for (int k = 1; k < n; k++) {
            assert_true(t[k].local_bytes <= t[k - 1].local_bytes);
            assert_true(t[k].items_q * t[k].items_k <= t[k - 1].items_q * t[k - 1].items_k);
        }
        assert_int_equal(t[n - 1].items_q * t[n - 1].items_k, 1);
    }
}

static void test_golden_group(void **state)
{
    (void)state;
    for (int d = 0; d < DEV_COUNT; d++) {
        if (golden_of[d])
            expect_golden(&planner_devices[d], golden_of[d], 4096);
    }
    expect_golden(&planner_devices[DEV_RDNA3], gpu_64k_long, INT32_MAX);
}

// With sub-groups: rows of the smallest size that the device has, whose items have 128 registers.
static void test_golden_subgroup(void **state)
{
    (void)state;
    static const struct {
        int device;
        int32_t size, dim, len;
        struct golden g;
    } want[] = {
        {DEV_ARC, 8, 64, 4096, {64, 32, 32, 8, 32, 25104}},
        {DEV_ARC, 8, 128, 4096, {64, 32, 64, 8, 32, 25104}},
        {DEV_ARC, 8, 256, 4096, {32, 32, 32, 8, 64, 23056}},
        {DEV_ARC, 8, 128, INT32_MAX, {64, 32, 64, 8, 32, 25104}},
        {DEV_XE_LP, 8, 128, 4096, {64, 32, 64, 8, 32, 25104}},
        {DEV_XE_HPC, 16, 64, 4096, {32, 64, 16, 16, 64, 36880}},
        {DEV_XE_HPC, 16, 128, 4096, {32, 64, 16, 16, 128, 61456}},
        {DEV_XE_HPC, 16, 256, 4096, {32, 64, 32, 16, 128, 61456}},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct cla_caps c = planner_devices[want[i].device];
        struct cla_problem p = problem(want[i].dim, want[i].len, 1);
        const struct golden *g = &want[i].g;
        struct cla_tile t[TILES_MAX];
        p.max_len_kv = want[i].len;
        c.subgroups = CLA_SUBGROUPS_REQUIRED;
        c.subgroup_size = want[i].size;
        const int n = rank(&p, &c, CLATTN_KERNEL_SUBGROUP, t);
        if (n < 1 || t[0].tile_q != g->tile_q || t[0].tile_k != g->tile_k ||
            t[0].items_q != g->items_q || t[0].items_k != g->items_k ||
            t[0].chunk_d != g->chunk_d || t[0].local_bytes != g->local_bytes)
            fail_msg("%s, dim %d: %s", c.name, (int)p.dim_v, n ? t[0].reason : "nothing");
        for (int k = 0; k < n; k++)
            assert_int_equal(t[k].items_k, want[i].size);
    }
}

// The first choice of the vector shape: rows and keys. V of a tile takes 32 KiB at most, and 16
// keys at least.
static void test_golden_vector(void **state)
{
    (void)state;
    static const int32_t keys_4[DIMS] = {64, 64, 64, 64, 64, 64, 42, 32, 24, 16, 16};
    static const int32_t keys_8[DIMS] = {64, 64, 64, 64, 64, 64, 40, 32, 24, 16, 16};
    static const int32_t keys_16[DIMS] = {128, 128, 128, 96, 80, 64, 40, 32, 24, 16, 16};
    static const struct {
        enum planner_device device;
        int32_t width, tile_q;
        const int32_t *keys;
    } row[] = {{DEV_POCL, 8, 24, keys_8},
               {DEV_INTEL_CPU, 16, 32, keys_16},
               {DEV_APPLE_CPU, 4, 16, keys_4},
               {DEV_LLVMPIPE, 4, 16, keys_4},
               {DEV_NO_LOCAL, 4, 16, keys_4}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct cla_caps *caps = &planner_devices[row[i].device];
        for (int k = 0; k < DIMS; k++) {
            const struct cla_problem p = problem(dims[k], 4096, 1);
            struct cla_tile t[TILES_MAX];
            assert_true(rank(&p, caps, CLATTN_KERNEL_VECTOR, t) >= 1);
            assert_int_equal(t[0].width, row[i].width);
            assert_int_equal(t[0].tile_q, row[i].tile_q);
            if (t[0].tile_k != row[i].keys[k])
                fail_msg("%s, dim %d: %s", caps->name, (int)dims[k], t[0].reason);
        }
    }
}

// Every vector tile: whole blocks, V within the cache, sums within the registers.
static void test_vector_tiles_suit_the_processor(void **state)
{
    (void)state;
    static const enum planner_device devices[] = {DEV_POCL, DEV_INTEL_CPU, DEV_APPLE_CPU};
    for (int i = 0; i < 3; i++) {
        for (int32_t dim = 1; dim <= 576; dim++) {
            struct cla_problem p = problem(dim, INT32_MAX, 1);
            p.max_len_kv = dim % 3 ? INT32_MAX : dim;
            struct cla_tile t[TILES_MAX];
            const int n = rank(&p, &planner_devices[devices[i]], CLATTN_KERNEL_VECTOR, t);
            assert_true(n >= 1);
            for (int k = 0; k < n; k++) {
                assert_int_equal(t[k].tile_q, t[k].width * t[k].vecs_q);
                assert_true(t[k].block_k >= 1 && t[k].block_d >= 1 && t[k].tile_k >= t[k].block_k);
                assert_int_equal(t[k].tile_k % t[k].block_k, 0);
                assert_true((int64_t)t[k].tile_k < (int64_t)p.max_len_kv + t[k].block_k);
                assert_true(t[k].tile_k <= 18 || t[k].tile_k * dim * 4 <= 32768);
                assert_true(t[k].tile_k >= 16 || p.max_len_kv < 16);
                assert_int_equal(t[k].local_bytes, 0);
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
    for (int d = 0; d < DEV_COUNT; d++)
        assert_int_equal(cla_caps_vector_shape(&planner_devices[d]),
                         d == DEV_APPLE_CPU || d == DEV_POCL || d == DEV_INTEL_CPU);
    struct cla_caps gpu = planner_devices[DEV_RDNA3];
    gpu.native_width_f32 = 16;
    assert_false(cla_caps_vector_shape(&gpu));
}

// ---- short problems ----------------------------------------------------------------------------

static void test_short_problems_take_small_tiles(void **state)
{
    (void)state;
    const struct cla_caps *pocl = &planner_devices[DEV_POCL];
    struct cla_tile t[TILES_MAX];
    static const struct {
        int32_t len_q, group, tile_q;
    } row[] = {{1, 1, 1}, {1, 4, 4}, {2, 1, 2}, {3, 1, 4}, {1, 8, 8}, {8, 1, 8}, {1, 16, 16},
               {17, 1, 32}, {32, 1, 32}, {33, 1, 64}, {5, 8, 64}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct cla_problem p = problem(64, row[i].len_q, row[i].group);
        assert_true(rank(&p, pocl, CLATTN_KERNEL_GROUP, t) >= 1);
        assert_int_equal(t[0].tile_q, row[i].tile_q);
        // One row is work for a whole wave of items, each with its own keys and channels.
        assert_true(t[0].items_q * t[0].items_k >= 16);
    }
    struct cla_problem p = problem(64, 1, 8);
    assert_true(rank(&p, pocl, CLATTN_KERNEL_VECTOR, t) >= 1);
    assert_int_equal(t[0].tile_q, 8);
    p = problem(64, 9, 1);
    assert_true(rank(&p, pocl, CLATTN_KERNEL_VECTOR, t) >= 1);
    assert_int_equal(t[0].tile_q, 16);
}

// Few keys: no longer tile than they fill by half, and no more local memory than for many.
static void test_few_keys_take_short_tiles(void **state)
{
    (void)state;
    for (int d = 0; d < DEV_NO_LOCAL; d++) {
        for (int32_t keys = 1; keys <= 40; keys++) {
            struct cla_problem p = problem(64, 4096, 1), many = p;
            struct cla_tile t[TILES_MAX], u[TILES_MAX];
            p.max_len_kv = keys;
            many.max_len_kv = 4096;
            const int n = rank(&p, &planner_devices[d], CLATTN_KERNEL_GROUP, t);
            assert_true(n >= 1 && rank(&many, &planner_devices[d], CLATTN_KERNEL_GROUP, u) >= 1);
            for (int k = 0; k < n; k++)
                assert_true(t[k].tile_k == 4 || t[k].tile_k < 2 * keys);
            if (t[0].tile_q == u[0].tile_q && t[0].chunk_d == u[0].chunk_d)
                assert_true(t[0].local_bytes <= u[0].local_bytes);
        }
    }
    struct cla_problem p = problem(64, 4096, 1);
    p.max_len_kv = 16;
    struct cla_tile t[TILES_MAX];
    assert_true(rank(&p, &planner_devices[DEV_RDNA3], CLATTN_KERNEL_GROUP, t) >= 1);
    assert_int_equal(t[0].tile_q, 64);
    assert_int_equal(t[0].tile_k, 16);
    p.max_len_kv = 5;
    assert_true(rank(&p, &planner_devices[DEV_POCL], CLATTN_KERNEL_VECTOR, t) >= 1);
    assert_int_equal(t[0].tile_k, 8);
}

// Rows are given up where there would be fewer work-groups than compute units, if the bounds tell.
static void test_small_problems_fill_the_device(void **state)
{
    (void)state;
    static const struct {
        enum planner_device device;
        int32_t kernel, heads, batch, len_q, tile_q;
    } row[] = {
        {DEV_RDNA3, CLATTN_KERNEL_GROUP, 8, 1, 512, 64},          // 64 groups for 48 units
        {DEV_RDNA3, CLATTN_KERNEL_GROUP, 8, 1, 256, 32},          // 32, then 64
        {DEV_RDNA3, CLATTN_KERNEL_GROUP, 8, 1, 64, 16},           // 8, 16: the smallest decent tile
        {DEV_RDNA3, CLATTN_KERNEL_GROUP, 8, INT32_MAX, 64, 64},   // there may be many sequences
        {DEV_CDNA3, CLATTN_KERNEL_GROUP, 32, 1, 512, 32},         // 256 groups for 304 units
        {DEV_CDNA3, CLATTN_KERNEL_GROUP, 32, 2, 512, 64},
        {DEV_POCL, CLATTN_KERNEL_VECTOR, 1, 1, 24, 16},           // one group for 2 units
        {DEV_POCL, CLATTN_KERNEL_VECTOR, 2, 1, 24, 24},
        {DEV_INTEL_CPU, CLATTN_KERNEL_VECTOR, 1, 1, 1024, 16},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct cla_problem p = problem(32, row[i].len_q, 1);
        p.heads_q = p.heads_kv = row[i].heads;
        p.max_batch = row[i].batch;
        p.max_len_kv = 4096;
        struct cla_tile t[TILES_MAX];
        const int n = rank(&p, &planner_devices[row[i].device], row[i].kernel, t);
        if (n < 1 || t[0].tile_q != row[i].tile_q)
            fail_msg("row %zu: %s", i, n ? t[0].reason : "nothing");
    }
}

// ---- bytes moved -------------------------------------------------------------------------------

// Walks over the tiles as the kernels do and counts what each touches.
static double counted(const struct cla_problem *p, int32_t tile_q, int32_t len_q, int32_t len_kv)
{
    static const int32_t bytes_of[] = {4, 2, 2, 1}; // by enum clattn_dtype
    int64_t bytes = 0;
    for (int32_t g = 0; g < p->heads_kv; g++) {
        const int32_t rows = len_q * p->group;
        for (int32_t first = 0; first < rows; first += tile_q) {
            const int32_t last = first + tile_q < rows ? first + tile_q : rows;
            for (int32_t r = first; r < last; r++) {
                bytes += bytes_of[p->dtype_q] * p->dim_qk + bytes_of[p->dtype_o] * p->dim_v;
                bytes += p->lse ? 4 : 0;
                for (int32_t j = 0; j < len_kv; j++)
                    bytes += (p->mask ? 1 : 0) + (p->bias ? bytes_of[p->dtype_bias] : 0);
            }
            for (int32_t j = 0; j < len_kv; j++) {
                bytes += bytes_of[p->dtype_kv] * (p->dim_qk + p->dim_v);
                bytes += p->dtype_kv == CLATTN_DTYPE_I8 ? 2 * 4 : 0; // scales
                bytes += p->paged && j % p->page_size == 0 ? 4 : 0;
            }
        }
    }
    return (double)bytes;
}

static void test_bytes_are_those_of_the_loops(void **state)
{
    (void)state;
    for (int i = 0; i < 400; i++) {
        struct cla_problem p = problem(1 + i % 70, INT32_MAX, 1 + i % 3);
        p.dim_v = 1 + i % 53;
        p.heads_kv = 1 + i % 5;
        p.lse = i % 2;
        p.mask = i % 7 == 0;
        p.bias = i % 6 == 0;
        p.dtype_bias = i % 12 == 0 ? CLATTN_DTYPE_BF16 : CLATTN_DTYPE_F32;
        p.dtype_q = i % 3;
        p.dtype_kv = i % 4;
        p.dtype_o = i / 3 % 3;
        p.paged = i % 5 == 0;
        p.page_size = p.paged ? 1 + i % 17 : 0;
        const struct cla_tile t = {.tile_q = 1 + i % 64};
        const int32_t len_q = 1 + i % 90, len_kv = i % 41;
        assert_true(cla_tile_bytes(&p, &t, len_q, len_kv) == counted(&p, t.tile_q, len_q, len_kv));
    }
    // One head, 4096 x 4096, 64 channels, 32 rows: Q and O 1 MiB each, K and V 128 times.
    const struct cla_problem p = problem(64, 4096, 1);
    const struct cla_tile t = {.tile_q = 32};
    assert_true(cla_tile_bytes(&p, &t, 4096, 4096) == 2.0 * (1 << 20) + 128 * 2.0 * (1 << 20));
    assert_true(cla_tile_bytes(&p, &t, INT32_MAX, INT32_MAX) > 1e19);
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

static struct cla_notes notes_of(const struct cla_problem *p, enum planner_device device)
{
    struct cla_tile t[TILES_MAX];
    struct cla_notes notes = {0};
    cla_tile_rank(p, &planner_devices[device], CLATTN_KERNEL_GROUP, t, TILES_MAX, &notes);
    return notes;
}

static void test_refusals_name_need_and_limit(void **state)
{
    (void)state;
    struct cla_problem p = problem(64, INT32_MAX, 1);
    p.max_len_kv = 4096;
    struct cla_notes notes = notes_of(&p, DEV_NO_LOCAL);
    assert_true(noted(&notes, "no tile fits", "0 bytes"));
    notes = notes_of(&p, DEV_TINY);
    assert_true(noted(&notes, "64 x 32: needs 256 work-items", "allows 16"));
    notes = notes_of(&p, DEV_ADRENO);
    assert_true(noted(&notes, "64 x 32: needs 25104 bytes", "16384 are for a work-group"));
    p = problem(320, INT32_MAX, 1);
    notes = notes_of(&p, DEV_XE_HPC);
    assert_true(noted(&notes, "64 x 32: an item would sum up 200 floats", "over 104"));
    p = problem(32, 64, 1);
    p.max_batch = 1;
    notes = notes_of(&p, DEV_RDNA3);
    assert_true(noted(&notes, "of 64 rows: fewer work-groups", "48 compute units"));
}

// ---- random devices ----------------------------------------------------------------------------

static uint64_t state64;

static uint32_t random_below(uint32_t n)
{
    state64 = state64 * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
    return (uint32_t)((state64 >> 33) % n);
}

static void seed_random(void)
{
    const char *given = getenv("CLATTN_TEST_SEED");
    state64 = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)state64);
}

static struct cla_caps random_caps(void)
{
    struct cla_caps c = {.type = 1 + (int)random_below(4), .compiler = true};
    c.type_has_cpu_bit = c.type == CLA_DEVICE_CPU;
    c.native_width_f32 = 1 << random_below(6);
    c.compute_units = 1 + (int32_t)random_below(200);
    c.max_group = random_below(3) ? (size_t)1 << random_below(13) : 1 + random_below(1500);
    c.max_items[0] = random_below(4) ? c.max_group : 1 + random_below(2000);
    c.max_items[1] = c.max_items[2] = 1 + random_below(1024);
    c.local_bytes = random_below(2) ? random_below(4096) : random_below(1u << 20);
    c.local_is_global = random_below(3) == 0;
    return c;
}

static int32_t random_bound(uint32_t most)
{
    return random_below(2) ? INT32_MAX : 1 + (int32_t)random_below(most);
}

static struct cla_problem random_problem(void)
{
    struct cla_problem p = problem(1 + (int32_t)random_below(576), random_bound(300),
                                   1 + (int32_t)random_below(16));
    p.dim_v = random_below(2) ? p.dim_qk : 1 + (int32_t)random_below(576);
    p.heads_kv = 1 + (int32_t)random_below(16);
    p.heads_q = p.heads_kv * p.group;
    p.max_batch = random_bound(8);
    p.max_len_kv = random_below(3) ? random_bound(30000) : random_bound(40);
    return p;
}

static void expect_within_limits(const struct cla_tile *t, const struct cla_problem *p,
                                 const struct cla_caps *c)
{
    const size_t items = (size_t)(t->items_q * t->items_k);
    assert_true(items >= 1 && items <= c->max_group && items <= c->max_items[0]);
    assert_true(t->local_bytes <= c->local_bytes);
    assert_int_equal(t->local_bytes, CLA_GROUP_LOCAL_BYTES(t->tile_q, t->tile_k, t->chunk_d));
    // What fused_group.cl demands of its literals.
    assert_int_equal(t->tile_q % t->items_q, 0);
    assert_int_equal(t->tile_k % (4 * t->items_k), 0);
    assert_true(t->chunk_d >= 4 && t->chunk_d % 4 == 0);
    assert_true(t->chunk_d <= CLA_ROUND_UP4(p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v));
}

static void test_never_over_a_limit(void **state)
{
    (void)state;
    seed_random();
    int served = 0;
    for (int i = 0; i < 20000; i++) {
        const struct cla_caps c = random_caps();
        const struct cla_problem p = random_problem();
        struct cla_tile t[TILES_MAX];
        const int max = 1 + (int)random_below(TILES_MAX);
        const int n = cla_tile_rank(&p, &c, CLATTN_KERNEL_GROUP, t, max, NULL);
        assert_true(n >= 0 && n <= max);
        // 128 bytes and one work-item serve everything.
        assert_int_equal(n > 0, c.local_bytes >= (size_t)CLA_GROUP_LOCAL_BYTES(1, 4, 4));
        served += n > 0;
        for (int k = 0; k < n; k++)
            expect_within_limits(&t[k], &p, &c);
        const int v = cla_tile_rank(&p, &c, CLATTN_KERNEL_VECTOR, t, max, NULL);
        assert_true(v >= 1 && v <= max);
    }
    assert_true(served > 1000);
}

// Bytes that the first choice of the group shape moves.
static double chosen_bytes(const struct cla_problem *p, const struct cla_caps *caps)
{
    struct cla_tile t[TILES_MAX];
    assert_true(rank(p, caps, CLATTN_KERNEL_GROUP, t) >= 1);
    return cla_tile_bytes(p, &t[0], p->max_len_q == INT32_MAX ? 100000 : p->max_len_q,
                          p->max_len_kv == INT32_MAX ? 100000 : p->max_len_kv);
}

// Where keys are outside, a tile of K and one of V stay for all tiles of rows if all channels fit.
static void test_kept_keys(void **state)
{
    (void)state;
    struct cla_problem p = problem(64, 4096, 1);
    struct cla_tile fused[TILES_MAX], kept[TILES_MAX];
    const struct cla_caps *c = &planner_devices[DEV_GEFORCE];
    assert_true(rank(&p, c, CLATTN_KERNEL_GROUP, fused) >= 1);
    p.algo = CLATTN_ALGO_FUSED_KV_OUTER;
    assert_true(rank(&p, c, CLATTN_KERNEL_GROUP, kept) >= 1);
    assert_int_equal(kept[0].chunk_d, 64);
    assert_true(kept[0].tile_q <= fused[0].tile_q);
    seed_random();
    int kept_whole = 0, chunked = 0;
    for (int i = 0; i < 5000; i++) {
        const struct cla_caps caps = random_caps();
        struct cla_problem q = random_problem();
        q.algo = CLATTN_ALGO_FUSED_KV_OUTER;
        const int32_t dim = q.dim_qk > q.dim_v ? q.dim_qk : q.dim_v;
        struct cla_tile t[TILES_MAX];
        const int n = cla_tile_rank(&q, &caps, CLATTN_KERNEL_GROUP, t, TILES_MAX, NULL);
        // Up to 4 channels K and V always stay: 64 bytes more than the least there is.
        const size_t least = (size_t)CLA_GROUP_LOCAL_BYTES(1, 4, 4) + (dim <= 4 ? 64 : 0);
        assert_int_equal(n > 0, caps.local_bytes >= least);
        for (int k = 0; k < n; k++) {
            const bool whole = t[k].chunk_d >= dim;
            const size_t more =
                whole ? (size_t)CLA_GROUP_KEPT_BYTES(t[k].tile_k, t[k].chunk_d) : 0;
            assert_int_equal(t[k].local_bytes, more + (size_t)CLA_GROUP_LOCAL_BYTES(
                                                   t[k].tile_q, t[k].tile_k, t[k].chunk_d));
            assert_true(t[k].local_bytes <= caps.local_bytes);
            kept_whole += whole;
            chunked += !whole;
        }
    }
    assert_true(kept_whole > 500 && chunked > 500);
}

static void test_more_local_memory_never_moves_more_bytes(void **state)
{
    (void)state;
    seed_random();
    int fewer = 0;
    for (int i = 0; i < 20000; i++) {
        struct cla_caps c = random_caps();
        const struct cla_problem p = random_problem();
        c.local_bytes = 128 + (random_below(2) ? random_below(3000) : random_below(100000));
        const double before = chosen_bytes(&p, &c);
        const size_t less = c.local_bytes;
        c.local_bytes += random_below(2) ? random_below(200) : random_below(100000);
        const double after = chosen_bytes(&p, &c);
        if (after > before)
            fail_msg("dim %d/%d: %zu bytes of local memory move %g, %zu move %g", (int)p.dim_qk,
                     (int)p.dim_v, less, before, c.local_bytes, after);
        fewer += after < before;
    }
    assert_true(fewer > 1000);
    // Byte by byte, on the devices of the golden tables.
    for (int d = 0; d < DEV_COUNT; d++) {
        struct cla_caps c = planner_devices[d];
        for (int k = 0; k < DIMS; k += 3) {
            const struct cla_problem p = problem(dims[k], 4096, 1);
            double last = 1e300;
            for (c.local_bytes = 128; c.local_bytes < 140000; c.local_bytes += 52) {
                const double bytes = chosen_bytes(&p, &c);
                assert_true(bytes <= last);
                last = bytes;
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_group),
        cmocka_unit_test(test_golden_subgroup),
        cmocka_unit_test(test_golden_vector),
        cmocka_unit_test(test_vector_tiles_suit_the_processor),
        cmocka_unit_test(test_vector_shape_by_facts),
        cmocka_unit_test(test_short_problems_take_small_tiles),
        cmocka_unit_test(test_few_keys_take_short_tiles),
        cmocka_unit_test(test_small_problems_fill_the_device),
        cmocka_unit_test(test_bytes_are_those_of_the_loops),
        cmocka_unit_test(test_refusals_name_need_and_limit),
        cmocka_unit_test(test_never_over_a_limit),
        cmocka_unit_test(test_kept_keys),
        cmocka_unit_test(test_more_local_memory_never_moves_more_bytes),
    };
    return cmocka_run_group_tests_name("tile", tests, NULL, NULL);
}
