// SPDX-License-Identifier: Apache-2.0
// Compiled programs on disk, for one device: (kind, options, text) -> bytes.
//
// A file holds all that its bytes depend on, the source text included, and is believed only if
// every byte of that is the same and a checksum fits. The hash in its name only finds it.
#ifndef CLA_OCL_CACHE_H
#define CLA_OCL_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ocl/api.h"

struct cla_cache;

// The default of max_bytes, in MiB.
enum { CLA_CACHE_MAX_MIB = 64 };

struct cla_cache_settings {
    bool off;
    const char *dir;    // NULL or "": $CLATTN_CACHE_DIR, else the user's folder for caches
    uint64_t max_bytes; // 0: $CLATTN_CACHE_MAX_MIB, else CLA_CACHE_MAX_MIB
};

// What a device's programs depend on besides options and source: its own facts, the driver's, the
// host's and clattn's version. The caller frees it; NULL if memory ran out.
char *cla_cache_facts(const struct cla_cl *cl, cl_device_id device);

// NULL where the cache is off ($CLATTN_CACHE is 0, too) or cannot be used, with an info line.
// `facts` is copied.
struct cla_cache *cla_cache_open(const struct cla_cache_settings *settings, const char *facts,
                                 const struct cla_log *log);
void cla_cache_close(struct cla_cache **cache);

// One thing that is kept. `kind` says what the bytes are.
struct cla_cache_key {
    const char *kind, *options, *text;
};

enum cla_cache_found {
    CLA_CACHE_HIT,
    CLA_CACHE_MISS,
    CLA_CACHE_REFUSED, // there is one, but somebody else can have made it
    CLA_CACHE_DAMAGED  // there is one, and it is not what was written for this key; it is removed
};

// Thread-safe and safe between processes, and without messages: `why` is for the caller's.
// On a hit the caller frees *data. NULL `cache` is a miss.
enum { CLA_CACHE_WHY = 256 };
enum cla_cache_found cla_cache_get(const struct cla_cache *cache, const struct cla_cache_key *key,
                                   void **data, size_t *size, char why[CLA_CACHE_WHY]);
// Removes the oldest files until this one fits the bound too, then writes. On false it is not kept.
bool cla_cache_put(const struct cla_cache *cache, const struct cla_cache_key *key,
                   const void *data, size_t size, char why[CLA_CACHE_WHY]);
void cla_cache_remove(const struct cla_cache *cache, const struct cla_cache_key *key);

// The bytes of a file. Little-endian on every machine:
//   8 bytes "clattn\r\n", uint32 format, uint32 0, uint64 key size, uint64 payload size,
//   key, payload, uint64 checksum of all before it.
enum { CLA_CACHE_FORMAT = 1, CLA_CACHE_HEAD = 32, CLA_CACHE_TAIL = 8 };

// The file of these bytes, which the caller frees; NULL if memory ran out.
void *cla_cache_encode(const void *key, size_t key_size, const void *data, size_t data_size,
                       size_t *file_size);
// Where the payload lies in `file`; NULL and a reason if it is not a whole file of this key.
const void *cla_cache_decode(const void *file, size_t file_size, const void *key, size_t key_size,
                             size_t *data_size, const char **reason);

#endif // CLA_OCL_CACHE_H
