// SPDX-License-Identifier: Apache-2.0
// The calls of POSIX or Windows, but for those of store.c and host_facts.c: shared libraries,
// threads, files, memory, time.
#ifndef CLA_UTIL_OS_H
#define CLA_UTIL_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Shared libraries. On failure NULL, and `error` (may be NULL) receives the system's text.
// A NULL name is the program itself with all that it was linked to or has preloaded; Windows has
// no such thing. A name without a slash is looked up where the system keeps its libraries, never in
// the current folder unless the environment names that.
void *cla_os_lib_open(const char *name, char *error, size_t error_size);
void *cla_os_lib_symbol(void *lib, const char *name);
void cla_os_lib_close(void *lib);

// Path of the shared library or program that holds `symbol`; false if it cannot be had.
bool cla_os_path_of(const void *symbol, char *path, size_t size);

// Whole file as a NUL-terminated string the caller frees, NULL with errno if it cannot be read, is
// no plain file (EINVAL) or has more than twice as many bytes (EFBIG).
enum { CLA_OS_MOST_READ = 1 << 24 };
char *cla_os_read_file(const char *path, size_t *size);

bool cla_os_is_folder(const char *path);

// Environment variable, NULL if unset or empty, and in a program with more rights than its user's
// (set-user-ID, set-group-ID, capabilities), since its user made the environment.
const char *cla_os_env(const char *name);

// Memory that begins at a multiple of `align`, a power of 2 that divides `size`; NULL if there is
// none. Only cla_os_aligned_free() frees it.
void *cla_os_aligned_alloc(size_t align, size_t size);
void cla_os_aligned_free(void *memory);

uint64_t cla_os_now_ns(void);
void cla_os_sleep_ms(unsigned ms);

// How often this process was forked, that is whether it is the one that something was made in: the
// threads of a parent, and what drivers keep, do not exist in its child. Counted from the first
// cla_os_watch_forks() on, which is false where that cannot be; children of vfork() and of bare
// system calls are not noticed.
bool cla_os_watch_forks(void);
unsigned cla_os_forks(void);

// Whether exit() has come so far that handlers run that were there before the first
// cla_os_watch_exit(), destructors of a C++ program's globals among them.
void cla_os_watch_exit(void);
bool cla_os_is_ending(void);

struct cla_mutex;
struct cla_mutex *cla_mutex_create(void);
void cla_mutex_destroy(struct cla_mutex *m);
void cla_mutex_lock(struct cla_mutex *m);
void cla_mutex_unlock(struct cla_mutex *m);

// A thread that runs jobs in the order they came; started by the first job.
struct cla_worker;
struct cla_worker *cla_worker_create(void);
// false if the thread could not be started or memory ran out; the job was not taken.
bool cla_worker_push(struct cla_worker *w, void (*job)(void *), void *arg);
// The thread calls `look` between jobs, and some times a second where there are none, until that
// returns false; once it runs. One `look` and `arg` for a worker.
void cla_worker_watch(struct cla_worker *w, bool (*look)(void *), void *arg);
// Runs what is queued, then ends the thread. NULL is ignored.
void cla_worker_destroy(struct cla_worker *w);

#endif // CLA_UTIL_OS_H
