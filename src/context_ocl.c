// SPDX-License-Identifier: Apache-2.0
#define CLATTN_EXPERIMENTAL
#include "context_ocl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "clattn/opencl.h"
#include "ocl/device.h"
#include "ocl/error.h"
#include "ocl/launch.h"
#include "ocl/source.h"

// ---- devices -----------------------------------------------------------------------------------

clattn_status cla_ocl_enumerate(const char *library, const struct cla_log *log,
                                struct cla_caps **caps, int32_t *count)
{
    struct cla_cl *cl = NULL;
    struct cla_cl_device *list = NULL;
    *caps = NULL;
    *count = 0;
    clattn_status st = cla_cl_open(library, log, &cl);
    if (st == CLATTN_ERR_NO_OPENCL)
        return CLATTN_OK; // the built-in path remains; the loader's reasons are in the log
    CLA_TRY(st);
    int32_t n = 0;
    CLA_TRY(cla_cl_devices(cl, log, &list, &n));
    if (n) {
        *caps = malloc((size_t)n * sizeof **caps);
        if (!*caps)
            CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %d devices", (int)n));
    }
    for (int32_t i = 0; i < n; i++)
        (*caps)[i] = list[i].caps;
    *count = n;
done:
    free(list);
    cla_cl_close(&cl);
    return st;
}

// ---- open and close ----------------------------------------------------------------------------

// NULL, with an info line, where there is none; that is no failure.
static struct cla_cache *open_cache(const clattn_context *ctx)
{
    const struct cla_cache_settings settings = {
        .off = ctx->no_cache, .dir = ctx->cache_dir, .max_bytes = ctx->cache_max_bytes};
    char *facts = cla_cache_facts(ctx->ocl->cl, ctx->ocl->device);
    struct cla_cache *cache = cla_cache_open(&settings, facts, &ctx->log);
    free(facts);
    return cache;
}

// A queue, and the programs with their cache; the rest of ctx->ocl is filled.
static clattn_status finish_open(clattn_context *ctx, cl_command_queue queue)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    struct cla_ocl *ocl = ctx->ocl;
    cl_int code = CL_SUCCESS;
    ocl->turn = cla_mutex_create();
    ocl->waiting_mutex = cla_mutex_create();
    if (!ocl->turn || !ocl->waiting_mutex)
        CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for a context"));
    if (queue) {
        CLA_CL(ocl->cl->RetainCommandQueue(queue));
        ocl->queue = queue;
    } else {
        ocl->queue = ocl->cl->CreateCommandQueue(ocl->context, ocl->device, 0, &code);
        CLA_TRY(cla_cl_made(log, ocl->queue, code, "clCreateCommandQueue"));
    }
    cl_command_queue_properties props = 0; // of a queue that is kept: they stay as they are
    CLA_CL(ocl->cl->GetCommandQueueInfo(ocl->queue, CL_QUEUE_PROPERTIES, sizeof props, &props,
                                        NULL));
    ocl->any_order = (props & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    ocl->cache = open_cache(ctx);
    const bool keep = !(ctx->caps.quirks & CLA_QUIRK_OWN_CACHE);
    CLA_TRY(cla_programs_create(ocl->cl, ocl->context, ocl->device, keep ? ocl->cache : NULL, log,
                                &ocl->programs));
    CLA_TRY(cla_context_load_tuning(ctx));
done:
    return st;
}

static clattn_status check_compiler(const struct cla_log *log, const struct cla_caps *caps)
{
    if (!caps->compiler)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "device %s (%s) has no compiler of OpenCL C 1.2, or is not available",
                        caps->name, caps->version);
    if (cla_caps_items(caps) < 1)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "device %s says that its work-groups hold no work-item", caps->name);
    return CLATTN_OK;
}

// A device that drops out of one listing moves the others up, and what was planned for one would
// run on another.
static bool same_device(const struct cla_caps *a, const struct cla_caps *b)
{
    return strcmp(a->platform, b->platform) == 0 && strcmp(a->name, b->name) == 0 &&
           strcmp(a->driver, b->driver) == 0 && strcmp(a->version, b->version) == 0 &&
           a->type == b->type && a->compute_units == b->compute_units;
}

