// SPDX-License-Identifier: Apache-2.0
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call_memory.h"
#include "host/host.h"
#include "tile_check.h"

// ---- plan --------------------------------------------------------------------------------------

// The trial, and a second one where the fault may be in what was kept on disk.
static clattn_status try_choice(clattn_plan *plan, const struct cla_choice *choice,
                                struct cla_prepared *prepared, char *why, size_t why_size)
{
    const struct cla_algo *algo = choice->algo;
    clattn_status st =
        cla_trial(plan->ctx, &plan->problem, algo, prepared, &choice->tile, why, why_size);
    if (st == CLATTN_OK || st == CLATTN_ERR_OUT_OF_MEMORY || !algo->renew ||
        !algo->renew(plan->ctx, prepared, plan->options))
        return st;
    why[0] = '\0';
    return cla_trial(plan->ctx, &plan->problem, algo, prepared, &choice->tile, why, why_size);
}

// Builds one choice and tries it. A failure leaves a note and nothing else.
static clattn_status prepare_choice(clattn_plan *plan, const struct cla_choice *choice)
{
    char why[192] = "";
    struct cla_prepared *prepared = NULL;
    clattn_status st =
        choice->algo->prepare(plan->ctx, choice->algo, &plan->problem, &choice->tile, &prepared,
                              plan->options, sizeof plan->options, why, sizeof why);
    const bool on_device = choice->algo->tiled || choice->tile.kernel != CLATTN_KERNEL_AUTO;
    if (st == CLATTN_OK && on_device)
        st = try_choice(plan, choice, prepared, why, sizeof why);
    if (st == CLATTN_OK) {
        plan->choice = *choice;
        plan->prepared = prepared;
        return CLATTN_OK;
    }
    choice->algo->release(prepared);
    cla_note(&plan->refusals, "%s (%s): %s", choice->algo->name, choice->tile.reason,
             why[0] ? why : clattn_status_string(st));
    cla_logf(&plan->ctx->log, CLATTN_LOG_DEBUG, "given up: %s",
             plan->refusals.text[plan->refusals.count - 1]);
    return st;
}

// One line for what is slower than it might be, from the refusal on that decided.
static void log_fallback(const clattn_plan *plan, int first)
{
    const int more = plan->refusals.count - first - 1;
    char rest[80] = "";
    if (more > 0)
        snprintf(rest, sizeof rest, " (and %d more, see clattn_plan_get_refusal())", more);
    if (plan->ctx->ocl && plan->choice.algo->id == CLATTN_ALGO_HOST)
        cla_logf(&plan->ctx->log, CLATTN_LOG_WARN,
                 "fallback: the CPU path computes this plan, not the OpenCL device: %s%s",
                 more >= 0 ? plan->refusals.text[first] : "it was not asked", rest);
    else
        cla_logf(&plan->ctx->log, CLATTN_LOG_WARN, "fallback: %s (%s) computes this plan: %s%s",
                 plan->choice.algo->name, plan->choice.tile.reason,
                 more >= 0 ? plan->refusals.text[first] : "", rest);
}

clattn_status cla_plan_prepare(clattn_plan *plan, const struct cla_ranking *ranking)
{
    clattn_context *ctx = plan->ctx;
    plan->refusals = ranking->refusals;
    for (int i = 0; i < plan->refusals.count; i++)
        cla_logf(&ctx->log, CLATTN_LOG_DEBUG, "refused: %s", plan->refusals.text[i]);

    clattn_status st = CLATTN_ERR_UNSUPPORTED;
    int i = 0;
    for (; i < ranking->count; i++) {
        st = prepare_choice(plan, &ranking->choice[i]);
        if (st == CLATTN_OK || st == CLATTN_ERR_OUT_OF_MEMORY || st == CLATTN_ERR_FILE)
            break;
    }
    if (st == CLATTN_OK && i > 0)
        log_fallback(plan, ranking->refusals.count);
    // Falling back: something better failed, or OpenCL was there and could not serve.
    plan->is_fallback = st == CLATTN_OK && plan->problem.algo == CLATTN_ALGO_AUTO &&
                        (i > 0 || (ctx->ocl && plan->choice.algo->id == CLATTN_ALGO_HOST));
    if (plan->is_fallback && i == 0)
        log_fallback(plan, 0);
    const int n = plan->refusals.count;
    if (ranking->count == 0 || i == ranking->count)
        st = cla_fail(&ctx->log, st, "nothing can serve this plan: %s%s%s",
                      n > 1 ? plan->refusals.text[n - 2] : "", n > 1 ? "; " : "",
                      n > 0 ? plan->refusals.text[n - 1] : "no algorithm");
    return st;
}

