// SPDX-License-Identifier: Apache-2.0
// Attention step by step, with the scores in memory: a matrix product, softmax of rows, a matrix
// product. The baseline that the others are measured against. The products are CLBlast's, softmax
// is that of softmax_ocl.c, what is left is in unfused.cl.
//
// All heads of all sequences go through each step together. The workspace holds the scores, V with
// the rows that are not finite as 0, and copies of Q, K and O for calls whose strides or types
// CLBlast does not take. A sink is one score more at the end of a row, which the second product
// leaves out.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/softmax.h"
#include "algo/tiled_ocl.h"
#include "ocl/clblast.h"
#include "ocl/error.h"

enum { COPY, SCORES, FINISH };

enum {
    ITEMS_MAX = 64,
    // Keys that one product sums up: CLBlast adds them one after the other, which loses 1e-3 of
    // constant V over 10^6 keys.
    PART_KEYS = 1024
};

struct unfused {
    const struct cla_clblast *blast;
    struct cla_softmax softmax;
    struct cla_softmax_shape shape;
    struct cla_softmax_kernels *kernels;
};

// ---- choice ------------------------------------------------------------------------------------

static int propose(const struct cla_algo *self, const struct cla_problem *p,
                   const struct cla_caps *caps, struct cla_tile *out, int max,
                   struct cla_notes *refusals)
{
    static const char *const softmax[] = {"", "naive", "safe", "online"};
    if (max < 1 || !cla_tiled_compiles(self, caps, refusals))
        return 0;
    const size_t most = cla_caps_items(caps);
    int32_t items = 1;
    while (items < ITEMS_MAX && 2 * (size_t)items <= most)
        items *= 2;
    // Fewer for a compiler whose kernels take no more.
    int n = 0;
    for (; n < max && n < 3 && items > 0; n++, items /= 8) {
        out[n] = (struct cla_tile){.kernel = CLATTN_KERNEL_AUTO, .tile_q = 1, .tile_k = items,
                                   .items_q = 1, .items_k = items};
        snprintf(out[n].reason, sizeof out[n].reason,
                 "scores in memory, %s softmax, products by CLBlast", softmax[p->softmax]);
    }
    return n;
}

static clattn_status prepare_more(clattn_context *ctx, const struct cla_problem *p,
                                  struct cla_prepared *prepared, char *why, size_t why_size)
{
    clattn_status st = CLATTN_OK;
    struct unfused *u = calloc(1, sizeof *u);
    if (!u)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a prepared kernel");
    prepared->more = u;
    u->blast = cla_clblast_shared(&ctx->log, why, why_size);
    if (!u->blast || !cla_clblast_same_loader(u->blast, ctx->ocl->cl, why, why_size))
        return CLATTN_ERR_UNSUPPORTED;
    u->softmax = (struct cla_softmax){
        .algo = p->softmax, .path = CLATTN_SOFTMAX_PATH_OPENCL, .kernel = CLATTN_KERNEL_AUTO,
        .dtype_x = CLATTN_DTYPE_F32, .dtype_y = CLATTN_DTYPE_F32, .lse = p->lse};
    st = cla_softmax_prepare(ctx, &u->softmax, &u->shape, &u->kernels);
    return st;
}

static void release_more(struct cla_prepared *prepared)
{
    struct unfused *u = prepared->more;
    cla_softmax_release(&u->kernels);
    free(u);
}

// ---- workspace ---------------------------------------------------------------------------------

// What is where, in floats from the start of the workspace; `floats` in all. A distance of rows is
// more than their length and a multiple of 4: see cla_clblast_takes().
struct layout {
    int64_t rows; // queries of all heads
    int64_t keys; // keys of all key heads
    int64_t ld_scores, ld_qk, ld_v;
    int32_t parts_o; // of the keys
    int64_t scores, parts, q, k, v, o, marks, any;
    double floats;
};

static int64_t pitch(int64_t length)
{
    return (length + 4) / 4 * 4;
}

