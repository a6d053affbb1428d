// SPDX-License-Identifier: Apache-2.0
// One vector of CLA_HOST_W floats as a C value, by the vector extensions of gcc and clang. What
// they lack or compile badly is an intrinsic where the instruction set has one.
//
// Every function here is file-local on purpose: the file is compiled once per instruction set, and
// a shared definition could be linked from the wrong one.
#ifndef CLA_HOST_VEC_H
#define CLA_HOST_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef CLA_HOST_W
#error "host/vec.h: CLA_HOST_W, floats in a vector (4, 8 or 16)"
#endif
#define W CLA_HOST_W

#if W == 16 && defined(__AVX512F__)
#include <immintrin.h>
#define VEC_X86(op) _mm512_##op##_ps
#define VEC_HAS_FMA 1
#elif W == 8 && defined(__AVX__)
#include <immintrin.h>
#define VEC_X86(op) _mm256_##op##_ps
#ifdef __FMA__
#define VEC_HAS_FMA 1
#endif
#elif W == 4 && defined(__SSE__)
#include <xmmintrin.h>
#define VEC_X86(op) _mm_##op##_ps
#elif W == 4 && defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#define VEC_NEON 1
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));

// Most vectors that vec_exp() takes at once: three registers each.
#define VEC_EXP_MOST (W == 16 ? 8 : 4)

#define VEC_INLINE static inline __attribute__((always_inline, unused))
#define VEC_NOINLINE static __attribute__((noinline))

// VEC_UNROLL unrolls the next loop, whose bounds must be constant, so that arrays become registers;
// VEC_UNROLL_BY_4 takes four steps of a long loop at once, which is worth 10 % in register blocks:
// the processor foresees the end of a loop with few rounds. CLA_HOST_SMALL leaves that out, for
// objects of the tests, which sanitizers take a minute each to compile otherwise.
#if defined(CLA_HOST_SMALL)
#define VEC_UNROLL_BY_4
#elif defined(__clang__)
#define VEC_UNROLL_BY_4 _Pragma("clang loop unroll_count(4)")
#else
#define VEC_UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif
#ifdef __clang__
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif

VEC_INLINE vf vec_splat(float x)
{
#if defined(VEC_X86)
    return VEC_X86(set1)(x);
#elif defined(VEC_NEON)
    return (vf)vdupq_n_f32(x);
#else
    // Not x - (vf){0}: where floats are computed as double, x is no float there.
    vf all;
    VEC_UNROLL
    for (int i = 0; i < W; i++)
        all[i] = x;
    return all;
#endif
}

// Memory of any alignment.
VEC_INLINE vf vec_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}

VEC_INLINE void vec_store(float *p, vf x)
{
    memcpy(p, &x, sizeof x);
}

// Past the caches where the instruction set can; p is a multiple of a vector's size. Ends with
// vec_stream_end() on the same thread, before another one reads what was written.
VEC_INLINE void vec_stream(float *p, vf x)
{
#if defined(VEC_X86)
    VEC_X86(stream)(p, x);
#else
    vec_store(p, x);
#endif
}

VEC_INLINE void vec_stream_end(void)
{
#if defined(VEC_X86)
    _mm_sfence();
#endif
}

