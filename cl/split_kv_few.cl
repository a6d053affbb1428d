// SPDX-License-Identifier: Apache-2.0
// Attention with split keys for CPU devices and few rows (decoding): vector lanes are channels, so
// that no lane idles where there are fewer rows than lanes.
//
//   m_k = max x,  l_k = sum e^(x - m_k),  O_k = sum e^(x - m_k) * V / l_k    over keys of part k
//
// merge.cl makes O and LSE of all parts. With num_splits = 1 they are written here at once.
//
// One work-item is a work-group and owns a tile of ROWS rows and one part of its keys. All rows
// share each read of a row of K and V, which are read as vectors, a part of a row ahead.
//
//   scores   SUMS / ROWS keys x ROWS rows at a time, a vector of partial sums for each, which fold
//            into one lane for each:  s = [key][row], so a vector holds several keys
//   P * V    SUMS / ROWS vectors of channels x ROWS rows at a time
//
//   global size: num_tiles * num_splits * heads_kv * batch, tile fastest, last first (split.clh)
//   local memory: none. Private: q, o, o_hi of DIM * ROWS floats each, s of TILE_K * ROWS.
//
// Literals: DIM_QK, DIM_V, DTYPE_Q, DTYPE_KV, DTYPE_O, MASK_KIND; W = 4, 8 or 16; ROWS = 1, 2, 4 or
// 8, at most W; TILE_K, a multiple of 8 and of W. HAS_PREFETCH: __builtin_prefetch() compiles.
// Slots: CLA_SLOT_*; MASK only under CLA_MASK_GENERAL; LSE only with CLA_FWD_HAS_LSE and WORKSPACE
// only with more than one part.
//
// Numerics: as fused_vector.cl. A part without keys has m = -INFINITY, l = 0, O = 0.

#if !defined(DIM_QK) || !defined(DIM_V)
#error "split_kv_few.cl: DIM_QK, DIM_V"
#endif
#if !defined(W) || !defined(ROWS) || !defined(TILE_K)
#error "split_kv_few.cl: W, ROWS, TILE_K"
#endif
#if ROWS > W || TILE_K % W != 0 || TILE_K % 8 != 0
#error "split_kv_few.cl: ROWS or TILE_K"
#endif

#define ROW_LANES W
#define MULADD fma

#include "abi.h"
#include "dtype.clh"
#include "address.clh"
#include "mask.clh"
#include "online.clh"
#include "score.clh"
#include "sequence.clh"
#include "split.clh"

#define SUMS (W > 8 ? W : 8) // accumulators of a block: enough to hide the latency of fma()
#define BLOCK (SUMS / ROWS)
#define VECS(dim) (((dim) + W - 1) / W)
#define FLUSH_TILES (8192 / TILE_K + 1)
#define SCORE_VECS (TILE_K * ROWS / W)

#ifdef HAS_PREFETCH
#define PREFETCH(p, at)                                                                            \
    __builtin_prefetch((const void *)((ulong)(p) + (ulong)(at) * sizeof(kv_elem)))
#else
#define PREFETCH(p, at)
#endif
#define LINE 16  // floats
#define AHEAD 16 // rows of K that are asked for before they are read

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LANES_LOAD PASTE(vload, W)
#define LANES_STORE PASTE(vstore, W)

// In s, m and l, lane n belongs to row n % ROWS. m is the same in all lanes of a row, l is the part
// of a lane. o is [vector of channels][row].
struct sums {
    ROWF m;
    ROWF l;
    ROWF o[VECS(DIM_V) * ROWS];
};

struct few {
    int real;
    int query[ROWS];
    int head[ROWS];
    ROWI begin; // keys that a lane's row sees
    ROWI end;
    ROWI key; // of a lane in the first vector of s
};

static inline void find_rows(struct few *t, const struct cla_fwd_args *a, int g, long first)
{
    t->real = (int)min(row_count(a) - first, (long)ROWS);
    for (int r = 0; r < ROWS; ++r) {
        long row = first + min(r, t->real - 1);
        t->query[r] = row_query(a, row);
        t->head[r] = row_head(a, g, row);
    }
    for (int n = 0; n < W; ++n) {
        ((int *)&t->begin)[n] = window_begin(a, t->query[n % ROWS]);
        ((int *)&t->end)[n] = window_end(a, t->query[n % ROWS]);
        ((int *)&t->key)[n] = n / ROWS;
    }
}

