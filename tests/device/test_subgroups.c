// SPDX-License-Identifier: Apache-2.0
// The subgroup shape both ways: with sub-groups of a size that is asked for, and of the device's
// own size, between whose lanes values are shuffled. A device takes the first way that it has, so
// the facts are changed to test the second.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "case_memory.h"
#include "compare.h"
#include "context.h"
#include "data.h"
#include "open_device.h"

static struct test_device devices[DEVICES_MAX];
static int num_devices;

static clattn_status make_plan(clattn_context *ctx, const struct attn_case *c, clattn_plan **plan)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = CLATTN_FEATURE_LSE | (c->causal ? CLATTN_FEATURE_CAUSAL : 0);
    desc.algo = CLATTN_ALGO_FUSED;
    desc.kernel = CLATTN_KERNEL_SUBGROUP;
    return clattn_attention_plan_create(ctx, &desc, plan);
}

static void run_one(struct test_device *d, const struct attn_case *c, int32_t mode)
{
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    struct attn_data data;
    struct compare_report ro, rl;
    char option[32];
    d->ctx->caps.subgroups = mode;
    assert_int_equal(make_plan(d->ctx, c, &plan), CLATTN_OK);
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    assert_int_equal(info.kernel, CLATTN_KERNEL_SUBGROUP);
    assert_string_equal(info.kernel_name, "subgroup");
    snprintf(option, sizeof option, "-DSUBGROUPS=%d", (int)mode);
    assert_non_null(strstr(info.build_options, option));
    assert_true(attn_data_make(c, &data));
    const size_t rows = (size_t)(c->batch * c->heads_q * c->len_q), count = rows * (size_t)c->dim;
    float *o = malloc(count * sizeof *o), *lse = malloc(rows * sizeof *lse);
    assert_true(o && lse);
    fill_unwritten(o, count);
    fill_unwritten(lse, rows);
    const clattn_attention_call call = case_host_call(c, data.q, data.k, data.v, NULL, o, lse);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    const bool ok = compare(o, data.o, count, &data.tol_o, &ro);
    if (!compare(lse, data.lse, rows, &data.tol_lse, &rl) || !ok) {
        compare_print("O", &ro);
        compare_print("LSE", &rl);
        fail_msg("%s, way %d: wrong", d->tag, (int)mode);
    }
    printf("%s, way %d: tile %d x %d, %d items: right\n", d->tag, (int)mode, (int)info.tile_q,
           (int)info.tile_k, (int)info.group_size);
    free(o);
    free(lse);
    attn_data_free(&data);
    clattn_plan_destroy(&plan);
}

static void test_both_ways(void **state)
{
    static const struct attn_case plain = {.name = "plain", .dim = 24, .batch = 1, .heads_q = 3,
                                           .heads_kv = 1, .len_q = 37, .len_kv = 101, .seed = 5};
    static const struct attn_case causal = {.name = "causal", .dim = 24, .batch = 2, .heads_q = 2,
                                            .heads_kv = 2, .len_q = 70, .len_kv = 70,
                                            .causal = true, .seed = 6};
    int ran = 0;
    (void)state;
    for (int n = 0; n < num_devices; n++) {
        struct test_device *d = &devices[n];
        const int32_t own = d->ctx->caps.subgroups;
        // What allows to ask for a size comes with shuffles on every driver that is known.
        for (int32_t mode = own; own && mode <= CLA_SUBGROUPS_SHUFFLE; mode++, ran++) {
            run_one(d, &plain, mode);
            run_one(d, &causal, mode);
        }
        d->ctx->caps.subgroups = own;
    }
    if (!ran)
        skip();
}

// Without sub-groups the shape is refused with the reason.
static void test_refused(void **state)
{
    static const struct attn_case plain = {.name = "plain", .dim = 24, .batch = 1, .heads_q = 1,
                                           .heads_kv = 1, .len_q = 3, .len_kv = 3, .seed = 5};
    (void)state;
    for (int n = 0; n < num_devices; n++) {
        struct test_device *d = &devices[n];
        const int32_t own = d->ctx->caps.subgroups;
        clattn_plan *plan = NULL;
        d->ctx->caps.subgroups = CLA_SUBGROUPS_NONE;
        assert_int_equal(make_plan(d->ctx, &plain, &plan), CLATTN_ERR_UNSUPPORTED);
        assert_null(plan);
        d->ctx->caps.subgroups = own;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_ways),
                                       cmocka_unit_test(test_refused)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!devices_open(devices, &num_devices))
        return 1;
    if (num_devices == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    const int status = cmocka_run_group_tests(tests, NULL, NULL);
    attn_expect_close();
    if (status == 0)
        devices_close(devices, num_devices);
    return status != 0;
}
