// SPDX-License-Identifier: Apache-2.0
#include "kv_lib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thread.h"

struct kv_device kd;

enum { GUARD = 256 }; // bytes

// ---- elements ----------------------------------------------------------------------------------

static size_t elem_bytes(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_I8 ? 1
           : dtype == CLATTN_DTYPE_F16 || dtype == CLATTN_DTYPE_BF16 ? 2 : 4;
}

static double from_f16(uint16_t x)
{
    const int e = x >> 10 & 31, f = x & 1023;
    const double sign = x >> 15 ? -1.0 : 1.0;
    if (e == 31)
        return f ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? ldexp(1024 + f, e - 25) : ldexp(f, -24));
}

static uint16_t to_f16(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return 0x7e00;
    x = fabs(x);
    int e;
    frexp(x, &e);
    e = e < -13 ? -13 : e; // 2^-14 is the least normal number
    const double units = rint(ldexp(x, 11 - e)); // 1024 to 2048 of a normal number
    if (!(ldexp(units, e - 11) < 65520.0))
        return sign | 0x7c00;
    return (uint16_t)(sign | (uint16_t)(((e + 13) << 10) + (int)units));
}

static double from_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static uint16_t to_bf16(double x)
{
    const uint32_t bits = float_bits((float)x);
    if (isnan(x))
        return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

int64_t tens_at(const struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    return b * t->stride[0] + h * t->stride[1] + s * t->stride[2] + d;
}

double tens_get(const struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const unsigned char *from =
        t->now + GUARD + (size_t)tens_at(t, b, h, s, d) * elem_bytes(t->dtype);
    union {
        float f;
        int32_t i;
        uint16_t u;
        int8_t c;
    } x;
    memcpy(&x, from, elem_bytes(t->dtype));
    switch (t->dtype) {
    case CLATTN_DTYPE_F16: return from_f16(x.u);
    case CLATTN_DTYPE_BF16: return from_bf16(x.u);
    case CLATTN_DTYPE_I8: return x.c;
    case KV_I32: return x.i;
    default: return (double)x.f;
    }
}

void tens_set(struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d, double value)
{
    unsigned char *to = t->now + GUARD + (size_t)tens_at(t, b, h, s, d) * elem_bytes(t->dtype);
    union {
        float f;
        int32_t i;
        uint16_t u;
        int8_t c;
    } x;
    switch (t->dtype) {
    case CLATTN_DTYPE_F16: x.u = to_f16(value); break;
    case CLATTN_DTYPE_BF16: x.u = to_bf16(value); break;
    case CLATTN_DTYPE_I8: x.c = (int8_t)value; break;
    case KV_I32: x.i = (int32_t)value; break;
    default: x.f = (float)value; break;
    }
    memcpy(to, &x, elem_bytes(t->dtype));
}

double vec_get(const struct tens *t, int64_t n)
{
    return tens_get(t, 0, 0, n, 0);
}

void vec_set(struct tens *t, int64_t n, double x)
{
    tens_set(t, 0, 0, n, 0, x);
}

// ---- tensors -----------------------------------------------------------------------------------

void tens_make(struct tens *t, bool on_device, int32_t dtype, int64_t batch, int64_t heads,
               int64_t len, int64_t dim, enum kv_form form)
{
    const int64_t gap = form == KV_GAPS ? 3 : 0;
    const size_t e = elem_bytes(dtype);
    memset(t, 0, sizeof *t);
    t->dtype = dtype;
    t->on_device = on_device;
    t->dim = dim;
    t->extent[0] = batch;
    t->extent[1] = heads;
    t->extent[2] = len;
    t->stride[2] = form == KV_BSHD ? heads * dim : dim + gap;
    t->stride[1] = form == KV_BSHD ? dim : len * t->stride[2] + 2 * gap;
    t->stride[0] = form == KV_BSHD ? len * heads * dim : heads * t->stride[1] + gap;
    t->bytes = ((size_t)(batch * t->stride[0]) * e + 3) / 4 * 4 + 2 * GUARD;
    t->now = malloc(t->bytes);
    t->before = malloc(t->bytes);
    t->owned = calloc(t->bytes, 1);
    assert_true(t->now && t->before && t->owned);
    fill_unwritten(t->now, t->bytes / 4);
    for (int64_t r = 0; r < batch * heads * len; r++)
        memset(t->owned + GUARD +
                   (size_t)tens_at(t, r / len / heads, r / len % heads, r % len, 0) * e,
               1, (size_t)dim * e);
    if (on_device)
        assert_int_equal(clattn_mem_create(kd.ctx, t->bytes, &t->t.buf), CLATTN_OK);
    else
        t->t.buf = clattn_host_buf(t->now, t->bytes);
    t->t.buf.offset_bytes = GUARD;
    t->t.buf.size_bytes = t->bytes - GUARD;
    t->t.layout = form == KV_BHSD   ? CLATTN_LAYOUT_BHSD
                  : form == KV_BSHD ? CLATTN_LAYOUT_BSHD
                                    : CLATTN_LAYOUT_STRIDED;
    if (form == KV_GAPS) {
        t->t.stride_batch = t->stride[0];
        t->t.stride_head = t->stride[1];
        t->t.stride_seq = t->stride[2];
    }
}

void vec_make(struct tens *t, bool on_device, int32_t dtype, int64_t n)
{
    tens_make(t, on_device, dtype, 1, 1, n, 1, KV_BHSD);
}

void tens_free(struct tens *t)
{
    if (t->on_device && t->now)
        clattn_mem_destroy(kd.ctx, &t->t.buf);
    free(t->now);
    free(t->before);
    free(t->owned);
    memset(t, 0, sizeof *t);
}

double kv_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)(int64_t)(x ^ x >> 31) * 0x1p-63;
}

