// SPDX-License-Identifier: Apache-2.0
// Messages to the caller. The library never prints unless $CLATTN_LOG asks for it.
#ifndef CLA_UTIL_LOG_H
#define CLA_UTIL_LOG_H

#include "clattn/base.h"
#include "util/format.h"

struct cla_log {
    clattn_log_fn fn; // NULL = silent
    void *user;
    clattn_log_level level; // most verbose level that is passed on
};

// Fills `log` from a caller's callback, or, without one, from $CLATTN_LOG
// (error|warn|info|debug: one line each to stderr).
void cla_log_init(struct cla_log *log, clattn_log_fn fn, void *user, clattn_log_level level);

// Warns where $CLATTN_LOG decides and is no level.
void cla_log_check_env(const struct cla_log *log);

// One line. NULL `log` is ignored.
CLA_PRINTF(3, 4)
void cla_logf(const struct cla_log *log, clattn_log_level level, const char *format, ...);

// Logs at error level and returns `status`, so that a check reads `return cla_fail(log, st, ...)`.
CLA_PRINTF(3, 4)
clattn_status cla_fail(const struct cla_log *log, clattn_status status, const char *format, ...);

#define CLA_TRY(expr)                                                                              \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != CLATTN_OK)                                                                       \
            goto done;                                                                             \
    } while (0)

#endif // CLA_UTIL_LOG_H
