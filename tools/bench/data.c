// SPDX-License-Identifier: Apache-2.0
// Repeatable data of the problems that are timed.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/dtype.h"
#include "lib/random.h"

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 32;
}

// Seven keys of eight are visible.
static void fill_mask(uint8_t *mask, size_t bytes)
{
    uint64_t state = 1;

    for (size_t i = 0; i < bytes; i++)
        mask[i] = next(&state) >> 29 ? 1 : 0;
}

// Slopes as its authors choose them: 2^(-8/heads), its square, ...
static void fill_alibi(const struct tool_problem *p, float *slope)
{
    for (int32_t h = 0; h < p->heads_q; h++)
        slope[h] = (float)exp2(-8.0 * (h + 1) / p->heads_q);
}

// All pages in another order.
static void fill_table(const struct tool_problem *p, int32_t *table)
{
    uint64_t state = 3;

    for (int32_t n = 0; n < p->num_pages; n++) {
        const int32_t other = (int32_t)(next(&state) % (uint64_t)(n + 1));
        table[n] = table[other];
        table[other] = n;
    }
}

static void fill_offsets(const struct tool_problem *p, bool keys, int32_t *cu)
{
    cu[0] = 0;
    for (int32_t b = 0; b < p->batch; b++) {
        const struct bench_sequence s = bench_sequence(p, b);
        cu[b + 1] = cu[b] + (keys ? s.len_kv : s.len_q);
    }
}

// Q, K or V in their types; of int8 *scale receives the scales.
static bool fill_tensor(const struct tool_problem *p, enum tool_tensor which, int dtype, void *out,
                        size_t bytes, float **scale)
{
    const size_t count = bytes / tool_dtype_bytes(dtype);
    const size_t dim = (size_t)(which == TOOL_V ? p->dim_v : p->dim_qk);
    float *x = malloc(count * sizeof *x);
    size_t bad = 0;

    *scale = dtype == CLATTN_DTYPE_I8 ? malloc(count / dim * sizeof **scale) : NULL;
    if (!x || (dtype == CLATTN_DTYPE_I8 && !*scale)) {
        free(x);
        return false;
    }
    tool_random_fill(x, count, (unsigned)which + 1);
    // Normal numbers suit every type.
    if (dtype == CLATTN_DTYPE_I8)
        clattn_quantize_i8(NULL, x, (int64_t)(count / dim), (int64_t)dim, 0, out, *scale);
    else
        tool_from_float(x, dtype, out, count, &bad);
    free(x);
    return true;
}

// One tensor into `out`; *more receives scales that come with it.
static bool fill(const struct tool_problem *p, enum tool_tensor which, void *out, size_t bytes,
                 float **more)
{
    switch (which) {
    case TOOL_Q: return fill_tensor(p, which, p->dtype_q, out, bytes, more);
    case TOOL_K:
    case TOOL_V: return fill_tensor(p, which, p->dtype_kv, out, bytes, more);
    case TOOL_MASK: fill_mask(out, bytes); return true;
    case TOOL_BIAS: tool_random_fill(out, bytes / sizeof(float), 5); return true;
    case TOOL_ALIBI: fill_alibi(p, out); return true;
    case TOOL_SINKS: tool_random_fill(out, bytes / sizeof(float), 6); return true;
    case TOOL_KV_LENS:
        for (int32_t b = 0; b < p->batch; b++)
            ((int32_t *)out)[b] = bench_sequence(p, b).len_kv;
        return true;
    case TOOL_CU_Q: fill_offsets(p, false, out); return true;
    case TOOL_CU_KV: fill_offsets(p, true, out); return true;
    default: fill_table(p, out); return true; // TOOL_TABLE
    }
}

// Pairs that query i of a plane of the mask sees.
static double seen(const struct tool_problem *p, const uint8_t *mask, int64_t plane, int64_t i,
                   int64_t first, int64_t last)
{
    const int32_t *e = p->mask_extent;
    double pairs = 0;

    if (!mask)
        return last >= first ? (double)(last - first + 1) : 0;
    mask += (plane * e[2] + (e[2] > 1 ? i : 0)) * e[3];
    for (int64_t j = first; j <= last; j++)
        pairs += mask[e[3] > 1 ? j : 0] ? 1 : 0;
    return pairs;
}

// Heads of a sequence differ only by the mask.
static double count_pairs(const struct tool_problem *p, const uint8_t *mask)
{
    const int32_t heads = mask && p->mask_extent[1] > 1 ? p->heads_q : 1;
    double pairs = 0;

    for (int32_t b = 0; b < p->batch; b++) {
        const struct bench_sequence s = bench_sequence(p, b);
        const int64_t plane = mask && p->mask_extent[0] > 1 ? (int64_t)b * heads : 0;
        for (int32_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < s.len_q; i++) {
                int64_t first, last;
                bench_range(p, &s, i, &first, &last);
                pairs += seen(p, mask, plane + h, i, first, last);
            }
        }
    }
    return pairs * (p->heads_q / heads);
}

void bench_data_free(struct bench_data *data)
{
    free(data->mask);
    free(data->bias);
    free(data->alibi);
    memset(data, 0, sizeof *data);
}

// What the verification needs stays on the host too.
static bool keep(struct bench_data *data, enum tool_tensor which, void *host)
{
    if (which == TOOL_MASK)
        data->mask = host;
    else if (which == TOOL_BIAS)
        data->bias = host;
    else if (which == TOOL_ALIBI)
        data->alibi = host;
    else
        return false;
    return true;
}

static clattn_status fill_one(struct tool_session *s, const struct tool_problem *p,
                              const struct tool_memory *m, enum tool_tensor which,
                              struct bench_data *data)
{
    void *host = malloc(m->bytes[which]);
    float *more = NULL;
    clattn_status st = host && fill(p, which, host, m->bytes[which], &more)
                           ? tool_memory_write(s, m, which, host)
                           : CLATTN_ERR_OUT_OF_MEMORY;

    if (st == CLATTN_OK && more)
        st = tool_memory_write(s, m, which == TOOL_K ? TOOL_K_SCALE : TOOL_V_SCALE, more);
    free(more);
    if (!keep(data, which, host))
        free(host);
    return st;
}

clattn_status bench_fill(struct tool_session *s, const struct tool_problem *p,
                         const struct tool_memory *m, struct bench_data *data)
{
    clattn_status st = CLATTN_OK;

    memset(data, 0, sizeof *data);
    for (int t = 0; st == CLATTN_OK && t < TOOL_TENSORS; t++) {
        const bool output = t == TOOL_O || t == TOOL_LSE;
        const bool with_another = t == TOOL_K_SCALE || t == TOOL_V_SCALE;
        if (m->bytes[t] && !output && !with_another)
            st = fill_one(s, p, m, (enum tool_tensor)t, data);
    }
    if (st == CLATTN_OK)
        data->pairs = count_pairs(p, data->mask);
    return st;
}
