// SPDX-License-Identifier: Apache-2.0
// The ranking over the algorithms and the choice of a device, from made-up facts. No device.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "device_rank.h"
#include "abi.h"
#include "plan.h"
#include "planner_devices.h"

// Ranking of the description, which must be legal.
static void rank(const clattn_attention_desc *desc, const struct cla_caps *caps,
                 struct cla_ranking *out)
{
    const struct cla_log silent = {0};
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(desc, &silent, &p), CLATTN_OK);
    cla_plan_rank(&p, caps, out);
}

static clattn_attention_desc desc_of(int32_t dim)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.dim_qk = dim;
    d.heads_q = 8;
    return d;
}

static struct cla_caps cpu_caps(void)
{
    return (struct cla_caps){.type = CLA_DEVICE_CPU, .type_has_cpu_bit = true, .compiler = true,
                             .compute_units = 2, .native_width_f32 = 8, .max_group = 4096,
                             .max_items = {4096, 4096, 4096}, .local_bytes = 524288,
                             .local_is_global = true, .host_unified = true,
                             .global_bytes = 1u << 30, .max_alloc_bytes = 1u << 28};
}

static struct cla_caps gpu_caps(void)
{
    return (struct cla_caps){.type = CLA_DEVICE_GPU, .compiler = true, .compute_units = 48,
                             .native_width_f32 = 1, .max_group = 256,
                             .max_items = {256, 256, 256}, .local_bytes = 65536,
                             .global_bytes = 1u << 30, .max_alloc_bytes = 1u << 28};
}

static struct cla_caps builtin_caps(void)
{
    return (struct cla_caps){.type = CLA_DEVICE_BUILTIN, .compiler = true, .compute_units = 2,
                             .native_width_f32 = 8, .host_unified = true};
}

static int index_of_algo(const struct cla_ranking *r, int32_t algo)
{
    for (int i = 0; i < r->count; i++) {
        if (r->choice[i].algo->id == algo)
            return i;
    }
    return -1;
}

static bool refused_with(const struct cla_ranking *r, const char *part)
{
    for (int i = 0; i < r->refusals.count; i++) {
        if (strstr(r->refusals.text[i], part))
            return true;
    }
    return false;
}

static void test_auto_ends_with_the_cpu_path(void **state)
{
    (void)state;
    const struct cla_caps all[] = {cpu_caps(), gpu_caps(), builtin_caps()};
    for (size_t c = 0; c < sizeof all / sizeof all[0]; c++) {
        for (int32_t dim = 1; dim <= 576; dim++) {
            const clattn_attention_desc d = desc_of(dim);
            struct cla_ranking r;
            rank(&d, &all[c], &r);
            assert_true(r.count >= 1);
            assert_int_equal(r.choice[r.count - 1].algo->id, CLATTN_ALGO_HOST);
            assert_int_equal(index_of_algo(&r, CLATTN_ALGO_REFERENCE), -1);
        }
    }
}

// ---- there is always a plan --------------------------------------------------------------------

static uint64_t state64;

static int32_t random_from(int32_t least, int32_t most)
{
    state64 = state64 * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
    return least + (int32_t)((state64 >> 33) % (uint32_t)(most - least + 1));
}

static void test_there_is_always_a_plan(void **state)
{
    (void)state;
    const char *given = getenv("CLATTN_TEST_SEED");
    state64 = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)state64);
    for (int i = 0; i < 5000; i++) {
        struct cla_caps c = planner_devices[random_from(0, DEV_COUNT - 1)];
        if (i % 2) {
            c.max_group = (size_t)random_from(0, 300);
            c.max_items[0] = (size_t)random_from(0, 300);
            c.local_bytes = (size_t)random_from(0, 5000);
            c.quirks = random_from(0, 3) ? 0 : CLA_QUIRK_SCALARIZES;
        }
        clattn_attention_desc d = desc_of(random_from(1, 576));
        d.dim_v = random_from(0, 576);
        d.max_len_q = random_from(0, 1) * random_from(1, 9000);
        d.max_len_kv = random_from(0, 1) * random_from(1, 9000);
        d.max_batch = random_from(0, 4);
        d.heads_kv = 1 << random_from(0, 3);
        struct cla_ranking r;
        rank(&d, &c, &r);
        assert_true(r.count >= 1);
        assert_int_equal(r.choice[r.count - 1].algo->id, CLATTN_ALGO_HOST);
        for (int k = 0; k < r.count; k++) {
            const struct cla_tile *t = &r.choice[k].tile;
            assert_true(t->reason[0] && t->tile_q >= 1 && t->tile_k >= 1);
            assert_true(t->local_bytes <= c.local_bytes);
            assert_true((size_t)(t->items_q * t->items_k) <= c.max_group);
        }
    }
}

