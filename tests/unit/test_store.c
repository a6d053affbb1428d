// SPDX-License-Identifier: Apache-2.0
// util/store, util/hash and util/host_facts: private files, two processes, what cannot be written.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#endif

#include <cmocka.h>

#include "util/hash.h"
#include "util/host_facts.h"
#include "util/store.h"

static char root[64]; // made anew for each test
static char dir[128]; // below it, not made yet
static char why[256];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, P_tmpdir "/cla_store_XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(dir, sizeof dir, "%s/a/b", root);
    memset(why, 0, sizeof why);
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
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int entries(void)
{
    char command[256];
    int n = -1;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", dir);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    return n;
}

static void write_ok(const char *name, const char *text)
{
    if (!cla_store_write(dir, name, text, strlen(text), why, sizeof why))
        fail_msg("%s: %s", name, why);
}

static enum cla_store_result read_text(const char *name, char *text, size_t size)
{
    void *data = NULL;
    size_t n = 0;
    const enum cla_store_result r = cla_store_read(dir, name, 1000, &data, &n, why, sizeof why);
    assert_true((r == CLA_STORE_OK) == (data != NULL));
    if (data) {
        assert_true(n < size);
        memcpy(text, data, n);
        text[n] = '\0';
    } else {
        assert_int_equal(n, 0);
        assert_true(why[0] != '\0');
    }
    free(data);
    return r;
}

// ---- hash --------------------------------------------------------------------------------------

// The key 00 01 ... 0f over the bytes 00 01 02 ...; the authors' table, as OpenSSL gives it too.
static void hash_of_the_papers_vectors(void **state)
{
    (void)state;
    static const struct {
        size_t size;
        uint64_t hash;
    } rows[] = {
        {0, 0x726fdb47dd0e0e31u},  {1, 0x74f839c593dc67fdu},  {2, 0x0d6c8009d9a94f5au},
        {3, 0x85676696d7fb7e2du},  {4, 0xcf2794e0277187b7u},  {5, 0x18765564cd99a68du},
        {6, 0xcbc9466e58fee3ceu},  {7, 0xab0200f58b01d137u},  {8, 0x93f5f5799a932462u},
        {9, 0x9e0082df0ba9e4b0u},  {15, 0xa129ca6149be45e5u}, {16, 0x3f2acc7f57c29bdbu},
        {23, 0xa80c038ccd5ccec8u}, {32, 0x7127512f72f27cceu}, {63, 0x958a324ceb064572u},
        {64, 0xacd2c40b8502cad8u},
    };
    unsigned char bytes[64];
    for (int i = 0; i < 64; i++)
        bytes[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(cla_hash(bytes, rows[i].size, 0x0706050403020100u, 0x0f0e0d0c0b0a0908u) ==
                    rows[i].hash);
    static const char zeros[1000];
    assert_true(cla_hash(zeros, sizeof zeros, 1, 2) == 0xbf8eaf0c5b3c10eau);
}

// ---- host facts --------------------------------------------------------------------------------

static void the_processor_is_the_same_each_time(void **state)
{
    (void)state;
    char *first = cla_host_cpu();
    assert_non_null(first);
    assert_true(strlen(first) > 8);
    for (int i = 0; i < 50; i++) {
        char *again = cla_host_cpu();
        assert_string_equal(first, again);
        free(again);
    }
    free(first);
}

#if defined(__linux__) && defined(__x86_64__)
// What tells processors apart is in it: their name, and the instructions that they have.
static void the_processor_is_told_apart(void **state)
{
    (void)state;
    unsigned r[4] = {0};
    char expected[64];
    char *text = cla_host_cpu();
    assert_non_null(text);
    static const unsigned leaves[] = {1, 7, 0x80000002u, 0x80000003u, 0x80000004u};
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) {
        if (!__get_cpuid_count(leaves[i], 0, &r[0], &r[1], &r[2], &r[3]))
            continue;
        snprintf(expected, sizeof expected, "%08x %08x\n", r[2], r[3]);
        assert_non_null(strstr(text, expected));
    }
    free(text);
}
#endif

