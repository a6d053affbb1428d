// SPDX-License-Identifier: Apache-2.0
// One sequence of a call on host memory: its lengths, where its tokens begin, where a key lies.
// Numbers that were on the device when the call was checked are clamped here.
#ifndef CLA_SEQUENCE_H
#define CLA_SEQUENCE_H

#include "problem.h"

// Whether no offset of packed sequences is below one before it: only where one is do all those in
// front of a sequence have to be looked at to find where it begins. `cu` may be absent.
bool cla_sequence_sorted(const int32_t *cu, int32_t batch);

// Writes the call as sequence b sees it: len_q, len_kv, off, win_lo, win_hi, first_q, first_kv.
// Raises *faults by CLATTN_FAULT_LENGTH and CLATTN_FAULT_OFFSETS.
void cla_call_enter(const struct cla_problem *p, const struct cla_call *call,
                    const struct cla_host_mem *mem, int32_t b, struct cla_call *out,
                    int32_t *faults);

// Row of key j of sequence b, head g, in elements from element 0 of a tensor of keys. `call` is
// narrowed to the sequence. -1 where the page is not in the pool: such keys count as zeros.
static inline int64_t cla_key_at(const struct cla_problem *p, const struct cla_call *call,
                                 const struct cla_host_mem *mem, const struct cla_tensor *t,
                                 int32_t b, int32_t g, int32_t j)
{
    if (!p->paged)
        return b * t->stride[0] + g * t->stride[1] + (call->first_kv + j) * t->stride[2];
    const int32_t page = mem->table[(int64_t)b * call->max_pages + j / p->page_size];
    if (page < 0 || page >= call->num_pages)
        return -1;
    return page * t->stride[0] + g * t->stride[1] + j % p->page_size * t->stride[2];
}

// Row of query i of sequence b, head h, of Q or O.
static inline int64_t cla_query_at(const struct cla_call *call, const struct cla_tensor *t,
                                   int32_t b, int32_t h, int64_t i)
{
    return b * t->stride[0] + h * t->stride[1] + (call->first_q + i) * t->stride[2];
}

static inline int64_t cla_lse_at(const struct cla_call *call, int32_t b, int32_t h, int64_t i)
{
    return b * call->lse_stride[0] + h * call->lse_stride[1] + call->first_q + i;
}

// What CLATTN_FAULT_PAGE would say of all keys of the call; for callers that know no key.
int32_t cla_call_page_faults(const struct cla_problem *p, const struct cla_call *call,
                             const struct cla_host_mem *mem);

// An element of a type of storage as float; k8 of int8.
float cla_load_elem(const void *mem, int64_t at, int32_t dtype);

// A float rounded to a type of storage, which is not int8.
void cla_store_elem(void *mem, int64_t at, int32_t dtype, float x);

#endif // CLA_SEQUENCE_H
