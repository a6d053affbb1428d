// SPDX-License-Identifier: Apache-2.0
// As cl/rotary.cl.
#include "host/rotary.h"
#include "host/kv.h"

struct rotate {
    const struct cla_rotate_data *data;
    void *const *ptr;
};

enum { X, OFFSETS, COS, SIN, Y, FAULTS };

static int64_t row_at(const struct cla_fwd_tensor *t, const struct cla_rotate_args *a, int64_t row)
{
    const int64_t bh = row / a->len;
    return bh / a->heads * t->stride_b + bh % a->heads * t->stride_h + row % a->len * t->stride_s;
}

// In place both channels of a pair are read before either is written.
static void turn_halves(const struct cla_turn *turn, void *y, int64_t to)
{
    const int32_t half = turn->turned / 2;
    for (int32_t d = 0, n; d < half; d += n) {
        float first[CLA_ROW_CHUNK], second[CLA_ROW_CHUNK];
        n = cla_turn_chunk(turn, d, first);
        cla_turn_chunk(turn, d + half, second);
        cla_row_store(y, to + d, turn->dtype, n, first);
        cla_row_store(y, to + half + d, turn->dtype, n, second);
    }
}

static void one_row(const void *what, int64_t row)
{
    const struct rotate *t = what;
    const struct cla_rotate_args *a = &t->data->args;
    const struct cla_rotary_args *r = &a->rotary;
    const int32_t dtype = t->data->dtype, *offsets = t->ptr[OFFSETS];
    const void *x = t->ptr[X] ? t->ptr[X] : t->ptr[Y];
    const int64_t from = row_at(&a->x, a, row), to = row_at(&a->y, a, row);
    int32_t fault = 0;
    const int32_t first = offsets ? offsets[row / a->len / a->heads] : 0;
    const int64_t at = cla_rotary_row(r, first, row % a->len, &fault) * (r->dim / 2);
    const struct cla_turn turn = {r, x, from, dtype, a->dim, r->dim,
                                  (const float *)t->ptr[COS] + at, (const float *)t->ptr[SIN] + at};
    if (r->flags & CLA_KV_HALF_SPLIT)
        turn_halves(&turn, t->ptr[Y], to);
    for (int32_t d = r->flags & CLA_KV_HALF_SPLIT ? r->dim : 0, n; d < a->dim; d += n) {
        float out[CLA_ROW_CHUNK];
        n = cla_turn_chunk(&turn, d, out);
        cla_row_store(t->ptr[Y], to + d, dtype, n, out);
    }
    if (fault && t->ptr[FAULTS])
        cla_host_raise(t->ptr[FAULTS], fault);
}

void cla_host_rotary(const struct cla_rotate_data *data, void *const *ptr, int32_t threads)
{
    const struct rotate t = {data, ptr};
    cla_host_each_row(data->rows, data->args.dim, threads, one_row, &t);
}
