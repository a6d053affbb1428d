// SPDX-License-Identifier: Apache-2.0
// Fused forward attention in the order of FlashAttention-1 (arXiv 2205.14135, Algorithm 1), for CPU
// devices: keys and values in the outer loop, queries inside, and the output, finished for the keys
// so far, in global memory after each tile of keys.
//
//   O'[b,h,i,:] = O * (l * e^(m - m')) / l' + sum_j e^(x[i,j] - m') / l' * V[b,g,j,:]
//   m' = max(m, x[i,j]),  l' = l * e^(m - m') + sum_j e^(x[i,j] - m'),  j over a tile of keys
//   LSE[b,h,i] = m + ln l at the end
//
// One work-item is a work-group and owns one (batch, key head), or every strips-th tile of rows of
// one, where there are more compute units than these: the order stays, K and V are read once for
// each strip. They are read in place, and stay in the cache for all tiles of rows.
//
//   global size: strips * heads_kv * batch, strip fastest
//   local memory: none. Private: as fused_vector.cl, with the o before in place of o_hi.
//
// Literals: those of vector_tile.clh. Slots: those of fused_vector.cl; WORKSPACE, see
// vector_state.clh.
//
// Numerics: the first tile of keys writes O, m and l and reads none of them. A tile of rows whose
// sum over a tile of keys is not finite makes it again, with the hidden pairs left out one by one
// and the weights scaled down, so that the sum of finite V is finite. CLA_FWD_LONG_ROWS carries the
// rounding errors of O and l along in the workspace.

#include "vector_state.clh"

// s = maximum of these keys and those before (m), sum and weighted sum of these. Returns what the
// weighted sum must be multiplied with.
static inline float attend(struct sums *s, const ROWF *m, const ROWF *q, const struct task *task,
                           struct key_tile *t, struct mask_tile *mask)
{
    bool careful = false;
    for (;;) {
        float room[STAGE_FLOATS];
        ROWF p[PADDED_K * QV];
        ROWF f[QV];
        ROWI hidden[TILE_K * QV];
        clear(s);
        for (int v = 0; v < QV; ++v)
            s->m[v] = m[v];
        if (!score_tile(p, q, task, t, mask))
            return 1.0f;
        for (int c = 0; careful && c < t->keys * QV; ++c)
            hidden[c] = p[c] == (ROWF)(-INFINITY);
        absorb(p, f, s, t->keys);
        for (int c = 0; careful && c < t->keys * QV; ++c)
            p[c] *= careful_scale(TILE_K);
        bring_values(t, task, room);
        if (careful)
            accumulate_visible(s->o, p, hidden, f, t);
        else
            accumulate(s->o, p, f, t);
        if (careful || all_finite(s))
            return careful ? careful_unscale(TILE_K) : 1.0f;
        careful = true;
    }
}

// O, m and l of the rows as the stores want them: O is divided already, so these are rows whose sum
// is 1. Behind the last keys the sink comes in, whose share goes from all weights.
static inline void finish_state(struct sums *s, struct state *st, const struct task *task)
{
    for (int v = 0; v < QV; ++v) {
        s->m[v] = st->m[v];
        s->l[v] = st->l[v];
    }
    if (st->last && (task->a->flags & CLA_FWD_HAS_SINKS)) {
        add_sinks(s, task);
        for (int v = 0; v < QV; ++v) {
            const ROWI none = s->l[v] == (ROWF)(0.0f);
            const ROWF share = none ? (ROWF)(1.0f) : st->l[v] / s->l[v];
            for (int d = 0; d < DIM_V; ++d)
                s->o[d * QV + v] *= share;
        }
    }
    for (int v = 0; v < QV; ++v) {
        s->m[v] = row_lse(s->m[v], s->l[v]);
        s->l[v] = s->l[v] == (ROWF)(0.0f) ? (ROWF)(0.0f) : (ROWF)(1.0f);
    }
}

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
fused_kv_outer_vector(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const int strips = (int)(get_global_size(0) / ((size_t)a.heads_kv * (size_t)a.batch));
    const long head = get_global_id(0) / strips; // of all batches
    const int strip = (int)(get_global_id(0) % strips);
    const int g = (int)(head % a.heads_kv), b = (int)(head / a.heads_kv);
    enter_sequence(&a, &mem, b, g == 0 && strip == 0);
    const int begin = window_begin(&a, 0);
    const int end = window_end(&a, a.len_q - 1);
    // The first round is there also where there are no keys, since it writes O.
    const int rounds = max((int)(((long)end - begin + TILE_K - 1) / TILE_K), 1);

    for (int round = 0; round < rounds; ++round) {
        const int j = begin + round * TILE_K;
        const int n = min(TILE_K, end - j);
        for (int tile = strip; (long)tile * TILE_Q < row_count(&a); tile += strips) {
            struct tile_rows rows;
            struct state st;
            find_rows(&rows, &a, g, (long)tile * TILE_Q);
            find_state(&st, &a, workspace, head, tile);
            const struct task task = {&a, &mem, &rows, k_mem, v_mem, b, g};
            const int from = window_begin(&a, rows.query[0]);
            const int to = window_end(&a, rows.query[TILE_Q - 1]);
            const bool sees = from < to && from - j < n && j < to;
            st.first = round == 0;
            st.last = from >= to || to - j <= TILE_K;
            if (!st.first && !sees)
                continue;

            struct sums s;
            float unscale = 1.0f;
            load_state(&st);
            if (sees) {
                ROWF q[DIM_QK * QV];
                struct mask_tile mask;
                struct key_tile t;
                find_keys(&t, &task, j, min(n, to - j), to);
                load_queries(q, &task, q_mem);
                find_mask(&mask, &task);
                unscale = attend(&s, st.m, q, &task, &t, &mask);
            } else {
                clear(&s);
            }
            ROWF before[DIM_V * QV];
            if (st.first)
                for (int d = 0; d < DIM_V * QV; ++d)
                    before[d] = (ROWF)(0.0f);
            else
                load_output(before, &st, &task, o_mem);
            add_sum(&st, &s);
            add_output(&s, &st, before, unscale);
            if (!st.last)
                store_state(&st);
            finish_state(&s, &st, &task);
            keep_output(&s, &st, &task, o_mem);
            if (st.last && (a.flags & CLA_FWD_HAS_LSE))
                store_lse(&s, &task, lse_mem);
        }
    }
}
