// SPDX-License-Identifier: Apache-2.0
// A process that has used clattn is forked, as Python's multiprocessing does it. The child computes
// on the CPU path, with the contexts it has from its parent and with new ones, and gets the bits
// that its parent got. What is of OpenCL is refused there, and dropped without a driver's call.
#define _POSIX_C_SOURCE 200809L
#define CLATTN_EXPERIMENTAL
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clattn/clattn.h"
#include "open_device.h"
#include "thread.h"
#if defined(CLA_HAVE_OPENCL)
#include "clattn/opencl.h"
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_CLANG_SANITIZER 1
#endif
#endif

enum {
    HEADS = 1,
    LEN_Q = 3,
    LEN_KV = 6000, // few rows of many keys, whose sums are split between threads
    DIM = 32,
    COUNT_Q = HEADS * LEN_Q * DIM,
    COUNT_KV = HEADS * LEN_KV * DIM,
    THREADS = 4,
    ROUNDS = 20,
    CHILD_SECONDS = 60
};

static float q[COUNT_Q], k[COUNT_KV], v[COUNT_KV], want[COUNT_Q], got[COUNT_Q];
static float want_row[COUNT_KV], row[COUNT_KV]; // softmax of one long row
#if defined(CLA_HAVE_OPENCL)
static struct test_device *on; // NULL: no OpenCL
#endif

static void fill(void)
{
    unsigned state = 1;
    float *const arrays[] = {q, k, v};
    const int counts[] = {COUNT_Q, COUNT_KV, COUNT_KV};
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < counts[a]; i++) {
            state = state * 1664525u + 1013904223u;
            arrays[a][i] = (float)(state >> 8) / 8388608.0f - 1.0f;
        }
}

// A line that says which check failed, and the child's exit status.
static int failed(const char *what, int line)
{
    fprintf(stderr, "child: line %d: %s\n", line, what);
    return 1;
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return failed(#condition, __LINE__);                                                   \
    } while (0)

// The exit status of `body` in a child, 0 = good. One that hangs is ended by a signal.
static int in_child(int (*body)(void))
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        _exit(body());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static clattn_context *new_context(uint32_t flags, const char *device, struct log_capture *log)
{
    clattn_context *ctx = NULL;
    clattn_context_desc d;
    clattn_context_desc_init(&d, sizeof d);
    d.device = device;
    d.flags = flags;
    d.threads = THREADS;
    d.log = log ? log_capture : NULL;
    d.log_user = log;
    return clattn_context_create(&d, &ctx) == CLATTN_OK ? ctx : NULL;
}

static clattn_status run_short(clattn_context *ctx)
{
    memset(got, 0xff, sizeof got);
    return clattn_attention_f32(ctx, q, k, v, got, 1, HEADS, HEADS, LEN_Q, LEN_KV, DIM, 0);
}

static clattn_plan *new_plan(clattn_context *ctx)
{
    clattn_plan *plan = NULL;
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = HEADS;
    d.dim_qk = DIM;
    return clattn_attention_plan_create(ctx, &d, &plan) == CLATTN_OK ? plan : NULL;
}

static clattn_attention_call host_call(void)
{
    clattn_attention_call c;
    clattn_attention_call_init(&c, sizeof c);
    c.batch = 1;
    c.len_q = LEN_Q;
    c.len_kv = LEN_KV;
    c.q.buf = clattn_host_buf(q, sizeof q);
    c.k.buf = clattn_host_buf(k, sizeof k);
    c.v.buf = clattn_host_buf(v, sizeof v);
    c.o.buf = clattn_host_buf(got, sizeof got);
    return c;
}

static clattn_status run_plan(const clattn_plan *plan)
{
    const clattn_attention_call c = host_call();
    memset(got, 0xff, sizeof got);
    return clattn_attention_run(plan, &c);
}

static int same(void)
{
    return memcmp(got, want, sizeof want) == 0;
}

static int same_row(clattn_context *ctx)
{
    memset(row, 0xff, sizeof row);
    return clattn_softmax_f32(ctx, CLATTN_SOFTMAX_ONLINE, k, row, 1, COUNT_KV) == CLATTN_OK &&
           memcmp(row, want_row, sizeof row) == 0;
}

// ---- the CPU path ------------------------------------------------------------------------------

static clattn_context *inherited;
static clattn_plan *inherited_plan;

// With what the parent made, and with a context of its own.
static int cpu_child(void)
{
    CHECK(run_plan(inherited_plan) == CLATTN_OK && same());
    CHECK(run_short(inherited) == CLATTN_OK && same());
    CHECK(same_row(inherited));
    clattn_plan *plan = new_plan(inherited);
    CHECK(plan && run_plan(plan) == CLATTN_OK && same());
    clattn_plan_destroy(&plan);
    clattn_plan_destroy(&inherited_plan);
    clattn_context_destroy(&inherited);

    clattn_context *own = new_context(CLATTN_CONTEXT_NO_OPENCL, NULL, NULL);
    CHECK(own && run_short(own) == CLATTN_OK && same() && same_row(own));
    clattn_context_destroy(&own);
    return 0;
}

// A child of a child, which has computed itself.
static int cpu_grandchild(void)
{
    CHECK(run_short(inherited) == CLATTN_OK && same());
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_SECONDS);
        _exit(cpu_child());
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return cpu_child();
}

