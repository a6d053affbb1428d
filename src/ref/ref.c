// SPDX-License-Identifier: Apache-2.0
#include "ref/ref.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

// Element 0 of row (b, head, s) of a tensor.
static int64_t row_at(const struct cla_tensor *t, int32_t b, int32_t head, int32_t s)
{
    return b * t->stride[0] + head * t->stride[1] + s * t->stride[2];
}

// Inside the window and not masked. j < len_kv is the caller's loop bound. The unlimited sides
// CLA_WIN_MIN and CLA_WIN_MAX need no case of their own: |j - i| < 2^31.
static bool pair_allowed(const struct cla_problem *p, const struct cla_call *call,
                         const struct cla_host_mem *mem, int32_t b, int32_t h, int32_t i, int32_t j)
{
    const int64_t distance = (int64_t)j - i;
    if (distance < call->win_lo || distance > call->win_hi)
        return false;
    if (!p->mask)
        return true;
    const int64_t *s = call->mask.stride;
    return mem->mask[b * s[0] + h * s[1] + i * s[2] + j * s[3]] != 0;
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t d = 0; d < n; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

// One query of one head. `x` holds len_kv scores, `acc` dim_v sums.
static void forward_row(const struct cla_problem *p, const struct cla_call *call,
                        const struct cla_host_mem *mem, int32_t b, int32_t h, int32_t i, double *x,
                        double *acc)
{
    const int32_t g = h / p->group;
    const float *q = (const float *)mem->q + row_at(&call->q, b, h, i);
    double m = -INFINITY;
    for (int32_t j = 0; j < call->len_kv; j++) {
        x[j] = -INFINITY;
        if (!pair_allowed(p, call, mem, b, h, i, j))
            continue;
        const float *k = (const float *)mem->k + row_at(&call->k, b, g, j);
        x[j] = (double)call->scale * dot(q, k, p->dim_qk);
        if (x[j] > m)
            m = x[j];
    }

    double l = 0.0;
    for (int32_t d = 0; d < p->dim_v; d++)
        acc[d] = 0.0;
    for (int32_t j = 0; j < call->len_kv; j++) {
        if (x[j] == -INFINITY)
            continue; // hidden, or a visible pair whose score is -infinity: neither contributes
        // A NaN score, and a score of +infinity by way of inf - inf, make e NaN, then l and O.
        const double e = exp(x[j] - m);
        const float *v = (const float *)mem->v + row_at(&call->v, b, g, j);
        l += e;
        for (int32_t d = 0; d < p->dim_v; d++)
            acc[d] += e * (double)v[d];
    }

    float *o = (float *)mem->o + row_at(&call->o, b, h, i);
    for (int32_t d = 0; d < p->dim_v; d++)
        o[d] = l == 0.0 ? 0.0f : (float)(acc[d] / l);
    if (p->lse && mem->lse) {
        const int64_t at = ((int64_t)b * p->heads_q + h) * call->len_q + i;
        mem->lse[at] = l == 0.0 ? -INFINITY : (float)(m + log(l));
    }
}

clattn_status cla_ref_forward(const struct cla_problem *p, const struct cla_call *call,
                              const struct cla_host_mem *mem)
{
    clattn_status st = CLATTN_ERR_OUT_OF_MEMORY;
    // One more element each, so that a length of 0 asks for memory too.
    double *x = malloc(((size_t)call->len_kv + 1) * sizeof *x);
    double *acc = malloc(((size_t)p->dim_v + 1) * sizeof *acc);
    if (!x || !acc)
        goto done;
    for (int32_t b = 0; b < call->batch; b++)
        for (int32_t h = 0; h < p->heads_q; h++)
            for (int32_t i = 0; i < call->len_q; i++)
                forward_row(p, call, mem, b, h, i, x, acc);
    st = CLATTN_OK;
done:
    free(x);
    free(acc);
    return st;
}
