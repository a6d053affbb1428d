// SPDX-License-Identifier: Apache-2.0
// Ceilings of local memory and work-groups, from the description and from the environment: what is
// planned under them still runs and is right, and what they leave no room for is refused. Likewise
// the tiles that only plans with low bounds get.
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
#include "run_case.h"

enum { LEN_Q = 37, LEN_KV = 75, BATCH = 2, HEADS = 4 };

// A ceiling: 0 = left open, and `none` is a ceiling of 0 bytes.
struct ceiling {
    size_t local_bytes, group;
    bool none;
};

static struct log_capture captured;

static void set_env(const char *name, size_t value, bool set)
{
    char text[32];
    snprintf(text, sizeof text, "%zu", value);
    assert_int_equal(set ? setenv(name, text, 1) : unsetenv(name), 0);
}

// The target's device again, under a ceiling that the environment or the description brings.
static clattn_status open_under(const struct test_target *t, const struct ceiling *c, bool by_env,
                                struct test_device *d)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    char selector[16];
    snprintf(selector, sizeof selector, "%d", t->device->info.index);
    desc.device = selector;
    desc.log = log_capture;
    desc.log_user = &captured;
    if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU) {
        desc.device = "cpu";
        desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    }
    if (by_env) {
        set_env("CLATTN_MAX_LOCAL_BYTES", c->local_bytes, c->none || c->local_bytes);
        set_env("CLATTN_MAX_GROUP", c->group, c->group != 0);
    } else {
        desc.max_local_bytes = c->local_bytes;
        desc.max_group = c->group;
        desc.flags |= c->none ? CLATTN_CONTEXT_NO_LOCAL_MEMORY : 0u;
    }
    *d = *t->device;
    d->ctx = NULL;
    memset(&captured, 0, sizeof captured);
    clattn_status st = clattn_context_create(&desc, &d->ctx);
    unsetenv("CLATTN_MAX_LOCAL_BYTES");
    unsetenv("CLATTN_MAX_GROUP");
    if (st == CLATTN_OK)
        st = clattn_context_get_device_info(d->ctx, &d->info);
    return st;
}

static struct attn_case make_case(int32_t dim, int32_t len_q, int32_t len_kv,
                                  struct attn_data *data)
{
    const struct attn_case c = {.name = "ceiling", .dim = dim, .batch = BATCH, .heads_q = HEADS,
                                .heads_kv = HEADS / 2, .len_q = len_q, .len_kv = len_kv,
                                .causal = true, .seed = 701};
    assert_true(attn_data_make(&c, data));
    return c;
}

static clattn_attention_desc desc_of(const struct attn_case *c)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = c->causal ? CLATTN_FEATURE_CAUSAL : 0;
    return desc;
}

// Makes a plan, runs it and compares. The caller looks at `info`.
static void run_desc(const struct test_device *d, clattn_attention_desc desc,
                     const struct attn_case *c, const struct attn_data *data,
                     clattn_plan_info *info, char refusals[4096])
{
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(d->ctx, &desc, &plan), CLATTN_OK);
    *info = (clattn_plan_info){.struct_size = sizeof *info};
    assert_int_equal(clattn_plan_get_info(plan, info), CLATTN_OK);
    refusals[0] = '\0';
    for (int n = 0; n < info->num_refusals; n++)
        strncat(refusals, clattn_plan_get_refusal(plan, n), 4095 - strlen(refusals));
    const size_t count = BATCH * HEADS * (size_t)c->len_q * (size_t)c->dim;
    float *o = malloc(count * sizeof *o);
    assert_non_null(o);
    fill_unwritten(o, count);
    const clattn_attention_call call = case_host_call(c, data->q, data->k, data->v, NULL, o, NULL);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    struct compare_report report;
    if (!compare(o, data->o, count, &data->tol_o, &report)) {
        compare_print("O", &report);
        fail_msg("%s, len %d x %d: wrong", info->reason, (int)c->len_q, (int)c->len_kv);
    }
    free(o);
    clattn_plan_destroy(&plan);
}

static void expect_lowered(const struct test_target *t, const struct test_device *d,
                           const struct ceiling *c)
{
    const clattn_device_info *own = &t->device->info;
    const size_t most = c->none ? 0 : c->local_bytes ? c->local_bytes : own->local_bytes;
    const size_t group = c->group ? c->group : own->max_group;
    assert_int_equal(d->info.local_bytes, most < own->local_bytes ? most : own->local_bytes);
    assert_int_equal(d->info.max_group, group < own->max_group ? group : own->max_group);
}

