// SPDX-License-Identifier: Apache-2.0
// Descriptions of attention from bytes, most of them legal or nearly so.
#ifndef TESTS_FUZZ_DESCRIPTION_H
#define TESTS_FUZZ_DESCRIPTION_H

#include "clattn/clattn.h"
#include "fuzz.h"

// `tiny`: heads and dimensions that the CPU path computes in no time.
void take_description(struct bytes *b, bool tiny, clattn_attention_desc *desc);

#endif // TESTS_FUZZ_DESCRIPTION_H
