// SPDX-License-Identifier: Apache-2.0
// Verification: rows from all over the output against the double reference.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/compare.h"
#include "lib/dtype.h"

// Some rows of all query heads that share one key/value head.
struct slice {
    int32_t b, g, row, rows;
    struct bench_sequence seq;
};

struct check {
    struct tool_session *s;
    const struct tool_problem *p;
    const struct tool_memory *m;
    const struct bench_data *data;
    const float *o; // the whole output
};

// Row (b, head, row) of a tensor of the problem, in elements.
static int64_t element(const struct tool_problem *p, int64_t b, int64_t head, int64_t row,
                       int64_t heads, int64_t len, int64_t dim)
{
    return p->layout == CLATTN_LAYOUT_BSHD ? ((b * len + row) * heads + head) * dim
                                           : ((b * heads + head) * len + row) * dim;
}

// Where row `row` of the slice's head begins in Q or O.
static int64_t query_element(const struct tool_problem *p, const struct slice *c, int64_t head,
                             int64_t row, int64_t dim)
{
    const bool packed = p->packed_q;

    return element(p, packed ? 0 : c->b, head, packed ? c->seq.first_q + row : row, p->heads_q,
                   packed ? p->total_q : p->len_q, dim);
}

// A tensor from an element on, with the strides of its `heads` heads of `len` rows.
static void slice_tensor(const struct tool_problem *p, clattn_tensor *t, clattn_buf buf,
                         int64_t first, int64_t heads, int64_t len, int64_t dim, size_t size)
{
    const bool bshd = p->layout == CLATTN_LAYOUT_BSHD;

    t->buf = buf;
    t->layout = CLATTN_LAYOUT_STRIDED;
    t->stride_seq = bshd ? heads * dim : dim;
    t->stride_head = bshd ? dim : len * dim;
    t->stride_batch = heads * len * dim;
    t->buf.offset_bytes += (size_t)first * size;
}

// K, V or their scales; of pages all of the pool, for one head.
static void slice_keys(const struct check *k, const struct slice *c, clattn_tensor *t,
                       enum tool_tensor which, int64_t dim, size_t size)
{
    const struct tool_problem *p = k->p;
    const bool whole = p->packed_kv || p->page_size; // one sequence of tokens, or of pages
    const int64_t len = p->page_size ? p->page_size : p->packed_kv ? p->total_kv : p->len_kv;
    const int64_t first =
        element(p, whole ? 0 : c->b, c->g, c->seq.first_kv, p->heads_kv, len, dim);

    if (k->m->bytes[which])
        slice_tensor(p, t, k->m->buf[which], first, p->heads_kv, len, dim, size);
}

// ---- the reference -----------------------------------------------------------------------------

// Everything that is added to scores or hides keys is given to the reference as a bias of its own,
// which knows no window, alignment or mask.
static bool needs_bias(const struct tool_problem *p)
{
    return p->causal || p->window || p->mask || p->bias || p->alibi;
}

// Element [b, h, i, j] of a mask or bias.
static size_t pair_at(const int32_t extent[4], const int64_t at[4])
{
    size_t n = 0;

    for (int a = 0; a < 4; a++)
        n = n * (size_t)extent[a] + (size_t)(extent[a] > 1 ? at[a] : 0);
    return n;
}

static void fill_row(const struct check *k, const struct slice *c, int32_t h, int32_t i, float *row)
{
    const struct tool_problem *p = k->p;
    const double slope = p->alibi ? (double)k->data->alibi[h] : 0;
    int64_t first, last;

    bench_range(p, &c->seq, i, &first, &last);
    for (int64_t j = 0; j < c->seq.len_kv; j++) {
        const int64_t at[4] = {c->b, h, i, j};
        double x = slope ? -slope * fabs((double)(i + c->seq.off - j)) : 0;
        if (p->bias)
            x += (double)k->data->bias[pair_at(p->bias_extent, at)];
        const bool hidden = j < first || j > last ||
                            (p->mask && !k->data->mask[pair_at(p->mask_extent, at)]);
        row[j] = hidden ? -INFINITY : (float)x;
    }
}

