// SPDX-License-Identifier: Apache-2.0
#include "algo/tiled_ocl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/stage_ocl.h"
#include "ocl/error.h"

// On a GPU the best tile with sub-groups comes before those without: the maximum of a row then goes
// between registers, not through local memory and a barrier.
static int best_with_subgroups(const struct cla_algo *self, const struct cla_problem *p,
                               const struct cla_caps *caps, int32_t first, struct cla_tile *out,
                               int max)
{
    if (p->kernel != CLATTN_KERNEL_AUTO || first != CLATTN_KERNEL_GROUP || max < 2 ||
        caps->type != CLA_DEVICE_GPU || !caps->subgroups || !self->tiled->subgroups)
        return 0;
    return cla_tile_rank(p, caps, CLATTN_KERNEL_SUBGROUP, out, 1, NULL);
}

bool cla_tiled_compiles(const struct cla_algo *self, const struct cla_caps *caps,
                        struct cla_notes *refusals)
{
    if (caps->type == CLA_DEVICE_BUILTIN)
        cla_note(refusals, "%s: the context's device is the built-in CPU path", self->name);
    else if (!caps->compiler)
        cla_note(refusals, "%s: the device has no OpenCL C compiler", self->name);
    else
        return true;
    return false;
}

int cla_tiled_propose(const struct cla_algo *self, const struct cla_problem *p,
                      const struct cla_caps *caps, struct cla_tile *out, int max,
                      struct cla_notes *refusals)
{
    if (!cla_tiled_compiles(self, caps, refusals))
        return 0;
    const int32_t best = cla_caps_vector_shape(caps) ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP;
    const int32_t first = p->kernel == CLATTN_KERNEL_AUTO ? best : p->kernel;
    const int32_t other =
        first == CLATTN_KERNEL_GROUP ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP;
    // The other shape is right here too, but several times slower than the CPU path: it only
    // serves where that one may not.
    const bool both = p->kernel == CLATTN_KERNEL_AUTO &&
                      (p->algo != CLATTN_ALGO_AUTO || p->no_fallback);
    if (p->kernel == CLATTN_KERNEL_AUTO && !both)
        cla_note(refusals,
                 "%s, %s shape: passed over: the %s shape suits this device, and where that fails "
                 "the CPU path is faster than this one",
                 self->name, other == CLATTN_KERNEL_GROUP ? "group" : "vector",
                 other == CLATTN_KERNEL_GROUP ? "vector" : "group");
    if (first == CLATTN_KERNEL_SUBGROUP && !self->tiled->subgroups) {
        cla_note(refusals, "%s: it has no subgroup shape", self->name);
        return 0;
    }
    int n = best_with_subgroups(self, p, caps, first, out, max);
    n += cla_tile_rank(p, caps, first, out + n, max - n, refusals);
    if (both && n < max)
        n += cla_tile_rank(p, caps, other, out + n, max - n, refusals);
    return n;
}

// ---- build -------------------------------------------------------------------------------------

