// SPDX-License-Identifier: Apache-2.0
// clattn-run: attention on NumPy .npy files.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/options.h"
#include "run/run.h"

static const char help[] =
    "Usage: clattn-run -q FILE -k FILE -v FILE [-o FILE] [OPTION]...\n"
    "\n"
    "Computes attention O = softmax(mask(scale * Q * K^T)) * V on NumPy .npy files.\n"
    "\n"
    "Input, float32 in C order, format 1.0 to 3.0:\n"
    "  -q FILE               queries, [batch, heads_q, len_q, dim]\n"
    "  -k FILE               keys, [batch, heads_kv, len_kv, dim]; heads_q must be a multiple of\n"
    "                        heads_kv\n"
    "  -v FILE               values, [batch, heads_kv, len_kv, dim_v]\n"
    "  --layout LAYOUT       axes of -q, -k, -v, -o and --compare: bhsd (default) is [batch,\n"
    "                        heads, sequence, dim], bshd is [batch, sequence, heads, dim]\n"
    "  --mask FILE           bool [batch, heads_q, len_q, len_kv], true = visible; an axis of\n"
    "                        extent 1 broadcasts. Always in this order of axes\n"
    "\n"
    "Output, of which at least one is needed; a file appears whole or not at all:\n"
    "  -o FILE               float32 [batch, heads_q, len_q, dim_v], in the layout\n"
    "  --lse FILE            float32 [batch, heads_q, len_q]: natural log of each query's sum of\n"
    "                        exponentials, -inf for a query that sees no key\n"
    "  --compare FILE        compare O with this file and tell the worst element\n"
    "\n"
    "Attention:\n"
    "  --causal[=ALIGN]      hide the keys behind the query's own position\n"
    "  --align ALIGN         where query i stands: bottom-right (default), at key i + len_kv -\n"
    "                        len_q, or top-left, at key i\n"
    "  --scale X             factor of the scores; default 1 / sqrt(dim)\n"
    "\n"
    "How it is computed:\n"
    "  --device SEL          index as clattn-probe prints it, cpu for the built-in CPU path, or\n"
    "                        part of a platform's or device's name in any case, the first that\n"
    "                        fits; default $CLATTN_DEVICE, else the best device\n"
    "  --algo ALGO           auto (default), host or reference (double precision, slow), or on\n"
    "                        OpenCL fused, split_kv, two_loop, fused_kv_outer or unfused\n"
    "  --kernel KERNEL       shape of the OpenCL kernels: group, vector, or, for fused, subgroup;\n"
    "                        default by device\n"
    "  --splits N            with --algo split_kv: parts that the keys are cut into, 1 to 65535;\n"
    "                        default by device and lengths\n"
    "  --softmax SOFTMAX     with --algo unfused: naive, safe (default) or online\n"
    "  --threads N           threads of the CPU path; default all\n"
    "  --repeat N            run N times and tell the median time\n"
    "  --tolerance X         for --compare: |error| <= X + X * |expected| passes; default 1e-5\n"
    "\n"
    "  --json                print the report as one JSON object\n"
    "  -h, --help            print this text\n"
    "  --version             print the version\n"
    "\n"
    "The time is that of the computation with all data on the device, without reading files,\n"
    "compiling kernels and copying; PoCL compiles once more in the first run of a large problem,\n"
    "which --repeat 3 leaves out. NaN equals NaN in a comparison and an infinity itself; where\n"
    "only one of both values is finite, the comparison fails.\n"
    "\n"
    "Exit status: 0 done; 1 the comparison failed; 2 wrong use, bad input, or an output that\n"
    "cannot be written; 3 the device or its driver failed.\n";

