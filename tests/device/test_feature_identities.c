// SPDX-License-Identifier: Apache-2.0
// Two ways of saying the same: features that must change nothing, and the other way to say what a
// feature says. Each run is also compared with the expectation, which tolerates more.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run_feature.h"

// A case, its data and what came out.
struct run {
    struct feature_case c;
    struct feature_data d;
    float *o, *lse;
};

static size_t rows_of(const struct feature_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
}

static size_t pairs_of(const struct feature_case *c)
{
    return rows_of(c) * (size_t)c->len_kv;
}

// A problem with several tiles on both sides, ragged ones, and a few hidden keys.
static struct feature_case base(const struct test_target *t)
{
    struct feature_case c = feature_plain();
    const bool small = t->level == LEVEL_SMALL;
    c.len_q = small ? 9 : 41;
    c.len_kv = small ? 40 : 139;
    c.causal = true;
    c.seed = 7;
    return c;
}

static struct run make(const struct feature_case *c, const char *name)
{
    struct run r = {.c = *c};
    snprintf(r.c.name, sizeof r.c.name, "%s", name);
    feature_inputs(&r.c, &r.d);
    return r;
}

static void run(const struct test_target *t, struct run *r)
{
    const size_t rows = rows_of(&r->c);
    r->o = malloc((rows * (size_t)r->c.dim_v + 1) * sizeof *r->o);
    r->lse = malloc((rows + 1) * sizeof *r->lse);
    assert_true(r->o && r->lse);
    feature_expect(&r->c, &r->d);
    if (!run_feature_on(t, &r->c, &r->d, NULL, r->o, r->lse))
        fail_msg("%s: %s: it is not what is expected", t->name, r->c.name);
}

static void end(struct run *r)
{
    feature_data_free(&r->d);
    free(r->o);
    free(r->lse);
    r->o = r->lse = NULL;
}

// `abs` = 0: bit for bit.
static void same_floats(const struct test_target *t, const char *what, const float *a,
                        const float *b, size_t count, double abs)
{
    const struct tolerance tol = {abs, abs, false};
    struct compare_report report;
    const bool ok = abs > 0 ? compare(a, b, count, &tol, &report)
                            : memcmp(a, b, count * sizeof *a) == 0;
    if (!ok && abs > 0)
        compare_print(what, &report);
    if (!ok)
        fail_msg("%s: %s differs", t->name, what);
}

static void same(const struct test_target *t, const struct run *a, const struct run *b, double abs)
{
    same_floats(t, a->c.name, a->o, b->o, rows_of(&a->c) * (size_t)a->c.dim_v, abs);
    same_floats(t, a->c.name, a->lse, b->lse, rows_of(&a->c), abs);
}

// Runs both, where the target serves them, and wants the same.
static void expect_same(const struct test_target *t, struct run *a, struct run *b, double abs)
{
    if (target_serves(t, &a->c) && target_serves(t, &b->c)) {
        run(t, a);
        run(t, b);
        same(t, a, b, abs);
    }
    end(a);
    end(b);
}

// Rounding differs where another number of keys is added up at once.
static const double ROUNDING = 3e-6;

// ---- where keys and queries lie -----------------------------------------------------------------

static void test_pages(void **state)
{
    static const int32_t sizes[] = {1, 3, 16, 64, 256};
    const struct test_target *t = *state;
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        struct feature_case c = base(t);
        c.kv_lens = true;
        struct run whole = make(&c, "contiguous");
        c.page_size = sizes[n];
        struct run paged = make(&c, "paged = contiguous");
        expect_same(t, &paged, &whole, ROUNDING);
    }
}

// The rows of sequence b of all heads, as a batch of its own.
static double *rows_of_sequence(const double *from, int32_t b, int32_t heads, int32_t longest,
                                int32_t len, int32_t dim)
{
    double *to = malloc(((size_t)heads * (size_t)len * (size_t)dim + 1) * sizeof *to);
    assert_non_null(to);
    for (int32_t h = 0; h < heads; h++)
        memcpy(to + (size_t)h * (size_t)len * (size_t)dim,
               from + ((size_t)b * (size_t)heads + (size_t)h) * (size_t)longest * (size_t)dim,
               (size_t)len * (size_t)dim * sizeof *to);
    return to;
}

