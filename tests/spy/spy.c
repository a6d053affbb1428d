// SPDX-License-Identifier: Apache-2.0
#include "spy.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT struct spy *spy_control(void);
EXPORT const char *spy_name(int function);

static struct spy spy = {.fail_on = -1, .failed_function = -1};
static void *loader;

struct spy *spy_control(void)
{
    return &spy;
}

const char *spy_name(int function)
{
    static const char *const names[] = {
#define SPY_TEXT(name) "cl" #name,
        SPY_FUNCTIONS(SPY_TEXT)
#undef SPY_TEXT
    };
    return function >= 0 && function < SPY_FUNCTION_COUNT ? names[function] : "nothing";
}

// A test may be skipped where there is no loader, so it is opened late.
static void *real_function(const char *name)
{
    if (!loader)
        loader = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = loader ? dlsym(loader, name) : NULL;
    if (!symbol)
        abort();
    return symbol;
}

// Whether clattn calls: what CLBlast and the test itself call goes through and is not counted.
static bool of_clattn(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libclattn");
}

// ---- deciding -----------------------------------------------------------------------------------

// Whether this call of the function is the one that fails.
static bool fails(enum spy_function function, bool counts)
{
    if (!counts)
        return false;
    atomic_fetch_add(&spy.calls_of[function], 1);
    if (spy.fail_on >= 0 && spy.fail_on != (int)function)
        return false;
    const long n = atomic_fetch_add(&spy.calls, 1) + 1;
    if (!spy.fail_at || n < spy.fail_at || (n > spy.fail_at && !spy.fails_from_there))
        return false;
    int none = -1;
    atomic_compare_exchange_strong(&spy.failed_function, &none, (int)function);
    return true;
}

// Whether the device is lost by the end of this wait.
static bool loses(bool counts)
{
    if (counts && atomic_fetch_add(&spy.waits, 1) + 1 == spy.lost_at)
        spy.loses_device = true;
    return counts && spy.loses_device;
}

static void hold(enum spy_object kind, const void *object, bool counts)
{
    if (object && counts)
        atomic_fetch_add(&spy.objects[kind], 1);
}

static void drop(enum spy_object kind, bool counts)
{
    if (counts)
        atomic_fetch_sub(&spy.objects[kind], 1);
}

// ---- forwarding ---------------------------------------------------------------------------------

