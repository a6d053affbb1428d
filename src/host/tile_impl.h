// SPDX-License-Identifier: Apache-2.0
// The fused, tiled forward pass of TQ = W * QV rows: vector lanes are rows, so the running maximum
// and sum are plain vectors, K and V are read one float at a time, in place or from the staged copy
// of a tile (convert_impl.h), and only Q, O and a bias are transposed.
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

#include "host/tile_score_impl.h"

#include "host/dot_impl.h"

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

static void tile_pv(const struct tile *t, int32_t n, const vf alpha[QV])
{
    const float *v = t->v;
    int32_t d = 0;
    if (CLA_HOST_DOT && t->dot) {
        dot_pv(t, n, alpha);
        return;
    }
    if (t->careful) {
        for (; d < t->dim_v; d++)
            pv_careful(v + d, t->v_stride, t->s, n, alpha, t->o + d * QV);
        return;
    }
    const int32_t step = t->vectors < QV ? NARROW / t->vectors : RD;
    for (; t->vectors < QV && d + step <= t->dim_v; d += step)
        pv_narrow(v + d, t->v_stride, t->s, n, alpha, t->o + d * QV, t->vectors);
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

// One tile of keys. Those that no row sees are not read.
static void tile_step(struct tile *t, int32_t key, int32_t n, bool *staged)
{
    if (key >= t->key1 || key + (n - 1) < t->key0)
        return;
    if (t->vis && !tile_load_mask(t, key, n))
        return;
    if (t->bias && !tile_load_bias(t, key, n))
        return;
    if (CLA_HOST_DOT && t->dot) {
        dot_find_keys(t, key, n, staged);
        dot_scores(t, n);
    } else {
        tile_find_keys(t, key, n, staged);
        tile_scores(t, key, n);
    }
    tile_finish_scores(t, key, n);
    vf alpha[QV];
    if (t->careful)
        tile_weights_careful(t, n, alpha);
    else
        tile_weights(t, n, alpha);
    tile_pv(t, n, alpha);
}

static void tile_clear(struct tile *t)
{
    for (int v = 0; v < QV; v++) {
        t->m[v] = t->m_hi[v] = vec_splat(-INFINITY);
        t->l[v] = t->l_hi[v] = vec_splat(0.0f);
    }
    memset(t->o, 0, sizeof(vf) * QV * (size_t)t->dim_v);
    // Scores of vectors without rows are not computed; their weights are, from whatever is there.
    if (t->vectors < QV && !t->dot)
        memset(t->s, 0, sizeof(vf) * QV * (size_t)t->tile_k);
    if (t->job->key1 - t->job->key0 >= FLUSH_KEYS)
        memset(t->o_hi, 0, sizeof(vf) * QV * (size_t)t->dim_v);
}

// Fetches the rows of O for writing while there is still something to compute.
static void tile_prefetch_o(const struct tile *t)
{
    const int32_t bytes = t->dim_v * (int32_t)cla_dtype_bytes(t->dtype_o);
    for (int32_t lane = 0; lane < t->rows; lane++)
        for (int32_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(t->o_row[lane] + at, 1);
}

// One pass over the keys of the job for `count` tiles of rows. Returns whether the second level was
// used.
static bool tile_sweep(struct tile *tiles, int32_t count)
{
    const struct cla_host_job *job = tiles->job;
    const int32_t tile_k = tiles->tile_k;
    for (int32_t i = 0; i < count; i++)
        tile_clear(&tiles[i]);
    bool flushed = false;
    int32_t since = 0;
    for (int32_t key = job->key0; key < job->key1; key += tile_k) {
        const int32_t left = job->key1 - key;
        const int32_t n = left < tile_k ? left : tile_k;
        bool staged = false;
        for (int32_t i = 0; left <= tile_k && i < count; i++)
            tile_prefetch_o(&tiles[i]);
        for (int32_t i = 0; i < count; i++)
            tile_step(&tiles[i], key, n, &staged);
        since += n;
        if (since >= FLUSH_KEYS) {
            for (int32_t i = 0; i < count; i++)
                tile_flush(&tiles[i]);
            since = 0;
            flushed = true;
        }
        if (left <= tile_k)
            break; // key + tile_k might overflow
    }
    for (int32_t i = 0; flushed && i < count; i++)
        tile_flush(&tiles[i]);
    return flushed;
}

// m, l and the factor of O of a row: what the sweep found and the sink, which parts do without.
struct tile_end {
    vf m[QV], l[QV], keep[QV];
};

static void tile_end_rows(const struct tile *t, const vf l[QV], struct tile_end *e)
{
    const bool sinks = t->f->p->sinks && !t->job->part;
    for (int v = 0; v < QV; v++) {
        e->m[v] = t->m[v];
        e->l[v] = l[v];
        e->keep[v] = vec_splat(1.0f);
        if (!sinks)
            continue;
        vf sink = vec_splat(0.0f);
        for (int i = 0; i < W; i++)
            sink[i] = t->f->mem->sinks[t->head[v * W + i]];
        e->keep[v] = vec_add_sink(&e->m[v], &e->l[v], sink);
    }
}

static void tile_store_lse(const struct tile *t, const struct tile_end *e)
{
    const struct cla_call *call = t->f->call;
    float *lse = t->f->p->lse ? t->f->mem->lse : NULL;
    for (int32_t lane = 0; lane < t->rows; lane++) {
        const float m = e->m[lane / W][lane % W];
        const float l = e->l[lane / W][lane % W];
        if (t->job->part) {
            t->job->part[t->lane0 + lane] = m;
            t->job->part[t->job->rows + t->lane0 + lane] = l;
        } else if (lse) {
            lse[cla_lse_at(call, t->job->b, t->head[lane], t->query[lane])] =
                l == 0.0f ? -INFINITY : m + logf(l);
        }
    }
}

// Writes O / l of the rows of a vector, as elements of a type (a constant). Returns lanes of 0 for
// rows that are finite.
VEC_INLINE vf store_o_rows(const struct tile *t, const vf *o, int32_t v, const struct tile_end *e,
                           const int32_t dtype)
{
    const int32_t rows = t->rows - v * W < W ? t->rows - v * W : W;
    char *const *row = t->o_row + v * W;
    const vf inverse = e->keep[v] / e->l[v];
    const vf unscale = vec_splat(t->careful ? 1.0f / t->weight_scale : 1.0f);
    // A row that sees nothing has l == 0; a NaN in l stays.
    const vi shown = ~(vi)(e->l[v] == vec_splat(0.0f));
    // Rounded weights may take a row that is close to the largest number beyond it, so half of that
    // is where such a row ends.
    const vf reach = vec_splat(CLA_HOST_DOT && t->dot ? 2.0f : 1.0f);
    vf bad[2] = {vec_splat(0.0f), vec_splat(0.0f)};
    int32_t d = 0;
    for (; d + W <= t->dim_v; d += W) {
        vf block[W];
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++) {
            // The order keeps O / l of large V from overflowing on the way.
            const vf x = o[(d + i) * QV + v];
            block[i] = (vf)(shown & (vi)vec_finite_mean(x * inverse * unscale, x));
            bad[i % 2] = vec_fma(block[i] * reach, vec_splat(0.0f), bad[i % 2]);
        }
        vec_transpose(block);
        if (rows == W) {
            VEC_UNROLL
            for (int32_t i = 0; i < W; i++)
                vec_store_as(row[i], d, dtype, block[i]);
        } else {
            for (int32_t i = 0; i < rows; i++)
                vec_store_as(row[i], d, dtype, block[i]);
        }
    }
    for (; d < t->dim_v; d++) {
        const vf sum = o[d * QV + v];
        const vf x = (vf)(shown & (vi)vec_finite_mean(sum * inverse * unscale, sum));
        bad[0] = vec_fma(x * reach, vec_splat(0.0f), bad[0]);
        for (int32_t i = 0; i < rows; i++)
            store_as(row[i], d, dtype, x[i]);
    }
    return bad[0] + bad[1];
}

// Returns whether all rows are finite.
static bool tile_store_o(const struct tile *t, const vf *o, const struct tile_end *e)
{
    vf bad = vec_splat(0.0f);
    for (int32_t v = 0; v < QV && v * W < t->rows; v++)
        switch (t->dtype_o) {
        case CLATTN_DTYPE_F16: bad += store_o_rows(t, o, v, e, CLATTN_DTYPE_F16); break;
        case CLATTN_DTYPE_BF16: bad += store_o_rows(t, o, v, e, CLATTN_DTYPE_BF16); break;
        default: bad += store_o_rows(t, o, v, e, CLATTN_DTYPE_F32); break;
        }
    // Lanes without a row are as the last row.
    for (int i = 0; i < W; i++)
        if (bad[i] != 0.0f)
            return false;
    return true;
}

// Hands out scratch from `next` on, see tile_floats(): what each tile has for itself. Returns what
// is left of it.
static vf *tile_set_memory(struct tile *t, vf *next)
{
    t->q = next;
    t->o = t->q + (size_t)t->dim_qk * QV;
    t->o_hi = t->o + (size_t)t->dim_v * QV;
    return t->o_hi + (size_t)t->dim_v * QV;
}

// And what all tiles share, as they use it one after the other.
static void tile_set_shared(struct tile *t, vf *next)
{
    const struct cla_problem *p = t->f->p;
    t->s = next;
    next += TILE_K * QV + CHUNK;
    if (p->mask) {
        t->vis = (int8_t *)next;
        next += MASK_ROWS * QV;
    }
    if (p->bias) {
        t->bias = next;
        next += TILE_K * QV;
    }
    t->k_keys = keys_of_k(t->f, t->job);
    t->v_keys = keys_of_v(t->f, t->job);
    t->k_stride = t->f->call->k.stride[2];
    t->v_stride = t->f->call->v.stride[2];
    if (!keys_are_staged(p))
        return;
    const bool one = v_is_in_k(t->f);
    t->k = t->k_staged = (float *)next;
    t->v = t->v_staged = one ? t->k_staged : t->k_staged + (size_t)t->tile_k * (size_t)p->dim_qk;
    t->k_stride = p->dim_qk;
    t->v_stride = one ? p->dim_qk : p->dim_v;
}

// Writes the rows of a tile. Returns false if one is not finite and may be mended by a careful
// pass, which writes them again.
static bool tile_store(struct tile *t, bool flushed)
{
    struct tile_end end;
    tile_end_rows(t, flushed ? t->l_hi : t->l, &end);
    if (!tile_store_o(t, flushed ? t->o_hi : t->o, &end) && !t->careful)
        return false;
    tile_store_lse(t, &end);
    return true;
}

// Computes the rows of a tile again in float, with hidden pairs left out one by one. Its memory is
// that of a tile in float from the start.
static void tile_mend(struct tile *t)
{
    if (CLA_HOST_DOT && t->dot) {
        t->dot = false;
        tile_load_q(t);
    }
    t->careful = true;
    tile_store(t, tile_sweep(t, 1));
}

static void run_tile(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch)
{
    const struct cla_problem *p = f->p;
    struct tile tiles[MOST_TILES];
    vf *next = (vf *)(void *)scratch;
    int32_t count = 0;
    for (int32_t lane0 = 0; lane0 < job->rows; lane0 += TQ) {
        struct tile *t = &tiles[count++];
        memset(t, 0, offsetof(struct tile, query));
        t->f = f;
        t->job = job;
        t->dim_qk = p->dim_qk;
        t->dim_v = p->dim_v;
        t->row0 = job->row0 + lane0;
        t->rows = job->rows - lane0 < TQ ? job->rows - lane0 : TQ;
        t->lane0 = lane0;
        t->tile_k = tile_keys(p);
        t->weight_scale = weight_scale(job);
        next = tile_set_memory(t, next);
        tile_find_rows(t);
        tile_find_o(t);
        t->dot = CLA_HOST_DOT && cla_host_takes_dot(p) && dot_scales(f->call->scale);
        if (CLA_HOST_DOT && t->dot)
            dot_load_q(t);
        else
            tile_load_q(t);
        tile_load_windows(t);
        if (p->alibi)
            tile_load_slopes(t);
    }
    for (int32_t i = 0; i < count; i++)
        tile_set_shared(&tiles[i], next);
    const bool flushed = tile_sweep(tiles, count);
    for (int32_t i = 0; i < count; i++) {
        if (!tile_store(&tiles[i], flushed))
            tile_mend(&tiles[i]);
    }
}