static const char *kernel_name(const clattn_plan *plan)
{
    if (plan->choice.tile.kernel == CLATTN_KERNEL_GROUP)
        return plan->choice.tile.subgroups ? "subgroup" : "group";
    if (plan->choice.tile.kernel == CLATTN_KERNEL_VECTOR)
        return "vector";
    return plan->choice.algo->id == CLATTN_ALGO_HOST ? cla_host_isa_of(&plan->problem) : "";
}

static int32_t num_splits(const clattn_plan *plan)
{
    const struct cla_problem *p = &plan->problem;
    const struct cla_algo *algo = plan->choice.algo;
    const struct cla_extent e = cla_bounds_of(p);
    return algo->num_splits ? algo->num_splits(p, &plan->ctx->caps, &plan->choice.tile, &e) : 1;
}

// What runs, for what, why, and where: one line.
static void log_plan(const clattn_plan *plan)
{
    const struct cla_tile *t = &plan->choice.tile;
    const char *kernel = kernel_name(plan);
    const int32_t splits = num_splits(plan);
    char problem[320], tile[32] = "", parts[32] = "", device[400];
    cla_problem_text(&plan->problem, problem, sizeof problem);
    if (t->tile_q)
        snprintf(tile, sizeof tile, ", tile %dx%d", (int)t->tile_q, (int)t->tile_k);
    if (splits > 1)
        snprintf(parts, sizeof parts, ", keys in %d parts", (int)splits);
    cla_context_device_text(plan->ctx, device, sizeof device);
    cla_logf(&plan->ctx->log, CLATTN_LOG_INFO, "plan: %s -> %s%s%s%s%s; why: %s%s; on %s",
             problem, plan->choice.algo->name, kernel[0] ? " " : "", kernel, tile, parts,
             t->reason, plan->is_fallback ? " (fallback)" : "", device);
}

// The first choice that builds and passes; *plan is half-built on failure.
static clattn_status choose(clattn_plan *plan)
{
    struct cla_ranking *ranking = malloc(sizeof *ranking);
    if (!ranking)
        return cla_fail(&plan->ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to plan");
    cla_plan_rank_tuned(&plan->problem, &plan->ctx->caps, plan->ctx->tune, ranking);
    const clattn_status st = cla_plan_prepare(plan, ranking);
    free(ranking);
    return st;
}

clattn_status clattn_attention_plan_create(clattn_context *ctx, const clattn_attention_desc *desc,
                                           clattn_plan **out)
{
    if (out)
        *out = NULL;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!out)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "out is NULL");
    struct cla_problem problem;
    clattn_status st = cla_problem_from_desc(desc, &ctx->log, &problem);
    if (st == CLATTN_OK)
        st = cla_context_check(ctx);
    if (st != CLATTN_OK)
        return st;
    clattn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a plan");
    plan->ctx = ctx;
    plan->problem = problem;
    st = choose(plan);
    if (st == CLATTN_OK) {
        log_plan(plan);
        *out = plan;
    } else {
        clattn_plan_destroy(&plan);
    }
    return st;
}

