// SPDX-License-Identifier: Apache-2.0
// Each candidate is verified, then timed in turn with the planner's choice.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune/tune.h"

enum { CONFIRMED_MOST = 3 };

bool tune_stopped(const struct tune_clock *clock)
{
    return tune_signal ||
           (clock->budget_ms > 0 && tool_now_ms() - clock->start_ms > clock->budget_ms);
}

// The algorithm that the library takes for the problem.
static clattn_status resolve(struct tool_session *s, struct tool_problem *p)
{
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};

    clattn_status st = tool_plan_create(s, p, &plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(plan, &info);
    if (st == CLATTN_OK && !info.tile.kernel)
        st = CLATTN_ERR_UNSUPPORTED;
    p->algo = info.algo;
    clattn_plan_destroy(&plan);
    return st;
}

// At most TUNE_TILES_MAX tiles of a kernel shape, the one that the planner prefers first.
static clattn_status list_kernel(struct tool_session *s, const struct tool_problem *p, int kernel,
                                 clattn_tile tile[TUNE_TILES_MAX], int32_t *count)
{
    clattn_attention_desc desc;

    tool_desc_init(p, &desc);
    desc.kernel = kernel;
    clattn_status st = clattn_attention_list_tiles(s->ctx, &desc, tile, TUNE_TILES_MAX, count);
    if (*count > TUNE_TILES_MAX)
        *count = TUNE_TILES_MAX;
    return st == CLATTN_OK && *count == 0 ? CLATTN_ERR_UNSUPPORTED : st;
}

clattn_status tune_list(struct tool_session *s, int kernel, struct tune_item *item)
{
    clattn_tile first[TUNE_TILES_MAX], asked[TUNE_TILES_MAX], *tile = first;
    int32_t count = 0;
    clattn_status st = item->p.algo == CLATTN_ALGO_AUTO ? resolve(s, &item->p) : CLATTN_OK;

    item->winner = -1;
    item->ratio = 1;
    if (st == CLATTN_OK)
        st = list_kernel(s, &item->p, CLATTN_KERNEL_AUTO, first, &count);
    if (st == CLATTN_OK && kernel && first[0].kernel != kernel) {
        st = list_kernel(s, &item->p, kernel, asked, &count);
        tile = asked;
    }
    if (st != CLATTN_OK)
        return st;
    item->tile = calloc((size_t)count + 1, sizeof *item->tile);
    if (!item->tile)
        return CLATTN_ERR_OUT_OF_MEMORY;
    // The planner's choice stays in front, of whichever kernel it is.
    if (tile == asked)
        item->tile[item->tiles++].tile = first[0];
    for (int i = 0; i < count && item->tiles < TUNE_TILES_MAX; i++)
        item->tile[item->tiles++].tile = tile[i];
    return CLATTN_OK;
}

// ---- one candidate -----------------------------------------------------------------------------

static void fail(struct tune_candidate *c, enum tune_state state, const char *why)
{
    c->state = state;
    snprintf(c->why, sizeof c->why, "%s", why);
}

// What a candidate fails with is a line of the table; what the planner's choice, in turn with which
// it is timed, fails with would be all candidates' failure.
static void measure(struct tool_session *s, const struct tune_options *opt,
                    const struct bench_attention *planner, struct tune_candidate *c)
{
    struct bench_attention a;
    struct bench_pair pair = {.pairs = 0};
    struct tool_problem p = planner->p;

    p.tile = c->tile;
    tool_log_clear(&s->log);
    clattn_status st = bench_attention_open(s, &p, &a);
    const struct bench_work work[2] = {
        {.run = bench_attention_run, .user = planner, .gflop = planner->gflop},
        {.run = bench_attention_run, .user = &a, .gflop = a.gflop}};
    if (st == CLATTN_OK && a.over) {
        fail(c, TUNE_WRONG, "a wrong result");
        c->max_error = a.max_error;
    } else if (st == CLATTN_OK) {
        st = bench_time_pair(work, opt->runs, &pair);
    }
    // On a CPU the threads of a driver are this process's own, and their processor time counts too:
    // what other programs do to one of the two is not taken for speed.
    const double ratio = s->device.type == CLATTN_DEVICE_CPU ? fmin(pair.speed, pair.cpu_speed)
                                                             : pair.speed;
    if (st != CLATTN_OK) {
        const char *why = tool_log_error(&s->log);
        fail(c, TUNE_FAILED, why[0] ? why : clattn_status_string(st));
    } else if (c->state == TUNE_MEASURED) {
        c->confirmed = ratio;
    } else if (c->state == TUNE_PLANNED) {
        c->state = TUNE_MEASURED;
        c->max_error = a.max_error;
        c->planner_ms = pair.ms[0];
        c->ms = pair.ms[1];
        c->ratio = ratio;
    }
    bench_attention_close(s, &a);
}

// ---- all of them -------------------------------------------------------------------------------

double tune_threshold(const struct tune_item *item)
{
    const double own = item->tile[0].ratio;

    return 1 + fmax(0.03, own > 0 ? fabs(own - 1) : 0);
}

// The fastest candidate that was measured once; -1 if none is faster than the planner's choice.
static int next_to_confirm(const struct tune_item *item)
{
    const double faster = tune_threshold(item);
    int best = -1;

    for (int i = 1; i < item->tiles; i++) {
        const struct tune_candidate *c = &item->tile[i];
        if (c->state == TUNE_MEASURED && c->confirmed == 0 && c->ratio > faster &&
            (best < 0 || c->ratio > item->tile[best].ratio))
            best = i;
    }
    return best;
}

static void name_winner(struct tune_item *item)
{
    const double faster = tune_threshold(item);

    for (int i = 1; i < item->tiles; i++) {
        const struct tune_candidate *c = &item->tile[i];
        const double ratio = fmin(c->ratio, c->confirmed);
        if (c->state == TUNE_MEASURED && ratio > faster && ratio > item->ratio) {
            item->winner = i;
            item->ratio = ratio;
            item->best = c->tile;
        }
    }
}

clattn_status tune_measure(struct tool_session *s, const struct tune_options *opt,
                           struct tune_clock *clock, struct tune_item *item)
{
    struct bench_attention planner;
    clattn_status st = bench_attention_open(s, &item->p, &planner);

    if (st == CLATTN_OK && planner.over)
        st = CLATTN_ERR_SELF_TEST;
    for (int i = 0; st == CLATTN_OK && i < item->tiles && !item->stopped; i++) {
        tune_progress(clock, item, i);
        measure(s, opt, &planner, &item->tile[i]);
        clock->done++;
        item->stopped = tune_stopped(clock);
    }
    for (int n = 0; st == CLATTN_OK && n < CONFIRMED_MOST && !item->stopped; n++) {
        const int best = next_to_confirm(item);
        if (best < 0)
            break;
        tune_progress(clock, item, best);
        measure(s, opt, &planner, &item->tile[best]);
        item->stopped = tune_stopped(clock);
    }
    tune_progress(clock, NULL, 0);
    if (st == CLATTN_OK && !item->stopped)
        name_winner(item);
    bench_attention_close(s, &planner);
    return st;
}
