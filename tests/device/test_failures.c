// SPDX-License-Identifier: Apache-2.0
// Every OpenCL call can fail. A whole life (context, plan, memory, run, read, destruction) of each
// algorithm is run again and again, and each time another OpenCL call of it fails, with each code
// that such a call may give: the life ends with a status or a right result, leaves no OpenCL object
// behind, and the plan, where there is one by then, is right at its next call.
//
// Which calls: of each function the first ones, the last and some between; with CLATTN_TEST_SMALL
// only the first and the last, with one code; with CLATTN_TEST_EVERY every single one.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "life.h"
#include "open_device.h"
#include "spy.h"

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

static void failure_is_over(void)
{
    spy->fail_at = 0;
}

static struct outcome observe(const struct life *life)
{
    atomic_store(&spy->calls, 0);
    atomic_store(&spy->failed_function, -1);
    for (int i = 0; i < SPY_FUNCTION_COUNT; i++)
        atomic_store(&spy->calls_of[i], 0);
    for (int i = 0; i < SPY_OBJECT_COUNT; i++)
        atomic_store(&spy->objects[i], 0);
    return live(life, failure_is_over);
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

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

// The first three calls of a function, the last, and every 17th; of the small selection the first
// and the last.
static bool chosen(long n, long of)
{
    if (is_set("CLATTN_TEST_EVERY"))
        return true;
    return n == 1 || n == of || (!is_set("CLATTN_TEST_SMALL") && (n <= 3 || n % 17 == 0));
}

static int leaks(char *text, size_t size)
{
    static const char *const names[] = {"device", "context", "queue", "mem",
                                        "program", "kernel", "event"};
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
    const struct outcome out = observe(life);
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
    observe(life); // fills caches, so that all that follow are alike
    struct outcome out = observe(life);
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
            for (const cl_int *code = codes_of(f); chosen(n, of[f]) && *code; code++) {
                fail_once(life, f, n, *code, &tally);
                if (is_set("CLATTN_TEST_SMALL"))
                    break;
            }
    print_message("%s: %ld failures ended with a status, %ld with the right result, %ld badly\n",
                  life->name, tally.failed, tally.survived, tally.bad);
    assert_int_equal(tally.bad, 0);
    assert_true(tally.failed > 0);
    // And the library is as good as ever.
    out = observe(life);
    assert_int_equal(out.status, CLATTN_OK);
    assert_false(out.wrong);
}

// ---- main ---------------------------------------------------------------------------------------

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
    for (int i = 0; i < LIVES; i++)
        tests[i] = (struct CMUnitTest){.name = lives[i].name, .test_func = test_life,
                                       .initial_state = (void *)&lives[i]};
    if (!lives_begin())
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    status = cmocka_run_group_tests_name("failures", tests, NULL, NULL);
    lives_end();
    return status;
}
