// SPDX-License-Identifier: Apache-2.0
// Tuning files: reading, writing and looking up; and what planning makes of named tiles. No device.
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "plan.h"
#include "planner_devices.h"
#include "ref/ref.h"
#include "tile_check.h"
#include "tune.h"

#define DEVICE "device \"Platform\" \"RX 6900 XT\" \"1.2\" \"0.1.0\"\n"
#define KEY "fused dims 64/64 types f32/f32/f32 mask none pages no rows 1024-* keys 1024-16384 "
#define TILE "tile group tile_q 32 tile_k 32 items_q 16 items_k 8 chunk_d 64 ratio 1.134\n"

static struct cla_tune parsed(const char *text)
{
    struct cla_tune t = {.rows = 0};
    char why[CLA_TUNE_WHY];
    if (!cla_tune_parse(text, strlen(text), false, &t, why))
        fail_msg("%s", why);
    return t;
}

static struct cla_problem problem_of(int32_t dim, int32_t len_q, int32_t len_kv, uint32_t features)
{
    const struct cla_log silent = {0};
    clattn_attention_desc d;
    struct cla_problem p;
    clattn_attention_desc_init(&d, sizeof d);
    d.dim_qk = dim;
    d.heads_q = 8;
    d.max_batch = 4;
    d.max_len_q = len_q;
    d.max_len_kv = len_kv;
    d.features = features;
    assert_int_equal(cla_problem_from_desc(&d, &silent, &p), CLATTN_OK);
    return p;
}

// ---- reading -----------------------------------------------------------------------------------

static void test_good_text(void **state)
{
    (void)state;
    struct cla_tune t = parsed(
        "clattn-tune 1\r\n"
        "# a comment with a word of far more than thirty-two characters: "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
        "\n"
        "\tdevice  \"Plat \\\"form\\\\\" \"RX*\" \"1.2\" \"0.1.0\"  \n"
        "  split_kv dims 576/512 types f16/int8/bf16 mask general pages yes rows 1-1 keys 5-7 "
        "tile vector tile_q 1 tile_k 32 width 8 ratio 2\n"
        KEY "planner"); // no line break at the end
    assert_int_equal(t.rows, 2);
    assert_int_equal(t.devices, 1);
    assert_string_equal(t.device[0].platform, "Plat \"form\\");
    const struct cla_tune_row *r = &t.row[0];
    assert_int_equal(r->key.algo, CLATTN_ALGO_SPLIT_KV);
    assert_int_equal(r->key.dim_qk, 576);
    assert_int_equal(r->key.dim_v, 512);
    assert_int_equal(r->key.dtype_q, CLATTN_DTYPE_F16);
    assert_int_equal(r->key.dtype_kv, CLATTN_DTYPE_I8);
    assert_int_equal(r->key.dtype_o, CLATTN_DTYPE_BF16);
    assert_int_equal(r->key.mask_kind, CLA_MASK_GENERAL);
    assert_int_equal(r->key.paged, 1);
    assert_int_equal(r->key.rows_hi, 1);
    assert_int_equal(r->key.keys_lo, 5);
    assert_int_equal(r->tile.kernel, CLATTN_KERNEL_VECTOR);
    assert_int_equal(r->tile.tile_k, 32);
    assert_int_equal(r->permille, 2000);
    assert_int_equal(t.row[1].tile.kernel, CLATTN_KERNEL_AUTO);
    assert_int_equal(t.row[1].key.rows_hi, INT32_MAX);
    cla_tune_free(&t);
}

#define HEAD "clattn-tune 1\n" DEVICE
#define LONG "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234"

