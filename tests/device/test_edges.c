// SPDX-License-Identifier: Apache-2.0
// Edges of the float range, rows of an output among another's, and what small calls refuse.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "thread.h"

enum { HEADS = 8, LEN = 37, DIM = 24, KEYS = 300 };

// One head of LEN queries and KEYS keys, and what comes out, in double.
struct one {
    float q[LEN * DIM], k[KEYS * DIM], v[KEYS * DIM];
    float o[LEN * DIM], lse[LEN];
    float scale;
};

static void fill(struct one *a, double size_q, double size_k, double size_v, double scale)
{
    uint64_t seed = 11;
    for (int i = 0; i < LEN * DIM; i++)
        a->q[i] = (float)(size_q * (double)rng_normal(&seed));
    for (int i = 0; i < KEYS * DIM; i++) {
        a->k[i] = (float)(size_k * (double)rng_normal(&seed));
        a->v[i] = (float)(size_v * (1.0 - 0.5 * rng_uniform(&seed)));
    }
    a->scale = (float)scale;
}

static void expect_row(const struct one *a, int i, double *o, double *lse)
{
    double x[KEYS], m = -INFINITY, l = 0.0;
    for (int j = 0; j < KEYS; j++) {
        x[j] = 0.0;
        for (int d = 0; d < DIM; d++)
            x[j] += (double)a->q[i * DIM + d] * (double)a->k[j * DIM + d];
        x[j] *= (double)a->scale;
        m = x[j] > m ? x[j] : m;
    }
    for (int d = 0; d < DIM; d++)
        o[d] = 0.0;
    for (int j = 0; j < KEYS; j++) {
        const double p = exp(x[j] - m);
        l += p;
        for (int d = 0; d < DIM; d++)
            o[d] += p * (double)a->v[j * DIM + d];
    }
    for (int d = 0; d < DIM; d++)
        o[d] /= l;
    *lse = m + log(l);
}

static clattn_plan *plan_for(const struct test_target *t, int heads, int max_len_kv)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.heads_q = heads;
    desc.dim_qk = DIM;
    desc.features = CLATTN_FEATURE_LSE;
    desc.max_len_kv = max_len_kv;
    return target_plan(t, desc);
}

static void run_one(const struct test_target *t, struct one *a, int max_len_kv, const char *what)
{
    clattn_plan *plan = plan_for(t, 1, max_len_kv);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = LEN;
    call.len_kv = KEYS;
    call.set = CLATTN_SET_SCALE;
    call.scale = a->scale;
    call.q.buf = clattn_host_buf(a->q, sizeof a->q);
    call.k.buf = clattn_host_buf(a->k, sizeof a->k);
    call.v.buf = clattn_host_buf(a->v, sizeof a->v);
    call.o.buf = clattn_host_buf(a->o, sizeof a->o);
    call.lse = clattn_host_buf(a->lse, sizeof a->lse);
    fill_unwritten(a->o, LEN * DIM);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    clattn_plan_destroy(&plan);
    for (int i = 0; i < LEN; i++) {
        double o[DIM], lse;
        expect_row(a, i, o, &lse);
        for (int d = 0; d < DIM; d++)
            if (!(fabs((double)a->o[i * DIM + d] - o[d]) <= 3e-5 * fabs(o[d])))
                fail_msg("%s: %s: o[%d][%d] is %g, expected %g", t->name, what, i, d,
                         (double)a->o[i * DIM + d], o[d]);
        if (!(fabs((double)a->lse[i] - lse) <= 2e-5 + 1e-6 * fabs(lse)))
            fail_msg("%s: %s: lse[%d] is %g, expected %g", t->name, what, i, (double)a->lse[i],
                     lse);
    }
}

