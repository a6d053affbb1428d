// SPDX-License-Identifier: Apache-2.0
// NumPy .npy files: one array each, format versions 1.0, 2.0 and 3.0, C order, a few plain types.
#ifndef CLATTN_TOOLS_NPY_H
#define CLATTN_TOOLS_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TOOL_NPY_MAX_NDIM = 8, TOOL_NPY_MAX_HEADER = 65536 };

// Bits, so that a reader can name several.
enum tool_npy_dtype {
    TOOL_NPY_F32 = 1 << 0,  // '<f4'
    TOOL_NPY_BOOL = 1 << 1, // '|b1', one byte each
    TOOL_NPY_F16 = 1 << 2,  // '<f2'
    TOOL_NPY_U16 = 1 << 3,  // '<u2'
    TOOL_NPY_I32 = 1 << 4,  // '<i4'
    TOOL_NPY_I64 = 1 << 5   // '<i8'
};

struct tool_npy {
    enum tool_npy_dtype dtype; // one bit
    int ndim;
    int64_t shape[TOOL_NPY_MAX_NDIM];
    size_t count; // elements
    size_t bytes;
    void *data; // NULL where there are no elements
};

// Reads the file at `path`, which must hold an array of one of these types and of this number of
// axes (0 = 1 or 2). On failure `why` receives "field: what is wrong" without the path, and `out`
// holds nothing but the number of axes, if that was read. Any bytes are safe to read, and no more
// memory is taken than the file has data.
bool tool_npy_read(const char *path, unsigned dtypes, int ndim, struct tool_npy *out, char *why,
                   size_t why_size);

// The same from an open stream: `what` the error needs is in `why`.
bool tool_npy_read_stream(FILE *file, unsigned dtypes, int ndim, struct tool_npy *out, char *why,
                          size_t why_size);

// Bytes of an element, and its type as messages show it: "float32 ('<f4')".
size_t tool_npy_size(enum tool_npy_dtype dtype);
const char *tool_npy_name(enum tool_npy_dtype dtype);

void tool_npy_free(struct tool_npy *npy);

// Writes an array in format 1.0. False with errno on failure.
bool tool_npy_write(FILE *file, enum tool_npy_dtype dtype, const void *data, int ndim,
                    const int64_t *shape);

// "(4, 12, 44, 32)".
void tool_npy_shape_text(int ndim, const int64_t *shape, char *text, size_t size);

#endif // CLATTN_TOOLS_NPY_H
