// SPDX-License-Identifier: Apache-2.0
// Fused attention with split keys on OpenCL, for few queries and long context: the keys are cut
// into parts that work-groups share, and a second kernel merges what they leave in the workspace.
// docs/math.md, section 4.6.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "algo/tiled_ocl.h"
#include "ocl/error.h"

enum {
    // Work-groups that a compute unit should have: enough to even out when some are slower, and
    // for a GPU to have other work while one waits for memory.
    GROUPS_PER_UNIT = 4,
    // Keys of a part, at least: below, what begins and ends a part counts, and the merge.
    PART_KEYS_LEAST = 256,
    // Tiles that CLATTN_ALGO_AUTO may try of this algorithm, in front of those of the others.
    AUTO_TILES = 2
};

// ---- parts -------------------------------------------------------------------------------------

// Work-groups without a cut.
static double whole_groups(const struct cla_problem *p, const struct cla_tile *tile,
                           const struct cla_extent *e)
{
    return ceil((double)e->len_q * p->group / tile->tile_q) * p->heads_kv * e->batch;
}

static double groups_wanted(const struct cla_caps *caps)
{
    return (double)GROUPS_PER_UNIT * (caps->compute_units > 0 ? caps->compute_units : 1);
}

// Half the work-groups that are wanted, or more, are left alone.
static int32_t num_splits(const struct cla_problem *p, const struct cla_caps *caps,
                          const struct cla_tile *tile, const struct cla_extent *e)
{
    if (p->num_splits)
        return p->num_splits;
    if (e->bound && (e->len_q == INT32_MAX || e->len_kv == INT32_MAX))
        return 1;
    const double whole = whole_groups(p, tile, e), wanted = groups_wanted(caps);
    const double most = e->len_kv / PART_KEYS_LEAST;
    if (whole <= 0.0 || whole * 2.0 >= wanted || most < 2.0)
        return 1;
    const double parts = fmin(ceil(wanted / whole), most);
    return parts < 65535.0 ? (int32_t)parts : 65535;
}

// Of the calls within a bound those with fewer sequences or queries may have more parts: with P
// parts of a call that is cut, P * whole < wanted + whole < 1.5 * wanted.
static uint64_t workspace(const clattn_context *ctx, const struct cla_problem *p,
                          const struct cla_prepared *prepared, const struct cla_extent *e)
{
    const struct cla_caps *caps = &ctx->caps;
    const struct cla_tile *tile = &prepared->tile;
    const double rows = (double)e->batch * p->heads_q * e->len_q;
    double part_rows = 0.0; // rows of all parts
    if (e->bound && !p->num_splits) {
        const double most = fmin(e->len_kv / PART_KEYS_LEAST, groups_wanted(caps));
        if (most >= 2.0)
            part_rows = fmin(most * rows, 1.5 * groups_wanted(caps) * tile->tile_q);
    } else {
        const int32_t parts = num_splits(p, caps, tile, e);
        part_rows = parts > 1 ? parts * rows : 0.0;
    }
    const double bytes = ceil(part_rows) * 4.0 * (p->dim_v + 2);
    return bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX;
}

static double bytes_moved(const struct cla_problem *p, const struct cla_caps *caps,
                          const struct cla_tile *t, int64_t len_q, int64_t len_kv)
{
    const struct cla_extent e = {cla_bounds_of(p).batch, (int32_t)len_q, (int32_t)len_kv, false};
    const double parts = num_splits(p, caps, t, &e);
    const double rows = (double)len_q * p->heads_q;
    const double cut = (parts - 1.0) * (double)cla_dtype_bytes(p->dtype_q) * p->dim_qk +
                       8.0 * parts * (p->dim_v + 2);
    return cla_tile_bytes(p, t, len_q, len_kv) + (parts > 1.0 ? rows * cut : 0.0);
}

// ---- choice ------------------------------------------------------------------------------------

static void add_reason(const struct cla_problem *p, const struct cla_caps *caps,
                       struct cla_tile *t)
{
    const struct cla_extent e = cla_bounds_of(p);
    const int32_t parts = num_splits(p, caps, t, &e);
    const size_t used = strlen(t->reason);
    if (parts < 2)
        return;
    if (p->max_len_q == INT32_MAX)
        snprintf(t->reason + used, sizeof t->reason - used, ", keys in %d parts", (int)parts);
    else
        snprintf(t->reason + used, sizeof t->reason - used,
                 ", keys in %d parts: otherwise %.0f work-groups for %d compute units", (int)parts,
                 whole_groups(p, t, &e), (int)caps->compute_units);
}

