// SPDX-License-Identifier: Apache-2.0
// Split keys on every device with every kernel shape: any number of parts gives what no cut gives.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "case_memory.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "workspace.h"

enum { DIM = 20, FEW_ROWS = 8, MOST_QUERIES = 21 };
enum { QUIRK_LOOP_LIMIT = 4 }; // in clattn_device_info.quirks

// Up to 8 rows of a key head go to the kernel of few rows where lanes are channels. 20 channels are
// no whole number of vectors.
static const struct attn_case cases[] = {
    {"1 query, group of 4", DIM, 2, 8, 2, 1, 300, .input = IN_NORMAL, .level = LEVEL_MEDIUM,
     .seed = 1},
    {"few causal queries, O among gaps", DIM, 1, 4, 2, 3, 130, .causal = true,
     .layout = LAY_PADDED_4, .seed = 2},
    {"first rows see parts that later ones do not fill", DIM, 1, 2, 1, 4, 90, .causal = true,
     .align = CLATTN_ALIGN_TOP_LEFT, .layout = LAY_BSHD, .level = LEVEL_MEDIUM, .seed = 3},
    {"few queries, V partly NaN", DIM, 1, 2, 1, 4, 200, .mask_form = MASK_CONTIGUOUS,
     .input = IN_V_PARTLY_NAN, .seed = 4},
    {"few queries, hidden NaN", DIM, 1, 2, 1, 2, 70, .mask_form = MASK_CONTIGUOUS,
     .input = IN_HIDDEN_NAN, .level = LEVEL_MEDIUM, .seed = 5},
    {"few queries, visible NaN", DIM, 1, 2, 1, 2, 70, .input = IN_VISIBLE_NAN,
     .level = LEVEL_MEDIUM, .seed = 6},
    {"few queries, empty rows", DIM, 1, 2, 1, 4, 70, .mask_form = MASK_CONTIGUOUS,
     .input = IN_EMPTY_ROWS, .level = LEVEL_MEDIUM, .seed = 7},
    {"few queries, large scores", DIM, 1, 2, 2, 4, 500, .input = IN_LARGE, .level = LEVEL_MEDIUM,
     .seed = 8},
    {"fewer keys than parts", DIM, 1, 4, 1, 2, 7, .seed = 9},
    {"3 channels", 3, 1, 2, 1, 2, 65, .dim_v = 5, .causal = true, .layout = LAY_PADDED,
     .level = LEVEL_FULL, .seed = 10},
    {"64 and 33 channels", 64, 1, 1, 1, 1, 400, .dim_v = 33, .level = LEVEL_FULL, .seed = 11},
    {"16 queries", DIM, 1, 4, 2, 16, 260, .level = LEVEL_MEDIUM, .seed = 12},
    {"16 causal queries", DIM, 2, 4, 2, 16, 77, .causal = true, .layout = LAY_PADDED, .seed = 13},
    {"more queries than keys", DIM, 1, 2, 1, 21, 9, .causal = true, .level = LEVEL_MEDIUM,
     .seed = 14},
    {"16 queries, V partly NaN", DIM, 1, 4, 2, 16, 77, .mask_form = MASK_CONTIGUOUS,
     .input = IN_V_PARTLY_NAN, .level = LEVEL_MEDIUM, .seed = 15},
    {"16 queries, hidden NaN, strided mask", DIM, 1, 2, 1, 16, 130, .mask_form = MASK_KEY_STRIDE_2,
     .input = IN_HIDDEN_NAN, .level = LEVEL_MEDIUM, .seed = 16},
};
enum { CASES = sizeof cases / sizeof *cases };

static const int32_t splits[] = {1, 2, 3, 7, 300};
enum { SPLITS = sizeof splits / sizeof *splits };

// Cases of few rows have one bound, and others another, so that few programs are compiled.
static int32_t most_queries(const struct attn_case *c)
{
    const int32_t few = FEW_ROWS / (c->heads_q / c->heads_kv);
    return c->len_q <= few ? few : MOST_QUERIES;
}

static clattn_plan *plan_of(const struct test_target *t, const struct attn_case *c, int32_t parts)
{
    clattn_attention_desc desc = case_desc(c);
    desc.max_batch = 2;
    desc.max_len_q = c->level == LEVEL_SMALL ? most_queries(c) : c->len_q;
    desc.num_splits = parts;
    return target_plan(t, desc);
}

