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

#include "host/kernel.h"
#include "sequence.h"
#include "util/float_mode.h"
#include "util/os.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

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
    MIN_PARALLEL_FLOPS = 1000000,
    MERGE_CHANNELS = 16 // summed up at once
};

#if defined(__x86_64__) || defined(__i386__)
// Not every compiler's __builtin_cpu_supports() knows this one.
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

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
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c())
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

int32_t cla_host_threads(int32_t requested)
{
#ifdef _OPENMP
    const int32_t n = requested > 0 ? requested : omp_get_max_threads();
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
#else
    (void)requested;
    return 1;
#endif
}

// A child that was forked after a parallel region hangs in its first one with libgomp, whose
// threads it does not have. So the process of the first region is noted, 1 + its number of forks,
// and a child of it stays with one thread.
int32_t cla_host_team(int32_t threads)
{
#ifdef _OPENMP
    static atomic_uint region_in;
    if (threads <= 1)
        return 1;
    unsigned in = atomic_load_explicit(&region_in, memory_order_relaxed);
    if (in == 0 && cla_os_watch_forks())
        atomic_compare_exchange_strong(&region_in, &in, 1 + cla_os_forks());
    return in == 0 || in == 1 + cla_os_forks() ? threads : 1;
#else
    (void)threads;
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
    const struct cla_host_kernel *kernel = cla_host_kernel_of(p);
    const int64_t rows = (int64_t)p->max_len_q * p->group;
    *width = kernel->width;
    *tile_q = few_rows(kernel, rows) ? (int32_t)rows : kernel->tile_q * kernel->tiles(p);
    *tile_k = kernel->tile_k(p);
}

// How a call is cut: (batch, key head) x tile of rows x split of its keys.
struct cut {
    struct cla_host_fwd f;
    const struct cla_host_kernel *kernel;
    bool few;
    int32_t tile_q;
    int64_t rows; // of a key head in the longest sequence
    int64_t tiles, splits, jobs;
    int32_t threads;
    size_t scratch_floats; // of a thread
    size_t part_floats;    // of a split
    float *scratch, *parts;
};

// Rows of a job. Large jobs read keys less often, but each thread should find a few.
static int32_t job_rows(const struct cut *c, int32_t threads)
{
    const struct cla_problem *p = c->f.p;
    if (c->few)
        return (int32_t)c->rows;
    const int64_t tiles = (c->rows + c->kernel->tile_q - 1) / c->kernel->tile_q;
    const int64_t heads = (int64_t)c->f.call->batch * p->heads_kv;
    int64_t n = c->kernel->tiles(p);
    n = n < tiles ? n : tiles;
    while (n > 1 && heads * ((tiles + n - 1) / n) < 4 * (int64_t)threads)
        n--;
    return (int32_t)n * c->kernel->tile_q;
}

static void cut_call(struct cut *c, int32_t threads)
{
    const struct cla_problem *p = c->f.p;
    const struct cla_call *call = c->f.call;
    const double flops = 2.0 * call->batch * p->heads_q * call->len_q * (double)call->len_kv *
                         (p->dim_qk + p->dim_v);
    // By the threads that were asked for, whether there are as many or not, as in a forked child:
    // same call, same bits.
    threads = cla_host_threads(threads);
    if (flops < MIN_PARALLEL_FLOPS)
        threads = 1;
    c->rows = (int64_t)call->len_q * p->group;
    c->few = few_rows(c->kernel, c->rows);
    c->tile_q = job_rows(c, threads);
    c->tiles = (c->rows + c->tile_q - 1) / c->tile_q;
    c->scratch_floats = c->kernel->scratch_floats(p);

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
    c->threads = cla_host_team(c->jobs < threads ? (int32_t)c->jobs : threads);
    c->part_floats = c->splits > 1 ? (size_t)c->tile_q * ((size_t)p->dim_v + 2) : 0;
}

// A sequence of the call, as its jobs see it.
struct sequence {
    struct cla_host_fwd f;
    struct cla_call own; // f.call where sequences differ
    int64_t rows;        // of a key head
};

