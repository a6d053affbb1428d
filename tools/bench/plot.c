// SPDX-License-Identifier: Apache-2.0
// Draws time and memory against length.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/picture.h"
#include "lib/shape.h"

struct line {
    char name[64];
    int points;
    struct {
        double length, ms, bytes, workspace;
    } point[BENCH_ROWS_MAX];
};

struct bench_plot {
    const struct bench_options *opt;
    struct bench_picture picture;
    char devices[256]; // for the title
    struct line *line[BENCH_ALGOS_MAX * BENCH_DEVICES_MAX];
    int lines;
    bool no_memory;
};

int bench_plot_create(const struct bench_options *opt, struct bench_plot **out)
{
    *out = NULL;
    if (!opt->plot)
        return 0;
    struct bench_plot *plot = calloc(1, sizeof *plot);
    if (!plot)
        return tool_fail(TOOL_DEVICE, "no memory for a plot");
    plot->opt = opt;
    const int code = bench_picture_check(&plot->picture, "--plot", opt->plot);
    if (code)
        free(plot);
    else
        *out = plot;
    return code;
}

void bench_add_device(char *devices, size_t size, const struct tool_session *s)
{
    char text[512];
    const size_t used = strlen(devices);

    tool_device_text(&s->device, text, sizeof text);
    if (!strstr(devices, text))
        snprintf(devices + used, size - used, "%s%s", used ? ", " : "", text);
}

void bench_line_text(const struct bench_options *opt, const struct tool_session *s,
                     const struct bench_item *item, char *text, size_t size)
{
    if (opt->devices > 1 && s->device.index >= 0)
        snprintf(text, size, "%s [%d]", item->algo->name, (int)s->device.index);
    else
        snprintf(text, size, "%s%s", item->algo->name, opt->devices > 1 ? " [cpu]" : "");
}

// ---- points ------------------------------------------------------------------------------------

static struct line *line_of(struct bench_plot *plot, const char *name)
{
    for (int i = 0; i < plot->lines; i++) {
        if (strcmp(plot->line[i]->name, name) == 0)
            return plot->line[i];
    }
    struct line *line = calloc(1, sizeof *line);
    if (!line) {
        plot->no_memory = true;
        return NULL;
    }
    snprintf(line->name, sizeof line->name, "%s", name);
    plot->line[plot->lines++] = line;
    return line;
}

void bench_plot_add(struct bench_plot *plot, const struct tool_session *s,
                    const struct bench_item *item, const struct bench_result *r)
{
    char name[64];

    if (!plot)
        return;
    bench_line_text(plot->opt, s, item, name, sizeof name);
    bench_add_device(plot->devices, sizeof plot->devices, s);
    struct line *line = line_of(plot, name);
    if (!line || line->points == BENCH_ROWS_MAX)
        return;
    const bool queries = strcmp(plot->opt->plot_key, "len_q") == 0;
    line->point[line->points].length = queries ? item->p.len_q : item->p.len_kv;
    line->point[line->points].ms = r->ms;
    line->point[line->points].bytes = r->bytes;
    line->point[line->points].workspace = (double)r->workspace;
    line->points++;
}

// ---- drawing -----------------------------------------------------------------------------------

// A length without a workspace has no place on a logarithmic axis.
static void write_points(const struct bench_plot *plot, FILE *to)
{
    for (int i = 0; i < plot->lines; i++) {
        const struct line *line = plot->line[i];
        fprintf(to, "$line%d << END\n", i);
        for (int n = 0; n < line->points; n++) {
            fprintf(to, "%.0f %.6g %.6g ", line->point[n].length, line->point[n].ms,
                    line->point[n].bytes);
            if (line->point[n].workspace > 0)
                fprintf(to, "%.6g\n", line->point[n].workspace);
            else
                fprintf(to, "NaN\n");
        }
        fprintf(to, "END\n");
    }
}

static bool has_workspace(const struct line *line)
{
    bool any = false;

    for (int n = 0; n < line->points; n++)
        any = any || line->point[n].workspace > 0;
    return any;
}

