// SPDX-License-Identifier: Apache-2.0
// Devices that are poor, lie, compute wrong numbers, run out of memory or are lost: a real one, of
// which the library between it and clattn tells what a row says. The result is right, or there is a
// status and a reason; a plan never asks for more than what the device is said to have.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "clattn/clattn.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "spy.h"

enum { HEADS = 2, LEN_Q = 37, LEN_KV = 70, DIM = 24 };
enum { NUM_Q = HEADS * LEN_Q * DIM, NUM_KV = HEADS * LEN_KV * DIM };

static struct spy *spy;
static char cache[] = "clattn-liars-XXXXXX"; // a kernel is compiled once for all rows
static float q[NUM_Q], k[NUM_KV], v[NUM_KV], o[NUM_Q], want[NUM_Q];

// ---- what is asked of it ------------------------------------------------------------------------

struct answer {
    clattn_status context, plan, run;
    bool right;
    clattn_device_info device;
    clattn_plan_info info;
    char refusals[4096];
    struct log_capture log;
};

static void lie(cl_device_info param, const void *value, size_t size)
{
    struct spy_lie *l = &spy->lies[spy->num_lies++];
    assert_true(spy->num_lies <= SPY_LIES && size <= sizeof l->value);
    l->param = param;
    l->size = size;
    memcpy(l->value, value, size);
}

// A text, or any bytes, which live as long as the lie; `claims` is the size that is told.
static void lie_text(cl_device_info param, const char *text, size_t size, size_t claims)
{
    lie(param, text, 0);
    spy->lies[spy->num_lies - 1].text = text;
    spy->lies[spy->num_lies - 1].size = size;
    spy->lies[spy->num_lies - 1].claims = claims;
}

static void tell_the_truth(void)
{
    spy->fail_at = 0;
    spy->fail_on = -1;
    spy->fails_from_there = false;
    spy->loses_device = spy->spoils_reads = false;
    spy->kernel_group = spy->kernel_local = spy->alloc_limit = 0;
    spy->idle = spy->unbuilt = spy->build_log = NULL;
    spy->platforms = 0;
    memset(spy->lies, 0, sizeof spy->lies);
    spy->num_lies = 0;
}

// No kernel may have been launched over the limits that were told.
static int tell_the_truth_again(void **state)
{
    (void)state;
    const long over = atomic_exchange(&spy->over, 0);
    tell_the_truth();
    if (over)
        print_error("%ld launches over the limits, at last: %s\n", over, spy->why);
    return over != 0;
}

// The n-th call of a function from now on fails, and all that follow.
static void fail_all(int function, cl_int code)
{
    atomic_store(&spy->calls, 0);
    spy->fail_on = function;
    spy->fail_code = code;
    spy->fails_from_there = true;
    spy->fail_at = 1;
}

static void no_event(void)
{
}

// The operations around attention and the softmax, on the device alone.
static void ask_operations(clattn_context *ctx)
{
    static float out[NUM_Q], lse[HEADS * LEN_Q], rows[4 * 100];
    const clattn_tensor part = {.buf = {.kind = CLATTN_BUF_HOST, .ptr = q, .size_bytes = sizeof q}};
    const clattn_buf part_lse = {.kind = CLATTN_BUF_HOST, .ptr = lse, .size_bytes = sizeof lse};
    clattn_softmax_plan *plan = NULL;
    clattn_merge_call merge;
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    clattn_merge_call_init(&merge, sizeof merge);
    merge.flags = CLATTN_NO_FALLBACK;
    merge.num_parts = merge.batch = 1;
    merge.heads = HEADS;
    merge.len_q = LEN_Q;
    merge.dim_v = DIM;
    merge.parts = &part;
    merge.parts_lse = &part_lse;
    merge.o.buf = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = out, .size_bytes = sizeof out};
    fill_unwritten(out, NUM_Q);
    assert_int_equal(clattn_merge_run(ctx, &merge), CLATTN_OK);
    assert_memory_equal(out, q, sizeof out); // of one part alone
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.path = CLATTN_SOFTMAX_PATH_OPENCL;
    assert_int_equal(clattn_softmax_plan_create(ctx, &desc, &plan), CLATTN_OK);
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = 4;
    call.len = 100;
    call.x = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = q, .size_bytes = sizeof q};
    call.y = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = rows, .size_bytes = sizeof rows};
    assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
    for (int r = 0; r < 4; r++) {
        double sum = 0;
        for (int i = 0; i < 100; i++)
            sum += rows[100 * r + i];
        assert_true(sum > 0.99999 && sum < 1.00001);
    }
    clattn_softmax_plan_destroy(&plan);
}

