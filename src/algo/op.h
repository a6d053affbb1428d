// SPDX-License-Identifier: Apache-2.0
// An operation beside attention: one kernel whose arguments are a block of numbers and the buffers
// in their order, or the same on the CPU path. It needs no plan.
#ifndef CLA_ALGO_OP_H
#define CLA_ALGO_OP_H

#include "abi.h"
#include "algo/algo.h"
#include "call_memory.h"

// What an operation does with a buffer.
enum cla_op_role {
    CLA_OP_IN,
    CLA_OP_OUT,  // all of its elements are written
    CLA_OP_KEEPS // some of its elements are written
};

enum { CLA_OP_CHANNELS = 1 << 30 }; // of a tensor, at most

// One checked call. Points into itself and at `data`: not to be copied.
struct cla_op {
    clattn_context *ctx;
    const char *name;           // for messages
    const char *file, *kernel;
    char options[96];           // literals of the kernel; ITEMS is added
    // What the CPU path computes from; begins with the kernel's argument block.
    void *data;
    size_t data_bytes, args_bytes;
    // ptr: element 0 of each buffer; NULL where it is absent or one and the same with an output.
    clattn_status (*compute)(clattn_context *ctx, const void *data, void *const *ptr);
    int64_t rows;     // work-groups; 0 = nothing to do
    int32_t items;    // work-items of each, once the kernel is there
    bool on_cpu;      // the CPU path even if there is a device
    bool no_fallback; // CLATTN_NO_FALLBACK
    int num_bufs;
    struct cla_call_buf bufs[CLA_WORK_BUFS];
    clattn_buf buf[CLA_WORK_BUFS];
    struct cla_fwd_tensor *tensor[CLA_WORK_BUFS]; // in the argument block; NULL = no tensor
    struct cla_buf_rows rows_of[CLA_WORK_BUFS];   // of tensors
    int64_t dim[CLA_WORK_BUFS];                   // elements of such a row
    int same_as[CLA_WORK_BUFS];                   // the output that this buffer is, or -1
    int woven_with[CLA_WORK_BUFS];                // the output it interleaves with, or -1
    struct cla_facts facts;                       // of the buffers so far
};

// Begins an operation without buffers.
void cla_op_init(struct cla_op *op, clattn_context *ctx, const char *name, const char *file,
                 const char *kernel, void *data, size_t data_bytes, size_t args_bytes);

// Adds the next buffer, checked. Extents are [batch, head, sequence]; `into` receives offset and
// strides.
clattn_status cla_op_tensor(struct cla_op *op, const char *name, const clattn_tensor *t,
                            const int64_t extent[3], int64_t dim, int32_t dtype,
                            enum cla_op_role role, struct cla_fwd_tensor *into);
// As many elements as the product of three extents. An optional one may be absent.
clattn_status cla_op_vector(struct cla_op *op, const char *name, const clattn_buf *buf,
                            const int64_t extent[3], size_t elem_bytes, enum cla_op_role role,
                            bool optional, int64_t *offset);
void cla_op_absent(struct cla_op *op, const char *name);

// Where buffer `in` has the same memory and strides as output `out`, it is that one.
void cla_op_same(struct cla_op *op, int in, int out);

// Outputs a and b have the same strides and type and interleave in one memory, where none of their
// elements meet: their ranges may overlap then.
void cla_op_interleave(struct cla_op *op, int a, int b);

// That no output overlaps another buffer. Logs what is wrong.
clattn_status cla_op_check_overlaps(struct cla_op *op);

// Values of a buffer of int32 that lies in host memory, where they can be checked; else NULL.
const int32_t *cla_op_host_ints(const clattn_buf *buf);

// Runs and waits.
clattn_status cla_op_run(struct cla_op *op);

// ---- on an OpenCL device; without OpenCL these say so ------------------------------------------

// *ready is false where the kernel can't be had and the CPU path takes over.
clattn_status cla_op_run_device(struct cla_op *op, bool *ready);
// Returns at once. Every buffer that is there must be a cl_mem.
clattn_status cla_op_enqueue(struct cla_op *op, const struct cla_submit *submit);

#endif // CLA_ALGO_OP_H
