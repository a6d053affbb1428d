// SPDX-License-Identifier: Apache-2.0
// What the examples share: random input, the largest difference, the end of a program that fails.
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Ends the program where a call of clattn fails. What exactly was wrong, with field and value, is
// said by CLATTN_LOG=error, or by a log callback as in errors.c.
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const clattn_status try_status = (call);                                                   \
        if (try_status != CLATTN_OK) {                                                             \
            fprintf(stderr, "%s:%d: %s (CLATTN_LOG=error says more)\n", __FILE__, __LINE__,        \
                    clattn_status_string(try_status));                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// `count` floats between -1 and 1, which the caller frees.
static inline float *random_floats(size_t count, uint32_t seed)
{
    float *x = (float *)malloc(count * sizeof *x);
    if (!x) {
        fprintf(stderr, "no memory for %zu floats\n", count);
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u; // Numerical Recipes' generator
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

static inline float largest_difference(const float *a, const float *b, size_t count)
{
    float most = 0;
    for (size_t i = 0; i < count; i++) {
        const float d = fabsf(a[i] - b[i]);
        if (!(d <= most)) // NaN counts as the largest
            most = d;
    }
    return most;
}

// Prints the difference; the exit status of the program.
static inline int report(const char *what, float difference)
{
    const int right = difference <= 1e-5f;
    printf("%s: largest difference %.1e, %s\n", what, (double)difference,
           right ? "right" : "WRONG");
    return right ? 0 : 1;
}

#endif // EXAMPLE_H
