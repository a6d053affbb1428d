// SPDX-License-Identifier: Apache-2.0
#include "tile_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "util/format.h"

enum {
    // Beyond these no device has a use for a tile; they keep the arithmetic of local memory small.
    ROWS_MOST = 512, KEYS_MOST = 512, ITEMS_MOST = 4096, BLOCK_MOST = 16,
    PAIRS_MOST = 32, // keys of an item: bits of a word of group_score.clh
    FEW_ROWS_MOST = 8,
    // Private memory of a work-item of the vector shape, which lies on the stack of a driver's
    // thread: threads of macOS have 512 KiB, and the driver's own frames need some. The planner's
    // largest tile (32 x 16, 576 channels of a 16-bit type) takes 305 kB.
    PRIVATE_BYTES_MOST = 393216
};

CLA_PRINTF(3, 4)
static bool no(char *why, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return false;
}

// ---- names -------------------------------------------------------------------------------------

clattn_tile cla_tile_named(const struct cla_tile *t)
{
    // The CPU path has tiles of its own, but none with a kernel shape.
    if (t->kernel == CLATTN_KERNEL_AUTO)
        return (clattn_tile){.kernel = CLATTN_KERNEL_AUTO};
    return (clattn_tile){
        .kernel = t->subgroups ? CLATTN_KERNEL_SUBGROUP : t->kernel,
        .tile_q = t->tile_q, .tile_k = t->tile_k, .items_q = t->items_q, .items_k = t->items_k,
        .chunk_d = t->chunk_d, .width = t->width, .vecs_q = t->vecs_q, .block_k = t->block_k,
        .block_d = t->block_d};
}

bool cla_tile_same(const clattn_tile *a, const clattn_tile *b)
{
    return memcmp(a, b, sizeof *a) == 0; // integers only, without a gap
}

void cla_tile_text(const clattn_tile *t, char *text, size_t size)
{
    if (t->kernel != CLATTN_KERNEL_VECTOR)
        snprintf(text, size, "%s shape, tile %d x %d, %d x %d items, %d channels at a time",
                 t->kernel == CLATTN_KERNEL_SUBGROUP ? "subgroup" : "group", (int)t->tile_q,
                 (int)t->tile_k, (int)t->items_q, (int)t->items_k, (int)t->chunk_d);
    else if (t->vecs_q == 0)
        snprintf(text, size, "vector shape, tile %d x %d, vectors of %d channels", (int)t->tile_q,
                 (int)t->tile_k, (int)t->width);
    else
        snprintf(text, size,
                 "vector shape, tile %d x %d, %d vectors of %d rows, blocks of %d keys and %d "
                 "channels",
                 (int)t->tile_q, (int)t->tile_k, (int)t->vecs_q, (int)t->width, (int)t->block_k,
                 (int)t->block_d);
}

// ---- limits ------------------------------------------------------------------------------------

static bool check_group(const struct cla_problem *p, const struct cla_caps *caps,
                        struct cla_tile *t, bool subgroups, char *why, size_t size)
{
    const int32_t chunk_most = CLA_ROUND_UP4(cla_tile_dim(p));
    if (t->width || t->vecs_q || t->block_k || t->block_d)
        return no(why, size, "width, vecs_q, block_k and block_d are of the vector shape");
    if (t->items_q < 1 || t->items_k < 1 || t->items_q > ITEMS_MOST || t->items_k > ITEMS_MOST ||
        t->tile_q % t->items_q || t->tile_k % (4 * t->items_k) ||
        t->tile_k / t->items_k > PAIRS_MOST)
        return no(why, size, "%d x %d items do not share %d rows and quads of %d keys",
                  (int)t->items_q, (int)t->items_k, (int)t->tile_q, (int)t->tile_k);
    if (t->chunk_d < 4 || t->chunk_d % 4 || t->chunk_d > chunk_most)
        return no(why, size, "chunk_d is %d, no multiple of 4 from 4 to %d", (int)t->chunk_d,
                  (int)chunk_most);
    const size_t items = (size_t)(t->items_q * t->items_k);
    if (items > cla_caps_items(caps))
        return no(why, size, "needs %zu work-items, the device allows %zu", items,
                  cla_caps_items(caps));
    t->local_bytes = cla_tile_group_bytes(p, t);
    if (t->local_bytes > caps->local_bytes)
        return no(why, size, "needs %zu bytes of local memory, the device has %zu",
                  t->local_bytes, caps->local_bytes);
    t->kernel = CLATTN_KERNEL_GROUP;
    t->subgroups = subgroups ? caps->subgroups : CLA_SUBGROUPS_NONE;
    if (subgroups && p->algo != CLATTN_ALGO_FUSED)
        return no(why, size, "only fused has a subgroup shape");
    if (subgroups && !cla_tile_suits_subgroups(caps, t))
        return no(why, size, "the device has no sub-groups for rows of %d items",
                  (int)t->items_k);
    return true;
}

