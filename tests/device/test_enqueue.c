// SPDX-License-Identifier: Apache-2.0
// What an enqueue does not do on its usual path: allocate, hold a lock while the driver works, or
// ask the driver twice about one buffer. Allocations and locks are counted where the library calls
// them, by the linker's --wrap; those of drivers are not seen. And that a plan whose programs have
// passed their trial with the same features in this context is not tried again.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "context_ocl.h"
#include "open_device.h"
#include "thread.h"

enum { BYTES = 1 << 14, MEMS = 16, THREADS = 2 };

static _Thread_local int allocations, locks, held, calls_under_lock;

// ---- what the linker puts in the place of the usual functions -----------------------------------

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
int __real_posix_memalign(void **at, size_t align, size_t size);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
int __wrap_posix_memalign(void **at, size_t align, size_t size);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *at, size_t size)
{
    allocations++;
    return __real_realloc(at, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    allocations++;
    return __real_aligned_alloc(align, size);
}

int __wrap_posix_memalign(void **at, size_t align, size_t size)
{
    allocations++;
    return __real_posix_memalign(at, align, size);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    held++;
    return __real_pthread_mutex_lock(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    held--;
    return __real_pthread_mutex_unlock(mutex);
}

// ---- the functions of the driver ----------------------------------------------------------------

static struct cla_cl real;
static pthread_barrier_t *meet; // of the threads that enqueue
static struct {
    void *of;
    cl_uint fact;
} asked[256];
static int num_asked, asked_twice, num_kernels, num_launches;

static void enter(void)
{
    calls_under_lock += held > 0;
}

static cl_int CL_API_CALL hook_arg(cl_kernel kernel, cl_uint slot, size_t size, const void *value)
{
    enter();
    return real.SetKernelArg(kernel, slot, size, value);
}

static cl_int CL_API_CALL hook_enqueue(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                       const size_t *offset, const size_t *global,
                                       const size_t *local, cl_uint num_wait, const cl_event *wait,
                                       cl_event *done)
{
    enter();
    if (meet)
        pthread_barrier_wait(meet);
    else
        num_launches++;
    return real.EnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, num_wait, wait,
                                     done);
}

static void ask(void *of, cl_uint fact)
{
    enter();
    if (meet)
        return;
    for (int i = 0; i < num_asked; i++)
        asked_twice += asked[i].of == of && asked[i].fact == fact;
    assert_true(num_asked < (int)(sizeof asked / sizeof asked[0]));
    asked[num_asked].of = of;
    asked[num_asked++].fact = fact;
}

static cl_int CL_API_CALL hook_mem(cl_mem mem, cl_mem_info fact, size_t size, void *to,
                                   size_t *used)
{
    ask(mem, fact);
    return real.GetMemObjectInfo(mem, fact, size, to, used);
}

static cl_int CL_API_CALL hook_queue(cl_command_queue queue, cl_command_queue_info fact,
                                     size_t size, void *to, size_t *used)
{
    ask(queue, fact);
    return real.GetCommandQueueInfo(queue, fact, size, to, used);
}

static cl_kernel CL_API_CALL hook_create_kernel(cl_program program, const char *name, cl_int *code)
{
    enter();
    num_kernels++;
    return real.CreateKernel(program, name, code);
}

static cl_int CL_API_CALL hook_release_event(cl_event event)
{
    enter();
    return real.ReleaseEvent(event);
}

static void hook(struct cla_cl *table)
{
    real = *table;
    table->SetKernelArg = hook_arg;
    table->EnqueueNDRangeKernel = hook_enqueue;
    table->GetMemObjectInfo = hook_mem;
    table->GetCommandQueueInfo = hook_queue;
    table->CreateKernel = hook_create_kernel;
    table->ReleaseEvent = hook_release_event;
}

// ---- problems -----------------------------------------------------------------------------------

struct problem {
    clattn_plan *plan;
    clattn_attention_call call;
    cl_command_queue queue;
    cl_mem mem[MEMS];
    int mems;
};

static struct test_device *on;

static clattn_buf buffer(struct problem *p)
{
    cl_int code = CL_SUCCESS;
    static const char zeros[BYTES];
    cl_mem mem = real.CreateBuffer(clattn_context_cl_context(on->ctx), CL_MEM_READ_WRITE, BYTES,
                                   NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    assert_int_equal(real.EnqueueWriteBuffer(p->queue, mem, CL_TRUE, 0, BYTES, zeros, 0, NULL,
                                             NULL), CL_SUCCESS);
    assert_true(p->mems < MEMS);
    p->mem[p->mems++] = mem;
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = mem};
}

static clattn_buf buffer_if(struct problem *p, uint32_t features, uint32_t bit)
{
    return features & bit ? buffer(p) : (clattn_buf){.kind = CLATTN_BUF_ABSENT};
}

static void open_problem(struct problem *p, int32_t algo, uint32_t features, int32_t splits,
                         cl_command_queue_properties props)
{
    clattn_attention_desc d;
    clattn_attention_call *c = &p->call;
    cl_int code = CL_SUCCESS;
    memset(p, 0, sizeof *p);
    p->queue = real.CreateCommandQueue(clattn_context_cl_context(on->ctx),
                                       clattn_context_cl_device(on->ctx), props, &code);
    if (code != CL_SUCCESS)
        skip(); // not every device has queues without an order
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = d.heads_kv = 1;
    d.dim_qk = 16;
    d.algo = algo;
    d.features = features;
    d.num_splits = splits;
    d.page_size = features & CLATTN_FEATURE_PAGED ? 16 : 0;
    assert_int_equal(clattn_attention_plan_create(on->ctx, &d, &p->plan), CLATTN_OK);
    clattn_attention_call_init(c, sizeof *c);
    c->batch = 1;
    c->len_q = 3;
    c->len_kv = 8;
    c->q.buf = buffer(p);
    c->k.buf = buffer(p);
    c->v.buf = buffer(p);
    c->o.buf = buffer(p);
    c->lse = buffer_if(p, features, CLATTN_FEATURE_LSE);
    c->mask.buf = buffer_if(p, features, CLATTN_FEATURE_MASK);
    c->bias.buf = buffer_if(p, features, CLATTN_FEATURE_BIAS);
    c->alibi = buffer_if(p, features, CLATTN_FEATURE_ALIBI);
    c->sinks = buffer_if(p, features, CLATTN_FEATURE_SINKS);
    c->kv_lens = buffer_if(p, features, CLATTN_FEATURE_KV_LENS);
    c->page_table = buffer_if(p, features, CLATTN_FEATURE_PAGED);
    c->max_pages = c->num_pages = features & CLATTN_FEATURE_PAGED ? 1 : 0;
    c->faults = buffer_if(p, features, CLATTN_FEATURE_PAGED);
    c->workspace = buffer_if(p, (uint32_t)splits, ~0u);
}

static void close_problem(struct problem *p)
{
    for (int i = 0; i < p->mems; i++)
        real.ReleaseMemObject(p->mem[i]);
    clattn_plan_destroy(&p->plan);
    real.ReleaseCommandQueue(p->queue);
}

// ---- one thread ---------------------------------------------------------------------------------

static void check(int32_t algo, uint32_t features, int32_t splits, int launches,
                  cl_command_queue_properties props)
{
    struct problem p;
    allocations = locks = 0;
    open_problem(&p, algo, features, splits, props);
    assert_true(allocations > 0 && locks > 0); // the counters count
    for (int with_events = 0; with_events < 2; with_events++) {
        cl_event before = NULL, done = NULL;
        if (with_events)
            assert_int_equal(real.EnqueueMarkerWithWaitList(p.queue, 0, NULL, &before),
                             CL_SUCCESS);
        allocations = locks = calls_under_lock = 0;
        num_asked = asked_twice = num_kernels = num_launches = 0;
        const clattn_status st = clattn_attention_enqueue(
            p.plan, &p.call, p.queue, with_events ? 1 : 0, with_events ? &before : NULL,
            with_events ? &done : NULL);
        const int made = allocations, taken = locks;
        assert_int_equal(real.Finish(p.queue), CL_SUCCESS);
        if (with_events) {
            real.ReleaseEvent(before);
            real.ReleaseEvent(done);
        }
        assert_int_equal(st, CLATTN_OK);
        assert_int_equal(num_launches, launches);
        assert_int_equal(made, 0);
        assert_int_equal(taken, 0);
        assert_int_equal(calls_under_lock, 0);
        assert_int_equal(num_kernels, 0);
        assert_true(num_asked > 0);
        assert_int_equal(asked_twice, 0);
    }
    close_problem(&p);
}

static void check_all(cl_command_queue_properties props)
{
    const uint32_t features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE | CLATTN_FEATURE_MASK |
                              CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_SINKS |
                              CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_PAGED;
    check(CLATTN_ALGO_FUSED, 0, 0, 1, props);
    check(CLATTN_ALGO_FUSED, features, 0, 1, props);
    check(CLATTN_ALGO_SPLIT_KV, CLATTN_FEATURE_LSE, 2, 2, props);
}

static void test_in_order(void **state)
{
    (void)state;
    check_all(0);
}

static void test_any_order(void **state)
{
    (void)state;
    check_all(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

// ---- trials -------------------------------------------------------------------------------------

static int launches_of_plan(const clattn_attention_desc *d)
{
    clattn_plan *plan = NULL;
    num_launches = 0;
    assert_int_equal(clattn_attention_plan_create(on->ctx, d, &plan), CLATTN_OK);
    clattn_plan_destroy(&plan);
    return num_launches;
}

static void test_plan_again(void **state)
{
    (void)state;
    static const int32_t algos[] = {CLATTN_ALGO_FUSED, CLATTN_ALGO_SPLIT_KV};
    for (int n = 0; n < 2; n++) {
        clattn_attention_desc d;
        clattn_attention_desc_init(&d, sizeof d);
        d.heads_q = 2;
        d.dim_qk = 12;
        d.algo = algos[n];
        assert_true(launches_of_plan(&d) > 0);
        const uint64_t builds = clattn_context_build_count(on->ctx);
        assert_int_equal(launches_of_plan(&d), 0);
        d.heads_q = 4;
        d.heads_kv = 4;
        d.max_batch = 3;
        assert_int_equal(launches_of_plan(&d), 0);
        d.features = CLATTN_FEATURE_LSE; // the same program
        assert_true(launches_of_plan(&d) > 0);
        assert_int_equal(launches_of_plan(&d), 0);
        assert_int_equal(clattn_context_build_count(on->ctx), builds);
    }
}

// ---- two threads --------------------------------------------------------------------------------

struct job {
    struct problem *p;
    clattn_status st;
    int allocations, locks;
};

static void run_job(void *arg)
{
    struct job *job = arg;
    job->st = clattn_attention_enqueue(job->p->plan, &job->p->call, job->p->queue, 0, NULL, NULL);
    job->allocations = allocations;
    job->locks = locks;
}

// Each is inside clEnqueueNDRangeKernel() while the other one is. The second one of a pool that has
// handed out its only kernel object makes one more, which is then there for the next time.
static void test_together(void **state)
{
    (void)state;
    if (!takes_threads(&on->info))
        skip();
    struct problem p[THREADS];
    struct job jobs[THREADS];
    pthread_barrier_t barrier;
    open_problem(&p[0], CLATTN_ALGO_FUSED, 0, 0, 0);
    open_problem(&p[1], CLATTN_ALGO_FUSED, 0, 0, 0);
    clattn_plan *const own = p[1].plan;
    p[1].plan = p[0].plan;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int round = 0; round < 2; round++) {
        struct test_thread *threads[THREADS];
        meet = &barrier;
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (struct job){.p = &p[i]};
            threads[i] = thread_start(run_job, &jobs[i]);
        }
        for (int i = 0; i < THREADS; i++)
            thread_join(threads[i]);
        meet = NULL;
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(real.Finish(p[i].queue), CL_SUCCESS);
            assert_int_equal(jobs[i].st, CLATTN_OK);
            assert_int_equal(jobs[i].locks, 0);
            assert_int_equal(jobs[i].allocations, 0);
        }
    }
    pthread_barrier_destroy(&barrier);
    p[1].plan = own;
    close_problem(&p[0]);
    close_problem(&p[1]);
}

static int set_up(void **state)
{
    (void)state;
    watchdog("test_enqueue", 120);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    watchdog("test_enqueue", 0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_any_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_plan_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_together, set_up, tear_down),
    };
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    for (int i = 0; i < count; i++) {
        on = &devices[i];
        struct cla_cl *table = on->ctx->ocl->cl;
        hook(table);
        failed += cmocka_run_group_tests_name(on->tag, tests, NULL, NULL);
        *table = real;
    }
    devices_close(devices, count);
    return failed ? 1 : 0;
}
