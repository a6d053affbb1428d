// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: the entry that libFuzzer calls, a check that ends the process, and
// values taken from bytes. Past the last byte everything is 0, so that each input has a meaning.
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A target. 0 = this input may join the corpus.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Of functions whose loops tell libFuzzer nothing, and would cost most of the time if they did.
#if defined(__clang__)
#define FUZZ_SILENT __attribute__((no_sanitize("coverage"), noinline))
#else
#define FUZZ_SILENT
#endif

// A promise that was broken: the input is a find.
#define FUZZ_CHECK(what, ...)                                                                      \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #what);                             \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct bytes {
    const uint8_t *at;
    size_t left;
};

static inline uint32_t take_byte(struct bytes *b)
{
    if (!b->left)
        return 0;
    b->left--;
    return *b->at++;
}

static inline uint64_t take_number(struct bytes *b, int count)
{
    uint64_t x = 0;
    for (int i = 0; i < count; i++)
        x |= (uint64_t)take_byte(b) << (8 * i);
    return x;
}

static inline void take_bytes(struct bytes *b, void *to, size_t size)
{
    const size_t n = size < b->left ? size : b->left;
    memset(to, 0, size);
    if (n)
        memcpy(to, b->at, n);
    b->at += n;
    b->left -= n;
}

static inline int32_t take_int(struct bytes *b)
{
    return (int32_t)(uint32_t)take_number(b, 4);
}

// 0 to `count` - 1, at most 256 of them, from one byte.
static inline int32_t take_below(struct bytes *b, int32_t count)
{
    return (int32_t)(take_byte(b) % (uint32_t)count);
}

static inline bool take_once_in(struct bytes *b, int32_t times)
{
    return take_below(b, times) == times - 1;
}

static inline int32_t take_of(struct bytes *b, const int32_t *list, size_t count)
{
    return list[take_below(b, (int32_t)count)];
}
#define TAKE_OF(b, list) take_of((b), (list), sizeof(list) / sizeof(*(list)))

// A number at an edge of something, or any.
static inline int64_t take_edge(struct bytes *b)
{
    static const int64_t edges[] = {0,         1,          -1,        2,         3,
                                    7,         255,        256,       32767,     65535,
                                    65536,     INT32_MAX,  INT32_MIN, INT64_MAX, INT64_MIN,
                                    1LL << 32, 1LL << 40,  1LL << 62, -2,        UINT32_MAX};
    const int32_t n = take_below(b, 24);
    if (n < 20)
        return edges[n];
    return (int64_t)take_number(b, n < 22 ? 4 : 8);
}

// Random numbers of a seed (SplitMix64).
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif // TESTS_FUZZ_H