static int32_t parts_of(const clattn_plan *plan)
{
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    return info.num_splits;
}

// ---- against the reference ---------------------------------------------------------------------

static bool run_split(struct test_target *t, const struct attn_case *c, const struct attn_data *d,
                      int32_t parts, double *worst)
{
    clattn_context *ctx = t->device->ctx;
    clattn_plan *plan = plan_of(t, c, parts);
    assert_int_equal(parts_of(plan), parts);
    struct case_memory mem;
    struct case_check check = {.why = ""};
    struct workspace space;
    size_t need = 1, bound = 0;
    assert_int_equal(case_memory_make(ctx, c, d, MEMORY_DEVICE, &mem), CLATTN_OK);
    assert_int_equal(clattn_plan_workspace_bytes(plan, &mem.call, &need), CLATTN_OK);
    assert_int_equal(clattn_plan_workspace_bytes(plan, NULL, &bound), CLATTN_OK);
    const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
    const size_t floats = (size_t)parts * rows * (size_t)(case_dim_v(c) + 2);
    assert_int_equal(need, parts > 1 ? floats * sizeof(float) : 0);
    assert_true(bound >= need);
    workspace_make(ctx, plan, &mem.call, &space);
    const clattn_status st = clattn_attention_run(plan, &mem.call);
    assert_int_equal(case_memory_read(ctx, &mem), CLATTN_OK);
    bool ok = st == CLATTN_OK && case_memory_check(c, d, &mem, &check);
    if (check.worst_ratio > *worst)
        *worst = check.worst_ratio;
    bool used;
    const bool kept = workspace_close(ctx, &space, &used) && used == (need > 0);
    if (!ok || !kept)
        printf("  FAILED %s on %s, %d parts: %s %s%s\n", c->name, t->name, parts,
               clattn_status_string(st), check.why,
               kept ? "" : "; workspace written outside, or not at all");
    case_memory_free(ctx, &mem);
    clattn_plan_destroy(&plan);
    return ok && kept;
}

static void test_parts(void **state)
{
    struct test_target *t = *state;
    int failed = 0, ran = 0;
    double worst = 0.0;
    for (int n = 0; n < CASES; n++) {
        struct attn_data d;
        if (cases[n].level > t->level)
            continue;
        assert_true(attn_data_make(&cases[n], &d));
        // A simulator takes a minute over 300 parts; with 7 some are empty too.
        const bool small = t->level == LEVEL_SMALL;
        for (int k = small ? 2 : 0; k < (small ? SPLITS - 1 : SPLITS); k++, ran++)
            failed += !run_split(t, &cases[n], &d, splits[k], &worst);
        attn_data_free(&d);
    }
    printf("%s: %d calls, %d failed, worst error %.2f of the tolerance\n", t->name, ran, failed,
           worst);
    assert_int_equal(failed, 0);
}

// ---- bit for bit -------------------------------------------------------------------------------

struct output {
    float *o, *lse;
    size_t count, rows;
};

static struct output run_plan(const clattn_plan *plan, const struct attn_case *c,
                              const struct attn_data *d)
{
    struct output out;
    out.rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
    out.count = out.rows * (size_t)case_dim_v(c);
    out.o = malloc(out.count * sizeof *out.o);
    out.lse = malloc(out.rows * sizeof *out.lse);
    assert_true(out.o && out.lse);
    fill_unwritten(out.o, out.count);
    fill_unwritten(out.lse, out.rows);
    const clattn_attention_call call = case_host_call(c, d->q, d->k, d->v, d->mask, out.o, out.lse);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    return out;
}

static void expect_same_bits(struct output *a, struct output *b, const char *what)
{
    if (memcmp(a->o, b->o, a->count * sizeof *a->o) ||
        memcmp(a->lse, b->lse, a->rows * sizeof *a->lse))
        fail_msg("%s: other bits", what);
    free(a->o);
    free(a->lse);
    free(b->o);
    free(b->lse);
}

