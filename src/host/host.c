// SPDX-License-Identifier: Apache-2.0
// Cuts a call into jobs, gives them to threads, merges what was split. The arithmetic is in
// kernel.c.
#include "host/host.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#define HAVE_FORK 1
#endif

#include "host/kernel.h"

#if defined(__x86_64__) || defined(__i386__)
extern const struct cla_host_kernel cla_host_kernel_avx512;
extern const struct cla_host_kernel cla_host_kernel_avx2;
extern const struct cla_host_kernel cla_host_kernel_generic;
#elif defined(__aarch64__)
extern const struct cla_host_kernel cla_host_kernel_neon;
#else
extern const struct cla_host_kernel cla_host_kernel_generic;
#endif

enum {
    MAX_THREADS = 1024,
    // A split of the keys below this costs more in merging than it wins.
    MIN_SPLIT_KEYS = 512,
    // Floating-point operations from which a second thread pays: waking it costs microseconds.
    MIN_PARALLEL_FLOPS = 1000000
};

const struct cla_host_kernel *const *cla_host_kernels(void)
{
#if defined(__x86_64__) || defined(__i386__)
    static const struct cla_host_kernel *const all[] = {
        &cla_host_kernel_avx512, &cla_host_kernel_avx2, &cla_host_kernel_generic, NULL};
    // The flags that the objects are built with, see meson.build.
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("fma"))
        return all;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return all + 1;
    return all + 2;
#elif defined(__aarch64__)
    static const struct cla_host_kernel *const all[] = {&cla_host_kernel_neon, NULL};
    return all;
#else
    static const struct cla_host_kernel *const all[] = {&cla_host_kernel_generic, NULL};
    return all;
#endif
}

#ifdef _OPENMP
#ifdef HAVE_FORK
// A child that was forked after a parallel region hangs in its first one with libgomp, whose
// threads it does not have. So the process of the first region is noted, and a child of it stays
// with one thread.
static _Atomic long region_pid;

static bool threads_lost(void)
{
    const long pid = atomic_load(&region_pid);
    return pid != 0 && pid != (long)getpid();
}

void cla_host_note_region(void)
{
    long none = 0;
    atomic_compare_exchange_strong(&region_pid, &none, (long)getpid());
}
#else
static bool threads_lost(void)
{
    return false;
}

void cla_host_note_region(void)
{
}
#endif
#endif

#ifndef _OPENMP
void cla_host_note_region(void)
{
}
#endif

int32_t cla_host_threads(int32_t requested)
{
#ifdef _OPENMP
    if (threads_lost())
        return 1;
    const int32_t n = requested > 0 ? requested : omp_get_max_threads();
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
#else
    (void)requested;
    return 1;
#endif
}

const char *cla_host_isa(void)
{
    return cla_host_kernels()[0]->isa;
}

int32_t cla_host_width(void)
{
    return cla_host_kernels()[0]->width;
}

static bool few_rows(const struct cla_host_kernel *kernel, int64_t rows)
{
    return rows <= kernel->few_rows;
}

void cla_host_tile(const struct cla_problem *p, int32_t *width, int32_t *tile_q, int32_t *tile_k)
{
    const struct cla_host_kernel *kernel = cla_host_kernels()[0];
    const int64_t rows = (int64_t)p->max_len_q * p->group;
    *width = kernel->width;
    *tile_q = few_rows(kernel, rows) ? (int32_t)rows : kernel->tile_q;
    *tile_k = kernel->tile_k(p);
}

// How a call is cut: (batch, key head) x tile of rows x split of its keys.
struct cut {
    struct cla_host_fwd f;
    const struct cla_host_kernel *kernel;
    bool few;
    int32_t tile_q;
    int64_t rows; // of a key head
    int64_t tiles, splits, jobs;
    int32_t threads;
    size_t scratch_floats; // of a thread
    size_t part_floats;    // of a split
    float *scratch, *parts;
};

