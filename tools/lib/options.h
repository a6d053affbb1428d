// SPDX-License-Identifier: Apache-2.0
// Command-line options: getopt_long() made strict, and numbers that are read to their last
// character.
#ifndef CLATTN_TOOLS_OPTIONS_H
#define CLATTN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum tool_arg {
    TOOL_ARG_NONE,
    TOOL_ARG_REQUIRED, // --name value, --name=value
    TOOL_ARG_OPTIONAL  // --name, --name=value
};

struct tool_option {
    const char *name;  // without its dashes; NULL = only a letter
    char letter;       // 0 = only a name
    enum tool_arg arg;
    bool repeatable;
};

enum { TOOL_OPTIONS_MAX = 48 };

// Takes option number `index` of the table. `value` is NULL where none was given. `shown` is how
// messages name the option ("--scale"). Returns 0, or an exit status after a message.
typedef int (*tool_option_fn)(void *user, int index, const char *shown, const char *value);

// Hands every option to `take`. Unknown, abbreviated or repeated options, missing, empty or
// superfluous values and stray arguments are errors with one line. Returns 0 or TOOL_USE.
int tool_options_parse(int argc, char **argv, const struct tool_option *table, int count,
                       tool_option_fn take, void *user);

// Whole text as a decimal integer within [min, max].
bool tool_parse_int(const char *text, int64_t min, int64_t max, int64_t *out);

// Whole text as a finite number that stays finite in float32.
bool tool_parse_number(const char *text, double *out);

// Position of `text` in a list that ends with NULL; -1 if it is not there.
int tool_parse_word(const char *text, const char *const *words);

// Option values, with the message on failure: 0 or TOOL_USE.
int tool_take_int32(const char *shown, const char *value, int32_t min, int32_t max, int32_t *out);
int tool_take_number(const char *shown, const char *value, double *out);
// "LEFT,RIGHT" of a window, whole numbers from -1 up with `between` between them.
int tool_take_window(const char *shown, const char *value, char between, int32_t *left,
                     int32_t *right);
int tool_take_word(const char *shown, const char *value, const char *const *words, int *out);
// Likewise for a list whose first word is not for users.
int tool_take_later_word(const char *shown, const char *value, const char *const *words, int *out);
// Hands each word of "a,b,c" to `take`, up to the first failure.
int tool_take_list(const char *shown, const char *value,
                   int (*take)(void *user, const char *shown, const char *word), void *user);

#endif // CLATTN_TOOLS_OPTIONS_H
