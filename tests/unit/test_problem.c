// SPDX-License-Identifier: Apache-2.0
// Checks of descriptions and calls, and what they become. No device, no memory is touched.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "problem.h"

// The last error message.
static char message[512];
static int messages;

static void record(void *user, clattn_log_level level, const char *text)
{
    (void)user;
    if (level == CLATTN_LOG_ERROR) {
        snprintf(message, sizeof message, "%s", text);
        messages++;
    }
}

static const struct cla_log log_to = {.fn = record, .level = CLATTN_LOG_ERROR};

static clattn_attention_desc desc_of(int32_t heads_q, int32_t heads_kv, int32_t dim)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = heads_q;
    d.heads_kv = heads_kv;
    d.dim_qk = dim;
    return d;
}

static struct cla_problem problem_of(const clattn_attention_desc *d)
{
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(d, &log_to, &p), CLATTN_OK);
    return p;
}

static float q_mem[4096], k_mem[4096], v_mem[4096], o_mem[4096], lse_mem[512];
static uint8_t mask_mem[4096];

static clattn_attention_call call_of(int32_t batch, int32_t len_q, int32_t len_kv)
{
    clattn_attention_call c;
    clattn_attention_call_init(&c, sizeof c);
    c.batch = batch;
    c.len_q = len_q;
    c.len_kv = len_kv;
    c.q.buf = clattn_host_buf(q_mem, sizeof q_mem);
    c.k.buf = clattn_host_buf(k_mem, sizeof k_mem);
    c.v.buf = clattn_host_buf(v_mem, sizeof v_mem);
    c.o.buf = clattn_host_buf(o_mem, sizeof o_mem);
    return c;
}

// A refusal has its status and one message.
static void refused(const struct cla_problem *p, const clattn_attention_call *call,
                    clattn_status want, const char *text)
{
    struct cla_call out;
    messages = 0;
    message[0] = '\0';
    assert_int_equal(cla_call_check(p, call, NULL, NULL, &log_to, &out), want);
    assert_int_equal(messages, 1);
    if (!strstr(message, text))
        fail_msg("\"%s\" is not in: %s", text, message);
}

// ---- description --------------------------------------------------------------------------------

static void test_desc_defaults(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(6, 0, 40);
    struct cla_problem p = problem_of(&d);
    assert_int_equal(p.heads_kv, 6);
    assert_int_equal(p.group, 1);
    assert_int_equal(p.dim_v, 40);
    assert_int_equal(p.max_batch, INT32_MAX);
    assert_int_equal(p.max_len_q, INT32_MAX);
    assert_int_equal(p.max_len_kv, INT32_MAX);
    assert_false(p.causal || p.mask || p.lse || p.no_fallback);
    d = desc_of(6, 2, 576);
    d.dim_v = 1;
    d.features = CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    d.flags = CLATTN_NO_FALLBACK;
    d.align = CLATTN_ALIGN_TOP_LEFT;
    d.max_len_kv = 77;
    p = problem_of(&d);
    assert_int_equal(p.group, 3);
    assert_int_equal(p.dim_qk, 576);
    assert_int_equal(p.dim_v, 1);
    assert_true(p.causal && p.mask && p.lse && p.no_fallback);
    assert_int_equal(p.align, CLATTN_ALIGN_TOP_LEFT);
    assert_int_equal(p.max_len_kv, 77);
}

