// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the CPU path rounds to the nearest and does not trap: the exponential finds its
// power of 2 by rounding, and -infinity and NaN are ordinary numbers. A program, or a thread that
// it handed to OpenMP, may be in another mode; it is put aside around each piece of work, on the
// thread that does it. That denormals may count as zeros is left as it is.
#ifndef CLA_UTIL_FLOAT_MODE_H
#define CLA_UTIL_FLOAT_MODE_H

#if defined(__SSE__)
#include <xmmintrin.h>

// Reads the register that the arithmetic goes by, which fegetround() does not.
static inline unsigned cla_float_begin(void)
{
    const unsigned was = _mm_getcsr();
    if ((was & (_MM_ROUND_MASK | _MM_MASK_MASK)) != _MM_MASK_MASK) {
        _mm_setcsr((was & ~(unsigned)_MM_ROUND_MASK) | _MM_MASK_MASK);
        __asm__ volatile("" ::: "memory"); // no load and no arithmetic on it comes before
    }
    return was;
}

// The flags of the exceptions come back with the mode, so that none of them traps.
static inline void cla_float_end(unsigned was)
{
    if ((was & (_MM_ROUND_MASK | _MM_MASK_MASK)) != _MM_MASK_MASK) {
        __asm__ volatile("" ::: "memory");
        _mm_setcsr(was);
    }
}

#else
#include <fenv.h>

// Traps are of processors that this library knows nothing of.
static inline unsigned cla_float_begin(void)
{
    const int was = fegetround();
    if (was != FE_TONEAREST)
        fesetround(FE_TONEAREST);
    return (unsigned)was;
}

static inline void cla_float_end(unsigned was)
{
    if ((int)was != FE_TONEAREST)
        fesetround((int)was);
}

#endif

#endif // CLA_UTIL_FLOAT_MODE_H
