// SPDX-License-Identifier: Apache-2.0
// What is special about attention with the scores in memory: the three softmaxes, its workspace,
// memory that CLBlast takes as it lies and memory that it does not, V that is not finite, and
// commands around its own. That it computes attention at all is tested by the programs beside this
// one, with CLATTN_TEST_ALGOS=unfused.
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "thread.h"

#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

// All heads and lengths are odd to CLBlast's tiles; the group makes matrices of 2 * len_q rows.
static const struct attn_case the_case = {
    .name = "unfused", .dim = 20, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 7, .len_kv = 37,
    .causal = true, .mask_form = MASK_CONTIGUOUS, .seed = 71};

enum { BUF_Q, BUF_K, BUF_V, BUF_MASK, BUF_O, BUF_LSE, BUFS };

// Tensors [batch, heads, length, dim] that lie at strides of their own in buffers with room around.
struct memory {
    const struct test_target *t;
    clattn_plan *plan;
    struct attn_data d;
    clattn_attention_call call;
    cl_context context;
    cl_command_queue queue;
    size_t floats[BUFS]; // of each buffer
    size_t work_bytes;
};

static clattn_plan *plan_of(const struct test_target *t, const struct attn_case *c, int32_t softmax)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.features = CLATTN_FEATURE_LSE | (c->causal ? CLATTN_FEATURE_CAUSAL : 0) |
                    (c->mask_form ? CLATTN_FEATURE_MASK : 0);
    desc.softmax = softmax;
    return target_plan(t, desc);
}

static void check(const char *what, const float *o, const float *lse, const struct attn_case *c,
                  const struct attn_data *d)
{
    const size_t rows = (size_t)(c->batch * c->heads_q * c->len_q);
    struct compare_report ro, rl;
    const bool ok = compare(o, d->o, rows * (size_t)c->dim, &d->tol_o, &ro);
    if (!compare(lse, d->lse, rows, &d->tol_lse, &rl) || !ok) {
        compare_print("O", &ro);
        compare_print("LSE", &rl);
        fail_msg("%s is wrong", what);
    }
}

// ---- softmax ------------------------------------------------------------------------------------

enum { ROWS = 3, KEYS = 5, DIM = 4 };

// Scores of `x` and of numbers 1 apart below it, by keys of one channel.
static void run_scores(clattn_plan *plan, float x, float *o, float *lse)
{
    float q[ROWS * DIM] = {0}, k[KEYS * DIM] = {0}, v[KEYS * DIM];
    for (int i = 0; i < ROWS; i++)
        q[i * DIM] = 1;
    for (int j = 0; j < KEYS; j++)
        k[j * DIM] = x - (float)j;
    for (int n = 0; n < KEYS * DIM; n++)
        v[n] = (float)(n % 3);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = ROWS;
    call.len_kv = KEYS;
    call.set = CLATTN_SET_SCALE;
    call.scale = 1;
    call.q.buf = clattn_host_buf(q, sizeof q);
    call.k.buf = clattn_host_buf(k, sizeof k);
    call.v.buf = clattn_host_buf(v, sizeof v);
    call.o.buf = clattn_host_buf(o, ROWS * DIM * sizeof *o);
    call.lse = clattn_host_buf(lse, ROWS * sizeof *lse);
    fill_unwritten(o, ROWS * DIM);
    fill_unwritten(lse, ROWS);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
}

