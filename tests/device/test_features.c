// SPDX-License-Identifier: Apache-2.0
// Every feature of the contract: each alone, all pairs, random combinations; what is not finite for
// some rows only; what an algorithm does not serve; lengths, offsets and tables that are wrong.
//
// Environment beside that of the tests (open_device.h):
//   CLATTN_TEST_RANDOM  how many random combinations; default 60 on PoCL and the CPU path, 20 on
//                       other devices, 4 in the small selection
//   CLATTN_TEST_SEED    seed of the first one, default 1; the others follow
//   CLATTN_TEST_DIMS    N: one random combination of each N-th head dimension from 1 to 256, too,
//                       from one on that the seed picks; default 0 = none
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run_feature.h"

enum {
    LIST_MAX = 200,
    FAILED_MAX = 10 // a list ends there: what fails everywhere is said often enough
};

// ---- lists --------------------------------------------------------------------------------------

static void run_list(const struct test_target *t, const struct feature_case *list, int count,
                     const char *what)
{
    double worst[2] = {0, 0};
    int failed = 0;
    for (int n = 0; n < count && failed < FAILED_MAX; n++)
        failed += !run_feature(t, &list[n], worst);
    printf("%s: %s: %d cases, largest errors %.2g and %.2g of what is tolerated\n", t->name, what,
           count, worst[0], worst[1]);
    if (failed)
        fail_msg("%s: %s: %d of %d cases failed%s", t->name, what, failed, count,
                 failed == FAILED_MAX ? ", and the others were left out" : "");
}

static void test_alone(void **state)
{
    static struct feature_case list[LIST_MAX];
    const struct test_target *t = *state;
    const int n = feature_alone(algo_lacks(t->algo), t->level == LEVEL_SMALL, list, LIST_MAX);
    assert_in_range(n, 1, LIST_MAX - 1);
    run_list(t, list, n, "each alone");
}

static void test_pairs(void **state)
{
    static struct feature_case list[LIST_MAX];
    const struct test_target *t = *state;
    int pairs = 0;
    const int n = feature_pairs(algo_lacks(t->algo), list, LIST_MAX, &pairs);
    assert_in_range(n, 1, LIST_MAX);
    printf("%s: %d pairs of features in %d cases\n", t->name, pairs, n);
    run_list(t, list, n, "all pairs");
}

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *value = getenv(variable);
    return value && *value ? strtoull(value, NULL, 10) : otherwise;
}

static uint64_t random_count(const struct test_target *t)
{
    const bool sixty = t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU ||
                       strstr(t->device->info.platform, "Portable Computing") != NULL;
    return number_of("CLATTN_TEST_RANDOM", t->level == LEVEL_SMALL ? 4 : sixty ? 60 : 20);
}

static void test_random(void **state)
{
    const struct test_target *t = *state;
    const uint64_t seed = number_of("CLATTN_TEST_SEED", 1), count = random_count(t);
    double worst[2] = {0, 0};
    uint64_t failed = 0;
    for (uint64_t n = 0; n < count && failed < FAILED_MAX; n++) {
        const struct feature_case c =
            feature_random(algo_lacks(t->algo), t->level == LEVEL_SMALL, seed + n);
        failed += !run_feature(t, &c, worst);
    }
    printf("%s: %llu random combinations from seed %llu, largest errors %.2g and %.2g of what is "
           "tolerated\n",
           t->name, (unsigned long long)count, (unsigned long long)seed, worst[0], worst[1]);
    if (failed)
        fail_msg("%s: %llu random combinations failed", t->name, (unsigned long long)failed);
}

