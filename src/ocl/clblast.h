// SPDX-License-Identifier: Apache-2.0
// CLBlast, a library of matrix products on OpenCL, opened at run time: clattn neither links it nor
// needs its headers. Tested with 1.5.3, whose C interface is that of 1.2 and later.
#ifndef CLA_OCL_CLBLAST_H
#define CLA_OCL_CLBLAST_H

#include <stdbool.h>

#include "ocl/api.h"

struct cla_clblast;

// Matrices in one buffer, row after row: the first begins at `offset`, rows are `ld` apart, one
// matrix is `stride` behind the other. In elements; CLBlast counts them in 31 bits.
struct cla_matrices {
    cl_mem mem;
    size_t offset, ld, stride;
};

// C = A * B, or A * B^T, for `count` triples of matrices: C is m x n, A m x k. None may be 0.
struct cla_gemm {
    size_t m, n, k, count;
    bool transpose_b;
    struct cla_matrices a, b, c;
};

// The process's CLBlast, opened at first use and never closed, since it keeps what it has compiled
// until the process ends. NULL with "CLBlast not found: tried ..." in `why`.
const struct cla_clblast *cla_clblast_shared(const struct cla_log *log, char *why, size_t why_size);

// Opens the first library of a list that NULL ends. NULL, with what was tried in `why`.
struct cla_clblast *cla_clblast_open(const char *const *names, char *why, size_t why_size);
// NULL-safe. The library itself stays open.
void cla_clblast_close(struct cla_clblast **blast);

// Whether CLBlast calls the OpenCL library that `cl` was filled from: what one loader made, another
// cannot use. False with both in `why`.
bool cla_clblast_same_loader(const struct cla_clblast *blast, const struct cla_cl *cl, char *why,
                             size_t why_size);

// Whether CLBlast takes these as A or C, or as B untransposed. Its kernel for large matrices passes
// over the offset and the stride of matrices that need no padding: what has no gap between rows
// must begin at 0 and have no gap between matrices either.
bool cla_clblast_takes(const struct cla_matrices *m, size_t rows, size_t columns);

// Enqueues the products. CLBlast takes no wait list: what they need must be ahead of them in an
// in-order queue or before a barrier, and the same holds for what needs them. It compiles at the
// first call for a context; calls take turns.
clattn_status cla_clblast_gemm(const struct cla_clblast *blast, const struct cla_log *log,
                               const struct cla_gemm *g, cl_command_queue queue);

#endif // CLA_OCL_CLBLAST_H