void tens_fill(struct tens *t, uint64_t seed, double size)
{
    uint64_t state = seed;
    for (int64_t b = 0; b < t->extent[0]; b++)
        for (int64_t h = 0; h < t->extent[1]; h++)
            for (int64_t s = 0; s < t->extent[2]; s++)
                for (int64_t d = 0; d < t->dim; d++)
                    tens_set(t, b, h, s, d, size * kv_random(&state));
}

static clattn_buf whole(const struct tens *t)
{
    clattn_buf all = t->t.buf;
    all.offset_bytes = 0;
    all.size_bytes = t->bytes;
    return all;
}

void tens_push(struct tens *t)
{
    memcpy(t->before, t->now, t->bytes);
    if (t->on_device) {
        const clattn_buf all = whole(t);
        assert_int_equal(clattn_mem_write(kd.ctx, &all, t->now, t->bytes), CLATTN_OK);
    }
}

void tens_pull(struct tens *t, const char *what, bool writes)
{
    if (t->on_device) {
        const clattn_buf all = whole(t);
        assert_int_equal(clattn_mem_read(kd.ctx, &all, t->now, t->bytes), CLATTN_OK);
    }
    for (size_t i = 0; i < t->bytes; i++)
        if (t->now[i] != t->before[i] && !(writes && t->owned[i]))
            fail_msg("%s: byte %zu of %zu was written", what, i - GUARD, t->bytes - 2 * GUARD);
}

// ---- comparing ---------------------------------------------------------------------------------

double kv_tolerance(int32_t dtype, double exact)
{
    const double size = fabs(exact);
    switch (dtype) {
    case CLATTN_DTYPE_F16: return size * 0x1.02p-11 + 0x1p-24;
    case CLATTN_DTYPE_BF16: return size * 0x1.02p-8 + 1e-30;
    default: return size * 4e-6 + 1e-6;
    }
}

void kv_check(const char *what, int64_t at, double got, double want, double tolerance)
{
    const bool same = isnan(want) ? isnan(got) : got == want || fabs(got - want) <= tolerance;
    if (!same)
        fail_msg("%s, element %lld: %.9g, expected %.9g", what, (long long)at, got, want);
}

void kv_clear_log(void)
{
    memset(&kd.log, 0, sizeof kd.log);
}

void kv_refused(const char *what, clattn_status got, clattn_status want, const char *says)
{
    if (got != want)
        fail_msg("%s: %s, expected %s: %s", what, clattn_status_string(got),
                 clattn_status_string(want), kd.log.text);
    if (kd.log.errors != 1 || !strstr(kd.log.text, says))
        fail_msg("%s: %d messages, \"%s\" is not in: %s", what, kd.log.errors, says, kd.log.text);
}

// ---- main --------------------------------------------------------------------------------------

int kv_places(void)
{
    return kd.opencl ? 2 : 1;
}

static int run_on(const char *suite, struct test_device *d, const struct CMUnitTest *tests,
                  size_t num_tests)
{
    static char name[160];
    char index[16];
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    memset(&kd, 0, sizeof kd);
    kd.info = &d->info;
    kd.opencl = d->info.type != CLATTN_DEVICE_BUILTIN_CPU;
    snprintf(index, sizeof index, "%d", (int)d->info.index);
    desc.device = kd.opencl ? index : "cpu";
    desc.log = log_capture;
    desc.log_user = &kd.log;
    if (clattn_context_create(&desc, &kd.ctx) != CLATTN_OK)
        return 1;
    watchdog(d->tag, 600);
    snprintf(name, sizeof name, "%s on %s", suite, d->tag);
    int failed = _cmocka_run_group_tests(name, tests, num_tests, NULL, NULL);
    watchdog("", 0);
    // What the device computed, and not the CPU path, was compiled for it.
    printf("%s: %llu programs built\n", d->tag,
           (unsigned long long)clattn_context_build_count(kd.ctx));
    if (kd.opencl && clattn_context_build_count(kd.ctx) == 0) {
        printf("%s: nothing was compiled for the device\n", d->tag);
        failed++;
    }
    if (failed == 0) // what a failed test left behind keeps its context
        clattn_context_destroy(&kd.ctx);
    return failed;
}

int kv_main(const char *suite, int argc, char **argv, const struct CMUnitTest *tests,
            size_t num_tests)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (argc < 2 || strcmp(argv[1], "opencl") != 0) {
        if (!device_open_builtin(&devices[0]))
            return 1;
        count = 1;
    } else if (!devices_open(devices, &count)) {
        return 1;
    }
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    for (int n = 0; n < count; n++)
        failed += run_on(suite, &devices[n], tests, num_tests);
    if (failed == 0)
        devices_close(devices, count);
    return failed ? 1 : 0;
}
