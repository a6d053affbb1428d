// SPDX-License-Identifier: Apache-2.0
// Every OpenCL call can fail. A whole life (context, plan, memory, run, read, destruction) of each
// algorithm is run again and again, and each time another OpenCL call of it fails, with each code
// that such a call may give: the life ends with a status or a right result, leaves no OpenCL object
// behind, and the plan, where there is one by then, is right at its next call.
//
// Which calls: of each function the first ones, the last and some between; with
// CLATTN_TEST_EVERY=1 every single one.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../spy/spy.h"
#include "clattn/clattn.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 5, LEN_KV = 70, DIM = 16 };
enum { NUM_Q = BATCH * HEADS_Q * LEN_Q * DIM, NUM_KV = BATCH * HEADS_KV * LEN_KV * DIM };
enum { NUM_LSE = BATCH * HEADS_Q * LEN_Q };
enum { ROWS = 3, LEN = 1000 };

// A way through the library.
struct life {
    const char *name;
    int32_t algo, kernel; // enum clattn_algo and clattn_kernel
    bool host_memory;     // Q, K, V and O in host memory, which is staged
    bool softmax;         // a row softmax instead
};

static const struct life lives[] = {
    {.name = "auto", .algo = CLATTN_ALGO_AUTO},
    {.name = "fused, host memory", .algo = CLATTN_ALGO_FUSED, .host_memory = true},
    {.name = "fused, group", .algo = CLATTN_ALGO_FUSED, .kernel = CLATTN_KERNEL_GROUP},
    {.name = "two_loop", .algo = CLATTN_ALGO_TWO_LOOP},
    {.name = "fused_kv_outer", .algo = CLATTN_ALGO_FUSED_KV_OUTER},
    {.name = "split_kv", .algo = CLATTN_ALGO_SPLIT_KV},
    {.name = "unfused", .algo = CLATTN_ALGO_UNFUSED},
    {.name = "host", .algo = CLATTN_ALGO_HOST},
    {.name = "softmax", .softmax = true},
};
enum { LIVES = sizeof lives / sizeof lives[0] };

static struct spy *spy;
static char cache[] = "/tmp/clattn-failures-XXXXXX";

static float q[NUM_Q], k[NUM_KV], v[NUM_KV], o[NUM_Q], want_o[NUM_Q], want_lse[NUM_LSE];
static float x[ROWS * LEN], y[ROWS * LEN], want_y[ROWS * LEN];
static float lse[NUM_LSE];

// ---- one life -----------------------------------------------------------------------------------

struct outcome {
    clattn_status status; // the first that was not CLATTN_OK
    const char *where;    // the function that gave it
    bool wrong;           // something succeeded, but its result is wrong
    bool silent;          // an error without a message
    char said[512];
};

struct world {
    clattn_context *ctx;
    clattn_plan *plan;
    clattn_softmax_plan *softmax;
    clattn_buf buf[5];
    struct log_capture log;
};

