// SPDX-License-Identifier: Apache-2.0
// Attention on every device with every kernel shape, and on the CPU path, against the reference.
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
#include "run_case.h"
#include "thread.h"

// What a case computes on is made once for all targets of this process.
static struct attn_data *kept_data;

static const struct attn_data *data_of(int n, const struct attn_case *c, int count)
{
    if (!kept_data)
        kept_data = calloc((size_t)count, sizeof *kept_data);
    assert_non_null(kept_data);
    if (!kept_data[n].o && !attn_data_make(c, &kept_data[n]))
        fail_msg("no data for case %s", c->name);
    return &kept_data[n];
}

static void free_data(int count)
{
    for (int n = 0; kept_data && n < count; n++)
        attn_data_free(&kept_data[n]);
    free(kept_data);
    kept_data = NULL;
}

static void test_case_list(void **state)
{
    struct test_target *t = *state;
    int count = 0, ran = 0, failed = 0;
    double worst = 0;
    // Only programs are worth sharing out: their compilation is what takes long.
    const int mine = t->algo == CLATTN_ALGO_FUSED ? test_share() : 0;
    const struct attn_case *cases = attn_cases(&count);
    assert_non_null(cases);
    for (int n = 0; n < count; n++) {
        if (cases[n].level > t->level || (mine && cases[n].share && cases[n].share != mine))
            continue;
        const struct attn_data *d = data_of(n, &cases[n], count);
        // Host and device memory take turns; some cases go through both.
        const bool host = n % 3 != 0, device = n % 3 != 1;
        if (host)
            failed += !run_case(t, &cases[n], d, MEMORY_HOST, n % 4 == 0, &worst);
        if (device)
            failed += !run_case(t, &cases[n], d, MEMORY_DEVICE, n % 4 == 2, &worst);
        ran++;
    }
    printf("%s: %d cases, %d failed, worst error %.2f of the tolerance\n", t->name, ran, failed,
           worst);
    assert_true(ran > 0);
    assert_int_equal(failed, 0);
}

// ---- one plan, all lengths ----------------------------------------------------------------------

static void run_lengths(struct test_target *t, int32_t most, bool causal)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 16;
    desc.heads_q = 1;
    desc.features = CLATTN_FEATURE_LSE | (causal ? CLATTN_FEATURE_CAUSAL : 0);
    desc.max_batch = 1;
    desc.max_len_q = most;
    desc.max_len_kv = most;
    const uint64_t before = clattn_context_build_count(t->device->ctx);
    clattn_plan *plan = target_plan(t, desc);
    const uint64_t made = clattn_context_build_count(t->device->ctx);
    printf("%s: lengths 1 to %d: the plan took %llu builds\n", t->name, most,
           (unsigned long long)(made - before));
    if (t->algo == CLATTN_ALGO_FUSED)
        assert_true(made - before <= 1);
    int failed = 0;
    for (int32_t n = 1; n <= most; n++) {
        // 11 has no factor in common with 300: both lengths take every value once.
        const struct attn_case c = {.name = "lengths", .dim = 16, .batch = 1, .heads_q = 1,
                                    .heads_kv = 1, .len_q = n, .len_kv = 1 + n * 11 % most,
                                    .causal = causal, .seed = 50000u + (uint64_t)n};
        struct attn_data d;
        assert_true(attn_data_make(&c, &d));
        const size_t rows = (size_t)n;
        float *o = malloc((rows * 16 + 1) * sizeof *o), *lse = malloc((rows + 1) * sizeof *lse);
        assert_true(o && lse);
        fill_unwritten(o, rows * 16 + 1);
        fill_unwritten(lse, rows + 1);
        const clattn_attention_call call = case_host_call(&c, d.q, d.k, d.v, NULL, o, lse);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        struct compare_report ro, rl;
        const bool ok = compare(o, d.o, rows * 16, &d.tol_o, &ro);
        if (!compare(lse, d.lse, rows, &d.tol_lse, &rl) || !ok) {
            printf("  len %d x %d\n", c.len_q, c.len_kv);
            compare_print("O", &ro);
            compare_print("LSE", &rl);
            failed++;
        }
        assert_int_equal(float_bits(o[rows * 16]), UNWRITTEN_BITS);
        assert_int_equal(float_bits(lse[rows]), UNWRITTEN_BITS);
        free(o);
        free(lse);
        attn_data_free(&d);
    }
    assert_int_equal(clattn_context_build_count(t->device->ctx), made);
    clattn_plan_destroy(&plan);
    assert_int_equal(failed, 0);
}

