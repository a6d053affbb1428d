// SPDX-License-Identifier: Apache-2.0
// The report as text.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/output.h"
#include "probe/probe.h"

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static long long integer_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static bool is_true(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

// "BEFORE TEXT" on a line, on a terminal broken between words.
static void print_line(const char *format, ...) TOOL_PRINTF(1, 2);

static void print_line(const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tool_print_wrapped(text, 4);
}

// A line in bold, or in a colour ("1" = bold, "31" = red, ...) where there are colours.
static void line_in(const char *color, const char *format, ...) TOOL_PRINTF(2, 3);

static void line_in(const char *color, const char *format, ...)
{
    va_list args;
    char text[2048];

    if (tool_colors())
        printf("\033[%sm", color);
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tool_print_wrapped(text, 4);
    if (tool_colors())
        printf("\033[m");
}

static void print_list(const json_t *list, const char *before)
{
    size_t i;
    json_t *line;

    json_array_foreach(list, i, line)
        print_line("%s%s", before, json_string_value(line));
}

static void print_failures(const json_t *failures, const char *before)
{
    size_t i;
    json_t *f;

    json_array_foreach(failures, i, f) {
        line_in("31", "%s%s", before, text_of(f, "what"));
        print_list(json_object_get(f, "said"), "    | ");
    }
}

static const char *color_of(const char *result)
{
    static const char *const words[][2] = {{"right", "green"}, {"refused", "yellow"}};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(result, words[i][0]) == 0)
            return words[i][1];
    }
    return "red";
}

// ---- facts --------------------------------------------------------------------------------------

static void print_features(const json_t *d, struct libscols_table *table)
{
    static const struct {
        const char *key, *label;
    } features[] = {
        {"local_is_global", ", local memory is ordinary memory"},
        {"host_unified", ", memory shared with the host"},
        {"has_fp16", ", fp16"},
        {"has_subgroups", ", sub-groups"},
    };
    char text[256];
    size_t i;
    json_t *quirk;

    if (strcmp(text_of(d, "type"), tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) == 0)
        return;
    snprintf(text, sizeof text, "%s", is_true(d, "vector_shape") ? "vector" : "group");
    for (i = 0; i < sizeof features / sizeof *features; i++) {
        if (is_true(d, features[i].key))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s", features[i].label);
    }
    tool_table_row(table, (const char *[]){"kernel shape, features", text}, 2);
    json_array_foreach(json_object_get(d, "quirks_in_words"), i, quirk)
        tool_table_row(table, (const char *[]){"driver quirk", json_string_value(quirk)}, 2);
    if (integer_of(d, "quirks") == 0)
        tool_table_row(table, (const char *[]){"driver quirks", "none known"}, 2);
}

// "14.8 GiB": three digits; JSON has them all.
static void bytes_text(double bytes, char *text, size_t size)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;

    for (; bytes >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        bytes /= 1024;
    snprintf(text, size, "%.*f %s", bytes < 100 && bytes != (long long)bytes ? 1 : 0, bytes,
             units[unit]);
}

static void print_numbers(const json_t *d, struct libscols_table *table)
{
    static const struct {
        const char *key, *label;
    } numbers[] = {
        {"rank", "rank (0 = default)"},
        {"compute_units", "compute units"},
        {"native_width_f32", "native float vector"},
        {"max_group", "largest work-group"},
        {"local_bytes", "local memory"},
        {"cache_bytes", "cache"},
        {"global_bytes", "memory"},
        {"max_alloc_bytes", "largest allocation"},
    };
    char text[32];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        // The built-in path has no figure for most of them.
        if (integer_of(d, numbers[i].key) == 0 && i > 0)
            continue;
        if (strstr(numbers[i].key, "bytes"))
            bytes_text((double)integer_of(d, numbers[i].key), text, sizeof text);
        else
            snprintf(text, sizeof text, "%lld", integer_of(d, numbers[i].key));
        tool_table_row(table, (const char *[]){numbers[i].label, text}, 2);
    }
}

