// SPDX-License-Identifier: Apache-2.0
// Random problems of every feature, on every algorithm and kernel shape, against one expectation in
// double. Each element has a bound of its own (bound.h), so two results that both keep it are
// within twice that of each other. Whether the bounds are too wide is tested, too: the largest
// error of many problems must come near enough to them.
//
// Environment beside that of the tests (open_device.h), whose algorithms are all here by default:
//   CLATTN_TEST_RANDOM  how many problems; default 100 on the CPU path, 3 elsewhere
//   CLATTN_TEST_RUN     how many in a row share their programs, default 10 on the CPU path, which
//                       has none, and 100 elsewhere
//   CLATTN_TEST_SEED    default 1; other seeds make other problems of other storage types
//   CLATTN_TEST_FIRST   number of the first problem, default 0; with CLATTN_TEST_RANDOM=1 that one
//                       alone
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "portable.h"
#include "run_feature.h"

enum {
    FAILED_MAX = 10,
    ENOUGH = 25 // problems after which the largest error says whether a bound is wide
};

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *value = getenv(variable);
    return value && *value ? strtoull(value, NULL, 10) : otherwise;
}

// The largest errors of O stored as a type, and of LSE, as parts of their bounds.
struct largest {
    double part[2];
    int problems;
};

// Least that the largest part must be. Storing O rounds by nearly all that is tolerated for it;
// where all types are of 16 bits, rounded weights are tolerated that few devices have. The
// reference has the operations of the expectation, and mostly its bits.
static double least_part(const struct test_target *t, int output, int32_t dtype)
{
    if (t->algo == CLATTN_ALGO_REFERENCE)
        return 0;
    return output == 0 && dtype != CLATTN_DTYPE_F32 ? 0.3 : 0.05;
}

static int report(const struct test_target *t, const struct largest by_type[3])
{
    static const char *const type[] = {"f32", "f16", "bf16"};
    int wide = 0;
    for (int32_t dtype = 0; dtype < 3; dtype++)
        for (int output = 0; output < 2 && by_type[dtype].problems; output++) {
            const struct largest *l = &by_type[dtype];
            printf("%s: %s, O of %s: %d problems, largest error %.2g of the bound\n", t->name,
                   output ? "LSE" : "O", type[dtype], l->problems, l->part[output]);
            wide += l->problems >= ENOUGH && l->part[output] < least_part(t, output, dtype);
        }
    return wide;
}

static void test_stress(void **state)
{
    const struct test_target *t = *state;
    const bool cpu = t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU;
    const uint64_t seed = number_of("CLATTN_TEST_SEED", 1);
    const uint64_t first = number_of("CLATTN_TEST_FIRST", 0);
    const uint64_t count = number_of("CLATTN_TEST_RANDOM", cpu ? 100 : 3);
    const uint64_t run = number_of("CLATTN_TEST_RUN", cpu ? 10 : 100);
    struct largest by_type[3] = {{{0, 0}, 0}, {{0, 0}, 0}, {{0, 0}, 0}};
    int failed = 0;
    for (uint64_t n = first; n < first + count && failed < FAILED_MAX; n++) {
        const struct feature_case c = feature_stress(algo_lacks(t->algo), seed, n, run);
        struct largest *l = &by_type[c.dtype_o];
        l->problems++;
        if (run_feature(t, &c, l->part))
            continue;
        failed++;
        printf("  to run it again: CLATTN_TEST_SEED=%llu CLATTN_TEST_FIRST=%llu "
               "CLATTN_TEST_RUN=%llu CLATTN_TEST_RANDOM=1\n", (unsigned long long)seed,
               (unsigned long long)n, (unsigned long long)run);
    }
    printf("%s: %llu problems from %llu of seed %llu\n", t->name, (unsigned long long)count,
           (unsigned long long)first, (unsigned long long)seed);
    const int wide = report(t, by_type);
    if (failed || wide)
        fail_msg("%s: %d problems failed, %d bounds are too wide", t->name, failed, wide);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"random problems", test_stress, LEVEL_SMALL},
    };
    setenv("CLATTN_TEST_ALGOS", "fused,host,reference,two_loop,fused_kv_outer,split_kv,unfused", 0);
    targets_with_subgroups = true;
    return targets_main("stress", argc, argv, tests, sizeof tests / sizeof *tests);
}
