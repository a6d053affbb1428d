// SPDX-License-Identifier: Apache-2.0
// Argument slots, ND-range, events. A cl_kernel holds its arguments, so each call takes one of its
// own from a pool.
#ifndef CLA_OCL_LAUNCH_H
#define CLA_OCL_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "ocl/api.h"

// Kernel objects of one function of one program. Take and put use no lock (atomic slots); when all
// slots are out, a fresh kernel is made and released afterwards.
struct cla_kernels;

clattn_status cla_kernels_create(const struct cla_cl *cl, cl_program program, const char *function,
                                 const struct cla_log *log, struct cla_kernels **out);
void cla_kernels_destroy(struct cla_kernels **k);

struct cla_arg {
    size_t size;       // bytes; sizeof(cl_mem) for buffers
    const void *value; // NULL = an absent buffer
};

// The program that they are of, which they keep.
cl_program cla_kernels_program(const struct cla_kernels *k);

// Work-group figures of the compiled kernel.
clattn_status cla_kernels_limits(const struct cla_kernels *k, cl_device_id device,
                                 size_t *max_group, size_t *local_bytes);

// Sets args[0..n) in slots 0..n-1 and enqueues. `done` may be NULL.
clattn_status cla_kernels_enqueue(const struct cla_kernels *k, const struct cla_log *log,
                                  const struct cla_arg *args, unsigned n, cl_command_queue queue,
                                  unsigned dims, const size_t *global, const size_t *local,
                                  cl_uint num_wait, const cl_event *wait, cl_event *done);

// The same with `groups` work-groups of `local` work-items in one dimension; refused where a size_t
// of this machine does not hold the number of work-items.
clattn_status cla_kernels_enqueue_groups(const struct cla_kernels *k, const struct cla_log *log,
                                         const struct cla_arg *args, unsigned n,
                                         cl_command_queue queue, uint64_t groups, size_t local,
                                         cl_uint num_wait, const cl_event *wait, cl_event *done);

#endif // CLA_OCL_LAUNCH_H
