// SPDX-License-Identifier: Apache-2.0
// Row softmax against its definition in double precision, which is written out here once more, as
// are the 16-bit types.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"

enum { GUARD = 32, NAIVE = CLATTN_SOFTMAX_NAIVE, SAFE = CLATTN_SOFTMAX_SAFE,
       ONLINE = CLATTN_SOFTMAX_ONLINE };

static const char *const algo_name[] = {"", "naive", "safe", "online"};

// ---- 16-bit types ------------------------------------------------------------------------------

static int mantissa_bits(int dtype)
{
    return dtype == CLATTN_DTYPE_F16 ? 10 : dtype == CLATTN_DTYPE_BF16 ? 7 : 23;
}

static int least_exponent(int dtype)
{
    return dtype == CLATTN_DTYPE_F16 ? -14 : -126;
}

// The nearest value that the type has, ties to even.
static double rounded(double x, int dtype)
{
    int e = 0;
    if (x == 0.0 || !isfinite(x))
        return x;
    frexp(x, &e);
    e = e - 1 < least_exponent(dtype) ? least_exponent(dtype) : e - 1;
    const double step = ldexp(1.0, e - mantissa_bits(dtype));
    const double y = nearbyint(x / step) * step;
    return dtype == CLATTN_DTYPE_F16 && fabs(y) > 65504.0 ? copysign(INFINITY, y) : y;
}

static uint16_t encode(double x, int dtype)
{
    const int m = mantissa_bits(dtype), bias = 1 - least_exponent(dtype);
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const uint16_t all = (uint16_t)(0x7fff & ~((1u << m) - 1));
    if (isnan(x))
        return (uint16_t)(sign | all | 1u << (m - 1));
    x = fabs(rounded(x, dtype));
    if (isinf(x))
        return sign | all;
    int e = 0;
    const double f = frexp(x, &e); // x = f * 2^e, f in [0.5, 1)
    if (x == 0.0 || e - 1 < least_exponent(dtype))
        return (uint16_t)(sign | (unsigned)ldexp(x, m - least_exponent(dtype)));
    return (uint16_t)(sign | (unsigned)(e - 1 + bias) << m | (unsigned)ldexp(2.0 * f - 1.0, m));
}

static double decode(uint16_t u, int dtype)
{
    const int m = mantissa_bits(dtype), bias = 1 - least_exponent(dtype);
    const int e = (u & 0x7fff) >> m, fraction = u & ((1 << m) - 1);
    const double sign = u & 0x8000 ? -1.0 : 1.0;
    if (e == (0x7fff >> m))
        return fraction ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(fraction + ldexp(1.0, m), e - bias - m)
                     : ldexp(fraction, least_exponent(dtype) - m));
}

static double get(const void *x, int dtype, size_t at)
{
    return dtype ? decode(((const uint16_t *)x)[at], dtype) : (double)((const float *)x)[at];
}

static void put(void *x, int dtype, size_t at, double value)
{
    if (dtype)
        ((uint16_t *)x)[at] = encode(value, dtype);
    else
        ((float *)x)[at] = (float)value;
}

// ---- one problem -------------------------------------------------------------------------------

struct rows {
    int algo, dtype_x, dtype_y;
    int64_t rows, len, pad_x, pad_y; // pad: elements between rows
    float scale;
    bool lse, in_place;
    bool any_size; // naive may lose to it
    double (*value)(int64_t row, int64_t c, int64_t len);
};

static double normal_value(int64_t row, int64_t c, int64_t len)
{
    static uint64_t seed = 20;
    (void)row;
    (void)c;
    (void)len;
    return 2.0 * (double)rng_normal(&seed);
}

struct memory {
    void *x, *y;
    float *lse;
    size_t elem_x, elem_y, x_count, y_count;
    int64_t stride_x, stride_y;
};

static void *guarded(size_t bytes)
{
    unsigned char *p = malloc(bytes + 2 * GUARD);
    assert_non_null(p);
    memset(p, 0xff, bytes + 2 * GUARD); // NaN in every type
    return p + GUARD;
}

static void check_guard(const void *p, size_t bytes, const char *what)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < GUARD; i++)
        if (c[bytes + i] != 0xff || (c - GUARD)[i] != 0xff)
            fail_msg("%s: written outside of its memory", what);
}

