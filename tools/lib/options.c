// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"

enum { LONG_BASE = 256 }; // getopt values of options, beyond every letter

static void describe(const struct tool_option *table, int count, struct option *longs,
                     char *shorts)
{
    char *s = shorts;

    *s++ = '+'; // stop at the first argument that is no option
    *s++ = ':'; // tell a missing value from an unknown option
    for (int i = 0; i < count; i++) {
        if (table[i].name) {
            longs->name = table[i].name;
            longs->has_arg = table[i].arg == TOOL_ARG_NONE       ? no_argument
                             : table[i].arg == TOOL_ARG_OPTIONAL ? optional_argument
                                                                 : required_argument;
            longs->flag = NULL;
            longs->val = LONG_BASE + i;
            longs++;
        }
        if (table[i].letter) {
            *s++ = table[i].letter;
            if (table[i].arg == TOOL_ARG_REQUIRED)
                *s++ = ':';
        }
    }
    *s = 0;
    memset(longs, 0, sizeof *longs);
}

static int find(const struct tool_option *table, int count, int value)
{
    if (value >= LONG_BASE)
        return value - LONG_BASE;
    for (int i = 0; i < count; i++) {
        if (table[i].letter && table[i].letter == value)
            return i;
    }
    return -1;
}

// getopt_long() takes unambiguous beginnings of a name, which would break as soon as a longer
// list of options makes them ambiguous.
static bool is_exact(const char *token, const struct tool_option *option)
{
    if (strncmp(token, "--", 2) != 0)
        return true;
    size_t size = strcspn(token + 2, "=");
    return option->name && strlen(option->name) == size &&
           strncmp(option->name, token + 2, size) == 0;
}

// A value of its own argument that is an option shows that the value was forgotten.
static bool is_option(const struct tool_option *table, int count, const char *text)
{
    if (text[0] != '-')
        return false;
    if (text[1] == '-')
        return true;
    return text[1] && !text[2] && find(table, count, text[1]) >= 0;
}

static int refuse(int value, const char *token, const struct tool_option *table, int count)
{
    int known = optopt ? find(table, count, optopt) : -1;
    int size = (int)strcspn(token, "=");

    if (value == ':')
        return tool_fail(TOOL_USE, "option %s needs a value", token);
    if (known >= 0 && known < count && is_exact(token, &table[known]))
        return tool_fail(TOOL_USE, "option %.*s takes no value", size, token);
    return tool_fail(TOOL_USE, "unknown option %.*s (see --help)", size, token);
}

// A value behind an option whose value is optional has to stand in the same argument.
static int refuse_argument(char **argv, const struct tool_option *table, int count)
{
    const char *before = argv[optind - 1];

    for (int i = 0; optind > 1 && i < count; i++) {
        if (table[i].arg == TOOL_ARG_OPTIONAL && strncmp(before, "--", 2) == 0 &&
            strcmp(before + 2, table[i].name) == 0)
            return tool_fail(TOOL_USE, "unexpected argument %s: a value of %s is given as %s=%s",
                             argv[optind], before, before, argv[optind]);
    }
    return tool_fail(TOOL_USE, "unexpected argument %s (see --help)", argv[optind]);
}

