// SPDX-License-Identifier: Apache-2.0
#include "say.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"

static const char *program_name = "clattn";

// The case does not matter, and no locale has a say in that.
static bool is_word(const char *text, const char *word)
{
    while (*word && (*text == *word || *text - 'A' == *word - 'a')) {
        text++;
        word++;
    }
    return !*text && !*word;
}

// $CLATTN_LOG, which the library itself reads only where there is no callback.
static clattn_log_level env_level(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *env = getenv("CLATTN_LOG");

    for (int i = 0; env && i < 4; i++) {
        if (is_word(env, names[i]))
            return (clattn_log_level)(i + 1);
    }
    return (clattn_log_level)0;
}

// As in the library a word that is no level counts as warn. It is replaced, so that the processes
// that clattn-probe starts do not say so again.
static void check_env_level(void)
{
    const char *env = getenv("CLATTN_LOG");

    if (!env || !env[0] || env_level())
        return;
    tool_warn("CLATTN_LOG is \"%.40s\", neither error, warn, info nor debug: taken as warn", env);
    setenv("CLATTN_LOG", "warn", 1);
}

void tool_start(const char *program)
{
    program_name = program;
    // Device names may hold any character; numbers keep the C locale's point.
    setlocale(LC_CTYPE, "");
    // A file-size limit shall be an error of write(), not an end that leaves a temporary file.
    signal(SIGXFSZ, SIG_IGN);
    check_env_level();
}

static void print_line(const char *kind, const char *text)
{
    char line[4096];

    snprintf(line, sizeof line, "%s: %s%s", program_name, kind, text);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    }
    tool_progress_clear();
    fprintf(stderr, "%s\n", line);
}

int tool_fail(int code, const char *format, ...)
{
    char text[3072];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_line("", text);
    return code;
}

void tool_warn(const char *format, ...)
{
    char text[3072];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_line("warning: ", text);
}

int tool_finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    tool_fail(TOOL_USE, "standard output: %s", strerror(errno));
    return code ? code : TOOL_USE;
}

void tool_print_help(const char *const *parts)
{
    for (; *parts; parts++)
        fputs(*parts, stdout);
}

void tool_print_version(void)
{
    int v = clattn_version();

    printf("%s %d.%d.%d (library %d.%d.%d)\n", program_name, CLATTN_VERSION_MAJOR,
           CLATTN_VERSION_MINOR, CLATTN_VERSION_PATCH, v / 10000, v / 100 % 100, v % 100);
}

void tool_log_init(struct tool_log *log)
{
    memset(log, 0, sizeof *log);
    pthread_mutex_init(&log->mutex, NULL);
    log->keep = CLATTN_LOG_ERROR;
}

void tool_log_clear(struct tool_log *log)
{
    for (size_t i = 0; i < log->count; i++)
        free(log->text[i]);
    free(log->text);
    free(log->level);
    log->text = NULL;
    log->level = NULL;
    log->count = 0;
}

void tool_log_free(struct tool_log *log)
{
    tool_log_clear(log);
    pthread_mutex_destroy(&log->mutex);
}

static void keep(struct tool_log *log, clattn_log_level level, const char *message)
{
    char **text = realloc(log->text, (log->count + 1) * sizeof *text);
    if (!text)
        return;
    log->text = text;
    clattn_log_level *levels = realloc(log->level, (log->count + 1) * sizeof *levels);
    if (!levels)
        return;
    log->level = levels;
    text[log->count] = strdup(message);
    levels[log->count] = level;
    if (text[log->count])
        log->count++;
}

void tool_log_receive(void *user, clattn_log_level level, const char *message)
{
    struct tool_log *log = user;

    pthread_mutex_lock(&log->mutex);
    if (level <= env_level()) {
        tool_progress_clear();
        fprintf(stderr, "%s: log: %s\n", program_name, message);
    } else if (level == CLATTN_LOG_WARN && !log->quiet) {
        print_line("warning: ", message);
    }
    if (level <= log->keep)
        keep(log, level, message);
    pthread_mutex_unlock(&log->mutex);
}

clattn_log_level tool_log_level(const struct tool_log *log)
{
    clattn_log_level level = env_level();

    if (level < CLATTN_LOG_WARN)
        level = CLATTN_LOG_WARN;
    return level > log->keep ? level : log->keep;
}

const char *tool_log_error(const struct tool_log *log)
{
    for (size_t i = 0; i < log->count; i++) {
        if (log->level[i] == CLATTN_LOG_ERROR)
            return log->text[i];
    }
    return "";
}

int tool_exit_of(clattn_status status)
{
    switch (status) {
    case CLATTN_OK:
        return TOOL_DONE;
    case CLATTN_ERR_OUT_OF_MEMORY:
    case CLATTN_ERR_BUILD:
    case CLATTN_ERR_OPENCL:
    case CLATTN_ERR_FILE: // the library's own kernel files, never the user's
    case CLATTN_ERR_SELF_TEST:
    case CLATTN_ERR_INTERNAL:
        return TOOL_DEVICE;
    default:
        return TOOL_USE;
    }
}

int tool_library_fail(const struct tool_log *log, clattn_status status, const char *what)
{
    const char *why = tool_log_error(log);
    const char *colon = what[0] ? ": " : "";
    int code = tool_exit_of(status);

    tool_fail(code, "%s%s%s", what, colon, why[0] ? why : clattn_status_string(status));
    for (size_t i = 0; code == TOOL_DEVICE && i < log->count; i++) {
        if (log->level[i] == CLATTN_LOG_ERROR && log->text[i] != why)
            tool_fail(code, "%s", log->text[i]);
    }
    return code;
}
