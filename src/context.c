// SPDX-License-Identifier: Apache-2.0
#define CLATTN_EXPERIMENTAL
#include "context.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_rank.h"
#include "host/host.h"
#include "problem.h"
#include "tune.h"

// ---- descriptions ------------------------------------------------------------------------------

// A number of the environment, `least` or more; *given is false where the variable is unset.
static clattn_status env_size(const char *name, size_t least, const struct cla_log *log,
                              bool *given, size_t *value)
{
    const char *text = cla_os_env(name);
    *given = text != NULL;
    if (!text)
        return CLATTN_OK;
    errno = 0;
    const unsigned long long n = strtoull(text, NULL, 10);
    if (strspn(text, "0123456789") != strlen(text) || errno || n < least || n > SIZE_MAX)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "%s is \"%s\", not a number from %zu to %zu", name, text, least,
                        (size_t)SIZE_MAX);
    *value = (size_t)n;
    return CLATTN_OK;
}

// What the description leaves open, and what this build or the environment says about the rest.
static clattn_status complete(clattn_context_desc *d, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    bool given = false;
    cla_log_check_env(log);
    const char *only = "CLATTN_CONTEXT_EMBEDDED_KERNELS is in flags";
#if defined(CLA_EMBEDDED_KERNELS)
    d->flags |= CLATTN_CONTEXT_EMBEDDED_KERNELS;
    only = "this build takes its own kernels only (-Dkernels=embedded)";
#endif
    if (d->kernel_dir && d->kernel_dir[0] && (d->flags & CLATTN_CONTEXT_EMBEDDED_KERNELS))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "kernel_dir is given, but %s", only);
    if (!d->max_local_bytes && !(d->flags & CLATTN_CONTEXT_NO_LOCAL_MEMORY)) {
        CLA_TRY(env_size("CLATTN_MAX_LOCAL_BYTES", 0, log, &given, &d->max_local_bytes));
        if (given && d->max_local_bytes == 0)
            d->flags |= CLATTN_CONTEXT_NO_LOCAL_MEMORY;
    }
    if (!d->max_group)
        CLA_TRY(env_size("CLATTN_MAX_GROUP", 1, log, &given, &d->max_group));
done:
    return st;
}

void cla_context_lower(const clattn_context_desc *d, struct cla_caps *caps)
{
    if (d->flags & CLATTN_CONTEXT_NO_LOCAL_MEMORY)
        caps->local_bytes = 0;
    if (d->max_local_bytes && d->max_local_bytes < caps->local_bytes)
        caps->local_bytes = d->max_local_bytes;
    if (!d->max_group)
        return;
    if (d->max_group < caps->max_group)
        caps->max_group = d->max_group;
    for (int i = 0; i < 3; i++) {
        if (d->max_group < caps->max_items[i])
            caps->max_items[i] = d->max_group;
    }
}

clattn_status cla_context_desc_in(const clattn_context_desc *desc, clattn_context_desc *out,
                                  struct cla_log *log)
{
    cla_log_init(log, NULL, NULL, CLATTN_LOG_WARN);
    if (!desc) {
        clattn_context_desc_init(out, sizeof *out);
        return complete(out, log);
    }
    // A caller has at least what comes before cache_max_bytes.
    clattn_status st =
        cla_struct_in("clattn_context_desc", desc, offsetof(clattn_context_desc, cache_max_bytes),
                      out, sizeof *out, log);
    if (st != CLATTN_OK)
        return st;
    cla_log_init(log, out->log, out->log_user, out->log_level ? out->log_level : CLATTN_LOG_WARN);
    const uint32_t known = CLATTN_CONTEXT_NO_OPENCL | CLATTN_CONTEXT_NO_SELF_TEST |
                           CLATTN_CONTEXT_NO_CACHE | CLATTN_CONTEXT_NO_LOCAL_MEMORY |
                           CLATTN_CONTEXT_NO_TUNING | CLATTN_CONTEXT_EMBEDDED_KERNELS;
    if (out->flags & ~known)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "flags has unknown bits 0x%x",
                        (unsigned)(out->flags & ~known));
    if (out->threads < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "threads is %d, negative",
                        (int)out->threads);
    if ((int)out->log_level < 0 || (int)out->log_level > CLATTN_LOG_DEBUG)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "log_level is %d, not 0 to %d",
                        (int)out->log_level, (int)CLATTN_LOG_DEBUG);
    if (out->max_local_bytes && (out->flags & CLATTN_CONTEXT_NO_LOCAL_MEMORY))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "max_local_bytes is %zu, but CLATTN_CONTEXT_NO_LOCAL_MEMORY is in flags",
                        out->max_local_bytes);
    if (out->tune_file && (out->flags & CLATTN_CONTEXT_NO_TUNING))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "tune_file is given, but CLATTN_CONTEXT_NO_TUNING is in flags");
    return complete(out, log);
}

