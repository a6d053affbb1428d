// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <libsmartcols.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dtype.h"
#include "session.h"

struct libscols_table *tool_table_create(const struct tool_column *columns, int count,
                                         bool headings)
{
    struct libscols_table *table = scols_new_table();

    if (!table)
        return NULL;
    scols_table_enable_noheadings(table, !headings);
    scols_table_enable_colors(table, tool_colors());
    for (int i = 0; i < count; i++) {
        int flags = (columns[i].right ? SCOLS_FL_RIGHT : 0) | (columns[i].wrap ? SCOLS_FL_WRAP : 0);
        struct libscols_column *column =
            scols_table_new_column(table, columns[i].heading, 0, flags);
        if (!column) {
            scols_unref_table(table);
            return NULL;
        }
        scols_cell_set_color(scols_column_get_header(column), "bold");
    }
    return table;
}

void tool_table_row(struct libscols_table *table, const char *const *cells, int count)
{
    struct libscols_line *line = table ? scols_table_new_line(table, NULL) : NULL;

    for (int i = 0; line && i < count; i++)
        scols_line_set_data(line, (size_t)i, cells[i]);
}

bool tool_colors(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    const char *force = getenv("CLICOLOR_FORCE");

    if (no_color && *no_color)
        return false;
    if (force && *force && strcmp(force, "0") != 0)
        return true;
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

void tool_table_color(struct libscols_table *table, int column, const char *color)
{
    size_t lines = table ? scols_table_get_nlines(table) : 0;

    if (lines > 0)
        scols_cell_set_color(
            scols_line_get_cell(scols_table_get_line(table, lines - 1), (size_t)column), color);
}

// ---- widths ------------------------------------------------------------------------------------

enum { ROOM_LEAST = 20 }; // of a column that may be broken

int tool_columns(void)
{
    struct winsize size;

    if (!isatty(STDOUT_FILENO))
        return INT_MAX;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20)
        return 80;
    return size.ws_col;
}

