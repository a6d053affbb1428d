// SPDX-License-Identifier: Apache-2.0
// Callers older and newer than the library: structs of every size from nothing to beyond the
// known end. Each lies before a page that nobody may touch, so a read or a write behind the size
// that the caller gave ends the program.
#define _DEFAULT_SOURCE // anonymous mmap()
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "clattn/clattn.h"

// A size must be the sum of whole words, as every sizeof of these structs is.
enum { WORD = sizeof(size_t), MORE = 64, BATCH = 1, HEADS = 2, ROWS = 3, DIM = 4 };
enum { COUNT = BATCH * HEADS * ROWS * DIM, FILL = 0xa5 };

#define SIZE_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

static struct {
    clattn_context *ctx;
    clattn_plan *plan;
    clattn_softmax_plan *softmax;
    unsigned char *end; // of memory
    float q[COUNT], o[COUNT], want[COUNT];
    bool writes; // O, which is `want` then
} fx;

static int setup(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory =
        mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + 2 * page, page, PROT_NONE))
        return -1;
    fx.end = memory + 2 * page;
    for (int i = 0; i < COUNT; i++)
        fx.q[i] = (float)(i * 7 % 5) - 2.0f;
    return 0;
}

// `size` bytes that end where memory does, or up to a word before, for a struct begins with one;
// what is between is filled.
static unsigned char *place(size_t size)
{
    const size_t whole = (size < WORD ? WORD : size + WORD - 1) / WORD * WORD;
    memset(fx.end - whole, FILL, whole);
    return fx.end - whole;
}

static clattn_context_desc context_desc(void)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "cpu";
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    desc.threads = 1;
    return desc;
}

static clattn_attention_desc attention_desc(void)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.algo = CLATTN_ALGO_HOST;
    return desc;
}

static clattn_softmax_desc softmax_desc(void)
{
    clattn_softmax_desc desc;
    clattn_softmax_desc_init(&desc, sizeof desc);
    return desc;
}

// ---- structs that the library reads ------------------------------------------------------------

static clattn_status count_devices(const void *desc)
{
    int32_t count = 0;
    return clattn_device_count(desc, &count);
}

static clattn_status device_info(const void *desc)
{
    clattn_device_info info = {.struct_size = sizeof info};
    return clattn_device_get_info(desc, 0, &info);
}

static clattn_status make_context(const void *desc)
{
    clattn_context *ctx = NULL;
    const clattn_status st = clattn_context_create(desc, &ctx);
    assert_int_equal(ctx != NULL, st == CLATTN_OK);
    clattn_context_destroy(&ctx);
    return st;
}

static clattn_status make_plan(const void *desc)
{
    clattn_plan *plan = NULL;
    const clattn_status st = clattn_attention_plan_create(fx.ctx, desc, &plan);
    assert_int_equal(plan != NULL, st == CLATTN_OK);
    clattn_plan_destroy(&plan);
    return st;
}

static clattn_status make_softmax_plan(const void *desc)
{
    clattn_softmax_plan *plan = NULL;
    const clattn_status st = clattn_softmax_plan_create(fx.ctx, desc, &plan);
    assert_int_equal(plan != NULL, st == CLATTN_OK);
    clattn_softmax_plan_destroy(&plan);
    return st;
}

static clattn_status run_attention(const void *call)
{
    return clattn_attention_run(fx.plan, call);
}

static clattn_status run_softmax(const void *call)
{
    return clattn_softmax_run(fx.softmax, call);
}

static clattn_status run_merge(const void *call)
{
    return clattn_merge_run(fx.ctx, call);
}

static clattn_status run_rotary(const void *call)
{
    return clattn_rotary_run(fx.ctx, call);
}

static clattn_status run_append(const void *call)
{
    return clattn_append_run(fx.ctx, call);
}

// Gives `use` the struct `full` in every size. `first` is what the first version of it had.
static void read_sizes(const char *name, clattn_status (*use)(const void *), const void *full,
                       size_t known, size_t first)
{
    for (size_t size = 0; size <= known + MORE; size++) {
        const clattn_status want =
            size < first || size % WORD ? CLATTN_ERR_STRUCT_SIZE : CLATTN_OK;
        unsigned char *at = place(size);
        memcpy(at, full, size < known ? size : known);
        if (size > known)
            memset(at + known, 0, size - known);
        memcpy(at, &size, sizeof size);
        memset(fx.o, FILL, sizeof fx.o);
        const clattn_status got = use(at);
        if (got != want)
            fail_msg("%s of %zu bytes: %s", name, size, clattn_status_string(got));
        if (got != CLATTN_OK) {
            for (size_t i = 0; i < sizeof fx.o; i++)
                assert_int_equal(((unsigned char *)fx.o)[i], FILL);
        } else if (fx.writes) {
            assert_memory_equal(fx.o, fx.want, sizeof fx.o);
        }
        // A field of a newer version that is set can't be left aside.
        if (size > known) {
            at[size - 1] = 1;
            assert_int_equal(use(at), CLATTN_ERR_STRUCT_SIZE);
        }
    }
    // Beyond any page that a struct could fill nothing is read.
    unsigned char *at = place(known);
    memcpy(at, full, known);
    for (size_t size = 65536 + WORD; size; size = size > SIZE_MAX / 2 ? 0 : size * 2) {
        memcpy(at, &size, sizeof size);
        assert_int_equal(use(at), CLATTN_ERR_STRUCT_SIZE);
    }
}

