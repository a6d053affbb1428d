// SPDX-License-Identifier: Apache-2.0
// Row softmax on an application's queues, buffers and events. This test links OpenCL as an
// application does; the library under test opens it by itself.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "compare.h"
#include "open_device.h"
#include "run_case.h"
#include "thread.h"

// Rows are long enough for several parts each on OpenCL, and so for a workspace.
enum { ROWS = 2, LEN = 100003, COUNT = ROWS * LEN, GUARD = 64, WORK_OFFSET = 32 };

enum { BUF_X, BUF_Y, BUF_LSE, BUFS };
static const size_t buf_bytes[BUFS] = {COUNT * 4, COUNT * 4, ROWS * 4};

// The application.
static struct {
    struct test_device *device;
    int32_t path, algo;
    cl_device_id id;
    cl_context context;
    cl_command_queue in_order, other, out_of_order; // out_of_order: NULL where there is none
    clattn_context *guest;
    struct log_capture log;
    clattn_softmax_plan *plan;
    size_t work_bytes;
    cl_mem mem[BUFS], work; // GUARD bytes before and after what counts; of `work` WORK_OFFSET
} app;

static float *x, *once, *twice; // input, its softmax, and the softmax of that
static float lse[ROWS];

#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

// ---- numbers -----------------------------------------------------------------------------------

// By the definition.
static void softmax(const float *from, float *to, float *lse_out)
{
    for (int r = 0; r < ROWS; r++) {
        const float *row = from + (size_t)r * LEN;
        double top = -INFINITY, d = 0.0;
        for (int c = 0; c < LEN; c++)
            top = fmax(top, (double)row[c]);
        for (int c = 0; c < LEN; c++)
            d += exp((double)row[c] - top);
        for (int c = 0; c < LEN; c++)
            to[(size_t)r * LEN + (size_t)c] = (float)(exp((double)row[c] - top) / d);
        if (lse_out)
            lse_out[r] = (float)(top + log(d));
    }
}

static bool make_numbers(void)
{
    x = malloc(COUNT * sizeof *x);
    once = malloc(COUNT * sizeof *once);
    twice = malloc(COUNT * sizeof *twice);
    if (!x || !once || !twice)
        return false;
    // The largest entries lie in the last part of a row, so that parts have something to rescale.
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(i * 37 % 101) * 0.05f + (float)(i % LEN) / (LEN / 8);
    softmax(x, once, lse);
    softmax(once, twice, NULL);
    return true;
}

static void check_values(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i])))
            fail_msg("%s[%zu] is %.9g, expected %.9g", what, i, (double)got[i], (double)want[i]);
}

// ---- memory ------------------------------------------------------------------------------------

static size_t all_bytes(size_t bytes)
{
    return bytes + 2 * GUARD;
}

// A buffer whose bytes are all the pattern of what was never written.
static cl_mem blank(size_t bytes)
{
    void *pattern = malloc(all_bytes(bytes));
    assert_non_null(pattern);
    fill_unwritten(pattern, all_bytes(bytes) / 4);
    cl_int code;
    cl_mem mem = clCreateBuffer(app.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                all_bytes(bytes), pattern, &code);
    CL_OK(code);
    free(pattern);
    return mem;
}

static void write_x(cl_command_queue queue, cl_bool blocking, cl_event *event)
{
    CL_OK(clEnqueueWriteBuffer(queue, app.mem[BUF_X], blocking, GUARD, COUNT * 4, x, 0, NULL,
                               event));
    if (blocking) // other queues see the data for certain only then
        CL_OK(clFinish(queue));
}

static clattn_softmax_call make_call(void)
{
    clattn_softmax_call call;
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = ROWS;
    call.len = LEN;
    clattn_buf *const bufs[BUFS] = {&call.x, &call.y, &call.lse};
    for (int n = 0; n < BUFS; n++)
        *bufs[n] = (clattn_buf){
            .kind = CLATTN_BUF_CL_MEM, .ptr = app.mem[n], .offset_bytes = GUARD};
    if (app.work)
        call.workspace = (clattn_buf){
            .kind = CLATTN_BUF_CL_MEM, .ptr = app.work, .offset_bytes = WORK_OFFSET};
    return call;
}