static void make(const struct rows *r, struct memory *m)
{
    m->elem_x = r->dtype_x ? 2 : 4;
    m->elem_y = r->dtype_y ? 2 : 4;
    m->stride_x = r->len + r->pad_x;
    m->stride_y = r->len + r->pad_y;
    m->x_count = (size_t)((r->rows - 1) * m->stride_x + r->len);
    m->y_count = (size_t)((r->rows - 1) * m->stride_y + r->len);
    m->x = guarded(m->x_count * m->elem_x);
    m->y = guarded(m->y_count * m->elem_y);
    m->lse = guarded((size_t)r->rows * 4);
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t c = 0; c < r->len; c++)
            put(m->x, r->dtype_x, (size_t)(i * m->stride_x + c), r->value(i, c, r->len));
    if (r->in_place)
        memcpy(m->y, m->x, m->x_count * m->elem_x);
}

static void release(struct memory *m)
{
    free((char *)m->x - GUARD);
    free((char *)m->y - GUARD);
    free((char *)m->lse - GUARD);
}

static clattn_softmax_plan *make_plan(const struct test_target *t, const struct rows *r)
{
    clattn_softmax_desc desc;
    clattn_softmax_plan *plan = NULL;
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.algo = r->algo;
    desc.path = t->algo == CLATTN_ALGO_HOST        ? CLATTN_SOFTMAX_PATH_HOST
                : t->algo == CLATTN_ALGO_REFERENCE ? CLATTN_SOFTMAX_PATH_REFERENCE
                                                   : CLATTN_SOFTMAX_PATH_OPENCL;
    desc.kernel = desc.path == CLATTN_SOFTMAX_PATH_OPENCL ? t->kernel : CLATTN_KERNEL_AUTO;
    desc.dtype_x = r->dtype_x;
    desc.dtype_y = r->dtype_y;
    desc.features = r->lse ? CLATTN_SOFTMAX_LSE : 0;
    const int before = t->device->warnings;
    assert_int_equal(clattn_softmax_plan_create(t->device->ctx, &desc, &plan), CLATTN_OK);
    assert_int_equal(t->device->warnings, before);
    clattn_softmax_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_softmax_get_info(plan, &info), CLATTN_OK);
    assert_int_equal(info.path, desc.path);
    assert_int_equal(info.algo, r->algo);
    assert_false(info.is_fallback);
    return plan;
}

static clattn_softmax_call make_call(const struct rows *r, const struct memory *m)
{
    clattn_softmax_call call;
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = r->rows;
    call.len = r->len;
    if (r->scale != 1.0f) {
        call.set = CLATTN_SOFTMAX_SET_SCALE;
        call.scale = r->scale;
    }
    call.x = clattn_host_buf(r->in_place ? m->y : m->x, m->x_count * m->elem_x);
    call.y = clattn_host_buf(m->y, m->y_count * m->elem_y);
    call.stride_x = r->pad_x ? m->stride_x : 0;
    call.stride_y = r->pad_y ? m->stride_y : 0;
    if (r->lse)
        call.lse = clattn_host_buf(m->lse, (size_t)r->rows * 4);
    return call;
}

// Largest |scale * x| among finite ones: the rounding of x is an error of e^x as large.
static double largest(const struct rows *r, const struct memory *m, int64_t row)
{
    double most = 0.0;
    for (int64_t c = 0; c < r->len; c++) {
        const double v = fabs((double)r->scale * get(m->x, r->dtype_x,
                                                     (size_t)(row * m->stride_x + c)));
        most = isfinite(v) && v > most ? v : most;
    }
    return most;
}