static void enter_sequence(const struct cut *c, int64_t b, struct sequence *s)
{
    s->f = c->f;
    s->rows = c->rows;
    if (!cla_problem_is_ragged(c->f.p))
        return;
    int32_t unused = 0;
    cla_call_enter(c->f.p, c->f.call, c->f.mem, (int32_t)b, &s->own, &unused);
    s->f.call = &s->own;
    s->rows = (int64_t)s->own.len_q * c->f.p->group;
}

// The job of tile `tile` of head `head` (a flat (b, g)) over all keys that one of its rows may see.
// A short sequence leaves it without rows, or without keys.
static struct cla_host_job whole_job(const struct cut *c, int64_t head, int64_t tile,
                                     struct sequence *s)
{
    const struct cla_problem *p = c->f.p;
    struct cla_host_job job = {0};
    job.b = (int32_t)(head / p->heads_kv);
    job.g = (int32_t)(head % p->heads_kv);
    job.row0 = tile * c->tile_q;
    enter_sequence(c, job.b, s);
    const int64_t left = s->rows - job.row0;
    if (left <= 0)
        return job;
    job.rows = (int32_t)(left < c->tile_q ? left : c->tile_q);
    int32_t unused, last;
    cla_host_window(s->f.call, job.row0 / p->group, &job.key0, &unused);
    cla_host_window(s->f.call, (job.row0 + job.rows - 1) / p->group, &unused, &last);
    job.key1 = last + 1 > job.key0 ? last + 1 : job.key0;
    return job;
}

// Whether a packed sequence is too short to have the tile. Beside a long one most tiles are such.
static bool is_past_end(const struct cut *c, int64_t head, int64_t tile)
{
    const struct cla_problem *p = c->f.p;
    const int32_t *cu = c->f.mem->cu_q + head / p->heads_kv;
    return ((int64_t)cu[1] - cu[0]) * p->group <= tile * c->tile_q;
}

static void run_job(const struct cut *c, int64_t id, int32_t thread)
{
    const int64_t split = id % c->splits;
    const int64_t at = id / c->splits;
    // Late rows see most keys under a causal mask: heavy tiles first.
    const int64_t tile = c->tiles - 1 - at % c->tiles;
    struct sequence s;
    if (c->f.p->packed_q && c->f.mem->sorted_q && is_past_end(c, at / c->tiles, tile))
        return;
    struct cla_host_job job = whole_job(c, at / c->tiles, tile, &s);
    if (job.rows == 0)
        return;
    if (c->splits > 1) {
        const int64_t keys = job.key1 - job.key0;
        const int32_t first = job.key0;
        job.key0 = first + (int32_t)(keys * split / c->splits);
        job.key1 = first + (int32_t)(keys * (split + 1) / c->splits);
        job.part = c->parts + (size_t)id * c->part_floats;
    }
    float *scratch = c->scratch + (size_t)thread * c->scratch_floats;
    if (few_rows(c->kernel, s.rows))
        c->kernel->few(&s.f, &job, scratch);
    else
        c->kernel->tile(&s.f, &job, scratch);
}

