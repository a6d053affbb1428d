// SPDX-License-Identifier: Apache-2.0
// The public call that rounds rows in host memory to int8.
#include <math.h>

#include "kv.h"
#include "util/float_mode.h"

static clattn_status check(const struct cla_log *log, const float *x, int64_t rows, int64_t dim,
                           int64_t stride, const int8_t *out, const float *scale)
{
    clattn_status st = CLATTN_OK;
    const struct cla_kv_count counts[] = {
        {"rows", rows, 0}, {"dim", dim, 1}, {"stride", stride, 0}};
    int64_t all;
    CLA_TRY(cla_kv_counts(log, counts, 3));
    if (stride < dim)
        CLA_TRY(cla_fail(log, CLATTN_ERR_STRIDE, "stride is %lld, less than dim %lld",
                         (long long)stride, (long long)dim));
    if (__builtin_mul_overflow(rows, stride, &all) || (uint64_t)all > SIZE_MAX / sizeof(float))
        CLA_TRY(cla_fail(log, CLATTN_ERR_STRIDE,
                         "%lld rows of stride %lld overflow the address space", (long long)rows,
                         (long long)stride));
    if (rows && (!x || !out || !scale))
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is NULL",
                         !x ? "x" : !out ? "out" : "scale"));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d++)
            if (!isfinite(x[r * stride + d]))
                CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                                 "row %lld: element %lld is %g, not finite", (long long)r,
                                 (long long)d, (double)x[r * stride + d]));
done:
    return st;
}

clattn_status clattn_quantize_i8(clattn_context *ctx, const float *x, int64_t rows, int64_t dim,
                                 int64_t stride, int8_t *out, float *scale)
{
    static const struct cla_log silent = {0};
    const int64_t step = stride ? stride : dim;
    const clattn_status st = check(ctx ? &ctx->log : &silent, x, rows, dim, step, out, scale);
    const unsigned mode = cla_float_begin();
    for (int64_t r = 0; st == CLATTN_OK && r < rows; r++)
        scale[r] = cla_host_quantize_row(x + r * step, dim, out + r * dim);
    cla_float_end(mode);
    return st;
}
