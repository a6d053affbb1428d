// SPDX-License-Identifier: Apache-2.0
#include "session.h"

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
const char *const tool_precision_words[] = {"default", "full", NULL};

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
    return st;
}

void tool_session_close(struct tool_session *s)
{
    clattn_context_destroy(&s->ctx);
    tool_log_free(&s->log);
}

clattn_status tool_plan_create(struct tool_session *s, const struct tool_problem *p,
                               clattn_plan **plan)
{
    clattn_attention_desc desc;

    tool_desc_init(p, &desc);
    return clattn_attention_plan_create(s->ctx, &desc, plan);
}

// All bits set is NaN in every type of float.
static clattn_status fill_nan(struct tool_session *s, const struct tool_memory *m,
                              enum tool_tensor which)
{
    if (m->bytes[which] == 0)
        return CLATTN_OK;
    void *data = malloc(m->bytes[which]);
    if (!data)
        return CLATTN_ERR_OUT_OF_MEMORY;
    memset(data, 0xff, m->bytes[which]);
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
    tool_call_fill(p, m->buf, call);
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