// Bytes of what the kernels of the vector shape keep in arrays: Q, O twice, scores and what was
// hidden of them (vector_walk.clh, split_kv_few.cl), staged keys and values (vector_lanes.clh),
// where the rows of keys on pages are, mask and bias (vector_mask.clh).
static size_t private_bytes(const struct cla_problem *p, const struct cla_tile *t)
{
    const size_t rows = (size_t)t->tile_q, keys = (size_t)(t->tile_k + t->block_k);
    const size_t lanes = (size_t)t->width; // a row of few channels fills a vector all the same
    const size_t dim_qk = ((size_t)p->dim_qk + lanes - 1) / lanes * lanes;
    const size_t dim_v = ((size_t)p->dim_v + lanes - 1) / lanes * lanes;
    const bool few = cla_tile_is_few(t), floats = p->dtype_kv == CLATTN_DTYPE_F32;
    const size_t staged = few ? (size_t)cla_tile_dim(p) : dim_v;
    size_t bytes = sizeof(float) * (rows * (dim_qk + 2 * dim_v) + 2 * rows * keys);
    if (few ? p->paged : !floats)
        bytes += sizeof(float) * (keys * staged + (size_t)t->block_k * dim_qk);
    if (!few && floats && p->paged)
        bytes += keys * (2 * sizeof(void *) + 1);
    if (p->mask || p->bias || p->alibi || p->softcap)
        bytes += rows * keys * (sizeof(float) + 1);
    return bytes;
}

static bool check_private(const struct cla_problem *p, const struct cla_tile *t, char *why,
                          size_t size)
{
    const size_t bytes = private_bytes(p, t);
    return bytes <= PRIVATE_BYTES_MOST ||
           no(why, size, "needs %zu bytes of private memory, over %d may not fit a thread's stack",
              bytes, PRIVATE_BYTES_MOST);
}

static bool check_vector(const struct cla_problem *p, const struct cla_caps *caps,
                         const struct cla_tile *t, char *why, size_t size)
{
    if (t->items_q || t->items_k || t->chunk_d)
        return no(why, size, "items_q, items_k and chunk_d are of the group shape");
    if (caps->quirks & CLA_QUIRK_SCALARIZES)
        return no(why, size, "the driver's compiler takes vectors apart");
    if (t->width != 4 && t->width != 8 && t->width != 16)
        return no(why, size, "width is %d, not 4, 8 or 16", (int)t->width);
    if (t->vecs_q == 0) {
        if (p->algo != CLATTN_ALGO_SPLIT_KV)
            return no(why, size, "only split_kv has channels as lanes (vecs_q 0)");
        if (t->block_k || t->block_d)
            return no(why, size, "with channels as lanes there are no block_k and block_d");
        if (t->tile_q > FEW_ROWS_MOST || t->tile_q > t->width || (t->tile_q & (t->tile_q - 1)) ||
            t->tile_k % t->width || t->tile_k % 8)
            return no(why, size, "with channels as lanes a tile has 1, 2, 4 or 8 rows and whole "
                                 "vectors of keys, not %d x %d", (int)t->tile_q, (int)t->tile_k);
        return check_private(p, t, why, size);
    }
    if (t->vecs_q > BLOCK_MOST || t->tile_q != t->width * t->vecs_q)
        return no(why, size, "%d rows are not %d vectors of %d", (int)t->tile_q, (int)t->vecs_q,
                  (int)t->width);
    if (t->block_k < 1 || t->block_k > BLOCK_MOST || t->block_d < 1 || t->block_d > BLOCK_MOST ||
        t->tile_k % t->block_k)
        return no(why, size, "blocks of %d keys and %d channels: each from 1 to %d, and %d keys "
                             "in whole ones", (int)t->block_k, (int)t->block_d, BLOCK_MOST,
                  (int)t->tile_k);
    return check_private(p, t, why, size);
}

