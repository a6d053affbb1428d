// SPDX-License-Identifier: Apache-2.0
#include "ocl/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/hash.h"
#include "util/os.h"
#include "util/store.h"

static const char magic[8] = {'c', 'l', 'a', 't', 't', 'n', '\r', '\n'};
static const char suffix[] = ".clattn";

// Keys of the two hashes; any numbers do.
enum { NAME_HASH = 1, SUM_HASH = 2 };

struct cla_cache {
    char path[CLA_STORE_PATH];
    uint64_t max_bytes;
    char *facts;
};

// ---- the format --------------------------------------------------------------------------------

static void put_number(unsigned char *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(x >> (8 * i));
}

static uint64_t get_number(const unsigned char *from, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)from[i] << (8 * i);
    return x;
}

static uint64_t checksum(const void *file, size_t size)
{
    return cla_hash(file, size, CLA_CACHE_FORMAT, SUM_HASH);
}

void *cla_cache_encode(const void *key, size_t key_size, const void *data, size_t data_size,
                       size_t *file_size)
{
    const size_t size = CLA_CACHE_HEAD + key_size + data_size;
    unsigned char *file = malloc(size + CLA_CACHE_TAIL);
    if (!file)
        return NULL;
    memcpy(file, magic, sizeof magic);
    put_number(file + 8, CLA_CACHE_FORMAT, 4);
    put_number(file + 12, 0, 4);
    put_number(file + 16, key_size, 8);
    put_number(file + 24, data_size, 8);
    memcpy(file + CLA_CACHE_HEAD, key, key_size);
    if (data_size)
        memcpy(file + CLA_CACHE_HEAD + key_size, data, data_size);
    put_number(file + size, checksum(file, size), CLA_CACHE_TAIL);
    *file_size = size + CLA_CACHE_TAIL;
    return file;
}

const void *cla_cache_decode(const void *data, size_t file_size, const void *key, size_t key_size,
                             size_t *data_size, const char **reason)
{
    const unsigned char *file = data;
    *data_size = 0;
    *reason = "it is cut short";
    if (file_size < CLA_CACHE_HEAD + CLA_CACHE_TAIL)
        return NULL;
    const size_t size = file_size - CLA_CACHE_TAIL, room = size - CLA_CACHE_HEAD;
    *reason = "it is of another kind";
    if (memcmp(file, magic, sizeof magic) != 0 || get_number(file + 8, 4) != CLA_CACHE_FORMAT ||
        get_number(file + 12, 4) != 0)
        return NULL;
    const uint64_t keys = get_number(file + 16, 8), payload = get_number(file + 24, 8);
    *reason = "its length is wrong";
    if (keys > room || payload != room - keys)
        return NULL;
    *reason = "its checksum is wrong";
    if (get_number(file + size, CLA_CACHE_TAIL) != checksum(file, size))
        return NULL;
    *reason = "it belongs to something else";
    if (keys != key_size || memcmp(file + CLA_CACHE_HEAD, key, key_size) != 0)
        return NULL;
    *reason = NULL;
    *data_size = (size_t)payload;
    return file + CLA_CACHE_HEAD + key_size;
}

// ---- open and close ----------------------------------------------------------------------------

// From the environment, whose value may be nonsense.
static uint64_t default_max_bytes(const struct cla_log *log)
{
    const char *text = cla_os_env("CLATTN_CACHE_MAX_MIB");
    if (text) {
        char *end = NULL;
        errno = 0;
        const unsigned long long mib = strtoull(text, &end, 10);
        if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && mib > 0 &&
            mib <= UINT64_MAX >> 20)
            return (uint64_t)mib << 20;
        cla_logf(log, CLATTN_LOG_WARN,
                 "CLATTN_CACHE_MAX_MIB is \"%s\", no whole number above 0: %d is taken", text,
                 CLA_CACHE_MAX_MIB);
    }
    return (uint64_t)CLA_CACHE_MAX_MIB << 20;
}

static bool find_path(const char *dir, char *path, size_t size, const struct cla_log *log)
{
    if (!dir || !dir[0])
        dir = cla_os_env("CLATTN_CACHE_DIR");
    if (dir) {
        const int n = snprintf(path, size, "%s", dir);
        if (n >= 0 && (size_t)n < size)
            return true;
        cla_logf(log, CLATTN_LOG_INFO, "no program cache: a path of %zu bytes", strlen(dir));
        return false;
    }
    if (cla_store_default_path(path, size))
        return true;
    cla_logf(log, CLATTN_LOG_INFO, "no program cache: the environment names no folder for it");
    return false;
}

struct cla_cache *cla_cache_open(const struct cla_cache_settings *settings, const char *facts,
                                 const struct cla_log *log)
{
    const char *variable = cla_os_env("CLATTN_CACHE");
    char why[CLA_CACHE_WHY];
    if (settings->off || (variable && strcmp(variable, "0") == 0)) {
        cla_logf(log, CLATTN_LOG_INFO, "no program cache: it is switched off");
        return NULL;
    }
    struct cla_cache *cache = calloc(1, sizeof *cache);
    char *copy = facts ? malloc(strlen(facts) + 1) : NULL;
    if (!cache || !copy) {
        cla_logf(log, CLATTN_LOG_INFO, "no program cache: no memory");
        goto failed;
    }
    memcpy(copy, facts, strlen(facts) + 1);
    cache->facts = copy;
    cache->max_bytes = settings->max_bytes ? settings->max_bytes : default_max_bytes(log);
    if (!find_path(settings->dir, cache->path, sizeof cache->path, log))
        goto failed;
    if (!cla_store_open(cache->path, why, sizeof why)) {
        cla_logf(log, CLATTN_LOG_INFO, "no program cache: %s", why);
        goto failed;
    }
    cla_logf(log, CLATTN_LOG_DEBUG, "program cache: %s, up to %llu bytes", cache->path,
             (unsigned long long)cache->max_bytes);
    return cache;
failed:
    free(copy);
    free(cache);
    return NULL;
}

