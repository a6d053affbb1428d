// SPDX-License-Identifier: Apache-2.0
// The invalid calls that are most likely: each has its status and a message with the field and the
// value, leaves every byte of the output alone, and the next valid call works.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "run_case.h"

enum { DIM = 16, BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 3, LEN_KV = 5 };
enum { COUNT_O = BATCH * HEADS_Q * LEN_Q * DIM, COUNT_LSE = BATCH * HEADS_Q * LEN_Q };

struct fixture {
    struct test_target *target;
    clattn_context *ctx; // its own, whose messages are captured
    struct log_capture log;
    struct attn_case c;
    struct attn_data d;
    clattn_plan *plan;   // with mask and log-sum-exp, lengths up to 8
    float o[COUNT_O], lse[COUNT_LSE];
};

static struct fixture fx;

static clattn_attention_desc good_desc(void)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.features = CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    desc.max_batch = 4;
    desc.max_len_q = 8;
    desc.max_len_kv = 8;
    desc.algo = fx.target->algo;
    desc.kernel = fx.target->kernel;
    return desc;
}

static clattn_attention_call good_call(void)
{
    clattn_attention_call call =
        case_host_call(&fx.c, fx.d.q, fx.d.k, fx.d.v, fx.d.mask, fx.o, fx.lse);
    call.q.buf.size_bytes = COUNT_O * sizeof(float);
    call.k.buf.size_bytes = call.v.buf.size_bytes =
        (size_t)BATCH * HEADS_KV * LEN_KV * DIM * sizeof(float);
    call.o.buf.size_bytes = sizeof fx.o;
    call.lse.size_bytes = sizeof fx.lse;
    call.mask.buf.size_bytes = (size_t)BATCH * HEADS_Q * LEN_Q * LEN_KV;
    return call;
}

static void blank_outputs(void)
{
    fill_unwritten(fx.o, COUNT_O);
    fill_unwritten(fx.lse, COUNT_LSE);
}

static void assert_untouched(const char *what)
{
    for (size_t n = 0; n < COUNT_O; n++)
        if (float_bits(fx.o[n]) != UNWRITTEN_BITS)
            fail_msg("%s: O[%zu] was written", what, n);
    for (size_t n = 0; n < COUNT_LSE; n++)
        if (float_bits(fx.lse[n]) != UNWRITTEN_BITS)
            fail_msg("%s: LSE[%zu] was written", what, n);
}

static void assert_valid_works(const char *after)
{
    const clattn_attention_call call = good_call();
    struct compare_report ro, rl;
    blank_outputs();
    const clattn_status st = clattn_attention_run(fx.plan, &call);
    if (st != CLATTN_OK)
        fail_msg("a valid call after %s: %s", after, clattn_status_string(st));
    const bool good_o = compare(fx.o, fx.d.o, COUNT_O, &fx.d.tol_o, &ro);
    if (!compare(fx.lse, fx.d.lse, COUNT_LSE, &fx.d.tol_lse, &rl) || !good_o) {
        compare_print("O", &ro);
        compare_print("LSE", &rl);
        fail_msg("a valid call after %s is wrong", after);
    }
}

// One error message, with the field and the value in it.
static void assert_message(const char *field, const char *value)
{
    if (fx.log.errors != 1)
        fail_msg("%s: %d error messages: %s", field, fx.log.errors, fx.log.text);
    if (!strstr(fx.log.text, field) || !strstr(fx.log.text, value))
        fail_msg("the message names not both \"%s\" and \"%s\": %s", field, value, fx.log.text);
}

static void clear_log(void)
{
    memset(&fx.log, 0, sizeof fx.log);
}

static void refuse_desc(const clattn_attention_desc *desc, clattn_status want, const char *field,
                        const char *value)
{
    clattn_plan *plan = (clattn_plan *)(uintptr_t)1;
    clear_log();
    const clattn_status st = clattn_attention_plan_create(fx.ctx, desc, &plan);
    if (st != want)
        fail_msg("%s %s: %s, not %s", field, value, clattn_status_string(st),
                 clattn_status_string(want));
    assert_null(plan);
    assert_message(field, value);
    assert_valid_works(field);
}