int tool_options_parse(int argc, char **argv, const struct tool_option *table, int count,
                       tool_option_fn take, void *user)
{
    struct option longs[TOOL_OPTIONS_MAX + 1];
    char shorts[2 * TOOL_OPTIONS_MAX + 3];
    bool seen[TOOL_OPTIONS_MAX] = {false};

    assert(count <= TOOL_OPTIONS_MAX);
    describe(table, count, longs, shorts);
    opterr = 0;
    for (;;) {
        int at = optind;
        int value = getopt_long(argc, argv, shorts, longs, NULL);
        if (value == -1)
            break;
        const char *token = argv[at];
        if (value == '?' || value == ':')
            return refuse(value, token, table, count);
        int i = find(table, count, value);
        if (!is_exact(token, &table[i]))
            return tool_fail(TOOL_USE, "unknown option %s (see --help)", token);
        char shown[64];
        if (value >= LONG_BASE)
            snprintf(shown, sizeof shown, "--%s", table[i].name);
        else
            snprintf(shown, sizeof shown, "-%c", table[i].letter);
        if (seen[i] && !table[i].repeatable)
            return tool_fail(TOOL_USE, "option %s is given twice", shown);
        seen[i] = true;
        if (optarg && optarg[0] == 0)
            return tool_fail(TOOL_USE, "option %s has an empty value", shown);
        if (optarg && optarg == argv[optind - 1] && is_option(table, count, optarg))
            return tool_fail(TOOL_USE, "option %s needs a value, %s is an option", shown, optarg);
        int code = take(user, i, shown, optarg);
        if (code)
            return code;
    }
    return optind < argc ? refuse_argument(argv, table, count) : 0;
}

bool tool_parse_int(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;

    if (!isdigit((unsigned char)text[text[0] == '-']))
        return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool tool_parse_number(const char *text, double *out)
{
    char *end = NULL;

    if (!text[0] || isspace((unsigned char)text[0]))
        return false;
    double value = strtod(text, &end);
    if (*end || !isfinite(value) || !isfinite((float)value))
        return false;
    *out = value;
    return true;
}

int tool_parse_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0)
            return i;
    }
    return -1;
}

int tool_take_int32(const char *shown, const char *value, int32_t min, int32_t max, int32_t *out)
{
    int64_t n = 0;

    if (!tool_parse_int(value, min, max, &n))
        return tool_fail(TOOL_USE, "option %s: '%s' is not a whole number from %d to %d", shown,
                         value, (int)min, (int)max);
    *out = (int32_t)n;
    return 0;
}

int tool_take_number(const char *shown, const char *value, double *out)
{
    if (!tool_parse_number(value, out))
        return tool_fail(TOOL_USE, "option %s: '%s' is not a finite float32 number", shown, value);
    return 0;
}

int tool_take_window(const char *shown, const char *value, char between, int32_t *left,
                     int32_t *right)
{
    const char *second = strchr(value, between);
    char first[16] = "";
    int64_t n[2] = {0, 0};

    if (second && (size_t)(second - value) < sizeof first)
        memcpy(first, value, (size_t)(second - value));
    if (!tool_parse_int(first, -1, INT32_MAX, &n[0]) ||
        !tool_parse_int(second + 1, -1, INT32_MAX, &n[1]))
        return tool_fail(TOOL_USE, "option %s: '%s' is not LEFT%cRIGHT in whole numbers from -1 "
                         "up, as in 4%c0", shown, value, between, between);
    *left = (int32_t)n[0];
    *right = (int32_t)n[1];
    return 0;
}

int tool_take_word(const char *shown, const char *value, const char *const *words, int *out)
{
    char list[256] = "";
    int n = tool_parse_word(value, words);

    if (n >= 0) {
        *out = n;
        return 0;
    }
    for (int i = 0; words[i]; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return tool_fail(TOOL_USE, "option %s: '%s' is none of %s", shown, value, list);
}

int tool_take_later_word(const char *shown, const char *value, const char *const *words, int *out)
{
    int n = 0, code = tool_take_word(shown, value, words + 1, &n);

    if (!code)
        *out = n + 1;
    return code;
}

int tool_take_list(const char *shown, const char *value,
                   int (*take)(void *user, const char *shown, const char *word), void *user)
{
    int code = 0;

    for (const char *at = value; !code; at++) {
        char word[32] = "";
        const size_t size = strcspn(at, ",");
        memcpy(word, at, size < sizeof word ? size : sizeof word - 1);
        code = take(user, shown, word);
        at += size;
        if (!*at)
            break;
    }
    return code;
}