static void test_every_dim(void **state)
{
    const struct test_target *t = *state;
    const uint64_t seed = number_of("CLATTN_TEST_SEED", 1);
    const uint64_t step = number_of("CLATTN_TEST_DIMS", 0);
    int failed = 0, count = 0;
    for (uint64_t at = 1 + seed % step; at <= 256 && failed < FAILED_MAX; at += step, count++) {
        const int32_t dim = (int32_t)at;
        const struct feature_case c =
            feature_random_dim(algo_lacks(t->algo), dim, seed + (uint64_t)dim);
        failed += !run_feature(t, &c, NULL);
    }
    printf("%s: %d dimensions, every %d. from %d on\n", t->name, count, (int)step,
           (int)(1 + seed % step));
    if (failed)
        fail_msg("%s: %d of %d dimensions failed", t->name, failed, count);
}

// The heads of latent attention: V is a view into K's memory.
static void test_wide_heads(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = feature_plain();
    c.dim_qk = 576;
    c.dim_v = 512;
    c.heads_q = 4;
    c.heads_kv = 1;
    c.batch = 1;
    c.len_q = 9;
    c.len_kv = 77;
    c.causal = true;
    c.layout = FORM_V_IN_K;
    assert_true(run_feature(t, &c, NULL));
}

// ---- not finite for some rows -------------------------------------------------------------------

// NaN and infinity in V, and NaN in K, for keys that one row sees and another one of the same tile
// does not, hidden by one thing at a time.
static void test_partly_nan(void **state)
{
    const struct test_target *t = *state;
    int failed = 0;
    for (int input = INPUT_V_PARTLY_NAN; input <= INPUT_K_PARTLY_NAN; input++)
        for (int way = 0; way < 6; way++) {
            static const char *const name[] = {"causal", "window", "mask", "bias", "kv_lens",
                                               "causal and packed"};
            struct feature_case c = feature_plain();
            snprintf(c.name, sizeof c.name, "%s not finite behind %s",
                     input == INPUT_V_PARTLY_NAN ? "V" : "K", name[way]);
            c.input = input;
            c.len_q = t->level == LEVEL_SMALL ? 9 : 41;
            c.len_kv = t->level == LEVEL_SMALL ? 40 : 83;
            c.causal = way == 0 || way == 5;
            c.window = way == 1;
            c.left = 3;
            c.right = 2;
            c.mask.used = way == 2;
            c.bias.used = way == 3;
            c.kv_lens = way == 4;
            c.packed_q = c.packed_kv = way == 5;
            c.seed = 40 + (uint64_t)way;
            // Simulators have time for one way of each kind.
            const bool left_out =
                t->level == LEVEL_SMALL && (way % 2 == 1 || input == INPUT_K_PARTLY_NAN);
            if (target_serves(t, &c) && !left_out)
                failed += !run_feature(t, &c, NULL);
        }
    assert_int_equal(failed, 0);
}

// A NaN or an infinite sink makes the rows of its head NaN, a NaN bias those that it is added to.
static void test_visible_nan(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = feature_plain();
    c.sinks = SINKS_NORMAL;
    c.bias.used = true;
    c.len_q = 7;
    if (!target_serves(t, &c))
        return;
    struct feature_data d;
    feature_inputs(&c, &d);
    for (int h = 0; h < 2; h++)
        d.sinks[h] = h ? INFINITY : NAN;
    d.bias[((size_t)2 * (size_t)c.len_q + 3) * (size_t)c.len_kv + 5] = NAN;  // head 2, row 3
    d.bias[((size_t)3 * (size_t)c.len_q + 1) * (size_t)c.len_kv + 9] = INFINITY;
    feature_expect(&c, &d);
    for (int h = 0; h < 2; h++)
        for (int32_t b = 0; b < c.batch; b++)
            for (int32_t i = 0; i < c.len_q; i++) {
                const size_t row = ((size_t)b * (size_t)c.heads_q + (size_t)h) * (size_t)c.len_q +
                                   (size_t)i;
                d.lse[row] = NAN;
                for (int32_t n = 0; n < c.dim_v; n++)
                    d.o[row * (size_t)c.dim_v + (size_t)n] = NAN;
            }
    assert_true(run_feature_on(t, &c, &d, NULL, NULL, NULL));
    feature_data_free(&d);
}

