// SPDX-License-Identifier: Apache-2.0
// Which devices a test runs on, and the walk over them.
//
// Environment of the tests, lists separated by commas:
//   CLATTN_TEST_EXPECT  devices that must be there, else the test fails: pocl, intel, llvmpipe,
//                       oclgrind, or part of a platform's or device's name
//   CLATTN_TEST_ONLY    devices to run on, named likewise; others are left alone
//   CLATTN_TEST_ALGOS   algorithms to run on OpenCL devices, by their names; default "fused,host"
//   CLATTN_TEST_SMALL   not empty: every device runs the small selection
//   CLATTN_TEST_MEDIUM  not empty: no device runs more than the medium selection
//   CLATTN_TEST_PREFERRED  not empty: a kernel shape that the device doesn't prefer runs the small
//                       selection
//   CLATTN_TEST_SHARE   1 to 4: of the cases that are shared out, only those of this share; 9: none
#ifndef TESTS_OPEN_DEVICE_H
#define TESTS_OPEN_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cases.h"
#include "clattn/clattn.h"

enum { DEVICES_MAX = 16, SKIP_STATUS = 77 };

// Text of the last messages of a log callback; see log_capture().
struct log_capture {
    char text[32768]; // lines end with a newline
    int errors;
};

struct test_device {
    clattn_context *ctx;
    clattn_device_info info;
    char tag[64]; // short name for messages
    int level;    // enum test_level
    int warnings; // messages of level warning or error so far
    // Receives the messages of a call that is to be refused, which are no warnings then, or NULL
    struct log_capture *capture;
};

// Whether two threads may enqueue kernels at once. Oclgrind 21.10 simulates one kernel at a time
// and stops with an assertion of its own when a second one begins; Mesa 22.3's rusticl now and then
// gives wrong numbers.
bool takes_threads(const clattn_device_info *info);

void log_capture(void *user, clattn_log_level level, const char *message);

// Opens every OpenCL device, each with its own context and log. Prints what was found. False, with
// a line saying why, if an expected device is missing or does not open.
bool devices_open(struct test_device *devices, int *count);
// The built-in CPU path.
bool device_open_builtin(struct test_device *device);
void devices_close(struct test_device *devices, int count);


// Something that computes: a device and the algorithm and kernel that are forced on it.
struct test_target {
    struct test_device *device;
    int32_t algo;   // enum clattn_algo
    int32_t kernel; // enum clattn_kernel
    int level;      // enum test_level
    char name[96];
    void *plans; // kept between tests; see run_case.c
};

struct target_test {
    const char *name;
    void (*run)(void **state); // *state is the struct test_target
    int level;                 // runs on targets of this level and above
};

// main() of a test that runs on targets. First argument "cpu": host and reference; "opencl": each
// OpenCL device with each kernel shape it can run. Second argument, optional: which tests, with *
// and ?. Returns the exit status; 77 = no OpenCL device.
int targets_main(const char *suite, int argc, char **argv, const struct target_test *tests,
                 int num_tests);

// Set before targets_main() by programs about results: fused attention with sub-groups, too, where
// the device has them.
extern bool targets_with_subgroups;

// CLATTN_TEST_SHARE, 0 where it is not set.
int test_share(void);

// A plan of `desc` forced to the target's algorithm and kernel. Fails the test if it cannot be
// made, is of another algorithm or kernel, stands on a fallback, or came with a warning: a tile
// that did not build or failed its trial.
clattn_plan *target_plan(const struct test_target *t, clattn_attention_desc desc);

#endif // TESTS_OPEN_DEVICE_H