void clattn_plan_destroy(clattn_plan **pplan)
{
    if (!pplan || !*pplan)
        return;
    clattn_plan *plan = *pplan;
    *pplan = NULL;
    if (plan->choice.algo && !cla_context_leaves(plan->ctx, plan->prepared))
        plan->choice.algo->release(plan->prepared);
    free(plan);
}

static clattn_status workspace_bound(const clattn_plan *plan, uint64_t *bytes)
{
    const struct cla_problem *p = &plan->problem;
    const struct cla_extent e = {p->max_batch, p->max_len_q, p->max_len_kv, true};
    *bytes = cla_workspace_need(plan->ctx, plan->choice.algo, p, plan->prepared, &e);
    if (*bytes && (p->max_batch == INT32_MAX || p->max_len_q == INT32_MAX ||
                   p->max_len_kv == INT32_MAX))
        return cla_fail(&plan->ctx->log, CLATTN_ERR_OVER_BOUND,
                        "the workspace of %s has no bound: max_batch, max_len_q or max_len_kv of "
                        "the plan is absent", plan->choice.algo->name);
    return CLATTN_OK;
}

// A call is checked with facts of its buffers that last no longer than the checks.
static clattn_status check_call(const clattn_plan *plan, const clattn_attention_call *call,
                                struct cla_facts *facts, struct cla_call *out)
{
    const clattn_status st = cla_context_check(plan->ctx);
    if (st != CLATTN_OK)
        return st;
    cla_facts_begin(facts, cla_context_mem_facts(plan->ctx), plan->ctx);
    return cla_call_check(&plan->problem, call, cla_facts_fn(facts), facts, &plan->ctx->log, out);
}

static uint64_t need_of(const clattn_plan *plan, const struct cla_call *call)
{
    const struct cla_extent e = {call->batch, call->len_q, call->len_kv, false};
    return cla_workspace_need(plan->ctx, plan->choice.algo, &plan->problem, plan->prepared, &e);
}

clattn_status clattn_plan_workspace_bytes(const clattn_plan *plan,
                                          const clattn_attention_call *call, size_t *bytes)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!bytes)
        return cla_fail(&plan->ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    clattn_status st = CLATTN_OK;
    uint64_t need = 0;
    struct cla_call checked;
    if (call) {
        struct cla_facts facts;
        st = check_call(plan, call, &facts, &checked);
        if (st == CLATTN_OK)
            need = need_of(plan, &checked);
    } else {
        st = workspace_bound(plan, &need);
    }
    if (st == CLATTN_OK && need >= SIZE_MAX)
        st = cla_fail(&plan->ctx->log, CLATTN_ERR_OVER_BOUND,
                      "the workspace of %s would have more bytes than memory can have",
                      plan->choice.algo->name);
    if (st == CLATTN_OK)
        *bytes = (size_t)need;
    return st;
}