static void test_under_ceilings(void **state)
{
    struct test_target *t = *state;
    static const struct ceiling ceilings[] = {
        {8192, 0, false}, {2048, 0, false}, {0, 16, false}, {700, 1, false}, {1u << 30, 0, false}};
    if (t->algo != CLATTN_ALGO_FUSED || t->kernel != CLATTN_KERNEL_GROUP)
        skip();
    struct attn_data data;
    const struct attn_case c = make_case(64, LEN_Q, LEN_KV, &data);
    for (int n = 0; n < 5; n++) {
        if (t->level < LEVEL_FULL && n > 1)
            break;
        struct test_device d;
        assert_int_equal(open_under(t, &ceilings[n], n % 2 == 0, &d), CLATTN_OK);
        expect_lowered(t, &d, &ceilings[n]);
        struct test_target mine = *t;
        mine.device = &d;
        mine.plans = NULL;
        clattn_plan_info info = {.struct_size = sizeof info};
        assert_int_equal(clattn_plan_get_info(case_plan(&mine, &c), &info), CLATTN_OK);
        printf("%s: %s\n", t->name, info.reason);
        assert_true(info.local_bytes > 0 && info.local_bytes <= d.info.local_bytes);
        assert_true((size_t)info.group_size <= d.info.max_group);
        assert_true(info.bytes_moved > 0);
        assert_true(run_case(&mine, &c, &data, MEMORY_HOST, true, NULL));
        assert_true(run_case(&mine, &c, &data, MEMORY_DEVICE, false, NULL));
        target_plans_close(&mine);
        char refusals[4096];
        run_desc(&d, desc_of(&c), &c, &data, &info, refusals);
        assert_int_equal(info.algo, CLATTN_ALGO_FUSED);
        assert_true(info.local_bytes <= d.info.local_bytes);
        clattn_context_destroy(&d.ctx);
    }
    attn_data_free(&data);
}

static void test_without_local_memory(void **state)
{
    struct test_target *t = *state;
    if (t->algo != CLATTN_ALGO_FUSED || t->kernel != CLATTN_KERNEL_GROUP)
        skip();
    struct attn_data data;
    const struct attn_case c = make_case(64, LEN_Q, LEN_KV, &data);
    for (int by_env = 0; by_env < 2; by_env++) {
        const struct ceiling none = {.none = true};
        struct test_device d;
        assert_int_equal(open_under(t, &none, by_env, &d), CLATTN_OK);
        expect_lowered(t, &d, &none);
        clattn_attention_desc desc = desc_of(&c);
        desc.kernel = CLATTN_KERNEL_GROUP;
        clattn_plan *plan = NULL;
        assert_int_equal(clattn_attention_plan_create(d.ctx, &desc, &plan), CLATTN_ERR_UNSUPPORTED);
        assert_null(plan);
        assert_non_null(strstr(captured.text, "0 bytes of local memory"));

        clattn_plan_info info;
        char refusals[4096];
        run_desc(&d, desc_of(&c), &c, &data, &info, refusals);
        assert_int_equal(info.local_bytes, 0);
        if (d.info.vector_shape) { // needs none
            assert_int_equal(info.kernel, CLATTN_KERNEL_VECTOR);
        } else {
            assert_int_equal(info.algo, CLATTN_ALGO_HOST);
            assert_true(info.is_fallback);
            assert_non_null(strstr(refusals, "0 bytes of local memory"));
        }
        desc = desc_of(&c);
        desc.algo = CLATTN_ALGO_HOST;
        assert_int_equal(clattn_attention_plan_create(d.ctx, &desc, &plan), CLATTN_OK);
        clattn_plan_destroy(&plan);
        clattn_context_destroy(&d.ctx);
    }
    attn_data_free(&data);
}

