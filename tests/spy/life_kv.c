// SPDX-License-Identifier: Apache-2.0
// Lives with the operations around attention and the forms of keys that they make.
#include <stdint.h>
#include <string.h>

#include "compare.h"
#include "life_steps.h"

enum { PAGE = 4, PAGES = 12, TABLE = 5, POOL = PAGES * HEADS_KV * PAGE, TOTAL_KV = BATCH * LEN_KV };
enum { ROTARY = 8, POSITIONS = 64 };

static int32_t lens[BATCH] = {20, 13}, table[BATCH * TABLE] = {7, 2, 9, 0, 4, 11, 3, 5, 1, -1};
static int32_t cu_q[BATCH + 1] = {0, 3, 10}, cu_kv[BATCH + 1] = {0, 60, TOTAL_KV};
static int8_t k8[POOL * DIM], v8[POOL * DIM];
static float scale_k[POOL], scale_v[POOL], o[NUM_Q], lse[NUM_LSE];
static float want_paged[NUM_Q], want_packed[NUM_Q], want_merged[NUM_Q], want_merged_lse[NUM_LSE];
static float want_turned[NUM_Q], want_k8[POOL * DIM], want_scale[POOL];
static float cosines[POSITIONS * ROTARY / 2], sines[POSITIONS * ROTARY / 2];

static clattn_buf host(void *ptr, size_t bytes)
{
    return (clattn_buf){.kind = CLATTN_BUF_HOST, .ptr = ptr, .size_bytes = bytes};
}

// O is what was never written, the call is run and O is read.
static void run_attention(struct world *w, struct outcome *out, int plan,
                          const clattn_attention_call *call, float *want)
{
    fill_unwritten(o, NUM_Q);
    STEP(clattn_mem_write(w->ctx, &w->buf[0], o, sizeof o));
    STEP(clattn_attention_run(w->plan[plan], call));
    STEP(clattn_mem_read(w->ctx, &w->buf[0], o, sizeof o));
    life_check(w, out, o, want, NUM_Q);
}

static void paged_call(struct world *w, clattn_attention_call *c)
{
    clattn_attention_call_init(c, sizeof *c);
    c->batch = BATCH;
    c->len_q = LEN_Q;
    c->len_kv = TABLE * PAGE;
    c->num_pages = PAGES;
    c->max_pages = TABLE;
    c->o.buf = w->buf[0];
    c->q.buf = w->buf[1];
    c->k.buf = w->buf[2];
    c->v.buf = w->buf[3];
    c->k_scale.buf = w->buf[4];
    c->v_scale.buf = w->buf[5];
    c->page_table = w->buf[6];
    c->kv_lens = host(lens, sizeof lens);
}

static void packed_call(struct world *w, clattn_attention_call *c)
{
    clattn_attention_call_init(c, sizeof *c);
    c->batch = BATCH;
    c->len_q = 7;
    c->len_kv = 80;
    c->total_q = BATCH * LEN_Q;
    c->total_kv = TOTAL_KV;
    c->o.buf = w->buf[0];
    c->q.buf = w->buf[1];
    c->k.buf = w->buf[7];
    c->v.buf = w->buf[8];
    c->cu_seqlens_q = host(cu_q, sizeof cu_q);
    c->cu_seqlens_kv = w->buf[9];
}

void life_features(struct world *w, struct outcome *out)
{
    const struct life_data *d = &life_data;
    clattn_attention_desc desc;
    clattn_attention_call call;
    STEP(clattn_quantize_i8(w->ctx, d->k, POOL, DIM, 0, k8, scale_k));
    STEP(clattn_quantize_i8(w->ctx, d->v, POOL, DIM, 0, v8, scale_v));
    const void *const from[] = {o, d->q, k8, v8, scale_k, scale_v, table, d->k, d->v, cu_kv};
    const size_t bytes[] = {sizeof o, sizeof d->q, sizeof k8, sizeof v8, sizeof scale_k,
                            sizeof scale_v, sizeof table, sizeof d->k, sizeof d->v, sizeof cu_kv};
    for (int i = 0; i < 10; i++)
        life_memory(w, out, i, from[i], bytes[i]);
    life_attention_desc(w->life, &desc);
    desc.max_len_q = desc.max_len_kv = 0;
    desc.features = CLATTN_FEATURE_PAGED | CLATTN_FEATURE_KV_LENS;
    desc.page_size = PAGE;
    desc.dtype_kv = CLATTN_DTYPE_I8;
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[0]));
    desc.features = CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV | CLATTN_FEATURE_CAUSAL;
    desc.page_size = 0;
    desc.dtype_kv = CLATTN_DTYPE_F32;
    STEP(clattn_attention_plan_create(w->ctx, &desc, &w->plan[1]));
    paged_call(w, &call);
    run_attention(w, out, 0, &call, want_paged);
    packed_call(w, &call);
    run_attention(w, out, 1, &call, want_packed);
}

