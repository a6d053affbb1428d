// SPDX-License-Identifier: Apache-2.0
// Descriptions of attention and made-up devices from bytes: the checker and the planner. What is
// accepted keeps the device's limits, counted here once more from what docs and abi.h say.
#include "abi.h"
#include "algo/tiled_ocl.h"
#include "context.h"
#include "description.h"
#include "plan.h"
#include "tile_check.h"
#include "tune.h"
#include "unit/planner_devices.h"

// ---- devices -----------------------------------------------------------------------------------

// Any figure that a driver may tell, also those that make no sense.
static void take_caps(struct bytes *b, struct cla_caps *c)
{
    static const int64_t sizes[] = {0, 1, 127, 128, 1024, 4096, 16384, 32768, 49152, 65536,
                                    131072, 524288, 1 << 30, INT64_MAX};
    static const int64_t groups[] = {0, 1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1024, 8192};
    static const int32_t widths[] = {0, 1, 2, 3, 4, 8, 16, 32, INT32_MAX};
    static const int32_t units[] = {0, 1, 2, 3, 8, 100, 1024, INT32_MAX};
    static const int32_t subgroup[] = {0, 8, 16, 32, 64};
    *c = planner_devices[take_below(b, DEV_COUNT)];
    const uint64_t change = take_number(b, 2);
    if (change & 1)
        c->local_bytes = (size_t)sizes[take_below(b, 14)] + (change & 2 ? take_number(b, 2) : 0);
    if (change & 4)
        c->max_group = (size_t)groups[take_below(b, 14)];
    if (change & 8)
        c->max_items[0] = (size_t)groups[take_below(b, 14)];
    if (change & 16)
        c->native_width_f32 = TAKE_OF(b, widths);
    if (change & 32)
        c->compute_units = TAKE_OF(b, units);
    if (change & 64)
        c->type = take_below(b, 5);
    if (change & 128)
        c->type_has_cpu_bit = !c->type_has_cpu_bit;
    if (change & 256)
        c->local_is_global = !c->local_is_global;
    if (change & 512)
        c->quirks = take_byte(b) & 31;
    if (change & 1024) {
        c->subgroups = take_below(b, 3);
        c->subgroup_size = TAKE_OF(b, subgroup);
        c->has_subgroups = true;
    }
    if ((change & 0x3000) == 0x3000)
        c->compiler = false;
    if ((change & 0xc000) == 0xc000)
        c->max_group = (size_t)take_number(b, 8);
}

// ---- limits ------------------------------------------------------------------------------------

static int64_t up4(int64_t x)
{
    return (x + 3) / 4 * 4;
}

// A row in local memory: quads, an odd number of them.
static int64_t odd_quads(int64_t floats)
{
    const int64_t quads = (floats + 3) / 4;
    return 4 * (quads % 2 ? quads : quads + 1);
}

static int64_t group_bytes(const struct cla_problem *p, int32_t algo, const struct cla_tile *t)
{
    const int64_t rows = t->tile_q, keys = t->tile_k, chunk = odd_quads(t->chunk_d);
    const int64_t p_row = keys < 32 ? up4(keys) : odd_quads(keys);
    int64_t floats = (rows + keys) * chunk + rows * p_row + up4(rows * (keys / 4)) + 4;
    if (algo == CLATTN_ALGO_FUSED_KV_OUTER && t->chunk_d >= p->dim_qk && t->chunk_d >= p->dim_v)
        floats += keys * chunk;
    return 4 * floats;
}

// One item is what every device can have.
static bool items_fit(int64_t items, const struct cla_caps *c)
{
    return items <= 1 || ((uint64_t)items <= c->max_group && (uint64_t)items <= c->max_items[0]);
}

