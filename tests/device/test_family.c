// SPDX-License-Identifier: Apache-2.0
// The family of tiled algorithms side by side: they agree after every tile of keys, and take rows
// on which an online maximum and sum go wrong easily.
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
#include "portable.h"

enum { DIM = 16 };

static bool has_tiles(const struct test_target *t)
{
    return t->algo != CLATTN_ALGO_HOST && t->algo != CLATTN_ALGO_REFERENCE;
}

// Lengths have no bound, so every test of a kind of mask shares one program.
static clattn_plan *plan_for(const struct test_target *t, int32_t algo, int32_t heads_q,
                             uint32_t features, int32_t align)
{
    struct test_target copy = *t;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = heads_q;
    desc.heads_kv = 1;
    desc.features = features | CLATTN_FEATURE_LSE;
    desc.align = align;
    // Such lengths would not be cut.
    desc.num_splits = algo == CLATTN_ALGO_SPLIT_KV ? 3 : 0;
    copy.algo = algo;
    return target_plan(&copy, desc);
}

static float *numbers(size_t count)
{
    float *x = malloc((count + 1) * sizeof *x);
    assert_non_null(x);
    return x;
}

// ---- every prefix of key tiles -----------------------------------------------------------------

struct output {
    float *o, *lse;
    size_t rows;
};

static struct output make_output(size_t rows)
{
    return (struct output){numbers(rows * DIM), numbers(rows), rows};
}

static void free_output(struct output *out)
{
    free(out->o);
    free(out->lse);
}

// Runs a call into `out`, which ends with an element that must stay.
static void run_into(const clattn_plan *plan, clattn_attention_call call, struct output *out)
{
    fill_unwritten(out->o, out->rows * DIM + 1);
    fill_unwritten(out->lse, out->rows + 1);
    call.o.buf = clattn_host_buf(out->o, 0);
    call.lse = clattn_host_buf(out->lse, 0);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    assert_int_equal(float_bits(out->o[out->rows * DIM]), UNWRITTEN_BITS);
    assert_int_equal(float_bits(out->lse[out->rows]), UNWRITTEN_BITS);
}

static bool same(const char *what, int32_t keys, const struct output *got,
                 const struct output *want, const struct tolerance *tol_o,
                 const struct tolerance *tol_lse)
{
    struct compare_report o, lse;
    const bool ok = compare(got->o, want->o, got->rows * DIM, tol_o, &o);
    if (compare(got->lse, want->lse, got->rows, tol_lse, &lse) && ok)
        return true;
    printf("  %s, %d keys:\n", what, keys);
    compare_print("O", &o);
    compare_print("LSE", &lse);
    return false;
}

// What an algorithm has after n tiles of keys is its output for so many keys: that of fused, and
// the reference's.
static void run_prefixes(struct test_target *t, bool causal)
{
    enum { HEADS = 2, TILES = 5 };
    const uint32_t features = causal ? CLATTN_FEATURE_CAUSAL : 0;
    const int32_t align = causal ? CLATTN_ALIGN_TOP_LEFT : CLATTN_ALIGN_BOTTOM_RIGHT;
    clattn_plan *plan = plan_for(t, t->algo, HEADS, features, align), *fused = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    if (has_tiles(t) && t->algo != CLATTN_ALGO_FUSED)
        fused = plan_for(t, CLATTN_ALGO_FUSED, HEADS, features, align);
    const int32_t tile = has_tiles(t) ? info.tile_k : 32;
    struct attn_case c = {.dim = DIM, .batch = 1, .heads_q = HEADS, .heads_kv = 1,
                          .len_q = causal ? 2 * tile + 5 : 45, .len_kv = TILES * tile,
                          .causal = causal, .align = align, .input = IN_LARGE, .seed = 31};
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    const size_t rows = (size_t)HEADS * (size_t)c.len_q;
    struct output got = make_output(rows), other = make_output(rows), want = make_output(rows);
    int failed = 0;
    for (int n = 1; n <= TILES; n++) {
        c.len_kv = n * tile; // of one batch and key head: the first rows of K and V
        const clattn_attention_call call = case_host_call(&c, d.q, d.k, d.v, NULL, NULL, NULL);
        assert_true(attn_expect(&c, d.q, d.k, d.v, NULL, want.o, want.lse));
        run_into(plan, call, &got);
        failed += !same("against the reference", c.len_kv, &got, &want, &d.tol_o, &d.tol_lse);
        if (fused) {
            run_into(fused, call, &other);
            failed += !same("against fused", c.len_kv, &got, &other, &d.tol_o, &d.tol_lse);
        }
    }
    free_output(&got);
    free_output(&other);
    free_output(&want);
    attn_data_free(&d);
    clattn_plan_destroy(&fused);
    clattn_plan_destroy(&plan);
    assert_int_equal(failed, 0);
}

static void test_prefixes(void **state)
{
    run_prefixes(*state, false);
}

static void test_prefixes_causal(void **state)
{
    run_prefixes(*state, true);
}

// ---- hard rows ---------------------------------------------------------------------------------

