// SPDX-License-Identifier: Apache-2.0
// Attention with split keys for devices whose work-items share local memory: fused_group.cl on a
// part of the keys, for few rows and many keys, where tiles of rows are too few for the device.
//
//   m_k = max x,  l_k = sum e^(x - m_k),  O_k = sum e^(x - m_k) * V / l_k    over keys of part k
//
// merge.cl makes O and LSE of all parts. With num_splits = 1 they are written here at once.
//
// A work-group owns a tile of rows and one part of its keys, and walks over them (group_tile.clh).
//
//   group id: query tile, last first; then part; then key head, batch (split.clh)
//   local memory: CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D), see group_tile.clh
//
// Literals: those of group_tile.clh.
// Slots: CLA_SLOT_*; all but args, Q, K, V and O only where a flag or a literal says so, WORKSPACE
// only with more than one part.
//
// Numerics: as fused_group.cl. A part without keys has m = -INFINITY, l = 0 and no O.

#include "group_walk.clh"
#include "split.clh"

// O, m and l of row n of the tile to the workspace.
INLINE void store_part(const struct sums *sum, const struct cla_fwd_args *a, const struct place *at,
                       int part, long row, __global float *workspace, uint n, float l,
                       float unscale, uint item)
{
    const long o = part_o_at(a, row, part);
#if CHUNKS_V <= UNROLLED_CHUNKS
#pragma unroll
#endif
    for (int chunk = 0; chunk < CHUNKS_V; ++chunk) {
#pragma unroll
        for (uint c = 0; c < GROUP_VALUES; ++c) {
            uint quad = GROUP_VALUE_QUAD(item, c);
            int d = chunk * CHUNK_D + 4 * (int)quad;
            float4 x = sum->o[n][chunk * GROUP_VALUES + c];
            x = l == 0.0f ? (float4)(0.0f) : finite_mean4(x / l * unscale, x);
            if (quad >= GROUP_CHUNK_QUADS || d >= DIM_V)
                continue;
            if (DIM_V % 4 == 0 && is_aligned(a)) {
                *(__global float4 *)(workspace + o + d) = x;
                continue;
            }
            workspace[o + d] = x.x;
            if (d + 1 < DIM_V)
                workspace[o + d + 1] = x.y;
            if (d + 2 < DIM_V)
                workspace[o + d + 2] = x.z;
            if (d + 3 < DIM_V)
                workspace[o + d + 3] = x.w;
        }
    }
    if (item % ITEMS_K == 0) {
        const long ml = part_ml_at(a, row, part);
        workspace[ml] = sum->m[n];
        workspace[ml + 1] = l;
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) SUBGROUP_SIZE
void split_kv_group(FWD_PARAMS)
{
    GROUP_LOCAL;
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const uint item = (uint)get_local_id(0);
    const long id = get_group_id(0);
    const int part_id = part_of(&a, id);
    const long first = (a.num_tiles - 1 - id % a.num_tiles) * TILE_Q;
    struct place at;
    struct span keys;
    struct pairs pairs;
    find_place(&at, &a, &mem, whole_id(&a, id));
    find_span(&keys, &a, &at);
    cut_keys(&keys.begin, &keys.end, &a, part_id);
    keys.full_end = min(keys.full_end, keys.end);
    struct sums sum;

    clear_flags(flag, &pairs, item);
#if CHUNKS_QK == 1
    if (keys.begin < keys.end)
        load_queries(q_tile, &a, &at, q_mem, 0, item);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    const bool careful = sum_keys(&sum, q_tile, kv_tile, p_tile, part, flag, &pairs, &a, &mem, &at,
                                  &keys, q_mem, k_mem, v_mem, item);
    const float unscale = careful ? careful_unscale(a.len_kv) : 1.0f;
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        float l = join_sums(part, n, item);
        const uint r = GROUP_ROW(item, n);
        if (r >= at.rows)
            continue;
        if (a.num_splits == 1) {
            const float f = take_sink(&sum.m[n], &l, &a, &mem, &at, n, item);
            store_row(&sum, &a, &at, o_mem, lse_mem, n, l, unscale * f, item);
        } else {
            store_part(&sum, &a, &at, part_id, part_row(&a, at.b, at.g, first + r), workspace, n, l,
                       unscale, item);
        }
    }
    report_faults(&args, &mem, at.b, item == 0 && at.g == 0 && id % a.num_tiles == 0);
}
