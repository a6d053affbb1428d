// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "host/kv.h"

float cla_host_quantize_row(const float *x, int64_t dim, int8_t *out)
{
    float largest = 0.0f;
    bool finite = true;
    for (int64_t d = 0; d < dim; d++) {
        const float size = fabsf(x[d]);
        largest = size > largest ? size : largest;
        finite = finite && isfinite(x[d]);
    }
    const float scale = finite ? largest / 127.0f : NAN;
    if (!(scale > 0.0f)) {
        memset(out, 0, (size_t)dim);
        return scale;
    }
    for (int64_t d = 0; d < dim; d++) {
        // Denormal scales are so coarse that the quotient can be over 127.
        const float y = rintf(x[d] / scale);
        out[d] = (int8_t)(y > 127.0f ? 127.0f : y < -127.0f ? -127.0f : y);
    }
    return scale;
}
