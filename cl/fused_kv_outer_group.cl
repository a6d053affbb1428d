// SPDX-License-Identifier: Apache-2.0
// Fused forward attention in the order of FlashAttention-1 (arXiv 2205.14135, Algorithm 1), for
// devices whose work-items share local memory: keys and values in the outer loop, queries inside,
// and the output, finished for the keys so far, in global memory after each tile of keys.
//
//   O'[b,h,i,:] = O * (l * e^(m - m')) / l' + sum_j e^(x[i,j] - m') / l' * V[b,g,j,:]
//   m' = max(m, x[i,j]),  l' = l * e^(m - m') + sum_j e^(x[i,j] - m'),  j over a tile of keys
//   LSE[b,h,i] = m + ln l at the end
//
//             for each tile of keys                     for each tile of rows
//   +-----+  K, V of the tile to local memory  |  Q to local memory, O, m, l to registers
//   | K,V |                                    |  S = Q K^T, P, X = P V
//   +-----+                                    |  O', m', l' to global memory
//
// A work-group owns one (batch, key head), or every strips-th tile of rows of one, where there are
// more compute units than these: the order stays, K and V are read once for each strip.
//
//   group id: strip, key head, batch; global size / group size = strips * heads_kv * batch
//   local memory: CLA_GROUP_LOCAL_BYTES(TILE_Q, TILE_K, CHUNK_D), and where CHUNK_D covers all
//   channels CLA_GROUP_KEPT_BYTES(TILE_K, CHUNK_D) more: K and V stay for all tiles of rows. Where
//   it doesn't, each tile of rows reads them again.
//
// Literals: those of group_tile.clh. Slots: CLA_SLOT_*; all but args, Q, K, V, O and WORKSPACE only
// where a flag or a literal says so. What lies in WORKSPACE: group_state.clh.
//
// Numerics: the first tile of keys writes O, m and l and reads none of them. A tile of rows whose
// sum over a tile of keys is not finite makes it again, with the hidden pairs left out one by one
// and the weights scaled down, so that the sum of finite V is finite. CLA_FWD_LONG_ROWS carries the
// rounding errors of O and l along in the workspace.

// Nothing is summed up in registers over more than a tile of keys.
#undef LONG_ROWS
#define LONG_ROWS 0

#include "group_state.clh"

#define KEEPS_KV (CHUNKS_QK == 1 && CHUNKS_V == 1)

