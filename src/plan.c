// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <string.h>

// Why this algorithm may not be used here whatever it could do; NULL if it may.
static const char *barred(const struct cla_algo *algo, const struct cla_problem *p,
                          const struct cla_caps *caps)
{
    if (p->algo != CLATTN_ALGO_AUTO)
        return algo->id == p->algo ? NULL : "";
    if (algo->by_name_only)
        return "";
    if (algo->id == CLATTN_ALGO_HOST && p->kernel != CLATTN_KERNEL_AUTO)
        return "an OpenCL kernel shape is forced";
    if (algo->id == CLATTN_ALGO_HOST && p->no_fallback && caps->type != CLA_DEVICE_BUILTIN)
        return "CLATTN_NO_FALLBACK forbids the CPU path on an OpenCL device";
    return NULL;
}

// The first thing that a problem needs and an algorithm does not serve; NULL if it serves all.
static const char *lacking(const struct cla_algo *algo, const struct cla_problem *p)
{
    const uint32_t lacks = algo->lacks & cla_problem_needs(p);
    for (int bit = 0; bit < CLA_NEEDS_COUNT; bit++)
        if (lacks >> bit & 1)
            return cla_need_name(bit);
    return NULL;
}

void cla_plan_rank(const struct cla_problem *p, const struct cla_caps *caps,
                   struct cla_ranking *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < cla_algos_count; i++) {
        const struct cla_algo *algo = cla_algos[i];
        const char *why = barred(algo, p, caps);
        if (why) {
            if (why[0])
                cla_note(&out->refusals, "%s: %s", algo->name, why);
            continue;
        }
        const char *lack = lacking(algo, p);
        if (lack) {
            cla_note(&out->refusals, "%s: it does not serve %s", algo->name, lack);
            continue;
        }
        struct cla_tile tiles[CLA_CHOICES_MAX];
        // Room for the algorithms behind this one, which bring one choice each.
        const int max = CLA_CHOICES_MAX - out->count - (cla_algos_count - 1 - i);
        const int n = algo->propose(algo, p, caps, tiles, max, &out->refusals);
        for (int k = 0; k < n; k++)
            out->choice[out->count++] = (struct cla_choice){algo, tiles[k]};
    }
}
