// SPDX-License-Identifier: Apache-2.0
// The fused, tiled forward pass of TQ = W * QV rows: vector lanes are rows, so the running maximum
// and sum are plain vectors, K and V are read in place, one float at a time, and only Q and O are
// transposed.
//
//   S^T[key][lane] = sum_d K[key][d] * Q^T[d][lane]      registers: RK keys x QV vectors
//   O^T[d][lane]   = O^T * alpha + sum_key V[key][d] * P^T[key][lane]      RD channels x QV vectors
//
// Precision: products of one tile of keys are summed in registers from 0, tiles into (m, l, O), and
// every FLUSH_KEYS keys that state goes into a second one, so that no sum has many terms.
//
// Hidden pairs have a weight of exactly 0, but 0 * NaN is NaN. So the pass is made as if V were
// finite; what is wrong shows as a non-finite O, and then the tile is computed again with each
// hidden pair left out by a select.

#define TQ (W * QV)
#define FLUSH_KEYS 8192
// Vectors that the exponential takes at once: whole keys.
#define CHUNK (VEC_EXP_MOST / QV * QV)
_Static_assert(CHUNK > 0, "a chunk holds a key");
// Floats of V in a tile. They are read once for each block of RD channels, so they should stay in
// the first-level cache or in what of the second can be had without waiting: 32 KiB.
#define TILE_FLOATS 8192

struct tile {
    const struct cla_host_fwd *f;
    const struct cla_host_job *job;
    const float *k, *v; // key 0 of the head
    int64_t k_stride, v_stride;
    int32_t dim_qk, dim_v;
    int32_t tile_k;
    bool careful;
    float post_scale;     // what of the scale is not folded into Q
    float weight_scale;   // careful pass: power of 2 that keeps sums of large V finite
    vf *q, *o, *o_hi, *s; // [dim_qk][QV], [dim_v][QV] twice, [tile_k][QV]
    vi *vis;              // [tile_k][QV], -1 = the boolean mask shows the pair
    vf m[QV], l[QV], m_hi[QV], l_hi[QV];
    int32_t query[TQ], head[TQ]; // of each lane; lanes without a row repeat the last one
    vi lo[QV], hi[QV];           // window of each lane, where some key of the job needs it
    int32_t all_lo, all_hi;      // keys that the windows of all rows share
};

static int32_t tile_keys(const struct cla_problem *p)
{
    int32_t keys = TILE_FLOATS / p->dim_v;
    keys = keys < 32 ? 32 : keys > TILE_K ? TILE_K : keys;
    return keys / RK * RK;
}

static size_t tile_floats(const struct cla_problem *p)
{
    const size_t rows_q = (size_t)p->dim_qk;
    const size_t rows_o = (size_t)p->dim_v * 2;
    const size_t rows_s = TILE_K * (p->mask ? 2 : 1);
    return (rows_q + rows_o + rows_s) * TQ + CHUNK * W;
}

// A power of 2 that makes a sum of as many values as there are keys no larger than the largest.
static float weight_scale(const struct cla_host_job *job)
{
    return ldexpf(1.0f, -ilogbf((float)(job->key1 - job->key0) + 1.0f) - 1);
}

static void tile_find_rows(struct tile *t)
{
    const int32_t group = t->f->p->group;
    int32_t query = (int32_t)(t->job->row0 / group);
    int32_t member = (int32_t)(t->job->row0 % group);
    for (int32_t lane = 0; lane < TQ; lane++) {
        t->query[lane] = query;
        t->head[lane] = t->job->g * group + member;
        if (lane + 1 < t->job->rows && ++member == group) {
            member = 0;
            query++;
        }
    }
}