bool cla_tile_check(const struct cla_problem *p, const struct cla_caps *caps,
                    const clattn_tile *want, struct cla_tile *out, char *why, size_t size)
{
    *out = (struct cla_tile){
        .kernel = want->kernel, .tile_q = want->tile_q, .tile_k = want->tile_k,
        .items_q = want->items_q, .items_k = want->items_k, .chunk_d = want->chunk_d,
        .width = want->width, .vecs_q = want->vecs_q, .block_k = want->block_k,
        .block_d = want->block_d, .named = true};
    if (want->tile_q < 1 || want->tile_q > ROWS_MOST || want->tile_k < 1 ||
        want->tile_k > KEYS_MOST)
        return no(why, size, "a tile has 1 to %d rows and 1 to %d keys, not %d x %d", ROWS_MOST,
                  KEYS_MOST, (int)want->tile_q, (int)want->tile_k);
    bool fits = false;
    if (want->kernel == CLATTN_KERNEL_VECTOR)
        fits = check_vector(p, caps, out, why, size);
    else if (want->kernel == CLATTN_KERNEL_GROUP || want->kernel == CLATTN_KERNEL_SUBGROUP)
        fits = check_group(p, caps, out, want->kernel == CLATTN_KERNEL_SUBGROUP, why, size);
    else
        no(why, size, "kernel is %d, no shape of a tile", (int)want->kernel);
    if (fits)
        cla_tile_text(want, out->reason, sizeof out->reason);
    return fits;
}

// ---- neighbours --------------------------------------------------------------------------------

// Steps between two numbers: of doubling, of 2.
static int doublings(int32_t a, int32_t b)
{
    int steps = 0;
    if (a > b)
        return doublings(b, a);
    // Half a step counts for one where tiles are no power of two.
    for (; a * 3 < b * 2; a *= 2)
        steps++;
    return steps;
}

static int twos(int32_t a, int32_t b)
{
    return (abs(a - b) + 1) / 2;
}

// How far a tile is from another of the same shape: each step is something to measure.
static int distance(const clattn_tile *a, const clattn_tile *b)
{
    enum { FAR = 99 };
    if (a->kernel != b->kernel || !a->vecs_q != !b->vecs_q)
        return FAR;
    if (a->kernel == CLATTN_KERNEL_VECTOR && a->vecs_q == 0)
        return doublings(a->width, b->width) + doublings(a->tile_k, b->tile_k) +
               doublings(a->tile_q, b->tile_q);
    if (a->kernel == CLATTN_KERNEL_VECTOR)
        return doublings(a->width, b->width) + abs(a->vecs_q - b->vecs_q) +
               twos(a->block_k, b->block_k) + doublings(a->block_d, b->block_d) +
               doublings(a->tile_k, b->tile_k);
    return doublings(a->items_q, b->items_q) +
           doublings(a->tile_q / a->items_q, b->tile_q / b->items_q) +
           doublings(a->items_k, b->items_k) +
           doublings(a->tile_k / a->items_k, b->tile_k / b->items_k) +
           doublings(a->chunk_d, b->chunk_d);
}

struct near {
    const struct cla_problem *p;
    const struct cla_caps *caps;
    const clattn_tile *base;
    int num_base, steps; // only tiles of so many steps from the nearest base
    clattn_tile *out;
    int max, count;
};

static void add(struct near *n, const clattn_tile *t)
{
    struct cla_tile checked;
    char why[160];
    int steps = 99;
    for (int k = 0; k < n->num_base; k++) {
        const int d = distance(t, &n->base[k]);
        if (cla_tile_same(t, &n->base[k]))
            return;
        steps = d < steps ? d : steps;
    }
    // What is as good as a base counts as a step away.
    if ((steps > 1 ? steps : 1) != n->steps ||
        !cla_tile_check(n->p, n->caps, t, &checked, why, sizeof why) ||
        cla_tile_leaves_idle(n->p, n->caps, &checked))
        return;
    if (n->count < n->max)
        n->out[n->count] = *t;
    n->count++;
}

// Whether a tile has twice the rows or keys that there can be.
static bool too_large(const struct cla_problem *p, int32_t tile_q, int32_t tile_k)
{
    return (tile_q > 1 && tile_q / 2 >= (int64_t)p->max_len_q * p->group) ||
           (tile_k > 16 && tile_k / 2 >= p->max_len_kv);
}

