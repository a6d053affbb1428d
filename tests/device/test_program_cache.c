// SPDX-License-Identifier: Apache-2.0
// The program cache on disk, through contexts on every OpenCL device: what is built, what is taken
// from disk, and that results are right whatever happens to the folder.
//
//   test_program_cache                     all devices
//   test_program_cache child INDEX FOLDER  one of the two processes of a test
//   test_program_cache writer INDEX FOLDER writes programs and a tuning file until it is killed
//   test_program_cache full INDEX FOLDER   uses a device with the folder on a full disk
//
// CLATTN_TEST_KILLS says how often the writer is killed on each device, CLATTN_TEST_SEED when; the
// seed of each run is printed.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#endif

#include <cmocka.h>

#include "caps.h"
#include "clattn/tune.h"
#include "data.h"
#include "ocl/cache.h"
#include "open_device.h"
#include "record_log.h"
#include "run_case.h"
#include "thread.h"

enum { LEN_Q = 9, LEN_KV = 40, DIM = 16, HEADS = 2, COUNT = HEADS * LEN_Q * DIM };

static const struct attn_case cases[] = {
    {.name = "causal", .dim = DIM, .batch = 1, .heads_q = HEADS, .heads_kv = HEADS, .len_q = LEN_Q,
     .len_kv = LEN_KV, .causal = true, .seed = 71},
    {.name = "whole", .dim = DIM, .batch = 1, .heads_q = HEADS, .heads_kv = HEADS, .len_q = LEN_Q,
     .len_kv = LEN_KV, .seed = 72},
};

static const struct test_device *on; // the device that the tests run on
static struct record record;
static char root[64], dir[128], other_dir[128];

static int set_up(void **state)
{
    (void)state;
    watchdog("test_program_cache", 400);
    strcpy(root, P_tmpdir "/cla_programs_XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(dir, sizeof dir, "%s/one", root);
    snprintf(other_dir, sizeof other_dir, "%s/two", root);
    unsetenv("CLATTN_CACHE");
    unsetenv("CLATTN_CACHE_DIR");
    record_start(&record, CLATTN_LOG_DEBUG);
    return 0;
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *f)
{
    (void)s;
    (void)kind;
    (void)f;
    return remove(path);
}

static int tear_down(void **state)
{
    (void)state;
    watchdog("test_program_cache", 0);
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

// ---- one use of a device -----------------------------------------------------------------------

struct use {
    const char *cache_dir;
    uint32_t flags;
    int num_cases; // plans to make
};

static bool leaves_programs_to_the_driver(void)
{
    return (on->info.quirks & CLA_QUIRK_OWN_CACHE) != 0;
}

static bool run_plan(clattn_context *ctx, const struct attn_case *c)
{
    struct attn_data d;
    clattn_attention_desc desc;
    clattn_plan *plan = NULL;
    float o[COUNT + 1];
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.heads_q = c->heads_q;
    desc.features = c->causal ? CLATTN_FEATURE_CAUSAL : 0;
    desc.algo = CLATTN_ALGO_FUSED;
    if (!attn_data_make(c, &d))
        return false;
    fill_unwritten(o, COUNT + 1);
    bool ok = clattn_attention_plan_create(ctx, &desc, &plan) == CLATTN_OK;
    if (ok) {
        struct compare_report r;
        const clattn_attention_call call = case_host_call(c, d.q, d.k, d.v, NULL, o, NULL);
        ok = clattn_attention_run(plan, &call) == CLATTN_OK &&
             compare(o, d.o, COUNT, &d.tol_o, &r) && float_bits(o[COUNT]) == UNWRITTEN_BITS;
    }
    clattn_plan_destroy(&plan);
    attn_data_free(&d);
    return ok;
}

// A new context, its plans, right results; how many programs it compiled, -1 where something fails.
static int try_use(int32_t index, const struct use *use)
{
    clattn_context_desc desc;
    clattn_context *ctx = NULL;
    char selector[16];
    snprintf(selector, sizeof selector, "%d", (int)index);
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    desc.flags = use->flags;
    desc.cache_dir = use->cache_dir;
    desc.log = record.log.fn;
    desc.log_user = &record;
    desc.log_level = CLATTN_LOG_DEBUG;
    bool ok = clattn_context_create(&desc, &ctx) == CLATTN_OK;
    for (int i = 0; ok && i < use->num_cases; i++)
        ok = run_plan(ctx, &cases[i]);
    const int builds = ok ? (int)clattn_context_build_count(ctx) : -1;
    clattn_context_destroy(&ctx);
    return builds;
}

static int builds_of(struct use use)
{
    record_start(&record, CLATTN_LOG_DEBUG);
    const int builds = try_use(on->info.index, &use);
    if (builds < 0)
        fail_msg("%s: %s", on->tag, record.text);
    return builds;
}

// A file of the folder, the only one.
static void only_file(const char *folder, char *path, size_t size)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(path, size, "%s/%.100s", folder, e->d_name);
            n++;
        }
    closedir(d);
    assert_int_equal(n, 1);
}

