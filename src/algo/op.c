// SPDX-License-Identifier: Apache-2.0
#include "algo/op.h"

#include <string.h>

void cla_op_init(struct cla_op *op, clattn_context *ctx, const char *name, const char *file,
                 const char *kernel, void *data, size_t data_bytes, size_t args_bytes)
{
    memset(op, 0, sizeof *op);
    memset(data, 0, data_bytes);
    op->ctx = ctx;
    op->name = name;
    op->file = file;
    op->kernel = kernel;
    op->data = data;
    op->data_bytes = data_bytes;
    op->args_bytes = args_bytes;
    cla_facts_begin(&op->facts, cla_context_mem_facts(ctx), ctx);
}

// ---- buffers -----------------------------------------------------------------------------------

static struct cla_checker checker(struct cla_op *op)
{
    return (struct cla_checker){NULL, &op->ctx->log, cla_facts_fn(&op->facts), &op->facts};
}

static void add(struct cla_op *op, const char *name, const clattn_buf *buf, size_t end_bytes,
                enum cla_op_role role, int64_t *offset)
{
    const int n = op->num_bufs++;
    op->buf[n] = *buf;
    op->same_as[n] = op->woven_with[n] = -1;
    op->bufs[n] = (struct cla_call_buf){.name = name,
                                        .buf = &op->buf[n],
                                        .begin_bytes = buf->offset_bytes,
                                        .end_bytes = end_bytes,
                                        .offset = offset,
                                        .output = role != CLA_OP_IN,
                                        .keeps = role == CLA_OP_KEEPS};
}

void cla_op_absent(struct cla_op *op, const char *name)
{
    const clattn_buf none = {.kind = CLATTN_BUF_ABSENT};
    add(op, name, &none, 0, CLA_OP_IN, NULL);
}

clattn_status cla_op_tensor(struct cla_op *op, const char *name, const clattn_tensor *t,
                            const int64_t extent[3], int64_t dim, int32_t dtype,
                            enum cla_op_role role, struct cla_fwd_tensor *into)
{
    const struct cla_checker c = checker(op);
    const int64_t e = (int64_t)cla_dtype_bytes(dtype);
    struct cla_tensor out = {0};
    // Kernels count channels in int, by several at a time.
    if (dim > CLA_OP_CHANNELS)
        return cla_fail(c.log, CLATTN_ERR_UNSUPPORTED, "%s has %lld channels, more than %d", name,
                        (long long)dim, (int)CLA_OP_CHANNELS);
    clattn_status st =
        cla_check_tensor(&c, name, t, extent, dim, dtype, role != CLA_OP_IN, &out);
    if (st != CLATTN_OK)
        return st;
    const int n = op->num_bufs;
    *into = (struct cla_fwd_tensor){out.offset, out.stride[0], out.stride[1], out.stride[2]};
    add(op, name, &out.buf, out.end_bytes, role, &into->offset);
    op->tensor[n] = into;
    op->dim[n] = dim;
    op->rows_of[n] = (struct cla_buf_rows){{extent[0], extent[1], extent[2]},
                                           {out.stride[0] * e, out.stride[1] * e,
                                            out.stride[2] * e},
                                           (size_t)(dim * e)};
    // Only a tensor that was checked not to overflow is multiplied out.
    const struct cla_buf_rows *r = &op->rows_of[n];
    if (out.end_bytes && role != CLA_OP_IN &&
        out.end_bytes - t->buf.offset_bytes !=
            (size_t)(extent[0] * extent[1] * extent[2]) * r->row_bytes)
        op->bufs[n].rows = r;
    return CLATTN_OK;
}

clattn_status cla_op_vector(struct cla_op *op, const char *name, const clattn_buf *buf,
                            const int64_t extent[3], size_t elem_bytes, enum cla_op_role role,
                            bool optional, int64_t *offset)
{
    const struct cla_checker c = checker(op);
    struct cla_vector out = {0};
    if (optional && buf->kind == CLATTN_BUF_ABSENT) {
        cla_op_absent(op, name);
        return CLATTN_OK;
    }
    clattn_status st = cla_check_vector(&c, name, buf, extent, elem_bytes, &out);
    if (st != CLATTN_OK)
        return st;
    *offset = out.offset;
    add(op, name, &out.buf, out.end_bytes, role, offset);
    return CLATTN_OK;
}

