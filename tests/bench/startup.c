// SPDX-License-Identifier: Apache-2.0
// What a plan costs: compiled for the first time, again in the same context, and in a fresh context
// with the caches on disk warm.
//
//   bench_startup [--json] [--device SELECTOR] [VARIANT]
//
// The caches of clattn, PoCL and Mesa go to a folder of their own, empty at first. Times of the
// wall clock and of the processor, over all threads, in ms. A kernel of one line goes first in each
// context ("driver": building, launching), since PoCL needs a second for the first one, whichever
// it is. The function table of the context tells how much of the cold plan goes where: "builds"
// into clBuildProgram(), "binaries" into fetching them, "launches" into clEnqueueNDRangeKernel()
// and the kernel's end, where PoCL compiles a second time, for the size of the work-group. The
// first call of 512 keys should find nothing left to compile.
#include <ftw.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clattn/opencl.h"
#include "context_ocl.h"

enum { WARM = 31 };

#define NEED(call)                                                                                 \
    do {                                                                                           \
        const int code_ = (int)(call);                                                             \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "bench_startup: %s gives %d\n", #call, code_);                         \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

struct ms {
    double wall, cpu;
};

static struct ms now(void)
{
    struct timespec w, c;
    clock_gettime(CLOCK_MONOTONIC, &w);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c);
    return (struct ms){(double)w.tv_sec * 1e3 + (double)w.tv_nsec * 1e-6,
                       (double)c.tv_sec * 1e3 + (double)c.tv_nsec * 1e-6};
}

static void add_since(struct ms *sum, struct ms start)
{
    const struct ms end = now();
    sum->wall += end.wall - start.wall;
    sum->cpu += end.cpu - start.cpu;
}

// ---- where the time goes ------------------------------------------------------------------------

static struct cla_cl real;
static struct {
    struct ms build, binary, launch;
    int builds, launches;
} part;

static cl_int CL_API_CALL time_build(cl_program program, cl_uint n, const cl_device_id *devices,
                                     const char *options,
                                     void(CL_CALLBACK *notify)(cl_program, void *), void *user)
{
    const struct ms start = now();
    const cl_int code = real.BuildProgram(program, n, devices, options, notify, user);
    add_since(&part.build, start);
    part.builds++;
    return code;
}

static cl_int CL_API_CALL time_info(cl_program program, cl_program_info fact, size_t size, void *to,
                                    size_t *used)
{
    const struct ms start = now();
    const cl_int code = real.GetProgramInfo(program, fact, size, to, used);
    add_since(&part.binary, start);
    return code;
}

static cl_int CL_API_CALL time_launch(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                      const size_t *offset, const size_t *global,
                                      const size_t *local, cl_uint num_wait, const cl_event *wait,
                                      cl_event *done)
{
    const struct ms start = now();
    const cl_int code =
        real.EnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, num_wait, wait, done);
    real.Finish(queue);
    add_since(&part.launch, start);
    part.launches++;
    return code;
}

// The driver alone, on a text that no cache has.
static void start_driver(const struct cla_ocl *ocl, int number, struct ms *build, struct ms *launch)
{
    char text[160];
    const char *at = text;
    const size_t one = 1;
    cl_int code = 0;
    snprintf(text, sizeof text, "__kernel void one(__global float *to) { to[0] = %d.5f; }\n",
             number);
    struct ms start = now();
    cl_program program = real.CreateProgramWithSource(ocl->context, 1, &at, NULL, &code);
    NEED(code);
    NEED(real.BuildProgram(program, 1, &ocl->device, "", NULL, NULL));
    add_since(build, start);
    cl_mem mem = real.CreateBuffer(ocl->context, CL_MEM_READ_WRITE, sizeof(float), NULL, &code);
    NEED(code);
    start = now();
    cl_kernel kernel = real.CreateKernel(program, "one", &code);
    NEED(code);
    NEED(real.SetKernelArg(kernel, 0, sizeof mem, &mem));
    NEED(real.EnqueueNDRangeKernel(ocl->queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL));
    NEED(real.Finish(ocl->queue));
    add_since(launch, start);
    real.ReleaseKernel(kernel);
    real.ReleaseProgram(program);
    real.ReleaseMemObject(mem);
}

// ---- variants -----------------------------------------------------------------------------------

struct variant {
    const char *name;
    int32_t algo, heads_q, heads_kv, dim, len_q, len_kv, dtype;
    uint32_t features;
};

static const struct variant variants[] = {
    {"d64", CLATTN_ALGO_AUTO, 8, 8, 64, 0, 0, CLATTN_DTYPE_F32, 0},
    {"d64-causal", CLATTN_ALGO_AUTO, 8, 8, 64, 0, 0, CLATTN_DTYPE_F32, CLATTN_FEATURE_CAUSAL},
    {"d64-mask", CLATTN_ALGO_AUTO, 8, 8, 64, 0, 0, CLATTN_DTYPE_F32, CLATTN_FEATURE_MASK},
    {"d64-bf16", CLATTN_ALGO_AUTO, 8, 8, 64, 0, 0, CLATTN_DTYPE_BF16, 0},
    {"d128", CLATTN_ALGO_AUTO, 8, 8, 128, 0, 0, CLATTN_DTYPE_F32, 0},
    {"d80-causal", CLATTN_ALGO_AUTO, 8, 1, 80, 0, 0, CLATTN_DTYPE_F32, CLATTN_FEATURE_CAUSAL},
    {"decode-d128", CLATTN_ALGO_AUTO, 32, 8, 128, 1, 16384, CLATTN_DTYPE_F32, 0},
};