// ---- devices -----------------------------------------------------------------------------------

int clattn_has_opencl(void)
{
#if defined(CLA_HAVE_OPENCL)
    return 1;
#else
    return 0;
#endif
}

static void builtin_caps(struct cla_caps *c, int32_t threads)
{
    memset(c, 0, sizeof *c);
    snprintf(c->platform, sizeof c->platform, "clattn");
    snprintf(c->name, sizeof c->name, "built-in CPU path (%s)", cla_host_isa());
    snprintf(c->vendor, sizeof c->vendor, "clattn");
    snprintf(c->driver, sizeof c->driver, "%d.%d.%d", CLATTN_VERSION_MAJOR, CLATTN_VERSION_MINOR,
             CLATTN_VERSION_PATCH);
    c->type = CLA_DEVICE_BUILTIN;
    c->compiler = true;
    c->host_unified = true;
    c->compute_units = cla_host_threads(threads);
    int32_t tile_q, tile_k;
    const struct cla_problem p = {.dim_qk = 64, .dim_v = 64, .group = 1,
                                  .max_len_q = 1024, .max_len_kv = 1024};
    cla_host_tile(&p, &c->native_width_f32, &tile_q, &tile_k);
}

// All devices: OpenCL's, then the built-in path. The caller frees *list.
static clattn_status list_devices(const clattn_context_desc *d, const struct cla_log *log,
                                  struct cla_caps **list, int32_t *count)
{
    struct cla_caps *ocl = NULL;
    int32_t n = 0;
    if (!(d->flags & CLATTN_CONTEXT_NO_OPENCL)) {
        clattn_status st = cla_ocl_enumerate(d->opencl_library, log, &ocl, &n);
        if (st != CLATTN_OK)
            return st;
    }
    struct cla_caps *all = calloc((size_t)n + 1, sizeof *all);
    if (!all) {
        free(ocl);
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %d device descriptions", n);
    }
    for (int32_t i = 0; i < n; i++) {
        all[i] = ocl[i];
        cla_context_lower(d, &all[i]);
    }
    free(ocl);
    builtin_caps(&all[n], d->threads);
    *list = all;
    *count = n + 1;
    return CLATTN_OK;
}

static clattn_status fill_info(const struct cla_caps *c, int32_t index, int32_t rank,
                               clattn_device_info *out, const struct cla_log *log)
{
    clattn_device_info i;
    memset(&i, 0, sizeof i);
    i.index = index;
    i.type = c->type;
    memcpy(i.platform, c->platform, sizeof i.platform);
    memcpy(i.name, c->name, sizeof i.name);
    memcpy(i.vendor, c->vendor, sizeof i.vendor);
    memcpy(i.driver, c->driver, sizeof i.driver);
    memcpy(i.version, c->version, sizeof i.version);
    i.compute_units = c->compute_units;
    i.native_width_f32 = c->native_width_f32;
    i.max_group = c->max_group;
    memcpy(i.max_items, c->max_items, sizeof i.max_items);
    i.local_bytes = c->local_bytes;
    i.local_is_global = c->local_is_global;
    i.host_unified = c->host_unified;
    i.global_bytes = c->global_bytes;
    i.max_alloc_bytes = c->max_alloc_bytes;
    i.cache_bytes = c->cache_bytes;
    i.has_fp16 = c->has_fp16;
    i.has_subgroups = c->has_subgroups;
    i.vector_shape = cla_caps_vector_shape(c);
    i.quirks = c->quirks;
    i.rank = rank;
    return cla_struct_out("clattn_device_info", out, CLA_SIZE_TO(clattn_device_info, rank), &i,
                          sizeof i, log);
}

