// SPDX-License-Identifier: Apache-2.0
// How far an output is from what it should be, and where it is worst.
#ifndef CLATTN_CASES_COMPARE_H
#define CLATTN_CASES_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The pattern outputs are filled with before a run: a quiet NaN with a payload that no arithmetic
// makes, so an element that still holds it was never written.
#define UNWRITTEN_BITS 0x7fc5a5a5u

// What is tolerated: |out - ref| <= abs + rel * |ref| for each element.
struct tolerance {
    double abs;
    double rel;
    // Where the reference is not finite, the output need only be not finite too. Without it NaN
    // must meet NaN and an infinity the same infinity.
    bool any_nonfinite;
};

struct compare_report {
    size_t count;
    size_t failed;           // elements out of tolerance, NaN mismatches among them
    size_t unwritten;        // elements that still hold UNWRITTEN_BITS
    size_t nan_out, nan_ref; // NaN elements
    double max_abs;          // over elements where both are finite
    double max_rel;          // likewise, where ref != 0
    double rms_rel;          // RMS of the error over RMS of the reference
    double worst_ratio;      // largest error as a part of what is tolerated; > 1 fails
    size_t worst_index;      // where that is, or the first mismatch of NaN or infinity
    float worst_out, worst_ref;
};

// Compares `count` elements. True if nothing is out of tolerance and everything was written.
bool compare(const float *out, const float *ref, size_t count, const struct tolerance *tol,
             struct compare_report *report);

// The same, with bound[n] * unit more for element n, which may take it over the largest number.
bool compare_bounded(const float *out, const float *ref, size_t count, const struct tolerance *tol,
                     const double *bound, double unit, struct compare_report *report);

// The figures of a report in one line. `what` says which output it is.
void compare_text(const char *what, const struct compare_report *report, char *text, size_t size);

// The same on stdout, for tests.
void compare_print(const char *what, const struct compare_report *report);

// Fills with UNWRITTEN_BITS.
void fill_unwritten(void *to, size_t count);

uint32_t float_bits(float x);

#endif // CLATTN_CASES_COMPARE_H
