// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"
#include "clattn/softmax.h"

enum { DIM_MAX = 576, SPLITS_MAX = 65535 };

// ---- description -------------------------------------------------------------------------------

// A field that only one algorithm reads.
static clattn_status check_owner(const struct cla_log *log, const clattn_attention_desc *d,
                                 const char *field, int32_t value, int32_t owner, const char *name)
{
    if (value && d->algo != owner)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %d, but algo is %d, not %d (%s)",
                        field, (int)value, (int)d->algo, (int)owner, name);
    return CLATTN_OK;
}

static clattn_status check_desc_enums(const clattn_attention_desc *d, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(cla_check_enum(log, "dtype_q", d->dtype_q, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_kv", d->dtype_kv, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_o", d->dtype_o, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "align", d->align, CLATTN_ALIGN_TOP_LEFT));
    CLA_TRY(cla_check_enum(log, "algo", d->algo, CLATTN_ALGO_UNFUSED));
    CLA_TRY(cla_check_enum(log, "kernel", d->kernel, CLATTN_KERNEL_SUBGROUP));
    CLA_TRY(cla_check_enum(log, "precision", d->precision, CLATTN_PRECISION_FULL));
    CLA_TRY(cla_check_bits(log, "features", d->features,
                           CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE));
    CLA_TRY(cla_check_bits(log, "flags", d->flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_check_enum(log, "softmax", d->softmax, CLATTN_SOFTMAX_ONLINE));
    CLA_TRY(cla_check_enum(log, "num_splits", d->num_splits, SPLITS_MAX));
    CLA_TRY(check_owner(log, d, "num_splits", d->num_splits, CLATTN_ALGO_SPLIT_KV, "split_kv"));
    CLA_TRY(check_owner(log, d, "softmax", d->softmax, CLATTN_ALGO_UNFUSED, "unfused"));
    if (d->kernel != CLATTN_KERNEL_AUTO &&
        (d->algo == CLATTN_ALGO_HOST || d->algo == CLATTN_ALGO_REFERENCE ||
         d->algo == CLATTN_ALGO_UNFUSED))
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "kernel is %d, but algo %d has no kernel shapes", (int)d->kernel,
                         (int)d->algo));
done:
    return st;
}

static clattn_status check_desc_shape(const clattn_attention_desc *d, const struct cla_log *log)
{
    if (d->dim_qk < 1 || d->dim_qk > DIM_MAX)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk is %d, not 1 to %d",
                        (int)d->dim_qk, DIM_MAX);
    if (d->dim_v < 0 || d->dim_v > DIM_MAX)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "dim_v is %d, not 0 to %d",
                        (int)d->dim_v, DIM_MAX);
    if (d->heads_q < 1)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "heads_q is %d, less than 1",
                        (int)d->heads_q);
    if (d->heads_kv < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "heads_kv is %d, less than 0",
                        (int)d->heads_kv);
    if (d->max_batch < 0 || d->max_len_q < 0 || d->max_len_kv < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "a bound is negative: max_batch %d, max_len_q %d, max_len_kv %d",
                        (int)d->max_batch, (int)d->max_len_q, (int)d->max_len_kv);
    const int32_t heads_kv = d->heads_kv ? d->heads_kv : d->heads_q;
    if (d->heads_q % heads_kv)
        return cla_fail(log, CLATTN_ERR_SHAPE, "heads_q %d is not a multiple of heads_kv %d",
                        (int)d->heads_q, (int)heads_kv);
    return CLATTN_OK;
}

static clattn_status check_desc_reserved(const clattn_attention_desc *d, const struct cla_log *log)
{
    if (d->dtype_q || d->dtype_kv || d->dtype_o)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "dtype_q %d, dtype_kv %d, dtype_o %d: only 0 (f32) is served",
                        (int)d->dtype_q, (int)d->dtype_kv, (int)d->dtype_o);
    if (d->direction)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED, "direction is %d: only 0 (forward) is served",
                        (int)d->direction);
    if (!(d->dropout_p == 0.0f))
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED, "dropout_p is %g: only 0 is served",
                        (double)d->dropout_p);
    return CLATTN_OK;
}