static void compare_sequence(const struct test_target *t, const struct run *packed, int32_t b)
{
    const struct feature_case *p = &packed->c;
    const int32_t len_q = packed->d.len_q[b], len_kv = packed->d.len_kv[b];
    struct feature_case c = *p;
    c.packed_q = c.packed_kv = false;
    c.batch = 1;
    c.len_q = len_q;
    c.len_kv = len_kv;
    if (len_q == 0)
        return;
    struct run one = make(&c, "one sequence");
    free(one.d.q);
    free(one.d.k);
    free(one.d.v);
    one.d.q = rows_of_sequence(packed->d.q, b, c.heads_q, p->len_q, len_q, c.dim_qk);
    one.d.k = rows_of_sequence(packed->d.k, b, c.heads_kv, p->len_kv, len_kv, c.dim_qk);
    one.d.v = rows_of_sequence(packed->d.v, b, c.heads_kv, p->len_kv, len_kv, c.dim_v);
    run(t, &one);
    for (int32_t h = 0; h < c.heads_q; h++) {
        const size_t to = (size_t)h * (size_t)len_q;
        const size_t from = ((size_t)b * (size_t)c.heads_q + (size_t)h) * (size_t)p->len_q;
        const size_t dim = (size_t)c.dim_v;
        same_floats(t, "O of a packed sequence", one.o + to * dim, packed->o + from * dim,
                    (size_t)len_q * dim, ROUNDING);
        same_floats(t, "LSE of a packed sequence", one.lse + to, packed->lse + from, (size_t)len_q,
                    ROUNDING);
    }
    end(&one);
}

static void test_packed(void **state)
{
    const struct test_target *t = *state;
    for (uint64_t seed = 3; seed < 6; seed++) {
        struct feature_case c = base(t);
        c.packed_q = c.packed_kv = true;
        c.batch = 3;
        c.window = true;
        c.left = 21;
        c.right = -1;
        c.seed = seed;
        struct run packed = make(&c, "packed = loop");
        if (target_serves(t, &c)) {
            run(t, &packed);
            for (int32_t b = 0; b < c.batch; b++)
                compare_sequence(t, &packed, b);
        }
        end(&packed);
    }
}

static void test_splits(void **state)
{
    static const int32_t parts[] = {2, 3, 7, 40};
    const struct test_target *t = *state;
    if (t->algo != CLATTN_ALGO_SPLIT_KV)
        return;
    for (int32_t len_q = 1; len_q < 42; len_q += 40)
        for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
            struct feature_case c = base(t);
            c.len_q = len_q;
            c.sinks = SINKS_NORMAL;
            c.alibi = 1;
            c.kv_lens = true;
            c.num_splits = 1;
            struct run whole = make(&c, "whole");
            c.num_splits = parts[n];
            struct run split = make(&c, "split = whole");
            expect_same(t, &split, &whole, ROUNDING);
        }
}

// ---- another way to say it ----------------------------------------------------------------------

static void test_window_is_causal(void **state)
{
    const struct test_target *t = *state;
    for (int32_t align = 0; align < 2; align++) {
        struct feature_case c = base(t);
        c.align = align;
        struct run causal = make(&c, "causal");
        c.causal = false;
        c.window = true;
        c.left = -1;
        c.right = 0;
        struct run window = make(&c, "window (-1, 0) = causal");
        expect_same(t, &window, &causal, ROUNDING);
    }
}

static void test_bias_is_mask(void **state)
{
    const struct test_target *t = *state;
    for (int32_t dtype = 0; dtype < 3; dtype++) {
        struct feature_case c = base(t);
        c.mask.used = true;
        struct run mask = make(&c, "mask");
        c.mask.used = false;
        c.bias.used = true;
        c.dtype_bias = dtype;
        struct run bias = make(&c, "bias of -inf = mask");
        for (size_t n = 0; n < pairs_of(&c); n++)
            bias.d.bias[n] = mask.d.mask[n] ? 0 : -INFINITY;
        expect_same(t, &bias, &mask, ROUNDING);
    }
}

