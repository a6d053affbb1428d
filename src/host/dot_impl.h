// SPDX-License-Identifier: Apache-2.0
// The products of tile_impl.h where Q, K, V and O are bfloat16 and the plan allows products of 16
// bits (CLA_HOST_DOT). What lies between them, scores, maximum, sum and O, is float as ever:
//
//   S^T[key][lane] = scale * sum over pairs of channels of K * Q^T     channels d, d + 1
//   O^T[d][lane]   = O^T * alpha + sum over pairs of keys of V * P^T   keys j, j + 1; P rounded
//
// K is read where it lies, or from a copy where it is in pages. Q is transposed by pairs, V is
// copied with rows j and j + 1 in turn, once for all tiles of rows of a job. A channel or key that
// has no partner gets one of zeros.
//
// The sum of a row is that of the weights before they are rounded, which keeps LSE a float's; each
// weight of O is off by up to 2^-8 of itself, as much as O loses when it is stored. What the
// instruction leaves out: denormals count as zeros, those of products too. A row that is not
// finite, or close to it, is computed again in float (tile_mend()), which knows what is hidden and
// what overflows.

#include "host/dot.h"

_Static_assert(!CLA_HOST_DOT || RK % 2 == 0, "a tile of keys is whole pairs");

// Products below 2^-126 are lost, which a scale up to this one leaves far below what scores are
// rounded by. A larger one may make scores of them: such a call is computed in float.
VEC_INLINE bool dot_scales(float scale)
{
    return scale >= -0x1p20f && scale <= 0x1p20f;
}

// Copies rows of n keys of K from pages. Pages that are not in the pool give zeros.
static void dot_copy_k(const struct keys *k, int32_t key, int32_t n, uint16_t *to)
{
    const size_t bytes = (size_t)k->dim * sizeof *to;
    for (int32_t j = 0; j < n; j++, to += k->dim) {
        const int64_t at = keys_at(k, k->t, key + j);
        if (at < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, (const uint16_t *)k->mem + at, bytes);
    }
}

// One row of pairs, from two rows of V; a row that is NULL counts as zeros.
static void dot_pair_rows(const uint16_t *first, const uint16_t *second, int32_t dim, int32_t *to)
{
    const int32_t keep = (first ? 0xffff : 0) | (second ? ~0xffff : 0);
    const uint16_t *low = first ? first : second, *high = second ? second : first;
    int32_t d = 0;
    if (keep == 0) {
        memset(to, 0, (size_t)dim * sizeof *to);
        return;
    }
    for (; d + W <= dim; d += W) {
        const vi pairs = (vec_load_u16(low + d) | vec_load_u16(high + d) << 16) & keep;
        memcpy(to + d, &pairs, sizeof pairs);
    }
    for (; d < dim; d++)
        to[d] = (int32_t)(low[d] | (uint32_t)high[d] << 16) & keep;
}

// Pairs of n keys of V. Rows of the next keys are read ahead.
static void dot_pair_v(const struct keys *v, int32_t key, int32_t n, int32_t *to)
{
    const uint16_t *mem = v->mem;
    const bool more = v->job->key1 - key >= 2 * n;
    for (int32_t j = 0; j < n; j += 2, to += v->dim) {
        const uint16_t *rows[2] = {NULL, NULL};
        for (int32_t i = 0; i < 2 && j + i < n; i++) {
            const int64_t at = keys_at(v, v->t, key + j + i);
            const int64_t next = more ? keys_at(v, v->t, key + j + i + n) : -1;
            if (at >= 0)
                rows[i] = mem + at;
            for (int32_t d = 0; next >= 0 && d < v->dim; d += 32) // a line of 64 bytes
                __builtin_prefetch(mem + next + d);
        }
        dot_pair_rows(rows[0], rows[1], v->dim, to);
    }
}

// Q in pairs. The scale comes later: a product with it would have to be rounded.
static void dot_load_q(struct tile *t)
{
    const struct cla_call *call = t->f->call;
    const uint16_t *q = t->f->mem->q;
    t->post_scale = call->scale;
    for (int32_t v = 0; v < QV; v++) {
        const uint16_t *row[W];
        for (int32_t i = 0; i < W; i++)
            row[i] = q + cla_query_at(call, &call->q, t->job->b, t->head[v * W + i],
                                      t->query[v * W + i]);
        int32_t d = 0;
        for (; d + 2 * W <= t->dim_qk; d += 2 * W) {
            vf block[W];
            for (int32_t i = 0; i < W; i++)
                memcpy(&block[i], row[i] + d, sizeof block[i]);
            vec_transpose(block);
            for (int32_t i = 0; i < W; i++)
                t->q[(d / 2 + i) * QV + v] = block[i];
        }
        for (; d < t->dim_qk; d += 2) {
            vi pairs = {0};
            for (int32_t i = 0; i < W; i++) {
                const uint32_t second = d + 1 < t->dim_qk ? row[i][d + 1] : 0;
                pairs[i] = (int32_t)(row[i][d] | second << 16);
            }
            t->q[d / 2 * QV + v] = (vf)pairs;
        }
    }
}

// Finds the keys as tile_find_keys() does. The copies lie in the memory of staged keys, V behind
// room for K of 16 bits; both together take half of what floats do.
static void dot_find_keys(struct tile *t, int32_t key, int32_t n, bool *staged)
{
    uint16_t *copy = (uint16_t *)(void *)t->k_staged;
    int32_t *pairs = (int32_t *)(void *)(t->k_staged + (int64_t)(t->tile_k / 2) * t->dim_qk);
    const bool paged = t->f->p->paged;
    t->k_dot = copy;
    t->k_dot_stride = t->dim_qk;
    t->v_dot = pairs;
    if (!paged) {
        t->k_dot = (const uint16_t *)t->f->mem->k + keys_at(&t->k_keys, t->k_keys.t, key);
        t->k_dot_stride = t->f->call->k.stride[2];
    }
    if (*staged)
        return;
    *staged = true;
    if (paged)
        dot_copy_k(&t->k_keys, key, n, copy);
    dot_pair_v(&t->v_keys, key, n, pairs);
}

