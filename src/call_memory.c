// SPDX-License-Identifier: Apache-2.0
// Checks of a call's buffers: kinds, sizes, strides, overlaps.
#include "call_memory.h"

#include <stdio.h>
#include <string.h>

// ---- facts --------------------------------------------------------------------------------------

void cla_facts_begin(struct cla_facts *f, cla_mem_fn ask, void *user)
{
    f->ask = ask;
    f->user = user;
    f->count = 0;
}

static clattn_status recall(void *user, void *mem, struct cla_mem_facts *facts)
{
    struct cla_facts *f = user;
    for (int i = 0; i < f->count; i++)
        if (f->kept[i].mem == mem) {
            *facts = f->kept[i].facts;
            return CLATTN_OK;
        }
    const clattn_status st = f->ask(f->user, mem, facts);
    if (st == CLATTN_OK && f->count < CLA_FACTS_KEPT) {
        f->kept[f->count].mem = mem;
        f->kept[f->count++].facts = *facts;
    }
    return st;
}

cla_mem_fn cla_facts_fn(const struct cla_facts *f)
{
    return f->ask ? recall : NULL;
}

// ---- one buffer ---------------------------------------------------------------------------------

// *acc += a * b, false on overflow. a, b >= 0.
static bool add_product(int64_t *acc, int64_t a, int64_t b)
{
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*acc, product, acc);
}

// Size of a cl_mem, or why it is none that can be used.
static clattn_status mem_size(const char *name, const clattn_buf *buf, cla_mem_fn mem_facts,
                              void *user, const struct cla_log *log, size_t *whole)
{
    if (!mem_facts)
        return cla_fail(log, CLATTN_ERR_BUFFER_MISSING,
                        "%s.buf.kind is %d, a cl_mem, but the context has no OpenCL device", name,
                        (int)buf->kind);
    struct cla_mem_facts facts = {0};
    const clattn_status st = mem_facts(user, buf->ptr, &facts);
    if (st == CLATTN_ERR_WRONG_CONTEXT)
        return cla_fail(log, st, "%s.buf.ptr %p is a cl_mem of another context", name, buf->ptr);
    if (st == CLATTN_ERR_OUT_OF_MEMORY)
        return cla_fail(log, st, "%s.buf.ptr %p: the driver has no memory to tell of it", name,
                        buf->ptr);
    if (st != CLATTN_OK)
        return cla_fail(log, st, "%s.buf.ptr %p is no cl_mem, or none that is a buffer", name,
                        buf->ptr);
    *whole = facts.bytes;
    return CLATTN_OK;
}

// "2 x 8 x 16": with one axis more where `innermost` is not 0.
static void numbers_text(const int64_t *numbers, int axes, int64_t innermost, char *text,
                         size_t size)
{
    size_t used = 0;
    for (int i = 0; i < axes + (innermost != 0) && used < size; i++) {
        const int64_t n = i < axes ? numbers[i] : innermost;
        const int added =
            snprintf(text + used, size - used, "%s%lld", i ? " x " : "", (long long)n);
        used += added > 0 ? (size_t)added : 0;
    }
}

static clattn_status too_small(const char *name, size_t end_bytes, size_t size,
                               const struct cla_shape *shape, const struct cla_log *log)
{
    char extents[120] = "", strides[120] = "";
    if (shape) {
        // Where nothing is innermost, elements are counted by the axes alone.
        numbers_text(shape->extent, shape->axes, shape->innermost > 1 ? shape->innermost : 0,
                     extents, sizeof extents);
        numbers_text(shape->stride, shape->axes, 0, strides, sizeof strides);
    }
    return cla_fail(log, CLATTN_ERR_BUFFER_TOO_SMALL,
                    "%s needs %zu bytes from the start of its memory%s%s%s%s%s, it has %zu", name,
                    end_bytes, shape ? " (" : "", extents, shape ? " with strides " : "", strides,
                    shape ? ")" : "", size);
}

