// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU with products of bfloat16: who takes them, what the instruction does, how
// far off the results are, and numbers at the ends of the type. The kernels are the CPU's own,
// where it has the instruction, and those that do in C as it does (CLA_TEST_HOST_KERNELS).
// test_host_features goes through the features.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/clattn.h"
#include "host/host.h"
#include "host/kernel.h"
#include "ref/ref.h"
#include "util/half.h"

#define CLA_HOST_W 4
#include "host/dot.h"

#ifdef CLA_TEST_HOST_KERNELS
extern const struct cla_host_kernel cla_host_kernel_test_w16;
extern const struct cla_host_kernel cla_host_kernel_test_dot;
extern const struct cla_host_kernel cla_host_kernel_test_dot_w4;
#endif
#ifdef CLA_HOST_HAS_AVX512BF16
#include <immintrin.h>
#endif

#define BF16_MAX 0x1.fep127f

enum { MAX_KERNELS = 4, GUARD = 32, UNWRITTEN = 0x7fd5 };

static const struct cla_host_kernel *kernels[MAX_KERNELS];
static int num_kernels;

static void list_kernels(void)
{
    if (cla_host_dot_kernel())
        kernels[num_kernels++] = cla_host_dot_kernel();
#ifdef CLA_TEST_HOST_KERNELS
    bool runs = true;
#if defined(__x86_64__) || defined(__i386__)
    runs = strcmp(cla_host_isa(), "generic") != 0;
#endif
    if (runs) {
        kernels[num_kernels++] = &cla_host_kernel_test_dot;
        kernels[num_kernels++] = &cla_host_kernel_test_dot_w4;
    }
#endif
    for (int n = 0; n < num_kernels; n++)
        print_message("kernel %s\n", kernels[n]->isa);
}

static uint32_t random_state = 1;

static uint32_t pick(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static float normal(void)
{
    const float u = ((float)pick(1u << 23) + 1.0f) * 0x1p-23f;
    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * (float)pick(1u << 23) * 0x1p-23f);
}

// ---- one call, batch 1, contiguous but for padding ----------------------------------------------

struct fixture {
    struct cla_problem p;
    struct cla_call call;
    struct cla_host_mem mem;
    uint16_t *q, *k, *v, *o; // o begins behind GUARD elements
    float *want, *lse, *want_lse;
    uint8_t *mask;
    int32_t heads, pad;
};

static uint16_t *new_bits(int64_t count)
{
    uint16_t *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t n = 0; n < count; n++)
        x[n] = UNWRITTEN; // a NaN
    return x;
}

static float *new_floats(int64_t count)
{
    float *x = calloc((size_t)count, sizeof *x);
    assert_non_null(x);
    return x;
}

static int64_t set_strides(struct cla_tensor *t, int32_t heads, int32_t len, int32_t row)
{
    t->stride[2] = row;
    t->stride[1] = (int64_t)len * row;
    t->stride[0] = heads * t->stride[1];
    return t->stride[0];
}

static void fill(uint16_t *x, int64_t rows, int32_t dim, int32_t pad, float size)
{
    for (int64_t r = 0; r < rows; r++)
        for (int32_t d = 0; d < dim; d++)
            x[r * (dim + pad) + d] = cla_f32_to_bf16(size * normal());
}