static void refuse_call(const clattn_attention_call *call, clattn_status want, const char *field,
                        const char *value)
{
    clear_log();
    blank_outputs();
    const clattn_status st = clattn_attention_run(fx.plan, call);
    if (st != want)
        fail_msg("%s %s: %s, not %s: %s", field, value, clattn_status_string(st),
                 clattn_status_string(want), fx.log.text);
    assert_untouched(field);
    assert_message(field, value);
    assert_valid_works(field);
}

static void drop_fixture(void)
{
    attn_data_free(&fx.d);
    clattn_plan_destroy(&fx.plan);
    clattn_context_destroy(&fx.ctx);
    assert_null(fx.ctx);
}

// The tests of a target share a context and a plan, which no refusal may have harmed.
static void open_fixture(struct test_target *target)
{
    if (fx.target == target && fx.plan) {
        clear_log();
        assert_valid_works("the test before");
        return;
    }
    drop_fixture();
    memset(&fx, 0, sizeof fx);
    fx.target = target;
    char index[16];
    snprintf(index, sizeof index, "%d", target->device->info.index);
    const bool builtin = target->device->info.type == CLATTN_DEVICE_BUILTIN_CPU;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = builtin ? "cpu" : index;
    desc.log = log_capture;
    desc.log_user = &fx.log;
    desc.log_level = CLATTN_LOG_ERROR;
    assert_int_equal(clattn_context_create(&desc, &fx.ctx), CLATTN_OK);
    fx.c = (struct attn_case){.name = "valid", .dim = DIM, .batch = BATCH, .heads_q = HEADS_Q,
                              .heads_kv = HEADS_KV, .len_q = LEN_Q, .len_kv = LEN_KV,
                              .mask_form = MASK_CONTIGUOUS, .seed = 99};
    assert_true(attn_data_make(&fx.c, &fx.d));
    const clattn_attention_desc plan = good_desc();
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &plan, &fx.plan), CLATTN_OK);
    assert_valid_works("nothing");
    assert_int_equal(fx.log.errors, 0);
}

// ---- descriptions -------------------------------------------------------------------------------

static void test_desc_shapes(void **state)
{
    open_fixture(*state);
    clattn_attention_desc d = good_desc();
    d.heads_q = 12;
    d.heads_kv = 5;
    refuse_desc(&d, CLATTN_ERR_SHAPE, "heads_q 12", "heads_kv 5");
    d = good_desc();
    d.heads_q = 0;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "heads_q", "0");
    d = good_desc();
    d.heads_kv = -2;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "heads_kv", "-2");
    d = good_desc();
    d.dim_qk = 0;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk", "0");
    d = good_desc();
    d.dim_qk = 577;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk", "577");
    d = good_desc();
    d.dim_v = 577;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "dim_v", "577");
    d = good_desc();
    d.dim_v = -1;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "dim_v", "-1");
    d = good_desc();
    d.max_len_kv = -4;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "max_len_kv", "-4");
}

static void test_desc_unknown(void **state)
{
    open_fixture(*state);
    clattn_attention_desc d = good_desc();
    d.features |= 1u << 30;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "features", "0x40000000");
    d = good_desc();
    d.flags = 1u << 9;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "flags", "0x200");
    d = good_desc();
    d.align = 2;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "align", "2");
    d = good_desc();
    d.algo = 99;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "algo", "99");
    d = good_desc();
    d.kernel = -1;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "kernel", "-1");
    d = good_desc();
    d.dtype_kv = 44;
    refuse_desc(&d, CLATTN_ERR_INVALID_ARGUMENT, "dtype_kv", "44");
}

