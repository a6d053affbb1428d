// SPDX-License-Identifier: Apache-2.0
#include "feature_memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SPARE_PAGES = 3, SPARE_ENTRIES = 2 }; // pages of nobody, entries of the table behind the end

// ---- where things lie ---------------------------------------------------------------------------

static void set_strides(struct feature_view *w, int32_t layout, size_t outer, size_t head,
                        size_t seq)
{
    w->layout = layout;
    w->stride[0] = outer;
    w->stride[1] = head;
    w->stride[2] = seq;
}

static struct feature_view view_of(const struct feature_case *c, bool keys, const size_t extent[3],
                                   int32_t dim, int32_t dtype)
{
    const size_t outer = extent[0], heads = extent[1], len = extent[2], d = (size_t)dim;
    struct feature_view w = {.dtype = dtype, .extent = {outer, heads, len}, .dim = d};
    size_t row = d;
    switch (c->layout) {
    case FORM_BSHD:
        set_strides(&w, CLATTN_LAYOUT_BSHD, len * heads * d, d, heads * d);
        break;
    case FORM_PADDED:
    case FORM_PADDED_8:
        row = c->layout == FORM_PADDED ? d + 3 : (d + 7) / 8 * 8 + 8;
        set_strides(&w, CLATTN_LAYOUT_STRIDED, heads * len * row, len * row, row);
        w.offset = c->layout == FORM_PADDED;
        break;
    case FORM_SEQ_FIRST:
        set_strides(&w, CLATTN_LAYOUT_STRIDED, heads * d, d, outer * heads * d);
        break;
    case FORM_BCAST_HEAD:
        if (keys) {
            set_strides(&w, CLATTN_LAYOUT_STRIDED, len * d, 0, d);
            break;
        }
        set_strides(&w, CLATTN_LAYOUT_BHSD, heads * len * d, len * d, d);
        break;
    default: set_strides(&w, CLATTN_LAYOUT_BHSD, heads * len * d, len * d, d); break;
    }
    if (outer && len)
        w.reach = w.offset + (outer - 1) * w.stride[0] + (heads - 1) * w.stride[1] +
                  (len - 1) * w.stride[2] + d;
    w.size = w.reach + (row - d);
    return w;
}

static size_t row_at(const struct feature_view *w, size_t outer, size_t head, size_t seq)
{
    return w->offset + outer * w->stride[0] + head * w->stride[1] + seq * w->stride[2];
}

static const int32_t *table_of(const struct feature_memory *m)
{
    return (const int32_t *)(const void *)(m->image[PART_TABLE].bytes + GUARD_BYTES);
}

// Row of key j of sequence b, or of query i where `keys` is false.
static size_t place(const struct feature_case *c, const struct feature_data *d,
                    const struct feature_memory *m, const struct feature_view *w, bool keys,
                    int32_t b, int32_t head, int32_t s)
{
    if (keys ? c->packed_kv : c->packed_q) {
        const int32_t begin = keys ? d->begin_kv[b] : d->begin_q[b];
        return row_at(w, 0, (size_t)head, (size_t)(begin + s));
    }
    if (keys && c->page_size) {
        const int32_t page = table_of(m)[b * m->max_pages + s / c->page_size];
        return row_at(w, (size_t)page, (size_t)head, (size_t)(s % c->page_size));
    }
    return row_at(w, (size_t)b, (size_t)head, (size_t)s);
}

// ---- images -------------------------------------------------------------------------------------

static void image_make(struct image *m, size_t bytes)
{
    m->size = bytes + 2 * GUARD_BYTES;
    m->bytes = malloc(m->size);
    assert_non_null(m->bytes);
    dtype_fill_unwritten(m->bytes, m->size, CLATTN_DTYPE_F32);
    memset(m->bytes + m->size / 4 * 4, 0xa5, m->size % 4);
}

