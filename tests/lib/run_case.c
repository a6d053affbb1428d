// SPDX-License-Identifier: Apache-2.0
#include "run_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- plans --------------------------------------------------------------------------------------

struct kept_plan {
    struct kept_plan *next;
    int32_t key[6];
    clattn_plan *plan;
};

static uint32_t features_of(const struct attn_case *c)
{
    // Each fourth case leaves the log-sum-exp out.
    return (c->causal ? CLATTN_FEATURE_CAUSAL : 0u) |
           (c->mask_form != MASK_NONE ? CLATTN_FEATURE_MASK : 0u) |
           (c->seed % 4 ? CLATTN_FEATURE_LSE : 0u);
}

clattn_plan *case_plan(struct test_target *t, const struct attn_case *c)
{
    const int32_t key[6] = {c->dim,   c->heads_q, c->heads_kv, (int32_t)features_of(c),
                            c->align, case_dim_v(c)};
    for (struct kept_plan *p = t->plans; p; p = p->next)
        if (memcmp(p->key, key, sizeof key) == 0)
            return p->plan;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.dim_v = case_dim_v(c);
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = features_of(c);
    desc.align = c->align;
    desc.max_len_q = CASE_MAX_LEN;
    desc.max_len_kv = CASE_MAX_LEN;
    struct kept_plan *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->plan = target_plan(t, desc);
    memcpy(p->key, key, sizeof key);
    p->next = t->plans;
    t->plans = p;
    return p->plan;
}

void target_plans_close(struct test_target *t)
{
    for (struct kept_plan *p = t->plans, *next; p; p = next) {
        next = p->next;
        clattn_plan_destroy(&p->plan);
        free(p);
    }
    t->plans = NULL;
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

enum { IMG_Q, IMG_K, IMG_V, IMG_MASK, IMG_O, IMG_LSE, IMG_COUNT };

struct image {
    unsigned char *bytes; // guard, storage, guard; NULL if the case has none
    size_t size;
    clattn_buf device; // with MEMORY_DEVICE
};

struct memory {
    struct image image[IMG_COUNT];
    clattn_attention_call call;
    size_t mask_offset;
};

static void image_make(struct image *m, size_t storage_bytes)
{
    m->size = storage_bytes + 2 * GUARD_BYTES;
    m->bytes = malloc(m->size);
    assert_non_null(m->bytes);
    fill_unwritten(m->bytes, m->size / 4);
    memset(m->bytes + m->size / 4 * 4, 0xa5, m->size % 4);
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
    // Strides must not be read where the layout is a contiguous one.
    const bool strided = w->layout == CLATTN_LAYOUT_STRIDED;
    t.stride_batch = strided ? (int64_t)w->stride[0] : -7;
    t.stride_head = strided ? (int64_t)w->stride[1] : -7;
    t.stride_seq = strided ? (int64_t)w->stride[2] : -7;
    return t;
}

// Writes the mask in its form and describes it. Bytes that belong to nobody are non-zero, so a
// read of them makes a hidden key visible.
static void make_mask(const struct attn_case *c, const struct attn_data *d, struct memory *mem)
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
    image_make(m, bytes + 3);
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
}

// Gives `buf` its memory: the image itself, or a copy of it on the device.
static void attach(const struct test_target *t, struct image *m, enum case_memory where,
                   clattn_buf *buf)
{
    if (!m->bytes)
        return;
    if (where == MEMORY_HOST) {
        buf->kind = CLATTN_BUF_HOST;
        buf->ptr = m->bytes;
        return;
    }
    if (m->device.kind == CLATTN_BUF_ABSENT) {
        assert_int_equal(clattn_mem_create(t->device->ctx, m->size, &m->device), CLATTN_OK);
        assert_int_equal(clattn_mem_write(t->device->ctx, &m->device, m->bytes, m->size),
                         CLATTN_OK);
    }
    buf->kind = m->device.kind;
    buf->ptr = m->device.ptr;
}

