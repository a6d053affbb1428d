// SPDX-License-Identifier: Apache-2.0
// A process that writes the program cache and a tuning file is killed at random moments, again and
// again: readers find the old file, the new one or none, and what is left behind goes away.
//
//   CLATTN_TEST_KILLS   how often, 200 by default
//   CLATTN_TEST_SEED    of the moments; the seed of each run is printed
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <fcntl.h>
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

#include <cmocka.h>

#include "ocl/cache.h"
#include "tune.h"
#include "util/store.h"

enum { KEYS = 3, VERSIONS = 2, PAYLOAD = 60000, BOUND = 400000 };
enum { ROUNDS = 6, LONGEST_US = 40000 };

static char root[64], cache_dir[96], tune_dir[96];
static char *tune_text[VERSIONS];
static size_t tune_size[VERSIONS];
static uint64_t seed;

static const struct cla_cache_settings settings = {.dir = cache_dir, .max_bytes = BOUND};
static const char tune_name[] = "tune.txt";

static uint64_t from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static uint32_t next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

// ---- what is written ---------------------------------------------------------------------------

// Two tuning files of different lengths, the way that clattn-tune makes them.
static void make_tune_texts(void)
{
    static const struct cla_tune_device device = {"platform", "device", "1.0", "0.1.0"};
    for (int v = 0; v < VERSIONS; v++) {
        struct cla_tune t = {.rows = 0};
        for (int i = 0; i < 100 * (v + 1); i++) {
            const struct cla_tune_row row = {
                .key = {.algo = CLATTN_ALGO_FUSED, .dim_qk = i + 1, .dim_v = 64, .rows_lo = 1,
                        .rows_hi = 9, .keys_lo = 1, .keys_hi = 255},
                .permille = 1000};
            assert_true(cla_tune_put(&t, &device, &row));
        }
        tune_text[v] = cla_tune_format(&t, &tune_size[v]);
        assert_non_null(tune_text[v]);
        cla_tune_free(&t);
    }
}

// One byte value throughout, so that no part of it can be of another version.
static size_t payload_of(int key, int version, char *to)
{
    const size_t size = PAYLOAD - (size_t)(1000 * key + 7 * version);
    memset(to, 'a' + 2 * key + version, size);
    return size;
}

static struct cla_cache_key key_of(int key)
{
    static const char *const options[KEYS] = {"-DX=0", "-DX=1", "-DX=2"};
    return (struct cla_cache_key){"program", options[key], "text"};
}

static bool write_some(int from, int rounds)
{
    static char payload[PAYLOAD];
    char why[256];
    struct cla_cache *cache = cla_cache_open(&settings, "facts", NULL);
    bool good = cache != NULL;
    for (int round = from; good && round < from + rounds; round++) {
        const struct cla_cache_key key = key_of(round % KEYS);
        const int version = round / KEYS % VERSIONS;
        const size_t size = payload_of(round % KEYS, version, payload);
        good = cla_cache_put(cache, &key, payload, size, why) &&
               cla_store_write(tune_dir, tune_name, tune_text[version], tune_size[version], why,
                               sizeof why);
        cla_store_trim(tune_dir, tune_name, UINT64_MAX);
    }
    cla_cache_close(&cache);
    return good;
}

// How long a child lives at most: as long as a few rounds take on this disk.
static uint32_t longest_us(void)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_true(write_some(0, ROUNDS));
    clock_gettime(CLOCK_MONOTONIC, &b);
    const int64_t us = (b.tv_sec - a.tv_sec) * 1000000LL + (b.tv_nsec - a.tv_nsec) / 1000;
    return us < LONGEST_US ? (uint32_t)us + 1 : LONGEST_US;
}

// ---- what must be found ------------------------------------------------------------------------

static int found[3]; // programs, tuning files, neither

static void check_programs(void)
{
    static char payload[PAYLOAD];
    struct cla_cache *cache = cla_cache_open(&settings, "facts", NULL);
    assert_non_null(cache);
    for (int k = 0; k < KEYS; k++) {
        const struct cla_cache_key key = key_of(k);
        void *data = NULL;
        size_t size = 0;
        char why[CLA_CACHE_WHY];
        bool good = false;
        const enum cla_cache_found result = cla_cache_get(cache, &key, &data, &size, why);
        if (result != CLA_CACHE_HIT && result != CLA_CACHE_MISS)
            fail_msg("program %d: %s", k, why);
        for (int v = 0; v < VERSIONS && result == CLA_CACHE_HIT; v++)
            good = good || (size == payload_of(k, v, payload) && !memcmp(data, payload, size));
        if (result == CLA_CACHE_HIT && !good)
            fail_msg("program %d: %zu bytes that nobody wrote", k, size);
        found[result == CLA_CACHE_HIT ? 0 : 2]++;
        free(data);
    }
    cla_cache_close(&cache);
}