static const struct {
    const char *text, *why;
} broken[] = {
    {"", "empty"},
    {"\n", "line 1: \"\" where \"clattn-tune\""},
    {"# comment first\nclattn-tune 1\n", "line 1"},
    {"clattn-tune 2\n", "line 1: format 2, this library reads 1"},
    {"clattn-tune one\n", "line 1: the format is \"one\""},
    {"clattn-tune 1 1\n", "line 1: something follows"},
    {"clattn-tune 1\n" KEY TILE, "line 2: a row before the first device"},
    {"clattn-tune 1\ndevice \"a\" \"b\" \"c\"\n", "line 2: a text in quotes is missing"},
    {"clattn-tune 1\ndevice \"a\" \"b\" \"c\" \"d\n", "line 2: a text without its closing quote"},
    {"clattn-tune 1\ndevice \"a\" \"b\" \"c\" \"d\\", "line 2: a text without its closing quote"},
    {"clattn-tune 1\ndevice \"a\" \"b\" \"c\" \"" LONG "\"\n", "line 2: a text of 32 bytes"},
    {"clattn-tune 1\ndevices \"a\" \"b\" \"c\" \"d\"\n", "line 2: \"devices\" where \"device\""},
    {HEAD "host dims 64/64\n", "line 3: \"host\" is no algorithm with tiles"},
    {HEAD "fused " LONG "\n", "line 3: a word of 32 characters"},
    {HEAD "fused dims 0/64\n", "dims are \"0/64\""},
    {HEAD "fused dims 64/577\n", "dims are \"64/577\""},
    {HEAD "fused dims 64\n", "dims are \"64\""},
    {HEAD "fused dims 99999999999/64\n", "dims are"},
    {HEAD "fused dims 64/64 types f32/f32\n", "types are \"f32/f32\""},
    {HEAD "fused dims 64/64 types int8/f32/f32\n", "types are"},
    {HEAD "fused dims 64/64 types f32/f32/f32/f32\n", "types are"},
    {HEAD "fused dims 64/64 types f32/f32/f32 mask all\n", "mask is \"all\""},
    {HEAD "fused dims 64/64 types f32/f32/f32 mask none pages maybe\n", "\"maybe\" is no yes"},
    {HEAD "fused dims 64/64 types f32/f32/f32 mask none pages no rows 9-8\n", "rows are \"9-8\""},
    {HEAD "fused dims 64/64 types f32/f32/f32 mask none pages no rows -8\n", "rows are \"-8\""},
    {HEAD "fused dims 64/64 types f32/f32/f32 mask none pages no rows 1-* keys *\n",
     "keys are \"*\""},
    {HEAD KEY "\n", "\"\" where \"tile\" or \"planner\""},
    {HEAD KEY "planner now\n", "something follows"},
    {HEAD KEY "tile matrix\n", "\"matrix\" is no kernel shape"},
    {HEAD KEY "tile group tile_q\n", "tile_q is \"\""},
    {HEAD KEY "tile group tile_q -4 ratio 1\n", "tile_q is \"-4\""},
    {HEAD KEY "tile group tile_q 4294967300 ratio 1\n", "tile_q is"},
    {HEAD KEY "tile group tile_q 4 tile_q 4 ratio 1\n", "tile_q comes twice"},
    {HEAD KEY "tile group rows 4 ratio 1\n", "\"rows\" is no number of a tile"},
    {HEAD KEY "tile group tile_q 4\n", "\"\" is no number of a tile"},
    {HEAD KEY "tile group ratio 1.0001\n", "the ratio is"},
    {HEAD KEY "tile group ratio 1,5\n", "the ratio is"},
    {HEAD KEY "tile group ratio nan\n", "the ratio is"},
    {HEAD KEY "tile group ratio 0.000\n", "the ratio is"},
    {HEAD KEY "tile group ratio 1000.001\n", "the ratio is"},
    {HEAD KEY "tile group ratio 1.\n", "the ratio is"},
    {HEAD "\x01\n", "line 3: a control character"},
};

static void test_broken_texts(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof broken / sizeof *broken; n++) {
        struct cla_tune t = {.rows = 0};
        char why[CLA_TUNE_WHY];
        if (cla_tune_parse(broken[n].text, strlen(broken[n].text), false, &t, why))
            fail_msg("accepted: %s", broken[n].text);
        if (!strstr(why, broken[n].why))
            fail_msg("\"%s\" is not in: %s", broken[n].why, why);
        cla_tune_free(&t);
    }
    // A zero byte does not end a line unseen, and a line has an end.
    static const char zero[] = HEAD KEY "planner\0";
    char line[2048], why[CLA_TUNE_WHY];
    struct cla_tune t = {.rows = 0};
    assert_false(cla_tune_parse(zero, sizeof zero - 1, false, &t, why));
    assert_non_null(strstr(why, "a control character"));
    cla_tune_free(&t);
    memset(line, ' ', sizeof line);
    memcpy(line, HEAD, strlen(HEAD));
    assert_false(cla_tune_parse(line, sizeof line, false, &t, why));
    assert_non_null(strstr(why, "line 3: 1024 bytes or more"));
    cla_tune_free(&t);
}

static void test_too_many_rows(void **state)
{
    (void)state;
    static const char row[] = KEY "planner\n";
    struct cla_tune t = {.rows = 0};
    char why[CLA_TUNE_WHY];
    const size_t head = strlen(HEAD), each = strlen(row);
    char *text = malloc(head + (CLA_TUNE_ROWS + 1) * each + 1);
    assert_non_null(text);
    memcpy(text, HEAD, head);
    for (size_t n = 0; n <= CLA_TUNE_ROWS; n++)
        memcpy(text + head + n * each, row, each);
    assert_true(cla_tune_parse(text, head + CLA_TUNE_ROWS * each, false, &t, why));
    assert_int_equal(t.rows, CLA_TUNE_ROWS);
    cla_tune_free(&t);
    assert_false(cla_tune_parse(text, head + (CLA_TUNE_ROWS + 1) * each, false, &t, why));
    assert_non_null(strstr(why, "more than 4096 rows"));
    cla_tune_free(&t);
    free(text);
}

