// SPDX-License-Identifier: Apache-2.0
// Calls from bytes: the checker of calls, and the CPU path. Each buffer is memory of its own of
// exactly the size that the call says, so that the sanitizer sees a step beside it. What is
// accepted is within its memory, by arithmetic of this file, and a call of few products is
// computed: every element that is nobody's stays as it was, every other one is the reference's
// within the error of float32.
#include <float.h>
#include <math.h>

#include "call_data.h"

enum { PRODUCTS_MOST = 30000 };

static clattn_plan *plan_of(clattn_context *ctx, const clattn_attention_desc *desc, int32_t algo)
{
    clattn_attention_desc d = *desc;
    clattn_plan *plan = NULL;
    d.algo = algo;
    d.flags = 0;
    const clattn_status st = clattn_attention_plan_create(ctx, &d, &plan);
    FUZZ_CHECK((st == CLATTN_OK) == (plan != NULL), "status %d", (int)st);
    return plan;
}

// ---- comparison --------------------------------------------------------------------------------

// The unit of the error, docs/math.md: scores lose as many eps as their terms are large.
struct tolerance {
    double lse, o, o_part;
    bool numbers; // whether they may be compared: nothing comes near the range's end
};

static struct tolerance tolerance_of(const clattn_attention_desc *d, const struct call_data *c)
{
    static const double half_unit[] = {0, 0x1p-11, 0x1p-8};
    const double scale = c->call.set & CLATTN_SET_SCALE ? fabs((double)c->call.scale)
                                                        : 1 / sqrt((double)d->dim_qk);
    const double dot = d->dim_qk * c->largest[DATA_Q] * c->largest[DATA_K];
    const double score = scale * dot + c->largest[DATA_BIAS] +
                         c->largest[DATA_ALIBI] * ((double)c->call.len_q + c->call.len_kv);
    const double unit = (8 + score + sqrt((double)c->call.len_kv)) * (double)FLT_EPSILON;
    const bool all_16 = d->dtype_q != CLATTN_DTYPE_F32 && d->dtype_kv == d->dtype_q &&
                        d->dtype_o == d->dtype_q;
    const double rounding = half_unit[d->dtype_o], v = c->largest[DATA_V];
    struct tolerance t = {.lse = unit, .o = unit * v + (all_16 ? rounding * v : 0),
                          .o_part = 4 * (double)FLT_EPSILON + 2 * rounding};
    // Both are rounded to O's type, perhaps apart; the second number is a denormal's unit.
    t.o += d->dtype_o == CLATTN_DTYPE_F16 ? 0x1p-24 : 0x1p-133;
    t.numbers = dot < 1e37 && score < 1e37 &&
                !(c->call.softcap > 0 && c->call.softcap < 1e-30f);
    return t;
}

FUZZ_SILENT
static bool close_to(double got, double want, double all, double part)
{
    return fabs(got - want) <= all + part * fabs(want);
}

FUZZ_SILENT
static void check_row(const clattn_attention_desc *d, const struct call_data *c,
                      const struct tolerance *t, const struct row *row)
{
    double want_lse = 0;
    if (d->features & CLATTN_FEATURE_LSE) {
        const double got = call_data_lse(c, 0, row);
        want_lse = call_data_lse(c, 1, row);
        const bool same = isnan(want_lse)   ? isnan(got)
                          : isinf(want_lse) ? got == want_lse
                                            : close_to(got, want_lse, t->lse,
                                                       4 * (double)FLT_EPSILON);
        FUZZ_CHECK(!t->numbers || same, "b %d h %d i %d: LSE %.9g, the reference's %.9g",
                   row->b, row->h, row->i, got, want_lse);
        FUZZ_CHECK(!isinf(got) || got < 0, "LSE is infinite");
    }
    const int32_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    for (int32_t n = 0; n < dim_v; n++) {
        const double got = call_data_o(d, c, 0, row, n), want = call_data_o(d, c, 1, row, n);
        const bool same = isfinite(want) ? close_to(got, want, t->o, t->o_part) : !isfinite(got);
        FUZZ_CHECK(!t->numbers || same,
                   "b %d h %d i %d d %d: O %.9g, the reference's %.9g, tolerance %g", row->b,
                   row->h, row->i, n, got, want, t->o);
        FUZZ_CHECK(!(want_lse == -(double)INFINITY) || got == 0, "O of an empty row is %g", got);
    }
}

FUZZ_SILENT
static void check_results(const clattn_attention_desc *d, const struct call_data *c)
{
    const struct tolerance t = tolerance_of(d, c);
    for (int32_t b = 0; b < c->call.batch; b++)
        for (int32_t h = 0; h < d->heads_q; h++)
            for (int32_t i = 0; i < c->own_q[b]; i++) {
                const struct row row = {b, h, i, c->first_q[b] + i};
                check_row(d, c, &t, &row);
            }
}

