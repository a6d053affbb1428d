// SPDX-License-Identifier: Apache-2.0
// Runs a feature case on a target and checks all that it wrote.
#ifndef TESTS_RUN_FEATURE_H
#define TESTS_RUN_FEATURE_H

#include "feature_memory.h"
#include "open_device.h"

// A plan of the case on the target: NULL, with a line that says why, where it cannot be made, is of
// another algorithm or kernel, or came with a warning. Callers destroy it.
clattn_plan *feature_plan(const struct test_target *t, const struct feature_case *c);

// Runs the case, twice but in the small selection, and wants the same bits; compares with the
// expectation. Prints what is wrong
// with all that is needed to run it again. `worst` (may be NULL) is raised to the largest error of
// O and of LSE as a part of what is tolerated.
bool run_feature(const struct test_target *t, const struct feature_case *c, double worst[2]);

// The same on data of the caller's. O and LSE (both may be NULL) receive [batch, heads_q, len_q,
// dim_v] and [batch, heads_q, len_q].
bool run_feature_on(const struct test_target *t, const struct feature_case *c,
                    const struct feature_data *d, double worst[2], float *o, float *lse);

// The same by a plan of the caller's, and without a word about the case where it fails.
bool run_feature_plan(const struct test_target *t, const struct feature_case *c,
                      const struct feature_data *d, const clattn_plan *plan, double worst[2],
                      float *o, float *lse);

// Whether a target's algorithm serves the case.
bool target_serves(const struct test_target *t, const struct feature_case *c);

#endif // TESTS_RUN_FEATURE_H
