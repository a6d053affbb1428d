// SPDX-License-Identifier: Apache-2.0
// A long life: thousands of calls, hundreds of plans and some contexts leave the process with the
// memory and the OpenCL objects that it had. On the CPU path the heap in use has not grown by one
// smallest piece for every second call, where the C library tells it; with a driver in the process
// the resident memory is looked at, since drivers keep what they like.
//
//   CLATTN_TEST_CALLS  calls of each kind; default 10000, of which drivers get the seconds below
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <unistd.h>

#if defined(__GLIBC__)
#include <malloc.h>
#if __GLIBC__ > 2 || __GLIBC_MINOR__ >= 33
#define HAVE_MALLINFO2 1
#endif
#endif

#include "clattn/clattn.h"
#include "open_device.h"
#include "thread.h"
#if defined(HAVE_SPY)
#include "clattn/opencl.h"
#include "spy.h"
#endif

enum {
    HEADS = 2,
    LEN = 8,
    DIM = 16,
    COUNT = HEADS * LEN * DIM,
    CALLS = 10000,
    WARM = 8,         // a WARM-th of the calls, and WARM_LEAST, is made before anything is measured
    WARM_LEAST = 20,
    PLANS = 400,
    CONTEXTS = 100,
    CALL_SECONDS = 2, // of a driver
    SETTLE_SECONDS = 10,
    GROWTH_KIB = 1024 // of resident memory, driver included: 100 bytes a call
};

static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];
static clattn_context *ctx;
static const struct test_device *on; // NULL: the CPU path

