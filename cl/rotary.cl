// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of queries or keys, arXiv 2104.09864:
//
//   x' = x * cos - y * sin,  y' = x * sin + y * cos     for each pair of channels (x, y)
//
// A work-group owns a row (batch, head, token); its items take quads of pairs or of channels in
// turn, then quads of the channels that pass.
//
//   group id: (b * heads + h) * len + i
//   local memory: none
//
// Literals: DTYPE_Q and DTYPE_O (the same type), ITEMS.
// Slots: args, x, offsets, cos, sin, y, faults. y may be x: an item has read both channels of a
// pair before it writes them.

#ifndef ITEMS
#error "rotary.cl: ITEMS"
#endif
#define DTYPE_KV CLA_DTYPE_F32
#define ROW_LANES 1
#define MULADD mad

#include "kv_abi.h"
#include "dtype.clh"
#include "quads.clh"
#include "rotary.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) FEW_LANES void rotary(
    const struct cla_rotate_args args_in, __global const q_elem *x, __global const int *offsets,
    __global const float *cos_table, __global const float *sin_table, __global o_elem *y,
    volatile __global int *faults)
{
    const struct cla_rotate_args args = args_in; // read whole, outside of branches
    const struct cla_rotary_args r = args.rotary;
    const long row = (long)get_group_id(0);
    const long i = row % args.len, bh = row / args.len;
    const long h = bh % args.heads, b = bh / args.heads;
    const int item = (int)get_local_id(0);
    const long from = args.x.offset + b * args.x.stride_b + h * args.x.stride_h +
                      i * args.x.stride_s;
    const long to = args.y.offset + b * args.y.stride_b + h * args.y.stride_h +
                    i * args.y.stride_s;
    int fault = 0;
    const int first = r.flags & CLA_KV_HAS_OFFSETS ? offsets[r.offsets + b] : 0;
    const long at = (long)rotary_row(&r, first, i, &fault) * (r.dim / 2);
    const int half_dim = r.dim / 2;
    cos_table += r.cos_table + at;
    sin_table += r.sin_table + at;
    if (r.flags & CLA_KV_HALF_SPLIT) {
        for (int t = 4 * item; t < half_dim; t += 4 * ITEMS) {
            const int n = half_dim - t;
            const float4 x0 = load_quad(x, from + t, n);
            const float4 x1 = load_quad(x, from + half_dim + t, n);
            const float4 c = load_floats(cos_table, t, n), s = load_floats(sin_table, t, n);
            store_quad(y, to + t, x0 * c - x1 * s, n);
            store_quad(y, to + half_dim + t, x0 * s + x1 * c, n);
        }
    } else {
        for (int d = 4 * item; d < r.dim; d += 4 * ITEMS) {
            const float4 v = load_quad(x, from + d, r.dim - d);
            store_quad(y, to + d, turn_quad(&r, v, d, cos_table, sin_table), r.dim - d);
        }
    }
    for (int d = r.dim + 4 * item; d < args.dim; d += 4 * ITEMS)
        store_quad(y, to + d, load_quad(x, from + d, args.dim - d), args.dim - d);
    if (item == 0 && fault && (args.flags & CLA_FWD_HAS_FAULTS))
        atomic_or(faults + args.faults, fault);
}
