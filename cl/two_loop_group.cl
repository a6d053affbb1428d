// SPDX-License-Identifier: Apache-2.0
// Attention in two loops for devices whose work-items share local memory: the online normaliser of
// Milakov and Gimelshein, then the weighted sum with weights that are final. Nothing of the
// len_q x len_kv scores is ever in global memory.
//
//   loop 1   m = max_j x[i,j],  l = sum_j e^(x[i,j] - m), both online and then with the sink;
//            LSE[b,h,i] = m + ln l
//   loop 2   O[b,h,i,:] = sum_j e^(x[i,j] - m) / l * V[b,g,j,:],         x computed again
//
// A work-group owns a tile of rows and walks over the keys twice (group_tile.clh).
//
//   group id: query tile, last first (the heavy ones of a causal problem); then key head, batch
//   local memory: CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D), see group_tile.clh
//
// Literals: those of group_tile.clh.
// Slots: CLA_SLOT_*; all but args, Q, K, V and O only where a flag or a literal says so.
//
// Numerics: a tile of rows whose output is not finite everywhere goes through loop 2 again, with
// the hidden pairs left out one by one and half the weights, so that a mean of V near FLT_MAX stays
// finite on the way.

#include "group_tile.clh"

// m and l take a tile of keys in, l the part of this item's keys.
INLINE void add_weights(__local const float *part, struct sums *sum,
                        float s[GROUP_ROWS][GROUP_KEYS], uint item)
{
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        const float m = join_maxima(part, s, sum->m[n], n, item);
        const float shift = shift_of(m);
        float l = 0.0f;
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c)
            l += weight(s[n][c], shift);
        add_to(&sum->l[n], EXCESS(sum->l_excess[n]), weight(sum->m[n], shift), l);
        sum->m[n] = m;
    }
}

// Scores to e^(x - m) * inverse in p_tile; -1 for a hidden pair in a careful pass.
INLINE void put_weights(__local float4 *p_tile, const float *m, const float *inverse,
                        float s[GROUP_ROWS][GROUP_KEYS], bool careful, uint item)
{
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        float p[GROUP_KEYS];
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c) {
            p[c] = weight(s[n][c], shift_of(m[n])) * inverse[n];
            p[c] = careful && s[n][c] == -INFINITY ? -1.0f : p[c];
        }
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS / 4; ++c)
            p_tile[GROUP_P_PUT(item, n, c)] =
                (float4)(p[4 * c], p[4 * c + 1], p[4 * c + 2], p[4 * c + 3]);
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) SUBGROUP_SIZE
void two_loop_group(FWD_PARAMS)
{
    GROUP_LOCAL;
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const uint item = (uint)get_local_id(0);
    struct place at;
    struct span keys;
    struct pairs pairs;
    find_place(&at, &a, &mem, get_group_id(0));
    find_span(&keys, &a, &at);
    const int tiles = span_tiles(&keys);
    struct sums sum;
    float s[GROUP_ROWS][GROUP_KEYS];

    clear_flags(flag, &pairs, item);
#if CHUNKS_QK == 1
    load_queries(q_tile, &a, &at, q_mem, 0, item);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);

    // Loop 1. Behind the barrier nobody reads kv_tile; the next one, within score_tile(), is behind
    // the last read of part.
    clear_sums(&sum);
    for (int tile = 0; tile < tiles; ++tile) {
        const int k0 = keys.begin + tile * TILE_K;
        if (!look(&pairs, flag, &a, &mem, &at, &keys, k0, item))
            continue;
        score_tile(s, q_tile, kv_tile, &pairs, &a, &mem, &at, &keys, q_mem, k_mem, k0, item);
        put_maxima(part, s, item);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_weights(part, &sum, s, item);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n)
        part[GROUP_PART_PUT(item, n)] = sum.l[n];
    barrier(CLK_LOCAL_MEM_FENCE);

    float m[GROUP_ROWS], l[GROUP_ROWS], one[GROUP_ROWS];
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        m[n] = sum.m[n];
        l[n] = join_sums(part, n, item);
        take_sink(&m[n], &l[n], &a, &mem, &at, n, item);
        one[n] = 1.0f;
    }

    // Loop 2, and once more if need be.
    int passes = 1;
    for (int pass = 0; pass < passes; ++pass) {
        const bool careful = pass > 0;
        float inverse[GROUP_ROWS];
#pragma unroll
        for (uint n = 0; n < GROUP_ROWS; ++n)
            inverse[n] = l[n] == 0.0f ? 0.0f : (careful ? 0.5f : 1.0f) / l[n];
        clear_sums(&sum);
        for (int tile = 0; tile < tiles; ++tile) {
            const int k0 = keys.begin + tile * TILE_K;
            if (!look(&pairs, flag, &a, &mem, &at, &keys, k0, item))
                continue;
            score_tile(s, q_tile, kv_tile, &pairs, &a, &mem, &at, &keys, q_mem, k_mem, k0, item);
            put_weights(p_tile, m, inverse, s, careful, item);
            barrier(CLK_LOCAL_MEM_FENCE); // K is read
            add_tile(&sum, one, p_tile, kv_tile, &a, &mem, &at, keys.end, v_mem, k0, careful, false,
                     item);
        }
        if (!all_finite(&sum))
            atomic_or(&flag[0], 1);
        barrier(CLK_LOCAL_MEM_FENCE);
        passes = flag[0] ? 2 : 1;
    }

    // Final weights are those of a row whose maximum is its LSE and whose sum is 1; a sink that is
    // no number makes a row NaN that sees no key.
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        sum.m[n] = row_lse(m[n], l[n]);
        if (GROUP_ROW(item, n) < at.rows)
            store_row(&sum, &a, &at, o_mem, lse_mem, n,
                      l[n] == 0.0f || isnan(l[n]) ? l[n] : 1.0f, passes > 1 ? 2.0f : 1.0f,
                      item);
    }
    report_faults(&args, &mem, at.b, item == 0 && at.g == 0 && get_group_id(0) % a.num_tiles == 0);
}