static void print_facts(const json_t *d)
{
    const struct tool_column columns[] = {{"FACT", false, false}, {"VALUE", false, true}};
    struct libscols_table *table = tool_table_create(columns, 2, false);
    const bool works = is_true(d, "works");
    char text[1200];

    if (integer_of(d, "index") < 0)
        line_in("1", "[cpu] %s: %s", text_of(d, "platform"), text_of(d, "name"));
    else
        line_in("1", "[%lld] %s: %s", integer_of(d, "index"), text_of(d, "platform"),
                text_of(d, "name"));
    tool_table_row(table, (const char *[]){"type", text_of(d, "type")}, 2);
    tool_table_row(table, (const char *[]){"vendor", text_of(d, "vendor")}, 2);
    tool_table_row(table, (const char *[]){"driver", text_of(d, "driver")}, 2);
    if (text_of(d, "version")[0])
        tool_table_row(table, (const char *[]){"version", text_of(d, "version")}, 2);
    print_numbers(d, table);
    print_features(d, table);
    if (integer_of(d, "programs_built")) {
        snprintf(text, sizeof text, "%lld", integer_of(d, "programs_built"));
        tool_table_row(table, (const char *[]){"programs compiled", text}, 2);
    }
    snprintf(text, sizeof text, "%s%s%s", works ? "yes" : "NO",
             works ? "" : is_true(d, "opened") ? "" : ", it cannot be opened: ",
             works || is_true(d, "opened") ? "" : text_of(d, "status"));
    tool_table_row(table, (const char *[]){"works", text}, 2);
    tool_table_color(table, 1, works ? "green" : "red");
    tool_table_print(table);
    print_list(json_object_get(d, "messages"), "  ! ");
    print_failures(json_object_get(d, "failures"), "  ! ");
}

// ---- kernels and plans --------------------------------------------------------------------------

static void real_text(const json_t *value, char *text, size_t size)
{
    if (json_is_number(value))
        snprintf(text, size, "%.2g", json_number_value(value));
    else
        snprintf(text, size, "%s", value ? json_string_value(value) : "-");
}

static void print_kernels(const json_t *d)
{
    const struct tool_column columns[] = {
        {"KERNEL", false, false}, {"RESULT", false, false}, {"MAX ERROR", true, false}};
    struct libscols_table *table = tool_table_create(columns, 3, true);
    json_t *kernels = json_object_get(d, "kernels"), *k;
    size_t i;

    json_array_foreach(kernels, i, k) {
        char text[32];
        real_text(json_object_get(k, "max_error"), text, sizeof text);
        const char *cells[] = {text_of(k, "kernel"), text_of(k, "result"), text};
        tool_table_row(table, cells, 3);
        tool_table_color(table, 1, color_of(text_of(k, "result")));
    }
    printf("\n");
    tool_table_print(table);
    json_array_foreach(kernels, i, k) {
        char before[64];
        json_t *refusals = json_object_get(k, "refusals");
        snprintf(before, sizeof before, "  %s refused: ", text_of(k, "kernel"));
        print_list(refusals, before);
        // The messages of a shape that is only refused say the same again.
        if (strcmp(text_of(k, "result"), "refused") == 0 && json_array_size(refusals) > 0)
            continue;
        if (strcmp(text_of(k, "result"), "right") != 0)
            print_line("  ! %s: %s", text_of(k, "kernel"), text_of(k, "status"));
        print_list(json_object_get(k, "messages"), "  ! ");
    }
}

// Whether a message says what a refusal of the plan says already.
static bool is_refusal(const json_t *plan, const char *message)
{
    const bool fallback = strncmp(message, "fallback: ", 10) == 0;
    size_t i;
    json_t *refusal;

    json_array_foreach(json_object_get(plan, "refusals"), i, refusal) {
        if (fallback && strstr(message, json_string_value(refusal)))
            return true;
    }
    return false;
}