// Fills an input with what must never matter: NaN, and infinities now and then.
static void poison_all(struct image *m, int32_t dtype)
{
    const size_t count = m->size / dtype_bytes(dtype);
    for (size_t n = 0; n < count; n++)
        dtype_store(m->bytes, n, dtype,
                    dtype == CLATTN_DTYPE_I8 ? 127 : n % 5 == 3 ? (double)INFINITY : (double)NAN);
}

static size_t guard_of(int32_t dtype)
{
    return GUARD_BYTES / dtype_bytes(dtype);
}

static clattn_tensor tensor_of(const struct feature_view *w)
{
    const size_t bytes = dtype_bytes(w->dtype);
    clattn_tensor t = {.layout = w->layout};
    t.buf.offset_bytes = GUARD_BYTES + w->offset * bytes;
    t.buf.size_bytes = GUARD_BYTES + w->reach * bytes;
    // Where the layout is a contiguous one, none or its own are the same.
    const bool given = w->layout == CLATTN_LAYOUT_STRIDED || w->extent[2] % 2;
    t.stride_batch = given ? (int64_t)w->stride[0] : 0;
    t.stride_head = given ? (int64_t)w->stride[1] : 0;
    t.stride_seq = given ? (int64_t)w->stride[2] : 0;
    return t;
}

// An input tensor, from plain rows.
static void put_rows(const struct feature_case *c, const struct feature_data *d,
                     struct feature_memory *m, enum feature_part part, const double *from)
{
    const struct feature_view *w = &m->view[part];
    const bool keys = part != PART_Q;
    const int32_t heads = keys ? c->heads_kv : c->heads_q, len = keys ? c->len_kv : c->len_q;
    image_make(&m->image[part], w->size * dtype_bytes(w->dtype));
    poison_all(&m->image[part], w->dtype);
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t s = 0; s < (keys ? d->len_kv[b] : d->len_q[b]); s++) {
                const size_t to = guard_of(w->dtype) + place(c, d, m, w, keys, b, h, s);
                const size_t row = ((size_t)b * (size_t)heads + (size_t)h) * (size_t)len +
                                   (size_t)s;
                for (size_t n = 0; n < w->dim; n++)
                    dtype_store(m->image[part].bytes, to + n, w->dtype, from[row * w->dim + n]);
            }
}

static void put_tensors(const struct feature_case *c, const struct feature_data *d,
                        struct feature_memory *m)
{
    const size_t nq = (size_t)(c->packed_q ? d->total_q : c->len_q);
    const size_t q[3] = {c->packed_q ? 1 : (size_t)c->batch, (size_t)c->heads_q, nq};
    const size_t kv[3] = {c->page_size   ? (size_t)m->num_pages
                          : c->packed_kv ? 1
                                         : (size_t)c->batch,
                          (size_t)c->heads_kv,
                          c->page_size   ? (size_t)c->page_size
                          : c->packed_kv ? (size_t)d->total_kv
                                         : (size_t)c->len_kv};
    struct feature_view *w = m->view;
    w[PART_Q] = view_of(c, false, q, c->dim_qk, c->dtype_q);
    w[PART_K] = view_of(c, true, kv, c->dim_qk, c->dtype_kv);
    w[PART_V] = view_of(c, true, kv, c->dim_v, c->dtype_kv);
    w[PART_O] = view_of(c, false, q, c->dim_v, c->dtype_o);
    if (c->layout == FORM_V_IN_K) {
        w[PART_V] = w[PART_K];
        w[PART_V].layout = CLATTN_LAYOUT_STRIDED;
        w[PART_V].reach -= w[PART_V].reach ? (size_t)(c->dim_qk - c->dim_v) : 0;
    }
    put_rows(c, d, m, PART_Q, d->q);
    put_rows(c, d, m, PART_K, d->k);
    if (c->layout != FORM_V_IN_K)
        put_rows(c, d, m, PART_V, d->v);
    if (c->dtype_kv == CLATTN_DTYPE_I8) {
        w[PART_K_SCALE] = w[PART_V_SCALE] = view_of(c, true, kv, 1, CLATTN_DTYPE_F32);
        put_rows(c, d, m, PART_K_SCALE, d->ks);
        put_rows(c, d, m, PART_V_SCALE, d->vs);
        m->call.k_scale = tensor_of(&w[PART_K_SCALE]);
        m->call.v_scale = tensor_of(&w[PART_V_SCALE]);
    }
    image_make(&m->image[PART_O], w[PART_O].size * dtype_bytes(c->dtype_o));
    m->call.q = tensor_of(&w[PART_Q]);
    m->call.k = tensor_of(&w[PART_K]);
    m->call.v = tensor_of(&w[PART_V]);
    m->call.o = tensor_of(&w[PART_O]);
    m->call.total_q = c->packed_q ? d->total_q : 0;
    m->call.total_kv = c->packed_kv ? d->total_kv : 0;
    if (c->lse) {
        w[PART_LSE] = (struct feature_view){
            .extent = {q[0], q[1], q[2]}, .dim = 1, .stride = {q[1] * q[2], q[2], 1},
            .size = q[0] * q[1] * q[2]};
        image_make(&m->image[PART_LSE], w[PART_LSE].size * sizeof(float));
        m->call.lse.offset_bytes = GUARD_BYTES;
        m->call.lse.size_bytes = GUARD_BYTES + w[PART_LSE].size * sizeof(float);
    }
}