static void test_softmaxes(void **state)
{
    const struct test_target *t = *state;
    const struct attn_case one = {.dim = DIM, .heads_q = 1, .heads_kv = 1};
    float o[ROWS * DIM], safe_o[ROWS * DIM], lse[ROWS], safe_lse[ROWS];
    static const float scores[] = {-60, 0.5f, 80, 95, 3e4f};
    clattn_plan *safe = plan_of(t, &one, CLATTN_SOFTMAX_SAFE);
    for (int32_t s = CLATTN_SOFTMAX_NAIVE; s <= CLATTN_SOFTMAX_ONLINE; s++) {
        clattn_plan *plan = plan_of(t, &one, s);
        for (size_t n = 0; n < sizeof scores / sizeof *scores; n++) {
            run_scores(safe, scores[n], safe_o, safe_lse);
            run_scores(plan, scores[n], o, lse);
            for (int i = 0; i < ROWS * DIM; i++) {
                // e^x of naive overflows above 88.7, and that is seen.
                if (s == CLATTN_SOFTMAX_NAIVE && scores[n] > 88)
                    assert_true(isnan(o[i]));
                else
                    assert_true(fabsf(o[i] - safe_o[i]) <= 2e-6f * (1 + fabsf(safe_o[i])));
            }
            for (int i = 0; i < ROWS; i++) {
                const float want = scores[n] + 0.45191441f; // ln(sum of e^-j, j < 5)
                assert_true(fabsf(safe_lse[i] - want) <= 1e-6f * (3 + fabsf(want)));
                if (s == CLATTN_SOFTMAX_NAIVE && scores[n] > 88)
                    assert_true(isnan(lse[i]));
                else
                    assert_true(fabsf(lse[i] - want) <= 1e-6f * (3 + fabsf(want)));
            }
        }
        clattn_plan_destroy(&plan);
    }
    clattn_plan_destroy(&safe);
}

static void test_softmaxes_with_features(void **state)
{
    const struct test_target *t = *state;
    struct attn_data d;
    assert_true(attn_data_make(&the_case, &d));
    const size_t rows = 2 * 4 * 7;
    float *o = malloc(rows * 20 * sizeof *o), *lse = malloc(rows * sizeof *lse);
    assert_true(o && lse);
    for (int32_t s = CLATTN_SOFTMAX_NAIVE; s <= CLATTN_SOFTMAX_ONLINE; s++) {
        clattn_plan *plan = plan_of(t, &the_case, s);
        fill_unwritten(o, rows * 20);
        fill_unwritten(lse, rows);
        const clattn_attention_call call =
            case_host_call(&the_case, d.q, d.k, d.v, d.mask, o, lse);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        check("softmax", o, lse, &the_case, &d);
        clattn_plan_destroy(&plan);
    }
    free(o);
    free(lse);
    attn_data_free(&d);
}

// Rows whose keys are cut into parts, and a value that is not finite in one of them.
static void test_parts(void **state)
{
    const struct test_target *t = *state;
    struct attn_case c = {.name = "parts", .dim = 4, .batch = 1, .heads_q = 2, .heads_kv = 1,
                          .len_q = 2, .len_kv = 4099, .seed = 5};
    enum { FLOATS = 2 * 2 * 4, LSES = 2 * 2 };
    float o[FLOATS], lse[LSES];
    clattn_plan *plan = plan_of(t, &c, CLATTN_SOFTMAX_SAFE);
    for (int bad = 0; bad < 2; bad++) {
        struct attn_data d;
        assert_true(attn_data_make(&c, &d));
        if (bad) {
            d.v[3000 * 4 + 1] = INFINITY;
            assert_true(attn_expect(&c, d.q, d.k, d.v, NULL, d.o, d.lse));
        }
        fill_unwritten(o, FLOATS);
        fill_unwritten(lse, LSES);
        const clattn_attention_call call = case_host_call(&c, d.q, d.k, d.v, NULL, o, lse);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        check(bad ? "parts and an infinity" : "parts", o, lse, &c, &d);
        attn_data_free(&d);
    }
    clattn_plan_destroy(&plan);
}

// ---- memory on the device -----------------------------------------------------------------------

// How a tensor lies: the place of its first element, and the distances of its axes.
struct shape {
    int64_t offset, stride[3];
};

static int64_t extent_of(const struct shape *s, const int32_t n[3], int32_t dim)
{
    return s->offset + (n[0] - 1) * s->stride[0] + (n[1] - 1) * s->stride[1] +
           (n[2] - 1) * s->stride[2] + dim;
}

