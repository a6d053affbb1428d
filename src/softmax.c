// SPDX-License-Identifier: Apache-2.0
// The public calls of row softmax: check, choose a path, run.
#include "softmax_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call_memory.h"
#include "host/host.h"
#include "host/softmax.h"
#include "ref/softmax.h"

void clattn_softmax_desc_init(clattn_softmax_desc *desc, size_t size)
{
    cla_struct_init(desc, size);
}

void clattn_softmax_call_init(clattn_softmax_call *call, size_t size)
{
    cla_struct_init(call, size);
}

// ---- description -------------------------------------------------------------------------------

static clattn_status check_desc(const clattn_softmax_desc *in, const struct cla_log *log,
                                struct cla_softmax *out)
{
    clattn_status st = CLATTN_OK;
    clattn_softmax_desc d;
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "desc is NULL");
    CLA_TRY(cla_struct_in("clattn_softmax_desc", in, CLA_SIZE_TO(clattn_softmax_desc, max_len),
                          &d, sizeof d, log));
    CLA_TRY(cla_check_enum(log, "algo", d.algo, CLATTN_SOFTMAX_ONLINE));
    CLA_TRY(cla_check_enum(log, "path", d.path, CLATTN_SOFTMAX_PATH_REFERENCE));
    CLA_TRY(cla_check_enum(log, "dtype_x", d.dtype_x, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_y", d.dtype_y, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_bits(log, "features", d.features, CLATTN_SOFTMAX_LSE));
    CLA_TRY(cla_check_bits(log, "flags", d.flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_check_enum(log, "kernel", d.kernel, CLATTN_KERNEL_VECTOR));
    CLA_TRY(cla_check_enum(log, "reserved", d.reserved, 0));
    if (d.kernel && d.path > CLATTN_SOFTMAX_PATH_OPENCL)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "kernel is %d, but path %d has no OpenCL kernel", (int)d.kernel,
                         (int)d.path));
    if (d.max_rows < 0 || d.max_len < 0)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "a bound is negative: max_rows %lld, max_len %lld", (long long)d.max_rows,
                         (long long)d.max_len));
    if (d.dtype_x == CLATTN_DTYPE_I8 || d.dtype_y == CLATTN_DTYPE_I8)
        CLA_TRY(cla_fail(log, CLATTN_ERR_UNSUPPORTED, "dtype_x %d, dtype_y %d: int8 has no softmax",
                         (int)d.dtype_x, (int)d.dtype_y));
    *out = (struct cla_softmax){
        .algo = d.algo ? d.algo : CLATTN_SOFTMAX_ONLINE,
        .path = d.path,
        .kernel = d.kernel,
        .dtype_x = d.dtype_x,
        .dtype_y = d.dtype_y,
        .lse = (d.features & CLATTN_SOFTMAX_LSE) != 0,
        .no_fallback = (d.flags & CLATTN_NO_FALLBACK) != 0,
        .max_rows = d.max_rows ? d.max_rows : INT64_MAX,
        .max_len = d.max_len ? d.max_len : INT64_MAX,
    };
done:
    return st;
}

// ---- plan --------------------------------------------------------------------------------------

static clattn_status use_opencl(clattn_softmax_plan *plan)
{
    clattn_context *ctx = plan->ctx;
    if (!ctx->ocl)
        return cla_fail(&ctx->log, CLATTN_ERR_UNSUPPORTED,
                        "path is %d (OpenCL), but the context's device is the built-in CPU path",
                        (int)CLATTN_SOFTMAX_PATH_OPENCL);
    clattn_status st = cla_softmax_prepare(ctx, &plan->s, &plan->shape, &plan->kernels);
    if (st == CLATTN_OK) {
        plan->path = CLATTN_SOFTMAX_PATH_OPENCL;
        snprintf(plan->reason, sizeof plan->reason, "%s", plan->shape.reason);
    }
    return st;
}

static void use_host(clattn_softmax_plan *plan, clattn_status failed)
{
    plan->path = CLATTN_SOFTMAX_PATH_HOST;
    plan->is_fallback = failed != CLATTN_OK;
    if (failed == CLATTN_OK) {
        snprintf(plan->reason, sizeof plan->reason,
                 "the context's device is the CPU path: instruction set %s", cla_host_isa());
        return;
    }
    snprintf(plan->reason, sizeof plan->reason,
             "the OpenCL device was given up: %s; the CPU path's instruction set is %s",
             clattn_status_string(failed), cla_host_isa());
    cla_logf(&plan->ctx->log, CLATTN_LOG_WARN,
             "fallback: the CPU path computes this softmax, not the OpenCL device: %s",
             clattn_status_string(failed));
}