static bool close_to(double got, double want, double rel, double abs_tol)
{
    if (!isfinite(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= rel * fabs(want) + abs_tol;
}

// One row against the definition; `sum` in double for a million entries too.
static void check_row(const char *what, const struct rows *r, const struct memory *m, int64_t row)
{
    const double scale = (double)r->scale;
    double top = -INFINITY, d = 0.0;
    for (int64_t c = 0; c < r->len; c++) {
        const double v = scale * get(m->x, r->dtype_x, (size_t)(row * m->stride_x + c));
        top = v > top ? v : top;
    }
    const double shift = top == -INFINITY ? 0.0 : top;
    for (int64_t c = 0; c < r->len; c++)
        d += exp(scale * get(m->x, r->dtype_x, (size_t)(row * m->stride_x + c)) - shift);
    const double ulp = ldexp(1.0, -mantissa_bits(r->dtype_y) - 1);
    const double stored = r->dtype_y ? ulp * (r->algo == NAIVE ? 2.2 : 1.01) : 0.0;
    const double rel = 2e-6 + 3e-7 * largest(r, m, row) + stored;
    const double least = r->dtype_y == CLATTN_DTYPE_F16 ? 0x1p-24 : 1e-37;
    for (int64_t c = 0; c < r->len; c++) {
        const size_t at = (size_t)(row * m->stride_y + c);
        const double x = get(m->x, r->dtype_x, (size_t)(row * m->stride_x + c));
        const double v = exp(scale * x - shift);
        const double want = d == 0.0 ? 0.0 : v / d;
        if (!close_to(get(m->y, r->dtype_y, at), want, rel, least))
            fail_msg("%s: y[%lld][%lld] is %.9g, expected %.9g (of %lld entries)", what,
                     (long long)row, (long long)c, get(m->y, r->dtype_y, at), want,
                     (long long)r->len);
    }
    for (int64_t c = 0; c < r->pad_y && row + 1 < r->rows; c++)
        if (!isnan(get(m->y, r->dtype_y, (size_t)(row * m->stride_y + r->len + c))))
            fail_msg("%s: written between rows %lld and %lld", what, (long long)row,
                     (long long)row + 1);
    const double want = d == 0.0 ? -INFINITY : top + log(d);
    const double lse_abs = 2e-6 + (r->algo == NAIVE ? stored : 0.0);
    if (r->lse && !close_to((double)m->lse[row], want, 3e-7, lse_abs))
        fail_msg("%s: lse[%lld] is %.9g, expected %.9g", what, (long long)row,
                 (double)m->lse[row], want);
}

static void check(const struct test_target *t, const struct rows *r)
{
    char what[200];
    snprintf(what, sizeof what, "%s, %s, types %d and %d, %lld x %lld%s", t->name,
             algo_name[r->algo], r->dtype_x, r->dtype_y, (long long)r->rows, (long long)r->len,
             r->in_place ? ", in place" : "");
    struct memory m;
    make(r, &m);
    clattn_softmax_plan *plan = make_plan(t, r);
    const clattn_softmax_call call = make_call(r, &m);
    const clattn_status st = clattn_softmax_run(plan, &call);
    if (st != CLATTN_OK)
        fail_msg("%s: %s", what, clattn_status_string(st));
    for (int64_t row = 0; row < r->rows; row++)
        check_row(what, r, &m, row);
    check_guard(m.y, m.y_count * m.elem_y, "y");
    check_guard(m.lse, (size_t)r->rows * 4, "lse");
    clattn_softmax_plan_destroy(&plan);
    release(&m);
}

// ---- tests -------------------------------------------------------------------------------------

static void test_lengths(void **state)
{
    struct test_target *t = *state;
    static const int64_t lens[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127,
                                   129, 511, 513, 1000, 1023, 1025, 2047, 2049, 8191, 8193};
    for (int algo = NAIVE; algo <= ONLINE; algo++)
        for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
            struct rows r = {.algo = algo, .rows = 1 + (int64_t)(n % 3) * 2, .len = lens[n],
                             .pad_x = (int64_t)n % 4, .pad_y = (int64_t)n % 3, .scale = 0.7f,
                             .lse = true, .value = normal_value};
            if (t->level == LEVEL_SMALL && (n % 5 != 2 || lens[n] > 1025))
                continue;
            check(t, &r);
        }
}

static void test_types(void **state)
{
    struct test_target *t = *state;
    for (int algo = NAIVE; algo <= ONLINE; algo++)
        for (int x = 0; x < 3; x++)
            for (int y = 0; y < 3; y++) {
                if (x && y && x != y)
                    continue; // each is met beside others
                if (x != y && t->level == LEVEL_SMALL)
                    continue;
                if (x != y && test_share() && 1 + (x + y + algo) % 2 != test_share())
                    continue; // another device has it
                struct rows r = {.algo = algo, .dtype_x = x, .dtype_y = y, .rows = 3, .len = 301,
                                 .pad_x = 1, .pad_y = 3, .scale = 1.0f, .lse = (x + y) % 2 == 0,
                                 .value = normal_value};
                check(t, &r);
            }
}

static void test_in_place(void **state)
{
    struct test_target *t = *state;
    for (int algo = NAIVE; algo <= ONLINE; algo++) {
        struct rows r = {.algo = algo, .rows = 5, .len = 700, .scale = -0.5f, .in_place = true,
                         .lse = true, .value = normal_value};
        check(t, &r);
        r.dtype_x = r.dtype_y = CLATTN_DTYPE_BF16;
        r.scale = 1.0f;
        check(t, &r);
    }
}

static double rising(int64_t row, int64_t c, int64_t len)
{
    (void)row;
    return 40.0 * (double)c / (double)len; // every step is a new maximum
}

// Slower than any vector is long: a rescaling at each step would round the same way each time.
static double rising_slowly(int64_t row, int64_t c, int64_t len)
{
    (void)row;
    return 0.2 * (double)c / (double)len;
}

static double falling(int64_t row, int64_t c, int64_t len)
{
    (void)row;
    return -40.0 * (double)c / (double)len;
}

static double equal(int64_t row, int64_t c, int64_t len)
{
    (void)c;
    (void)len;
    return 0.1 * (double)row;
}

static double outlier_last(int64_t row, int64_t c, int64_t len)
{
    return c == len - 1 ? 1e5 : (double)((c * 7 + row) % 13);
}

static double hidden_first(int64_t row, int64_t c, int64_t len)
{
    return c < len * 3 / 4 ? -INFINITY : (double)((c + row) % 5);
}

static double alternating(int64_t row, int64_t c, int64_t len)
{
    (void)row;
    (void)len;
    return c % 2 ? -1e4 : 1e4;
}

static void test_hard_rows(void **state)
{
    struct test_target *t = *state;
    double (*const values[])(int64_t, int64_t, int64_t) = {rising,       falling,      equal,
                                                           outlier_last, hidden_first, alternating};
    const int64_t long_len = t->level == LEVEL_SMALL ? 3000 : 1000003;
    for (int algo = SAFE; algo <= ONLINE; algo++)
        for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
            struct rows r = {.algo = algo, .rows = 1, .len = long_len, .scale = 1.0f, .lse = true,
                             .value = values[n]};
            check(t, &r);
            r.rows = 2;
            r.len = 1500;
            check(t, &r);
        }
    // More rows than work-groups that keep a device busy, so that each is one part.
    struct rows slow = {.algo = ONLINE, .rows = t->level == LEVEL_FULL ? 9 : 2,
                        .len = t->level == LEVEL_FULL ? 500003 : 3000, .scale = 1.0f, .lse = true,
                        .value = rising_slowly};
    check(t, &slow);
    // Naive has nothing against rows of moderate values.
    struct rows r = {.algo = NAIVE, .rows = 2, .len = long_len, .scale = 1.0f, .lse = true,
                     .value = falling};
    check(t, &r);
}