// The whole buffer, behind `wait` (NULL = nothing); the guards are as they were.
static float *read_all(cl_command_queue queue, cl_mem mem, size_t bytes, cl_event wait)
{
    float *all = malloc(all_bytes(bytes));
    assert_non_null(all);
    CL_OK(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, all_bytes(bytes), all, wait ? 1 : 0,
                              wait ? &wait : NULL, NULL));
    for (size_t n = 0; n < all_bytes(bytes) / 4; n++) {
        uint32_t bits;
        memcpy(&bits, all + n, 4);
        if ((n < GUARD / 4 || n >= (GUARD + bytes) / 4) && bits != UNWRITTEN_BITS)
            fail_msg("wrote outside, at byte %zu", n * 4);
    }
    return all;
}

static void check_result(cl_command_queue queue, cl_event wait)
{
    float *y = read_all(queue, app.mem[BUF_Y], buf_bytes[BUF_Y], wait);
    check_values("y", y + GUARD / 4, once, COUNT);
    free(y);
    float *got = read_all(queue, app.mem[BUF_LSE], buf_bytes[BUF_LSE], wait);
    check_values("lse", got + GUARD / 4, lse, ROWS);
    free(got);
    if (app.work) { // nothing before its offset, nothing behind its size
        uint32_t *bits = malloc(all_bytes(app.work_bytes));
        assert_non_null(bits);
        CL_OK(clEnqueueReadBuffer(queue, app.work, CL_TRUE, 0, all_bytes(app.work_bytes), bits, 0,
                                  NULL, NULL));
        for (size_t n = 0; n < all_bytes(app.work_bytes) / 4; n++)
            if (n < WORK_OFFSET / 4 || n >= (WORK_OFFSET + app.work_bytes) / 4)
                assert_int_equal(bits[n], UNWRITTEN_BITS);
        free(bits);
    }
}

static void assert_outputs_blank(cl_command_queue queue)
{
    for (int n = BUF_Y; n <= BUF_LSE; n++) {
        float *all = read_all(queue, app.mem[n], buf_bytes[n], NULL);
        for (size_t m = 0; m < all_bytes(buf_bytes[n]) / 4; m++) {
            uint32_t bits;
            memcpy(&bits, all + m, 4);
            assert_int_equal(bits, UNWRITTEN_BITS);
        }
        free(all);
    }
}

static cl_int status_of(cl_event event)
{
    cl_int status = 0;
    CL_OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status;
}

static void enqueue(const clattn_softmax_call *call, cl_command_queue queue, cl_event wait,
                    cl_event *done)
{
    const clattn_status st =
        clattn_softmax_enqueue(app.plan, call, queue, wait ? 1 : 0, wait ? &wait : NULL, done);
    if (st != CLATTN_OK)
        fail_msg("enqueue: %s: %s", clattn_status_string(st), app.log.text);
}

// ---- set-up ------------------------------------------------------------------------------------

static int set_up(void **state)
{
    (void)state;
    watchdog(app.device->tag, 240);
    memset(&app.log, 0, sizeof app.log);
    clattn_softmax_desc desc;
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.algo = app.algo;
    desc.path = app.path;
    desc.features = CLATTN_SOFTMAX_LSE;
    desc.max_rows = ROWS;
    desc.max_len = LEN;
    assert_int_equal(clattn_softmax_plan_create(app.guest, &desc, &app.plan), CLATTN_OK);
    assert_int_equal(clattn_softmax_workspace_bytes(app.plan, ROWS, LEN, &app.work_bytes),
                     CLATTN_OK);
    assert_true((app.work_bytes > 0) == (app.path == CLATTN_SOFTMAX_PATH_OPENCL));
    for (int n = 0; n < BUFS; n++)
        app.mem[n] = blank(buf_bytes[n]);
    app.work = app.work_bytes ? blank(app.work_bytes) : NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int n = 0; n < BUFS; n++)
        if (app.mem[n])
            clReleaseMemObject(app.mem[n]);
    if (app.work)
        clReleaseMemObject(app.work);
    memset(app.mem, 0, sizeof app.mem);
    app.work = NULL;
    clattn_softmax_plan_destroy(&app.plan);
    watchdog("", 0);
    return 0;
}

