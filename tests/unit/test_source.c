// SPDX-License-Identifier: Apache-2.0
// ocl/source: where kernel files are looked up and how includes are expanded.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ocl/source.h"
#include "portable.h"
#include "record_log.h"

// Two folders that every test finds empty.
struct folders {
    char a[64], b[64];
    char files[256][128]; // to remove at the end
    int count;
};

static struct folders folders;
static struct record record;

static void put_bytes(const char *dir, const char *name, const char *data, size_t size)
{
    char path[sizeof folders.files[0]]; // `dir` may lie in `folders`
    snprintf(path, sizeof path, "%s/%s", dir, name);
    memcpy(folders.files[folders.count++], path, sizeof path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void put(const char *dir, const char *name, const char *text)
{
    put_bytes(dir, name, text, strlen(text));
}

static int make_folders(void **state)
{
    (void)state;
    folders.count = 0;
    strcpy(folders.a, P_tmpdir "/cla_source_XXXXXX");
    strcpy(folders.b, P_tmpdir "/cla_source_XXXXXX");
    record_start(&record, CLATTN_LOG_WARN);
    unsetenv("CLATTN_KERNEL_DIR");
    return mkdtemp(folders.a) && mkdtemp(folders.b) ? 0 : -1;
}

static int remove_folders(void **state)
{
    (void)state;
    for (int i = 0; i < folders.count; i++)
        unlink(folders.files[i]);
    unsetenv("CLATTN_KERNEL_DIR");
    return rmdir(folders.a) | rmdir(folders.b);
}

static void expect_text(const char *dir, const char *name, const char *expected)
{
    char *text = NULL;
    assert_int_equal(cla_source_expand(dir, false, name, &record.log, &text), CLATTN_OK);
    assert_string_equal(text, expected);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 0);
    free(text);
}

// The call fails with CLATTN_ERR_FILE and one error, which contains `part`.
static void expect_refused(const char *dir, const char *name, const char *part)
{
    char *text = (char *)"not touched";
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_source_expand(dir, false, name, &record.log, &text), CLATTN_ERR_FILE);
    assert_null(text);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
    if (!strstr(record.text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, record.text);
}

static void nested_includes_keep_their_lines(void **state)
{
    (void)state;
    put(folders.a, "top.cl", "// top\n#include \"one.clh\"\nint top;\n");
    put(folders.a, "one.clh", "#include \"two.clh\"\nint one;\n");
    put(folders.a, "two.clh", "int two;\n");
    expect_text(folders.a, "top.cl",
                "#line 1 \"top.cl\"\n// top\n"
                "#line 1 \"one.clh\"\n"
                "#line 1 \"two.clh\"\nint two;\n"
                "#line 2 \"one.clh\"\nint one;\n"
                "#line 3 \"top.cl\"\nint top;\n");
}

static void each_file_once(void **state)
{
    (void)state;
    put(folders.a, "top.cl",
        "#include \"one.clh\"\n#include \"two.clh\"\n#include \"top.cl\"\nend\n");
    put(folders.a, "one.clh", "#include \"two.clh\"\n");
    put(folders.a, "two.clh", "#include \"one.clh\"\ntwo\n"); // a circle
    expect_text(folders.a, "top.cl",
                "#line 1 \"top.cl\"\n"
                "#line 1 \"one.clh\"\n"
                "#line 1 \"two.clh\"\n\ntwo\n"
                "#line 2 \"one.clh\"\n"
                "#line 2 \"top.cl\"\n\n\nend\n");
}

static void ways_to_write_an_include(void **state)
{
    (void)state;
    put(folders.a, "top.cl",
        " \t# \t include \t\"a.clh\" // why\r\n#include\"b.clh\"\n#include \"c.clh\"");
    put(folders.a, "a.clh", "a\r\n");
    put(folders.a, "b.clh", "b"); // no line break at the end
    put(folders.a, "c.clh", "");
    expect_text(folders.a, "top.cl",
                "#line 1 \"top.cl\"\n"
                "#line 1 \"a.clh\"\na\r\n#line 2 \"top.cl\"\n"
                "#line 1 \"b.clh\"\nb\n#line 3 \"top.cl\"\n"
                "#line 1 \"c.clh\"\n#line 4 \"top.cl\"\n");
}

static void what_is_no_include(void **state)
{
    (void)state;
    const char *text = "#include <stdint.h>\n// #include \"no.clh\"\n#include_next \"no.clh\"\n"
                       "#includ \"no.clh\"\n#include\n#include \"no.clh\n#\nx #include \"no.clh\"\n"
                       "#include X \"no.clh\"\n";
    char expected[512];
    put(folders.a, "top.cl", text);
    snprintf(expected, sizeof expected, "#line 1 \"top.cl\"\n%s", text);
    expect_text(folders.a, "top.cl", expected);
}

static void only_plain_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "../up.cl", "..",      "sub/x.cl", "/etc/passwd", "a\\b.cl", "c:x.cl",
        "x..cl",    ".hidden", "a b.cl",   "a%n.cl",      "",        "a\nb.cl", "a\"b.cl",
    };
    put(folders.b, "up.cl", "found\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        expect_refused(folders.a, names[i], "plain");
        char text[128];
        snprintf(text, sizeof text, "\n#include \"%s\"\n", names[i]);
        if (strpbrk(names[i], "\n\""))
            continue; // not an include any more, or of another name
        put(folders.a, "top.cl", text);
        expect_refused(folders.a, "top.cl", "top.cl:2: ");
        expect_refused(folders.a, "top.cl", "plain");
    }
    char longest[300];
    memset(longest, 'a', sizeof longest);
    longest[299] = '\0';
    expect_refused(folders.a, longest, "plain");
}

