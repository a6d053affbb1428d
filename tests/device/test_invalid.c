// SPDX-License-Identifier: Apache-2.0
// Descriptions and calls on host memory that are refused, a row each.
#include "refuse.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define UNSUPPORTED CLATTN_ERR_UNSUPPORTED
#define SHAPE CLATTN_ERR_SHAPE
#define STRIDE CLATTN_ERR_STRIDE
#define MISSING CLATTN_ERR_BUFFER_MISSING
#define TOO_SMALL CLATTN_ERR_BUFFER_TOO_SMALL
#define OVERLAP CLATTN_ERR_OVERLAP
#define OVER_BOUND CLATTN_ERR_OVER_BOUND
#define STRUCT_SIZE CLATTN_ERR_STRUCT_SIZE

// ---- descriptions -------------------------------------------------------------------------------

static const struct refusal desc_rows[] = {
    {"no query heads", INVALID, {"heads_q is 0"}, {DESC(heads_q, 0)}, ANYWHERE},
    {"negative query heads", INVALID, {"heads_q is -4"}, {DESC(heads_q, -4)}, ANYWHERE},
    {"negative key heads", INVALID, {"heads_kv is -2"}, {DESC(heads_kv, -2)}, ANYWHERE},
    {"heads not divisible", SHAPE, {"heads_q 12", "heads_kv 5"},
     {DESC(heads_q, 12), DESC(heads_kv, 5)}, ANYWHERE},
    {"more key heads than query heads", SHAPE, {"heads_q 4", "heads_kv 8"}, {DESC(heads_kv, 8)},
     ANYWHERE},
    {"no channels", INVALID, {"dim_qk is 0"}, {DESC(dim_qk, 0)}, ANYWHERE},
    {"negative channels", INVALID, {"dim_qk is -16"}, {DESC(dim_qk, -16)}, ANYWHERE},
    {"one channel too many", INVALID, {"dim_qk is 577"}, {DESC(dim_qk, 577)}, ANYWHERE},
    {"negative channels of V", INVALID, {"dim_v is -1"}, {DESC(dim_v, -1)}, ANYWHERE},
    {"too many channels of V", INVALID, {"dim_v is 577"}, {DESC(dim_v, 577)}, ANYWHERE},
    {"negative bound of the batch", INVALID, {"max_batch -1"}, {DESC(max_batch, -1)}, ANYWHERE},
    {"negative bound of queries", INVALID, {"max_len_q -2"}, {DESC(max_len_q, -2)}, ANYWHERE},
    {"negative bound of keys", INVALID, {"max_len_kv -3"}, {DESC(max_len_kv, -3)}, ANYWHERE},
    {"unknown feature", INVALID, {"features has", "0x40000000"}, {DESC(features, 1 << 30)},
     ANYWHERE},
    {"unknown flag", INVALID, {"flags has", "0x200"}, {DESC(flags, 1 << 9)}, ANYWHERE},
    {"unknown alignment", INVALID, {"align is 2"}, {DESC(align, 2)}, ANYWHERE},
    {"negative alignment", INVALID, {"align is -1"}, {DESC(align, -1)}, ANYWHERE},
    {"unknown algorithm", INVALID, {"algo is 99"}, {DESC(algo, 99)}, ANYWHERE},
    {"negative splits", INVALID, {"num_splits is -1"},
     {DESC(num_splits, -1), DESC(algo, CLATTN_ALGO_SPLIT_KV)}, ANYWHERE},
    {"too many splits", INVALID, {"num_splits is 65536"},
     {DESC(num_splits, 65536), DESC(algo, CLATTN_ALGO_SPLIT_KV)}, ANYWHERE},
    {"splits of another algorithm", INVALID, {"num_splits is 2", "algo is 1, not 6"},
     {DESC(num_splits, 2), DESC(algo, CLATTN_ALGO_FUSED)}, ANYWHERE},
    {"splits of no algorithm", INVALID, {"num_splits is 2", "algo is 0 (auto), not 6 (split_kv)"},
     {DESC(num_splits, 2), DESC(algo, CLATTN_ALGO_AUTO)}, ANYWHERE},
    {"softmax of another algorithm", INVALID, {"softmax is 3", "algo is 1, not 7"},
     {DESC(softmax, 3), DESC(algo, CLATTN_ALGO_FUSED)}, ANYWHERE},
    {"unknown softmax", INVALID, {"softmax is 4"},
     {DESC(softmax, 4), DESC(algo, CLATTN_ALGO_UNFUSED)}, ANYWHERE},
    {"negative algorithm", INVALID, {"algo is -1"}, {DESC(algo, -1)}, ANYWHERE},
    {"unknown kernel", INVALID, {"kernel is 4, not 0 to 3"}, {DESC(kernel, 4)}, ANYWHERE},
    {"unknown precision", INVALID, {"precision is 2"}, {DESC(precision, 2)}, ANYWHERE},
    {"unknown type of Q", INVALID, {"dtype_q is -1"}, {DESC(dtype_q, -1)}, ANYWHERE},
    {"unknown type of K and V", INVALID, {"dtype_kv is 44"}, {DESC(dtype_kv, 44)}, ANYWHERE},
    {"unknown type of O", INVALID, {"dtype_o is 4"}, {DESC(dtype_o, 4)}, ANYWHERE},
    {"int8 queries", UNSUPPORTED, {"dtype_q is 3 (int8)"}, {DESC(dtype_q, CLATTN_DTYPE_I8)},
     ANYWHERE},
    {"int8 outputs", UNSUPPORTED, {"dtype_o is 3 (int8)"}, {DESC(dtype_o, CLATTN_DTYPE_I8)},
     ANYWHERE},
    {"no size of a page", INVALID, {"page_size is 0, not 1 to 256"},
     {DESC(features, CLATTN_FEATURE_PAGED)}, ANYWHERE},
    {"a size of a page without pages", INVALID, {"page_size is 16"}, {DESC(page_size, 16)},
     ANYWHERE},
    {"backward", UNSUPPORTED, {"direction is 1"}, {DESC(direction, 1)}, ANYWHERE},
    {"dropout", UNSUPPORTED, {"dropout_p is 0.5"}, {DESC(dropout_p, 0x3f000000)}, ANYWHERE},
    {"dropout of NaN", UNSUPPORTED, {"dropout_p is nan"}, {DESC(dropout_p, NAN_BITS)}, ANYWHERE},
    {"kernel shape for the CPU path", INVALID, {"kernel is 1", "algo 2"},
     {DESC(algo, CLATTN_ALGO_HOST), DESC(kernel, CLATTN_KERNEL_GROUP)}, ANYWHERE},
    {"kernel shape for the reference", INVALID, {"kernel is 2", "algo 3"},
     {DESC(algo, CLATTN_ALGO_REFERENCE), DESC(kernel, CLATTN_KERNEL_VECTOR)}, ANYWHERE},
    {"fused on the CPU path's device", UNSUPPORTED, {"fused", "CPU path"},
     {DESC(algo, CLATTN_ALGO_FUSED)}, ON_BUILTIN},
    {"kernel shape on the CPU path's device", UNSUPPORTED, {"host", "kernel shape is forced"},
     {DESC(algo, CLATTN_ALGO_AUTO), DESC(kernel, CLATTN_KERNEL_VECTOR)}, ON_BUILTIN},
    {"unknown shape of a tile", INVALID, {"tile.kernel is 4"}, {DESC(tile.kernel, 4)}, ANYWHERE},
    {"numbers of no tile", INVALID, {"tile has numbers", "kernel is 0"}, {DESC(tile.tile_q, 8)},
     ANYWHERE},
    {"negative rows of a tile", INVALID, {"of tile is -8, negative"},
     {DESC(tile.kernel, CLATTN_KERNEL_GROUP), DESC(tile.tile_q, -8)}, ANYWHERE},
    {"reserved field of a tile", INVALID, {"tile.reserved[5] is 1, not 0"},
     {DESC(tile.kernel, CLATTN_KERNEL_GROUP), DESC(tile.reserved[5], 1)}, ANYWHERE},
    {"tile for no algorithm", INVALID, {"tile is given", "algo is 0 (auto)"},
     {DESC(tile.kernel, CLATTN_KERNEL_GROUP), DESC(algo, CLATTN_ALGO_AUTO)}, ANYWHERE},
    {"tile for the CPU path", INVALID, {"tile is given", "algo is 2"},
     {DESC(tile.kernel, CLATTN_KERNEL_GROUP), DESC(algo, CLATTN_ALGO_HOST), DESC(kernel, 0)},
     ANYWHERE},
    {"tile of another shape", INVALID, {"tile.kernel is 1, but kernel is 2"},
     {DESC(tile.kernel, CLATTN_KERNEL_GROUP), DESC(kernel, CLATTN_KERNEL_VECTOR),
      DESC(algo, CLATTN_ALGO_FUSED)}, ANYWHERE},
    {"no struct size", STRUCT_SIZE, {"clattn_attention_desc.struct_size is 0"},
     {DESC(struct_size, 0)}, ANYWHERE},
    {"struct size of less than the first version", STRUCT_SIZE,
     {"clattn_attention_desc.struct_size is"},
     {DESC(struct_size, offsetof(clattn_attention_desc, dropout_p))}, ANYWHERE},
    {"wild struct size", STRUCT_SIZE, {"struct_size is 65537"}, {DESC(struct_size, 65537)},
     ANYWHERE},
};

