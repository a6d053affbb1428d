// SPDX-License-Identifier: Apache-2.0
// clattn-probe: the parent gathers a report and never touches OpenCL itself. All that may crash or
// hang in a driver happens in a child, which is the same program started again with --child TASK.
#ifndef CLATTN_TOOLS_PROBE_H
#define CLATTN_TOOLS_PROBE_H

#include <jansson.h>
#include <stdbool.h>

#include "cases/cases.h"
#include "lib/session.h"

enum {
    PROBE_PLANS_MAX = 64,
    PROBE_PIPE = 3, // the child's end of the pipe
    PROBE_LEVEL_NONE = -1,
    PROBE_LEVEL_AUTO = -2 // by device
};

struct probe_options {
    const char *device, *library; // NULL = all of them, the system's
    struct tool_problem plan[PROBE_PLANS_MAX];
    int plans;
    bool asked; // the plans are those of the command line
    int self_test; // enum test_level, or one of PROBE_LEVEL_*
    int32_t timeout;
    bool json, version;
    int help; // 1 = --help, 2 = --help-all
    const char *child; // the task of a child, else NULL
    int argc;          // the whole command line, which children get too
    char **argv;
};

// Texts in parts, up to NULL.
extern const char *const probe_help[], *const probe_help_all[];

// ---- the child's side (send.c): lines of JSON to the parent -------------------------------------

// Names what is done next, before it is done. `step` is for probe_lost.
void probe_stage(int step, const char *format, ...) TOOL_PRINTF(2, 3);

// Sets a field of the object that the parent fills; appends to an array of it; adds the fields that
// it lacks. Each frees `value`.
void probe_put(const char *key, json_t *value);
void probe_add(const char *key, json_t *value);
void probe_merge(json_t *value);

// All is said: what goes wrong from here on happens while the driver is unloaded.
void probe_end(void);

// ---- the parent's side (child.c) ----------------------------------------------------------------

// How a child was lost.
struct probe_lost {
    bool lost;
    bool hung;     // else it crashed or ended by itself
    int step;      // of the last probe_stage(); -1 behind probe_end()
    char text[512]; // "killed by signal 6 (Aborted) while compiling the vector shape"
    json_t *said;  // the last lines it or its driver wrote to stderr or stdout
};

// Runs a task and puts what it sends into `object`. `vendors` (may be NULL) is $OCL_ICD_VENDORS of
// the child. Ends it when nothing came for the time limit. Free `lost` with probe_lost_free().
void probe_child(const struct probe_options *opt, const char *task, const char *vendors,
                 json_t *object, struct probe_lost *lost);
void probe_lost_free(struct probe_lost *lost);

// What a signal that ends the program removes, too; NULL = nothing. Both stay the caller's.
void probe_remove_at_end(const char *file, const char *folder);

// {"what": text, "said": [...]}.
json_t *probe_lost_json(const struct probe_lost *lost);

// ---- tasks --------------------------------------------------------------------------------------

// Runs opt->child and returns the exit status of the process.
int probe_task(const struct probe_options *opt);

// Steps of the task "device=SELECTOR,STEP", in this order. The parent starts it again behind a step
// that crashed.
enum { PROBE_STEP_OPEN, PROBE_STEP_KERNEL }; // kernels, plans, cases
int probe_kernels(bool builtin);             // kernel shapes
const char *probe_kernel_name(bool builtin, int n);
void probe_task_device(const struct probe_options *opt, const char *selector, int first);

// "drivers=STEP": loads the n-th driver library of probe_drivers() and those behind it.
void probe_task_drivers(const struct probe_options *opt, int first);

// What the library logged, as an array.
json_t *probe_messages(struct tool_log *log);

// ---- self-test (cases.c) ------------------------------------------------------------------------

extern const char *const probe_level_words[]; // of enum test_level; NULL at the end

// Which cases this device runs: enum test_level, or PROBE_LEVEL_NONE.
int probe_case_level(const struct probe_options *opt, const json_t *device);
int probe_case_count(int level);
const struct attn_case *probe_case(int level, int n); // NULL past the end

// What is said of a case that did not come to its end.
json_t *probe_case_entry(const struct attn_case *c, const char *result, const char *status);

struct probe_kept_plan;
json_t *probe_run_case(struct tool_session *s, struct probe_kept_plan **kept,
                       const struct attn_case *c, int step);
void probe_plans_free(struct probe_kept_plan **kept);

// {"level", "cases", "right", "of_tolerance", "worst_case"}.
json_t *probe_case_summary(int level, const json_t *cases);

// ---- gathering ----------------------------------------------------------------------------------

// Fills the report; returns 0, or the exit status after a message.
int probe_gather(const struct probe_options *opt, json_t *report);

// {"folder", "from", "exists", "drivers": [{"source", "library"}]}: where loaders look.
json_t *probe_drivers(void);

// The same with "loads", "path" and "why" from a child each; where `alone`, also what each driver
// alone gives ("alone").
json_t *probe_drivers_checked(const struct probe_options *opt, bool alone);

// [{"system", "install"}]: what to install where there is no OpenCL device.
json_t *probe_advice(void);

// ---- text ---------------------------------------------------------------------------------------

void probe_print(const json_t *report, const struct probe_options *opt);

#endif // CLATTN_TOOLS_PROBE_H