clattn_status cla_problem_from_desc(const clattn_attention_desc *desc, const struct cla_log *log,
                                    struct cla_problem *out)
{
    clattn_status st = CLATTN_OK;
    clattn_attention_desc d;
    if (!desc)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "desc is NULL");
    CLA_TRY(cla_struct_in("clattn_attention_desc", desc,
                          CLA_SIZE_TO(clattn_attention_desc, dropout_p), &d, sizeof d, log));
    CLA_TRY(check_desc_enums(&d, log));
    CLA_TRY(check_desc_shape(&d, log));
    CLA_TRY(check_desc_reserved(&d, log));

    const int32_t heads_kv = d.heads_kv ? d.heads_kv : d.heads_q;
    *out = (struct cla_problem){
        .dtype_q = d.dtype_q,
        .dtype_kv = d.dtype_kv,
        .dtype_o = d.dtype_o,
        .dim_qk = d.dim_qk,
        .dim_v = d.dim_v ? d.dim_v : d.dim_qk,
        .heads_q = d.heads_q,
        .heads_kv = heads_kv,
        .group = d.heads_q / heads_kv,
        .max_batch = d.max_batch ? d.max_batch : INT32_MAX,
        .max_len_q = d.max_len_q ? d.max_len_q : INT32_MAX,
        .max_len_kv = d.max_len_kv ? d.max_len_kv : INT32_MAX,
        .causal = (d.features & CLATTN_FEATURE_CAUSAL) != 0,
        .mask = (d.features & CLATTN_FEATURE_MASK) != 0,
        .lse = (d.features & CLATTN_FEATURE_LSE) != 0,
        .align = d.align,
        .algo = d.algo,
        .kernel = d.kernel,
        .precision = d.precision,
        .num_splits = d.num_splits,
        .softmax = d.softmax ? d.softmax : CLATTN_SOFTMAX_SAFE,
        .no_fallback = (d.flags & CLATTN_NO_FALLBACK) != 0,
    };
done:
    return st;
}

// ---- call: memory ------------------------------------------------------------------------------

// What all checks of one call share.
struct checker {
    const struct cla_problem *p;
    const struct cla_log *log;
    cla_mem_fn mem_facts;
    void *user;
};

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
    if (st != CLATTN_OK)
        return cla_fail(log, st, "%s.buf.ptr %p is no cl_mem, or none that is a buffer", name,
                        buf->ptr);
    *whole = facts.bytes;
    return CLATTN_OK;
}

clattn_status cla_buf_check(const char *name, const clattn_buf *buf, size_t elem_bytes,
                            size_t end_bytes, cla_mem_fn mem_facts, void *user,
                            const struct cla_log *log)
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
    if (size && end_bytes > size)
        return cla_fail(log, CLATTN_ERR_BUFFER_TOO_SMALL,
                        "%s needs %zu bytes from the start of its memory, it has %zu", name,
                        end_bytes, size);
    return CLATTN_OK;
}

static clattn_status check_buf(const struct checker *c, const char *name, const clattn_buf *buf,
                               size_t elem_bytes, size_t end_bytes)
{
    return cla_buf_check(name, buf, elem_bytes, end_bytes, c->mem_facts, c->user, c->log);
}

// What overflows is the caller's strides, or the shape where they follow from it.
static clattn_status overflow(const struct checker *c, const char *name, const int64_t *extent,
                              const int64_t *stride, int n, bool strided)
{
    const int64_t *shown = strided ? stride : extent;
    char text[96] = "";
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%lld", i ? " x " : "", (long long)shown[i]);
    }
    return strided ? cla_fail(c->log, CLATTN_ERR_STRIDE, "%s: strides %s overflow 64 bits", name,
                              text)
                   : cla_fail(c->log, CLATTN_ERR_SHAPE, "%s: extents %s overflow 64 bits", name,
                              text);
}