// ---- tests -------------------------------------------------------------------------------------

// On an in-order queue nothing has to be waited for.
static void test_in_order(void **state)
{
    (void)state;
    const clattn_softmax_call call = make_call();
    write_x(app.in_order, CL_FALSE, NULL);
    enqueue(&call, app.in_order, NULL, NULL);
    check_result(app.in_order, NULL);
}

// Oclgrind computes inside clFlush(), which then never returns while a user event is not set.
static bool has_user_events(const struct test_device *device)
{
    return strcmp(device->info.platform, "Oclgrind") != 0;
}

static cl_event user_event(void)
{
    if (!has_user_events(app.device)) {
        printf("this simulator blocks in clFlush() until a user event is set\n");
        skip();
    }
    cl_int code;
    cl_event event = clCreateUserEvent(app.context, &code);
    CL_OK(code);
    return event;
}

// A user event that the application sets after the call returned: the work waits for it, the call
// does not.
static void gated(cl_command_queue queue)
{
    cl_event gate = user_event(), done = NULL;
    const clattn_softmax_call call = make_call();
    enqueue(&call, queue, gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(queue));
    sleep_ms(50);
    assert_true(status_of(done) > CL_COMPLETE);
    write_x(app.other, CL_TRUE, NULL); // X was NaN until now, so work that had begun would show
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    assert_int_equal(status_of(done), CL_COMPLETE);
    check_result(app.other, NULL); // `done` covers all kernels, whatever queue reads
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

static void test_gate_in_order(void **state)
{
    (void)state;
    gated(app.in_order);
}

static void test_gate_out_of_order(void **state)
{
    (void)state;
    if (!app.out_of_order)
        skip();
    gated(app.out_of_order);
}

// The wait list orders an out-of-order queue: a write, a softmax, and the softmax of its Y in the
// same workspace.
static void test_chain(void **state)
{
    (void)state;
    if (!app.out_of_order)
        skip();
    cl_mem last = blank(COUNT * 4);
    cl_event written, first, second;
    clattn_softmax_call call = make_call();
    write_x(app.out_of_order, CL_FALSE, &written);
    enqueue(&call, app.out_of_order, written, &first);
    call.x.ptr = app.mem[BUF_Y];
    call.y.ptr = last;
    enqueue(&call, app.out_of_order, first, &second);
    CL_OK(clFlush(app.out_of_order));
    float *got = read_all(app.out_of_order, last, COUNT * 4, second);
    check_values("softmax of y", got + GUARD / 4, twice, COUNT);
    free(got);
    clReleaseMemObject(last);
    CL_OK(clReleaseEvent(written));
    CL_OK(clReleaseEvent(first));
    CL_OK(clReleaseEvent(second));
}

// The plan may go while its work waits.
static void test_plan_goes_first(void **state)
{
    (void)state;
    cl_event gate = user_event(), done = NULL;
    const clattn_softmax_call call = make_call();
    write_x(app.in_order, CL_TRUE, NULL);
    enqueue(&call, app.in_order, gate, &done);
    clattn_softmax_plan_destroy(&app.plan);
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
    cl_event gate = user_event(), done = NULL;
    clattn_softmax_call call = make_call();
    call.rows = 0;
    enqueue(&call, app.in_order, gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(app.in_order));
    assert_true(status_of(done) > CL_COMPLETE);
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    assert_outputs_blank(app.in_order);
    CL_OK(clReleaseEvent(gate));
    CL_OK(clReleaseEvent(done));
}

static void refused(const clattn_softmax_call *call, cl_command_queue queue, cl_uint num_wait,
                    clattn_status want, const char *text)
{
    cl_event done = NULL;
    memset(&app.log, 0, sizeof app.log);
    const clattn_status st = clattn_softmax_enqueue(app.plan, call, queue, num_wait, NULL, &done);
    if (st != want)
        fail_msg("%s: %s, not %s", text, clattn_status_string(st), clattn_status_string(want));
    assert_null(done);
    assert_int_equal(app.log.errors, 1);
    if (!strstr(app.log.text, text))
        fail_msg("\"%s\" is not in: %s", text, app.log.text);
}

static void test_refusals(void **state)
{
    (void)state;
    cl_int code;
    cl_context other = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    CL_OK(code);
    cl_command_queue foreign = clCreateCommandQueue(other, app.id, 0, &code);
    CL_OK(code);
    clattn_softmax_call call = make_call();
    refused(&call, foreign, 0, CLATTN_ERR_WRONG_CONTEXT, "queue");
    refused(&call, NULL, 0, CLATTN_ERR_INVALID_ARGUMENT, "queue");
    refused(&call, app.in_order, 1, CLATTN_ERR_INVALID_ARGUMENT, "num_wait");
    call.x = clattn_host_buf(x, COUNT * 4);
    refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_MISSING, "x");
    call = make_call();
    call.y.offset_bytes += 2 * GUARD;
    refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_TOO_SMALL, "y");
    if (app.work) {
        call = make_call();
        call.workspace = (clattn_buf){0};
        refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_MISSING, "workspace");
        call = make_call();
        call.workspace.size_bytes = WORK_OFFSET + app.work_bytes - 4;
        refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_TOO_SMALL, "workspace");
        call.workspace = call.y;
        refused(&call, app.in_order, 0, CLATTN_ERR_OVERLAP, "workspace");
    }
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    CL_OK(clFinish(app.in_order));
    assert_outputs_blank(app.in_order);
    write_x(app.in_order, CL_TRUE, NULL);
    call = make_call();
    enqueue(&call, app.in_order, NULL, NULL);
    check_result(app.in_order, NULL);
}