static double uneven(int64_t row, int64_t c, int64_t len)
{
    (void)len;
    return (double)((c * 7 + row) % 13);
}

// Together larger than caches, so that writing may go past them; no row starts where a vector
// would.
static void test_large_rows(void **state)
{
    struct test_target *t = *state;
    for (int algo = SAFE; algo <= ONLINE; algo++)
        for (int64_t rows = 3; rows <= 43; rows += 40) { // parts of a row, and whole rows
            struct rows r = {.algo = algo, .rows = rows, .len = (9 << 20) / rows + 3, .pad_x = 2,
                             .pad_y = 3, .scale = 1.0f, .lse = true, .value = uneven};
            check(t, &r);
        }
}

static double special(int64_t row, int64_t c, int64_t len)
{
    const double x = (double)(c % 7);
    switch (row) {
    case 0: return -INFINITY;                  // an empty row
    case 1: return c == len / 2 ? NAN : x;
    case 2: return c == len - 1 ? INFINITY : x;
    case 3: return c == 0 ? -3e38 : -INFINITY; // the only entry
    case 4: return c == 1 ? NAN : -INFINITY;
    case 5: return -3.4e38;                    // equal, at the edge
    default: return c % 3 ? x : -INFINITY;
    }
}

static void test_special_values(void **state)
{
    struct test_target *t = *state;
    for (int algo = SAFE; algo <= ONLINE; algo++)
        for (int64_t len = 3; len <= 70000; len = len * 23 + 2) {
            struct rows r = {.algo = algo, .rows = 7, .len = len, .scale = 1.0f, .lse = true,
                             .value = special};
            check(t, &r);
        }
}

