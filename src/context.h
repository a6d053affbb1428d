// SPDX-License-Identifier: Apache-2.0
// The inside of a context: device, facts, log, worker, and the OpenCL half where there is one.
#ifndef CLA_CONTEXT_INTERNAL_H
#define CLA_CONTEXT_INTERNAL_H

#include <stdatomic.h>

#include "caps.h"
#include "clattn/attention.h"
#include "problem.h"
#include "util/log.h"
#include "util/os.h"

struct cla_ocl; // context_ocl.h
struct cla_tune; // tune.h

struct clattn_context {
    struct cla_log log;
    struct cla_caps caps;
    int32_t index;       // as in a selector, -1 where adopted
    int32_t rank;        // 0 = the device that would be chosen
    int32_t threads;     // of the CPU path
    char *kernel_dir;    // NULL = none
    bool embedded_kernels; // and no others
    char *cache_dir;     // NULL = the default
    size_t cache_max_bytes; // 0 = the default
    bool no_cache;
    char *tune_file;     // NULL = the default
    bool no_tuning;
    struct cla_tune *tune; // measured tiles of this device; NULL = none
    struct cla_ocl *ocl; // NULL for the built-in CPU path
    struct cla_mutex *map_mutex; // held while the CPU path works on mapped buffers
    struct cla_mutex *mutex;     // guards what follows
    struct cla_worker *worker; // CPU path on cl_mem; made when first needed
    int32_t jobs;              // asynchronous jobs of the CPU path that have not ended
    struct cla_known *known;   // of cla_context_learn()
    // Not guarded: a child may be forked while another thread holds the mutex, which nobody then
    // gives back, so the CPU path takes none.
    _Atomic(struct clattn_plan *) kept; // plan of the last clattn_attention_f32()
    unsigned forks; // cla_os_forks() where the context was made
};

// Whether this process is a child of the one that made the context, or at its end, and the context
// is of OpenCL: drivers do not outlive a fork, and are gone before older handlers of exit() run, so
// nothing of theirs may be touched, not even to release it.
bool cla_context_lost(const clattn_context *ctx);

// The same, and keeps `what` (may be NULL) in reach to the end where the context is lost.
bool cla_context_leaves(const clattn_context *ctx, void *what);

// CLATTN_OK; for a lost context CLATTN_ERR_NO_OPENCL, with the reason in the log.
clattn_status cla_context_check(const clattn_context *ctx);

// "[0] platform: name", with "cpu" for the number where there is none.
void cla_context_device_text(const clattn_context *ctx, char *text, size_t size);

// The context's worker, started on first use; NULL if memory ran out.
struct cla_worker *cla_context_worker(clattn_context *ctx);

// An asynchronous job of the CPU path; destroying the context waits until all have ended.
void cla_context_job_began(clattn_context *ctx);
void cla_context_job_ended(clattn_context *ctx);

// What is so as long as the context lives, named by bytes. Learning it fails silently where memory
// runs out.
bool cla_context_knows(clattn_context *ctx, const void *name, size_t size);
void cla_context_learn(clattn_context *ctx, const void *name, size_t size);
void cla_context_forget(clattn_context *ctx); // all of it

// For cla_call_check(); NULL where the context has no OpenCL.
cla_mem_fn cla_context_mem_facts(const clattn_context *ctx);

// ---- the OpenCL half; in a build without OpenCL these say that there is none -------------------

// Facts of every OpenCL device, in the order of platforms. CLATTN_OK with *count = 0 where there
// is no OpenCL or no device. The caller frees *caps.
clattn_status cla_ocl_enumerate(const char *library, const struct cla_log *log,
                                struct cla_caps **caps, int32_t *count);

// Opens the index-th device of cla_ocl_enumerate() and fills ctx->ocl and ctx->caps.
clattn_status cla_ocl_open(clattn_context *ctx, const char *library, int32_t index);

// A kernel with a barrier, 64-bit arithmetic and the argument block, whose answer is checked.
clattn_status cla_ocl_self_test(clattn_context *ctx);

// Fills ctx->tune. What is wrong with a file is logged, and no failure.
clattn_status cla_context_load_tuning(clattn_context *ctx);

// NULL-safe.
void cla_ocl_close(struct cla_ocl **ocl);

uint64_t cla_ocl_build_count(const struct cla_ocl *ocl);
clattn_status cla_ocl_mem_facts(void *ctx, void *mem, struct cla_mem_facts *facts);
clattn_status cla_ocl_mem_create(clattn_context *ctx, size_t bytes, void **mem);
void cla_ocl_mem_destroy(clattn_context *ctx, void *mem);
clattn_status cla_ocl_mem_write(clattn_context *ctx, void *mem, size_t offset, const void *src,
                                size_t bytes);
clattn_status cla_ocl_mem_read(clattn_context *ctx, void *mem, size_t offset, void *dst,
                               size_t bytes);
clattn_status cla_ocl_measure(clattn_context *ctx, int32_t what, size_t bytes, double *value);

// Shared by context.c and context_ocl.c: a context with its log, threads and folder, no device.
clattn_status cla_context_alloc(const clattn_context_desc *desc, clattn_context **out);

// Reads and checks the caller's description; NULL gives the defaults. Ceilings that it leaves open
// are taken from the environment.
clattn_status cla_context_desc_in(const clattn_context_desc *desc, clattn_context_desc *out,
                                  struct cla_log *log);

// Lowers the facts of an OpenCL device to the ceilings of the description.
void cla_context_lower(const clattn_context_desc *desc, struct cla_caps *caps);

#endif // CLA_CONTEXT_INTERNAL_H
