// SPDX-License-Identifier: Apache-2.0
// Checks of what features add to descriptions and calls, what they become, and how a call is
// narrowed to one sequence. No device.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "abi.h"
#include "problem.h"
#include "sequence.h"

static char message[512];

static void record(void *user, clattn_log_level level, const char *text)
{
    (void)user;
    if (level == CLATTN_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

static const struct cla_log log_to = {.fn = record, .level = CLATTN_LOG_ERROR};

static clattn_attention_desc desc_of(uint32_t features)
{
    clattn_attention_desc d;
    clattn_attention_desc_init(&d, sizeof d);
    d.heads_q = 4;
    d.heads_kv = 2;
    d.dim_qk = 8;
    d.features = features;
    d.page_size = features & CLATTN_FEATURE_PAGED ? 4 : 0;
    return d;
}

static struct cla_problem problem_of(uint32_t features)
{
    const clattn_attention_desc d = desc_of(features);
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(&d, &log_to, &p), CLATTN_OK);
    return p;
}

static float q_mem[4096], k_mem[4096], v_mem[4096], o_mem[4096], more[512];
static int32_t ints[4][64];

// Two sequences of 3 queries and 10 keys.
static clattn_attention_call call_of(void)
{
    clattn_attention_call c;
    clattn_attention_call_init(&c, sizeof c);
    c.batch = 2;
    c.len_q = 3;
    c.len_kv = 10;
    c.q.buf = clattn_host_buf(q_mem, sizeof q_mem);
    c.k.buf = clattn_host_buf(k_mem, sizeof k_mem);
    c.v.buf = clattn_host_buf(v_mem, sizeof v_mem);
    c.o.buf = clattn_host_buf(o_mem, sizeof o_mem);
    return c;
}

static void refused(const struct cla_problem *p, const clattn_attention_call *call,
                    clattn_status want, const char *text)
{
    struct cla_call out;
    message[0] = '\0';
    assert_int_equal(cla_call_check(p, call, NULL, NULL, &log_to, &out), want);
    if (!strstr(message, text))
        fail_msg("\"%s\" is not in: %s", text, message);
}

static struct cla_call accepted(const struct cla_problem *p, const clattn_attention_call *call)
{
    struct cla_call out;
    message[0] = '\0';
    if (cla_call_check(p, call, NULL, NULL, &log_to, &out) != CLATTN_OK)
        fail_msg("refused: %s", message);
    return out;
}

static clattn_buf numbers(int which, int32_t count, const int32_t *from)
{
    memcpy(ints[which], from, (size_t)count * sizeof *from);
    return clattn_host_buf(ints[which], (size_t)count * sizeof *from);
}

static void desc_refused(clattn_attention_desc d, clattn_status want, const char *text)
{
    struct cla_problem p;
    message[0] = '\0';
    assert_int_equal(cla_problem_from_desc(&d, &log_to, &p), want);
    if (!strstr(message, text))
        fail_msg("\"%s\" is not in: %s", text, message);
}

static void test_descriptions(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(CLATTN_FEATURE_PAGED);
    d.page_size = 0;
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "page_size is 0");
    d.page_size = 257;
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "page_size is 257");
    d = desc_of(0);
    d.page_size = 16;
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "CLATTN_FEATURE_PAGED");
    d = desc_of(CLATTN_FEATURE_PAGED | CLATTN_FEATURE_PACKED_KV);
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "CLATTN_FEATURE_PACKED_KV");
    d = desc_of(0);
    d.dtype_bias = CLATTN_DTYPE_F16;
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "dtype_bias is 1");
    d = desc_of(CLATTN_FEATURE_BIAS);
    d.dtype_bias = CLATTN_DTYPE_I8;
    desc_refused(d, CLATTN_ERR_UNSUPPORTED, "dtype_bias is 3");
    d = desc_of(0);
    d.dtype_q = CLATTN_DTYPE_I8;
    desc_refused(d, CLATTN_ERR_UNSUPPORTED, "dtype_q is 3");
    d = desc_of(1u << 12);
    desc_refused(d, CLATTN_ERR_INVALID_ARGUMENT, "features has unknown bits 0x1000");
}

