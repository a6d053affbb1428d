// SPDX-License-Identifier: Apache-2.0
// clattn-bench: how fast attention is beside what the device can do, on results that were verified.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/output.h"
#include "lib/say.h"

// In two parts, since a string literal may have 4095 characters.
static const char help_problem[] =
    "Usage: clattn-bench [--shape B,H,HKV,LQ,LKV,D[,DV] | --case NAME]... [OPTION]...\n"
    "\n"
    "Times attention on random data, in float32 by default, and prints it beside the peak: what\n"
    "a small kernel of fused multiply-adds (for the CPU path: a C loop with the same threads)\n"
    "reaches on the same device at the same time.\n"
    "\n"
    "  --shape B,H,HKV,LQ,LKV,D[,DV]\n"
    "                   batch, query heads, key/value heads, queries, keys, head dimension, head\n"
    "                   dimension of V; can be repeated; default 1,8,8,2048,2048,64 and\n"
    "                   1,8,8,1024,1024,128\n"
    "  --case NAME      a case of the list that the tests share, with its causal or other mask,\n"
    "                   alignment, scale and layout; * and ? stand for any characters; can be\n"
    "                   repeated\n"
    "  --list           print the cases and exit\n"
    "  --sweep KEY=FROM:TO, --sweep KEY=N,N,...\n"
    "                   each shape and case with each of these values: FROM doubled while it is\n"
    "                   not over TO, or the numbers of the list. KEY is len (queries and keys),\n"
    "                   len_q, len_kv, dim or batch. Several keys give all combinations\n"
    "  --causal         causal, bottom-right aligned; only visible pairs count as work\n"
    "  --window L,R     only L extra keys before and R behind the query's own position, -1 = all\n"
    "  --mask[=AXES]    random boolean mask, seven keys of eight visible. AXES are the letters of\n"
    "                   batch, head, query, key along which it has its full extent: default bhqk\n"
    "  --bias[=AXES]    random float32 bias, likewise\n"
    "  --alibi, --sinks, --softcap X\n"
    "                   slopes 2^(-8h/heads), random sinks, a soft-cap of the scores\n"
    "  --kv-lens        each sequence has its own number of keys: the first one all, the others\n"
    "                   between a half and all of them\n"
    "  --packed         queries and keys likewise, one sequence after the other without padding\n"
    "  --page N         K and V in shuffled pages of N keys\n"
    "  --dtype TYPE     f32, f16 or bf16: Q, K, V and O; not of row softmax\n"
    "  --kv-dtype TYPE  f32, f16, bf16 or int8: K and V alone\n"
    "  --ratio VARIANT,...\n"
    "                   instead of the table: what features cost. Each variant is run in turn\n"
    "                   with the problem without it; speed is the time of the one by that of the\n"
    "                   other, the median over the pairs. A variant is one or several of plain,\n"
    "                   causal, window=L:R, mask, bias, alibi, softcap, sinks, kv-lens, packed,\n"
    "                   page=N, f16, bf16, kv-f16, kv-bf16, int8 with + between them; mask, bias\n"
    "                   and softcap may have =AXES and =X. work speed is the ratio of GFLOP/s,\n"
    "                   cpu speed that of the processor times, which other programs disturb less\n";

