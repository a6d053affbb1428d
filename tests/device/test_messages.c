// SPDX-License-Identifier: Apache-2.0
// What the log callback receives of plans, programs and fallbacks: how many lines, and what they
// say.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "open_device.h"

enum { LINES_MAX = 256 };

static struct {
    int count;
    clattn_log_level level[LINES_MAX];
    char text[LINES_MAX][768];
} lines;

static void receive(void *user, clattn_log_level level, const char *message)
{
    (void)user;
    assert_true(lines.count < LINES_MAX);
    lines.level[lines.count] = level;
    snprintf(lines.text[lines.count++], sizeof *lines.text, "%s", message);
}

// Lines of a level that contain `part`; the last one in *text.
static int count(clattn_log_level level, const char *part, const char **text)
{
    int n = 0;
    for (int i = 0; i < lines.count; i++) {
        if (lines.level[i] == level && strstr(lines.text[i], part)) {
            n++;
            if (text)
                *text = lines.text[i];
        }
    }
    return n;
}

static void open_context(const struct test_target *t, clattn_log_level level, const char *kernels,
                         clattn_context **ctx)
{
    char selector[16] = "cpu";
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    if (t->device->info.type != CLATTN_DEVICE_BUILTIN_CPU)
        snprintf(selector, sizeof selector, "%d", (int)t->device->info.index);
    desc.device = selector;
    desc.flags = CLATTN_CONTEXT_NO_CACHE | CLATTN_CONTEXT_NO_TUNING | CLATTN_CONTEXT_NO_SELF_TEST;
    desc.kernel_dir = kernels;
    desc.log = receive;
    desc.log_level = level;
    lines.count = 0;
    assert_int_equal(clattn_context_create(&desc, ctx), CLATTN_OK);
    // What is said of the loader and of devices is said once.
    for (int i = 0; i < lines.count; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(lines.text[i], lines.text[k]);
    lines.count = 0;
}

static clattn_attention_desc small_desc(void)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 12;
    desc.heads_q = 2;
    return desc;
}

static void expect_parts(const char *text, const char *const *part)
{
    for (; *part; part++)
        if (!strstr(text, *part))
            fail_msg("'%s' is not in '%s'", *part, text);
}

// One line for the plan and one for each program, and nothing else.
static void test_info(void **state)
{
    const struct test_target *t = *state;
    const bool cpu = t->algo == CLATTN_ALGO_HOST || t->algo == CLATTN_ALGO_REFERENCE;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    const char *text = "";
    clattn_attention_desc desc = small_desc();
    open_context(t, CLATTN_LOG_INFO, NULL, &ctx);
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    desc.features = CLATTN_FEATURE_CAUSAL;
    for (int again = 0; again < 2; again++) {
        const uint64_t before = clattn_context_build_count(ctx);
        lines.count = 0;
        assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
        assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
        const int built = (int)(clattn_context_build_count(ctx) - before);
        assert_int_equal(built > 0, !cpu && !again); // the second plan finds the program in memory
        assert_int_equal(count(CLATTN_LOG_INFO, " compiled in ", NULL), built);
        assert_int_equal(count(CLATTN_LOG_INFO, "plan: ", &text), 1);
        assert_int_equal(lines.count, 1 + built);
        const char *const parts[] = {"f32, heads 2/2, dim 12, causal -> ", info.algo_name,
                                     info.kernel_name, "; why: ", info.reason, "; on [",
                                     t->device->info.platform, t->device->info.name, NULL};
        expect_parts(text, parts);
        char tile[32];
        snprintf(tile, sizeof tile, ", tile %dx%d", (int)info.tile_q, (int)info.tile_k);
        expect_parts(text, (const char *const[]){tile, NULL});
        assert_null(strstr(text, "batch")); // there is no bound
        clattn_plan_destroy(&plan);
    }
    clattn_context_destroy(&ctx);
}

