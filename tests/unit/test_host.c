// SPDX-License-Identifier: Apache-2.0
// The CPU path against the double-precision reference: every instruction set this CPU has, and the
// block sizes of those it may lack, compiled for it (CLA_TEST_HOST_KERNELS).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "host/host.h"
#include "host/kernel.h"
#include "ref/ref.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#define HAVE_FORK 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif

#ifdef CLA_TEST_HOST_KERNELS
extern const struct cla_host_kernel cla_host_kernel_test_w16;
extern const struct cla_host_kernel cla_host_kernel_test_w16_narrow;
extern const struct cla_host_kernel cla_host_kernel_test_w4;
#endif

enum { MAX_KERNELS = 8, GUARD = 32 };

static const struct cla_host_kernel *kernels[MAX_KERNELS];
static int num_kernels;

static void list_kernels(void)
{
    for (const struct cla_host_kernel *const *k = cla_host_kernels(); *k; k++)
        kernels[num_kernels++] = *k;
#ifdef CLA_TEST_HOST_KERNELS
    bool runs = true;
#if defined(__x86_64__) || defined(__i386__)
    runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    if (runs) {
        kernels[num_kernels++] = &cla_host_kernel_test_w16;
        kernels[num_kernels++] = &cla_host_kernel_test_w16_narrow;
        kernels[num_kernels++] = &cla_host_kernel_test_w4;
    }
#endif
}

static uint32_t random_state = 1;

