// SPDX-License-Identifier: Apache-2.0
// Features of the contract on the CPU path, each alone and in random company, against the double
// reference: for every instruction set this CPU has, and the block sizes of those it may lack. Then
// those that no plan of bfloat16 alters, once more with all tensors of that type, for kernels with
// products of it.
//
// Whatever no row may see holds NaN: padding, unused rows of pages, keys past a length, hidden
// keys. Outputs begin as bits that nothing computes, and what belongs to no row must still hold
// them.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/host.h"
#include "host/kernel.h"
#include "ref/ref.h"
#include "sequence.h"

#ifdef CLA_TEST_HOST_KERNELS
extern const struct cla_host_kernel cla_host_kernel_test_w16;
extern const struct cla_host_kernel cla_host_kernel_test_w16_narrow;
extern const struct cla_host_kernel cla_host_kernel_test_w4;
extern const struct cla_host_kernel cla_host_kernel_test_dot;
extern const struct cla_host_kernel cla_host_kernel_test_dot_w4;
#endif

enum { MAX_KERNELS = 8, GUARD = 32, BATCH_MAX = 4, UNUSED = 0xff };

#ifdef __SANITIZE_ADDRESS__
enum { RANDOM_CASES = 40 }; // five times as slow
#else
enum { RANDOM_CASES = 200 };
#endif

static const struct cla_host_kernel *kernels[MAX_KERNELS];
static int num_kernels;

static void list_kernels(void)
{
    for (const struct cla_host_kernel *const *k = cla_host_kernels(); *k; k++)
        kernels[num_kernels++] = *k;
#ifdef CLA_TEST_HOST_KERNELS
#if defined(__x86_64__) || defined(__i386__)
    if (strcmp(kernels[0]->isa, "generic") == 0)
        return;
#endif
    kernels[num_kernels++] = &cla_host_kernel_test_w16;
    kernels[num_kernels++] = &cla_host_kernel_test_w16_narrow;
    kernels[num_kernels++] = &cla_host_kernel_test_w4;
#endif
}

// Kernels with products of bfloat16: the CPU's, and those that do in C as its instruction does.
static void list_dot_kernels(void)
{
    num_kernels = 0;
    if (cla_host_dot_kernel())
        kernels[num_kernels++] = cla_host_dot_kernel();
#ifdef CLA_TEST_HOST_KERNELS
#if defined(__x86_64__) || defined(__i386__)
    if (strcmp(cla_host_isa(), "generic") == 0)
        return;
#endif
    kernels[num_kernels++] = &cla_host_kernel_test_dot;
    kernels[num_kernels++] = &cla_host_kernel_test_dot_w4;
#endif
}

// Q, K, V and O are bfloat16, whatever a test asks for.
static bool all_bf16;

static uint32_t random_state = 1;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static float uniform(void)
{
    return (float)pick(1u << 24) / 8388608.0f - 1.0f;
}

static float normal(void)
{
    const float u = 1.0f - (uniform() * 0.5f + 0.5f); // in (0, 1]
    return sqrtf(-2.0f * logf(u)) * cosf(3.14159265f * uniform());
}

// What a test asks for. Zero is a default: heads 1, dim_v = dim_qk, threads 1, window unlimited.
struct shape {
    int32_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    int32_t dtype_q, dtype_kv, dtype_o, dtype_bias;
    bool causal, top_left, mask, bias, alibi, sinks;
    bool window;
    int32_t left, right;
    float softcap;
    bool kv_lens, packed_q, packed_kv;
    int32_t page_size;
    bool heads_inside;  // [batch, length, heads, dim]
    int32_t pad;        // elements behind each row
    unsigned broadcast; // bit n: extent 1 of mask and bias along axis n of [b, h, i, j]
    bool keys_outside;  // mask and bias lie as [b, h, j, i]
    bool hide;          // some keys are hidden by mask or bias, and hold NaN
    int32_t threads;
};

struct memory {
    void *data; // element 0
    void *all;
    size_t count, elem;
};

struct fixture {
    struct shape s;
    struct cla_problem p;
    struct cla_call call;
    struct cla_host_mem mem;
    struct memory q, k, v, o, lse, want_o, want_lse, mask, bias, alibi, sinks, k_scale, v_scale;
    struct memory kv_lens, cu_q, cu_kv, table;
    int32_t faults;
};

static struct memory make_memory(size_t count, size_t elem, size_t guard)
{
    struct memory m = {.count = count, .elem = elem};
    const size_t bytes = (count + 2 * guard) * elem;
    if (bytes > (size_t)1 << 28)
        abort(); // a shape that no test means
    m.all = malloc(bytes ? bytes : 1);
    assert_non_null(m.all);
    memset(m.all, UNUSED, bytes);
    m.data = (char *)m.all + guard * elem;
    return m;
}

static size_t dtype_size(int32_t dtype)
{
    return cla_dtype_bytes(dtype);
}

// Strides of rows of `dim` channels, and how many elements they reach.
static size_t set_strides(struct cla_tensor *t, const struct shape *s, int64_t batch, int64_t heads,
                          int64_t len, int64_t dim)
{
    const int64_t row = dim + s->pad;
    t->stride[0] = heads * len * row;
    t->stride[1] = s->heads_inside ? row : len * row;
    t->stride[2] = s->heads_inside ? heads * row : row;
    if (batch == 0 || len == 0)
        return 0;
    return (size_t)((batch - 1) * t->stride[0] + (heads - 1) * t->stride[1] +
                    (len - 1) * t->stride[2] + dim);
}

static int32_t *ints(const struct memory *m)
{
    return m->data;
}

