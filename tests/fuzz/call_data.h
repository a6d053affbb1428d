// SPDX-License-Identifier: Apache-2.0
// A call of attention with its memory, from bytes.
#ifndef TESTS_FUZZ_CALL_DATA_H
#define TESTS_FUZZ_CALL_DATA_H

#include "description.h"

enum data_part {
    DATA_Q, DATA_K, DATA_V, DATA_O, DATA_LSE, DATA_MASK, DATA_BIAS, DATA_ALIBI, DATA_SINKS,
    DATA_KV_LENS, DATA_CU_Q, DATA_CU_KV, DATA_TABLE, DATA_K_SCALE, DATA_V_SCALE, DATA_PARTS
};

enum { CALL_BATCH = 4 };

struct call_data {
    clattn_attention_call call;
    int32_t heads_q;
    // Filled in a way of its own, perhaps wrongly: it may be refused.
    bool spoilt;
    char *memory[DATA_PARTS]; // of exactly size[] bytes, NULL where it is another's or absent
    size_t size[DATA_PARTS];
    char *second_o, *second_lse; // of the reference
    double largest[DATA_PARTS]; // of finite values
    // Queries of a sequence, and where they begin on the sequence axis of O.
    int32_t own_q[CALL_BATCH], first_q[CALL_BATCH];
};

struct row {
    int32_t b, h, i, at; // at: on the sequence axis
};

// `desc` is one that the checker took, with heads_kv and dim_v filled in.
void call_data_take(struct bytes *b, const clattn_attention_desc *desc, struct call_data *c);
void call_data_free(struct call_data *c);

// Of an accepted call: every tensor lies within its memory, and outputs overlap nothing.
void call_data_check_reach(const clattn_attention_desc *d, const struct call_data *c);
// Whether batch and lengths are still what memory was made for.
bool call_data_bounded(struct call_data *c);

// The outputs become the second ones.
void call_data_use_second(struct call_data *c);
// Whether the first outputs hold what they began with, and after a run both where they may.
bool call_data_untouched(const clattn_attention_desc *d, const struct call_data *c, bool ran);

// An element of the first or the second output.
double call_data_o(const clattn_attention_desc *d, const struct call_data *c, int which,
                   const struct row *row, int32_t n);
double call_data_lse(const struct call_data *c, int which, const struct row *row);

#endif // TESTS_FUZZ_CALL_DATA_H
