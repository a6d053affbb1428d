// SPDX-License-Identifier: Apache-2.0
// Tile sizes from the device's own figures. Pure.
#include "tile.h"

#include <stdio.h>

#include "abi.h"

// ---- group shape -------------------------------------------------------------------------------

// Tiles in the order in which they are tried: fewer and fewer bytes of local memory and work-items.
// An item owns tile_q/items_q rows x tile_k/items_k keys; 2 x 4 keeps the registers of a GPU item
// under 128 for 64 and 128 channels without spills.
struct group_tile {
    int32_t tile_q, tile_k, items_q, items_k;
    int32_t dim_max; // not for more channels: the registers of O would spill
};

static const struct group_tile group_ladder[] = {
    {64, 32, 32, 8, 64}, // 256 items, 2 x 4
    {32, 32, 16, 8, 128}, // 128 items, 2 x 4
    {16, 32, 8, 8, 256},  // 64 items, 2 x 4
    {16, 16, 4, 4, 256},  // 16 items, 4 x 4
    {8, 16, 4, 4, 256},   // 16 items, 2 x 4
    {4, 8, 4, 2, 256},    // 8 items, 1 x 4
    {4, 4, 4, 1, 256},    // 4 items, 1 x 4
    {2, 4, 1, 1, 256},    // 1 item
    {1, 4, 1, 1, 256},    // 1 item; with 4 channels at a time 128 bytes, the least there is
};
enum { GROUP_LADDER = sizeof group_ladder / sizeof group_ladder[0] };

// Channels at a time below which the loads of a chunk are mostly overhead; smaller ones are for
// devices that have room for nothing else.
enum { CHUNK_COMFORT = 16 };

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static size_t local_bytes(const struct group_tile *g, int32_t chunk_d)
{
    return (size_t)CLA_GROUP_LOCAL_BYTES(g->tile_q, g->tile_k, chunk_d);
}

// The most channels at a time that fit `limit` bytes: all of them, or a half, a quarter, ...; 0 if
// not even `least` do.
static int32_t chunk_that_fits(const struct group_tile *g, int32_t dim, int32_t least, size_t limit)
{
    for (int32_t parts = 1; parts <= dim; parts *= 2) {
        const int32_t chunk = CLA_ROUND_UP4((dim + parts - 1) / parts);
        if (chunk < least)
            return 0;
        if (local_bytes(g, chunk) <= limit)
            return chunk;
    }
    return 0;
}

static bool items_fit(const struct group_tile *g, const struct cla_caps *caps)
{
    const size_t items = (size_t)(g->items_q * g->items_k);
    return items <= caps->max_group && items <= caps->max_items[0];
}

// Bytes that leave room for a second work-group on the compute unit of a GPU, so that one computes
// while the other waits for memory.
static size_t comfortable_bytes(const struct cla_caps *caps)
{
    return caps->type == CLA_DEVICE_GPU ? caps->local_bytes / 2 : caps->local_bytes;
}

static struct cla_tile group_choice(const struct group_tile *g, int32_t chunk_d, int32_t dim,
                                    const struct cla_caps *caps)
{
    struct cla_tile t = {
        .kernel = CLATTN_KERNEL_GROUP,
        .tile_q = g->tile_q,
        .tile_k = g->tile_k,
        .items_q = g->items_q,
        .items_k = g->items_k,
        .chunk_d = chunk_d,
        .local_bytes = local_bytes(g, chunk_d),
    };
    snprintf(t.reason, sizeof t.reason,
             "group shape, tile %d x %d, %d of %d channels at a time, %d items: %zu of %zu bytes "
             "of local memory",
             (int)t.tile_q, (int)t.tile_k, (int)(chunk_d < dim ? chunk_d : dim), (int)dim,
             (int)(t.items_q * t.items_k), t.local_bytes, caps->local_bytes);
    return t;
}

// Whether the tile below it already covers all rows that a problem of this plan can have.
static bool larger_than_problem(int k, int64_t rows)
{
    return k + 1 < GROUP_LADDER && group_ladder[k + 1].tile_q >= rows;
}

