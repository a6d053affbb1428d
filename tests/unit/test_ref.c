// SPDX-License-Identifier: Apache-2.0
// The double-precision reference against numbers that were worked out by other means.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "ref/ref.h"

enum { MAX_FLOATS = 4096 };

// One call on contiguous [batch, heads, length, dim] arrays, which a test may then bend.
struct fixture {
    struct cla_problem p;
    struct cla_call call;
    struct cla_host_mem mem;
    float q[MAX_FLOATS], k[MAX_FLOATS], v[MAX_FLOATS], o[MAX_FLOATS], lse[MAX_FLOATS];
    uint8_t mask[MAX_FLOATS];
};

static void set_strides(struct cla_tensor *t, int32_t heads, int32_t len, int32_t dim)
{
    t->stride[0] = (int64_t)heads * len * dim;
    t->stride[1] = (int64_t)len * dim;
    t->stride[2] = dim;
}

static float pattern(int s, int h, int i, int d)
{
    const int n = 29 * h + 17 * i + 3 * i * i + 7 * d + 5 * i * d + 11 * s;
    return (float)(n % 127 - 63) / 64.0f;
}

static void fill_pattern(float *x, int s, int heads, int len, int dim)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < len; i++)
            for (int d = 0; d < dim; d++)
                x[(h * len + i) * dim + d] = pattern(s, h, i, d);
}

static void fill(float *x, float value)
{
    for (int i = 0; i < MAX_FLOATS; i++)
        x[i] = value;
}

// Batch 1, no window, scale 1 / sqrt(dim), Q K V as the pattern, outputs NaN.
static struct fixture *make(int32_t heads_q, int32_t heads_kv, int32_t len_q, int32_t len_kv,
                            int32_t dim)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->p.dim_qk = f->p.dim_v = dim;
    f->p.heads_q = heads_q;
    f->p.heads_kv = heads_kv;
    f->p.group = heads_q / heads_kv;
    f->p.lse = true;
    f->call.batch = 1;
    f->call.len_q = len_q;
    f->call.len_kv = len_kv;
    f->call.scale = 1.0f / sqrtf((float)dim);
    f->call.win_lo = CLA_WIN_MIN;
    f->call.win_hi = CLA_WIN_MAX;
    f->call.lse_stride[0] = heads_q * len_q;
    f->call.lse_stride[1] = len_q;
    set_strides(&f->call.q, heads_q, len_q, dim);
    set_strides(&f->call.k, heads_kv, len_kv, dim);
    set_strides(&f->call.v, heads_kv, len_kv, dim);
    set_strides(&f->call.o, heads_q, len_q, dim);
    fill_pattern(f->q, 0, heads_q, len_q, dim);
    fill_pattern(f->k, 1, heads_kv, len_kv, dim);
    fill_pattern(f->v, 2, heads_kv, len_kv, dim);
    fill(f->o, NAN);
    fill(f->lse, NAN);
    f->mem = (struct cla_host_mem){
        .q = f->q, .k = f->k, .v = f->v, .o = f->o, .lse = f->lse, .mask = f->mask};
    return f;
}

static void use_mask(struct fixture *f)
{
    const int64_t len_q = f->call.len_q, len_kv = f->call.len_kv;
    f->p.mask = true;
    f->call.mask.stride[0] = f->p.heads_q * len_q * len_kv;
    f->call.mask.stride[1] = len_q * len_kv;
    f->call.mask.stride[2] = len_kv;
    f->call.mask.stride[3] = 1;
    memset(f->mask, 1, sizeof f->mask);
}

static void causal(struct fixture *f, int32_t off)
{
    f->p.causal = true;
    f->call.off = off;
    f->call.win_hi = off;
}

// V[j, d] = j and Q = 0: a row is the mean of the keys it sees.
static void count_keys(struct fixture *f)
{
    const int32_t dim = f->p.dim_v;
    fill(f->q, 0.0f);
    for (int j = 0; j < f->call.len_kv; j++)
        for (int d = 0; d < dim; d++)
            f->v[j * dim + d] = (float)j;
}

static void run(struct fixture *f)
{
    assert_int_equal(cla_ref_forward(&f->p, &f->call, &f->mem), CLATTN_OK);
}

static void near(float value, double expected)
{
    if (!(fabs((double)value - expected) <= 1e-6 + 1e-6 * fabs(expected)))
        fail_msg("%.9g, expected %.9g", (double)value, expected);
}

// Row `row` (of all heads and queries) has `expected` in every channel.
static void row_is(const struct fixture *f, int row, double expected)
{
    for (int d = 0; d < f->p.dim_v; d++)
        near(f->o[row * f->p.dim_v + d], expected);
}

