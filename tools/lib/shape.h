// SPDX-License-Identifier: Apache-2.0
// Problem sizes on the command line.
#ifndef CLATTN_TOOLS_SHAPE_H
#define CLATTN_TOOLS_SHAPE_H

#include <stddef.h>

#include "session.h"

// An option's value B,H,HKV,LQ,LKV,D[,DV], whole numbers from 1 up: 0, or TOOL_USE with a message.
int tool_take_shape(const char *shown, const char *value, struct tool_problem *p);

// The same as a text; DV only where it differs from D.
void tool_shape_text(const struct tool_problem *p, char *text, size_t size);

#endif // CLATTN_TOOLS_SHAPE_H
