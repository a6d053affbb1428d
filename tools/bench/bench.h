// SPDX-License-Identifier: Apache-2.0
// The parts of clattn-bench: what is to be timed, its verification, its timing, its tables.
#ifndef CLATTN_TOOLS_BENCH_H
#define CLATTN_TOOLS_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/session.h"

struct libscols_table;

enum {
    BENCH_ROWS_MAX = 1024, BENCH_DEVICES_MAX = 16, BENCH_RUNS_MAX = 10000, BENCH_ALGOS_MAX = 12,
    BENCH_VARIANTS_MAX = 32, BENCH_VARIANT_TEXT = 64
};

// What can be timed: an algorithm of attention, or one of row softmax (then `softmax` is not 0).
struct bench_algo {
    const char *name;
    int attention; // enum clattn_algo
    int softmax;   // enum clattn_softmax_algo
};

enum bench_feature {
    BENCH_PLAIN, BENCH_CAUSAL, BENCH_WINDOW, BENCH_MASK, BENCH_BIAS, BENCH_ALIBI, BENCH_SOFTCAP,
    BENCH_SINKS, BENCH_KV_LENS, BENCH_PACKED, BENCH_PAGE, BENCH_DTYPE, BENCH_KV_DTYPE
};

// What is added to a problem.
struct bench_features {
    bool causal, window, mask, bias, alibi, sinks, kv_lens, packed, has_dtype, has_kv_dtype;
    int32_t left, right, page; // page 0 = none
    uint32_t mask_bcast, bias_bcast;
    float softcap; // 0 = none
    int dtype, kv_dtype;
};

// Features that --ratio names, "causal+f16".
struct bench_variant {
    char name[BENCH_VARIANT_TEXT];
    struct bench_features features;
};

// One problem to be timed on every device.
struct bench_row {
    struct tool_problem p;
    // Bit a: the mask or bias has extent 1 on axis a of batch, head, query, key
    uint32_t mask_bcast, bias_bcast;
    bool packed; // sequences of their own lengths
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
    const char *plot_key; // what is swept; NULL = nothing, or more than that
    const char *trace, *roofline; // files; NULL = none
    struct bench_features features; // of all rows
    struct bench_variant variant[BENCH_VARIANTS_MAX];
    int variants; // more than 0: their times beside the plain row's instead of a table
    bool json, csv, list, version;
    int help;      // 1 = --help, 2 = --help-all
    int precision; // enum clattn_precision
    const char *device[BENCH_DEVICES_MAX];
    int devices;
    int32_t threads, runs;
};

struct bench_result {
    double pairs; // of a query and a key that it sees, over batch and heads
    double ms, q1_ms, q3_ms, min_ms, max_ms, cpu_ms;
    double gflops, peak_gflops, percent_paired;
    double percent_read; // of the speed of reading alone; 0 = not measured
    double bytes, max_error;
    size_t runs, workspace;
};

// One algorithm on one row.
struct bench_item {
    const struct bench_row *row;
    const struct bench_algo *algo;
    struct tool_problem p; // of the row, with the algorithm and its kernel
    int number, all;       // from 1, of how many
};

// Texts in parts, up to NULL.
extern const char *const bench_help[], *const bench_help_all[];

// ---- options.c ---------------------------------------------------------------------------------

// Fills `opt` with rows in the order they are given, sweeps applied. Returns 0 or an exit status
// after a message.
int bench_options(int argc, char **argv, struct bench_options *opt);

// The named cases that can be timed, as a table on stdout or as JSON, an object a line.
void bench_print_cases(bool json);

// "1,8,8,2048,2048,64"; of a softmax its rows and their length, "16384x2048".
void bench_item_text(const struct bench_item *item, char *text, size_t size);

// ---- features.c --------------------------------------------------------------------------------

// One feature with its value as an option or a variant gives it; NULL where it has none. `between`
// stands between the sides of a window. Returns 0, or TOOL_USE after a message.
int bench_take_feature(struct bench_features *f, enum bench_feature feature, const char *shown,
                       const char *value, char between);

// Adds the variants of a list "causal+f16,mask".
int bench_take_variants(struct bench_options *opt, const char *shown, const char *value);

// Adds features to a row, and what follows from them and from its sizes.
void bench_apply(const struct bench_features *f, struct bench_row *row);
void bench_finish(struct bench_row *row);

// Whether its packed tokens and pages are few enough to be counted.
bool bench_counts(const struct tool_problem *p);

// Sequence b: its lengths, its first tokens where they are packed, and the key of its query 0.
struct bench_sequence {
    int32_t len_q, len_kv;
    int64_t first_q, first_kv, off;
};
struct bench_sequence bench_sequence(const struct tool_problem *p, int32_t b);

