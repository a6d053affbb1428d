// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clattn/clattn.h"

uint64_t rng_next(uint64_t *state) // splitmix64
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double rng_uniform(uint64_t *state)
{
    return (double)(rng_next(state) >> 11) * 0x1p-53;
}

float rng_normal(uint64_t *state)
{
    // Box and Muller; 1 - u is never 0.
    const double r = sqrt(-2 * log(1 - rng_uniform(state)));
    return (float)(r * cos(6.283185307179586 * rng_uniform(state)));
}

static float *normals(uint64_t *state, size_t count)
{
    float *x = malloc((count ? count : 1) * sizeof *x);
    for (size_t n = 0; x && n < count; n++)
        x[n] = rng_normal(state);
    return x;
}

// ---- mask ---------------------------------------------------------------------------------------

// The broadcast mask written out. Where it hides every key of every query in the key column `j` or
// the whole row `i`, the inputs below rely on it.
static uint8_t *make_mask(const struct attn_case *c, uint64_t *rng)
{
    const int32_t full[4] = {c->batch, c->heads_q, c->len_q, c->len_kv};
    size_t ext[4], compact_count = 1, count = 1;
    for (int a = 0; a < 4; a++) {
        ext[a] = c->mask_bcast >> a & 1 ? 1 : (size_t)full[a];
        compact_count *= ext[a];
        count *= (size_t)full[a];
    }
    uint8_t *compact = malloc(compact_count ? compact_count : 1);
    uint8_t *out = malloc(count ? count : 1);
    if (!compact || !out) {
        free(compact);
        free(out);
        return NULL;
    }
    static const uint8_t seen[4] = {1, 255, 2, 128}; // any non-zero byte means visible
    for (size_t n = 0; n < compact_count; n++)
        compact[n] = rng_uniform(rng) < 0.7 ? seen[rng_next(rng) & 3] : 0;
    size_t n = 0;
    for (size_t b = 0; b < (size_t)full[0]; b++)
        for (size_t h = 0; h < (size_t)full[1]; h++)
            for (size_t i = 0; i < (size_t)full[2]; i++)
                for (size_t j = 0; j < (size_t)full[3]; j++, n++) {
                    const size_t at = ((b % ext[0] * ext[1] + h % ext[1]) * ext[2] + i % ext[2]) *
                                          ext[3] + j % ext[3];
                    out[n] = compact[at];
                    if (c->input == IN_EMPTY_ROWS && (i % 3 == 1 || i < ext[2] / 4))
                        out[n] = 0;
                    if (c->input == IN_HIDDEN_NAN && j % 5 == 2)
                        out[n] = 0;
                }
    free(compact);
    return out;
}

// ---- inputs -------------------------------------------------------------------------------------

static float poison(size_t n)
{
    return n % 3 == 0 ? NAN : n % 3 == 1 ? INFINITY : -INFINITY;
}

// Keys that no query may see: a mask column, or what lies past the last query's key.
static bool hidden_from_all(const struct attn_case *c, size_t j)
{
    if (c->mask_form != MASK_NONE && j % 5 == 2)
        return true;
    return c->causal && c->align == CLATTN_ALIGN_TOP_LEFT && j >= (size_t)c->len_q;
}

static void poison_keys(const struct attn_case *c, struct attn_data *d)
{
    const size_t dim = (size_t)c->dim, dim_v = (size_t)case_dim_v(c), len = (size_t)c->len_kv;
    const size_t heads = (size_t)c->batch * (size_t)c->heads_kv;
    for (size_t h = 0; h < heads; h++)
        for (size_t j = 0; j < len; j++) {
            float *k = d->k + (h * len + j) * dim, *v = d->v + (h * len + j) * dim_v;
            if (c->input == IN_HIDDEN_NAN && hidden_from_all(c, j)) {
                for (size_t x = 0; x < dim; x++)
                    k[x] = poison(j + x);
                for (size_t x = 0; x < dim_v; x++)
                    v[x] = poison(j + x + h);
            }
            if (c->input == IN_V_PARTLY_NAN && j % 7 == 3)
                v[j % dim_v] = poison(j);
            if (c->input == IN_NEG_INF && j % 3 == 0) {
                k[0] = -INFINITY;
                v[j % dim_v] = NAN;
            }
            if (c->input == IN_NEG_BIG) {
                memset(k, 0, dim * sizeof *k);
                k[0] = j % 4 == 1 ? -2e19f : -1e19f;
            }
        }
    if (c->input == IN_VISIBLE_NAN && len > 0)
        d->k[(len / 2) * dim + dim / 2] = NAN;
}