// ---- one call ----------------------------------------------------------------------------------

static bool is_small(const clattn_attention_desc *d, const clattn_attention_call *call)
{
    const double pairs = (double)call->batch * d->heads_q * call->len_q * (call->len_kv + 1.0);
    // Heads without queries cost the library nothing, but the loops of this file count them.
    return (double)call->batch * d->heads_q <= PRODUCTS_MOST &&
           pairs * (d->dim_qk + (d->dim_v ? d->dim_v : d->dim_qk)) <= PRODUCTS_MOST;
}

// With $FUZZ_SHOW: what a find is about.
static void show(const clattn_attention_desc *d, const struct call_data *c)
{
    const clattn_attention_call *l = &c->call;
    fprintf(stderr, "types %d/%d/%d bias %d, dims %d/%d, heads %d/%d, features 0x%x, page %d, "
            "align %d\n", d->dtype_q, d->dtype_kv, d->dtype_o, d->dtype_bias, d->dim_qk, d->dim_v,
            d->heads_q, d->heads_kv, d->features, d->page_size, d->align);
    fprintf(stderr, "batch %d, lengths %d/%d, scale %g (set %u), softcap %g, window %d %d, pages "
            "%d of %d, tokens %d/%d%s\n", l->batch, l->len_q, l->len_kv, (double)l->scale, l->set,
            (double)l->softcap, l->window_left, l->window_right, l->max_pages, l->num_pages,
            l->total_q, l->total_kv, c->spoilt ? ", spoilt" : "");
    for (int part = 0; part < DATA_PARTS; part++)
        if (c->size[part])
            fprintf(stderr, "part %d: %zu bytes, up to %g\n", part, c->size[part],
                    c->largest[part]);
}

static void check_call(clattn_plan *host, clattn_plan *reference, const clattn_attention_desc *d,
                       struct call_data *c)
{
    size_t need = 1;
    const clattn_status st = clattn_plan_workspace_bytes(host, &c->call, &need);
    FUZZ_CHECK(st == clattn_plan_workspace_bytes(reference, &c->call, &need), "status %d",
               (int)st);
    FUZZ_CHECK(st == CLATTN_OK || c->spoilt, "a right call is refused: %s",
               clattn_status_string(st));
    FUZZ_CHECK(st != CLATTN_ERR_INTERNAL && st != CLATTN_ERR_OPENCL, "status %d", (int)st);
    if (st != CLATTN_OK) {
        FUZZ_CHECK(clattn_attention_run(host, &c->call) == st, "another status");
        FUZZ_CHECK(call_data_untouched(d, c, false), "a refused call wrote");
        return;
    }
    FUZZ_CHECK(need == 0, "a workspace of %zu bytes", need);
    call_data_check_reach(d, c);
    if (!is_small(d, &c->call) || !call_data_bounded(c))
        return;
    FUZZ_CHECK(clattn_attention_run(host, &c->call) == CLATTN_OK, "run");
    call_data_use_second(c);
    FUZZ_CHECK(clattn_attention_run(reference, &c->call) == CLATTN_OK, "run of the reference");
    FUZZ_CHECK(call_data_untouched(d, c, true), "something beside the output was written");
    check_results(d, c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static clattn_context *ctx;
    static struct call_data c;
    struct bytes b = {data, size};
    clattn_attention_desc desc;
    if (!ctx) {
        clattn_context_desc cd;
        clattn_context_desc_init(&cd, sizeof cd);
        cd.device = "cpu";
        cd.threads = 1;
        FUZZ_CHECK(clattn_context_create(&cd, &ctx) == CLATTN_OK, "no context");
    }
    take_description(&b, true, &desc);
    if (desc.struct_size != sizeof desc)
        return -1; // descriptor.c tries those
    clattn_plan *host = plan_of(ctx, &desc, CLATTN_ALGO_HOST);
    clattn_plan *reference = plan_of(ctx, &desc, CLATTN_ALGO_REFERENCE);
    FUZZ_CHECK(!host == !reference, "one plan of two");
    if (host) {
        if (!desc.heads_kv)
            desc.heads_kv = desc.heads_q;
        if (!desc.dim_v)
            desc.dim_v = desc.dim_qk;
        call_data_take(&b, &desc, &c);
        if (getenv("FUZZ_SHOW"))
            show(&desc, &c);
        check_call(host, reference, &desc, &c);
        call_data_free(&c);
    }
    clattn_plan_destroy(&host);
    clattn_plan_destroy(&reference);
    return 0;
}
