// SPDX-License-Identifier: Apache-2.0
#include "case_memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// CLATTN_FEATURE_* bits of a case.
static uint32_t case_features(const struct attn_case *c)
{
    // Each fourth case leaves the log-sum-exp out.
    return (c->causal ? CLATTN_FEATURE_CAUSAL : 0u) |
           (c->mask_form != MASK_NONE ? CLATTN_FEATURE_MASK : 0u) |
           (c->seed % 4 ? CLATTN_FEATURE_LSE : 0u);
}

clattn_attention_desc case_desc(const struct attn_case *c)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.dim_v = case_dim_v(c);
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = case_features(c);
    desc.align = c->align;
    desc.max_len_q = CASE_MAX_LEN;
    desc.max_len_kv = CASE_MAX_LEN;
    return desc;
}

// ---- how a tensor lies in memory ----------------------------------------------------------------

struct view {
    int32_t layout;       // enum clattn_layout
    size_t offset;        // elements before element 0, guard not counted
    size_t stride[3];     // batch, head, sequence, elements
    size_t extent[3];
    size_t dim;
    size_t reach;         // elements from the end of the guard to behind the last one used
    size_t size;          // elements of storage, guards not counted
};

static size_t at(const struct view *w, size_t b, size_t h, size_t s)
{
    return w->offset + b * w->stride[0] + h * w->stride[1] + s * w->stride[2];
}

static void set_strides(struct view *w, int32_t layout, size_t b, size_t h, size_t s)
{
    w->layout = layout;
    w->stride[0] = b;
    w->stride[1] = h;
    w->stride[2] = s;
}

// `slot` 0, 1, 2 = Q, K, V; 3 = O.
static struct view tensor_view(const struct attn_case *c, int slot)
{
    const size_t batch = (size_t)c->batch, dim = (size_t)(slot < 2 ? c->dim : case_dim_v(c));
    const bool kv = slot == 1 || slot == 2;
    const size_t heads = (size_t)(kv ? c->heads_kv : c->heads_q);
    const size_t len = (size_t)(kv ? c->len_kv : c->len_q);
    struct view w = {.extent = {batch, heads, len}, .dim = dim, .size = batch * heads * len * dim};
    set_strides(&w, CLATTN_LAYOUT_BHSD, heads * len * dim, len * dim, dim);
    size_t row = dim;
    switch (c->layout) {
    case LAY_PACKED_QKV:
        if (slot < 3) {
            set_strides(&w, CLATTN_LAYOUT_STRIDED, len * 3 * heads * dim, dim, 3 * heads * dim);
            w.offset = (size_t)slot * heads * dim;
            w.size *= 3;
            break;
        }
        set_strides(&w, CLATTN_LAYOUT_BSHD, len * heads * dim, dim, heads * dim);
        break;
    case LAY_BSHD:
        set_strides(&w, CLATTN_LAYOUT_BSHD, len * heads * dim, dim, heads * dim);
        break;
    case LAY_PADDED:
    case LAY_PADDED_4:
        row = c->layout == LAY_PADDED ? dim + 3 : (dim + 3) / 4 * 4 + 4;
        set_strides(&w, CLATTN_LAYOUT_STRIDED, heads * len * row, len * row, row);
        w.size = batch * heads * len * row;
        break;
    case LAY_SEQ_FIRST:
        set_strides(&w, CLATTN_LAYOUT_STRIDED, heads * dim, dim, batch * heads * dim);
        break;
    case LAY_ODD_OFFSET:
        w.offset = 1;
        w.size += 1;
        break;
    case LAY_BCAST_BATCH:
        if (kv) {
            set_strides(&w, CLATTN_LAYOUT_STRIDED, 0, len * dim, dim);
            w.size = heads * len * dim;
        }
        break;
    case LAY_BCAST_HEAD:
        if (kv) {
            set_strides(&w, CLATTN_LAYOUT_STRIDED, len * dim, 0, dim);
            w.size = batch * len * dim;
        }
        break;
    default: break;
    }
    w.reach = at(&w, batch - 1, heads - 1, len - 1) + dim;
    return w;
}

// ---- memory of a case ---------------------------------------------------------------------------

