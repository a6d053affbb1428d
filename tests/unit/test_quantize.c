// SPDX-License-Identifier: Apache-2.0
// Rounding rows to int8: the bound, ties, zeros, refusals.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clattn/clattn.h"
#include "open_device.h"

enum { ROWS = 7, DIM = 65, STRIDE = 70 };

static float x[ROWS * STRIDE], scale[ROWS + 2];
static int8_t out[ROWS * DIM + 2];

static void fill(void)
{
    for (int i = 0; i < ROWS * STRIDE; i++)
        x[i] = i % STRIDE >= DIM ? NAN
                                 : (float)(i * 7919 % 2003 - 1001) *
                                       powf(10.0f, (float)(i / STRIDE - 3));
    memset(out, 0x55, sizeof out);
    memset(scale, 0x55, sizeof scale);
}

// Every element is within half a step, the largest is 127 of them, and nothing else is written.
static void test_bound(void **state)
{
    (void)state;
    fill();
    for (int d = 0; d < DIM; d++)
        x[2 * STRIDE + d] = 0.0f;
    assert_int_equal(clattn_quantize_i8(NULL, x, ROWS, DIM, STRIDE, out + 1, scale + 1), CLATTN_OK);
    for (int r = 0; r < ROWS; r++) {
        const double s = (double)scale[1 + r];
        int most = 0;
        float largest = 0.0f;
        for (int d = 0; d < DIM; d++) {
            const int q = out[1 + r * DIM + d];
            const double v = (double)x[r * STRIDE + d];
            assert_true(fabs(v - s * q) <= s * 0.5 * (1.0 + 1e-5));
            most = abs(q) > most ? abs(q) : most;
            largest = fmaxf(largest, fabsf(x[r * STRIDE + d]));
        }
        assert_int_equal(most, r == 2 ? 0 : 127);
        const float want = largest / 127.0f; // rounded to float wherever it is computed
        assert_true(scale[1 + r] == want);
    }
    assert_true(scale[3] == 0.0f);
    assert_int_equal(out[0], 0x55);
    assert_int_equal(out[ROWS * DIM + 1], 0x55);
    uint32_t guard;
    memcpy(&guard, &scale[ROWS + 1], 4);
    assert_int_equal(guard, 0x55555555u);
}

static void test_ties(void **state)
{
    static const float ties[] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, 126.5f, -127.0f};
    static const int8_t want[] = {127, 0, 2, 2, 0, -2, -126, 126, -127};
    (void)state;
    assert_int_equal(clattn_quantize_i8(NULL, ties, 1, 9, 0, out, scale), CLATTN_OK);
    assert_true(scale[0] == 1.0f);
    assert_memory_equal(out, want, 9);
}

// Where the scale itself is a denormal number.
static void test_tiny(void **state)
{
    static const float tiny[] = {1e-43f, -5e-44f, 0.0f};
    (void)state;
    assert_int_equal(clattn_quantize_i8(NULL, tiny, 1, 3, 0, out, scale), CLATTN_OK);
    for (int d = 0; d < 3; d++)
        assert_true(abs(out[d]) <= 127 && out[d] * (double)tiny[d] >= 0.0);
}

static void test_refusals(void **state)
{
    struct log_capture log = {0};
    clattn_context_desc desc;
    clattn_context *ctx = NULL;
    (void)state;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "cpu";
    desc.log = log_capture;
    desc.log_user = &log;
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
    static const struct {
        int64_t rows, dim, stride;
        int at; // of an element that is not finite
        clattn_status want;
        const char *says;
    } rows[] = {
        {ROWS, DIM, STRIDE, 4 * STRIDE + 9, CLATTN_ERR_INVALID_ARGUMENT, "row 4: element 9 is "},
        {ROWS, DIM, STRIDE, -1, CLATTN_OK, ""},
        {-1, DIM, STRIDE, -1, CLATTN_ERR_INVALID_ARGUMENT, "rows is -1"},
        {ROWS, 0, STRIDE, -1, CLATTN_ERR_INVALID_ARGUMENT, "dim is 0"},
        {ROWS, DIM, DIM - 1, -1, CLATTN_ERR_STRIDE, "stride is 64"},
        {INT64_MAX, DIM, STRIDE, -1, CLATTN_ERR_STRIDE, "overflow"},
    };
    for (int how = 0; how < 2; how++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            fill();
            memset(&log, 0, sizeof log);
            if (rows[n].at >= 0)
                x[rows[n].at] = how ? INFINITY : NAN;
            assert_int_equal(clattn_quantize_i8(ctx, x, rows[n].rows, rows[n].dim, rows[n].stride,
                                                out, scale),
                             rows[n].want);
            assert_int_equal(log.errors, rows[n].want != CLATTN_OK);
            assert_non_null(strstr(log.text, rows[n].says));
            for (size_t i = 0; rows[n].want != CLATTN_OK && i < sizeof out; i++)
                assert_int_equal(out[i], 0x55);
        }
    assert_int_equal(clattn_quantize_i8(ctx, NULL, 1, 2, 0, out, scale),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_quantize_i8(NULL, x, 1, 2, 0, NULL, scale),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_quantize_i8(NULL, NULL, 0, 2, 0, NULL, NULL), CLATTN_OK);
    clattn_context_destroy(&ctx);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
