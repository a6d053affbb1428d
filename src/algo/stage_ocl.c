// SPDX-License-Identifier: Apache-2.0
#include "algo/stage_ocl.h"

#include <string.h>

#include "ocl/error.h"

enum { SHARED_ALIGN = 16 }; // bytes; the group kernel loads float4

// Elements of O that the strides leave out must survive the way back.
static bool has_gaps(const struct cla_problem *p, const struct cla_call *call)
{
    const size_t elements = (size_t)call->batch * (size_t)p->heads_q * (size_t)call->len_q *
                            (size_t)p->dim_v;
    return call->o.end_bytes - (size_t)call->o.offset * sizeof(float) != elements * sizeof(float);
}

static clattn_status stage_one(struct cla_stage *s, struct cla_call_buf *b,
                               struct cla_stage_item *item)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = s->ctx;
    const struct cla_log *log = &ctx->log;
    const struct cla_ocl *ocl = ctx->ocl;
    char *host = (char *)b->buf->ptr + b->begin_bytes;
    item->bytes = b->end_bytes - b->begin_bytes;
    item->host = b->output ? host : NULL;
    // CPU drivers work on the host's memory in place, where it is aligned as a device buffer is.
    item->shared = cla_caps_vector_shape(&ctx->caps) && (uintptr_t)host % SHARED_ALIGN == 0;
    cl_mem_flags flags = b->output ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    if (item->shared)
        flags |= CL_MEM_USE_HOST_PTR;
    if (ctx->caps.max_alloc_bytes && item->bytes > ctx->caps.max_alloc_bytes)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY,
                        "%s: %zu bytes are more than the device allows in one allocation (%zu)",
                        b->name, item->bytes, ctx->caps.max_alloc_bytes);
    cl_int code = CL_SUCCESS;
    item->mem = ocl->cl->CreateBuffer(ocl->context, flags, item->bytes,
                                      item->shared ? host : NULL, &code);
    CLA_TRY(cla_cl_check(log, code, "clCreateBuffer"));
    if ((!b->output || b->keep) && !item->shared)
        CLA_CL(ocl->cl->EnqueueWriteBuffer(ocl->queue, item->mem, CL_TRUE, 0, item->bytes, host, 0,
                                           NULL, NULL));
    *b->buf = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = item->mem,
                           .size_bytes = item->bytes};
    b->begin_bytes = 0;
done:
    return st;
}

clattn_status cla_stage_bufs(clattn_context *ctx, struct cla_call_buf *bufs, int num_bufs,
                             struct cla_stage *s)
{
    clattn_status st = CLATTN_OK;
    s->ctx = ctx;
    s->num_bufs = num_bufs;
    memset(s->item, 0, sizeof s->item);
    for (int i = 0; i < num_bufs; i++) {
        if (bufs[i].end_bytes && bufs[i].buf->kind == CLATTN_BUF_HOST)
            CLA_TRY(stage_one(s, &bufs[i], &s->item[i]));
    }
done:
    if (st != CLATTN_OK)
        cla_stage_release(s);
    return st;
}

clattn_status cla_stage_in(clattn_context *ctx, const struct cla_problem *p,
                           const struct cla_call *call, struct cla_stage *s)
{
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    s->call = *call;
    cla_call_bufs(p, &s->call, bufs);
    int64_t *const offset[CLA_CALL_BUFS] = {&s->call.q.offset,    &s->call.k.offset,
                                            &s->call.v.offset,    &s->call.mask.offset,
                                            &s->call.o.offset,    &s->call.lse_offset};
    for (int i = 0; i < CLA_CALL_BUFS; i++)
        bufs[i].keep = bufs[i].buf == &s->call.o.buf && has_gaps(p, call);
    clattn_status st = cla_stage_bufs(ctx, bufs, CLA_CALL_BUFS, s);
    for (int i = 0; st == CLATTN_OK && i < CLA_CALL_BUFS; i++) {
        if (s->item[i].mem)
            *offset[i] = 0;
    }
    return st;
}

clattn_status cla_stage_out(struct cla_stage *s, cl_event after)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &s->ctx->log;
    const struct cla_ocl *ocl = s->ctx->ocl;
    for (int i = 0; i < s->num_bufs; i++) {
        const struct cla_stage_item *item = &s->item[i];
        if (!item->mem || !item->host)
            continue;
        if (!item->shared) {
            CLA_CL(ocl->cl->EnqueueReadBuffer(ocl->queue, item->mem, CL_TRUE, 0, item->bytes,
                                              item->host, 1, &after, NULL));
            continue;
        }
        // Mapping makes the device's writes visible in the host's memory.
        cl_int code = CL_SUCCESS;
        void *ptr = ocl->cl->EnqueueMapBuffer(ocl->queue, item->mem, CL_TRUE, CL_MAP_READ, 0,
                                              item->bytes, 1, &after, NULL, &code);
        CLA_TRY(cla_cl_check(log, code, "clEnqueueMapBuffer"));
        cl_event unmapped = NULL;
        CLA_CL(ocl->cl->EnqueueUnmapMemObject(ocl->queue, item->mem, ptr, 0, NULL, &unmapped));
        code = ocl->cl->WaitForEvents(1, &unmapped);
        ocl->cl->ReleaseEvent(unmapped);
        CLA_TRY(cla_cl_check(log, code, "clWaitForEvents"));
    }
done:
    return st;
}

void cla_stage_release(struct cla_stage *s)
{
    for (int i = 0; i < s->num_bufs; i++) {
        if (s->item[i].mem)
            s->ctx->ocl->cl->ReleaseMemObject(s->item[i].mem);
        s->item[i].mem = NULL;
    }
}
