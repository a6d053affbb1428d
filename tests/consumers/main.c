// SPDX-License-Identifier: Apache-2.0
// A program of somebody else: attention on the best device, kernels found beside the library.
#include <clattn/clattn.h>
#include <math.h>
#include <stdio.h>

static void show(void *user, clattn_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "[%d] %s\n", (int)level, message);
}

int main(void)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = show;
    desc.log_level = CLATTN_LOG_DEBUG; // says where a kernel was found
    clattn_context *ctx = NULL;
    clattn_status st = clattn_context_create(&desc, &ctx);
    const float q[3 * 2] = {0}, k[3 * 2] = {0}, v[3 * 2] = {1, 10, 2, 20, 3, 30};
    const float want[3 * 2] = {1, 10, 1.5f, 15, 2, 20};
    float o[3 * 2] = {NAN, NAN, NAN, NAN, NAN, NAN};
    if (st == CLATTN_OK)
        st = clattn_attention_f32(ctx, q, k, v, o, 1, 1, 1, 3, 3, 2, 1);
    clattn_context_destroy(&ctx);
    int wrong = st != CLATTN_OK;
    for (int i = 0; i < 6; i++)
        wrong |= !(fabsf(o[i] - want[i]) < 1e-5f);
    printf("%s, version %d\n", wrong ? "WRONG" : "right", clattn_version());
    return wrong;
}