static bool with_operations; // ask() asks for them, too

// A whole life on host memory; `between` is called when there is a context, `before_run` when there
// is a plan.
static void ask(struct answer *a, const char *device, uint32_t flags, int32_t algo, int32_t kernel,
                void (*between)(void), void (*before_run)(void))
{
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    clattn_context_desc cd;
    clattn_attention_desc desc;
    clattn_attention_call call;
    memset(a, 0, sizeof *a);
    a->device.struct_size = sizeof a->device;
    a->info.struct_size = sizeof a->info;
    a->plan = a->run = CLATTN_ERR_INVALID_ARGUMENT;
    clattn_context_desc_init(&cd, sizeof cd);
    cd.device = device;
    cd.flags = flags;
    cd.cache_dir = cache;
    cd.log = log_capture;
    cd.log_user = &a->log;
    cd.log_level = CLATTN_LOG_INFO;
    a->context = clattn_context_create(&cd, &ctx);
    if (a->context != CLATTN_OK)
        return;
    assert_int_equal(clattn_context_get_device_info(ctx, &a->device), CLATTN_OK);
    between();
    if (with_operations)
        ask_operations(ctx);
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.algo = algo;
    desc.kernel = kernel;
    a->plan = clattn_attention_plan_create(ctx, &desc, &plan);
    if (a->plan == CLATTN_OK) {
        assert_int_equal(clattn_plan_get_info(plan, &a->info), CLATTN_OK);
        for (int32_t n = 0; clattn_plan_get_refusal(plan, n); n++) {
            const size_t used = strlen(a->refusals);
            snprintf(a->refusals + used, sizeof a->refusals - used, "%s\n",
                     clattn_plan_get_refusal(plan, n));
        }
        before_run();
        fill_unwritten(o, NUM_Q);
        clattn_attention_call_init(&call, sizeof call);
        call.batch = 1;
        call.len_q = LEN_Q;
        call.len_kv = LEN_KV;
        call.q.buf = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = q, .size_bytes = sizeof q};
        call.k.buf = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = k, .size_bytes = sizeof k};
        call.v.buf = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = v, .size_bytes = sizeof v};
        call.o.buf = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = o, .size_bytes = sizeof o};
        a->run = clattn_attention_run(plan, &call);
        a->right = true;
        for (int i = 0; i < NUM_Q; i++)
            a->right = a->right && o[i] - want[i] < 1e-5f && want[i] - o[i] < 1e-5f;
    }
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
}

static void assert_says(const struct answer *a, const char *what)
{
    if (!strstr(a->log.text, what) && !strstr(a->refusals, what))
        fail_msg("nothing says \"%s\"; messages: %s; refusals: %s", what, a->log.text, a->refusals);
}

// ---- poor ---------------------------------------------------------------------------------------

struct poor {
    size_t local, group, kernel_group;
    bool none; // no local memory at all
};