static void test_lengths(void **state)
{
    struct test_target *t = *state;
    const int32_t most = t->level == LEVEL_SMALL ? 40 : 300;
    run_lengths(t, most, false);
    if (t->level == LEVEL_FULL)
        run_lengths(t, most, true);
}

// ---- empty problems -----------------------------------------------------------------------------

static void test_empty(void **state)
{
    struct test_target *t = *state;
    const struct attn_case c = {.name = "empty", .dim = 16, .batch = 2, .heads_q = 2,
                                .heads_kv = 1, .len_q = 3, .len_kv = 5, .seed = 1};
    clattn_plan *plan = case_plan(t, &c);
    float q[2 * 2 * 3 * 16], k[2 * 5 * 16], v[2 * 5 * 16];
    float o[2 * 2 * 3 * 16 + 1], lse[2 * 2 * 3 + 1];
    for (size_t n = 0; n < sizeof q / sizeof *q; n++)
        q[n] = (float)(n % 7) - 3;
    for (size_t n = 0; n < sizeof k / sizeof *k; n++)
        k[n] = v[n] = (float)(n % 5) - 2;
    const size_t count_o = sizeof o / sizeof *o, count_lse = sizeof lse / sizeof *lse;

    // Nothing to write: everything stays, and the tensors need not exist.
    for (int which = 0; which < 2; which++) {
        fill_unwritten(o, count_o);
        fill_unwritten(lse, count_lse);
        clattn_attention_call call = case_host_call(&c, q, k, v, NULL, o, lse);
        if (which)
            call.batch = 0;
        else
            call.len_q = 0;
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        for (size_t n = 0; n < count_o; n++)
            assert_int_equal(float_bits(o[n]), UNWRITTEN_BITS);
        for (size_t n = 0; n < count_lse; n++)
            assert_int_equal(float_bits(lse[n]), UNWRITTEN_BITS);
        call.q.buf = call.o.buf = call.lse = clattn_host_buf(NULL, 0);
        if (which)
            call.k.buf = call.v.buf = call.q.buf;
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    }

    // No keys: zeros and -infinity, up to the end and no further.
    for (int which = 0; which < 2; which++) {
        fill_unwritten(o, count_o);
        fill_unwritten(lse, count_lse);
        clattn_attention_call call = case_host_call(&c, q, k, v, NULL, o, lse);
        call.len_kv = 0;
        if (which)
            call.k.buf = call.v.buf = clattn_host_buf(NULL, 0);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
        for (size_t n = 0; n + 1 < count_o; n++)
            assert_true(o[n] == 0);
        for (size_t n = 0; n + 1 < count_lse; n++)
            assert_true(isinf(lse[n]) && lse[n] < 0);
        assert_int_equal(float_bits(o[count_o - 1]), UNWRITTEN_BITS);
        assert_int_equal(float_bits(lse[count_lse - 1]), UNWRITTEN_BITS);
    }
}

// ---- two threads, one plan ----------------------------------------------------------------------

struct job {
    const clattn_plan *plan;
    struct attn_case c;
    struct attn_data d;
    int rounds, failed;
};

static void run_job(void *arg)
{
    struct job *j = arg;
    const size_t rows = (size_t)j->c.batch * (size_t)j->c.heads_q * (size_t)j->c.len_q;
    const size_t count = rows * (size_t)j->c.dim;
    float *o = malloc(count * sizeof *o), *lse = malloc(rows * sizeof *lse);
    for (int n = 0; n < j->rounds; n++) {
        if (!o || !lse) {
            j->failed++;
            break;
        }
        fill_unwritten(o, count);
        fill_unwritten(lse, rows);
        const clattn_attention_call call =
            case_host_call(&j->c, j->d.q, j->d.k, j->d.v, NULL, o, lse);
        struct compare_report ro, rl;
        j->failed += clattn_attention_run(j->plan, &call) != CLATTN_OK ||
                     !compare(o, j->d.o, count, &j->d.tol_o, &ro) ||
                     !compare(lse, j->d.lse, rows, &j->d.tol_lse, &rl);
    }
    free(o);
    free(lse);
}