VEC_INLINE vi dot_splat(int32_t pair)
{
    return pair - (vi){0};
}

// Scores of n keys (a constant) against the tile.
VEC_INLINE void dot_score_keys(const uint16_t *k, int64_t stride, const vf *q, int32_t dim,
                               float scale, vf *s, const int n)
{
    vf acc[RK][QV];
    VEC_UNROLL
    for (int r = 0; r < n; r++) {
        VEC_UNROLL
        for (int v = 0; v < QV; v++)
            acc[r][v] = vec_splat(0.0f);
    }
    VEC_UNROLL_BY_4
    for (int32_t d = 0; d + 2 <= dim; d += 2) {
        VEC_UNROLL
        for (int r = 0; r < n; r++) {
            int32_t pair;
            memcpy(&pair, k + r * stride + d, sizeof pair);
            const vi key = dot_splat(pair);
            VEC_UNROLL
            for (int v = 0; v < QV; v++)
                acc[r][v] = dot_pairs(acc[r][v], (vi)q[d / 2 * QV + v], key);
        }
    }
    if (dim % 2) {
        VEC_UNROLL
        for (int r = 0; r < n; r++) {
            const vi key = dot_splat(k[r * stride + dim - 1]);
            VEC_UNROLL
            for (int v = 0; v < QV; v++)
                acc[r][v] = dot_pairs(acc[r][v], (vi)q[dim / 2 * QV + v], key);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < n; r++) {
        VEC_UNROLL
        for (int v = 0; v < QV; v++)
            s[r * QV + v] = acc[r][v] * vec_splat(scale);
    }
}

// Not inlined, as score_block().
VEC_NOINLINE void dot_score_block(const uint16_t *k, int64_t stride, const vf *q, int32_t dim,
                                  float scale, vf *s)
{
    dot_score_keys(k, stride, q, dim, scale, s, RK);
}

VEC_NOINLINE void dot_score_one(const uint16_t *k, int64_t stride, const vf *q, int32_t dim,
                                float scale, vf *s)
{
    dot_score_keys(k, stride, q, dim, scale, s, 1);
}

static void dot_scores(const struct tile *t, int32_t n)
{
    const uint16_t *k = t->k_dot;
    const int64_t stride = t->k_dot_stride;
    int32_t j = 0;
    for (; j + RK <= n; j += RK)
        dot_score_block(k + j * stride, stride, t->q, t->dim_qk, t->post_scale, t->s + j * QV);
    for (; j < n; j++)
        dot_score_one(k + j * stride, stride, t->q, t->dim_qk, t->post_scale, t->s + j * QV);
}

// Weights become pairs of neighbouring keys, in the first half of their memory.
VEC_NOINLINE void dot_pack_weights(vf *s, int32_t n)
{
    for (int v = 0; n % 2 && v < QV; v++)
        s[n * QV + v] = vec_splat(0.0f);
    for (int32_t j = 0; j < n; j += 2) {
        VEC_UNROLL
        for (int v = 0; v < QV; v++)
            s[j / 2 * QV + v] = (vf)dot_pack(s[j * QV + v], s[(j + 1) * QV + v]);
    }
}

// O of n channels (a constant), from `count` pairs of keys.
VEC_INLINE void dot_pv_channels(const int32_t *v, int64_t stride, const vf *p, int32_t count,
                                const vf alpha[QV], vf *o, const int n)
{
    vf acc[RD][QV];
    VEC_UNROLL
    for (int c = 0; c < n; c++) {
        VEC_UNROLL
        for (int i = 0; i < QV; i++)
            acc[c][i] = vec_splat(0.0f);
    }
    VEC_UNROLL_BY_4
    for (int32_t j = 0; j < count; j++) {
        VEC_UNROLL
        for (int c = 0; c < n; c++) {
            const vi value = dot_splat(v[j * stride + c]);
            VEC_UNROLL
            for (int i = 0; i < QV; i++)
                acc[c][i] = dot_pairs(acc[c][i], (vi)p[j * QV + i], value);
        }
    }
    VEC_UNROLL
    for (int c = 0; c < n; c++) {
        VEC_UNROLL
        for (int i = 0; i < QV; i++)
            o[c * QV + i] = vec_fma(o[c * QV + i], alpha[i], acc[c][i]);
    }
}

VEC_NOINLINE void dot_pv_block(const int32_t *v, int64_t stride, const vf *p, int32_t count,
                               const vf alpha[QV], vf *o)
{
    dot_pv_channels(v, stride, p, count, alpha, o, RD);
}

VEC_NOINLINE void dot_pv_one(const int32_t *v, int64_t stride, const vf *p, int32_t count,
                             const vf alpha[QV], vf *o)
{
    dot_pv_channels(v, stride, p, count, alpha, o, 1);
}

static void dot_pv(const struct tile *t, int32_t n, const vf alpha[QV])
{
    const int32_t count = (n + 1) / 2;
    dot_pack_weights(t->s, n);
    int32_t d = 0;
    for (; d + RD <= t->dim_v; d += RD)
        dot_pv_block(t->v_dot + d, t->dim_v, t->s, count, alpha, t->o + d * QV);
    for (; d < t->dim_v; d++)
        dot_pv_one(t->v_dot + d, t->dim_v, t->s, count, alpha, t->o + d * QV);
}
