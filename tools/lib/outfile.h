// SPDX-License-Identifier: Apache-2.0
// Output files that appear whole or not at all: written beside their place, then renamed. While
// there is a temporary file, Ctrl-C and its like wait, so that they leave none behind; a second one
// ends the program at once. For one thread.
#ifndef CLATTN_TOOLS_OUTFILE_H
#define CLATTN_TOOLS_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "npy.h"

struct tool_outfile {
    char *path;    // of a file: resolved, a symbolic link's target in an absolute folder
    char *temp;    // while it exists, else NULL
    bool direct;   // a device or pipe, which is written straight
    unsigned mode; // permission bits of the new file
};

// Finds out before any work whether a file can be put at `path`, which is not where standard output
// goes, unless that is a device. Creates nothing. On failure `why` receives the reason without the
// path.
bool tool_outfile_check(struct tool_outfile *out, const char *path, char *why, size_t why_size);

// Opens a temporary file in the same folder, or the device or pipe itself, for writing. Returns its
// descriptor, or -1 and the reason.
int tool_outfile_open(struct tool_outfile *out, char *why, size_t why_size);

// Writes an array to a temporary file in the same folder.
bool tool_outfile_write_npy(struct tool_outfile *out, enum tool_npy_dtype dtype, const void *data,
                            int ndim, const int64_t *shape, char *why, size_t why_size);

// Renames the temporary file to its place.
bool tool_outfile_commit(struct tool_outfile *out, char *why, size_t why_size);

// Removes a temporary file that was not committed, and frees. A zeroed struct is fine.
void tool_outfile_discard(struct tool_outfile *out);

#endif // CLATTN_TOOLS_OUTFILE_H