// The workspace that a call brings must be large enough and nobody else's.
static clattn_status check_workspace(const clattn_plan *plan, struct cla_facts *facts,
                                     struct cla_call *c)
{
    clattn_context *ctx = plan->ctx;
    const clattn_buf *w = &c->workspace;
    const uint64_t need = c->workspace_need;
    if (!need || w->kind == CLATTN_BUF_ABSENT)
        return CLATTN_OK;
    if (w->kind != CLATTN_BUF_CL_MEM)
        return cla_fail(&ctx->log, CLATTN_ERR_BUFFER_MISSING,
                        "workspace.kind is %d: %s needs a cl_mem (%d) of %llu bytes", (int)w->kind,
                        plan->choice.algo->name, (int)CLATTN_BUF_CL_MEM, (unsigned long long)need);
    if (need >= SIZE_MAX || w->offset_bytes > SIZE_MAX - (size_t)need)
        return cla_fail(&ctx->log, CLATTN_ERR_BUFFER_TOO_SMALL,
                        "workspace.offset_bytes is %zu, from where no memory has %llu bytes",
                        w->offset_bytes, (unsigned long long)need);
    const size_t end = w->offset_bytes + (size_t)need;
    const cla_mem_fn fn = cla_facts_fn(facts);
    clattn_status st =
        cla_buf_check("workspace", w, sizeof(float), end, NULL, fn, facts, &ctx->log);
    struct cla_call_buf bufs[CLA_CALL_BUFS];
    cla_call_bufs(&plan->problem, c, bufs);
    const struct cla_buf_range own = {"workspace", w, end};
    for (int i = 0; st == CLATTN_OK && i < CLA_CALL_BUFS; i++) {
        const struct cla_buf_range other = {bufs[i].name, bufs[i].buf, bufs[i].end_bytes};
        if (cla_ranges_overlap(&own, &other, fn, facts))
            st = cla_fail(&ctx->log, CLATTN_ERR_OVERLAP,
                          "workspace (bytes %zu to %zu) overlaps %s (bytes %zu to %zu)",
                          w->offset_bytes, end, other.name, other.buf->offset_bytes,
                          other.end_bytes);
    }
    c->workspace_offset = (int64_t)(w->offset_bytes / sizeof(float));
    return st;
}

clattn_status cla_plan_check_call(const clattn_plan *plan, const clattn_attention_call *call,
                                  struct cla_call *out)
{
    struct cla_facts facts;
    clattn_status st = check_call(plan, call, &facts, out);
    if (st != CLATTN_OK)
        return st;
    out->workspace_need = need_of(plan, out);
    st = check_workspace(plan, &facts, out);
    if (st == CLATTN_OK && (out->batch == 0 || out->len_q == 0))
        cla_logf(&plan->ctx->log, CLATTN_LOG_DEBUG,
                 "%s is 0: there is nothing to compute, and o stays as it is",
                 out->batch == 0 ? "batch" : "len_q");
    return st;
}

// 0 where a bound is absent; 2^64 - 1 where there would be more.
static uint64_t bytes_moved(const clattn_plan *plan)
{
    const struct cla_problem *p = &plan->problem;
    if (p->max_len_q == INT32_MAX || p->max_len_kv == INT32_MAX)
        return 0;
    const struct cla_algo *algo = plan->choice.algo;
    const struct cla_tile *t = &plan->choice.tile;
    const double bytes =
        algo->bytes ? algo->bytes(p, &plan->ctx->caps, t, p->max_len_q, p->max_len_kv)
                    : cla_tile_bytes(p, t, p->max_len_q, p->max_len_kv);
    return bytes < 0x1p64 ? (uint64_t)bytes : UINT64_MAX;
}

clattn_status clattn_plan_get_info(const clattn_plan *plan, clattn_plan_info *out)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!out)
        return cla_fail(&plan->ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "info is NULL");
    const struct cla_tile *t = &plan->choice.tile;
    clattn_plan_info i;
    memset(&i, 0, sizeof i);
    i.algo = plan->choice.algo->id;
    i.kernel = t->subgroups ? CLATTN_KERNEL_SUBGROUP : t->kernel;
    snprintf(i.algo_name, sizeof i.algo_name, "%s", plan->choice.algo->name);
    snprintf(i.kernel_name, sizeof i.kernel_name, "%s", kernel_name(plan));
    i.tile_q = t->tile_q;
    i.tile_k = t->tile_k;
    i.group_size = t->kernel == CLATTN_KERNEL_GROUP ? t->items_q * t->items_k : 1;
    i.vector_width = t->width;
    i.chunk_d = t->chunk_d;
    i.local_bytes = t->local_bytes;
    i.is_fallback = plan->is_fallback;
    i.num_refusals = plan->refusals.count;
    snprintf(i.reason, sizeof i.reason, "%s", t->reason);
    snprintf(i.build_options, sizeof i.build_options, "%s", plan->options);
    i.bytes_moved = bytes_moved(plan);
    i.num_splits = num_splits(plan);
    i.tile = cla_tile_named(t);
    return cla_struct_out("clattn_plan_info", out, CLA_SIZE_TO(clattn_plan_info, build_options), &i,
                          sizeof i, &plan->ctx->log);
}