static int32_t parts_of(int64_t len_kv)
{
    return len_kv ? (int32_t)((len_kv - 1) / PART_KEYS + 1) : 1;
}

// Places that lie beyond 64 bits are wrong, but then `floats` says so.
static struct layout layout(const clattn_context *ctx, const struct cla_prepared *prepared,
                            const struct cla_problem *p, const struct cla_extent *e)
{
    // Before anything is compiled, that of the device's own figures.
    const struct cla_softmax_shape shape =
        prepared && prepared->more ? ((const struct unfused *)prepared->more)->shape
                                   : cla_softmax_shape(&ctx->caps, CLATTN_KERNEL_AUTO);
    const double rows = (double)e->batch * p->heads_q * e->len_q;
    const double keys = (double)e->batch * p->heads_kv * e->len_kv;
    struct layout l = {.rows = rows < 0x1p60 ? (int64_t)rows : 0,
                       .keys = keys < 0x1p60 ? (int64_t)keys : 0,
                       .ld_scores = pitch(e->len_kv),
                       .ld_qk = pitch(p->dim_qk),
                       .ld_v = pitch(p->dim_v),
                       .parts_o = parts_of(e->len_kv)};
    // Parts of softmax: at most two for each group that keeps the device busy, or as many as the
    // driver's loops ask for.
    const int64_t scored = (int64_t)e->len_kv + p->sinks;
    const int64_t parts = 1 + (shape.most_part ? scored / shape.most_part : 0);
    const double sizes[] = {rows * (double)l.ld_scores,
                            2.0 * (2.0 * shape.groups + rows * (double)parts),
                            rows * (double)l.ld_qk, keys * (double)l.ld_qk, keys * (double)l.ld_v,
                            rows * (double)l.ld_v * l.parts_o, keys,
                            (double)e->batch * p->heads_kv};
    int64_t *const places[] = {&l.scores, &l.parts, &l.q, &l.k, &l.v, &l.o, &l.marks, &l.any};
    for (int i = 0; i < 8; i++) {
        *places[i] = l.floats < 0x1p60 ? (int64_t)l.floats : 0;
        l.floats += sizes[i];
    }
    return l;
}

// Whether scale and masking are a pass of their own: not where softmax can scale and all is seen.
static bool has_scores_pass(const struct cla_problem *p)
{
    return p->mask || p->causal || p->window || p->bias || p->alibi || p->softcap || p->sinks ||
           p->kv_lens;
}

static uint64_t workspace(const clattn_context *ctx, const struct cla_problem *p,
                          const struct cla_prepared *prepared, const struct cla_extent *e)
{
    const struct layout l = layout(ctx, prepared, p, e);
    return l.floats < 0x1p60 ? (uint64_t)l.floats * sizeof(float) : UINT64_MAX;
}

// Bytes of an element that the products take as it lies, or that is copied to float and read there.
static double elem_bytes(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4.0 : (double)cla_dtype_bytes(dtype) + 8.0;
}

// See the header: the scores are written and read by the products, and go through the passes of
// softmax; masking is a pass of its own.
static double bytes(const struct cla_problem *p, const struct cla_caps *caps,
                    const struct cla_tile *tile, int64_t len_q, int64_t len_kv)
{
    (void)caps;
    (void)tile;
    const double rows = (double)p->heads_q * (double)len_q;
    const double keys = (double)p->heads_kv * (double)len_kv;
    const double scores = rows * (double)len_kv;
    const double passes = 2 + (p->softmax == CLATTN_SOFTMAX_ONLINE ? 3 : 4) +
                          (has_scores_pass(p) ? 2 : 0);
    const int32_t parts = parts_of(len_kv);
    const bool own_o = parts > 1 || p->dtype_o != CLATTN_DTYPE_F32;
    const double outputs = (double)cla_dtype_bytes(p->dtype_o) + (own_o ? 8.0 * parts : 0.0);
    // V is read, its copy is written and read.
    return rows * (elem_bytes(p->dtype_q) * p->dim_qk + outputs * p->dim_v + 4.0 * p->lse) +
           keys * (elem_bytes(p->dtype_kv) * p->dim_qk +
                   ((double)cla_dtype_bytes(p->dtype_kv) + 8.0) * p->dim_v) +
           scores * (4.0 * passes + cla_pair_bytes(p));
}

