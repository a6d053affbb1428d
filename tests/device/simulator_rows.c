// SPDX-License-Identifier: Apache-2.0
// What is expected comes from the CPU path, which has tests of its own against double.
#define CLATTN_EXPERIMENTAL
#include "simulator_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_lib.h"

enum { F32 = CLATTN_DTYPE_F32, F16 = CLATTN_DTYPE_F16, BF16 = CLATTN_DTYPE_BF16,
       I8 = CLATTN_DTYPE_I8, TENSORS_MAX = 24 };

static struct test_device *simulator, host;

// ---- the same call on the device and on the CPU path --------------------------------------------

// The tensors of one call in one place; outputs are those that `written` has.
struct set {
    struct tens t[TENSORS_MAX];
    bool written[TENSORS_MAX];
    int count;
};

static void enter(bool on_device)
{
    memset(&kd, 0, sizeof kd);
    kd.opencl = on_device;
    kd.ctx = on_device ? simulator->ctx : host.ctx;
    kd.info = on_device ? &simulator->info : &host.info;
}

static struct tens *add(struct set *s, bool on_device, int32_t dtype, int64_t batch, int64_t heads,
                        int64_t len, int64_t dim, enum kv_form form, bool written)
{
    struct tens *t = &s->t[s->count];
    assert_true(s->count < TENSORS_MAX);
    tens_make(t, on_device, dtype, batch, heads, len, dim, form);
    if (!written && dtype != KV_I32)
        tens_fill(t, 77 + (uint64_t)s->count, 2.0);
    s->written[s->count++] = written;
    return t;
}

static void push(struct set *s)
{
    for (int n = 0; n < s->count; n++)
        tens_push(&s->t[n]);
}

// Pulls both, compares what the device wrote, and frees them.
static void compare_sets(struct set *device_set, struct set *host_set, const char *what)
{
    enter(true);
    for (int n = 0; n < device_set->count; n++)
        tens_pull(&device_set->t[n], what, device_set->written[n]);
    enter(false);
    for (int n = 0; n < host_set->count; n++) {
        struct tens *a = &device_set->t[n], *b = &host_set->t[n];
        tens_pull(b, what, host_set->written[n]);
        for (int64_t at = 0; at < a->extent[0] * a->extent[1] * a->extent[2] * a->dim; at++) {
            const int64_t d = at % a->dim, row = at / a->dim, i = row % a->extent[2];
            const int64_t h = row / a->extent[2] % a->extent[1];
            const int64_t o = row / a->extent[2] / a->extent[1];
            const double want = tens_get(b, o, h, i, d), got = tens_get(a, o, h, i, d);
            // A value between two int8 may go to either.
            kv_check(what, at, got, want, a->dtype == I8 ? 1 : 2 * kv_tolerance(a->dtype, want));
        }
        tens_free(b);
        tens_free(a);
    }
    enter(true);
}

static void ints(struct set *s, bool on_device, const int32_t *value, int count, struct tens **out)
{
    *out = add(s, on_device, KV_I32, 1, 1, count, 1, KV_BHSD, false);
    for (int n = 0; n < count; n++)
        vec_set(*out, n, value[n]);
}

// ---- softmax.cl ---------------------------------------------------------------------------------

struct softmax {
    int32_t algo, kernel, x, y;
    int64_t len;
};

