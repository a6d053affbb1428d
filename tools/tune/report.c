// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>
#include <libsmartcols.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/output.h"
#include "lib/progress.h"
#include "tune/tune.h"

void tune_tile_text(const clattn_tile *t, char *text, size_t size)
{
    const char *kernel = t->kernel >= 0 && t->kernel <= CLATTN_KERNEL_SUBGROUP
                             ? tool_kernel_words[t->kernel] : "?";

    if (t->kernel != CLATTN_KERNEL_VECTOR)
        snprintf(text, size, "%s %dx%d, %dx%d items, %d channels", kernel, (int)t->tile_q,
                 (int)t->tile_k, (int)t->items_q, (int)t->items_k, (int)t->chunk_d);
    else if (t->vecs_q == 0)
        snprintf(text, size, "%s %dx%d, %d channels a vector", kernel, (int)t->tile_q,
                 (int)t->tile_k, (int)t->width);
    else
        snprintf(text, size, "%s %dx%d, %dx%d rows, blocks %dx%d", kernel, (int)t->tile_q,
                 (int)t->tile_k, (int)t->vecs_q, (int)t->width, (int)t->block_k, (int)t->block_d);
}

// ---- progress ----------------------------------------------------------------------------------

// From the time that candidates took so far. Items to come are taken to have as many as this one.
static double seconds_left(const struct tune_clock *clock, const struct tune_item *item,
                           int candidate)
{
    const double passed = 1e-3 * (tool_now_ms() - clock->start_ms);
    const double each = passed / clock->done;
    const double to_do = item->tiles - candidate + (clock->items - clock->item - 1.0) * item->tiles;
    const double left = to_do * each, budget = 1e-3 * clock->budget_ms - passed;

    return clock->budget_ms > 0 && budget < left ? (budget > 0 ? budget : 0) : left;
}

void tune_progress(const struct tune_clock *clock, const struct tune_item *item, int candidate)
{
    char text[128];

    if (!item) {
        tool_progress_clear();
        return;
    }
    snprintf(text, sizeof text, "%.60s: tile %d of %d", item->name, candidate + 1, item->tiles);
    tool_progress(clock->item + 1, clock->items, text,
                  clock->done > 0 ? seconds_left(clock, item, candidate) : 0);
}

// ---- results -----------------------------------------------------------------------------------

static json_t *json_tile(const clattn_tile *t)
{
    const struct {
        const char *name;
        int32_t value;
    } f[] = {{"tile_q", t->tile_q},   {"tile_k", t->tile_k},   {"items_q", t->items_q},
             {"items_k", t->items_k}, {"chunk_d", t->chunk_d}, {"width", t->width},
             {"vecs_q", t->vecs_q},   {"block_k", t->block_k}, {"block_d", t->block_d}};
    json_t *o = json_object();

    json_object_set_new(o, "kernel", json_string(tool_kernel_words[t->kernel]));
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        if (f[i].value)
            json_object_set_new(o, f[i].name, json_integer(f[i].value));
    return o;
}

static const char *const state_words[] = {"candidate", "measured", "wrong", "failed"};

static void print_json(const struct tool_session *s, const struct tune_item *item,
                       const char *file)
{
    const struct tool_problem *p = &item->p;
    const int32_t shape[7] = {p->batch, p->heads_q, p->heads_kv, p->len_q, p->len_kv, p->dim_qk,
                              p->dim_v};
    json_t *o = json_object(), *extents = json_array(), *list = json_array();
    bool has_ratio = item->resumed;

    for (int i = 0; i < 7; i++)
        json_array_append_new(extents, json_integer(shape[i]));
    for (int i = 0; i < item->tiles; i++) {
        const struct tune_candidate *c = &item->tile[i];
        json_t *one = json_tile(&c->tile);
        json_object_set_new(one, "status", json_string(state_words[c->state]));
        json_object_set_new(one, "planner", json_boolean(i == 0));
        has_ratio = has_ratio || c->state == TUNE_MEASURED;
        if (c->state == TUNE_MEASURED) {
            json_object_set_new(one, "max_error", tool_json_real(c->max_error));
            json_object_set_new(one, "ms", tool_json_real(c->ms));
            json_object_set_new(one, "planner_ms", tool_json_real(c->planner_ms));
            json_object_set_new(one, "ratio", tool_json_real(c->ratio));
        }
        if (c->confirmed > 0)
            json_object_set_new(one, "confirmed", tool_json_real(c->confirmed));
        if (c->why[0])
            json_object_set_new(one, "why", tool_json_text(c->why));
        json_array_append_new(list, one);
    }
    json_object_set_new(o, "device", tool_json_device_name(&s->device));
    json_object_set_new(o, "shape", extents);
    json_object_set_new(o, "algo", json_string(tool_algo_words[p->algo]));
    json_object_update_new(o, tool_json_features(p));
    json_object_set_new(o, "resumed", json_boolean(item->resumed));
    json_object_set_new(o, "stopped", json_boolean(item->stopped));
    json_object_set_new(o, "tile", item->best.kernel ? json_tile(&item->best) : json_null());
    json_object_set_new(o, "ratio", has_ratio ? tool_json_real(item->ratio) : json_null());
    if (item->resumed || item->written)
        json_object_set_new(o, "file", tool_json_text(file));
    json_object_set_new(o, "candidates", list);
    tool_json_print(o, true);
}

