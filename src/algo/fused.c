// SPDX-License-Identifier: Apache-2.0
// Fused attention on OpenCL: one pass over K and V, the online normaliser, no score matrix
// (FlashAttention-2 order, arXiv 2307.08691). Two kernel shapes: fused_group.cl, fused_vector.cl.
#include "algo/tiled_ocl.h"

static const struct cla_tiled fused = {
    .group = {{"fused_group.cl", "fused_group"}},
    .vector = {{"fused_vector.cl", "fused_vector"}},
    .subgroups = true,
    .passes = 1,
    .launch = cla_tiled_launch_rows,
};

const struct cla_algo cla_algo_fused = {
    .id = CLATTN_ALGO_FUSED,
    .name = "fused",
    .tiled = &fused,
    .propose = cla_tiled_propose,
    .prepare = cla_tiled_prepare,
    .identify = cla_tiled_identify,
    .renew = cla_tiled_renew,
    .release = cla_tiled_release,
    .run = cla_tiled_run,
    .enqueue = cla_tiled_enqueue,
};