static const struct poor poor[] = {
    {.local = 1024},                 {.local = 1024, .group = 16},
    {.local = 4096, .group = 64},    {.local = 32768, .group = 1},
    {.local = 32768, .group = 16},   {.local = 32768, .group = 64},
    {.local = 128, .group = 1},      {.kernel_group = 8},
    {.kernel_group = 1},             {.local = 1024, .group = 16, .kernel_group = 4},
    {.none = true},                  {.none = true, .group = 1},
};

static void impoverish(const struct poor *d)
{
    tell_the_truth();
    if (d->local || d->none) {
        const cl_ulong local = d->local;
        const cl_device_local_mem_type kind = CL_NONE;
        lie(CL_DEVICE_LOCAL_MEM_SIZE, &local, sizeof local);
        if (d->none)
            lie(CL_DEVICE_LOCAL_MEM_TYPE, &kind, sizeof kind);
    }
    if (d->group) {
        const size_t items[3] = {d->group, d->group, d->group};
        lie(CL_DEVICE_MAX_WORK_GROUP_SIZE, &d->group, sizeof d->group);
        lie(CL_DEVICE_MAX_WORK_ITEM_SIZES, items, sizeof items);
    }
    spy->kernel_group = d->kernel_group;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

// The group shape, which a device's limits count for, on a device of this kind.
static void poor_runs(const struct poor *d, int32_t algo)
{
    struct answer a;
    impoverish(d);
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, algo,
        algo == CLATTN_ALGO_UNFUSED ? 0 : CLATTN_KERNEL_GROUP, no_event, no_event);
    print_message("local %zu, group %zu, of a kernel %zu: %s\n", d->local, d->group,
                  d->kernel_group, a.plan == CLATTN_OK ? a.info.reason : a.log.text);
    // Quirk 1: what this driver says of compiled kernels is known to be wrong.
    const bool kernel_group = d->kernel_group && !(a.device.quirks & 1);
    if (d->kernel_group && !kernel_group)
        atomic_store(&spy->over, 0);
    // Intel's CPU runtime compiles the smallest tile of all to wrong numbers, which the trial
    // of the plan sees. (No device is as small as that.)
    const bool tiny = d->local == 128 && a.plan == CLATTN_ERR_SELF_TEST;
    const bool other = algo != CLATTN_ALGO_FUSED && a.plan == CLATTN_ERR_UNSUPPORTED;
    if (d->none || tiny || other) {
        assert_true(a.plan == CLATTN_OK ? a.run == CLATTN_OK && a.right : a.log.errors > 0);
        return;
    }
    assert_int_equal(a.plan, CLATTN_OK);
    assert_int_equal(a.run, CLATTN_OK);
    assert_true(a.right);
    assert_true(!d->local || a.info.local_bytes <= d->local);
    assert_true(!d->group || (size_t)a.info.group_size <= d->group);
    assert_true(!kernel_group || (size_t)a.info.group_size <= d->kernel_group);
}

// fused on every such device, on some another algorithm; all of them with CLATTN_TEST_EVERY, only
// some of the devices with CLATTN_TEST_SMALL.
static void test_poor(void **state)
{
    static const int32_t others[] = {CLATTN_ALGO_TWO_LOOP, CLATTN_ALGO_FUSED_KV_OUTER,
                                     CLATTN_ALGO_SPLIT_KV, CLATTN_ALGO_UNFUSED};
    (void)state;
    for (size_t i = 0; i < sizeof poor / sizeof poor[0]; i++) {
        const bool small = is_set("CLATTN_TEST_SMALL"), more = i == 1 || !small;
        if (small && i != 1 && i != 5 && i != 9 && i != 10)
            continue;
        with_operations = more && (poor[i].group || poor[i].none || poor[i].kernel_group);
        poor_runs(&poor[i], CLATTN_ALGO_FUSED);
        with_operations = false;
        for (size_t n = 0; n < 4; n++)
            if ((i == 3 * n && (i == 9 || !small)) || is_set("CLATTN_TEST_EVERY"))
                poor_runs(&poor[i], others[n]);
        // Of its own accord clattn always finds a way.
        struct answer a;
        if (!more)
            continue;
        impoverish(&poor[i]);
        ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_AUTO, 0, no_event, no_event);
        if (a.device.quirks & 1 && poor[i].kernel_group)
            atomic_store(&spy->over, 0);
        assert_true(a.run == CLATTN_OK && a.right);
    }
}

