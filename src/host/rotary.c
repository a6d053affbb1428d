// SPDX-License-Identifier: Apache-2.0
// As cl/rotary.cl.
#include "host/rotary.h"
#include "host/kv.h"
#include "host/rows.h"
#include "sequence.h"

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
    const float *cos_row = (const float *)t->ptr[COS] + at;
    const float *sin_row = (const float *)t->ptr[SIN] + at;
    for (int32_t n = 0; n < r->dim / 2; n++) {
        const int32_t d0 = cla_pair_first(r, n), d1 = cla_pair_second(r, n);
        const float x0 = cla_load_elem(x, from + d0, dtype);
        const float x1 = cla_load_elem(x, from + d1, dtype);
        cla_store_elem(t->ptr[Y], to + d0, dtype, x0 * cos_row[n] - x1 * sin_row[n]);
        cla_store_elem(t->ptr[Y], to + d1, dtype, x0 * sin_row[n] + x1 * cos_row[n]);
    }
    for (int32_t d = r->dim; d < a->dim; d++)
        cla_store_elem(t->ptr[Y], to + d, dtype, cla_load_elem(x, from + d, dtype));
    if (fault && t->ptr[FAULTS])
        cla_host_raise(t->ptr[FAULTS], fault);
}

void cla_host_rotary(const struct cla_rotate_data *data, void *const *ptr, int32_t threads)
{
    const struct rotate t = {data, ptr};
    cla_host_each_row(data->rows, threads, one_row, &t);
}
