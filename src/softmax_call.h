// SPDX-License-Identifier: Apache-2.0
// Row softmax inside the library: a checked description, a checked call, and the three paths.
#ifndef CLA_SOFTMAX_INTERNAL_H
#define CLA_SOFTMAX_INTERNAL_H

#include <stdbool.h>

#include "clattn/softmax.h"

struct cla_softmax {
    int32_t algo; // enum clattn_softmax_algo, not AUTO
    int32_t path;   // enum clattn_softmax_path
    int32_t kernel; // enum clattn_kernel
    int32_t dtype_x, dtype_y;
    bool lse, no_fallback;
    int64_t max_rows, max_len; // INT64_MAX where the caller gave no bound
};

// One checked call. Offsets and strides in elements; *_end_bytes from the start of the memory, 0
// where there is none.
struct cla_softmax_call {
    int64_t rows, len;
    int64_t stride_x, stride_y;
    int64_t x_offset, y_offset, lse_offset, workspace_offset;
    float scale;
    bool in_place;
    clattn_buf x, y, lse, workspace;
    size_t x_end_bytes, y_end_bytes, lse_end_bytes, workspace_end_bytes;
};

static inline size_t cla_softmax_elem_bytes(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4 : 2;
}

// Whether Y goes past the caches: so large that what follows finds no more than an end of it there
// (32 MiB: the last-level cache of a large CPU), and not X, whose lines the cache already holds.
static inline bool cla_softmax_streams(const struct cla_softmax *s,
                                       const struct cla_softmax_call *call)
{
    return !call->in_place && (double)call->rows * (double)call->len *
                                      (double)cla_softmax_elem_bytes(s->dtype_y) >=
                                  32.0 * 1024 * 1024;
}

#endif // CLA_SOFTMAX_INTERNAL_H