static const char help_rest[] =
    "  --algo ALGO,...  auto (default), host, reference, fused, split_kv, two_loop,\n"
    "                   fused_kv_outer, unfused, softmax_naive, softmax_safe or softmax_online;\n"
    "                   all is every one of them but auto and reference. Of several, those that\n"
    "                   cannot serve a shape are named below the table with the reason\n"
    "  --softmax-rows ROWS,LEN\n"
    "                   what row softmax works on; default from the shape: batch * query heads\n"
    "                   * queries rows, as long as there are keys\n"
    "  --kernel KERNEL  shape of the OpenCL kernels: group, vector or, for fused, subgroup;\n"
    "                   default by device\n"
    "  --device SEL     as clattn-run takes it; several are timed in turn and stand side by side\n"
    "  --threads N      threads of the CPU path; default all\n"
    "  --runs N         timed runs at least; default 7. They go on for half a second at least\n"
    "  --plot FILE.svg, --plot FILE.png\n"
    "                   draw time, and bytes and workspace, against the swept length, a line for\n"
    "                   each algorithm. Needs one shape or case, --sweep of len, len_q or len_kv\n"
    "                   and the program gnuplot\n"
    "  --json           print one JSON object a line for each shape and device\n"
    "  --csv            print comma-separated values with a line of headings\n"
    "  -h, --help       print this text\n"
    "  --version        print the version\n"
    "\n"
    "Before timing, rows from the whole output are compared with the double reference, and every\n"
    "element must have been written. A wrong result gets a message instead of a time. gflops\n"
    "counts 2 * (D + DV) for each pair of a query and a key that it sees; ms is the median, with\n"
    "the quartiles beside it, and cpu_ms in JSON and CSV the processor time of a run over all\n"
    "threads of this process, which other programs on the machine disturb less.\n"
    "\n"
    "The peak is measured before the runs, after them, and briefly between them. % of peak\n"
    "(percent_of_peak) is the median's rate against the largest of these. % paired\n"
    "(percent_of_peak_paired) is the median over the runs of each run's rate against the mean of\n"
    "the brief peaks right before and right after it, which stands still where the machine's\n"
    "speed does not; runs shorter than 20 ms share their two peaks, as many as make 20 ms.\n"
    "% of read (percent_of_read_paired), where up to 8 rows of queries share a head of keys that\n"
    "all of them see, likewise sets how fast K and V go by against a kernel that only reads as\n"
    "many bytes, the best of several runs right before and right after.\n"
    "\n"
    "MB (bytes) is what a run moves by count: Q and O once, K and V once for each tile of queries\n"
    "of the plan, from the first to the last key that it sees but for a mask; mask and bias once.\n"
    "For other algorithms it is what the plan says, as if no key were hidden, and a softmax\n"
    "counts each pass over its rows. GB/s is that by the median. In 10^6 and 10^9 bytes.\n"
    "WORKSPACE MB (workspace_bytes) is memory that a run needs beside its tensors. The operations\n"
    "of a softmax are not counted, so it has no gflops.\n"
    "\n"
    "On a terminal, the fastest of several devices is green (not with NO_COLOR set).\n"
    "\n"
    "Exit status: 0 done; 1 a result was wrong; 2 wrong use; 3 the device or its driver failed.\n";

// The devices, and the built-in CPU path, whose peak counts where it does the work.
struct sessions {
    struct tool_session device[BENCH_DEVICES_MAX], builtin;
};

// Verifies, then times. `over` > 0 means a wrong result and no times.
static clattn_status bench_attention(struct tool_session *s, struct tool_session *builtin,
                                     const struct bench_item *item, int32_t runs,
                                     struct bench_attention *a, struct bench_result *r)
{
    clattn_status st = bench_attention_open(s, &item->p, a);
    const struct bench_work work = {bench_attention_run, a, a->gflop,
                                    bench_read_bytes(&item->p)};
    const bool on_cpu =
        a->info.algo == CLATTN_ALGO_HOST || a->info.algo == CLATTN_ALGO_REFERENCE;

    r->pairs = a->pairs;
    r->max_error = a->max_error;
    r->workspace = a->workspace;
    if (st == CLATTN_OK && a->over == 0)
        st = bench_time(on_cpu ? builtin : s, &work, runs, r);
    // Last, since it walks over tiles of which there may be no end where memory runs out.
    if (st == CLATTN_OK)
        r->bytes = bench_bytes(&item->p, &a->info);
    return st;
}

// Of several algorithms, one that can't do it or lacks memory is no failure.
static bool is_refusal(const struct bench_options *opt, clattn_status st)
{
    return opt->algos > 1 && (st == CLATTN_ERR_UNSUPPORTED || st == CLATTN_ERR_OUT_OF_MEMORY);
}

static void item_text(const struct bench_options *opt, const struct tool_session *s,
                      const struct bench_item *item, char *text, size_t size)
{
    const char *name = item->row->name;
    char shape[96];

    bench_item_text(item, shape, sizeof shape);
    snprintf(text, size, "%s%s%s%s", name, name[0] ? " (" : "", shape, name[0] ? ")" : "");
    if (opt->algos > 1)
        snprintf(text + strlen(text), size - strlen(text), " %s", item->algo->name);
    if (opt->devices > 1)
        snprintf(text + strlen(text), size - strlen(text), " on [%d]", (int)s->device.index);
}

struct outputs {
    struct bench_report *report;
    struct bench_plot *plot;
};

static int bench_item(struct tool_session *s, struct tool_session *builtin,
                      const struct bench_options *opt, const struct bench_item *item,
                      const struct outputs *to)
{
    char what[256];
    struct bench_attention a = {.plan = NULL};
    struct bench_result r = {.runs = 0};
    int code = 0;

    item_text(opt, s, item, what, sizeof what);
    tool_log_clear(&s->log);
    clattn_status st =
        item->algo->softmax
            ? bench_softmax(s, builtin, item, opt->runs, &a.info, &r, &a.over)
            : bench_attention(s, builtin, item, opt->runs, &a, &r);
    bench_progress(0, 0, NULL);
    if (is_refusal(opt, st)) {
        const char *said = tool_log_error(&s->log);
        bench_report_refuse(to->report, s, item, said[0] ? said : clattn_status_string(st));
    } else if (st != CLATTN_OK) {
        code = tool_library_fail(&s->log, st, what);
    } else if (a.over) {
        code = bench_wrong(what, a.over, r.max_error, &a.info);
    } else {
        bench_report_add(to->report, s, item, a.plan, &a.info, &r);
        bench_plot_add(to->plot, s, item, &r);
    }
    bench_attention_close(s, &a);
    return code;
}