static bool image_make(struct image *m, size_t storage_bytes)
{
    m->size = storage_bytes + 2 * GUARD_BYTES;
    m->bytes = malloc(m->size);
    if (!m->bytes)
        return false;
    fill_unwritten(m->bytes, m->size / 4);
    memset(m->bytes + m->size / 4 * 4, 0xa5, m->size % 4);
    return true;
}

static void pack(struct image *m, const struct view *w, const float *from)
{
    for (size_t b = 0; b < w->extent[0]; b++)
        for (size_t h = 0; h < w->extent[1]; h++)
            for (size_t s = 0; s < w->extent[2]; s++, from += w->dim)
                memcpy(m->bytes + GUARD_BYTES + at(w, b, h, s) * sizeof *from, from,
                       w->dim * sizeof *from);
}

static void unpack(const struct image *m, const struct view *w, float *to)
{
    for (size_t b = 0; b < w->extent[0]; b++)
        for (size_t h = 0; h < w->extent[1]; h++)
            for (size_t s = 0; s < w->extent[2]; s++, to += w->dim)
                memcpy(to, m->bytes + GUARD_BYTES + at(w, b, h, s) * sizeof *to,
                       w->dim * sizeof *to);
}

static clattn_tensor tensor_of(const struct view *w)
{
    clattn_tensor t = {.layout = w->layout};
    t.buf.offset_bytes = GUARD_BYTES + w->offset * sizeof(float);
    t.buf.size_bytes = GUARD_BYTES + w->reach * sizeof(float);
    // Where the layout is a contiguous one, none or its own are the same.
    const bool given = w->layout == CLATTN_LAYOUT_STRIDED || w->extent[2] % 2;
    t.stride_batch = given ? (int64_t)w->stride[0] : 0;
    t.stride_head = given ? (int64_t)w->stride[1] : 0;
    t.stride_seq = given ? (int64_t)w->stride[2] : 0;
    return t;
}

// Writes the mask in its form and describes it. Bytes that belong to nobody are non-zero, so a
// read of them makes a hidden key visible.
static bool make_mask(const struct attn_case *c, const struct attn_data *d, struct case_memory *mem)
{
    const int32_t full[4] = {c->batch, c->heads_q, c->len_q, c->len_kv};
    const size_t step = c->mask_form == MASK_KEY_STRIDE_2 ? 2 : 1;
    size_t ext[4], stride[4], bytes = step;
    for (int a = 3; a >= 0; a--) {
        ext[a] = c->mask_bcast >> a & 1 ? 1 : (size_t)full[a];
        stride[a] = bytes;
        bytes *= ext[a];
    }
    mem->mask_offset = GUARD_BYTES + 3; // bytes need no alignment
    struct image *m = &mem->image[IMG_MASK];
    if (!image_make(m, bytes + 3))
        return false;
    clattn_mask *out = &mem->call.mask;
    out->layout = c->mask_form == MASK_CONTIGUOUS ? CLATTN_LAYOUT_BHSD : CLATTN_LAYOUT_STRIDED;
    for (int a = 0; a < 4; a++) {
        const bool bcast = c->mask_bcast >> a & 1;
        // 0 stands for the call's own extent; both ways of saying it are used.
        out->extent[a] = c->mask_form == MASK_STRIDE_0 ? full[a]
                         : bcast                       ? 1
                         : a % 2                       ? 0
                                                       : full[a];
        // Along an axis of extent 1 the stride means nothing.
        out->stride[a] = !bcast                          ? (int64_t)stride[a]
                         : c->mask_form == MASK_STRIDE_0 ? 0
                                                         : 777;
    }
    out->buf.offset_bytes = mem->mask_offset;
    out->buf.size_bytes = mem->mask_offset + bytes - (step - 1);
    const uint8_t *from = d->mask;
    for (size_t b = 0; b < (size_t)full[0]; b++)
        for (size_t h = 0; h < (size_t)full[1]; h++)
            for (size_t i = 0; i < (size_t)full[2]; i++)
                for (size_t j = 0; j < (size_t)full[3]; j++)
                    m->bytes[mem->mask_offset + b % ext[0] * stride[0] + h % ext[1] * stride[1] +
                             i % ext[2] * stride[2] + j % ext[3] * stride[3]] = *from++;
    return true;
}

