// SPDX-License-Identifier: Apache-2.0
// Cases with answers that were computed elsewhere: each stands for a class of faults that users of
// attention kernels have met. Tensors follow the pattern of `pattern()`, whose values are exact.
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
#include "run_case.h"
#include "run_feature.h"

// W_s(b,h,i,d): every value is k/64 with |k| <= 63.
static float pattern(int s, int b, int h, int i, int d)
{
    const int k = (13 * b + 29 * h + 17 * i + 3 * i * i + 7 * d + 5 * i * d + 11 * s) % 127;
    return (float)(k - 63) / 64;
}

// What one case computes on, in plain [batch, heads, length, dim] order.
struct work {
    struct attn_case c;
    float *q, *k, *v, *o, *lse;
    uint8_t *mask; // NULL = none; else [1, 1, len_q, len_kv]
    size_t count_o, rows;
};

static float *fill(int s, int32_t batch, int32_t heads, int32_t len, int32_t dim)
{
    float *x = malloc(((size_t)batch * (size_t)heads * (size_t)len * (size_t)dim + 1) * sizeof *x);
    assert_non_null(x);
    size_t n = 0;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < len; i++)
                for (int d = 0; d < dim; d++)
                    x[n++] = pattern(s, b, h, i, d);
    return x;
}

static struct work make(int32_t heads_q, int32_t heads_kv, int32_t len_q, int32_t len_kv,
                        int32_t dim)
{
    struct work w = {.c = {.dim = dim, .batch = 1, .heads_q = heads_q, .heads_kv = heads_kv,
                           .len_q = len_q, .len_kv = len_kv, .seed = 1}};
    w.rows = (size_t)heads_q * (size_t)len_q;
    w.count_o = w.rows * (size_t)dim;
    w.q = fill(0, 1, heads_q, len_q, dim);
    w.k = fill(1, 1, heads_kv, len_kv, dim);
    w.v = fill(2, 1, heads_kv, len_kv, dim);
    w.o = malloc((w.count_o + 1) * sizeof *w.o);
    w.lse = malloc((w.rows + 1) * sizeof *w.lse);
    assert_true(w.o && w.lse);
    return w;
}

static void set_all(float *x, size_t count, float value)
{
    for (size_t n = 0; n < count; n++)
        x[n] = value;
}

// V[j, :] = first + step * j in every key head.
static void set_v(struct work *w, float first, float step)
{
    const size_t dim = (size_t)w->c.dim, len = (size_t)w->c.len_kv;
    for (size_t n = 0; n < (size_t)w->c.heads_kv * len * dim; n++)
        w->v[n] = first + step * (float)(n / dim % len);
}

static void zero_q(struct work *w)
{
    set_all(w->q, w->count_o, 0);
}

// Runs it; elements past the end must stay as they were.
static void run(struct test_target *t, struct work *w)
{
    w->c.mask_form = w->mask ? MASK_CONTIGUOUS : MASK_NONE;
    clattn_plan *plan = case_plan(t, &w->c);
    fill_unwritten(w->o, w->count_o + 1);
    fill_unwritten(w->lse, w->rows + 1);
    clattn_attention_call call = case_host_call(&w->c, w->q, w->k, w->v, w->mask, w->o, w->lse);
    call.mask.extent[1] = 1;
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    assert_int_equal(float_bits(w->o[w->count_o]), UNWRITTEN_BITS);
    assert_int_equal(float_bits(w->lse[w->rows]), UNWRITTEN_BITS);
}

static void end(struct work *w)
{
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->o);
    free(w->lse);
    free(w->mask);
}

// |out - expected| <= part + part * |expected|. For float32 a part is 1e-5: the numbers above are
// printed to 6 digits.
static void near_by(const char *what, double out, double expected, double part)
{
    if (isinf(expected) ? out != expected
                        : !(fabs(out - expected) <= part + part * fabs(expected)))
        fail_msg("%s is %.9g, not %.9g", what, out, expected);
}