// Spreads `from` [n0, n1, n2, dim] over a buffer of NaN at these strides; NULL writes nothing.
static clattn_tensor spread(struct memory *m, int which, const struct shape *s, const float *from,
                            const int32_t n[3], int32_t dim)
{
    enum { BEHIND = 16 };
    const size_t floats = (size_t)extent_of(s, n, dim) + BEHIND;
    float *all = malloc(floats * sizeof *all);
    assert_non_null(all);
    fill_unwritten(all, floats);
    for (int32_t a = 0; from && a < n[0]; a++)
        for (int32_t b = 0; b < n[1]; b++)
            for (int32_t c = 0; c < n[2]; c++)
                memcpy(all + s->offset + a * s->stride[0] + b * s->stride[1] + c * s->stride[2],
                       from + ((int64_t)(a * n[1] + b) * n[2] + c) * dim,
                       (size_t)dim * sizeof *from);
    cl_int code;
    cl_mem mem = clCreateBuffer(m->context, CL_MEM_READ_WRITE, floats * sizeof *all, NULL, &code);
    CL_OK(code);
    CL_OK(clEnqueueWriteBuffer(m->queue, mem, CL_TRUE, 0, floats * sizeof *all, all, 0, NULL,
                               NULL));
    free(all);
    m->floats[which] = floats;
    return (clattn_tensor){
        .buf = {.kind = CLATTN_BUF_CL_MEM, .ptr = mem,
                .offset_bytes = (size_t)s->offset * sizeof(float)},
        .layout = CLATTN_LAYOUT_STRIDED, .stride_batch = s->stride[0], .stride_head = s->stride[1],
        .stride_seq = s->stride[2]};
}

static cl_mem filled(struct memory *m, const void *from, size_t bytes)
{
    cl_int code;
    float *pattern = malloc((bytes + 3) / 4 * 4);
    assert_non_null(pattern);
    fill_unwritten(pattern, (bytes + 3) / 4);
    cl_mem mem = clCreateBuffer(m->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    CL_OK(code);
    CL_OK(clEnqueueWriteBuffer(m->queue, mem, CL_TRUE, 0, bytes, from ? from : pattern, 0, NULL,
                               NULL));
    free(pattern);
    return mem;
}

enum { LAYOUTS = 5, WORK_BEFORE = 64, WORK_BEHIND = 64 };

// Contiguous; [batch, length, heads, dim]; gaps between rows; an offset and gaps that are no
// matrices at one distance; K and V the same for all heads and batches.
static void shape_of(int layout, const int32_t n[3], int32_t dim, bool kv, struct shape *s)
{
    const int64_t row = layout == 2 ? dim + 3 : layout == 3 ? dim + 1 : dim;
    *s = (struct shape){layout == 3 ? 6 : 0, {n[1] * n[2] * row, n[2] * row, row}};
    if (layout == 1)
        *s = (struct shape){0, {(int64_t)n[1] * n[2] * dim, dim, (int64_t)n[1] * dim}};
    if (layout == 3)
        s->stride[0] += 5;
    if (layout == 4 && kv)
        s->stride[0] = s->stride[1] = 0;
}

static void open_memory(struct memory *m, const struct test_target *t, clattn_plan *plan,
                        int layout)
{
    const struct attn_case *c = &the_case;
    memset(m, 0, sizeof *m);
    m->t = t;
    m->plan = plan;
    m->context = clattn_context_cl_context(t->device->ctx);
    cl_int code;
    m->queue = clCreateCommandQueue(m->context, clattn_context_cl_device(t->device->ctx), 0, &code);
    CL_OK(code);
    assert_true(attn_data_make(c, &m->d));
    const int32_t nq[3] = {c->batch, c->heads_q, c->len_q};
    const int32_t nk[3] = {c->batch, c->heads_kv, c->len_kv};
    struct shape q, kv;
    shape_of(layout, nq, c->dim, false, &q);
    shape_of(layout, nk, c->dim, true, &kv);
    if (layout == 4) { // what is written last to the same place is what all heads get
        const size_t one = (size_t)(c->len_kv * c->dim);
        for (int n = 1; n < c->batch * c->heads_kv; n++) {
            memcpy(m->d.k + (size_t)n * one, m->d.k, one * sizeof(float));
            memcpy(m->d.v + (size_t)n * one, m->d.v, one * sizeof(float));
        }
        assert_true(attn_expect(c, m->d.q, m->d.k, m->d.v, m->d.mask, m->d.o, m->d.lse));
    }
    m->call = case_host_call(c, NULL, NULL, NULL, NULL, NULL, NULL);
    m->call.q = spread(m, BUF_Q, &q, m->d.q, nq, c->dim);
    m->call.k = spread(m, BUF_K, &kv, m->d.k, nk, c->dim);
    m->call.v = spread(m, BUF_V, &kv, m->d.v, nk, c->dim);
    m->call.o = spread(m, BUF_O, &q, NULL, nq, c->dim);
    const size_t rows = (size_t)(c->batch * c->heads_q * c->len_q);
    m->call.mask.buf = (clattn_buf){
        .kind = CLATTN_BUF_CL_MEM, .ptr = filled(m, m->d.mask, rows * (size_t)c->len_kv)};
    m->floats[BUF_LSE] = rows;
    m->call.lse = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = filled(m, NULL, rows * 4)};
    assert_int_equal(clattn_plan_workspace_bytes(plan, &m->call, &m->work_bytes), CLATTN_OK);
    assert_true(m->work_bytes >= rows * (size_t)c->len_kv * 4);
    m->call.workspace = (clattn_buf){
        .kind = CLATTN_BUF_CL_MEM, .offset_bytes = WORK_BEFORE,
        .ptr = filled(m, NULL, WORK_BEFORE + m->work_bytes + WORK_BEHIND)};
    CL_OK(clFinish(m->queue));
}