// Each kernel needs more local memory than there is, whatever was planned.
static void test_kernel_local(void **state)
{
    (void)state;
    struct answer a;
    spy->kernel_local = (size_t)1 << 30;
    ask(&a, "0", 0, CLATTN_ALGO_FUSED, CLATTN_KERNEL_GROUP, no_event, no_event);
    if (!(a.device.quirks & 1)) {
        assert_int_equal(a.plan, CLATTN_ERR_UNSUPPORTED);
        assert_says(&a, "local memory");
    }
}

// 64 bytes of local memory are too few for any tile.
static void test_no_room(void **state)
{
    (void)state;
    const cl_ulong local = 64;
    struct answer a;
    lie(CL_DEVICE_LOCAL_MEM_SIZE, &local, sizeof local);
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_FUSED, CLATTN_KERNEL_GROUP, no_event,
        no_event);
    assert_int_equal(a.plan, CLATTN_ERR_UNSUPPORTED);
    assert_says(&a, "local memory");
}

static void test_no_compiler(void **state)
{
    (void)state;
    const cl_bool no = CL_FALSE;
    struct answer a;
    lie(CL_DEVICE_COMPILER_AVAILABLE, &no, sizeof no);
    ask(&a, "0", 0, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.context, CLATTN_ERR_UNSUPPORTED);
    assert_says(&a, "compiler");
    ask(&a, NULL, 0, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.run, CLATTN_OK);
    assert_true(a.right);
    assert_int_equal(a.device.type, CLATTN_DEVICE_BUILTIN_CPU);
}

// What is older than OpenCL 1.2 lacks functions; a loader would jump to where they are not.
static void test_old(void **state)
{
    static const char *const versions[] = {"OpenCL 1.0 old", "OpenCL 1.1 less so", "OpenCL 0.9"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct answer a;
        tell_the_truth();
        lie_text(CL_DEVICE_VERSION, versions[i], strlen(versions[i]) + 1, 0);
        ask(&a, "0", 0, CLATTN_ALGO_AUTO, 0, no_event, no_event);
        assert_int_equal(a.context, CLATTN_ERR_UNSUPPORTED);
        assert_says(&a, versions[i]);
        assert_says(&a, "OpenCL C 1.2");
        ask(&a, NULL, 0, CLATTN_ALGO_AUTO, 0, no_event, no_event);
        assert_true(a.run == CLATTN_OK && a.right);
        assert_int_equal(a.device.type, CLATTN_DEVICE_BUILTIN_CPU);
    }
}