#define REAL(name)                                                                                 \
    static __typeof__(&cl##name) real;                                                             \
    const bool counts = of_clattn(__builtin_return_address(0));                                    \
    if (!real) {                                                                                   \
        void *symbol = real_function("cl" #name);                                                  \
        memcpy((void *)&real, &symbol, sizeof symbol);                                             \
    }

#define STATUS(name, params, args)                                                                 \
    EXPORT cl_int CL_API_CALL cl##name params                                                      \
    {                                                                                              \
        REAL(name)                                                                                 \
        return fails(SPY_##name, counts) ? spy.fail_code : real args;                              \
    }

// Functions that give an object and write their status to `error`.
#define HANDLE(kind, type, name, params, args)                                                     \
    EXPORT type CL_API_CALL cl##name params                                                        \
    {                                                                                              \
        REAL(name)                                                                                 \
        if (fails(SPY_##name, counts)) {                                                           \
            if (error)                                                                             \
                *error = spy.fail_code;                                                            \
            return NULL;                                                                           \
        }                                                                                          \
        type made = real args;                                                                     \
        hold(kind, made, counts);                                                                  \
        return made;                                                                               \
    }

#define RETAIN(kind, type, name)                                                                   \
    EXPORT cl_int CL_API_CALL cl##name(type object)                                                \
    {                                                                                              \
        REAL(name)                                                                                 \
        if (fails(SPY_##name, counts))                                                             \
            return spy.fail_code;                                                                  \
        const cl_int status = real(object);                                                        \
        if (status == CL_SUCCESS)                                                                  \
            hold(kind, object, counts);                                                            \
        return status;                                                                             \
    }

#define RELEASE(kind, type, name)                                                                  \
    EXPORT cl_int CL_API_CALL cl##name(type object)                                                \
    {                                                                                              \
        REAL(name)                                                                                 \
        const cl_int status = real(object);                                                        \
        if (status == CL_SUCCESS)                                                                  \
            drop(kind, counts);                                                                    \
        return status;                                                                             \
    }

#define INFO_PARAMS size_t size, void *value, size_t *got
#define INFO_ARGS size, value, got

STATUS(GetContextInfo, (cl_context c, cl_context_info what, INFO_PARAMS), (c, what, INFO_ARGS))
STATUS(GetCommandQueueInfo, (cl_command_queue q, cl_command_queue_info what, INFO_PARAMS),
       (q, what, INFO_ARGS))
STATUS(GetMemObjectInfo, (cl_mem m, cl_mem_info what, INFO_PARAMS), (m, what, INFO_ARGS))
STATUS(GetProgramInfo, (cl_program p, cl_program_info what, INFO_PARAMS), (p, what, INFO_ARGS))
STATUS(SetKernelArg, (cl_kernel k, cl_uint n, size_t size, const void *value), (k, n, size, value))
STATUS(SetUserEventStatus, (cl_event e, cl_int status), (e, status))
STATUS(GetEventInfo, (cl_event e, cl_event_info what, INFO_PARAMS), (e, what, INFO_ARGS))
STATUS(GetEventProfilingInfo, (cl_event e, cl_profiling_info what, INFO_PARAMS),
       (e, what, INFO_ARGS))
STATUS(Flush, (cl_command_queue q), (q))

HANDLE(SPY_CONTEXT, cl_context, CreateContext,
       (const cl_context_properties *properties, cl_uint n, const cl_device_id *devices,
        void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
        cl_int *error),
       (properties, n, devices, notify, user, error))
HANDLE(SPY_QUEUE, cl_command_queue, CreateCommandQueue,
       (cl_context c, cl_device_id d, cl_command_queue_properties properties, cl_int *error),
       (c, d, properties, error))
HANDLE(SPY_PROGRAM, cl_program, CreateProgramWithSource,
       (cl_context c, cl_uint n, const char **texts, const size_t *sizes, cl_int *error),
       (c, n, texts, sizes, error))
HANDLE(SPY_PROGRAM, cl_program, CreateProgramWithBinary,
       (cl_context c, cl_uint n, const cl_device_id *devices, const size_t *sizes,
        const unsigned char **binaries, cl_int *status, cl_int *error),
       (c, n, devices, sizes, binaries, status, error))
HANDLE(SPY_KERNEL, cl_kernel, CreateKernel, (cl_program p, const char *name, cl_int *error),
       (p, name, error))
HANDLE(SPY_EVENT, cl_event, CreateUserEvent, (cl_context c, cl_int *error), (c, error))

RETAIN(SPY_DEVICE, cl_device_id, RetainDevice)
RETAIN(SPY_CONTEXT, cl_context, RetainContext)
RETAIN(SPY_QUEUE, cl_command_queue, RetainCommandQueue)
RETAIN(SPY_MEM, cl_mem, RetainMemObject)
RETAIN(SPY_PROGRAM, cl_program, RetainProgram)
RETAIN(SPY_EVENT, cl_event, RetainEvent)

RELEASE(SPY_DEVICE, cl_device_id, ReleaseDevice)
RELEASE(SPY_CONTEXT, cl_context, ReleaseContext)
RELEASE(SPY_QUEUE, cl_command_queue, ReleaseCommandQueue)
RELEASE(SPY_MEM, cl_mem, ReleaseMemObject)
RELEASE(SPY_PROGRAM, cl_program, ReleaseProgram)
RELEASE(SPY_KERNEL, cl_kernel, ReleaseKernel)
RELEASE(SPY_EVENT, cl_event, ReleaseEvent)

// ---- lying --------------------------------------------------------------------------------------

static cl_int answer(const void *from, size_t from_size, INFO_PARAMS)
{
    if (value && size < from_size)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, from_size);
    if (got)
        *got = from_size;
    return CL_SUCCESS;
}

EXPORT cl_int CL_API_CALL clGetDeviceInfo(cl_device_id d, cl_device_info what, INFO_PARAMS)
{
    REAL(GetDeviceInfo)
    if (fails(SPY_GetDeviceInfo, counts))
        return spy.fail_code;
    for (int i = 0; counts && i < spy.num_lies; i++) {
        const struct spy_lie *l = &spy.lies[i];
        if (l->param != what)
            continue;
        const void *from = l->text ? (const void *)l->text : l->value;
        if (!value || size >= l->size) {
            answer(from, l->size, INFO_ARGS);
        } else if (l->claims) { // it fills what room there is, and finds that well done
            memcpy(value, from, size);
        } else {
            return CL_INVALID_VALUE;
        }
        if (got && l->claims)
            *got = l->claims;
        return CL_SUCCESS;
    }
    return real(d, what, INFO_ARGS);
}

// Platforms that are not there.
static char platforms[1000];

static bool is_real(cl_platform_id p)
{
    const char *at = (const char *)(void *)p;
    return at < platforms || at >= platforms + sizeof platforms;
}

EXPORT cl_int CL_API_CALL clGetPlatformIDs(cl_uint n, cl_platform_id *ids, cl_uint *got)
{
    REAL(GetPlatformIDs)
    const cl_uint more = counts ? spy.platforms : 0;
    cl_uint there = 0;
    if (fails(SPY_GetPlatformIDs, counts))
        return spy.fail_code;
    for (cl_uint i = 0; ids && i < more && i < n; i++)
        ids[i] = (cl_platform_id)(void *)&platforms[i];
    const cl_uint room = n > more ? n - more : 0;
    const cl_int code = real(ids ? room : 0, ids && room ? ids + more : NULL, &there);
    if (got)
        *got = there + more;
    return more ? CL_SUCCESS : code;
}

EXPORT cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id p, cl_platform_info what, INFO_PARAMS)
{
    REAL(GetPlatformInfo)
    if (fails(SPY_GetPlatformInfo, counts))
        return spy.fail_code;
    return is_real(p) ? real(p, what, INFO_ARGS) : answer("of the spy", 11, INFO_ARGS);
}

EXPORT cl_int CL_API_CALL clGetDeviceIDs(cl_platform_id p, cl_device_type type, cl_uint n,
                                         cl_device_id *ids, cl_uint *got)
{
    REAL(GetDeviceIDs)
    if (fails(SPY_GetDeviceIDs, counts))
        return spy.fail_code;
    if (is_real(p))
        return real(p, type, n, ids, got);
    if (got)
        *got = ids ? 0 : spy.platform_says;
    return spy.platform_code;
}

EXPORT cl_int CL_API_CALL clBuildProgram(cl_program p, cl_uint n, const cl_device_id *devices,
                                         const char *options,
                                         void(CL_CALLBACK *notify)(cl_program, void *), void *user)
{
    REAL(BuildProgram)
    if (fails(SPY_BuildProgram, counts))
        return spy.fail_code;
    if (counts && spy.unbuilt && strstr(options, spy.unbuilt))
        return CL_BUILD_PROGRAM_FAILURE;
    return real(p, n, devices, options, notify, user);
}

EXPORT cl_int CL_API_CALL clGetProgramBuildInfo(cl_program p, cl_device_id d,
                                                cl_program_build_info what, INFO_PARAMS)
{
    REAL(GetProgramBuildInfo)
    if (fails(SPY_GetProgramBuildInfo, counts))
        return spy.fail_code;
    if (counts && spy.build_log && what == CL_PROGRAM_BUILD_LOG)
        return answer(spy.build_log, strlen(spy.build_log), INFO_ARGS); // without its end
    return real(p, d, what, INFO_ARGS);
}

EXPORT cl_int CL_API_CALL clGetKernelWorkGroupInfo(cl_kernel k, cl_device_id d,
                                                   cl_kernel_work_group_info what, INFO_PARAMS)
{
    REAL(GetKernelWorkGroupInfo)
    const cl_ulong local = spy.kernel_local;
    if (fails(SPY_GetKernelWorkGroupInfo, counts))
        return spy.fail_code;
    if (what == CL_KERNEL_WORK_GROUP_SIZE && spy.kernel_group)
        return answer(&spy.kernel_group, sizeof spy.kernel_group, INFO_ARGS);
    if (what == CL_KERNEL_LOCAL_MEM_SIZE && spy.kernel_local)
        return answer(&local, sizeof local, INFO_ARGS);
    return real(k, d, what, INFO_ARGS);
}

EXPORT cl_mem CL_API_CALL clCreateBuffer(cl_context c, cl_mem_flags flags, size_t size, void *host,
                                         cl_int *error)
{
    REAL(CreateBuffer)
    cl_int status = CL_SUCCESS;
    if (fails(SPY_CreateBuffer, counts))
        status = spy.fail_code;
    else if (spy.alloc_limit && size > spy.alloc_limit)
        status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    if (status != CL_SUCCESS) {
        if (error)
            *error = status;
        return NULL;
    }
    cl_mem made = real(c, flags, size, host, error);
    hold(SPY_MEM, made, counts);
    return made;
}

// ---- queues -------------------------------------------------------------------------------------

#define WAIT_PARAMS cl_uint n, const cl_event *wait, cl_event *done
#define WAIT_ARGS n, wait, done

// A status, and the event that the caller then owns.
static cl_int queued(cl_int status, const cl_event *done, bool counts)
{
    if (status == CL_SUCCESS && done)
        hold(SPY_EVENT, *done, counts);
    return status;
}

#define ENQUEUE(name, params, args)                                                                \
    EXPORT cl_int CL_API_CALL clEnqueue##name params                                               \
    {                                                                                              \
        REAL(Enqueue##name)                                                                        \
        return fails(SPY_Enqueue##name, counts) ? spy.fail_code : queued(real args, done, counts); \
    }

ENQUEUE(MarkerWithWaitList, (cl_command_queue q, WAIT_PARAMS), (q, WAIT_ARGS))
ENQUEUE(BarrierWithWaitList, (cl_command_queue q, WAIT_PARAMS), (q, WAIT_ARGS))

#define SAY(...) ((void)snprintf(spy.why, sizeof spy.why, __VA_ARGS__), false)

// A fact of the device as it is told.
static void told(cl_device_id d, cl_device_info what, void *value, size_t size)
{
    for (int i = 0; i < spy.num_lies; i++)
        if (spy.lies[i].param == what) {
            const struct spy_lie *l = &spy.lies[i];
            memcpy(value, l->text ? (const void *)l->text : l->value,
                   l->size < size ? l->size : size);
            return;
        }
    clGetDeviceInfo(d, what, size, value, NULL);
}

// Whether a launch is within what the device and the kernel were said to allow, and whole.
static bool within(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *global,
                   const size_t *local)
{
    cl_device_id d = NULL;
    size_t items[16] = {0}, group = 0, all = 1;
    cl_ulong local_bytes = 0, uses = 0;
    if (!local || clGetCommandQueueInfo(q, CL_QUEUE_DEVICE, sizeof d, &d, NULL) != CL_SUCCESS)
        return SAY("no local size, or no device");
    told(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, &group, sizeof group);
    told(d, CL_DEVICE_MAX_WORK_ITEM_SIZES, items, sizeof items);
    told(d, CL_DEVICE_LOCAL_MEM_SIZE, &local_bytes, sizeof local_bytes);
    for (cl_uint i = 0; i < dims; i++) {
        all *= local[i];
        if (!local[i] || !global[i] || global[i] % local[i] || local[i] > items[i])
            return SAY("%zu items in groups of %zu, of at most %zu", global[i], local[i], items[i]);
    }
    if (all > group)
        return SAY("a group of %zu, of at most %zu", all, group);
    if (spy.kernel_group && all > spy.kernel_group)
        return SAY("a group of %zu, of at most %zu of the kernel", all, spy.kernel_group);
    // One driver says twice what a kernel uses; see docs/devices.md.
    if (clGetKernelWorkGroupInfo(k, d, CL_KERNEL_LOCAL_MEM_SIZE, sizeof uses, &uses, NULL) ==
            CL_SUCCESS && !spy.kernel_local && uses > 2 * local_bytes)
        return SAY("%llu bytes of local memory, of %llu", (unsigned long long)uses,
                   (unsigned long long)local_bytes);
    return true;
}

static bool is_idle(cl_kernel k)
{
    char name[128] = "";
    __typeof__(&clGetKernelInfo) info;
    void *symbol = real_function("clGetKernelInfo");
    memcpy((void *)&info, &symbol, sizeof symbol);
    return spy.idle &&
           info(k, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL) == CL_SUCCESS &&
           strstr(name, spy.idle);
}

EXPORT cl_int CL_API_CALL clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dims,
                                                 const size_t *offset, const size_t *global,
                                                 const size_t *local, WAIT_PARAMS)
{
    REAL(EnqueueNDRangeKernel)
    if (fails(SPY_EnqueueNDRangeKernel, counts))
        return spy.fail_code;
    if (counts) {
        atomic_fetch_add(&spy.launches, 1);
        if (!within(q, k, dims, global, local))
            atomic_fetch_add(&spy.over, 1);
    }
    if (counts && is_idle(k))
        return queued(clEnqueueMarkerWithWaitList(q, WAIT_ARGS), done, counts);
    return queued(real(q, k, dims, offset, global, local, WAIT_ARGS), done, counts);
}

EXPORT cl_int CL_API_CALL clEnqueueWriteBuffer(cl_command_queue q, cl_mem m, cl_bool blocks,
                                               size_t offset, size_t size, const void *from,
                                               WAIT_PARAMS)
{
    REAL(EnqueueWriteBuffer)
    if (fails(SPY_EnqueueWriteBuffer, counts))
        return spy.fail_code;
    if (blocks && spy.lost_at && loses(counts)) // else only what waits for kernels fails
        return CL_OUT_OF_RESOURCES;
    return queued(real(q, m, blocks, offset, size, from, WAIT_ARGS), done, counts);
}

ENQUEUE(FillBuffer,
        (cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size, size_t offset,
         size_t size, WAIT_PARAMS),
        (q, m, pattern, pattern_size, offset, size, WAIT_ARGS))
ENQUEUE(UnmapMemObject, (cl_command_queue q, cl_mem m, void *mapped, WAIT_PARAMS),
        (q, m, mapped, WAIT_ARGS))
// Turns each float's largest exponent bit, so that no number stays what it was.
static void spoil(void *bytes, size_t size)
{
    for (size_t i = 3; i < size; i += 4)
        ((unsigned char *)bytes)[i] ^= 0x40;
}

EXPORT cl_int CL_API_CALL clEnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_bool blocks,
                                              size_t offset, size_t size, void *to, WAIT_PARAMS)
{
    REAL(EnqueueReadBuffer)
    if (fails(SPY_EnqueueReadBuffer, counts))
        return spy.fail_code;
    if (blocks && loses(counts))
        return CL_OUT_OF_RESOURCES;
    const cl_int status = queued(real(q, m, blocks || spy.spoils_reads, offset, size, to,
                                          WAIT_ARGS), done, counts);
    if (status == CL_SUCCESS && spy.spoils_reads)
        spoil(to, size);
    return status;
}

EXPORT void *CL_API_CALL clEnqueueMapBuffer(cl_command_queue q, cl_mem m, cl_bool blocks,
                                            cl_map_flags flags, size_t offset, size_t size,
                                            WAIT_PARAMS, cl_int *error)
{
    REAL(EnqueueMapBuffer)
    cl_int failed = CL_SUCCESS;
    if (fails(SPY_EnqueueMapBuffer, counts))
        failed = spy.fail_code;
    else if (blocks && loses(counts))
        failed = CL_OUT_OF_RESOURCES;
    if (failed != CL_SUCCESS) {
        if (error)
            *error = failed;
        return NULL;
    }
    void *mapped = real(q, m, blocks, flags, offset, size, WAIT_ARGS, error);
    if (mapped)
        queued(CL_SUCCESS, done, counts);
    return mapped;
}

EXPORT cl_int CL_API_CALL clWaitForEvents(cl_uint n, const cl_event *events)
{
    REAL(WaitForEvents)
    if (fails(SPY_WaitForEvents, counts))
        return spy.fail_code;
    const cl_int status = real(n, events);
    return loses(counts) ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : status;
}

EXPORT cl_int CL_API_CALL clFinish(cl_command_queue q)
{
    REAL(Finish)
    if (fails(SPY_Finish, counts))
        return spy.fail_code;
    const cl_int status = real(q);
    return loses(counts) ? CL_OUT_OF_RESOURCES : status;
}

// The callback of an event, which fails with a device that is lost.
struct callback {
    void(CL_CALLBACK *call)(cl_event, cl_int, void *);
    void *user;
};

static void CL_CALLBACK forward(cl_event e, cl_int status, void *user)
{
    const struct callback c = *(struct callback *)user;
    free(user);
    c.call(e, loses(true) ? CL_OUT_OF_RESOURCES : status, c.user);
}

EXPORT cl_int CL_API_CALL clSetEventCallback(cl_event e, cl_int type,
                                             void(CL_CALLBACK *call)(cl_event, cl_int, void *),
                                             void *user)
{
    REAL(SetEventCallback)
    if (fails(SPY_SetEventCallback, counts))
        return spy.fail_code;
    if (!counts)
        return real(e, type, call, user);
    struct callback *c = malloc(sizeof *c);
    if (!c)
        abort();
    *c = (struct callback){call, user};
    const cl_int status = real(e, type, forward, c);
    if (status != CL_SUCCESS)
        free(c);
    return status;
}