clattn_status cla_buf_check(const char *name, const clattn_buf *buf, size_t elem_bytes,
                            size_t end_bytes, const struct cla_shape *shape, cla_mem_fn mem_facts,
                            void *user, const struct cla_log *log)
{
    if (buf->reserved)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s.buf.reserved is %u, not 0", name,
                        (unsigned)buf->reserved);
    if (buf->kind < CLATTN_BUF_ABSENT || buf->kind > CLATTN_BUF_CL_MEM)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s.buf.kind is %d, not 0 to %d", name,
                        (int)buf->kind, (int)CLATTN_BUF_CL_MEM);
    if (buf->kind == CLATTN_BUF_ABSENT || !buf->ptr)
        return cla_fail(log, CLATTN_ERR_BUFFER_MISSING, "%s is absent (kind %d, ptr %s)", name,
                        (int)buf->kind, buf->ptr ? "set" : "NULL");
    if (buf->offset_bytes % elem_bytes)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "%s.buf.offset_bytes is %zu, no multiple of the element's %zu bytes", name,
                        buf->offset_bytes, elem_bytes);
    if (buf->kind == CLATTN_BUF_HOST && (uintptr_t)buf->ptr % elem_bytes)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "%s.buf.ptr %p is not aligned to the element's %zu bytes", name, buf->ptr,
                        elem_bytes);
    size_t size = buf->size_bytes;
    if (buf->kind == CLATTN_BUF_CL_MEM) {
        size_t whole = 0;
        const clattn_status st = mem_size(name, buf, mem_facts, user, log, &whole);
        if (st != CLATTN_OK)
            return st;
        if (size > whole)
            return cla_fail(log, CLATTN_ERR_BUFFER_TOO_SMALL,
                            "%s.buf.size_bytes %zu is more than the cl_mem's %zu", name, size,
                            whole);
        if (!size)
            size = whole;
    }
    return size && end_bytes > size ? too_small(name, end_bytes, size, shape, log) : CLATTN_OK;
}

clattn_status cla_check_buf(const struct cla_checker *c, const char *name, const clattn_buf *buf,
                            size_t elem_bytes, size_t end_bytes, const struct cla_shape *shape)
{
    return cla_buf_check(name, buf, elem_bytes, end_bytes, shape, c->mem_facts, c->user, c->log);
}

// What overflows is the caller's strides, or the shape where they follow from it.
static clattn_status overflow(const struct cla_checker *c, const char *name,
                              const struct cla_shape *shape, bool strided)
{
    char text[96] = "";
    numbers_text(strided ? shape->stride : shape->extent, shape->axes, 0, text, sizeof text);
    return strided ? cla_fail(c->log, CLATTN_ERR_STRIDE, "%s: strides %s overflow 64 bits", name,
                              text)
                   : cla_fail(c->log, CLATTN_ERR_SHAPE, "%s: extents %s overflow 64 bits", name,
                              text);
}

// Bytes from the start of the memory that are reached: offset + last element.
static clattn_status reach(const struct cla_checker *c, const char *name, size_t offset_bytes,
                           size_t elem_bytes, const struct cla_shape *shape, bool strided,
                           size_t *end_bytes)
{
    int64_t last = shape->innermost, bytes = 0;
    bool ok = true;
    for (int i = 0; i < shape->axes; i++)
        ok = ok && add_product(&last, shape->extent[i] - 1, shape->stride[i]);
    if (!ok || !add_product(&bytes, last, (int64_t)elem_bytes))
        return overflow(c, name, shape, strided);
    if ((uint64_t)bytes > SIZE_MAX || offset_bytes > SIZE_MAX / 2 ||
        (uint64_t)bytes > SIZE_MAX / 2 - offset_bytes)
        return cla_fail(c->log, CLATTN_ERR_BUFFER_TOO_SMALL,
                        "%s.buf.offset_bytes is %zu, from where no memory has %lld bytes", name,
                        offset_bytes, (long long)bytes);
    *end_bytes = (size_t)bytes + offset_bytes;
    return CLATTN_OK;
}

