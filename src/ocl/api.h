// SPDX-License-Identifier: Apache-2.0
// The table of OpenCL functions, filled from the ICD loader at first use. Nothing in clattn calls
// OpenCL in another way, so tests can put failing functions in.
#ifndef CLA_OCL_API_H
#define CLA_OCL_API_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#if defined(__APPLE__)
#include <OpenCL/cl.h>
#else
#include <CL/cl.h>
#endif

#include "clattn/base.h"
#include "util/log.h"

// X(name): every function that clattn calls, without its prefix.
#define CLA_CL_FUNCTIONS(X)                                                                        \
    X(GetPlatformIDs) X(GetPlatformInfo) X(GetDeviceIDs) X(GetDeviceInfo) X(RetainDevice)          \
    X(ReleaseDevice) X(CreateContext) X(RetainContext) X(ReleaseContext) X(GetContextInfo)         \
    X(CreateCommandQueue) X(RetainCommandQueue) X(ReleaseCommandQueue) X(GetCommandQueueInfo)      \
    X(CreateBuffer) X(RetainMemObject) X(ReleaseMemObject) X(GetMemObjectInfo)                     \
    X(CreateProgramWithSource) X(CreateProgramWithBinary) X(BuildProgram) X(GetProgramInfo)        \
    X(GetProgramBuildInfo) X(RetainProgram) X(ReleaseProgram) X(CreateKernel) X(ReleaseKernel)     \
    X(SetKernelArg) X(GetKernelWorkGroupInfo) X(EnqueueNDRangeKernel) X(EnqueueReadBuffer)         \
    X(EnqueueWriteBuffer) X(EnqueueFillBuffer) X(EnqueueMapBuffer) X(EnqueueUnmapMemObject)        \
    X(EnqueueMarkerWithWaitList) X(EnqueueBarrierWithWaitList) X(WaitForEvents) X(RetainEvent)     \
    X(ReleaseEvent) X(CreateUserEvent) X(SetUserEventStatus) X(SetEventCallback) X(GetEventInfo)   \
    X(GetEventProfilingInfo) X(Flush) X(Finish)

struct cla_cl {
#define CLA_CL_MEMBER(name) __typeof__(&cl##name) name;
    CLA_CL_FUNCTIONS(CLA_CL_MEMBER)
#undef CLA_CL_MEMBER
    void *lib; // handle of the loader
};

// Opens the loader (`library`, or the system's usual names where NULL) and fills the table.
// CLATTN_ERR_NO_OPENCL with one info line saying what was tried and why each failed.
clattn_status cla_cl_open(const char *library, const struct cla_log *log, struct cla_cl **out);

// NULL-safe. The loader itself stays open: vendor drivers do not survive being unloaded.
void cla_cl_close(struct cla_cl **cl);

#endif // CLA_OCL_API_H