static void test_mask_is_window(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    c.causal = false;
    c.window = true;
    c.left = 17;
    c.right = 5;
    struct run window = make(&c, "window");
    c.window = false;
    c.mask.used = true;
    struct run mask = make(&c, "mask of a window = window");
    const int32_t off = c.len_kv - c.len_q;
    for (size_t n = 0; n < pairs_of(&c); n++) {
        const int32_t j = (int32_t)(n % (size_t)c.len_kv);
        const int32_t i = (int32_t)(n / (size_t)c.len_kv % (size_t)c.len_q);
        mask.d.mask[n] = j >= i + off - 17 && j <= i + off + 5;
    }
    expect_same(t, &mask, &window, ROUNDING);
}

// ALiBi is a bias.
static void test_alibi_is_bias(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    c.alibi = 2;
    struct run alibi = make(&c, "ALiBi");
    c.alibi = 0;
    c.bias.used = true;
    struct run bias = make(&c, "bias by distance = ALiBi");
    const int32_t off = c.len_kv - c.len_q;
    for (size_t n = 0; n < pairs_of(&c); n++) {
        const int32_t j = (int32_t)(n % (size_t)c.len_kv);
        const size_t row = n / (size_t)c.len_kv;
        const int32_t i = (int32_t)(row % (size_t)c.len_q);
        const float slope = alibi.d.alibi[row / (size_t)c.len_q];
        bias.d.bias[n] = -slope * (float)abs(i + off - j);
    }
    // The distance times the slope is rounded, and is up to 42.
    expect_same(t, &bias, &alibi, 3 * ROUNDING);
}

static void test_lengths_are_equal(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    struct run without = make(&c, "without lengths");
    c.kv_lens = true;
    struct run lens = make(&c, "lengths of all keys = none");
    for (int32_t b = 0; b < c.batch; b++)
        lens.d.len_kv[b] = c.len_kv;
    expect_same(t, &lens, &without, ROUNDING);
}

// ---- what changes nothing -----------------------------------------------------------------------

static void test_no_sink(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    struct run none = make(&c, "no sinks");
    c.sinks = SINKS_NORMAL;
    struct run sinks = make(&c, "sinks of -inf = none");
    for (int32_t h = 0; h < c.heads_q; h++)
        sinks.d.sinks[h] = -INFINITY;
    expect_same(t, &sinks, &none, 0);
}

static void test_no_cap(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    struct run none = make(&c, "no cap");
    c.has_softcap = true;
    struct run zero = make(&c, "a cap of 0 = none");
    expect_same(t, &zero, &none, ROUNDING);
    c.softcap = 10000;
    struct run huge = make(&c, "a huge cap = none");
    c.has_softcap = false;
    struct run none_again = make(&c, "no cap");
    expect_same(t, &huge, &none_again, ROUNDING);
}

static void test_nothing_added(void **state)
{
    const struct test_target *t = *state;
    for (int which = 0; which < 4; which++) {
        static const char *const name[] = {"slopes of 0 = none", "a bias of 0 = none",
                                           "a mask of ones = none", "window (-1, -1) = none"};
        struct feature_case c = base(t);
        struct run none = make(&c, "none");
        c.alibi = which == 0 ? 2 : 0;
        c.bias.used = which == 1;
        c.mask.used = which == 2;
        c.window = which == 3;
        c.left = c.right = -1;
        struct run more = make(&c, name[which]);
        for (int32_t n = 0; which == 0 && n < c.batch * c.heads_q; n++)
            more.d.alibi[n] = 0;
        for (size_t n = 0; which == 1 && n < pairs_of(&c); n++)
            more.d.bias[n] = 0;
        for (size_t n = 0; which == 2 && n < pairs_of(&c); n++)
            more.d.mask[n] = 1;
        expect_same(t, &more, &none, ROUNDING);
    }
}

// The default scale said in full.
static void test_default_scale(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    struct run unsaid = make(&c, "default scale");
    c.has_scale = true;
    c.scale = (float)(1 / sqrt((double)c.dim_qk));
    struct run said = make(&c, "1 / sqrt(dim) = default scale");
    expect_same(t, &said, &unsaid, 0);
}

