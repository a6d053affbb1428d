// SPDX-License-Identifier: Apache-2.0
// util/os: shared libraries, files, time, mutex, worker.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include <cmocka.h>

#include "util/os.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static void sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

// An emulator has threads of its own, so the number says nothing there: always 0.
static int thread_count(void)
{
    if (getenv("CLATTN_TEST_EMULATED"))
        return 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int n = 0;
    for (struct dirent *e; (e = readdir(tasks)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

static void set_flag(void *arg)
{
    atomic_store((atomic_int *)arg, 1);
}

// Must come first: a thread that has ended leaves a stack that the next one takes.
static void worker_without_thread(void **state)
{
    (void)state;
    if (getenv("CLATTN_TEST_EMULATED")) // which does not bound its memory for a program
        skip();
#ifdef SANITIZED
    skip();
#else
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);

    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    atomic_int ran = 0;
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1u << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    bool taken = cla_worker_push(w, set_flag, &ran);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_false(taken);

    assert_true(cla_worker_push(w, set_flag, &ran));
    cla_worker_destroy(w);
    assert_int_equal(atomic_load(&ran), 1);
#endif
}

static void library_opens(void **state)
{
    (void)state;
    char error[256] = "untouched";
    void *lib = cla_os_lib_open("libm.so.6", error, sizeof error);
    assert_non_null(lib);
    assert_string_equal(error, "untouched");
    void *symbol = cla_os_lib_symbol(lib, "cosf");
    assert_non_null(symbol);
    assert_null(cla_os_lib_symbol(lib, "cla_no_such_function"));
    char path[4096];
    assert_true(cla_os_path_of(symbol, path, sizeof path));
    assert_int_equal(path[0], '/');
    assert_non_null(strstr(path, "libm"));
    cla_os_lib_close(lib);
    cla_os_lib_close(NULL);
}

static void library_of_the_program(void **state)
{
    (void)state;
    void *self = cla_os_lib_open(NULL, NULL, 0);
    assert_non_null(self);
    assert_non_null(cla_os_lib_symbol(self, "malloc"));
    assert_null(cla_os_lib_symbol(self, "cla_no_such_function"));
    cla_os_lib_close(self);
}

static void library_is_missing(void **state)
{
    (void)state;
    char error[256] = "";
    assert_null(cla_os_lib_open("libcla_missing.so.9", error, sizeof error));
    assert_non_null(strstr(error, "libcla_missing.so.9"));
    assert_null(cla_os_lib_open("libcla_missing.so.9", NULL, 0));
    char tiny[8];
    memset(tiny, 'x', sizeof tiny);
    assert_null(cla_os_lib_open("libcla_missing.so.9", tiny, 5));
    assert_int_equal(strlen(tiny), 4);
    assert_int_equal(tiny[5], 'x');
}

// Copies a file into the folder; false where that fails.
static bool copy_file(const char *from, const char *to, mode_t mode)
{
    size_t size = 0;
    char *data = cla_os_read_file(from, &size);
    FILE *file = fopen(to, "wb");
    bool good = data && file && fwrite(data, 1, size, file) == size;
    if (file)
        good = fclose(file) == 0 && good;
    free(data);
    return good && chmod(to, mode) == 0;
}

static void library_of_the_current_folder(void **state)
{
    (void)state;
    static const char name[] = "libcla_current_folder.so", here[] = "./libcla_current_folder.so";
    char folder[] = P_tmpdir "/cla_os_XXXXXX", before[4096], path[4096];
    const char *search = getenv("LD_LIBRARY_PATH");
    if (search && search[0] != '/')
        skip(); // the environment names the current folder
    void *lib = cla_os_lib_open("libm.so.6", NULL, 0);
    assert_non_null(lib);
    assert_true(cla_os_path_of(cla_os_lib_symbol(lib, "cosf"), path, sizeof path));
    assert_non_null(getcwd(before, sizeof before));
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_true(copy_file(path, name, 0755));
    void *found = cla_os_lib_open(name, NULL, 0), *asked = cla_os_lib_open(here, NULL, 0);
    unlink(name);
    assert_int_equal(chdir(before), 0);
    rmdir(folder);
    assert_null(found);
    assert_non_null(asked); // it could have been opened
    cla_os_lib_close(asked);
    cla_os_lib_close(lib);
}

static const char marker = 0;

static void path_of_this_program(void **state)
{
    (void)state;
    char path[4096];
    char *expected = realpath("/proc/self/exe", NULL);
    assert_non_null(expected);
    assert_true(cla_os_path_of(&marker, path, sizeof path));
    assert_string_equal(path, expected);
    // One byte for the end is needed, and nothing is written past the size.
    size_t length = strlen(expected);
    assert_true(cla_os_path_of(&marker, path, length + 1));
    memset(path, 'x', sizeof path);
    assert_false(cla_os_path_of(&marker, path, length));
    assert_int_equal(path[length], 'x');
    assert_false(cla_os_path_of((const void *)(uintptr_t)1, path, sizeof path));
    free(expected);
}

static void file_comes_back_whole(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 16382, 16383, 16384, 16385, 32767, 100000};
    char name[] = P_tmpdir "/cla_os_XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *data = malloc(sizes[i] + 1);
        assert_non_null(data);
        for (size_t n = 0; n < sizes[i]; n++)
            data[n] = (unsigned char)(n * 7 + i); // zero bytes and line ends among them
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, data, sizes[i], 0), (ssize_t)sizes[i]);

        size_t size = 12345;
        char *text = cla_os_read_file(name, &size);
        assert_non_null(text);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(text, data, size);
        assert_int_equal(text[size], '\0');
        free(text);
        free(data);
    }
    char *text = cla_os_read_file(name, NULL);
    assert_non_null(text);
    free(text);
    // A file without an end, and what is waited for or has none.
    assert_int_equal(ftruncate(fd, (off_t)1 << 36), 0);
    assert_null(cla_os_read_file(name, NULL));
    close(fd);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_null(cla_os_read_file(name, NULL));
    assert_int_equal(unlink(name), 0);
    assert_null(cla_os_read_file("/dev/zero", NULL));
    assert_null(cla_os_read_file(name, NULL));
    assert_null(cla_os_read_file(P_tmpdir, NULL)); // a folder
}

