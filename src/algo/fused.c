// SPDX-License-Identifier: Apache-2.0
// Fused attention on OpenCL: one pass over K and V, the online normaliser, no score matrix
// (FlashAttention-2 order, arXiv 2307.08691). Two kernel shapes: fused_group.cl, fused_vector.cl.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "algo/stage_ocl.h"
#include "ocl/error.h"
#include "ocl/launch.h"

struct cla_prepared {
    struct cla_kernels *kernels;
    struct cla_tile tile;
};

static int propose(const struct cla_problem *p, const struct cla_caps *caps, struct cla_tile *out,
                   int max, struct cla_notes *refusals)
{
    if (caps->type == CLA_DEVICE_BUILTIN) {
        cla_note(refusals, "fused: the context's device is the built-in CPU path");
        return 0;
    }
    if (!caps->compiler) {
        cla_note(refusals, "fused: the device has no OpenCL C compiler");
        return 0;
    }
    const int32_t best = cla_caps_vector_shape(caps) ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP;
    const int32_t first = p->kernel == CLATTN_KERNEL_AUTO ? best : p->kernel;
    const int32_t other =
        first == CLATTN_KERNEL_GROUP ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP;
    // The other shape is right here too, but several times slower than the CPU path: it only
    // serves where that one may not.
    const bool both = p->kernel == CLATTN_KERNEL_AUTO &&
                      (p->algo == CLATTN_ALGO_FUSED || p->no_fallback);
    if (p->kernel == CLATTN_KERNEL_AUTO && !both)
        cla_note(refusals, "fused, %s shape: the CPU path is faster than it is on this device",
                 other == CLATTN_KERNEL_GROUP ? "group" : "vector");
    int n = cla_tile_rank(p, caps, first, out, max, refusals);
    if (both && n < max)
        n += cla_tile_rank(p, caps, other, out + n, max - n, refusals);
    return n;
}

// ---- build -------------------------------------------------------------------------------------

// Numbers only, so that no caller's text ever reaches the compiler.
static void build_options(const struct cla_problem *p, const struct cla_tile *t,
                          const struct cla_caps *caps, char *options, size_t size)
{
    const int mask_kind = p->mask ? CLA_MASK_GENERAL : p->causal ? CLA_MASK_WINDOW : CLA_MASK_NONE;
    int n = snprintf(options, size,
                     "-cl-std=CL1.2 -w -DDIM_QK=%d -DDIM_V=%d -DMASK_KIND=%d -DDTYPE_Q=%d "
                     "-DDTYPE_KV=%d -DDTYPE_O=%d -DTILE_K=%d",
                     (int)p->dim_qk, (int)p->dim_v, mask_kind, (int)p->dtype_q, (int)p->dtype_kv,
                     (int)p->dtype_o, (int)t->tile_k);
    if (t->kernel == CLATTN_KERNEL_VECTOR)
        // CPU drivers compile with clang and take its prefetch; others may not know it.
        snprintf(options + n, size - (size_t)n, " -DW=%d -DQV=%d -DRK=%d -DRD=%d%s", (int)t->width,
                 (int)t->vecs_q, (int)t->block_k, (int)t->block_d,
                 cla_caps_vector_shape(caps) ? " -DHAS_PREFETCH" : "");
    else
        snprintf(options + n, size - (size_t)n,
                 " -DTILE_Q=%d -DITEMS_Q=%d -DITEMS_K=%d -DCHUNK_D=%d -DLONG_ROWS=%d",
                 (int)t->tile_q, (int)t->items_q, (int)t->items_k, (int)t->chunk_d,
                 p->max_len_kv > CLA_LONG_ROWS_KEYS);
}

static clattn_status check_limits(clattn_context *ctx, const struct cla_kernels *kernels,
                                  const struct cla_tile *t, char *why, size_t why_size)
{
    size_t group = 0, local = 0;
    clattn_status st = cla_kernels_limits(kernels, ctx->ocl->device, &group, &local);
    if (st == CLATTN_OK && !cla_tile_fits_kernel(t, &ctx->caps, group, local, why, why_size))
        st = CLATTN_ERR_UNSUPPORTED;
    return st;
}

