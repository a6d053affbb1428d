// SPDX-License-Identifier: Apache-2.0
#include "feature_data.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data.h"

// ---- storage types ------------------------------------------------------------------------------

// Bits of the mantissa, the smallest exponent of a normal number, the largest number.
static const struct {
    int bits, least;
    double most;
} format_of[] = {[CLATTN_DTYPE_F32] = {23, -126, (double)FLT_MAX},
                 [CLATTN_DTYPE_F16] = {10, -14, 65504.0},
                 [CLATTN_DTYPE_BF16] = {7, -126, 0x1.fep127}};

size_t dtype_bytes(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4 : dtype == CLATTN_DTYPE_I8 ? 1 : 2;
}

double dtype_round(double x, int32_t dtype)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent;
    frexp(x, &exponent); // |x| is in [0.5, 1) * 2^exponent
    exponent = exponent - 1 > format_of[dtype].least ? exponent - 1 : format_of[dtype].least;
    const double step = ldexp(1, exponent - format_of[dtype].bits);
    const double rounded = nearbyint(x / step) * step;
    return fabs(rounded) > format_of[dtype].most ? copysign((double)INFINITY, x) : rounded;
}

static uint16_t f16_bits(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return 0x7e00;
    if (isinf(x))
        return (uint16_t)(sign | 0x7c00);
    const double a = fabs(x);
    if (a < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)(a * 0x1p24));
    const int exponent = ilogb(a);
    const double mantissa = ldexp(a, 10 - exponent) - 1024;
    return (uint16_t)(sign | (exponent + 15) << 10 | (int)mantissa);
}

void dtype_store(void *mem, size_t at, int32_t dtype, double x)
{
    const float f = (float)x;
    if (dtype == CLATTN_DTYPE_F32) {
        memcpy((char *)mem + 4 * at, &f, 4);
    } else if (dtype == CLATTN_DTYPE_I8) {
        const int8_t k = (int8_t)x;
        memcpy((char *)mem + at, &k, 1);
    } else {
        const uint16_t upper = isnan(x) ? 0x7fc0 : (uint16_t)(float_bits(f) >> 16);
        const uint16_t bits = dtype == CLATTN_DTYPE_F16 ? f16_bits(x) : upper;
        memcpy((char *)mem + 2 * at, &bits, 2);
    }
}

