// SPDX-License-Identifier: Apache-2.0
#include <libsmartcols.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/dtype.h"
#include "lib/output.h"

enum {
    COL_DEVICE, COL_CASE, COL_SHAPE, COL_CAUSAL, COL_MASK, COL_TYPES, COL_FEATURES, COL_ALGO,
    COL_KERNEL, COL_TILE, COL_MS, COL_QUARTILES, COL_MIN, COL_RUNS, COL_RATE, COL_PEAK, COL_PERCENT,
    COL_PAIRED, COL_READ, COL_GBS, COL_MB, COL_WORKSPACE, COL_ERROR, COLUMNS
};

static const struct tool_column columns[COLUMNS] = {
    [COL_DEVICE] = {"DEVICE", true, false}, [COL_CASE] = {"CASE", false, false},
    [COL_SHAPE] = {"SHAPE", false, false}, [COL_CAUSAL] = {"CAUSAL", false, false},
    [COL_MASK] = {"MASK", false, false}, [COL_TYPES] = {"TYPES", false, false},
    [COL_FEATURES] = {"FEATURES", false, true}, [COL_ALGO] = {"ALGORITHM", false, false},
    [COL_KERNEL] = {"KERNEL", false, false}, [COL_TILE] = {"TILE", false, false},
    [COL_MS] = {"MS", true, false}, [COL_QUARTILES] = {"QUARTILES", true, false},
    [COL_MIN] = {"MIN MS", true, false}, [COL_RUNS] = {"RUNS", true, false},
    [COL_RATE] = {"GFLOP/S", true, false}, [COL_PEAK] = {"PEAK", true, false},
    [COL_PERCENT] = {"% OF PEAK", true, false}, [COL_PAIRED] = {"% PAIRED", true, false},
    [COL_READ] = {"% OF READ", true, false},
    [COL_GBS] = {"GB/S", true, false}, [COL_MB] = {"MB", true, false},
    [COL_WORKSPACE] = {"WORKSPACE MB", true, false},
    [COL_ERROR] = {"MAX ERROR", true, false}};

struct bench_report {
    const struct bench_options *opt;
    struct libscols_table *table; // NULL with JSON and CSV
    bool shown[COLUMNS];
    bool heading_done; // of CSV
    const struct bench_row *row; // whose lines are being added
    size_t best_line;
    double best_ms;
    int results, lines, lines_of_row;
    char **refused; // lines below the table
    int refusals;
};

// Those that have no column of their own.
static void features_text(const struct tool_problem *p, char *text, size_t size)
{
    struct tool_problem other = *p;

    other.causal = other.mask = false;
    tool_features_text(&other, text, size);
}

static bool has_features(const struct tool_problem *p)
{
    char text[128];

    features_text(p, text, sizeof text);
    return strcmp(text, "none") != 0;
}

struct bench_report *bench_report_create(const struct bench_options *opt)
{
    struct bench_report *report = calloc(1, sizeof *report);
    struct tool_column used[COLUMNS];
    int count = 0;

    if (!report)
        return NULL;
    report->opt = opt;
    for (int i = 0; i < COLUMNS; i++)
        report->shown[i] = i > COL_CASE && (i < COL_MASK || i > COL_FEATURES);
    report->shown[COL_DEVICE] = opt->devices > 1;
    report->shown[COL_READ] = false;
    for (int i = 0; i < opt->rows; i++) {
        report->shown[COL_CASE] = report->shown[COL_CASE] || opt->row[i].name[0];
        const struct tool_problem *p = &opt->row[i].p;
        report->shown[COL_READ] = report->shown[COL_READ] || bench_read_bytes(p) > 0;
        report->shown[COL_MASK] = report->shown[COL_MASK] || p->mask;
        report->shown[COL_TYPES] = report->shown[COL_TYPES] || p->dtype_q || p->dtype_kv;
        report->shown[COL_FEATURES] = report->shown[COL_FEATURES] || has_features(p);
    }
    for (int i = 0; i < COLUMNS; i++) {
        if (report->shown[i])
            used[count++] = columns[i];
    }
    if (!opt->json && !opt->csv)
        report->table = tool_table_create(used, count, true);
    return report;
}

static double percent(const struct bench_result *r)
{
    return r->peak_gflops > 0 ? 100.0 * r->gflops / r->peak_gflops : 0;
}

static double gbytes_per_s(const struct bench_result *r)
{
    return r->ms > 0 ? 1e-6 * r->bytes / r->ms : 0;
}

