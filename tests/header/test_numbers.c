// SPDX-License-Identifier: Apache-2.0
// The version, the texts of errors, and numbers that are part of the binary interface.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/clattn.h"

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
        cmocka_unit_test(test_version_and_texts),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
