// SPDX-License-Identifier: Apache-2.0
#include "sequence.h"

#include "util/half.h"

static int32_t clamp_count(int64_t x, int64_t most, int32_t fault, int32_t *faults)
{
    if (x >= 0 && x <= most)
        return (int32_t)x;
    *faults |= fault;
    return (int32_t)(x < 0 ? 0 : most);
}

bool cla_sequence_sorted(const int32_t *cu, int32_t batch)
{
    bool sorted = true;
    for (int32_t b = 0; cu && b < batch; b++)
        sorted &= cu[b] <= cu[b + 1];
    return sorted;
}

// Tokens of packed sequence b: from offset b, or from the largest one before it, to offset b + 1.
static int32_t enter_packed(const int32_t *cu, bool sorted, int32_t b, int32_t total,
                            int32_t longest, int64_t *first, int32_t *faults)
{
    int32_t begin = clamp_count(cu[b], total, CLATTN_FAULT_OFFSETS, faults);
    int32_t before = 0;
    for (int32_t n = 0; !sorted && n < b; n++)
        before = cu[n] > before ? cu[n] : before;
    before = before < total ? before : total;
    if (begin < before) {
        *faults |= CLATTN_FAULT_OFFSETS;
        begin = before;
    }
    int32_t end = clamp_count(cu[b + 1], total, CLATTN_FAULT_OFFSETS, faults);
    if (end < begin) {
        *faults |= CLATTN_FAULT_OFFSETS;
        end = begin;
    }
    *first = begin;
    return clamp_count((int64_t)end - begin, longest, CLATTN_FAULT_LENGTH, faults);
}

void cla_call_enter(const struct cla_problem *p, const struct cla_call *call,
                    const struct cla_host_mem *mem, int32_t b, struct cla_call *out,
                    int32_t *faults)
{
    *out = *call;
    if (!cla_problem_is_ragged(p))
        return;
    if (p->packed_q)
        out->len_q = enter_packed(mem->cu_q, mem->sorted_q, b, call->total_q, call->len_q,
                                  &out->first_q, faults);
    if (p->packed_kv)
        out->len_kv = enter_packed(mem->cu_kv, mem->sorted_kv, b, call->total_kv, call->len_kv,
                                   &out->first_kv, faults);
    if (p->kv_lens)
        out->len_kv = clamp_count(mem->kv_lens[b], out->len_kv, CLATTN_FAULT_LENGTH, faults);
    cla_call_set_window(p, out);
}

int32_t cla_call_page_faults(const struct cla_problem *p, const struct cla_call *call,
                             const struct cla_host_mem *mem)
{
    int32_t faults = 0;
    for (int32_t b = 0; p->paged && call->len_kv > 0 && b < call->batch; b++) {
        struct cla_call own;
        int32_t unused = 0;
        cla_call_enter(p, call, mem, b, &own, &unused);
        for (int64_t n = 0; n * p->page_size < own.len_kv; n++) {
            const int32_t page = mem->table[(int64_t)b * call->max_pages + n];
            if (page < 0 || page >= call->num_pages)
                faults = CLATTN_FAULT_PAGE;
        }
    }
    return faults;
}

float cla_load_elem(const void *mem, int64_t at, int32_t dtype)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: return cla_f16_to_f32(((const uint16_t *)mem)[at]);
    case CLATTN_DTYPE_BF16: return cla_bf16_to_f32(((const uint16_t *)mem)[at]);
    case CLATTN_DTYPE_I8: return (float)((const int8_t *)mem)[at];
    default: return ((const float *)mem)[at];
    }
}

void cla_store_elem(void *mem, int64_t at, int32_t dtype, float x)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: ((uint16_t *)mem)[at] = cla_f32_to_f16(x); break;
    case CLATTN_DTYPE_BF16: ((uint16_t *)mem)[at] = cla_f32_to_bf16(x); break;
    default: ((float *)mem)[at] = x; break;
    }
}
