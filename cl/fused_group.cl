// SPDX-License-Identifier: Apache-2.0
// Fused forward attention for devices whose work-items share local memory: scores, softmax and
// weighted sum in one pass over the keys, nothing of the len_q x len_kv scores in global memory.
//
//   O[b,h,i,:] = sum_j p[i,j] * V[b,g,j,:] / l[i],  p = e^(x[i,j] - m[i]),  x = scale * dot(Q, K),
//   LSE[b,h,i] = m[i] + ln l[i],                    j over the keys that row i sees
//
// A work-group of ITEMS_Q x ITEMS_K items owns a tile of TILE_Q rows of one (batch, key head) and
// walks over TILE_K keys at a time. An item keeps TILE_Q/ITEMS_Q rows x TILE_K/ITEMS_K keys of the
// scores and the same rows x 1/ITEMS_K of the channels of O in registers (group_index.h).
//
//              channels              keys                        channels
//            +----------+       +--------------+               +----------+
//     rows   |    Q     |       |  S, then P   |   rows        |    O     |   rows
//   TILE_Q   +----------+       +--------------+               +----------+
//              x K^T in chunks of CHUNK_D  -->   P x V in chunks of CHUNK_D
//
//   group id: query tile, last first (the heavy ones of a causal problem); then key head, batch
//
// Local memory, CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D) in all:
//   q_tile    TILE_Q x CHUNK_D floats and pad; stays if CHUNK_D covers DIM_QK, else is read again
//   kv_tile   TILE_K x CHUNK_D floats and pad; a chunk of K, then a chunk of V
//   p_tile    TILE_Q x TILE_K floats and pad
//   part      TILE_Q x ITEMS_K floats in use; flag 4 ints
//
// Literals: DIM_QK, DIM_V, DTYPE_Q, DTYPE_KV, DTYPE_O, MASK_KIND; TILE_Q, a multiple of ITEMS_Q;
// TILE_K, a multiple of 4 * ITEMS_K; CHUNK_D, a multiple of 4; LONG_ROWS: 1 if a row can have more
// than 512 key tiles.
// Slots: CLA_SLOT_*; MASK only under CLA_MASK_GENERAL, LSE only with CLA_FWD_HAS_LSE. Loads and
// stores of 4 elements at once only with CLA_FWD_ALIGNED16: one plan serves any strides.
//
// Numerics: see online.clh for scores. A tile of keys is summed up on its own and then added, under
// LONG_ROWS with the rounding error carried along. P*V takes hidden keys with weight 0, which only
// a non-finite V can turn into something else than 0, and never into something finite: a tile whose
// output is not finite everywhere is computed again, with the hidden pairs left out one by one and
// the weights scaled down, so that the sum of finite V is finite.

#if !defined(DIM_QK) || !defined(DIM_V)
#error "fused_group.cl: DIM_QK, DIM_V"
#endif
#if !defined(TILE_Q) || !defined(TILE_K) || !defined(CHUNK_D)
#error "fused_group.cl: TILE_Q, TILE_K, CHUNK_D"
#endif
#if !defined(ITEMS_Q) || !defined(ITEMS_K)
#error "fused_group.cl: ITEMS_Q, ITEMS_K"
#endif
#ifndef LONG_ROWS
#error "fused_group.cl: LONG_ROWS"
#endif
#if TILE_Q % ITEMS_Q != 0 || TILE_K % (4 * ITEMS_K) != 0 || CHUNK_D % 4 != 0
#error "fused_group.cl: TILE_Q, TILE_K or CHUNK_D is not a multiple of what it must be"
#endif

#define ROW_LANES 1
#define MULADD mad
// A function that takes __local memory must be gone before a driver looks across functions: PoCL's
// front end puts the address of a __local array into functions that are left, where its later
// stages do not find it.
#define INLINE static inline __attribute__((always_inline))

#include "abi.h"
#include "group_index.h"
#include "dtype.clh"
#include "address.clh"
#include "mask.clh"
#include "score.clh"
#include "online.clh"

