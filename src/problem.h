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
    int32_t dtype_q, dtype_kv, dtype_o, dtype_bias; // enum clattn_dtype
    int32_t dim_qk, dim_v;
    int32_t heads_q, heads_kv, group; // group = heads_q / heads_kv
    int32_t max_batch, max_len_q, max_len_kv; // INT32_MAX where the caller gave no bound
    bool causal, mask, lse;
    bool window, bias, alibi, softcap, sinks;
    bool kv_lens, packed_q, packed_kv, paged;
    int32_t page_size; // keys in a page, 0 without pages
    int32_t align;  // enum clattn_align
    int32_t algo;   // enum clattn_algo
    int32_t kernel; // enum clattn_kernel
    int32_t precision;
    int32_t num_splits; // parts of the keys, 0 = as many as suit the device
    int32_t softmax;    // enum clattn_softmax_algo of unfused attention
    bool no_fallback;
    clattn_tile tile; // the caller's; kernel 0 = none
};

// What of the contract not every algorithm serves.
enum {
    CLA_NEEDS_16_BIT = 1u << 0, // storage of float16 or bfloat16
    CLA_NEEDS_INT8 = 1u << 1,
    CLA_NEEDS_WINDOW = 1u << 2, // other than causal
    CLA_NEEDS_BIAS = 1u << 3,
    CLA_NEEDS_ALIBI = 1u << 4,
    CLA_NEEDS_SOFTCAP = 1u << 5,
    CLA_NEEDS_SINKS = 1u << 6,
    CLA_NEEDS_KV_LENS = 1u << 7,
    CLA_NEEDS_PACKED = 1u << 8,
    CLA_NEEDS_PAGED = 1u << 9,
    CLA_NEEDS_COUNT = 10
};

// The bits of a problem; and what a bit stands for, as a user would say it.
uint32_t cla_problem_needs(const struct cla_problem *p);
const char *cla_need_name(int bit);

// Whether sequences may differ in their lengths.
static inline bool cla_problem_is_ragged(const struct cla_problem *p)
{
    return p->kv_lens || p->packed_q || p->packed_kv;
}

static inline size_t cla_dtype_bytes(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4 : dtype == CLATTN_DTYPE_I8 ? 1 : 2;
}

// One tensor of a call, resolved: strides in elements whatever the layout. The batch axis of a
// packed one is a single sequence of all tokens, that of a paged one is the page.
struct cla_tensor {
    clattn_buf buf;
    int64_t offset;    // elements from the start of buf.ptr
    int64_t stride[3]; // batch, head, sequence
    size_t end_bytes;  // bytes from the start of buf.ptr that are reached
};

// The boolean mask, or the bias.
struct cla_mask {
    clattn_buf buf;
    int64_t offset;    // elements
    int64_t stride[4]; // batch, head, query, key; 0 broadcasts
    size_t end_bytes;
};

// Numbers that follow each other: of float or int32.
struct cla_vector {
    clattn_buf buf;
    int64_t offset; // elements
    size_t end_bytes;
};

// One checked call.
struct cla_call {
    int32_t batch;
    int32_t len_q, len_kv; // of the longest sequence, or of the one it was narrowed to
    float scale;
    float softcap; // 0 = none
    int32_t off; // alignment: query i stands at key i + off
    int32_t left, right; // extra keys of the window, -1 = unlimited; causal is right = 0
    // Query i sees key j when win_lo <= j - i <= win_hi; CLA_WIN_MIN / CLA_WIN_MAX = unlimited. By
    // len_q and len_kv.
    int32_t win_lo, win_hi;
    int64_t first_q, first_kv; // tokens in front of the sequence that the call was narrowed to
    int32_t total_q, total_kv; // tokens of packed sequences
    int32_t num_pages, max_pages;
    struct cla_tensor q, k, v, o;
    struct cla_mask mask, bias;
    clattn_buf lse;
    int64_t lse_offset; // floats
    int64_t lse_stride[2]; // floats: batch, head
    size_t lse_end_bytes;
    struct cla_vector alibi, sinks;
    int64_t alibi_stride; // floats from one sequence to the next
    struct cla_vector kv_lens, cu_q, cu_kv, table, faults;
    struct cla_tensor k_scale, v_scale; // without channels
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
    const void *bias;
    const float *alibi, *sinks;
    const int32_t *kv_lens, *cu_q, *cu_kv, *table;
    const float *k_scale, *v_scale;
    int32_t *faults;
    bool sorted_q, sorted_kv; // no offset is below one before it, as cla_sequence_sorted() found
};

// Whether an enum clattn_algo is one of those that take a tile.
bool cla_algo_has_tiles(int32_t algo);

// desc -> problem. Logs what is wrong with the values.
clattn_status cla_problem_from_desc(const clattn_attention_desc *desc, const struct cla_log *log,
                                    struct cla_problem *out);

// "f32, heads 8/2, dim 64, queries to 1, keys to 4096, causal, window": types, sizes, bounds and
// every feature, for messages.
void cla_problem_text(const struct cla_problem *p, char *text, size_t size);

// What is known of a cl_mem. A sub-buffer lies in `root` from root_offset on; others are their own.
struct cla_mem_facts {
    size_t bytes;
    void *root;
    size_t root_offset;
};

// Gives the facts of a cl_mem; CLATTN_ERR_WRONG_CONTEXT for one of another context,
// CLATTN_ERR_BUFFER_MISSING for what is no buffer, CLATTN_ERR_OUT_OF_MEMORY where the driver has
// none to answer. Does not log.
typedef clattn_status (*cla_mem_fn)(void *user, void *mem, struct cla_mem_facts *facts);

// What elements a buffer holds, for messages: up to four axes, each with its stride, and inside of
// them `innermost` elements side by side.
struct cla_shape {
    int axes;
    const int64_t *extent, *stride;
    int64_t innermost;
};

// A buffer of elements of `elem_bytes` that is used up to `end_bytes`, counted from its start.
// `shape`, which that end comes from, may be NULL; `mem_facts` is NULL where no cl_mem is legal.
// Logs what is wrong with it.
clattn_status cla_buf_check(const char *name, const clattn_buf *buf, size_t elem_bytes,
                            size_t end_bytes, const struct cla_shape *shape, cla_mem_fn mem_facts,
                            void *user, const struct cla_log *log);

// call -> checked call. Logs what is wrong with the values.
clattn_status cla_call_check(const struct cla_problem *p, const clattn_attention_call *call,
                             cla_mem_fn mem_facts, void *user, const struct cla_log *log,
                             struct cla_call *out);

// Sets off, win_lo and win_hi by the window and the lengths of the call.
void cla_call_set_window(const struct cla_problem *p, struct cla_call *call);

// Copies the caller's struct of any known size into `out`, the tail zeroed. Refuses a size below
// `min_size`, one that cuts a field, and a longer one whose tail is not zero.
clattn_status cla_struct_in(const char *what, const void *in, size_t min_size, void *out,
                            size_t out_size, const struct cla_log *log);

// Fills the caller's struct `out` from `full`, as far as the size goes that stands in `out`, and
// leaves that size. Refuses one below `min_size`, and one that cuts a field.
clattn_status cla_struct_out(const char *what, void *out, size_t min_size, const void *full,
                             size_t full_size, const struct cla_log *log);

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
