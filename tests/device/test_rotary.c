// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: every type, place and stride, both orders of pairs, in place; that
// scores depend on distances only; positions outside the tables.
#include "kv_lib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "thread.h"

enum { BATCH = 2, HEADS = 3, LEN = 5, POSITIONS = 40, MAX_DIM = 130 };

struct rotate {
    int dim, r;
    struct tens x, y, cosines, sines, offsets, faults;
    clattn_rotary_call call;
};

static void open_rotate(struct rotate *t, int dim, int r, bool on_device, int32_t dtype,
                        enum kv_form form, int32_t pairs)
{
    float c[POSITIONS * MAX_DIM / 2], s[POSITIONS * MAX_DIM / 2];
    t->dim = dim;
    t->r = r;
    tens_make(&t->x, on_device, dtype, BATCH, HEADS, LEN, dim, form);
    tens_make(&t->y, on_device, dtype, BATCH, HEADS, LEN, dim, form == KV_BHSD ? KV_GAPS : KV_BHSD);
    vec_make(&t->cosines, on_device, CLATTN_DTYPE_F32, POSITIONS * r / 2);
    vec_make(&t->sines, on_device, CLATTN_DTYPE_F32, POSITIONS * r / 2);
    vec_make(&t->offsets, on_device, KV_I32, BATCH);
    vec_make(&t->faults, on_device, KV_I32, 1);
    assert_int_equal(clattn_rotary_tables(POSITIONS, r, 0.0, c, s), CLATTN_OK);
    for (int n = 0; n < POSITIONS * r / 2; n++) {
        vec_set(&t->cosines, n, (double)c[n]);
        vec_set(&t->sines, n, (double)s[n]);
    }
    tens_fill(&t->x, 77, 3.0);
    vec_set(&t->offsets, 0, 11);
    vec_set(&t->offsets, 1, -3);
    vec_set(&t->faults, 0, 64);
    clattn_rotary_call_init(&t->call, sizeof t->call);
    t->call.flags = CLATTN_NO_FALLBACK;
    t->call.dtype = dtype;
    t->call.batch = BATCH;
    t->call.heads = HEADS;
    t->call.len = LEN;
    t->call.dim = dim;
    t->call.x = t->x.t;
    t->call.y = t->y.t;
    t->call.faults = t->faults.t.buf;
    t->call.rotary.dim = r;
    t->call.rotary.pairs = pairs;
    t->call.rotary.positions = POSITIONS;
    t->call.rotary.start = 4;
    t->call.rotary.offsets = t->offsets.t.buf;
    t->call.rotary.cos_table = t->cosines.t.buf;
    t->call.rotary.sin_table = t->sines.t.buf;
}

static void push_rotate(struct rotate *t)
{
    tens_push(&t->x);
    tens_push(&t->y);
    tens_push(&t->cosines);
    tens_push(&t->sines);
    tens_push(&t->offsets);
    tens_push(&t->faults);
}

static void close_rotate(struct rotate *t)
{
    tens_free(&t->x);
    tens_free(&t->y);
    tens_free(&t->cosines);
    tens_free(&t->sines);
    tens_free(&t->offsets);
    tens_free(&t->faults);
}

// Channel d of a token at position p, by the definition.
static double reference(const struct rotate *t, int b, int h, int i, int d, int p)
{
    const int r = t->r;
    if (d >= r)
        return tens_get(&t->x, b, h, i, d);
    const bool half = t->call.rotary.pairs == CLATTN_ROTARY_HALF_SPLIT;
    const int n = half ? d % (r / 2) : d / 2;
    const double x = tens_get(&t->x, b, h, i, half ? n : 2 * n);
    const double y = tens_get(&t->x, b, h, i, half ? n + r / 2 : 2 * n + 1);
    const double angle = p * pow(10000.0, -2.0 * n / r);
    return (half ? d < r / 2 : d % 2 == 0) ? x * cos(angle) - y * sin(angle)
                                           : x * sin(angle) + y * cos(angle);
}

struct expected {
    double at[BATCH][HEADS][LEN][MAX_DIM];
};

