// SPDX-License-Identifier: Apache-2.0
// clattn-bench --trace: what the host and the device's queue do, in the format of Chrome's and
// Perfetto's trace viewers. Every function ignores a NULL trace.
#ifndef CLATTN_TOOLS_BENCH_TRACE_H
#define CLATTN_TOOLS_BENCH_TRACE_H

#include "bench/bench.h"

enum { TRACE_RUNS = 3 }; // of each item

struct bench_trace;

// Finds out before any work whether the file can be written; *trace is NULL without --trace.
// Returns 0 or an exit status after a message.
int bench_trace_create(const struct bench_options *opt, struct bench_trace **trace);

// A span of the host's track. They nest: each end closes the one that was begun last.
void bench_trace_begin(struct bench_trace *trace, const char *format, ...) TOOL_PRINTF(2, 3);
void bench_trace_end(struct bench_trace *trace);

// Runs an attention TRACE_RUNS times: on an OpenCL device through a queue that measures, with the
// copies to the device and back; on the CPU path as spans of the host.
clattn_status bench_trace_attention(struct bench_trace *trace, struct tool_session *s,
                                    struct bench_attention *a);

// Writes the file, unless `code` is an exit status already, and frees. Returns the exit status.
int bench_trace_finish(struct bench_trace *trace, int code);

// ---- for trace_queue.c -------------------------------------------------------------------------

// One command of a queue, by the device's clock in nanoseconds, and when the host's call that
// enqueued it began and ended.
struct trace_command {
    char name[64];
    const char *kind; // "kernel" or "copy"
    double queued, submit, start, end;
    double call_begin_us, call_end_us;
    double bytes; // of a copy
};

// Microseconds since the trace began.
double bench_trace_now_us(const struct bench_trace *trace);

// Adds the commands of a device, which the host saw finished at `finished_us`, on a track of their
// own. Their times are brought to the host's clock.
void bench_trace_commands(struct bench_trace *trace, const struct tool_session *s,
                          const struct trace_command *command, int count, double finished_us);

// False where the device has no queue that measures, or this build is without OpenCL. *st receives
// how the runs went.
bool bench_trace_queue(struct bench_trace *trace, struct tool_session *s,
                       struct bench_attention *a, clattn_status *st);

#endif // CLATTN_TOOLS_BENCH_TRACE_H
