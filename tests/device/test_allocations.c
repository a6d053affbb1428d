// SPDX-License-Identifier: Apache-2.0
// Every allocation can fail. A whole life (context, plan, memory, run, read, destruction) of each
// algorithm and operation, in which another of the library's own calls of malloc() and its kin
// gives NULL each time: clattn's call ends with a status or a right result, made again it is right,
// and what was allocated is freed at the end.
//
// On a device every third fails, with CLATTN_TEST_SMALL every 13th; with CLATTN_TEST_EVERY each.
//
// The library is linked statically here, with these functions replaced.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "life.h"
#include "open_device.h"

static const struct life host_lives[] = {
    {.name = "CPU path", .algo = CLATTN_ALGO_HOST, .host_memory = true, .no_opencl = true},
    {.name = "reference", .algo = CLATTN_ALGO_REFERENCE, .host_memory = true, .no_opencl = true},
    {.name = "features on the CPU path", .kind = LIFE_FEATURES, .algo = CLATTN_ALGO_HOST,
     .no_opencl = true},
    {.name = "softmax on the CPU path", .kind = LIFE_SOFTMAX, .no_opencl = true},
    {.name = "kv on the CPU path", .kind = LIFE_KV, .no_opencl = true},
};

static const struct life device_lives[] = {
    {.name = "auto", .algo = CLATTN_ALGO_AUTO},
    {.name = "fused, host memory", .algo = CLATTN_ALGO_FUSED, .host_memory = true},
    {.name = "fused, group", .algo = CLATTN_ALGO_FUSED, .kernel = CLATTN_KERNEL_GROUP},
    {.name = "two_loop", .algo = CLATTN_ALGO_TWO_LOOP},
    {.name = "fused_kv_outer", .algo = CLATTN_ALGO_FUSED_KV_OUTER},
    {.name = "split_kv", .algo = CLATTN_ALGO_SPLIT_KV},
    {.name = "unfused", .algo = CLATTN_ALGO_UNFUSED},
    {.name = "CPU path on device memory", .algo = CLATTN_ALGO_HOST},
    {.name = "tiles", .kind = LIFE_TILES, .algo = CLATTN_ALGO_FUSED},
    {.name = "features", .kind = LIFE_FEATURES, .algo = CLATTN_ALGO_FUSED},
    {.name = "softmax", .kind = LIFE_SOFTMAX},
    {.name = "softmax, empty cache", .kind = LIFE_SOFTMAX, .fills_cache = true},
    {.name = "kv", .kind = LIFE_KV},
    {.name = "application", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_HOST},
    {.name = "application, split_kv", .kind = LIFE_APPLICATION, .algo = CLATTN_ALGO_SPLIT_KV},
};
enum { LIVES_MOST = sizeof device_lives / sizeof device_lives[0] };

// ---- the allocator ------------------------------------------------------------------------------

static atomic_long calls, alive, fail_at; // fail_at 0 = none fails

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
char *__real_realpath(const char *path, char *to);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_realpath(const char *path, char *to);
void __wrap_free(void *memory);

static bool fails(void)
{
    return atomic_fetch_add(&calls, 1) + 1 == atomic_load(&fail_at);
}

static void *born(void *memory)
{
    if (memory)
        atomic_fetch_add(&alive, 1);
    return memory;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : born(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : born(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    if (fails())
        return NULL;
    void *memory = __real_realloc(old, size);
    return old ? memory : born(memory);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return fails() ? NULL : born(__real_aligned_alloc(align, size));
}

char *__wrap_realpath(const char *path, char *to)
{
    return fails() ? NULL : born(__real_realpath(path, to));
}

// What the library frees, it has allocated.
void __wrap_free(void *memory)
{
    if (memory)
        atomic_fetch_sub(&alive, 1);
    __real_free(memory);
}

// ---- the test -----------------------------------------------------------------------------------

static void failure_is_over(void)
{
    atomic_store(&fail_at, 0);
}

static struct outcome observe(const struct life *life)
{
    atomic_store(&calls, 0);
    atomic_store(&alive, 0);
    const struct outcome out = live(life, failure_is_over);
    atomic_store(&fail_at, 0);
    return out;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

static void test_life(void **state)
{
    const struct life *life = *state;
    long failed = 0, survived = 0, bad = 0;
    observe(life); // fills what stays for the process
    struct outcome out = observe(life);
    if (out.status == CLATTN_ERR_UNSUPPORTED) {
        print_message("%s: not on this device: %s\n", life->name, out.said);
        skip();
    }
    if (out.status != CLATTN_OK || out.wrong || atomic_load(&alive))
        fail_msg("%s: without a failure: status %d, %s (%s: %s), %ld left", life->name,
                 (int)out.status, out.wrong ? "wrong" : "right", out.where ? out.where : "",
                 out.said, atomic_load(&alive));
    const long all = atomic_load(&calls);
    const long step = life->no_opencl || is_set("CLATTN_TEST_EVERY") ? 1
                      : is_set("CLATTN_TEST_SMALL")                    ? 13
                                                                       : 3;
    long tried = 0;
    for (long n = 1; n <= all; n += step) {
        tried++;
        atomic_store(&fail_at, n);
        out = observe(life);
        failed += out.status != CLATTN_OK;
        survived += out.status == CLATTN_OK;
        if (!out.wrong && !atomic_load(&alive) && !out.silent)
            continue;
        bad++;
        print_error("%s: allocation %ld of %ld: status %d (%s), %ld left%s%s\n", life->name, n, all,
                    (int)out.status, out.where ? out.where : "", atomic_load(&alive),
                    out.wrong ? ", the result is wrong" : "", out.silent ? ", no message" : "");
    }
    print_message("%s: of %ld allocations that failed %ld gave a status, %ld the right result\n",
                  life->name, tried, failed, survived);
    assert_int_equal(bad, 0);
    assert_true(failed > 0);
    out = observe(life);
    assert_int_equal(out.status, CLATTN_OK);
    assert_false(out.wrong);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[LIVES_MOST];
    const bool host = argc > 1 && strcmp(argv[1], "cpu") == 0;
    const struct life *lives = host ? host_lives : device_lives;
    const int count = host ? (int)(sizeof host_lives / sizeof host_lives[0])
                           : (int)(sizeof device_lives / sizeof device_lives[0]);
    if (!host) {
        struct test_device devices[DEVICES_MAX];
        int found = 0;
        if (!devices_open(devices, &found))
            return 1;
        devices_close(devices, found);
        if (found == 0)
            return SKIP_STATUS;
    }
    if (!lives_begin())
        return 1;
    for (int i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){.name = lives[i].name, .test_func = test_life,
                                       .initial_state = (void *)&lives[i]};
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const int status = _cmocka_run_group_tests("allocations", tests, (size_t)count, NULL, NULL);
    lives_end();
    return status;
}
