// SPDX-License-Identifier: Apache-2.0
#include "ocl/program.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl/device.h"
#include "ocl/error.h"
#include "util/os.h"

// One (text, options). Its own mutex is held while it is built, so whoever wants the same program
// waits there and finds it done, and other programs are not held up.
struct entry {
    struct entry *next;
    char *text, *options;
    size_t text_size;
    int users; // callers at work on it; guarded by cla_programs.mutex
    struct cla_mutex *mutex;
    cl_program program; // NULL until built; guarded by `mutex`
    bool from_disk;     // where the program came from; guarded by `mutex`
};

struct cla_programs {
    const struct cla_cl *cl;
    const struct cla_log *log;
    cl_context context;
    cl_device_id device;
    const struct cla_cache *cache; // NULL = programs are not kept on disk
    atomic_uint_least64_t builds, rebuilds;
    struct cla_mutex *mutex; // guards the list and `users`; never held over a driver call
    struct entry *entries;
};

static void entry_destroy(const struct cla_cl *cl, struct entry *e)
{
    if (!e)
        return;
    if (e->program)
        cl->ReleaseProgram(e->program);
    cla_mutex_destroy(e->mutex);
    free(e->text);
    free(e->options);
    free(e);
}

static struct entry *entry_create(const char *text, size_t text_size, const char *options)
{
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    size_t options_size = strlen(options);
    e->text_size = text_size;
    e->text = malloc(text_size + 1);
    e->options = malloc(options_size + 1);
    e->mutex = cla_mutex_create();
    if (!e->text || !e->options || !e->mutex) {
        entry_destroy(NULL, e);
        return NULL;
    }
    memcpy(e->text, text, text_size + 1);
    memcpy(e->options, options, options_size + 1);
    return e;
}

clattn_status cla_programs_create(const struct cla_cl *cl, cl_context context, cl_device_id device,
                                  const struct cla_cache *cache, const struct cla_log *log,
                                  struct cla_programs **out)
{
    *out = NULL;
    struct cla_programs *p = calloc(1, sizeof *p);
    struct cla_mutex *mutex = cla_mutex_create();
    if (!p || !mutex) {
        free(p);
        cla_mutex_destroy(mutex);
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for programs");
    }
    p->cl = cl;
    p->log = log;
    p->context = context;
    p->device = device;
    p->cache = cache;
    p->mutex = mutex;
    atomic_init(&p->builds, 0);
    atomic_init(&p->rebuilds, 0);
    *out = p;
    return CLATTN_OK;
}

void cla_programs_destroy(struct cla_programs **programs)
{
    if (!programs || !*programs)
        return;
    struct cla_programs *p = *programs;
    for (struct entry *e = p->entries, *next; e; e = next) {
        next = e->next;
        entry_destroy(p->cl, e);
    }
    cla_mutex_destroy(p->mutex);
    free(p);
    *programs = NULL;
}

// Finds or makes the entry and counts the caller among its users; NULL if memory ran out.
static struct entry *entry_take(struct cla_programs *p, const char *text, const char *options)
{
    size_t size = strlen(text);
    cla_mutex_lock(p->mutex);
    struct entry *e = p->entries;
    while (e && (strcmp(e->options, options) != 0 || e->text_size != size ||
                 memcmp(e->text, text, size) != 0))
        e = e->next;
    if (!e) {
        e = entry_create(text, size, options);
        if (e) {
            e->next = p->entries;
            p->entries = e;
        }
    }
    if (e)
        e->users++;
    cla_mutex_unlock(p->mutex);
    return e;
}

// Ends the caller's use. An entry that nobody works on and that has no program, since its build
// failed, goes away: the next request tries again.
static void entry_put(struct cla_programs *p, struct entry *e)
{
    cla_mutex_lock(p->mutex);
    bool unused = --e->users == 0 && !e->program;
    if (unused) {
        struct entry **link = &p->entries;
        while (*link != e)
            link = &(*link)->next;
        *link = e->next;
    }
    cla_mutex_unlock(p->mutex);
    if (unused)
        entry_destroy(p->cl, e);
}