static void row_is_nan(const struct fixture *f, int row)
{
    for (int d = 0; d < f->p.dim_v; d++)
        assert_true(isnan(f->o[row * f->p.dim_v + d]));
    assert_true(isnan(f->lse[row]));
}

static void row_is_empty(const struct fixture *f, int row)
{
    for (int d = 0; d < f->p.dim_v; d++)
        assert_true(f->o[row * f->p.dim_v + d] == 0.0f);
    assert_true(f->lse[row] == -INFINITY);
}

static void test_causal_square(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 5, 5, 8);
    count_keys(f);
    fill(f->k, 1.0f);
    causal(f, 0);
    run(f);
    for (int i = 0; i < 5; i++) {
        row_is(f, i, i / 2.0);
        near(f->lse[i], log(i + 1.0));
    }
    free(f);
}

static void test_causal_fewer_queries(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 2, 5, 8);
    count_keys(f);
    causal(f, 3);
    run(f);
    row_is(f, 0, 1.5);
    row_is(f, 1, 2.0);
    causal(f, 0);
    run(f);
    row_is(f, 0, 0.0);
    row_is(f, 1, 0.5);
    free(f);
}

static void test_causal_more_queries(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 5, 2, 8);
    count_keys(f);
    for (int d = 0; d < 8; d++) {
        f->v[d] = 10.0f;
        f->v[8 + d] = 20.0f;
    }
    causal(f, -3);
    run(f);
    for (int i = 0; i < 3; i++)
        row_is_empty(f, i);
    row_is(f, 3, 10.0);
    near(f->lse[3], 0.0);
    row_is(f, 4, 15.0);
    near(f->lse[4], 0.693147181);
    free(f);
}

static void test_window(void **state)
{
    (void)state;
    static const double expected[6] = {0.0, 0.5, 1.0, 2.0, 3.0, 4.0};
    struct fixture *f = make(1, 1, 6, 6, 8);
    count_keys(f);
    f->call.win_lo = -2;
    f->call.win_hi = 0;
    run(f);
    for (int i = 0; i < 6; i++)
        row_is(f, i, expected[i]);
    free(f);
}

static void test_head_mapping(void **state)
{
    (void)state;
    struct fixture *f = make(6, 2, 2, 7, 8);
    for (int n = 0; n < 2 * 7 * 8; n++)
        f->v[n] = n < 7 * 8 ? 10.0f : 20.0f;
    run(f);
    for (int row = 0; row < 12; row++)
        row_is(f, row, row < 6 ? 10.0 : 20.0);
    free(f);

    f = make(6, 1, 2, 7, 8);
    fill(f->v, 10.0f);
    run(f);
    for (int row = 0; row < 12; row++)
        row_is(f, row, 10.0);
    free(f);
}

static void test_mask_with_empty_row(void **state)
{
    (void)state;
    static const double expected[4][8] = {
        {-0.399573, -0.153024, -0.165640, 0.080909, 0.113597, -0.134566, 0.111983, 0.099367},
        {-0.270478, -0.015145, -0.134481, 0.120852, 0.128415, -0.004921, 0.250412, 0.131075},
        {0.0},
        {-0.111188, 0.154920, -0.162443, 0.103666, 0.029698, 0.021903, 0.288012, -0.029352}};
    static const double lse[4] = {1.927442, 1.829461, 0.0, 1.530746};
    struct fixture *f = make(1, 1, 4, 6, 8);
    use_mask(f);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 6; j++)
            f->mask[i * 6 + j] = i == 2 || j == 5 ? 0 : 255;
    run(f);
    for (int i = 0; i < 4; i++) {
        if (i == 2) {
            row_is_empty(f, i);
            continue;
        }
        for (int d = 0; d < 8; d++)
            near(f->o[i * 8 + d], expected[i][d]);
        near(f->lse[i], lse[i]);
    }
    free(f);
}

static void test_large_scores(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 1, 4, 8);
    count_keys(f);
    fill(f->k, 0.0f);
    f->q[0] = 1.0f;
    for (int j = 0; j < 4; j++)
        f->k[j * 8] = 10000.0f * (float)j;
    f->call.scale = 1.0f;
    run(f);
    for (int d = 0; d < 8; d++)
        assert_true(f->o[d] == 3.0f);
    assert_true(f->lse[0] == 30000.0f);
    free(f);
}

static void test_lse_base(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 1, 8, 8);
    count_keys(f);
    run(f);
    near(f->lse[0], 2.079441542);
    row_is(f, 0, 3.5);
    free(f);
}