static const char *const algos[] = {"", "naive", "safe", "online"};
static const char *const paths[] = {"", "opencl", "host", "reference"};

// What runs, why, and where: one line, as of a plan of attention.
static void log_plan(const clattn_softmax_plan *plan)
{
    char rows[40] = "", len[40] = "", device[400];
    if (plan->s.max_rows != INT64_MAX)
        snprintf(rows, sizeof rows, ", rows to %lld", (long long)plan->s.max_rows);
    if (plan->s.max_len != INT64_MAX)
        snprintf(len, sizeof len, ", len to %lld", (long long)plan->s.max_len);
    cla_context_device_text(plan->ctx, device, sizeof device);
    cla_logf(&plan->ctx->log, CLATTN_LOG_INFO, "plan: softmax%s%s -> %s %s; why: %s%s; on %s", rows,
             len, algos[plan->s.algo], paths[plan->path], plan->reason,
             plan->is_fallback ? " (fallback)" : "", device);
}

static clattn_status choose(clattn_softmax_plan *plan)
{
    const struct cla_softmax *s = &plan->s;
    if (s->path == CLATTN_SOFTMAX_PATH_REFERENCE) {
        plan->path = CLATTN_SOFTMAX_PATH_REFERENCE;
        snprintf(plan->reason, sizeof plan->reason, "the definition in double precision");
        return CLATTN_OK;
    }
    clattn_status st = CLATTN_OK;
    const bool forced = s->path == CLATTN_SOFTMAX_PATH_OPENCL || s->kernel != CLATTN_KERNEL_AUTO;
    if (forced || (s->path == CLATTN_SOFTMAX_PATH_AUTO && plan->ctx->ocl)) {
        st = use_opencl(plan);
        if (st == CLATTN_OK || forced || s->no_fallback)
            return st;
    }
    use_host(plan, st);
    return CLATTN_OK;
}

clattn_status clattn_softmax_plan_create(clattn_context *ctx, const clattn_softmax_desc *desc,
                                         clattn_softmax_plan **out)
{
    if (out)
        *out = NULL;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!out)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "out is NULL");
    struct cla_softmax s;
    clattn_status st = check_desc(desc, &ctx->log, &s);
    if (st == CLATTN_OK)
        st = cla_context_check(ctx);
    if (st != CLATTN_OK)
        return st;
    clattn_softmax_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a plan");
    plan->ctx = ctx;
    plan->s = s;
    st = choose(plan);
    if (st == CLATTN_OK) {
        log_plan(plan);
        *out = plan;
    } else {
        clattn_softmax_plan_destroy(&plan);
    }
    return st;
}

void clattn_softmax_plan_destroy(clattn_softmax_plan **pplan)
{
    if (!pplan || !*pplan)
        return;
    if (!cla_context_leaves((*pplan)->ctx, (*pplan)->kernels))
        cla_softmax_release(&(*pplan)->kernels);
    free(*pplan);
    *pplan = NULL;
}

static clattn_status check_lengths(const clattn_softmax_plan *plan, int64_t rows, int64_t len)
{
    const struct cla_log *log = &plan->ctx->log;
    const struct {
        const char *name;
        int64_t value, bound;
    } f[] = {{"rows", rows, plan->s.max_rows}, {"len", len, plan->s.max_len}};
    for (int i = 0; i < 2; i++) {
        if (f[i].value < 0)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %lld, negative", f[i].name,
                            (long long)f[i].value);
        if (f[i].value > f[i].bound)
            return cla_fail(log, CLATTN_ERR_OVER_BOUND, "%s is %lld, the plan's bound is %lld",
                            f[i].name, (long long)f[i].value, (long long)f[i].bound);
    }
    return CLATTN_OK;
}

static clattn_status workspace_bytes(const clattn_softmax_plan *plan, int64_t rows, int64_t len,
                                     size_t *bytes)
{
    *bytes = 0;
    if (plan->path != CLATTN_SOFTMAX_PATH_OPENCL ||
        cla_softmax_workspace(&plan->shape, rows, len, bytes))
        return CLATTN_OK;
    return cla_fail(&plan->ctx->log, CLATTN_ERR_OVER_BOUND,
                    "the workspace of %lld rows of %lld would have more bytes than memory can have",
                    (long long)rows, (long long)len);
}

