// SPDX-License-Identifier: Apache-2.0
// The command line of clattn-run from bytes, an argument a line. A refusal is one line of text and
// exit status 2; what is accepted keeps the rules of --help, counted here once more. Where all
// files are ones of the folder that this target makes, they are read and checked against each
// other.
#include <getopt.h>
#include <math.h>
#include <unistd.h>

#include "fuzz.h"
#include "run/run.h"
#include "temporary.h"

enum { ARGS_MOST = 80 };

// ---- files -------------------------------------------------------------------------------------

static const float floats[64];
static const int32_t lens[] = {4, 2}, starts_q[] = {0, 2, 6}, starts_kv[] = {1, 5, 8};
static const int64_t long_lens[] = {4, 1LL << 40};
static const int32_t table[] = {2, 0, 1, 77};

static const struct {
    const char *name;
    enum tool_npy_dtype dtype;
    const void *data;
    int ndim;
    int64_t shape[4];
} files[] = {
    {"q", TOOL_NPY_F32, floats, 4, {2, 2, 3, 2}},      // [batch, heads_q, len_q, dim]
    {"k", TOOL_NPY_F32, floats, 4, {2, 1, 4, 2}},
    {"v", TOOL_NPY_F32, floats, 4, {2, 1, 4, 1}},
    {"q16", TOOL_NPY_F16, floats, 4, {2, 2, 3, 2}},
    {"k16", TOOL_NPY_U16, floats, 4, {2, 1, 4, 2}},
    {"qp", TOOL_NPY_F32, floats, 4, {1, 2, 6, 2}},     // packed
    {"kp", TOOL_NPY_F32, floats, 4, {1, 1, 8, 2}},
    {"pool", TOOL_NPY_F32, floats, 4, {3, 1, 2, 2}},   // pages
    {"empty", TOOL_NPY_F32, floats, 4, {2, 2, 0, 2}},
    {"wide", TOOL_NPY_F32, floats, 4, {0, 1LL << 40, 1LL << 40, 1LL << 33}},
    {"m", TOOL_NPY_BOOL, floats, 4, {1, 2, 3, 4}},
    {"b", TOOL_NPY_F32, floats, 4, {2, 1, 1, 4}},
    {"b16", TOOL_NPY_F16, floats, 4, {1, 1, 1, 4}},
    {"a", TOOL_NPY_F32, floats, 1, {2}},
    {"a2", TOOL_NPY_F32, floats, 2, {2, 2}},
    {"l", TOOL_NPY_I32, lens, 1, {2}},
    {"l64", TOOL_NPY_I64, long_lens, 1, {2}},
    {"cq", TOOL_NPY_I32, starts_q, 1, {3}},
    {"ck", TOOL_NPY_I32, starts_kv, 1, {3}},
    {"t", TOOL_NPY_I32, table, 2, {2, 2}},
};
enum { FILES = sizeof files / sizeof *files };

static void make_files(void)
{
    FUZZ_CHECK(chdir(temporary_folder()) == 0, "no folder");
    for (int i = 0; i < FILES; i++) {
        FILE *file = fopen(files[i].name, "wb");
        FUZZ_CHECK(file && tool_npy_write(file, files[i].dtype, files[i].data, files[i].ndim,
                                          files[i].shape) && fclose(file) == 0,
                   "%s cannot be written", files[i].name);
    }
}

static bool is_ours(const char *path)
{
    for (int i = 0; path && i < FILES; i++)
        if (strcmp(path, files[i].name) == 0)
            return true;
    return !path;
}

// ---- promises ----------------------------------------------------------------------------------