static void close_memory(struct memory *m)
{
    const clattn_buf *const bufs[] = {&m->call.q.buf, &m->call.k.buf,    &m->call.v.buf,
                                      &m->call.o.buf, &m->call.mask.buf, &m->call.lse,
                                      &m->call.workspace};
    for (int i = 0; i < 7; i++)
        clReleaseMemObject(bufs[i]->ptr);
    clReleaseCommandQueue(m->queue);
    attn_data_free(&m->d);
}

static void read_all(struct memory *m, const clattn_buf *buf, float *to, size_t floats)
{
    CL_OK(clEnqueueReadBuffer(m->queue, buf->ptr, CL_TRUE, 0, floats * 4, to, 0, NULL, NULL));
}

// Every float of O, LSE and around the workspace. `expected` false: nothing may have been written.
static void check_memory(struct memory *m, const char *what, bool expected)
{
    const struct attn_case *c = &the_case;
    const size_t rows = m->floats[BUF_LSE], dim = (size_t)c->dim;
    float *all = malloc(m->floats[BUF_O] * 4), *lse = malloc(rows * 4);
    float *o = malloc(rows * dim * 4), *w = malloc(WORK_BEFORE + m->work_bytes + WORK_BEHIND);
    assert_true(all && lse && o && w);
    read_all(m, &m->call.o.buf, all, m->floats[BUF_O]);
    read_all(m, &m->call.lse, lse, rows);
    read_all(m, &m->call.workspace, w, (WORK_BEFORE + m->work_bytes + WORK_BEHIND) / 4);
    for (int32_t b = 0; b < c->batch; b++)
        for (int32_t h = 0; h < c->heads_q; h++)
            for (int32_t i = 0; i < c->len_q; i++) {
                float *row = all + m->call.o.buf.offset_bytes / 4 + b * m->call.o.stride_batch +
                             h * m->call.o.stride_head + i * m->call.o.stride_seq;
                const size_t to = (size_t)((b * c->heads_q + h) * c->len_q + i) * dim;
                memcpy(o + to, row, dim * 4);
                if (expected)
                    fill_unwritten(row, dim);
            }
    for (size_t n = 0; n < m->floats[BUF_O]; n++)
        if (float_bits(all[n]) != UNWRITTEN_BITS)
            fail_msg("%s: wrote between the rows of O, at %zu", what, n);
    for (size_t n = 0; n < rows && !expected; n++)
        assert_int_equal(float_bits(lse[n]), UNWRITTEN_BITS);
    for (size_t n = 0; n < WORK_BEFORE / 4; n++)
        assert_int_equal(float_bits(w[n]), UNWRITTEN_BITS);
    for (size_t n = 0; n < WORK_BEHIND / 4; n++)
        assert_int_equal(float_bits(w[(WORK_BEFORE + m->work_bytes) / 4 + n]), UNWRITTEN_BITS);
    if (expected)
        check(what, o, lse, c, &m->d);
    free(all);
    free(lse);
    free(o);
    free(w);
}

static void test_layouts(void **state)
{
    const struct test_target *t = *state;
    clattn_plan *plan = plan_of(t, &the_case, CLATTN_SOFTMAX_ONLINE);
    for (int layout = 0; layout < LAYOUTS; layout++) {
        char what[32];
        snprintf(what, sizeof what, "layout %d", layout);
        struct memory m;
        open_memory(&m, t, plan, layout);
        cl_event done;
        assert_int_equal(clattn_attention_enqueue(plan, &m.call, m.queue, 0, NULL, &done),
                         CLATTN_OK);
        CL_OK(clWaitForEvents(1, &done));
        clReleaseEvent(done);
        check_memory(&m, what, true);
        close_memory(&m);
    }
    clattn_plan_destroy(&plan);
}