enum {
    OPT_Q, OPT_K, OPT_V, OPT_O, OPT_LSE, OPT_LAYOUT, OPT_CAUSAL, OPT_ALIGN, OPT_SCALE, OPT_MASK,
    OPT_DEVICE, OPT_ALGO, OPT_KERNEL, OPT_SPLITS, OPT_SOFTMAX, OPT_THREADS, OPT_COMPARE,
    OPT_TOLERANCE, OPT_REPEAT, OPT_JSON, OPT_HELP, OPT_VERSION, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_Q] = {NULL, 'q', TOOL_ARG_REQUIRED, false},
    [OPT_K] = {NULL, 'k', TOOL_ARG_REQUIRED, false},
    [OPT_V] = {NULL, 'v', TOOL_ARG_REQUIRED, false},
    [OPT_O] = {NULL, 'o', TOOL_ARG_REQUIRED, false},
    [OPT_LSE] = {"lse", 0, TOOL_ARG_REQUIRED, false},
    [OPT_LAYOUT] = {"layout", 0, TOOL_ARG_REQUIRED, false},
    [OPT_CAUSAL] = {"causal", 0, TOOL_ARG_OPTIONAL, false},
    [OPT_ALIGN] = {"align", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SCALE] = {"scale", 0, TOOL_ARG_REQUIRED, false},
    [OPT_MASK] = {"mask", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_ALGO] = {"algo", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KERNEL] = {"kernel", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SPLITS] = {"splits", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SOFTMAX] = {"softmax", 0, TOOL_ARG_REQUIRED, false},
    [OPT_THREADS] = {"threads", 0, TOOL_ARG_REQUIRED, false},
    [OPT_COMPARE] = {"compare", 0, TOOL_ARG_REQUIRED, false},
    [OPT_TOLERANCE] = {"tolerance", 0, TOOL_ARG_REQUIRED, false},
    [OPT_REPEAT] = {"repeat", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct options *opt = user;

    switch (index) {
    case OPT_Q: opt->q = value; return 0;
    case OPT_K: opt->k = value; return 0;
    case OPT_V: opt->v = value; return 0;
    case OPT_O: opt->o = value; return 0;
    case OPT_LSE: opt->lse = value; return 0;
    case OPT_MASK: opt->mask = value; return 0;
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_COMPARE: opt->compare = value; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = true; return 0;
    case OPT_VERSION: opt->version = true; return 0;
    case OPT_LAYOUT: return tool_take_word(shown, value, tool_layout_words, &opt->layout);
    case OPT_ALIGN: return tool_take_word(shown, value, tool_align_words, &opt->align);
    case OPT_ALGO: return tool_take_word(shown, value, tool_algo_words, &opt->algo);
    case OPT_SPLITS: return tool_take_int32(shown, value, 1, 65535, &opt->splits);
    case OPT_SOFTMAX:
        opt->softmax = tool_parse_word(value, tool_softmax_words);
        return opt->softmax > 0 ? 0
                                : tool_fail(TOOL_USE,
                                            "option %s: '%s' is none of naive, safe, online",
                                            shown, value);
    case OPT_THREADS: return tool_take_int32(shown, value, 1, 4096, &opt->threads);
    case OPT_REPEAT: return tool_take_int32(shown, value, 1, 1000000, &opt->repeat);
    case OPT_CAUSAL:
        opt->causal = true;
        return value ? tool_take_word(shown, value, tool_align_words, &opt->causal_align) : 0;
    case OPT_KERNEL:
        opt->kernel = tool_parse_word(value, tool_kernel_words);
        return opt->kernel > 0 ? 0
                               : tool_fail(TOOL_USE,
                                           "option %s: '%s' is none of group, vector, subgroup",
                                           shown, value);
    case OPT_SCALE:
        opt->has_scale = true;
        return tool_take_number(shown, value, &opt->scale);
    default: // OPT_TOLERANCE
        opt->has_tolerance = true;
        if (!tool_parse_number(value, &opt->tolerance) || opt->tolerance < 0)
            return tool_fail(TOOL_USE, "option %s: '%s' is not a finite number from 0 up", shown,
                             value);
        return 0;
    }
}

