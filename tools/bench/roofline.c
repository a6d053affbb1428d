// SPDX-License-Identifier: Apache-2.0
// Draws what was reached beside what the device allows: the multiply-add peak, and below it the
// speed of memory times the operations for each byte.
#define CLATTN_EXPERIMENTAL
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/picture.h"
#include "lib/shape.h"

enum { POINTS_MAX = 4096 };

// What a device allows. Of several measurements the largest counts.
struct roof {
    int index; // of the device
    char text[64];
    double gflops, gbytes;
};

struct point {
    char line[64]; // algorithm, and the device where there are several
    int roof;
    double intensity, gflops;
};

struct bench_roofline {
    const struct bench_options *opt;
    struct bench_picture picture;
    char devices[256]; // for the title
    struct roof roof[BENCH_DEVICES_MAX + 1];
    int roofs, points;
    struct point point[POINTS_MAX];
};

int bench_roofline_create(const struct bench_options *opt, struct bench_roofline **out)
{
    *out = NULL;
    if (!opt->roofline)
        return 0;
    struct bench_roofline *r = calloc(1, sizeof *r);
    if (!r)
        return tool_fail(TOOL_DEVICE, "no memory for a plot");
    r->opt = opt;
    const int code = bench_picture_check(&r->picture, "--roofline", opt->roofline);
    if (code)
        free(r);
    else
        *out = r;
    return code;
}

// ---- points ------------------------------------------------------------------------------------

// More bytes than caches hold, and no more than a small device has to spare.
static size_t read_bytes(const clattn_device_info *d)
{
    const size_t mib = 1u << 20;
    size_t bytes = 4 * d->cache_bytes > 128 * mib ? 4 * d->cache_bytes : 128 * mib;

    if (d->max_alloc_bytes && bytes > d->max_alloc_bytes / 2)
        bytes = d->max_alloc_bytes / 2;
    return bytes < 512 * mib ? bytes : 512 * mib;
}

// The roof of the device that does the work, measured where it is new.
static int roof_of(struct bench_roofline *r, struct tool_session *on)
{
    double now = 0;
    int n = 0;

    while (n < r->roofs && r->roof[n].index != on->device.index)
        n++;
    struct roof *roof = &r->roof[n];
    if (n < r->roofs || n == BENCH_DEVICES_MAX + 1)
        return n;
    r->roofs++;
    *roof = (struct roof){.index = on->device.index};
    snprintf(roof->text, sizeof roof->text, "%.60s", on->device.name);
    for (int i = 0; i < 3; i++) {
        if (clattn_context_measure(on->ctx, CLATTN_MEASURE_READ, read_bytes(&on->device), &now) ==
            CLATTN_OK)
            roof->gbytes = fmax(roof->gbytes, now);
    }
    return n;
}

void bench_roofline_add(struct bench_roofline *r, struct tool_session *s, struct tool_session *on,
                        const struct bench_item *item, const char *taken,
                        const struct bench_result *result)
{
    if (!r || r->points == POINTS_MAX || !(result->bytes > 0) || !(result->gflops > 0))
        return;
    struct point *p = &r->point[r->points++];
    p->roof = roof_of(r, on);
    p->gflops = result->gflops;
    p->intensity = 1e6 * result->gflops * result->ms / result->bytes;
    bench_line_text(r->opt, s, item, p->line, sizeof p->line);
    if (item->algo->attention == CLATTN_ALGO_AUTO)
        snprintf(p->line + strlen(p->line), sizeof p->line - strlen(p->line), ": %s", taken);
    bench_add_device(r->devices, sizeof r->devices, s);
    r->roof[p->roof].gflops = fmax(r->roof[p->roof].gflops, result->peak_gflops);
}

// ---- drawing -----------------------------------------------------------------------------------

// What the axes show: all points, the ridges, and room around them.
static void ranges(const struct bench_roofline *r, double x[2], double y[2])
{
    x[0] = y[0] = INFINITY;
    x[1] = y[1] = 0;
    for (int i = 0; i < r->points; i++) {
        x[0] = fmin(x[0], r->point[i].intensity);
        x[1] = fmax(x[1], r->point[i].intensity);
        y[0] = fmin(y[0], r->point[i].gflops);
        y[1] = fmax(y[1], r->point[i].gflops);
    }
    for (int i = 0; i < r->roofs; i++) {
        const double ridge = r->roof[i].gbytes > 0 ? r->roof[i].gflops / r->roof[i].gbytes : x[0];
        x[0] = fmin(x[0], ridge);
        x[1] = fmax(x[1], ridge);
        y[1] = fmax(y[1], r->roof[i].gflops);
    }
    x[0] = exp2(floor(log2(x[0]) - 1));
    x[1] = exp2(ceil(log2(x[1]) + 1));
    y[0] = pow(10, floor(log10(y[0] / 1.5)));
    y[1] = pow(10, ceil(log10(y[1] * 1.2)));
}