static void softmax_in(struct set *s, bool on_device, const struct softmax *m)
{
    enum { ROWS = 3 };
    clattn_softmax_desc desc;
    clattn_softmax_call call;
    clattn_softmax_plan *plan = NULL;
    enter(on_device);
    // Rows are those of an axis with gaps between them.
    struct tens *x = add(s, on_device, m->x, 1, 1, ROWS, m->len, KV_GAPS, false);
    struct tens *y = add(s, on_device, m->y, 1, 1, ROWS, m->len, KV_GAPS, true);
    struct tens *lse = add(s, on_device, F32, 1, 1, ROWS, 1, KV_BHSD, true);
    tens_set(x, 0, 0, 1, m->len / 2, m->algo == CLATTN_SOFTMAX_NAIVE ? 3.0 : 40.0);
    push(s);
    clattn_softmax_desc_init(&desc, sizeof desc);
    desc.algo = m->algo;
    desc.path = on_device ? CLATTN_SOFTMAX_PATH_OPENCL : CLATTN_SOFTMAX_PATH_HOST;
    desc.kernel = on_device ? m->kernel : CLATTN_KERNEL_AUTO;
    desc.dtype_x = m->x;
    desc.dtype_y = m->y;
    desc.features = CLATTN_SOFTMAX_LSE;
    desc.flags = CLATTN_NO_FALLBACK;
    KV_RUN(clattn_softmax_plan_create(kd.ctx, &desc, &plan));
    clattn_softmax_call_init(&call, sizeof call);
    call.rows = ROWS;
    call.len = m->len;
    call.x = x->t.buf;
    call.y = y->t.buf;
    call.lse = lse->t.buf;
    call.stride_x = x->stride[2];
    call.stride_y = y->stride[2];
    KV_RUN(clattn_softmax_run(plan, &call));
    clattn_softmax_plan_destroy(&plan);
}

// Work-groups and vectors; each algorithm; each type; a few entries and more than an item's, which
// the plan's own trial cuts into parts, too.
static void test_softmax(void **state)
{
    static const int32_t types[][2] = {{F32, F32}, {F16, BF16}, {BF16, F16}};
    (void)state;
    for (int n = 0; n < 6; n++) {
        struct softmax m = {.algo = CLATTN_SOFTMAX_NAIVE + n / 2,
                            .kernel = n % 2 ? CLATTN_KERNEL_VECTOR : CLATTN_KERNEL_GROUP,
                            .x = types[n % 3][0], .y = types[n % 3][1]};
        const int64_t lengths[] = {1, 75};
        for (int k = 0; k < 2; k++) {
            struct set device_set = {.count = 0}, host_set = {.count = 0};
            m.len = lengths[k];
            softmax_in(&device_set, true, &m);
            softmax_in(&host_set, false, &m);
            compare_sets(&device_set, &host_set, "softmax");
        }
    }
}

// ---- append.cl ----------------------------------------------------------------------------------

struct append {
    int32_t dtype_new, cache, dim_k, dim_v, page_size, turned, pairs;
    bool offsets;
};

static void append_in(struct set *s, bool on_device, const struct append *m)
{
    enum { BATCH = 2, HEADS = 2, NEW = 3, ROOM = 9, POSITIONS = 12 };
    static const int32_t lens[] = {4, 0}, counts[] = {3, 2}, table[] = {1, 3, 0, 2, 5, 4};
    static const int32_t first[] = {2, 7};
    clattn_append_call c;
    struct tens *t;
    enter(on_device);
    const int32_t per = m->page_size, outer = per ? 6 : BATCH, rows = per ? per : ROOM;
    clattn_append_call_init(&c, sizeof c);
    c.flags = CLATTN_NO_FALLBACK;
    c.dtype_new = m->dtype_new;
    c.dtype_cache = m->cache;
    c.batch = BATCH;
    c.heads = HEADS;
    c.len_new = NEW;
    c.dim_k = m->dim_k;
    c.dim_v = m->dim_v;
    c.capacity = per ? 0 : ROOM;
    c.page_size = per;
    c.num_pages = per ? 6 : 0;
    c.max_pages = per ? 3 : 0;
    c.k_new = add(s, on_device, m->dtype_new, BATCH, HEADS, NEW, m->dim_k, KV_GAPS, false)->t;
    c.v_new = add(s, on_device, m->dtype_new, BATCH, HEADS, NEW, m->dim_v, KV_BSHD, false)->t;
    c.k_cache = add(s, on_device, m->cache, outer, HEADS, rows, m->dim_k, KV_GAPS, true)->t;
    c.v_cache = add(s, on_device, m->cache, outer, HEADS, rows, m->dim_v, KV_BHSD, true)->t;
    if (m->cache == I8) {
        c.k_scale = add(s, on_device, F32, outer, HEADS, rows, 1, KV_BHSD, true)->t;
        c.v_scale = add(s, on_device, F32, outer, HEADS, rows, 1, KV_BHSD, true)->t;
    }
    if (per) {
        ints(s, on_device, table, 6, &t);
        c.page_table = t->t.buf;
    }
    ints(s, on_device, lens, BATCH, &t);
    c.lens = t->t.buf;
    ints(s, on_device, counts, BATCH, &t);
    c.new_lens = t->t.buf;
    if (m->turned) {
        c.rotary.dim = m->turned;
        c.rotary.pairs = m->pairs;
        c.rotary.positions = POSITIONS;
        const int32_t n = m->turned / 2;
        c.rotary.cos_table = add(s, on_device, F32, 1, 1, POSITIONS, n, KV_BHSD, false)->t.buf;
        c.rotary.sin_table = add(s, on_device, F32, 1, 1, POSITIONS, n, KV_BHSD, false)->t.buf;
    }
    if (m->offsets) {
        ints(s, on_device, first, BATCH, &t);
        c.rotary.offsets = t->t.buf;
    }
    push(s);
    KV_RUN(clattn_append_run(kd.ctx, &c));
}