// Adds the shape of a plan to those that a text holds for.
static void add_shape(json_t *shapes_of, const json_t *plan, const char *text)
{
    json_t *before = json_object_get(shapes_of, text);

    if (!text || is_refusal(plan, text))
        return;
    json_object_set_new(shapes_of, text,
                        json_sprintf("%s%s%s", before ? json_string_value(before) : "",
                                     before ? "; " : "", text_of(plan, "shape")));
}

// Texts of all plans, one or a list of each, each once behind the shapes it holds for.
static void print_by_shape(const json_t *plans, const char *key, const char *what)
{
    json_t *shapes_of = json_object(), *all = json_object(), *p, *line;
    const char *text, *every;
    size_t i, k;

    json_array_foreach(plans, i, p) {
        add_shape(shapes_of, p, json_string_value(json_object_get(p, key)));
        json_array_foreach(json_object_get(p, key), k, line)
            add_shape(shapes_of, p, json_string_value(line));
    }
    json_array_foreach(plans, i, p)
        add_shape(all, p, "");
    every = text_of(all, "");
    json_object_foreach(shapes_of, text, line) {
        const char *shapes = json_string_value(line);
        const bool is_all = json_array_size(plans) > 1 && strcmp(shapes, every) == 0;
        print_line("  %s for %s: %s", what, is_all ? "all shapes" : shapes, text);
    }
    json_decref(shapes_of);
    json_decref(all);
}

static void print_plans(const json_t *d)
{
    static const char *const keys[] = {"shape", "algo", "kernel", "tile_q", "tile_k", "group_size",
                                       "vector_width", "chunk_d", "local_bytes"};
    static const struct tool_column columns[] = {
        {"SHAPE", false, false}, {"ALGORITHM", false, false}, {"KERNEL", false, false},
        {"ROWS", true, false}, {"KEYS", true, false}, {"GROUP", true, false},
        {"VECTOR", true, false}, {"CHUNK", true, false}, {"LOCAL BYTES", true, false}};
    enum { COUNT = sizeof keys / sizeof *keys };
    struct libscols_table *table = tool_table_create(columns, COUNT, true);
    json_t *plans = json_object_get(d, "plans"), *p;
    size_t n;

    json_array_foreach(plans, n, p) {
        char numbers[COUNT][24];
        const char *cells[COUNT];
        for (int i = 0; i < COUNT; i++) {
            json_t *value = json_object_get(p, keys[i]);
            snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)json_integer_value(value));
            cells[i] = json_is_string(value) ? json_string_value(value) : value ? numbers[i] : "-";
        }
        if (!json_object_get(p, "algo"))
            cells[1] = "none";
        tool_table_row(table, cells, COUNT);
        if (!json_object_get(p, "algo"))
            tool_table_color(table, 1, "red");
    }
    printf("\n");
    tool_table_print(table);
    print_by_shape(plans, "reason", "reason");
    json_array_foreach(plans, n, p) {
        // Messages say more than the status.
        if (!json_object_get(p, "algo") && json_array_size(json_object_get(p, "messages")) == 0)
            print_line("  ! for %s: %s", text_of(p, "shape"), text_of(p, "status"));
    }
    // That the CPU path runs no kernels is no news.
    if (strcmp(text_of(d, "type"), tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) != 0)
        print_by_shape(plans, "refusals", "not taken");
    print_by_shape(plans, "messages", "!");
}

// ---- self-test ----------------------------------------------------------------------------------

