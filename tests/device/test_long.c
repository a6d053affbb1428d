// SPDX-License-Identifier: Apache-2.0
// Long context: a million keys, causal self-attention of 32768, and the workspace that they take.
// What is promised of the precision of long rows is held against sums in double.
//
// The million keys take 2 x 256 MB; where memory is short those tests are skipped. CLATTN_LONG_DIM
// in the environment sets the channels, which are 64 otherwise.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "portable.h"

// Four query heads on one key head: the 16 queries are 64 rows, all of which are checked.
enum { HEADS = 4, QUERIES = 16, ROWS = HEADS * QUERIES, KEYS = 1000000, SELF = 32768 };
enum { DIM_MOST = 128 };

// What lib/open_device.h's info.quirks says of a driver that stops long loops.
enum { QUIRK_LOOP_LIMIT = 4 };

// ---- inputs -------------------------------------------------------------------------------------

// Of each row a column, so that a loop over rows is one over neighbours.
struct expected {
    double o[DIM_MOST][ROWS];
    double lse[ROWS];
};

static struct {
    size_t dim;
    float *q, *self_q; // [HEADS, QUERIES, dim], [SELF, dim]
    float *k, *v;      // [KEYS, dim]
    double v_max;
    struct expected million, self;
} data;

// The rows of a causal call whose output is checked: the first two, the last, and others.
static size_t sampled(size_t n)
{
    return n < 2 ? n : n == 2 ? SELF - 1 : (n * 2654435761u) % SELF;
}

static float *draw(uint64_t *rng, const float table[4096], size_t count)
{
    float *x = malloc((count + 4) * sizeof *x);
    assert_non_null(x);
    for (size_t n = 0; n < count; n += 4) {
        const uint64_t bits = rng_next(rng);
        for (size_t m = 0; m < 4; m++)
            x[n + m] = table[bits >> 16 * m & 4095];
    }
    return x;
}

// Attention of ROWS rows in double; row r sees the first see[r] keys. No maximum is taken off:
// scores stay below 100, where e^x is nothing to a double.
static void expect(const float *const row[ROWS], const size_t see[ROWS], size_t keys,
                   struct expected *e)
{
    static double q[DIM_MOST][ROWS];
    double l[ROWS] = {0};
    const size_t dim = data.dim;
    const double scale = 1 / sqrt((double)dim);
    memset(e, 0, sizeof *e);
    for (size_t d = 0; d < dim; d++)
        for (size_t r = 0; r < ROWS; r++)
            q[d][r] = scale * (double)row[r][d];
    for (size_t j = 0; j < keys; j++) {
        double p[ROWS] = {0};
        for (size_t d = 0; d < dim; d++) {
            const double k = (double)data.k[j * dim + d];
            for (size_t r = 0; r < ROWS; r++)
                p[r] += q[d][r] * k;
        }
        for (size_t r = 0; r < ROWS; r++) {
            p[r] = j < see[r] ? exp(p[r]) : 0;
            l[r] += p[r];
        }
        for (size_t d = 0; d < dim; d++) {
            const double v = (double)data.v[j * dim + d];
            for (size_t r = 0; r < ROWS; r++)
                e->o[d][r] += p[r] * v;
        }
    }
    for (size_t r = 0; r < ROWS; r++) {
        e->lse[r] = log(l[r]);
        for (size_t d = 0; d < dim; d++)
            e->o[d][r] /= l[r];
    }
}

static double available_bytes(void)
{
    char line[128];
    double kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lf kB", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    return kib * 1024;
}