// Parts of the maxima, where the first item of a row adds that of the keys before.
INLINE void put_maxima_so_far(__local float *part, const struct state *st,
                              float s[GROUP_ROWS][GROUP_KEYS], uint item)
{
#pragma unroll
    for (uint n = 0; n < GROUP_ROWS; ++n) {
        float m = st->m[n];
#pragma unroll
        for (uint c = 0; c < GROUP_KEYS; ++c)
            m = max_of(s[n][c], m);
        part[GROUP_PART_PUT(item, n)] = m;
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) SUBGROUP_SIZE
void fused_kv_outer_group(FWD_PARAMS)
{
    GROUP_LOCAL;
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
#if KEEPS_KV
    __local float4 v_tile[TILE_K * GROUP_PITCH_QUADS];
#endif
    const uint item = (uint)get_local_id(0);
    const int strips = (int)(get_num_groups(0) / ((size_t)a.heads_kv * (size_t)a.batch));
    const long head = get_group_id(0) / strips; // of all batches
    const int strip = (int)(get_group_id(0) % strips);
    struct place at;
    struct pairs pairs;
    at.b = (int)(head / a.heads_kv);
    at.g = (int)(head % a.heads_kv);
    enter_sequence(&a, &mem, at.b, false);
    const int begin = window_begin(&a, 0);
    const int end = window_end(&a, a.len_q - 1);
    clear_flags(flag, &pairs, item);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int tiles = (int)((row_count(&a) + TILE_Q - 1) / TILE_Q);
    // The first round is there also where there are no keys, since it writes O.
    const int rounds = max((int)(((long)end - begin + TILE_K - 1) / TILE_K), 1);

    for (int round = 0; round < rounds; ++round) {
        const int k0 = begin + round * TILE_K;
#if KEEPS_KV
        bool are_there = false; // K and V of this round
#endif
        for (int tile = strip; tile < tiles; tile += strips) {
            struct span keys;
            struct state st;
            struct sums sum;
            place_rows(&at, &a, tile * (long)TILE_Q);
            find_span(&keys, &a, &at);
            find_state(&st, &a, workspace, head, tile);
            const bool any = keys.begin < keys.end;
            const bool sees = any && keys.begin - k0 < TILE_K && k0 < keys.end &&
                              look(&pairs, flag, &a, &mem, &at, &keys, k0, item);
            st.first = round == 0;
            st.last = any ? k0 < keys.end && keys.end - k0 <= TILE_K : st.first;
            if (!sees && !st.first && !st.last)
                continue;

            load_state(&st, &a, &mem, &at, item);
            clear_sums(&sum);
            int passes = 1;
            if (sees) {
                float s[GROUP_ROWS][GROUP_KEYS];
#if KEEPS_KV
                // Behind the barriers of the round before nobody reads these any more.
                if (!are_there) {
                    load_keys(kv_tile, &a, &mem, &at, k_mem, false, k0, end, 0, item);
                    load_keys(v_tile, &a, &mem, &at, v_mem, true, k0, end, 0, item);
                    are_there = true;
                }
#endif
#if CHUNKS_QK == 1
                load_queries(q_tile, &a, &at, q_mem, 0, item);
#endif
                barrier(CLK_LOCAL_MEM_FENCE);
                if (item == 0)
                    flag[0] = 0;
#if KEEPS_KV
                clear_scores(s);
                score(s, q_tile, kv_tile, item);
                finish_scores(s, &pairs, &a, &mem, &at, &keys, k0, item);
#else
                score_tile(s, q_tile, kv_tile, &pairs, &a, &mem, &at, &keys, q_mem, k_mem, k0,
                           item);
#endif
                for (int pass = 0; pass < passes; ++pass) {
                    const bool careful = pass > 0;
                    float f[GROUP_ROWS];
                    clear_sums(&sum);
                    put_maxima_so_far(part, &st, s, item);
                    barrier(CLK_LOCAL_MEM_FENCE); // Q is read, and K
                    absorb(p_tile, part, &sum, f, s, careful ? -1.0f : 0.0f,
                           careful ? careful_scale(TILE_K) : 1.0f, item);
                    put_state(q_tile, &st, item);
#if KEEPS_KV
                    barrier(CLK_LOCAL_MEM_FENCE);
                    if (careful)
                        accumulate_careful(&sum, 0, f, p_tile, v_tile, item);
                    else
                        accumulate(&sum, 0, f, p_tile, v_tile, item);
#else
                    add_tile(&sum, f, p_tile, kv_tile, &a, &mem, &at, keys.end, v_mem, k0,
                             careful, false, item);
#endif
                    get_state(q_tile, &st, item);
                    if (!all_finite(&sum))
                        atomic_or(&flag[0], 1);
#pragma unroll
                    for (uint n = 0; n < GROUP_ROWS; ++n)
                        part[GROUP_PART_PUT(item, n)] = sum.l[n];
                    barrier(CLK_LOCAL_MEM_FENCE);
                    passes = flag[0] ? 2 : 1;
                }
            }
#pragma unroll
            for (uint n = 0; n < GROUP_ROWS; ++n) {
                const float l = sees ? join_sums(part, n, item) : 0.0f;
                add_sum(&st, n, sees ? sum.m[n] : st.m[n], l);
                const bool empty = st.l[n] == 0.0f;
                const float unscale = passes > 1 ? careful_unscale(TILE_K) : 1.0f;
                if (GROUP_ROW(item, n) < at.rows) {
                    update_row(&st, &sum, &a, &at, o_mem, n, empty ? 0.0f : l / st.l[n],
                               empty ? 0.0f : 0.5f / st.l[n] * unscale, item);
                    store_state(&st, &a, &at, lse_mem, n, item);
                }
            }
        }
    }
    report_faults(&args, &mem, at.b, item == 0 && at.g == 0 && strip == 0);
}
