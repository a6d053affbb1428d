// SPDX-License-Identifier: Apache-2.0
// clattn-bench: how fast attention is beside what the device can do, on results that were verified.
#define CLATTN_EXPERIMENTAL
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compare.h"
#include "lib/options.h"
#include "lib/output.h"
#include "lib/random.h"
#include "lib/say.h"
#include "lib/session.h"
#include "lib/shape.h"

static const char help[] =
    "Usage: clattn-bench [--shape B,H,HKV,LQ,LKV,D[,DV]]... [OPTION]...\n"
    "\n"
    "Times attention in float32 on random data on the device and prints it beside the peak: what\n"
    "a small kernel of fused multiply-adds (for the CPU path: a C loop with the same threads)\n"
    "reaches on the same device right before or after, whichever is more.\n"
    "\n"
    "  --shape B,H,HKV,LQ,LKV,D[,DV]\n"
    "                   batch, query heads, key/value heads, queries, keys, head dimension, head\n"
    "                   dimension of V; can be repeated; default 1,8,8,2048,2048,64 and\n"
    "                   1,8,8,1024,1024,128\n"
    "  --causal         causal, bottom-right aligned; only visible pairs count as work\n"
    "  --algo ALGO      auto (default), fused, host or reference\n"
    "  --kernel KERNEL  shape of the fused OpenCL kernel: group or vector; default by device\n"
    "  --device SEL     as clattn-run takes it\n"
    "  --threads N      threads of the CPU path; default all\n"
    "  --runs N         timed runs at least; default 7. They go on for half a second at least\n"
    "  --json           print one JSON object a line and shape\n"
    "  -h, --help       print this text\n"
    "  --version        print the version\n"
    "\n"
    "Before timing, rows from the whole output are compared with the double reference, and every\n"
    "element must have been written. A wrong result gets a message instead of a time. gflops\n"
    "counts 2 * (D + DV) for each pair of a query and a key that it sees; ms is the median, and\n"
    "cpu_ms in JSON the processor time of a run over all threads of this process, which other\n"
    "programs on the machine disturb less.\n"
    "\n"
    "Exit status: 0 done; 1 a result was wrong; 2 wrong use; 3 the device or its driver failed.\n";

enum {
    OPT_SHAPE, OPT_CAUSAL, OPT_ALGO, OPT_KERNEL, OPT_DEVICE, OPT_THREADS, OPT_RUNS, OPT_JSON,
    OPT_HELP, OPT_VERSION, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_SHAPE] = {"shape", 0, TOOL_ARG_REQUIRED, true},
    [OPT_CAUSAL] = {"causal", 0, TOOL_ARG_NONE, false},
    [OPT_ALGO] = {"algo", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KERNEL] = {"kernel", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_THREADS] = {"threads", 0, TOOL_ARG_REQUIRED, false},
    [OPT_RUNS] = {"runs", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

enum { SHAPES_MAX = 64, RUNS_MAX = 10000 };

static const double min_total_ms = 500.0;
static const double tolerance = 1e-5;

struct options {
    struct tool_problem shape[SHAPES_MAX];
    int shapes, algo, kernel;
    bool causal, json, help, version;
    const char *device;
    int32_t threads, runs;
};

struct result {
    double ms, min_ms, cpu_ms, gflops, peak_gflops, max_error;
    size_t runs;
};

static int take_shape(struct options *opt, const char *shown, const char *value)
{
    if (opt->shapes == SHAPES_MAX)
        return tool_fail(TOOL_USE, "option %s: more than %d shapes", shown, SHAPES_MAX);
    return tool_take_shape(shown, value, &opt->shape[opt->shapes++]);
}

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct options *opt = user;

    switch (index) {
    case OPT_SHAPE: return take_shape(opt, shown, value);
    case OPT_CAUSAL: opt->causal = true; return 0;
    case OPT_ALGO: return tool_take_word(shown, value, tool_algo_words, &opt->algo);
    case OPT_KERNEL:
        opt->kernel = tool_parse_word(value, tool_kernel_words);
        return opt->kernel > 0 ? 0
                               : tool_fail(TOOL_USE, "option %s: '%s' is none of group, vector",
                                           shown, value);
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_THREADS: return tool_take_int32(shown, value, 1, 4096, &opt->threads);
    case OPT_RUNS: return tool_take_int32(shown, value, 1, RUNS_MAX, &opt->runs);
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = true; return 0;
    default: opt->version = true; return 0;
    }
}

