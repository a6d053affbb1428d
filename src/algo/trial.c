// SPDX-License-Identifier: Apache-2.0
// The trial of a prepared choice: a tiny problem whose answer is known.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "algo/algo.h"
#include "sequence.h"

enum {
    TRIAL_LEN_Q = 5, TRIAL_GROUP_MAX = 3, TRIAL_SPLITS = 3, TRIAL_BEFORE = 2,
    // Products of the reference at most where there are more queries than that: some milliseconds.
    TRIAL_PRODUCTS = 4000000
};

// All memory of a trial, taken piece by piece from one allocation.
struct trial {
    struct cla_problem p;
    struct cla_call call;
    struct cla_host_mem mem; // `o` and `lse` receive what is expected
    void *o;                 // what the device wrote
    float *lse;
    size_t rows; // queries of all heads, those of no sequence included
    char *memory;
    size_t used;
    uint32_t seed;
};

// Values spread over [-1, 1) by a multiplicative congruential generator (Lehmer, 48271 mod 2^31-1).
static float next_value(struct trial *t)
{
    t->seed = (uint32_t)((uint64_t)t->seed * 48271u % 2147483647u);
    return (float)((double)t->seed / 1073741823.5 - 1.0);
}

// Without memory so far it only counts.
static void *take(struct trial *t, size_t bytes)
{
    void *at = t->memory ? t->memory + t->used : NULL;
    t->used += (bytes + 15) / 16 * 16;
    return at;
}

static clattn_buf take_elems(struct trial *t, size_t n, int32_t dtype, float low, float high)
{
    const size_t bytes = n * cla_dtype_bytes(dtype);
    void *at = take(t, bytes);
    for (size_t i = 0; at && i < n; i++) {
        const float x = low + (high - low) * (0.5f + 0.5f * next_value(t));
        if (dtype == CLATTN_DTYPE_I8)
            ((int8_t *)at)[i] = (int8_t)(127.0f * x);
        else
            cla_store_elem(at, (int64_t)i, dtype, x);
    }
    return clattn_host_buf(at, bytes);
}

static struct cla_tensor take_tensor(struct trial *t, int64_t outer, int64_t len, int64_t dim,
                                     int32_t dtype, float low, float high)
{
    const size_t n = (size_t)(outer * len * dim);
    return (struct cla_tensor){.buf = take_elems(t, n, dtype, low, high),
                               .stride = {len * dim, len * dim, dim},
                               .end_bytes = n * cla_dtype_bytes(dtype)};
}

static struct cla_vector take_ints(struct trial *t, int32_t n, int32_t first, int32_t step)
{
    int32_t *at = take(t, (size_t)n * sizeof *at);
    for (int32_t i = 0; at && i < n; i++)
        at[i] = first + i * step;
    return (struct cla_vector){.buf = clattn_host_buf(at, (size_t)n * sizeof *at),
                               .end_bytes = (size_t)n * sizeof *at};
}

static struct cla_mask take_mask(struct trial *t, bool is_mask, int32_t len_kv)
{
    const size_t n = (size_t)(t->call.len_q * len_kv);
    const int32_t dtype = is_mask ? CLATTN_DTYPE_I8 : t->p.dtype_bias;
    struct cla_mask m = {.buf = take_elems(t, n, dtype, -1.0f, 1.0f),
                         .stride = {0, 0, len_kv, 1},
                         .end_bytes = n * cla_dtype_bytes(dtype)};
    uint8_t *at = m.buf.ptr;
    for (size_t i = 0; at && i < n; i++) {
        const size_t row = i / (size_t)len_kv; // row 2 sees nothing
        const bool seen = row != 2 && (i * 7 + row) % 3 != 0;
        if (is_mask)
            at[i] = seen;
        else if (!seen)
            cla_store_elem(at, (int64_t)i, dtype, -INFINITY);
    }
    return m;
}

// Queries of a trial with `group` heads. What the planner chooses is from tables that tests go
// through; of a tile that somebody else names all rows are tried, and some of the tile behind it,
// if that is no great work.
static int32_t queries(const struct cla_problem *p, const struct cla_tile *tile, int32_t group,
                       int32_t len_kv)
{
    const int64_t products = (int64_t)(p->dim_qk + p->dim_v) * len_kv;
    const int64_t whole = (tile->tile_q + 3 + group - 1) / group;
    const int64_t most = TRIAL_PRODUCTS / (products * group);
    const int64_t n = !tile->named ? TRIAL_LEN_Q : whole < most ? whole : most;
    return n > TRIAL_LEN_Q ? (int32_t)n : TRIAL_LEN_Q;
}

