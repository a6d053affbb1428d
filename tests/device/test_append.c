// SPDX-License-Identifier: Apache-2.0
// Appending to caches: every pair of types, contiguous and in pages, keys turned on the way,
// lengths of each sequence, rows that must stay, refusals and faults, and attention over what was
// appended.
#include "kv_lib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "thread.h"

enum { BATCH = 3, HEADS = 2, NEW = 4, CAPACITY = 13, PAGE = 4, PAGES = 11, MAX_PAGES = 4 };
enum { POSITIONS = 30 };

static const int held[BATCH] = {0, 5, 9};      // rows there before
static const int fresh[BATCH] = {4, 2, 0};     // tokens that count

struct append {
    int dim_k, dim_v, turned;
    bool paged, counted; // in pages; with new_lens
    int32_t cache_type;
    struct tens k_new, v_new, lens, new_lens, table, cosines, sines;
    struct tens k_cache, v_cache, k_scale, v_scale, faults;
    clattn_append_call call;
};

// Pages of each sequence are in no order; entries behind the last row are no pages.
static int page_of(int b, int n)
{
    static const int first[BATCH] = {0, 1, 4}; // pages of the sequences before
    const int rows = held[b] + NEW;
    return n * PAGE < rows ? ((first[b] + n) * 7 + 3) % PAGES : n % 2 ? -7 : 1 << 30;
}

static void make_memory(struct append *t, bool on_device, int32_t from, enum kv_form form)
{
    const int pages = t->paged ? PAGES : BATCH, rows = t->paged ? PAGE : CAPACITY;
    struct tens *const ints[] = {&t->lens, &t->new_lens, &t->table, &t->faults};
    const int sizes[] = {BATCH, BATCH, BATCH * MAX_PAGES, 1};
    tens_make(&t->k_new, on_device, from, BATCH, HEADS, NEW, t->dim_k, form);
    tens_make(&t->v_new, on_device, from, BATCH, HEADS, NEW, t->dim_v, KV_BSHD);
    for (int n = 0; n < 4; n++)
        vec_make(ints[n], on_device, KV_I32, sizes[n]);
    vec_make(&t->cosines, on_device, CLATTN_DTYPE_F32, POSITIONS * 16);
    vec_make(&t->sines, on_device, CLATTN_DTYPE_F32, POSITIONS * 16);
    tens_make(&t->k_cache, on_device, t->cache_type, pages, HEADS, rows, t->dim_k, form);
    tens_make(&t->v_cache, on_device, t->cache_type, pages, HEADS, rows, t->dim_v,
              form == KV_BHSD ? KV_GAPS : KV_BHSD);
    tens_make(&t->k_scale, on_device, CLATTN_DTYPE_F32, pages, HEADS, rows, 1, KV_BHSD);
    tens_make(&t->v_scale, on_device, CLATTN_DTYPE_F32, pages, HEADS, rows, 1, KV_BSHD);
}

static void fill_memory(struct append *t)
{
    float c[POSITIONS * 16], s[POSITIONS * 16];
    const int r = t->turned ? t->turned : 2;
    assert_int_equal(clattn_rotary_tables(POSITIONS, r, 0.0, c, s), CLATTN_OK);
    for (int n = 0; n < POSITIONS * r / 2; n++) {
        vec_set(&t->cosines, n, (double)c[n]);
        vec_set(&t->sines, n, (double)s[n]);
    }
    for (int b = 0; b < BATCH; b++) {
        vec_set(&t->lens, b, held[b]);
        vec_set(&t->new_lens, b, fresh[b]);
        for (int n = 0; n < MAX_PAGES; n++)
            vec_set(&t->table, b * MAX_PAGES + n, page_of(b, n));
    }
    vec_set(&t->faults, 0, 0);
    tens_fill(&t->k_new, 11, 3.0);
    tens_fill(&t->v_new, 12, 0.2);
    tens_fill(&t->k_cache, 13, 100.0);
    tens_fill(&t->v_cache, 14, 100.0);
    tens_fill(&t->k_scale, 15, 1.0);
    tens_fill(&t->v_scale, 16, 1.0);
    for (int d = 0; d < t->dim_v; d++) // a row of zeros, whose scale is 0
        tens_set(&t->v_new, 0, 1, 2, d, 0.0);
}