static void test_desc_refusals(void **state)
{
    (void)state;
    static const struct {
        int32_t heads_q, heads_kv, dim;
        clattn_status want;
        const char *text;
    } rows[] = {
        {12, 5, 64, CLATTN_ERR_SHAPE, "heads_q 12 is not a multiple of heads_kv 5"},
        {2, 4, 64, CLATTN_ERR_SHAPE, "heads_q 2 is not a multiple of heads_kv 4"},
        {0, 0, 64, CLATTN_ERR_INVALID_ARGUMENT, "heads_q is 0"},
        {-1, 1, 64, CLATTN_ERR_INVALID_ARGUMENT, "heads_q is -1"},
        {4, -1, 64, CLATTN_ERR_INVALID_ARGUMENT, "heads_kv is -1"},
        {4, 4, 0, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk is 0"},
        {4, 4, -8, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk is -8"},
        {4, 4, 577, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk is 577"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const clattn_attention_desc d = desc_of(rows[n].heads_q, rows[n].heads_kv, rows[n].dim);
        struct cla_problem p;
        messages = 0;
        assert_int_equal(cla_problem_from_desc(&d, &log_to, &p), rows[n].want);
        assert_int_equal(messages, 1);
        assert_non_null(strstr(message, rows[n].text));
    }
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(NULL, &log_to, &p), CLATTN_ERR_INVALID_ARGUMENT);
}

static void test_struct_in(void **state)
{
    (void)state;
    struct {
        size_t struct_size;
        int32_t a, b, c, d;
    } in = {sizeof in, 1, 2, 3, 4}, out;
    // An older caller: the missing tail is zero.
    const size_t least = offsetof(__typeof__(in), c);
    in.struct_size = least;
    memset(&out, 0xff, sizeof out);
    assert_int_equal(cla_struct_in("x", &in, least, &out, sizeof out, &log_to), CLATTN_OK);
    assert_int_equal(out.b, 2);
    assert_int_equal(out.c, 0);
    assert_int_equal(out.d, 0);
    // A newer caller: fine with a zero tail only, and nothing behind `out` is written.
    in.struct_size = sizeof in;
    int32_t shorter[5] = {-1, -1, -1, -1, -1};
    in.c = in.d = 0;
    assert_int_equal(cla_struct_in("x", &in, least, shorter, least, &log_to), CLATTN_OK);
    assert_int_equal(shorter[least / 4], -1);
    in.c = 3;
    assert_int_equal(cla_struct_in("x", &in, least, shorter, least, &log_to),
                     CLATTN_ERR_STRUCT_SIZE);
    in.struct_size = least - 1;
    assert_int_equal(cla_struct_in("x", &in, least, &out, sizeof out, &log_to),
                     CLATTN_ERR_STRUCT_SIZE);
    in.struct_size = SIZE_MAX;
    assert_int_equal(cla_struct_in("x", &in, least, &out, sizeof out, &log_to),
                     CLATTN_ERR_STRUCT_SIZE);
}

// ---- calls: what they become --------------------------------------------------------------------

static struct cla_call checked(const struct cla_problem *p, const clattn_attention_call *call)
{
    struct cla_call out;
    message[0] = '\0';
    if (cla_call_check(p, call, NULL, NULL, &log_to, &out) != CLATTN_OK)
        fail_msg("%s", message);
    return out;
}

static void assert_strides(const struct cla_tensor *t, int64_t b, int64_t h, int64_t s)
{
    assert_int_equal(t->stride[0], b);
    assert_int_equal(t->stride[1], h);
    assert_int_equal(t->stride[2], s);
}

static void test_layouts(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(4, 2, 8);
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(3, 5, 7);
    call.k.layout = CLATTN_LAYOUT_BSHD;
    call.v.layout = CLATTN_LAYOUT_STRIDED;
    call.v.stride_seq = 11;
    call.v.buf.offset_bytes = 12;
    const struct cla_call c = checked(&p, &call);
    assert_strides(&c.q, 4 * 5 * 8, 5 * 8, 8);
    assert_strides(&c.k, 7 * 2 * 8, 8, 2 * 8);
    assert_strides(&c.v, 0, 0, 11); // taken literally
    assert_strides(&c.o, 4 * 5 * 8, 5 * 8, 8);
    assert_int_equal(c.v.offset, 3);
    assert_int_equal(c.v.end_bytes, 12 + (6 * 11 + 8) * 4);
    assert_int_equal(c.q.end_bytes, 3 * 4 * 5 * 8 * 4);
}

static void test_alignment_and_window(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(1, 1, 8);
    struct cla_problem p = problem_of(&d);
    const clattn_attention_call call = call_of(1, 3, 10), more = call_of(1, 10, 3);
    struct cla_call c = checked(&p, &call);
    assert_int_equal(c.off, 7);
    assert_int_equal(c.win_lo, CLA_WIN_MIN);
    assert_int_equal(c.win_hi, CLA_WIN_MAX);
    d.features = CLATTN_FEATURE_CAUSAL;
    p = problem_of(&d);
    assert_int_equal(checked(&p, &call).win_hi, 7);
    assert_int_equal(checked(&p, &more).win_hi, -7);
    d.align = CLATTN_ALIGN_TOP_LEFT;
    p = problem_of(&d);
    assert_int_equal(checked(&p, &call).win_hi, 0);
    assert_int_equal(checked(&p, &more).win_hi, 0);
    assert_int_equal(checked(&p, &more).win_lo, CLA_WIN_MIN);
}

static void test_scale(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(1, 1, 64);
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(1, 2, 2);
    assert_true(checked(&p, &call).scale == 0.125f);
    static const float legal[] = {0, -0.0f, -3, 1e-38f, 3e38f};
    call.set = CLATTN_SET_SCALE;
    for (size_t n = 0; n < sizeof legal / sizeof *legal; n++) {
        call.scale = legal[n];
        assert_true(checked(&p, &call).scale == legal[n]);
    }
    static const float illegal[] = {NAN, INFINITY, -INFINITY};
    for (size_t n = 0; n < 3; n++) {
        call.scale = illegal[n];
        refused(&p, &call, CLATTN_ERR_INVALID_ARGUMENT, "scale");
    }
}

static void test_mask_strides(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(4, 4, 8);
    d.features = CLATTN_FEATURE_MASK;
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(2, 3, 7);
    call.mask.buf = clattn_host_buf(mask_mem, 2 * 4 * 3 * 7);
    struct cla_call c = checked(&p, &call);
    const int64_t full[4] = {4 * 3 * 7, 3 * 7, 7, 1};
    assert_memory_equal(c.mask.stride, full, sizeof full);
    // [2, 1, 1, 7]: contiguous over the extents that are there, stride 0 where it broadcasts.
    call.mask.extent[1] = call.mask.extent[2] = 1;
    call.mask.buf.size_bytes = 2 * 7;
    c = checked(&p, &call);
    const int64_t keys[4] = {7, 0, 0, 1};
    assert_memory_equal(c.mask.stride, keys, sizeof keys);
    assert_int_equal(c.mask.end_bytes, 14);
    call.mask.buf.size_bytes = 13;
    refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, "mask");
    call.mask.buf.size_bytes = 14;
    call.mask.extent[2] = 2;
    refused(&p, &call, CLATTN_ERR_SHAPE, "mask.extent[2]");
    call.mask.extent[2] = -1;
    refused(&p, &call, CLATTN_ERR_SHAPE, "mask.extent[2]");
    call.mask.extent[2] = 1;
    call.mask.layout = CLATTN_LAYOUT_BSHD;
    refused(&p, &call, CLATTN_ERR_INVALID_ARGUMENT, "mask.layout");
}

// ---- calls: refusals ----------------------------------------------------------------------------

static void test_output_overlap(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(2, 2, 8);
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(2, 3, 4);
    call.o.layout = CLATTN_LAYOUT_STRIDED;
    static const struct {
        int64_t b, h, s;
        bool legal;
    } rows[] = {
        {48, 24, 8, true},   {48, 8, 16, true},   // as contiguous ones
        {8, 16, 32, true},                        // sequence first
        {100, 31, 9, true},                       // padded
        {48, 24, 7, false},  {48, 23, 8, false},  {47, 24, 8, false},
        {0, 24, 8, false},   {48, 0, 8, false},   {48, 24, 0, false},
        {8, 16, 31, false},  {24, 24, 8, false},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        call.o.stride_batch = rows[n].b;
        call.o.stride_head = rows[n].h;
        call.o.stride_seq = rows[n].s;
        if (rows[n].legal)
            checked(&p, &call);
        else
            refused(&p, &call, CLATTN_ERR_STRIDE, "o");
    }
    // Along an axis of one element no stride can do harm.
    call = call_of(1, 3, 4);
    call.o.layout = CLATTN_LAYOUT_STRIDED;
    call.o.stride_head = 24;
    call.o.stride_seq = 8;
    checked(&p, &call);
}

static void test_stride_overflow(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(2, 2, 8);
    const struct cla_problem p = problem_of(&d);
    static const int64_t big[] = {INT64_MAX, INT64_MAX / 2, INT64_MAX / 4, INT64_MAX / 8};
    for (int axis = 0; axis < 3; axis++)
        for (size_t n = 0; n < sizeof big / sizeof *big; n++) {
            clattn_attention_call call = call_of(2, 3, 4);
            call.k.layout = CLATTN_LAYOUT_STRIDED;
            int64_t *const stride[3] = {&call.k.stride_batch, &call.k.stride_head,
                                        &call.k.stride_seq};
            *stride[axis] = big[n];
            struct cla_call out;
            const clattn_status st = cla_call_check(&p, &call, NULL, NULL, &log_to, &out);
            // Where the address itself fits into 64 bits the buffer is too small for it.
            assert_true(st == CLATTN_ERR_STRIDE ||
                        (n == 3 && axis < 2 && st == CLATTN_ERR_BUFFER_TOO_SMALL));
            *stride[axis] = -1;
            refused(&p, &call, CLATTN_ERR_STRIDE, "-1");
        }
    clattn_attention_call call = call_of(1, 1, 1);
    call.q.buf.offset_bytes = SIZE_MAX / 4 * 4;
    refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, "q");
}

