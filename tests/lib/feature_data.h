// SPDX-License-Identifier: Apache-2.0
// What a feature case computes on, as plain arrays that know nothing of layouts, pages and packed
// tokens, and what must come out: a loop over the formula of the contract, in double.
#ifndef TESTS_FEATURE_DATA_H
#define TESTS_FEATURE_DATA_H

#include "compare.h"
#include "feature_case.h"

// Arrays are [batch, heads, len, dim] with the longest lengths; of shorter sequences the rest is
// there and belongs to nobody.
struct feature_data {
    double *q;         // rounded to its type
    double *k, *v;     // as stored: rounded to their type, or the int8
    double *ks, *vs;   // scales of int8, else NULL
    uint8_t *mask;     // [batch, heads_q, len_q, len_kv], broadcasting written out; or NULL
    float *bias;       // likewise, rounded to its type
    float *alibi;      // [batch, heads_q]; or NULL
    float *sinks;      // [heads_q]; or NULL
    int32_t len_q[BATCH_MAX], len_kv[BATCH_MAX]; // of each sequence, kv_lens applied
    int32_t own_kv[BATCH_MAX]; // keys that packed sequences have, some behind len_kv
    // Of packed sequences: where each begins, where the last one ends, how many tokens there are.
    int32_t begin_q[BATCH_MAX + 1], begin_kv[BATCH_MAX + 1];
    int32_t total_q, total_kv;
    float *o, *lse;    // expected, [batch, heads_q, len_q, dim_v]
    // What is tolerated: for each element its bound (bound.h) in units of the roundoff `unit` of
    // the arithmetic, and beside it what storing it rounds.
    double *bound_o, *bound_lse;
    double *running_o; // what fused_kv_outer has beside bound_o
    double unit;
    struct tolerance tol_o, tol_lse;
};

// Fills all of it. Fails the test where memory runs out.
void feature_data_make(const struct feature_case *c, struct feature_data *d);
void feature_data_free(struct feature_data *d);

// Inputs only, for callers that change them and then call feature_expect().
void feature_inputs(const struct feature_case *c, struct feature_data *d);
void feature_expect(const struct feature_case *c, struct feature_data *d);

// Whether query i of sequence b, head h, sees key j.
bool feature_sees(const struct feature_case *c, const struct feature_data *d, int32_t b, int32_t h,
                  int32_t i, int32_t j);

// ---- storage types ------------------------------------------------------------------------------

size_t dtype_bytes(int32_t dtype);
double dtype_round(double x, int32_t dtype); // to nearest, ties to even; not for int8
// Element `at` of memory of a type. What is stored must be a value of the type.
void dtype_store(void *mem, size_t at, int32_t dtype, double x);
// As float. The pattern of what was never written comes out as UNWRITTEN_BITS.
float dtype_load(const void *mem, size_t at, int32_t dtype);
// Fills with the pattern of what was never written, which is a NaN in each type.
void dtype_fill_unwritten(void *mem, size_t bytes, int32_t dtype);

#endif // TESTS_FEATURE_DATA_H
