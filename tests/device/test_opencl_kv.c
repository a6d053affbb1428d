// SPDX-License-Identifier: Apache-2.0
// The operations around attention on an application's queues, buffers and events.
#include "application.h"
#include "kv_lib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thread.h"

enum { BATCH = 2, HEADS = 3, LEN = 4, DIM = 40, CAPACITY = 9, POSITIONS = 20 };
enum { ROWS = BATCH * HEADS * LEN };

// One of each; tensors are cl_mem of the application's context.
static struct {
    struct tens x, y, cosines, sines;       // rotary, in place in y or from x to y
    struct tens part, part_lse, o, lse;     // merge of y and a part
    struct tens cache, lens;                // append of y
    clattn_rotary_call rotary;
    clattn_merge_call merge;
    clattn_append_call append;
    clattn_tensor parts[2];
    clattn_buf parts_lse[2];
} kv;

#define EACH(does)                                                                                 \
    do {                                                                                           \
        struct tens *const all_[] = {&kv.x,        &kv.y, &kv.cosines, &kv.sines, &kv.part,        \
                                     &kv.part_lse, &kv.o, &kv.lse,     &kv.cache, &kv.lens};       \
        for (size_t n_ = 0; n_ < sizeof all_ / sizeof *all_; n_++)                                 \
            does(all_[n_]);                                                                        \
    } while (0)

static void make_calls(void)
{
    clattn_rotary_call_init(&kv.rotary, sizeof kv.rotary);
    kv.rotary.batch = BATCH;
    kv.rotary.heads = HEADS;
    kv.rotary.len = LEN;
    kv.rotary.dim = DIM;
    kv.rotary.x = kv.x.t;
    kv.rotary.y = kv.y.t;
    kv.rotary.rotary = (clattn_rotary){.dim = DIM, .positions = POSITIONS, .start = 5,
                                       .cos_table = kv.cosines.t.buf, .sin_table = kv.sines.t.buf};
    kv.parts[0] = kv.y.t;
    kv.parts[1] = kv.part.t;
    kv.parts_lse[0] = kv.parts_lse[1] = kv.part_lse.t.buf;
    clattn_merge_call_init(&kv.merge, sizeof kv.merge);
    kv.merge.num_parts = 2;
    kv.merge.batch = BATCH;
    kv.merge.heads = HEADS;
    kv.merge.len_q = LEN;
    kv.merge.dim_v = DIM;
    kv.merge.parts = kv.parts;
    kv.merge.parts_lse = kv.parts_lse;
    kv.merge.o = kv.o.t;
    kv.merge.lse = kv.lse.t.buf;
    clattn_append_call_init(&kv.append, sizeof kv.append);
    kv.append.batch = BATCH;
    kv.append.heads = HEADS;
    kv.append.len_new = LEN;
    kv.append.dim_k = DIM;
    kv.append.capacity = CAPACITY;
    kv.append.k_new = kv.y.t;
    kv.append.k_cache = kv.cache.t;
    kv.append.lens = kv.lens.t.buf;
    kv.rotary.flags = kv.merge.flags = kv.append.flags = CLATTN_NO_FALLBACK;
}

static int set_up(void **state)
{
    float c[POSITIONS * DIM / 2], s[POSITIONS * DIM / 2];
    (void)state;
    watchdog(app.device->tag, 240);
    memset(&app.log, 0, sizeof app.log);
    memset(&kd, 0, sizeof kd);
    kd.ctx = app.guest;
    kd.opencl = true;
    struct tens *const rows[] = {&kv.x, &kv.y, &kv.part, &kv.o};
    for (int n = 0; n < 4; n++)
        tens_make(rows[n], true, CLATTN_DTYPE_F32, BATCH, HEADS, LEN, DIM, KV_BHSD);
    vec_make(&kv.cosines, true, CLATTN_DTYPE_F32, POSITIONS * DIM / 2);
    vec_make(&kv.sines, true, CLATTN_DTYPE_F32, POSITIONS * DIM / 2);
    vec_make(&kv.part_lse, true, CLATTN_DTYPE_F32, ROWS);
    vec_make(&kv.lse, true, CLATTN_DTYPE_F32, ROWS);
    vec_make(&kv.lens, true, KV_I32, BATCH);
    tens_make(&kv.cache, true, CLATTN_DTYPE_F32, BATCH, HEADS, CAPACITY, DIM, KV_BHSD);
    assert_int_equal(clattn_rotary_tables(POSITIONS, DIM, 0.0, c, s), CLATTN_OK);
    for (int n = 0; n < POSITIONS * DIM / 2; n++) {
        vec_set(&kv.cosines, n, (double)c[n]);
        vec_set(&kv.sines, n, (double)s[n]);
    }
    tens_fill(&kv.part, 2, 1.0);
    tens_fill(&kv.part_lse, 3, 1.0);
    vec_set(&kv.lens, 0, 5);
    vec_set(&kv.lens, 1, 1);
    EACH(tens_push); // x is NaN yet
    make_calls();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    EACH(tens_free);
    watchdog("", 0);
    return 0;
}