static void cut_call(struct cut *c, int32_t threads)
{
    const struct cla_problem *p = c->f.p;
    const struct cla_call *call = c->f.call;
    c->rows = (int64_t)call->len_q * p->group;
    c->few = few_rows(c->kernel, c->rows);
    c->tile_q = c->few ? (int32_t)c->rows : c->kernel->tile_q;
    c->tiles = (c->rows + c->tile_q - 1) / c->tile_q;
    c->scratch_floats = c->kernel->scratch_floats(p);

    const double flops = 2.0 * call->batch * p->heads_q * call->len_q * (double)call->len_kv *
                         (p->dim_qk + p->dim_v);
    // A forked child has one thread, but must cut as its parent did: same call, same bits.
    const int32_t team = cla_host_threads(threads);
    if (threads < team)
        threads = team;
    if (flops < MIN_PARALLEL_FLOPS)
        threads = 1;
    const int64_t whole = (int64_t)call->batch * p->heads_kv * c->tiles;
    c->splits = 1;
    if (threads > 1 && whole < 2 * (int64_t)threads) {
        const int64_t wanted = (2 * (int64_t)threads + whole - 1) / whole;
        const int64_t most = call->len_kv / MIN_SPLIT_KEYS;
        c->splits = wanted < most ? wanted : most;
        if (c->splits < 1)
            c->splits = 1;
    }
    c->jobs = whole * c->splits;
    c->threads = threads < team ? threads : team;
    if (c->jobs < c->threads)
        c->threads = (int32_t)c->jobs;
    c->part_floats = c->splits > 1 ? (size_t)c->tile_q * ((size_t)p->dim_v + 2) : 0;
}

// The job of tile `tile` of head `head` (a flat (b, g)) over all keys that one of its rows may see.
static struct cla_host_job whole_job(const struct cut *c, int64_t head, int64_t tile)
{
    const struct cla_problem *p = c->f.p;
    struct cla_host_job job = {0};
    job.b = (int32_t)(head / p->heads_kv);
    job.g = (int32_t)(head % p->heads_kv);
    job.row0 = tile * c->tile_q;
    const int64_t left = c->rows - job.row0;
    job.rows = (int32_t)(left < c->tile_q ? left : c->tile_q);
    int32_t unused, last;
    cla_host_window(c->f.call, job.row0 / p->group, &job.key0, &unused);
    cla_host_window(c->f.call, (job.row0 + job.rows - 1) / p->group, &unused, &last);
    job.key1 = last + 1 > job.key0 ? last + 1 : job.key0;
    return job;
}

static void run_job(const struct cut *c, int64_t id, int32_t thread)
{
    const int64_t split = id % c->splits;
    const int64_t at = id / c->splits;
    // Late rows see most keys under a causal mask: heavy tiles first.
    const int64_t tile = c->tiles - 1 - at % c->tiles;
    struct cla_host_job job = whole_job(c, at / c->tiles, tile);
    if (c->splits > 1) {
        const int64_t keys = job.key1 - job.key0;
        const int32_t first = job.key0;
        job.key0 = first + (int32_t)(keys * split / c->splits);
        job.key1 = first + (int32_t)(keys * (split + 1) / c->splits);
        job.part = c->parts + (size_t)id * c->part_floats;
    }
    float *scratch = c->scratch + (size_t)thread * c->scratch_floats;
    if (c->few)
        c->kernel->few(&c->f, &job, scratch);
    else
        c->kernel->tile(&c->f, &job, scratch);
}

static float *row_of_o(const struct cla_host_fwd *f, int32_t b, int32_t head, int64_t i)
{
    const int64_t *stride = f->call->o.stride;
    return (float *)f->mem->o + b * stride[0] + head * stride[1] + i * stride[2];
}

static void store_lse(const struct cla_host_fwd *f, int32_t b, int32_t head, int64_t i, float lse)
{
    if (f->p->lse && f->mem->lse)
        f->mem->lse[((int64_t)b * f->p->heads_q + head) * f->call->len_q + i] = lse;
}

