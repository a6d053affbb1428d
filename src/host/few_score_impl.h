// SPDX-License-Identifier: Apache-2.0
// The first half of few_impl.h: a group of rows, what it holds, and the scores of a tile of keys.

#define FEW_MAX 8
#define FEW_GROUP 4
#define FEW_GROUPS (FEW_MAX / FEW_GROUP)
#define FEW_SUMS (W > 8 ? W : 8) // accumulators of a score block
#define FEW_KEYS 64              // keys in a tile
#define CACHE_FLOATS 16          // in a line of the cache

// Rows of K that are asked for while V is in hand, a line at a time.
struct few_ahead {
    const float *row;
    int64_t stride;
    int32_t dim, d, rows; // channels of a row, asked for of the next one, rows left
};

struct few {
    const struct cla_host_fwd *f;
    const struct cla_host_job *job;
    struct keys k_keys, v_keys;
    float *k_staged, *v_staged; // [FEW_KEYS][dim] for all groups, NULL = keys are read in place
    const float *k, *v;         // rows of the tile of keys in hand
    int64_t k_stride, v_stride;
    int32_t dim_qk, dim_v;
    int32_t vecs_qk, vecs_v; // vectors in a row, the overlapping one included
    int32_t first;           // first row of the group in the job
    int32_t rows, n;         // real rows, and rounded up to 1, 2 or 4
    bool careful;
    float post_scale, weight_scale;
    vf *q, *o, *o_hi; // [vecs][n]
    float *s;         // [FEW_KEYS][n]
    float *add;       // [FEW_KEYS][n] bias, -infinity where it or the mask hides; NULL without both
    struct few_ahead ahead;
    bool sees;        // a row of the group sees a key of the tile in hand
    float slope[FEW_GROUP]; // of ALiBi
    int32_t at[FEW_GROUP];  // position of each row among the keys
    float m[FEW_GROUP], l[FEW_GROUP], m_hi[FEW_GROUP], l_hi[FEW_GROUP];
    int32_t lo[FEW_GROUP], hi[FEW_GROUP];
};