// Uniform in [-1, 1).
static float uniform(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static float normal(void)
{
    const float u = 1.0f - (uniform() * 0.5f + 0.5f); // in (0, 1]
    return sqrtf(-2.0f * logf(u)) * cosf(3.14159265f * uniform());
}

// What a test asks for. Zero is a default: heads 1, dim_v = dim_qk, no padding, threads 1.
struct shape {
    int32_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    bool causal, top_left, mask, no_lse;
    bool window; // win_lo and win_hi count
    int32_t win_lo, win_hi;
    bool heads_inside;       // [batch, length, heads, dim]
    int32_t pad;             // NaN behind each row
    unsigned mask_broadcast; // bit n: extent 1 along axis n of [batch, head, query, key]
    int32_t threads;
    float tolerance; // of O and, on top of 4 ulp, of LSE; 0 = 3e-6
};

struct array {
    float *data;   // element 0
    float *memory; // with guards, for outputs
    size_t count;
};

struct fixture {
    struct shape s;
    struct cla_problem p;
    struct cla_call call;
    struct cla_host_mem mem;
    struct array q, k, v, o, lse, want_o, want_lse;
    uint8_t *mask;
    size_t mask_count;
};

// Inputs end with their last element, so that a sanitizer sees a read behind it.
static struct array make_array(size_t count, size_t guard)
{
    struct array a;
    // Never 0 elements, for which NULL would be a legal answer.
    const size_t all = count + 2 * guard;
    if (all > (size_t)1 << 28)
        abort(); // a shape that no test means
    a.memory = calloc(all ? all : 1, sizeof(float));
    assert_non_null(a.memory);
    for (size_t n = 0; n < all; n++)
        a.memory[n] = NAN;
    a.data = a.memory + guard;
    a.count = count;
    return a;
}

static size_t set_strides(struct cla_tensor *t, const struct shape *s, int32_t heads, int32_t len,
                          int32_t dim)
{
    const int64_t row = dim + s->pad;
    t->stride[0] = (int64_t)heads * len * row;
    t->stride[1] = s->heads_inside ? row : len * row;
    t->stride[2] = s->heads_inside ? heads * row : row;
    if (s->batch == 0 || len == 0)
        return 0;
    return (size_t)((s->batch - 1) * t->stride[0] + (heads - 1) * t->stride[1] +
                    (len - 1) * t->stride[2] + dim);
}

static float *at(const struct array *a, const struct cla_tensor *t, int32_t b, int32_t h, int32_t i)
{
    return a->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static void fill(const struct fixture *f, const struct array *a, const struct cla_tensor *t,
                 int32_t heads, int32_t len, int32_t dim, float (*value)(void))
{
    for (int32_t b = 0; b < f->s.batch; b++)
        for (int32_t h = 0; h < heads; h++)
            for (int32_t i = 0; i < len; i++)
                for (int32_t d = 0; d < dim; d++)
                    at(a, t, b, h, i)[d] = value();
}

static void make_mask(struct fixture *f)
{
    const struct shape *s = &f->s;
    const int64_t extent[4] = {s->batch, s->heads_q, s->len_q, s->len_kv};
    int64_t step = 1;
    for (int axis = 3; axis >= 0; axis--) {
        const bool broadcast = s->mask_broadcast >> axis & 1;
        f->call.mask.stride[axis] = broadcast ? 0 : step;
        step *= broadcast ? 1 : extent[axis];
    }
    f->mask_count = (size_t)step;
    f->mask = malloc(f->mask_count + 1);
    assert_non_null(f->mask);
    for (size_t n = 0; n < f->mask_count; n++)
        f->mask[n] = uniform() > -0.4f ? (uint8_t)(1 + n % 255) : 0;
    f->mem.mask = f->mask;
}

static struct fixture *make(struct shape s)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    s.heads_kv = s.heads_kv ? s.heads_kv : 1;
    s.heads_q = s.heads_q ? s.heads_q : s.heads_kv;
    s.dim_v = s.dim_v ? s.dim_v : s.dim_qk;
    s.threads = s.threads ? s.threads : 1;
    s.tolerance = s.tolerance > 0.0f ? s.tolerance : 3e-6f;
    f->s = s;
    f->p.dim_qk = s.dim_qk;
    f->p.dim_v = s.dim_v;
    f->p.heads_q = s.heads_q;
    f->p.heads_kv = s.heads_kv;
    f->p.group = s.heads_q / s.heads_kv;
    f->p.causal = s.causal;
    f->p.mask = s.mask;
    f->p.lse = !s.no_lse;
    struct cla_call *c = &f->call;
    c->batch = s.batch;
    c->len_q = s.len_q;
    c->len_kv = s.len_kv;
    c->scale = 1.0f / sqrtf((float)s.dim_qk);
    c->off = s.top_left ? 0 : s.len_kv - s.len_q;
    c->win_lo = s.window ? s.win_lo : CLA_WIN_MIN;
    c->win_hi = s.window ? s.win_hi : s.causal ? c->off : CLA_WIN_MAX;
    c->lse_stride[0] = (int64_t)s.heads_q * s.len_q;
    c->lse_stride[1] = s.len_q;
    f->q = make_array(set_strides(&c->q, &s, s.heads_q, s.len_q, s.dim_qk), 0);
    f->k = make_array(set_strides(&c->k, &s, s.heads_kv, s.len_kv, s.dim_qk), 0);
    f->v = make_array(set_strides(&c->v, &s, s.heads_kv, s.len_kv, s.dim_v), 0);
    const size_t count_o = set_strides(&c->o, &s, s.heads_q, s.len_q, s.dim_v);
    const size_t count_lse = (size_t)s.batch * (size_t)s.heads_q * (size_t)s.len_q;
    f->o = make_array(count_o, GUARD);
    f->want_o = make_array(count_o, 0);
    f->lse = make_array(count_lse, GUARD);
    f->want_lse = make_array(count_lse, 0);
    fill(f, &f->q, &c->q, s.heads_q, s.len_q, s.dim_qk, normal);
    fill(f, &f->k, &c->k, s.heads_kv, s.len_kv, s.dim_qk, normal);
    fill(f, &f->v, &c->v, s.heads_kv, s.len_kv, s.dim_v, uniform);
    f->mem = (struct cla_host_mem){.q = f->q.data, .k = f->k.data, .v = f->v.data,
                                   .o = f->o.data, .lse = f->lse.data};
    if (s.mask)
        make_mask(f);
    return f;
}

static void destroy(struct fixture *f)
{
    free(f->q.memory);
    free(f->k.memory);
    free(f->v.memory);
    free(f->o.memory);
    free(f->lse.memory);
    free(f->want_o.memory);
    free(f->want_lse.memory);
    free(f->mask);
    free(f);
}

static void run_reference(struct fixture *f)
{
    struct cla_host_mem mem = f->mem;
    mem.o = f->want_o.data;
    mem.lse = f->want_lse.data;
    assert_int_equal(cla_ref_forward(&f->p, &f->call, &mem), CLATTN_OK);
}

static void run_kernel(struct fixture *f, const struct cla_host_kernel *kernel)
{
    for (size_t n = 0; n < f->o.count + 2 * GUARD; n++)
        f->o.memory[n] = NAN;
    for (size_t n = 0; n < f->lse.count + 2 * GUARD; n++)
        f->lse.memory[n] = NAN;
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
    fail_msg("%s: %s[%zu] = %.9g, expected %.9g (batch %d heads %d/%d len %d/%d dim %d/%d causal "
             "%d window %d..%d mask %d broadcast %x threads %d)",
             kernel->isa, what, n, (double)value, (double)want, s->batch, s->heads_q, s->heads_kv,
             s->len_q, s->len_kv, s->dim_qk, s->dim_v, s->causal, f->call.win_lo, f->call.win_hi,
             s->mask, s->mask_broadcast, s->threads);
}

// Everything that is not part of O or LSE must still be NaN, and is in the reference's arrays too.
static void compare(const struct fixture *f, const struct cla_host_kernel *kernel)
{
    for (size_t n = 0; n < f->o.count; n++)
        if (!close_to(f->o.data[n], f->want_o.data[n], f->s.tolerance))
            failed(f, kernel, "O", n, f->o.data[n], f->want_o.data[n]);
    for (size_t n = 0; n < f->lse.count; n++) {
        const float want = f->want_lse.data[n];
        if (!close_to(f->lse.data[n], want, f->s.tolerance + 5e-7f * fabsf(want)))
            failed(f, kernel, "LSE", n, f->lse.data[n], want);
    }
    for (size_t n = 0; n < GUARD; n++)
        if (!isnan(f->o.memory[n]) || !isnan(f->o.data[f->o.count + n]) ||
            !isnan(f->lse.memory[n]) || !isnan(f->lse.data[f->lse.count + n]))
            failed(f, kernel, "guard", n, f->o.memory[n], NAN);
}

static void check_fixture(struct fixture *f)
{
    run_reference(f);
    for (int n = 0; n < num_kernels; n++) {
        run_kernel(f, kernels[n]);
        compare(f, kernels[n]);
    }
}

static void check(struct shape s)
{
    struct fixture *f = make(s);
    check_fixture(f);
    destroy(f);
}

static void test_every_dim(void **state)
{
    (void)state;
    for (int32_t dim = 1; dim <= 256; dim++) {
        check((struct shape){.batch = 1, .len_q = 19, .len_kv = 37, .dim_qk = dim, .causal = true});
        check((struct shape){.batch = 1, .len_q = 1, .len_kv = 21, .dim_qk = dim});
        check((struct shape){.batch = 1, .len_q = 3, .len_kv = 70, .dim_qk = dim, .pad = 1});
    }
}

static void test_dim_v_differs(void **state)
{
    (void)state;
    static const int32_t dims[] = {1, 7, 16, 33, 64, 200};
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < 6; b++)
            for (int32_t len_q = 2; len_q < 80; len_q *= 6)
                check((struct shape){
                    .batch = 1, .len_q = len_q, .len_kv = 45, .dim_qk = dims[a], .dim_v = dims[b]});
}

