// SPDX-License-Identifier: Apache-2.0
// The child's side of the pipe. A line of it is one of
//   {"step": N, "stage": TEXT}   {"put": KEY, "value": V}   {"add": KEY, "value": V}
//   {"merge": OBJECT}            {"end": true}
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/output.h"
#include "probe/probe.h"

static FILE *open_pipe(void)
{
    static FILE *pipe;

    if (!pipe) {
        pipe = fdopen(PROBE_PIPE, "w");
        if (!pipe)
            _exit(TOOL_USE);
        // Compilers that a driver starts shall not keep the pipe open.
        fcntl(PROBE_PIPE, F_SETFD, FD_CLOEXEC);
    }
    return pipe;
}

static void send_line(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));

    json_decref(line);
    if (!text)
        _exit(1);
    // One that nobody reads kills the child by SIGPIPE, which is as it should be.
    FILE *pipe = open_pipe();
    if (fprintf(pipe, "%s\n", text) < 0 || fflush(pipe) != 0)
        _exit(1);
    free(text);
}

void probe_stage(int step, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    send_line(json_pack("{s:i, s:o}", "step", step, "stage", tool_json_text(text)));
}

void probe_put(const char *key, json_t *value)
{
    send_line(json_pack("{s:s, s:o}", "put", key, "value", value));
}

void probe_add(const char *key, json_t *value)
{
    send_line(json_pack("{s:s, s:o}", "add", key, "value", value));
}

void probe_merge(json_t *value)
{
    send_line(json_pack("{s:o}", "merge", value));
}

void probe_end(void)
{
    send_line(json_pack("{s:b}", "end", 1));
}