static void release(struct cla_prepared *prepared)
{
    if (!prepared)
        return;
    cla_kernels_destroy(&prepared->kernels);
    free(prepared);
}

static clattn_status make_kernels(clattn_context *ctx, cl_program program,
                                  struct cla_prepared *prepared, char *why, size_t why_size)
{
    const bool vector = prepared->tile.kernel == CLATTN_KERNEL_VECTOR;
    clattn_status st = cla_kernels_create(ctx->ocl->cl, program,
                                          vector ? "fused_vector" : "fused_group", &ctx->log,
                                          &prepared->kernels);
    return st == CLATTN_OK ? check_limits(ctx, prepared->kernels, &prepared->tile, why, why_size)
                           : st;
}

static const char *file_of(const struct cla_tile *tile)
{
    return tile->kernel == CLATTN_KERNEL_VECTOR ? "fused_vector.cl" : "fused_group.cl";
}

static bool renew(clattn_context *ctx, struct cla_prepared *prepared, const char *options)
{
    cl_program program = NULL;
    char why[192] = "";
    const char *file = file_of(&prepared->tile);
    if (cla_ocl_rebuild(ctx, file, options, CLATTN_LOG_WARN, &program) != CLATTN_OK || !program)
        return false;
    cla_logf(&ctx->log, CLATTN_LOG_WARN, "%s: what the program cache had of it failed", file);
    cla_kernels_destroy(&prepared->kernels);
    const bool ok = make_kernels(ctx, program, prepared, why, sizeof why) == CLATTN_OK;
    ctx->ocl->cl->ReleaseProgram(program);
    return ok;
}

static clattn_status prepare(clattn_context *ctx, const struct cla_problem *p,
                             const struct cla_tile *tile, struct cla_prepared **out, char *options,
                             size_t options_size, char *why, size_t why_size)
{
    clattn_status st = CLATTN_OK;
    cl_program program = NULL;
    struct cla_prepared *prepared = calloc(1, sizeof *prepared);
    if (!prepared)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a prepared kernel");
    prepared->tile = *tile;
    build_options(p, tile, &ctx->caps, options, options_size);
    CLA_TRY(cla_ocl_build(ctx, file_of(tile), options, CLATTN_LOG_WARN, &program));
    st = make_kernels(ctx, program, prepared, why, why_size);
    if (st != CLATTN_OK && renew(ctx, prepared, options))
        st = CLATTN_OK;
    CLA_TRY(st);
    *out = prepared;
    prepared = NULL;
done:
    if (program)
        ctx->ocl->cl->ReleaseProgram(program); // the kernels keep it
    release(prepared);
    return st;
}

// ---- launch ------------------------------------------------------------------------------------

static struct cla_fwd_tensor tensor_arg(const struct cla_tensor *t)
{
    return (struct cla_fwd_tensor){t->offset, t->stride[0], t->stride[1], t->stride[2]};
}

static bool aligned16(const struct cla_tensor *t)
{
    return t->offset % 4 == 0 && t->stride[0] % 4 == 0 && t->stride[1] % 4 == 0 &&
           t->stride[2] % 4 == 0;
}

