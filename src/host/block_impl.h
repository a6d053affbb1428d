// SPDX-License-Identifier: Apache-2.0
// The two register blocks of tile_impl.h, where nearly all of the time goes: RK keys and RD
// channels against the QV vectors of rows of a tile.

// Memory that is read soon: rows of floats at any addresses, which are not dereferenced.
struct ahead {
    uintptr_t k, v;
    int64_t k_stride, v_stride; // bytes
};

#define LINE 16 // floats in a cache line of 64 bytes

VEC_INLINE void fetch_ahead(const struct ahead *a, int32_t d, const int rows)
{
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        __builtin_prefetch((const void *)(a->k + (uintptr_t)(r * a->k_stride + 4 * d)));
        __builtin_prefetch((const void *)(a->v + (uintptr_t)(r * a->v_stride + 4 * d)));
    }
}

// The part of the scores of n keys (a constant) that the channels d0..d1-1 contribute.
VEC_INLINE void score_channels(vf acc[RK][QV], const float *k, int64_t stride, const vf *q,
                               int32_t d0, int32_t d1, const int n)
{
    VEC_UNROLL_BY_4
    for (int32_t d = d0; d < d1; d++) {
        VEC_UNROLL
        for (int r = 0; r < n; r++) {
            const vf key = vec_splat(k[r * stride + d]);
            VEC_UNROLL
            for (int v = 0; v < QV; v++)
                acc[r][v] = vec_fma(key, q[d * QV + v], acc[r][v]);
        }
    }
}

// Scores of n keys (a constant) against the tile. `ahead` may be NULL.
VEC_INLINE void score_keys(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s,
                           const int n, const struct ahead *ahead)
{
    vf acc[RK][QV];
    VEC_UNROLL
    for (int r = 0; r < n; r++) {
        VEC_UNROLL
        for (int v = 0; v < QV; v++)
            acc[r][v] = vec_splat(0.0f);
    }
    int32_t d = 0;
    if (ahead) {
        // A line at a time: many requests at once would fill the buffers for them.
        for (; d + LINE <= dim; d += LINE) {
            fetch_ahead(ahead, d, n);
            score_channels(acc, k, stride, q, d, d + LINE, n);
        }
    }
    score_channels(acc, k, stride, q, d, dim, n);
    VEC_UNROLL
    for (int r = 0; r < n; r++) {
        VEC_UNROLL
        for (int v = 0; v < QV; v++)
            s[r * QV + v] = acc[r][v];
    }
}

// Not inlined: the compilers keep the accumulators in registers only where the function holds
// little else.
VEC_NOINLINE void score_block(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s,
                              const struct ahead *ahead)
{
    const struct ahead a = *ahead;
    score_keys(k, stride, q, dim, s, RK, &a);
}

VEC_NOINLINE void score_rest(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s, int n)
{
    switch (n) {
#if RK > 7
    case 7:
        score_keys(k, stride, q, dim, s, 7, NULL);
        break;
#endif
#if RK > 6
    case 6:
        score_keys(k, stride, q, dim, s, 6, NULL);
        break;
#endif
#if RK > 5
    case 5:
        score_keys(k, stride, q, dim, s, 5, NULL);
        break;
#endif
#if RK > 4
    case 4:
        score_keys(k, stride, q, dim, s, 4, NULL);
        break;
#endif
#if RK > 3
    case 3:
        score_keys(k, stride, q, dim, s, 3, NULL);
        break;
#endif
#if RK > 2
    case 2:
        score_keys(k, stride, q, dim, s, 2, NULL);
        break;
#endif
    default:
        score_keys(k, stride, q, dim, s, 1, NULL);
        break;
    }
}

// O of n channels (a constant).
VEC_INLINE void pv_channels(const float *v, int64_t stride, const vf *p, int32_t keys,
                            const vf alpha[QV], vf *o, const int n, const bool careful)
{
    vf acc[RD][QV];
    VEC_UNROLL
    for (int c = 0; c < n; c++) {
        VEC_UNROLL
        for (int i = 0; i < QV; i++)
            acc[c][i] = vec_splat(0.0f);
    }
    VEC_UNROLL_BY_4
    for (int32_t j = 0; j < keys; j++) {
        VEC_UNROLL
        for (int c = 0; c < n; c++) {
            const vf value = vec_splat(v[j * stride + c]);
            VEC_UNROLL
            for (int i = 0; i < QV; i++) {
                const vf w = p[j * QV + i];
                if (careful) {
                    const vi hidden = (vi)((vi)w == (vi)vec_splat(-0.0f));
                    acc[c][i] += (vf)(~hidden & (vi)(w * value));
                } else {
                    acc[c][i] = vec_fma(value, w, acc[c][i]);
                }
            }
        }
    }
    VEC_UNROLL
    for (int c = 0; c < n; c++) {
        VEC_UNROLL
        for (int i = 0; i < QV; i++)
            o[c * QV + i] = vec_fma(o[c * QV + i], alpha[i], acc[c][i]);
    }
}

VEC_NOINLINE void pv_block(const float *v, int64_t stride, const vf *p, int32_t keys,
                           const vf alpha[QV], vf *o)
{
    pv_channels(v, stride, p, keys, alpha, o, RD, false);
}

VEC_NOINLINE void pv_rest(const float *v, int64_t stride, const vf *p, int32_t keys,
                          const vf alpha[QV], vf *o, int n)
{
    switch (n) {
#if RD > 7
    case 7:
        pv_channels(v, stride, p, keys, alpha, o, 7, false);
        break;
#endif
#if RD > 6
    case 6:
        pv_channels(v, stride, p, keys, alpha, o, 6, false);
        break;
#endif
#if RD > 5
    case 5:
        pv_channels(v, stride, p, keys, alpha, o, 5, false);
        break;
#endif
#if RD > 4
    case 4:
        pv_channels(v, stride, p, keys, alpha, o, 4, false);
        break;
#endif
#if RD > 3
    case 3:
        pv_channels(v, stride, p, keys, alpha, o, 3, false);
        break;
#endif
#if RD > 2
    case 2:
        pv_channels(v, stride, p, keys, alpha, o, 2, false);
        break;
#endif
    default:
        pv_channels(v, stride, p, keys, alpha, o, 1, false);
        break;
    }
}

VEC_NOINLINE void pv_careful(const float *v, int64_t stride, const vf *p, int32_t keys,
                             const vf alpha[QV], vf *o)
{
    pv_channels(v, stride, p, keys, alpha, o, 1, true);
}
