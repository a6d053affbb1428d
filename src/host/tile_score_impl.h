// SPDX-License-Identifier: Apache-2.0
// The first half of tile_impl.h: a tile of rows, what it holds, and the scores of a tile of keys.

#define TQ (W * QV)
#define FLUSH_KEYS 8192
// Vectors that the exponential takes at once: whole keys.
#define CHUNK (VEC_EXP_MOST / QV * QV)
_Static_assert(CHUNK > 0, "a chunk holds a key");
// Floats of V in a tile. They are read once for each block of RD channels, so they should stay in
// the first-level cache or in what of the second can be had without waiting: 32 KiB.
#define TILE_FLOATS 8192
// Rows of QV vectors that the mask of a tile takes, a byte for a pair.
#define MASK_ROWS ((TILE_K + 3) / 4)
// Tiles of rows that share staged keys: as many as make so many rows.
#define MOST_TILES 4
#define MOST_ROWS 96

struct tile {
    const struct cla_host_fwd *f;
    const struct cla_host_job *job;
    struct keys k_keys, v_keys;
    float *k_staged, *v_staged; // [tile_k][dim], NULL = keys are read in place
    const float *k, *v;         // rows of the tile of keys in hand
    int64_t k_stride, v_stride;
    const uint16_t *k_dot; // dot: rows of K of 16 bits, and pairs of rows of V, see dot_impl.h
    int64_t k_dot_stride;
    const int32_t *v_dot;
    int32_t dim_qk, dim_v;
    int32_t tile_k;
    int64_t row0; // rows of the job that this tile has, from lane0 of the job's on
    int32_t rows, lane0;
    int vectors;        // 1 or 2 where no more have rows, or QV
    int32_t dtype_o;    // of o_row: float in a part
    int32_t key0, key1; // what of the job's keys its rows may see
    bool dot;       // products of 16 bits
    bool careful;
    bool mask_full;  // the mask shows every pair of the tile of keys in hand
    bool bias_hides; // the bias is -infinity somewhere in it
    float post_scale;     // what of the scale is not folded into Q
    float weight_scale;   // careful pass: power of 2 that keeps sums of large V finite
    vf *q, *o, *o_hi, *s; // [dim_qk][QV], [dim_v][QV] twice, [tile_k][QV]
    int8_t *vis;          // [tile_k][TQ], -1 = the boolean mask shows the pair; NULL without one
    vf *bias;             // [tile_k][QV], NULL without one
    int32_t all_lo, all_hi; // keys that the windows of all rows share
    // What follows is left as it is until it is set.
    int32_t query[TQ], head[TQ]; // of each lane; lanes without a row repeat the last one
    char *o_row[TQ];             // where the row of a lane is written
    vf m[QV], l[QV], m_hi[QV], l_hi[QV];
    vi lo[QV], hi[QV]; // window of each lane, where some key of the job needs it
    vf slope[QV];      // of ALiBi
};

static int32_t tile_keys(const struct cla_problem *p)
{
    int32_t keys = TILE_FLOATS / p->dim_v;
    keys = keys < 32 ? 32 : keys > TILE_K ? TILE_K : keys;
    return keys / RK * RK;
}

// Most tiles of rows that a job has: staged keys are used by more than one, so that converting them
// is a small part of the work, as long as Q and O of all stay in the second-level cache.
static int32_t tile_count(const struct cla_problem *p)
{
    enum { MOST_FLOATS = 32768 };
    if (!keys_are_staged(p))
        return 1;
    int32_t n = (MOST_ROWS + TQ - 1) / TQ;
    n = n > MOST_TILES ? MOST_TILES : n;
    while (n > 1 && n * TQ * (p->dim_qk + p->dim_v) > MOST_FLOATS)
        n--;
    return n;
}

