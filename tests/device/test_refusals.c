// SPDX-License-Identifier: Apache-2.0
// Refusals of handles, contexts, calls of one line and copies.
#include "refuse.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// ---- handles ------------------------------------------------------------------------------------

// Without a handle there is no log either: these have a status alone.
static void test_null_handles(void **state)
{
    fixture_open(*state);
    const clattn_attention_desc desc = good_desc();
    const clattn_attention_call call = good_call();
    clattn_plan_info info = {.struct_size = sizeof info};
    clattn_device_info device = {.struct_size = sizeof device};
    clattn_buf buf = {0};
    clattn_plan *plan = (clattn_plan *)(uintptr_t)1;
    size_t bytes = 77;
    blank_outputs();
    clear_log();
    assert_int_equal(clattn_attention_plan_create(NULL, &desc, &plan), INVALID);
    assert_null(plan);
    assert_int_equal(clattn_attention_run(NULL, &call), INVALID);
    assert_int_equal(clattn_plan_workspace_bytes(NULL, &call, &bytes), INVALID);
    assert_int_equal(clattn_plan_get_info(NULL, &info), INVALID);
    assert_null(clattn_plan_get_refusal(NULL, 0));
    assert_int_equal(clattn_context_get_device_info(NULL, &device), INVALID);
    assert_int_equal(clattn_context_build_count(NULL), 0);
    assert_int_equal(clattn_mem_create(NULL, 16, &buf), INVALID);
    assert_int_equal(clattn_mem_write(NULL, &buf, &bytes, sizeof bytes), INVALID);
    assert_int_equal(clattn_mem_read(NULL, &buf, &bytes, sizeof bytes), INVALID);
    assert_int_equal(bytes, 77);
    assert_int_equal(fx.log.errors, 0);
    // All of these do nothing.
    clattn_plan_destroy(NULL);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(NULL);
    clattn_mem_destroy(NULL, NULL);
    clattn_mem_destroy(fx.ctx, NULL);
    clattn_mem_destroy(fx.ctx, &buf);
    clattn_attention_desc_init(NULL, sizeof desc);
    clattn_attention_call_init(NULL, sizeof call);
    clattn_context_desc_init(NULL, sizeof(clattn_context_desc));
    assert_untouched("NULL handles");
    assert_valid_works("NULL handles");
}

static void test_null_arguments(void **state)
{
    fixture_open(*state);
    const clattn_attention_desc desc = good_desc();
    const clattn_attention_call call = good_call();
    clattn_plan *plan = (clattn_plan *)(uintptr_t)1;
    size_t bytes = 0;
    blank_outputs();
    REFUSED(clattn_attention_plan_create(fx.ctx, NULL, &plan), "no desc", INVALID, "desc is NULL");
    assert_null(plan);
    REFUSED(clattn_attention_plan_create(fx.ctx, &desc, NULL), "no out", INVALID, "out is NULL");
    REFUSED(clattn_attention_run(fx.plan, NULL), "no call", INVALID, "call is NULL");
    REFUSED(clattn_plan_workspace_bytes(fx.plan, &call, NULL), "no bytes", INVALID,
            "bytes is NULL");
    REFUSED(clattn_plan_get_info(fx.plan, NULL), "no info", INVALID, "info is NULL");
    REFUSED(clattn_context_get_device_info(fx.ctx, NULL), "no info", INVALID, "info is NULL");
    REFUSED(clattn_mem_create(fx.ctx, 16, NULL), "no buffer", INVALID, "bytes 16", "out NULL");
    assert_int_equal(clattn_plan_workspace_bytes(fx.plan, NULL, &bytes), CLATTN_OK);
    assert_null(clattn_plan_get_refusal(fx.plan, -1));
    assert_null(clattn_plan_get_refusal(fx.plan, INT32_MAX));
    // Structs that were zeroed but never initialised.
    const clattn_attention_desc zero_desc = {0};
    const clattn_attention_call zero_call = {0};
    clattn_plan_info info = {.struct_size = 4};
    clattn_device_info device = {.struct_size = 4};
    REFUSED(clattn_attention_plan_create(fx.ctx, &zero_desc, &plan), "zeroed",
            CLATTN_ERR_STRUCT_SIZE, "clattn_attention_desc.struct_size is 0", "_init()");
    REFUSED(clattn_attention_run(fx.plan, &zero_call), "zeroed", CLATTN_ERR_STRUCT_SIZE,
            "clattn_attention_call.struct_size is 0", "_init()");
    REFUSED(clattn_plan_get_info(fx.plan, &info), "info", CLATTN_ERR_STRUCT_SIZE,
            "clattn_plan_info.struct_size is 4");
    REFUSED(clattn_context_get_device_info(fx.ctx, &device), "info", CLATTN_ERR_STRUCT_SIZE,
            "clattn_device_info.struct_size is 4");
    assert_untouched("NULL arguments");
    assert_valid_works("NULL arguments");
}