// Calls `each` (may be NULL) for every file; how many there are, 0 without a folder.
static int walk(const char *folder, void (*each)(const char *path))
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[300];
        if (e->d_name[0] == '.')
            continue;
        n++;
        snprintf(path, sizeof path, "%s/%.100s", folder, e->d_name);
        if (each)
            each(path);
    }
    if (d)
        closedir(d);
    return n;
}

// ---- hits --------------------------------------------------------------------------------------

static void the_second_context_builds_nothing(void **state)
{
    (void)state;
    const struct use use = {.cache_dir = dir, .num_cases = 2};
    assert_int_equal(builds_of(use), 3); // the self-test and two kernels
    assert_int_equal(record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR], 0);
    if (strstr(record.text, "the program cache")) // neither taken nor refused
        fail_msg("%s", record.text);
    // Where programs are left to the driver, only the passed self-test is kept.
    const bool left = leaves_programs_to_the_driver();
    assert_int_equal(walk(dir, NULL), left ? 1 : 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(builds_of(use), left ? 2 : 0);
        assert_int_equal(record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR], 0);
        assert_non_null(strstr(record.text, left ? "says that the self-test passed"
                                                 : "taken from the program cache in "));
    }
    assert_int_equal(walk(dir, NULL), left ? 1 : 3);
}

static void folders_of_the_environment(void **state)
{
    (void)state;
    const struct use use = {.num_cases = 0};
    const int cold = builds_of((struct use){.flags = CLATTN_CONTEXT_NO_CACHE});
    assert_int_equal(cold, 1);
    setenv("CLATTN_CACHE_DIR", dir, 1);
    assert_int_equal(builds_of(use), 1);
    assert_int_equal(builds_of(use), 0);
    assert_int_equal(walk(dir, NULL), 1);
    unsetenv("CLATTN_CACHE_DIR");

    char *xdg = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    char below[160];
    snprintf(below, sizeof below, "%s/clattn", other_dir);
    setenv("XDG_CACHE_HOME", other_dir, 1);
    assert_int_equal(builds_of(use), 1);
    assert_int_equal(builds_of(use), 0);
    assert_int_equal(walk(below, NULL), 1);
    if (xdg)
        setenv("XDG_CACHE_HOME", xdg, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    free(xdg);
}

static void switched_off(void **state)
{
    (void)state;
    struct use use = {.cache_dir = dir, .flags = CLATTN_CONTEXT_NO_CACHE, .num_cases = 1};
    for (int i = 0; i < 2; i++)
        assert_int_equal(builds_of(use), 2);
    use.flags = 0;
    setenv("CLATTN_CACHE", "0", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(builds_of(use), 2);
    assert_int_equal(walk(dir, NULL), 0);
    unsetenv("CLATTN_CACHE");
    builds_of(use); // the switch, not the folder, was why
    assert_true(walk(dir, NULL) > 0);
}

// ---- folders that don't serve ------------------------------------------------------------------

static void without_a_folder(void **state)
{
    (void)state;
    // A read-only folder of this user, root or not; and one that cannot be made.
    static const char *const folders[] = {"/proc/self/task", "/proc/self/none/below"};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 2; n++) {
            assert_int_equal(builds_of((struct use){.cache_dir = folders[i], .num_cases = 1}), 2);
            assert_int_equal(record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR], 0);
            assert_non_null(strstr(record.text, i ? "no program cache: " : "kept"));
        }
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    char *xdg = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(builds_of((struct use){.num_cases = 1}), 2);
    assert_non_null(strstr(record.text, "names no folder"));
    if (home)
        setenv("HOME", home, 1);
    if (xdg)
        setenv("XDG_CACHE_HOME", xdg, 1);
    free(home);
    free(xdg);
}

static void let_others_write(const char *path)
{
    assert_int_equal(chmod(path, 0666), 0);
}