// Many platforms beside the real ones, which have no devices, fail, or have more than they give.
static void test_platforms(void **state)
{
    static const struct {
        cl_int code;
        cl_uint says;
    } p[] = {{CL_DEVICE_NOT_FOUND, 0}, {CL_SUCCESS, 0},   {CL_INVALID_VALUE, 0},
             {CL_SUCCESS, 5},          {CL_SUCCESS, 1000000}, {CL_SUCCESS, UINT32_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof p / sizeof p[0]; i++) {
        struct answer a;
        tell_the_truth();
        spy->platforms = 100;
        spy->platform_code = p[i].code;
        spy->platform_says = p[i].says;
        ask(&a, "0", 0, CLATTN_ALGO_HOST, 0, no_event, no_event);
        assert_true(a.run == CLATTN_OK && a.right);
        assert_true(a.device.type != CLATTN_DEVICE_BUILTIN_CPU);
        assert_says(&a, "of the spy");
    }
}

// ---- broken -------------------------------------------------------------------------------------

static void builds_fail(void)
{
    fail_all(SPY_BuildProgram, CL_BUILD_PROGRAM_FAILURE);
}

static void test_build_fails(void **state)
{
    (void)state;
    struct answer a;
    builds_fail();
    // Nothing is known from before: a program, or that the self-test passed.
    ask(&a, "0", CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.context, CLATTN_ERR_BUILD);
    tell_the_truth();
    ask(&a, "0", CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_FUSED, 0, builds_fail, no_event);
    assert_int_equal(a.plan, CLATTN_ERR_BUILD);
    tell_the_truth();
    ask(&a, "0", CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_AUTO, 0, builds_fail, no_event);
    assert_int_equal(a.run, CLATTN_OK);
    assert_true(a.right);
    assert_int_equal(a.info.algo, CLATTN_ALGO_HOST);
    assert_int_equal(a.info.is_fallback, 1);
}

static void test_compiler_leaves(void **state)
{
    static char log[65536];
    (void)state;
    struct answer a;
    fail_all(SPY_BuildProgram, CL_COMPILER_NOT_AVAILABLE);
    ask(&a, "0", CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.context, CLATTN_ERR_BUILD);
    assert_says(&a, "CL_COMPILER_NOT_AVAILABLE");
    tell_the_truth();
    // What the compiler says is told, without an end too, and if it is as long as this.
    spy->unbuilt = "-";
    spy->build_log = "x.cl:7: error: out of cheese";
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_FUSED, 0, no_event, no_event);
    assert_int_equal(a.plan, CLATTN_ERR_BUILD);
    assert_says(&a, "x.cl:7: error: out of cheese");
    memset(log, 'y', sizeof log - 1);
    spy->build_log = log;
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_FUSED, 0, no_event, no_event);
    assert_int_equal(a.plan, CLATTN_ERR_BUILD);
    assert_says(&a, "yyyy");
}

// Some kernels do nothing.
static void test_some_wrong(void **state)
{
    (void)state;
    struct answer a;
    spy->idle = "fused";
    ask(&a, "0", 0, CLATTN_ALGO_FUSED, 0, no_event, no_event);
    assert_int_equal(a.plan, CLATTN_ERR_SELF_TEST);
    assert_says(&a, "trial");
    ask(&a, "0", 0, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_true(a.run == CLATTN_OK && a.right);
    assert_int_equal(a.info.algo, CLATTN_ALGO_HOST);
    assert_int_equal(a.info.is_fallback, 1);
    assert_says(&a, "trial");
}

// Extensions that are not there: what is built on them does not compile.
static void test_extensions(void **state)
{
    static const char all[] = "cl_khr_fp16 cl_khr_subgroups cl_intel_subgroups "
                              "cl_khr_subgroup_shuffle cl_intel_required_subgroup_size";
    static const char *const unbuilt[] = {"-DSUBGROUPS=1", "-DSUBGROUPS=2", "SUBGROUP_LANES"};
    static const size_t sizes[] = {8, 16, 32};
    const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    (void)state;
    for (int i = 0; i < 3; i++)
        for (size_t claims = 0; claims < 2; claims++) {
            struct answer a;
            tell_the_truth();
            lie_text(CL_DEVICE_EXTENSIONS, all, sizeof all, 0);
            lie_text(0x4108, (const char *)sizes, sizeof sizes, claims ? SIZE_MAX / 2 : 0);
            lie(CL_DEVICE_TYPE, &gpu, sizeof gpu);
            spy->unbuilt = unbuilt[i];
            ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_AUTO, 0, no_event, no_event);
            assert_true(a.run == CLATTN_OK && a.right);
        }
}

static void reads_spoil(void)
{
    spy->spoils_reads = true;
}

