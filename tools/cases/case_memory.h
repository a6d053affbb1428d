// SPDX-License-Identifier: Apache-2.0
// A case in memory: tensors in the layout it asks for between guard bands, the call on them, and
// the check of all that the call wrote.
#ifndef CLATTN_CASES_MEMORY_H
#define CLATTN_CASES_MEMORY_H

#include "cases.h"
#include "clattn/clattn.h"
#include "data.h"

// Bytes before and after every tensor that must stay as they were.
enum { GUARD_BYTES = 256 };

enum case_memory_kind {
    MEMORY_HOST,  // the caller's host memory
    MEMORY_DEVICE // clattn_mem_create()
};

enum { IMG_Q, IMG_K, IMG_V, IMG_MASK, IMG_O, IMG_LSE, IMG_COUNT };

struct image {
    unsigned char *bytes; // guard, storage, guard; NULL if the case has none
    size_t size;
    clattn_buf device; // with MEMORY_DEVICE
};

struct case_memory {
    struct image image[IMG_COUNT];
    clattn_attention_call call;
    size_t mask_offset;
};

// What came out. `why` is empty where all is well, else one line for each fault.
struct case_check {
    double worst_ratio; // largest error as a part of what is tolerated
    double max_abs;     // largest error of O
    char why[1024];
};

// What a case is planned by: its description with the bounds of all cases. Cases of the same
// description have the same bytes here.
clattn_attention_desc case_desc(const struct attn_case *c);

// Makes all tensors; outputs hold UNWRITTEN_BITS. After a failure case_memory_free() is due too.
clattn_status case_memory_make(clattn_context *ctx, const struct attn_case *c,
                               const struct attn_data *d, enum case_memory_kind kind,
                               struct case_memory *m);
void case_memory_free(clattn_context *ctx, struct case_memory *m);

// Brings what the device wrote into the images.
clattn_status case_memory_read(clattn_context *ctx, struct case_memory *m);

// Fills the outputs with UNWRITTEN_BITS again.
clattn_status case_memory_reset(clattn_context *ctx, struct case_memory *m);

// Compares O and LSE with the expectation; guards and padding must be untouched. True if all is
// well, else `check->why` says what is not.
bool case_memory_check(const struct attn_case *c, const struct attn_data *d,
                       const struct case_memory *m, struct case_check *check);

// Whether the inputs, which must be on host memory, are as they were made.
bool case_inputs_untouched(clattn_context *ctx, const struct attn_case *c,
                           const struct attn_data *d, const struct case_memory *m);

#endif // CLATTN_CASES_MEMORY_H
