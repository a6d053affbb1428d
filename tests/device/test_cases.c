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

// |out - expected| <= 1e-5 + 1e-5 * |expected|; the numbers above are printed to 6 digits.
static void near(const char *what, double out, double expected)
{
    if (isinf(expected)) {
        if (out != expected)
            fail_msg("%s is %.9g, not %.9g", what, out, expected);
        return;
    }
    if (!(fabs(out - expected) <= 1e-5 + 1e-5 * fabs(expected)))
        fail_msg("%s is %.9g, not %.9g", what, out, expected);
}

// Checksums: sum, sum of magnitudes, sum of O * cos(0.1 n); they may be off by 1e-6 an element,
// and by the last digit that is given.
static void sums(const struct work *w, double s, double a, double wc)
{
    double sum = 0, magnitude = 0, wave = 0;
    for (size_t n = 0; n < w->count_o; n++) {
        sum += w->o[n];
        magnitude += fabs((double)w->o[n]);
        wave += w->o[n] * cos(0.1 * (double)n);
    }
    const double allowed = 1e-6 + 1e-6 * (double)w->count_o;
    if (!(fabs(sum - s) <= allowed && fabs(magnitude - a) <= allowed && fabs(wave - wc) <= allowed))
        fail_msg("len_kv %d, dim %d: sums %.7f %.7f %.7f, not %.6f %.6f %.6f", w->c.len_kv,
                 w->c.dim, sum, magnitude, wave, s, a, wc);
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
    };
    return targets_main("cases", argc, argv, tests, sizeof tests / sizeof *tests);
}