// Position of `index` in the ranking, 0 = best.
static int32_t rank_of(const struct cla_caps *list, int32_t count, int32_t index)
{
    int32_t *order = malloc((size_t)count * sizeof *order);
    int32_t rank = 0;
    if (order) {
        cla_device_rank(list, count, order);
        while (order[rank] != index)
            rank++;
    }
    free(order);
    return rank;
}

clattn_status clattn_device_count(const clattn_context_desc *desc, int32_t *count)
{
    struct cla_log log;
    clattn_context_desc d;
    clattn_status st = cla_context_desc_in(desc, &d, &log);
    if (st != CLATTN_OK)
        return st;
    if (!count)
        return cla_fail(&log, CLATTN_ERR_INVALID_ARGUMENT, "count is NULL");
    struct cla_caps *list = NULL;
    st = list_devices(&d, &log, &list, count);
    free(list);
    return st;
}

clattn_status clattn_device_get_info(const clattn_context_desc *desc, int32_t index,
                                     clattn_device_info *info)
{
    struct cla_log log;
    clattn_context_desc d;
    clattn_status st = cla_context_desc_in(desc, &d, &log);
    if (st != CLATTN_OK)
        return st;
    if (!info)
        return cla_fail(&log, CLATTN_ERR_INVALID_ARGUMENT, "info is NULL");
    struct cla_caps *list = NULL;
    int32_t count = 0;
    st = list_devices(&d, &log, &list, &count);
    if (st == CLATTN_OK) {
        if (index < 0 || index >= count)
            st = cla_fail(&log, CLATTN_ERR_NO_DEVICE, "device index is %d, there are %d",
                          (int)index, (int)count);
        else
            st = fill_info(&list[index], index, rank_of(list, count, index), info, &log);
    }
    free(list);
    return st;
}

// ---- create and destroy ------------------------------------------------------------------------

// NULL for NULL; *failed is set if memory ran out.
static char *copy_text(const char *text, bool *failed)
{
    char *copy = text ? malloc(strlen(text) + 1) : NULL;
    if (copy)
        memcpy(copy, text, strlen(text) + 1);
    *failed = *failed || (text && !copy);
    return copy;
}

