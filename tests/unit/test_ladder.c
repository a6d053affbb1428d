// SPDX-License-Identifier: Apache-2.0
// The ladder after the build: real tiles with an algorithm whose builds, compiled figures and
// results are made up, step by step down to the CPU path. No device.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention.h"
#include "planner_devices.h"
#include "ref/ref.h"

// ---- an algorithm by script --------------------------------------------------------------------

// What becomes of one choice.
struct step {
    clattn_status build;        // of prepare(), before the figures are looked at
    size_t group, local_bytes;  // the compiled kernel's figures; 0 = those of the tile
    clattn_status run;          // of the trial
    float error;                // added to one element of its output
};

enum { STEPS_MAX = 16 };
static struct {
    struct step step[STEPS_MAX];
    int prepared, released, held, runs;
    unsigned char name; // of all programs; 0 = they have none
} script;

struct cla_prepared {
    struct step step;
};

static clattn_status fake_prepare(clattn_context *ctx, const struct cla_algo *self,
                                  const struct cla_problem *p, const struct cla_tile *tile,
                                  struct cla_prepared **out, char *options, size_t options_size,
                                  char *why, size_t why_size)
{
    (void)self;
    (void)p;
    assert_true(script.prepared < STEPS_MAX);
    const struct step s = script.step[script.prepared++];
    snprintf(options, options_size, "-DSTEP=%d", script.prepared);
    if (s.build != CLATTN_OK)
        return s.build;
    const size_t group = s.group ? s.group : (size_t)(tile->items_q * tile->items_k);
    const size_t local = s.local_bytes ? s.local_bytes : tile->local_bytes;
    if (!cla_tile_fits_kernel(tile, &ctx->caps, group, local, why, why_size))
        return CLATTN_ERR_UNSUPPORTED;
    *out = malloc(sizeof **out);
    assert_non_null(*out);
    (*out)->step = s;
    script.held++;
    return CLATTN_OK;
}

static void fake_release(struct cla_prepared *prepared)
{
    script.released++;
    script.held -= prepared != NULL;
    free(prepared);
}

static clattn_status fake_run(clattn_context *ctx, const struct cla_problem *p,
                              const struct cla_prepared *prepared, const struct cla_call *call)
{
    (void)ctx;
    script.runs++;
    if (prepared->step.run != CLATTN_OK)
        return prepared->step.run;
    const struct cla_host_mem mem = {.q = call->q.buf.ptr, .k = call->k.buf.ptr,
                                     .v = call->v.buf.ptr, .o = call->o.buf.ptr,
                                     .lse = call->lse.ptr, .mask = call->mask.buf.ptr};
    const clattn_status st = cla_ref_forward(p, call, &mem);
    ((float *)call->o.buf.ptr)[p->dim_v] += prepared->step.error;
    return st;
}

static bool fake_identify(clattn_context *ctx, const struct cla_prepared *prepared,
                          unsigned char name[CLA_PROGRAMS_NAME])
{
    (void)ctx;
    (void)prepared;
    memset(name, script.name, CLA_PROGRAMS_NAME);
    return script.name != 0;
}

static const struct cla_algo fake = {.id = CLATTN_ALGO_FUSED, .name = "fake",
                                     .prepare = fake_prepare, .identify = fake_identify,
                                     .release = fake_release, .run = fake_run};

// ---- a plan on it ------------------------------------------------------------------------------

static clattn_context *ctx;
static struct cla_ranking ranking;
static clattn_plan *plan;

// The group tiles of a device with the made-up algorithm, and behind them, unless it is forced, the
// CPU path.
static void set_up_plan(int32_t algo)
{
    const struct cla_log silent = {0};
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 64;
    desc.heads_q = 2;
    desc.max_len_q = desc.max_len_kv = 4096;
    desc.algo = algo;
    clattn_plan_destroy(&plan);
    memset(&script, 0, sizeof script);
    memset(&ranking, 0, sizeof ranking);
    plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    plan->ctx = ctx;
    assert_int_equal(cla_problem_from_desc(&desc, &silent, &plan->problem), CLATTN_OK);
    struct cla_tile t[STEPS_MAX];
    const int n = cla_tile_rank(&plan->problem, &ctx->caps, CLATTN_KERNEL_GROUP, t, STEPS_MAX,
                                &ranking.refusals);
    assert_true(n >= 6 && n < STEPS_MAX);
    for (int k = 0; k < n; k++)
        ranking.choice[ranking.count++] = (struct cla_choice){&fake, t[k]};
    if (algo == CLATTN_ALGO_AUTO) {
        const struct cla_algo *host = &cla_algo_host;
        assert_int_equal(host->propose(host, &plan->problem, &ctx->caps, t, 1, NULL), 1);
        ranking.choice[ranking.count++] = (struct cla_choice){&cla_algo_host, t[0]};
    }
}

