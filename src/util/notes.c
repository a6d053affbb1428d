// SPDX-License-Identifier: Apache-2.0
#include "util/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cla_note(struct cla_notes *notes, const char *format, ...)
{
    if (!notes)
        return;
    if (notes->count >= CLA_NOTES_MAX) {
        snprintf(notes->text[CLA_NOTES_MAX - 1], CLA_NOTE_CHARS, "more was left out here");
        return;
    }

    char *text = notes->text[notes->count];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, CLA_NOTE_CHARS, format, args);
    va_end(args);
    if (length < 0)
        return;
    if (length >= CLA_NOTE_CHARS)
        memcpy(text + CLA_NOTE_CHARS - 4, "...", 4);
    notes->count++;
}