// Lengths on both sides of the edges of vectors, register blocks and tiles of each kernel.
static void test_tile_edges(void **state)
{
    (void)state;
    for (int n = 0; n < num_kernels; n++) {
        const struct cla_host_kernel *kernel = kernels[n];
        const struct cla_problem p = {.dim_qk = 24, .dim_v = 24};
        const int32_t tile_k = kernel->tile_k(&p);
        const int32_t edges_q[] = {kernel->few_rows, kernel->width, kernel->tile_q,
                                   2 * kernel->tile_q};
        const int32_t edges_k[] = {2, 5, 8, 16, 64, tile_k, 2 * tile_k};
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 7; b++)
                for (int32_t i = -1; i <= 1; i++)
                    for (int32_t j = -1; j <= 1; j++)
                        for (int causal = 0; causal < 2; causal++) {
                            struct fixture *f = make((struct shape){.batch = 1,
                                                                    .len_q = edges_q[a] + i,
                                                                    .len_kv = edges_k[b] + j,
                                                                    .dim_qk = 24,
                                                                    .causal = causal});
                            run_reference(f);
                            run_kernel(f, kernel);
                            compare(f, kernel);
                            destroy(f);
                        }
    }
}

static void test_grouped_heads(void **state)
{
    (void)state;
    static const int32_t groups[] = {1, 3, 4, 8};
    static const int32_t lens[] = {1, 2, 3, 5, 11, 30};
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 6; b++)
            for (int causal = 0; causal < 2; causal++)
                check((struct shape){.batch = 2,
                                     .heads_q = 2 * groups[a],
                                     .heads_kv = 2,
                                     .len_q = lens[b],
                                     .len_kv = 41,
                                     .dim_qk = 20,
                                     .causal = causal});
}

static void test_causal(void **state)
{
    (void)state;
    static const int32_t lens[] = {1, 4, 17, 64, 131, 200};
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < 6; b++)
            for (int top_left = 0; top_left < 2; top_left++)
                check((struct shape){.batch = 1,
                                     .heads_q = 2,
                                     .heads_kv = 1,
                                     .len_q = lens[a],
                                     .len_kv = lens[b],
                                     .dim_qk = 32,
                                     .causal = true,
                                     .top_left = top_left});
}