static void test_threads(void **state)
{
    struct test_target *t = *state;
    if (strcmp(t->device->info.platform, "Oclgrind") == 0)
        skip(); // see takes_threads(); elsewhere blocking calls are safe, or take turns
    enum { THREADS = 4 };
    struct job jobs[THREADS];
    struct test_thread *threads[THREADS];
    memset(jobs, 0, sizeof jobs);
    for (int n = 0; n < THREADS; n++) {
        jobs[n].c = (struct attn_case){.dim = 16, .batch = 1, .heads_q = 2, .heads_kv = 1,
                                       .len_q = 9 + 20 * n, .len_kv = 70 - 15 * n,
                                       .seed = 701u + 4u * (uint64_t)n};
        jobs[n].plan = case_plan(t, &jobs[n].c);
        jobs[n].rounds = t->level == LEVEL_SMALL ? 2 : 25;
        assert_true(attn_data_make(&jobs[n].c, &jobs[n].d));
        assert_ptr_equal(jobs[n].plan, jobs[0].plan);
    }
    for (int n = 0; n < THREADS; n++)
        threads[n] = thread_start(run_job, &jobs[n]);
    int failed = 0;
    for (int n = 0; n < THREADS; n++) {
        thread_join(threads[n]);
        failed += jobs[n].failed;
        attn_data_free(&jobs[n].d);
    }
    assert_int_equal(failed, 0);
}

// ---- long rows ----------------------------------------------------------------------------------

enum { QUIRK_LOOP_LIMIT = 1 << 2 }; // in clattn_device_info.quirks

static bool all_unwritten(const float *x, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        uint32_t bits;
        memcpy(&bits, &x[n], sizeof bits);
        if (bits != UNWRITTEN_BITS)
            return false;
    }
    return true;
}

// Largest error over V's largest element, for `keys` keys and `len_q` queries of 8 channels.
static double long_row_error(struct test_target *t, int32_t keys, bool uniform, double *lse_error)
{
    enum { DIM = 8, LEN_Q = 3 };
    struct attn_case c = {.name = "long", .dim = DIM, .batch = 1, .heads_q = 1, .heads_kv = 1,
                          .len_q = LEN_Q, .len_kv = keys, .seed = 9001};
    float *k = malloc((size_t)keys * DIM * sizeof *k), *v = malloc((size_t)keys * DIM * sizeof *v);
    float q[LEN_Q * DIM], o[LEN_Q * DIM], lse[LEN_Q], want_o[LEN_Q * DIM], want_lse[LEN_Q];
    assert_true(k && v);
    uint64_t rng = c.seed;
    double v_max = 0;
    for (size_t n = 0; n < LEN_Q * DIM; n++)
        q[n] = uniform ? 0 : rng_normal(&rng);
    for (size_t n = 0; n < (size_t)keys * DIM; n++) {
        k[n] = rng_normal(&rng);
        v[n] = uniform ? 0.7f : rng_normal(&rng);
        v_max = fmax(v_max, fabs((double)v[n]));
    }
    assert_true(attn_expect(&c, q, k, v, NULL, want_o, want_lse));
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = 1;
    desc.features = CLATTN_FEATURE_LSE;
    desc.max_len_q = 16;
    desc.max_len_kv = keys;
    clattn_plan *plan = target_plan(t, desc);
    fill_unwritten(o, LEN_Q * DIM);
    fill_unwritten(lse, LEN_Q);
    const clattn_attention_call call = case_host_call(&c, q, k, v, NULL, o, lse);
    const clattn_status st = clattn_attention_run(plan, &call);
    double error = 0;
    *lse_error = 0;
    if (st == CLATTN_ERR_UNSUPPORTED) { // only where the driver is known to stop such loops
        assert_true(t->device->info.quirks & QUIRK_LOOP_LIMIT);
        assert_true(all_unwritten(o, LEN_Q * DIM) && all_unwritten(lse, LEN_Q));
        clattn_plan_destroy(&plan);
        // Without a wish for an algorithm the CPU path takes over.
        assert_int_equal(clattn_attention_plan_create(t->device->ctx, &desc, &plan), CLATTN_OK);
        assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    } else {
        assert_int_equal(st, CLATTN_OK);
    }
    for (size_t n = 0; n < LEN_Q * DIM; n++) {
        assert_true(isfinite(o[n]));
        error = fmax(error, fabs((double)o[n] - want_o[n]));
    }
    for (size_t n = 0; n < LEN_Q; n++) {
        assert_true(isfinite(lse[n]));
        *lse_error = fmax(*lse_error, fabs((double)lse[n] - want_lse[n]));
    }
    clattn_plan_destroy(&plan);
    free(k);
    free(v);
    return error / v_max;
}

static void test_long_rows(void **state)
{
    struct test_target *t = *state;
    const int32_t keys = t->level == LEVEL_SMALL ? 20000 : 1000000;
    double lse_uniform, lse_normal;
    const double uniform = long_row_error(t, keys, true, &lse_uniform);
    const double normal = long_row_error(t, keys, false, &lse_normal);
    printf("%s: %d keys: error of O %.2e (uniform) and %.2e (normal) of max |V|, of LSE %.2e and "
           "%.2e\n",
           t->name, keys, uniform, normal, lse_uniform, lse_normal);
    assert_true(uniform < 8e-6);
    assert_true(normal < 1e-6);
    // ln of a sum that is right to 8e-6, and the rounding of a number around 14.
    assert_true(lse_uniform < 1e-5);
    assert_true(lse_normal < 1e-5);
}

