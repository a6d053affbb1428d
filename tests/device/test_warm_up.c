// SPDX-License-Identifier: Apache-2.0
// Warming a plan up, for every feature that a call can bring; and that nothing is compiled behind
// plan creation, whatever the lengths.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "open_device.h"

static clattn_attention_desc desc_of(uint32_t features)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.dim_qk = 24;
    d.heads_q = 4;
    d.heads_kv = 2;
    d.features = features;
    d.page_size = features & CLATTN_FEATURE_PAGED ? 16 : 0;
    return d;
}

static void check(const struct test_target *t, clattn_attention_desc d)
{
    clattn_plan *plan = target_plan(t, d);
    assert_int_equal(clattn_plan_warm_up(plan, 2, 3, 40), CLATTN_OK);
    assert_int_equal(clattn_plan_warm_up(plan, 1, 70, 1), CLATTN_OK);
    assert_int_equal(clattn_plan_warm_up(plan, 0, 3, 40), CLATTN_OK);
    assert_int_equal(clattn_plan_warm_up(plan, 2, 0, 40), CLATTN_OK);
    assert_int_equal(clattn_plan_warm_up(plan, 2, 3, 0), CLATTN_OK);
    assert_int_equal(clattn_plan_warm_up(plan, 2, -3, 40), CLATTN_ERR_INVALID_ARGUMENT);
    clattn_plan_destroy(&plan);
}

static void test_features(void **state)
{
    const struct test_target *t = *state;
    const uint32_t scores = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE |
                            CLATTN_FEATURE_WINDOW | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI |
                            CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_SINKS | CLATTN_FEATURE_KV_LENS;
    check(t, desc_of(scores));
    if (t->algo == CLATTN_ALGO_TWO_LOOP || t->algo == CLATTN_ALGO_FUSED_KV_OUTER)
        return;
    check(t, desc_of(scores | CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV));
    clattn_attention_desc d = desc_of(scores | CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PAGED);
    d.dtype_kv = CLATTN_DTYPE_I8;
    check(t, d);
}

static void test_bounds(void **state)
{
    const struct test_target *t = *state;
    clattn_attention_desc d = desc_of(0);
    d.max_len_kv = 50;
    clattn_plan *plan = target_plan(t, d);
    assert_int_equal(clattn_plan_warm_up(plan, 1, 1, 51), CLATTN_ERR_OVER_BOUND);
    assert_int_equal(clattn_plan_warm_up(plan, INT32_MAX, INT32_MAX, 50), CLATTN_ERR_OUT_OF_MEMORY);
    clattn_plan_destroy(&plan);
    assert_int_equal(clattn_plan_warm_up(NULL, 1, 1, 1), CLATTN_ERR_INVALID_ARGUMENT);
}

// One token more with each step, on one plan.
static void test_decoding(void **state)
{
    enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 24, STEPS = 60 };
    const struct test_target *t = *state;
    clattn_context *ctx = t->device->ctx;
    clattn_attention_desc d = desc_of(CLATTN_FEATURE_CAUSAL);
    d.max_batch = 1;
    d.max_len_q = 1;
    d.max_len_kv = 4096;
    clattn_plan *plan = target_plan(t, d);
    const uint64_t builds = clattn_context_build_count(ctx);
    float q[HEADS_Q * DIM], o[HEADS_Q * DIM];
    static float kv[HEADS_KV * STEPS * DIM];
    for (int n = 0; n < HEADS_Q * DIM; n++)
        q[n] = (float)(n % 7) - 3.0f;
    for (int n = 0; n < HEADS_KV * STEPS * DIM; n++)
        kv[n] = (float)(n % 11) / 11.0f;
    for (int32_t len = 1; len <= STEPS; len++) {
        clattn_attention_call call;
        clattn_attention_call_init(&call, sizeof call);
        call.batch = 1;
        call.len_q = 1;
        call.len_kv = len;
        call.q.buf = clattn_host_buf(q, sizeof q);
        call.k.buf = call.v.buf = clattn_host_buf(kv, sizeof kv);
        call.k.layout = call.v.layout = CLATTN_LAYOUT_STRIDED;
        call.k.stride_head = call.v.stride_head = STEPS * DIM;
        call.k.stride_seq = call.v.stride_seq = DIM;
        call.o.buf = clattn_host_buf(o, sizeof o);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        // One key: O is its value.
        for (int n = 0; len == 1 && n < HEADS_Q * DIM; n++)
            assert_true(o[n] == kv[n / (2 * DIM) * STEPS * DIM + n % DIM]);
    }
    assert_int_equal(clattn_context_build_count(ctx), builds);
    clattn_plan_destroy(&plan);
}

int main(int argc, char **argv)
{
    const struct target_test tests[] = {
        {"warm up with features", test_features, LEVEL_MEDIUM},
        {"warm up and bounds", test_bounds, LEVEL_MEDIUM},
        {"decoding compiles nothing", test_decoding, LEVEL_SMALL},
    };
    return targets_main("warm_up", argc, argv, tests, sizeof tests / sizeof tests[0]);
}