static void test_exact_sizes(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(2, 1, 8);
    d.features = CLATTN_FEATURE_LSE;
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(2, 3, 4);
    call.lse = clattn_host_buf(lse_mem, 2 * 2 * 3 * 4);
    clattn_buf *const bufs[] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.o.buf, &call.lse};
    static const size_t bytes[] = {384, 256, 256, 384, 48};
    static const char *const names[] = {"q", "k", "v", "o", "lse"};
    for (size_t n = 0; n < 5; n++)
        bufs[n]->size_bytes = bytes[n];
    checked(&p, &call);
    for (size_t n = 0; n < 5; n++) {
        bufs[n]->size_bytes--;
        refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, names[n]);
        bufs[n]->size_bytes = 0; // not known, not checked
        checked(&p, &call);
        bufs[n]->size_bytes = bytes[n];
        bufs[n]->offset_bytes = 4;
        refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, names[n]);
        bufs[n]->offset_bytes = 0;
    }
}

static void test_overlaps(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(2, 2, 8);
    d.features = CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(1, 3, 3); // each tensor has 48 floats
    call.mask.buf = clattn_host_buf(mask_mem, sizeof mask_mem);
    call.lse = clattn_host_buf(lse_mem, sizeof lse_mem);
    // Neighbours in one buffer are fine, also inputs over each other.
    call.q.buf = call.k.buf = clattn_host_buf(o_mem, sizeof o_mem);
    call.o.buf.offset_bytes = 48 * 4;
    checked(&p, &call);
    call.o.buf.offset_bytes = 47 * 4;
    refused(&p, &call, CLATTN_ERR_OVERLAP, "o (bytes");
    call.o.buf.offset_bytes = 0;
    call.q.buf.offset_bytes = call.k.buf.offset_bytes = 48 * 4;
    checked(&p, &call);
    call.lse = clattn_host_buf(o_mem + 42, 0);
    refused(&p, &call, CLATTN_ERR_OVERLAP, "lse");
    call.lse = clattn_host_buf(o_mem + 48 + 47, 0);
    refused(&p, &call, CLATTN_ERR_OVERLAP, "lse (bytes");
    call.lse = clattn_host_buf(o_mem + 48 + 48, 0);
    checked(&p, &call);
    call.mask.buf = clattn_host_buf(o_mem + 47, 0);
    refused(&p, &call, CLATTN_ERR_OVERLAP, "mask");
}