// Lengths of the sequences: the first has the longest, others may have nothing.
static int32_t make_offsets(struct memory *m, int32_t batch, int32_t longest)
{
    *m = make_memory((size_t)batch + 1, sizeof(int32_t), 0);
    int32_t at = 0;
    for (int32_t b = 0; b < batch; b++) {
        ints(m)[b] = at;
        at += b == 0 ? longest : (int32_t)pick((uint32_t)longest + 1);
    }
    ints(m)[batch] = at;
    return at;
}

static void make_pages(struct fixture *f)
{
    const struct shape *s = &f->s;
    struct cla_call *c = &f->call;
    c->max_pages = (s->len_kv + s->page_size - 1) / s->page_size + 1;
    c->num_pages = s->batch * c->max_pages + 3;
    f->table = make_memory((size_t)(s->batch * c->max_pages), sizeof(int32_t), 0);
    // Every page but three has one place; 7 has no divisor in common with most numbers of pages.
    const int32_t step = c->num_pages % 7 ? 7 : 5;
    for (int32_t b = 0; b < s->batch; b++) {
        const int32_t len = s->kv_lens ? ints(&f->kv_lens)[b] : s->len_kv;
        for (int32_t n = 0; n * s->page_size < len; n++) { // the others stay -1: nobody reads them
            const int64_t at = (int64_t)b * c->max_pages + n;
            ints(&f->table)[at] = (int32_t)((at + 1) * step % c->num_pages);
        }
    }
    f->mem.table = f->table.data;
}

static void make_sequences(struct fixture *f)
{
    const struct shape *s = &f->s;
    if (s->packed_q) {
        f->call.total_q = make_offsets(&f->cu_q, s->batch, s->len_q);
        f->mem.cu_q = f->cu_q.data;
    }
    if (s->packed_kv) {
        f->call.total_kv = make_offsets(&f->cu_kv, s->batch, s->len_kv);
        f->mem.cu_kv = f->cu_kv.data;
    }
    if (s->kv_lens) {
        f->kv_lens = make_memory((size_t)s->batch, sizeof(int32_t), 0);
        for (int32_t b = 0; b < s->batch; b++) {
            int32_t most = s->len_kv;
            if (s->packed_kv)
                most = ints(&f->cu_kv)[b + 1] - ints(&f->cu_kv)[b];
            ints(&f->kv_lens)[b] = b == 1 ? most : (int32_t)pick((uint32_t)most + 1);
        }
        f->mem.kv_lens = f->kv_lens.data;
    }
    if (s->page_size)
        make_pages(f);
}

static void store(const struct memory *m, int64_t at, int32_t dtype, float x)
{
    if (dtype == CLATTN_DTYPE_I8)
        ((int8_t *)m->data)[at] = (int8_t)(x < -127.0f ? -127.0f : x > 127.0f ? 127.0f : x);
    else
        cla_store_elem(m->data, at, dtype, x);
}

static void make_queries(struct fixture *f)
{
    const struct shape *s = &f->s;
    struct cla_call *c = &f->call;
    const int64_t batch = s->packed_q ? 1 : s->batch;
    const int64_t len = s->packed_q ? c->total_q : s->len_q;
    const size_t count_q = set_strides(&c->q, s, batch, s->heads_q, len, s->dim_qk);
    const size_t count_o = set_strides(&c->o, s, batch, s->heads_q, len, s->dim_v);
    if (s->packed_q)
        c->q.stride[0] = c->o.stride[0] = 0;
    c->lse_stride[1] = len;
    c->lse_stride[0] = s->packed_q ? 0 : len * s->heads_q;
    const size_t count_lse = (size_t)(batch * s->heads_q * len);
    f->q = make_memory(count_q, dtype_size(s->dtype_q), 0);
    f->o = make_memory(count_o, dtype_size(s->dtype_o), GUARD);
    f->want_o = make_memory(count_o, sizeof(float), 0);
    f->lse = make_memory(count_lse, sizeof(float), GUARD);
    f->want_lse = make_memory(count_lse, sizeof(float), 0);
    for (int32_t b = 0; b < s->batch; b++) {
        struct cla_call own;
        int32_t faults = 0;
        cla_call_enter(&f->p, c, &f->mem, b, &own, &faults);
        for (int32_t h = 0; h < s->heads_q; h++)
            for (int32_t i = 0; i < own.len_q; i++)
                for (int32_t d = 0; d < s->dim_qk; d++)
                    store(&f->q, cla_query_at(&own, &c->q, b, h, i) + d, s->dtype_q, normal());
    }
    f->mem.q = f->q.data;
    f->mem.o = f->o.data;
    f->mem.lse = f->lse.data;
}

// Rows of a tensor of keys: room for them, with nothing but NaN (int8: by its scales).
static struct memory make_rows(struct fixture *f, struct cla_tensor *t, int32_t dim, int32_t dtype)
{
    const struct shape *s = &f->s;
    struct cla_call *c = &f->call;
    int64_t batch = s->packed_kv ? 1 : s->batch;
    int64_t len = s->packed_kv ? c->total_kv : s->len_kv;
    if (s->page_size) {
        batch = c->num_pages;
        len = s->page_size;
    }
    const size_t count = set_strides(t, s, batch, s->heads_kv, len, dim);
    if (s->packed_kv)
        t->stride[0] = 0;
    return make_memory(count, dtype_size(dtype), 0);
}

