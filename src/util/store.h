// SPDX-License-Identifier: Apache-2.0
// A folder of small files that only this user can have written. Files are whole or not there; what
// somebody else could have put in, or a link, is refused. The folder is opened anew by each call.
// A name is that of a file in the folder: one that is a path, "." or ".." is refused.
#ifndef CLA_UTIL_STORE_H
#define CLA_UTIL_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLA_STORE_PATH = 1024 };

enum cla_store_result {
    CLA_STORE_OK,
    CLA_STORE_NONE,    // no such file, or an empty one
    CLA_STORE_REFUSED, // not a plain file of this user that others can't write, too large, or not
                       // to be named so
    CLA_STORE_FAILED   // the system said no
};

// The user's folder for what can be made again: $XDG_CACHE_HOME/clattn or $HOME/.cache/clattn, on
// Windows %LOCALAPPDATA%\clattn. False where the environment names none (relative paths count as
// none) or `size` is too small.
bool cla_store_default_path(char *path, size_t size);

// Makes the folder and what is missing above it, mode 0700, and checks that it is this user's and
// that nobody else may write to it. On failure false and the reason in `why`. The same check is
// part of every call below.
bool cla_store_open(const char *path, char *why, size_t why_size);

// The whole file, which the caller frees; on any other result *data is NULL and `why` says why.
enum cla_store_result cla_store_read(const char *path, const char *name, size_t max_bytes,
                                     void **data, size_t *size, char *why, size_t why_size);

// Writes a temporary file beside it and renames that, so that readers see the old file or the new.
// The bytes are on the disk before the name is: a crash of the system leaves no file that is cut.
bool cla_store_write(const char *path, const char *name, const void *data, size_t size, char *why,
                     size_t why_size);

// Makes the file the youngest one. Failure is none.
void cla_store_touch(const char *path, const char *name);

void cla_store_remove(const char *path, const char *name);

// Of the plain files whose names end with `suffix`, removes what killed writers left behind
// (temporary files of cla_store_write() that are an hour older than the youngest file), then the
// oldest until all that is left is at most `max_bytes`.
void cla_store_trim(const char *path, const char *suffix, uint64_t max_bytes);

#endif // CLA_UTIL_STORE_H
