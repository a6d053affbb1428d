// SPDX-License-Identifier: Apache-2.0
// The CPU path: fused, tiled attention in portable C. No OpenCL.
#ifndef CLA_HOST_HOST_H
#define CLA_HOST_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "problem.h"

// Name of the instruction set that will be used ("avx512", "avx2", "neon", "generic").
const char *cla_host_isa(void);

// And for plans of this kind, also "avx512bf16".
const char *cla_host_isa_of(const struct cla_problem *p);

// Floats in a vector.
int32_t cla_host_width(void);

// Floats in a vector, rows a thread owns at once, keys in a tile, for the plan info.
void cla_host_tile(const struct cla_problem *p, int32_t *width, int32_t *tile_q, int32_t *tile_k);

// Threads that `requested` (0 = default) stands for; by these work is cut.
int32_t cla_host_threads(int32_t requested);

// One forward pass. `call` gives lengths, strides, window and scale; its buffers are not looked at.
// Scratch is allocated inside. Returns CLATTN_OK or CLATTN_ERR_OUT_OF_MEMORY (nothing written).
clattn_status cla_host_forward(const struct cla_problem *p, const struct cla_call *call,
                               const struct cla_host_mem *mem, int32_t threads);

// What a C loop reaches with as many threads, best of several runs: GFLOP/s of FMA with the widest
// vectors of cla_host_isa(), and GB/s of reading `bytes` bytes once. 0 if memory ran out.
double cla_host_peak_fma(int32_t threads, bool brief);
double cla_host_peak_read(int32_t threads, size_t bytes);

#endif // CLA_HOST_HOST_H
