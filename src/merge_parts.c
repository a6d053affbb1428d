// SPDX-License-Identifier: Apache-2.0
// The public call that merges results over disjoint keys.
#include <stdio.h>

#include "kv.h"

_Static_assert((int)CLATTN_MERGE_MAX_PARTS == CLA_MERGE_PARTS, "slots of merge_parts.cl");

static const char *const part_name[CLA_MERGE_PARTS] = {"parts[0]", "parts[1]", "parts[2]",
                                                       "parts[3]", "parts[4]", "parts[5]",
                                                       "parts[6]", "parts[7]"};
static const char *const lse_name[CLA_MERGE_PARTS] = {
    "parts_lse[0]", "parts_lse[1]", "parts_lse[2]", "parts_lse[3]",
    "parts_lse[4]", "parts_lse[5]", "parts_lse[6]", "parts_lse[7]"};

void clattn_merge_call_init(clattn_merge_call *call, size_t size)
{
    cla_struct_init(call, size);
}

static clattn_status compute(clattn_context *ctx, const void *data, void *const *ptr)
{
    cla_host_merge(data, ptr, ctx->threads);
    return CLATTN_OK;
}

static clattn_status check_fields(const clattn_merge_call *c, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    const struct cla_kv_count counts[] = {{"num_parts", c->num_parts, 1}, {"batch", c->batch, 0},
                                          {"heads", c->heads, 1},         {"len_q", c->len_q, 0},
                                          {"dim_v", c->dim_v, 1}};
    CLA_TRY(cla_check_bits(log, "flags", c->flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_kv_counts(log, counts, 5));
    if (c->num_parts > CLA_MERGE_PARTS)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "num_parts is %d, more than %d: merge the others into O in further calls",
                         (int)c->num_parts, CLA_MERGE_PARTS));
    CLA_TRY(cla_kv_dtype(log, "dtype_parts", c->dtype_parts));
    CLA_TRY(cla_kv_dtype(log, "dtype_o", c->dtype_o));
    if (!c->parts || !c->parts_lse)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is NULL",
                         c->parts ? "parts_lse" : "parts"));
done:
    return st;
}

// In the order of the kernel's arguments.
static clattn_status add_buffers(struct cla_merge_op *m, const clattn_merge_call *c)
{
    clattn_status st = CLATTN_OK;
    struct cla_op *op = &m->op;
    struct cla_merge_args *a = &m->data.args;
    enum { O = 2 * CLA_MERGE_PARTS + 1, LSE_OUT };
    const int64_t rows[3] = {c->batch, c->heads, c->len_q};
    const int64_t heads[3] = {1, 1, c->heads};
    const int n = c->num_parts;
    for (int k = 0; k < CLA_MERGE_PARTS; k++) {
        if (k < n)
            CLA_TRY(cla_op_tensor(op, part_name[k], &c->parts[k], rows, c->dim_v, c->dtype_parts,
                                  CLA_OP_IN, &a->part[k]));
        else
            cla_op_absent(op, part_name[k]);
    }
    for (int k = 0; k < CLA_MERGE_PARTS; k++) {
        if (k < n)
            CLA_TRY(cla_op_vector(op, lse_name[k], &c->parts_lse[k], rows, sizeof(float), CLA_OP_IN,
                                  false, &a->part_lse[k]));
        else
            cla_op_absent(op, lse_name[k]);
    }
    CLA_TRY(cla_op_vector(op, "sinks", &c->sinks, heads, sizeof(float), CLA_OP_IN, true,
                          &a->sinks));
    CLA_TRY(cla_op_tensor(op, "o", &c->o, rows, c->dim_v, c->dtype_o, CLA_OP_OUT, &a->o));
    CLA_TRY(cla_op_vector(op, "lse", &c->lse, rows, sizeof(float), CLA_OP_OUT, true, &a->lse));
    for (int k = 0; k < n; k++) {
        if (c->dtype_parts == c->dtype_o)
            cla_op_same(op, k, O);
        cla_op_same(op, CLA_MERGE_PARTS + k, LSE_OUT);
    }
    CLA_TRY(cla_op_check_overlaps(op));
done:
    return st;
}

clattn_status cla_merge_op(clattn_context *ctx, const clattn_merge_call *in,
                           struct cla_merge_op *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    clattn_merge_call c;
    struct cla_op *op = &out->op;
    struct cla_merge_args *a = &out->data.args;
    cla_op_init(op, ctx, "merge", "merge_parts.cl", "merge_parts", &out->data, sizeof out->data,
                sizeof out->data.args);
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_context_check(ctx));
    CLA_TRY(cla_struct_in("clattn_merge_call", in, CLA_SIZE_TO(clattn_merge_call, lse), &c,
                          sizeof c, log));
    CLA_TRY(check_fields(&c, log));
    CLA_TRY(cla_kv_rows(log, c.batch, c.heads, c.len_q, &out->data.rows));
    CLA_TRY(add_buffers(out, &c));
    a->num_parts = c.num_parts;
    a->heads = c.heads;
    a->len = c.len_q;
    a->dim = c.dim_v;
    a->flags = (c.lse.kind != CLATTN_BUF_ABSENT ? CLA_FWD_HAS_LSE : 0) |
               (c.sinks.kind != CLATTN_BUF_ABSENT ? CLA_FWD_HAS_SINKS : 0);
    out->data.dtype_parts = c.dtype_parts;
    out->data.dtype_o = c.dtype_o;
    op->rows = out->data.rows;
    op->no_fallback = (c.flags & CLATTN_NO_FALLBACK) != 0;
    op->compute = compute;
    snprintf(op->options, sizeof op->options, "-DDTYPE_Q=%d -DDTYPE_O=%d", (int)c.dtype_parts,
             (int)c.dtype_o);
done:
    return st;
}

clattn_status clattn_merge_run(clattn_context *ctx, const clattn_merge_call *call)
{
    struct cla_merge_op merge;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const clattn_status st = cla_merge_op(ctx, call, &merge);
    return st == CLATTN_OK ? cla_op_run(&merge.op) : st;
}