static void test_needs(void **state)
{
    (void)state;
    struct cla_problem p = problem_of(CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK);
    assert_int_equal(cla_problem_needs(&p), 0);
    p = problem_of(CLATTN_FEATURE_WINDOW | CLATTN_FEATURE_SINKS | CLATTN_FEATURE_PAGED);
    assert_int_equal(cla_problem_needs(&p), CLA_NEEDS_WINDOW | CLA_NEEDS_SINKS | CLA_NEEDS_PAGED);
    p.dtype_o = CLATTN_DTYPE_BF16;
    p.dtype_kv = CLATTN_DTYPE_I8;
    assert_int_equal(cla_problem_needs(&p), CLA_NEEDS_WINDOW | CLA_NEEDS_SINKS | CLA_NEEDS_PAGED |
                                                CLA_NEEDS_16_BIT | CLA_NEEDS_INT8);
    for (int bit = 0; bit < CLA_NEEDS_COUNT; bit++)
        assert_true(cla_need_name(bit)[0]);
    assert_string_equal(cla_need_name(CLA_NEEDS_COUNT), "");
}

static void check_window(uint32_t features, int32_t left, int32_t right, int32_t lo, int32_t hi)
{
    const struct cla_problem p = problem_of(features);
    clattn_attention_call c = call_of();
    c.set = features & CLATTN_FEATURE_WINDOW ? CLATTN_SET_WINDOW : 0;
    c.window_left = left;
    c.window_right = right;
    const struct cla_call out = accepted(&p, &c);
    assert_int_equal(out.off, 7);
    assert_int_equal(out.win_lo, lo);
    assert_int_equal(out.win_hi, hi);
}

static void test_window(void **state)
{
    (void)state;
    const uint32_t window = CLATTN_FEATURE_WINDOW, causal = window | CLATTN_FEATURE_CAUSAL;
    check_window(window, 2, 1, 5, 8);
    check_window(window, -1, -1, CLA_WIN_MIN, CLA_WIN_MAX);
    check_window(window, INT32_MAX, INT32_MAX, 7 - INT32_MAX, CLA_WIN_MAX);
    check_window(causal, 2, 5, 5, 7);  // causal: nothing on the right
    check_window(causal, 0, -1, 7, 7);
    check_window(CLATTN_FEATURE_CAUSAL, 0, 0, CLA_WIN_MIN, 7);
    const struct cla_problem p = problem_of(window), plain = problem_of(0);
    clattn_attention_call c = call_of();
    const struct cla_call open = accepted(&p, &c); // a window that is not set is none
    assert_int_equal(open.win_lo, CLA_WIN_MIN);
    assert_int_equal(open.win_hi, CLA_WIN_MAX);
    c.window_left = 3;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "window is (3, 0), but CLATTN_SET_WINDOW");
    c.set = CLATTN_SET_WINDOW;
    c.window_right = -2;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "window is (3, -2), below -1");
    c.window_right = 0;
    refused(&plain, &c, CLATTN_ERR_INVALID_ARGUMENT, "CLATTN_FEATURE_WINDOW");
}

static void test_softcap(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(CLATTN_FEATURE_SOFTCAP), plain = problem_of(0);
    clattn_attention_call c = call_of();
    c.softcap = 20.0f;
    assert_true(accepted(&p, &c).softcap == 20.0f);
    refused(&plain, &c, CLATTN_ERR_INVALID_ARGUMENT, "softcap is 20");
    c.softcap = -1.0f;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "softcap is -1");
    c.softcap = INFINITY;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "softcap is inf");
    c.softcap = NAN;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "softcap is");
}