static int measure_child(void)
{
    double rate = 0.0;
    CHECK(run_short(inherited) == CLATTN_OK);
    CHECK(clattn_context_measure(inherited, CLATTN_MEASURE_FMA_F32_SHORT, 0, &rate) == CLATTN_OK);
    return 0;
}

static void open_cpu(void)
{
    inherited = new_context(CLATTN_CONTEXT_NO_OPENCL, NULL, NULL);
    assert_non_null(inherited);
    inherited_plan = new_plan(inherited);
    assert_non_null(inherited_plan);
    assert_int_equal(run_plan(inherited_plan), CLATTN_OK);
    memcpy(want, got, sizeof want);
    assert_int_equal(
        clattn_softmax_f32(inherited, CLATTN_SOFTMAX_ONLINE, k, want_row, 1, COUNT_KV), CLATTN_OK);
}

static void close_cpu(void)
{
    clattn_plan_destroy(&inherited_plan);
    clattn_context_destroy(&inherited);
}

// The first parallel region is that of a measurement: it leaves threads behind, too.
static void test_measured(void **state)
{
    double rate = 0.0;
    (void)state;
    inherited = new_context(CLATTN_CONTEXT_NO_OPENCL, NULL, NULL);
    assert_non_null(inherited);
    assert_int_equal(
        clattn_context_measure(inherited, CLATTN_MEASURE_FMA_F32_SHORT, 0, &rate), CLATTN_OK);
    assert_int_equal(in_child(measure_child), 0);
    clattn_context_destroy(&inherited);
}

static void test_cpu(void **state)
{
    (void)state;
    open_cpu();
    assert_int_equal(in_child(cpu_child), 0);
    assert_int_equal(in_child(cpu_grandchild), 0);
    assert_int_equal(run_short(inherited), CLATTN_OK);
    assert_true(same());
    close_cpu();
}

static atomic_bool enough;

static void use_it(void *arg)
{
    float *o = malloc(sizeof want);
    (void)arg;
    while (!atomic_load(&enough)) {
        // Two kinds of call, so that the kept plan is exchanged again and again.
        clattn_attention_f32(inherited, q, k, v, o, 1, 1, 1, 1, 8, DIM, 0);
        clattn_attention_f32(inherited, q, k, v, o, 1, 1, 1, 1, 8, DIM, 1);
        clattn_context *other = new_context(CLATTN_CONTEXT_NO_OPENCL, NULL, NULL);
        clattn_context_destroy(&other);
    }
    free(o);
}

