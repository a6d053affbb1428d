// SPDX-License-Identifier: Apache-2.0
// The public call that appends new keys and values to a cache.
#include <stdio.h>

#include "kv.h"

_Static_assert((int)CLATTN_FAULT_ROOM == CLA_FAULT_ROOM, "faults of append.cl");

void clattn_append_call_init(clattn_append_call *call, size_t size)
{
    cla_struct_init(call, size);
}

static clattn_status compute(clattn_context *ctx, const void *data, void *const *ptr)
{
    cla_host_append(data, ptr, ctx->threads);
    return CLATTN_OK;
}

static bool has_v(const clattn_append_call *c)
{
    return c->v_new.buf.kind != CLATTN_BUF_ABSENT || c->v_cache.buf.kind != CLATTN_BUF_ABSENT;
}

// Rows that a sequence can have.
static int64_t most_rows(const clattn_append_call *c)
{
    return c->page_size ? (int64_t)c->page_size * c->max_pages : (int64_t)c->capacity;
}

static clattn_status check_fields(const clattn_append_call *c, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    const struct cla_kv_count counts[] = {
        {"batch", c->batch, 0},         {"heads", c->heads, 1},
        {"len_new", c->len_new, 0},     {"dim_k", c->dim_k, 1},
        {"dim_v", c->dim_v, 1},         {"capacity", c->capacity, 0},
        {"page_size", c->page_size, 0}, {"num_pages", c->num_pages, 0},
        {"max_pages", c->max_pages, 0}};
    CLA_TRY(cla_check_bits(log, "flags", c->flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_kv_counts(log, counts, 9));
    CLA_TRY(cla_kv_dtype(log, "dtype_new", c->dtype_new));
    CLA_TRY(cla_check_enum(log, "dtype_cache", c->dtype_cache, CLATTN_DTYPE_I8));
    if (c->page_size ? c->capacity : c->num_pages || c->max_pages)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "page_size is %d, but capacity %d, num_pages %d, max_pages %d",
                         (int)c->page_size, (int)c->capacity, (int)c->num_pages,
                         (int)c->max_pages));
    if (c->rotary.dim)
        CLA_TRY(cla_rotary_check(log, &c->rotary, c->dim_k));
done:
    return st;
}

static clattn_status add_scale(struct cla_op *op, const char *name, const clattn_append_call *c,
                               const clattn_tensor *t, const int64_t rows[3], bool wanted,
                               struct cla_fwd_tensor *into)
{
    if (wanted && c->dtype_cache == CLATTN_DTYPE_I8)
        return cla_op_tensor(op, name, t, rows, 1, CLATTN_DTYPE_F32, CLA_OP_KEEPS, into);
    if (t->buf.kind != CLATTN_BUF_ABSENT)
        return cla_fail(&op->ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "%s is given (kind %d), but dtype_cache is %d, not %d, or there is no such "
                        "cache",
                        name, (int)t->buf.kind, (int)c->dtype_cache, (int)CLATTN_DTYPE_I8);
    cla_op_absent(op, name);
    return CLATTN_OK;
}

