// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/compare.h"
#include "lib/random.h"

static const double tolerance = 1e-5;

struct rows {
    struct tool_session *s;
    int64_t rows, len;
    float *x, *y; // on the host
    clattn_softmax_plan *plan;
    clattn_softmax_call call;
};

// ---- memory ------------------------------------------------------------------------------------

static void destroy_memory(struct rows *t)
{
    if (t->s->ctx) {
        clattn_mem_destroy(t->s->ctx, &t->call.x);
        clattn_mem_destroy(t->s->ctx, &t->call.y);
        clattn_mem_destroy(t->s->ctx, &t->call.workspace);
    }
    free(t->x);
    free(t->y);
}

// Y starts as NaN, so that a missing write shows.
static clattn_status create_memory(struct rows *t, size_t *workspace)
{
    const size_t count = (size_t)t->rows * (size_t)t->len, bytes = count * sizeof(float);

    if ((double)t->rows * (double)t->len > (double)(SIZE_MAX / 2 / sizeof(float)))
        return CLATTN_ERR_OUT_OF_MEMORY;
    clattn_status st = clattn_softmax_workspace_bytes(t->plan, t->rows, t->len, workspace);
    if (st == CLATTN_OK)
        st = clattn_mem_create(t->s->ctx, bytes, &t->call.x);
    if (st == CLATTN_OK)
        st = clattn_mem_create(t->s->ctx, bytes, &t->call.y);
    if (st == CLATTN_OK && *workspace)
        st = clattn_mem_create(t->s->ctx, *workspace, &t->call.workspace);
    if (st != CLATTN_OK)
        return st;
    t->x = malloc(bytes);
    t->y = malloc(bytes);
    if (!t->x || !t->y)
        return CLATTN_ERR_OUT_OF_MEMORY;
    tool_random_fill(t->x, count, 1);
    for (size_t i = 0; i < count; i++)
        t->y[i] = NAN;
    st = clattn_mem_write(t->s->ctx, &t->call.x, t->x, bytes);
    return st == CLATTN_OK ? clattn_mem_write(t->s->ctx, &t->call.y, t->y, bytes) : st;
}

// ---- verification ------------------------------------------------------------------------------

// One row by the double reference, on host memory. Both sides are multiplied by the length, so that
// an entry is 1 in the middle and the tolerance means the same for all lengths.
static clattn_status check_row(const struct rows *t, const clattn_softmax_plan *reference,
                               int64_t row, float *want, double *max_error, size_t *over)
{
    const size_t len = (size_t)t->len;
    float *got = t->y + (size_t)row * len;
    clattn_softmax_call call;
    struct tool_compare result;

    clattn_softmax_call_init(&call, sizeof call);
    call.rows = 1;
    call.len = t->len;
    call.x = clattn_host_buf(t->x + (size_t)row * len, len * sizeof(float));
    call.y = clattn_host_buf(want, len * sizeof(float));
    clattn_status st = clattn_softmax_run(reference, &call);
    if (st != CLATTN_OK)
        return st;
    for (size_t i = 0; i < len; i++) {
        got[i] *= (float)len;
        want[i] *= (float)len;
    }
    tool_compare(got, want, len, tolerance, &result);
    *over += result.over;
    *max_error = fmax(*max_error, result.max_error / (double)len);
    return CLATTN_OK;
}

// Rows from all over Y, the first and the last among them; as many as take about a second, but 3.
static clattn_status check_rows(const struct rows *t, double *max_error, size_t *over)
{
    const double afford = 5e7 / (double)t->len;
    const int64_t most = afford > 64 ? 64 : afford < 3 ? 3 : (int64_t)afford;
    const int64_t count = t->rows < most ? t->rows : most;
    float *want = malloc((size_t)t->len * sizeof *want);
    clattn_softmax_plan *reference = NULL;
    clattn_softmax_desc desc;

    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.path = CLATTN_SOFTMAX_PATH_REFERENCE;
    clattn_status st = want ? clattn_softmax_plan_create(t->s->ctx, &desc, &reference)
                            : CLATTN_ERR_OUT_OF_MEMORY;
    for (int64_t n = 0; st == CLATTN_OK && n < count; n++)
        st = check_row(t, reference, count > 1 ? n * (t->rows - 1) / (count - 1) : 0, want,
                       max_error, over);
    clattn_softmax_plan_destroy(&reference);
    free(want);
    return st;
}

