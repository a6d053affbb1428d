// SPDX-License-Identifier: Apache-2.0
// The options of clattn-run. Touches no file.
#include <stdio.h>

#include "lib/options.h"
#include "run/run.h"

// Options that name a tensor's file have its number.
enum {
    OPT_LAYOUT = TOOL_TENSORS, OPT_CAUSAL, OPT_ALIGN, OPT_SCALE, OPT_WINDOW, OPT_SOFTCAP, OPT_DTYPE,
    OPT_KV_DTYPE, OPT_BIAS_DTYPE, OPT_DEVICE, OPT_ALGO, OPT_KERNEL, OPT_SPLITS, OPT_SOFTMAX,
    OPT_PRECISION, OPT_THREADS, OPT_COMPARE, OPT_TOLERANCE, OPT_RUNS, OPT_JSON, OPT_HELP,
    OPT_HELP_ALL, OPT_VERSION, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [TOOL_Q] = {NULL, 'q', TOOL_ARG_REQUIRED, false},
    [TOOL_K] = {NULL, 'k', TOOL_ARG_REQUIRED, false},
    [TOOL_V] = {NULL, 'v', TOOL_ARG_REQUIRED, false},
    [TOOL_O] = {"output", 'o', TOOL_ARG_REQUIRED, false},
    [TOOL_LSE] = {"lse", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_MASK] = {"mask", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_BIAS] = {"bias", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_ALIBI] = {"alibi", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_SINKS] = {"sinks", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_KV_LENS] = {"kv-lens", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_CU_Q] = {"cu-seqlens-q", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_CU_KV] = {"cu-seqlens-kv", 0, TOOL_ARG_REQUIRED, false},
    [TOOL_TABLE] = {"page-table", 0, TOOL_ARG_REQUIRED, false},
    [OPT_LAYOUT] = {"layout", 0, TOOL_ARG_REQUIRED, false},
    [OPT_CAUSAL] = {"causal", 0, TOOL_ARG_OPTIONAL, false},
    [OPT_ALIGN] = {"align", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SCALE] = {"scale", 0, TOOL_ARG_REQUIRED, false},
    [OPT_WINDOW] = {"window", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SOFTCAP] = {"softcap", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DTYPE] = {"dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KV_DTYPE] = {"kv-dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_BIAS_DTYPE] = {"bias-dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_ALGO] = {"algo", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KERNEL] = {"kernel", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SPLITS] = {"splits", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SOFTMAX] = {"softmax", 0, TOOL_ARG_REQUIRED, false},
    [OPT_PRECISION] = {"precision", 0, TOOL_ARG_REQUIRED, false},
    [OPT_THREADS] = {"threads", 0, TOOL_ARG_REQUIRED, false},
    [OPT_COMPARE] = {"compare", 0, TOOL_ARG_REQUIRED, false},
    [OPT_TOLERANCE] = {"tolerance", 0, TOOL_ARG_REQUIRED, false},
    [OPT_RUNS] = {"runs", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_HELP_ALL] = {"help-all", 0, TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

static int take_positive(const char *shown, const char *value, double *out)
{
    if (tool_parse_number(value, out) && *out >= 0)
        return 0;
    return tool_fail(TOOL_USE, "option %s: '%s' is not a finite number from 0 up", shown, value);
}

static int take_softcap(const char *shown, const char *value, double *out)
{
    int code = take_positive(shown, value, out);

    if (!code && *out > 0 && (float)*out <= 0) // which would be no cap
        code = tool_fail(TOOL_USE, "option %s: '%s' is too small for a float32", shown, value);
    return code;
}

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct options *opt = user;

    if (index < TOOL_TENSORS) {
        opt->file[index] = value;
        return 0;
    }
    switch (index) {
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_COMPARE: opt->compare = value; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = 1; return 0;
    case OPT_HELP_ALL: opt->help = 2; return 0;
    case OPT_VERSION: opt->version = true; return 0;
    case OPT_DTYPE: return tool_take_word(shown, value, tool_float_words, &opt->dtype);
    case OPT_KV_DTYPE: return tool_take_word(shown, value, tool_dtype_words, &opt->kv_dtype);
    case OPT_BIAS_DTYPE: return tool_take_word(shown, value, tool_float_words, &opt->bias_dtype);
    case OPT_WINDOW:
        opt->window = true;
        return tool_take_window(shown, value, ',', &opt->window_left, &opt->window_right);
    case OPT_SOFTCAP: return take_softcap(shown, value, &opt->softcap);
    case OPT_LAYOUT: return tool_take_word(shown, value, tool_layout_words, &opt->layout);
    case OPT_ALIGN: return tool_take_word(shown, value, tool_align_words, &opt->align);
    case OPT_ALGO: return tool_take_word(shown, value, tool_algo_words, &opt->algo);
    case OPT_SPLITS: return tool_take_int32(shown, value, 1, 65535, &opt->splits);
    case OPT_SOFTMAX: return tool_take_later_word(shown, value, tool_softmax_words, &opt->softmax);
    case OPT_THREADS: return tool_take_int32(shown, value, 1, 4096, &opt->threads);
    case OPT_RUNS: return tool_take_int32(shown, value, 1, 1000000, &opt->runs);
    case OPT_PRECISION:
        return tool_take_word(shown, value, tool_precision_words, &opt->precision);
    case OPT_CAUSAL:
        opt->causal = true;
        return value ? tool_take_word(shown, value, tool_align_words, &opt->causal_align) : 0;
    case OPT_KERNEL: return tool_take_later_word(shown, value, tool_kernel_words, &opt->kernel);
    case OPT_SCALE:
        opt->has_scale = true;
        return tool_take_number(shown, value, &opt->scale);
    default: // OPT_TOLERANCE
        opt->has_tolerance = true;
        return take_positive(shown, value, &opt->tolerance);
    }
}

// What options say together.
static int check_options(const struct options *opt)
{
    const char *const *file = opt->file;

    if (!file[TOOL_Q] || !file[TOOL_K] || !file[TOOL_V])
        return tool_fail(TOOL_USE, "option %s is missing (see --help)",
                         !file[TOOL_Q] ? "-q" : !file[TOOL_K] ? "-k" : "-v");
    if (!file[TOOL_O] && !file[TOOL_LSE] && !opt->compare)
        return tool_fail(TOOL_USE, "nothing to do: say where the output (-o O.npy) or the "
                                   "log-sum-exp (--lse L.npy) goes, or what to --compare with");
    if (file[TOOL_TABLE] && !file[TOOL_KV_LENS])
        return tool_fail(TOOL_USE, "option --page-table needs --kv-lens");
    if (file[TOOL_TABLE] && file[TOOL_CU_KV])
        return tool_fail(TOOL_USE, "option --cu-seqlens-kv does not go with --page-table");
    if (opt->bias_dtype >= 0 && !file[TOOL_BIAS])
        return tool_fail(TOOL_USE, "option --bias-dtype needs --bias");
    if (opt->has_tolerance && !opt->compare)
        return tool_fail(TOOL_USE, "option --tolerance needs --compare");
    if (opt->causal_align >= 0 && opt->align >= 0 && opt->causal_align != opt->align)
        return tool_fail(TOOL_USE, "options --causal=%s and --align %s contradict each other",
                         tool_align_words[opt->causal_align], tool_align_words[opt->align]);
    if (opt->kernel > 0 && !tool_algo_has_shapes(opt->algo))
        return tool_fail(TOOL_USE, "option --kernel does not go with --algo %s",
                         tool_algo_words[opt->algo]);
    if (opt->splits && opt->algo != CLATTN_ALGO_SPLIT_KV)
        return tool_fail(TOOL_USE, "option --splits needs --algo split_kv");
    if (opt->softmax > 0 && opt->algo != CLATTN_ALGO_UNFUSED)
        return tool_fail(TOOL_USE, "option --softmax needs --algo unfused");
    return 0;
}

int run_take_options(int argc, char **argv, struct options *opt)
{
    *opt = (struct options){.causal_align = -1, .align = -1, .dtype = -1, .kv_dtype = -1,
                            .bias_dtype = -1, .runs = 1};
    const int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, opt);
    return code || opt->help || opt->version ? code : check_options(opt);
}
