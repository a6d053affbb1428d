// SPDX-License-Identifier: Apache-2.0
// Merging results over disjoint keys: every type, place and stride, empty parts, sinks, in place,
// and the identity that it is for: attention over parts of the keys, merged, is attention over all.
#include "kv_lib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 3, LEN = 5, ROWS = BATCH * HEADS * LEN, MAX_PARTS = 8 };

struct merge {
    int n, dim;
    struct tens part[MAX_PARTS], lse[MAX_PARTS], sinks, o, o_lse;
    bool sunk;
    clattn_tensor parts[MAX_PARTS];
    clattn_buf parts_lse[MAX_PARTS];
    clattn_merge_call call;
};

static void row_of(int64_t r, int64_t at[3])
{
    at[0] = r / LEN / HEADS;
    at[1] = r / LEN % HEADS;
    at[2] = r % LEN;
}

// What parts can bring, by row: ordinary numbers, far ones, one or all parts empty, NaN.
static double lse_of(int64_t row, int k, uint64_t *state)
{
    const double x = kv_random(state);
    switch (row % 6) {
    case 0: return 3.0 * x;
    case 1: return k % 2 ? -INFINITY : 4.0 * x;
    case 2: return k == 1 ? INFINITY : 2e4 + 3.0 * x;
    case 3: return k ? -INFINITY : x - 30.0;
    case 4: return k % 2 ? INFINITY : -INFINITY;
    default: return row > 12 && k == 0 ? NAN : 80.0 * x;
    }
}

static void open_merge(struct merge *m, int n, int dim, bool on_device, int32_t dtype_parts,
                       int32_t dtype_o, enum kv_form form, bool sunk, uint64_t seed)
{
    uint64_t state = seed;
    memset(m, 0, sizeof *m);
    m->n = n;
    m->dim = dim;
    m->sunk = sunk;
    for (int k = 0; k < n; k++) {
        tens_make(&m->part[k], on_device, dtype_parts, BATCH, HEADS, LEN, dim, form);
        vec_make(&m->lse[k], on_device, CLATTN_DTYPE_F32, ROWS);
        tens_fill(&m->part[k], seed * 31 + (uint64_t)k, 4.0);
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t at[3];
            row_of(r, at);
            vec_set(&m->lse[k], r, lse_of(r, k, &state));
            if (isinf(vec_get(&m->lse[k], r))) // what an empty part left there does not count
                for (int d = 0; d < dim; d++)
                    tens_set(&m->part[k], at[0], at[1], at[2], d, NAN);
        }
        m->parts[k] = m->part[k].t;
        m->parts_lse[k] = m->lse[k].t.buf;
    }
    vec_make(&m->sinks, on_device, CLATTN_DTYPE_F32, HEADS);
    for (int h = 0; h < HEADS; h++)
        vec_set(&m->sinks, h, h == 1 ? -INFINITY : 2.0 - h);
    tens_make(&m->o, on_device, dtype_o, BATCH, HEADS, LEN, dim, form);
    vec_make(&m->o_lse, on_device, CLATTN_DTYPE_F32, ROWS);
    clattn_merge_call_init(&m->call, sizeof m->call);
    m->call.num_parts = n;
    m->call.batch = BATCH;
    m->call.heads = HEADS;
    m->call.len_q = LEN;
    m->call.dim_v = dim;
    m->call.dtype_parts = dtype_parts;
    m->call.dtype_o = dtype_o;
    m->call.flags = CLATTN_NO_FALLBACK;
    m->call.parts = m->parts;
    m->call.parts_lse = m->parts_lse;
    m->call.o = m->o.t;
    m->call.lse = m->o_lse.t.buf;
    if (sunk)
        m->call.sinks = m->sinks.t.buf;
}

static void push_merge(struct merge *m)
{
    for (int k = 0; k < m->n; k++) {
        tens_push(&m->part[k]);
        tens_push(&m->lse[k]);
    }
    tens_push(&m->sinks);
    tens_push(&m->o);
    tens_push(&m->o_lse);
}

static void close_merge(struct merge *m)
{
    for (int k = 0; k < m->n; k++) {
        tens_free(&m->part[k]);
        tens_free(&m->lse[k]);
    }
    tens_free(&m->sinks);
    tens_free(&m->o);
    tens_free(&m->o_lse);
}