#define CHUNKS_QK ((DIM_QK + CHUNK_D - 1) / CHUNK_D)
#define CHUNKS_V ((DIM_V + CHUNK_D - 1) / CHUNK_D)
// O stays in registers only where the loop over its chunks is unrolled, which a driver for CPUs can
// take a minute over if there are many.
#define UNROLLED_CHUNKS 4
// Quads of O that an item sums up at once: 8 quads of partial sums are 32 registers.
#define VALUES_AT_ONCE                                                                             \
    (GROUP_ROWS * GROUP_VALUES <= 8 ? GROUP_VALUES : GROUP_ROWS < 8 ? 8 / GROUP_ROWS : 1)

// The tile of a work-group. Rows behind the last real one repeat it and are not written.
struct place {
    int b;
    int g;
    int query; // of row 0
    int head;  // of row 0, in its group
    int rows;  // real ones
};

// What an item has summed up so far. `m` is that of the row, the same for all items that share it;
// `l` is the part of this item's keys. o[a][chunk * GROUP_VALUES + n].
struct sums {
    float m[GROUP_ROWS];
    float l[GROUP_ROWS];
    float4 o[GROUP_ROWS][CHUNKS_V * GROUP_VALUES];
#if LONG_ROWS
    float l_excess[GROUP_ROWS]; // what rounding has put too much into l, o
    float4 o_excess[GROUP_ROWS][CHUNKS_V * GROUP_VALUES];
#endif
};

INLINE void find_place(struct place *at, const struct cla_fwd_args *a)
{
    // In one dimension, since some devices allow only 65535 work-groups in the others.
    const long id = get_group_id(0);
    const long first = (a->num_tiles - 1 - id % a->num_tiles) * TILE_Q;
    at->g = (int)(id / a->num_tiles % a->heads_kv);
    at->b = (int)(id / a->num_tiles / a->heads_kv);
    at->query = row_query(a, first);
    at->head = (int)(first % a->group);
    at->rows = (int)min(row_count(a) - first, (long)TILE_Q);
}

// Query and head of row r of the tile, in 32-bit division only.
INLINE int place_query(const struct place *at, const struct cla_fwd_args *a, uint r)
{
    return at->query + (int)((at->head + min(r, (uint)at->rows - 1u)) / (uint)a->group);
}

INLINE int place_head(const struct place *at, const struct cla_fwd_args *a, uint r)
{
    uint in_group = (at->head + min(r, (uint)at->rows - 1u)) % (uint)a->group;
    return at->g * a->group + (int)in_group;
}

// Whether 4 neighbouring elements may be loaded and stored at once.
INLINE bool is_aligned(const struct cla_fwd_args *a)
{
    return (a->flags & CLA_FWD_ALIGNED16) != 0;
}

// Four channels from d on of the element `at`; zeros behind the last of `dim`.
INLINE float4 load_q4(__global const q_elem *mem, long at, int d, const int dim, bool aligned)
{
    mem += at + d;
    if (dim % CHUNK_D == 0 || d + 4 <= dim) {
        if (dim % 4 == 0 && aligned)
            return LOAD_Q4(mem, 0);
        return (float4)(LOAD_Q(mem, 0), LOAD_Q(mem, 1), LOAD_Q(mem, 2), LOAD_Q(mem, 3));
    }
    return (float4)(d < dim ? LOAD_Q(mem, 0) : 0.0f, d + 1 < dim ? LOAD_Q(mem, 1) : 0.0f,
                    d + 2 < dim ? LOAD_Q(mem, 2) : 0.0f, 0.0f);
}