static void the_first_folder_wins(void **state)
{
    (void)state;
    put(folders.a, "abi.h", "from a\n");
    put(folders.b, "abi.h", "from b\n");
    put(folders.b, "only_b.cl", "b\n");
    setenv("CLATTN_KERNEL_DIR", folders.b, 1);
    expect_text(folders.a, "abi.h", "#line 1 \"abi.h\"\nfrom a\n");
    expect_text(NULL, "abi.h", "#line 1 \"abi.h\"\nfrom b\n");
    expect_text("", "abi.h", "#line 1 \"abi.h\"\nfrom b\n");
    expect_text(folders.a, "only_b.cl", "#line 1 \"only_b.cl\"\nb\n");
    expect_text(P_tmpdir "/cla_no_such_folder", "only_b.cl", "#line 1 \"only_b.cl\"\nb\n");
}

static void no_mixing_of_folders(void **state)
{
    (void)state;
    put(folders.a, "top.cl", "\n\n#include \"dep.clh\"\n");
    put(folders.b, "top.cl", "#include \"dep.clh\"\n");
    put(folders.b, "dep.clh", "dep\n");
    setenv("CLATTN_KERNEL_DIR", folders.b, 1);
    // Neither the other folder's header nor its kernel is taken in place of what is missing.
    expect_refused(folders.a, "top.cl", "top.cl:3: ");
    assert_non_null(strstr(record.text, "dep.clh"));
    assert_non_null(strstr(record.text, folders.a));
    // An embedded file is not mixed in either.
    put(folders.a, "user.cl", "#include \"abi.h\"\n");
    expect_refused(folders.a, "user.cl", "abi.h");
}

static void the_error_lists_all_places(void **state)
{
    (void)state;
    setenv("CLATTN_KERNEL_DIR", folders.b, 1);
    expect_refused(folders.a, "no_such.cl", "no_such.cl");
    assert_non_null(strstr(record.text, folders.a));
    assert_non_null(strstr(record.text, "$CLATTN_KERNEL_DIR"));
    assert_non_null(strstr(record.text, folders.b));
    assert_non_null(strstr(record.text, "embedded"));
    unsetenv("CLATTN_KERNEL_DIR");
    expect_refused(NULL, "no_such.cl", "embedded");
    assert_null(strstr(record.text, "$CLATTN_KERNEL_DIR"));
}

#if !defined(_WIN32)
// What is there but cannot be read is not passed over for the embedded copy.
static void what_cannot_be_read_is_refused(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/abi.h", folders.a);
    assert_int_equal(mkdir(path, 0700), 0); // a folder of that name
    expect_refused(folders.a, "abi.h", "plain file");
    put(folders.a, "top.cl", "#include \"abi.h\"\n");
    expect_refused(folders.a, "top.cl", "plain file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(folders.a, "abi.h", "plain file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("abi.h", path), 0); // to itself
    expect_refused(folders.a, "abi.h", "cannot be read");
    assert_int_equal(unlink(path), 0);
    if (geteuid() != 0) {
        put(folders.a, "abi.h", "text\n");
        assert_int_equal(chmod(path, 0), 0);
        expect_refused(folders.a, "abi.h", "permission");
    }
    put(folders.b, "abi.h", "text\n");
    snprintf(path, sizeof path, "%s/abi.h", folders.b);
    assert_int_equal(truncate(path, (off_t)6 << 24), 0);
    expect_refused(folders.b, "abi.h", "too large");
}
#endif

