// SPDX-License-Identifier: Apache-2.0
// Rows of keys or queries as floats, turned. As cl/rotary.clh.
#ifndef CLA_HOST_ROTARY_H
#define CLA_HOST_ROTARY_H

#include "host/rows.h"
#include "kv_abi.h"

static inline int64_t cla_rotary_row(const struct cla_rotary_args *r, int32_t first, int64_t i,
                                     int32_t *faults)
{
    const int64_t at = (int64_t)r->start + first + i;
    if (at >= 0 && at < r->positions)
        return at;
    *faults |= CLA_FAULT_POSITION;
    return at < 0 ? 0 : r->positions - 1;
}

// A row in memory, and the cosines and sines of its position.
struct cla_turn {
    const struct cla_rotary_args *rotary;
    const void *mem;
    int64_t at;
    int32_t dtype, dim, turned; // channels, and those of them that are turned: 0 or rotary->dim
    const float *cos_row, *sin_row;
};

// Channels from d on, up to CLA_ROW_CHUNK of them and not over the borders of what is turned; d is
// where the last call ended, or 0. Returns how many.
static inline int32_t cla_turn_chunk(const struct cla_turn *t, int32_t d, float *out)
{
    const bool split = (t->rotary->flags & CLA_KV_HALF_SPLIT) != 0;
    const int32_t half = t->turned / 2;
    const int32_t end = d >= t->turned ? t->dim : split && d < half ? half : t->turned;
    const int32_t n = end - d < CLA_ROW_CHUNK ? end - d : CLA_ROW_CHUNK;
    float x[CLA_ROW_CHUNK], y[CLA_ROW_CHUNK];
    if (d >= t->turned) {
        cla_row_load(t->mem, t->at + d, t->dtype, n, out);
    } else if (!split) {
        const float *c = t->cos_row + d / 2, *s = t->sin_row + d / 2;
        cla_row_load(t->mem, t->at + d, t->dtype, n, x);
        for (int32_t k = 0; k < n / 2; k++) {
            out[2 * k] = x[2 * k] * c[k] - x[2 * k + 1] * s[k];
            out[2 * k + 1] = x[2 * k] * s[k] + x[2 * k + 1] * c[k];
        }
    } else {
        const bool second = d >= half;
        const int32_t first = second ? d - half : d;
        const float *c = t->cos_row + first, *s = t->sin_row + first;
        cla_row_load(t->mem, t->at + first, t->dtype, n, x);
        cla_row_load(t->mem, t->at + first + half, t->dtype, n, y);
        for (int32_t k = 0; k < n; k++)
            out[k] = second ? x[k] * s[k] + y[k] * c[k] : x[k] * c[k] - y[k] * s[k];
    }
    return n;
}

#endif // CLA_HOST_ROTARY_H