// What the compiler said, which the caller frees; "" where it said nothing, NULL if memory ran out.
static char *build_log(const struct cla_programs *p, cl_program program)
{
    const cl_program_build_info fact = CL_PROGRAM_BUILD_LOG;
    size_t size = 0;
    if (p->cl->GetProgramBuildInfo(program, p->device, fact, 0, NULL, &size) != CL_SUCCESS ||
        size > CLA_CL_TEXT_MAX)
        size = 0;
    char *text = calloc(size + 1, 1);
    if (text && size &&
        p->cl->GetProgramBuildInfo(program, p->device, fact, size, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    if (text)
        for (size_t n = strlen(text); n > 0 && strchr(" \t\r\n", text[n - 1]); n--)
            text[n - 1] = '\0';
    return text;
}

static void log_failure(const struct cla_programs *p, clattn_log_level level, const char *name,
                        const char *options, cl_int code, const char *build)
{
    cl_int unknown;
    char *device = cla_cl_text(p->cl, NULL, p->device, CL_DEVICE_NAME, &unknown);
    char *driver = cla_cl_text(p->cl, NULL, p->device, CL_DRIVER_VERSION, &unknown);
    cla_logf(p->log, level, "%s does not compile: %s (%d); device %s, driver %s, options %s\n%s",
             name, cla_cl_error_name(code), (int)code, device ? device : "?", driver ? driver : "?",
             *options ? options : "none", build && *build ? build : "(no build log)");
    free(device);
    free(driver);
}

struct build_result {
    cl_program program; // NULL if it failed
    bool built;         // from the source
    bool from_disk;
    bool created; // the source was accepted: `code` is that of clBuildProgram
    cl_int code;
    double ms;
    char *log; // may be NULL
    clattn_log_level doubt_level;
    char doubt[CLA_CACHE_WHY + 64], unkept[CLA_CACHE_WHY]; // messages about the cache, or ""
};

static struct cla_cache_key key_of(const struct entry *e)
{
    return (struct cla_cache_key){.kind = "program", .options = e->options, .text = e->text};
}

// A program of these bytes, ready to use, or NULL with the code of the call that failed.
static cl_program from_binary(const struct cla_programs *p, const char *options, const void *data,
                              size_t size, cl_int *code)
{
    const unsigned char *bytes = data;
    cl_int status = CL_SUCCESS;
    cl_program program = p->cl->CreateProgramWithBinary(p->context, 1, &p->device, &size, &bytes,
                                                        &status, code);
    if (*code == CL_SUCCESS && (status != CL_SUCCESS || !program))
        *code = status != CL_SUCCESS ? status : CL_OUT_OF_HOST_MEMORY;
    if (*code == CL_SUCCESS)
        *code = p->cl->BuildProgram(program, 1, &p->device, options, NULL, NULL);
    if (*code != CL_SUCCESS && program) {
        p->cl->ReleaseProgram(program);
        program = NULL;
    }
    return program;
}

static void load(struct cla_programs *p, const struct entry *e, struct build_result *r)
{
    void *data = NULL;
    size_t size = 0;
    char why[CLA_CACHE_WHY];
    const struct cla_cache_key key = key_of(e);
    cl_int code = CL_SUCCESS;
    const uint64_t start = cla_os_now_ns();
    r->doubt_level = CLATTN_LOG_WARN;
    switch (cla_cache_get(p->cache, &key, &data, &size, why)) {
    case CLA_CACHE_HIT:
        r->program = from_binary(p, e->options, data, size, &code);
        if (!r->program) {
            snprintf(r->doubt, sizeof r->doubt, "the driver does not take it: %s (%d)",
                     cla_cl_error_name(code), (int)code);
            cla_cache_remove(p->cache, &key);
        }
        break;
    case CLA_CACHE_REFUSED:
        r->doubt_level = CLATTN_LOG_INFO;
        snprintf(r->doubt, sizeof r->doubt, "%s", why);
        break;
    case CLA_CACHE_DAMAGED:
        snprintf(r->doubt, sizeof r->doubt, "%s", why);
        break;
    case CLA_CACHE_MISS:
        break;
    }
    free(data);
    r->from_disk = r->program != NULL;
    r->ms = (double)(cla_os_now_ns() - start) * 1e-6;
}

// The compiled form for this device, which the caller frees; NULL where the driver gives none. A
// program may be for several devices of the context, and then has a binary for each.
static void *binary_of(const struct cla_programs *p, cl_program program, size_t *size)
{
    void *data = NULL;
    cl_uint n = 0;
    if (p->cl->GetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof n, &n, NULL) || n == 0 ||
        n > CLA_CL_COUNT_MAX)
        return NULL;
    cl_device_id *devices = calloc(n, sizeof *devices);
    size_t *sizes = calloc(n, sizeof *sizes);
    unsigned char **binaries = calloc(n, sizeof *binaries); // NULL = not asked for
    if (devices && sizes && binaries &&
        !p->cl->GetProgramInfo(program, CL_PROGRAM_DEVICES, n * sizeof *devices, devices, NULL) &&
        !p->cl->GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, n * sizeof *sizes, sizes, NULL)) {
        cl_uint i = 0;
        while (i < n && devices[i] != p->device)
            i++;
        if (i < n && sizes[i] > 0 && (data = calloc(1, sizes[i])) != NULL) {
            binaries[i] = data;
            *size = sizes[i];
            if (p->cl->GetProgramInfo(program, CL_PROGRAM_BINARIES, n * sizeof *binaries, binaries,
                                      NULL)) {
                free(data);
                data = NULL;
            }
        }
    }
    free(devices);
    free(sizes);
    free(binaries);
    return data;
}

