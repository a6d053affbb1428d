// SPDX-License-Identifier: Apache-2.0
// clattn as a guest of an application: its context, queues, buffers and events. This test links
// OpenCL as an application does; the library under test opens it by itself.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "run_case.h"
#include "thread.h"

enum { BUF_Q, BUF_K, BUF_V, BUF_MASK, BUF_O, BUF_LSE, BUFS };

// The application.
static struct {
    struct test_device *device;
    int32_t algo;
    cl_device_id id;
    cl_context context;
    cl_command_queue in_order, other, out_of_order; // out_of_order: NULL where there is none
    clattn_context *guest;
    struct log_capture log;
    clattn_plan *plan;
    struct attn_case c;
    struct attn_data d;
    size_t bytes[BUFS];
    cl_mem mem[BUFS]; // GUARD_BYTES before and after what counts
} app;

static const struct attn_case big_case = {
    .name = "big", .dim = 64, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 37, .len_kv = 150,
    .causal = true, .mask_form = MASK_CONTIGUOUS, .seed = 31};
static const struct attn_case small_case = {
    .name = "small", .dim = 16, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 9, .len_kv = 20,
    .causal = true, .mask_form = MASK_CONTIGUOUS, .seed = 31};

#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

// ---- memory -------------------------------------------------------------------------------------

static const void *input(int n)
{
    const void *const from[] = {app.d.q, app.d.k, app.d.v, app.d.mask};
    return from[n];
}

// A buffer whose bytes are all the pattern of what was never written.
static cl_mem blank_buffer(cl_mem_flags flags, size_t bytes)
{
    const size_t all = (bytes + 3) / 4 * 4 + 2 * GUARD_BYTES;
    void *pattern = malloc(all);
    assert_non_null(pattern);
    fill_unwritten(pattern, all / 4);
    cl_int code;
    cl_mem mem = clCreateBuffer(app.context, flags | CL_MEM_COPY_HOST_PTR, all, pattern, &code);
    CL_OK(code);
    free(pattern);
    return mem;
}

static void write_input(cl_command_queue queue, cl_bool blocking, int n, cl_event *event)
{
    CL_OK(clEnqueueWriteBuffer(queue, app.mem[n], blocking, GUARD_BYTES, app.bytes[n], input(n), 0,
                               NULL, event));
}

// A blocking write only promises that the source may be reused: other queues see the data for
// certain once the queue has finished. (Intel's CPU runtime uses that freedom.)
static void write_inputs(cl_command_queue queue)
{
    for (int n = BUF_Q; n <= BUF_MASK; n++)
        write_input(queue, CL_TRUE, n, NULL);
    CL_OK(clFinish(queue));
}

static void make_memory(void)
{
    const size_t rows_q = (size_t)app.c.batch * (size_t)app.c.heads_q * (size_t)app.c.len_q;
    const size_t rows_kv = (size_t)app.c.batch * (size_t)app.c.heads_kv * (size_t)app.c.len_kv;
    app.bytes[BUF_Q] = app.bytes[BUF_O] = rows_q * (size_t)app.c.dim * sizeof(float);
    app.bytes[BUF_K] = app.bytes[BUF_V] = rows_kv * (size_t)app.c.dim * sizeof(float);
    app.bytes[BUF_MASK] = rows_q * (size_t)app.c.len_kv;
    app.bytes[BUF_LSE] = rows_q * sizeof(float);
    for (int n = 0; n < BUFS; n++)
        app.mem[n] = blank_buffer(n < BUF_O ? CL_MEM_READ_ONLY : CL_MEM_WRITE_ONLY, app.bytes[n]);
}

static clattn_buf buf_of(int n)
{
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = app.mem[n], .offset_bytes = GUARD_BYTES};
}

