// SPDX-License-Identifier: Apache-2.0
#include "life.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clattn/tune.h"
#include "compare.h"
#include "life_steps.h"

enum { ROWS = 3, LEN = 1000, TILES_MOST = 16 };

struct life_data life_data;
static char folder[] = "clattn-failures-XXXXXX", cache[64], fresh_cache[64], tune_file[64];
static float o[NUM_Q], lse[NUM_LSE];
static float x[ROWS * LEN], y[ROWS * LEN], want_y[ROWS * LEN];

// ---- what the parts share -----------------------------------------------------------------------

bool life_failed(struct world *w, struct outcome *out, clattn_status st, const char *where,
                 size_t said)
{
    if (out->status != CLATTN_OK || !w->over)
        return false;
    out->status = st;
    out->where = where;
    out->silent = strlen(w->log.text) == said && said + 1 < sizeof w->log.text;
    w->over();
    return true;
}

void life_check(const struct world *w, struct outcome *out, const float *got, float *want,
                int count)
{
    for (int i = 0; i < count; i++) {
        if (w->records)
            want[i] = got[i];
        if (!(got[i] - want[i] < 1e-5f && want[i] - got[i] < 1e-5f))
            out->wrong = true;
    }
}

void life_context_desc(struct world *w, clattn_context_desc *desc)
{
    clattn_context_desc_init(desc, sizeof *desc);
    desc->device = w->life->no_opencl ? "cpu" : "0";
    desc->flags = w->life->no_opencl ? CLATTN_CONTEXT_NO_OPENCL : 0;
    desc->cache_dir = w->life->fills_cache ? fresh_cache : cache;
    if (w->life->kind == LIFE_TILES)
        desc->tune_file = tune_file;
    else
        desc->flags |= CLATTN_CONTEXT_NO_TUNING;
    desc->log = log_capture;
    desc->log_user = &w->log;
    desc->log_level = CLATTN_LOG_WARN;
}

void life_attention_desc(const struct life *life, clattn_attention_desc *desc)
{
    clattn_attention_desc_init(desc, sizeof *desc);
    desc->dim_qk = DIM;
    desc->heads_q = HEADS_Q;
    desc->heads_kv = HEADS_KV;
    desc->features = CLATTN_FEATURE_LSE | CLATTN_FEATURE_CAUSAL;
    desc->max_batch = BATCH;
    desc->max_len_q = LEN_Q;
    desc->max_len_kv = LEN_KV;
    desc->algo = life->algo;
    desc->kernel = life->kernel;
    desc->num_splits = life->algo == CLATTN_ALGO_SPLIT_KV ? 2 : 0;
}

void life_memory(struct world *w, struct outcome *out, int n, const void *from, size_t bytes)
{
    STEP(clattn_mem_create(w->ctx, bytes, &w->buf[n]));
    STEP(clattn_mem_write(w->ctx, &w->buf[n], from, bytes));
}

// ---- attention ----------------------------------------------------------------------------------

static void step_memory(struct world *w, struct outcome *out, clattn_attention_call *call)
{
    struct life_data *d = &life_data;
    const size_t bytes[] = {sizeof d->q, sizeof d->k, sizeof d->v, sizeof o, sizeof lse};
    float *const host[] = {d->q, d->k, d->v, o, lse};
    clattn_buf *const into[] = {&call->q.buf, &call->k.buf, &call->v.buf, &call->o.buf, &call->lse};
    for (int i = 0; i < 5; i++) {
        if (w->life->host_memory) {
            *into[i] = (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = host[i],
                                    .size_bytes = bytes[i]};
            continue;
        }
        if (!w->buf[i].ptr)
            life_memory(w, out, i, host[i], bytes[i]);
        *into[i] = w->buf[i];
    }
}

// Runs and checks; what was not written is NaN before.
static void step_run(struct world *w, struct outcome *out, const clattn_plan *plan)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = LEN_Q;
    call.len_kv = LEN_KV;
    step_memory(w, out, &call);
    fill_unwritten(o, NUM_Q);
    fill_unwritten(lse, NUM_LSE);
    if (!w->life->host_memory) {
        STEP(clattn_mem_write(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_write(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    STEP(clattn_attention_run(plan, &call));
    if (!w->life->host_memory) {
        STEP(clattn_mem_read(w->ctx, &w->buf[3], o, sizeof o));
        STEP(clattn_mem_read(w->ctx, &w->buf[4], lse, sizeof lse));
    }
    life_check(w, out, o, life_data.want_o, NUM_Q);
    life_check(w, out, lse, life_data.want_lse, NUM_LSE);
}

static void step_attention(struct world *w, struct outcome *out)
{
    clattn_attention_desc desc;
    life_attention_desc(w->life, &desc);
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[0]));
    step_run(w, out, w->plan[0]);
}

// The last of the listed tiles is given, and is what the file says from the second life on.
static void step_tiles(struct world *w, struct outcome *out)
{
    clattn_context_desc context;
    clattn_attention_desc desc;
    clattn_device_info info = {.struct_size = sizeof info};
    clattn_tuning tuning = {.struct_size = sizeof tuning};
    clattn_tile tile[TILES_MOST];
    int32_t count = 0;
    life_context_desc(w, &context);
    STEP(clattn_device_count(&context, &count));
    STEP(clattn_device_get_info(&context, 0, &info));
    life_attention_desc(w->life, &desc);
    STEP(clattn_attention_list_tiles(w->ctx, &desc, tile, TILES_MOST, &count));
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[1]));
    desc.tile = tile[(count < TILES_MOST ? count : TILES_MOST) - 1];
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[0]));
    STEP(clattn_tune_write(w->ctx, tune_file, &desc, 1.5));
    STEP(clattn_tune_read(w->ctx, tune_file, &desc, &tuning));
    if (memcmp(&tuning.tile, &desc.tile, sizeof desc.tile) != 0)
        out->wrong = true;
    step_run(w, out, w->plan[0]);
    if (!out->wrong)
        step_run(w, out, w->plan[1]);
}

