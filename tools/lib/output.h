// SPDX-License-Identifier: Apache-2.0
// Results as aligned tables and as JSON.
#ifndef CLATTN_TOOLS_OUTPUT_H
#define CLATTN_TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>

#include "clattn/clattn.h"
#include "problem.h"

struct libscols_table;

struct tool_column {
    const char *heading;
    bool right; // numbers
    bool wrap;  // may be broken over lines on a narrow terminal
};

// A table without rows; NULL if memory ran out, which the others ignore. Its headings are bold
// where tool_colors().
struct libscols_table *tool_table_create(const struct tool_column *columns, int count,
                                         bool headings);
void tool_table_row(struct libscols_table *table, const char *const *cells, int count);

// Colours a cell of the last row, as libsmartcols names colours ("red"), where tool_colors().
void tool_table_color(struct libscols_table *table, int column, const char *color);

// Whether stdout is a terminal that shows colours, or $CLICOLOR_FORCE asks for them. Never where
// $NO_COLOR is set.
bool tool_colors(void);

// Where stdout is a terminal that is too narrow, hides columns by their headings, the first of the
// list (NULL at its end) first, until the table fits. `hidden` receives their names, ", " between
// them; "" where all is shown.
void tool_table_fit(struct libscols_table *table, const char *const *headings, char *hidden,
                    size_t size);

// Hides columns whose cells are all empty.
void tool_table_hide_empty(struct libscols_table *table);

// Columns of the terminal that stdout is; a large number where it is none.
int tool_columns(void);

// A line of stdout, on a terminal broken between words, with `indent` spaces before each further
// line.
void tool_print_wrapped(const char *text, int indent);

// Prints the table to stdout and frees it. Columns that may be broken are, between words.
void tool_table_print(struct libscols_table *table);

// tool_table_fit() by `least`, tool_table_print(), and a line that names the columns without room
// and the options `see` that show them.
void tool_table_print_fitted(struct libscols_table *table, const char *const *least,
                             const char *see);
void tool_table_free(struct libscols_table *table);

// A string whatever its bytes: what is no UTF-8 becomes '?'.
json_t *tool_json_text(const char *text);

// A number; one that JSON does not have becomes "nan", "inf" or "-inf".
json_t *tool_json_real(double value);

// Which device, as each tool says it; all facts of one; what a plan chose, with its refusals.
json_t *tool_json_device_name(const clattn_device_info *info);
json_t *tool_json_device(const clattn_device_info *info);
json_t *tool_json_plan(const clattn_plan *plan, const clattn_plan_info *info);

// Types and features of a problem, to be merged into an object.
json_t *tool_json_features(const struct tool_problem *p);

// One line (or an indented text) on stdout; frees `value`.
void tool_json_print(json_t *value, bool one_line);

// Name of an enum clattn_device_type.
const char *tool_device_type(int32_t type);

#endif // CLATTN_TOOLS_OUTPUT_H