static size_t tile_floats(const struct cla_problem *p)
{
    const size_t rows_qo = (size_t)p->dim_qk + (size_t)p->dim_v * 2;
    const size_t rows_s = TILE_K * (1u + (p->bias ? 1u : 0u)) + (p->mask ? MASK_ROWS : 0u);
    const size_t staged =
        keys_are_staged(p) ? (size_t)tile_keys(p) * ((size_t)p->dim_qk + (size_t)p->dim_v) : 0;
    return ((size_t)tile_count(p) * rows_qo + rows_s) * TQ + CHUNK * W + staged;
}

// A power of 2 that makes a sum of as many values as there are keys no larger than the largest.
static float weight_scale(const struct cla_host_job *job)
{
    return ldexpf(1.0f, -ilogbf((float)(job->key1 - job->key0) + 1.0f) - 1);
}

static void tile_find_rows(struct tile *t)
{
    const int32_t group = t->f->p->group;
    int32_t query = (int32_t)(t->row0 / group);
    int32_t member = (int32_t)(t->row0 % group);
    for (int32_t lane = 0; lane < TQ; lane++) {
        t->query[lane] = query;
        t->head[lane] = t->job->g * group + member;
        if (lane + 1 < t->rows && ++member == group) {
            member = 0;
            query++;
        }
    }
    const int vectors = (t->rows + W - 1) / W;
    t->vectors = vectors > 2 ? QV : vectors;
}

static void tile_find_o(struct tile *t)
{
    const struct cla_call *call = t->f->call;
    t->dtype_o = t->job->part ? CLATTN_DTYPE_F32 : t->f->p->dtype_o;
    for (int32_t lane = 0; lane < t->rows; lane++) {
        if (t->job->part) {
            const int64_t row = (int64_t)(t->lane0 + lane) * t->dim_v;
            t->o_row[lane] = (char *)(t->job->part + 2 * t->job->rows + row);
            continue;
        }
        const int64_t at =
            cla_query_at(call, &call->o, t->job->b, t->head[lane], t->query[lane]);
        t->o_row[lane] = (char *)t->f->mem->o + at * (int64_t)cla_dtype_bytes(t->dtype_o);
    }
}

// Transposes the rows of a vector, which are `rows` elements of a type (a constant) from q on.
VEC_INLINE void load_q_rows(const struct tile *t, vf *to, const int64_t rows[W], vf factor,
                            const int32_t dtype)
{
    const void *q = t->f->mem->q;
    int32_t d = 0;
    for (; d + W <= t->dim_qk; d += W) {
        vf block[W];
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++)
            block[i] = vec_load_as(q, rows[i] + d, dtype);
        vec_transpose(block);
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++)
            to[(d + i) * QV] = block[i] * factor;
    }
    for (; d < t->dim_qk; d++) {
        vf x = vec_splat(0.0f);
        for (int32_t i = 0; i < W; i++)
            x[i] = load_as(q, rows[i] + d, dtype);
        to[d * QV] = x * factor;
    }
}

static void tile_load_q(struct tile *t)
{
    const struct cla_call *call = t->f->call;
    const float scale = t->f->call->scale;
    const bool fold = cla_scale_folds(scale);
    const vf factor = vec_splat(fold ? scale : 1.0f);
    t->post_scale = fold ? 1.0f : scale;
    int64_t row[TQ];
    for (int32_t i = 0; i < TQ; i++)
        row[i] = cla_query_at(call, &call->q, t->job->b, t->head[i], t->query[i]);
    for (int32_t v = 0; v < QV; v++) {
        vf *to = t->q + v;
        switch (t->f->p->dtype_q) {
        case CLATTN_DTYPE_F16: load_q_rows(t, to, row + v * W, factor, CLATTN_DTYPE_F16); break;
        case CLATTN_DTYPE_BF16: load_q_rows(t, to, row + v * W, factor, CLATTN_DTYPE_BF16); break;
        default: load_q_rows(t, to, row + v * W, factor, CLATTN_DTYPE_F32); break;
        }
    }
}

