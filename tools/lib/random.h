// SPDX-License-Identifier: Apache-2.0
// Repeatable test data.
#ifndef CLATTN_TOOLS_RANDOM_H
#define CLATTN_TOOLS_RANDOM_H

#include <stddef.h>

// Nearly normal numbers of mean 0 and deviation 1: the sum of four uniform ones from the C
// library's erand48(), whose sequence POSIX fixes, so that a seed means the same data everywhere.
void tool_random_fill(float *data, size_t count, unsigned seed);

#endif // CLATTN_TOOLS_RANDOM_H
