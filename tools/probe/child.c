// SPDX-License-Identifier: Apache-2.0
// Child processes: started, listened to with a time limit, and buried.
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/prctl.h>
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/output.h"
#include "probe/probe.h"

enum { SAID_LINES = 12, SAID_BYTES = 4096 };
// Of a child's output so much is passed on, and so often it is read before the clock is looked at:
// a driver may print without end.
enum { PASSED_BYTES = 1 << 20, READS_AT_ONCE = 64 };

struct text {
    char *bytes;
    size_t used, size;
};

struct child {
    pid_t pid;
    int results, output; // ends of pipes, not blocking
    struct text line;    // of results, not yet whole
    struct text said;    // the end of its output
    size_t passed;       // bytes of its output that were passed on
    double heard_ms;     // when the last result came
    bool open;           // the results may go on
    bool ended;          // probe_end() came
    char stage[256];
    int step;
};

// ---- signals ------------------------------------------------------------------------------------

// A child has a process group of its own, so that compilers which a driver starts end with it.
static volatile sig_atomic_t running;
static const char *volatile end_file, *volatile end_folder;

void probe_remove_at_end(const char *file, const char *folder)
{
    end_file = file;
    end_folder = folder;
}

static void end_with_child(int number)
{
    if (running > 0)
        kill(-(pid_t)running, SIGKILL);
    if (end_file)
        unlink(end_file);
    if (end_folder)
        rmdir(end_folder);
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    static bool done;

    for (size_t i = 0; !done && i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old, action = {.sa_handler = end_with_child};
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    done = true;
}

// ---- start --------------------------------------------------------------------------------------

// In the child, after fork: becomes this program with one more option, or ends.
static void become(const struct probe_options *opt, const char *task, const char *vendors,
                   const int results[2], const int output[2])
{
    const struct rlimit no_core = {0, 0};
    char **argv = calloc((size_t)opt->argc + 3, sizeof *argv);
    int nothing = open("/dev/null", O_RDONLY);
    // Out of the way of the numbers that are set below.
    int in = fcntl(nothing, F_DUPFD, 10), to = fcntl(results[1], F_DUPFD, 10);
    int out = fcntl(output[1], F_DUPFD, 10);

    setpgid(0, 0);
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    setrlimit(RLIMIT_CORE, &no_core);
    if (vendors) {
        setenv("OCL_ICD_VENDORS", vendors, 1);
        unsetenv("OCL_ICD_FILENAMES");
    }
    // What a driver prints must not get into the report.
    if (!argv || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
        dup2(to, PROBE_PIPE) < 0)
        _exit(127);
    close(in);
    close(to);
    close(out);
    // In front, since behind "--" it would be no option.
    char option[] = "--child";
    argv[0] = opt->argv[0];
    argv[1] = option;
    argv[2] = strdup(task);
    memcpy(argv + 3, opt->argv + 1, (size_t)(opt->argc - 1) * sizeof *argv);
#if defined(__linux__)
    execv("/proc/self/exe", argv);
#endif
    execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static bool make_pipe(int ends[2])
{
    if (pipe(ends) != 0)
        return false;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return true;
}

static void close_pipe(int ends[2])
{
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
    }
}

static bool start(struct child *c, const struct probe_options *opt, const char *task,
                  const char *vendors)
{
    int results[2] = {-1, -1}, output[2] = {-1, -1};

    memset(c, 0, sizeof *c);
    snprintf(c->stage, sizeof c->stage, "starting");
    catch_signals();
    fflush(NULL);
    c->pid = make_pipe(results) && make_pipe(output) ? fork() : -1;
    if (c->pid == 0)
        become(opt, task, vendors, results, output);
    if (c->pid < 0) {
        snprintf(c->stage, sizeof c->stage, "%s", strerror(errno));
        close_pipe(results);
        close_pipe(output);
        return false;
    }
    setpgid(c->pid, c->pid); // whoever comes first
    running = (sig_atomic_t)c->pid;
    close(results[1]);
    close(output[1]);
    c->results = results[0];
    c->output = output[0];
    c->open = true;
    c->heard_ms = tool_now_ms();
    return true;
}

// ---- listen -------------------------------------------------------------------------------------

static bool append(struct text *t, const char *bytes, size_t count)
{
    if (t->used + count + 1 > t->size) {
        size_t size = 2 * (t->used + count + 1);
        char *larger = realloc(t->bytes, size);
        if (!larger)
            return false;
        t->bytes = larger;
        t->size = size;
    }
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
    t->bytes[t->used] = '\0';
    return true;
}

static void drop(struct text *t, size_t count)
{
    memmove(t->bytes, t->bytes + count, t->used - count + 1);
    t->used -= count;
}

// Someone who waits at a terminal sees what for.
static void show_stage(const char *stage)
{
    const char *term = getenv("TERM");

    if (isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0)
        fprintf(stderr, "\r\033[K%.76s\r", stage);
}

static void take_line(struct child *c, const char *text, size_t size, json_t *object)
{
    json_t *line = json_loadb(text, size, 0, NULL);
    json_t *value = json_object_get(line, "value"), *merge = json_object_get(line, "merge");
    const char *stage = json_string_value(json_object_get(line, "stage"));
    const char *put = json_string_value(json_object_get(line, "put"));
    const char *add = json_string_value(json_object_get(line, "add"));

    if (stage) {
        snprintf(c->stage, sizeof c->stage, "%s", stage);
        show_stage(stage);
        c->step = (int)json_integer_value(json_object_get(line, "step"));
    }
    if (put)
        json_object_set(object, put, value);
    if (add) {
        if (!json_object_get(object, add))
            json_object_set_new(object, add, json_array());
        json_array_append(json_object_get(object, add), value);
    }
    if (merge)
        json_object_update_missing(object, merge);
    if (json_is_true(json_object_get(line, "end"))) {
        c->ended = true;
        c->step = -1;
        snprintf(c->stage, sizeof c->stage, "the driver was unloaded");
    }
    json_decref(line);
}

// Reads what is there; false at the end of the pipe.
static bool read_results(struct child *c, json_t *object)
{
    char bytes[4096];
    ssize_t count;

    while ((count = read(c->results, bytes, sizeof bytes)) > 0) {
        const char *end;
        if (!append(&c->line, bytes, (size_t)count))
            return false;
        while ((end = memchr(c->line.bytes, '\n', c->line.used)) != NULL) {
            size_t size = (size_t)(end - c->line.bytes);
            take_line(c, c->line.bytes, size, object);
            drop(&c->line, size + 1);
            c->heard_ms = tool_now_ms();
        }
    }
    return count < 0 && (errno == EAGAIN || errno == EINTR);
}

static void pass_on(struct child *c, const char *bytes, size_t count)
{
    if (c->passed < PASSED_BYTES) {
        fwrite(bytes, 1, count, stderr);
        if (c->passed + count >= PASSED_BYTES)
            fputs("\n[what else the driver prints is left out]\n", stderr);
    }
    c->passed += c->passed < PASSED_BYTES ? count : 0;
}

// Passes on what the driver prints and keeps the end of it; false at the end of the pipe.
static bool read_output(struct child *c)
{
    char bytes[4096];
    ssize_t count = 1;

    for (int i = 0; i < READS_AT_ONCE && (count = read(c->output, bytes, sizeof bytes)) > 0; i++) {
        pass_on(c, bytes, (size_t)count);
        if (append(&c->said, bytes, (size_t)count) && c->said.used > 2 * SAID_BYTES)
            drop(&c->said, c->said.used - SAID_BYTES);
    }
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

// True when the child is gone; false when it was silent for too long.
static bool listen_to(struct child *c, int32_t timeout, json_t *object, int *status)
{
    bool output_open = true;

    while (waitpid(c->pid, status, WNOHANG) == 0) {
        double left = c->heard_ms + 1e3 * timeout - tool_now_ms();
        if (left <= 0)
            return false;
        struct pollfd polled[2] = {{.fd = c->open ? c->results : -1, .events = POLLIN},
                                   {.fd = output_open ? c->output : -1, .events = POLLIN}};
        // Without its pipe it is about to go, so it is looked for more often.
        double wait = c->open ? 200 : 5;
        poll(polled, 2, 1 + (int)(left < wait ? left : wait));
        if (polled[0].revents)
            c->open = read_results(c, object);
        if (polled[1].revents)
            output_open = read_output(c);
    }
    return true;
}

// ---- end ----------------------------------------------------------------------------------------

static json_t *last_lines(const struct text *said)
{
    json_t *lines = json_array();
    char *rest = NULL;

    for (char *line = said->bytes ? strtok_r(said->bytes, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        if (json_array_size(lines) == SAID_LINES)
            json_array_remove(lines, 0);
        for (char *ch = line; *ch; ch++) {
            if ((unsigned char)*ch < 0x20 || *ch == 0x7f)
                *ch = ' ';
        }
        json_array_append_new(lines, tool_json_text(line));
    }
    return lines;
}

// Kills a child that hangs. One that hangs inside the operating system cannot be waited for.
static void bury(const struct child *c)
{
    const double end = tool_now_ms() + 5e3;
    int status;

    kill(-c->pid, SIGKILL);
    while (waitpid(c->pid, &status, WNOHANG) == 0 && tool_now_ms() < end)
        poll(NULL, 0, 5);
}

static void describe(const struct child *c, int status, struct probe_lost *lost)
{
    char how[128];

    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof how, "ended with exit status %d", WEXITSTATUS(status));
    snprintf(lost->text, sizeof lost->text, "%s while %s", how, c->stage);
}

void probe_child(const struct probe_options *opt, const char *task, const char *vendors,
                 json_t *object, struct probe_lost *lost)
{
    struct child c;
    int status = 0;

    memset(lost, 0, sizeof *lost);
    if (!start(&c, opt, task, vendors)) {
        lost->lost = true;
        lost->said = json_array();
        snprintf(lost->text, sizeof lost->text, "no process can be started: %s", c.stage);
        return;
    }
    if (!listen_to(&c, opt->timeout, object, &status)) {
        lost->lost = true;
        lost->hung = true;
        snprintf(lost->text, sizeof lost->text, "no answer after %d s while %s", (int)opt->timeout,
                 c.stage);
    }
    if (lost->hung)
        bury(&c);
    else
        kill(-c.pid, SIGKILL); // whatever the driver has started and left behind
    running = 0;
    show_stage("");
    read_results(&c, object);
    read_output(&c);
    if (!lost->hung && (WIFSIGNALED(status) || WEXITSTATUS(status) != 0 || !c.ended)) {
        lost->lost = true;
        describe(&c, status, lost);
    }
    lost->step = c.step;
    lost->said = last_lines(&c.said);
    close(c.results);
    close(c.output);
    free(c.line.bytes);
    free(c.said.bytes);
}

void probe_lost_free(struct probe_lost *lost)
{
    json_decref(lost->said);
    lost->said = NULL;
}

json_t *probe_lost_json(const struct probe_lost *lost)
{
    return json_pack("{s:o, s:O}", "what", tool_json_text(lost->text), "said", lost->said);
}
