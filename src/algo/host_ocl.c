// SPDX-License-Identifier: Apache-2.0
// The CPU path on cl_mem. Once the caller's queue and wait list allow it, the context's worker maps
// the buffers, computes on the mapped memory and unmaps; a user event says when it is done. Maps
// and unmaps run on a queue of the job's own: on the caller's in-order queue they would wait behind
// the commands that wait for them. One job maps at a time: PoCL 3.1 crashes when two queues map the
// same buffer at once.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "algo/algo.h"
#include "context_ocl.h"
#include "ocl/error.h"

struct host_job {
    struct host_job *next; // in a list of jobs that wait, or that were not called back
    clattn_context *ctx;
    clattn_status (*compute)(clattn_context *ctx, const void *data, void *const *ptr);
    void *data; // owned
    int num_bufs;
    struct cla_call_buf bufs[CLA_WORK_BUFS]; // but for `buf`, which is the caller's
    void *host[CLA_WORK_BUFS]; // element 0 of host memory in a blocking call, else NULL
    cl_mem mem[CLA_WORK_BUFS]; // retained
    void *ptr[CLA_WORK_BUFS];  // mapped, at element 0; NULL where absent
    cl_command_queue queue;
    cl_event ready;    // what lets it begin, as long as the job is in the list of those that wait
    cl_event finished; // user event; NULL in a blocking call
    cl_event behind;   // a marker that waits for it
    clattn_status status;
    // The enqueue and the callback each have a part in the job; who gives up the last one hands it
    // over, or frees it where the enqueue has failed.
    atomic_int parts;
    atomic_bool is_called; // by the driver, or by the watch that found what the driver did not say
    bool by_watch;         // the driver may still call back: the job's memory stays
    bool is_dropped;
    cl_int waited; // what the callback was told
};

// Jobs whose memory stays. They are few: each has waited for what failed.
static _Atomic(struct host_job *) uncalled;

// Unmaps what is mapped and waits for it.
static void unmap_all(struct host_job *job)
{
    const struct cla_cl *cl = job->ctx->ocl->cl;
    const struct cla_log *log = &job->ctx->log;
    clattn_status st = CLATTN_OK;
    for (int i = 0; i < job->num_bufs; i++) {
        if (job->ptr[i] &&
            cla_cl_check(log,
                         cl->EnqueueUnmapMemObject(job->queue, job->mem[i], job->ptr[i], 0, NULL,
                                                   NULL),
                         "clEnqueueUnmapMemObject") != CLATTN_OK)
            st = CLATTN_ERR_OPENCL;
        job->ptr[i] = NULL;
    }
    if (cla_cl_check(log, cl->Finish(job->queue), "clFinish") != CLATTN_OK)
        st = CLATTN_ERR_OPENCL;
    if (job->status == CLATTN_OK)
        job->status = st;
}

// Gives back all that the job holds of OpenCL.
static void job_release(struct host_job *job)
{
    const struct cla_cl *cl = job->ctx->ocl->cl;
    for (int i = 0; i < CLA_WORK_BUFS; i++) {
        if (job->mem[i])
            cl->ReleaseMemObject(job->mem[i]);
    }
    if (job->finished)
        cl->ReleaseEvent(job->finished);
    if (job->behind)
        cl->ReleaseEvent(job->behind);
    if (job->queue)
        cl->ReleaseCommandQueue(job->queue);
}

// Of one that holds nothing of OpenCL any more.
static void job_discard(struct host_job *job)
{
    free(job->data);
    job->data = NULL;
    if (!job->by_watch) {
        free(job);
        return;
    }
    job->next = atomic_load(&uncalled);
    while (!atomic_compare_exchange_weak(&uncalled, &job->next, job)) {
    }
}

static void job_free(struct host_job *job)
{
    job_release(job);
    job_discard(job);
}

