// SPDX-License-Identifier: Apache-2.0
// The trial of a prepared choice: a tiny problem whose answer is known.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "algo/algo.h"
#include "ref/ref.h"

enum { TRIAL_LEN_Q = 5, TRIAL_GROUP_MAX = 3, TRIAL_SPLITS = 3 };

// One allocation with all tensors of the trial.
struct trial {
    struct cla_problem p;
    struct cla_call call;
    float *q, *k, *v, *o, *lse, *want_o, *want_lse;
    uint8_t *mask;
    size_t rows; // queries of all heads
};

// Values spread over [-1, 1) by a multiplicative congruential generator (Lehmer, 48271 mod 2^31-1).
static void fill(float *x, size_t n, uint32_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = (uint32_t)((uint64_t)*state * 48271u % 2147483647u);
        x[i] = (float)((double)*state / 1073741823.5 - 1.0);
    }
}

static struct cla_tensor dense(const float *ptr, size_t n, int64_t len, int64_t dim)
{
    return (struct cla_tensor){.buf = clattn_host_buf(ptr, n * sizeof *ptr),
                               .stride = {len * dim, len * dim, dim},
                               .end_bytes = n * sizeof *ptr};
}

static void describe(struct trial *t, const struct cla_problem *p, int32_t len_kv)
{
    t->p = *p;
    t->p.heads_kv = 1;
    t->p.group = p->group < TRIAL_GROUP_MAX ? p->group : TRIAL_GROUP_MAX;
    t->p.heads_q = t->p.group;
    t->p.num_splits = TRIAL_SPLITS; // of the algorithm that cuts the keys
    t->rows = (size_t)t->p.group * TRIAL_LEN_Q;
    t->call = (struct cla_call){.batch = 1, .len_q = TRIAL_LEN_Q, .len_kv = len_kv,
                                .scale = 1.0f / sqrtf((float)p->dim_qk),
                                .win_lo = CLA_WIN_MIN, .win_hi = CLA_WIN_MAX,
                                // Memory that a trial before this one left may hold the answer.
                                .bring_outputs = true};
    t->call.off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : len_kv - TRIAL_LEN_Q;
    if (p->causal)
        t->call.win_hi = t->call.off;
}

static bool make(struct trial *t, const struct cla_problem *p, int32_t len_kv)
{
    describe(t, p, len_kv);
    const size_t dq = (size_t)p->dim_qk, dv = (size_t)p->dim_v, nk = (size_t)len_kv;
    const size_t n_q = t->rows * dq, n_k = nk * dq, n_v = nk * dv, n_o = t->rows * dv;
    float *x = malloc((n_q + n_k + n_v + 2 * n_o + 2 * t->rows) * sizeof *x);
    t->mask = malloc(TRIAL_LEN_Q * nk);
    t->q = x;
    if (!x || !t->mask)
        return false;
    t->k = t->q + n_q;
    t->v = t->k + n_k;
    t->o = t->v + n_v;
    t->want_o = t->o + n_o;
    t->lse = t->want_o + n_o;
    t->want_lse = t->lse + t->rows;
    uint32_t seed = 20231;
    fill(t->q, n_q + n_k + n_v, &seed);
    for (size_t i = 0; i < 2 * (n_o + t->rows); i++)
        t->o[i] = NAN;
    for (size_t i = 0; i < TRIAL_LEN_Q * nk; i++) // row 2 sees nothing
        t->mask[i] = i / nk != 2 && (i * 7 + i / nk) % 3 != 0;

    t->call.q = dense(t->q, n_q, TRIAL_LEN_Q, p->dim_qk);
    t->call.k = dense(t->k, n_k, len_kv, p->dim_qk);
    t->call.v = dense(t->v, n_v, len_kv, p->dim_v);
    t->call.o = dense(t->o, n_o, TRIAL_LEN_Q, p->dim_v);
    if (p->mask)
        t->call.mask = (struct cla_mask){.buf = clattn_host_buf(t->mask, TRIAL_LEN_Q * nk),
                                         .stride = {0, 0, len_kv, 1},
                                         .end_bytes = TRIAL_LEN_Q * nk};
    if (p->lse)
        t->call.lse = clattn_host_buf(t->lse, t->rows * sizeof(float));
    return true;
}

static bool equal(const float *got, const float *want, size_t n, const char *name, char *why,
                  size_t why_size)
{
    for (size_t i = 0; i < n; i++) {
        const bool same = isfinite(want[i])
                              ? fabsf(got[i] - want[i]) <= 2e-5f + 2e-5f * fabsf(want[i])
                              : got[i] == want[i];
        if (!same) {
            snprintf(why, why_size, "trial: %s[%zu] is %g, expected %g", name, i, (double)got[i],
                     (double)want[i]);
            return false;
        }
    }
    return true;
}

clattn_status cla_trial(clattn_context *ctx, const struct cla_problem *p,
                        const struct cla_algo *algo, const struct cla_prepared *prepared,
                        const struct cla_tile *tile, char *why, size_t why_size)
{
    clattn_status st = CLATTN_OK;
    struct trial t;
    memset(&t, 0, sizeof t);
    // One whole key tile and a ragged one.
    if (!make(&t, p, tile->tile_k + 3))
        CLA_TRY(cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "trial: no memory"));
    const struct cla_host_mem want = {.q = t.q, .k = t.k, .v = t.v, .o = t.want_o,
                                      .lse = p->lse ? t.want_lse : NULL,
                                      .mask = p->mask ? t.mask : NULL};
    CLA_TRY(cla_ref_forward(&t.p, &t.call, &want));
    const struct cla_extent e = {t.call.batch, t.call.len_q, t.call.len_kv, false};
    t.call.workspace_need = cla_workspace_need(ctx, algo, &t.p, prepared, &e);
    st = algo->run(ctx, &t.p, prepared, &t.call);
    if (st != CLATTN_OK) {
        snprintf(why, why_size, "trial: %s", clattn_status_string(st));
        goto done;
    }
    if (!equal(t.o, t.want_o, t.rows * (size_t)p->dim_v, "o", why, why_size) ||
        (p->lse && !equal(t.lse, t.want_lse, t.rows, "lse", why, why_size)))
        st = CLATTN_ERR_SELF_TEST;
done:
    free(t.q);
    free(t.mask);
    return st;
}
