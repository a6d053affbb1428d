// SPDX-License-Identifier: Apache-2.0
// Fused forward attention for CPU devices: scores, softmax and weighted sum in one pass over the
// keys, nothing of the len_q x len_kv scores ever in memory.
//
//   O[b,h,i,:] = sum_j p[i,j] * V[b,g,j,:] / l[i],  p = e^(x[i,j] - m[i]),  x = scale * dot(Q, K),
//   LSE[b,h,i] = m[i] + ln l[i],                    j over the keys that row i sees
//
// One work-item is a work-group and owns a tile of TILE_Q = W * QV rows of one (batch, key head).
// Vector lanes are rows, so m, l and p are plain vectors: no reduction across lanes, no barrier, no
// local memory, and one broadcast element of K or V, read in place, feeds QV multiply-adds. Only Q
// and O are transposed.
//
//             channels                     keys of a tile                  channels
//   rows     | q[d][lane] |   rows   | p[j][lane], TILE_K at a time |   | o[d][lane] |  rows
//            QK^T: blocks of RK keys x QV vectors     PV: blocks of RD channels x QV vectors
//
//   global size: num_tiles * heads_kv * batch, tile fastest, last first (causal: heavy ones), best
//   in one dimension: a driver that cuts the range in two mixes heads, and K and V leave the caches
//   local memory: none. Private: q, o, o_hi of DIM * TILE_Q floats each, p of TILE_K * TILE_Q.
//
// Literals: DIM_QK, DIM_V, DTYPE_Q, DTYPE_KV, DTYPE_O, MASK_KIND; W = 4, 8 or 16; QV; TILE_K; RK
// and RD. RK * QV and RD * QV accumulators should fit the registers with QV + 1 to spare. Any value
// works for any dimension and length. HAS_PREFETCH: __builtin_prefetch() compiles (not via SPIR-V).
// Slots: CLA_SLOT_*; MASK only under CLA_MASK_GENERAL, LSE only with CLA_FWD_HAS_LSE.
//
// Numerics: see online.clh for scores. Sums have three levels, so that a million keys lose nothing:
// a tile, FLUSH_TILES tiles, the rest. P*V takes hidden keys with weight 0, which only a non-finite
// V can turn into something else than 0, and never into something finite: a tile whose output is
// not finite everywhere is computed again, with the hidden pairs left out one by one.

#if !defined(DIM_QK) || !defined(DIM_V)
#error "fused_vector.cl: DIM_QK, DIM_V"
#endif
#ifndef W
#error "fused_vector.cl: W"
#endif
#ifndef QV
#error "fused_vector.cl: QV"
#endif
#ifndef TILE_K
#error "fused_vector.cl: TILE_K"
#endif
#if !defined(RK) || !defined(RD)
#error "fused_vector.cl: RK, RD"
#endif

#define ROW_LANES W
#define MULADD fma

#include "abi.h"
#include "dtype.clh"
#include "address.clh"
#include "mask.clh"
#include "score.clh"
#include "online.clh"

#define TILE_Q (W * QV)
#define FLUSH_TILES (8192 / TILE_K + 1)
// A block of RK keys may begin at the last key of a tile.
#define PADDED_K (TILE_K + RK - 1)

// Steps of the two inner loops at a time: fewer instructions that are not multiply-adds. A loop
// marked `unroll 1` is there because a compiler took all channels at once and ran out of registers.
#define UNROLL 4

// Asks for the cache line of element `at` of p ahead of its use, behind the end of p too. The
// built-in prefetch() does nothing on CPU drivers.
#ifdef HAS_PREFETCH
#define PREFETCH(p, at)                                                                            \
    __builtin_prefetch((const void *)((ulong)(p) + (ulong)(at) * sizeof(kv_elem)))
#else
#define PREFETCH(p, at)
#endif
#define LINE 16 // channels asked for together: 64 bytes of floats

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LANES_LOAD PASTE(vload, W)
#define LANES_STORE PASTE(vstore, W)
#define BYTES_TO_ROWI PASTE(convert_int, W)

