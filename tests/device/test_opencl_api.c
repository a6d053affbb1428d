// SPDX-License-Identifier: Apache-2.0
// clattn as a guest of an application: its context, queues, buffers and events.
#include "application.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compare.h"
#include "run_case.h"
#include "thread.h"

static const struct attn_case big_case = {
    .name = "big", .dim = 64, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 37, .len_kv = 150,
    .causal = true, .mask_form = MASK_CONTIGUOUS, .seed = 31};
static const struct attn_case small_case = {
    .name = "small", .dim = 16, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 9, .len_kv = 20,
    .causal = true, .mask_form = MASK_CONTIGUOUS, .seed = 31};

// ---- order and events ---------------------------------------------------------------------------

// On an in-order queue nothing has to be waited for: writes before and reads behind are in order.
static void test_in_order(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        float *o = malloc(app.bytes[BUF_O]);
        assert_non_null(o);
        fill_unwritten(o, app.bytes[BUF_O] / 4);
        for (int n = BUF_Q; n <= BUF_MASK; n++)
            app_write_input(app.in_order, CL_FALSE, n, NULL);
        app_enqueue(app.in_order, NULL, NULL);
        CL_OK(clEnqueueReadBuffer(app.in_order, app.mem[BUF_O], CL_FALSE, GUARD_BYTES,
                                  app.bytes[BUF_O], o, 0, NULL, NULL));
        CL_OK(clFinish(app.in_order));
        struct compare_report report;
        if (!compare(o, app.d.o, app.bytes[BUF_O] / 4, &app.d.tol_o, &report)) {
            compare_print("O", &report);
            fail_msg("round %d: what was read behind the call is not its result", round);
        }
        free(o);
        app_check_result(app.in_order, NULL);
    }
}