// Pairs of a query and a key that it sees, in one head.
static double live_pairs(const struct tool_problem *p)
{
    double pairs = 0;

    if (!p->causal)
        return (double)p->len_q * (double)p->len_kv;
    for (int64_t i = 0; i < p->len_q; i++) {
        int64_t keys = i + p->len_kv - p->len_q + 1;
        if (keys > 0)
            pairs += (double)keys;
    }
    return pairs;
}

static double work_gflop(const struct tool_problem *p)
{
    return 2e-9 * (double)p->batch * (double)p->heads_q * live_pairs(p) *
           ((double)p->dim_qk + (double)p->dim_v);
}

// ---- verification ------------------------------------------------------------------------------

// Some rows of all query heads that share one key/value head.
struct slice {
    int32_t b, g, row, rows;
};

static void slice_tensor(clattn_tensor *t, int64_t head, int64_t heads, int64_t row, int64_t rows,
                         int64_t dim)
{
    t->layout = CLATTN_LAYOUT_STRIDED;
    t->stride_seq = dim;
    t->stride_head = rows * dim;
    t->stride_batch = heads * t->stride_head;
    t->buf.offset_bytes += (size_t)((head * rows + row) * dim) * sizeof(float);
}

// The rows of the slice by the double reference: dim_v floats each, heads of the group outside.
static clattn_status reference_rows(struct tool_session *s, const struct tool_problem *p,
                                    const struct tool_memory *m, const struct slice *c, float *want)
{
    const int32_t group = p->heads_q / p->heads_kv;
    struct tool_problem part = *p;
    struct tool_memory part_memory;
    clattn_attention_call call;
    clattn_plan *plan = NULL;

    part.batch = 1;
    part.heads_q = group;
    part.heads_kv = 1;
    part.len_q = c->rows;
    part.algo = CLATTN_ALGO_REFERENCE;
    part.kernel = CLATTN_KERNEL_AUTO;
    // Bottom-right alignment of fewer queries fits when the keys end with the last one's own.
    if (p->causal)
        part.len_kv = p->len_kv - (p->len_q - (c->row + c->rows));
    if (part.len_kv < 0)
        part.len_kv = 0;
    memset(&part_memory, 0, sizeof part_memory);
    clattn_status st = tool_plan_create(s, &part, &plan);
    if (st == CLATTN_OK)
        st = tool_memory_create(s, &part, plan, &part_memory);
    tool_call_init(&part, &part_memory, &call);
    call.q.buf = m->buf[TOOL_Q];
    call.k.buf = m->buf[TOOL_K];
    call.v.buf = m->buf[TOOL_V];
    const int64_t head_q = (int64_t)c->b * p->heads_q + (int64_t)c->g * group;
    const int64_t head_kv = (int64_t)c->b * p->heads_kv + c->g;
    slice_tensor(&call.q, head_q, p->heads_q, c->row, p->len_q, p->dim_qk);
    slice_tensor(&call.k, head_kv, p->heads_kv, 0, p->len_kv, p->dim_qk);
    slice_tensor(&call.v, head_kv, p->heads_kv, 0, p->len_kv, p->dim_v);
    if (st == CLATTN_OK)
        st = clattn_attention_run(plan, &call);
    if (st == CLATTN_OK)
        st = tool_memory_read(s, &part_memory, TOOL_O, want);
    tool_memory_destroy(s, &part_memory);
    clattn_plan_destroy(&plan);
    return st;
}

// Compares one slice; returns how many elements are wrong.
static size_t compare_slice(const struct tool_problem *p, const float *o, const struct slice *c,
                            const float *want, double *max_error)
{
    const int32_t group = p->heads_q / p->heads_kv;
    const size_t block = (size_t)c->rows * (size_t)p->dim_v;
    size_t over = 0;

    for (int32_t h = 0; h < group; h++) {
        struct tool_compare result;
        size_t head = (size_t)c->b * (size_t)p->heads_q + (size_t)c->g * (size_t)group + (size_t)h;
        size_t at = (head * (size_t)p->len_q + (size_t)c->row) * (size_t)p->dim_v;
        tool_compare(o + at, want + (size_t)h * block, block, tolerance, &result);
        over += result.over;
        *max_error = fmax(*max_error, result.max_error);
    }
    return over;
}