// In the order of the kernel's arguments.
static clattn_status add_buffers(struct cla_append_op *out, const clattn_append_call *c)
{
    clattn_status st = CLATTN_OK;
    struct cla_op *op = &out->op;
    struct cla_append_args *a = &out->data.args;
    enum { K_CACHE = 8, V_CACHE, K_SCALE, V_SCALE };
    const bool v = has_v(c), paged = c->page_size > 0;
    const int64_t fresh[3] = {c->batch, c->heads, c->len_new}, each[3] = {1, 1, c->batch};
    const int64_t cache[3] = {paged ? c->num_pages : c->batch, c->heads,
                              paged ? c->page_size : c->capacity};
    const int64_t table[3] = {1, c->batch, c->max_pages}, one[3] = {1, 1, 1};
    CLA_TRY(cla_op_tensor(op, "k_new", &c->k_new, fresh, c->dim_k, c->dtype_new, CLA_OP_IN,
                          &a->k_new));
    if (v)
        CLA_TRY(cla_op_tensor(op, "v_new", &c->v_new, fresh, c->dim_v, c->dtype_new, CLA_OP_IN,
                              &a->v_new));
    else
        cla_op_absent(op, "v_new");
    CLA_TRY(cla_op_vector(op, "lens", &c->lens, each, sizeof(int32_t), CLA_OP_IN, true, &a->lens));
    CLA_TRY(cla_op_vector(op, "new_lens", &c->new_lens, each, sizeof(int32_t), CLA_OP_IN, true,
                          &a->new_lens));
    CLA_TRY(cla_op_vector(op, "page_table", &c->page_table, table, sizeof(int32_t), CLA_OP_IN,
                          !paged, &a->table));
    if (c->rotary.dim) {
        CLA_TRY(cla_rotary_add(op, &c->rotary, c->batch, &a->rotary));
    } else {
        for (int i = 0; i < 3; i++)
            cla_op_absent(op, "rotary");
    }
    CLA_TRY(cla_op_tensor(op, "k_cache", &c->k_cache, cache, c->dim_k, c->dtype_cache,
                          CLA_OP_KEEPS, &a->k_cache));
    if (v)
        CLA_TRY(cla_op_tensor(op, "v_cache", &c->v_cache, cache, c->dim_v, c->dtype_cache,
                              CLA_OP_KEEPS, &a->v_cache));
    else
        cla_op_absent(op, "v_cache");
    CLA_TRY(add_scale(op, "k_scale", c, &c->k_scale, cache, true, &a->k_scale));
    CLA_TRY(add_scale(op, "v_scale", c, &c->v_scale, cache, v, &a->v_scale));
    CLA_TRY(cla_op_vector(op, "faults", &c->faults, one, sizeof(int32_t), CLA_OP_KEEPS, true,
                          &a->faults));
    cla_op_interleave(op, K_CACHE, V_CACHE);
    cla_op_interleave(op, K_SCALE, V_SCALE);
    CLA_TRY(cla_op_check_overlaps(op));
done:
    return st;
}

// ---- numbers in host memory --------------------------------------------------------------------

static clattn_status check_count(const struct cla_log *log, const char *name, int32_t b,
                                 int32_t value, int64_t most)
{
    if (value < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s[%d] is %d, negative", name, (int)b,
                        (int)value);
    if (value > most)
        return cla_fail(log, CLATTN_ERR_SHAPE, "%s[%d] is %d, more than %lld", name, (int)b,
                        (int)value, (long long)most);
    return CLATTN_OK;
}

static clattn_status check_pages(const struct cla_log *log, const clattn_append_call *c, int32_t b,
                                 int64_t first, int64_t count)
{
    const int32_t *table = cla_op_host_ints(&c->page_table);
    if (!table || !c->page_size || count == 0)
        return CLATTN_OK;
    for (int64_t n = first / c->page_size; n <= (first + count - 1) / c->page_size; n++) {
        const int32_t page = table[(int64_t)b * c->max_pages + n];
        if (page < 0 || page >= c->num_pages)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                            "page_table[%d][%lld] is %d, not 0 to %d: new rows %lld to %lld of "
                            "sequence %d have no page there",
                            (int)b, (long long)n, (int)page, (int)c->num_pages - 1,
                            (long long)first, (long long)(first + count - 1), (int)b);
    }
    return CLATTN_OK;
}

// What of a sequence can be told without the device.
static clattn_status check_sequence(const struct cla_log *log, const clattn_append_call *c,
                                    int32_t b)
{
    clattn_status st = CLATTN_OK;
    const int32_t *lens = cla_op_host_ints(&c->lens);
    const int32_t *new_lens = cla_op_host_ints(&c->new_lens);
    const int32_t *first = cla_op_host_ints(&c->rotary.offsets);
    const bool knows_len = lens || c->lens.kind == CLATTN_BUF_ABSENT;
    const bool knows_new = new_lens || c->new_lens.kind == CLATTN_BUF_ABSENT;
    const int32_t len = lens ? lens[b] : 0, count = new_lens ? new_lens[b] : c->len_new;
    CLA_TRY(check_count(log, "lens", b, len, most_rows(c)));
    CLA_TRY(check_count(log, "new_lens", b, count, c->len_new));
    if (knows_len && knows_new) {
        if ((int64_t)len + count > most_rows(c))
            CLA_TRY(cla_fail(log, CLATTN_ERR_SHAPE,
                             "sequence %d has %d rows and %d new ones, the cache has room for %lld",
                             (int)b, (int)len, (int)count, (long long)most_rows(c)));
        CLA_TRY(check_pages(log, c, b, len, count));
    }
    const bool knows_first =
        first || (c->rotary.offsets.kind == CLATTN_BUF_ABSENT && knows_len);
    if (c->rotary.dim && knows_new && knows_first)
        CLA_TRY(cla_rotary_check_positions(log, &c->rotary, b, first ? first[b] : len, count));
done:
    return st;
}

