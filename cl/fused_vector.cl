// SPDX-License-Identifier: Apache-2.0
// Fused forward attention for CPU devices: scores, softmax and weighted sum in one pass over the
// keys, nothing of the len_q x len_kv scores ever in memory.
//
//   O[b,h,i,:] = sum_j p[i,j] * V[b,g,j,:] / l[i],  p = e^(x[i,j] - m[i]),  x = scale * dot(Q, K),
//   LSE[b,h,i] = m[i] + ln l[i],                    j over the keys that row i sees
//
// One work-item is a work-group and owns a tile of rows (vector_tile.clh, vector_walk.clh).
//
//   global size: num_tiles * heads_kv * batch, tile fastest, last first (causal: heavy ones)
//   local memory: none. Private: q, o, o_hi of DIM * TILE_Q floats each, p of TILE_K * TILE_Q, a
//   bias as much again, and TILE_K * DIM where K and V are staged.
//
// Literals: those of vector_tile.clh.
// Slots: CLA_SLOT_*; what a flag CLA_FWD_* stands for only with it, MASK, BIAS and ALIBI only under
// CLA_MASK_GENERAL, the table only under PAGED, scales only of int8.
//
// Numerics: sums have three levels, so that a million keys lose nothing: a tile, FLUSH_TILES tiles,
// the rest. A tile of rows whose output is not finite everywhere is computed again, with the hidden
// pairs left out one by one and the weights scaled down, so that the sum of finite V is finite.

#include "vector_walk.clh"

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
fused_vector(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    struct place at;
    find_place(&at, &a, get_global_id(0));
    enter_sequence(&a, &mem, at.b, at.g == 0 && at.first == 0);
    if (at.first >= row_count(&a))
        return;
    struct tile_rows rows;
    find_rows(&rows, &a, at.g, at.first);
    const struct task task = {&a, &mem, &rows, k_mem, v_mem, at.b, at.g};
    const int j_begin = window_begin(&a, rows.query[0]);
    const int j_end = window_end(&a, rows.query[TILE_Q - 1]);

    ROWF q[DIM_QK * QV];
    load_queries(q, &task, q_mem);
    struct mask_tile mask;
    find_mask(&mask, &task);

    struct sums total;
    const bool careful = sum_keys(&total, q, &task, j_begin, j_end, &mask);
    add_sinks(&total, &task);
    store_output(&total, &task, careful ? careful_unscale(a.len_kv) : 1.0f, o_mem);
    if (a.flags & CLA_FWD_HAS_LSE)
        store_lse(&total, &task, lse_mem);
}
