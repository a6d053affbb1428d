// SPDX-License-Identifier: Apache-2.0
// Inputs at the ends of the float range: overflow and underflow of products, values near the
// largest number, denormals, equal scores of any size, scales, soft-caps, slopes and biases that no
// model has. docs/math.md, section 12.4, says what must come out.
//
// Environment beside that of the tests (open_device.h):
//   CLATTN_TEST_FORMATS  not empty: storage of 16 bits on OpenCL devices, too, each of which is a
//                        program to compile
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run_feature.h"

// A case to change before its inputs are made.
static struct feature_case plain(const char *name)
{
    struct feature_case c = feature_plain();
    snprintf(c.name, sizeof c.name, "%s", name);
    c.batch = 1;
    c.heads_q = 2;
    c.heads_kv = 1;
    c.len_q = 9;
    c.len_kv = 41;
    c.lse = true;
    c.has_softcap = true; // 0 caps nothing and shares the program
    return c;
}

static size_t rows_q(const struct feature_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
}

static size_t values(const struct feature_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_kv * (size_t)c->len_kv * (size_t)c->dim_v;
}

// All channels of K, V or some of Q.
static void set(double *x, size_t count, double value)
{
    for (size_t n = 0; n < count; n++)
        x[n] = value;
}

static void expect_row(const struct feature_case *c, struct feature_data *d, size_t row, float o,
                       float lse)
{
    d->lse[row] = lse;
    for (int32_t n = 0; n < c->dim_v; n++)
        d->o[row * (size_t)c->dim_v + (size_t)n] = o;
}

// O within a few roundings of max |V|, where rounding in scores cancels: they are equal, or far
// from each other.
static void expect_exact_scores(const struct feature_case *c, struct feature_data *d)
{
    double most = 0;
    for (size_t n = 0; n < values(c); n++)
        most = fmax(most, fabs(d->v[n]));
    memset(d->bound_o, 0, rows_q(c) * (size_t)c->dim_v * sizeof *d->bound_o);
    d->tol_o.abs += 8 * (double)FLT_EPSILON * most;
}

static int finish(const struct test_target *t, const struct feature_case *c, struct feature_data *d)
{
    const bool ok = !target_serves(t, c) || run_feature_on(t, c, d, NULL, NULL, NULL);
    feature_data_free(d);
    return !ok;
}

// ---- scores -------------------------------------------------------------------------------------

