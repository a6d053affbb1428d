// SPDX-License-Identifier: Apache-2.0
#include "ref/ref.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "sequence.h"
#include "util/float_mode.h"

// One sequence, as forward_row() sees it.
struct rows {
    const struct cla_problem *p;
    const struct cla_call *call; // narrowed to the sequence
    const struct cla_host_mem *mem;
    int32_t b;
    double *q;   // [dim_qk]
    double *x;   // [len_kv] scores
    double *acc; // [dim_v]
};

// Inside the window, and hidden by neither mask nor bias. j < len_kv is the caller's loop bound.
// The unlimited sides CLA_WIN_MIN and CLA_WIN_MAX need no case of their own: |j - i| < 2^31.
static bool pair_allowed(const struct rows *r, int32_t h, int32_t i, int32_t j, double *bias)
{
    const struct cla_problem *p = r->p;
    const int64_t distance = (int64_t)j - i;
    *bias = 0.0;
    if (distance < r->call->win_lo || distance > r->call->win_hi)
        return false;
    if (p->mask) {
        const int64_t *s = r->call->mask.stride;
        if (!r->mem->mask[r->b * s[0] + h * s[1] + i * s[2] + j * s[3]])
            return false;
    }
    if (p->bias) {
        const int64_t *s = r->call->bias.stride;
        *bias = (double)cla_load_elem(r->mem->bias,
                                      r->b * s[0] + h * s[1] + i * s[2] + j * s[3], p->dtype_bias);
    }
    return *bias != -INFINITY;
}

// Scale of key j in int8 storage.
static double key_scale(const struct rows *r, const float *scale, const struct cla_tensor *t,
                        int32_t g, int32_t j)
{
    if (r->p->dtype_kv != CLATTN_DTYPE_I8)
        return 1.0;
    const int64_t at = cla_key_at(r->p, r->call, r->mem, t, r->b, g, j);
    return at < 0 ? 0.0 : (double)scale[at];
}

// Channel d of key j: `at` is its row, negative for a key that counts as zeros.
static double key_elem(const struct rows *r, const void *mem, int64_t at, int32_t d)
{
    return at < 0 ? 0.0 : (double)cla_load_elem(mem, at + d, r->p->dtype_kv);
}

static double score(const struct rows *r, int32_t h, int32_t g, int32_t i, int32_t j)
{
    const struct cla_call *call = r->call;
    const int64_t at = cla_key_at(r->p, call, r->mem, &call->k, r->b, g, j);
    double x = 0.0;
    for (int32_t d = 0; d < r->p->dim_qk; d++)
        x += r->q[d] * key_elem(r, r->mem->k, at, d);
    x *= (double)call->scale * key_scale(r, r->mem->k_scale, &call->k_scale, g, j);
    if (call->softcap > 0.0f)
        x = (double)call->softcap * tanh(x / (double)call->softcap);
    if (r->p->alibi) {
        const double slope = (double)r->mem->alibi[r->b * call->alibi_stride + h];
        x -= slope * fabs((double)i + call->off - j);
    }
    return x;
}

// One query of one head.
static void forward_row(const struct rows *r, int32_t h, int32_t i)
{
    const struct cla_problem *p = r->p;
    const struct cla_call *call = r->call;
    const int32_t g = h / p->group;
    const int64_t q = cla_query_at(call, &call->q, r->b, h, i);
    for (int32_t d = 0; d < p->dim_qk; d++)
        r->q[d] = (double)cla_load_elem(r->mem->q, q + d, p->dtype_q);
    const double sink = p->sinks ? (double)r->mem->sinks[h] : -INFINITY;
    double m = sink;
    for (int32_t j = 0; j < call->len_kv; j++) {
        double bias;
        r->x[j] = -INFINITY;
        if (!pair_allowed(r, h, i, j, &bias))
            continue;
        r->x[j] = score(r, h, g, i, j) + bias;
        if (r->x[j] > m || isnan(m))
            m = r->x[j];
    }

    double l = sink == -INFINITY ? 0.0 : exp(sink - m);
    for (int32_t d = 0; d < p->dim_v; d++)
        r->acc[d] = 0.0;
    for (int32_t j = 0; j < call->len_kv; j++) {
        if (r->x[j] == -INFINITY)
            continue; // hidden, or a visible pair whose score is -infinity: neither contributes
        // A NaN score, and a score of +infinity by way of inf - inf, make e NaN, then l and O.
        const double e = exp(r->x[j] - m);
        const int64_t v = cla_key_at(p, call, r->mem, &call->v, r->b, g, j);
        const double scale = key_scale(r, r->mem->v_scale, &call->v_scale, g, j);
        l += e;
        for (int32_t d = 0; d < p->dim_v; d++)
            r->acc[d] += e * (scale * key_elem(r, r->mem->v, v, d));
    }

    const int64_t o = cla_query_at(call, &call->o, r->b, h, i);
    for (int32_t d = 0; d < p->dim_v; d++)
        cla_store_elem(r->mem->o, o + d, p->dtype_o, l == 0.0 ? 0.0f : (float)(r->acc[d] / l));
    if (p->lse && r->mem->lse)
        r->mem->lse[cla_lse_at(call, r->b, h, i)] = l == 0.0 ? -INFINITY : (float)(m + log(l));
}

clattn_status cla_ref_forward(const struct cla_problem *p, const struct cla_call *call,
                              const struct cla_host_mem *mem)
{
    clattn_status st = CLATTN_ERR_OUT_OF_MEMORY;
    struct cla_call own;
    struct rows r = {.p = p, .call = &own, .mem = mem};
    int32_t faults = cla_call_page_faults(p, call, mem);
    // One more element each, so that a length of 0 asks for memory too.
    r.q = malloc(((size_t)p->dim_qk + 1) * sizeof *r.q);
    r.x = malloc(((size_t)call->len_kv + 1) * sizeof *r.x);
    r.acc = malloc(((size_t)p->dim_v + 1) * sizeof *r.acc);
    if (!r.q || !r.x || !r.acc)
        goto done;
    const unsigned mode = cla_float_begin();
    for (r.b = 0; r.b < call->batch; r.b++) {
        cla_call_enter(p, call, mem, r.b, &own, &faults);
        for (int32_t h = 0; h < p->heads_q; h++)
            for (int32_t i = 0; i < own.len_q; i++)
                forward_row(&r, h, i);
    }
    cla_float_end(mode);
    if (mem->faults)
        *mem->faults |= faults;
    st = CLATTN_OK;
done:
    free(r.q);
    free(r.x);
    free(r.acc);
    return st;
}