// Positions outside the tables count as the nearest one there.
static struct expected *expect(const struct rotate *t, bool offsets)
{
    struct expected *e = malloc(sizeof *e);
    assert_non_null(e);
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < LEN; i++)
                for (int d = 0; d < t->dim; d++) {
                    int p = t->call.rotary.start + i + (offsets ? (int)vec_get(&t->offsets, b) : 0);
                    p = p < 0 ? 0 : p >= POSITIONS ? POSITIONS - 1 : p;
                    e->at[b][h][i][d] = reference(t, b, h, i, d, p);
                }
    return e;
}

static void check(const struct rotate *t, struct tens *y, struct expected *e)
{
    tens_pull(y, "y", true);
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < LEN; i++)
                for (int d = 0; d < t->dim; d++) {
                    const double want = e->at[b][h][i][d];
                    kv_check("y", tens_at(y, b, h, i, d), tens_get(y, b, h, i, d), want,
                             d < t->r ? kv_tolerance(y->dtype, want) + 2e-6 : 0.0);
                }
    free(e);
}

static void test_types(void **state)
{
    static const int dims[][2] = {{2, 2}, {64, 64}, {67, 30}, {130, 130}};
    struct rotate t;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int32_t type = 0; type <= CLATTN_DTYPE_BF16; type++)
            for (int32_t pairs = 0; pairs <= CLATTN_ROTARY_HALF_SPLIT; pairs++)
                for (int n = 0; n < 4; n++)
                    for (int in_place = 0; in_place < 2; in_place++) {
                        open_rotate(&t, dims[n][0], dims[n][1], place == 1, type,
                                    (enum kv_form)((n + type) % KV_FORMS), pairs);
                        push_rotate(&t);
                        if (in_place)
                            t.call.y = t.call.x;
                        if (n == 2)
                            t.call.rotary.offsets = (clattn_buf){0};
                        struct expected *e = expect(&t, n != 2);
                        KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
                        check(&t, in_place ? &t.x : &t.y, e);
                        if (!in_place)
                            tens_pull(&t.x, "x", false);
                        tens_pull(&t.faults, "faults", false);
                        close_rotate(&t);
                    }
}

// Position 0 turns nothing, not by a bit.
static void test_identity(void **state)
{
    struct rotate t;
    (void)state;
    for (int32_t type = 0; type <= CLATTN_DTYPE_BF16; type++) {
        open_rotate(&t, 34, 34, kd.opencl, type, KV_BHSD, 0);
        t.call.rotary.start = 0;
        t.call.rotary.offsets = (clattn_buf){0};
        t.call.len = 1;
        t.call.y = t.call.x;
        push_rotate(&t);
        KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
        tens_pull(&t.x, "x", true);
        assert_memory_equal(t.x.now, t.x.before, t.x.bytes);
        close_rotate(&t);
    }
}

static double dot(struct tens *a, struct tens *b, int i)
{
    double sum = 0.0;
    for (int d = 0; d < a->dim; d++)
        sum += tens_get(a, 1, 2, i, d) * tens_get(b, 1, 2, i, d);
    return sum;
}

// The product of a query and a key depends on their distance only, and it does depend on it.
static void test_distance(void **state)
{
    (void)state;
    for (int32_t pairs = 0; pairs <= CLATTN_ROTARY_HALF_SPLIT; pairs++) {
        double score[3];
        for (int n = 0; n < 3; n++) {
            struct rotate q, k;
            open_rotate(&q, 64, 64, kd.opencl, CLATTN_DTYPE_F32, KV_BHSD, pairs);
            open_rotate(&k, 64, 64, kd.opencl, CLATTN_DTYPE_F32, KV_BHSD, pairs);
            tens_fill(&k.x, 5, 2.0);
            q.call.rotary.offsets = k.call.rotary.offsets = (clattn_buf){0};
            q.call.rotary.start = n == 1 ? 31 : 12;
            k.call.rotary.start = n == 1 ? 24 : n == 2 ? 6 : 5;
            push_rotate(&q);
            push_rotate(&k);
            KV_RUN(clattn_rotary_run(kd.ctx, &q.call));
            KV_RUN(clattn_rotary_run(kd.ctx, &k.call));
            tens_pull(&q.y, "q", true);
            tens_pull(&k.y, "k", true);
            score[n] = dot(&q.y, &k.y, 3);
            close_rotate(&q);
            close_rotate(&k);
        }
        assert_true(fabs(score[0] - score[1]) < 2e-4);
        assert_true(fabs(score[0] - score[2]) > 0.1);
    }
}