static clattn_attention_call make_call(void)
{
    clattn_attention_call call = case_host_call(&app.c, NULL, NULL, NULL, NULL, NULL, NULL);
    call.q.buf = buf_of(BUF_Q);
    call.k.buf = buf_of(BUF_K);
    call.v.buf = buf_of(BUF_V);
    call.mask.buf = buf_of(BUF_MASK);
    call.o.buf = buf_of(BUF_O);
    call.lse = buf_of(BUF_LSE);
    return call;
}

static void check_floats(const char *what, const unsigned char *all, size_t bytes,
                         const float *expected, const struct tolerance *tol)
{
    for (size_t n = 0; n < (bytes + 2 * GUARD_BYTES) / 4; n++) {
        uint32_t bits;
        memcpy(&bits, all + n * 4, 4);
        const bool inside = n >= GUARD_BYTES / 4 && n < (GUARD_BYTES + bytes) / 4;
        if (!inside && bits != UNWRITTEN_BITS)
            fail_msg("%s: wrote outside, at byte %zu", what, n * 4);
    }
    struct compare_report report;
    if (!compare((const float *)(const void *)(all + GUARD_BYTES), expected, bytes / 4, tol,
                 &report)) {
        compare_print(what, &report);
        fail_msg("%s is wrong", what);
    }
}

// Reads O and LSE whole, behind `wait` (NULL = nothing), and checks every byte.
static void check_result(cl_command_queue queue, cl_event wait)
{
    static const int outputs[] = {BUF_O, BUF_LSE};
    const float *const expected[] = {app.d.o, app.d.lse};
    const struct tolerance *const tol[] = {&app.d.tol_o, &app.d.tol_lse};
    for (int n = 0; n < 2; n++) {
        const size_t bytes = app.bytes[outputs[n]];
        unsigned char *all = malloc(bytes + 2 * GUARD_BYTES);
        assert_non_null(all);
        CL_OK(clEnqueueReadBuffer(queue, app.mem[outputs[n]], CL_TRUE, 0, bytes + 2 * GUARD_BYTES,
                                  all, wait ? 1 : 0, wait ? &wait : NULL, NULL));
        check_floats(n ? "LSE" : "O", all, bytes, expected[n], tol[n]);
        free(all);
    }
}

static void assert_outputs_blank(cl_command_queue queue)
{
    for (int n = BUF_O; n <= BUF_LSE; n++) {
        const size_t all = app.bytes[n] + 2 * GUARD_BYTES;
        uint32_t *bits = malloc(all);
        assert_non_null(bits);
        CL_OK(clEnqueueReadBuffer(queue, app.mem[n], CL_TRUE, 0, all, bits, 0, NULL, NULL));
        for (size_t m = 0; m < all / 4; m++)
            assert_int_equal(bits[m], UNWRITTEN_BITS);
        free(bits);
    }
}

static cl_int status_of(cl_event event)
{
    cl_int status = 0;
    CL_OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status;
}

static cl_event user_event(void)
{
    cl_int code;
    cl_event event = clCreateUserEvent(app.context, &code);
    CL_OK(code);
    return event;
}

static void enqueue(cl_command_queue queue, cl_event wait, cl_event *done)
{
    const clattn_attention_call call = make_call();
    const clattn_status st =
        clattn_attention_enqueue(app.plan, &call, queue, wait ? 1 : 0, wait ? &wait : NULL, done);
    if (st != CLATTN_OK)
        fail_msg("enqueue: %s: %s", clattn_status_string(st), app.log.text);
}

// ---- set-up -------------------------------------------------------------------------------------

static clattn_plan *make_plan(const struct attn_case *c)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = (c->causal ? CLATTN_FEATURE_CAUSAL : 0u) |
                    (c->mask_form ? CLATTN_FEATURE_MASK : 0u) | CLATTN_FEATURE_LSE;
    desc.max_len_q = desc.max_len_kv = CASE_MAX_LEN;
    desc.algo = app.algo;
    clattn_plan *plan = NULL;
    const clattn_status st = clattn_attention_plan_create(app.guest, &desc, &plan);
    if (st != CLATTN_OK)
        fail_msg("plan: %s: %s", clattn_status_string(st), app.log.text);
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    assert_int_equal(info.algo, app.algo);
    assert_int_equal(info.is_fallback, 0);
    return plan;
}