// A user event that the application sets after the call returned: the work waits for it, the call
// does not.
static void gated(cl_command_queue queue, bool by_barrier)
{
    cl_event gate = app_user_event(), done = NULL;
    if (by_barrier)
        CL_OK(clEnqueueBarrierWithWaitList(queue, 1, &gate, NULL));
    app_enqueue(queue, by_barrier ? NULL : gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(queue));
    sleep_ms(50);
    assert_true(app_status_of(done) > CL_COMPLETE);
    // Until now Q, K, V and the mask held NaN patterns, so work that had begun would show.
    app_write_inputs(app.other);
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    assert_int_equal(app_status_of(done), CL_COMPLETE);
    app_check_result(app.other, NULL); // `done` covers all of the work, whatever queue reads
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

static void test_gate_in_order(void **state)
{
    (void)state;
    app_need_user_events();
    gated(app.in_order, false);
}

static void gated_out_of_order(bool by_barrier)
{
    app_need_user_events();
    if (!app.out_of_order)
        skip();
    gated(app.out_of_order, by_barrier);
}

static void test_gate_out_of_order(void **state)
{
    (void)state;
    gated_out_of_order(false);
}

static void test_barrier_out_of_order(void **state)
{
    (void)state;
    gated_out_of_order(true);
}

static void blank_inputs(void)
{
    const unsigned char nan = 0xff; // a float of such bytes
    for (int n = BUF_Q; n <= BUF_MASK; n++)
        CL_OK(clEnqueueFillBuffer(app.other, app.mem[n], &nan, 1, GUARD_BYTES, app.bytes[n], 0,
                                  NULL, NULL));
    CL_OK(clFinish(app.other));
}

static void open_gate(void *gate)
{
    sleep_ms(50);
    clSetUserEventStatus(gate, CL_COMPLETE);
}

// What the application has queued comes first in a blocking call on its memory, too.
static void test_blocking_behind_queue(void **state)
{
    (void)state;
    app_need_user_events();
    for (int round = 0; round < (app.out_of_order ? 2 : 1); round++) {
        cl_command_queue queue = round ? app.out_of_order : app.in_order;
        clattn_context *own = app.guest, *guest = app_adopt(queue);
        app.guest = guest;
        clattn_plan *plan = app_plan(&app.c);
        app.guest = own;
        cl_event gate = app_user_event();
        blank_inputs();
        CL_OK(clEnqueueBarrierWithWaitList(queue, 1, &gate, NULL));
        for (int n = BUF_Q; n <= BUF_MASK; n++)
            app_write_input(queue, CL_FALSE, n, NULL);
        CL_OK(clEnqueueBarrierWithWaitList(queue, 0, NULL, NULL));
        CL_OK(clFlush(queue));
        struct test_thread *thread = thread_start(open_gate, gate);
        const clattn_attention_call call = app_call();
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        thread_join(thread);
        app_check_result(app.other, NULL);
        clReleaseEvent(gate);
        clattn_plan_destroy(&plan);
        clattn_context_destroy(&guest);
    }
}

// The wait list orders an out-of-order queue: writes, a call, and a call whose V is the first O.
static void test_chain(void **state)
{
    (void)state;
    if (!app.out_of_order)
        skip();
    struct attn_case c = app.c;
    c.heads_kv = c.heads_q;
    c.len_kv = c.len_q;
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    const size_t count = app.bytes[BUF_O] / 4;
    float *second = malloc(count * sizeof *second), *got = malloc(count * sizeof *got);
    assert_true(second && got);
    assert_true(attn_expect(&c, d.q, d.k, d.o, d.mask, second, d.lse));
    clattn_plan *plan = app_plan(&c);
    cl_mem mem[7]; // Q, K, V, mask, O, the second O, workspace
    const void *const from[4] = {d.q, d.k, d.v, d.mask};
    cl_event event[7]; // of four writes, two calls and a read
    for (int n = 0; n < 6; n++)
        mem[n] = app_blank_buffer(CL_MEM_READ_WRITE, count * 4 + app.bytes[BUF_MASK]);
    for (int n = 0; n < 4; n++)
        CL_OK(clEnqueueWriteBuffer(app.out_of_order, mem[n], CL_FALSE, GUARD_BYTES,
                                   n < 3 ? count * 4 : (size_t)c.batch * (size_t)c.heads_q *
                                                           (size_t)c.len_q * (size_t)c.len_kv,
                                   from[n], 0, NULL, &event[n]));
    clattn_attention_call call = app_call();
    call.len_kv = c.len_kv;
    clattn_buf *const bufs[5] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.mask.buf,
                                 &call.o.buf};
    for (int n = 0; n < 5; n++)
        bufs[n]->ptr = mem[n];
    // One workspace for both calls, the second of which waits for the first.
    mem[6] = app_own_workspace(plan, &call);
    assert_int_equal(
        clattn_attention_enqueue(plan, &call, app.out_of_order, 4, event, &event[4]), CLATTN_OK);
    call.v.buf.ptr = mem[4];
    call.o.buf.ptr = mem[5];
    assert_int_equal(clattn_attention_enqueue(plan, &call, app.out_of_order, 1, &event[4],
                                              &event[5]), CLATTN_OK);
    CL_OK(clEnqueueReadBuffer(app.out_of_order, mem[5], CL_FALSE, GUARD_BYTES, count * 4, got, 1,
                              &event[5], &event[6]));
    CL_OK(clFlush(app.out_of_order));
    CL_OK(clWaitForEvents(1, &event[6]));
    struct tolerance tol = d.tol_o;
    tol.abs *= 2; // the error of the first O passes through
    struct compare_report report;
    if (!compare(got, second, count, &tol, &report)) {
        compare_print("second O", &report);
        fail();
    }
    for (int n = 0; n < 7; n++) {
        clReleaseEvent(event[n]);
        if (mem[n])
            clReleaseMemObject(mem[n]);
    }
    clattn_plan_destroy(&plan);
    attn_data_free(&d);
    free(second);
    free(got);
}

