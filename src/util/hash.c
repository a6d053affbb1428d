// SPDX-License-Identifier: Apache-2.0
#include "util/hash.h"

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int n)
{
    for (int i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

// Up to 8 bytes as a number, the first byte lowest.
static uint64_t word(const unsigned char *bytes, size_t count)
{
    uint64_t x = 0;
    for (size_t i = 0; i < count; i++)
        x |= (uint64_t)bytes[i] << (8 * i);
    return x;
}

static void absorb(uint64_t v[4], uint64_t m)
{
    v[3] ^= m;
    rounds(v, 2);
    v[0] ^= m;
}

uint64_t cla_hash(const void *data, size_t size, uint64_t k0, uint64_t k1)
{
    const unsigned char *bytes = data;
    // The key over "somepseudorandomlygeneratedbytes", as the paper has it.
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du,
                     k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    const size_t tail = size % 8;
    for (size_t i = 0; i < size - tail; i += 8)
        absorb(v, word(bytes + i, 8));
    absorb(v, (uint64_t)size << 56 | (tail ? word(bytes + size - tail, tail) : 0));
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