static void test_descs(void **state)
{
    fixture_open(*state);
    refuse_descs(ROWS(desc_rows));
}

// A newer caller whose additional fields are zero is served, one that sets them is not.
static void test_newer_structs(void **state)
{
    fixture_open(*state);
    static const char *const desc_says[] = {"clattn_attention_desc.struct_size is", "is set"};
    static const char *const call_says[] = {"clattn_attention_call.struct_size is", "is set"};
    struct {
        clattn_attention_desc desc;
        unsigned char more[24];
    } desc;
    struct {
        clattn_attention_call call;
        unsigned char more[24];
    } call;
    memset(&desc, 0, sizeof desc);
    memset(&call, 0, sizeof call);
    desc.desc = good_desc();
    desc.desc.struct_size = sizeof desc;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &desc.desc, &plan), CLATTN_OK);
    clattn_plan_destroy(&plan);
    desc.more[20] = 1;
    clear_log();
    assert_refused("newer description",
                   clattn_attention_plan_create(fx.ctx, &desc.desc, &plan), STRUCT_SIZE, desc_says);
    assert_null(plan);
    call.call = good_call();
    call.call.struct_size = sizeof call;
    assert_int_equal(clattn_attention_run(fx.plan, &call.call), CLATTN_OK);
    call.more[0] = 1;
    clear_log();
    blank_outputs();
    assert_refused("newer call", clattn_attention_run(fx.plan, &call.call), STRUCT_SIZE, call_says);
    assert_untouched("newer call");
    assert_valid_works("newer structs");
}

