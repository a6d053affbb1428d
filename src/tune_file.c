// SPDX-License-Identifier: Apache-2.0
// Tuning files: where they are, whom they may belong to, and the public calls.
#include "clattn/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "context.h"
#include "tile_check.h"
#include "tune.h"
#include "util/store.h"

// ---- paths -------------------------------------------------------------------------------------

static const char file_name[] = "tune.txt";

#if defined(_WIN32)
static const char slashes[] = "/\\";
#else
static const char slashes[] = "/";
#endif

struct place {
    char folder[CLA_STORE_PATH];
    char name[256];
};

static bool default_folder(char *path, size_t size)
{
#if defined(_WIN32)
    return cla_store_default_path(path, size);
#else
    const char *base = cla_os_env("XDG_CONFIG_HOME"), *home = cla_os_env("HOME");
    int n = -1;
    if (base && base[0] == '/')
        n = snprintf(path, size, "%s/clattn", base);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.config/clattn", home);
    return n >= 0 && (size_t)n < size;
#endif
}

// NULL = the default file. False where there is none, or the name is too long.
static bool place_of(const char *path, struct place *out)
{
    if (!path || !path[0]) {
        snprintf(out->name, sizeof out->name, "%s", file_name);
        return default_folder(out->folder, sizeof out->folder);
    }
    const char *name = path;
    for (const char *c = path; *c; c++)
        if (strchr(slashes, *c))
            name = c + 1;
    size_t folder = (size_t)(name - path);
    while (folder > 1 && strchr(slashes, path[folder - 1]))
        folder--;
    if (folder >= sizeof out->folder || strlen(name) >= sizeof out->name || !name[0])
        return false;
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->folder, sizeof out->folder, "%.*s", folder ? (int)folder : 1,
             folder ? path : ".");
    return true;
}

clattn_status clattn_tune_path(char *path, size_t size)
{
    struct place at;
    if (!path || !size)
        return CLATTN_ERR_INVALID_ARGUMENT;
    path[0] = '\0';
    if (!place_of(NULL, &at))
        return CLATTN_ERR_FILE;
    const int n = snprintf(path, size, "%s%c%s", at.folder, slashes[sizeof slashes - 2], at.name);
    if (n >= 0 && (size_t)n < size)
        return CLATTN_OK;
    path[0] = '\0';
    return CLATTN_ERR_FILE;
}

// ---- reading -----------------------------------------------------------------------------------

// The end of the file's name, for reasons.
static void set_source(struct cla_tune *tune, const struct place *at)
{
    char whole[CLA_STORE_PATH + 256];
    const int n = snprintf(whole, sizeof whole, "%s/%s", at->folder, at->name);
    const int most = 56, skip = n > most ? n - most : 0;
    snprintf(tune->source, sizeof tune->source, "file %s%s", skip ? "..." : "", whole + skip);
}

// The whole file. CLA_STORE_NONE where there is none; *tune is to be freed in any case.
static enum cla_store_result read_file(const struct place *at, struct cla_tune *tune,
                                       char why[CLA_TUNE_WHY])
{
    void *data = NULL;
    size_t size = 0;
    memset(tune, 0, sizeof *tune);
    enum cla_store_result result =
        cla_store_read(at->folder, at->name, CLA_TUNE_BYTES, &data, &size, why, CLA_TUNE_WHY);
    if (result == CLA_STORE_FAILED && !cla_os_is_folder(at->folder))
        result = CLA_STORE_NONE;
    if (result == CLA_STORE_OK && !cla_tune_parse(data, size, false, tune, why))
        result = CLA_STORE_FAILED;
    free(data);
    return result;
}

// Behind the rows of the file, which come first.
static clattn_status add_builtin(const clattn_context *ctx, struct cla_tune *tune,
                                 const struct cla_tune_device *device)
{
    int left_out = 0;
    if (!cla_tune_add_builtin(tune, device, &left_out))
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for measured tiles");
    if (left_out)
        cla_logf(&ctx->log, CLATTN_LOG_WARN, "%s is full: %d built-in rows do not count",
                 tune->source, left_out);
    return CLATTN_OK;
}