static void keep(struct cla_programs *p, const struct entry *e, struct build_result *r)
{
    size_t size = 0;
    const struct cla_cache_key key = key_of(e);
    if (!p->cache)
        return;
    void *data = binary_of(p, r->program, &size);
    if (data)
        cla_cache_put(p->cache, &key, data, size, r->unkept);
    else
        snprintf(r->unkept, sizeof r->unkept, "the driver gives no binary");
    free(data);
}

static void compile(struct cla_programs *p, const struct entry *e, struct build_result *r)
{
    const char *text = e->text;
    const uint64_t start = cla_os_now_ns();
    r->built = true;
    atomic_fetch_add(&p->builds, 1);
    cl_program program =
        p->cl->CreateProgramWithSource(p->context, 1, &text, &e->text_size, &r->code);
    if (r->code != CL_SUCCESS || !program) {
        r->code = r->code != CL_SUCCESS ? r->code : CL_OUT_OF_HOST_MEMORY;
        return;
    }
    r->created = true;
    r->code = p->cl->BuildProgram(program, 1, &p->device, e->options, NULL, NULL);
    r->ms = (double)(cla_os_now_ns() - start) * 1e-6;
    r->log = build_log(p, program);
    if (r->code == CL_SUCCESS) {
        r->program = program;
        keep(p, e, r);
    } else {
        p->cl->ReleaseProgram(program);
    }
}

// No message is written here: the entry is locked, and the caller's callback might ask for the
// same program.
static void build(struct cla_programs *p, struct entry *e, struct build_result *r)
{
    load(p, e, r);
    if (!r->program)
        compile(p, e, r);
    e->program = r->program;
    e->from_disk = r->from_disk;
}

// Short of memory is not the source's fault; every other code of clBuildProgram is put down to it.
static clattn_status report(const struct cla_programs *p, const char *name, const char *options,
                            clattn_log_level fail_level, const struct build_result *r)
{
    const char *shown = *options ? options : "none";
    if (r->doubt[0] && r->doubt_level < CLATTN_LOG_INFO)
        cla_logf(p->log, r->doubt_level, "%s is built again, not taken from the program cache: %s",
                 name, r->doubt);
    if (r->from_disk)
        cla_logf(p->log, CLATTN_LOG_INFO, "%s taken from the program cache in %.3f s, options %s",
                 name, 1e-3 * r->ms, shown);
    if (!r->built)
        return CLATTN_OK;
    if (!r->created)
        return cla_cl_check(p->log, r->code, "clCreateProgramWithSource");
    if (r->code != CL_SUCCESS) {
        log_failure(p, fail_level, name, options, r->code, r->log);
        return r->code == CL_OUT_OF_HOST_MEMORY ? CLATTN_ERR_OUT_OF_MEMORY : CLATTN_ERR_BUILD;
    }
    const bool doubted = r->doubt[0] && r->doubt_level == CLATTN_LOG_INFO;
    const char *const cache = r->unkept[0] ? ", not kept in the program cache: "
                              : doubted    ? ", not taken from the program cache: "
                                           : "";
    cla_logf(p->log, CLATTN_LOG_INFO, "%s compiled in %.3f s%s%s, options %s", name, 1e-3 * r->ms,
             cache, r->unkept[0] ? r->unkept : doubted ? r->doubt : "", shown);
    if (r->log && *r->log)
        cla_logf(p->log, CLATTN_LOG_DEBUG, "build log of %s:\n%s", name, r->log);
    return CLATTN_OK;
}

