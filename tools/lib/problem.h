// SPDX-License-Identifier: Apache-2.0
// Sizes and features of one attention problem: what a description and a call have in common.
#ifndef CLATTN_TOOLS_PROBLEM_H
#define CLATTN_TOOLS_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clattn/clattn.h"

struct tool_problem {
    // Lengths of the longest sequence.
    int32_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    int layout; // enum clattn_layout of q, k, v and o
    bool causal, mask, lse, has_scale;
    int align;  // enum clattn_align
    float scale;
    int32_t mask_extent[4];
    int algo;   // enum clattn_algo
    int kernel; // enum clattn_kernel
    int32_t num_splits; // of split_kv; 0 = as many as suit
    int softmax;        // of unfused: enum clattn_softmax_algo; 0 = default
    int precision;      // enum clattn_precision
    uint32_t flags;
    clattn_tile tile;   // all zero = the library's choice

    int dtype_q, dtype_kv, dtype_o, dtype_bias; // enum clattn_dtype
    bool window, bias, alibi, alibi_batch, sinks, kv_lens, packed_q, packed_kv;
    int32_t window_left, window_right;
    float softcap; // 0 = none
    int32_t bias_extent[4];
    int32_t total_q, total_kv;                // tokens of packed sequences
    int32_t page_size, num_pages, max_pages; // page_size 0 = not paged
};

enum tool_tensor {
    TOOL_Q, TOOL_K, TOOL_V, TOOL_O, TOOL_LSE, TOOL_MASK, TOOL_BIAS, TOOL_ALIBI, TOOL_SINKS,
    TOOL_KV_LENS, TOOL_CU_Q, TOOL_CU_KV, TOOL_TABLE, TOOL_K_SCALE, TOOL_V_SCALE, TOOL_TENSORS
};

// Bytes of a tensor of the problem, 0 where it is not used. False if they overflow.
bool tool_tensor_bytes(const struct tool_problem *p, enum tool_tensor which, size_t *bytes);

// Extents of q, k, v or o: [batch, heads, sequence, dim] in the problem's layout, with a batch of 1
// and all tokens where sequences are packed, and [pages, heads, page, dim] where keys are paged.
void tool_tensor_shape(const struct tool_problem *p, enum tool_tensor which, int64_t shape[4]);

// Extents of LSE, [batch, heads_q, len_q] or [1, heads_q, tokens].
void tool_lse_shape(const struct tool_problem *p, int64_t shape[3]);

void tool_desc_init(const struct tool_problem *p, clattn_attention_desc *desc);

// A call of the whole problem on a buffer for each tensor.
void tool_call_fill(const struct tool_problem *p, const clattn_buf buf[TOOL_TENSORS],
                    clattn_attention_call *call);

// "causal, window 256,0, softcap 30", or "none". Types are not among the features.
void tool_features_text(const struct tool_problem *p, char *text, size_t size);

// "f16", or "f32, K and V int8".
void tool_dtypes_text(const struct tool_problem *p, char *text, size_t size);

#endif // CLATTN_TOOLS_PROBLEM_H
