// SPDX-License-Identifier: Apache-2.0
// As cl/rotary.clh.
#ifndef CLA_HOST_ROTARY_H
#define CLA_HOST_ROTARY_H

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

static inline int32_t cla_pair_first(const struct cla_rotary_args *r, int32_t t)
{
    return r->flags & CLA_KV_HALF_SPLIT ? t : 2 * t;
}

static inline int32_t cla_pair_second(const struct cla_rotary_args *r, int32_t t)
{
    return r->flags & CLA_KV_HALF_SPLIT ? t + r->dim / 2 : 2 * t + 1;
}

#endif // CLA_HOST_ROTARY_H