// Strides beside a layout that says them already: none, or those.
static clattn_status check_unread_stride(const struct cla_checker *c, const char *name,
                                         int64_t extent, int64_t given, int64_t own,
                                         const char *axis)
{
    // An axis of one element has no step.
    if (!given || given == own || extent < 2)
        return CLATTN_OK;
    return cla_fail(c->log, CLATTN_ERR_STRIDE,
                    "%s.%s is %lld, but %s.layout makes it %lld: leave it 0, or say "
                    "CLATTN_LAYOUT_STRIDED there",
                    name, axis, (long long)given, name, (long long)own);
}

// Elements of an output may not overlap: sorted by stride, each axis must step at least over what
// the smaller ones span.
static clattn_status check_no_self_overlap(const struct cla_checker *c, const char *name,
                                           const int64_t extent[3], const int64_t stride[3],
                                           int64_t innermost)
{
    int order[3] = {0, 1, 2};
    for (int i = 1; i < 3; i++) {
        for (int k = i; k > 0 && stride[order[k]] < stride[order[k - 1]]; k--) {
            const int t = order[k];
            order[k] = order[k - 1];
            order[k - 1] = t;
        }
    }
    int64_t span = innermost;
    for (int i = 0; i < 3; i++) {
        const int axis = order[i];
        if (extent[axis] < 2)
            continue;
        if (stride[axis] < span)
            return cla_fail(c->log, CLATTN_ERR_STRIDE,
                            "%s: stride %lld of axis %d is less than the %lld elements that the "
                            "smaller axes span, so elements overlap",
                            name, (long long)stride[axis], axis, (long long)span);
        span += (extent[axis] - 1) * stride[axis]; // reach() has checked this for overflow
    }
    return CLATTN_OK;
}

clattn_status cla_check_tensor(const struct cla_checker *c, const char *name,
                               const clattn_tensor *t, const int64_t extent[3], int64_t dim,
                               int32_t dtype, bool output, struct cla_tensor *out)
{
    clattn_status st = CLATTN_OK;
    const size_t elem_bytes = cla_dtype_bytes(dtype);
    const int64_t heads = extent[1], len = extent[2];
    if (t->layout < 0 || t->layout > CLATTN_LAYOUT_STRIDED)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.layout is %d, not 0 to %d", name,
                         (int)t->layout, (int)CLATTN_LAYOUT_STRIDED));
    if (t->reserved)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.reserved is %d, not 0", name,
                         (int)t->reserved));
    *out = (struct cla_tensor){0};
    if (extent[0] == 0 || len == 0) // an empty tensor needs no memory: what is given is not used
        goto done;
    out->buf = t->buf;
    static const char *const axis_name[3] = {"stride_batch", "stride_head", "stride_seq"};
    const int64_t given[3] = {t->stride_batch, t->stride_head, t->stride_seq};
    int64_t s[3] = {given[0], given[1], given[2]};
    const bool strided = t->layout == CLATTN_LAYOUT_STRIDED;
    if (t->layout != CLATTN_LAYOUT_STRIDED) {
        int64_t rows = 0, all = 0;
        if (!add_product(&rows, heads, len) || !add_product(&all, rows, dim))
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_SHAPE,
                             "%s: %lld heads x %lld x %lld overflows 64 bits", name,
                             (long long)heads, (long long)len, (long long)dim));
        const bool bshd = t->layout == CLATTN_LAYOUT_BSHD;
        s[0] = all;
        s[1] = bshd ? dim : len * dim;
        s[2] = bshd ? heads * dim : dim;
        for (int i = 0; i < 3; i++)
            CLA_TRY(check_unread_stride(c, name, extent[i], given[i], s[i], axis_name[i]));
    }
    for (int i = 0; i < 3; i++) {
        if (s[i] < 0)
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_STRIDE, "%s: stride %lld of axis %d is negative",
                             name, (long long)s[i], i));
        out->stride[i] = extent[i] < 2 ? 0 : s[i]; // of one element it may be anything, huge too
    }
    const struct cla_shape shape = {3, extent, s, dim};
    CLA_TRY(reach(c, name, t->buf.offset_bytes, elem_bytes, &shape, strided, &out->end_bytes));
    if (output)
        CLA_TRY(check_no_self_overlap(c, name, extent, s, dim));
    CLA_TRY(cla_check_buf(c, name, &t->buf, elem_bytes, out->end_bytes, &shape));
    out->offset = (int64_t)(t->buf.offset_bytes / elem_bytes);
