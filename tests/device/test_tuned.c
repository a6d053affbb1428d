// SPDX-License-Identifier: Apache-2.0
// Tiles by name and by a file of measured ones, on every device: results stay right, the plan says
// where its tile is from, and a file that is not to be believed changes nothing but the log.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "case_memory.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"

enum { TILES_MOST = 256, CHANNELS = 16 };

static const struct attn_case odd = {"tile", CHANNELS, 1, 4, 2, 37, 75, .causal = true, .seed = 3};

// What all plans of this file are made for.
static clattn_attention_desc desc_of(const struct test_target *t)
{
    clattn_attention_desc desc = case_desc(&odd);
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    desc.max_batch = 1;
    desc.max_len_q = odd.len_q;
    desc.max_len_kv = odd.len_kv;
    desc.flags = CLATTN_NO_FALLBACK;
    return desc;
}

static void expect_right(clattn_context *ctx, const clattn_plan *plan, const char *what)
{
    struct attn_data d;
    struct case_memory mem;
    struct case_check check = {.why = ""};
    assert_true(attn_data_make(&odd, &d));
    assert_int_equal(case_memory_make(ctx, &odd, &d, MEMORY_DEVICE, &mem), CLATTN_OK);
    assert_int_equal(clattn_attention_run(plan, &mem.call), CLATTN_OK);
    assert_int_equal(case_memory_read(ctx, &mem), CLATTN_OK);
    if (!case_memory_check(&odd, &d, &mem, &check))
        fail_msg("%s: %s", what, check.why);
    case_memory_free(ctx, &mem);
    attn_data_free(&d);
}

static int32_t list_of(clattn_context *ctx, const clattn_attention_desc *desc,
                       clattn_tile tile[TILES_MOST])
{
    int32_t count = 0, again = 0;
    assert_int_equal(clattn_attention_list_tiles(ctx, desc, tile, TILES_MOST, &count), CLATTN_OK);
    assert_int_equal(clattn_attention_list_tiles(ctx, desc, NULL, 0, &again), CLATTN_OK);
    assert_int_equal(count, again);
    assert_in_range(count, 2, TILES_MOST);
    return count;
}

static bool same(const clattn_tile *a, const clattn_tile *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

// A tile of the list, or all of them where a device runs everything.
static void test_given_tile(void **state)
{
    struct test_target *t = *state;
    static clattn_tile tile[TILES_MOST];
    clattn_context *ctx = t->device->ctx;
    clattn_attention_desc desc = desc_of(t);
    const int32_t count = list_of(ctx, &desc, tile);
    const bool all = t->level >= LEVEL_FULL && getenv("CLATTN_TEST_ALL_TILES");
    for (int32_t i = all ? 0 : count - 1; i < count; i++) {
        clattn_plan *plan = NULL;
        clattn_plan_info info = {.struct_size = sizeof info};
        char what[128];
        snprintf(what, sizeof what, "%s: tile %d of %d, %d x %d", t->name, (int)i, (int)count,
                 (int)tile[i].tile_q, (int)tile[i].tile_k);
        desc.tile = tile[i];
        if (clattn_attention_plan_create(ctx, &desc, &plan) != CLATTN_OK)
            fail_msg("%s: no plan", what);
        assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
        assert_true(same(&info.tile, &tile[i]));
        assert_int_equal(info.tile_q, tile[i].tile_q);
        assert_int_equal(info.is_fallback, 0);
        assert_non_null(strstr(info.reason, "given: "));
        expect_right(ctx, plan, what);
        clattn_plan_destroy(&plan);
    }
}

// A tile that nobody can have is refused before anything is compiled.
static void test_refused_tiles(void **state)
{
    struct test_target *t = *state;
    static clattn_tile tile[TILES_MOST];
    clattn_context *ctx = t->device->ctx;
    clattn_attention_desc desc = desc_of(t);
    clattn_plan *plan = NULL;
    struct log_capture log = {.errors = 0};
    int32_t count = 0;
    list_of(ctx, &desc, tile);
    const uint64_t builds = clattn_context_build_count(ctx);
    t->device->capture = &log;
    desc.tile = tile[0];
    desc.tile.tile_k++; // is no whole number of quads or blocks any more
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), CLATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(log.text, "the given tile: "));
    assert_int_equal(log.errors, 1);
    assert_int_equal(clattn_attention_list_tiles(ctx, &desc, tile, TILES_MOST, &count),
                     CLATTN_ERR_INVALID_ARGUMENT);
    desc.tile = (clattn_tile){.kernel = CLATTN_KERNEL_AUTO};
    assert_int_equal(clattn_attention_list_tiles(ctx, &desc, NULL, 1, &count),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_list_tiles(ctx, &desc, tile, -1, &count),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_list_tiles(ctx, &desc, tile, 1, NULL),
                     CLATTN_ERR_INVALID_ARGUMENT);
    desc.algo = CLATTN_ALGO_AUTO;
    assert_int_equal(clattn_attention_list_tiles(ctx, &desc, tile, 1, &count),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_context_build_count(ctx), builds);
    t->device->capture = NULL;
}

