// SPDX-License-Identifier: Apache-2.0
// Fused attention on OpenCL in the order of FlashAttention-1 (arXiv 2205.14135): keys outside,
// queries inside, O, m and l in global memory (docs/math.md, section 4.4). Two kernel shapes:
// fused_kv_outer_group.cl, fused_kv_outer_vector.cl.
#include <math.h>

#include "algo/tiled_ocl.h"

// Whether O and l carry their rounding errors along, which costs as much memory and traffic again.
static bool is_long(int64_t len_kv)
{
    return len_kv > CLA_LONG_ROWS_KEYS;
}

static int64_t tiles_of_rows(const struct cla_problem *p, const struct cla_tile *t, int64_t len_q)
{
    return (len_q * p->group + t->tile_q - 1) / t->tile_q;
}

// Work-groups for each (batch, key head), each with a strip of the tiles of rows. The paper has
// one, and leaves compute units idle where there are more of these than heads. Results don't depend
// on it, since tiles of rows need nothing of each other. A driver that counts the iterations of a
// work-item gets a work-group for each tile of rows.
static int64_t strips_of(const struct cla_problem *p, const struct cla_caps *caps, int64_t batch,
                         int64_t tiles)
{
    const int64_t units = caps->compute_units, heads = batch * p->heads_kv;
    const int64_t wanted =
        caps->quirks & CLA_QUIRK_LOOP_LIMIT ? tiles : (units + heads - 1) / heads;
    return wanted < 1 ? 1 : wanted < tiles ? wanted : tiles;
}

static uint64_t workspace(const clattn_context *ctx, const struct cla_problem *p,
                          const struct cla_prepared *prepared, const struct cla_extent *e)
{
    (void)ctx;
    const struct cla_tile *t = &prepared->tile;
    const uint64_t heads = (uint64_t)e->batch * (uint64_t)p->heads_kv; // below 2^62
    const uint64_t rows = (uint64_t)tiles_of_rows(p, t, e->len_q) * (uint64_t)t->tile_q;
    const uint64_t row =
        (uint64_t)CLA_KV_OUTER_ROW_FLOATS(p->dim_v, is_long(e->len_kv),
                                          p->dtype_o != CLATTN_DTYPE_F32) * sizeof(float);
    if ((double)heads * (double)rows * (double)row >= 0x1p63)
        return UINT64_MAX;
    return heads * rows * row;
}

// K and V once for each strip, or where local memory doesn't keep a tile of them for each tile of
// rows; Q for each tile of keys; O, m and l read for each but the first and written for each, but
// for m and l after the last. O is floats between tiles of keys, whatever its type.
static double bytes(const struct cla_problem *p, const struct cla_caps *caps,
                    const struct cla_tile *t, int64_t len_q, int64_t len_kv)
{
    const double rows = (double)len_q * p->group, keys = (double)len_kv;
    const double tiles_k = ceil(keys / t->tile_k);
    const double again = tiles_k > 1.0 ? tiles_k - 1.0 : 0.0;
    const int64_t tiles_q = tiles_of_rows(p, t, len_q);
    const bool kept = t->kernel == CLATTN_KERNEL_VECTOR ||
                      (t->chunk_d >= p->dim_qk && t->chunk_d >= p->dim_v);
    const int32_t batch = cla_bounds_of(p).batch;
    const double reads = (double)(kept ? strips_of(p, caps, batch, tiles_q) : tiles_q);
    const double errors = is_long(len_kv) ? 1.0 + CLA_ROUND_UP4(p->dim_v) : 0.0;
    const double row = tiles_k * (double)cla_dtype_bytes(p->dtype_q) * p->dim_qk +
                       8.0 * again * (p->dim_v + 2.0 + errors) +
                       (double)cla_dtype_bytes(p->dtype_o) * p->dim_v + (p->lse ? 4.0 : 0.0);
    return p->heads_kv *
           (reads * keys * (cla_key_bytes(p, p->dim_qk) + cla_key_bytes(p, p->dim_v)) +
            rows * (row + keys * cla_pair_bytes(p)));
}

static clattn_status launch(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call,
                            const struct cla_submit *submit)
{
    struct cla_fwd_args args;
    cla_tiled_args(p, &prepared->tile, call, &args);
    if (is_long(call->len_kv))
        args.flags |= CLA_FWD_LONG_ROWS;
    const int64_t strips = strips_of(p, &ctx->caps, call->batch, args.num_tiles);
    const uint64_t groups = (uint64_t)strips * (uint64_t)p->heads_kv * (uint64_t)call->batch;
    return cla_tiled_launch(ctx, prepared, 0, &args, call, groups, submit);
}

static const struct cla_tiled fused_kv_outer = {
    .group = {{"fused_kv_outer_group.cl", "fused_kv_outer_group"}},
    .vector = {{"fused_kv_outer_vector.cl", "fused_kv_outer_vector"}},
    // One, and as much again for O, m and l.
    .passes = 2,
    .launch = launch,
};

const struct cla_algo cla_algo_fused_kv_outer = {
    .id = CLATTN_ALGO_FUSED_KV_OUTER,
    .name = "fused_kv_outer",
    .by_name_only = true,
    .lacks = CLA_NEEDS_INT8 | CLA_NEEDS_PACKED | CLA_NEEDS_PAGED,
    .tiled = &fused_kv_outer,
    .propose = cla_tiled_propose,
    .prepare = cla_tiled_prepare,
    .identify = cla_tiled_identify,
    .renew = cla_tiled_renew,
    .release = cla_tiled_release,
    .workspace = workspace,
    .bytes = bytes,
    .run = cla_tiled_run,
    .enqueue = cla_tiled_enqueue,
};