void cla_op_same(struct cla_op *op, int in, int out)
{
    const clattn_buf *a = &op->buf[in], *b = &op->buf[out];
    if (!op->bufs[in].end_bytes || a->kind != b->kind || a->ptr != b->ptr ||
        a->offset_bytes != b->offset_bytes || op->bufs[in].end_bytes != op->bufs[out].end_bytes)
        return;
    const struct cla_buf_rows *r = &op->rows_of[in], *s = &op->rows_of[out];
    for (int i = 0; i < 3; i++)
        if (r->extent[i] > 1 && r->stride_bytes[i] != s->stride_bytes[i])
            return;
    if (r->row_bytes != s->row_bytes)
        return;
    op->same_as[in] = out;
    op->bufs[in].end_bytes = 0;
    op->bufs[out].keeps = true; // what is there is read
}

void cla_op_interleave(struct cla_op *op, int a, int b)
{
    const struct cla_buf_rows *r = &op->rows_of[a], *s = &op->rows_of[b];
    const size_t x = op->bufs[a].begin_bytes, y = op->bufs[b].begin_bytes;
    // Both are one tensor with an axis of two more: sorted by stride, no axis steps less far than
    // the smaller ones reach.
    int64_t extent[4] = {r->extent[0], r->extent[1], r->extent[2], 2};
    int64_t stride[4] = {r->stride_bytes[0], r->stride_bytes[1], r->stride_bytes[2],
                         (int64_t)(x < y ? y - x : x - y)};
    int64_t span = (int64_t)(r->row_bytes > s->row_bytes ? r->row_bytes : s->row_bytes);
    if (!op->bufs[a].end_bytes || !op->bufs[b].end_bytes || op->buf[a].kind != op->buf[b].kind ||
        op->buf[a].ptr != op->buf[b].ptr)
        return;
    for (int i = 0; i < 3; i++)
        if (r->extent[i] != s->extent[i] || r->stride_bytes[i] != s->stride_bytes[i])
            return;
    for (int done = 0; done < 4; done++) {
        int least = -1;
        for (int i = 0; i < 4; i++)
            if (extent[i] > 0 && (least < 0 || stride[i] < stride[least]))
                least = i;
        if (extent[least] > 1 && stride[least] < span)
            return;
        span += (extent[least] - 1) * stride[least];
        extent[least] = 0;
    }
    op->woven_with[a] = b;
    op->woven_with[b] = a;
    op->no_fallback = true; // a range that two maps would write
}

clattn_status cla_op_check_overlaps(struct cla_op *op)
{
    const cla_mem_fn facts = cla_facts_fn(&op->facts);
    for (int i = 0; i < op->num_bufs; i++) {
        const struct cla_buf_range a = {op->bufs[i].name, &op->buf[i], op->bufs[i].end_bytes};
        for (int k = 0; op->bufs[i].output && k < op->num_bufs; k++) {
            const struct cla_buf_range b = {op->bufs[k].name, &op->buf[k], op->bufs[k].end_bytes};
            if (k != i && k != op->woven_with[i] && cla_ranges_overlap(&a, &b, facts, &op->facts))
                return cla_fail(&op->ctx->log, CLATTN_ERR_OVERLAP,
                                "%s (bytes %zu to %zu) overlaps %s (bytes %zu to %zu)", a.name,
                                a.buf->offset_bytes, a.end_bytes, b.name, b.buf->offset_bytes,
                                b.end_bytes);
        }
    }
    return CLATTN_OK;
}

const int32_t *cla_op_host_ints(const clattn_buf *buf)
{
    return buf->kind == CLATTN_BUF_HOST
               ? (const int32_t *)(const void *)((const char *)buf->ptr + buf->offset_bytes)
               : NULL;
}

// ---- running -----------------------------------------------------------------------------------

static clattn_status run_on_cpu(struct cla_op *op)
{
    void *ptr[CLA_WORK_BUFS] = {NULL};
    const struct cla_host_work work = {op->compute, op->data, op->data_bytes, op->bufs,
                                       op->num_bufs};
    for (int i = 0; i < op->num_bufs; i++) {
        if (!op->bufs[i].end_bytes)
            continue;
        if (op->buf[i].kind == CLATTN_BUF_CL_MEM)
            return cla_host_work_run(op->ctx, &work);
        ptr[i] = (char *)op->buf[i].ptr + op->bufs[i].begin_bytes;
    }
    return op->compute(op->ctx, op->data, ptr);
}

clattn_status cla_op_run(struct cla_op *op)
{
    bool ready = false;
    if (op->rows == 0)
        return CLATTN_OK;
    if (op->ctx->ocl && !op->on_cpu) {
        const clattn_status st = cla_op_run_device(op, &ready);
        if (ready || st != CLATTN_OK)
            return st;
    }
    return run_on_cpu(op);
}
