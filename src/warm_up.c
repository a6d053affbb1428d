// SPDX-License-Identifier: Apache-2.0
// A call of given lengths on memory of its own, whose inputs are one row each.
#include <stdlib.h>
#include <string.h>

#include "attention.h"

// Inputs come from `row`, zeros that all rows share; numbers that say where things lie are real.
struct warm_up {
    clattn_attention_call call;
    const struct cla_problem *p;
    void *row, *o, *lse;
    int32_t *numbers; // lengths, offsets of queries, of keys, page table
    size_t row_bytes, o_bytes, lse_bytes, count; // count: of the numbers
};

static bool multiply(size_t *bytes, int64_t by)
{
    return !__builtin_mul_overflow(*bytes, (size_t)by, bytes);
}

static bool allocate(struct warm_up *w, int64_t batch, int64_t len_q, int64_t pages)
{
    const struct cla_problem *p = w->p;
    const int32_t widest = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    w->row_bytes = (size_t)widest * sizeof(float);
    w->o_bytes = cla_dtype_bytes(p->dtype_o) * (size_t)p->dim_v;
    w->lse_bytes = sizeof(float);
    w->count = (size_t)pages + 3;
    if (!multiply(&w->o_bytes, p->heads_q) || !multiply(&w->o_bytes, batch) ||
        !multiply(&w->o_bytes, len_q) || !multiply(&w->lse_bytes, p->heads_q) ||
        !multiply(&w->lse_bytes, batch) || !multiply(&w->lse_bytes, len_q) ||
        !multiply(&w->count, batch))
        return false;
    w->count += 3; // offsets have one more, and one is the mask
    w->row = calloc(1, w->row_bytes);
    w->o = malloc(w->o_bytes);
    w->lse = malloc(w->lse_bytes);
    w->numbers = calloc(w->count, sizeof *w->numbers);
    return w->row && w->o && w->lse && w->numbers;
}

static clattn_tensor input(const struct warm_up *w)
{
    return (clattn_tensor){.buf = clattn_host_buf(w->row, w->row_bytes),
                           .layout = CLATTN_LAYOUT_STRIDED};
}

static clattn_mask pairs(const struct warm_up *w)
{
    return (clattn_mask){.buf = clattn_host_buf(w->row, w->row_bytes),
                         .layout = CLATTN_LAYOUT_STRIDED, .extent = {1, 1, 1, 1}};
}

static clattn_buf numbers(struct warm_up *w, size_t *used, size_t count)
{
    const clattn_buf buf = clattn_host_buf(w->numbers + *used, count * sizeof *w->numbers);
    *used += count;
    return buf;
}

// Sequences of equal lengths, one behind the other.
static clattn_buf offsets(struct warm_up *w, size_t *used, int32_t batch, int32_t len)
{
    const clattn_buf buf = numbers(w, used, (size_t)batch + 1);
    for (int32_t b = 0; b <= batch; b++)
        ((int32_t *)buf.ptr)[b] = b * len;
    return buf;
}

static void describe(struct warm_up *w, int32_t batch, int32_t len_q, int32_t len_kv,
                     int32_t pages)
{
    const struct cla_problem *p = w->p;
    clattn_attention_call *c = &w->call;
    size_t used = 0;
    clattn_attention_call_init(c, sizeof *c);
    c->batch = batch;
    c->len_q = len_q;
    c->len_kv = len_kv;
    c->q = c->k = c->v = input(w);
    if (p->dtype_kv == CLATTN_DTYPE_I8)
        c->k_scale = c->v_scale = input(w);
    c->o.buf = clattn_host_buf(w->o, w->o_bytes);
    if (p->lse)
        c->lse = clattn_host_buf(w->lse, w->lse_bytes);
    if (p->mask) { // all hidden would leave nothing to do: a byte that is not 0
        c->mask = pairs(w);
        c->mask.buf = clattn_host_buf(w->numbers + w->count - 1, sizeof *w->numbers);
        memset(w->numbers + w->count - 1, 1, sizeof *w->numbers);
    }
    if (p->bias)
        c->bias = pairs(w);
    c->softcap = p->softcap ? 30.0f : 0.0f;
    if (p->kv_lens) {
        c->kv_lens = numbers(w, &used, (size_t)batch);
        for (int32_t b = 0; b < batch; b++)
            ((int32_t *)c->kv_lens.ptr)[b] = len_kv;
    }
    if (p->packed_q) {
        c->cu_seqlens_q = offsets(w, &used, batch, len_q);
        c->total_q = batch * len_q;
    }
    if (p->packed_kv) {
        c->cu_seqlens_kv = offsets(w, &used, batch, len_kv);
        c->total_kv = batch * len_kv;
    }
    if (p->paged) {
        c->page_table = numbers(w, &used, (size_t)batch * (size_t)pages);
        c->max_pages = pages;
        c->num_pages = 1;
    }
}

clattn_status clattn_plan_warm_up(const clattn_plan *plan, int32_t batch, int32_t len_q,
                                  int32_t len_kv)
{
    if (!plan)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const struct cla_log *log = &plan->ctx->log;
    const struct cla_problem *p = &plan->problem;
    clattn_status st = CLATTN_OK;
    struct warm_up w;
    float *heads = NULL;
    memset(&w, 0, sizeof w);
    w.p = p;
    if (batch < 0 || len_q < 0 || len_kv < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "batch %d, len_q %d or len_kv %d is negative", (int)batch, (int)len_q,
                        (int)len_kv);
    if (batch > p->max_batch || len_q > p->max_len_q || len_kv > p->max_len_kv)
        return cla_fail(log, CLATTN_ERR_OVER_BOUND,
                        "batch %d, len_q %d or len_kv %d is over the plan's %d, %d, %d", (int)batch,
                        (int)len_q, (int)len_kv, (int)p->max_batch, (int)p->max_len_q,
                        (int)p->max_len_kv);
    if (batch == 0 || len_q == 0 || len_kv == 0)
        return CLATTN_OK;
    if ((p->packed_q && (int64_t)batch * len_q > INT32_MAX) ||
        (p->packed_kv && (int64_t)batch * len_kv > INT32_MAX))
        return cla_fail(log, CLATTN_ERR_SHAPE, "batch %d times len_q %d or len_kv %d tokens are "
                        "over 2^31 - 1", (int)batch, (int)len_q, (int)len_kv);
    const int32_t pages = p->paged ? (len_kv - 1) / p->page_size + 1 : 0;
    heads = calloc((size_t)p->heads_q, sizeof *heads);
    if (!heads || !allocate(&w, batch, len_q, pages))
        CLA_TRY(cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to warm up a plan"));
    describe(&w, batch, len_q, len_kv, pages);
    if (p->alibi)
        w.call.alibi = clattn_host_buf(heads, (size_t)p->heads_q * sizeof *heads);
    if (p->sinks)
        w.call.sinks = clattn_host_buf(heads, (size_t)p->heads_q * sizeof *heads);
    st = clattn_attention_run(plan, &w.call);
done:
    free(heads);
    free(w.row);
    free(w.o);
    free(w.lse);
    free(w.numbers);
    return st;
}
