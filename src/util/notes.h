// SPDX-License-Identifier: Apache-2.0
// A bounded list of short texts: why something was refused.
#ifndef CLA_UTIL_NOTES_H
#define CLA_UTIL_NOTES_H

#include "util/format.h"

enum { CLA_NOTES_MAX = 32, CLA_NOTE_CHARS = 224 };

struct cla_notes {
    int count;
    char text[CLA_NOTES_MAX][CLA_NOTE_CHARS];
};

// Appends a note; past the bound the last one says that more were left out. NULL is ignored.
CLA_PRINTF(2, 3)
void cla_note(struct cla_notes *notes, const char *format, ...);

#endif // CLA_UTIL_NOTES_H