#if CLA_HAVE_OPENCL
// Without local memory, or with work-groups of 1, there is a plan, and it says why.
static void test_devices_with_next_to_nothing(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(64);
    struct cla_ranking r;
    rank(&d, &planner_devices[DEV_NO_LOCAL], &r);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_HOST);
    assert_true(refused_with(&r, "0 bytes of local memory; the smallest needs 1 and 128"));
    assert_true(refused_with(&r, "vector shape: passed over: the group shape"));
    clattn_attention_desc alone = d;
    alone.flags = CLATTN_NO_FALLBACK;
    rank(&alone, &planner_devices[DEV_NO_LOCAL], &r);
    assert_true(r.count >= 1);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_VECTOR);
    struct cla_caps c = planner_devices[DEV_NO_LOCAL];
    c.max_group = c.max_items[0] = 1;
    c.local_bytes = 128;
    rank(&d, &c, &r);
    assert_int_equal(r.count, 2);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_GROUP);
    assert_int_equal(r.choice[0].tile.local_bytes, 128);
    rank(&d, &planner_devices[DEV_APPLE_CPU], &r);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_VECTOR);
    assert_true(refused_with(&r, "group shape: passed over: the vector shape"));
}

static void test_shape_by_facts(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(64);
    struct cla_ranking r;
    struct cla_caps c = cpu_caps();
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_VECTOR);
    c.native_width_f32 = 1; // a CPU device that runs scalar work-items
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_GROUP);
    c = gpu_caps();
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_GROUP);
    c.native_width_f32 = 4; // vectors alone do not make a GPU CPU-shaped
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.kernel, CLATTN_KERNEL_GROUP);
}

static void test_forced_shape_has_no_other(void **state)
{
    (void)state;
    const struct cla_caps all[] = {cpu_caps(), gpu_caps()};
    for (size_t c = 0; c < 2; c++) {
        for (int32_t kernel = CLATTN_KERNEL_GROUP; kernel <= CLATTN_KERNEL_VECTOR; kernel++) {
            clattn_attention_desc d = desc_of(80);
            d.kernel = kernel;
            struct cla_ranking r;
            rank(&d, &all[c], &r);
            assert_true(r.count >= 1);
            for (int i = 0; i < r.count; i++)
                assert_int_equal(r.choice[i].tile.kernel, kernel);
            assert_true(refused_with(&r, "host: an OpenCL kernel shape is forced"));
        }
    }
}