static void test_windows(void **state)
{
    (void)state;
    static const int32_t windows[][2] = {
        {0, 0},    {-3, 2},       {-40, -20},        {10, 30},         {-200, 200},
        {50, 40},  {-1000, -900}, {CLA_WIN_MIN, -5}, {7, CLA_WIN_MAX}, {-70, CLA_WIN_MAX},
        {300, 400}};
    static const int32_t lens[] = {1, 5, 70, 150};
    for (int w = 0; w < 11; w++)
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                check((struct shape){.batch = 1,
                                     .len_q = lens[a],
                                     .len_kv = lens[b],
                                     .dim_qk = 16,
                                     .window = true,
                                     .win_lo = windows[w][0],
                                     .win_hi = windows[w][1]});
}

static void test_masks(void **state)
{
    (void)state;
    static const int32_t lens[] = {1, 3, 21};
    for (unsigned broadcast = 0; broadcast < 16; broadcast++)
        for (int a = 0; a < 3; a++)
            for (int group = 1; group <= 3; group += 2)
                for (int causal = 0; causal < 2; causal++)
                    check((struct shape){.batch = 2,
                                         .heads_q = 2 * group,
                                         .heads_kv = 2,
                                         .len_q = lens[a],
                                         .len_kv = 150,
                                         .dim_qk = 12,
                                         .mask = true,
                                         .mask_broadcast = broadcast,
                                         .causal = causal});
}

// A mask that hides whole tiles of keys, and whole rows.
static void test_mask_blocks(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 90};
    for (int a = 0; a < 2; a++) {
        struct fixture *f = make((struct shape){
            .batch = 1, .len_q = lens[a], .len_kv = 400, .dim_qk = 64, .mask = true});
        for (int32_t i = 0; i < lens[a]; i++)
            for (int32_t j = 0; j < 400; j++)
                f->mask[i * 400 + j] = i % 7 != 1 && (j < 100 || j > 380 || (j == 250 && i > 40));
        check_fixture(f);
        assert_true(f->want_lse.data[1] == -INFINITY);
        memset(f->mask, 1, f->mask_count);
        check_fixture(f);
        memset(f->mask, 0, f->mask_count);
        check_fixture(f);
        destroy(f);
    }
}

// Mask bytes that are not next to each other.
static void test_mask_strides(void **state)
{
    (void)state;
    struct fixture *f =
        make((struct shape){.batch = 1, .len_q = 40, .len_kv = 33, .dim_qk = 8, .mask = true});
    uint8_t *apart = calloc(f->mask_count * 3, 1);
    assert_non_null(apart);
    for (int32_t i = 0; i < 40; i++)
        for (int32_t j = 0; j < 33; j++)
            apart[(j * 40 + i) * 3] = f->mask[i * 33 + j];
    run_reference(f);
    f->mem.mask = apart;
    f->call.mask.stride[2] = 3;
    f->call.mask.stride[3] = 40 * 3;
    for (int n = 0; n < num_kernels; n++) {
        run_kernel(f, kernels[n]);
        compare(f, kernels[n]);
    }
    free(apart);
    destroy(f);
}

static void test_strides(void **state)
{
    (void)state;
    for (int32_t pad = 0; pad < 4; pad++)
        for (int inside = 0; inside < 2; inside++)
            for (int32_t len_q = 2; len_q < 60; len_q *= 5)
                check((struct shape){.batch = 2,
                                     .heads_q = 4,
                                     .heads_kv = 2,
                                     .len_q = len_q,
                                     .len_kv = 37,
                                     .dim_qk = 20,
                                     .pad = pad,
                                     .heads_inside = inside,
                                     .causal = true});
}

// K and V shared by the batch and by heads through strides of 0.
static void test_broadcast_kv(void **state)
{
    (void)state;
    for (int32_t len_q = 1; len_q < 40; len_q += 19) {
        struct fixture *f = make((struct shape){
            .batch = 3, .heads_q = 4, .heads_kv = 2, .len_q = len_q, .len_kv = 50, .dim_qk = 24});
        f->call.k.stride[0] = 0;
        f->call.v.stride[1] = 0;
        check_fixture(f);
        destroy(f);
    }
}

static void test_scales(void **state)
{
    (void)state;
    static const float scales[] = {0.0f, 1.0f, -0.5f, 3.0f, 1e-20f, -2.0f};
    for (int n = 0; n < 6; n++)
        for (int32_t len_q = 1; len_q < 40; len_q += 19) {
            struct fixture *f = make((struct shape){
                .batch = 1, .len_q = len_q, .len_kv = 50, .dim_qk = 24, .tolerance = 1e-5f});
            f->call.scale = scales[n];
            check_fixture(f);
            destroy(f);
        }
    // The scaled query would overflow, the scaled score does not.
    for (int32_t len_q = 1; len_q < 40; len_q += 19) {
        struct fixture *f = make((struct shape){
            .batch = 1, .len_q = len_q, .len_kv = 50, .dim_qk = 24, .tolerance = 1e-5f});
        for (size_t n = 0; n < f->q.count; n++)
            f->q.data[n] *= 1e10f;
        for (size_t n = 0; n < f->k.count; n++)
            f->k.data[n] *= 1e-40f / 1e-2f;
        f->call.scale = 1e30f / 1e2f;
        check_fixture(f);
        destroy(f);
    }
}