// Of one key a single part has anything, and the others are empty: merged, it stays as it was.
static void test_one_part_stays(void **state)
{
    struct test_target *t = *state;
    static const struct attn_case both[] = {
        {"1 key, few rows", DIM, 1, 4, 2, 1, 1, .seed = 21},
        {"1 key, 16 queries", DIM, 1, 4, 2, 16, 1, .seed = 22},
    };
    for (int n = 0; n < 2; n++) {
        struct attn_data d;
        assert_true(attn_data_make(&both[n], &d));
        clattn_plan *one = plan_of(t, &both[n], 1), *many = plan_of(t, &both[n], 7);
        struct output a = run_plan(one, &both[n], &d), b = run_plan(many, &both[n], &d);
        expect_same_bits(&a, &b, both[n].name);
        clattn_plan_destroy(&one);
        clattn_plan_destroy(&many);
        attn_data_free(&d);
    }
}

// The same of 49 keys of 343 that the mask shows, whose weights are 1 each: 49 * (1 / 49) is less
// than 1 where a device divides by a reciprocal.
static void test_one_part_of_many_keys_stays(void **state)
{
    struct test_target *t = *state;
    static const struct attn_case c = {"49 of 343 keys", DIM, 1, 4, 2, 1, 343,
                                       .mask_form = MASK_CONTIGUOUS, .seed = 25};
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    for (size_t n = 0; n < (size_t)c.heads_q * DIM; n++)
        d.q[n] = 0;
    for (size_t n = 0; n < (size_t)c.heads_q * 343; n++)
        d.mask[n] = n % 343 < 49;
    clattn_plan *one = plan_of(t, &c, 1), *many = plan_of(t, &c, 7);
    struct output a = run_plan(one, &c, &d), b = run_plan(many, &c, &d);
    expect_same_bits(&a, &b, c.name);
    clattn_plan_destroy(&one);
    clattn_plan_destroy(&many);
    attn_data_free(&d);
}

// Sums of equal terms round the same way each time, unless their chains are short: 1024 parts in
// one came to 1.0e-5 of the result, 4096 tiles of 4 keys to 3.9e-5.
static void check_equal_keys(const struct test_target *t, clattn_attention_desc desc,
                             const char *what)
{
    enum { KEYS = 16384 };
    static float q[DIM], k[KEYS * DIM], v[KEYS * DIM], o[DIM];
    desc.heads_q = 1;
    desc.dim_qk = DIM;
    desc.max_batch = desc.max_len_q = 1;
    desc.max_len_kv = KEYS;
    clattn_plan *plan = target_plan(t, desc);
    for (size_t n = 0; n < (size_t)KEYS * DIM; n++)
        v[n] = 0.1f;
    fill_unwritten(o, DIM);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = call.len_q = 1;
    call.len_kv = KEYS;
    call.q.buf = clattn_host_buf(q, sizeof q);
    call.k.buf = clattn_host_buf(k, sizeof k);
    call.v.buf = clattn_host_buf(v, sizeof v);
    call.o.buf = clattn_host_buf(o, sizeof o);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    clattn_plan_destroy(&plan);
    for (int n = 0; n < DIM; n++)
        if (!(fabs((double)o[n] / (double)0.1f - 1) < 5e-6))
            fail_msg("%s: %s: the mean of %d times 0.1 is %.9g", t->name, what, KEYS, (double)o[n]);
}

static void test_equal_keys(void **state)
{
    struct test_target *t = *state;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.num_splits = 1024;
    check_equal_keys(t, desc, "1024 parts");
    // A driver that stops long loops is not given such tiles.
    if (t->kernel != CLATTN_KERNEL_GROUP || (t->device->info.quirks & QUIRK_LOOP_LIMIT))
        return;
    struct test_target other = *t;
    other.algo = CLATTN_ALGO_FUSED;
    desc.num_splits = 0;
    desc.tile = (clattn_tile){.kernel = CLATTN_KERNEL_GROUP, .tile_q = 1, .tile_k = 4,
                              .items_q = 1, .items_k = 1, .chunk_d = DIM};
    check_equal_keys(&other, desc, "tiles of 4 keys");
}