static int set_up(void **state)
{
    (void)state;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    desc.device = "cpu";
    if (clattn_context_create(&desc, &ctx) != CLATTN_OK)
        return 1;
    ctx->caps = planner_devices[DEV_RDNA3];
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    clattn_plan_destroy(&plan);
    assert_int_equal(script.held, 0);
    clattn_context_destroy(&ctx);
    return 0;
}

static clattn_plan_info info_of(void)
{
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    return info;
}

// The n-th refusal names the tile of choice `choice` and says `why`.
static void expect_refusal(int n, int choice, const char *why)
{
    const char *text = clattn_plan_get_refusal(plan, n);
    assert_non_null(text);
    if (!strstr(text, ranking.choice[choice].tile.reason) || !strstr(text, why))
        fail_msg("refusal %d is \"%s\", not of \"%s\" with \"%s\"", n, text,
                 ranking.choice[choice].tile.reason, why);
}

// ---- tests -------------------------------------------------------------------------------------

static void test_the_first_that_passes_is_taken(void **state)
{
    (void)state;
    set_up_plan(CLATTN_ALGO_AUTO);
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
    const clattn_plan_info info = info_of();
    assert_string_equal(info.algo_name, "fake");
    assert_int_equal(info.tile_q, ranking.choice[0].tile.tile_q);
    assert_int_equal(info.local_bytes, ranking.choice[0].tile.local_bytes);
    assert_int_equal(info.is_fallback, 0);
    assert_int_equal(info.num_refusals, ranking.refusals.count);
    assert_string_equal(info.build_options, "-DSTEP=1");
    assert_true(info.bytes_moved == (uint64_t)cla_tile_bytes(&plan->problem,
                                                             &ranking.choice[0].tile, 4096, 4096));
    assert_int_equal(script.prepared, 1);
    assert_int_equal(script.held, 1);
}

static void test_each_failure_takes_one_step_down(void **state)
{
    (void)state;
    set_up_plan(CLATTN_ALGO_AUTO);
    script.step[0].build = CLATTN_ERR_BUILD;
    script.step[1].group = 32;          // CL_KERNEL_WORK_GROUP_SIZE below the tile's 128
    script.step[2].local_bytes = 65540; // CL_KERNEL_LOCAL_MEM_SIZE over the device's 65536
    script.step[3].error = 0.5f;
    script.step[4].run = CLATTN_ERR_OPENCL;
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
    const clattn_plan_info info = info_of();
    assert_int_equal(info.tile_q, ranking.choice[5].tile.tile_q);
    assert_string_equal(info.reason, ranking.choice[5].tile.reason);
    assert_int_equal(info.is_fallback, 1);
    assert_int_equal(script.prepared, 6);
    assert_int_equal(script.released, 5);
    assert_int_equal(script.held, 1);
    const int first = ranking.refusals.count;
    assert_int_equal(info.num_refusals, first + 5);
    expect_refusal(first, 0, clattn_status_string(CLATTN_ERR_BUILD));
    expect_refusal(first + 1, 1, "allows work-groups of 32, it needs 128");
    expect_refusal(first + 2, 2, "takes 65540 bytes of local memory, there are 65536");
    expect_refusal(first + 3, 3, "trial: o[64] is ");
    expect_refusal(first + 4, 4, clattn_status_string(CLATTN_ERR_OPENCL));
}

static void test_the_cpu_path_is_the_last_step(void **state)
{
    (void)state;
    enum { LEN = 3, DIM = 64, COUNT = 2 * LEN * DIM };
    static float x[COUNT], o[COUNT];
    set_up_plan(CLATTN_ALGO_AUTO);
    for (int k = 0; k < STEPS_MAX; k++)
        script.step[k].error = 1;
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
    const clattn_plan_info info = info_of();
    assert_int_equal(info.algo, CLATTN_ALGO_HOST);
    assert_int_equal(info.is_fallback, 1);
    assert_int_equal(script.prepared, ranking.count - 1);
    assert_int_equal(script.held, 0);
    for (int k = 0; k + 1 < ranking.count; k++)
        expect_refusal(ranking.refusals.count + k, k, "trial: ");
    // And it works.
    for (int n = 0; n < COUNT; n++)
        x[n] = (float)(n % 7);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(x, sizeof x);
    call.o.buf = clattn_host_buf(o, sizeof o);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    for (int n = 0; n < COUNT; n++)
        assert_true(o[n] >= 0 && o[n] <= 6);
}

// Each rung alone: whatever stands above it fails.
static void test_every_rung_can_serve(void **state)
{
    (void)state;
    set_up_plan(CLATTN_ALGO_AUTO);
    const int count = ranking.count;
    for (int rung = 0; rung < count; rung++) {
        set_up_plan(CLATTN_ALGO_AUTO);
        for (int k = 0; k < rung; k++)
            script.step[k].build = CLATTN_ERR_BUILD;
        assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
        assert_string_equal(info_of().reason, ranking.choice[rung].tile.reason);
        assert_int_equal(info_of().num_refusals, ranking.refusals.count + rung);
        assert_int_equal(info_of().is_fallback, rung > 0);
    }
}