// By the definition, from what the parts hold; o has `dim` numbers.
static double reference(const struct merge *m, int64_t r, double *o)
{
    int64_t at[3];
    row_of(r, at);
    const double sink = m->sunk ? vec_get(&m->sinks, at[1]) : -INFINITY;
    double top = sink, l = 0.0;
    bool spoilt = false;
    for (int k = 0; k < m->n; k++) {
        const double x = vec_get(&m->lse[k], r);
        if (!isinf(x))
            top = fmax(top, x);
        spoilt = spoilt || isnan(x);
    }
    for (int d = 0; d < m->dim; d++)
        o[d] = spoilt ? NAN : 0.0;
    if (spoilt)
        return NAN;
    if (top == -INFINITY)
        return -INFINITY;
    l = exp(sink - top);
    for (int k = 0; k < m->n; k++)
        l += isinf(vec_get(&m->lse[k], r)) ? 0.0 : exp(vec_get(&m->lse[k], r) - top);
    for (int k = 0; k < m->n; k++)
        for (int d = 0; !isinf(vec_get(&m->lse[k], r)) && d < m->dim; d++)
            o[d] += exp(vec_get(&m->lse[k], r) - top) / l *
                    tens_get(&m->part[k], at[0], at[1], at[2], d);
    return top + log(l);
}

// Expected results, taken before a call that may write into a part.
struct expected {
    double *o, lse[ROWS];
};

static struct expected expect(const struct merge *m)
{
    struct expected e = {.o = malloc((size_t)(ROWS * m->dim) * sizeof(double))};
    assert_non_null(e.o);
    for (int64_t r = 0; r < ROWS; r++)
        e.lse[r] = reference(m, r, e.o + r * m->dim);
    return e;
}

static void check(const struct merge *m, struct tens *o, struct tens *lse, struct expected *e)
{
    tens_pull(o, "o", true);
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t at[3];
        row_of(r, at);
        for (int d = 0; d < m->dim; d++) {
            const double want = e->o[r * m->dim + d];
            kv_check("o", r * m->dim + d, tens_get(o, at[0], at[1], at[2], d), want,
                     kv_tolerance(o->dtype, want) + 8e-6);
        }
    }
    if (lse) {
        tens_pull(lse, "lse", true);
        for (int64_t r = 0; r < ROWS; r++)
            kv_check("lse", r, vec_get(lse, r), e->lse[r], 4e-7 * fabs(e->lse[r]) + 1e-6);
    }
    free(e->o);
}

static void assert_inputs_kept(struct merge *m)
{
    for (int k = 0; k < m->n; k++) {
        tens_pull(&m->part[k], "a part", false);
        tens_pull(&m->lse[k], "the LSE of a part", false);
    }
}

static void test_types(void **state)
{
    static const int dims[] = {1, 7, 64, 130};
    struct merge m;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int32_t from = 0; from <= CLATTN_DTYPE_BF16; from++)
            for (int32_t to = 0; to <= CLATTN_DTYPE_BF16; to++)
                for (int n = 0; n < 4; n++) {
                    const int parts[] = {2, 3, 8, 1};
                    open_merge(&m, parts[n], dims[(n + from + to) % 4], place == 1, from, to,
                               (enum kv_form)((n + to) % KV_FORMS), n % 2 == 0,
                               (uint64_t)(1 + n));
                    push_merge(&m);
                    struct expected e = expect(&m);
                    if (n == 1)
                        m.call.lse = (clattn_buf){0};
                    KV_RUN(clattn_merge_run(kd.ctx, &m.call));
                    check(&m, &m.o, n == 1 ? NULL : &m.o_lse, &e);
                    assert_inputs_kept(&m);
                    close_merge(&m);
                }
}

