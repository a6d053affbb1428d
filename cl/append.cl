// SPDX-License-Identifier: Apache-2.0
// Writes new keys and values behind those that a cache holds.
//
//   cache[b, h, lens[b] + i] = new[b, h, i] in the cache's type,     i < new_lens[b]
//
// Keys are turned on the way (rotary.clh) where rotary.dim is not 0. int8: s = max |x| / 127 of the
// row, x8 = x / s to the nearest, ties to even; a row that is not finite has s = NaN and zeros.
//
// A work-group owns a row (K or V, batch, head, token); its items take quads of channels in
// turn.
//
//   group id: (b * heads + h) * len + i, behind all rows of K those of V
//   local memory: ITEMS floats, with int8 and more than one item
//
// Literals: DTYPE_Q (of what is new), DTYPE_CACHE, ITEMS (a power of 2).
// Slots: args, k_new, v_new, lens, new_lens, page table, offsets, cos, sin, k_cache, v_cache,
// k_scale, v_scale, faults.
//
// Lengths and pages that are not in the tensors are clamped, or the row is not written; a bit of
// `faults` says so.

#ifndef ITEMS
#error "append.cl: ITEMS"
#endif
#ifndef DTYPE_CACHE
#error "append.cl: DTYPE_CACHE"
#endif
#define DTYPE_KV CLA_DTYPE_F32
#define ROW_LANES 1
#define MULADD mad

#include "kv_abi.h"
#if DTYPE_CACHE == CLA_DTYPE_I8
#define DTYPE_O CLA_DTYPE_F32
#else
#define DTYPE_O DTYPE_CACHE
#endif
#include "dtype.clh"
#include "quads.clh"
#include "rotary.clh"

#if DTYPE_CACHE == CLA_DTYPE_I8
typedef char cache_elem;

static inline void store_chars(__global char *p, long at, char4 x, int n)
{
    if (n >= 4) {
        vstore4(x, 0, p + at);
        return;
    }
    p[at] = x.x;
    if (n > 1)
        p[at + 1] = x.y;
    if (n > 2)
        p[at + 2] = x.z;
}
#else
typedef o_elem cache_elem;
#endif

static inline long row_at(const struct cla_fwd_tensor *t, long b, long h, long s)
{
    return t->offset + b * t->stride_b + h * t->stride_h + s * t->stride_s;
}

// In ints: Mesa 22.3's llvmpipe takes a negative int that has become a long for a positive one.
static inline int clamp_length(int x, int most, int *fault)
{
    if (x < 0 || x > most)
        *fault |= CLA_FAULT_LENGTH;
    return clamp(x, 0, most);
}

// What the rows of a work-group come from.
struct source {
    __global const q_elem *x;
    __global const float *cos_row, *sin_row; // of the token's position
    long at;
    int dim, turned; // channels, and those of them that are turned
};

// Channel d, turned where it is to be.
static inline float value_of(const struct cla_rotary_args *r, const struct source *src, int d)
{
    if (d >= src->dim)
        return 0.0f;
    if (d >= src->turned)
        return LOAD_Q(src->x, src->at + d);
    const int t = pair_of(r, d), d0 = first_of_pair(r, t);
    const float x0 = LOAD_Q(src->x, src->at + d0);
    const float x1 = LOAD_Q(src->x, src->at + second_of_pair(r, t));
    const float c = src->cos_row[t], s = src->sin_row[t];
    return d == d0 ? x0 * c - x1 * s : x0 * s + x1 * c;
}

// Four channels from d on, behind the last one zeros.
static inline float4 quad_of(const struct cla_rotary_args *r, const struct source *src, int d)
{
    const int half_dim = src->turned / 2;
    const bool split = (r->flags & CLA_KV_HALF_SPLIT) != 0;
    if (d >= src->turned)
        return load_quad(src->x, src->at + d, src->dim - d);
    if (!split && d + 4 <= src->turned)
        return turn_quad(r, LOAD_QUAD(src->x, src->at + d), d, src->cos_row, src->sin_row);
    if (split && (d + 4 <= half_dim || (d >= half_dim && d + 4 <= src->turned))) {
        const bool second = d >= half_dim;
        const int t = second ? d - half_dim : d;
        const float4 x0 = LOAD_QUAD(src->x, src->at + t);
        const float4 x1 = LOAD_QUAD(src->x, src->at + half_dim + t);
        const float4 c = vload4(0, src->cos_row + t), s = vload4(0, src->sin_row + t);
        return second ? x0 * s + x1 * c : x0 * c - x1 * s;
    }
    return (float4)(value_of(r, src, d), value_of(r, src, d + 1), value_of(r, src, d + 2),
                    value_of(r, src, d + 3));
}