// A row whose bias is the least finite number everywhere is not empty: it is the mean of V.
static void test_least_bias(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = feature_plain();
    c.bias.used = true;
    c.len_q = 5;
    if (!target_serves(t, &c))
        return;
    struct feature_data d;
    feature_inputs(&c, &d);
    const size_t pairs = (size_t)c.batch * (size_t)c.heads_q * (size_t)c.len_q * (size_t)c.len_kv;
    for (size_t n = 0; n < pairs; n++)
        d.bias[n] = -FLT_MAX;
    feature_expect(&c, &d);
    for (size_t row = 0; row < pairs / (size_t)c.len_kv; row++) {
        const size_t g = row / (size_t)c.len_q / 2; // the key head of the row's two
        for (size_t n = 0; n < (size_t)c.dim_v; n++) {
            double sum = 0;
            for (size_t j = 0; j < (size_t)c.len_kv; j++)
                sum += d.v[(g * (size_t)c.len_kv + j) * (size_t)c.dim_v + n];
            d.o[row * (size_t)c.dim_v + n] = (float)(sum / c.len_kv);
        }
        // The score is lost in so large a number, as are the logarithm of the number of keys, and
        // what is tolerated is a part of it.
        d.lse[row] = -FLT_MAX;
    }
    d.unit = 0; // without the size of the bias
    d.tol_o.abs = 1e-5;
    assert_true(run_feature_on(t, &c, &d, NULL, NULL, NULL));
    feature_data_free(&d);
}

// ---- refusals -----------------------------------------------------------------------------------

static struct feature_case needing(enum feature_need need)
{
    struct feature_case c = feature_plain();
    switch (need) {
    case NEED_16_BIT: c.dtype_q = c.dtype_kv = c.dtype_o = CLATTN_DTYPE_BF16; break;
    case NEED_INT8: c.dtype_kv = CLATTN_DTYPE_I8; break;
    case NEED_WINDOW: c.window = true; break;
    case NEED_BIAS: c.bias.used = true; break;
    case NEED_ALIBI: c.alibi = 1; break;
    case NEED_SOFTCAP: c.has_softcap = true; break;
    case NEED_SINKS: c.sinks = SINKS_NORMAL; break;
    case NEED_KV_LENS: c.kv_lens = true; break;
    case NEED_PACKED: c.packed_q = c.packed_kv = true; break;
    default: c.page_size = 16; break;
    }
    return c;
}

// An algorithm refuses what it does not serve, and names both; what it serves it plans.
static void test_refusals(void **state)
{
    struct test_target *t = *state;
    static const char *const algo_name[] = {"auto",     "fused",          "host",     "reference",
                                            "two_loop", "fused_kv_outer", "split_kv", "unfused"};
    for (int need = 0; need < NEED_COUNT; need++) {
        const struct feature_case c = needing((enum feature_need)need);
        clattn_attention_desc desc = feature_desc(&c);
        if (!(algo_lacks(t->algo) >> need & 1))
            continue;
        struct log_capture log = {.errors = 0};
        clattn_plan *plan = NULL;
        desc.algo = t->algo;
        desc.kernel = t->kernel;
        t->device->capture = &log;
        const clattn_status st = clattn_attention_plan_create(t->device->ctx, &desc, &plan);
        t->device->capture = NULL;
        clattn_plan_destroy(&plan);
        if (st != CLATTN_ERR_UNSUPPORTED || !strstr(log.text, algo_name[t->algo]) ||
            !strstr(log.text, feature_need_name[need]))
            fail_msg("%s: %s was answered by \"%s\" and the message \"%s\"", t->name,
                     feature_need_name[need], clattn_status_string(st), log.text);
    }
}

// ---- numbers that are wrong ---------------------------------------------------------------------

