// SPDX-License-Identifier: Apache-2.0
// Every public function is in the shared library, and nothing internal is.
#define CLATTN_EXPERIMENTAL
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/clattn.h"

static void test_exported(void **state)
{
    (void)state;
    static const char *const names[] = {
        "clattn_status_string",        "clattn_version",
        "clattn_context_desc_init",    "clattn_device_count",
        "clattn_device_get_info",      "clattn_context_create",
        "clattn_context_destroy",      "clattn_context_get_device_info",
        "clattn_context_build_count",  "clattn_mem_create",
        "clattn_mem_write",            "clattn_mem_read",
        "clattn_mem_destroy",          "clattn_context_measure",
        "clattn_attention_desc_init",  "clattn_attention_call_init",
        "clattn_attention_plan_create", "clattn_plan_destroy",
        "clattn_plan_workspace_bytes", "clattn_plan_get_info",
        "clattn_plan_get_refusal",     "clattn_attention_run",
        "clattn_attention_f32",        "clattn_context_create_opencl",
        "clattn_context_cl_context",   "clattn_context_cl_device",
        "clattn_attention_enqueue",    "clattn_has_opencl",
        "clattn_attention_list_tiles", "clattn_tune_path",
        "clattn_tune_read",            "clattn_tune_write"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (!dlsym(RTLD_DEFAULT, names[n]))
            fail_msg("%s is not exported", names[n]);
}

static void test_hidden(void **state)
{
    (void)state;
    static const char *const names[] = {"cla_logf", "cla_fail", "cla_problem_from_desc",
                                        "cla_call_check", "cla_tile_rank", "cla_host_forward",
                                        "cla_ref_forward", "cla_algo_fused"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (dlsym(RTLD_DEFAULT, names[n]))
            fail_msg("%s is visible", names[n]);
}

// The library opens OpenCL when it is first needed, and not before.
static void test_opencl_is_not_linked(void **state)
{
    (void)state;
    assert_null(dlsym(RTLD_DEFAULT, "clGetPlatformIDs"));
}

static void test_version_and_texts(void **state)
{
    (void)state;
    assert_int_equal(clattn_version(), CLATTN_VERSION_MAJOR * 10000 + CLATTN_VERSION_MINOR * 100 +
                                           CLATTN_VERSION_PATCH);
    // Each status has a text of its own; numbers that are none have one too.
    for (int a = CLATTN_OK; a <= CLATTN_ERR_INTERNAL; a++) {
        const char *text = clattn_status_string((clattn_status)a);
        assert_non_null(text);
        assert_true(strlen(text) > 1);
        for (int b = CLATTN_OK; b < a; b++)
            assert_string_not_equal(text, clattn_status_string((clattn_status)b));
    }
    assert_non_null(clattn_status_string((clattn_status)-1));
    assert_non_null(clattn_status_string((clattn_status)1000));
}

// The numbers are part of the binary interface.
static void test_numbers(void **state)
{
    (void)state;
    assert_int_equal(CLATTN_ERR_INVALID_ARGUMENT, 1);
    assert_int_equal(CLATTN_ERR_OVER_BOUND, 7);
    assert_int_equal(CLATTN_ERR_OPENCL, 13);
    assert_int_equal(CLATTN_ERR_INTERNAL, 18);
    assert_int_equal(CLATTN_ALGO_FUSED, 1);
    assert_int_equal(CLATTN_ALGO_REFERENCE, 3);
    assert_int_equal(CLATTN_KERNEL_VECTOR, 2);
    assert_int_equal(CLATTN_LAYOUT_STRIDED, 2);
    assert_int_equal(CLATTN_FEATURE_LSE, 4);
    assert_int_equal(CLATTN_BUF_CL_MEM, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exported),
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_opencl_is_not_linked),
        cmocka_unit_test(test_version_and_texts),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests_name("symbols", tests, NULL, NULL);
}
