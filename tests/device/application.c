// SPDX-License-Identifier: Apache-2.0
#include "application.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare.h"
#include "run_case.h"
#include "thread.h"

struct application app;

// ---- programs -----------------------------------------------------------------------------------

static char cache_folder[64];

bool app_cache_open(void)
{
    strcpy(cache_folder, P_tmpdir "/cla_application_XXXXXX");
    if (!mkdtemp(cache_folder)) {
        perror(cache_folder);
        return false;
    }
    return setenv("CLATTN_CACHE_DIR", cache_folder, 1) == 0 && setenv("CLATTN_CACHE", "1", 1) == 0;
}

void app_cache_close(void)
{
    DIR *folder = opendir(cache_folder);
    for (const struct dirent *e; folder && (e = readdir(folder)) != NULL;) {
        char path[sizeof cache_folder + sizeof e->d_name + 1];
        snprintf(path, sizeof path, "%s/%s", cache_folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (folder)
        closedir(folder);
    rmdir(cache_folder);
    setenv("CLATTN_CACHE", "0", 1);
    unsetenv("CLATTN_CACHE_DIR");
}

// ---- memory -------------------------------------------------------------------------------------

static const void *input(int n)
{
    const void *const from[] = {app.d.q, app.d.k, app.d.v, app.d.mask};
    return from[n];
}

cl_mem app_blank_buffer(cl_mem_flags flags, size_t bytes)
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

void app_write_input(cl_command_queue queue, cl_bool blocking, int n, cl_event *event)
{
    CL_OK(clEnqueueWriteBuffer(queue, app.mem[n], blocking, GUARD_BYTES, app.bytes[n], input(n), 0,
                               NULL, event));
}

// A blocking write only promises that the source may be reused: other queues see the data for
// certain once the queue has finished. (Intel's CPU runtime uses that freedom.)
void app_write_inputs(cl_command_queue queue)
{
    for (int n = BUF_Q; n <= BUF_MASK; n++)
        app_write_input(queue, CL_TRUE, n, NULL);
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
    // These two read O, too.
    const bool reads_o =
        app.algo == CLATTN_ALGO_FUSED_KV_OUTER || app.algo == CLATTN_ALGO_UNFUSED;
    for (int n = 0; n < BUF_WORKSPACE; n++) {
        const cl_mem_flags output =
            n == BUF_O && reads_o ? CL_MEM_READ_WRITE : CL_MEM_WRITE_ONLY;
        app.mem[n] = app_blank_buffer(n < BUF_O ? CL_MEM_READ_ONLY : output, app.bytes[n]);
    }
    // What the call needs to the byte; it lacks only this by now.
    const clattn_attention_call call = app_call();
    const clattn_status st =
        clattn_plan_workspace_bytes(app.plan, &call, &app.bytes[BUF_WORKSPACE]);
    if (st != CLATTN_OK)
        fail_msg("workspace: %s: %s", clattn_status_string(st), app.log.text);
    if (app.bytes[BUF_WORKSPACE])
        app.mem[BUF_WORKSPACE] = app_blank_buffer(CL_MEM_READ_WRITE, app.bytes[BUF_WORKSPACE]);
}

clattn_buf app_buf(int n)
{
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = app.mem[n], .offset_bytes = GUARD_BYTES};
}

clattn_attention_call app_call(void)
{
    clattn_attention_call call = case_host_call(&app.c, NULL, NULL, NULL, NULL, NULL, NULL);
    call.q.buf = app_buf(BUF_Q);
    call.k.buf = app_buf(BUF_K);
    call.v.buf = app_buf(BUF_V);
    call.mask.buf = app_buf(BUF_MASK);
    call.o.buf = app_buf(BUF_O);
    call.lse = app_buf(BUF_LSE);
    if (app.mem[BUF_WORKSPACE])
        call.workspace = app_buf(BUF_WORKSPACE);
    return call;
}

float *app_read_guarded(cl_command_queue queue, cl_event wait, cl_mem mem, size_t bytes,
                        const char *what)
{
    const size_t all = bytes + 2 * GUARD_BYTES;
    float *x = malloc(all);
    assert_non_null(x);
    CL_OK(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, all, x, wait ? 1 : 0, wait ? &wait : NULL,
                              NULL));
    for (size_t n = 0; n < all / 4; n++) {
        const bool inside = n >= GUARD_BYTES / 4 && n < (GUARD_BYTES + bytes) / 4;
        if (!inside && float_bits(x[n]) != UNWRITTEN_BITS)
            fail_msg("%s: wrote outside, at byte %zu", what, n * 4);
    }
    return x;
}

static void check_floats(const char *what, const float *all, size_t bytes,
                         const float *expected, const struct tolerance *tol)
{
    struct compare_report report;
    if (!compare(all + GUARD_BYTES / 4, expected, bytes / 4, tol, &report)) {
        compare_print(what, &report);
        fail_msg("%s is wrong", what);
    }
}