static void fill_key(struct fixture *f, const struct cla_call *own, int32_t b, int32_t g, int32_t j)
{
    const struct shape *s = &f->s;
    const bool i8 = s->dtype_kv == CLATTN_DTYPE_I8;
    const int64_t k = cla_key_at(&f->p, own, &f->mem, &own->k, b, g, j);
    const int64_t v = cla_key_at(&f->p, own, &f->mem, &own->v, b, g, j);
    for (int32_t d = 0; d < s->dim_qk; d++)
        store(&f->k, k + d, s->dtype_kv, normal() * (i8 ? 50.0f : 1.0f));
    for (int32_t d = 0; d < s->dim_v; d++)
        store(&f->v, v + d, s->dtype_kv, uniform() * (i8 ? 127.0f : 1.0f));
    if (!i8)
        return;
    const int64_t ks = cla_key_at(&f->p, own, &f->mem, &own->k_scale, b, g, j);
    const int64_t vs = cla_key_at(&f->p, own, &f->mem, &own->v_scale, b, g, j);
    ((float *)f->k_scale.data)[ks] = 0.02f * (1.0f + 0.5f * uniform());
    ((float *)f->v_scale.data)[vs] = (1.0f + 0.2f * uniform()) / 127.0f;
}

static void make_keys(struct fixture *f)
{
    const struct shape *s = &f->s;
    struct cla_call *c = &f->call;
    f->k = make_rows(f, &c->k, s->dim_qk, s->dtype_kv);
    f->v = make_rows(f, &c->v, s->dim_v, s->dtype_kv);
    f->mem.k = f->k.data;
    f->mem.v = f->v.data;
    if (s->dtype_kv == CLATTN_DTYPE_I8) {
        f->k_scale = make_rows(f, &c->k_scale, 1, CLATTN_DTYPE_F32);
        f->v_scale = make_rows(f, &c->v_scale, 1, CLATTN_DTYPE_F32);
        f->mem.k_scale = f->k_scale.data;
        f->mem.v_scale = f->v_scale.data;
    }
    for (int32_t b = 0; b < s->batch; b++) {
        struct cla_call own;
        int32_t faults = 0;
        cla_call_enter(&f->p, c, &f->mem, b, &own, &faults);
        for (int32_t g = 0; g < s->heads_kv; g++)
            for (int32_t j = 0; j < own.len_kv; j++)
                fill_key(f, &own, b, g, j);
    }
}

static struct memory make_pairs(const struct fixture *f, struct cla_mask *m, size_t elem)
{
    const struct shape *s = &f->s;
    const int64_t extent[4] = {s->batch, s->heads_q, s->len_q, s->len_kv};
    static const int orders[2][4] = {{3, 2, 1, 0}, {2, 3, 1, 0}};
    int64_t step = 1;
    for (int n = 0; n < 4; n++) {
        const int axis = orders[s->keys_outside][n];
        const bool broadcast = s->broadcast >> axis & 1;
        m->stride[axis] = broadcast ? 0 : step;
        step *= broadcast ? 1 : extent[axis];
    }
    return make_memory((size_t)step, elem, 0);
}

static int64_t pair_at(const struct cla_mask *m, int32_t b, int32_t h, int32_t i, int32_t j)
{
    return b * m->stride[0] + h * m->stride[1] + i * m->stride[2] + j * m->stride[3];
}

static void hide_pair(struct fixture *f, int32_t b, int32_t h, int32_t i, int32_t j)
{
    if (f->s.mask)
        ((uint8_t *)f->mask.data)[pair_at(&f->call.mask, b, h, i, j)] = 0;
    else
        cla_store_elem(f->bias.data, pair_at(&f->call.bias, b, h, i, j), f->s.dtype_bias,
                       -INFINITY);
}

// The first channels of a key become NaN; of int8, all by the scale.
static void poison(const struct fixture *f, const struct cla_call *own, const struct cla_tensor *t,
                   const struct memory *m, const struct cla_tensor *scale_t,
                   const struct memory *scale, int32_t dim, int32_t b, int32_t g, int32_t j)
{
    if (j >= own->len_kv)
        return;
    if (f->s.dtype_kv == CLATTN_DTYPE_I8) {
        ((float *)scale->data)[cla_key_at(&f->p, own, &f->mem, scale_t, b, g, j)] = NAN;
        return;
    }
    const int64_t at = cla_key_at(&f->p, own, &f->mem, t, b, g, j);
    for (int32_t d = 0; d < dim; d++)
        cla_store_elem(m->data, at + d, f->s.dtype_kv, NAN);
}

// Key 3 of each sequence is hidden from all rows and all NaN; key 5 is hidden from some, and its V
// has a NaN. A whole range of keys is hidden where there are enough.
static void hide_keys(struct fixture *f)
{
    const struct shape *s = &f->s;
    for (int32_t b = 0; b < s->batch; b++) {
        struct cla_call own;
        int32_t faults = 0;
        cla_call_enter(&f->p, &f->call, &f->mem, b, &own, &faults);
        for (int32_t h = 0; h < s->heads_q; h++)
            for (int32_t i = 0; i < own.len_q; i++)
                for (int32_t j = 0; j < own.len_kv; j++)
                    if (j == 3 || (j == 5 && (i + h) % 3 == 1) || (j >= 130 && j < 400))
                        hide_pair(f, b, h, i, j);
        for (int32_t g = 0; g < s->heads_kv; g++) {
            poison(f, &own, &own.k, &f->k, &own.k_scale, &f->k_scale, s->dim_qk, b, g, 3);
            poison(f, &own, &own.v, &f->v, &own.v_scale, &f->v_scale, s->dim_v, b, g, 3);
            poison(f, &own, &own.v, &f->v, &own.v_scale, &f->v_scale, 1, b, g, 5);
        }
    }
}