static clattn_context *adopt(cl_command_queue queue)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = log_capture;
    desc.log_user = &app.log;
    clattn_context *ctx = NULL;
    const clattn_status st =
        clattn_context_create_opencl(&desc, app.context, app.id, queue, &ctx);
    if (st != CLATTN_OK)
        fail_msg("adopt: %s: %s", clattn_status_string(st), app.log.text);
    return ctx;
}

static int set_up(void **state)
{
    (void)state;
    watchdog(app.device->tag, app.device->level == LEVEL_FULL ? 60 : 240);
    memset(&app.log, 0, sizeof app.log);
    app.plan = make_plan(&app.c);
    make_memory();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int n = 0; n < BUFS; n++)
        if (app.mem[n])
            clReleaseMemObject(app.mem[n]);
    memset(app.mem, 0, sizeof app.mem);
    clattn_plan_destroy(&app.plan);
    watchdog("", 0);
    return 0;
}

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
            write_input(app.in_order, CL_FALSE, n, NULL);
        enqueue(app.in_order, NULL, NULL);
        CL_OK(clEnqueueReadBuffer(app.in_order, app.mem[BUF_O], CL_FALSE, GUARD_BYTES,
                                  app.bytes[BUF_O], o, 0, NULL, NULL));
        CL_OK(clFinish(app.in_order));
        struct compare_report report;
        if (!compare(o, app.d.o, app.bytes[BUF_O] / 4, &app.d.tol_o, &report)) {
            compare_print("O", &report);
            fail_msg("round %d: what was read behind the call is not its result", round);
        }
        free(o);
        check_result(app.in_order, NULL);
    }
}

// A user event that the application sets after the call returned: the work waits for it, the call
// does not.
static void gated(cl_command_queue queue)
{
    cl_event gate = user_event(), done = NULL;
    enqueue(queue, gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(queue));
    sleep_ms(50);
    assert_true(status_of(done) > CL_COMPLETE);
    // Until now Q, K, V and the mask held NaN patterns, so work that had begun would show.
    write_inputs(app.other);
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    assert_int_equal(status_of(done), CL_COMPLETE);
    check_result(app.other, NULL); // `done` covers all of the work, whatever queue reads
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

// Oclgrind computes inside clFlush(), which then never returns while a user event is not set.
static bool has_user_events(const struct test_device *device)
{
    return strcmp(device->info.platform, "Oclgrind") != 0;
}

static void need_user_events(void)
{
    if (!has_user_events(app.device)) {
        printf("this simulator blocks in clFlush() until a user event is set\n");
        skip();
    }
}

static void test_gate_in_order(void **state)
{
    (void)state;
    need_user_events();
    gated(app.in_order);
}

static void test_gate_out_of_order(void **state)
{
    (void)state;
    need_user_events();
    if (!app.out_of_order)
        skip();
    gated(app.out_of_order);
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
    float *lse = malloc(app.bytes[BUF_LSE]);
    assert_true(second && got && lse);
    assert_true(attn_expect(&c, d.q, d.k, d.o, d.mask, second, lse));
    clattn_plan *plan = make_plan(&c);
    cl_mem mem[5], last = blank_buffer(CL_MEM_READ_WRITE, count * 4);
    const void *const from[4] = {d.q, d.k, d.v, d.mask};
    cl_event written[4], done[2], read;
    for (int n = 0; n < 5; n++)
        mem[n] = blank_buffer(CL_MEM_READ_WRITE, count * 4 + app.bytes[BUF_MASK]);
    for (int n = 0; n < 4; n++)
        CL_OK(clEnqueueWriteBuffer(app.out_of_order, mem[n], CL_FALSE, GUARD_BYTES,
                                   n < 3 ? count * 4 : (size_t)c.batch * (size_t)c.heads_q *
                                                           (size_t)c.len_q * (size_t)c.len_kv,
                                   from[n], 0, NULL, &written[n]));
    clattn_attention_call call = make_call();
    call.len_kv = c.len_kv;
    clattn_buf *const bufs[5] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.mask.buf,
                                 &call.o.buf};
    for (int n = 0; n < 5; n++)
        bufs[n]->ptr = mem[n];
    assert_int_equal(
        clattn_attention_enqueue(plan, &call, app.out_of_order, 4, written, &done[0]), CLATTN_OK);
    call.v.buf.ptr = mem[4];
    call.o.buf.ptr = last;
    assert_int_equal(
        clattn_attention_enqueue(plan, &call, app.out_of_order, 1, &done[0], &done[1]), CLATTN_OK);
    CL_OK(clEnqueueReadBuffer(app.out_of_order, last, CL_FALSE, GUARD_BYTES, count * 4, got, 1,
                              &done[1], &read));
    CL_OK(clFlush(app.out_of_order));
    CL_OK(clWaitForEvents(1, &read));
    struct tolerance tol = d.tol_o;
    tol.abs *= 2; // the error of the first O passes through
    struct compare_report report;
    if (!compare(got, second, count, &tol, &report)) {
        compare_print("second O", &report);
        fail();
    }
    for (int n = 0; n < 5; n++) {
        clReleaseMemObject(mem[n]);
        if (n < 4)
            clReleaseEvent(written[n]);
    }
    clReleaseMemObject(last);
    clReleaseEvent(done[0]);
    clReleaseEvent(done[1]);
    clReleaseEvent(read);
    clattn_plan_destroy(&plan);
    attn_data_free(&d);
    free(second);
    free(got);
    free(lse);
}