// ---- files -------------------------------------------------------------------------------------

// A folder with one file, and a context that reads it.
struct tuned {
    char folder[64], file[80];
    struct log_capture log;
    clattn_context *ctx;
};

static void make_folder(struct tuned *u)
{
    memset(u, 0, sizeof *u);
    snprintf(u->folder, sizeof u->folder, "clattn-test-tune-XXXXXX");
    assert_non_null(mkdtemp(u->folder));
    snprintf(u->file, sizeof u->file, "%s/tiles.txt", u->folder);
}

static void remove_folder(struct tuned *u)
{
    clattn_context_destroy(&u->ctx);
    unlink(u->file);
    rmdir(u->folder);
}

static clattn_status reopen(struct tuned *u, const struct test_target *t, uint32_t flags)
{
    char selector[16];
    clattn_context_desc desc;
    clattn_context_destroy(&u->ctx);
    memset(&u->log, 0, sizeof u->log);
    snprintf(selector, sizeof selector, "%d", (int)t->device->info.index);
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    desc.flags = CLATTN_CONTEXT_NO_SELF_TEST | flags;
    desc.tune_file = flags & CLATTN_CONTEXT_NO_TUNING ? NULL : u->file;
    desc.log = log_capture;
    desc.log_user = &u->log;
    desc.log_level = CLATTN_LOG_INFO;
    return clattn_context_create(&desc, &u->ctx);
}

// The file's text; replaces `from` by `to` where it is there.
static void edit_file(const struct tuned *u, const char *from, const char *to)
{
    char text[4096] = "";
    FILE *file = fopen(u->file, "rb");
    assert_non_null(file);
    const size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    char *at = strstr(text, from);
    assert_non_null(at);
    file = fopen(u->file, "wb");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
}

static void expect_log(const struct tuned *u, const char *part)
{
    if (!strstr(u->log.text, part))
        fail_msg("\"%s\" is not in the log: %s", part, u->log.text);
}

// The file that is read by default, and the variables that change it.
static void test_paths(void **state)
{
    (void)state;
    char path[1024];
    const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
    char *old_home = home ? strdup(home) : NULL, *old_config = config ? strdup(config) : NULL;
    setenv("XDG_CONFIG_HOME", "/somewhere", 1);
    assert_int_equal(clattn_tune_path(path, sizeof path), CLATTN_OK);
    assert_string_equal(path, "/somewhere/clattn/tune.txt");
    assert_int_equal(clattn_tune_path(path, strlen(path)), CLATTN_ERR_FILE);
    assert_string_equal(path, "");
    setenv("XDG_CONFIG_HOME", "relative", 1); // counts as none
    setenv("HOME", "/home/me", 1);
    assert_int_equal(clattn_tune_path(path, sizeof path), CLATTN_OK);
    assert_string_equal(path, "/home/me/.config/clattn/tune.txt");
    unsetenv("HOME");
    assert_int_equal(clattn_tune_path(path, sizeof path), CLATTN_ERR_FILE);
    assert_int_equal(clattn_tune_path(NULL, 1), CLATTN_ERR_INVALID_ARGUMENT);
    unsetenv("XDG_CONFIG_HOME");
    if (old_home)
        setenv("HOME", old_home, 1);
    if (old_config)
        setenv("XDG_CONFIG_HOME", old_config, 1);
    free(old_home);
    free(old_config);
}

// Writes what was measured. The file is for plans that leave the kernel shape open, and serves
// those that force it, too.
static clattn_status write_tile(const struct tuned *u, const clattn_attention_desc *desc,
                                double ratio)
{
    clattn_attention_desc open = *desc;
    open.kernel = CLATTN_KERNEL_AUTO;
    return clattn_tune_write(u->ctx, u->file, &open, ratio);
}

