// SPDX-License-Identifier: Apache-2.0
// The CPU path and the double reference as algorithms: on host memory here, on cl_mem in
// host_ocl.c.
#include "host/host.h"

#include <stdio.h>

#include "algo/algo.h"
#include "ref/ref.h"
#include "sequence.h"

static int propose_host(const struct cla_algo *self, const struct cla_problem *p,
                        const struct cla_caps *caps, struct cla_tile *out, int max,
                        struct cla_notes *refusals)
{
    (void)self;
    (void)refusals;
    if (max < 1)
        return 0;
    int32_t width, tile_q, tile_k;
    cla_host_tile(p, &width, &tile_q, &tile_k);
    *out = (struct cla_tile){.kernel = CLATTN_KERNEL_AUTO, .tile_q = tile_q, .tile_k = tile_k,
                             .width = width};
    const char *why = p->algo == CLATTN_ALGO_HOST        ? "the CPU path was asked for"
                      : caps->type == CLA_DEVICE_BUILTIN ? "the context's device is the CPU path"
                                                         : "the CPU path, since no kernel serves";
    snprintf(out->reason, sizeof out->reason, "%s: instruction set %s, tile %d x %d", why,
             cla_host_isa_of(p), (int)tile_q, (int)tile_k);
    return 1;
}

static int propose_reference(const struct cla_algo *self, const struct cla_problem *p,
                             const struct cla_caps *caps, struct cla_tile *out, int max,
                             struct cla_notes *refusals)
{
    (void)self;
    (void)p;
    (void)caps;
    (void)refusals;
    if (max < 1)
        return 0;
    *out = (struct cla_tile){.kernel = CLATTN_KERNEL_AUTO, .tile_q = 1, .tile_k = 1};
    snprintf(out->reason, sizeof out->reason, "the definition in double precision, as asked for");
    return 1;
}

// Nothing has to be built.
static clattn_status prepare(clattn_context *ctx, const struct cla_algo *self,
                             const struct cla_problem *p, const struct cla_tile *tile,
                             struct cla_prepared **out, char *options, size_t options_size,
                             char *why, size_t why_size)
{
    (void)ctx;
    (void)self;
    (void)p;
    (void)tile;
    (void)why;
    (void)why_size;
    if (options_size)
        options[0] = '\0';
    *out = NULL;
    return CLATTN_OK;
}

static void release(struct cla_prepared *prepared)
{
    (void)prepared;
}

clattn_status cla_host_compute(const clattn_context *ctx, const struct cla_problem *p,
                               const struct cla_call *call, const struct cla_host_mem *mem,
                               bool reference)
{
    clattn_status st = reference ? cla_ref_forward(p, call, mem)
                                 : cla_host_forward(p, call, mem, ctx->threads);
    if (st == CLATTN_ERR_OUT_OF_MEMORY)
        return cla_fail(&ctx->log, st, "CPU path: no memory for its scratch");
    return st;
}

static struct cla_host_mem mem_of(const struct cla_call *call, void *const ptr[CLA_CALL_BUFS])
{
    return (struct cla_host_mem){
        .q = ptr[CLA_BUF_Q], .k = ptr[CLA_BUF_K], .v = ptr[CLA_BUF_V], .o = ptr[CLA_BUF_O],
        .lse = ptr[CLA_BUF_LSE], .mask = ptr[CLA_BUF_MASK], .bias = ptr[CLA_BUF_BIAS],
        .alibi = ptr[CLA_BUF_ALIBI], .sinks = ptr[CLA_BUF_SINKS],
        .kv_lens = ptr[CLA_BUF_KV_LENS], .cu_q = ptr[CLA_BUF_CU_Q], .cu_kv = ptr[CLA_BUF_CU_KV],
        .table = ptr[CLA_BUF_TABLE], .k_scale = ptr[CLA_BUF_K_SCALE],
        .v_scale = ptr[CLA_BUF_V_SCALE], .faults = ptr[CLA_BUF_FAULTS],
        .sorted_q = cla_sequence_sorted(ptr[CLA_BUF_CU_Q], call->batch),
        .sorted_kv = cla_sequence_sorted(ptr[CLA_BUF_CU_KV], call->batch)};
}