// ---- calls --------------------------------------------------------------------------------------

static const struct refusal number_rows[] = {
    {"negative batch", INVALID, {"batch is -3"}, {CALL(batch, -3)}, ANYWHERE},
    {"negative queries", INVALID, {"len_q is -1"}, {CALL(len_q, -1)}, ANYWHERE},
    {"negative keys", INVALID, {"len_kv is -2147483648"}, {CALL(len_kv, INT32_MIN)}, ANYWHERE},
    {"batch over the bound", OVER_BOUND, {"batch is 5", "bound is 4"}, {CALL(batch, 5)}, ANYWHERE},
    {"queries over the bound", OVER_BOUND, {"len_q is 9", "bound is 8"}, {CALL(len_q, 9)},
     ANYWHERE},
    {"keys over the bound", OVER_BOUND, {"len_kv is 9", "bound is 8"}, {CALL(len_kv, 9)},
     ANYWHERE},
    {"scale of NaN", INVALID, {"scale is nan"},
     {CALL(set, CLATTN_SET_SCALE), CALL(scale, NAN_BITS)}, ANYWHERE},
    {"scale of infinity", INVALID, {"scale is inf"},
     {CALL(set, CLATTN_SET_SCALE), CALL(scale, INFINITY_BITS)}, ANYWHERE},
    {"scale of minus infinity", INVALID, {"scale is -inf"},
     {CALL(set, CLATTN_SET_SCALE), CALL(scale, MINUS_INFINITY_BITS)}, ANYWHERE},
    {"scale without its bit", INVALID, {"scale is 0.5", "CLATTN_SET_SCALE"},
     {CALL(scale, 0x3f000000)}, ANYWHERE},
    {"unknown set bit", INVALID, {"call.set has", "0x100"}, {CALL(set, 1 << 8)}, ANYWHERE},
    {"reserved word", INVALID, {"call.reserved has", "0x1"}, {CALL(reserved, 1)}, ANYWHERE},
    {"call's struct size", STRUCT_SIZE, {"clattn_attention_call.struct_size is 8"},
     {CALL(struct_size, 8)}, ANYWHERE},
    {"rows over 2^31", SHAPE, {"len_q 2147483647", "2 query heads"}, {CALL(len_q, INT32_MAX)},
     WIDE_PLAN},
    {"Q overflows", SHAPE, {"q: extents 2147483647 x 4 x 1073741823 overflow"},
     {CALL(batch, INT32_MAX), CALL(len_q, 1073741823)}, WIDE_PLAN},
    {"K overflows", SHAPE, {"k: extents 2147483647 x 2 x 2147483647 overflow"},
     {CALL(batch, INT32_MAX), CALL(len_q, 1), CALL(len_kv, INT32_MAX), CALL(q.buf.size_bytes, 0)},
     WIDE_PLAN},
};