// The rows of a tile. Lanes behind the last row repeat it, and are not written.
struct tile_rows {
    int real;
    int query[TILE_Q];
    int head[TILE_Q];
};

// What a tile has summed up so far, per row; o is [channel][vector].
struct sums {
    ROWF m[QV];
    ROWF l[QV];
    ROWF o[DIM_V * QV];
};

static inline void find_rows(struct tile_rows *t, const struct cla_fwd_args *a, int g, long first)
{
    int i = row_query(a, first);
    int h = row_head(a, g, first);
    t->real = (int)min(row_count(a) - first, (long)TILE_Q);
    for (int n = 0; n < TILE_Q; ++n) {
        t->query[n] = i;
        t->head[n] = h;
        if (n + 1 < t->real && ++h == (g + 1) * a->group) {
            h = g * a->group;
            ++i;
        }
    }
}

// Transposes W vectors t[row] of type `vec` in log2(W) perfect shuffles. Lane n of vector m becomes
// lane m of vector n where vectors have W lanes; longer ones hold several rows of the result.
#define TRANSPOSE(vec, t)                                                                          \
    _Pragma("unroll") for (int stage = 1; stage < W; stage *= 2)                                   \
    {                                                                                              \
        vec shuffled[W];                                                                           \
        _Pragma("unroll") for (int n = 0; n < W / 2; ++n)                                          \
        {                                                                                          \
            shuffled[2 * n].even = t[n].lo;                                                        \
            shuffled[2 * n].odd = t[n + W / 2].lo;                                                 \
            shuffled[2 * n + 1].even = t[n].hi;                                                    \
            shuffled[2 * n + 1].odd = t[n + W / 2].hi;                                             \
        }                                                                                          \
        _Pragma("unroll") for (int n = 0; n < W; ++n) t[n] = shuffled[n];                          \
    }

// q[channel][vector] = scale * Q. The last W channels may overlap those before.
static inline void load_queries(ROWF *q, const struct cla_fwd_args *a, const struct tile_rows *rows,
                                int b, __global const q_elem *mem)
{
    for (int v = 0; v < QV; ++v) {
        long at[W];
        for (int n = 0; n < W; ++n)
            at[n] = tensor_at(&a->q, b, rows->head[v * W + n], rows->query[v * W + n]);
#if DIM_QK >= W
        for (int d = 0; d < DIM_QK; d += W) {
            int from = min(d, DIM_QK - W);
            ROWF t[W];
#pragma unroll
            for (int n = 0; n < W; ++n)
                t[n] = LANES_LOAD(0, mem + at[n] + from);
            TRANSPOSE(ROWF, t)
#pragma unroll
            for (int n = 0; n < W; ++n)
                q[(from + n) * QV + v] = SCALE_QUERY(a, t[n]);
        }
#else
        for (int d = 0; d < DIM_QK; ++d)
            for (int n = 0; n < W; ++n)
                ((float *)&q[d * QV + v])[n] = SCALE_QUERY(a, LOAD_Q(mem, at[n] + d));
#endif
    }
}

// Keys j..j+keys-1 of one (batch, key head). `left` counts those from j to the last of the rows.
struct key_tile {
    __global const kv_elem *k;
    __global const kv_elem *v;
    long k_stride;
    long v_stride;
    int keys;
    int left;
};

// x += Q * K for the channels d..d+channels-1; `channels` is a constant where this is inlined.
static inline void add_scores(ROWF x[RK][QV], const ROWF *q, __global const kv_elem *row[RK], int d,
                              const int channels)
{
#pragma unroll
    for (int c = d; c < d + channels; ++c) {
#pragma unroll
        for (int r = 0; r < RK; ++r) {
            ROWF key = (ROWF)(LOAD_KV(row[r], c));
#pragma unroll
            for (int v = 0; v < QV; ++v)
                x[r][v] = fma(q[c * QV + v], key, x[r][v]);
        }
    }
}