// ---- int8 ---------------------------------------------------------------------------------------

// Rows of normal numbers in int8, and as they were.
static void quantise(double *k8, double *scales, double *plain, size_t rows, size_t dim)
{
    for (size_t r = 0; r < rows; r++) {
        double most = 0;
        for (size_t n = 0; n < dim; n++)
            most = fmax(most, fabs(plain[r * dim + n]));
        scales[r] = (double)(float)(most / 127);
        for (size_t n = 0; n < dim; n++)
            k8[r * dim + n] = fmax(-127, fmin(127, nearbyint(plain[r * dim + n] / scales[r])));
    }
}

static double largest(const double *x, size_t count)
{
    double most = 0;
    for (size_t n = 0; n < count; n++)
        most = fmax(most, fabs(x[n]));
    return most;
}

// Half a step of each key moves a score by up to d = scale * |q|_1 * step / 2, a weight by a factor
// of e^(2 d), and V by half a step of its own.
static void test_int8_bound(void **state)
{
    const struct test_target *t = *state;
    struct feature_case c = base(t);
    struct run plain = make(&c, "float32");
    c.dtype_kv = CLATTN_DTYPE_I8;
    struct run k8 = make(&c, "int8");
    if (!target_serves(t, &c)) {
        end(&plain);
        end(&k8);
        return;
    }
    const size_t rows = (size_t)c.batch * (size_t)c.heads_kv * (size_t)c.len_kv;
    const size_t dim = (size_t)c.dim_qk, count = rows_of(&c) * dim;
    quantise(k8.d.k, k8.d.ks, plain.d.k, rows, dim);
    quantise(k8.d.v, k8.d.vs, plain.d.v, rows, dim);
    double norm = 0;
    for (size_t r = 0; r < rows_of(&c); r++) {
        double sum = 0;
        for (size_t n = 0; n < dim; n++)
            sum += fabs(plain.d.q[r * dim + n]);
        norm = fmax(norm, sum);
    }
    memcpy(k8.d.q, plain.d.q, count * sizeof *k8.d.q);
    run(t, &plain);
    run(t, &k8);
    const double d = norm / sqrt((double)c.dim_qk) * largest(k8.d.ks, rows) / 2;
    const double bound = (exp(2 * d) - 1) * largest(plain.d.v, rows * dim) +
                         largest(k8.d.vs, rows) / 2;
    double worst = 0;
    for (size_t n = 0; n < count; n++)
        worst = fmax(worst, fabs((double)plain.o[n] - (double)k8.o[n]));
    printf("%s: int8 moves O by up to %.3g, the bound is %.3g\n", t->name, worst, bound);
    assert_true(worst > 0 && worst <= bound);
    for (size_t n = 0; n < rows_of(&c); n++)
        if (isfinite(plain.lse[n]))
            assert_true(fabs((double)plain.lse[n] - (double)k8.lse[n]) <= d + 1e-5);
    end(&plain);
    end(&k8);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"pages are contiguous keys", test_pages, LEVEL_SMALL},
        {"packed sequences are a loop", test_packed, LEVEL_SMALL},
        {"parts of the keys are the whole", test_splits, LEVEL_SMALL},
        {"a window is causal", test_window_is_causal, LEVEL_SMALL},
        {"a bias is a mask", test_bias_is_mask, LEVEL_SMALL},
        {"a mask is a window", test_mask_is_window, LEVEL_SMALL},
        {"ALiBi is a bias", test_alibi_is_bias, LEVEL_SMALL},
        {"lengths of all keys", test_lengths_are_equal, LEVEL_SMALL},
        {"sinks that are none", test_no_sink, LEVEL_SMALL},
        {"caps that are none", test_no_cap, LEVEL_SMALL},
        {"nothing is added or hidden", test_nothing_added, LEVEL_SMALL},
        {"the default scale", test_default_scale, LEVEL_SMALL},
        {"int8 within its bound", test_int8_bound, LEVEL_SMALL},
    };
    targets_with_subgroups = true;
    return targets_main("feature_identities", argc, argv, tests, sizeof tests / sizeof *tests);
}
