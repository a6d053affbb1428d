// SPDX-License-Identifier: Apache-2.0
#include "run_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "workspace.h"

// ---- plans --------------------------------------------------------------------------------------

struct kept_plan {
    struct kept_plan *next;
    clattn_attention_desc desc;
    clattn_plan *plan;
};

clattn_plan *case_plan(struct test_target *t, const struct attn_case *c)
{
    const clattn_attention_desc desc = case_desc(c);
    for (struct kept_plan *p = t->plans; p; p = p->next)
        if (memcmp(&p->desc, &desc, sizeof desc) == 0)
            return p->plan;
    struct kept_plan *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->plan = target_plan(t, desc);
    p->desc = desc;
    p->next = t->plans;
    t->plans = p;
    return p->plan;
}

void target_plans_close(struct test_target *t)
{
    for (struct kept_plan *p = t->plans, *next; p; p = next) {
        next = p->next;
        clattn_plan_destroy(&p->plan);
        free(p);
    }
    t->plans = NULL;
}

// ---- one case -----------------------------------------------------------------------------------

static bool same_bits_again(const struct test_target *t, const clattn_plan *plan,
                            struct case_memory *mem)
{
    bool same = true;
    unsigned char *first[2];
    for (int n = 0; n < 2; n++) {
        const struct image *m = &mem->image[IMG_O + n];
        first[n] = malloc(m->size + 1);
        assert_non_null(first[n]);
        if (m->bytes)
            memcpy(first[n], m->bytes, m->size);
    }
    assert_int_equal(case_memory_reset(t->device->ctx, mem), CLATTN_OK);
    const clattn_status st = clattn_attention_run(plan, &mem->call);
    assert_int_equal(case_memory_read(t->device->ctx, mem), CLATTN_OK);
    for (int n = 0; n < 2; n++) {
        const struct image *m = &mem->image[IMG_O + n];
        same = same && (!m->bytes || memcmp(first[n], m->bytes, m->size) == 0);
        free(first[n]);
    }
    if (st != CLATTN_OK || !same)
        printf("    the same call again: %s\n", st ? clattn_status_string(st) : "other bits");
    return st == CLATTN_OK && same;
}

bool run_case(struct test_target *t, const struct attn_case *c, const struct attn_data *d,
              enum case_memory_kind where, bool twice, double *worst)
{
    clattn_context *ctx = t->device->ctx;
    clattn_plan *plan = case_plan(t, c);
    struct case_memory mem;
    struct workspace space;
    assert_int_equal(case_memory_make(ctx, c, d, where, &mem), CLATTN_OK);
    workspace_make(ctx, plan, &mem.call, &space);
    const clattn_status st = clattn_attention_run(plan, &mem.call);
    bool ok = st == CLATTN_OK;
    if (ok) {
        struct case_check check;
        assert_int_equal(case_memory_read(ctx, &mem), CLATTN_OK);
        ok = case_memory_check(c, d, &mem, &check);
        if (!ok)
            printf("    %s\n", check.why);
        if (worst && check.worst_ratio > *worst)
            *worst = check.worst_ratio;
        if (where == MEMORY_HOST && !case_inputs_untouched(ctx, c, d, &mem)) {
            printf("    an input was changed\n");
            ok = false;
        }
        if (twice)
            ok = same_bits_again(t, plan, &mem) && ok;
    }
    if (!workspace_close(ctx, &space, NULL)) {
        printf("    the workspace was written outside\n");
        ok = false;
    }
    if (!ok)
        printf("  FAILED %s on %s (%s memory): batch %d, heads %d/%d, len %d x %d, dim %d, seed "
               "%llu: %s\n",
               c->name, t->name, where == MEMORY_HOST ? "host" : "device", c->batch, c->heads_q,
               c->heads_kv, c->len_q, c->len_kv, c->dim, (unsigned long long)c->seed,
               clattn_status_string(st));
    case_memory_free(ctx, &mem);
    return ok;
}
