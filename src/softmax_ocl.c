// SPDX-License-Identifier: Apache-2.0
// The public call of row softmax with OpenCL types.
#include "clattn/opencl.h"

#include "attention.h"
#include "context_ocl.h"
#include "ocl/error.h"
#include "softmax_plan.h"

static clattn_status check_kinds(const clattn_softmax_plan *plan,
                                 const struct cla_softmax_call *call)
{
    const struct cla_log *log = &plan->ctx->log;
    struct cla_softmax_work w;
    size_t need = 0;
    cla_softmax_work(plan, call, &w);
    for (int i = 0; i < 3; i++) {
        if (w.bufs[i].end_bytes && w.bufs[i].buf->kind != CLATTN_BUF_CL_MEM)
            return cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                            "%s.kind is %d: clattn_softmax_enqueue() needs a cl_mem (%d)",
                            w.bufs[i].name, (int)w.bufs[i].buf->kind, (int)CLATTN_BUF_CL_MEM);
    }
    clattn_status st = clattn_softmax_workspace_bytes(plan, call->rows, call->len, &need);
    if (st == CLATTN_OK && need && call->workspace.kind != CLATTN_BUF_CL_MEM)
        st = cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                      "workspace.kind is %d: this call needs a cl_mem (%d) of %zu bytes",
                      (int)call->workspace.kind, (int)CLATTN_BUF_CL_MEM, need);
    return st;
}

clattn_status clattn_softmax_enqueue(const clattn_softmax_plan *plan,
                                     const clattn_softmax_call *call, cl_command_queue queue,
                                     cl_uint num_wait, const cl_event *wait, cl_event *done_event)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = plan->ctx;
    const struct cla_log *log = &ctx->log;
    struct cla_softmax_call checked;
    if (!ctx->ocl)
        return cla_fail(log, CLATTN_ERR_NO_OPENCL,
                        "enqueue: the plan is of the built-in CPU path, which has no queue");
    CLA_TRY(cla_queue_check(ctx, queue, num_wait, wait));
    CLA_TRY(cla_softmax_check(plan, call, &checked));
    if (cla_softmax_is_empty(plan, &checked)) {
        if (done_event)
            CLA_CL(ctx->ocl->cl->EnqueueMarkerWithWaitList(queue, num_wait, wait, done_event));
        goto done;
    }
    CLA_TRY(check_kinds(plan, &checked));
    const struct cla_submit submit = {queue, num_wait, wait, done_event};
    if (plan->path == CLATTN_SOFTMAX_PATH_OPENCL) {
        st = cla_softmax_enqueue(ctx, &plan->s, plan->kernels, &checked, &submit);
    } else {
        struct cla_softmax_work w;
        cla_softmax_work(plan, &checked, &w);
        st = cla_host_work_enqueue(ctx, &w.work, &submit);
    }
done:
    return st;
}