static void test_file_changes_the_plan(void **state)
{
    struct test_target *t = *state;
    static clattn_tile tile[TILES_MOST];
    struct tuned u;
    clattn_attention_desc desc = desc_of(t);
    clattn_tuning known = {.struct_size = sizeof known};
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    const int32_t count = list_of(t->device->ctx, &desc, tile);
    make_folder(&u);
    setenv("CLATTN_TUNE", "1", 1); // tests/lib switches it off
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "tiles.txt is ignored: tiles.txt: No such file");
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_OK);
    assert_int_equal(known.measured, 0);

    desc.tile = tile[count - 1];
    assert_int_equal(write_tile(&u, &desc, 1.2345), CLATTN_OK);
    memset(&desc.tile, 0, sizeof desc.tile);
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_OK);
    assert_int_equal(known.measured, 1);
    assert_true(known.ratio > 1.233 && known.ratio < 1.236);
    assert_true(same(&known.tile, &tile[count - 1]));
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    assert_string_equal(u.log.text[0] ? strstr(u.log.text, "ignored") ? "ignored" : "" : "", "");
    assert_int_equal(clattn_attention_plan_create(u.ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    assert_true(same(&info.tile, &tile[count - 1]));
    assert_non_null(strstr(info.reason, "tuned: file "));
    assert_non_null(strstr(info.reason, "tiles.txt, x 1.23 of the planner's choice"));
    assert_int_equal(info.is_fallback, 0);
    expect_right(u.ctx, plan, "tuned");
    clattn_plan_destroy(&plan);

    // A row that the device cannot have does not count.
    edit_file(&u, " tile_q ", " tile_q 9");
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "1 rows for this device name tiles that it cannot have and do not count");
    edit_file(&u, " tile_q 9", " tile_q ");
    // Another driver's rows are not believed.
    edit_file(&u, t->device->info.driver, "0.0.0");
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "1 rows for this device are of another version of its driver");
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_OK);
    assert_int_equal(known.measured, 0);
    unsetenv("CLATTN_TUNE");
    remove_folder(&u);
}

// What is wrong with a file is in the log, and calls that need it say so. No plan is made here.
static void test_files_not_to_be_believed(void **state)
{
    struct test_target *t = *state;
    struct tuned u;
    clattn_attention_desc desc = desc_of(t);
    clattn_tuning known = {.struct_size = sizeof known};
    make_folder(&u);
    setenv("CLATTN_TUNE", "1", 1);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_OK);
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_OK);
    assert_int_equal(known.measured, 1);
    assert_int_equal(known.tile.kernel, CLATTN_KERNEL_AUTO);

    edit_file(&u, "255 planner", "255 planet");
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "is ignored: line 12: \"planet\" where \"tile\" or \"planner\" belongs");
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_ERR_FILE);
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_ERR_FILE);
    edit_file(&u, "255 planet", "255 planner");
    assert_int_equal(chmod(u.file, 0666), 0);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "is no plain file that only this user can write");
    assert_int_equal(chmod(u.file, 0600), 0);
    assert_int_equal(chmod(u.folder, 0777), 0);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "only a folder of this user that others can't write to is used");
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_ERR_FILE);
    assert_int_equal(chmod(u.folder, 0700), 0);

    // An empty file is none.
    FILE *empty = fopen(u.file, "wb");
    assert_non_null(empty);
    fclose(empty);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "is ignored: tiles.txt is empty");
    assert_int_equal(clattn_tune_read(u.ctx, u.file, &desc, &known), CLATTN_OK);
    assert_int_equal(known.measured, 0);
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_OK);

    // What is no plain file is not waited for, and stays what it is.
    struct stat s;
    assert_int_equal(unlink(u.file), 0);
    assert_int_equal(mkfifo(u.file, 0600), 0);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    expect_log(&u, "is no plain file that only this user can write");
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_ERR_FILE);
    assert_true(stat(u.file, &s) == 0 && S_ISFIFO(s.st_mode));
    assert_int_equal(unlink(u.file), 0);
    assert_int_equal(symlink("nowhere", u.file), 0);
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_ERR_FILE);
    assert_true(lstat(u.file, &s) == 0 && S_ISLNK(s.st_mode));
    assert_int_equal(unlink(u.file), 0);
    assert_int_equal(write_tile(&u, &desc, 1.0), CLATTN_OK);

    // Switched off in either way, it is not even looked at.
    edit_file(&u, "clattn-tune 1", "");
    assert_int_equal(reopen(&u, t, CLATTN_CONTEXT_NO_TUNING), CLATTN_OK);
    assert_null(strstr(u.log.text, "tiles.txt"));
    setenv("CLATTN_TUNE", "0", 1);
    assert_int_equal(reopen(&u, t, 0), CLATTN_OK);
    assert_null(strstr(u.log.text, "tiles.txt"));
    unsetenv("CLATTN_TUNE");
    remove_folder(&u);
}

