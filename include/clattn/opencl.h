// SPDX-License-Identifier: Apache-2.0
/// @file opencl.h
/// Everything that needs OpenCL types: adopt the application's context, run on its queue.
///
/// The functions exist in a build without OpenCL too and return CLATTN_ERR_NO_OPENCL there.
#ifndef CLATTN_OPENCL_H
#define CLATTN_OPENCL_H

#ifndef CL_TARGET_OPENCL_VERSION
/// What clattn needs of OpenCL's headers, unless the application has said more before.
#define CL_TARGET_OPENCL_VERSION 120
#endif
#if defined(__APPLE__)
#include <OpenCL/cl.h>
#else
#include <CL/cl.h>
#endif

#include "attention.h"
#include "kv.h"
#include "softmax.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Makes a context on an application's cl_context and device. Both are retained until
/// clattn_context_destroy(), and the application may release them at once.
///
/// @param desc       NULL = all defaults. `device` is ignored.
/// @param cl_ctx     The application's context.
/// @param cl_dev     One of its devices, or a sub-device of one.
/// @param queue      Queue for clattn_attention_run() and for trials at plan time, retained; NULL
///                   = clattn makes one of its own. What is queued there comes before a blocking
///                   call on a cl_mem, also where the CPU path computes it.
/// @param out        Receives the context; NULL on failure.
/// @return as clattn_context_create(), and CLATTN_ERR_INVALID_ARGUMENT for NULL `cl_ctx` or
///         `cl_dev`; CLATTN_ERR_WRONG_CONTEXT where `cl_dev` or `queue` is not of `cl_ctx`;
///         CLATTN_ERR_NO_OPENCL in a build without OpenCL.
/// Threads: any.
CLATTN_API clattn_status clattn_context_create_opencl(const clattn_context_desc *desc,
                                                      cl_context cl_ctx, cl_device_id cl_dev,
                                                      cl_command_queue queue,
                                                      clattn_context **out);

/// The cl_context of a clattn context.
/// @param ctx NULL gives NULL.
/// @return It, not retained for the caller; NULL for the built-in CPU path.
/// Threads: any.
CLATTN_API cl_context clattn_context_cl_context(const clattn_context *ctx);

/// The device of a clattn context.
/// @param ctx NULL gives NULL.
/// @return It, not retained for the caller; NULL for the built-in CPU path.
/// Threads: any.
CLATTN_API cl_device_id clattn_context_cl_device(const clattn_context *ctx);

/// Enqueues one forward pass, as clattn_attention_run() computes it, and returns at once. Every
/// buffer that is present must be a CLATTN_BUF_CL_MEM of the queue's context.
///
/// A plan that fell back to the CPU path, or was forced to it, serves cl_mem too: without blocking
/// the caller it maps the buffers and computes on a thread of the context. An output is mapped
/// from its first to its last element: on a device with memory of its own nobody else may write
/// what lies between its rows meanwhile.
///
/// Memory of buffers that the application made with CL_MEM_USE_HOST_PTR is aligned to 16 bytes:
/// kernels load four floats at once.
///
/// Errors of arguments are found before anything is queued. `done` is not written where the status
/// is not CLATTN_OK; behind CLATTN_ERR_OPENCL some of several kernels may be queued and work on the
/// memory until clFinish().
///
/// @param plan   From clattn_attention_plan_create(). Not changed.
/// @param call   Lengths within the plan's bounds, and memory. Memory stays the caller's and must
///               live until `done`; the struct itself may go when the call returns.
/// @param queue  Command queue of the plan's device and context; in-order or out-of-order.
/// @param num_wait,wait  Events to wait for, as in clEnqueueNDRangeKernel().
/// @param done   Receives an event that covers all of the work, which the caller releases, or
///               NULL. Work of nothing (batch or len_q 0) gives an event too.
///
/// @return CLATTN_OK  queued, not finished; else as clattn_attention_run(), and
///         CLATTN_ERR_INVALID_ARGUMENT  NULL `queue`; `num_wait` without `wait` or `wait` without
///                                      `num_wait`; an event in it is NULL
///         CLATTN_ERR_BUFFER_MISSING    a buffer is host memory; no workspace where one is needed
///         CLATTN_ERR_WRONG_CONTEXT     the queue is of another context or device, or an event or
///                                      a cl_mem of another context
///         CLATTN_ERR_NO_OPENCL         a build without OpenCL, or a plan of the built-in CPU path;
///                                      an OpenCL context after fork() or at the process's end
/// Threads: one plan may be enqueued from several threads, each with its own workspace.
CLATTN_API clattn_status clattn_attention_enqueue(const clattn_plan *plan,
                                                  const clattn_attention_call *call,
                                                  cl_command_queue queue, cl_uint num_wait,
                                                  const cl_event *wait, cl_event *done);

