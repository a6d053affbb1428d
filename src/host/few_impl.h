// SPDX-License-Identifier: Apache-2.0
// The forward pass of a few rows (decoding): vector lanes are channels, so that no lane idles where
// there are fewer rows than lanes. Rows go in groups of 1, 2 or 4, which share every read of K and
// V; a group of 3 is padded by its last row.
//
// Scores lie as s[key][row of the group], so that a vector holds several keys. The last vector of a
// row of D channels starts at D - W where D is no multiple of W: nothing past the row is read.
// Levels of summation and the careful pass are those of tile_impl.h.

#define FEW_MAX 8
#define FEW_GROUP 4
#define FEW_GROUPS (FEW_MAX / FEW_GROUP)
#define FEW_SUMS (W > 8 ? W : 8) // accumulators of a score block
#define FEW_KEYS 64              // keys in a tile

struct few {
    const struct cla_host_fwd *f;
    const struct cla_host_job *job;
    const float *k, *v;
    int64_t k_stride, v_stride;
    int32_t dim_qk, dim_v;
    int32_t vecs_qk, vecs_v; // vectors in a row, the overlapping one included
    int32_t first;           // first row of the group in the job
    int32_t rows, n;         // real rows, and rounded up to 1, 2 or 4
    bool careful;
    float post_scale, weight_scale;
    vf *q, *o, *o_hi; // [vecs][n]
    float *s;         // [FEW_KEYS][n]
    float m[FEW_GROUP], l[FEW_GROUP], m_hi[FEW_GROUP], l_hi[FEW_GROUP];
    int32_t lo[FEW_GROUP], hi[FEW_GROUP];
};

static size_t few_floats(const struct cla_problem *p)
{
    const size_t vecs_qk = ((size_t)p->dim_qk + W - 1) / W;
    const size_t vecs_v = ((size_t)p->dim_v + W - 1) / W;
    return FEW_GROUPS * FEW_GROUP * (W * (vecs_qk + 2 * vecs_v) + FEW_KEYS);
}

static int64_t few_row(const struct few *t, int32_t r, int32_t *head)
{
    const int32_t group = t->f->p->group;
    const int64_t row = t->job->row0 + t->first + (r < t->rows ? r : t->rows - 1);
    *head = t->job->g * group + (int32_t)(row % group);
    return row / group;
}

// Where vector c of a row of `dim` channels starts.
VEC_INLINE int32_t few_at(int32_t c, int32_t dim)
{
    const int32_t d = c * W;
    return d + W <= dim ? d : dim > W ? dim - W : 0;
}

// The first n < W floats, then zeros.
static vf few_load_short(const float *x, int32_t n)
{
    float all[W] = {0.0f};
    for (int32_t d = 0; d < n; d++)
        all[d] = x[d];
    return vec_load(all);
}

// Vector c of a row. Of channels that an overlapping vector repeats only one copy counts in a dot
// product: with `once` the other becomes 0.
VEC_INLINE vf few_load(const float *row, int32_t c, int32_t dim, bool once)
{
    const int32_t d = c * W;
    if (d + W <= dim)
        return vec_load(row + d);
    if (dim < W)
        return few_load_short(row, dim);
    const vf x = vec_load(row + dim - W);
    if (!once)
        return x;
    vi lane = {0};
    for (int i = 0; i < W; i++)
        lane[i] = i;
    const vi repeated = (vi)(lane < (d - (dim - W)) - (vi){0});
    return (vf)(~repeated & (vi)x);
}

static void few_load_q(struct few *t)
{
    const int64_t *stride = t->f->call->q.stride;
    const float *base = (const float *)t->f->mem->q + t->job->b * stride[0];
    // As in tile_load_q().
    const float scale = t->f->call->scale;
    const bool fold = cla_scale_folds(scale);
    const vf factor = vec_splat(fold ? scale : 1.0f);
    t->post_scale = fold ? 1.0f : scale;
    for (int32_t r = 0; r < t->n; r++) {
        int32_t head;
        const int64_t i = few_row(t, r, &head);
        const float *row = base + head * stride[1] + i * stride[2];
        for (int32_t c = 0; c < t->vecs_qk; c++)
            t->q[c * t->n + r] = few_load(row, c, t->dim_qk, true) * factor;
        cla_host_window(t->f->call, i, &t->lo[r], &t->hi[r]);
    }
}