// Row softmax likewise.
static void test_softmax(void **state)
{
    const struct test_target *t = *state;
    clattn_context *ctx = NULL;
    clattn_softmax_plan *plan = NULL;
    clattn_softmax_info info = {.struct_size = sizeof info};
    clattn_softmax_desc desc;
    const char *text = "";
    if (t->kernel == CLATTN_KERNEL_VECTOR || t->algo == CLATTN_ALGO_REFERENCE)
        skip(); // the same again
    open_context(t, CLATTN_LOG_INFO, NULL, &ctx);
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.max_len = 300;
    assert_int_equal(clattn_softmax_plan_create(ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(clattn_softmax_get_info(plan, &info), CLATTN_OK);
    assert_int_equal(count(CLATTN_LOG_INFO, "plan: softmax, len to 300 -> ", &text), 1);
    assert_int_equal(lines.count, 1 + count(CLATTN_LOG_INFO, " compiled in ", NULL));
    const char *const parts[] = {info.algo_name, info.path_name, "; why: ", info.reason, "; on [",
                                 t->device->info.name, NULL};
    expect_parts(text, parts);
    clattn_softmax_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

// Every feature has its name in the line.
static void test_features(void **state)
{
    const struct test_target *t = *state;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    const char *text = "";
    clattn_attention_desc desc = small_desc();
    if (t->device->info.type != CLATTN_DEVICE_BUILTIN_CPU)
        skip(); // it is the same text everywhere
    open_context(t, CLATTN_LOG_INFO, NULL, &ctx);
    desc.heads_q = 6;
    desc.heads_kv = 2;
    desc.dim_v = 20;
    desc.max_batch = 3;
    desc.max_len_q = 5;
    desc.max_len_kv = 70;
    desc.dtype_q = desc.dtype_o = CLATTN_DTYPE_F16;
    desc.dtype_kv = CLATTN_DTYPE_I8;
    desc.dtype_bias = CLATTN_DTYPE_BF16;
    desc.page_size = 16;
    desc.align = CLATTN_ALIGN_TOP_LEFT;
    desc.precision = CLATTN_PRECISION_FULL;
    desc.features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE |
                    CLATTN_FEATURE_WINDOW | CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI |
                    CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_SINKS | CLATTN_FEATURE_KV_LENS |
                    CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PAGED;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(count(CLATTN_LOG_INFO, "plan: ", &text), 1);
    static const char *const parts[] = {
        "f16, K and V int8, bias bf16, heads 6/2, dim 12/20, batch to 3, queries to 5, keys to 70",
        ", causal, window, top-left, mask, alibi, softcap, sinks, kv lengths, packed queries, lse",
        ", full precision, pages of 16 -> ", NULL};
    expect_parts(text, parts);
    clattn_plan_destroy(&plan);
    desc.features = CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV;
    desc.page_size = desc.dtype_bias = 0;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(count(CLATTN_LOG_INFO, ", packed queries, packed keys,", NULL), 1);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

// By default a plan that is as good as can be says nothing, and one that fails one line.
static void test_default(void **state)
{
    const struct test_target *t = *state;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_attention_desc desc = small_desc();
    open_context(t, 0, NULL, &ctx);
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    clattn_plan_destroy(&plan);
    assert_int_equal(lines.count, 0);
    desc.dim_qk = 577;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(lines.count, 1);
    assert_int_equal(count(CLATTN_LOG_ERROR, "dim_qk is 577", NULL), 1);
    clattn_context_destroy(&ctx);
}

// A call with nothing to compute succeeds, and says why o stays as it is where one asks.
static void test_empty(void **state)
{
    const struct test_target *t = *state;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_attention_desc desc = small_desc();
    float q[24] = {0}, o[24];
    open_context(t, CLATTN_LOG_DEBUG, NULL, &ctx);
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    for (int32_t size = 0; size < 4; size++) {
        const int32_t batch = size & 1, len_q = size >> 1;
        clattn_attention_call call;
        clattn_attention_call_init(&call, sizeof call);
        call.batch = batch;
        call.len_q = len_q;
        call.q.buf = clattn_host_buf(q, sizeof q);
        call.o.buf = clattn_host_buf(o, sizeof o);
        lines.count = 0;
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        assert_int_equal(count(CLATTN_LOG_DEBUG, "batch is 0: ", NULL), batch == 0);
        assert_int_equal(count(CLATTN_LOG_DEBUG, "len_q is 0: ", NULL), batch && !len_q);
    }
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

static const char *const broken[] = {"fused_group.cl", "fused_vector.cl"};
enum { BROKEN = sizeof broken / sizeof broken[0] };

// Kernels that do not compile: the CPU path takes over with one line, at each level, beside what
// the compiler says.
static void test_fallback(void **state)
{
    const struct test_target *t = *state;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    const char *text = "";
    char folder[] = P_tmpdir "/cla_messages_XXXXXX", file[96];
    const clattn_attention_desc desc = small_desc();
    if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU || t->kernel != CLATTN_KERNEL_GROUP)
        skip(); // once for each OpenCL device
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < BROKEN; i++) {
        snprintf(file, sizeof file, "%s/%s", folder, broken[i]);
        FILE *f = fopen(file, "w");
        assert_non_null(f);
        assert_true(fputs("this is no kernel\n", f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    open_context(t, 0, folder, &ctx);
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    for (int i = 0; i < BROKEN; i++) {
        snprintf(file, sizeof file, "%s/%s", folder, broken[i]);
        assert_int_equal(unlink(file), 0);
    }
    assert_int_equal(rmdir(folder), 0);
    if (!info.is_fallback) // a library that takes its own kernels only
        skip();
    assert_int_equal(info.algo, CLATTN_ALGO_HOST);
    const int refused = count(CLATTN_LOG_WARN, " does not compile: ", NULL);
    assert_true(refused > 0);
    assert_int_equal(count(CLATTN_LOG_WARN, "fallback: ", &text), 1);
    assert_int_equal(lines.count, refused + 1);
    static const char *const parts[] = {
        "fallback: the CPU path computes this plan, not the OpenCL device: fused (", NULL};
    expect_parts(text, parts);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"info", test_info, LEVEL_SMALL},
        {"softmax", test_softmax, LEVEL_SMALL},
        {"features", test_features, LEVEL_SMALL},
        {"default", test_default, LEVEL_SMALL},
        {"empty calls", test_empty, LEVEL_SMALL},
        {"fallback", test_fallback, LEVEL_SMALL}};
    return targets_main("messages", argc, argv, tests, sizeof tests / sizeof tests[0]);
}
