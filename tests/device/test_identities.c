// SPDX-License-Identifier: Apache-2.0
// What must hold whatever the numbers are, without a reference.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "run_case.h"

enum { DIM = 24, HEADS = 4, LEN_Q = 21, LEN_KV = 70 };

struct work {
    struct attn_case c;
    float *q, *k, *v, *o, *lse;
};

static size_t rows_q(const struct work *w)
{
    return (size_t)w->c.batch * (size_t)w->c.heads_q * (size_t)w->c.len_q;
}

static size_t rows_kv(const struct work *w)
{
    return (size_t)w->c.batch * (size_t)w->c.heads_kv * (size_t)w->c.len_kv;
}

// Values are multiples of 1/64 below 1, so that sums of two of them are exact.
static float *values(uint64_t *rng, size_t count)
{
    float *x = malloc((count + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t n = 0; n < count; n++)
        x[n] = (float)((int)(rng_next(rng) % 127) - 63) / 64;
    return x;
}

static struct work make(int32_t heads_kv, int32_t len_q, int32_t len_kv, bool causal)
{
    struct work w = {.c = {.dim = DIM, .batch = 2, .heads_q = HEADS, .heads_kv = heads_kv,
                           .len_q = len_q, .len_kv = len_kv, .causal = causal, .seed = 11}};
    uint64_t rng = 4242;
    w.q = values(&rng, rows_q(&w) * DIM);
    w.k = values(&rng, rows_kv(&w) * DIM);
    w.v = values(&rng, rows_kv(&w) * DIM);
    w.o = malloc(rows_q(&w) * DIM * sizeof *w.o);
    w.lse = malloc(rows_q(&w) * sizeof *w.lse);
    assert_true(w.o && w.lse);
    return w;
}

static void end(struct work *w)
{
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->o);
    free(w->lse);
}

static void run(struct test_target *t, struct work *w)
{
    clattn_plan *plan = case_plan(t, &w->c);
    fill_unwritten(w->o, rows_q(w) * DIM);
    fill_unwritten(w->lse, rows_q(w));
    const clattn_attention_call call = case_host_call(&w->c, w->q, w->k, w->v, NULL, w->o, w->lse);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
}

static void same(const char *what, const float *out, const float *ref, size_t count, double abs)
{
    const struct tolerance tol = {abs, abs, false};
    struct compare_report report;
    if (!compare(out, ref, count, &tol, &report)) {
        compare_print(what, &report);
        fail_msg("%s differs", what);
    }
}

// The weights of a row add up to 1: a constant V comes out as it is.
static void test_constant_v(void **state)
{
    for (int causal = 0; causal < 2; causal++) {
        struct work w = make(2, LEN_Q, LEN_KV, causal);
        for (size_t n = 0; n < rows_kv(&w) * DIM; n++)
            w.v[n] = 0.625f + (float)(n % DIM);
        run(*state, &w);
        for (size_t n = 0; n < rows_q(&w) * DIM; n++) {
            const double want = 0.625 + (double)(n % DIM);
            if (!(fabs(w.o[n] - want) <= 8 * FLT_EPSILON * want))
                fail_msg("O[%zu] is %.9g, not %.9g", n, (double)w.o[n], want);
        }
        end(&w);
    }
}

// The order of the keys does not count.
static void test_key_permutation(void **state)
{
    struct work a = make(2, LEN_Q, LEN_KV, false), b = make(2, LEN_Q, LEN_KV, false);
    for (size_t h = 0; h < rows_kv(&a) / LEN_KV; h++)
        for (size_t j = 0; j < LEN_KV; j++) {
            const size_t from = (h * LEN_KV + j) * DIM;
            // 33 and 70 have no factor in common, so this is a permutation.
            const size_t to = (h * LEN_KV + (j * 33 + 5) % LEN_KV) * DIM;
            memcpy(b.k + to, a.k + from, DIM * sizeof *b.k);
            memcpy(b.v + to, a.v + from, DIM * sizeof *b.v);
        }
    run(*state, &a);
    run(*state, &b);
    same("O", b.o, a.o, rows_q(&a) * DIM, 2e-6);
    same("LSE", b.lse, a.lse, rows_q(&a), 2e-6);
    end(&a);
    end(&b);
}