clattn_status cla_ocl_open(clattn_context *ctx, const char *library, int32_t index)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    // The devices were listed just before, with all that is to be said of them.
    struct cla_log again = *log;
    if (again.level > CLATTN_LOG_WARN)
        again.level = CLATTN_LOG_WARN;
    struct cla_cl_device *list = NULL;
    int32_t n = 0;
    ctx->ocl = calloc(1, sizeof *ctx->ocl);
    if (!ctx->ocl)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for an OpenCL context");
    CLA_TRY(cla_cl_open(library, &again, &ctx->ocl->cl));
    CLA_TRY(cla_cl_devices(ctx->ocl->cl, &again, &list, &n));
    if (index >= n)
        CLA_TRY(cla_fail(log, CLATTN_ERR_NO_DEVICE, "device %d is gone, there are %d", (int)index,
                         (int)n));
    if (!same_device(&list[index].caps, &ctx->caps))
        CLA_TRY(cla_fail(log, CLATTN_ERR_NO_DEVICE,
                         "device %d was %s: %s when it was chosen and is %s: %s now", (int)index,
                         ctx->caps.platform, ctx->caps.name, list[index].caps.platform,
                         list[index].caps.name));
    CLA_TRY(check_compiler(log, &list[index].caps));
    ctx->ocl->device = list[index].device;
    const cl_context_properties props[] = {CL_CONTEXT_PLATFORM,
                                           (cl_context_properties)list[index].platform, 0};
    cl_int code = CL_SUCCESS;
    ctx->ocl->context =
        ctx->ocl->cl->CreateContext(props, 1, &ctx->ocl->device, NULL, NULL, &code);
    CLA_TRY(cla_cl_made(log, ctx->ocl->context, code, "clCreateContext"));
    CLA_TRY(finish_open(ctx, NULL));
done:
    free(list);
    return st;
}

clattn_status cla_ocl_items_taken(const clattn_context *ctx, const struct cla_kernels *kernels,
                                  size_t *items)
{
    size_t local = 0;
    *items = SIZE_MAX;
    if (ctx->caps.quirks & CLA_QUIRK_KERNEL_QUERIES_LIE)
        return CLATTN_OK;
    const clattn_status st = cla_kernels_limits(kernels, ctx->ocl->device, items, &local);
    if (st == CLATTN_OK && *items < 1)
        return cla_fail(&ctx->log, CLATTN_ERR_UNSUPPORTED,
                        "a compiled kernel takes work-groups of no work-item");
    return st;
}

void cla_ocl_close(struct cla_ocl **pocl)
{
    if (!*pocl)
        return;
    struct cla_ocl *ocl = *pocl;
    *pocl = NULL;
    cla_functions_free(ocl->functions);
    for (int i = 0; i < CLA_FAILED_MARKERS; i++) {
        if (ocl->failed[i])
            ocl->cl->ReleaseEvent(ocl->failed[i]);
    }
    cla_programs_destroy(&ocl->programs);
    cla_cache_close(&ocl->cache);
    cla_mutex_destroy(ocl->turn);
    cla_mutex_destroy(ocl->waiting_mutex);
    if (ocl->queue)
        ocl->cl->ReleaseCommandQueue(ocl->queue);
    if (ocl->context)
        ocl->cl->ReleaseContext(ocl->context);
    if (ocl->retained_device)
        ocl->cl->ReleaseDevice(ocl->device);
    cla_cl_close(&ocl->cl);
    free(ocl);
}

// ---- an application's context ------------------------------------------------------------------

// What a sub-device was cut from; NULL of others, and where the driver is too old to have any.
static cl_device_id parent_of(const struct cla_cl *cl, cl_device_id device)
{
    cl_device_id parent = NULL;
    const cl_int code =
        cl->GetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL);
    return code == CL_SUCCESS ? parent : NULL;
}