static double turned(int b, int h, int i, int d)
{
    const int n = d / 2;
    const double a = (5 + i) * pow(10000.0, -2.0 * n / DIM);
    const double x = tens_get(&kv.x, b, h, i, 2 * n), y = tens_get(&kv.x, b, h, i, 2 * n + 1);
    return d % 2 ? x * sin(a) + y * cos(a) : x * cos(a) - y * sin(a);
}

// The chain: x is turned into y, which is merged with a part of the same LSE and appended.
static void check_chain(void)
{
    tens_pull(&kv.y, "y", true);
    tens_pull(&kv.o, "o", true);
    tens_pull(&kv.lse, "lse", true);
    tens_pull(&kv.cache, "cache", true);
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < LEN; i++)
                for (int d = 0; d < DIM; d++) {
                    const double y = turned(b, h, i, d);
                    kv_check("y", d, tens_get(&kv.y, b, h, i, d), y, 4e-6);
                    kv_check("o", d, tens_get(&kv.o, b, h, i, d),
                             (y + tens_get(&kv.part, b, h, i, d)) / 2.0, 4e-6);
                    kv_check("cache", d, tens_get(&kv.cache, b, h, (b ? 1 : 5) + i, d), y, 4e-6);
                }
    for (int r = 0; r < ROWS; r++)
        kv_check("lse", r, vec_get(&kv.lse, r), vec_get(&kv.part_lse, r) + log(2.0), 1e-6);
}

#define ENQUEUED(call)                                                                             \
    do {                                                                                           \
        const clattn_status st_ = (call);                                                          \
        if (st_ != CLATTN_OK)                                                                      \
            fail_msg("%s: %s: %s", #call, clattn_status_string(st_), app.log.text);                \
    } while (0)

static void bring_x(void)
{
    tens_fill(&kv.x, 1, 2.0);
    tens_push(&kv.x);
    clFinish(app.in_order);
}

// On an in-order queue nothing has to be waited for.
static void test_in_order(void **state)
{
    (void)state;
    bring_x();
    ENQUEUED(clattn_rotary_enqueue(app.guest, &kv.rotary, app.in_order, 0, NULL, NULL));
    ENQUEUED(clattn_merge_enqueue(app.guest, &kv.merge, app.in_order, 0, NULL, NULL));
    ENQUEUED(clattn_append_enqueue(app.guest, &kv.append, app.in_order, 0, NULL, NULL));
    CL_OK(clFinish(app.in_order));
    check_chain();
}

// Behind a user event that is set when all are queued: they wait, the calls do not.
static void gated(cl_command_queue queue)
{
    app_need_user_events();
    cl_event gate = app_user_event(), first = NULL, last[2] = {NULL, NULL};
    ENQUEUED(clattn_rotary_enqueue(app.guest, &kv.rotary, queue, 1, &gate, &first));
    ENQUEUED(clattn_merge_enqueue(app.guest, &kv.merge, queue, 1, &first, &last[0]));
    ENQUEUED(clattn_append_enqueue(app.guest, &kv.append, queue, 1, &first, &last[1]));
    CL_OK(clFlush(queue));
    sleep_ms(50);
    for (int n = 0; n < 2; n++)
        assert_true(app_status_of(last[n]) > CL_COMPLETE);
    bring_x(); // x was NaN until now, so work that had begun would show
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(2, last));
    for (int n = 0; n < 2; n++) {
        assert_int_equal(app_status_of(last[n]), CL_COMPLETE);
        CL_OK(clReleaseEvent(last[n]));
    }
    check_chain();
    CL_OK(clReleaseEvent(first));
    CL_OK(clReleaseEvent(gate));
}

static void test_gate_in_order(void **state)
{
    (void)state;
    gated(app.other);
}

static void test_gate_out_of_order(void **state)
{
    (void)state;
    if (!app.out_of_order)
        skip();
    gated(app.out_of_order);
}

