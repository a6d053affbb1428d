// SPDX-License-Identifier: Apache-2.0
// What clattn_attention_enqueue() costs the calling thread beyond the driver's own calls.
//
//   bench_overhead [--json] [--device SELECTOR] [--rounds N]
//
// The bare form sets all slots of the same kernel objects to the same values and enqueues the same
// ND-ranges through the same functions. Both are timed in turn, in batches with a clFinish() behind
// each that is not timed, by the processor time of the calling thread. The function table of the
// context, through which the library makes every call of the driver, tells where the rest goes:
//
//   own      with functions that do nothing: checks, argument block, pool
//   queries  the questions to the driver that one enqueue asks, asked alone
//
// Last, clattn_attention_run() on host memory on the CPU path beside its computation alone.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "algo/algo.h"
#include "attention.h"
#include "clattn/opencl.h"
#include "context_ocl.h"

enum { BATCH = 64, LAUNCHES = 3, SLOTS = 24, QUERIES = 256, BYTES = 1 << 16, MEMS = 17 };

#define NEED(call)                                                                                 \
    do {                                                                                           \
        const int code_ = (int)(call);                                                             \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "bench_overhead: %s gives %d\n", #call, code_);                        \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

// ---- what one enqueue asks of the driver --------------------------------------------------------

struct launch {
    cl_kernel kernel;
    size_t size[SLOTS];
    unsigned char value[SLOTS][1024];
    bool absent[SLOTS];
    cl_uint slots, dims, num_wait;
    size_t global[3], local[3];
    bool event;
};

struct query {
    void *of;
    cl_uint fact;
    size_t size;
    bool queue;
};

static struct cla_cl real;
static struct {
    struct launch launch[LAUNCHES];
    struct query query[QUERIES];
    int launches, queries;
    cl_context context;
    cl_device_id device;
} seen;

static cl_int CL_API_CALL see_arg(cl_kernel kernel, cl_uint slot, size_t size, const void *value)
{
    struct launch *l = &seen.launch[seen.launches];
    l->size[slot] = size;
    l->absent[slot] = !value;
    if (value)
        memcpy(l->value[slot], value, size);
    l->slots = slot + 1;
    return real.SetKernelArg(kernel, slot, size, value);
}

static cl_int CL_API_CALL see_enqueue(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                      const size_t *offset, const size_t *global,
                                      const size_t *local, cl_uint num_wait, const cl_event *wait,
                                      cl_event *event)
{
    struct launch *l = &seen.launch[seen.launches++];
    l->kernel = kernel;
    l->dims = dims;
    l->num_wait = num_wait;
    l->event = event != NULL;
    memcpy(l->global, global, dims * sizeof *global);
    memcpy(l->local, local, dims * sizeof *local);
    return real.EnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, num_wait, wait,
                                     event);
}

static void see_query(void *of, cl_uint fact, size_t size, bool queue)
{
    if (seen.queries < QUERIES)
        seen.query[seen.queries++] = (struct query){of, fact, size, queue};
}

static cl_int CL_API_CALL see_mem(cl_mem mem, cl_mem_info fact, size_t size, void *to, size_t *used)
{
    see_query(mem, fact, size, false);
    return real.GetMemObjectInfo(mem, fact, size, to, used);
}

static cl_int CL_API_CALL see_queue(cl_command_queue queue, cl_command_queue_info fact, size_t size,
                                    void *to, size_t *used)
{
    see_query(queue, fact, size, true);
    return real.GetCommandQueueInfo(queue, fact, size, to, used);
}

// ---- functions that do nothing ------------------------------------------------------------------

