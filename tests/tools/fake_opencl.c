// SPDX-License-Identifier: Apache-2.0
// An OpenCL library with one made-up GPU, for tests of what the tools do about bad drivers. It
// compiles anything and computes nothing, so every output stays as it was. $FAKE_OPENCL spoils it:
//   none                no platform
//   empty               a platform without devices
//   FUNCTION=FAULT      what happens in FUNCTION: segv, abort, exit (with status 0), hang; noise =
//                       4 MiB are printed, and all is well; babble = it prints for ever
//   refuse              clCreateContext() fails
//   no-compiler         the device has none
//   FUNCTION=FAULT/WORD the same in clBuildProgram(), only for source texts that hold WORD
//   load=FAULT          when the library is opened
//   unload=FAULT        when the process ends
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

struct memory {
    size_t size;
    unsigned char *bytes;
};

struct program {
    int users;
    char *text;
};

static char a_platform, a_device, a_context, a_queue, a_kernel, an_event;

static const char *wish(void)
{
    const char *text = getenv("FAKE_OPENCL");
    return text ? text : "";
}

static void fault(const char *function, const char *text)
{
    const size_t length = strlen(function);
    char what[64] = "";
    if (strncmp(wish(), function, length) != 0 || wish()[length] != '=')
        return;
    snprintf(what, sizeof what, "%s", wish() + length + 1);
    char *word = strchr(what, '/');
    if (word) {
        *word++ = '\0';
        if (!text || !strstr(text, word))
            return;
    }
    fprintf(stderr, "fake driver: %s\n", what);
    const bool babbles = strcmp(what, "babble") == 0, noisy = strcmp(what, "noise") == 0;
    for (long n = 0; babbles || (noisy && n < (4 << 20) / 64); n++)
        fprintf(stderr, "%062ld\n", n);
    if (noisy)
        return;
    if (strcmp(what, "segv") == 0) {
        signal(SIGSEGV, SIG_DFL); // a sanitizer has its own idea
        kill(getpid(), SIGSEGV);
    }
    if (strcmp(what, "abort") == 0)
        abort();
    if (strcmp(what, "exit") == 0)
        exit(0);
    for (;;)
        pause();
}

__attribute__((constructor)) static void load(void)
{
    fault("load", NULL);
}

__attribute__((destructor)) static void unload(void)
{
    fault("unload", NULL);
}

static cl_int answer(const void *from, size_t from_size, size_t size, void *value, size_t *got)
{
    if (value && size < from_size)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, from_size);
    if (got)
        *got = from_size;
    return CL_SUCCESS;
}

// ---- platform, device, context ------------------------------------------------------------------

cl_int clGetPlatformIDs(cl_uint room, cl_platform_id *ids, cl_uint *count)
{
    fault("clGetPlatformIDs", NULL);
    if (strcmp(wish(), "none") == 0)
        return -1001;
    if (ids && room)
        ids[0] = (cl_platform_id)(void *)&a_platform;
    if (count)
        *count = 1;
    return CL_SUCCESS;
}

