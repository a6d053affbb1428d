// SPDX-License-Identifier: Apache-2.0
// clattn-run: attention on NumPy .npy files.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "run/run.h"

// What is written and never named.
static const enum tool_tensor outputs[] = {TOOL_O, TOOL_LSE};

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

// An input is not replaced.
static int check_input(const struct options *opt, const char *shown, const char *path)
{
    for (size_t i = 0; path && i < sizeof outputs / sizeof *outputs; i++) {
        const char *out = opt->file[outputs[i]];
        if (out && same_file(out, path))
            return tool_fail(TOOL_USE, "%s and %s name the same file %s", run_shown(outputs[i]),
                             shown, out);
    }
    return 0;
}

static int check_outputs(struct run *r)
{
    const struct options *opt = &r->opt;
    const char *o = opt->file[TOOL_O], *lse = opt->file[TOOL_LSE];
    int code = check_output("-o", o, &r->o_file);

    if (!code)
        code = check_output("--lse", lse, &r->lse_file);
    if (code)
        return code;
    if (o && lse && !r->o_file.direct && strcmp(r->o_file.path, r->lse_file.path) == 0)
        return tool_fail(TOOL_USE, "-o and --lse name the same file %s", o);
    for (int t = 0; !code && t < TOOL_TENSORS; t++) {
        if (t != TOOL_O && t != TOOL_LSE)
            code = check_input(opt, run_shown((enum tool_tensor)t), opt->file[t]);
    }
    return code ? code : check_input(opt, "--compare", opt->compare);
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
    tool_log_clear(&r->session.log);
    st = tool_plan_create(&r->session, &r->problem, &r->plan);
    if (st == CLATTN_OK) {
        r->info.struct_size = sizeof r->info;
        st = clattn_plan_get_info(r->plan, &r->info);
    }
    if (st == CLATTN_OK)
        return 0;
    if (tool_exit_of(st) == TOOL_USE)
        snprintf(what, sizeof what, "-q %s, -k %s, -v %s%s%s%s%s", opt->file[TOOL_Q],
                 opt->file[TOOL_K], opt->file[TOOL_V], opt->algo ? ", --algo " : "",
                 opt->algo ? tool_algo_words[opt->algo] : "",
                 opt->kernel ? ", --kernel " : "",
                 opt->kernel ? tool_kernel_words[opt->kernel] : "");
    return tool_library_fail(&r->session.log, st, what);
}

static clattn_status upload(struct run *r)
{
    clattn_status st = tool_memory_create(&r->session, &r->problem, r->plan, &r->memory);

    for (int t = 0; t < TOOL_TENSORS; t++) {
        if (st == CLATTN_OK && t != TOOL_O && t != TOOL_LSE)
            st = tool_memory_write(&r->session, &r->memory, (enum tool_tensor)t, r->in[t].data);
        // Offsets are needed no longer either: what is left of them is in first_q and end_q.
        tool_npy_free(&r->in[t]);
    }
    return st;
}

// O and LSE of tokens that belong to no sequence, which nothing wrote: zero and -infinity, also
// where there are sinks.
static void fill_stray(const struct run *r)
{
    const struct tool_problem *p = &r->problem;
    const bool bshd = p->layout == CLATTN_LAYOUT_BSHD;
    const size_t bytes = (size_t)p->dim_v * tool_dtype_bytes(p->dtype_o);
    const size_t heads = (size_t)p->heads_q, total = (size_t)p->total_q;

    for (size_t t = 0; p->packed_q && t < total; t++) {
        if (t >= (size_t)r->first_q && t < (size_t)r->end_q)
            continue;
        for (size_t h = 0; h < heads; h++) {
            memset((char *)r->o + (bshd ? t * heads + h : h * total + t) * bytes, 0, bytes);
            if (p->lse)
                r->lse[h * total + t] = -INFINITY;
        }
    }
}

static clattn_status download(struct run *r)
{
    // One element at least, since malloc(0) may give NULL.
    r->o = malloc(r->memory.bytes[TOOL_O] + 1);
    r->lse = malloc(r->memory.bytes[TOOL_LSE] + 1);
    if (!r->o || !r->lse)
        return CLATTN_ERR_OUT_OF_MEMORY;
    clattn_status st = tool_memory_read(&r->session, &r->memory, TOOL_O, r->o);
    if (st == CLATTN_OK)
        st = tool_memory_read(&r->session, &r->memory, TOOL_LSE, r->lse);
    if (st == CLATTN_OK)
        fill_stray(r);
    return st;
}

