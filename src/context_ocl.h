// SPDX-License-Identifier: Apache-2.0
// The OpenCL half of a context.
#ifndef CLA_CONTEXT_OCL_H
#define CLA_CONTEXT_OCL_H

#include "context.h"
#include "ocl/api.h"
#include "ocl/program.h"

struct cla_function;
struct cla_kernels;
struct host_job;

enum { CLA_FAILED_MARKERS = 32 }; // two of a job

struct cla_ocl {
    struct cla_cl *cl;
    cl_device_id device;
    bool retained_device;   // a sub-device of the application's
    cl_context context;
    cl_command_queue queue; // for blocking calls and trials
    bool any_order;         // of that queue
    struct cla_mutex *turn; // of calls that must not overlap: cla_ocl_begin_turn()
    struct cla_cache *cache; // NULL = none
    struct cla_programs *programs;
    struct cla_function *functions; // of cla_ocl_function(), guarded by the context's mutex
    // Markers behind the last jobs of the CPU path that failed, likewise (algo/host_ocl.c).
    cl_event failed[CLA_FAILED_MARKERS];
    unsigned num_failed;
    // Jobs of the CPU path that wait, and what guards the list.
    struct host_job *waiting;
    struct cla_mutex *waiting_mutex;
};

// The text of a kernel file, expanded, built with `options` for this context's device.
clattn_status cla_ocl_build(clattn_context *ctx, const char *file, const char *options,
                            clattn_log_level fail_level, cl_program *out);

// Work-items of a group that a compiled kernel takes, 1 at least, else CLATTN_ERR_UNSUPPORTED;
// SIZE_MAX where the driver's figure is known to be wrong.
clattn_status cla_ocl_items_taken(const clattn_context *ctx, const struct cla_kernels *kernels,
                                  size_t *items);

// For a program of cla_ocl_build() that does not work, as cla_programs_rebuild().
clattn_status cla_ocl_rebuild(clattn_context *ctx, const char *file, const char *options,
                              clattn_log_level fail_level, cl_program *out);

// The kernel objects of one function of such a program, made when first asked for and kept until
// the context goes, and the work-items of a group that they take.
// A program that did not compile twice is not tried again, as each call would take as long; *tried
// says whether it was in this one.
clattn_status cla_ocl_function(clattn_context *ctx, const char *file, const char *function,
                               const char *options, clattn_log_level fail_level,
                               const struct cla_kernels **out, size_t *items, bool *tried);

void cla_functions_free(struct cla_function *first);

// Whether an application's queue and wait list can be used with this context.
clattn_status cla_queue_check(const clattn_context *ctx, cl_command_queue queue, cl_uint num_wait,
                              const cl_event *wait);

// Calls that must not overlap take turns: on devices with CLA_QUIRK_ONE_THREAD all that block, on
// others those that say that they `must`. The worker of the CPU path takes none, since what a call
// waits for on its queue may wait for the worker. Returns whether there is a turn to end.
bool cla_ocl_begin_turn(clattn_context *ctx, bool must);
void cla_ocl_end_turn(clattn_context *ctx, bool begun);

// Behind blocking writes on the context's queue, before a kernel that reads what they wrote.
clattn_status cla_ocl_settle(clattn_context *ctx);

#endif // CLA_CONTEXT_OCL_H
