// SPDX-License-Identifier: Apache-2.0
// The forward pass of a few rows (decoding): vector lanes are channels, so that no lane idles where
// there are fewer rows than lanes. Rows go in groups of 1, 2 or 4, which share every read of K and
// V; a group of 3 is padded by its last row.
//
// Scores lie as s[key][row of the group], so that a vector holds several keys. The last vector of a
// row of D channels starts at D - W where D is no multiple of W: nothing past the row is read.
// Levels of summation and the careful pass are those of tile_impl.h.

#include "host/few_score_impl.h"

// Weights of `count` vectors (a constant) of scores from vector i on, in place and added to *sum.
VEC_INLINE void few_weigh(struct few *t, int32_t i, vf base, vf *sum, const int count)
{
    vf x[VEC_EXP_MOST], p[VEC_EXP_MOST];
    VEC_UNROLL
    for (int c = 0; c < count; c++) {
        x[c] = vec_load(t->s + (i + c) * W);
        p[c] = x[c] - base;
    }
    vec_exp(p, count);
    VEC_UNROLL
    for (int c = 0; c < count; c++) {
        *sum += p[c];
        if (t->careful) // hidden pairs become -0, which no weight is
            p[c] = vec_select((vi)(x[c] == vec_splat(-INFINITY)), vec_splat(-0.0f),
                              p[c] * vec_splat(t->weight_scale));
        vec_store(t->s + (i + c) * W, p[c]);
    }
}

// Scores become weights; m, l and alpha of the group's rows follow.
static void few_weights(struct few *t, int32_t keys, float alpha[FEW_GROUP])
{
    const int32_t n = t->n;
    const int32_t vecs = (keys * n + W - 1) / W;
    vf most = few_spread(t->m, n);
    for (int32_t i = 0; i < vecs; i++)
        most = vec_max(vec_load(t->s + i * W), most);
    float base[FEW_GROUP], drop[FEW_GROUP];
    for (int32_t r = 0; r < n; r++) {
        float m = t->m[r];
        for (int32_t i = r; i < W; i += n)
            m = most[i] > m ? most[i] : m;
        base[r] = m == -INFINITY ? 0.0f : m;
        drop[r] = t->m[r] - base[r];
        t->m[r] = m;
    }
    vf factor = few_spread(drop, n);
    vec_exp(&factor, 1);
    const vf spread = few_spread(base, n);
    vf sum = vec_splat(0.0f);
    int32_t done = 0;
    for (; done + VEC_EXP_MOST <= vecs; done += VEC_EXP_MOST)
        few_weigh(t, done, spread, &sum, VEC_EXP_MOST);
    for (; done < vecs; done++)
        few_weigh(t, done, spread, &sum, 1);
    for (int32_t r = 0; r < n; r++) {
        float l = 0.0f;
        for (int32_t i = r; i < W; i += n)
            l += sum[i];
        alpha[r] = factor[r];
        t->l[r] = t->l[r] * alpha[r] + l;
    }
}

// K of the next tile. All in one go these lines would wait for each other; one after the other
// beside the products they keep memory busy.
static struct few_ahead few_next_keys(const struct few *t, int32_t key, int32_t keys)
{
    const int32_t left = t->job->key1 - key - keys;
    return (struct few_ahead){t->k + (int64_t)keys * t->k_stride, t->k_stride, t->dim_qk, 0,
                              left < FEW_KEYS ? left : FEW_KEYS};
}

VEC_INLINE void few_ask(struct few_ahead *a)
{
    if (a->rows <= 0)
        return;
    __builtin_prefetch(a->row + a->d);
    a->d += CACHE_FLOATS;
    if (a->d >= a->dim) {
        a->d = 0;
        a->rows--;
        a->row += a->stride;
    }
}