static clattn_status job_create(clattn_context *ctx, const struct cla_host_work *work,
                                struct host_job **out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_int code = CL_SUCCESS;
    struct host_job *job = calloc(1, sizeof *job);
    if (!job)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a job of the CPU path");
    job->ctx = ctx;
    job->compute = work->compute;
    job->num_bufs = work->num_bufs;
    job->data = malloc(work->data_bytes);
    if (!job->data)
        CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a job of the CPU path"));
    memcpy(job->data, work->data, work->data_bytes);
    job->queue = cl->CreateCommandQueue(ctx->ocl->context, ctx->ocl->device, 0, &code);
    CLA_TRY(cla_cl_made(log, job->queue, code, "clCreateCommandQueue"));
    for (int i = 0; i < work->num_bufs; i++) {
        const struct cla_call_buf *b = &work->bufs[i];
        job->bufs[i] = *b;
        job->bufs[i].buf = NULL;
        if (!b->end_bytes)
            continue;
        if (b->buf->kind != CLATTN_BUF_CL_MEM) {
            job->host[i] = (char *)b->buf->ptr + b->begin_bytes;
            continue;
        }
        CLA_CL(cl->RetainMemObject(b->buf->ptr));
        job->mem[i] = b->buf->ptr;
    }
    *out = job;
    job = NULL;
done:
    if (job)
        job_free(job);
    return st;
}

// Maps what is a cl_mem, and waits.
static clattn_status map_all(struct host_job *job)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &job->ctx->log;
    const struct cla_cl *cl = job->ctx->ocl->cl;
    for (int i = 0; i < job->num_bufs; i++) {
        const struct cla_call_buf *b = &job->bufs[i];
        if (!job->mem[i])
            continue;
        cl_int code = CL_SUCCESS;
        job->ptr[i] = cl->EnqueueMapBuffer(
            job->queue, job->mem[i], CL_TRUE, b->output ? CL_MAP_WRITE : CL_MAP_READ,
            b->begin_bytes, b->end_bytes - b->begin_bytes, 0, NULL, NULL, &code);
        if (code == CL_SUCCESS && !job->ptr[i])
            code = CL_MAP_FAILURE; // a driver that says one thing and does another
        CLA_TRY(cla_cl_check(log, code, "clEnqueueMapBuffer"));
    }
done:
    return st;
}

static void compute(struct host_job *job)
{
    void *ptr[CLA_WORK_BUFS];
    for (int i = 0; i < job->num_bufs; i++)
        ptr[i] = job->ptr[i] ? job->ptr[i] : job->host[i];
    job->status = job->compute(job->ctx, job->data, ptr);
}

// Maps, computes, unmaps; the outcome is in job->status.
static void map_and_compute(struct host_job *job)
{
    cla_mutex_lock(job->ctx->map_mutex);
    job->status = map_all(job);
    if (job->status == CLATTN_OK)
        compute(job);
    unmap_all(job);
    cla_mutex_unlock(job->ctx->map_mutex);
}

// ---- waiting -----------------------------------------------------------------------------------

// PoCL 3.1 looks at a marker once more when what is in front of it on the queue is done, also where
// the marker has failed and is gone by then. So the last ones that failed are held, as long as the
// context lives.
static void hold_marker(clattn_context *ctx, cl_event *marker)
{
    struct cla_ocl *ocl = ctx->ocl;
    cla_mutex_lock(ctx->mutex);
    cl_event *place = &ocl->failed[ocl->num_failed++ % CLA_FAILED_MARKERS];
    const cl_event oldest = *place;
    *place = *marker;
    *marker = NULL;
    cla_mutex_unlock(ctx->mutex);
    if (oldest)
        ocl->cl->ReleaseEvent(oldest);
}

static void let_go(clattn_context *ctx, cl_event *event, bool may_have_failed)
{
    if (!*event)
        return;
    if (may_have_failed)
        hold_marker(ctx, event);
    else
        ctx->ocl->cl->ReleaseEvent(*event);
    *event = NULL;
}

// The driver tells all that waits for an event that it has ended after it has called back for it,
// and holds the event until then. To be asked of one that has ended, and whose only other reference
// is the job's.
static void wait_for_driver(clattn_context *ctx, cl_event event)
{
    enum { DRIVER_MS = 100 }; // where its references are others
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_uint references = 0;
    for (int ms = 0; ms < DRIVER_MS; ms++) {
        const cl_int code = cl->GetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof references,
                                             &references, NULL);
        if (code != CL_SUCCESS || references <= 1)
            return;
        cla_os_sleep_ms(1);
    }
}

