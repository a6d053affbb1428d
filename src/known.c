// SPDX-License-Identifier: Apache-2.0
// What is so as long as a context lives: a list of names.
#include <stdlib.h>
#include <string.h>

#include "context.h"

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

void cla_known_free(struct cla_known *k)
{
    while (k) {
        struct cla_known *next = k->next;
        free(k);
        k = next;
    }
}