// What options say together.
static int check_options(const struct options *opt)
{
    if (!opt->q || !opt->k || !opt->v)
        return tool_fail(TOOL_USE, "option %s is missing (see --help)",
                         !opt->q ? "-q" : !opt->k ? "-k" : "-v");
    if (!opt->o && !opt->lse && !opt->compare)
        return tool_fail(TOOL_USE, "nothing to do: -o, --lse or --compare is needed");
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

static int check_output(const char *shown, const char *path, struct tool_outfile *file)
{
    char why[512];

    if (!path || tool_outfile_check(file, path, why, sizeof why))
        return 0;
    return tool_fail(TOOL_USE, "%s %s: %s", shown, path, why);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino &&
           S_ISREG(x.st_mode);
}

static int check_outputs(struct run *r)
{
    const struct options *opt = &r->opt;
    int code = check_output("-o", opt->o, &r->o_file);

    if (!code)
        code = check_output("--lse", opt->lse, &r->lse_file);
    if (code)
        return code;
    if (opt->o && opt->lse && !r->o_file.direct && strcmp(r->o_file.path, r->lse_file.path) == 0)
        return tool_fail(TOOL_USE, "-o and --lse name the same file %s", opt->o);
    const struct {
        const char *shown, *path;
    } in[] = {{"-q", opt->q}, {"-k", opt->k}, {"-v", opt->v}, {"--mask", opt->mask},
              {"--compare", opt->compare}},
      out[] = {{"-o", opt->o}, {"--lse", opt->lse}};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        for (size_t k = 0; k < sizeof in / sizeof *in; k++)
            if (out[i].path && in[k].path && same_file(out[i].path, in[k].path))
                return tool_fail(TOOL_USE, "%s and %s name the same file %s", out[i].shown,
                                 in[k].shown, out[i].path);
    return 0;
}

// Makes context and plan. What the library refuses about the problem concerns the input files.
static int prepare(struct run *r)
{
    const struct options *opt = &r->opt;
    char what[1024] = "";

    clattn_status st = tool_session_open(&r->session, opt->device, opt->threads, 0);
    if (st != CLATTN_OK) {
        if (opt->device)
            snprintf(what, sizeof what, "--device %s", opt->device);
        return tool_library_fail(&r->session.log, st, what);
    }
    st = tool_plan_create(&r->session, &r->problem, &r->plan);
    if (st == CLATTN_OK) {
        r->info.struct_size = sizeof r->info;
        st = clattn_plan_get_info(r->plan, &r->info);
    }
    if (st == CLATTN_OK)
        return 0;
    if (tool_exit_of(st) == TOOL_USE)
        snprintf(what, sizeof what, "-q %s, -k %s, -v %s%s%s%s%s", opt->q, opt->k, opt->v,
                 opt->algo ? ", --algo " : "", opt->algo ? tool_algo_words[opt->algo] : "",
                 opt->kernel ? ", --kernel " : "",
                 opt->kernel ? tool_kernel_words[opt->kernel] : "");
    return tool_library_fail(&r->session.log, st, what);
}

static clattn_status upload(struct run *r)
{
    clattn_status st = tool_memory_create(&r->session, &r->problem, r->plan, &r->memory);

    if (st == CLATTN_OK)
        st = tool_memory_write(&r->session, &r->memory, TOOL_Q, r->q.data);
    if (st == CLATTN_OK)
        st = tool_memory_write(&r->session, &r->memory, TOOL_K, r->k.data);
    if (st == CLATTN_OK)
        st = tool_memory_write(&r->session, &r->memory, TOOL_V, r->v.data);
    if (st == CLATTN_OK)
        st = tool_memory_write(&r->session, &r->memory, TOOL_MASK, r->mask.data);
    tool_npy_free(&r->q);
    tool_npy_free(&r->k);
    tool_npy_free(&r->v);
    tool_npy_free(&r->mask);
    return st;
}

static clattn_status download(struct run *r)
{
    // One element at least, since malloc(0) may give NULL.
    r->o = malloc(r->memory.bytes[TOOL_O] + sizeof(float));
    r->lse = malloc(r->memory.bytes[TOOL_LSE] + sizeof(float));
    if (!r->o || !r->lse)
        return CLATTN_ERR_OUT_OF_MEMORY;
    clattn_status st = tool_memory_read(&r->session, &r->memory, TOOL_O, r->o);
    if (st == CLATTN_OK)
        st = tool_memory_read(&r->session, &r->memory, TOOL_LSE, r->lse);
    return st;
}

static int compute(struct run *r)
{
    clattn_attention_call call;
    const size_t repeat = (size_t)r->opt.repeat;
    double *times = malloc(repeat * sizeof *times);

    clattn_status st = times ? upload(r) : CLATTN_ERR_OUT_OF_MEMORY;
    tool_call_init(&r->problem, &r->memory, &call);
    for (size_t i = 0; st == CLATTN_OK && i < repeat; i++) {
        double start = tool_now_ms();
        st = clattn_attention_run(r->plan, &call);
        times[i] = tool_now_ms() - start;
    }
    if (st == CLATTN_OK)
        r->ms = tool_median(times, repeat);
    free(times);
    if (st == CLATTN_OK)
        st = download(r);
    return st == CLATTN_OK ? 0 : tool_library_fail(&r->session.log, st, "");
}

static int save_one(const char *shown, const char *path, struct tool_outfile *file,
                    const float *data, int ndim, const int64_t *shape)
{
    char why[512];

    if (!path || tool_outfile_write_npy(file, data, ndim, shape, why, sizeof why))
        return 0;
    return tool_fail(TOOL_USE, "%s %s: %s", shown, path, why);
}

// Both files are written before one of them takes its place.
static int save(struct run *r)
{
    const struct options *opt = &r->opt;
    const int64_t lse_shape[] = {r->problem.batch, r->problem.heads_q, r->problem.len_q};
    int64_t o_shape[4];
    char why[512];

    tool_tensor_shape(&r->problem, TOOL_O, o_shape);
    tool_outfile_hold_signals();
    int code = save_one("-o", opt->o, &r->o_file, r->o, 4, o_shape);
    if (!code)
        code = save_one("--lse", opt->lse, &r->lse_file, r->lse, 3, lse_shape);
    if (!code && opt->o && !tool_outfile_commit(&r->o_file, why, sizeof why))
        code = tool_fail(TOOL_USE, "-o %s: %s", opt->o, why);
    if (!code && opt->lse && !tool_outfile_commit(&r->lse_file, why, sizeof why))
        code = tool_fail(TOOL_USE, "--lse %s: %s", opt->lse, why);
    tool_outfile_discard(&r->o_file);
    tool_outfile_discard(&r->lse_file);
    tool_outfile_release_signals();
    return code;
}

static int run(struct run *r)
{
    int code = check_options(&r->opt);

    if (!code)
        code = run_read_input(r);
    if (!code)
        code = check_outputs(r);
    if (!code)
        code = prepare(r);
    if (!code)
        code = compute(r);
    if (!code)
        code = save(r);
    if (code)
        return code;
    if (r->opt.compare)
        tool_compare(r->o, r->want.data, r->want.count, r->opt.tolerance, &r->result);
    if (r->opt.json)
        run_report_json(r);
    else
        run_report_text(r);
    return r->result.over ? TOOL_WRONG : TOOL_DONE;
}

static void clean_up(struct run *r)
{
    tool_npy_free(&r->q);
    tool_npy_free(&r->k);
    tool_npy_free(&r->v);
    tool_npy_free(&r->mask);
    tool_npy_free(&r->want);
    tool_outfile_discard(&r->o_file);
    tool_outfile_discard(&r->lse_file);
    free(r->o);
    free(r->lse);
    tool_memory_destroy(&r->session, &r->memory);
    clattn_plan_destroy(&r->plan);
    tool_session_close(&r->session);
}

int main(int argc, char **argv)
{
    struct run r = {.opt = {.causal_align = -1, .align = -1, .tolerance = 1e-5, .repeat = 1}};

    tool_start("clattn-run");
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, &r.opt);
    if (code)
        return code;
    if (r.opt.help || r.opt.version) {
        if (r.opt.help)
            fputs(help, stdout);
        else
            tool_print_version();
        return tool_finish(TOOL_DONE);
    }
    tool_session_init(&r.session);
    code = run(&r);
    clean_up(&r);
    return tool_finish(code);
}
