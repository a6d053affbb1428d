// SPDX-License-Identifier: Apache-2.0
// All validation. A description becomes a problem, a call becomes a shape; nobody behind this
// file checks again.
#ifndef CLA_PROBLEM_H
#define CLA_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clattn/attention.h"
#include "util/log.h"

// What a plan is made for: a checked clattn_attention_desc with the defaults filled in.
struct cla_problem {
    int32_t dtype_q, dtype_kv, dtype_o;
    int32_t dim_qk, dim_v;
    int32_t heads_q, heads_kv, group; // group = heads_q / heads_kv
    int32_t max_batch, max_len_q, max_len_kv; // INT32_MAX where the caller gave no bound
    bool causal, mask, lse;
    int32_t align;  // enum clattn_align
    int32_t algo;   // enum clattn_algo
    int32_t kernel; // enum clattn_kernel
    int32_t precision;
    int32_t num_splits; // parts of the keys, 0 = as many as suit the device
    int32_t softmax;    // enum clattn_softmax_algo of unfused attention
    bool no_fallback;
};

// One tensor of a call, resolved: strides in elements whatever the layout.
struct cla_tensor {
    clattn_buf buf;
    int64_t offset;    // elements from the start of buf.ptr
    int64_t stride[3]; // batch, head, sequence
    size_t end_bytes;  // bytes from the start of buf.ptr that are reached
};

struct cla_mask {
    clattn_buf buf;
    int64_t offset;    // bytes
    int64_t stride[4]; // batch, head, query, key; 0 broadcasts
    size_t end_bytes;
};

// One checked call.
struct cla_call {
    int32_t batch, len_q, len_kv;
    float scale;
    int32_t off; // alignment: query i stands at key i + off
    // Query i sees key j when win_lo <= j - i <= win_hi; CLA_WIN_MIN / CLA_WIN_MAX = unlimited.
    int32_t win_lo, win_hi;
    struct cla_tensor q, k, v, o;
    struct cla_mask mask;
    clattn_buf lse;
    int64_t lse_offset; // floats
    clattn_buf workspace;
    int64_t workspace_offset; // floats
    uint64_t workspace_need;  // bytes, by the plan's algorithm; UINT64_MAX = beyond 64 bits
    bool bring_outputs; // device copies of O and LSE begin as the caller's, for a trial
};

// Whether the scale may multiply Q, once for each row, rather than every score: a larger one could
// overflow there although the scaled score does not, a smaller one lose bits to denormals.
static inline bool cla_scale_folds(float scale)
{
    const float size = scale < 0.0f ? -scale : scale;
    return size == 0.0f || (size >= 0x1p-20f && size <= 1.0f);
}

// Memory of one call as host pointers at element 0 (offsets already added). Absent = NULL.
struct cla_host_mem {
    const void *q, *k, *v;
    void *o;
    float *lse;
    const uint8_t *mask;
};

// desc -> problem. Logs what is wrong with the values.
clattn_status cla_problem_from_desc(const clattn_attention_desc *desc, const struct cla_log *log,
                                    struct cla_problem *out);

// What is known of a cl_mem. A sub-buffer lies in `root` from root_offset on; others are their own.
struct cla_mem_facts {
    size_t bytes;
    void *root;
    size_t root_offset;
};

// Gives the facts of a cl_mem; CLATTN_ERR_WRONG_CONTEXT for one of another context,
// CLATTN_ERR_BUFFER_MISSING for what is no buffer. Does not log.
typedef clattn_status (*cla_mem_fn)(void *user, void *mem, struct cla_mem_facts *facts);

// A buffer of elements of `elem_bytes` that is used up to `end_bytes`, counted from its start.
// `mem_facts` is NULL where no cl_mem is legal. Logs what is wrong with it.
clattn_status cla_buf_check(const char *name, const clattn_buf *buf, size_t elem_bytes,
                            size_t end_bytes, cla_mem_fn mem_facts, void *user,
                            const struct cla_log *log);

// call -> checked call. Logs what is wrong with the values.
clattn_status cla_call_check(const struct cla_problem *p, const clattn_attention_call *call,
                             cla_mem_fn mem_facts, void *user, const struct cla_log *log,
                             struct cla_call *out);

// Copies the caller's struct of any known size into `out`, the tail zeroed. Refuses a size below
// `min_size`, and a longer one whose tail is not zero.
clattn_status cla_struct_in(const char *what, const void *in, size_t min_size, void *out,
                            size_t out_size, const struct cla_log *log);

// Size of a struct whose first version ended with `field`.
#define CLA_SIZE_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

// Whether a field holds 0 to `last`, or no bits but the known ones. Logs what is wrong with it.
clattn_status cla_check_enum(const struct cla_log *log, const char *field, int64_t value,
                             int64_t last);
clattn_status cla_check_bits(const struct cla_log *log, const char *field, uint32_t value,
                             uint32_t known);

// Zeroes the caller's struct and notes its size.
void cla_struct_init(void *s, size_t size);

// A range of bytes of a buffer, from its offset to `end_bytes`; 0 = nothing there.
struct cla_buf_range {
    const char *name;
    const clattn_buf *buf;
    size_t end_bytes;
};

// Whether two ranges meet, also through sub-buffers of one cl_mem. `mem_facts` as in
// cla_call_check().
bool cla_ranges_overlap(const struct cla_buf_range *a, const struct cla_buf_range *b,
                        cla_mem_fn mem_facts, void *user);

#endif // CLA_PROBLEM_H
