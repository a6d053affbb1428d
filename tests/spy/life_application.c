// SPDX-License-Identifier: Apache-2.0
// A life as the guest of an application, which has a context, queues and buffers. The CPU path has
// the in-order queue: Intel's CPU runtime crashes in clFinish() of an out-of-order one at the
// moment when a user event in it fails.
#include <stdio.h>
#include <stdlib.h>

#include "compare.h"
#include "life_steps.h"

#ifdef LIFE_APPLICATION_LINKS_OPENCL

#include "clattn/opencl.h"
#include "spy.h"

enum { Q, K, V, O, LSE, MERGED, WORKSPACE, MEMS };
enum { ROOM = 1 << 16 }; // of a workspace

static struct {
    cl_context context;
    cl_device_id device;
    cl_command_queue in_order, any_order;
    cl_mem mem[MEMS];
} app;

static cl_command_queue queue_of(const struct world *w)
{
    return w->life->algo == CLATTN_ALGO_HOST ? app.in_order : app.any_order;
}

static void must(cl_int code, const char *what)
{
    if (code == CL_SUCCESS)
        return;
    fprintf(stderr, "the application's own %s: %d\n", what, (int)code);
    abort();
}

// On the device that other lives have.
static void open_application(void)
{
    const struct life_data *d = &life_data;
    const void *const from[] = {d->q, d->k, d->v};
    const size_t bytes[MEMS] = {sizeof d->q, sizeof d->k, sizeof d->v, sizeof d->want_o,
                                sizeof d->want_lse, sizeof d->want_o, ROOM};
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    cl_int code;
    if (app.context)
        return;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "0";
    desc.flags = CLATTN_CONTEXT_NO_SELF_TEST | CLATTN_CONTEXT_NO_CACHE;
    must(clattn_context_create(&desc, &ctx), "look for a device");
    app.device = clattn_context_cl_device(ctx);
    clattn_context_destroy(&ctx);
    app.context = clCreateContext(NULL, 1, &app.device, NULL, NULL, &code);
    must(code, "context");
    app.in_order = clCreateCommandQueue(app.context, app.device, 0, &code);
    must(code, "queue");
    app.any_order = clCreateCommandQueue(app.context, app.device,
                                         CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code != CL_SUCCESS)
        app.any_order = clCreateCommandQueue(app.context, app.device, 0, &code);
    must(code, "queue");
    for (int i = 0; i < MEMS; i++) {
        app.mem[i] = clCreateBuffer(app.context, CL_MEM_READ_WRITE, bytes[i], NULL, &code);
        must(code, "buffer");
        if (i <= V)
            must(clEnqueueWriteBuffer(app.in_order, app.mem[i], CL_TRUE, 0, bytes[i], from[i], 0,
                                      NULL, NULL), "write");
    }
    must(clFinish(app.in_order), "clFinish");
}

void life_application_end(void)
{
    if (!app.context)
        return;
    for (int i = 0; i < MEMS; i++)
        clReleaseMemObject(app.mem[i]);
    clReleaseCommandQueue(app.in_order);
    clReleaseCommandQueue(app.any_order);
    clReleaseContext(app.context);
    app.context = NULL;
}

static clattn_buf buf(int n)
{
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = app.mem[n]};
}

static void write_floats(int n, const float *from, size_t bytes)
{
    must(clEnqueueWriteBuffer(app.in_order, app.mem[n], CL_TRUE, 0, bytes, from, 0, NULL, NULL),
         "write");
    must(clFinish(app.in_order), "clFinish");
}

static void read_floats(int n, float *to, size_t bytes)
{
    must(clEnqueueReadBuffer(app.in_order, app.mem[n], CL_TRUE, 0, bytes, to, 0, NULL, NULL),
         "read");
}

// Releases an event that clattn made; it is not clattn's any more.
static void take_over(cl_event event)
{
    if (!event)
        return;
    atomic_fetch_sub(&spy_control()->objects[SPY_EVENT], 1);
    clReleaseEvent(event);
}

static clattn_attention_call attention_call(void)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = LEN_Q;
    call.len_kv = LEN_KV;
    call.q.buf = buf(Q);
    call.k.buf = buf(K);
    call.v.buf = buf(V);
    call.o.buf = buf(O);
    call.lse = buf(LSE);
    call.workspace = buf(WORKSPACE);
    return call;
}