// An event that says that the caller's queue and wait list let the job begin. On an out-of-order
// queue that is a command which a barrier holds back: markers without a wait list wait for all that
// is queued, and those of Intel's CPU runtime that have one pass barriers.
static clattn_status ready_event(clattn_context *ctx, const struct cla_submit *submit,
                                 cl_event *ready)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_command_queue queue = submit->queue;
    cl_command_queue_properties props = 0;
    cl_mem mem = NULL;
    cl_int code = CL_SUCCESS;
    CLA_CL(cl->GetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof props, &props, NULL));
    if (props & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) {
        const cl_int zero = 0;
        mem = cl->CreateBuffer(ctx->ocl->context, CL_MEM_READ_WRITE, sizeof zero, NULL, &code);
        CLA_TRY(cla_cl_made(log, mem, code, "clCreateBuffer"));
        CLA_CL(cl->EnqueueFillBuffer(queue, mem, &zero, sizeof zero, 0, sizeof zero,
                                     submit->num_wait, submit->wait, ready));
    } else {
        CLA_CL(cl->EnqueueMarkerWithWaitList(queue, submit->num_wait, submit->wait, ready));
    }
    CLA_CL(cl->Flush(queue));
done:
    if (mem)
        cl->ReleaseMemObject(mem); // the command keeps it
    return st;
}

// ---- blocking ----------------------------------------------------------------------------------

// What the application has queued in front of the call, as a kernel on that queue waits for it.
// (rusticl's clFinish() returns in front of what waits for a user event.)
static clattn_status wait_for_queue(clattn_context *ctx)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    const struct cla_submit submit = {ctx->ocl->queue, 0, NULL, NULL};
    cl_event ready = NULL;
    CLA_TRY(ready_event(ctx, &submit, &ready));
    CLA_CL(cl->WaitForEvents(1, &ready));
done:
    let_go(ctx, &ready, st != CLATTN_OK);
    return st;
}

clattn_status cla_host_work_run(clattn_context *ctx, const struct cla_host_work *work)
{
    struct host_job *job = NULL;
    clattn_status st = wait_for_queue(ctx);
    if (st == CLATTN_OK)
        st = job_create(ctx, work, &job);
    if (st != CLATTN_OK)
        return st;
    const bool turn = cla_ocl_begin_turn(ctx, false);
    map_and_compute(job);
    cla_ocl_end_turn(ctx, turn);
    st = job->status;
    job_free(job);
    return st;
}

// ---- asynchronous ------------------------------------------------------------------------------

// Ends the job's user event. Whoever waits for one that is never set waits for ever, so a call that
// fails is made once more, and then says so, as the job's status does.
static void end_event(struct host_job *job)
{
    const struct cla_cl *cl = job->ctx->ocl->cl;
    const cl_int end = job->status == CLATTN_OK ? CL_COMPLETE : CL_OUT_OF_RESOURCES;
    const cl_int code = cl->SetUserEventStatus(job->finished, end);
    if (cla_cl_check(&job->ctx->log, code, "clSetUserEventStatus") == CLATTN_OK)
        return;
    cl->SetUserEventStatus(job->finished, CL_OUT_OF_RESOURCES);
    job->status = CLATTN_ERR_OPENCL;
}

// Puts the job among those that wait for `ready`, of which it takes a reference.
static clattn_status begin_waiting(struct host_job *job, cl_event ready)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &job->ctx->log;
    struct cla_ocl *ocl = job->ctx->ocl;
    CLA_CL(ocl->cl->RetainEvent(ready));
    job->ready = ready;
    cla_mutex_lock(ocl->waiting_mutex);
    job->next = ocl->waiting;
    ocl->waiting = job;
    cla_mutex_unlock(ocl->waiting_mutex);
done:
    return st;
}

static void end_waiting(struct host_job *job)
{
    struct cla_ocl *ocl = job->ctx->ocl;
    if (!job->ready)
        return;
    cla_mutex_lock(ocl->waiting_mutex);
    struct host_job **link = &ocl->waiting;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    cla_mutex_unlock(ocl->waiting_mutex);
}