// A handle that was destroyed, or whose creation failed, is NULL, and memory is absent.
static void test_gone_handles(void **state)
{
    fixture_open(*state);
    clattn_attention_desc desc = good_desc();
    clattn_attention_call call = good_call();
    clattn_plan *plan = NULL;
    clattn_context *ctx = (clattn_context *)(uintptr_t)1;
    clattn_buf buf;
    blank_outputs();
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &desc, &plan), CLATTN_OK);
    clattn_plan_destroy(&plan);
    assert_null(plan);
    clattn_plan_destroy(&plan);
    assert_int_equal(clattn_attention_run(plan, &call), INVALID);

    clattn_context_desc bad;
    clattn_context_desc_init(&bad, sizeof bad);
    bad.device = "cpu";
    bad.threads = -1;
    assert_int_equal(clattn_context_create(&bad, &ctx), INVALID);
    assert_null(ctx);
    assert_int_equal(clattn_attention_plan_create(ctx, &desc, &plan), INVALID);
    clattn_context_destroy(&ctx);

    assert_int_equal(clattn_mem_create(fx.ctx, 4096, &buf), CLATTN_OK);
    clattn_mem_destroy(fx.ctx, &buf);
    assert_int_equal(buf.kind, CLATTN_BUF_ABSENT);
    clattn_mem_destroy(fx.ctx, &buf);
    call.v.buf = buf;
    REFUSED(clattn_attention_run(fx.plan, &call), "destroyed memory", CLATTN_ERR_BUFFER_MISSING,
            "v is absent", "kind 0");
    assert_untouched("handles that are gone");
    assert_valid_works("handles that are gone");
}

// ---- contexts -----------------------------------------------------------------------------------

#define CONTEXT(field, value) EDIT(EDIT_SET, clattn_context_desc, field, value)

static void test_contexts(void **state)
{
    fixture_open(*state);
    static const struct {
        const char *device;
        struct refusal row;
    } rows[] = {
        {"99", {"index", CLATTN_ERR_NO_DEVICE, {"\"99\""}, {{0}}, ANYWHERE}},
        {"no such device", {"name", CLATTN_ERR_NO_DEVICE, {"\"no such device\""}, {{0}}, ANYWHERE}},
        {"cpu", {"flags", INVALID, {"flags has", "0x100000"}, {CONTEXT(flags, 1 << 20)}, ANYWHERE}},
        {"cpu", {"threads", INVALID, {"threads is -1"}, {CONTEXT(threads, -1)}, ANYWHERE}},
        {"cpu", {"level", INVALID, {"log_level is 9"}, {CONTEXT(log_level, 9)}, ANYWHERE}},
        {"cpu", {"level", INVALID, {"log_level is -2"}, {CONTEXT(log_level, -2)}, ANYWHERE}},
        {"none", {"no OpenCL", CLATTN_ERR_NO_OPENCL, {"device \"none\"", "cpu"},
                  {CONTEXT(flags, CLATTN_CONTEXT_NO_OPENCL)}, ANYWHERE}},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        clattn_context *ctx = (clattn_context *)(uintptr_t)1;
        clattn_context_desc desc;
        clattn_context_desc_init(&desc, sizeof desc);
        desc.device = rows[n].device;
        desc.log = log_capture;
        desc.log_user = &fx.log;
        edit_struct(&desc, rows[n].row.edit);
        clear_log();
        const clattn_status st = clattn_context_create(&desc, &ctx);
        // Where there is no OpenCL device at all, the status says that.
        const bool none = st == CLATTN_ERR_NO_OPENCL && rows[n].row.want == CLATTN_ERR_NO_DEVICE &&
                          on_builtin();
        assert_refused(rows[n].row.name, st, none ? st : rows[n].row.want, rows[n].row.says);
        assert_null(ctx);
    }
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = log_capture;
    desc.log_user = &fx.log;
    REFUSED(clattn_context_create(&desc, NULL), "no out", INVALID, "out is NULL");
    REFUSED(clattn_device_count(&desc, NULL), "no count", INVALID, "count is NULL");
    REFUSED(clattn_device_get_info(&desc, 0, NULL), "no info", INVALID, "info is NULL");
    clattn_device_info info = {.struct_size = sizeof info};
    REFUSED(clattn_device_get_info(&desc, -1, &info), "index", CLATTN_ERR_NO_DEVICE, "index is -1");
    REFUSED(clattn_device_get_info(&desc, 1000, &info), "index", CLATTN_ERR_NO_DEVICE,
            "index is 1000", "there are");
    info.struct_size = 0;
    REFUSED(clattn_device_get_info(&desc, 0, &info), "size", CLATTN_ERR_STRUCT_SIZE,
            "clattn_device_info.struct_size is 0");
    // The callback of a struct whose size is wrong is not called.
    desc.struct_size = 5;
    clattn_context *ctx = (clattn_context *)(uintptr_t)1;
    int32_t count = 0;
    clear_log();
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_ERR_STRUCT_SIZE);
    assert_null(ctx);
    assert_int_equal(clattn_device_count(&desc, &count), CLATTN_ERR_STRUCT_SIZE);
    assert_int_equal(fx.log.errors, 0);
    assert_valid_works("contexts that cannot be");
}