#define STEP(call)                                                                                 \
    do {                                                                                           \
        out->status = (call);                                                                      \
        if (out->status != CLATTN_OK) {                                                            \
            out->where = #call;                                                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)

static bool good(const float *got, const float *want, int count)
{
    for (int i = 0; i < count; i++)
        if (!(got[i] - want[i] < 1e-5f && want[i] - got[i] < 1e-5f))
            return false;
    return true;
}

static void step_memory(struct world *w, const struct life *life, clattn_attention_call *call,
                        struct outcome *out)
{
    const size_t bytes[] = {sizeof q, sizeof k, sizeof v, sizeof o, sizeof lse};
    float *const host[] = {q, k, v, o, lse};
    clattn_buf *const into[] = {&call->q.buf, &call->k.buf, &call->v.buf, &call->o.buf, &call->lse};
    for (int i = 0; i < 5; i++) {
        if (life->host_memory) {
            *into[i] = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = host[i],
                                    .size_bytes = bytes[i]};
            continue;
        }
        STEP(clattn_mem_create(w->ctx, bytes[i], &w->buf[i]));
        STEP(clattn_mem_write(w->ctx, &w->buf[i], host[i], bytes[i]));
        *into[i] = w->buf[i];
    }
}

// Runs and checks; what was not written is NaN before.
static void step_run(struct world *w, const struct life *life, const clattn_attention_call *call,
                     struct outcome *out)
{
    fill_unwritten(o, NUM_Q);
    fill_unwritten(lse, NUM_LSE);
    if (!life->host_memory) {
        STEP(clattn_mem_write(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_write(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    STEP(clattn_attention_run(w->plan, call));
    if (!life->host_memory) {
        STEP(clattn_mem_read(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_read(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    out->wrong = !good(o, want_o, NUM_Q) || !good(lse, want_lse, NUM_LSE);
}

static void step_attention(struct world *w, const struct life *life, struct outcome *out)
{
    clattn_attention_desc desc;
    clattn_attention_call call;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.features = CLATTN_FEATURE_LSE | CLATTN_FEATURE_CAUSAL;
    desc.max_batch = BATCH;
    desc.max_len_q = LEN_Q;
    desc.max_len_kv = LEN_KV;
    desc.algo = life->algo;
    desc.kernel = life->kernel;
    desc.num_splits = life->algo == CLATTN_ALGO_SPLIT_KV ? 2 : 0;
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan));
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = LEN_Q;
    call.len_kv = LEN_KV;
    step_memory(w, life, &call, out);
    if (out->status == CLATTN_OK)
        step_run(w, life, &call, out);
    if (out->status == CLATTN_OK || !call.lse.kind)
        return;
    // The failure is over: the same plan and memory serve.
    struct outcome next = {.status = CLATTN_OK};
    spy->fail_at = 0;
    step_run(w, life, &call, &next);
    if (next.status != CLATTN_OK || next.wrong) {
        out->wrong = true;
        out->where = "the next call";
    }
}

static void step_softmax(struct world *w, struct outcome *out)
{
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.path = CLATTN_SOFTMAX_PATH_OPENCL;
    STEP(clattn_softmax_plan_create(w->ctx, &desc, &w->softmax));
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = ROWS;
    call.len = LEN;
    STEP(clattn_mem_create(w->ctx, sizeof x, &w->buf[0]));
    STEP(clattn_mem_create(w->ctx, sizeof y, &w->buf[1]));
    STEP(clattn_mem_write(w->ctx, &w->buf[0], x, sizeof x));
    call.x = w->buf[0];
    call.y = w->buf[1];
    STEP(clattn_softmax_run(w->softmax, &call));
    STEP(clattn_mem_read(w->ctx, &call.y, y, sizeof y));
    out->wrong = !good(y, want_y, ROWS * LEN);
}

static void step_all(struct world *w, const struct life *life, struct outcome *out)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "0";
    desc.cache_dir = cache;
    desc.log = log_capture;
    desc.log_user = &w->log;
    desc.log_level = CLATTN_LOG_WARN;
    STEP(clattn_context_create(&desc, &w->ctx));
    if (life->softmax)
        step_softmax(w, out);
    else
        step_attention(w, life, out);
}

static struct outcome live(const struct life *life)
{
    struct world w = {.ctx = NULL};
    struct outcome out = {.status = CLATTN_OK};
    atomic_store(&spy->calls, 0);
    atomic_store(&spy->failed_function, -1);
    for (int i = 0; i < SPY_FUNCTION_COUNT; i++)
        atomic_store(&spy->calls_of[i], 0);
    for (int i = 0; i < SPY_OBJECT_COUNT; i++)
        atomic_store(&spy->objects[i], 0);
    step_all(&w, life, &out);
    out.silent = out.status != CLATTN_OK && !w.log.text[0];
    snprintf(out.said, sizeof out.said, "%.500s", w.log.text);
    for (int i = 0; i < 5; i++)
        clattn_mem_destroy(w.ctx, &w.buf[i]);
    clattn_plan_destroy(&w.plan);
    clattn_softmax_plan_destroy(&w.softmax);
    clattn_context_destroy(&w.ctx);
    return out;
}

// ---- which calls fail, and how ------------------------------------------------------------------

// Codes that the function may give, ended by 0. Two are of any call.
static const cl_int *codes_of(int function)
{
    static const cl_int any[] = {CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY, 0};
    static const cl_int memory[] = {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_INVALID_BUFFER_SIZE,
                                    CL_OUT_OF_RESOURCES, 0};
    static const cl_int build[] = {CL_BUILD_PROGRAM_FAILURE, CL_COMPILER_NOT_AVAILABLE,
                                   CL_OUT_OF_HOST_MEMORY, 0};
    static const cl_int device[] = {CL_DEVICE_NOT_AVAILABLE, CL_OUT_OF_HOST_MEMORY, 0};
    static const cl_int binary[] = {CL_INVALID_BINARY, CL_OUT_OF_HOST_MEMORY, 0};
    static const cl_int kernel[] = {CL_INVALID_PROGRAM_EXECUTABLE, CL_OUT_OF_RESOURCES, 0};
    static const cl_int queued[] = {CL_OUT_OF_RESOURCES, CL_MEM_OBJECT_ALLOCATION_FAILURE,
                                    CL_INVALID_WORK_GROUP_SIZE, 0};
    static const cl_int map[] = {CL_MAP_FAILURE, CL_OUT_OF_HOST_MEMORY, 0};
    static const cl_int info[] = {CL_INVALID_VALUE, CL_OUT_OF_RESOURCES, 0};
    switch (function) {
    case SPY_CreateBuffer: return memory;
    case SPY_BuildProgram: return build;
    case SPY_CreateContext:
    case SPY_GetDeviceIDs: return device;
    case SPY_CreateProgramWithBinary: return binary;
    case SPY_CreateKernel: return kernel;
    case SPY_EnqueueNDRangeKernel: return queued;
    case SPY_EnqueueMapBuffer: return map;
    case SPY_GetDeviceInfo:
    case SPY_GetPlatformInfo:
    case SPY_GetMemObjectInfo:
    case SPY_GetProgramInfo: return info;
    default: return any;
    }
}

// The first three calls of a function, the last, and every 17th.
static bool chosen(long n, long of)
{
    return getenv("CLATTN_TEST_EVERY") || n <= 3 || n == of || n % 17 == 0;
}

static int leaks(char *text, size_t size)
{
    static const char *const names[] = {"context", "queue", "mem", "program", "kernel", "event"};
    int count = 0;
    size_t used = 0;
    for (int i = 0; i < SPY_OBJECT_COUNT; i++) {
        const long left = atomic_load(&spy->objects[i]);
        if (left == 0)
            continue;
        count++;
        used += (size_t)snprintf(text + used, size - used, " %+ld %s", left, names[i]);
    }
    return count;
}

struct tally {
    long failed, survived, bad;
};

static void fail_once(const struct life *life, int function, long n, cl_int code,
                      struct tally *tally)
{
    char left[128] = "";
    spy->fail_on = function;
    spy->fail_at = n;
    spy->fail_code = code;
    const struct outcome out = live(life);
    spy->fail_at = 0;
    const int lost = leaks(left, sizeof left);
    if (out.status == CLATTN_OK)
        tally->survived++;
    else
        tally->failed++;
    if (!out.wrong && !out.silent && !lost)
        return;
    tally->bad++;
    print_error("%s: %s number %ld gives %d: status %d (%s)%s%s%s%s\n", life->name,
                spy_name(function), n, (int)code, (int)out.status, out.where ? out.where : "",
                out.wrong ? ", the result is wrong" : "", out.silent ? ", no message" : "",
                lost ? ", left over:" : "", left);
}

static void test_life(void **state)
{
    const struct life *life = *state;
    struct tally tally = {0};
    char left[128] = "";
    spy->fail_at = 0;
    spy->fail_on = -1;
    live(life); // fills caches, so that all that follow are alike
    struct outcome out = live(life);
    if (out.status == CLATTN_ERR_UNSUPPORTED) {
        print_message("%s: not on this device: %s\n", life->name, out.said);
        skip();
    }
    if (out.status != CLATTN_OK || out.wrong)
        fail_msg("%s: without a failure: status %d, %s", life->name, (int)out.status,
                 out.wrong ? "wrong" : out.where);
    if (leaks(left, sizeof left))
        fail_msg("%s: without a failure: left over:%s", life->name, left);
    long of[SPY_FUNCTION_COUNT];
    for (int f = 0; f < SPY_FUNCTION_COUNT; f++)
        of[f] = atomic_load(&spy->calls_of[f]);
    for (int f = 0; f < SPY_FUNCTION_COUNT; f++)
        for (long n = 1; n <= of[f]; n++)
            for (const cl_int *code = codes_of(f); chosen(n, of[f]) && *code; code++)
                fail_once(life, f, n, *code, &tally);
    print_message("%s: %ld failures ended with a status, %ld with the right result, %ld badly\n",
                  life->name, tally.failed, tally.survived, tally.bad);
    assert_int_equal(tally.bad, 0);
    assert_true(tally.failed > 0);
    // And the library is as good as ever.
    out = live(life);
    assert_int_equal(out.status, CLATTN_OK);
    assert_false(out.wrong);
}

// ---- main ---------------------------------------------------------------------------------------

static void references(void)
{
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    unsigned seed = 1;
    float *const fill[] = {q, k, v, x};
    const int counts[] = {NUM_Q, NUM_KV, NUM_KV, ROWS * LEN};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < counts[t]; i++) {
            seed = seed * 1664525u + 1013904223u;
            fill[t][i] = (float)(seed >> 8) / 4194304.0f - 2.0f;
        }
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
    struct outcome ignored = {.status = CLATTN_OK};
    struct world w = {.ctx = ctx};
    const struct life life = {.algo = CLATTN_ALGO_REFERENCE, .host_memory = true};
    step_attention(&w, &life, &ignored);
    assert_int_equal(ignored.status, CLATTN_OK);
    memcpy(want_o, o, sizeof o);
    memcpy(want_lse, lse, sizeof lse);
    clattn_plan_destroy(&w.plan);
    assert_int_equal(clattn_softmax_f32(ctx, CLATTN_SOFTMAX_SAFE, x, want_y, ROWS, LEN),
                     CLATTN_OK);
    clattn_context_destroy(&ctx);
}

static int remove_cache(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    return system(command);
}

int main(int argc, char **argv)
{
    struct test_device devices[DEVICES_MAX];
    struct CMUnitTest tests[LIVES];
    int count = 0, status;
    if (!devices_open(devices, &count))
        return 1;
    devices_close(devices, count);
    if (count == 0)
        return SKIP_STATUS;
    spy = spy_control();
    if (!mkdtemp(cache))
        return 1;
    setenv("CLATTN_CACHE", "1", 1);
    for (int i = 0; i < LIVES; i++)
        tests[i] = (struct CMUnitTest){.name = lives[i].name, .test_func = test_life,
                                       .initial_state = (void *)&lives[i]};
    references();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    status = cmocka_run_group_tests_name("failures", tests, NULL, NULL);
    return remove_cache() || status;
}