// Page and row of the page that row j of sequence b lies in; in a contiguous cache the sequence and
// j. False where there is none.
static inline bool find_row(const struct cla_append_args *a, __global const int *table, long b,
                            long j, long *page, long *row, int *fault)
{
    *page = b;
    *row = j;
    if (a->page_size == 0) {
        *fault |= j < a->capacity ? 0 : CLA_FAULT_ROOM;
        return j < a->capacity;
    }
    if (j / a->page_size >= a->max_pages) {
        *fault |= CLA_FAULT_ROOM;
        return false;
    }
    const int found = table[a->table + b * a->max_pages + j / a->page_size]; // see clamp_length()
    *page = found;
    *row = j % a->page_size;
    if (found >= 0 && found < a->num_pages)
        return true;
    *fault |= CLA_FAULT_PAGE;
    return false;
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void append(
    const struct cla_append_args args_in, __global const q_elem *k_new,
    __global const q_elem *v_new, __global const int *lens, __global const int *new_lens,
    __global const int *table, __global const int *offsets, __global const float *cos_table,
    __global const float *sin_table, __global cache_elem *k_cache, __global cache_elem *v_cache,
    __global float *k_scale, __global float *v_scale, volatile __global int *faults)
{
    const struct cla_append_args args = args_in; // read whole, outside of branches
    const long rows = (long)args.batch * args.heads * args.len;
    const long group = (long)get_group_id(0);
    const bool is_v = group >= rows;
    const long n = is_v ? group - rows : group;
    const long i = n % args.len, bh = n / args.len;
    const long h = bh % args.heads, b = bh / args.heads;
    const int item = (int)get_local_id(0);
    const int dim = is_v ? args.dim_v : args.dim_k;
    const long most =
        args.page_size ? (long)args.page_size * args.max_pages : (long)args.capacity;
    int fault = 0;
    const int len = args.flags & CLA_KV_HAS_LENS
                        ? clamp_length(lens[args.lens + b], (int)min(most, 2147483647L), &fault)
                        : 0;
    const int count = args.flags & CLA_KV_HAS_NEW
                          ? clamp_length(new_lens[args.new_lens + b], args.len, &fault)
                          : args.len;
    const struct cla_rotary_args r = args.rotary;
    const int turned = is_v ? 0 : r.dim;
    long page = 0, row = 0, at = 0;
    const bool written =
        i < count && find_row(&args, table, b, (long)len + i, &page, &row, &fault);
    if (written && turned) {
        const int first = r.flags & CLA_KV_HAS_OFFSETS ? offsets[r.offsets + b] : len;
        at = (long)rotary_row(&r, first, i, &fault) * (turned / 2);
    }
    if (item == 0 && fault && (args.flags & CLA_FWD_HAS_FAULTS))
        atomic_or(faults + args.faults, fault);
    if (!written) // the same for all items
        return;
    const struct cla_fwd_tensor from = is_v ? args.v_new : args.k_new;
    const struct cla_fwd_tensor into = is_v ? args.v_cache : args.k_cache;
    __global cache_elem *cache = is_v ? v_cache : k_cache;
    const long to = row_at(&into, page, h, row);
    struct source src;
    src.x = is_v ? v_new : k_new;
    src.cos_row = cos_table + (turned ? r.cos_table + at : 0);
    src.sin_row = sin_table + (turned ? r.sin_table + at : 0);
    src.at = row_at(&from, b, h, i);
    src.dim = dim;
    src.turned = turned;
#if DTYPE_CACHE == CLA_DTYPE_I8
    float largest = 0.0f;
    for (int d = 4 * item; d < dim; d += 4 * ITEMS) {
        const float4 v = quad_of(&r, &src, d);
        const float4 sizes = isfinite(v) ? fabs(v) : (float4)(INFINITY);
        largest = fmax(largest, fmax(fmax(sizes.x, sizes.y), fmax(sizes.z, sizes.w)));
    }
#if ITEMS > 1
    __local float part[ITEMS];
    part[item] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_of = ITEMS / 2; half_of > 0; half_of /= 2) {
        if (item < half_of)
            part[item] = fmax(part[item], part[item + half_of]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    largest = part[0];
#endif
    const float scale = isinf(largest) ? NAN : largest / 127.0f;
    for (int d = 4 * item; d < dim; d += 4 * ITEMS) {
        const float4 v = quad_of(&r, &src, d);
        const char4 c = scale > 0.0f ? convert_char4(clamp(rint(v / scale), -127.0f, 127.0f))
                                     : (char4)(0);
        store_chars(cache, to + d, c, dim - d);
    }
    if (item == 0) {
        const struct cla_fwd_tensor scales = is_v ? args.v_scale : args.k_scale;
        (is_v ? v_scale : k_scale)[row_at(&scales, page, h, row)] = scale;
    }
#else
    for (int d = 4 * item; d < dim; d += 4 * ITEMS)
        store_quad(cache, to + d, quad_of(&r, &src, d), dim - d);
#endif
}