static void open_all(void)
{
    if (fx.ctx)
        return;
    const clattn_context_desc c = context_desc();
    const clattn_attention_desc a = attention_desc();
    const clattn_softmax_desc s = softmax_desc();
    assert_int_equal(clattn_context_create(&c, &fx.ctx), CLATTN_OK);
    assert_int_equal(clattn_attention_plan_create(fx.ctx, &a, &fx.plan), CLATTN_OK);
    assert_int_equal(clattn_softmax_plan_create(fx.ctx, &s, &fx.softmax), CLATTN_OK);
}

// What the calls write is the same in every size: keeps what the whole struct gives.
static void keep_result(clattn_status (*use)(const void *), const void *full)
{
    open_all();
    assert_int_equal(use(full), CLATTN_OK);
    memcpy(fx.want, fx.o, sizeof fx.want);
    fx.writes = true;
}

static void test_descriptions(void **state)
{
    (void)state;
    open_all();
    fx.writes = false;
    const clattn_context_desc c = context_desc();
    const size_t first = offsetof(clattn_context_desc, cache_max_bytes);
    read_sizes("context_desc, count", count_devices, &c, sizeof c, first);
    read_sizes("context_desc, info", device_info, &c, sizeof c, first);
    read_sizes("context_desc, create", make_context, &c, sizeof c, first);
    const clattn_attention_desc a = attention_desc();
    read_sizes("attention_desc", make_plan, &a, sizeof a,
               SIZE_TO(clattn_attention_desc, dropout_p));
    const clattn_softmax_desc s = softmax_desc();
    read_sizes("softmax_desc", make_softmax_plan, &s, sizeof s,
               SIZE_TO(clattn_softmax_desc, max_len));
}

static void test_attention_call(void **state)
{
    (void)state;
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = call.len_kv = ROWS;
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(fx.q, sizeof fx.q);
    call.o.buf = clattn_host_buf(fx.o, sizeof fx.o);
    keep_result(run_attention, &call);
    read_sizes("attention_call", run_attention, &call, sizeof call,
               SIZE_TO(clattn_attention_call, workspace));
}

static void test_softmax_call(void **state)
{
    (void)state;
    clattn_softmax_call call;
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = COUNT / DIM;
    call.len = DIM;
    call.x = clattn_host_buf(fx.q, sizeof fx.q);
    call.y = clattn_host_buf(fx.o, sizeof fx.o);
    keep_result(run_softmax, &call);
    read_sizes("softmax_call", run_softmax, &call, sizeof call,
               SIZE_TO(clattn_softmax_call, workspace));
}

static void test_merge_call(void **state)
{
    (void)state;
    static float lse[2][BATCH * HEADS * ROWS];
    clattn_merge_call call;
    clattn_merge_call_init(&call, sizeof call);
    clattn_tensor parts[2] = {{.buf = clattn_host_buf(fx.q, sizeof fx.q)}};
    parts[1] = parts[0];
    const clattn_buf parts_lse[2] = {clattn_host_buf(lse[0], sizeof lse[0]),
                                     clattn_host_buf(lse[1], sizeof lse[1])};
    call.num_parts = 2;
    call.batch = BATCH;
    call.heads = HEADS;
    call.len_q = ROWS;
    call.dim_v = DIM;
    call.parts = parts;
    call.parts_lse = parts_lse;
    call.o.buf = clattn_host_buf(fx.o, sizeof fx.o);
    keep_result(run_merge, &call);
    read_sizes("merge_call", run_merge, &call, sizeof call, SIZE_TO(clattn_merge_call, lse));
}

static void test_rotary_call(void **state)
{
    (void)state;
    static float cosines[ROWS * DIM / 2], sines[ROWS * DIM / 2];
    clattn_rotary_call call;
    clattn_rotary_call_init(&call, sizeof call);
    assert_int_equal(clattn_rotary_tables(ROWS, DIM, 0.0, cosines, sines), CLATTN_OK);
    call.batch = BATCH;
    call.heads = HEADS;
    call.len = ROWS;
    call.dim = DIM;
    call.rotary.dim = DIM;
    call.rotary.positions = ROWS;
    call.rotary.cos_table = clattn_host_buf(cosines, sizeof cosines);
    call.rotary.sin_table = clattn_host_buf(sines, sizeof sines);
    call.x.buf = clattn_host_buf(fx.q, sizeof fx.q);
    call.y.buf = clattn_host_buf(fx.o, sizeof fx.o);
    keep_result(run_rotary, &call);
    read_sizes("rotary_call", run_rotary, &call, sizeof call,
               SIZE_TO(clattn_rotary_call, faults));
}