// Whatever the bytes, reading ends, and what it took can be written and read again.
static void try_bytes(const char *bytes, size_t size)
{
    struct cla_tune t = {.rows = 0}, again = {.rows = 0};
    char why[CLA_TUNE_WHY];
    char *copy = malloc(size + 1); // so that a sanitizer sees what is read behind the end
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    if (cla_tune_parse(copy, size, false, &t, why)) {
        size_t length = 0;
        char *text = cla_tune_format(&t, &length);
        assert_non_null(text);
        if (!cla_tune_parse(text, length, false, &again, why))
            fail_msg("%s in what was written:\n%s", why, text);
        assert_int_equal(again.rows, t.rows);
        for (int r = 0; r < t.rows; r++)
            assert_memory_equal(&again.row[r].tile, &t.row[r].tile, sizeof t.row[r].tile);
        free(text);
    } else {
        assert_true(why[0] != '\0');
    }
    cla_tune_free(&t);
    cla_tune_free(&again);
    free(copy);
}

static void test_any_bytes(void **state)
{
    (void)state;
    static const char good[] = HEAD KEY TILE
        "split_kv dims 80/80 types f16/f16/f16 mask window pages yes rows 1-8 keys 1-255 tile "
        "vector tile_q 8 tile_k 32 width 8 ratio 1.5\n";
    uint64_t seed = 7;
    char bytes[sizeof good];
    for (size_t n = 0; n < sizeof good; n++)
        try_bytes(good, n);
    for (int n = 0; n < 4000; n++) {
        memcpy(bytes, good, sizeof good);
        for (int k = 0; k <= n % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[(seed >> 33) % (sizeof good - 1)] = (char)(seed >> 24);
        }
        try_bytes(bytes, sizeof good - 1);
    }
}

// Numbers are the same whatever the locale writes between whole and part.
static void test_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C.UTF-8"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (setlocale(LC_ALL, names[n]))
            break;
    struct cla_tune t = parsed(HEAD KEY TILE);
    size_t size = 0;
    char *text = cla_tune_format(&t, &size);
    assert_int_equal(t.row[0].permille, 1134);
    assert_non_null(strstr(text, "ratio 1.134\n"));
    setlocale(LC_ALL, "C");
    free(text);
    cla_tune_free(&t);
}

// ---- writing and looking up ---------------------------------------------------------------------

static void test_round_trip(void **state)
{
    (void)state;
    struct cla_tune t = {.rows = 0};
    struct cla_tune_device a, b;
    struct cla_caps caps = planner_devices[DEV_RDNA2];
    struct cla_tune_row row = {.permille = 1134, .tile = {.kernel = CLATTN_KERNEL_GROUP,
        .tile_q = 32, .tile_k = 32, .items_q = 16, .items_k = 8, .chunk_d = 64}};
    struct cla_problem p = problem_of(64, 2048, 2048, CLATTN_FEATURE_CAUSAL);
    snprintf(caps.platform, sizeof caps.platform, "A \"quoted\\\" name\x01");
    snprintf(caps.driver, sizeof caps.driver, "1");
    cla_tune_device_of(&caps, &a);
    snprintf(caps.driver, sizeof caps.driver, "2");
    cla_tune_device_of(&caps, &b);
    cla_tune_key_of(&p, CLATTN_ALGO_FUSED, &row.key);
    assert_true(cla_tune_put(&t, &a, &row));
    assert_true(cla_tune_put(&t, &b, &row));
    row.permille = 1200;
    assert_true(cla_tune_put(&t, &a, &row)); // takes the first one's place
    assert_int_equal(t.rows, 2);
    assert_int_equal(t.devices, 2);
    size_t size = 0;
    char *text = cla_tune_format(&t, &size);
    struct cla_tune back = parsed(text);
    assert_int_equal(back.rows, 2);
    const struct cla_tune_row *found = cla_tune_find(&back, &a, &row.key);
    assert_non_null(found);
    assert_int_equal(found->permille, 1200);
    assert_memory_equal(&found->tile, &row.tile, sizeof row.tile);
    // Of the two drivers' rows one is this device's, the other one is not believed.
    int stale = 0;
    cla_tune_select(&back, &b, &stale);
    assert_int_equal(stale, 1);
    assert_int_equal(back.rows, 1);
    assert_int_equal(back.row[0].permille, 1134);
    free(text);
    cla_tune_free(&t);
    cla_tune_free(&back);
}