// ---- softmax ------------------------------------------------------------------------------------

static void step_softmax(struct world *w, struct outcome *out)
{
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.path = w->life->no_opencl ? CLATTN_SOFTMAX_PATH_HOST : CLATTN_SOFTMAX_PATH_OPENCL;
    STEP(clattn_softmax_plan_create(w->ctx, &desc, &w->softmax));
    fill_unwritten(y, ROWS * LEN);
    life_memory(w, out, 0, x, sizeof x);
    life_memory(w, out, 1, y, sizeof y);
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = ROWS;
    call.len = LEN;
    call.x = w->buf[0];
    call.y = w->buf[1];
    STEP(clattn_softmax_run(w->softmax, &call));
    STEP(clattn_mem_read(w->ctx, &call.y, y, sizeof y));
    life_check(w, out, y, want_y, ROWS * LEN);
}

// ---- a life -------------------------------------------------------------------------------------

static void step_all(struct world *w, struct outcome *out)
{
    clattn_context_desc desc;
    clattn_device_info info = {.struct_size = sizeof info};
    if (w->life->kind == LIFE_APPLICATION) {
        life_application(w, out);
        return;
    }
    life_context_desc(w, &desc);
    STEP(clattn_context_create(&desc, &w->ctx));
    // Where devices are not found for a moment, number 0 is the CPU path.
    STEP(clattn_context_get_device_info(w->ctx, &info));
    if (info.type == CLATTN_DEVICE_BUILTIN_CPU && !w->life->no_opencl && w->over) {
        w->over();
        clattn_context_destroy(&w->ctx);
        STEP(clattn_context_create(&desc, &w->ctx));
    }
    switch (w->life->kind) {
    case LIFE_TILES: step_tiles(w, out); break;
    case LIFE_FEATURES: life_features(w, out); break;
    case LIFE_SOFTMAX: step_softmax(w, out); break;
    case LIFE_KV: life_kv(w, out); break;
    default: step_attention(w, out);
    }
}

static void remove_folder(const char *path)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0)
        fprintf(stderr, "%s is left\n", path);
}

static struct outcome live_and_record(const struct life *life, void (*over)(void), bool records)
{
    struct world w = {.life = life, .over = over, .records = records};
    struct outcome out = {.status = CLATTN_OK};
    if (life->fills_cache)
        remove_folder(fresh_cache);
    step_all(&w, &out);
    snprintf(out.said, sizeof out.said, "%.500s", w.log.text);
    for (int i = 0; i < LIFE_BUFS; i++)
        clattn_mem_destroy(w.ctx, &w.buf[i]);
    for (int i = 0; i < 2; i++)
        clattn_plan_destroy(&w.plan[i]);
    clattn_softmax_plan_destroy(&w.softmax);
    clattn_context_destroy(&w.ctx);
    return out;
}

struct outcome live(const struct life *life, void (*over)(void))
{
    return live_and_record(life, over, false);
}

bool lives_begin(void)
{
    struct life_data *d = &life_data;
    unsigned seed = 1;
    float *const fill[] = {d->q, d->k, d->v, x};
    const int counts[] = {NUM_Q, NUM_KV, NUM_KV, ROWS * LEN};
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < counts[t]; i++) {
            seed = seed * 1664525u + 1013904223u;
            fill[t][i] = (float)(seed >> 8) / 4194304.0f - 2.0f;
        }
    if (!mkdtemp(folder))
        return false;
    snprintf(cache, sizeof cache, "%s/cache", folder);
    snprintf(fresh_cache, sizeof fresh_cache, "%s/fresh", folder);
    snprintf(tune_file, sizeof tune_file, "%s/tuned/tiles", folder);
    setenv("CLATTN_CACHE", "1", 1);
    setenv("CLATTN_TUNE", "1", 1);
    static const enum life_kind kinds[] = {LIFE_ATTENTION, LIFE_FEATURES, LIFE_SOFTMAX, LIFE_KV};
    for (int i = 0; i < 4; i++) {
        const struct life life = {.kind = kinds[i], .no_opencl = true,
                                  .algo = CLATTN_ALGO_REFERENCE};
        const struct outcome out = live_and_record(&life, NULL, true);
        if (out.status != CLATTN_OK || out.wrong) {
            fprintf(stderr, "the right results: %s: %s\n", out.where, out.said);
            return false;
        }
    }
    return true;
}

void lives_end(void)
{
    life_application_end();
    remove_folder(folder);
}