static clattn_attention_desc desc_of(const struct variant *v)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.algo = v->algo;
    d.heads_q = v->heads_q;
    d.heads_kv = v->heads_kv;
    d.dim_qk = v->dim;
    d.dtype_q = d.dtype_kv = d.dtype_o = v->dtype;
    d.features = v->features;
    if (v->len_q) {
        d.max_batch = 1;
        d.max_len_q = v->len_q;
        d.max_len_kv = v->len_kv;
    }
    return d;
}

static clattn_context *open_context(const char *selector)
{
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    NEED(clattn_context_create(&desc, &ctx));
    if (!ctx->ocl) {
        fprintf(stderr, "bench_startup: no OpenCL device\n");
        exit(3);
    }
    return ctx;
}

static struct ms time_plan(clattn_context *ctx, const struct variant *v, clattn_plan **plan)
{
    struct ms sum = {0, 0};
    const clattn_attention_desc d = desc_of(v);
    const struct ms start = now();
    NEED(clattn_attention_plan_create(ctx, &d, plan));
    add_since(&sum, start);
    return sum;
}

static int by_wall(const void *a, const void *b)
{
    const double x = ((const struct ms *)a)->wall, y = ((const struct ms *)b)->wall;
    return (x > y) - (x < y);
}

struct figures {
    struct ms open, driver_build, driver_launch, cold, first, warm, fresh_open, fresh;
};

static struct figures measure(const char *selector, const struct variant *v)
{
    struct figures f;
    memset(&f, 0, sizeof f);
    struct ms warm[WARM];
    clattn_plan *plan = NULL;
    struct ms start = now();
    clattn_context *ctx = open_context(selector);
    add_since(&f.open, start);
    real = *ctx->ocl->cl;
    start_driver(ctx->ocl, (int)(v - variants), &f.driver_build, &f.driver_launch);
    ctx->ocl->cl->BuildProgram = time_build;
    ctx->ocl->cl->GetProgramInfo = time_info;
    ctx->ocl->cl->EnqueueNDRangeKernel = time_launch;
    memset(&part, 0, sizeof part);
    f.cold = time_plan(ctx, v, &plan);
    *ctx->ocl->cl = real;
    start = now();
    NEED(clattn_plan_warm_up(plan, 1, v->len_q ? v->len_q : 512, 512));
    add_since(&f.first, start);
    clattn_plan_destroy(&plan);
    for (int i = 0; i < WARM; i++) {
        warm[i] = time_plan(ctx, v, &plan);
        clattn_plan_destroy(&plan);
    }
    qsort(warm, WARM, sizeof warm[0], by_wall);
    f.warm = warm[WARM / 2];
    clattn_context_destroy(&ctx);
    start = now();
    ctx = open_context(selector);
    add_since(&f.fresh_open, start);
    f.fresh = time_plan(ctx, v, &plan);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    return f;
}

// ---- folders ------------------------------------------------------------------------------------

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st, (void)type, (void)walk;
    remove(path);
    return 0;
}

static char folder[4096];

static void remove_folder(void)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void own_caches(void)
{
    static const char *const names[] = {"CLATTN_CACHE_DIR", "POCL_CACHE_DIR",
                                        "MESA_SHADER_CACHE_DIR", "NEO_CACHE_DIR"};
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/clattn-startup-XXXXXX", base && *base ? base : P_tmpdir);
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(3);
    }
    atexit(remove_folder);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        setenv(names[i], folder, 1);
    unsetenv("CLATTN_CACHE");
}

static void report(bool json, const struct variant *v, const struct figures *f)
{
    const struct {
        const char *name;
        const struct ms *ms;
    } rows[] = {{"open", &f->open},         {"driver_build", &f->driver_build},
                {"driver_launch", &f->driver_launch}, {"cold", &f->cold},
                {"cold_builds", &part.build}, {"cold_binaries", &part.binary},
                {"cold_launches", &part.launch}, {"first_call", &f->first},
                {"warm", &f->warm},
                {"fresh_open", &f->fresh_open}, {"fresh", &f->fresh}};
    if (json)
        printf("{\"variant\": \"%s\", \"builds\": %d, \"launches\": %d", v->name, part.builds,
               part.launches);
    else
        printf("%s: %d builds, %d launches\n", v->name, part.builds, part.launches);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf(json ? ", \"%s_ms\": [%.3f, %.3f]" : "  %-14s %9.2f ms, processor %9.2f\n",
               rows[i].name, rows[i].ms->wall, rows[i].ms->cpu);
    printf(json ? "}\n" : "");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *selector = "0", *only = NULL;
    bool json = false;
    int found = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            selector = argv[++i];
        } else if (argv[i][0] != '-' && !only) {
            only = argv[i];
        } else {
            fprintf(stderr, "bench_startup [--json] [--device SELECTOR] [VARIANT]\n");
            return 2;
        }
    }
    own_caches();
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const struct variant *v = &variants[i];
        if (only && strcmp(only, v->name) != 0)
            continue;
        const struct figures f = measure(selector, v);
        report(json, v, &f);
        found++;
    }
    return found ? 0 : 2;
}
