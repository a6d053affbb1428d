// SPDX-License-Identifier: Apache-2.0
#include "compare.h"

#include <math.h>
#include <string.h>

static double error_of(float got, float want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0.0 : INFINITY;
    if (isinf(got) || isinf(want))
        return got == want ? 0.0 : INFINITY;
    return fabs((double)got - (double)want);
}

void tool_compare(const float *got, const float *want, size_t count, double tolerance,
                  struct tool_compare *out)
{
    double worst_rank = -1.0;

    memset(out, 0, sizeof *out);
    out->count = count;
    for (size_t i = 0; i < count; i++) {
        double error = error_of(got[i], want[i]);
        double size = isfinite(want[i]) ? 1.0 + fabs((double)want[i]) : 1.0;
        double rank = error / size;
        if (error > tolerance * size)
            out->over++;
        if (error > out->max_error)
            out->max_error = error;
        if (rank > worst_rank) {
            worst_rank = rank;
            out->worst = i;
            out->worst_error = error;
            out->got = got[i];
            out->want = want[i];
        }
    }
}

void tool_unravel(size_t index, int ndim, const int64_t *shape, int64_t *at)
{
    for (int i = ndim - 1; i >= 0; i--) {
        size_t extent = shape[i] ? (size_t)shape[i] : 1;
        at[i] = (int64_t)(index % extent);
        index /= extent;
    }
}