// The plan may go while its work waits.
static void test_plan_goes_first(void **state)
{
    (void)state;
    app_need_user_events();
    cl_event gate = app_user_event(), done = NULL;
    app_write_inputs(app.in_order);
    app_enqueue(app.in_order, gate, &done);
    clattn_plan_destroy(&app.plan);
    assert_null(app.plan);
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    app_check_result(app.in_order, NULL);
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

// Work of nothing has an event too, which waits like any other.
static void test_nothing_to_do(void **state)
{
    (void)state;
    app_need_user_events();
    for (int which = 0; which < 2; which++) {
        cl_event gate = app_user_event(), done = NULL;
        clattn_attention_call call = app_call();
        if (which)
            call.batch = 0;
        else
            call.len_q = 0;
        assert_int_equal(
            clattn_attention_enqueue(app.plan, &call, app.in_order, 1, &gate, &done), CLATTN_OK);
        assert_non_null(done);
        CL_OK(clFlush(app.in_order));
        assert_true(app_status_of(done) > CL_COMPLETE);
        CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
        CL_OK(clWaitForEvents(1, &done));
        CL_OK(clReleaseEvent(gate));
        CL_OK(clReleaseEvent(done));
    }
    // No keys: zeros on the device as well.
    clattn_attention_call call = app_call();
    call.len_kv = 0;
    call.k.buf = call.v.buf = (clattn_buf){0};
    assert_int_equal(clattn_attention_enqueue(app.plan, &call, app.in_order, 0, NULL, NULL),
                     CLATTN_OK);
    float *o = malloc(app.bytes[BUF_O]);
    assert_non_null(o);
    CL_OK(clEnqueueReadBuffer(app.in_order, app.mem[BUF_O], CL_TRUE, GUARD_BYTES, app.bytes[BUF_O],
                              o, 0, NULL, NULL));
    for (size_t n = 0; n < app.bytes[BUF_O] / 4; n++)
        assert_true(o[n] == 0);
    free(o);
}

// ---- two threads --------------------------------------------------------------------------------

struct user {
    cl_mem out[2], workspace;
    int failed, rounds;
};

static void use_plan(void *arg)
{
    struct user *u = arg;
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(app.context, app.id, 0, &code);
    float *o = malloc(app.bytes[BUF_O]);
    for (int n = 0; n < u->rounds && code == CL_SUCCESS && o; n++) {
        clattn_attention_call call = app_call();
        call.o.buf.ptr = u->out[0];
        call.lse.ptr = u->out[1];
        if (u->workspace)
            call.workspace.ptr = u->workspace;
        fill_unwritten(o, app.bytes[BUF_O] / 4);
        struct compare_report report;
        if (clattn_attention_enqueue(app.plan, &call, queue, 0, NULL, NULL) != CLATTN_OK ||
            clEnqueueReadBuffer(queue, u->out[0], CL_TRUE, GUARD_BYTES, app.bytes[BUF_O], o, 0,
                                NULL, NULL) != CL_SUCCESS ||
            !compare(o, app.d.o, app.bytes[BUF_O] / 4, &app.d.tol_o, &report))
            u->failed++;
    }
    u->failed += code != CL_SUCCESS || !o;
    if (code == CL_SUCCESS)
        clReleaseCommandQueue(queue);
    free(o);
}

static void test_threads(void **state)
{
    (void)state;
    if (!takes_threads(&app.device->info))
        skip();
    enum { USERS = 2 };
    struct user users[USERS];
    struct test_thread *threads[USERS];
    app_write_inputs(app.in_order);
    for (int n = 0; n < USERS; n++) {
        users[n] = (struct user){.rounds = app.device->level == LEVEL_FULL ? 40 : 3};
        users[n].out[0] = app_blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_O]);
        users[n].out[1] = app_blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_LSE]);
        if (app.mem[BUF_WORKSPACE])
            users[n].workspace = app_blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_WORKSPACE]);
    }
    for (int n = 0; n < USERS; n++)
        threads[n] = thread_start(use_plan, &users[n]);
    for (int n = 0; n < USERS; n++) {
        thread_join(threads[n]);
        clReleaseMemObject(users[n].out[0]);
        clReleaseMemObject(users[n].out[1]);
        if (users[n].workspace)
            clReleaseMemObject(users[n].workspace);
        assert_int_equal(users[n].failed, 0);
    }
}

// ---- refusals -----------------------------------------------------------------------------------