static clattn_status check_adopted(const struct cla_cl *cl, const struct cla_log *log,
                                   cl_context cl_ctx, cl_device_id cl_dev, cl_command_queue queue)
{
    clattn_status st = CLATTN_OK;
    cl_device_id *devices = NULL;
    size_t bytes = 0;
    if (!cl_ctx || !cl_dev)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "cl_ctx is %s, cl_dev is %s",
                        cl_ctx ? "set" : "NULL", cl_dev ? "set" : "NULL");
    CLA_CL(cl->GetContextInfo(cl_ctx, CL_CONTEXT_DEVICES, 0, NULL, &bytes));
    if (bytes > CLA_CL_COUNT_MAX * sizeof *devices)
        CLA_TRY(cla_cl_check(log, CL_INVALID_VALUE, "clGetContextInfo(CL_CONTEXT_DEVICES)"));
    devices = calloc(1, bytes + sizeof *devices);
    if (!devices)
        CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %zu bytes", bytes));
    CLA_CL(cl->GetContextInfo(cl_ctx, CL_CONTEXT_DEVICES, bytes, devices, NULL));
    // PoCL names the device that a sub-device was cut from, so its parents will do.
    bool found = false;
    int depth = 0; // a driver may name a device as its own parent
    for (cl_device_id d = cl_dev; d && !found && depth < 8; d = parent_of(cl, d), depth++)
        for (size_t i = 0; i < bytes / sizeof *devices; i++)
            found = found || devices[i] == d;
    if (!found)
        CLA_TRY(cla_fail(log, CLATTN_ERR_WRONG_CONTEXT, "cl_dev %p is not of cl_ctx %p",
                         (void *)cl_dev, (void *)cl_ctx));
    if (queue) {
        cl_context qc = NULL;
        cl_device_id qd = NULL;
        CLA_CL(cl->GetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof qc, &qc, NULL));
        CLA_CL(cl->GetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof qd, &qd, NULL));
        if (qc != cl_ctx || qd != cl_dev)
            CLA_TRY(cla_fail(log, CLATTN_ERR_WRONG_CONTEXT,
                             "queue is of cl_context %p and device %p, not of %p and %p",
                             (void *)qc, (void *)qd, (void *)cl_ctx, (void *)cl_dev));
    }
done:
    free(devices);
    return st;
}

// A sub-device lives as long as somebody has it; others have no count, and some drivers no such
// call.
static clattn_status retain_device(struct cla_ocl *ocl, const struct cla_log *log,
                                   cl_device_id device)
{
    clattn_status st = CLATTN_OK;
    ocl->device = device;
    if (!parent_of(ocl->cl, device))
        return CLATTN_OK;
    CLA_CL(ocl->cl->RetainDevice(device));
    ocl->retained_device = true;
done:
    return st;
}

clattn_status clattn_context_create_opencl(const clattn_context_desc *desc, cl_context cl_ctx,
                                           cl_device_id cl_dev, cl_command_queue queue,
                                           clattn_context **out)
{
    clattn_status st = CLATTN_OK;
    struct cla_log log0;
    const struct cla_log *log = &log0;
    clattn_context_desc d;
    clattn_context *ctx = NULL;
    if (out)
        *out = NULL;
    CLA_TRY(cla_context_desc_in(desc, &d, &log0));
    if (!out)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "out is NULL"));
    CLA_TRY(cla_context_alloc(&d, &ctx));
    ctx->ocl = calloc(1, sizeof *ctx->ocl);
    if (!ctx->ocl)
        CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for an OpenCL context"));
    CLA_TRY(cla_cl_open(d.opencl_library, log, &ctx->ocl->cl));
    CLA_TRY(check_adopted(ctx->ocl->cl, log, cl_ctx, cl_dev, queue));
    CLA_TRY(cla_cl_device_caps(ctx->ocl->cl, log, cl_dev, &ctx->caps));
    CLA_TRY(check_compiler(log, &ctx->caps));
    cla_context_lower(&d, &ctx->caps);
    CLA_CL(ctx->ocl->cl->RetainContext(cl_ctx));
    ctx->ocl->context = cl_ctx;
    CLA_TRY(retain_device(ctx->ocl, log, cl_dev));
    CLA_TRY(finish_open(ctx, queue));
    if (!(d.flags & CLATTN_CONTEXT_NO_SELF_TEST))
        CLA_TRY(cla_ocl_self_test(ctx));
    *out = ctx;
    ctx = NULL;