// Work of nothing has an event, too, which waits like any other.
static void test_nothing_to_do(void **state)
{
    (void)state;
    app_need_user_events();
    cl_event gate = app_user_event(), done[3] = {NULL, NULL, NULL};
    kv.rotary.len = kv.merge.batch = kv.append.len_new = 0;
    ENQUEUED(clattn_rotary_enqueue(app.guest, &kv.rotary, app.in_order, 1, &gate, &done[0]));
    ENQUEUED(clattn_merge_enqueue(app.guest, &kv.merge, app.in_order, 1, &gate, &done[1]));
    ENQUEUED(clattn_append_enqueue(app.guest, &kv.append, app.in_order, 1, &gate, &done[2]));
    CL_OK(clFlush(app.in_order));
    for (int n = 0; n < 3; n++) {
        assert_non_null(done[n]);
        assert_true(app_status_of(done[n]) > CL_COMPLETE);
    }
    CL_OK(clSetUserEventStatus(gate, CL_COMPLETE));
    CL_OK(clWaitForEvents(3, done));
    tens_pull(&kv.y, "y", false);
    tens_pull(&kv.o, "o", false);
    tens_pull(&kv.cache, "cache", false);
    for (int n = 0; n < 3; n++)
        CL_OK(clReleaseEvent(done[n]));
    CL_OK(clReleaseEvent(gate));
}

// What a blocking call refuses is refused here, and host memory, and foreign queues.
static void refused(int op, cl_command_queue queue, cl_uint num_wait, clattn_status want,
                    const char *says)
{
    cl_event done = NULL;
    memset(&app.log, 0, sizeof app.log);
    const clattn_status st =
        op == 0   ? clattn_rotary_enqueue(app.guest, &kv.rotary, queue, num_wait, NULL, &done)
        : op == 1 ? clattn_merge_enqueue(app.guest, &kv.merge, queue, num_wait, NULL, &done)
                  : clattn_append_enqueue(app.guest, &kv.append, queue, num_wait, NULL, &done);
    if (st != want || app.log.errors != 1 || !strstr(app.log.text, says))
        fail_msg("operation %d: %s, expected %s and \"%s\": %s", op, clattn_status_string(st),
                 clattn_status_string(want), says, app.log.text);
    assert_null(done);
}

static void test_refusals(void **state)
{
    cl_int code;
    (void)state;
    cl_context other = clCreateContext(NULL, 1, &app.id, NULL, NULL, &code);
    CL_OK(code);
    cl_command_queue foreign = clCreateCommandQueue(other, app.id, 0, &code);
    CL_OK(code);
    for (int op = 0; op < 3; op++) {
        refused(op, foreign, 0, CLATTN_ERR_WRONG_CONTEXT, "queue");
        refused(op, NULL, 0, CLATTN_ERR_INVALID_ARGUMENT, "queue");
        refused(op, app.in_order, 1, CLATTN_ERR_INVALID_ARGUMENT, "num_wait");
    }
    kv.rotary.rotary.cos_table = kv.part_lse.t.buf;
    refused(0, app.in_order, 0, CLATTN_ERR_BUFFER_TOO_SMALL, "rotary.cos_table");
    kv.rotary.rotary.cos_table = clattn_host_buf(kv.cosines.now, 0);
    refused(0, app.in_order, 0, CLATTN_ERR_BUFFER_MISSING, "rotary.cos_table");
    kv.merge.o = kv.part.t;
    kv.merge.o.buf.offset_bytes -= 8;
    refused(1, app.in_order, 0, CLATTN_ERR_OVERLAP, "o (bytes");
    kv.append.lens = clattn_host_buf(kv.lens.now, 0);
    kv.append.lens.offset_bytes = 256;
    refused(2, app.in_order, 0, CLATTN_ERR_BUFFER_MISSING, "lens.kind is 1");
    kv.append.capacity = 8;
    refused(2, app.in_order, 0, CLATTN_ERR_SHAPE, "sequence 0 has 5 rows and 4 new ones");
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    CL_OK(clFinish(app.in_order));
    tens_pull(&kv.y, "y", false);
    tens_pull(&kv.o, "o", false);
    tens_pull(&kv.cache, "cache", false);
    make_calls();
    test_in_order(state);
}