static void open_append(struct append *t, bool on_device, int32_t from, int32_t to, bool paged,
                        bool counted, int turned, int dim_k, int dim_v, enum kv_form form)
{
    clattn_append_call *c = &t->call;
    memset(t, 0, sizeof *t);
    t->dim_k = dim_k;
    t->dim_v = dim_v;
    t->turned = turned;
    t->paged = paged;
    t->counted = counted;
    t->cache_type = to;
    make_memory(t, on_device, from, form);
    fill_memory(t);
    clattn_append_call_init(c, sizeof *c);
    c->flags = CLATTN_NO_FALLBACK;
    c->dtype_new = from;
    c->dtype_cache = to;
    c->batch = BATCH;
    c->heads = HEADS;
    c->len_new = NEW;
    c->dim_k = dim_k;
    c->dim_v = dim_v;
    c->k_new = t->k_new.t;
    c->v_new = t->v_new.t;
    c->k_cache = t->k_cache.t;
    c->v_cache = t->v_cache.t;
    c->lens = t->lens.t.buf;
    c->faults = t->faults.t.buf;
    if (counted)
        c->new_lens = t->new_lens.t.buf;
    if (to == CLATTN_DTYPE_I8) {
        c->k_scale = t->k_scale.t;
        c->v_scale = t->v_scale.t;
    }
    if (paged) {
        c->page_size = PAGE;
        c->num_pages = PAGES;
        c->max_pages = MAX_PAGES;
        c->page_table = t->table.t.buf;
    } else {
        c->capacity = CAPACITY;
    }
    if (turned) {
        c->rotary.dim = turned;
        c->rotary.pairs = turned % 4 ? CLATTN_ROTARY_HALF_SPLIT : CLATTN_ROTARY_INTERLEAVED;
        c->rotary.positions = POSITIONS;
        c->rotary.cos_table = t->cosines.t.buf;
        c->rotary.sin_table = t->sines.t.buf;
    }
}

// Every tensor of the struct; an array would be of pointers into it.
#define EACH(t, does)                                                                              \
    do {                                                                                           \
        struct tens *const all_[] = {&(t)->k_new,   &(t)->v_new,   &(t)->lens,    &(t)->new_lens,  \
                                     &(t)->table,   &(t)->cosines, &(t)->sines,   &(t)->k_cache,   \
                                     &(t)->v_cache, &(t)->k_scale, &(t)->v_scale, &(t)->faults};   \
        for (size_t n_ = 0; n_ < sizeof all_ / sizeof *all_; n_++)                                 \
            does(all_[n_]);                                                                        \
    } while (0)

// Channel d of a new key at its position.
static double turned_key(const struct append *t, int b, int h, int i, int d, int p)
{
    const int r = t->turned;
    if (d >= r)
        return tens_get(&t->k_new, b, h, i, d);
    const bool half = t->call.rotary.pairs == CLATTN_ROTARY_HALF_SPLIT;
    const int n = half ? d % (r / 2) : d / 2;
    const double x = tens_get(&t->k_new, b, h, i, half ? n : 2 * n);
    const double y = tens_get(&t->k_new, b, h, i, half ? n + r / 2 : 2 * n + 1);
    const double c = vec_get(&t->cosines, p * (r / 2) + n), s = vec_get(&t->sines, p * (r / 2) + n);
    return (half ? d < r / 2 : d % 2 == 0) ? x * c - y * s : x * s + y * c;
}

