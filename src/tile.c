// SPDX-License-Identifier: Apache-2.0
// Tile sizes from the device's own figures. Pure. docs/planner.md has the rules and their reasons.
#include "tile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

// ---- bytes moved -------------------------------------------------------------------------------

double cla_tile_bytes(const struct cla_problem *p, const struct cla_tile *t, int64_t len_q,
                      int64_t len_kv)
{
    const double rows = (double)len_q * p->group;
    const double keys = (double)len_kv;
    const double passes = ceil(rows / t->tile_q);
    const double row = (double)cla_dtype_bytes(p->dtype_q) * p->dim_qk +
                       (double)cla_dtype_bytes(p->dtype_o) * p->dim_v + (p->lse ? 4.0 : 0.0);
    const double pages = p->paged ? ceil(keys / p->page_size) : 0.0;
    const double pass =
        keys * (cla_key_bytes(p, p->dim_qk) + cla_key_bytes(p, p->dim_v)) + 4.0 * pages;
    return p->heads_kv * (rows * (row + keys * cla_pair_bytes(p)) + passes * pass);
}

// ---- the compiled kernel -----------------------------------------------------------------------

bool cla_tile_fits_kernel(const struct cla_tile *t, const struct cla_caps *caps,
                          size_t kernel_group, size_t kernel_local_bytes, char *why,
                          size_t why_size)
{
    const int32_t items = t->kernel == CLATTN_KERNEL_VECTOR ? 1 : t->items_q * t->items_k;
    const size_t need = items > 1 ? (size_t)items : 1;
    if (caps->quirks & CLA_QUIRK_KERNEL_QUERIES_LIE)
        return true;
    if (kernel_group < need)
        snprintf(why, why_size, "the compiled kernel allows work-groups of %zu, it needs %zu",
                 kernel_group, need);
    else if (kernel_local_bytes > caps->local_bytes)
        snprintf(why, why_size,
                 "the compiled kernel takes %zu bytes of local memory, there are %zu",
                 kernel_local_bytes, caps->local_bytes);
    else
        return true;
    return false;
}

// ---- what both shapes ask of a problem ----------------------------------------------------------

// Whose tile it is, for notes.
static const char *who(const struct cla_problem *p)
{
    switch (p->algo) {
    case CLATTN_ALGO_TWO_LOOP: return "two_loop";
    case CLATTN_ALGO_FUSED_KV_OUTER: return "fused_kv_outer";
    case CLATTN_ALGO_SPLIT_KV: return "split_kv";
    default: return "fused";
    }
}

// Rows of a key head, at most.
static int64_t rows_of(const struct cla_problem *p)
{
    return (int64_t)p->max_len_q * p->group;
}

// Whether tiles of so many rows leave compute units without work. Without bounds there is no
// telling, and the calls are taken to be large.
static bool leaves_units_idle(const struct cla_problem *p, const struct cla_caps *caps,
                              int32_t tile_q)
{
    if (p->max_len_q == INT32_MAX || p->max_batch == INT32_MAX)
        return false;
    const double tiles = ceil((double)rows_of(p) / tile_q);
    return tiles * p->heads_kv * p->max_batch < caps->compute_units;
}

// ---- group shape: candidates -------------------------------------------------------------------

// More rows first, and among as many rows in the order in which they are preferred. An item owns
// tile_q/items_q rows x 4 keys: 2 x 4 where it can, which loads 6 quads of Q and K for 8 products
// of quads, 1 x 4 (5 for 4) where the sums of O would not fit the registers otherwise.
struct group_tile {
    int32_t tile_q, tile_k, items_q, items_k;
};