static long resident_kib(void)
{
    long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%ld %ld", &all, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static size_t heap_bytes(void)
{
#if defined(HAVE_MALLINFO2)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

// Resident memory is then what is in use, and not what was once.
static void trim_heap(void)
{
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long objects(void)
{
    long sum = 0;
#if defined(HAVE_SPY)
    for (int i = 0; i < SPY_OBJECT_COUNT; i++)
        sum += labs(atomic_load(&spy_control()->objects[i]));
#endif
    return sum;
}

static clattn_context *open_context(void)
{
    clattn_context *made = NULL;
    clattn_context_desc d;
    char selector[16] = "cpu";
    clattn_context_desc_init(&d, sizeof d);
    if (on)
        snprintf(selector, sizeof selector, "%d", (int)on->info.index);
    d.device = selector;
    d.flags = CLATTN_CONTEXT_NO_SELF_TEST; // which would be compiled for each context
    assert_int_equal(clattn_context_create(&d, &made), CLATTN_OK);
    return made;
}

static clattn_plan *new_plan(clattn_context *of, int32_t algo)
{
    clattn_plan *plan = NULL;
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = HEADS;
    d.dim_qk = DIM;
    d.algo = algo;
    assert_int_equal(clattn_attention_plan_create(of, &d, &plan), CLATTN_OK);
    return plan;
}

// ---- what is repeated --------------------------------------------------------------------------

static clattn_plan *plan;
static clattn_attention_call call;

static void run(void)
{
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
}

static void run_short(void)
{
    assert_int_equal(clattn_attention_f32(ctx, q, k, v, o, 1, HEADS, HEADS, LEN, LEN, DIM, 0),
                     CLATTN_OK);
}

static void be_refused(void)
{
    clattn_attention_call wrong = call;
    wrong.len_q = -1;
    assert_int_equal(clattn_attention_run(plan, &wrong), CLATTN_ERR_INVALID_ARGUMENT);
}

#if defined(HAVE_SPY)
static cl_command_queue queue;
static clattn_attention_call queued;

static void enqueue(void)
{
    cl_event done = NULL;
    assert_int_equal(clattn_attention_enqueue(plan, &queued, queue, 0, NULL, &done), CLATTN_OK);
    assert_int_equal(clWaitForEvents(1, &done), CL_SUCCESS);
    clReleaseEvent(done);
    // It was handed on: what the application releases does not count.
    atomic_fetch_sub(&spy_control()->objects[SPY_EVENT], 1);
}
#endif

static void make_plan(void)
{
    clattn_plan *own = new_plan(ctx, CLATTN_ALGO_AUTO);
    clattn_plan_destroy(&own);
}

static void make_context(void)
{
    clattn_context *own = open_context();
    clattn_plan *of = new_plan(own, CLATTN_ALGO_HOST);
    clattn_plan_destroy(&of);
    clattn_context_destroy(&own);
}

// ---- the comparison ----------------------------------------------------------------------------

static void repeat(const char *what, void (*one)(void), long most)
{
    const long warm = most / WARM + WARM_LEAST;
    double until = now() + CALL_SECONDS;
    for (long n = 0; n < warm && (n < WARM_LEAST || !on || now() < until); n++)
        one();
    trim_heap();
    const long resident = resident_kib(), held = objects();
    const size_t heap = heap_bytes();
    until = now() + CALL_SECONDS;
    long n = 0;
    while (n < most && (!on || getenv("CLATTN_TEST_CALLS") || now() < until)) {
        one();
        n++;
    }
    trim_heap();
    long growth = resident_kib() - resident;
    // A driver's own threads free the last queues and contexts when they get to it.
    const double settled = now() + SETTLE_SECONDS;
#if defined(__SANITIZE_ADDRESS__)
    growth = 0; // that sanitizer keeps what was freed for a while
#endif
    while (on && growth > GROWTH_KIB && now() < settled) {
        nanosleep(&(struct timespec){0, 50000000}, NULL);
        trim_heap();
        growth = resident_kib() - resident;
    }
    printf("%s: %ld times, %ld KiB resident, grown by %ld KiB, heap by %ld bytes\n", what, n,
           resident, growth, (long)(heap_bytes() - heap));
    assert_true(n > 0);
    assert_int_equal(objects(), held);
    assert_true(growth <= GROWTH_KIB);
    if (!on) // no piece is smaller than 32 bytes
        assert_true(heap_bytes() < heap + 16 * (size_t)n);
}

static long calls(void)
{
    const char *wanted = getenv("CLATTN_TEST_CALLS");
    return wanted && atol(wanted) > 0 ? atol(wanted) : CALLS;
}

static void test_steady(void **state)
{
    (void)state;
    const long before = objects();
    ctx = open_context();
    plan = new_plan(ctx, CLATTN_ALGO_AUTO);
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;
    call.q.buf = clattn_host_buf(q, sizeof q);
    call.k.buf = clattn_host_buf(k, sizeof k);
    call.v.buf = clattn_host_buf(v, sizeof v);
    call.o.buf = clattn_host_buf(o, sizeof o);
    repeat("run", run, calls());
    repeat("short calls", run_short, calls());
    repeat("refused", be_refused, calls());
    repeat("plans", make_plan, PLANS);
    repeat("contexts", make_context, CONTEXTS);
#if defined(HAVE_SPY)
    if (on) {
        clattn_buf mem[4];
        clattn_tensor *const tensors[] = {&queued.q, &queued.k, &queued.v, &queued.o};
        queued = call;
        queue = clCreateCommandQueue(clattn_context_cl_context(ctx), clattn_context_cl_device(ctx),
                                     0, NULL);
        assert_non_null(queue);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(clattn_mem_create(ctx, sizeof q, &mem[i]), CLATTN_OK);
            assert_int_equal(clattn_mem_write(ctx, &mem[i], q, sizeof q), CLATTN_OK);
            tensors[i]->buf = mem[i];
        }
        repeat("enqueued", enqueue, calls());
        for (int i = 0; i < 4; i++)
            clattn_mem_destroy(ctx, &mem[i]);
        clReleaseCommandQueue(queue);
    }
#endif
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    assert_int_equal(objects(), before);
}

static int run_opencl(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steady)};
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    if (!devices_open(devices, &count))
        return 1;
    for (int i = 0; i < count; i++) {
        on = &devices[i];
        failed += cmocka_run_group_tests_name(on->tag, tests, NULL, NULL);
    }
    devices_close(devices, count);
    if (!count)
        printf("no OpenCL device\n");
    return failed ? 1 : count ? 0 : SKIP_STATUS;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steady)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < COUNT; i++)
        q[i] = k[i] = v[i] = (float)(i % 7) / 7.0f;
    if (argc > 1 && strcmp(argv[1], "opencl") == 0)
        return run_opencl();
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL) != 0;
}