static void test_scale(void **state)
{
    (void)state;
    // Two keys with dot products 1 and 0, V = 1 and 0: O is the logistic function of the scale.
    static const float scales[3] = {0.0f, 2.0f, -3.0f};
    for (int n = 0; n < 3; n++) {
        struct fixture *f = make(1, 1, 1, 2, 4);
        fill(f->q, 0.0f);
        fill(f->k, 0.0f);
        count_keys(f);
        f->q[0] = f->k[4] = 1.0f;
        f->call.scale = scales[n];
        run(f);
        row_is(f, 0, 1.0 / (1.0 + exp(-(double)scales[n])));
        near(f->lse[0], log(1.0 + exp((double)scales[n])));
        free(f);
    }
}

static void test_no_keys(void **state)
{
    (void)state;
    struct fixture *f = make(2, 1, 3, 0, 8);
    f->mem.k = f->mem.v = f->mem.mask = NULL;
    run(f);
    for (int row = 0; row < 6; row++)
        row_is_empty(f, row);
    assert_true(isnan(f->o[6 * 8]));
    assert_true(isnan(f->lse[6]));
    free(f);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    struct fixture *f = make(1, 1, 3, 4, 8);
    f->call.batch = 0;
    run(f);
    f->call.batch = 1;
    f->call.len_q = 0;
    run(f);
    for (int n = 0; n < MAX_FLOATS; n++) {
        assert_true(isnan(f->o[n]));
        assert_true(isnan(f->lse[n]));
    }
    free(f);
}

static void test_nan_behind_mask(void **state)
{
    (void)state;
    struct fixture *clean = make(1, 1, 3, 6, 8);
    use_mask(clean);
    for (int i = 0; i < 3; i++)
        clean->mask[i * 6 + 2] = clean->mask[i * 6 + 4] = 0;
    struct fixture *dirty = calloc(1, sizeof *dirty);
    assert_non_null(dirty);
    *dirty = *clean;
    dirty->mem =
        (struct cla_host_mem){.q = dirty->q, .k = dirty->k, .v = dirty->v, .o = dirty->o,
                              .lse = dirty->lse, .mask = dirty->mask};
    for (int d = 0; d < 8; d++) {
        dirty->k[2 * 8 + d] = dirty->v[4 * 8 + d] = NAN;
        dirty->k[4 * 8 + d] = INFINITY;
        dirty->v[2 * 8 + d] = -INFINITY;
    }
    run(clean);
    run(dirty);
    assert_memory_equal(clean->o, dirty->o, 3 * 8 * sizeof(float));
    assert_memory_equal(clean->lse, dirty->lse, 3 * sizeof(float));
    assert_false(isnan(clean->o[0]));
    free(clean);
    free(dirty);
}

static void test_visible_nan(void **state)
{
    (void)state;
    // NaN and +infinity in K: the rows that see the key are NaN, the others are not.
    for (int n = 0; n < 2; n++) {
        struct fixture *f = make(1, 1, 3, 3, 4);
        count_keys(f);
        fill(f->q, 1.0f);
        fill(f->k, 0.0f);
        causal(f, 0);
        f->k[1 * 4] = n == 0 ? NAN : INFINITY;
        run(f);
        row_is(f, 0, 0.0);
        row_is_nan(f, 1);
        row_is_nan(f, 2);
        free(f);
    }
    // A row whose only visible score is NaN is not empty.
    struct fixture *f = make(1, 1, 1, 1, 4);
    f->q[0] = NAN;
    run(f);
    row_is_nan(f, 0);
    free(f);

    // In V only the channel is hit.
    f = make(1, 1, 1, 3, 4);
    count_keys(f);
    f->v[1 * 4 + 2] = NAN;
    f->v[2 * 4 + 3] = INFINITY;
    run(f);
    near(f->o[0], 1.0);
    near(f->o[1], 1.0);
    assert_true(isnan(f->o[2]));
    assert_true(f->o[3] == INFINITY);
    near(f->lse[0], log(3.0));
    free(f);
}

static void test_minus_infinity_score(void **state)
{
    (void)state;
    // Such a key is as hidden, whatever its V; a row of nothing else is empty.
    struct fixture *f = make(1, 1, 2, 3, 4);
    count_keys(f);
    fill(f->k, 0.0f);
    fill(f->q, 1.0f);
    f->k[2 * 4] = -INFINITY;
    f->v[2 * 4] = NAN;
    run(f);
    row_is(f, 0, 0.5);
    near(f->lse[0], log(2.0));
    f->k[0] = f->k[4] = -INFINITY;
    run(f);
    row_is_empty(f, 0);
    row_is_empty(f, 1);
    free(f);
}

