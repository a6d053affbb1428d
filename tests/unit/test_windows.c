// SPDX-License-Identifier: Apache-2.0
// util/os and util/store on Windows: shared libraries, files, time, mutex, worker, stored files.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <windows.h>

#include <cmocka.h>

#include "portable.h"
#include "util/host_facts.h"
#include "util/os.h"
#include "util/store.h"

// ---- os ----------------------------------------------------------------------------------------

static void libraries_open(void **state)
{
    (void)state;
    char error[64] = "";
    void *lib = cla_os_lib_open("kernel32.dll", error, sizeof error);
    assert_non_null(lib);
    assert_non_null(cla_os_lib_symbol(lib, "GetTickCount"));
    assert_null(cla_os_lib_symbol(lib, "NoSuchFunctionAnywhere"));
    cla_os_lib_close(lib);
    assert_null(cla_os_lib_open("cla_no_such_library.dll", error, sizeof error));
    assert_string_equal(error, "system error 126");
    // Windows has no handle of all that a program was linked to.
    assert_null(cla_os_lib_open(NULL, NULL, 0));
}

// A library in the current folder is opened only by its path.
static void the_current_folder_is_not_searched(void **state)
{
    (void)state;
    static const char name[] = "cla_in_this_folder.dll";
    char system[MAX_PATH], path[MAX_PATH], folder[] = P_tmpdir "/cla_dll_XXXXXX", old[MAX_PATH];
    assert_true(GetSystemDirectoryA(system, MAX_PATH - 16) > 0);
    assert_non_null(mkdtemp(folder));
    assert_true(GetCurrentDirectoryA(sizeof old, old) > 0);
    assert_true(SetCurrentDirectoryA(folder));
    snprintf(path, sizeof path, "%s\\version.dll", system);
    assert_true(CopyFileA(path, name, FALSE));
    assert_null(cla_os_lib_open(name, NULL, 0));
    assert_true(GetFullPathNameA(name, sizeof path, path, NULL) > 0);
    void *lib = cla_os_lib_open(path, NULL, 0);
    assert_non_null(lib);
    cla_os_lib_close(lib);
    DeleteFileA(name);
    assert_true(SetCurrentDirectoryA(old));
    assert_true(RemoveDirectoryA(folder));
}

static void a_symbol_has_a_path(void **state)
{
    (void)state;
    static const char here;
    char path[1024], program[1024];
    assert_true(cla_os_path_of(&here, path, sizeof path));
    assert_true(GetModuleFileNameA(NULL, program, sizeof program) > 0);
    assert_string_equal(path, program);
    assert_false(cla_os_path_of(&here, path, 4));
    int local = 0;
    assert_false(cla_os_path_of(&local, path, sizeof path));
}

static void files_and_variables(void **state)
{
    (void)state;
    char folder[] = P_tmpdir "/cla_os_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    assert_true(cla_os_is_folder(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    assert_false(cla_os_is_folder(path));
    assert_null(cla_os_read_file(path, NULL));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite("a\r\nb\n\x1a.", 1, 7, file); // text files would lose some of these
    fclose(file);
    assert_false(cla_os_is_folder(path));
    size_t size = 0;
    char *text = cla_os_read_file(path, &size);
    assert_non_null(text);
    assert_int_equal(size, 7);
    assert_memory_equal(text, "a\r\nb\n\x1a.", 8);
    free(text);
    assert_int_equal(remove(path), 0);
    assert_true(RemoveDirectoryA(folder));

    unsetenv("CLA_TEST_VARIABLE");
    assert_null(cla_os_env("CLA_TEST_VARIABLE"));
    setenv("CLA_TEST_VARIABLE", " x", 1);
    assert_string_equal(cla_os_env("CLA_TEST_VARIABLE"), " x");
    static const char *const prefixes[] = {"CLA_TEST_"};
    char *list = cla_host_env(prefixes, 1, "CACHE");
    assert_string_equal(list, "CLA_TEST_VARIABLE= x\n");
    free(list);
    unsetenv("CLA_TEST_VARIABLE");
    char *cpu = cla_host_cpu();
    assert_true(strlen(cpu) > 8);
    free(cpu);
}