static void tile_load_windows(struct tile *t)
{
    const struct cla_call *call = t->f->call;
    int32_t first, last;
    cla_host_window(call, t->query[0], &first, &t->all_hi);
    cla_host_window(call, t->query[TQ - 1], &t->all_lo, &last);
    t->key0 = first > t->job->key0 ? first : t->job->key0;
    t->key1 = last < t->job->key1 ? last + 1 : t->job->key1;
    if (t->job->key0 >= t->all_lo && t->job->key1 - 1 <= t->all_hi)
        return;
    for (int32_t lane = 0; lane < TQ; lane++) {
        int32_t lo, hi;
        cla_host_window(call, t->query[lane], &lo, &hi);
        t->lo[lane / W][lane % W] = lo;
        t->hi[lane / W][lane % W] = hi;
    }
}

static void tile_load_slopes(struct tile *t)
{
    const float *alibi = t->f->mem->alibi + t->job->b * t->f->call->alibi_stride;
    for (int32_t lane = 0; lane < TQ; lane++)
        t->slope[lane / W][lane % W] = alibi[t->head[lane]];
}

// Finds K and V of n keys: where they lie, or in the copy, which is made once for all tiles.
static void tile_find_keys(struct tile *t, int32_t key, int32_t n, bool *staged)
{
    if (!t->k_staged) {
        t->k = (const float *)t->f->mem->k + keys_at(&t->k_keys, t->k_keys.t, key);
        t->v = (const float *)t->f->mem->v + keys_at(&t->v_keys, t->v_keys.t, key);
        return;
    }
    if (*staged)
        return;
    *staged = true;
    stage_keys(&t->k_keys, key, n, t->k_staged);
    if (t->v_staged != t->k_staged)
        stage_keys(&t->v_keys, key, n, t->v_staged);
}

// How many of the n keys from `key` on come before one that no row of the first `vectors` vectors
// sees, nor any key after it.
static int32_t tile_keys_of(const struct tile *t, int32_t key, int32_t n, int vectors)
{
    if (key + (n - 1) <= t->all_hi)
        return n;
    const int64_t end = (int64_t)t->hi[vectors - 1][W - 1] + 1 - key;
    return (int32_t)(end < 0 ? 0 : end > n ? n : end);
}

static void tile_scores(const struct tile *t, int32_t key, int32_t n)
{
    // While a block of keys is computed, the next one of K is fetched, and the rows of V that these
    // keys will need.
    struct ahead ahead = {.k_stride = 4 * t->k_stride, .v_stride = 4 * t->v_stride};
    const bool narrow = t->vectors < QV;
    // Only the last vectors of rows see the last keys under a causal mask.
    const int32_t all = narrow ? 0 : QV > 2 ? tile_keys_of(t, key, n, QV - 2) : n;
    const int32_t two = narrow ? 0 : QV > 2 ? tile_keys_of(t, key, n, QV - 1) : n;
    for (int32_t j = 0; j < n;) {
        const float *k = t->k + j * t->k_stride;
        vf *s = t->s + j * QV;
        const int vectors = narrow ? t->vectors : j < all ? QV : j < two ? 2 : 1;
        int32_t step = vectors == QV ? RK : NARROW / vectors;
        ahead.k = (uintptr_t)k + (uintptr_t)(step * ahead.k_stride);
        ahead.v = (uintptr_t)(t->v + j * t->v_stride);
        const int first = narrow ? 0 : QV - vectors;
        if (vectors < QV && j + step <= n) {
            score_narrow(k, t->k_stride, t->q + first, t->dim_qk, s + first, &ahead, vectors);
            // Windows hide these keys from the other rows, whose weights are computed before that.
            for (int32_t i = 0; i < step; i++)
                for (int v = 0; v < first; v++)
                    s[i * QV + v] = vec_splat(0.0f);
        } else if (j + RK <= n) {
            step = RK;
            score_block(k, t->k_stride, t->q, t->dim_qk, s, &ahead);
        } else {
            step = n - j;
            score_rest(k, t->k_stride, t->q, t->dim_qk, s, step);
        }
        j += step;
    }
    if (t->post_scale != 1.0f) {
        const vf factor = vec_splat(t->post_scale);
        for (int32_t j = 0; j < n * QV; j++)
            t->s[j] *= factor;
    }
}

