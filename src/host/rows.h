// SPDX-License-Identifier: Apache-2.0
// Rows that do not depend on each other, over the threads of the CPU path.
#ifndef CLA_HOST_ROWS_H
#define CLA_HOST_ROWS_H

#include "host/host.h"
#include "host/kernel.h"

static inline void cla_host_each_row(int64_t rows, int32_t requested,
                                     void (*one)(const void *what, int64_t row), const void *what)
{
#ifdef _OPENMP
    const int32_t threads = cla_host_threads(requested);
    if (threads > 1 && rows > 1) {
        cla_host_note_region();
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t r = 0; r < rows; r++)
            one(what, r);
        return;
    }
#else
    (void)requested;
#endif
    for (int64_t r = 0; r < rows; r++)
        one(what, r);
}

// Rows may say at once what went wrong with them.
static inline void cla_host_raise(int32_t *faults, int32_t bits)
{
    __atomic_fetch_or(faults, bits, __ATOMIC_RELAXED);
}

#endif // CLA_HOST_ROWS_H
