// SPDX-License-Identifier: Apache-2.0
// The group shape's accesses to local memory, by the kernel's own index macros: no two items that
// are served together meet in a bank. No device.
//
// Model: local memory has 32 banks of 4 bytes. An access of 4 bytes serves the 32 items of a warp
// together; one of 16 bytes serves them in 4 phases of 8 neighbouring items, each of which reaches
// over 4 banks. Items that read the same address are served by one broadcast. An item that takes no
// part in a step (the pad of a row, the end of the tile) occupies nothing.
//
// Left out: the reads of P in a careful pass, which only runs where the output is not finite.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// What the kernel gets as literals.
static int TILE_Q, TILE_K, ITEMS_Q, ITEMS_K, CHUNK_D;

#include "group_index.h"
#include "tile.h"

enum { BANKS = 32, WARP = 32, QUAD = 4, TILES_MAX = 16, ABSENT = -1 };

// ---- the model ---------------------------------------------------------------------------------

// How many turns the banks need for the items at[0..n-1], addresses in floats, `width` floats each:
// the most different addresses in one bank.
static int turns(const int *at, int n, int width)
{
    int worst = 0;
    for (int bank = 0; bank < BANKS; bank++) {
        int seen[WARP * QUAD];
        int count = 0;
        for (int i = 0; i < n; i++) {
            for (int w = 0; at[i] != ABSENT && w < width; w++) {
                const int address = at[i] + w;
                bool known = address % BANKS != bank;
                for (int s = 0; s < count && !known; s++)
                    known = seen[s] == address;
                if (!known)
                    seen[count++] = address;
            }
        }
        worst = count > worst ? count : worst;
    }
    return worst;
}

// One access of the whole work-group: at[item] in units of `width` floats, ABSENT for no access.
static int worst_turns(const int *at, int items, int width)
{
    const int together = width == QUAD ? WARP / 4 : WARP;
    int worst = 0;
    for (int first = 0; first < items; first += together) {
        int floats[WARP];
        const int n = items - first < together ? items - first : together;
        for (int i = 0; i < n; i++)
            floats[i] = at[first + i] == ABSENT ? ABSENT : at[first + i] * width;
        const int t = turns(floats, n, width);
        worst = t > worst ? t : worst;
    }
    return worst;
}

// ---- the accesses ------------------------------------------------------------------------------

enum { ITEMS_MAX = 1024 };

static const char *conflict; // what met, of the tile under test

static void expect_one_turn(const char *what, const int *at, int width)
{
    if (worst_turns(at, GROUP_ITEMS, width) > 1 && !conflict)
        conflict = what;
}

static void check_fill(const char *what, int rows, int size)
{
    int at[ITEMS_MAX];
    const int end = rows * GROUP_FILL_SPAN;
    for (int step = 0; step < end; step += GROUP_ITEMS) {
        for (int item = 0; item < GROUP_ITEMS; item++) {
            const int n = step + item;
            const bool fills = n < end && GROUP_FILL_QUAD(n) < GROUP_CHUNK_QUADS;
            at[item] = fills ? GROUP_FILL_AT(n) : ABSENT;
            assert_true(at[item] < size);
        }
        expect_one_turn(what, at, QUAD);
    }
}

static void check_scores(void)
{
    int at[ITEMS_MAX];
    for (int d = 0; d < GROUP_CHUNK_QUADS; d++) {
        for (int a = 0; a < GROUP_ROWS; a++) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_Q_AT(item, a, d);
            expect_one_turn("reading Q", at, QUAD);
        }
        for (int c = 0; c < GROUP_KEYS; c++) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_K_AT(item, c, d);
            expect_one_turn("reading K", at, QUAD);
        }
    }
}

static void check_parts(void)
{
    int at[ITEMS_MAX];
    for (int a = 0; a < GROUP_ROWS; a++) {
        for (int item = 0; item < GROUP_ITEMS; item++)
            at[item] = GROUP_PART_PUT(item, a);
        expect_one_turn("writing parts", at, 1);
        const int width = ITEMS_K % 4 == 0 ? QUAD : 1;
        for (int t = 0; t < ITEMS_K; t += width) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_PART_AT(item, a, t) / width;
            expect_one_turn("reading parts", at, width);
        }
    }
}

static void check_weights_and_values(void)
{
    int at[ITEMS_MAX];
    for (int a = 0; a < GROUP_ROWS; a++) {
        for (int n = 0; n < GROUP_KEYS / 4; n++) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_P_PUT(item, a, n);
            expect_one_turn("writing P", at, QUAD);
        }
        for (int j = 0; j < TILE_K / 4; j++) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_P_AT(item, a, j);
            expect_one_turn("reading P", at, QUAD);
        }
    }
    for (int j = 0; j < TILE_K; j++) {
        for (int n = 0; n < GROUP_VALUES; n++) {
            for (int item = 0; item < GROUP_ITEMS; item++)
                at[item] = GROUP_V_AT(item, j, n);
            expect_one_turn("reading V", at, QUAD);
        }
    }
}

// NULL, or the first access of this tile in which items meet.
static const char *first_conflict(int tile_q, int tile_k, int items_q, int items_k, int chunk_d)
{
    TILE_Q = tile_q;
    TILE_K = tile_k;
    ITEMS_Q = items_q;
    ITEMS_K = items_k;
    CHUNK_D = chunk_d;
    assert_true(GROUP_ITEMS <= ITEMS_MAX);
    conflict = NULL;
    check_fill("filling Q", TILE_Q, TILE_Q * GROUP_PITCH_QUADS);
    check_fill("filling K or V", TILE_K, TILE_K * GROUP_PITCH_QUADS);
    check_scores();
    check_parts();
    check_weights_and_values();
    return conflict;
}