static void write_title(const struct bench_roofline *r, FILE *to)
{
    const struct bench_row *row = &r->opt->row[0];
    char shape[96], features[128], types[64], text[512];

    tool_shape_text(&row->p, shape, sizeof shape);
    tool_features_text(&row->p, features, sizeof features);
    tool_dtypes_text(&row->p, types, sizeof types);
    const bool any = strcmp(features, "none") != 0;
    if (r->opt->rows == 1)
        snprintf(text, sizeof text, "attention %s, %s%s%s", shape, types, any ? ", " : "",
                 any ? features : "");
    else if (r->opt->plot_key)
        snprintf(text, sizeof text, "attention %s, %s%s%s, and %d more by --sweep %s", shape, types,
                 any ? ", " : "", any ? features : "", r->opt->rows - 1, r->opt->plot_key);
    else
        snprintf(text, sizeof text, "attention, %d problems, %s first", r->opt->rows, shape);
    fprintf(to, "set label 1 ");
    bench_picture_quote(to, r->devices);
    fprintf(to, " at graph 0.5, graph 1.11 center noenhanced\nset label 2 ");
    bench_picture_quote(to, text);
    fprintf(to, " at graph 0.5, graph 1.04 center noenhanced\n");
}

// Of the legend, each on a line of its own.
static int entries(const struct bench_roofline *r)
{
    int n = r->roofs;

    for (int i = 0; i < r->points; i++) {
        bool is_new = true;
        for (int k = 0; k < i; k++)
            is_new = is_new && strcmp(r->point[k].line, r->point[i].line) != 0;
        n += is_new;
    }
    return n;
}

// In the legend a line of one point has its figures.
static void write_name(const struct bench_roofline *r, const struct point *p, FILE *to)
{
    const double peak = r->roof[p->roof].gflops;
    char text[160];
    int points = 0;

    for (int i = 0; i < r->points; i++)
        points += strcmp(r->point[i].line, p->line) == 0;
    if (points == 1 && peak > 0)
        snprintf(text, sizeof text, "%s, %.3g GFLOP/s, %.3g %% of the peak", p->line, p->gflops,
                 100 * p->gflops / peak);
    else
        snprintf(text, sizeof text, "%s", p->line);
    bench_picture_quote(to, text);
    fprintf(to, " noenhanced");
}

// Points of one line, from which gnuplot makes one colour.
static void write_lines(const struct bench_roofline *r, FILE *to, bool data)
{
    int line = 0;

    for (int i = 0; i < r->points; i++) {
        const struct point *p = &r->point[i];
        bool is_new = true;
        for (int k = 0; k < i; k++)
            is_new = is_new && strcmp(r->point[k].line, p->line) != 0;
        if (!is_new)
            continue;
        line++;
        if (!data) {
            fprintf(to, ", $points%d using 1:2 with linespoints linetype %d linewidth 1 pointsize "
                        "1.4 title ", line, line);
            write_name(r, p, to);
            continue;
        }
        fprintf(to, "$points%d << END\n", line);
        for (int k = i; k < r->points; k++) {
            if (strcmp(r->point[k].line, p->line) == 0)
                fprintf(to, "%.6g %.6g\n", r->point[k].intensity, r->point[k].gflops);
        }
        fprintf(to, "END\n");
    }
}

static void write_roofs(const struct bench_roofline *r, FILE *to)
{
    for (int i = 0; i < r->roofs; i++) {
        const struct roof *roof = &r->roof[i];
        char text[192];
        if (roof->gbytes > 0)
            snprintf(text, sizeof text, "roof of %s: %.3g GFLOP/s, %.3g GB/s", roof->text,
                     roof->gflops, roof->gbytes);
        else
            snprintf(text, sizeof text, "roof of %s: %.3g GFLOP/s", roof->text, roof->gflops);
        fprintf(to, "%s(x * %.6g < %.6g ? x * %.6g : %.6g) with lines linecolor '#222222' "
                    "linewidth 2.5 dashtype %d title ", i ? ", " : "plot ",
                roof->gbytes > 0 ? roof->gbytes : 1e30, roof->gflops,
                roof->gbytes > 0 ? roof->gbytes : 1e30, roof->gflops, i + 1);
        bench_picture_quote(to, text);
        fprintf(to, " noenhanced");
    }
}

static void write_script(const void *user, FILE *to)
{
    const struct bench_roofline *r = user;
    double x[2], y[2];

    ranges(r, x, y);
    write_lines(r, to, true);
    write_title(r, to);
    fprintf(to, "set logscale x 2\nset logscale y 10\nset xrange [%.6g:%.6g]\n"
                "set yrange [%.6g:%.6g]\nset format x '%%g'\nset format y '%%g'\n"
                "set samples 800\nset tmargin 5\n"
                "set xlabel 'arithmetic intensity, FLOP for each byte moved'\n"
                "set ylabel 'speed, GFLOP/s'\n"
                "set key below vertical maxrows %d left reverse Left samplen 2 spacing 1.15 "
                "height 0.8\n",
            x[0], x[1], y[0], y[1], entries(r));
    write_roofs(r, to);
    write_lines(r, to, false);
    fprintf(to, "\n");
}

int bench_roofline_finish(struct bench_roofline *r, int code)
{
    if (!r)
        return code;
    if (!code && r->points == 0)
        code = tool_fail(TOOL_USE, "option --roofline: nothing was timed that has GFLOP/s");
    else if (!code)
        code = bench_picture_draw(&r->picture, 960, 610 + 26 * entries(r), write_script, r);
    bench_picture_free(&r->picture);
    free(r);
    return code;
}
