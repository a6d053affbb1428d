// SPDX-License-Identifier: Apache-2.0
// Softmax of rows: Y = e^(x - m) / d, x = scale * X, d = sum of e^(x - m); LSE = m + ln d.
//
//   naive   m = 0; pass 1 stores e^x in Y and sums it, pass 2 divides
//   safe    pass 1 m = max x, pass 2 d, pass 3 Y
//   online  pass 1 m and d together (arXiv 1805.02867, Algorithm 3, but rescaled only where the
//           maximum grows by more than 8), pass 2 Y
//
// A work-group of ITEMS items owns a part of a row. Vectors of W entries go to the items in turn,
// so that neighbouring items read neighbouring memory; on a CPU there is one item, whose vectors
// follow each other.
//
//   softmax_row    all passes, where a row is one part
//   softmax_first  pass 1 of a part: naive sum, safe maximum, online both, into the workspace
//   softmax_sum    safe: pass 2 of a part, with the maximum of all parts
//   softmax_write  last pass of a part, with m and d of all parts
//
//   group g: row g / parts, part g % parts; global size: rows * parts * ITEMS
//   local memory: 8 * ITEMS bytes, none for ITEMS = 1
//   slots: args, X, Y, LSE (only with CLA_FWD_HAS_LSE), workspace (not in softmax_row)
//
// Literals: DTYPE_X, DTYPE_Y, SOFTMAX_ALGO, W = 1, 4, 8 or 16, ITEMS = a power of 2. HAS_STREAM:
// __builtin_nontemporal_store() compiles; then float rows are written past the caches where the
// call says so (CLA_SOFTMAX_STREAM): Y is not read before it is written, and X stays in the cache.
// Numerics: as online.clh. A lane sums LEVEL vectors, then adds that to a second sum, so that a
// lane of 10^6 entries adds 10^3 terms twice, not 10^6 once.

#ifndef DTYPE_X
#error "softmax.cl: DTYPE_X"
#endif
#ifndef DTYPE_Y
#error "softmax.cl: DTYPE_Y"
#endif
#ifndef SOFTMAX_ALGO
#error "softmax.cl: SOFTMAX_ALGO"
#endif
#ifndef W
#error "softmax.cl: W"
#endif
#ifndef ITEMS
#error "softmax.cl: ITEMS"
#endif

#define ROW_LANES W
#if W >= 4 && ITEMS == 1
#define MULADD fma
#else
#define MULADD mad
#endif
// Q, K, V and O are not there; their types must be known.
#define DTYPE_Q CLA_DTYPE_F32
#define DTYPE_KV CLA_DTYPE_F32
#define DTYPE_O CLA_DTYPE_F32

#include "abi.h"
#include "dtype.clh"
#include "online.clh"

#define INLINE static inline __attribute__((always_inline))
#define AHEAD 8   // vectors in registers at a time
#define LEVEL 512 // vectors in a sum of the first level, a multiple of AHEAD
// How far entries may lie above m: e^8 times as many terms are no matter for a float.
#define HEADROOM 8.0f

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

// ---- storage -----------------------------------------------------------------------------------

#if DTYPE_X == CLA_DTYPE_F32
typedef float x_elem;
#define LOAD_ONE(p) (*(p))
#if W > 1
#define LOAD_MANY(p) PASTE(vload, W)(0, p)
#endif
#elif DTYPE_X == CLA_DTYPE_F16
typedef half x_elem;
#define LOAD_ONE(p) vload_half(0, p)
#if W > 1
#define LOAD_MANY(p) PASTE(vload_half, W)(0, p)
#endif
#else
typedef ushort x_elem;
#define LOAD_ONE(p) as_float((uint)*(p) << 16)
#if W > 1
#define LOAD_MANY(p) AS_ROWF(PASTE(convert_int, W)(PASTE(vload, W)(0, p)) << 16)
#endif
#endif