// ---- operations ---------------------------------------------------------------------------------

static void merge(struct world *w, struct outcome *out)
{
    const clattn_tensor parts[] = {{.buf = w->buf[1]}, {.buf = w->buf[2]}};
    const clattn_buf parts_lse[] = {w->buf[3], host(life_data.v, sizeof lse)};
    clattn_merge_call c;
    clattn_merge_call_init(&c, sizeof c);
    c.num_parts = 2;
    c.batch = BATCH;
    c.heads = HEADS_Q;
    c.len_q = LEN_Q;
    c.dim_v = DIM;
    c.parts = parts;
    c.parts_lse = parts_lse;
    c.o.buf = w->buf[0];
    c.lse = host(lse, sizeof lse);
    STEP(clattn_merge_run(w->ctx, &c));
    STEP(clattn_mem_read(w->ctx, &w->buf[0], o, sizeof o));
    life_check(w, out, o, want_merged, NUM_Q);
    life_check(w, out, lse, want_merged_lse, NUM_LSE);
}

static clattn_rotary rotary(int32_t start)
{
    return (clattn_rotary){.dim = ROTARY, .pairs = CLATTN_ROTARY_HALF_SPLIT,
                           .positions = POSITIONS, .start = start,
                           .cos_table = host(cosines, sizeof cosines),
                           .sin_table = host(sines, sizeof sines)};
}

static void turn(struct world *w, struct outcome *out)
{
    clattn_rotary_call c;
    clattn_rotary_call_init(&c, sizeof c);
    c.batch = BATCH;
    c.heads = HEADS_Q;
    c.len = LEN_Q;
    c.dim = DIM;
    c.rotary = rotary(30);
    c.x.buf = w->buf[1];
    c.y.buf = w->buf[0];
    STEP(clattn_rotary_run(w->ctx, &c));
    STEP(clattn_mem_read(w->ctx, &w->buf[0], o, sizeof o));
    life_check(w, out, o, want_turned, NUM_Q);
}

// Turned keys, rounded into pages; values likewise, as they are.
static void append(struct world *w, struct outcome *out)
{
    static float as_float[POOL * DIM];
    clattn_append_call c;
    clattn_append_call_init(&c, sizeof c);
    c.dtype_cache = CLATTN_DTYPE_I8;
    c.batch = BATCH;
    c.heads = HEADS_KV;
    c.len_new = LEN_Q;
    c.dim_k = DIM;
    c.page_size = PAGE;
    c.num_pages = PAGES;
    c.max_pages = TABLE;
    c.k_new.buf = w->buf[1];
    c.v_new.buf = w->buf[2];
    c.k_cache.buf = w->buf[4];
    c.v_cache.buf = w->buf[5];
    c.k_scale.buf = w->buf[6];
    c.v_scale.buf = w->buf[7];
    c.page_table = host(table, sizeof table);
    c.lens = w->buf[8];
    c.rotary = rotary(0);
    STEP(clattn_append_run(w->ctx, &c));
    STEP(clattn_mem_read(w->ctx, &w->buf[4], k8, sizeof k8));
    STEP(clattn_mem_read(w->ctx, &w->buf[6], scale_k, sizeof scale_k));
    life_check(w, out, scale_k, want_scale, POOL);
    for (int i = 0; i < POOL * DIM; i++) {
        const float off = (float)k8[i] - want_k8[i]; // a tie can fall to either side
        as_float[i] = !w->records && off >= -1 && off <= 1 ? want_k8[i] : (float)k8[i];
    }
    life_check(w, out, as_float, want_k8, POOL * DIM);
}

void life_kv(struct world *w, struct outcome *out)
{
    const struct life_data *d = &life_data;
    static int32_t room[BATCH] = {3, 8};
    STEP(clattn_rotary_tables(POSITIONS, ROTARY, 0, cosines, sines));
    fill_unwritten(o, NUM_Q);
    memset(k8, 0, sizeof k8);
    memset(scale_k, 0, sizeof scale_k);
    const void *const from[] = {o, d->q, d->k, d->v, k8, k8, scale_k, scale_k, room};
    const size_t bytes[] = {sizeof o, sizeof d->q, sizeof d->k, sizeof lse, sizeof k8, sizeof k8,
                            sizeof scale_k, sizeof scale_k, sizeof room};
    for (int i = 0; i < 9; i++)
        life_memory(w, out, i, from[i], bytes[i]);
    merge(w, out);
    turn(w, out);
    append(w, out);
}