// Each buffer of a feature: absent, too short, and not wanted.
static void test_buffers(void **state)
{
    (void)state;
    struct {
        uint32_t feature;
        const char *name;
        size_t offset; // of the clattn_buf in the call
        size_t bytes;  // that are needed
    } b[] = {
        {CLATTN_FEATURE_BIAS, "bias", offsetof(clattn_attention_call, bias.buf), 960},
        {CLATTN_FEATURE_ALIBI, "alibi", offsetof(clattn_attention_call, alibi), 16},
        {CLATTN_FEATURE_SINKS, "sinks", offsetof(clattn_attention_call, sinks), 16},
        {CLATTN_FEATURE_KV_LENS, "kv_lens", offsetof(clattn_attention_call, kv_lens), 8},
    };
    memset(ints, 0, sizeof ints);
    for (size_t n = 0; n < sizeof b / sizeof b[0]; n++) {
        const struct cla_problem p = problem_of(b[n].feature), plain = problem_of(0);
        clattn_attention_call c = call_of();
        clattn_buf *buf = (clattn_buf *)(void *)((char *)&c + b[n].offset);
        char text[64];
        refused(&p, &c, CLATTN_ERR_BUFFER_MISSING, b[n].name);
        *buf = clattn_host_buf(n == 3 ? (void *)ints[0] : n ? (void *)more : (void *)q_mem,
                               b[n].bytes);
        accepted(&p, &c);
        buf->size_bytes--;
        snprintf(text, sizeof text, "%s needs %zu bytes", b[n].name, b[n].bytes);
        refused(&p, &c, CLATTN_ERR_BUFFER_TOO_SMALL, text);
        snprintf(text, sizeof text, "%s is given", b[n].name);
        refused(&plain, &c, CLATTN_ERR_INVALID_ARGUMENT, text);
    }
    const struct cla_problem alibi = problem_of(CLATTN_FEATURE_ALIBI);
    clattn_attention_call c = call_of();
    c.alibi = clattn_host_buf(more, 32);
    c.alibi_batch = 1;
    assert_int_equal(accepted(&alibi, &c).alibi_stride, 4);
    c.alibi_batch = 2;
    refused(&alibi, &c, CLATTN_ERR_INVALID_ARGUMENT, "alibi_batch is 2");
}

static void test_types(void **state)
{
    (void)state;
    clattn_attention_desc d = desc_of(0);
    d.dtype_q = CLATTN_DTYPE_F16;
    d.dtype_kv = CLATTN_DTYPE_I8;
    d.dtype_o = CLATTN_DTYPE_BF16;
    struct cla_problem p;
    assert_int_equal(cla_problem_from_desc(&d, &log_to, &p), CLATTN_OK);
    clattn_attention_call c = call_of();
    refused(&p, &c, CLATTN_ERR_BUFFER_MISSING, "k_scale");
    c.k_scale.buf = clattn_host_buf(more, 2 * 2 * 10 * 4);
    c.v_scale = c.k_scale;
    c.q.buf.size_bytes = 2 * 4 * 3 * 8 * 2;
    c.k.buf.size_bytes = c.v.buf.size_bytes = 2 * 2 * 10 * 8;
    c.o.buf.size_bytes = 2 * 4 * 3 * 8 * 2;
    c.q.buf.offset_bytes = 0;
    struct cla_call out = accepted(&p, &c);
    assert_int_equal(out.q.end_bytes, 2 * 4 * 3 * 8 * 2);
    assert_int_equal(out.k.end_bytes, 2 * 2 * 10 * 8);
    assert_int_equal(out.k_scale.stride[0], 20);
    c.q.buf.offset_bytes = 1;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "q.buf.offset_bytes is 1");
    c.q.buf.offset_bytes = 2;
    refused(&p, &c, CLATTN_ERR_BUFFER_TOO_SMALL, "q needs");
    c.q.buf.offset_bytes = 0;
    c.v_scale.buf.size_bytes--;
    refused(&p, &c, CLATTN_ERR_BUFFER_TOO_SMALL, "v_scale needs");
}

