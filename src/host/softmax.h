// SPDX-License-Identifier: Apache-2.0
// Row softmax on the CPU: fast, and by the definition in double precision.
#ifndef CLA_HOST_SOFTMAX_H
#define CLA_HOST_SOFTMAX_H

#include <math.h>

#include "softmax_call.h"

// Maximum of some entries of a row, and the sum of e^(x - m) over them.
struct cla_row_part {
    float m;
    double d;
};

// What to subtract from entries whose maximum is m: m, but 0 where there is none, since -infinity
// less itself is NaN.
static inline float cla_row_shift(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

// (m, d) + (m', d'), arXiv 1805.02867, equation 4. A part without entries is (-infinity, 0).
static inline struct cla_row_part cla_row_merge(struct cla_row_part a, struct cla_row_part b)
{
    const float m = b.m > a.m ? b.m : a.m;
    const double shift = (double)cla_row_shift(m);
    return (struct cla_row_part){
        m, a.d * exp((double)a.m - shift) + b.d * exp((double)b.m - shift)};
}

// x, y and lse point to element 0; lse may be NULL. The call gives lengths, strides and scale.
clattn_status cla_host_softmax(const struct cla_softmax *s, const struct cla_softmax_call *call,
                               const void *x, void *y, float *lse, int32_t threads);

#endif // CLA_HOST_SOFTMAX_H
