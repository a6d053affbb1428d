// SPDX-License-Identifier: Apache-2.0
// Cuts rows into parts for threads, and blocks that stay in the first-level cache for the loops of
// softmax_impl.h. Sums of a block are floats, sums of blocks doubles.
#include "host/softmax.h"

#include <math.h>
#include <stdlib.h>

#include "host/host.h"
#include "host/kernel.h"
#include "host/rows.h"
#include "util/half.h"

enum {
    BLOCK = 2048,            // entries
    MIN_PART = 32768,        // entries of a row below which a second thread does not pay
    MIN_PARALLEL = 16384     // entries in all, likewise
};

struct rows {
    const struct cla_softmax *s;
    const struct cla_softmax_call *call;
    const struct cla_host_kernel *kernel;
    const void *x;
    void *y;
    float *lse;
    int64_t parts, part_len;
    struct cla_row_part *part; // [rows][parts], where there is more than one
};

// ---- storage -----------------------------------------------------------------------------------

// n entries from `at` on as floats: in place, or converted into `room`.
static const float *load(const void *x, int32_t dtype, int64_t at, int64_t n, float *room)
{
    if (dtype == CLATTN_DTYPE_F32)
        return (const float *)x + at;
    const uint16_t *h = (const uint16_t *)x + at;
    if (dtype == CLATTN_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            room[i] = cla_f16_to_f32(h[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            room[i] = cla_bf16_to_f32(h[i]);
    }
    return room;
}

// Where n floats for `at` are written: in place, or into `room` for store().
static float *target(void *y, int32_t dtype, int64_t at, float *room)
{
    return dtype == CLATTN_DTYPE_F32 ? (float *)y + at : room;
}

static void store(void *y, int32_t dtype, int64_t at, int64_t n, const float *from)
{
    if (dtype == CLATTN_DTYPE_F32)
        return;
    uint16_t *h = (uint16_t *)y + at;
    if (dtype == CLATTN_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++)
            h[i] = cla_f32_to_f16(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            h[i] = cla_f32_to_bf16(from[i]);
    }
}

// ---- passes over entries [begin, end) of row r -------------------------------------------------

static int64_t block_len(int64_t at, int64_t end)
{
    return end - at < BLOCK ? end - at : BLOCK;
}

// Naive: stores e^x, sums what was stored.
static struct cla_row_part naive_first(const struct rows *t, int64_t r, int64_t begin,
                                       int64_t end)
{
    const struct cla_softmax *s = t->s;
    struct cla_row_part p = {0.0f, 0.0};
    float room_x[BLOCK], room_y[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t n = block_len(at, end);
        const int64_t x_at = r * t->call->stride_x + at, y_at = r * t->call->stride_y + at;
        const float *x = load(t->x, s->dtype_x, x_at, n, room_x);
        float *y = target(t->y, s->dtype_y, y_at, room_y);
        t->kernel->row_exp(x, y, n, t->call->scale);
        store(t->y, s->dtype_y, y_at, n, y);
        p.d += (double)t->kernel->row_total(load(t->y, s->dtype_y, y_at, n, room_y), n);
    }
    return p;
}

static float safe_first(const struct rows *t, int64_t r, int64_t begin, int64_t end)
{
    float m = -INFINITY, room[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t n = block_len(at, end);
        const float *x = load(t->x, t->s->dtype_x, r * t->call->stride_x + at, n, room);
        m = t->kernel->row_max(x, n, t->call->scale, m);
    }
    return m;
}

static double safe_sum(const struct rows *t, int64_t r, int64_t begin, int64_t end, float m)
{
    double d = 0.0;
    float room[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t n = block_len(at, end);
        const float *x = load(t->x, t->s->dtype_x, r * t->call->stride_x + at, n, room);
        d += (double)t->kernel->row_sum(x, n, t->call->scale, cla_row_shift(m));
    }
    return d;
}

// Online, a block at a time: the block is read twice, but from the cache the second time.
static struct cla_row_part online_first(const struct rows *t, int64_t r, int64_t begin,
                                        int64_t end)
{
    struct cla_row_part p = {-INFINITY, 0.0};
    float room[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t n = block_len(at, end);
        const float *x = load(t->x, t->s->dtype_x, r * t->call->stride_x + at, n, room);
        const float m = t->kernel->row_max(x, n, t->call->scale, p.m);
        if (m > p.m) // the old maximum is needed here, and only then replaced
            p.d *= exp((double)p.m - (double)m);
        p.m = m;
        p.d += (double)t->kernel->row_sum(x, n, t->call->scale, cla_row_shift(m));
    }
    return p;
}

static void last(const struct rows *t, int64_t r, int64_t begin, int64_t end,
                 struct cla_row_part row)
{
    const struct cla_softmax *s = t->s;
    float room_x[BLOCK], room_y[BLOCK];
    const bool naive = s->algo == CLATTN_SOFTMAX_NAIVE;
    // In one go: each end of it waits until memory has everything.
    const bool stream = s->dtype_x == CLATTN_DTYPE_F32 && s->dtype_y == CLATTN_DTYPE_F32 &&
                        cla_softmax_streams(s, t->call);
    // Only NaN sums and those of empty rows have no inverse of use.
    const float inverse = row.d == 0.0 ? 0.0f : (float)(1.0 / row.d);
    for (int64_t at = begin, n; at < end; at += n) {
        n = stream ? end - at : block_len(at, end);
        const int64_t x_at = r * t->call->stride_x + at, y_at = r * t->call->stride_y + at;
        float *y = target(t->y, s->dtype_y, y_at, room_y);
        if (naive)
            t->kernel->row_divide(load(t->y, s->dtype_y, y_at, n, room_x), y, n, (float)row.d);
        else
            t->kernel->row_write(load(t->x, s->dtype_x, x_at, n, room_x), y, n, t->call->scale,
                                 cla_row_shift(row.m), inverse, stream);
        store(t->y, s->dtype_y, y_at, n, y);
    }
}

static void store_lse(const struct rows *t, int64_t r, struct cla_row_part p)
{
    if (t->lse)
        t->lse[r] = p.d == 0.0 ? -INFINITY : (float)((double)p.m + log(p.d));
}

// ---- cutting -----------------------------------------------------------------------------------

static struct cla_row_part first_pass(const struct rows *t, int64_t r, int64_t begin, int64_t end)
{
    switch (t->s->algo) {
    case CLATTN_SOFTMAX_NAIVE: return naive_first(t, r, begin, end);
    case CLATTN_SOFTMAX_SAFE: return (struct cla_row_part){safe_first(t, r, begin, end), 0.0};
    default: return online_first(t, r, begin, end);
    }
}

static void whole_row(const void *rows, int64_t r)
{
    const struct rows *t = rows;
    const int64_t len = t->call->len;
    struct cla_row_part p = first_pass(t, r, 0, len);
    if (t->s->algo == CLATTN_SOFTMAX_SAFE)
        p.d = safe_sum(t, r, 0, len, p.m);
    last(t, r, 0, len, p);
    store_lse(t, r, p);
}

enum step { FIRST, SUM, WRITE };

// Maximum of all parts of a row. Their sums are not looked at: other threads write them.
static float whole_max(const struct rows *t, int64_t r)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < t->parts; i++) {
        const float other = t->part[r * t->parts + i].m;
        m = other > m ? other : m;
    }
    return m;
}