// p[key][vector] = scores. A block that reaches over the end repeats the last key, whose scores
// nobody reads. Asks for the rows of V it will be multiplied with, and for the next block of K.
static inline void score(ROWF *p, const ROWF *q, const struct key_tile *t)
{
    for (int j = 0; j < t->keys; j += RK) {
        __global const kv_elem *row[RK];
        ROWF x[RK][QV];
        row[0] = t->k + j * t->k_stride;
#pragma unroll
        for (int r = 1; r < RK; ++r)
            row[r] = row[r - 1] + (j + r < t->left ? t->k_stride : 0);
#pragma unroll
        for (int r = 0; r < RK; ++r) {
#pragma unroll
            for (int v = 0; v < QV; ++v)
                x[r][v] = (ROWF)(0.0f);
        }
        int d = 0;
#pragma unroll 1
        for (; d + LINE <= DIM_QK; d += LINE) {
#pragma unroll
            for (int r = 0; r < RK; ++r) {
                PREFETCH(t->k, (j + RK + r) * t->k_stride + d);
                PREFETCH(t->v, (j + r) * t->v_stride + d);
            }
#pragma unroll 1
            for (int c = d; c < d + LINE; c += UNROLL)
                add_scores(x, q, row, c, UNROLL);
        }
        for (; d + UNROLL <= DIM_QK; d += UNROLL)
            add_scores(x, q, row, d, UNROLL);
#if DIM_QK % UNROLL != 0
        add_scores(x, q, row, d, DIM_QK % UNROLL);
#endif
#pragma unroll
        for (int r = 0; r < RK; ++r) {
#pragma unroll
            for (int v = 0; v < QV; ++v)
                p[(j + r) * QV + v] = x[r][v];
        }
    }
}

// Hides the keys j..j+n-1 that the window does not show, row by row.
static inline void hide_window(ROWF *p, const struct cla_fwd_args *a, const struct tile_rows *rows,
                               int j, int n)
{
    for (int v = 0; v < QV; ++v) {
        ROWI begin;
        ROWI end;
        for (int lane = 0; lane < W; ++lane) {
            ((int *)&begin)[lane] = window_begin(a, rows->query[v * W + lane]);
            ((int *)&end)[lane] = window_end(a, rows->query[v * W + lane]);
        }
        for (int c = 0; c < n; ++c) {
            ROWI key = (ROWI)(j + c);
            p[c * QV + v] = HIDE_UNLESS(key >= begin && key < end, p[c * QV + v]);
        }
    }
}

// Scores to weights, in place; m and l take the tile in. f is the factor of the sums before it.
static inline void absorb(ROWF *p, ROWF *f, struct sums *s, int n)
{
    ROWF m[QV];
    ROWF l[QV];
    ROWF shift[QV];
#pragma unroll
    for (int v = 0; v < QV; ++v)
        m[v] = s->m[v];
    for (int c = 0; c < n; ++c) {
#pragma unroll
        for (int v = 0; v < QV; ++v)
            m[v] = max_of(p[c * QV + v], m[v]);
    }
#pragma unroll
    for (int v = 0; v < QV; ++v) {
        shift[v] = shift_of(m[v]);
        l[v] = (ROWF)(0.0f);
    }
    for (int c = 0; c < n; ++c) {
#pragma unroll
        for (int v = 0; v < QV; ++v) {
            ROWF w = weight(p[c * QV + v], shift[v]);
            p[c * QV + v] = w;
            l[v] += w;
        }
    }
#pragma unroll
    for (int v = 0; v < QV; ++v) {
        f[v] = weight(s->m[v], shift[v]);
        s->l[v] = fma(s->l[v], f[v], l[v]);
        s->m[v] = m[v];
    }
}

// sum += P * V for `keys` keys and `channels` channels, constants where this is inlined.
static inline void add_products(ROWF sum[RD][QV], const ROWF *p, __global const kv_elem *val,
                                long stride, const int keys, const int channels)
{
#pragma unroll
    for (int c = 0; c < keys; ++c) {
#pragma unroll
        for (int d = 0; d < channels; ++d) {
            ROWF x = (ROWF)(LOAD_KV(val + c * stride, d));
#pragma unroll
            for (int v = 0; v < QV; ++v)
                sum[d][v] = fma(p[c * QV + v], x, sum[d][v]);
        }
    }
}

