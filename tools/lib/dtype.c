// SPDX-License-Identifier: Apache-2.0
#include "dtype.h"

#include <math.h>
#include <string.h>

#include "clattn/base.h"

const char *const tool_dtype_words[] = {"f32", "f16", "bf16", "int8", NULL};
const char *const tool_float_words[] = {"f32", "f16", "bf16", NULL};

size_t tool_dtype_bytes(int dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4 : dtype == CLATTN_DTYPE_I8 ? 1 : 2;
}

double tool_dtype_tolerance(int dtype)
{
    static const double by_dtype[] = {[CLATTN_DTYPE_F32] = 1e-5, [CLATTN_DTYPE_F16] = 2e-3,
                                      [CLATTN_DTYPE_BF16] = 1.6e-2, [CLATTN_DTYPE_I8] = 3e-2};

    return by_dtype[dtype];
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u;
    const uint32_t fraction = h & 0x3ffu;

    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    const float x = ldexpf((float)fraction, -24);
    return sign ? -x : x;
}

static uint16_t to_f16(float x)
{
    const uint32_t sign = bits_of(x) >> 16 & 0x8000u;
    uint32_t u = bits_of(x) & 0x7fffffffu;

    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x477ff000u) // from here on the nearest number is infinity
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) // a multiple of 2^-24
        return (uint16_t)(sign | (uint32_t)lrintf(ldexpf(float_of(u), 24)));
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

static uint16_t to_bf16(float x)
{
    const uint32_t u = bits_of(x);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void tool_to_float(const void *in, int dtype, float *out, size_t count)
{
    const uint16_t *half = in;

    if (dtype == CLATTN_DTYPE_F32) {
        if (count)
            memcpy(out, in, count * sizeof *out);
        return;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = dtype == CLATTN_DTYPE_F16 ? from_f16(half[i])
                                           : float_of((uint32_t)half[i] << 16);
}

bool tool_from_float(const float *in, int dtype, void *out, size_t count, size_t *bad)
{
    uint16_t *half = out;

    if (dtype == CLATTN_DTYPE_F32) {
        if (count)
            memcpy(out, in, count * sizeof *in);
        return true;
    }
    const uint16_t infinity = dtype == CLATTN_DTYPE_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < count; i++) {
        half[i] = dtype == CLATTN_DTYPE_F16 ? to_f16(in[i]) : to_bf16(in[i]);
        if ((half[i] & 0x7fff) == infinity && isfinite(in[i])) {
            *bad = i;
            return false;
        }
    }
    return true;
}