// Lane n of the result is the sum of the lanes of t[n].
static inline ROWF fold(const ROWF *t)
{
#if W == 16
    float16 t8[8];
#pragma unroll
    for (int n = 0; n < 8; ++n)
        t8[n] = (float16)(t[n].lo, t[n + 8].lo) + (float16)(t[n].hi, t[n + 8].hi);
    float16 t4[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
        t4[n] = (float16)(t8[n].s0123, t8[n + 4].s0123, t8[n].s89ab, t8[n + 4].s89ab) +
                (float16)(t8[n].s4567, t8[n + 4].s4567, t8[n].scdef, t8[n + 4].scdef);
    float16 t2[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float16 x = t4[n];
        float16 y = t4[n + 2];
        t2[n] = (float16)(x.s01, y.s01, x.s45, y.s45, x.s89, y.s89, x.scd, y.scd) +
                (float16)(x.s23, y.s23, x.s67, y.s67, x.sab, y.sab, x.sef, y.sef);
    }
    return (float16)(t2[0].s0, t2[1].s0, t2[0].s2, t2[1].s2, t2[0].s4, t2[1].s4, t2[0].s6, t2[1].s6,
                     t2[0].s8, t2[1].s8, t2[0].sa, t2[1].sa, t2[0].sc, t2[1].sc, t2[0].se,
                     t2[1].se) +
           (float16)(t2[0].s1, t2[1].s1, t2[0].s3, t2[1].s3, t2[0].s5, t2[1].s5, t2[0].s7, t2[1].s7,
                     t2[0].s9, t2[1].s9, t2[0].sb, t2[1].sb, t2[0].sd, t2[1].sd, t2[0].sf,
                     t2[1].sf);
#elif W == 8
    float8 t4[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
        t4[n] = (float8)(t[n].lo, t[n + 4].lo) + (float8)(t[n].hi, t[n + 4].hi);
    float8 t2[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
        t2[n] = (float8)(t4[2 * n].s01, t4[2 * n + 1].s01, t4[2 * n].s45, t4[2 * n + 1].s45) +
                (float8)(t4[2 * n].s23, t4[2 * n + 1].s23, t4[2 * n].s67, t4[2 * n + 1].s67);
    return (float8)(t2[0].s02, t2[1].s02, t2[0].s46, t2[1].s46) +
           (float8)(t2[0].s13, t2[1].s13, t2[0].s57, t2[1].s57);
#else
    float4 x = (float4)(t[0].s01, t[1].s01) + (float4)(t[0].s23, t[1].s23);
    float4 y = (float4)(t[2].s01, t[3].s01) + (float4)(t[2].s23, t[3].s23);
    return (float4)(x.s02, y.s02) + (float4)(x.s13, y.s13);
#endif
}

// Vector c of a row of `dim` elements, a constant. The last one starts early where dim is no
// multiple of W, so that nothing behind the row is read.
#define VEC_AT(c, dim) ((c) * W + W <= (dim) || (dim) < W ? (c) * W : (dim)-W)

static inline ROWF load_vec(__global const float *row, int c, const int dim)
{
    if (dim >= W)
        return LANES_LOAD(0, row + VEC_AT(c, dim));
    ROWF x = (ROWF)(0.0f);
    for (int d = 0; d < min(dim, W); ++d)
        ((float *)&x)[d] = row[d];
    return x;
}

// The last vector with 0 in place of the elements that the one before has too.
static inline ROWF load_rest(__global const float *row, const int dim)
{
    ROWF x = load_vec(row, VECS(dim) - 1, dim);
    for (int n = 0; dim > W && n < W - dim % W; ++n)
        ((float *)&x)[n] = 0.0f;
    return x;
}

// q[vector][row] = scale * Q.
static inline void load_queries(ROWF *q, const struct cla_fwd_args *a, const struct few *rows,
                                int b, __global const q_elem *mem)
{
    for (int r = 0; r < ROWS; ++r) {
        __global const q_elem *row = mem + tensor_at(&a->q, b, rows->head[r], rows->query[r]);
        for (int c = 0; c < DIM_QK / W; ++c)
            q[c * ROWS + r] = SCALE_QUERY(a, load_vec(row, c, DIM_QK));
        if (DIM_QK % W != 0)
            q[DIM_QK / W * ROWS + r] = SCALE_QUERY(a, load_rest(row, DIM_QK));
    }
}

// Keys j..j+keys-1 of one (batch, key head).
struct key_tile {
    __global const kv_elem *k;
    __global const kv_elem *v;
    long k_stride;
    long v_stride;
    int keys;
};

// s = Q * K. A block that reaches over the end repeats the last key. Asks for the rows of V that
// are needed next, and for those of K a little ahead.
static inline void score(ROWF *s, const ROWF *q, const struct key_tile *t)
{
    for (int j = 0; j < t->keys; j += BLOCK) {
        __global const kv_elem *row[BLOCK];
        ROWF sum[SUMS];
#pragma unroll
        for (int n = 0; n < BLOCK; ++n) {
            row[n] = t->k + min(j + n, t->keys - 1) * t->k_stride;
#ifdef HAS_PREFETCH
#pragma unroll
            for (int d = 0; d < DIM_QK; d += LINE)
                PREFETCH(t->k, (j + n + AHEAD) * t->k_stride + d);
#pragma unroll
            for (int d = 0; d < DIM_V; d += LINE)
                PREFETCH(t->v, (j + n) * t->v_stride + d);
#endif
        }
#pragma unroll
        for (int n = 0; n < SUMS; ++n)
            sum[n] = (ROWF)(0.0f);
#pragma unroll 2
        for (int c = 0; c < DIM_QK / W; ++c) {
#pragma unroll
            for (int n = 0; n < BLOCK; ++n) {
                ROWF x = LANES_LOAD(c, row[n]);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    sum[n * ROWS + r] = fma(x, q[c * ROWS + r], sum[n * ROWS + r]);
            }
        }
#if DIM_QK % W != 0
#pragma unroll
        for (int n = 0; n < BLOCK; ++n) {
            ROWF x = load_rest(row[n], DIM_QK);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                sum[n * ROWS + r] = fma(x, q[DIM_QK / W * ROWS + r], sum[n * ROWS + r]);
        }
#endif
#pragma unroll
        for (int n = 0; n < SUMS; n += W)
            s[(j * ROWS + n) / W] = fold(sum + n);
    }
}

// Scale, window and mask. Lanes behind the last key are hidden too.
static inline void hide(ROWF *s, const struct cla_fwd_args *a, const struct few *rows, int b, int j,
                        int n, __global const uchar *mask)
{
    const int vecs = (n * ROWS + W - 1) / W;
    for (int c = 0; IS_SCORE_SCALED(a) && c < vecs; ++c)
        s[c] = SCALE_SCORE(a, s[c]);
    if (n != TILE_K || !window_full(a, rows->query[0], rows->query[ROWS - 1], j, j + n)) {
        ROWI begin = rows->begin - j;
        ROWI end = min(rows->end - j, (ROWI)(n));
        for (int c = 0; c < vecs; ++c) {
            ROWI key = rows->key + c * (W / ROWS);
            s[c] = HIDE_UNLESS(key >= begin && key < end, s[c]);
        }
    }
#if MASK_KIND == CLA_MASK_GENERAL
    if (!(a->flags & CLA_FWD_HAS_MASK))
        return;
    for (int r = 0; r < ROWS; ++r) {
        __global const uchar *row =
            mask + mask_at(a, b, rows->head[r], rows->query[r]) + j * a->mask.stride_k;
        for (int c = 0; c < n; ++c)
            if (!row[c * a->mask.stride_k])
                ((float *)s)[c * ROWS + r] = -INFINITY;
    }
#endif
}

// The largest lane of each row, in all lanes of the row.
static inline ROWF join_maxima(ROWF x)
{
    for (int r = 0; r < ROWS; ++r) {
        float m = ((float *)&x)[r];
        for (int n = r + ROWS; n < W; n += ROWS)
            m = ((float *)&x)[n] > m ? ((float *)&x)[n] : m;
        for (int n = r; n < W; n += ROWS)
            ((float *)&x)[n] = m;
    }
    return x;
}

// Scores to weights, in place; m and l take the tile in. Returns the factor of the sums before it.
// In a careful pass weights are scaled down, and a hidden pair becomes -1, which no weight is.
static inline ROWF absorb(ROWF *s, struct sums *sum, int vecs, bool careful, float scale)
{
    ROWF m = sum->m;
    for (int c = 0; c < vecs; ++c)
        m = max_of(s[c], m);
    m = join_maxima(m);
    const ROWF shift = shift_of(m);
    ROWF l = (ROWF)(0.0f);
    for (int c = 0; c < vecs; ++c) {
        ROWF p = weight(s[c], shift);
        l += p;
        if (careful)
            p = s[c] == (ROWF)(-INFINITY) ? (ROWF)(-1.0f) : p * scale;
        s[c] = p;
    }
    const ROWF f = weight(sum->m, shift);
    sum->l = fma(sum->l, f, l);
    sum->m = m;
    return f;
}

// o = o * f + P * V for `cols` vectors of channels (a constant) from vector c on.
static inline void accumulate_block(ROWF *o, const float *p, const float *f,
                                    const struct key_tile *t, int c, const int cols)
{
    ROWF sum[SUMS];
#pragma unroll
    for (int n = 0; n < cols * ROWS; ++n)
        sum[n] = (ROWF)(0.0f);
    __global const kv_elem *val = t->v + VEC_AT(c, DIM_V);
#pragma unroll 2
    for (int j = 0; j < t->keys; ++j) {
        ROWF w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            w[r] = (ROWF)(p[j * ROWS + r]);
#pragma unroll
        for (int n = 0; n < cols; ++n) {
            ROWF x = DIM_V < W ? load_vec(val + j * t->v_stride, 0, DIM_V)
                               : LANES_LOAD(n, val + j * t->v_stride);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                sum[n * ROWS + r] = fma(x, w[r], sum[n * ROWS + r]);
        }
    }
#pragma unroll
    for (int n = 0; n < cols * ROWS; ++n)
        o[c * ROWS + n] = fma(o[c * ROWS + n], (ROWF)(f[n % ROWS]), sum[n]);
}

static inline void accumulate(ROWF *o, const float *p, const float *f, const struct key_tile *t)
{
    int c = 0;
    for (; c + BLOCK <= DIM_V / W; c += BLOCK)
        accumulate_block(o, p, f, t, c, BLOCK);
#if DIM_V % (W * (SUMS / ROWS)) != 0
    for (; c < VECS(DIM_V); ++c)
        accumulate_block(o, p, f, t, c, 1);
#endif
}

// The same without the hidden pairs, whose V may be anything.
static inline void accumulate_visible(ROWF *o, const float *p, const float *f,
                                      const struct key_tile *t)
{
    for (int n = 0; n < VECS(DIM_V) * ROWS; ++n) {
        ROWF sum = (ROWF)(0.0f);
        for (int j = 0; j < t->keys; ++j) {
            const float w = p[j * ROWS + n % ROWS];
            if (w != -1.0f)
                sum = fma(load_vec(t->v + j * t->v_stride, n / ROWS, DIM_V), (ROWF)(w), sum);
        }
        o[n] = fma(o[n], (ROWF)(f[n % ROWS]), sum);
    }
}

static inline void clear(struct sums *s)
{
    s->m = (ROWF)(-INFINITY);
    s->l = (ROWF)(0.0f);
    for (int n = 0; n < VECS(DIM_V) * ROWS; ++n)
        s->o[n] = (ROWF)(0.0f);
}

// As in vector_tile.clh.
static inline void flush(struct sums *total, struct sums *s)
{
    ROWF f = weight(total->m, shift_of(s->m));
    total->m = s->m;
    total->l = fma(total->l, f, s->l);
    s->l = (ROWF)(0.0f);
    for (int n = 0; n < VECS(DIM_V) * ROWS; ++n) {
        total->o[n] = fma(total->o[n], (ROWF)(((float *)&f)[n % ROWS]), s->o[n]);
        s->o[n] = (ROWF)(0.0f);
    }
}

static inline bool all_finite(const struct sums *s)
{
    ROWF probe = (ROWF)(0.0f);
    for (int n = 0; n < VECS(DIM_V) * ROWS; ++n)
        probe = fma(s->o[n], (ROWF)(0.0f), probe);
    return !any(probe != probe);
}

// The sum of a row.
static inline float row_sum(const struct sums *s, int r)
{
    float l = 0.0f;
    for (int n = r; n < W; n += ROWS)
        l += ((const float *)&s->l)[n];
    return l;
}

// O of row r, finished, to `mem`.
static inline void store_row(__global float *mem, const struct sums *s, int r, float l,
                             float unscale)
{
    for (int c = 0; c < VECS(DIM_V); ++c) {
        ROWF x = row_output(s->o[c * ROWS + r], (ROWF)(l), unscale);
        if (DIM_V >= W)
            LANES_STORE(x, 0, mem + VEC_AT(c, DIM_V));
        else
            for (int d = 0; d < min(DIM_V, W); ++d)
                mem[d] = ((float *)&x)[d];
    }
}

static inline void store_rows(const struct sums *s, const struct cla_fwd_args *a,
                              const struct few *rows, int b, float unscale, __global o_elem *o,
                              __global float *lse)
{
    for (int r = 0; r < rows->real; ++r) {
        const float l = row_sum(s, r);
        store_row(o + tensor_at(&a->o, b, rows->head[r], rows->query[r]), s, r, l, unscale);
        if (a->flags & CLA_FWD_HAS_LSE) {
            ROWF x = row_lse((ROWF)(((const float *)&s->m)[r]), (ROWF)(l));
            lse[lse_at(a, b, rows->head[r], rows->query[r])] = x.s0;
        }
    }
}

// To the workspace; `first` is the first row.
static inline void store_part(const struct sums *s, const struct cla_fwd_args *a, int real,
                              long first, int part, float unscale, __global float *workspace)
{
    for (int r = 0; r < real; ++r) {
        const float l = row_sum(s, r);
        __global float *ml = workspace + part_ml_at(a, first + r, part);
        store_row(workspace + part_o_at(a, first + r, part), s, r, l, unscale);
        ml[0] = ((const float *)&s->m)[r];
        ml[1] = l;
    }
}

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
split_kv_few(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    const long id = get_global_id(0);
    const int part = part_of(&a, id);
    const long head = whole_id(&a, id) / a.num_tiles;
    const int g = (int)(head % a.heads_kv);
    const int b = (int)(head / a.heads_kv);
    const long first = (a.num_tiles - 1 - id % a.num_tiles) * ROWS;
    struct few rows;
    find_rows(&rows, &a, g, first);
    int j_begin = window_begin(&a, rows.query[0]);
    int j_end = window_end(&a, rows.query[ROWS - 1]);
    cut_keys(&j_begin, &j_end, &a, part);
    k_mem += tensor_at(&a.k, b, g, 0);
    v_mem += tensor_at(&a.v, b, g, 0);

    ROWF q[VECS(DIM_QK) * ROWS];
    if (j_begin < j_end)
        load_queries(q, &a, &rows, b, q_mem);

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
                                       a.k.stride_s, a.v.stride_s, n};
            ROWF p[SCORE_VECS];
            score(p, q, &t);
            hide(p, &a, &rows, b, j, n, mask_mem);
            const ROWF f = absorb(p, &s, (n * ROWS + W - 1) / W, careful, careful_scale(a.len_kv));
            if (careful)
                accumulate_visible(s.o, (const float *)p, (const float *)&f, &t);
            else
                accumulate(s.o, (const float *)p, (const float *)&f, &t);
            if (++tiles % FLUSH_TILES == 0)
                flush(&total, &s);
        }
        flush(&total, &s);
        if (careful || all_finite(&total))
            break;
        careful = true;
    }
    const float unscale = careful ? careful_unscale(a.len_kv) : 1.0f;
    if (a.num_splits > 1)
        store_part(&total, &a, rows.real, part_row(&a, b, g, first), part, unscale, workspace);
    else
        store_rows(&total, &a, &rows, b, unscale, o_mem, lse_mem);
}
