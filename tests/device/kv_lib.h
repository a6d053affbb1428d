// SPDX-License-Identifier: Apache-2.0
// Tensors of any type, place and strides for the tests of the operations around attention. A byte
// that no element of an output owns must be as it was after a call.
#ifndef TESTS_KV_LIB_H
#define TESTS_KV_LIB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "clattn/clattn.h"
#include "compare.h"
#include "open_device.h"

// The context that tensors are made for, and what it logs.
struct kv_device {
    clattn_context *ctx;
    const clattn_device_info *info;
    bool opencl;
    struct log_capture log;
};
extern struct kv_device kd;

enum { KV_I32 = 100 }; // beside enum clattn_dtype

enum kv_form { KV_BHSD, KV_BSHD, KV_GAPS, KV_FORMS };

struct tens {
    int32_t dtype;
    int64_t extent[3], dim, stride[3];
    bool on_device;
    size_t bytes;          // with guards
    unsigned char *now;    // the host's side
    unsigned char *before; // as it was when it was last sent
    unsigned char *owned;  // 1 where an element lies
    clattn_tensor t;       // for calls
};

// Elements and everything around them hold UNWRITTEN_BITS.
void tens_make(struct tens *t, bool on_device, int32_t dtype, int64_t batch, int64_t heads,
               int64_t len, int64_t dim, enum kv_form form);
// Numbers that follow each other.
void vec_make(struct tens *t, bool on_device, int32_t dtype, int64_t n);
void tens_free(struct tens *t);

int64_t tens_at(const struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d);
double tens_get(const struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d);
void tens_set(struct tens *t, int64_t b, int64_t h, int64_t s, int64_t d, double x);
double vec_get(const struct tens *t, int64_t n);
void vec_set(struct tens *t, int64_t n, double x);

// Random numbers of this size about 0.
void tens_fill(struct tens *t, uint64_t seed, double size);
// Uniform in -1 to 1.
double kv_random(uint64_t *state);

// To where the library reads it, and back; the latter fails the test where a byte changed that no
// element owns, or, without `writes`, any byte.
void tens_push(struct tens *t);
void tens_pull(struct tens *t, const char *what, bool writes);

// What may lie between a stored value and the exact one.
double kv_tolerance(int32_t dtype, double exact);
// Fails the test unless `got` is `want` but for rounding; a NaN must meet a NaN.
void kv_check(const char *what, int64_t at, double got, double want, double tolerance);

void kv_clear_log(void);
// The status, and one message with the text.
void kv_refused(const char *what, clattn_status got, clattn_status want, const char *says);

// main() of a test: argument "cpu" or "opencl", the latter on each device.
int kv_main(const char *suite, int argc, char **argv, const struct CMUnitTest *tests,
            size_t num_tests);
// Where tests have their tensors: host memory, and memory of the device too where there is one.
int kv_places(void);

#define KV_RUN(call)                                                                               \
    do {                                                                                           \
        kv_clear_log();                                                                            \
        const clattn_status st_ = (call);                                                          \
        if (st_ != CLATTN_OK)                                                                      \
            fail_msg("%s: %s: %s", #call, clattn_status_string(st_), kd.log.text);                 \
    } while (0)

#endif // TESTS_KV_LIB_H