// The plan may go while its work waits.
static void test_plan_goes_first(void **state)
{
    (void)state;
    need_user_events();
    cl_event gate = user_event(), done = NULL;
    write_inputs(app.in_order);
    enqueue(app.in_order, gate, &done);
    clattn_plan_destroy(&app.plan);
    assert_null(app.plan);
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    check_result(app.in_order, NULL);
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

// Work of nothing has an event too, which waits like any other.
static void test_nothing_to_do(void **state)
{
    (void)state;
    need_user_events();
    for (int which = 0; which < 2; which++) {
        cl_event gate = user_event(), done = NULL;
        clattn_attention_call call = make_call();
        if (which)
            call.batch = 0;
        else
            call.len_q = 0;
        assert_int_equal(
            clattn_attention_enqueue(app.plan, &call, app.in_order, 1, &gate, &done), CLATTN_OK);
        assert_non_null(done);
        CL_OK(clFlush(app.in_order));
        assert_true(status_of(done) > CL_COMPLETE);
        CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
        CL_OK(clWaitForEvents(1, &done));
        CL_OK(clReleaseEvent(gate));
        CL_OK(clReleaseEvent(done));
    }
    // No keys: zeros on the device as well.
    clattn_attention_call call = make_call();
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
    cl_mem out[2];
    int failed, rounds;
};

static void use_plan(void *arg)
{
    struct user *u = arg;
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(app.context, app.id, 0, &code);
    float *o = malloc(app.bytes[BUF_O]);
    for (int n = 0; n < u->rounds && code == CL_SUCCESS && o; n++) {
        clattn_attention_call call = make_call();
        call.o.buf.ptr = u->out[0];
        call.lse.ptr = u->out[1];
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
    write_inputs(app.in_order);
    for (int n = 0; n < USERS; n++) {
        users[n] = (struct user){.rounds = app.device->level == LEVEL_FULL ? 40 : 3};
        users[n].out[0] = blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_O]);
        users[n].out[1] = blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_LSE]);
    }
    for (int n = 0; n < USERS; n++)
        threads[n] = thread_start(use_plan, &users[n]);
    for (int n = 0; n < USERS; n++) {
        thread_join(threads[n]);
        clReleaseMemObject(users[n].out[0]);
        clReleaseMemObject(users[n].out[1]);
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
    assert_outputs_blank(app.in_order);
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
    clattn_attention_call call = make_call();
    refused(&call, foreign, 0, NULL, CLATTN_ERR_WRONG_CONTEXT, "queue");
    refused(&call, NULL, 0, NULL, CLATTN_ERR_INVALID_ARGUMENT, "queue");
    refused(&call, app.in_order, 1, NULL, CLATTN_ERR_INVALID_ARGUMENT, "num_wait");
    call.k.buf.ptr = foreign_mem;
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_WRONG_CONTEXT, "k.buf.ptr");
    call = make_call();
    call.v.buf = clattn_host_buf(app.d.v, 0);
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "v");
    call = make_call();
    call.q.buf.offset_bytes += 2 * GUARD_BYTES; // the end is past the end of the cl_mem
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "q");
    call = make_call();
    call.o.buf.size_bytes = GUARD_BYTES + app.bytes[BUF_O] - 4;
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_BUFFER_TOO_SMALL, "o");
    call = make_call();
    call.lse.ptr = app.mem[BUF_Q];
    refused(&call, app.in_order, 0, NULL, CLATTN_ERR_OVERLAP, "lse");
    clReleaseMemObject(foreign_mem);
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    write_inputs(app.in_order);
    enqueue(app.in_order, NULL, NULL);
    check_result(app.in_order, NULL);
}