// ---- table -------------------------------------------------------------------------------------

// Of several devices and algorithms of attention the fastest one's line stands out.
static void mark_best(struct bench_report *report)
{
    if (report->table && report->lines_of_row > 1) {
        struct libscols_line *line = scols_table_get_line(report->table, report->best_line);
        if (line)
            scols_line_set_color(line, "green");
    }
    report->lines_of_row = 0;
}

static void device_text(const struct tool_session *s, char *text, size_t size)
{
    if (s->device.index < 0)
        snprintf(text, size, "[cpu]");
    else
        snprintf(text, size, "[%d]", (int)s->device.index);
}

// Softmax has no tiles, and its operations are not counted.
static void blank_of_softmax(char text[COLUMNS][96])
{
    static const int blank[] = {COL_CAUSAL, COL_MASK, COL_TYPES, COL_FEATURES, COL_TILE, COL_RATE,
                                COL_PEAK, COL_PERCENT, COL_PAIRED, COL_READ};

    for (size_t i = 0; i < sizeof blank / sizeof *blank; i++)
        snprintf(text[blank[i]], sizeof *text, "-");
}

static void note_best(struct bench_report *report, const struct bench_item *item, double ms)
{
    if (item->row != report->row)
        mark_best(report);
    report->row = item->row;
    if (!item->algo->softmax) {
        if (report->lines_of_row == 0 || ms < report->best_ms) {
            report->best_ms = ms;
            report->best_line = (size_t)report->lines;
        }
        report->lines_of_row++;
    }
    report->lines++;
}

static void add_line(struct bench_report *report, const struct tool_session *s,
                     const struct bench_item *item, const clattn_plan_info *info,
                     const struct bench_result *r)
{
    const struct bench_row *row = item->row;
    char text[COLUMNS][96];
    const char *cells[COLUMNS];
    int count = 0;

    device_text(s, text[COL_DEVICE], sizeof *text);
    snprintf(text[COL_CASE], sizeof *text, "%s", row->name[0] ? row->name : "-");
    bench_item_text(item, text[COL_SHAPE], sizeof *text);
    snprintf(text[COL_CAUSAL], sizeof *text, "%s", row->p.causal ? "yes" : "no");
    snprintf(text[COL_MASK], sizeof *text, "%s", row->p.mask ? "yes" : "no");
    tool_dtypes_text(&row->p, text[COL_TYPES], sizeof *text);
    features_text(&row->p, text[COL_FEATURES], sizeof *text);
    snprintf(text[COL_ALGO], sizeof *text, "%s", info->algo_name);
    snprintf(text[COL_KERNEL], sizeof *text, "%s", info->kernel_name[0] ? info->kernel_name : "-");
    snprintf(text[COL_TILE], sizeof *text, "%dx%d", (int)info->tile_q, (int)info->tile_k);
    snprintf(text[COL_MS], sizeof *text, "%.3f", r->ms);
    snprintf(text[COL_QUARTILES], sizeof *text, "%.3f..%.3f", r->q1_ms, r->q3_ms);
    snprintf(text[COL_MIN], sizeof *text, "%.3f", r->min_ms);
    snprintf(text[COL_RUNS], sizeof *text, "%zu", r->runs);
    snprintf(text[COL_RATE], sizeof *text, "%.1f", r->gflops);
    snprintf(text[COL_PEAK], sizeof *text, "%.1f", r->peak_gflops);
    snprintf(text[COL_PERCENT], sizeof *text, "%.1f", percent(r));
    snprintf(text[COL_PAIRED], sizeof *text, "%.1f", r->percent_paired);
    snprintf(text[COL_READ], sizeof *text, r->percent_read > 0 ? "%.1f" : "-", r->percent_read);
    snprintf(text[COL_GBS], sizeof *text, "%.2f", gbytes_per_s(r));
    snprintf(text[COL_MB], sizeof *text, "%.2f", 1e-6 * r->bytes);
    snprintf(text[COL_WORKSPACE], sizeof *text, "%.2f", 1e-6 * (double)r->workspace);
    snprintf(text[COL_ERROR], sizeof *text, "%.2g", r->max_error);
    if (item->algo->softmax)
        blank_of_softmax(text);
    for (int i = 0; i < COLUMNS; i++) {
        if (report->shown[i])
            cells[count++] = text[i];
    }
    tool_table_row(report->table, cells, count);
    note_best(report, item, r->ms);
}