static void print_cases(const json_t *d)
{
    const struct tool_column columns[] = {
        {"CASE", false, false}, {"SHAPE", false, false}, {"MEMORY", false, false},
        {"KERNEL", false, false}, {"TILE", false, false}, {"RESULT", false, false},
        {"MAX ERROR", true, false}, {"OF TOLERANCE", true, false}};
    enum { COUNT = sizeof columns / sizeof *columns };
    const json_t *test = json_object_get(d, "self_test"), *cases = json_object_get(d, "cases");
    const bool good = integer_of(test, "right") == integer_of(test, "cases");
    struct libscols_table *table = tool_table_create(columns, COUNT, true);
    static const char *const least[] = {"TILE", "KERNEL", "MEMORY", "OF TOLERANCE", NULL};
    char hidden[128];
    size_t i;
    json_t *c;

    json_array_foreach(cases, i, c) {
        char tile[32] = "-", kernel[80] = "-", error[32], ratio[32];
        if (json_object_get(c, "algo")) {
            snprintf(tile, sizeof tile, "%lld x %lld", integer_of(c, "tile_q"),
                     integer_of(c, "tile_k"));
            snprintf(kernel, sizeof kernel, "%s %s", text_of(c, "algo"), text_of(c, "kernel"));
        }
        real_text(json_object_get(c, "max_error"), error, sizeof error);
        real_text(json_object_get(c, "of_tolerance"), ratio, sizeof ratio);
        const char *cells[COUNT] = {text_of(c, "name"), text_of(c, "shape"), text_of(c, "memory"),
                                    kernel, tile, text_of(c, "result"), error, ratio};
        tool_table_row(table, cells, COUNT);
        tool_table_color(table, 5, color_of(text_of(c, "result")));
    }
    printf("\n");
    tool_table_fit(table, least, hidden, sizeof hidden);
    tool_table_print(table);
    if (hidden[0])
        print_line("  left out of %d columns: %s (see --json)", tool_columns(), hidden);
    json_array_foreach(cases, i, c) {
        if (strcmp(text_of(c, "result"), "right") != 0)
            print_line("  ! %s: %s", text_of(c, "name"), text_of(c, "status"));
        print_list(json_object_get(c, "messages"), "  ! ");
    }
    line_in(good ? "32" : "31", "self-test (%s): %lld of %lld cases right, at most %.2g of the "
            "tolerance%s%s", text_of(test, "level"), integer_of(test, "right"),
            integer_of(test, "cases"), json_number_value(json_object_get(test, "of_tolerance")),
            text_of(test, "worst_case")[0] ? ", in " : "", text_of(test, "worst_case"));
}

// ---- drivers ------------------------------------------------------------------------------------

// Drivers that do not load, with the reason, and what each of the others does alone.
static void print_driver_lines(const json_t *drivers)
{
    size_t i;
    json_t *d;

    json_array_foreach(drivers, i, d) {
        if (!is_true(d, "loads"))
            print_line("  ! %s: %s", text_of(d, "library"), text_of(d, "why"));
        else if (json_object_get(d, "alone"))
            print_line("  %s without the others: %s", text_of(d, "library"), text_of(d, "alone"));
    }
}

static void print_drivers(const json_t *where)
{
    const struct tool_column columns[] = {
        {"DRIVER", false, false}, {"LIBRARY", false, false}, {"LOADS", false, false}};
    const json_t *drivers = json_object_get(where, "drivers");
    const bool usual = strcmp(text_of(where, "from"), "default") == 0;
    struct libscols_table *table;
    size_t i;
    json_t *d;

    line_in("1", "drivers in %s%s%s", text_of(where, "folder"), usual ? "" : ", from $",
            usual ? "" : text_of(where, "from"));
    if (json_array_size(drivers) == 0) {
        printf("  %s\n", is_true(where, "exists") ? "no .icd file is there"
                                                  : "it does not exist, so no driver is known");
        return;
    }
    table = tool_table_create(columns, 3, true);
    json_array_foreach(drivers, i, d) {
        const bool loads = is_true(d, "loads");
        const char *cells[] = {text_of(d, "source"), text_of(d, "library"), loads ? "yes" : "NO"};
        tool_table_row(table, cells, 3);
        tool_table_color(table, 2, loads ? "green" : "red");
    }
    tool_table_print(table);
    print_driver_lines(drivers);
}

