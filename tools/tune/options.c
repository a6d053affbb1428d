// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "lib/options.h"
#include "lib/shape.h"
#include "tune/tune.h"

enum {
    OPT_SHAPE, OPT_CAUSAL, OPT_PAGE, OPT_DTYPE, OPT_KV_DTYPE, OPT_ALGO, OPT_KERNEL, OPT_DEVICE,
    OPT_RUNS, OPT_BUDGET, OPT_OUTPUT, OPT_AGAIN, OPT_DRY_RUN, OPT_JSON, OPT_HELP, OPT_HELP_ALL,
    OPT_VERSION, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_SHAPE] = {"shape", 0, TOOL_ARG_REQUIRED, true},
    [OPT_CAUSAL] = {"causal", 0, TOOL_ARG_NONE, false},
    [OPT_PAGE] = {"page", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DTYPE] = {"dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KV_DTYPE] = {"kv-dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_ALGO] = {"algo", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KERNEL] = {"kernel", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_RUNS] = {"runs", 0, TOOL_ARG_REQUIRED, false},
    [OPT_BUDGET] = {"budget", 0, TOOL_ARG_REQUIRED, false},
    [OPT_OUTPUT] = {"output", 'o', TOOL_ARG_REQUIRED, false},
    [OPT_AGAIN] = {"again", 0, TOOL_ARG_NONE, false},
    [OPT_DRY_RUN] = {"dry-run", 0, TOOL_ARG_NONE, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_HELP_ALL] = {"help-all", 0, TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

static int add_shape(struct tune_options *opt, const char *shown, const char *value)
{
    if (opt->rows == TUNE_ROWS_MAX)
        return tool_fail(TOOL_USE, "option %s: more than %d shapes", shown, TUNE_ROWS_MAX);
    return tool_take_shape(shown, value, &opt->row[opt->rows++].p);
}

static int add_algo(void *user, const char *shown, const char *word)
{
    struct tune_options *opt = user;
    const int algo = tool_parse_word(word, tool_algo_words);

    if (algo < 0 || !tool_algo_has_shapes(algo))
        return tool_fail(TOOL_USE, "option %s: '%s' is none of auto, fused, split_kv, two_loop, "
                                   "fused_kv_outer", shown, word);
    for (int i = 0; i < opt->algos; i++) {
        if (opt->algo[i] == algo)
            return tool_fail(TOOL_USE, "option %s: %s is there twice", shown, word);
        if (!algo || !opt->algo[i])
            return tool_fail(TOOL_USE, "option %s: auto stands alone", shown);
    }
    opt->algo[opt->algos++] = algo;
    return 0;
}

static int take_budget(struct tune_options *opt, const char *shown, const char *value)
{
    if (!tool_parse_number(value, &opt->budget_s) || opt->budget_s <= 0)
        return tool_fail(TOOL_USE, "option %s: '%s' is no number of seconds over 0", shown, value);
    return 0;
}

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct tune_options *opt = user;
    struct bench_features *f = &opt->features;

    switch (index) {
    case OPT_SHAPE: return add_shape(opt, shown, value);
    case OPT_CAUSAL: return bench_take_feature(f, BENCH_CAUSAL, shown, value, ',');
    case OPT_PAGE: return bench_take_feature(f, BENCH_PAGE, shown, value, ',');
    case OPT_DTYPE: return bench_take_feature(f, BENCH_DTYPE, shown, value, ',');
    case OPT_KV_DTYPE: return bench_take_feature(f, BENCH_KV_DTYPE, shown, value, ',');
    case OPT_ALGO: return tool_take_list(shown, value, add_algo, opt);
    case OPT_KERNEL: return tool_take_later_word(shown, value, tool_kernel_words, &opt->kernel);
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_RUNS: return tool_take_int32(shown, value, 1, 1000, &opt->runs);
    case OPT_BUDGET: return take_budget(opt, shown, value);
    case OPT_OUTPUT: opt->output = value; return 0;
    case OPT_AGAIN: opt->again = true; return 0;
    case OPT_DRY_RUN: opt->dry_run = true; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = 1; return 0;
    case OPT_HELP_ALL: opt->help = 2; return 0;
    default: opt->version = true; return 0;
    }
}

// Prefill plain and causal, decoding with and without grouped heads, short sequences, and contexts
// so long that they stand for plans without bounds.
static void default_rows(struct tune_options *opt)
{
    static const struct {
        const char *shape;
        bool causal;
    } list[] = {
        {"1,8,8,2048,2048,64", false},  {"1,8,8,2048,2048,64", true},
        {"1,8,8,2048,2048,80", false},  {"1,8,8,2048,2048,80", true},
        {"1,8,8,2048,2048,128", false}, {"1,8,8,2048,2048,128", true},
        {"1,8,8,1,8192,64", false},     {"1,8,8,1,8192,80", false},
        {"1,8,8,1,8192,128", false},    {"1,32,8,1,8192,64", false},
        {"1,32,8,1,8192,80", false},    {"1,32,8,1,8192,128", false},
        {"8,12,12,256,256,64", false},  {"1,4,4,1024,16640,64", false},
        {"1,4,4,1024,16640,128", false}};

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct bench_row *row = &opt->row[opt->rows];
        // With --causal all are; then a plain one beside it would be the same again.
        if (opt->features.causal && i % 2 == 0 && i < 6)
            continue;
        add_shape(opt, "--shape", list[i].shape);
        row->p.causal = list[i].causal;
    }
}

int tune_options(int argc, char **argv, struct tune_options *opt)
{
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, opt);

    if (code || opt->help || opt->version)
        return code;
    if (opt->algos == 0)
        code = add_algo(opt, "--algo", "auto");
    if (!code && opt->rows == 0)
        default_rows(opt);
    for (int i = 0; !code && i < opt->rows; i++)
        bench_apply(&opt->features, &opt->row[i]);
    return code;
}
