// SPDX-License-Identifier: Apache-2.0
// A log that remembers what it was told, for tests of messages.
#ifndef TESTS_RECORD_LOG_H
#define TESTS_RECORD_LOG_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "util/log.h"

struct record {
    struct cla_log log;
    pthread_mutex_t mutex;
    int count[5];     // messages of each level
    char text[65536]; // all messages, a line break after each
    size_t used;
};

static inline void record_message(void *user, clattn_log_level level, const char *message)
{
    struct record *r = (struct record *)user;
    pthread_mutex_lock(&r->mutex);
    r->count[level]++;
    int n = snprintf(r->text + r->used, sizeof r->text - r->used, "%s\n", message);
    r->used += (size_t)n < sizeof r->text - r->used ? (size_t)n : 0;
    pthread_mutex_unlock(&r->mutex);
}

// Empties the record; messages up to `level` are kept from now on.
static inline void record_start(struct record *r, clattn_log_level level)
{
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->mutex, NULL);
    cla_log_init(&r->log, record_message, r, level);
}

static inline int record_total(const struct record *r)
{
    return r->count[1] + r->count[2] + r->count[3] + r->count[4];
}

#endif // TESTS_RECORD_LOG_H
