// SPDX-License-Identifier: Apache-2.0
#include "algo/algo.h"

const struct cla_algo *const cla_algos[] = {
    &cla_algo_split_kv,
    &cla_algo_fused,
    &cla_algo_two_loop,
    &cla_algo_fused_kv_outer,
    &cla_algo_host,
    &cla_algo_reference,
    &cla_algo_unfused,
};
const int cla_algos_count = sizeof cla_algos / sizeof cla_algos[0];

uint64_t cla_workspace_need(const clattn_context *ctx, const struct cla_algo *algo,
                            const struct cla_problem *p, const struct cla_prepared *prepared,
                            const struct cla_extent *e)
{
    const bool empty = e->batch == 0 || e->len_q == 0;
    return algo->workspace && !empty ? algo->workspace(ctx, p, prepared, e) : 0;
}

void cla_call_bufs(const struct cla_problem *p, struct cla_call *call,
                   struct cla_call_buf out[CLA_CALL_BUFS])
{
    const size_t f = sizeof(float);
    const size_t rows = (size_t)call->batch * (size_t)p->heads_q * (size_t)call->len_q;
    const size_t lse_begin = (size_t)call->lse_offset * f;
    const struct cla_call_buf all[CLA_CALL_BUFS] = {
        {"q", &call->q.buf, (size_t)call->q.offset * f, call->q.end_bytes, false, NULL},
        {"k", &call->k.buf, (size_t)call->k.offset * f, call->k.end_bytes, false, NULL},
        {"v", &call->v.buf, (size_t)call->v.offset * f, call->v.end_bytes, false, NULL},
        {"mask", &call->mask.buf, (size_t)call->mask.offset, call->mask.end_bytes, false, NULL},
        {"o", &call->o.buf, (size_t)call->o.offset * f, call->o.end_bytes, true, NULL},
        {"lse", &call->lse, lse_begin, p->lse && rows ? lse_begin + rows * f : 0, true, NULL},
    };
    for (int i = 0; i < CLA_CALL_BUFS; i++)
        out[i] = all[i];
}
