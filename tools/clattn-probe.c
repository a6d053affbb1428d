// SPDX-License-Identifier: Apache-2.0
// clattn-probe: which devices are there, what clattn would do on them, and whether that works.
#include <stdio.h>
#include <string.h>

#include "lib/options.h"
#include "lib/output.h"
#include "lib/say.h"
#include "lib/shape.h"
#include "probe/probe.h"

enum {
    OPT_DEVICE, OPT_DIM, OPT_SHAPE, OPT_SELF_TEST, OPT_TIMEOUT, OPT_LIBRARY, OPT_JSON, OPT_HELP,
    OPT_HELP_ALL, OPT_VERSION, OPT_CHILD, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DIM] = {"dim", 0, TOOL_ARG_REQUIRED, true},
    [OPT_SHAPE] = {"shape", 0, TOOL_ARG_REQUIRED, true},
    [OPT_SELF_TEST] = {"self-test", 0, TOOL_ARG_OPTIONAL, false},
    [OPT_TIMEOUT] = {"timeout", 0, TOOL_ARG_REQUIRED, false},
    [OPT_LIBRARY] = {"opencl-library", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_HELP_ALL] = {"help-all", 0, TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
    // How the program starts itself, see probe/probe.h; not for users.
    [OPT_CHILD] = {"child", 0, TOOL_ARG_REQUIRED, false},
};

static struct tool_problem usual_shape(int32_t dim)
{
    return (struct tool_problem){.batch = 1, .heads_q = 8, .heads_kv = 8, .len_q = 2048,
                                 .len_kv = 2048, .dim_qk = dim, .dim_v = dim};
}

static int take_plan(struct probe_options *opt, bool shape, const char *shown, const char *value)
{
    int32_t dim;

    if (opt->plans == PROBE_PLANS_MAX)
        return tool_fail(TOOL_USE, "option %s: more than %d plans", shown, PROBE_PLANS_MAX);
    opt->asked = true;
    struct tool_problem *p = &opt->plan[opt->plans++];
    if (shape)
        return tool_take_shape(shown, value, p);
    int code = tool_take_int32(shown, value, 1, INT32_MAX, &dim);
    *p = usual_shape(code ? 0 : dim);
    return code;
}

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct probe_options *opt = user;

    switch (index) {
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_DIM: return take_plan(opt, false, shown, value);
    case OPT_SHAPE: return take_plan(opt, true, shown, value);
    case OPT_SELF_TEST:
        opt->self_test = PROBE_LEVEL_AUTO;
        return value ? tool_take_word(shown, value, probe_level_words, &opt->self_test) : 0;
    case OPT_TIMEOUT: return tool_take_int32(shown, value, 1, 86400, &opt->timeout);
    case OPT_LIBRARY: opt->library = value; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = 1; return 0;
    case OPT_HELP_ALL: opt->help = 2; return 0;
    case OPT_VERSION: opt->version = true; return 0;
    default: opt->child = value; return 0;
    }
}

static void take_usual_plans(struct probe_options *opt)
{
    static const int32_t dims[] = {32, 64, 80, 128, 256};

    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        opt->plan[opt->plans++] = usual_shape(dims[i]);
}

int main(int argc, char **argv)
{
    static struct probe_options opt;

    opt.timeout = 120;
    opt.self_test = PROBE_LEVEL_NONE;
    opt.argc = argc;
    opt.argv = argv;
    tool_start("clattn-probe");
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, &opt);
    if (code)
        return code;
    if (opt.help || opt.version) {
        if (opt.help)
            tool_print_help(opt.help > 1 ? probe_help_all : probe_help);
        else
            tool_print_version();
        return tool_finish(TOOL_DONE);
    }
    if (opt.plans == 0)
        take_usual_plans(&opt);
    if (opt.child)
        return probe_task(&opt);
    json_t *report = json_object();
    code = probe_gather(&opt, report);
    if (!code) {
        const bool good = json_is_true(json_object_get(report, "works")) &&
                          json_array_size(json_object_get(report, "unserved")) == 0;
        code = good ? TOOL_DONE : TOOL_WRONG;
        if (opt.json)
            tool_json_print(json_incref(report), false);
        else
            probe_print(report, &opt);
    }
    json_decref(report);
    return tool_finish(code);
}