// One part is the fused kernel on the same tile, and the same call gives the same bits again.
static void test_same_bits(void **state)
{
    struct test_target *t = *state;
    static const struct attn_case c = {"same bits", DIM, 1, 4, 2, 16, 260, .causal = true,
                                       .seed = 23};
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    clattn_plan *cut = plan_of(t, &c, 7), *one = plan_of(t, &c, 1), *fused = NULL;
    struct output a = run_plan(cut, &c, &d), b = run_plan(cut, &c, &d);
    expect_same_bits(&a, &b, "the same call again");

    clattn_plan_info info_one = {.struct_size = sizeof info_one};
    clattn_plan_info info_fused = {.struct_size = sizeof info_fused};
    struct test_target other = *t;
    other.algo = CLATTN_ALGO_FUSED;
    fused = plan_of(&other, &c, 0);
    assert_int_equal(clattn_plan_get_info(one, &info_one), CLATTN_OK);
    assert_int_equal(clattn_plan_get_info(fused, &info_fused), CLATTN_OK);
    assert_int_equal(info_fused.num_splits, 1);
    assert_string_equal(info_one.build_options, info_fused.build_options);
    struct output x = run_plan(one, &c, &d), y = run_plan(fused, &c, &d);
    expect_same_bits(&x, &y, "fused");
    clattn_plan_destroy(&cut);
    clattn_plan_destroy(&one);
    clattn_plan_destroy(&fused);
    attn_data_free(&d);
}

// ---- the rule ----------------------------------------------------------------------------------

// Without a wish for a number: what the plan's bounds promise is enough for each call within them,
// and long rows are cut where there are few.
static void test_workspace_of_the_rule(void **state)
{
    struct test_target *t = *state;
    enum { MOST_KEYS = 16000, MOST_BATCH = 3, HEADS = 4, HEADS_KV = 1 };
    // Nothing is run: the memory is only looked at for its place and size.
    const size_t in_floats = (size_t)MOST_BATCH * HEADS_KV * MOST_KEYS * DIM;
    const size_t out_floats = (size_t)MOST_BATCH * HEADS * MOST_QUERIES * DIM;
    float *in = malloc(in_floats * sizeof *in), *out = malloc(out_floats * sizeof *out);
    assert_true(in && out);
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.heads_kv = HEADS_KV;
    desc.max_batch = MOST_BATCH;
    desc.max_len_q = MOST_QUERIES;
    desc.max_len_kv = MOST_KEYS;
    clattn_plan *plan = target_plan(t, desc);
    size_t bound = 0, most = 0;
    assert_int_equal(clattn_plan_workspace_bytes(plan, NULL, &bound), CLATTN_OK);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(in, in_floats * sizeof *in);
    call.o.buf = clattn_host_buf(out, out_floats * sizeof *out);
    for (call.batch = 1; call.batch <= MOST_BATCH; call.batch++)
        for (call.len_q = 1; call.len_q <= MOST_QUERIES; call.len_q++)
            for (call.len_kv = 1; call.len_kv <= MOST_KEYS; call.len_kv += 1 + call.len_kv / 3) {
                size_t need = 0;
                assert_int_equal(clattn_plan_workspace_bytes(plan, &call, &need), CLATTN_OK);
                assert_true(need <= bound);
                most = need > most ? need : most;
            }
    assert_true(most > 0);
    clattn_plan_destroy(&plan);
    free(in);
    free(out);

    desc.max_batch = 1;
    desc.max_len_q = 1; // one tile of rows, which even a single compute unit shares out
    plan = target_plan(t, desc);
    assert_true(parts_of(plan) > 1);
    clattn_plan_destroy(&plan);
    desc.max_batch = 0; // then there is no telling how much the calls need
    plan = target_plan(t, desc);
    assert_int_equal(clattn_plan_workspace_bytes(plan, NULL, &bound), CLATTN_ERR_OVER_BOUND);
    clattn_plan_destroy(&plan);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"parts against the reference", test_parts, LEVEL_SMALL},
        {"one part stays bit for bit", test_one_part_stays, LEVEL_SMALL},
        {"one part of many keys stays", test_one_part_of_many_keys_stays, LEVEL_SMALL},
        {"equal keys", test_equal_keys, LEVEL_MEDIUM},
        {"same bits", test_same_bits, LEVEL_SMALL},
        {"workspace of the rule", test_workspace_of_the_rule, LEVEL_SMALL},
    };
    setenv("CLATTN_TEST_ALGOS", "split_kv", 1);
    return targets_main("split_kv", argc, argv, tests, sizeof tests / sizeof *tests);
}
