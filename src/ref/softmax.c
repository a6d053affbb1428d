// SPDX-License-Identifier: Apache-2.0
#include "ref/softmax.h"

#include <math.h>

#include "util/float_mode.h"
#include "util/half.h"

static double load(const void *x, int32_t dtype, int64_t at)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: return (double)cla_f16_to_f32(((const uint16_t *)x)[at]);
    case CLATTN_DTYPE_BF16: return (double)cla_bf16_to_f32(((const uint16_t *)x)[at]);
    default: return (double)((const float *)x)[at];
    }
}

static void store(void *y, int32_t dtype, int64_t at, double value)
{
    switch (dtype) {
    case CLATTN_DTYPE_F16: ((uint16_t *)y)[at] = cla_f32_to_f16((float)value); break;
    case CLATTN_DTYPE_BF16: ((uint16_t *)y)[at] = cla_f32_to_bf16((float)value); break;
    default: ((float *)y)[at] = (float)value; break;
    }
}

void cla_ref_softmax(const struct cla_softmax *s, const struct cla_softmax_call *call,
                     const void *x, void *y, float *lse)
{
    const double scale = (double)call->scale;
    const unsigned mode = cla_float_begin();
    for (int64_t r = 0; r < call->rows; r++) {
        const int64_t x0 = r * call->stride_x, y0 = r * call->stride_y;
        double m = -INFINITY, d = 0.0;
        for (int64_t c = 0; c < call->len; c++) {
            const double v = scale * load(x, s->dtype_x, x0 + c);
            if (v > m) // a NaN stays out and makes d NaN below
                m = v;
        }
        const double shift = m == -INFINITY ? 0.0 : m;
        for (int64_t c = 0; c < call->len; c++)
            d += exp(scale * load(x, s->dtype_x, x0 + c) - shift);
        for (int64_t c = 0; c < call->len; c++) {
            const double v = exp(scale * load(x, s->dtype_x, x0 + c) - shift);
            store(y, s->dtype_y, y0 + c, d == 0.0 ? 0.0 : v / d);
        }
        if (lse)
            lse[r] = d == 0.0 ? -INFINITY : (float)(m + log(d));
    }
    cla_float_end(mode);
}