// On a GPU that has them the best tile comes with sub-groups first, then without.
static void test_subgroups(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(64);
    struct cla_ranking r;
    struct cla_caps c = gpu_caps();
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.subgroups, CLA_SUBGROUPS_NONE);
    c.subgroups = CLA_SUBGROUPS_REQUIRED;
    rank(&d, &c, &r);
    assert_true(r.count > 1);
    assert_int_equal(r.choice[0].tile.subgroups, CLA_SUBGROUPS_REQUIRED);
    assert_non_null(strstr(r.choice[0].tile.reason, "sub-group"));
    assert_int_equal(r.choice[1].tile.subgroups, CLA_SUBGROUPS_NONE);
    assert_int_equal(r.choice[0].tile.tile_q, r.choice[1].tile.tile_q);
    // Forced, every choice has them; a size that cannot be asked for leaves none of that tile.
    d.kernel = CLATTN_KERNEL_SUBGROUP;
    rank(&d, &c, &r);
    assert_true(r.count >= 1);
    for (int i = 0; i < r.count; i++) {
        const int32_t items = r.choice[i].tile.items_k;
        assert_int_equal(r.choice[i].tile.subgroups, CLA_SUBGROUPS_REQUIRED);
        assert_true(items == 8 || items == 16 || items == 32);
    }
    // Of the sizes that are there the smallest.
    c.subgroup_size = 16;
    rank(&d, &c, &r);
    assert_true(r.count >= 1);
    for (int i = 0; i < r.count; i++)
        assert_int_equal(r.choice[i].tile.items_k, 16);
    c.subgroups = CLA_SUBGROUPS_SHUFFLE;
    rank(&d, &c, &r);
    assert_true(r.count >= 1);
    for (int i = 0; i < r.count; i++)
        assert_true(r.choice[i].tile.items_k > 1 && r.choice[i].tile.items_k <= 8);
    c.subgroups = CLA_SUBGROUPS_NONE;
    rank(&d, &c, &r);
    assert_int_equal(r.count, 0);
    assert_true(refused_with(&r, "subgroup shape: the device has no sub-groups"));
    // A CPU is slower with them.
    c = cpu_caps();
    c.native_width_f32 = 1;
    c.subgroups = CLA_SUBGROUPS_REQUIRED;
    d.kernel = CLATTN_KERNEL_AUTO;
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].tile.subgroups, CLA_SUBGROUPS_NONE);
}

static void test_no_fallback(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(64);
    d.flags = CLATTN_NO_FALLBACK;
    struct cla_ranking r;
    struct cla_caps c = gpu_caps();
    rank(&d, &c, &r);
    assert_true(r.count >= 1);
    assert_int_equal(index_of_algo(&r, CLATTN_ALGO_HOST), -1);
    assert_true(refused_with(&r, "CLATTN_NO_FALLBACK"));
    c = builtin_caps(); // there the CPU path is no fallback
    rank(&d, &c, &r);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_HOST);
}
// ---- split keys --------------------------------------------------------------------------------

static clattn_attention_desc decode_desc(int32_t len_q, int32_t len_kv)
{
    clattn_attention_desc d = desc_of(128);
    d.heads_q = 32;
    d.heads_kv = 8;
    d.max_batch = 1;
    d.max_len_q = len_q;
    d.max_len_kv = len_kv;
    return d;
}

static int32_t parts_of(const clattn_attention_desc *desc, const struct cla_caps *caps,
                        const struct cla_tile *tile, int32_t batch, int32_t len_kv)
{
    const struct cla_log silent = {0};
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(desc, &silent, &p), CLATTN_OK);
    const struct cla_extent e = {batch, p.max_len_q, len_kv, false};
    return cla_algo_split_kv.num_splits(&p, caps, tile, &e);
}

static void test_few_queries_split_the_keys(void **state)
{
    (void)state;
    struct cla_ranking r;
    struct cla_caps c = gpu_caps(); // 48 compute units, 8 key heads
    clattn_attention_desc d = decode_desc(1, 16384);
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_SPLIT_KV);
    assert_non_null(strstr(r.choice[0].tile.reason,
                           "keys in 24 parts: otherwise 8 work-groups for 48 compute units"));
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 1, 16384), 24);
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 1, 2048), 8);  // of 256 keys
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 1, 511), 1);   // too short to cut
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 11, 16384), 3);
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 12, 16384), 1); // half of 4 * 48
    // Behind it stands the rest, down to the CPU path.
    assert_true(index_of_algo(&r, CLATTN_ALGO_FUSED) > 0);
    assert_int_equal(r.choice[r.count - 1].algo->id, CLATTN_ALGO_HOST);

    d.num_splits = 7;
    d.algo = CLATTN_ALGO_SPLIT_KV;
    rank(&d, &c, &r);
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 12, 3), 7);
}