static void shape_queries(const struct attn_case *c, struct attn_data *d)
{
    const size_t dim = (size_t)c->dim, len = (size_t)c->len_q, len_kv = (size_t)c->len_kv;
    const size_t heads = (size_t)c->batch * (size_t)c->heads_q;
    const size_t group = (size_t)(c->heads_q / c->heads_kv);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < len; i++) {
            float *q = d->q + (h * len + i) * dim;
            const size_t j = len_kv ? (i * 5 + h) % len_kv : 0;
            const float *key = d->k + (h / group * len_kv + j) * dim;
            for (size_t x = 0; x < dim; x++) {
                if (c->input == IN_LARGE)
                    q[x] *= 30;
                if (c->input == IN_EQUAL)
                    q[x] = 0;
                if (c->input == IN_ONE_HOT && len_kv)
                    q[x] = 6 * key[x];
                if (c->input == IN_NEG_BIG)
                    q[x] = x == 0 ? 1e19f : 0;
            }
            if (c->input == IN_NEG_INF)
                q[0] = fabsf(q[0]) + 0.1f;
        }
    if (c->input == IN_VISIBLE_NAN && heads * len > 1)
        d->q[(heads * len - 1) * dim] = NAN;
}

// One batch or one head of K or V stands for all where the layout gives it stride 0.
static void broadcast(const struct attn_case *c, float *x, int32_t dim)
{
    const size_t block = (size_t)c->len_kv * (size_t)dim, heads = (size_t)c->heads_kv;
    for (size_t b = 0; b < (size_t)c->batch; b++)
        for (size_t h = 0; h < heads; h++) {
            const size_t from = c->layout == LAY_BCAST_BATCH ? h : b * heads;
            memmove(x + (b * heads + h) * block, x + from * block, block * sizeof *x);
        }
}

// ---- tolerance ----------------------------------------------------------------------------------

// Largest norm of the rows that are finite and of a size that leaves room for rounding.
static double max_norm(const float *x, size_t rows, size_t dim)
{
    double most = 0;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t n = 0; n < dim; n++)
            sum += (double)x[r * dim + n] * x[r * dim + n];
        if (sum < 1e30 && sum > most)
            most = sum;
    }
    return sqrt(most);
}

// A float32 dot product errs by about eps * sum |q k| <= eps * |q| |k|, and e^x turns an error of
// the score into the same relative error of a weight; weights are averaged over V. The rounding of
// the exponential, of the sums and of the division adds a few eps whatever the scores are.
void attn_tolerance(const struct attn_case *c, const float *q, const float *k, const float *v,
                    struct tolerance *tol_o, struct tolerance *tol_lse)
{
    const size_t dim = (size_t)c->dim;
    const size_t rows_q = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
    const size_t rows_kv = (size_t)c->batch * (size_t)c->heads_kv * (size_t)c->len_kv;
    const double scale = c->has_scale ? (double)c->scale : 1 / sqrt((double)c->dim);
    const double score = fabs(scale) * max_norm(q, rows_q, dim) * max_norm(k, rows_kv, dim);
    double v_max = 0;
    for (size_t n = 0; n < rows_kv * (size_t)case_dim_v(c); n++)
        if (isfinite(v[n]))
            v_max = fmax(v_max, fabs((double)v[n]));
    const double unit = (8 + score) * FLT_EPSILON;
    *tol_o = (struct tolerance){unit * v_max, 4 * FLT_EPSILON, c->input == IN_V_PARTLY_NAN};
    *tol_lse = (struct tolerance){unit, 4 * FLT_EPSILON, false};
}

// ---- expectation --------------------------------------------------------------------------------

static clattn_context *oracle;

void attn_expect_close(void)
{
    clattn_context_destroy(&oracle);
}

static bool open_oracle(void)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "cpu";
    desc.flags = CLATTN_CONTEXT_NO_OPENCL;
    return oracle || clattn_context_create(&desc, &oracle) == CLATTN_OK;
}

static bool sees(const struct attn_case *c, int64_t i, int64_t j)
{
    const int64_t off = c->align == CLATTN_ALIGN_TOP_LEFT ? 0 : (int64_t)c->len_kv - c->len_q;
    return !c->causal || j <= i + off;
}