// Whether the vector shape is the one that counts.
static bool takes_vectors(const struct cla_problem *p, const struct cla_caps *caps)
{
    return p->kernel == CLATTN_KERNEL_VECTOR ||
           (p->kernel == CLATTN_KERNEL_AUTO && cla_caps_vector_shape(caps));
}

// Where nobody asked for this algorithm it serves what it is better at: few rows on CPU devices,
// and keys that are worth cutting anywhere.
static bool wins(const struct cla_problem *p, const struct cla_caps *caps, const struct cla_tile *t)
{
    const struct cla_extent e = cla_bounds_of(p);
    if (p->max_batch == INT32_MAX || p->max_len_q == INT32_MAX || p->max_len_kv == INT32_MAX)
        return false;
    return cla_tile_is_few(t) || num_splits(p, caps, t, &e) > 1;
}

static int propose(const struct cla_algo *self, const struct cla_problem *p,
                   const struct cla_caps *caps, struct cla_tile *out, int max,
                   struct cla_notes *refusals)
{
    const bool by_name = p->algo == CLATTN_ALGO_SPLIT_KV;
    struct cla_notes *notes = by_name ? refusals : NULL;
    int n = 0;
    if (!by_name && max > AUTO_TILES)
        max = AUTO_TILES;
    if (max > 0 && caps->compiler && takes_vectors(p, caps))
        n = cla_tile_rank_few(p, caps, out, notes);
    if (n < max)
        n += cla_tiled_propose(self, p, caps, out + n, max - n, notes);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (!by_name && !wins(p, caps, &out[i]))
            continue;
        out[kept] = out[i];
        add_reason(p, caps, &out[kept++]);
    }
    return kept;
}

// ---- launch ------------------------------------------------------------------------------------

static clattn_status launch(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call,
                            const struct cla_submit *submit)
{
    clattn_status st = CLATTN_OK;
    const struct cla_cl *cl = ctx->ocl->cl;
    const struct cla_tile *tile = &prepared->tile;
    const struct cla_extent e = {call->batch, call->len_q, call->len_kv, false};
    struct cla_fwd_args args;
    cl_event parts = NULL;
    cla_tiled_args(p, tile, call, &args);
    args.num_splits = num_splits(p, &ctx->caps, tile, &e);
    const uint64_t groups = (uint64_t)args.num_tiles * (uint64_t)args.num_splits *
                            (uint64_t)p->heads_kv * (uint64_t)call->batch;
    // What a work-item of merge.cl does for each part, from above.
    if ((ctx->caps.quirks & CLA_QUIRK_LOOP_LIMIT) &&
        (int64_t)args.num_splits * (2 + p->dim_v) > CLA_LOOP_LIMIT)
        return cla_fail(&ctx->log, CLATTN_ERR_UNSUPPORTED,
                        "num_splits is %d: this driver stops loops after %d iterations, enough to "
                        "merge %d parts", (int)args.num_splits, (int)CLA_LOOP_LIMIT,
                        (int)(CLA_LOOP_LIMIT / (2 + p->dim_v)));
    if (args.num_splits == 1)
        return cla_tiled_launch(ctx, prepared, 0, &args, call, groups, submit);
    if (call->workspace_offset % 4 != 0)
        args.flags &= ~CLA_FWD_ALIGNED16;
    const struct cla_submit first = {submit->queue, submit->num_wait, submit->wait, &parts};
    CLA_TRY(cla_tiled_launch(ctx, prepared, 0, &args, call, groups, &first));
    const struct cla_submit second = {submit->queue, 1, &parts, submit->done};
    const uint64_t rows =
        (uint64_t)call->batch * (uint64_t)p->heads_q * (uint64_t)call->len_q;
    CLA_TRY(cla_tiled_launch(ctx, prepared, 1, &args, call, rows, &second));
done:
    if (parts)
        cl->ReleaseEvent(parts);
    return st;
}

static const struct cla_tiled split_kv = {
    .group = {{"split_kv_group.cl", "split_kv_group"}, {"merge.cl", "merge"}},
    .vector = {{"split_kv_vector.cl", "split_kv_vector"}, {"merge.cl", "merge"}},
    .few = {{"split_kv_few.cl", "split_kv_few"}, {"merge.cl", "merge"}},
    .passes = 1,
    .launch = launch,
};

const struct cla_algo cla_algo_split_kv = {
    .id = CLATTN_ALGO_SPLIT_KV,
    .name = "split_kv",
    .tiled = &split_kv,
    .propose = propose,
    .prepare = cla_tiled_prepare,
    .identify = cla_tiled_identify,
    .renew = cla_tiled_renew,
    .release = cla_tiled_release,
    .workspace = workspace,
    .bytes = bytes_moved,
    .num_splits = num_splits,
    .run = cla_tiled_run,
    .enqueue = cla_tiled_enqueue,
};
