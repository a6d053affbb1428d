// SPDX-License-Identifier: Apache-2.0
// An OpenCL library between clattn and the real loader: it counts calls and objects, makes chosen
// calls fail, and lies about the device. A test links it, so that clattn and CLBlast find it in the
// program itself, and steers it through spy_control(). Only calls out of libclattn count.
#ifndef TESTS_SPY_H
#define TESTS_SPY_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// X(name): every function that can be made to fail. Releasing what one has is not among them.
#define SPY_FUNCTIONS(X)                                                                           \
    X(GetPlatformIDs) X(GetPlatformInfo) X(GetDeviceIDs) X(GetDeviceInfo) X(RetainDevice)          \
    X(CreateContext) X(RetainContext) X(GetContextInfo) X(CreateCommandQueue)                      \
    X(RetainCommandQueue) X(GetCommandQueueInfo) X(CreateBuffer) X(RetainMemObject)                \
    X(GetMemObjectInfo)                                                                            \
    X(CreateProgramWithSource) X(CreateProgramWithBinary) X(BuildProgram) X(GetProgramInfo)        \
    X(GetProgramBuildInfo) X(RetainProgram) X(CreateKernel) X(SetKernelArg)                        \
    X(GetKernelWorkGroupInfo) X(EnqueueNDRangeKernel) X(EnqueueReadBuffer) X(EnqueueWriteBuffer)   \
    X(EnqueueFillBuffer) X(EnqueueMapBuffer) X(EnqueueUnmapMemObject)                              \
    X(EnqueueMarkerWithWaitList) X(EnqueueBarrierWithWaitList) X(WaitForEvents) X(RetainEvent)     \
    X(CreateUserEvent) X(SetUserEventStatus) X(SetEventCallback) X(GetEventInfo)                   \
    X(GetEventProfilingInfo) X(Flush) X(Finish)

enum spy_function {
#define SPY_MEMBER(name) SPY_##name,
    SPY_FUNCTIONS(SPY_MEMBER)
#undef SPY_MEMBER
    SPY_FUNCTION_COUNT
};

enum spy_object {
    SPY_DEVICE,
    SPY_CONTEXT,
    SPY_QUEUE,
    SPY_MEM,
    SPY_PROGRAM,
    SPY_KERNEL,
    SPY_EVENT,
    SPY_OBJECT_COUNT
};

// What the device is said to be instead: the first `size` bytes of `value`, or of `text` where that
// is not NULL, for clGetDeviceInfo() of `param`; `claims`, where not 0, is the size that is told.
struct spy_lie {
    cl_device_info param;
    size_t size, claims;
    const char *text;
    unsigned char value[64];
};
enum { SPY_LIES = 32 };

struct spy {
    // The call number `fail_at`, counted from 1 since `calls` was set to 0, returns `fail_code`
    // without reaching the driver; 0 = none. With fail_on those of one function alone count.
    long fail_at;
    cl_int fail_code;
    int fail_on;           // enum spy_function, or -1 = all
    bool fails_from_there; // and each one after it
    bool loses_device;     // a launched kernel never runs well: waiting for it fails
    long lost_at;          // loses_device from the wait of this number on; 0 = none
    bool spoils_reads;     // what is read from the device is not what was computed
    const char *idle;      // kernels with this in their name do nothing
    const char *unbuilt;   // programs with this in their options do not compile
    const char *build_log; // what compiling says then
    size_t kernel_group;   // CL_KERNEL_WORK_GROUP_SIZE where not 0
    size_t kernel_local;   // CL_KERNEL_LOCAL_MEM_SIZE where not 0
    size_t alloc_limit;    // clCreateBuffer() of more fails, where not 0
    cl_uint platforms;     // more of them, before the real ones, each of which ...
    cl_int platform_code;  // ... answers this where it is asked for devices, ...
    cl_uint platform_says; // ... and after CL_SUCCESS has so many devices, but gives none
    struct spy_lie lies[SPY_LIES];
    int num_lies;
    // What happened.
    atomic_long calls; // that could have failed and counted
    atomic_long waits; // for the device, by any function
    atomic_long calls_of[SPY_FUNCTION_COUNT];
    atomic_long objects[SPY_OBJECT_COUNT]; // references that clattn holds
    atomic_int failed_function;            // enum spy_function of the failing call, -1 = none
    atomic_long launches, over;            // kernels, and those over the limits that were told
    char why[160];                         // the last of them
};

struct spy *spy_control(void);
const char *spy_name(int function);

#endif // TESTS_SPY_H