static void test_look_up(void **state)
{
    (void)state;
    struct cla_tune t = parsed(HEAD KEY TILE KEY "planner\n");
    struct cla_problem p = problem_of(64, 1024, 2000, 0);
    assert_ptr_equal(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED), &t.row[0]);
    assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_SPLIT_KV));
    p.max_len_q = INT32_MAX; // times any group there are more
    p.group = 8;
    assert_non_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    p.max_len_q = 127;
    assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    p.max_len_q = 128;
    assert_non_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    const struct cla_problem good = p;
    p.max_len_kv = 16385;
    assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    p.max_len_kv = 1023;
    assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    int32_t *const field[] = {&p.dim_qk, &p.dim_v, &p.dtype_q, &p.dtype_kv, &p.dtype_o};
    for (size_t n = 0; n < sizeof field / sizeof *field; n++) {
        p = good;
        ++*field[n];
        assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    }
    bool *const flag[] = {&p.causal, &p.window, &p.mask, &p.bias, &p.alibi, &p.softcap, &p.paged};
    for (size_t n = 0; n < sizeof flag / sizeof *flag; n++) {
        p = good;
        *flag[n] = true;
        assert_null(cla_tune_look_up(&t, &p, CLATTN_ALGO_FUSED));
    }
    cla_tune_free(&t);
}

// Every problem is in the class that a measurement of itself is written for, and classes do not
// overlap.
static void test_classes(void **state)
{
    (void)state;
    struct cla_tune_key last = {.rows_lo = 0, .rows_hi = 0};
    for (int32_t rows = 1; rows < 5000; rows++) {
        struct cla_problem p = problem_of(64, rows, rows, 0);
        struct cla_tune_key key;
        cla_tune_key_of(&p, CLATTN_ALGO_FUSED, &key);
        assert_true(key.rows_lo <= rows && rows <= key.rows_hi);
        assert_true(key.keys_lo <= rows && rows <= key.keys_hi);
        assert_true(key.rows_lo == last.rows_lo || key.rows_lo == last.rows_hi + 1);
        last = key;
    }
    assert_int_equal(last.rows_hi, INT32_MAX);
    assert_int_equal(last.keys_hi, CLA_LONG_ROWS_KEYS);
}

static void test_builtin_table(void **state)
{
    (void)state;
    struct cla_tune t = {.rows = 0};
    char why[CLA_TUNE_WHY];
    if (!cla_tune_parse(cla_tune_table, strlen(cla_tune_table), true, &t, why))
        fail_msg("%s", why);
    for (int r = 0; r < t.rows; r++) {
        assert_true(t.row[r].builtin);
        assert_true(t.row[r].tile.kernel && t.row[r].permille > 1030);
    }
    // A file that is written has none of them.
    size_t size = 0;
    char *text = cla_tune_format(&t, &size);
    assert_null(strstr(text, "\ndevice"));
    free(text);
    cla_tune_free(&t);
}

// Behind a file that leaves no room for them, or for one.
static void test_builtin_behind_a_full_file(void **state)
{
    (void)state;
    struct cla_tune table = {.rows = 0};
    char why[CLA_TUNE_WHY];
    assert_true(cla_tune_parse(cla_tune_table, strlen(cla_tune_table), true, &table, why));
    assert_true(table.rows > 0);
    const struct cla_tune_device of = table.device[table.row[0].device];
    int rows = 0, stale = 0, left_out = -1;
    cla_tune_select(&table, &of, &stale);
    rows = table.rows;
    cla_tune_free(&table);
    assert_true(rows > 0);
    for (int room = 0; room < 2; room++) {
        struct cla_tune full = {.rows = 0};
        struct cla_tune_device other = {.name = "another"};
        for (int d = 0; d < CLA_TUNE_ROWS - room; d++)
            assert_true(cla_tune_add_device(&full, &other));
        assert_true(cla_tune_add_builtin(&full, &of, &left_out));
        assert_int_equal(full.rows, room);
        assert_int_equal(left_out, rows - room);
        cla_tune_free(&full);
    }
    struct cla_tune empty = {.rows = 0};
    assert_true(cla_tune_add_builtin(&empty, &of, &left_out));
    assert_int_equal(empty.rows, rows);
    assert_int_equal(left_out, 0);
    cla_tune_free(&empty);
}

// ---- planning ----------------------------------------------------------------------------------

static struct cla_ranking ranking;

static const struct cla_choice *rank(const struct cla_problem *p, const struct cla_caps *caps,
                                     const struct cla_tune *tune)
{
    cla_plan_rank_tuned(p, caps, tune, &ranking);
    return ranking.count ? &ranking.choice[0] : NULL;
}