static clattn_status write_bias(const struct check *k, const struct slice *c, clattn_buf *buf)
{
    const int32_t group = k->p->heads_q / k->p->heads_kv;
    const size_t len = (size_t)c->seq.len_kv, rows = (size_t)group * (size_t)c->rows;
    const size_t bytes = rows * len * sizeof(float);
    float *bias = malloc(bytes);

    if (!bias)
        return CLATTN_ERR_OUT_OF_MEMORY;
    for (size_t n = 0; n < rows; n++)
        fill_row(k, c, c->g * group + (int32_t)n / c->rows, c->row + (int32_t)n % c->rows,
                 bias + n * len);
    clattn_status st = clattn_mem_create(k->s->ctx, bytes, buf);
    if (st == CLATTN_OK)
        st = clattn_mem_write(k->s->ctx, buf, bias, bytes);
    free(bias);
    return st;
}

// The slice as a problem: one sequence, the heads of one group, O in float32.
static struct tool_problem part_of(const struct tool_problem *p, const struct slice *c)
{
    const int32_t group = p->heads_q / p->heads_kv;
    struct tool_problem part = {
        .batch = 1, .heads_q = group, .heads_kv = 1, .len_q = c->rows, .len_kv = c->seq.len_kv,
        .dim_qk = p->dim_qk, .dim_v = p->dim_v, .has_scale = p->has_scale, .scale = p->scale,
        .algo = CLATTN_ALGO_REFERENCE, .dtype_q = p->dtype_q, .dtype_kv = p->dtype_kv,
        .bias = needs_bias(p), .sinks = p->sinks, .softcap = p->softcap,
        .bias_extent = {1, group, c->rows, c->seq.len_kv}, .page_size = p->page_size,
        .num_pages = p->num_pages, .max_pages = p->max_pages};

    return part;
}

// The rows of the slice by the double reference: dim_v floats each, heads of the group outside.
static clattn_status reference_rows(const struct check *k, const struct slice *c, float *want)
{
    const struct tool_problem *p = k->p, part = part_of(p, c);
    const int64_t head = (int64_t)c->g * part.heads_q;
    const size_t bytes = (size_t)part.heads_q * (size_t)c->rows * (size_t)p->dim_v * sizeof *want;
    clattn_buf buf[TOOL_TENSORS];
    clattn_attention_call call;
    clattn_plan *plan = NULL;

    memset(buf, 0, sizeof buf);
    clattn_status st = tool_plan_create(k->s, &part, &plan);
    if (st == CLATTN_OK)
        st = clattn_mem_create(k->s->ctx, bytes, &buf[TOOL_O]);
    if (st == CLATTN_OK && part.bias)
        st = write_bias(k, c, &buf[TOOL_BIAS]);
    tool_call_fill(&part, buf, &call);
    slice_tensor(p, &call.q, k->m->buf[TOOL_Q], query_element(p, c, head, c->row, p->dim_qk),
                 p->heads_q, p->packed_q ? p->total_q : p->len_q, p->dim_qk,
                 tool_dtype_bytes(p->dtype_q));
    slice_keys(k, c, &call.k, TOOL_K, p->dim_qk, tool_dtype_bytes(p->dtype_kv));
    slice_keys(k, c, &call.v, TOOL_V, p->dim_v, tool_dtype_bytes(p->dtype_kv));
    slice_keys(k, c, &call.k_scale, TOOL_K_SCALE, 1, sizeof(float));
    slice_keys(k, c, &call.v_scale, TOOL_V_SCALE, 1, sizeof(float));
    call.sinks = k->m->buf[TOOL_SINKS];
    call.sinks.offset_bytes += p->sinks ? (size_t)head * sizeof(float) : 0;
    call.page_table = k->m->buf[TOOL_TABLE];
    call.page_table.offset_bytes +=
        p->page_size ? (size_t)c->b * (size_t)p->max_pages * sizeof(int32_t) : 0;
    if (st == CLATTN_OK)
        st = clattn_attention_run(plan, &call);
    if (st == CLATTN_OK)
        st = clattn_mem_read(k->s->ctx, &buf[TOOL_O], want, bytes);
    clattn_mem_destroy(k->s->ctx, &buf[TOOL_O]);
    clattn_mem_destroy(k->s->ctx, &buf[TOOL_BIAS]);
    clattn_plan_destroy(&plan);
    return st;
}

