// SPDX-License-Identifier: Apache-2.0
// What this machine reaches in loops that do nothing else, to put figures into proportion.
#include <stdbool.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/host.h"
#include "host/kernel.h"
#include "util/os.h"

enum { RUNS = 8, BRIEF_RUNS = 3 };

// A run of either loop by all threads; the slowest thread counts.
struct peak {
    const struct cla_host_kernel *kernel;
    int64_t count;     // FMA: iterations; 0 = read
    const float *data; // read
    size_t floats;
};

static double run_part(const struct peak *k, int32_t part, int32_t parts)
{
    // A factor below 1 keeps the sums finite.
    float sink[3] = {0.5f, 1.0f, 0.0f};
    double work;
    if (k->count) {
        work = k->kernel->fma_loop(k->count, sink);
    } else {
        const size_t from = k->floats / (size_t)parts * (size_t)part;
        const size_t to = part + 1 == parts ? k->floats : from + k->floats / (size_t)parts;
        k->kernel->read_loop(k->data + from, to - from, sink);
        work = (double)((to - from) * sizeof(float));
    }
    // Something that the compiler cannot know to be true keeps the loops alive.
    return sink[2] == -1.0f ? 0.0 : work;
}

// Work per nanosecond of the best run. One run is about a millisecond or longer.
static double best_of(const struct peak *k, int32_t threads, int runs)
{
    double best = 0.0;
    (void)threads; // a build without OpenMP has one
    for (int run = 0; run < runs; run++) {
        double work = 0.0;
        uint64_t start = 0, end = 0;
#ifdef _OPENMP
        if (threads > 1) {
#pragma omp parallel num_threads(threads)
            {
#pragma omp barrier
#pragma omp master
                start = cla_os_now_ns();
                const double part = run_part(k, omp_get_thread_num(), omp_get_num_threads());
// An atomic, not a reduction: for that clang would export a lock of its own from the library.
#pragma omp atomic
                work += part;
#pragma omp barrier
#pragma omp master
                end = cla_os_now_ns();
            }
        } else
#endif
        {
            start = cla_os_now_ns();
            work = run_part(k, 0, 1);
            end = cla_os_now_ns();
        }
        const double rate = end > start ? work / (double)(end - start) : 0.0;
        best = rate > best ? rate : best;
    }
    return best;
}

double cla_host_peak_fma(int32_t threads, bool brief)
{
    struct peak k = {.kernel = cla_host_kernels()[0], .count = 1000000};
    return best_of(&k, cla_host_team(cla_host_threads(threads)), brief ? BRIEF_RUNS : RUNS);
}

double cla_host_peak_read(int32_t threads, size_t bytes)
{
    struct peak k = {.kernel = cla_host_kernels()[0], .floats = bytes / sizeof(float)};
    if (k.floats == 0)
        return 0.0;
    float *data = malloc(k.floats * sizeof *data);
    if (!data)
        return 0.0;
    for (size_t i = 0; i < k.floats; i++)
        data[i] = 1.0f;
    k.data = data;
    const double rate = best_of(&k, cla_host_team(cla_host_threads(threads)), RUNS);
    free(data);
    return rate;
}