static void test_desc_unsupported(void **state)
{
    open_fixture(*state);
    clattn_attention_desc d = good_desc();
    d.dtype_q = d.dtype_kv = d.dtype_o = CLATTN_DTYPE_F16;
    refuse_desc(&d, CLATTN_ERR_UNSUPPORTED, "dtype_q", "1");
    d = good_desc();
    d.direction = 1;
    refuse_desc(&d, CLATTN_ERR_UNSUPPORTED, "direction", "1");
    d = good_desc();
    d.dropout_p = 0.25f;
    refuse_desc(&d, CLATTN_ERR_UNSUPPORTED, "dropout_p", "0.25");
    if (fx.target->device->info.type == CLATTN_DEVICE_BUILTIN_CPU) {
        // Forced to what this device cannot do: no other algorithm takes its place.
        d = good_desc();
        d.algo = CLATTN_ALGO_FUSED;
        d.kernel = CLATTN_KERNEL_GROUP;
        refuse_desc(&d, CLATTN_ERR_UNSUPPORTED, "fused", "CPU path");
        d.algo = CLATTN_ALGO_AUTO;
        d.kernel = CLATTN_KERNEL_VECTOR;
        refuse_desc(&d, CLATTN_ERR_UNSUPPORTED, "kernel", "forced");
    }
}

static void test_struct_sizes(void **state)
{
    open_fixture(*state);
    clattn_attention_desc d = good_desc();
    d.struct_size = 0;
    refuse_desc(&d, CLATTN_ERR_STRUCT_SIZE, "struct_size", "0");
    d.struct_size = sizeof d - 1;
    refuse_desc(&d, CLATTN_ERR_STRUCT_SIZE, "clattn_attention_desc", "struct_size");

    // A newer caller whose additional fields are zero is served, one that sets them is not.
    struct {
        clattn_attention_desc desc;
        unsigned char more[24];
    } longer;
    memset(&longer, 0, sizeof longer);
    longer.desc = good_desc();
    longer.desc.struct_size = sizeof longer;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &longer.desc, &plan), CLATTN_OK);
    clattn_plan_destroy(&plan);
    longer.more[20] = 1;
    refuse_desc(&longer.desc, CLATTN_ERR_STRUCT_SIZE, "struct_size", "byte");

    clattn_attention_call call = good_call();
    call.struct_size = 8;
    refuse_call(&call, CLATTN_ERR_STRUCT_SIZE, "clattn_attention_call", "8");
    clattn_plan_info info = {.struct_size = 4};
    assert_int_equal(clattn_plan_get_info(fx.plan, &info), CLATTN_ERR_STRUCT_SIZE);
    clattn_device_info device = {.struct_size = 4};
    assert_int_equal(clattn_context_get_device_info(fx.ctx, &device), CLATTN_ERR_STRUCT_SIZE);
}

// ---- calls --------------------------------------------------------------------------------------

static void test_call_numbers(void **state)
{
    open_fixture(*state);
    clattn_attention_call call = good_call();
    call.len_q = -1;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "len_q", "-1");
    call = good_call();
    call.batch = -3;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "batch", "-3");
    static const float scales[] = {NAN, INFINITY, -INFINITY};
    static const char *const texts[] = {"nan", "inf", "-inf"};
    for (int n = 0; n < 3; n++) {
        call = good_call();
        call.set = CLATTN_SET_SCALE;
        call.scale = scales[n];
        refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "scale", texts[n]);
    }
    call = good_call();
    call.set = 1u << 8;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "set", "0x100");
    call = good_call();
    call.len_kv = 9;
    refuse_call(&call, CLATTN_ERR_OVER_BOUND, "len_kv is 9", "8");
    call = good_call();
    call.len_q = 10;
    refuse_call(&call, CLATTN_ERR_OVER_BOUND, "len_q is 10", "8");
    call = good_call();
    call.batch = 5;
    refuse_call(&call, CLATTN_ERR_OVER_BOUND, "batch is 5", "4");
}