// Compares one slice; returns how many elements are wrong.
static size_t compare_slice(const struct check *k, const struct slice *c, const float *want,
                            double *max_error)
{
    const struct tool_problem *p = k->p;
    const int32_t group = p->heads_q / p->heads_kv;
    size_t over = 0;

    for (int32_t n = 0; n < group * c->rows; n++) {
        struct tool_compare result;
        const int32_t h = c->g * group + n / c->rows, row = c->row + n % c->rows;
        const float *got = k->o + query_element(p, c, h, row, p->dim_v);
        tool_compare(got, want + (size_t)n * (size_t)p->dim_v, (size_t)p->dim_v,
                     tool_dtype_tolerance(p->dtype_o), &result);
        over += result.over;
        *max_error = fmax(*max_error, result.max_error);
    }
    return over;
}

// ---- all ---------------------------------------------------------------------------------------

// The n-th of `count` evenly spread places in [0, extent), the first and the last among them.
static int32_t place(int32_t n, int32_t count, int32_t extent)
{
    return count > 1 ? (int32_t)((int64_t)n * (extent - 1) / (count - 1)) : extent / 2;
}

// Places of rows of one head; `afford` rows may be computed.
static clattn_status verify_head(const struct check *k, struct slice *c, double afford,
                                 double *max_error, size_t *over)
{
    const struct tool_problem *p = k->p;
    const int32_t most = afford >= 64 ? 8 : afford >= 16 ? 2 : 1, len_q = c->seq.len_q;
    clattn_status st = CLATTN_OK;

    c->rows = most < len_q ? most : len_q;
    const int32_t starts = len_q - c->rows + 1;
    const int32_t blocks = starts < 3 ? starts : afford / c->rows >= 8 && starts >= 8 ? 8 : 3;
    const size_t rows = (size_t)(p->heads_q / p->heads_kv) * (size_t)c->rows;
    float *want = malloc(rows * (size_t)p->dim_v * sizeof *want);
    if (!want)
        return CLATTN_ERR_OUT_OF_MEMORY;
    for (int32_t n = 0; st == CLATTN_OK && n < blocks; n++) {
        c->row = place(n, blocks, starts);
        st = reference_rows(k, c, want);
        if (st == CLATTN_OK)
            *over += compare_slice(k, c, want, max_error);
    }
    free(want);
    return st;
}

// NaN anywhere is wrong, since the output was filled with it and the data is finite.
static clattn_status verify(const struct check *k, size_t count, double *max_error, size_t *over)
{
    // About a second of the reference at most, but 3 places of 2 heads in any case.
    const double budget = 3e8;
    const struct tool_problem *p = k->p;
    const int32_t group = p->heads_q / p->heads_kv, heads = p->batch * p->heads_kv;
    const double row_cost = (double)group * (double)p->len_kv * (p->dim_qk + p->dim_v);
    const int32_t head_count = heads < 4 ? heads : 4;
    clattn_status st = CLATTN_OK;

    for (size_t i = 0; i < count; i++)
        *over += isfinite(k->o[i]) ? 0 : 1;
    for (int32_t h = 0; st == CLATTN_OK && h < head_count; h++) {
        const int32_t head = place(h, head_count, heads);
        struct slice c = {.b = head / p->heads_kv, .g = head % p->heads_kv};
        c.seq = bench_sequence(p, c.b);
        st = verify_head(k, &c, budget / row_cost / head_count, max_error, over);
    }
    return st;
}

clattn_status bench_check(struct tool_session *s, const struct tool_problem *p,
                          const clattn_plan *plan, const struct tool_memory *m,
                          const struct bench_data *data, double *max_error, size_t *over)
{
    const size_t count = m->bytes[TOOL_O] / tool_dtype_bytes(p->dtype_o);
    clattn_attention_call call;
    void *raw = malloc(m->bytes[TOOL_O]);
    float *o = malloc(count * sizeof *o);
    const struct check k = {s, p, m, data, o};

    tool_call_init(p, m, &call);
    clattn_status st = raw && o ? clattn_attention_run(plan, &call) : CLATTN_ERR_OUT_OF_MEMORY;
    if (st == CLATTN_OK)
        st = tool_memory_read(s, m, TOOL_O, raw);
    if (st == CLATTN_OK) {
        tool_to_float(raw, p->dtype_o, o, count);
        st = verify(&k, count, max_error, over);
    }
    free(raw);
    free(o);
    return st;
}