// A problem of those that a row holds for.
static struct cla_problem problem_of(const struct cla_tune_key *k)
{
    return (struct cla_problem){
        .algo = k->algo, .dim_qk = k->dim_qk, .dim_v = k->dim_v, .dtype_q = k->dtype_q,
        .dtype_kv = k->dtype_kv, .dtype_o = k->dtype_o, .paged = k->paged != 0,
        .mask = k->mask_kind == CLA_MASK_GENERAL, .causal = k->mask_kind == CLA_MASK_WINDOW,
        .heads_q = 1, .heads_kv = 1, .group = 1, .max_batch = 1, .max_len_q = k->rows_hi,
        .max_len_kv = k->keys_hi};
}

// Takes out what this device cannot do, so that what stands behind it counts: a built-in row, or
// the planner.
static void drop_refused(const clattn_context *ctx, struct cla_tune *tune)
{
    int kept = 0;
    char why[CLA_TUNE_WHY] = "", first[CLA_TUNE_WHY] = "";
    for (int r = 0; r < tune->rows; r++) {
        const struct cla_tune_row *row = &tune->row[r];
        const struct cla_problem p = problem_of(&row->key);
        struct cla_tile tile;
        if (!row->tile.kernel ||
            cla_tile_check(&p, &ctx->caps, &row->tile, &tile, why, sizeof why))
            tune->row[kept++] = *row;
        else if (!first[0])
            snprintf(first, sizeof first, "%.250s", why);
    }
    if (kept < tune->rows)
        cla_logf(&ctx->log, CLATTN_LOG_WARN,
                 "tuning %s: %d rows for this device name tiles that it cannot have and do not "
                 "count; the first: %s", tune->source, tune->rows - kept, first);
    tune->rows = kept;
}

static void load_file(const clattn_context *ctx, const char *path, struct cla_tune *tune,
                      const struct cla_tune_device *device)
{
    struct place at;
    char why[CLA_TUNE_WHY] = "its name is too long, or ends with a slash";
    int stale = 0;
    enum cla_store_result result = CLA_STORE_NONE;
    if (place_of(path, &at))
        result = read_file(&at, tune, why);
    else if (!path)
        return; // the environment names no folder
    if (result != CLA_STORE_OK) {
        cla_tune_free(tune);
        // A default file that nobody wrote is nothing to speak of.
        if (path)
            cla_logf(&ctx->log, CLATTN_LOG_WARN, "tuning file %s is ignored: %s", path, why);
        else
            cla_logf(&ctx->log, result == CLA_STORE_NONE ? CLATTN_LOG_DEBUG : CLATTN_LOG_WARN,
                     "tuning file %s/%s is ignored: %s", at.folder, at.name, why);
        return;
    }
    set_source(tune, &at);
    cla_tune_select(tune, device, &stale);
    drop_refused(ctx, tune);
    if (stale)
        cla_logf(&ctx->log, CLATTN_LOG_INFO,
                 "%s: %d rows for this device are of another version of its driver or of clattn "
                 "and not believed; clattn-tune measures anew", tune->source, stale);
    cla_logf(&ctx->log, CLATTN_LOG_DEBUG, "%s: %d rows for this device", tune->source, tune->rows);
}

clattn_status cla_context_load_tuning(clattn_context *ctx)
{
    const char *off = cla_os_env("CLATTN_TUNE");
    const char *path = ctx->tune_file && ctx->tune_file[0] ? ctx->tune_file
                                                           : cla_os_env("CLATTN_TUNE_FILE");
    struct cla_tune_device device;
    if (ctx->no_tuning || (off && strcmp(off, "0") == 0))
        return CLATTN_OK;
    ctx->tune = calloc(1, sizeof *ctx->tune);
    if (!ctx->tune)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for measured tiles");
    cla_tune_device_of(&ctx->caps, &device);
    load_file(ctx, path, ctx->tune, &device);
    return add_builtin(ctx, ctx->tune, &device);
}

// ---- public calls ------------------------------------------------------------------------------

// What both calls need: the problem and its key, the file's rows, and the device's name in it.
struct request {
    struct cla_problem p;
    struct place at;
    struct cla_tune tune;
    struct cla_tune_device device;
    struct cla_tune_key key;
};

static clattn_status begin_request(clattn_context *ctx, const clattn_attention_desc *desc,
                                   struct request *r)
{
    memset(r, 0, sizeof *r);
    clattn_status st = cla_problem_from_desc(desc, &ctx->log, &r->p);
    if (st != CLATTN_OK)
        return st;
    if (!ctx->ocl)
        return cla_fail(&ctx->log, CLATTN_ERR_NO_OPENCL, "the built-in CPU path has no tiles");
    if (!cla_algo_has_tiles(r->p.algo))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "algo is %d, which is none with tiles", (int)r->p.algo);
    cla_tune_device_of(&ctx->caps, &r->device);
    cla_tune_key_of(&r->p, r->p.algo, &r->key);
    return CLATTN_OK;
}