static const struct group_tile group_tiles[] = {
    {64, 32, 32, 8},  {64, 32, 64, 8},  {64, 16, 32, 4}, {64, 16, 64, 4}, {64, 8, 64, 2},
    {64, 4, 64, 1},
    {32, 32, 16, 8},  {32, 64, 16, 16}, {32, 32, 32, 8}, {32, 64, 32, 16}, {32, 16, 16, 4},
    {32, 16, 32, 4},  {32, 8, 32, 2},   {32, 4, 32, 1},
    {16, 32, 8, 8},   {16, 32, 16, 8},  {16, 64, 16, 16}, {16, 16, 8, 4}, {16, 8, 16, 2},
    {16, 4, 16, 1},
    {8, 32, 8, 8},    {8, 64, 8, 16},   {8, 16, 8, 4},   {8, 16, 4, 4},  {8, 8, 8, 2},
    {8, 4, 8, 1},
    {4, 64, 4, 16},   {4, 32, 4, 8},    {4, 16, 4, 4},   {4, 8, 4, 2},   {4, 4, 4, 1},
    {2, 64, 2, 16},   {2, 32, 2, 8},    {2, 16, 2, 4},   {2, 8, 2, 2},   {2, 4, 1, 1},
    {1, 128, 1, 32},  {1, 64, 1, 16},   {1, 32, 1, 8},   {1, 16, 1, 4},  {1, 8, 1, 2},
    {1, 4, 1, 1}, // 1 item; with 4 channels at a time 128 bytes, the least there is
};
enum { GROUP_TILES = sizeof group_tiles / sizeof group_tiles[0] };

enum {
    // From so many rows on a tile has to be worth it, and above it must keep its sums in registers.
    // Smaller ones serve short problems and devices with room for nothing else.
    DECENT_ROWS = 16,
    KEYS_DECENT = 32,
    // Channels at a time below which the loads of a chunk are mostly overhead.
    CHUNK_COMFORT = 32,
    // The kernel keeps O in registers up to so many chunks; drivers for CPUs, where each chunk is
    // compile time, get half of them.
    CHUNKS_MOST = 4,
    CHUNKS_MOST_CPU = 2,
    // Floats that an item sums up, of the 256 registers that GPUs have at most: addresses, operands
    // and what a compiler holds ahead take more than as many again.
    SUMS_MOST = 104,
    // The same where there are 128 registers: Intel's GPUs, whose sub-groups can be asked for.
    SUMS_MOST_128 = 68,
    // Sums of P*V that the kernel has in hand beside O.
    SUMS_IN_HAND = 32,
    // What two loops over the keys keep more.
    TWO_LOOP_MORE = 16,
    // Where local memory is ordinary memory: bytes that stay in the first-level cache.
    CACHE_BYTES_GPU = 16384,
    CACHE_BYTES_CPU = 32768
};

static size_t local_bytes(const struct group_tile *g, int32_t chunk_d, const struct cla_problem *p)
{
    const bool keeps_kv = p->algo == CLATTN_ALGO_FUSED_KV_OUTER && chunk_d >= cla_tile_dim(p);
    return (size_t)CLA_GROUP_LOCAL_BYTES(g->tile_q, g->tile_k, chunk_d) +
           (keeps_kv ? (size_t)CLA_GROUP_KEPT_BYTES(g->tile_k, chunk_d) : 0);
}

// Least channels at a time of a decent tile: all of them where K and V shall stay for many tiles of
// rows.
static int32_t decent_chunk(const struct cla_problem *p, const struct cla_caps *caps)
{
    const int32_t dim = cla_tile_dim(p);
    const int32_t most = caps->type == CLA_DEVICE_CPU ? CHUNKS_MOST_CPU : CHUNKS_MOST;
    if (p->algo == CLATTN_ALGO_FUSED_KV_OUTER)
        return CLA_ROUND_UP4(dim);
    return min32(CLA_ROUND_UP4(dim),
                 max32(CHUNK_COMFORT, CLA_ROUND_UP4((dim + most - 1) / most)));
}

// The most channels at a time that fit `limit` bytes: all of them, or a half, a quarter, ...; 0 if
// not even `least` do.
static int32_t chunk_that_fits(const struct group_tile *g, const struct cla_problem *p,
                               int32_t least, size_t limit)
{
    const int32_t dim = cla_tile_dim(p);
    for (int32_t parts = 1; parts <= dim; parts *= 2) {
        const int32_t chunk = CLA_ROUND_UP4((dim + parts - 1) / parts);
        if (chunk < least)
            return 0;
        if (local_bytes(g, chunk, p) <= limit)
            return chunk;
    }
    return 0;
}

