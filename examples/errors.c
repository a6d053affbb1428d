// SPDX-License-Identifier: Apache-2.0
// What goes wrong, and how a program learns of it: each call gives a status, and the context's log
// callback receives one line with the field and the value. Nothing is printed by the library, and
// what is refused leaves the output as it was.
#include <clattn/clattn.h>
#include <stdio.h>
#include <string.h>

struct messages {
    char last[256];
    int count;
};

// May be called from any thread that calls clattn; here there is one.
static void take_message(void *user, clattn_log_level level, const char *text)
{
    struct messages *m = user;
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    printf("    [%s] %s\n", names[level], text);
    if (level == CLATTN_LOG_ERROR) {
        snprintf(m->last, sizeof m->last, "%s", text);
        m->count++;
    }
}

// Whether the call failed as expected, with one message that names the field.
static int expect(const struct messages *m, int before, clattn_status got, clattn_status want,
                  const char *field)
{
    const int right = got == want && m->count == before + 1 && strstr(m->last, field);
    printf("  %s: %s\n", clattn_status_string(got), right ? "as expected" : "NOT as expected");
    return right ? 0 : 1;
}

int main(void)
{
    struct messages messages = {.count = 0};
    clattn_context_desc context_desc;
    clattn_context_desc_init(&context_desc, sizeof context_desc);
    context_desc.log = take_message;
    context_desc.log_user = &messages;
    context_desc.log_level = CLATTN_LOG_INFO; // also one line per plan: what runs, and why

    clattn_context *ctx = NULL;
    clattn_plan *plan = NULL;
    if (clattn_context_create(&context_desc, &ctx) != CLATTN_OK)
        return 1;

    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 64;
    desc.heads_q = 8;
    desc.heads_kv = 3;
    int wrong = 0, before = messages.count;
    puts("8 query heads on 3 key heads:");
    wrong += expect(&messages, before, clattn_attention_plan_create(ctx, &desc, &plan),
                    CLATTN_ERR_SHAPE, "heads_kv");

    desc.heads_kv = 2;
    desc.features = CLATTN_FEATURE_CAUSAL;
    puts("8 query heads on 2 key heads:");
    if (clattn_attention_plan_create(ctx, &desc, &plan) != CLATTN_OK)
        return 1;

    // A buffer for 4 queries and a call of 5.
    static float q[8 * 4 * 64], kv[2 * 5 * 64], o[8 * 5 * 64];
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = 5;
    call.q.buf = clattn_host_buf(q, sizeof q);
    call.k.buf = clattn_host_buf(kv, sizeof kv);
    call.v.buf = clattn_host_buf(kv, sizeof kv);
    call.o.buf = clattn_host_buf(o, sizeof o);
    o[0] = 42;
    before = messages.count;
    puts("a tensor that is too short:");
    wrong += expect(&messages, before, clattn_attention_run(plan, &call),
                    CLATTN_ERR_BUFFER_TOO_SMALL, "q");
    if (o[0] != 42) {
        puts("  the output was touched");
        wrong++;
    }

    // Why a plan runs what it runs, and why not something better.
    clattn_plan_info info = {.struct_size = sizeof info};
    if (clattn_plan_get_info(plan, &info) == CLATTN_OK) {
        printf("this plan runs %s %s: %s\n", info.algo_name, info.kernel_name, info.reason);
        for (int32_t n = 0; n < info.num_refusals; n++)
            printf("  not %s\n", clattn_plan_get_refusal(plan, n));
    }
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    return wrong;
}