// NaN and infinities behind causal masks and boolean masks, in tiles where other rows see the keys.
static void test_hidden_values(void **state)
{
    (void)state;
    static const float poison[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f};
    static const int32_t lens[] = {1, 3, 8, 77};
    for (int n = 0; n < 5; n++)
        for (int a = 0; a < 4; a++)
            for (int kind = 0; kind < 3; kind++) {
                struct fixture *f = make((struct shape){.batch = 1,
                                                        .heads_q = 2,
                                                        .heads_kv = 1,
                                                        .len_q = lens[a],
                                                        .len_kv = 90,
                                                        .dim_qk = 19,
                                                        .causal = kind != 1,
                                                        .mask = kind != 0,
                                                        .tolerance = 4e-6f});
                // The keys of the last third are hidden from the first half of the rows, the key
                // 70 from all.
                for (int32_t h = 0; kind != 0 && h < 2; h++)
                    for (int32_t i = 0; i < lens[a]; i++)
                        for (int32_t j = 60; j < 90; j++)
                            if (i <= lens[a] / 2 || j == 70)
                                f->mask[(h * lens[a] + i) * 90 + j] = 0;
                // Rows that see the poison are NaN in part, the others must not notice.
                for (int d = 0; d < 19; d++) {
                    at(&f->v, &f->call.v, 0, 0, 70)[d] = poison[n];
                    at(&f->v, &f->call.v, 0, 0, 89)[d] = d % 2 ? poison[n] : 1.0f;
                }
                if (n < 4) {
                    at(&f->k, &f->call.k, 0, 0, 70)[3] = poison[n];
                    at(&f->k, &f->call.k, 0, 0, 88)[0] = NAN;
                }
                if (n == 4)
                    f->s.tolerance = 1e33f;
                check_fixture(f);
                destroy(f);
            }
}

static void test_visible_values(void **state)
{
    (void)state;
    static const int32_t lens[] = {1, 4, 35};
    for (int a = 0; a < 3; a++) {
        struct fixture *f = make((struct shape){.batch = 1,
                                                .len_q = lens[a],
                                                .len_kv = 90,
                                                .dim_qk = 19,
                                                .causal = true,
                                                .top_left = a == 2});
        at(&f->v, &f->call.v, 0, 0, 20)[3] = NAN;
        at(&f->v, &f->call.v, 0, 0, 30)[4] = INFINITY;
        at(&f->v, &f->call.v, 0, 0, 0)[18] = -INFINITY;
        check_fixture(f);
        at(&f->k, &f->call.k, 0, 0, 25)[18] = NAN;
        check_fixture(f);
        at(&f->q, &f->call.q, 0, 0, 0)[0] = NAN;
        check_fixture(f);
        destroy(f);

        // A weight that underflows to 0 does not hide what V holds.
        f = make(
            (struct shape){.batch = 1, .len_q = lens[a], .len_kv = 90, .dim_qk = 19, .mask = true});
        memset(f->mask, 1, f->mask_count);
        for (int32_t i = 0; i < lens[a]; i++) {
            f->mask[i * 90 + 7] = 0;
            for (int d = 0; d < 19; d++)
                at(&f->q, &f->call.q, 0, 0, i)[d] = 1.0f;
        }
        for (int d = 0; d < 19; d++) {
            at(&f->k, &f->call.k, 0, 0, 5)[d] = -1e4f;
            at(&f->v, &f->call.v, 0, 0, 7)[d] = NAN;
        }
        at(&f->v, &f->call.v, 0, 0, 5)[2] = INFINITY;
        run_reference(f);
        for (int32_t i = 0; i < lens[a]; i++) // the weight is 0 in double too, or tiny
            at(&f->want_o, &f->call.o, 0, 0, i)[2] = NAN;
        for (int n = 0; n < num_kernels; n++) {
            run_kernel(f, kernels[n]);
            for (int32_t i = 0; i < lens[a]; i++) {
                float *o = at(&f->o, &f->call.o, 0, 0, i);
                assert_false(isfinite(o[2]));
                o[2] = NAN;
            }
            compare(f, kernels[n]);
        }
        destroy(f);
    }
}

