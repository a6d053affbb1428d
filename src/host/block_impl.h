// SPDX-License-Identifier: Apache-2.0
// The two register blocks of tile_impl.h, where nearly all of the time goes: RK keys and RD
// channels against the QV vectors of rows of a tile. Where fewer vectors have work, one or two take
// NARROW / 1 or NARROW / 2 keys or channels: enough sums at once for two units of four cycles.

#define NARROW 8

// Memory that is read soon: rows of floats at any addresses, which are not dereferenced.
struct ahead {
    uintptr_t k, v;
    int64_t k_stride, v_stride; // bytes
};

// Most sums in registers at once.
#define MOST_SUMS ((RK > RD ? RK : RD) * QV > NARROW ? (RK > RD ? RK : RD) * QV : NARROW)
#define LINE 16 // floats in a cache line of 64 bytes

VEC_INLINE void fetch_ahead(const struct ahead *a, int32_t d, const int rows)
{
    VEC_UNROLL
    for (int r = 0; r < rows; r++) {
        __builtin_prefetch((const void *)(a->k + (uintptr_t)(r * a->k_stride + 4 * d)));
        __builtin_prefetch((const void *)(a->v + (uintptr_t)(r * a->v_stride + 4 * d)));
    }
}

// The part of the scores of n keys against qv vectors (constants) that the channels d0..d1-1
// contribute.
VEC_INLINE void score_channels(vf *acc, const float *k, int64_t stride, const vf *q, int32_t d0,
                               int32_t d1, const int n, const int qv)
{
    VEC_UNROLL_BY_4
    for (int32_t d = d0; d < d1; d++) {
        VEC_UNROLL
        for (int r = 0; r < n; r++) {
            const vf key = vec_splat(k[r * stride + d]);
            VEC_UNROLL
            for (int v = 0; v < qv; v++)
                acc[r * qv + v] = vec_fma(key, q[d * QV + v], acc[r * qv + v]);
        }
    }
}

// Scores of n keys against qv vectors of the tile (constants). `ahead` may be NULL.
VEC_INLINE void score_keys(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s,
                           const int n, const int qv, const struct ahead *ahead)
{
    vf acc[MOST_SUMS];
    VEC_UNROLL
    for (int i = 0; i < n * qv; i++)
        acc[i] = vec_splat(0.0f);
    int32_t d = 0;
    if (ahead) {
        // A line at a time: many requests at once would fill the buffers for them.
        for (; d + LINE <= dim; d += LINE) {
            fetch_ahead(ahead, d, n);
            score_channels(acc, k, stride, q, d, d + LINE, n, qv);
        }
    }
    score_channels(acc, k, stride, q, d, dim, n, qv);
    VEC_UNROLL
    for (int r = 0; r < n; r++) {
        VEC_UNROLL
        for (int v = 0; v < qv; v++)
            s[r * QV + v] = acc[r * qv + v];
    }
}

// Not inlined: the compilers keep the accumulators in registers only where the function holds
// little else.
VEC_NOINLINE void score_block(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s,
                              const struct ahead *ahead)
{
    const struct ahead a = *ahead;
    score_keys(k, stride, q, dim, s, RK, QV, &a);
}

VEC_NOINLINE void score_narrow(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s,
                               const struct ahead *ahead, int vectors)
{
    const struct ahead a = *ahead;
    if (vectors == 1)
        score_keys(k, stride, q, dim, s, NARROW, 1, &a);
    else
        score_keys(k, stride, q, dim, s, NARROW / 2, 2, &a);
}