static void test_bounds_and_empty(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(2, 2, 8);
    d.max_batch = 2;
    d.max_len_q = 4;
    d.max_len_kv = 6;
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(2, 4, 6);
    checked(&p, &call);
    call.batch = 3;
    refused(&p, &call, CLATTN_ERR_OVER_BOUND, "batch is 3");
    call = call_of(2, 5, 6);
    refused(&p, &call, CLATTN_ERR_OVER_BOUND, "len_q is 5");
    call = call_of(2, 4, 7);
    refused(&p, &call, CLATTN_ERR_OVER_BOUND, "len_kv is 7");
    call = call_of(-1, 4, 6);
    refused(&p, &call, CLATTN_ERR_INVALID_ARGUMENT, "batch is -1");

    // Tensors without elements need no memory.
    clattn_attention_call empty;
    clattn_attention_call_init(&empty, sizeof empty);
    checked(&p, &empty);
    empty.batch = 1;
    empty.len_kv = 3;
    checked(&p, &empty);
    empty.len_q = 2;
    empty.len_kv = 0;
    refused(&p, &empty, CLATTN_ERR_BUFFER_MISSING, "q"); // it has elements, K and V have none
    empty.q.buf = clattn_host_buf(q_mem, sizeof q_mem);
    refused(&p, &empty, CLATTN_ERR_BUFFER_MISSING, "o");
    empty.o.buf = clattn_host_buf(o_mem, sizeof o_mem);
    checked(&p, &empty);
    // The others are looked at all the same.
    empty.o.layout = 3;
    refused(&p, &empty, CLATTN_ERR_INVALID_ARGUMENT, "o.layout");
}