// A kernel that does not compile: AUTO falls back and says so, unless that is forbidden.
static void test_forbidden_fallback(void **state)
{
    fixture_open(*state);
    if (fx.target->algo != CLATTN_ALGO_FUSED)
        skip();
    char folder[] = P_tmpdir "/clattn-test-XXXXXX", path[2][96], index[16];
    assert_non_null(mkdtemp(folder));
    for (int n = 0; n < 2; n++) {
        snprintf(path[n], sizeof path[n], "%s/fused_%s.cl", folder, n ? "vector" : "group");
        FILE *file = fopen(path[n], "w");
        assert_non_null(file);
        fputs("this is no kernel\n", file);
        fclose(file);
    }
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    snprintf(index, sizeof index, "%d", fx.target->device->info.index);
    desc.device = index;
    desc.kernel_dir = folder;
    desc.log = log_capture;
    desc.log_user = &fx.log;
    desc.log_level = CLATTN_LOG_ERROR;
    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_OK);
    clattn_attention_desc d = good_desc();
    d.algo = CLATTN_ALGO_AUTO;
    d.kernel = CLATTN_KERNEL_AUTO;
    assert_int_equal(clattn_attention_plan_create(ctx, &d, &plan), CLATTN_OK);
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    assert_int_equal(info.algo, CLATTN_ALGO_HOST);
    assert_int_equal(info.is_fallback, 1);
    assert_true(info.num_refusals > 0);
    assert_int_equal(fx.log.errors, 0);
    clattn_plan_destroy(&plan);
    d.flags = CLATTN_NO_FALLBACK;
    REFUSED(clattn_attention_plan_create(ctx, &d, &plan), "fallback forbidden",
            CLATTN_ERR_BUILD, "nothing can serve this plan");
    assert_null(plan);
    d = good_desc();
    REFUSED(clattn_attention_plan_create(ctx, &d, &plan), "forced kernel", CLATTN_ERR_BUILD,
            "nothing can serve this plan");
    assert_null(plan);
    d.algo = CLATTN_ALGO_HOST;
    d.kernel = CLATTN_KERNEL_AUTO;
    assert_int_equal(clattn_attention_plan_create(ctx, &d, &plan), CLATTN_OK); // what can, does
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    for (int n = 0; n < 2; n++)
        remove(path[n]);
    rmdir(folder);
    assert_valid_works("a kernel that does not compile");
}

// What only OpenCL has, forced on the CPU path.
static void test_algorithms_of_opencl(void **state)
{
    static const struct {
        const char *name;
        int32_t algo;
    } rows[] = {{"fused", CLATTN_ALGO_FUSED},
                {"two_loop", CLATTN_ALGO_TWO_LOOP},
                {"fused_kv_outer", CLATTN_ALGO_FUSED_KV_OUTER},
                {"split_kv", CLATTN_ALGO_SPLIT_KV},
                {"unfused", CLATTN_ALGO_UNFUSED}};
    fixture_open(*state);
    if (!on_builtin())
        skip();
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        clattn_attention_desc desc = good_desc();
        clattn_plan *plan = (clattn_plan *)(uintptr_t)1;
        desc.algo = rows[n].algo;
        blank_outputs();
        REFUSED(clattn_attention_plan_create(fx.ctx, &desc, &plan), rows[n].name,
                CLATTN_ERR_UNSUPPORTED, rows[n].name,
                clattn_has_opencl() ? "the context's device is the built-in CPU path"
                                    : "this build of clattn is without OpenCL");
        assert_null(plan);
        assert_untouched(rows[n].name);
    }
    assert_valid_works("algorithms of OpenCL");
}

