// SPDX-License-Identifier: Apache-2.0
// 16-bit storage types, converted by integer arithmetic: no compiler or processor needs to know
// them. To 16 bits: round to nearest, ties to even; a NaN stays one.
#ifndef CLA_UTIL_HALF_H
#define CLA_UTIL_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t cla_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float cla_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// IEEE 754 binary16.
static inline float cla_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31;
    const uint32_t mantissa = h & 0x3ff;
    if (exponent == 31)
        return cla_bits_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return cla_bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float small = (float)mantissa * 0x1p-24f; // zero or denormal
    return cla_bits_float(sign | cla_float_bits(small));
}

static inline uint16_t cla_f32_to_f16(float x)
{
    const uint32_t u = cla_float_bits(x);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    const uint32_t a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
    if (a >= 0x477ff000) // 65520 and over round to infinity
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits
        const uint32_t low = cla_float_bits(cla_bits_float(a) + 0.5f);
        return (uint16_t)(sign | (low - 0x3f000000));
    }
    const uint32_t rounded = a + 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

// The upper half of a float.
static inline float cla_bf16_to_f32(uint16_t h)
{
    return cla_bits_float((uint32_t)h << 16);
}

static inline uint16_t cla_f32_to_bf16(float x)
{
    const uint32_t u = cla_float_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif // CLA_UTIL_HALF_H