// o = o * f + P * V for the channels d..d+channels-1, at most RD.
static inline void accumulate_block(ROWF *o, const ROWF *p, const ROWF *f,
                                    const struct key_tile *t, int d, const int channels)
{
    ROWF sum[RD][QV];
#pragma unroll
    for (int c = 0; c < channels; ++c) {
#pragma unroll
        for (int v = 0; v < QV; ++v)
            sum[c][v] = (ROWF)(0.0f);
    }
    __global const kv_elem *val = t->v + d;
    int j = 0;
    for (; j + UNROLL <= t->keys; j += UNROLL)
        add_products(sum, p + j * QV, val + j * t->v_stride, t->v_stride, UNROLL, channels);
    for (; j < t->keys; ++j)
        add_products(sum, p + j * QV, val + j * t->v_stride, t->v_stride, 1, channels);
#pragma unroll
    for (int c = 0; c < channels; ++c) {
#pragma unroll
        for (int v = 0; v < QV; ++v)
            o[(d + c) * QV + v] = fma(o[(d + c) * QV + v], f[v], sum[c][v]);
    }
}

static inline void accumulate(ROWF *o, const ROWF *p, const ROWF *f, const struct key_tile *t)
{
    int d = 0;
    for (; d + RD <= DIM_V; d += RD)
        accumulate_block(o, p, f, t, d, RD);
#if DIM_V % RD != 0
    accumulate_block(o, p, f, t, d, DIM_V % RD);
#endif
}

// The same without the hidden pairs, whose V may be anything.
static inline void accumulate_visible(ROWF *o, const ROWF *p, const ROWI *hidden, const ROWF *f,
                                      const struct key_tile *t)
{
    for (int d = 0; d < DIM_V; ++d) {
        ROWF sum[QV];
#pragma unroll
        for (int v = 0; v < QV; ++v)
            sum[v] = (ROWF)(0.0f);
        for (int j = 0; j < t->keys; ++j) {
            ROWF x = (ROWF)(LOAD_KV(t->v + j * t->v_stride, d));
#pragma unroll
            for (int v = 0; v < QV; ++v) {
                ROWF next = fma(p[j * QV + v], x, sum[v]);
                sum[v] = hidden[j * QV + v] ? sum[v] : next;
            }
        }
#pragma unroll
        for (int v = 0; v < QV; ++v)
            o[d * QV + v] = fma(o[d * QV + v], f[v], sum[v]);
    }
}

static inline void clear(struct sums *s)
{
    for (int v = 0; v < QV; ++v) {
        s->m[v] = (ROWF)(-INFINITY);
        s->l[v] = (ROWF)(0.0f);
    }
    for (int d = 0; d < DIM_V * QV; ++d)
        s->o[d] = (ROWF)(0.0f);
}

// Moves the sums into `total`, whose maximum is never above theirs, and begins them anew. The
// maximum stays.
static inline void flush(struct sums *total, struct sums *s)
{
    for (int v = 0; v < QV; ++v) {
        ROWF f = weight(total->m[v], shift_of(s->m[v]));
        total->m[v] = s->m[v];
        total->l[v] = fma(total->l[v], f, s->l[v]);
        s->l[v] = (ROWF)(0.0f);
        for (int d = 0; d < DIM_V; ++d) {
            total->o[d * QV + v] = fma(total->o[d * QV + v], f, s->o[d * QV + v]);
            s->o[d * QV + v] = (ROWF)(0.0f);
        }
    }
}

// 0 * x is NaN where x is not finite.
static inline bool all_finite(const struct sums *s)
{
    ROWF probe = (ROWF)(0.0f);
    for (int d = 0; d < DIM_V * QV; ++d)
        probe = fma(s->o[d], (ROWF)(0.0f), probe);
    return !any(probe != probe);
}