// The n-th of `count` evenly spread places in [0, extent), the first and the last among them.
static int32_t place(int32_t n, int32_t count, int32_t extent)
{
    return count > 1 ? (int32_t)((int64_t)n * (extent - 1) / (count - 1)) : extent / 2;
}

// Compares rows from all over the output. `over` counts wrong elements; NaN anywhere is one too,
// since the output was filled with it and the data is finite.
static clattn_status verify(struct tool_session *s, const struct tool_problem *p,
                            const struct tool_memory *m, const float *o, double *max_error,
                            size_t *over)
{
    // About a second of the reference at most, but 3 places of 2 heads in any case.
    const double budget = 3e8;
    const int32_t group = p->heads_q / p->heads_kv, heads = p->batch * p->heads_kv;
    const double row_cost = (double)group * (double)p->len_kv * (p->dim_qk + p->dim_v);
    const int32_t head_count = heads < 4 ? heads : 4;
    const double afford = budget / row_cost / head_count;
    struct slice c = {.rows = afford >= 64 ? 8 : afford >= 16 ? 2 : 1};
    clattn_status st = CLATTN_OK;

    c.rows = c.rows < p->len_q ? c.rows : p->len_q;
    const int32_t starts = p->len_q - c.rows + 1;
    const int32_t blocks = starts < 3 ? starts : afford / c.rows >= 8 && starts >= 8 ? 8 : 3;
    float *want = malloc((size_t)group * (size_t)c.rows * (size_t)p->dim_v * sizeof *want);
    if (!want)
        return CLATTN_ERR_OUT_OF_MEMORY;
    for (size_t i = 0; i < m->bytes[TOOL_O] / sizeof *o; i++)
        *over += isfinite(o[i]) ? 0 : 1;
    for (int32_t h = 0; h < head_count; h++) {
        int32_t head = place(h, head_count, heads);
        c.b = head / p->heads_kv;
        c.g = head % p->heads_kv;
        for (int32_t n = 0; st == CLATTN_OK && n < blocks; n++) {
            c.row = place(n, blocks, starts);
            st = reference_rows(s, p, m, &c, want);
            if (st == CLATTN_OK)
                *over += compare_slice(p, o, &c, want, max_error);
        }
    }
    free(want);
    return st;
}

// ---- timing ------------------------------------------------------------------------------------

static clattn_status fill(struct tool_session *s, const struct tool_memory *m)
{
    static const enum tool_tensor inputs[] = {TOOL_Q, TOOL_K, TOOL_V};
    clattn_status st = CLATTN_OK;

    for (unsigned i = 0; st == CLATTN_OK && i < 3; i++) {
        float *data = malloc(m->bytes[inputs[i]]);
        if (!data)
            return CLATTN_ERR_OUT_OF_MEMORY;
        tool_random_fill(data, m->bytes[inputs[i]] / sizeof *data, i + 1);
        st = tool_memory_write(s, m, inputs[i], data);
        free(data);
    }
    return st;
}

// First run, whose output is verified.
static clattn_status check(struct tool_session *s, const struct tool_problem *p,
                           const clattn_plan *plan, const struct tool_memory *m,
                           struct result *r, size_t *over)
{
    clattn_attention_call call;
    float *o = malloc(m->bytes[TOOL_O]);

    if (!o)
        return CLATTN_ERR_OUT_OF_MEMORY;
    tool_call_init(p, m, &call);
    clattn_status st = clattn_attention_run(plan, &call);
    if (st == CLATTN_OK)
        st = tool_memory_read(s, m, TOOL_O, o);
    if (st == CLATTN_OK)
        st = verify(s, p, m, o, &r->max_error, over);
    free(o);
    return st;
}

static clattn_status time_runs(const struct tool_problem *p, const clattn_plan *plan,
                               const struct tool_memory *m, int32_t min_runs, struct result *r)
{
    clattn_attention_call call;
    double *times = malloc(RUNS_MAX * sizeof *times), total = 0;
    size_t n = 0;
    clattn_status st = times ? CLATTN_OK : CLATTN_ERR_OUT_OF_MEMORY;

    tool_call_init(p, m, &call);
    const double cpu_start = tool_cpu_ms();
    while (st == CLATTN_OK && n < RUNS_MAX && (n < (size_t)min_runs || total < min_total_ms)) {
        double start = tool_now_ms();
        st = clattn_attention_run(plan, &call);
        times[n] = tool_now_ms() - start;
        total += times[n++];
    }
    if (st == CLATTN_OK) {
        r->ms = tool_median(times, n);
        r->min_ms = times[0]; // sorted by now
        r->cpu_ms = (tool_cpu_ms() - cpu_start) / (double)n;
        r->runs = n;
        r->gflops = r->ms > 0 ? work_gflop(p) / (1e-3 * r->ms) : 0;
    }
    free(times);
    return st;
}

