// SPDX-License-Identifier: Apache-2.0
// As cl/merge_parts.cl.
#include <math.h>

#include "host/kv.h"
#include "host/rows.h"

struct merge {
    const struct cla_merge_data *data;
    void *const *ptr;
};

enum { LSE = CLA_MERGE_PARTS, SINKS = 2 * CLA_MERGE_PARTS, O, LSE_OUT };

static int64_t row_at(const struct cla_fwd_tensor *t, const struct cla_merge_args *a, int64_t row)
{
    const int64_t bh = row / a->len;
    return bh / a->heads * t->stride_b + bh % a->heads * t->stride_h + row % a->len * t->stride_s;
}

// Parts that are not empty: which ones, and their weights. Returns their number; *m and *l are the
// row's maximum and sum, with the sink.
static int weigh(const struct merge *t, int64_t row, float sink, int part[CLA_MERGE_PARTS],
                 float w[CLA_MERGE_PARTS], float *m, float *l)
{
    const struct cla_merge_args *a = &t->data->args;
    int n = 0;
    *m = sink;
    for (int k = 0; k < a->num_parts; k++) {
        const float *lse = t->ptr[LSE + k] ? t->ptr[LSE + k] : t->ptr[LSE_OUT];
        if (isinf(lse[row]))
            continue;
        part[n] = k;
        w[n++] = lse[row];
        *m = lse[row] > *m ? lse[row] : *m; // passes over a NaN, whose weight is one
    }
    *l = sink == -INFINITY ? 0.0f : expf(sink - *m);
    for (int i = 0; i < n; i++) {
        w[i] = expf(w[i] - *m);
        *l += w[i];
    }
    return n;
}

static void one_row(const void *what, int64_t row)
{
    const struct merge *t = what;
    const struct cla_merge_data *data = t->data;
    const struct cla_merge_args *a = &data->args;
    const float *sinks = t->ptr[SINKS];
    const float sink = sinks ? sinks[row / a->len % a->heads] : -INFINITY;
    int part[CLA_MERGE_PARTS];
    float w[CLA_MERGE_PARTS], m, l;
    const int n = weigh(t, row, sink, part, w, &m, &l);
    const bool nothing = n == 0 && sink == -INFINITY;
    const bool alone = n == 1 && sink == -INFINITY && m > -INFINITY;
    const int64_t to = row_at(&a->o, a, row);
    int64_t at[CLA_MERGE_PARTS];
    for (int i = 0; i < n; i++) {
        at[i] = row_at(&a->part[part[i]], a, row);
        w[i] = alone ? 1.0f : w[i] / l; // a product by 1 changes no bit
    }
    for (int32_t d = 0; d < a->dim; d += CLA_ROW_CHUNK) {
        float x[CLA_ROW_CHUNK], sum[CLA_ROW_CHUNK];
        const int32_t count = a->dim - d < CLA_ROW_CHUNK ? a->dim - d : CLA_ROW_CHUNK;
        for (int32_t k = 0; k < count; k++)
            sum[k] = isnan(l) ? l : 0.0f;
        for (int i = 0; i < n; i++) {
            const void *from = t->ptr[part[i]] ? t->ptr[part[i]] : t->ptr[O];
            cla_row_load(from, at[i] + d, data->dtype_parts, count, x);
            if (i == 0 && !isnan(l)) // 0 + -0 would be 0
                for (int32_t k = 0; k < count; k++)
                    sum[k] = w[i] * x[k];
            else
                for (int32_t k = 0; k < count; k++)
                    sum[k] += w[i] * x[k];
        }
        cla_row_store(t->ptr[O], to + d, data->dtype_o, count, sum);
    }
    if (t->ptr[LSE_OUT] && (a->flags & CLA_FWD_HAS_LSE))
        ((float *)t->ptr[LSE_OUT])[row] = nothing ? -INFINITY : alone ? m : m + logf(l);
}

void cla_host_merge(const struct cla_merge_data *data, void *const *ptr, int32_t threads)
{
    const struct merge t = {data, ptr};
    cla_host_each_row(data->rows, (int64_t)data->args.dim * data->args.num_parts, threads, one_row,
                      &t);
}