clattn_status cla_context_alloc(const clattn_context_desc *d, clattn_context **out)
{
    struct cla_log log;
    clattn_context *ctx = calloc(1, sizeof *ctx);
    cla_log_init(&log, d->log, d->log_user, d->log_level ? d->log_level : CLATTN_LOG_WARN);
    if (!ctx)
        return cla_fail(&log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a context");
    ctx->log = log;
    ctx->index = -1;
    ctx->threads = cla_host_threads(d->threads);
    ctx->mutex = cla_mutex_create();
    ctx->map_mutex = cla_mutex_create();
    bool failed = !cla_os_watch_forks();
    ctx->forks = cla_os_forks();
    ctx->kernel_dir = copy_text(d->kernel_dir, &failed);
    ctx->embedded_kernels = (d->flags & CLATTN_CONTEXT_EMBEDDED_KERNELS) != 0;
    ctx->cache_dir = copy_text(d->cache_dir, &failed);
    ctx->cache_max_bytes = d->cache_max_bytes;
    ctx->tune_file = copy_text(d->tune_file, &failed);
    ctx->no_tuning = (d->flags & CLATTN_CONTEXT_NO_TUNING) != 0;
    ctx->no_cache = (d->flags & CLATTN_CONTEXT_NO_CACHE) != 0;
    if (!ctx->mutex || !ctx->map_mutex || failed) {
        clattn_context_destroy(&ctx);
        return cla_fail(&log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a context");
    }
    *out = ctx;
    return CLATTN_OK;
}

// The CPU path by its name: without a look at OpenCL, where drivers have been seen to end the
// process. So it has no index among the devices.
static clattn_status open_builtin(const clattn_context_desc *d, clattn_context **out)
{
    clattn_status st = cla_context_alloc(d, out);
    if (st == CLATTN_OK)
        builtin_caps(&(*out)->caps, d->threads);
    return st;
}

// A context on the device of this index.
static clattn_status open_device(const clattn_context_desc *d, const struct cla_caps *list,
                                 int32_t count, int32_t index, clattn_context **out)
{
    clattn_context *ctx = NULL;
    clattn_status st = cla_context_alloc(d, &ctx);
    if (st != CLATTN_OK)
        return st;
    ctx->caps = list[index];
    ctx->index = index;
    ctx->rank = rank_of(list, count, index);
    if (list[index].type != CLA_DEVICE_BUILTIN) {
        CLA_TRY(cla_ocl_open(ctx, d->opencl_library, index));
        if (!(d->flags & CLATTN_CONTEXT_NO_SELF_TEST))
            CLA_TRY(cla_ocl_self_test(ctx));
    }
    *out = ctx;
    ctx = NULL;
done:
    clattn_context_destroy(&ctx);
    return st;
}

// Names the devices that are there.
static clattn_status fail_unknown(const struct cla_log *log, const char *selector,
                                  const struct cla_caps *list, int32_t count)
{
    char names[768] = "";
    size_t used = 0;
    for (int32_t i = 0; i < count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%d = %s: %s",
                                 i ? ", " : "", (int)i, list[i].platform, list[i].name);
    return cla_fail(log, CLATTN_ERR_NO_DEVICE, "device \"%s\" fits none of %d devices: %s",
                    selector, (int)count, names);
}

static clattn_status open_selected(const clattn_context_desc *d, const char *selector,
                                   const struct cla_log *log, const struct cla_caps *list,
                                   int32_t count, clattn_context **out)
{
    const int32_t index = cla_device_select(list, count, selector);
    if (index >= 0)
        return open_device(d, list, count, index, out);
    if (count == 1)
        return cla_fail(log, CLATTN_ERR_NO_OPENCL,
                        "device \"%s\": there is no OpenCL device, only the built-in CPU path "
                        "(\"cpu\")",
                        selector);
    return fail_unknown(log, selector, list, count);
}

static clattn_status open_best(const clattn_context_desc *d, const struct cla_log *log,
                               const struct cla_caps *list, int32_t count, clattn_context **out)
{
    int32_t *order = malloc((size_t)count * sizeof *order);
    if (!order)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to rank %d devices", (int)count);
    cla_device_rank(list, count, order);
    clattn_status st = CLATTN_ERR_NO_DEVICE;
    for (int32_t i = 0; i < count; i++) {
        st = open_device(d, list, count, order[i], out);
        if (st == CLATTN_OK)
            break;
        cla_logf(log, CLATTN_LOG_WARN, "device %d (%s) is passed over: %s", (int)order[i],
                 list[order[i]].name, clattn_status_string(st));
    }
    free(order);
    return st;
}

clattn_status clattn_context_create(const clattn_context_desc *desc, clattn_context **out)
{
    struct cla_log log;
    clattn_context_desc d;
    struct cla_caps *list = NULL;
    int32_t count = 0;
    clattn_status st = CLATTN_OK;
    if (out)
        *out = NULL;
    CLA_TRY(cla_context_desc_in(desc, &d, &log));
    if (!out)
        CLA_TRY(cla_fail(&log, CLATTN_ERR_INVALID_ARGUMENT, "out is NULL"));
    const char *selector = d.device && d.device[0] ? d.device : NULL;
    if (!selector)
        selector = cla_os_env("CLATTN_DEVICE");
    if (selector && cla_device_is_builtin(selector)) {
        CLA_TRY(open_builtin(&d, out));
        goto done;
    }
    CLA_TRY(list_devices(&d, &log, &list, &count));
    CLA_TRY(selector ? open_selected(&d, selector, &log, list, count, out)
                     : open_best(&d, &log, list, count, out));
done:
    free(list);
    return st;
}

static bool jobs_in_flight(clattn_context *ctx)
{
    cla_mutex_lock(ctx->mutex);
    const bool any = ctx->jobs > 0;
    cla_mutex_unlock(ctx->mutex);
    return any;
}

void cla_context_job_began(clattn_context *ctx)
{
    cla_mutex_lock(ctx->mutex);
    ctx->jobs++;
    cla_mutex_unlock(ctx->mutex);
}

void cla_context_job_ended(clattn_context *ctx)
{
    cla_mutex_lock(ctx->mutex);
    ctx->jobs--;
    cla_mutex_unlock(ctx->mutex);
}

void clattn_context_destroy(clattn_context **pctx)
{
    if (!pctx || !*pctx)
        return;
    clattn_context *ctx = *pctx;
    *pctx = NULL;
    if (cla_context_leaves(ctx, ctx))
        return; // all of it stays the parent's
    clattn_plan *kept = atomic_exchange(&ctx->kept, NULL);
    clattn_plan_destroy(&kept);
    while (ctx->ocl && jobs_in_flight(ctx))
        cla_os_sleep_ms(1);
    cla_worker_destroy(ctx->worker);
    cla_ocl_close(&ctx->ocl);
    cla_context_forget(ctx);
    cla_mutex_destroy(ctx->mutex);
    cla_mutex_destroy(ctx->map_mutex);
    free(ctx->kernel_dir);
    free(ctx->cache_dir);
    free(ctx->tune_file);
    if (ctx->tune)
        cla_tune_free(ctx->tune);
    free(ctx->tune);
    free(ctx);
}

struct cla_worker *cla_context_worker(clattn_context *ctx)
{
    cla_mutex_lock(ctx->mutex);
    if (!ctx->worker)
        ctx->worker = cla_worker_create();
    struct cla_worker *worker = ctx->worker;
    cla_mutex_unlock(ctx->mutex);
    return worker;
}

cla_mem_fn cla_context_mem_facts(const clattn_context *ctx)
{
    return ctx->ocl ? cla_ocl_mem_facts : NULL;
}

clattn_status clattn_context_get_device_info(const clattn_context *ctx, clattn_device_info *info)
{
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!info)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "info is NULL");
    return fill_info(&ctx->caps, ctx->index, ctx->rank, info, &ctx->log);
}