INLINE float4 load_kv4(__global const kv_elem *mem, long at, int d, const int dim, bool aligned)
{
    mem += at + d;
    if (dim % CHUNK_D == 0 || d + 4 <= dim) {
        if (dim % 4 == 0 && aligned)
            return LOAD_KV4(mem, 0);
        return (float4)(LOAD_KV(mem, 0), LOAD_KV(mem, 1), LOAD_KV(mem, 2), LOAD_KV(mem, 3));
    }
    return (float4)(d < dim ? LOAD_KV(mem, 0) : 0.0f, d + 1 < dim ? LOAD_KV(mem, 1) : 0.0f,
                    d + 2 < dim ? LOAD_KV(mem, 2) : 0.0f, 0.0f);
}

// q_tile = scale * Q, the chunk of channels from d on.
INLINE void load_queries(__local float4 *q_tile, const struct cla_fwd_args *a,
                         const struct place *at, __global const q_elem *mem, int d, uint item)
{
    for (uint n = item; n < TILE_Q * GROUP_FILL_SPAN; n += GROUP_ITEMS) {
        uint r = GROUP_FILL_ROW(n);
        uint quad = GROUP_FILL_QUAD(n);
        if (quad < GROUP_CHUNK_QUADS) {
            long row = tensor_at(&a->q, at->b, place_head(at, a, r), place_query(at, a, r));
            float4 x = load_q4(mem, row, d + 4 * (int)quad, DIM_QK, is_aligned(a));
            q_tile[GROUP_FILL_AT(n)] = SCALE_QUERY(a, x);
        }
    }
}

INLINE void fill_keys(__local float4 *kv_tile, __global const kv_elem *mem, long base, long stride,
                      int first, int end, int d, const int dim, const bool by_position,
                      const bool aligned, uint item)
{
#pragma unroll 4
    for (uint n = item; n < TILE_K * GROUP_FILL_SPAN; n += GROUP_ITEMS) {
        uint row = GROUP_FILL_ROW(n);
        uint quad = GROUP_FILL_QUAD(n);
        int key = (int)(by_position ? GROUP_KEY_AT(row) : row);
        if (quad < GROUP_CHUNK_QUADS)
            kv_tile[GROUP_FILL_AT(n)] =
                key < end - first
                    ? load_kv4(mem, base + (first + (long)key) * stride, d + 4 * (int)quad, dim,
                               aligned)
                    : (float4)(0.0f);
    }
}

// kv_tile = keys first..end-1 of K or V, the chunk of channels from d on; zeros behind. K lies in
// the order of positions. Two loops, so that several loads are under way at once.
INLINE void load_keys(__local float4 *kv_tile, __global const kv_elem *mem, long base, long stride,
                      int first, int end, int d, const int dim, const bool by_position,
                      bool aligned, uint item)
{
    if (dim % 4 == 0 && aligned)
        fill_keys(kv_tile, mem, base, stride, first, end, d, dim, by_position, true, item);
    else
        fill_keys(kv_tile, mem, base, stride, first, end, d, dim, by_position, false, item);
}

INLINE float dot4(float4 x, float4 y, float sum)
{
    sum = MULADD(x.x, y.x, sum);
    sum = MULADD(x.y, y.y, sum);
    sum = MULADD(x.z, y.z, sum);
    return MULADD(x.w, y.w, sum);
}

// s += Q * K^T of the chunk in local memory.
INLINE void score(float s[GROUP_ROWS][GROUP_KEYS], __local const float4 *q_tile,
                  __local const float4 *kv_tile, uint item)
{
    for (uint d = 0; d < GROUP_CHUNK_QUADS; ++d) {
        float4 q[GROUP_ROWS];
#pragma unroll
        for (uint a = 0; a < GROUP_ROWS; ++a)
            q[a] = q_tile[GROUP_Q_AT(item, a, d)];
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c) {
            float4 k = kv_tile[GROUP_K_AT(item, c, d)];
#pragma unroll
            for (uint a = 0; a < GROUP_ROWS; ++a)
                s[a][c] = dot4(q[a], k, s[a][c]);
        }
    }
}

