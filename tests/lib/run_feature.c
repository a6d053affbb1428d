// SPDX-License-Identifier: Apache-2.0
#include "run_feature.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bound.h"
#include "workspace.h"

bool target_serves(const struct test_target *t, const struct feature_case *c)
{
    return (feature_needs(c) & algo_lacks(t->algo)) == 0;
}

clattn_plan *feature_plan(const struct test_target *t, const struct feature_case *c)
{
    clattn_attention_desc desc = feature_desc(c);
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    desc.flags |= CLATTN_NO_FALLBACK;
    if (t->algo == CLATTN_ALGO_SPLIT_KV) {
        desc.num_splits = c->num_splits;
        // Few queries have kernels of their own there.
        desc.max_len_q = c->len_q == 1 ? 1 : desc.max_len_q;
    }
    clattn_plan *plan = NULL;
    const int warnings = t->device->warnings;
    const clattn_status st = clattn_attention_plan_create(t->device->ctx, &desc, &plan);
    clattn_plan_info info = {.struct_size = sizeof info};
    if (st == CLATTN_OK)
        assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    if (st == CLATTN_OK && info.algo == t->algo && info.kernel == t->kernel && !info.is_fallback &&
        t->device->warnings == warnings)
        return plan;
    printf("    %s, algorithm %s, kernel %s, %s\n",
           st ? "no plan" : "a plan on a fallback or with warnings", info.algo_name,
           info.kernel_name, clattn_status_string(st));
    clattn_plan_destroy(&plan);
    return NULL;
}

// The outputs of a second call, which must have the bits of the first.
static bool same_bits_again(const struct test_target *t, const struct feature_case *c,
                            const clattn_plan *plan, struct feature_memory *m)
{
    bool same = true;
    unsigned char *first[2] = {NULL, NULL};
    for (int n = 0; n < 2; n++) {
        const struct image *i = &m->image[PART_O + n];
        first[n] = malloc(i->size + 1);
        assert_non_null(first[n]);
        if (i->bytes)
            memcpy(first[n], i->bytes, i->size);
    }
    feature_memory_reset(t->device->ctx, c, m);
    const clattn_status st = clattn_attention_run(plan, &m->call);
    feature_memory_read(t->device->ctx, m);
    for (int n = 0; n < 2; n++) {
        const struct image *i = &m->image[PART_O + n];
        same = same && (!i->bytes || memcmp(first[n], i->bytes, i->size) == 0);
        free(first[n]);
    }
    if (st != CLATTN_OK || !same)
        printf("    the same call again: %s\n", st ? clattn_status_string(st) : "other bits");
    return st == CLATTN_OK && same;
}

// By the bounds of the target's arithmetic.
static bool check_bounds(const struct test_target *t, const struct feature_case *c,
                         const struct feature_data *d, const struct feature_memory *m,
                         double worst[2])
{
    const size_t count = (size_t)(c->batch * c->heads_q) * (size_t)(c->len_q * c->dim_v);
    const bool running = t->algo == CLATTN_ALGO_FUSED_KV_OUTER;
    struct feature_data own = *d;
    if (t->algo == CLATTN_ALGO_REFERENCE)
        own.unit *= BOUND_DOUBLE / BOUND_FLOAT;
    own.bound_o = malloc((count + 1) * sizeof *own.bound_o);
    assert_non_null(own.bound_o);
    for (size_t n = 0; n < count; n++)
        own.bound_o[n] = d->bound_o[n] + (running ? d->running_o[n] : 0);
    const bool ok = feature_memory_check(c, &own, m, worst);
    free(own.bound_o);
    return ok;
}

bool run_feature_plan(const struct test_target *t, const struct feature_case *c,
                      const struct feature_data *d, const clattn_plan *plan, double worst[2],
                      float *o, float *lse)
{
    struct feature_memory m;
    struct workspace space;
    clattn_context *ctx = t->device->ctx;
    feature_memory_images(c, d, &m);
    feature_memory_attach(ctx, c, &m);
    workspace_make(ctx, plan, &m.call, &space);
    const clattn_status st = clattn_attention_run(plan, &m.call);
    bool ok = st == CLATTN_OK;
    if (ok) {
        feature_memory_read(ctx, &m);
        ok = check_bounds(t, c, d, &m, worst);
        if (m.image[PART_FAULTS].bytes && *feature_ints(&m, PART_FAULTS) != 0) {
            printf("    faults of a good call: %d\n", *feature_ints(&m, PART_FAULTS));
            ok = false;
        }
        if (o || lse)
            feature_outputs(c, d, &m, o, lse);
        if (t->level > LEVEL_SMALL)
            ok = same_bits_again(t, c, plan, &m) && ok;
    } else {
        printf("    the call: %s\n", clattn_status_string(st));
    }
    if (!workspace_close(ctx, &space, NULL)) {
        printf("    the workspace was written outside\n");
        ok = false;
    }
    feature_memory_free(ctx, &m);
    return ok;
}

bool run_feature_on(const struct test_target *t, const struct feature_case *c,
                    const struct feature_data *d, double worst[2], float *o, float *lse)
{
    clattn_plan *plan = feature_plan(t, c);
    const bool ok = plan && run_feature_plan(t, c, d, plan, worst, o, lse);
    if (!ok) {
        char text[600];
        feature_text(c, text, sizeof text);
        printf("  FAILED on %s: %s\n", t->name, text);
    }
    clattn_plan_destroy(&plan);
    return ok;
}

bool run_feature(const struct test_target *t, const struct feature_case *c, double worst[2])
{
    struct feature_data d;
    feature_data_make(c, &d);
    const bool ok = run_feature_on(t, c, &d, worst, NULL, NULL);
    feature_data_free(&d);
    return ok;
}
