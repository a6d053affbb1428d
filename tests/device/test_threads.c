// SPDX-License-Identifier: Apache-2.0
// Eight threads share one context: they make the same plans at once, so that programs are compiled
// for the first time by several, run shared plans and plans of their own, append to caches of their
// own, ask, log, and on OpenCL enqueue on queues of their own. Every result is right. A build with
// ThreadSanitizer says whether the library was careful or lucky.
//
//   CLATTN_TEST_ROUNDS  how often each thread does all of it; default 3
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/clattn.h"
#include "open_device.h"
#include "thread.h"
#if defined(CLA_HAVE_OPENCL)
#include "clattn/opencl.h"
#include "context_ocl.h"
#endif

enum {
    THREADS = 8,
    HEADS = 2,
    LEN = 20,
    DIM = 16,
    COUNT = HEADS * LEN * DIM,
    KINDS = 2, // without and with a causal mask
    CAPACITY = 8
};

static float q[COUNT], k[COUNT], v[COUNT], want[KINDS][COUNT];
static clattn_context *ctx;
static clattn_plan *shared[KINDS];
static pthread_barrier_t all_here;
static atomic_int bad, messages;
static int rounds = 3;
static bool may_enqueue;

static void record(void *user, clattn_log_level level, const char *message)
{
    (void)user;
    (void)level;
    atomic_fetch_add(&messages, message[0] != '\0');
}

// cmocka's assertions are for the main thread.
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            atomic_fetch_add(&bad, 1);                                                             \
        }                                                                                          \
    } while (0)

static void fill(void)
{
    unsigned state = 7;
    float *const arrays[] = {q, k, v};
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < COUNT; i++) {
            state = state * 1664525u + 1013904223u;
            arrays[a][i] = (float)(state >> 8) / 8388608.0f - 1.0f;
        }
}

static clattn_plan *new_plan(int kind, int32_t algo)
{
    clattn_plan *plan = NULL;
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = HEADS;
    d.dim_qk = DIM;
    d.features = kind ? CLATTN_FEATURE_CAUSAL : 0;
    d.algo = algo;
    CHECK(clattn_attention_plan_create(ctx, &d, &plan) == CLATTN_OK);
    return plan;
}

static clattn_attention_call call_on(clattn_buf o)
{
    clattn_attention_call c;
    clattn_attention_call_init(&c, sizeof c);
    c.batch = 1;
    c.len_q = c.len_kv = LEN;
    c.q.buf = clattn_host_buf(q, sizeof q);
    c.k.buf = clattn_host_buf(k, sizeof k);
    c.v.buf = clattn_host_buf(v, sizeof v);
    c.o.buf = o;
    return c;
}

static int right(const float *o, int kind)
{
    for (int i = 0; i < COUNT; i++)
        if (!(fabsf(o[i] - want[kind][i]) <= 1e-5f))
            return 0;
    return 1;
}

static void run_plan(const clattn_plan *plan, int kind)
{
    float o[COUNT];
    memset(o, 0xff, sizeof o);
    const clattn_attention_call c = call_on(clattn_host_buf(o, sizeof o));
    CHECK(clattn_attention_run(plan, &c) == CLATTN_OK);
    CHECK(right(o, kind));
}

static void run_short(int kind)
{
    float o[COUNT];
    memset(o, 0xff, sizeof o);
    CHECK(clattn_attention_f32(ctx, q, k, v, o, 1, HEADS, HEADS, LEN, LEN, DIM, kind) ==
          CLATTN_OK);
    CHECK(right(o, kind));
}

static void run_softmax(void)
{
    float y[LEN];
    double sum = 0.0;
    CHECK(clattn_softmax_f32(ctx, CLATTN_SOFTMAX_ONLINE, q, y, 1, LEN) == CLATTN_OK);
    for (int i = 0; i < LEN; i++)
        sum += (double)y[i];
    CHECK(fabs(sum - 1.0) < 1e-5);
}