// As many query heads as key heads. NaN lies behind each row where there is padding.
static struct fixture make(int32_t heads, int32_t len_q, int32_t len_kv, int32_t dim_qk,
                           int32_t dim_v, int32_t pad)
{
    if (!num_kernels) // neither this CPU's nor, in this build, one that stands in for it
        skip();
    struct fixture f = {.heads = heads, .pad = pad};
    f.p = (struct cla_problem){.dtype_q = CLATTN_DTYPE_BF16, .dtype_kv = CLATTN_DTYPE_BF16,
                               .dtype_o = CLATTN_DTYPE_BF16, .dim_qk = dim_qk, .dim_v = dim_v,
                               .heads_q = heads, .heads_kv = heads, .group = 1, .lse = true};
    f.call = (struct cla_call){.batch = 1, .len_q = len_q, .len_kv = len_kv, .left = -1,
                               .right = -1, .scale = 1.0f / sqrtf((float)dim_qk)};
    f.call.lse_stride[1] = len_q;
    f.call.lse_stride[0] = (int64_t)heads * len_q;
    cla_call_set_window(&f.p, &f.call);
    f.q = new_bits(set_strides(&f.call.q, heads, len_q, dim_qk + pad));
    f.k = new_bits(set_strides(&f.call.k, heads, len_kv, dim_qk + pad));
    f.v = new_bits(set_strides(&f.call.v, heads, len_kv, dim_v + pad));
    const int64_t outputs = set_strides(&f.call.o, heads, len_q, dim_v + pad);
    f.o = new_bits(outputs + 2 * GUARD) + GUARD;
    f.want = new_floats(outputs);
    f.lse = new_floats((int64_t)heads * len_q);
    f.want_lse = new_floats((int64_t)heads * len_q);
    fill(f.q, (int64_t)heads * len_q, dim_qk, pad, 1.0f);
    fill(f.k, (int64_t)heads * len_kv, dim_qk, pad, 1.0f);
    fill(f.v, (int64_t)heads * len_kv, dim_v, pad, 1.0f);
    f.mem = (struct cla_host_mem){.q = f.q, .k = f.k, .v = f.v, .o = f.o, .lse = f.lse};
    return f;
}

// A mask that shows every pair.
static void add_mask(struct fixture *f)
{
    const size_t pairs = (size_t)f->call.len_q * (size_t)f->call.len_kv;
    f->mask = malloc(pairs);
    assert_non_null(f->mask);
    memset(f->mask, 1, pairs);
    f->p.mask = true;
    f->mem.mask = f->mask;
    f->call.mask.stride[2] = f->call.len_kv;
    f->call.mask.stride[3] = 1;
}

static void destroy(struct fixture *f)
{
    free(f->q);
    free(f->k);
    free(f->v);
    free(f->o - GUARD);
    free(f->want);
    free(f->lse);
    free(f->want_lse);
    free(f->mask);
}

static void run_reference(struct fixture *f)
{
    struct cla_problem p = f->p;
    struct cla_host_mem mem = f->mem;
    p.dtype_o = CLATTN_DTYPE_F32;
    mem.o = f->want;
    mem.lse = f->want_lse;
    assert_int_equal(cla_ref_forward(&p, &f->call, &mem), CLATTN_OK);
}

static void run(struct fixture *f, const struct cla_host_kernel *kernel, int32_t threads)
{
    const int64_t outputs = f->call.o.stride[0];
    for (int64_t n = -GUARD; n < outputs + GUARD; n++)
        f->o[n] = UNWRITTEN;
    assert_int_equal(cla_host_forward_with(kernel, &f->p, &f->call, &f->mem, threads), CLATTN_OK);
    const int32_t row = f->p.dim_v + f->pad;
    for (int64_t n = -GUARD; n < outputs + GUARD; n++)
        if (n < 0 || n >= outputs || n % row >= f->p.dim_v)
            assert_int_equal(f->o[n], UNWRITTEN);
}

// Against the reference: O within half a unit of its last place and what rounding the weights can
// do to V of that size, LSE as exact as that of floats.
static void check(struct fixture *f, float size)
{
    const int32_t row = f->p.dim_v + f->pad;
    run_reference(f);
    for (int n = 0; n < num_kernels; n++)
        for (int32_t threads = 1; threads <= 2; threads++) {
            run(f, kernels[n], threads);
            for (int64_t m = 0; m < f->call.o.stride[0]; m++) {
                const float value = cla_bf16_to_f32(f->o[m]), want = f->want[m];
                if (m % row >= f->p.dim_v)
                    continue;
                if (isfinite(want) ? !(fabsf(value * 0.5f - want * 0.5f) <=
                                       0x1.02p-9f * (fabsf(want) + size) + 1e-6f * size)
                                   : isfinite(value) || isnan(value) != isnan(want))
                    fail_msg("%s, %d threads: O[%lld] = %.9g, expected %.9g (len %d, %d dim %d, "
                             "%d)", kernels[n]->isa, threads, (long long)m, (double)value,
                             (double)want, f->call.len_q, f->call.len_kv, f->p.dim_qk,
                             f->p.dim_v);
            }
            for (int64_t m = 0; m < f->call.lse_stride[0]; m++) {
                const float value = f->lse[m], want = f->want_lse[m];
                if (isfinite(want) ? !(fabsf(value - want) <= 1e-5f + 1e-6f * fabsf(want))
                                   : isnan(want) ? !isnan(value) : value != want)
                    fail_msg("%s: LSE[%lld] = %.9g, expected %.9g", kernels[n]->isa, (long long)m,
                             (double)value, (double)want);
            }
        }
}