static void test_call_buffers(void **state)
{
    open_fixture(*state);
    clattn_attention_call call = good_call();
    call.k.buf.ptr = NULL;
    refuse_call(&call, CLATTN_ERR_BUFFER_MISSING, "k", "NULL");
    call = good_call();
    call.q.buf = clattn_host_buf(NULL, 0);
    refuse_call(&call, CLATTN_ERR_BUFFER_MISSING, "q", "absent");
    call = good_call();
    call.mask.buf = clattn_host_buf(NULL, 0);
    refuse_call(&call, CLATTN_ERR_BUFFER_MISSING, "mask", "absent");
    call = good_call();
    call.lse = clattn_host_buf(NULL, 0);
    refuse_call(&call, CLATTN_ERR_BUFFER_MISSING, "lse", "absent");
    call = good_call();
    call.o.buf.kind = 77;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "o.buf.kind", "77");
    call = good_call();
    call.v.buf.size_bytes--; // 1280 bytes are needed
    refuse_call(&call, CLATTN_ERR_BUFFER_TOO_SMALL, "v needs 1280", "1279");
    call = good_call();
    call.lse.offset_bytes = 4;
    refuse_call(&call, CLATTN_ERR_BUFFER_TOO_SMALL, "lse needs 100", "96");
    call = good_call();
    call.mask.buf.size_bytes = 119;
    refuse_call(&call, CLATTN_ERR_BUFFER_TOO_SMALL, "mask needs 120", "119");
    call = good_call();
    call.q.buf.offset_bytes = 2;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "q", "2");
    if (fx.target->device->info.type == CLATTN_DEVICE_BUILTIN_CPU) {
        call = good_call();
        call.k.buf.kind = CLATTN_BUF_CL_MEM;
        refuse_call(&call, CLATTN_ERR_BUFFER_MISSING, "k", "cl_mem");
    }
}

static void test_call_strides(void **state)
{
    open_fixture(*state);
    clattn_attention_call call = good_call();
    call.o.layout = CLATTN_LAYOUT_STRIDED;
    call.o.stride_batch = HEADS_Q * LEN_Q * DIM;
    call.o.stride_head = LEN_Q * DIM;
    call.o.stride_seq = DIM - 1;
    refuse_call(&call, CLATTN_ERR_STRIDE, "o", "15");
    call.o.stride_seq = DIM;
    call.o.stride_head = 0; // a broadcast output
    refuse_call(&call, CLATTN_ERR_STRIDE, "o", "0");
    call = good_call();
    call.k.layout = CLATTN_LAYOUT_STRIDED;
    call.k.stride_batch = call.k.stride_head = LEN_KV * DIM;
    call.k.stride_seq = -DIM;
    refuse_call(&call, CLATTN_ERR_STRIDE, "k", "-16");
    call.k.stride_seq = INT64_MAX / 2;
    refuse_call(&call, CLATTN_ERR_STRIDE, "k", "overflow");
    call = good_call();
    call.v.layout = 7;
    refuse_call(&call, CLATTN_ERR_INVALID_ARGUMENT, "v.layout", "7");
    call = good_call();
    call.mask.extent[3] = 4;
    refuse_call(&call, CLATTN_ERR_SHAPE, "mask.extent[3]", "4");
    call = good_call();
    call.mask.layout = CLATTN_LAYOUT_STRIDED;
    call.mask.stride[2] = -5;
    refuse_call(&call, CLATTN_ERR_STRIDE, "mask.stride[2]", "-5");
}

static void test_call_overlaps(void **state)
{
    open_fixture(*state);
    // O over Q, over the end of V, and over LSE. The memory is O's, so that nothing is lost if it
    // is written after all.
    clattn_attention_call call = good_call();
    call.q.buf = call.o.buf;
    refuse_call(&call, CLATTN_ERR_OVERLAP, "o (bytes", "q (bytes");
    call = good_call();
    call.v.buf.ptr = fx.o + COUNT_O - 1;
    refuse_call(&call, CLATTN_ERR_OVERLAP, "o (bytes", "v (bytes");
    call = good_call();
    call.lse.ptr = fx.o;
    refuse_call(&call, CLATTN_ERR_OVERLAP, "o (bytes", "lse (bytes");
}