// Into one of the parts, and its LSE or another one's.
static void test_in_place(void **state)
{
    struct merge m;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int form = 0; form < KV_FORMS; form++)
            for (int k = 0; k < 3; k++) {
                open_merge(&m, 3, 70, place == 1, CLATTN_DTYPE_F16, CLATTN_DTYPE_F16,
                           (enum kv_form)form, k == 1, 5);
                push_merge(&m);
                struct expected e = expect(&m);
                m.call.o = m.part[k].t;
                m.call.lse = m.lse[form == 2 ? 0 : k].t.buf;
                KV_RUN(clattn_merge_run(kd.ctx, &m.call));
                check(&m, &m.part[k], &m.lse[form == 2 ? 0 : k], &e);
                close_merge(&m);
            }
}

// What is merged with nothing stays bit for bit, signs of zeros too; nothing gives (0, -infinity).
static void test_empty_is_neutral(void **state)
{
    struct merge m;
    (void)state;
    for (int place = 0; place < kv_places(); place++)
        for (int32_t type = 0; type <= CLATTN_DTYPE_BF16; type++)
            for (int full = -1; full < 3; full++) {
                open_merge(&m, 3, 33, place == 1, type, type, KV_BHSD, false, 9);
                for (int k = 0; k < 3; k++)
                    for (int64_t r = 0; r < ROWS; r++) {
                        int64_t at[3];
                        row_of(r, at);
                        vec_set(&m.lse[k], r, k == full ? 1e3 / 7.0 * (double)(r - 7) : -INFINITY);
                        for (int d = 0; d < 33; d++)
                            tens_set(&m.part[k], at[0], at[1], at[2], d,
                                     k != full ? NAN : d == 3 ? -0.0 : d / 7.0 - 2.0);
                    }
                push_merge(&m);
                KV_RUN(clattn_merge_run(kd.ctx, &m.call));
                tens_pull(&m.o, "o", true);
                tens_pull(&m.o_lse, "lse", true);
                if (full >= 0) {
                    assert_memory_equal(m.o.now, m.part[full].now, m.o.bytes);
                    assert_memory_equal(m.o_lse.now, m.lse[full].now, m.o_lse.bytes);
                }
                for (int64_t r = 0; full < 0 && r < ROWS; r++) {
                    int64_t at[3];
                    row_of(r, at);
                    assert_true(vec_get(&m.o_lse, r) == -INFINITY);
                    for (int d = 0; d < 33; d++)
                        assert_true(tens_get(&m.o, at[0], at[1], at[2], d) == 0.0);
                }
                close_merge(&m);
            }
}

// A sink of NaN or +infinity spoils its head's rows and no others.
static void test_bad_sinks(void **state)
{
    struct merge m;
    (void)state;
    open_merge(&m, 2, 8, kd.opencl, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, KV_BHSD, true, 3);
    vec_set(&m.sinks, 0, NAN);
    vec_set(&m.sinks, 2, INFINITY);
    push_merge(&m);
    KV_RUN(clattn_merge_run(kd.ctx, &m.call));
    tens_pull(&m.o, "o", true);
    tens_pull(&m.o_lse, "lse", true);
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t at[3];
        double want[8];
        row_of(r, at);
        const double lse = at[1] == 1 ? reference(&m, r, want) : NAN;
        kv_check("lse", r, vec_get(&m.o_lse, r), lse, 1e-6 + 4e-7 * fabs(lse));
        for (int d = 0; d < 8; d++)
            kv_check("o", r * 8 + d, tens_get(&m.o, at[0], at[1], at[2], d),
                     at[1] == 1 ? want[d] : NAN, 1e-5);
    }
    close_merge(&m);
}

// ---- attention ---------------------------------------------------------------------------------

enum { KEYS = 41, DIM = 24 };

static void attend(const struct tens *q, const struct tens *k, const struct tens *v, int first,
                   int count, const struct tens *sinks, struct tens *o, struct tens *lse)
{
    clattn_attention_desc desc;
    clattn_attention_call call;
    clattn_plan *plan = NULL;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.features = CLATTN_FEATURE_LSE | (sinks ? CLATTN_FEATURE_SINKS : 0u);
    desc.algo = CLATTN_ALGO_REFERENCE;
    KV_RUN(clattn_attention_plan_create(kd.ctx, &desc, &plan));
    clattn_attention_call_init(&call, sizeof call);
    call.batch = BATCH;
    call.len_q = LEN;
    call.len_kv = count;
    call.q = q->t;
    call.k = k->t;
    call.v = v->t;
    call.k.buf.offset_bytes += (size_t)(first * k->stride[2]) * sizeof(float);
    call.v.buf.offset_bytes += (size_t)(first * v->stride[2]) * sizeof(float);
    call.o = o->t;
    call.lse = lse->t.buf;
    if (sinks)
        call.sinks = sinks->t.buf;
    KV_RUN(clattn_attention_run(plan, &call));
    clattn_plan_destroy(&plan);
}