const char *clattn_plan_get_refusal(const clattn_plan *plan, int32_t n)
{
    return plan && n >= 0 && n < plan->refusals.count ? plan->refusals.text[n] : NULL;
}

// ---- blocking calls ----------------------------------------------------------------------------

clattn_status clattn_attention_run(const clattn_plan *plan, const clattn_attention_call *call)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    struct cla_call checked;
    const clattn_status st = cla_plan_check_call(plan, call, &checked);
    if (st != CLATTN_OK || checked.batch == 0 || checked.len_q == 0)
        return st;
    return plan->choice.algo->run(plan->ctx, &plan->problem, plan->prepared, &checked);
}

static clattn_status run_f32(const clattn_plan *plan, const float *q, const float *k,
                             const float *v, float *o, int32_t batch, int32_t len_q,
                             int32_t len_kv)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = batch;
    call.len_q = len_q;
    call.len_kv = len_kv;
    call.q.buf = clattn_host_buf(q, 0);
    call.k.buf = clattn_host_buf(k, 0);
    call.v.buf = clattn_host_buf(v, 0);
    call.o.buf = clattn_host_buf(o, 0);
    return clattn_attention_run(plan, &call);
}

static void keep(clattn_context *ctx, clattn_plan *plan)
{
    clattn_plan *old = atomic_exchange(&ctx->kept, plan);
    clattn_plan_destroy(&old);
}

// Takes the kept plan out of the context, so that no other thread can use or replace it, or makes
// one where it does not fit.
static clattn_status take_kept(clattn_context *ctx, const clattn_attention_desc *desc,
                               clattn_plan **plan)
{
    *plan = atomic_exchange(&ctx->kept, NULL);
    if (*plan && memcmp(&(*plan)->desc, desc, sizeof *desc) == 0)
        return CLATTN_OK;
    clattn_plan *other = *plan;
    const clattn_status st = clattn_attention_plan_create(ctx, desc, plan);
    if (st == CLATTN_OK) {
        memcpy(&(*plan)->desc, desc, sizeof *desc); // with the bytes between its members
        clattn_plan_destroy(&other);
    } else if (other) {
        keep(ctx, other);
    }
    return st;
}

clattn_status clattn_attention_f32(clattn_context *ctx, const float *q, const float *k,
                                   const float *v, float *o, int32_t batch, int32_t heads_q,
                                   int32_t heads_kv, int32_t len_q, int32_t len_kv, int32_t dim,
                                   int causal)
{
    clattn_status st = CLATTN_OK;
    clattn_context *own = NULL;
    struct cla_log log;
    cla_log_init(&log, NULL, NULL, CLATTN_LOG_WARN);
    // In a description 0 means as many as heads_q, but nobody who writes all counts means that.
    if (heads_kv == 0)
        return cla_fail(ctx ? &ctx->log : &log, CLATTN_ERR_INVALID_ARGUMENT,
                        "heads_kv is 0, less than 1");
    if (!ctx) {
        st = clattn_context_create(NULL, &own);
        if (st != CLATTN_OK)
            return st;
        ctx = own;
    }
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = dim;
    desc.heads_q = heads_q;
    desc.heads_kv = heads_kv;
    desc.features = causal ? CLATTN_FEATURE_CAUSAL : 0;
    clattn_plan *plan = NULL;
    st = take_kept(ctx, &desc, &plan);
    if (st == CLATTN_OK) {
        st = run_f32(plan, q, k, v, o, batch, len_q, len_kv);
        keep(ctx, plan);
    }
    clattn_context_destroy(&own);
    return st;
}
