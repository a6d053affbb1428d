// SPDX-License-Identifier: Apache-2.0
// Merges results of attention over sets of keys that have none in common.
//
//   m = max LSE_k (and sink),  w_k = e^(LSE_k - m),  l = sum w_k (+ e^(sink - m))
//   O = sum w_k / l * O_k,  LSE = m + ln l              over the parts with -inf < LSE_k < inf
//
// A work-group owns a row (batch, head, query); its items take quads of channels in turn.
//
//   group id: (b * heads + h) * len + i
//   local memory: none
//
// Literals: DTYPE_Q (of the parts), DTYPE_O, ITEMS.
// Slots: args, parts 0 to 7, their LSE 0 to 7, sinks, O, LSE. O and LSE may be those of a part:
// an item reads a channel of all parts before it writes it, and LSE is written when all items have
// read theirs.
//
// Numerics: an empty part is left out, whatever its O is. One part alone without a sink is copied,
// so it stays bit for bit what it was. Weights are divided by l before they meet O, so that no sum
// is beyond the largest |O_k|. The order of all sums is fixed.

#ifndef ITEMS
#error "merge_parts.cl: ITEMS"
#endif
#define DTYPE_KV CLA_DTYPE_F32
#define ROW_LANES 1
#define MULADD mad

#include "kv_abi.h"
#include "dtype.clh"
#include "quads.clh"

#define SKIP -1.0f // a weight that none is: the part is empty

// NaN is not: it stays visible.
static inline bool is_empty(float lse)
{
    return isinf(lse) != 0;
}

// Does STEP(part, its memory, its LSE's memory) for the parts of the call.
#define PARTS(STEP)                                                                                \
    STEP(0, part0, lse0)                                                                           \
    STEP(1, part1, lse1)                                                                           \
    STEP(2, part2, lse2)                                                                           \
    STEP(3, part3, lse3)                                                                           \
    STEP(4, part4, lse4)                                                                           \
    STEP(5, part5, lse5)                                                                           \
    STEP(6, part6, lse6)                                                                           \
    STEP(7, part7, lse7)

#define READ_LSE(k, part, lse)                                                                     \
    x[k] = k < args.num_parts ? lse[args.part_lse[k] + row] : -INFINITY;

#define ADD_PART(k, part, lse)                                                                     \
    if (!(w[k] == SKIP))                                                                           \
        sum += w[k] * load_quad(part, at[k] + d, args.dim - d);

#define COPY_PART(k, part, lse)                                                                    \
    if (!(w[k] == SKIP))                                                                           \
        sum = load_quad(part, at[k] + d, args.dim - d);

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void merge_parts(
    const struct cla_merge_args args, __global const q_elem *part0, __global const q_elem *part1,
    __global const q_elem *part2, __global const q_elem *part3, __global const q_elem *part4,
    __global const q_elem *part5, __global const q_elem *part6, __global const q_elem *part7,
    __global const float *lse0, __global const float *lse1, __global const float *lse2,
    __global const float *lse3, __global const float *lse4, __global const float *lse5,
    __global const float *lse6, __global const float *lse7, __global const float *sinks,
    __global o_elem *o, __global float *lse_out)
{
    const long row = (long)get_group_id(0);
    const long i = row % args.len, bh = row / args.len;
    const long h = bh % args.heads, b = bh / args.heads;
    const int item = (int)get_local_id(0);
    float x[CLA_MERGE_PARTS], w[CLA_MERGE_PARTS];
    long at[CLA_MERGE_PARTS];
    PARTS(READ_LSE)
    const float sink = args.flags & CLA_FWD_HAS_SINKS ? sinks[args.sinks + h] : -INFINITY;
#if ITEMS > 1
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
    float m = sink;
    int filled = 0;
    // Unrolled, so that what is kept of each part lies in registers.
#pragma unroll
    for (int k = 0; k < CLA_MERGE_PARTS; k++) {
        if (is_empty(x[k]))
            continue;
        filled++;
        m = x[k] > m ? x[k] : m; // passes over a NaN, whose weight is one
    }
    const bool alone = filled == 1 && sink == -INFINITY && m > -INFINITY;
    float l = sink == -INFINITY ? 0.0f : exp(sink - m);
#pragma unroll
    for (int k = 0; k < CLA_MERGE_PARTS; k++) {
        w[k] = is_empty(x[k]) ? SKIP : exp(x[k] - m);
        l += is_empty(x[k]) ? 0.0f : w[k];
        at[k] = args.part[k].offset + b * args.part[k].stride_b + h * args.part[k].stride_h +
                i * args.part[k].stride_s;
        m = alone && !is_empty(x[k]) ? x[k] : m;
    }
#pragma unroll
    for (int k = 0; k < CLA_MERGE_PARTS; k++)
        w[k] = is_empty(x[k]) ? SKIP : w[k] / l;
    const long to = args.o.offset + b * args.o.stride_b + h * args.o.stride_h + i * args.o.stride_s;
    for (int d = 4 * item; d < args.dim; d += 4 * ITEMS) {
        float4 sum = (float4)(isnan(l) ? l : 0.0f);
        if (alone) {
            PARTS(COPY_PART)
        } else {
            PARTS(ADD_PART)
        }
        store_quad(o, to + d, sum, args.dim - d);
    }
    if (item == 0 && (args.flags & CLA_FWD_HAS_LSE))
        lse_out[args.lse + row] = filled == 0 && sink == -INFINITY ? -INFINITY
                                  : alone                          ? m
                                                                   : m + log(l);
}
