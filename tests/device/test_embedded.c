// SPDX-License-Identifier: Apache-2.0
// CLATTN_CONTEXT_EMBEDDED_KERNELS, and builds that always work so: no kernel text of a folder is
// read, whatever the context's description and the environment say. Built twice: with
// TEST_EMBEDDED_BUILD the library's context is compiled as -Dkernels=embedded compiles it.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "open_device.h"
#include "record_log.h"

#if defined(TEST_EMBEDDED_BUILD)
enum { ALWAYS = 1 };
static const char reason[] = "this build takes its own kernels only";
#else
enum { ALWAYS = 0 };
static const char reason[] = "CLATTN_CONTEXT_EMBEDDED_KERNELS is in flags";
#endif

static struct record record;
static char folder[64], file[96];

// A folder whose self-test is no kernel: a context that reads it does not open.
static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, P_tmpdir "/cla_embedded_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/self_test.cl", folder);
    FILE *f = fopen(file, "w");
    if (!f || fputs("this is no kernel\n", f) < 0)
        return -1;
    return fclose(f);
}

static int remove_folder(void **state)
{
    (void)state;
    unsetenv("CLATTN_KERNEL_DIR");
    unlink(file);
    return rmdir(folder);
}

static clattn_status open_context(const char *device, uint32_t flags, const char *kernel_dir)
{
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    record_start(&record, CLATTN_LOG_DEBUG);
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = device;
    desc.flags = flags | CLATTN_CONTEXT_NO_CACHE | CLATTN_CONTEXT_NO_TUNING;
    desc.kernel_dir = kernel_dir;
    desc.log = record.log.fn;
    desc.log_user = &record;
    desc.log_level = CLATTN_LOG_DEBUG;
    const clattn_status st = clattn_context_create(&desc, &ctx);
    assert_true((st == CLATTN_OK) == (ctx != NULL));
    clattn_context_destroy(&ctx);
    return st;
}

static void a_folder_is_refused(void **state)
{
    (void)state;
    const uint32_t flags = ALWAYS ? 0 : CLATTN_CONTEXT_EMBEDDED_KERNELS;
    int32_t count = 0;
    clattn_context_desc desc;
    assert_int_equal(open_context("cpu", flags, folder), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
    assert_non_null(strstr(record.text, "kernel_dir is given, but "));
    assert_non_null(strstr(record.text, reason));
    clattn_context_desc_init(&desc, sizeof desc);
    desc.flags = flags | CLATTN_CONTEXT_NO_OPENCL;
    desc.kernel_dir = folder;
    assert_int_equal(clattn_device_count(&desc, &count), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(open_context("cpu", flags, ""), CLATTN_OK); // none is given
    assert_int_equal(open_context("cpu", flags, NULL), CLATTN_OK);
    setenv("CLATTN_KERNEL_DIR", folder, 1);
    assert_int_equal(open_context("cpu", flags, NULL), CLATTN_OK);
    assert_int_equal(open_context("cpu", 1u << 6, NULL), CLATTN_ERR_INVALID_ARGUMENT);
}

// Every line that says where a text is from.
static int texts_not_embedded(void)
{
    int n = 0;
    for (const char *at = record.text; (at = strstr(at, " read from ")) != NULL; at++)
        n += strncmp(at, " read from the embedded copy\n", 29) != 0;
    return n;
}

static void folders_are_not_looked_at(void **state)
{
    (void)state;
    struct test_device devices[DEVICES_MAX];
    int count = 0;
    assert_true(devices_open(devices, &count));
    if (count == 0)
        skip();
    setenv("CLATTN_KERNEL_DIR", folder, 1);
    for (int i = 0; i < count; i++) {
        char index[16];
        snprintf(index, sizeof index, "%d", (int)devices[i].info.index);
        assert_int_equal(open_context(index, CLATTN_CONTEXT_EMBEDDED_KERNELS, NULL), CLATTN_OK);
        assert_non_null(strstr(record.text, "self_test.cl read from the embedded copy"));
        assert_int_equal(texts_not_embedded(), 0);
        assert_null(strstr(record.text, folder));
        // The folder would have been found.
        assert_int_equal(open_context(index, 0, NULL), ALWAYS ? CLATTN_OK : CLATTN_ERR_BUILD);
        assert_true((texts_not_embedded() == 0) == ALWAYS);
    }
    devices_close(devices, count);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_folder_is_refused),
        TEST(folders_are_not_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