// Makes the inputs and what is expected, once. Skips where memory is short: drivers that do not
// work on the host's memory take as much again.
static void need_data(void)
{
    if (data.q)
        return;
    const double need = 4.0 * KEYS * (double)data.dim * sizeof(float) + 0x1p29;
    if (available_bytes() < need) {
        printf("%.2g GB of memory are available, this takes %.2g\n", available_bytes() / 1e9,
               need / 1e9);
        skip();
    }
    uint64_t rng = 77;
    static float table[4096];
    for (size_t n = 0; n < 4096; n++) {
        table[n] = rng_normal(&rng);
        data.v_max = fmax(data.v_max, fabs((double)table[n]));
    }
    data.k = draw(&rng, table, KEYS * data.dim);
    data.v = draw(&rng, table, KEYS * data.dim);
    data.self_q = draw(&rng, table, SELF * data.dim);
    data.q = draw(&rng, table, ROWS * data.dim);
    const float *row[ROWS];
    size_t see[ROWS];
    for (size_t r = 0; r < ROWS; r++) {
        row[r] = data.q + r * data.dim;
        see[r] = KEYS - QUERIES + 1 + r % QUERIES; // causal, the last query sees all keys
    }
    expect(row, see, KEYS, &data.million);
    for (size_t r = 0; r < ROWS; r++) {
        row[r] = data.self_q + sampled(r) * data.dim;
        see[r] = sampled(r) + 1;
    }
    expect(row, see, SELF, &data.self);
}

static void free_data(void)
{
    free(data.q);
    free(data.self_q);
    free(data.k);
    free(data.v);
    memset(&data, 0, sizeof data);
}

// ---- running ------------------------------------------------------------------------------------

// One description without bounds serves every test, so that a target compiles one program.
static clattn_attention_desc describe(int32_t heads_q)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = (int32_t)data.dim;
    desc.heads_q = heads_q;
    desc.heads_kv = 1;
    desc.features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE;
    return desc;
}

static clattn_attention_call make_call(int32_t len_q, int32_t len_kv, const float *q, float *o,
                                       float *lse)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = len_q;
    call.len_kv = len_kv;
    call.q.buf = clattn_host_buf(q, 0);
    call.k.buf = clattn_host_buf(data.k, 0);
    call.v.buf = clattn_host_buf(data.v, 0);
    call.o.buf = clattn_host_buf(o, 0);
    call.lse = clattn_host_buf(lse, 0);
    return call;
}

// Where a driver's fault bars so many keys, the refusal must come before anything is written, and
// a plan that may fall back must get it done.
static void run_or_fall_back(const struct test_target *t, int32_t heads_q, clattn_plan **plan,
                             const clattn_attention_call *call, float *o, size_t count)
{
    fill_unwritten(o, count);
    clattn_status st = clattn_attention_run(*plan, call);
    if (st == CLATTN_ERR_UNSUPPORTED && t->device->info.quirks & QUIRK_LOOP_LIMIT) {
        for (size_t n = 0; n < count; n++)
            assert_int_equal(float_bits(o[n]), UNWRITTEN_BITS);
        printf("    refused; a plan that may fall back computes it\n");
        const clattn_attention_desc desc = describe(heads_q);
        clattn_plan_destroy(plan);
        assert_int_equal(clattn_attention_plan_create(t->device->ctx, &desc, plan), CLATTN_OK);
        st = clattn_attention_run(*plan, call);
    }
    if (st != CLATTN_OK)
        fail_msg("%d x %d: %s", (int)call->len_q, (int)call->len_kv, clattn_status_string(st));
}

struct worst {
    double o, lse;
};

static void raise_to(double *worst, double error)
{
    if (!(error <= *worst)) // NaN counts as the worst there is
        *worst = error;
}

// Row r of what is expected is row at[r] of the output.
static struct worst errors(const struct expected *e, size_t from, size_t step, const size_t *at,
                           const float *out, const float *out_lse)
{
    struct worst w = {0, 0};
    for (size_t r = from, n = 0; r < ROWS; r += step, n++) {
        const size_t row = at ? at[r] : n;
        raise_to(&w.lse, fabs((double)out_lse[row] - e->lse[r]));
        for (size_t d = 0; d < data.dim; d++)
            raise_to(&w.o, fabs((double)out[row * data.dim + d] - e->o[d][r]));
    }
    return w;
}