// ---- main --------------------------------------------------------------------------------------

static int run_on(struct test_device *device, int32_t path, int32_t algo, const char *path_name)
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
        TEST("refusals", test_refusals),
    };
    cl_int code[4];
    memset(&app, 0, sizeof app);
    app.device = device;
    app.path = path;
    app.algo = algo;
    app.id = clattn_context_cl_device(device->ctx);
    app.context = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code[0]);
    app.in_order = clCreateCommandQueue(app.context, app.id, 0, &code[1]);
    app.other = clCreateCommandQueue(app.context, app.id, 0, &code[2]);
    app.out_of_order = clCreateCommandQueue(app.context, app.id,
                                            CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code[3]);
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = log_capture;
    desc.log_user = &app.log;
    if (code[0] || code[1] || code[2] ||
        clattn_context_create_opencl(&desc, app.context, app.id, NULL, &app.guest) != CLATTN_OK) {
        printf("%s: no context: %s\n", device->tag, app.log.text);
        return 1;
    }
    if (code[3] != CL_SUCCESS) {
        printf("%s: no out-of-order queues\n", device->tag);
        app.out_of_order = NULL;
    }
    snprintf(name, sizeof name, "%s/%s, softmax %d", device->tag, path_name, (int)algo);
    const int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    if (failed == 0) // what a failed test left behind keeps the contexts
        clattn_context_destroy(&app.guest);
    clReleaseCommandQueue(app.in_order);
    clReleaseCommandQueue(app.other);
    if (app.out_of_order)
        clReleaseCommandQueue(app.out_of_order);
    clReleaseContext(app.context);
    return failed;
}

int main(void)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!devices_open(devices, &count) || !make_numbers())
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    for (int n = 0; n < count; n++) {
        failed += run_on(&devices[n], CLATTN_SOFTMAX_PATH_OPENCL, CLATTN_SOFTMAX_ONLINE, "opencl");
        failed += run_on(&devices[n], CLATTN_SOFTMAX_PATH_OPENCL, CLATTN_SOFTMAX_SAFE, "opencl");
        if (!has_user_events(&devices[n])) // the CPU path behind a queue stands on them
            continue;
        failed += run_on(&devices[n], CLATTN_SOFTMAX_PATH_HOST, CLATTN_SOFTMAX_ONLINE, "host");
        failed += run_on(&devices[n], CLATTN_SOFTMAX_PATH_REFERENCE, CLATTN_SOFTMAX_SAFE,
                         "reference");
    }
    free(x);
    free(once);
    free(twice);
    if (failed == 0)
        devices_close(devices, count);
    return failed ? 1 : 0;
}