// ---- launch ------------------------------------------------------------------------------------

// One call on its way.
struct way {
    clattn_context *ctx;
    const struct cla_problem *p;
    const struct cla_prepared *prepared;
    const struct unfused *u;
    const struct cla_call *call;
    cl_command_queue queue;
    bool in_order;
    struct layout l;
    struct cla_fwd_args args;
    struct cla_unfused_args place;
    cl_mem workspace;
};

// What follows waits for what is queued. CLBlast takes no wait list, so a queue without an order of
// its own gets a barrier between all steps.
static clattn_status next_step(const struct way *r)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &r->ctx->log;
    if (!r->in_order)
        CLA_CL(r->ctx->ocl->cl->EnqueueBarrierWithWaitList(r->queue, 0, NULL, NULL));
done:
    return st;
}

// A tensor as CLBlast takes it: one matrix of group * len rows for each (batch, key head). False
// where its type or strides do not come to that.
static bool as_matrices(const struct way *r, const struct cla_tensor *t, int32_t dtype,
                        int32_t group, int32_t len, int32_t dim, struct cla_matrices *m)
{
    const int64_t heads = r->p->heads_kv, batch = r->call->batch;
    const int64_t ld = len > 1 ? t->stride[2] : group > 1 ? t->stride[1] : dim;
    const int64_t step = heads > 1 ? group * t->stride[1] : batch > 1 ? t->stride[0]
                                                                      : (int64_t)group * len * ld;
    if (dtype != CLATTN_DTYPE_F32 || t->end_bytes / sizeof(float) > INT32_MAX || ld < dim ||
        ld > INT32_MAX || step > INT32_MAX || (group > 1 && len > 1 && t->stride[1] != len * ld) ||
        (heads > 1 && batch > 1 && t->stride[0] != heads * step))
        return false;
    *m = (struct cla_matrices){t->buf.ptr, (size_t)t->offset, (size_t)ld, (size_t)step};
    return true;
}

static struct cla_matrices in_workspace(const struct way *r, int64_t at, int64_t ld, int64_t rows)
{
    return (struct cla_matrices){r->workspace, (size_t)at, (size_t)ld, (size_t)(ld * rows)};
}

static clattn_status copy(const struct way *r, const struct cla_tensor *t, int32_t dtype,
                          int32_t heads, int32_t len, int32_t dim, int64_t to, bool mark)
{
    const size_t local = (size_t)r->prepared->tile.items_k;
    const struct cla_unfused_copy c = {
        .from = {t->offset, t->stride[0], t->stride[1], t->stride[2]},
        .to = to,
        .ld = pitch(dim),
        .marks = r->place.marks,
        .any = r->place.any,
        .rows = (int64_t)r->call->batch * heads * len,
        .heads = heads,
        .len = len,
        .dim = dim,
        .mark = mark,
        .dtype = dtype};
    const size_t global = ((size_t)c.rows + local - 1) / local * local;
    const struct cla_arg arg[] = {
        {sizeof c, &c}, {sizeof(cl_mem), &t->buf.ptr}, {sizeof(cl_mem), &r->workspace}};
    return cla_kernels_enqueue(r->prepared->kernels[COPY], &r->ctx->log, arg, 3, r->queue, 1,
                               &global, &local, 0, NULL, NULL);
}

