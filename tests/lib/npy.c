// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Text behind `key` in the header of the file.
static const char *value_of(const char *header, const char *key)
{
    const char *found = strstr(header, key);
    return found ? found + strlen(key) : NULL;
}

static void read_shape(const char *text, struct npy *out)
{
    out->count = 1;
    while (*text && *text != ')') {
        char *end;
        const unsigned long long n = strtoull(text, &end, 10);
        if (end != text && out->dims < 4) {
            out->extent[out->dims++] = (size_t)n;
            out->count *= (size_t)n;
        }
        text = end != text ? end : text + 1;
    }
}

struct npy npy_read(const char *folder, const char *name)
{
    struct npy out = {0};
    char path[1024];
    unsigned char start[10];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file || fread(start, 1, sizeof start, file) != sizeof start ||
        memcmp(start, "\x93NUMPY\x01", 7) != 0)
        fail_msg("%s is missing or no .npy file of version 1", path);
    const size_t length = start[8] | (size_t)start[9] << 8;
    char *header = calloc(length + 1, 1);
    assert_true(header && fread(header, 1, length, file) == length);
    const char *descr = value_of(header, "'descr': '"), *shape = value_of(header, "'shape': (");
    if (!descr || !shape || !strstr(header, "'fortran_order': False"))
        fail_msg("%s: not a header this test reads: %s", path, header);
    out.item = strncmp(descr, "<f4", 3) == 0 ? 4 : strncmp(descr, "|b1", 3) == 0 ? 1 : 0;
    if (out.item == 0)
        fail_msg("%s is neither float32 nor bool: %s", path, header);
    read_shape(shape, &out);
    out.data = malloc(out.count * out.item + 1);
    assert_non_null(out.data);
    if (fread(out.data, out.item, out.count, file) != out.count || fgetc(file) != EOF)
        fail_msg("%s: %zu elements are not what it holds", path, out.count);
    free(header);
    fclose(file);
    return out;
}
