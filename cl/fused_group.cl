// SPDX-License-Identifier: Apache-2.0
// Fused forward attention for devices whose work-items share local memory: scores, softmax and
// weighted sum in one pass over the keys, nothing of the len_q x len_kv scores in global memory.
//
//   O[b,h,i,:] = sum_j p[i,j] * V[b,g,j,:] / l[i],  p = e^(x[i,j] - m[i]),  x = scale * dot(Q, K),
//   LSE[b,h,i] = m[i] + ln l[i],                    j over the keys that row i sees
//
// A work-group owns a tile of rows and walks over the keys (group_tile.clh).
//
//   group id: query tile, last first (the heavy ones of a causal problem); then key head, batch
//   local memory: CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D), see group_tile.clh
//
// With sub-groups a sub-group owns whole rows: their maxima stay in registers, and no barrier of
// the work-group stands between softmax and P * V.
//
// Literals: those of group_tile.clh.
// Slots: CLA_SLOT_*; MASK only under CLA_MASK_GENERAL, LSE only with CLA_FWD_HAS_LSE.
//
// Numerics: a tile of rows whose output is not finite everywhere is computed again, with the hidden
// pairs left out one by one and the weights scaled down, so that the sum of finite V is finite.

#include "group_tile.clh"

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) SUBGROUP_SIZE
void fused_group(const struct cla_fwd_args a, __global const q_elem *q, __global const kv_elem *k,
                 __global const kv_elem *v, __global o_elem *o, __global float *lse,
                 __global const uchar *mask)
{
    GROUP_LOCAL;
    if (!ROW_SHARED_OK)
        return; // the trial of the plan sees that nothing was written
    const uint item = (uint)get_local_id(0);
    struct place at;
    struct span keys;
    find_place(&at, &a, get_group_id(0));
    find_span(&keys, &a, &at);
    const int tiles = span_tiles(&keys);
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
        clear_sums(&sum);
        for (int tile = 0; tile < tiles; ++tile) {
            const int k0 = keys.begin + tile * TILE_K;
            float s[GROUP_ROWS][GROUP_KEYS];
            float f[GROUP_ROWS];
            score_tile(s, q_tile, kv_tile, &a, &at, &keys, q, k, k_base, mask, k0, item);
#if SUBGROUPS
            // V first: then no barrier of the work-group stands between softmax and P * V.
            barrier(CLK_LOCAL_MEM_FENCE);
            load_keys(kv_tile, v, v_base, a.v.stride_s, k0, keys.end, 0, DIM_V, false,
                      is_aligned(&a), item);
            barrier(CLK_LOCAL_MEM_FENCE);
#else
            put_maxima(part, s, item);
            barrier(CLK_LOCAL_MEM_FENCE);
#endif
            absorb(p_tile, part, &sum, f, s, careful ? -1.0f : 0.0f,
                   careful ? careful_scale(a.len_kv) : 1.0f, item);
#if SUBGROUPS
            sub_group_barrier(CLK_LOCAL_MEM_FENCE);
#endif
            add_tile(&sum, f, p_tile, kv_tile, &a, keys.end, v, v_base, k0, careful, SUBGROUPS,
                     item);
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
        const float l = join_sums(part, n, item);
        if (GROUP_ROW(item, n) < at.rows)
            store_row(&sum, &a, &at, o, lse, n, l,
                      passes > 1 ? careful_unscale(a.len_kv) : 1.0f, item);
    }
}