// ---- who ----------------------------------------------------------------------------------------

// The names that plans tell, by default and in full precision.
static void assert_kernel_of_plans(const char *by_default, const char *in_full)
{
    clattn_context_desc cd;
    clattn_context_desc_init(&cd, sizeof cd);
    cd.flags = CLATTN_CONTEXT_NO_OPENCL;
    clattn_context *ctx = NULL;
    assert_int_equal(clattn_context_create(&cd, &ctx), CLATTN_OK);
    for (int32_t precision = 0; precision < 2; precision++) {
        clattn_attention_desc d;
        clattn_attention_desc_init(&d, sizeof d);
        d.dtype_q = d.dtype_kv = d.dtype_o = CLATTN_DTYPE_BF16;
        d.dim_qk = 64;
        d.heads_q = 1;
        d.precision = precision;
        clattn_plan *plan = NULL;
        clattn_plan_info info = {.struct_size = sizeof info};
        assert_int_equal(clattn_attention_plan_create(ctx, &d, &plan), CLATTN_OK);
        assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
        const char *want = precision == CLATTN_PRECISION_FULL ? in_full : by_default;
        assert_string_equal(info.kernel_name, want);
        assert_non_null(strstr(info.reason, want));
        clattn_plan_destroy(&plan);
    }
    clattn_context_destroy(&ctx);
}

static void test_choice(void **state)
{
    (void)state;
    struct cla_problem p = {.dtype_q = CLATTN_DTYPE_BF16, .dtype_kv = CLATTN_DTYPE_BF16,
                            .dtype_o = CLATTN_DTYPE_BF16, .dim_qk = 64, .dim_v = 64, .group = 1};
    const struct cla_host_kernel *dot = cla_host_dot_kernel();
    print_message("plans of bfloat16 run %s\n", cla_host_isa_of(&p));
    assert_string_equal(cla_host_isa_of(&p), dot ? dot->isa : cla_host_isa());
    assert_true(!dot || dot->dot);
    assert_false(cla_host_kernels()[0]->dot);
    assert_kernel_of_plans(cla_host_isa_of(&p), cla_host_isa());
#ifdef CLA_TEST_HOST_KERNELS
    cla_host_dot_stand_in = &cla_host_kernel_test_dot;
    assert_kernel_of_plans("test_dot", cla_host_isa());
    assert_string_equal(cla_host_isa_of(&p), "test_dot");
    struct cla_problem other = p;
    other.precision = CLATTN_PRECISION_FULL;
    assert_string_equal(cla_host_isa_of(&other), cla_host_isa());
    int32_t *const types[] = {&other.dtype_q, &other.dtype_kv, &other.dtype_o};
    for (int n = 0; n < 3; n++)
        for (int32_t type = 0; type < 2; type++) {
            other = p;
            *types[n] = type;
            assert_string_equal(cla_host_isa_of(&other), cla_host_isa());
        }
    cla_host_dot_stand_in = NULL;
#endif
}

#ifdef CLA_TEST_HOST_KERNELS
// Full precision and other types give the bits of the same kernel without such products; the
// default does not.
static void test_precision(void **state)
{
    (void)state;
    struct fixture f = make(2, 70, 300, 33, 40, 0);
    const size_t bytes = (size_t)f.call.o.stride[0] * sizeof *f.o;
    uint16_t *first = malloc(bytes);
    assert_non_null(first);
    run(&f, &cla_host_kernel_test_w16, 1);
    memcpy(first, f.o, bytes);
    run(&f, &cla_host_kernel_test_dot, 1);
    assert_memory_not_equal(first, f.o, bytes);
    f.p.precision = CLATTN_PRECISION_FULL;
    run(&f, &cla_host_kernel_test_dot, 1);
    assert_memory_equal(first, f.o, bytes);
    free(first);
    destroy(&f);
}
#endif

