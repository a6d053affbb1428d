// SPDX-License-Identifier: Apache-2.0
// What unfused attention does beside its two matrix products and the softmax of rows, which are
// CLBlast's and softmax.cl's:
//
//   S = Q K^T            CLBlast
//   x = scale * S where visible, -INFINITY where hidden     unfused_scores
//       with soft-cap, ALiBi and bias; a sink is one score more at the end of a row
//   P = softmax of the rows of x                            softmax.cl
//   O = P V0             CLBlast; V0 is V, but rows with an element that is not finite are 0; long
//                        rows in parts, which unfused_finish sums up
//   O += P[i,j] * V[j] for the visible j of such rows       unfused_finish
//
//   unfused_copy    rows of Q, K or V into the workspace, as floats, where they follow each other
//                   at one distance; of V with rows that are not finite as 0, and marked
//                   item: a row of (batch, head, position)
//   unfused_scores  group: a row of (batch, head, query); items: its keys in turn
//   unfused_finish  item: a channel of a row of O; where no row of V was marked and CLBlast has
//                   written O itself, there is nothing to do, but to tell rows that see nothing
//                   from other rows of NaN after naive softmax
//
// Rows are (batch, head, query) in this order, so that the heads of a group are one matrix of
// group * len_q rows.
//
//   local memory: none
//   slots: of unfused_copy as it says; of the others CLA_SLOT_*, of which those that a call does
//   not need are NULL, and then CLA_UNFUSED_SLOT
//   literals: DIM_QK, DIM_V, MASK_KIND, DTYPE_*, ITEMS_K = items of a group
//
// Numerics: scores as in score.clh, but scaled after the product always. The added pairs are summed
// in the order of the keys, so the same input gives the same bits.

#ifndef DIM_QK
#error "unfused.cl: DIM_QK"
#endif
#ifndef DIM_V
#error "unfused.cl: DIM_V"
#endif
#ifndef ITEMS_K
#error "unfused.cl: ITEMS_K"
#endif

#define ROW_LANES 1
#define MULADD mad

#include "abi.h"
#include "address.clh"
#include "dtype.clh"
#include "mask.clh"
#include "online.clh"
#include "score.clh"
#include "sequence.clh"

#define FROM_BF16_16(x) as_float16(convert_uint16(x) << 16)
#if DTYPE_Q == CLA_DTYPE_F32
#define LOAD_Q16(p, at) vload16(0, (p) + (at))
#elif DTYPE_Q == CLA_DTYPE_F16
#define LOAD_Q16(p, at) vload_half16(0, (p) + (at))
#else
#define LOAD_Q16(p, at) FROM_BF16_16(vload16(0, (p) + (at)))
#endif
#if DTYPE_KV == CLA_DTYPE_F32
#define LOAD_KV16(p, at) vload16(0, (p) + (at))
#elif DTYPE_KV == CLA_DTYPE_F16
#define LOAD_KV16(p, at) vload_half16(0, (p) + (at))
#else
#define LOAD_KV16(p, at) FROM_BF16_16(vload16(0, (p) + (at)))
#endif

static inline float load_elem(__global const uchar *x, long at, int dtype)
{
    if (dtype == CLA_DTYPE_F16)
        return vload_half(at, (__global const half *)x);
    if (dtype == CLA_DTYPE_BF16)
        return FROM_BF16(((__global const ushort *)x)[at]);
    return ((__global const float *)x)[at];
}

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1))) FEW_LANES
void unfused_copy(const struct cla_unfused_copy c, __global const uchar *x,
                  __global float *workspace)
{
    const long row = (long)get_global_id(0);
    if (row >= c.rows)
        return;
    const long matrix = row / c.len;
    const int s = (int)(row % c.len);
    const int b = (int)(matrix / c.heads), h = (int)(matrix % c.heads);
    const long from = tensor_at(&c.from, b, h, s);
    __global float *to = workspace + c.to + row * c.ld;
    if (!c.mark) {
        for (int d = 0; d < c.dim; ++d)
            to[d] = load_elem(x, from + d, c.dtype);
        return;
    }
    // By the bits, since one driver takes 0 * NaN for 0.
    bool finite = true;
    for (int d = 0; d < c.dim; ++d)
        finite = finite &&
                 (as_uint(load_elem(x, from + d, c.dtype)) & 0x7f800000) != 0x7f800000;
    for (int d = 0; d < c.dim; ++d)
        to[d] = finite ? load_elem(x, from + d, c.dtype) : 0.0f;
    __global int *marks = (__global int *)workspace;
    marks[c.marks + row] = !finite;
    if (!finite)
        atomic_or(marks + c.any + matrix, 1);
}

