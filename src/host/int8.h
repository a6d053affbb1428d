// SPDX-License-Identifier: Apache-2.0
// A row of int8 and its scale.
#ifndef CLA_HOST_INT8_H
#define CLA_HOST_INT8_H

#include <float.h>
#include <math.h>
#include <stdint.h>

// The larger of |x| and what was largest before; infinite where x is not finite.
static inline float cla_larger(float x, float largest)
{
    const float size = isfinite(x) ? fabsf(x) : INFINITY;
    return size > largest ? size : largest;
}

static inline float cla_i8_scale(float largest)
{
    return isinf(largest) ? NAN : largest / 127.0f;
}

// To the nearest, ties to even. Denormal scales are so coarse that the quotient can be over 127.
static inline int8_t cla_to_i8(float x, float scale)
{
    const float q = x / scale;
#if FLT_EVAL_METHOD == 0
    const float y = q + 0x1.8p23f - 0x1.8p23f; // rintf(), but for numbers out of range
#else
    const float y = rintf(q);
#endif
    return (int8_t)(y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y);
}

#endif // CLA_HOST_INT8_H
