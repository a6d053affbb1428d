// SPDX-License-Identifier: Apache-2.0
// What stands in for everything behind OpenCL in a build without it, so that no other file asks.
#include <stddef.h>

#include "algo/algo.h"
#include "algo/op.h"
#include "algo/softmax.h"
#include "attention.h"
#include "clattn/kv.h"
#include "clattn/tune.h"
#include "context.h"

static clattn_status none(const struct cla_log *log)
{
    return cla_fail(log, CLATTN_ERR_NO_OPENCL, "this build of clattn is without OpenCL");
}

// ---- context -----------------------------------------------------------------------------------

clattn_status cla_ocl_enumerate(const char *library, const struct cla_log *log,
                                struct cla_caps **caps, int32_t *count)
{
    (void)library;
    cla_logf(log, CLATTN_LOG_INFO, "this build of clattn is without OpenCL");
    *caps = NULL;
    *count = 0;
    return CLATTN_OK;
}

clattn_status cla_ocl_open(clattn_context *ctx, const char *library, int32_t index)
{
    (void)library;
    (void)index;
    return none(&ctx->log);
}

clattn_status cla_ocl_self_test(clattn_context *ctx)
{
    return none(&ctx->log);
}

void cla_ocl_close(struct cla_ocl **ocl)
{
    (void)ocl;
}

clattn_status clattn_tune_path(char *path, size_t size)
{
    if (!path || !size)
        return CLATTN_ERR_INVALID_ARGUMENT;
    path[0] = '\0';
    return CLATTN_ERR_NO_OPENCL;
}

