// SPDX-License-Identifier: Apache-2.0
// A decoding loop: two sequences grow token by token in a paged cache of keys and values that stays
// on the device. The result of every step is compared with one causal pass over all tokens.
#include <clattn/clattn.h>
#include <string.h>

#include "example.h"

enum {
    BATCH = 2,
    HEADS_Q = 8,
    HEADS_KV = 2,
    DIM = 64,
    STEPS = 40,
    PAGE_SIZE = 16,
    MAX_PAGES = (STEPS + PAGE_SIZE - 1) / PAGE_SIZE,
    NUM_PAGES = BATCH * MAX_PAGES + 1,
    POOL = NUM_PAGES * HEADS_KV * PAGE_SIZE * DIM,
    NUM_Q = BATCH * HEADS_Q * STEPS * DIM,
    NUM_KV = BATCH * HEADS_KV * STEPS * DIM
};

// What a model would compute for all tokens: [batch, token, head, channel].
static float *all_q, *all_k, *all_v;

// The tensor of one token of each sequence, in host memory.
static clattn_tensor token(const float *all, int heads, int t)
{
    return (clattn_tensor){.buf = clattn_host_buf(all + (size_t)t * heads * DIM, 0),
                           .layout = CLATTN_LAYOUT_STRIDED,
                           .stride_batch = (int64_t)STEPS * heads * DIM,
                           .stride_head = DIM,
                           .stride_seq = (int64_t)heads * DIM};
}

static void decode(clattn_context *ctx, float *o)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.features = CLATTN_FEATURE_PAGED | CLATTN_FEATURE_KV_LENS;
    desc.page_size = PAGE_SIZE;
    // With all three bounds the plan is one for decoding: it cuts long keys over the device.
    desc.max_batch = BATCH;
    desc.max_len_q = 1;
    desc.max_len_kv = MAX_PAGES * PAGE_SIZE;
    clattn_plan *plan = NULL;
    TRY(clattn_attention_plan_create(ctx, &desc, &plan));

    // The pool lives on the device. Pages are handed out as sequences grow; here in an order that
    // is no order, as after a while of use.
    clattn_buf k_pool, v_pool;
    TRY(clattn_mem_create(ctx, POOL * sizeof(float), &k_pool));
    TRY(clattn_mem_create(ctx, POOL * sizeof(float), &v_pool));
    int32_t table[BATCH][MAX_PAGES], lens[BATCH] = {0};
    for (int b = 0; b < BATCH; b++)
        for (int page = 0; page < MAX_PAGES; page++)
            table[b][page] = NUM_PAGES - 1 - (page * BATCH + b);

    clattn_append_call append;
    clattn_append_call_init(&append, sizeof append);
    append.batch = BATCH;
    append.heads = HEADS_KV;
    append.len_new = 1;
    append.dim_k = DIM;
    append.page_size = PAGE_SIZE;
    append.num_pages = NUM_PAGES;
    append.max_pages = MAX_PAGES;
    append.k_cache.buf = k_pool;
    append.v_cache.buf = v_pool;
    append.page_table = clattn_host_buf(table, sizeof table);
    append.lens = clattn_host_buf(lens, sizeof lens);

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = 1;
    call.k.buf = k_pool;
    call.v.buf = v_pool;
    call.num_pages = NUM_PAGES;
    call.max_pages = MAX_PAGES;
    call.page_table = clattn_host_buf(table, sizeof table);
    call.kv_lens = clattn_host_buf(lens, sizeof lens);

    for (int t = 0; t < STEPS; t++) {
        append.k_new = token(all_k, HEADS_KV, t);
        append.v_new = token(all_v, HEADS_KV, t);
        TRY(clattn_append_run(ctx, &append));
        for (int b = 0; b < BATCH; b++)
            lens[b]++; // lengths are the application's: clattn does not change them
        call.len_kv = t + 1; // of the longest sequence
        call.q = token(all_q, HEADS_Q, t);
        call.o = token(o, HEADS_Q, t);
        TRY(clattn_attention_run(plan, &call));
    }

    clattn_plan_info info = {.struct_size = sizeof info};
    TRY(clattn_plan_get_info(plan, &info));
    printf("%d steps of %d sequences by %s %s\n", STEPS, BATCH, info.algo_name, info.kernel_name);
    clattn_mem_destroy(ctx, &k_pool);
    clattn_mem_destroy(ctx, &v_pool);
    clattn_plan_destroy(&plan);
}

// All tokens at once: token t sees the tokens up to t.
static void prefill(clattn_context *ctx, float *o)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS_Q;
    desc.heads_kv = HEADS_KV;
    desc.features = CLATTN_FEATURE_CAUSAL;
    clattn_plan *plan = NULL;
    TRY(clattn_attention_plan_create(ctx, &desc, &plan));

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = call.len_kv = STEPS;
    call.q.layout = call.k.layout = call.v.layout = call.o.layout = CLATTN_LAYOUT_BSHD;
    call.q.buf = clattn_host_buf(all_q, NUM_Q * sizeof(float));
    call.k.buf = clattn_host_buf(all_k, NUM_KV * sizeof(float));
    call.v.buf = clattn_host_buf(all_v, NUM_KV * sizeof(float));
    call.o.buf = clattn_host_buf(o, NUM_Q * sizeof(float));
    TRY(clattn_attention_run(plan, &call));
    clattn_plan_destroy(&plan);
}

int main(void)
{
    clattn_context *ctx = NULL;
    TRY(clattn_context_create(NULL, &ctx));
    all_q = random_floats(NUM_Q, 1);
    all_k = random_floats(NUM_KV, 2);
    all_v = random_floats(NUM_KV, 3);
    float *stepwise = random_floats(NUM_Q, 4), *at_once = random_floats(NUM_Q, 5);
    decode(ctx, stepwise);
    prefill(ctx, at_once);
    const int status =
        report("decoding against prefill", largest_difference(stepwise, at_once, NUM_Q));
    free(all_q);
    free(all_k);
    free(all_v);
    free(stepwise);
    free(at_once);
    clattn_context_destroy(&ctx);
    return status;
}