// ---- choices ------------------------------------------------------------------------------------

// Without any wish the plan takes the device's own kernel shape, and calls are right.
static void test_automatic(void **state)
{
    struct test_target *t = *state;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 16;
    desc.heads_q = 2;
    desc.features = CLATTN_FEATURE_LSE;
    clattn_plan *plan = NULL;
    assert_int_equal(clattn_attention_plan_create(t->device->ctx, &desc, &plan), CLATTN_OK);
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    printf("%s: chosen %s %s, tile %d x %d, group %d, width %d, local %zu bytes: %s\n",
           t->device->tag, info.algo_name, info.kernel_name, info.tile_q, info.tile_k,
           info.group_size, info.vector_width, info.local_bytes, info.reason);
    if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU) {
        assert_int_equal(info.algo, CLATTN_ALGO_HOST);
        assert_string_equal(info.build_options, "");
    } else {
        assert_int_equal(info.algo, CLATTN_ALGO_FUSED);
        assert_int_equal(info.kernel, t->device->info.vector_shape ? CLATTN_KERNEL_VECTOR
                                                                   : CLATTN_KERNEL_GROUP);
        assert_true(strlen(info.build_options) > 0);
        assert_true(info.local_bytes <= t->device->info.local_bytes);
        assert_true((size_t)info.group_size <= t->device->info.max_group);
        assert_true(strlen(info.kernel_name) > 0);
    }
    assert_int_equal(info.is_fallback, 0);
    assert_true(info.tile_q > 0 && info.tile_k > 0);
    assert_null(clattn_plan_get_refusal(plan, info.num_refusals));
    struct attn_case c = {.dim = 16, .batch = 2, .heads_q = 2, .heads_kv = 2, .len_q = 21,
                          .len_kv = 30, .seed = 77};
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    float o[2 * 2 * 21 * 16], lse[2 * 2 * 21];
    fill_unwritten(o, sizeof o / sizeof *o);
    fill_unwritten(lse, sizeof lse / sizeof *lse);
    const clattn_attention_call call = case_host_call(&c, d.q, d.k, d.v, NULL, o, lse);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);
    struct compare_report r;
    if (!compare(o, d.o, sizeof o / sizeof *o, &d.tol_o, &r)) {
        compare_print("O", &r);
        fail();
    }
    attn_data_free(&d);
    clattn_plan_destroy(&plan);
    assert_null(plan);
}

// The call of one line, twice, so that the second takes the kept plan.
static void test_one_call(void **state)
{
    struct test_target *t = *state;
    struct attn_case c = {.dim = 16, .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 7,
                          .len_kv = 19, .causal = true, .seed = 78};
    struct attn_data d;
    assert_true(attn_data_make(&c, &d));
    uint64_t builds = 0;
    for (int n = 0; n < 2; n++) {
        float o[2 * 4 * 7 * 16 + 1];
        const size_t count = sizeof o / sizeof *o - 1;
        fill_unwritten(o, count + 1);
        assert_int_equal(clattn_attention_f32(t->device->ctx, d.q, d.k, d.v, o, 2, 4, 2, 7, 19, 16,
                                              1),
                         CLATTN_OK);
        struct compare_report r;
        if (!compare(o, d.o, count, &d.tol_o, &r)) {
            compare_print("O", &r);
            fail();
        }
        assert_int_equal(float_bits(o[count]), UNWRITTEN_BITS);
        if (n == 1)
            assert_int_equal(clattn_context_build_count(t->device->ctx), builds);
        builds = clattn_context_build_count(t->device->ctx);
    }
    attn_data_free(&d);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"automatic choice", test_automatic, LEVEL_SMALL},
        {"list of cases", test_case_list, LEVEL_SMALL},
        {"every length on one plan", test_lengths, LEVEL_SMALL},
        {"empty problems", test_empty, LEVEL_SMALL},
        {"threads on one plan", test_threads, LEVEL_SMALL},
        {"long rows", test_long_rows, LEVEL_SMALL},
        {"one call for everything", test_one_call, LEVEL_SMALL},
    };
    targets_with_subgroups = true;
    const int status = targets_main("fused", argc, argv, tests, sizeof tests / sizeof *tests);
    int count = 0;
    attn_cases(&count);
    free_data(count);
    return status;
}