static double overflow_at;

static double near_overflow(int64_t row, int64_t c, int64_t len)
{
    (void)row;
    (void)len;
    return c == 1 ? overflow_at : 0.0;
}

// Naive overflows where e^x does, in float32 over 88.72 and, stored in float16, over 11.09; the
// others do not.
static void test_overflow(void **state)
{
    struct test_target *t = *state;
    static const struct {
        int dtype;
        double x;
        bool overflows;
    } rows[] = {{CLATTN_DTYPE_F32, 88.5, false},
                {CLATTN_DTYPE_F32, 89.0, true},
                {CLATTN_DTYPE_F16, 11.0, false},
                {CLATTN_DTYPE_F16, 11.2, true},
                {CLATTN_DTYPE_BF16, 88.0, false},
                {CLATTN_DTYPE_BF16, 89.0, true}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        overflow_at = rows[n].x;
        struct rows r = {.algo = NAIVE, .dtype_y = rows[n].dtype, .rows = 1, .len = 40,
                         .scale = 1.0f, .value = near_overflow};
        if (t->algo != CLATTN_ALGO_REFERENCE) { // which is safe whatever is asked for
            struct memory m;
            make(&r, &m);
            clattn_softmax_plan *plan = make_plan(t, &r);
            const clattn_softmax_call call = make_call(&r, &m);
            assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
            const double y = get(m.y, r.dtype_y, 1);
            if (rows[n].overflows != (bool)isnan(y))
                fail_msg("%s: naive, type %d, x %g: y is %g", t->name, r.dtype_y, rows[n].x, y);
            clattn_softmax_plan_destroy(&plan);
            release(&m);
        }
        r.algo = SAFE;
        check(t, &r);
        r.algo = ONLINE;
        check(t, &r);
    }
}

static void test_nothing(void **state)
{
    struct test_target *t = *state;
    struct rows r = {.algo = ONLINE, .rows = 2, .len = 5, .scale = 1.0f, .lse = true,
                     .value = normal_value};
    struct memory m;
    make(&r, &m);
    for (r.algo = NAIVE; r.algo <= ONLINE; r.algo++) {
        clattn_softmax_plan *plan = make_plan(t, &r);
        clattn_softmax_call call = make_call(&r, &m);
        fill_unwritten(m.lse, 2);
        call.rows = 0;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
        assert_int_equal(float_bits(m.lse[0]), UNWRITTEN_BITS);
        call.rows = 2;
        call.len = 0;
        call.x = call.y = (clattn_buf){0};
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
        assert_true(m.lse[0] == -INFINITY && m.lse[1] == -INFINITY);
        clattn_softmax_plan_destroy(&plan);
    }
    release(&m);
}

static void test_same_bits(void **state)
{
    struct test_target *t = *state;
    struct rows r = {.algo = ONLINE, .rows = 1, .len = 200000, .scale = 1.0f,
                     .value = normal_value};
    struct memory m;
    make(&r, &m);
    float *first = malloc(m.y_count * sizeof *first);
    assert_non_null(first);
    clattn_softmax_plan *plan = make_plan(t, &r);
    const clattn_softmax_call call = make_call(&r, &m);
    for (int n = 0; n < 3; n++) {
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
        if (n == 0)
            memcpy(first, m.y, m.y_count * sizeof *first);
        assert_memory_equal(first, m.y, m.y_count * sizeof *first);
    }
    clattn_softmax_plan_destroy(&plan);
    free(first);
    release(&m);
}

