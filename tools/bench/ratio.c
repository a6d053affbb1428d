// SPDX-License-Identifier: Apache-2.0
// What a feature costs: a problem with and without it, run in turn.
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/output.h"
#include "lib/progress.h"
#include "lib/say.h"

enum { COL_DEVICE, COL_SHAPE, COL_ALGO, COL_VARIANT, COL_PLAIN, COL_MS, COL_SPEED, COL_QUARTILES,
       COL_CPU, COL_WORK, COL_RATE, COL_PAIRS, COL_ERROR, COLUMNS };

struct libscols_table *bench_ratio_table(const struct bench_options *opt)
{
    static const struct tool_column columns[COLUMNS] = {
        [COL_DEVICE] = {"DEVICE", false, false},  [COL_SHAPE] = {"SHAPE", false, false},
        [COL_ALGO] = {"ALGORITHM", false, false}, [COL_VARIANT] = {"VARIANT", false, false},
        [COL_PLAIN] = {"PLAIN MS", true, false},  [COL_MS] = {"MS", true, false},
        [COL_SPEED] = {"SPEED", true, false},     [COL_QUARTILES] = {"QUARTILES", true, false},
        [COL_CPU] = {"CPU SPEED", true, false},   [COL_WORK] = {"WORK SPEED", true, false},
        [COL_RATE] = {"GFLOP/S", true, false},
        [COL_PAIRS] = {"PAIRS", true, false},     [COL_ERROR] = {"MAX ERROR", true, false}};

    return opt->json ? NULL : tool_table_create(columns, COLUMNS, true);
}

void bench_ratio_print(struct libscols_table *table)
{
    static const char *const least[] = {"PAIRS", "QUARTILES", "WORK SPEED", "GFLOP/S", "DEVICE",
                                        "MAX ERROR", "CPU SPEED", NULL};

    tool_table_print_fitted(table, least, "--json");
}

struct result {
    const struct bench_variant *variant;
    const struct bench_attention *plain, *a;
    struct bench_pair pair;
};

static double rate(const struct bench_attention *a, double ms)
{
    return ms > 0 ? a->gflop / (1e-3 * ms) : 0;
}

// The speed times the work that the variant has of the plain one's.
static double work_speed(const struct result *r)
{
    return r->plain->gflop > 0 ? r->pair.speed * r->a->gflop / r->plain->gflop : 0;
}

static void add_json(const struct tool_session *s, const struct bench_item *item,
                     const struct result *r)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"plain_ms", r->pair.ms[0]}, {"ms", r->pair.ms[1]}, {"speed", r->pair.speed},
                   {"q1_speed", r->pair.q1_speed}, {"q3_speed", r->pair.q3_speed},
                   {"cpu_speed", r->pair.cpu_speed}, {"work_speed", work_speed(r)},
                   {"plain_gflops", rate(r->plain, r->pair.ms[0])},
                   {"gflops", rate(r->a, r->pair.ms[1])}, {"max_error", r->a->max_error}};
    json_t *o = bench_json_item(s, item, "ok");

    json_object_set_new(o, "variant", json_string(r->variant->name));
    json_object_set_new(o, "pairs", json_integer((json_int_t)r->pair.pairs));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].key, tool_json_real(numbers[i].value));
    json_object_set_new(o, "plain_algo", json_string(r->plain->info.algo_name));
    json_object_set_new(o, "plain_kernel", json_string(r->plain->info.kernel_name));
    json_object_update_new(o, tool_json_plan(r->a->plan, &r->a->info));
    tool_json_print(o, true);
}

static void add_line(struct libscols_table *table, const struct tool_session *s,
                     const struct bench_item *item, const struct result *r)
{
    char text[COLUMNS][96];
    const char *cells[COLUMNS];

    if (s->device.index < 0)
        snprintf(text[COL_DEVICE], sizeof *text, "[cpu]");
    else
        snprintf(text[COL_DEVICE], sizeof *text, "[%d]", (int)s->device.index);
    bench_item_text(item, text[COL_SHAPE], sizeof *text);
    snprintf(text[COL_ALGO], sizeof *text, "%s, %s", r->a->info.algo_name,
             r->a->info.kernel_name[0] ? r->a->info.kernel_name : "-");
    snprintf(text[COL_VARIANT], sizeof *text, "%s", r->variant->name);
    snprintf(text[COL_PLAIN], sizeof *text, "%.3f", r->pair.ms[0]);
    snprintf(text[COL_MS], sizeof *text, "%.3f", r->pair.ms[1]);
    snprintf(text[COL_SPEED], sizeof *text, "%.3f", r->pair.speed);
    snprintf(text[COL_QUARTILES], sizeof *text, "%.3f..%.3f", r->pair.q1_speed, r->pair.q3_speed);
    snprintf(text[COL_CPU], sizeof *text, "%.3f", r->pair.cpu_speed);
    snprintf(text[COL_WORK], sizeof *text, "%.3f", work_speed(r));
    snprintf(text[COL_RATE], sizeof *text, "%.1f", rate(r->a, r->pair.ms[1]));
    snprintf(text[COL_PAIRS], sizeof *text, "%zu", r->pair.pairs);
    snprintf(text[COL_ERROR], sizeof *text, "%.2g", r->a->max_error);
    for (int i = 0; i < COLUMNS; i++)
        cells[i] = text[i];
    tool_table_row(table, cells, COLUMNS);
}

