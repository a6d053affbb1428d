// SPDX-License-Identifier: Apache-2.0
// Stands before clattn_attention_run() and clattn_softmax_run() in test builds of the tools and
// spoils what they did, so that a wrong result and a failing driver can be tested.
// $TOOL_TEST_FAULT says how:
//   status:N   returns status N
//   nan:I      writes NaN to element I of the output
//   add:I      adds 0.001 to element I of the output
// Only algorithms other than the reference are spoilt, and only on host memory.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clattn/clattn.h"

clattn_status __real_clattn_attention_run(const clattn_plan *plan,
                                          const clattn_attention_call *call);
clattn_status __wrap_clattn_attention_run(const clattn_plan *plan,
                                          const clattn_attention_call *call);

clattn_status __real_clattn_softmax_run(const clattn_softmax_plan *plan,
                                        const clattn_softmax_call *call);
clattn_status __wrap_clattn_softmax_run(const clattn_softmax_plan *plan,
                                        const clattn_softmax_call *call);

static clattn_status spoil(const char *fault, const clattn_buf *output)
{
    const char *colon = strchr(fault, ':');
    long n = colon ? strtol(colon + 1, NULL, 10) : 0;
    float *o = output->ptr;
    if (strncmp(fault, "status", 6) == 0)
        return (clattn_status)n;
    if (strncmp(fault, "nan", 3) == 0)
        o[n] = NAN;
    else
        o[n] += 0.001f;
    return CLATTN_OK;
}

clattn_status __wrap_clattn_attention_run(const clattn_plan *plan,
                                          const clattn_attention_call *call)
{
    const char *fault = getenv("TOOL_TEST_FAULT");
    clattn_plan_info info = {.struct_size = sizeof info};
    clattn_status st = __real_clattn_attention_run(plan, call);

    if (st != CLATTN_OK || !fault || clattn_plan_get_info(plan, &info) != CLATTN_OK ||
        info.algo == CLATTN_ALGO_REFERENCE || call->o.buf.kind != CLATTN_BUF_HOST)
        return st;
    return spoil(fault, &call->o.buf);
}

clattn_status __wrap_clattn_softmax_run(const clattn_softmax_plan *plan,
                                        const clattn_softmax_call *call)
{
    const char *fault = getenv("TOOL_TEST_FAULT");
    clattn_softmax_info info = {.struct_size = sizeof info};
    clattn_status st = __real_clattn_softmax_run(plan, call);

    if (st != CLATTN_OK || !fault || clattn_softmax_get_info(plan, &info) != CLATTN_OK ||
        info.path == CLATTN_SOFTMAX_PATH_REFERENCE || call->y.kind != CLATTN_BUF_HOST)
        return st;
    return spoil(fault, &call->y);
}