static void test_lowest_scores(void **state)
{
    (void)state;
    // A row of scores near -FLT_MAX is not empty: it is the mean of V.
    struct fixture *f = make(1, 1, 1, 4, 4);
    count_keys(f);
    fill(f->q, 0.0f);
    fill(f->k, 0.0f);
    f->q[0] = 1.0f;
    f->call.scale = 1.0f;
    for (int j = 0; j < 4; j++)
        f->k[j * 4] = -3.4e38f;
    run(f);
    row_is(f, 0, 1.5);
    near(f->lse[0], -3.4e38);
    free(f);
}

static void test_strides(void **state)
{
    (void)state;
    // [batch, length, heads, dim] with padded rows, K and V broadcast over the batch.
    enum { HEADS = 2, LEN_Q = 3, LEN_KV = 5, DIM = 6, ROW = 9 };
    struct fixture *plain = make(HEADS, HEADS, LEN_Q, LEN_KV, DIM);
    struct fixture *f = make(HEADS, HEADS, LEN_Q, LEN_KV, DIM);
    float *const arrays[4] = {f->q, f->k, f->v, f->o};
    struct cla_tensor *const tensors[4] = {&f->call.q, &f->call.k, &f->call.v, &f->call.o};
    const int lens[4] = {LEN_Q, LEN_KV, LEN_KV, LEN_Q};
    f->call.batch = 2;
    for (int t = 0; t < 4; t++) {
        fill(arrays[t], NAN);
        tensors[t]->stride[0] = t == 0 || t == 3 ? LEN_Q * HEADS * ROW : 0;
        tensors[t]->stride[1] = ROW;
        tensors[t]->stride[2] = HEADS * ROW;
        for (int b = 0; t < 3 && b < f->call.batch; b++)
            for (int i = 0; i < lens[t]; i++)
                for (int h = 0; h < HEADS; h++)
                    for (int d = 0; d < DIM; d++)
                        arrays[t][b * tensors[t]->stride[0] + (i * HEADS + h) * ROW + d] =
                            pattern(t, h, i, d);
    }
    run(plain);
    run(f);
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < LEN_Q; i++)
            for (int h = 0; h < HEADS; h++) {
                const float *row = f->o + ((b * LEN_Q + i) * HEADS + h) * ROW;
                assert_memory_equal(row, plain->o + (h * LEN_Q + i) * DIM, DIM * sizeof(float));
                for (int d = DIM; d < ROW; d++)
                    assert_true(isnan(row[d]));
                assert_true(f->lse[(b * HEADS + h) * LEN_Q + i] == plain->lse[h * LEN_Q + i]);
            }
    free(plain);
    free(f);
}

// dim_v of its own, and the first numbers of a case with several tiles.
static void test_known_numbers(void **state)
{
    (void)state;
    struct fixture *f = make(2, 2, 6, 11, 20);
    run(f);
    static const double first[3] = {-0.109676, -0.155974, 0.045930};
    static const double last[3] = {-0.007247, 0.315148, -0.267188};
    double sum = 0.0, magnitude = 0.0, wave = 0.0;
    for (int n = 0; n < 2 * 6 * 20; n++) {
        sum += (double)f->o[n];
        magnitude += fabs((double)f->o[n]);
        wave += (double)f->o[n] * cos(0.1 * n);
    }
    for (int d = 0; d < 3; d++) {
        near(f->o[d], first[d]);
        near(f->o[(6 + 5) * 20 + d], last[d]);
    }
    near(f->lse[0], 2.735909);
    near(f->lse[11], 2.750748);
    assert_true(fabs(sum - 1.025353) < 2e-6);
    assert_true(fabs(magnitude - 36.805032) < 2e-6);
    assert_true(fabs(wave + 0.335356) < 2e-6);

    // The first 7 channels of V alone give the first 7 channels of O.
    struct fixture *g = make(2, 2, 6, 11, 20);
    g->p.dim_v = 7;
    run(g);
    for (int row = 0; row < 12; row++)
        for (int d = 0; d < 20; d++)
            assert_true(d < 7 ? g->o[row * 20 + d] == f->o[row * 20 + d]
                              : isnan(g->o[row * 20 + d]));
    free(f);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causal_square),
        cmocka_unit_test(test_causal_fewer_queries),
        cmocka_unit_test(test_causal_more_queries),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_head_mapping),
        cmocka_unit_test(test_mask_with_empty_row),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_lse_base),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_nan_behind_mask),
        cmocka_unit_test(test_visible_nan),
        cmocka_unit_test(test_minus_infinity_score),
        cmocka_unit_test(test_lowest_scores),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_known_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