// Bytes from the start of the memory that are reached: offset + last element.
static clattn_status reach(const struct checker *c, const char *name, size_t offset_bytes,
                           size_t elem_bytes, const int64_t *extent, const int64_t *stride, int n,
                           int64_t innermost, bool strided, size_t *end_bytes)
{
    int64_t last = innermost, bytes = 0;
    bool ok = true;
    for (int i = 0; i < n; i++)
        ok = ok && add_product(&last, extent[i] - 1, stride[i]);
    if (!ok || !add_product(&bytes, last, (int64_t)elem_bytes))
        return overflow(c, name, extent, stride, n, strided);
    if ((uint64_t)bytes > SIZE_MAX || offset_bytes > SIZE_MAX / 2 ||
        (uint64_t)bytes > SIZE_MAX / 2 - offset_bytes)
        return cla_fail(c->log, CLATTN_ERR_BUFFER_TOO_SMALL,
                        "%s.buf.offset_bytes is %zu, from where no memory has %lld bytes", name,
                        offset_bytes, (long long)bytes);
    *end_bytes = (size_t)bytes + offset_bytes;
    return CLATTN_OK;
}

// Elements of an output may not overlap: sorted by stride, each axis must step at least over what
// the smaller ones span.
static clattn_status check_no_self_overlap(const struct checker *c, const char *name,
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

static clattn_status check_tensor(const struct checker *c, const char *name,
                                  const clattn_tensor *t, int64_t batch, int64_t heads,
                                  int64_t len, int64_t dim, bool output, struct cla_tensor *out)
{
    clattn_status st = CLATTN_OK;
    const size_t elem_bytes = sizeof(float);
    const int64_t extent[3] = {batch, heads, len};
    if (t->layout < 0 || t->layout > CLATTN_LAYOUT_STRIDED)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.layout is %d, not 0 to %d", name,
                         (int)t->layout, (int)CLATTN_LAYOUT_STRIDED));
    if (t->reserved)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "%s.reserved is %d, not 0", name,
                         (int)t->reserved));
    *out = (struct cla_tensor){.buf = t->buf};
    if (batch == 0 || len == 0) // an empty tensor needs no memory
        goto done;
    int64_t s[3] = {t->stride_batch, t->stride_head, t->stride_seq};
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
    }
    for (int i = 0; i < 3; i++) {
        if (s[i] < 0)
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_STRIDE, "%s: stride %lld of axis %d is negative",
                             name, (long long)s[i], i));
        out->stride[i] = s[i];
    }
    CLA_TRY(reach(c, name, t->buf.offset_bytes, elem_bytes, extent, s, 3, dim,
                  t->layout == CLATTN_LAYOUT_STRIDED, &out->end_bytes));
    if (output)
        CLA_TRY(check_no_self_overlap(c, name, extent, s, dim));
    CLA_TRY(check_buf(c, name, &t->buf, elem_bytes, out->end_bytes));
    out->offset = (int64_t)(t->buf.offset_bytes / elem_bytes);
done:
    return st;
}

static clattn_status check_mask(const struct checker *c, const clattn_mask *m,
                                const int64_t extent[4], struct cla_mask *out)
{
    static const char *const axis_name[4] = {"batch", "head", "query", "key"};
    clattn_status st = CLATTN_OK;
    *out = (struct cla_mask){.buf = m->buf};
    if (m->layout != CLATTN_LAYOUT_BHSD && m->layout != CLATTN_LAYOUT_STRIDED)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "mask.layout is %d, not 0 or 2",
                         (int)m->layout));
    if (m->reserved)
        CLA_TRY(cla_fail(c->log, CLATTN_ERR_INVALID_ARGUMENT, "mask.reserved is %d, not 0",
                         (int)m->reserved));
    int64_t own[4];
    for (int i = 0; i < 4; i++) {
        own[i] = m->extent[i] ? m->extent[i] : extent[i];
        if (own[i] != 1 && own[i] != extent[i])
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_SHAPE,
                             "mask.extent[%d] (%s) is %lld, neither 1 nor %lld", i, axis_name[i],
                             (long long)own[i], (long long)extent[i]));
    }
    if (extent[0] == 0 || extent[2] == 0 || extent[3] == 0) // an empty mask needs no memory
        goto done;
    int64_t contiguous = 1;
    for (int i = 3; i >= 0; i--) {
        int64_t s = m->layout == CLATTN_LAYOUT_STRIDED ? m->stride[i] : contiguous;
        if (s < 0)
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_STRIDE, "mask.stride[%d] (%s) is %lld, negative",
                             i, axis_name[i], (long long)s));
        if (__builtin_mul_overflow(contiguous, own[i], &contiguous))
            CLA_TRY(cla_fail(c->log, CLATTN_ERR_SHAPE,
                             "mask: extents from mask.extent[%d] (%lld) on overflow 64 bits", i,
                             (long long)own[i]));
        out->stride[i] = own[i] == 1 ? 0 : s;
    }
    CLA_TRY(reach(c, "mask", m->buf.offset_bytes, 1, own, out->stride, 4, 1,
                  m->layout == CLATTN_LAYOUT_STRIDED, &out->end_bytes));
    CLA_TRY(check_buf(c, "mask", &m->buf, 1, out->end_bytes));
    out->offset = (int64_t)m->buf.offset_bytes;