cl_int clGetPlatformInfo(cl_platform_id platform, cl_platform_info name, size_t size, void *value,
                         size_t *got)
{
    (void)platform;
    const char *text = name == CL_PLATFORM_NAME ? "Fake" : "Fakers \xff";
    return answer(text, strlen(text) + 1, size, value, got);
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id *ids,
                      cl_uint *count)
{
    (void)platform;
    (void)type;
    fault("clGetDeviceIDs", NULL);
    if (strcmp(wish(), "empty") == 0)
        return CL_DEVICE_NOT_FOUND;
    if (ids && room)
        ids[0] = (cl_device_id)(void *)&a_device;
    if (count)
        *count = 1;
    return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value,
                       size_t *got)
{
    (void)device;
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_platform_id platform = (cl_platform_id)(void *)&a_platform;
    const size_t items[3] = {256, 256, 64}, group = 256;
    const cl_ulong local = 32768, memory = 1u << 30;
    const cl_bool yes = CL_TRUE, compiler = strcmp(wish(), "no-compiler") != 0;
    const cl_uint units = 4;
    const cl_device_local_mem_type kind = CL_LOCAL;
    switch (name) {
    case CL_DEVICE_TYPE: return answer(&type, sizeof type, size, value, got);
    case CL_DEVICE_PLATFORM: return answer(&platform, sizeof platform, size, value, got);
    case CL_DEVICE_NAME: return answer("fake GPU", 9, size, value, got);
    case CL_DEVICE_VENDOR: return answer("Fakers", 7, size, value, got);
    case CL_DRIVER_VERSION: return answer("1", 2, size, value, got);
    case CL_DEVICE_VERSION: return answer("OpenCL 1.2", 11, size, value, got);
    case CL_DEVICE_AVAILABLE: return answer(&yes, sizeof yes, size, value, got);
    case CL_DEVICE_COMPILER_AVAILABLE:
        return answer(&compiler, sizeof compiler, size, value, got);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT: return answer(&units, sizeof units, size, value, got);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: return answer(&group, sizeof group, size, value, got);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: return answer(items, sizeof items, size, value, got);
    case CL_DEVICE_LOCAL_MEM_TYPE: return answer(&kind, sizeof kind, size, value, got);
    case CL_DEVICE_LOCAL_MEM_SIZE: return answer(&local, sizeof local, size, value, got);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return answer(&memory, sizeof memory, size, value, got);
    default: return CL_INVALID_VALUE;
    }
}

cl_context clCreateContext(const cl_context_properties *properties, cl_uint count,
                           const cl_device_id *devices,
                           void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                           void *user, cl_int *code)
{
    (void)properties;
    (void)count;
    (void)devices;
    (void)notify;
    (void)user;
    fault("clCreateContext", NULL);
    const bool refuses = strcmp(wish(), "refuse") == 0;
    *code = refuses ? CL_DEVICE_NOT_AVAILABLE : CL_SUCCESS;
    return refuses ? NULL : (cl_context)(void *)&a_context;
}

cl_int clGetContextInfo(cl_context context, cl_context_info name, size_t size, void *value,
                        size_t *got)
{
    const cl_device_id device = (cl_device_id)(void *)&a_device;
    (void)context;
    (void)name;
    return answer(&device, sizeof device, size, value, got);
}

cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device,
                                      cl_command_queue_properties properties, cl_int *code)
{
    (void)context;
    (void)device;
    (void)properties;
    *code = CL_SUCCESS;
    return (cl_command_queue)(void *)&a_queue;
}

cl_int clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info name, size_t size,
                             void *value, size_t *got)
{
    const cl_context context = (cl_context)(void *)&a_context;
    const cl_device_id device = (cl_device_id)(void *)&a_device;
    (void)queue;
    return name == CL_QUEUE_CONTEXT ? answer(&context, sizeof context, size, value, got)
                                    : answer(&device, sizeof device, size, value, got);
}

// ---- memory -------------------------------------------------------------------------------------

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code)
{
    struct memory *m = calloc(1, sizeof *m);
    (void)context;
    (void)flags;
    *code = CL_OUT_OF_HOST_MEMORY;
    if (!m)
        return NULL;
    m->size = size;
    m->bytes = calloc(size, 1);
    if (m->bytes && host)
        memcpy(m->bytes, host, size);
    *code = m->bytes ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return (cl_mem)(void *)m;
}

cl_int clReleaseMemObject(cl_mem mem)
{
    struct memory *m = (struct memory *)(void *)mem;
    free(m->bytes);
    free(m);
    return CL_SUCCESS;
}

cl_int clGetMemObjectInfo(cl_mem mem, cl_mem_info name, size_t size, void *value, size_t *got)
{
    const cl_context context = (cl_context)(void *)&a_context;
    const struct memory *m = (const struct memory *)(void *)mem;
    return name == CL_MEM_CONTEXT ? answer(&context, sizeof context, size, value, got)
                                  : answer(&m->size, sizeof m->size, size, value, got);
}