static void tile_load_q(struct tile *t)
{
    const int64_t *stride = t->f->call->q.stride;
    const float *base = (const float *)t->f->mem->q + t->job->b * stride[0];
    const float scale = t->f->call->scale;
    const bool fold = cla_scale_folds(scale);
    const vf factor = vec_splat(fold ? scale : 1.0f);
    t->post_scale = fold ? 1.0f : scale;
    for (int32_t v = 0; v < QV; v++) {
        const float *row[W];
        for (int32_t i = 0; i < W; i++)
            row[i] = base + t->head[v * W + i] * stride[1] + t->query[v * W + i] * stride[2];
        int32_t d = 0;
        for (; d + W <= t->dim_qk; d += W) {
            vf block[W];
            VEC_UNROLL
            for (int32_t i = 0; i < W; i++)
                block[i] = vec_load(row[i] + d);
            vec_transpose(block);
            VEC_UNROLL
            for (int32_t i = 0; i < W; i++)
                t->q[(d + i) * QV + v] = block[i] * factor;
        }
        for (; d < t->dim_qk; d++) {
            vf x = vec_splat(0.0f);
            for (int32_t i = 0; i < W; i++)
                x[i] = row[i][d];
            t->q[d * QV + v] = x * factor;
        }
    }
}

static void tile_load_windows(struct tile *t)
{
    const struct cla_call *call = t->f->call;
    int32_t unused;
    cla_host_window(call, t->query[0], &unused, &t->all_hi);
    cla_host_window(call, t->query[TQ - 1], &t->all_lo, &unused);
    if (t->job->key0 >= t->all_lo && t->job->key1 - 1 <= t->all_hi)
        return;
    for (int32_t lane = 0; lane < TQ; lane++) {
        int32_t lo, hi;
        cla_host_window(call, t->query[lane], &lo, &hi);
        t->lo[lane / W][lane % W] = lo;
        t->hi[lane / W][lane % W] = hi;
    }
}

static void tile_scores(const struct tile *t, int32_t key, int32_t n)
{
    const float *k = t->k + key * t->k_stride;
    vf *s = t->s;
    // While a block of keys is computed, the next one of K is fetched, and the rows of V that these
    // keys will need.
    struct ahead ahead = {.k_stride = 4 * t->k_stride, .v_stride = 4 * t->v_stride};
    ahead.v = (uintptr_t)(t->v + key * t->v_stride);
    int32_t j = 0;
    for (; j + RK <= n; j += RK) {
        ahead.k = (uintptr_t)(k + j * t->k_stride) + (uintptr_t)(RK * ahead.k_stride);
        score_block(k + j * t->k_stride, t->k_stride, t->q, t->dim_qk, s + j * QV, &ahead);
        ahead.v += (uintptr_t)(RK * ahead.v_stride);
    }
    if (j < n)
        score_rest(k + j * t->k_stride, t->k_stride, t->q, t->dim_qk, s + j * QV, n - j);
    if (t->post_scale != 1.0f) {
        const vf factor = vec_splat(t->post_scale);
        for (j = 0; j < n * QV; j++)
            s[j] *= factor;
    }
}

static void tile_apply_window(struct tile *t, int32_t key, int32_t n)
{
    const vf hidden = vec_splat(-INFINITY);
    for (int32_t j = 0; j < n; j++) {
        const vi at = (key + j) - (vi){0};
        for (int v = 0; v < QV; v++) {
            const vi visible = (vi)(at >= t->lo[v]) & (vi)(at <= t->hi[v]);
            t->s[j * QV + v] = vec_select(visible, t->s[j * QV + v], hidden);
        }
    }
}

// Reads the boolean mask of n keys. Returns whether a row sees any of them; *all: whether the mask
// shows every pair.
static bool tile_load_mask(struct tile *t, int32_t key, int32_t n, bool *all)
{
    const struct cla_problem *p = t->f->p;
    const int64_t *stride = t->f->call->mask.stride;
    const uint8_t *base = t->f->mem->mask + t->job->b * stride[0] + key * stride[3];
    int32_t *vis = (int32_t *)t->vis;
    int32_t any_bits = 0, all_bits = -1;
    // Rows that share their mask, as with padding of keys, are read once.
    const bool shared = stride[2] == 0 && (stride[1] == 0 || p->group == 1);
    const int32_t lanes = shared ? 1 : TQ;
    for (int32_t lane = 0; lane < lanes; lane++) {
        const uint8_t *row = base + t->head[lane] * stride[1] + t->query[lane] * stride[2];
        for (int32_t j = 0; j < n; j++) {
            const int32_t bits = -(int32_t)(row[j * stride[3]] != 0);
            vis[j * TQ + lane] = bits;
            any_bits |= bits;
            all_bits &= bits;
        }
    }
    if (shared)
        for (int32_t j = 0; j < n; j++)
            for (int v = 0; v < QV; v++)
                t->vis[j * QV + v] = vis[j * TQ] - (vi){0};
    *all = all_bits != 0;
    return any_bits != 0;
}

