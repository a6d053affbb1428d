// SPDX-License-Identifier: Apache-2.0
// One line of progress on stderr that the next one overwrites. On a terminal only.
#ifndef CLATTN_TOOLS_PROGRESS_H
#define CLATTN_TOOLS_PROGRESS_H

#include <stdbool.h>

// JSON that goes to a file or a pipe is for a program, which wants no progress. Call it once.
void tool_progress_start(bool json);

// "[done/all] what, about 12 s left": `done` counts from 1, and the time is the mean of those
// before by what is left. `seconds_left` over 0 stands instead of it.
void tool_progress(int done, int all, const char *what, double seconds_left);

// Removes the line, before something else is printed. Nothing to remove is fine.
void tool_progress_clear(void);

#endif // CLATTN_TOOLS_PROGRESS_H