uint64_t clattn_context_build_count(const clattn_context *ctx)
{
    return ctx && ctx->ocl ? cla_ocl_build_count(ctx->ocl) : 0;
}

// ---- memory ------------------------------------------------------------------------------------

clattn_status clattn_mem_create(clattn_context *ctx, size_t bytes, clattn_buf *out)
{
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (out)
        memset(out, 0, sizeof *out);
    if (!out || !bytes)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "mem_create: bytes %zu, out %s",
                        bytes, out ? "set" : "NULL");
    if (ctx->ocl) {
        clattn_status st = cla_context_check(ctx);
        if (st == CLATTN_OK)
            st = cla_ocl_mem_create(ctx, bytes, &out->ptr);
        if (st != CLATTN_OK)
            return st;
        out->kind = CLATTN_BUF_CL_MEM;
    } else {
        const size_t line = 64; // vectors of the CPU path are loaded from aligned memory
        if (bytes <= SIZE_MAX - line)
            out->ptr = cla_os_aligned_alloc(line, (bytes + line - 1) / line * line);
        if (!out->ptr)
            return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %zu bytes", bytes);
        out->kind = CLATTN_BUF_HOST;
    }
    out->size_bytes = bytes;
    return CLATTN_OK;
}

static clattn_status check_copy(clattn_context *ctx, const char *name, const clattn_buf *buf,
                                const void *host, size_t bytes)
{
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const clattn_status st = cla_context_check(ctx);
    if (st != CLATTN_OK)
        return st;
    if (!buf || !host)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "copy of %zu bytes: %s is %s, the host pointer is %s", bytes, name,
                        buf ? "set" : "NULL", host ? "set" : "NULL");
    if (buf->offset_bytes > SIZE_MAX - bytes)
        return cla_fail(&ctx->log, CLATTN_ERR_BUFFER_TOO_SMALL,
                        "%s.buf.offset_bytes is %zu, from where no memory has %zu bytes", name,
                        buf->offset_bytes, bytes);
    return cla_buf_check(name, buf, 1, buf->offset_bytes + bytes, NULL, cla_context_mem_facts(ctx),
                         ctx, &ctx->log);
}