static void test_append(void **state)
{
    static const struct append list[] = {
        {F32, F32, 8, 5, 0, 8, CLATTN_ROTARY_INTERLEAVED, false},
        {F16, I8, 10, 6, 4, 6, CLATTN_ROTARY_HALF_SPLIT, true},
        {BF16, F16, 7, 12, 3, 0, 0, false},
        {F32, I8, 300, 3, 0, 0, 0, false}, // more quads than items
        {F16, BF16, 9, 9, 0, 6, CLATTN_ROTARY_INTERLEAVED, true},
    };
    (void)state;
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        struct set device_set = {.count = 0}, host_set = {.count = 0};
        append_in(&device_set, true, &list[n]);
        append_in(&host_set, false, &list[n]);
        compare_sets(&device_set, &host_set, "append");
    }
}

// ---- rotary.cl ----------------------------------------------------------------------------------

static void rotary_in(struct set *s, bool on_device, int32_t dtype, int32_t dim, int32_t turned,
                      int32_t pairs)
{
    enum { BATCH = 2, HEADS = 3, LEN = 2, POSITIONS = 9 };
    static const int32_t first[] = {5, 0};
    clattn_rotary_call c;
    struct tens *t;
    enter(on_device);
    clattn_rotary_call_init(&c, sizeof c);
    c.flags = CLATTN_NO_FALLBACK;
    c.dtype = dtype;
    c.batch = BATCH;
    c.heads = HEADS;
    c.len = LEN;
    c.dim = dim;
    c.rotary.dim = turned;
    c.rotary.pairs = pairs;
    c.rotary.positions = POSITIONS;
    c.rotary.start = 2;
    c.rotary.cos_table = add(s, on_device, F32, 1, 1, POSITIONS, turned / 2, KV_BHSD, false)->t.buf;
    c.rotary.sin_table = add(s, on_device, F32, 1, 1, POSITIONS, turned / 2, KV_BHSD, false)->t.buf;
    ints(s, on_device, first, BATCH, &t);
    c.rotary.offsets = t->t.buf;
    c.x = add(s, on_device, dtype, BATCH, HEADS, LEN, dim, KV_GAPS, false)->t;
    c.y = add(s, on_device, dtype, BATCH, HEADS, LEN, dim, KV_BSHD, true)->t;
    push(s);
    KV_RUN(clattn_rotary_run(kd.ctx, &c));
}

static void test_rotary(void **state)
{
    enum { INTERLEAVED = CLATTN_ROTARY_INTERLEAVED, HALVES = CLATTN_ROTARY_HALF_SPLIT };
    // All channels and some, halves that are no quads, more quads than items.
    static const struct {
        int32_t type, dim, turned, pairs;
    } list[] = {{F32, 6, 6, HALVES},       {F16, 7, 4, HALVES},     {BF16, 270, 136, HALVES},
                {F32, 9, 6, INTERLEAVED}, {F16, 270, 268, INTERLEAVED}, {BF16, 8, 8, INTERLEAVED}};
    (void)state;
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        struct set device_set = {.count = 0}, host_set = {.count = 0};
        rotary_in(&device_set, true, list[n].type, list[n].dim, list[n].turned, list[n].pairs);
        rotary_in(&host_set, false, list[n].type, list[n].dim, list[n].turned, list[n].pairs);
        compare_sets(&device_set, &host_set, "rotary");
    }
}

