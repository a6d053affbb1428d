// SPDX-License-Identifier: Apache-2.0
// Attention in two loops on OpenCL: the online normaliser of a row, then its weighted sum with the
// scores computed again (docs/math.md, section 4.3). Two shapes: two_loop_group.cl,
// two_loop_vector.cl.
#include <math.h>

#include "algo/tiled_ocl.h"

// What one loop moves (cla_tile_bytes), and for the other K for each tile of rows, mask and bias.
static double bytes(const struct cla_problem *p, const struct cla_caps *caps,
                    const struct cla_tile *t, int64_t len_q, int64_t len_kv)
{
    (void)caps;
    const double rows = (double)len_q * p->group;
    const double keys = (double)len_kv;
    const double again = ceil(rows / t->tile_q) * keys * cla_key_bytes(p, p->dim_qk) +
                         rows * keys * cla_pair_bytes(p);
    return cla_tile_bytes(p, t, len_q, len_kv) + p->heads_kv * again;
}

static const struct cla_tiled two_loop = {
    .group = {{"two_loop_group.cl", "two_loop_group"}},
    .vector = {{"two_loop_vector.cl", "two_loop_vector"}},
    .passes = 2,
    .launch = cla_tiled_launch_rows,
};

const struct cla_algo cla_algo_two_loop = {
    .id = CLATTN_ALGO_TWO_LOOP,
    .name = "two_loop",
    .by_name_only = true,
    .lacks = CLA_NEEDS_INT8 | CLA_NEEDS_PACKED | CLA_NEEDS_PAGED,
    .tiled = &two_loop,
    .propose = cla_tiled_propose,
    .prepare = cla_tiled_prepare,
    .identify = cla_tiled_identify,
    .renew = cla_tiled_renew,
    .release = cla_tiled_release,
    .bytes = bytes,
    .run = cla_tiled_run,
    .enqueue = cla_tiled_enqueue,
};