// The row of the cache that holds these numbers.
static void check_row(const char *what, const struct tens *cache, const struct tens *scale,
                      int page, int h, int row, const double *x)
{
    const bool i8 = cache->dtype == CLATTN_DTYPE_I8;
    const double s = i8 ? tens_get(scale, page, h, row, 0) : 0.0;
    double largest = 0.0;
    bool finite = true;
    for (int64_t d = 0; d < cache->dim; d++) {
        largest = fmax(largest, fabs(x[d]));
        finite = finite && isfinite(x[d]);
    }
    if (i8)
        kv_check("scale", row, s, finite ? largest / 127.0 : NAN, 1e-6 * largest);
    for (int64_t d = 0; d < cache->dim; d++) {
        const double got = tens_get(cache, page, h, row, d);
        if (!i8)
            kv_check(what, d, got, x[d], kv_tolerance(cache->dtype, x[d]) + 2e-6);
        else
            kv_check(what, d, finite ? got * s : got, finite ? x[d] : 0.0,
                     s * (0.5 + 1e-4) + 1e-30);
    }
}

// That no byte of a row changed.
static void check_kept(const char *what, const struct tens *t, int page, int h, int row)
{
    for (int64_t d = 0; d < t->dim; d++) {
        struct tens was = *t;
        was.now = t->before;
        const double a = tens_get(t, page, h, row, d), b = tens_get(&was, page, h, row, d);
        if (a != b)
            fail_msg("%s: page %d, head %d, row %d was written: %g, was %g", what, page, h, row, a,
                     b);
    }
}

// Where token i of sequence b went; false where nothing may be written.
typedef bool (*place_fn)(const struct append *t, int b, int i, int *page, int *row);

static bool in_cache(const struct append *t, int b, int i, int *page, int *row)
{
    const int j = held[b] + i;
    *page = t->paged ? page_of(b, j / PAGE) : b;
    *row = t->paged ? j % PAGE : j;
    return i < (t->counted ? fresh[b] : NEW);
}

static void check_caches(struct append *t, place_fn place)
{
    const int pages = t->paged ? PAGES : BATCH, rows = t->paged ? PAGE : CAPACITY;
    bool written[PAGES][CAPACITY] = {{false}};
    tens_pull(&t->k_cache, "k_cache", true);
    tens_pull(&t->v_cache, "v_cache", true);
    tens_pull(&t->k_scale, "k_scale", t->cache_type == CLATTN_DTYPE_I8);
    tens_pull(&t->v_scale, "v_scale", t->cache_type == CLATTN_DTYPE_I8);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < NEW; i++) {
            int page, row;
            double x[256];
            if (!place(t, b, i, &page, &row))
                continue;
            written[page][row] = true;
            for (int h = 0; h < HEADS; h++) {
                const int p = t->call.rotary.start + held[b] + i;
                for (int d = 0; d < t->dim_k; d++)
                    x[d] = turned_key(t, b, h, i, d, p);
                check_row("key", &t->k_cache, &t->k_scale, page, h, row, x);
                for (int d = 0; d < t->dim_v; d++)
                    x[d] = tens_get(&t->v_new, b, h, i, d);
                check_row("value", &t->v_cache, &t->v_scale, page, h, row, x);
            }
        }
    for (int page = 0; page < pages; page++)
        for (int row = 0; row < rows; row++)
            for (int h = 0; h < HEADS && !written[page][row]; h++) {
                check_kept("k_cache", &t->k_cache, page, h, row);
                check_kept("v_cache", &t->v_cache, page, h, row);
                check_kept("k_scale", &t->k_scale, page, h, row);
                check_kept("v_scale", &t->v_scale, page, h, row);
            }
}

static void test_types(void **state)
{
    static const int dims[][3] = {{64, 32, 8}, {7, 7, 0}, {131, 66, 30}}; // K, V, turned
    struct append t;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int32_t from = 0; from <= CLATTN_DTYPE_BF16; from++)
            for (int32_t to = 0; to <= CLATTN_DTYPE_I8; to++)
                for (int n = 0; n < 6; n++) {
                    const int *d = dims[n % 3];
                    open_append(&t, place == 1, from, to, n % 2, n < 4, d[2], d[0], d[1],
                                (enum kv_form)((n + from) % KV_FORMS));
                    EACH(&t, tens_push);
                    KV_RUN(clattn_append_run(kd.ctx, &t.call));
                    check_caches(&t, in_cache);
                    tens_pull(&t.faults, "faults", false);
                    tens_pull(&t.k_new, "k_new", false);
                    EACH(&t, tens_free);
                }
}