static void environment_is_chosen_and_sorted(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"CLA_TEST_A", "CLA_TEST_B"};
    setenv("CLA_TEST_B2", "2 = two", 1);
    setenv("CLA_TEST_A1", "1", 1);
    setenv("CLA_TEST_ACACHE", "3", 1);
    setenv("CLA_TEST_C", "4", 1);
    setenv("CLA_TEST_AX", "CACHE", 1); // only names are looked at
    char *text = cla_host_env(prefixes, 2, "CACHE");
    assert_string_equal(text, "CLA_TEST_A1=1\nCLA_TEST_AX=CACHE\nCLA_TEST_B2=2 = two\n");
    free(text);
    static const char *const names[] = {"B2", "A1", "ACACHE", "C", "AX"};
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "CLA_TEST_%s", names[i]);
        unsetenv(name);
    }
    text = cla_host_env(prefixes, 2, "CACHE");
    assert_string_equal(text, "");
    free(text);
}

// ---- files -------------------------------------------------------------------------------------

static void default_path(void **state)
{
    (void)state;
    char path[64], *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_false(cla_store_default_path(path, sizeof path));
    setenv("HOME", "here", 1); // relative: no path
    assert_false(cla_store_default_path(path, sizeof path));
    setenv("HOME", "/h", 1);
    assert_true(cla_store_default_path(path, sizeof path));
    assert_string_equal(path, "/h/.cache/clattn");
    assert_false(cla_store_default_path(path, strlen(path)));
    setenv("XDG_CACHE_HOME", "there", 1);
    assert_true(cla_store_default_path(path, sizeof path));
    assert_string_equal(path, "/h/.cache/clattn");
    setenv("XDG_CACHE_HOME", "/x/y", 1);
    assert_true(cla_store_default_path(path, sizeof path));
    assert_string_equal(path, "/x/y/clattn");
    unsetenv("XDG_CACHE_HOME");
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

static void a_file_comes_back(void **state)
{
    (void)state;
    char text[64];
    const mode_t before = umask(0);
    assert_true(cla_store_open(dir, why, sizeof why));
    assert_true(cla_store_open(dir, why, sizeof why));
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_NONE);
    write_ok("one", "first");
    umask(before);
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    assert_string_equal(text, "first");
    struct stat s;
    assert_int_equal(stat(path_of("one"), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(stat(dir, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    write_ok("one", ""); // as a crash of the system can leave it
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_NONE);
    assert_int_equal(entries(), 1); // no temporary file is left
    cla_store_remove(dir, "one");
    cla_store_remove(dir, "one");
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_NONE);
}

#if defined(__linux__)
static int synced; // how often this process has written a file through to the disk
static struct stat synced_file;
static bool one_was_there;

int fsync(int file)
{
    synced++;
    fstat(file, &synced_file);
    one_was_there = access(path_of("one"), F_OK) == 0;
    return (int)syscall(SYS_fsync, file);
}

// All of it, before it has its name: a system that stops leaves the old file or the new one.
static void a_file_is_on_the_disk_before_it_has_its_name(void **state)
{
    (void)state;
    struct stat s;
    assert_true(cla_store_open(dir, why, sizeof why));
    synced = 0;
    write_ok("one", "first");
    assert_int_equal(synced, 1);
    assert_int_equal(synced_file.st_size, 5);
    assert_false(one_was_there);
    assert_int_equal(stat(path_of("one"), &s), 0);
    assert_true(s.st_ino == synced_file.st_ino);
}
#endif

static void what_others_can_write_is_refused(void **state)
{
    (void)state;
    char text[64];
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "x");
    static const mode_t modes[] = {0620, 0602, 0666};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(chmod(path_of("one"), modes[i]), 0);
        assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_REFUSED);
        assert_non_null(strstr(why, "one"));
    }
    assert_int_equal(chmod(path_of("one"), 0644), 0); // others may read
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    static const mode_t folders[] = {0720, 0702, 0777, 01777};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chmod(dir, folders[i]), 0);
        assert_false(cla_store_open(dir, why, sizeof why));
        assert_non_null(strstr(why, dir));
        assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_FAILED);
        assert_false(cla_store_write(dir, "two", "y", 1, why, sizeof why));
        cla_store_remove(dir, "one");
        cla_store_trim(dir, "one", 0);
    }
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    assert_int_equal(entries(), 1);
}