// What is written over the numbers of a good call, what a kernel is to make of it, and what the
// host says where it sees the numbers.
struct wrong {
    const char *name;
    enum feature_part part;
    int32_t given[BATCH_MAX + 1];
    int32_t begin[BATCH_MAX]; // of packed sequences
    int32_t len[BATCH_MAX];
    int32_t faults;
    clattn_status on_host;
    int32_t batch;
};

enum { WRONG_LEN_Q = 9, WRONG_LEN_KV = 40, WRONG_TOTAL = 25 };
#define MIN_ INT32_MIN
#define MAX_ INT32_MAX
#define LENGTH_ CLATTN_FAULT_LENGTH
#define OFFSETS_ CLATTN_FAULT_OFFSETS
#define VALUE_ CLATTN_ERR_INVALID_ARGUMENT

// Packed, those of up to 9 queries or 40 keys lie in 25 tokens.
static const struct wrong wrongs[] = {
    {"a negative length", PART_KV_LENS, {-1, 40, 7}, {0}, {0, 40, 7}, LENGTH_, VALUE_, 3},
    {"the least length", PART_KV_LENS, {MIN_, 3, 7}, {0}, {0, 3, 7}, LENGTH_, VALUE_, 3},
    {"lengths over the tensor's", PART_KV_LENS, {12, 41, MAX_}, {0}, {12, 40, 40}, LENGTH_,
     CLATTN_ERR_SHAPE, 3},
    {"a negative offset", PART_CU_Q, {-4, 5, 9, 18}, {0, 5, 9}, {5, 4, 9}, OFFSETS_, VALUE_, 3},
    {"an offset over the total", PART_CU_Q, {2, 9, 17, 26}, {2, 9, 17}, {7, 8, 8}, OFFSETS_,
     VALUE_, 3},
    {"offsets that decrease", PART_CU_Q, {3, 8, 6, 12}, {3, 8, 8}, {5, 0, 4}, OFFSETS_, VALUE_, 3},
    {"wild offsets", PART_CU_Q, {MIN_, 4, MAX_, -9}, {0, 4, 25}, {4, 9, 0}, OFFSETS_ | LENGTH_,
     VALUE_, 3},
    {"a sequence longer than the longest", PART_CU_Q, {0, 10, 12, 14}, {0, 10, 12}, {9, 2, 2},
     LENGTH_, CLATTN_ERR_SHAPE, 3},
    {"a negative offset of keys", PART_CU_KV, {-1, 5, 11, 20}, {0, 5, 11}, {5, 6, 9}, OFFSETS_,
     VALUE_, 3},
    {"offsets of keys that decrease", PART_CU_KV, {4, 20, 9, 25}, {4, 20, 20}, {16, 0, 5},
     OFFSETS_, VALUE_, 3},
    {"an offset of keys over the total", PART_CU_KV, {1, 2, 3, MAX_}, {1, 2, 3}, {1, 1, 22},
     OFFSETS_, VALUE_, 3},
    {"a negative page", PART_TABLE, {-1}, {0}, {0}, CLATTN_FAULT_PAGE, VALUE_, 3},
    {"a page over the pool", PART_TABLE, {MAX_}, {0}, {0}, CLATTN_FAULT_PAGE, VALUE_, 3},
};

static struct feature_case case_of_wrong(const struct wrong *w, bool on_device)
{
    struct feature_case c = feature_plain();
    snprintf(c.name, sizeof c.name, "%s", w->name);
    c.batch = w->batch;
    c.len_q = WRONG_LEN_Q;
    c.len_kv = WRONG_LEN_KV;
    c.on_device = c.ints_on_device = on_device;
    c.causal = true;
    c.kv_lens = w->part == PART_KV_LENS;
    c.packed_q = w->part == PART_CU_Q;
    c.packed_kv = w->part == PART_CU_KV;
    c.page_size = w->part == PART_TABLE ? 16 : 0;
    return c;
}