// Floats that an item sums up: scores, O, which is doubled where rounding errors are carried along,
// and the products in hand. Chunks are left out of it, so that no device with more local memory
// has a tile refused that one with less takes.
static int32_t sums_of(const struct group_tile *g, const struct cla_problem *p)
{
    const int32_t rows = g->tile_q / g->items_q, keys = g->tile_k / g->items_k;
    const int32_t quads = (CLA_QUADS(p->dim_v) + g->items_k - 1) / g->items_k;
    const int32_t copies = cla_tile_has_long_rows(g->tile_k, p->max_len_kv) ? 2 : 1;
    const int32_t more = p->algo == CLATTN_ALGO_TWO_LOOP ? TWO_LOOP_MORE : 0;
    return rows * keys + copies * rows * 4 * quads + SUMS_IN_HAND + more;
}

static int32_t sums_most(const struct cla_caps *caps)
{
    return caps->type == CLA_DEVICE_GPU && caps->subgroups == CLA_SUBGROUPS_REQUIRED
               ? SUMS_MOST_128
               : SUMS_MOST;
}

// Bytes that a work-group may take. On a GPU half of what there is, so that of two work-groups on a
// compute unit one computes while the other waits for memory, but at least what 16 rows need.
// Grows with the device's local memory: what a device takes, one with more takes too.
static size_t local_budget(const struct cla_problem *p, const struct cla_caps *caps)
{
    static const struct group_tile sixteen = {16, 32, 8, 8};
    const size_t least = local_bytes(&sixteen, decent_chunk(p, caps), p);
    if (caps->local_is_global)
        return min_size(caps->local_bytes,
                        max_size(least, caps->type == CLA_DEVICE_CPU ? CACHE_BYTES_CPU
                                                                     : CACHE_BYTES_GPU));
    if (caps->type == CLA_DEVICE_CPU)
        return caps->local_bytes;
    return min_size(caps->local_bytes, max_size(least, caps->local_bytes / 2));
}

// Whether the tile has the keys that it should: not twice as many as there can be, and from
// DECENT_ROWS on at least KEYS_DECENT of a long row, since the rows of Q come again with each tile.
static bool keys_suit(const struct group_tile *g, const struct cla_problem *p)
{
    if (g->tile_k > 4 && g->tile_k / 2 >= p->max_len_kv)
        return false;
    return g->tile_q < DECENT_ROWS || g->tile_k >= min32(KEYS_DECENT, p->max_len_kv);
}

// Whether the items that share a row can be a sub-group of the smallest size, whose items have the
// most registers, or a part of one. 8, 16 and 32 are the sizes that most drivers take; where theirs
// are not known, kernels of a wrong one fail their trial.
static bool suits_subgroups(const struct cla_caps *caps, const struct group_tile *g)
{
    if (caps->subgroups == CLA_SUBGROUPS_REQUIRED && caps->subgroup_size)
        return g->items_k == caps->subgroup_size;
    if (caps->subgroups == CLA_SUBGROUPS_REQUIRED)
        return g->items_k == 8 || g->items_k == 16 || g->items_k == 32;
    return g->items_k > 1 && g->items_k <= 8;
}

// ---- group shape: choice -----------------------------------------------------------------------

static struct cla_tile group_choice(const struct group_tile *g, int32_t chunk_d,
                                    const struct cla_problem *p, const struct cla_caps *caps)
{
    const int32_t dim = cla_tile_dim(p);
    struct cla_tile t = {
        .kernel = CLATTN_KERNEL_GROUP,
        .tile_q = g->tile_q,
        .tile_k = g->tile_k,
        .items_q = g->items_q,
        .items_k = g->items_k,
        .chunk_d = chunk_d,
        .local_bytes = local_bytes(g, chunk_d, p),
    };
    snprintf(t.reason, sizeof t.reason,
             "group shape, tile %d x %d, %d of %d channels at a time, %d items: %zu of %zu bytes "
             "of local memory",
             (int)t.tile_q, (int)t.tile_k, (int)min32(chunk_d, dim), (int)dim,
             (int)(t.items_q * t.items_k), t.local_bytes, caps->local_bytes);
    return t;
}

