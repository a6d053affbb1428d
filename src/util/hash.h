// SPDX-License-Identifier: Apache-2.0
// SipHash-2-4 with a result of 64 bits: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast
// short-input PRF", INDOCRYPT 2012.
#ifndef CLA_UTIL_HASH_H
#define CLA_UTIL_HASH_H

#include <stddef.h>
#include <stdint.h>

// k0 and k1 are the two halves of the key. The same on every machine, whatever its byte order.
uint64_t cla_hash(const void *data, size_t size, uint64_t k0, uint64_t k1);

#endif // CLA_UTIL_HASH_H
