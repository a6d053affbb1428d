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

// What the device is said to be instead: the first `size` bytes of `value` for clGetDeviceInfo() of
// `param`.
struct spy_lie {
    cl_device_info param;
    size_t size;
    unsigned char value[64];
};
enum { SPY_LIES = 16 };

struct spy {
    // The call number `fail_at`, counted from 1 since the last spy_reset(), returns `fail_code`
    // without reaching the driver; 0 = none. With fail_on those of one function alone count.
    long fail_at;
    cl_int fail_code;
    int fail_on;          // enum spy_function, or -1 = all
    bool fails_from_there; // and each one after it, as of a device that is lost
    bool loses_device;     // a launched kernel never runs well: waiting for it fails
    bool spoils_reads;     // what is read or mapped from the device is not what was computed
    size_t kernel_group;   // CL_KERNEL_WORK_GROUP_SIZE where not 0
    size_t kernel_local;   // CL_KERNEL_LOCAL_MEM_SIZE where not 0
    size_t alloc_limit;    // clCreateBuffer() of more fails, where not 0
    struct spy_lie lies[SPY_LIES];
    int num_lies;
    // What happened.
    atomic_long calls; // that could have failed and counted
    atomic_long calls_of[SPY_FUNCTION_COUNT];
    atomic_long objects[SPY_OBJECT_COUNT]; // references that clattn holds
    atomic_int failed_function;            // enum spy_function of the failing call, -1 = none
};

struct spy *spy_control(void);
const char *spy_name(int function);

#endif // TESTS_SPY_H