// Whole rows of NaN: nothing visible is turned into 0.
static void test_all_nan(void **state)
{
    (void)state;
    for (int32_t len_q = 1; len_q < 40; len_q += 19) {
        struct fixture *f =
            make((struct shape){.batch = 1, .len_q = len_q, .len_kv = 50, .dim_qk = 24});
        for (size_t n = 0; n < f->k.count; n++)
            f->k.data[n] = NAN;
        check_fixture(f);
        assert_true(isnan(f->o.data[0]));
        destroy(f);
    }
}

static void set_scores(struct fixture *f, float (*score)(int32_t j))
{
    for (int32_t i = 0; i < f->s.len_q; i++)
        for (int32_t d = 0; d < f->s.dim_qk; d++)
            at(&f->q, &f->call.q, 0, 0, i)[d] = d == 1 ? 1.0f : 0.0f;
    for (int32_t j = 0; j < f->s.len_kv; j++)
        for (int32_t d = 0; d < f->s.dim_qk; d++)
            at(&f->k, &f->call.k, 0, 0, j)[d] = d == 1 ? score(j) : 0.0f;
    f->call.scale = 1.0f;
}

static float score_lowest(int32_t j)
{
    (void)j;
    return -3.4e38f;
}

static float score_minus_infinity(int32_t j)
{
    return j % 3 == 0 ? -INFINITY : (float)(j % 5);
}

static float score_all_minus_infinity(int32_t j)
{
    (void)j;
    return -INFINITY;
}

static float score_rising(int32_t j)
{
    return 10000.0f * (float)j;
}

static float score_high(int32_t j)
{
    return 30000.0f + (float)(j % 4);
}

static float score_falling(int32_t j)
{
    return -1.5f * (float)j;
}

static float score_mixed(int32_t j)
{
    return j == 33 ? 0.0f : j % 2 ? -3e38f : -1e5f;
}

static void test_extreme_scores(void **state)
{
    (void)state;
    static float (*const scores[])(int32_t) = {
        score_lowest,  score_minus_infinity, score_all_minus_infinity, score_rising, score_high,
        score_falling, score_mixed};
    for (int n = 0; n < 7; n++)
        for (int32_t len_q = 1; len_q < 40; len_q += 19)
            for (int causal = 0; causal < 2; causal++) {
                struct fixture *f = make((struct shape){.batch = 1,
                                                        .len_q = len_q,
                                                        .len_kv = 130,
                                                        .dim_qk = 5,
                                                        .causal = causal,
                                                        .top_left = true});
                set_scores(f, scores[n]);
                if (n == 1) // -infinity hides
                    at(&f->v, &f->call.v, 0, 0, 3)[0] = NAN;
                check_fixture(f);
                destroy(f);
            }
}

// Sums of V that overflow although the mean does not.
static void test_large_v(void **state)
{
    (void)state;
    for (int32_t len_q = 1; len_q < 40; len_q += 19) {
        struct fixture *f = make((struct shape){
            .batch = 1, .len_q = len_q, .len_kv = 300, .dim_qk = 24, .tolerance = 3e33f});
        for (size_t n = 0; n < f->v.count; n++)
            f->v.data[n] = 3e38f;
        run_reference(f);
        for (int n = 0; n < num_kernels; n++) {
            run_kernel(f, kernels[n]);
            for (size_t m = 0; m < f->o.count; m++)
                if (!close_to(f->o.data[m], 3e38f, f->s.tolerance))
                    failed(f, kernels[n], "O", m, f->o.data[m], 3e38f);
        }
        destroy(f);
    }
}

static void test_empty(void **state)
{
    (void)state;
    check((struct shape){.batch = 0, .len_q = 3, .len_kv = 4, .dim_qk = 8});
    check((struct shape){.batch = 2, .len_q = 0, .len_kv = 4, .dim_qk = 8});
    struct fixture *f = make((struct shape){.batch = 2,
                                            .heads_q = 2,
                                            .heads_kv = 1,
                                            .len_q = 20,
                                            .len_kv = 0,
                                            .dim_qk = 8,
                                            .pad = 2,
                                            .mask = true});
    f->mem.k = f->mem.v = NULL;
    f->mem.mask = NULL;
    check_fixture(f);
    assert_true(f->o.data[0] == 0.0f);
    assert_true(f->lse.data[0] == -INFINITY);
    destroy(f);
}

static void test_no_lse(void **state)
{
    (void)state;
    for (int32_t len_q = 1; len_q < 40; len_q += 19) {
        struct fixture *f = make(
            (struct shape){.batch = 1, .len_q = len_q, .len_kv = 50, .dim_qk = 24, .no_lse = true});
        f->mem.lse = NULL;
        check_fixture(f);
        destroy(f);
    }
}

