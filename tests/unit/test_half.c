// SPDX-License-Identifier: Apache-2.0
// util/half.h: every 16-bit number there is, and the ties and edges of rounding.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "util/half.h"

// What the bits mean, by ldexp.
static double meaning(uint16_t h, int mantissa, int least)
{
    const int e = (h & 0x7fff) >> mantissa, f = h & ((1 << mantissa) - 1);
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (e == 0x7fff >> mantissa)
        return f ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(f + ldexp(1.0, mantissa), e - 1 + least - mantissa)
                     : ldexp(f, least - mantissa));
}

static void every_number_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float a = cla_f16_to_f32((uint16_t)h), b = cla_bf16_to_f32((uint16_t)h);
        const double want_a = meaning((uint16_t)h, 10, -14), want_b = meaning((uint16_t)h, 7, -126);
        if (isnan(want_a))
            assert_true(isnan(a) && isnan(cla_f16_to_f32(cla_f32_to_f16(a))));
        else
            assert_true((double)a == want_a && cla_f32_to_f16(a) == h);
        if (isnan(want_b))
            assert_true(isnan(b) && isnan(cla_bf16_to_f32(cla_f32_to_bf16(b))));
        else
            assert_true((double)b == want_b && cla_f32_to_bf16(b) == h);
    }
}

// Between neighbours: the nearer, at the middle the even one.
static void between(float (*wide)(uint16_t), uint16_t (*narrow)(float), uint16_t infinity)
{
    for (uint32_t h = 0; h + 1 < infinity; h++) {
        const float lo = wide((uint16_t)h), hi = wide((uint16_t)(h + 1));
        const float middle = (float)(((double)lo + (double)hi) / 2.0); // exact
        assert_int_equal(narrow(middle), h % 2 ? h + 1 : h);
        assert_int_equal(narrow(nextafterf(middle, lo)), h);
        assert_int_equal(narrow(nextafterf(middle, hi)), h + 1);
        assert_int_equal(narrow(-middle), (h % 2 ? h + 1 : h) | 0x8000);
    }
}

static void rounds_to_nearest_even(void **state)
{
    (void)state;
    between(cla_f16_to_f32, cla_f32_to_f16, 0x7c00);
    between(cla_bf16_to_f32, cla_f32_to_bf16, 0x7f80);
}

static void edges(void **state)
{
    (void)state;
    assert_int_equal(cla_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(cla_f32_to_f16(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(cla_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(cla_f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(cla_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(cla_f32_to_f16(0x1p-25f), 0); // half of the least: to even
    assert_int_equal(cla_f32_to_f16(nextafterf(0x1p-25f, 1.0f)), 1);
    assert_int_equal(cla_f32_to_f16(1e-45f), 0);
    assert_int_equal(cla_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(cla_f32_to_bf16(3.4028235e38f), 0x7f80);
    // A NaN whose payload lies in the bits that go stays one.
    assert_true(isnan(cla_f16_to_f32(cla_f32_to_f16(cla_bits_float(0x7f800001)))));
    assert_true(isnan(cla_bf16_to_f32(cla_f32_to_bf16(cla_bits_float(0xff800001)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_comes_back),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