static void near(const char *what, double out, double expected)
{
    near_by(what, out, expected, 1e-5);
}

// Checksums: sum, sum of magnitudes, sum of O * cos(0.1 n); they may be off by `part` an element,
// and by as much as the last digit that is given.
static void sums_of(const float *o, size_t count, double s, double a, double wc, double part)
{
    double sum = 0, magnitude = 0, wave = 0;
    for (size_t n = 0; n < count; n++) {
        sum += (double)o[n];
        magnitude += fabs((double)o[n]);
        wave += (double)o[n] * cos(0.1 * (double)n);
    }
    const double allowed = part + part * (double)count;
    if (!(fabs(sum - s) <= allowed && fabs(magnitude - a) <= allowed && fabs(wave - wc) <= allowed))
        fail_msg("%zu elements: sums %.7f %.7f %.7f, not %.6f %.6f %.6f", count, sum, magnitude,
                 wave, s, a, wc);
}

static void sums(const struct work *w, double s, double a, double wc)
{
    sums_of(w->o, w->count_o, s, a, wc, 1e-6);
}

static float *row(const struct work *w, int h, int i)
{
    return w->o + ((size_t)h * (size_t)w->c.len_q + (size_t)i) * (size_t)w->c.dim;
}

static void whole_row(const struct work *w, int h, int i, double expected)
{
    for (int d = 0; d < w->c.dim; d++)
        near("O", row(w, h, i)[d], expected);
}

// ---- G01 .. G06 ---------------------------------------------------------------------------------

static void test_constant_v(void **state)
{
    struct work w = make(2, 2, 5, 23, 24);
    set_all(w.v, 2 * 23 * 24, 0.375f);
    run(*state, &w);
    for (size_t n = 0; n < w.count_o; n++)
        assert_true(fabs((double)w.o[n] - 0.375) <= 1e-6);
    end(&w);
}

static void test_uniform(void **state)
{
    static const double first[] = {-0.052365, -0.145693, 0.136402, 0.043074};
    struct work w = make(1, 1, 3, 37, 40);
    zero_q(&w);
    run(*state, &w);
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int d = 0; d < 40; d++)
            sum += row(&w, 0, i)[d];
        for (int d = 0; d < 4; d++)
            near("O", row(&w, 0, i)[d], first[d]);
        assert_true(fabs(sum - 1.052365) < 4e-5);
        near("LSE", w.lse[i], 3.610918);
    }
    end(&w);
}

static void test_causal_square(void **state)
{
    struct work w = make(1, 1, 5, 5, 8);
    w.c.causal = true;
    zero_q(&w);
    set_all(w.k, 5 * 8, 1);
    set_v(&w, 0, 1);
    run(*state, &w);
    for (int i = 0; i < 5; i++)
        whole_row(&w, 0, i, i / 2.0);
    end(&w);
}

static void test_causal_few_queries(void **state)
{
    for (int align = 0; align < 2; align++) {
        struct work w = make(1, 1, 2, 5, 8);
        w.c.causal = true;
        w.c.align = align;
        zero_q(&w);
        set_v(&w, 0, 1);
        run(*state, &w);
        whole_row(&w, 0, 0, align == CLATTN_ALIGN_TOP_LEFT ? 0 : 1.5);
        whole_row(&w, 0, 1, align == CLATTN_ALIGN_TOP_LEFT ? 0.5 : 2);
        end(&w);
    }
}

static void test_causal_many_queries(void **state)
{
    struct work w = make(1, 1, 5, 2, 8);
    w.c.causal = true;
    zero_q(&w);
    set_v(&w, 10, 10);
    run(*state, &w);
    static const double want[] = {0, 0, 0, 10, 15};
    for (int i = 0; i < 5; i++) {
        whole_row(&w, 0, i, want[i]);
        near("LSE", w.lse[i], i < 3 ? -(double)INFINITY : i == 3 ? 0 : 0.693147);
        for (int d = 0; i < 3 && d < 8; d++)
            assert_true(row(&w, 0, i)[d] == 0);
    }
    end(&w);
}