// ---- the instruction ----------------------------------------------------------------------------

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static int32_t pair_of(float first, float second)
{
    return (int32_t)(cla_float_bits(first) >> 16 | (cla_float_bits(second) & 0xffff0000u));
}

// Numbers of every size, often special ones.
static float any_bf16(void)
{
    static const uint32_t special[] = {0,          0x80000000, 0x00010000, 0x807f0000, 0x00800000,
                                       0x7f7f0000, 0xff7f0000, 0x7f800000, 0xff800000, 0x7fc00000};
    if (pick(8) == 0)
        return cla_bits_float(special[pick(10)]);
    return cla_bf16_to_f32(cla_f32_to_bf16(ldexpf(normal(), (int)pick(40) - 20)));
}

// Whether a product of numbers leaves the range of float, so that it depends on whether it is
// rounded before it is added.
static bool overflows(float a, float b)
{
    return isfinite(a) && isfinite(b) && fabs((double)a * (double)b) > 1e38;
}

static void test_dot_pairs(void **state)
{
    (void)state;
    for (int n = 0; n < 20000; n++) {
        const float a0 = any_bf16(), a1 = any_bf16(), b0 = any_bf16(), b1 = any_bf16();
        const float acc = pick(4) ? normal() : any_bf16();
        const vi a = pair_of(a0, a1) - (vi){0}, b = pair_of(b0, b1) - (vi){0};
        const float value = dot_pairs(vec_splat(acc), a, b)[n % 4];
        // In double both sums are exact enough to be rounded once more.
        float want = flushed((float)((double)flushed(acc) +
                                     (double)flushed(a1) * (double)flushed(b1)));
        want = flushed((float)((double)want + (double)flushed(a0) * (double)flushed(b0)));
        if (overflows(a0, b0) || overflows(a1, b1))
            continue;
        if (isnan(want) ? !isnan(value) : cla_float_bits(value) != cla_float_bits(want))
            fail_msg("%g + %g * %g + %g * %g = %.9g, expected %.9g", (double)acc, (double)a1,
                     (double)b1, (double)a0, (double)b0, (double)value, (double)want);
    }
    // The second product is added first: 2^24 + 1 is rounded to 2^24.
    const vi ones = pair_of(1.0f, 1.0f) - (vi){0};
    assert_true(dot_pairs(vec_splat(0x1p24f), ones, pair_of(-0x1p24f, 1.0f) - (vi){0})[0] == 0.0f);
    assert_true(dot_pairs(vec_splat(0x1p24f), ones, pair_of(1.0f, -0x1p24f) - (vi){0})[0] == 1.0f);
}

static void test_dot_pack(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 65536; n++) {
        static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (int m = 0; m < 6; m++) {
            const float x = cla_bits_float(n << 16 | low[m]);
            const float y = cla_bits_float(~n << 16 | low[5 - m]);
            const uint32_t pair = (uint32_t)dot_pack(vec_splat(x), vec_splat(y))[0];
            const uint32_t want = cla_f32_to_bf16(flushed(x)) |
                                  (uint32_t)cla_f32_to_bf16(flushed(y)) << 16;
            if (pair != want)
                fail_msg("%.9g, %.9g: %x, expected %x", (double)x, (double)y, pair, want);
        }
    }
}

#ifdef CLA_HOST_HAS_AVX512BF16
// What the instructions make of 16 vectors' worth of numbers.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static void
run_instructions(const float *acc, const int32_t *a, const int32_t *b, float *sums,
                 uint32_t *packed)
{
    const __m512 x = _mm512_loadu_ps(acc);
    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(x, (__m512bh)_mm512_loadu_si512(a),
                                            (__m512bh)_mm512_loadu_si512(b)));
    _mm512_storeu_si512(packed, (__m512i)_mm512_cvtne2ps_pbh(_mm512_setzero_ps(), x));
}