// A mask or a bias in its form. Bytes of the mask that belong to nobody are not 0, so that a read
// of them makes a hidden key visible.
static void put_array(const struct feature_case *c, const struct feature_data *d,
                      struct feature_memory *m, enum feature_part part)
{
    const bool is_mask = part == PART_MASK;
    const struct feature_array *a = is_mask ? &c->mask : &c->bias;
    clattn_mask *out = is_mask ? &m->call.mask : &m->call.bias;
    const int32_t dtype = is_mask ? CLATTN_DTYPE_I8 : c->dtype_bias;
    const int32_t full[4] = {c->batch, c->heads_q, c->len_q, c->len_kv};
    const size_t step = a->strided && !(a->bcast >> 3 & 1) ? 2 : 1;
    size_t ext[4], stride[4], count = step;
    for (int n = 3; n >= 0; n--) {
        ext[n] = a->bcast >> n & 1 ? 1 : (size_t)full[n];
        stride[n] = count;
        count *= ext[n];
    }
    out->layout = a->strided ? CLATTN_LAYOUT_STRIDED : CLATTN_LAYOUT_BHSD;
    for (int n = 0; n < 4; n++) {
        const bool bcast = a->bcast >> n & 1;
        // Broadcast axes have full extents and stride 0 where it is strided, else an extent of 1.
        out->extent[n] = bcast && !a->strided ? 1 : n % 2 ? 0 : full[n];
        out->stride[n] = bcast ? 0 : (int64_t)stride[n];
    }
    const size_t first = guard_of(dtype) + 3; // no alignment but the element's is promised
    image_make(&m->image[part], (count + 3) * dtype_bytes(dtype));
    if (is_mask)
        memset(m->image[part].bytes, 0xa5, m->image[part].size);
    else
        poison_all(&m->image[part], dtype);
    out->buf.offset_bytes = first * dtype_bytes(dtype);
    out->buf.size_bytes = (first + count - (step - 1)) * dtype_bytes(dtype);
    size_t pair = 0;
    for (int32_t b = 0; b < full[0]; b++)
        for (int32_t h = 0; h < full[1]; h++)
            for (int32_t i = 0; i < full[2]; i++)
                for (int32_t j = 0; j < full[3]; j++, pair++) {
                    const size_t at = first + (size_t)b % ext[0] * stride[0] +
                                      (size_t)h % ext[1] * stride[1] +
                                      (size_t)i % ext[2] * stride[2] +
                                      (size_t)j % ext[3] * stride[3];
                    // What lies beyond a sequence's lengths is not read; another sequence may
                    // share the element.
                    const bool own = a->bcast || (i < d->len_q[b] && j < d->len_kv[b]);
                    if (is_mask)
                        m->image[part].bytes[at] = own ? d->mask[pair] : 0xa5;
                    else if (own)
                        dtype_store(m->image[part].bytes, at, dtype, (double)d->bias[pair]);
                }
}