static void memory_make(const struct test_target *t, const struct attn_case *c,
                        const struct attn_data *d, enum case_memory where, struct memory *mem)
{
    memset(mem, 0, sizeof *mem);
    const bool packed = c->layout == LAY_PACKED_QKV;
    const float *const from[3] = {d->q, d->k, d->v};
    clattn_attention_call *call = &mem->call;
    clattn_attention_call_init(call, sizeof *call);
    clattn_tensor *const tensor[3] = {&call->q, &call->k, &call->v};
    call->batch = c->batch;
    call->len_q = c->len_q;
    call->len_kv = c->len_kv;
    call->set = c->has_scale ? CLATTN_SET_SCALE : 0;
    call->scale = c->scale;
    for (int n = 0; n < 3; n++) {
        const struct view w = tensor_view(c, n);
        struct image *m = &mem->image[packed ? 0 : n];
        if (!m->bytes)
            image_make(m, w.size * sizeof(float));
        pack(m, &w, from[n]);
        *tensor[n] = tensor_of(&w);
    }
    if (c->mask_form != MASK_NONE)
        make_mask(c, d, mem);
    const struct view w = tensor_view(c, 3);
    image_make(&mem->image[IMG_O], w.size * sizeof(float));
    call->o = tensor_of(&w);
    if (features_of(c) & CLATTN_FEATURE_LSE) {
        const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
        image_make(&mem->image[IMG_LSE], rows * sizeof(float));
        call->lse.offset_bytes = GUARD_BYTES;
        call->lse.size_bytes = GUARD_BYTES + rows * sizeof(float);
    }
    for (int n = 0; n < 3; n++)
        attach(t, &mem->image[packed ? 0 : n], where, &tensor[n]->buf);
    attach(t, &mem->image[IMG_MASK], where, &call->mask.buf);
    attach(t, &mem->image[IMG_O], where, &call->o.buf);
    attach(t, &mem->image[IMG_LSE], where, &call->lse);
}

static void memory_free(const struct test_target *t, struct memory *mem)
{
    for (int n = 0; n < IMG_COUNT; n++) {
        clattn_mem_destroy(t->device->ctx, &mem->image[n].device);
        free(mem->image[n].bytes);
    }
}

// Brings what the device wrote into the image.
static void read_back(const struct test_target *t, struct image *m)
{
    if (m->bytes && m->device.kind != CLATTN_BUF_ABSENT)
        assert_int_equal(clattn_mem_read(t->device->ctx, &m->device, m->bytes, m->size),
                         CLATTN_OK);
}

// Everything that no element of the view covers must still hold the pattern.
static bool rest_untouched(const char *what, const struct image *m, const struct view *w)
{
    const size_t count = m->size / 4;
    unsigned char *covered = calloc(count, 1);
    assert_non_null(covered);
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
            printf("    %s: wrote outside, at float %lld of %zu\n", what,
                   (long long)n - GUARD_BYTES / 4, w->size);
    }
    free(covered);
    return ok;
}

static bool check_output(const char *what, const struct image *m, const struct view *w,
                         const float *expected, const struct tolerance *tol, double *worst)
{
    const size_t count = w->extent[0] * w->extent[1] * w->extent[2] * w->dim;
    float *out = malloc((count + 1) * sizeof *out);
    assert_non_null(out);
    unpack(m, w, out);
    struct compare_report report;
    const bool ok = compare(out, expected, count, tol, &report);
    if (!ok)
        compare_print(what, &report);
    if (worst && report.worst_ratio > *worst)
        *worst = report.worst_ratio;
    free(out);
    return rest_untouched(what, m, w) && ok;
}

