// SPDX-License-Identifier: Apache-2.0
// Reads the test data: NumPy .npy files of float32 or bool in C order.
#ifndef TESTS_NPY_H
#define TESTS_NPY_H

#include <stddef.h>

struct npy {
    void *data;       // floats, or bytes of a bool array
    size_t item;      // 4 or 1 bytes
    size_t dims;      // up to 4
    size_t extent[4];
    size_t count;
};

// Exits the test with a line naming the file where it is not such a file. The caller frees `data`.
struct npy npy_read(const char *folder, const char *name);

#endif // TESTS_NPY_H