static void test_threads(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {.batch = 1, .heads_q = 4, .heads_kv = 2, .len_q = 200, .len_kv = 300, .dim_qk = 40},
        {.batch = 1, .heads_q = 4, .heads_kv = 1, .len_q = 1, .len_kv = 5000, .dim_qk = 32},
        {.batch = 1, .heads_q = 1, .heads_kv = 1, .len_q = 70, .len_kv = 4000, .dim_qk = 16},
        {.batch = 2, .heads_q = 3, .heads_kv = 1, .len_q = 2, .len_kv = 3001, .dim_qk = 33},
    };
    for (int n = 0; n < 4; n++)
        for (int causal = 0; causal < 2; causal++) {
            struct shape s = shapes[n];
            s.causal = causal;
            struct fixture *f = make(s);
            run_reference(f);
            float *again = malloc(f->o.count * sizeof *again);
            assert_non_null(again);
            for (int k = 0; k < num_kernels; k++)
                for (int32_t threads = 1; threads <= 9; threads += threads < 3 ? 1 : 3) {
                    f->s.threads = threads;
                    run_kernel(f, kernels[k]);
                    compare(f, kernels[k]);
                    memcpy(again, f->o.data, f->o.count * sizeof *again);
                    run_kernel(f, kernels[k]);
                    assert_memory_equal(again, f->o.data, f->o.count * sizeof *again);
                }
            free(again);
            destroy(f);
        }
}

// Splits of the keys: hidden NaN, empty parts and empty rows go through the merge.
static void test_split_edges(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 40};
    for (int a = 0; a < 2; a++) {
        struct fixture *f = make((struct shape){.batch = 1,
                                                .len_q = lens[a],
                                                .len_kv = 4000,
                                                .dim_qk = 64,
                                                .mask = true,
                                                .threads = 3});
        for (int32_t i = 0; i < lens[a]; i++)
            for (int32_t j = 0; j < 4000; j++)
                f->mask[i * 4000 + j] = i != 1 && (j < 300 || (i == 0 && j == 3500));
        for (int d = 0; d < 64; d++)
            at(&f->v, &f->call.v, 0, 0, 2500)[d] = NAN;
        check_fixture(f);
        assert_true(f->lse.data[1] == -INFINITY);
        at(&f->k, &f->call.k, 0, 0, 3500)[0] = NAN;
        check_fixture(f);
        assert_true(isnan(f->lse.data[0]));
        destroy(f);
    }
}

static float constant(void)
{
    return 0.7f;
}

static float largest(const struct array *a)
{
    float most = 0.0f;
    for (size_t n = 0; n < a->count; n++)
        most = fabsf(a->data[n]) > most ? fabsf(a->data[n]) : most;
    return most;
}

// A million keys: uniform weights over a constant, then normal scores.
static void test_long_rows(void **state)
{
    (void)state;
    static const int32_t lens[] = {2, 9};
    for (int a = 0; a < 2; a++) {
        struct fixture *f = make((struct shape){.batch = 1,
                                                .len_q = lens[a],
                                                .len_kv = 1000000,
                                                .dim_qk = 8,
                                                .tolerance = 8e-6f * 0.7f});
        const struct array q = f->q;
        fill(f, &f->v, &f->call.v, 1, 1000000, 8, constant);
        memset(f->q.data, 0, f->q.count * sizeof(float));
        for (int n = 0; n < num_kernels; n++) {
            run_kernel(f, kernels[n]);
            for (size_t m = 0; m < f->o.count; m++)
                if (!close_to(f->o.data[m], 0.7f, f->s.tolerance))
                    failed(f, kernels[n], "O", m, f->o.data[m], 0.7f);
            for (size_t m = 0; m < f->lse.count; m++)
                if (!close_to(f->lse.data[m], 13.8155106f, 8e-6f))
                    failed(f, kernels[n], "LSE", m, f->lse.data[m], 13.8155106f);
        }
        f->q = q;
        fill(f, &f->q, &f->call.q, 1, lens[a], 8, normal);
        fill(f, &f->v, &f->call.v, 1, 1000000, 8, uniform);
        f->s.tolerance = 1e-6f * largest(&f->v);
        check_fixture(f);
        // The careful pass keeps its precision too.
        fill(f, &f->v, &f->call.v, 1, 1000000, 8, constant);
        f->p.causal = true;
        f->call.win_hi = 999990;
        at(&f->v, &f->call.v, 0, 0, 999991)[0] = NAN;
        f->s.tolerance = 8e-6f * 0.7f;
        check_fixture(f);
        assert_true(isfinite(f->want_o.data[0]));
        destroy(f);
    }
}