done:
    return st;
}

static clattn_status check_lse(const struct checker *c, const clattn_buf *buf,
                               const int64_t extent[3], struct cla_call *out, size_t *end_bytes)
{
    int64_t rows = 0, all = 0;
    if (!add_product(&rows, extent[0], extent[1]) || !add_product(&all, rows, extent[2]))
        return cla_fail(c->log, CLATTN_ERR_SHAPE,
                        "lse: batch %lld * heads_q %lld * len_q %lld overflows 64 bits",
                        (long long)extent[0], (long long)extent[1], (long long)extent[2]);
    out->lse = *buf;
    out->lse_offset = (int64_t)(buf->offset_bytes / sizeof(float));
    *end_bytes = 0;
    if (all == 0)
        return CLATTN_OK;
    const int64_t one[1] = {all};
    const int64_t step[1] = {1};
    clattn_status st = reach(c, "lse", buf->offset_bytes, sizeof(float), one, step, 1, 1, false,
                             end_bytes);
    return st == CLATTN_OK ? check_buf(c, "lse", buf, sizeof(float), *end_bytes) : st;
}

// ---- call: overlaps ----------------------------------------------------------------------------

// Start and end of a range in the memory that it lies in.
static void *range_in(const struct cla_buf_range *r, cla_mem_fn mem_facts, void *user,
                      uintptr_t *begin, uintptr_t *end)
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
    *begin = base + r->buf->offset_bytes;
    *end = base + r->end_bytes;
    return root;
}

bool cla_ranges_overlap(const struct cla_buf_range *a, const struct cla_buf_range *b,
                        cla_mem_fn mem_facts, void *user)
{
    uintptr_t a0, a1, b0, b1;
    if (!a->end_bytes || !b->end_bytes || a->buf->kind != b->buf->kind)
        return false;
    return range_in(a, mem_facts, user, &a0, &a1) == range_in(b, mem_facts, user, &b0, &b1) &&
           a0 < b1 && b0 < a1;
}

static clattn_status check_overlaps(const struct checker *c, const struct cla_call *call,
                                    size_t lse_end)
{
    const struct cla_buf_range r[6] = {
        {"o", &call->o.buf, call->o.end_bytes},     {"lse", &call->lse, lse_end},
        {"q", &call->q.buf, call->q.end_bytes},     {"k", &call->k.buf, call->k.end_bytes},
        {"v", &call->v.buf, call->v.end_bytes},     {"mask", &call->mask.buf, call->mask.end_bytes},
    };
    for (int out = 0; out < 2; out++) {
        for (int other = out + 1; other < 6; other++) {
            if (cla_ranges_overlap(&r[out], &r[other], c->mem_facts, c->user))
                return cla_fail(c->log, CLATTN_ERR_OVERLAP,
                                "%s (bytes %zu to %zu) overlaps %s (bytes %zu to %zu)", r[out].name,
                                r[out].buf->offset_bytes, r[out].end_bytes, r[other].name,
                                r[other].buf->offset_bytes, r[other].end_bytes);
        }
    }
    return CLATTN_OK;
}

// ---- call --------------------------------------------------------------------------------------

static clattn_status check_lengths(const struct cla_problem *p, const clattn_attention_call *call,
                                   const struct cla_log *log)
{
    const struct {
        const char *name;
        int32_t value, bound;
    } f[3] = {{"batch", call->batch, p->max_batch},
              {"len_q", call->len_q, p->max_len_q},
              {"len_kv", call->len_kv, p->max_len_kv}};
    for (int i = 0; i < 3; i++) {
        if (f[i].value < 0)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %d, negative", f[i].name,
                            (int)f[i].value);
        if (f[i].value > f[i].bound)
            return cla_fail(log, CLATTN_ERR_OVER_BOUND, "%s is %d, the plan's bound is %d",
                            f[i].name, (int)f[i].value, (int)f[i].bound);
    }
    if ((int64_t)call->len_q * p->group > INT32_MAX)
        return cla_fail(log, CLATTN_ERR_SHAPE,
                        "len_q %d times %d query heads a key head is over 2^31 - 1",
                        (int)call->len_q, (int)p->group);
    return CLATTN_OK;
}

