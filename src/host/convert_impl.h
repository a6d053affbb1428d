// SPDX-License-Identifier: Apache-2.0
// Types of storage: vectors of them as floats and back, and tiles of keys as rows of floats.
//
// K and V of another type than float, or in pages, are staged: the tile is converted once, and what
// works on floats works on the copy. Arithmetic is that of util/half.h and sequence.c: to 16 bits,
// round to nearest, ties to even.
#include "sequence.h"
#include "util/half.h"

typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef int8_t vb __attribute__((vector_size(W)));

// W elements of 16 bits in the low halves of integers. The instruction where the compiler does not
// find it.
VEC_INLINE vi vec_load_u16(const uint16_t *p)
{
#if W == 16 && defined(__AVX512F__)
    return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif W == 8 && defined(__AVX2__)
    return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
    vh x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vi);
#endif
}

VEC_INLINE vf vec_load_bf16(const uint16_t *p)
{
    return (vf)(vec_load_u16(p) << 16);
}

VEC_INLINE vf vec_load_f16(const uint16_t *p)
{
#if W == 16 && defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif W == 8 && defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
    const vi h = vec_load_u16(p);
    const vi sign = (h & 0x8000) << 16;
    const vi size = h & 0x7fff;
    // The exponent field is moved to its place and gets the difference of the biases by a product,
    // which is exact for denormals too; infinity and NaN need the largest field.
    const vf x = (vf)(size << 13) * vec_splat(0x1p112f);
    const vi special = (vi)(size >= 0x7c00) & 0x7f800000;
    return (vf)((vi)x | special | sign);
#endif
}

VEC_INLINE vf vec_load_i8(const int8_t *p)
{
#if W == 16 && defined(__AVX512F__)
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
#elif W == 8 && defined(__AVX2__)
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
#else
    vb x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vf);
#endif
}

// Bytes of 0 or -1 as masks.
VEC_INLINE vi vec_load_bits(const int8_t *p)
{
#if W == 16 && defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif W == 8 && defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    vb x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vi);
#endif
}

VEC_INLINE vf vec_load_as(const void *p, int64_t at, int32_t dtype)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: return vec_load_f16((const uint16_t *)p + at);
    case CLATTN_DTYPE_BF16: return vec_load_bf16((const uint16_t *)p + at);
    case CLATTN_DTYPE_I8: return vec_load_i8((const int8_t *)p + at);
    default: return vec_load((const float *)p + at);
    }
}

VEC_INLINE float load_as(const void *p, int64_t at, int32_t dtype)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: return cla_f16_to_f32(((const uint16_t *)p)[at]);
    case CLATTN_DTYPE_BF16: return cla_bf16_to_f32(((const uint16_t *)p)[at]);
    case CLATTN_DTYPE_I8: return (float)((const int8_t *)p)[at];
    default: return ((const float *)p)[at];
    }
}

VEC_INLINE void store_as(void *p, int64_t at, int32_t dtype, float x)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: ((uint16_t *)p)[at] = cla_f32_to_f16(x); break;
    case CLATTN_DTYPE_BF16: ((uint16_t *)p)[at] = cla_f32_to_bf16(x); break;
    default: ((float *)p)[at] = x; break;
    }
}

VEC_INLINE void vec_store_f16(uint16_t *p, vf x)
{
#if W == 16 && defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif W == 8 && defined(__F16C__)
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < W; i++)
        p[i] = cla_f32_to_f16(x[i]);
#endif
}

VEC_INLINE void vec_store_bf16(uint16_t *p, vf x)
{
    const vu u = (vu)x; // unsigned: rounding a NaN up may pass the largest int
    const vu nan = (vu)(x != x);
    // The lowest bit that stays makes ties go to even. Masked, since then compilers pack by one
    // instruction.
    const vu rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    const vu bits = (nan & (u >> 16 | 0x40)) | (~nan & rounded);
    const vh h = __builtin_convertvector(bits & 0xffff, vh);
    memcpy(p, &h, sizeof h);
}

VEC_INLINE void vec_store_as(void *p, int64_t at, int32_t dtype, vf x)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: vec_store_f16((uint16_t *)p + at, x); break;
    case CLATTN_DTYPE_BF16: vec_store_bf16((uint16_t *)p + at, x); break;
    default: vec_store((float *)p + at, x); break;
    }
}

// n neighbouring elements of a type (a constant), times `scale` where it is int8.
VEC_INLINE void convert_row(const void *from, int64_t at, int32_t n, float scale, float *to,
                            const int32_t dtype)
{
    const bool scaled = dtype == CLATTN_DTYPE_I8;
    const vf factor = vec_splat(scale);
    int32_t d = 0;
    VEC_UNROLL_BY_4
    for (; d + W <= n; d += W) {
        const vf x = vec_load_as(from, at + d, dtype);
        vec_store(to + d, scaled ? x * factor : x);
    }
    if (d < n && n >= W) {
        // The last vector overlaps the one before it.
        const vf x = vec_load_as(from, at + n - W, dtype);
        vec_store(to + n - W, scaled ? x * factor : x);
        return;
    }
    for (; d < n; d++) {
        const float x = load_as(from, at + d, dtype);
        to[d] = scaled ? x * scale : x;
    }
}

