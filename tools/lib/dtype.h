// SPDX-License-Identifier: Apache-2.0
// Storage types of tensors: their names, and numbers in them to and from float32.
#ifndef CLATTN_TOOLS_DTYPE_H
#define CLATTN_TOOLS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// In the order of enum clattn_dtype: f32, f16, bf16, int8, NULL; the second list ends before int8.
extern const char *const tool_dtype_words[];
extern const char *const tool_float_words[];

// Bytes of an element.
size_t tool_dtype_bytes(int dtype);

// Error that rounding to the type leaves in attention, as X of X + X * |expected|.
double tool_dtype_tolerance(int dtype);

// Numbers of a type other than int8 as floats.
void tool_to_float(const void *in, int dtype, float *out, size_t count);

// Floats rounded to a type other than int8, to nearest even. False where a finite number becomes
// infinite, then *bad is the index of the first one.
bool tool_from_float(const float *in, int dtype, void *out, size_t count, size_t *bad);

#endif // CLATTN_TOOLS_DTYPE_H