done:
    clattn_context_destroy(&ctx);
    return st;
}

cl_context clattn_context_cl_context(const clattn_context *ctx)
{
    return ctx && ctx->ocl ? ctx->ocl->context : NULL;
}

cl_device_id clattn_context_cl_device(const clattn_context *ctx)
{
    return ctx && ctx->ocl ? ctx->ocl->device : NULL;
}

// ---- programs ----------------------------------------------------------------------------------

static clattn_status source_of(const clattn_context *ctx, const char *file, char **text)
{
    return cla_source_expand(ctx->kernel_dir, ctx->embedded_kernels, file, &ctx->log, text);
}

clattn_status cla_ocl_build(clattn_context *ctx, const char *file, const char *options,
                            clattn_log_level fail_level, cl_program *out)
{
    char *text = NULL;
    clattn_status st = source_of(ctx, file, &text);
    if (st == CLATTN_OK)
        st = cla_programs_get(ctx->ocl->programs, file, text, options, fail_level, out);
    free(text);
    return st;
}

clattn_status cla_ocl_rebuild(clattn_context *ctx, const char *file, const char *options,
                              clattn_log_level fail_level, cl_program *out)
{
    char *text = NULL;
    *out = NULL;
    clattn_status st = source_of(ctx, file, &text);
    if (st == CLATTN_OK)
        st = cla_programs_rebuild(ctx->ocl->programs, file, text, options, fail_level, out);
    free(text);
    return st;
}

uint64_t cla_ocl_build_count(const struct cla_ocl *ocl)
{
    return cla_programs_build_count(ocl->programs);
}

// ---- turns -------------------------------------------------------------------------------------

bool cla_ocl_begin_turn(clattn_context *ctx, bool must)
{
    const bool begun = must || (ctx->caps.quirks & CLA_QUIRK_ONE_THREAD);
    if (begun)
        cla_mutex_lock(ctx->ocl->turn);
    return begun;
}

void cla_ocl_end_turn(clattn_context *ctx, bool begun)
{
    if (begun)
        cla_mutex_unlock(ctx->ocl->turn);
}

// ---- memory ------------------------------------------------------------------------------------

// Of a question about a cl_mem: a driver that has run out of memory says nothing about it.
static clattn_status mem_status(cl_int code)
{
    return cla_cl_status(code) == CLATTN_ERR_OUT_OF_MEMORY ? CLATTN_ERR_OUT_OF_MEMORY
                                                           : CLATTN_ERR_BUFFER_MISSING;
}

clattn_status cla_ocl_mem_facts(void *ctx, void *mem, struct cla_mem_facts *facts)
{
    const struct cla_ocl *ocl = ((const clattn_context *)ctx)->ocl;
    cl_context context = NULL;
    cl_mem_object_type type = 0;
    cl_mem root = NULL;
    cl_int code = ocl->cl->GetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof context, &context, NULL);
    if (code == CL_SUCCESS)
        code = ocl->cl->GetMemObjectInfo(mem, CL_MEM_TYPE, sizeof type, &type, NULL);
    if (code == CL_SUCCESS)
        code = ocl->cl->GetMemObjectInfo(mem, CL_MEM_SIZE, sizeof facts->bytes, &facts->bytes,
                                         NULL);
    if (code != CL_SUCCESS)
        return mem_status(code);
    if (context != ocl->context)
        return CLATTN_ERR_WRONG_CONTEXT;
    if (type != CL_MEM_OBJECT_BUFFER)
        return CLATTN_ERR_BUFFER_MISSING;
    facts->root = mem;
    facts->root_offset = 0;
    // Without the buffer that it is a part of nobody could tell what overlaps it.
    code = ocl->cl->GetMemObjectInfo(mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof root, &root, NULL);
    if (code == CL_SUCCESS && root)
        code = ocl->cl->GetMemObjectInfo(mem, CL_MEM_OFFSET, sizeof facts->root_offset,
                                         &facts->root_offset, NULL);
    if (code != CL_SUCCESS)
        return mem_status(code);
    if (root)
        facts->root = root;
    return CLATTN_OK;
}

