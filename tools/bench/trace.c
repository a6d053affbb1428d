// SPDX-License-Identifier: Apache-2.0
#include "bench/trace.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/outfile.h"
#include "lib/output.h"

enum { HOST_PID = 1, DEPTH_MAX = 16 };

struct span {
    json_t *event;
    double start_us;
};

struct bench_trace {
    const char *path;
    struct tool_outfile out;
    json_t *events;
    double start_ms;
    struct span open[DEPTH_MAX];
    int depth, flows;
    int device[BENCH_DEVICES_MAX]; // indices of devices with a track
    int devices;
    double worst_doubt_us; // of the alignment of clocks
};

// ---- events ------------------------------------------------------------------------------------

double bench_trace_now_us(const struct bench_trace *trace)
{
    return trace ? 1e3 * (tool_now_ms() - trace->start_ms) : 0;
}

// To a nanosecond, which is what the clocks have.
static json_t *microseconds(double us)
{
    return json_real(round(1e3 * us) / 1e3);
}

// "X" is a span, "s" and "f" are the two ends of an arrow, "M" names a track.
static json_t *add_event(struct bench_trace *trace, const char *phase, const char *name,
                         const char *category, int pid, double us)
{
    json_t *e = json_object();

    json_object_set_new(e, "ph", json_string(phase));
    json_object_set_new(e, "name", tool_json_text(name));
    json_object_set_new(e, "cat", json_string(category));
    json_object_set_new(e, "pid", json_integer(pid));
    json_object_set_new(e, "tid", json_integer(1));
    json_object_set_new(e, "ts", microseconds(us));
    json_array_append_new(trace->events, e);
    return e;
}

static void name_track(struct bench_trace *trace, int pid, const char *process, const char *thread)
{
    const char *const names[2][2] = {{"process_name", process}, {"thread_name", thread}};

    for (int i = 0; i < 2; i++) {
        json_t *e = add_event(trace, "M", names[i][0], "__metadata", pid, 0);
        json_object_set_new(e, "args", json_pack("{s:o}", "name", tool_json_text(names[i][1])));
    }
    json_t *e = add_event(trace, "M", "process_sort_index", "__metadata", pid, 0);
    json_object_set_new(e, "args", json_pack("{s:i}", "sort_index", pid));
}

int bench_trace_create(const struct bench_options *opt, struct bench_trace **out)
{
    char why[256];

    *out = NULL;
    if (!opt->trace)
        return 0;
    struct bench_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return tool_fail(TOOL_DEVICE, "no memory for a trace");
    if (!tool_outfile_check(&trace->out, opt->trace, why, sizeof why)) {
        free(trace);
        return tool_fail(TOOL_USE, "option --trace %s: %s", opt->trace, why);
    }
    trace->path = opt->trace;
    trace->events = json_array();
    trace->start_ms = tool_now_ms();
    name_track(trace, HOST_PID, "clattn-bench, the host", "main thread");
    *out = trace;
    return 0;
}

// ---- the host ----------------------------------------------------------------------------------

void bench_trace_begin(struct bench_trace *trace, const char *format, ...)
{
    char name[256];
    va_list args;

    if (!trace || trace->depth == DEPTH_MAX)
        return;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    struct span *span = &trace->open[trace->depth++];
    span->start_us = bench_trace_now_us(trace);
    span->event = add_event(trace, "X", name, "host", HOST_PID, span->start_us);
}

void bench_trace_end(struct bench_trace *trace)
{
    if (!trace || trace->depth == 0)
        return;
    const struct span *span = &trace->open[--trace->depth];
    json_object_set_new(span->event, "dur",
                        microseconds(bench_trace_now_us(trace) - span->start_us));
}

clattn_status bench_trace_attention(struct bench_trace *trace, struct tool_session *s,
                                    struct bench_attention *a)
{
    clattn_status st = CLATTN_OK;

    if (!trace || bench_trace_queue(trace, s, a, &st))
        return st;
    for (int run = 0; st == CLATTN_OK && run < TRACE_RUNS; run++) {
        bench_trace_begin(trace, "clattn_attention_run: %s%s%s", a->info.algo_name,
                          a->info.kernel_name[0] ? " " : "", a->info.kernel_name);
        st = bench_attention_run(a);
        bench_trace_end(trace);
    }
    return st;
}

// ---- a device ----------------------------------------------------------------------------------