// One sequence of one key head: one whole tile of keys and a ragged one. Packed, it stands between
// tokens of nobody.
static void describe(struct trial *t, const struct cla_problem *p, const struct cla_tile *tile)
{
    const int32_t group = p->group < TRIAL_GROUP_MAX ? p->group : TRIAL_GROUP_MAX;
    const int32_t len_kv = tile->tile_k + 3, len_q = queries(p, tile, group, len_kv);
    t->p = *p;
    t->p.heads_kv = 1;
    t->p.group = t->p.heads_q = group;
    t->p.num_splits = TRIAL_SPLITS; // of the algorithm that cuts the keys
    t->call = (struct cla_call){.batch = 1, .len_q = len_q, .len_kv = len_kv,
                                .scale = 1.0f / sqrtf((float)p->dim_qk),
                                .softcap = p->softcap ? 0.7f : 0.0f,
                                .left = !p->window ? -1
                                        : len_kv > len_q / 2 ? len_kv - len_q / 2 : 1,
                                .right = p->causal ? 0 : p->window ? 1 : -1,
                                // Memory that a trial before this one left may hold the answer.
                                .bring_outputs = true};
    t->call.total_q = p->packed_q ? len_q + 2 * TRIAL_BEFORE : 0;
    t->call.total_kv = p->packed_kv ? len_kv + 2 * TRIAL_BEFORE : 0;
    if (p->paged)
        t->call.num_pages = t->call.max_pages = (len_kv + p->page_size - 1) / p->page_size;
    cla_call_set_window(&t->p, &t->call);
}

static void place_buffers(struct trial *t)
{
    const struct cla_problem *p = &t->p;
    struct cla_call *c = &t->call;
    const int32_t nq = p->packed_q ? c->total_q : c->len_q;
    const int32_t nk = p->paged ? p->page_size : p->packed_kv ? c->total_kv : c->len_kv;
    const int32_t pools = p->paged ? c->num_pages : 1;
    t->rows = (size_t)p->group * (size_t)nq;
    c->q = take_tensor(t, p->group, nq, p->dim_qk, p->dtype_q, -1.0f, 1.0f);
    c->k = take_tensor(t, pools, nk, p->dim_qk, p->dtype_kv, -1.0f, 1.0f);
    c->v = take_tensor(t, pools, nk, p->dim_v, p->dtype_kv, -1.0f, 1.0f);
    if (p->dtype_kv == CLATTN_DTYPE_I8) {
        c->k_scale = take_tensor(t, pools, nk, 1, CLATTN_DTYPE_F32, 0.004f, 0.012f);
        c->v_scale = take_tensor(t, pools, nk, 1, CLATTN_DTYPE_F32, 0.004f, 0.012f);
    }
    c->o = take_tensor(t, p->group, nq, p->dim_v, p->dtype_o, NAN, NAN);
    const clattn_buf want = take_elems(t, t->rows * (size_t)p->dim_v, p->dtype_o, NAN, NAN);
    const clattn_buf lse = take_elems(t, t->rows, CLATTN_DTYPE_F32, NAN, NAN);
    const clattn_buf want_lse = take_elems(t, t->rows, CLATTN_DTYPE_F32, NAN, NAN);
    if (p->lse) {
        c->lse = lse;
        c->lse_end_bytes = t->rows * sizeof(float);
        c->lse_stride[1] = nq;
    }
    if (p->mask)
        c->mask = take_mask(t, true, c->len_kv);
    if (p->bias)
        c->bias = take_mask(t, false, c->len_kv);
    const size_t heads_bytes = (size_t)p->group * sizeof(float);
    if (p->alibi)
        c->alibi = (struct cla_vector){
            .buf = take_elems(t, (size_t)p->group, CLATTN_DTYPE_F32, 0.0f, 0.1f),
            .end_bytes = heads_bytes};
    if (p->sinks)
        c->sinks = (struct cla_vector){
            .buf = take_elems(t, (size_t)p->group, CLATTN_DTYPE_F32, -1.0f, 1.0f),
            .end_bytes = heads_bytes};
    if (p->kv_lens)
        c->kv_lens = take_ints(t, 1, c->len_kv - 1, 0);
    if (p->packed_q)
        c->cu_q = take_ints(t, 2, TRIAL_BEFORE, c->len_q);
    if (p->packed_kv)
        c->cu_kv = take_ints(t, 2, TRIAL_BEFORE, c->len_kv);
    if (p->paged) // the last page comes first
        c->table = take_ints(t, c->num_pages, c->num_pages - 1, -1);
    t->o = c->o.buf.ptr;
    t->lse = lse.ptr;
    t->mem = (struct cla_host_mem){
        .q = c->q.buf.ptr, .k = c->k.buf.ptr, .v = c->v.buf.ptr, .o = want.ptr,
        .lse = p->lse ? want_lse.ptr : NULL, .mask = c->mask.buf.ptr, .bias = c->bias.buf.ptr,
        .alibi = c->alibi.buf.ptr, .sinks = c->sinks.buf.ptr, .kv_lens = c->kv_lens.buf.ptr,
        .cu_q = c->cu_q.buf.ptr, .cu_kv = c->cu_kv.buf.ptr, .table = c->table.buf.ptr,
        .k_scale = c->k_scale.buf.ptr, .v_scale = c->v_scale.buf.ptr};
}

