// SPDX-License-Identifier: Apache-2.0
// Attention in two loops for CPU devices: the online normaliser of Milakov and Gimelshein, then the
// weighted sum with weights that are final. Nothing of the len_q x len_kv scores is ever in memory.
//
//   loop 1   m = max_j x[i,j],  l = sum_j e^(x[i,j] - m), both online;   LSE[b,h,i] = m + ln l
//   loop 2   O[b,h,i,:] = sum_j e^(x[i,j] - m) / l * V[b,g,j,:],         x computed again
//
// One work-item is a work-group and owns a tile of rows (vector_tile.clh).
//
//   global size: num_tiles * heads_kv * batch, tile fastest, last first (causal: heavy ones)
//   local memory: none. Private: as fused_vector.cl.
//
// Literals: those of vector_tile.clh.
// Slots: those of fused_vector.cl.
//
// Numerics: sums have three levels, as in fused_vector.cl. A tile of rows whose output isn't finite
// everywhere goes through loop 2 once more, with the hidden pairs left out one by one and half the
// weights, so that a mean of V near FLT_MAX stays finite on the way.

#include "vector_mask.clh"

// m and l of all keys.
static inline void find_sums(struct sums *total, struct sums *s, const ROWF *q,
                             const struct task *task, int j_begin, int j_end,
                             struct mask_tile *mask)
{
    int tiles = 0, n;
    clear(total);
    clear(s);
    for (int j = j_begin; j < j_end; j += n) {
        n = min(TILE_K, j_end - j);
        struct key_tile t;
        find_keys(&t, task, j, n, j_end);
        t.wants_values = false;
        t.v = t.k; // whose lines are not asked for yet
        t.v_stride = t.k_stride;
        ROWF p[PADDED_K * QV];
        ROWF f[QV];
        if (!score_tile(p, q, task, &t, mask))
            continue;
        absorb(p, f, s, n);
        if (++tiles % FLUSH_TILES == 0)
            flush(total, s);
    }
    flush(total, s);
}

// Scores to e^(x - m) / l, in place; the weights of an empty row are 0.
static inline void finish_weights(ROWF *p, const struct sums *total, float factor, int n)
{
    ROWF shift[QV];
    ROWF inverse[QV];
#pragma unroll
    for (int v = 0; v < QV; ++v) {
        shift[v] = shift_of(total->m[v]);
        inverse[v] = total->l[v] == (ROWF)(0.0f) ? (ROWF)(0.0f) : (ROWF)(factor) / total->l[v];
    }
    for (int c = 0; c < n; ++c) {
#pragma unroll
        for (int v = 0; v < QV; ++v)
            p[c * QV + v] = weight(p[c * QV + v], shift[v]) * inverse[v];
    }
}

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
two_loop_vector(FWD_PARAMS)
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
    struct sums s;
    find_sums(&total, &s, q, &task, j_begin, j_end, &mask);
    add_sinks(&total, &task);
    for (int v = 0; v < QV; ++v)
        s.m[v] = total.m[v]; // of flush(), which now finds the final maximum

    ROWF one[QV];
    for (int v = 0; v < QV; ++v)
        one[v] = (ROWF)(1.0f);
    bool careful = false;
    for (;;) {
        int tiles = 0, n;
        for (int d = 0; d < DIM_V * QV; ++d)
            total.o[d] = (ROWF)(0.0f);
        for (int j = j_begin; j < j_end; j += n) {
            n = min(TILE_K, j_end - j);
            struct key_tile t;
            find_keys(&t, &task, j, n, j_end);
            float room[STAGE_FLOATS];
            ROWF p[PADDED_K * QV];
            if (!score_tile(p, q, &task, &t, &mask))
                continue;
            ROWI hidden[TILE_K * QV];
            for (int c = 0; careful && c < n * QV; ++c)
                hidden[c] = p[c] == (ROWF)(-INFINITY);
            finish_weights(p, &total, careful ? 0.5f : 1.0f, n);
            bring_values(&t, &task, room);
            if (careful)
                accumulate_visible(s.o, p, hidden, one, &t);
            else
                accumulate(s.o, p, one, &t);
            if (++tiles % FLUSH_TILES == 0)
                flush(&total, &s);
        }
        flush(&total, &s);
        if (careful || all_finite(&total))
            break;
        careful = true;
    }
    // Final weights are those of a row whose maximum is its LSE and whose sum is 1.
    for (int v = 0; v < QV; ++v) {
        total.m[v] = row_lse(total.m[v], total.l[v]);
        // 1, or NaN by a sink, also of a row that took in no weight.
        total.l[v] = total.l[v] == (ROWF)(0.0f) ? (ROWF)(0.0f) : total.l[v] / total.l[v];
    }
    store_output(&total, &task, careful ? 2.0f : 1.0f, o_mem);
    if (a.flags & CLA_FWD_HAS_LSE)
        store_lse(&total, &task, lse_mem);
}