// ---- merge_parts.cl -----------------------------------------------------------------------------

static void merge_in(struct set *s, bool on_device, int32_t parts, int32_t type, int32_t type_o,
                     int32_t dim, bool sinks)
{
    enum { BATCH = 2, HEADS = 2, LEN = 2, ROWS = BATCH * HEADS * LEN };
    static clattn_tensor part[CLATTN_MERGE_MAX_PARTS];
    static clattn_buf part_lse[CLATTN_MERGE_MAX_PARTS];
    clattn_merge_call c;
    enter(on_device);
    clattn_merge_call_init(&c, sizeof c);
    c.flags = CLATTN_NO_FALLBACK;
    c.num_parts = parts;
    c.batch = BATCH;
    c.heads = HEADS;
    c.len_q = LEN;
    c.dim_v = dim;
    c.dtype_parts = type;
    c.dtype_o = type_o;
    c.parts = part;
    c.parts_lse = part_lse;
    for (int32_t n = 0; n < parts; n++) {
        part[n] = add(s, on_device, type, BATCH, HEADS, LEN, dim, n % 3, false)->t;
        struct tens *lse = add(s, on_device, F32, 1, 1, ROWS, 1, KV_BHSD, false);
        vec_set(lse, n % ROWS, -(double)INFINITY);
        part_lse[n] = lse->t.buf;
    }
    if (sinks)
        c.sinks = add(s, on_device, F32, 1, 1, HEADS, 1, KV_BHSD, false)->t.buf;
    c.o = add(s, on_device, type_o, BATCH, HEADS, LEN, dim, KV_GAPS, true)->t;
    // Every other time it takes the place of a part's, which other items of the row still read.
    if (parts % 2) {
        c.lse = add(s, on_device, F32, 1, 1, ROWS, 1, KV_BHSD, true)->t.buf;
    } else {
        c.lse = part_lse[1];
        s->written[3] = true;
    }
    push(s);
    KV_RUN(clattn_merge_run(kd.ctx, &c));
}

static void test_merge_parts(void **state)
{
    static const struct {
        int32_t parts, type, type_o, dim;
        bool sinks;
    } list[] = {{2, F32, F32, 8, false}, {8, F16, BF16, 7, true}, {3, BF16, F16, 270, false}};
    (void)state;
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        struct set device_set = {.count = 0}, host_set = {.count = 0};
        merge_in(&device_set, true, list[n].parts, list[n].type, list[n].type_o, list[n].dim,
                 list[n].sinks);
        merge_in(&host_set, false, list[n].parts, list[n].type, list[n].type_o, list[n].dim,
                 list[n].sinks);
        compare_sets(&device_set, &host_set, "merge");
    }
}

// ---- peak.cl ------------------------------------------------------------------------------------

// What it measures means nothing here; that it ends and reads what it may read does. The products
// touch no memory but their results, and take half a minute.
static void test_peak(void **state)
{
    double value = 1;
    (void)state;
    enter(true);
    if (getenv("CLATTN_TEST_PAIRS"))
        KV_RUN(clattn_context_measure(kd.ctx, CLATTN_MEASURE_FMA_F32_SHORT, 0, &value));
    assert_true(value > 0);
    KV_RUN(clattn_context_measure(kd.ctx, CLATTN_MEASURE_READ, 4100, &value));
    assert_true(value > 0);
}

int simulator_rows(struct test_device *device, struct CMUnitTest *tests)
{
    static const struct CMUnitTest list[] = {
        {"softmax", test_softmax, NULL, NULL, NULL},
        {"append", test_append, NULL, NULL, NULL},
        {"rotary", test_rotary, NULL, NULL, NULL},
        {"merge_parts", test_merge_parts, NULL, NULL, NULL},
        {"peak", test_peak, NULL, NULL, NULL},
    };
    simulator = device;
    if (!host.ctx && !device_open_builtin(&host))
        return 0;
    memcpy(tests, list, sizeof list);
    return (int)(sizeof list / sizeof *list);
}