static void tile_apply_mask(struct tile *t, int32_t n)
{
    const vf hidden = vec_splat(-INFINITY);
    for (int32_t j = 0; j < n * QV; j++)
        t->s[j] = vec_select(t->vis[j], t->s[j], hidden);
}

// m where it is a number to subtract: an empty row has -infinity.
VEC_INLINE vf finite_max(vf m)
{
    const vi empty = (vi)(m == vec_splat(-INFINITY));
    return (vf)(~empty & (vi)m);
}

// From the chunk's maxima: m, what is subtracted from scores, and the factor of the old sums.
VEC_INLINE void tile_new_max(struct tile *t, const vf x[CHUNK], vf base[QV], vf alpha[QV])
{
    VEC_UNROLL
    for (int v = 0; v < QV; v++) {
        vf m = x[v];
        VEC_UNROLL
        for (int i = v + QV; i < CHUNK; i += QV)
            m = vec_max(x[i], m);
        base[v] = finite_max(m);
        alpha[v] = t->m[v] - base[v];
        t->m[v] = m;
    }
    vec_exp(alpha, QV);
}

VEC_INLINE void tile_new_sum(struct tile *t, const vf sum[CHUNK], const vf alpha[QV])
{
    VEC_UNROLL
    for (int v = 0; v < QV; v++) {
        vf l = sum[v];
        VEC_UNROLL
        for (int i = v + QV; i < CHUNK; i += QV)
            l += sum[i];
        t->l[v] = vec_fma(t->l[v], alpha[v], l);
    }
}

// Scores become weights. Updates m and l, leaves the factor of the old sums in alpha. Scores behind
// the last key are filled up to whole chunks.
VEC_NOINLINE void tile_weights(struct tile *t, int32_t n, vf alpha[QV])
{
    vf x[CHUNK], base[QV], sum[CHUNK];
    for (int32_t i = n * QV; i % CHUNK != 0; i++)
        t->s[i] = vec_splat(-INFINITY);
    VEC_UNROLL
    for (int i = 0; i < CHUNK; i++)
        x[i] = t->m[i % QV];
    for (int32_t j = 0; j < n * QV; j += CHUNK) {
        VEC_UNROLL
        for (int i = 0; i < CHUNK; i++)
            x[i] = vec_max(t->s[j + i], x[i]);
    }
    tile_new_max(t, x, base, alpha);
    VEC_UNROLL
    for (int i = 0; i < CHUNK; i++)
        sum[i] = vec_splat(0.0f);
    for (int32_t j = 0; j < n * QV; j += CHUNK) {
        VEC_UNROLL
        for (int i = 0; i < CHUNK; i++)
            x[i] = t->s[j + i] - base[i % QV];
        vec_exp(x, CHUNK);
        VEC_UNROLL
        for (int i = 0; i < CHUNK; i++) {
            sum[i] += x[i];
            t->s[j + i] = x[i];
        }
    }
    tile_new_sum(t, sum, alpha);
}

// As tile_weights(), but hidden pairs become -0, which no weight is, and the others are scaled.
static void tile_weights_careful(struct tile *t, int32_t n, vf alpha[QV])
{
    vf x[CHUNK], base[QV], sum[CHUNK];
    for (int i = 0; i < CHUNK; i++) {
        x[i] = t->m[i % QV];
        sum[i] = vec_splat(0.0f);
    }
    for (int32_t j = 0; j < n * QV; j++)
        x[j % QV] = vec_max(t->s[j], x[j % QV]);
    tile_new_max(t, x, base, alpha);
    for (int32_t j = 0; j < n * QV; j++) {
        vf p = t->s[j] - base[j % QV];
        const vi hidden = (vi)(t->s[j] == vec_splat(-INFINITY));
        vec_exp(&p, 1);
        sum[j % QV] += p;
        t->s[j] = vec_select(hidden, vec_splat(-0.0f), p * vec_splat(t->weight_scale));
    }
    tile_new_sum(t, sum, alpha);
}