// Gives `buf` its memory: the image itself, or a copy of it on the device.
static clattn_status attach(clattn_context *ctx, struct image *m, enum case_memory_kind kind,
                            clattn_buf *buf)
{
    clattn_status st = CLATTN_OK;
    if (!m->bytes)
        return CLATTN_OK;
    if (kind == MEMORY_HOST) {
        buf->kind = CLATTN_BUF_HOST;
        buf->ptr = m->bytes;
        return CLATTN_OK;
    }
    if (m->device.kind == CLATTN_BUF_ABSENT) {
        st = clattn_mem_create(ctx, m->size, &m->device);
        if (st == CLATTN_OK)
            st = clattn_mem_write(ctx, &m->device, m->bytes, m->size);
    }
    buf->kind = m->device.kind;
    buf->ptr = m->device.ptr;
    return st;
}

// All images on the host, and the call but for its pointers.
static bool make_images(const struct attn_case *c, const struct attn_data *d,
                        struct case_memory *mem)
{
    const bool packed = c->layout == LAY_PACKED_QKV;
    const float *const from[3] = {d->q, d->k, d->v};
    clattn_attention_call *call = &mem->call;
    clattn_tensor *const tensor[3] = {&call->q, &call->k, &call->v};
    clattn_attention_call_init(call, sizeof *call);
    call->batch = c->batch;
    call->len_q = c->len_q;
    call->len_kv = c->len_kv;
    call->set = c->has_scale ? CLATTN_SET_SCALE : 0;
    call->scale = c->scale;
    for (int n = 0; n < 3; n++) {
        const struct view w = tensor_view(c, n);
        struct image *m = &mem->image[packed ? 0 : n];
        if (!m->bytes && !image_make(m, w.size * sizeof(float)))
            return false;
        pack(m, &w, from[n]);
        *tensor[n] = tensor_of(&w);
    }
    if (c->mask_form != MASK_NONE && !make_mask(c, d, mem))
        return false;
    const struct view w = tensor_view(c, 3);
    if (!image_make(&mem->image[IMG_O], w.size * sizeof(float)))
        return false;
    call->o = tensor_of(&w);
    if (case_features(c) & CLATTN_FEATURE_LSE) {
        const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
        if (!image_make(&mem->image[IMG_LSE], rows * sizeof(float)))
            return false;
        call->lse.offset_bytes = GUARD_BYTES;
        call->lse.size_bytes = GUARD_BYTES + rows * sizeof(float);
    }
    return true;
}

clattn_status case_memory_make(clattn_context *ctx, const struct attn_case *c,
                               const struct attn_data *d, enum case_memory_kind kind,
                               struct case_memory *mem)
{
    const bool packed = c->layout == LAY_PACKED_QKV;
    memset(mem, 0, sizeof *mem);
    if (!make_images(c, d, mem))
        return CLATTN_ERR_OUT_OF_MEMORY;
    clattn_attention_call *call = &mem->call;
    clattn_buf *const buf[IMG_COUNT] = {&call->q.buf,    &call->k.buf, &call->v.buf,
                                        &call->mask.buf, &call->o.buf, &call->lse};
    clattn_status st = CLATTN_OK;
    for (int n = 0; st == CLATTN_OK && n < IMG_COUNT; n++)
        st = attach(ctx, &mem->image[packed && n < 3 ? 0 : n], kind, buf[n]);
    return st;
}

void case_memory_free(clattn_context *ctx, struct case_memory *mem)
{
    for (int n = 0; n < IMG_COUNT; n++) {
        clattn_mem_destroy(ctx, &mem->image[n].device);
        free(mem->image[n].bytes);
    }
    memset(mem, 0, sizeof *mem);
}

clattn_status case_memory_read(clattn_context *ctx, struct case_memory *mem)
{
    clattn_status st = CLATTN_OK;
    for (int n = IMG_O; st == CLATTN_OK && n <= IMG_LSE; n++) {
        struct image *m = &mem->image[n];
        if (m->bytes && m->device.kind != CLATTN_BUF_ABSENT)
            st = clattn_mem_read(ctx, &m->device, m->bytes, m->size);
    }
    return st;
}

