// SPDX-License-Identifier: Apache-2.0
// An application that has clattn as its guest: a context, queues, buffers and a problem of its own.
// It links OpenCL as an application does; the library under test opens it by itself.
#ifndef TESTS_APPLICATION_H
#define TESTS_APPLICATION_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "data.h"
#include "open_device.h"

enum { BUF_Q, BUF_K, BUF_V, BUF_MASK, BUF_O, BUF_LSE, BUF_WORKSPACE, BUFS };

struct application {
    struct test_device *device;
    int32_t algo;
    cl_device_id id;
    cl_context context;
    cl_command_queue in_order, other, out_of_order; // out_of_order: NULL where there is none
    clattn_context *guest;
    struct log_capture log;
    clattn_plan *plan;
    struct attn_case c;
    struct attn_data d;
    size_t bytes[BUFS];
    cl_mem mem[BUFS]; // GUARD_BYTES before and after what counts; no workspace where none is needed
};

extern struct application app;

#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

// Guests that come after one another on the same device, each with the same kernels, find them in a
// program cache of this run, until the second call, which removes it.
bool app_cache_open(void);
void app_cache_close(void);

// Opens it on a device with a guest of its own; a NULL case leaves the problem, its data and memory
// to the caller. False with a line saying why.
bool app_open(struct test_device *device, int32_t algo, const struct attn_case *c);
void app_close(bool failed);

// Before and after each test: the plan and the memory.
int app_set_up(void **state);
int app_tear_down(void **state);

clattn_context *app_adopt(cl_command_queue queue);
clattn_plan *app_plan(const struct attn_case *c);

// A buffer whose bytes are all the pattern of what was never written, GUARD_BYTES on both sides.
cl_mem app_blank_buffer(cl_mem_flags flags, size_t bytes);
// One of Q, K, V and the mask, or all of them.
void app_write_input(cl_command_queue queue, cl_bool blocking, int n, cl_event *event);
void app_write_inputs(cl_command_queue queue);

clattn_buf app_buf(int n);
clattn_attention_call app_call(void);
// A workspace for a call on another plan than the application's; NULL where none is needed.
cl_mem app_own_workspace(const clattn_plan *plan, clattn_attention_call *call);
// The call on a queue, behind `wait` (NULL = nothing).
void app_enqueue(cl_command_queue queue, cl_event wait, cl_event *done);

// Reads a buffer of app_blank_buffer() whole, behind `wait` (NULL = nothing); the guards around its
// `bytes` must be as they were. The caller frees.
float *app_read_guarded(cl_command_queue queue, cl_event wait, cl_mem mem, size_t bytes,
                        const char *what);

// Fails the test if any byte of such a buffer was written.
void app_assert_blank(cl_command_queue queue, cl_mem mem, size_t bytes);

// Reads O and LSE whole, behind `wait` (NULL = nothing), and checks every byte; what lies around
// the workspace must be as it was.
void app_check_result(cl_command_queue queue, cl_event wait);
void app_assert_outputs_blank(cl_command_queue queue);

cl_int app_status_of(cl_event event);
cl_event app_user_event(void);

// Whether a device may be left waiting for a user event; app_need_user_events() skips the test.
bool app_has_user_events(const struct test_device *device);
void app_need_user_events(void);

#endif // TESTS_APPLICATION_H
