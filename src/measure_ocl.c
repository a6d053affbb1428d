// SPDX-License-Identifier: Apache-2.0
// clattn_context_measure() on an OpenCL device, by the kernels of peak.cl.
#define CLATTN_EXPERIMENTAL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context_ocl.h"
#include "ocl/error.h"
#include "ocl/launch.h"

enum {
    RUNS = 9,               // the best counts
    MIN_NS = 8 * 1000000,   // of one run
    BRIEF_RUNS = 2,
    BRIEF_MIN_NS = 1500000,
    FIRST_ITERATIONS = 1000,
    ITERATIONS_MAX = 1 << 28,
};

struct measure {
    clattn_context *ctx;
    struct cla_kernels *kernels;
    cl_program program;
    void *in, *out;
    size_t global, local;
    int width, chains;
};

static clattn_status timed(struct measure *m, const struct cla_arg *arg, unsigned n, uint64_t *ns)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &m->ctx->log;
    const struct cla_ocl *ocl = m->ctx->ocl;
    const uint64_t start = cla_os_now_ns();
    CLA_TRY(cla_kernels_enqueue(m->kernels, log, arg, n, ocl->queue, 1, &m->global, &m->local, 0,
                                NULL, NULL));
    CLA_CL(ocl->cl->Finish(ocl->queue));
    *ns = cla_os_now_ns() - start;
done:
    return st;
}

static clattn_status prepare(struct measure *m, const char *function)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = m->ctx;
    const struct cla_caps *caps = &ctx->caps;
    const size_t units = caps->compute_units > 0 ? (size_t)caps->compute_units : 1;
    char options[96];
    if (cla_caps_vector_shape(caps)) {
        m->width = caps->native_width_f32 >= 16 ? 16 : caps->native_width_f32 >= 8 ? 8 : 4;
        m->chains = m->width == 16 ? 16 : 10; // two FMA units of latency 4, within the registers
        m->local = 1;
        m->global = units * 8;
    } else {
        m->width = 1;
        m->chains = 8;
        const size_t most = cla_caps_items(caps);
        m->local = most >= 256 ? 256 : most ? most : 1;
        m->global = units * 8 * m->local;
    }
    for (;;) { // again where the compiled kernel takes fewer items
        size_t most = 0;
        snprintf(options, sizeof options, "-cl-std=CL1.2 -DW=%d -DCHAINS=%d -DITEMS=%d", m->width,
                 m->chains, (int)m->local);
        CLA_TRY(cla_ocl_build(ctx, "peak.cl", options, CLATTN_LOG_ERROR, &m->program));
        CLA_TRY(cla_kernels_create(ctx->ocl->cl, m->program, function, &ctx->log, &m->kernels));
        CLA_TRY(cla_ocl_items_taken(ctx, m->kernels, &most));
        if (most >= m->local)
            break;
        cla_kernels_destroy(&m->kernels);
        ctx->ocl->cl->ReleaseProgram(m->program);
        m->program = NULL;
        m->local = most;
        m->global = units * 8 * m->local;
    }
    CLA_TRY(cla_ocl_mem_create(ctx, m->global * sizeof(float), &m->out));
done:
    return st;
}

static clattn_status measure_fma(struct measure *m, bool brief, double *value)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(prepare(m, "peak_fma"));
    const float seed = 0.5f;
    cl_int iterations = FIRST_ITERATIONS;
    const struct cla_arg arg[] = {
        {sizeof seed, &seed}, {sizeof iterations, &iterations}, {sizeof(cl_mem), &m->out}};
    const uint64_t min_ns = brief ? BRIEF_MIN_NS : MIN_NS;
    uint64_t ns = 0, best = UINT64_MAX;
    for (;;) { // the first runs also warm the device up
        CLA_TRY(timed(m, arg, 3, &ns));
        if (ns >= min_ns || iterations >= ITERATIONS_MAX)
            break;
        iterations *= 2;
    }
    for (int i = 0; i < (brief ? BRIEF_RUNS : RUNS); i++) {
        CLA_TRY(timed(m, arg, 3, &ns));
        best = ns < best ? ns : best;
    }
    *value = 2.0 * m->width * m->chains * (double)m->global * iterations / (double)best;
done:
    return st;
}

static clattn_status measure_read(struct measure *m, size_t bytes, double *value)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = m->ctx;
    const struct cla_log *log = &ctx->log;
    const cl_ulong floats = bytes / sizeof(float);
    CLA_TRY(prepare(m, "peak_read"));
    CLA_TRY(cla_ocl_mem_create(ctx, floats * sizeof(float), &m->in));
    const float zero = 0.0f;
    CLA_CL(ctx->ocl->cl->EnqueueFillBuffer(ctx->ocl->queue, m->in, &zero, sizeof zero, 0,
                                           floats * sizeof(float), 0, NULL, NULL));
    const struct cla_arg arg[] = {
        {sizeof(cl_mem), &m->in}, {sizeof floats, &floats}, {sizeof(cl_mem), &m->out}};
    uint64_t ns = 0, best = UINT64_MAX;
    for (int i = 0; i < RUNS + 1; i++) { // the first run warms up
        CLA_TRY(timed(m, arg, 3, &ns));
        if (i > 0)
            best = ns < best ? ns : best;
    }
    *value = (double)(floats * sizeof(float)) / (double)best;
done:
    return st;
}

clattn_status cla_ocl_measure(clattn_context *ctx, int32_t what, size_t bytes, double *value)
{
    struct measure m = {.ctx = ctx};
    if (what == CLATTN_MEASURE_READ && bytes < sizeof(float))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "measure: bytes is %zu", bytes);
    const bool turn = cla_ocl_begin_turn(ctx, false);
    const bool brief = what == CLATTN_MEASURE_FMA_F32_SHORT;
    clattn_status st = what == CLATTN_MEASURE_READ ? measure_read(&m, bytes, value)
                                                   : measure_fma(&m, brief, value);
    if (m.in)
        cla_ocl_mem_destroy(ctx, m.in);
    if (m.out)
        cla_ocl_mem_destroy(ctx, m.out);
    cla_kernels_destroy(&m.kernels);
    if (m.program)
        ctx->ocl->cl->ReleaseProgram(m.program);
    cla_ocl_end_turn(ctx, turn);
    return st;
}