// O of `cols` neighbouring vectors (a constant) of n rows (a constant), from vector c.
VEC_INLINE void few_pv_block(const struct few *t, int32_t keys, const float *alpha, int32_t c,
                             const int n, const int cols, struct few_ahead *ahead)
{
    // As many for each key as reach over the tile with the last block, or a little earlier.
    const int lines = cols * W < CACHE_FLOATS ? cols > 1 : cols * W / CACHE_FLOATS;
    const float *v = t->v + few_at(c, t->dim_v);
    vf acc[8][FEW_GROUP];
    VEC_UNROLL
    for (int i = 0; i < cols; i++) {
        VEC_UNROLL
        for (int r = 0; r < n; r++)
            acc[i][r] = vec_splat(0.0f);
    }
    for (int32_t j = 0; j < keys; j++) {
        vf w[FEW_GROUP];
        VEC_UNROLL
        for (int i = 0; i < lines; i++)
            few_ask(ahead);
        VEC_UNROLL
        for (int r = 0; r < n; r++)
            w[r] = vec_splat(t->s[j * n + r]);
        VEC_UNROLL
        for (int i = 0; i < cols; i++) {
            const vf x = t->dim_v < W ? few_load_short(v + j * t->v_stride, t->dim_v)
                                      : vec_load(v + j * t->v_stride + i * W);
            VEC_UNROLL
            for (int r = 0; r < n; r++)
                acc[i][r] = vec_fma(x, w[r], acc[i][r]);
        }
    }
    VEC_UNROLL
    for (int i = 0; i < cols; i++) {
        VEC_UNROLL
        for (int r = 0; r < n; r++) {
            vf *o = &t->o[(c + i) * n + r];
            *o = vec_fma(*o, vec_splat(alpha[r]), acc[i][r]);
        }
    }
}

VEC_INLINE void few_pv(const struct few *t, int32_t keys, const float *alpha, const int n)
{
    const int cols = 8 / n;
    const int32_t full = t->dim_v / W;
    struct few_ahead ahead = t->ahead;
    int32_t c = 0;
    for (; c + cols <= full; c += cols)
        few_pv_block(t, keys, alpha, c, n, cols, &ahead);
    for (; c < t->vecs_v; c++)
        few_pv_block(t, keys, alpha, c, n, 1, &ahead);
}

VEC_NOINLINE void few_pv_1(const struct few *t, int32_t keys, const float *alpha)
{
    few_pv(t, keys, alpha, 1);
}

VEC_NOINLINE void few_pv_2(const struct few *t, int32_t keys, const float *alpha)
{
    few_pv(t, keys, alpha, 2);
}

VEC_NOINLINE void few_pv_4(const struct few *t, int32_t keys, const float *alpha)
{
    few_pv(t, keys, alpha, 4);
}

// Leaves hidden pairs out one by one.
static void few_pv_careful(const struct few *t, int32_t keys, const float *alpha)
{
    for (int32_t c = 0; c < t->vecs_v; c++)
        for (int32_t r = 0; r < t->n; r++) {
            vf acc = vec_splat(0.0f);
            for (int32_t j = 0; j < keys; j++) {
                const float w = t->s[j * t->n + r];
                if (w == 0.0f && signbit(w))
                    continue;
                const float *row = t->v + j * t->v_stride;
                acc = vec_fma(few_load(row, c, t->dim_v, false), vec_splat(w), acc);
            }
            vf *o = &t->o[c * t->n + r];
            *o = vec_fma(*o, vec_splat(alpha[r]), acc);
        }
}

static void few_flush(struct few *t)
{
    float drop[FEW_GROUP];
    for (int32_t r = 0; r < t->n; r++)
        drop[r] = t->m_hi[r] - (t->m[r] == -INFINITY ? 0.0f : t->m[r]);
    vf f = few_spread(drop, t->n);
    vec_exp(&f, 1);
    for (int32_t r = 0; r < t->n; r++) {
        t->l_hi[r] = t->l_hi[r] * f[r] + t->l[r];
        t->m_hi[r] = t->m[r];
        t->l[r] = 0.0f;
        for (int32_t c = 0; c < t->vecs_v; c++) {
            vf *hi = &t->o_hi[c * t->n + r];
            *hi = vec_fma(*hi, vec_splat(f[r]), t->o[c * t->n + r]);
            t->o[c * t->n + r] = vec_splat(0.0f);
        }
    }
}

// Scores and weights of a tile of keys.
static void few_score_step(struct few *t, int32_t key, int32_t keys, float alpha[FEW_GROUP])
{
    if (t->n == 4)
        few_scores_4(t, keys);
    else if (t->n == 2)
        few_scores_2(t, keys);
    else
        few_scores_1(t, keys);
    few_finish_scores(t, key, keys);
    few_weights(t, keys, alpha);
}

static void few_value_step(struct few *t, int32_t keys, const float alpha[FEW_GROUP])
{
    if (t->careful)
        few_pv_careful(t, keys, alpha);
    else if (t->n == 4)
        few_pv_4(t, keys, alpha);
    else if (t->n == 2)
        few_pv_2(t, keys, alpha);
    else
        few_pv_1(t, keys, alpha);
}