clattn_status cla_ocl_mem_create(clattn_context *ctx, size_t bytes, void **mem)
{
    cl_int code = CL_SUCCESS;
    if (ctx->caps.max_alloc_bytes && bytes > ctx->caps.max_alloc_bytes)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY,
                        "%zu bytes are more than the device allows in one allocation (%zu)", bytes,
                        ctx->caps.max_alloc_bytes);
    *mem = ctx->ocl->cl->CreateBuffer(ctx->ocl->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    return cla_cl_made(&ctx->log, *mem, code, "clCreateBuffer");
}

void cla_ocl_mem_destroy(clattn_context *ctx, void *mem)
{
    ctx->ocl->cl->ReleaseMemObject(mem);
}

// A kernel behind a blocking write on the same queue must see it. Intel's CPU runtime forgets that
// now and then where the queue is out of order: 48 of 2000 times, never behind clFinish().
clattn_status cla_ocl_settle(clattn_context *ctx)
{
    const struct cla_ocl *ocl = ctx->ocl;
    if (!ocl->any_order)
        return CLATTN_OK;
    return cla_cl_check(&ctx->log, ocl->cl->Finish(ocl->queue), "clFinish");
}

clattn_status cla_ocl_mem_write(clattn_context *ctx, void *mem, size_t offset, const void *src,
                                size_t bytes)
{
    const struct cla_ocl *o = ctx->ocl;
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    const bool turn = cla_ocl_begin_turn(ctx, false);
    CLA_CL(o->cl->EnqueueWriteBuffer(o->queue, mem, CL_TRUE, offset, bytes, src, 0, NULL, NULL));
    // A blocking write behind the start of a buffer comes too late for other queues on Intel's
    // runtime, in order or not.
    CLA_CL(o->cl->Finish(o->queue));
done:
    cla_ocl_end_turn(ctx, turn);
    return st;
}

clattn_status cla_ocl_mem_read(clattn_context *ctx, void *mem, size_t offset, void *dst,
                               size_t bytes)
{
    const struct cla_ocl *o = ctx->ocl;
    const bool turn = cla_ocl_begin_turn(ctx, false);
    const cl_int code = o->cl->EnqueueReadBuffer(o->queue, mem, CL_TRUE, offset, bytes, dst, 0,
                                                 NULL, NULL);
    cla_ocl_end_turn(ctx, turn);
    return cla_cl_check(&ctx->log, code, "clEnqueueReadBuffer");
}

// ---- self-test ---------------------------------------------------------------------------------

// What self_test.cl writes for an argument block with distinct fields.
enum { SELF_TEST_ITEMS = 4, SELF_TEST_WORDS = 12 };

static void self_test_args(struct cla_fwd_args *a, cla_i64 want[SELF_TEST_WORDS])
{
    memset(a, 0, sizeof *a);
    a->q.offset = 3000000000LL;
    a->o.stride_s = 5000000007LL;
    a->mask.stride_k = 11;
    a->lse_offset = -13;
    a->len_kv = 17;
    a->win_hi = CLA_WIN_MAX;
    a->scale = 0.375f;
    a->num_tiles = 19;
    const cla_i64 w[SELF_TEST_WORDS] = {
        (cla_i64)sizeof *a, a->q.offset, a->o.stride_s, a->mask.stride_k, a->lse_offset,
        a->len_kv, a->win_hi, 375, a->num_tiles,
        a->q.offset * 3 + a->o.stride_s, // 64-bit arithmetic
        1 * 1000 + 2 * 100 + 3 * 10 + 4, // what the items left in local memory, backwards
        1};                              // an absent buffer is NULL
    memcpy(want, w, sizeof w);
}

