// SPDX-License-Identifier: Apache-2.0
// The inner loops of row softmax, over a block of floats that stays in the first-level cache.

#define ROW_CHUNK VEC_EXP_MOST // vectors at a time

VEC_INLINE float row_max_lane(vf x)
{
    float m = x[0];
    for (int i = 1; i < W; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

VEC_INLINE float row_add_lanes(vf x)
{
    float sum = 0.0f;
    for (int i = 0; i < W; i++)
        sum += x[i];
    return sum;
}

// The last n < W floats, filled up with -infinity.
VEC_INLINE vf row_rest(const float *x, int64_t n)
{
    float all[W];
    for (int64_t i = 0; i < W; i++)
        all[i] = i < n ? x[i] : -INFINITY;
    return vec_load(all);
}

// Largest of m and factor * x; a NaN is passed over.
static float row_max(const float *x, int64_t n, float factor, float m)
{
    vf most[ROW_CHUNK];
    const vf f = vec_splat(factor);
    VEC_UNROLL
    for (int i = 0; i < ROW_CHUNK; i++)
        most[i] = vec_splat(m);
    int64_t c = 0;
    for (; c + ROW_CHUNK * W <= n; c += ROW_CHUNK * W) {
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++) {
            const vf v = vec_load(x + c + i * W) * f;
            most[i] = vec_select((vi)(v > most[i]), v, most[i]);
        }
    }
    for (; c < n; c++) {
        const float v = x[c] * factor;
        m = v > m ? v : m;
    }
    for (int i = 0; i < ROW_CHUNK; i++) {
        const float v = row_max_lane(most[i]);
        m = v > m ? v : m;
    }
    return m;
}

// Sum of e^(factor * x - shift), shift >= factor * x.
static float row_sum(const float *x, int64_t n, float factor, float shift)
{
    vf sum[ROW_CHUNK];
    const vf f = vec_splat(factor), s = vec_splat(shift);
    VEC_UNROLL
    for (int i = 0; i < ROW_CHUNK; i++)
        sum[i] = vec_splat(0.0f);
    int64_t c = 0;
    for (; c + ROW_CHUNK * W <= n; c += ROW_CHUNK * W) {
        vf y[ROW_CHUNK];
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++)
            y[i] = vec_load(x + c + i * W) * f - s;
        vec_exp(y, ROW_CHUNK);
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++)
            sum[i] += y[i];
    }
    for (; c + W <= n; c += W) {
        vf y = vec_load(x + c) * f - s;
        vec_exp(&y, 1);
        sum[0] += y;
    }
    float rest = 0.0f;
    for (; c < n; c++) { // at most W - 1
        vf y = vec_splat(x[c] * factor - shift);
        vec_exp(&y, 1);
        rest += y[0];
    }
    for (int i = 0; i < ROW_CHUNK; i++)
        rest += row_add_lanes(sum[i]);
    return rest;
}

// row_write() for whole chunks; returns where it stopped.
VEC_INLINE int64_t row_write_chunks(const float *x, float *y, int64_t c, int64_t n,
                                    const vf constants[3], bool stream)
{
    const vf f = constants[0], s = constants[1], inv = constants[2];
    for (; c + ROW_CHUNK * W <= n; c += ROW_CHUNK * W) {
        vf v[ROW_CHUNK];
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++)
            v[i] = vec_load(x + c + i * W) * f - s;
        vec_exp(v, ROW_CHUNK);
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++) {
            if (stream)
                vec_stream(y + c + i * W, v[i] * inv);
            else
                vec_store(y + c + i * W, v[i] * inv);
        }
    }
    return c;
}

// Entries [c, end), fewer than W.
VEC_INLINE void row_write_few(const float *x, float *y, int64_t c, int64_t end,
                              const vf constants[3])
{
    vf v = row_rest(x + c, end - c) * constants[0] - constants[1];
    vec_exp(&v, 1);
    v *= constants[2];
    for (int64_t i = 0; c + i < end; i++)
        y[c + i] = v[i];
}

// y = inverse * e^(factor * x - shift). y may be x unless `stream`: that goes past the caches.
static void row_write(const float *x, float *y, int64_t n, float factor, float shift, float inverse,
                      bool stream)
{
    const vf constants[3] = {vec_splat(factor), vec_splat(shift), vec_splat(inverse)};
    int64_t c = 0;
    if (stream) {
        c = (int64_t)(-(uintptr_t)y / sizeof *y % W); // up to a whole vector's place
        c = c < n ? c : n;
        row_write_few(x, y, 0, c, constants);
        c = row_write_chunks(x, y, c, n, constants, true);
        vec_stream_end();
    } else {
        c = row_write_chunks(x, y, c, n, constants, false);
    }
    for (; c + W <= n; c += W) {
        vf v = vec_load(x + c) * constants[0] - constants[1];
        vec_exp(&v, 1);
        vec_store(y + c, v * constants[2]);
    }
    row_write_few(x, y, c, n, constants);
}

// e^x of any x, for one vector: vec_exp() is for x <= 0, so e^x = (1 / e^(-x/2))^2 above, which
// overflows where e^x does.
VEC_INLINE vf row_exp_any(vf x)
{
    const vi positive = (vi)(x > vec_splat(0.0f));
    vf y = vec_select(positive, x * vec_splat(-0.5f), x);
    vec_exp(&y, 1);
    const vf root = vec_splat(1.0f) / y;
    return vec_select(positive, root * root, y);
}

// y = e^(factor * x), which overflows. y may be x.
static void row_exp(const float *x, float *y, int64_t n, float factor)
{
    const vf f = vec_splat(factor);
    int64_t c = 0;
    for (; c + W <= n; c += W)
        vec_store(y + c, row_exp_any(vec_load(x + c) * f));
    if (c < n) {
        const vf v = row_exp_any(row_rest(x + c, n - c) * f);
        for (int64_t i = 0; c + i < n; i++)
            y[c + i] = v[i];
    }
}

// Sum of x.
static float row_total(const float *x, int64_t n)
{
    vf sum[ROW_CHUNK];
    VEC_UNROLL
    for (int i = 0; i < ROW_CHUNK; i++)
        sum[i] = vec_splat(0.0f);
    int64_t c = 0;
    for (; c + ROW_CHUNK * W <= n; c += ROW_CHUNK * W) {
        VEC_UNROLL
        for (int i = 0; i < ROW_CHUNK; i++)
            sum[i] += vec_load(x + c + i * W);
    }
    float rest = 0.0f;
    for (; c < n; c++)
        rest += x[c];
    for (int i = 0; i < ROW_CHUNK; i++)
        rest += row_add_lanes(sum[i]);
    return rest;
}

// y = x / d. y may be x.
static void row_divide(const float *x, float *y, int64_t n, float d)
{
    const vf divisor = vec_splat(d);
    int64_t c = 0;
    for (; c + W <= n; c += W)
        vec_store(y + c, vec_load(x + c) / divisor);
    for (; c < n; c++)
        y[c] = x[c] / d;
}
