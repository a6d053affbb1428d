// SPDX-License-Identifier: Apache-2.0
// The inside of a plan, shared by attention.c and attention_ocl.c.
#ifndef CLA_ATTENTION_INTERNAL_H
#define CLA_ATTENTION_INTERNAL_H

#include "plan.h"

struct clattn_plan {
    clattn_context *ctx;
    struct cla_problem problem;
    struct cla_choice choice;
    struct cla_prepared *prepared;
    struct cla_notes refusals; // of the ranking, then what failed to build or in its trial
    bool is_fallback;
    char options[1024];
    clattn_attention_desc desc; // where clattn_attention_f32() made it
};

// Prepares the first of the ranked choices that builds, fits and passes its trial; each that does
// not leaves a note in plan->refusals, behind those of the ranking. If none does: the status of the
// last one, CLATTN_ERR_UNSUPPORTED if there was none at all.
clattn_status cla_plan_prepare(clattn_plan *plan, const struct cla_ranking *ranking);

// call -> checked call, with the workspace that it needs and the one that it brings, if any.
clattn_status cla_plan_check_call(const clattn_plan *plan, const clattn_attention_call *call,
                                  struct cla_call *out);

#endif // CLA_ATTENTION_INTERNAL_H