// Runs the program and compares.
static clattn_status run_self_test(clattn_context *ctx, cl_program program, size_t items)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    struct cla_kernels *kernels = NULL;
    void *mem = NULL;
    cla_i64 want[SELF_TEST_WORDS], got[SELF_TEST_WORDS] = {0};
    struct cla_fwd_args args;
    self_test_args(&args, want);
    if (items == 1)
        want[10] = 1; // one item has nobody to exchange with

    CLA_TRY(cla_kernels_create(ctx->ocl->cl, program, "self_test", log, &kernels));
    CLA_TRY(cla_ocl_mem_create(ctx, sizeof got, &mem));
    const struct cla_arg arg[] = {
        {sizeof args, &args}, {sizeof(cl_mem), &mem}, {sizeof(cl_mem), NULL}};
    CLA_TRY(cla_kernels_enqueue(kernels, log, arg, 3, ctx->ocl->queue, 1, &items, &items, 0, NULL,
                                NULL));
    CLA_CL(ctx->ocl->cl->Finish(ctx->ocl->queue));
    CLA_TRY(cla_ocl_mem_read(ctx, mem, 0, got, sizeof got));
    for (int i = 0; i < SELF_TEST_WORDS; i++)
        if (got[i] != want[i])
            CLA_TRY(cla_fail(log, CLATTN_ERR_SELF_TEST,
                             "%s: self-test word %d is %lld, expected %lld", ctx->caps.name, i,
                             (long long)got[i], (long long)want[i]));
done:
    if (mem)
        cla_ocl_mem_destroy(ctx, mem);
    cla_kernels_destroy(&kernels);
    return st;
}

static clattn_status build_and_self_test(clattn_context *ctx, const char *options, size_t items)
{
    static const char file[] = "self_test.cl";
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_program program = NULL, again = NULL;
    clattn_status st = cla_ocl_build(ctx, file, options, CLATTN_LOG_ERROR, &program);
    if (st != CLATTN_OK)
        return st;
    st = run_self_test(ctx, program, items);
    if (st != CLATTN_OK) { // was it what came from disk?
        const clattn_status built = cla_ocl_rebuild(ctx, file, options, CLATTN_LOG_ERROR, &again);
        if (built == CLATTN_OK && again) {
            cla_logf(&ctx->log, CLATTN_LOG_WARN, "%s: what the program cache had of it failed",
                     file);
            st = run_self_test(ctx, again, items);
        }
    }
    if (again)
        cl->ReleaseProgram(again);
    cl->ReleaseProgram(program);
    return st;
}

// Where building is left to the driver's cache, the self-test's build is most of what a start
// costs (67 ms on PoCL): the cache remembers that this text, with these options, on this device
// with this driver passed.
static clattn_status self_test_once(clattn_context *ctx, const char *options, size_t items)
{
    static const char passed[] = "passed";
    char *text = NULL, why[CLA_CACHE_WHY];
    void *data = NULL;
    size_t size = 0;
    clattn_status st = source_of(ctx, "self_test.cl", &text);
    if (st != CLATTN_OK)
        return st;
    const struct cla_cache_key key = {.kind = "self-test", .options = options, .text = text};
    const bool known = cla_cache_get(ctx->ocl->cache, &key, &data, &size, why) == CLA_CACHE_HIT &&
                       size == sizeof passed && memcmp(data, passed, size) == 0;
    free(data);
    if (known) {
        cla_logf(&ctx->log, CLATTN_LOG_INFO, "the program cache says that the self-test passed");
    } else {
        if (why[0])
            cla_logf(&ctx->log, CLATTN_LOG_INFO, "the self-test is run again: %s", why);
        st = build_and_self_test(ctx, options, items);
        if (st == CLATTN_OK && ctx->ocl->cache &&
            !cla_cache_put(ctx->ocl->cache, &key, passed, sizeof passed, why))
            cla_logf(&ctx->log, CLATTN_LOG_INFO, "that the self-test passed is not kept: %s", why);
    }
    free(text);
    return st;
}

clattn_status cla_ocl_self_test(clattn_context *ctx)
{
    const size_t items = cla_caps_items(&ctx->caps) >= SELF_TEST_ITEMS ? SELF_TEST_ITEMS : 1;
    char options[64];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DITEMS=%d", (int)items);
    return ctx->caps.quirks & CLA_QUIRK_OWN_CACHE ? self_test_once(ctx, options, items)
                                                  : build_and_self_test(ctx, options, items);
}
