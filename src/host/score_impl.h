// SPDX-License-Identifier: Apache-2.0
// What tile_impl.h and few_impl.h do to scores, and the sink at the end of a row. The formulas are
// those of cl/score.clh and cl/online.clh.

VEC_INLINE vf vec_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

// 1 / softcap, finite also where softcap is tiny: 0 * infinity would be NaN.
static float cap_inverse(float softcap)
{
    const float inverse = 1.0f / softcap;
    return inverse > 3.40282347e38f ? 3.40282347e38f : inverse;
}

// x[i] = softcap * tanh(x[i] * inverse) of n vectors (a constant); tanh by e^-2|y|, or by its
// series where that would lose bits. NaN stays NaN; +-infinity gives +-softcap.
VEC_INLINE void vec_cap(vf *x, float softcap, float inverse, const int n)
{
    // tanh(y) / y in z = y^2 on [0, 0.36], relative error 2.5e-9 before rounding.
    static const float poly[] = {2.07536255e-2f, -5.37687036e-2f, 1.33316889e-1f, -3.33332833e-1f,
                                 1.0f};
    const vf one = vec_splat(1.0f), cap = vec_splat(softcap);
    vf y[VEC_EXP_MOST], e[VEC_EXP_MOST];
    VEC_UNROLL
    for (int i = 0; i < n; i++) {
        y[i] = x[i] * vec_splat(inverse);
        e[i] = vec_splat(-2.0f) * vec_abs(y[i]);
    }
    vec_exp(e, n);
    VEC_UNROLL
    for (int i = 0; i < n; i++) {
        const vf z = y[i] * y[i];
        vf p = vec_fma(z, vec_splat(-5.85216493e-3f), vec_splat(poly[0]));
        VEC_UNROLL
        for (int c = 1; c < 5; c++)
            p = vec_fma(p, z, vec_splat(poly[c]));
        const vi sign = (vi)y[i] & (vi)vec_splat(-0.0f);
        const vf large = (vf)((vi)((one - e[i]) / (one + e[i])) | sign);
        const vi small = (vi)(vec_abs(y[i]) < vec_splat(0.6f));
        // x again in place of cap * y: y of a large cap may be below the range.
        x[i] = vec_select(small, x[i] * p, cap * large);
    }
}

// ALiBi: slope * |distance| is taken away.
VEC_INLINE vf vec_alibi(vf x, vf slope, vi distance)
{
    const vi sign = distance >> 31;
    const vf size = __builtin_convertvector((distance ^ sign) - sign, vf);
    return vec_fma(-slope, size, x);
}

// The score with its bias, which hides a key where it is -infinity: tested before it is added, so
// that a NaN in K behind it is dropped.
VEC_INLINE vf vec_bias(vf x, vf bias)
{
    return vec_select((vi)(bias == vec_splat(-INFINITY)), bias, x + bias);
}

// Whether some, and whether all, of the numbers noted so far are something else than -infinity.
struct seen {
    vi any, all;
};

VEC_INLINE struct seen vec_nothing_seen(void)
{
    return (struct seen){.all = ~(vi){0}};
}

VEC_INLINE void vec_note(struct seen *seen, vf x)
{
    const vi shown = (vi)(x != vec_splat(-INFINITY));
    seen->any |= shown;
    seen->all &= shown;
}

// *hides is whether some number is -infinity. Returns whether some number is not.
VEC_INLINE bool vec_shows(const struct seen *seen, bool *hides)
{
    int32_t any = 0, all = -1;
    for (int i = 0; i < W; i++) {
        any |= seen->any[i];
        all &= seen->all[i];
    }
    *hides = all == 0;
    return any != 0;
}

// Takes sinks in, scores without a value: m and l change, the result is what O must be multiplied
// with beside the division by the new l. -infinity is no sink and changes nothing.
VEC_INLINE vf vec_add_sink(vf *m, vf *l, vf sink)
{
    const vf lowest = vec_splat(-INFINITY);
    const vi none = (vi)(sink == lowest);
    const vf old = vec_select((vi)(*l == vec_splat(0.0f)), lowest, *m); // empty: no maximum
    const vf next = vec_select((vi)(sink > old), sink, old);
    const vf shift = (vf)(~(vi)(next == lowest) & (vi)next);
    vf w[2] = {old - shift, sink - shift};
    vec_exp(w, 2);
    *l = vec_select(none, *l, vec_fma(*l, w[0], w[1]));
    *m = vec_select(none, *m, next);
    return vec_select(none, vec_splat(1.0f), w[0]);
}