static void test_a_forced_algorithm_gives_its_last_failure(void **state)
{
    (void)state;
    static const struct {
        struct step last;
        clattn_status want;
    } rows[] = {{{.build = CLATTN_ERR_BUILD}, CLATTN_ERR_BUILD},
                {{.group = 0, .error = 1}, CLATTN_ERR_SELF_TEST},
                {{.run = CLATTN_ERR_OPENCL}, CLATTN_ERR_OPENCL},
                {{.local_bytes = 1 << 20}, CLATTN_ERR_UNSUPPORTED}};
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        set_up_plan(CLATTN_ALGO_FUSED);
        for (int k = 0; k < ranking.count; k++)
            script.step[k].build = n ? CLATTN_ERR_BUILD : CLATTN_ERR_OPENCL;
        script.step[ranking.count - 1] = rows[n].last;
        assert_int_equal(cla_plan_prepare(plan, &ranking), rows[n].want);
        assert_int_equal(script.prepared, ranking.count);
        assert_int_equal(script.held, 0);
    }
    // Nothing was proposed at all.
    set_up_plan(CLATTN_ALGO_FUSED);
    ranking.count = 0;
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_ERR_UNSUPPORTED);
}

// No smaller tile helps where memory or a kernel's file is missing.
static void test_some_failures_end_the_search(void **state)
{
    (void)state;
    static const clattn_status ends[] = {CLATTN_ERR_OUT_OF_MEMORY, CLATTN_ERR_FILE};
    for (int n = 0; n < 2; n++) {
        set_up_plan(CLATTN_ALGO_AUTO);
        script.step[0].build = CLATTN_ERR_BUILD;
        script.step[1].build = ends[n];
        assert_int_equal(cla_plan_prepare(plan, &ranking), ends[n]);
        assert_int_equal(script.prepared, 2);
    }
}

static void test_figures_that_lie_are_not_believed(void **state)
{
    (void)state;
    const struct cla_caps own = ctx->caps;
    ctx->caps.quirks = CLA_QUIRK_KERNEL_QUERIES_LIE;
    set_up_plan(CLATTN_ALGO_AUTO);
    script.step[0].group = 1;
    script.step[0].local_bytes = 1u << 30;
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
    assert_int_equal(info_of().tile_q, ranking.choice[0].tile.tile_q);
    assert_int_equal(info_of().is_fallback, 0);
    ctx->caps = own;
}

// Trials of a plan whose programs have this name; with `fault` the first choice is wrong.
static int trials(unsigned char name, float fault, void (*change)(void))
{
    set_up_plan(CLATTN_ALGO_FUSED);
    script.name = name;
    script.step[0].error = fault;
    if (change)
        change();
    assert_int_equal(cla_plan_prepare(plan, &ranking), CLATTN_OK);
    return script.runs;
}

static void other_bounds(void)
{
    plan->problem.max_len_kv = plan->problem.max_len_q = 77;
}

static void another_feature(void)
{
    plan->problem.lse = true;
}

static void another_mask(void)
{
    plan->problem.causal = true;
}

static void another_tile(void)
{
    ranking.choice[0].tile.tile_k /= 2;
}

static void test_a_trial_is_passed_once(void **state)
{
    (void)state;
    static void (*const changes[])(void) = {another_feature, another_mask, another_tile};
    assert_int_equal(trials(1, 0.0f, NULL), 1);
    assert_int_equal(trials(1, 1.0f, NULL), 0); // it would have failed
    assert_int_equal(trials(1, 1.0f, other_bounds), 0);
    for (int n = 0; n < 3; n++) {
        assert_int_equal(trials(1, 0.0f, changes[n]), 1);
        assert_int_equal(trials(1, 0.0f, changes[n]), 0);
    }
    // Other programs; and what failed, which the next plan tries again.
    assert_int_equal(trials(2, 1.0f, NULL), 2);
    assert_int_equal(trials(2, 0.0f, NULL), 1);
    assert_int_equal(trials(2, 1.0f, NULL), 0);
    // Without a name nothing is remembered.
    assert_int_equal(trials(0, 0.0f, NULL), 1);
    assert_int_equal(trials(0, 0.0f, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_that_passes_is_taken),
        cmocka_unit_test(test_each_failure_takes_one_step_down),
        cmocka_unit_test(test_the_cpu_path_is_the_last_step),
        cmocka_unit_test(test_every_rung_can_serve),
        cmocka_unit_test(test_a_forced_algorithm_gives_its_last_failure),
        cmocka_unit_test(test_some_failures_end_the_search),
        cmocka_unit_test(test_figures_that_lie_are_not_believed),
        cmocka_unit_test(test_a_trial_is_passed_once),
    };
    return cmocka_run_group_tests_name("ladder", tests, set_up, tear_down);
}
