// SPDX-License-Identifier: Apache-2.0
#include "refuse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "run_case.h"

struct fixture fx;

bool on_builtin(void)
{
    return fx.target->device->info.type == CLATTN_DEVICE_BUILTIN_CPU;
}

// ---- what is valid ------------------------------------------------------------------------------

clattn_attention_desc good_desc(void)
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

clattn_attention_call good_call(void)
{
    clattn_attention_call call = case_host_call(&fx.c, fx.d.q, fx.d.k, fx.d.v, fx.d.mask,
                                                fx.o + GUARD, fx.lse + GUARD);
    call.q.buf.size_bytes = COUNT_O * sizeof(float);
    call.k.buf.size_bytes = call.v.buf.size_bytes = COUNT_KV * sizeof(float);
    call.o.buf.size_bytes = COUNT_O * sizeof(float);
    call.lse.size_bytes = COUNT_LSE * sizeof(float);
    call.mask.buf.size_bytes = COUNT_MASK;
    return call;
}

void blank_outputs(void)
{
    fill_unwritten(fx.o, COUNT_O + 2 * GUARD);
    fill_unwritten(fx.lse, COUNT_LSE + 2 * GUARD);
}

static void assert_blank(const char *what, const char *name, const float *at, size_t count)
{
    for (size_t n = 0; n < count; n++)
        if (float_bits(at[n]) != UNWRITTEN_BITS)
            fail_msg("%s: float %zu of %s was written", what, n, name);
}

void assert_untouched(const char *what)
{
    assert_blank(what, "O or its guards", fx.o, COUNT_O + 2 * GUARD);
    assert_blank(what, "LSE or its guards", fx.lse, COUNT_LSE + 2 * GUARD);
}

void assert_valid_works(const char *after)
{
    const clattn_attention_call call = good_call();
    struct compare_report ro, rl;
    blank_outputs();
    const clattn_status st = clattn_attention_run(fx.plan, &call);
    if (st != CLATTN_OK)
        fail_msg("a valid call after \"%s\": %s", after, clattn_status_string(st));
    const bool good_o = compare(fx.o + GUARD, fx.d.o, COUNT_O, &fx.d.tol_o, &ro);
    if (!compare(fx.lse + GUARD, fx.d.lse, COUNT_LSE, &fx.d.tol_lse, &rl) || !good_o) {
        compare_print("O", &ro);
        compare_print("LSE", &rl);
        fail_msg("a valid call after \"%s\" is wrong", after);
    }
    for (size_t side = 0; side < 2; side++) {
        assert_blank(after, "O's guards", fx.o + side * (GUARD + COUNT_O), GUARD);
        assert_blank(after, "LSE's guards", fx.lse + side * (GUARD + COUNT_LSE), GUARD);
    }
}

// ---- fixture ------------------------------------------------------------------------------------

void clear_log(void)
{
    memset(&fx.log, 0, sizeof fx.log);
}

void fixture_close(void)
{
    attn_data_free(&fx.d);
    clattn_plan_destroy(&fx.plan);
    clattn_plan_destroy(&fx.wide);
    clattn_context_destroy(&fx.ctx);
    memset(&fx, 0, sizeof fx);
}

void fixture_open(struct test_target *target)
{
    if (fx.target == target && fx.wide) {
        assert_valid_works("the test before");
        return;
    }
    fixture_close();
    fx.target = target;
    char index[16];
    snprintf(index, sizeof index, "%d", target->device->info.index);
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = on_builtin() ? "cpu" : index;
    desc.log = log_capture;
    desc.log_user = &fx.log;
    desc.log_level = CLATTN_LOG_ERROR;
    assert_int_equal(clattn_context_create(&desc, &fx.ctx), CLATTN_OK);
    fx.c = (struct attn_case){.name = "valid", .dim = DIM, .batch = BATCH, .heads_q = HEADS_Q,
                              .heads_kv = HEADS_KV, .len_q = LEN_Q, .len_kv = LEN_KV,
                              .mask_form = MASK_CONTIGUOUS, .seed = 99};
    assert_true(attn_data_make(&fx.c, &fx.d));
    clattn_attention_desc plan = good_desc();
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &plan, &fx.plan), CLATTN_OK);
    plan.max_batch = plan.max_len_q = plan.max_len_kv = 0;
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &plan, &fx.wide), CLATTN_OK);
    assert_valid_works("nothing");
    assert_int_equal(fx.log.errors, 0);
}