// Row `r` of a job from its splits: O = sum of w_k * O_k, w_k = e^(m_k - m) * l_k / l. A split in
// which the row sees nothing is left out.
static void merge_row(const struct cut *c, const struct cla_host_job *job, const float *parts,
                      int32_t r)
{
    const int32_t dim = c->f.p->dim_v;
    double m = -INFINITY, l = 0.0;
    for (int64_t s = 0; s < c->splits; s++) {
        const float *part = parts + (size_t)s * c->part_floats;
        if (part[job->rows + r] != 0.0f && (double)part[r] > m)
            m = (double)part[r];
    }
    for (int64_t s = 0; s < c->splits; s++) {
        const float *part = parts + (size_t)s * c->part_floats;
        if (part[job->rows + r] != 0.0f)
            l += exp((double)part[r] - m) * (double)part[job->rows + r];
    }
    const int32_t group = c->f.p->group;
    const int64_t i = (job->row0 + r) / group;
    const int32_t head = job->g * group + (int32_t)((job->row0 + r) % group);
    float *o = row_of_o(&c->f, job->b, head, i);
    for (int32_t d = 0; d < dim; d++)
        o[d] = 0.0f;
    for (int64_t s = 0; s < c->splits; s++) {
        const float *part = parts + (size_t)s * c->part_floats;
        if (part[job->rows + r] == 0.0f)
            continue;
        const float w = (float)(exp((double)part[r] - m) * (double)part[job->rows + r] / l);
        const float *row = part + 2 * job->rows + (int64_t)r * dim;
        for (int32_t d = 0; d < dim; d++)
            o[d] += w * row[d];
    }
    store_lse(&c->f, job->b, head, i, l == 0.0 ? -INFINITY : (float)(m + log(l)));
}

static void merge_tile(const struct cut *c, int64_t at)
{
    const struct cla_host_job job = whole_job(c, at / c->tiles, c->tiles - 1 - at % c->tiles);
    const float *parts = c->parts + (size_t)(at * c->splits) * c->part_floats;
    for (int32_t r = 0; r < job.rows; r++)
        merge_row(c, &job, parts, r);
}

static void run_serial(const struct cut *c)
{
    for (int64_t id = 0; id < c->jobs; id++)
        run_job(c, id, 0);
    if (c->splits > 1)
        for (int64_t at = 0; at < c->jobs / c->splits; at++)
            merge_tile(c, at);
}

static void run_threads(const struct cut *c)
{
#ifdef _OPENMP
    cla_host_note_region();
#pragma omp parallel num_threads(c->threads)
    {
        const int32_t thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t id = 0; id < c->jobs; id++)
            run_job(c, id, thread);
        if (c->splits > 1) {
#pragma omp for schedule(static)
            for (int64_t at = 0; at < c->jobs / c->splits; at++)
                merge_tile(c, at);
        }
    }
#else
    run_serial(c);
#endif
}

// Without keys every row is empty.
static void write_empty(const struct cla_host_fwd *f)
{
    for (int32_t b = 0; b < f->call->batch; b++)
        for (int32_t h = 0; h < f->p->heads_q; h++)
            for (int32_t i = 0; i < f->call->len_q; i++) {
                float *o = row_of_o(f, b, h, i);
                for (int32_t d = 0; d < f->p->dim_v; d++)
                    o[d] = 0.0f;
                store_lse(f, b, h, i, -INFINITY);
            }
}

clattn_status cla_host_forward_with(const struct cla_host_kernel *kernel,
                                    const struct cla_problem *p, const struct cla_call *call,
                                    const struct cla_host_mem *mem, int32_t threads)
{
    struct cut c = {.f = {p, call, mem}, .kernel = kernel};
    if (call->batch == 0 || call->len_q == 0)
        return CLATTN_OK;
    if (call->len_kv == 0) {
        write_empty(&c.f);
        return CLATTN_OK;
    }
    cut_call(&c, threads);

    const size_t align = 64;
    const size_t floats = (size_t)c.threads * c.scratch_floats + (size_t)c.jobs * c.part_floats;
    void *memory = malloc(floats * sizeof(float) + align);
    if (!memory)
        return CLATTN_ERR_OUT_OF_MEMORY;
    c.scratch = (float *)(((uintptr_t)memory + align - 1) / align * align);
    c.parts = c.scratch + (size_t)c.threads * c.scratch_floats;
    if (c.threads > 1)
        run_threads(&c);
    else
        run_serial(&c);
    free(memory);
    return CLATTN_OK;
}

clattn_status cla_host_forward(const struct cla_problem *p, const struct cla_call *call,
                               const struct cla_host_mem *mem, int32_t threads)
{
    return cla_host_forward_with(cla_host_kernels()[0], p, call, mem, threads);
}