// Host numbers beside caches of the device, keys alone, no lengths, a start.
static void test_options(void **state)
{
    struct append t, host;
    (void)state;
    open_append(&t, kd.opencl, CLATTN_DTYPE_F16, CLATTN_DTYPE_F32, true, true, 8, 24, 24, KV_GAPS);
    open_append(&host, false, CLATTN_DTYPE_F16, CLATTN_DTYPE_F32, true, true, 8, 24, 24, KV_GAPS);
    EACH(&t, tens_push);
    t.call.lens = host.lens.t.buf;
    t.call.new_lens = host.new_lens.t.buf;
    t.call.page_table = host.table.t.buf;
    t.call.k_new = host.k_new.t;
    t.call.rotary.start = 7;
    t.call.rotary.cos_table = host.cosines.t.buf;
    KV_RUN(clattn_append_run(kd.ctx, &t.call));
    check_caches(&t, in_cache);
    EACH(&host, tens_free);
    EACH(&t, tens_free);

    open_append(&t, kd.opencl, CLATTN_DTYPE_F32, CLATTN_DTYPE_I8, false, false, 0, 24, 24, KV_BHSD);
    EACH(&t, tens_push);
    t.call.lens.kind = CLATTN_BUF_ABSENT;
    t.call.v_new.buf.kind = t.call.v_cache.buf.kind = t.call.v_scale.buf.kind = CLATTN_BUF_ABSENT;
    KV_RUN(clattn_append_run(kd.ctx, &t.call));
    tens_pull(&t.k_cache, "k_cache", true);
    tens_pull(&t.k_scale, "k_scale", true);
    tens_pull(&t.v_cache, "v_cache", false);
    tens_pull(&t.v_scale, "v_scale", false);
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int j = 0; j < CAPACITY; j++) {
                double x[24];
                for (int d = 0; d < 24 && j < NEW; d++)
                    x[d] = tens_get(&t.k_new, b, h, j, d);
                if (j < NEW)
                    check_row("key", &t.k_cache, &t.k_scale, b, h, j, x);
                else
                    check_kept("k_cache", &t.k_cache, b, h, j);
            }
    EACH(&t, tens_free);
}

// K and V page by page in one pool.
static void test_interleaved(void **state)
{
    enum { DIM = 20, HALF = PAGE * HEADS * DIM };
    (void)state;
    for (int32_t type = 0; type <= CLATTN_DTYPE_BF16; type++) {
        const size_t e = type == CLATTN_DTYPE_F32 ? 4 : 2;
        struct append t;
        struct tens pool;
        open_append(&t, kd.opencl, type, type, true, true, 0, DIM, DIM, KV_BHSD);
        tens_make(&pool, kd.opencl, type, PAGES, 1, 2 * PAGE * HEADS, DIM, KV_BHSD);
        tens_fill(&pool, 3, 9.0);
        EACH(&t, tens_push);
        tens_push(&pool);
        clattn_tensor k = pool.t;
        k.layout = CLATTN_LAYOUT_STRIDED;
        k.stride_batch = 2 * HALF;
        k.stride_head = DIM;
        k.stride_seq = HEADS * DIM;
        t.call.k_cache = t.call.v_cache = k;
        t.call.v_cache.buf.offset_bytes += HALF * e;
        KV_RUN(clattn_append_run(kd.ctx, &t.call));
        tens_pull(&pool, "pool", true);
        for (int b = 0; b < BATCH; b++)
            for (int i = 0; i < fresh[b]; i++) {
                const int j = held[b] + i, page = page_of(b, j / PAGE);
                for (int h = 0; h < HEADS; h++)
                    for (int d = 0; d < DIM; d++) {
                        const int row = j % PAGE * HEADS + h;
                        kv_check("key", d, tens_get(&pool, page, 0, row, d),
                                 tens_get(&t.k_new, b, h, i, d), 0.0);
                        kv_check("value", d, tens_get(&pool, page, 0, PAGE * HEADS + row, d),
                                 tens_get(&t.v_new, b, h, i, d), 0.0);
                    }
            }
        // A shift that lets rows of the two meet is no such pool.
        t.call.v_cache.buf.offset_bytes -= e;
        kv_clear_log();
        kv_refused("rows that meet", clattn_append_run(kd.ctx, &t.call), CLATTN_ERR_OVERLAP,
                   "k_cache");
        tens_free(&pool);
        EACH(&t, tens_free);
    }
}