static void test_tables(void **state)
{
    float c[7 * 5], s[7 * 5];
    (void)state;
    assert_int_equal(clattn_rotary_tables(7, 10, 500.0, c, s), CLATTN_OK);
    for (int p = 0; p < 7; p++)
        for (int t = 0; t < 5; t++) {
            const double angle = p * pow(500.0, -t / 5.0);
            kv_check("cos", p * 5 + t, (double)c[p * 5 + t], cos(angle), 6.1e-8);
            kv_check("sin", p * 5 + t, (double)s[p * 5 + t], sin(angle), 6.1e-8);
        }
    assert_int_equal(clattn_rotary_tables(0, 2, 0.0, c, s), CLATTN_OK);
    assert_int_equal(clattn_rotary_tables(-1, 2, 0.0, c, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 3, 0.0, c, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 0, 0.0, c, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 2, -1.0, c, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 2, INFINITY, c, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 2, 0.0, NULL, s), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_rotary_tables(1, 2, 0.0, c, NULL), CLATTN_ERR_INVALID_ARGUMENT);
}

// On the device positions are clamped, and the bit joins those that were there.
static void test_faults(void **state)
{
    struct rotate t;
    (void)state;
    if (!kd.opencl)
        skip();
    for (int how = 0; how < 3; how++) {
        open_rotate(&t, 24, 16, true, CLATTN_DTYPE_F32, KV_BHSD, how == 1);
        vec_set(&t.offsets, 1, how == 0 ? -6 : how == 1 ? POSITIONS : 2147483647);
        push_rotate(&t);
        struct expected *e = expect(&t, how != 2);
        if (how == 2) { // the sum is beyond 32 bits
            for (int h = 0; h < HEADS; h++)
                for (int i = 0; i < LEN; i++)
                    for (int d = 0; d < t.dim; d++)
                        e->at[1][h][i][d] = reference(&t, 1, h, i, d, POSITIONS - 1);
            for (int h = 0; h < HEADS; h++)
                for (int i = 0; i < LEN; i++)
                    for (int d = 0; d < t.dim; d++)
                        e->at[0][h][i][d] = reference(&t, 0, h, i, d, 15 + i);
        }
        KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
        check(&t, &t.y, e);
        tens_pull(&t.faults, "faults", true);
        assert_int_equal((int)vec_get(&t.faults, 0), 64 | CLATTN_FAULT_POSITION);
        t.call.faults = (clattn_buf){0};
        KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
        close_rotate(&t);
    }
}

// Threads that need the same kernel at once, in a type that nobody has asked for: each has tensors
// of its own.
struct user {
    struct rotate t;
    clattn_status status;
};

static void rotate_often(void *arg)
{
    struct user *u = arg;
    for (int n = 0; n < 5 && u->status == CLATTN_OK; n++)
        u->status = clattn_rotary_run(kd.ctx, &u->t.call);
}

static void test_threads(void **state)
{
    enum { THREADS = 4 };
    struct user u[THREADS];
    struct test_thread *thread[THREADS];
    (void)state;
    if (!takes_threads(kd.info))
        skip();
    for (int n = 0; n < THREADS; n++) {
        open_rotate(&u[n].t, 48, 48, kd.opencl && n % 2, CLATTN_DTYPE_BF16, KV_BSHD, n / 2);
        u[n].status = CLATTN_OK;
        push_rotate(&u[n].t);
    }
    for (int n = 0; n < THREADS; n++)
        thread[n] = thread_start(rotate_often, &u[n]);
    for (int n = 0; n < THREADS; n++) {
        thread_join(thread[n]);
        assert_int_equal(u[n].status, CLATTN_OK);
        struct expected *e = expect(&u[n].t, true);
        check(&u[n].t, &u[n].t.y, e);
        close_rotate(&u[n].t);
    }
}