// Products that leave the range: +infinity makes its row NaN, -infinity hides its key, and neither
// touches other rows.
static void test_overflow(void **state)
{
    const struct test_target *t = *state;
    int failed = 0;
    if (t->algo == CLATTN_ALGO_REFERENCE)
        return; // these are in the range of its doubles
    for (int sign = -1; sign <= 1; sign += 2) {
        struct feature_case c = plain(sign < 0 ? "scores of -infinity" : "scores of +infinity");
        struct feature_data d;
        feature_inputs(&c, &d);
        const size_t dim = (size_t)c.dim_qk, row = 3;
        for (size_t n = 0; n < (size_t)c.len_kv * dim; n++)
            d.k[n] = (double)(float)((fabs(d.k[n]) + 0.01) * 1e10);
        for (size_t n = 0; n < rows_q(&c) * dim; n++)
            d.q[n] = (double)(float)(d.q[n] * 1e-10);
        set(d.q + row * dim, dim, 0);
        feature_expect(&c, &d);
        set(d.q + row * dim, dim, sign * (double)1e37f);
        expect_row(&c, &d, row, sign < 0 ? 0 : NAN, sign < 0 ? -INFINITY : NAN);
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

// Sizes of Q and K whose products are tiny, or denormals themselves: what is lost there is far
// below the rounding of scores, unless a scale brings it back.
static void test_small(void **state)
{
    const struct test_target *t = *state;
    static const struct {
        int32_t q, k, v;
        float scale;
    } rows[] = {{-66, -60, 0, 0.2f},    {-130, -20, -125, 0.2f}, {-140, -140, -140, 1},
                {60, -140, 0, 0x1p-10f}, {-50, -10, 0, 0x1p60f},  {-30, -30, 120, -0x1p61f},
                {50, 60, -20, 0x1p-111f}, {3, 2, 0, 0x1p-140f}};
    int failed = 0;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        char name[60];
        snprintf(name, sizeof name, "sizes, row %zu", n);
        struct feature_case c = plain(name);
        struct feature_data d;
        c.exp_q = rows[n].q;
        c.exp_k = rows[n].k;
        c.exp_v = rows[n].v;
        c.has_scale = true;
        c.scale = rows[n].scale;
        feature_data_make(&c, &d);
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

// Equal scores of any size are equal weights; so is one key alone.
static void test_equal(void **state)
{
    const struct test_target *t = *state;
    static const double sizes[] = {1e30, -1e30, 1.5e38, -1.5e38, 0};
    int failed = 0;
    for (int n = 0; n < 5; n++)
        for (int one = 0; one < 2; one++) {
            struct feature_case c = plain("equal scores");
            struct feature_data d;
            c.has_scale = true;
            c.scale = 1;
            c.len_kv = one ? 1 : c.len_kv;
            feature_inputs(&c, &d);
            const size_t dim = (size_t)c.dim_qk;
            set(d.q, rows_q(&c) * dim, 0);
            set(d.k, (size_t)c.len_kv * dim, 0);
            for (size_t r = 0; r < rows_q(&c); r++)
                d.q[r * dim] = (double)1e15f;
            for (size_t j = 0; j < (size_t)c.len_kv; j++)
                d.k[j * dim] = (double)(float)(sizes[n] * 1e-15);
            feature_expect(&c, &d);
            expect_exact_scores(&c, &d);
            failed += finish(t, &c, &d);
        }
    assert_int_equal(failed, 0);
}

// A scale of 0 makes all scores 0, of any Q and K.
static void test_no_scale(void **state)
{
    struct feature_case c = plain("scale 0");
    struct feature_data d;
    c.has_scale = true;
    c.scale = 0;
    c.exp_q = 50;
    c.exp_k = 60;
    feature_data_make(&c, &d);
    assert_int_equal(finish(*state, &c, &d), 0);
}

// ---- what is added ------------------------------------------------------------------------------

// The largest biases: a key with +FLT_MAX takes its row, two of them share it, and the difference
// of two biases, which is not finite, is no score.
static void test_bias(void **state)
{
    struct feature_case c = plain("biases of +-FLT_MAX");
    struct feature_data d;
    c.bias.used = true;
    feature_inputs(&c, &d);
    const size_t len = (size_t)c.len_kv;
    for (size_t r = 0; r < rows_q(&c); r++)
        for (size_t j = 0; j < len; j++) {
            float *b = &d.bias[r * len + j];
            *b = j == r || (r % 3 == 1 && j == 30) ? FLT_MAX
                 : j % 2                           ? -FLT_MAX
                 : r % 3 == 2                      ? -INFINITY
                                                   : 0;
        }
    feature_expect(&c, &d);
    // What is beside the bias is lost in it.
    const size_t dim = (size_t)c.dim_v;
    for (size_t r = 0; r < rows_q(&c); r++) {
        d.lse[r] = FLT_MAX;
        for (size_t n = 0; n < dim; n++) {
            const double v = d.v[r * dim + n], w = d.v[30 * dim + n];
            d.o[r * dim + n] = (float)(r % 3 == 1 ? (v + w) / 2 : v);
        }
    }
    expect_exact_scores(&c, &d);
    assert_int_equal(finish(*state, &c, &d), 0);
}

static void test_softcaps(void **state)
{
    const struct test_target *t = *state;
    static const float caps[] = {1e-45f, 1e-39f, 1e-30f, 1e-3f, 1e3f, 1e20f, 1e37f, FLT_MAX};
    int failed = 0;
    for (size_t n = 0; n < sizeof caps / sizeof *caps; n++)
        for (int large = 0; large < 2; large++) {
            char name[60];
            snprintf(name, sizeof name, "soft-cap %g", (double)caps[n]);
            struct feature_case c = plain(name);
            struct feature_data d;
            c.softcap = caps[n];
            c.exp_q = large ? 20 : 0;
            // Where the cap is far off, large scores are no matter of soft-caps.
            if (large && caps[n] > 1e3f)
                c.exp_k = -20;
            feature_data_make(&c, &d);
            failed += finish(t, &c, &d);
        }
    assert_int_equal(failed, 0);
}

// Slopes that leave each query its nearest key, or the farthest one.
static void test_slopes(void **state)
{
    const struct test_target *t = *state;
    static const float slopes[] = {1e30f, FLT_MAX, -1e30f, 1e-40f};
    int failed = 0;
    for (size_t n = 0; n < sizeof slopes / sizeof *slopes; n++) {
        struct feature_case c = plain("slopes");
        struct feature_data d;
        c.alibi = 1;
        c.causal = true;
        feature_inputs(&c, &d);
        for (int32_t h = 0; h < c.heads_q; h++)
            d.alibi[h] = slopes[n];
        feature_expect(&c, &d);
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

// ---- values -------------------------------------------------------------------------------------

// A mean of finite values is finite, but for what rounding may do to the largest number.
static void test_values(void **state)
{
    const struct test_target *t = *state;
    int failed = 0;
    for (int way = 0; way < 7; way++) {
        struct feature_case c = plain("values of +-FLT_MAX");
        struct feature_data d;
        c.exp_q = way == 2 || way >= 5 ? 5 : 0; // one key of a tile or part counts, then another
        c.mask.used = way == 3;
        c.num_splits = way == 4 || way == 5 ? 3 : way == 6 ? 7 : 0;
        feature_inputs(&c, &d);
        for (size_t n = 0; n < values(&c); n++) {
            const size_t j = n / (size_t)c.dim_v, channel = n % (size_t)c.dim_v;
            const bool down = (channel % 3 == 1 && j % 2) || channel % 3 == 2;
            d.v[n] = (down ? -1 : 1) * (double)FLT_MAX * (channel % 2 ? 1 : 1 - 0x1p-20);
        }
        feature_expect(&c, &d);
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

static bool has_formats(const struct test_target *t)
{
    const char *wanted = getenv("CLATTN_TEST_FORMATS");
    return t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU || (wanted && *wanted);
}

// O that its type cannot hold is an infinity, as rounding makes it.
static void test_output_overflow(void **state)
{
    const struct test_target *t = *state;
    if (!has_formats(t))
        return;
    struct feature_case c = plain("O beyond float16");
    struct feature_data d;
    c.dtype_o = CLATTN_DTYPE_F16;
    feature_inputs(&c, &d);
    for (size_t n = 0; n < values(&c); n++) {
        static const double by_channel[] = {65504, 65519, 65521, 1e6, -65504, -65521, 1, 0x1p-24};
        d.v[n] = by_channel[n % (size_t)c.dim_v % 8];
    }
    feature_expect(&c, &d);
    for (size_t n = 0; n < rows_q(&c) * (size_t)c.dim_v; n++)
        d.o[n] = (float)dtype_round((double)d.o[n], c.dtype_o);
    assert_int_equal(finish(t, &c, &d), 0);
}

// One key gives O = V, and O is rounded once: ties go to even, the smallest numbers too.
static void test_ties(void **state)
{
    const struct test_target *t = *state;
    int failed = 0;
    for (int32_t dtype = CLATTN_DTYPE_F16; dtype <= CLATTN_DTYPE_BF16 && has_formats(t); dtype++) {
        struct feature_case c = plain("ties");
        struct feature_data d;
        c.dtype_o = dtype;
        c.len_kv = 1;
        feature_inputs(&c, &d);
        const double half = dtype == CLATTN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
        for (size_t n = 0; n < values(&c); n++) {
            const double step = (double)(n % 8) * half, size = ldexp(1, (int)(n % 5) * 3 - 6);
            d.v[n] = (n % 2 ? -1 : 1) * size * (1 + step);
            if (n % 12 == 11 && dtype == CLATTN_DTYPE_F16)
                d.v[n] = (double)(n / 12 + 1) * 0x1p-25;
        }
        feature_expect(&c, &d);
        for (size_t n = 0; n < rows_q(&c) * (size_t)c.dim_v; n++)
            d.o[n] = (float)dtype_round((double)d.o[n], dtype);
        memset(d.bound_o, 0, rows_q(&c) * (size_t)c.dim_v * sizeof *d.bound_o);
        d.tol_o = (struct tolerance){0, 0, false};
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

// The same ranges where all is bfloat16, whose products some CPUs make of pairs.
static void test_bf16(void **state)
{
    const struct test_target *t = *state;
    static const struct {
        int32_t q, k, v;
        float scale;
    } rows[] = {{-66, -60, 0, 0.2f}, {-50, -13, 0, 0x1p60f}, {-60, -60, 100, -0x1p117f},
                {50, 60, -20, 0x1p-111f}, {0, 0, -130, 0.2f}, {0, 0, 124, 0.2f}};
    int failed = 0;
    for (size_t n = 0; n < sizeof rows / sizeof *rows && has_formats(t); n++) {
        char name[60];
        snprintf(name, sizeof name, "sizes of bfloat16, row %zu", n);
        struct feature_case c = plain(name);
        struct feature_data d;
        c.dtype_q = c.dtype_kv = c.dtype_o = CLATTN_DTYPE_BF16;
        c.len_q = 40; // fewer are not multiplied in pairs
        c.exp_q = rows[n].q;
        c.exp_k = rows[n].k;
        c.exp_v = rows[n].v;
        c.has_scale = true;
        c.scale = rows[n].scale;
        feature_data_make(&c, &d);
        failed += finish(t, &c, &d);
    }
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"scores that overflow", test_overflow, LEVEL_SMALL},
        {"products of any size", test_small, LEVEL_SMALL},
        {"equal scores of any size", test_equal, LEVEL_SMALL},
        {"a scale of 0", test_no_scale, LEVEL_SMALL},
        {"the largest biases", test_bias, LEVEL_SMALL},
        {"soft-caps of any size", test_softcaps, LEVEL_SMALL},
        {"large slopes", test_slopes, LEVEL_SMALL},
        {"the largest values", test_values, LEVEL_SMALL},
        {"O beyond its type", test_output_overflow, LEVEL_SMALL},
        {"ties", test_ties, LEVEL_SMALL},
        {"any size of bfloat16", test_bf16, LEVEL_SMALL},
    };
    targets_with_subgroups = true;
    return targets_main("range", argc, argv, tests, sizeof tests / sizeof *tests);
}
