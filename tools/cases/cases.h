// SPDX-License-Identifier: Apache-2.0
// The list of attention problems that tests walk and benches may pick from. Plain data, no device.
#ifndef CLATTN_CASES_H
#define CLATTN_CASES_H

#include <stdbool.h>
#include <stdint.h>

// Of a function: which argument is a format, and which the first of its arguments. MinGW's own
// meaning of `printf` is that of Microsoft's library.
#if defined(__MINGW32__) && !defined(__clang__)
#define CASE_PRINTF(format_at, first_at) __attribute__((format(gnu_printf, format_at, first_at)))
#else
#define CASE_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#endif

// Where a case runs: a device runs the cases of its own level and below.
enum test_level {
    LEVEL_SMALL = 0,  // simulators: a few shapes, a few kernels
    LEVEL_MEDIUM = 1, // devices that compile or compute slowly
    LEVEL_FULL = 2
};

// How the boolean mask lies in memory. Axes with a bit in mask_bcast have extent 1.
enum mask_form {
    MASK_NONE = 0,
    MASK_CONTIGUOUS,
    MASK_KEY_STRIDE_2, // strided, every other byte belongs to another tensor
    MASK_STRIDE_0      // full extents, but stride 0 on the axes in mask_bcast
};

// How Q, K, V and O lie in memory.
enum case_layout {
    LAY_BHSD = 0,    // contiguous
    LAY_BSHD,        // contiguous
    LAY_PACKED_QKV,  // views of one [batch, seq, 3, heads, dim]; O is BSHD
    LAY_PADDED,      // rows of dim + 3 floats, padding is NaN
    LAY_PADDED_4,    // rows padded to the next multiple of 4 and 4 more
    LAY_SEQ_FIRST,   // [seq, batch, heads, dim], strided
    LAY_ODD_OFFSET,  // BHSD, one float past an aligned address
    LAY_BCAST_BATCH, // K and V with stride 0 on batch
    LAY_BCAST_HEAD,  // K and V with stride 0 on the head
    LAY_COUNT
};

// What Q, K, V and the mask hold.
enum case_input {
    IN_NORMAL = 0,
    IN_LARGE,        // Q times 30: a softmax close to a maximum
    IN_EQUAL,        // Q = 0: all scores equal
    IN_ONE_HOT,      // one key of each query takes nearly all of the weight
    IN_EMPTY_ROWS,   // the mask hides every key from some queries
    IN_HIDDEN_NAN,   // NaN and infinities in K and V at keys that no query sees
    IN_V_PARTLY_NAN, // likewise in V at keys that some queries see and others do not
    IN_VISIBLE_NAN,  // a NaN key and a NaN query
    IN_NEG_INF,      // scores of -infinity, with NaN in V behind them; one query sees nothing else
    IN_NEG_BIG       // scores of -1e38, scale 1
};

struct attn_case {
    char name[56];
    int32_t dim, batch, heads_q, heads_kv, len_q, len_kv;
    int32_t dim_v; // channels of V and O; 0 = dim
    bool causal;
    int32_t align;  // enum clattn_align
    bool has_scale; // else 1 / sqrt(dim)
    float scale;
    int32_t mask_form;    // enum mask_form
    uint32_t mask_bcast;  // bit a: the mask is broadcast along axis a of batch, head, query, key
    int32_t layout;       // enum case_layout
    int32_t input;        // enum case_input
    uint64_t seed;
    int32_t level; // enum test_level
    // 0, or 1 to 4: where devices share such cases out, each runs those of its own number, since
    // other cases take the same way through the kernels with another head dimension.
    int32_t share;
};

static inline int32_t case_dim_v(const struct attn_case *c)
{
    return c->dim_v ? c->dim_v : c->dim;
}

// The bounds that every case keeps, so that cases share their plans.
enum { CASE_MAX_LEN = 512 };

// The whole list, made at the first call; NULL if memory ran out. Not thread-safe.
const struct attn_case *attn_cases(int *count);

// Problems of the sizes that are worth timing, too large for the reference as a whole: clattn-bench
// verifies parts of them.
const struct attn_case *attn_bench_cases(int *count);

#endif // CLATTN_CASES_H