static void test_packed(void **state)
{
    (void)state;
    const struct cla_problem p =
        problem_of(CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV | CLATTN_FEATURE_LSE);
    clattn_attention_call c = call_of();
    c.total_q = 6;
    c.total_kv = 15;
    c.lse = clattn_host_buf(more, 4 * 6 * 4);
    c.cu_seqlens_q = numbers(0, 3, (const int32_t[]){1, 3, 6});
    c.cu_seqlens_kv = numbers(1, 3, (const int32_t[]){0, 10, 10});
    c.q.buf.size_bytes = 4 * 6 * 8 * 4;
    struct cla_call out = accepted(&p, &c);
    assert_int_equal(out.q.stride[0], 0);
    assert_int_equal(out.q.stride[1], 6 * 8);
    assert_int_equal(out.k.stride[1], 15 * 8);
    assert_int_equal(out.lse_stride[0], 0);
    assert_int_equal(out.lse_stride[1], 6);
    assert_int_equal(out.q.end_bytes, 4 * 6 * 8 * 4);
    ints[0][1] = 7;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "cu_seqlens_q[1] is 7, not 0 to 6");
    ints[0][1] = 0;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "cu_seqlens_q[1] is 0, less than 1");
    ints[0][1] = 1;
    refused(&p, &c, CLATTN_ERR_SHAPE, "cu_seqlens_q: sequence 1 has 5 tokens");
    ints[0][1] = 3;
    ints[1][0] = -1;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "cu_seqlens_kv[0] is -1");
    ints[1][0] = 0;
    c.total_q = -1;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "total_q is -1");
}

static void test_kv_lens(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(CLATTN_FEATURE_KV_LENS);
    clattn_attention_call c = call_of();
    c.kv_lens = numbers(0, 2, (const int32_t[]){10, 0});
    accepted(&p, &c);
    ints[0][1] = 11;
    refused(&p, &c, CLATTN_ERR_SHAPE, "kv_lens[1] is 11, more than 10");
    ints[0][1] = -1;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "kv_lens[1] is -1");
}

static void test_paged(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(CLATTN_FEATURE_PAGED | CLATTN_FEATURE_KV_LENS);
    clattn_attention_call c = call_of();
    c.num_pages = 5;
    c.max_pages = 3;
    c.kv_lens = numbers(0, 2, (const int32_t[]){10, 4});
    // Behind the last page of a sequence there may be anything.
    c.page_table = numbers(1, 6, (const int32_t[]){4, 0, 2, 1, -77, 99});
    c.k.buf.size_bytes = 5 * 2 * 4 * 8 * 4;
    const struct cla_call out = accepted(&p, &c);
    assert_int_equal(out.k.end_bytes, 5 * 2 * 4 * 8 * 4);
    assert_int_equal(out.k.stride[0], 2 * 4 * 8);
    ints[0][1] = 5;
    refused(&p, &c, CLATTN_ERR_INVALID_ARGUMENT, "page_table[1][1] is -77, the pool has 5 pages");
    ints[0][1] = 4;
    c.num_pages = 0;
    refused(&p, &c, CLATTN_ERR_SHAPE, "num_pages is 0, but len_kv is 10");
    c.num_pages = 5;
    c.max_pages = 2;
    refused(&p, &c, CLATTN_ERR_SHAPE, "max_pages 2 of 4 keys are less than len_kv 10");
    c.max_pages = 3;
    c.page_table.size_bytes -= 4;
    refused(&p, &c, CLATTN_ERR_BUFFER_TOO_SMALL, "page_table needs 24 bytes");
}

static void test_faults_overlap(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(CLATTN_FEATURE_KV_LENS);
    clattn_attention_call c = call_of();
    c.kv_lens = numbers(0, 2, (const int32_t[]){10, 0});
    c.faults = clattn_host_buf(ints[0] + 1, 4);
    refused(&p, &c, CLATTN_ERR_OVERLAP, "faults (bytes 0 to 4) overlaps kv_lens");
    c.faults = clattn_host_buf(o_mem + 3, 4);
    refused(&p, &c, CLATTN_ERR_OVERLAP, "overlaps");
    c.faults = clattn_host_buf(ints[1], 4);
    accepted(&p, &c);
}

// What is given for an empty tensor is not looked at, and so must not come to a kernel.
static void test_empty_tensors(void **state)
{
    (void)state;
    const struct cla_problem p = problem_of(CLATTN_FEATURE_MASK);
    clattn_attention_call c = call_of();
    c.len_kv = 0;
    c.k.buf.kind = c.mask.buf.kind = CLATTN_BUF_CL_MEM;
    c.k.buf.ptr = c.mask.buf.ptr = more;
    const struct cla_call out = accepted(&p, &c);
    assert_int_equal(out.q.buf.kind, CLATTN_BUF_HOST);
    assert_int_equal(out.k.buf.kind, CLATTN_BUF_ABSENT);
    assert_int_equal(out.v.buf.kind, CLATTN_BUF_ABSENT);
    assert_int_equal(out.mask.buf.kind, CLATTN_BUF_ABSENT);
}