static bool refused_with(const char *part)
{
    for (int n = 0; n < ranking.refusals.count; n++)
        if (strstr(ranking.refusals.text[n], part))
            return true;
    return false;
}

static void test_tuned_comes_first(void **state)
{
    (void)state;
    const struct cla_caps *gpu = &planner_devices[DEV_RDNA2];
    struct cla_problem p = problem_of(64, 2048, 2048, 0);
    struct cla_tune t = parsed(HEAD KEY TILE);
    snprintf(t.source, sizeof t.source, "file x.txt");
    const struct cla_tile own = rank(&p, gpu, NULL)->tile;
    const int count = ranking.count;
    assert_int_equal(own.tile_q, 64);
    const struct cla_choice *first = rank(&p, gpu, &t);
    assert_int_equal(first->algo->id, CLATTN_ALGO_FUSED);
    assert_int_equal(first->tile.tile_q, 32);
    assert_int_equal(first->tile.chunk_d, 64);
    assert_int_equal(first->tile.local_bytes, CLA_GROUP_LOCAL_BYTES(32, 32, 64));
    assert_non_null(
        strstr(first->tile.reason, "tuned: file x.txt, x 1.13 of the planner's choice"));
    assert_int_equal(ranking.choice[1].tile.tile_q, 64); // what is planned without stands behind it
    assert_true(ranking.count == count || ranking.count == count + 1);
    for (int i = 1; i < ranking.count; i++) {
        const clattn_tile a = cla_tile_named(&ranking.choice[0].tile),
                          b = cla_tile_named(&ranking.choice[i].tile);
        assert_false(cla_tile_same(&a, &b));
    }
    // Another problem, another shape of kernels, or a row that says the planner is best.
    p.causal = true;
    assert_int_equal(rank(&p, gpu, &t)->tile.tile_q, 64);
    p.causal = false;
    p.kernel = CLATTN_KERNEL_VECTOR;
    assert_int_equal(rank(&p, gpu, &t)->tile.kernel, CLATTN_KERNEL_VECTOR);
    p.kernel = CLATTN_KERNEL_AUTO;
    cla_tune_free(&t);
    t = parsed(HEAD KEY "planner\n" KEY TILE);
    assert_int_equal(rank(&p, gpu, &t)->tile.tile_q, 64);
    cla_tune_free(&t);
    // Behind a row that the device cannot have, or of another shape, the next one counts.
    t = parsed(HEAD KEY "tile group tile_q 33 tile_k 32 items_q 16 items_k 8 chunk_d 64 ratio 2\n"
               KEY "tile vector tile_q 8 tile_k 64 width 8 vecs_q 1 block_k 4 block_d 4 ratio 3\n"
               KEY TILE);
    p.kernel = CLATTN_KERNEL_GROUP;
    assert_int_equal(rank(&p, gpu, &t)->tile.tile_q, 32);
    assert_true(refused_with("33 rows"));
    cla_tune_free(&t);
}

// Where nothing was measured, plans are what they are without a file, to the last choice.
static void test_nothing_measured(void **state)
{
    (void)state;
    static const int32_t dims[] = {1, 16, 64, 128, 320, 576}, algos[] = {
        CLATTN_ALGO_AUTO, CLATTN_ALGO_FUSED, CLATTN_ALGO_SPLIT_KV, CLATTN_ALGO_TWO_LOOP};
    const struct cla_tune nothing = {.rows = 0};
    static struct cla_ranking without;
    for (int d = 0; d < DEV_COUNT; d++)
        for (size_t k = 0; k < sizeof dims / sizeof *dims; k++)
            for (size_t n = 0; n < sizeof algos / sizeof *algos; n++)
                for (int kernel = 0; kernel <= CLATTN_KERNEL_SUBGROUP; kernel++)
                    for (int subgroups = 0; subgroups < 2; subgroups++) {
                        struct cla_problem p = problem_of(dims[k], 1, 16384, 0);
                        struct cla_caps caps = planner_devices[d];
                        p.algo = algos[n];
                        p.kernel = kernel;
                        caps.subgroups = subgroups ? CLA_SUBGROUPS_REQUIRED : caps.subgroups;
                        rank(&p, &caps, NULL);
                        without = ranking;
                        rank(&p, &caps, &nothing);
                        assert_memory_equal(&ranking, &without, sizeof ranking);
                    }
}