static bool make(struct trial *t, const struct cla_problem *p, const struct cla_tile *tile)
{
    t->seed = 20231;
    describe(t, p, tile);
    place_buffers(t);
    t->memory = malloc(t->used);
    t->used = 0;
    if (!t->memory)
        return false;
    place_buffers(t);
    return true;
}

// Elements that nobody was to write are NaN on both sides.
static bool equal(const void *got, const void *want, size_t n, int32_t dtype, const char *name,
                  char *why, size_t why_size)
{
    // The products' rounding, and twice that of the type.
    const float unit = dtype == CLATTN_DTYPE_F16    ? 0x1p-10f
                       : dtype == CLATTN_DTYPE_BF16 ? 0x1p-7f
                                                    : 0.0f;
    const float part = 2e-5f + unit;
    for (size_t i = 0; i < n; i++) {
        const float x = cla_load_elem(got, (int64_t)i, dtype);
        const float y = cla_load_elem(want, (int64_t)i, dtype);
        const bool same = isnan(y)      ? isnan(x)
                          : isfinite(y) ? fabsf(x - y) <= part + part * fabsf(y)
                                        : x == y;
        if (!same) {
            snprintf(why, why_size, "trial: %s[%zu] is %g, expected %g", name, i, (double)x,
                     (double)y);
            return false;
        }
    }
    return true;
}

// What decides how a trial goes.
struct trial_key {
    unsigned char programs[CLA_PROGRAMS_NAME];
    const struct cla_algo *algo;
    unsigned char problem[offsetof(struct cla_problem, no_fallback)];
    unsigned char tile[offsetof(struct cla_tile, reason)];
};

// Bounds and the number of heads are not of the trial's making. Bytes between the members that
// differ cost no more than another trial.
static bool make_key(clattn_context *ctx, const struct cla_problem *p, const struct cla_algo *algo,
                     const struct cla_prepared *prepared, const struct cla_tile *tile,
                     struct trial_key *key)
{
    struct cla_problem same = *p;
    same.max_batch = same.max_len_q = same.max_len_kv = 0;
    same.heads_q = same.heads_kv = 0;
    memset(key, 0, sizeof *key);
    key->algo = algo;
    memcpy(key->problem, &same, sizeof key->problem);
    memcpy(key->tile, tile, sizeof key->tile);
    return algo->identify && algo->identify(ctx, prepared, key->programs);
}

clattn_status cla_trial(clattn_context *ctx, const struct cla_problem *p,
                        const struct cla_algo *algo, const struct cla_prepared *prepared,
                        const struct cla_tile *tile, char *why, size_t why_size)
{
    clattn_status st = CLATTN_OK;
    struct trial t;
    struct trial_key key;
    const bool has_key = make_key(ctx, p, algo, prepared, tile, &key);
    if (has_key && cla_context_knows(ctx, &key, sizeof key))
        return CLATTN_OK;
    memset(&t, 0, sizeof t);
    if (!make(&t, p, tile))
        CLA_TRY(cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "trial: no memory"));
    CLA_TRY(cla_host_compute(ctx, &t.p, &t.call, &t.mem, true));
    const struct cla_extent e = {t.call.batch, t.call.len_q, t.call.len_kv, false};
    t.call.workspace_need = cla_workspace_need(ctx, algo, &t.p, prepared, &e);
    st = algo->run(ctx, &t.p, prepared, &t.call);
    if (st != CLATTN_OK) {
        snprintf(why, why_size, "trial: %s", clattn_status_string(st));
        goto done;
    }
    if (!equal(t.o, t.mem.o, t.rows * (size_t)p->dim_v, p->dtype_o, "o", why, why_size) ||
        (p->lse && !equal(t.lse, t.mem.lse, t.rows, CLATTN_DTYPE_F32, "lse", why, why_size)))
        st = CLATTN_ERR_SELF_TEST;
    else if (has_key)
        cla_context_learn(ctx, &key, sizeof key);
done:
    free(t.memory);
    return st;
}