// a * b + c, in one rounding where the instruction set can.
VEC_INLINE vf vec_fma(vf a, vf b, vf c)
{
#if defined(VEC_HAS_FMA)
    return VEC_X86(fmadd)(a, b, c);
#elif defined(VEC_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// Bits of a where the mask is set, of b elsewhere.
VEC_INLINE vf vec_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

// The mean of finite values is finite, but rounding can take one near FLT_MAX past it: then
// +-FLT_MAX, whose bits are in front of those of infinity. `x` is what the mean was made of.
VEC_INLINE vf vec_finite_mean(vf mean, vf x)
{
    const vi past = (vi)(((vi)mean & 0x7fffffff) == 0x7f800000);
    const vi finite = (vi)(((vi)x & 0x7f800000) != 0x7f800000);
    return (vf)((vi)mean + (past & finite)); // true is -1
}

// a > b ? a : b. A NaN in b passes. A NaN in a passes on Arm and is dropped elsewhere; callers are
// right either way.
VEC_INLINE vf vec_max(vf a, vf b)
{
#if defined(VEC_X86)
    return VEC_X86(max)(a, b);
#elif defined(VEC_NEON)
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vec_select((vi)(a > b), a, b);
#endif
}

// y[i] = e^y[i] for y <= 0 and n vectors (a constant), within 1.6e-7. Below ln(2^-126.5), so for
// -infinity too, exactly 0. NaN gives NaN.
//
// Step by step for all vectors: one after the other, the scheduler of a core fills up with the
// chain of dependent operations of a few vectors, and half of the speed is lost.
VEC_INLINE void vec_exp(vf *y, const int n)
{
    const vf log2e = vec_splat(1.44269504f);
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; the 127 on top makes
    // these bits the exponent field of a power of 2. Nothing here may be folded by assumptions
    // about floats, so this file is never compiled with -ffast-math.
    const vf magic = vec_splat(12582912.0f + 127.0f);
    // At -127 * ln(2) the field is 0 and with it the power. The constant comes first, so that a NaN
    // in y passes.
    const vf lowest = vec_splat(-88.0296919f);
    static const float poly[] = {0x1.3cea82p-7f, 0x1.c6b750p-5f, 0x1.ebf9c0p-3f, 0x1.62e42ap-1f,
                                 1.0f};
    vf f[VEC_EXP_MOST], power[VEC_EXP_MOST];
    VEC_UNROLL
    for (int i = 0; i < n; i++)
        f[i] = vec_max(lowest, y[i]);
    VEC_UNROLL
    for (int i = 0; i < n; i++)
        power[i] = vec_fma(f[i], log2e, magic);
    VEC_UNROLL
    for (int i = 0; i < n; i++)
        f[i] = vec_fma(f[i], log2e, magic - power[i]); // in [-0.5, 0.5]
    VEC_UNROLL
    for (int i = 0; i < n; i++)
        y[i] = vec_splat(0x1.5bba0ap-10f);
    VEC_UNROLL
    for (int c = 0; c < 5; c++) {
        VEC_UNROLL
        for (int i = 0; i < n; i++)
            y[i] = vec_fma(y[i], f[i], vec_splat(poly[c]));
    }
    // For a NaN the power is made of arbitrary bits, but NaN times anything stays NaN.
    VEC_UNROLL
    for (int i = 0; i < n; i++)
        y[i] *= (vf)((vi)power[i] << 23);
}

#if defined(__clang__) || __GNUC__ >= 12
#define VEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VEC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

// Index lists of the shuffles below: four floats at i of each 128-bit lane.
#if W == 4
#define VEC_LANES(a, b, c, d) a, b, c, d
#elif W == 8
#define VEC_LANES(a, b, c, d) a, b, c, d, (a) + 4, (b) + 4, (c) + 4, (d) + 4
#else
#define VEC_LANES(a, b, c, d)                                                                      \
    a, b, c, d, (a) + 4, (b) + 4, (c) + 4, (d) + 4, (a) + 8, (b) + 8, (c) + 8, (d) + 8, (a) + 12,  \
        (b) + 12, (c) + 12, (d) + 12
#endif

// Transposes W x W floats: first 4 x 4 blocks inside the 128-bit lanes, then the lanes.
VEC_INLINE void vec_transpose(vf a[W])
{
    VEC_UNROLL
    for (int i = 0; i < W; i += 4) {
        const vf t0 = VEC_SHUFFLE(a[i], a[i + 1], VEC_LANES(0, W, 1, W + 1));
        const vf t1 = VEC_SHUFFLE(a[i], a[i + 1], VEC_LANES(2, W + 2, 3, W + 3));
        const vf t2 = VEC_SHUFFLE(a[i + 2], a[i + 3], VEC_LANES(0, W, 1, W + 1));
        const vf t3 = VEC_SHUFFLE(a[i + 2], a[i + 3], VEC_LANES(2, W + 2, 3, W + 3));
        a[i] = VEC_SHUFFLE(t0, t2, VEC_LANES(0, 1, W, W + 1));
        a[i + 1] = VEC_SHUFFLE(t0, t2, VEC_LANES(2, 3, W + 2, W + 3));
        a[i + 2] = VEC_SHUFFLE(t1, t3, VEC_LANES(0, 1, W, W + 1));
        a[i + 3] = VEC_SHUFFLE(t1, t3, VEC_LANES(2, 3, W + 2, W + 3));
    }
#if W == 8
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        const vf lo = VEC_SHUFFLE(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        a[i + 4] = VEC_SHUFFLE(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        a[i] = lo;
    }
#elif W == 16
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
#define VEC_PAIR(x, y, p, q)                                                                       \
    VEC_SHUFFLE(x, y, p, p + 1, p + 2, p + 3, q, q + 1, q + 2, q + 3, p + 16, p + 17, p + 18,      \
                p + 19, q + 16, q + 17, q + 18, q + 19)
        const vf t0 = VEC_PAIR(a[i], a[i + 4], 0, 8);
        const vf t1 = VEC_PAIR(a[i], a[i + 4], 4, 12);
        const vf t2 = VEC_PAIR(a[i + 8], a[i + 12], 0, 8);
        const vf t3 = VEC_PAIR(a[i + 8], a[i + 12], 4, 12);
        a[i] = VEC_PAIR(t0, t2, 0, 8);
        a[i + 4] = VEC_PAIR(t1, t3, 0, 8);
        a[i + 8] = VEC_PAIR(t0, t2, 4, 12);
        a[i + 12] = VEC_PAIR(t1, t3, 4, 12);
#undef VEC_PAIR
    }
#endif
}

#endif // CLA_HOST_VEC_H
