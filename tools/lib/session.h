// SPDX-License-Identifier: Apache-2.0
// A context, a plan and the memory of one attention problem, for the tools.
#ifndef CLATTN_TOOLS_SESSION_H
#define CLATTN_TOOLS_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clattn/clattn.h"
#include "problem.h"
#include "say.h"

// Words of --algo, --kernel, --align, --layout and --precision in the order of their enums; NULL at
// the end.
extern const char *const tool_algo_words[];
extern const char *const tool_softmax_words[];
extern const char *const tool_kernel_words[]; // "auto" first; on the command line absent = auto

// Whether --kernel goes with the algorithm.
bool tool_algo_has_shapes(int algo);
extern const char *const tool_align_words[];
extern const char *const tool_layout_words[];
extern const char *const tool_precision_words[];

struct tool_session {
    clattn_context *ctx;
    clattn_device_info device;
    struct tool_log log;
    const char *opencl_library; // set before opening; NULL = the system's
};

// Makes an empty session, which tool_session_close() takes as well as an open one.
void tool_session_init(struct tool_session *s);

// Opens the device that `selector` names (NULL = the library's own choice). Does not print; what
// went wrong is in the log, also with devices that were passed over, which says nothing about later
// failures: clear it where no message of opening is wanted.
clattn_status tool_session_open(struct tool_session *s, const char *selector, int32_t threads,
                                uint32_t flags);
void tool_session_close(struct tool_session *s);

clattn_status tool_plan_create(struct tool_session *s, const struct tool_problem *p,
                               clattn_plan **plan);

// Memory of a problem on the session's device.
struct tool_memory {
    clattn_buf buf[TOOL_TENSORS];
    size_t bytes[TOOL_TENSORS];
    clattn_buf workspace;
};

// Allocates all tensors; O and LSE are filled with NaN, so that a missing write shows.
clattn_status tool_memory_create(struct tool_session *s, const struct tool_problem *p,
                                 const clattn_plan *plan, struct tool_memory *m);
void tool_memory_destroy(struct tool_session *s, struct tool_memory *m);

// Copies a whole tensor; one of no bytes is fine.
clattn_status tool_memory_write(struct tool_session *s, const struct tool_memory *m,
                                enum tool_tensor which, const void *data);
clattn_status tool_memory_read(struct tool_session *s, const struct tool_memory *m,
                               enum tool_tensor which, void *data);

// A call of the whole problem on this memory.
void tool_call_init(const struct tool_problem *p, const struct tool_memory *m,
                    clattn_attention_call *call);

// Monotonic clock, and processor time of all threads of this process.
double tool_now_ms(void);
double tool_cpu_ms(void);

// Median of `n` times; sorts them.
double tool_median(double *times, size_t n);

// "[0] Platform: device"; "[cpu]" where the built-in path has no index.
void tool_device_text(const clattn_device_info *info, char *text, size_t size);

// "64 rows x 32 keys, vector width 8": the parts of a tile that are not 0.
void tool_tile_text(const clattn_plan_info *info, char *text, size_t size);

#endif // CLATTN_TOOLS_SESSION_H
