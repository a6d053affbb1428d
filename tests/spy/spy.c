// SPDX-License-Identifier: Apache-2.0
#include "spy.h"

#include <dlfcn.h>
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

STATUS(GetPlatformIDs, (cl_uint n, cl_platform_id *ids, cl_uint *got), (n, ids, got))
STATUS(GetPlatformInfo, (cl_platform_id p, cl_platform_info what, INFO_PARAMS),
       (p, what, INFO_ARGS))
STATUS(GetDeviceIDs,
       (cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *ids, cl_uint *got),
       (p, type, n, ids, got))
STATUS(GetContextInfo, (cl_context c, cl_context_info what, INFO_PARAMS), (c, what, INFO_ARGS))
STATUS(GetCommandQueueInfo, (cl_command_queue q, cl_command_queue_info what, INFO_PARAMS),
       (q, what, INFO_ARGS))
STATUS(GetMemObjectInfo, (cl_mem m, cl_mem_info what, INFO_PARAMS), (m, what, INFO_ARGS))
STATUS(BuildProgram,
       (cl_program p, cl_uint n, const cl_device_id *devices, const char *options,
        void(CL_CALLBACK *notify)(cl_program, void *), void *user),
       (p, n, devices, options, notify, user))
STATUS(GetProgramInfo, (cl_program p, cl_program_info what, INFO_PARAMS), (p, what, INFO_ARGS))
STATUS(GetProgramBuildInfo,
       (cl_program p, cl_device_id d, cl_program_build_info what, INFO_PARAMS),
       (p, d, what, INFO_ARGS))
STATUS(SetKernelArg, (cl_kernel k, cl_uint n, size_t size, const void *value), (k, n, size, value))
STATUS(SetUserEventStatus, (cl_event e, cl_int status), (e, status))
STATUS(SetEventCallback,
       (cl_event e, cl_int type, void(CL_CALLBACK *call)(cl_event, cl_int, void *), void *user),
       (e, type, call, user))
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
    for (int i = 0; counts && i < spy.num_lies; i++)
        if (spy.lies[i].param == what)
            return answer(spy.lies[i].value, spy.lies[i].size, INFO_ARGS);
    return real(d, what, INFO_ARGS);
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

ENQUEUE(NDRangeKernel,
        (cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global,
         const size_t *local, WAIT_PARAMS),
        (q, k, dims, offset, global, local, WAIT_ARGS))
ENQUEUE(WriteBuffer,
        (cl_command_queue q, cl_mem m, cl_bool blocks, size_t offset, size_t size, const void *from,
         WAIT_PARAMS),
        (q, m, blocks, offset, size, from, WAIT_ARGS))
ENQUEUE(FillBuffer,
        (cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size, size_t offset,
         size_t size, WAIT_PARAMS),
        (q, m, pattern, pattern_size, offset, size, WAIT_ARGS))
ENQUEUE(UnmapMemObject, (cl_command_queue q, cl_mem m, void *mapped, WAIT_PARAMS),
        (q, m, mapped, WAIT_ARGS))
ENQUEUE(MarkerWithWaitList, (cl_command_queue q, WAIT_PARAMS), (q, WAIT_ARGS))
ENQUEUE(BarrierWithWaitList, (cl_command_queue q, WAIT_PARAMS), (q, WAIT_ARGS))

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
    if (spy.loses_device && blocks)
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
    if (fails(SPY_EnqueueMapBuffer, counts) || (spy.loses_device && blocks)) {
        if (error)
            *error = spy.loses_device ? CL_OUT_OF_RESOURCES : spy.fail_code;
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
    return spy.loses_device ? CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST : status;
}

EXPORT cl_int CL_API_CALL clFinish(cl_command_queue q)
{
    REAL(Finish)
    if (fails(SPY_Finish, counts))
        return spy.fail_code;
    const cl_int status = real(q);
    return spy.loses_device ? CL_OUT_OF_RESOURCES : status;
}