// Kept until the table is printed; one that finds no memory is printed at once.
static void keep_refusal(struct bench_report *report, const char *line)
{
    char **more = realloc(report->refused, (size_t)(report->refusals + 1) * sizeof *more);
    char *copy = strdup(line);

    if (more)
        report->refused = more;
    if (more && copy) {
        report->refused[report->refusals++] = copy;
    } else {
        puts(line);
        free(copy);
    }
}

// ---- JSON and CSV ------------------------------------------------------------------------------

json_t *bench_json_item(const struct tool_session *s, const struct bench_item *item,
                        const char *status)
{
    const struct tool_problem *p = &item->p;
    const int32_t extents[] = {p->batch, p->heads_q, p->heads_kv, p->len_q, p->len_kv, p->dim_qk,
                               p->dim_v};
    json_t *o = json_object(), *shape = json_array();

    if (item->algo->softmax) {
        json_array_append_new(shape, json_integer(item->row->softmax_rows));
        json_array_append_new(shape, json_integer(item->row->softmax_len));
    }
    for (size_t i = 0; !item->algo->softmax && i < sizeof extents / sizeof *extents; i++)
        json_array_append_new(shape, json_integer(extents[i]));
    json_object_set_new(o, "device", tool_json_device_name(&s->device));
    json_object_set_new(o, "status", json_string(status));
    json_object_set_new(o, "operation", json_string(item->algo->softmax ? "softmax" : "attention"));
    json_object_set_new(o, "case", item->row->name[0] ? json_string(item->row->name) : json_null());
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "dtype", json_string("f32"));
    if (!item->algo->softmax)
        json_object_update_new(o, tool_json_features(p));
    return o;
}

static void print_json(const struct tool_session *s, const struct bench_item *item,
                       const clattn_plan *plan, const clattn_plan_info *info,
                       const struct bench_result *r)
{
    const struct {
        const char *key;
        double value;
        bool of_softmax;
    } numbers[] = {
        {"ms", r->ms, true}, {"q1_ms", r->q1_ms, true}, {"q3_ms", r->q3_ms, true},
        {"min_ms", r->min_ms, true}, {"max_ms", r->max_ms, true}, {"cpu_ms", r->cpu_ms, true},
        {"gflops", r->gflops, false}, {"peak_gflops", r->peak_gflops, true},
        {"percent_of_peak", percent(r), false},
        {"percent_of_peak_paired", r->percent_paired, false},
        {"gbytes_per_s", gbytes_per_s(r), true}, {"max_error", r->max_error, true},
    };
    json_t *o = bench_json_item(s, item, "ok");

    json_object_set_new(o, "runs", json_integer((json_int_t)r->runs));
    json_object_set_new(o, "bytes", json_integer((json_int_t)r->bytes));
    json_object_set_new(o, "workspace_bytes", json_integer((json_int_t)r->workspace));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].key,
                            item->algo->softmax && !numbers[i].of_softmax
                                ? json_null()
                                : tool_json_real(numbers[i].value));
    json_object_set_new(o, "percent_of_read_paired",
                        r->percent_read > 0 ? tool_json_real(r->percent_read) : json_null());
    json_object_update_new(o, tool_json_plan(plan, info));
    tool_json_print(o, true);
}

// In double quotes, which are doubled inside.
static void print_quoted(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar((unsigned char)*text < 0x20 ? '?' : *text);
    }
    putchar('"');
}

// Up to and with the column `algo`. A softmax has its rows under len_q and their length under
// len_kv.
static void print_csv_item(struct bench_report *report, const struct tool_session *s,
                           const struct bench_item *item, const char *algo)
{
    const struct tool_problem *p = &item->p;
    char text[512], features[128];

    if (!report->heading_done)
        puts("device,case,batch,heads_q,heads_kv,len_q,len_kv,dim_qk,dim_v,causal,mask,align,"
             "layout,dtype,kv_dtype,features,algo,kernel,tile_q,tile_k,ms,q1_ms,q3_ms,min_ms,"
             "max_ms,cpu_ms,runs,gflops,peak_gflops,percent_of_peak,percent_of_peak_paired,"
             "percent_of_read_paired,bytes,gbytes_per_s,max_error,workspace_bytes,status,reason");
    report->heading_done = true;
    tool_device_text(&s->device, text, sizeof text);
    print_quoted(text);
    printf(",%s,", item->row->name);
    if (item->algo->softmax)
        printf(",,,%lld,%lld,,,,,,,f32,,,", (long long)item->row->softmax_rows,
               (long long)item->row->softmax_len);
    else
        printf("%d,%d,%d,%d,%d,%d,%d,%d,%d,%s,%s,%s,%s,", (int)p->batch, (int)p->heads_q,
               (int)p->heads_kv, (int)p->len_q, (int)p->len_kv, (int)p->dim_qk, (int)p->dim_v,
               (int)p->causal, (int)p->mask, tool_align_words[p->align],
               tool_layout_words[p->layout], tool_dtype_words[p->dtype_q],
               tool_dtype_words[p->dtype_kv]);
    features_text(p, features, sizeof features);
    if (!item->algo->softmax) {
        print_quoted(features);
        putchar(',');
    }
    printf("%s,", algo);
}

