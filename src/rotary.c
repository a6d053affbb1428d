// SPDX-License-Identifier: Apache-2.0
// The public calls of rotary position embedding.
#include <math.h>
#include <stdio.h>

#include "kv.h"
#include "util/float_mode.h"

_Static_assert((int)CLATTN_FAULT_POSITION == CLA_FAULT_POSITION, "faults of rotary.clh");

void clattn_rotary_call_init(clattn_rotary_call *call, size_t size)
{
    cla_struct_init(call, size);
}

clattn_status clattn_rotary_tables(int32_t positions, int32_t rotary_dim, double base,
                                   float *cos_table, float *sin_table)
{
    if (positions < 0 || rotary_dim < 2 || rotary_dim % 2 || !cos_table || !sin_table ||
        !isfinite(base) || base < 0.0)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const int32_t pairs = rotary_dim / 2;
    const double used = base == 0.0 ? 10000.0 : base;
    const unsigned mode = cla_float_begin();
    for (int32_t t = 0; t < pairs; t++) {
        const double step = pow(used, -2.0 * t / rotary_dim);
        for (int64_t p = 0; p < positions; p++) {
            cos_table[p * pairs + t] = (float)cos((double)p * step);
            sin_table[p * pairs + t] = (float)sin((double)p * step);
        }
    }
    cla_float_end(mode);
    return CLATTN_OK;
}

// ---- shared with append ------------------------------------------------------------------------

clattn_status cla_rotary_check(const struct cla_log *log, const clattn_rotary *r, int32_t dim)
{
    clattn_status st = cla_check_enum(log, "rotary.pairs", r->pairs, CLATTN_ROTARY_HALF_SPLIT);
    if (st != CLATTN_OK)
        return st;
    if (r->dim < 2 || r->dim % 2 || r->dim > dim)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "rotary.dim is %d, not an even number from 2 to the %d channels",
                        (int)r->dim, (int)dim);
    if (r->positions < 1)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "rotary.positions is %d, less than 1",
                        (int)r->positions);
    return CLATTN_OK;
}

clattn_status cla_rotary_add(struct cla_op *op, const clattn_rotary *r, int32_t batch,
                             struct cla_rotary_args *out)
{
    clattn_status st = CLATTN_OK;
    const int64_t first[3] = {1, 1, batch};
    const int64_t table[3] = {1, r->positions, r->dim / 2};
    CLA_TRY(cla_op_vector(op, "rotary.offsets", &r->offsets, first, sizeof(int32_t), CLA_OP_IN,
                          true, &out->offsets));
    CLA_TRY(cla_op_vector(op, "rotary.cos_table", &r->cos_table, table, sizeof(float), CLA_OP_IN,
                          false, &out->cos_table));
    CLA_TRY(cla_op_vector(op, "rotary.sin_table", &r->sin_table, table, sizeof(float), CLA_OP_IN,
                          false, &out->sin_table));
    out->dim = r->dim;
    out->positions = r->positions;
    out->start = r->start;
    out->flags = (r->pairs == CLATTN_ROTARY_HALF_SPLIT ? CLA_KV_HALF_SPLIT : 0) |
                 (r->offsets.kind != CLATTN_BUF_ABSENT ? CLA_KV_HAS_OFFSETS : 0);
done:
    return st;
}

clattn_status cla_rotary_check_positions(const struct cla_log *log, const clattn_rotary *r,
                                         int32_t b, int32_t first, int32_t len)
{
    const int64_t begin = (int64_t)r->start + first;
    if (len > 0 && (begin < 0 || begin + len > r->positions))
        return cla_fail(log, CLATTN_ERR_SHAPE,
                        "sequence %d has positions %lld to %lld, the rotary tables 0 to %d", (int)b,
                        (long long)begin, (long long)(begin + len - 1), (int)r->positions - 1);
    return CLATTN_OK;
}

// ---- rotation alone ----------------------------------------------------------------------------

