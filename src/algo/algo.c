// SPDX-License-Identifier: Apache-2.0
#include "algo/algo.h"

#include <string.h>

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
    memset(out, 0, CLA_CALL_BUFS * sizeof *out);
    const int32_t kv = p->dtype_kv, f32 = CLATTN_DTYPE_F32;
    const struct {
        int id;
        const char *name;
        struct cla_tensor *t;
        int32_t dtype;
    } tensors[] = {{CLA_BUF_Q, "q", &call->q, p->dtype_q},
                   {CLA_BUF_K, "k", &call->k, kv},
                   {CLA_BUF_V, "v", &call->v, kv},
                   {CLA_BUF_O, "o", &call->o, p->dtype_o},
                   {CLA_BUF_K_SCALE, "k_scale", &call->k_scale, f32},
                   {CLA_BUF_V_SCALE, "v_scale", &call->v_scale, f32}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        struct cla_tensor *t = tensors[i].t;
        out[tensors[i].id] = (struct cla_call_buf){
            .name = tensors[i].name, .buf = &t->buf, .offset = &t->offset,
            .begin_bytes = (size_t)t->offset * cla_dtype_bytes(tensors[i].dtype),
            .end_bytes = t->end_bytes};
    }
    const struct {
        int id;
        const char *name;
        struct cla_vector *v;
    } vectors[] = {{CLA_BUF_ALIBI, "alibi", &call->alibi},
                   {CLA_BUF_SINKS, "sinks", &call->sinks},
                   {CLA_BUF_KV_LENS, "kv_lens", &call->kv_lens},
                   {CLA_BUF_CU_Q, "cu_seqlens_q", &call->cu_q},
                   {CLA_BUF_CU_KV, "cu_seqlens_kv", &call->cu_kv},
                   {CLA_BUF_TABLE, "page_table", &call->table},
                   {CLA_BUF_FAULTS, "faults", &call->faults}};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        struct cla_vector *v = vectors[i].v; // of float or int32, 4 bytes each
        out[vectors[i].id] = (struct cla_call_buf){
            .name = vectors[i].name, .buf = &v->buf, .offset = &v->offset,
            .begin_bytes = (size_t)v->offset * 4, .end_bytes = v->end_bytes};
    }
    out[CLA_BUF_MASK] = (struct cla_call_buf){
        .name = "mask", .buf = &call->mask.buf, .offset = &call->mask.offset,
        .begin_bytes = (size_t)call->mask.offset, .end_bytes = call->mask.end_bytes};
    out[CLA_BUF_BIAS] = (struct cla_call_buf){
        .name = "bias", .buf = &call->bias.buf, .offset = &call->bias.offset,
        .begin_bytes = (size_t)call->bias.offset * cla_dtype_bytes(p->dtype_bias),
        .end_bytes = call->bias.end_bytes};
    out[CLA_BUF_LSE] = (struct cla_call_buf){
        .name = "lse", .buf = &call->lse, .offset = &call->lse_offset,
        .begin_bytes = (size_t)call->lse_offset * sizeof(float),
        .end_bytes = call->lse_end_bytes};
    out[CLA_BUF_O].output = out[CLA_BUF_LSE].output = out[CLA_BUF_FAULTS].output = true;
    // Rows of no sequence are not written, and faults are added to what there is.
    out[CLA_BUF_O].keeps = out[CLA_BUF_LSE].keeps = p->packed_q;
    out[CLA_BUF_FAULTS].keeps = true;
}