static void give_event(cl_event *event)
{
    if (event)
        *event = (cl_event)(void *)&an_event;
}

cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset,
                           size_t size, void *to, cl_uint count, const cl_event *wait,
                           cl_event *event)
{
    (void)queue;
    (void)blocking;
    (void)count;
    (void)wait;
    memcpy(to, ((const struct memory *)(void *)mem)->bytes + offset, size);
    give_event(event);
    return CL_SUCCESS;
}

cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem mem, cl_bool blocking, size_t offset,
                            size_t size, const void *from, cl_uint count, const cl_event *wait,
                            cl_event *event)
{
    (void)queue;
    (void)blocking;
    (void)count;
    (void)wait;
    memcpy(((struct memory *)(void *)mem)->bytes + offset, from, size);
    give_event(event);
    return CL_SUCCESS;
}

cl_int clEnqueueFillBuffer(cl_command_queue queue, cl_mem mem, const void *pattern,
                           size_t pattern_size, size_t offset, size_t size, cl_uint count,
                           const cl_event *wait, cl_event *event)
{
    unsigned char *to = ((struct memory *)(void *)mem)->bytes + offset;
    (void)queue;
    (void)count;
    (void)wait;
    for (size_t i = 0; i + pattern_size <= size; i += pattern_size)
        memcpy(to + i, pattern, pattern_size);
    give_event(event);
    return CL_SUCCESS;
}

void *clEnqueueMapBuffer(cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags,
                         size_t offset, size_t size, cl_uint count, const cl_event *wait,
                         cl_event *event, cl_int *code)
{
    (void)queue;
    (void)blocking;
    (void)flags;
    (void)size;
    (void)count;
    (void)wait;
    give_event(event);
    *code = CL_SUCCESS;
    return ((struct memory *)(void *)mem)->bytes + offset;
}

cl_int clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem mem, void *at, cl_uint count,
                               const cl_event *wait, cl_event *event)
{
    (void)queue;
    (void)mem;
    (void)at;
    (void)count;
    (void)wait;
    give_event(event);
    return CL_SUCCESS;
}

// ---- programs -----------------------------------------------------------------------------------

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                     const size_t *lengths, cl_int *code)
{
    (void)context;
    (void)count;
    struct program *p = calloc(1, sizeof *p);
    *code = CL_OUT_OF_HOST_MEMORY;
    if (!p)
        return NULL;
    p->users = 1;
    p->text = lengths && lengths[0] ? strndup(texts[0], lengths[0]) : strdup(texts[0]);
    *code = p->text ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return (cl_program)(void *)p;
}

// There are no binaries, which is legal.
cl_program clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                     const size_t *sizes, const unsigned char **binaries,
                                     cl_int *status, cl_int *code)
{
    (void)context;
    (void)count;
    (void)devices;
    (void)sizes;
    (void)binaries;
    if (status)
        *status = CL_INVALID_BINARY;
    *code = CL_INVALID_BINARY;
    return NULL;
}

cl_int clGetProgramInfo(cl_program program, cl_program_info name, size_t size, void *value,
                        size_t *got)
{
    (void)program;
    (void)name;
    (void)size;
    (void)value;
    (void)got;
    return CL_INVALID_VALUE;
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                      const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                      void *user)
{
    (void)count;
    (void)devices;
    (void)options;
    (void)notify;
    (void)user;
    fault("clBuildProgram", ((const struct program *)(void *)program)->text);
    return CL_SUCCESS;
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info name,
                             size_t size, void *value, size_t *got)
{
    (void)program;
    (void)device;
    (void)name;
    return answer("", 1, size, value, got);
}

cl_int clRetainProgram(cl_program program)
{
    ((struct program *)(void *)program)->users++;
    return CL_SUCCESS;
}

