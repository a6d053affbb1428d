// SPDX-License-Identifier: Apache-2.0
// What the measuring calls run: nothing but fused multiply-adds, and nothing but reads.

// The latency of two FMA units times 4 or 5 cycles needs 8 to 10 chains; 12 leave room, and with
// the two factors fit into 16 registers.
#define PEAK_CHAINS 12

VEC_NOINLINE double run_fma_loop(int64_t count, float *sink)
{
    const vf a = vec_splat(sink[0]);
    const vf b = vec_splat(sink[1]);
    vf x[PEAK_CHAINS];
    VEC_UNROLL
    for (int i = 0; i < PEAK_CHAINS; i++)
        x[i] = vec_splat((float)i);
    for (int64_t n = 0; n < count; n++) {
        VEC_UNROLL
        for (int i = 0; i < PEAK_CHAINS; i++)
            x[i] = vec_fma(x[i], a, b);
    }
    vf sum = vec_splat(0.0f);
    VEC_UNROLL
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum += x[i];
    for (int i = 0; i < W; i++)
        sink[2] += sum[i];
    return 2.0 * W * PEAK_CHAINS * (double)count;
}

VEC_NOINLINE void run_read_loop(const float *data, size_t count, float *sink)
{
    vf sum[8];
    VEC_UNROLL
    for (int i = 0; i < 8; i++)
        sum[i] = vec_splat(0.0f);
    size_t at = 0;
    for (; at + 8 * W <= count; at += 8 * W) {
        VEC_UNROLL
        for (int i = 0; i < 8; i++)
            sum[i] += vec_load(data + at + i * W);
    }
    float rest = 0.0f;
    for (; at < count; at++)
        rest += data[at];
    VEC_UNROLL
    for (int i = 1; i < 8; i++)
        sum[0] += sum[i];
    for (int i = 0; i < W; i++)
        rest += sum[0][i];
    sink[2] += rest;
}