// ---- everything in one line ---------------------------------------------------------------------

static void test_one_line(void **state)
{
    fixture_open(*state);
    static const struct {
        const char *name;
        clattn_status want;
        const char *says[2];
        int null; // which of q, k, v, o is NULL, or -1
        int32_t batch, heads_q, heads_kv, len_q, len_kv, dim;
    } rows[] = {
        {"no Q", CLATTN_ERR_BUFFER_MISSING, {"q is absent"}, 0, 2, 4, 2, 3, 5, 16},
        {"no K", CLATTN_ERR_BUFFER_MISSING, {"k is absent"}, 1, 2, 4, 2, 3, 5, 16},
        {"no V", CLATTN_ERR_BUFFER_MISSING, {"v is absent"}, 2, 2, 4, 2, 3, 5, 16},
        {"no O", CLATTN_ERR_BUFFER_MISSING, {"o is absent"}, 3, 2, 4, 2, 3, 5, 16},
        {"no query heads", INVALID, {"heads_q is 0"}, -1, 2, 0, 2, 3, 5, 16},
        {"no key heads", INVALID, {"heads_kv is 0"}, -1, 2, 4, 0, 3, 5, 16},
        {"heads", CLATTN_ERR_SHAPE, {"heads_q 4", "heads_kv 3"}, -1, 2, 4, 3, 3, 5, 16},
        {"no channels", INVALID, {"dim_qk is 0"}, -1, 2, 4, 2, 3, 5, 0},
        {"negative batch", INVALID, {"batch is -1"}, -1, -1, 4, 2, 3, 5, 16},
        {"negative queries", INVALID, {"len_q is -7"}, -1, 2, 4, 2, -7, 5, 16},
        {"negative keys", INVALID, {"len_kv is -1"}, -1, 2, 4, 2, 3, -1, 16},
        {"overflow", CLATTN_ERR_SHAPE, {"q: extents 2147483647 x 4 x 1000000000"}, -1, INT32_MAX,
         4, 2, 1000000000, 5, 16},
    };
    const float *d[3] = {fx.d.q, fx.d.k, fx.d.v};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const int null = rows[n].null;
        blank_outputs();
        REFUSED(clattn_attention_f32(fx.ctx, null == 0 ? NULL : d[0], null == 1 ? NULL : d[1],
                                     null == 2 ? NULL : d[2], null == 3 ? NULL : fx.o + GUARD,
                                     rows[n].batch, rows[n].heads_q, rows[n].heads_kv,
                                     rows[n].len_q, rows[n].len_kv, rows[n].dim, 0),
                rows[n].name, rows[n].want, rows[n].says[0], rows[n].says[1]);
        assert_untouched(rows[n].name);
    }
    REFUSED(clattn_attention_f32(fx.ctx, fx.o + GUARD, d[1], d[2], fx.o + GUARD, 2, 4, 2, 3, 5, 16,
                                 0), "O over Q", CLATTN_ERR_OVERLAP, "o (bytes", "q (bytes");
    assert_untouched("O over Q");
    assert_int_equal(clattn_attention_f32(fx.ctx, d[0], d[1], d[2], fx.o + GUARD, 2, 4, 2, 3, 5, 16,
                                          0), CLATTN_OK);
    assert_valid_works("calls of one line");
}

// ---- copies -------------------------------------------------------------------------------------