static const struct refusal buffer_rows[] = {
    {"Q absent", MISSING, {"q is absent", "kind 0"}, {CALL(q.buf.kind, 0)}, ANYWHERE},
    {"K without pointer", MISSING, {"k is absent", "ptr NULL"}, {CALL(k.buf.ptr, 0)}, ANYWHERE},
    {"V without pointer", MISSING, {"v is absent", "ptr NULL"}, {CALL(v.buf.ptr, 0)}, ANYWHERE},
    {"O absent", MISSING, {"o is absent", "kind 0"}, {CALL(o.buf.kind, 0)}, ANYWHERE},
    {"mask absent", MISSING, {"mask is absent", "kind 0"}, {CALL(mask.buf.kind, 0)}, ANYWHERE},
    {"LSE absent", MISSING, {"lse is absent", "kind 0"}, {CALL(lse.kind, 0)}, ANYWHERE},
    {"unknown kind", INVALID, {"o.buf.kind is 77"}, {CALL(o.buf.kind, 77)}, ANYWHERE},
    {"negative kind", INVALID, {"lse.buf.kind is -1"}, {CALL(lse.kind, -1)}, ANYWHERE},
    {"reserved word of a buffer", INVALID, {"v.buf.reserved is 6"}, {CALL(v.buf.reserved, 6)},
     ANYWHERE},
    {"reserved word of a tensor", INVALID, {"k.reserved is 3"}, {CALL(k.reserved, 3)}, ANYWHERE},
    {"reserved word of the mask", INVALID, {"mask.reserved is 2"}, {CALL(mask.reserved, 2)},
     ANYWHERE},
    {"Q short", TOO_SMALL, {"q needs 1536", "has 1535"}, {CALL_ADD(q.buf.size_bytes, -1)},
     ANYWHERE},
    {"K short", TOO_SMALL, {"k needs 1280", "has 1279"}, {CALL_ADD(k.buf.size_bytes, -1)},
     ANYWHERE},
    {"V short", TOO_SMALL, {"v needs 1280", "has 4"}, {CALL(v.buf.size_bytes, 4)}, ANYWHERE},
    {"O short", TOO_SMALL, {"o needs 1536", "has 1532"}, {CALL_ADD(o.buf.size_bytes, -4)},
     ANYWHERE},
    {"mask short", TOO_SMALL, {"mask needs 120", "has 119"}, {CALL(mask.buf.size_bytes, 119)},
     ANYWHERE},
    {"LSE short", TOO_SMALL, {"lse needs 96", "has 95"}, {CALL(lse.size_bytes, 95)}, ANYWHERE},
    {"LSE pushed over its end", TOO_SMALL, {"lse needs 100", "has 96"}, {CALL(lse.offset_bytes, 4)},
     ANYWHERE},
    {"offset behind the end", TOO_SMALL, {"k needs 1284", "has 1280"},
     {CALL(k.buf.offset_bytes, 4)}, ANYWHERE},
    {"offset far behind the end", TOO_SMALL, {"o needs 1073743360", "has 1536"},
     {CALL(o.buf.offset_bytes, 1 << 30)}, ANYWHERE},
    {"offset over the address space", TOO_SMALL, {"q.buf.offset_bytes is 18446744073709551612"},
     {CALL(q.buf.offset_bytes, -4), CALL(q.buf.size_bytes, 0)}, ANYWHERE},
    {"odd offset of Q", INVALID, {"q.buf.offset_bytes is 2"}, {CALL(q.buf.offset_bytes, 2)},
     ANYWHERE},
    {"odd offset of LSE", INVALID, {"lse.buf.offset_bytes is 3"}, {CALL(lse.offset_bytes, 3)},
     ANYWHERE},
    {"odd pointer of K", INVALID, {"k.buf.ptr", "not aligned"}, {CALL_ADD(k.buf.ptr, 1)}, ANYWHERE},
    {"odd pointer of O", INVALID, {"o.buf.ptr", "4 bytes"}, {CALL_ADD(o.buf.ptr, 2)}, ANYWHERE},
    {"cl_mem on the CPU path's device", MISSING, {"k.buf.kind is 2", "no OpenCL device"},
     {CALL(k.buf.kind, CLATTN_BUF_CL_MEM)}, ON_BUILTIN},
    {"cl_mem mask on the CPU path's device", MISSING, {"mask.buf.kind is 2", "no OpenCL device"},
     {CALL(mask.buf.kind, CLATTN_BUF_CL_MEM)}, ON_BUILTIN},
    {"unknown kind of workspace", INVALID, {"workspace.buf.kind is 5"}, {CALL(workspace.kind, 5)},
     ANYWHERE},
    {"workspace without pointer", MISSING, {"workspace is absent", "kind 1"},
     {CALL(workspace.kind, CLATTN_BUF_HOST)}, ANYWHERE},
};