static void tile_pv(const struct tile *t, int32_t key, int32_t n, const vf alpha[QV])
{
    const float *v = t->v + key * t->v_stride;
    int32_t d = 0;
    if (t->careful) {
        for (; d < t->dim_v; d++)
            pv_careful(v + d, t->v_stride, t->s, n, alpha, t->o + d * QV);
        return;
    }
    for (; d + RD <= t->dim_v; d += RD)
        pv_block(v + d, t->v_stride, t->s, n, alpha, t->o + d * QV);
    if (d < t->dim_v)
        pv_rest(v + d, t->v_stride, t->s, n, alpha, t->o + d * QV, t->dim_v - d);
}

// Moves (m, l, O) into the second level and starts it anew, but for m, which only grows.
static void tile_flush(struct tile *t)
{
    vf f[QV];
    for (int v = 0; v < QV; v++) {
        f[v] = t->m_hi[v] - finite_max(t->m[v]);
        vec_exp(&f[v], 1);
        t->l_hi[v] = vec_fma(t->l_hi[v], f[v], t->l[v]);
        t->m_hi[v] = t->m[v];
        t->l[v] = vec_splat(0.0f);
    }
    for (int32_t d = 0; d < t->dim_v; d++)
        for (int v = 0; v < QV; v++) {
            vf *hi = &t->o_hi[d * QV + v];
            *hi = vec_fma(*hi, f[v], t->o[d * QV + v]);
            t->o[d * QV + v] = vec_splat(0.0f);
        }
}

// One pass over the keys of the job. Returns whether the second level was used.
static bool tile_sweep(struct tile *t)
{
    for (int v = 0; v < QV; v++) {
        t->m[v] = t->m_hi[v] = vec_splat(-INFINITY);
        t->l[v] = t->l_hi[v] = vec_splat(0.0f);
    }
    memset(t->o, 0, sizeof(vf) * QV * (size_t)t->dim_v);
    if (t->job->key1 - t->job->key0 >= FLUSH_KEYS)
        memset(t->o_hi, 0, sizeof(vf) * QV * (size_t)t->dim_v);
    bool flushed = false;
    int32_t since = 0;
    for (int32_t key = t->job->key0; key < t->job->key1; key += t->tile_k) {
        const int32_t left = t->job->key1 - key;
        const int32_t n = left < t->tile_k ? left : t->tile_k;
        bool mask_full = true;
        if (t->vis && !tile_load_mask(t, key, n, &mask_full))
            continue;
        tile_scores(t, key, n);
        if (key < t->all_lo || key + n - 1 > t->all_hi)
            tile_apply_window(t, key, n);
        if (!mask_full)
            tile_apply_mask(t, n);
        vf alpha[QV];
        if (t->careful)
            tile_weights_careful(t, n, alpha);
        else
            tile_weights(t, n, alpha);
        tile_pv(t, key, n, alpha);
        since += n;
        if (since >= FLUSH_KEYS) {
            tile_flush(t);
            since = 0;
            flushed = true;
        }
        if (left <= t->tile_k)
            break; // key + tile_k might overflow
    }
    if (flushed)
        tile_flush(t);
    return flushed;
}

static float *tile_o_row(const struct tile *t, int32_t lane)
{
    if (t->job->part)
        return t->job->part + 2 * t->job->rows + (int64_t)lane * t->dim_v;
    const int64_t *stride = t->f->call->o.stride;
    return (float *)t->f->mem->o + t->job->b * stride[0] + t->head[lane] * stride[1] +
           t->query[lane] * stride[2];
}

// Fetches the rows of O for writing while there is still something to compute.
static void tile_prefetch_o(const struct tile *t)
{
    for (int32_t lane = 0; lane < t->job->rows; lane++) {
        const float *row = tile_o_row(t, lane);
        for (int32_t d = 0; d < t->dim_v; d += 16)
            __builtin_prefetch(row + d, 1);
    }
}