// A workspace is looked at like any other buffer, where there is one.
static void test_workspace(void **state)
{
    struct test_target *t = *state;
    struct rows r = {.algo = ONLINE, .rows = 1, .len = 200000, .scale = 1.0f, .lse = true,
                     .value = normal_value};
    clattn_context *ctx = t->device->ctx;
    struct memory m;
    clattn_buf x = {0}, y = {0}, work = {0};
    size_t need = 0;
    make(&r, &m);
    clattn_softmax_plan *plan = make_plan(t, &r);
    clattn_softmax_call call = make_call(&r, &m);
    assert_int_equal(clattn_softmax_workspace_bytes(plan, r.rows, r.len, &need), CLATTN_OK);
    // Also where the call needs none, as on the CPU path.
    call.workspace = (clattn_buf){.kind = 7, .ptr = &m};
    assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_INVALID_ARGUMENT);
    call.workspace = (clattn_buf){.kind = CLATTN_BUF_HOST};
    assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_BUFFER_MISSING);
    call.workspace = (clattn_buf){0};
    if (need) {
        assert_int_equal(clattn_mem_create(ctx, m.x_count * 4, &x), CLATTN_OK);
        assert_int_equal(clattn_mem_create(ctx, m.y_count * 4, &y), CLATTN_OK);
        assert_int_equal(clattn_mem_create(ctx, need + 8, &work), CLATTN_OK);
        assert_int_equal(clattn_mem_write(ctx, &x, m.x, m.x_count * 4), CLATTN_OK);
        call.x = x;
        call.y = y;
        call.workspace = y;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_OVERLAP);
        call.workspace = x;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_OVERLAP);
        call.workspace = work;
        call.workspace.size_bytes = need - 1;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_BUFFER_TOO_SMALL);
        call.workspace.size_bytes = 0;
        call.workspace.offset_bytes = SIZE_MAX - 7;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_ERR_BUFFER_TOO_SMALL);
        call.workspace.offset_bytes = 8;
        assert_int_equal(clattn_softmax_run(plan, &call), CLATTN_OK);
        assert_int_equal(clattn_mem_read(ctx, &y, m.y, m.y_count * 4), CLATTN_OK);
        check_row("own workspace", &r, &m, 0);
        clattn_mem_destroy(ctx, &x);
        clattn_mem_destroy(ctx, &y);
        clattn_mem_destroy(ctx, &work);
    }
    clattn_softmax_plan_destroy(&plan);
    release(&m);
}

// Each with its own status; nothing is written, and a valid call works afterwards.
static void test_refusals(void **state)
{
    struct test_target *t = *state;
    struct rows r = {.algo = ONLINE, .rows = 3, .len = 20, .pad_x = 1, .scale = 1.0f, .lse = true,
                     .value = normal_value};
    struct memory m;
    make(&r, &m);
    clattn_softmax_plan *plan = make_plan(t, &r);
    const clattn_softmax_call good = make_call(&r, &m);
    for (int n = 0;; n++) {
        clattn_softmax_call c = good;
        clattn_status want = CLATTN_ERR_INVALID_ARGUMENT;
        switch (n) {
        case 0: c.rows = -1; break;
        case 1: c.len = -2; break;
        case 2: c.set = 6; break;
        case 3: c.scale = 2.0f; break; // without its bit
        case 4: c.set = CLATTN_SOFTMAX_SET_SCALE, c.scale = NAN; break;
        case 5: c.stride_x = 19, want = CLATTN_ERR_STRIDE; break;
        case 6: c.stride_y = -20, want = CLATTN_ERR_STRIDE; break;
        case 7: c.stride_x = INT64_MAX / 2, want = CLATTN_ERR_STRIDE; break;
        case 8: c.x.kind = CLATTN_BUF_ABSENT, want = CLATTN_ERR_BUFFER_MISSING; break;
        case 9: c.y.ptr = NULL, want = CLATTN_ERR_BUFFER_MISSING; break;
        case 10: c.lse = (clattn_buf){0}, want = CLATTN_ERR_BUFFER_MISSING; break;
        case 11: c.y.size_bytes = 3 * 20 * 4 - 1, want = CLATTN_ERR_BUFFER_TOO_SMALL; break;
        case 12: c.lse.size_bytes = 8, want = CLATTN_ERR_BUFFER_TOO_SMALL; break;
        case 13: c.x.ptr = (char *)m.y + 4, want = CLATTN_ERR_OVERLAP; break;
        case 14: c.lse = c.y, want = CLATTN_ERR_OVERLAP; break;
        case 15: c.struct_size = 8, want = CLATTN_ERR_STRUCT_SIZE; break;
        case 16: c.x.offset_bytes = 2; break;
        case 17: c.x.kind = 9; break;
        case 18: c.y.reserved = 1; break;
        case 19: c.rows = 0, c.x.kind = 77; break;
        default: n = -1; break;
        }
        if (n < 0)
            break;
        const clattn_status st = clattn_softmax_run(plan, &c);
        if (st != want)
            fail_msg("%s: refusal %d gave %d, expected %d", t->name, n, st, want);
        for (size_t i = 0; i < m.y_count; i++)
            assert_true(isnan(((float *)m.y)[i]));
    }
    assert_int_equal(clattn_softmax_run(plan, NULL), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_softmax_run(NULL, &good), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_softmax_run(plan, &good), CLATTN_OK);
    for (int64_t row = 0; row < r.rows; row++)
        check_row("after refusals", &r, &m, row);
    clattn_softmax_plan_destroy(&plan);
    clattn_softmax_plan_destroy(&plan);
    release(&m);
}