static void test_cuts_of_attention(void **state)
{
    static const int cuts[][MAX_PARTS + 1] = {
        {0, KEYS}, {0, 1, KEYS}, {0, 20, 20, KEYS}, {0, 5, 6, 13, 30, 31, 32, 40, KEYS}};
    static const int parts[] = {1, 2, 3, 8};
    struct tens q, k, v, whole, whole_lse;
    (void)state;
    tens_make(&q, false, CLATTN_DTYPE_F32, BATCH, HEADS, LEN, DIM, KV_BHSD);
    tens_make(&k, false, CLATTN_DTYPE_F32, BATCH, HEADS, KEYS, DIM, KV_GAPS);
    tens_make(&v, false, CLATTN_DTYPE_F32, BATCH, HEADS, KEYS, DIM, KV_GAPS);
    tens_make(&whole, false, CLATTN_DTYPE_F32, BATCH, HEADS, LEN, DIM, KV_BHSD);
    vec_make(&whole_lse, false, CLATTN_DTYPE_F32, ROWS);
    tens_fill(&q, 1, 3.0);
    tens_fill(&k, 2, 3.0);
    tens_fill(&v, 3, 1.0);
    for (int sunk = 0; sunk < 2; sunk++)
        for (int c = 0; c < 4; c++) {
            struct merge m;
            open_merge(&m, parts[c], DIM, false, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, KV_BHSD,
                       sunk == 1, 1);
            attend(&q, &k, &v, 0, KEYS, sunk ? &m.sinks : NULL, &whole, &whole_lse);
            for (int n = 0; n < m.n; n++)
                attend(&q, &k, &v, cuts[c][n], cuts[c][n + 1] - cuts[c][n], NULL, &m.part[n],
                       &m.lse[n]);
            push_merge(&m);
            KV_RUN(clattn_merge_run(kd.ctx, &m.call));
            tens_pull(&m.o, "o", true);
            tens_pull(&m.o_lse, "lse", true);
            for (int64_t r = 0; r < ROWS; r++) {
                int64_t at[3];
                row_of(r, at);
                kv_check("lse", r, vec_get(&m.o_lse, r), vec_get(&whole_lse, r), 2e-6);
                for (int d = 0; d < DIM; d++)
                    kv_check("o", r * DIM + d, tens_get(&m.o, at[0], at[1], at[2], d),
                             tens_get(&whole, at[0], at[1], at[2], d), 2e-6);
            }
            close_merge(&m);
        }
    tens_free(&q);
    tens_free(&k);
    tens_free(&v);
    tens_free(&whole);
    tens_free(&whole_lse);
}

// ---- refusals ----------------------------------------------------------------------------------