static void test_few_rows_have_channels_as_lanes(void **state)
{
    (void)state;
    struct cla_ranking r;
    const struct cla_caps c = cpu_caps(); // 2 compute units: 8 key heads are enough
    clattn_attention_desc d = decode_desc(1, 16384);
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_SPLIT_KV);
    assert_true(cla_tile_is_few(&r.choice[0].tile));
    assert_int_equal(r.choice[0].tile.tile_q, 4);
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 1, 16384), 1);
    d = decode_desc(3, 16384); // 12 rows
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_FUSED);
    d.heads_q = d.heads_kv = 1; // 3 rows, and nothing for one of the compute units
    rank(&d, &c, &r);
    assert_true(cla_tile_is_few(&r.choice[0].tile));
    assert_int_equal(parts_of(&d, &c, &r.choice[0].tile, 1, 16384), 8);
    d.max_len_q = 16; // too many rows for that kernel, still few for the device
    rank(&d, &c, &r);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_SPLIT_KV);
    assert_true(r.choice[0].tile.vecs_q > 0);
}

// Without bounds, or with enough work-groups, nobody is asked for a workspace.
static void test_no_split_without_need(void **state)
{
    (void)state;
    const struct cla_caps all[] = {cpu_caps(), gpu_caps()};
    for (size_t c = 0; c < 2; c++) {
        for (int left_out = 0; left_out < 4; left_out++) {
            clattn_attention_desc d = decode_desc(1, 16384);
            if (left_out == 0)
                d.max_batch = 0;
            else if (left_out == 1)
                d.max_len_q = 0;
            else if (left_out == 2)
                d.max_len_kv = 0;
            else
                d.max_len_q = 4096;
            struct cla_ranking r;
            rank(&d, &all[c], &r);
            assert_int_equal(index_of_algo(&r, CLATTN_ALGO_SPLIT_KV), -1);
            assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_FUSED);
            assert_false(refused_with(&r, "split_kv"));
        }
    }
}
#endif

static void test_forced_algorithm_stands_alone(void **state)
{
    (void)state;
    const struct cla_caps c = cpu_caps();
    const int32_t algos[] = {CLATTN_ALGO_HOST, CLATTN_ALGO_REFERENCE};
    for (size_t i = 0; i < 2; i++) {
        clattn_attention_desc d = desc_of(64);
        d.algo = algos[i];
        struct cla_ranking r;
        rank(&d, &c, &r);
        assert_int_equal(r.count, 1);
        assert_int_equal(r.choice[0].algo->id, algos[i]);
    }
}

static void test_forced_fused_without_device_says_why(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(64);
    d.algo = CLATTN_ALGO_FUSED;
    struct cla_ranking r;
    const struct cla_caps c = builtin_caps();
    rank(&d, &c, &r);
    assert_int_equal(r.count, 0);
    assert_true(refused_with(&r, "fused: "));
}

#if CLA_HAVE_OPENCL
static void test_no_compiler_is_refused(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(64);
    struct cla_caps c = gpu_caps();
    c.compiler = false;
    struct cla_ranking r;
    rank(&d, &c, &r);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.choice[0].algo->id, CLATTN_ALGO_HOST);
    assert_true(refused_with(&r, "no OpenCL C compiler"));
}
#endif

static void test_device_order(void **state)
{
    (void)state;
    struct cla_caps c[7];
    memset(c, 0, sizeof c);
    c[0] = cpu_caps();
    c[0].native_width_f32 = 1; // behind the built-in path
    c[1] = cpu_caps();
    c[2] = gpu_caps();
    c[2].host_unified = true; // integrated
    c[3] = gpu_caps();
    c[3].compute_units = 10;
    c[4] = gpu_caps(); // discrete, larger
    c[5] = gpu_caps();
    c[5].type = CLA_DEVICE_ACCELERATOR;
    c[6] = builtin_caps();
    int32_t order[7];
    cla_device_rank(c, 7, order);
    const int32_t want[7] = {4, 3, 2, 5, 1, 6, 0};
    for (int i = 0; i < 7; i++)
        assert_int_equal(order[i], want[i]);
    c[4].compiler = false; // nothing can run there
    cla_device_rank(c, 7, order);
    assert_int_equal(order[0], 3);
    assert_int_equal(order[6], 4);
}

