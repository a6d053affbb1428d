// SPDX-License-Identifier: Apache-2.0
#include "ocl/api.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/os.h"

static const char *const usual_names[] = {
#if defined(_WIN32)
    "OpenCL.dll",
#elif defined(__APPLE__)
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
#elif defined(__ANDROID__)
    "libOpenCL.so",
#if defined(__LP64__)
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/libPVROCL.so",
    "/system/vendor/lib64/libPVROCL.so",
#else
    "/vendor/lib/libOpenCL.so",
    "/system/vendor/lib/libOpenCL.so",
    "/system/lib/libOpenCL.so",
    "/vendor/lib/egl/libGLES_mali.so",
    "/system/vendor/lib/egl/libGLES_mali.so",
    "/vendor/lib/libPVROCL.so",
    "/system/vendor/lib/libPVROCL.so",
#endif
#else
    "libOpenCL.so.1",
    "libOpenCL.so",
#endif
};
enum { NUM_USUAL_NAMES = sizeof usual_names / sizeof *usual_names };

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define FUNCTION(name) {"cl" #name, offsetof(struct cla_cl, name)},
    CLA_CL_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { NUM_FUNCTIONS = sizeof functions / sizeof *functions };

_Static_assert(sizeof(void *) == sizeof(((struct cla_cl *)0)->GetPlatformIDs),
               "a symbol's address has the size of a function pointer");

// NULL, or the first function that the library lacks.
static const char *fill(struct cla_cl *cl, void *lib)
{
    for (int i = 0; i < NUM_FUNCTIONS; i++) {
        void *symbol = cla_os_lib_symbol(lib, functions[i].name);
        if (!symbol)
            return functions[i].name;
        memcpy((char *)cl + functions[i].offset, &symbol, sizeof symbol);
    }
    cl->lib = lib;
    return NULL;
}

// Appends "name: why" to the list of what was tried.
static void tried(char *list, size_t size, const char *name, const char *why)
{
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s: %s", used ? "; " : "", name, why);
}

// A library that lacks a function stays open too, since its constructors have run.
static bool try_library(struct cla_cl *cl, const char *name, char *list, size_t size)
{
    char why[512] = "";
    void *lib = cla_os_lib_open(name, why, sizeof why);
    if (lib) {
        const char *missing = fill(cl, lib);
        if (!missing)
            return true;
        snprintf(why, sizeof why, "has no function %s", missing);
    }
    tried(list, size, name ? name : "the program itself", why);
    return false;
}

// Whether this process was forked from one that had opened OpenCL: its drivers have lost their
// threads, and wait for them for ever. 1 + the number of forks where it was first opened.
static atomic_uint opened_in;

static bool lost_by_fork(void)
{
    const unsigned in = atomic_load_explicit(&opened_in, memory_order_relaxed);
    return in != 0 && in != 1 + cla_os_forks();
}

clattn_status cla_cl_open(const char *library, const struct cla_log *log, struct cla_cl **out)
{
    *out = NULL;
    if (cla_os_is_ending()) {
        cla_logf(log, CLATTN_LOG_WARN,
                 "no OpenCL: this process is at its end, and drivers may be gone already");
        return CLATTN_ERR_NO_OPENCL;
    }
    if (lost_by_fork()) {
        cla_logf(log, CLATTN_LOG_WARN,
                 "no OpenCL: this process was forked after OpenCL was opened, which drivers do not "
                 "outlive");
        return CLATTN_ERR_NO_OPENCL;
    }
    if (!cla_os_watch_forks())
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to watch for forks");
    struct cla_cl *cl = calloc(1, sizeof *cl);
    if (!cl)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for the OpenCL functions");

    char list[4096] = "";
    bool found = false;
    if (library) {
        found = try_library(cl, library, list, sizeof list);
    } else {
        // What the program already has comes first: its own loader, and tools such as Oclgrind
        // that put themselves before the loader.
        found = try_library(cl, NULL, list, sizeof list);
        for (int i = 0; i < NUM_USUAL_NAMES && !found; i++)
            found = try_library(cl, usual_names[i], list, sizeof list);
    }
    if (!found) {
        // What the caller named should have been there.
        cla_logf(log, library ? CLATTN_LOG_WARN : CLATTN_LOG_INFO, "no OpenCL library: %s", list);
        free(cl);
        return CLATTN_ERR_NO_OPENCL;
    }
    unsigned none = 0;
    atomic_compare_exchange_strong(&opened_in, &none, 1 + cla_os_forks());
    cla_os_watch_exit(); // the program's own handlers run behind those of the drivers from here on
    char path[512] = "";
    void *function = NULL;
    memcpy(&function, (const void *)&cl->GetPlatformIDs, sizeof function);
    if (cla_os_path_of(function, path, sizeof path))
        cla_logf(log, CLATTN_LOG_INFO, "the OpenCL library is %s", path);
    *out = cl;
    return CLATTN_OK;
}

void cla_cl_close(struct cla_cl **cl)
{
    if (!cl)
        return;
    free(*cl);
    *cl = NULL;
}
