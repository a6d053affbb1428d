// SPDX-License-Identifier: Apache-2.0
// The parts of clattn-bench: what is to be timed, its verification, its timing, its tables.
#ifndef CLATTN_TOOLS_BENCH_H
#define CLATTN_TOOLS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/session.h"

enum {
    BENCH_ROWS_MAX = 1024, BENCH_DEVICES_MAX = 16, BENCH_RUNS_MAX = 10000, BENCH_ALGOS_MAX = 12
};

// What can be timed: an algorithm of attention, or one of row softmax (then `softmax` is not 0).
struct bench_algo {
    const char *name;
    int attention; // enum clattn_algo
    int softmax;   // enum clattn_softmax_algo
};

// One problem to be timed on every device.
struct bench_row {
    struct tool_problem p;
    uint32_t mask_bcast; // bit a: the mask has extent 1 on axis a of batch, head, query, key
    char name[64];       // of the case it comes from; empty for a shape
    int64_t softmax_rows, softmax_len;
};

struct bench_options {
    struct bench_row *row; // BENCH_ROWS_MAX of them
    int rows, kernel;
    struct bench_algo algo[BENCH_ALGOS_MAX];
    int algos; // more than one: those that can't serve a row are named instead of failing
    int64_t softmax_rows, softmax_len; // of all rows; 0 = as the shape says
    const char *plot;     // file; NULL = none
    const char *plot_key; // what is swept
    bool causal, json, csv, list, help, version;
    const char *device[BENCH_DEVICES_MAX];
    int devices;
    int32_t threads, runs;
};

struct bench_result {
    double pairs; // of a query and a key that it sees, over batch and heads
    double ms, q1_ms, q3_ms, min_ms, max_ms, cpu_ms;
    double gflops, peak_gflops, percent_paired;
    double bytes, max_error;
    size_t runs, workspace;
};

// One algorithm on one row.
struct bench_item {
    const struct bench_row *row;
    const struct bench_algo *algo;
    struct tool_problem p; // of the row, with the algorithm and its kernel
};

// ---- options.c ---------------------------------------------------------------------------------

// Fills `opt` with rows in the order they are given, sweeps applied. Returns 0 or an exit status
// after a message.
int bench_options(int argc, char **argv, struct bench_options *opt);

// The named cases that can be timed, as a table on stdout.
void bench_print_cases(void);

// "1,8,8,2048,2048,64".
void bench_shape_text(const struct tool_problem *p, char *text, size_t size);

// The same of an item; of a softmax its rows and their length, "16384x2048".
void bench_item_text(const struct bench_item *item, char *text, size_t size);

// ---- check.c -----------------------------------------------------------------------------------

// Fills Q, K, V and the mask with repeatable data; *pairs receives the visible pairs.
clattn_status bench_fill(struct tool_session *s, const struct bench_row *row,
                         const struct tool_memory *m, double *pairs);

// Runs once and compares rows from all over the output. `over` counts wrong elements.
clattn_status bench_check(struct tool_session *s, const struct tool_problem *p,
                          const clattn_plan *plan, const struct tool_memory *m, double *max_error,
                          size_t *over);

// ---- timing.c ----------------------------------------------------------------------------------

// Bytes that a run moves between memory and the device. For fused, host and reference: Q, O and the
// mask once, and K and V once for each tile of queries, as far as the tile sees keys; for others
// what their plan says, as if no key were hidden.
double bench_bytes(const struct tool_problem *p, const clattn_plan_info *info);

// Something that is timed.
struct bench_work {
    clattn_status (*run)(const void *user);
    const void *user;
    double gflop; // 0 = not counted
};

// Times runs and, between them, the peak on `peak`.
clattn_status bench_time(struct tool_session *peak, const struct bench_work *work, int32_t runs,
                         struct bench_result *r);

// ---- softmax.c ---------------------------------------------------------------------------------

// Verifies a row softmax and times it. `over` > 0 means a wrong result and no times. `info`
// receives what the table shows of a plan.
clattn_status bench_softmax(struct tool_session *s, struct tool_session *builtin,
                            const struct bench_item *item, int32_t runs, clattn_plan_info *info,
                            struct bench_result *r, size_t *over);

// ---- plot.c ------------------------------------------------------------------------------------

struct bench_plot;

// Finds out before any work whether a plot can be drawn and put where it shall go; *plot is NULL
// without --plot. Returns 0 or an exit status after a message.
int bench_plot_create(const struct bench_options *opt, struct bench_plot **plot);

// A point of the line that is named. NULL `plot` is ignored.
void bench_plot_add(struct bench_plot *plot, const struct tool_session *s,
                    const struct bench_item *item, const struct bench_result *r);

// Draws, unless `code` is an exit status already, and frees. Returns the exit status.
int bench_plot_finish(struct bench_plot *plot, int code);

// ---- report.c ----------------------------------------------------------------------------------

struct bench_report;

// NULL if memory ran out.
struct bench_report *bench_report_create(const struct bench_options *opt);

// One result: printed at once as JSON or CSV, or a line of the table. `plan` is NULL for a softmax.
void bench_report_add(struct bench_report *report, const struct tool_session *s,
                      const struct bench_item *item, const clattn_plan *plan,
                      const clattn_plan_info *info, const struct bench_result *r);

// An item that was refused: likewise, or a line below the table.
void bench_report_refuse(struct bench_report *report, const struct tool_session *s,
                         const struct bench_item *item, const char *reason);

// Prints the table where there is one, under a line for each device, and what was refused, and
// frees. Returns how many results there were.
int bench_report_finish(struct bench_report *report, const struct tool_session *sessions,
                        int count);

// One line on stderr that the next one overwrites, on a terminal only. NULL `what` removes it.
void bench_progress(int done, int all, const char *what);

#endif // CLATTN_TOOLS_BENCH_H
