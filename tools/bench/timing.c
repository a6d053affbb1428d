// SPDX-License-Identifier: Apache-2.0
#define CLATTN_EXPERIMENTAL
#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "lib/dtype.h"

static const double min_total_ms = 500.0;
// Short runs share a pair of peaks, which take about ten milliseconds each.
static const double min_block_ms = 20.0;

// ---- bytes -------------------------------------------------------------------------------------

// Keys that are loaded for a tile of queries i to k: whole tiles of keys from its first one's first
// to its last one's last.
static double keys_of_tile(const struct tool_problem *p, const struct bench_sequence *s, int64_t i,
                           int64_t k, int64_t tile_k)
{
    int64_t first, last, unused;

    bench_range(p, s, i, &first, &unused);
    bench_range(p, s, k, &unused, &last);
    if (last < first)
        return 0;
    const int64_t begin = first / tile_k * tile_k, end = (last / tile_k + 1) * tile_k;
    return (double)((end < s->len_kv ? end : s->len_kv) - begin);
}

static double pair_bytes(bool used, const int32_t extent[4], size_t size)
{
    double bytes = used ? (double)size : 0;

    for (int i = 0; i < 4; i++)
        bytes *= extent[i];
    return bytes;
}

// Q and O of a query, K and V of a key, each of one head.
static double query_bytes(const struct tool_problem *p)
{
    return (double)p->dim_qk * (double)tool_dtype_bytes(p->dtype_q) +
           (double)p->dim_v * (double)tool_dtype_bytes(p->dtype_o);
}

static double key_bytes(const struct tool_problem *p)
{
    const double scales = p->dtype_kv == CLATTN_DTYPE_I8 ? 2 * sizeof(float) : 0;

    return ((double)p->dim_qk + (double)p->dim_v) * (double)tool_dtype_bytes(p->dtype_kv) + scales;
}

double bench_bytes(const struct tool_problem *p, const clattn_plan_info *info)
{
    if (info->algo != CLATTN_ALGO_FUSED && info->algo != CLATTN_ALGO_HOST &&
        info->algo != CLATTN_ALGO_REFERENCE)
        return (double)p->batch * (double)info->bytes_moved;
    // A row is a query of one of the heads that share a key/value head.
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t tile_q = info->tile_q > 0 ? info->tile_q : 1;
    const int64_t tile_k = info->tile_k > 0 ? info->tile_k : 1;
    double keys = 0, queries = 0;

    for (int32_t b = 0; b < p->batch; b++) {
        const struct bench_sequence s = bench_sequence(p, b);
        const int64_t rows = group * s.len_q;
        queries += (double)rows;
        for (int64_t row = 0; row < rows; row += tile_q) {
            const int64_t last = row + tile_q < rows ? row + tile_q - 1 : rows - 1;
            keys += keys_of_tile(p, &s, row / group, last / group, tile_k);
        }
    }
    return (double)p->heads_kv * (queries * query_bytes(p) + keys * key_bytes(p)) +
           pair_bytes(p->mask, p->mask_extent, 1) +
           pair_bytes(p->bias, p->bias_extent, tool_dtype_bytes(p->dtype_bias));
}

double bench_read_bytes(const struct tool_problem *p)
{
    enum { FEW_ROWS = 8 }; // of a head of keys
    const bool whole = !p->window && !p->mask && !p->kv_lens && !p->packed_q && !p->packed_kv;

    if (!whole || (int64_t)p->len_q * p->heads_q > (int64_t)FEW_ROWS * p->heads_kv)
        return 0;
    return (double)p->batch * p->heads_kv * p->len_kv * key_bytes(p);
}

// ---- time --------------------------------------------------------------------------------------

// Times of all runs, and what each reached of the peak around it.
struct samples {
    double ms[BENCH_RUNS_MAX], percent[BENCH_RUNS_MAX], read_percent[BENCH_RUNS_MAX];
    size_t count;
    double total_ms, cpu_ms, largest_peak;
};

static clattn_status measure(clattn_context *ctx, clattn_measure what, struct samples *s,
                             double *now)
{
    clattn_status st = clattn_context_measure(ctx, what, 0, now);

    s->largest_peak = fmax(s->largest_peak, *now);
    return st;
}

// How fast the bytes of a run go by where nothing else is done with them, GB/s.
static clattn_status measure_read(clattn_context *ctx, const struct bench_work *work, double *now)
{
    return work->read_bytes > 0 ? clattn_context_measure(ctx, CLATTN_MEASURE_READ,
                                                         (size_t)work->read_bytes, now)
                                : CLATTN_OK;
}

static bool wants_more(const struct samples *s, int32_t min_runs)
{
    return s->count < BENCH_RUNS_MAX &&
           (s->count < (size_t)min_runs || s->total_ms < min_total_ms);
}

// Runs of at least min_block_ms between two peaks.
static clattn_status time_block(const struct bench_work *work, int32_t min_runs, struct samples *s)
{
    clattn_status st = CLATTN_OK;
    double block_ms = 0;

    while (st == CLATTN_OK && block_ms < min_block_ms && wants_more(s, min_runs)) {
        const double cpu = tool_cpu_ms(), start = tool_now_ms();
        st = work->run(work->user);
        s->ms[s->count] = tool_now_ms() - start;
        s->cpu_ms += tool_cpu_ms() - cpu;
        block_ms += s->ms[s->count];
        s->total_ms += s->ms[s->count++];
    }
    return st;
}

