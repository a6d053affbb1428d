// SPDX-License-Identifier: Apache-2.0
// The runs of a trace on a queue that measures, as an application would do them: through the public
// header alone. The program is linked to no OpenCL library; the one that clattn opened is taken.
#include "bench/trace.h"

#ifdef TOOLS_OPENCL
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clattn/opencl.h"

// What is called, by its name with clattn's own types.
struct calls {
    __typeof__(&clCreateCommandQueue) create_queue;
    __typeof__(&clReleaseCommandQueue) release_queue;
    __typeof__(&clEnqueueWriteBuffer) write;
    __typeof__(&clEnqueueReadBuffer) read;
    __typeof__(&clEnqueueMarkerWithWaitList) marker;
    __typeof__(&clFinish) finish;
    __typeof__(&clGetEventProfilingInfo) profile;
    __typeof__(&clReleaseEvent) release_event;
};

static bool find_calls(struct calls *c)
{
    static const char *const libraries[] = {"libOpenCL.so.1", "libOpenCL.so"};
    static const char *const names[] = {
        "clCreateCommandQueue", "clReleaseCommandQueue", "clEnqueueWriteBuffer",
        "clEnqueueReadBuffer", "clEnqueueMarkerWithWaitList", "clFinish",
        "clGetEventProfilingInfo", "clReleaseEvent"};
    void *library = NULL, *found[sizeof names / sizeof *names];

    for (size_t i = 0; !library && i < sizeof libraries / sizeof *libraries; i++)
        library = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        found[i] = library ? dlsym(library, names[i]) : NULL;
        if (!found[i])
            return false;
    }
    _Static_assert(sizeof found == sizeof *c, "a pointer for each name");
    memcpy(c, found, sizeof found);
    return true; // the library stays open: clattn has it
}

enum { COMMANDS_MAX = TOOL_TENSORS + 4 };

// One run: the inputs to the device, the work, O back.
struct job {
    struct bench_trace *trace;
    struct bench_attention *a;
    struct calls cl;
    cl_command_queue queue;
    void *host[TOOL_TENSORS];
    struct trace_command command[COMMANDS_MAX];
    cl_event event[COMMANDS_MAX];
    // Markers around work that may be several kernels, or none; NULL around others.
    cl_event before, after;
    int count;
};

// Begins a command: its span of the host, and when the call begins.
static struct trace_command *begin(struct job *job, const char *call, const char *kind,
                                   const char *name, double bytes)
{
    struct trace_command *c = &job->command[job->count];

    *c = (struct trace_command){.kind = kind, .bytes = bytes};
    snprintf(c->name, sizeof c->name, "%s", name);
    bench_trace_begin(job->trace, "%s: %s", call, name);
    c->call_begin_us = bench_trace_now_us(job->trace);
    return c;
}

static clattn_status end(struct job *job, struct trace_command *c, bool good, clattn_status bad)
{
    c->call_end_us = bench_trace_now_us(job->trace);
    bench_trace_end(job->trace);
    job->count += good;
    return good ? CLATTN_OK : bad;
}

static clattn_status copy(struct job *job, enum tool_tensor t, const char *name, bool write)
{
    const clattn_buf *buf = &job->a->memory.buf[t];
    const size_t bytes = job->a->memory.bytes[t];
    char text[48];

    snprintf(text, sizeof text, "%s %s", write ? "write" : "read", name);
    struct trace_command *c = begin(job, write ? "clEnqueueWriteBuffer" : "clEnqueueReadBuffer",
                                    "copy", text, (double)bytes);
    cl_event *event = &job->event[job->count];
    const cl_int code = write ? job->cl.write(job->queue, buf->ptr, CL_FALSE, buf->offset_bytes,
                                              bytes, job->host[t], 0, NULL, event)
                              : job->cl.read(job->queue, buf->ptr, CL_FALSE, buf->offset_bytes,
                                             bytes, job->host[t], 0, NULL, event);
    return end(job, c, code == CL_SUCCESS, CLATTN_ERR_OPENCL);
}

static clattn_status attention(struct job *job)
{
    const clattn_plan_info *info = &job->a->info;
    char name[64];

    snprintf(name, sizeof name, "%s %s", info->algo_name, info->kernel_name);
    struct trace_command *c = begin(job, "clattn_attention_enqueue", "kernel", name, 0);
    // The last kernel's event alone would leave out those before it, and the CPU path behind a
    // queue has none.
    const bool marked = info->algo != CLATTN_ALGO_FUSED;
    if (marked && job->cl.marker(job->queue, 0, NULL, &job->before) != CL_SUCCESS)
        job->before = NULL;
    const clattn_status st = clattn_attention_enqueue(job->a->plan, &job->a->call, job->queue, 0,
                                                      NULL, &job->event[job->count]);
    if (marked && job->cl.marker(job->queue, 0, NULL, &job->after) != CL_SUCCESS)
        job->after = NULL;
    return end(job, c, st == CLATTN_OK, st);
}