static const struct {
    enum planner_device device;
    const char *tile, *why;
} illegal[] = {
    {DEV_RDNA2, "group tile_q 128 tile_k 64 items_q 16 items_k 16 chunk_d 64",
     "bytes of local memory, the device has 65536"},
    {DEV_RDNA2, "group tile_q 64 tile_k 64 items_q 64 items_k 16 chunk_d 16",
     "needs 1024 work-items, the device allows 256"},
    {DEV_RDNA2, "group tile_q 33 tile_k 32 items_q 16 items_k 8 chunk_d 64", "do not share"},
    {DEV_RDNA2, "group tile_q 32 tile_k 36 items_q 16 items_k 8 chunk_d 64", "do not share"},
    {DEV_RDNA2, "group tile_q 32 tile_k 64 items_q 32 items_k 1 chunk_d 64", "do not share"},
    {DEV_RDNA2, "group tile_q 32 tile_k 32", "do not share"},
    {DEV_RDNA2, "group tile_q 32 tile_k 32 items_q 16 items_k 8 chunk_d 62", "chunk_d is 62"},
    {DEV_RDNA2, "group tile_q 32 tile_k 32 items_q 16 items_k 8 chunk_d 68", "chunk_d is 68"},
    {DEV_RDNA2, "group tile_q 999999999 tile_k 32 items_q 1 items_k 8 chunk_d 64", "a tile has"},
    {DEV_RDNA2, "group tile_q 32 tile_k 32 items_q 16 items_k 8 chunk_d 64 width 8",
     "of the vector shape"},
    {DEV_RDNA2, "subgroup tile_q 32 tile_k 32 items_q 16 items_k 8 chunk_d 64",
     "no sub-groups for rows of 8 items"},
    {DEV_POCL, "vector tile_q 24 tile_k 64 width 8 vecs_q 2 block_k 4 block_d 4",
     "24 rows are not 2 vectors of 8"},
    {DEV_POCL, "vector tile_q 24 tile_k 62 width 8 vecs_q 3 block_k 4 block_d 4", "whole ones"},
    {DEV_POCL, "vector tile_q 10 tile_k 64 width 5 vecs_q 2 block_k 4 block_d 4", "width is 5"},
    {DEV_POCL, "vector tile_q 1 tile_k 64 width 8", "only split_kv"},
    {DEV_POCL, "vector tile_q 24 tile_k 64 width 8 vecs_q 3 block_k 4 block_d 4 chunk_d 8",
     "of the group shape"},
};

// A row that the device cannot have is a note, and the planner's choice stands.
static void test_illegal_rows(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(64, 2048, 2048, 0);
    for (size_t n = 0; n < sizeof illegal / sizeof *illegal; n++) {
        char text[512];
        snprintf(text, sizeof text, HEAD KEY "tile %s ratio 1.5\n", illegal[n].tile);
        struct cla_tune t = parsed(text);
        const struct cla_caps *caps = &planner_devices[illegal[n].device];
        const clattn_tile own = cla_tile_named(&rank(&p, caps, NULL)->tile);
        const clattn_tile first = cla_tile_named(&rank(&p, caps, &t)->tile);
        assert_true(cla_tile_same(&own, &first));
        if (!refused_with(illegal[n].why))
            fail_msg("no refusal says \"%s\" of %s", illegal[n].why, illegal[n].tile);
        cla_tune_free(&t);
        // Forced by the caller it leaves nothing.
        struct cla_problem forced = p;
        forced.algo = CLATTN_ALGO_FUSED;
        t = parsed(text);
        forced.tile = t.row[0].tile;
        assert_null(rank(&forced, caps, NULL));
        assert_true(refused_with(illegal[n].why) || ranking.refusals.count > 0);
        cla_tune_free(&t);
    }
    // One that suits large problems leaves small ones without work for all units.
    struct cla_tune t = parsed(HEAD KEY TILE);
    struct cla_problem few = problem_of(64, 1024, 2048, 0);
    few.heads_kv = few.heads_q = few.max_batch = 1;
    assert_true(rank(&few, &planner_devices[DEV_HOPPER], &t)->tile.tile_q < 32);
    assert_true(refused_with("fewer work-groups than the 132 compute units"));
    cla_tune_free(&t);
}