static void test_head_mapping(void **state)
{
    for (int heads_kv = 1; heads_kv <= 2; heads_kv++) {
        struct work w = make(6, heads_kv, 2, 7, 8);
        for (int n = 0; n < heads_kv * 7 * 8; n++)
            w.v[n] = 10.0f * (float)(n / (7 * 8) + 1);
        run(*state, &w);
        for (int h = 0; h < 6; h++)
            for (int i = 0; i < 2; i++)
                whole_row(&w, h, i, heads_kv == 2 && h >= 3 ? 20 : 10);
        end(&w);
    }
}

// ---- G07 .. G12 ---------------------------------------------------------------------------------

static void test_ragged_tiles(void **state)
{
    struct work w = make(2, 2, 67, 131, 64);
    run(*state, &w);
    sums(&w, 17.702662, 442.874354, -2.532927);
    near("O", row(&w, 1, 66)[0], 0.018393);
    near("O", row(&w, 1, 66)[1], 0.061353);
    near("O", row(&w, 1, 66)[2], -0.046580);
    near("LSE", w.lse[0], 4.906922);
    near("LSE", w.lse[w.rows - 1], 4.927384);
    end(&w);
}

static void test_key_counts(void **state)
{
    static const struct {
        int len_kv;
        double s, a, wc, first, last;
    } rows[] = {
        {1, 0.046875, 42.796875, -2.508544, 0.971711, -0.162319},
        {17, 3.018416, 10.065055, -0.316981, 3.068077, 2.887762},
        {31, 3.979069, 9.047020, -0.213919, 3.600116, 3.456020},
        {33, 3.712165, 8.622381, -0.167820, 3.658681, 3.505414},
        {63, 0.146294, 5.388576, -0.178289, 4.209335, 4.171768},
        {65, 0.176062, 5.516729, -0.178669, 4.238490, 4.201984},
        {127, 0.192699, 4.382260, -0.072420, 4.871669, 4.871350},
        {129, 0.235285, 4.430896, -0.111843, 4.906170, 4.884754},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct work w = make(1, 1, 3, rows[n].len_kv, 32);
        run(*state, &w);
        sums(&w, rows[n].s, rows[n].a, rows[n].wc);
        near("LSE", w.lse[0], rows[n].first);
        near("LSE", w.lse[2], rows[n].last);
        end(&w);
    }
}

static void test_head_sizes(void **state)
{
    static const struct {
        int dim;
        double s, a, wc;
    } rows[] = {
        {1, -0.468099, 0.468099, -0.467086},   {3, -0.619296, 0.819396, -0.607383},
        {5, -0.542730, 1.151722, -0.511244},   {40, 0.399820, 10.191431, 0.518572},
        {72, 0.751512, 20.034821, -0.429338},  {80, 0.393012, 22.850666, -0.826967},
        {96, -0.769949, 29.892226, -0.010703},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct work w = make(1, 1, 2, 19, rows[n].dim);
        run(*state, &w);
        sums(&w, rows[n].s, rows[n].a, rows[n].wc);
        end(&w);
    }
}

static void test_head_size_256(void **state)
{
    struct work w = make(1, 1, 4, 10, 256);
    run(*state, &w);
    sums(&w, -0.042819, 323.980448, -4.102864);
    near("O", row(&w, 0, 3)[0], 0.332632);
    near("O", row(&w, 0, 3)[1], 0.525348);
    near("O", row(&w, 0, 3)[2], -0.394927);
    near("LSE", w.lse[0], 3.354179);
    near("LSE", w.lse[3], 3.244367);
    end(&w);
}