// A row that is not finite gets zeros and the scale NaN; its neighbours do not.
static void test_not_finite(void **state)
{
    struct append t;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int how = 0; how < 3; how++) {
            open_append(&t, place == 1, CLATTN_DTYPE_F32, CLATTN_DTYPE_I8, how == 1, false, 0, 70,
                        70, KV_BHSD);
            tens_set(&t.k_new, 1, 1, 2, 69, how == 0 ? NAN : how == 1 ? INFINITY : -INFINITY);
            tens_set(&t.v_new, 2, 0, 1, 0, how == 0 ? NAN : INFINITY);
            EACH(&t, tens_push);
            KV_RUN(clattn_append_run(kd.ctx, &t.call));
            check_caches(&t, in_cache);
            EACH(&t, tens_free);
        }
}

// ---- numbers on the device that can't be right -------------------------------------------------

static bool faulty_place(const struct append *t, int b, int i, int *page, int *row)
{
    if (b == 0 || (b == 2 && t->paged))
        return in_cache(t, b, i, page, row);
    const int first = b == 1 ? CAPACITY - 2 : 0; // behind 2 rows no room, or a length below 0
    *page = b;
    *row = first + i;
    return !t->paged && i < (b == 1 ? 2 : NEW);
}

static void test_faults(void **state)
{
    struct append t;
    (void)state;
    if (!kd.opencl)
        skip();
    for (int kind = 0; kind < 3; kind++) { // of pages, a number behind the pool, and a negative one
        const bool paged = kind > 0;
        open_append(&t, true, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, paged, true, 0, 24, 24, KV_BHSD);
        vec_set(&t.new_lens, 0, 4);
        vec_set(&t.new_lens, 1, paged ? 2 : NEW + 3);
        vec_set(&t.new_lens, 2, paged ? 0 : NEW);
        if (paged) { // both rows of the second sequence are in its second page
            vec_set(&t.table, MAX_PAGES + 1, kind == 1 ? PAGES : -1);
        } else {
            vec_set(&t.lens, 1, CAPACITY - 2);
            vec_set(&t.lens, 2, -1);
        }
        EACH(&t, tens_push);
        KV_RUN(clattn_append_run(kd.ctx, &t.call));
        check_caches(&t, faulty_place);
        tens_pull(&t.faults, "faults", true);
        assert_int_equal((int)vec_get(&t.faults, 0),
                         paged ? CLATTN_FAULT_PAGE : CLATTN_FAULT_LENGTH | CLATTN_FAULT_ROOM);
        EACH(&t, tens_free);
    }
    // Positions outside the tables; lengths above the cache.
    open_append(&t, true, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, false, true, 8, 24, 24, KV_BHSD);
    for (int b = 0; b < BATCH; b++) {
        vec_set(&t.new_lens, b, b == 1);
        vec_set(&t.lens, b, b == 1 ? 5 : b == 0 ? -1 : CAPACITY + 1);
    }
    t.call.rotary.positions = 5;
    t.call.rotary.start = 2;
    EACH(&t, tens_push);
    KV_RUN(clattn_append_run(kd.ctx, &t.call));
    tens_pull(&t.k_cache, "k_cache", true);
    tens_pull(&t.faults, "faults", true);
    assert_int_equal((int)vec_get(&t.faults, 0), CLATTN_FAULT_LENGTH | CLATTN_FAULT_POSITION);
    for (int d = 0; d < 24; d++)
        kv_check("key", d, tens_get(&t.k_cache, 1, 0, 5, d), turned_key(&t, 1, 0, 0, d, 4), 3e-6);
    EACH(&t, tens_free);
}

