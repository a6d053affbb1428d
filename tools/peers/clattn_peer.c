// SPDX-License-Identifier: Apache-2.0
// clattn behind functions of plain arguments, for the comparison with peers. Built as a shared
// library against the public headers; buffers live on the device, and a run waits for its result.
#define CLATTN_EXPERIMENTAL
#include <clattn/clattn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 2048 };

typedef struct {
    clattn_context *ctx;
    clattn_plan *plan;
    clattn_attention_call call;
    clattn_buf q, k, v, o, workspace;
    size_t o_bytes;
    char text[TEXT]; // the last message, facts, or what the plan chose
} peer;

static void keep_message(void *user, clattn_log_level level, const char *message)
{
    (void)level;
    snprintf(((peer *)user)->text, TEXT, "%s", message);
}

/// What was said last: why something failed, or what was asked for.
const char *peer_text(const peer *p)
{
    return p->text;
}

/// Facts of device `index` as lines: type, platform, name, driver, rank. 0 where there is none.
int peer_device(int index, char *text, int room)
{
    clattn_device_info info = {.struct_size = sizeof info};
    if (clattn_device_get_info(NULL, index, &info) != CLATTN_OK)
        return 0;
    snprintf(text, (size_t)room, "%d\n%s\n%s\n%s\n%d", (int)info.type, info.platform, info.name,
             info.driver, (int)info.rank);
    return 1;
}

/// A context on the device of this selector. Where peer_failed() says so, only peer_text() and
/// peer_close() are of use.
peer *peer_open(const char *device, int threads)
{
    peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = device;
    desc.threads = threads;
    desc.log = keep_message;
    desc.log_user = p;
    clattn_status status = clattn_context_create(&desc, &p->ctx);
    if (status != CLATTN_OK && !p->text[0])
        snprintf(p->text, TEXT, "%s", clattn_status_string(status));
    return p;
}

int peer_failed(const peer *p)
{
    return !p->ctx;
}

/// Frees what peer_prepare() made.
void peer_clear(peer *p)
{
    clattn_plan_destroy(&p->plan);
    clattn_buf *all[] = {&p->q, &p->k, &p->v, &p->o, &p->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        clattn_mem_destroy(p->ctx, all[i]);
}

void peer_close(peer *p)
{
    peer_clear(p);
    clattn_context_destroy(&p->ctx);
    free(p);
}

static clattn_status put(peer *p, clattn_buf *buf, const void *data, size_t bytes)
{
    clattn_status status = clattn_mem_create(p->ctx, bytes, buf);
    return status == CLATTN_OK ? clattn_mem_write(p->ctx, buf, data, bytes) : status;
}

/// Plan, tensors and workspace of one shape: batch, heads, key heads, len_q, len_kv, dim. O is
/// filled with NaN. Returns 0 on success.
int peer_prepare(peer *p, int dtype, int algo, const int *shape, int causal, const void *q,
                 const void *k, const void *v)
{
    p->text[0] = '\0';
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dtype_q = desc.dtype_kv = desc.dtype_o = dtype;
    desc.algo = algo;
    desc.max_batch = shape[0];
    desc.heads_q = shape[1];
    desc.heads_kv = shape[2];
    desc.max_len_q = shape[3];
    desc.max_len_kv = shape[4];
    desc.dim_qk = shape[5];
    desc.features = causal ? CLATTN_FEATURE_CAUSAL : 0;
    clattn_attention_call_init(&p->call, sizeof p->call);
    p->call.batch = shape[0];
    p->call.len_q = shape[3];
    p->call.len_kv = shape[4];

    size_t element = dtype == CLATTN_DTYPE_F32 ? 4 : 2;
    size_t channels = (size_t)shape[0] * (size_t)shape[5] * element;
    size_t kv_bytes = channels * (size_t)shape[2] * (size_t)shape[4];
    p->o_bytes = channels * (size_t)shape[1] * (size_t)shape[3];
    void *nan = malloc(p->o_bytes);
    if (!nan) {
        snprintf(p->text, TEXT, "no memory");
        return 1;
    }
    memset(nan, 0xff, p->o_bytes);

    clattn_status status = clattn_attention_plan_create(p->ctx, &desc, &p->plan);
    if (status == CLATTN_OK)
        status = put(p, &p->q, q, p->o_bytes);
    if (status == CLATTN_OK)
        status = put(p, &p->k, k, kv_bytes);
    if (status == CLATTN_OK)
        status = put(p, &p->v, v, kv_bytes);
    if (status == CLATTN_OK)
        status = put(p, &p->o, nan, p->o_bytes);
    free(nan);
    p->call.q.buf = p->q;
    p->call.k.buf = p->k;
    p->call.v.buf = p->v;
    p->call.o.buf = p->o;
    size_t workspace = 0;
    if (status == CLATTN_OK)
        status = clattn_plan_workspace_bytes(p->plan, &p->call, &workspace);
    if (status == CLATTN_OK && workspace)
        status = clattn_mem_create(p->ctx, workspace, &p->workspace);
    p->call.workspace = p->workspace;
    clattn_plan_info info = {.struct_size = sizeof info};
    if (status == CLATTN_OK && clattn_plan_get_info(p->plan, &info) == CLATTN_OK)
        snprintf(p->text, TEXT, "%s%s%s%s", info.algo_name, info.kernel_name[0] ? " " : "",
                 info.kernel_name, info.is_fallback ? " (fallback)" : "");
    if (status != CLATTN_OK && !p->text[0])
        snprintf(p->text, TEXT, "%s", clattn_status_string(status));
    return status != CLATTN_OK;
}

/// One forward pass, from the call to the result in device memory. Returns 0 on success.
int peer_run(peer *p)
{
    clattn_status status = clattn_attention_run(p->plan, &p->call);
    if (status != CLATTN_OK && !p->text[0])
        snprintf(p->text, TEXT, "%s", clattn_status_string(status));
    return status != CLATTN_OK;
}

int peer_read(peer *p, void *o)
{
    return clattn_mem_read(p->ctx, &p->o, o, p->o_bytes) != CLATTN_OK;
}

/// GFLOP/s of multiply-adds (bytes 0), briefly where `brief`, or GB/s of reading so many bytes.
double peer_measure(peer *p, size_t bytes, int brief)
{
    double value = 0;
    clattn_measure what = bytes   ? CLATTN_MEASURE_READ
                          : brief ? CLATTN_MEASURE_FMA_F32_SHORT
                                  : CLATTN_MEASURE_FMA_F32;
    return clattn_context_measure(p->ctx, what, bytes, &value) == CLATTN_OK ? value : 0;
}