static void check_accepted(const struct options *o)
{
    const char *const *f = o->file;
    FUZZ_CHECK(f[TOOL_Q] && f[TOOL_K] && f[TOOL_V], "an input is missing");
    FUZZ_CHECK(f[TOOL_O] || f[TOOL_LSE] || o->compare, "nothing to do");
    FUZZ_CHECK(!f[TOOL_TABLE] || (f[TOOL_KV_LENS] && !f[TOOL_CU_KV]), "pages");
    FUZZ_CHECK(o->bias_dtype < 0 || f[TOOL_BIAS], "a type without a bias");
    FUZZ_CHECK(o->splits >= 0 && o->splits <= 65535, "%d splits", (int)o->splits);
    FUZZ_CHECK(!o->splits || o->algo == CLATTN_ALGO_SPLIT_KV, "splits");
    FUZZ_CHECK(o->softmax <= 0 || o->algo == CLATTN_ALGO_UNFUSED, "softmax");
    FUZZ_CHECK(o->softmax <= CLATTN_SOFTMAX_ONLINE, "softmax");
    FUZZ_CHECK(o->algo >= 0 && o->algo <= CLATTN_ALGO_UNFUSED, "algo %d", o->algo);
    FUZZ_CHECK(o->kernel >= 0 && o->kernel <= CLATTN_KERNEL_SUBGROUP, "kernel %d", o->kernel);
    FUZZ_CHECK(o->layout == CLATTN_LAYOUT_BHSD || o->layout == CLATTN_LAYOUT_BSHD, "layout");
    FUZZ_CHECK(o->window_left >= -1 && o->window_right >= -1, "window");
    FUZZ_CHECK(o->runs >= 1 && o->runs <= 1000000, "runs");
    FUZZ_CHECK(o->threads >= 0 && o->threads <= 4096, "threads");
    FUZZ_CHECK(isfinite((float)o->scale) && isfinite((float)o->softcap) && o->softcap >= 0 &&
                   o->tolerance >= 0, "a number");
    FUZZ_CHECK(o->dtype <= CLATTN_DTYPE_BF16 && o->kv_dtype <= CLATTN_DTYPE_I8, "a type");
    FUZZ_CHECK(!(o->align >= 0 && o->causal_align >= 0) || o->align == o->causal_align, "align");
}

// One line that names the program, or nothing.
static void check_text(int code, const char *text, size_t size)
{
    if (code == TOOL_DONE) {
        FUZZ_CHECK(size == 0, "%s", text);
        return;
    }
    FUZZ_CHECK(code == TOOL_USE, "exit status %d", code);
    FUZZ_CHECK(size > 1 && text[size - 1] == '\n' && memchr(text, '\n', size) == text + size - 1 &&
                   strncmp(text, "clattn-run: ", 12) == 0,
               "not one line: %s", text);
}

static void read_input(struct run *r)
{
    for (int t = 0; t < TOOL_TENSORS; t++)
        if (t != TOOL_O && t != TOOL_LSE && !is_ours(r->opt.file[t]))
            return;
    if (!is_ours(r->opt.compare))
        return;
    char *text = NULL;
    size_t size = 0;
    FILE *own = stderr;
    stderr = open_memstream(&text, &size);
    const int code = run_read_input(r);
    fclose(stderr);
    stderr = own;
    check_text(code, text, size);
    free(text);
    if (code == TOOL_DONE) {
        const struct tool_problem *p = &r->problem;
        FUZZ_CHECK(p->batch >= 0 && p->heads_q >= 1 && p->heads_kv >= 1 && p->dim_qk >= 1 &&
                       p->dim_v >= 1 && p->len_q >= 0 && p->len_kv >= 0,
                   "a problem of %d heads", (int)p->heads_q);
        FUZZ_CHECK(p->heads_q % p->heads_kv == 0, "heads");
    }
    for (int t = 0; t < TOOL_TENSORS; t++)
        tool_npy_free(&r->in[t]);
    tool_npy_free(&r->want);
}

// ---- entry -------------------------------------------------------------------------------------

static int split(char *text, char **argv)
{
    int argc = 0;
    static char name[] = "clattn-run";
    argv[argc++] = name;
    for (char *line = text; line && argc < ARGS_MOST;) {
        char *end = strchr(line, '\n');
        if (end)
            *end++ = 0;
        argv[argc++] = line;
        line = end && *end ? end : NULL;
    }
    argv[argc] = NULL;
    return argc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    char *argv[ARGS_MOST + 1], *text = NULL, *copy = malloc(size + 1);
    size_t said = 0;
    struct run r;
    if (!ready) {
        tool_start("clattn-run");
        make_files();
        ready = true;
    }
    FUZZ_CHECK(copy, "memory");
    if (size)
        memcpy(copy, data, size);
    copy[size] = 0;
    const int argc = split(copy, argv);
    memset(&r, 0, sizeof r);
    optind = 0; // getopt() begins anew
    FILE *own = stderr;
    stderr = open_memstream(&text, &said);
    const int code = run_take_options(argc, argv, &r.opt);
    fclose(stderr);
    stderr = own;
    check_text(code, text, said);
    free(text);
    if (code == TOOL_DONE && !r.opt.help && !r.opt.version) {
        check_accepted(&r.opt);
        read_input(&r);
    }
    free(copy);
    return 0;
}
