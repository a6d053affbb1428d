// SPDX-License-Identifier: Apache-2.0
// A handler of atexit() that is older than the drivers, as destructors of a C++ program's globals
// are: it uses and destroys what main() left, and makes anew what is gone. Nothing crashes, nothing
// hangs, and the CPU path works on.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clattn/clattn.h"

enum { HEADS = 2, LEN = 40, DIM = 32 };

static clattn_context *ctx;
static clattn_plan *plan;
static clattn_buf memory;
static float q[HEADS * LEN * DIM], expected[HEADS * LEN * DIM], o[HEADS * LEN * DIM];
static clattn_status usual; // of calls in the handler
static pid_t process;

static clattn_status run(float *out)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(q, 0);
    call.o.buf = clattn_host_buf(out, 0);
    return clattn_attention_run(plan, &call);
}

static void expect(clattn_status got, clattn_status wanted, const char *what)
{
    if (got == wanted)
        return;
    printf("%s: status %d, not %d\n", what, (int)got, (int)wanted);
    fflush(stdout);
    _exit(1);
}

static void at_exit(void)
{
    if (!plan || getpid() != process)
        return;
    expect(run(o), usual, "a plan of main()");
    expect(clattn_mem_write(ctx, &memory, q, sizeof q), usual, "its memory");
    clattn_mem_destroy(ctx, &memory);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);

    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    expect(clattn_context_create(&desc, &ctx), CLATTN_OK, "a new context");
    memset(o, 0, sizeof o);
    expect(clattn_attention_f32(ctx, q, q, q, o, 1, HEADS, HEADS, LEN, LEN, DIM, 0), CLATTN_OK,
           "a call in it");
    for (int i = 0; i < HEADS * LEN * DIM; i++)
        if (!(o[i] - expected[i] < 1e-5f && o[i] - expected[i] > -1e-5f))
            expect(CLATTN_ERR_INTERNAL, CLATTN_OK, "its numbers");
    clattn_context_destroy(&ctx);
}

int main(int argc, char **argv)
{
    const bool opencl = argc > 1 && strcmp(argv[1], "opencl") == 0;
    process = getpid();
    atexit(at_exit); // before any driver is there
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    int32_t count = 0;
    desc.device = opencl ? "0" : "cpu";
    if (opencl && (clattn_device_count(&desc, &count) != CLATTN_OK || count < 2))
        return 77; // no OpenCL device
    usual = opencl ? CLATTN_ERR_NO_OPENCL : CLATTN_OK;
    for (int i = 0; i < HEADS * LEN * DIM; i++)
        q[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    clattn_attention_desc what;
    clattn_attention_desc_init(&what, sizeof what);
    what.dim_qk = DIM;
    what.heads_q = HEADS;
    expect(clattn_context_create(&desc, &ctx), CLATTN_OK, "a context");
    expect(clattn_attention_plan_create(ctx, &what, &plan), CLATTN_OK, "a plan");
    expect(clattn_mem_create(ctx, sizeof q, &memory), CLATTN_OK, "memory");
    expect(run(expected), CLATTN_OK, "a call");
    return 0;
}