// Hides the keys of the tile from k0 on that a row does not see.
INLINE void hide(float s[GROUP_ROWS][GROUP_KEYS], const struct cla_fwd_args *a,
                 const struct place *at, __global const uchar *mask, int k0, uint item)
{
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        uint r = GROUP_ROW(item, n);
        int query = place_query(at, a, r);
        int begin = window_begin(a, query) - k0;
        int end = window_end(a, query) - k0;
#if MASK_KIND == CLA_MASK_GENERAL
        long row = mask_at(a, at->b, place_head(at, a, r), query) + k0 * a->mask.stride_k;
#endif
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c) {
            int key = (int)GROUP_KEY(item, c);
            bool visible = key >= begin && key < end;
#if MASK_KIND == CLA_MASK_GENERAL
            visible = visible && mask[row + key * a->mask.stride_k] != 0;
#endif
            s[n][c] = HIDE_UNLESS(visible, s[n][c]);
        }
    }
}

// The largest score of each row among the keys of this item.
INLINE void put_maxima(__local float *part, float s[GROUP_ROWS][GROUP_KEYS], uint item)
{
#pragma unroll
    for (uint a = 0; a < GROUP_ROWS; ++a) {
        float m = -INFINITY;
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c)
            m = max_of(s[a][c], m);
        part[GROUP_PART_PUT(item, a)] = m;
    }
}

// The larger of m and the parts of all items that share a row.
INLINE float join_maxima(__local const float *part, float m, uint a, uint item)
{
#if ITEMS_K % 4 == 0
    __local const float4 *quads = (__local const float4 *)part;
#pragma unroll
    for (uint t = 0; t < ITEMS_K; t += 4) {
        float4 x = quads[GROUP_PART_AT(item, a, t) / 4];
        m = max_of(x.x, max_of(x.y, max_of(x.z, max_of(x.w, m))));
    }
#else
    for (uint t = 0; t < ITEMS_K; ++t)
        m = max_of(part[GROUP_PART_AT(item, a, t)], m);
#endif
    return m;
}

// sum = sum * f + x, the error of the addition carried along under LONG_ROWS.
INLINE void add_to(float *sum, float *excess, float f, float x)
{
#if LONG_ROWS
    float y = MULADD(-*excess, f, x);
    float next = MULADD(*sum, f, y);
    *excess = MULADD(-*sum, f, next) - y;
    *sum = next;
#else
    *sum = MULADD(*sum, f, x);
#endif
}

INLINE void add_to4(float4 *sum, float4 *excess, float f, float4 x)
{
#if LONG_ROWS
    float4 y = MULADD(-*excess, (float4)(f), x);
    float4 next = MULADD(*sum, (float4)(f), y);
    *excess = MULADD(-*sum, (float4)(f), next) - y;
    *sum = next;
#else
    *sum = MULADD(*sum, (float4)(f), x);
#endif
}

#if LONG_ROWS
#define EXCESS(x) (&(x))
#else
#define EXCESS(x) 0
#endif

// Scores to weights in p_tile; m and l take the tile in. f is the factor of the sums before it.
// `hidden` is written for a hidden pair: 0, or in a careful pass -1, which no weight is; the others
// are multiplied by `factor`.
INLINE void absorb(__local float4 *p_tile, __local const float *part, struct sums *sum, float *f,
                   float s[GROUP_ROWS][GROUP_KEYS], float hidden, float factor, uint item)
{
#pragma unroll
    for (uint a = 0; a < GROUP_ROWS; ++a) {
        float m = join_maxima(part, sum->m[a], a, item);
        float shift = shift_of(m);
        float l = 0.0f;
        float p[GROUP_KEYS];
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c) {
            p[c] = weight(s[a][c], shift);
            l += p[c];
            p[c] = s[a][c] == -INFINITY ? hidden : p[c] * factor;
        }
#pragma unroll
        for (uint n = 0; n < GROUP_KEYS / 4; ++n)
            p_tile[GROUP_P_PUT(item, a, n)] =
                (float4)(p[4 * n], p[4 * n + 1], p[4 * n + 2], p[4 * n + 3]);
        f[a] = weight(sum->m[a], shift);
        add_to(&sum->l[a], EXCESS(sum->l_excess[a]), f[a], l);
        sum->m[a] = m;
    }
}