static void what_others_may_have_written(void **state)
{
    (void)state;
    const struct use use = {.cache_dir = dir};
    assert_int_equal(builds_of(use), 1);
    assert_int_equal(walk(dir, let_others_write), 1);
    assert_int_equal(builds_of(use), 1);
    assert_non_null(strstr(record.text, "only this user can write"));
    assert_int_equal(record.count[CLATTN_LOG_WARN], 0);
    assert_int_equal(builds_of(use), 0); // it was replaced
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(builds_of(use), 1);
    assert_non_null(strstr(record.text, "others can't write to"));
    assert_int_equal(chmod(dir, 0700), 0);
}

// ---- files that are no good --------------------------------------------------------------------

static void flip_in_the_middle(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)s.st_size / 2, SEEK_SET), 0);
    const int c = fgetc(file);
    assert_int_equal(fseek(file, (long)s.st_size / 2, SEEK_SET), 0);
    fputc(c ^ 4, file);
    fclose(file);
}

static void cut_short(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size - 100), 0);
}

static void damaged_files_are_built_again(void **state)
{
    (void)state;
    void (*const damage[])(const char *) = {flip_in_the_middle, cut_short};
    const struct use use = {.cache_dir = dir, .num_cases = 1};
    assert_int_equal(builds_of(use), 2);
    const int warm = builds_of(use), files = walk(dir, NULL);
    for (int i = 0; i < 2; i++) {
        walk(dir, damage[i]);
        assert_int_equal(builds_of(use), 2);
        assert_int_equal(record.count[CLATTN_LOG_ERROR], 0);
        if (!leaves_programs_to_the_driver())
            assert_int_equal(record.count[CLATTN_LOG_WARN], 2);
        assert_int_equal(walk(dir, NULL), files);
        assert_int_equal(builds_of(use), warm);
        assert_int_equal(record.count[CLATTN_LOG_WARN], 0);
    }
}

static unsigned char *read_whole(const char *path, size_t *size)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    *size = (size_t)s.st_size;
    unsigned char *data = malloc(*size);
    FILE *file = fopen(path, "rb");
    assert_true(data && file);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

static size_t number_at(const unsigned char *data)
{
    size_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | data[i];
    return n;
}

