// SPDX-License-Identifier: Apache-2.0
// A feature case in memory: tensors in the layout that it asks for between guard bands, packed
// tokens, pages and tables, the call on them, and the check of all that the call wrote. What
// belongs to nobody is NaN in inputs, visible in masks, and wild in lengths and tables.
#ifndef TESTS_FEATURE_MEMORY_H
#define TESTS_FEATURE_MEMORY_H

#include "case_memory.h"
#include "feature_data.h"

enum feature_part {
    PART_Q, PART_K, PART_V, PART_O, PART_LSE, PART_MASK, PART_BIAS, PART_ALIBI, PART_SINKS,
    PART_KV_LENS, PART_CU_Q, PART_CU_KV, PART_TABLE, PART_K_SCALE, PART_V_SCALE, PART_FAULTS,
    PART_COUNT
};

// How a tensor lies in memory: rows [outer, head, sequence] of `dim` elements.
struct feature_view {
    int32_t dtype, layout;
    size_t offset, stride[3], extent[3], dim, reach, size; // elements, guards not counted
};

struct feature_memory {
    struct image image[PART_COUNT];
    unsigned char *before[PART_COUNT]; // the images as they were made
    struct feature_view view[PART_COUNT]; // of tensors
    clattn_attention_call call;
    int32_t num_pages, max_pages;
};

// Makes the images and the call but for its pointers. Lengths, offsets and table can be changed
// through feature_ints() then, and feature_memory_attach() gives the call its memory.
void feature_memory_images(const struct feature_case *c, const struct feature_data *d,
                           struct feature_memory *m);
void feature_memory_attach(clattn_context *ctx, const struct feature_case *c,
                           struct feature_memory *m);
void feature_memory_free(clattn_context *ctx, struct feature_memory *m);

// The numbers of PART_KV_LENS, PART_CU_Q, PART_CU_KV, PART_TABLE or PART_FAULTS in their image.
int32_t *feature_ints(struct feature_memory *m, enum feature_part part);

// Brings the outputs and faults of the device into the images.
void feature_memory_read(clattn_context *ctx, struct feature_memory *m);
// Fills the outputs with the pattern of what was never written, and faults with 0.
void feature_memory_reset(clattn_context *ctx, const struct feature_case *c,
                          struct feature_memory *m);

// O and LSE of all sequences as [batch, heads_q, len_q, dim_v]; what no sequence has is 0.
void feature_outputs(const struct feature_case *c, const struct feature_data *d,
                     const struct feature_memory *m, float *o, float *lse);

// Compares with the expectation. Guards, padding and rows of nobody must be as they were, inputs
// on the host too. Prints what is wrong.
bool feature_memory_check(const struct feature_case *c, const struct feature_data *d,
                          const struct feature_memory *m, double worst[2]);

// Whether nothing at all was written to O and LSE.
bool feature_memory_is_untouched(const struct feature_memory *m);

#endif // TESTS_FEATURE_MEMORY_H