static clattn_status sample(struct tool_session *peak, const struct bench_work *work,
                            int32_t min_runs, struct samples *s)
{
    double before = 0, after = 0, whole = 0, read_before = 0, read_after = 0;

    clattn_status st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32, s, &whole);
    if (st == CLATTN_OK)
        st = measure_read(peak->ctx, work, &read_before);
    if (st == CLATTN_OK)
        st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32_SHORT, s, &before);
    while (st == CLATTN_OK && wants_more(s, min_runs)) {
        const size_t first = s->count;
        st = time_block(work, min_runs, s);
        if (st == CLATTN_OK)
            st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32_SHORT, s, &after);
        if (st == CLATTN_OK)
            st = measure_read(peak->ctx, work, &read_after);
        for (size_t i = first; st == CLATTN_OK && i < s->count; i++) {
            s->percent[i] = 100.0 * work->gflop / (1e-3 * s->ms[i]) / (0.5 * (before + after));
            if (work->read_bytes > 0)
                s->read_percent[i] = 100.0 * work->read_bytes / (1e6 * s->ms[i]) /
                                     (0.5 * (read_before + read_after));
        }
        before = after;
        read_before = read_after;
    }
    if (st == CLATTN_OK)
        st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32, s, &whole);
    return st;
}

// Of sorted numbers, between the two nearest where the place is between them.
static double quantile(const double *sorted, size_t n, double part)
{
    const double at = part * (double)(n - 1);
    const size_t low = (size_t)at;
    const size_t high = low + 1 < n ? low + 1 : low;

    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

clattn_status bench_time(struct tool_session *peak, const struct bench_work *work, int32_t runs,
                         struct bench_result *r)
{
    struct samples *s = calloc(1, sizeof *s);
    clattn_status st = s ? sample(peak, work, runs, s) : CLATTN_ERR_OUT_OF_MEMORY;

    if (st == CLATTN_OK) {
        r->runs = s->count;
        r->ms = tool_median(s->ms, s->count); // sorts
        r->q1_ms = quantile(s->ms, s->count, 0.25);
        r->q3_ms = quantile(s->ms, s->count, 0.75);
        r->min_ms = s->ms[0];
        r->max_ms = s->ms[s->count - 1];
        r->cpu_ms = s->cpu_ms / (double)s->count;
        r->gflops = r->ms > 0 ? work->gflop / (1e-3 * r->ms) : 0;
        r->peak_gflops = s->largest_peak;
        r->percent_paired = tool_median(s->percent, s->count);
        r->percent_read = tool_median(s->read_percent, s->count);
    }
    free(s);
    return st;
}

// ---- pairs -------------------------------------------------------------------------------------

enum { PAIRS_MAX = 1000 };

struct block {
    double ms, cpu_ms; // of a run
};

static clattn_status time_runs(const struct bench_work *work, int runs, struct block *block)
{
    clattn_status st = CLATTN_OK;
    const double cpu = tool_cpu_ms(), start = tool_now_ms();

    for (int i = 0; st == CLATTN_OK && i < runs; i++)
        st = work->run(work->user);
    block->ms = (tool_now_ms() - start) / runs;
    block->cpu_ms = (tool_cpu_ms() - cpu) / runs;
    return st;
}

// As many runs as take min_block_ms or longer.
static clattn_status runs_of_block(const struct bench_work *work, int *runs)
{
    struct block block;
    clattn_status st = time_runs(work, 1, &block);

    // A second time, since the first run may have compiled or moved memory.
    if (st == CLATTN_OK)
        st = time_runs(work, 1, &block);
    *runs = block.ms < min_block_ms ? (int)fmin(min_block_ms / fmax(block.ms, 1e-3), 1e4) + 1 : 1;
    return st;
}

static void finish_pairs(const struct block *first, const struct block *second, size_t n,
                         struct bench_pair *r)
{
    double ms[2][PAIRS_MAX], speed[2][PAIRS_MAX];

    for (size_t i = 0; i < n; i++) {
        ms[0][i] = 0.5 * (first[i].ms + first[i + 1].ms);
        ms[1][i] = second[i].ms;
        speed[0][i] = ms[0][i] / ms[1][i];
        speed[1][i] = 0.5 * (first[i].cpu_ms + first[i + 1].cpu_ms) / second[i].cpu_ms;
    }
    r->pairs = n;
    for (int k = 0; k < 2; k++)
        r->ms[k] = tool_median(ms[k], n);
    r->speed = tool_median(speed[0], n); // sorts
    r->q1_speed = quantile(speed[0], n, 0.25);
    r->q3_speed = quantile(speed[0], n, 0.75);
    r->cpu_speed = tool_median(speed[1], n);
}

// The first work before and after each block of the second: the mean of both stands against it, so
// that a machine that grows slower or faster at a steady pace makes no difference.
clattn_status bench_time_pair(const struct bench_work work[2], int32_t runs, struct bench_pair *r)
{
    struct block first[PAIRS_MAX + 1], second[PAIRS_MAX];
    int count[2] = {1, 1};
    size_t n = 0;

    clattn_status st = runs_of_block(&work[0], &count[0]);
    if (st == CLATTN_OK)
        st = runs_of_block(&work[1], &count[1]);
    const double start = tool_now_ms();
    if (st == CLATTN_OK)
        st = time_runs(&work[0], count[0], &first[0]);
    while (st == CLATTN_OK && n < PAIRS_MAX &&
           (n < (size_t)runs || tool_now_ms() - start < min_total_ms)) {
        st = time_runs(&work[1], count[1], &second[n]);
        if (st == CLATTN_OK)
            st = time_runs(&work[0], count[0], &first[++n]);
    }
    if (st == CLATTN_OK)
        finish_pairs(first, second, n, r);
    return st;
}
