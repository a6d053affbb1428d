// SPDX-License-Identifier: Apache-2.0
// Messages of a tool: one line each on stderr, and what the library logs.
#ifndef CLATTN_TOOLS_SAY_H
#define CLATTN_TOOLS_SAY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "clattn/base.h"

// Exit statuses that the tools share.
enum {
    TOOL_DONE = 0,   // all is well
    TOOL_WRONG = 1,  // a comparison or verification failed
    TOOL_USE = 2,    // wrong use, or bad input or output files
    TOOL_DEVICE = 3  // the device or its driver failed
};

#if defined(__GNUC__)
#define TOOL_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TOOL_PRINTF(f, a)
#endif

// Names the program in every later message and sets up what all tools need; warns of a $CLATTN_LOG
// that is no level. Call it first.
void tool_start(const char *program);

// Prints "program: text" as one line on stderr: control characters in names become '?'.
// Returns `code`, so that a check reads `return tool_fail(TOOL_USE, ...)`.
int tool_fail(int code, const char *format, ...) TOOL_PRINTF(2, 3);

// The same for text that is no failure: "program: warning: text".
void tool_warn(const char *format, ...) TOOL_PRINTF(1, 2);

// Flushes stdout; a failure there turns `code` 0 into TOOL_USE, so that a full disk is not silent.
int tool_finish(int code);

// The parts of a text, up to NULL, on stdout.
void tool_print_help(const char *const *parts);

// "clattn-run 0.1.0 (library 0.1.0)" on stdout.
void tool_print_version(void);

// What the library logged. Safe to be filled from several threads.
struct tool_log {
    pthread_mutex_t mutex;
    clattn_log_level keep; // messages up to this level are kept
    bool quiet;            // do not print warnings as they come
    size_t count;
    char **text; // in the order they came
    clattn_log_level *level;
};

void tool_log_init(struct tool_log *log);
void tool_log_clear(struct tool_log *log); // forgets the messages
void tool_log_free(struct tool_log *log);

// Callback for clattn_context_desc.log with a struct tool_log as its user pointer. Warnings are
// printed at once, errors are kept for tool_library_fail(). $CLATTN_LOG works as in the library.
void tool_log_receive(void *user, clattn_log_level level, const char *message);

// Most verbose level that `log` wants from the library.
clattn_log_level tool_log_level(const struct tool_log *log);

// First kept error, else "".
const char *tool_log_error(const struct tool_log *log);

// Exit status that a failure of the library means.
int tool_exit_of(clattn_status status);

// Prints "program: what: why" from the first error in the log, or from the status where the
// library logged none. Where the device failed the further errors follow, a line each. Returns
// the exit status.
int tool_library_fail(const struct tool_log *log, clattn_status status, const char *what);

#endif // CLATTN_TOOLS_SAY_H
