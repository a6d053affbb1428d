// SPDX-License-Identifier: Apache-2.0
// Ranks what could serve a problem on a device. Pure: no OpenCL call, no allocation.
#ifndef CLA_PLAN_H
#define CLA_PLAN_H

#include "algo/algo.h"
#include "tune.h"

enum { CLA_CHOICES_MAX = 24 };

struct cla_choice {
    const struct cla_algo *algo;
    struct cla_tile tile;
};

struct cla_ranking {
    int count; // best first
    struct cla_choice choice[CLA_CHOICES_MAX];
    struct cla_notes refusals;
};

// With algo auto: what split_kv is better at, every fused tile, then the CPU path (not where a
// fallback is forbidden on an OpenCL device). A forced algorithm gives its own choices only, a
// forced tile itself. count may be 0; then the refusals say why.
void cla_plan_rank(const struct cla_problem *p, const struct cla_caps *caps,
                   struct cla_ranking *out);

// The same with what was measured (NULL = nothing): a tile of it comes before those of its
// algorithm, if the device and the problem can have it. `tune` has the rows of this device.
void cla_plan_rank_tuned(const struct cla_problem *p, const struct cla_caps *caps,
                         const struct cla_tune *tune, struct cla_ranking *out);

#endif // CLA_PLAN_H
