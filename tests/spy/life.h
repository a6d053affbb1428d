// SPDX-License-Identifier: Apache-2.0
// A whole life of a context: plans, memory, runs, their results, destruction. For tests that let
// something in it fail.
#ifndef TESTS_LIFE_H
#define TESTS_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "clattn/clattn.h"

enum life_kind {
    LIFE_ATTENTION,   // one plan
    LIFE_TILES,       // a plan with a given tile and one with a measured tile, from a file
    LIFE_FEATURES,    // two plans: int8 keys in pages with lengths, and packed sequences
    LIFE_SOFTMAX,     // a row softmax
    LIFE_KV,          // merging, rotary embedding, appending to int8 pages
    LIFE_APPLICATION, // an application's context, queue, buffers and events
};

// A way through the library.
struct life {
    const char *name;
    enum life_kind kind;
    int32_t algo, kernel; // enum clattn_algo and clattn_kernel, of attention
    bool host_memory;     // Q, K, V and O in host memory, which is staged; of attention
    bool no_opencl;       // on the built-in CPU path
    bool fills_cache;     // compiled programs are not there yet
    bool slow;            // its kernels take a driver long; not in the small selection
};

struct outcome {
    clattn_status status; // the first that was not CLATTN_OK
    const char *where;    // the call that gave it
    bool wrong;           // something succeeded, but its result is wrong; or the call that failed
                          // did so again
    bool silent;          // an error without a message
    char said[512];
};

// A call that fails is made again after `over`, which ends what makes calls fail, and must be right
// then; the life goes on to its end.
struct outcome live(const struct life *life, void (*over)(void));

// An enqueue of the CPU path that fails when the callback that begins its work is set already; what
// the context and the plan leave behind, which go before that callback comes. Its status.
clattn_status life_application_dropped(void);

// The right results, and a folder for compiled programs in the current one; false on failure.
bool lives_begin(void);
void lives_end(void);

#endif // TESTS_LIFE_H