// One tile of keys for `count` groups, which find it in the cache one after the other. Keys that no
// row sees are not read.
static void few_step(struct few *groups, int32_t count, int32_t key, int32_t keys)
{
    float alpha[FEW_GROUPS][FEW_GROUP];
    bool any = false;
    for (int32_t g = 0; g < count; g++) {
        groups[g].sees = !groups[g].add || few_load_add(&groups[g], key, keys);
        any |= groups[g].sees;
    }
    if (!any)
        return;
    if (groups->k_staged)
        stage_keys(&groups->k_keys, key, keys, groups->k_staged);
    for (int32_t g = 0; g < count; g++) {
        struct few *t = &groups[g];
        if (!t->k_staged) {
            t->k = (const float *)t->f->mem->k + keys_at(&t->k_keys, t->k_keys.t, key);
            t->v = (const float *)t->f->mem->v + keys_at(&t->v_keys, t->v_keys.t, key);
        }
        if (!t->sees)
            continue;
        few_score_step(t, key, keys, alpha[g]);
        if (t->first == 0 && !t->k_staged)
            t->ahead = few_next_keys(t, key, keys);
        if (!t->v_staged)
            few_value_step(t, keys, alpha[g]);
    }
    if (!groups->v_staged)
        return;
    if (groups->v_staged != groups->k_staged)
        stage_keys(&groups->v_keys, key, keys, groups->v_staged);
    for (int32_t g = 0; g < count; g++)
        if (groups[g].sees)
            few_value_step(&groups[g], keys, alpha[g]);
}

static void few_clear(struct few *t)
{
    for (int32_t r = 0; r < FEW_GROUP; r++) {
        t->m[r] = t->m_hi[r] = -INFINITY;
        t->l[r] = t->l_hi[r] = 0.0f;
    }
    const size_t bytes = sizeof(vf) * (size_t)(t->vecs_v * t->n);
    memset(t->o, 0, bytes);
    if (t->job->key1 - t->job->key0 >= FLUSH_KEYS)
        memset(t->o_hi, 0, bytes);
}

// One pass over the keys of the job for `count` groups. Returns whether the second level was used.
static bool few_sweep(struct few *groups, int32_t count)
{
    for (int32_t g = 0; g < count; g++)
        few_clear(&groups[g]);
    const struct cla_host_job *job = groups->job;
    bool flushed = false;
    int32_t since = 0;
    for (int32_t key = job->key0; key < job->key1; key += FEW_KEYS) {
        const int32_t left = job->key1 - key;
        const int32_t keys = left < FEW_KEYS ? left : FEW_KEYS;
        few_step(groups, count, key, keys);
        since += keys;
        if (since >= FLUSH_KEYS) {
            for (int32_t g = 0; g < count; g++)
                few_flush(&groups[g]);
            since = 0;
            flushed = true;
        }
        if (left <= FEW_KEYS)
            break; // key + FEW_KEYS might overflow
    }
    for (int32_t g = 0; flushed && g < count; g++)
        few_flush(&groups[g]);
    return flushed;
}

// Where row r of the group goes, and the type of its elements: float in a part.
static void *few_o_row(const struct few *t, int32_t r, int32_t *dtype)
{
    *dtype = CLATTN_DTYPE_F32;
    if (t->job->part)
        return t->job->part + 2 * t->job->rows + (int64_t)(t->first + r) * t->dim_v;
    int32_t head;
    const int64_t i = few_row(t, r, &head);
    const struct cla_call *call = t->f->call;
    const int64_t at = cla_query_at(call, &call->o, t->job->b, head, i);
    *dtype = t->f->p->dtype_o;
    return (char *)t->f->mem->o + at * (int64_t)cla_dtype_bytes(*dtype);
}

static void few_store_lse(const struct few *t, int32_t r, float m, float l)
{
    const int32_t lane = t->first + r;
    if (t->job->part) {
        t->job->part[lane] = m;
        t->job->part[t->job->rows + lane] = l;
    } else if (t->f->p->lse && t->f->mem->lse) {
        int32_t head;
        const int64_t i = few_row(t, r, &head);
        t->f->mem->lse[cla_lse_at(t->f->call, t->job->b, head, i)] =
            l == 0.0f ? -INFINITY : m + logf(l);
    }
}

// The sink of row r, see vec_add_sink(); parts do without.
static float few_add_sink(const struct few *t, int32_t r, float *m, float *l)
{
    if (!t->f->p->sinks || t->job->part)
        return 1.0f;
    int32_t head;
    few_row(t, r, &head);
    vf all_m = vec_splat(*m), all_l = vec_splat(*l);
    const vf keep = vec_add_sink(&all_m, &all_l, vec_splat(t->f->mem->sinks[head]));
    *m = all_m[0];
    *l = all_l[0];
    return keep[0];
}