// Rows of keys of a page that is not there: of the first one of sequence 1.
static void clear_first_page(const struct feature_case *c, struct feature_data *d)
{
    for (size_t g = 0; g < (size_t)c->heads_kv; g++) {
        const size_t row = ((size_t)c->heads_kv + g) * (size_t)c->len_kv;
        memset(d->k + row * (size_t)c->dim_qk, 0,
               (size_t)(c->page_size * c->dim_qk) * sizeof *d->k);
        memset(d->v + row * (size_t)c->dim_v, 0, (size_t)(c->page_size * c->dim_v) * sizeof *d->v);
    }
}

// What the kernels are to see.
static void set_meant(const struct wrong *w, const struct feature_case *c, struct feature_data *d)
{
    const size_t bytes = (size_t)c->batch * sizeof *w->len;
    switch (w->part) {
    case PART_KV_LENS: memcpy(d->len_kv, w->len, bytes); break;
    case PART_CU_Q:
        memcpy(d->len_q, w->len, bytes);
        memcpy(d->begin_q, w->begin, bytes);
        d->total_q = WRONG_TOTAL;
        break;
    case PART_CU_KV:
        memcpy(d->len_kv, w->len, bytes);
        memcpy(d->begin_kv, w->begin, bytes);
        d->total_kv = WRONG_TOTAL;
        break;
    default: clear_first_page(c, d); break;
    }
}

static void set_given(const struct wrong *w, const struct feature_case *c, struct feature_memory *m)
{
    int32_t *ints = feature_ints(m, w->part);
    if (w->part == PART_TABLE)
        ints[m->max_pages] = w->given[0]; // entry 0 of sequence 1
    else
        memcpy(ints, w->given, ((size_t)c->batch + (w->part != PART_KV_LENS)) * sizeof *ints);
}

static bool run_wrong(const struct test_target *t, const clattn_plan *plan, const struct wrong *w,
                      bool on_device)
{
    const struct feature_case c = case_of_wrong(w, on_device);
    struct feature_data d;
    struct feature_memory m;
    clattn_context *ctx = t->device->ctx;
    struct log_capture log = {.errors = 0};
    feature_inputs(&c, &d);
    set_meant(w, &c, &d);
    feature_expect(&c, &d);
    feature_memory_images(&c, &d, &m);
    set_given(w, &c, &m);
    feature_memory_attach(ctx, &c, &m);
    t->device->capture = on_device ? NULL : &log;
    const clattn_status st = plan ? clattn_attention_run(plan, &m.call) : CLATTN_ERR_INTERNAL;
    t->device->capture = NULL;
    feature_memory_read(ctx, &m);
    bool ok = st == (on_device ? CLATTN_OK : w->on_host);
    if (on_device) {
        const int32_t faults = *feature_ints(&m, PART_FAULTS);
        ok = ok && feature_memory_check(&c, &d, &m, NULL) && faults == w->faults;
        if (faults != w->faults)
            printf("    faults are %d, not %d\n", faults, w->faults);
    } else {
        ok = ok && feature_memory_is_untouched(&m) && log.errors == 1;
    }
    if (!ok)
        printf("  FAILED %s on %s, numbers %s: %s\n", w->name, t->name,
               on_device ? "on the device" : "on the host", clattn_status_string(st));
    feature_memory_free(ctx, &m);
    feature_data_free(&d);
    return ok;
}

// Rows about the same numbers follow each other and share a plan.
static int run_wrongs(const struct test_target *t, bool on_device)
{
    int failed = 0;
    clattn_plan *plan = NULL;
    for (size_t n = 0; n < sizeof wrongs / sizeof *wrongs; n++) {
        const struct feature_case c = case_of_wrong(&wrongs[n], on_device);
        if (!target_serves(t, &c))
            continue;
        if (n == 0 || !plan || wrongs[n].part != wrongs[n - 1].part) {
            clattn_plan_destroy(&plan);
            plan = feature_plan(t, &c);
        }
        failed += !run_wrong(t, plan, &wrongs[n], on_device);
    }
    clattn_plan_destroy(&plan);
    return failed;
}