static void zero_bytes_are_refused(void **state)
{
    (void)state;
    put_bytes(folders.a, "zero.cl", "a\0b\n", 4);
    expect_refused(folders.a, "zero.cl", "zero");
    put(folders.a, "top.cl", "#include \"zero.cl\"\n");
    expect_refused(folders.a, "top.cl", "zero.cl");
}

static void number_of_files_is_bounded(void **state)
{
    (void)state;
    char name[32], text[64];
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "f%d.clh", i);
        snprintf(text, sizeof text, "#include \"f%d.clh\"\n", i + 1);
        put(folders.a, name, text);
    }
    put(folders.a, "f64.clh", "end\n");
    expect_refused(folders.a, "f0.clh", "64 files");
    char *out = NULL;
    assert_int_equal(cla_source_expand(folders.a, false, "f1.clh", &record.log, &out), CLATTN_OK);
    assert_non_null(strstr(out, "end\n"));
    free(out);
}

static void embedded_copy_is_the_last_resort(void **state)
{
    (void)state;
    bool found_abi = false;
    assert_true(cla_embedded_count > 0);
    for (size_t i = 0; i < cla_embedded_count; i++) {
        const struct cla_embedded_file *f = &cla_embedded_files[i];
        assert_int_equal(strlen(f->text), f->size);
        char *text = NULL;
        assert_int_equal(cla_source_expand(folders.a, false, f->name, &record.log, &text),
                         CLATTN_OK);
        char first[128];
        snprintf(first, sizeof first, "#line 1 \"%s\"\n", f->name);
        assert_memory_equal(text, first, strlen(first));
        assert_null(strstr(text, "\n#include \""));
        if (strcmp(f->name, "abi.h") == 0) {
            found_abi = true;
            assert_string_equal(text + strlen(first), f->text);
        }
        free(text);
    }
    assert_true(found_abi);
    assert_int_equal(record_total(&record), 0);
}

// Whatever lies in folders, and however they are named.
static void embedded_copy_alone(void **state)
{
    (void)state;
    put(folders.a, "abi.h", "no text of ours\n");
    put(folders.b, "abi.h", "no text of ours\n");
    put(folders.a, "other.cl", "other\n");
    setenv("CLATTN_KERNEL_DIR", folders.b, 1);
    char *text = NULL, *refused = NULL;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_source_expand(folders.a, true, "abi.h", &record.log, &text), CLATTN_OK);
    assert_null(strstr(text, "no text of ours"));
    assert_string_equal(record.text, "abi.h read from the embedded copy\n");
    free(text);
    assert_int_equal(cla_source_expand(folders.a, true, "other.cl", &record.log, &refused),
                     CLATTN_ERR_FILE);
    assert_non_null(strstr(record.text, "tried the embedded copy\n"));
}

static void long_files(void **state)
{
    (void)state;
    enum { LINES = 20000 };
    char *text = malloc(LINES * 16 + 64), *expected = malloc(LINES * 16 + 64);
    assert_non_null(text);
    assert_non_null(expected);
    size_t n = 0;
    for (int i = 0; i < LINES; i++)
        n += (size_t)sprintf(text + n, "int x%d;\n", i);
    sprintf(expected, "#line 1 \"long.cl\"\n%s", text);
    put(folders.a, "long.cl", text);
    expect_text(folders.a, "long.cl", expected);
    free(text);
    free(expected);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folders, remove_folders)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nested_includes_keep_their_lines),
        TEST(each_file_once),
        TEST(ways_to_write_an_include),
        TEST(what_is_no_include),
        TEST(only_plain_names),
        TEST(the_first_folder_wins),
        TEST(no_mixing_of_folders),
        TEST(the_error_lists_all_places),
#if !defined(_WIN32)
        TEST(what_cannot_be_read_is_refused),
#endif
        TEST(zero_bytes_are_refused),
        TEST(number_of_files_is_bounded),
        TEST(embedded_copy_is_the_last_resort),
        TEST(embedded_copy_alone),
        TEST(long_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