#define REFUSE(change, want, says)                                                                 \
    do {                                                                                           \
        const clattn_rotary_call good = t.call;                                                    \
        change;                                                                                    \
        kv_clear_log();                                                                            \
        kv_refused(#change, clattn_rotary_run(kd.ctx, &t.call), want, says);                       \
        t.call = good;                                                                             \
        tens_pull(&t.y, #change, false);                                                           \
    } while (0)

static void test_refusals(void **state)
{
    struct rotate t;
    (void)state;
    open_rotate(&t, 24, 16, false, CLATTN_DTYPE_F32, KV_BHSD, 0);
    push_rotate(&t);
    REFUSE(t.call.struct_size = 16, CLATTN_ERR_STRUCT_SIZE, "struct_size is 16");
    REFUSE(t.call.flags = 2, CLATTN_ERR_INVALID_ARGUMENT, "flags has unknown bits 0x2");
    REFUSE(t.call.dtype = CLATTN_DTYPE_I8, CLATTN_ERR_UNSUPPORTED, "dtype is 3");
    REFUSE(t.call.batch = -1, CLATTN_ERR_INVALID_ARGUMENT, "batch is -1");
    REFUSE(t.call.heads = 0, CLATTN_ERR_INVALID_ARGUMENT, "heads is 0");
    REFUSE(t.call.len = -1, CLATTN_ERR_INVALID_ARGUMENT, "len is -1");
    REFUSE(t.call.dim = 0, CLATTN_ERR_INVALID_ARGUMENT, "dim is 0");
    REFUSE(t.call.dim = INT32_MAX, CLATTN_ERR_UNSUPPORTED, "x has 2147483647 channels");
    REFUSE(t.call.rotary.dim = 15, CLATTN_ERR_INVALID_ARGUMENT, "rotary.dim is 15");
    REFUSE(t.call.rotary.dim = 26, CLATTN_ERR_INVALID_ARGUMENT, "rotary.dim is 26");
    REFUSE(t.call.rotary.dim = 0, CLATTN_ERR_INVALID_ARGUMENT, "rotary.dim is 0");
    REFUSE(t.call.rotary.pairs = 2, CLATTN_ERR_INVALID_ARGUMENT, "rotary.pairs is 2");
    REFUSE(t.call.rotary.positions = 0, CLATTN_ERR_INVALID_ARGUMENT, "rotary.positions is 0");
    REFUSE(t.call.rotary.positions = POSITIONS + 1, CLATTN_ERR_BUFFER_TOO_SMALL,
           "rotary.cos_table needs");
    REFUSE(t.call.rotary.sin_table.kind = 0, CLATTN_ERR_BUFFER_MISSING, "rotary.sin_table is");
    REFUSE(t.call.rotary.offsets.size_bytes = 258, CLATTN_ERR_BUFFER_TOO_SMALL, "rotary.offsets");
    REFUSE(t.call.rotary.start = 25, CLATTN_ERR_SHAPE,
           "sequence 0 has positions 36 to 40, the rotary tables 0 to 39");
    REFUSE(t.call.rotary.start = 2, CLATTN_ERR_SHAPE, "sequence 1 has positions -1 to 3");
    REFUSE(t.call.rotary.offsets.kind = 0; t.call.rotary.start = 36, CLATTN_ERR_SHAPE,
           "sequence 0 has positions 36 to 40");
    REFUSE(t.call.x.buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "x is absent");
    REFUSE(t.call.y.layout = 9, CLATTN_ERR_INVALID_ARGUMENT, "y.layout is 9");
    REFUSE(t.call.x = t.call.y; t.call.x.buf.offset_bytes += 4, CLATTN_ERR_OVERLAP, "overlaps");
    REFUSE(t.call.faults = t.call.y.buf, CLATTN_ERR_OVERLAP, "overlaps");
    t.call.batch = 0;
    KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
    tens_pull(&t.y, "no batch", false);
    t.call.batch = BATCH;
    struct expected *e = expect(&t, true);
    KV_RUN(clattn_rotary_run(kd.ctx, &t.call));
    check(&t, &t.y, e);
    close_rotate(&t);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads), // first, when nothing is compiled
        cmocka_unit_test(test_types),    cmocka_unit_test(test_identity),
        cmocka_unit_test(test_distance), cmocka_unit_test(test_tables),
        cmocka_unit_test(test_faults),   cmocka_unit_test(test_refusals),
    };
    return kv_main("rotary", argc, argv, tests, sizeof tests / sizeof *tests);
}