// The workspace and the mask as they were.
static void fill_again(struct memory *m)
{
    const size_t bytes = WORK_BEFORE + m->work_bytes + WORK_BEHIND;
    clReleaseMemObject(m->call.workspace.ptr);
    clReleaseMemObject(m->call.mask.buf.ptr);
    m->call.workspace.ptr = filled(m, NULL, bytes);
    m->call.mask.buf.ptr = filled(m, m->d.mask, m->floats[BUF_LSE] * (size_t)the_case.len_kv);
}

static void test_workspace_refusals(void **state)
{
    const struct test_target *t = *state;
    clattn_plan *plan = plan_of(t, &the_case, CLATTN_SOFTMAX_ONLINE);
    struct memory m;
    open_memory(&m, t, plan, 0);
    clattn_attention_call call = m.call;
    call.workspace.size_bytes = m.work_bytes - 4;
    assert_int_equal(clattn_attention_enqueue(plan, &call, m.queue, 0, NULL, NULL),
                     CLATTN_ERR_BUFFER_TOO_SMALL);
    call.workspace = (clattn_buf){0};
    assert_int_equal(clattn_attention_enqueue(plan, &call, m.queue, 0, NULL, NULL),
                     CLATTN_ERR_BUFFER_MISSING);
    // O in the last bytes of what the call uses, then just behind it.
    call = m.call;
    call.batch = 1;
    call.len_q = 1;
    call.o = (clattn_tensor){.buf = call.o.buf};
    size_t need = 0;
    assert_int_equal(clattn_plan_workspace_bytes(plan, &call, &need), CLATTN_OK);
    assert_true(need < m.work_bytes / 2);
    call.o.buf = call.workspace;
    call.o.buf.offset_bytes += need - 4;
    assert_int_equal(clattn_attention_enqueue(plan, &call, m.queue, 0, NULL, NULL),
                     CLATTN_ERR_OVERLAP);
    call.o.buf.offset_bytes += 4;
    call.lse.ptr = m.call.mask.buf.ptr;
    call.lse.offset_bytes = 0;
    call.mask.buf = m.call.q.buf; // any bytes will do
    assert_int_equal(clattn_attention_enqueue(plan, &call, m.queue, 0, NULL, NULL), CLATTN_OK);
    CL_OK(clFinish(m.queue));
    fill_again(&m);
    check_memory(&m, "after refusals", false);
    assert_int_equal(clattn_attention_enqueue(plan, &m.call, m.queue, 0, NULL, NULL), CLATTN_OK);
    CL_OK(clFinish(m.queue));
    check_memory(&m, "after refusals", true);
    close_memory(&m);
    clattn_plan_destroy(&plan);
}

// ---- limits -------------------------------------------------------------------------------------

static void test_limits(void **state)
{
    const struct test_target *t = *state;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = 1;
    desc.max_batch = 2;
    desc.max_len_q = desc.max_len_kv = 100000;
    desc.features = CLATTN_FEATURE_LSE;
    clattn_plan *plan = target_plan(t, desc);
    size_t bytes = 0;
    assert_int_equal(clattn_plan_workspace_bytes(plan, NULL, &bytes), CLATTN_OK);
    assert_true(bytes > (size_t)80000000000u && bytes < (size_t)81000000000u);

    const int32_t len = 40000; // times 10^5 keys
    float *x = calloc((size_t)len * DIM, sizeof *x), *o = malloc((size_t)len * DIM * 4);
    float *lse = malloc((size_t)len * 4);
    assert_true(x && o && lse);
    fill_unwritten(o, (size_t)len * DIM);
    fill_unwritten(lse, (size_t)len);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = len;
    call.len_kv = 100000;
    call.q.buf = call.k.buf = call.v.buf = clattn_host_buf(x, 0);
    call.q.layout = call.k.layout = call.v.layout = CLATTN_LAYOUT_STRIDED;
    call.q.stride_seq = DIM; // and one key for all of K and V
    call.o.buf = clattn_host_buf(o, 0);
    call.lse = clattn_host_buf(lse, 0);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_ERR_UNSUPPORTED);
    for (int n = 0; n < len * DIM; n++)
        assert_int_equal(float_bits(o[n]), UNWRITTEN_BITS);
    free(x);
    free(o);
    free(lse);
    clattn_plan_destroy(&plan);
}

