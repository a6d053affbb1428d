// SPDX-License-Identifier: Apache-2.0
// Rows that do not depend on each other, over the threads of the CPU path.
#ifndef CLA_HOST_ROWS_H
#define CLA_HOST_ROWS_H

#include <string.h>

#include "host/host.h"
#include "host/kernel.h"
#include "util/float_mode.h"
#include "util/half.h"

// Elements from which a second thread pays: waking it costs microseconds, and milliseconds where
// other programs want the cores.
enum { CLA_MIN_PARALLEL_ELEMS = 100000 };

// On so many threads, each in the usual mode of floating point.
static inline void cla_host_rows(int64_t rows, int32_t threads,
                                 void (*one)(const void *what, int64_t row), const void *what)
{
    (void)threads;
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            const unsigned mode = cla_float_begin();
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++)
                one(what, r);
            cla_float_end(mode);
        }
        return;
    }
#endif
    const unsigned mode = cla_float_begin();
    for (int64_t r = 0; r < rows; r++)
        one(what, r);
    cla_float_end(mode);
}

// `elems` is what a row reads or writes.
static inline void cla_host_each_row(int64_t rows, int64_t elems, int32_t requested,
                                     void (*one)(const void *what, int64_t row), const void *what)
{
    const bool few = rows < 2 || (double)rows * (double)elems < CLA_MIN_PARALLEL_ELEMS;
    cla_host_rows(rows, few ? 1 : cla_host_team(cla_host_threads(requested)), one, what);
}

// Channels of a row, converted to float and back: the type is looked at once for all of them.
enum { CLA_ROW_CHUNK = 64 };

static inline void cla_row_load(const void *mem, int64_t at, int32_t dtype, int64_t n, float *out)
{
    if (dtype == CLATTN_DTYPE_F16) {
        for (int64_t d = 0; d < n; d++)
            out[d] = cla_f16_to_f32(((const uint16_t *)mem)[at + d]);
    } else if (dtype == CLATTN_DTYPE_BF16) {
        for (int64_t d = 0; d < n; d++)
            out[d] = cla_bf16_to_f32(((const uint16_t *)mem)[at + d]);
    } else {
        memcpy(out, (const float *)mem + at, (size_t)n * sizeof(float));
    }
}

static inline void cla_row_store(void *mem, int64_t at, int32_t dtype, int64_t n, const float *x)
{
    if (dtype == CLATTN_DTYPE_F16) {
        for (int64_t d = 0; d < n; d++)
            ((uint16_t *)mem)[at + d] = cla_f32_to_f16(x[d]);
    } else if (dtype == CLATTN_DTYPE_BF16) {
        for (int64_t d = 0; d < n; d++)
            ((uint16_t *)mem)[at + d] = cla_f32_to_bf16(x[d]);
    } else {
        memcpy((float *)mem + at, x, (size_t)n * sizeof(float));
    }
}

// Rows may say at once what went wrong with them.
static inline void cla_host_raise(int32_t *faults, int32_t bits)
{
    __atomic_fetch_or(faults, bits, __ATOMIC_RELAXED);
}

#endif // CLA_HOST_ROWS_H