static void refused(const clattn_attention_call *call, cl_command_queue queue, cl_uint num_wait,
                    const cl_event *wait, clattn_status want, const char *text)
{
    cl_event done = NULL;
    memset(&app.log, 0, sizeof app.log);
    const clattn_status st =
        clattn_attention_enqueue(app.plan, call, queue, num_wait, wait, &done);
    if (st != want)
        fail_msg("%s: %s, not %s", text, clattn_status_string(st), clattn_status_string(want));
    assert_null(done);
    assert_int_equal(app.log.errors, 1);
    if (!strstr(app.log.text, text))
        fail_msg("\"%s\" is not in: %s", text, app.log.text);
    app_assert_outputs_blank(app.in_order);
}

static void test_refusals(void **state)
{
    (void)state;
    cl_int code;
    cl_context other = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    CL_OK(code);
    cl_command_queue foreign = clCreateCommandQueue(other, app.id, 0, &code);
    CL_OK(code);
    cl_mem foreign_mem = clCreateBuffer(other, CL_MEM_READ_WRITE, 1 << 20, NULL, &code);
    CL_OK(code);
    clattn_attention_call call = app_call();
    refused(&call, foreign, 0, NULL, CLATTN_ERR_WRONG_CONTEXT, "queue");
    refused(&call, NULL, 0, NULL, CLATTN_ERR_INVALID_ARGUMENT, "queue");
    refused(&call, app.in_order, 1, NULL, CLATTN_ERR_INVALID_ARGUMENT, "num_wait");
    call.k.buf.ptr = foreign_mem;
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_WRONG_CONTEXT, "k.buf.ptr");
    call = app_call();
    call.v.buf = clattn_host_buf(app.d.v, 0);
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "v");
    call = app_call();
    call.q.buf.offset_bytes += 2 * GUARD_BYTES; // the end is past the end of the cl_mem
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "q");
    call = app_call();
    call.o.buf.size_bytes = GUARD_BYTES + app.bytes[BUF_O] - 4;
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "o");
    call = app_call();
    call.lse.ptr = app.mem[BUF_Q];
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_OVERLAP, "lse");
    clReleaseMemObject(foreign_mem);
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    app_write_inputs(app.in_order);
    app_enqueue(app.in_order, NULL, NULL);
    app_check_result(app.in_order, NULL);
}

// A workspace that the caller owes: absent, short, on the host, or another's memory.
static void test_workspace_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int which;
    } others[] = {{"q", BUF_Q}, {"k", BUF_K},     {"v", BUF_V},
                  {"o", BUF_O}, {"lse", BUF_LSE}, {"mask", BUF_MASK}};
    clattn_attention_call call = app_call();
    if (!app.mem[BUF_WORKSPACE]) {
        // Host memory has no place in a queue; a cl_mem, though far too small, is of no use.
        call.workspace = clattn_host_buf(app.d.q, 1);
        refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "workspace.kind");
        call.workspace = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = app.mem[BUF_Q],
                                      .size_bytes = 1};
        app_write_inputs(app.in_order);
        assert_int_equal(
            clattn_attention_enqueue(app.plan, &call, app.in_order, 0, NULL, NULL), CLATTN_OK);
        app_check_result(app.in_order, NULL);
        return;
    }
    const size_t bytes = app.bytes[BUF_WORKSPACE];
    call.workspace = (clattn_buf){0};
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "workspace is absent");
    call = app_call();
    call.workspace.size_bytes = GUARD_BYTES + bytes - 4;
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "workspace");
    call = app_call();
    call.workspace.offset_bytes += GUARD_BYTES + 4; // the end is past the end of the cl_mem
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "workspace");
    call = app_call();
    call.workspace = clattn_host_buf(app.d.q, bytes);
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "workspace.kind");
    // As large as a workspace and a tensor behind it, so that only the overlap is at fault.
    cl_mem shared = app_blank_buffer(CL_MEM_READ_WRITE, bytes + app.bytes[BUF_MASK] +
                                                            app.bytes[BUF_Q] + app.bytes[BUF_K]);
    for (size_t n = 0; n < sizeof others / sizeof *others; n++) {
        call = app_call();
        clattn_buf *const bufs[] = {&call.q.buf,    &call.k.buf, &call.v.buf,
                                    &call.mask.buf, &call.o.buf, &call.lse};
        call.workspace.ptr = bufs[others[n].which]->ptr = shared;
        bufs[others[n].which]->offset_bytes = GUARD_BYTES + bytes - 4;
        refused(&call, app.in_order, 0, NULL, CLATTN_ERR_OVERLAP, others[n].name);
        // The next byte is no overlap any more.
        bufs[others[n].which]->offset_bytes += 4;
        size_t same = 0;
        assert_int_equal(clattn_plan_workspace_bytes(app.plan, &call, &same), CLATTN_OK);
        assert_int_equal(same, bytes);
    }
    clReleaseMemObject(shared);
    app_write_inputs(app.in_order);
    app_enqueue(app.in_order, NULL, NULL);
    app_check_result(app.in_order, NULL);
}