static void fill_args(const struct cla_problem *p, const struct cla_tile *tile,
                      const struct cla_call *c, struct cla_fwd_args *a)
{
    const int64_t rows = (int64_t)c->len_q * p->group;
    const float size = fabsf(c->scale);
    const bool fold = size == 0.0f || (size >= 0x1p-20f && size <= 1.0f); // see score.clh
    *a = (struct cla_fwd_args){
        .q = tensor_arg(&c->q),
        .k = tensor_arg(&c->k),
        .v = tensor_arg(&c->v),
        .o = tensor_arg(&c->o),
        .mask = {c->mask.offset, c->mask.stride[0], c->mask.stride[1], c->mask.stride[2],
                 c->mask.stride[3]},
        .lse_offset = c->lse_offset,
        .batch = c->batch,
        .heads_q = p->heads_q,
        .heads_kv = p->heads_kv,
        .group = p->group,
        .len_q = c->len_q,
        .len_kv = c->len_kv,
        .win_lo = c->win_lo,
        .win_hi = c->win_hi,
        .scale = fold ? c->scale : 1.0f,
        .post_scale = fold ? 1.0f : c->scale,
        .num_tiles = (cla_i32)((rows + tile->tile_q - 1) / tile->tile_q),
    };
    if (p->lse)
        a->flags |= CLA_FWD_HAS_LSE;
    if (p->mask)
        a->flags |= CLA_FWD_HAS_MASK;
    if (p->dim_qk % 4 == 0 && p->dim_v % 4 == 0 && aligned16(&c->q) && aligned16(&c->k) &&
        aligned16(&c->v) && aligned16(&c->o))
        a->flags |= CLA_FWD_ALIGNED16;
}

// Keys that a work-item gets through on a driver that counts its loops: from above, every loop of
// fused_group.cl for one tile of keys, twice for a careful second pass.
static int64_t keys_within_loop_limit(const struct cla_problem *p, const struct cla_tile *t)
{
    const int64_t items = (int64_t)t->items_q * t->items_k;
    const int32_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    const int64_t chunks = (dim + t->chunk_d - 1) / t->chunk_d;
    const int64_t quads = t->chunk_d / 4 + 2;
    const int64_t rows = t->tile_q > t->tile_k ? t->tile_q : t->tile_k;
    const int64_t fill = (rows * quads + items - 1) / items + 1;
    const int64_t tile = chunks * (3 * fill + quads + 2 * t->tile_k + 2) + t->items_k + 16;
    return CLA_LOOP_LIMIT / (2 * tile) * t->tile_k;
}

static bool may_fall_back(const struct cla_problem *p)
{
    return p->algo == CLATTN_ALGO_AUTO && p->kernel == CLATTN_KERNEL_AUTO && !p->no_fallback;
}

// CLATTN_OK if the device can serve this call; otherwise the CPU path may, where it was not barred.
static clattn_status check_keys(const clattn_context *ctx, const struct cla_problem *p,
                                const struct cla_tile *t, const struct cla_call *call)
{
    if (!(ctx->caps.quirks & CLA_QUIRK_LOOP_LIMIT) || t->kernel != CLATTN_KERNEL_GROUP)
        return CLATTN_OK;
    const int64_t keys = keys_within_loop_limit(p, t);
    if (call->len_kv <= keys)
        return CLATTN_OK;
    const bool fallback = may_fall_back(p);
    cla_logf(&ctx->log, fallback ? CLATTN_LOG_WARN : CLATTN_LOG_ERROR,
             "len_kv is %d: this driver stops loops after %d iterations, enough for %lld keys%s",
             (int)call->len_kv, (int)CLA_LOOP_LIMIT, (long long)keys,
             fallback ? "; the CPU path computes this call" : "");
    return CLATTN_ERR_UNSUPPORTED;
}

static clattn_status launch(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call,
                            const struct cla_submit *submit)
{
    const struct cla_tile *t = &prepared->tile;
    struct cla_fwd_args args;
    fill_args(p, t, call, &args);
    const clattn_buf *const bufs[] = {&call->q.buf, &call->k.buf, &call->v.buf,
                                      &call->o.buf, &call->lse,   &call->mask.buf};
    struct cla_arg arg[7] = {{sizeof args, &args}};
    for (int i = 0; i < 6; i++)
        arg[1 + i] = (struct cla_arg){
            sizeof(cl_mem), bufs[i]->kind == CLATTN_BUF_CL_MEM ? &bufs[i]->ptr : NULL};
    // In one dimension, so that a driver cannot mix the heads that its threads work on at a time:
    // 91 -> 124 GFLOP/s of the vector shape with 64 channels on Intel's CPU runtime.
    const size_t local = t->kernel == CLATTN_KERNEL_GROUP ? (size_t)(t->items_q * t->items_k) : 1;
    const size_t global =
        (size_t)args.num_tiles * (size_t)p->heads_kv * (size_t)call->batch * local;
    return cla_kernels_enqueue(prepared->kernels, &ctx->log, arg, 7,
                               (cl_command_queue)submit->queue, 1, &global, &local,
                               submit->num_wait, submit->wait, submit->done);
}

