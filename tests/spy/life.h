// SPDX-License-Identifier: Apache-2.0
// A whole life of a context: plan, memory, a run, its result, destruction. For tests that let
// something in it fail.
#ifndef TESTS_LIFE_H
#define TESTS_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "clattn/clattn.h"

// A way through the library.
struct life {
    const char *name;
    int32_t algo, kernel; // enum clattn_algo and clattn_kernel
    bool host_memory;     // Q, K, V and O in host memory, which is staged
    bool softmax;         // a row softmax instead
    bool no_opencl;       // on the built-in CPU path
};

struct outcome {
    clattn_status status; // the first that was not CLATTN_OK
    const char *where;    // the call that gave it
    bool wrong;           // something succeeded, but its result is wrong
    bool silent;          // an error without a message
    char said[512];
};

// `over` is called after a failure, when a plan and its memory are there: what fails must end then,
// and the plan's next call must be right, else the outcome is wrong.
struct outcome live(const struct life *life, void (*over)(void));

// The right results, and a folder for compiled programs in the current one; false on failure.
bool lives_begin(void);
void lives_end(void);

#endif // TESTS_LIFE_H
