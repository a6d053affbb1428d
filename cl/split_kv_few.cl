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
//   local memory: none. Private: q, o, o_hi of DIM * ROWS floats each, s of TILE_K * ROWS, a bias
//   as much again, and TILE_K * DIM of pages, whose keys are staged (vector_lanes.clh).
//
// Literals: DIM_QK, DIM_V, DTYPE_Q, DTYPE_KV, DTYPE_O, MASK_KIND, PAGED; W = 4, 8 or 16; ROWS = 1,
// 2, 4 or 8, at most W; TILE_K, a multiple of 8 and of W. HAS_PREFETCH: __builtin_prefetch()
// compiles.
// Slots: those of fused_vector.cl; WORKSPACE only with more than one part.
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

// Keys of a tile may lie on several pages. Other rows are read once and where they are, whatever
// their type: memory is what this kernel waits for.
#define STAGED PAGED

#include "abi.h"
#include "dtype.clh"
#include "address.clh"
#include "mask.clh"
#include "online.clh"
#include "score.clh"
#include "sequence.clh"
#include "split.clh"
#include "vector_fold.clh"
#include "vector_lanes.clh"

#define SUMS (W > 8 ? W : 8) // accumulators of a block: enough to hide the latency of fma()
#define BLOCK (SUMS / ROWS)
#define VECS(dim) (((dim) + W - 1) / W)
#define FLUSH_TILES (8192 / TILE_K + 1)
#define SCORE_VECS (TILE_K * ROWS / W)

#define AHEAD 16 // rows of K that are asked for before they are staged

#define LINES(dim) (((dim) * (int)sizeof(kv_elem) + CACHE_LINE - 1) / CACHE_LINE) // of a row
#define PASSES (DIM_V / W / BLOCK) // of accumulate() over the keys of a tile
// Every PASS_STEP-th of them asks for PASS_LINES lines of K for each key.
#define PASS_STEP (PASSES > LINES(DIM_QK) ? PASSES / LINES(DIM_QK) : 1)
#define PASS_LINES (PASSES > 0 ? (LINES(DIM_QK) + PASSES - 1) / PASSES : 0)
#define STAGE_FLOATS (STAGED ? TILE_K * (DIM_QK > DIM_V ? DIM_QK : DIM_V) : 1)
// Scales of int8 rows that are read where they are: K's multiply scores, V's the weights.
#define SCALES_APART (DTYPE_KV == CLA_DTYPE_I8 && !STAGED)

// In s, m and l, lane n belongs to row n % ROWS. m is the same in all lanes of a row, l is the part
// of a lane. o is [vector of channels][row].
struct sums {
    ROWF m;
    ROWF l;
    ROWF o[VECS(DIM_V) * ROWS];
};

struct few {
    int real;
    int b;
    int g;
    int query[ROWS];
    int head[ROWS];
    ROWI begin; // keys that a lane's row sees
    ROWI end;
    ROWI key; // of a lane in the first vector of s
};