static void links_and_other_things_are_refused(void **state)
{
    (void)state;
    char text[64], other[256];
    assert_true(cla_store_open(dir, why, sizeof why));
    snprintf(other, sizeof other, "%s/precious", root);
    FILE *file = fopen(other, "w");
    assert_non_null(file);
    fputs("secret", file);
    fclose(file);
    assert_int_equal(symlink(other, path_of("link")), 0);
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    alarm(20); // a pipe that nobody writes to holds up whoever opens it the usual way
    assert_int_equal(read_text("link", text, sizeof text), CLA_STORE_REFUSED);
    assert_int_equal(read_text("folder", text, sizeof text), CLA_STORE_REFUSED);
    assert_int_equal(read_text("pipe", text, sizeof text), CLA_STORE_REFUSED);
    alarm(0);
    write_ok("link", "mine"); // takes the link's place, not that of its target
    assert_int_equal(read_text("link", text, sizeof text), CLA_STORE_OK);
    assert_string_equal(text, "mine");
    struct stat s;
    assert_int_equal(stat(other, &s), 0);
    assert_int_equal(s.st_size, 6);
    assert_false(cla_store_write(dir, "folder", "x", 1, why, sizeof why));
    assert_int_equal(entries(), 3);

    char linked[256];
    snprintf(linked, sizeof linked, "%s/l", root);
    assert_int_equal(symlink(dir, linked), 0);
    assert_false(cla_store_open(linked, why, sizeof why));
    snprintf(linked, sizeof linked, "%s/l//", root);
    assert_false(cla_store_open(linked, why, sizeof why));
    assert_false(cla_store_open(other, why, sizeof why)); // a file
    char deep[CLA_STORE_PATH + 8];
    memset(deep, 'x', sizeof deep - 1);
    deep[0] = '/';
    deep[sizeof deep - 1] = '\0';
    assert_false(cla_store_open(deep, why, sizeof why));
}

// Links above the folder are its owner's affair; the folder at their end is checked like any.
static void links_above_the_folder_are_followed(void **state)
{
    (void)state;
    char text[64], real[128], link[128], through[192];
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "x");
    snprintf(real, sizeof real, "%s/a", root);
    snprintf(link, sizeof link, "%s/elsewhere", root);
    assert_int_equal(symlink(real, link), 0);
    snprintf(through, sizeof through, "%s/b", link);
    strcpy(dir, through);
    assert_true(cla_store_open(dir, why, sizeof why));
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    assert_int_equal(chmod(dir, 0770), 0);
    assert_false(cla_store_open(dir, why, sizeof why));
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_FAILED);
    assert_int_equal(chmod(dir, 0700), 0);
}

// Temporary files lie where the file will, not where the environment says.
static void the_environment_names_no_folder_for_temporary_files(void **state)
{
    (void)state;
    char other[128], *before = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    struct stat a, b;
    snprintf(other, sizeof other, "%s/other", root);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(stat(other, &a), 0);
    setenv("TMPDIR", other, 1);
    assert_true(cla_store_open(dir, why, sizeof why));
    usleep(20000); // times of files are coarse
    write_ok("one", "x");
    assert_int_equal(stat(other, &b), 0);
    assert_true(a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec);
    if (before)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    free(before);
}

static void devices_are_refused(void **state)
{
    (void)state;
    char text[64];
    assert_true(cla_store_open(dir, why, sizeof why));
    static const unsigned minors[] = {3, 5, 7}; // null, zero, full
    for (int i = 0; i < 3; i++) {
        if (mknod(path_of("device"), S_IFCHR | 0600, makedev(1, minors[i])) != 0)
            skip();
        assert_int_equal(read_text("device", text, sizeof text), CLA_STORE_REFUSED);
        write_ok("device", "plain"); // takes its place
        assert_int_equal(read_text("device", text, sizeof text), CLA_STORE_OK);
        cla_store_remove(dir, "device");
    }
}

