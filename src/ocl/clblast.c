// SPDX-License-Identifier: Apache-2.0
#include "ocl/clblast.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl/error.h"
#include "util/os.h"

static const char *const usual_names[] = {
#if defined(_WIN32)
    "clblast.dll",
#elif defined(__APPLE__)
    // By their paths: a bare name would be looked for in the current folder, too.
    "/opt/homebrew/lib/libclblast.dylib",
    "/usr/local/lib/libclblast.dylib",
    "/opt/local/lib/libclblast.dylib",
#else
    "libclblast.so.1",
    "libclblast.so",
#endif
    NULL,
};

// Its enums are plain ints in C.
enum { ROW_MAJOR = 101, TRANSPOSE_NO = 111, TRANSPOSE_YES = 112 };

typedef int (*sgemm_fn)(int layout, int transpose_a, int transpose_b, size_t m, size_t n, size_t k,
                        float alpha, cl_mem a, size_t a_offset, size_t a_ld, size_t a_stride,
                        cl_mem b, size_t b_offset, size_t b_ld, size_t b_stride, float beta,
                        cl_mem c, size_t c_offset, size_t c_ld, size_t c_stride, size_t count,
                        cl_command_queue *queue, cl_event *event);

struct cla_clblast {
    void *lib;
    sgemm_fn sgemm;
    // Its caches of compiled programs belong to the whole process, and versions differ in how well
    // they stand several threads.
    struct cla_mutex *mutex;
};

static const char sgemm_name[] = "CLBlastSgemmStridedBatched";

static bool try_library(struct cla_clblast *blast, const char *name, char *why, size_t why_size)
{
    char error[256] = "";
    void *lib = cla_os_lib_open(name, error, sizeof error);
    void *symbol = lib ? cla_os_lib_symbol(lib, sgemm_name) : NULL;
    if (symbol) {
        blast->lib = lib;
        memcpy(&blast->sgemm, &symbol, sizeof symbol);
        return true;
    }
    if (lib) // it stays open, since its constructors have run
        snprintf(error, sizeof error, "has no function %s", sgemm_name);
    const size_t used = strlen(why);
    snprintf(why + used, why_size - used, "%s%s (%s)", used ? ", " : "CLBlast not found: tried ",
             name, error);
    return false;
}

struct cla_clblast *cla_clblast_open(const char *const *names, char *why, size_t why_size)
{
    bool found = false;
    why[0] = '\0';
    struct cla_clblast *blast = calloc(1, sizeof *blast);
    if (blast)
        blast->mutex = cla_mutex_create();
    if (!blast || !blast->mutex) {
        free(blast);
        snprintf(why, why_size, "no memory to open CLBlast");
        return NULL;
    }
    for (int i = 0; names[i] && !found; i++)
        found = try_library(blast, names[i], why, why_size);
    if (!found)
        cla_clblast_close(&blast);
    return blast;
}

void cla_clblast_close(struct cla_clblast **blast)
{
    if (!*blast)
        return;
    cla_mutex_destroy((*blast)->mutex);
    free(*blast);
    *blast = NULL;
}

const struct cla_clblast *cla_clblast_shared(const struct cla_log *log, char *why, size_t why_size)
{
    static _Atomic(struct cla_clblast *) shared;
    struct cla_clblast *blast = atomic_load(&shared);
    if (blast)
        return blast;
    blast = cla_clblast_open(usual_names, why, why_size);
    if (!blast)
        return NULL;
    struct cla_clblast *first = NULL;
    if (!atomic_compare_exchange_strong(&shared, &first, blast)) {
        cla_clblast_close(&blast); // another thread was first
        return first;
    }
    char path[512] = "";
    void *function = NULL;
    memcpy(&function, &blast->sgemm, sizeof function);
    if (cla_os_path_of(function, path, sizeof path))
        cla_logf(log, CLATTN_LOG_INFO, "CLBlast is %s", path);
    return blast;
}

bool cla_clblast_same_loader(const struct cla_clblast *blast, const struct cla_cl *cl, char *why,
                             size_t why_size)
{
    static const char name[] = "clEnqueueNDRangeKernel";
    void *ours = NULL, *theirs = NULL;
    memcpy(&ours, (const void *)&cl->EnqueueNDRangeKernel, sizeof ours);
    // What the program itself has comes first for a library that is opened, then what that one was
    // linked to.
    void *program = cla_os_lib_open(NULL, NULL, 0);
    if (program) {
        theirs = cla_os_lib_symbol(program, name);
        cla_os_lib_close(program);
    }
    if (!theirs)
        theirs = cla_os_lib_symbol(blast->lib, name);
#if defined(_WIN32)
    // There a library does not show what it was linked to; loaders of one name are one.
    if (!theirs)
        return true;
#endif
    if (theirs == ours)
        return true;
    char our_path[256] = "?", their_path[256] = "?";
    cla_os_path_of(ours, our_path, sizeof our_path);
    if (theirs)
        cla_os_path_of(theirs, their_path, sizeof their_path);
    snprintf(why, why_size, "CLBlast calls the OpenCL library %s, this context is of %s",
             their_path, our_path);
    return false;
}

bool cla_clblast_takes(const struct cla_matrices *m, size_t rows, size_t columns)
{
    return m->ld > columns || (m->offset == 0 && m->stride == rows * columns);
}

clattn_status cla_clblast_gemm(const struct cla_clblast *blast, const struct cla_log *log,
                               const struct cla_gemm *g, cl_command_queue queue)
{
    cla_mutex_lock(blast->mutex);
    const int code = blast->sgemm(
        ROW_MAJOR, TRANSPOSE_NO, g->transpose_b ? TRANSPOSE_YES : TRANSPOSE_NO, g->m, g->n, g->k,
        1.0f, g->a.mem, g->a.offset, g->a.ld, g->a.stride, g->b.mem, g->b.offset, g->b.ld,
        g->b.stride, 0.0f, g->c.mem, g->c.offset, g->c.ld, g->c.stride, g->count, &queue, NULL);
    cla_mutex_unlock(blast->mutex);
    if (code == 0)
        return CLATTN_OK;
    // Numbers above -1000 are OpenCL's own.
    const clattn_status st = code > -1000 ? cla_cl_status(code) : CLATTN_ERR_OPENCL;
    return cla_fail(log, st, "%s, %zu products of %zu x %zu x %zu: %s (%d)", sgemm_name, g->count,
                    g->m, g->n, g->k, code > -1000 ? cla_cl_error_name(code) : "CLBlast's own code",
                    code);
}
