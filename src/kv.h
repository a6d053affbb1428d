// SPDX-License-Identifier: Apache-2.0
// The operations around attention: a public call made into an operation, checked.
#ifndef CLA_KV_H
#define CLA_KV_H

#include "algo/op.h"
#include "clattn/kv.h"
#include "host/kv.h"

struct cla_merge_op {
    struct cla_op op;
    struct cla_merge_data data;
};
clattn_status cla_merge_op(clattn_context *ctx, const clattn_merge_call *call,
                           struct cla_merge_op *out);

struct cla_rotate_op {
    struct cla_op op;
    struct cla_rotate_data data;
};
clattn_status cla_rotate_op(clattn_context *ctx, const clattn_rotary_call *call,
                            struct cla_rotate_op *out);

struct cla_append_op {
    struct cla_op op;
    struct cla_append_data data;
};
clattn_status cla_append_op(clattn_context *ctx, const clattn_append_call *call,
                            struct cla_append_op *out);

// Checks how the tokens of a call are turned. `dim` is the tensor's.
clattn_status cla_rotary_check(const struct cla_log *log, const clattn_rotary *rotary, int32_t dim);
// Adds offsets, cosines and sines.
clattn_status cla_rotary_add(struct cla_op *op, const clattn_rotary *rotary, int32_t batch,
                             struct cla_rotary_args *out);
// That `len` tokens of sequence b from position `first` on are in the tables.
clattn_status cla_rotary_check_positions(const struct cla_log *log, const clattn_rotary *rotary,
                                         int32_t b, int32_t first, int32_t len);

// That a storage type is f32, f16 or bf16.
clattn_status cla_kv_dtype(const struct cla_log *log, const char *field, int32_t dtype);

// A field of a call that may not be below `least`.
struct cla_kv_count {
    const char *name;
    int64_t value, least;
};
clattn_status cla_kv_counts(const struct cla_log *log, const struct cla_kv_count *f, int n);

// *rows = batch * heads * len.
clattn_status cla_kv_rows(const struct cla_log *log, int32_t batch, int32_t heads, int32_t len,
                          int64_t *rows);

#endif // CLA_KV_H