// V0, and what CLBlast does not take of Q and K.
static clattn_status bring_in(const struct way *r, struct cla_gemm *qk, struct cla_gemm *pv)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &r->ctx->log;
    const struct cla_problem *p = r->p;
    const struct cla_call *c = r->call;
    const cl_int zero = 0;
    const size_t any_bytes = (size_t)c->batch * (size_t)p->heads_kv * sizeof(cl_int);
    CLA_CL(r->ctx->ocl->cl->EnqueueFillBuffer(r->queue, r->workspace, &zero, sizeof zero,
                                              (size_t)r->place.any * sizeof(float), any_bytes, 0,
                                              NULL, NULL));
    if (!as_matrices(r, &c->q, p->dtype_q, p->group, c->len_q, p->dim_qk, &qk->a) ||
        !cla_clblast_takes(&qk->a, qk->m, qk->k)) {
        qk->a = in_workspace(r, c->workspace_offset + r->l.q, r->l.ld_qk, (int64_t)qk->m);
        CLA_TRY(copy(r, &c->q, p->dtype_q, p->heads_q, c->len_q, p->dim_qk, (int64_t)qk->a.offset,
                     false));
    }
    if (!as_matrices(r, &c->k, p->dtype_kv, 1, c->len_kv, p->dim_qk, &qk->b)) {
        qk->b = in_workspace(r, c->workspace_offset + r->l.k, r->l.ld_qk, c->len_kv);
        CLA_TRY(copy(r, &c->k, p->dtype_kv, p->heads_kv, c->len_kv, p->dim_qk,
                     (int64_t)qk->b.offset, false));
    }
    CLA_TRY(next_step(r));
    pv->b = in_workspace(r, c->workspace_offset + r->l.v, r->l.ld_v, c->len_kv);
    CLA_TRY(copy(r, &c->v, p->dtype_kv, p->heads_kv, c->len_kv, p->dim_v,
                 (int64_t)pv->b.offset, true));
    CLA_TRY(next_step(r));
done:
    return st;
}

// The arguments of unfused_scores and unfused_finish.
static void row_args(const struct way *r, struct cla_arg arg[CLA_UNFUSED_SLOT + 1])
{
    const struct cla_call *c = r->call;
    const clattn_buf *const bufs[CLA_SLOTS] = {
        [CLA_SLOT_Q] = &c->q.buf, [CLA_SLOT_K] = &c->k.buf, [CLA_SLOT_V] = &c->v.buf,
        [CLA_SLOT_O] = &c->o.buf, [CLA_SLOT_LSE] = &c->lse, [CLA_SLOT_MASK] = &c->mask.buf,
        [CLA_SLOT_BIAS] = &c->bias.buf, [CLA_SLOT_ALIBI] = &c->alibi.buf,
        [CLA_SLOT_SINKS] = &c->sinks.buf, [CLA_SLOT_KV_LENS] = &c->kv_lens.buf,
        [CLA_SLOT_FAULTS] = &c->faults.buf};
    arg[CLA_SLOT_ARGS] = (struct cla_arg){sizeof r->args, &r->args};
    for (int i = CLA_SLOT_Q; i < CLA_SLOTS; i++)
        arg[i] = (struct cla_arg){sizeof(cl_mem), bufs[i] && bufs[i]->kind == CLATTN_BUF_CL_MEM
                                                      ? &bufs[i]->ptr : NULL};
    arg[CLA_SLOT_WORKSPACE].value = r->workspace ? &r->workspace : NULL;
    arg[CLA_UNFUSED_SLOT] = (struct cla_arg){sizeof r->place, &r->place};
}

