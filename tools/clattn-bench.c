// SPDX-License-Identifier: Apache-2.0
// clattn-bench: how fast attention is beside what the device can do, on results that were verified.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/trace.h"
#include "lib/output.h"
#include "lib/progress.h"
#include "lib/say.h"

// The devices, and the built-in CPU path, whose peak counts where it does the work.
struct sessions {
    struct tool_session device[BENCH_DEVICES_MAX], builtin;
};

static bool is_on_cpu(const clattn_plan_info *info)
{
    return info->algo == CLATTN_ALGO_HOST || info->algo == CLATTN_ALGO_REFERENCE;
}

// Verifies, then times. `over` > 0 means a wrong result and no times.
static clattn_status bench_attention(struct tool_session *s, struct tool_session *builtin,
                                     const struct bench_item *item, int32_t runs,
                                     struct bench_trace *trace, struct bench_attention *a,
                                     struct bench_result *r)
{
    bench_trace_begin(trace, "plan and verify");
    clattn_status st = bench_attention_open(s, &item->p, a);
    bench_trace_end(trace);
    const struct bench_work work = {bench_attention_run, a, a->gflop,
                                    bench_read_bytes(&item->p)};

    r->pairs = a->pairs;
    r->max_error = a->max_error;
    r->workspace = a->workspace;
    if (st == CLATTN_OK && a->over == 0) {
        bench_trace_begin(trace, "time");
        st = bench_time(is_on_cpu(&a->info) ? builtin : s, &work, runs, r);
        bench_trace_end(trace);
        if (st == CLATTN_OK)
            st = bench_trace_attention(trace, s, a);
    }
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
    struct bench_roofline *roofline;
    struct bench_trace *trace;
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
    bench_trace_begin(to->trace, "%s%s%s", what, opt->algos > 1 ? "" : " ",
                      opt->algos > 1 ? "" : item->algo->name);
    clattn_status st =
        item->algo->softmax
            ? bench_softmax(s, builtin, item, opt->runs, &a.info, &r, &a.over)
            : bench_attention(s, builtin, item, opt->runs, to->trace, &a, &r);
    bench_trace_end(to->trace);
    tool_progress_clear();
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
        bench_roofline_add(to->roofline, s, is_on_cpu(&a.info) ? builtin : s, item,
                           a.info.algo_name, &r);
    }
    bench_attention_close(s, &a);
    return code;
}

// Item n of all: algorithms inside, devices around them, rows outside.
static struct bench_item nth(const struct bench_options *opt, int n, int *device)
{
    struct bench_item item = {.algo = &opt->algo[n % opt->algos]};
    char shape[96], text[160];

    *device = n / opt->algos % opt->devices;
    item.row = &opt->row[n / opt->algos / opt->devices];
    item.p = item.row->p;
    item.p.algo = item.algo->attention;
    if (item.algo->softmax || tool_algo_has_shapes(item.p.algo))
        item.p.kernel = opt->kernel;
    item.p.precision = opt->precision;
    item.number = n + 1;
    item.all = opt->rows * opt->devices * opt->algos;
    if (opt->variants) // which have a line each
        return item;
    bench_item_text(&item, shape, sizeof shape);
    snprintf(text, sizeof text, "%s, %s", shape, item.algo->name);
    tool_progress(item.number, item.all, text, 0);
    return item;
}

static int bench_all(struct sessions *s, const struct bench_options *opt, struct outputs to)
{
    int worst = 0, device = 0;

    to.report = bench_report_create(opt);
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
    tool_progress_clear();
    for (int d = 0; table && results && d < opt->devices; d++) {
        char text[512];
        tool_device_text(&s->device[d].device, text, sizeof text);
        printf("device  %s\n", text);
    }
    if (table && results)
        bench_ratio_print(table);
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

static int open_all(struct sessions *s, struct bench_options *opt)
{
    int code = 0;

    if (opt->devices == 0)
        opt->device[opt->devices++] = NULL;
    tool_session_init(&s->builtin);
    for (int d = 0; d < opt->devices; d++)
        tool_session_init(&s->device[d]);
    for (int d = 0; !code && d < opt->devices; d++)
        code = open_session(&s->device[d], opt->device[d], opt->threads, 0);
    if (!code)
        code = open_session(&s->builtin, "cpu", opt->threads, CLATTN_CONTEXT_NO_OPENCL);
    return code;
}

static int run(struct bench_options *opt)
{
    struct outputs to = {.plot = NULL};
    tool_progress_start(opt->json);
    struct sessions *s = calloc(1, sizeof *s);
    int code = s ? bench_plot_create(opt, &to.plot)
                 : tool_fail(TOOL_DEVICE, "no memory for the devices");

    if (!code)
        code = bench_roofline_create(opt, &to.roofline);
    if (!code)
        code = bench_trace_create(opt, &to.trace);
    bench_trace_begin(to.trace, "open the devices");
    const bool opened = !code;
    if (opened)
        code = open_all(s, opt);
    bench_trace_end(to.trace);
    if (!code)
        code = opt->variants ? ratio_all(s, opt) : bench_all(s, opt, to);
    for (int d = 0; opened && d < opt->devices; d++)
        tool_session_close(&s->device[d]);
    if (opened)
        tool_session_close(&s->builtin);
    free(s);
    code = bench_trace_finish(to.trace, code);
    code = bench_roofline_finish(to.roofline, code);
    return bench_plot_finish(to.plot, code);
}

int main(int argc, char **argv)
{
    struct bench_options opt = {.runs = 7};

    tool_start("clattn-bench");
    int code = bench_options(argc, argv, &opt);
    if (!code && opt.help)
        tool_print_help(opt.help > 1 ? bench_help_all : bench_help);
    else if (!code && opt.version)
        tool_print_version();
    else if (!code && opt.list)
        bench_print_cases(opt.json);
    else if (!code)
        code = run(&opt);
    free(opt.row);
    return tool_finish(code);
}
