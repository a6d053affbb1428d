// SPDX-License-Identifier: Apache-2.0
// Files of the program cache from bytes. A file is believed only if it is, to the last bit, the one
// that would be written for this key; what lies in a real folder likewise.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "ocl/cache.h"
#include "temporary.h"
#include "util/hash.h"

enum { PLACE_OF_CHANGES = 8 };

static void put(unsigned char *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(x >> (8 * i));
}

// A believed file is the one that its parts make.
static void check_decode(const unsigned char *file, size_t size, const void *key, size_t key_size)
{
    size_t payload_size = 77, whole = 0;
    const char *reason = "";
    const unsigned char *payload =
        cla_cache_decode(file, size, key, key_size, &payload_size, &reason);
    if (!payload) {
        FUZZ_CHECK(reason && reason[0] && payload_size == 0, "no reason");
        return;
    }
    FUZZ_CHECK(!reason, "believed, and %s", reason);
    FUZZ_CHECK(payload >= file && payload + payload_size <= file + size, "payload outside");
    void *same = cla_cache_encode(key, key_size, payload, payload_size, &whole);
    FUZZ_CHECK(same && whole == size && memcmp(same, file, size) == 0, "another file is believed");
    free(same);
}

// The bytes as they come, with the magic, the lengths and a checksum that fits put in by choice.
static void check_raw(struct bytes *b)
{
    const uint32_t help = take_byte(b);
    const size_t size = b->left;
    unsigned char *file = malloc(size ? size : 1);
    FUZZ_CHECK(file, "memory");
    if (size)
        memcpy(file, b->at, size);
    if (size >= CLA_CACHE_HEAD + CLA_CACHE_TAIL) {
        const size_t room = size - CLA_CACHE_HEAD - CLA_CACHE_TAIL;
        if (help & 1)
            memcpy(file, "clattn\r\n\1\0\0\0\0\0\0", 16);
        if (help & 2)
            put(file + 24, room - file[16], 8);
        if (help & 4) // the key of the file is the one that is asked for
            put(file + 16, room ? help % room : 0, 8);
        if (help & 8)
            put(file + size - CLA_CACHE_TAIL,
                cla_hash(file, size - CLA_CACHE_TAIL, CLA_CACHE_FORMAT, 2), CLA_CACHE_TAIL);
        check_decode(file, size, file + CLA_CACHE_HEAD, room ? help % room : 0);
    }
    check_decode(file, size, "key", 3);
    free(file);
}

// Changes that hardware, crashes and people make: bytes, a cut, a piece more, a piece twice.
static size_t change(struct bytes *b, unsigned char *file, size_t size, size_t room)
{
    for (int n = take_below(b, PLACE_OF_CHANGES); n > 0; n--) {
        const size_t at = size ? take_number(b, 2) % size : 0;
        const size_t other = size ? take_number(b, 2) % size : 0;
        switch (take_below(b, 5)) {
        case 0:
            if (size)
                file[at] ^= (unsigned char)take_byte(b);
            break;
        case 1:
            if (size >= CLA_CACHE_HEAD)
                put(file + 8 * (1 + take_below(b, 3)), (uint64_t)take_edge(b), 8);
            break;
        case 2: size = at; break;
        case 3:
            while (size < room && take_below(b, 4))
                file[size++] = (unsigned char)take_byte(b);
            break;
        default: {
            const size_t n_moved = size - (at > other ? at : other);
            memmove(file + at, file + other, n_moved);
            break;
        }
        }
    }
    return size;
}

static void check_changed(struct bytes *b)
{
    char key[64], data[64];
    size_t size = 0;
    const size_t key_size = take_below(b, 64), data_size = take_below(b, 64);
    take_bytes(b, key, key_size);
    take_bytes(b, data, data_size);
    unsigned char *file = cla_cache_encode(key, key_size, data, data_size, &size);
    FUZZ_CHECK(file, "memory");
    const size_t room = size + 64;
    unsigned char *changed = malloc(room);
    FUZZ_CHECK(changed, "memory");
    memcpy(changed, file, size);
    const size_t now = change(b, changed, size, room);
    unsigned char *exact = malloc(now ? now : 1);
    FUZZ_CHECK(exact, "memory");
    memcpy(exact, changed, now);
    const bool same = now == size && memcmp(exact, file, size) == 0;
    size_t payload_size = 0;
    const char *reason = NULL;
    const void *payload = cla_cache_decode(exact, now, key, key_size, &payload_size, &reason);
    FUZZ_CHECK(!payload == !same, "%s", same ? "the right file is refused" : "believed");
    if (payload)
        FUZZ_CHECK(payload_size == data_size && memcmp(payload, data, data_size) == 0, "data");
    check_decode(exact, now, key, key_size);
    free(exact);
    free(changed);
    free(file);
}

// ---- in a folder -------------------------------------------------------------------------------

static void write_whole(const char *path, const void *data, size_t size)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(file >= 0 && write(file, data, size) == (ssize_t)size, "%s", path);
    close(file);
}

static size_t read_whole(const char *path, unsigned char *data, size_t room)
{
    const int file = open(path, O_RDONLY);
    const ssize_t n = file >= 0 ? read(file, data, room) : -1;
    FUZZ_CHECK(n >= 0, "%s", path);
    close(file);
    return (size_t)n;
}

// Written, changed on disk, read: a hit is what was written, all else is not there afterwards.
static void check_folder(struct bytes *b)
{
    static const char *folder;
    static struct cla_cache *cache;
    const struct cla_cache_key key = {"kind", "options", "text"};
    char data[48], why[CLA_CACHE_WHY], path[4096] = "";
    unsigned char file[4096], was[4096];
    void *got = NULL;
    size_t size = 0;
    const size_t data_size = take_below(b, 48);
    if (!folder) {
        folder = temporary_folder();
        const struct cla_cache_settings settings = {.dir = folder, .max_bytes = 3000};
        unsetenv("CLATTN_CACHE");
        cache = cla_cache_open(&settings, "facts", NULL);
        FUZZ_CHECK(cache, "no cache in %s", folder);
    }
    take_bytes(b, data, data_size);
    FUZZ_CHECK(cla_cache_put(cache, &key, data, data_size, why), "%s", why);
    FUZZ_CHECK(temporary_only(folder, path, sizeof path), "not one file in %s", folder);
    const size_t before = read_whole(path, was, sizeof was);
    memcpy(file, was, before);
    const size_t after = change(b, file, before, 3500);
    write_whole(path, file, after);
    const uint32_t mode = take_byte(b);
    if (mode >= 192)
        chmod(path, mode == 255 ? 0602 : 0620);
    const bool same = after == before && memcmp(file, was, before) == 0 && mode < 192;
    const enum cla_cache_found found = cla_cache_get(cache, &key, &got, &size, why);
    FUZZ_CHECK((found == CLA_CACHE_HIT) == same, "found %d: %s", (int)found, why);
    FUZZ_CHECK(!same || (size == data_size && memcmp(got, data, size) == 0), "other data");
    FUZZ_CHECK(same || (!got && size == 0), "data of a file that is not believed");
    if (mode >= 192)
        FUZZ_CHECK(found == CLA_CACHE_REFUSED, "found %d: others can write to it", (int)found);
    free(got);
    cla_cache_remove(cache, &key);
    FUZZ_CHECK(!temporary_only(folder, path, sizeof path), "left in %s", folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, size};
    const uint32_t what = take_byte(&b);
    if (what < 100)
        check_raw(&b);
    else if (what < 253)
        check_changed(&b);
    else
        check_folder(&b); // some twenty times as slow
    return 0;
}
