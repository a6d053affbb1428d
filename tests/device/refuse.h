// SPDX-License-Identifier: Apache-2.0
// Tables of refusals: what a row changes in a valid description or call, and what must come of it.
// After each row the outputs are untouched, one message names the field and the value, and the next
// valid call on the same plan is right.
#ifndef TESTS_REFUSE_H
#define TESTS_REFUSE_H

#include <stddef.h>
#include <stdint.h>

#include "clattn/clattn.h"
#include "data.h"
#include "open_device.h"

enum { DIM = 16, BATCH = 2, HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 3, LEN_KV = 5 };
enum { COUNT_O = BATCH * HEADS_Q * LEN_Q * DIM, COUNT_LSE = BATCH * HEADS_Q * LEN_Q };
enum { COUNT_KV = BATCH * HEADS_KV * LEN_KV * DIM, COUNT_MASK = COUNT_LSE * LEN_KV };
enum { GUARD = 64 }; // floats around each output

struct fixture {
    struct test_target *target;
    clattn_context *ctx; // its own, whose messages are captured
    struct log_capture log;
    struct attn_case c;
    struct attn_data d;
    clattn_plan *plan; // with mask and log-sum-exp, batch up to 4, lengths up to 8
    clattn_plan *wide; // likewise without bounds
    float o[COUNT_O + 2 * GUARD], lse[COUNT_LSE + 2 * GUARD];
};

extern struct fixture fx;

enum edit_op {
    EDIT_NONE = 0,
    EDIT_SET, // an integer, or the bits of a float
    EDIT_ADD, // to an integer or a pointer
    EDIT_COPY // from another place of the struct
};

struct edit {
    enum edit_op op;
    size_t at, size;
    int64_t value; // of EDIT_COPY the place copied from
};

#define SIZE_OF(type, field) sizeof(((type *)0)->field)
#define EDIT(kind, type, field, value)                                                             \
    {                                                                                              \
        kind, offsetof(type, field), SIZE_OF(type, field), value                                   \
    }
#define DESC(field, value) EDIT(EDIT_SET, clattn_attention_desc, field, value)
#define CALL(field, value) EDIT(EDIT_SET, clattn_attention_call, field, value)
#define CALL_ADD(field, value) EDIT(EDIT_ADD, clattn_attention_call, field, value)
#define CALL_COPY(to, from) EDIT(EDIT_COPY, clattn_attention_call, to,                             \
                                 (int64_t)offsetof(clattn_attention_call, from))
#define NAN_BITS 0x7fc00000
#define INFINITY_BITS 0x7f800000
#define MINUS_INFINITY_BITS 0xff800000

// Which targets a row is for.
enum where { ANYWHERE = 0, ON_BUILTIN, ON_OPENCL, WIDE_PLAN };

struct refusal {
    const char *name;
    clattn_status want;
    const char *says[2]; // both are in the message; NULL = nothing more
    struct edit edit[4];
    enum where where;
};

bool on_builtin(void);

// Opens the context and the plans of a target; the tests of one target share them, so that no
// refusal may have harmed them.
void fixture_open(struct test_target *target);
void fixture_close(void);

clattn_attention_desc good_desc(void);
clattn_attention_call good_call(void); // on host memory

void clear_log(void);
void blank_outputs(void);
void assert_untouched(const char *what);
void assert_valid_works(const char *after);

// The status, and one message that says both; `says` NULL: no message at all.
void assert_refused(const char *name, clattn_status got, clattn_status want,
                    const char *const says[2]);

void edit_struct(void *what, const struct edit edit[4]);

// Every row on its own, on plan creation or on clattn_attention_run() and
// clattn_plan_workspace_bytes(). Prints how many rows there were.
void refuse_descs(const struct refusal *rows, size_t count);
void refuse_calls(const struct refusal *rows, size_t count);

#define INVALID CLATTN_ERR_INVALID_ARGUMENT
#define ROWS(a) (a), sizeof(a) / sizeof *(a)
#define SAYS(...) ((const char *const[2]){__VA_ARGS__})

// One call that is refused, whose single message says up to two texts.
#define REFUSED(call_, what, want, ...)                                                            \
    do {                                                                                           \
        clear_log();                                                                               \
        assert_refused(what, call_, want, SAYS(__VA_ARGS__));                                      \
    } while (0)

#endif // TESTS_REFUSE_H