// Sums over the keys are off by as much of themselves as O by of max|V|, and so the logarithm; to
// that come half an ulp of it and the rounding of the scores.
static void check(const char *what, struct worst w, double promised, double v_max, double lse)
{
    const double tol_lse = promised + lse * FLT_EPSILON + 4 * FLT_EPSILON;
    printf("    %s: error %.2g of max|V| (%.0e allowed), log-sum-exp %.2g (%.1e)\n", what,
           w.o / v_max, promised, w.lse, tol_lse);
    if (!(w.o <= promised * v_max) || !(w.lse <= tol_lse))
        fail_msg("%s: the error is more than promised", what);
}

// The reference takes seconds for what the others do in milliseconds: it gets the one query only.
static bool is_reference(const struct test_target *t)
{
    return t->algo == CLATTN_ALGO_REFERENCE;
}

// The last `len_q` queries of each head.
static void run_million(const struct test_target *t, clattn_attention_call *call, float *o,
                        float *lse, int32_t len_q)
{
    clattn_plan *plan = target_plan(t, describe(HEADS));
    const int64_t dim = (int64_t)data.dim;
    call->len_q = len_q;
    call->q.layout = CLATTN_LAYOUT_STRIDED;
    call->q.stride_batch = ROWS * dim;
    call->q.stride_head = QUERIES * dim;
    call->q.stride_seq = dim;
    call->q.buf.offset_bytes = (size_t)((QUERIES - len_q) * dim) * sizeof(float);
    fill_unwritten(lse, ROWS);
    run_or_fall_back(t, HEADS, &plan, call, o, ROWS * data.dim);
    clattn_plan_destroy(&plan);
}

// ---- a million keys -----------------------------------------------------------------------------

// One query of each head, the last, and then all of them. A constant V is one row for all keys.
static void million(const struct test_target *t, const float *q, const float *v,
                    const struct expected *e, double promised, double v_max)
{
    static float lse[ROWS], o[ROWS * DIM_MOST];
    clattn_attention_call call = make_call(1, KEYS, q, o, lse);
    if (v)
        call.v = (clattn_tensor){.buf = clattn_host_buf(v, 0), .layout = CLATTN_LAYOUT_STRIDED};
    run_million(t, &call, o, lse, 1);
    check("1 query", errors(e, QUERIES - 1, QUERIES, NULL, o, lse), promised, v_max, e->lse[0]);
    if (is_reference(t))
        return;
    run_million(t, &call, o, lse, QUERIES);
    check("16 queries", errors(e, 0, 1, NULL, o, lse), promised, v_max, e->lse[0]);
}

static void test_normal_scores(void **state)
{
    need_data();
    million(*state, data.q, NULL, &data.million, 1e-6, data.v_max);
}

// Equal weights and a constant V, where every sum grows with every term.
static void test_equal_scores(void **state)
{
    static float zeros[ROWS * DIM_MOST], v[DIM_MOST];
    static struct expected e;
    need_data();
    for (size_t d = 0; d < DIM_MOST; d++) {
        v[d] = d % 2 ? 0.7f : -0.3f;
        for (size_t r = 0; r < ROWS; r++)
            e.o[d][r] = (double)v[d];
    }
    for (size_t r = 0; r < ROWS; r++)
        e.lse[r] = log(KEYS - QUERIES + 1 + (double)(r % QUERIES));
    million(*state, zeros, v, &e, 8e-6, 0.7);
}

// ---- causal self-attention ----------------------------------------------------------------------

// In one kernel shape, since the other is many times slower on a device.
static bool suits(const struct test_target *t)
{
    const int32_t best = t->device->info.vector_shape ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP;
    return t->kernel == CLATTN_KERNEL_AUTO || t->kernel == best;
}