static void time_passes(void **state)
{
    (void)state;
    const uint64_t start = cla_os_now_ns();
    cla_os_sleep_ms(30);
    const uint64_t spent = cla_os_now_ns() - start;
    assert_in_range(spent, 15000000u, 20000000000u);
}

static void memory_is_aligned(void **state)
{
    (void)state;
    for (size_t align = 16; align <= 4096; align *= 2) {
        unsigned char *memory = cla_os_aligned_alloc(align, 3 * align);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % align, 0);
        memset(memory, 1, 3 * align);
        cla_os_aligned_free(memory);
    }
    cla_os_aligned_free(NULL);
}

enum { JOBS = 200 };
static int order[JOBS];
static atomic_int done;

static void note_order(void *arg)
{
    order[atomic_fetch_add(&done, 1)] = *(int *)arg;
}

static void jobs_run_in_order(void **state)
{
    (void)state;
    static int number[JOBS];
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    for (int i = 0; i < JOBS; i++) {
        number[i] = i;
        assert_true(cla_worker_push(w, note_order, &number[i]));
    }
    cla_worker_destroy(w);
    assert_int_equal(atomic_load(&done), JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(order[i], i);
    cla_worker_destroy(NULL);
    cla_worker_destroy(cla_worker_create()); // without a thread
}

static struct cla_mutex *mutex;
static long counter;

static void count_up(void *arg)
{
    for (int i = 0; i < *(int *)arg; i++) {
        cla_mutex_lock(mutex);
        counter++;
        cla_mutex_unlock(mutex);
    }
}

static void a_mutex_excludes(void **state)
{
    (void)state;
    int rounds = 20000;
    struct cla_worker *w[2] = {cla_worker_create(), cla_worker_create()};
    mutex = cla_mutex_create();
    assert_non_null(mutex);
    for (int i = 0; i < 2; i++)
        assert_true(cla_worker_push(w[i], count_up, &rounds));
    for (int i = 0; i < 2; i++)
        cla_worker_destroy(w[i]);
    assert_int_equal(counter, 2 * rounds);
    cla_mutex_destroy(mutex);
}

// ---- store -------------------------------------------------------------------------------------

static char root[] = P_tmpdir "\\cla_store_XXXXXX", inner[64];
static char why[256];

static int make_root(void **state)
{
    (void)state;
    strcpy(root + strlen(root) - 6, "XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(inner, sizeof inner, "%s\\a/b", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    char a[64];
    cla_store_trim(inner, "", 0);
    snprintf(a, sizeof a, "%s\\a", root);
    RemoveDirectoryA(inner);
    RemoveDirectoryA(a);
    return RemoveDirectoryA(root) ? 0 : -1;
}

static void expect_file(const char *name, const char *text)
{
    void *data = NULL;
    size_t size = 0;
    if (cla_store_read(inner, name, 1000, &data, &size, why, sizeof why) != CLA_STORE_OK)
        fail_msg("%s: %s", name, why);
    assert_int_equal(size, strlen(text));
    assert_memory_equal(data, text, size);
    free(data);
}

static enum cla_store_result read_of(const char *name, size_t most)
{
    void *data = (void *)why;
    size_t size = 1;
    const enum cla_store_result result =
        cla_store_read(inner, name, most, &data, &size, why, sizeof why);
    assert_null(data);
    assert_int_equal(size, 0);
    return result;
}

static bool put(const char *name, const char *text)
{
    return cla_store_write(inner, name, text, strlen(text), why, sizeof why);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    assert_true(cla_store_open(inner, why, sizeof why));
    assert_true(cla_os_is_folder(inner));
    assert_int_equal(read_of("one", 1000), CLA_STORE_NONE);
    assert_true(put("one", "first\r\n"));
    expect_file("one", "first\r\n");
    assert_true(put("one", "second\n\x1a"));
    expect_file("one", "second\n\x1a");
    assert_true(put("two", "2"));
    expect_file("one", "second\n\x1a");
    assert_int_equal(read_of("one", 7), CLA_STORE_REFUSED);
    assert_true(put("two", ""));
    assert_int_equal(read_of("two", 7), CLA_STORE_NONE);
    cla_store_remove(inner, "two"); // trimming counts bytes, of which it has none
    cla_store_remove(inner, "one");
    assert_int_equal(read_of("one", 7), CLA_STORE_NONE);
    cla_store_remove(inner, "one");
}

static void names_stay_inside(void **state)
{
    (void)state;
    static const char *const names[] = {"", ".", "..", "a/b", "a\\b", "..\\x", "c:", "c:x", "x:y"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_false(put(names[i], "x"));
        assert_non_null(strstr(why, "is no name of a file"));
        assert_int_equal(read_of(names[i], 9), CLA_STORE_REFUSED);
    }
    char folder[96];
    snprintf(folder, sizeof folder, "%s\\below", inner);
    assert_true(cla_store_open(inner, why, sizeof why));
    assert_true(CreateDirectoryA(folder, NULL));
    assert_int_equal(read_of("below", 9), CLA_STORE_REFUSED);
    assert_true(RemoveDirectoryA(folder));
    // A file is no folder, and nothing can be made in it.
    assert_true(put("file", "x"));
    snprintf(folder, sizeof folder, "%s\\file", inner);
    assert_false(cla_store_open(folder, why, sizeof why));
    snprintf(folder, sizeof folder, "%s\\file\\x", inner);
    assert_false(cla_store_open(folder, why, sizeof why));
}

static void the_oldest_go_first(void **state)
{
    (void)state;
    static const char *const names[] = {"1.bin", "2.bin", "3.bin", "4.txt"};
    for (size_t i = 0; i < 4; i++) {
        assert_true(put(names[i], "0123456789"));
        cla_os_sleep_ms(20);
    }
    cla_store_touch(inner, "1.bin");
    cla_store_trim(inner, ".bin", 20);
    expect_file("1.bin", "0123456789");
    assert_int_equal(read_of("2.bin", 99), CLA_STORE_NONE);
    expect_file("3.bin", "0123456789");
    expect_file("4.txt", "0123456789");
}

static void the_default_path(void **state)
{
    (void)state;
    char path[CLA_STORE_PATH];
    char *before = getenv("LOCALAPPDATA") ? strdup(getenv("LOCALAPPDATA")) : NULL;
    setenv("LOCALAPPDATA", "C:\\u", 1);
    assert_true(cla_store_default_path(path, sizeof path));
    assert_string_equal(path, "C:\\u\\clattn");
    assert_false(cla_store_default_path(path, 11));
    static const char *const relative[] = {"", "u", "C:", "C:u", "\\u"};
    for (size_t i = 0; i < sizeof relative / sizeof *relative; i++) {
        setenv("LOCALAPPDATA", relative[i], 1);
        assert_false(cla_store_default_path(path, sizeof path));
    }
    setenv("LOCALAPPDATA", before ? before : "", 1);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries_open),
        cmocka_unit_test(the_current_folder_is_not_searched),
        cmocka_unit_test(a_symbol_has_a_path),
        cmocka_unit_test(files_and_variables),
        cmocka_unit_test(time_passes),
        cmocka_unit_test(memory_is_aligned),
        cmocka_unit_test(jobs_run_in_order),
        cmocka_unit_test(a_mutex_excludes),
        cmocka_unit_test_setup_teardown(what_is_written_is_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(names_stay_inside, make_root, remove_root),
        cmocka_unit_test_setup_teardown(the_oldest_go_first, make_root, remove_root),
        cmocka_unit_test(the_default_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