void app_check_result(cl_command_queue queue, cl_event wait)
{
    static const int outputs[] = {BUF_O, BUF_LSE};
    const float *const expected[] = {app.d.o, app.d.lse};
    const struct tolerance *const tol[] = {&app.d.tol_o, &app.d.tol_lse};
    for (int n = 0; n < 2; n++) {
        const char *const what = n ? "LSE" : "O";
        const size_t bytes = app.bytes[outputs[n]];
        float *all = app_read_guarded(queue, wait, app.mem[outputs[n]], bytes, what);
        check_floats(what, all, bytes, expected[n], tol[n]);
        free(all);
    }
    if (app.mem[BUF_WORKSPACE])
        free(app_read_guarded(queue, wait, app.mem[BUF_WORKSPACE], app.bytes[BUF_WORKSPACE],
                              "workspace"));
}

void app_assert_blank(cl_command_queue queue, cl_mem mem, size_t bytes)
{
    const size_t all = bytes + 2 * GUARD_BYTES;
    uint32_t *bits = malloc(all);
    assert_non_null(bits);
    CL_OK(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, all, bits, 0, NULL, NULL));
    for (size_t m = 0; m < all / 4; m++)
        assert_int_equal(bits[m], UNWRITTEN_BITS);
    free(bits);
}

void app_assert_outputs_blank(cl_command_queue queue)
{
    for (int n = BUF_O; n <= BUF_LSE; n++)
        app_assert_blank(queue, app.mem[n], app.bytes[n]);
}

cl_int app_status_of(cl_event event)
{
    cl_int status = 0;
    CL_OK(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    return status;
}

cl_event app_user_event(void)
{
    cl_int code;
    cl_event event = clCreateUserEvent(app.context, &code);
    CL_OK(code);
    return event;
}

void app_enqueue(cl_command_queue queue, cl_event wait, cl_event *done)
{
    const clattn_attention_call call = app_call();
    const clattn_status st =
        clattn_attention_enqueue(app.plan, &call, queue, wait ? 1 : 0, wait ? &wait : NULL, done);
    if (st != CLATTN_OK)
        fail_msg("enqueue: %s: %s", clattn_status_string(st), app.log.text);
}

// ---- set-up -------------------------------------------------------------------------------------

clattn_plan *app_plan(const struct attn_case *c)
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
    // Such lengths would not be cut.
    desc.num_splits = app.algo == CLATTN_ALGO_SPLIT_KV ? 3 : 0;
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

cl_mem app_own_workspace(const clattn_plan *plan, clattn_attention_call *call)
{
    size_t bytes = 0;
    call->workspace = (clattn_buf){.kind = CLATTN_BUF_ABSENT};
    assert_int_equal(clattn_plan_workspace_bytes(plan, call, &bytes), CLATTN_OK);
    if (!bytes)
        return NULL;
    cl_mem mem = app_blank_buffer(CL_MEM_READ_WRITE, bytes);
    call->workspace = (clattn_buf){
        .kind = CLATTN_BUF_CL_MEM, .ptr = mem, .offset_bytes = GUARD_BYTES};
    return mem;
}

clattn_context *app_adopt(cl_command_queue queue)
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

int app_set_up(void **state)
{
    (void)state;
    watchdog(app.device->tag, 240); // seconds, also where others take most of the machine
    memset(&app.log, 0, sizeof app.log);
    app.plan = app_plan(&app.c);
    make_memory();
    return 0;
}

int app_tear_down(void **state)
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

// Oclgrind computes inside clFlush(), which then never returns while a user event is not set.
bool app_has_user_events(const struct test_device *device)
{
    return strcmp(device->info.platform, "Oclgrind") != 0;
}

void app_need_user_events(void)
{
    if (!app_has_user_events(app.device)) {
        printf("this simulator blocks in clFlush() until a user event is set\n");
        skip();
    }
}

bool app_open(struct test_device *device, int32_t algo, const struct attn_case *c)
{
    cl_int code;
    memset(&app, 0, sizeof app);
    app.device = device;
    app.algo = algo;
    app.id = clattn_context_cl_device(device->ctx);
    app.context = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    if (c)
        app.c = *c;
    if (code != CL_SUCCESS || (c && !attn_data_make(&app.c, &app.d))) {
        printf("%s: no context or no data (%d)\n", device->tag, (int)code);
        return false;
    }
    cl_int more;
    app.in_order = clCreateCommandQueue(app.context, app.id, 0, &code);
    app.other = clCreateCommandQueue(app.context, app.id, 0, &more);
    if (code != CL_SUCCESS || more != CL_SUCCESS) {
        printf("%s: no queues (%d, %d)\n", device->tag, (int)code, (int)more);
        return false;
    }
    app.out_of_order = clCreateCommandQueue(app.context, app.id,
                                            CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code != CL_SUCCESS) {
        printf("%s: no out-of-order queues\n", device->tag);
        app.out_of_order = NULL;
    }
    app.guest = app_adopt(NULL);
    return true;
}

void app_close(bool failed)
{
    if (!failed) // what a failed test left behind keeps the contexts
        clattn_context_destroy(&app.guest);
    clReleaseCommandQueue(app.in_order);
    clReleaseCommandQueue(app.other);
    if (app.out_of_order)
        clReleaseCommandQueue(app.out_of_order);
    clReleaseContext(app.context);
    attn_data_free(&app.d);
}
