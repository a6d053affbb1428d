// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const tool_algo_words[] = {
    "auto",     "fused",          "host",     "reference",
    "two_loop", "fused_kv_outer", "split_kv", "unfused", NULL};
// In the order of enum clattn_softmax_algo; the first one is not for users.
const char *const tool_softmax_words[] = {"", "naive", "safe", "online", NULL};

bool tool_algo_has_shapes(int algo)
{
    return algo != CLATTN_ALGO_HOST && algo != CLATTN_ALGO_REFERENCE && algo != CLATTN_ALGO_UNFUSED;
}
const char *const tool_kernel_words[] = {"auto", "group", "vector", "subgroup", NULL};
const char *const tool_align_words[] = {"bottom-right", "top-left", NULL};
const char *const tool_layout_words[] = {"bhsd", "bshd", NULL};

void tool_session_init(struct tool_session *s)
{
    memset(s, 0, sizeof *s);
    tool_log_init(&s->log);
}

clattn_status tool_session_open(struct tool_session *s, const char *selector, int32_t threads,
                                uint32_t flags)
{
    clattn_context_desc desc;

    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    desc.threads = threads;
    desc.flags = flags;
    desc.opencl_library = s->opencl_library;
    desc.log = tool_log_receive;
    desc.log_user = &s->log;
    desc.log_level = tool_log_level(&s->log);
    clattn_status st = clattn_context_create(&desc, &s->ctx);
    if (st == CLATTN_OK) {
        s->device.struct_size = sizeof s->device;
        st = clattn_context_get_device_info(s->ctx, &s->device);
    }
    // What was wrong with devices that were passed over says nothing about later failures.
    if (st == CLATTN_OK)
        tool_log_clear(&s->log);
    return st;
}

void tool_session_close(struct tool_session *s)
{
    clattn_context_destroy(&s->ctx);
    tool_log_free(&s->log);
}

static bool multiply(size_t a, size_t b, size_t *out)
{
    // Half the range, so that byte counts fit signed types as well.
    if (b && a > SIZE_MAX / 2 / b)
        return false;
    *out = a * b;
    return true;
}

bool tool_tensor_bytes(const struct tool_problem *p, enum tool_tensor which, size_t *bytes)
{
    int32_t e[4] = {p->batch, p->heads_q, p->len_q, 1}; // of LSE
    size_t n = which == TOOL_MASK ? 1 : sizeof(float);

    *bytes = 0;
    if ((which == TOOL_MASK && !p->mask) || (which == TOOL_LSE && !p->lse))
        return true;
    if (which == TOOL_MASK)
        memcpy(e, p->mask_extent, sizeof e);
    if (which == TOOL_K || which == TOOL_V) {
        e[1] = p->heads_kv;
        e[2] = p->len_kv;
    }
    if (which == TOOL_Q || which == TOOL_K)
        e[3] = p->dim_qk;
    if (which == TOOL_V || which == TOOL_O)
        e[3] = p->dim_v;
    for (int i = 0; i < 4; i++) {
        if (e[i] == 0)
            return true;
    }
    for (int i = 0; i < 4; i++) {
        if (!multiply(n, (size_t)e[i], &n))
            return false;
    }
    *bytes = n;
    return true;
}

void tool_tensor_shape(const struct tool_problem *p, enum tool_tensor which, int64_t shape[4])
{
    const bool bshd = p->layout == CLATTN_LAYOUT_BSHD;

    shape[0] = p->batch;
    shape[bshd ? 2 : 1] = p->heads_q;
    shape[bshd ? 1 : 2] = p->len_q;
    shape[3] = which == TOOL_Q ? p->dim_qk : p->dim_v;
}

clattn_status tool_plan_create(struct tool_session *s, const struct tool_problem *p,
                               clattn_plan **plan)
{
    clattn_attention_desc desc;

    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = p->dim_qk;
    desc.dim_v = p->dim_v;
    desc.heads_q = p->heads_q;
    desc.heads_kv = p->heads_kv;
    desc.max_batch = p->batch;
    desc.max_len_q = p->len_q;
    desc.max_len_kv = p->len_kv;
    desc.features = (p->causal ? CLATTN_FEATURE_CAUSAL : 0u) |
                    (p->mask ? CLATTN_FEATURE_MASK : 0u) | (p->lse ? CLATTN_FEATURE_LSE : 0u);
    desc.align = p->align;
    desc.algo = p->algo;
    desc.kernel = p->kernel;
    desc.flags = p->flags;
    desc.num_splits = p->num_splits;
    desc.softmax = p->softmax;
    return clattn_attention_plan_create(s->ctx, &desc, plan);
}

static clattn_status fill_nan(struct tool_session *s, const struct tool_memory *m,
                              enum tool_tensor which)
{
    size_t count = m->bytes[which] / sizeof(float);

