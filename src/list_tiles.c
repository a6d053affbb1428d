// SPDX-License-Identifier: Apache-2.0
// Tiles that are worth measuring for a description.
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "tile_check.h"

enum {
    LIST_MOST = 512,
    BASES_MOST = 4 // of the planner's choices: those behind them are for devices that fail
};

// Of the planner's choices the first two of each kernel that it would take for the device.
static int bases_of(const struct cla_ranking *ranking, clattn_tile base[BASES_MOST])
{
    int n = 0, of_kernel[CLATTN_KERNEL_SUBGROUP + 1] = {0};
    for (int i = 0; i < ranking->count && n < BASES_MOST; i++) {
        const struct cla_tile *first = &ranking->choice[0].tile, *t = &ranking->choice[i].tile;
        const clattn_tile named = cla_tile_named(t);
        if (t->kernel == first->kernel && of_kernel[named.kernel]++ < 2)
            base[n++] = named;
    }
    return n;
}

clattn_status clattn_attention_list_tiles(clattn_context *ctx, const clattn_attention_desc *desc,
                                          clattn_tile *tiles, int32_t max, int32_t *count)
{
    struct cla_problem p;
    clattn_tile base[BASES_MOST], list[LIST_MOST];
    if (!ctx)
        return CLATTN_ERR_INVALID_ARGUMENT;
    if (!count || max < 0 || (max > 0 && !tiles))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "count is %s, max is %d, tiles is %s", count ? "set" : "NULL", (int)max,
                        tiles ? "set" : "NULL");
    *count = 0;
    clattn_status st = cla_problem_from_desc(desc, &ctx->log, &p);
    if (st != CLATTN_OK)
        return st;
    if (p.tile.kernel || !cla_algo_has_tiles(p.algo))
        return cla_fail(&ctx->log, CLATTN_ERR_INVALID_ARGUMENT,
                        "tile.kernel is %d, not 0, or algo is %d, which is none with tiles",
                        (int)p.tile.kernel, (int)p.algo);
    struct cla_ranking *ranking = malloc(sizeof *ranking);
    if (!ranking)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory to plan");
    cla_plan_rank(&p, &ctx->caps, ranking);
    const int n = cla_tile_near(&p, &ctx->caps, base, bases_of(ranking, base), list, LIST_MOST);
    free(ranking);
    *count = n < LIST_MOST ? n : LIST_MOST;
    if (max > 0)
        memcpy(tiles, list, (size_t)(max < *count ? max : *count) * sizeof *tiles);
    return CLATTN_OK;
}