// ---- tests -------------------------------------------------------------------------------------

// Every tile that the planner proposes for any dimension, on devices from nothing to plenty.
static void test_planned_tiles_have_no_conflict(void **state)
{
    (void)state;
    static const size_t local_kib[] = {1, 2, 4, 8, 16, 32, 48, 64, 512};
    static const size_t max_group[] = {1, 16, 64, 128, 256, 1024};
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64, INT32_MAX};
    // Neighbouring dimensions share tiles, so each one is looked at once.
    static struct cla_tile seen[4096];
    int count = 0;
    for (int32_t dim = 1; dim <= 576; dim++) {
        for (size_t i = 0; i < 9 * 6 * 8; i++) {
            const struct cla_caps caps = {.type = CLA_DEVICE_GPU, .compiler = true,
                                          .native_width_f32 = 1, .compute_units = 16,
                                          .max_group = max_group[i / 8 % 6],
                                          .max_items = {1024, 1024, 64},
                                          .local_bytes = local_kib[i / 48] * 1024};
            const struct cla_problem p = {.dim_qk = dim, .dim_v = dim, .group = 1, .heads_q = 1,
                                          .heads_kv = 1, .max_batch = INT32_MAX,
                                          .max_len_q = rows[i % 8],
                                          .max_len_kv = dim % 4 ? 4096 : 1 + dim % 33};
            struct cla_tile t[TILES_MAX];
            const int n = cla_tile_rank(&p, &caps, CLATTN_KERNEL_GROUP, t, TILES_MAX, NULL);
            for (int k = 0; k < n; k++) {
                bool known = false;
                for (int s = 0; s < count && !known; s++)
                    known = seen[s].tile_q == t[k].tile_q && seen[s].tile_k == t[k].tile_k &&
                            seen[s].items_q == t[k].items_q && seen[s].items_k == t[k].items_k &&
                            seen[s].chunk_d == t[k].chunk_d;
                if (known)
                    continue;
                assert_true(count < 4096);
                seen[count++] = t[k];
                const char *what = first_conflict(t[k].tile_q, t[k].tile_k, t[k].items_q,
                                                  t[k].items_k, t[k].chunk_d);
                if (what)
                    fail_msg("%s: items meet when %s", t[k].reason, what);
            }
        }
    }
    print_message("%d tiles\n", count);
    assert_true(count > 100);
}

// The scores of a position and the quad of P that holds them belong to the same keys.
static void test_positions_are_the_keys_in_another_order(void **state)
{
    (void)state;
    static const int tile[][3] = {{32, 16, 8}, {64, 8, 8}, {16, 4, 4}, {8, 4, 2}, {4, 1, 1}};
    for (size_t i = 0; i < sizeof tile / sizeof tile[0]; i++) {
        TILE_K = tile[i][0];
        ITEMS_Q = tile[i][1];
        ITEMS_K = tile[i][2];
        TILE_Q = ITEMS_Q;
        CHUNK_D = 4;
        bool met[64] = {false};
        for (int position = 0; position < TILE_K; position++) {
            const int key = GROUP_KEY_AT(position);
            assert_true(key >= 0 && key < TILE_K && !met[key]);
            met[key] = true;
        }
        for (int item = 0; item < ITEMS_K; item++) {
            for (int c = 0; c < GROUP_KEYS; c++)
                assert_int_equal(GROUP_KEY(item, c), 4 * GROUP_P_PUT(item, 0, c / 4) + c % 4);
        }
    }
}

// The model sees conflicts: rows of 64 channels without the pad start in the same bank.
static void test_without_pad_items_meet(void **state)
{
    (void)state;
    int at[WARP];
    for (int item = 0; item < WARP; item++)
        at[item] = item % 8 * (64 / 4);
    assert_int_equal(worst_turns(at, WARP, QUAD), 8);
    for (int item = 0; item < WARP; item++)
        at[item] = item % 8 * (CLA_GROUP_PITCH(64) / 4);
    assert_int_equal(worst_turns(at, WARP, QUAD), 1);
    // An even number of quads is not enough: rows 0 and 4 meet.
    for (int item = 0; item < WARP; item++)
        at[item] = item % 8 * (64 / 4 + 2);
    assert_int_equal(worst_turns(at, WARP, QUAD), 2);
    // Single floats: every second one, and all the same.
    for (int item = 0; item < WARP; item++)
        at[item] = 2 * item;
    assert_int_equal(worst_turns(at, WARP, 1), 2);
    memset(at, 0, sizeof at);
    assert_int_equal(worst_turns(at, WARP, 1), 1);
}

// A whole tile that the planner must not take is found out.
static void test_a_bad_tile_is_found(void **state)
{
    (void)state;
    // P rows of 9 quads, 4 items to a row: the second row's quads reach over the first's.
    const char *what = first_conflict(8, 32, 8, 4, 64);
    assert_non_null(what);
    assert_string_equal(what, "writing P");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planned_tiles_have_no_conflict),
        cmocka_unit_test(test_positions_are_the_keys_in_another_order),
        cmocka_unit_test(test_without_pad_items_meet),
        cmocka_unit_test(test_a_bad_tile_is_found),
    };
    return cmocka_run_group_tests_name("banks", tests, NULL, NULL);
}