// Scores of `keys` keys against n rows (a constant). Reads ahead into V, which comes next.
VEC_INLINE void few_scores(const struct few *t, int32_t key, int32_t keys, const int n)
{
    enum { BLOCK_MAX = FEW_SUMS };
    const int block = FEW_SUMS / n;
    const float *k = t->k + key * t->k_stride;
    const float *v = t->v + key * t->v_stride;
    const int32_t full = t->dim_qk / W;
    for (int32_t j = 0; j < keys; j += block) {
        const float *row[BLOCK_MAX];
        vf sum[FEW_SUMS];
        VEC_UNROLL
        for (int i = 0; i < block; i++) {
            const int32_t at = j + i < keys ? j + i : keys - 1;
            row[i] = k + at * t->k_stride;
            for (int32_t d = 0; t->first == 0 && d < t->dim_v; d += 16)
                __builtin_prefetch(v + at * t->v_stride + d);
        }
        VEC_UNROLL
        for (int i = 0; i < FEW_SUMS; i++)
            sum[i] = vec_splat(0.0f);
        for (int32_t c = 0; c < full; c++) {
            VEC_UNROLL
            for (int i = 0; i < block; i++) {
                const vf x = vec_load(row[i] + c * W);
                VEC_UNROLL
                for (int r = 0; r < n; r++)
                    sum[i * n + r] = vec_fma(x, t->q[c * n + r], sum[i * n + r]);
            }
        }
        if (full < t->vecs_qk) {
            VEC_UNROLL
            for (int i = 0; i < block; i++) {
                const vf x = few_load(row[i], full, t->dim_qk, true);
                VEC_UNROLL
                for (int r = 0; r < n; r++)
                    sum[i * n + r] = vec_fma(x, t->q[full * n + r], sum[i * n + r]);
            }
        }
        VEC_UNROLL
        for (int i = 0; i < FEW_SUMS; i += W) {
            vec_transpose(sum + i);
            vf total = sum[i];
            VEC_UNROLL
            for (int r = 1; r < W; r++)
                total += sum[i + r];
            vec_store(t->s + j * n + i, total);
        }
    }
}

VEC_NOINLINE void few_scores_1(const struct few *t, int32_t key, int32_t keys)
{
    few_scores(t, key, keys, 1);
}

VEC_NOINLINE void few_scores_2(const struct few *t, int32_t key, int32_t keys)
{
    few_scores(t, key, keys, 2);
}

VEC_NOINLINE void few_scores_4(const struct few *t, int32_t key, int32_t keys)
{
    few_scores(t, key, keys, 4);
}

// Scale, window and mask. Fills the last vector up with hidden scores.
static void few_finish_scores(struct few *t, int32_t key, int32_t keys)
{
    const int32_t n = t->n;
    if (t->post_scale != 1.0f)
        for (int32_t j = 0; j < keys * n; j++)
            t->s[j] *= t->post_scale;
    for (int32_t r = 0; r < n; r++) {
        if (key >= t->lo[r] && key + keys - 1 <= t->hi[r])
            continue;
        for (int32_t j = 0; j < keys; j++)
            if (key + j < t->lo[r] || key + j > t->hi[r])
                t->s[j * n + r] = -INFINITY;
    }
    if (t->f->p->mask) {
        const int64_t *stride = t->f->call->mask.stride;
        const uint8_t *base = t->f->mem->mask + t->job->b * stride[0] + key * stride[3];
        for (int32_t r = 0; r < n; r++) {
            int32_t head;
            const int64_t i = few_row(t, r, &head);
            const uint8_t *row = base + head * stride[1] + i * stride[2];
            for (int32_t j = 0; j < keys; j++)
                if (!row[j * stride[3]])
                    t->s[j * n + r] = -INFINITY;
        }
    }
    for (int32_t j = keys * n; j % W != 0; j++)
        t->s[j] = -INFINITY;
}