// ---- the call ----------------------------------------------------------------------------------

static void fill(struct cla_append_op *out, const clattn_append_call *c)
{
    struct cla_op *op = &out->op;
    struct cla_append_args *a = &out->data.args;
    a->batch = c->batch;
    a->heads = c->heads;
    a->len = c->len_new;
    a->dim_k = c->dim_k;
    a->dim_v = c->dim_v;
    a->capacity = c->capacity;
    a->page_size = c->page_size;
    a->num_pages = c->num_pages;
    a->max_pages = c->max_pages;
    a->flags = (c->lens.kind != CLATTN_BUF_ABSENT ? CLA_KV_HAS_LENS : 0) |
               (c->new_lens.kind != CLATTN_BUF_ABSENT ? CLA_KV_HAS_NEW : 0) |
               (c->faults.kind != CLATTN_BUF_ABSENT ? CLA_FWD_HAS_FAULTS : 0);
    out->data.dtype_new = c->dtype_new;
    out->data.dtype_cache = c->dtype_cache;
    op->rows = out->data.rows;
    op->no_fallback = op->no_fallback || (c->flags & CLATTN_NO_FALLBACK);
    op->on_cpu = c->k_cache.buf.kind == CLATTN_BUF_HOST &&
                 (!has_v(c) || c->v_cache.buf.kind == CLATTN_BUF_HOST);
    op->compute = compute;
    snprintf(op->options, sizeof op->options, "-DDTYPE_Q=%d -DDTYPE_CACHE=%d", (int)c->dtype_new,
             (int)c->dtype_cache);
}

clattn_status cla_append_op(clattn_context *ctx, const clattn_append_call *in,
                            struct cla_append_op *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_log *log = &ctx->log;
    clattn_append_call c;
    int64_t *rows = &out->data.rows;
    cla_op_init(&out->op, ctx, "append", "append.cl", "append", &out->data, sizeof out->data,
                sizeof out->data.args);
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_context_check(ctx));
    CLA_TRY(cla_struct_in("clattn_append_call", in, CLA_SIZE_TO(clattn_append_call, faults), &c,
                          sizeof c, log));
    c.dim_v = c.dim_v ? c.dim_v : c.dim_k;
    CLA_TRY(check_fields(&c, log));
    CLA_TRY(cla_kv_rows(log, c.batch, c.heads, c.len_new, rows));
    if (has_v(&c) && __builtin_mul_overflow(*rows, (int64_t)2, rows))
        CLA_TRY(cla_fail(log, CLATTN_ERR_SHAPE,
                         "2 x batch %d x heads %d x len_new %d overflows 64 bits", (int)c.batch,
                         (int)c.heads, (int)c.len_new));
    CLA_TRY(add_buffers(out, &c));
    // Without numbers of their own all sequences are as the first one.
    const bool own = cla_op_host_ints(&c.lens) || cla_op_host_ints(&c.new_lens) ||
                     cla_op_host_ints(&c.page_table) || cla_op_host_ints(&c.rotary.offsets);
    for (int32_t b = 0; b < c.batch && (own || b == 0); b++)
        CLA_TRY(check_sequence(log, &c, b));
    fill(out, &c);
done:
    return st;
}

clattn_status clattn_append_run(clattn_context *ctx, const clattn_append_call *call)
{
    struct cla_append_op append;
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    const clattn_status st = cla_append_op(ctx, call, &append);
    return st == CLATTN_OK ? cla_op_run(&append.op) : st;
}