// `r->tune` is to be freed in any case.
static clattn_status open_file(clattn_context *ctx, const char *path, struct request *r)
{
    char why[CLA_TUNE_WHY] = "";
    if (!place_of(path, &r->at))
        return cla_fail(&ctx->log, CLATTN_ERR_FILE, "no tuning file: %s",
                        path ? "its name is too long or ends with a slash"
                             : "the environment names no folder for it");
    const enum cla_store_result result = read_file(&r->at, &r->tune, why);
    if (result != CLA_STORE_OK && result != CLA_STORE_NONE)
        return cla_fail(&ctx->log, CLATTN_ERR_FILE, "tuning file %s: %s",
                        path ? path : r->at.name, why);
    return CLATTN_OK;
}

clattn_status clattn_tune_read(clattn_context *ctx, const char *path,
                               const clattn_attention_desc *desc, clattn_tuning *out)
{
    struct request r;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!out)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "out is NULL");
    clattn_status st = begin_request(ctx, desc, &r);
    if (st == CLATTN_OK)
        st = open_file(ctx, path, &r);
    if (st == CLATTN_OK) {
        const struct cla_tune_row *row = cla_tune_find(&r.tune, &r.device, &r.key);
        clattn_tuning known;
        memset(&known, 0, sizeof known);
        if (row) {
            known.measured = 1;
            known.tile = row->tile;
            known.ratio = row->permille / 1000.0;
        }
        st = cla_struct_out("clattn_tuning", out, CLA_SIZE_TO(clattn_tuning, ratio), &known,
                            sizeof known, &ctx->log);
    }
    cla_tune_free(&r.tune);
    return st;
}

// Whether contexts would believe what is to be written.
static clattn_status check_measured(const clattn_context *ctx, const struct cla_problem *p,
                                    double ratio)
{
    struct cla_tile tile;
    char why[CLA_TUNE_WHY];
    if (!(ratio >= 0.001 && ratio <= 1000.0))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT, "ratio is %g, not 0.001 to 1000",
                        ratio);
    if (p->max_len_q == INT32_MAX || p->max_len_kv == INT32_MAX)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "max_len_q or max_len_kv has no bound: both say what was measured");
    if (p->kernel)
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "kernel is %d, not 0: what is written is for plans that leave it open",
                        (int)p->kernel);
    if (p->tile.kernel && !cla_tile_check(p, &ctx->caps, &p->tile, &tile, why, sizeof why))
        return cla_fail(&ctx->log, CLATTN_ERR_UNSUPPORTED, "the tile: %s", why);
    return CLATTN_OK;
}

clattn_status clattn_tune_write(clattn_context *ctx, const char *path,
                                const clattn_attention_desc *desc, double ratio)
{
    struct request r;
    char why[CLA_TUNE_WHY] = "no memory, or too many rows";
    char *text = NULL;
    size_t size = 0;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    clattn_status st = begin_request(ctx, desc, &r);
    if (st == CLATTN_OK)
        st = check_measured(ctx, &r.p, ratio);
    if (st == CLATTN_OK)
        st = open_file(ctx, path, &r);
    if (st == CLATTN_OK) {
        const struct cla_tune_row row = {
            .key = r.key, .tile = r.p.tile,
            .permille = r.p.tile.kernel ? (int32_t)lround(1000.0 * ratio) : 1000};
        if (cla_tune_put(&r.tune, &r.device, &row))
            text = cla_tune_format(&r.tune, &size);
        if (text && size > CLA_TUNE_BYTES) {
            snprintf(why, sizeof why, "over %d bytes", (int)CLA_TUNE_BYTES);
            free(text);
            text = NULL;
        }
        if (!text || !cla_store_open(r.at.folder, why, sizeof why) ||
            !cla_store_write(r.at.folder, r.at.name, text, size, why, sizeof why))
            st = cla_fail(&ctx->log, CLATTN_ERR_FILE, "tuning file %s: %s", r.at.name, why);
        else // what killed writers left goes; how much is there does not matter
            cla_store_trim(r.at.folder, r.at.name, UINT64_MAX);
    }
    free(text);
    cla_tune_free(&r.tune);
    return st;
}
