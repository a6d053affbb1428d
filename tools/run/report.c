// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/output.h"
#include "run/run.h"

// Index of the worst element as [b, h, i, d] whatever the layout.
static void worst_index(const struct run *r, int64_t at[4])
{
    int64_t shape[4];

    tool_tensor_shape(&r->problem, TOOL_O, shape);
    tool_unravel(r->result.worst, 4, shape, at);
    if (r->opt.layout == CLATTN_LAYOUT_BSHD) {
        int64_t i = at[1];
        at[1] = at[2];
        at[2] = i;
    }
}

void run_report_json(const struct run *r)
{
    json_t *o = json_object();

    json_object_set_new(o, "device", tool_json_device_name(&r->session.device));
    json_object_update_new(o, tool_json_features(&r->problem));
    json_object_update_new(o, tool_json_plan(r->plan, &r->info));
    json_object_set_new(o, "ms", json_real(r->ms));
    json_object_set_new(o, "runs", json_integer(r->opt.runs));
    if (r->opt.compare) {
        const struct tool_compare *c = &r->result;
        json_t *compare = json_object(), *index = json_array();
        int64_t at[4];
        worst_index(r, at);
        for (int i = 0; i < 4; i++)
            json_array_append_new(index, json_integer(at[i]));
        json_object_set_new(compare, "passed", json_boolean(c->over == 0));
        json_object_set_new(compare, "tolerance", json_real(r->opt.tolerance));
        json_object_set_new(compare, "count", json_integer((json_int_t)c->count));
        json_object_set_new(compare, "over", json_integer((json_int_t)c->over));
        json_object_set_new(compare, "max_error", tool_json_real(c->max_error));
        json_object_set_new(compare, "worst_error", tool_json_real(c->worst_error));
        json_object_set_new(compare, "worst_index", index);
        json_object_set_new(compare, "got", tool_json_real((double)c->got));
        json_object_set_new(compare, "expected", tool_json_real((double)c->want));
        json_object_set_new(o, "compare", compare);
    }
    tool_json_print(o, false);
}

// "WHAT       TEXT", the further lines of a narrow terminal below the text.
static void print_line(const char *what, const char *format, ...) TOOL_PRINTF(2, 3);

static void print_line(const char *what, const char *format, ...)
{
    enum { INDENT = 11 };
    char line[4096];
    va_list args;

    snprintf(line, sizeof line, "%-*s", INDENT, what);
    va_start(args, format);
    vsnprintf(line + strlen(line), sizeof line - strlen(line), format, args);
    va_end(args);
    tool_print_wrapped(line, INDENT);
}

static void report_compare(const struct run *r)
{
    const struct tool_compare *c = &r->result;
    int64_t at[4];

    print_line("compare", "%s: %zu of %zu elements are over %g + %g * |expected|",
           c->over ? "FAILED" : "passed", c->over, c->count, r->opt.tolerance, r->opt.tolerance);
    if (c->count == 0)
        return;
    worst_index(r, at);
    print_line("", "worst error %.3g at [b,h,i,d] = [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
               "]: %.9g, expected %.9g", c->worst_error, at[0], at[1], at[2],
               at[3], (double)c->got, (double)c->want);
}

void run_report_text(const struct run *r)
{
    const struct options *opt = &r->opt;
    char text[512];

    tool_device_text(&r->session.device, text, sizeof text);
    print_line("device", "%s", text);
    print_line("algorithm", "%s%s%s", r->info.algo_name, r->info.kernel_name[0] ? ", " : "",
           r->info.kernel_name);
    tool_dtypes_text(&r->problem, text, sizeof text);
    print_line("types", "%s", text);
    tool_features_text(&r->problem, text, sizeof text);
    print_line("features", "%s", text);
    tool_tile_text(&r->info, text, sizeof text);
    print_line("tile", "%s", text);
    if (r->info.reason[0])
        print_line("why", "%s", r->info.reason);
    for (int32_t i = 0; r->info.is_fallback && i < r->info.num_refusals; i++)
        print_line("refused", "%s", clattn_plan_get_refusal(r->plan, i));
    if (opt->runs > 1)
        print_line("time", "%.3f ms (median of %d)", r->ms, (int)opt->runs);
    else
        print_line("time", "%.3f ms", r->ms);
    if (opt->compare)
        report_compare(r);
    if (opt->file[TOOL_O])
        print_line("written", "%s", opt->file[TOOL_O]);
    if (opt->file[TOOL_LSE])
        print_line("written", "%s", opt->file[TOOL_LSE]);
}