void cla_cache_close(struct cla_cache **cache)
{
    if (!cache || !*cache)
        return;
    free((*cache)->facts);
    free(*cache);
    *cache = NULL;
}

// ---- files -------------------------------------------------------------------------------------

struct whole_key {
    char *text;
    size_t size;
    char name[16 + sizeof suffix];
};

// Each part with its length before it, so that no two keys have the same text.
static bool make_key(const struct cla_cache *cache, const struct cla_cache_key *key,
                     struct whole_key *out)
{
    const char *const part[] = {key->kind, cache->facts, key->options, key->text};
    enum { PARTS = sizeof part / sizeof *part, MARK = 32 };
    size_t room = 1;
    for (int i = 0; i < PARTS; i++)
        room += MARK + strlen(part[i]);
    out->size = 0;
    out->text = malloc(room);
    if (!out->text)
        return false;
    for (int i = 0; i < PARTS; i++)
        out->size += (size_t)snprintf(out->text + out->size, room - out->size, "%zu:%s\n",
                                      strlen(part[i]), part[i]);
    snprintf(out->name, sizeof out->name, "%016llx%s",
             (unsigned long long)cla_hash(out->text, out->size, CLA_CACHE_FORMAT, NAME_HASH),
             suffix);
    return true;
}

// The payload moves to the front of the file's own memory.
static enum cla_cache_found unpack(const struct cla_cache *cache, const struct whole_key *key,
                                   void *file, size_t file_size, void **data, size_t *size,
                                   char why[CLA_CACHE_WHY])
{
    const char *reason = NULL;
    const void *payload = cla_cache_decode(file, file_size, key->text, key->size, size, &reason);
    if (!payload) {
        snprintf(why, CLA_CACHE_WHY, "%s: %s", key->name, reason);
        free(file);
        cla_store_remove(cache->path, key->name);
        return CLA_CACHE_DAMAGED;
    }
    memmove(file, payload, *size);
    *data = file;
    cla_store_touch(cache->path, key->name);
    return CLA_CACHE_HIT;
}

enum cla_cache_found cla_cache_get(const struct cla_cache *cache, const struct cla_cache_key *key,
                                   void **data, size_t *size, char why[CLA_CACHE_WHY])
{
    struct whole_key whole;
    void *file = NULL;
    size_t file_size = 0;
    *data = NULL;
    *size = 0;
    why[0] = '\0';
    if (!cache || !make_key(cache, key, &whole))
        return CLA_CACHE_MISS;
    enum cla_cache_found found = CLA_CACHE_MISS;
    const size_t most = cache->max_bytes < SIZE_MAX ? (size_t)cache->max_bytes : SIZE_MAX;
    switch (cla_store_read(cache->path, whole.name, most, &file, &file_size, why, CLA_CACHE_WHY)) {
    case CLA_STORE_OK:
        found = unpack(cache, &whole, file, file_size, data, size, why);
        break;
    case CLA_STORE_NONE:
        why[0] = '\0';
        break;
    case CLA_STORE_REFUSED:
    case CLA_STORE_FAILED:
        found = CLA_CACHE_REFUSED;
        break;
    }
    free(whole.text);
    return found;
}

bool cla_cache_put(const struct cla_cache *cache, const struct cla_cache_key *key,
                   const void *data, size_t size, char why[CLA_CACHE_WHY])
{
    struct whole_key whole = {0};
    size_t file_size = 0;
    bool done = false;
    why[0] = '\0';
    if (!cache)
        return false;
    void *file = make_key(cache, key, &whole)
                     ? cla_cache_encode(whole.text, whole.size, data, size, &file_size)
                     : NULL;
    if (!file) {
        snprintf(why, CLA_CACHE_WHY, "no memory");
    } else if (file_size > cache->max_bytes) {
        snprintf(why, CLA_CACHE_WHY, "%zu bytes are more than the whole cache may have (%llu)",
                 file_size, (unsigned long long)cache->max_bytes);
    } else {
        // Room first: who is killed while writing leaves no more behind than there may be.
        cla_store_trim(cache->path, suffix, cache->max_bytes - file_size);
        done = cla_store_write(cache->path, whole.name, file, file_size, why, CLA_CACHE_WHY);
        cla_store_trim(cache->path, suffix, cache->max_bytes); // others write at the same time
    }
    free(file);
    free(whole.text);
    return done;
}

void cla_cache_remove(const struct cla_cache *cache, const struct cla_cache_key *key)
{
    struct whole_key whole;
    if (!cache || !make_key(cache, key, &whole))
        return;
    cla_store_remove(cache->path, whole.name);
    free(whole.text);
}
