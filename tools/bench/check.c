// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/compare.h"
#include "lib/random.h"

static const double tolerance = 1e-5;

// ---- data --------------------------------------------------------------------------------------

// Query i sees keys up to this one, or none below 0.
static int64_t last_key(const struct tool_problem *p, int64_t i)
{
    const int64_t off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : (int64_t)p->len_kv - p->len_q;
    const int64_t last = p->causal ? i + off : p->len_kv - 1;

    return last < p->len_kv ? last : p->len_kv - 1;
}

static double count_pairs(const struct tool_problem *p, const uint8_t *mask)
{
    const int32_t *e = p->mask_extent;
    const int64_t planes = p->mask ? (int64_t)e[0] * e[1] : 1;
    double pairs = 0;

    for (int64_t plane = 0; plane < planes; plane++) {
        for (int64_t i = 0; i < p->len_q; i++) {
            const int64_t keys = last_key(p, i) + 1;
            if (!p->mask) {
                pairs += keys > 0 ? (double)keys : 0;
                continue;
            }
            const uint8_t *row = mask + (plane * e[2] + (e[2] > 1 ? i : 0)) * e[3];
            for (int64_t j = 0; j < keys; j++)
                pairs += row[e[3] > 1 ? j : 0] ? 1 : 0;
        }
    }
    return pairs * (double)p->batch * (double)p->heads_q / (double)planes;
}

// Seven keys of eight are visible.
static void fill_mask(uint8_t *mask, size_t bytes)
{
    uint64_t state = 1;

    for (size_t i = 0; i < bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        mask[i] = state >> 61 ? 1 : 0;
    }
}

clattn_status bench_fill(struct tool_session *s, const struct bench_row *row,
                         const struct tool_memory *m, double *pairs)
{
    static const enum tool_tensor inputs[] = {TOOL_Q, TOOL_K, TOOL_V, TOOL_MASK};
    clattn_status st = CLATTN_OK;

    if (!row->p.mask)
        *pairs = count_pairs(&row->p, NULL);
    for (unsigned i = 0; st == CLATTN_OK && i < 4; i++) {
        const size_t bytes = m->bytes[inputs[i]];
        if (!bytes)
            continue;
        void *data = malloc(bytes);
        if (!data)
            return CLATTN_ERR_OUT_OF_MEMORY;
        if (inputs[i] == TOOL_MASK) {
            fill_mask(data, bytes);
            *pairs = count_pairs(&row->p, data);
        } else {
            tool_random_fill(data, bytes / sizeof(float), i + 1);
        }
        st = tool_memory_write(s, m, inputs[i], data);
        free(data);
    }
    return st;
}

// ---- verification ------------------------------------------------------------------------------

// Some rows of all query heads that share one key/value head.
struct slice {
    int32_t b, g, row, rows;
};

// Element (b, head, row, 0) of a tensor of the problem.
static int64_t element(const struct tool_problem *p, int64_t b, int64_t head, int64_t row,
                       int64_t heads, int64_t len, int64_t dim)
{
    return p->layout == CLATTN_LAYOUT_BSHD ? ((b * len + row) * heads + head) * dim
                                           : ((b * heads + head) * len + row) * dim;
}

static void slice_tensor(const struct tool_problem *p, clattn_tensor *t, int64_t b, int64_t head,
                         int64_t row, int64_t heads, int64_t len, int64_t dim)
{
    const bool bshd = p->layout == CLATTN_LAYOUT_BSHD;

    t->layout = CLATTN_LAYOUT_STRIDED;
    t->stride_seq = bshd ? heads * dim : dim;
    t->stride_head = bshd ? dim : len * dim;
    t->stride_batch = heads * len * dim;
    t->buf.offset_bytes += (size_t)element(p, b, head, row, heads, len, dim) * sizeof(float);
}

static void slice_mask(const struct tool_problem *p, clattn_mask *mask, const struct slice *c,
                       int32_t group)
{
    const int64_t at[4] = {c->b, (int64_t)c->g * group, c->row, 0};
    int64_t stride = 1;

    mask->layout = CLATTN_LAYOUT_STRIDED;
    for (int i = 3; i >= 0; i--) {
        mask->extent[i] = p->mask_extent[i] == 1 ? 1 : 0; // 0 = the call's own
        mask->stride[i] = stride;
        if (p->mask_extent[i] > 1)
            mask->buf.offset_bytes += (size_t)(at[i] * stride);
        stride *= p->mask_extent[i];
    }
}