// A strided tensor of the valid shape, to be spoilt in one stride.
#define STRIDED(t, heads, len)                                                                     \
    CALL(t.layout, CLATTN_LAYOUT_STRIDED), CALL(t.stride_batch, (heads) * (len) * DIM)

static const struct refusal stride_rows[] = {
    {"rows of O overlap", STRIDE, {"o: stride 15 of axis 2", "16 elements"},
     {STRIDED(o, HEADS_Q, LEN_Q), CALL(o.stride_head, LEN_Q * DIM), CALL(o.stride_seq, DIM - 1)},
     ANYWHERE},
    {"O broadcast over heads", STRIDE, {"o: stride 0 of axis 1"},
     {STRIDED(o, HEADS_Q, LEN_Q), CALL(o.stride_seq, DIM)}, ANYWHERE},
    {"batches of O overlap", STRIDE, {"o: stride 191 of axis 0", "192 elements"},
     {CALL(o.layout, CLATTN_LAYOUT_STRIDED), CALL(o.stride_batch, HEADS_Q * LEN_Q * DIM - 1),
      CALL(o.stride_head, LEN_Q * DIM), CALL(o.stride_seq, DIM)}, ANYWHERE},
    {"negative stride of rows", STRIDE, {"k: stride -16 of axis 2"},
     {STRIDED(k, HEADS_KV, LEN_KV), CALL(k.stride_seq, -DIM)}, ANYWHERE},
    {"negative stride of heads", STRIDE, {"q: stride -1 of axis 1"},
     {STRIDED(q, HEADS_Q, LEN_Q), CALL(q.stride_head, -1)}, ANYWHERE},
    {"stride of K overflows", STRIDE, {"k: strides 160 x 0 x 4611686018427387903 overflow"},
     {STRIDED(k, HEADS_KV, LEN_KV), CALL(k.stride_seq, INT64_MAX / 2)}, ANYWHERE},
    {"stride of O overflows", STRIDE, {"o: strides 9223372036854775807 x 0 x 0 overflow"},
     {CALL(o.layout, CLATTN_LAYOUT_STRIDED), CALL(o.stride_batch, INT64_MAX)}, ANYWHERE},
    {"strides beside BHSD", STRIDE,
     {"k.stride_seq is 32, but k.layout makes it 16", "say CLATTN_LAYOUT_STRIDED there"},
     {CALL(k.stride_seq, 2 * DIM)}, ANYWHERE},
    {"strides beside BSHD", STRIDE, {"o.stride_head is 48, but o.layout makes it 16"},
     {CALL(o.layout, CLATTN_LAYOUT_BSHD), CALL(o.stride_head, LEN_Q * DIM)}, ANYWHERE},
    {"negative stride beside BHSD", STRIDE, {"q.stride_head is -1, but"},
     {CALL(q.stride_head, -1)}, ANYWHERE},
    {"stride of a mask without STRIDED", STRIDE,
     {"mask.stride[2] is 8, but mask.layout makes it 5"}, {CALL(mask.stride[2], 8)}, ANYWHERE},
    {"strides reach over the end", TOO_SMALL,
     {"v needs 1344", "(2 x 2 x 5 x 16 with strides 160 x 96 x 16), it has 1280"},
     {STRIDED(v, HEADS_KV, LEN_KV), CALL(v.stride_head, LEN_KV * DIM + DIM),
      CALL(v.stride_seq, DIM)}, ANYWHERE},
    {"unknown layout", INVALID, {"v.layout is 7"}, {CALL(v.layout, 7)}, ANYWHERE},
    {"negative layout", INVALID, {"o.layout is -1"}, {CALL(o.layout, -1)}, ANYWHERE},
    {"unknown layout of the mask", INVALID, {"mask.layout is 1"}, {CALL(mask.layout, 1)}, ANYWHERE},
    {"mask of another length", SHAPE, {"mask.extent[3] (key) is 4", "neither 1 nor 5"},
     {CALL(mask.extent[3], 4)}, ANYWHERE},
    {"negative extent of the mask", SHAPE, {"mask.extent[0] (batch) is -1"},
     {CALL(mask.extent[0], -1)}, ANYWHERE},
    {"negative stride of the mask", STRIDE, {"mask.stride[2] (query) is -5"},
     {CALL(mask.layout, CLATTN_LAYOUT_STRIDED), CALL(mask.stride[2], -5)}, ANYWHERE},
    {"stride of the mask overflows", STRIDE, {"mask: strides 0 x 9223372036854775807 x 0 x 0"},
     {CALL(mask.layout, CLATTN_LAYOUT_STRIDED), CALL(mask.stride[1], INT64_MAX)}, ANYWHERE},
};