static clattn_status softmax(const struct way *r)
{
    clattn_status st = CLATTN_OK;
    const struct cla_call *c = r->call;
    const bool own_pass = has_scores_pass(r->p) || c->scale <= 0.0f;
    if (own_pass) {
        struct cla_arg arg[CLA_UNFUSED_SLOT + 1];
        row_args(r, arg);
        CLA_TRY(cla_kernels_enqueue_groups(r->prepared->kernels[SCORES], &r->ctx->log, arg,
                                           CLA_UNFUSED_SLOT + 1, r->queue, (uint64_t)r->l.rows,
                                           (size_t)r->prepared->tile.items_k, 0, NULL, NULL));
        CLA_TRY(next_step(r));
    }
    const clattn_buf w = {.kind = CLATTN_BUF_CL_MEM, .ptr = r->workspace};
    const struct cla_softmax_call call = {
        .rows = r->l.rows,
        .len = c->len_kv + (r->p->sinks ? 1 : 0),
        .stride_x = r->l.ld_scores,
        .stride_y = r->l.ld_scores,
        .x_offset = r->place.scores,
        .y_offset = r->place.scores,
        .lse_offset = c->lse_offset,
        .workspace_offset = c->workspace_offset + r->l.parts,
        .scale = own_pass ? 1.0f : c->scale,
        .in_place = true,
        .x = w, .y = w, .workspace = w, .lse = c->lse};
    const struct cla_submit submit = {r->queue, 0, NULL, NULL};
    CLA_TRY(cla_softmax_enqueue(r->ctx, &r->u->softmax, r->u->kernels, &call, &submit));
    CLA_TRY(next_step(r));
done:
    return st;
}

// The last command: its event covers the whole call, since CLBlast's cover only the last kernel of
// each. It waits for the caller's events itself, so that one that failed fails it too.
static clattn_status finish(const struct way *r, const struct cla_submit *submit)
{
    const size_t local = (size_t)r->prepared->tile.items_k;
    const size_t items = (size_t)r->l.rows * (size_t)r->p->dim_v;
    const size_t global = (items + local - 1) / local * local;
    struct cla_arg arg[CLA_UNFUSED_SLOT + 1];
    row_args(r, arg);
    return cla_kernels_enqueue(r->prepared->kernels[FINISH], &r->ctx->log, arg,
                               CLA_UNFUSED_SLOT + 1, r->queue, 1, &global, &local,
                               submit->num_wait, submit->wait, submit->done);
}

static clattn_status steps(struct way *r)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &r->ctx->log;
    const struct cla_problem *p = r->p;
    const struct cla_call *c = r->call;
    const size_t count = (size_t)c->batch * (size_t)p->heads_kv;
    const size_t rows = (size_t)p->group * (size_t)c->len_q, keys = (size_t)c->len_kv;
    struct cla_gemm qk = {.m = rows, .n = keys, .k = (size_t)p->dim_qk, .count = count,
                          .transpose_b = true};
    struct cla_gemm pv = {.m = rows, .n = (size_t)p->dim_v, .k = keys, .count = count};
    CLA_TRY(bring_in(r, &qk, &pv));
    qk.c = pv.a = in_workspace(r, r->place.scores, r->l.ld_scores, (int64_t)rows);
    CLA_TRY(cla_clblast_gemm(r->u->blast, log, &qk, r->queue));
    CLA_TRY(next_step(r));
    CLA_TRY(softmax(r));
    const bool in_place = r->l.parts_o == 1 &&
                          as_matrices(r, &c->o, p->dtype_o, p->group, c->len_q, p->dim_v, &pv.c) &&
                          cla_clblast_takes(&pv.c, pv.m, pv.n);
    r->place.parts_o = in_place ? 0 : r->l.parts_o;
    for (int32_t part = 0; part < r->l.parts_o; part++) {
        if (!in_place)
            pv.c = in_workspace(r, r->place.o + part * r->l.rows * r->l.ld_v, r->l.ld_v,
                                (int64_t)rows);
        pv.k = keys - (size_t)part * PART_KEYS;
        pv.k = pv.k < PART_KEYS ? pv.k : PART_KEYS;
        CLA_TRY(cla_clblast_gemm(r->u->blast, log, &pv, r->queue));
        pv.a.offset += PART_KEYS;
        pv.b.offset += (size_t)(PART_KEYS * r->l.ld_v);
    }
    CLA_TRY(next_step(r));
done:
    return st;
}

