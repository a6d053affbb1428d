// SPDX-License-Identifier: Apache-2.0
// Host memory of a blocking call, brought to the device and back.
#ifndef CLA_ALGO_STAGE_OCL_H
#define CLA_ALGO_STAGE_OCL_H

#include "algo/algo.h"
#include "context_ocl.h"

struct cla_stage_item {
    cl_mem mem; // owned; NULL where the caller gave a cl_mem
    void *host; // what the device must write back to; NULL for inputs
    size_t bytes;
    bool shared; // the device works on the host's own memory
    bool dense;  // rows follow each other in `mem`, but not in the host's memory
    struct cla_buf_rows rows;
    void *room; // of a dense one, owned
};

struct cla_stage {
    clattn_context *ctx;
    struct cla_call call; // of attention: the caller's, every buffer a cl_mem
    int num_bufs;
    struct cla_stage_item item[CLA_WORK_BUFS];
};

// Makes the device copies of what is host memory: *bufs[i].buf becomes a cl_mem whose element 0
// lies at its start. One with `rows` becomes dense, for which the caller changes its strides;
// `read_rows` says that such rows are brought in too. On failure what was made is released.
clattn_status cla_stage_bufs(clattn_context *ctx, struct cla_call_buf *bufs, int num_bufs,
                             bool read_rows, struct cla_stage *s);

// The same for a call of attention.
clattn_status cla_stage_in(clattn_context *ctx, const struct cla_problem *p,
                           const struct cla_call *call, struct cla_stage *s);

// Ends what was launched on the context's queue: waits for `event`, brings the outputs back and
// releases it. `launched` says how the launch went; after a failure, there or here, it waits for
// all that is queued, which may still work on the copies and on the host's own memory.
clattn_status cla_stage_end(struct cla_stage *s, clattn_status launched, cl_event event);

// Releases the copies.
void cla_stage_release(struct cla_stage *s);

#endif // CLA_ALGO_STAGE_OCL_H