// O and LSE are where inputs lie only in what the call says: nothing is lost if they are written.
static const struct refusal overlap_rows[] = {
    {"O over Q", OVERLAP, {"o (bytes 0 to 1536)", "q (bytes 0 to 1536)"},
     {CALL_COPY(q.buf, o.buf)}, ANYWHERE},
    {"O over the start of V", OVERLAP, {"o (bytes", "v (bytes"},
     {CALL_COPY(v.buf.ptr, o.buf.ptr), CALL_ADD(v.buf.ptr, COUNT_O * 4 - 4)}, ANYWHERE},
    {"O over the end of K", OVERLAP, {"o (bytes", "k (bytes"},
     {CALL_COPY(k.buf.ptr, o.buf.ptr), CALL_ADD(k.buf.ptr, 4 - COUNT_KV * 4)}, ANYWHERE},
    {"O over LSE", OVERLAP, {"o (bytes", "lse (bytes"}, {CALL_COPY(lse.ptr, o.buf.ptr)}, ANYWHERE},
    {"LSE over Q", OVERLAP, {"lse (bytes", "q (bytes"}, {CALL_COPY(q.buf.ptr, lse.ptr)}, ANYWHERE},
    {"O over the mask", OVERLAP, {"o (bytes", "mask (bytes"},
     {CALL_COPY(mask.buf.ptr, o.buf.ptr), CALL_ADD(mask.buf.ptr, COUNT_O * 4 - 1)}, ANYWHERE},
    {"LSE over the mask by its offset", OVERLAP, {"lse (bytes 0 to 96)", "mask (bytes 1000 to"},
     {CALL_COPY(mask.buf.ptr, lse.ptr), CALL_ADD(mask.buf.ptr, -1000 + 95),
      CALL(mask.buf.offset_bytes, 1000), CALL(mask.buf.size_bytes, 0)}, ANYWHERE},
};