// Numbers only, so that no caller's text ever reaches the compiler.
void cla_tiled_options(const struct cla_problem *p, const struct cla_tile *t,
                       const struct cla_caps *caps, char *options, size_t size)
{
    const bool general = p->mask || p->bias || p->alibi || p->softcap;
    const bool window = p->causal || p->window;
    const int mask_kind = general ? CLA_MASK_GENERAL : window ? CLA_MASK_WINDOW : CLA_MASK_NONE;
    int n = snprintf(options, size,
                     "-cl-std=CL1.2 -w -DDIM_QK=%d -DDIM_V=%d -DMASK_KIND=%d -DDTYPE_Q=%d "
                     "-DDTYPE_KV=%d -DDTYPE_O=%d -DPAGED=%d -DTILE_K=%d",
                     (int)p->dim_qk, (int)p->dim_v, mask_kind, (int)p->dtype_q, (int)p->dtype_kv,
                     (int)p->dtype_o, p->paged, (int)t->tile_k);
    // CPU drivers compile with clang and take its prefetch; others may not know it.
    const char *prefetch = cla_caps_vector_shape(caps) ? " -DHAS_PREFETCH" : "";
    if (cla_tile_is_few(t))
        n += snprintf(options + n, size - (size_t)n, " -DW=%d -DROWS=%d%s", (int)t->width,
                      (int)t->tile_q, prefetch);
    else if (t->kernel == CLATTN_KERNEL_VECTOR)
        n += snprintf(options + n, size - (size_t)n, " -DW=%d -DQV=%d -DRK=%d -DRD=%d%s",
                      (int)t->width, (int)t->vecs_q, (int)t->block_k, (int)t->block_d, prefetch);
    else
        n += snprintf(options + n, size - (size_t)n,
                      " -DTILE_Q=%d -DITEMS_Q=%d -DITEMS_K=%d -DCHUNK_D=%d -DLONG_ROWS=%d "
                      "-DSUBGROUPS=%d",
                      (int)t->tile_q, (int)t->items_q, (int)t->items_k, (int)t->chunk_d,
                      cla_tile_has_long_rows(t->tile_k, p->max_len_kv), (int)t->subgroups);
    if (cla_caps_lanes(caps))
        snprintf(options + n, size - (size_t)n, " -DSUBGROUP_LANES=%d", (int)cla_caps_lanes(caps));
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

static void destroy_kernels(struct cla_prepared *prepared)
{
    for (int i = 0; i < CLA_TILED_KERNELS; i++)
        cla_kernels_destroy(&prepared->kernels[i]);
}

void cla_tiled_release(struct cla_prepared *prepared)
{
    if (!prepared)
        return;
    destroy_kernels(prepared);
    if (prepared->more)
        prepared->algo->tiled->release_more(prepared);
    free(prepared);
}

static const struct cla_tiled_kernel *kernels_of(const struct cla_prepared *prepared)
{
    const struct cla_tiled *t = prepared->algo->tiled;
    if (cla_tile_is_few(&prepared->tile))
        return t->few;
    return prepared->tile.kernel == CLATTN_KERNEL_VECTOR ? t->vector : t->group;
}

// A fresh program of each file: from the cache, or compiled anew under `anew`, where *renewed says
// whether the cache had had any of them.
static clattn_status make_kernels(clattn_context *ctx, struct cla_prepared *prepared,
                                  const char *options, bool anew, bool *renewed, char *why,
                                  size_t why_size)
{
    clattn_status st = CLATTN_OK;
    cl_program program = NULL;
    const struct cla_tiled_kernel *k = kernels_of(prepared);
    prepared->rebuilds = cla_programs_rebuild_count(ctx->ocl->programs);
    for (int i = 0; i < CLA_TILED_KERNELS && k[i].file; i++) {
        if (anew) {
            CLA_TRY(cla_ocl_rebuild(ctx, k[i].file, options, CLATTN_LOG_WARN, &program));
            *renewed = *renewed || program;
        }
        if (!program)
            CLA_TRY(cla_ocl_build(ctx, k[i].file, options, CLATTN_LOG_WARN, &program));
        CLA_TRY(cla_kernels_create(ctx->ocl->cl, program, k[i].function, &ctx->log,
                                   &prepared->kernels[i]));
        CLA_TRY(check_limits(ctx, prepared->kernels[i], &prepared->tile, why, why_size));
        ctx->ocl->cl->ReleaseProgram(program); // the kernels keep it
        program = NULL;
    }
done:
    if (program)
        ctx->ocl->cl->ReleaseProgram(program);
    return st;
}

// Handles name programs as long as none was replaced, which would leave its handle to another.
bool cla_tiled_identify(clattn_context *ctx, const struct cla_prepared *prepared,
                        unsigned char name[CLA_PROGRAMS_NAME])
{
    _Static_assert(sizeof(uint64_t) + CLA_TILED_KERNELS * sizeof(cl_program) <= CLA_PROGRAMS_NAME,
                   "room for all handles");
    memset(name, 0, CLA_PROGRAMS_NAME);
    memcpy(name, &prepared->rebuilds, sizeof prepared->rebuilds);
    for (int i = 0; i < CLA_TILED_KERNELS && prepared->kernels[i]; i++) {
        const cl_program program = cla_kernels_program(prepared->kernels[i]);
        memcpy(name + sizeof(uint64_t) + (size_t)i * sizeof program, &program, sizeof program);
    }
    return cla_programs_rebuild_count(ctx->ocl->programs) == prepared->rebuilds;
}

bool cla_tiled_renew(clattn_context *ctx, struct cla_prepared *prepared, const char *options)
{
    char why[192] = "";
    bool renewed = false;
    destroy_kernels(prepared);
    const clattn_status st = make_kernels(ctx, prepared, options, true, &renewed, why, sizeof why);
    if (renewed)
        cla_logf(&ctx->log, CLATTN_LOG_WARN, "%s: what the program cache had of it failed",
                 kernels_of(prepared)[0].file);
    return st == CLATTN_OK && renewed;
}

clattn_status cla_tiled_prepare(clattn_context *ctx, const struct cla_algo *self,
                                const struct cla_problem *p, const struct cla_tile *tile,
                                struct cla_prepared **out, char *options, size_t options_size,
                                char *why, size_t why_size)
{
    bool renewed = false;
    struct cla_prepared *prepared = calloc(1, sizeof *prepared);
    if (!prepared)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a prepared kernel");
    prepared->algo = self;
    prepared->tile = *tile;
    cla_tiled_options(p, tile, &ctx->caps, options, options_size);
    clattn_status st = CLATTN_OK;
    if (self->tiled->prepare_more)
        st = self->tiled->prepare_more(ctx, p, prepared, why, why_size);
    if (st != CLATTN_OK) {
        cla_tiled_release(prepared);
        return st;
    }
    st = make_kernels(ctx, prepared, options, false, &renewed, why, why_size);
    // A program of the cache may lack what one that is compiled has.
    if (st != CLATTN_OK && st != CLATTN_ERR_BUILD && st != CLATTN_ERR_FILE &&
        st != CLATTN_ERR_OUT_OF_MEMORY && cla_tiled_renew(ctx, prepared, options))
        st = CLATTN_OK;
    if (st == CLATTN_OK)
        *out = prepared;
    else
        cla_tiled_release(prepared);
    return st;
}

// ---- launch ------------------------------------------------------------------------------------

_Static_assert(offsetof(struct cla_fwd_args, reserved) + sizeof(cla_i32) ==
                   sizeof(struct cla_fwd_args),
               "one driver takes a struct without the padding at its end");

static struct cla_fwd_tensor tensor_arg(const struct cla_tensor *t)
{
    return (struct cla_fwd_tensor){t->offset, t->stride[0], t->stride[1], t->stride[2]};
}

static struct cla_fwd_mask mask_arg(const struct cla_mask *m)
{
    return (struct cla_fwd_mask){m->offset, m->stride[0], m->stride[1], m->stride[2], m->stride[3]};
}

static uint32_t flags_of(const struct cla_problem *p, const struct cla_call *c)
{
    const struct {
        bool set;
        uint32_t flag;
    } f[] = {{p->lse, CLA_FWD_HAS_LSE},
             {p->mask, CLA_FWD_HAS_MASK},
             {p->bias, CLA_FWD_HAS_BIAS},
             {p->dtype_bias == CLATTN_DTYPE_F16, CLA_FWD_BIAS_F16},
             {p->dtype_bias == CLATTN_DTYPE_BF16, CLA_FWD_BIAS_BF16},
             {p->alibi, CLA_FWD_HAS_ALIBI},
             {p->sinks, CLA_FWD_HAS_SINKS},
             {p->kv_lens, CLA_FWD_HAS_KV_LENS},
             {p->packed_q, CLA_FWD_PACKED_Q},
             {p->packed_kv, CLA_FWD_PACKED_KV},
             {p->align == CLATTN_ALIGN_TOP_LEFT, CLA_FWD_TOP_LEFT},
             {c->faults.end_bytes > 0, CLA_FWD_HAS_FAULTS}};
    uint32_t flags = 0;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        flags |= f[i].set ? f[i].flag : 0;
    return flags;
}

static bool aligned16(const struct cla_tensor *t)
{
    return t->offset % 4 == 0 && t->stride[0] % 4 == 0 && t->stride[1] % 4 == 0 &&
           t->stride[2] % 4 == 0;
}

void cla_tiled_args(const struct cla_problem *p, const struct cla_tile *tile,
                    const struct cla_call *c, struct cla_fwd_args *a)
{
    const int64_t rows = (int64_t)c->len_q * p->group;
    const bool fold = cla_scale_folds(c->scale);
    *a = (struct cla_fwd_args){
        .q = tensor_arg(&c->q),
        .k = tensor_arg(&c->k),
        .v = tensor_arg(&c->v),
        .o = tensor_arg(&c->o),
        .k_scale = tensor_arg(&c->k_scale),
        .v_scale = tensor_arg(&c->v_scale),
        .mask = mask_arg(&c->mask),
        .bias = mask_arg(&c->bias),
        .lse_offset = c->lse_offset,
        .lse_stride_b = c->lse_stride[0],
        .lse_stride_h = c->lse_stride[1],
        .workspace_offset = c->workspace_offset,
        .alibi_offset = c->alibi.offset,
        .alibi_stride_b = c->alibi_stride,
        .sinks_offset = c->sinks.offset,
        .kv_lens_offset = c->kv_lens.offset,
        .cu_q_offset = c->cu_q.offset,
        .cu_kv_offset = c->cu_kv.offset,
        .table_offset = c->table.offset,
        .faults_offset = c->faults.offset,
        .batch = c->batch,
        .heads_q = p->heads_q,
        .heads_kv = p->heads_kv,
        .group = p->group,
        .len_q = c->len_q,
        .len_kv = c->len_kv,
        .max_len_q = c->len_q,
        .off = c->off,
        .left = c->left,
        .right = c->right,
        .win_lo = c->win_lo,
        .win_hi = c->win_hi,
        .total_q = c->total_q,
        .total_kv = c->total_kv,
        .page_size = p->page_size,
        .num_pages = c->num_pages,
        .max_pages = c->max_pages,
        .softcap = c->softcap,
        .scale = fold ? c->scale : 1.0f,
        .post_scale = fold ? 1.0f : c->scale,
        .num_tiles = (cla_i32)((rows + tile->tile_q - 1) / tile->tile_q),
        .num_splits = 1,
    };
    a->flags = flags_of(p, c);
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
                                const struct cla_prepared *prepared, const struct cla_call *call)
{
    const struct cla_tile *t = &prepared->tile;
    if (!(ctx->caps.quirks & CLA_QUIRK_LOOP_LIMIT) || t->kernel != CLATTN_KERNEL_GROUP)
        return CLATTN_OK;
    const struct cla_algo *algo = prepared->algo;
    const struct cla_extent e = {call->batch, call->len_q, call->len_kv, false};
    const int64_t parts = algo->num_splits ? algo->num_splits(p, &ctx->caps, t, &e) : 1;
    const int64_t keys = keys_within_loop_limit(p, t) / algo->tiled->passes * parts;
    if (call->len_kv <= keys)
        return CLATTN_OK;
    const bool fallback = may_fall_back(p);
    cla_logf(&ctx->log, fallback ? CLATTN_LOG_WARN : CLATTN_LOG_ERROR,
             "len_kv is %d: this driver stops loops after %d iterations, enough for %lld keys%s",
             (int)call->len_kv, (int)CLA_LOOP_LIMIT, (long long)keys,
             fallback ? "; the CPU path computes this call" : "");
    return CLATTN_ERR_UNSUPPORTED;
}

size_t cla_tiled_local(const struct cla_tile *tile)
{
    return tile->kernel == CLATTN_KERNEL_GROUP ? (size_t)(tile->items_q * tile->items_k) : 1;
}

clattn_status cla_tiled_launch(clattn_context *ctx, const struct cla_prepared *prepared, int which,
                               const struct cla_fwd_args *args, const struct cla_call *call,
                               uint64_t groups, const struct cla_submit *submit)
{
    const clattn_buf *const bufs[CLA_SLOTS] = {
        [CLA_SLOT_Q] = &call->q.buf, [CLA_SLOT_K] = &call->k.buf, [CLA_SLOT_V] = &call->v.buf,
        [CLA_SLOT_O] = &call->o.buf, [CLA_SLOT_LSE] = &call->lse,
        [CLA_SLOT_MASK] = &call->mask.buf, [CLA_SLOT_WORKSPACE] = &call->workspace,
        [CLA_SLOT_BIAS] = &call->bias.buf, [CLA_SLOT_ALIBI] = &call->alibi.buf,
        [CLA_SLOT_SINKS] = &call->sinks.buf, [CLA_SLOT_KV_LENS] = &call->kv_lens.buf,
        [CLA_SLOT_CU_Q] = &call->cu_q.buf, [CLA_SLOT_CU_KV] = &call->cu_kv.buf,
        [CLA_SLOT_TABLE] = &call->table.buf, [CLA_SLOT_K_SCALE] = &call->k_scale.buf,
        [CLA_SLOT_V_SCALE] = &call->v_scale.buf, [CLA_SLOT_FAULTS] = &call->faults.buf};
    struct cla_arg arg[CLA_SLOTS] = {{sizeof *args, args}};
    for (int i = CLA_SLOT_Q; i < CLA_SLOTS; i++)
        arg[i] = (struct cla_arg){
            sizeof(cl_mem), bufs[i]->kind == CLATTN_BUF_CL_MEM ? &bufs[i]->ptr : NULL};
    // In one dimension, so that a driver cannot mix the heads that its threads work on at a time:
    // 91 -> 124 GFLOP/s of the vector shape with 64 channels on Intel's CPU runtime.
    return cla_kernels_enqueue_groups(prepared->kernels[which], &ctx->log, arg, CLA_SLOTS,
                                      (cl_command_queue)submit->queue, groups,
                                      cla_tiled_local(&prepared->tile), submit->num_wait,
                                      submit->wait, submit->done);
}

clattn_status cla_tiled_launch_rows(clattn_context *ctx, const struct cla_problem *p,
                                    const struct cla_prepared *prepared,
                                    const struct cla_call *call, const struct cla_submit *submit)
{
    struct cla_fwd_args args;
    cla_tiled_args(p, &prepared->tile, call, &args);
    const uint64_t groups =
        (uint64_t)args.num_tiles * (uint64_t)p->heads_kv * (uint64_t)call->batch;
    return cla_tiled_launch(ctx, prepared, 0, &args, call, groups, submit);
}

clattn_status cla_tiled_enqueue(clattn_context *ctx, const struct cla_problem *p,
                                const struct cla_prepared *prepared, const struct cla_call *call,
                                const struct cla_submit *submit)
{
    clattn_status st = check_keys(ctx, p, prepared, call);
    if (st != CLATTN_OK)
        return may_fall_back(p) ? cla_host_enqueue(ctx, p, call, false, submit) : st;
    return prepared->algo->tiled->launch(ctx, p, prepared, call, submit);
}

// A workspace for a blocking call that brings none; *own stays NULL where none is needed.
static clattn_status own_workspace(clattn_context *ctx, const struct cla_algo *algo,
                                   struct cla_call *call, void **own)
{
    const uint64_t need = call->workspace_need;
    if (!need || call->workspace.kind != CLATTN_BUF_ABSENT)
        return CLATTN_OK;
    const clattn_status st = need >= SIZE_MAX ? CLATTN_ERR_OUT_OF_MEMORY
                                             : cla_ocl_mem_create(ctx, (size_t)need, own);
    if (st != CLATTN_OK)
        return cla_fail(&ctx->log, st, "%s: no memory for a workspace of %llu bytes", algo->name,
                        (unsigned long long)need);
    call->workspace = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = *own};
    call->workspace_offset = 0;
    return CLATTN_OK;
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
    cl_event event = NULL;
    void *own = NULL;
    const struct cla_submit submit = {ctx->ocl->queue, 0, NULL, &event};
    CLA_TRY(own_workspace(ctx, prepared->algo, &stage.call, &own));
    st = prepared->algo->tiled->launch(ctx, p, prepared, &stage.call, &submit);
    CLA_TRY(cla_stage_end(&stage, st, event));
done:
    if (own)
        cla_ocl_mem_destroy(ctx, own);
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

clattn_status cla_tiled_run(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call)
{
    if (may_fall_back(p) && too_large(ctx, p, call))
        return cla_algo_host.run(ctx, p, NULL, call);
    clattn_status st = check_keys(ctx, p, prepared, call);
    if (st != CLATTN_OK)
        return may_fall_back(p) ? cla_algo_host.run(ctx, p, NULL, call) : st;
    const bool turn = cla_ocl_begin_turn(ctx, false);
    st = run_on_device(ctx, p, prepared, call);
    cla_ocl_end_turn(ctx, turn);
    return st;
}
