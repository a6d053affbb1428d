// SPDX-License-Identifier: Apache-2.0
// How CLBlast is looked for, and what it may be given.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ocl/clblast.h"
#include "record_log.h"

static void test_not_found(void **state)
{
    (void)state;
    static const char *const names[] = {"libno-such-clblast.so.1", "/no/such/clblast.so", NULL};
    char why[400];
    assert_null(cla_clblast_open(names, why, sizeof why));
    assert_int_equal(strncmp(why, "CLBlast not found: tried libno-such-clblast.so.1 (", 50), 0);
    assert_non_null(strstr(why, "), /no/such/clblast.so ("));
}

// A library of that name that is something else.
static void test_wrong_library(void **state)
{
    (void)state;
    static const char *const names[] = {"libc.so.6", NULL};
    char why[400], shorter[20];
    assert_null(cla_clblast_open(names, why, sizeof why));
    assert_string_equal(why, "CLBlast not found: tried libc.so.6 (has no function "
                             "CLBlastSgemmStridedBatched)");
    assert_null(cla_clblast_open(names, shorter, sizeof shorter));
    assert_string_equal(shorter, "CLBlast not found: ");
}

static cl_int CL_API_CALL other_function(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                         const size_t *offset, const size_t *global,
                                         const size_t *local, cl_uint num_wait,
                                         const cl_event *wait, cl_event *done)
{
    (void)queue;
    (void)kernel;
    (void)dims;
    (void)offset;
    (void)global;
    (void)local;
    (void)num_wait;
    (void)wait;
    (void)done;
    return CL_INVALID_OPERATION;
}

static void test_other_loader(void **state)
{
    (void)state;
    struct record r;
    record_start(&r, CLATTN_LOG_INFO);
    char why[700] = "";
    const struct cla_clblast *blast = cla_clblast_shared(&r.log, why, sizeof why);
    if (!blast) {
        printf("no CLBlast here: %s\n", why);
        assert_int_equal(strncmp(why, "CLBlast not found: tried ", 25), 0);
        skip();
    }
    assert_non_null(strstr(r.text, "CLBlast is /"));
    assert_ptr_equal(cla_clblast_shared(&r.log, why, sizeof why), blast); // it is the process's
    struct cla_cl *cl = NULL;
    assert_int_equal(cla_cl_open(NULL, &r.log, &cl), CLATTN_OK);
    assert_true(cla_clblast_same_loader(blast, cl, why, sizeof why));
    cl->EnqueueNDRangeKernel = other_function;
    assert_false(cla_clblast_same_loader(blast, cl, why, sizeof why));
    assert_non_null(strstr(why, "CLBlast calls the OpenCL library /"));
    assert_non_null(strstr(why, ", this context is of "));
    cla_cl_close(&cl);
}

static void test_takes(void **state)
{
    (void)state;
    const struct cla_matrices dense = {NULL, 0, 8, 40}, behind = {NULL, 4, 8, 40};
    const struct cla_matrices apart = {NULL, 0, 8, 48}, padded = {NULL, 4, 9, 60};
    assert_true(cla_clblast_takes(&dense, 5, 8));
    assert_false(cla_clblast_takes(&behind, 5, 8));
    assert_false(cla_clblast_takes(&apart, 5, 8));
    assert_true(cla_clblast_takes(&padded, 5, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_wrong_library),
        cmocka_unit_test(test_other_loader),
        cmocka_unit_test(test_takes),
    };
    return cmocka_run_group_tests_name("clblast", tests, NULL, NULL);
}
