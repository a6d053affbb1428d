// SPDX-License-Identifier: Apache-2.0
#include "description.h"

// One value in so many is of no use.
enum { WILD = 48 };

static int32_t take_enum(struct bytes *b, int32_t count)
{
    const int32_t n = take_below(b, 64);
    return n < 60 ? n % count : n < 62 ? count : n == 62 ? -1 : (int32_t)take_edge(b);
}

static int32_t take_size(struct bytes *b, const int32_t *list, size_t count)
{
    return take_once_in(b, WILD) ? (int32_t)take_edge(b) : take_of(b, list, count);
}
#define TAKE_SIZE(b, list) take_size((b), (list), sizeof(list) / sizeof(*(list)))

static void take_shape(struct bytes *b, bool tiny, clattn_attention_desc *d)
{
    static const int32_t dims[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 40, 64, 65, 80,
                                   96, 128, 160, 192, 255, 256, 320, 512, 575, 576};
    static const int32_t heads[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 40, 64, 128, 1000, 1 << 20};
    static const int32_t groups[] = {1, 1, 2, 3, 4, 8, 16, 128};
    static const int32_t lens[] = {0, 1, 2, 3, 4, 8, 15, 16, 17, 32, 64, 100, 128, 512, 1000,
                                   2048, 4096, 16384, 16385, 131072, 1000000, INT32_MAX};
    static const int32_t batches[] = {0, 1, 2, 3, 4, 8, 16, 64, 1000, 65535, INT32_MAX};
    d->dim_qk = take_size(b, dims, tiny ? 19 : sizeof dims / sizeof *dims);
    d->dim_v = take_once_in(b, 2) ? take_size(b, dims, tiny ? 19 : sizeof dims / sizeof *dims) : 0;
    const int32_t kv = take_size(b, heads, tiny ? 4 : sizeof heads / sizeof *heads);
    const int32_t group = take_of(b, groups, tiny ? 5 : sizeof groups / sizeof *groups);
    d->heads_q = (int32_t)((uint32_t)kv * (uint32_t)group);
    d->heads_kv = take_once_in(b, 4) ? (int32_t)take_below(b, 8) : kv;
    if (tiny)
        return; // without bounds
    d->max_batch = TAKE_SIZE(b, batches);
    d->max_len_q = TAKE_SIZE(b, lens);
    d->max_len_kv = TAKE_SIZE(b, lens);
}

// Not of the planner's making: those are tried, too, see descriptor.c.
static void take_tile(struct bytes *b, clattn_attention_desc *d)
{
    static const int32_t numbers[] = {0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024};
    int32_t *const field[] = {&d->tile.tile_q,  &d->tile.tile_k, &d->tile.items_q,
                              &d->tile.items_k, &d->tile.chunk_d, &d->tile.width,
                              &d->tile.vecs_q,  &d->tile.block_k, &d->tile.block_d};
    static const int32_t shape_of[] = {0, CLATTN_KERNEL_GROUP, CLATTN_KERNEL_VECTOR,
                                       CLATTN_KERNEL_SUBGROUP};
    d->tile.kernel = TAKE_OF(b, shape_of);
    const bool vector = d->tile.kernel == CLATTN_KERNEL_VECTOR;
    for (int i = 0; i < 9; i++) {
        const bool used = i < 2 || (vector ? i > 4 : i <= 4);
        *field[i] = used ? TAKE_SIZE(b, numbers) : 0;
    }
    if (vector && take_once_in(b, 2))
        d->tile.tile_q = (int32_t)((uint32_t)d->tile.width * (uint32_t)d->tile.vecs_q);
    if (!vector && take_once_in(b, 2))
        d->tile.tile_k = (int32_t)((uint32_t)d->tile.items_k * 4u);
    if (take_once_in(b, WILD))
        d->tile.reserved[take_below(b, 6)] = (int32_t)take_edge(b);
}

// Fields that only mean something together with others.
static void take_rest(struct bytes *b, bool tiny, clattn_attention_desc *d)
{
    static const int32_t pages[] = {1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 255, 256};
    static const int32_t splits[] = {0, 0, 0, 1, 2, 3, 7, 8, 100, 65535};
    if ((d->features & CLATTN_FEATURE_PAGED) || take_once_in(b, WILD))
        d->page_size = take_size(b, pages, tiny ? 8 : sizeof pages / sizeof *pages);
    if ((d->features & CLATTN_FEATURE_PAGED) && !take_once_in(b, 8))
        d->features &= ~(uint32_t)CLATTN_FEATURE_PACKED_KV;
    if ((d->features & CLATTN_FEATURE_BIAS) || take_once_in(b, WILD))
        d->dtype_bias = take_enum(b, 3);
    d->align = take_enum(b, 2);
    d->precision = take_enum(b, 2);
    d->flags = take_once_in(b, 4) ? CLATTN_NO_FALLBACK : 0;
    if (take_once_in(b, WILD))
        d->flags = (uint32_t)take_edge(b);
    if (take_once_in(b, WILD))
        d->direction = (int32_t)take_edge(b);
    if (take_once_in(b, WILD))
        memcpy(&d->dropout_p, &(uint32_t){(uint32_t)take_edge(b)}, 4);
    if (tiny)
        return;
    d->algo = take_enum(b, 8);
    if (take_once_in(b, 3))
        d->kernel = take_enum(b, 4);
    if (d->algo == CLATTN_ALGO_SPLIT_KV || take_once_in(b, WILD))
        d->num_splits = TAKE_SIZE(b, splits);
    if (d->algo == CLATTN_ALGO_UNFUSED || take_once_in(b, WILD))
        d->softmax = take_enum(b, 4);
    if (take_once_in(b, 4))
        take_tile(b, d);
}

void take_description(struct bytes *b, bool tiny, clattn_attention_desc *desc)
{
    static const int32_t types_kv[] = {CLATTN_DTYPE_F32, CLATTN_DTYPE_F16, CLATTN_DTYPE_BF16,
                                       CLATTN_DTYPE_I8};
    clattn_attention_desc_init(desc, sizeof *desc);
    const uint32_t form = take_byte(b);
    if (form >= 250) { // any bytes
        take_bytes(b, desc, sizeof *desc);
        if (form >= 253)
            desc->struct_size = sizeof *desc;
        return;
    }
    desc->features = (uint32_t)take_number(b, 2) & 0xfff;
    if (form < 100) // few at a time reach what many would hide
        desc->features &= (uint32_t)take_number(b, 2) & (uint32_t)take_number(b, 2);
    if (take_once_in(b, WILD))
        desc->features |= (uint32_t)take_edge(b);
    desc->dtype_q = take_enum(b, 3);
    desc->dtype_kv = take_once_in(b, 3) ? TAKE_OF(b, types_kv) : desc->dtype_q;
    desc->dtype_o = take_once_in(b, 3) ? take_enum(b, 3) : desc->dtype_q;
    take_shape(b, tiny, desc);
    take_rest(b, tiny, desc);
    if (take_once_in(b, WILD))
        desc->struct_size = take_once_in(b, 2) ? (size_t)take_byte(b) : (size_t)take_edge(b);
}