INLINE void clear(float4 x[GROUP_ROWS][VALUES_AT_ONCE])
{
#pragma unroll
    for (uint a = 0; a < GROUP_ROWS; ++a) {
#pragma unroll
        for (uint n = 0; n < VALUES_AT_ONCE; ++n)
            x[a][n] = (float4)(0.0f);
    }
}

// o = o * f + x for the quads from `to` on, of which there are `count` at most.
INLINE void add_values(struct sums *sum, uint to, const float *f,
                       float4 x[GROUP_ROWS][VALUES_AT_ONCE], uint count)
{
#pragma unroll
    for (uint a = 0; a < GROUP_ROWS; ++a) {
#pragma unroll
        for (uint n = 0; n < VALUES_AT_ONCE; ++n) {
            if (n < count)
                add_to4(&sum->o[a][to + n], EXCESS(sum->o_excess[a][to + n]), f[a], x[a][n]);
        }
    }
}

// o = o * f + P * V for the chunk in local memory.
INLINE void accumulate(struct sums *sum, int chunk, const float *f, __local const float4 *p_tile,
                       __local const float4 *kv_tile, uint item)
{
#pragma unroll
    for (uint first = 0; first < GROUP_VALUES; first += VALUES_AT_ONCE) {
        float4 x[GROUP_ROWS][VALUES_AT_ONCE];
        clear(x);
        for (uint j = 0; j < TILE_K / 4; ++j) {
            float4 p[GROUP_ROWS];
#pragma unroll
            for (uint a = 0; a < GROUP_ROWS; ++a)
                p[a] = p_tile[GROUP_P_AT(item, a, j)];
#pragma unroll
            for (uint n = 0; n < VALUES_AT_ONCE; ++n) {
                float4 v0 = kv_tile[GROUP_V_AT(item, 4 * j, first + n)];
                float4 v1 = kv_tile[GROUP_V_AT(item, 4 * j + 1, first + n)];
                float4 v2 = kv_tile[GROUP_V_AT(item, 4 * j + 2, first + n)];
                float4 v3 = kv_tile[GROUP_V_AT(item, 4 * j + 3, first + n)];
#pragma unroll
                for (uint a = 0; a < GROUP_ROWS; ++a) {
                    x[a][n] = MULADD((float4)(p[a].x), v0, x[a][n]);
                    x[a][n] = MULADD((float4)(p[a].y), v1, x[a][n]);
                    x[a][n] = MULADD((float4)(p[a].z), v2, x[a][n]);
                    x[a][n] = MULADD((float4)(p[a].w), v3, x[a][n]);
                }
            }
        }
        add_values(sum, chunk * GROUP_VALUES + first, f, x, GROUP_VALUES - first);
    }
}

// The same in a careful pass, which leaves hidden pairs out: their weight is -1. Rare, so it is
// written for size.
INLINE void accumulate_careful(struct sums *sum, int chunk, const float *f,
                               __local const float4 *p_tile, __local const float4 *kv_tile,
                               uint item)
{
    __local const float *p_row = (__local const float *)p_tile;
#pragma unroll
    for (uint first = 0; first < GROUP_VALUES; first += VALUES_AT_ONCE) {
        float4 x[GROUP_ROWS][VALUES_AT_ONCE];
        clear(x);
        for (uint j = 0; j < TILE_K; ++j) {
#pragma unroll
            for (uint n = 0; n < VALUES_AT_ONCE; ++n) {
                float4 v = kv_tile[GROUP_V_AT(item, j, first + n)];
#pragma unroll
                for (uint a = 0; a < GROUP_ROWS; ++a) {
                    float p = p_row[4 * GROUP_P_AT(item, a, 0) + j];
                    float4 next = MULADD((float4)(p), v, x[a][n]);
                    x[a][n] = p < 0.0f ? x[a][n] : next;
                }
            }
        }
        add_values(sum, chunk * GROUP_VALUES + first, f, x, GROUP_VALUES - first);
    }
}

