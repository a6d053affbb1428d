// SPDX-License-Identifier: Apache-2.0
// Row softmax on the CPU: fast, and by the definition in double precision.
#ifndef CLA_HOST_SOFTMAX_H
#define CLA_HOST_SOFTMAX_H

#include "softmax_call.h"

// x, y and lse point to element 0; lse may be NULL. The call gives lengths, strides and scale.
clattn_status cla_host_softmax(const struct cla_softmax *s, const struct cla_softmax_call *call,
                               const void *x, void *y, float *lse, int32_t threads);

#endif // CLA_HOST_SOFTMAX_H