#if DTYPE_Y == CLA_DTYPE_F32
typedef float y_elem;
#define STORE_ONE(x, p) (*(p) = (x))
#define LOAD_Y_ONE(p) (*(p))
#if W > 1
#define STORE_MANY(x, p) PASTE(vstore, W)(x, 0, p)
#define LOAD_Y_MANY(p) PASTE(vload, W)(0, p)
#endif
#elif DTYPE_Y == CLA_DTYPE_F16
typedef half y_elem;
#define STORE_ONE(x, p) vstore_half_rte(x, 0, p)
#define LOAD_Y_ONE(p) vload_half(0, p)
#if W > 1
#define STORE_MANY(x, p) PASTE(PASTE(vstore_half, W), _rte)(x, 0, p)
#define LOAD_Y_MANY(p) PASTE(vload_half, W)(0, p)
#endif
#else
typedef ushort y_elem;
#define LOAD_Y_ONE(p) as_float((uint)*(p) << 16)

// Round to nearest, ties to even; a NaN stays one.
INLINE ushort to_bf16(float x)
{
    uint u = as_uint(x);
    return isnan(x) ? (ushort)((u >> 16) | 0x40) : (ushort)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
#define STORE_ONE(x, p) (*(p) = to_bf16(x))
#if W > 1
#define LOAD_Y_MANY(p) AS_ROWF(PASTE(convert_int, W)(PASTE(vload, W)(0, p)) << 16)

INLINE void store_bf16(ROWF x, __global ushort *p)
{
    ROWI u = AS_ROWI(x);
    ROWI rounded = ((u + 0x7fff + ((u >> 16) & 1)) >> 16) & 0xffff;
    ROWI quiet = ((u >> 16) & 0xffff) | 0x40;
    ROWI bits = x != x ? quiet : rounded;
    PASTE(vstore, W)(PASTE(convert_ushort, W)(bits), 0, p);
}
#define STORE_MANY(x, p) store_bf16(x, p)
#endif
#endif

// Naive writes Y twice and reads it in between, for which the cache is right.
#if defined(HAS_STREAM) && ITEMS == 1 && W > 1 && DTYPE_Y == CLA_DTYPE_F32 &&                      \
    SOFTMAX_ALGO != CLA_SOFTMAX_NAIVE
#define STREAM 1
#else
#define STREAM 0
#endif

#if W == 1
#define LOAD_MANY(p) LOAD_ONE(p)
#define LOAD_Y_MANY(p) LOAD_Y_ONE(p)
#define STORE_MANY(x, p) STORE_ONE(x, p)
#endif

// ---- a part of a row ---------------------------------------------------------------------------

// Entries [0, len) from x and y on. The first `whole` vectors are full; the entries behind them go
// to item 0 one by one.
struct part {
    __global const x_elem *x;
    __global y_elem *y;
    long whole;
    int rest;
    float scale;
    uint item;
};

// m and d of what an item has seen, lane by lane; d_high holds sums of the second level, which
// stand under the same m. Of the online way m is not the maximum itself but at most HEADROOM below
// it, see absorb().
struct stats {
    ROWF m;
    ROWF d;
    ROWF d_high;
};

INLINE struct part find_part(const struct cla_softmax_args *a, __global const x_elem *x,
                             __global y_elem *y, long row, int part)
{
    struct part p;
    const long begin = part * a->part_len;
    const long len = min(a->part_len, a->len - begin);
    p.x = x + a->x_offset + row * a->stride_x + begin;
    p.y = y + a->y_offset + row * a->stride_y + begin;
    p.whole = len / W;
    p.rest = (int)(len % W);
    p.scale = a->scale;
    p.item = (uint)get_local_id(0);
    return p;
}

// One entry in lane 0, nothing in the others.
INLINE ROWF only(float x)
{
#if W == 1
    return x;
#else
    ROWF v = (ROWF)(-INFINITY);
    v.s0 = x;
    return v;
#endif
}

// 1 in lane 0, 0 in the others.
INLINE ROWF first_lane(float x)
{
#if W == 1
    return x;
#else
    ROWF v = (ROWF)(0.0f);
    v.s0 = x;
    return v;
#endif
}

INLINE void level_up(struct stats *s)
{
    s->d_high += s->d;
    s->d = (ROWF)(0.0f);
}

// The online step for `n` vectors (a constant): at most one rescaling, and none for a maximum that
// grows by less than HEADROOM. In a row that rises slowly each rescaling would round the sums by
// the same part of them, and 30000 of these add up to 3e-4.
INLINE void absorb(struct stats *s, const ROWF *x, const int n)
{
    ROWF m = s->m;
#pragma unroll
    for (int i = 0; i < n; ++i)
        m = max_of(x[i], m);
    m = m > s->m + HEADROOM ? m : s->m;
    const ROWF shift = shift_of(m);
    const ROWF f = weight(s->m, shift);
    ROWF sum = (ROWF)(0.0f);
#pragma unroll
    for (int i = 0; i < n; ++i)
        sum += weight(x[i], shift);
    s->d = MULADD(s->d, f, sum);
    s->d_high *= f;
    s->m = m;
}

// What pass 1 does with `n` vectors whose entries lie at `at`; `one` = a single entry in lane 0.
INLINE void first_step(struct stats *s, const struct part *p, long at, const int n, const bool one)
{
#if SOFTMAX_ALGO == CLA_SOFTMAX_NAIVE
    for (int i = 0; i < n; ++i) {
        const long to = at + (long)i * ITEMS * W;
        if (one) {
            STORE_ONE(exp(LOAD_ONE(p->x + to) * p->scale), p->y + to);
            s->d += first_lane(LOAD_Y_ONE(p->y + to));
        } else {
            STORE_MANY(exp(LOAD_MANY(p->x + to) * p->scale), p->y + to);
            s->d += LOAD_Y_MANY(p->y + to); // as stored, so that the row sums to 1
        }
    }
#else
    ROWF x[AHEAD];
#pragma unroll
    for (int i = 0; i < n; ++i) {
        const long from = at + (long)i * ITEMS * W;
        x[i] = one ? only(LOAD_ONE(p->x + from) * p->scale) : LOAD_MANY(p->x + from) * p->scale;
    }
#if SOFTMAX_ALGO == CLA_SOFTMAX_SAFE
#pragma unroll
    for (int i = 0; i < n; ++i)
        s->m = max_of(x[i], s->m);
#else
    absorb(s, x, n);
#endif
#endif
}

// Walks over the part: AHEAD vectors at a time, then one, then single entries.
#define WALK(p, s, STEP)                                                                           \
    long v = (p)->item;                                                                            \
    for (int level = 0; v + (AHEAD - 1) * ITEMS < (p)->whole; v += AHEAD * ITEMS) {                \
        STEP(s, p, v *W, AHEAD, false);                                                            \
        if (++level % (LEVEL / AHEAD) == 0)                                                        \
            level_up(s);                                                                           \
    }                                                                                              \
    for (; v < (p)->whole; v += ITEMS)                                                             \
        STEP(s, p, v *W, 1, false);                                                                \
    for (int i = 0; (p)->item == 0 && i < (p)->rest; ++i)                                          \
        STEP(s, p, (p)->whole * W + i, 1, true);                                                   \
    level_up(s)

INLINE void start(struct stats *s)
{
    s->m = (ROWF)(SOFTMAX_ALGO == CLA_SOFTMAX_NAIVE ? 0.0f : -INFINITY);
    s->d = (ROWF)(0.0f);
    s->d_high = (ROWF)(0.0f);
}

INLINE void first_pass(struct stats *s, const struct part *p)
{
    start(s);
    WALK(p, s, first_step);
}

// Safe: the sum, with a maximum that is known.
INLINE void sum_step(struct stats *s, const struct part *p, long at, const int n, const bool one)
{
    const ROWF shift = shift_of(s->m);
#pragma unroll
    for (int i = 0; i < n; ++i) {
        const long from = at + (long)i * ITEMS * W;
        s->d += weight(one ? only(LOAD_ONE(p->x + from) * p->scale)
                           : LOAD_MANY(p->x + from) * p->scale, shift);
    }
}

INLINE void sum_pass(struct stats *s, const struct part *p, float m)
{
    start(s);
    s->m = (ROWF)(m);
    WALK(p, s, sum_step);
}

// ---- merging -----------------------------------------------------------------------------------

// e^(m - shift), for m = -INFINITY too.
INLINE float part_weight(float m, float shift)
{
    return m == -INFINITY ? 0.0f : exp(m - shift);
}

// (m, d) + (m2, d2). A part without entries is (-INFINITY, 0); a NaN in d stays.
INLINE void merge(float *m, float *d, float m2, float d2)
{
    const float top = m2 > *m ? m2 : *m;
    const float shift = top == -INFINITY ? 0.0f : top;
    *d = *d * part_weight(*m, shift) + d2 * part_weight(m2, shift);
    *m = top;
}

INLINE void merge_lanes(const struct stats *s, float *m, float *d)
{
    union {
        ROWF v;
        float lane[W];
    } ms, ds;
    ms.v = s->m;
    ds.v = s->d_high;
    *m = ms.lane[0];
    *d = ds.lane[0];
    for (int i = 1; i < W; ++i)
        merge(m, d, ms.lane[i], ds.lane[i]);
}

#if ITEMS > 1
#define LOCAL_PARTS __local float local_m[ITEMS]; __local float local_d[ITEMS];
#define LOCAL_ARGS , local_m, local_d
#define LOCAL_PARAMS , __local float *local_m, __local float *local_d
#else
#define LOCAL_PARTS
#define LOCAL_ARGS
#define LOCAL_PARAMS
#endif

// m and d of the whole group in every item.
INLINE void merge_group(const struct stats *s, float *m, float *d LOCAL_PARAMS)
{
    merge_lanes(s, m, d);
#if ITEMS > 1
    const uint item = (uint)get_local_id(0);
    local_m[item] = *m;
    local_d[item] = *d;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_items = ITEMS / 2; half_items > 0; half_items /= 2) {
        if (item < half_items) {
            merge(m, d, local_m[item + half_items], local_d[item + half_items]);
            local_m[item] = *m;
            local_d[item] = *d;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    *m = local_m[0];
    *d = local_d[0];
    barrier(CLK_LOCAL_MEM_FENCE); // the memory may be written again
#endif
}

// m and d of a row from all its parts, in order, so that the bits do not depend on who does it.
INLINE void merge_row(__global const float *parts, int n, float *m, float *d)
{
    *m = parts[0];
    *d = parts[1];
    for (int i = 1; i < n; ++i)
        merge(m, d, parts[2 * i], parts[2 * i + 1]);
}

// ---- the last pass -----------------------------------------------------------------------------

#if SOFTMAX_ALGO == CLA_SOFTMAX_NAIVE
INLINE void write_pass(const struct part *p, float m, float d, uint flags)
{
    for (long v = p->item; v < p->whole; v += ITEMS)
        STORE_MANY(LOAD_Y_MANY(p->y + v * W) / d, p->y + v * W);
    for (int i = 0; p->item == 0 && i < p->rest; ++i) {
        const long at = p->whole * W + i;
        STORE_ONE(LOAD_Y_ONE(p->y + at) / d, p->y + at);
    }
}
#else
// Entries [from, to), one by one.
INLINE void write_singles(const struct part *p, long from, long to, ROWF shift, float inverse)
{
    for (long at = from; at < to; ++at) {
        union {
            ROWF v;
            float lane[W];
        } y;
        y.v = weight(only(LOAD_ONE(p->x + at) * p->scale), shift) * inverse;
        STORE_ONE(y.lane[0], p->y + at);
    }
}

#if STREAM
// As write_pass(), past the caches: such a store takes a whole vector at its own alignment, which
// is not that of the row. The fence is for whoever reads Y next: these stores are in no order.
INLINE void write_past_caches(const struct part *p, ROWF shift, float inverse)
{
    const long len = p->whole * W + p->rest;
    const long head = min(len, (long)(-((ulong)p->y / sizeof(float)) % W));
    const long end = head + (len - head) / W * W;
    write_singles(p, 0, head, shift, inverse);
    for (long at = head; at < end; at += W)
        __builtin_nontemporal_store(weight(LOAD_MANY(p->x + at) * p->scale, shift) * inverse,
                                    (__global ROWF *)(p->y + at));
    write_singles(p, end, len, shift, inverse);
    mem_fence(CLK_GLOBAL_MEM_FENCE);
}
#endif

INLINE void write_pass(const struct part *p, float m, float d, uint flags)
{
    const ROWF shift = shift_of((ROWF)(m));
    const float inverse = d == 0.0f ? 0.0f : 1.0f / d; // a row of -INFINITY: all 0
#if STREAM
    if (flags & CLA_SOFTMAX_STREAM) {
        write_past_caches(p, shift, inverse);
        return;
    }
#endif
    for (long v = p->item; v < p->whole; v += ITEMS)
        STORE_MANY(weight(LOAD_MANY(p->x + v * W) * p->scale, shift) * inverse, p->y + v * W);
    if (p->item == 0)
        write_singles(p, p->whole * W, p->whole * W + p->rest, shift, inverse);
}
#endif

INLINE void write_lse(const struct cla_softmax_args *a, __global float *lse, long row, float m,
                      float d)
{
    if ((a->flags & CLA_FWD_HAS_LSE) && get_local_id(0) == 0)
        lse[a->lse_offset + row] = d == 0.0f ? -INFINITY : m + log(d);
}

// ---- kernels -----------------------------------------------------------------------------------

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax_row(const struct cla_softmax_args a, __global const x_elem *x, __global y_elem *y,
                 __global float *lse, __global float *workspace)
{
    LOCAL_PARTS
    const long row = (long)get_group_id(0);
    const struct part p = find_part(&a, x, y, row, 0);
    struct stats s;
    float m, d;
    first_pass(&s, &p);
    merge_group(&s, &m, &d LOCAL_ARGS);
#if SOFTMAX_ALGO == CLA_SOFTMAX_SAFE
    sum_pass(&s, &p, m);
    merge_group(&s, &m, &d LOCAL_ARGS);
#endif
    write_pass(&p, m, d, a.flags);
    write_lse(&a, lse, row, m, d);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax_first(const struct cla_softmax_args a, __global const x_elem *x, __global y_elem *y,
                   __global float *lse, __global float *workspace)
{
    LOCAL_PARTS
    const long group = (long)get_group_id(0);
    const struct part p = find_part(&a, x, y, group / a.parts, (int)(group % a.parts));
    struct stats s;
    float m, d;
    first_pass(&s, &p);
    merge_group(&s, &m, &d LOCAL_ARGS);
    if (get_local_id(0) == 0) {
        workspace[a.workspace_offset + 2 * group] = m;
        workspace[a.workspace_offset + 2 * group + 1] = d;
    }
}

// The maxima stay as they are: other groups of the row read them.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax_sum(const struct cla_softmax_args a, __global const x_elem *x, __global y_elem *y,
                 __global float *lse, __global float *workspace)
{
    LOCAL_PARTS
    const long group = (long)get_group_id(0);
    const long row = group / a.parts;
    const struct part p = find_part(&a, x, y, row, (int)(group % a.parts));
    __global const float *maxima = workspace + a.workspace_offset + 2 * row * a.parts;
    float m = -INFINITY, d;
    for (int i = 0; i < a.parts; ++i)
        m = maxima[2 * i] > m ? maxima[2 * i] : m; // max() leaves infinities open
    struct stats s;
    sum_pass(&s, &p, m);
    merge_group(&s, &m, &d LOCAL_ARGS);
    if (get_local_id(0) == 0)
        workspace[a.workspace_offset + 2 * group + 1] = d;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void softmax_write(const struct cla_softmax_args a, __global const x_elem *x, __global y_elem *y,
                   __global float *lse, __global float *workspace)
{
    const long group = (long)get_group_id(0);
    const long row = group / a.parts;
    const int part = (int)(group % a.parts);
    const struct part p = find_part(&a, x, y, row, part);
    __global const float *parts = workspace + a.workspace_offset + 2 * row * a.parts;
    float m = parts[0], d = parts[1];
#if SOFTMAX_ALGO == CLA_SOFTMAX_ONLINE
    merge_row(parts, a.parts, &m, &d);
#else
    // The sums of all parts stand under the same maximum.
    for (int i = 1; i < a.parts; ++i) {
        m = parts[2 * i] > m ? parts[2 * i] : m;
        d += parts[2 * i + 1];
    }
#endif
    write_pass(&p, m, d, a.flags);
    if (part == 0)
        write_lse(&a, lse, row, m, d);
}
