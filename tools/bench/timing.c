// SPDX-License-Identifier: Apache-2.0
#define CLATTN_EXPERIMENTAL
#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"

static const double min_total_ms = 500.0;
// Short runs share a pair of peaks, which take about ten milliseconds each.
static const double min_block_ms = 20.0;

// ---- bytes -------------------------------------------------------------------------------------

// Keys that are loaded for a tile whose last query is i: whole tiles of keys up to its last one.
static double keys_of_tile(const struct tool_problem *p, int64_t i, int64_t tile_k)
{
    const int64_t off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : (int64_t)p->len_kv - p->len_q;
    int64_t keys = p->causal ? i + off + 1 : p->len_kv;

    keys = keys > 0 ? (keys + tile_k - 1) / tile_k * tile_k : 0;
    return (double)(keys < p->len_kv ? keys : p->len_kv);
}

static double mask_bytes(const struct tool_problem *p)
{
    double bytes = p->mask ? 1 : 0;

    for (int i = 0; i < 4; i++)
        bytes *= p->mask_extent[i];
    return bytes;
}

double bench_bytes(const struct tool_problem *p, const clattn_plan_info *info)
{
    if (info->algo != CLATTN_ALGO_FUSED && info->algo != CLATTN_ALGO_HOST &&
        info->algo != CLATTN_ALGO_REFERENCE)
        return (double)p->batch * (double)info->bytes_moved;
    // A row is a query of one of the heads that share a key/value head.
    const int64_t group = p->heads_q / p->heads_kv, rows = group * p->len_q;
    const int64_t tile_q = info->tile_q > 0 ? info->tile_q : 1;
    const int64_t tile_k = info->tile_k > 0 ? info->tile_k : 1;
    const double channels = (double)p->dim_qk + (double)p->dim_v;
    const double heads_kv = (double)p->batch * (double)p->heads_kv;
    double keys = 0, bytes = heads_kv * (double)rows * channels * sizeof(float);

    for (int64_t row = 0; row < rows; row += tile_q) {
        const int64_t last = row + tile_q < rows ? row + tile_q - 1 : rows - 1;
        keys += keys_of_tile(p, last / group, tile_k);
    }
    return bytes + heads_kv * keys * channels * sizeof(float) + mask_bytes(p);
}

// ---- time --------------------------------------------------------------------------------------

// Times of all runs, and what each reached of the peak around it.
struct samples {
    double ms[BENCH_RUNS_MAX], percent[BENCH_RUNS_MAX];
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
    double before = 0, after = 0, whole = 0;

    clattn_status st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32, s, &whole);
    if (st == CLATTN_OK)
        st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32_SHORT, s, &before);
    while (st == CLATTN_OK && wants_more(s, min_runs)) {
        const size_t first = s->count;
        st = time_block(work, min_runs, s);
        if (st == CLATTN_OK)
            st = measure(peak->ctx, CLATTN_MEASURE_FMA_F32_SHORT, s, &after);
        for (size_t i = first; st == CLATTN_OK && i < s->count; i++)
            s->percent[i] = 100.0 * work->gflop / (1e-3 * s->ms[i]) / (0.5 * (before + after));
        before = after;
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
    }
    free(s);
    return st;
}