static int32_t clamped(int32_t x)
{
    return x < 0 ? 0 : x < WRONG_TOTAL ? x : WRONG_TOTAL;
}

// Many sequences, and offset `at` above those behind it: kernels look for it among 16 at a time.
static struct wrong large_offset(enum feature_part part, int32_t at)
{
    struct wrong w = {"a large offset among many", part, {0}, {0}, {0}, OFFSETS_, VALUE_,
                      BATCH_MAX};
    for (int32_t n = 0; n <= BATCH_MAX; n++)
        w.given[n] = n / 3;
    w.given[at] = 18;
    for (int32_t b = 0, largest = 0; b < BATCH_MAX; b++) {
        largest = clamped(w.given[b]) > largest ? clamped(w.given[b]) : largest;
        const int32_t len = clamped(w.given[b + 1]) - largest;
        const int32_t most = part == PART_CU_Q ? WRONG_LEN_Q : WRONG_LEN_KV;
        w.begin[b] = largest;
        w.len[b] = len < 0 ? 0 : len < most ? len : most;
        if (len > most)
            w.faults |= LENGTH_;
    }
    return w;
}

static void test_large_offsets(void **state)
{
    const struct test_target *t = *state;
    static const enum feature_part parts[] = {PART_CU_Q, PART_CU_KV};
    static const int32_t at[] = {0, 5, 15, 16, 17, 31, 32, 35};
    int failed = 0;
    if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU)
        return; // which sees the numbers, and refuses
    for (int p = 0; p < 2; p++) {
        struct wrong w = large_offset(parts[p], 0);
        const struct feature_case c = case_of_wrong(&w, true);
        if (!target_serves(t, &c))
            continue;
        clattn_plan *plan = feature_plan(t, &c);
        for (size_t n = 0; n < sizeof at / sizeof *at; n++) {
            w = large_offset(parts[p], at[n]);
            failed += !run_wrong(t, plan, &w, true);
        }
        clattn_plan_destroy(&plan);
    }
    assert_int_equal(failed, 0);
}

// Kernels clamp, and say so.
static void test_wrong_on_device(void **state)
{
    const struct test_target *t = *state;
    if (t->device->info.type != CLATTN_DEVICE_BUILTIN_CPU)
        assert_int_equal(run_wrongs(t, true), 0);
}

// The host refuses, and nothing is written.
static void test_wrong_on_host(void **state)
{
    assert_int_equal(run_wrongs(*state, false), 0);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"each feature alone", test_alone, LEVEL_SMALL},
        {"all pairs of features", test_pairs, LEVEL_MEDIUM},
        {"random combinations", test_random, LEVEL_SMALL},
        {"heads of 576 and 512 channels", test_wide_heads, LEVEL_MEDIUM},
        {"not finite for some rows", test_partly_nan, LEVEL_SMALL},
        {"visible NaN in sinks and bias", test_visible_nan, LEVEL_SMALL},
        {"a bias of the least number", test_least_bias, LEVEL_SMALL},
        {"what an algorithm does not serve", test_refusals, LEVEL_SMALL},
        {"wrong numbers on the device", test_wrong_on_device, LEVEL_SMALL},
        {"a large offset among many", test_large_offsets, LEVEL_SMALL},
        {"wrong numbers on the host", test_wrong_on_host, LEVEL_SMALL},
        {"every head dimension", test_every_dim, LEVEL_MEDIUM}, // the last one: by request only
    };
    const int count = sizeof tests / sizeof *tests - (number_of("CLATTN_TEST_DIMS", 0) ? 0 : 1);
    targets_with_subgroups = true;
    return targets_main("features", argc, argv, tests, count);
}