clattn_status case_memory_reset(clattn_context *ctx, struct case_memory *mem)
{
    clattn_status st = CLATTN_OK;
    for (int n = IMG_O; st == CLATTN_OK && n <= IMG_LSE; n++) {
        struct image *m = &mem->image[n];
        if (!m->bytes)
            continue;
        fill_unwritten(m->bytes, m->size / 4);
        if (m->device.kind != CLATTN_BUF_ABSENT)
            st = clattn_mem_write(ctx, &m->device, m->bytes, m->size);
    }
    return st;
}

// ---- check --------------------------------------------------------------------------------------

CASE_PRINTF(2, 3)
static void say(struct case_check *check, const char *format, ...)
{
    const size_t used = strlen(check->why);
    va_list args;
    va_start(args, format);
    if (used > 0 && used + 1 < sizeof check->why)
        memcpy(check->why + used, "\n", 2);
    vsnprintf(check->why + strlen(check->why), sizeof check->why - strlen(check->why), format,
              args);
    va_end(args);
}

// Everything that no element of the view covers must still hold the pattern.
static void check_rest(const char *what, const struct image *m, const struct view *w,
                       struct case_check *check)
{
    const size_t count = m->size / 4;
    unsigned char *covered = calloc(count, 1);
    if (!covered) {
        say(check, "%s: no memory", what);
        return;
    }
    for (size_t b = 0; b < w->extent[0]; b++)
        for (size_t h = 0; h < w->extent[1]; h++)
            for (size_t s = 0; s < w->extent[2]; s++)
                memset(covered + GUARD_BYTES / 4 + at(w, b, h, s), 1, w->dim);
    bool ok = true;
    for (size_t n = 0; n < count && ok; n++) {
        uint32_t bits;
        memcpy(&bits, m->bytes + n * 4, 4);
        ok = covered[n] || bits == UNWRITTEN_BITS;
        if (!ok)
            say(check, "%s: wrote outside, at float %lld of %zu", what,
                (long long)n - GUARD_BYTES / 4, w->size);
    }
    free(covered);
}

static void check_output(const char *what, const struct image *m, const struct view *w,
                         const float *expected, const struct tolerance *tol,
                         struct case_check *check)
{
    const size_t count = w->extent[0] * w->extent[1] * w->extent[2] * w->dim;
    float *out = malloc((count + 1) * sizeof *out);
    if (!out) {
        say(check, "%s: no memory", what);
        return;
    }
    unpack(m, w, out);
    struct compare_report report;
    if (!compare(out, expected, count, tol, &report)) {
        char text[400];
        compare_text(what, &report, text, sizeof text);
        say(check, "%s", text);
    }
    if (report.worst_ratio > check->worst_ratio)
        check->worst_ratio = report.worst_ratio;
    if (strcmp(what, "O") == 0)
        check->max_abs = report.max_abs;
    free(out);
    check_rest(what, m, w, check);
}

bool case_memory_check(const struct attn_case *c, const struct attn_data *d,
                       const struct case_memory *m, struct case_check *check)
{
    const struct view w = tensor_view(c, 3);
    memset(check, 0, sizeof *check);
    check_output("O", &m->image[IMG_O], &w, d->o, &d->tol_o, check);
    if (m->image[IMG_LSE].bytes) {
        const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
        const struct view lse = {.extent = {1, 1, 1}, .dim = rows, .size = rows};
        check_output("LSE", &m->image[IMG_LSE], &lse, d->lse, &d->tol_lse, check);
    }
    return check->why[0] == '\0';
}

bool case_inputs_untouched(clattn_context *ctx, const struct attn_case *c,
                           const struct attn_data *d, const struct case_memory *m)
{
    struct case_memory fresh;
    bool same = case_memory_make(ctx, c, d, MEMORY_HOST, &fresh) == CLATTN_OK;
    for (int n = 0; same && n <= IMG_MASK; n++)
        same = !fresh.image[n].bytes ||
               memcmp(fresh.image[n].bytes, m->image[n].bytes, fresh.image[n].size) == 0;
    case_memory_free(ctx, &fresh);
    return same;
}