// The same as work on mapped buffers.
struct host_data {
    struct cla_problem p;
    struct cla_call call;
    bool reference;
};

static clattn_status compute_work(clattn_context *ctx, const void *data, void *const *ptr)
{
    const struct host_data *d = data;
    const struct cla_host_mem mem = mem_of(&d->call, ptr);
    return cla_host_compute(ctx, &d->p, &d->call, &mem, d->reference);
}

static struct cla_host_work host_work(struct host_data *data, struct cla_call_buf *bufs)
{
    cla_call_bufs(&data->p, &data->call, bufs);
    return (struct cla_host_work){compute_work, data, sizeof *data, bufs, CLA_CALL_BUFS};
}

clattn_status cla_host_on_mem(clattn_context *ctx, const struct cla_problem *p,
                              const struct cla_call *call, bool reference)
{
    struct host_data data = {*p, *call, reference};
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    const struct cla_host_work work = host_work(&data, bufs);
    return cla_host_work_run(ctx, &work);
}

clattn_status cla_host_enqueue(clattn_context *ctx, const struct cla_problem *p,
                               const struct cla_call *call, bool reference,
                               const struct cla_submit *submit)
{
    struct host_data data = {*p, *call, reference};
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    const struct cla_host_work work = host_work(&data, bufs);
    return cla_host_work_enqueue(ctx, &work, submit);
}

static clattn_status run(clattn_context *ctx, const struct cla_problem *p,
                         const struct cla_call *call, bool reference)
{
    struct cla_call copy = *call;
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    cla_call_bufs(p, &copy, bufs);
    void *ptr[CLA_CALL_BUFS] = {NULL};
    for (int i = 0; i < CLA_CALL_BUFS; i++) {
        if (!bufs[i].end_bytes)
            continue;
        if (bufs[i].buf->kind == CLATTN_BUF_CL_MEM)
            return cla_host_on_mem(ctx, p, call, reference);
        ptr[i] = (char *)bufs[i].buf->ptr + bufs[i].begin_bytes;
    }
    const struct cla_host_mem mem = mem_of(call, ptr);
    return cla_host_compute(ctx, p, call, &mem, reference);
}

static clattn_status run_host(clattn_context *ctx, const struct cla_problem *p,
                              const struct cla_prepared *prepared, const struct cla_call *call)
{
    (void)prepared;
    return run(ctx, p, call, false);
}

static clattn_status run_reference(clattn_context *ctx, const struct cla_problem *p,
                                   const struct cla_prepared *prepared,
                                   const struct cla_call *call)
{
    (void)prepared;
    return run(ctx, p, call, true);
}

static clattn_status enqueue_host(clattn_context *ctx, const struct cla_problem *p,
                                  const struct cla_prepared *prepared, const struct cla_call *call,
                                  const struct cla_submit *submit)
{
    (void)prepared;
    return cla_host_enqueue(ctx, p, call, false, submit);
}

static clattn_status enqueue_reference(clattn_context *ctx, const struct cla_problem *p,
                                       const struct cla_prepared *prepared,
                                       const struct cla_call *call,
                                       const struct cla_submit *submit)
{
    (void)prepared;
    return cla_host_enqueue(ctx, p, call, true, submit);
}

const struct cla_algo cla_algo_host = {
    .id = CLATTN_ALGO_HOST,
    .name = "host",
    .propose = propose_host,
    .prepare = prepare,
    .release = release,
    .run = run_host,
    .enqueue = enqueue_host,
};

const struct cla_algo cla_algo_reference = {
    .id = CLATTN_ALGO_REFERENCE,
    .name = "reference",
    .by_name_only = true,
    .propose = propose_reference,
    .prepare = prepare,
    .release = release,
    .run = run_reference,
    .enqueue = enqueue_reference,
};