// Few rows and few keys get tiles of their own, which plans without low bounds never see.
static void test_tiles_of_low_bounds(void **state)
{
    struct test_target *t = *state;
    static const struct {
        int32_t dim, len_q, len_kv;
    } rows[] = {{20, 1, 300}, {96, 1, 70}, {20, 3, 5},   {20, 8, 9},
                {33, 9, 4},   {20, 30, 3}, {20, 33, 14}, {320, 2, 40}};
    const bool forced = t->algo == CLATTN_ALGO_FUSED;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        if (t->level < LEVEL_FULL && n % 4 != 0)
            continue;
        struct attn_data data;
        const struct attn_case c = make_case(rows[n].dim, rows[n].len_q, rows[n].len_kv, &data);
        clattn_attention_desc desc = desc_of(&c);
        desc.algo = t->algo;
        desc.kernel = t->kernel;
        desc.max_len_q = c.len_q;
        desc.max_len_kv = c.len_kv;
        clattn_plan_info info;
        char refusals[4096];
        const int warnings = t->device->warnings;
        run_desc(t->device, desc, &c, &data, &info, refusals);
        printf("%s: len %d x %d: %s\n", t->name, (int)c.len_q, (int)c.len_kv, info.reason);
        assert_int_equal(t->device->warnings, warnings); // the first choice served
        // A sub-group's rows need their items.
        if (forced && t->kernel != CLATTN_KERNEL_SUBGROUP)
            assert_true(info.tile_k < 2 * c.len_kv || info.tile_k <= 8);
        attn_data_free(&data);
    }
}

// The CPU path takes no notice of ceilings, but what is wrong with them is an error everywhere.
static void test_invalid_ceilings(void **state)
{
    struct test_target *t = *state;
    static const struct {
        const char *name, *text;
    } rows[] = {{"CLATTN_MAX_LOCAL_BYTES", "8k"},   {"CLATTN_MAX_LOCAL_BYTES", "-1"},
                {"CLATTN_MAX_LOCAL_BYTES", " 64"},  {"CLATTN_MAX_GROUP", "0"},
                {"CLATTN_MAX_GROUP", "many"},
                {"CLATTN_MAX_GROUP", "99999999999999999999999"}};
    const struct ceiling open = {0, 0, false};
    struct test_device d;
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        clattn_context_desc desc;
        clattn_context_desc_init(&desc, sizeof desc);
        desc.log = log_capture;
        desc.log_user = &captured;
        memset(&captured, 0, sizeof captured);
        assert_int_equal(setenv(rows[n].name, rows[n].text, 1), 0);
        clattn_context *ctx = NULL;
        assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_ERR_INVALID_ARGUMENT);
        assert_null(ctx);
        assert_non_null(strstr(captured.text, rows[n].name));
        assert_non_null(strstr(captured.text, rows[n].text));
        // What the description says counts, and the variable is not looked at.
        assert_int_equal(open_under(t, &(struct ceiling){4096, 8, false}, false, &d), CLATTN_OK);
        clattn_context_destroy(&d.ctx);
        unsetenv(rows[n].name);
    }
    assert_int_equal(open_under(t, &(struct ceiling){4096, 0, true}, false, &d),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(captured.text, "max_local_bytes is 4096"));
    assert_int_equal(open_under(t, &open, true, &d), CLATTN_OK);
    expect_lowered(t, &d, &open);
    clattn_context_destroy(&d.ctx);
}

// A caller from before the ceilings has a shorter description.
static void test_shorter_description(void **state)
{
    (void)state;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.struct_size = offsetof(clattn_context_desc, max_local_bytes);
    desc.max_local_bytes = 1; // lies behind what it knows
    desc.flags = CLATTN_CONTEXT_NO_LOCAL_MEMORY;
    desc.tune_file = (const char *)1;
    int32_t count = 0;
    assert_int_equal(clattn_device_count(&desc, &count), CLATTN_OK);
    desc.struct_size = offsetof(clattn_context_desc, cache_max_bytes); // older still
    assert_int_equal(clattn_device_count(&desc, &count), CLATTN_OK);
    desc.struct_size--;
    assert_int_equal(clattn_device_count(&desc, &count), CLATTN_ERR_STRUCT_SIZE);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"under ceilings", test_under_ceilings, LEVEL_SMALL},
        {"without local memory", test_without_local_memory, LEVEL_SMALL},
        {"tiles of low bounds", test_tiles_of_low_bounds, LEVEL_SMALL},
        {"invalid ceilings", test_invalid_ceilings, LEVEL_SMALL},
        {"shorter description", test_shorter_description, LEVEL_SMALL},
    };
    return targets_main("ceilings", argc, argv, tests, sizeof tests / sizeof *tests);
}