static void put_vector(struct feature_memory *m, enum feature_part part, const void *from,
                       size_t count, clattn_buf *buf)
{
    image_make(&m->image[part], 4 * count);
    memcpy(m->image[part].bytes + GUARD_BYTES, from, 4 * count);
    buf->offset_bytes = GUARD_BYTES;
    buf->size_bytes = GUARD_BYTES + 4 * count;
}

// Pages in an order that is nobody's: entry n of sequence b is the pool's page (7 n + 3) modulo
// the number of pages, counted over all entries. Entries behind the last key are wild.
static void put_table(const struct feature_case *c, const struct feature_data *d,
                      struct feature_memory *m)
{
    int32_t used = 0, n = 0;
    for (int32_t b = 0; b < c->batch; b++)
        used += (d->len_kv[b] + c->page_size - 1) / c->page_size;
    m->max_pages = (c->len_kv + c->page_size - 1) / c->page_size + SPARE_ENTRIES;
    m->num_pages = used + SPARE_PAGES;
    m->num_pages += m->num_pages % 7 == 0; // no factor in common with 7
    const size_t count = (size_t)c->batch * (size_t)m->max_pages;
    int32_t *table = malloc(count * sizeof *table);
    assert_non_null(table);
    for (size_t k = 0; k < count; k++)
        table[k] = k % 2 ? INT32_MAX - 5 : -77;
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t k = 0; k * c->page_size < d->len_kv[b]; k++, n++)
            table[b * m->max_pages + k] = (7 * n + 3) % m->num_pages;
    put_vector(m, PART_TABLE, table, count, &m->call.page_table);
    free(table);
    m->call.num_pages = m->num_pages;
    m->call.max_pages = m->max_pages;
}

static void put_numbers(const struct feature_case *c, const struct feature_data *d,
                        struct feature_memory *m)
{
    clattn_attention_call *call = &m->call;
    const bool any = c->kv_lens || c->packed_q || c->packed_kv || c->page_size;
    const int32_t none = 0;
    if (c->alibi)
        put_vector(m, PART_ALIBI, d->alibi,
                   (size_t)(c->alibi == 2 ? c->batch : 1) * (size_t)c->heads_q, &call->alibi);
    call->alibi_batch = c->alibi == 2;
    if (c->sinks)
        put_vector(m, PART_SINKS, d->sinks, (size_t)c->heads_q, &call->sinks);
    if (c->kv_lens)
        put_vector(m, PART_KV_LENS, d->len_kv, (size_t)c->batch, &call->kv_lens);
    if (c->packed_q)
        put_vector(m, PART_CU_Q, d->begin_q, (size_t)c->batch + 1, &call->cu_seqlens_q);
    if (c->packed_kv)
        put_vector(m, PART_CU_KV, d->begin_kv, (size_t)c->batch + 1, &call->cu_seqlens_kv);
    if (c->page_size)
        put_table(c, d, m);
    if (any && c->ints_on_device)
        put_vector(m, PART_FAULTS, &none, 1, &call->faults);
}

void feature_memory_images(const struct feature_case *c, const struct feature_data *d,
                           struct feature_memory *m)
{
    memset(m, 0, sizeof *m);
    clattn_attention_call *call = &m->call;
    clattn_attention_call_init(call, sizeof *call);
    call->batch = c->batch;
    call->len_q = c->len_q;
    call->len_kv = c->len_kv;
    call->set = (c->has_scale ? CLATTN_SET_SCALE : 0u) | (c->window ? CLATTN_SET_WINDOW : 0u);
    call->scale = c->has_scale ? c->scale : 0;
    call->window_left = c->window ? c->left : 0;
    call->window_right = c->window ? c->right : 0;
    call->softcap = c->has_softcap ? c->softcap : 0;
    put_numbers(c, d, m);
    put_tensors(c, d, m);
    if (c->mask.used)
        put_array(c, d, m, PART_MASK);
    if (c->bias.used)
        put_array(c, d, m, PART_BIAS);
}