// Any finite scale: neither dot product nor score overflows here, so nothing else may.
static void test_scales(void **state)
{
    struct test_target *t = *state;
    static const struct {
        double q, k, scale;
    } rows[] = {{1e10, 1e-38, 1e28}, {1e-20, 1e-20, 1e38}, {1e18, 1e18, 1e-36}, {1e-3, 1e36, 1e-34},
                {1, 1, -3},          {1, 1, 0},            {1, 1, 1.0000001},   {2, 3, 1e-6}};
    struct one *a = malloc(sizeof *a);
    assert_non_null(a);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        char what[80];
        snprintf(what, sizeof what, "q %g, k %g, scale %g", rows[n].q, rows[n].k, rows[n].scale);
        fill(a, rows[n].q, rows[n].k, 1.0, rows[n].scale);
        run_one(t, a, KEYS, what);
    }
    free(a);
}

// A mean of finite values is finite, also where their sum is not.
static void test_large_values(void **state)
{
    struct test_target *t = *state;
    struct one *a = malloc(sizeof *a);
    assert_non_null(a);
    fill(a, 1.0, 1.0, (double)FLT_MAX, 0.2);
    run_one(t, a, KEYS, "V up to FLT_MAX");
    run_one(t, a, 0, "V up to FLT_MAX, rows of any length");
    fill(a, 1.0, 0.0, -1e38, 0.2);
    run_one(t, a, KEYS, "V about -1e38, equal weights");
    free(a);
}

// ---- rows among another's ----------------------------------------------------------------------

enum { TEAMS = 2, ROUNDS = 40 };

struct team {
    const struct test_target *t;
    clattn_plan *plan;
    float *q, *k, *v, *o; // o: [LEN][HEADS][DIM], a team has HEADS / TEAMS heads of it
    const float *want;
    int first, wrong, failed;
};

static void run_team(struct team *m)
{
    const size_t heads = HEADS / TEAMS;
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;
    call.q.buf = clattn_host_buf(m->q, 0);
    call.k.buf = clattn_host_buf(m->k, 0);
    call.v.buf = clattn_host_buf(m->v, 0);
    call.o.buf = clattn_host_buf(m->o, 0);
    call.o.buf.offset_bytes = (size_t)m->first * DIM * sizeof(float);
    call.o.layout = CLATTN_LAYOUT_STRIDED;
    call.o.stride_head = DIM;
    call.o.stride_seq = HEADS * DIM;
    call.o.stride_batch = LEN * HEADS * DIM;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LEN; i++)
            fill_unwritten(m->o + (i * HEADS + m->first) * DIM, heads * DIM);
        m->failed += clattn_attention_run(m->plan, &call) != CLATTN_OK;
        bool good = true;
        for (int i = 0; i < LEN && good; i++)
            good = memcmp(m->o + (i * HEADS + m->first) * DIM, m->want + i * (int)heads * DIM,
                          heads * DIM * sizeof(float)) == 0;
        m->wrong += !good;
    }
}

static void team_thread(void *arg)
{
    run_team(arg);
}

// Two threads write rows that lie among each other's. `shift`: floats from an aligned address, so
// that device memory is the host's own or a copy.
static void interleave(const struct test_target *t, int shift, bool threads)
{
    const size_t heads = HEADS / TEAMS, n = heads * LEN * DIM;
    float *in = malloc(3 * n * sizeof *in), *out = malloc((LEN * HEADS * DIM + 64) * sizeof *out);
    float *want = malloc(n * sizeof *want);
    assert_true(in && out && want);
    uint64_t seed = 5;
    for (size_t i = 0; i < 3 * n; i++)
        in[i] = rng_normal(&seed);
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.heads_q = (int32_t)heads;
    desc.dim_qk = DIM;
    clattn_plan *plan = target_plan(t, desc);
    // What one thread gets, dense, in the order of the strided rows.
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;
    call.q.buf = clattn_host_buf(in, 0);
    call.k.buf = clattn_host_buf(in + n, 0);
    call.v.buf = clattn_host_buf(in + 2 * n, 0);
    call.o.buf = clattn_host_buf(want, 0);
    call.o.layout = CLATTN_LAYOUT_BSHD;
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);

    float *o = (float *)(((uintptr_t)out + 63) / 64 * 64) + shift;
    struct team team[TEAMS];
    struct test_thread *thread[TEAMS] = {NULL};
    for (int i = 0; i < TEAMS; i++) {
        team[i] = (struct team){t, plan, in, in + n, in + 2 * n, o, want, i * (int)heads, 0, 0};
        if (threads)
            thread[i] = thread_start(team_thread, &team[i]);
        else
            run_team(&team[i]);
    }
    for (int i = 0; i < TEAMS; i++) {
        if (threads)
            thread_join(thread[i]);
        if (team[i].wrong || team[i].failed)
            fail_msg("%s: shift %d: thread %d had %d wrong and %d failed of %d", t->name, shift, i,
                     team[i].wrong, team[i].failed, ROUNDS);
    }
    clattn_plan_destroy(&plan);
    free(in);
    free(out);
    free(want);
}

