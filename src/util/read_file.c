// SPDX-License-Identifier: Apache-2.0
// A file's text.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <io.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "util/os.h"

// NULL where it is no plain file: a pipe would be waited for, and a device has no end.
static FILE *open_plain(const char *path)
{
#if defined(_WIN32)
    FILE *stream = fopen(path, "rb");
    if (stream && GetFileType((HANDLE)_get_osfhandle(_fileno(stream))) != FILE_TYPE_DISK) {
        fclose(stream);
        errno = EINVAL;
        return NULL;
    }
    return stream;
#else
    struct stat s;
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    FILE *stream = NULL;
    if (fstat(file, &s) == 0) {
        errno = EINVAL;
        stream = S_ISREG(s.st_mode) ? fdopen(file, "rb") : NULL;
    }
    if (!stream) {
        const int why = errno;
        close(file);
        errno = why;
    }
    return stream;
#endif
}

char *cla_os_read_file(const char *path, size_t *size)
{
    FILE *file = open_plain(path);
    if (!file)
        return NULL;

    // Read to the end rather than ask for the size, which not every system's own files have.
    size_t used = 0, capacity = 16384;
    int why = 0;
    char *text = malloc(capacity);
    while (text) {
        used += fread(text + used, 1, capacity - used - 1, file);
        if (used + 1 < capacity) {
            why = ferror(file) ? EIO : 0;
            break;
        }
        char *larger = NULL;
        if (capacity > CLA_OS_MOST_READ)
            why = EFBIG;
        else
            larger = realloc(text, capacity * 2);
        if (!larger)
            free(text);
        text = larger;
        capacity *= 2;
    }
    fclose(file);
    if (!text || why) {
        free(text);
        errno = why ? why : ENOMEM;
        return NULL;
    }
    text[used] = '\0';
    if (size)
        *size = used;
    return text;
}