static void make_modifiers(struct fixture *f)
{
    const struct shape *s = &f->s;
    struct cla_call *c = &f->call;
    if (s->mask) {
        f->mask = make_pairs(f, &c->mask, 1);
        for (size_t n = 0; n < f->mask.count; n++)
            ((uint8_t *)f->mask.data)[n] = uniform() > -0.4f ? (uint8_t)(1 + n % 255) : 0;
        f->mem.mask = f->mask.data;
    }
    if (s->bias) {
        f->bias = make_pairs(f, &c->bias, dtype_size(s->dtype_bias));
        for (size_t n = 0; n < f->bias.count; n++)
            cla_store_elem(f->bias.data, (int64_t)n, s->dtype_bias,
                           pick(9) == 0 ? -INFINITY : normal());
        f->mem.bias = f->bias.data;
    }
    if (s->alibi) {
        c->alibi_stride = s->heads_q + 1;
        f->alibi = make_memory((size_t)(s->batch * (s->heads_q + 1)), sizeof(float), 0);
        for (int32_t b = 0; b < s->batch; b++)
            for (int32_t h = 0; h < s->heads_q; h++)
                ((float *)f->alibi.data)[b * c->alibi_stride + h] = 0.1f * normal();
        f->mem.alibi = f->alibi.data;
    }
    if (s->sinks) {
        f->sinks = make_memory((size_t)s->heads_q, sizeof(float), 0);
        for (int32_t h = 0; h < s->heads_q; h++)
            ((float *)f->sinks.data)[h] = h == 1 ? -INFINITY : 2.0f * normal();
        f->mem.sinks = f->sinks.data;
    }
    c->softcap = s->softcap;
    if (s->hide)
        hide_keys(f);
}

static struct fixture *make(struct shape s)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    s.batch = s.batch ? s.batch : 1;
    s.heads_kv = s.heads_kv ? s.heads_kv : 1;
    s.heads_q = s.heads_q ? s.heads_q : s.heads_kv;
    s.dim_v = s.dim_v ? s.dim_v : s.dim_qk;
    s.threads = s.threads ? s.threads : 1;
    if (s.hide && !s.mask && !s.bias)
        s.hide = false;
    if (all_bf16)
        s.dtype_q = s.dtype_kv = s.dtype_o = CLATTN_DTYPE_BF16;
    f->s = s;
    f->p = (struct cla_problem){
        .dtype_q = s.dtype_q, .dtype_kv = s.dtype_kv, .dtype_o = s.dtype_o,
        .dtype_bias = s.dtype_bias, .dim_qk = s.dim_qk, .dim_v = s.dim_v, .heads_q = s.heads_q,
        .heads_kv = s.heads_kv, .group = s.heads_q / s.heads_kv, .causal = s.causal,
        .mask = s.mask, .lse = true, .window = s.window, .bias = s.bias, .alibi = s.alibi,
        .softcap = s.softcap > 0.0f, .sinks = s.sinks, .kv_lens = s.kv_lens,
        .packed_q = s.packed_q, .packed_kv = s.packed_kv, .paged = s.page_size > 0,
        .page_size = s.page_size,
        .align = s.top_left ? CLATTN_ALIGN_TOP_LEFT : CLATTN_ALIGN_BOTTOM_RIGHT};
    f->call.batch = s.batch;
    f->call.len_q = s.len_q;
    f->call.len_kv = s.len_kv;
    f->call.scale = 1.0f / sqrtf((float)s.dim_qk);
    f->call.left = s.window ? s.left : -1;
    f->call.right = s.causal ? 0 : s.window ? s.right : -1;
    cla_call_set_window(&f->p, &f->call);
    make_sequences(f);
    make_queries(f);
    make_keys(f);
    make_modifiers(f);
    f->mem.faults = &f->faults;
    return f;
}

static void destroy(struct fixture *f)
{
    struct memory *const all[] = {&f->q, &f->k, &f->v, &f->o, &f->lse, &f->want_o, &f->want_lse,
                                  &f->mask, &f->bias, &f->alibi, &f->sinks, &f->k_scale,
                                  &f->v_scale, &f->kv_lens, &f->cu_q, &f->cu_kv, &f->table};
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++)
        free(all[n]->all);
    free(f);
}

static void clear(const struct memory *m, size_t guard)
{
    memset(m->all, UNUSED, (m->count + 2 * guard) * m->elem);
}

static void run_reference(struct fixture *f)
{
    struct cla_problem p = f->p;
    struct cla_host_mem mem = f->mem;
    p.dtype_o = CLATTN_DTYPE_F32;
    mem.o = f->want_o.data;
    mem.lse = f->want_lse.data;
    clear(&f->want_o, 0);
    clear(&f->want_lse, 0);
    assert_int_equal(cla_ref_forward(&p, &f->call, &mem), CLATTN_OK);
}

static void run_kernel(struct fixture *f, const struct cla_host_kernel *kernel)
{
    clear(&f->o, GUARD);
    clear(&f->lse, GUARD);
    assert_int_equal(cla_host_forward_with(kernel, &f->p, &f->call, &f->mem, f->s.threads),
                     CLATTN_OK);
}

static bool close_to(float value, float want, float tolerance)
{
    if (isnan(want))
        return isnan(value);
    if (isinf(want))
        return value == want;
    return fabsf(value - want) <= tolerance;
}

static void failed(const struct fixture *f, const struct cla_host_kernel *kernel, const char *what,
                   size_t n, float value, float want)
{
    const struct shape *s = &f->s;
    fail_msg("%s: %s[%zu] = %.9g, expected %.9g (batch %d heads %d/%d len %d/%d dim %d/%d types "
             "%d %d %d bias %d:%d causal %d%d window %d %d,%d mask %d alibi %d cap %g sinks %d "
             "lens %d packed %d%d page %d inside %d pad %d broadcast %x outside %d hide %d "
             "threads %d)",
             kernel->isa, what, n, (double)value, (double)want, s->batch, s->heads_q, s->heads_kv,
             s->len_q, s->len_kv, s->dim_qk, s->dim_v, s->dtype_q, s->dtype_kv, s->dtype_o,
             s->bias, s->dtype_bias, s->causal, s->top_left, s->window, s->left, s->right, s->mask,
             s->alibi, (double)s->softcap, s->sinks, s->kv_lens, s->packed_q, s->packed_kv,
             s->page_size, s->heads_inside, s->pad, s->broadcast, s->keys_outside, s->hide,
             s->threads);
}