// Hides keys j0..j1-1 of the tile where they are out of the window of a row.
static void tile_apply_window(struct tile *t, int32_t key, int32_t j0, int32_t j1)
{
    const vf hidden = vec_splat(-INFINITY);
    for (int32_t j = j0; j < j1; j++) {
        const vi at = (key + j) - (vi){0};
        VEC_UNROLL
        for (int v = 0; v < QV; v++) {
            const vi visible = (vi)(at >= t->lo[v]) & (vi)(at <= t->hi[v]);
            t->s[j * QV + v] = vec_select(visible, t->s[j * QV + v], hidden);
        }
    }
}

// Whether rows of the tile have one row of a mask or bias, as with padding of keys.
static bool tile_shares(const struct tile *t, const int64_t stride[4])
{
    return stride[2] == 0 && (stride[1] == 0 || t->f->p->group == 1);
}

typedef int8_t mask_bytes __attribute__((vector_size(16)));
typedef int64_t mask_words __attribute__((vector_size(16)));

VEC_INLINE mask_bytes mask_load(const void *p)
{
    int64_t x;
    memcpy(&x, p, sizeof x);
    return (mask_bytes)(mask_words){x, 0};
}

// The first, or the last, 8 bytes of a and of b in turn.
#if defined(__clang__) || __GNUC__ >= 12
#define MASK_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MASK_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask_bytes){__VA_ARGS__})
#endif
#define MASK_FIRST(a, b)                                                                           \
    MASK_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define MASK_LAST(a, b)                                                                            \
    MASK_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

// Transposes the bytes of 8 rows by 8 keys that are next to each other. any and all collect bits.
VEC_INLINE void mask_block(const uint8_t *const row[8], int32_t j, int8_t *to, mask_bytes *any,
                           mask_bytes *all)
{
    mask_bytes a[4], b[4], c[4];
    VEC_UNROLL
    for (int i = 0; i < 4; i++)
        a[i] = MASK_FIRST(mask_load(row[i] + j), mask_load(row[i + 4] + j));
    VEC_UNROLL
    for (int i = 0; i < 2; i++) {
        b[i] = MASK_FIRST(a[i], a[i + 2]); // keys 0 to 3
        b[i + 2] = MASK_LAST(a[i], a[i + 2]);
    }
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        const mask_bytes x = b[i / 2 * 2], y = b[i / 2 * 2 + 1];
        c[i] = (mask_bytes)((i % 2 ? MASK_LAST(x, y) : MASK_FIRST(x, y)) != 0);
        *any |= c[i];
        *all &= c[i];
        const int64_t first = ((mask_words)c[i])[0], second = ((mask_words)c[i])[1];
        memcpy(to + 2 * i * TQ, &first, sizeof first);
        memcpy(to + (2 * i + 1) * TQ, &second, sizeof second);
    }
}

// Reads the mask of n keys that are next to each other for 8 rows, where n is 8 at least, and
// fetches as many behind them. The last block overlaps the one before it.
VEC_NOINLINE void mask_rows(const uint8_t *const row[8], int32_t n, int8_t *to, mask_bytes *any,
                            mask_bytes *all)
{
    for (int i = 0; i < 8; i++)
        for (int32_t j = 0; j < n; j += 64)
            __builtin_prefetch((const void *)((uintptr_t)row[i] + (uintptr_t)(n + j)));
    mask_bytes any_here = *any, all_here = *all;
    for (int32_t at = 0; at < n; at += 8) {
        const int32_t j = at + 8 <= n ? at : n - 8;
        mask_block(row, j, to + j * TQ, &any_here, &all_here);
    }
    *any = any_here;
    *all = all_here;
}