clattn_status clattn_mem_write(clattn_context *ctx, const clattn_buf *dst, const void *src,
                               size_t bytes)
{
    clattn_status st = check_copy(ctx, "dst", dst, src, bytes);
    if (st != CLATTN_OK || !bytes)
        return st;
    if (dst->kind == CLATTN_BUF_CL_MEM)
        return cla_ocl_mem_write(ctx, dst->ptr, dst->offset_bytes, src, bytes);
    memcpy((char *)dst->ptr + dst->offset_bytes, src, bytes);
    return CLATTN_OK;
}

clattn_status clattn_mem_read(clattn_context *ctx, const clattn_buf *src, void *dst, size_t bytes)
{
    clattn_status st = check_copy(ctx, "src", src, dst, bytes);
    if (st != CLATTN_OK || !bytes)
        return st;
    if (src->kind == CLATTN_BUF_CL_MEM)
        return cla_ocl_mem_read(ctx, src->ptr, src->offset_bytes, dst, bytes);
    memcpy(dst, (const char *)src->ptr + src->offset_bytes, bytes);
    return CLATTN_OK;
}

void clattn_mem_destroy(clattn_context *ctx, clattn_buf *buf)
{
    if (!buf || !buf->ptr)
        return;
    if (buf->kind == CLATTN_BUF_CL_MEM && ctx && ctx->ocl) {
        if (!cla_context_leaves(ctx, buf->ptr))
            cla_ocl_mem_destroy(ctx, buf->ptr);
    } else if (buf->kind == CLATTN_BUF_HOST) {
        cla_os_aligned_free(buf->ptr);
    }
    memset(buf, 0, sizeof *buf);
}

clattn_status clattn_context_measure(clattn_context *ctx, clattn_measure what, size_t bytes,
                                     double *value)
{
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!value || (int)what < CLATTN_MEASURE_FMA_F32 || (int)what > CLATTN_MEASURE_FMA_F32_SHORT ||
        (what == CLATTN_MEASURE_READ && !bytes))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "measure %d of %zu bytes into %s", (int)what, bytes,
                        value ? "a value" : "NULL");
    const clattn_status st = cla_context_check(ctx);
    if (st != CLATTN_OK)
        return st;
    if (ctx->ocl)
        return cla_ocl_measure(ctx, (int32_t)what, bytes, value);
    *value = what == CLATTN_MEASURE_READ
                 ? cla_host_peak_read(ctx->threads, bytes)
                 : cla_host_peak_fma(ctx->threads, what == CLATTN_MEASURE_FMA_F32_SHORT);
    return *value > 0.0 ? CLATTN_OK
                        : cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "measure: out of memory");
}