// It computes wrong numbers from the start, or from when the context is there.
static void test_wrong_numbers(void **state)
{
    (void)state;
    struct answer a;
    reads_spoil();
    ask(&a, "0", CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.context, CLATTN_ERR_SELF_TEST);
    assert_says(&a, "self-test word");
    // Of its own accord clattn takes another one; here every OpenCL device is as bad.
    ask(&a, NULL, CLATTN_CONTEXT_NO_CACHE, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_int_equal(a.run, CLATTN_OK);
    assert_true(a.right);
    assert_int_equal(a.device.type, CLATTN_DEVICE_BUILTIN_CPU);
    tell_the_truth();
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_FUSED, CLATTN_KERNEL_GROUP, reads_spoil,
        no_event);
    if (a.plan != CLATTN_OK) // where host memory is not shared, the trial reads it
        assert_int_equal(a.plan, CLATTN_ERR_SELF_TEST);
}

static void device_is_lost(void)
{
    spy->loses_device = true;
}

static void test_device_lost(void **state)
{
    (void)state;
    struct answer a;
    ask(&a, "0", 0, CLATTN_ALGO_FUSED, 0, no_event, device_is_lost);
    assert_int_equal(a.plan, CLATTN_OK);
    assert_int_equal(a.run, CLATTN_ERR_OPENCL);
    assert_true(a.log.errors > 0);
    assert_says(&a, "WaitForEvents");
    tell_the_truth();
    ask(&a, "0", 0, CLATTN_ALGO_FUSED, 0, device_is_lost, no_event);
    assert_true(a.plan != CLATTN_OK);
    tell_the_truth();
    ask(&a, "0", 0, CLATTN_ALGO_AUTO, 0, device_is_lost, no_event);
    assert_int_equal(a.info.algo, CLATTN_ALGO_HOST);
    assert_true(a.right);
}

static void memory_runs_out(void)
{
    spy->alloc_limit = 1024;
}

// The driver gives less than it says, and says less than is needed.
static void test_little_memory(void **state)
{
    (void)state;
    const cl_ulong most = 1024;
    struct answer a;
    ask(&a, "0", 0, CLATTN_ALGO_FUSED, 0, no_event, memory_runs_out);
    assert_true(a.run == CLATTN_ERR_OUT_OF_MEMORY);
    tell_the_truth();
    lie(CL_DEVICE_MAX_MEM_ALLOC_SIZE, &most, sizeof most);
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    assert_true(a.run == CLATTN_ERR_OUT_OF_MEMORY || (a.run == CLATTN_OK && a.right));
}

static void expect_answer(const char *what)
{
    struct answer a;
    ask(&a, "0", CLATTN_CONTEXT_NO_SELF_TEST, CLATTN_ALGO_AUTO, 0, no_event, no_event);
    print_message("%s: context %d, plan %d, run %d%s\n", what, (int)a.context, (int)a.plan,
                  (int)a.run, a.right ? ", right" : "");
    assert_true(a.run != CLATTN_OK || a.right);
    assert_true(a.run == CLATTN_OK || a.log.errors > 0);
}

static const struct {
    cl_device_info param;
    size_t size;
} figures[] = {{CL_DEVICE_MAX_COMPUTE_UNITS, 4},     {CL_DEVICE_LOCAL_MEM_SIZE, 8},
               {CL_DEVICE_MAX_WORK_GROUP_SIZE, 8},   {CL_DEVICE_MAX_WORK_ITEM_SIZES, 24},
               {CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8},    {CL_DEVICE_GLOBAL_MEM_SIZE, 8},
               {CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 8}, {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4},
               {CL_DEVICE_TYPE, 8},                  {CL_DEVICE_MEM_BASE_ADDR_ALIGN, 4},
               {CL_DEVICE_LOCAL_MEM_TYPE, 4},        {CL_DEVICE_HOST_UNIFIED_MEMORY, 4},
               {CL_DEVICE_AVAILABLE, 4},             {CL_DEVICE_COMPILER_AVAILABLE, 4}};
