// SPDX-License-Identifier: Apache-2.0
// NumPy .npy files: one array each, format versions 1.0, 2.0 and 3.0, C order, float32 or bool.
#ifndef CLATTN_TOOLS_NPY_H
#define CLATTN_TOOLS_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TOOL_NPY_MAX_NDIM = 8, TOOL_NPY_MAX_HEADER = 65536 };

enum tool_npy_dtype {
    TOOL_NPY_F32, // '<f4'
    TOOL_NPY_BOOL // '|b1', one byte each
};

struct tool_npy {
    enum tool_npy_dtype dtype;
    int ndim;
    int64_t shape[TOOL_NPY_MAX_NDIM];
    size_t count; // elements
    size_t bytes;
    void *data; // NULL where there are no elements
};

// Reads the file at `path`, which must hold an array of this type and number of axes. On failure
// `why` receives "field: what is wrong" without the path, and `out` holds nothing. Any bytes are
// safe to read, and no more memory is taken than the file has data.
bool tool_npy_read(const char *path, enum tool_npy_dtype dtype, int ndim, struct tool_npy *out,
                   char *why, size_t why_size);

// The same from an open stream: `what` the error needs is in `why`.
bool tool_npy_read_stream(FILE *file, enum tool_npy_dtype dtype, int ndim, struct tool_npy *out,
                          char *why, size_t why_size);

void tool_npy_free(struct tool_npy *npy);

// Writes a float32 array in format 1.0. False with errno on failure.
bool tool_npy_write(FILE *file, const float *data, int ndim, const int64_t *shape);

// "(4, 12, 44, 32)".
void tool_npy_shape_text(int ndim, const int64_t *shape, char *text, size_t size);

#endif // CLATTN_TOOLS_NPY_H