// The rows of the slice by the double reference: dim_v floats each, heads of the group outside.
static clattn_status reference_rows(struct tool_session *s, const struct tool_problem *p,
                                    const struct tool_memory *m, const struct slice *c, float *want)
{
    const int32_t group = p->heads_q / p->heads_kv;
    struct tool_problem part = *p;
    struct tool_memory part_memory;
    clattn_attention_call call;
    clattn_plan *plan = NULL;

    part.batch = 1;
    part.heads_q = group;
    part.heads_kv = 1;
    part.len_q = c->rows;
    part.layout = CLATTN_LAYOUT_BHSD;
    part.align = CLATTN_ALIGN_BOTTOM_RIGHT;
    part.algo = CLATTN_ALGO_REFERENCE;
    part.kernel = CLATTN_KERNEL_AUTO;
    for (int i = 0; i < 4; i++)
        part.mask_extent[i] = 1; // its memory is not used
    // Bottom-right alignment of fewer queries fits when the keys end with the last one's own.
    part.len_kv = (int32_t)last_key(p, c->row + c->rows - 1) + 1;
    if (part.len_kv < 0)
        part.len_kv = 0;
    memset(&part_memory, 0, sizeof part_memory);
    clattn_status st = tool_plan_create(s, &part, &plan);
    if (st == CLATTN_OK)
        st = tool_memory_create(s, &part, plan, &part_memory);
    tool_call_init(&part, &part_memory, &call);
    call.q.buf = m->buf[TOOL_Q];
    call.k.buf = m->buf[TOOL_K];
    call.v.buf = m->buf[TOOL_V];
    call.mask.buf = m->buf[TOOL_MASK];
    slice_tensor(p, &call.q, c->b, (int64_t)c->g * group, c->row, p->heads_q, p->len_q, p->dim_qk);
    slice_tensor(p, &call.k, c->b, c->g, 0, p->heads_kv, p->len_kv, p->dim_qk);
    slice_tensor(p, &call.v, c->b, c->g, 0, p->heads_kv, p->len_kv, p->dim_v);
    if (p->mask)
        slice_mask(p, &call.mask, c, group);
    if (st == CLATTN_OK)
        st = clattn_attention_run(plan, &call);
    if (st == CLATTN_OK)
        st = tool_memory_read(s, &part_memory, TOOL_O, want);
    tool_memory_destroy(s, &part_memory);
    clattn_plan_destroy(&plan);
    return st;
}

// Compares one slice; returns how many elements are wrong.
static size_t compare_slice(const struct tool_problem *p, const float *o, const struct slice *c,
                            const float *want, double *max_error)
{
    const int32_t group = p->heads_q / p->heads_kv;
    size_t over = 0;

    for (int32_t n = 0; n < group * c->rows; n++) {
        struct tool_compare result;
        const int32_t h = c->g * group + n / c->rows, row = c->row + n % c->rows;
        const float *got = o + element(p, c->b, h, row, p->heads_q, p->len_q, p->dim_v);
        tool_compare(got, want + (size_t)n * (size_t)p->dim_v, (size_t)p->dim_v, tolerance,
                     &result);
        over += result.over;
        *max_error = fmax(*max_error, result.max_error);
    }
    return over;
}

// The n-th of `count` evenly spread places in [0, extent), the first and the last among them.
static int32_t place(int32_t n, int32_t count, int32_t extent)
{
    return count > 1 ? (int32_t)((int64_t)n * (extent - 1) / (count - 1)) : extent / 2;
}

// NaN anywhere is wrong, since the output was filled with it and the data is finite.
static clattn_status verify(struct tool_session *s, const struct tool_problem *p,
                            const struct tool_memory *m, const float *o, double *max_error,
                            size_t *over)
{
    // About a second of the reference at most, but 3 places of 2 heads in any case.
    const double budget = 3e8;
    const int32_t group = p->heads_q / p->heads_kv, heads = p->batch * p->heads_kv;
    const double row_cost = (double)group * (double)p->len_kv * (p->dim_qk + p->dim_v);
    const int32_t head_count = heads < 4 ? heads : 4;
    const double afford = budget / row_cost / head_count;
    struct slice c = {.rows = afford >= 64 ? 8 : afford >= 16 ? 2 : 1};
    clattn_status st = CLATTN_OK;

    // From the top left, rows behind the last key see no further: bottom-right fits one at a time.
    if (p->causal && p->align == CLATTN_ALIGN_TOP_LEFT)
        c.rows = 1;
    c.rows = c.rows < p->len_q ? c.rows : p->len_q;
    const int32_t starts = p->len_q - c.rows + 1;
    const int32_t blocks = starts < 3 ? starts : afford / c.rows >= 8 && starts >= 8 ? 8 : 3;
    float *want = malloc((size_t)group * (size_t)c.rows * (size_t)p->dim_v * sizeof *want);
    if (!want)
        return CLATTN_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < m->bytes[TOOL_O] / sizeof *o; i++)
        *over += isfinite(o[i]) ? 0 : 1;
    for (int32_t h = 0; h < head_count; h++) {
        int32_t head = place(h, head_count, heads);
        c.b = head / p->heads_kv;
        c.g = head % p->heads_kv;
        for (int32_t n = 0; st == CLATTN_OK && n < blocks; n++) {
            c.row = place(n, blocks, starts);
            st = reference_rows(s, p, m, &c, want);
            if (st == CLATTN_OK)
                *over += compare_slice(p, o, &c, want, max_error);
        }
    }
    free(want);
    return st;
}

clattn_status bench_check(struct tool_session *s, const struct tool_problem *p,
                          const clattn_plan *plan, const struct tool_memory *m, double *max_error,
                          size_t *over)
{
    clattn_attention_call call;
    float *o = malloc(m->bytes[TOOL_O]);

    if (!o)
        return CLATTN_ERR_OUT_OF_MEMORY;
    tool_call_init(p, m, &call);
    clattn_status st = clattn_attention_run(plan, &call);
    if (st == CLATTN_OK)
        st = tool_memory_read(s, m, TOOL_O, o);
    if (st == CLATTN_OK)
        st = verify(s, p, m, o, max_error, over);
    free(o);
    return st;
}