static void test_numbers(void **state)
{
    fixture_open(*state);
    refuse_calls(ROWS(number_rows));
}

static void test_buffers(void **state)
{
    fixture_open(*state);
    refuse_calls(ROWS(buffer_rows));
}

static void test_strides(void **state)
{
    fixture_open(*state);
    refuse_calls(ROWS(stride_rows));
}

static void test_overlaps(void **state)
{
    fixture_open(*state);
    refuse_calls(ROWS(overlap_rows));
}

// Memory for what the plan was made without.
static void test_not_of_the_plan(void **state)
{
    fixture_open(*state);
    static const char *const mask_says[] = {"mask is given", "CLATTN_FEATURE_MASK"};
    static const char *const lse_says[] = {"lse is given", "CLATTN_FEATURE_LSE"};
    clattn_attention_desc desc = good_desc();
    desc.features = 0;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &desc, &plan), CLATTN_OK);
    clattn_attention_call call = good_call();
    blank_outputs();
    clear_log();
    assert_refused("mask not asked for", clattn_attention_run(plan, &call), INVALID, mask_says);
    call.mask.buf = clattn_host_buf(NULL, 0);
    clear_log();
    assert_refused("LSE not asked for", clattn_attention_run(plan, &call), INVALID, lse_says);
    assert_untouched("not of the plan");
    clattn_plan_destroy(&plan);
    assert_valid_works("not of the plan");
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"descriptions", test_descs, LEVEL_SMALL},
        {"structs of newer callers", test_newer_structs, LEVEL_SMALL},
        {"calls: numbers", test_numbers, LEVEL_SMALL},
        {"calls: buffers", test_buffers, LEVEL_SMALL},
        {"calls: strides and extents", test_strides, LEVEL_SMALL},
        {"calls: overlaps", test_overlaps, LEVEL_SMALL},
        {"calls: not of the plan", test_not_of_the_plan, LEVEL_SMALL},
    };
    const int status = targets_main("invalid", argc, argv, tests, sizeof tests / sizeof *tests);
    fixture_close();
    return status;
}