static bool is_unused(const struct memory *m, const void *elem)
{
    const unsigned char *byte = elem;
    for (size_t n = 0; n < m->elem; n++)
        if (byte[n] != UNUSED)
            return false;
    return true;
}

// The reference's arrays say which elements are outputs.
static void compare(const struct fixture *f, const struct cla_host_kernel *kernel)
{
    static const float halves[] = {0.0f, 0x1p-11f, 0x1p-8f}; // half a unit of the last place
    const int32_t dtype = f->s.dtype_o;
    const float rounding = halves[dtype];
    // Weights are rounded, too, and no element of V is over 1.
    const float least = 1e-5f + (kernel->dot && cla_host_takes_dot(&f->p) ? 0x1p-8f : 0.0f);
    for (size_t n = 0; n < f->o.count; n++) {
        const float want = ((const float *)f->want_o.data)[n];
        const float value = cla_load_elem(f->o.data, (int64_t)n, dtype);
        const bool output = !is_unused(&f->want_o, (const float *)f->want_o.data + n);
        if (output ? !close_to(value, want, least + rounding * 1.01f * fabsf(want))
                   : !is_unused(&f->o, (const char *)f->o.data + n * f->o.elem))
            failed(f, kernel, "O", n, value, want);
    }
    for (size_t n = 0; n < f->lse.count; n++) {
        const float want = ((const float *)f->want_lse.data)[n];
        const float *value = (const float *)f->lse.data + n;
        const bool output = !is_unused(&f->want_lse, (const float *)f->want_lse.data + n);
        if (output ? !close_to(*value, want, 1e-5f + 1e-6f * fabsf(want))
                   : !is_unused(&f->lse, value))
            failed(f, kernel, "LSE", n, *value, want);
    }
    for (size_t n = 0; n < GUARD; n++) {
        const char *o = f->o.all, *lse = f->lse.all;
        if (!is_unused(&f->o, o + n * f->o.elem) || !is_unused(&f->lse, lse + n * f->lse.elem) ||
            !is_unused(&f->o, o + (n + GUARD + f->o.count) * f->o.elem) ||
            !is_unused(&f->lse, lse + (n + GUARD + f->lse.count) * f->lse.elem))
            failed(f, kernel, "guard", n, 0.0f, 0.0f);
    }
}

static void check_fixture(struct fixture *f)
{
    f->faults = 0;
    run_reference(f);
    const int32_t faults = f->faults;
    for (int n = 0; n < num_kernels; n++) {
        f->faults = 0;
        run_kernel(f, kernels[n]);
        compare(f, kernels[n]);
        assert_int_equal(f->faults, faults);
    }
}

static void check(struct shape s)
{
    struct fixture *f = make(s);
    check_fixture(f);
    destroy(f);
}

// Sizes that few() and tile() take, and one whose keys are split over threads.
static void check_sizes(struct shape s)
{
    static const int32_t lens[][3] = {{1, 37, 1}, {3, 150, 1}, {131, 141, 1}, {2, 1300, 3},
                                      {20, 1100, 2}};
    for (int n = 0; n < 5; n++) {
        s.len_q = lens[n][0];
        s.len_kv = lens[n][1];
        s.threads = lens[n][2];
        check(s);
    }
}

static const struct shape grouped = {.batch = 2, .heads_q = 3, .heads_kv = 1, .dim_qk = 20};

static void test_sequences(void **state)
{
    (void)state;
    struct shape s = grouped;
    s.batch = 4;
    for (unsigned bits = 1; bits < 8; bits++)
        for (int causal = 0; causal < 3; causal++) {
            s.kv_lens = bits & 1;
            s.packed_q = bits >> 1 & 1;
            s.packed_kv = bits >> 2 & 1;
            s.causal = causal > 0;
            s.top_left = causal == 2;
            check_sizes(s);
        }
}

static void test_window(void **state)
{
    (void)state;
    static const int32_t windows[][2] = {{0, 0}, {7, 3}, {-1, 5}, {60, -1}, {200, 0}};
    for (int n = 0; n < 5; n++)
        for (int lens = 0; lens < 2; lens++) {
            struct shape s = grouped;
            s.window = true;
            s.left = windows[n][0];
            s.right = windows[n][1];
            s.kv_lens = s.packed_q = lens;
            check_sizes(s);
        }
}

static void test_softcap(void **state)
{
    (void)state;
    static const float caps[] = {1e-30f, 0.3f, 2.0f, 50.0f};
    for (int n = 0; n < 4; n++) {
        struct shape s = grouped;
        s.softcap = caps[n];
        check_sizes(s);
        s.mask = s.hide = true;
        check_sizes(s);
    }
    // Scores of every size, infinity included, beside what the cap makes of them.
    for (int32_t len_q = 1; len_q < 80 && !all_bf16; len_q += 38) {
        struct fixture *f = make((struct shape){
            .batch = 1, .len_q = len_q, .len_kv = 200, .dim_qk = 1, .dim_v = 9, .softcap = 5.0f});
        for (int32_t i = 0; i < len_q; i++)
            ((float *)f->q.data)[i] = 1.0f;
        for (int32_t j = 0; j < 200; j++)
            ((float *)f->k.data)[j] = ldexpf(j % 2 ? 1.3f : -1.3f, j - 100);
        ((float *)f->k.data)[77] = INFINITY;
        ((float *)f->k.data)[78] = -INFINITY;
        check_fixture(f);
        assert_true(isfinite(((float *)f->want_lse.data)[0]));
        ((float *)f->k.data)[79] = NAN;
        check_fixture(f);
        destroy(f);
    }
}