static void ask(const clattn_plan *plan)
{
    clattn_plan_info info = {.struct_size = sizeof info};
    clattn_device_info device = {.struct_size = sizeof device};
    float o[COUNT];
    const clattn_attention_call c = call_on(clattn_host_buf(o, sizeof o));
    clattn_attention_call wrong = c;
    size_t bytes = 0;
    wrong.len_q = -1;
    CHECK(clattn_plan_get_info(plan, &info) == CLATTN_OK);
    for (int32_t n = 0; n < info.num_refusals; n++)
        CHECK(clattn_plan_get_refusal(plan, n) != NULL);
    CHECK(clattn_context_get_device_info(ctx, &device) == CLATTN_OK);
    CHECK(clattn_plan_workspace_bytes(plan, &c, &bytes) == CLATTN_OK);
    CHECK(clattn_attention_run(plan, &wrong) == CLATTN_ERR_INVALID_ARGUMENT);
    clattn_context_build_count(ctx);
}

// One row more in the cache, which then has the right rows.
static void append(clattn_buf *cache, int32_t len)
{
    float rows[HEADS * CAPACITY * DIM];
    clattn_append_call a;
    clattn_append_call_init(&a, sizeof a);
    a.batch = 1;
    a.heads = HEADS;
    a.len_new = 1;
    a.dim_k = DIM;
    a.capacity = CAPACITY;
    a.k_new.buf = clattn_host_buf(q + (size_t)len * HEADS * DIM, HEADS * DIM * sizeof(float));
    a.k_cache.buf = *cache;
    a.lens = clattn_host_buf(&len, sizeof len);
    CHECK(clattn_append_run(ctx, &a) == CLATTN_OK);
    CHECK(clattn_mem_read(ctx, cache, rows, sizeof rows) == CLATTN_OK);
    for (int h = 0; h < HEADS; h++)
        for (int32_t i = 0; i <= len; i++)
            CHECK(memcmp(rows + (h * CAPACITY + i) * DIM, q + (i * HEADS + h) * DIM,
                         DIM * sizeof(float)) == 0);
}

// ---- enqueued ----------------------------------------------------------------------------------

#if defined(CLA_HAVE_OPENCL)

static void enqueue(const clattn_plan *plan, int kind)
{
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_int code = CL_SUCCESS;
    cl_event done = NULL;
    clattn_buf mem[4] = {{.kind = CLATTN_BUF_ABSENT}};
    const float *const from[] = {q, k, v, v};
    float o[COUNT];
    cl_command_queue queue = cl->CreateCommandQueue(ctx->ocl->context, ctx->ocl->device, 0, &code);
    CHECK(code == CL_SUCCESS);
    for (int i = 0; i < 4; i++) {
        CHECK(clattn_mem_create(ctx, sizeof q, &mem[i]) == CLATTN_OK);
        CHECK(clattn_mem_write(ctx, &mem[i], from[i], sizeof q) == CLATTN_OK);
    }
    clattn_attention_call c = call_on(mem[3]);
    c.q.buf = mem[0];
    c.k.buf = mem[1];
    c.v.buf = mem[2];
    CHECK(clattn_attention_enqueue(plan, &c, queue, 0, NULL, &done) == CLATTN_OK);
    if (done) {
        CHECK(cl->WaitForEvents(1, &done) == CL_SUCCESS);
        cl->ReleaseEvent(done);
    }
    CHECK(clattn_mem_read(ctx, &mem[3], o, sizeof o) == CLATTN_OK);
    CHECK(right(o, kind));
    for (int i = 0; i < 4; i++)
        clattn_mem_destroy(ctx, &mem[i]);
    cl->ReleaseCommandQueue(queue);
}

#endif

// ---- threads -----------------------------------------------------------------------------------

static void one_round(const clattn_plan *own, int kind, int r)
{
    const int other = (kind + r) % KINDS;
    run_plan(shared[other], other);
    run_plan(own, kind);
    run_short(other);
    run_softmax();
    ask(shared[other]);
    clattn_plan *plan = new_plan(other, CLATTN_ALGO_AUTO);
    run_plan(plan, other);
    clattn_plan_destroy(&plan);
#if defined(CLA_HAVE_OPENCL)
    if (may_enqueue) {
        enqueue(shared[other], other);
        // The CPU path on mapped memory, by the context's worker.
        plan = new_plan(kind, CLATTN_ALGO_HOST);
        enqueue(plan, kind);
        clattn_plan_destroy(&plan);
    }
#endif
}