// What has to be added to the device's microseconds. A command is queued while the host is in the
// call that enqueues it, and ended when the host has waited for it: each gives bounds, and the
// middle of what is left is taken. *doubt is half of that.
static double offset_of(const struct trace_command *command, int count, double finished_us,
                        double *doubt)
{
    double low = -INFINITY, high = INFINITY;

    for (int i = 0; i < count; i++) {
        const struct trace_command *c = &command[i];
        if (c->queued > 0) {
            low = fmax(low, c->call_begin_us - 1e-3 * c->queued);
            high = fmin(high, c->call_end_us - 1e-3 * c->queued);
        } else {
            low = fmax(low, c->call_begin_us - 1e-3 * c->start);
        }
        high = fmin(high, finished_us - 1e-3 * c->end);
    }
    *doubt = 0.5 * fabs(high - low);
    return 0.5 * (low + high);
}

// The process number of a device's track, which is made where it is new.
static int pid_of(struct bench_trace *trace, const struct tool_session *s)
{
    char text[512];
    int n = 0;

    while (n < trace->devices && trace->device[n] != s->device.index)
        n++;
    if (n == trace->devices && n < BENCH_DEVICES_MAX) {
        trace->device[trace->devices++] = s->device.index;
        tool_device_text(&s->device, text, sizeof text);
        name_track(trace, HOST_PID + 1 + n, text, "queue");
    }
    return HOST_PID + 1 + n;
}

static void add_arrow(struct bench_trace *trace, const char *name, int pid, double from, double to)
{
    json_t *begin = add_event(trace, "s", name, "enqueue", HOST_PID, from);
    json_t *end = add_event(trace, "f", name, "enqueue", pid, to);

    json_object_set_new(begin, "id", json_integer(++trace->flows));
    json_object_set_new(end, "id", json_integer(trace->flows));
    json_object_set_new(end, "bp", json_string("e")); // to the span around it
}

void bench_trace_commands(struct bench_trace *trace, const struct tool_session *s,
                          const struct trace_command *command, int count, double finished_us)
{
    double doubt = 0, free_from = 0;
    const int pid = pid_of(trace, s);
    const double offset = offset_of(command, count, finished_us, &doubt);

    trace->worst_doubt_us = fmax(trace->worst_doubt_us, doubt);
    for (int i = 0; i < count; i++) {
        const struct trace_command *c = &command[i];
        const double times[4] = {offset + 1e-3 * c->queued, offset + 1e-3 * c->submit,
                                 offset + 1e-3 * c->start, offset + 1e-3 * c->end};
        // Of an in-order queue; a driver's clock may still be read a little late.
        const double start = fmax(times[2], free_from);
        const double end = fmax(times[3], start + 1e-3);
        json_t *e = add_event(trace, "X", c->name, c->kind, pid, start);
        json_object_set_new(e, "dur", microseconds(end - start));
        json_t *args = json_object();
        json_object_set_new(args, "queued_us", microseconds(times[0]));
        json_object_set_new(args, "submitted_us", microseconds(times[1]));
        json_object_set_new(args, "waited_us", microseconds(fmax(start - times[0], 0)));
        if (c->bytes > 0)
            json_object_set_new(args, "bytes", json_integer((json_int_t)c->bytes));
        json_object_set_new(e, "args", args);
        add_arrow(trace, c->name, pid, c->call_begin_us, start);
        free_from = end;
    }
}

// ---- the file ----------------------------------------------------------------------------------

static int write_trace(struct bench_trace *trace)
{
    const int version = clattn_version();
    const size_t flags = JSON_REAL_PRECISION(15) | JSON_COMPACT;
    char why[256] = "";
    int code = 0;
    json_t *root = json_object(), *other = json_object();

    json_object_set_new(other, "program",
                        json_sprintf("clattn-bench %d.%d.%d", version / 10000,
                                     version / 100 % 100, version % 100));
    if (trace->devices)
        json_object_set_new(other, "clock_doubt_us", microseconds(trace->worst_doubt_us));
    json_object_set(root, "traceEvents", trace->events);
    json_object_set_new(root, "displayTimeUnit", json_string("ms"));
    json_object_set_new(root, "otherData", other);
    const int to = tool_outfile_open(&trace->out, why, sizeof why);
    if (to >= 0 && json_dumpfd(root, to, flags) != 0)
        snprintf(why, sizeof why, "it cannot be written: %s", strerror(errno));
    if (to >= 0)
        close(to);
    if (why[0] || !tool_outfile_commit(&trace->out, why, sizeof why))
        code = tool_fail(TOOL_USE, "option --trace %s: %s", trace->path, why);
    tool_outfile_discard(&trace->out);
    json_decref(root);
    return code;
}

int bench_trace_finish(struct bench_trace *trace, int code)
{
    if (!trace)
        return code;
    while (trace->depth)
        bench_trace_end(trace);
    if (!code)
        code = write_trace(trace);
    tool_outfile_discard(&trace->out);
    json_decref(trace->events);
    free(trace);
    return code;
}