// A call as the kernels see it, with numbers that nobody has checked.
static void test_sequences(void **state)
{
    (void)state;
    struct cla_problem p = problem_of(CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV |
                                      CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_CAUSAL);
    const struct cla_call call = {.batch = 4, .len_q = 5, .len_kv = 9, .total_q = 20,
                                  .total_kv = 30, .left = -1, .right = 0};
    const int32_t cu_q[] = {-3, 4, 2, 99, 20}, cu_kv[] = {0, 9, 9, 12, 30}, lens[] = {3, -1, 3, 99};
    const struct cla_host_mem mem = {.cu_q = cu_q, .cu_kv = cu_kv, .kv_lens = lens};
    const struct {
        int64_t first_q, first_kv;
        int32_t len_q, len_kv, faults;
    } want[4] = {
        {0, 0, 4, 3, CLATTN_FAULT_OFFSETS},                         // -3 counts as 0
        {4, 9, 0, 0, CLATTN_FAULT_OFFSETS | CLATTN_FAULT_LENGTH},   // 2 after 4, length -1
        {4, 9, 5, 3, CLATTN_FAULT_OFFSETS | CLATTN_FAULT_LENGTH},   // 99 counts as 20, 16 as 5
        {20, 12, 0, 9, CLATTN_FAULT_OFFSETS | CLATTN_FAULT_LENGTH}, // 18 keys count as 9
    };
    for (int32_t b = 0; b < 4; b++) {
        struct cla_call out;
        int32_t faults = 0;
        cla_call_enter(&p, &call, &mem, b, &out, &faults);
        assert_int_equal(out.first_q, want[b].first_q);
        assert_int_equal(out.first_kv, want[b].first_kv);
        assert_int_equal(out.len_q, want[b].len_q);
        assert_int_equal(out.len_kv, want[b].len_kv);
        assert_int_equal(faults, want[b].faults);
        assert_int_equal(out.win_hi, want[b].len_kv - want[b].len_q);
    }
}

static void test_places(void **state)
{
    (void)state;
    struct cla_problem p = problem_of(CLATTN_FEATURE_PAGED);
    struct cla_call call = {.batch = 2, .len_q = 1, .len_kv = 7, .num_pages = 6, .max_pages = 2};
    const struct cla_tensor k = {.stride = {1000, 100, 10}};
    const int32_t table[] = {3, 5, 0, 6};
    const struct cla_host_mem mem = {.table = table};
    assert_int_equal(cla_key_at(&p, &call, &mem, &k, 0, 1, 0), 3100);
    assert_int_equal(cla_key_at(&p, &call, &mem, &k, 0, 0, 6), 5020);
    assert_int_equal(cla_key_at(&p, &call, &mem, &k, 1, 0, 3), 30);
    assert_int_equal(cla_key_at(&p, &call, &mem, &k, 1, 0, 4), -1); // page 6 of 6
    assert_int_equal(cla_call_page_faults(&p, &call, &mem), CLATTN_FAULT_PAGE);
    call.len_kv = 4;
    assert_int_equal(cla_call_page_faults(&p, &call, &mem), 0);
    p.paged = false;
    call.first_kv = 4;
    call.first_q = 2;
    assert_int_equal(cla_key_at(&p, &call, &mem, &k, 1, 1, 3), 1170);
    assert_int_equal(cla_query_at(&call, &k, 0, 2, 3), 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptions), cmocka_unit_test(test_needs),
        cmocka_unit_test(test_window),       cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_buffers),      cmocka_unit_test(test_types),
        cmocka_unit_test(test_packed),       cmocka_unit_test(test_kv_lens),
        cmocka_unit_test(test_paged),        cmocka_unit_test(test_faults_overlap),
        cmocka_unit_test(test_empty_tensors), cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