static void test_self_attention(void **state)
{
    const struct test_target *t = *state;
    if (is_reference(t) || !suits(t)) {
        printf("too slow on this target\n");
        skip();
    }
    need_data();
    float *o = malloc(SELF * data.dim * sizeof *o), *lse = malloc(SELF * sizeof *lse);
    assert_true(o && lse);
    fill_unwritten(lse, SELF);
    clattn_plan *plan = target_plan(t, describe(1));
    const clattn_attention_call call = make_call(SELF, SELF, data.self_q, o, lse);
    run_or_fall_back(t, 1, &plan, &call, o, SELF * data.dim);
    clattn_plan_destroy(&plan);
    size_t at[ROWS];
    for (size_t r = 0; r < ROWS; r++)
        at[r] = sampled(r);
    check("64 rows", errors(&data.self, 0, 1, at, o, lse), 1e-6, data.v_max, data.self.lse[2]);
    // All of it are means of V, and so no larger than what V holds.
    for (size_t n = 0; n < SELF * data.dim; n++)
        if (!(fabs((double)o[n]) <= data.v_max * 1.001))
            fail_msg("O[%zu] is %g", n, (double)o[n]);
    free(o);
    free(lse);
}


// ---- workspace ----------------------------------------------------------------------------------

// Memory that is only measured, each tensor far from the others.
static const void *nowhere(int n)
{
    return (const void *)((uintptr_t)(n + 1) << 42);
}

static size_t workspace_of(const clattn_plan *plan, int32_t len_q, int32_t len_kv)
{
    clattn_attention_call call;
    size_t bytes = SIZE_MAX;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = len_q;
    call.len_kv = len_kv;
    clattn_buf *const bufs[] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.o.buf, &call.lse};
    for (int n = 0; n < 5; n++)
        *bufs[n] = clattn_host_buf(nowhere(n), 0);
    assert_int_equal(clattn_plan_workspace_bytes(plan, &call, &bytes), CLATTN_OK);
    return bytes;
}

// Twice the length takes at most twice the workspace, and never as much as a byte for each score.
static void test_workspace(void **state)
{
    const struct test_target *t = *state;
    clattn_plan *plan = target_plan(t, describe(HEADS));
    static const int32_t lens[][2] = {{SELF, SELF}, {QUERIES, KEYS}, {1, KEYS}};
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
        const int32_t len_q = lens[n][0], len_kv = lens[n][1];
        const size_t one = workspace_of(plan, len_q, len_kv);
        const size_t two = workspace_of(plan, n == 0 ? 2 * len_q : len_q, 2 * len_kv);
        const double scores = (double)HEADS * len_q * len_kv;
        printf("    %d x %d: %zu bytes, twice as long: %zu\n", (int)len_q, (int)len_kv, one, two);
        assert_true(two <= 2 * one && (double)one < scores);
        if (t->algo != CLATTN_ALGO_SPLIT_KV && t->algo != CLATTN_ALGO_FUSED_KV_OUTER)
            assert_int_equal(one, 0);
    }
    clattn_plan_destroy(&plan);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"a million keys, normal scores", test_normal_scores, LEVEL_MEDIUM},
        {"a million keys, equal scores", test_equal_scores, LEVEL_MEDIUM},
        {"causal self-attention of 32768", test_self_attention, LEVEL_MEDIUM},
        {"workspace is linear", test_workspace, LEVEL_MEDIUM},
    };
    const char *dim = getenv("CLATTN_LONG_DIM");
    data.dim = dim && *dim ? (size_t)atoi(dim) : 64;
    if (data.dim < 1 || data.dim > DIM_MOST) {
        printf("CLATTN_LONG_DIM is %s, not 1 to %d\n", dim, DIM_MOST);
        return 2;
    }
    setenv("CLATTN_TEST_ALGOS", "fused,host,split_kv", 0);
    const int status = targets_main("long", argc, argv, tests, sizeof tests / sizeof *tests);
    free_data();
    return status;
}