    if (count == 0)
        return CLATTN_OK;
    float *data = malloc(m->bytes[which]);
    if (!data)
        return CLATTN_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        data[i] = NAN;
    clattn_status st = tool_memory_write(s, m, which, data);
    free(data);
    return st;
}

clattn_status tool_memory_create(struct tool_session *s, const struct tool_problem *p,
                                 const clattn_plan *plan, struct tool_memory *m)
{
    clattn_status st = CLATTN_OK;
    size_t bytes = 0;

    memset(m, 0, sizeof *m);
    for (int i = 0; st == CLATTN_OK && i < TOOL_TENSORS; i++) {
        if (!tool_tensor_bytes(p, (enum tool_tensor)i, &m->bytes[i]))
            return CLATTN_ERR_OUT_OF_MEMORY;
        if (m->bytes[i])
            st = clattn_mem_create(s->ctx, m->bytes[i], &m->buf[i]);
    }
    // A call without keys or queries has no need of one, and its plan no bound.
    if (st == CLATTN_OK && p->batch && p->len_q && p->len_kv)
        st = clattn_plan_workspace_bytes(plan, NULL, &bytes);
    if (st == CLATTN_OK && bytes)
        st = clattn_mem_create(s->ctx, bytes, &m->workspace);
    if (st == CLATTN_OK)
        st = fill_nan(s, m, TOOL_O);
    if (st == CLATTN_OK)
        st = fill_nan(s, m, TOOL_LSE);
    return st;
}

void tool_memory_destroy(struct tool_session *s, struct tool_memory *m)
{
    for (int i = 0; s->ctx && i < TOOL_TENSORS; i++)
        clattn_mem_destroy(s->ctx, &m->buf[i]);
    if (s->ctx)
        clattn_mem_destroy(s->ctx, &m->workspace);
    memset(m, 0, sizeof *m);
}

clattn_status tool_memory_write(struct tool_session *s, const struct tool_memory *m,
                                enum tool_tensor which, const void *data)
{
    if (m->bytes[which] == 0)
        return CLATTN_OK;
    return clattn_mem_write(s->ctx, &m->buf[which], data, m->bytes[which]);
}

clattn_status tool_memory_read(struct tool_session *s, const struct tool_memory *m,
                               enum tool_tensor which, void *data)
{
    if (m->bytes[which] == 0)
        return CLATTN_OK;
    return clattn_mem_read(s->ctx, &m->buf[which], data, m->bytes[which]);
}

void tool_call_init(const struct tool_problem *p, const struct tool_memory *m,
                    clattn_attention_call *call)
{
    clattn_attention_call_init(call, sizeof *call);
    call->batch = p->batch;
    call->len_q = p->len_q;
    call->len_kv = p->len_kv;
    if (p->has_scale) {
        call->set = CLATTN_SET_SCALE;
        call->scale = p->scale;
    }
    call->q.layout = call->k.layout = call->v.layout = call->o.layout = p->layout;
    call->q.buf = m->buf[TOOL_Q];
    call->k.buf = m->buf[TOOL_K];
    call->v.buf = m->buf[TOOL_V];
    call->o.buf = m->buf[TOOL_O];
    call->mask.buf = m->buf[TOOL_MASK];
    if (p->mask)
        memcpy(call->mask.extent, p->mask_extent, sizeof p->mask_extent);
    call->lse = m->buf[TOOL_LSE];
    call->workspace = m->workspace;
}

static double clock_ms(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

double tool_now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

double tool_cpu_ms(void)
{
    return clock_ms(CLOCK_PROCESS_CPUTIME_ID);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double tool_median(double *times, size_t n)
{
    qsort(times, n, sizeof *times, compare_double);
    return n % 2 ? times[n / 2] : 0.5 * (times[n / 2 - 1] + times[n / 2]);
}

void tool_device_text(const clattn_device_info *info, char *text, size_t size)
{
    char index[16] = "cpu";

    if (info->index >= 0)
        snprintf(index, sizeof index, "%d", (int)info->index);
    snprintf(text, size, "[%s] %s: %s", index, info->platform, info->name);
}

void tool_tile_text(const clattn_plan_info *info, char *text, size_t size)
{
    const struct {
        const char *format;
        long value;
    } parts[] = {
        {", work-group %ld", info->group_size > 1 ? info->group_size : 0},
        {", vector width %ld", info->vector_width},
        {", chunk %ld channels", info->chunk_d},
        {", local memory %ld bytes", (long)info->local_bytes},
        {", keys in %ld parts", info->num_splits > 1 ? info->num_splits : 0},
    };
    if (info->tile_q == 0 && info->tile_k == 0) {
        snprintf(text, size, "none");
        return;
    }
    size_t used = (size_t)snprintf(text, size, "%d rows x %d keys", (int)info->tile_q,
                                   (int)info->tile_k);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && used < size; i++) {
        if (parts[i].value)
            used += (size_t)snprintf(text + used, size - used, parts[i].format, parts[i].value);
    }
}