// On the worker: does the work, and sets the user event whatever happened.
static void run_job(void *arg)
{
    struct host_job *job = arg;
    clattn_context *ctx = job->ctx;
    end_waiting(job);
    if (job->waited < 0)
        job->status = cla_fail(&ctx->log, CLATTN_ERR_OPENCL,
                               "CPU path: what it waits for has failed: %s",
                               cla_cl_error_name(job->waited));
    if (job->status == CLATTN_OK)
        map_and_compute(job);
    end_event(job);
    if (job->status != CLATTN_OK && job->ready)
        wait_for_driver(ctx, job->ready);
    let_go(ctx, &job->ready, job->waited < 0);
    let_go(ctx, &job->behind, job->status != CLATTN_OK);
    job_free(job);
    cla_context_job_ended(ctx);
}

// Hands the job to the worker, which exists: the enqueue that made the job started it.
static void hand_over(struct host_job *job)
{
    if (!cla_worker_push(cla_context_worker(job->ctx), run_job, job))
        run_job(job);
}

// The context may be gone where the enqueue has failed. What is left of the job stays where a
// driver does not call back for an event that failed (PoCL 3.1, rusticl).
static void give_up_part(struct host_job *job)
{
    if (atomic_fetch_sub(&job->parts, 1) > 1)
        return;
    if (!job->is_dropped)
        hand_over(job);
    else
        job_discard(job);
}

// On a thread of the driver, where nothing may block.
static void CL_CALLBACK begin(cl_event event, cl_int status, void *arg)
{
    (void)event;
    struct host_job *job = arg;
    if (atomic_exchange(&job->is_called, true))
        return;
    job->waited = status;
    give_up_part(job);
}

// On the worker: some drivers do not call back where what a job waits for has failed. A job stays
// in the list until the worker runs it.
static bool look_at_waiting(void *arg)
{
    clattn_context *ctx = arg;
    struct cla_ocl *ocl = ctx->ocl;
    struct host_job *failed = NULL;
    bool more = false;
    cla_mutex_lock(ocl->waiting_mutex);
    for (struct host_job *job = ocl->waiting; job && !failed; job = job->next) {
        cl_int status = CL_QUEUED;
        if (atomic_load(&job->is_called))
            continue;
        more = true;
        if (ocl->cl->GetEventInfo(job->ready, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status,
                                  &status, NULL) != CL_SUCCESS || status >= 0)
            continue;
        if (!atomic_exchange(&job->is_called, true)) {
            job->waited = status;
            job->by_watch = true;
            failed = job;
        }
    }
    cla_mutex_unlock(ocl->waiting_mutex);
    if (failed)
        give_up_part(failed);
    return more;
}

clattn_status cla_host_work_enqueue(clattn_context *ctx, const struct cla_host_work *work,
                                    const struct cla_submit *submit)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    struct host_job *job = NULL;
    cl_event ready = NULL, finished = NULL;
    bool has_callback = false;
    cl_int code = CL_SUCCESS;
    if (!cla_context_worker(ctx))
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for the worker of the CPU path");
    CLA_TRY(job_create(ctx, work, &job));
    job->finished = cl->CreateUserEvent(ctx->ocl->context, &code);
    CLA_TRY(cla_cl_made(log, job->finished, code, "clCreateUserEvent"));
    CLA_CL(cl->RetainEvent(job->finished));
    finished = job->finished;
    CLA_TRY(ready_event(ctx, submit, &ready));
    atomic_init(&job->parts, 2);
    atomic_init(&job->is_called, false);
    CLA_CL(cl->SetEventCallback(ready, CL_COMPLETE, begin, job));
    has_callback = true;
    CLA_TRY(begin_waiting(job, ready));
    // Later commands of an in-order queue wait here. The caller's `done` is the user event itself:
    // Intel's CPU runtime lets a marker succeed behind an event that failed. The marker comes last,
    // so that nobody waits for a job that will not begin.
    CLA_CL(cl->EnqueueMarkerWithWaitList(submit->queue, 1, &finished, &job->behind));
    cla_context_job_began(ctx);
    give_up_part(job);
    job = NULL;
    cla_worker_watch(cla_context_worker(ctx), look_at_waiting, ctx);
    if (submit->done) {
        *(cl_event *)submit->done = finished;
        finished = NULL;
    }
done:
    if (finished)
        cl->ReleaseEvent(finished);
    if (ready)
        cl->ReleaseEvent(ready);
    if (job && has_callback) { // which comes some time
        end_waiting(job);
        let_go(ctx, &job->ready, true);
        job_release(job);
        job->is_dropped = true;
        give_up_part(job);
    } else if (job) {
        job_free(job);
    }
    return st;
}