#ifdef __SSE__
// A thread that takes denormals for zeros, as compilers' fast modes make whole programs do: scores
// are not to get lost beside a cap whose inverse is one.
static void test_flushed_softcap(void **state)
{
    (void)state;
    const unsigned flush = 0x8040, mode = __builtin_ia32_stmxcsr();
    for (int32_t len_q = 1; len_q < 80; len_q += 38) {
        struct shape s = grouped;
        s.len_q = len_q;
        s.len_kv = 100;
        s.dim_v = 9;
        s.threads = 1;
        s.softcap = 3.4e38f;
        struct fixture *f = make(s);
        run_reference(f);
        for (int n = 0; n < num_kernels; n++) {
            __builtin_ia32_ldmxcsr(mode | flush);
            run_kernel(f, kernels[n]);
            __builtin_ia32_ldmxcsr(mode);
            compare(f, kernels[n]);
        }
        destroy(f);
    }
}
#endif

static void test_alibi(void **state)
{
    (void)state;
    for (int n = 0; n < 4; n++) {
        struct shape s = grouped;
        s.alibi = true;
        s.top_left = n & 1;
        s.kv_lens = n >> 1;
        check_sizes(s);
    }
}

static void test_bias(void **state)
{
    (void)state;
    for (unsigned n = 0; n < 24; n++) {
        struct shape s = grouped;
        s.bias = true;
        s.broadcast = n < 16 ? n : 0;
        s.dtype_bias = (int32_t)(n % 3);
        s.keys_outside = n % 5 == 1;
        s.hide = n % 2;
        check_sizes(s);
    }
}

// A bias or mask that hides all there is, or all but one tile of keys.
static void test_hidden_tiles(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 90};
    for (int n = 0; n < 4; n++) {
        struct fixture *f = make((struct shape){.len_q = lens[n & 1],
                                                .len_kv = 900,
                                                .dim_qk = 33,
                                                .bias = n < 2,
                                                .mask = n >= 2,
                                                .dtype_kv = CLATTN_DTYPE_F16});
        for (int32_t i = 0; i < f->s.len_q; i++)
            for (int32_t j = 0; j < 900; j++)
                if (i == 1 || j < 500 || j > 530)
                    hide_pair(f, 0, 0, i, j);
        for (int32_t d = 0; d < 33; d++)
            cla_store_elem(f->k.data, 33 * 100 + d, CLATTN_DTYPE_F16, NAN);
        check_fixture(f);
        assert_true(((float *)f->want_lse.data)[1] == -INFINITY);
        assert_true(isfinite(((float *)f->want_lse.data)[0]));
        for (int32_t i = 0; i < f->s.len_q; i++)
            for (int32_t j = 0; j < 900; j++)
                hide_pair(f, 0, 0, i, j);
        check_fixture(f);
        destroy(f);
    }
}

// A bias of -FLT_MAX is a number: the mean of V.
static void test_lowest_bias(void **state)
{
    (void)state;
    for (int32_t len_q = 1; len_q < 80; len_q += 38) {
        struct fixture *f =
            make((struct shape){.len_q = len_q, .len_kv = 150, .dim_qk = 8, .bias = true});
        for (size_t n = 0; n < f->bias.count; n++)
            ((float *)f->bias.data)[n] = -3.40282347e38f;
        f->call.scale = 0.0f;
        check_fixture(f);
        assert_true(((float *)f->want_o.data)[0] != 0.0f);
        destroy(f);
    }
}

static void test_sinks(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, 80.0f, -200.0f, 0.0f};
    for (int n = 0; n < 6; n++)
        for (int hide = 0; hide < 2; hide++)
            for (int size = 0; size < 4; size++) {
                struct shape s = grouped;
                s.sinks = true;
                s.mask = s.hide = hide;
                s.causal = true; // with more queries than keys: some rows see none
                s.len_q = size & 1 ? 70 : 2;
                s.len_kv = size & 2 ? 1700 : 50;
                s.threads = 2;
                struct fixture *f = make(s);
                check_fixture(f);
                ((float *)f->sinks.data)[2] = values[n];
                check_fixture(f);
                destroy(f);
            }
}

// A sink of -infinity is no sink, bit for bit.
static void test_no_sink(void **state)
{
    (void)state;
    for (int size = 0; size < 4; size++)
        for (int n = 0; n < num_kernels; n++) {
            struct fixture *f = make((struct shape){.len_q = size & 1 ? 70 : 2,
                                                    .len_kv = size & 2 ? 1700 : 50,
                                                    .dim_qk = 20,
                                                    .causal = true,
                                                    .sinks = true,
                                                    .threads = 2});
            ((float *)f->sinks.data)[0] = -INFINITY;
            const size_t bytes = f->o.count * f->o.elem;
            void *first = malloc(bytes);
            assert_non_null(first);
            run_kernel(f, kernels[n]);
            memcpy(first, f->o.data, bytes);
            f->p.sinks = false;
            f->mem.sinks = NULL;
            run_kernel(f, kernels[n]);
            assert_memory_equal(first, f->o.data, bytes);
            free(first);
            destroy(f);
        }
}