// ---- rows ---------------------------------------------------------------------------------------

static void write_int(unsigned char *to, size_t size, int64_t value)
{
    const int32_t narrow = (int32_t)value;
    if (size == sizeof narrow)
        memcpy(to, &narrow, sizeof narrow);
    else if (size == sizeof value)
        memcpy(to, &value, sizeof value);
    else
        fail_msg("no field of %zu bytes can be set", size);
}

void edit_struct(void *what, const struct edit edit[4])
{
    unsigned char *base = what;
    for (int n = 0; n < 4; n++) {
        const struct edit *e = &edit[n];
        int64_t old = 0;
        switch (e->op) {
        case EDIT_NONE: break;
        case EDIT_SET: write_int(base + e->at, e->size, e->value); break;
        case EDIT_ADD:
            assert_int_equal(e->size, sizeof old);
            memcpy(&old, base + e->at, sizeof old);
            write_int(base + e->at, e->size, old + e->value);
            break;
        case EDIT_COPY: memmove(base + e->at, base + e->value, e->size); break;
        }
    }
}

void assert_refused(const char *name, clattn_status got, clattn_status want,
                    const char *const says[2])
{
    if (got != want)
        fail_msg("%s: \"%s\", not \"%s\": %s", name, clattn_status_string(got),
                 clattn_status_string(want), fx.log.text);
    if (fx.log.errors != (says ? 1 : 0))
        fail_msg("%s: %d error messages: %s", name, fx.log.errors, fx.log.text);
    for (int n = 0; says && n < 2; n++)
        if (says[n] && !strstr(fx.log.text, says[n]))
            fail_msg("%s: \"%s\" is not in: %s", name, says[n], fx.log.text);
}

static bool runs_here(const struct refusal *row)
{
    return row->where == ANYWHERE || row->where == WIDE_PLAN ||
           (row->where == ON_BUILTIN) == on_builtin();
}

void refuse_descs(const struct refusal *rows, size_t count)
{
    int done = 0;
    for (size_t n = 0; n < count; n++) {
        if (!runs_here(&rows[n]))
            continue;
        clattn_attention_desc desc = good_desc();
        edit_struct(&desc, rows[n].edit);
        clattn_plan *plan = (clattn_plan *)(uintptr_t)1;
        clear_log();
        const clattn_status st = clattn_attention_plan_create(fx.ctx, &desc, &plan);
        assert_refused(rows[n].name, st, rows[n].want, rows[n].says);
        assert_null(plan);
        assert_valid_works(rows[n].name);
        done++;
    }
    printf("    %d of %zu rows\n", done, count);
}

void refuse_calls(const struct refusal *rows, size_t count)
{
    int done = 0;
    for (size_t n = 0; n < count; n++) {
        if (!runs_here(&rows[n]))
            continue;
        clattn_plan *plan = rows[n].where == WIDE_PLAN ? fx.wide : fx.plan;
        clattn_attention_call call = good_call();
        edit_struct(&call, rows[n].edit);
        clear_log();
        blank_outputs();
        assert_refused(rows[n].name, clattn_attention_run(plan, &call), rows[n].want,
                       rows[n].says);
        size_t bytes = 12345;
        clear_log();
        assert_refused(rows[n].name, clattn_plan_workspace_bytes(plan, &call, &bytes),
                       rows[n].want, rows[n].says);
        assert_int_equal(bytes, 12345);
        assert_untouched(rows[n].name);
        assert_valid_works(rows[n].name);
        done++;
    }
    printf("    %d of %zu rows\n", done, count);
}
