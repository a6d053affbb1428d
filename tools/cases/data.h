// SPDX-License-Identifier: Apache-2.0
// What a case computes on, as plain [batch, heads, length, dim] arrays, and what must come out.
#ifndef CLATTN_CASES_DATA_H
#define CLATTN_CASES_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "cases.h"
#include "clattn/clattn.h"
#include "compare.h"

struct attn_data {
    float *q;       // [batch, heads_q, len_q, dim]
    float *k, *v;   // [batch, heads_kv, len_kv, dim], for V dim_v
    uint8_t *mask;  // [batch, heads_q, len_q, len_kv] with all axes written out; NULL without one
    float *o;       // expected, [batch, heads_q, len_q, dim_v]
    float *lse;     // expected, [batch, heads_q, len_q]
    struct tolerance tol_o, tol_lse;
};

// Fills `d` for a case; the expectation is computed by the reference on a simpler problem:
// contiguous, causal and broadcasting written into a full mask, key heads repeated. False if
// memory ran out or the reference failed.
bool attn_data_make(const struct attn_case *c, struct attn_data *d);
void attn_data_free(struct attn_data *d);

// Expectation only: q, k, v and mask (NULL = none) are the caller's, o and lse receive. `causal`
// and `align` as in the case.
bool attn_expect(const struct attn_case *c, const float *q, const float *k, const float *v,
                 const uint8_t *mask, float *o, float *lse);

// What is tolerated for these inputs; see the source for the reasoning.
void attn_tolerance(const struct attn_case *c, const float *q, const float *k, const float *v,
                    struct tolerance *tol_o, struct tolerance *tol_lse);

// A call on contiguous host memory of the case's shape.
clattn_attention_call case_host_call(const struct attn_case *c, const float *q, const float *k,
                                     const float *v, const uint8_t *mask, float *o, float *lse);

// Closes the context that attn_expect() keeps.
void attn_expect_close(void);

// A reproducible stream of numbers.
uint64_t rng_next(uint64_t *state);
double rng_uniform(uint64_t *state); // [0, 1)
float rng_normal(uint64_t *state);   // mean 0, deviation 1

#endif // CLATTN_CASES_DATA_H