// Attention behind an event of the application, and behind it a merge of its O alone, which is O.
// Both may fail at once, or by their events.
static clattn_status enqueue_both(const struct world *w)
{
    const clattn_tensor part = {.buf = buf(O)};
    const clattn_buf part_lse = buf(LSE);
    cl_command_queue queue = queue_of(w);
    const clattn_attention_call call = attention_call();
    clattn_merge_call merge;
    cl_event done = NULL, merged = NULL;
    cl_int code;
    cl_event gate = clCreateUserEvent(app.context, &code);
    must(code, "event");
    clattn_merge_call_init(&merge, sizeof merge);
    merge.num_parts = 1;
    merge.batch = BATCH;
    merge.heads = HEADS_Q;
    merge.len_q = LEN_Q;
    merge.dim_v = DIM;
    merge.parts = &part;
    merge.parts_lse = &part_lse;
    merge.o.buf = buf(MERGED);
    clattn_status st = clattn_attention_enqueue(w->plan[0], &call, queue, 1, &gate, &done);
    if (st == CLATTN_OK)
        st = clattn_merge_enqueue(w->ctx, &merge, queue, 1, &done, &merged);
    must(clSetUserEventStatus(gate, CL_COMPLETE), "event");
    if (st == CLATTN_OK && clWaitForEvents(1, &merged) != CL_SUCCESS)
        st = CLATTN_ERR_OPENCL; // the log says why
    clFinish(queue);
    clReleaseEvent(gate);
    take_over(done);
    take_over(merged);
    return st;
}

void life_application(struct world *w, struct outcome *out)
{
    static float o[NUM_Q], lse[NUM_LSE];
    clattn_context_desc context;
    clattn_attention_desc desc;
    size_t bytes = 0;
    open_application();
    life_context_desc(w, &context);
    STEP(clattn_context_create_opencl(&context, app.context, app.device, queue_of(w),
                                      &w->ctx));
    life_attention_desc(w->life, &desc);
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[0]));
    STEP(clattn_plan_workspace_bytes(w->plan[0], NULL, &bytes));
    if (bytes > ROOM)
        must(CL_INVALID_BUFFER_SIZE, "workspace");
    fill_unwritten(o, NUM_Q);
    write_floats(O, o, sizeof o);
    write_floats(MERGED, o, sizeof o);
    STEP(enqueue_both(w));
    read_floats(MERGED, o, sizeof o);
    read_floats(LSE, lse, sizeof lse);
    life_check(w, out, o, life_data.want_o, NUM_Q);
    life_check(w, out, lse, life_data.want_lse, NUM_LSE);
}

clattn_status life_application_dropped(void)
{
    static const struct life life = {.kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_HOST};
    struct world w = {.life = &life};
    struct spy *spy = spy_control();
    clattn_context_desc context;
    clattn_attention_desc desc;
    cl_event done = NULL;
    cl_int code;
    open_application();
    cl_event gate = clCreateUserEvent(app.context, &code);
    must(code, "event");
    life_context_desc(&w, &context);
    must(clattn_context_create_opencl(&context, app.context, app.device, app.in_order, &w.ctx),
         "context");
    life_attention_desc(&life, &desc);
    must(clattn_attention_plan_create(w.ctx, &desc, &w.plan[0]), "plan");
    const clattn_attention_call call = attention_call();
    spy->fail_on = SPY_EnqueueMarkerWithWaitList;
    spy->fail_code = CL_OUT_OF_RESOURCES;
    spy->fail_at = 2;
    atomic_store(&spy->calls, 0);
    const clattn_status st =
        clattn_attention_enqueue(w.plan[0], &call, app.in_order, 1, &gate, &done);
    spy->fail_at = 0;
    clattn_plan_destroy(&w.plan[0]);
    clattn_context_destroy(&w.ctx);
    must(clSetUserEventStatus(gate, CL_COMPLETE), "event");
    clFinish(app.in_order);
    clReleaseEvent(gate);
    return done ? CLATTN_ERR_INTERNAL : st;
}

#else

// A build without OpenCL has nobody to be the guest of.
void life_application(struct world *w, struct outcome *out)
{
    (void)w;
    out->status = CLATTN_ERR_UNSUPPORTED;
}

void life_application_end(void)
{
}

clattn_status life_application_dropped(void)
{
    return CLATTN_ERR_UNSUPPORTED;
}

#endif