// A context whose kernels can't be built: the CPU path takes over, or it is refused.
static void test_fallback(void **state)
{
    (void)state;
    char folder[] = "kv_broken_XXXXXX", path[64];
    static const char *const files[] = {"rotary.cl", "merge_parts.cl", "append.cl"};
    clattn_context_desc desc;
    clattn_context *ctx = NULL;
    app_need_user_events(); // the CPU path behind a queue stands on them
    assert_non_null(mkdtemp(folder));
    for (int n = 0; n < 3; n++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[n]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("no kernel\n", f);
        fclose(f);
    }
    clattn_context_desc_init(&desc, sizeof desc);
    desc.kernel_dir = folder;
    desc.log = log_capture;
    desc.log_user = &app.log;
    assert_int_equal(clattn_context_create_opencl(&desc, app.context, app.id, NULL, &ctx),
                     CLATTN_OK);
    bring_x();
    assert_int_equal(clattn_rotary_run(ctx, &kv.rotary), CLATTN_ERR_BUILD);
    assert_int_equal(clattn_merge_enqueue(ctx, &kv.merge, app.in_order, 0, NULL, NULL),
                     CLATTN_ERR_BUILD);
    tens_pull(&kv.y, "y", false);
    tens_pull(&kv.o, "o", false);
    kv.rotary.flags = kv.merge.flags = kv.append.flags = 0;
    memset(&app.log, 0, sizeof app.log);
    ENQUEUED(clattn_rotary_run(ctx, &kv.rotary));
    assert_non_null(strstr(app.log.text, "rotary: the CPU path computes this"));
    cl_event done[2] = {NULL, NULL};
    ENQUEUED(clattn_merge_enqueue(ctx, &kv.merge, app.in_order, 0, NULL, &done[0]));
    ENQUEUED(clattn_append_enqueue(ctx, &kv.append, app.in_order, 1, &done[0], &done[1]));
    CL_OK(clWaitForEvents(2, done));
    CL_OK(clReleaseEvent(done[0]));
    CL_OK(clReleaseEvent(done[1]));
    check_chain();
    // What failed twice is not compiled a third time, and the log does not fill with it.
    ENQUEUED(clattn_rotary_run(ctx, &kv.rotary));
    const uint64_t builds = clattn_context_build_count(ctx);
    memset(&app.log, 0, sizeof app.log);
    ENQUEUED(clattn_rotary_run(ctx, &kv.rotary));
    assert_int_equal(clattn_context_build_count(ctx), builds);
    assert_string_equal(app.log.text, "");
    kv.rotary.flags = CLATTN_NO_FALLBACK;
    assert_int_equal(clattn_rotary_run(ctx, &kv.rotary), CLATTN_ERR_BUILD);
    assert_int_equal(app.log.errors, 1);
    assert_non_null(strstr(app.log.text, "rotary.cl did not compile before"));
    clattn_context_destroy(&ctx);
    for (int n = 0; n < 3; n++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[n]);
        remove(path);
    }
    remove(folder);
}

// What clattn_mem_write() has written is there for every queue, also behind the start of a buffer.
static void test_write_then_other_queue(void **state)
{
    enum { ROUNDS = 400, MOST = 200000, OFFSET = 32 };
    (void)state;
    unsigned char *bytes = malloc(MOST), *got = malloc(MOST);
    assert_true(bytes && got);
    for (int n = 0; n < ROUNDS; n++) {
        const size_t size = 1000 + (size_t)n * 7919 % (MOST - 1000);
        cl_mem mem = app_blank_buffer(CL_MEM_READ_WRITE, size);
        const clattn_buf buf = {.kind = CLATTN_BUF_CL_MEM, .ptr = mem, .offset_bytes = OFFSET};
        memset(bytes, 1 + n % 250, size);
        assert_int_equal(clattn_mem_write(app.guest, &buf, bytes, size), CLATTN_OK);
        // A kernel or a map sees memory as it is; a read would be queued behind the write.
        cl_int code;
        void *seen = clEnqueueMapBuffer(app.other, mem, CL_TRUE, CL_MAP_READ, OFFSET, size, 0,
                                        NULL, NULL, &code);
        CL_OK(code);
        memcpy(got, seen, size);
        CL_OK(clEnqueueUnmapMemObject(app.other, mem, seen, 0, NULL, NULL));
        CL_OK(clFinish(app.other));
        CL_OK(clReleaseMemObject(mem));
        assert_memory_equal(got, bytes, size);
    }
    free(bytes);
    free(got);
}

static int run_on(struct test_device *device)
{
    static char name[128];
#define TEST(text, function) {text, function, set_up, tear_down, NULL}
    static const struct CMUnitTest tests[] = {
        TEST("in-order queue needs no waiting", test_in_order),
        TEST("user event set later, in-order", test_gate_in_order),
        TEST("user event set later, out-of-order", test_gate_out_of_order),
        TEST("work of nothing", test_nothing_to_do),
        TEST("refusals", test_refusals),
        TEST("kernels that don't build", test_fallback),
        {"a write, then another queue", test_write_then_other_queue, NULL, NULL, NULL},
    };
    if (!app_open(device, CLATTN_ALGO_AUTO, NULL))
        return 1;
    snprintf(name, sizeof name, "%s, operations around attention", device->tag);
    const int failed = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    app_close(failed != 0);
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
    for (int n = 0; n < count; n++)
        failed += run_on(&devices[n]);
    if (failed == 0)
        devices_close(devices, count);
    return failed ? 1 : 0;
}