// Item n of all: algorithms inside, devices around them, rows outside.
static struct bench_item nth(const struct bench_options *opt, int n, int *device)
{
    struct bench_item item = {.algo = &opt->algo[n % opt->algos]};
    char text[96];

    *device = n / opt->algos % opt->devices;
    item.row = &opt->row[n / opt->algos / opt->devices];
    item.p = item.row->p;
    item.p.algo = item.algo->attention;
    if (item.algo->softmax || tool_algo_has_shapes(item.p.algo))
        item.p.kernel = opt->kernel;
    bench_item_text(&item, text, sizeof text);
    bench_progress(n + 1, opt->rows * opt->devices * opt->algos, text);
    return item;
}

static int bench_all(struct sessions *s, const struct bench_options *opt, struct bench_plot *plot)
{
    const struct outputs to = {bench_report_create(opt), plot};
    int worst = 0, device = 0;

    if (!to.report)
        return tool_fail(TOOL_DEVICE, "no memory for the report");
    for (int n = 0; n < opt->rows * opt->devices * opt->algos; n++) {
        const struct bench_item item = nth(opt, n, &device);
        int code = bench_item(&s->device[device], &s->builtin, opt, &item, &to);
        worst = code > worst ? code : worst;
    }
    if (bench_report_finish(to.report, s->device, opt->devices) == 0 && !worst)
        worst = tool_fail(TOOL_USE, "every algorithm was refused");
    return worst;
}

static int ratio_all(struct sessions *s, const struct bench_options *opt)
{
    struct libscols_table *table = bench_ratio_table(opt);
    int worst = 0, device = 0, results = 0;

    for (int n = 0; n < opt->rows * opt->devices * opt->algos; n++) {
        const struct bench_item item = nth(opt, n, &device);
        int code = bench_ratio(&s->device[device], opt, &item, table, &results);
        worst = code > worst ? code : worst;
    }
    bench_progress(0, 0, NULL);
    for (int d = 0; table && results && d < opt->devices; d++) {
        char text[512];
        tool_device_text(&s->device[d].device, text, sizeof text);
        printf("device  %s\n", text);
    }
    if (table && results)
        tool_table_print(table);
    else
        tool_table_free(table);
    return results || worst ? worst : tool_fail(TOOL_USE, "every variant was refused");
}

static int open_session(struct tool_session *s, const char *selector, int32_t threads,
                        uint32_t flags)
{
    char what[256] = "";

    clattn_status st = tool_session_open(s, selector, threads, flags);
    if (selector)
        snprintf(what, sizeof what, "--device %s", selector);
    if (st != CLATTN_OK)
        return tool_library_fail(&s->log, st, what);
    tool_log_clear(&s->log);
    return 0;
}

static int run(struct bench_options *opt)
{
    struct bench_plot *plot = NULL;
    int code = bench_plot_create(opt, &plot);
    struct sessions *s = code ? NULL : calloc(1, sizeof *s);

    if (code)
        return code;
    if (!s)
        return bench_plot_finish(plot, tool_fail(TOOL_DEVICE, "no memory for the devices"));
    if (opt->devices == 0)
        opt->device[opt->devices++] = NULL;
    tool_session_init(&s->builtin);
    for (int d = 0; d < opt->devices; d++)
        tool_session_init(&s->device[d]);
    for (int d = 0; !code && d < opt->devices; d++)
        code = open_session(&s->device[d], opt->device[d], opt->threads, 0);
    if (!code)
        code = open_session(&s->builtin, "cpu", opt->threads, CLATTN_CONTEXT_NO_OPENCL);
    if (!code)
        code = opt->variants ? ratio_all(s, opt) : bench_all(s, opt, plot);
    for (int d = 0; d < opt->devices; d++)
        tool_session_close(&s->device[d]);
    tool_session_close(&s->builtin);
    free(s);
    return bench_plot_finish(plot, code);
}

int main(int argc, char **argv)
{
    struct bench_options opt = {.runs = 7};

    tool_start("clattn-bench");
    int code = bench_options(argc, argv, &opt);
    if (!code && opt.help)
        printf("%s%s", help_problem, help_rest);
    else if (!code && opt.version)
        tool_print_version();
    else if (!code && opt.list)
        bench_print_cases();
    else if (!code)
        code = run(&opt);
    free(opt.row);
    return tool_finish(code);
}
