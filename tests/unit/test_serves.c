// SPDX-License-Identifier: Apache-2.0
// Which algorithm serves which feature, as the algorithms themselves propose; the table of
// docs/features.md is what this program prints with the argument "print".
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "algo/algo.h"
#include "plan.h"
#include "planner_devices.h"

static const char *const begin_mark = "<!-- generated: begin -->\n";
static const char *const end_mark = "<!-- generated: end -->\n";

static struct cla_problem problem_of(int32_t algo, uint32_t need)
{
    struct cla_problem p = {.dim_qk = 64, .dim_v = 64, .heads_q = 4, .heads_kv = 2, .group = 2,
                            .max_batch = INT32_MAX, .max_len_q = INT32_MAX,
                            .max_len_kv = INT32_MAX, .algo = algo,
                            .softmax = algo == CLATTN_ALGO_UNFUSED ? 2 : 0};
    p.dtype_q = need == CLA_NEEDS_16_BIT ? CLATTN_DTYPE_F16 : CLATTN_DTYPE_F32;
    p.dtype_kv = need == CLA_NEEDS_INT8 ? CLATTN_DTYPE_I8 : p.dtype_q;
    p.window = need == CLA_NEEDS_WINDOW;
    p.bias = need == CLA_NEEDS_BIAS;
    p.alibi = need == CLA_NEEDS_ALIBI;
    p.softcap = need == CLA_NEEDS_SOFTCAP;
    p.sinks = need == CLA_NEEDS_SINKS;
    p.kv_lens = need == CLA_NEEDS_KV_LENS;
    p.packed_q = p.packed_kv = need == CLA_NEEDS_PACKED;
    p.paged = need == CLA_NEEDS_PAGED;
    p.page_size = p.paged ? 16 : 0;
    return p;
}

// Whether something is proposed; else the refusal names algorithm and feature.
static bool serves(const struct cla_algo *algo, int bit)
{
    static struct cla_ranking ranking;
    const struct cla_problem p = problem_of(algo->id, bit < 0 ? 0 : 1u << bit);
    assert_int_equal(cla_problem_needs(&p), bit < 0 ? 0 : 1u << bit);
    cla_plan_rank(&p, &planner_devices[DEV_POCL], &ranking);
    if (ranking.count > 0)
        return true;
    const char *why = ranking.refusals.text[ranking.refusals.count - 1];
    assert_non_null(strstr(why, algo->name));
    assert_non_null(strstr(why, cla_need_name(bit)));
    return false;
}

// The table as text, which the caller frees.
static char *make_table(void)
{
    char *text = calloc(1, 8192);
    assert_non_null(text);
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(text + n, 8192 - n, __VA_ARGS__)
    ADD("| feature |");
    for (int a = 0; a < cla_algos_count; a++)
        ADD(" `%s` |", cla_algos[a]->name);
    ADD("\n| --- |");
    for (int a = 0; a < cla_algos_count; a++)
        ADD(" --- |");
    for (int bit = -1; bit < CLA_NEEDS_COUNT; bit++) {
        ADD("\n| %s |", bit < 0 ? "float32, causal, boolean mask, LSE" : cla_need_name(bit));
        for (int a = 0; a < cla_algos_count; a++)
            ADD(" %s |", serves(cla_algos[a], bit) ? "yes" : "no");
    }
    ADD("\n");
#undef ADD
    return text;
}

static char *read_page(void)
{
    FILE *f = fopen(FEATURES_PAGE, "rb");
    char *text = calloc(1, 65536);
    assert_true(f && text);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}

static void test_page(void **state)
{
    (void)state;
    char *table = make_table(), *page = read_page();
    const char *begin = strstr(page, begin_mark), *end = strstr(page, end_mark);
    assert_true(begin && end);
    begin += strlen(begin_mark);
    if ((size_t)(end - begin) != strlen(table) || memcmp(begin, table, strlen(table)) != 0)
        fail_msg("the table of docs/features.md is not this one:\n%s", table);
    free(table);
    free(page);
}

static void test_all_serve_the_main_job(void **state)
{
    (void)state;
    for (int a = 0; a < cla_algos_count; a++)
        assert_true(serves(cla_algos[a], -1));
}

// The algorithms that auto takes serve everything, and so does what checks them.
static void test_main_algorithms_lack_nothing(void **state)
{
    (void)state;
    for (int a = 0; a < cla_algos_count; a++)
        if (!cla_algos[a]->by_name_only || cla_algos[a]->id == CLATTN_ALGO_REFERENCE)
            assert_int_equal(cla_algos[a]->lacks, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "print") == 0) {
        char *table = make_table();
        fputs(table, stdout);
        free(table);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_all_serve_the_main_job),
        cmocka_unit_test(test_main_algorithms_lack_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
