// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <stdio.h>
#include <string.h>

#include "tile_check.h"

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

// ---- given and measured tiles ------------------------------------------------------------------

// The caller's tile alone, where the algorithm has something of its shape to propose at all.
static int propose_given(const struct cla_algo *algo, const struct cla_problem *p,
                         const struct cla_caps *caps, struct cla_tile *out,
                         struct cla_notes *refusals)
{
    struct cla_tile tiles[CLA_CHOICES_MAX], given;
    struct cla_problem shape = *p;
    char why[160];
    shape.kernel = p->tile.kernel;
    memset(&shape.tile, 0, sizeof shape.tile);
    if (!algo->propose(algo, &shape, caps, tiles, CLA_CHOICES_MAX, refusals))
        return 0;
    if (!cla_tile_check(p, caps, &p->tile, &given, why, sizeof why)) {
        cla_note(refusals, "%s, the given tile: %s", algo->name, why);
        return 0;
    }
    *out = given;
    snprintf(out->reason, sizeof out->reason, "given: %.150s", given.reason);
    return 1;
}

// The tile of a row as a tile of the device; false, with a note, where it cannot be had.
static bool tile_of_row(const struct cla_algo *algo, const struct cla_problem *p,
                        const struct cla_caps *caps, const struct cla_tune *tune,
                        const struct cla_tune_row *row, struct cla_tile *out,
                        struct cla_notes *refusals)
{
    struct cla_problem own = *p;
    struct cla_tile t;
    char why[160];
    own.algo = algo->id;
    const char *source = row->builtin ? "the built-in table" : tune->source;
    if (!cla_tile_check(&own, caps, &row->tile, &t, why, sizeof why)) {
        cla_note(refusals, "%s, the tile of %s: %s", algo->name, source, why);
        return false;
    }
    if (cla_tile_leaves_idle(p, caps, &t)) {
        cla_note(refusals, "%s, the tile of %s: fewer work-groups than the %d compute units",
                 algo->name, source, (int)caps->compute_units);
        return false;
    }
    *out = t;
    // The shape is cut short before the file and the ratio would be.
    snprintf(out->reason, sizeof out->reason,
             "tuned: %s, x %d.%02d of the planner's choice; %.64s", source,
             (uint16_t)(row->permille / 1000), (uint8_t)(row->permille % 1000 / 10), t.reason);
    return true;
}

// The measured tile for a problem: of the first row that it can have, up to one that says that
// nothing was faster than the planner's choice.
static bool measured_tile(const struct cla_algo *algo, const struct cla_problem *p,
                          const struct cla_caps *caps, const struct cla_tune *tune,
                          struct cla_tile *out, struct cla_notes *refusals)
{
    const struct cla_tune_row *row = cla_tune_look_up(tune, p, algo->id);
    for (; row && row->tile.kernel; row = cla_tune_next(tune, p, algo->id, row))
        if ((p->kernel == CLATTN_KERNEL_AUTO || row->tile.kernel == p->kernel) &&
            tile_of_row(algo, p, caps, tune, row, out, refusals))
            return true;
    return false;
}

// Puts `tile` in front of `n` others, and takes the same one out of them.
static int put_first(struct cla_tile *tiles, int n, const struct cla_tile *tile)
{
    const clattn_tile named = cla_tile_named(tile);
    int at = 0;
    for (; at < n; at++) {
        const clattn_tile other = cla_tile_named(&tiles[at]);
        if (cla_tile_same(&named, &other))
            break;
    }
    memmove(&tiles[1], &tiles[0], (size_t)at * sizeof *tiles);
    tiles[0] = *tile;
    return at < n ? n : n + 1;
}

static int propose(const struct cla_algo *algo, const struct cla_problem *p,
                   const struct cla_caps *caps, const struct cla_tune *tune,
                   struct cla_tile *tiles, int max, struct cla_notes *refusals)
{
    struct cla_tile measured;
    if (p->tile.kernel)
        return propose_given(algo, p, caps, tiles, refusals);
    const bool tuned = tune && cla_algo_has_tiles(algo->id) &&
                       measured_tile(algo, p, caps, tune, &measured, refusals);
    // Only a measured one takes a place from the others.
    const int n = algo->propose(algo, p, caps, tiles, tuned && max > 1 ? max - 1 : max, refusals);
    return tuned && n > 0 && n < max ? put_first(tiles, n, &measured) : n;
}

// ---- ranking -----------------------------------------------------------------------------------

void cla_plan_rank(const struct cla_problem *p, const struct cla_caps *caps,
                   struct cla_ranking *out)
{
    cla_plan_rank_tuned(p, caps, NULL, out);
}

void cla_plan_rank_tuned(const struct cla_problem *p, const struct cla_caps *caps,
                         const struct cla_tune *tune, struct cla_ranking *out)
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
        const int n = propose(algo, p, caps, tune, tiles, max, &out->refusals);
        for (int k = 0; k < n; k++)
            out->choice[out->count++] = (struct cla_choice){algo, tiles[k]};
    }
}
