// SPDX-License-Identifier: Apache-2.0
// All algorithms and kernel shapes of a device on the same inputs, each held against each other.
// One causal description serves every problem, so that a target compiles one program, and that is
// one of those of test_family.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "case_memory.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "portable.h"

#define BASE .dim = 16, .batch = 2, .heads_q = 4, .heads_kv = 2, .causal = true
static const struct attn_case problems[] = {
    {.name = "ordinary", BASE, .len_q = 37, .len_kv = 70, .seed = 1},
    {.name = "one query", BASE, .len_q = 1, .len_kv = 300, .seed = 2},
    {.name = "large scores", BASE, .len_q = 33, .len_kv = 65, .input = IN_LARGE, .seed = 3},
    {.name = "equal scores", BASE, .len_q = 20, .len_kv = 130, .input = IN_EQUAL, .seed = 4},
    {.name = "queries that see nothing", BASE, .len_q = 40, .len_kv = 21, .seed = 5},
    {.name = "scores of -infinity", BASE, .len_q = 17, .len_kv = 50, .input = IN_NEG_INF,
     .seed = 6},
    {.name = "NaN that is hidden", BASE, .align = CLATTN_ALIGN_TOP_LEFT, .len_q = 30, .len_kv = 90,
     .input = IN_HIDDEN_NAN, .seed = 7},
    // These must show, in the same elements everywhere.
    {.name = "a NaN key and a NaN query", BASE, .len_q = 35, .len_kv = 70,
     .input = IN_VISIBLE_NAN, .seed = 8},
    {.name = "V that is not finite", BASE, .len_q = 35, .len_kv = 70, .input = IN_V_PARTLY_NAN,
     .seed = 9},
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

// What a target made of a problem.
struct outcome {
    struct outcome *next;
    const struct test_target *target;
    int problem;
    float *o, *lse;
};

static struct outcome *outcomes;
static struct attn_data inputs[PROBLEMS];

static size_t rows_of(const struct attn_case *c)
{
    return (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
}

static struct outcome *compute(struct test_target *t, int n)
{
    const struct attn_case *c = &problems[n];
    const struct attn_data *d = &inputs[n];
    const size_t rows = rows_of(c), count = rows * (size_t)c->dim;
    struct outcome *out = calloc(1, sizeof *out);
    assert_non_null(out);
    out->target = t;
    out->problem = n;
    out->o = malloc(count * sizeof *out->o);
    out->lse = malloc(rows * sizeof *out->lse);
    assert_true(out->o && out->lse);
    fill_unwritten(out->o, count);
    fill_unwritten(out->lse, rows);
    const clattn_attention_call call = case_host_call(c, d->q, d->k, d->v, NULL, out->o, out->lse);
    clattn_attention_desc desc = case_desc(c);
    desc.features |= CLATTN_FEATURE_LSE;
    desc.max_len_q = desc.max_len_kv = 0; // as there: a bound makes another program
    desc.num_splits = t->algo == CLATTN_ALGO_SPLIT_KV ? 3 : 0; // such lengths would not be cut
    clattn_plan *plan = target_plan(t, desc);
    const clattn_status st = clattn_attention_run(plan, &call);
    clattn_plan_destroy(&plan);
    if (st != CLATTN_OK)
        fail_msg("%s: %s", c->name, clattn_status_string(st));
    return out;
}

// Each may be off by its tolerance, two of them by twice that, and not finite in the same elements.
static void assert_agree(const struct outcome *a, const struct outcome *b)
{
    const struct attn_case *c = &problems[a->problem];
    const struct attn_data *d = &inputs[a->problem];
    struct tolerance tol_o = d->tol_o, tol_lse = d->tol_lse;
    struct compare_report o, lse;
    tol_o.abs *= 2;
    tol_lse.abs *= 2;
    const bool good = compare(a->o, b->o, rows_of(c) * (size_t)c->dim, &tol_o, &o);
    if (compare(a->lse, b->lse, rows_of(c), &tol_lse, &lse) && good)
        return;
    compare_print("O", &o);
    compare_print("LSE", &lse);
    fail_msg("%s: %s and %s differ", c->name, a->target->name, b->target->name);
}

static size_t not_finite(const float *x, size_t count)
{
    size_t n = 0;
    for (size_t m = 0; m < count; m++)
        n += !isfinite(x[m]);
    return n;
}

static void test_agreement(void **state)
{
    struct test_target *t = *state;
    int pairs = 0;
    for (int n = 0; n < PROBLEMS; n++) {
        const struct attn_case *c = &problems[n];
        if (!inputs[n].q)
            assert_true(attn_data_make(c, &inputs[n]));
        struct outcome *mine = compute(t, n);
        const bool shows = c->input == IN_VISIBLE_NAN || c->input == IN_V_PARTLY_NAN;
        const size_t count = rows_of(c) * (size_t)c->dim, bad = not_finite(mine->o, count);
        if (shows ? bad == 0 || bad == count : bad > 0)
            fail_msg("%s: %zu of %zu elements of O are not finite", c->name, bad, count);
        for (const struct outcome *other = outcomes; other; other = other->next)
            if (other->target->device == t->device && other->problem == n) {
                assert_agree(mine, other);
                pairs++;
            }
        mine->next = outcomes;
        outcomes = mine;
    }
    printf("    %d problems, each against %d other results\n", PROBLEMS, pairs / PROBLEMS);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"agrees with all others", test_agreement, LEVEL_SMALL},
    };
    setenv("CLATTN_TEST_ALGOS", "fused,host,reference,two_loop,fused_kv_outer,split_kv,unfused", 0);
    targets_with_subgroups = true;
    const int status = targets_main("agreement", argc, argv, tests, sizeof tests / sizeof *tests);
    for (struct outcome *out = outcomes, *next; out; out = next) {
        next = out->next;
        free(out->o);
        free(out->lse);
        free(out);
    }
    for (int n = 0; n < PROBLEMS; n++)
        attn_data_free(&inputs[n]);
    return status;
}