static clattn_status compute(clattn_context *ctx, const void *data, void *const *ptr)
{
    cla_host_rotary(data, ptr, ctx->threads);
    return CLATTN_OK;
}

static clattn_status check_fields(const clattn_rotary_call *c, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    const struct cla_kv_count counts[] = {
        {"batch", c->batch, 0}, {"heads", c->heads, 1}, {"len", c->len, 0}, {"dim", c->dim, 1}};
    CLA_TRY(cla_check_bits(log, "flags", c->flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_kv_counts(log, counts, 4));
    CLA_TRY(cla_kv_dtype(log, "dtype", c->dtype));
    CLA_TRY(cla_rotary_check(log, &c->rotary, c->dim));
done:
    return st;
}

// In the order of the kernel's arguments.
static clattn_status add_buffers(struct cla_rotate_op *out, const clattn_rotary_call *c)
{
    clattn_status st = CLATTN_OK;
    struct cla_op *op = &out->op;
    struct cla_rotate_args *a = &out->data.args;
    enum { X = 0, Y = 4 };
    const int64_t rows[3] = {c->batch, c->heads, c->len};
    const int64_t one[3] = {1, 1, 1};
    CLA_TRY(cla_op_tensor(op, "x", &c->x, rows, c->dim, c->dtype, CLA_OP_IN, &a->x));
    CLA_TRY(cla_rotary_add(op, &c->rotary, c->batch, &a->rotary));
    CLA_TRY(cla_op_tensor(op, "y", &c->y, rows, c->dim, c->dtype, CLA_OP_OUT, &a->y));
    CLA_TRY(cla_op_vector(op, "faults", &c->faults, one, sizeof(int32_t), CLA_OP_KEEPS, true,
                          &a->faults));
    cla_op_same(op, X, Y);
    CLA_TRY(cla_op_check_overlaps(op));
    const int32_t *first = cla_op_host_ints(&c->rotary.offsets);
    const int32_t known = first ? c->batch : c->rotary.offsets.kind == CLATTN_BUF_ABSENT;
    for (int32_t b = 0; b < known && b < c->batch; b++)
        CLA_TRY(cla_rotary_check_positions(&op->ctx->log, &c->rotary, b, first ? first[b] : 0,
                                           c->len));
done:
    return st;
}

clattn_status cla_rotate_op(clattn_context *ctx, const clattn_rotary_call *in,
                            struct cla_rotate_op *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    clattn_rotary_call c;
    struct cla_op *op = &out->op;
    struct cla_rotate_args *a = &out->data.args;
    cla_op_init(op, ctx, "rotary", "rotary.cl", "rotary", &out->data, sizeof out->data,
                sizeof out->data.args);
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_context_check(ctx));
    CLA_TRY(cla_struct_in("clattn_rotary_call", in, CLA_SIZE_TO(clattn_rotary_call, faults), &c,
                          sizeof c, log));
    CLA_TRY(check_fields(&c, log));
    CLA_TRY(cla_kv_rows(log, c.batch, c.heads, c.len, &out->data.rows));
    CLA_TRY(add_buffers(out, &c));
    a->heads = c.heads;
    a->len = c.len;
    a->dim = c.dim;
    a->flags = c.faults.kind != CLATTN_BUF_ABSENT ? CLA_FWD_HAS_FAULTS : 0;
    out->data.dtype = c.dtype;
    op->rows = out->data.rows;
    op->no_fallback = (c.flags & CLATTN_NO_FALLBACK) != 0;
    op->compute = compute;
    snprintf(op->options, sizeof op->options, "-DDTYPE_Q=%d -DDTYPE_O=%d", (int)c.dtype,
             (int)c.dtype);
done:
    return st;
}

clattn_status clattn_rotary_run(clattn_context *ctx, const clattn_rotary_call *call)
{
    struct cla_rotate_op rotate;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const clattn_status st = cla_rotate_op(ctx, call, &rotate);
    return st == CLATTN_OK ? cla_op_run(&rotate.op) : st;
}
