// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "session.h"

enum { COLUMNS_MOST = 200 };

static struct {
    bool forbidden;
    double start_ms;
    pthread_mutex_t mutex; // messages may come from another thread
    int width;             // of the line that stands there
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void tool_progress_start(bool json)
{
    state.forbidden = json && !isatty(STDOUT_FILENO);
    state.start_ms = tool_now_ms();
}

static int columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20)
        return 79;
    return size.ws_col < COLUMNS_MOST ? size.ws_col - 1 : COLUMNS_MOST - 1;
}

static void time_text(double seconds, char *text, size_t size)
{
    if (seconds < 90)
        snprintf(text, size, ", about %.0f s left", seconds);
    else if (seconds < 5400)
        snprintf(text, size, ", about %.0f min left", seconds / 60);
    else
        snprintf(text, size, ", about %.1f h left", seconds / 3600);
}

void tool_progress(int done, int all, const char *what, double seconds_left)
{
    const double passed = 1e-3 * (tool_now_ms() - state.start_ms);
    char line[COLUMNS_MOST + 1], left[48] = "", head[32];

    if (state.forbidden || !isatty(STDERR_FILENO))
        return;
    if (seconds_left <= 0 && done > 1)
        seconds_left = passed / (done - 1) * (all - done + 1);
    if (seconds_left > 0)
        time_text(seconds_left, left, sizeof left);
    snprintf(head, sizeof head, "[%d/%d] ", done, all);
    // What is cut short is the middle, which says the least.
    const int room = columns() - (int)strlen(head) - (int)strlen(left);
    snprintf(line, sizeof line, "%s%.*s%s", head, room > 0 ? room : 0, what, left);
    pthread_mutex_lock(&state.mutex);
    fprintf(stderr, "\r%-*s", state.width, line);
    fflush(stderr);
    state.width = (int)strlen(line);
    pthread_mutex_unlock(&state.mutex);
}

void tool_progress_clear(void)
{
    pthread_mutex_lock(&state.mutex);
    if (state.width) {
        fprintf(stderr, "\r%*s\r", state.width, "");
        fflush(stderr);
    }
    state.width = 0;
    pthread_mutex_unlock(&state.mutex);
}
