// SPDX-License-Identifier: Apache-2.0
// The parts of clattn-run.
#ifndef CLATTN_TOOLS_RUN_RUN_H
#define CLATTN_TOOLS_RUN_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/compare.h"
#include "lib/dtype.h"
#include "lib/npy.h"
#include "lib/outfile.h"
#include "lib/session.h"

struct options {
    const char *file[TOOL_TENSORS]; // inputs and outputs; NULL = not given
    const char *compare, *device;
    int layout, causal_align, align, algo, kernel, softmax, precision; // -1 = not given
    int dtype, kv_dtype, bias_dtype;                                   // -1 = as the files
    bool causal, window, has_scale, has_tolerance, json, version;
    int help; // 1 = --help, 2 = --help-all
    double scale, softcap, tolerance;
    int32_t window_left, window_right;
    int32_t threads, runs, splits;
};

struct run {
    struct options opt;
    struct tool_problem problem;
    struct tool_npy in[TOOL_TENSORS], want; // of `want` floats
    struct tool_outfile o_file, lse_file;
    struct tool_session session;
    struct tool_memory memory;
    clattn_plan *plan;
    clattn_plan_info info;
    void *o;   // of the problem's type
    float *lse;
    int32_t first_q, end_q; // tokens of packed queries that belong to a sequence
    double ms;
    struct tool_compare result;
};

// How messages name the option of a tensor's file: "-q".
const char *run_shown(enum tool_tensor which);

// Texts in parts, up to NULL.
extern const char *const run_help[], *const run_help_all[];

// ---- options.c ---------------------------------------------------------------------------------

// Defaults, then what the command line says, checked. Returns 0, or an exit status after a message.
// With --help or --version the rest may be missing.
int run_take_options(int argc, char **argv, struct options *opt);

// ---- input.c -----------------------------------------------------------------------------------

// Reads the input files, checks them against each other, fills `problem` and brings the data into
// its types. Returns 0, or an exit status after a message that names the file and the field.
int run_read_input(struct run *r);

// "--mask m.npy: shape (1, 2): rule" and TOOL_USE.
int run_bad_shape(const char *shown, const char *path, const struct tool_npy *npy,
                  const char *rule);

// ---- numbers.c ---------------------------------------------------------------------------------

// Lengths, offsets and the page table, whose numbers decide about the problem: fills what
// `problem` has of them. The shapes of q, k and v are checked already.
int run_take_numbers(struct run *r);

// ---- report.c ----------------------------------------------------------------------------------

// Prints the report, with the comparison in `result`.
void run_report_text(const struct run *r);
void run_report_json(const struct run *r);

#endif // CLATTN_TOOLS_RUN_RUN_H