// What the device or the problem has against a tile, as a note; the first that applies.
static void note_group(struct cla_notes *refusals, const struct group_tile *g,
                       const struct cla_problem *p, const struct cla_caps *caps, int32_t least)
{
    const int32_t items = g->items_q * g->items_k;
    if ((size_t)items > cla_caps_items(caps))
        cla_note(refusals, "%s, group shape %d x %d: needs %d work-items, the device allows %zu",
                 who(p), (int)g->tile_q, (int)g->tile_k, (int)items, cla_caps_items(caps));
    else if (local_bytes(g, least, p) > local_budget(p, caps))
        cla_note(refusals,
                 "%s, group shape %d x %d: needs %zu bytes of local memory for %d channels, %zu "
                 "are for a work-group, the device has %zu",
                 who(p), (int)g->tile_q, (int)g->tile_k, local_bytes(g, least, p), (int)least,
                 local_budget(p, caps), caps->local_bytes);
    else
        cla_note(refusals,
                 "%s, group shape %d x %d: an item would sum up %d floats, over %d they leave "
                 "the registers",
                 who(p), (int)g->tile_q, (int)g->tile_k, (int)sums_of(g, p), (int)sums_most(caps));
}

// What a tile may ask for: local memory, work-items; and whether a sub-group must own its rows.
struct bounds {
    size_t limit, most;
    bool subgroups;
};

// The best tile among those from `first` on that have as many rows; false with a note if there is
// none.
static bool best_of_rows(int first, const struct cla_problem *p, const struct cla_caps *caps,
                         const struct bounds *b, struct cla_tile *out, struct cla_notes *refusals)
{
    const int32_t rows = group_tiles[first].tile_q, decent = decent_chunk(p, caps);
    const int32_t least = rows >= DECENT_ROWS ? decent : 4;
    const struct group_tile *refused = NULL;
    int32_t any_chunk = 0, any_sums = 0; // the largest so far, and of these the fewest sums
    for (int k = first; k < GROUP_TILES && group_tiles[k].tile_q == rows; k++) {
        const struct group_tile *g = &group_tiles[k];
        if (!keys_suit(g, p) || (b->subgroups && !suits_subgroups(caps, g)))
            continue;
        if (!refused)
            refused = g;
        const int32_t chunk = chunk_that_fits(g, p, least, b->limit);
        if ((size_t)(g->items_q * g->items_k) > b->most || !chunk)
            continue;
        if (chunk >= decent && sums_of(g, p) <= sums_most(caps)) {
            *out = group_choice(g, chunk, p, caps);
            return true;
        }
        if (rows > DECENT_ROWS || min32(chunk, decent) < any_chunk ||
            (min32(chunk, decent) == any_chunk && sums_of(g, p) >= any_sums))
            continue;
        any_chunk = min32(chunk, decent);
        any_sums = sums_of(g, p);
        *out = group_choice(g, chunk, p, caps);
    }
    if (!any_chunk && refused)
        note_group(refusals, refused, p, caps, least);
    return any_chunk > 0;
}

// Index of the next tile with fewer rows.
static int next_rows(int k)
{
    int next = k + 1;
    while (next < GROUP_TILES && group_tiles[next].tile_q == group_tiles[k].tile_q)
        next++;
    return next;
}

static int rank_group(const struct cla_problem *p, const struct cla_caps *caps, bool subgroups,
                      struct cla_tile *out, int max, struct cla_notes *refusals)
{
    struct bounds b = {local_budget(p, caps), cla_caps_items(caps), subgroups};
    int n = 0;
    for (int k = 0, next = 0; k < GROUP_TILES && n < max; k = next) {
        const int32_t rows = group_tiles[k].tile_q;
        next = next_rows(k);
        // The tile below already covers all rows that a problem of this plan can have.
        if (next < GROUP_TILES && group_tiles[next].tile_q >= rows_of(p))
            continue;
        if (rows > DECENT_ROWS && leaves_units_idle(p, caps, rows)) {
            cla_note(refusals, "%s, group shape of %d rows: fewer work-groups than the %d "
                     "compute units", who(p), (int)rows, (int)caps->compute_units);
            continue;
        }
        if (!best_of_rows(k, p, caps, &b, &out[n], n == 0 ? refusals : NULL))
            continue;
        // What takes its place if it fails asks for no more of anything.
        b.limit = out[n].local_bytes;
        b.most = (size_t)(out[n].items_q * out[n].items_k);
        n++;
    }
    // Last the tile of one item: a driver may turn out to allow no more for a kernel with barriers.
    if (n > 0 && n < max && b.most > 1 && !subgroups) {
        const struct group_tile *g = &group_tiles[GROUP_TILES - 1];
        const int32_t chunk = chunk_that_fits(g, p, 4, b.limit);
        if (chunk)
            out[n++] = group_choice(g, chunk, p, caps);
    }
    if (n == 0 && subgroups)
        cla_note(refusals, "%s, subgroup shape: no tile with rows of a sub-group's size fits",
                 who(p));
    else if (n == 0)
        cla_note(refusals, "%s, group shape: no tile fits work-groups of %zu and %zu bytes of "
                 "local memory; the smallest needs 1 and %d", who(p), cla_caps_items(caps),
                 caps->local_bytes, (int)local_bytes(&group_tiles[GROUP_TILES - 1], 4, p));
    return n;
}