// The only file of `to` gets the program of the only file of `from`, with a key and a checksum that
// are right: what no check of the file can find.
static void exchange_program(const char *to, const char *from)
{
    char to_path[300], from_path[300];
    size_t to_size = 0, from_size = 0, size = 0;
    only_file(to, to_path, sizeof to_path);
    only_file(from, from_path, sizeof from_path);
    unsigned char *a = read_whole(to_path, &to_size), *b = read_whole(from_path, &from_size);
    const size_t a_key = number_at(a + 16), b_key = number_at(b + 16), b_data = number_at(b + 24);
    assert_int_equal(from_size, CLA_CACHE_HEAD + b_key + b_data + CLA_CACHE_TAIL);
    void *file = cla_cache_encode(a + CLA_CACHE_HEAD, a_key, b + CLA_CACHE_HEAD + b_key, b_data,
                                  &size);
    assert_non_null(file);
    FILE *out = fopen(to_path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
    free(file);
    free(a);
    free(b);
}

static void a_wrong_program_does_not_pass_its_trial(void **state)
{
    (void)state;
    if (leaves_programs_to_the_driver())
        skip();
    const uint32_t flags = CLATTN_CONTEXT_NO_SELF_TEST;
    const struct use causal = {.cache_dir = dir, .flags = flags, .num_cases = 1};
    assert_int_equal(builds_of(causal), 1);

    // A program without a mask: wrong numbers.
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    char selector[16];
    snprintf(selector, sizeof selector, "%d", (int)on->info.index);
    desc.device = selector;
    desc.flags = flags;
    desc.cache_dir = other_dir;
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
    assert_true(run_plan(ctx, &cases[1]));
    clattn_context_destroy(&ctx);
    exchange_program(dir, other_dir);
    assert_int_equal(builds_of(causal), 1);
    assert_non_null(strstr(record.text, "taken from the program cache"));
    assert_non_null(strstr(record.text, "what the program cache had of it failed"));
    assert_true(record.count[CLATTN_LOG_WARN] > 0);
    assert_int_equal(builds_of(causal), 0);
    assert_int_equal(record.count[CLATTN_LOG_WARN], 0);

    // The self-test's program: no such kernel.
    assert_int_equal(nftw(other_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(builds_of((struct use){.cache_dir = other_dir}), 1);
    exchange_program(dir, other_dir);
    assert_int_equal(builds_of(causal), 1);
    assert_non_null(strstr(record.text, "what the program cache had of it failed"));
    assert_int_equal(builds_of(causal), 0);

    // And the other way round: the self-test is built again.
    exchange_program(other_dir, dir);
    assert_int_equal(builds_of((struct use){.cache_dir = other_dir}), 1);
    assert_int_equal(builds_of((struct use){.cache_dir = other_dir}), 0);
}

static void the_bound_is_kept(void **state)
{
    (void)state;
    clattn_context_desc desc;
    clattn_context *ctx = NULL;
    char selector[16];
    snprintf(selector, sizeof selector, "%d", (int)on->info.index);
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    desc.cache_dir = dir;
    desc.cache_max_bytes = 100;
    desc.log = record.log.fn;
    desc.log_user = &record;
    desc.log_level = CLATTN_LOG_INFO;
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
    clattn_context_destroy(&ctx);
    assert_non_null(strstr(record.text, "more than the whole cache may have (100)"));
    assert_int_equal(walk(dir, NULL), 0);
}

// ---- two processes -----------------------------------------------------------------------------

static pid_t start_child(const char *what)
{
    char index[16];
    snprintf(index, sizeof index, "%d", (int)on->info.index);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_program_cache", what, index, dir, (char *)NULL);
        _exit(127);
    }
    return child;
}

static void two_processes_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) { // on an empty folder, then on a full one
        pid_t child[2];
        for (int i = 0; i < 2; i++)
            child[i] = start_child("child");
        for (int i = 0; i < 2; i++) {
            int status = -1;
            assert_int_equal(waitpid(child[i], &status, 0), child[i]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
        }
    }
    const bool left = leaves_programs_to_the_driver();
    assert_int_equal(walk(dir, NULL), left ? 1 : 3);
    assert_int_equal(builds_of((struct use){.cache_dir = dir, .num_cases = 2}), left ? 2 : 0);
}

static int child_main(const char *index, const char *folder)
{
    const struct use use = {.cache_dir = folder, .num_cases = 2};
    unsetenv("CLATTN_CACHE");
    watchdog("test_program_cache child", 300);
    record_start(&record, CLATTN_LOG_DEBUG);
    const int builds = try_use(atoi(index), &use);
    attn_expect_close();
    if (builds < 0 || record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR] > 0)
        printf("child: %d builds\n%s", builds, record.text);
    return builds < 0 || record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR] > 0;
}

// ---- killed ------------------------------------------------------------------------------------

// A kind of problem for each number below 40.
static clattn_attention_desc measured_desc(int n)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 8 * (n + 1);
    desc.heads_q = HEADS;
    desc.algo = CLATTN_ALGO_FUSED;
    desc.max_batch = 1;
    desc.max_len_q = LEN_Q;
    desc.max_len_kv = LEN_KV;
    return desc;
}

static clattn_context *open_with(const char *index, const char *cache_dir, const char *tune_file)
{
    clattn_context_desc desc;
    clattn_context *ctx = NULL;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = index;
    desc.cache_dir = cache_dir;
    desc.tune_file = tune_file;
    desc.log = record.log.fn;
    desc.log_user = &record;
    desc.log_level = CLATTN_LOG_DEBUG;
    return clattn_context_create(&desc, &ctx) == CLATTN_OK ? ctx : NULL;
}

static void remove_file(const char *path)
{
    unlink(path);
}

// Each round makes the programs and the tuning file anew.
static int writer_main(const char *index, const char *folder)
{
    char file[200], ready[200];
    unsetenv("CLATTN_CACHE");
    snprintf(file, sizeof file, "%s-tune/tune.txt", folder);
    snprintf(ready, sizeof ready, "%s-tune/ready", folder);
    record_start(&record, CLATTN_LOG_DEBUG);
    for (;;) {
        clattn_context *ctx = open_with(index, folder, NULL);
        if (!ctx || (access(ready, F_OK) != 0 && mkdir(ready, 0700) != 0))
            return 1;
        for (int n = 0; n < 40; n++) {
            const clattn_attention_desc desc = measured_desc(n);
            if (clattn_tune_write(ctx, file, &desc, 1.0) != CLATTN_OK)
                return 2;
        }
        clattn_context_destroy(&ctx);
        walk(folder, remove_file);
        unlink(file);
    }
}