done:
    return st;
}

clattn_status cla_check_mask(const struct cla_checker *c, const char *name, const clattn_mask *m,
                             const int64_t extent[4], size_t elem_bytes, struct cla_mask *out)
{
    static const char *const axis_name[4] = {"batch", "head", "query", "key"};
    static const char *const stride_name[4] = {"stride[0]", "stride[1]", "stride[2]", "stride[3]"};
    const bool strided = m->layout == CLATTN_LAYOUT_STRIDED;
    clattn_status st = CLATTN_OK;
    *out = (struct cla_mask){0};
    if (m->layout != CLATTN_LAYOUT_BHSD && m->layout != CLATTN_LAYOUT_STRIDED)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.layout is %d, not 0 or 2", name,
                         (int)m->layout));
    if (m->reserved)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.reserved is %d, not 0", name,
                         (int)m->reserved));
    int64_t own[4];
    for (int i = 0; i < 4; i++) {
        own[i] = m->extent[i] ? m->extent[i] : extent[i];
        if (own[i] != 1 && own[i] != extent[i])
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_SHAPE,
                             "%s.extent[%d] (%s) is %lld, neither 1 nor %lld", name, i,
                             axis_name[i], (long long)own[i], (long long)extent[i]));
    }
    if (extent[0] == 0 || extent[2] == 0 || extent[3] == 0) // likewise
        goto done;
    out->buf = m->buf;
    int64_t contiguous = 1;
    for (int i = 3; i >= 0; i--) {
        const int64_t s = strided ? m->stride[i] : contiguous;
        if (!strided)
            CLA_TRY(check_unread_stride(c, name, own[i], m->stride[i], s, stride_name[i]));
        if (s < 0)
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_STRIDE, "%s.stride[%d] (%s) is %lld, negative",
                             name, i, axis_name[i], (long long)s));
        if (__builtin_mul_overflow(contiguous, own[i], &contiguous))
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_SHAPE,
                             "%s: extents from %s.extent[%d] (%lld) on overflow 64 bits", name,
                             name, i, (long long)own[i]));
        out->stride[i] = own[i] == 1 ? 0 : s;
    }
    const struct cla_shape shape = {4, own, out->stride, 1};
    CLA_TRY(reach(c, name, m->buf.offset_bytes, elem_bytes, &shape, strided, &out->end_bytes));
    CLA_TRY(cla_check_buf(c, name, &m->buf, elem_bytes, out->end_bytes, &shape));
    out->offset = (int64_t)(m->buf.offset_bytes / elem_bytes);
done:
    return st;
}

clattn_status cla_check_vector(const struct cla_checker *c, const char *name,
                               const clattn_buf *buf, const int64_t extent[3], size_t elem_bytes,
                               struct cla_vector *out)
{
    int64_t rows = 0, all = 0;
    if (!add_product(&rows, extent[0], extent[1]) || !add_product(&all, rows, extent[2]))
        return cla_fail(c->log, CLATTN_ERR_SHAPE, "%s: %lld * %lld * %lld overflows 64 bits", name,
                        (long long)extent[0], (long long)extent[1], (long long)extent[2]);
    *out = (struct cla_vector){0};
    if (all == 0)
        return CLATTN_OK;
    out->buf = *buf;
    const int64_t contiguous[3] = {extent[1] * extent[2], extent[2], 1};
    const struct cla_shape shape = {3, extent, contiguous, 1};
    clattn_status st =
        reach(c, name, buf->offset_bytes, elem_bytes, &shape, false, &out->end_bytes);
    out->offset = (int64_t)(buf->offset_bytes / elem_bytes);
    return st == CLATTN_OK ? cla_check_buf(c, name, buf, elem_bytes, out->end_bytes, &shape) : st;
}

