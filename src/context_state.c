// SPDX-License-Identifier: Apache-2.0
// What a context has learnt, and whether it can be used at all.
#include "context.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- lost --------------------------------------------------------------------------------------

bool cla_context_lost(const clattn_context *ctx)
{
    return ctx->ocl && (ctx->forks != cla_os_forks() || cla_os_is_ending());
}

// What nobody can destroy any more. It stays in reach, since LeakSanitizer, which runs after the
// handlers of atexit(), could not tell it from a leak.
struct left {
    struct left *next;
    void *what;
};
static _Atomic(struct left *) left_behind;

bool cla_context_leaves(const clattn_context *ctx, void *what)
{
    if (!cla_context_lost(ctx))
        return false;
    // No lock: in a child of fork() a thread that is gone may hold it.
    struct left *l = what ? malloc(sizeof *l) : NULL;
    if (l) {
        l->what = what;
        l->next = atomic_load(&left_behind);
        while (!atomic_compare_exchange_weak(&left_behind, &l->next, l))
            ;
    }
    return true;
}

clattn_status cla_context_check(const clattn_context *ctx)
{
    if (!cla_context_lost(ctx))
        return CLATTN_OK;
    if (ctx->forks == cla_os_forks())
        return cla_fail(&ctx->log, CLATTN_ERR_NO_OPENCL,
                        "this process is at its end, and the driver of the OpenCL context (%s) may "
                        "be gone already",
                        ctx->caps.name);
    return cla_fail(&ctx->log, CLATTN_ERR_NO_OPENCL,
                    "this process was forked from the one that made the OpenCL context (%s), which "
                    "drivers do not outlive: make one of the CPU path (\"cpu\") here",
                    ctx->caps.name);
}

void cla_context_device_text(const clattn_context *ctx, char *text, size_t size)
{
    // Only a device of the list has a number.
    char index[16];
    if (ctx->index >= 0)
        snprintf(index, sizeof index, "%d", (int)ctx->index);
    else
        snprintf(index, sizeof index, "%s", ctx->ocl ? "adopted" : "cpu");
    snprintf(text, size, "[%s] %s: %s", index, ctx->caps.platform, ctx->caps.name);
}

// ---- what is known -----------------------------------------------------------------------------

struct cla_known {
    struct cla_known *next;
    size_t size;
    unsigned char name[];
};

bool cla_context_knows(clattn_context *ctx, const void *name, size_t size)
{
    cla_mutex_lock(ctx->mutex);
    const struct cla_known *k = ctx->known;
    while (k && (k->size != size || memcmp(k->name, name, size) != 0))
        k = k->next;
    cla_mutex_unlock(ctx->mutex);
    return k != NULL;
}

void cla_context_learn(clattn_context *ctx, const void *name, size_t size)
{
    struct cla_known *k = malloc(sizeof *k + size);
    if (!k)
        return;
    k->size = size;
    memcpy(k->name, name, size);
    cla_mutex_lock(ctx->mutex);
    k->next = ctx->known;
    ctx->known = k;
    cla_mutex_unlock(ctx->mutex);
}

void cla_context_forget(clattn_context *ctx)
{
    while (ctx->known) {
        struct cla_known *next = ctx->known->next;
        free(ctx->known);
        ctx->known = next;
    }
}
