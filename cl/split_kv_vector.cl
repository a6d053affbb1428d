// SPDX-License-Identifier: Apache-2.0
// Attention with split keys for CPU devices: fused_vector.cl on a part of the keys. For as many
// rows as fill vectors; split_kv_few.cl takes fewer.
//
//   m_k = max x,  l_k = sum e^(x - m_k),  O_k = sum e^(x - m_k) * V / l_k    over keys of part k
//
// merge.cl makes O and LSE of all parts. With num_splits = 1 they are written here at once.
//
// One work-item is a work-group and owns a tile of rows and one part of its keys (vector_tile.clh).
//
//   global size: num_tiles * num_splits * heads_kv * batch, tile fastest, last first (split.clh)
//   local memory: none. Private: as fused_vector.cl.
//
// Literals: those of vector_tile.clh.
// Slots: those of fused_vector.cl; WORKSPACE only with more than one part.
//
// Numerics: as fused_vector.cl. A part without keys has m = -INFINITY, l = 0, O = 0.

#include "vector_walk.clh"
#include "split.clh"

DEFINE_FINITE(finite1, finite_mean1, float, int, as_float, as_int)

// O, m and l of the rows of the tile to the workspace, `row` is the first. Element by element: a
// part is long enough for that not to count.
static inline void store_part(const struct sums *s, const struct cla_fwd_args *a,
                              const struct tile_rows *rows, long row, int part, float unscale,
                              __global float *workspace)
{
    for (int n = 0; n < rows->real; ++n) {
        const int v = n / W;
        const int lane = n % W;
        const float l = ((const float *)&s->l[v])[lane];
        __global float *o = workspace + part_o_at(a, row + n, part);
        __global float *ml = workspace + part_ml_at(a, row + n, part);
        for (int d = 0; d < DIM_V; ++d) {
            const float x = ((const float *)&s->o[d * QV + v])[lane];
            o[d] = l == 0.0f ? 0.0f : finite_mean1(x / l * unscale, x);
        }
        ml[0] = ((const float *)&s->m[v])[lane];
        ml[1] = l;
    }
}

// The hint keeps compilers from widening the kernel over work-items as well.
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(ROWF))) __kernel void
split_kv_vector(FWD_PARAMS)
{
    struct cla_fwd_args a = args;
    FWD_MEM(mem);
    const long id = get_global_id(0);
    const int part = part_of(&a, id);
    struct place at;
    find_place(&at, &a, whole_id(&a, id));
    enter_sequence(&a, &mem, at.b, at.g == 0 && at.first == 0 && part == 0);
    if (at.first >= row_count(&a))
        return;
    struct tile_rows rows;
    find_rows(&rows, &a, at.g, at.first);
    const struct task task = {&a, &mem, &rows, k_mem, v_mem, at.b, at.g};
    int j_begin = window_begin(&a, rows.query[0]);
    int j_end = window_end(&a, rows.query[TILE_Q - 1]);
    cut_keys(&j_begin, &j_end, &a, part);

    ROWF q[DIM_QK * QV];
    if (j_begin < j_end)
        load_queries(q, &task, q_mem);
    struct mask_tile mask;
    find_mask(&mask, &task);

    struct sums total;
    const bool careful = sum_keys(&total, q, &task, j_begin, j_end, &mask);
    const float unscale = careful ? careful_unscale(a.len_kv) : 1.0f;
    if (a.num_splits > 1) {
        store_part(&total, &a, &rows, part_row(&a, at.b, at.g, at.first), part, unscale, workspace);
        return;
    }
    add_sinks(&total, &task);
    store_output(&total, &task, unscale, o_mem);
    if (a.flags & CLA_FWD_HAS_LSE)
        store_lse(&total, &task, lse_mem);
}