static void test_device_order_is_stable(void **state)
{
    (void)state;
    const struct cla_caps c[3] = {gpu_caps(), gpu_caps(), gpu_caps()};
    int32_t order[3];
    cla_device_rank(c, 3, order);
    for (int i = 0; i < 3; i++)
        assert_int_equal(order[i], i);
}

static void test_selector(void **state)
{
    (void)state;
    struct cla_caps c[3] = {cpu_caps(), gpu_caps(), builtin_caps()};
    snprintf(c[0].platform, sizeof c[0].platform, "Portable Computing Language");
    snprintf(c[0].name, sizeof c[0].name, "pthread-CPU 9000");
    snprintf(c[1].platform, sizeof c[1].platform, "Some Vendor");
    snprintf(c[1].name, sizeof c[1].name, "Fast GPU 42");
    snprintf(c[2].platform, sizeof c[2].platform, "clattn");
    snprintf(c[2].name, sizeof c[2].name, "built-in CPU path");
    const struct {
        const char *selector;
        int32_t want;
    } t[] = {{"0", 0},        {"2", 2},   {"3", -1},    {"cpu", 2},   {"CPU", 2},
             {"portable", 0}, {"GPU", 1}, {"fast g", 1}, {"vendor", 1}, {"cpu 9", 0},
             {"nothing", -1}, {"42", -1}, {"99999999999999999999", -1}, {"built-in", 2}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
        assert_int_equal(cla_device_select(c, 3, t[i].selector), t[i].want);
}

static void count_message(void *user, clattn_log_level level, const char *text)
{
    (void)level;
    (void)text;
    ++*(int *)user;
}

// By its name the CPU path is opened without a look at OpenCL, by its index with one.
static void test_cpu_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *selector;
        int32_t index;
        bool looks;
    } t[] = {{"cpu", -1, false}, {"Cpu", -1, false}, {"0", 0, true}, {"built-in", 0, true}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        int messages = 0;
        clattn_context_desc desc;
        clattn_context *ctx = NULL;
        clattn_device_info info = {.struct_size = sizeof info};
        clattn_context_desc_init(&desc, sizeof desc);
        desc.device = t[i].selector;
        desc.opencl_library = "libcla_missing.so";
        desc.log = count_message;
        desc.log_user = &messages;
        desc.log_level = CLATTN_LOG_INFO;
        assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
        assert_int_equal(clattn_context_get_device_info(ctx, &info), CLATTN_OK);
        assert_int_equal(info.index, t[i].index);
        assert_int_equal(info.type, CLATTN_DEVICE_BUILTIN_CPU);
        assert_string_equal(info.platform, "clattn");
        assert_true(info.compute_units >= 1);
#if CLA_HAVE_OPENCL
        assert_int_equal(messages > 0, t[i].looks);
#endif
        clattn_context_destroy(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_ends_with_the_cpu_path),
        cmocka_unit_test(test_there_is_always_a_plan),
        cmocka_unit_test(test_forced_algorithm_stands_alone),
        cmocka_unit_test(test_forced_fused_without_device_says_why),
#if CLA_HAVE_OPENCL
        cmocka_unit_test(test_devices_with_next_to_nothing),
        cmocka_unit_test(test_shape_by_facts),
        cmocka_unit_test(test_forced_shape_has_no_other),
        cmocka_unit_test(test_no_fallback),
        cmocka_unit_test(test_few_queries_split_the_keys),
        cmocka_unit_test(test_few_rows_have_channels_as_lanes),
        cmocka_unit_test(test_no_split_without_need),
        cmocka_unit_test(test_subgroups),
        cmocka_unit_test(test_no_compiler_is_refused),
#endif
        cmocka_unit_test(test_device_order),
        cmocka_unit_test(test_device_order_is_stable),
        cmocka_unit_test(test_selector),
        cmocka_unit_test(test_cpu_by_name),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
