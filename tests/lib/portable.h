// SPDX-License-Identifier: Apache-2.0
// What tests take from POSIX and Windows has under other names: the environment, folders of their
// own. Included after the system's headers.
#ifndef TESTS_PORTABLE_H
#define TESTS_PORTABLE_H

#if defined(_WIN32)

#include <direct.h>
#include <stdlib.h>
#include <string.h>

// Microsoft's is the root of the drive, where not everybody may write.
#undef P_tmpdir
#define P_tmpdir "."

// An empty value removes a variable there, which to clattn is the same.
static inline int setenv(const char *name, const char *value, int overwrite)
{
    return !overwrite && getenv(name) ? 0 : _putenv_s(name, value);
}

static inline int unsetenv(const char *name)
{
    return _putenv_s(name, "");
}

static inline char *mkdtemp(char *path)
{
    char *end = path + strlen(path) - 6;
    for (unsigned n = 0; n < 1000000; n++) {
        unsigned rest = n;
        for (int i = 5; i >= 0; i--, rest /= 10)
            end[i] = (char)('0' + rest % 10);
        if (_mkdir(path) == 0)
            return path;
    }
    return NULL;
}

#endif

#endif // TESTS_PORTABLE_H