static void environment(void **state)
{
    (void)state;
    unsetenv("CLA_TEST_VARIABLE");
    assert_null(cla_os_env("CLA_TEST_VARIABLE"));
    setenv("CLA_TEST_VARIABLE", "", 1);
    assert_null(cla_os_env("CLA_TEST_VARIABLE"));
    setenv("CLA_TEST_VARIABLE", " x", 1);
    assert_string_equal(cla_os_env("CLA_TEST_VARIABLE"), " x");
    unsetenv("CLA_TEST_VARIABLE");
}

static void time_goes_on(void **state)
{
    (void)state;
    uint64_t start = cla_os_now_ns();
    sleep_ms(20);
    uint64_t passed = cla_os_now_ns() - start;
    assert_true(passed >= 20000000u);
    assert_true(passed < 60000000000u);
}

struct guarded {
    struct cla_mutex *mutex;
    long value;
    atomic_int inside;
};

static void *count_up(void *arg)
{
    struct guarded *g = arg;
    for (int i = 0; i < 50000; i++) {
        cla_mutex_lock(g->mutex);
        g->value++;
        cla_mutex_unlock(g->mutex);
    }
    return NULL;
}

static void *enter(void *arg)
{
    struct guarded *g = arg;
    cla_mutex_lock(g->mutex);
    atomic_store(&g->inside, 1);
    cla_mutex_unlock(g->mutex);
    return NULL;
}

static void mutex_excludes(void **state)
{
    (void)state;
    struct guarded g = {.mutex = cla_mutex_create()};
    assert_non_null(g.mutex);
    pthread_t threads[4];
    cla_mutex_lock(g.mutex);
    assert_int_equal(pthread_create(&threads[0], NULL, enter, &g), 0);
    sleep_ms(50);
    assert_int_equal(atomic_load(&g.inside), 0);
    cla_mutex_unlock(g.mutex);
    pthread_join(threads[0], NULL);
    assert_int_equal(atomic_load(&g.inside), 1);

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, &g), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(g.value, 200000);
    cla_mutex_destroy(g.mutex);
    cla_mutex_destroy(NULL);
}

// What the jobs of a worker saw. Only the worker's thread writes, the test reads after destroy.
struct seen {
    int order[1000];
    int count;
    pthread_t thread;
    bool other_thread;
};

struct numbered {
    struct seen *seen;
    int number;
};

static void note_number(void *arg)
{
    struct numbered *n = arg;
    struct seen *s = n->seen;
    if (s->count == 0)
        s->thread = pthread_self();
    else if (!pthread_equal(s->thread, pthread_self()))
        s->other_thread = true;
    s->order[s->count++] = n->number;
}

static void worker_keeps_order(void **state)
{
    (void)state;
    static struct seen seen;
    static struct numbered numbers[1000];
    int threads = thread_count();
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    assert_int_equal(thread_count(), threads); // none before the first job
    for (int i = 0; i < 1000; i++) {
        numbers[i] = (struct numbered){&seen, i};
        assert_true(cla_worker_push(w, note_number, &numbers[i]));
    }
    assert_int_equal(thread_count(), threads + !getenv("CLATTN_TEST_EMULATED"));
    cla_worker_destroy(w);
    assert_int_equal(thread_count(), threads);
    assert_int_equal(seen.count, 1000);
    assert_false(seen.other_thread);
    assert_false(pthread_equal(seen.thread, pthread_self()));
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen.order[i], i);
}

static void wait_for_flag(void *arg)
{
    while (!atomic_load((atomic_int *)arg))
        sleep_ms(1);
}

static void *destroy_worker(void *arg)
{
    cla_worker_destroy(arg);
    return NULL;
}