static int compute(struct run *r)
{
    clattn_attention_call call;
    const size_t runs = (size_t)r->opt.runs;
    double *times = malloc(runs * sizeof *times);

    clattn_status st = times ? upload(r) : CLATTN_ERR_OUT_OF_MEMORY;
    tool_call_init(&r->problem, &r->memory, &call);
    for (size_t i = 0; st == CLATTN_OK && i < runs; i++) {
        double start = tool_now_ms();
        st = clattn_attention_run(r->plan, &call);
        times[i] = tool_now_ms() - start;
    }
    if (st == CLATTN_OK)
        r->ms = tool_median(times, runs);
    free(times);
    if (st == CLATTN_OK)
        st = download(r);
    return st == CLATTN_OK ? 0 : tool_library_fail(&r->session.log, st, "");
}

static int save_one(const char *shown, const char *path, struct tool_outfile *file,
                    enum tool_npy_dtype dtype, const void *data, int ndim, const int64_t *shape)
{
    char why[512];

    if (!path || tool_outfile_write_npy(file, dtype, data, ndim, shape, why, sizeof why))
        return 0;
    return tool_fail(TOOL_USE, "%s %s: %s", shown, path, why);
}

// Both files are written before one of them takes its place.
static int save(struct run *r)
{
    static const enum tool_npy_dtype types[] = {[CLATTN_DTYPE_F32] = TOOL_NPY_F32,
                                                [CLATTN_DTYPE_F16] = TOOL_NPY_F16,
                                                [CLATTN_DTYPE_BF16] = TOOL_NPY_U16};
    const char *o = r->opt.file[TOOL_O], *lse = r->opt.file[TOOL_LSE];
    int64_t o_shape[4], lse_shape[3];
    char why[512];

    tool_tensor_shape(&r->problem, TOOL_O, o_shape);
    tool_lse_shape(&r->problem, lse_shape);
    int code = save_one("-o", o, &r->o_file, types[r->problem.dtype_o], r->o, 4, o_shape);
    if (!code)
        code = save_one("--lse", lse, &r->lse_file, TOOL_NPY_F32, r->lse, 3, lse_shape);
    if (!code && o && !tool_outfile_commit(&r->o_file, why, sizeof why))
        code = tool_fail(TOOL_USE, "-o %s: %s", o, why);
    if (!code && lse && !tool_outfile_commit(&r->lse_file, why, sizeof why))
        code = tool_fail(TOOL_USE, "--lse %s: %s", lse, why);
    tool_outfile_discard(&r->o_file);
    tool_outfile_discard(&r->lse_file);
    return code;
}

static int compare(struct run *r)
{
    const struct tool_problem *p = &r->problem;
    const int dtypes[] = {p->dtype_q, p->dtype_kv};
    float *got = malloc((r->want.count + 1) * sizeof *got);

    if (!got)
        return tool_fail(TOOL_DEVICE, "--compare %s: out of memory", r->opt.compare);
    for (int i = 0; !r->opt.has_tolerance && i < 2; i++)
        r->opt.tolerance = fmax(r->opt.tolerance, tool_dtype_tolerance(dtypes[i]));
    tool_to_float(r->o, p->dtype_o, got, r->want.count);
    tool_compare(got, r->want.data, r->want.count, r->opt.tolerance, &r->result);
    free(got);
    return 0;
}

static int run(struct run *r)
{
    int code = run_read_input(r);

    if (!code)
        code = check_outputs(r);
    if (!code)
        code = prepare(r);
    if (!code)
        code = compute(r);
    if (!code && r->opt.compare)
        code = compare(r);
    if (!code)
        code = save(r);
    if (code)
        return code;
    if (r->opt.json)
        run_report_json(r);
    else
        run_report_text(r);
    return r->result.over ? TOOL_WRONG : TOOL_DONE;
}

static void clean_up(struct run *r)
{
    for (int t = 0; t < TOOL_TENSORS; t++)
        tool_npy_free(&r->in[t]);
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
    struct run r = {.ms = 0};

    tool_start("clattn-run");
    int code = run_take_options(argc, argv, &r.opt);
    if (code)
        return code;
    if (r.opt.help || r.opt.version) {
        if (r.opt.help)
            tool_print_help(r.opt.help > 1 ? run_help_all : run_help);
        else
            tool_print_version();
        return tool_finish(TOOL_DONE);
    }
    tool_session_init(&r.session);
    code = run(&r);
    clean_up(&r);
    return tool_finish(code);
}