// Forked while another thread is inside the library, with whatever it holds there.
static void test_cpu_amid_calls(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(HAVE_CLANG_SANITIZER)
    skip(); // their own allocators do not outlive such a fork
#endif
    open_cpu();
    atomic_store(&enough, false);
    struct test_thread *threads[2];
    for (int i = 0; i < 2; i++)
        threads[i] = thread_start(use_it, NULL);
    int bad = 0;
    for (int i = 0; i < ROUNDS; i++)
        bad += in_child(cpu_child) != 0;
    atomic_store(&enough, true);
    for (int i = 0; i < 2; i++)
        thread_join(threads[i]);
    assert_int_equal(bad, 0);
    close_cpu();
}

// ---- OpenCL ------------------------------------------------------------------------------------

#if defined(CLA_HAVE_OPENCL)

static clattn_plan *device_plan;
static clattn_softmax_plan *device_softmax;
static clattn_buf device_mem;
static struct log_capture heard;

// Refused, with the reason.
static int refused(clattn_status st)
{
    const int said = strstr(heard.text, "forked") != NULL;
    heard.text[0] = '\0';
    return st == CLATTN_ERR_NO_OPENCL && said;
}

static int operations_are_refused(void)
{
    clattn_merge_call merge;
    clattn_rotary_call rotary;
    clattn_append_call append;
    clattn_softmax_call softmax;
    clattn_merge_call_init(&merge, sizeof merge);
    clattn_rotary_call_init(&rotary, sizeof rotary);
    clattn_append_call_init(&append, sizeof append);
    clattn_softmax_call_init(&softmax, sizeof softmax);
    CHECK(refused(clattn_merge_run(on->ctx, &merge)));
    CHECK(refused(clattn_rotary_run(on->ctx, &rotary)));
    CHECK(refused(clattn_append_run(on->ctx, &append)));
    CHECK(refused(clattn_softmax_run(device_softmax, &softmax)));
    CHECK(refused(clattn_merge_enqueue(on->ctx, &merge, NULL, 0, NULL, NULL)));
    CHECK(refused(clattn_rotary_enqueue(on->ctx, &rotary, NULL, 0, NULL, NULL)));
    CHECK(refused(clattn_append_enqueue(on->ctx, &append, NULL, 0, NULL, NULL)));
    CHECK(refused(clattn_softmax_enqueue(device_softmax, &softmax, NULL, 0, NULL, NULL)));
    CHECK(refused(clattn_softmax_f32(on->ctx, CLATTN_SOFTMAX_ONLINE, q, got, 1, 8)));
    return 0;
}

static int calls_are_refused(void)
{
    const clattn_attention_call c = host_call();
    clattn_plan *plan = NULL;
    clattn_softmax_plan *softmax = NULL;
    clattn_buf mem;
    clattn_attention_desc d;
    clattn_softmax_desc s;
    clattn_device_info info = {.struct_size = sizeof info};
    size_t bytes = 0;
    clattn_attention_desc_init(&d, sizeof d);
    clattn_softmax_desc_init(&s, sizeof s);
    d.heads_q = HEADS;
    d.dim_qk = DIM;
    CHECK(refused(run_plan(device_plan)));
    CHECK(refused(run_short(on->ctx)));
    CHECK(refused(clattn_attention_enqueue(device_plan, &c, NULL, 0, NULL, NULL)));
    CHECK(refused(clattn_plan_workspace_bytes(device_plan, &c, &bytes)));
    CHECK(refused(clattn_plan_warm_up(device_plan, 1, 8, 8)));
    CHECK(refused(clattn_attention_plan_create(on->ctx, &d, &plan)) && !plan);
    CHECK(refused(clattn_softmax_plan_create(on->ctx, &s, &softmax)) && !softmax);
    CHECK(refused(clattn_mem_create(on->ctx, 64, &mem)));
    CHECK(refused(clattn_mem_write(on->ctx, &device_mem, q, 64)));
    CHECK(refused(clattn_mem_read(on->ctx, &device_mem, got, 64)));
    // Facts are no driver's work.
    CHECK(clattn_context_get_device_info(on->ctx, &info) == CLATTN_OK);
    CHECK(info.type != CLATTN_DEVICE_BUILTIN_CPU);
    clattn_context_build_count(on->ctx);
    return operations_are_refused();
}

