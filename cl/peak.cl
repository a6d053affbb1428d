// SPDX-License-Identifier: Apache-2.0
// What a device can reach at most, to compare other kernels with.
//
//   peak_fma    multiply-adds in registers: 2 * CHAINS * W * iterations operations per work-item
//   peak_read   reads n_floats floats once, shared out evenly, contiguous for each work-item of a
//               CPU and interleaved over the work-group of a GPU
//
// Literals: W, floats in a vector; CHAINS, independent sums of peak_fma, enough to hide the
// latency and few enough for the registers; ITEMS, the work-group: 1 for CPU-shaped devices
// (W >= 4), W = 1 with many items elsewhere. Global size: any multiple of ITEMS.
// Numerics: the sums tend to 1 and neither overflow nor become denormal; results are stored so that
// the work cannot be left out.

#ifndef W
#error "peak.cl: W"
#endif
#ifndef CHAINS
#error "peak.cl: CHAINS"
#endif
#ifndef ITEMS
#error "peak.cl: ITEMS"
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#if W == 1
typedef float vec;
#define VEC_LOAD(p) (*(p))
#define MULADD mad
#else
typedef PASTE(float, W) vec;
#define VEC_LOAD(p) PASTE(vload, W)(0, p)
#define MULADD fma
#endif

__attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void
peak_fma(float seed, int iterations, __global float *out)
{
    vec x[CHAINS];
    const vec factor = (vec)(0.5f);
    const vec addend = (vec)(seed);
#pragma unroll
    for (int c = 0; c < CHAINS; ++c)
        x[c] = (vec)(seed + c);
    for (int n = 0; n < iterations; ++n) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c)
            x[c] = MULADD(x[c], factor, addend);
    }
    vec sum = (vec)(0.0f);
#pragma unroll
    for (int c = 0; c < CHAINS; ++c)
        sum += x[c];
    float total = 0.0f;
    for (int n = 0; n < W; ++n)
        total += ((float *)&sum)[n];
    out[get_global_id(0)] = total;
}

// Four sums keep four reads in flight.
__attribute__((reqd_work_group_size(ITEMS, 1, 1))) __kernel void
peak_read(__global const float *in, ulong n_floats, __global float *out)
{
    const ulong vectors = n_floats / W;
    const ulong groups = get_num_groups(0);
    const ulong begin = vectors * get_group_id(0) / groups;
    const ulong end = vectors * (get_group_id(0) + 1) / groups;
    vec sum[4] = {(vec)(0.0f), (vec)(0.0f), (vec)(0.0f), (vec)(0.0f)};
    ulong at = begin + get_local_id(0);
    for (; at + 3 * ITEMS < end; at += 4 * ITEMS) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
            sum[c] += VEC_LOAD(in + (at + c * ITEMS) * W);
    }
    for (; at < end; at += ITEMS)
        sum[0] += VEC_LOAD(in + at * W);
    sum[0] += sum[1] + sum[2] + sum[3];
    float total = 0.0f;
    for (int n = 0; n < W; ++n)
        total += ((float *)&sum[0])[n];
    out[get_global_id(0)] = total;
}