static void print_csv(struct bench_report *report, const struct tool_session *s,
                      const struct bench_item *item, const clattn_plan_info *info,
                      const struct bench_result *r)
{
    print_csv_item(report, s, item, info->algo_name);
    printf("%s,%d,%d,", info->kernel_name, (int)info->tile_q, (int)info->tile_k);
    printf("%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%zu,", r->ms, r->q1_ms, r->q3_ms, r->min_ms, r->max_ms,
           r->cpu_ms, r->runs);
    if (item->algo->softmax)
        printf(",%.6g,,,,", r->peak_gflops);
    else
        printf("%.6g,%.6g,%.6g,%.6g,", r->gflops, r->peak_gflops, percent(r), r->percent_paired);
    if (!item->algo->softmax && r->percent_read > 0)
        printf("%.6g", r->percent_read);
    if (!item->algo->softmax)
        putchar(',');
    printf("%.0f,%.6g,%.3g,%zu,ok,\n", r->bytes, gbytes_per_s(r), r->max_error, r->workspace);
    fflush(stdout);
}

// ---- all ---------------------------------------------------------------------------------------

void bench_report_add(struct bench_report *report, const struct tool_session *s,
                      const struct bench_item *item, const clattn_plan *plan,
                      const clattn_plan_info *info, const struct bench_result *r)
{
    report->results++;
    if (report->opt->json)
        print_json(s, item, plan, info, r);
    else if (report->opt->csv)
        print_csv(report, s, item, info, r);
    else
        add_line(report, s, item, info, r);
}

void bench_report_refuse(struct bench_report *report, const struct tool_session *s,
                         const struct bench_item *item, const char *reason)
{
    char device[16] = "", shape[96], line[1024];

    if (report->opt->json) {
        json_t *o = bench_json_item(s, item, "refused");
        json_object_set_new(o, "algo", json_string(item->algo->name));
        json_object_set_new(o, "reason", tool_json_text(reason));
        tool_json_print(o, true);
    } else if (report->opt->csv) {
        print_csv_item(report, s, item, item->algo->name);
        printf(",,,,,,,,,,,,,,,,,,,refused,");
        print_quoted(reason);
        putchar('\n');
        fflush(stdout);
    } else {
        bench_item_text(item, shape, sizeof shape);
        if (report->opt->devices > 1)
            device_text(s, device, sizeof device);
        snprintf(line, sizeof line, "refused %s%s%s %s: %s", device, device[0] ? " " : "", shape,
                 item->algo->name, reason);
        keep_refusal(report, line);
    }
}

// What a narrow terminal has no room for.
static void print_table(struct libscols_table *table)
{
    static const char *const least[] = {
        "MIN MS", "RUNS", "WORKSPACE MB", "QUARTILES", "GB/S", "MB", "PEAK", "% OF PEAK", "TILE",
        "CAUSAL", "MASK", "KERNEL", "% OF READ", "TYPES", NULL};

    tool_table_print_fitted(table, least, "--csv and --json");
}

int bench_report_finish(struct bench_report *report, const struct tool_session *sessions,
                        int count)
{
    const int results = report->results;
    char text[512];

    mark_best(report);
    if (report->lines) {
        for (int i = 0; i < count; i++) {
            tool_device_text(&sessions[i].device, text, sizeof text);
            printf("device  %s\n", text);
        }
        print_table(report->table);
    } else {
        tool_table_free(report->table);
    }
    for (int i = 0; i < report->refusals; i++) {
        tool_print_wrapped(report->refused[i], 2);
        free(report->refused[i]);
    }
    free(report->refused);
    free(report);
    return results;
}
