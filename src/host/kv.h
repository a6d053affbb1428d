// SPDX-License-Identifier: Apache-2.0
// The operations around attention on host memory. Pointers are at element 0 of each buffer, in the
// order of the kernel's arguments; offsets of the argument blocks are not read.
#ifndef CLA_HOST_KV_H
#define CLA_HOST_KV_H

#include "kv_abi.h"
#include "problem.h"

struct cla_merge_data {
    struct cla_merge_args args;
    int64_t rows;
    int32_t dtype_parts, dtype_o;
};

// A part or its LSE that is NULL is O's, or that of O.
void cla_host_merge(const struct cla_merge_data *data, void *const *ptr, int32_t threads);

struct cla_rotate_data {
    struct cla_rotate_args args;
    int64_t rows;
    int32_t dtype;
};

// X that is NULL is Y.
void cla_host_rotary(const struct cla_rotate_data *data, void *const *ptr, int32_t threads);

struct cla_append_data {
    struct cla_append_args args;
    int64_t rows; // of K, then as many of V where there is V
    int32_t dtype_new, dtype_cache;
};

void cla_host_append(const struct cla_append_data *data, void *const *ptr, int32_t threads);

// Rounds `dim` floats to int8 and returns their scale: NaN, and zeros, where one is not finite.
float cla_host_quantize_row(const float *x, int64_t dim, int8_t *out);

#endif // CLA_HOST_KV_H