static void worker_destroy_runs_the_queue(void **state)
{
    (void)state;
    static struct seen seen;
    struct numbered numbers[10];
    atomic_int go = 0;
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    assert_true(cla_worker_push(w, wait_for_flag, &go));
    for (int i = 0; i < 10; i++) {
        numbers[i] = (struct numbered){&seen, i};
        assert_true(cla_worker_push(w, note_number, &numbers[i]));
    }
    pthread_t destroyer;
    assert_int_equal(pthread_create(&destroyer, NULL, destroy_worker, w), 0);
    sleep_ms(20);
    atomic_store(&go, 1);
    pthread_join(destroyer, NULL);
    assert_int_equal(seen.count, 10);
}

static void worker_runs_after_idling(void **state)
{
    (void)state;
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    for (int i = 0; i < 3; i++) {
        atomic_int flag = 0;
        assert_true(cla_worker_push(w, set_flag, &flag));
        wait_for_flag(&flag);
        sleep_ms(5); // the thread goes to sleep
    }
    cla_worker_destroy(w);
}

struct chain {
    struct cla_worker *worker;
    int left;
    bool refused;
};

static void push_again(void *arg)
{
    struct chain *c = arg;
    if (--c->left > 0 && !cla_worker_push(c->worker, push_again, c))
        c->refused = true;
}

static void worker_jobs_may_push(void **state)
{
    (void)state;
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    struct chain chain = {.worker = w, .left = 100};
    assert_true(cla_worker_push(w, push_again, &chain));
    cla_worker_destroy(w);
    assert_false(chain.refused);
    assert_int_equal(chain.left, 0);
}

static void worker_without_jobs(void **state)
{
    (void)state;
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    cla_worker_destroy(w);
    cla_worker_destroy(NULL);
}

static void note_signals(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
}

// ---- a program with more rights than its user's ------------------------------------------------

enum { CANNOT = 77 };
static const char variable[] = "CLATTN_TEST_SECURE";

// What the copy of this program does that belongs to root and is run by somebody else.
static int as_privileged(void)
{
#if defined(__linux__)
    if (!getauxval(AT_SECURE))
        return CANNOT; // the file system does not grant it
    if (!getenv(variable))
        return 1; // nothing to ignore
    return cla_os_env(variable) ? 2 : 0;
#else
    return CANNOT;
#endif
}

static int run_privileged(const char *program)
{
    int status = -1;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0 || setenv(variable, "seen", 1) != 0)
            _exit(CANNOT);
        execl(program, program, "privileged", (char *)NULL);
        _exit(CANNOT);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void privileged_programs_ignore_the_environment(void **state)
{
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    if (geteuid() != 0 || getenv("CLATTN_TEST_EMULATED"))
        skip();
    char folder[] = P_tmpdir "/cla_os_XXXXXX", program[64];
    assert_non_null(mkdtemp(folder));
    snprintf(program, sizeof program, "%s/test_os", folder);
    assert_int_equal(chmod(folder, 0755), 0);
    const bool copied = copy_file("/proc/self/exe", program, 04755);
    const int status = copied ? run_privileged(program) : -1;
    unlink(program);
    rmdir(folder);
    assert_true(copied);
    if (status == CANNOT)
        skip();
    assert_int_equal(status, 0);
    setenv(variable, "seen", 1); // this program's own rights are its user's
    assert_string_equal(cla_os_env(variable), "seen");
    unsetenv(variable);
}

static void worker_leaves_signals_to_the_program(void **state)
{
    (void)state;
    sigset_t before, after, in_worker;
    sigemptyset(&in_worker);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    struct cla_worker *w = cla_worker_create();
    assert_non_null(w);
    assert_true(cla_worker_push(w, note_signals, &in_worker));
    cla_worker_destroy(w);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&in_worker, SIGINT), 1);
    assert_int_equal(sigismember(&in_worker, SIGUSR1), 1);
    assert_int_equal(sigismember(&in_worker, SIGSEGV), 0);
    for (int s = 1; s < 32; s++)
        assert_int_equal(sigismember(&before, s), sigismember(&after, s));
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "privileged") == 0)
        return as_privileged();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_without_thread),
        cmocka_unit_test(library_opens),
        cmocka_unit_test(library_of_the_program),
        cmocka_unit_test(library_is_missing),
        cmocka_unit_test(library_of_the_current_folder),
        cmocka_unit_test(path_of_this_program),
        cmocka_unit_test(file_comes_back_whole),
        cmocka_unit_test(environment),
        cmocka_unit_test(privileged_programs_ignore_the_environment),
        cmocka_unit_test(time_goes_on),
        cmocka_unit_test(mutex_excludes),
        cmocka_unit_test(worker_keeps_order),
        cmocka_unit_test(worker_destroy_runs_the_queue),
        cmocka_unit_test(worker_runs_after_idling),
        cmocka_unit_test(worker_jobs_may_push),
        cmocka_unit_test(worker_without_jobs),
        cmocka_unit_test(worker_leaves_signals_to_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