static void refuse(const struct bench_options *opt, struct tool_session *s,
                   const struct bench_item *item, const char *variant, clattn_status st)
{
    const char *said = tool_log_error(&s->log);
    const char *reason = said[0] ? said : clattn_status_string(st);
    char shape[96];

    tool_progress_clear();
    bench_item_text(item, shape, sizeof shape);
    if (opt->json) {
        json_t *o = bench_json_item(s, item, "refused");
        json_object_set_new(o, "variant", json_string(variant));
        json_object_set_new(o, "algo", json_string(item->algo->name));
        json_object_set_new(o, "reason", tool_json_text(reason));
        tool_json_print(o, true);
    } else {
        printf("refused %s %s %s: %s\n", shape, item->algo->name, variant, reason);
    }
}

// One variant beside the plain problem, which is open already.
static int bench_variant(struct tool_session *s, const struct bench_options *opt,
                         const struct bench_item *plain_item, const struct bench_attention *plain,
                         const struct bench_variant *variant, struct libscols_table *table,
                         int *results)
{
    struct bench_row row = *plain_item->row;
    struct bench_item item = *plain_item;
    struct bench_attention a;
    struct result r = {variant, plain, &a, {.pairs = 0}};
    char shape[96], what[192];
    int code = 0;

    bench_apply(&variant->features, &row);
    row.p.algo = plain_item->p.algo;
    row.p.kernel = plain_item->p.kernel;
    item.p = row.p;
    bench_item_text(&item, shape, sizeof shape);
    snprintf(what, sizeof what, "%s %s", shape, variant->name);
    tool_log_clear(&s->log);
    clattn_status st = bench_attention_open(s, &item.p, &a);
    const struct bench_work work[2] = {{bench_attention_run, plain, plain->gflop, 0},
                                       {bench_attention_run, &a, a.gflop, 0}};
    if (st == CLATTN_OK && !a.over)
        st = bench_time_pair(work, opt->runs, &r.pair);
    if (st == CLATTN_ERR_UNSUPPORTED) {
        refuse(opt, s, &item, variant->name, st);
    } else if (st != CLATTN_OK) {
        code = tool_library_fail(&s->log, st, what);
    } else if (a.over) {
        code = bench_wrong(what, a.over, a.max_error, &a.info);
    } else {
        ++*results;
        tool_progress_clear();
        if (opt->json)
            add_json(s, &item, &r);
        else
            add_line(table, s, &item, &r);
    }
    bench_attention_close(s, &a);
    return code;
}

int bench_ratio(struct tool_session *s, const struct bench_options *opt,
                const struct bench_item *item, struct libscols_table *table, int *results)
{
    struct bench_attention plain;
    char what[96];
    int worst = 0;

    bench_item_text(item, what, sizeof what);
    tool_log_clear(&s->log);
    clattn_status st = bench_attention_open(s, &item->p, &plain);
    if (st == CLATTN_ERR_UNSUPPORTED && opt->algos > 1)
        refuse(opt, s, item, "plain", st);
    else if (st != CLATTN_OK)
        worst = tool_library_fail(&s->log, st, what);
    else if (plain.over)
        worst = bench_wrong(what, plain.over, plain.max_error, &plain.info);
    for (int v = 0; st == CLATTN_OK && !plain.over && v < opt->variants; v++) {
        char text[192];
        snprintf(text, sizeof text, "%s, %s", what, opt->variant[v].name);
        tool_progress((item->number - 1) * opt->variants + v + 1, item->all * opt->variants, text,
                      0);
        int code = bench_variant(s, opt, item, &plain, &opt->variant[v], table, results);
        worst = code > worst ? code : worst;
    }
    bench_attention_close(s, &plain);
    return worst;
}
