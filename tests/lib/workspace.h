// SPDX-License-Identifier: Apache-2.0
// A workspace that a test brings to a call: NaN between guard bands, so that a kernel that reads
// what none has written gives NaN, and one that writes past the end is seen.
#ifndef CLATTN_TESTS_WORKSPACE_H
#define CLATTN_TESTS_WORKSPACE_H

#include <stdbool.h>
#include <stddef.h>

#include "clattn/clattn.h"

struct workspace {
    float *floats;
    size_t bytes; // guards included; 0: the call needs none
    size_t rear;  // floats of the guard behind it
    clattn_buf buf;
};

/// Gives `call` of this plan the workspace that it needs, CLATTN_BUF_ABSENT where it needs none.
void workspace_make(clattn_context *ctx, const clattn_plan *plan, clattn_attention_call *call,
                    struct workspace *w);

/// Both guards are as they were. `used`, unless NULL: something was written. Frees the workspace.
bool workspace_close(clattn_context *ctx, struct workspace *w, bool *used);

#endif
