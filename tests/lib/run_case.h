// SPDX-License-Identifier: Apache-2.0
// Runs one case on one target and checks all that it wrote.
#ifndef TESTS_RUN_CASE_H
#define TESTS_RUN_CASE_H

#include <stdbool.h>

#include "case_memory.h"
#include "cases.h"
#include "data.h"
#include "open_device.h"

// Runs the case; `twice` runs it again and wants the same bits. Outputs start as NaN between guard
// bands; guards, padding and (on host memory) inputs must stay as they were. Prints what is wrong
// and returns false. `worst` (may be NULL) is raised to the largest error as a part of what is
// tolerated.
bool run_case(struct test_target *t, const struct attn_case *c, const struct attn_data *d,
              enum case_memory_kind memory, bool twice, double *worst);

// The plan for a case, made once for each target.
clattn_plan *case_plan(struct test_target *t, const struct attn_case *c);
void target_plans_close(struct test_target *t);

#endif // TESTS_RUN_CASE_H