// What can't be done is known before the first command.
static clattn_status check_call(const clattn_context *ctx, const struct cla_problem *p,
                                const struct cla_call *c, const struct layout *l)
{
    const struct cla_log *log = &ctx->log;
    const double end = l->floats + (double)c->workspace_offset;
    if (end > INT32_MAX)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "unfused: scores and copies end at element %.0f of the workspace, CLBlast "
                        "counts to %d", end, INT32_MAX);
    // Of unfused_finish where no row of V is finite. CLBlast's loops, which take several keys a
    // turn, were right at 200000 keys.
    const int32_t turns = 1 + p->dim_qk / 16 + p->dim_qk % 16;
    if ((ctx->caps.quirks & CLA_QUIRK_LOOP_LIMIT) && c->len_kv > CLA_LOOP_LIMIT / turns)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "unfused: len_kv is %d: this driver stops loops after %d iterations, "
                        "enough for %d keys", (int)c->len_kv, (int)CLA_LOOP_LIMIT,
                        (int)(CLA_LOOP_LIMIT / turns));
    return CLATTN_OK;
}

static clattn_status launch(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call,
                            const struct cla_submit *submit)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    const struct cla_extent e = {call->batch, call->len_q, call->len_kv, false};
    cl_command_queue_properties props = 0;
    struct way r = {.ctx = ctx, .p = p, .prepared = prepared, .u = prepared->more, .call = call,
                    .queue = submit->queue, .l = layout(ctx, prepared, p, &e),
                    .workspace = call->workspace.kind == CLATTN_BUF_CL_MEM ? call->workspace.ptr
                                                                           : NULL};
    CLA_TRY(check_call(ctx, p, call, &r.l));
    CLA_CL(cl->GetCommandQueueInfo(r.queue, CL_QUEUE_PROPERTIES, sizeof props, &props, NULL));
    r.in_order = !(props & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    cla_tiled_args(p, &prepared->tile, call, &r.args);
    r.args.scale = call->scale; // of the scores, never of Q
    r.place = (struct cla_unfused_args){
        .scores = call->workspace_offset + r.l.scores,
        .ld_scores = r.l.ld_scores,
        .o = call->workspace_offset + r.l.o,
        .ld_o = r.l.ld_v,
        .marks = call->workspace_offset + r.l.marks,
        .any = call->workspace_offset + r.l.any,
        .rows = r.l.rows,
        .naive = p->softmax == CLATTN_SOFTMAX_NAIVE};
    if (submit->num_wait)
        CLA_CL(cl->EnqueueBarrierWithWaitList(r.queue, submit->num_wait, submit->wait, NULL));
    if (call->len_kv > 0)
        CLA_TRY(steps(&r));
    CLA_TRY(finish(&r, submit));
done:
    return st;
}

// What can't be done must not first take memory for a workspace.
static clattn_status run(clattn_context *ctx, const struct cla_problem *p,
                         const struct cla_prepared *prepared, const struct cla_call *call)
{
    const struct cla_extent e = {call->batch, call->len_q, call->len_kv, false};
    const struct layout l = layout(ctx, prepared, p, &e);
    const clattn_status st = check_call(ctx, p, call, &l);
    return st == CLATTN_OK ? cla_tiled_run(ctx, p, prepared, call) : st;
}

static const struct cla_tiled unfused = {
    .group = {{"unfused.cl", "unfused_copy"},
              {"unfused.cl", "unfused_scores"},
              {"unfused.cl", "unfused_finish"}},
    .passes = 1,
    .prepare_more = prepare_more,
    .release_more = release_more,
    .launch = launch,
};

const struct cla_algo cla_algo_unfused = {
    .id = CLATTN_ALGO_UNFUSED,
    .name = "unfused",
    .by_name_only = true,
    .lacks = CLA_NEEDS_INT8 | CLA_NEEDS_PACKED | CLA_NEEDS_PAGED,
    .tiled = &unfused,
    .propose = propose,
    .prepare = cla_tiled_prepare,
    .renew = cla_tiled_renew,
    .release = cla_tiled_release,
    .workspace = workspace,
    .bytes = bytes,
    .run = run,
    .enqueue = cla_tiled_enqueue,
};