static void test_types(void **state)
{
    (void)state;
    static const int32_t dims[][2] = {{20, 20}, {1, 3}, {5, 70}, {64, 16}, {17, 33}, {130, 90}};
    for (int32_t q = 0; q < 3; q++)
        for (int32_t kv = 0; kv < 4; kv++)
            for (int n = (q + kv) % 2; n < 6; n += 2) {
                struct shape s = grouped;
                if (all_bf16 && (q == 0 || kv != CLATTN_DTYPE_BF16))
                    break;
                s.dtype_q = q;
                s.dtype_kv = kv;
                s.dtype_o = (q + n) % 3;
                s.dim_qk = dims[n][0];
                s.dim_v = dims[n][1];
                s.pad = n % 3;
                s.heads_inside = kv & 1;
                s.mask = s.hide = n > 2;
                check_sizes(s);
            }
}

// Every element of 16 bits arrives as what it is: one key alone, of weight 1.
static void test_every_value(void **state)
{
    (void)state;
    enum { DIM = 512 };
    for (int32_t dtype = CLATTN_DTYPE_F16; dtype <= CLATTN_DTYPE_I8; dtype++)
        for (int32_t len_q = 1; len_q < 40; len_q += 38)
            for (uint32_t first = 0; first < (dtype == CLATTN_DTYPE_I8 ? 1u : 65536u); first += DIM)
                for (int n = 0; n < num_kernels; n++) {
                    struct fixture *f = make((struct shape){.len_q = len_q, .len_kv = 1,
                                                            .dim_qk = 1, .dim_v = DIM,
                                                            .dtype_kv = dtype});
                    for (uint32_t d = 0; d < DIM; d++) {
                        if (dtype == CLATTN_DTYPE_I8)
                            ((int8_t *)f->v.data)[d] = (int8_t)(d % 256);
                        else
                            ((uint16_t *)f->v.data)[d] = (uint16_t)(first + d);
                    }
                    if (dtype == CLATTN_DTYPE_I8)
                        ((float *)f->v_scale.data)[0] = 0.75f;
                    run_kernel(f, kernels[n]);
                    for (int32_t d = 0; d < DIM; d++) {
                        float want = cla_load_elem(f->v.data, d, dtype);
                        want *= dtype == CLATTN_DTYPE_I8 ? 0.75f : 1.0f;
                        const float value = ((const float *)f->o.data)[d];
                        if (isfinite(want) ? value != want : isfinite(value))
                            failed(f, kernels[n], "O", (size_t)d, value, want);
                    }
                    destroy(f);
                }
}

// O of 16 bits is O of floats, rounded; with halfway cases, denormals and overflow.
static void test_rounding(void **state)
{
    (void)state;
    for (int32_t dtype = CLATTN_DTYPE_F16; dtype <= CLATTN_DTYPE_BF16; dtype++)
        for (int32_t len_q = 1; len_q < 40; len_q += 38)
            for (int32_t len_kv = 1; len_kv < 2000; len_kv += 1499)
                for (int n = 0; n < num_kernels; n++) {
                    struct fixture *f = make((struct shape){.len_q = len_q, .len_kv = len_kv,
                                                            .dim_qk = 4, .dim_v = 211,
                                                            .dtype_o = dtype, .threads = 2});
                    float *v = f->v.data;
                    for (size_t m = 0; m < f->v.count; m++) {
                        const int even = (int)pick(2), power = (int)pick(46) - 28;
                        v[m] = ldexpf(1.0f + (float)pick(1024) / 1024.0f, power);
                        v[m] *= even ? 1.0f + 0x1p-11f : 1.0f + 0x1p-8f;
                    }
                    struct memory own = f->o;
                    struct memory floats = make_memory(own.count, sizeof(float), GUARD);
                    f->o = floats;
                    f->mem.o = floats.data;
                    f->p.dtype_o = CLATTN_DTYPE_F32;
                    run_kernel(f, kernels[n]);
                    f->o = own;
                    f->mem.o = own.data;
                    f->p.dtype_o = dtype;
                    run_kernel(f, kernels[n]);
                    for (size_t m = 0; m < own.count; m++) {
                        uint16_t want;
                        cla_store_elem(&want, 0, dtype, ((float *)floats.data)[m]);
                        assert_int_equal(((uint16_t *)own.data)[m], want);
                    }
                    free(floats.all);
                    destroy(f);
                }
}

static void test_pages(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 3, 16, 200, 256};
    for (int n = 0; n < 5; n++)
        for (int32_t dtype = all_bf16 ? 3 : 0; dtype < 4; dtype++) {
            struct shape s = grouped;
            s.batch = 3;
            s.page_size = sizes[n];
            s.dtype_kv = dtype;
            s.kv_lens = n != 1;
            s.causal = n == 2;
            s.heads_inside = n & 1;
            check_sizes(s);
            s.dim_v = 19;
            s.bias = s.hide = true;
            check_sizes(s);
        }
}

// V as the front of K's rows.
static void test_v_in_k(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 80};
    for (int32_t dtype = all_bf16 ? 2 : 0; dtype < 3; dtype++)
        for (int n = 0; n < 4; n++) {
            struct fixture *f = make((struct shape){.batch = 2,
                                                    .heads_q = 3,
                                                    .len_q = lens[n & 1],
                                                    .len_kv = 200,
                                                    .dim_qk = 57,
                                                    .dim_v = 50,
                                                    .page_size = n & 2 ? 16 : 0,
                                                    .dtype_kv = dtype});
            f->mem.v = f->mem.k;
            f->call.v = f->call.k;
            check_fixture(f);
            f->mem.v = (const char *)f->mem.k + 7 * dtype_size(f->s.dtype_kv);
            check_fixture(f);
            destroy(f);
        }
}