static void test_null_handles(void **state)
{
    open_fixture(*state);
    const clattn_attention_desc desc = good_desc();
    const clattn_attention_call call = good_call();
    clattn_plan *plan = NULL;
    size_t bytes = 0;
    blank_outputs();
    assert_int_equal(clattn_attention_plan_create(NULL, &desc, &plan), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_plan_create(fx.ctx, NULL, &plan),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &desc, NULL),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_run(NULL, &call), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_attention_run(fx.plan, NULL), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_plan_workspace_bytes(NULL, &call, &bytes), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_plan_workspace_bytes(fx.plan, &call, NULL),
                     CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_plan_workspace_bytes(fx.plan, NULL, &bytes), CLATTN_OK);
    assert_int_equal(clattn_plan_get_info(fx.plan, NULL), CLATTN_ERR_INVALID_ARGUMENT);
    assert_null(clattn_plan_get_refusal(fx.plan, -1));
    assert_int_equal(clattn_context_create(NULL, NULL), CLATTN_ERR_INVALID_ARGUMENT);
    clattn_plan_destroy(NULL);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(NULL);
    assert_untouched("NULL handles");
    assert_valid_works("NULL handles");
}

static void test_contexts(void **state)
{
    open_fixture(*state);
    clattn_context_desc desc;
    clattn_context *ctx = (clattn_context *)(uintptr_t)1;
    static const struct {
        const char *device;
        uint32_t flags;
        int32_t threads;
        clattn_status want;
        const char *text;
    } rows[] = {
        {"99", 0, 0, CLATTN_ERR_NO_DEVICE, "99"},
        {"no such device", 0, 0, CLATTN_ERR_NO_DEVICE, "no such device"},
        {"cpu", 1u << 20, 0, CLATTN_ERR_INVALID_ARGUMENT, "flags"},
        {"cpu", 0, -1, CLATTN_ERR_INVALID_ARGUMENT, "threads"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        clattn_context_desc_init(&desc, sizeof desc);
        desc.device = rows[n].device;
        desc.flags = rows[n].flags;
        desc.threads = rows[n].threads;
        desc.log = log_capture;
        desc.log_user = &fx.log;
        clear_log();
        const clattn_status st = clattn_context_create(&desc, &ctx);
        const bool no_opencl = fx.target->device->info.type == CLATTN_DEVICE_BUILTIN_CPU &&
                               st == CLATTN_ERR_NO_OPENCL && n < 2;
        if (st != rows[n].want && !no_opencl)
            fail_msg("device \"%s\", flags %u, threads %d: %s", rows[n].device, rows[n].flags,
                     rows[n].threads, clattn_status_string(st));
        assert_null(ctx);
        assert_message(rows[n].text, rows[n].text);
        ctx = (clattn_context *)(uintptr_t)1;
    }
    clattn_context_desc_init(&desc, sizeof desc);
    desc.struct_size = 5;
    assert_int_equal(clattn_context_create(&desc, &ctx), CLATTN_ERR_STRUCT_SIZE);
    assert_null(ctx);
    assert_valid_works("contexts that cannot be");
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"descriptions: shapes", test_desc_shapes, LEVEL_SMALL},
        {"descriptions: unknown values", test_desc_unknown, LEVEL_SMALL},
        {"descriptions: not served", test_desc_unsupported, LEVEL_SMALL},
        {"struct sizes", test_struct_sizes, LEVEL_SMALL},
        {"calls: numbers", test_call_numbers, LEVEL_SMALL},
        {"calls: buffers", test_call_buffers, LEVEL_SMALL},
        {"calls: strides and extents", test_call_strides, LEVEL_SMALL},
        {"calls: overlaps", test_call_overlaps, LEVEL_SMALL},
        {"handles that are NULL", test_null_handles, LEVEL_SMALL},
        {"contexts", test_contexts, LEVEL_SMALL},
    };
    const int status = targets_main("invalid", argc, argv, tests, sizeof tests / sizeof *tests);
    drop_fixture();
    return status;
}
