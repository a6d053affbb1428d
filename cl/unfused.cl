// SPDX-License-Identifier: Apache-2.0
// What unfused attention does beside its two matrix products and the softmax of rows, which are
// CLBlast's and softmax.cl's:
//
//   S = Q K^T            CLBlast
//   x = scale * S where visible, -INFINITY where hidden     unfused_scores
//   P = softmax of the rows of x                            softmax.cl
//   O = P V0             CLBlast; V0 is V, but rows with an element that is not finite are 0; long
//                        rows in parts, which unfused_finish sums up
//   O += P[i,j] * V[j] for the visible j of such rows       unfused_finish
//
//   unfused_copy    rows of Q, K or V into the workspace, where they follow each other at one
//                   distance; of V with rows that are not finite as 0, and marked
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
//   slots: args, then as in the kernels
//   literals: DIM_QK, DIM_V, MASK_KIND, DTYPE_* (f32), ITEMS_K = items of a group
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

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1)))
void unfused_copy(const struct cla_unfused_copy c, __global const float *x,
                  __global float *workspace)
{
    const long row = (long)get_global_id(0);
    if (row >= c.rows)
        return;
    const long matrix = row / c.len;
    const int s = (int)(row % c.len);
    const int b = (int)(matrix / c.heads), h = (int)(matrix % c.heads);
    x += tensor_at(&c.from, b, h, s);
    __global float *to = workspace + c.to + row * c.ld;
    if (!c.mark) {
        for (int d = 0; d < c.dim; ++d)
            to[d] = x[d];
        return;
    }
    // By the bits, since one driver takes 0 * NaN for 0.
    bool finite = true;
    for (int d = 0; d < c.dim; ++d)
        finite = finite && (as_uint(x[d]) & 0x7f800000) != 0x7f800000;
    for (int d = 0; d < c.dim; ++d)
        to[d] = finite ? x[d] : 0.0f;
    __global int *marks = (__global int *)workspace;
    marks[c.marks + row] = !finite;
    if (!finite)
        atomic_or(marks + c.any + matrix, 1);
}

// Whether window and mask show key j to query i.
static inline bool visible(const struct cla_fwd_args *a, __global const uchar *mask, long mask_row,
                           int begin, int end, int j)
{
    bool seen = j >= begin && j < end;
#if MASK_KIND == CLA_MASK_GENERAL
    if (seen)
        seen = mask[mask_row + j * a->mask.stride_k] != 0;
#endif
    return seen;
}

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1)))
void unfused_scores(const struct cla_fwd_args a, const struct cla_unfused_args u,
                    __global const uchar *mask, __global float *workspace)
{
    const long row = (long)get_group_id(0);
    const int i = (int)(row % a.len_q);
    const long matrix = row / a.len_q;
    const int b = (int)(matrix / a.heads_q), h = (int)(matrix % a.heads_q);
    const int begin = window_begin(&a, i), end = window_end(&a, i);
    const long mask_row = mask_at(&a, b, h, i);
    __global float *x = workspace + u.scores + row * u.ld_scores;
    for (int j = (int)get_local_id(0); j < a.len_kv; j += ITEMS_K)
        x[j] = visible(&a, mask, mask_row, begin, end, j) ? a.scale * x[j] : -INFINITY;
}

// A product that CLBlast has made and softmax has overwritten; 16 channels at a time, since one
// driver counts how often loops go round.
static inline float product(__global const float *q, __global const float *k)
{
    float16 many = (float16)(0.0f);
    int d = 0;
    for (; d + 16 <= DIM_QK; d += 16)
        many += vload16(0, q + d) * vload16(0, k + d);
    const float8 half_of = many.lo + many.hi;
    const float4 quarter = half_of.lo + half_of.hi;
    float sum = (quarter.x + quarter.y) + (quarter.z + quarter.w);
    for (; d < DIM_QK; ++d)
        sum += q[d] * k[d];
    return sum;
}

__kernel __attribute__((reqd_work_group_size(ITEMS_K, 1, 1)))
void unfused_finish(const struct cla_fwd_args a, const struct cla_unfused_args u,
                    __global const float *q, __global const float *k, __global const float *v,
                    __global float *o, __global float *lse, __global const uchar *mask,
                    __global float *workspace)
{
    const long item = (long)get_global_id(0);
    const long row = item / DIM_V;
    const int d = (int)(item % DIM_V);
    if (row >= u.rows)
        return;
    const int i = (int)(row % a.len_q);
    const long matrix = row / a.len_q;
    const int b = (int)(matrix / a.heads_q), h = (int)(matrix % a.heads_q), g = h / a.group;
    o += tensor_at(&a.o, b, h, i) + d;
    if (a.len_kv == 0) {
        *o = 0.0f;
        if (d == 0 && (a.flags & CLA_FWD_HAS_LSE))
            lse[lse_at(&a, b, h, i)] = -INFINITY;
        return;
    }
    // Naive softmax that overflowed: O is NaN, and so is its LSE.
    if (u.naive && d == 0 && (a.flags & CLA_FWD_HAS_LSE) && lse[lse_at(&a, b, h, i)] == INFINITY)
        lse[lse_at(&a, b, h, i)] = NAN;
    const long of_keys = (long)b * a.heads_kv + g;
    __global const int *marks = (__global const int *)workspace;
    const bool any = marks[u.any + of_keys] != 0;
    __global const float *p = workspace + u.scores + row * u.ld_scores;
    const bool doubtful = u.naive && isnan(p[0]);
    if (!any && !doubtful && u.parts_o == 0)
        return;
    float sum = u.parts_o ? 0.0f : *o, some = 0.0f;
    for (int part = 0; part < u.parts_o; ++part) { // 16 at a time, so that no chain is long
        some += workspace[u.o + (part * u.rows + row) * u.ld_o + d];
        if (part % 16 == 15 || part == u.parts_o - 1) {
            sum += some;
            some = 0.0f;
        }
    }
    if (any || doubtful) {
        marks += u.marks + of_keys * a.len_kv;
        const int begin = window_begin(&a, i), end = window_end(&a, i);
        const long mask_row = mask_at(&a, b, h, i);
        q += tensor_at(&a.q, b, h, i);
        bool empty = true;
        for (int j = begin; j < end && (any || empty); ++j) {
            if (!((any && marks[j]) || (doubtful && empty)) ||
                !visible(&a, mask, mask_row, begin, end, j) ||
                // A score of -INFINITY hides the key as the mask does.
                a.scale * product(q, k + tensor_at(&a.k, b, g, j)) == -INFINITY)
                continue;
            empty = false;
            if (any && marks[j])
                sum += p[j] * v[tensor_at(&a.v, b, g, j) + d];
        }
        if (doubtful && empty)
            sum = 0.0f;
    }
    *o = sum;
}