// O = o / l, transposed back to one row after the other.
static inline void store_output(const struct sums *s, const struct cla_fwd_args *a,
                                const struct tile_rows *rows, int b, __global o_elem *mem)
{
    for (int v = 0; v < QV; ++v) {
        int real = clamp(rows->real - v * W, 0, W);
#if DIM_V >= W
        long at[W];
        for (int n = 0; n < W; ++n)
            at[n] = tensor_at(&a->o, b, rows->head[v * W + n], rows->query[v * W + n]);
        for (int d = 0; d < DIM_V; d += W) {
            int from = min(d, DIM_V - W);
            ROWF t[W];
#pragma unroll
            for (int n = 0; n < W; ++n)
                t[n] = row_output(s->o[(from + n) * QV + v], s->l[v]);
            TRANSPOSE(ROWF, t)
#pragma unroll
            for (int n = 0; n < W; ++n)
                if (n < real)
                    LANES_STORE(t[n], 0, mem + at[n] + from);
        }
#else
        for (int d = 0; d < DIM_V; ++d) {
            ROWF t = row_output(s->o[d * QV + v], s->l[v]);
            for (int n = 0; n < real; ++n) {
                int lane = v * W + n;
                long at = tensor_at(&a->o, b, rows->head[lane], rows->query[lane]);
                STORE_O(mem, at + d, ((float *)&t)[n]);
            }
        }
#endif
    }
}

static inline void store_lse(const struct sums *s, const struct cla_fwd_args *a,
                             const struct tile_rows *rows, int b, __global float *mem)
{
    for (int v = 0; v < QV; ++v) {
        ROWF lse = row_lse(s->m[v], s->l[v]);
        for (int n = v * W; n < min(rows->real, (v + 1) * W); ++n)
            mem[lse_at(a, b, rows->head[n], rows->query[n])] = ((float *)&lse)[n - v * W];
    }
}

#if MASK_KIND == CLA_MASK_GENERAL
// The boolean mask of a tile of keys: byte[vector][key][lane], or byte[key] where all rows share
// one row of the mask. `most` is 0 where no row sees a key, `least` is not 0 where all see all.
struct mask_tile {
    long at[TILE_Q]; // mask byte of key 0 of each row
    bool shared;
    uchar16 most;
    uchar16 least;
    uchar byte[TILE_K * TILE_Q];
};

static inline void find_mask(struct mask_tile *t, const struct cla_fwd_args *a,
                             const struct tile_rows *rows, int b)
{
    t->shared = a->mask.stride_h == 0 && a->mask.stride_q == 0;
    for (int n = 0; n < TILE_Q; ++n)
        t->at[n] = mask_at(a, b, rows->head[n], rows->query[n]);
}

// n bytes of one row, one by one, to every step-th byte.
static inline void load_mask_row(struct mask_tile *t, __global const uchar *mem, long stride, int n,
                                 uchar *to, int step)
{
    uchar most = 0;
    uchar least = 255;
    for (int c = 0; c < n; ++c) {
        uchar byte = mem[c * stride];
        to[c * step] = byte;
        most = max(most, byte);
        least = min(least, byte);
    }
    t->most = max(t->most, (uchar16)(most));
    t->least = min(t->least, (uchar16)(least));
}

// The bytes of W neighbouring rows, 16 keys at a time. The last 16 may overlap those before.
static inline void load_mask_rows(struct mask_tile *t, __global const uchar *mem, const long *at,
                                  int n, uchar *to)
{
    for (int c = 0; c < n; c += 16) {
        int from = min(c, n - 16);
        uchar16 bytes[W];
#pragma unroll
        for (int lane = 0; lane < W; ++lane) {
            bytes[lane] = vload16(0, mem + at[lane] + from);
            t->most = max(t->most, bytes[lane]);
            t->least = min(t->least, bytes[lane]);
        }
        TRANSPOSE(uchar16, bytes)
#pragma unroll
        for (int part = 0; part < W; ++part)
            vstore16(bytes[part], part, to + from * W);
    }
}

static inline void load_mask(struct mask_tile *t, const struct cla_fwd_args *a,
                             __global const uchar *mem, int j, int n)
{
    const long stride = a->mask.stride_k;
    mem += j * stride;
    t->most = (uchar16)(0);
    t->least = (uchar16)(255);
    if (t->shared) {
        load_mask_row(t, mem + t->at[0], stride, n, t->byte, 1);
    } else if (stride == 1 && n >= 16) {
        for (int v = 0; v < QV; ++v)
            load_mask_rows(t, mem, t->at + v * W, n, t->byte + v * W * TILE_K);
    } else {
        for (int row = 0; row < TILE_Q; ++row) {
            uchar *to = t->byte + row / W * W * TILE_K + row % W;
            load_mask_row(t, mem + t->at[row], stride, n, to, W);
        }
    }
}

