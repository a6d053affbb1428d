// SPDX-License-Identifier: Apache-2.0
// Row softmax on an application's queues, buffers and events.
#include "application.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_case.h"
#include "thread.h"

// Rows are long enough for several parts each on OpenCL, and so for a workspace.
enum { ROWS = 2, LEN = 100003, COUNT = ROWS * LEN };

enum { ROW_X, ROW_Y, ROW_LSE, ROW_BUFS };
static const size_t buf_bytes[ROW_BUFS] = {COUNT * 4, COUNT * 4, ROWS * 4};

// What the application brings to softmax.
static struct {
    int32_t path, algo;
    clattn_softmax_plan *plan;
    size_t work_bytes;
    cl_mem mem[ROW_BUFS], work; // of app_blank_buffer(); no `work` where none is needed
} rows;

static float *x, *once, *twice; // input, its softmax, and the softmax of that
static float lse[ROWS];

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

static void write_x(cl_command_queue queue, cl_bool blocking, cl_event *event)
{
    CL_OK(clEnqueueWriteBuffer(queue, rows.mem[ROW_X], blocking, GUARD_BYTES, COUNT * 4, x, 0, NULL,
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
    clattn_buf *const bufs[ROW_BUFS] = {&call.x, &call.y, &call.lse};
    for (int n = 0; n < ROW_BUFS; n++)
        *bufs[n] = (clattn_buf){
            .kind = CLATTN_BUF_CL_MEM, .ptr = rows.mem[n], .offset_bytes = GUARD_BYTES};
    if (rows.work)
        call.workspace = (clattn_buf){
            .kind = CLATTN_BUF_CL_MEM, .ptr = rows.work, .offset_bytes = GUARD_BYTES};
    return call;
}

static void check_result(cl_command_queue queue, cl_event wait)
{
    float *y = app_read_guarded(queue, wait, rows.mem[ROW_Y], buf_bytes[ROW_Y], "y");
    check_values("y", y + GUARD_BYTES / 4, once, COUNT);
    free(y);
    float *got = app_read_guarded(queue, wait, rows.mem[ROW_LSE], buf_bytes[ROW_LSE], "lse");
    check_values("lse", got + GUARD_BYTES / 4, lse, ROWS);
    free(got);
    if (rows.work)
        free(app_read_guarded(queue, wait, rows.work, rows.work_bytes, "workspace"));
}

static void assert_outputs_blank(cl_command_queue queue)
{
    for (int n = ROW_Y; n <= ROW_LSE; n++)
        app_assert_blank(queue, rows.mem[n], buf_bytes[n]);
}

static void enqueue(const clattn_softmax_call *call, cl_command_queue queue, cl_event wait,
                    cl_event *done)
{
    const clattn_status st =
        clattn_softmax_enqueue(rows.plan, call, queue, wait ? 1 : 0, wait ? &wait : NULL, done);
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
    desc.algo = rows.algo;
    desc.path = rows.path;
    desc.features = CLATTN_SOFTMAX_LSE;
    desc.max_rows = ROWS;
    desc.max_len = LEN;
    assert_int_equal(clattn_softmax_plan_create(app.guest, &desc, &rows.plan), CLATTN_OK);
    assert_int_equal(clattn_softmax_workspace_bytes(rows.plan, ROWS, LEN, &rows.work_bytes),
                     CLATTN_OK);
    assert_true((rows.work_bytes > 0) == (rows.path == CLATTN_SOFTMAX_PATH_OPENCL));
    for (int n = 0; n < ROW_BUFS; n++)
        rows.mem[n] = app_blank_buffer(CL_MEM_READ_WRITE, buf_bytes[n]);
    rows.work = rows.work_bytes ? app_blank_buffer(CL_MEM_READ_WRITE, rows.work_bytes) : NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int n = 0; n < ROW_BUFS; n++)
        if (rows.mem[n])
            clReleaseMemObject(rows.mem[n]);
    if (rows.work)
        clReleaseMemObject(rows.work);
    memset(rows.mem, 0, sizeof rows.mem);
    rows.work = NULL;
    clattn_softmax_plan_destroy(&rows.plan);
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

// A user event that the application sets after the call returned: the work waits for it, the call
// does not.
static void gated(cl_command_queue queue)
{
    app_need_user_events();
    cl_event gate = app_user_event(), done = NULL;
    const clattn_softmax_call call = make_call();
    enqueue(&call, queue, gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(queue));
    sleep_ms(50);
    assert_true(app_status_of(done) > CL_COMPLETE);
    write_x(app.other, CL_TRUE, NULL); // X was NaN until now, so work that had begun would show
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    assert_int_equal(app_status_of(done), CL_COMPLETE);
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
    cl_mem last = app_blank_buffer(CL_MEM_READ_WRITE, COUNT * 4);
    cl_event written, first, second;
    clattn_softmax_call call = make_call();
    write_x(app.out_of_order, CL_FALSE, &written);
    enqueue(&call, app.out_of_order, written, &first);
    call.x.ptr = rows.mem[ROW_Y];
    call.y.ptr = last;
    enqueue(&call, app.out_of_order, first, &second);
    CL_OK(clFlush(app.out_of_order));
    float *got = app_read_guarded(app.out_of_order, second, last, COUNT * 4, "softmax of y");
    check_values("softmax of y", got + GUARD_BYTES / 4, twice, COUNT);
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
    app_need_user_events();
    cl_event gate = app_user_event(), done = NULL;
    const clattn_softmax_call call = make_call();
    write_x(app.in_order, CL_TRUE, NULL);
    enqueue(&call, app.in_order, gate, &done);
    clattn_softmax_plan_destroy(&rows.plan);
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
    app_need_user_events();
    cl_event gate = app_user_event(), done = NULL;
    clattn_softmax_call call = make_call();
    call.rows = 0;
    enqueue(&call, app.in_order, gate, &done);
    assert_non_null(done);
    CL_OK(clFlush(app.in_order));
    assert_true(app_status_of(done) > CL_COMPLETE);
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
    const clattn_status st = clattn_softmax_enqueue(rows.plan, call, queue, num_wait, NULL, &done);
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
    call.y.offset_bytes += 2 * GUARD_BYTES;
    refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_TOO_SMALL, "y");
    if (rows.work) {
        call = make_call();
        call.workspace = (clattn_buf){0};
        refused(&call, app.in_order, 0, CLATTN_ERR_BUFFER_MISSING, "workspace");
        call = make_call();
        call.workspace.size_bytes = GUARD_BYTES + rows.work_bytes - 4;
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
    if (!app_open(device, CLATTN_ALGO_AUTO, NULL))
        return 1;
    rows.path = path;
    rows.algo = algo;
    snprintf(name, sizeof name, "%s/%s, softmax %d", device->tag, path_name, (int)algo);
    const int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    app_close(failed != 0);
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
        if (!app_has_user_events(&devices[n])) // the CPU path behind a queue stands on them
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