clattn_status clattn_softmax_workspace_bytes(const clattn_softmax_plan *plan, int64_t rows,
                                             int64_t len, size_t *bytes)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!bytes)
        return cla_fail(&plan->ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "bytes is NULL");
    clattn_status st = check_lengths(plan, rows, len);
    size_t need = 0;
    if (st == CLATTN_OK)
        st = workspace_bytes(plan, rows, len, &need);
    if (st == CLATTN_OK)
        *bytes = need;
    return st;
}

clattn_status clattn_softmax_get_info(const clattn_softmax_plan *plan, clattn_softmax_info *out)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!out)
        return cla_fail(&plan->ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "info is NULL");
    clattn_softmax_info i;
    memset(&i, 0, sizeof i);
    i.algo = plan->s.algo;
    i.path = plan->path;
    snprintf(i.algo_name, sizeof i.algo_name, "%s", algos[i.algo]);
    snprintf(i.path_name, sizeof i.path_name, "%s", paths[i.path]);
    i.group_size = plan->path == CLATTN_SOFTMAX_PATH_OPENCL ? plan->shape.items : 1;
    i.vector_width = plan->path == CLATTN_SOFTMAX_PATH_OPENCL ? plan->shape.width
                     : plan->path == CLATTN_SOFTMAX_PATH_HOST ? cla_host_width()
                                                              : 1;
    i.is_fallback = plan->is_fallback;
    i.passes = plan->s.algo == CLATTN_SOFTMAX_SAFE ? 3 : 2;
    snprintf(i.reason, sizeof i.reason, "%s", plan->reason);
    return cla_struct_out("clattn_softmax_info", out, CLA_SIZE_TO(clattn_softmax_info, reason), &i,
                          sizeof i, &plan->ctx->log);
}

// ---- call --------------------------------------------------------------------------------------

// Bytes from the start of the memory to the end of the last row.
static clattn_status reach(const struct cla_log *log, const char *name, size_t offset_bytes,
                           size_t elem_bytes, int64_t rows, int64_t len, int64_t stride,
                           size_t *end_bytes)
{
    int64_t n = 0;
    *end_bytes = 0;
    if (rows == 0 || len == 0)
        return CLATTN_OK;
    if (__builtin_mul_overflow(rows - 1, stride, &n) || __builtin_add_overflow(n, len, &n) ||
        __builtin_mul_overflow(n, (int64_t)elem_bytes, &n) ||
        __builtin_add_overflow(n, offset_bytes, &n) || (uint64_t)n > SIZE_MAX)
        return cla_fail(log, CLATTN_ERR_STRIDE,
                        "%s: %lld rows of stride %lld overflow the address space", name,
                        (long long)rows, (long long)stride);
    *end_bytes = (size_t)n;
    return CLATTN_OK;
}

static clattn_status check_rows(const struct cla_log *log, struct cla_facts *facts,
                                const char *name, const clattn_buf *buf, int32_t dtype,
                                int64_t rows, int64_t len, int64_t stride, int64_t *offset,
                                size_t *end_bytes)
{
    const size_t elem = cla_softmax_elem_bytes(dtype);
    if (stride < len)
        return cla_fail(log, CLATTN_ERR_STRIDE, "stride_%s is %lld, less than len %lld", name,
                        (long long)stride, (long long)len);
    if (buf->kind < CLATTN_BUF_ABSENT || buf->kind > CLATTN_BUF_CL_MEM || buf->reserved)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "%s.kind is %d, not 0 to %d, or %s.reserved is %u, not 0", name,
                        (int)buf->kind, (int)CLATTN_BUF_CL_MEM, name, (unsigned)buf->reserved);
    clattn_status st = reach(log, name, buf->offset_bytes, elem, rows, len, stride, end_bytes);
    if (st == CLATTN_OK && *end_bytes)
        st = cla_buf_check(name, buf, elem, *end_bytes,
                           &(struct cla_shape){1, &rows, &stride, len}, cla_facts_fn(facts), facts,
                           log);
    *offset = (int64_t)(buf->offset_bytes / elem);
    return st;
}

