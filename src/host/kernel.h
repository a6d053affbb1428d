// SPDX-License-Identifier: Apache-2.0
// What host.c and the objects that are compiled once per instruction set know of each other.
#ifndef CLA_HOST_KERNEL_H
#define CLA_HOST_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

// One call, as all its jobs see it.
struct cla_host_fwd {
    const struct cla_problem *p;
    const struct cla_call *call;
    const struct cla_host_mem *mem;
};

// Some neighbouring rows of one key head against a range of keys. Row r of key head g is query
// r / group of query head g * group + r % group, so that grouped heads share reads of K and V.
struct cla_host_job {
    int32_t b, g;
    int64_t row0;
    int32_t rows;
    int32_t key0, key1; // every key in [key0, key1) is inside the window of at least one row
    // Where the result goes: NULL = O and LSE of the call. Else floats for a later merge: m and l
    // of each row, then the normalised rows of dim_v floats.
    float *part;
};

// One compiled set of kernels: an instruction set with a register blocking.
struct cla_host_kernel {
    const char *isa;
    bool dot;         // takes products of 16 bits where cla_host_takes_dot()
    int32_t width;    // floats in a vector
    int32_t tile_q;   // rows of a tile
    int32_t few_rows; // up to so many rows per key head, few() is faster
    // Most tiles that a job of tile() may have; the more, the less time goes into reading keys.
    int32_t (*tiles)(const struct cla_problem *p);
    // Keys in a tile.
    int32_t (*tile_k)(const struct cla_problem *p);
    // Scratch of one thread in floats, a multiple of 16, for tile() and few() alike.
    size_t (*scratch_floats)(const struct cla_problem *p);
    // `scratch` is aligned to 64 bytes.
    void (*tile)(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch);
    void (*few)(const struct cla_host_fwd *f, const struct cla_host_job *job, float *scratch);
    // Measuring loops: fused multiply-adds in registers, returning how many operations were done;
    // and a sum over memory. *sink keeps the compiler from dropping the work.
    double (*fma_loop)(int64_t count, float *sink);
    void (*read_loop)(const float *data, size_t count, float *sink);
    // Row softmax, on n floats (softmax_impl.h).
    float (*row_max)(const float *x, int64_t n, float factor, float m);
    float (*row_sum)(const float *x, int64_t n, float factor, float shift);
    void (*row_write)(const float *x, float *y, int64_t n, float factor, float shift,
                      float inverse, bool stream);
    void (*row_exp)(const float *x, float *y, int64_t n, float factor);
    float (*row_total)(const float *x, int64_t n);
    void (*row_divide)(const float *x, float *y, int64_t n, float d);
};

// Inclusive range of keys that the window and len_kv leave to query i; empty where *lo > *hi.
static inline void cla_host_window(const struct cla_call *call, int64_t i, int32_t *lo, int32_t *hi)
{
    const int64_t first = i + call->win_lo;
    const int64_t last = i + call->win_hi;
    const int64_t len = call->len_kv;
    *lo = (int32_t)(first < 0 ? 0 : first > len ? len : first);
    *hi = (int32_t)(last < -1 ? -1 : last > len - 1 ? len - 1 : last);
}

// Kernels that this build has and this CPU can run, best first, ended by NULL.
const struct cla_host_kernel *const *cla_host_kernels(void);

// Whether a plan may have products of bfloat16 numbers, whose sums are floats.
static inline bool cla_host_takes_dot(const struct cla_problem *p)
{
    return p->dtype_q == CLATTN_DTYPE_BF16 && p->dtype_kv == CLATTN_DTYPE_BF16 &&
           p->dtype_o == CLATTN_DTYPE_BF16 && p->precision != CLATTN_PRECISION_FULL;
}

// The kernel for such plans that this build has and this CPU can run; else NULL. It serves the
// others, too, as one of cla_host_kernels() does.
const struct cla_host_kernel *cla_host_dot_kernel(void);

// What cla_host_dot_kernel() gives instead, where it is not NULL: for tests, before any plan.
extern const struct cla_host_kernel *cla_host_dot_stand_in;

// The kernel that plans of this kind run.
const struct cla_host_kernel *cla_host_kernel_of(const struct cla_problem *p);

// Threads that a parallel region that begins now may have: `threads`, or 1 in a child that was
// forked after an earlier one.
int32_t cla_host_team(int32_t threads);

// As cla_host_forward(), with a given kernel.
clattn_status cla_host_forward_with(const struct cla_host_kernel *kernel,
                                    const struct cla_problem *p, const struct cla_call *call,
                                    const struct cla_host_mem *mem, int32_t threads);

#endif // CLA_HOST_KERNEL_H