static void kill_writer(unsigned ms)
{
    char ready[200];
    int status = 0;
    snprintf(ready, sizeof ready, "%s-tune/ready", dir);
    const pid_t child = start_child("writer");
    while (access(ready, F_OK) != 0 && waitpid(child, &status, WNOHANG) == 0)
        usleep(1000);
    usleep(1000 * ms);
    kill(child, SIGKILL);
    if (waitpid(child, &status, 0) == child)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    rmdir(ready);
}

static void a_killed_process_leaves_nothing_to_doubt(void **state)
{
    (void)state;
    const char *text = getenv("CLATTN_TEST_KILLS"), *given = getenv("CLATTN_TEST_SEED");
    const int kills = text && *text ? atoi(text) : 5;
    const unsigned seed = given && *given ? (unsigned)strtoul(given, NULL, 10)
                                          : (unsigned)time(NULL);
    char file[200], folder[160], index[16];
    int measured = 0;
    printf("seed %u\n", seed);
    srand(seed);
    snprintf(index, sizeof index, "%d", (int)on->info.index);
    snprintf(folder, sizeof folder, "%s-tune", dir);
    snprintf(file, sizeof file, "%s/tune.txt", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    // On a busy machine the first ones may come before anything is written.
    for (int i = 0; i < kills || (measured == 0 && i < 20 * kills); i++) {
        kill_writer((unsigned)rand() % 300);
        record_start(&record, CLATTN_LOG_DEBUG);
        const bool there = access(file, F_OK) == 0;
        clattn_context *ctx = open_with(index, dir, there ? file : NULL);
        if (!ctx || record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR] > 0)
            fail_msg("%s", record.text);
        for (int n = 0; n < 40; n++) {
            const clattn_attention_desc desc = measured_desc(n);
            clattn_tuning found = {.struct_size = sizeof found};
            if (clattn_tune_read(ctx, file, &desc, &found) != CLATTN_OK)
                fail_msg("%s", record.text);
            assert_true(!found.measured || found.ratio == 1.0);
            measured += found.measured;
        }
        clattn_context_destroy(&ctx);
    }
    assert_true(measured > 0);
}

// ---- a full disk -------------------------------------------------------------------------------

// A folder in which no file of a page has room, then one that cannot be written to at all. The
// mounts are seen by this process only.
static int full_main(const char *index, const char *folder)
{
#if defined(__linux__)
    static const char page[4096];
    char path[200];
    const struct use use = {.cache_dir = folder, .num_cases = 1};
    unsetenv("CLATTN_CACHE");
    if ((mkdir(folder, 0700) != 0) || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=4k,mode=0700") != 0)
        return SKIP_STATUS;
    snprintf(path, sizeof path, "%s/other", folder);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(page, 1, sizeof page, file) != sizeof page || fclose(file) != 0)
        return SKIP_STATUS;
    static const char *const reasons[] = {"No space left", "Read-only file system"};
    for (int i = 0; i < 2; i++) {
        record_start(&record, CLATTN_LOG_DEBUG);
        if (try_use(atoi(index), &use) != 2 || !strstr(record.text, reasons[i]) ||
            record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR] > 0) {
            printf("%s\n", record.text);
            return 1;
        }
        if (mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
            return SKIP_STATUS;
    }
    return 0;
#else
    (void)index;
    (void)folder;
    return SKIP_STATUS;
#endif
}

static void a_full_disk_is_survived(void **state)
{
    (void)state;
    int status = -1;
    const pid_t child = start_child("full");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIP_STATUS)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(the_second_context_builds_nothing),
        TEST(folders_of_the_environment),
        TEST(switched_off),
        TEST(without_a_folder),
        TEST(what_others_may_have_written),
        TEST(damaged_files_are_built_again),
        TEST(a_wrong_program_does_not_pass_its_trial),
        TEST(the_bound_is_kept),
        TEST(two_processes_at_once),
        TEST(a_killed_process_leaves_nothing_to_doubt),
        TEST(a_full_disk_is_survived),
    };
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "child") == 0)
        return child_main(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "writer") == 0)
        return writer_main(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "full") == 0)
        return full_main(argv[2], argv[3]);
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    for (int i = 0; i < count; i++) {
        on = &devices[i];
        failed += cmocka_run_group_tests_name(on->tag, tests, NULL, NULL);
    }
    attn_expect_close();
    devices_close(devices, count);
    return failed ? 1 : 0;
}