static clattn_status measure(clattn_context *ctx, double *peak)
{
    double now = 0;
    clattn_status st = clattn_context_measure(ctx, CLATTN_MEASURE_FMA_F32, 0, &now);

    *peak = fmax(*peak, now);
    return st;
}

// One shape: verify, then peak, times, peak. `over` > 0 means a wrong result and no times.
static clattn_status bench(struct tool_session *s, struct tool_session *peak,
                           const struct tool_problem *p, const clattn_plan *plan, int32_t runs,
                           struct result *r, size_t *over)
{
    struct tool_memory m;

    clattn_status st = tool_memory_create(s, p, plan, &m);
    if (st == CLATTN_OK)
        st = fill(s, &m);
    if (st == CLATTN_OK)
        st = check(s, p, plan, &m, r, over);
    if (st == CLATTN_OK && *over == 0) {
        st = measure(peak->ctx, &r->peak_gflops);
        if (st == CLATTN_OK)
            st = time_runs(p, plan, &m, runs, r);
        if (st == CLATTN_OK)
            st = measure(peak->ctx, &r->peak_gflops);
    }
    tool_memory_destroy(s, &m);
    return st;
}

// ---- output ------------------------------------------------------------------------------------

static const struct tool_column columns[] = {
    {"SHAPE", false, false}, {"CAUSAL", false, false}, {"ALGORITHM", false, false},
    {"KERNEL", false, false}, {"TILE", false, false}, {"MS", true, false},
    {"MIN MS", true, false}, {"RUNS", true, false}, {"GFLOP/S", true, false},
    {"PEAK", true, false}, {"% OF PEAK", true, false}, {"MAX ERROR", true, false}};

enum { COLUMNS = sizeof columns / sizeof *columns };

static double percent(const struct result *r)
{
    return r->peak_gflops > 0 ? 100.0 * r->gflops / r->peak_gflops : 0;
}

static void add_row(struct libscols_table *table, const struct tool_problem *p,
                    const clattn_plan_info *info, const struct result *r)
{
    char text[COLUMNS][64];
    const char *cells[COLUMNS];

    tool_shape_text(p, text[0], sizeof text[0]);
    snprintf(text[1], sizeof text[1], "%s", p->causal ? "yes" : "no");
    snprintf(text[2], sizeof text[2], "%s", info->algo_name);
    snprintf(text[3], sizeof text[3], "%s", info->kernel_name[0] ? info->kernel_name : "-");
    snprintf(text[4], sizeof text[4], "%dx%d", (int)info->tile_q, (int)info->tile_k);
    snprintf(text[5], sizeof text[5], "%.3f", r->ms);
    snprintf(text[6], sizeof text[6], "%.3f", r->min_ms);
    snprintf(text[7], sizeof text[7], "%zu", r->runs);
    snprintf(text[8], sizeof text[8], "%.1f", r->gflops);
    snprintf(text[9], sizeof text[9], "%.1f", r->peak_gflops);
    snprintf(text[10], sizeof text[10], "%.1f", percent(r));
    snprintf(text[11], sizeof text[11], "%.2g", r->max_error);
    for (int i = 0; i < COLUMNS; i++)
        cells[i] = text[i];
    tool_table_row(table, cells, COLUMNS);
}

static void print_json(const struct tool_session *s, const struct tool_problem *p,
                       const clattn_plan *plan, const clattn_plan_info *info,
                       const struct result *r)
{
    const int32_t extents[] = {p->batch, p->heads_q, p->heads_kv, p->len_q, p->len_kv, p->dim_qk,
                               p->dim_v};
    char text[512];
    json_t *o = json_object(), *shape = json_array();

    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        json_array_append_new(shape, json_integer(extents[i]));
    tool_device_text(&s->device, text, sizeof text);
    json_object_set_new(o, "device", tool_json_text(text));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "causal", json_boolean(p->causal));
    json_object_set_new(o, "dtype", json_string("f32"));
    json_object_set_new(o, "ms", json_real(r->ms));
    json_object_set_new(o, "min_ms", json_real(r->min_ms));
    json_object_set_new(o, "cpu_ms", json_real(r->cpu_ms));
    json_object_set_new(o, "runs", json_integer((json_int_t)r->runs));
    json_object_set_new(o, "gflops", json_real(r->gflops));
    json_object_set_new(o, "peak_gflops", json_real(r->peak_gflops));
    json_object_set_new(o, "percent_of_peak", json_real(percent(r)));
    json_object_set_new(o, "max_error", json_real(r->max_error));
    json_object_update_new(o, tool_json_plan(plan, info));
    tool_json_print(o, true);
}

