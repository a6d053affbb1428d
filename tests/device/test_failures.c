// SPDX-License-Identifier: Apache-2.0
// Every OpenCL call can fail. A whole life (context, plan, memory, run, read, destruction) of each
// algorithm and operation is run again and again, and each time another OpenCL call of it fails,
// with each code that such a call may give: clattn's call ends with a status or a right result,
// made again it is right, and the life leaves no OpenCL object behind. Likewise a device that is
// lost at another moment of waiting each time, and stays lost until then.
//
// Which calls: of each function the first, the second, the last and some between, all codes at the
// first; with CLATTN_TEST_SMALL only the first and the last, with one code; in one life every
// question about the device; with CLATTN_TEST_EVERY every single call with each code.
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
    {.name = "tiles", .kind = LIFE_TILES, .algo = CLATTN_ALGO_FUSED},
    {.name = "features", .kind = LIFE_FEATURES, .algo = CLATTN_ALGO_FUSED, .slow = true},
    {.name = "features, host", .kind = LIFE_FEATURES, .algo = CLATTN_ALGO_HOST},
    {.name = "softmax", .kind = LIFE_SOFTMAX},
    {.name = "softmax, empty cache", .kind = LIFE_SOFTMAX, .fills_cache = true},
    {.name = "kv", .kind = LIFE_KV},
    {.name = "application", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_SPLIT_KV},
    {.name = "application, host", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_HOST},
    {.name = "application, fused", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_FUSED,
     .slow = true},
    {.name = "application, two_loop", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_TWO_LOOP,
     .slow = true},
    {.name = "application, fused_kv_outer", .kind = LIFE_APPLICATION,
     .algo = CLATTN_ALGO_FUSED_KV_OUTER, .slow = true},
    {.name = "application, unfused", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_UNFUSED,
     .slow = true},
};
enum { LIVES = sizeof lives / sizeof lives[0] };

static struct spy *spy;

static void failure_is_over(void)
{
    spy->fail_at = spy->lost_at = 0;
    spy->loses_device = false;
}