// Row `r` of a job from its splits: O = sum of w_k * O_k, w_k = e^(m_k - m) * l_k / l. A split in
// which the row sees nothing is left out. The sink counts here, once.
static void merge_row(const struct cut *c, const struct sequence *s, const struct cla_host_job *job,
                      float *parts, int32_t r)
{
    const struct cla_problem *p = c->f.p;
    const int64_t i = (job->row0 + r) / p->group;
    const int32_t head = job->g * p->group + (int32_t)((job->row0 + r) % p->group);
    const double sink = p->sinks ? (double)c->f.mem->sinks[head] : -INFINITY;
    double m = sink, l = 0.0;
    for (int64_t n = 0; n < c->splits; n++) {
        const float *part = parts + (size_t)n * c->part_floats;
        if (part[job->rows + r] != 0.0f && (double)part[r] > m)
            m = (double)part[r];
    }
    for (int64_t n = 0; n < c->splits; n++) {
        const float *part = parts + (size_t)n * c->part_floats;
        if (part[job->rows + r] != 0.0f)
            l += exp((double)part[r] - m) * (double)part[job->rows + r];
    }
    if (sink != -INFINITY)
        l += exp(sink - m);
    for (int64_t n = 0; n < c->splits; n++) { // a part's weight takes the place of its maximum
        float *part = parts + (size_t)n * c->part_floats;
        if (part[job->rows + r] != 0.0f)
            part[r] = (float)(exp((double)part[r] - m) * (double)part[job->rows + r] / l);
    }
    // The first part's row becomes the sum. In float, equal parts would always round the same way.
    float *o = parts + 2 * job->rows + (int64_t)r * p->dim_v;
    for (int32_t d = 0; d < p->dim_v; d += MERGE_CHANNELS) {
        const int32_t count = p->dim_v - d < MERGE_CHANNELS ? p->dim_v - d : MERGE_CHANNELS;
        double sum[MERGE_CHANNELS];
        bool any = false;
        for (int32_t e = 0; e < count; e++)
            sum[e] = -0.0; // 0 + x would lose the sign of -0
        for (int64_t n = 0; n < c->splits; n++) {
            const float *part = parts + (size_t)n * c->part_floats;
            const float *row = part + 2 * job->rows + (int64_t)r * p->dim_v + d;
            if (part[job->rows + r] == 0.0f)
                continue;
            for (int32_t e = 0; e < count; e++)
                sum[e] += (double)part[r] * (double)row[e];
            any = true;
        }
        for (int32_t e = 0; e < count; e++)
            o[d + e] = any ? (float)sum[e] : 0.0f;
    }
    const int64_t at = cla_query_at(s->f.call, &s->f.call->o, job->b, head, i);
    for (int32_t d = 0; d < p->dim_v; d++) // a sink makes a row NaN that sees no key, too
        cla_store_elem(c->f.mem->o, at + d, p->dtype_o, isnan(l) ? NAN : o[d]);
    if (p->lse && c->f.mem->lse)
        c->f.mem->lse[cla_lse_at(s->f.call, job->b, head, i)] =
            l == 0.0 ? -INFINITY : (float)(m + log(l));
}

static void merge_tile(const struct cut *c, int64_t at)
{
    struct sequence s;
    const struct cla_host_job job = whole_job(c, at / c->tiles, c->tiles - 1 - at % c->tiles, &s);
    float *parts = c->parts + (size_t)(at * c->splits) * c->part_floats;
    for (int32_t r = 0; r < job.rows; r++)
        merge_row(c, &s, &job, parts, r);
}

static void run_serial(const struct cut *c)
{
    const unsigned mode = cla_float_begin();
    for (int64_t id = 0; id < c->jobs; id++)
        run_job(c, id, 0);
    if (c->splits > 1)
        for (int64_t at = 0; at < c->jobs / c->splits; at++)
            merge_tile(c, at);
    cla_float_end(mode);
}

static void run_threads(const struct cut *c)
{
#ifdef _OPENMP
#pragma omp parallel num_threads(c->threads)
    {
        const int32_t thread = omp_get_thread_num();
        const unsigned mode = cla_float_begin();
#pragma omp for schedule(dynamic, 1)
        for (int64_t id = 0; id < c->jobs; id++)
            run_job(c, id, thread);
        if (c->splits > 1) {
#pragma omp for schedule(static)
            for (int64_t at = 0; at < c->jobs / c->splits; at++)
                merge_tile(c, at);
        }
        cla_float_end(mode);
    }
#else
    run_serial(c);
#endif
}

// Says what is wrong with numbers that were on the device when the call was checked.
static void note_faults(const struct cla_host_fwd *f)
{
    if (!f->mem->faults)
        return;
    int32_t faults = cla_call_page_faults(f->p, f->call, f->mem);
    for (int32_t b = 0; cla_problem_is_ragged(f->p) && b < f->call->batch; b++) {
        struct cla_call own;
        cla_call_enter(f->p, f->call, f->mem, b, &own, &faults);
    }
    *f->mem->faults |= faults;
}

clattn_status cla_host_forward_with(const struct cla_host_kernel *kernel,
                                    const struct cla_problem *p, const struct cla_call *call,
                                    const struct cla_host_mem *mem, int32_t threads)
{
    struct cut c = {.f = {p, call, mem}, .kernel = kernel};
    if (call->batch == 0)
        return CLATTN_OK;
    if (call->len_q == 0) {
        note_faults(&c.f);
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
    note_faults(&c.f);
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
    return cla_host_forward_with(cla_host_kernel_of(p), p, call, mem, threads);
}
