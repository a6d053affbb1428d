// SPDX-License-Identifier: Apache-2.0
// Draws time and memory against length by gnuplot, a process of its own.
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "lib/outfile.h"
#include "lib/say.h"
#include "lib/shape.h"

extern char **environ;

struct line {
    char name[64];
    int points;
    struct {
        double length, ms, bytes, workspace;
    } point[BENCH_ROWS_MAX];
};

struct bench_plot {
    const struct bench_options *opt;
    struct tool_outfile out;
    const char *terminal; // gnuplot's words for the kind of file
    struct line *line[BENCH_ALGOS_MAX * BENCH_DEVICES_MAX];
    int lines;
    bool no_memory;
};

// ---- gnuplot -----------------------------------------------------------------------------------

// Runs gnuplot with the script (NULL = its version) and its output in `to`. Returns its exit
// status, or -1 where it cannot be started, with errno.
static int run_gnuplot(FILE *script, int to)
{
    char *const version[] = {"gnuplot", "--version", NULL}, *const plain[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int status = 0;

    posix_spawn_file_actions_init(&actions);
    if (script)
        posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    if (to >= 0)
        posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
    else
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int code =
        posix_spawnp(&child, "gnuplot", &actions, NULL, script ? plain : version, environ);
    posix_spawn_file_actions_destroy(&actions);
    errno = code;
    if (code)
        return -1;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int bench_plot_create(const struct bench_options *opt, struct bench_plot **out)
{
    const char *dot = opt->plot ? strrchr(opt->plot, '.') : NULL;
    char why[256];

    *out = NULL;
    if (!opt->plot)
        return 0;
    const bool svg = dot && strcasecmp(dot, ".svg") == 0;
    if (!svg && !(dot && strcasecmp(dot, ".png") == 0))
        return tool_fail(TOOL_USE, "option --plot: %s ends neither in .svg nor in .png", opt->plot);
    if (run_gnuplot(NULL, -1) != 0)
        return tool_fail(TOOL_USE, "option --plot: gnuplot cannot be started; it draws the plot "
                                   "(package gnuplot-nox on Debian)");
    struct bench_plot *plot = calloc(1, sizeof *plot);
    if (!plot)
        return tool_fail(TOOL_DEVICE, "no memory for a plot");
    plot->opt = opt;
    plot->terminal = svg ? "svg size 1200,540 dynamic" : "pngcairo size 1200,540";
    if (!tool_outfile_check(&plot->out, opt->plot, why, sizeof why)) {
        free(plot);
        return tool_fail(TOOL_USE, "option --plot %s: %s", opt->plot, why);
    }
    *out = plot;
    return 0;
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
    if (plot->opt->devices > 1 && s->device.index >= 0)
        snprintf(name, sizeof name, "%s [%d]", item->algo->name, (int)s->device.index);
    else
        snprintf(name, sizeof name, "%s%s", item->algo->name,
                 plot->opt->devices > 1 ? " [cpu]" : "");
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
        fprintf(to, "%s $line%d using 1:%d with linespoints linecolor %d pointtype %d dashtype %d "
                    "title '%s%s' noenhanced",
                i || workspace ? "," : "plot", i, column, i + 1, i + 1, workspace ? 2 : 1,
                plot->line[i]->name, workspace ? ", workspace" : "");
    }
}

static void write_script(const struct bench_plot *plot, FILE *to)
{
    const struct bench_row *row = &plot->opt->row[0];
    char shape[96];

    tool_shape_text(&row->p, shape, sizeof shape);
    write_points(plot, to);
    fprintf(to, "set terminal %s\nset logscale xy\nset grid\nset xlabel '%s' noenhanced\n"
                "set key outside bottom center horizontal\nset format x '%%.0f'\n"
                "set multiplot layout 1,2 title 'clattn-bench, %s%s, with %s from the axis' "
                "noenhanced\n",
            plot->terminal, plot->opt->plot_key, shape, row->p.causal ? ", causal" : "",
            plot->opt->plot_key);
    fprintf(to, "set ylabel 'ms'\nset title 'time'\n");
    write_lines(plot, to, 2, false);
    fprintf(to, "\nset ylabel 'bytes'\nset format y '10^{%%L}'\n"
                "set title 'bytes moved, and workspace (dashed)'\n");
    write_lines(plot, to, 3, false);
    write_lines(plot, to, 4, true);
    fprintf(to, "\nunset multiplot\n");
}

// Whether the picture has the end that SVG and PNG have.
static bool ends_well(int file)
{
    char end[24] = "";
    const off_t size = lseek(file, 0, SEEK_END);
    const off_t from = size > (off_t)sizeof end ? size - (off_t)sizeof end : 0;
    const ssize_t n = pread(file, end, sizeof end, from);

    if (n < 0) // what can't be read back, a pipe, can't be judged
        return true;
    for (ssize_t i = 0; i + 4 <= n; i++) {
        if (memcmp(end + i, "IEND", 4) == 0 || (i + 6 <= n && memcmp(end + i, "</svg>", 6) == 0))
            return true;
    }
    return false;
}

static int draw(struct bench_plot *plot)
{
    char why[256];
    FILE *script = tmpfile();

    if (!script)
        return tool_fail(TOOL_DEVICE, "option --plot: no temporary file: %s", strerror(errno));
    write_script(plot, script);
    if (fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0) {
        fclose(script);
        return tool_fail(TOOL_DEVICE, "option --plot: no temporary file: %s", strerror(errno));
    }
    tool_outfile_hold_signals();
    int code = 0;
    const int to = tool_outfile_open(&plot->out, why, sizeof why);
    if (to < 0) {
        code = tool_fail(TOOL_USE, "option --plot %s: %s", plot->opt->plot, why);
    } else {
        const int status = run_gnuplot(script, to);
        const bool is_whole = ends_well(to);
        close(to);
        if (status != 0)
            code = tool_fail(TOOL_DEVICE, "option --plot: gnuplot failed (exit status %d)", status);
        else if (!is_whole) // gnuplot does not notice a full disk
            code = tool_fail(TOOL_DEVICE, "option --plot %s: gnuplot left no whole picture (is the "
                                          "disk full?)", plot->opt->plot);
        else if (!tool_outfile_commit(&plot->out, why, sizeof why))
            code = tool_fail(TOOL_USE, "option --plot %s: %s", plot->opt->plot, why);
    }
    tool_outfile_discard(&plot->out);
    tool_outfile_release_signals();
    fclose(script);
    return code;
}

int bench_plot_finish(struct bench_plot *plot, int code)
{
    if (!plot)
        return code;
    if (!code && plot->no_memory)
        code = tool_fail(TOOL_DEVICE, "no memory for a plot");
    else if (!code && plot->lines == 0)
        code = tool_fail(TOOL_DEVICE, "option --plot: nothing was timed");
    else if (!code)
        code = draw(plot);
    tool_outfile_discard(&plot->out);
    for (int i = 0; i < plot->lines; i++)
        free(plot->line[i]);
    free(plot);
    return code;
}