static void test_bad_arguments(void **state)
{
    struct test_target *t = *state;
    clattn_context *ctx = t->device->ctx;
    clattn_attention_desc good = desc_of(t);
    clattn_tuning known = {.struct_size = sizeof known};
    struct log_capture log = {.errors = 0};
    good.kernel = CLATTN_KERNEL_AUTO;
    clattn_attention_desc desc = good;
    t->device->capture = &log;
    assert_int_equal(clattn_tune_read(ctx, "x.txt", NULL, &known), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_tune_read(ctx, "x.txt", &good, NULL), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_tune_read(NULL, "x.txt", &good, &known), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_tune_read(ctx, "folder/", &good, &known), CLATTN_ERR_FILE);
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &good, 0.0), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &good, 1000.5), CLATTN_ERR_INVALID_ARGUMENT);
    desc.max_len_q = 0;
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &desc, 1.5), CLATTN_ERR_INVALID_ARGUMENT);
    desc = good;
    desc.algo = CLATTN_ALGO_AUTO;
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &desc, 1.5), CLATTN_ERR_INVALID_ARGUMENT);
    // What was the fastest of one kernel shape says nothing of plans that leave it open.
    desc = good;
    desc.kernel = CLATTN_KERNEL_GROUP;
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &desc, 1.5), CLATTN_ERR_INVALID_ARGUMENT);
    desc.tile.tile_q = -1;
    known.struct_size = sizeof known;
    assert_int_equal(clattn_tune_read(ctx, "x.txt", &desc, &known), CLATTN_ERR_INVALID_ARGUMENT);
    // A tile that no context would believe, with more digits than a reader takes.
    desc = good;
    desc.tile = (clattn_tile){.kernel = CLATTN_KERNEL_GROUP, .tile_q = 1234567890, .tile_k = 32,
                              .items_q = 1, .items_k = 8, .chunk_d = 16};
    assert_int_equal(clattn_tune_write(ctx, "x.txt", &desc, 1.5), CLATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(log.text, "1234567890"));
    // Arguments come before files.
    assert_int_equal(clattn_tune_write(ctx, "folder/", &desc, 1.5), CLATTN_ERR_UNSUPPORTED);
    assert_int_equal(clattn_tune_write(ctx, "folder/", &good, 0.0), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_tune_write(ctx, "folder/", &good, 1.5), CLATTN_ERR_FILE);
    assert_int_not_equal(access("x.txt", F_OK), 0);
    t->device->capture = NULL;
}

// Callers older and newer than the library; unit/test_struct_size.c has the other structs.
static void test_sizes_of_the_answer(void **state)
{
    struct test_target *t = *state;
    struct log_capture log = {.errors = 0};
    const clattn_attention_desc desc = desc_of(t);
    t->device->capture = &log;
    for (size_t size = 0; size <= sizeof(clattn_tuning) + 64; size++) {
        _Alignas(clattn_tuning) unsigned char answer[sizeof(clattn_tuning) + 128];
        memset(answer, 0xa5, sizeof answer);
        memcpy(answer, &size, sizeof size);
        const bool fits = size >= sizeof(clattn_tuning) && size % sizeof size == 0;
        assert_int_equal(clattn_tune_read(t->device->ctx, "x.txt", &desc, (clattn_tuning *)answer),
                         fits ? CLATTN_OK : CLATTN_ERR_STRUCT_SIZE);
        assert_memory_equal(answer, &size, sizeof size);
        for (size_t n = sizeof size; n < sizeof answer; n++)
            assert_int_equal(answer[n], fits && n < sizeof(clattn_tuning) ? 0 : 0xa5);
    }
    t->device->capture = NULL;
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"given tile", test_given_tile, LEVEL_SMALL},
        {"refused tiles", test_refused_tiles, LEVEL_SMALL},
        {"paths", test_paths, LEVEL_SMALL},
        {"a file changes the plan", test_file_changes_the_plan, LEVEL_SMALL},
        {"files not to be believed", test_files_not_to_be_believed, LEVEL_SMALL},
        {"bad arguments", test_bad_arguments, LEVEL_SMALL},
        {"sizes of the answer", test_sizes_of_the_answer, LEVEL_SMALL},
    };
    setenv("CLATTN_TEST_ALGOS", "fused", 1);
    return targets_main("tuned", argc, argv, tests, sizeof tests / sizeof *tests);
}