static void work(void *arg)
{
    const int id = *(const int *)arg, kind = id % KINDS;
    clattn_buf cache = {.kind = CLATTN_BUF_ABSENT};
    pthread_barrier_wait(&all_here);
    clattn_plan *own = new_plan(kind, CLATTN_ALGO_AUTO);
    if (id < KINDS)
        shared[kind] = own;
    pthread_barrier_wait(&all_here);
    CHECK(clattn_mem_create(ctx, HEADS * CAPACITY * DIM * sizeof(float), &cache) == CLATTN_OK);
    for (int r = 0; r < rounds; r++) {
        one_round(own, kind, r);
        append(&cache, r % CAPACITY);
    }
    pthread_barrier_wait(&all_here);
    clattn_mem_destroy(ctx, &cache);
    clattn_plan_destroy(&own);
}

static void test_threads(void **state)
{
    struct test_thread *threads[THREADS];
    int id[THREADS];
    (void)state;
    atomic_store(&bad, 0);
    atomic_store(&messages, 0);
    assert_int_equal(pthread_barrier_init(&all_here, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        id[i] = i;
        threads[i] = thread_start(work, &id[i]);
    }
    for (int i = 0; i < THREADS; i++)
        thread_join(threads[i]);
    pthread_barrier_destroy(&all_here);
    assert_int_equal(atomic_load(&bad), 0);
    assert_true(atomic_load(&messages) >= THREADS * rounds); // each refused call says why
}

static clattn_context *open_context(const char *selector)
{
    clattn_context *made = NULL;
    clattn_context_desc d;
    clattn_context_desc_init(&d, sizeof d);
    d.device = selector;
    d.threads = 2;
    d.log = record;
    d.log_level = CLATTN_LOG_DEBUG;
    return clattn_context_create(&d, &made) == CLATTN_OK ? made : NULL;
}

static void compute_wanted(void)
{
    clattn_attention_desc d;
    clattn_plan *plan = NULL;
    clattn_attention_desc_init(&d, sizeof d);
    ctx = open_context("cpu");
    for (int kind = 0; ctx && kind < KINDS; kind++) {
        plan = new_plan(kind, CLATTN_ALGO_REFERENCE);
        const clattn_attention_call c = call_on(clattn_host_buf(want[kind], sizeof want[kind]));
        CHECK(clattn_attention_run(plan, &c) == CLATTN_OK);
        clattn_plan_destroy(&plan);
    }
    clattn_context_destroy(&ctx);
}

static int run_on(const char *tag, const char *selector)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads)};
    ctx = open_context(selector);
    if (!ctx) {
        fprintf(stderr, "%s: no context\n", tag);
        return 1;
    }
    const int failed = cmocka_run_group_tests_name(tag, tests, NULL, NULL);
    clattn_context_destroy(&ctx);
    return failed;
}

static int run_opencl(void)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, ran = 0, failed = 0;
    if (!devices_open(devices, &count))
        return 1;
    for (int i = 0; i < count; i++) {
        const clattn_device_info *info = &devices[i].info;
        const bool takes_turns = (info->quirks & 8) != 0; // blocking calls only
        char selector[16];
        may_enqueue = takes_threads(info);
        if (!may_enqueue && !takes_turns)
            continue;
        snprintf(selector, sizeof selector, "%d", (int)info->index);
        failed += run_on(devices[i].tag, selector);
        ran++;
    }
    devices_close(devices, count);
    if (!ran)
        printf("no OpenCL device that takes several threads\n");
    return failed ? 1 : ran ? 0 : SKIP_STATUS;
}

int main(int argc, char **argv)
{
    const char *wanted_rounds = getenv("CLATTN_TEST_ROUNDS");
    setvbuf(stdout, NULL, _IOLBF, 0);
    watchdog("test_threads", 280);
    if (wanted_rounds && atoi(wanted_rounds) > 0)
        rounds = atoi(wanted_rounds);
    fill();
    compute_wanted();
    if (argc > 1 && strcmp(argv[1], "opencl") == 0)
        return run_opencl();
    return run_on("cpu", "cpu") || atomic_load(&bad);
}