// One vector added to every key moves all scores of a query alike: O stays, LSE moves by it.
static void test_score_shift(void **state)
{
    for (int causal = 0; causal < 2; causal++) {
        struct work a = make(2, LEN_Q, LEN_KV, causal), b = make(2, LEN_Q, LEN_KV, causal);
        for (size_t n = 0; n < rows_kv(&b) * DIM; n++)
            b.k[n] += (float)((int)(n % DIM) - 9) / 8;
        run(*state, &a);
        run(*state, &b);
        for (size_t r = 0; r < rows_q(&a); r++) {
            double shift = 0;
            for (size_t d = 0; d < DIM; d++)
                shift += a.q[r * DIM + d] * ((double)d - 9) / 8;
            a.lse[r] += (float)(shift / sqrt(DIM));
        }
        same("O", b.o, a.o, rows_q(&a) * DIM, 4e-6);
        same("LSE", b.lse, a.lse, rows_q(&a), 4e-6);
        end(&a);
        end(&b);
    }
}

// Grouped heads are key heads said once for several query heads.
static void test_grouped_heads(void **state)
{
    for (int32_t heads_kv = 1; heads_kv < HEADS; heads_kv++) {
        if (HEADS % heads_kv)
            continue;
        struct work a = make(heads_kv, LEN_Q, LEN_KV, true), b = make(HEADS, LEN_Q, LEN_KV, true);
        const size_t block = LEN_KV * DIM, group = (size_t)(HEADS / heads_kv);
        memcpy(b.q, a.q, rows_q(&a) * DIM * sizeof *b.q);
        for (size_t h = 0; h < 2 * HEADS; h++) {
            memcpy(b.k + h * block, a.k + h / group * block, block * sizeof *b.k);
            memcpy(b.v + h * block, a.v + h / group * block, block * sizeof *b.v);
        }
        run(*state, &a);
        run(*state, &b);
        same("O", a.o, b.o, rows_q(&a) * DIM, 1e-6);
        same("LSE", a.lse, b.lse, rows_q(&a), 1e-6);
        end(&a);
        end(&b);
    }
}

// Causal attention of a prefix is the prefix of causal attention.
static void test_causal_prefix(void **state)
{
    static const int32_t prefixes[] = {1, 2, 16, 31, 33, 64};
    struct work a = make(2, LEN_KV, LEN_KV, true);
    run(*state, &a);
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        const size_t len = (size_t)prefixes[p];
        struct work b = make(2, prefixes[p], prefixes[p], true);
        for (size_t h = 0; h < 2 * HEADS; h++)
            memcpy(b.q + h * len * DIM, a.q + h * LEN_KV * DIM, len * DIM * sizeof *b.q);
        for (size_t h = 0; h < 2 * 2; h++) {
            memcpy(b.k + h * len * DIM, a.k + h * LEN_KV * DIM, len * DIM * sizeof *b.k);
            memcpy(b.v + h * len * DIM, a.v + h * LEN_KV * DIM, len * DIM * sizeof *b.v);
        }
        run(*state, &b);
        for (size_t h = 0; h < 2 * HEADS; h++) {
            same("O", b.o + h * len * DIM, a.o + h * LEN_KV * DIM, len * DIM, 2e-6);
            same("LSE", b.lse + h * len, a.lse + h * LEN_KV, len, 2e-6);
        }
        end(&b);
    }
    end(&a);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"constant V comes out", test_constant_v, LEVEL_SMALL},
        {"keys in another order", test_key_permutation, LEVEL_SMALL},
        {"scores shifted", test_score_shift, LEVEL_SMALL},
        {"grouped heads are repeated heads", test_grouped_heads, LEVEL_SMALL},
        {"causal prefix", test_causal_prefix, LEVEL_SMALL},
    };
    return targets_main("identities", argc, argv, tests, sizeof tests / sizeof *tests);
}