// The arrays of a vector tile have to fit the stack of a driver's thread.
static void test_private_memory(void **state)
{
    (void)state;
    static const struct {
        clattn_tile tile;
        int32_t algo, dtype_kv;
        bool paged, fits;
    } row[] = {
        {{CLATTN_KERNEL_VECTOR, 256, 512, 0, 0, 0, 16, 16, 8, 8, {0}}, CLATTN_ALGO_FUSED,
         CLATTN_DTYPE_F16, false, false},
        {{CLATTN_KERNEL_VECTOR, 256, 16, 0, 0, 0, 16, 16, 8, 8, {0}}, CLATTN_ALGO_FUSED,
         CLATTN_DTYPE_F32, false, false},
        {{CLATTN_KERNEL_VECTOR, 16, 512, 0, 0, 0, 16, 1, 8, 8, {0}}, CLATTN_ALGO_FUSED,
         CLATTN_DTYPE_F32, false, true},
        {{CLATTN_KERNEL_VECTOR, 16, 512, 0, 0, 0, 16, 1, 8, 8, {0}}, CLATTN_ALGO_FUSED,
         CLATTN_DTYPE_F16, false, false},
        {{CLATTN_KERNEL_VECTOR, 1, 512, 0, 0, 0, 8, 0, 0, 0, {0}}, CLATTN_ALGO_SPLIT_KV,
         CLATTN_DTYPE_F16, false, true},
        {{CLATTN_KERNEL_VECTOR, 1, 512, 0, 0, 0, 8, 0, 0, 0, {0}}, CLATTN_ALGO_SPLIT_KV,
         CLATTN_DTYPE_F16, true, false},
    };
    struct cla_tile tile;
    char why[160] = "";
    for (size_t n = 0; n < sizeof row / sizeof *row; n++) {
        struct cla_problem p = problem_of(576, 4096, 4096, 0);
        p.algo = row[n].algo;
        p.dtype_kv = row[n].dtype_kv;
        p.paged = row[n].paged;
        const bool fits = cla_tile_check(&p, &planner_devices[DEV_INTEL_CPU], &row[n].tile, &tile,
                                         why, sizeof why);
        if (fits != row[n].fits || (!fits && !strstr(why, "bytes of private memory")))
            fail_msg("tile %zu: %s", n, fits ? "fits" : why);
    }
}

// Whatever the planner chooses passes as a tile that somebody names, with every feature.
static void test_planned_tiles_pass(void **state)
{
    (void)state;
    static const int32_t algos[] = {CLATTN_ALGO_FUSED, CLATTN_ALGO_SPLIT_KV,
                                    CLATTN_ALGO_TWO_LOOP, CLATTN_ALGO_FUSED_KV_OUTER};
    for (int d = 0; d < DEV_COUNT; d++)
        for (int32_t n = 0; n < 64 * 9 * 9; n++) {
            const int32_t dim = n % 9 ? n % 9 * 72 : 1, dim_v = n / 9 % 9 ? n / 9 % 9 * 72 : 1;
            const int32_t bits = n / 81;
            struct cla_problem p = problem_of(dim, bits & 16 ? 4096 : 3, 16384, 0);
            p.dim_v = dim_v == 576 ? 561 : dim_v; // so many that the last vectors are partly empty
            p.algo = algos[bits & 3];
            p.dtype_kv = bits & 4 ? CLATTN_DTYPE_F16 : CLATTN_DTYPE_F32;
            p.paged = bits & 8;
            p.bias = bits & 32;
            rank(&p, &planner_devices[d], NULL);
            for (int i = 0; i < ranking.count; i++) {
                const clattn_tile own = cla_tile_named(&ranking.choice[i].tile);
                struct cla_tile t;
                char why[160] = "";
                if (!cla_tile_check(&p, &planner_devices[d], &own, &t, why, sizeof why))
                    fail_msg("%s, dims %d/%d: %s", planner_devices[d].name, p.dim_qk, p.dim_v,
                             why);
            }
        }
}

static void test_forced_tile(void **state)
{
    (void)state;
    struct cla_problem p = problem_of(64, 2048, 2048, 0);
    struct cla_tune t = parsed(HEAD KEY "planner\n");
    p.algo = CLATTN_ALGO_FUSED;
    p.tile = (clattn_tile){.kernel = CLATTN_KERNEL_VECTOR, .tile_q = 16, .tile_k = 60, .width = 8,
                           .vecs_q = 2, .block_k = 6, .block_d = 4};
    const struct cla_choice *only = rank(&p, &planner_devices[DEV_POCL], &t);
    assert_non_null(only);
    assert_int_equal(ranking.count, 1);
    const clattn_tile named = cla_tile_named(&only->tile);
    assert_true(cla_tile_same(&named, &p.tile));
    assert_non_null(strstr(only->tile.reason, "given: vector shape, tile 16 x 60"));
    struct cla_caps scalar = planner_devices[DEV_LLVMPIPE];
    scalar.quirks = CLA_QUIRK_SCALARIZES;
    assert_null(rank(&p, &scalar, &t));
    assert_null(rank(&p, &(struct cla_caps){.type = CLA_DEVICE_BUILTIN}, &t));
    assert_true(refused_with("built-in CPU path"));
    cla_tune_free(&t);
}

// ---- trials ------------------------------------------------------------------------------------

static int32_t trial_rows, spoilt_row; // what the trial asked for, and which of them is wrong

