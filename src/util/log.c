// SPDX-License-Identifier: Apache-2.0
#include "util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/os.h"

static const struct {
    const char *name;
    clattn_log_level level;
} levels[] = {
    {"error", CLATTN_LOG_ERROR},
    {"warn", CLATTN_LOG_WARN},
    {"info", CLATTN_LOG_INFO},
    {"debug", CLATTN_LOG_DEBUG},
};
enum { NUM_LEVELS = sizeof levels / sizeof *levels };

// One call of fprintf for each message, so that those of several threads don't mix.
static void to_stderr(void *user, clattn_log_level level, const char *message)
{
    (void)user;
    const char *name = "?";
    for (int i = 0; i < NUM_LEVELS; i++)
        if (levels[i].level == level)
            name = levels[i].name;
    fprintf(stderr, "clattn %s: %s\n", name, message);
}

// NULL where the word is no level. The case is nobody's business: Python's levels are in capitals.
static const clattn_log_level *level_named(const char *word)
{
    for (int i = 0; i < NUM_LEVELS; i++) {
        const char *name = levels[i].name;
        size_t k = 0;
        while (name[k] && (word[k] == name[k] || word[k] - 'A' == name[k] - 'a'))
            k++;
        if (!name[k] && !word[k])
            return &levels[i].level;
    }
    return NULL;
}

void cla_log_init(struct cla_log *log, clattn_log_fn fn, void *user, clattn_log_level level)
{
    log->fn = fn;
    log->user = user;
    log->level = level > 0 ? level : CLATTN_LOG_WARN;
    if (fn)
        return;

    const char *wanted = cla_os_env("CLATTN_LOG");
    if (!wanted)
        return;
    // A word that is no level still asks for messages, hence the default.
    log->fn = to_stderr;
    log->user = NULL;
    const clattn_log_level *found = level_named(wanted);
    log->level = found ? *found : CLATTN_LOG_WARN;
}

void cla_log_check_env(const struct cla_log *log)
{
    const char *wanted = log->fn == to_stderr ? cla_os_env("CLATTN_LOG") : NULL;
    if (wanted && !level_named(wanted))
        cla_logf(log, CLATTN_LOG_WARN,
                 "CLATTN_LOG is \"%.40s\", neither error, warn, info nor debug: taken as warn",
                 wanted);
}

static void log_va(const struct cla_log *log, clattn_log_level level, const char *format,
                   va_list args)
{
    if (!log || !log->fn || level > log->level)
        return;

    // Build logs are long; they go to the heap, and are only cut short where there is none left.
    char fixed[512];
    char *text = fixed;
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(fixed, sizeof fixed, format, args);
    if (length >= (int)sizeof fixed) {
        char *heap = malloc((size_t)length + 1);
        if (heap) {
            vsnprintf(heap, (size_t)length + 1, format, again);
            text = heap;
        }
    }
    va_end(again);
    if (length >= 0)
        log->fn(log->user, level, text);
    if (text != fixed)
        free(text);
}

void cla_logf(const struct cla_log *log, clattn_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va(log, level, format, args);
    va_end(args);
}

clattn_status cla_fail(const struct cla_log *log, clattn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_va(log, CLATTN_LOG_ERROR, format, args);
    va_end(args);
    return status;
}