static bool same_bits_again(const struct test_target *t, const clattn_plan *plan,
                            struct memory *mem)
{
    bool same = true;
    unsigned char *first[2];
    for (int n = 0; n < 2; n++) {
        struct image *m = &mem->image[IMG_O + n];
        first[n] = malloc(m->size + 1);
        assert_non_null(first[n]);
        if (!m->bytes)
            continue;
        memcpy(first[n], m->bytes, m->size);
        fill_unwritten(m->bytes, m->size / 4);
        if (m->device.kind != CLATTN_BUF_ABSENT)
            assert_int_equal(clattn_mem_write(t->device->ctx, &m->device, m->bytes, m->size),
                             CLATTN_OK);
    }
    const clattn_status st = clattn_attention_run(plan, &mem->call);
    for (int n = 0; n < 2; n++) {
        struct image *m = &mem->image[IMG_O + n];
        read_back(t, m);
        same = same && (!m->bytes || memcmp(first[n], m->bytes, m->size) == 0);
        free(first[n]);
    }
    if (st != CLATTN_OK || !same)
        printf("    the same call again: %s\n", st ? clattn_status_string(st) : "other bits");
    return st == CLATTN_OK && same;
}

// Inputs on host memory must be as they were made.
static bool inputs_untouched(const struct test_target *t, const struct attn_case *c,
                             const struct attn_data *d, const struct memory *mem)
{
    struct memory fresh;
    memory_make(t, c, d, MEMORY_HOST, &fresh);
    bool ok = true;
    for (int n = 0; n <= IMG_MASK; n++)
        if (fresh.image[n].bytes &&
            memcmp(fresh.image[n].bytes, mem->image[n].bytes, fresh.image[n].size) != 0)
            ok = false;
    if (!ok)
        printf("    an input was changed\n");
    memory_free(t, &fresh);
    return ok;
}

bool run_case(struct test_target *t, const struct attn_case *c, const struct attn_data *d,
              enum case_memory where, bool twice, double *worst)
{
    clattn_plan *plan = case_plan(t, c);
    struct memory mem;
    memory_make(t, c, d, where, &mem);
    const clattn_status st = clattn_attention_run(plan, &mem.call);
    bool ok = st == CLATTN_OK;
    if (ok) {
        const struct view w = tensor_view(c, 3);
        read_back(t, &mem.image[IMG_O]);
        read_back(t, &mem.image[IMG_LSE]);
        ok = check_output("O", &mem.image[IMG_O], &w, d->o, &d->tol_o, worst);
        if (mem.image[IMG_LSE].bytes) {
            const size_t rows = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
            const struct view lse = {.extent = {1, 1, 1}, .dim = rows, .size = rows};
            ok = check_output("LSE", &mem.image[IMG_LSE], &lse, d->lse, &d->tol_lse, worst) && ok;
        }
        if (where == MEMORY_HOST)
            ok = inputs_untouched(t, c, d, &mem) && ok;
        if (twice)
            ok = same_bits_again(t, plan, &mem) && ok;
    }
    if (!ok)
        printf("  FAILED %s on %s (%s memory): batch %d, heads %d/%d, len %d x %d, dim %d/%d, "
               "seed %llu: %s\n",
               c->name, t->name, where == MEMORY_HOST ? "host" : "device", c->batch, c->heads_q,
               c->heads_kv, c->len_q, c->len_kv, c->dim, case_dim_v(c), (unsigned long long)c->seed,
               clattn_status_string(st));
    memory_free(t, &mem);
    return ok;
}

clattn_attention_call case_host_call(const struct attn_case *c, const float *q, const float *k,
                                     const float *v, const uint8_t *mask, float *o, float *lse)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = c->batch;
    call.len_q = c->len_q;
    call.len_kv = c->len_kv;
    call.set = c->has_scale ? CLATTN_SET_SCALE : 0;
    call.scale = c->scale;
    call.q.buf = clattn_host_buf(q, 0);
    call.k.buf = clattn_host_buf(k, 0);
    call.v.buf = clattn_host_buf(v, 0);
    call.mask.buf = clattn_host_buf(mask, 0);
    call.o.buf = clattn_host_buf(o, 0);
    call.lse = clattn_host_buf(lse, 0);
    return call;
}