static void CL_CALLBACK note_status(cl_event event, cl_int status, void *user)
{
    (void)event;
    *(volatile cl_int *)user = status;
}

// Whether the driver calls back for an event that ends in failure, as OpenCL asks. The CPU path
// cannot know of the failure otherwise. (PoCL 3.1 does not call.)
static bool failures_are_told(void)
{
    static volatile cl_int status;
    cl_event gate = user_event(), marker = NULL;
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(app.context, app.id, 0, &code);
    CL_OK(code);
    status = CL_QUEUED;
    CL_OK(clEnqueueMarkerWithWaitList(queue, 1, &gate, &marker));
    CL_OK(clSetEventCallback(marker, CL_COMPLETE, note_status, (void *)&status));
    CL_OK(clFlush(queue));
    CL_OK(clSetUserEventStatus(gate, -1));
    for (int n = 0; n < 100 && status == CL_QUEUED; n++)
        sleep_ms(5);
    clReleaseEvent(marker);
    clReleaseEvent(gate);
    clReleaseCommandQueue(queue);
    return status < 0;
}

// An event that ends in failure takes the work with it: nothing hangs, nothing is written.
static void test_failed_wait(void **state)
{
    (void)state;
    need_user_events();
    if (app.algo == CLATTN_ALGO_FUSED) {
        printf("what a driver does with its own commands behind a failed event is up to it\n");
        skip();
    }
    if (!failures_are_told()) {
        printf("the driver does not tell of events that fail\n");
        skip();
    }
    cl_event gate = user_event(), done = NULL;
    write_inputs(app.other);
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(app.context, app.id, 0, &code);
    CL_OK(code);
    enqueue(queue, gate, &done);
    CL_OK(clSetUserEventStatus(gate, -1));
    const cl_int waited = clWaitForEvents(1, &done);
    printf("waiting gave %d, the event's status is %d\n", (int)waited, (int)status_of(done));
    assert_true(waited != CL_SUCCESS || status_of(done) < 0);
    clReleaseEvent(done);
    clReleaseEvent(gate);
    clReleaseCommandQueue(queue);
    assert_outputs_blank(app.other);
    enqueue(app.in_order, NULL, NULL);
    check_result(app.in_order, NULL);
}

// ---- adopting -----------------------------------------------------------------------------------

