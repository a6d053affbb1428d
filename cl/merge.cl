// SPDX-License-Identifier: Apache-2.0
// Merges the parts that split_kv_*.cl has left in the workspace.
//
//   m = max m_k,  L = sum e^(m_k - m) * l_k,  a_k = e^(m_k - m) * l_k / L
//   O = sum a_k * O_k,  LSE = m + ln L                          over the parts k with l_k != 0
//
// The sink, which the parts leave out, takes part in m and L here.
//
// A work-group owns a row. Its items take the parts in turn for m, L and a, and quads of channels
// for O.
//
//   group id: row, as part_row() counts
//   local memory: 3 * ITEMS floats
//
// Literals: DIM_V, DTYPE_O, and the work-group as the kernels of the parts have it: ITEMS_Q and
// ITEMS_K, or W (CPU devices), where it has one item.
// Slots: CLA_SLOT_*; O, WORKSPACE; LSE, SINKS and lengths only with their flags.
//
// Numerics: one part alone stays bit for bit what it was: e^0 = 1, L = l, a = 1, which is not left
// to a division, since those of OpenCL may be off by 2.5 ulp. So does a part that is merged with
// empty ones, which are left out: whatever their O is does not matter. The order of all sums is
// fixed. Equal terms always round the same way, 1024 of them by up to 1e-5 of their sum, so they
// are added in chains, whose sums make one more: 32 of 32 for 1024 parts, 256 of 256 for the most
// that there can be.

#ifdef W
#define ITEMS 1
#define MULADD fma
#else
#if !defined(ITEMS_Q) || !defined(ITEMS_K)
#error "merge.cl: W, or ITEMS_Q and ITEMS_K"
#endif
#define ITEMS (ITEMS_Q * ITEMS_K)
#define MULADD mad
#endif
#ifndef DIM_V
#error "merge.cl: DIM_V"
#endif
#define ROW_LANES 1

#include "abi.h"
#include "dtype.clh"
#include "address.clh"
#include "split.clh"
#include "online.clh"
#include "sequence.clh"

#define QUADS CLA_QUADS(DIM_V)
#define ITEM_QUADS ((QUADS + ITEMS - 1) / ITEMS)
#define CHAIN_OF(parts) ((parts) > 1024 ? 256 : 32)
#define SKIP -1.0f // a weight that none is: the part is empty

#define END_CHAIN                                                                                  \
    for (int n = 0; n < ITEM_QUADS; ++n)                                                           \
        out[n] = any ? out[n] + chain[n] : chain[n];

static inline float4 load_o4(__global const float *o, int d, bool aligned)
{
    if (DIM_V % 4 == 0 && aligned)
        return *(__global const float4 *)(o + d);
    return (float4)(o[d], d + 1 < DIM_V ? o[d + 1] : 0.0f, d + 2 < DIM_V ? o[d + 2] : 0.0f,
                    d + 3 < DIM_V ? o[d + 3] : 0.0f);
}