int32_t *feature_ints(struct feature_memory *m, enum feature_part part)
{
    return (int32_t *)(void *)(m->image[part].bytes + GUARD_BYTES);
}

static bool is_ints(int part)
{
    return part >= PART_KV_LENS && part <= PART_TABLE;
}

static bool is_output(int part)
{
    return part == PART_O || part == PART_LSE || part == PART_FAULTS;
}

void feature_memory_attach(clattn_context *ctx, const struct feature_case *c,
                           struct feature_memory *m)
{
    clattn_attention_call *call = &m->call;
    clattn_buf *const buf[PART_COUNT] = {
        [PART_Q] = &call->q.buf, [PART_K] = &call->k.buf, [PART_V] = &call->v.buf,
        [PART_O] = &call->o.buf, [PART_LSE] = &call->lse, [PART_MASK] = &call->mask.buf,
        [PART_BIAS] = &call->bias.buf, [PART_ALIBI] = &call->alibi, [PART_SINKS] = &call->sinks,
        [PART_KV_LENS] = &call->kv_lens, [PART_CU_Q] = &call->cu_seqlens_q,
        [PART_CU_KV] = &call->cu_seqlens_kv, [PART_TABLE] = &call->page_table,
        [PART_K_SCALE] = &call->k_scale.buf, [PART_V_SCALE] = &call->v_scale.buf,
        [PART_FAULTS] = &call->faults};
    for (int n = 0; n < PART_COUNT; n++) {
        // V that lies in K's memory has no image of its own.
        struct image *m_of = n == PART_V && !m->image[n].bytes ? &m->image[PART_K] : &m->image[n];
        if (!m_of->bytes)
            continue;
        const bool on_device = is_ints(n) ? c->ints_on_device : c->on_device;
        if (!on_device) {
            buf[n]->kind = CLATTN_BUF_HOST;
            buf[n]->ptr = m_of->bytes;
        } else {
            if (m_of->device.kind == CLATTN_BUF_ABSENT) {
                assert_int_equal(clattn_mem_create(ctx, m_of->size, &m_of->device), CLATTN_OK);
                assert_int_equal(clattn_mem_write(ctx, &m_of->device, m_of->bytes, m_of->size),
                                 CLATTN_OK);
            }
            buf[n]->kind = m_of->device.kind;
            buf[n]->ptr = m_of->device.ptr;
        }
        if (m->image[n].bytes) {
            m->before[n] = malloc(m->image[n].size);
            assert_non_null(m->before[n]);
            memcpy(m->before[n], m->image[n].bytes, m->image[n].size);
        }
    }
}

void feature_memory_free(clattn_context *ctx, struct feature_memory *m)
{
    for (int n = 0; n < PART_COUNT; n++) {
        clattn_mem_destroy(ctx, &m->image[n].device);
        free(m->image[n].bytes);
        free(m->before[n]);
    }
    memset(m, 0, sizeof *m);
}

void feature_memory_read(clattn_context *ctx, struct feature_memory *m)
{
    for (int n = 0; n < PART_COUNT; n++) {
        struct image *i = &m->image[n];
        if (i->bytes && i->device.kind != CLATTN_BUF_ABSENT)
            assert_int_equal(clattn_mem_read(ctx, &i->device, i->bytes, i->size), CLATTN_OK);
    }
}

void feature_memory_reset(clattn_context *ctx, const struct feature_case *c,
                          struct feature_memory *m)
{
    (void)c;
    for (int n = 0; n < PART_COUNT; n++) {
        struct image *i = &m->image[n];
        if (!i->bytes || !is_output(n))
            continue;
        memcpy(i->bytes, m->before[n], i->size);
        if (i->device.kind != CLATTN_BUF_ABSENT)
            assert_int_equal(clattn_mem_write(ctx, &i->device, i->bytes, i->size), CLATTN_OK);
    }
}

// ---- check --------------------------------------------------------------------------------------