static void check_group(const struct cla_problem *p, const struct cla_caps *c, int32_t algo,
                        const struct cla_tile *t)
{
    FUZZ_CHECK(t->items_q >= 1 && t->items_k >= 1 && t->tile_q >= 1 && t->tile_k >= 1, "%s",
               t->reason);
    FUZZ_CHECK(t->tile_q % t->items_q == 0 && t->tile_k % (4 * t->items_k) == 0, "%s", t->reason);
    FUZZ_CHECK(items_fit((int64_t)t->items_q * t->items_k, c), "%s: %zu and %zu items", t->reason,
               c->max_group, c->max_items[0]);
    FUZZ_CHECK(t->chunk_d >= 4 && t->chunk_d % 4 == 0, "%s", t->reason);
    const int64_t bytes = group_bytes(p, algo, t);
    FUZZ_CHECK((uint64_t)bytes <= c->local_bytes, "%s: %lld of %zu bytes", t->reason,
               (long long)bytes, c->local_bytes);
    FUZZ_CHECK((int64_t)t->local_bytes == bytes, "%s: %zu bytes, not %lld", t->reason,
               t->local_bytes, (long long)bytes);
    FUZZ_CHECK(!t->subgroups || t->subgroups == c->subgroups, "%s", t->reason);
}

static void check_vector(const struct cla_caps *c, int32_t algo, const struct cla_tile *t)
{
    FUZZ_CHECK(t->width == 4 || t->width == 8 || t->width == 16, "%s", t->reason);
    FUZZ_CHECK(!(c->quirks & CLA_QUIRK_SCALARIZES), "%s", t->reason);
    FUZZ_CHECK(t->local_bytes == 0 && t->items_q == 0 && t->items_k == 0, "%s", t->reason);
    FUZZ_CHECK(t->tile_q >= 1 && t->tile_q <= 512 && t->tile_k >= 1 && t->tile_k <= 512, "%s",
               t->reason);
    if (t->vecs_q == 0) {
        FUZZ_CHECK(algo == CLATTN_ALGO_SPLIT_KV, "%s", t->reason);
        FUZZ_CHECK(t->tile_q <= 8 && t->tile_q <= t->width && t->tile_k % t->width == 0, "%s",
                   t->reason);
        return;
    }
    FUZZ_CHECK(t->tile_q == t->width * t->vecs_q, "%s", t->reason);
    FUZZ_CHECK(t->block_k >= 1 && t->block_d >= 1 && t->tile_k % t->block_k == 0, "%s", t->reason);
}