static void test_empty_row(void **state)
{
    static const double want[4][8] = {
        {-0.399573, -0.153024, -0.165640, 0.080909, 0.113597, -0.134566, 0.111983, 0.099367},
        {-0.270478, -0.015145, -0.134481, 0.120852, 0.128415, -0.004921, 0.250412, 0.131075},
        {0, 0, 0, 0, 0, 0, 0, 0},
        {-0.111188, 0.154920, -0.162443, 0.103666, 0.029698, 0.021903, 0.288012, -0.029352},
    };
    static const double lse[4] = {1.927442, 1.829461, -(double)INFINITY, 1.530746};
    struct work w = make(1, 1, 4, 6, 8);
    w.mask = malloc(4 * 6);
    assert_non_null(w.mask);
    for (int n = 0; n < 4 * 6; n++)
        w.mask[n] = n / 6 != 2 && n % 6 != 5;
    run(*state, &w);
    for (int i = 0; i < 4; i++) {
        for (int d = 0; d < 8; d++)
            near("O", row(&w, 0, i)[d], want[i][d]);
        near("LSE", w.lse[i], lse[i]);
    }
    end(&w);
}

static void test_large_scores(void **state)
{
    struct work w = make(1, 1, 1, 4, 8);
    zero_q(&w);
    w.q[0] = 1;
    set_all(w.k, 4 * 8, 0);
    for (int j = 0; j < 4; j++)
        w.k[j * 8] = 10000.0f * (float)j;
    set_v(&w, 0, 1);
    w.c.has_scale = true;
    w.c.scale = 1;
    run(*state, &w);
    for (int d = 0; d < 8; d++)
        assert_true(w.o[d] == 3);
    assert_true(w.lse[0] == 30000);
    end(&w);
}

// ---- G18, G20 -----------------------------------------------------------------------------------

static void test_lse_base(void **state)
{
    struct work w = make(1, 1, 1, 8, 8);
    zero_q(&w);
    run(*state, &w);
    near("LSE", w.lse[0], 2.079442);
    end(&w);
}

// The rows of `w`, run in another layout, must be the same.
static void same_in_layout(struct test_target *t, const struct work *w, int layout)
{
    struct attn_case c = w->c;
    snprintf(c.name, sizeof c.name, "layout %d", layout);
    c.layout = layout;
    const struct attn_data d = {.q = w->q, .k = w->k, .v = w->v, .o = w->o, .lse = w->lse,
                                .tol_o = {1e-6, 0, false}, .tol_lse = {1e-6, 0, false}};
    assert_true(run_case(t, &c, &d, MEMORY_HOST, false, NULL));
    assert_true(run_case(t, &c, &d, MEMORY_DEVICE, false, NULL));
}

static void test_layouts(void **state)
{
    // LAY_PADDED has rows of 23 floats here, with NaN in the padding.
    static const int layouts[] = {LAY_BHSD, LAY_BSHD, LAY_PADDED, LAY_SEQ_FIRST, LAY_ODD_OFFSET};
    struct work w = make(2, 2, 6, 11, 20);
    run(*state, &w);
    sums(&w, 1.025353, 36.805032, -0.335356);
    static const double first[] = {-0.109676, -0.155974, 0.045930};
    static const double last[] = {-0.007247, 0.315148, -0.267188};
    for (int d = 0; d < 3; d++) {
        near("O", row(&w, 0, 0)[d], first[d]);
        near("O", row(&w, 1, 5)[d], last[d]);
    }
    near("LSE", w.lse[0], 2.735909);
    near("LSE", w.lse[11], 2.750748);
    for (size_t n = 0; n < sizeof layouts / sizeof *layouts; n++)
        same_in_layout(*state, &w, layouts[n]);
    end(&w);
    struct work packed = make(2, 2, 6, 6, 20);
    run(*state, &packed);
    same_in_layout(*state, &packed, LAY_PACKED_QKV);
    end(&packed);
}

