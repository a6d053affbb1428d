// SPDX-License-Identifier: Apache-2.0
#include "algo/stage_ocl.h"

#include <stdlib.h>
#include <string.h>

#include "ocl/error.h"

enum { SHARED_ALIGN = 16 }; // bytes; the group kernel loads float4

// Copies rows between their places in the host's memory and `room`, where they follow each other.
static void copy_rows(const struct cla_buf_rows *r, char *host, char *room, bool to_room)
{
    for (int64_t a = 0; a < r->extent[0]; a++)
        for (int64_t b = 0; b < r->extent[1]; b++)
            for (int64_t c = 0; c < r->extent[2]; c++) {
                char *at = host + a * r->stride_bytes[0] + b * r->stride_bytes[1] +
                           c * r->stride_bytes[2];
                memcpy(to_room ? room : at, to_room ? at : room, r->row_bytes);
                room += r->row_bytes;
            }
}

static clattn_status stage_one(struct cla_stage *s, struct cla_call_buf *b, bool read_rows,
                               struct cla_stage_item *item)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = s->ctx;
    const struct cla_log *log = &ctx->log;
    const struct cla_ocl *ocl = ctx->ocl;
    char *host = (char *)b->buf->ptr + b->begin_bytes;
    const char *from = host;
    item->bytes = b->end_bytes - b->begin_bytes;
    item->host = b->output ? host : NULL;
    item->dense = b->rows != NULL;
    if (item->dense) {
        item->rows = *b->rows;
        item->bytes = (size_t)(item->rows.extent[0] * item->rows.extent[1] *
                               item->rows.extent[2]) * item->rows.row_bytes;
        item->room = malloc(item->bytes);
        if (!item->room)
            return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "%s: no memory for %zu bytes of rows",
                            b->name, item->bytes);
        if (read_rows || b->keeps)
            copy_rows(&item->rows, host, item->room, true);
        from = item->room;
    }
    // CPU drivers work on the host's memory in place, where it is aligned as a device buffer is.
    item->shared = !item->dense && cla_caps_vector_shape(&ctx->caps) &&
                   (uintptr_t)host % SHARED_ALIGN == 0;
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
    CLA_TRY(cla_cl_made(log, item->mem, code, "clCreateBuffer"));
    if ((!b->output || read_rows || b->keeps) && !item->shared)
        CLA_CL(ocl->cl->EnqueueWriteBuffer(ocl->queue, item->mem, CL_TRUE, 0, item->bytes, from, 0,
                                           NULL, NULL));
    *b->buf = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = item->mem,
                           .size_bytes = item->bytes};
    b->begin_bytes = 0;
done:
    return st;
}

clattn_status cla_stage_bufs(clattn_context *ctx, struct cla_call_buf *bufs, int num_bufs,
                             bool read_rows, struct cla_stage *s)
{
    clattn_status st = CLATTN_OK;
    s->ctx = ctx;
    s->num_bufs = num_bufs;
    memset(s->item, 0, sizeof s->item);
    for (int i = 0; i < num_bufs; i++) {
        if (bufs[i].end_bytes && bufs[i].buf->kind == CLATTN_BUF_HOST)
            CLA_TRY(stage_one(s, &bufs[i], read_rows, &s->item[i]));
    }
    CLA_TRY(cla_ocl_settle(ctx));
done:
    if (st != CLATTN_OK)
        cla_stage_release(s);
    return st;
}

// Rows of O; false where they fill the memory between the first and the last.
static bool rows_of_o(const struct cla_problem *p, const struct cla_call *call,
                      struct cla_buf_rows *rows)
{
    const int64_t e = (int64_t)cla_dtype_bytes(p->dtype_o);
    *rows = (struct cla_buf_rows){
        {p->packed_q ? 1 : call->batch, p->heads_q, p->packed_q ? call->total_q : call->len_q},
        {call->o.stride[0] * e, call->o.stride[1] * e, call->o.stride[2] * e},
        (size_t)(p->dim_v * e)};
    const size_t dense = (size_t)(rows->extent[0] * rows->extent[1] * rows->extent[2]) *
                         rows->row_bytes;
    return call->o.end_bytes - (size_t)(call->o.offset * e) != dense;
}

clattn_status cla_stage_in(clattn_context *ctx, const struct cla_problem *p,
                           const struct cla_call *call, struct cla_stage *s)
{
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    struct cla_buf_rows rows;
    s->call = *call;
    cla_call_bufs(p, &s->call, bufs);
    if (rows_of_o(p, call, &rows))
        bufs[CLA_BUF_O].rows = &rows;
    clattn_status st = cla_stage_bufs(ctx, bufs, CLA_CALL_BUFS, call->bring_outputs, s);
    for (int i = 0; st == CLATTN_OK && i < CLA_CALL_BUFS; i++) {
        if (!s->item[i].mem)
            continue;
        *bufs[i].offset = 0;
        if (s->item[i].dense) {
            s->call.o.stride[2] = p->dim_v;
            s->call.o.stride[1] = rows.extent[2] * p->dim_v;
            s->call.o.stride[0] = p->packed_q ? 0 : p->heads_q * rows.extent[2] * p->dim_v;
        }
    }
    return st;
}

static clattn_status bring_out(struct cla_stage *s, cl_event after)
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
                                              item->dense ? item->room : item->host, 1, &after,
                                              NULL));
            if (item->dense)
                copy_rows(&item->rows, item->host, item->room, false);
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

clattn_status cla_stage_end(struct cla_stage *s, clattn_status launched, cl_event event)
{
    clattn_status st = launched;
    const struct cla_log *log = &s->ctx->log;
    const struct cla_ocl *ocl = s->ctx->ocl;
    CLA_TRY(st);
    CLA_CL(ocl->cl->WaitForEvents(1, &event));
    CLA_TRY(bring_out(s, event));
done:
    if (st != CLATTN_OK)
        ocl->cl->Finish(ocl->queue);
    if (event)
        ocl->cl->ReleaseEvent(event);
    return st;
}

void cla_stage_release(struct cla_stage *s)
{
    for (int i = 0; i < s->num_bufs; i++) {
        if (s->item[i].mem)
            s->ctx->ocl->cl->ReleaseMemObject(s->item[i].mem);
        s->item[i].mem = NULL;
        free(s->item[i].room);
        s->item[i].room = NULL;
    }
}