// A row of the scores, of the sequence that `a` is narrowed to.
struct score_row {
    int b, h, i;
    int begin, end; // keys that the window shows
    long mask;      // of key 0
    long bias;
};

static inline void find_row(struct score_row *r, struct cla_fwd_args *a, const struct fwd_mem *mem,
                            long row, bool speaks)
{
    const long matrix = row / a->max_len_q;
    r->i = (int)(row % a->max_len_q);
    r->b = (int)(matrix / a->heads_q);
    r->h = (int)(matrix % a->heads_q);
    enter_sequence(a, mem, r->b, speaks && row % ((long)a->heads_q * a->max_len_q) == 0);
    r->begin = window_begin(a, r->i);
    r->end = window_end(a, r->i);
    r->mask = mask_at(a, r->b, r->h, r->i);
    r->bias = bias_at(a, r->b, r->h, r->i);
}

// The score of key j from the scaled dot product x, -INFINITY where it is hidden.
static inline float finish_score(const struct cla_fwd_args *a, const struct fwd_mem *mem,
                                 const struct score_row *r, int j, float x)
{
    if (j < r->begin || j >= r->end)
        return -INFINITY;
#if MASK_KIND == CLA_MASK_GENERAL
    if ((a->flags & CLA_FWD_HAS_MASK) && mem->mask[r->mask + j * a->mask.stride_k] == 0)
        return -INFINITY;
    if (a->softcap > 0.0f)
        x = cap_score(x, a->softcap, cap_inverse(a->softcap));
    if (a->flags & CLA_FWD_HAS_ALIBI)
        x = alibi_score(x, mem->alibi[a->alibi_offset + r->b * a->alibi_stride_b + r->h],
                        (float)(r->i + a->off - j));
    if (a->flags & CLA_FWD_HAS_BIAS)
        x = bias_score(x, load_bias(a, mem->bias, r->bias + j * a->bias.stride_k));
#endif
    return x;
}

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1))) FEW_LANES
void unfused_scores(FWD_PARAMS, const struct cla_unfused_args u)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const long row = (long)get_group_id(0);
    struct score_row r;
    find_row(&r, &a, &mem, row, false);
    __global float *x = workspace + u.scores + row * u.ld_scores;
    for (int j = (int)get_local_id(0); j < args.len_kv; j += ITEMS_K)
        x[j] = finish_score(&a, &mem, &r, j, a.scale * x[j]);
    if (get_local_id(0) == 0 && (a.flags & CLA_FWD_HAS_SINKS))
        x[args.len_kv] = mem.sinks[a.sinks_offset + r.h];
}

// A product that CLBlast has made and softmax has overwritten; 16 channels at a time, since one
// driver counts how often loops go round.
static inline float product(__global const q_elem *q, __global const kv_elem *k)
{
    float16 many = (float16)(0.0f);
    int d = 0;
    for (; d + 16 <= DIM_QK; d += 16)
        many += LOAD_Q16(q, d) * LOAD_KV16(k, d);
    const float8 half_of = many.lo + many.hi;
    const float4 quarter = half_of.lo + half_of.hi;
    float sum = (quarter.x + quarter.y) + (quarter.z + quarter.w);
    for (; d < DIM_QK; ++d)
        sum += LOAD_Q(q, d) * LOAD_KV(k, d);
    return sum;
}