// ---- features -----------------------------------------------------------------------------------

// One case of features on the pattern; run_feature_on() compares it with the formula, too.
struct feature_work {
    struct feature_case c;
    struct feature_data d;
    float *o, *lse;
};

static struct feature_case feature_shape(int32_t batch, int32_t heads_q, int32_t heads_kv,
                                         int32_t len_q, int32_t len_kv, int32_t dim)
{
    struct feature_case c = feature_plain();
    c.batch = batch;
    c.heads_q = heads_q;
    c.heads_kv = heads_kv;
    c.len_q = len_q;
    c.len_kv = len_kv;
    c.dim_qk = c.dim_v = dim;
    return c;
}

// W_s as a plain array. Of packed tokens `begin` says which one a sequence begins with, and there
// is one sequence then as far as the pattern is concerned.
static void put_pattern(double *to, int s, int32_t batch, int32_t heads, int32_t len, int32_t dim,
                        const int32_t *begin)
{
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < len; i++)
                for (int d = 0; d < dim; d++)
                    *to++ = (double)pattern(s, begin ? 0 : b, h, begin ? begin[b] + i : i, d);
}

static struct feature_work make_feature(const struct feature_case *c, const char *name)
{
    struct feature_work w = {.c = *c};
    snprintf(w.c.name, sizeof w.c.name, "%s", name);
    feature_inputs(&w.c, &w.d);
    put_pattern(w.d.q, 0, c->batch, c->heads_q, c->len_q, c->dim_qk, NULL);
    put_pattern(w.d.k, 1, c->batch, c->heads_kv, c->len_kv, c->dim_qk, NULL);
    put_pattern(w.d.v, 2, c->batch, c->heads_kv, c->len_kv, c->dim_v, NULL);
    return w;
}

// The bias is `times` W_s of the shape that broadcasting leaves.
static void put_bias(struct feature_work *w, int s, float times)
{
    const uint32_t bcast = w->c.bias.bcast;
    float *to = w->d.bias;
    for (int b = 0; b < w->c.batch; b++)
        for (int h = 0; h < w->c.heads_q; h++)
            for (int i = 0; i < w->c.len_q; i++)
                for (int j = 0; j < w->c.len_kv; j++)
                    *to++ = times * pattern(s, bcast & 1 ? 0 : b, bcast & 2 ? 0 : h,
                                            bcast & 4 ? 0 : i, bcast & 8 ? 0 : j);
}

// Q = 0, V[j, :] = j.
static void count_keys(struct feature_work *w)
{
    const size_t dim = (size_t)w->c.dim_v, len = (size_t)w->c.len_kv;
    for (size_t n = 0; n < (size_t)w->c.len_q * (size_t)w->c.dim_qk; n++)
        w->d.q[n] = 0;
    for (size_t n = 0; n < len * dim; n++)
        w->d.v[n] = (double)(n / dim);
}

static size_t feature_rows(const struct feature_work *w)
{
    return (size_t)w->c.batch * (size_t)w->c.heads_q * (size_t)w->c.len_q;
}

static void run_work(const struct test_target *t, struct feature_work *w)
{
    const size_t rows = feature_rows(w);
    w->o = malloc((rows * (size_t)w->c.dim_v + 1) * sizeof *w->o);
    w->lse = malloc((rows + 1) * sizeof *w->lse);
    assert_true(w->o && w->lse);
    feature_expect(&w->c, &w->d);
    assert_true(run_feature_on(t, &w->c, &w->d, NULL, w->o, w->lse));
}

static void end_feature(struct feature_work *w)
{
    feature_data_free(&w->d);
    free(w->o);
    free(w->lse);
}

// Parts that outputs of each type may be off by.
static const double part_of[] = {[CLATTN_DTYPE_F32] = 1e-5, [CLATTN_DTYPE_F16] = 2e-3,
                                 [CLATTN_DTYPE_BF16] = 1.6e-2};