// K or V of one head, as the tiles of a job find it.
struct keys {
    const struct cla_host_fwd *f;
    const struct cla_host_job *job;
    const struct cla_tensor *t, *scale_t;
    const void *mem;
    const float *scale; // of int8
    int32_t dim;
};

// Some rows that lie one stride apart. `next` are elements from a row to one that is wanted soon.
struct key_rows {
    int64_t at, next, scale_at;
    int32_t n;
};

VEC_INLINE void convert_rows(const struct keys *k, const struct key_rows *r, float *to,
                             const int32_t dtype)
{
    const int64_t stride = k->t->stride[2];
    const int64_t bytes = (int64_t)cla_dtype_bytes(dtype);
    const int64_t row_bytes = k->dim * bytes;
    for (int32_t j = 0; j < r->n; j++) {
        const int64_t at = r->at + j * stride;
        const uintptr_t next = (uintptr_t)k->mem + (uintptr_t)((at + r->next) * bytes);
        for (int64_t line = 0; line < row_bytes; line += 64)
            __builtin_prefetch((const void *)(next + (uintptr_t)line));
        float scale = 1.0f;
        if (dtype == CLATTN_DTYPE_I8)
            scale = k->scale[r->scale_at + j * k->scale_t->stride[2]];
        convert_row(k->mem, at, k->dim, scale, to + (int64_t)j * k->dim, dtype);
    }
}

VEC_NOINLINE void convert_rows_f32(const struct keys *k, const struct key_rows *r, float *to)
{
    convert_rows(k, r, to, CLATTN_DTYPE_F32);
}

VEC_NOINLINE void convert_rows_f16(const struct keys *k, const struct key_rows *r, float *to)
{
    convert_rows(k, r, to, CLATTN_DTYPE_F16);
}

VEC_NOINLINE void convert_rows_bf16(const struct keys *k, const struct key_rows *r, float *to)
{
    convert_rows(k, r, to, CLATTN_DTYPE_BF16);
}

VEC_NOINLINE void convert_rows_i8(const struct keys *k, const struct key_rows *r, float *to)
{
    convert_rows(k, r, to, CLATTN_DTYPE_I8);
}

// Whether tiles of keys are copied, rather than read where they lie.
static bool keys_are_staged(const struct cla_problem *p)
{
    return p->paged || p->dtype_kv != CLATTN_DTYPE_F32;
}

static struct keys keys_of_k(const struct cla_host_fwd *f, const struct cla_host_job *job)
{
    return (struct keys){f, job, &f->call->k, &f->call->k_scale, f->mem->k, f->mem->k_scale,
                         f->p->dim_qk};
}

static struct keys keys_of_v(const struct cla_host_fwd *f, const struct cla_host_job *job)
{
    return (struct keys){f, job, &f->call->v, &f->call->v_scale, f->mem->v, f->mem->v_scale,
                         f->p->dim_v};
}

static int64_t keys_at(const struct keys *k, const struct cla_tensor *t, int32_t key)
{
    return cla_key_at(k->f->p, k->f->call, k->f->mem, t, k->job->b, k->job->g, key);
}

// Rows of floats of n keys from `key` on, one after the other. A page that is not in the pool gives
// zeros. Rows of the keys n further are read ahead.
static void stage_keys(const struct keys *k, int32_t key, int32_t n, float *to)
{
    const struct cla_problem *p = k->f->p;
    for (int32_t j = 0; j < n;) {
        struct key_rows r = {.at = keys_at(k, k->t, key + j), .n = n - j};
        if (p->paged) {
            const int32_t left = p->page_size - (key + j) % p->page_size;
            r.n = left < r.n ? left : r.n;
        }
        float *rows = to + (int64_t)j * k->dim;
        j += r.n;
        if (r.at < 0) {
            memset(rows, 0, (size_t)r.n * (size_t)k->dim * sizeof *rows);
            continue;
        }
        if (k->job->key1 - key >= 2 * n) {
            const int64_t next = keys_at(k, k->t, key + j - r.n + n);
            r.next = next < 0 ? 0 : next - r.at;
        }
        if (p->dtype_kv == CLATTN_DTYPE_I8)
            r.scale_at = keys_at(k, k->scale_t, key + j - r.n);
        switch (p->dtype_kv) {
        case CLATTN_DTYPE_F16: convert_rows_f16(k, &r, rows); break;
        case CLATTN_DTYPE_BF16: convert_rows_bf16(k, &r, rows); break;
        case CLATTN_DTYPE_I8: convert_rows_i8(k, &r, rows); break;
        default: convert_rows_f32(k, &r, rows); break;
        }
    }
}

// Whether V is the front of K's rows, so that staged keys hold it already. int8 has two scales.
static bool v_is_in_k(const struct cla_host_fwd *f)
{
    const int64_t *k = f->call->k.stride, *v = f->call->v.stride;
    return f->mem->k == f->mem->v && f->p->dim_v <= f->p->dim_qk &&
           f->p->dtype_kv != CLATTN_DTYPE_I8 && k[0] == v[0] && k[1] == v[1] && k[2] == v[2];
}