static size_t few_floats(const struct cla_problem *p)
{
    const size_t vecs_qk = ((size_t)p->dim_qk + W - 1) / W;
    const size_t vecs_v = ((size_t)p->dim_v + W - 1) / W;
    const size_t scores = FEW_KEYS * (p->mask || p->bias ? 2u : 1u);
    const size_t staged =
        keys_are_staged(p) ? FEW_KEYS * ((size_t)p->dim_qk + (size_t)p->dim_v) : 0;
    return FEW_GROUPS * FEW_GROUP * (W * (vecs_qk + 2 * vecs_v) + scores) + staged;
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
VEC_INLINE vf few_pick(vf x, int32_t c, int32_t dim)
{
    vi lane = {0};
    for (int i = 0; i < W; i++)
        lane[i] = i;
    const vi repeated = (vi)(lane < (c * W - (dim - W)) - (vi){0});
    return (vf)(~repeated & (vi)x);
}

VEC_INLINE vf few_load(const float *row, int32_t c, int32_t dim, bool once)
{
    const int32_t d = c * W;
    if (d + W <= dim)
        return vec_load(row + d);
    if (dim < W)
        return few_load_short(row, dim);
    const vf x = vec_load(row + dim - W);
    return once ? few_pick(x, c, dim) : x;
}

// The same of Q, in whatever type.
static vf few_load_query(const void *q, int64_t row, int32_t c, int32_t dim, int32_t dtype)
{
    if (dim < W) {
        float all[W] = {0.0f};
        for (int32_t d = 0; d < dim; d++)
            all[d] = load_as(q, row + d, dtype);
        return vec_load(all);
    }
    const vf x = vec_load_as(q, row + few_at(c, dim), dtype);
    return c * W + W <= dim ? x : few_pick(x, c, dim);
}

static void few_load_q(struct few *t)
{
    const struct cla_call *call = t->f->call;
    const struct cla_problem *p = t->f->p;
    // As in tile_load_q().
    const float scale = call->scale;
    const bool fold = cla_scale_folds(scale);
    const vf factor = vec_splat(fold ? scale : 1.0f);
    t->post_scale = fold ? 1.0f : scale;
    for (int32_t r = 0; r < t->n; r++) {
        int32_t head;
        const int64_t i = few_row(t, r, &head);
        const int64_t row = cla_query_at(call, &call->q, t->job->b, head, i);
        for (int32_t c = 0; c < t->vecs_qk; c++)
            t->q[c * t->n + r] =
                few_load_query(t->f->mem->q, row, c, t->dim_qk, p->dtype_q) * factor;
        cla_host_window(call, i, &t->lo[r], &t->hi[r]);
        t->at[r] = (int32_t)(i + call->off);
        if (p->alibi)
            t->slope[r] = t->f->mem->alibi[t->job->b * call->alibi_stride + head];
    }
}

// Scores of `keys` keys against n rows (a constant). Reads ahead into V, which comes next.
VEC_INLINE void few_scores(const struct few *t, int32_t keys, const int n)
{
    enum { BLOCK_MAX = FEW_SUMS };
    const int block = FEW_SUMS / n;
    const float *k = t->k;
    const float *v = t->v;
    const bool ahead = t->first == 0 && !t->k_staged;
    const int32_t full = t->dim_qk / W;
    for (int32_t j = 0; j < keys; j += block) {
        const float *row[BLOCK_MAX];
        vf sum[FEW_SUMS];
        VEC_UNROLL
        for (int i = 0; i < block; i++) {
            const int32_t at = j + i < keys ? j + i : keys - 1;
            row[i] = k + at * t->k_stride;
            for (int32_t d = 0; ahead && d < t->dim_v; d += 16)
                __builtin_prefetch(v + at * t->v_stride + d);
        }
        VEC_UNROLL
        for (int i = 0; i < FEW_SUMS; i++)
            sum[i] = vec_splat(0.0f);
        VEC_UNROLL_BY_4
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

VEC_NOINLINE void few_scores_1(const struct few *t, int32_t keys)
{
    few_scores(t, keys, 1);
}

VEC_NOINLINE void few_scores_2(const struct few *t, int32_t keys)
{
    few_scores(t, keys, 2);
}

VEC_NOINLINE void few_scores_4(const struct few *t, int32_t keys)
{
    few_scores(t, keys, 4);
}

// A value of each row, repeated for the keys in a vector.
static vf few_spread(const float *x, int32_t n)
{
    vf out = vec_splat(0.0f);
    for (int32_t i = 0; i < W; i++)
        out[i] = x[i % n];
    return out;
}

// Reads bias and mask of the keys into `add`. Returns whether a row of the group sees any of them.
static bool few_load_add(const struct few *t, int32_t key, int32_t keys)
{
    const struct cla_problem *p = t->f->p;
    const struct cla_host_mem *mem = t->f->mem;
    const int64_t *bias = t->f->call->bias.stride;
    const int64_t *mask = t->f->call->mask.stride;
    bool sees = false;
    for (int32_t r = 0; r < t->n; r++) {
        int32_t head;
        const int64_t i = few_row(t, r, &head);
        const int64_t b = t->job->b;
        const int64_t at = b * bias[0] + head * bias[1] + i * bias[2] + key * bias[3];
        const int64_t shown = b * mask[0] + head * mask[1] + i * mask[2] + key * mask[3];
        for (int32_t j = 0; j < keys; j++) {
            float x = p->bias ? load_as(mem->bias, at + j * bias[3], p->dtype_bias) : 0.0f;
            if (p->mask && !mem->mask[shown + j * mask[3]])
                x = -INFINITY;
            t->add[j * t->n + r] = x;
            sees |= x != -INFINITY;
        }
    }
    return sees;
}

static void few_apply_cap(struct few *t, int32_t keys)
{
    enum { STEP = VEC_EXP_MOST * W };
    _Static_assert(FEW_GROUP * FEW_KEYS % STEP == 0, "steps fill the scores of a tile");
    const float cap = t->f->call->softcap;
    const float inverse = cap_inverse(cap);
    for (int32_t j = 0; j < keys * t->n; j += STEP) {
        vf x[VEC_EXP_MOST];
        memcpy(x, t->s + j, sizeof x);
        vec_cap(x, cap, inverse, VEC_EXP_MOST);
        memcpy(t->s + j, x, sizeof x);
    }
}

static void few_apply_alibi(struct few *t, int32_t key, int32_t keys)
{
    const vf slope = few_spread(t->slope, t->n);
    vi distance = {0};
    for (int i = 0; i < W; i++)
        distance[i] = t->at[i % t->n] - key - i / t->n;
    for (int32_t j = 0; j < keys * t->n; j += W) {
        vec_store(t->s + j, vec_alibi(vec_load(t->s + j), slope, distance));
        distance -= W / t->n;
    }
}

// From products to scores, as tile_finish_scores(). Fills the last vector up with hidden scores.
static void few_finish_scores(struct few *t, int32_t key, int32_t keys)
{
    const int32_t n = t->n;
    if (t->post_scale != 1.0f)
        for (int32_t j = 0; j < keys * n; j++)
            t->s[j] *= t->post_scale;
    if (t->f->call->softcap > 0.0f)
        few_apply_cap(t, keys);
    if (t->f->p->alibi)
        few_apply_alibi(t, key, keys);
    if (t->add)
        for (int32_t j = 0; j < keys * n; j += W)
            vec_store(t->s + j, vec_bias(vec_load(t->s + j), vec_load(t->add + j)));
    for (int32_t r = 0; r < n; r++) {
        if (key >= t->lo[r] && key + keys - 1 <= t->hi[r])
            continue;
        for (int32_t j = 0; j < keys; j++)
            if (key + j < t->lo[r] || key + j > t->hi[r])
                t->s[j * n + r] = -INFINITY;
    }
    for (int32_t j = keys * n; j % W != 0; j++)
        t->s[j] = -INFINITY;
}