static void test_append_call(void **state)
{
    (void)state;
    clattn_append_call call;
    clattn_append_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.heads = HEADS;
    call.len_new = ROWS;
    call.dim_k = DIM;
    call.capacity = ROWS;
    call.k_new.buf = clattn_host_buf(fx.q, sizeof fx.q);
    call.k_cache.buf = clattn_host_buf(fx.o, sizeof fx.o);
    keep_result(run_append, &call);
    read_sizes("append_call", run_append, &call, sizeof call,
               SIZE_TO(clattn_append_call, faults));
}

// ---- structs that the library fills ------------------------------------------------------------

static clattn_status get_device(void *info)
{
    const clattn_context_desc desc = context_desc();
    return clattn_device_get_info(&desc, 0, info);
}

static clattn_status get_own_device(void *info)
{
    return clattn_context_get_device_info(fx.ctx, info);
}

static clattn_status get_plan(void *info)
{
    return clattn_plan_get_info(fx.plan, info);
}

static clattn_status get_softmax(void *info)
{
    return clattn_softmax_get_info(fx.softmax, info);
}

// Has a struct of every size filled, which is `known` bytes long here.
static void write_sizes(const char *name, clattn_status (*get)(void *), size_t known, size_t first)
{
    unsigned char *whole = malloc(known);
    assert_non_null(whole);
    memset(whole, FILL, known);
    memcpy(whole, &known, sizeof known);
    assert_int_equal(get(whole), CLATTN_OK);
    for (size_t size = 0; size <= known + MORE; size++) {
        const clattn_status want =
            size < first || size % WORD ? CLATTN_ERR_STRUCT_SIZE : CLATTN_OK;
        unsigned char *at = place(size);
        memcpy(at, &size, sizeof size);
        const clattn_status got = get(at);
        if (got != want)
            fail_msg("%s of %zu bytes: %s", name, size, clattn_status_string(got));
        assert_memory_equal(at, &size, sizeof size);
        const size_t filled = got != CLATTN_OK ? WORD : size < known ? size : known;
        assert_memory_equal(at + WORD, whole + WORD, filled - WORD);
        for (const unsigned char *byte = at + filled; byte < fx.end; byte++)
            assert_int_equal(*byte, FILL);
    }
    free(whole);
}

static void test_infos(void **state)
{
    (void)state;
    open_all();
    const size_t device = SIZE_TO(clattn_device_info, rank);
    write_sizes("device_info", get_device, sizeof(clattn_device_info), device);
    write_sizes("device_info of a context", get_own_device, sizeof(clattn_device_info), device);
    write_sizes("plan_info", get_plan, sizeof(clattn_plan_info),
                SIZE_TO(clattn_plan_info, build_options));
    write_sizes("softmax_info", get_softmax, sizeof(clattn_softmax_info),
                SIZE_TO(clattn_softmax_info, reason));
}

// ---- defaults ----------------------------------------------------------------------------------

#define INIT(type, size)                                                                           \
    do {                                                                                           \
        type##_init((type *)(void *)place(size), size);                                            \
        assert_memory_equal(fx.end - (size), &(size), sizeof(size));                               \
        for (const unsigned char *byte = fx.end - (size) + WORD; byte < fx.end; byte++)            \
            assert_int_equal(*byte, 0);                                                            \
    } while (0)

// They set as many bytes as the caller has, which may be more than the library knows.
static void test_defaults(void **state)
{
    (void)state;
    for (size_t size = WORD; size < 2048; size += WORD) {
        INIT(clattn_context_desc, size);
        INIT(clattn_attention_desc, size);
        INIT(clattn_attention_call, size);
        INIT(clattn_softmax_desc, size);
        INIT(clattn_softmax_call, size);
        INIT(clattn_merge_call, size);
        INIT(clattn_rotary_call, size);
        INIT(clattn_append_call, size);
    }
}

static int teardown(void **state)
{
    (void)state;
    clattn_softmax_plan_destroy(&fx.softmax);
    clattn_plan_destroy(&fx.plan);
    clattn_context_destroy(&fx.ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptions),  cmocka_unit_test(test_attention_call),
        cmocka_unit_test(test_softmax_call),  cmocka_unit_test(test_merge_call),
        cmocka_unit_test(test_rotary_call),   cmocka_unit_test(test_append_call),
        cmocka_unit_test(test_infos),         cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests_name("struct sizes", tests, setup, teardown);
}
