// SPDX-License-Identifier: Apache-2.0
// Pictures that gnuplot, a process of its own, draws into a file.
#ifndef CLATTN_TOOLS_BENCH_PICTURE_H
#define CLATTN_TOOLS_BENCH_PICTURE_H

#include <stdbool.h>
#include <stdio.h>

#include "lib/outfile.h"

struct bench_picture {
    const char *shown, *path; // the option and its value
    struct tool_outfile out;
    bool svg; // else PNG
};

// Finds out before any work whether the picture can be drawn and put at `path`, which ends in .svg
// or .png. Returns 0 or an exit status after a message.
int bench_picture_check(struct bench_picture *picture, const char *shown, const char *path);

// Draws what `write` writes as gnuplot's script behind the settings that pictures share. Returns 0
// or an exit status after a message.
int bench_picture_draw(struct bench_picture *picture, int width, int height,
                       void (*write)(const void *user, FILE *to), const void *user);

void bench_picture_free(struct bench_picture *picture);

// A text in gnuplot's single quotes.
void bench_picture_quote(FILE *to, const char *text);

#endif // CLATTN_TOOLS_BENCH_PICTURE_H
