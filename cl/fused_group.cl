// SPDX-License-Identifier: Apache-2.0
// Fused forward attention for devices whose work-items share local memory: scores, softmax and
// weighted sum in one pass over the keys, nothing of the len_q x len_kv scores in global memory.
//
//   O[b,h,i,:] = sum_j p[i,j] * V[b,g,j,:] / l[i],  p = e^(x[i,j] - m[i]),  x = scale * dot(Q, K),
//   LSE[b,h,i] = m[i] + ln l[i],                    j over the keys that row i sees
//
// A work-group owns a tile of rows and walks over the keys (group_tile.clh, group_walk.clh).
//
//   group id: query tile, last first (the heavy ones of a causal problem); then key head, batch
//   local memory: CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D), see group_tile.clh
//
// With sub-groups a sub-group owns whole rows: their maxima stay in registers, and no barrier of
// the work-group stands between softmax and P * V.
//
// Literals: those of group_tile.clh.
// Slots: CLA_SLOT_*; all but args, Q, K, V and O only where a flag or a literal says so.
//
// Numerics: a tile of rows whose output is not finite everywhere is computed again, with the hidden
// pairs left out one by one and the weights scaled down, so that the sum of finite V is finite.

#include "group_walk.clh"

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) SUBGROUP_SIZE
void fused_group(FWD_PARAMS)
{
    GROUP_LOCAL;
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    if (!ROW_SHARED_OK)
        return; // the trial of the plan sees that nothing was written
    const uint item = (uint)get_local_id(0);
    struct place at;
    struct span keys;
    struct pairs pairs;
    find_place(&at, &a, &mem, get_group_id(0));
    find_span(&keys, &a, &at);
    struct sums sum;

    clear_flags(flag, &pairs, item);
#if CHUNKS_QK == 1
    load_queries(q_tile, &a, &at, q_mem, 0, item);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    const bool careful = sum_keys(&sum, q_tile, kv_tile, p_tile, part, flag, &pairs, &a, &mem, &at,
                                  &keys, q_mem, k_mem, v_mem, item);
    const float unscale = careful ? careful_unscale(a.len_kv) : 1.0f;
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        float l = join_sums(part, n, item);
        const float f = take_sink(&sum.m[n], &l, &a, &mem, &at, n, item);
        if (GROUP_ROW(item, n) < at.rows)
            store_row(&sum, &a, &at, o_mem, lse_mem, n, l, unscale * f, item);
    }
    report_faults(&args, &mem, at.b, item == 0 && at.g == 0 && get_group_id(0) % a.num_tiles == 0);
}