static void print_advice(const json_t *advice)
{
    const struct tool_column columns[] = {{"SYSTEM", false, false}, {"INSTALL", false, true}};
    struct libscols_table *table = tool_table_create(columns, 2, false);
    size_t i;
    json_t *a;

    json_array_foreach(advice, i, a)
        tool_table_row(table, (const char *[]){text_of(a, "system"), text_of(a, "install")}, 2);
    line_in("1", "what to install");
    tool_table_print(table);
}

// ---- all ----------------------------------------------------------------------------------------

// "what: a: why; b: why" as lines, since a loader is looked for under many names.
static void print_looked_for(const json_t *messages)
{
    size_t i;
    json_t *line;

    json_array_foreach(messages, i, line) {
        char *copy = strdup(json_string_value(line));
        for (char *part = copy, *end; part; part = end) {
            end = strstr(part, "; ");
            if (end) {
                *end = '\0';
                end += 2;
            }
            print_line("  looked for: %s", part);
        }
        free(copy);
    }
}

// "; the default is [0] PLATFORM: NAME"
static void default_text(const json_t *report, char *text, size_t size)
{
    const char *chosen = getenv("CLATTN_DEVICE");
    const json_t *best = NULL;
    size_t i;
    json_t *d;

    text[0] = '\0';
    if (chosen && *chosen) {
        snprintf(text, size, "; the default is what $CLATTN_DEVICE names, %s", chosen);
        return;
    }
    json_array_foreach(json_object_get(report, "devices"), i, d) {
        if (is_true(d, "works") && (!best || integer_of(d, "rank") < integer_of(best, "rank")))
            best = d;
    }
    if (best)
        snprintf(text, size, "; the default is [%lld] %s: %s", integer_of(best, "index"),
                 text_of(best, "platform"), text_of(best, "name"));
}

static void print_end(const json_t *report, const struct probe_options *opt)
{
    const json_t *count = json_object_get(report, "opencl_devices");
    const json_t *messages = json_object_get(report, "messages");
    const bool works = is_true(report, "works");
    long long working = 0;
    char by_default[512];
    size_t i;
    json_t *d;

    default_text(report, by_default, sizeof by_default);
    json_array_foreach(json_object_get(report, "devices"), i, d) {
        if (is_true(d, "works") &&
            strcmp(text_of(d, "type"), tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) != 0)
            working++;
    }
    if (json_array_size(messages) > 0 || json_array_size(json_object_get(report, "failures")) > 0)
        line_in("1", "how OpenCL was looked for");
    print_failures(json_object_get(report, "failures"), "  ! ");
    if (json_is_integer(count) && json_integer_value(count) == 0)
        print_looked_for(messages);
    else
        print_list(messages, "  ");
    if (json_object_get(report, "drivers"))
        print_drivers(json_object_get(report, "drivers"));
    if (json_object_get(report, "advice"))
        print_advice(json_object_get(report, "advice"));
    const char *color = works ? "32" : "31", *rest = "; the built-in CPU path remains";
    if (opt->device)
        line_in(color, "the device %s", works ? "works" : "does NOT work");
    else if (json_is_integer(count))
        line_in(color, "%lld of %lld OpenCL device%s work%s%s", working,
                (long long)json_integer_value(count), json_integer_value(count) == 1 ? "" : "s",
                working == 1 ? "s" : "", works ? by_default : rest);
    else
        line_in(color, "no OpenCL device can be used%s", rest);
    json_array_foreach(json_object_get(report, "unserved"), i, d)
        line_in("31", "nothing serves %s", json_string_value(d));
}

void probe_print(const json_t *report, const struct probe_options *opt)
{
    size_t i;
    json_t *d;

    printf("clattn %s on %s%s\n\n", text_of(report, "version"), text_of(report, "system"),
           is_true(report, "opencl_built") ? "" : ", built without OpenCL");
    json_array_foreach(json_object_get(report, "devices"), i, d) {
        print_facts(d);
        if (is_true(d, "opened")) {
            print_kernels(d);
            print_plans(d);
            if (json_object_get(d, "cases"))
                print_cases(d);
        }
        printf("\n");
    }
    print_end(report, opt);
}