// The same by the CPU, as far as its manual goes: an order of rounding is not held against it.
static void test_instructions(void **state)
{
    (void)state;
    if (!cla_host_dot_kernel()) {
        print_message("this CPU has no AVX512_BF16\n");
        skip();
    }
    for (int n = 0; n < 1000; n++) {
        float acc[16], sums[16];
        double exact[16], size[16];
        int32_t a[16], b[16];
        uint32_t packed[16];
        for (int i = 0; i < 16; i++) {
            float a0, a1, b0, b1;
            do {
                a0 = any_bf16();
                a1 = any_bf16();
                b0 = any_bf16();
                b1 = any_bf16();
            } while (overflows(a0, b0) || overflows(a1, b1));
            acc[i] = pick(4) ? normal() : any_bf16();
            a[i] = pair_of(a0, a1);
            b[i] = pair_of(b0, b1);
            const double second = (double)flushed(a1) * (double)flushed(b1);
            const double first = (double)flushed(a0) * (double)flushed(b0);
            exact[i] = (double)flushed(acc[i]) + second + first;
            size[i] = fabs((double)acc[i]) + fabs(second) + fabs(first);
        }
        run_instructions(acc, a, b, sums, packed);
        for (int i = 0; i < 16; i++) {
            if (isfinite(exact[i]))
                assert_true(fabs((double)sums[i] - exact[i]) <= size[i] * 0x1p-23 + 0x1p-125);
            else
                assert_true(isnan(exact[i]) ? isnan(sums[i]) : (double)sums[i] == exact[i]);
            const uint32_t half = packed[i / 2] >> i % 2 * 16 & 0xffff;
            assert_int_equal(half, cla_f32_to_bf16(flushed(acc[i])));
        }
    }
}
#endif

// ---- results ------------------------------------------------------------------------------------

// Ends of tiles of keys, blocks of channels and pairs of either, with NaN behind the rows.
static void test_sizes(void **state)
{
    (void)state;
    static const int32_t lens[] = {1, 2, 3, 4, 5, 119, 120, 121, 123, 243};
    static const int32_t dims[][2] = {{1, 1}, {2, 3}, {3, 2}, {7, 5}, {16, 16}, {31, 17},
                                      {33, 32}, {64, 66}, {65, 9}};
    for (int n = 0; n < 10; n++)
        for (int m = 0; m < 9; m++) {
            struct fixture f = make(1, 20 + 50 * (m % 2), lens[n], dims[m][0], dims[m][1], m % 4);
            check(&f, 4.0f);
            destroy(&f);
        }
    struct fixture f = make(1, 40, 50, 576, 576, 1);
    check(&f, 4.0f);
    destroy(&f);
    f = make(1, 200, 9000, 17, 16, 0); // past the keys after which sums begin anew, and in parts
    check(&f, 4.0f);
    destroy(&f);
}

// Relative to O, by root mean squares: what the kernel does and what rounding alone does.
static void measure(struct fixture *f, const char *name)
{
    run_reference(f);
    for (int n = 0; n < num_kernels; n++) {
        double error = 0.0, rounding = 0.0, size = 0.0, most = 0.0, lse = 0.0;
        run(f, kernels[n], 1);
        for (int64_t m = 0; m < f->call.o.stride[0]; m++) {
            const double want = (double)f->want[m];
            const double e = (double)cla_bf16_to_f32(f->o[m]) - want;
            const double r = (double)cla_bf16_to_f32(cla_f32_to_bf16(f->want[m])) - want;
            error += e * e;
            rounding += r * r;
            size += want * want;
            most = fabs(e) <= most ? most : fabs(e);
        }
        // Not by fmax(), which leaves NaN out, and which gcc 12 for Arm does not get over here.
        for (int64_t m = 0; m < f->call.lse_stride[0]; m++) {
            const double e = fabs((double)(f->lse[m] - f->want_lse[m]));
            lse = e <= lse ? lse : e;
        }
        print_message("%s, %s: rms %.3g of O, by rounding alone %.3g; at most %.2g; LSE %.2g\n",
                      kernels[n]->isa, name, sqrt(error / size), sqrt(rounding / size), most, lse);
        assert_true(sqrt(error / size) < 2e-3 * 1.5);
        assert_true(error < 2.0 * 1.2 * rounding);
        assert_true(lse < 1e-5);
    }
}