// Only who may write to the folder, or to the file, can have made one; writing leaves the other
// name's bytes alone.
static void a_hard_link_is_a_file(void **state)
{
    (void)state;
    char text[64], other[192];
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "first");
    snprintf(other, sizeof other, "%s/other", root);
    assert_int_equal(link(path_of("one"), other), 0);
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    assert_string_equal(text, "first");
    write_ok("one", "second!");
    struct stat s;
    assert_int_equal(stat(other, &s), 0);
    assert_int_equal(s.st_size, 5);
    assert_int_equal(s.st_nlink, 1);
}

static void names_stay_in_the_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"", ".", "..", "../outside", "/etc/passwd", "sub/one",
                                        "one/", "/", "../b/one"};
    char outside[192];
    void *data = NULL;
    size_t size = 0;
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "x");
    snprintf(outside, sizeof outside, "%s/a/outside", root);
    FILE *file = fopen(outside, "w");
    assert_non_null(file);
    fputs("x", file);
    fclose(file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(cla_store_read(dir, names[i], 9, &data, &size, why, sizeof why),
                         CLA_STORE_REFUSED);
        assert_null(data);
        assert_non_null(strstr(why, "is no name of a file"));
        assert_false(cla_store_write(dir, names[i], "y", 1, why, sizeof why));
        assert_non_null(strstr(why, "is no name of a file"));
        cla_store_touch(dir, names[i]);
        cla_store_remove(dir, names[i]);
    }
    assert_int_equal(access(outside, F_OK), 0);
    assert_int_equal(entries(), 1);
    // Dots and all else that a name may have are no harm.
    write_ok("..x", "x");
    write_ok(" a b%n\\", "x");
    assert_int_equal(entries(), 3);
}

static void large_files_are_refused(void **state)
{
    (void)state;
    void *data = NULL;
    size_t size = 0;
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "12345");
    assert_int_equal(cla_store_read(dir, "one", 4, &data, &size, why, sizeof why),
                     CLA_STORE_REFUSED);
    assert_null(data);
    assert_int_equal(cla_store_read(dir, "one", 5, &data, &size, why, sizeof why), CLA_STORE_OK);
    assert_int_equal(size, 5);
    free(data);
    // A size that memory does not have is not asked for.
    assert_int_equal(truncate(path_of("one"), (off_t)1 << 40), 0);
    assert_int_equal(cla_store_read(dir, "one", 1u << 30, &data, &size, why, sizeof why),
                     CLA_STORE_REFUSED);
    assert_null(data);
}

static void set_age(const char *name, long seconds)
{
    const struct timespec then = {.tv_sec = time(NULL) - seconds}, t[2] = {then, then};
    assert_int_equal(utimensat(AT_FDCWD, path_of(name), t, 0), 0);
}

static void the_oldest_go_first(void **state)
{
    (void)state;
    char text[64];
    assert_true(cla_store_open(dir, why, sizeof why));
    static const char *const names[] = {"a.k", "b.k", "c.k", "d.k", "other", "x.tmp.e.k"};
    static const long ages[] = {300, 500, 100, 400, 900, 1000};
    for (int i = 0; i < 6; i++) {
        write_ok(names[i], "0123456789");
        set_age(names[i], ages[i]);
    }
    cla_store_trim(dir, ".k", 50);
    assert_int_equal(entries(), 6);
    cla_store_trim(dir, ".k", 49); // what a crash left behind is one of them
    assert_int_equal(read_text("x.tmp.e.k", text, sizeof text), CLA_STORE_NONE);
    cla_store_touch(dir, "b.k"); // was the oldest
    cla_store_touch(dir, "no such file");
    cla_store_trim(dir, ".k", 20);
    assert_int_equal(read_text("a.k", text, sizeof text), CLA_STORE_NONE);
    assert_int_equal(read_text("b.k", text, sizeof text), CLA_STORE_OK);
    assert_int_equal(read_text("c.k", text, sizeof text), CLA_STORE_OK);
    assert_int_equal(read_text("d.k", text, sizeof text), CLA_STORE_NONE);
    cla_store_trim(dir, ".k", 0);
    assert_int_equal(entries(), 1);
    assert_int_equal(read_text("other", text, sizeof text), CLA_STORE_OK);
}