static cl_int CL_API_CALL no_arg(cl_kernel kernel, cl_uint slot, size_t size, const void *value)
{
    (void)kernel, (void)slot, (void)size, (void)value;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL no_enqueue(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                     const size_t *offset, const size_t *global,
                                     const size_t *local, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event)
{
    (void)queue, (void)kernel, (void)dims, (void)offset, (void)global, (void)local;
    (void)num_wait, (void)wait, (void)event;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL no_mem(cl_mem mem, cl_mem_info fact, size_t size, void *to, size_t *used)
{
    const size_t bytes = BYTES;
    const cl_mem_object_type type = CL_MEM_OBJECT_BUFFER;
    (void)mem, (void)used;
    if (fact == CL_MEM_CONTEXT)
        memcpy(to, &seen.context, size);
    else if (fact == CL_MEM_TYPE)
        memcpy(to, &type, size);
    else if (fact == CL_MEM_SIZE)
        memcpy(to, &bytes, size);
    else
        memset(to, 0, size);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL no_queue(cl_command_queue queue, cl_command_queue_info fact, size_t size,
                                   void *to, size_t *used)
{
    (void)queue, (void)used;
    memcpy(to, fact == CL_QUEUE_CONTEXT ? (void *)&seen.context : (void *)&seen.device, size);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL no_event(cl_event event)
{
    (void)event;
    return CL_SUCCESS;
}

// ---- problems -----------------------------------------------------------------------------------

struct kind {
    const char *name;
    int32_t algo, len_q, splits;
    uint32_t features;
};

static const struct kind kinds[] = {
    {"fused", CLATTN_ALGO_FUSED, 8, 0, 0},
    {"fused, causal, lse", CLATTN_ALGO_FUSED, 8, 0,
     CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE},
    {"fused, pages, lengths, sinks, lse", CLATTN_ALGO_FUSED, 8, 0,
     CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_LSE | CLATTN_FEATURE_SINKS | CLATTN_FEATURE_KV_LENS |
         CLATTN_FEATURE_PAGED},
    {"split_kv, one query, 2 parts", CLATTN_ALGO_SPLIT_KV, 1, 2, 0},
};

struct bench {
    clattn_context *ctx;
    clattn_plan *plan;
    clattn_attention_call call;
    cl_command_queue queue;
    cl_mem mem[MEMS];
    int mems;
};

static clattn_buf buffer(struct bench *b)
{
    cl_int code = 0;
    cl_mem mem = real.CreateBuffer(seen.context, CL_MEM_READ_WRITE, BYTES, NULL, &code);
    NEED(code);
    static char zeros[BYTES];
    NEED(real.EnqueueWriteBuffer(b->queue, mem, CL_TRUE, 0, BYTES, zeros, 0, NULL, NULL));
    b->mem[b->mems++] = mem;
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = mem};
}

static clattn_attention_desc desc_of(const struct kind *kind)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = d.heads_kv = 1;
    d.dim_qk = 16;
    d.algo = kind->algo;
    d.features = kind->features;
    d.num_splits = kind->splits;
    d.page_size = kind->features & CLATTN_FEATURE_PAGED ? 16 : 0;
    return d;
}

static void open_kind(struct bench *b, const struct kind *kind)
{
    const clattn_attention_desc d = desc_of(kind);
    clattn_attention_call *c = &b->call;
    b->mems = 0;
    NEED(clattn_attention_plan_create(b->ctx, &d, &b->plan));
    clattn_attention_call_init(c, sizeof *c);
    c->batch = 1;
    c->len_q = kind->len_q;
    c->len_kv = 8;
    c->q.buf = buffer(b);
    c->k.buf = buffer(b);
    c->v.buf = buffer(b);
    c->o.buf = buffer(b);
    if (d.features & CLATTN_FEATURE_LSE)
        c->lse = buffer(b);
    if (d.features & CLATTN_FEATURE_SINKS)
        c->sinks = buffer(b);
    if (d.features & CLATTN_FEATURE_KV_LENS)
        c->kv_lens = buffer(b);
    if (d.features & CLATTN_FEATURE_PAGED) {
        c->page_table = buffer(b);
        c->num_pages = 4;
        c->max_pages = 1;
    }
    if (kind->splits)
        c->workspace = buffer(b);
}

static void close_kind(struct bench *b)
{
    for (int i = 0; i < b->mems; i++)
        real.ReleaseMemObject(b->mem[i]);
    clattn_plan_destroy(&b->plan);
}

// ---- timing -------------------------------------------------------------------------------------

static void enqueue(struct bench *b)
{
    NEED(clattn_attention_enqueue(b->plan, &b->call, b->queue, 0, NULL, NULL));
}

static void bare(struct bench *b)
{
    cl_event before = NULL;
    for (int i = 0; i < seen.launches; i++) {
        const struct launch *l = &seen.launch[i];
        cl_event event = NULL;
        for (cl_uint s = 0; s < l->slots; s++)
            NEED(real.SetKernelArg(l->kernel, s, l->size[s], l->absent[s] ? NULL : l->value[s]));
        NEED(real.EnqueueNDRangeKernel(b->queue, l->kernel, l->dims, NULL, l->global, l->local,
                                       l->num_wait, l->num_wait ? &before : NULL,
                                       l->event ? &event : NULL));
        if (before)
            real.ReleaseEvent(before);
        before = event;
    }
    if (before)
        real.ReleaseEvent(before);
}

static void ask(struct bench *b)
{
    unsigned char to[64];
    (void)b;
    for (int i = 0; i < seen.queries; i++) {
        const struct query *q = &seen.query[i];
        NEED(q->queue ? real.GetCommandQueueInfo(q->of, q->fact, q->size, to, NULL)
                      : real.GetMemObjectInfo(q->of, q->fact, q->size, to, NULL));
    }
}

static double time_batch(struct bench *b, void (*what)(struct bench *b))
{
    const double start = cpu_us();
    for (int i = 0; i < BATCH; i++)
        what(b);
    const double us = (cpu_us() - start) / BATCH;
    NEED(real.Finish(b->queue));
    return us;
}

struct figures {
    double bare, clattn, beyond, own, queries;
    int launches, asked;
};

static void record(struct bench *b, struct cla_cl *table)
{
    memset(seen.launch, 0, sizeof seen.launch);
    seen.launches = seen.queries = 0;
    table->SetKernelArg = see_arg;
    table->EnqueueNDRangeKernel = see_enqueue;
    table->GetMemObjectInfo = see_mem;
    table->GetCommandQueueInfo = see_queue;
    enqueue(b);
    NEED(real.Finish(b->queue));
    *table = real;
}

static void stub(struct cla_cl *table)
{
    table->SetKernelArg = no_arg;
    table->EnqueueNDRangeKernel = no_enqueue;
    table->GetMemObjectInfo = no_mem;
    table->GetCommandQueueInfo = no_queue;
    table->ReleaseEvent = no_event;
}

static struct figures measure(struct bench *b, int rounds)
{
    struct cla_cl *table = b->ctx->ocl->cl;
    double *x = malloc(5 * (size_t)rounds * sizeof *x);
    double *bared = x, *full = x + rounds, *more = x + 2 * rounds, *own = x + 3 * rounds;
    double *asked = x + 4 * rounds;
    if (!x)
        exit(3);
    record(b, table);
    for (int i = 0; i < rounds; i++) {
        if (i % 2)
            full[i] = time_batch(b, enqueue);
        bared[i] = time_batch(b, bare);
        if (i % 2 == 0)
            full[i] = time_batch(b, enqueue);
        more[i] = full[i] - bared[i];
        stub(table);
        own[i] = time_batch(b, enqueue);
        *table = real;
        asked[i] = time_batch(b, ask);
    }
    const struct figures f = {median(bared, rounds), median(full, rounds), median(more, rounds),
                              median(own, rounds),   median(asked, rounds), seen.launches,
                              seen.queries};
    free(x);
    return f;
}

static void report(bool json, const char *device, const char *kind, const char *queue,
                   const struct figures *f)
{
    if (json)
        printf("{\"device\": \"%s\", \"kind\": \"%s\", \"queue\": \"%s\", \"bare_us\": %.3f, "
               "\"clattn_us\": %.3f, \"beyond_us\": %.3f, \"own_us\": %.3f, \"queries_us\": %.3f, "
               "\"launches\": %d, \"queries\": %d}\n",
               device, kind, queue, f->bare, f->clattn, f->beyond, f->own, f->queries, f->launches,
               f->asked);
    else
        printf("%-34s %-12s %7.2f %7.2f %7.2f  %7.2f %7.2f %8d %8d\n", kind, queue, f->bare,
               f->clattn, f->beyond, f->own, f->queries, f->launches, f->asked);
    fflush(stdout);
}

static void on_device(const char *selector, int rounds, bool json)
{
    struct bench b;
    memset(&b, 0, sizeof b);
    clattn_context_desc desc;
    clattn_device_info info = {.struct_size = sizeof info};
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    NEED(clattn_context_create(&desc, &b.ctx));
    NEED(clattn_context_get_device_info(b.ctx, &info));
    if (!b.ctx->ocl) {
        fprintf(stderr, "bench_overhead: no OpenCL device\n");
        clattn_context_destroy(&b.ctx);
        return;
    }
    real = *b.ctx->ocl->cl;
    seen.context = b.ctx->ocl->context;
    seen.device = b.ctx->ocl->device;
    if (!json)
        printf("%s\nus of the calling thread for each enqueue\n%-34s %-12s %7s %7s %7s  %7s %7s "
               "%8s %8s\n", info.name, "", "queue", "bare", "clattn", "beyond", "own", "queries",
               "launches", "queries");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int any = 0; any < 2; any++) {
            cl_int code = 0;
            b.queue = real.CreateCommandQueue(
                seen.context, seen.device, any ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
            if (code) // not every device has them
                continue;
            open_kind(&b, &kinds[k]);
            const struct figures f = measure(&b, rounds);
            report(json, info.name, kinds[k].name, any ? "any order" : "in order", &f);
            close_kind(&b);
            real.ReleaseCommandQueue(b.queue);
        }
    clattn_context_destroy(&b.ctx);
}

// ---- the CPU path -------------------------------------------------------------------------------

static void on_cpu(int rounds, bool json)
{
    enum { DIM = 16, MANY = 64 };
    static float x[DIM], o[DIM];
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_attention_call call;
    struct cla_call checked;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    desc.threads = 1;
    NEED(clattn_context_create(&desc, &ctx));
    clattn_attention_desc d = desc_of(&(struct kind){"", CLATTN_ALGO_HOST, 1, 0, 0});
    NEED(clattn_attention_plan_create(ctx, &d, &plan));
    clattn_attention_call_init(&call, sizeof call);
    call.batch = call.len_q = call.len_kv = 1;
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(x, sizeof x);
    call.o.buf = clattn_host_buf(o, sizeof o);
    NEED(cla_plan_check_call(plan, &call, &checked));
    const struct cla_host_mem mem = {.q = x, .k = x, .v = x, .o = o};
    double *run = malloc(2 * (size_t)rounds * sizeof *run), *alone = run + rounds;
    if (!run)
        exit(3);
    for (int i = 0; i < rounds; i++) {
        double start = cpu_us();
        for (int n = 0; n < MANY; n++)
            NEED(clattn_attention_run(plan, &call));
        run[i] = (cpu_us() - start) / MANY;
        start = cpu_us();
        for (int n = 0; n < MANY; n++)
            NEED(cla_host_compute(ctx, &plan->problem, &checked, &mem, false));
        alone[i] = (cpu_us() - start) / MANY;
    }
    const double all = median(run, rounds), work = median(alone, rounds);
    if (json)
        printf("{\"kind\": \"run on the CPU path\", \"run_us\": %.3f, \"compute_us\": %.3f, "
               "\"beyond_us\": %.3f}\n", all, work, all - work);
    else
        printf("run on the CPU path, one query and key: %.2f us, its computation alone %.2f us\n",
               all, work);
    free(run);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    const char *selector = "0";
    bool json = false;
    int rounds = 200;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            selector = argv[++i];
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
            rounds = atoi(argv[++i]);
        } else {
            fprintf(stderr, "bench_overhead [--json] [--device SELECTOR] [--rounds N]\n");
            return 2;
        }
    }
    on_device(selector, rounds, json);
    on_cpu(rounds, json);
    return 0;
}