static bool get_times(const struct job *job, cl_event event, struct trace_command *c)
{
    static const cl_profiling_info names[4] = {
        CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT, CL_PROFILING_COMMAND_START,
        CL_PROFILING_COMMAND_END};
    cl_ulong t[4];

    for (int i = 0; i < 4; i++) {
        if (job->cl.profile(event, names[i], sizeof t[i], &t[i], NULL) != CL_SUCCESS)
            return false;
    }
    c->queued = (double)t[0];
    c->submit = (double)t[1];
    c->start = (double)t[2];
    c->end = (double)t[3];
    return true;
}

// From the end of the marker in front to that of the marker behind.
static bool get_marked_times(const struct job *job, struct trace_command *c)
{
    struct trace_command before, after;

    if (!job->before || !job->after || !get_times(job, job->before, &before) ||
        !get_times(job, job->after, &after))
        return false;
    c->queued = before.queued;
    c->submit = before.submit;
    c->start = before.end;
    c->end = after.end;
    return true;
}

// Commands without times have no place on the track.
static void report(struct job *job, const struct tool_session *s, double finished_us)
{
    struct trace_command timed[COMMANDS_MAX];
    int n = 0;

    for (int i = 0; i < job->count; i++) {
        struct trace_command *c = &job->command[i];
        const bool several = strcmp(c->kind, "kernel") == 0 && (job->before || job->after);
        if (several ? get_marked_times(job, c) : get_times(job, job->event[i], c))
            timed[n++] = *c;
        job->cl.release_event(job->event[i]);
    }
    if (job->before)
        job->cl.release_event(job->before);
    if (job->after)
        job->cl.release_event(job->after);
    job->before = job->after = NULL;
    if (n)
        bench_trace_commands(job->trace, s, timed, n, finished_us);
}

static clattn_status run(struct job *job, const struct tool_session *s)
{
    static const struct {
        enum tool_tensor t;
        const char *name;
    } inputs[] = {{TOOL_Q, "Q"}, {TOOL_K, "K"}, {TOOL_V, "V"}};
    clattn_status st = CLATTN_OK;

    job->count = 0;
    for (size_t i = 0; st == CLATTN_OK && i < sizeof inputs / sizeof *inputs; i++)
        st = copy(job, inputs[i].t, inputs[i].name, true);
    if (st == CLATTN_OK)
        st = attention(job);
    if (st == CLATTN_OK)
        st = copy(job, TOOL_O, "O", false);
    bench_trace_begin(job->trace, "clFinish");
    if (job->cl.finish(job->queue) != CL_SUCCESS && st == CLATTN_OK)
        st = CLATTN_ERR_OPENCL;
    const double finished = bench_trace_now_us(job->trace);
    bench_trace_end(job->trace);
    report(job, s, finished);
    return st;
}

static clattn_status make_host(struct job *job, struct tool_session *s)
{
    static const enum tool_tensor all[] = {TOOL_Q, TOOL_K, TOOL_V, TOOL_O};
    clattn_status st = CLATTN_OK;

    for (int i = 0; st == CLATTN_OK && i < 4; i++) {
        job->host[all[i]] = malloc(job->a->memory.bytes[all[i]] + 1);
        st = job->host[all[i]]
                 ? tool_memory_read(s, &job->a->memory, all[i], job->host[all[i]])
                 : CLATTN_ERR_OUT_OF_MEMORY;
    }
    return st;
}

bool bench_trace_queue(struct bench_trace *trace, struct tool_session *s,
                       struct bench_attention *a, clattn_status *st)
{
    struct job job = {.trace = trace, .a = a};
    const cl_context context = clattn_context_cl_context(s->ctx);
    cl_int code = CL_SUCCESS;

    if (!context || !find_calls(&job.cl))
        return false;
    job.queue = job.cl.create_queue(context, clattn_context_cl_device(s->ctx),
                                    CL_QUEUE_PROFILING_ENABLE, &code);
    if (code != CL_SUCCESS)
        return false;
    *st = make_host(&job, s);
    for (int i = 0; *st == CLATTN_OK && i < TRACE_RUNS; i++) {
        bench_trace_begin(trace, "run %d", i + 1);
        *st = run(&job, s);
        bench_trace_end(trace);
    }
    job.cl.release_queue(job.queue);
    for (int t = 0; t < TOOL_TENSORS; t++)
        free(job.host[t]);
    return true;
}

#else // without OpenCL

bool bench_trace_queue(struct bench_trace *trace, struct tool_session *s,
                       struct bench_attention *a, clattn_status *st)
{
    (void)trace;
    (void)s;
    (void)a;
    (void)st;
    return false;
}

#endif // TOOLS_OPENCL