// G07 in 16 bits, with O in float32 and in the type.
static void test_ragged_tiles_16(void **state)
{
    static const double last[] = {-0.047806, -0.009913, 0.083317};
    for (int32_t dtype = CLATTN_DTYPE_F16; dtype <= CLATTN_DTYPE_BF16; dtype++)
        for (int own = 0; own < 2; own++) {
            struct feature_case c = feature_shape(1, 2, 1, 33, 129, 64);
            c.causal = true;
            c.dtype_q = c.dtype_kv = dtype;
            c.dtype_o = own ? dtype : CLATTN_DTYPE_F32;
            struct feature_work w = make_feature(&c, "several tiles in 16 bits");
            if (target_serves(*state, &c)) {
                const double part = part_of[c.dtype_o];
                run_work(*state, &w);
                // Errors of rounding have either sign, so that a tenth is allowed for each.
                sums_of(w.o, 2 * 33 * 64, 26.224543, 232.628059, -1.958589,
                        own ? part / 10 : 1e-6);
                for (int d = 0; d < 3; d++)
                    near_by("O", (double)w.o[(2 * 33 - 1) * 64 + d], last[d], part);
                near("LSE", (double)w.lse[0], 4.617631);
                near("LSE", (double)w.lse[2 * 33 - 1], 4.946571);
            }
            end_feature(&w);
        }
}

// G13: scores that 16 bits can't hold.
static void test_large_scores_16(void **state)
{
    static const double first[] = {-0.208333, 0.096354, 0.070312, 0.044271};
    for (int own = 0; own < 2; own++) {
        struct feature_case c = feature_shape(1, 1, 1, 3, 6, 64);
        c.dtype_q = c.dtype_kv = CLATTN_DTYPE_F16;
        c.dtype_o = own ? CLATTN_DTYPE_F16 : CLATTN_DTYPE_F32;
        c.has_scale = true;
        c.scale = 0.125f;
        struct feature_work w = make_feature(&c, "scores above 65504 in f16");
        for (int n = 0; n < 3 * 64; n++)
            w.d.q[n] = 200;
        for (int n = 0; n < 6 * 64; n++)
            w.d.k[n] = 200;
        if (target_serves(*state, &c)) {
            const double part = part_of[c.dtype_o];
            run_work(*state, &w);
            for (int i = 0; i < 3; i++) {
                double sum = 0;
                for (int d = 0; d < 64; d++)
                    sum += (double)w.o[i * 64 + d];
                for (int d = 0; d < 4; d++)
                    near_by("O", (double)w.o[i * 64 + d], first[d], part);
                near_by("sum of a row", sum, -0.348958, 64 * part / 10);
                // A float has steps of 1/32 there.
                assert_true(fabs((double)w.lse[i] - 320001.79) < 0.04);
            }
        }
        end_feature(&w);
    }
}

// G14.
static void test_alibi(void **state)
{
    static const double o[] = {0, 0.622459, 1.320157, 2.084576};
    static const double lse[] = {0, 0.474077, 0.680270, 0.787339};
    struct feature_case c = feature_shape(1, 1, 1, 4, 4, 8);
    c.causal = true;
    c.alibi = 1;
    struct feature_work w = make_feature(&c, "ALiBi");
    count_keys(&w);
    w.d.alibi[0] = 0.5f;
    if (target_serves(*state, &c)) {
        run_work(*state, &w);
        for (int i = 0; i < 4; i++) {
            for (int d = 0; d < 8; d++)
                near("O", (double)w.o[i * 8 + d], o[i]);
            near("LSE", (double)w.lse[i], lse[i]);
        }
    }
    end_feature(&w);
}