static const struct tune_item *sorted;

// The fastest first, what was not measured last.
static int by_ratio(const void *a, const void *b)
{
    const struct tune_candidate *x = &sorted->tile[*(const int *)a],
                                *y = &sorted->tile[*(const int *)b];

    if (x->ratio != y->ratio)
        return x->ratio < y->ratio ? 1 : -1;
    return *(const int *)a - *(const int *)b;
}

// Why tiles were not to be had.
static void print_reasons(const struct tune_item *item)
{
    for (int i = 0; i < item->tiles; i++) {
        char tile[96], text[320];
        if (!item->tile[i].why[0])
            continue;
        tune_tile_text(&item->tile[i].tile, tile, sizeof tile);
        snprintf(text, sizeof text, "%s: %s", tile, item->tile[i].why);
        tool_print_wrapped(text, 2);
    }
}

// Candidates that were not measured only where `all` are asked for.
static void print_table(const struct tune_item *item, bool all)
{
    static const struct tool_column columns[] = {
        {"TILE", false, false}, {"MAX ERROR", true, false}, {"MS", true, false},
        {"PLANNER MS", true, false}, {"RATIO", true, false}, {"AGAIN", true, false},
        {"NOTE", false, false}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    struct libscols_table *table = tool_table_create(columns, COLUMNS, true);
    static const char *const notes[] = {"", "", "wrong", "failed"}; // of enum tune_state
    static const char *const least[] = {"PLANNER MS", "MAX ERROR", "MS", NULL};
    int order[TUNE_TILES_MAX];
    char hidden[96];

    for (int i = 0; i < item->tiles; i++)
        order[i] = i;
    sorted = item;
    qsort(order, (size_t)item->tiles, sizeof *order, by_ratio);
    for (int i = 0; i < item->tiles; i++) {
        const struct tune_candidate *c = &item->tile[order[i]];
        char tile[96], number[5][24] = {""};
        if (c->state == TUNE_PLANNED && !all)
            continue;
        tune_tile_text(&c->tile, tile, sizeof tile);
        if (c->state == TUNE_MEASURED) {
            snprintf(number[0], sizeof number[0], "%.2g", c->max_error);
            snprintf(number[1], sizeof number[1], "%.4g", c->ms);
            snprintf(number[2], sizeof number[2], "%.4g", c->planner_ms);
            snprintf(number[3], sizeof number[3], "%.3f", c->ratio);
        }
        if (c->confirmed > 0)
            snprintf(number[4], sizeof number[4], "%.3f", c->confirmed);
        const char *note = order[i] == 0 ? "the planner's choice" : notes[c->state];
        const char *cells[COLUMNS] = {tile,      number[0], number[1], number[2],
                                      number[3], number[4], note};
        tool_table_row(table, cells, COLUMNS);
        if (order[i] == item->winner)
            tool_table_color(table, 0, "green");
    }
    tool_table_hide_empty(table);
    tool_table_fit(table, least, hidden, sizeof hidden);
    tool_table_print(table);
    print_reasons(item);
}

void tune_report(const struct tune_options *opt, const struct tool_session *s,
                 const struct tune_item *item, const char *file)
{
    char best[96];

    tune_tile_text(&item->best, best, sizeof best);
    if (opt->json) {
        print_json(s, item, file);
        return;
    }
    if (item->resumed) {
        if (item->best.kernel)
            printf("%s: measured before, x %.3f by %s\n", item->name, item->ratio, best);
        else
            printf("%s: measured before, nothing was faster\n", item->name);
        return;
    }
    printf("%s: %d tile%s\n", item->name, item->tiles, item->tiles == 1 ? "" : "s");
    if (opt->dry_run && opt->rows * opt->algos > 1)
        return; // a line for each; one alone is listed
    if (opt->dry_run || item->tile[0].state != TUNE_PLANNED)
        print_table(item, opt->dry_run);
    if (item->stopped)
        printf("stopped before the end: nothing is written of this one\n");
    else if (item->winner >= 0)
        printf("fastest: %s, x %.3f of the planner's choice\n", best, item->ratio);
    else if (!opt->dry_run)
        printf("nothing is faster than the planner's choice by more than %.0f %%, twice\n",
               100 * (tune_threshold(item) - 1));
    printf("\n");
    fflush(stdout);
}
