// SPDX-License-Identifier: Apache-2.0
// The inside of a softmax plan, shared by softmax.c and softmax_ocl.c.
#ifndef CLA_SOFTMAX_PLAN_H
#define CLA_SOFTMAX_PLAN_H

#include "algo/softmax.h"

struct clattn_softmax_plan {
    clattn_context *ctx;
    struct cla_softmax s;
    int32_t path; // enum clattn_softmax_path, not AUTO
    struct cla_softmax_shape shape;      // of the OpenCL path
    struct cla_softmax_kernels *kernels; // likewise
    bool is_fallback;
    char reason[256];
};

// Checks a call; logs what is wrong with it.
clattn_status cla_softmax_check(const clattn_softmax_plan *plan, const clattn_softmax_call *in,
                                struct cla_softmax_call *out);

// Whether there is nothing to write.
static inline bool cla_softmax_is_empty(const clattn_softmax_plan *plan,
                                        const struct cla_softmax_call *call)
{
    return call->rows == 0 || (call->len == 0 && !plan->s.lse);
}

// A call as work of the CPU paths. Holds pointers to itself: not to be copied.
struct cla_softmax_data {
    struct cla_softmax s;
    struct cla_softmax_call call;
    bool reference;
};

struct cla_softmax_work {
    struct cla_softmax_data data;
    struct cla_call_buf bufs[3]; // y, lse, x (absent where y is x)
    struct cla_host_work work;
};

void cla_softmax_work(const clattn_softmax_plan *plan, const struct cla_softmax_call *call,
                      struct cla_softmax_work *out);

#endif // CLA_SOFTMAX_PLAN_H