clattn_status clattn_tune_read(clattn_context *ctx, const char *path,
                               const clattn_attention_desc *desc, clattn_tuning *out)
{
    (void)path;
    (void)desc;
    (void)out;
    return ctx ? none(&ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}

clattn_status clattn_tune_write(clattn_context *ctx, const char *path,
                                const clattn_attention_desc *desc, double ratio)
{
    (void)path;
    (void)desc;
    (void)ratio;
    return ctx ? none(&ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}

uint64_t cla_ocl_build_count(const struct cla_ocl *ocl)
{
    (void)ocl;
    return 0;
}

clattn_status cla_ocl_mem_facts(void *ctx, void *mem, struct cla_mem_facts *facts)
{
    (void)mem;
    (void)facts;
    return none(&((const clattn_context *)ctx)->log);
}

clattn_status cla_ocl_mem_create(clattn_context *ctx, size_t bytes, void **mem)
{
    (void)bytes;
    *mem = NULL;
    return none(&ctx->log);
}

void cla_ocl_mem_destroy(clattn_context *ctx, void *mem)
{
    (void)ctx;
    (void)mem;
}

clattn_status cla_ocl_mem_write(clattn_context *ctx, void *mem, size_t offset, const void *src,
                                size_t bytes)
{
    (void)mem;
    (void)offset;
    (void)src;
    (void)bytes;
    return none(&ctx->log);
}

clattn_status cla_ocl_mem_read(clattn_context *ctx, void *mem, size_t offset, void *dst,
                               size_t bytes)
{
    (void)mem;
    (void)offset;
    (void)dst;
    (void)bytes;
    return none(&ctx->log);
}

clattn_status cla_ocl_measure(clattn_context *ctx, int32_t what, size_t bytes, double *value)
{
    (void)what;
    (void)bytes;
    (void)value;
    return none(&ctx->log);
}

// ---- algorithms --------------------------------------------------------------------------------

static int propose(const struct cla_algo *self, const struct cla_problem *p,
                   const struct cla_caps *caps, struct cla_tile *out, int max,
                   struct cla_notes *refusals)
{
    (void)caps;
    (void)out;
    (void)max;
    // Where nobody asked for one of them, one speaks for all.
    if (p->algo == CLATTN_ALGO_AUTO && self->id != CLATTN_ALGO_FUSED)
        return 0;
    cla_note(refusals, "%s: this build of clattn is without OpenCL, only the CPU path is there",
             self->name);
    return 0;
}

// They propose nothing, so nothing else of them is ever called.
const struct cla_algo cla_algo_fused = {
    .id = CLATTN_ALGO_FUSED, .name = "fused", .propose = propose};
const struct cla_algo cla_algo_split_kv = {
    .id = CLATTN_ALGO_SPLIT_KV, .name = "split_kv", .propose = propose};
const struct cla_algo cla_algo_two_loop = {
    .id = CLATTN_ALGO_TWO_LOOP, .name = "two_loop", .by_name_only = true, .propose = propose};
const struct cla_algo cla_algo_fused_kv_outer = {.id = CLATTN_ALGO_FUSED_KV_OUTER,
                                                 .name = "fused_kv_outer",
                                                 .by_name_only = true,
                                                 .propose = propose};
const struct cla_algo cla_algo_unfused = {
    .id = CLATTN_ALGO_UNFUSED, .name = "unfused", .by_name_only = true, .propose = propose};

clattn_status cla_host_work_run(clattn_context *ctx, const struct cla_host_work *work)
{
    (void)work;
    return none(&ctx->log);
}

clattn_status cla_host_work_enqueue(clattn_context *ctx, const struct cla_host_work *work,
                                    const struct cla_submit *submit)
{
    (void)work;
    (void)submit;
    return none(&ctx->log);
}

clattn_status cla_softmax_prepare(clattn_context *ctx, const struct cla_softmax *s,
                                  struct cla_softmax_shape *shape,
                                  struct cla_softmax_kernels **out)
{
    (void)s;
    (void)shape;
    *out = NULL;
    return none(&ctx->log);
}

void cla_softmax_release(struct cla_softmax_kernels **kernels)
{
    (void)kernels;
}

clattn_status cla_softmax_run(clattn_context *ctx, const struct cla_softmax *s,
                              const struct cla_softmax_kernels *kernels,
                              const struct cla_softmax_call *call)
{
    (void)s;
    (void)kernels;
    (void)call;
    return none(&ctx->log);
}

clattn_status cla_op_run_device(struct cla_op *op, bool *ready)
{
    *ready = false;
    return none(&op->ctx->log);
}

clattn_status cla_op_enqueue(struct cla_op *op, const struct cla_submit *submit)
{
    (void)submit;
    return none(&op->ctx->log);
}

// ---- public calls with OpenCL types ------------------------------------------------------------

// Declared in opencl.h with OpenCL's types, which this build may not have; every one of those is a
// pointer or a 32-bit integer.
CLATTN_API clattn_status clattn_context_create_opencl(const clattn_context_desc *desc, void *cl_ctx,
                                                      void *cl_dev, void *queue,
                                                      clattn_context **out);
CLATTN_API void *clattn_context_cl_context(const clattn_context *ctx);
CLATTN_API void *clattn_context_cl_device(const clattn_context *ctx);
CLATTN_API clattn_status clattn_attention_enqueue(const clattn_plan *plan,
                                                  const clattn_attention_call *call, void *queue,
                                                  uint32_t num_wait, const void *wait, void *done);
CLATTN_API clattn_status clattn_softmax_enqueue(const clattn_softmax_plan *plan,
                                                const clattn_softmax_call *call, void *queue,
                                                uint32_t num_wait, const void *wait, void *done);
CLATTN_API clattn_status clattn_merge_enqueue(clattn_context *ctx, const clattn_merge_call *call,
                                              void *queue, uint32_t num_wait, const void *wait,
                                              void *done);

clattn_status clattn_merge_enqueue(clattn_context *ctx, const clattn_merge_call *call, void *queue,
                                   uint32_t num_wait, const void *wait, void *done)
{
    (void)call;
    (void)queue;
    (void)num_wait;
    (void)wait;
    (void)done;
    return ctx ? none(&ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}

CLATTN_API clattn_status clattn_rotary_enqueue(clattn_context *ctx, const clattn_rotary_call *call,
                                               void *queue, uint32_t num_wait, const void *wait,
                                               void *done);

clattn_status clattn_rotary_enqueue(clattn_context *ctx, const clattn_rotary_call *call,
                                    void *queue, uint32_t num_wait, const void *wait, void *done)
{
    (void)call;
    (void)queue;
    (void)num_wait;
    (void)wait;
    (void)done;
    return ctx ? none(&ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}

CLATTN_API clattn_status clattn_append_enqueue(clattn_context *ctx, const clattn_append_call *call,
                                               void *queue, uint32_t num_wait, const void *wait,
                                               void *done);

clattn_status clattn_append_enqueue(clattn_context *ctx, const clattn_append_call *call,
                                    void *queue, uint32_t num_wait, const void *wait, void *done)
{
    (void)call;
    (void)queue;
    (void)num_wait;
    (void)wait;
    (void)done;
    return ctx ? none(&ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}

clattn_status clattn_softmax_enqueue(const clattn_softmax_plan *plan,
                                     const clattn_softmax_call *call, void *queue,
                                     uint32_t num_wait, const void *wait, void *done)
{
    (void)plan;
    (void)call;
    (void)queue;
    (void)num_wait;
    (void)wait;
    (void)done;
    return CLATTN_ERR_NO_OPENCL;
}

clattn_status clattn_context_create_opencl(const clattn_context_desc *desc, void *cl_ctx,
                                           void *cl_dev, void *queue, clattn_context **out)
{
    struct cla_log log;
    clattn_context_desc d;
    (void)cl_ctx;
    (void)cl_dev;
    (void)queue;
    if (out)
        *out = NULL;
    clattn_status st = cla_context_desc_in(desc, &d, &log);
    return st == CLATTN_OK ? none(&log) : st;
}

void *clattn_context_cl_context(const clattn_context *ctx)
{
    (void)ctx;
    return NULL;
}

void *clattn_context_cl_device(const clattn_context *ctx)
{
    (void)ctx;
    return NULL;
}

clattn_status clattn_attention_enqueue(const clattn_plan *plan, const clattn_attention_call *call,
                                       void *queue, uint32_t num_wait, const void *wait, void *done)
{
    (void)call;
    (void)queue;
    (void)num_wait;
    (void)wait;
    (void)done;
    return plan ? none(&plan->ctx->log) : CLATTN_ERR_INVALID_ARGUMENT;
}
