// SPDX-License-Identifier: Apache-2.0
#include "bench/picture.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/say.h"

extern char **environ;

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

int bench_picture_check(struct bench_picture *picture, const char *shown, const char *path)
{
    const char *dot = strrchr(path, '.');
    char why[256];

    picture->shown = shown;
    picture->path = path;
    picture->svg = dot && strcasecmp(dot, ".svg") == 0;
    if (!picture->svg && !(dot && strcasecmp(dot, ".png") == 0))
        return tool_fail(TOOL_USE, "option %s: %s ends neither in .svg nor in .png", shown, path);
    if (run_gnuplot(NULL, -1) != 0)
        return tool_fail(TOOL_USE, "option %s: gnuplot cannot be started; it draws the plot "
                                   "(package gnuplot-nox on Debian)", shown);
    if (!tool_outfile_check(&picture->out, path, why, sizeof why))
        return tool_fail(TOOL_USE, "option %s %s: %s", shown, path, why);
    return 0;
}

void bench_picture_free(struct bench_picture *picture)
{
    tool_outfile_discard(&picture->out);
}

void bench_picture_quote(FILE *to, const char *text)
{
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', to);
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, to);
    }
    fputc('\'', to);
}

// A white ground, for viewers that are dark, and colours that most eyes tell apart.
static void write_settings(const struct bench_picture *picture, int width, int height, FILE *to)
{
    static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9",
                                         "#e69f00", "#7f3c8d", "#555555", "#b8860b", "#1b9e9e",
                                         "#a52a2a", "#000000"};
    static const int points[] = {7, 5, 9, 13, 11, 4, 6, 8, 12, 10, 2, 1};

    if (picture->svg)
        fprintf(to, "set terminal svg size %d,%d dynamic font 'Helvetica,14' "
                    "background '#ffffff'\n", width, height);
    else
        fprintf(to, "set terminal pngcairo size %d,%d font 'Helvetica,19' fontscale 1 "
                    "linewidth 1.5 pointscale 1.5 background '#ffffff'\n", width * 3 / 2,
                height * 3 / 2);
    for (size_t i = 0; i < sizeof colors / sizeof *colors; i++)
        fprintf(to, "set linetype %zu linecolor '%s' linewidth 2 pointtype %d pointsize 0.9\n",
                i + 1, colors[i], points[i]);
    fprintf(to, "set linetype cycle 12\nset border linewidth 1 linecolor '#444444'\n"
                "set grid xtics ytics mytics linetype 0 dashtype solid linewidth 0.8 "
                "linecolor '#c8c8c8', linetype 0 dashtype solid linewidth 0.4 linecolor '#e4e4e4'\n"
                "set xlabel offset 0,0.2\n");
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

static int draw_file(struct bench_picture *picture, FILE *script)
{
    char why[256];
    int code = 0;

    const int to = tool_outfile_open(&picture->out, why, sizeof why);
    if (to < 0)
        return tool_fail(TOOL_USE, "option %s %s: %s", picture->shown, picture->path, why);
    const int status = run_gnuplot(script, to);
    const bool is_whole = ends_well(to);
    close(to);
    if (status != 0)
        code = tool_fail(TOOL_DEVICE, "option %s: gnuplot failed (exit status %d)", picture->shown,
                         status);
    else if (!is_whole) // gnuplot does not notice a full disk
        code = tool_fail(TOOL_USE, "option %s %s: gnuplot left no whole picture (is the disk "
                                   "full?)", picture->shown, picture->path);
    else if (!tool_outfile_commit(&picture->out, why, sizeof why))
        code = tool_fail(TOOL_USE, "option %s %s: %s", picture->shown, picture->path, why);
    return code;
}

int bench_picture_draw(struct bench_picture *picture, int width, int height,
                       void (*write)(const void *user, FILE *to), const void *user)
{
    FILE *script = tmpfile();
    int code = 0;

    if (script) {
        write_settings(picture, width, height, script);
        write(user, script);
    }
    if (!script || fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0)
        code = tool_fail(TOOL_DEVICE, "option %s: no temporary file: %s", picture->shown,
                         strerror(errno));
    if (!code)
        code = draw_file(picture, script);
    tool_outfile_discard(&picture->out);
    if (script)
        fclose(script);
    return code;
}
