// SPDX-License-Identifier: Apache-2.0
// Constants that are no sum of roundings are commented; docs/math.md has the reasoning.
#include "bound.h"

#include <math.h>

#include "clattn/base.h"

// Errors of n additions, each of either sign as if by chance, grow with the root of n.
static double chain(double n)
{
    return sqrt(n);
}

double bound_score(const struct bound_score *s)
{
    // Each channel rounds Q with its scale and the sum so far, with a deviation of 0.58 of what it
    // may be off by; 3 is 5 deviations.
    double error = 3 * s->factor * s->walk;
    // Products below the range of float, with denormals.
    error += s->dim * s->factor * 0x1p-149 / BOUND_FLOAT;
    if (s->softcap > 0) {
        // softcap * tanh(x / softcap): errors of x shrink by the slope of tanh. The exponential,
        // two sums, a quotient and two products round.
        const double t = s->capped / s->softcap;
        error = error * (1 - t * t) + 8 * fabs(s->capped);
    }
    error += s->distance;
    return error + (s->moved ? 2 * fabs(s->x) : 0);
}

double bound_weight(double score, double below)
{
    // The difference and its product with log2(e), which is rounded itself; then the polynomial and
    // the scale of a value, 3 together.
    const double error = score + 2.5 * below + 4;
    // Weights below 2^-126 are 0.
    return below > 126 * 0.69 ? fmax(error, 2 / BOUND_FLOAT) : error;
}

double bound_lse(const struct bound_row *r)
{
    return r->weights + chain(r->len) + 4 * fabs(r->log_sum) + fabs(r->lse) + 1;
}

double bound_output(const struct bound_output *o)
{
    // A device may take each product below 2^-126 for 0.
    const double lost = (o->len + 2.0) * 0x1p-126 / BOUND_FLOAT;
    return o->spread + chain(o->len) * (o->mass + fabs(o->o)) + 3 * fabs(o->o) +
           o->weight_roundoff / BOUND_FLOAT * o->mass + lost;
}

double bound_running(double largest)
{
    // What O was before a key that outweighs all others is taken off again, in three operations.
    return 3 * largest;
}

double bound_roundoff(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F16 ? 0x1p-11 : dtype == CLATTN_DTYPE_BF16 ? 0x1p-8 : 0x1p-24;
}

double bound_smallest(int32_t dtype)
{
    // Half of the least denormal.
    return dtype == CLATTN_DTYPE_F16 ? 0x1p-25 : dtype == CLATTN_DTYPE_BF16 ? 0x1p-134 : 0x1p-150;
}