// ---- overlaps ----------------------------------------------------------------------------

// Where a range lies: from begin to end in the memory `root`, which is NULL for the host's.
struct place {
    int32_t kind;
    void *root;
    uintptr_t begin, end;
};

static struct place place_of(const struct cla_buf_range *r, cla_mem_fn mem_facts, void *user)
{
    struct cla_mem_facts facts = {0};
    uintptr_t base = 0;
    void *root = r->buf->ptr;
    if (r->buf->kind == CLATTN_BUF_HOST) {
        base = (uintptr_t)root;
        root = NULL; // there is one host memory
    } else if (mem_facts && mem_facts(user, root, &facts) == CLATTN_OK && facts.root) {
        base = facts.root_offset;
        root = facts.root;
    }
    return (struct place){r->buf->kind, root, base + r->buf->offset_bytes, base + r->end_bytes};
}

static bool meet(const struct place *a, const struct place *b)
{
    return a->kind == b->kind && a->root == b->root && a->begin < b->end && b->begin < a->end;
}

bool cla_ranges_overlap(const struct cla_buf_range *a, const struct cla_buf_range *b,
                        cla_mem_fn mem_facts, void *user)
{
    if (!a->end_bytes || !b->end_bytes || a->buf->kind != b->buf->kind)
        return false;
    const struct place x = place_of(a, mem_facts, user), y = place_of(b, mem_facts, user);
    return meet(&x, &y);
}

clattn_status cla_check_overlaps(const struct cla_checker *c, const struct cla_call *call)
{
    const struct cla_buf_range r[] = {
        {"o", &call->o.buf, call->o.end_bytes},
        {"lse", &call->lse, call->lse_end_bytes},
        {"faults", &call->faults.buf, call->faults.end_bytes},
        {"q", &call->q.buf, call->q.end_bytes},
        {"k", &call->k.buf, call->k.end_bytes},
        {"v", &call->v.buf, call->v.end_bytes},
        {"mask", &call->mask.buf, call->mask.end_bytes},
        {"bias", &call->bias.buf, call->bias.end_bytes},
        {"alibi", &call->alibi.buf, call->alibi.end_bytes},
        {"sinks", &call->sinks.buf, call->sinks.end_bytes},
        {"kv_lens", &call->kv_lens.buf, call->kv_lens.end_bytes},
        {"cu_seqlens_q", &call->cu_q.buf, call->cu_q.end_bytes},
        {"cu_seqlens_kv", &call->cu_kv.buf, call->cu_kv.end_bytes},
        {"page_table", &call->table.buf, call->table.end_bytes},
        {"k_scale", &call->k_scale.buf, call->k_scale.end_bytes},
        {"v_scale", &call->v_scale.buf, call->v_scale.end_bytes},
    };
    enum { OUTPUTS = 3, COUNT = sizeof r / sizeof r[0] };
    struct place place[COUNT]; // of those that are there, whose number in r is `of`
    int of[COUNT], count = 0;
    for (int i = 0; i < COUNT; i++) {
        if (!r[i].end_bytes)
            continue;
        const struct place here = place_of(&r[i], c->mem_facts, c->user);
        for (int k = 0; k < count && of[k] < OUTPUTS; k++) {
            const struct cla_buf_range *out = &r[of[k]];
            if (meet(&place[k], &here))
                return cla_fail(c->log, CLATTN_ERR_OVERLAP,
                                "%s (bytes %zu to %zu) overlaps %s (bytes %zu to %zu)", out->name,
                                out->buf->offset_bytes, out->end_bytes, r[i].name,
                                r[i].buf->offset_bytes, r[i].end_bytes);
        }
        place[count] = here;
        of[count++] = i;
    }
    return CLATTN_OK;
}