static void test_accuracy(void **state)
{
    (void)state;
    struct fixture f = make(2, 128, 500, 64, 64, 0);
    measure(&f, "64 channels");
    f.p.causal = true;
    f.call.right = 0;
    cla_call_set_window(&f.p, &f.call);
    measure(&f, "causal");
    destroy(&f);
    f = make(2, 128, 500, 128, 128, 0);
    measure(&f, "128 channels");
    f.call.scale *= 4.0f;
    measure(&f, "scores of four times the size");
    destroy(&f);
}

// Values that are no numbers, or the largest, hidden and shown, beside a key of the same pair.
static void test_not_finite(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, BF16_MAX};
    for (int n = 0; n < 4; n++)
        for (int32_t key = 36; key < 39; key++)
            for (int shown = 0; shown < 2; shown++) {
                struct fixture f = make(1, 70, 39, 18, 20, 0);
                add_mask(&f);
                for (int32_t i = 0; i < 70; i++)
                    f.mask[i * 39 + key] = (uint8_t)(shown && i % 3 == 0);
                f.v[key * 20 + 7] = cla_f32_to_bf16(values[n]);
                // A number is out of proportion where it is shown only.
                check(&f, n == 3 && shown ? BF16_MAX : 4.0f);
                f.k[key * 18 + 17] = cla_f32_to_bf16(values[n]);
                if (n < 3 || !shown) // a score of that size is out of the range of exact sums
                    check(&f, n == 3 && shown ? BF16_MAX : 4.0f);
                destroy(&f);
            }
}

// Weights that are rounded up must not take O over the end of the type.
static void test_largest(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct fixture f = make(1, 40, 300, 8, 24, 0);
        for (int32_t j = 0; j < 300 * 24; j++)
            f.v[j] = cla_f32_to_bf16(n == 2 && j / 24 % 2 ? -BF16_MAX : BF16_MAX);
        for (int32_t j = 0; n == 1 && j < 300 * 8; j++)
            f.k[j] = cla_f32_to_bf16(0.0f);
        check(&f, BF16_MAX);
        for (int32_t j = 0; n < 2 && j < 40 * 24; j++)
            assert_true(cla_bf16_to_f32(f.o[j]) == BF16_MAX);
        destroy(&f);
    }
}

// Denormals may count as zeros: O of such V is off by no more than the largest of them.
static void test_denormals(void **state)
{
    (void)state;
    struct fixture f = make(1, 40, 50, 8, 24, 0);
    for (int32_t j = 0; j < 50 * 24; j++)
        f.v[j] = (uint16_t)(pick(0x80) | pick(2) << 15);
    for (int32_t j = 0; j < 50 * 8; j++)
        f.k[j] = (uint16_t)(pick(0x80) | pick(2) << 15);
    run_reference(&f);
    for (int n = 0; n < num_kernels; n++) {
        run(&f, kernels[n], 1);
        for (int32_t j = 0; j < 40 * 24; j++)
            assert_true(fabsf(cla_bf16_to_f32(f.o[j]) - f.want[j]) <= 0x1p-126f);
        for (int32_t i = 0; i < 40; i++)
            assert_true(fabsf(f.lse[i] - f.want_lse[i]) <= 1e-5f);
    }
    destroy(&f);
}

// Products too small for the instruction, of which a large scale makes scores.
static void test_small_products(void **state)
{
    (void)state;
    static const float scales[] = {1e38f, -3e37f, 0x1.1p20f};
    for (int n = 0; n < 3; n++) {
        struct fixture f = make(1, 40, 50, 8, 24, 0);
        fill(f.q, 40, 8, 0, 1e-20f);
        fill(f.k, 50, 8, 0, n < 2 ? 1e-19f : 1e-1f);
        f.call.scale = scales[n];
        check(&f, 4.0f);
        destroy(&f);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    list_kernels();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
#ifdef CLA_TEST_HOST_KERNELS
        cmocka_unit_test(test_precision),
#endif
        cmocka_unit_test(test_dot_pairs),
        cmocka_unit_test(test_dot_pack),
#ifdef CLA_HOST_HAS_AVX512BF16
        cmocka_unit_test(test_instructions),
#endif
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_denormals),
        cmocka_unit_test(test_small_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
