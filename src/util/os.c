// SPDX-License-Identifier: Apache-2.0
// dladdr() and realpath() are hidden by glibc in strict C11 without this.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "util/os.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <process.h>
#include <windows.h>
#ifndef LOAD_LIBRARY_SEARCH_DEFAULT_DIRS
#define LOAD_LIBRARY_SEARCH_DEFAULT_DIRS 0x1000
#endif
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#endif

// Shared libraries, memory and time

#if defined(_WIN32)

void *cla_os_lib_open(const char *name, char *error, size_t error_size)
{
    // A handle of the whole program, which NULL asks for, does not exist here. A name without a
    // folder is looked up beside the program and in the system's folders, not in the current one.
    const DWORD flags = name && strpbrk(name, "/\\:") ? 0 : LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
    HMODULE lib = name ? LoadLibraryExA(name, NULL, flags) : NULL;
    if (!lib && error && error_size > 0)
        snprintf(error, error_size, "system error %lu", name ? GetLastError() : 0ul);
    return (void *)lib;
}

void *cla_os_lib_symbol(void *lib, const char *name)
{
    FARPROC fn = GetProcAddress((HMODULE)lib, name);
    void *symbol;
    memcpy(&symbol, &fn, sizeof symbol);
    return symbol;
}

void cla_os_lib_close(void *lib)
{
    if (lib)
        FreeLibrary((HMODULE)lib);
}

bool cla_os_path_of(const void *symbol, char *path, size_t size)
{
    HMODULE module;
    DWORD flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (size == 0 || size > 0xffffffffu || !GetModuleHandleExA(flags, symbol, &module))
        return false;
    DWORD length = GetModuleFileNameA(module, path, (DWORD)size);
    return length > 0 && length < size;
}

void *cla_os_aligned_alloc(size_t align, size_t size)
{
    return _aligned_malloc(size, align);
}

void cla_os_aligned_free(void *memory)
{
    _aligned_free(memory);
}

void cla_os_sleep_ms(unsigned ms)
{
    Sleep(ms);
}

uint64_t cla_os_now_ns(void)
{
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    uint64_t t = (uint64_t)ticks.QuadPart, f = (uint64_t)frequency.QuadPart;
    return t / f * 1000000000u + t % f * 1000000000u / f;
}

#else

void *cla_os_lib_open(const char *name, char *error, size_t error_size)
{
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib && error && error_size > 0) {
        const char *text = dlerror();
        snprintf(error, error_size, "%s", text ? text : "unknown error");
    }
    return lib;
}

void *cla_os_lib_symbol(void *lib, const char *name)
{
    return dlsym(lib, name);
}

void cla_os_lib_close(void *lib)
{
    if (lib)
        dlclose(lib);
}

bool cla_os_path_of(const void *symbol, char *path, size_t size)
{
    Dl_info info;
    if (!dladdr(symbol, &info) || !info.dli_fname)
        return false;
    // For the main program the name is argv[0], which without a slash was found through $PATH.
    const char *name = strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe";
    char *real = realpath(name, NULL);
    bool ok = real && strlen(real) < size;
    if (ok)
        memcpy(path, real, strlen(real) + 1);
    free(real);
    return ok;
}

// Android's library has C11's function from its 28th interface on only.
void *cla_os_aligned_alloc(size_t align, size_t size)
{
#if defined(__ANDROID__)
    void *memory = NULL;
    return posix_memalign(&memory, align, size) == 0 ? memory : NULL;
#else
    return aligned_alloc(align, size);
#endif
}

void cla_os_aligned_free(void *memory)
{
    free(memory);
}

void cla_os_sleep_ms(unsigned ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

uint64_t cla_os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

// Files and environment

bool cla_os_is_folder(const char *path)
{
#if defined(_WIN32)
    const DWORD attributes = GetFileAttributesA(path);
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY);
#else
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
#endif
}

const char *cla_os_env(const char *name)
{
#if defined(CLA_HAVE_SECURE_GETENV)
    const char *value = secure_getenv(name);
#elif defined(CLA_HAVE_ISSETUGID)
    const char *value = issetugid() ? NULL : getenv(name);
#else
    const char *value = getenv(name);
#endif
    return value && *value ? value : NULL;
}

// Forks

#if defined(_WIN32)