static clattn_status enqueue(clattn_context *ctx, const struct cla_problem *p,
                             const struct cla_prepared *prepared, const struct cla_call *call,
                             const struct cla_submit *submit)
{
    clattn_status st = check_keys(ctx, p, &prepared->tile, call);
    if (st != CLATTN_OK)
        return may_fall_back(p) ? cla_host_enqueue(ctx, p, call, false, submit) : st;
    return launch(ctx, p, prepared, call, submit);
}

// Copies in, runs, copies out.
static clattn_status run_on_device(clattn_context *ctx, const struct cla_problem *p,
                                   const struct cla_prepared *prepared,
                                   const struct cla_call *call)
{
    struct cla_stage stage;
    clattn_status st = cla_stage_in(ctx, p, call, &stage);
    if (st != CLATTN_OK)
        return st;
    const struct cla_log *log = &ctx->log;
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_event event = NULL;
    const struct cla_submit submit = {ctx->ocl->queue, 0, NULL, &event};
    CLA_TRY(launch(ctx, p, prepared, &stage.call, &submit));
    CLA_CL(cl->WaitForEvents(1, &event));
    CLA_TRY(cla_stage_out(&stage, event));
done:
    if (event)
        cl->ReleaseEvent(event);
    cla_stage_release(&stage);
    return st;
}

// Host memory that the device cannot take in one allocation, as with K broadcast by large strides,
// may still be no trouble for the CPU path.
static bool too_large(const clattn_context *ctx, const struct cla_problem *p,
                      const struct cla_call *call)
{
    struct cla_call copy = *call;
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    const size_t most = ctx->caps.max_alloc_bytes;
    cla_call_bufs(p, &copy, bufs);
    for (int i = 0; most && i < CLA_CALL_BUFS; i++) {
        const size_t bytes = bufs[i].end_bytes - bufs[i].begin_bytes;
        if (!bufs[i].end_bytes || bufs[i].buf->kind != CLATTN_BUF_HOST || bytes <= most)
            continue;
        cla_logf(&ctx->log, CLATTN_LOG_WARN,
                 "%s spans %zu bytes, the device allows %zu in one allocation; the CPU path "
                 "computes this call", bufs[i].name, bytes, most);
        return true;
    }
    return false;
}

static clattn_status run(clattn_context *ctx, const struct cla_problem *p,
                         const struct cla_prepared *prepared, const struct cla_call *call)
{
    if (may_fall_back(p) && too_large(ctx, p, call))
        return cla_algo_host.run(ctx, p, NULL, call);
    clattn_status st = check_keys(ctx, p, &prepared->tile, call);
    if (st != CLATTN_OK)
        return may_fall_back(p) ? cla_algo_host.run(ctx, p, NULL, call) : st;
    const bool take_turns = (ctx->caps.quirks & CLA_QUIRK_ONE_THREAD) != 0;
    if (take_turns)
        cla_mutex_lock(ctx->map_mutex);
    st = run_on_device(ctx, p, prepared, call);
    if (take_turns)
        cla_mutex_unlock(ctx->map_mutex);
    return st;
}

const struct cla_algo cla_algo_fused = {
    .id = CLATTN_ALGO_FUSED,
    .name = "fused",
    .propose = propose,
    .prepare = prepare,
    .renew = renew,
    .release = release,
    .run = run,
    .enqueue = enqueue,
};