static inline void store_o4(__global o_elem *o, int d, float4 x, bool aligned)
{
    if (DIM_V % 4 == 0 && aligned) {
        STORE_O4(o, d, x);
        return;
    }
    STORE_O(o, d, x.x);
    if (d + 1 < DIM_V)
        STORE_O(o, d + 1, x.y);
    if (d + 2 < DIM_V)
        STORE_O(o, d + 2, x.z);
    if (d + 3 < DIM_V)
        STORE_O(o, d + 3, x.w);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void merge(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    __local float maxima[ITEMS];
    __local float sums[ITEMS];
    __local float weights[ITEMS];
    const int item = (int)get_local_id(0);
    const int parts = a.num_splits;
    const int sharers = min(parts, ITEMS); // items that have a part
    const int length = CHAIN_OF(parts);
    const long row = get_group_id(0);
    const long ml = part_ml_at(&a, row, 0);
    const long place = row % rows_of_longest(&a);
    const int g = (int)(row / rows_of_longest(&a) % a.heads_kv);
    const int b = (int)(row / rows_of_longest(&a) / a.heads_kv);
    const int head = row_head(&a, g, place);
    const int query = row_query(&a, place);

    // The first part of an item stays in registers, so that few parts are read once.
    float m_first = -INFINITY;
    float l_first = 0.0f;
    if (item < parts) {
        m_first = workspace[ml + 2L * item];
        l_first = workspace[ml + 2L * item + 1];
    }
    float m = l_first == 0.0f ? -INFINITY : m_first;
    for (int n = item + ITEMS; n < parts; n += ITEMS) {
        if (workspace[ml + 2L * n + 1] != 0.0f)
            m = max_of(workspace[ml + 2L * n], m);
    }
    maxima[item] = m;
    barrier(CLK_LOCAL_MEM_FENCE);
    m = -INFINITY;
    for (int t = 0; t < sharers; ++t)
        m = max_of(maxima[t], m);

    float shift = shift_of(m);
    float l = 0.0f;
    float link = l_first == 0.0f ? 0.0f : weight(m_first, shift) * l_first;
    int links = 1; // terms in it
    for (int n = item + ITEMS; n < parts; n += ITEMS) {
        const float part = workspace[ml + 2L * n + 1];
        if (part != 0.0f)
            link = MULADD(weight(workspace[ml + 2L * n], shift), part, link);
        if (++links == length) {
            l += link;
            link = 0.0f;
            links = 0;
        }
    }
    sums[item] = l + link;
    barrier(CLK_LOCAL_MEM_FENCE);
    l = 0.0f;
    for (int first = 0; first < sharers; first += length) {
        link = 0.0f;
        for (int t = first; t < min(first + length, sharers); ++t)
            link += sums[t];
        l += link;
    }
    if (a.flags & CLA_FWD_HAS_SINKS) {
        add_sink(&m, &l, sinks_mem[a.sinks_offset + head]);
        shift = shift_of(m);
    }

    float4 out[ITEM_QUADS], chain[ITEM_QUADS];
    bool any = false;
    links = 0;
    for (int n = 0; n < ITEM_QUADS; ++n)
        out[n] = (float4)(0.0f);
    for (int first = 0; first < parts; first += ITEMS) {
        const int mine = first + item;
        if (first > 0 && mine < parts) {
            m_first = workspace[ml + 2L * mine];
            l_first = workspace[ml + 2L * mine + 1];
        }
        const float own = weight(m_first, shift) * l_first;
        weights[item] = l_first == 0.0f ? SKIP : own == l ? 1.0f : own / l;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int t = 0; t < min(ITEMS, parts - first); ++t) {
            const float factor = weights[t];
            if (factor == SKIP)
                continue;
            __global const float *part = workspace + part_o_at(&a, row, first + t);
            for (int n = 0; n < ITEM_QUADS; ++n) {
                const int d = 4 * (item + n * ITEMS);
                if (d >= DIM_V)
                    continue;
                const float4 x = load_o4(part, d, (a.flags & CLA_FWD_ALIGNED16) != 0);
                // Not 0 + x: that would lose the sign of -0.
                chain[n] = links > 0 ? MULADD((float4)(factor), x, chain[n]) : factor * x;
            }
            if (++links == length) {
                END_CHAIN
                any = true;
                links = 0;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (links > 0)
        END_CHAIN

    // Behind the barriers, in front of which PoCL 3.1 compiles a branch for seconds. The kernel of
    // the parts has reported what was clamped.
    enter_sequence(&a, &mem, b, false);
    if (place >= row_count(&a))
        return; // no row of this sequence: what was merged is nothing
    __global o_elem *o = o_mem + tensor_at(&a.o, b, head, query);
    for (int n = 0; n < ITEM_QUADS; ++n) {
        const int d = 4 * (item + n * ITEMS);
        // A sink that is NaN or infinite leaves none of a row, also where no part has a weight.
        if (d < DIM_V)
            store_o4(o, d, isnan(l) ? (float4)(l) : out[n], (a.flags & CLA_FWD_ALIGNED16) != 0);
    }
    if ((a.flags & CLA_FWD_HAS_LSE) && item == 0)
        lse_mem[lse_at(&a, b, head, query)] = row_lse(m, l);
}