// Products of lengths that only fit into 64 bits, on addresses that nothing is read from.
static void test_huge(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(1, 1, 256);
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(1, 1, 1 << 30);
#if SIZE_MAX > UINT32_MAX
    call.k.buf = clattn_host_buf((void *)((uintptr_t)1 << 45), 0);
    call.v.buf = clattn_host_buf((void *)((uintptr_t)1 << 44), 0);
    const struct cla_call c = checked(&p, &call);
    assert_true(c.k.end_bytes == ((size_t)1 << 30) * 256 * 4);
    assert_true(c.off == (1 << 30) - 1);
#else
    // No memory has so many bytes, nor may their number lose its upper half.
    call.k.buf.size_bytes = call.v.buf.size_bytes = 0;
    refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, "k.buf.offset_bytes");
#endif
    call.batch = INT32_MAX;
    call.len_q = INT32_MAX;
    call.q.buf.size_bytes = call.o.buf.size_bytes = 0;
    refused(&p, &call, CLATTN_ERR_SHAPE, "q");
    call.batch = 1;
    call.len_q = call.len_kv = 1;
    call.q.buf.offset_bytes = SIZE_MAX - 3;
    char text[32];
    snprintf(text, sizeof text, "%zu", SIZE_MAX - 3);
    refused(&p, &call, CLATTN_ERR_BUFFER_TOO_SMALL, text);
}

// The size that is asked for; 0 = no buffer, SIZE_MAX = of another context.
static clattn_status size_of_mem(void *user, void *mem, struct cla_mem_facts *facts)
{
    *facts = (struct cla_mem_facts){*(size_t *)user, mem, 0};
    return facts->bytes == 0          ? CLATTN_ERR_BUFFER_MISSING
           : facts->bytes == SIZE_MAX ? CLATTN_ERR_WRONG_CONTEXT
                                      : CLATTN_OK;
}

// Memory at (void *)n for n under 256 lies in that at (void *)256, from n bytes on.
static clattn_status parts_of_one(void *user, void *mem, struct cla_mem_facts *facts)
{
    (void)user;
    const uintptr_t n = (uintptr_t)mem;
    *facts = (struct cla_mem_facts){1000, n < 256 ? (void *)(uintptr_t)256 : mem, n < 256 ? n : 0};
    return CLATTN_OK;
}

