// SPDX-License-Identifier: Apache-2.0
// The CPU path in a program that has its processor round elsewhere than to the nearest, or trap:
// the same bits as else, no signal, and the mode is as it was afterwards.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // feenableexcept()
#endif

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/clattn.h"

enum { HEADS = 4, LEN_Q = 50, LEN_KV = 700, DIM = 64, ROWS = 40, LEN = 6000 };

static float q[HEADS * LEN_Q * DIM], k[HEADS * LEN_KV * DIM], v[HEADS * LEN_KV * DIM];
static float x[ROWS * LEN];

// What is computed, to be compared as bytes.
static struct results {
    float o[2][HEADS * LEN_Q * DIM], lse[2][HEADS * LEN_Q], few[HEADS * DIM], y[3][ROWS * LEN];
    float scale[ROWS], cos_table[64], sin_table[64], rotated[HEADS * LEN_Q * DIM];
    int8_t i8[ROWS * LEN];
} expected, got;

static void attention(clattn_context *ctx, int32_t algo, int32_t len_q, float *o, float *lse)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.algo = algo;
    desc.features = CLATTN_FEATURE_CAUSAL | (lse ? CLATTN_FEATURE_LSE : 0);
    clattn_plan *plan;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.set = CLATTN_SET_SCALE;
    call.scale = 0.125f;
    call.batch = 1;
    call.len_q = len_q;
    call.len_kv = LEN_KV;
    call.q.buf = clattn_host_buf(q, 0);
    call.k.buf = clattn_host_buf(k, 0);
    call.v.buf = clattn_host_buf(v, 0);
    call.o.buf = clattn_host_buf(o, 0);
    call.lse = clattn_host_buf(lse, 0);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    clattn_plan_destroy(&plan);
}

static void compute(clattn_context *ctx, struct results *r)
{
    memset(r, 0x55, sizeof *r);
    attention(ctx, CLATTN_ALGO_HOST, LEN_Q, r->o[0], r->lse[0]);
    attention(ctx, CLATTN_ALGO_REFERENCE, LEN_Q, r->o[1], r->lse[1]);
    attention(ctx, CLATTN_ALGO_HOST, 1, r->few, NULL);
    for (int algo = 0; algo < 3; algo++)
        assert_int_equal(clattn_softmax_f32(ctx, algo + 1, x, r->y[algo], ROWS, LEN), CLATTN_OK);
    assert_int_equal(clattn_quantize_i8(ctx, x, ROWS, LEN, 0, r->i8, r->scale), CLATTN_OK);
    assert_int_equal(clattn_rotary_tables(2, 64, 0, r->cos_table, r->sin_table), CLATTN_OK);

    clattn_rotary_call call;
    clattn_rotary_call_init(&call, sizeof call);
    call.batch = 1;
    call.heads = 1;
    call.len = 2;
    call.dim = DIM;
    call.rotary.dim = DIM;
    call.rotary.positions = 2;
    call.rotary.cos_table = clattn_host_buf(r->cos_table, 0);
    call.rotary.sin_table = clattn_host_buf(r->sin_table, 0);
    call.x.buf = clattn_host_buf(q, 0);
    call.y.buf = clattn_host_buf(r->rotated, 0);
    assert_int_equal(clattn_rotary_run(ctx, &call), CLATTN_OK);
}

// Threads of OpenMP begin in the mode of who asks for them first, so the first pass is in one that
// is not usual, and the one that is expected comes last.
static void rounding(void **state)
{
    clattn_context *ctx = *state;
    static const int modes[] = {FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    static struct results all[3];
    for (int m = 0; m < 3; m++) {
        assert_int_equal(fesetround(modes[m]), 0);
        compute(ctx, &all[m]);
        const int after = fegetround();
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        assert_int_equal(after, modes[m]);
    }
    compute(ctx, &expected);
    for (int m = 0; m < 3; m++)
        assert_memory_equal(&all[m], &expected, sizeof expected);
}

static void traps(void **state)
{
#if defined(__GLIBC__) && defined(__SSE__)
    clattn_context *ctx = *state;
    const int traps = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_UNDERFLOW;
    q[3] = k[5 * DIM + 1] = NAN;
    k[9 * DIM] = INFINITY;
    v[77] = -INFINITY;
    k[LEN_KV * DIM + 8] = 3e38f; // overflows
    compute(ctx, &expected);
    feclearexcept(FE_ALL_EXCEPT);
    assert_int_not_equal(feenableexcept(traps), -1);
    compute(ctx, &got);
    const int flags = fetestexcept(traps), after = fegetexcept();
    fedisableexcept(FE_ALL_EXCEPT);
    assert_int_equal(flags, 0);
    assert_int_equal(after, traps);
    assert_memory_equal(&got, &expected, sizeof expected);
#else
    (void)state;
    skip();
#endif
}

static int make(void **state)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "cpu";
    desc.threads = 2;
    unsigned seed = 1;
    float *const all[] = {q, k, v, x};
    const size_t sizes[] = {sizeof q, sizeof k, sizeof v, sizeof x};
    for (int i = 0; i < 4; i++)
        for (size_t n = 0; n < sizes[i] / sizeof(float); n++) {
            seed = seed * 1664525u + 1013904223u;
            all[i][n] = (float)(seed >> 8) / (1 << 21) - 4.0f;
        }
    return clattn_context_create(&desc, (clattn_context **)state);
}

static int drop(void **state)
{
    clattn_context_destroy((clattn_context **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding),
        cmocka_unit_test(traps),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