static void test_descriptions(void **state)
{
    struct test_target *t = *state;
    const bool builtin = t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU;
    for (int n = 0;; n++) {
        clattn_softmax_desc d;
        clattn_softmax_plan *plan = (clattn_softmax_plan *)(uintptr_t)1;
        clattn_status want = CLATTN_ERR_INVALID_ARGUMENT;
        clattn_softmax_desc_init(&d, sizeof d);
        switch (n) {
        case 0: d.algo = 4; break;
        case 1: d.path = -1; break;
        case 2: d.dtype_x = 4; break;
        case 3: d.dtype_y = CLATTN_DTYPE_I8, want = CLATTN_ERR_UNSUPPORTED; break;
        case 4: d.features = 2; break;
        case 5: d.flags = 16; break;
        case 6: d.max_rows = -1; break;
        case 7: d.kernel = 3; break;
        case 8: d.kernel = 1, d.path = CLATTN_SOFTMAX_PATH_HOST; break;
        case 9: d.struct_size = 4, want = CLATTN_ERR_STRUCT_SIZE; break;
        case 10: d.reserved = 5; break;
        case 11:
            d.path = CLATTN_SOFTMAX_PATH_OPENCL;
            want = builtin ? CLATTN_ERR_UNSUPPORTED : CLATTN_OK;
            break;
        default: n = -1; break;
        }
        if (n < 0)
            break;
        const clattn_status st = clattn_softmax_plan_create(t->device->ctx, &d, &plan);
        if (st != want)
            fail_msg("%s: description %d gave %d, expected %d", t->name, n, st, want);
        assert_true((plan != NULL) == (st == CLATTN_OK));
        clattn_softmax_plan_destroy(&plan);
    }
}

static void test_one_line(void **state)
{
    struct test_target *t = *state;
    struct rows r = {.algo = SAFE, .rows = 4, .len = 33, .scale = 1.0f, .value = normal_value};
    struct memory m;
    make(&r, &m);
    assert_int_equal(clattn_softmax_f32(t->device->ctx, SAFE, m.x, m.y, 4, 33), CLATTN_OK);
    for (int64_t row = 0; row < r.rows; row++)
        check_row("one line", &r, &m, row);
    memset(m.y, 0xff, m.y_count * 4);
    assert_int_equal(clattn_softmax_f32(NULL, 0, m.x, m.y, 4, 33), CLATTN_OK);
    for (int64_t row = 0; row < r.rows; row++)
        check_row("one line without a context", &r, &m, row);
    release(&m);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"row lengths around vectors and work-groups", test_lengths, LEVEL_SMALL},
        {"storage types", test_types, LEVEL_MEDIUM},
        {"in place", test_in_place, LEVEL_MEDIUM},
        {"hard rows", test_hard_rows, LEVEL_SMALL},
        {"rows larger than caches", test_large_rows, LEVEL_FULL},
        {"infinities and NaN", test_special_values, LEVEL_MEDIUM},
        {"overflow of the naive way", test_overflow, LEVEL_MEDIUM},
        {"nothing to do", test_nothing, LEVEL_MEDIUM},
        {"same bits", test_same_bits, LEVEL_MEDIUM},
        {"workspace", test_workspace, LEVEL_MEDIUM},
        {"calls that are refused", test_refusals, LEVEL_SMALL},
        {"descriptions that are refused", test_descriptions, LEVEL_MEDIUM},
        {"one line", test_one_line, LEVEL_MEDIUM},
    };
    return targets_main("softmax", argc, argv, tests, sizeof tests / sizeof *tests);
}