// ---- vector shape ------------------------------------------------------------------------------

// Register blocks: RK x QV scores and RD x QV outputs are accumulated at once, with QV + 1
// registers to spare of the 16 (width 4 and 8) or 32 (width 16) that such a CPU has.
struct vector_tile {
    int32_t width, vecs_q, block_k, block_d, tile_k_most;
};

static const struct vector_tile vector_tiles[] = {
    {16, 2, 8, 8, 128}, {16, 1, 8, 8, 128},
    {8, 3, 4, 4, 64},   {8, 2, 6, 4, 64}, {8, 1, 6, 4, 64},
    {4, 4, 2, 2, 64},   {4, 1, 4, 4, 64},
};
enum {
    VECTOR_TILES = sizeof vector_tiles / sizeof vector_tiles[0],
    // V of a tile is read once for each block of channels, so it should stay in the first-level
    // cache: 32 KiB.
    VECTOR_TILE_FLOATS = 8192,
    // Below so many keys the work between tiles counts; masks are read 16 keys at a time.
    VECTOR_TILE_K_LEAST = 16,
    // With channels as lanes: accumulators for so many rows fit the registers.
    FEW_ROWS_MOST = 8,
    FEW_TILE_K = 32
};

// Keys in a tile: whole blocks, as many as V leaves room for, and no more than there can be.
static int32_t vector_keys(const struct vector_tile *v, const struct cla_problem *p)
{
    const int32_t keys = min32(VECTOR_TILE_FLOATS / p->dim_v, v->tile_k_most);
    const int32_t least = (VECTOR_TILE_K_LEAST + v->block_k - 1) / v->block_k;
    const int32_t blocks = max32(keys / v->block_k, least);
    const int32_t needed = (int32_t)(((int64_t)p->max_len_kv + v->block_k - 1) / v->block_k);
    return min32(blocks, needed) * v->block_k;
}

static int rank_vector(const struct cla_problem *p, const struct cla_caps *caps,
                       struct cla_tile *out, int max, struct cla_notes *refusals)
{
    if (caps->quirks & CLA_QUIRK_SCALARIZES) {
        cla_note(refusals, "%s, vector shape: the driver's compiler takes vectors apart and "
                           "needs minutes and gigabytes for this kernel", who(p));
        return 0;
    }
    const int32_t native = caps->native_width_f32, width = cla_tile_width(caps);
    int n = 0;
    for (int k = 0; k < VECTOR_TILES && n < max; k++) {
        const struct vector_tile *v = &vector_tiles[k];
        const int32_t tile_q = v->width * v->vecs_q, tile_k = vector_keys(v, p);
        // Of the tiles that hold all rows of a short problem only the smallest makes sense.
        if (v->width != width ||
            (v->vecs_q > 1 && rows_of(p) <= (int64_t)width * (v->vecs_q - 1)))
            continue;
        if (v->vecs_q > 1 && leaves_units_idle(p, caps, tile_q)) {
            cla_note(refusals, "%s, vector shape %d x %d: fewer work-groups than the %d compute "
                     "units", who(p), (int)tile_q, (int)tile_k, (int)caps->compute_units);
            continue;
        }
        out[n] = (struct cla_tile){
            .kernel = CLATTN_KERNEL_VECTOR,
            .tile_q = tile_q,
            .tile_k = tile_k,
            .width = v->width,
            .vecs_q = v->vecs_q,
            .block_k = v->block_k,
            .block_d = v->block_d,
        };
        snprintf(out[n].reason, sizeof out[n].reason,
                 "vector shape, tile %d x %d: %d vectors of %d rows, the device's native width is "
                 "%d",
                 (int)tile_q, (int)tile_k, (int)v->vecs_q, (int)v->width, (int)native);
        n++;
    }
    return n;
}