static clattn_status check_call_fields(const struct cla_problem *p,
                                       const clattn_attention_call *call,
                                       const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(cla_check_bits(log, "call.set", call->set, CLATTN_SET_SCALE));
    CLA_TRY(cla_check_bits(log, "call.reserved", call->reserved, 0));
    if ((call->set & CLATTN_SET_SCALE) && !isfinite(call->scale))
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "scale is %g, not finite",
                         (double)call->scale));
    if (!(call->set & CLATTN_SET_SCALE) && call->scale != 0.0f)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "scale is %g, but CLATTN_SET_SCALE is not in call.set",
                         (double)call->scale));
    CLA_TRY(check_lengths(p, call, log));
    if (!p->mask && call->mask.buf.kind != CLATTN_BUF_ABSENT)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "mask is given (kind %d), but the plan is without CLATTN_FEATURE_MASK",
                         (int)call->mask.buf.kind));
    if (!p->lse && call->lse.kind != CLATTN_BUF_ABSENT)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "lse is given (kind %d), but the plan is without CLATTN_FEATURE_LSE",
                         (int)call->lse.kind));
done:
    return st;
}

clattn_status cla_call_check(const struct cla_problem *p, const clattn_attention_call *in,
                             cla_mem_fn mem_facts, void *user, const struct cla_log *log,
                             struct cla_call *out)
{
    clattn_status st = CLATTN_OK;
    const struct checker c = {p, log, mem_facts, user};
    clattn_attention_call call;
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_struct_in("clattn_attention_call", in, sizeof call, &call, sizeof call, log));
    CLA_TRY(check_call_fields(p, &call, log));

    const bool set_scale = (call.set & CLATTN_SET_SCALE) != 0;
    *out = (struct cla_call){
        .batch = call.batch,
        .len_q = call.len_q,
        .len_kv = call.len_kv,
        .scale = set_scale ? call.scale : (float)(1.0 / sqrt((double)p->dim_qk)),
        .off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : call.len_kv - call.len_q,
        .win_lo = CLA_WIN_MIN,
        .win_hi = CLA_WIN_MAX,
    };
    if (p->causal)
        out->win_hi = out->off;

    // An empty problem writes nothing, and its inputs are not read either. Without keys Q still
    // has elements, which kernels load before they count keys.
    const int64_t b = call.batch, nq = call.batch ? call.len_q : 0;
    const int64_t nk = nq ? call.len_kv : 0;
    CLA_TRY(check_tensor(&c, "q", &call.q, b, p->heads_q, nq, p->dim_qk, false, &out->q));
    CLA_TRY(check_tensor(&c, "k", &call.k, b, p->heads_kv, nk, p->dim_qk, false, &out->k));
    CLA_TRY(check_tensor(&c, "v", &call.v, b, p->heads_kv, nk, p->dim_v, false, &out->v));
    CLA_TRY(check_tensor(&c, "o", &call.o, b, p->heads_q, nq, p->dim_v, true, &out->o));
    if (p->mask) {
        const int64_t extent[4] = {call.batch, p->heads_q, call.len_q, call.len_kv};
        CLA_TRY(check_mask(&c, &call.mask, extent, &out->mask));
    }
    size_t lse_end = 0;
    if (p->lse) {
        const int64_t extent[3] = {b, p->heads_q, nq};
        CLA_TRY(check_lse(&c, &call.lse, extent, out, &lse_end));
    }
    // How much is needed is the algorithm's to say; what is brought has to be memory in any case.
    out->workspace = call.workspace;
    if (call.workspace.kind != CLATTN_BUF_ABSENT)
        CLA_TRY(check_buf(&c, "workspace", &call.workspace, 1, 0));
    CLA_TRY(check_overlaps(&c, out, lse_end));
done:
    return st;
}