static int no_opencl_is_found(void)
{
    struct log_capture log = {.errors = 0};
    char index[16];
    int32_t count = 0;
    snprintf(index, sizeof index, "%d", (int)on->info.index);
    CHECK(!new_context(0, on->info.name, &log));
    CHECK(strstr(log.text, "forked"));
    CHECK(!new_context(0, "pthread-or-any-name", &log));
    CHECK(clattn_device_count(NULL, &count) == CLATTN_OK && count == 1);
    // Whoever asks for the best device gets the CPU path, with a warning.
    log = (struct log_capture){.errors = 0};
    clattn_context *best = new_context(0, NULL, &log);
    CHECK(best && log.errors == 0 && strstr(log.text, "forked"));
    CHECK(run_short(best) == CLATTN_OK && same());
    clattn_context_destroy(&best);
    CHECK(run_short(NULL) == CLATTN_OK);
    return 0;
}

static int opencl_child(void)
{
    if (calls_are_refused() || no_opencl_is_found())
        return 1;
    // Nothing of the driver's is touched: its threads are not here.
    clattn_mem_destroy(on->ctx, &device_mem);
    CHECK(device_mem.kind == CLATTN_BUF_ABSENT);
    clattn_softmax_plan_destroy(&device_softmax);
    clattn_plan_destroy(&device_plan);
    clattn_context *ctx = on->ctx;
    clattn_context_destroy(&ctx);
    return cpu_child();
}

static void test_opencl(void **state)
{
    clattn_softmax_desc s;
    clattn_softmax_desc_init(&s, sizeof s);
    (void)state;
    open_cpu();
    memset(&heard, 0, sizeof heard);
    device_plan = new_plan(on->ctx);
    assert_non_null(device_plan);
    assert_int_equal(clattn_softmax_plan_create(on->ctx, &s, &device_softmax), CLATTN_OK);
    assert_int_equal(clattn_mem_create(on->ctx, 64, &device_mem), CLATTN_OK);
    assert_int_equal(clattn_mem_write(on->ctx, &device_mem, q, 64), CLATTN_OK);
    assert_int_equal(run_plan(device_plan), CLATTN_OK);
    float *first = malloc(sizeof got);
    assert_non_null(first);
    memcpy(first, got, sizeof got);

    on->capture = &heard;
    assert_int_equal(in_child(opencl_child), 0);
    on->capture = NULL;

    // The parent goes on as before.
    assert_int_equal(run_plan(device_plan), CLATTN_OK);
    assert_memory_equal(got, first, sizeof got);
    assert_int_equal(clattn_mem_read(on->ctx, &device_mem, got, 64), CLATTN_OK);
    assert_memory_equal(got, q, 64);
    free(first);
    clattn_mem_destroy(on->ctx, &device_mem);
    clattn_softmax_plan_destroy(&device_softmax);
    clattn_plan_destroy(&device_plan);
    close_cpu();
}

static int run_opencl(void)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, bad = 0;
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_opencl)};
    for (int i = 0; i < count; i++) {
        on = &devices[i];
        bad += cmocka_run_group_tests_name(on->tag, tests, NULL, NULL);
    }
    devices_close(devices, count);
    return bad != 0;
}

#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured), cmocka_unit_test(test_cpu),
                                       cmocka_unit_test(test_cpu_amid_calls)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    watchdog("test_fork", 280);
    fill();
    if (argc > 1 && strcmp(argv[1], "opencl") == 0) {
#if defined(CLA_HAVE_OPENCL)
        return run_opencl();
#else
        return SKIP_STATUS;
#endif
    }
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL) != 0;
}