// An algorithm that is right in all rows but one.
static clattn_status run_spoilt(clattn_context *ctx, const struct cla_problem *p,
                                const struct cla_prepared *prepared, const struct cla_call *call)
{
    const struct cla_host_mem mem = {.q = call->q.buf.ptr, .k = call->k.buf.ptr,
                                     .v = call->v.buf.ptr, .o = call->o.buf.ptr};
    (void)ctx;
    (void)prepared;
    const clattn_status st = cla_ref_forward(p, call, &mem);
    trial_rows = call->len_q * p->group;
    if (spoilt_row < trial_rows)
        ((float *)mem.o)[spoilt_row * p->dim_v] += 1.0f;
    return st;
}

// Of a tile that somebody names every row is tried, unless that is too much work.
static void test_trial(void **state)
{
    (void)state;
    static const struct {
        bool named;
        int32_t dim, tile_q, tile_k, group, rows;
    } row[] = {{false, 64, 24, 64, 1, 5},   {true, 64, 24, 64, 1, 27}, {true, 64, 24, 64, 2, 28},
               {true, 64, 1, 32, 1, 5},     {true, 64, 1, 32, 3, 15},  {true, 64, 256, 64, 3, 261},
               {true, 576, 512, 512, 1, 6}, {true, 576, 64, 512, 3, 15}};
    const struct cla_algo algo = {.run = run_spoilt};
    static clattn_context ctx;
    for (size_t n = 0; n < sizeof row / sizeof *row; n++) {
        const struct cla_tile tile = {.kernel = CLATTN_KERNEL_VECTOR, .tile_q = row[n].tile_q,
                                      .tile_k = row[n].tile_k, .named = row[n].named};
        struct cla_problem p = problem_of(row[n].dim, 4096, 4096, CLATTN_FEATURE_CAUSAL);
        char why[192] = "";
        p.group = row[n].group;
        spoilt_row = row[n].rows; // none
        assert_int_equal(cla_trial(&ctx, &p, &algo, NULL, &tile, why, sizeof why), CLATTN_OK);
        assert_int_equal(trial_rows, row[n].rows);
        spoilt_row = row[n].rows - 1;
        assert_int_equal(cla_trial(&ctx, &p, &algo, NULL, &tile, why, sizeof why),
                         CLATTN_ERR_SELF_TEST);
    }
}

// ---- neighbours --------------------------------------------------------------------------------

// The planner's choices first, then others, each once, and each within the limits.
static void test_neighbours(void **state)
{
    (void)state;
    enum { MOST = 512 };
    static clattn_tile list[MOST];
    static const int32_t dims[] = {1, 16, 64, 80, 128, 576}, lens[] = {1, 7, 300, 4096};
    for (int d = 0; d < DEV_COUNT; d++)
        for (size_t k = 0; k < sizeof dims / sizeof *dims; k++)
            for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
                struct cla_problem p = problem_of(dims[k], lens[n], 4096, 0);
                const struct cla_caps *caps = &planner_devices[d];
                p.algo = CLATTN_ALGO_FUSED;
                const struct cla_choice *first = rank(&p, caps, NULL);
                if (!first) {
                    assert_int_equal(d, DEV_NO_LOCAL);
                    continue;
                }
                const clattn_tile base = cla_tile_named(&first->tile);
                const int count = cla_tile_near(&p, caps, &base, 1, list, MOST);
                assert_in_range(count, 1, MOST);
                assert_true(cla_tile_same(&list[0], &base));
                for (int i = 0; i < count; i++) {
                    struct cla_tile t;
                    char why[160] = "";
                    if (!cla_tile_check(&p, caps, &list[i], &t, why, sizeof why))
                        fail_msg("%s: tile %d of dim %d: %s", caps->name, i, dims[k], why);
                    for (int j = 0; j < i; j++)
                        assert_false(cla_tile_same(&list[i], &list[j]));
                }
                // A device that is not the tiniest has something to try on a large problem.
                if (lens[n] == 4096 && d != DEV_TINY && d != DEV_APPLE_CPU)
                    assert_true(count > 5);
                // A short list is the beginning of the long one.
                clattn_tile two[2] = {{0}};
                assert_int_equal(cla_tile_near(&p, caps, &base, 1, two, 2), count);
                assert_memory_equal(two, list, (count < 2 ? 1 : 2) * sizeof *two);
            }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_text),
        cmocka_unit_test(test_broken_texts),
        cmocka_unit_test(test_too_many_rows),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_look_up),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_builtin_table),
        cmocka_unit_test(test_builtin_behind_a_full_file),
        cmocka_unit_test(test_tuned_comes_first),
        cmocka_unit_test(test_nothing_measured),
        cmocka_unit_test(test_illegal_rows),
        cmocka_unit_test(test_private_memory),
        cmocka_unit_test(test_planned_tiles_pass),
        cmocka_unit_test(test_forced_tile),
        cmocka_unit_test(test_trial),
        cmocka_unit_test(test_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