enum { UNWRITTEN_16 = 0x7fc5 };

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float dtype_load(const void *mem, size_t at, int32_t dtype)
{
    if (dtype == CLATTN_DTYPE_F32) {
        float x;
        memcpy(&x, (const char *)mem + 4 * at, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, (const char *)mem + 2 * at, 2);
    if (h == UNWRITTEN_16)
        return of_bits(UNWRITTEN_BITS);
    if (dtype == CLATTN_DTYPE_BF16)
        return of_bits((uint32_t)h << 16);
    const int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    const double a = exponent == 31 ? mantissa ? (double)NAN : (double)INFINITY
                     : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                    : ldexp(mantissa, -24);
    return (float)(h & 0x8000 ? -a : a);
}

void dtype_fill_unwritten(void *mem, size_t bytes, int32_t dtype)
{
    const uint16_t half = UNWRITTEN_16;
    if (dtype == CLATTN_DTYPE_F32)
        fill_unwritten(mem, bytes / 4);
    else
        for (size_t n = 0; n < bytes / 2; n++)
            memcpy((char *)mem + 2 * n, &half, 2);
}

// ---- inputs -------------------------------------------------------------------------------------

static void *get(size_t count, size_t bytes)
{
    void *at = calloc(count + 1, bytes);
    assert_non_null(at);
    return at;
}

static double *normals(uint64_t *rng, size_t count, int32_t dtype)
{
    double *x = get(count, sizeof *x);
    for (size_t n = 0; n < count; n++)
        x[n] = dtype_round((double)rng_normal(rng), dtype);
    return x;
}

// Rows of normal numbers in int8, each with its scale.
static double *int8_rows(uint64_t *rng, size_t rows, size_t dim, double **scales)
{
    double *x = normals(rng, rows * dim, CLATTN_DTYPE_F32);
    *scales = get(rows, sizeof **scales);
    for (size_t r = 0; r < rows; r++) {
        double most = 0;
        for (size_t n = 0; n < dim; n++)
            most = fmax(most, fabs(x[r * dim + n]));
        const double scale = (double)(float)(most / 127);
        for (size_t n = 0; n < dim; n++)
            x[r * dim + n] = scale > 0 ? fmax(-127, fmin(127, nearbyint(x[r * dim + n] / scale)))
                                       : 0;
        (*scales)[r] = scale;
    }
    return x;
}

static size_t rows_q(const struct feature_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
}

static size_t rows_kv(const struct feature_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_kv * (size_t)c->len_kv;
}

// Lengths of the sequences: one is the longest, one is empty now and then.
static void make_lengths(const struct feature_case *c, uint64_t *rng, struct feature_data *d)
{
    for (int32_t b = 0; b < c->batch; b++) {
        const bool whole = b == (int32_t)(c->seed % (uint64_t)c->batch);
        const uint64_t q = rng_next(rng), kv = rng_next(rng), own = rng_next(rng);
        const bool empty = own % 5 == 0;
        d->len_q[b] = !c->packed_q || whole ? c->len_q
                      : empty               ? 0
                                            : (int32_t)(q % (uint64_t)(c->len_q + 1));
        d->own_kv[b] = !c->packed_kv || whole ? c->len_kv
                                              : (int32_t)(own % (uint64_t)(c->len_kv + 1));
        d->len_kv[b] = !c->kv_lens || (whole && c->batch > 1)
                           ? d->own_kv[b]
                           : (int32_t)(kv % (uint64_t)(d->own_kv[b] + 1));
    }
    // Tokens of nobody are in front of the first sequence and behind the last one.
    d->begin_q[0] = (int32_t)(c->seed % 3);
    d->begin_kv[0] = (int32_t)(c->seed % 4);
    for (int32_t b = 0; b < c->batch; b++) {
        d->begin_q[b + 1] = d->begin_q[b] + d->len_q[b];
        d->begin_kv[b + 1] = d->begin_kv[b] + d->own_kv[b];
    }
    d->total_q = d->begin_q[c->batch] + (int32_t)(c->seed % 5);
    d->total_kv = d->begin_kv[c->batch] + (int32_t)(c->seed % 2);
}

// One random number for each element that is not a broadcast, written out for all.
static size_t compact_at(const struct feature_case *c, uint32_t bcast, size_t n)
{
    const size_t ext[4] = {(size_t)c->batch, (size_t)c->heads_q, (size_t)c->len_q,
                           (size_t)c->len_kv};
    size_t at = 0, step = 1;
    for (int a = 3; a >= 0; a--) {
        const size_t index = n % ext[a];
        n /= ext[a];
        if (!(bcast >> a & 1)) {
            at += index * step;
            step *= ext[a];
        }
    }
    return at;
}

static uint8_t *make_mask(const struct feature_case *c, uint64_t *rng)
{
    static const uint8_t seen[4] = {1, 255, 2, 128}; // any non-zero byte means visible
    const size_t count = rows_q(c) * (size_t)c->len_kv;
    uint8_t *all = get(count, 1), *out = get(count, 1);
    for (size_t n = 0; n < count; n++)
        all[n] = rng_uniform(rng) < 0.7 ? seen[rng_next(rng) & 3] : 0;
    for (size_t n = 0; n < count; n++) {
        out[n] = all[compact_at(c, c->mask.bcast, n)];
        // Rows that see nothing, where rows have masks of their own.
        const size_t i = n / (size_t)c->len_kv % (size_t)c->len_q;
        if (!(c->mask.bcast >> 2 & 1) && i % 11 == 4)
            out[n] = 0;
    }
    free(all);
    return out;
}

static float *make_bias(const struct feature_case *c, uint64_t *rng)
{
    const size_t count = rows_q(c) * (size_t)c->len_kv;
    float *all = get(count, sizeof *all), *out = get(count, sizeof *out);
    for (size_t n = 0; n < count; n++)
        all[n] = rng_next(rng) % 7 == 0
                     ? -INFINITY
                     : (float)dtype_round(2 * (double)rng_normal(rng), c->dtype_bias);
    for (size_t n = 0; n < count; n++)
        out[n] = all[compact_at(c, c->bias.bcast, n)];
    free(all);
    return out;
}

static void make_per_head(const struct feature_case *c, uint64_t *rng, struct feature_data *d)
{
    const size_t heads = (size_t)c->heads_q, all = (size_t)c->batch * heads;
    if (c->alibi) {
        d->alibi = get(all, sizeof *d->alibi);
        for (size_t n = 0; n < all; n++)
            d->alibi[n] = n < heads || c->alibi == 2 ? (float)(0.3 * rng_uniform(rng))
                                                     : d->alibi[n % heads];
        d->alibi[heads - 1] = heads > 1 && c->alibi == 2 ? 0 : d->alibi[heads - 1];
    }
    if (c->sinks) {
        static const float special[] = {-INFINITY, 20, -60, 0};
        d->sinks = get(heads, sizeof *d->sinks);
        for (size_t h = 0; h < heads; h++)
            d->sinks[h] = c->sinks == SINKS_SPECIAL ? special[h % 4] : rng_normal(rng);
    }
}

// Non-finite values at keys that some rows see and others do not.
static void poison(const struct feature_case *c, struct feature_data *d)
{
    static const double bad[3] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    const size_t len = (size_t)c->len_kv, dim = (size_t)c->dim_qk, dim_v = (size_t)c->dim_v;
    const bool of_v = c->input == INPUT_V_PARTLY_NAN;
    // What lies in V is a part of K there, and an infinity of K could hide a key.
    const bool shared = c->layout == FORM_V_IN_K && c->dtype_kv != CLATTN_DTYPE_I8;
    for (size_t r = 0; r < rows_kv(c); r++) {
        const size_t j = r % len;
        const double x = shared || !of_v ? (double)NAN : bad[j % 3];
        const bool hit = of_v ? j % 7 == 3 : j + 3 == len || j == len / 2;
        double *scales = of_v ? d->vs : d->ks;
        if (!hit)
            continue;
        if (scales)
            scales[r] = x;
        else if (of_v && !shared)
            d->v[r * dim_v + j % dim_v] = x;
        else
            d->k[r * dim + j % (shared ? dim_v : dim)] = x;
    }
}

// One head of K and V stands for all where the layout gives it stride 0.
static void broadcast_heads(const struct feature_case *c, double *x, size_t row)
{
    const size_t block = (size_t)c->len_kv * row, heads = (size_t)c->heads_kv;
    for (size_t n = 0; x && n < (size_t)c->batch * heads; n++)
        memmove(x + n * block, x + n / heads * heads * block, block * sizeof *x);
}

static void lay_out(const struct feature_case *c, struct feature_data *d)
{
    if (c->layout == FORM_BCAST_HEAD) {
        broadcast_heads(c, d->k, (size_t)c->dim_qk);
        broadcast_heads(c, d->v, (size_t)c->dim_v);
        broadcast_heads(c, d->ks, 1);
        broadcast_heads(c, d->vs, 1);
    }
    for (size_t r = 0; c->layout == FORM_V_IN_K && r < rows_kv(c); r++)
        memcpy(d->v + r * (size_t)c->dim_v, d->k + r * (size_t)c->dim_qk,
               (size_t)c->dim_v * sizeof *d->v);
}

void feature_inputs(const struct feature_case *c, struct feature_data *d)
{
    uint64_t rng = c->seed;
    memset(d, 0, sizeof *d);
    make_lengths(c, &rng, d);
    d->q = normals(&rng, rows_q(c) * (size_t)c->dim_qk, c->dtype_q);
    if (c->dtype_kv == CLATTN_DTYPE_I8) {
        d->k = int8_rows(&rng, rows_kv(c), (size_t)c->dim_qk, &d->ks);
        d->v = int8_rows(&rng, rows_kv(c), (size_t)c->dim_v, &d->vs);
    } else {
        d->k = normals(&rng, rows_kv(c) * (size_t)c->dim_qk, c->dtype_kv);
        d->v = normals(&rng, rows_kv(c) * (size_t)c->dim_v, c->dtype_kv);
    }
    for (size_t n = 0; c->input == INPUT_LARGE && n < rows_q(c) * (size_t)c->dim_qk; n++)
        d->q[n] *= 16;
    d->mask = c->mask.used ? make_mask(c, &rng) : NULL;
    d->bias = c->bias.used ? make_bias(c, &rng) : NULL;
    make_per_head(c, &rng, d);
    if (c->input == INPUT_V_PARTLY_NAN || c->input == INPUT_K_PARTLY_NAN)
        poison(c, d);
    lay_out(c, d);
    d->o = get(rows_q(c) * (size_t)c->dim_v, sizeof *d->o);
    d->lse = get(rows_q(c), sizeof *d->lse);
}

// ---- expectation --------------------------------------------------------------------------------

bool feature_sees(const struct feature_case *c, const struct feature_data *d, int32_t b, int32_t h,
                  int32_t i, int32_t j)
{
    const int32_t off = c->align == CLATTN_ALIGN_TOP_LEFT ? 0 : d->len_kv[b] - d->len_q[b];
    const int32_t right = c->causal ? 0 : c->window ? c->right : -1;
    const int32_t left = c->window ? c->left : -1;
    const size_t row = ((size_t)b * (size_t)c->heads_q + (size_t)h) * (size_t)c->len_q + (size_t)i;
    const size_t pair = row * (size_t)c->len_kv + (size_t)j;
    if (i >= d->len_q[b] || j >= d->len_kv[b])
        return false;
    if (left >= 0 && j < i + off - left)
        return false;
    if (right >= 0 && j > i + off + right)
        return false;
    if (d->mask && !d->mask[pair])
        return false;
    return !d->bias || d->bias[pair] != -INFINITY;
}

static float scale_of(const struct feature_case *c)
{
    return c->has_scale ? c->scale : (float)(1 / sqrt((double)c->dim_qk));
}

static double score(const struct feature_case *c, const struct feature_data *d, int32_t b,
                    int32_t h, int32_t i, int32_t j)
{
    const int32_t g = h / (c->heads_q / c->heads_kv);
    const size_t row = ((size_t)b * (size_t)c->heads_q + (size_t)h) * (size_t)c->len_q + (size_t)i;
    const size_t key = ((size_t)b * (size_t)c->heads_kv + (size_t)g) * (size_t)c->len_kv +
                       (size_t)j;
    const size_t dim = (size_t)c->dim_qk;
    double x = 0;
    for (size_t n = 0; n < dim; n++)
        x += d->q[row * dim + n] * d->k[key * dim + n];
    x *= (double)scale_of(c) * (d->ks ? d->ks[key] : 1);
    if (c->has_softcap && c->softcap > 0)
        x = (double)c->softcap * tanh(x / (double)c->softcap);
    if (d->alibi) {
        const int32_t off = c->align == CLATTN_ALIGN_TOP_LEFT ? 0 : d->len_kv[b] - d->len_q[b];
        x -= (double)d->alibi[b * c->heads_q + h] * abs(i + off - j);
    }
    if (d->bias)
        x += (double)d->bias[row * (size_t)c->len_kv + (size_t)j];
    return x;
}

static void expect_row(const struct feature_case *c, struct feature_data *d, int32_t b, int32_t h,
                       int32_t i, double *x, double *sum)
{
    const int32_t g = h / (c->heads_q / c->heads_kv);
    const size_t row = ((size_t)b * (size_t)c->heads_q + (size_t)h) * (size_t)c->len_q + (size_t)i;
    const size_t dim = (size_t)c->dim_v;
    const double sink = d->sinks ? (double)d->sinks[h] : -(double)INFINITY;
    double m = sink, l = 0;
    bool bad = false; // a NaN or +infinity among the scores
    for (int32_t j = 0; j < d->len_kv[b]; j++) {
        x[j] = feature_sees(c, d, b, h, i, j) ? score(c, d, b, h, i, j) : -(double)INFINITY;
        bad = bad || isnan(x[j]) || x[j] == (double)INFINITY;
        m = x[j] > m ? x[j] : m;
    }
    for (size_t n = 0; n < dim; n++)
        sum[n] = 0;
    for (int32_t j = 0; j < d->len_kv[b]; j++) {
        if (x[j] == -(double)INFINITY)
            continue;
        const size_t key = ((size_t)b * (size_t)c->heads_kv + (size_t)g) * (size_t)c->len_kv +
                           (size_t)j;
        const double p = exp(x[j] - m);
        l += p;
        for (size_t n = 0; n < dim; n++)
            sum[n] += p * (d->vs ? d->vs[key] : 1) * d->v[key * dim + n];
    }
    if (sink != -(double)INFINITY)
        l += exp(sink - m);
    for (size_t n = 0; n < dim; n++)
        d->o[row * dim + n] = bad ? NAN : l > 0 || isnan(l) ? (float)(sum[n] / l) : 0;
    d->lse[row] = bad ? NAN : l > 0 || isnan(l) ? (float)(m + log(l)) : -INFINITY;
}

// ---- tolerance ----------------------------------------------------------------------------------

// Largest norm of the rows that are finite.
static double max_norm(const double *x, const double *scales, size_t rows, size_t dim)
{
    double most = 0;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t n = 0; n < dim; n++)
            sum += x[r * dim + n] * x[r * dim + n];
        sum = sqrt(sum) * (scales ? scales[r] : 1);
        if (isfinite(sum))
            most = fmax(most, sum);
    }
    return most;
}