// Once there is one, there is one for ever.
static void check_tuning(void)
{
    static bool seen;
    void *data = NULL;
    size_t size = 0;
    char why[CLA_TUNE_WHY] = "";
    struct cla_tune t = {.rows = 0};
    const enum cla_store_result result =
        cla_store_read(tune_dir, tune_name, CLA_TUNE_BYTES, &data, &size, why, sizeof why);
    if (result != CLA_STORE_OK) {
        if (result != CLA_STORE_NONE || seen)
            fail_msg("tuning file: %s", why);
        found[2]++;
        return;
    }
    seen = true;
    found[1]++;
    if (!cla_tune_parse(data, size, false, &t, why))
        fail_msg("tuning file: %s", why);
    assert_true((size == tune_size[0] && !memcmp(data, tune_text[0], size)) ||
                (size == tune_size[1] && !memcmp(data, tune_text[1], size)));
    cla_tune_free(&t);
    free(data);
}

// ---- folders -----------------------------------------------------------------------------------

struct census {
    int files, temporary;
    uint64_t bytes;
};

// Counts, and makes temporary files older by two hours where asked to.
static struct census census_of(const char *folder, bool age)
{
    struct census c = {0};
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        struct stat s;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &s, 0) != 0)
            continue;
        const bool temporary = strstr(e->d_name, ".tmp.") != NULL;
        c.files++;
        c.temporary += temporary;
        c.bytes += (uint64_t)s.st_size;
        if (temporary && age) {
            const struct timespec then = {.tv_sec = s.st_mtime - 7200}, t[2] = {then, then};
            assert_int_equal(utimensat(dirfd(d), e->d_name, t, 0), 0);
        }
    }
    if (d)
        closedir(d);
    return c;
}

static void remove_files(const char *folder)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

static void nothing_is_left(void)
{
    char why[256];
    static char payload[PAYLOAD];
    const struct cla_cache_key key = key_of(0);
    census_of(cache_dir, true);
    census_of(tune_dir, true);
    struct cla_cache *cache = cla_cache_open(&settings, "facts", NULL);
    assert_true(cla_cache_put(cache, &key, payload, payload_of(0, 0, payload), why));
    cla_cache_close(&cache);
    assert_true(cla_store_write(tune_dir, tune_name, tune_text[0], tune_size[0], why, sizeof why));
    cla_store_trim(tune_dir, tune_name, UINT64_MAX);
    assert_int_equal(census_of(cache_dir, false).temporary, 0);
    assert_int_equal(census_of(tune_dir, false).files, 1);
}

// ---- the test ----------------------------------------------------------------------------------

static void kill_one(uint32_t longest)
{
    const int from = (int)(next_random() % (KEYS * VERSIONS));
    const uint32_t life = next_random() % longest;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(write_some(from, 1000000) ? 2 : 1);
    usleep(life);
    kill(child, SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void what_a_killed_process_leaves(void **state)
{
    (void)state;
    const int kills = (int)from_env("CLATTN_TEST_KILLS", 200);
    seed = from_env("CLATTN_TEST_SEED", (uint64_t)time(NULL));
    printf("seed %llu\n", (unsigned long long)seed);
    make_tune_texts();
    const uint32_t longest = longest_us();
    remove_files(cache_dir);
    remove_files(tune_dir);
    struct census most = {0};
    for (int i = 0; i < kills; i++) {
        kill_one(longest);
        check_programs();
        check_tuning();
        const struct census c = census_of(cache_dir, false), t = census_of(tune_dir, false);
        most.temporary = c.temporary + t.temporary > most.temporary ? c.temporary + t.temporary
                                                                    : most.temporary;
        assert_true(c.bytes <= BOUND); // what was being written included
        most.bytes = c.bytes > most.bytes ? c.bytes : most.bytes;
    }
    printf("%d kills: %d programs, %d tuning files, %d absent; up to %d temporary files, the cache "
           "up to %llu bytes of %d\n", kills, found[0], found[1], found[2], most.temporary,
           (unsigned long long)most.bytes, BOUND);
    assert_true(found[0] > 0 && found[1] > 0);
    assert_true(most.temporary > 0); // some were killed in the middle
    nothing_is_left();
    for (int v = 0; v < VERSIONS; v++)
        free(tune_text[v]);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, P_tmpdir "/cla_killed_XXXXXX");
    unsetenv("CLATTN_CACHE");
    if (!mkdtemp(root))
        return -1;
    snprintf(cache_dir, sizeof cache_dir, "%s/cache", root);
    snprintf(tune_dir, sizeof tune_dir, "%s/tune", root);
    return mkdir(cache_dir, 0700) | mkdir(tune_dir, 0700);
}

static int tear_down(void **state)
{
    (void)state;
    remove_files(cache_dir);
    remove_files(tune_dir);
    return rmdir(cache_dir) | rmdir(tune_dir) | rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_killed_process_leaves, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