static void test_interleaved(void **state)
{
    struct test_target *t = *state;
    const bool threads = takes_threads(&t->device->info);
    interleave(t, 0, threads);
    interleave(t, 1, threads);
}

// ---- small calls -------------------------------------------------------------------------------

static void test_copies(void **state)
{
    struct test_target *t = *state;
    clattn_context *ctx = t->device->ctx;
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    clattn_buf buf = {0};
    assert_int_equal(clattn_mem_create(ctx, sizeof x, &buf), CLATTN_OK);
    assert_int_equal(clattn_mem_write(ctx, &buf, x, sizeof x), CLATTN_OK);
    clattn_buf bad = buf;
    bad.kind = 9;
    assert_int_equal(clattn_mem_read(ctx, &bad, y, sizeof y), CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(clattn_mem_write(ctx, &bad, x, sizeof x), CLATTN_ERR_INVALID_ARGUMENT);
    bad = buf;
    bad.offset_bytes = 4;
    assert_int_equal(clattn_mem_write(ctx, &bad, x, sizeof x), CLATTN_ERR_BUFFER_TOO_SMALL);
    if (buf.kind == CLATTN_BUF_CL_MEM) {
        bad.size_bytes = 0; // means the whole
        assert_int_equal(clattn_mem_write(ctx, &bad, x, sizeof x), CLATTN_ERR_BUFFER_TOO_SMALL);
        bad.size_bytes = 1000; // more than there is
        assert_int_equal(clattn_mem_read(ctx, &bad, y, sizeof y), CLATTN_ERR_BUFFER_TOO_SMALL);
    }
    assert_int_equal(clattn_mem_read(ctx, &buf, y, sizeof y), CLATTN_OK);
    assert_memory_equal(x, y, sizeof x);
    clattn_mem_destroy(ctx, &buf);
    assert_null(buf.ptr);
}

static void test_one_line_heads(void **state)
{
    struct test_target *t = *state;
    float x[16] = {0}, o[16];
    fill_unwritten(o, 16);
    for (int32_t heads = -1; heads < 1; heads++)
        assert_int_equal(clattn_attention_f32(t->device->ctx, x, x, x, o, 1, 2, heads, 2, 2, 4, 0),
                         CLATTN_ERR_INVALID_ARGUMENT);
    assert_int_equal(float_bits(o[0]), UNWRITTEN_BITS);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"any finite scale", test_scales, LEVEL_SMALL},
        {"values near FLT_MAX", test_large_values, LEVEL_SMALL},
        {"rows of O among another thread's", test_interleaved, LEVEL_MEDIUM},
        {"copies", test_copies, LEVEL_MEDIUM},
        {"no key heads in one line", test_one_line_heads, LEVEL_MEDIUM},
    };
    targets_with_subgroups = true;
    return targets_main("edges", argc, argv, tests, sizeof tests / sizeof *tests);
}