static clattn_status check_overlaps(const struct cla_log *log, struct cla_facts *facts,
                                    const struct cla_softmax *s, struct cla_softmax_call *c)
{
    const struct cla_buf_range r[] = {{"y", &c->y, c->y_end_bytes},
                                      {"lse", &c->lse, c->lse_end_bytes},
                                      {"workspace", &c->workspace, c->workspace_end_bytes},
                                      {"x", &c->x, c->x_end_bytes}};
    c->in_place = c->x_end_bytes && c->x.kind == c->y.kind && c->x.ptr == c->y.ptr &&
                  c->x.offset_bytes == c->y.offset_bytes && c->stride_x == c->stride_y &&
                  s->dtype_x == s->dtype_y;
    for (int i = 0; i < 3; i++) {
        for (int k = i + 1; k < 4; k++) {
            const bool own = c->in_place && i == 0 && k == 3;
            if (!own && cla_ranges_overlap(&r[i], &r[k], cla_facts_fn(facts), facts))
                return cla_fail(log, CLATTN_ERR_OVERLAP,
                                "%s (bytes %zu to %zu) overlaps %s (bytes %zu to %zu)", r[i].name,
                                r[i].buf->offset_bytes, r[i].end_bytes, r[k].name,
                                r[k].buf->offset_bytes, r[k].end_bytes);
        }
    }
    return CLATTN_OK;
}

clattn_status cla_softmax_check(const clattn_softmax_plan *plan, const clattn_softmax_call *in,
                                struct cla_softmax_call *out)
{
    clattn_status st = CLATTN_OK;
    clattn_context *ctx = plan->ctx;
    const struct cla_log *log = &ctx->log;
    const struct cla_softmax *s = &plan->s;
    clattn_softmax_call call;
    struct cla_facts facts;
    cla_facts_begin(&facts, cla_context_mem_facts(ctx), ctx);
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_context_check(ctx));
    CLA_TRY(cla_struct_in("clattn_softmax_call", in,
                          CLA_SIZE_TO(clattn_softmax_call, workspace), &call, sizeof call, log));
    CLA_TRY(cla_check_bits(log, "call.set", call.set, CLATTN_SOFTMAX_SET_SCALE));
    const bool scaled = (call.set & CLATTN_SOFTMAX_SET_SCALE) != 0;
    if (scaled ? !isfinite(call.scale) : call.scale != 0.0f)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "scale is %g, %s", (double)call.scale,
                         scaled ? "not finite"
                                : "but CLATTN_SOFTMAX_SET_SCALE is not in call.set"));
    CLA_TRY(check_lengths(plan, call.rows, call.len));
    if (!s->lse && call.lse.kind != CLATTN_BUF_ABSENT)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "lse is given (kind %d), but the plan is without CLATTN_SOFTMAX_LSE",
                         (int)call.lse.kind));
    *out = (struct cla_softmax_call){
        .rows = call.rows, .len = call.len,
        .stride_x = call.stride_x ? call.stride_x : call.len,
        .stride_y = call.stride_y ? call.stride_y : call.len,
        .scale = scaled ? call.scale : 1.0f,
        .x = call.x, .y = call.y, .lse = call.lse, .workspace = call.workspace};
    CLA_TRY(check_rows(log, &facts, "x", &call.x, s->dtype_x, call.rows, call.len, out->stride_x,
                       &out->x_offset, &out->x_end_bytes));
    CLA_TRY(check_rows(log, &facts, "y", &call.y, s->dtype_y, call.rows, call.len, out->stride_y,
                       &out->y_offset, &out->y_end_bytes));
    if (s->lse)
        CLA_TRY(check_rows(log, &facts, "lse", &call.lse, CLATTN_DTYPE_F32, call.rows, 1, 1,
                           &out->lse_offset, &out->lse_end_bytes));
    size_t need = 0;
    CLA_TRY(workspace_bytes(plan, call.rows, call.len, &need));
    if (call.workspace.kind != CLATTN_BUF_ABSENT) {
        if (call.workspace.offset_bytes > SIZE_MAX - need)
            CLA_TRY(cla_fail(log, CLATTN_ERR_BUFFER_TOO_SMALL,
                             "workspace.offset_bytes is %zu, from where no memory has %zu bytes",
                             call.workspace.offset_bytes, need));
        // What a call does not need is checked for what it is.
        out->workspace_end_bytes = need ? call.workspace.offset_bytes + need : 0;
        CLA_TRY(cla_buf_check("workspace", &call.workspace, sizeof(float),
                              out->workspace_end_bytes, NULL, cla_facts_fn(&facts), &facts,
                              log));
        out->workspace_offset = (int64_t)(call.workspace.offset_bytes / sizeof(float));
    }
    CLA_TRY(check_overlaps(log, &facts, s, out));