VEC_NOINLINE void score_rest(const float *k, int64_t stride, const vf *q, int32_t dim, vf *s, int n)
{
    switch (n) {
#if RK > 7
    case 7:
        score_keys(k, stride, q, dim, s, 7, QV, NULL);
        break;
#endif
#if RK > 6
    case 6:
        score_keys(k, stride, q, dim, s, 6, QV, NULL);
        break;
#endif
#if RK > 5
    case 5:
        score_keys(k, stride, q, dim, s, 5, QV, NULL);
        break;
#endif
#if RK > 4
    case 4:
        score_keys(k, stride, q, dim, s, 4, QV, NULL);
        break;
#endif
#if RK > 3
    case 3:
        score_keys(k, stride, q, dim, s, 3, QV, NULL);
        break;
#endif
#if RK > 2
    case 2:
        score_keys(k, stride, q, dim, s, 2, QV, NULL);
        break;
#endif
    default:
        score_keys(k, stride, q, dim, s, 1, QV, NULL);
        break;
    }
}

// O of n channels for qv vectors (constants).
VEC_INLINE void pv_channels(const float *v, int64_t stride, const vf *p, int32_t keys,
                            const vf alpha[QV], vf *o, const int n, const int qv,
                            const bool careful)
{
    vf acc[MOST_SUMS];
    VEC_UNROLL
    for (int i = 0; i < n * qv; i++)
        acc[i] = vec_splat(0.0f);
    VEC_UNROLL_BY_4
    for (int32_t j = 0; j < keys; j++) {
        VEC_UNROLL
        for (int c = 0; c < n; c++) {
            const vf value = vec_splat(v[j * stride + c]);
            VEC_UNROLL
            for (int i = 0; i < qv; i++) {
                vf *sum = &acc[c * qv + i];
                const vf w = p[j * QV + i];
                if (careful) {
                    const vi hidden = (vi)((vi)w == (vi)vec_splat(-0.0f));
                    *sum += (vf)(~hidden & (vi)(w * value));
                } else {
                    *sum = vec_fma(value, w, *sum);
                }
            }
        }
    }
    VEC_UNROLL
    for (int c = 0; c < n; c++) {
        VEC_UNROLL
        for (int i = 0; i < qv; i++)
            o[c * QV + i] = vec_fma(o[c * QV + i], alpha[i], acc[c * qv + i]);
    }
}

VEC_NOINLINE void pv_block(const float *v, int64_t stride, const vf *p, int32_t keys,
                           const vf alpha[QV], vf *o)
{
    pv_channels(v, stride, p, keys, alpha, o, RD, QV, false);
}

VEC_NOINLINE void pv_narrow(const float *v, int64_t stride, const vf *p, int32_t keys,
                            const vf alpha[QV], vf *o, int vectors)
{
    if (vectors == 1)
        pv_channels(v, stride, p, keys, alpha, o, NARROW, 1, false);
    else
        pv_channels(v, stride, p, keys, alpha, o, NARROW / 2, 2, false);
}

VEC_NOINLINE void pv_rest(const float *v, int64_t stride, const vf *p, int32_t keys,
                          const vf alpha[QV], vf *o, int n)
{
    switch (n) {
#if RD > 7
    case 7:
        pv_channels(v, stride, p, keys, alpha, o, 7, QV, false);
        break;
#endif
#if RD > 6
    case 6:
        pv_channels(v, stride, p, keys, alpha, o, 6, QV, false);
        break;
#endif
#if RD > 5
    case 5:
        pv_channels(v, stride, p, keys, alpha, o, 5, QV, false);
        break;
#endif
#if RD > 4
    case 4:
        pv_channels(v, stride, p, keys, alpha, o, 4, QV, false);
        break;
#endif
#if RD > 3
    case 3:
        pv_channels(v, stride, p, keys, alpha, o, 3, QV, false);
        break;
#endif
#if RD > 2
    case 2:
        pv_channels(v, stride, p, keys, alpha, o, 2, QV, false);
        break;
#endif
    default:
        pv_channels(v, stride, p, keys, alpha, o, 1, QV, false);
        break;
    }
}

VEC_NOINLINE void pv_careful(const float *v, int64_t stride, const vf *p, int32_t keys,
                             const vf alpha[QV], vf *o)
{
    pv_channels(v, stride, p, keys, alpha, o, 1, QV, true);
}