// ---- values that are not finite -----------------------------------------------------------------

static void test_not_finite(void **state)
{
    const struct test_target *t = *state;
    clattn_plan *plan = plan_of(t, &the_case, CLATTN_SOFTMAX_ONLINE);
    for (int layout = 0; layout < LAYOUTS; layout += 3) {
        struct memory m;
        open_memory(&m, t, plan, layout);
        close_memory(&m);
        struct attn_data d;
        const struct attn_case *c = &the_case;
        assert_true(attn_data_make(c, &d));
        const size_t row = (size_t)c->dim, head = (size_t)c->len_kv * row;
        const size_t rows = (size_t)(c->batch * c->heads_q * c->len_q);
        // Near the end of the keys: the first queries do not see them, the last ones may.
        d.v[(size_t)(c->len_kv - 3) * row + 2] = NAN;
        d.v[head + (size_t)(c->len_kv - 2) * row + 5] = INFINITY;
        d.v[head + (size_t)3 * row + 5] = -INFINITY;
        d.k[2 * head + (size_t)(c->len_kv - 1) * row] = NAN;
        d.k[3 * head + (size_t)5 * row] = -INFINITY; // hidden or not by the sign of Q
        d.v[3 * head + (size_t)5 * row + 1] = NAN;
        d.v[3 * head + (size_t)8 * row] = 3e38f;
        assert_true(attn_expect(c, d.q, d.k, d.v, d.mask, d.o, d.lse));
        size_t finite = 0, not_finite = 0;
        for (size_t n = 0; n < rows * row; n++)
            *(isfinite(d.o[n]) ? &finite : &not_finite) += 1;
        assert_true(finite > 100 && not_finite > 10);
        float *o = malloc(rows * row * 4), *lse = malloc(rows * 4);
        assert_true(o && lse);
        fill_unwritten(o, rows * row);
        fill_unwritten(lse, rows);
        const clattn_attention_call call = case_host_call(c, d.q, d.k, d.v, d.mask, o, lse);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        d.tol_o.abs *= 4;
        d.tol_o.rel = 1e-5;
        check("values that are not finite", o, lse, c, &d);
        free(o);
        free(lse);
        attn_data_free(&d);
    }
    clattn_plan_destroy(&plan);
}

// ---- commands around it -------------------------------------------------------------------------

