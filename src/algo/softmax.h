// SPDX-License-Identifier: Apache-2.0
// Row softmax on an OpenCL device.
#ifndef CLA_ALGO_SOFTMAX_H
#define CLA_ALGO_SOFTMAX_H

#include "algo/algo.h"
#include "softmax_call.h"

// Compiled kernels and how rows are cut for this device.
struct cla_softmax_kernels;

// How a device computes; pure.
struct cla_softmax_shape {
    int32_t width, items;
    int64_t least_part; // entries of a part below which cutting does not pay
    int64_t most_part;  // entries of a part that the driver gets through; 0 = any
    int32_t groups;     // work-groups that keep the device busy
    char reason[192];
};
struct cla_softmax_shape cla_softmax_shape(const struct cla_caps *caps, int32_t kernel);

// Parts of a row and entries of a part, for rows of this many entries; pure.
void cla_softmax_parts(const struct cla_softmax_shape *shape, int64_t rows, int64_t len,
                       int32_t *parts, int64_t *part_len);

// Bytes that the parts of rows need, a maximum and a sum each; false, and SIZE_MAX, where no memory
// has as many.
bool cla_softmax_workspace(const struct cla_softmax_shape *shape, int64_t rows, int64_t len,
                           size_t *bytes);

// The options that its kernels are built with.
void cla_softmax_options(const struct cla_softmax *s, const struct cla_softmax_shape *shape,
                         const struct cla_caps *caps, char *options, size_t size);

// Without OpenCL these say so. `shape` receives the device's own, or a smaller one where the
// compiled kernels take no more.
clattn_status cla_softmax_prepare(clattn_context *ctx, const struct cla_softmax *s,
                                  struct cla_softmax_shape *shape,
                                  struct cla_softmax_kernels **out);
void cla_softmax_release(struct cla_softmax_kernels **kernels);
// Waits. Buffers of both kinds; an absent workspace is allocated.
clattn_status cla_softmax_run(clattn_context *ctx, const struct cla_softmax *s,
                              const struct cla_softmax_kernels *kernels,
                              const struct cla_softmax_call *call);
// Returns at once. Every buffer is a cl_mem.
clattn_status cla_softmax_enqueue(clattn_context *ctx, const struct cla_softmax *s,
                                  const struct cla_softmax_kernels *kernels,
                                  const struct cla_softmax_call *call,
                                  const struct cla_submit *submit);

#endif // CLA_ALGO_SOFTMAX_H