// O / l in place. Returns whether all rows of the job are finite.
static bool tile_normalise(struct tile *t, vf *o, const vf l[QV])
{
    vf inverse[QV], bad[QV];
    for (int v = 0; v < QV; v++) {
        inverse[v] = vec_splat(1.0f) / l[v];
        bad[v] = vec_splat(0.0f);
    }
    const vf unscale = vec_splat(t->careful ? 1.0f / t->weight_scale : 1.0f);
    for (int32_t d = 0; d < t->dim_v; d++)
        for (int v = 0; v < QV; v++) {
            // The order keeps O / l of large V from overflowing on the way.
            vf x = o[d * QV + v] * inverse[v] * unscale;
            // A row that sees nothing has l == 0; a NaN in l stays.
            x = (vf)(~(vi)(l[v] == vec_splat(0.0f)) & (vi)x);
            o[d * QV + v] = x;
            bad[v] = vec_fma(x, vec_splat(0.0f), bad[v]);
        }
    for (int32_t lane = 0; lane < t->job->rows; lane++)
        if (bad[lane / W][lane % W] != 0.0f)
            return false;
    return true;
}

static void tile_store_lse(const struct tile *t, const vf l[QV])
{
    const struct cla_problem *p = t->f->p;
    for (int32_t lane = 0; lane < t->job->rows; lane++) {
        const float row_m = t->m[lane / W][lane % W];
        const float row_l = l[lane / W][lane % W];
        if (t->job->part) {
            t->job->part[lane] = row_m;
            t->job->part[t->job->rows + lane] = row_l;
        } else if (p->lse && t->f->mem->lse) {
            const int64_t head = (int64_t)t->job->b * p->heads_q + t->head[lane];
            t->f->mem->lse[head * t->f->call->len_q + t->query[lane]] =
                row_l == 0.0f ? -INFINITY : row_m + logf(row_l);
        }
    }
}

static void tile_store_o(const struct tile *t, const vf *o)
{
    for (int32_t v = 0; v < QV && v * W < t->job->rows; v++) {
        const int32_t rows = t->job->rows - v * W < W ? t->job->rows - v * W : W;
        float *row[W];
        for (int32_t i = 0; i < rows; i++)
            row[i] = tile_o_row(t, v * W + i);
        int32_t d = 0;
        for (; d + W <= t->dim_v; d += W) {
            vf block[W];
            VEC_UNROLL
            for (int32_t i = 0; i < W; i++)
                block[i] = o[(d + i) * QV + v];
            vec_transpose(block);
            for (int32_t i = 0; i < rows; i++)
                vec_store(row[i] + d, block[i]);
        }
        for (; d < t->dim_v; d++)
            for (int32_t i = 0; i < rows; i++)
                row[i][d] = o[d * QV + v][i];
    }
}

static void run_tile(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch)
{
    const struct cla_problem *p = f->p;
    const struct cla_call *call = f->call;
    struct tile t = {.f = f, .job = job, .dim_qk = p->dim_qk, .dim_v = p->dim_v};
    t.k = (const float *)f->mem->k + job->b * call->k.stride[0] + job->g * call->k.stride[1];
    t.v = (const float *)f->mem->v + job->b * call->v.stride[0] + job->g * call->v.stride[1];
    t.k_stride = call->k.stride[2];
    t.v_stride = call->v.stride[2];
    t.tile_k = tile_keys(p);
    t.q = (vf *)(void *)scratch;
    t.o = t.q + (size_t)p->dim_qk * QV;
    t.o_hi = t.o + (size_t)p->dim_v * QV;
    t.s = t.o_hi + (size_t)p->dim_v * QV;
    t.vis = p->mask ? (vi *)(void *)(t.s + TILE_K * QV + CHUNK) : NULL;
    t.weight_scale = weight_scale(job);

    tile_find_rows(&t);
    tile_load_q(&t);
    tile_load_windows(&t);
    vf *o;
    vf *l;
    for (;;) {
        const bool flushed = tile_sweep(&t);
        tile_prefetch_o(&t);
        o = flushed ? t.o_hi : t.o;
        l = flushed ? t.l_hi : t.l;
        if (tile_normalise(&t, o, l) || t.careful)
            break;
        t.careful = true;
    }
    tile_store_lse(&t, l);
    tile_store_o(&t, o);
}
