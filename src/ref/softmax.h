// SPDX-License-Identifier: Apache-2.0
// Row softmax by the definition, in double precision.
#ifndef CLA_REF_SOFTMAX_H
#define CLA_REF_SOFTMAX_H

#include "softmax_call.h"

// x, y and lse point to element 0; lse may be NULL.
void cla_ref_softmax(const struct cla_softmax *s, const struct cla_softmax_call *call,
                     const void *x, void *y, float *lse);

#endif // CLA_REF_SOFTMAX_H
