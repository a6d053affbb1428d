// SPDX-License-Identifier: Apache-2.0
// The parts of clattn-run.
#ifndef CLATTN_TOOLS_RUN_RUN_H
#define CLATTN_TOOLS_RUN_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/compare.h"
#include "lib/npy.h"
#include "lib/outfile.h"
#include "lib/session.h"

struct options {
    const char *q, *k, *v, *o, *lse, *mask, *compare, *device;
    int layout, causal_align, align, algo, kernel, softmax; // -1 = not given
    bool causal, has_scale, has_tolerance, json, help, version;
    double scale, tolerance;
    int32_t threads, repeat, splits;
};

struct run {
    struct options opt;
    struct tool_problem problem;
    struct tool_npy q, k, v, mask, want;
    struct tool_outfile o_file, lse_file;
    struct tool_session session;
    struct tool_memory memory;
    clattn_plan *plan;
    clattn_plan_info info;
    float *o, *lse;
    double ms;
    struct tool_compare result;
};

// Reads the input files, checks their shapes against each other and fills `problem`. Returns 0, or
// an exit status after a message that names the file and the field.
int run_read_input(struct run *r);

// Prints the report, with the comparison in `result`.
void run_report_text(const struct run *r);
void run_report_json(const struct run *r);

#endif // CLATTN_TOOLS_RUN_RUN_H