static void check_tile(const struct cla_problem *p, const struct cla_caps *c, int32_t algo,
                       const struct cla_tile *t)
{
    FUZZ_CHECK(memchr(t->reason, 0, sizeof t->reason), "a reason without its end");
    if (t->kernel == CLATTN_KERNEL_GROUP)
        check_group(p, c, algo, t);
    else if (t->kernel == CLATTN_KERNEL_VECTOR)
        check_vector(c, algo, t);
    else
        FUZZ_CHECK(t->kernel == CLATTN_KERNEL_AUTO &&
                       items_fit((int64_t)t->items_q * t->items_k, c),
                   "%s", t->reason);
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

// A call within the bounds needs no more workspace than the bound says; without bounds it is none.
static void check_workspace(struct bytes *b, const struct cla_problem *p, const struct cla_caps *c,
                            const struct cla_choice *choice)
{
    clattn_context ctx = {.caps = *c};
    const struct cla_prepared prepared = {.tile = choice->tile};
    const struct cla_extent most = {p->max_batch, p->max_len_q, p->max_len_kv, true};
    const struct cla_extent call = {smaller(p->max_batch, take_int(b) & INT32_MAX),
                                    smaller(p->max_len_q, take_int(b) & INT32_MAX),
                                    smaller(p->max_len_kv, take_int(b) & INT32_MAX), false};
    const uint64_t bound = cla_workspace_need(&ctx, choice->algo, p, &prepared, &most);
    const uint64_t need = cla_workspace_need(&ctx, choice->algo, p, &prepared, &call);
    const bool bounded = most.batch < INT32_MAX && most.len_q < INT32_MAX &&
                         most.len_kv < INT32_MAX;
    FUZZ_CHECK(bounded ? need <= bound : !need || bound,
               "%s: a call of %d x %d x %d needs %llu bytes, the bound is %llu",
               choice->tile.reason, (int)call.batch, (int)call.len_q, (int)call.len_kv,
               (unsigned long long)need, (unsigned long long)bound);
}

// ---- ranking -----------------------------------------------------------------------------------

// What the caller asked for is what he gets.
static void check_choice(const struct cla_problem *p, const struct cla_caps *c,
                         const struct cla_choice *choice)
{
    const struct cla_algo *algo = choice->algo;
    const struct cla_tile *t = &choice->tile;
    FUZZ_CHECK(p->algo == CLATTN_ALGO_AUTO ? !algo->by_name_only : algo->id == p->algo,
               "%s for algo %d", algo->name, (int)p->algo);
    FUZZ_CHECK(!(algo->lacks & cla_problem_needs(p)), "%s", algo->name);
    FUZZ_CHECK(!algo->tiled || c->compiler, "%s without a compiler", algo->name);
    check_tile(p, c, algo->id, t);
    const clattn_tile named = cla_tile_named(t);
    FUZZ_CHECK(!p->kernel || named.kernel == p->kernel, "%s for kernel %d", t->reason,
               (int)p->kernel);
    FUZZ_CHECK(!p->tile.kernel || cla_tile_same(&named, &p->tile), "%s", t->reason);
    const struct cla_extent most = cla_bounds_of(p);
    const int32_t parts = algo->num_splits ? algo->num_splits(p, c, t, &most) : 1;
    FUZZ_CHECK(parts >= 1 && parts <= 65535, "%s: %d parts", t->reason, (int)parts);
    const double bytes = algo->bytes ? algo->bytes(p, c, t, p->max_len_q, p->max_len_kv)
                                     : cla_tile_bytes(p, t, p->max_len_q, p->max_len_kv);
    FUZZ_CHECK(bytes >= 0.0, "%s: %g bytes", t->reason, bytes);
}

// Each choice is had again as the caller's own tile.
static void check_again(const struct cla_problem *p, const struct cla_caps *c,
                        const struct cla_choice *choice)
{
    static struct cla_ranking own;
    struct cla_problem same = *p;
    if (!cla_algo_has_tiles(choice->algo->id) || p->tile.kernel)
        return;
    same.algo = choice->algo->id;
    same.kernel = CLATTN_KERNEL_AUTO;
    same.tile = cla_tile_named(&choice->tile);
    cla_plan_rank(&same, c, &own);
    FUZZ_CHECK(own.count == 1 && own.choice[0].algo == choice->algo, "%s: %d choices, %s",
               choice->tile.reason, own.count,
               own.refusals.count ? own.refusals.text[own.refusals.count - 1] : "");
    check_choice(&same, c, &own.choice[0]);
}

static void check_ranking(const struct cla_problem *p, const struct cla_caps *c,
                          const struct cla_ranking *r)
{
    FUZZ_CHECK(r->count >= 0 && r->count <= CLA_CHOICES_MAX, "%d choices", r->count);
    FUZZ_CHECK(r->count || r->refusals.count, "nothing, and no reason");
    for (int i = 0; i < r->count; i++)
        check_choice(p, c, &r->choice[i]);
    // The CPU path serves whatever is not ruled out by name.
    if (p->algo == CLATTN_ALGO_AUTO && !p->kernel &&
        (!p->no_fallback || c->type == CLA_DEVICE_BUILTIN))
        FUZZ_CHECK(r->count && r->choice[r->count - 1].algo == &cla_algo_host, "no CPU path");
}

// Measured tiles, which may be of any device.
static void rank_tuned(struct bytes *b, const struct cla_problem *p, const struct cla_caps *c,
                       struct cla_ranking *out)
{
    clattn_attention_desc d;
    struct cla_tune tune = {.rows = 0};
    struct cla_tune_device device;
    static const int32_t algos[] = {CLATTN_ALGO_FUSED, CLATTN_ALGO_SPLIT_KV, CLATTN_ALGO_TWO_LOOP,
                                    CLATTN_ALGO_FUSED_KV_OUTER};
    cla_tune_device_of(c, &device);
    for (int rows = take_below(b, 4); rows > 0; rows--) {
        struct cla_tune_row row = {.permille = take_int(b), .builtin = take_once_in(b, 2)};
        const int32_t algo = TAKE_OF(b, algos);
        take_description(b, false, &d);
        cla_tune_key_of(p, algo, &row.key);
        row.tile = d.tile;
        if (row.tile.kernel < 0 || row.tile.kernel > CLATTN_KERNEL_SUBGROUP)
            row.tile.kernel = CLATTN_KERNEL_AUTO;
        cla_tune_put(&tune, &device, &row);
    }
    snprintf(tune.source, sizeof tune.source, "file x");
    cla_plan_rank_tuned(p, c, &tune, out);
    cla_tune_free(&tune);
}

// The tiles that are worth measuring.
static void check_list(struct bytes *b, const clattn_attention_desc *desc,
                       const struct cla_problem *p, const struct cla_caps *c)
{
    clattn_tile tiles[256];
    int32_t count = -1;
    clattn_context ctx = {.caps = *c};
    const int32_t max = take_below(b, 256);
    const clattn_status st = clattn_attention_list_tiles(&ctx, desc, tiles, max, &count);
    FUZZ_CHECK(st == CLATTN_OK ? count >= 0 : count <= 0, "%d tiles", (int)count);
    for (int i = 0; st == CLATTN_OK && i < count && i < max; i++) {
        struct cla_tile t;
        char why[160] = "";
        const bool fits = cla_tile_check(p, c, &tiles[i], &t, why, sizeof why);
        FUZZ_CHECK(fits, "tile %d of the list: %s", i, why);
        check_tile(p, c, p->algo, &t);
    }
}

// ---- entry -------------------------------------------------------------------------------------

// The description in memory of exactly the size that it claims.
static clattn_attention_desc *on_heap(struct bytes *b, const clattn_attention_desc *desc)
{
    enum { LARGEST = 2048 };
    size_t size = desc->struct_size < LARGEST ? desc->struct_size : LARGEST;
    const size_t room = size < sizeof desc->struct_size ? sizeof desc->struct_size : size;
    char *copy = calloc(1, room);
    FUZZ_CHECK(copy, "memory");
    memcpy(copy, desc, room < sizeof *desc ? room : sizeof *desc);
    memcpy(copy, &size, sizeof size);
    if (size > sizeof *desc && take_once_in(b, 2))
        copy[sizeof *desc + take_number(b, 2) % (size - sizeof *desc)] = (char)take_byte(b);
    return (clattn_attention_desc *)(void *)copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cla_ranking ranking;
    struct bytes b = {data, size};
    struct cla_caps caps;
    clattn_attention_desc desc;
    struct cla_problem p, again;
    const uint32_t what = take_byte(&b);
    take_caps(&b, &caps);
    take_description(&b, false, &desc);
    clattn_attention_desc *own = on_heap(&b, &desc);
    const clattn_status st = cla_problem_from_desc(own, NULL, &p);
    if (st == CLATTN_OK) {
        FUZZ_CHECK(p.heads_kv >= 1 && p.group >= 1 && p.heads_q == p.heads_kv * p.group, "heads");
        FUZZ_CHECK(p.dim_qk >= 1 && p.dim_qk <= 576 && p.dim_v >= 1 && p.dim_v <= 576, "dims");
        cla_plan_rank(&p, &caps, &ranking);
        check_ranking(&p, &caps, &ranking);
        for (int i = 0; i < ranking.count; i++)
            check_again(&p, &caps, &ranking.choice[i]);
        if (ranking.count)
            check_workspace(&b, &p, &caps, &ranking.choice[what / 16 % ranking.count]);
        if (what % 4 == 1) {
            rank_tuned(&b, &p, &caps, &ranking);
            check_ranking(&p, &caps, &ranking);
        }
        if (what % 16 == 2)
            check_list(&b, own, &p, &caps);
        FUZZ_CHECK(cla_problem_from_desc(own, NULL, &again) == CLATTN_OK, "not the second time");
    }
    FUZZ_CHECK(st >= CLATTN_OK && st <= CLATTN_ERR_INTERNAL, "status %d", (int)st);
    free(own);
    return 0;
}