static cl_uint references(void)
{
    cl_uint count = 0;
    CL_OK(clGetContextInfo(app.context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

// One life of a guest, with a call that blocks on the application's memory and host memory mixed.
static void adopt_run_leave(void)
{
    clattn_context *ctx = adopt(app.in_order);
    assert_ptr_equal(clattn_context_cl_context(ctx), app.context);
    assert_ptr_equal(clattn_context_cl_device(ctx), app.id);
    clattn_device_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_context_get_device_info(ctx, &info), CLATTN_OK);
    assert_int_equal(info.index, -1);
    assert_string_equal(info.name, app.device->info.name);
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = app.c.dim;
    desc.heads_q = app.c.heads_q;
    desc.heads_kv = app.c.heads_kv;
    desc.features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    desc.algo = app.algo;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    clattn_attention_call call = make_call();
    call.k.buf = clattn_host_buf(app.d.k, app.bytes[BUF_K]);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    check_result(app.other, NULL);
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
    write_inputs(app.in_order);
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
    enqueue(app.in_order, NULL, NULL);
    check_result(app.in_order, NULL);

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
    const clattn_attention_call call = make_call();
    assert_int_equal(clattn_attention_enqueue(plan, &call, app.in_order, 0, NULL, NULL),
                     CLATTN_ERR_NO_OPENCL);
    assert_null(clattn_context_cl_context(cpu.ctx));
    assert_null(clattn_context_cl_device(cpu.ctx));
    clattn_plan_destroy(&plan);
    devices_close(&cpu, 1);
}

// ---- main ---------------------------------------------------------------------------------------

static int run_on(struct test_device *device, int32_t algo, const char *algo_name)
{
    static char name[128];
#define TEST(text, function) {text, function, set_up, tear_down, NULL}
    static const struct CMUnitTest tests[] = {
        TEST("in-order queue needs no waiting", test_in_order),
        TEST("user event set later, in-order", test_gate_in_order),
        TEST("user event set later, out-of-order", test_gate_out_of_order),
        TEST("chain on an out-of-order queue", test_chain),
        TEST("plan destroyed before its work", test_plan_goes_first),
        TEST("work of nothing", test_nothing_to_do),
        TEST("two threads, one plan", test_threads),
        TEST("refusals", test_refusals),
        TEST("a wait that fails", test_failed_wait),
        TEST("adopting and leaving", test_adopting),
        TEST("the built-in path has no queue", test_builtin_has_no_queue),
    };
    cl_int code;
    memset(&app, 0, sizeof app);
    app.device = device;
    app.algo = algo;
    app.c = device->level == LEVEL_FULL ? big_case : small_case;
    app.id = clattn_context_cl_device(device->ctx);
    app.context = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    if (code != CL_SUCCESS || !attn_data_make(&app.c, &app.d)) {
        printf("%s: no context or no data (%d)\n", device->tag, (int)code);
        return 1;
    }
    app.in_order = clCreateCommandQueue(app.context, app.id, 0, &code);
    app.other = clCreateCommandQueue(app.context, app.id, 0, &code);
    app.out_of_order = clCreateCommandQueue(app.context, app.id,
                                            CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code != CL_SUCCESS) {
        printf("%s: no out-of-order queues\n", device->tag);
        app.out_of_order = NULL;
    }
    app.guest = adopt(NULL);
    snprintf(name, sizeof name, "%s/%s", device->tag, algo_name);
    const int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    if (failed == 0) // what a failed test left behind keeps the contexts
        clattn_context_destroy(&app.guest);
    clReleaseCommandQueue(app.in_order);
    clReleaseCommandQueue(app.other);
    if (app.out_of_order)
        clReleaseCommandQueue(app.out_of_order);
    clReleaseContext(app.context);
    attn_data_free(&app.d);
    return failed;
}

int main(void)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    for (int n = 0; n < count; n++) {
        failed += run_on(&devices[n], CLATTN_ALGO_FUSED, "fused");
        if (!has_user_events(&devices[n])) // the CPU path behind a queue stands on them
            continue;
        failed += run_on(&devices[n], CLATTN_ALGO_HOST, "host");
        failed += run_on(&devices[n], CLATTN_ALGO_REFERENCE, "reference");
    }
    attn_expect_close();
    if (failed == 0)
        devices_close(devices, count);
    return failed ? 1 : 0;
}
