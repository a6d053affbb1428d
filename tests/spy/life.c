// SPDX-License-Identifier: Apache-2.0
#include "life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare.h"
#include "open_device.h"

enum { BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 5, LEN_KV = 70, DIM = 16 };
enum { NUM_Q = BATCH * HEADS_Q * LEN_Q * DIM, NUM_KV = BATCH * HEADS_KV * LEN_KV * DIM };
enum { NUM_LSE = BATCH * HEADS_Q * LEN_Q };
enum { ROWS = 3, LEN = 1000 };

static char cache[] = "clattn-failures-XXXXXX";

static float q[NUM_Q], k[NUM_KV], v[NUM_KV], o[NUM_Q], want_o[NUM_Q], want_lse[NUM_LSE];
static float x[ROWS * LEN], y[ROWS * LEN], want_y[ROWS * LEN];
static float lse[NUM_LSE];

// ---- one life -----------------------------------------------------------------------------------

struct world {
    clattn_context *ctx;
    clattn_plan *plan;
    clattn_softmax_plan *softmax;
    clattn_buf buf[5];
    struct log_capture log;
};

#define STEP(call)                                                                                 \
    do {                                                                                           \
        out->status = (call);                                                                      \
        if (out->status != CLATTN_OK) {                                                            \
            out->where = #call;                                                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)

static bool good(const float *got, const float *want, int count)
{
    for (int i = 0; i < count; i++)
        if (!(got[i] - want[i] < 1e-5f && want[i] - got[i] < 1e-5f))
            return false;
    return true;
}

static void step_memory(struct world *w, const struct life *life, clattn_attention_call *call,
                        struct outcome *out)
{
    const size_t bytes[] = {sizeof q, sizeof k, sizeof v, sizeof o, sizeof lse};
    float *const host[] = {q, k, v, o, lse};
    clattn_buf *const into[] = {&call->q.buf, &call->k.buf, &call->v.buf, &call->o.buf, &call->lse};
    for (int i = 0; i < 5; i++) {
        if (life->host_memory) {
            *into[i] = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = host[i],
                                    .size_bytes = bytes[i]};
            continue;
        }
        STEP(clattn_mem_create(w->ctx, bytes[i], &w->buf[i]));
        STEP(clattn_mem_write(w->ctx, &w->buf[i], host[i], bytes[i]));
        *into[i] = w->buf[i];
    }
}

// Runs and checks; what was not written is NaN before.
static void step_run(struct world *w, const struct life *life, const clattn_attention_call *call,
                     struct outcome *out)
{
    fill_unwritten(o, NUM_Q);
    fill_unwritten(lse, NUM_LSE);
    if (!life->host_memory) {
        STEP(clattn_mem_write(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_write(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    STEP(clattn_attention_run(w->plan, call));
    if (!life->host_memory) {
        STEP(clattn_mem_read(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_read(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    out->wrong = !good(o, want_o, NUM_Q) || !good(lse, want_lse, NUM_LSE);
}

static void step_attention(struct world *w, const struct life *life, void (*over)(void),
                           struct outcome *out)
{
    clattn_attention_desc desc;
    clattn_attention_call call;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.features = CLATTN_FEATURE_LSE | CLATTN_FEATURE_CAUSAL;
    desc.max_batch = BATCH;
    desc.max_len_q = LEN_Q;
    desc.max_len_kv = LEN_KV;
    desc.algo = life->algo;
    desc.kernel = life->kernel;
    desc.num_splits = life->algo == CLATTN_ALGO_SPLIT_KV ? 2 : 0;
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan));
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = LEN_Q;
    call.len_kv = LEN_KV;
    step_memory(w, life, &call, out);
    if (out->status == CLATTN_OK)
        step_run(w, life, &call, out);
    if (out->status == CLATTN_OK || !call.lse.kind)
        return;
    // The failure is over: the same plan and memory serve.
    struct outcome next = {.status = CLATTN_OK};
    over();
    step_run(w, life, &call, &next);
    if (next.status != CLATTN_OK || next.wrong) {
        out->wrong = true;
        out->where = "the next call";
    }
}

static void step_softmax(struct world *w, const struct life *life, struct outcome *out)
{
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.path = life->no_opencl ? CLATTN_SOFTMAX_PATH_HOST : CLATTN_SOFTMAX_PATH_OPENCL;
    STEP(clattn_softmax_plan_create(w->ctx, &desc, &w->softmax));
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = ROWS;
    call.len = LEN;
    STEP(clattn_mem_create(w->ctx, sizeof x, &w->buf[0]));
    STEP(clattn_mem_create(w->ctx, sizeof y, &w->buf[1]));
    STEP(clattn_mem_write(w->ctx, &w->buf[0], x, sizeof x));
    call.x = w->buf[0];
    call.y = w->buf[1];
    STEP(clattn_softmax_run(w->softmax, &call));
    STEP(clattn_mem_read(w->ctx, &call.y, y, sizeof y));
    out->wrong = !good(y, want_y, ROWS * LEN);
}

static void step_all(struct world *w, const struct life *life, void (*over)(void),
                     struct outcome *out)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = life->no_opencl ? "cpu" : "0";
    desc.flags = life->no_opencl ? CLATTN_CONTEXT_NO_OPENCL : 0;
    desc.cache_dir = cache;
    desc.log = log_capture;
    desc.log_user = &w->log;
    desc.log_level = CLATTN_LOG_WARN;
    STEP(clattn_context_create(&desc, &w->ctx));
    if (life->softmax)
        step_softmax(w, life, out);
    else
        step_attention(w, life, over, out);
}

struct outcome live(const struct life *life, void (*over)(void))
{
    struct world w = {.ctx = NULL};
    struct outcome out = {.status = CLATTN_OK};
    step_all(&w, life, over, &out);
    out.silent = out.status != CLATTN_OK && !w.log.text[0];
    snprintf(out.said, sizeof out.said, "%.500s", w.log.text);
    for (int i = 0; i < 5; i++)
        clattn_mem_destroy(w.ctx, &w.buf[i]);
    clattn_plan_destroy(&w.plan);
    clattn_softmax_plan_destroy(&w.softmax);
    clattn_context_destroy(&w.ctx);
    return out;
}

bool lives_begin(void)
{
    clattn_context *ctx = NULL;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    unsigned seed = 1;
    float *const fill[] = {q, k, v, x};
    const int counts[] = {NUM_Q, NUM_KV, NUM_KV, ROWS * LEN};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < counts[t]; i++) {
            seed = seed * 1664525u + 1013904223u;
            fill[t][i] = (float)(seed >> 8) / 4194304.0f - 2.0f;
        }
    if (clattn_context_create(&desc, &ctx) != CLATTN_OK)
        return false;
    struct outcome ignored = {.status = CLATTN_OK};
    struct world w = {.ctx = ctx};
    const struct life life = {.algo = CLATTN_ALGO_REFERENCE, .host_memory = true};
    step_attention(&w, &life, NULL, &ignored);
    if (ignored.status != CLATTN_OK)
        return false;
    memcpy(want_o, o, sizeof o);
    memcpy(want_lse, lse, sizeof lse);
    clattn_plan_destroy(&w.plan);
    if (clattn_softmax_f32(ctx, CLATTN_SOFTMAX_SAFE, x, want_y, ROWS, LEN) != CLATTN_OK)
        return false;
    clattn_context_destroy(&ctx);
    setenv("CLATTN_CACHE", "1", 1);
    return mkdtemp(cache) != NULL;
}

void lives_end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", cache);
    if (system(command) != 0)
        fprintf(stderr, "%s is left\n", cache);
}