int cla_tile_rank_few(const struct cla_problem *p, const struct cla_caps *caps,
                      struct cla_tile *out, struct cla_notes *refusals)
{
    const int32_t native = caps->native_width_f32, width = cla_tile_width(caps);
    const int32_t most = min32(width, FEW_ROWS_MOST);
    if (caps->quirks & CLA_QUIRK_SCALARIZES)
        return 0; // the other tiles of the shape say so
    if (rows_of(p) > most) {
        cla_note(refusals, "%s, vector shape with channels as lanes: for up to %d rows", who(p),
                 (int)most);
        return 0;
    }
    int32_t rows = 1;
    while (rows < rows_of(p))
        rows *= 2;
    *out = (struct cla_tile){
        .kernel = CLATTN_KERNEL_VECTOR, .tile_q = rows, .tile_k = FEW_TILE_K, .width = width};
    snprintf(out->reason, sizeof out->reason,
             "vector shape, tile %d x %d: vectors of %d channels, the device's native width is %d",
             (int)rows, FEW_TILE_K, (int)width, (int)native);
    return 1;
}

// ---- group shape with sub-groups ---------------------------------------------------------------

enum { SUBGROUP_KEYS = 128 };

// Of the tiles of the group shape those that sub-groups can own whole rows of.
static int rank_subgroup(const struct cla_problem *p, const struct cla_caps *caps,
                         struct cla_tile *out, int max, struct cla_notes *refusals)
{
    if (caps->subgroups == CLA_SUBGROUPS_NONE) {
        cla_note(refusals, "%s, subgroup shape: the device has no sub-groups that tell their size "
                 "and shuffle values", who(p));
        return 0;
    }
    // Tiles for the fewest keys have too few items in a row.
    struct cla_problem enough = *p;
    if (enough.max_len_kv < SUBGROUP_KEYS)
        enough.max_len_kv = SUBGROUP_KEYS;
    const int n = rank_group(&enough, caps, true, out, max, refusals);
    for (int k = 0; k < n; k++) {
        struct cla_tile *t = &out[k];
        t->subgroups = caps->subgroups;
        const size_t used = strlen(t->reason);
        snprintf(t->reason + used, sizeof t->reason - used, ", a row in %d items of a sub-group",
                 (int)t->items_k);
    }
    return n;
}

int cla_tile_rank(const struct cla_problem *p, const struct cla_caps *caps, int32_t kernel,
                  struct cla_tile *out, int max, struct cla_notes *refusals)
{
    switch (kernel) {
    case CLATTN_KERNEL_VECTOR: return rank_vector(p, caps, out, max, refusals);
    case CLATTN_KERNEL_SUBGROUP: return rank_subgroup(p, caps, out, max, refusals);
    default: return rank_group(p, caps, false, out, max, refusals);
    }
}

// ---- of a given tile ---------------------------------------------------------------------------

static struct group_tile group_of(const struct cla_tile *t)
{
    return (struct group_tile){t->tile_q, t->tile_k, t->items_q, t->items_k};
}

size_t cla_tile_group_bytes(const struct cla_problem *p, const struct cla_tile *t)
{
    const struct group_tile g = group_of(t);
    return local_bytes(&g, t->chunk_d, p);
}

bool cla_tile_suits_subgroups(const struct cla_caps *caps, const struct cla_tile *t)
{
    const struct group_tile g = group_of(t);
    return caps->subgroups != CLA_SUBGROUPS_NONE && suits_subgroups(caps, &g);
}

bool cla_tile_leaves_idle(const struct cla_problem *p, const struct cla_caps *caps,
                          const struct cla_tile *t)
{
    const bool small =
        t->kernel == CLATTN_KERNEL_VECTOR ? t->vecs_q <= 1 : t->tile_q <= DECENT_ROWS;
    return !small && leaves_units_idle(p, caps, t->tile_q);
}