// Characters of a text in UTF-8.
static int length_of(const char *text)
{
    int n = 0;

    for (; text && *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static int width_of(const struct libscols_table *table, size_t column)
{
    struct libscols_column *c = scols_table_get_column((struct libscols_table *)table, column);
    struct libscols_cell *header = scols_column_get_header(c);
    int width = scols_table_is_noheadings(table) ? 0 : length_of(scols_cell_get_data(header));

    for (size_t i = 0; i < scols_table_get_nlines(table); i++) {
        struct libscols_line *line = scols_table_get_line((struct libscols_table *)table, i);
        const int n = length_of(scols_cell_get_data(scols_line_get_cell(line, column)));
        width = n > width ? n : width;
    }
    return width;
}

// Of the columns that are shown, with what is between them, but for those with `flag`.
static int width_without(const struct libscols_table *table, int flag)
{
    int width = -1;

    for (size_t i = 0; i < scols_table_get_ncols(table); i++) {
        struct libscols_column *c = scols_table_get_column((struct libscols_table *)table, i);
        if (!scols_column_is_hidden(c))
            width += 1 + (scols_column_get_flags(c) & flag ? 0 : width_of(table, i));
    }
    return width;
}

static struct libscols_column *find_column(struct libscols_table *table, const char *heading)
{
    for (size_t i = 0; i < scols_table_get_ncols(table); i++) {
        struct libscols_column *c = scols_table_get_column(table, i);
        if (strcmp(scols_cell_get_data(scols_column_get_header(c)), heading) == 0)
            return c;
    }
    return NULL;
}

static void hide(struct libscols_column *c)
{
    scols_column_set_flags(c, scols_column_get_flags(c) | SCOLS_FL_HIDDEN);
}

void tool_table_hide_empty(struct libscols_table *table)
{
    for (size_t i = 0; table && i < scols_table_get_ncols(table); i++) {
        bool any = false;
        for (size_t k = 0; k < scols_table_get_nlines(table); k++) {
            struct libscols_line *line = scols_table_get_line(table, k);
            const char *text = scols_cell_get_data(scols_line_get_cell(line, i));
            any = any || (text && *text);
        }
        if (!any)
            hide(scols_table_get_column(table, i));
    }
}

// What is needed at least, where columns that may be broken are.
static int least_width(const struct libscols_table *table)
{
    const int whole = width_without(table, 0), rest = width_without(table, SCOLS_FL_WRAP);

    return whole - rest < ROOM_LEAST ? whole : rest + ROOM_LEAST;
}

void tool_table_fit(struct libscols_table *table, const char *const *headings, char *hidden,
                    size_t size)
{
    hidden[0] = 0;
    for (; table && *headings && least_width(table) > tool_columns(); headings++) {
        struct libscols_column *c = find_column(table, *headings);
        const size_t used = strlen(hidden);
        if (!c)
            continue;
        hide(c);
        snprintf(hidden + used, size - used, "%s%s", used ? ", " : "", *headings);
    }
}

// Puts line breaks between words, so that no line is over `width` where a word is not. `indent`
// spaces follow each.
static char *break_lines(const char *text, int width, int indent)
{
    const size_t size = strlen(text);
    char *out = malloc((size + 1) * (size_t)(indent + 2)), *to = out;
    int at = 0;

    for (const char *word = text; out && *word;) {
        const int spaces = (int)strspn(word, " ");
        const int length = (int)strcspn(word + spaces, " ");
        if (at > indent && at + spaces + length > width && spaces) {
            to += sprintf(to, "\n%*s", indent, "");
            at = indent;
        } else {
            to += sprintf(to, "%*s", spaces, "");
            at += spaces;
        }
        memcpy(to, word + spaces, (size_t)length);
        to += length;
        at += length;
        word += spaces + length;
    }
    if (out)
        *to = 0;
    return out;
}

void tool_print_wrapped(const char *text, int indent)
{
    const int columns = tool_columns();
    char *lines = columns == INT_MAX ? NULL : break_lines(text, columns, indent);

    puts(lines ? lines : text);
    free(lines);
}

// Libsmartcols breaks in the middle of words.
static void wrap(struct libscols_table *table, size_t column, int room)
{
    struct libscols_column *c = scols_table_get_column(table, column);

    scols_column_set_safechars(c, "\n");
    scols_column_set_wrapfunc(c, scols_wrapnl_chunksize, scols_wrapnl_nextchunk, NULL);
    for (size_t i = 0; i < scols_table_get_nlines(table); i++) {
        struct libscols_line *line = scols_table_get_line(table, i);
        const char *text = scols_cell_get_data(scols_line_get_cell(line, column));
        char *lines = text ? break_lines(text, room, 0) : NULL;
        if (lines)
            scols_line_refer_data(line, column, lines); // which frees it
    }
}

void tool_table_print(struct libscols_table *table)
{
    const int room = table ? tool_columns() - width_without(table, SCOLS_FL_WRAP) : 0;

    for (size_t i = 0; table && i < scols_table_get_ncols(table); i++) {
        const int flags = scols_column_get_flags(scols_table_get_column(table, i));
        if (flags & SCOLS_FL_WRAP && room >= ROOM_LEAST && tool_columns() != INT_MAX)
            wrap(table, i, room);
    }
    if (table)
        scols_print_table(table);
    tool_table_free(table);
}

void tool_table_print_fitted(struct libscols_table *table, const char *const *least,
                             const char *see)
{
    char hidden[256], text[400];

    tool_table_fit(table, least, hidden, sizeof hidden);
    tool_table_print(table);
    snprintf(text, sizeof text, "left out of %d columns: %s (see %s)", tool_columns(), hidden, see);
    if (hidden[0])
        tool_print_wrapped(text, 0);
}

void tool_table_free(struct libscols_table *table)
{
    if (table)
        scols_unref_table(table);
}

json_t *tool_json_text(const char *text)
{
    char clean[1024];
    json_t *value = json_string(text);

    if (value)
        return value;
    snprintf(clean, sizeof clean, "%s", text);
    for (char *c = clean; *c; c++) {
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    }
    return json_string(clean);
}

json_t *tool_json_real(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

const char *tool_device_type(int32_t type)
{
    switch (type) {
    case CLATTN_DEVICE_BUILTIN_CPU:
        return "built-in CPU path";
    case CLATTN_DEVICE_CPU:
        return "CPU";
    case CLATTN_DEVICE_GPU:
        return "GPU";
    case CLATTN_DEVICE_ACCELERATOR:
        return "accelerator";
    default:
        return "other";
    }
}

json_t *tool_json_device_name(const clattn_device_info *info)
{
    json_t *o = json_object();

    json_object_set_new(o, "index", json_integer(info->index));
    json_object_set_new(o, "type", json_string(tool_device_type(info->type)));
    json_object_set_new(o, "platform", tool_json_text(info->platform));
    json_object_set_new(o, "name", tool_json_text(info->name));
    return o;
}

json_t *tool_json_device(const clattn_device_info *info)
{
    json_t *o = tool_json_device_name(info);
    json_t *items = json_array();

    for (int i = 0; i < 3; i++)
        json_array_append_new(items, json_integer((json_int_t)info->max_items[i]));
    json_object_set_new(o, "vendor", tool_json_text(info->vendor));
    json_object_set_new(o, "driver", tool_json_text(info->driver));
    json_object_set_new(o, "version", tool_json_text(info->version));
    json_object_set_new(o, "rank", json_integer(info->rank));
    json_object_set_new(o, "compute_units", json_integer(info->compute_units));
    json_object_set_new(o, "native_width_f32", json_integer(info->native_width_f32));
    json_object_set_new(o, "max_group", json_integer((json_int_t)info->max_group));
    json_object_set_new(o, "max_items", items);
    json_object_set_new(o, "local_bytes", json_integer((json_int_t)info->local_bytes));
    json_object_set_new(o, "local_is_global", json_boolean(info->local_is_global));
    json_object_set_new(o, "host_unified", json_boolean(info->host_unified));
    json_object_set_new(o, "global_bytes", json_integer((json_int_t)info->global_bytes));
    json_object_set_new(o, "max_alloc_bytes", json_integer((json_int_t)info->max_alloc_bytes));
    json_object_set_new(o, "cache_bytes", json_integer((json_int_t)info->cache_bytes));
    json_object_set_new(o, "has_fp16", json_boolean(info->has_fp16));
    json_object_set_new(o, "has_subgroups", json_boolean(info->has_subgroups));
    json_object_set_new(o, "vector_shape", json_boolean(info->vector_shape));
    json_object_set_new(o, "quirks", json_integer(info->quirks));
    return o;
}

json_t *tool_json_plan(const clattn_plan *plan, const clattn_plan_info *info)
{
    json_t *o = json_object();
    json_t *refusals = json_array();

    for (int32_t i = 0; i < info->num_refusals; i++)
        json_array_append_new(refusals, tool_json_text(clattn_plan_get_refusal(plan, i)));
    json_object_set_new(o, "algo", tool_json_text(info->algo_name));
    json_object_set_new(o, "kernel", tool_json_text(info->kernel_name));
    json_object_set_new(o, "tile_q", json_integer(info->tile_q));
    json_object_set_new(o, "tile_k", json_integer(info->tile_k));
    json_object_set_new(o, "group_size", json_integer(info->group_size));
    json_object_set_new(o, "vector_width", json_integer(info->vector_width));
    json_object_set_new(o, "chunk_d", json_integer(info->chunk_d));
    json_object_set_new(o, "local_bytes", json_integer((json_int_t)info->local_bytes));
    if (info->num_splits > 1)
        json_object_set_new(o, "num_splits", json_integer(info->num_splits));
    json_object_set_new(o, "bytes_moved", json_integer((json_int_t)info->bytes_moved));
    json_object_set_new(o, "is_fallback", json_boolean(info->is_fallback));
    json_object_set_new(o, "reason", tool_json_text(info->reason));
    json_object_set_new(o, "refusals", refusals);
    return o;
}

json_t *tool_json_features(const struct tool_problem *p)
{
    json_t *o = json_object();

    json_object_set_new(o, "dtype", json_string(tool_dtype_words[p->dtype_q]));
    json_object_set_new(o, "kv_dtype", json_string(tool_dtype_words[p->dtype_kv]));
    json_object_set_new(o, "causal", json_boolean(p->causal));
    json_object_set_new(o, "mask", json_boolean(p->mask));
    json_object_set_new(o, "align", json_string(tool_align_words[p->align]));
    json_object_set_new(o, "layout", json_string(tool_layout_words[p->layout]));
    json_object_set_new(o, "window",
                        p->window ? json_pack("[ii]", (int)p->window_left, (int)p->window_right)
                                  : json_null());
    json_object_set_new(o, "softcap",
                        p->softcap > 0 ? json_real((double)p->softcap) : json_null());
    json_object_set_new(o, "bias",
                        p->bias ? json_string(tool_dtype_words[p->dtype_bias]) : json_null());
    json_object_set_new(o, "alibi", json_boolean(p->alibi));
    json_object_set_new(o, "sinks", json_boolean(p->sinks));
    json_object_set_new(o, "kv_lens", json_boolean(p->kv_lens));
    json_object_set_new(o, "packed_q", json_boolean(p->packed_q));
    json_object_set_new(o, "packed_kv", json_boolean(p->packed_kv));
    json_object_set_new(o, "precision", json_string(tool_precision_words[p->precision]));
    json_object_set_new(o, "page_size", p->page_size ? json_integer(p->page_size) : json_null());
    return o;
}

void tool_json_print(json_t *value, bool one_line)
{
    size_t flags = JSON_REAL_PRECISION(9) | (one_line ? 0 : JSON_INDENT(2));

    json_dumpf(value, stdout, flags);
    putchar('\n');
    fflush(stdout);
    json_decref(value);
}