// Whether all of this item's O is finite.
INLINE bool all_finite(const struct sums *sum)
{
    int infinite = 0;
#pragma unroll
    for (uint a = 0; a < GROUP_ROWS; ++a) {
#if CHUNKS_V <= UNROLLED_CHUNKS
#pragma unroll
#endif
        for (uint n = 0; n < CHUNKS_V * GROUP_VALUES; ++n)
            infinite |= any((as_int4(sum->o[a][n]) & 0x7f800000) == 0x7f800000);
    }
    return !infinite;
}

INLINE void store_o4(__global o_elem *mem, long at, int d, float4 x, bool aligned)
{
    if (DIM_V % 4 == 0 && aligned) {
        STORE_O4(mem, at + d, x);
        return;
    }
    STORE_O(mem, at + d, x.x);
    if (d + 1 < DIM_V)
        STORE_O(mem, at + d + 1, x.y);
    if (d + 2 < DIM_V)
        STORE_O(mem, at + d + 2, x.z);
    if (d + 3 < DIM_V)
        STORE_O(mem, at + d + 3, x.w);
}

INLINE void store_row(const struct sums *sum, const struct cla_fwd_args *a, const struct place *at,
                      __global o_elem *o, __global float *lse, uint n, float l, float unscale,
                      uint item)
{
    uint r = GROUP_ROW(item, n);
    int head = place_head(at, a, r);
    int query = place_query(at, a, r);
    long row = tensor_at(&a->o, at->b, head, query);
#if CHUNKS_V <= UNROLLED_CHUNKS
#pragma unroll
#endif
    for (int chunk = 0; chunk < CHUNKS_V; ++chunk) {
#pragma unroll
        for (uint c = 0; c < GROUP_VALUES; ++c) {
            uint quad = GROUP_VALUE_QUAD(item, c);
            int d = chunk * CHUNK_D + 4 * (int)quad;
            float4 x = sum->o[n][chunk * GROUP_VALUES + c];
            x = l == 0.0f ? (float4)(0.0f) : x / l * unscale;
            if (quad < GROUP_CHUNK_QUADS && d < DIM_V)
                store_o4(o, row, d, x, is_aligned(a));
        }
    }
    if ((a->flags & CLA_FWD_HAS_LSE) && item % ITEMS_K == 0)
        lse[lse_at(a, at->b, head, query)] = row_lse(sum->m[n], l);
}

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1)))
void fused_group(const struct cla_fwd_args a, __global const q_elem *q, __global const kv_elem *k,
                 __global const kv_elem *v, __global o_elem *o, __global float *lse,
                 __global const uchar *mask)
{
    __local float4 q_tile[TILE_Q * GROUP_PITCH_QUADS];
    __local float4 kv_tile[TILE_K * GROUP_PITCH_QUADS];
    __local float4 p_tile[TILE_Q * GROUP_PITCH_P_QUADS];
    __local float4 part4[CLA_QUADS(TILE_Q * (TILE_K / 4))];
    volatile __local int flag[4];
    __local float *part = (__local float *)part4;

    const uint item = (uint)get_local_id(0);
    struct place at;
    find_place(&at, &a);
    const int query_last = place_query(&at, &a, TILE_Q - 1);
    const int begin = window_begin(&a, at.query);
    const int end = window_end(&a, query_last);
    // Keys that all rows see.
    const int full_begin = window_begin(&a, query_last);
    const int full_end = window_end(&a, at.query);
    const int tiles = end > begin ? (end - begin - 1) / TILE_K + 1 : 0;
    const long k_base = tensor_at(&a.k, at.b, at.g, 0);
    const long v_base = tensor_at(&a.v, at.b, at.g, 0);
    struct sums sum;

    if (item == 0)
        flag[0] = 0;
#if CHUNKS_QK == 1
    load_queries(q_tile, &a, &at, q, 0, item);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    int passes = 1;
    for (int pass = 0; pass < passes; ++pass) {
        const bool careful = pass > 0;
#pragma unroll
        for (uint n = 0; n < GROUP_ROWS; ++n) {
            sum.m[n] = -INFINITY;
            sum.l[n] = 0.0f;
#if LONG_ROWS
            sum.l_excess[n] = 0.0f;
#endif
#if CHUNKS_V <= UNROLLED_CHUNKS
#pragma unroll
#endif
            for (uint c = 0; c < CHUNKS_V * GROUP_VALUES; ++c) {
                sum.o[n][c] = (float4)(0.0f);
#if LONG_ROWS
                sum.o_excess[n][c] = (float4)(0.0f);
#endif
            }
        }

        for (int tile = 0; tile < tiles; ++tile) {
            const int k0 = begin + tile * TILE_K;
            float s[GROUP_ROWS][GROUP_KEYS];
            float f[GROUP_ROWS];
#pragma unroll
            for (uint n = 0; n < GROUP_ROWS; ++n) {
#pragma unroll
                for (uint c = 0; c < GROUP_KEYS; ++c)
                    s[n][c] = 0.0f;
            }
            for (int d = 0; d < CHUNKS_QK * CHUNK_D; d += CHUNK_D) {
#if CHUNKS_QK > 1
                load_queries(q_tile, &a, &at, q, d, item);
#endif
                load_keys(kv_tile, k, k_base, a.k.stride_s, k0, end, d, DIM_QK, true,
                          is_aligned(&a), item);
                barrier(CLK_LOCAL_MEM_FENCE);
                score(s, q_tile, kv_tile, item);
#if CHUNKS_QK > 1
                barrier(CLK_LOCAL_MEM_FENCE);
#endif
            }
#pragma unroll
            for (uint n = 0; n < GROUP_ROWS * GROUP_KEYS; ++n)
                s[n / GROUP_KEYS][n % GROUP_KEYS] =
                    SCALE_SCORE(&a, s[n / GROUP_KEYS][n % GROUP_KEYS]);
            if (MASK_KIND == CLA_MASK_GENERAL || k0 < full_begin || full_end - k0 < TILE_K)
                hide(s, &a, &at, mask, k0, item);
            put_maxima(part, s, item);
            barrier(CLK_LOCAL_MEM_FENCE);
            absorb(p_tile, part, &sum, f, s, careful ? -1.0f : 0.0f,
                   careful ? careful_scale(a.len_kv) : 1.0f, item);
#if CHUNKS_V > 1 && CHUNKS_V <= UNROLLED_CHUNKS
#pragma unroll
#endif
            for (int chunk = 0; chunk < CHUNKS_V; ++chunk) {
                load_keys(kv_tile, v, v_base, a.v.stride_s, k0, end, chunk * CHUNK_D, DIM_V, false,
                          is_aligned(&a), item);
                barrier(CLK_LOCAL_MEM_FENCE);
                if (careful)
                    accumulate_careful(&sum, chunk, f, p_tile, kv_tile, item);
                else
                    accumulate(&sum, chunk, f, p_tile, kv_tile, item);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
        }

        if (!all_finite(&sum))
            atomic_or(&flag[0], 1);
#pragma unroll
        for (uint n = 0; n < GROUP_ROWS; ++n)
            part[GROUP_PART_PUT(item, n)] = sum.l[n];
        barrier(CLK_LOCAL_MEM_FENCE);
        passes = flag[0] ? 2 : 1;
    }

#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        float l = 0.0f;
        for (uint t = 0; t < ITEMS_K; ++t)
            l += part[GROUP_PART_AT(item, n, t)];
        if (GROUP_ROW(item, n) < at.rows)
            store_row(&sum, &a, &at, o, lse, n, l,
                      passes > 1 ? careful_unscale(a.len_kv) : 1.0f, item);
    }
}