// A line for each algorithm; `workspace` for that one, dashed.
static void write_lines(const struct bench_plot *plot, FILE *to, int column, bool workspace)
{
    for (int i = 0; i < plot->lines; i++) {
        if (workspace && !has_workspace(plot->line[i]))
            continue;
        fprintf(to, "%s $line%d using 1:%d with linespoints linetype %d dashtype %d "
                    "title '%s%s' noenhanced",
                i || workspace ? "," : "plot", i, column, i + 1, workspace ? 2 : 1,
                plot->line[i]->name, workspace ? ", workspace" : "");
    }
}

// At the lengths themselves, as far as there is room.
static void write_ticks(const struct line *line, FILE *to)
{
    const int step = (line->points + 9) / 10;

    fprintf(to, "set xtics (");
    for (int n = 0; n < line->points; n += step)
        fprintf(to, "%s%.0f", n ? ", " : "", line->point[n].length);
    fprintf(to, ")\nset xrange [%.6g:%.6g]\n", line->point[0].length / 1.15,
            line->point[line->points - 1].length * 1.15);
}

// The swept length is N.
static void length_text(bool swept, int32_t length, char text[16])
{
    if (swept)
        snprintf(text, 16, "N");
    else
        snprintf(text, 16, "%d", (int)length);
}

static void write_title(const struct bench_plot *plot, FILE *to)
{
    const struct tool_problem *p = &plot->opt->row[0].p;
    const char *key = plot->opt->plot_key;
    char len_q[16], len_kv[16], dim_v[16] = "", features[128], title[640];

    length_text(strcmp(key, "len_kv") != 0, p->len_q, len_q);
    length_text(strcmp(key, "len_q") != 0, p->len_kv, len_kv);
    if (p->dim_v != p->dim_qk)
        snprintf(dim_v, sizeof dim_v, ",%d", (int)p->dim_v);
    tool_features_text(p, features, sizeof features);
    const bool any = strcmp(features, "none") != 0;
    snprintf(title, sizeof title, "%s\nattention %d,%d,%d,%s,%s,%d%s%s%s", plot->devices,
             (int)p->batch, (int)p->heads_q, (int)p->heads_kv, len_q, len_kv, (int)p->dim_qk, dim_v,
             any ? ", " : "", any ? features : "");
    fprintf(to, "set multiplot layout 1,2 title \"");
    for (const char *c = title; *c; c++)
        fprintf(to, *c == '\n' ? "\\n" : *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fprintf(to, "\" noenhanced\n");
}

static void write_script(const void *user, FILE *to)
{
    const struct bench_plot *plot = user;
    const char *const what = strcmp(plot->opt->plot_key, "len_q") == 0    ? "queries"
                             : strcmp(plot->opt->plot_key, "len_kv") == 0 ? "keys"
                                                                          : "queries and keys";

    write_points(plot, to);
    write_ticks(plot->line[0], to);
    fprintf(to, "set logscale xy\nset xlabel '%s: number of %s, N' noenhanced\n"
                "set key below horizontal center samplen 2 spacing 1.1 height 0.8\n",
            plot->opt->plot_key, what);
    write_title(plot, to);
    fprintf(to, "set ylabel 'time of a run, ms'\nset format y '%%g'\n");
    write_lines(plot, to, 2, false);
    fprintf(to, "\nset ylabel 'bytes moved; workspace dashed'\n"
                "set format y '10^{%%L}'\n");
    write_lines(plot, to, 3, false);
    write_lines(plot, to, 4, true);
    fprintf(to, "\nunset multiplot\n");
}

int bench_plot_finish(struct bench_plot *plot, int code)
{
    if (!plot)
        return code;
    if (!code && plot->no_memory)
        code = tool_fail(TOOL_DEVICE, "no memory for a plot");
    else if (!code && plot->lines == 0)
        code = tool_fail(TOOL_USE, "option --plot: nothing was timed");
    else if (!code)
        code = bench_picture_draw(&plot->picture, 1200, 560, write_script, plot);
    bench_picture_free(&plot->picture);
    for (int i = 0; i < plot->lines; i++)
        free(plot->line[i]);
    free(plot);
    return code;
}