// Numbers that no host has checked: clamped, reported, never followed out of the memory.
static void test_faults(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 40};
    for (int n = 0; n < 2; n++) {
        struct fixture *f = make((struct shape){.batch = 3, .len_q = lens[n], .len_kv = 60,
                                                .dim_qk = 20, .kv_lens = true, .page_size = 16,
                                                .alibi = true});
        for (int32_t b = 0; b < 3; b++) // all pages hold numbers
            for (int32_t page = 0; page < 4; page++)
                ints(&f->table)[b * f->call.max_pages + page] = 0;
        for (size_t m = 0; m < f->k.count; m++)
            ((float *)f->k.data)[m] = normal();
        for (size_t m = 0; m < f->v.count; m++)
            ((float *)f->v.data)[m] = normal();
        ints(&f->kv_lens)[0] = 61;
        ints(&f->kv_lens)[1] = -7;
        ints(&f->kv_lens)[2] = 50;
        check_fixture(f);
        assert_int_equal(f->faults, CLATTN_FAULT_LENGTH);
        ints(&f->table)[2 * f->call.max_pages + 1] = f->call.num_pages;
        ints(&f->table)[2 * f->call.max_pages + 2] = -1;
        check_fixture(f);
        assert_int_equal(f->faults, CLATTN_FAULT_LENGTH | CLATTN_FAULT_PAGE);
        destroy(f);

        f = make((struct shape){.batch = 3, .len_q = lens[n], .len_kv = 60, .dim_qk = 20,
                                .packed_q = true, .packed_kv = true});
        ints(&f->cu_q)[2] = 1;
        check_fixture(f);
        ints(&f->cu_kv)[1] = -5;
        check_fixture(f);
        ints(&f->cu_kv)[3] = 1000;
        check_fixture(f);
        assert_true(f->faults & CLATTN_FAULT_OFFSETS);
        destroy(f);
    }
}

// No keys, no rows; sinks and packed queries there, too.
static void test_empty(void **state)
{
    (void)state;
    for (int n = 0; n < 8; n++) {
        struct shape s = grouped;
        s.len_q = n & 1 ? 40 : 2;
        s.len_kv = 0;
        s.sinks = n >> 1 & 1;
        s.packed_q = n >> 2;
        s.dtype_o = CLATTN_DTYPE_BF16;
        struct fixture *f = make(s);
        f->mem.k = f->mem.v = NULL;
        if (s.sinks)
            ((float *)f->sinks.data)[2] = NAN;
        check_fixture(f);
        destroy(f);
        s.len_q = 0;
        s.len_kv = 5;
        s.packed_q = false;
        check(s);
    }
}

static int32_t one_of(int32_t n, int32_t value)
{
    return pick((uint32_t)n) == 0 ? value : 0;
}

static struct shape random_shape(void)
{
    static const int32_t rows[] = {1, 2, 3, 5, 8, 17, 33, 70, 140};
    static const int32_t keys[] = {1, 9, 64, 65, 121, 139, 200, 300};
    static const int32_t pages[] = {1, 7, 16, 64, 256};
    struct shape s = {.batch = 1 + (int32_t)pick(3), .heads_kv = 1 + (int32_t)pick(2)};
    s.heads_q = s.heads_kv * (1 + (int32_t)pick(3));
    s.len_q = rows[pick(9)];
    s.len_kv = keys[pick(8)];
    s.dim_qk = 1 + (int32_t)pick(70);
    s.dim_v = one_of(2, 1 + (int32_t)pick(70));
    s.dtype_q = (int32_t)pick(3);
    s.dtype_kv = (int32_t)pick(4);
    s.dtype_o = (int32_t)pick(3);
    s.causal = one_of(3, 1);
    s.top_left = one_of(3, 1);
    s.mask = one_of(3, 1);
    s.bias = one_of(3, 1);
    s.dtype_bias = s.bias ? (int32_t)pick(3) : 0;
    s.alibi = one_of(3, 1);
    s.sinks = one_of(3, 1);
    s.softcap = one_of(3, 1) ? 3.0f : 0.0f;
    s.window = one_of(3, 1);
    s.left = (int32_t)pick(200) - 1;
    s.right = (int32_t)pick(50) - 1;
    s.kv_lens = one_of(2, 1);
    s.packed_q = one_of(3, 1);
    s.packed_kv = one_of(3, 1);
    s.page_size = s.packed_kv ? 0 : one_of(2, pages[pick(5)]);
    s.heads_inside = one_of(2, 1);
    s.pad = one_of(2, (int32_t)pick(6));
    s.broadcast = pick(16);
    s.broadcast &= pick(16);
    s.keys_outside = one_of(4, 1);
    s.hide = one_of(2, 1);
    s.threads = 1 + (int32_t)pick(3);
    if (pick(4) == 0) { // keys that are split
        s.batch = s.heads_kv = 1;
        s.heads_q = 1 + (int32_t)pick(2);
        s.len_q = 1 + (int32_t)pick(20);
        s.len_kv = 1300;
        s.threads = 3;
    }
    return s;
}

static void test_random(void **state)
{
    (void)state;
    const char *given = getenv("CLATTN_TEST_SEED");
    const uint32_t seed = given ? (uint32_t)strtoul(given, NULL, 0) : 20260601u;
    print_message("seed %u\n", seed);
    random_state = seed;
    for (int n = 0; n < RANDOM_CASES; n++)
        check(random_shape());
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    list_kernels();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_softcap),
#ifdef __SSE__
        cmocka_unit_test(test_flushed_softcap),
#endif
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_hidden_tiles),
        cmocka_unit_test(test_lowest_bias),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_no_sink),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_v_in_k),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_random),
    };
    const struct CMUnitTest dot_tests[] = {
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_no_sink),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_v_in_k),
        cmocka_unit_test(test_random),
    };
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    list_dot_kernels();
    all_bf16 = true;
    return failures + cmocka_run_group_tests(dot_tests, NULL, NULL);
}