static inline void hide_masked(ROWF *p, const struct mask_tile *t, int n)
{
    if (t->shared) {
        for (int c = 0; c < n * QV; ++c)
            p[c] = t->byte[c / QV] ? p[c] : (ROWF)(-INFINITY);
    } else {
        for (int v = 0; v < QV; ++v) {
            const uchar *byte = t->byte + v * W * TILE_K;
            for (int c = 0; c < n; ++c) {
                ROWI seen = BYTES_TO_ROWI(LANES_LOAD(c, byte)) != 0;
                p[c * QV + v] = HIDE_UNLESS(seen, p[c * QV + v]);
            }
        }
    }
}
#endif

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
fused_vector(const struct cla_fwd_args a, __global const q_elem *q_mem,
             __global const kv_elem *k_mem, __global const kv_elem *v_mem, __global o_elem *o_mem,
             __global float *lse_mem, __global const uchar *mask_mem)
{
    // Tiles of one (batch, key head) follow each other, and their K and V stay in the caches.
    const long id = get_global_id(0) +
                    get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
    const long tile = a.num_tiles - 1 - id % a.num_tiles;
    const int g = (int)(id / a.num_tiles % a.heads_kv);
    const int b = (int)(id / a.num_tiles / a.heads_kv);
    struct tile_rows rows;
    find_rows(&rows, &a, g, tile * TILE_Q);
    const int i_first = rows.query[0];
    const int i_last = rows.query[TILE_Q - 1];
    const int j_begin = window_begin(&a, i_first);
    const int j_end = window_end(&a, i_last);
    k_mem += tensor_at(&a.k, b, g, 0);
    v_mem += tensor_at(&a.v, b, g, 0);

    ROWF q[DIM_QK * QV];
    load_queries(q, &a, &rows, b, q_mem);
#if MASK_KIND == CLA_MASK_GENERAL
    struct mask_tile mask;
    find_mask(&mask, &a, &rows, b);
#endif

    struct sums total;
    bool careful = false;
    for (;;) {
        struct sums s;
        clear(&total);
        clear(&s);
        int tiles = 0, n;
        for (int j = j_begin; j < j_end; j += n) {
            n = min(TILE_K, j_end - j);
            const struct key_tile t = {k_mem + j * a.k.stride_s, v_mem + j * a.v.stride_s,
                                       a.k.stride_s, a.v.stride_s, n, j_end - j};
            ROWF p[PADDED_K * QV];
            ROWF f[QV];
#if MASK_KIND == CLA_MASK_GENERAL
            const bool masked = (a.flags & CLA_FWD_HAS_MASK) != 0;
            if (masked)
                load_mask(&mask, &a, mask_mem, j, n);
            if (masked && !any(mask.most != (uchar16)(0)))
                continue;
#endif
            score(p, q, &t);
            if (!window_full(&a, i_first, i_last, j, j + n))
                hide_window(p, &a, &rows, j, n);
#if MASK_KIND == CLA_MASK_GENERAL
            if (masked && !all(mask.least != (uchar16)(0)))
                hide_masked(p, &mask, n);
#endif
            ROWI hidden[TILE_K * QV];
            for (int c = 0; careful && c < n * QV; ++c)
                hidden[c] = p[c] == (ROWF)(-INFINITY);
            absorb(p, f, &s, n);
            if (careful)
                accumulate_visible(s.o, p, hidden, f, &t);
            else
                accumulate(s.o, p, f, &t);
            if (++tiles % FLUSH_TILES == 0)
                flush(&total, &s);
        }
        flush(&total, &s);
        if (careful || all_finite(&total))
            break;
        careful = true;
    }
    store_output(&total, &a, &rows, b, o_mem);
    if (a.flags & CLA_FWD_HAS_LSE)
        store_lse(&total, &a, &rows, b, lse_mem);
}