// Behind one option; NULL where it is none of ours.
static const char *behind_option(const char *o)
{
    static const char *const words[] = {"-cl-std=CL1.2", "-w"};
    static const char upper[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_", digits[] = "0123456789";
    for (int i = 0; i < 2; i++)
        if (strncmp(o, words[i], strlen(words[i])) == 0)
            return o + strlen(words[i]);
    if (strncmp(o, "-D", 2) != 0 || !strspn(o + 2, upper))
        return NULL;
    o += 2 + strspn(o + 2, upper);
    if (*o != '=')
        return o;
    o += o[1] == '-' ? 2 : 1;
    const size_t n = strspn(o, digits);
    return n && n < 20 ? o + n : NULL;
}

bool cla_programs_takes(const char *options)
{
    for (const char *o = options; *o;) {
        o = behind_option(o);
        if (!o || (*o && *o != ' '))
            return false;
        o += strspn(o, " ");
    }
    return true;
}

// With `again`, a program that came from disk is built from its source, and *out is NULL where it
// did not come from there.
static clattn_status get(struct cla_programs *p, const char *name, const char *text,
                         const char *options, clattn_log_level fail_level, bool again,
                         cl_program *out)
{
    *out = NULL;
    if (!options)
        options = "";
    if (!cla_programs_takes(options))
        return cla_fail(p->log, CLATTN_ERR_INTERNAL, "%s: options that are no numbers: %s", name,
                        options);
    struct entry *e = entry_take(p, text, options);
    if (!e)
        return cla_fail(p->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for program %s", name);

    struct build_result r = {0};
    cl_int retained = CL_SUCCESS;
    cla_mutex_lock(e->mutex);
    if (again && e->program && e->from_disk) {
        const struct cla_cache_key key = key_of(e);
        cla_cache_remove(p->cache, &key);
        atomic_fetch_add(&p->rebuilds, 1); // before the handle can be another program's
        p->cl->ReleaseProgram(e->program);
        e->from_disk = false;
        compile(p, e, &r);
        e->program = r.program;
        again = false;
    } else if (!again && !e->program) {
        build(p, e, &r);
    }
    if (!again && e->program) {
        retained = p->cl->RetainProgram(e->program);
        if (retained == CL_SUCCESS)
            *out = e->program;
    }
    cla_mutex_unlock(e->mutex);
    entry_put(p, e);

    clattn_status st = report(p, name, options, fail_level, &r);
    free(r.log);
    return st == CLATTN_OK ? cla_cl_check(p->log, retained, "clRetainProgram") : st;
}

clattn_status cla_programs_get(struct cla_programs *p, const char *name, const char *text,
                               const char *options, clattn_log_level fail_level, cl_program *out)
{
    return get(p, name, text, options, fail_level, false, out);
}

clattn_status cla_programs_rebuild(struct cla_programs *p, const char *name, const char *text,
                                   const char *options, clattn_log_level fail_level,
                                   cl_program *out)
{
    return get(p, name, text, options, fail_level, true, out);
}

uint64_t cla_programs_build_count(const struct cla_programs *p)
{
    return atomic_load(&p->builds);
}

uint64_t cla_programs_rebuild_count(const struct cla_programs *p)
{
    return atomic_load(&p->rebuilds);
}