static inline void find_rows(struct few *t, const struct cla_fwd_args *a, int b, int g, long first)
{
    t->b = b;
    t->g = g;
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

// Vector c of a row of `dim` elements, a constant. The last one starts early where dim is no
// multiple of W, so that nothing behind the row is read.
#define VEC_AT(c, dim) ((c) * W + W <= (dim) || (dim) < W ? (c) * W : (dim)-W)

static inline ROWF load_vec(kv_row row, int c, const int dim)
{
    if (dim >= W)
        return LANES_KV_AT(row + VEC_AT(c, dim));
    ROWF x = (ROWF)(0.0f);
    for (int d = 0; d < min(dim, W); ++d)
        ((float *)&x)[d] = KV_AT(row, d);
    return x;
}

static inline ROWF load_query_vec(__global const q_elem *row, int c, const int dim)
{
    if (dim >= W)
        return LANES_LOAD_Q(row + VEC_AT(c, dim));
    ROWF x = (ROWF)(0.0f);
    for (int d = 0; d < min(dim, W); ++d)
        ((float *)&x)[d] = LOAD_Q(row, d);
    return x;
}

// The last vector of a row with 0 in place of the elements that the one before has too.
static inline ROWF rest_of(ROWF x, const int dim)
{
    for (int n = 0; dim > W && n < W - dim % W; ++n)
        ((float *)&x)[n] = 0.0f;
    return x;
}

// q[vector][row] = scale * Q.
static inline void load_queries(ROWF *q, const struct cla_fwd_args *a, const struct few *rows,
                                __global const q_elem *mem)
{
    for (int r = 0; r < ROWS; ++r) {
        __global const q_elem *row = mem + tensor_at(&a->q, rows->b, rows->head[r], rows->query[r]);
        for (int c = 0; c < DIM_QK / W; ++c)
            q[c * ROWS + r] = SCALE_QUERY(a, load_query_vec(row, c, DIM_QK));
        if (DIM_QK % W != 0)
            q[DIM_QK / W * ROWS + r] =
                SCALE_QUERY(a, rest_of(load_query_vec(row, VECS(DIM_QK) - 1, DIM_QK), DIM_QK));
    }
}

// Keys j..j+keys-1 of one (batch, key head).
struct key_tile {
    kv_row k;
    kv_row v;
    kv_row next; // K of the tile behind it
    long k_stride;
    long v_stride;
    int keys;
};

static inline void find_keys(struct key_tile *t, const struct cla_fwd_args *a,
                             const struct fwd_mem *mem, const struct few *rows,
                             __global const kv_elem *k, __global const kv_elem *v, int j, int n,
                             int left)
{
    t->keys = n;
#if STAGED
    t->k_stride = DIM_QK;
    t->v_stride = DIM_V;
#else
    t->k = k + key_at(a, mem, &a->k, rows->b, rows->g, j);
    t->v = v + key_at(a, mem, &a->v, rows->b, rows->g, j);
    t->next = t->k + (n < left ? TILE_K * a->k.stride_s : 0);
    t->k_stride = a->k.stride_s;
    t->v_stride = a->v.stride_s;
#endif
}

// Asks for `n` lines (a constant) of rows of `dim` channels, from line `at` on, all rows in a row.
INLINE void ask_for(kv_row rows, long stride, int at, const int n, const int dim)
{
#pragma unroll
    for (int c = at; c < at + n; ++c)
        PREFETCH(rows, c / LINES(dim) * stride +
                           c % LINES(dim) * (CACHE_LINE / (int)sizeof(kv_elem)));
}

// s = Q * K. A block that reaches over the end repeats the last key. Asks for the rows of V, which
// are needed next. accumulate() asks for K of the tile behind, so that memory always has something
// to do: there is no more to win by asking further ahead.
static inline void score(ROWF *s, const ROWF *q, const struct key_tile *t)
{
    for (int j = 0; j < t->keys; j += BLOCK) {
        kv_row row[BLOCK];
        ROWF sum[SUMS];
#pragma unroll
        for (int n = 0; n < BLOCK; ++n) {
            row[n] = t->k + min(j + n, t->keys - 1) * t->k_stride;
            ask_for(t->v, t->v_stride, (j + n) * LINES(DIM_V), LINES(DIM_V), DIM_V);
            if (PASSES == 0)
                ask_for(t->next, t->k_stride, (j + n) * LINES(DIM_QK), LINES(DIM_QK), DIM_QK);
        }
#pragma unroll
        for (int n = 0; n < SUMS; ++n)
            sum[n] = (ROWF)(0.0f);
#pragma unroll 2
        for (int c = 0; c < DIM_QK / W; ++c) {
#pragma unroll
            for (int n = 0; n < BLOCK; ++n) {
                ROWF x = LANES_KV_AT(row[n] + c * W);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    sum[n * ROWS + r] = fma(x, q[c * ROWS + r], sum[n * ROWS + r]);
            }
        }
#if DIM_QK % W != 0
#pragma unroll
        for (int n = 0; n < BLOCK; ++n) {
            ROWF x = rest_of(load_vec(row[n], VECS(DIM_QK) - 1, DIM_QK), DIM_QK);
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

#if SCALES_APART
// x *= the scale of each lane's key.
static inline void multiply_scales(ROWF *x, __global const float *scale, long stride, int n)
{
    for (int c = 0; c < (n * ROWS + W - 1) / W; ++c) {
        ROWF factor;
#pragma unroll
        for (int lane = 0; lane < W; ++lane)
            ((float *)&factor)[lane] =
                scale[min(c * (W / ROWS) + lane / ROWS, n - 1) * stride];
        x[c] *= factor;
    }
}
#endif

#if MASK_KIND == CLA_MASK_GENERAL
// Soft-cap, ALiBi and bias of the scores with the keys j..j+n-1.
static inline void change_scores(ROWF *s, const struct cla_fwd_args *a, const struct few *rows,
                                 const struct fwd_mem *mem, int j, int n)
{
    const int vecs = (n * ROWS + W - 1) / W;
    const float inverse = cap_inverse(a->softcap);
    for (int c = 0; a->softcap > 0.0f && c < vecs; ++c)
        s[c] = cap_score(s[c], a->softcap, inverse);
    if (a->flags & CLA_FWD_HAS_ALIBI) {
        ROWF slope;
        ROWI stand;
        for (int c = 0; c < W; ++c) {
            const int r = c % ROWS;
            ((float *)&slope)[c] =
                mem->alibi[a->alibi_offset + rows->b * a->alibi_stride_b + rows->head[r]];
            ((int *)&stand)[c] = rows->query[r] + a->off;
        }
        for (int c = 0; c < vecs; ++c)
            s[c] = alibi_score(s[c], slope, TO_ROWF(stand - (rows->key + j + c * (W / ROWS))));
    }
    if (!(a->flags & CLA_FWD_HAS_BIAS))
        return;
    ROWF bias[SCORE_VECS];
    for (int c = n * ROWS; c < vecs * W; ++c)
        ((float *)bias)[c] = 0.0f; // lanes behind the last key
    for (int r = 0; r < ROWS; ++r) {
        const long row =
            bias_at(a, rows->b, rows->head[r], rows->query[r]) + j * a->bias.stride_k;
        for (int c = 0; c < n; ++c)
            ((float *)bias)[c * ROWS + r] = load_bias(a, mem->bias, row + c * a->bias.stride_k);
    }
    for (int c = 0; c < vecs; ++c)
        s[c] = bias_score(s[c], bias[c]);
}

// -INFINITY where the boolean mask hides.
static inline void hide_masked(ROWF *s, const struct cla_fwd_args *a, const struct few *rows,
                               __global const uchar *mask, int j, int n)
{
    for (int r = 0; r < ROWS; ++r) {
        __global const uchar *row =
            mask + mask_at(a, rows->b, rows->head[r], rows->query[r]) + j * a->mask.stride_k;
        for (int c = 0; c < n; ++c)
            if (!row[c * a->mask.stride_k])
                ((float *)s)[c * ROWS + r] = -INFINITY;
    }
}
#endif

// From dot products with the keys j..j+n-1 to scores. Lanes behind the last key are hidden too.
static inline void finish_scores(ROWF *s, const struct cla_fwd_args *a, const struct few *rows,
                                 const struct fwd_mem *mem, int j, int n)
{
    const int vecs = (n * ROWS + W - 1) / W;
#if SCALES_APART
    multiply_scales(s, mem->k_scale + key_at(a, mem, &a->k_scale, rows->b, rows->g, j),
                    a->k_scale.stride_s, n);
#endif
    for (int c = 0; IS_SCORE_SCALED(a) && c < vecs; ++c)
        s[c] = SCALE_SCORE(a, s[c]);
#if MASK_KIND == CLA_MASK_GENERAL
    change_scores(s, a, rows, mem, j, n);
#endif
    if (n != TILE_K || !window_full(a, rows->query[0], rows->query[ROWS - 1], j, j + n)) {
        ROWI begin = rows->begin - j;
        ROWI end = min(rows->end - j, (ROWI)(n));
        for (int c = 0; c < vecs; ++c) {
            ROWI key = rows->key + c * (W / ROWS);
            s[c] = HIDE_UNLESS(key >= begin && key < end, s[c]);
        }
    }
#if MASK_KIND == CLA_MASK_GENERAL
    if (a->flags & CLA_FWD_HAS_MASK)
        hide_masked(s, a, rows, mem->mask, j, n);
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
static inline ROWF absorb(ROWF *s, struct sums *sum, int vecs)
{
    ROWF m = sum->m;
    for (int c = 0; c < vecs; ++c)
        m = max_of(s[c], m);
    m = join_maxima(m);
    const ROWF shift = shift_of(m);
    ROWF l = (ROWF)(0.0f);
    for (int c = 0; c < vecs; ++c) {
        s[c] = weight(s[c], shift);
        l += s[c];
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
    kv_row val = t->v + VEC_AT(c, DIM_V);
#pragma unroll 2
    for (int j = 0; j < t->keys; ++j) {
        ROWF w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            w[r] = (ROWF)(p[j * ROWS + r]);
        if (cols == BLOCK && c / BLOCK % PASS_STEP == 0)
            ask_for(t->next, t->k_stride, (c / BLOCK / PASS_STEP * TILE_K + j) * PASS_LINES,
                    PASS_LINES, DIM_QK);
#pragma unroll
        for (int n = 0; n < cols; ++n) {
            ROWF x = DIM_V < W ? load_vec(val + j * t->v_stride, 0, DIM_V)
                               : LANES_KV_AT(val + j * t->v_stride + n * W);
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
static inline void accumulate_visible(ROWF *o, const float *p, const int *hidden, const float *f,
                                      const struct key_tile *t)
{
    for (int n = 0; n < VECS(DIM_V) * ROWS; ++n) {
        ROWF sum = (ROWF)(0.0f);
        for (int j = 0; j < t->keys; ++j) {
            const int at = j * ROWS + n % ROWS;
            if (!hidden[at])
                sum = fma(load_vec(t->v + j * t->v_stride, n / ROWS, DIM_V), (ROWF)(p[at]), sum);
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

// O of row r, finished, to `mem`, and to the workspace.
static inline void store_row(__global o_elem *mem, const struct sums *s, int r, float l,
                             float unscale)
{
    for (int c = 0; c < VECS(DIM_V); ++c) {
        ROWF x = row_output(s->o[c * ROWS + r], (ROWF)(l), unscale);
        if (DIM_V >= W)
            LANES_STORE_O(x, mem + VEC_AT(c, DIM_V));
        else
            for (int d = 0; d < min(DIM_V, W); ++d)
                STORE_O(mem, d, ((float *)&x)[d]);
    }
}

static inline void store_part_row(__global float *mem, const struct sums *s, int r, float l,
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
                              const struct few *rows, float unscale,
                              __global const float *sinks, __global o_elem *o,
                              __global float *lse)
{
    for (int r = 0; r < rows->real; ++r) {
        const int head = rows->head[r];
        ROWF m = (ROWF)(((const float *)&s->m)[r]);
        ROWF l = (ROWF)(row_sum(s, r));
        float factor = unscale;
        if (a->flags & CLA_FWD_HAS_SINKS)
            factor *= add_sink(&m, &l, (ROWF)(sinks[a->sinks_offset + head])).s0;
        store_row(o + tensor_at(&a->o, rows->b, head, rows->query[r]), s, r, l.s0, factor);
        if (a->flags & CLA_FWD_HAS_LSE)
            lse[lse_at(a, rows->b, head, rows->query[r])] = row_lse(m, l).s0;
    }
}

// To the workspace; `first` is the first row.
static inline void store_part(const struct sums *s, const struct cla_fwd_args *a, int real,
                              long first, int part, float unscale, __global float *workspace)
{
    for (int r = 0; r < real; ++r) {
        const float l = row_sum(s, r);
        __global float *ml = workspace + part_ml_at(a, first + r, part);
        store_part_row(workspace + part_o_at(a, first + r, part), s, r, l, unscale);
        ml[0] = ((const float *)&s->m)[r];
        ml[1] = l;
    }
}

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
split_kv_few(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const long id = get_global_id(0);
    const int part = part_of(&a, id);
    const long head = whole_id(&a, id) / a.num_tiles;
    const int g = (int)(head % a.heads_kv);
    const int b = (int)(head / a.heads_kv);
    const long first = (a.num_tiles - 1 - id % a.num_tiles) * ROWS;
    enter_sequence(&a, &mem, b, g == 0 && first == 0 && part == 0);
    if (first >= row_count(&a))
        return;
    struct few rows;
    find_rows(&rows, &a, b, g, first);
    int j_begin = window_begin(&a, rows.query[0]);
    int j_end = window_end(&a, rows.query[ROWS - 1]);
    cut_keys(&j_begin, &j_end, &a, part);

    ROWF q[VECS(DIM_QK) * ROWS];
    if (j_begin < j_end)
        load_queries(q, &a, &rows, q_mem);

    struct sums total;
    bool careful = false;
    for (;;) {
        struct sums s;
        clear(&total);
        clear(&s);
        int tiles = 0, n;
        for (int j = j_begin; j < j_end; j += n) {
            n = min(TILE_K, j_end - j);
            struct key_tile t;
            float room[STAGE_FLOATS];
            ROWF p[SCORE_VECS];
            const int vecs = (n * ROWS + W - 1) / W;
            find_keys(&t, &a, &mem, &rows, k_mem, v_mem, j, n, j_end - j);
#if STAGED
            const struct rows_of_keys k_rows = {&a.k, k_mem, &a.k_scale, mem.k_scale, b,
                                                g,    v_mem, &a.v,       AHEAD};
            const struct rows_of_keys v_rows = {&a.v, v_mem, &a.v_scale, mem.v_scale, b,
                                                g,    0,     0,          0};
            struct page_run run;
            clear_run(&run);
            stage(room, &a, &mem, &k_rows, &run, j, n, DIM_QK);
            t.k = t.v = room;
#endif
            score(p, q, &t);
            finish_scores(p, &a, &rows, &mem, j, n);
            ROWI hidden[SCORE_VECS];
            for (int c = 0; careful && c < vecs; ++c)
                hidden[c] = p[c] == (ROWF)(-INFINITY);
            const ROWF f = absorb(p, &s, vecs);
            for (int c = 0; careful && c < vecs; ++c)
                p[c] *= careful_scale(a.len_kv);
#if SCALES_APART
            multiply_scales(p, mem.v_scale + key_at(&a, &mem, &a.v_scale, b, g, j),
                            a.v_scale.stride_s, n);
#endif
#if STAGED
            clear_run(&run);
            stage(room, &a, &mem, &v_rows, &run, j, n, DIM_V);
#endif
            if (careful)
                accumulate_visible(s.o, (const float *)p, (const int *)hidden, (const float *)&f,
                                   &t);
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
        store_rows(&total, &a, &rows, unscale, mem.sinks, o_mem, lse_mem);
}