static cl_command_queue out_of_order(const struct memory *m)
{
    cl_int code;
    cl_command_queue queue =
        clCreateCommandQueue(m->context, clattn_context_cl_device(m->t->device->ctx),
                             CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    return code == CL_SUCCESS ? queue : NULL;
}

// The inputs come behind a user event that is set after the call has returned, so a call that
// waited would never return; `done` must cover what CLBlast does.
static void behind_user_event(struct memory *m, cl_command_queue queue, const char *what)
{
    cl_int code;
    cl_event go = clCreateUserEvent(m->context, &code), filled_q, done;
    CL_OK(code);
    float *q = malloc(m->floats[BUF_Q] * 4), zero = 0;
    assert_non_null(q);
    read_all(m, &m->call.q.buf, q, m->floats[BUF_Q]);
    CL_OK(clEnqueueFillBuffer(m->queue, m->call.q.buf.ptr, &zero, 4, 0, m->floats[BUF_Q] * 4, 0,
                              NULL, NULL));
    CL_OK(clFinish(m->queue));
    CL_OK(clEnqueueWriteBuffer(queue, m->call.q.buf.ptr, CL_FALSE, 0, m->floats[BUF_Q] * 4, q, 1,
                               &go, &filled_q));
    watchdog(what, 60);
    assert_int_equal(clattn_attention_enqueue(m->plan, &m->call, queue, 1, &filled_q, &done),
                     CLATTN_OK);
    sleep_ms(20);
    cl_int status;
    CL_OK(clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    assert_true(status > CL_COMPLETE);
    CL_OK(clSetUserEventStatus(go, CL_COMPLETE));
    CL_OK(clWaitForEvents(1, &done));
    CL_OK(clFinish(queue));
    watchdog(what, 0);
    check_memory(m, what, true);
    clReleaseEvent(go);
    clReleaseEvent(filled_q);
    clReleaseEvent(done);
    free(q);
}

static void test_user_event(void **state)
{
    const struct test_target *t = *state;
    clattn_plan *plan = plan_of(t, &the_case, CLATTN_SOFTMAX_ONLINE);
    for (int layout = 0; layout < LAYOUTS; layout += 3) {
        struct memory m;
        open_memory(&m, t, plan, layout);
        behind_user_event(&m, m.queue, "unfused behind a user event, in order");
        close_memory(&m);
        open_memory(&m, t, plan, layout);
        cl_command_queue queue = out_of_order(&m);
        if (queue) {
            behind_user_event(&m, queue, "unfused behind a user event, out of order");
            clReleaseCommandQueue(queue);
        } else {
            printf("%s: no queue out of order\n", t->name);
        }
        close_memory(&m);
    }
    clattn_plan_destroy(&plan);
}

struct job {
    clattn_plan *plan;
    struct attn_data d;
    struct attn_case c;
    int failed;
};

static void run_job(void *arg)
{
    struct job *j = arg;
    const size_t rows = (size_t)(j->c.batch * j->c.heads_q * j->c.len_q);
    float *o = malloc(rows * (size_t)j->c.dim * 4), *lse = malloc(rows * 4);
    for (int n = 0; o && lse && n < 10; n++) {
        const clattn_attention_call call =
            case_host_call(&j->c, j->d.q, j->d.k, j->d.v, j->d.mask, o, lse);
        struct compare_report r;
        if (clattn_attention_run(j->plan, &call) != CLATTN_OK ||
            !compare(o, j->d.o, rows * (size_t)j->c.dim, &j->d.tol_o, &r))
            j->failed++;
    }
    free(o);
    free(lse);
}

static void test_threads(void **state)
{
    const struct test_target *t = *state;
    if (!takes_threads(&t->device->info)) {
        printf("%s: not from several threads\n", t->name);
        return;
    }
    enum { JOBS = 3 };
    struct job job[JOBS];
    struct test_thread *thread[JOBS];
    clattn_plan *plan = plan_of(t, &the_case, CLATTN_SOFTMAX_ONLINE);
    for (int n = 0; n < JOBS; n++) {
        job[n] = (struct job){.plan = plan, .c = the_case};
        job[n].c.seed += (uint64_t)n;
        job[n].c.len_q += n;
        assert_true(attn_data_make(&job[n].c, &job[n].d));
    }
    for (int n = 0; n < JOBS; n++)
        thread[n] = thread_start(run_job, &job[n]);
    for (int n = 0; n < JOBS; n++) {
        thread_join(thread[n]);
        assert_int_equal(job[n].failed, 0);
        attn_data_free(&job[n].d);
    }
    clattn_plan_destroy(&plan);
}

int main(int argc, char **argv)
{
    // Oclgrind, which runs the small ones, takes seconds for a product of CLBlast.
    static const struct target_test tests[] = {
        {"three softmaxes", test_softmaxes, LEVEL_SMALL},
        {"three softmaxes, masks and groups", test_softmaxes_with_features, LEVEL_MEDIUM},
        {"parts of long rows", test_parts, LEVEL_MEDIUM},
        {"layouts", test_layouts, LEVEL_SMALL},
        {"refused workspaces", test_workspace_refusals, LEVEL_SMALL},
        {"limits", test_limits, LEVEL_SMALL},
        {"values that are not finite", test_not_finite, LEVEL_SMALL},
        {"a user event", test_user_event, LEVEL_MEDIUM},
        {"threads", test_threads, LEVEL_SMALL},
    };
    // Without CLBlast there is nothing to test but the refusal, which a unit test has.
    void *blast = dlopen("libclblast.so.1", RTLD_NOW);
    if (!blast) {
        printf("skipped: no CLBlast here: %s\n", dlerror());
        return SKIP_STATUS;
    }
    setenv("CLATTN_TEST_ALGOS", "unfused", 1);
    return targets_main("unfused", argc, argv, tests, (int)(sizeof tests / sizeof *tests));
}
