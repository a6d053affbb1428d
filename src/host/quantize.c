// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "host/int8.h"
#include "host/kv.h"

float cla_host_quantize_row(const float *x, int64_t dim, int8_t *out)
{
    float largest = 0.0f;
    for (int64_t d = 0; d < dim; d++)
        largest = cla_larger(x[d], largest);
    const float scale = cla_i8_scale(largest);
    if (!(scale > 0.0f)) {
        memset(out, 0, (size_t)dim);
        return scale;
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] = cla_to_i8(x[d], scale);
    return scale;
}