/// Enqueues a row softmax, as clattn_softmax_run() computes it, and returns at once. Every buffer
/// must be a CLATTN_BUF_CL_MEM of the queue's context, the workspace included where
/// clattn_softmax_workspace_bytes() is not 0.
///
/// @param plan   From clattn_softmax_plan_create(). Not changed.
/// @param call   Lengths within the plan's bounds, and memory, which must live until `done`; the
///               struct itself may go when the call returns.
/// @param queue  Command queue of the plan's device and context; in-order or out-of-order.
/// @param num_wait,wait  Events to wait for, as in clEnqueueNDRangeKernel().
/// @param done   Receives an event that covers all of the work, which the caller releases, or
///               NULL. Work of nothing (rows 0) gives an event too.
/// @return CLATTN_OK  queued, not finished; else as clattn_softmax_run(), and
///         CLATTN_ERR_WRONG_CONTEXT  the queue is of another context or device
///         CLATTN_ERR_NO_OPENCL      a build without OpenCL, or a plan of the built-in CPU path;
///                                   an OpenCL context after fork() or at the process's end
/// Threads: one plan may be enqueued from several threads, each with its own workspace.
CLATTN_API clattn_status clattn_softmax_enqueue(const clattn_softmax_plan *plan,
                                                const clattn_softmax_call *call,
                                                cl_command_queue queue, cl_uint num_wait,
                                                const cl_event *wait, cl_event *done);

// ---- operations around attention (kv.h) --------------------------------------------------------

/// Enqueues what clattn_merge_run() computes and returns at once. Every buffer that is present
/// must be a CLATTN_BUF_CL_MEM of the queue's context. Only the first call with such types compiles
/// a kernel.
/// @param ctx    The context.
/// @param call   Extents and memory, which must live until `done`; the struct itself may go when
///               the call returns.
/// @param queue  Command queue of the context and its device; in-order or out-of-order.
/// @param num_wait,wait  Events to wait for, as in clEnqueueNDRangeKernel().
/// @param done   Receives an event that covers all of the work, which the caller releases, or
///               NULL. Work of nothing gives an event too.
/// @return CLATTN_OK  queued, not finished; else as clattn_merge_run(), and
///         CLATTN_ERR_WRONG_CONTEXT  the queue is of another context or device
///         CLATTN_ERR_NO_OPENCL      a build without OpenCL, or the built-in CPU path; an OpenCL
///                                   context after fork() or at the process's end
/// Threads: any, each with its own outputs.
CLATTN_API clattn_status clattn_merge_enqueue(clattn_context *ctx, const clattn_merge_call *call,
                                              cl_command_queue queue, cl_uint num_wait,
                                              const cl_event *wait, cl_event *done);

/// Enqueues what clattn_rotary_run() computes and returns at once. Every buffer that is present
/// must be a CLATTN_BUF_CL_MEM of the queue's context. Only the first call with such types compiles
/// a kernel.
/// @param ctx    The context.
/// @param call   Extents and memory, which must live until `done`; the struct itself may go when
///               the call returns.
/// @param queue  Command queue of the context and its device; in-order or out-of-order.
/// @param num_wait,wait  Events to wait for, as in clEnqueueNDRangeKernel().
/// @param done   Receives an event that covers all of the work, which the caller releases, or
///               NULL. Work of nothing gives an event too.
/// @return CLATTN_OK  queued, not finished; else as clattn_rotary_run(), and
///         CLATTN_ERR_WRONG_CONTEXT  the queue is of another context or device
///         CLATTN_ERR_NO_OPENCL      a build without OpenCL, or the built-in CPU path; an OpenCL
///                                   context after fork() or at the process's end
/// Threads: any, each with its own outputs.
CLATTN_API clattn_status clattn_rotary_enqueue(clattn_context *ctx, const clattn_rotary_call *call,
                                               cl_command_queue queue, cl_uint num_wait,
                                               const cl_event *wait, cl_event *done);

/// Enqueues what clattn_append_run() computes and returns at once. Every buffer that is present
/// must be a CLATTN_BUF_CL_MEM of the queue's context. Only the first call with such types compiles
/// a kernel.
/// @param ctx    The context.
/// @param call   Extents and memory, which must live until `done`; the struct itself may go when
///               the call returns.
/// @param queue  Command queue of the context and its device; in-order or out-of-order.
/// @param num_wait,wait  Events to wait for, as in clEnqueueNDRangeKernel().
/// @param done   Receives an event that covers all of the work, which the caller releases, or
///               NULL. Work of nothing gives an event too.
/// @return CLATTN_OK  queued, not finished; else as clattn_append_run(), and
///         CLATTN_ERR_WRONG_CONTEXT  the queue is of another context or device
///         CLATTN_ERR_NO_OPENCL      a build without OpenCL, or the built-in CPU path; an OpenCL
///                                   context after fork() or at the process's end
/// Threads: any, each with its own outputs.
CLATTN_API clattn_status clattn_append_enqueue(clattn_context *ctx, const clattn_append_call *call,
                                               cl_command_queue queue, cl_uint num_wait,
                                               const cl_event *wait, cl_event *done);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_OPENCL_H
