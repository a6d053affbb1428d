// SPDX-License-Identifier: Apache-2.0
// Shows that a device compiles, passes the argument block as the host laid it out, computes in 64
// bits and exchanges values through local memory. The host knows every word that must come back.
//
// One work-group of ITEMS work-items (4, or 1 where the device allows no more).
// Local memory: 4 * ITEMS bytes.
#include "abi.h"

#ifndef ITEMS
#error "self_test.cl: ITEMS"
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
self_test(const struct cla_fwd_args a, __global long *out, __global const float *absent)
{
    __local int left[ITEMS];
    const int i = (int)get_local_id(0);
    left[i] = i + 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    int digits = 0;
    for (int k = 0; k < ITEMS; k++)
        digits = digits * 10 + left[k];
    if (i == ITEMS - 1) { // written by the item that saw the others' values
        out[0] = (long)sizeof(struct cla_fwd_args);
        out[1] = a.q.offset;
        out[2] = a.o.stride_s;
        out[3] = a.mask.stride_k;
        out[4] = a.lse_offset;
        out[5] = a.len_kv;
        out[6] = a.win_hi;
        out[7] = (long)(a.scale * 1000.0f);
        out[8] = a.num_tiles;
        out[9] = a.q.offset * 3 + a.o.stride_s;
        out[10] = digits;
        out[11] = absent == 0;
    }
}