static int rank_group(const struct cla_problem *p, const struct cla_caps *caps,
                      struct cla_tile *out, int max, struct cla_notes *refusals)
{
    const int32_t dim = max32(p->dim_qk, p->dim_v);
    const int64_t rows = (int64_t)p->max_len_q * p->group;
    int n = 0;
    // First with chunks of a decent size, then, if that gave nothing, with any.
    for (int32_t least = CLA_ROUND_UP4(dim) < CHUNK_COMFORT ? 4 : CHUNK_COMFORT; n == 0;
         least = 4) {
        int crowded = -1; // a tile that fits, but leaves no room for a second work-group
        for (int k = 0; k < GROUP_LADDER && n < max; k++) {
            const struct group_tile *g = &group_ladder[k];
            if (dim > g->dim_max || larger_than_problem(k, rows))
                continue;
            const int32_t chunk = chunk_that_fits(g, dim, least, caps->local_bytes);
            if (!items_fit(g, caps)) {
                cla_note(refusals, "fused, group shape %d x %d: needs %d work-items, the device "
                         "allows %zu", (int)g->tile_q, (int)g->tile_k,
                         (int)(g->items_q * g->items_k),
                         caps->max_group < caps->max_items[0] ? caps->max_group
                                                              : caps->max_items[0]);
                continue;
            }
            if (!chunk) {
                cla_note(refusals, "fused, group shape %d x %d: needs %zu bytes of local memory "
                         "for %d channels, the device has %zu", (int)g->tile_q, (int)g->tile_k,
                         local_bytes(g, least), (int)least, caps->local_bytes);
                continue;
            }
            out[n] = group_choice(g, chunk, dim, caps);
            if (n == 0 && out[0].local_bytes > comfortable_bytes(caps))
                crowded = 0;
            n++;
        }
        // A smaller tile that leaves room and needs no more passes over Q goes first.
        if (crowded == 0 && n > 1 && out[1].local_bytes <= comfortable_bytes(caps) &&
            out[1].tile_q >= 32 && out[1].chunk_d == CLA_ROUND_UP4(dim)) {
            const struct cla_tile first = out[0];
            out[0] = out[1];
            out[1] = first;
        }
        if (least == 4)
            break;
    }
    if (n == 0)
        cla_note(refusals, "fused, group shape: no tile fits work-groups of %zu and %zu bytes of "
                 "local memory; the smallest needs 1 and %d", caps->max_group, caps->local_bytes,
                 (int)CLA_GROUP_LOCAL_BYTES(1, 4, 4));
    return n;
}

// ---- vector shape ------------------------------------------------------------------------------

// Register blocks: RK x QV scores and RD x QV outputs are accumulated at once, with QV + 1
// registers to spare of the 16 (width 4 and 8) or 32 (width 16) that such a CPU has.
struct vector_tile {
    int32_t width, vecs_q, block_k, block_d, tile_k;
};

static const struct vector_tile vector_ladder[] = {
    {16, 2, 8, 8, 128}, {16, 1, 8, 8, 128},
    {8, 3, 4, 4, 64},   {8, 2, 6, 4, 64}, {8, 1, 6, 4, 64},
    {4, 4, 2, 2, 64},   {4, 1, 4, 4, 64},
};
enum { VECTOR_LADDER = sizeof vector_ladder / sizeof vector_ladder[0] };

static int rank_vector(const struct cla_problem *p, const struct cla_caps *caps,
                       struct cla_tile *out, int max, struct cla_notes *refusals)
{
    if (caps->quirks & CLA_QUIRK_SCALARIZES) {
        cla_note(refusals, "fused, vector shape: the driver's compiler takes vectors apart and "
                           "needs minutes and gigabytes for this kernel");
        return 0;
    }
    const int32_t native = caps->native_width_f32;
    const int32_t width = native >= 16 ? 16 : native >= 8 ? 8 : 4;
    const int64_t rows = (int64_t)p->max_len_q * p->group;
    int n = 0;
    for (int k = 0; k < VECTOR_LADDER && n < max; k++) {
        const struct vector_tile *v = &vector_ladder[k];
        // Of the tiles that hold all rows of a short problem only the smallest makes sense.
        if (v->width != width || (v->vecs_q > 1 && rows <= (int64_t)width * (v->vecs_q - 1)))
            continue;
        out[n] = (struct cla_tile){
            .kernel = CLATTN_KERNEL_VECTOR,
            .tile_q = v->width * v->vecs_q,
            .tile_k = v->tile_k,
            .width = v->width,
            .vecs_q = v->vecs_q,
            .block_k = v->block_k,
            .block_d = v->block_d,
        };
        snprintf(out[n].reason, sizeof out[n].reason,
                 "vector shape, tile %d x %d: %d vectors of %d rows, the device's native width is "
                 "%d",
                 (int)out[n].tile_q, (int)v->tile_k, (int)v->vecs_q, (int)v->width, (int)native);
        n++;
    }
    return n;
}

int cla_tile_rank(const struct cla_problem *p, const struct cla_caps *caps, int32_t kernel,
                  struct cla_tile *out, int max, struct cla_notes *refusals)
{
    return kernel == CLATTN_KERNEL_VECTOR ? rank_vector(p, caps, out, max, refusals)
                                          : rank_group(p, caps, out, max, refusals);
}