// Adds the visible keys whose V is marked to channel d of O, of which `sum` is what CLBlast made;
// `doubtful` rows are 0 where they see no key.
static inline float add_marked(const struct cla_fwd_args *a, const struct fwd_mem *mem,
                               const struct score_row *r, __global const q_elem *q,
                               __global const kv_elem *k, __global const kv_elem *v,
                               __global const float *p, __global const int *marks, bool any,
                               bool doubtful, int d, float sum)
{
    const int g = r->h / a->group;
    bool empty = true;
    q += tensor_at(&a->q, r->b, r->h, r->i);
    for (int j = r->begin; j < r->end && (any || empty); ++j) {
        if (!((any && marks[j]) || (doubtful && empty)) ||
            // The score decides, since one of -INFINITY hides the key as the mask does.
            finish_score(a, mem, r, j, a->scale * product(q, k + tensor_at(&a->k, r->b, g, j))) ==
                -INFINITY)
            continue;
        empty = false;
        if (any && marks[j])
            sum += p[j] * LOAD_KV(v, tensor_at(&a->v, r->b, g, j) + d);
    }
    return doubtful && empty ? 0.0f : sum;
}

// Whether O is NaN for the sink alone.
static inline bool is_lost(float sink, bool naive)
{
    return isnan(sink) || sink == INFINITY || (naive && exp(sink) == INFINITY);
}

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1))) FEW_LANES
void unfused_finish(FWD_PARAMS, const struct cla_unfused_args u)
{
    const long item = (long)get_global_id(0);
    const long row = item / DIM_V;
    const int d = (int)(item % DIM_V);
    if (row >= u.rows)
        return;
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    struct score_row r;
    find_row(&r, &a, &mem, row, d == 0);
    const float sink =
        a.flags & CLA_FWD_HAS_SINKS ? mem.sinks[a.sinks_offset + r.h] : -INFINITY;
    const bool lost = is_lost(sink, u.naive != 0);
    const long o_at = tensor_at(&a.o, r.b, r.h, r.i) + d;
    __global float *lse =
        d == 0 && (a.flags & CLA_FWD_HAS_LSE) ? lse_mem + lse_at(&a, r.b, r.h, r.i) : 0;
    if (args.len_kv == 0) {
        STORE_O(o_mem, o_at, lost ? NAN : 0.0f);
        if (lse)
            *lse = lost ? NAN : sink;
        return;
    }
    // Naive softmax that overflowed: O is NaN, and so is its LSE.
    if (u.naive && lse && *lse == INFINITY)
        *lse = NAN;
    const long of_keys = (long)r.b * a.heads_kv + r.h / a.group;
    __global const int *marks = (__global const int *)workspace;
    const bool any = marks[u.any + of_keys] != 0;
    __global const float *p = workspace + u.scores + row * u.ld_scores;
    const bool doubtful = u.naive && isnan(p[0]);
    if (!any && !doubtful && !lost && u.parts_o == 0)
        return;
    float sum = 0.0f, some = 0.0f;
#if DTYPE_O == CLA_DTYPE_F32
    if (u.parts_o == 0)
        sum = LOAD_O(o_mem, o_at);
#endif
    for (int part = 0; part < u.parts_o; ++part) { // 16 at a time, so that no chain is long
        some += workspace[u.o + (part * u.rows + row) * u.ld_o + d];
        if (part % 16 == 15 || part == u.parts_o - 1) {
            sum += some;
            some = 0.0f;
        }
    }
    if (any || doubtful)
        sum = add_marked(&a, &mem, &r, q_mem, k_mem, v_mem, p,
                         marks + u.marks + of_keys * args.len_kv, any, doubtful, d, sum);
    STORE_O(o_mem, o_at, lost ? NAN : sum);
}