cl_int clReleaseProgram(cl_program program)
{
    struct program *p = (struct program *)(void *)program;
    if (--p->users == 0) {
        free(p->text);
        free(p);
    }
    return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *code)
{
    (void)program;
    (void)name;
    *code = CL_SUCCESS;
    return (cl_kernel)(void *)&a_kernel;
}

cl_int clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    (void)kernel;
    (void)index;
    (void)size;
    (void)value;
    return CL_SUCCESS;
}

cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device,
                                cl_kernel_work_group_info name, size_t size, void *value,
                                size_t *got)
{
    const size_t group = 256;
    const cl_ulong local = 0;
    (void)kernel;
    (void)device;
    return name == CL_KERNEL_WORK_GROUP_SIZE ? answer(&group, sizeof group, size, value, got)
                                             : answer(&local, sizeof local, size, value, got);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                              const size_t *offset, const size_t *global, const size_t *local,
                              cl_uint count, const cl_event *wait, cl_event *event)
{
    (void)queue;
    (void)kernel;
    (void)dims;
    (void)offset;
    (void)global;
    (void)local;
    (void)count;
    (void)wait;
    fault("clEnqueueNDRangeKernel", NULL);
    give_event(event);
    return CL_SUCCESS;
}

// ---- events -------------------------------------------------------------------------------------

static cl_int marker(cl_command_queue queue, cl_event *event)
{
    (void)queue;
    give_event(event);
    return CL_SUCCESS;
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint count, const cl_event *wait,
                                   cl_event *event)
{
    (void)count;
    (void)wait;
    return marker(queue, event);
}

cl_int clEnqueueBarrierWithWaitList(cl_command_queue queue, cl_uint count, const cl_event *wait,
                                    cl_event *event)
{
    (void)count;
    (void)wait;
    return marker(queue, event);
}

cl_event clCreateUserEvent(cl_context context, cl_int *code)
{
    (void)context;
    *code = CL_SUCCESS;
    return (cl_event)(void *)&an_event;
}

cl_int clSetEventCallback(cl_event event, cl_int status,
                          void(CL_CALLBACK *notify)(cl_event, cl_int, void *), void *user)
{
    (void)status;
    notify(event, CL_COMPLETE, user);
    return CL_SUCCESS;
}

cl_int clGetEventInfo(cl_event event, cl_event_info name, size_t size, void *value, size_t *got)
{
    const cl_int done = CL_COMPLETE;
    (void)event;
    (void)name;
    return answer(&done, sizeof done, size, value, got);
}

cl_int clGetEventProfilingInfo(cl_event event, cl_profiling_info name, size_t size, void *value,
                               size_t *got)
{
    (void)event;
    (void)name;
    (void)size;
    (void)value;
    (void)got;
    return CL_PROFILING_INFO_NOT_AVAILABLE;
}

cl_int clWaitForEvents(cl_uint count, const cl_event *events)
{
    (void)count;
    (void)events;
    return CL_SUCCESS;
}

cl_int clSetUserEventStatus(cl_event event, cl_int status)
{
    (void)event;
    (void)status;
    return CL_SUCCESS;
}

#define NOTHING(function, type)                                                                    \
    cl_int function(type object)                                                                   \
    {                                                                                              \
        (void)object;                                                                              \
        return CL_SUCCESS;                                                                         \
    }
NOTHING(clRetainDevice, cl_device_id)
NOTHING(clReleaseDevice, cl_device_id)
NOTHING(clRetainContext, cl_context)
NOTHING(clReleaseContext, cl_context)
NOTHING(clRetainCommandQueue, cl_command_queue)
NOTHING(clReleaseCommandQueue, cl_command_queue)
NOTHING(clRetainMemObject, cl_mem)
NOTHING(clReleaseKernel, cl_kernel)
NOTHING(clRetainEvent, cl_event)
NOTHING(clReleaseEvent, cl_event)
NOTHING(clFlush, cl_command_queue)
NOTHING(clFinish, cl_command_queue)