static void add_groups(struct near *n, int32_t kernel)
{
    const int32_t dim = cla_tile_dim(n->p);
    for (int32_t rows = 1; rows <= 4; rows *= 2)
        for (int32_t items_q = 1; items_q <= 64; items_q *= 2)
            for (int32_t keys = 4; keys <= 8; keys *= 2)
                for (int32_t items_k = 1; items_k <= 32; items_k *= 2)
                    for (int32_t parts = 1; parts <= 4; parts *= 2) {
                        const clattn_tile t = {
                            .kernel = kernel, .tile_q = rows * items_q, .tile_k = keys * items_k,
                            .items_q = items_q, .items_k = items_k,
                            .chunk_d = CLA_ROUND_UP4((dim + parts - 1) / parts)};
                        if (!too_large(n->p, t.tile_q, t.tile_k) &&
                            (parts == 1 || t.chunk_d < CLA_ROUND_UP4(dim)))
                            add(n, &t);
                    }
}

// Vectors that a tile keeps in registers, of 16, or of 32 with 512 bits; those of twice the
// device's width count double.
static bool spills(const struct cla_caps *caps, const clattn_tile *t)
{
    const int32_t native = caps->native_width_f32 > 4 ? caps->native_width_f32 : 4;
    const int32_t each = t->width > native ? t->width / native : 1;
    const int32_t block = t->block_k > t->block_d ? t->block_k : t->block_d;
    return each * (block * t->vecs_q + t->vecs_q) + 1 > (native >= 16 ? 32 : 16) + 2;
}

// Vectors of the device's own width, and of twice that.
static void add_vectors(struct near *n)
{
    for (int32_t width = cla_tile_width(n->caps); width <= 16; width *= 2)
        for (int32_t vecs_q = 1; vecs_q <= 6; vecs_q++)
            for (int32_t block_k = 2; block_k <= 12; block_k += 2)
                for (int32_t block_d = 2; block_d <= 8; block_d *= 2)
                    for (int32_t keys = 16; keys <= 256; keys *= 2) {
                        const clattn_tile t = {
                            .kernel = CLATTN_KERNEL_VECTOR, .tile_q = width * vecs_q,
                            .tile_k = keys / block_k * block_k, .width = width, .vecs_q = vecs_q,
                            .block_k = block_k, .block_d = block_d};
                        if (t.tile_k && !too_large(n->p, t.tile_q, t.tile_k) &&
                            !spills(n->caps, &t))
                            add(n, &t);
                    }
}

static void add_few(struct near *n)
{
    for (int32_t width = cla_tile_width(n->caps); width <= 16; width *= 2)
        for (int32_t rows = 1; rows <= 8; rows *= 2)
            for (int32_t keys = 16; keys <= 256; keys *= 2) {
                const clattn_tile t = {.kernel = CLATTN_KERNEL_VECTOR, .tile_q = rows,
                                       .tile_k = keys, .width = width};
                if (!too_large(n->p, rows, keys))
                    add(n, &t);
            }
}

int cla_tile_near(const struct cla_problem *p, const struct cla_caps *caps, const clattn_tile *base,
                  int num_base, clattn_tile *out, int max)
{
    enum { STEPS_MOST = 2 };
    struct near n = {.p = p, .caps = caps, .base = base, .num_base = num_base, .out = out,
                     .max = max};
    for (int k = 0; k < num_base; k++, n.count++)
        if (n.count < max)
            out[n.count] = base[k];
    bool group = false, subgroup = false, vector = false, few = false;
    for (int k = 0; k < num_base; k++) {
        group = group || base[k].kernel == CLATTN_KERNEL_GROUP;
        subgroup = subgroup || base[k].kernel == CLATTN_KERNEL_SUBGROUP;
        vector = vector || (base[k].kernel == CLATTN_KERNEL_VECTOR && base[k].vecs_q);
        few = few || (base[k].kernel == CLATTN_KERNEL_VECTOR && !base[k].vecs_q);
    }
    for (n.steps = 1; n.steps <= STEPS_MOST; n.steps++) {
        if (subgroup)
            add_groups(&n, CLATTN_KERNEL_SUBGROUP);
        if (group)
            add_groups(&n, CLATTN_KERNEL_GROUP);
        if (vector)
            add_vectors(&n);
        if (few)
            add_few(&n);
    }
    return n.count;
}
