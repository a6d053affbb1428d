// SPDX-License-Identifier: Apache-2.0
#include "algo/op.h"

#include <stdio.h>
#include <string.h>

#include "algo/stage_ocl.h"
#include "ocl/error.h"
#include "ocl/launch.h"

enum { ITEMS_MAX = 64 };

// Work-items of a row: one where a core does well alone, else a power of 2.
static int32_t items_of(const struct cla_caps *caps)
{
    int32_t items = 1;
    if (cla_caps_vector_shape(caps))
        return 1;
    while (items < ITEMS_MAX && 2 * (size_t)items <= cla_caps_items(caps) &&
           8 * (size_t)items <= caps->local_bytes)
        items *= 2;
    return items;
}

// The kernel for op->items items, or for as many as it takes when it is compiled.
static clattn_status build(struct cla_op *op, const struct cla_kernels **kernels, bool *tried)
{
    char options[160];
    const struct cla_caps *caps = &op->ctx->caps;
    op->items = items_of(caps);
    for (;;) {
        size_t most = 0;
        const int n = snprintf(options, sizeof options, "-cl-std=CL1.2 -w %s -DITEMS=%d",
                               op->options, (int)op->items);
        if (cla_caps_lanes(caps))
            snprintf(options + n, sizeof options - (size_t)n, " -DSUBGROUP_LANES=%d",
                     (int)cla_caps_lanes(caps));
        const clattn_status st = cla_ocl_function(
            op->ctx, op->file, op->kernel, options,
            op->no_fallback ? CLATTN_LOG_ERROR : CLATTN_LOG_WARN, kernels, &most, tried);
        if (st != CLATTN_OK || most >= (size_t)op->items)
            return st;
        while ((size_t)op->items > most)
            op->items /= 2;
    }
}

// NULL with CLATTN_OK where the CPU path takes over.
static clattn_status prepare(struct cla_op *op, const struct cla_kernels **kernels)
{
    *kernels = NULL;
    bool tried = false;
    const clattn_status st = build(op, kernels, &tried);
    if (st != CLATTN_OK)
        *kernels = NULL;
    if (st == CLATTN_OK || st == CLATTN_ERR_OUT_OF_MEMORY || op->no_fallback)
        return st;
    cla_logf(&op->ctx->log, tried ? CLATTN_LOG_WARN : CLATTN_LOG_DEBUG,
             "fallback: %s: the CPU path computes this, not the OpenCL device: %s", op->name,
             clattn_status_string(st));
    return CLATTN_OK;
}

static clattn_status launch(const struct cla_op *op, const struct cla_kernels *kernels,
                            const struct cla_submit *submit)
{
    struct cla_arg arg[1 + CLA_WORK_BUFS] = {{op->args_bytes, op->data}};
    for (int i = 0; i < op->num_bufs; i++) {
        const int own = op->same_as[i] < 0 ? i : op->same_as[i];
        arg[1 + i] = (struct cla_arg){
            sizeof(cl_mem), op->buf[own].kind == CLATTN_BUF_CL_MEM ? &op->buf[own].ptr : NULL};
    }
    return cla_kernels_enqueue_groups(kernels, &op->ctx->log, arg, 1 + (unsigned)op->num_bufs,
                                      submit->queue, (uint64_t)op->rows, (size_t)op->items,
                                      submit->num_wait, submit->wait, submit->done);
}

// ---- blocking ----------------------------------------------------------------------------------

// What is staged begins at its start, and rows with gaps follow each other there.
static void follow_stage(struct cla_op *op, const struct cla_stage *stage)
{
    for (int i = 0; i < op->num_bufs; i++) {
        struct cla_fwd_tensor *t = op->tensor[i];
        if (!stage->item[i].mem)
            continue;
        *op->bufs[i].offset = 0;
        if (!stage->item[i].dense)
            continue;
        const struct cla_buf_rows *r = &op->rows_of[i];
        t->stride_s = op->dim[i];
        t->stride_h = r->extent[2] * t->stride_s;
        t->stride_b = r->extent[1] * t->stride_h;
    }
    for (int i = 0; i < op->num_bufs; i++)
        if (op->same_as[i] >= 0) {
            if (op->tensor[i])
                *op->tensor[i] = *op->tensor[op->same_as[i]];
            else
                *op->bufs[i].offset = *op->bufs[op->same_as[i]].offset;
        }
}

static clattn_status run_staged(struct cla_op *op, const struct cla_kernels *kernels,
                                struct cla_stage *stage)
{
    cl_event event = NULL;
    const struct cla_submit submit = {op->ctx->ocl->queue, 0, NULL, &event};
    const clattn_status launched = launch(op, kernels, &submit);
    return cla_stage_end(stage, launched, event);
}

// Memory that a call brings in whole and brings back, of which another call may write other rows.
static bool keeps_host_output(const struct cla_op *op)
{
    for (int i = 0; i < op->num_bufs; i++)
        if (op->bufs[i].end_bytes && op->bufs[i].keeps &&
            op->buf[i].kind == CLATTN_BUF_HOST)
            return true;
    return false;
}

clattn_status cla_op_run_device(struct cla_op *op, bool *ready)
{
    clattn_context *ctx = op->ctx;
    struct cla_stage stage;
    const struct cla_kernels *kernels = NULL;
    clattn_status st = prepare(op, &kernels);
    *ready = kernels != NULL;
    if (!kernels)
        return st;
    const bool turn = cla_ocl_begin_turn(ctx, keeps_host_output(op));
    st = cla_stage_bufs(ctx, op->bufs, op->num_bufs, false, &stage);
    if (st == CLATTN_OK) {
        follow_stage(op, &stage);
        st = run_staged(op, kernels, &stage);
        cla_stage_release(&stage);
    }
    cla_ocl_end_turn(ctx, turn);
    return st;
}

// ---- asynchronous ------------------------------------------------------------------------------

clattn_status cla_op_enqueue(struct cla_op *op, const struct cla_submit *submit)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = op->ctx;
    const struct cla_log *log = &ctx->log;
    const struct cla_kernels *kernels = NULL;
    if (op->rows == 0) {
        if (submit->done)
            CLA_CL(ctx->ocl->cl->EnqueueMarkerWithWaitList(submit->queue, submit->num_wait,
                                                           submit->wait, submit->done));
        goto done;
    }
    for (int i = 0; i < op->num_bufs; i++)
        if (op->bufs[i].end_bytes && op->buf[i].kind != CLATTN_BUF_CL_MEM)
            CLA_TRY(cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                             "%s.kind is %d: clattn_%s_enqueue() needs a cl_mem (%d)",
                             op->bufs[i].name, (int)op->buf[i].kind, op->name,
                             (int)CLATTN_BUF_CL_MEM));
    CLA_TRY(prepare(op, &kernels));
    if (kernels) {
        st = launch(op, kernels, submit);
    } else {
        const struct cla_host_work work = {op->compute, op->data, op->data_bytes, op->bufs,
                                           op->num_bufs};
        st = cla_host_work_enqueue(ctx, &work, submit);
    }
done:
    return st;
}