static void test_copies(void **state)
{
    fixture_open(*state);
    unsigned char from[64], to[64];
    memset(from, 1, sizeof from);
    memset(to, 2, sizeof to);
    clattn_buf buf = {0}, bad;
    REFUSED(clattn_mem_create(fx.ctx, 0, &buf), "nothing", INVALID, "bytes 0");
    REFUSED(clattn_mem_create(fx.ctx, SIZE_MAX, &buf), "everything", CLATTN_ERR_OUT_OF_MEMORY,
            "18446744073709551615");
    assert_int_equal(buf.kind, CLATTN_BUF_ABSENT);
    assert_int_equal(clattn_mem_create(fx.ctx, sizeof from, &buf), CLATTN_OK);
    assert_int_equal(clattn_mem_write(fx.ctx, &buf, from, sizeof from), CLATTN_OK);
    static const struct {
        const char *name;
        clattn_status want;
        const char *says;
        struct edit edit[4];
        size_t bytes;
    } rows[] = {
#define BUF(field, value) EDIT(EDIT_SET, clattn_buf, field, value)
        {"absent", CLATTN_ERR_BUFFER_MISSING, "is absent", {BUF(kind, 0)}, 64},
        {"no pointer", CLATTN_ERR_BUFFER_MISSING, "ptr NULL", {BUF(ptr, 0)}, 64},
        {"unknown kind", INVALID, ".buf.kind is 77", {BUF(kind, 77)}, 64},
        {"reserved word", INVALID, ".buf.reserved is 1", {BUF(reserved, 1)}, 64},
        {"too much", CLATTN_ERR_BUFFER_TOO_SMALL, "needs 65", {{0}}, 65},
        {"offset", CLATTN_ERR_BUFFER_TOO_SMALL, "needs 65", {BUF(offset_bytes, 1)}, 64},
        {"far offset", CLATTN_ERR_BUFFER_TOO_SMALL, "offset_bytes is 18446744073709551615",
         {BUF(offset_bytes, -1)}, 64},
        {"size", CLATTN_ERR_BUFFER_TOO_SMALL, "has 8", {BUF(size_bytes, 8)}, 64},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        bad = buf;
        edit_struct(&bad, rows[n].edit);
        REFUSED(clattn_mem_write(fx.ctx, &bad, to, rows[n].bytes), rows[n].name, rows[n].want,
                "dst", rows[n].says);
        REFUSED(clattn_mem_read(fx.ctx, &bad, to, rows[n].bytes), rows[n].name, rows[n].want, "src",
                rows[n].says);
    }
    REFUSED(clattn_mem_write(fx.ctx, NULL, from, 4), "no buffer", INVALID, "dst is NULL");
    REFUSED(clattn_mem_write(fx.ctx, &buf, NULL, 4), "no memory", INVALID,
            "the host pointer is NULL");
    REFUSED(clattn_mem_read(fx.ctx, &buf, NULL, 4), "no memory", INVALID,
            "the host pointer is NULL");
    for (size_t n = 0; n < sizeof to; n++)
        assert_int_equal(to[n], 2);
    if (on_builtin()) {
        bad = buf;
        bad.kind = CLATTN_BUF_CL_MEM;
        REFUSED(clattn_mem_read(fx.ctx, &bad, to, 4), "cl_mem", CLATTN_ERR_BUFFER_MISSING,
                "src.buf.kind is 2", "no OpenCL device");
    } else {
        bad = buf;
        bad.size_bytes = 0; // the whole cl_mem, which is known all the same
        REFUSED(clattn_mem_read(fx.ctx, &bad, to, 65), "cl_mem", CLATTN_ERR_BUFFER_TOO_SMALL,
                "src needs 65", "has 64");
        bad.size_bytes = 1000;
        REFUSED(clattn_mem_read(fx.ctx, &bad, to, 64), "cl_mem", CLATTN_ERR_BUFFER_TOO_SMALL,
                "size_bytes 1000", "64");
    }
    assert_int_equal(clattn_mem_read(fx.ctx, &buf, to, sizeof to), CLATTN_OK);
    assert_memory_equal(to, from, sizeof to); // no refusal has written to it
    clattn_mem_destroy(fx.ctx, &buf);
    assert_valid_works("copies");
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"handles that are NULL", test_null_handles, LEVEL_SMALL},
        {"arguments that are NULL, structs that are zero", test_null_arguments, LEVEL_SMALL},
        {"handles that are gone", test_gone_handles, LEVEL_SMALL},
        {"contexts", test_contexts, LEVEL_SMALL},
        {"forbidden fallback", test_forbidden_fallback, LEVEL_SMALL},
        {"algorithms of OpenCL on the CPU path", test_algorithms_of_opencl, LEVEL_SMALL},
        {"everything in one line", test_one_line, LEVEL_SMALL},
        {"copies", test_copies, LEVEL_SMALL},
    };
    const int status = targets_main("refusals", argc, argv, tests, sizeof tests / sizeof *tests);
    fixture_close();
    return status;
}
