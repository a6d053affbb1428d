// SPDX-License-Identifier: Apache-2.0
// The public calls of the operations around attention with OpenCL types.
#include "clattn/opencl.h"

#include "context_ocl.h"
#include "kv.h"

static clattn_status check_queue(clattn_context *ctx, const char *name, cl_command_queue queue,
                                 cl_uint num_wait, const cl_event *wait)
{
    if (!ctx->ocl)
        return cla_fail(&ctx->log, CLATTN_ERR_NO_OPENCL,
                        "clattn_%s_enqueue: the context is of the built-in CPU path, which has no "
                        "queue", name);
    return cla_queue_check(ctx, queue, num_wait, wait);
}

clattn_status clattn_merge_enqueue(clattn_context *ctx, const clattn_merge_call *call,
                                   cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                                   cl_event *done)
{
    struct cla_merge_op merge;
    const struct cla_submit submit = {queue, num_wait, wait, done};
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = check_queue(ctx, "merge", queue, num_wait, wait);
    if (st == CLATTN_OK)
        st = cla_merge_op(ctx, call, &merge);
    return st == CLATTN_OK ? cla_op_enqueue(&merge.op, &submit) : st;
}

clattn_status clattn_rotary_enqueue(clattn_context *ctx, const clattn_rotary_call *call,
                                    cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                                    cl_event *done)
{
    struct cla_rotate_op rotate;
    const struct cla_submit submit = {queue, num_wait, wait, done};
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = check_queue(ctx, "rotary", queue, num_wait, wait);
    if (st == CLATTN_OK)
        st = cla_rotate_op(ctx, call, &rotate);
    return st == CLATTN_OK ? cla_op_enqueue(&rotate.op, &submit) : st;
}

clattn_status clattn_append_enqueue(clattn_context *ctx, const clattn_append_call *call,
                                    cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                                    cl_event *done)
{
    struct cla_append_op append;
    const struct cla_submit submit = {queue, num_wait, wait, done};
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = check_queue(ctx, "append", queue, num_wait, wait);
    if (st == CLATTN_OK)
        st = cla_append_op(ctx, call, &append);
    return st == CLATTN_OK ? cla_op_enqueue(&append.op, &submit) : st;
}