// Keys from the first to the last one that query i sees but for a mask; none where first > last.
void bench_range(const struct tool_problem *p, const struct bench_sequence *s, int64_t i,
                 int64_t *first, int64_t *last);

// ---- data.c ------------------------------------------------------------------------------------

// What the host keeps of the data; NULL where there is none.
struct bench_data {
    uint8_t *mask;
    float *bias, *alibi;
    double pairs; // of a query and a key that it sees, over batch and heads
};

// Fills all inputs with repeatable data. `data` is to be freed in any case.
clattn_status bench_fill(struct tool_session *s, const struct tool_problem *p,
                         const struct tool_memory *m, struct bench_data *data);
void bench_data_free(struct bench_data *data);

// ---- check.c -----------------------------------------------------------------------------------

// Runs once and compares rows from all over the output. `over` counts wrong elements.
clattn_status bench_check(struct tool_session *s, const struct tool_problem *p,
                          const clattn_plan *plan, const struct tool_memory *m,
                          const struct bench_data *data, double *max_error, size_t *over);

// ---- attention.c -------------------------------------------------------------------------------

// A problem with its plan and its memory, verified and ready to be run.
struct bench_attention {
    struct tool_problem p;
    clattn_plan *plan;
    clattn_plan_info info;
    struct tool_memory memory;
    clattn_attention_call call;
    double pairs, gflop, max_error;
    size_t workspace, over; // wrong elements
};

// `a` is to be closed in any case.
clattn_status bench_attention_open(struct tool_session *s, const struct tool_problem *p,
                                   struct bench_attention *a);
clattn_status bench_attention_run(const void *a);
void bench_attention_close(struct tool_session *s, struct bench_attention *a);

// "wrong result, not timed: ..." and TOOL_WRONG.
int bench_wrong(const char *what, size_t over, double max_error, const clattn_plan_info *info);

// ---- timing.c ----------------------------------------------------------------------------------

// Bytes that a run moves between memory and the device. For fused, host and reference: Q, O and the
// mask once, and K and V once for each tile of queries, as far as the tile sees keys; for others
// what their plan says, as if no key were hidden.
double bench_bytes(const struct tool_problem *p, const clattn_plan_info *info);

// Bytes of K and V where each is read once and little else is done: where few queries share a head
// of keys that they all see. 0 elsewhere.
double bench_read_bytes(const struct tool_problem *p);

// Something that is timed.
struct bench_work {
    clattn_status (*run)(const void *user);
    const void *user;
    double gflop; // 0 = not counted
    double read_bytes; // that a run reads at least, to be set against reading alone; 0 = don't
};

// Times runs and, between them, the peak on `peak`.
clattn_status bench_time(struct tool_session *peak, const struct bench_work *work, int32_t runs,
                         struct bench_result *r);

// Two works in turn. `speed` is the time of the first one by the time of the second one, median and
// quartiles over the pairs; `cpu_speed` the median of the same by processor time.
struct bench_pair {
    double ms[2], speed, q1_speed, q3_speed, cpu_speed;
    size_t pairs;
};
clattn_status bench_time_pair(const struct bench_work work[2], int32_t runs, struct bench_pair *r);

// ---- ratio.c -----------------------------------------------------------------------------------

// A row with each variant of --ratio beside the row itself. Adds the refused and the timed ones to
// *results. Returns an exit status after messages.
int bench_ratio(struct tool_session *s, const struct bench_options *opt,
                const struct bench_item *item, struct libscols_table *table, int *results);

// The table of variants, NULL with --json.
struct libscols_table *bench_ratio_table(const struct bench_options *opt);
void bench_ratio_print(struct libscols_table *table); // and frees it

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

// Adds the session's device to a list of devices that does not have it yet.
void bench_add_device(char *devices, size_t size, const struct tool_session *s);

// "fused", or with several devices "fused [0]".
void bench_line_text(const struct bench_options *opt, const struct tool_session *s,
                     const struct bench_item *item, char *text, size_t size);

// ---- roofline.c --------------------------------------------------------------------------------

struct bench_roofline;

// As bench_plot_create(), for --roofline.
int bench_roofline_create(const struct bench_options *opt, struct bench_roofline **roofline);

// A point of the session's device by the algorithm that its plan took; `on` is the device that does
// the work. NULL is ignored.
void bench_roofline_add(struct bench_roofline *roofline, struct tool_session *s,
                        struct tool_session *on, const struct bench_item *item,
                        const char *taken, const struct bench_result *r);
int bench_roofline_finish(struct bench_roofline *roofline, int code);

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

// What every JSON object of an item has.
json_t *bench_json_item(const struct tool_session *s, const struct bench_item *item,
                        const char *status);

#endif // CLATTN_TOOLS_BENCH_H