// G15.
static void test_bias_shapes(void **state)
{
    static const struct {
        uint32_t bcast;
        double s, a, wc;
    } rows[] = {{7, 1.526954, 53.260644, 1.050626},
                {6, 2.992225, 49.349391, 1.247348},
                {1, 3.236943, 51.553497, -0.944745},
                {3, 2.169655, 52.799278, 1.037884}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int strided = 0; strided < 2; strided++) {
            struct feature_case c = feature_shape(2, 3, 3, 5, 43, 16);
            c.bias = (struct feature_array){true, rows[n].bcast, strided};
            struct feature_work w = make_feature(&c, "shapes of a bias");
            put_bias(&w, 4, 2);
            if (target_serves(*state, &c)) {
                run_work(*state, &w);
                sums_of(w.o, 2 * 3 * 5 * 16, rows[n].s, rows[n].a, rows[n].wc, 1e-6);
            }
            end_feature(&w);
        }
}

// G16: the cap is before the bias.
static void test_cap_and_bias(void **state)
{
    static const double first[] = {-0.345791, -0.350249, 0.002456, 0.134256};
    static const double lse[] = {2.968152, 3.063556, 3.175035, 2.838769};
    struct feature_case c = feature_shape(1, 1, 1, 4, 9, 16);
    c.has_softcap = true;
    c.softcap = 2;
    c.bias.used = true;
    struct feature_work w = make_feature(&c, "soft-cap and bias");
    for (int n = 0; n < 4 * 16; n++)
        w.d.q[n] *= 8;
    put_bias(&w, 3, 1);
    if (target_serves(*state, &c)) {
        run_work(*state, &w);
        sums_of(w.o, 4 * 16, 0.835821, 15.817083, -0.488338, 1e-6);
        for (int n = 0; n < 4; n++) {
            near("O", (double)w.o[n], first[n]);
            near("LSE", (double)w.lse[n], lse[n]);
        }
    }
    end_feature(&w);
}

// G17: two keys to the left and its own.
static void test_window(void **state)
{
    static const double o[] = {0, 0.5, 1, 2, 3, 4};
    struct feature_case c = feature_shape(1, 1, 1, 6, 6, 8);
    c.causal = true;
    c.window = true;
    c.left = 2;
    c.right = -1;
    struct feature_work w = make_feature(&c, "sliding window");
    count_keys(&w);
    if (target_serves(*state, &c)) {
        run_work(*state, &w);
        for (int i = 0; i < 6; i++)
            for (int d = 0; d < 8; d++)
                near("O", (double)w.o[i * 8 + d], o[i]);
    }
    end_feature(&w);
}

// G11 by a bias.
static void test_empty_row_by_bias(void **state)
{
    static const double lse[4] = {1.927442, 1.829461, -(double)INFINITY, 1.530746};
    static const double first[4] = {-0.399573, -0.270478, 0, -0.111188};
    struct feature_case c = feature_shape(1, 1, 1, 4, 6, 8);
    c.bias.used = true;
    struct feature_work w = make_feature(&c, "bias with an empty row");
    for (int n = 0; n < 4 * 6; n++)
        w.d.bias[n] = n / 6 != 2 && n % 6 != 5 ? 0 : -INFINITY;
    if (target_serves(*state, &c)) {
        run_work(*state, &w);
        for (int i = 0; i < 4; i++) {
            near("O", (double)w.o[i * 8], first[i]);
            near("LSE", (double)w.lse[i], lse[i]);
        }
    }
    end_feature(&w);
}

