// SPDX-License-Identifier: Apache-2.0
// Kernels of the operations around attention, made when first asked for.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context_ocl.h"
#include "ocl/launch.h"

// A failure may pass, so that a second attempt is made, and no third one.
enum { ATTEMPTS = 2 };

struct cla_function {
    struct cla_function *next;
    clattn_status status; // why there are no kernels
    int failures;
    struct cla_kernels *kernels;
    size_t items;  // cla_ocl_items_taken(), asked once: calls must not wait for the driver's answer
    char key[256]; // file, function, options
};

void cla_functions_free(struct cla_function *f)
{
    while (f) {
        struct cla_function *next = f->next;
        cla_kernels_destroy(&f->kernels);
        free(f);
        f = next;
    }
}

static struct cla_function *find(const struct cla_ocl *ocl, const char *key)
{
    struct cla_function *f = ocl->functions;
    while (f && strcmp(f->key, key) != 0)
        f = f->next;
    return f;
}

static clattn_status make(clattn_context *ctx, const char *file, const char *function,
                          const char *options, clattn_log_level fail_level,
                          struct cla_function *f)
{
    clattn_status st = CLATTN_OK;
    cl_program program = NULL;
    CLA_TRY(cla_ocl_build(ctx, file, options, fail_level, &program));
    CLA_TRY(cla_kernels_create(ctx->ocl->cl, program, function, &ctx->log, &f->kernels));
    CLA_TRY(cla_ocl_items_taken(ctx, f->kernels, &f->items));
done:
    if (program)
        ctx->ocl->cl->ReleaseProgram(program);
    if (st != CLATTN_OK)
        cla_kernels_destroy(&f->kernels);
    return st;
}

// Of one that is in the list: what it has, or the failure that no attempt will change. The fields
// of an entry with kernels do not change any more.
static bool known(const struct cla_function *f, clattn_status *st, const struct cla_kernels **out,
                  size_t *items)
{
    if (!f || (!f->kernels && f->failures < ATTEMPTS))
        return false;
    *st = f->status;
    *out = f->kernels;
    *items = f->items;
    return true;
}

// Puts what was made into the list, or into the entry of a failure; another thread may have been
// faster.
static struct cla_function *keep(struct cla_ocl *ocl, struct cla_function *made)
{
    struct cla_function *f = find(ocl, made->key);
    if (!f) {
        made->next = ocl->functions;
        ocl->functions = made;
        return NULL;
    }
    if (f->kernels)
        return made;
    f->failures += made->failures;
    f->status = made->status;
    f->kernels = made->kernels;
    f->items = made->items;
    made->kernels = NULL;
    return made;
}

clattn_status cla_ocl_function(clattn_context *ctx, const char *file, const char *function,
                               const char *options, clattn_log_level fail_level,
                               const struct cla_kernels **out, size_t *items, bool *tried)
{
    struct cla_function *made = calloc(1, sizeof *made);
    *tried = false;
    if (!made)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "%s: no memory for a kernel", file);
    snprintf(made->key, sizeof made->key, "%s %s %s", file, function, options);
    clattn_status st = CLATTN_OK;
    cla_mutex_lock(ctx->mutex);
    const bool is_known = known(find(ctx->ocl, made->key), &st, out, items);
    cla_mutex_unlock(ctx->mutex);
    if (is_known && st != CLATTN_OK)
        cla_logf(&ctx->log, fail_level == CLATTN_LOG_ERROR ? CLATTN_LOG_ERROR : CLATTN_LOG_DEBUG,
                 "%s did not compile before", file);
    if (!is_known) {
        *tried = true;
        st = made->status = make(ctx, file, function, options, fail_level, made);
        made->failures = st == CLATTN_ERR_BUILD || st == CLATTN_ERR_FILE;
        cla_mutex_lock(ctx->mutex);
        if (st == CLATTN_OK || made->failures) {
            const char *key = made->key; // stays, in the list or here
            struct cla_function *rest = keep(ctx->ocl, made);
            if (st == CLATTN_OK)
                known(find(ctx->ocl, key), &st, out, items);
            made = rest;
        }
        cla_mutex_unlock(ctx->mutex);
    }
    cla_functions_free(made);
    return st;
}