// An event that ends in failure takes the work with it: nothing hangs, nothing is written. Some
// drivers do not call back for such an event (PoCL 3.1, rusticl).
static void test_failed_wait(void **state)
{
    (void)state;
    app_need_user_events();
    if (app.algo != CLATTN_ALGO_HOST && app.algo != CLATTN_ALGO_REFERENCE) {
        printf("what a driver does with its own commands behind a failed event is up to it\n");
        skip();
    }
    // Intel's CPU runtime crashes where a user event fails on an out-of-order queue, with nothing
    // of clattn on it, too.
    const bool may_fail = app.out_of_order && !strstr(app.device->info.platform, "Intel");
    for (int n = 0; n < (may_fail ? 2 : 1); n++) {
        cl_event gate = app_user_event(), done = NULL;
        app_write_inputs(app.other);
        cl_int code;
        cl_command_queue queue = clCreateCommandQueue(
            app.context, app.id, n ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
        CL_OK(code);
        app_enqueue(queue, gate, &done);
        CL_OK(clSetUserEventStatus(gate, -1));
        const cl_int waited = clWaitForEvents(1, &done);
        printf("waiting gave %d, the event's status is %d\n", (int)waited,
               (int)app_status_of(done));
        assert_true(waited != CL_SUCCESS || app_status_of(done) < 0);
        clReleaseEvent(done);
        clReleaseEvent(gate);
        clReleaseCommandQueue(queue);
        app_assert_outputs_blank(app.other);
    }
    app_enqueue(app.in_order, NULL, NULL);
    app_check_result(app.in_order, NULL);
}

// ---- adopting -----------------------------------------------------------------------------------

static cl_uint references(void)
{
    cl_uint count = 0;
    CL_OK(clGetContextInfo(app.context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

// What a guest of its own is asked for: the application's case by the algorithm under test.
static clattn_attention_desc guest_desc(void)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = app.c.dim;
    desc.heads_q = app.c.heads_q;
    desc.heads_kv = app.c.heads_kv;
    desc.features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    desc.algo = app.algo;
    return desc;
}

// One life of a guest, with a call that blocks on the application's memory and host memory mixed.
static void adopt_run_leave(void)
{
    clattn_context *ctx = app_adopt(app.in_order);
    assert_ptr_equal(clattn_context_cl_context(ctx), app.context);
    assert_ptr_equal(clattn_context_cl_device(ctx), app.id);
    clattn_device_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_context_get_device_info(ctx, &info), CLATTN_OK);
    assert_int_equal(info.index, -1);
    assert_string_equal(info.name, app.device->info.name);
    clattn_attention_desc desc = guest_desc();
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    clattn_attention_call call = app_call();
    call.k.buf = clattn_host_buf(app.d.k, app.bytes[BUF_K]);
    call.workspace = (clattn_buf){0};
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    app_check_result(app.other, NULL);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    assert_null(ctx);
}

// Guests that come and go leave no reference behind. Drivers let go of finished commands a little
// later, and PoCL keeps the last one, so the count need not be what it was before the first guest.
static void test_adopting(void **state)
{
    (void)state;
    enum { ROUNDS = 6 };
    app_write_inputs(app.in_order);
    adopt_run_leave();
    sleep_ms(100);
    const cl_uint settled = references();
    for (int n = 0; n < ROUNDS; n++)
        adopt_run_leave();
    for (int n = 0; n < 400 && references() > settled; n++)
        sleep_ms(5);
    if (references() > settled)
        fail_msg("%d guests left %u references behind", ROUNDS, references() - settled);
    // The application goes on.
    app_enqueue(app.in_order, NULL, NULL);
    app_check_result(app.in_order, NULL);

    cl_int code;
    cl_context other = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    CL_OK(code);
    clattn_context *ctx = (clattn_context *)(uintptr_t)1;
    assert_int_equal(clattn_context_create_opencl(NULL, other, app.id, app.in_order, &ctx),
                     CLATTN_ERR_WRONG_CONTEXT);
    assert_null(ctx);
    assert_int_equal(clattn_context_create_opencl(NULL, NULL, app.id, NULL, &ctx),
                     CLATTN_ERR_INVALID_ARGUMENT);
    clReleaseContext(other);
}

// Half of the device, of which the application lets go: clattn keeps what it was given.
static void test_sub_device(void **state)
{
    (void)state;
    const cl_device_partition_property cut[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id parts[64];
    cl_uint count = 0, most = 0;
    // Mesa's library has no function behind the call, but says so here.
    CL_OK(clGetDeviceInfo(app.id, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most, &most, NULL));
    if (most < 2 || clCreateSubDevices(app.id, cut, 64, parts, &count) != CL_SUCCESS) {
        print_message("[  SKIPPED ] this device can't be cut\n");
        skip();
    }
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &parts[0], NULL, NULL, &code);
    CL_OK(code);
    clattn_context *ctx = NULL;
    struct log_capture log = {0};
    clattn_context_desc own;
    clattn_context_desc_init(&own, sizeof own);
    own.log = log_capture;
    own.log_user = &log;
    own.log_level = CLATTN_LOG_INFO;
    assert_int_equal(clattn_context_create_opencl(&own, context, parts[0], NULL, &ctx), CLATTN_OK);
    CL_OK(clReleaseContext(context));
    for (cl_uint i = 0; i < count; i++)
        CL_OK(clReleaseDevice(parts[i]));

    clattn_attention_desc desc = guest_desc();
    desc.flags = CLATTN_NO_FALLBACK;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    if (!strstr(log.text, "; on [adopted] "))
        fail_msg("no word of the device in: %s", log.text);
    float *o = malloc(app.bytes[BUF_O]), *lse = malloc(app.bytes[BUF_LSE]);
    assert_non_null(o);
    assert_non_null(lse);
    clattn_attention_call call = case_host_call(&app.c, app.d.q, app.d.k, app.d.v, app.d.mask, o,
                                                lse);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    struct compare_report report;
    if (!compare(o, app.d.o, app.bytes[BUF_O] / sizeof *o, &app.d.tol_o, &report)) {
        compare_print("O on a sub-device", &report);
        fail();
    }
    free(o);
    free(lse);
    // PoCL's thread looks at the device behind the end of a command, and the last reference goes
    // with the context.
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

// Blocking calls on host memory, on a queue of the application that is out of order: what was
// written for a kernel must be there when it begins.
static void test_blocking_out_of_order(void **state)
{
    (void)state;
    enum { ROUNDS = 60 };
    if (!app.out_of_order)
        skip();
    clattn_context *own = app.guest, *guest = app_adopt(app.out_of_order);
    app.guest = guest;
    clattn_plan *plan = app_plan(&app.c);
    app.guest = own;
    const size_t rows = (size_t)(app.c.batch * app.c.heads_q * app.c.len_q);
    const size_t count = rows * (size_t)app.c.dim;
    float *o = malloc(count * sizeof *o), *lse = malloc(rows * sizeof *lse);
    assert_true(o && lse);
    int failed = 0;
    for (int n = 0; n < ROUNDS; n++) {
        struct compare_report ro, rl;
        fill_unwritten(o, count);
        fill_unwritten(lse, rows);
        const clattn_attention_call call =
            case_host_call(&app.c, app.d.q, app.d.k, app.d.v, app.d.mask, o, lse);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        failed += !compare(o, app.d.o, count, &app.d.tol_o, &ro) ||
                  !compare(lse, app.d.lse, rows, &app.d.tol_lse, &rl);
    }
    free(o);
    free(lse);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&guest);
    assert_int_equal(failed, 0);
}

static void test_builtin_has_no_queue(void **state)
{
    (void)state;
    struct test_device cpu;
    assert_true(device_open_builtin(&cpu));
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = app.c.dim;
    desc.heads_q = app.c.heads_q;
    desc.heads_kv = app.c.heads_kv;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(cpu.ctx, &desc, &plan), CLATTN_OK);
    const clattn_attention_call call = app_call();
    assert_int_equal(clattn_attention_enqueue(plan, &call, app.in_order, 0, NULL, NULL),
                     CLATTN_ERR_NO_OPENCL);
    assert_null(clattn_context_cl_context(cpu.ctx));
    assert_null(clattn_context_cl_device(cpu.ctx));
    clattn_plan_destroy(&plan);
    devices_close(&cpu, 1);
}

// ---- main ---------------------------------------------------------------------------------------

// The problem of an algorithm on a device.
static const struct attn_case *case_of(const struct test_device *device, int32_t algo)
{
    return device->level == LEVEL_FULL && algo <= CLATTN_ALGO_REFERENCE ? &big_case : &small_case;
}

// How many of them failed.
static int run_some(const char *algo_name, const struct CMUnitTest *tests, size_t count)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s", app.device->tag, algo_name);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}

static int run_on(struct test_device *device, int32_t algo, const char *algo_name)
{
#define TEST(text, function) {text, function, app_set_up, app_tear_down, NULL}
    static const struct CMUnitTest tests[] = {
        // What each algorithm answers for by itself.
        TEST("in-order queue needs no waiting", test_in_order),
        TEST("user event set later, in-order", test_gate_in_order),
        TEST("user event set later, out-of-order", test_gate_out_of_order),
        TEST("barrier, out-of-order", test_barrier_out_of_order),
        TEST("chain on an out-of-order queue", test_chain),
        TEST("plan destroyed before its work", test_plan_goes_first),
        TEST("work of nothing", test_nothing_to_do),
        TEST("two threads, one plan", test_threads),
        TEST("refusals", test_refusals),
        TEST("refusals of a workspace", test_workspace_refusals),
        TEST("blocking calls on a queue out of order", test_blocking_out_of_order),
        TEST("blocking calls behind what is queued", test_blocking_behind_queue),
        // The rest, which one of OpenCL stands for.
        TEST("a wait that fails", test_failed_wait),
        TEST("adopting and leaving", test_adopting),
        TEST("a sub-device", test_sub_device),
        TEST("the built-in path has no queue", test_builtin_has_no_queue),
    };
    const size_t all = sizeof tests / sizeof *tests, own = 12;
    if (!app_open(device, algo, case_of(device, algo)))
        return 1;
    const int failed = run_some(algo_name, tests, algo <= CLATTN_ALGO_REFERENCE ? all : own);
    app_close(failed != 0);
    return failed;
}

int main(void)
{
    static const char *const others[] = {"host",           "reference", "two_loop",
                                         "fused_kv_outer", "split_kv",  "unfused"};
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    if (!app_cache_open())
        return 1;
    for (int n = 0; n < count; n++) {
        failed += run_on(&devices[n], CLATTN_ALGO_FUSED, "fused");
        if (!app_has_user_events(&devices[n])) // the CPU path behind a queue stands on them
            continue;
        for (int32_t algo = CLATTN_ALGO_HOST; algo <= CLATTN_ALGO_UNFUSED; algo++)
            failed += run_on(&devices[n], algo, others[algo - CLATTN_ALGO_HOST]);
    }
    app_cache_close();
    attn_expect_close();
    if (failed == 0)
        devices_close(devices, count);
    return failed ? 1 : 0;
}