// The same, of keys anywhere and some lanes.
static void mask_lanes(const struct tile *t, const uint8_t *base, int32_t lanes, int32_t n,
                       mask_bytes *any, mask_bytes *all)
{
    const int64_t *stride = t->f->call->mask.stride;
    for (int32_t lane = 0; lane < lanes; lane++) {
        const uint8_t *row = base + t->head[lane] * stride[1] + t->query[lane] * stride[2];
        for (int32_t j = 0; j < n; j++) {
            const int8_t bits = row[j * stride[3]] ? -1 : 0;
            t->vis[j * TQ + lane] = bits;
            (*any)[0] |= bits;
            (*all)[0] &= bits;
        }
    }
}

_Static_assert(TQ % 8 == 0, "mask_rows() takes 8 rows at once");

// Reads the boolean mask of n keys. Returns whether a row sees any of them.
static bool tile_load_mask(struct tile *t, int32_t key, int32_t n)
{
    const int64_t *stride = t->f->call->mask.stride;
    const uint8_t *base = t->f->mem->mask + t->job->b * stride[0] + key * stride[3];
    mask_bytes any = {0}, all = ~any;
    if (tile_shares(t, stride)) {
        mask_lanes(t, base, 1, n, &any, &all);
        for (int32_t j = 0; j < n; j++)
            memset(t->vis + j * TQ, t->vis[j * TQ], TQ);
    } else if (stride[3] == 1 && n >= 8) {
        for (int32_t lane = 0; lane < TQ; lane += 8) {
            const uint8_t *row[8];
            for (int i = 0; i < 8; i++)
                row[i] = base + t->head[lane + i] * stride[1] + t->query[lane + i] * stride[2];
            mask_rows(row, n, t->vis + lane, &any, &all);
        }
    } else {
        mask_lanes(t, base, TQ, n, &any, &all);
    }
    int8_t any_bits = 0, all_bits = -1;
    for (int i = 0; i < 16; i++) {
        any_bits |= any[i];
        all_bits &= all[i];
    }
    t->mask_full = all_bits != 0;
    return any_bits != 0;
}

static void tile_apply_mask(struct tile *t, int32_t n)
{
    const vf hidden = vec_splat(-INFINITY);
    for (int32_t j = 0; j < n * QV; j++)
        t->s[j] = vec_select(vec_load_bits(t->vis + j * W), t->s[j], hidden);
}

// The bias of n keys for the rows of one vector, by blocks of W keys that are next to each other.
// The last block overlaps the one before it. As many keys again are fetched: the rows are too many
// streams for a processor to foresee.
VEC_INLINE void bias_blocks(struct tile *t, int32_t v, const int64_t row[W], int32_t n,
                            struct seen *seen, const int32_t dtype)
{
    const void *bias = t->f->mem->bias;
    const int64_t bytes = (int64_t)cla_dtype_bytes(dtype);
    struct seen here = *seen;
    for (int32_t at = 0; at < n; at += W) {
        const int32_t j = at + W <= n ? at : n - W;
        const uintptr_t next = (uintptr_t)bias + (uintptr_t)((at + n) * bytes);
        vf block[W];
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++) {
            block[i] = vec_load_as(bias, row[i] + j, dtype);
            if (at * bytes % 64 == 0)
                __builtin_prefetch((const void *)(next + (uintptr_t)(row[i] * bytes)));
        }
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++)
            vec_note(&here, block[i]);
        vec_transpose(block);
        VEC_UNROLL
        for (int32_t i = 0; i < W; i++)
            t->bias[(j + i) * QV + v] = block[i];
    }
    *seen = here;
}