#define REFUSE(change, want, says)                                                                 \
    do {                                                                                           \
        const clattn_merge_call good = m.call;                                                     \
        const clattn_tensor part = m.parts[1];                                                     \
        const clattn_buf lse = m.parts_lse[1];                                                     \
        change;                                                                                    \
        kv_clear_log();                                                                            \
        kv_refused(#change, clattn_merge_run(kd.ctx, &m.call), want, says);                        \
        m.call = good;                                                                             \
        m.parts[1] = part;                                                                         \
        m.parts_lse[1] = lse;                                                                      \
        tens_pull(&m.o, #change, false);                                                           \
        tens_pull(&m.o_lse, #change, false);                                                       \
    } while (0)

static void test_refusals(void **state)
{
    struct merge m;
    (void)state;
    open_merge(&m, 3, 8, kd.opencl, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, KV_GAPS, true, 2);
    push_merge(&m);
    REFUSE(m.call.struct_size = 8, CLATTN_ERR_STRUCT_SIZE, "struct_size is 8");
    REFUSE(m.call.flags = 6, CLATTN_ERR_INVALID_ARGUMENT, "flags has unknown bits 0x6");
    REFUSE(m.call.num_parts = 0, CLATTN_ERR_INVALID_ARGUMENT, "num_parts is 0");
    REFUSE(m.call.num_parts = 9, CLATTN_ERR_INVALID_ARGUMENT, "num_parts is 9");
    REFUSE(m.call.batch = -1, CLATTN_ERR_INVALID_ARGUMENT, "batch is -1");
    REFUSE(m.call.heads = 0, CLATTN_ERR_INVALID_ARGUMENT, "heads is 0");
    REFUSE(m.call.len_q = -2, CLATTN_ERR_INVALID_ARGUMENT, "len_q is -2");
    REFUSE(m.call.dim_v = 0, CLATTN_ERR_INVALID_ARGUMENT, "dim_v is 0");
    REFUSE(m.call.dim_v = INT32_MAX, CLATTN_ERR_UNSUPPORTED, "has 2147483647 channels");
    REFUSE(m.call.dtype_parts = 7, CLATTN_ERR_INVALID_ARGUMENT, "dtype_parts is 7");
    REFUSE(m.call.dtype_o = CLATTN_DTYPE_I8, CLATTN_ERR_UNSUPPORTED, "dtype_o is 3");
    REFUSE(m.call.parts = NULL, CLATTN_ERR_INVALID_ARGUMENT, "parts is NULL");
    REFUSE(m.call.parts_lse = NULL, CLATTN_ERR_INVALID_ARGUMENT, "parts_lse is NULL");
    REFUSE(m.parts[1].buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "parts[1] is absent");
    REFUSE(m.parts[1].stride_seq = -1, CLATTN_ERR_STRIDE, "parts[1]: stride -1");
    REFUSE(m.parts[1].layout = 3, CLATTN_ERR_INVALID_ARGUMENT, "parts[1].layout is 3");
    REFUSE(m.parts_lse[1].size_bytes = 300, CLATTN_ERR_BUFFER_TOO_SMALL, "parts_lse[1] needs");
    REFUSE(m.call.o.stride_seq = 7, CLATTN_ERR_STRIDE, "o: stride 7");
    REFUSE(m.call.o.buf.kind = 0, CLATTN_ERR_BUFFER_MISSING, "o is absent");
    REFUSE(m.call.sinks.offset_bytes += 2, CLATTN_ERR_INVALID_ARGUMENT, "sinks.buf.offset_bytes");
    REFUSE(m.call.o = m.part[0].t; m.call.o.buf.offset_bytes += 4, CLATTN_ERR_OVERLAP,
           "o (bytes 260");
    REFUSE(m.call.lse = m.lse[1].t.buf; m.call.lse.offset_bytes -= 4, CLATTN_ERR_OVERLAP,
           "lse (bytes 252");
    // The same memory as another type is not the same tensor.
    REFUSE(m.call.o = m.part[0].t; m.call.dtype_o = CLATTN_DTYPE_F16, CLATTN_ERR_OVERLAP,
           "overlaps parts[0]");
    kv_clear_log();
    kv_refused("no call", clattn_merge_run(kd.ctx, NULL), CLATTN_ERR_INVALID_ARGUMENT,
               "call is NULL");
    assert_int_equal(clattn_merge_run(NULL, &m.call), CLATTN_ERR_INVALID_ARGUMENT);
    // Nothing to do writes nothing.
    m.call.len_q = 0;
    KV_RUN(clattn_merge_run(kd.ctx, &m.call));
    tens_pull(&m.o, "no queries", false);
    m.call.len_q = LEN;
    struct expected e = expect(&m);
    KV_RUN(clattn_merge_run(kd.ctx, &m.call));
    check(&m, &m.o, &m.o_lse, &e);
    close_merge(&m);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_empty_is_neutral),
        cmocka_unit_test(test_bad_sinks),
        cmocka_unit_test(test_cuts_of_attention),
        cmocka_unit_test(test_refusals),
    };
    return kv_main("merge", argc, argv, tests, sizeof tests / sizeof *tests);
}