enum { FIGURES = sizeof figures / sizeof figures[0] };

// Figures that make no sense, alone and all together: zeros, ones, a byte where there should be
// more, none, and a size that nothing has.
static void test_nonsense(void **state)
{
    static const char *const forms[] = {"zeros", "ones", "one byte", "nothing", "a huge size"};
    static char bytes[2][64];
    (void)state;
    memset(bytes[1], 0xff, sizeof bytes[1]);
    for (int form = 0; form < 5; form++)
        for (int i = 0; i <= FIGURES; i++) {
            char what[64];
            const size_t small = form == 2 ? 1 : 0, claims = form == 4 ? SIZE_MAX : 0;
            tell_the_truth();
            for (int n = 0; n < FIGURES; n++)
                if (i == n || i == FIGURES)
                    lie_text(figures[n].param, bytes[form != 0],
                             form == 2 || form == 3 ? small : figures[n].size, claims);
            // One that fails says so each time; the first and the last are enough of these.
            if (form > 1 && i > 3 && i < FIGURES && !is_set("CLATTN_TEST_EVERY"))
                continue;
            snprintf(what, sizeof what, "figure 0x%x is %s",
                     i < FIGURES ? (unsigned)figures[i].param : 0u, forms[form]);
            expect_answer(what);
        }
}

// Texts that are longer than any field, without an end, empty, of 64 KiB, and of a size that
// nothing has; nonsense as a version.
static void test_texts(void **state)
{
    static const cl_device_info texts[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DRIVER_VERSION,
                                           CL_DEVICE_VERSION, CL_DEVICE_EXTENSIONS,
                                           CL_DEVICE_OPENCL_C_VERSION};
    static const struct {
        size_t size, claims;
    } forms[] = {{0, 0}, {200, 0}, {65536, 0}, {200, SIZE_MAX}};
    static const char version[] = "OpenCL 99999999999999999999.1";
    static char text[65536];
    (void)state;
    memset(text, 'x', sizeof text);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        tell_the_truth();
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            lie_text(texts[i], text, forms[f].size, forms[f].claims);
        expect_answer("texts");
    }
    tell_the_truth();
    lie_text(CL_DEVICE_VERSION, version, sizeof version, 0);
    expect_answer("version");
}

// ---- main ---------------------------------------------------------------------------------------

static void make_data(void)
{
    float *const fill[] = {q, k, v};
    const int counts[] = {NUM_Q, NUM_KV, NUM_KV};
    unsigned seed = 7;
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < counts[t]; i++) {
            seed = seed * 1664525u + 1013904223u;
            fill[t][i] = (float)(seed >> 8) / 4194304.0f - 2.0f;
        }
    struct answer a;
    ask(&a, "cpu", CLATTN_CONTEXT_NO_OPENCL, CLATTN_ALGO_REFERENCE, 0, no_event, no_event);
    assert_int_equal(a.run, CLATTN_OK);
    memcpy(want, o, sizeof o);
}

int main(int argc, char **argv)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0;
    if (!devices_open(devices, &count))
        return 1;
    devices_close(devices, count);
    if (count == 0)
        return SKIP_STATUS;
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_teardown(name, tell_the_truth_again)
        TEST(test_poor),         TEST(test_no_room),       TEST(test_kernel_local),
        TEST(test_no_compiler),  TEST(test_old),           TEST(test_platforms),
        TEST(test_build_fails),  TEST(test_compiler_leaves), TEST(test_some_wrong),
        TEST(test_extensions),   TEST(test_wrong_numbers), TEST(test_device_lost),
        TEST(test_little_memory), TEST(test_nonsense),     TEST(test_texts),
    };
    if (!mkdtemp(cache))
        return 1;
    setenv("CLATTN_CACHE", "1", 1);
    spy = spy_control();
    tell_the_truth();
    make_data();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests_name("liars", tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    return system(command) || failed;
}