// m and d of all parts of a row; for naive and safe the sums stand under the same m.
static struct cla_row_part whole_of(const struct rows *t, int64_t r)
{
    const struct cla_row_part *part = t->part + r * t->parts;
    struct cla_row_part p = part[0];
    for (int64_t i = 1; i < t->parts; i++) {
        if (t->s->algo == CLATTN_SOFTMAX_ONLINE) {
            p = cla_row_merge(p, part[i]);
        } else {
            p.m = part[i].m > p.m ? part[i].m : p.m;
            p.d += part[i].d;
        }
    }
    return p;
}

static void one_part(const struct rows *t, int64_t id, enum step step)
{
    const int64_t r = id / t->parts, begin = id % t->parts * t->part_len;
    const int64_t rest = t->call->len - begin;
    const int64_t end = begin + (rest < t->part_len ? rest : t->part_len);
    if (step == FIRST) {
        t->part[id] = first_pass(t, r, begin, end);
    } else if (step == SUM) {
        t->part[id].d = safe_sum(t, r, begin, end, whole_max(t, r));
    } else {
        const struct cla_row_part p = whole_of(t, r);
        last(t, r, begin, end, p);
        if (begin == 0)
            store_lse(t, r, p);
    }
}

struct pass {
    const struct rows *rows;
    enum step step;
};

static void one_part_of(const void *pass, int64_t id)
{
    const struct pass *p = pass;
    one_part(p->rows, id, p->step);
}

static void all_parts(const struct rows *t, enum step step, int32_t threads)
{
    const struct pass pass = {t, step};
    cla_host_rows(t->call->rows * t->parts, threads, one_part_of, &pass);
}

clattn_status cla_host_softmax(const struct cla_softmax *s, const struct cla_softmax_call *call,
                               const void *x, void *y, float *lse, int32_t threads)
{
    struct rows t = {.s = s, .call = call, .kernel = cla_host_kernels()[0], .x = x, .y = y,
                     .lse = lse, .parts = 1, .part_len = call->len};
    if (call->rows == 0)
        return CLATTN_OK;
    threads = cla_host_threads(threads);
    if ((double)call->rows * (double)call->len < MIN_PARALLEL)
        threads = 1;
    if (call->rows < 2 * (int64_t)threads && threads > 1) {
        const int64_t wanted = (2 * (int64_t)threads + call->rows - 1) / call->rows;
        const int64_t most = call->len / MIN_PART;
        t.parts = wanted < most ? wanted : most < 1 ? 1 : most;
        t.part_len = (call->len + t.parts - 1) / t.parts;
        t.parts = (call->len + t.part_len - 1) / t.part_len;
    }
    // A forked child has one thread, but cuts as its parent did.
    threads = cla_host_team(threads);
    if (t.parts <= 1) {
        cla_host_rows(call->rows, threads, whole_row, &t);
        return CLATTN_OK;
    }
    t.part = malloc((size_t)call->rows * (size_t)t.parts * sizeof *t.part);
    if (!t.part)
        return CLATTN_ERR_OUT_OF_MEMORY;
    all_parts(&t, FIRST, threads);
    if (s->algo == CLATTN_SOFTMAX_SAFE)
        all_parts(&t, SUM, threads);
    all_parts(&t, WRITE, threads);
    free(t.part);
    return CLATTN_OK;
}