static void test_plan_figures(void **state)
{
    (void)state;
    const struct cla_problem p = {.dim_qk = 64,
                                  .dim_v = 64,
                                  .heads_q = 4,
                                  .heads_kv = 1,
                                  .group = 4,
                                  .max_len_q = INT32_MAX,
                                  .max_len_kv = INT32_MAX};
    int32_t width, tile_q, tile_k;
    cla_host_tile(&p, &width, &tile_q, &tile_k);
    assert_string_equal(cla_host_isa(), kernels[0]->isa);
    assert_int_equal(width, kernels[0]->width);
    assert_int_equal(tile_q, kernels[0]->tile_q);
    assert_in_range(tile_k, 8, 1024);
    assert_in_range(cla_host_threads(0), 1, 1024);
}

static void test_peaks(void **state)
{
    (void)state;
    // How fast it is here, under a simulator maybe, is not what is asked.
    assert_true(cla_host_peak_fma(1, false) > 0.0);
    assert_true(cla_host_peak_fma(2, true) > 0.0);
    assert_true(cla_host_peak_read(2, 1 << 20) > 0.0);
    assert_true(cla_host_peak_read(1, 0) == 0.0);
}

#ifdef HAVE_FORK
// The exit status of `body` in a child, 0 = good. A child that hangs is ended by a signal.
static int in_child(int (*body)(void))
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        _exit(body());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int run_in_child(void)
{
    struct fixture *f =
        make((struct shape){.batch = 1, .len_q = 300, .len_kv = 300, .dim_qk = 64, .threads = 2});
    run_reference(f);
    run_kernel(f, kernels[0]);
    int wrong = 0;
    for (size_t n = 0; n < f->o.count; n++)
        wrong |= !close_to(f->o.data[n], f->want_o.data[n], f->s.tolerance);
    destroy(f);
    return wrong;
}

// One query on many keys, which are split over the threads: a child has one thread only, but must
// split as its parent did.
static struct fixture *split;
static float parents_o[64];

static int split_in_child(void)
{
    run_kernel(split, kernels[0]);
    return memcmp(split->o.data, parents_o, sizeof parents_o) != 0;
}

static void test_fork(void **state)
{
    (void)state;
    split =
        make((struct shape){.batch = 1, .len_q = 1, .len_kv = 9000, .dim_qk = 64, .threads = 2});
    assert_int_equal(split->o.count, 64);
    run_kernel(split, kernels[0]);
    memcpy(parents_o, split->o.data, sizeof parents_o);
    assert_int_equal(in_child(split_in_child), 0);
    destroy(split);
    assert_int_equal(run_in_child(), 0);
    assert_int_equal(in_child(run_in_child), 0);
    assert_int_equal(run_in_child(), 0);
}

#ifndef HAVE_ASAN
static int run_without_memory(void)
{
    struct fixture *f = make((struct shape){.batch = 1,
                                            .heads_q = 64,
                                            .heads_kv = 64,
                                            .len_q = 9,
                                            .len_kv = 40,
                                            .dim_qk = 256,
                                            .threads = 64});
    const struct rlimit none = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_AS, &none) != 0)
        return 2;
    for (size_t n = 0; n < f->o.count; n++)
        f->o.data[n] = NAN;
    const clattn_status st =
        cla_host_forward_with(kernels[0], &f->p, &f->call, &f->mem, f->s.threads);
    if (st != CLATTN_ERR_OUT_OF_MEMORY)
        return 3;
    for (size_t n = 0; n < f->o.count; n++)
        if (!isnan(f->o.data[n]))
            return 4;
    return 0;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    if (getenv("CLATTN_TEST_EMULATED")) // which does not bound its memory for a program
        skip();
    assert_int_equal(in_child(run_without_memory), 0);
}
#endif
#endif

int main(void)
{
    list_kernels();
    const struct CMUnitTest tests[] = {
#if defined(HAVE_FORK) && !defined(HAVE_ASAN)
        cmocka_unit_test(test_out_of_memory), // first: its child must not find a team of threads
#endif
        cmocka_unit_test(test_every_dim),
        cmocka_unit_test(test_dim_v_differs),
        cmocka_unit_test(test_tile_edges),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_mask_blocks),
        cmocka_unit_test(test_mask_strides),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_broadcast_kv),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_hidden_values),
        cmocka_unit_test(test_visible_values),
        cmocka_unit_test(test_all_nan),
        cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_large_v),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_no_lse),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_split_edges),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_plan_figures),
        cmocka_unit_test(test_peaks),
#ifdef HAVE_FORK
        cmocka_unit_test(test_fork),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
