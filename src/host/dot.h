// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 pairs with sums in float: an instruction where the object is compiled for
// one, else the same in C, operation by operation, by which the tests see the numbers of a machine
// that has it.
//
// A vector of pairs is one of integers; the first number of a pair is in the low half.
#ifndef CLA_HOST_DOT_H
#define CLA_HOST_DOT_H

#include "host/vec.h"

#if W == 16 && defined(__AVX512BF16__)
#define DOT_X86 1
#endif

#if !defined(DOT_X86)
// The instruction takes denormals for zeros and makes none.
VEC_INLINE vf dot_flush(vf x)
{
    const vi normal = (vi)(((vi)x & 0x7f800000) != 0);
    return (vf)((vi)x & (normal | (vi)vec_splat(-0.0f)));
}
#endif

// acc + a.second * b.second, then + a.first * b.first: a rounding each, to nearest, ties to even,
// whatever the thread's mode. Products of two bfloat16 numbers are exact in float within its range.
VEC_INLINE vf dot_pairs(vf acc, vi a, vi b)
{
#if defined(DOT_X86)
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
    const vf a1 = dot_flush((vf)(a & ~0xffff)), b1 = dot_flush((vf)(b & ~0xffff));
    const vf a0 = dot_flush((vf)(a << 16)), b0 = dot_flush((vf)(b << 16));
    acc = dot_flush(vec_fma(a1, b1, dot_flush(acc)));
    return dot_flush(vec_fma(a0, b0, acc));
#endif
}

// Pairs of two vectors of floats, rounded to nearest, ties to even. NaN stays NaN.
VEC_INLINE vi dot_pack(vf first, vf second)
{
#if defined(DOT_X86)
    const vi halves = (vi)_mm512_cvtne2ps_pbh(second, first);
    // Word i of the first vector goes next to word i of the second, which is 16 further.
    const vi order = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                      0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                      0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    return (vi)_mm512_permutexvar_epi16((__m512i)order, (__m512i)halves);
#else
    vi half[2];
    const vf x[2] = {first, second};
    VEC_UNROLL
    for (int i = 0; i < 2; i++) {
        const vi u = (vi)dot_flush(x[i]);
        const vi nan = (vi)(x[i] != x[i]);
        const vi number = u & ~nan;
        // The lowest bit that stays makes ties go to even.
        half[i] = (nan & (u | 0x400000)) | (~nan & (number + 0x7fff + (number >> 16 & 1)));
    }
    return (half[0] >> 16 & 0xffff) | (half[1] & ~0xffff);
#endif
}

#endif // CLA_HOST_DOT_H
