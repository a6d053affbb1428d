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

#include "bound.h"
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

static double *normals(uint64_t *rng, size_t count, int32_t dtype, int32_t exponent)
{
    double *x = get(count, sizeof *x);
    for (size_t n = 0; n < count; n++)
        x[n] = dtype_round(ldexp((double)rng_normal(rng), exponent), dtype);
    return x;
}

// Rows of normal numbers in int8, each with its scale.
static double *int8_rows(uint64_t *rng, size_t rows, size_t dim, int32_t exponent, double **scales)
{
    double *x = normals(rng, rows * dim, CLATTN_DTYPE_F32, exponent);
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
    d->q = normals(&rng, rows_q(c) * (size_t)c->dim_qk, c->dtype_q, c->exp_q);
    if (c->dtype_kv == CLATTN_DTYPE_I8) {
        d->k = int8_rows(&rng, rows_kv(c), (size_t)c->dim_qk, c->exp_k, &d->ks);
        d->v = int8_rows(&rng, rows_kv(c), (size_t)c->dim_v, c->exp_v, &d->vs);
    } else {
        d->k = normals(&rng, rows_kv(c) * (size_t)c->dim_qk, c->dtype_kv, c->exp_k);
        d->v = normals(&rng, rows_kv(c) * (size_t)c->dim_v, c->dtype_kv, c->exp_v);
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
    d->bound_o = get(rows_q(c) * (size_t)c->dim_v, sizeof *d->bound_o);
    d->running_o = get(rows_q(c) * (size_t)c->dim_v, sizeof *d->running_o);
    d->bound_lse = get(rows_q(c), sizeof *d->bound_lse);
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

// The score and, in *error, its bound.
static double score(const struct feature_case *c, const struct feature_data *d, int32_t b,
                    int32_t h, int32_t i, int32_t j, double *error)
{
    const int32_t g = h / (c->heads_q / c->heads_kv);
    const size_t row = ((size_t)b * (size_t)c->heads_q + (size_t)h) * (size_t)c->len_q + (size_t)i;
    const size_t key = ((size_t)b * (size_t)c->heads_kv + (size_t)g) * (size_t)c->len_kv +
                       (size_t)j;
    const size_t dim = (size_t)c->dim_qk;
    const double factor = (double)scale_of(c) * (d->ks ? d->ks[key] : 1);
    struct bound_score s = {.dim = c->dim_qk, .factor = fabs(factor)};
    double x = 0;
    for (size_t n = 0; n < dim; n++) {
        const double product = d->q[row * dim + n] * d->k[key * dim + n];
        x += product;
        s.walk += product * product + x * x;
    }
    s.walk = sqrt(s.walk);
    x *= factor;
    if (c->has_softcap && c->softcap > 0) {
        s.softcap = (double)c->softcap;
        x = s.softcap * tanh(x / s.softcap);
    }
    s.capped = x;
    if (d->alibi) {
        const int32_t off = c->align == CLATTN_ALIGN_TOP_LEFT ? 0 : d->len_kv[b] - d->len_q[b];
        s.distance = fabs((double)d->alibi[b * c->heads_q + h] * abs(i + off - j));
        x -= (double)d->alibi[b * c->heads_q + h] * abs(i + off - j);
    }
    if (d->bias)
        x += (double)d->bias[row * (size_t)c->len_kv + (size_t)j];
    s.moved = d->alibi || d->bias;
    s.x = x;
    *error = bound_score(&s);
    return x;
}

// A row of scores and what comes of it.
struct row {
    double *x, *error; // [len_kv]
    double *sum;       // [dim_v]
    double m, l, sink;
    bool bad; // a NaN or +infinity among the scores
};

static void score_row(const struct feature_case *c, const struct feature_data *d, int32_t b,
                      int32_t h, int32_t i, struct row *r)
{
    r->sink = d->sinks ? (double)d->sinks[h] : -(double)INFINITY;
    r->m = r->sink;
    r->bad = false;
    for (int32_t j = 0; j < d->len_kv[b]; j++) {
        double *x = &r->x[j];
        *x = -(double)INFINITY;
        if (feature_sees(c, d, b, h, i, j))
            *x = score(c, d, b, h, i, j, &r->error[j]);
        r->bad = r->bad || isnan(*x) || *x == (double)INFINITY;
        r->m = *x > r->m ? *x : r->m;
    }
}

// Value `n` of key j.
static double value(const struct feature_case *c, const struct feature_data *d, size_t key0,
                    int32_t j, size_t n)
{
    const size_t key = key0 + (size_t)j;
    return (d->vs ? d->vs[key] : 1) * d->v[key * (size_t)c->dim_v + n];
}

// The bounds of a row whose weights are p = e^(x - m) / l.
static void bound_row(const struct feature_case *c, struct feature_data *d, int32_t len,
                      size_t key0, size_t row, const struct row *r)
{
    const bool all_16 = c->dtype_q != CLATTN_DTYPE_F32 && c->dtype_kv == c->dtype_q &&
                        c->dtype_o == c->dtype_q;
    const double sink = exp(r->sink - r->m) / r->l;
    const double of_sink = sink > 0 ? sink * bound_weight(0, r->m - r->sink) : 0;
    struct bound_row b = {len, of_sink, r->m + log(r->l), log(r->l)};
    for (int32_t j = 0; j < len; j++) {
        const double below = r->m - r->x[j], p = exp(-below) / r->l;
        r->error[j] = p > 0 ? p * bound_weight(r->error[j], below) : 0;
        r->x[j] = below < (double)INFINITY ? p : -1; // -1: hidden
        b.weights += r->error[j];
    }
    d->bound_lse[row] = bound_lse(&b);
    for (size_t n = 0; n < (size_t)c->dim_v; n++) {
        const double o = r->sum[n] / r->l;
        struct bound_output out = {.len = len, .o = o, .spread = of_sink * fabs(o),
                                   .weight_roundoff = all_16 ? bound_roundoff(c->dtype_o) : 0};
        double largest = 0;
        for (int32_t j = 0; j < len; j++) {
            const double v = r->x[j] >= 0 ? value(c, d, key0, j, n) : 0;
            largest = fmax(largest, fabs(v));
            out.spread += r->error[j] * fabs(v - o);
            out.mass += r->x[j] * fabs(v);
        }
        const double error = bound_output(&out);
        d->bound_o[row * (size_t)c->dim_v + n] = isfinite(error) ? error : 0;
        d->running_o[row * (size_t)c->dim_v + n] = isfinite(error) ? bound_running(largest) : 0;
    }
}

static void expect_row(const struct feature_case *c, struct feature_data *d, int32_t b, int32_t h,
                       int32_t i, struct row *r)
{
    const int32_t g = h / (c->heads_q / c->heads_kv);
    const size_t row = ((size_t)b * (size_t)c->heads_q + (size_t)h) * (size_t)c->len_q + (size_t)i;
    const size_t key0 = ((size_t)b * (size_t)c->heads_kv + (size_t)g) * (size_t)c->len_kv;
    const size_t dim = (size_t)c->dim_v;
    score_row(c, d, b, h, i, r);
    r->l = r->sink != -(double)INFINITY ? exp(r->sink - r->m) : 0;
    for (size_t n = 0; n < dim; n++)
        r->sum[n] = 0;
    for (int32_t j = 0; j < d->len_kv[b]; j++) {
        if (r->x[j] == -(double)INFINITY)
            continue;
        const double p = exp(r->x[j] - r->m);
        r->l += p;
        for (size_t n = 0; n < dim; n++)
            r->sum[n] += p * value(c, d, key0, j, n);
    }
    const bool some = r->l > 0 || isnan(r->l);
    for (size_t n = 0; n < dim; n++)
        d->o[row * dim + n] = r->bad ? NAN : some ? (float)(r->sum[n] / r->l) : 0;
    d->lse[row] = r->bad ? NAN : some ? (float)(r->m + log(r->l)) : -INFINITY;
    if (r->l > 0 && !r->bad)
        bound_row(c, d, d->len_kv[b], key0, row, r);
}

void feature_expect(const struct feature_case *c, struct feature_data *d)
{
    struct row r = {.x = get((size_t)c->len_kv, sizeof *r.x),
                    .error = get((size_t)c->len_kv, sizeof *r.error),
                    .sum = get((size_t)c->dim_v, sizeof *r.sum)};
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < c->heads_q; h++)
            for (int32_t i = 0; i < d->len_q[b]; i++)
                expect_row(c, d, b, h, i, &r);
    free(r.x);
    free(r.error);
    free(r.sum);
    // The expectation is rounded to float, as are outputs of it.
    d->unit = BOUND_FLOAT;
    const double rounding = bound_roundoff(c->dtype_o) + BOUND_FLOAT;
    d->tol_o = (struct tolerance){bound_smallest(c->dtype_o), rounding,
                                  c->input == INPUT_V_PARTLY_NAN};
    d->tol_lse = (struct tolerance){0, 2 * BOUND_FLOAT, false};
}

void feature_data_make(const struct feature_case *c, struct feature_data *d)
{
    feature_inputs(c, d);
    feature_expect(c, d);
}

void feature_data_free(struct feature_data *d)
{
    void *const all[] = {d->q,     d->k,     d->v, d->ks,  d->vs,      d->mask,     d->bias,
                         d->alibi, d->sinks, d->o, d->lse, d->bound_o, d->bound_lse,
                         d->running_o};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
    memset(d, 0, sizeof *d);
}
