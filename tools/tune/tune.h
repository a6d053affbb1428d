// SPDX-License-Identifier: Apache-2.0
// The parts of clattn-tune: what is to be measured, measuring it, and the tables.
#ifndef CLATTN_TOOLS_TUNE_H
#define CLATTN_TOOLS_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/bench.h"
#include "lib/session.h"

enum { TUNE_ROWS_MAX = 256, TUNE_ALGOS_MAX = 4, TUNE_TILES_MAX = 256, TUNE_PATH = 1024 };

struct tune_options {
    struct bench_row row[TUNE_ROWS_MAX];
    int rows;
    int algo[TUNE_ALGOS_MAX]; // enum clattn_algo; AUTO = the one that the library takes
    int algos;
    int kernel; // enum clattn_kernel, of the candidates
    struct bench_features features;
    const char *device, *output;
    double budget_s; // 0 = none
    int32_t runs;
    bool again, dry_run, json, version;
    int help; // 1 = --help, 2 = --help-all
};

// Texts in parts, up to NULL.
extern const char *const tune_help[], *const tune_help_all[];

enum tune_state {
    TUNE_PLANNED,  // not measured
    TUNE_MEASURED,
    TUNE_WRONG,    // a wrong result
    TUNE_FAILED    // the library or the device could not have it
};

struct tune_candidate {
    clattn_tile tile;
    enum tune_state state;
    char why[160]; // of a failure
    double max_error, ms, planner_ms;
    double ratio;     // time of the planner's choice by that of this one
    double confirmed; // likewise, measured a second time; 0 = it was not
};

// One problem with one algorithm.
struct tune_item {
    struct tool_problem p;
    char name[256]; // "1,8,8,2048,2048,64 causal, fused"
    struct tune_candidate *tile;
    int tiles;
    bool resumed; // the file has it
    bool stopped; // before the end
    bool written; // to the file
    int winner;   // index; -1 = nothing was faster than the planner's choice
    clattn_tile best; // of the winner, or what the file has
    double ratio;     // likewise
};

// Returns 0 or an exit status after a message.
int tune_options(int argc, char **argv, struct tune_options *opt);

// Until when there is time, and what is left to do, for the line of progress.
struct tune_clock {
    double start_ms, budget_ms; // 0 = no end
    int items, item;            // problems with their algorithms
    int done;                   // candidates so far
    bool can_write;             // the file was tried
};

// Ctrl-C came, or the time is over.
bool tune_stopped(const struct tune_clock *clock);
extern volatile int tune_signal; // the signal that came, 0 = none

// Fills the candidates of an item, whose algorithm may be AUTO until then. `tile` is to be freed in
// any case. The planner's free choice comes first, `kernel` (0 = that of the planner's choice) is
// the shape of all others. CLATTN_ERR_UNSUPPORTED where nothing can serve it.
clattn_status tune_list(struct tool_session *s, int kernel, struct tune_item *item);

// Measures all candidates and names the winner.
clattn_status tune_measure(struct tool_session *s, const struct tune_options *opt,
                           struct tune_clock *clock, struct tune_item *item);

// Ratio over which a candidate is faster: 1.03, or more where chance makes more of the planner's
// own choice, which is the first candidate, beside itself.
double tune_threshold(const struct tune_item *item);

// "vector 24x64, 3 x 8 rows, blocks 4 x 4".
void tune_tile_text(const clattn_tile *tile, char *text, size_t size);

// One line on stderr that the next one overwrites, on a terminal only; NULL removes it.
void tune_progress(const struct tune_clock *clock, const struct tune_item *item, int candidate);

// The candidates of an item as a table with a line above and below it, or as a JSON object.
void tune_report(const struct tune_options *opt, const struct tool_session *s,
                 const struct tune_item *item, const char *file);

#endif // CLATTN_TOOLS_TUNE_H