bool cla_os_watch_forks(void)
{
    return true;
}

unsigned cla_os_forks(void)
{
    return 0;
}

#else

// Asking for the process's number instead would be a system call each time.
static atomic_uint forks;
static atomic_bool watching; // for good, once it has succeeded

static void count_fork(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

// Two threads at once may both register: a fork then counts twice, which is as good.
bool cla_os_watch_forks(void)
{
    if (!atomic_load(&watching) && pthread_atfork(NULL, NULL, count_fork) == 0)
        atomic_store(&watching, true);
    return atomic_load(&watching);
}

unsigned cla_os_forks(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

#endif

// The end of the process

static atomic_bool watching_exit, ending;

static void note_exit(void)
{
    atomic_store(&ending, true);
}

void cla_os_watch_exit(void)
{
    if (!atomic_exchange(&watching_exit, true))
        atexit(note_exit); // where it has no room, the program is no worse off than before
}

bool cla_os_is_ending(void)
{
    return atomic_load_explicit(&ending, memory_order_relaxed);
}

// Mutexes, conditions and threads: the thin layer under the worker

#if defined(_WIN32)

struct cla_mutex {
    SRWLOCK lock;
};
typedef CONDITION_VARIABLE condition;
typedef HANDLE thread;

static bool mutex_init(struct cla_mutex *m)
{
    InitializeSRWLock(&m->lock);
    return true;
}

static void mutex_end(struct cla_mutex *m)
{
    (void)m;
}

void cla_mutex_lock(struct cla_mutex *m)
{
    AcquireSRWLockExclusive(&m->lock);
}

void cla_mutex_unlock(struct cla_mutex *m)
{
    ReleaseSRWLockExclusive(&m->lock);
}

static bool condition_init(condition *c)
{
    InitializeConditionVariable(c);
    return true;
}

static void condition_end(condition *c)
{
    (void)c;
}

static void condition_wait(condition *c, struct cla_mutex *m, unsigned most_ms)
{
    SleepConditionVariableSRW(c, &m->lock, most_ms ? most_ms : INFINITE, 0);
}

static void condition_wake(condition *c)
{
    WakeConditionVariable(c);
}

static void worker_loop(struct cla_worker *w);

static unsigned __stdcall thread_main(void *worker)
{
    worker_loop(worker);
    return 0;
}

static bool thread_start(thread *t, struct cla_worker *w)
{
    *t = (HANDLE)_beginthreadex(NULL, 0, thread_main, w, 0, NULL);
    return *t != NULL;
}

static void thread_join(thread t)
{
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}

#else

struct cla_mutex {
    pthread_mutex_t lock;
};
typedef pthread_cond_t condition;
typedef pthread_t thread;

static bool mutex_init(struct cla_mutex *m)
{
    return pthread_mutex_init(&m->lock, NULL) == 0;
}

static void mutex_end(struct cla_mutex *m)
{
    pthread_mutex_destroy(&m->lock);
}

void cla_mutex_lock(struct cla_mutex *m)
{
    pthread_mutex_lock(&m->lock);
}

void cla_mutex_unlock(struct cla_mutex *m)
{
    pthread_mutex_unlock(&m->lock);
}

// Where it can be chosen, a clock that nobody sets: set back, the usual one would make waits long.
#if defined(__APPLE__)
#define WAIT_CLOCK CLOCK_REALTIME
#else
#define WAIT_CLOCK CLOCK_MONOTONIC
#endif

static bool condition_init(condition *c)
{
#if defined(__APPLE__)
    return pthread_cond_init(c, NULL) == 0;
#else
    pthread_condattr_t how;
    if (pthread_condattr_init(&how) != 0)
        return false;
    const bool ok = pthread_condattr_setclock(&how, WAIT_CLOCK) == 0 &&
                    pthread_cond_init(c, &how) == 0;
    pthread_condattr_destroy(&how);
    return ok;
#endif
}

static void condition_end(condition *c)
{
    pthread_cond_destroy(c);
}

static void condition_wait(condition *c, struct cla_mutex *m, unsigned most_ms)
{
    struct timespec end;
    if (!most_ms || clock_gettime(WAIT_CLOCK, &end) != 0) {
        pthread_cond_wait(c, &m->lock);
        return;
    }
    end.tv_nsec += (long)most_ms * 1000000; // of less than a second
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_cond_timedwait(c, &m->lock, &end);
}

static void condition_wake(condition *c)
{
    pthread_cond_signal(c);
}

static void worker_loop(struct cla_worker *w);

static void *thread_main(void *worker)
{
    worker_loop(worker);
    return NULL;
}

// The application's signal handlers must not run on a thread it knows nothing of, so the new
// thread, which inherits the mask, blocks all signals but those that its own faults raise.
static bool thread_start(thread *t, struct cla_worker *w)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    bool ok = pthread_create(t, NULL, thread_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static void thread_join(thread t)
{
    pthread_join(t, NULL);
}

#endif

struct cla_mutex *cla_mutex_create(void)
{
    struct cla_mutex *m = malloc(sizeof *m);
    if (m && !mutex_init(m)) {
        free(m);
        m = NULL;
    }
    return m;
}

void cla_mutex_destroy(struct cla_mutex *m)
{
    if (!m)
        return;
    mutex_end(m);
    free(m);
}

// The worker

struct job {
    struct job *next;
    void (*run)(void *);
    void *arg;
};

enum { WATCH_MS = 20 };

struct cla_worker {
    struct cla_mutex mutex; // guards all fields below
    condition wake;         // a job came, or the end
    struct job *first, *last;
    bool (*look)(void *); // NULL where there is nothing to watch
    void *look_arg;
    bool started, ending;
    thread id; // valid once started
};

struct cla_worker *cla_worker_create(void)
{
    struct cla_worker *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    if (!mutex_init(&w->mutex)) {
        free(w);
        return NULL;
    }
    if (!condition_init(&w->wake)) {
        mutex_end(&w->mutex);
        free(w);
        return NULL;
    }
    return w;
}

static void worker_loop(struct cla_worker *w)
{
    uint64_t looked = 0;
    cla_mutex_lock(&w->mutex);
    for (;;) {
        struct job *job = w->first;
        if (w->look && cla_os_now_ns() - looked >= WATCH_MS * UINT64_C(1000000)) {
            bool (*look)(void *) = w->look;
            w->look = NULL; // unless somebody asks for it meanwhile
            cla_mutex_unlock(&w->mutex);
            const bool more = look(w->look_arg);
            looked = cla_os_now_ns();
            cla_mutex_lock(&w->mutex);
            if (more)
                w->look = look;
            continue;
        }
        if (!job) {
            if (w->ending)
                break;
            condition_wait(&w->wake, &w->mutex, w->look ? WATCH_MS : 0);
            continue;
        }
        w->first = job->next;
        if (!w->first)
            w->last = NULL;
        cla_mutex_unlock(&w->mutex);
        job->run(job->arg);
        free(job);
        cla_mutex_lock(&w->mutex);
    }
    cla_mutex_unlock(&w->mutex);
}

bool cla_worker_push(struct cla_worker *w, void (*run)(void *), void *arg)
{
    struct job *job = malloc(sizeof *job);
    if (!job)
        return false;
    *job = (struct job){.next = NULL, .run = run, .arg = arg};

    cla_mutex_lock(&w->mutex);
    // The thread is started under the lock: it waits there until the job is in the list.
    if (!w->started)
        w->started = thread_start(&w->id, w);
    bool taken = w->started;
    if (taken) {
        if (w->last)
            w->last->next = job;
        else
            w->first = job;
        w->last = job;
        condition_wake(&w->wake);
    }
    cla_mutex_unlock(&w->mutex);
    if (!taken)
        free(job);
    return taken;
}

void cla_worker_watch(struct cla_worker *w, bool (*look)(void *), void *arg)
{
    cla_mutex_lock(&w->mutex);
    if (!w->started)
        w->started = thread_start(&w->id, w);
    w->look_arg = arg;
    w->look = look;
    condition_wake(&w->wake);
    cla_mutex_unlock(&w->mutex);
}

// Must not be called by a job: the thread would wait for itself.
void cla_worker_destroy(struct cla_worker *w)
{
    if (!w)
        return;
    cla_mutex_lock(&w->mutex);
    w->ending = true;
    bool started = w->started;
    condition_wake(&w->wake);
    cla_mutex_unlock(&w->mutex);
    if (started)
        thread_join(w->id);
    condition_end(&w->wake);
    mutex_end(&w->mutex);
    free(w);
}
