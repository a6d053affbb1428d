// SPDX-License-Identifier: Apache-2.0
// The public calls with OpenCL types on a plan.
#include "clattn/opencl.h"

#include "attention.h"
#include "context_ocl.h"
#include "ocl/error.h"

// Drivers say no more than that something in the list is invalid, and some do not look.
static clattn_status check_wait(const clattn_context *ctx, cl_uint num_wait, const cl_event *wait)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    if ((num_wait > 0) != (wait != NULL))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "num_wait is %u, wait is %s",
                        (unsigned)num_wait, wait ? "set" : "NULL");
    for (cl_uint i = 0; i < num_wait; i++) {
        cl_context context = NULL;
        if (!wait[i])
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "wait[%u] is NULL", (unsigned)i);
        CLA_CL(cl->GetEventInfo(wait[i], CL_EVENT_CONTEXT, sizeof context, &context, NULL));
        if (context != ctx->ocl->context)
            return cla_fail(log, CLATTN_ERR_WRONG_CONTEXT,
                            "wait[%u] is of cl_context %p, the plan is of %p", (unsigned)i,
                            (void *)context, (void *)ctx->ocl->context);
    }
done:
    return st;
}

clattn_status cla_queue_check(const clattn_context *ctx, cl_command_queue queue, cl_uint num_wait,
                              const cl_event *wait)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_context context = NULL;
    cl_device_id device = NULL;
    CLA_TRY(cla_context_check(ctx));
    CLA_TRY(check_wait(ctx, num_wait, wait));
    if (!queue)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "queue is NULL");
    CLA_CL(cl->GetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL));
    CLA_CL(cl->GetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL));
    if (context != ctx->ocl->context)
        st = cla_fail(log, CLATTN_ERR_WRONG_CONTEXT, "queue is of cl_context %p, the plan is of %p",
                      (void *)context, (void *)ctx->ocl->context);
    else if (device != ctx->ocl->device)
        st = cla_fail(log, CLATTN_ERR_WRONG_CONTEXT, "queue is of device %p, the plan is of %p",
                      (void *)device, (void *)ctx->ocl->device);
done:
    return st;
}

static clattn_status check_kinds(const clattn_plan *plan, struct cla_call *call)
{
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    cla_call_bufs(&plan->problem, call, bufs);
    for (int i = 0; i < CLA_CALL_BUFS; i++) {
        if (bufs[i].end_bytes && bufs[i].buf->kind != CLATTN_BUF_CL_MEM)
            return cla_fail(&plan->ctx->log, CLATTN_ERR_BUFFER_MISSING,
                            "%s.buf.kind is %d: clattn_attention_enqueue() needs a cl_mem (%d)",
                            bufs[i].name, (int)bufs[i].buf->kind, (int)CLATTN_BUF_CL_MEM);
    }
    return CLATTN_OK;
}

clattn_status clattn_attention_enqueue(const clattn_plan *plan, const clattn_attention_call *call,
                                       cl_command_queue queue, cl_uint num_wait,
                                       const cl_event *wait, cl_event *done_event)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = plan->ctx;
    const struct cla_log *log = &ctx->log;
    struct cla_call checked;
    if (!ctx->ocl)
        return cla_fail(log, CLATTN_ERR_NO_OPENCL,
                        "enqueue: the plan is of the built-in CPU path, which has no queue");
    CLA_TRY(cla_queue_check(ctx, queue, num_wait, wait));
    CLA_TRY(cla_plan_check_call(plan, call, &checked));
    CLA_TRY(check_kinds(plan, &checked));
    if (checked.workspace.kind == CLATTN_BUF_HOST)
        CLA_TRY(cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                         "workspace.kind is %d: clattn_attention_enqueue() needs a cl_mem (%d)",
                         (int)checked.workspace.kind, (int)CLATTN_BUF_CL_MEM));
    if (checked.workspace_need && checked.workspace.kind == CLATTN_BUF_ABSENT)
        CLA_TRY(cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                         "workspace is absent: %s needs a cl_mem of %llu bytes",
                         plan->choice.algo->name, (unsigned long long)checked.workspace_need));
    if (checked.batch == 0 || checked.len_q == 0) {
        if (done_event)
            CLA_CL(ctx->ocl->cl->EnqueueMarkerWithWaitList(queue, num_wait, wait, done_event));
        goto done;
    }
    const struct cla_submit submit = {queue, num_wait, wait, done_event};
    st = plan->choice.algo->enqueue(ctx, &plan->problem, plan->prepared, &checked, &submit);
done:
    return st;
}
