// SPDX-License-Identifier: Apache-2.0
// What the parts of a life share.
#ifndef TESTS_LIFE_STEPS_H
#define TESTS_LIFE_STEPS_H

#include <string.h>

#include "life.h"
#include "open_device.h"

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 5, LEN_KV = 70, DIM = 16 };
enum { NUM_Q = BATCH * HEADS_Q * LEN_Q * DIM, NUM_KV = BATCH * HEADS_KV * LEN_KV * DIM };
enum { NUM_LSE = BATCH * HEADS_Q * LEN_Q };
enum { LIFE_BUFS = 12 };

// Inputs, and the results of attention over them.
struct life_data {
    float q[NUM_Q], k[NUM_KV], v[NUM_KV], want_o[NUM_Q], want_lse[NUM_LSE];
};
extern struct life_data life_data;

struct world {
    const struct life *life;
    void (*over)(void);
    clattn_context *ctx;
    clattn_plan *plan[2];
    clattn_softmax_plan *softmax;
    clattn_buf buf[LIFE_BUFS];
    bool records; // results are what is wanted from others
    struct log_capture log;
};

// Fills `out` where a call failed for the first time; false where it did so again.
bool life_failed(struct world *w, struct outcome *out, clattn_status st, const char *where,
                 size_t said);

// A call that may fail once. Then the same call must succeed.
#define STEP(call)                                                                                 \
    do {                                                                                           \
        const size_t said_ = strlen(w->log.text);                                                  \
        clattn_status st_ = (call);                                                                \
        if (st_ != CLATTN_OK && life_failed(w, out, st_, #call, said_))                            \
            st_ = (call);                                                                          \
        if (st_ != CLATTN_OK) {                                                                    \
            out->wrong = true;                                                                     \
            out->where = "again: " #call;                                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

// Compares with `want`, or makes it that.
void life_check(const struct world *w, struct outcome *out, const float *got, float *want,
                int count);
// As context_desc of every life.
void life_context_desc(struct world *w, clattn_context_desc *desc);
// Of a plan for the inputs above.
void life_attention_desc(const struct life *life, clattn_attention_desc *desc);
// Memory of the context that holds `from`.
void life_memory(struct world *w, struct outcome *out, int n, const void *from, size_t bytes);

void life_features(struct world *w, struct outcome *out);
void life_kv(struct world *w, struct outcome *out);
void life_application(struct world *w, struct outcome *out);
void life_application_end(void);

#endif // TESTS_LIFE_STEPS_H