// What writers leave behind that are killed: it goes once it is old, however much room there is.
static void old_temporary_files_go(void **state)
{
    (void)state;
    static const char *const names[] = {"12ab-f0-0.tmp.a.k", "1-2-3.tmp.b.k", "1-2-4.tmp.b.k",
                                        "1-2-5.tmp.other", "1-2.tmp.a.k", "x.tmp.a.k",
                                        "1-2-g.tmp.a.k", "old.k"};
    static const long ages[] = {4000, 100000, 3000, 100000, 100000, 100000, 100000, 100000};
    enum { ALL = 8, GO = 2 };
    assert_true(cla_store_open(dir, why, sizeof why));
    for (int i = 0; i < ALL; i++) {
        write_ok(names[i], "x");
        set_age(names[i], ages[i]);
    }
    cla_store_trim(dir, ".k", UINT64_MAX); // all are old: nobody knows what the time is
    write_ok("new.k", "x");
    cla_store_trim(dir, ".k", UINT64_MAX);
    char text[8];
    for (int i = 0; i < ALL; i++)
        assert_int_equal(read_text(names[i], text, sizeof text),
                         i < GO ? CLA_STORE_NONE : CLA_STORE_OK);
    assert_int_equal(entries(), ALL - GO + 1);
}

// ---- what cannot be written --------------------------------------------------------------------