// Scores of a row by the place of the key. Row i has Q = 1, 1/2 or 2 in the channel of its kind and
// 0 elsewhere, so its scores are channel `kind` of K times that, without rounding.
static double hard_score(int kind, int32_t j, int32_t keys, double normal)
{
    switch (kind) {
    case 0: return 0.5 * j;                     // rises: every key rescales
    case 1: return 64.0 * j;                    // rises: every key outweighs all before
    case 2: return j * (1.0 / 1024);            // rises slowly
    case 3: return -0.5 * j;                    // falls
    case 4: return -(double)j * (1.0 / 1024);   // falls slowly
    case 5: return 3.25;                        // all equal
    case 6: return j == keys - 1 ? 1e5 : normal; // one huge outlier last
    case 7: return j == keys - 1 ? 16.0 : normal; // an outlier last that the rest still counts by
    case 8: return j == 0 ? 1e5 : normal;       // the outlier first
    case 9: return j % 2 ? 1e4 : -1e4;          // alternates
    case 10: return 1e4 + normal;               // far from 0
    case 11: return -1e4 + normal;
    case 12: return floor(j / 32.0);            // a step up with each tile
    case 13: return -3e38;                      // not hidden: equal weights
    default: return 4.0 * normal;
    }
}

struct hard {
    struct attn_case c;
    float *q, *k, *v;
    double v_max;
};

static struct hard make_hard(int32_t len_q, int32_t keys)
{
    struct hard h = {.c = {.dim = DIM, .batch = 1, .heads_q = 1, .heads_kv = 1, .len_q = len_q,
                           .len_kv = keys, .has_scale = true, .scale = 1}};
    const size_t n_q = (size_t)len_q * DIM, n_k = (size_t)keys * DIM;
    uint64_t rng = 77;
    h.q = numbers(n_q);
    h.k = numbers(n_k);
    h.v = numbers(n_k);
    for (size_t n = 0; n < n_q; n++) {
        static const float factor[] = {1, 0.5f, 2};
        const size_t i = n / DIM;
        h.q[n] = n % DIM == i % DIM ? factor[i % DIM == 13 ? 0 : i / DIM % 3] : 0.0f;
    }
    for (size_t n = 0; n < n_k; n++) {
        const int32_t j = (int32_t)(n / DIM);
        const int d = (int)(n % DIM);
        h.k[n] = (float)hard_score(d, j, keys, (double)rng_normal(&rng));
        // Even channels drift a little from one end to the other, odd ones have no mean.
        h.v[n] = d % 2 ? rng_normal(&rng) : 0.7f + 1e-3f * (float)j / (float)keys;
        h.v_max = fmax(h.v_max, fabs((double)h.v[n]));
    }
    return h;
}

static void free_hard(struct hard *h)
{
    free(h->q);
    free(h->k);
    free(h->v);
}

// `error` is what is tolerated of O as a part of the largest V, and of the LSE.
static void run_hard(struct test_target *t, struct hard *h, const uint8_t *mask, double error)
{
    const struct tolerance tol_o = {error * h->v_max, 0, false};
    const struct tolerance tol_lse = {error, 4 * FLT_EPSILON, false};
    clattn_plan *plan = plan_for(t, t->algo, 1, mask ? CLATTN_FEATURE_MASK : 0, 0);
    clattn_attention_call call = case_host_call(&h->c, h->q, h->k, h->v, mask, NULL, NULL);
    struct output got = make_output((size_t)h->c.len_q), want = make_output((size_t)h->c.len_q);
    assert_true(attn_expect(&h->c, h->q, h->k, h->v, mask, want.o, want.lse));
    run_into(plan, call, &got);
    const bool ok = same("hard rows", h->c.len_kv, &got, &want, &tol_o, &tol_lse);
    free_output(&got);
    free_output(&want);
    clattn_plan_destroy(&plan);
    assert_true(ok);
}

enum { HARD_LEN_Q = 3 * DIM, HARD_KEYS = 301 };

static void test_hard_rows(void **state)
{
    struct hard h = make_hard(HARD_LEN_Q, HARD_KEYS);
    run_hard(*state, &h, NULL, 2e-6);
    free_hard(&h);
}

// Row i does not see its first (i * 7) keys, the last rows none: runs of -infinity from the start
// that end within, at and behind tiles.
static void test_hidden_start(void **state)
{
    struct hard h = make_hard(HARD_LEN_Q, HARD_KEYS);
    uint8_t *mask = malloc((size_t)HARD_LEN_Q * HARD_KEYS);
    assert_non_null(mask);
    for (int i = 0; i < HARD_LEN_Q; i++)
        for (int j = 0; j < HARD_KEYS; j++)
            mask[i * HARD_KEYS + j] = j >= i * 7;
    run_hard(*state, &h, mask, 2e-6);
    free(mask);
    free_hard(&h);
}

// So long that a plain running sum, or an output that is divided after each tile, loses digits.
static void test_hard_long_rows(void **state)
{
    struct hard h = make_hard(DIM, 1000000);
    run_hard(*state, &h, NULL, 8e-6);
    free_hard(&h);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"every prefix of key tiles", test_prefixes, LEVEL_SMALL},
        {"every prefix of key tiles, causal", test_prefixes_causal, LEVEL_MEDIUM},
        {"hard rows", test_hard_rows, LEVEL_MEDIUM},
        {"hard rows that begin hidden", test_hidden_start, LEVEL_MEDIUM},
        {"hard rows of a million keys", test_hard_long_rows, LEVEL_FULL},
    };
    setenv("CLATTN_TEST_ALGOS", "fused,two_loop,fused_kv_outer,split_kv", 0);
    targets_with_subgroups = true;
    return targets_main("family", argc, argv, tests, sizeof tests / sizeof *tests);
}
