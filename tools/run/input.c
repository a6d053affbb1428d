// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "run/run.h"

static int read_file(const char *shown, const char *path, enum tool_npy_dtype dtype,
                     struct tool_npy *npy)
{
    char why[512];

    if (!path || tool_npy_read(path, dtype, 4, npy, why, sizeof why))
        return 0;
    return tool_fail(TOOL_USE, "%s %s: %s", shown, path, why);
}

static int read_files(struct run *r)
{
    const struct options *opt = &r->opt;
    int code = read_file("-q", opt->q, TOOL_NPY_F32, &r->q);

    if (!code)
        code = read_file("-k", opt->k, TOOL_NPY_F32, &r->k);
    if (!code)
        code = read_file("-v", opt->v, TOOL_NPY_F32, &r->v);
    if (!code)
        code = read_file("--mask", opt->mask, TOOL_NPY_BOOL, &r->mask);
    if (!code)
        code = read_file("--compare", opt->compare, TOOL_NPY_F32, &r->want);
    return code;
}

static int bad_shape(const char *shown, const char *path, const struct tool_npy *npy,
                     const char *rule)
{
    char text[256];

    tool_npy_shape_text(npy->ndim, npy->shape, text, sizeof text);
    return tool_fail(TOOL_USE, "%s %s: shape %s: %s", shown, path, text, rule);
}

static int check_extents(const char *shown, const char *path, const struct tool_npy *npy,
                         int head_axis)
{
    for (int i = 0; i < 4; i++) {
        if (npy->shape[i] > INT32_MAX)
            return bad_shape(shown, path, npy, "an extent is over 2^31 - 1");
    }
    if (npy->shape[head_axis] == 0)
        return bad_shape(shown, path, npy, "there must be at least 1 head");
    if (npy->shape[3] == 0)
        return bad_shape(shown, path, npy, "dim must be at least 1");
    return 0;
}

static int check_mask(struct run *r)
{
    static const char *const axes[] = {"batch", "heads_q", "len_q", "len_kv"};
    struct tool_problem *p = &r->problem;
    const int32_t full[] = {p->batch, p->heads_q, p->len_q, p->len_kv};
    char rule[128];

    for (int i = 0; i < 4; i++) {
        if (r->mask.shape[i] != 1 && r->mask.shape[i] != full[i]) {
            snprintf(rule, sizeof rule, "axis %d (%s) must be 1 or %d", i, axes[i], (int)full[i]);
            return bad_shape("--mask", r->opt.mask, &r->mask, rule);
        }
        p->mask_extent[i] = (int32_t)r->mask.shape[i];
    }
    p->mask = true;
    return 0;
}

// Shapes of the files against each other, then the problem they pose.
static int check_shapes(struct run *r)
{
    const struct options *opt = &r->opt;
    const int head = opt->layout == CLATTN_LAYOUT_BSHD ? 2 : 1, seq = 3 - head;
    const int64_t *q = r->q.shape, *k = r->k.shape, *v = r->v.shape;
    int code = check_extents("-q", opt->q, &r->q, head);

    if (!code)
        code = check_extents("-k", opt->k, &r->k, head);
    if (!code)
        code = check_extents("-v", opt->v, &r->v, head);
    if (code)
        return code;
    if (k[0] != q[0])
        return bad_shape("-k", opt->k, &r->k, "batch differs from that of -q");
    if (q[head] % k[head] != 0)
        return bad_shape("-k", opt->k, &r->k, "heads of -q are not a multiple of its heads");
    if (k[3] != q[3])
        return bad_shape("-k", opt->k, &r->k, "dim differs from that of -q");
    if (v[0] != k[0] || v[head] != k[head] || v[seq] != k[seq])
        return bad_shape("-v", opt->v, &r->v, "batch, heads or sequence differ from those of -k");
    r->problem = (struct tool_problem){
        .batch = (int32_t)q[0],
        .heads_q = (int32_t)q[head],
        .heads_kv = (int32_t)k[head],
        .len_q = (int32_t)q[seq],
        .len_kv = (int32_t)k[seq],
        .dim_qk = (int32_t)q[3],
        .dim_v = (int32_t)v[3],
        .layout = opt->layout,
        .causal = opt->causal,
        .align = opt->align >= 0 ? opt->align : opt->causal_align >= 0 ? opt->causal_align : 0,
        .lse = opt->lse != NULL,
        .has_scale = opt->has_scale,
        .scale = (float)opt->scale,
        .algo = opt->algo,
        .kernel = opt->kernel,
        .num_splits = opt->splits,
        .softmax = opt->softmax > 0 ? opt->softmax : 0,
    };
    if (opt->mask && (code = check_mask(r)) != 0)
        return code;
    int64_t shape[4];
    tool_tensor_shape(&r->problem, TOOL_O, shape);
    if (opt->compare && memcmp(r->want.shape, shape, sizeof shape) != 0) {
        char rule[256] = "the output has shape ";
        tool_npy_shape_text(4, shape, rule + strlen(rule), sizeof rule - strlen(rule));
        return bad_shape("--compare", opt->compare, &r->want, rule);
    }
    return 0;
}

int run_read_input(struct run *r)
{
    int code = read_files(r);

    return code ? code : check_shapes(r);
}