// A float32 dot product errs by about eps * sum |q k| <= eps * |q| |k|; soft-cap, bias and ALiBi
// each round once more, by eps of what they make of it. e^x turns an error of the score into the
// same relative error of a weight, and weights are averaged over V. The rounding of the
// exponential, of the division and of a sum of len keys, whose errors of either sign grow with the
// root of their number, adds a few eps whatever the scores are. O of 16 bits is rounded once more,
// by half a unit of its last place; where all types are of 16 bits, the weights may be rounded too.
static void tolerate(const struct feature_case *c, struct feature_data *d)
{
    static const double half_unit[] = {0, 0x1p-11, 0x1p-8};
    double size = fabs((double)scale_of(c)) *
                  max_norm(d->q, NULL, rows_q(c), (size_t)c->dim_qk) *
                  max_norm(d->k, d->ks, rows_kv(c), (size_t)c->dim_qk);
    double slope = 0, bias = 0, v_max = 0;
    for (int32_t n = 0; d->alibi && n < c->batch * c->heads_q; n++)
        slope = fmax(slope, fabs((double)d->alibi[n]));
    for (size_t n = 0; d->bias && n < rows_q(c) * (size_t)c->len_kv; n++)
        if (isfinite(d->bias[n]))
            bias = fmax(bias, fabs((double)d->bias[n]));
    for (size_t n = 0; n < rows_kv(c) * (size_t)c->dim_v; n++) {
        const double v = d->v[n] * (d->vs ? d->vs[n / (size_t)c->dim_v] : 1);
        if (isfinite(v))
            v_max = fmax(v_max, fabs(v));
    }
    size += bias + slope * (c->len_q + c->len_kv);
    const double unit = (8 + size + sqrt((double)c->len_kv)) * (double)FLT_EPSILON;
    const bool all_16 = c->dtype_q != CLATTN_DTYPE_F32 && c->dtype_kv == c->dtype_q &&
                        c->dtype_o == c->dtype_q;
    const double rounding = half_unit[c->dtype_o];
    const double tiny = c->dtype_o == CLATTN_DTYPE_F16 ? 0x1p-25 : 0; // half of a denormal
    d->tol_o = (struct tolerance){unit * v_max + (all_16 ? rounding * v_max : 0) + tiny,
                                  4 * (double)FLT_EPSILON + rounding,
                                  c->input == INPUT_V_PARTLY_NAN};
    d->tol_lse = (struct tolerance){unit, 4 * (double)FLT_EPSILON, false};
}

void feature_expect(const struct feature_case *c, struct feature_data *d)
{
    double *x = get((size_t)c->len_kv, sizeof *x), *sum = get((size_t)c->dim_v, sizeof *sum);
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < c->heads_q; h++)
            for (int32_t i = 0; i < d->len_q[b]; i++)
                expect_row(c, d, b, h, i, x, sum);
    free(x);
    free(sum);
    tolerate(c, d);
}

void feature_data_make(const struct feature_case *c, struct feature_data *d)
{
    feature_inputs(c, d);
    feature_expect(c, d);
}

void feature_data_free(struct feature_data *d)
{
    void *const all[] = {d->q,    d->k,     d->v,     d->ks, d->vs, d->mask,
                         d->bias, d->alibi, d->sinks, d->o,  d->lse};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
    memset(d, 0, sizeof *d);
}