static clattn_status run(const void *user)
{
    const struct rows *t = user;

    return clattn_softmax_run(t->plan, &t->call);
}

static clattn_status check(const struct rows *t, double *max_error, size_t *over)
{
    const size_t count = (size_t)t->rows * (size_t)t->len;
    clattn_status st = run(t);

    if (st == CLATTN_OK)
        st = clattn_mem_read(t->s->ctx, &t->call.y, t->y, count * sizeof(float));
    for (size_t i = 0; st == CLATTN_OK && i < count; i++)
        *over += isfinite(t->y[i]) ? 0 : 1;
    return st == CLATTN_OK ? check_rows(t, max_error, over) : st;
}

// ---- all ---------------------------------------------------------------------------------------

static clattn_status make_plan(struct rows *t, const struct bench_item *item)
{
    clattn_softmax_desc desc;

    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.algo = item->algo->softmax;
    // Rows have no shape of their own for sub-groups.
    desc.kernel = item->p.kernel == CLATTN_KERNEL_SUBGROUP ? CLATTN_KERNEL_AUTO : item->p.kernel;
    desc.max_rows = t->rows;
    desc.max_len = t->len;
    return clattn_softmax_plan_create(t->s->ctx, &desc, &t->plan);
}

// What a table shows of a plan. Naive writes Y twice.
static clattn_status describe(const struct rows *t, const struct bench_item *item,
                              clattn_plan_info *info, struct bench_result *r, bool *on_cpu)
{
    clattn_softmax_info i = {.struct_size = sizeof i};
    clattn_status st = clattn_softmax_get_info(t->plan, &i);

    if (st != CLATTN_OK)
        return st;
    const int writes = i.algo == CLATTN_SOFTMAX_NAIVE ? 2 : 1;
    r->bytes = sizeof(float) * (double)t->rows * (double)t->len * (i.passes + writes);
    snprintf(info->algo_name, sizeof info->algo_name, "%s", item->algo->name);
    snprintf(info->kernel_name, sizeof info->kernel_name, "%s", i.path_name);
    snprintf(info->reason, sizeof info->reason, "%s", i.reason);
    info->group_size = i.group_size;
    info->vector_width = i.vector_width;
    info->is_fallback = i.is_fallback;
    info->bytes_moved = (uint64_t)r->bytes;
    *on_cpu = i.path != CLATTN_SOFTMAX_PATH_OPENCL;
    return CLATTN_OK;
}

clattn_status bench_softmax(struct tool_session *s, struct tool_session *builtin,
                            const struct bench_item *item, int32_t runs, clattn_plan_info *info,
                            struct bench_result *r, size_t *over)
{
    struct rows t = {.s = s, .rows = item->row->softmax_rows, .len = item->row->softmax_len};
    const struct bench_work work = {run, &t, 0, 0};
    bool on_cpu = false;

    clattn_softmax_call_init(&t.call, sizeof t.call);
    t.call.rows = t.rows;
    t.call.len = t.len;
    clattn_status st = make_plan(&t, item);
    if (st == CLATTN_OK)
        st = describe(&t, item, info, r, &on_cpu);
    if (st == CLATTN_OK)
        st = create_memory(&t, &r->workspace);
    if (st == CLATTN_OK)
        st = check(&t, &r->max_error, over);
    if (st == CLATTN_OK && *over == 0)
        st = bench_time(on_cpu ? builtin : s, &work, runs, r);
    destroy_memory(&t);
    clattn_softmax_plan_destroy(&t.plan);
    return st;
}