done:
    return st;
}

// ---- running -----------------------------------------------------------------------------------

static clattn_status compute(clattn_context *ctx, const void *data, void *const *ptr)
{
    const struct cla_softmax_data *d = data;
    const void *x = d->call.in_place ? ptr[0] : ptr[2];
    if (d->reference) {
        cla_ref_softmax(&d->s, &d->call, x, ptr[0], ptr[1]);
        return CLATTN_OK;
    }
    clattn_status st = cla_host_softmax(&d->s, &d->call, x, ptr[0], ptr[1], ctx->threads);
    if (st == CLATTN_ERR_OUT_OF_MEMORY)
        return cla_fail(&ctx->log, st, "softmax on the CPU: no memory for the parts of rows");
    return st;
}

void cla_softmax_work(const clattn_softmax_plan *plan, const struct cla_softmax_call *call,
                      struct cla_softmax_work *out)
{
    struct cla_softmax_call *c = &out->data.call;
    out->data.s = plan->s;
    out->data.reference = plan->path == CLATTN_SOFTMAX_PATH_REFERENCE;
    *c = *call;
    const size_t x0 = (size_t)c->x_offset * cla_softmax_elem_bytes(plan->s.dtype_x);
    const size_t y0 = (size_t)c->y_offset * cla_softmax_elem_bytes(plan->s.dtype_y);
    out->bufs[0] = (struct cla_call_buf){
        .name = "y", .buf = &c->y, .begin_bytes = y0, .end_bytes = c->y_end_bytes, .output = true};
    out->bufs[1] = (struct cla_call_buf){
        .name = "lse", .buf = &c->lse, .begin_bytes = (size_t)c->lse_offset * sizeof(float),
        .end_bytes = c->lse_end_bytes, .output = true};
    out->bufs[2] = (struct cla_call_buf){
        .name = "x", .buf = &c->x, .begin_bytes = x0,
        .end_bytes = c->in_place ? 0 : c->x_end_bytes};
    out->work = (struct cla_host_work){compute, &out->data, sizeof out->data, out->bufs, 3};
}

static clattn_status run_on_cpu(const clattn_softmax_plan *plan,
                                const struct cla_softmax_call *call)
{
    struct cla_softmax_work w;
    void *ptr[3] = {NULL, NULL, NULL};
    cla_softmax_work(plan, call, &w);
    for (int i = 0; i < 3; i++) {
        if (!w.bufs[i].end_bytes)
            continue;
        if (w.bufs[i].buf->kind == CLATTN_BUF_CL_MEM)
            return cla_host_work_run(plan->ctx, &w.work);
        ptr[i] = (char *)w.bufs[i].buf->ptr + w.bufs[i].begin_bytes;
    }
    return compute(plan->ctx, &w.data, ptr);
}

clattn_status clattn_softmax_run(const clattn_softmax_plan *plan, const clattn_softmax_call *call)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    struct cla_softmax_call checked;
    clattn_status st = cla_softmax_check(plan, call, &checked);
    if (st != CLATTN_OK || cla_softmax_is_empty(plan, &checked))
        return st;
    if (plan->path == CLATTN_SOFTMAX_PATH_OPENCL)
        return cla_softmax_run(plan->ctx, &plan->s, plan->kernels, &checked);
    return run_on_cpu(plan, &checked);
}

clattn_status clattn_softmax_f32(clattn_context *ctx, int32_t algo, const float *x, float *y,
                                 int64_t rows, int64_t len)
{
    clattn_status st = CLATTN_OK;
    clattn_context *own = NULL;
    clattn_softmax_plan *plan = NULL;
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    if (!ctx) {
        clattn_context_desc d;
        clattn_context_desc_init(&d, sizeof d);
        d.device = "cpu";
        CLA_TRY(clattn_context_create(&d, &own));
        ctx = own;
    }
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.algo = algo;
    CLA_TRY(clattn_softmax_plan_create(ctx, &desc, &plan));
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = rows;
    call.len = len;
    call.x = clattn_host_buf(x, 0);
    call.y = clattn_host_buf(y, 0);
    CLA_TRY(clattn_softmax_run(plan, &call));
done:
    clattn_softmax_plan_destroy(&plan);
    clattn_context_destroy(&own);
    return st;
}