static struct outcome observe(const struct life *life)
{
    atomic_store(&spy->calls, 0);
    atomic_store(&spy->waits, 0);
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

// How many of its codes the n-th call of a function gives. Each question about the device asks for
// something else: all of them fail where no other kernel and no CPU path can hide it.
static int codes_at(const struct life *life, int function, long n, long of, int codes)
{
    if (is_set("CLATTN_TEST_EVERY"))
        return codes;
    if (function == SPY_GetDeviceInfo && life->kernel == CLATTN_KERNEL_GROUP)
        return 1;
    if (is_set("CLATTN_TEST_SMALL"))
        return n == 1 || n == of;
    return n == 1 ? codes : n == 2 || n == of || n % 17 == 0;
}

// A life that compiles takes long: unless every call fails, only those about programs do.
static bool concerns(const struct life *life, int function)
{
    switch (function) {
    case SPY_CreateProgramWithSource:
    case SPY_BuildProgram:
    case SPY_GetProgramInfo:
    case SPY_GetProgramBuildInfo:
    case SPY_RetainProgram:
    case SPY_CreateKernel: return true;
    default: return !life->fills_cache || is_set("CLATTN_TEST_EVERY");
    }
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
    long failed, survived, bad, unreached; // unreached: nothing failed, another order of calls
};

// One life in which something fails, as `what` says.
static void fail_once(const struct life *life, const char *what, struct tally *tally)
{
    char left[128] = "";
    const struct outcome out = observe(life);
    failure_is_over();
    const int lost = leaks(left, sizeof left);
    if (out.status == CLATTN_OK)
        tally->survived++;
    else
        tally->failed++;
    if (!out.wrong && !out.silent && !lost)
        return;
    tally->bad++;
    print_error("%s: %s: status %d (%s)%s%s%s%s\n", life->name, what, (int)out.status,
                out.where ? out.where : "", out.wrong ? ", the result is wrong" : "",
                out.silent ? ", no message" : "", lost ? ", left over:" : "", left);
}

static void calls_fail(const struct life *life, const long of[SPY_FUNCTION_COUNT],
                       struct tally *tally)
{
    for (int f = 0; f < SPY_FUNCTION_COUNT; f++) {
        const cl_int *codes = codes_of(f);
        int num_codes = 0;
        while (codes[num_codes])
            num_codes++;
        for (long n = 1; concerns(life, f) && n <= of[f]; n++)
            for (int i = 0; i < codes_at(life, f, n, of[f], num_codes); i++) {
                char what[96];
                spy->fail_on = f;
                spy->fail_at = n;
                spy->fail_code = codes[(n - 1 + i) % num_codes];
                snprintf(what, sizeof what, "%s number %ld gives %d", spy_name(f), n,
                         (int)spy->fail_code);
                fail_once(life, what, tally);
                tally->unreached += atomic_load(&spy->failed_function) < 0;
            }
    }
}

static void device_is_lost(const struct life *life, long waits, struct tally *tally)
{
    for (long n = 1; n <= waits && !life->fills_cache; n++) {
        char what[96];
        if (!codes_at(life, -1, n, waits, 1))
            continue;
        spy->lost_at = n;
        snprintf(what, sizeof what, "lost at wait number %ld", n);
        fail_once(life, what, tally);
    }
}

static void test_life(void **state)
{
    const struct life *life = *state;
    struct tally tally = {0}, lost = {0};
    char left[128] = "";
    if (life->slow && is_set("CLATTN_TEST_SMALL"))
        skip();
    failure_is_over();
    observe(life); // fills caches, so that all that follow are alike
    struct outcome out = observe(life);
    if (out.status == CLATTN_ERR_UNSUPPORTED) {
        print_message("%s: not on this device: %s\n", life->name, out.said);
        skip();
    }
    if (out.status != CLATTN_OK || out.wrong)
        fail_msg("%s: without a failure: status %d, %s: %s", life->name, (int)out.status,
                 out.where ? out.where : "wrong", out.said);
    if (leaks(left, sizeof left))
        fail_msg("%s: without a failure: left over:%s", life->name, left);
    long of[SPY_FUNCTION_COUNT];
    for (int f = 0; f < SPY_FUNCTION_COUNT; f++)
        of[f] = atomic_load(&spy->calls_of[f]);
    const long waits = atomic_load(&spy->waits);
    calls_fail(life, of, &tally);
    device_is_lost(life, waits, &lost);
    print_message("%s: %ld failures ended with a status, %ld with the right result, %ld badly; of "
                  "%ld lost devices %ld badly\n", life->name, tally.failed, tally.survived,
                  tally.bad, lost.failed + lost.survived, lost.bad);
    assert_int_equal(tally.bad + lost.bad, 0);
    if (tally.unreached > (tally.failed + tally.survived) / 20)
        fail_msg("%ld calls that were to fail were not made", tally.unreached);
    assert_true(tally.failed > 0 && (lost.failed > 0 || life->fills_cache));
    // And the library is as good as ever.
    out = observe(life);
    assert_int_equal(out.status, CLATTN_OK);
    assert_false(out.wrong);
}

// The callback of an enqueue that failed comes when the context is gone.
static void test_dropped(void **state)
{
    (void)state;
    char left[128] = "";
    for (int i = 0; i < SPY_OBJECT_COUNT; i++)
        atomic_store(&spy->objects[i], 0);
    assert_int_equal(life_application_dropped(), CLATTN_ERR_OUT_OF_MEMORY);
    if (leaks(left, sizeof left))
        fail_msg("left over:%s", left);
}

// ---- main ---------------------------------------------------------------------------------------

int main(int argc, char **argv)
{
    struct test_device devices[DEVICES_MAX];
    struct CMUnitTest tests[LIVES + 1];
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
    tests[LIVES] = (struct CMUnitTest){.name = "dropped", .test_func = test_dropped};
    if (!lives_begin())
        return 1;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    status = cmocka_run_group_tests_name("failures", tests, NULL, NULL);
    lives_end();
    return status;
}