// A value of each row, repeated for the keys in a vector.
static vf few_spread(const float *x, int32_t n)
{
    vf out = vec_splat(0.0f);
    for (int32_t i = 0; i < W; i++)
        out[i] = x[i % n];
    return out;
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
    for (int32_t i = 0; i < vecs; i++) {
        const vf x = vec_load(t->s + i * W);
        vf p = x - spread;
        vec_exp(&p, 1);
        sum += p;
        if (t->careful) // hidden pairs become -0, which no weight is
            p = vec_select((vi)(x == vec_splat(-INFINITY)), vec_splat(-0.0f),
                           p * vec_splat(t->weight_scale));
        vec_store(t->s + i * W, p);
    }
    for (int32_t r = 0; r < n; r++) {
        float l = 0.0f;
        for (int32_t i = r; i < W; i += n)
            l += sum[i];
        alpha[r] = factor[r];
        t->l[r] = t->l[r] * alpha[r] + l;
    }
}

// O of `cols` neighbouring vectors (a constant) of n rows (a constant), from vector c.
VEC_INLINE void few_pv_block(const struct few *t, int32_t key, int32_t keys, const float *alpha,
                             int32_t c, const int n, const int cols)
{
    const float *v = t->v + key * t->v_stride + few_at(c, t->dim_v);
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

// Reads ahead into K of the next tile.
static void few_prefetch_keys(const struct few *t, int32_t key, int32_t keys)
{
    const int32_t left = t->job->key1 - key - keys;
    const int32_t ahead = left < FEW_KEYS ? left : FEW_KEYS;
    for (int32_t j = 0; j < ahead; j++) {
        const float *row = t->k + (int64_t)(key + keys + j) * t->k_stride;
        for (int32_t d = 0; d < t->dim_qk; d += 16)
            __builtin_prefetch(row + d);
    }
}

VEC_INLINE void few_pv(const struct few *t, int32_t key, int32_t keys, const float *alpha,
                       const int n)
{
    const int cols = 8 / n;
    const int32_t full = t->dim_v / W;
    int32_t c = 0;
    for (; c + cols <= full; c += cols)
        few_pv_block(t, key, keys, alpha, c, n, cols);
    for (; c < t->vecs_v; c++)
        few_pv_block(t, key, keys, alpha, c, n, 1);
}

VEC_NOINLINE void few_pv_1(const struct few *t, int32_t key, int32_t keys, const float *alpha)
{
    few_pv(t, key, keys, alpha, 1);
}

VEC_NOINLINE void few_pv_2(const struct few *t, int32_t key, int32_t keys, const float *alpha)
{
    few_pv(t, key, keys, alpha, 2);
}

VEC_NOINLINE void few_pv_4(const struct few *t, int32_t key, int32_t keys, const float *alpha)
{
    few_pv(t, key, keys, alpha, 4);
}

// Leaves hidden pairs out one by one.
static void few_pv_careful(const struct few *t, int32_t key, int32_t keys, const float *alpha)
{
    for (int32_t c = 0; c < t->vecs_v; c++)
        for (int32_t r = 0; r < t->n; r++) {
            vf acc = vec_splat(0.0f);
            for (int32_t j = 0; j < keys; j++) {
                const float w = t->s[j * t->n + r];
                if (w == 0.0f && signbit(w))
                    continue;
                const float *row = t->v + (int64_t)(key + j) * t->v_stride;
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

static void few_step(struct few *t, int32_t key, int32_t keys)
{
    float alpha[FEW_GROUP];
    if (t->n == 4)
        few_scores_4(t, key, keys);
    else if (t->n == 2)
        few_scores_2(t, key, keys);
    else
        few_scores_1(t, key, keys);
    few_finish_scores(t, key, keys);
    few_weights(t, keys, alpha);
    if (t->first == 0)
        few_prefetch_keys(t, key, keys);
    if (t->careful)
        few_pv_careful(t, key, keys, alpha);
    else if (t->n == 4)
        few_pv_4(t, key, keys, alpha);
    else if (t->n == 2)
        few_pv_2(t, key, keys, alpha);
    else
        few_pv_1(t, key, keys, alpha);
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

// One pass over the keys of the job for `count` groups, which find a tile in the cache one after
// the other. Returns whether the second level was used.
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
        for (int32_t g = 0; g < count; g++)
            few_step(&groups[g], key, keys);
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

// Writes row r. Returns false, with nothing written, if it is not finite and may be mended.
static bool few_store_row(const struct few *t, int32_t r, const vf *o, float l)
{
    const vf inverse = vec_splat(1.0f / l);
    const vf unscale = vec_splat(t->careful ? 1.0f / t->weight_scale : 1.0f);
    const vi empty = (vi)(vec_splat(l) == vec_splat(0.0f));
    vf bad = vec_splat(0.0f);
    for (int32_t c = 0; c < t->vecs_v; c++) {
        const vf x = o[c * t->n + r] * inverse * unscale;
        bad = vec_fma((vf)(~empty & (vi)x), vec_splat(0.0f), bad);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < W; i++)
        sum += bad[i];
    if (sum != 0.0f && !t->careful)
        return false;

    int32_t head;
    const int64_t i = few_row(t, r, &head);
    const int64_t *stride = t->f->call->o.stride;
    float *part = t->job->part;
    const int32_t lane = t->first + r;
    float *row =
        part ? part + 2 * t->job->rows + (int64_t)lane * t->dim_v
             : (float *)t->f->mem->o + t->job->b * stride[0] + head * stride[1] + i * stride[2];
    for (int32_t c = 0; c < t->vecs_v; c++) {
        const vf x = (vf)(~empty & (vi)(o[c * t->n + r] * inverse * unscale));
        if (t->dim_v >= W)
            vec_store(row + few_at(c, t->dim_v), x);
        else
            for (int32_t d = 0; d < t->dim_v; d++)
                row[d] = x[d];
    }
    if (part) {
        part[lane] = t->m[r];
        part[t->job->rows + lane] = l;
    } else if (t->f->p->lse && t->f->mem->lse) {
        const int64_t at = ((int64_t)t->job->b * t->f->p->heads_q + head) * t->f->call->len_q + i;
        t->f->mem->lse[at] = l == 0.0f ? -INFINITY : t->m[r] + logf(l);
    }
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

static void run_few(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch)
{
    const struct cla_problem *p = f->p;
    const struct cla_call *call = f->call;
    struct few groups[FEW_GROUPS];
    int32_t count = 0;
    vf *free_vecs = (vf *)(void *)scratch;
    for (int32_t first = 0; first < job->rows; first += FEW_GROUP) {
        struct few *t = &groups[count++];
        *t = (struct few){.f = f, .job = job, .dim_qk = p->dim_qk, .dim_v = p->dim_v};
        t->k = (const float *)f->mem->k + job->b * call->k.stride[0] + job->g * call->k.stride[1];
        t->v = (const float *)f->mem->v + job->b * call->v.stride[0] + job->g * call->v.stride[1];
        t->k_stride = call->k.stride[2];
        t->v_stride = call->v.stride[2];
        t->vecs_qk = (p->dim_qk + W - 1) / W;
        t->vecs_v = (p->dim_v + W - 1) / W;
        t->first = first;
        t->rows = job->rows - first < FEW_GROUP ? job->rows - first : FEW_GROUP;
        t->n = t->rows == 3 ? 4 : t->rows;
        t->weight_scale = weight_scale(job);
        t->q = free_vecs;
        t->o = t->q + FEW_GROUP * t->vecs_qk;
        t->o_hi = t->o + FEW_GROUP * t->vecs_v;
        t->s = (float *)(t->o_hi + FEW_GROUP * t->vecs_v);
        free_vecs = (vf *)(void *)(t->s + FEW_GROUP * FEW_KEYS);
        few_load_q(t);
    }
    const bool flushed = few_sweep(groups, count);
    for (int32_t g = 0; g < count; g++) {
        if (few_store(&groups[g], flushed))
            continue;
        groups[g].careful = true;
        few_store(&groups[g], few_sweep(&groups[g], 1));
    }
}