static uint8_t *lower_mask(const struct attn_case *c, const uint8_t *mask)
{
    const size_t len_q = (size_t)c->len_q, len_kv = (size_t)c->len_kv;
    const size_t rows = (size_t)c->batch * (size_t)c->heads_q * len_q;
    uint8_t *out = malloc(rows * len_kv + 1);
    for (size_t r = 0; out && r < rows; r++)
        for (size_t j = 0; j < len_kv; j++)
            out[r * len_kv + j] = sees(c, (int64_t)(r % len_q), (int64_t)j) &&
                                  (!mask || mask[r * len_kv + j]);
    return out;
}

static float *repeat_heads(const struct attn_case *c, const float *x, int32_t dim)
{
    const size_t group = (size_t)(c->heads_q / c->heads_kv);
    const size_t block = (size_t)c->len_kv * (size_t)dim;
    const size_t heads = (size_t)c->batch * (size_t)c->heads_q;
    float *out = malloc((heads * block + 1) * sizeof *out);
    for (size_t h = 0; out && h < heads; h++)
        memcpy(out + h * block, x + h / group * block, block * sizeof *out);
    return out;
}

clattn_attention_call case_host_call(const struct attn_case *c, const float *q, const float *k,
                                     const float *v, const uint8_t *mask, float *o, float *lse)
{
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = c->batch;
    call.len_q = c->len_q;
    call.len_kv = c->len_kv;
    call.set = c->has_scale ? CLATTN_SET_SCALE : 0;
    call.scale = c->scale;
    call.q.buf = clattn_host_buf(q, 0);
    call.k.buf = clattn_host_buf(k, 0);
    call.v.buf = clattn_host_buf(v, 0);
    call.mask.buf = clattn_host_buf(mask, 0);
    call.o.buf = clattn_host_buf(o, 0);
    call.lse = clattn_host_buf(lse, 0);
    return call;
}

bool attn_expect(const struct attn_case *c, const float *q, const float *k, const float *v,
                 const uint8_t *mask, float *o, float *lse)
{
    bool ok = false;
    clattn_plan *plan = NULL;
    uint8_t *full = lower_mask(c, mask);
    float *k_all = repeat_heads(c, k, c->dim), *v_all = repeat_heads(c, v, case_dim_v(c));
    if (!full || !k_all || !v_all || !open_oracle())
        goto done;
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = c->dim;
    desc.dim_v = case_dim_v(c);
    desc.heads_q = c->heads_q;
    desc.features = CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    desc.algo = CLATTN_ALGO_REFERENCE;
    if (clattn_attention_plan_create(oracle, &desc, &plan) != CLATTN_OK)
        goto done;
    const clattn_attention_call call = case_host_call(c, q, k_all, v_all, full, o, lse);
    ok = clattn_attention_run(plan, &call) == CLATTN_OK;
done:
    clattn_plan_destroy(&plan);
    free(full);
    free(k_all);
    free(v_all);
    return ok;
}

bool attn_data_make(const struct attn_case *c, struct attn_data *d)
{
    const size_t rows_q = (size_t)c->batch * (size_t)c->heads_q * (size_t)c->len_q;
    const size_t rows_kv = (size_t)c->batch * (size_t)c->heads_kv * (size_t)c->len_kv;
    uint64_t rng = c->seed;
    memset(d, 0, sizeof *d);
    d->q = normals(&rng, rows_q * (size_t)c->dim);
    d->k = normals(&rng, rows_kv * (size_t)c->dim);
    d->v = normals(&rng, rows_kv * (size_t)case_dim_v(c));
    d->o = calloc(rows_q * (size_t)case_dim_v(c) + 1, sizeof *d->o);
    d->lse = calloc(rows_q + 1, sizeof *d->lse);
    if (!d->q || !d->k || !d->v || !d->o || !d->lse)
        goto fail;
    if (c->mask_form != MASK_NONE && !(d->mask = make_mask(c, &rng)))
        goto fail;
    shape_queries(c, d);
    poison_keys(c, d);
    if (c->layout == LAY_BCAST_BATCH || c->layout == LAY_BCAST_HEAD) {
        broadcast(c, d->k, c->dim);
        broadcast(c, d->v, case_dim_v(c));
    }
    attn_tolerance(c, d->q, d->k, d->v, &d->tol_o, &d->tol_lse);
    if (attn_expect(c, d->q, d->k, d->v, d->mask, d->o, d->lse))
        return true;
fail:
    attn_data_free(d);
    return false;
}

void attn_data_free(struct attn_data *d)
{
    free(d->q);
    free(d->k);
    free(d->v);
    free(d->mask);
    free(d->o);
    free(d->lse);
    memset(d, 0, sizeof *d);
}