VEC_NOINLINE void bias_rows(struct tile *t, int32_t v, const int64_t row[W], int32_t n,
                            struct seen *seen)
{
    switch (t->f->p->dtype_bias) {
    case CLATTN_DTYPE_F16: bias_blocks(t, v, row, n, seen, CLATTN_DTYPE_F16); break;
    case CLATTN_DTYPE_BF16: bias_blocks(t, v, row, n, seen, CLATTN_DTYPE_BF16); break;
    default: bias_blocks(t, v, row, n, seen, CLATTN_DTYPE_F32); break;
    }
}

// Reads the bias of n keys. Returns whether a row sees any of them.
static bool tile_load_bias(struct tile *t, int32_t key, int32_t n)
{
    const int64_t *stride = t->f->call->bias.stride;
    const void *bias = t->f->mem->bias;
    const int32_t dtype = t->f->p->dtype_bias;
    const int64_t base = t->job->b * stride[0] + key * stride[3];
    struct seen seen = vec_nothing_seen();
    const bool shared = tile_shares(t, stride);
    for (int32_t j = 0; shared && j < n; j++) {
        const int64_t row = base + t->head[0] * stride[1];
        const vf x = vec_splat(load_as(bias, row + j * stride[3], dtype));
        vec_note(&seen, x);
        for (int v = 0; v < QV; v++)
            t->bias[j * QV + v] = x;
    }
    for (int32_t v = 0; !shared && v < QV; v++) {
        int64_t row[W];
        for (int32_t i = 0; i < W; i++)
            row[i] = base + t->head[v * W + i] * stride[1] + t->query[v * W + i] * stride[2];
        if (stride[3] == 1 && n >= W) {
            bias_rows(t, v, row, n, &seen);
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            vf x = vec_splat(0.0f);
            for (int32_t i = 0; i < W; i++)
                x[i] = load_as(bias, row[i] + j * stride[3], dtype);
            vec_note(&seen, x);
            t->bias[j * QV + v] = x;
        }
    }
    return vec_shows(&seen, &t->bias_hides);
}

static void tile_apply_cap(struct tile *t, int32_t n)
{
    const float cap = t->f->call->softcap;
    const float inverse = cap_inverse(cap);
    // The last chunk may reach behind the last key, where there is room and nothing yet.
    for (int32_t j = 0; j < n * QV; j += CHUNK)
        vec_cap(t->s + j, cap, inverse, CHUNK);
}

static void tile_apply_alibi(struct tile *t, int32_t key, int32_t n)
{
    vi at[QV];
    for (int32_t lane = 0; lane < TQ; lane++)
        at[lane / W][lane % W] = t->query[lane] + t->f->call->off - key;
    for (int32_t j = 0; j < n; j++)
        for (int v = 0; v < QV; v++)
            t->s[j * QV + v] = vec_alibi(t->s[j * QV + v], t->slope[v], at[v] - j);
}

// From products to scores: what the call asks for, in the order of the contract. What hides comes
// last.
static void tile_finish_scores(struct tile *t, int32_t key, int32_t n)
{
    const struct cla_problem *p = t->f->p;
    if (t->f->call->softcap > 0.0f)
        tile_apply_cap(t, n);
    if (p->alibi)
        tile_apply_alibi(t, key, n);
    if (t->bias && t->bias_hides)
        for (int32_t j = 0; j < n * QV; j++)
            t->s[j] = vec_bias(t->s[j], t->bias[j]);
    else if (t->bias)
        for (int32_t j = 0; j < n * QV; j++)
            t->s[j] += t->bias[j];
    // Rows may share no key at all.
    const int64_t before = (int64_t)t->all_lo - key, behind = (int64_t)t->all_hi + 1 - key;
    const int32_t j0 = (int32_t)(before < 0 ? 0 : before > n ? n : before);
    const int32_t j1 = (int32_t)(behind < j0 ? j0 : behind > n ? n : behind);
    tile_apply_window(t, key, 0, j0);
    tile_apply_window(t, key, j1, n);
    if (t->vis && !t->mask_full)
        tile_apply_mask(t, n);
}