static void test_sub_buffers(void **state)
{
    (void)state;
    static const struct {
        uintptr_t a, b;
        size_t a_offset, a_end, b_offset, b_end;
        bool meet;
    } rows[] = {{8, 16, 0, 8, 0, 8, false},  {8, 16, 0, 9, 0, 8, true},
                {8, 256, 0, 8, 8, 16, true}, {8, 256, 0, 8, 16, 20, false},
                {8, 256, 4, 8, 0, 12, false}, {8, 300, 0, 99, 0, 99, false},
                {300, 300, 0, 4, 4, 8, false}, {300, 300, 0, 5, 4, 8, true},
                {8, 8, 0, 0, 0, 8, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const clattn_buf a = {.kind = CLATTN_BUF_CL_MEM, .ptr = (void *)rows[i].a,
                              .offset_bytes = rows[i].a_offset};
        const clattn_buf b = {.kind = CLATTN_BUF_CL_MEM, .ptr = (void *)rows[i].b,
                              .offset_bytes = rows[i].b_offset};
        const struct cla_buf_range ra = {"a", &a, rows[i].a_end}, rb = {"b", &b, rows[i].b_end};
        assert_int_equal(cla_ranges_overlap(&ra, &rb, parts_of_one, NULL), rows[i].meet);
        assert_int_equal(cla_ranges_overlap(&rb, &ra, parts_of_one, NULL), rows[i].meet);
    }
}

static void test_cl_mem(void **state)
{
    (void)state;
    const clattn_attention_desc d = desc_of(1, 1, 8);
    const struct cla_problem p = problem_of(&d);
    clattn_attention_call call = call_of(1, 2, 2);
    call.q.buf.kind = CLATTN_BUF_CL_MEM;
    call.q.buf.size_bytes = 0; // the whole cl_mem
    refused(&p, &call, CLATTN_ERR_BUFFER_MISSING, "q"); // no OpenCL here
    struct cla_call out;
    size_t size = 64;
    assert_int_equal(cla_call_check(&p, &call, size_of_mem, &size, &log_to, &out), CLATTN_OK);
    size = 63;
    assert_int_equal(cla_call_check(&p, &call, size_of_mem, &size, &log_to, &out),
                     CLATTN_ERR_BUFFER_TOO_SMALL);
    size = 64;
    call.q.buf.size_bytes = 65; // more than there is
    assert_int_equal(cla_call_check(&p, &call, size_of_mem, &size, &log_to, &out),
                     CLATTN_ERR_BUFFER_TOO_SMALL);
    call.q.buf.size_bytes = 0;
    size = 0;
    assert_int_equal(cla_call_check(&p, &call, size_of_mem, &size, &log_to, &out),
                     CLATTN_ERR_BUFFER_MISSING);
    size = SIZE_MAX;
    assert_int_equal(cla_call_check(&p, &call, size_of_mem, &size, &log_to, &out),
                     CLATTN_ERR_WRONG_CONTEXT);
    // Workspace is not needed; what is brought as such is looked at.
    call = call_of(1, 2, 2);
    call.workspace = clattn_host_buf(o_mem, sizeof o_mem);
    assert_int_equal(cla_call_check(&p, &call, NULL, NULL, &log_to, &out), CLATTN_OK);
    call.workspace.kind = 9;
    refused(&p, &call, CLATTN_ERR_INVALID_ARGUMENT, "workspace.buf.kind is 9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_desc_defaults),
        cmocka_unit_test(test_desc_refusals),
        cmocka_unit_test(test_struct_in),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_alignment_and_window),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_mask_strides),
        cmocka_unit_test(test_output_overlap),
        cmocka_unit_test(test_stride_overflow),
        cmocka_unit_test(test_exact_sizes),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_bounds_and_empty),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_cl_mem),
        cmocka_unit_test(test_sub_buffers),
    };
    return cmocka_run_group_tests_name("problem", tests, NULL, NULL);
}