static void a_failing_write_leaves_the_old_file(void **state)
{
    (void)state;
    char text[64];
    static const char large[100000];
    struct rlimit before, tight;
    assert_true(cla_store_open(dir, why, sizeof why));
    write_ok("one", "old");
    void (*handler)(int) = signal(SIGXFSZ, SIG_DFL); // which would end the test
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 50000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const bool done = cla_store_write(dir, "one", large, sizeof large, why, sizeof why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_false(done);
    assert_non_null(strstr(why, "File too large"));
    assert_int_equal(read_text("one", text, sizeof text), CLA_STORE_OK);
    assert_string_equal(text, "old");
    assert_int_equal(entries(), 1);
}

// Runs `test` in a process of its own, whose exit status it is.
static int in_child(int (*test)(void))
{
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(test());
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

enum { CANNOT = 77 };

static int on_a_full_disk(void)
{
#if defined(__linux__)
    static const char large[100000];
    void *data = NULL;
    size_t size = 0;
    if (mkdir(dir, 0700) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700") != 0)
        return CANNOT;
    if (!cla_store_write(dir, "small", "abc", 3, why, sizeof why))
        return 1;
    if (cla_store_write(dir, "large", large, sizeof large, why, sizeof why) ||
        !strstr(why, "No space left"))
        return 2;
    if (entries() != 1 ||
        cla_store_read(dir, "small", 9, &data, &size, why, sizeof why) != CLA_STORE_OK)
        return 3;
    free(data);
    if (mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
        return CANNOT;
    if (!cla_store_open(dir, why, sizeof why) ||
        cla_store_write(dir, "small", "x", 1, why, sizeof why) || !strstr(why, "Read-only"))
        return 4;
    cla_store_touch(dir, "small");
    cla_store_remove(dir, "small");
    if (cla_store_read(dir, "small", 9, &data, &size, why, sizeof why) != CLA_STORE_OK || size != 3)
        return 5;
    free(data);
    return 0;
#else
    return CANNOT;
#endif
}

static void full_and_read_only_disks(void **state)
{
    (void)state;
    char above[256];
    snprintf(above, sizeof above, "%s/a", root);
    assert_int_equal(mkdir(above, 0700), 0);
    const int status = in_child(on_a_full_disk);
    if (status == CANNOT)
        skip();
    assert_int_equal(status, 0);
}

static int as_another_user(void)
{
    char theirs[192];
    void *data = NULL;
    size_t size = 0;
    snprintf(theirs, sizeof theirs, "%s/theirs", root);
    if (mkdir(theirs, 0700) != 0 || chown(theirs, 65534, 65534) != 0 || chmod(root, 0711) != 0 ||
        !cla_store_open(dir, why, sizeof why) || chmod(dir, 0755) != 0)
        return CANNOT;
    if (cla_store_open(theirs, why, sizeof why)) // root may, and must not
        return 1;
    if (!cla_store_write(dir, "one", "x", 1, why, sizeof why))
        return 2;
    if (chown(path_of("one"), 65534, 65534) != 0)
        return CANNOT;
    if (cla_store_read(dir, "one", 9, &data, &size, why, sizeof why) != CLA_STORE_REFUSED)
        return 3;
    if (setgid(65534) != 0 || setuid(65534) != 0)
        return CANNOT;
    if (cla_store_open(dir, why, sizeof why))
        return 4;
    if (!cla_store_open(theirs, why, sizeof why) ||
        !cla_store_write(theirs, "two", "y", 1, why, sizeof why) || chmod(theirs, 0500) != 0)
        return 5;
    if (cla_store_write(theirs, "two", "z", 1, why, sizeof why)) // a read-only folder
        return 6;
    if (cla_store_read(theirs, "two", 9, &data, &size, why, sizeof why) != CLA_STORE_OK)
        return 7;
    const int status = *(const char *)data == 'y' && chmod(theirs, 0700) == 0 ? 0 : 8;
    free(data);
    return status;
}

static void other_users(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    const int status = in_child(as_another_user);
    if (status == CANNOT)
        skip();
    assert_int_equal(status, 0);
}

// ---- two processes -----------------------------------------------------------------------------

enum { ROUNDS = 200, LENGTH = 20000 };

// Writes files of one letter, and reads what is there, which must be whole.
static int write_and_read(char letter)
{
    char *text = malloc(LENGTH);
    if (!text)
        return 1;
    memset(text, letter, LENGTH);
    for (int i = 0; i < ROUNDS; i++) {
        void *data = NULL;
        size_t size = 0;
        if (!cla_store_write(dir, "same.k", text, LENGTH, why, sizeof why))
            return 2;
        if (i % 16 == 0)
            cla_store_trim(dir, ".k", 2 * LENGTH);
        const enum cla_store_result r =
            cla_store_read(dir, "same.k", LENGTH, &data, &size, why, sizeof why);
        if (r == CLA_STORE_NONE) // trimmed by the other one
            continue;
        if (r != CLA_STORE_OK || size != LENGTH)
            return 3;
        const char *got = data;
        if (got[0] != 'a' && got[0] != 'b')
            return 4;
        for (int n = 1; n < LENGTH; n++)
            if (got[n] != got[0])
                return 5;
        free(data);
    }
    free(text);
    return 0;
}

static void two_processes(void **state)
{
    (void)state;
    assert_true(cla_store_open(dir, why, sizeof why));
    pid_t child[2];
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0)
            _exit(write_and_read((char)('a' + i)));
    }
    for (int i = 0; i < 2; i++) {
        int status = -1;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    assert_true(entries() <= 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_of_the_papers_vectors),
        cmocka_unit_test(the_processor_is_the_same_each_time),
#if defined(__linux__) && defined(__x86_64__)
        cmocka_unit_test(the_processor_is_told_apart),
#endif
        cmocka_unit_test(environment_is_chosen_and_sorted),
        cmocka_unit_test(default_path),
        TEST(a_file_comes_back),
#if defined(__linux__)
        TEST(a_file_is_on_the_disk_before_it_has_its_name),
#endif
        TEST(what_others_can_write_is_refused),
        TEST(links_and_other_things_are_refused),
        TEST(links_above_the_folder_are_followed),
        TEST(the_environment_names_no_folder_for_temporary_files),
        TEST(devices_are_refused),
        TEST(a_hard_link_is_a_file),
        TEST(names_stay_in_the_folder),
        TEST(large_files_are_refused),
        TEST(the_oldest_go_first),
        TEST(old_temporary_files_go),
        TEST(a_failing_write_leaves_the_old_file),
        TEST(full_and_read_only_disks),
        TEST(other_users),
        TEST(two_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