void feature_outputs(const struct feature_case *c, const struct feature_data *d,
                     const struct feature_memory *m, float *o, float *lse)
{
    const struct feature_view *w = &m->view[PART_O], *wl = &m->view[PART_LSE];
    size_t row = 0;
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < c->heads_q; h++)
            for (int32_t i = 0; i < c->len_q; i++, row++) {
                const bool own = i < d->len_q[b];
                const size_t at = own ? place(c, d, m, w, false, b, h, i) : 0;
                for (size_t n = 0; n < w->dim; n++)
                    o[row * w->dim + n] = own ? dtype_load(m->image[PART_O].bytes,
                                                           guard_of(w->dtype) + at + n, w->dtype)
                                              : 0;
                const size_t at_lse = own ? place(c, d, m, wl, false, b, h, i) : 0;
                if (c->lse)
                    lse[row] = own ? dtype_load(m->image[PART_LSE].bytes, GUARD_BYTES / 4 + at_lse,
                                                CLATTN_DTYPE_F32)
                                   : 0;
            }
}

// What no row of a sequence covers must be as it was.
static bool rest_is_untouched(const struct feature_case *c, const struct feature_data *d,
                              const struct feature_memory *m, enum feature_part part)
{
    const struct feature_view *w = &m->view[part];
    const struct image *image = &m->image[part];
    const size_t bytes = dtype_bytes(w->dtype);
    unsigned char *covered = calloc(image->size, 1);
    assert_non_null(covered);
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < c->heads_q; h++)
            for (int32_t i = 0; i < d->len_q[b]; i++)
                memset(covered + GUARD_BYTES + place(c, d, m, w, false, b, h, i) * bytes, 1,
                       w->dim * bytes);
    size_t n = 0;
    while (n < image->size && (covered[n] || image->bytes[n] == m->before[part][n]))
        n++;
    free(covered);
    if (n < image->size)
        printf("    %s: wrote outside of its sequences, at element %lld of %zu\n",
               part == PART_O ? "O" : "LSE",
               ((long long)n - GUARD_BYTES) / (long long)bytes, w->size);
    return n == image->size;
}

static bool report(const char *what, const float *out, const float *ref, size_t count,
                   const struct tolerance *tol, const double *bound, double unit, double *worst)
{
    struct compare_report r;
    const bool ok = compare_bounded(out, ref, count, tol, bound, unit, &r);
    if (!ok)
        compare_print(what, &r);
    if (worst && count && r.worst_ratio > *worst)
        *worst = r.worst_ratio;
    return ok;
}

bool feature_memory_check(const struct feature_case *c, const struct feature_data *d,
                          const struct feature_memory *m, double worst[2])
{
    const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
    const size_t count = rows * (size_t)c->dim_v;
    float *o = malloc((count + 1) * sizeof *o), *lse = malloc((rows + 1) * sizeof *lse);
    assert_true(o && lse);
    feature_outputs(c, d, m, o, lse);
    bool ok = report("O", o, d->o, count, &d->tol_o, d->bound_o, d->unit, worst);
    ok = rest_is_untouched(c, d, m, PART_O) && ok;
    if (c->lse) {
        ok = report("LSE", lse, d->lse, rows, &d->tol_lse, d->bound_lse, d->unit,
                    worst ? worst + 1 : NULL) &&
             ok;
        ok = rest_is_untouched(c, d, m, PART_LSE) && ok;
    }
    for (int n = 0; n < PART_COUNT; n++)
        if (m->image[n].bytes && !is_output(n) &&
            memcmp(m->image[n].bytes, m->before[n], m->image[n].size) != 0) {
            printf("    input %d of enum feature_part was changed\n", n);
            ok = false;
        }
    free(o);
    free(lse);
    return ok;
}

bool feature_memory_is_untouched(const struct feature_memory *m)
{
    for (int n = PART_O; n <= PART_LSE; n++)
        if (m->image[n].bytes && memcmp(m->image[n].bytes, m->before[n], m->image[n].size) != 0)
            return false;
    return true;
}
