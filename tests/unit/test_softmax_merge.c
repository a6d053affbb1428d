// SPDX-License-Identifier: Apache-2.0
// The merge of parts of a row, (m, d) + (m', d'): in whatever order and grouping parts of hard rows
// are merged, the sum is that of the whole row, and a part without entries changes nothing.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "host/softmax.h"

enum { LEN = 1000000, PARTS = 37 };

static const double tolerance = 1e-6;

// ---- rows --------------------------------------------------------------------------------------

static float rising(int i) { return 40.0f * (float)i / LEN; }
static float falling(int i) { return -40.0f * (float)i / LEN; }
static float equal(int i) { return i < 0 ? 0.0f : 0.75f; }
static float outlier_last(int i) { return i == LEN - 1 ? 1e5f : (float)(i % 13); }
static float hidden_first(int i) { return i < LEN / 4 * 3 ? -INFINITY : (float)(i % 5); }
static float alternating(int i) { return i % 2 ? -1e4f : 1e4f; }
static float all_hidden(int i) { return i < 0 ? 0.0f : -INFINITY; }

static const struct {
    const char *name;
    float (*value)(int i);
} rows[] = {{"rising", rising},           {"falling", falling},
            {"equal", equal},             {"outlier last", outlier_last},
            {"hidden first", hidden_first}, {"alternating", alternating},
            {"all hidden", all_hidden}};
enum { ROWS = sizeof rows / sizeof *rows };

// By the definition, in double precision.
static struct cla_row_part sum_of(float (*value)(int), int begin, int end)
{
    struct cla_row_part p = {-INFINITY, 0.0};
    for (int i = begin; i < end; i++)
        p.m = value(i) > p.m ? value(i) : p.m;
    for (int i = begin; i < end && p.m > -INFINITY; i++)
        p.d += exp((double)value(i) - (double)p.m);
    return p;
}

// Parts of uneven lengths, every fifth without entries.
static void cut(float (*value)(int), struct cla_row_part part[PARTS])
{
    int begin = 0;
    for (int n = 0; n < PARTS; n++) {
        const int len = n % 5 == 2 ? 0 : n == PARTS - 1 ? LEN - begin : LEN / PARTS + n % 7 * 100;
        part[n] = sum_of(value, begin, begin + len);
        begin += len;
    }
    assert_int_equal(begin, LEN);
}

static void assert_same(const char *what, struct cla_row_part got, struct cla_row_part want)
{
    if (!(got.m == want.m) || !(fabs(got.d - want.d) <= tolerance * want.d))
        fail_msg("%s: (%.9g, %.12g), expected (%.9g, %.12g)", what, (double)got.m, got.d,
                 (double)want.m, want.d);
}

// ---- tests -------------------------------------------------------------------------------------

static struct cla_row_part from_left(const struct cla_row_part *part, int n)
{
    struct cla_row_part p = part[0];
    for (int i = 1; i < n; i++)
        p = cla_row_merge(p, part[i]);
    return p;
}

static struct cla_row_part from_right(const struct cla_row_part *part, int n)
{
    struct cla_row_part p = part[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = cla_row_merge(part[i], p);
    return p;
}

static struct cla_row_part as_tree(const struct cla_row_part *part, int n)
{
    return n == 1 ? part[0]
                  : cla_row_merge(as_tree(part, n / 2), as_tree(part + n / 2, n - n / 2));
}

// Any grouping gives the sum of the whole row.
static void test_associative(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        struct cla_row_part part[PARTS];
        const struct cla_row_part whole = sum_of(rows[r].value, 0, LEN);
        cut(rows[r].value, part);
        assert_same(rows[r].name, from_left(part, PARTS), whole);
        assert_same(rows[r].name, from_right(part, PARTS), whole);
        assert_same(rows[r].name, as_tree(part, PARTS), whole);
        for (int n = 0; n + 2 < PARTS; n++)
            assert_same(rows[r].name,
                        cla_row_merge(cla_row_merge(part[n], part[n + 1]), part[n + 2]),
                        cla_row_merge(part[n], cla_row_merge(part[n + 1], part[n + 2])));
    }
}

// Any order, too.
static void test_commutative(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        struct cla_row_part part[PARTS], mixed[PARTS];
        cut(rows[r].value, part);
        for (int n = 0; n < PARTS; n++) {
            mixed[n] = part[n * 11 % PARTS];
            assert_same(rows[r].name, cla_row_merge(part[n], part[PARTS - 1 - n]),
                        cla_row_merge(part[PARTS - 1 - n], part[n]));
        }
        assert_same(rows[r].name, from_left(mixed, PARTS), sum_of(rows[r].value, 0, LEN));
    }
}

// Online over single entries: the row that rises rescales its sum at every step.
static void test_single_entries(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        struct cla_row_part p = {-INFINITY, 0.0};
        for (int i = 0; i < LEN; i++) {
            const float x = rows[r].value(i);
            p = cla_row_merge(p, (struct cla_row_part){x, x == -INFINITY ? 0.0 : 1.0});
        }
        assert_same(rows[r].name, p, sum_of(rows[r].value, 0, LEN));
    }
}

// From both sides, bit by bit; of two empty parts too.
static void test_empty_is_identity(void **state)
{
    (void)state;
    const struct cla_row_part empty = {-INFINITY, 0.0};
    const struct cla_row_part parts[] = {{0.0f, 1.0},    {-3.4e38f, 2.5}, {3.4e38f, 1e6},
                                         {1e-30f, 1e-9}, {-1e4f, 7.0},    empty};
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
        const struct cla_row_part left = cla_row_merge(empty, parts[n]);
        const struct cla_row_part right = cla_row_merge(parts[n], empty);
        assert_true(left.m == parts[n].m && left.d == parts[n].d);
        assert_true(right.m == parts[n].m && right.d == parts[n].d);
    }
}

// What is not a number stays visible whatever it is merged with.
static void test_nan_stays(void **state)
{
    (void)state;
    const struct cla_row_part bad = {2.0f, NAN};
    const struct cla_row_part others[] = {{-INFINITY, 0.0}, {1.0f, 3.0}, {1e5f, 1.0}};
    for (size_t n = 0; n < sizeof others / sizeof *others; n++) {
        assert_true(isnan(cla_row_merge(bad, others[n]).d));
        assert_true(isnan(cla_row_merge(others[n], bad).d));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_associative),
        cmocka_unit_test(test_commutative),
        cmocka_unit_test(test_single_entries),
        cmocka_unit_test(test_empty_is_identity),
        cmocka_unit_test(test_nan_stays),
    };
    return cmocka_run_group_tests_name("merge of parts of a row", tests, NULL, NULL);
}
