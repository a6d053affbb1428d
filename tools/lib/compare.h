// SPDX-License-Identifier: Apache-2.0
// Element by element comparison of a result with what was expected.
#ifndef CLATTN_TOOLS_COMPARE_H
#define CLATTN_TOOLS_COMPARE_H

#include <stddef.h>
#include <stdint.h>

struct tool_compare {
    size_t count; // elements
    size_t over;  // elements with |got - want| > tolerance + tolerance * |want|
    // The element whose error is largest beside 1 + |want|, which is one of `over` if any is.
    size_t worst;
    double worst_error; // |got - want| there; infinite where only one of them is finite
    float got, want;    // both values there
    double max_error;   // largest |got - want| of all
};

// NaN equals NaN, and an infinity the same infinity; any other pair with one of them is over.
void tool_compare(const float *got, const float *want, size_t count, double tolerance,
                  struct tool_compare *out);

// Flat index -> one index per axis.
void tool_unravel(size_t index, int ndim, const int64_t *shape, int64_t *at);

#endif // CLATTN_TOOLS_COMPARE_H