// G19: packed sequences of 3, 0 and 5 queries and 5, 4 and 0 keys.
static void test_ragged_batch(void **state)
{
    static const int32_t begin_q[] = {0, 3, 3, 8}, begin_kv[] = {0, 5, 9, 9};
    static const double o[2][3] = {{-0.454923, -0.145344, -0.213564},
                                   {-0.001964, -0.188003, -0.088302}};
    static const double lse[2][3] = {{1.508589, 1.490616, 1.749474},
                                     {1.263153, 1.553876, 1.634926}};
    struct feature_case c = feature_shape(3, 2, 2, 5, 5, 16);
    c.causal = true;
    c.packed_q = c.packed_kv = true;
    struct feature_work w = make_feature(&c, "ragged batch with an empty member");
    struct feature_data *d = &w.d;
    memcpy(d->begin_q, begin_q, sizeof begin_q);
    memcpy(d->begin_kv, begin_kv, sizeof begin_kv);
    for (int b = 0; b < 3; b++) {
        d->len_q[b] = begin_q[b + 1] - begin_q[b];
        d->len_kv[b] = d->own_kv[b] = begin_kv[b + 1] - begin_kv[b];
    }
    d->total_q = 10; // two rows more than the offsets say, which must stay as they are
    d->total_kv = 9;
    put_pattern(d->q, 0, 3, 2, 5, 16, begin_q);
    put_pattern(d->k, 1, 3, 2, 5, 16, begin_kv);
    put_pattern(d->v, 2, 3, 2, 5, 16, begin_kv);
    if (target_serves(*state, &c)) {
        run_work(*state, &w);
        // The checksums are of [head, token], and the tokens of sequences 1 and 2 are 0.
        float flat[2 * 8 * 16] = {0};
        for (int h = 0; h < 2; h++) {
            memcpy(flat + h * 8 * 16, w.o + h * 5 * 16, 3 * 16 * sizeof *flat);
            for (int i = 0; i < 3; i++) {
                near("O", (double)w.o[(h * 5 + i) * 16], o[h][i]);
                near("LSE", (double)w.lse[h * 5 + i], lse[h][i]);
            }
            for (int i = 0; i < 5; i++) {
                const int row = (2 * 2 + h) * 5 + i;
                near("LSE", (double)w.lse[row], -(double)INFINITY);
                for (int n = 0; n < 16; n++)
                    assert_true(w.o[row * 16 + n] == 0);
            }
        }
        sums_of(flat, 2 * 8 * 16, 2.283676, 18.013342, 0.025942, 1e-6);
    }
    end_feature(&w);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"constant V", test_constant_v, LEVEL_SMALL},
        {"uniform weights, tail keys", test_uniform, LEVEL_SMALL},
        {"causal, square", test_causal_square, LEVEL_SMALL},
        {"causal, fewer queries than keys", test_causal_few_queries, LEVEL_SMALL},
        {"causal, more queries than keys", test_causal_many_queries, LEVEL_SMALL},
        {"head mapping", test_head_mapping, LEVEL_SMALL},
        {"several tiles, both sides ragged", test_ragged_tiles, LEVEL_SMALL},
        {"key counts around tile edges", test_key_counts, LEVEL_SMALL},
        {"head sizes that are no multiples of 8", test_head_sizes, LEVEL_MEDIUM},
        {"head size 256", test_head_size_256, LEVEL_SMALL},
        {"mask with an empty row", test_empty_row, LEVEL_SMALL},
        {"large positive scores", test_large_scores, LEVEL_SMALL},
        {"log-sum-exp is natural", test_lse_base, LEVEL_SMALL},
        {"memory layouts", test_layouts, LEVEL_SMALL},
        {"several tiles in 16 bits", test_ragged_tiles_16, LEVEL_MEDIUM},
        {"bias with an empty row", test_empty_row_by_bias, LEVEL_MEDIUM},
        {"scores above 65504 in f16", test_large_scores_16, LEVEL_MEDIUM},
        {"ALiBi", test_alibi, LEVEL_MEDIUM},
        {"shapes of a bias", test_bias_shapes, LEVEL_MEDIUM},
        {"soft-cap and bias", test_cap_and_bias, LEVEL_MEDIUM},
        {"sliding window", test_window, LEVEL_MEDIUM},
        {"ragged batch with an empty member", test_ragged_batch, LEVEL_MEDIUM},
    };
    return targets_main("cases", argc, argv, tests, sizeof tests / sizeof *tests);
}