// ---- refusals ----------------------------------------------------------------------------------

#define REFUSE(change, want, says)                                                                 \
    do {                                                                                           \
        const clattn_append_call good = t.call;                                                    \
        change;                                                                                    \
        kv_clear_log();                                                                            \
        kv_refused(#change, clattn_append_run(kd.ctx, &t.call), want, says);                       \
        t.call = good;                                                                             \
        tens_pull(&t.k_cache, #change, false);                                                     \
        tens_pull(&t.v_cache, #change, false);                                                     \
        tens_pull(&t.k_scale, #change, false);                                                     \
    } while (0)
#define INVALID CLATTN_ERR_INVALID_ARGUMENT

static void test_refusals(void **state)
{
    struct append t;
    (void)state;
    open_append(&t, false, CLATTN_DTYPE_F32, CLATTN_DTYPE_I8, true, true, 8, 24, 24, KV_BHSD);
    EACH(&t, tens_push);
    REFUSE(t.call.struct_size = 16, CLATTN_ERR_STRUCT_SIZE, "struct_size is 16");
    REFUSE(t.call.flags = 2, INVALID, "flags has unknown bits 0x2");
    REFUSE(t.call.dtype_new = CLATTN_DTYPE_I8, CLATTN_ERR_UNSUPPORTED, "dtype_new is 3");
    REFUSE(t.call.dtype_cache = 4, INVALID, "dtype_cache is 4");
    REFUSE(t.call.batch = -1, INVALID, "batch is -1");
    REFUSE(t.call.heads = 0, INVALID, "heads is 0");
    REFUSE(t.call.dim_k = 0, INVALID, "dim_k is 0");
    REFUSE(t.call.dim_v = -3, INVALID, "dim_v is -3");
    REFUSE(t.call.dim_k = INT32_MAX, CLATTN_ERR_UNSUPPORTED, "k_new has 2147483647 channels");
    REFUSE(t.call.dim_v = INT32_MAX, CLATTN_ERR_UNSUPPORTED, "v_new has 2147483647 channels");
    REFUSE(t.call.capacity = 9, INVALID, "capacity 9");
    REFUSE(t.call.page_size = 0, INVALID, "page_size is 0");
    REFUSE(t.call.page_table.kind = 0, CLATTN_ERR_BUFFER_MISSING, "page_table is absent");
    REFUSE(t.call.k_scale.buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "k_scale is absent");
    REFUSE(t.call.v_new.buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "v_new is absent");
    REFUSE(t.call.v_cache.buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "v_cache is absent");
    REFUSE(t.call.dtype_cache = CLATTN_DTYPE_F16; t.call.k_cache.buf.size_bytes = 0;
           t.call.v_cache.buf.size_bytes = 0, INVALID, "k_scale is given");
    REFUSE(t.call.rotary.dim = 26, INVALID, "rotary.dim is 26");
    REFUSE(t.call.rotary.sin_table.kind = 0, CLATTN_ERR_BUFFER_MISSING, "rotary.sin_table");
    REFUSE(t.call.rotary.positions = 6, CLATTN_ERR_SHAPE, "sequence 1 has positions 5 to 6");
    REFUSE(t.call.k_cache.buf.size_bytes = 300, CLATTN_ERR_BUFFER_TOO_SMALL, "k_cache needs");
    REFUSE(t.call.v_cache = t.call.k_cache, CLATTN_ERR_OVERLAP, "k_cache");
    REFUSE(t.call.faults = t.call.lens, CLATTN_ERR_OVERLAP, "faults");
    REFUSE(vec_set(&t.lens, 1, -4), INVALID, "lens[1] is -4");
    REFUSE(vec_set(&t.lens, 1, 17), CLATTN_ERR_SHAPE, "lens[1] is 17, more than 16");
    REFUSE(vec_set(&t.lens, 1, 15), CLATTN_ERR_SHAPE,
           "sequence 1 has 15 rows and 2 new ones, the cache has room for 16");
    vec_set(&t.lens, 1, 5);
    REFUSE(vec_set(&t.new_lens, 0, NEW + 1), CLATTN_ERR_SHAPE, "new_lens[0] is 5, more than 4");
    REFUSE(vec_set(&t.new_lens, 0, -1), INVALID, "new_lens[0] is -1");
    vec_set(&t.new_lens, 0, fresh[0]);
    REFUSE(vec_set(&t.table, MAX_PAGES + 1, -1), INVALID,
           "page_table[1][1] is -1, not 0 to 10: new rows 5 to 6 of sequence 1");
    REFUSE(vec_set(&t.table, MAX_PAGES + 1, PAGES), INVALID, "page_table[1][1] is 11");
    vec_set(&t.table, MAX_PAGES + 1, page_of(1, 1));
    t.call.len_new = 0;
    KV_RUN(clattn_append_run(kd.ctx, (t.call.new_lens.kind = 0, &t.call)));
    tens_pull(&t.k_cache, "nothing new", false);
    t.call.len_new = NEW;
    t.call.new_lens = t.new_lens.t.buf;
    EACH(&t, tens_push);
    KV_RUN(clattn_append_run(kd.ctx, &t.call));
    check_caches(&t, in_cache);
    EACH(&t, tens_free);
}

// Nothing new for as many sequences as there can be: a minute of looking at each, without cause.
static void test_nothing_for_many(void **state)
{
    clattn_append_call c;
    (void)state;
    clattn_append_call_init(&c, sizeof c);
    c.batch = INT32_MAX;
    c.heads = 1;
    c.dim_k = 4;
    const clock_t begin = clock();
    KV_RUN(clattn_append_run(kd.ctx, &c));
    assert_true((clock() - begin) / CLOCKS_PER_SEC < 2);
}

// ---- attention ---------------------------------------------------------------------------------

static void attend(const struct append *t, struct tens *q, struct tens *o)
{
    clattn_attention_desc desc;
    clattn_attention_call call;
    clattn_plan *plan = NULL;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = t->dim_k;
    desc.dim_v = t->dim_v;
    desc.heads_q = desc.heads_kv = HEADS;
    desc.dtype_kv = t->cache_type;
    desc.features = CLATTN_FEATURE_KV_LENS | (t->paged ? CLATTN_FEATURE_PAGED : 0u);
    desc.page_size = t->paged ? PAGE : 0;
    desc.algo = CLATTN_ALGO_REFERENCE;
    KV_RUN(clattn_attention_plan_create(kd.ctx, &desc, &plan));
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = 2;
    call.len_kv = CAPACITY;
    call.num_pages = t->paged ? PAGES : 0;
    call.max_pages = t->paged ? MAX_PAGES : 0;
    call.q = q->t;
    call.k = t->k_cache.t;
    call.v = t->v_cache.t;
    call.o = o->t;
    call.kv_lens = t->lens.t.buf;
    if (t->paged)
        call.page_table = t->table.t.buf;
    if (t->cache_type == CLATTN_DTYPE_I8) {
        call.k_scale = t->k_scale.t;
        call.v_scale = t->v_scale.t;
    }
    KV_RUN(clattn_attention_run(plan, &call));
    clattn_plan_destroy(&plan);
}

// Tokens appended in two steps to pages and to a contiguous cache: attention can't tell them apart,
// and they are not nothing.
static void test_attention(void **state)
{
    (void)state;
    for (int32_t type = 0; type <= CLATTN_DTYPE_I8; type++) {
        struct tens q, o[2];
        tens_make(&q, false, CLATTN_DTYPE_F32, BATCH, HEADS, 2, 24, KV_BHSD);
        tens_fill(&q, 8, 2.0);
        for (int paged = 0; paged < 2; paged++) {
            struct append t;
            open_append(&t, kd.opencl, CLATTN_DTYPE_F32, type, paged, false, 8, 24, 40, KV_BHSD);
            tens_make(&o[paged], false, CLATTN_DTYPE_F32, BATCH, HEADS, 2, 40, KV_BHSD);
            for (int b = 0; b < BATCH; b++) {
                vec_set(&t.lens, b, 0);
                for (int n = 0; n < 3; n++)
                    vec_set(&t.table, b * MAX_PAGES + n, b * 3 + (n + b) % 3);
            }
            for (int step = 0; step < 2; step++) {
                tens_fill(&t.k_new, (uint64_t)(100 + step), 2.0);
                tens_fill(&t.v_new, (uint64_t)(200 + step), 2.0);
                if (step == 0)
                    EACH(&t, tens_push);
                tens_push(&t.k_new);
                tens_push(&t.v_new);
                KV_RUN(clattn_append_run(kd.ctx, &t.call));
                for (int b = 0; b < BATCH; b++)
                    vec_set(&t.lens, b, NEW * (step + 1));
                tens_push(&t.lens);
            }
            attend(&t, &q, &o[paged]);
            EACH(&t, tens_free);
        }
        assert_memory_equal(o[0].now, o[1].now, o[0].bytes);
        assert_true(fabs(tens_get(&o[0], 2, 1, 1, 39)) > 1e-4);
        tens_free(&q);
        tens_free(&o[0]);
        tens_free(&o[1]);
    }
}

// ---- threads ------------------------------------------------------------------------------------

enum { TURNS = 150, TURN_DIM = 4 };

struct appender {
    clattn_append_call call;
    int32_t row;
    float k_new[TURN_DIM];
    int failed;
};

static void append_rows(void *arg)
{
    struct appender *a = arg;
    for (int n = 0; n < TURNS; n++, a->row++) {
        for (int d = 0; d < TURN_DIM; d++)
            a->k_new[d] = (float)(a->row + 1);
        a->failed += clattn_append_run(kd.ctx, &a->call) != CLATTN_OK;
    }
}

// Two threads append to the same cache, each its own rows. The cache is a cl_mem; its scales are in
// host memory, which is no multiple of 16 there, so that no device works on it in place: they are
// brought to the device and back by each call, and none may get lost.
static void test_threads(void **state)
{
    static float scales[2 * TURNS + 1];
    struct appender a[2];
    clattn_buf cache = {0};
    (void)state;
    if (!kd.opencl)
        skip();
    assert_int_equal(clattn_mem_create(kd.ctx, 2 * TURNS * TURN_DIM, &cache), CLATTN_OK);
    memset(scales, 0, sizeof scales);
    for (int t = 0; t < 2; t++) {
        clattn_append_call *c = &a[t].call;
        clattn_append_call_init(c, sizeof *c);
        a[t].failed = 0;
        a[t].row = t * TURNS;
        c->flags = CLATTN_NO_FALLBACK;
        c->dtype_cache = CLATTN_DTYPE_I8;
        c->batch = c->heads = c->len_new = 1;
        c->dim_k = TURN_DIM;
        c->capacity = 2 * TURNS;
        c->k_new.buf = clattn_host_buf(a[t].k_new, sizeof a[t].k_new);
        c->k_cache.buf = cache;
        c->k_scale.buf = clattn_host_buf(scales + 1, sizeof scales - sizeof *scales);
        c->lens = clattn_host_buf(&a[t].row, sizeof a[t].row);
    }
    struct test_thread *other = thread_start(append_rows, &a[1]);
    append_rows(&a[0]);
    thread_join(other);
    assert_int_equal(a[0].failed + a[1].failed, 0);
    for (int n = 0; n < 2 * TURNS; n++)
        if (fabs((double)scales[1 + n] * 127 / (n + 1) - 1) > 1e-6)
            fail_msg("row %d has the scale %.9g", n, (double)scales[1 + n]);
    clattn_mem_destroy(kd.ctx, &cache);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),      cmocka_unit_test(test_options),
        cmocka_unit_test(test_interleaved), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_faults),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nothing_for_many),
        cmocka_unit_test(test_attention),  cmocka_unit_test(test_threads),
    };
    return kv_main("append", argc, argv, tests, sizeof tests / sizeof *tests);
}