// ---- all shapes --------------------------------------------------------------------------------

static int bench_shape(struct tool_session *s, struct tool_session *builtin,
                       const struct options *opt, const struct tool_problem *p,
                       struct libscols_table *table)
{
    char what[128];
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    struct result r = {.runs = 0};
    size_t over = 0;
    int code = 0;

    tool_shape_text(p, what, sizeof what);
    tool_log_clear(&s->log);
    clattn_status st = tool_plan_create(s, p, &plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(plan, &info);
    if (st == CLATTN_OK) {
        bool on_cpu = info.algo == CLATTN_ALGO_HOST || info.algo == CLATTN_ALGO_REFERENCE;
        st = bench(s, on_cpu ? builtin : s, p, plan, opt->runs, &r, &over);
    }
    if (st != CLATTN_OK)
        code = tool_library_fail(&s->log, st, what);
    else if (over)
        code = tool_fail(TOOL_WRONG, "%s: wrong result, not timed: %zu elements are off, by %.3g "
                                     "at worst (%s, %s)",
                         what, over, r.max_error, info.algo_name, info.kernel_name);
    else if (opt->json)
        print_json(s, p, plan, &info, &r);
    else
        add_row(table, p, &info, &r);
    clattn_plan_destroy(&plan);
    return code;
}

static int bench_all(struct tool_session *s, struct tool_session *builtin,
                     const struct options *opt)
{
    char text[512];
    int worst = 0, good = 0;
    struct libscols_table *table = opt->json ? NULL : tool_table_create(columns, COLUMNS, true);

    for (int i = 0; i < opt->shapes; i++) {
        struct tool_problem p = opt->shape[i];
        p.causal = opt->causal;
        p.algo = opt->algo;
        p.kernel = opt->kernel;
        int code = bench_shape(s, builtin, opt, &p, table);
        worst = code > worst ? code : worst;
        good += code == 0;
    }
    if (!opt->json && good) {
        tool_device_text(&s->device, text, sizeof text);
        printf("device  %s\n", text);
        tool_table_print(table);
    } else {
        tool_table_free(table);
    }
    return worst;
}

static int run(const struct options *opt)
{
    struct tool_session s, builtin;
    char what[256] = "";

    tool_session_init(&s);
    tool_session_init(&builtin);
    clattn_status st = tool_session_open(&s, opt->device, opt->threads, 0);
    if (opt->device)
        snprintf(what, sizeof what, "--device %s", opt->device);
    int code = st == CLATTN_OK ? 0 : tool_library_fail(&s.log, st, what);
    if (!code) {
        st = tool_session_open(&builtin, "cpu", opt->threads, CLATTN_CONTEXT_NO_OPENCL);
        code = st == CLATTN_OK ? 0 : tool_library_fail(&builtin.log, st, "cpu");
    }
    if (!code)
        code = bench_all(&s, &builtin, opt);
    tool_session_close(&s);
    tool_session_close(&builtin);
    return code;
}

int main(int argc, char **argv)
{
    struct options opt = {.runs = 7};

    tool_start("clattn-bench");
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, &opt);
    if (code)
        return code;
    if (opt.help || opt.version) {
        if (opt.help)
            fputs(help, stdout);
        else
            tool_print_version();
        return tool_finish(TOOL_DONE);
    }
    if (opt.kernel > 0 && (opt.algo == CLATTN_ALGO_HOST || opt.algo == CLATTN_ALGO_REFERENCE))
        return tool_fail(TOOL_USE, "option --kernel does not go with --algo %s",
                         tool_algo_words[opt.algo]);
    if (opt.shapes == 0) {
        take_shape(&opt, "--shape", "1,8,8,2048,2048,64");
        take_shape(&opt, "--shape", "1,8,8,1024,1024,128");
    }
    return tool_finish(run(&opt));
}