// Writes row r. Returns false, with nothing written, if it is not finite and may be mended.
static bool few_store_row(const struct few *t, int32_t r, const vf *o, float l)
{
    float m = t->m[r];
    const float keep = few_add_sink(t, r, &m, &l);
    const vf inverse = vec_splat(keep / l);
    const vf unscale = vec_splat(t->careful ? 1.0f / t->weight_scale : 1.0f);
    const vi empty = (vi)(vec_splat(l) == vec_splat(0.0f));
    vf bad = vec_splat(0.0f);
    for (int32_t c = 0; c < t->vecs_v; c++) {
        const vf x = vec_finite_mean(o[c * t->n + r] * inverse * unscale, o[c * t->n + r]);
        bad = vec_fma((vf)(~empty & (vi)x), vec_splat(0.0f), bad);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < W; i++)
        sum += bad[i];
    if (sum != 0.0f && !t->careful)
        return false;

    int32_t dtype;
    void *row = few_o_row(t, r, &dtype);
    for (int32_t c = 0; c < t->vecs_v; c++) {
        const vf mean = vec_finite_mean(o[c * t->n + r] * inverse * unscale, o[c * t->n + r]);
        const vf x = (vf)(~empty & (vi)mean);
        if (t->dim_v >= W)
            vec_store_as(row, few_at(c, t->dim_v), dtype, x);
        else
            for (int32_t d = 0; d < t->dim_v; d++)
                store_as(row, d, dtype, x[d]);
    }
    few_store_lse(t, r, m, l);
    return true;
}

// Returns false if a row is to be mended by a careful pass.
static bool few_store(const struct few *t, bool flushed)
{
    const float *l = flushed ? t->l_hi : t->l;
    for (int32_t r = 0; r < t->rows; r++)
        if (!few_store_row(t, r, flushed ? t->o_hi : t->o, l[r]))
            return false;
    return true;
}

// Hands out scratch from `next` on, see few_floats(). Returns what is left of it.
static float *few_set_memory(struct few *t, float *next)
{
    const struct cla_problem *p = t->f->p;
    t->q = (vf *)(void *)next;
    t->o = t->q + FEW_GROUP * t->vecs_qk;
    t->o_hi = t->o + FEW_GROUP * t->vecs_v;
    t->s = (float *)(t->o_hi + FEW_GROUP * t->vecs_v);
    next = t->s + FEW_GROUP * FEW_KEYS;
    if (p->mask || p->bias) {
        t->add = next;
        next += FEW_GROUP * FEW_KEYS;
    }
    t->k_keys = keys_of_k(t->f, t->job);
    t->v_keys = keys_of_v(t->f, t->job);
    t->k_stride = t->f->call->k.stride[2];
    t->v_stride = t->f->call->v.stride[2];
    return next;
}

// The groups share one copy of the keys.
static void few_set_staged(struct few *t, float *next)
{
    const struct cla_problem *p = t->f->p;
    if (!keys_are_staged(p))
        return;
    const bool one = v_is_in_k(t->f);
    t->k = t->k_staged = next;
    t->v = t->v_staged = one ? next : next + FEW_KEYS * (size_t)p->dim_qk;
    t->k_stride = p->dim_qk;
    t->v_stride = one ? p->dim_qk : p->dim_v;
}

static void run_few(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch)
{
    const struct cla_problem *p = f->p;
    struct few groups[FEW_GROUPS];
    int32_t count = 0;
    for (int32_t first = 0; first < job->rows; first += FEW_GROUP) {
        struct few *t = &groups[count++];
        *t = (struct few){.f = f, .job = job, .dim_qk = p->dim_qk, .dim_v = p->dim_v};
        t->vecs_qk = (p->dim_qk + W - 1) / W;
        t->vecs_v = (p->dim_v + W - 1) / W;
        t->first = first;
        t->rows = job->rows - first < FEW_GROUP ? job->rows - first : FEW_GROUP;
        t->n = t->rows == 3 ? 4 : t->rows;
        t->weight_scale = weight_scale(job);
        scratch = few_set_memory(t, scratch);
        few_load_q(t);
    }
    for (int32_t g = 0; g < count; g++)
        few_set_staged(&groups[g], scratch);
    const bool flushed = few_sweep(groups, count);
    for (int32_t g = 0; g < count; g++) {
        if (few_store(&groups[g], flushed))
            continue;
        groups[g].careful = true;
        few_store(&groups[g], few_sweep(&groups[g], 1));
    }
}
