// SPDX-License-Identifier: Apache-2.0
#define _POSIX_C_SOURCE 200809L
#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct test_thread {
    pthread_t id;
    void (*run)(void *);
    void *arg;
};

static void *start(void *arg)
{
    struct test_thread *t = arg;
    t->run(t->arg);
    return NULL;
}

struct test_thread *thread_start(void (*run)(void *), void *arg)
{
    struct test_thread *t = calloc(1, sizeof *t);
    if (t) {
        t->run = run;
        t->arg = arg;
    }
    if (!t || pthread_create(&t->id, NULL, start, t)) {
        fprintf(stderr, "a thread could not be started\n");
        abort();
    }
    return t;
}

void thread_join(struct test_thread *t)
{
    pthread_join(t->id, NULL);
    free(t);
}

void sleep_ms(int ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static char watched[128];

static void expired(int signal_number)
{
    static const char text[] = "\nhangs: ";
    (void)signal_number;
    if (write(2, text, sizeof text - 1) < 0 || write(2, watched, (unsigned)strlen(watched)) < 0 ||
        write(2, "\n", 1) < 0)
        _exit(1);
    _exit(1);
}

#if defined(_WIN32)

// Without alarms a thread waits; it does nothing where another one was started since, or none.
static atomic_uint watchdogs;

struct wait {
    unsigned number, seconds;
};

static void *watch(void *arg)
{
    struct wait wait = *(struct wait *)arg;
    free(arg);
    for (; wait.seconds > 0 && atomic_load(&watchdogs) == wait.number; wait.seconds--)
        sleep_ms(1000);
    if (atomic_load(&watchdogs) == wait.number)
        expired(0);
    return NULL;
}

void watchdog(const char *what, unsigned seconds)
{
    const unsigned number = atomic_fetch_add(&watchdogs, 1) + 1;
    snprintf(watched, sizeof watched, "%s", what);
    struct wait *wait = seconds ? malloc(sizeof *wait) : NULL;
    pthread_t thread;
    if (!wait)
        return;
    *wait = (struct wait){number, seconds};
    if (pthread_create(&thread, NULL, watch, wait) == 0)
        pthread_detach(thread);
    else
        free(wait);
}

#else

void watchdog(const char *what, unsigned seconds)
{
    snprintf(watched, sizeof watched, "%s", what);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = expired;
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
}

#endif
