// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

const char *run_shown(enum tool_tensor which)
{
    static const char *const shown[TOOL_TENSORS] = {
        [TOOL_Q] = "-q",
        [TOOL_K] = "-k",
        [TOOL_V] = "-v",
        [TOOL_O] = "-o",
        [TOOL_LSE] = "--lse",
        [TOOL_MASK] = "--mask",
        [TOOL_BIAS] = "--bias",
        [TOOL_ALIBI] = "--alibi",
        [TOOL_SINKS] = "--sinks",
        [TOOL_KV_LENS] = "--kv-lens",
        [TOOL_CU_Q] = "--cu-seqlens-q",
        [TOOL_CU_KV] = "--cu-seqlens-kv",
        [TOOL_TABLE] = "--page-table",
    };

    return shown[which];
}

// ---- files -------------------------------------------------------------------------------------

static int read_file(const char *shown, const char *path, unsigned dtypes, int ndim,
                     struct tool_npy *npy)
{
    char why[512];

    if (!path || tool_npy_read(path, dtypes, ndim, npy, why, sizeof why))
        return 0;
    // What is the same for all sequences and heads is often kept without their axes.
    const bool pairs = npy->ndim == 2 && (!strcmp(shown, "--mask") || !strcmp(shown, "--bias"));
    const bool added = !strcmp(shown, "--mask") && strstr(why, "it is '<f");
    return tool_fail(TOOL_USE, "%s %s: %s%s", shown, path, why,
                     pairs   ? ": [1, 1, len_q, len_kv] serves all sequences and heads"
                     : added ? "; numbers that are added to the scores are --bias"
                             : "");
}

static int read_files(struct run *r)
{
    // uint16 is read too, for a message that says what it needs.
    enum { FLOATS = TOOL_NPY_F32 | TOOL_NPY_F16 | TOOL_NPY_U16,
           INTS = TOOL_NPY_I32 | TOOL_NPY_I64 };
    static const struct {
        enum tool_tensor which;
        unsigned dtypes;
        int ndim;
    } files[] = {{TOOL_Q, FLOATS, 4},        {TOOL_K, FLOATS, 4},   {TOOL_V, FLOATS, 4},
                 {TOOL_MASK, TOOL_NPY_BOOL, 4}, {TOOL_BIAS, FLOATS, 4},
                 {TOOL_ALIBI, TOOL_NPY_F32, 0}, {TOOL_SINKS, TOOL_NPY_F32, 1},
                 {TOOL_KV_LENS, INTS, 1},    {TOOL_CU_Q, INTS, 1},  {TOOL_CU_KV, INTS, 1},
                 {TOOL_TABLE, TOOL_NPY_I32, 2}};
    const struct options *opt = &r->opt;
    int code = 0;

    for (size_t i = 0; !code && i < sizeof files / sizeof *files; i++) {
        const enum tool_tensor which = files[i].which;
        code = read_file(run_shown(which), opt->file[which], files[i].dtypes, files[i].ndim,
                         &r->in[which]);
    }
    return code ? code : read_file("--compare", opt->compare, FLOATS, 4, &r->want);
}

// ---- types -------------------------------------------------------------------------------------

static int dtype_of(const struct tool_npy *npy)
{
    return npy->dtype == TOOL_NPY_F32   ? CLATTN_DTYPE_F32
           : npy->dtype == TOOL_NPY_F16 ? CLATTN_DTYPE_F16
                                        : CLATTN_DTYPE_BF16;
}

// Bits of bfloat16 look like any other uint16: an option has to say that they are.
static int check_bits(const char *shown, const char *path, const struct tool_npy *npy, bool said,
                      const char *option)
{
    if (npy->dtype != TOOL_NPY_U16 || said)
        return 0;
    return tool_fail(TOOL_USE, "%s %s: dtype: it is %s, which needs %s", shown, path,
                     tool_npy_name(npy->dtype), option);
}

static int choose_dtypes(struct run *r)
{
    const struct options *opt = &r->opt;
    struct tool_problem *p = &r->problem;
    const struct tool_npy *q = &r->in[TOOL_Q], *k = &r->in[TOOL_K], *v = &r->in[TOOL_V];
    const bool bf16 = opt->dtype == CLATTN_DTYPE_BF16;
    const bool kv_bf16 = bf16 || opt->kv_dtype == CLATTN_DTYPE_BF16;
    const bool bias_bf16 = bf16 || opt->bias_dtype == CLATTN_DTYPE_BF16;
    int code = check_bits("-q", opt->file[TOOL_Q], q, bf16, "--dtype bf16");

    for (int t = TOOL_K; !code && t <= TOOL_V; t++)
        code = check_bits(run_shown((enum tool_tensor)t), opt->file[t], &r->in[t], kv_bf16,
                          "--dtype bf16 or --kv-dtype bf16");
    if (!code && opt->file[TOOL_BIAS])
        code = check_bits("--bias", opt->file[TOOL_BIAS], &r->in[TOOL_BIAS], bias_bf16,
                          "--bias-dtype bf16 or --dtype bf16");
    p->dtype_q = opt->dtype >= 0 ? opt->dtype : dtype_of(q);
    p->dtype_o = p->dtype_q;
    p->dtype_kv = opt->kv_dtype >= 0 ? opt->kv_dtype : opt->dtype >= 0 ? opt->dtype : dtype_of(k);
    if (!code && opt->file[TOOL_BIAS])
        p->dtype_bias = opt->bias_dtype >= 0 ? opt->bias_dtype : dtype_of(&r->in[TOOL_BIAS]);
    if (!code && opt->compare)
        code = check_bits("--compare", opt->compare, &r->want, bf16, "--dtype bf16");
    if (!code && opt->kv_dtype < 0 && opt->dtype < 0 && v->dtype != k->dtype)
        code = tool_fail(TOOL_USE, "-v %s: dtype: it is %s, that of -k %s (--kv-dtype says which "
                                   "one is meant)",
                         opt->file[TOOL_V], tool_npy_name(v->dtype), tool_npy_name(k->dtype));
    return code;
}

// "--bias b.npy: element (0, 1, 2, 3) is 1e+30, why".
static int bad_element(const char *shown, const char *path, const struct tool_npy *npy,
                       size_t index, const float *data, const char *why)
{
    int64_t at[TOOL_NPY_MAX_NDIM];
    char text[256];

    tool_unravel(index, npy->ndim, npy->shape, at);
    tool_npy_shape_text(npy->ndim, at, text, sizeof text);
    return tool_fail(TOOL_USE, "%s %s: data: element %s is %g, %s", shown, path, text,
                     (double)data[index], why);
}

static int no_memory(const char *shown, const char *path)
{
    return tool_fail(TOOL_DEVICE, "%s %s: out of memory", shown, path);
}

// The data as floats, its own memory; NULL if memory ran out. One element at least, since malloc(0)
// may give NULL.
static float *floats_of(const struct tool_npy *npy)
{
    float *data = malloc((npy->count + 1) * sizeof *data);

    if (data)
        tool_to_float(npy->data, dtype_of(npy), data, npy->count);
    return data;
}

static void replace_data(struct tool_npy *npy, void *data, size_t bytes)
{
    free(npy->data);
    npy->data = data;
    npy->bytes = bytes;
}

static int quantize(struct run *r, enum tool_tensor which, const float *data)
{
    struct tool_npy *npy = &r->in[which];
    struct tool_npy *scales = &r->in[which == TOOL_K ? TOOL_K_SCALE : TOOL_V_SCALE];
    const size_t dim = (size_t)npy->shape[3], rows = npy->count / dim;
    int8_t *out = malloc(npy->count + 1);
    float *scale = malloc((rows + 1) * sizeof *scale);

    if (!out || !scale) {
        free(out);
        free(scale);
        return no_memory(run_shown(which), r->opt.file[which]);
    }
    // A row that is not finite has the scale NaN, as an append on a device gives it: it shows where
    // the key is seen, and does no harm in padding.
    for (size_t row = 0; row < rows; row++) {
        if (clattn_quantize_i8(NULL, data + row * dim, 1, (int64_t)dim, 0, out + row * dim,
                               scale + row) == CLATTN_OK)
            continue;
        memset(out + row * dim, 0, dim);
        scale[row] = NAN;
    }
    replace_data(npy, out, npy->count);
    replace_data(scales, scale, rows * sizeof *scale);
    return 0;
}

static int convert(struct run *r, enum tool_tensor which, int dtype)
{
    struct tool_npy *npy = &r->in[which];
    const char *shown = run_shown(which), *path = r->opt.file[which];
    size_t bad = 0;
    int code = 0;

    if (dtype == dtype_of(npy))
        return 0;
    float *data = floats_of(npy);
    if (!data)
        return no_memory(shown, path);
    if (dtype == CLATTN_DTYPE_I8) {
        code = quantize(r, which, data);
    } else {
        const size_t bytes = npy->count * tool_dtype_bytes(dtype);
        void *out = malloc(bytes + 1);
        if (!out) {
            code = no_memory(shown, path);
        } else if (tool_from_float(data, dtype, out, npy->count, &bad)) {
            replace_data(npy, out, bytes);
        } else {
            char why[64];
            snprintf(why, sizeof why, "which %s cannot hold", tool_dtype_words[dtype]);
            code = bad_element(shown, path, npy, bad, data, why);
            free(out);
        }
    }
    free(data);
    return code;
}

static int convert_all(struct run *r)
{
    const struct tool_problem *p = &r->problem;
    int code = convert(r, TOOL_Q, p->dtype_q);

    if (!code)
        code = convert(r, TOOL_K, p->dtype_kv);
    if (!code)
        code = convert(r, TOOL_V, p->dtype_kv);
    if (!code && p->bias)
        code = convert(r, TOOL_BIAS, p->dtype_bias);
    if (!code && r->opt.compare && r->want.dtype != TOOL_NPY_F32) {
        float *data = floats_of(&r->want);
        if (!data)
            return no_memory("--compare", r->opt.compare);
        replace_data(&r->want, data, r->want.count * sizeof *data);
    }
    return code;
}

// ---- shapes ------------------------------------------------------------------------------------

int run_bad_shape(const char *shown, const char *path, const struct tool_npy *npy,
                  const char *rule)
{
    char text[256];

    tool_npy_shape_text(npy->ndim, npy->shape, text, sizeof text);
    return tool_fail(TOOL_USE, "%s %s: shape %s: %s", shown, path, text, rule);
}

static int bad_shape(const struct run *r, enum tool_tensor which, const char *rule)
{
    return run_bad_shape(run_shown(which), r->opt.file[which], &r->in[which], rule);
}

// Extents that contradict those of another tensor, maybe since the axes are in another order.
static int bad_pair(const struct run *r, enum tool_tensor which, enum tool_tensor other,
                    const char *rule)
{
    const bool bshd = r->opt.layout == CLATTN_LAYOUT_BSHD;
    char shape[256], text[512];

    tool_npy_shape_text(r->in[other].ndim, r->in[other].shape, shape, sizeof shape);
    snprintf(text, sizeof text, "%s, %s (the axes are [batch, %s, dim]%s)", rule, shape,
             bshd ? "sequence, heads" : "heads, sequence",
             bshd ? "" : "; with --layout bshd [batch, sequence, heads, dim]");
    return bad_shape(r, which, text);
}

static int check_extents(const struct run *r, enum tool_tensor which, int head_axis)
{
    const int64_t *shape = r->in[which].shape;

    for (int i = 0; i < 4; i++) {
        if (shape[i] > INT32_MAX)
            return bad_shape(r, which, "an extent is over 2^31 - 1");
    }
    if (shape[head_axis] == 0)
        return bad_shape(r, which, "there must be at least 1 head");
    if (shape[3] == 0)
        return bad_shape(r, which, "dim must be at least 1");
    return 0;
}

// q, k and v against each other.
static int check_tensors(const struct run *r, int head, int seq)
{
    const struct options *opt = &r->opt;
    const int64_t *q = r->in[TOOL_Q].shape, *k = r->in[TOOL_K].shape, *v = r->in[TOOL_V].shape;
    const bool packed_q = opt->file[TOOL_CU_Q] != NULL, packed_kv = opt->file[TOOL_CU_KV] != NULL;
    const bool paged = opt->file[TOOL_TABLE] != NULL;
    int code = check_extents(r, TOOL_Q, head);

    if (!code)
        code = check_extents(r, TOOL_K, head);
    if (!code)
        code = check_extents(r, TOOL_V, head);
    if (code)
        return code;
    if (packed_q && q[0] != 1)
        return bad_shape(r, TOOL_Q, "batch must be 1 with --cu-seqlens-q");
    if (packed_kv && k[0] != 1)
        return bad_shape(r, TOOL_K, "batch must be 1 with --cu-seqlens-kv");
    if (!packed_q && !packed_kv && !paged && k[0] != q[0])
        return bad_pair(r, TOOL_K, TOOL_Q, "batch differs from that of -q");
    if (q[head] % k[head] != 0)
        return bad_pair(r, TOOL_K, TOOL_Q, "its heads do not divide those of -q");
    if (k[3] != q[3])
        return bad_pair(r, TOOL_K, TOOL_Q, "dim differs from that of -q");
    if (paged && (k[seq] < 1 || k[seq] > 256))
        return bad_shape(r, TOOL_K, "a page must have 1 to 256 keys");
    if (v[0] != k[0] || v[head] != k[head] || v[seq] != k[seq])
        return bad_pair(r, TOOL_V, TOOL_K, "batch, heads or sequence differ from those of -k");
    return 0;
}

static void fill_problem(struct run *r, int head, int seq)
{
    const struct options *opt = &r->opt;
    const int64_t *q = r->in[TOOL_Q].shape, *k = r->in[TOOL_K].shape;
    struct tool_problem *p = &r->problem; // its types are there already

    p->batch = (int32_t)q[0];
    p->heads_q = (int32_t)q[head];
    p->heads_kv = (int32_t)k[head];
    p->len_q = (int32_t)q[seq];
    p->len_kv = (int32_t)k[seq];
    p->dim_qk = (int32_t)q[3];
    p->dim_v = (int32_t)r->in[TOOL_V].shape[3];
    p->layout = opt->layout;
    p->causal = opt->causal;
    p->align = opt->align >= 0 ? opt->align : opt->causal_align >= 0 ? opt->causal_align : 0;
    p->window = opt->window;
    p->window_left = opt->window_left;
    p->window_right = opt->window_right;
    p->softcap = (float)opt->softcap;
    p->lse = opt->file[TOOL_LSE] != NULL;
    p->has_scale = opt->has_scale;
    p->scale = (float)opt->scale;
    p->algo = opt->algo;
    p->precision = opt->precision;
    p->kernel = opt->kernel;
    p->num_splits = opt->splits;
    p->softmax = opt->softmax > 0 ? opt->softmax : 0;
}

// Extents of a mask or bias.
static int check_pairs(struct run *r, enum tool_tensor which, bool *used, int32_t extent[4])
{
    static const char *const axes[] = {"batch", "heads_q", "len_q", "len_kv"};
    const struct tool_problem *p = &r->problem;
    const int32_t full[] = {p->batch, p->heads_q, p->len_q, p->len_kv};
    char rule[128];

    *used = r->opt.file[which] != NULL;
    for (int i = 0; *used && i < 4; i++) {
        const int64_t n = r->in[which].shape[i];
        if (n != 1 && n != full[i]) {
            snprintf(rule, sizeof rule, "axis %d (%s) must be 1 or %d", i, axes[i], (int)full[i]);
            return bad_shape(r, which, rule);
        }
        extent[i] = (int32_t)n;
    }
    return 0;
}

static int check_heads(struct run *r)
{
    struct tool_problem *p = &r->problem;
    const struct tool_npy *alibi = &r->in[TOOL_ALIBI], *sinks = &r->in[TOOL_SINKS];
    char rule[96];

    p->alibi = r->opt.file[TOOL_ALIBI] != NULL;
    p->alibi_batch = p->alibi && alibi->ndim == 2;
    p->sinks = r->opt.file[TOOL_SINKS] != NULL;
    if (p->alibi && (alibi->shape[alibi->ndim - 1] != p->heads_q ||
                     (p->alibi_batch && alibi->shape[0] != p->batch))) {
        snprintf(rule, sizeof rule, "it must be (%d,) or (%d, %d)", (int)p->heads_q, (int)p->batch,
                 (int)p->heads_q);
        return bad_shape(r, TOOL_ALIBI, rule);
    }
    if (p->sinks && sinks->shape[0] != p->heads_q) {
        snprintf(rule, sizeof rule, "it must be (%d,), a number for each query head",
                 (int)p->heads_q);
        return bad_shape(r, TOOL_SINKS, rule);
    }
    return 0;
}

static int check_expected(const struct run *r)
{
    char rule[256] = "the output has shape ";
    int64_t shape[4];

    tool_tensor_shape(&r->problem, TOOL_O, shape);
    if (!r->opt.compare || memcmp(r->want.shape, shape, sizeof shape) == 0)
        return 0;
    tool_npy_shape_text(4, shape, rule + strlen(rule), sizeof rule - strlen(rule));
    return run_bad_shape("--compare", r->opt.compare, &r->want, rule);
}

// Shapes of the files against each other, then the problem they pose.
static int check_shapes(struct run *r)
{
    struct tool_problem *p = &r->problem;
    const int head = r->opt.layout == CLATTN_LAYOUT_BSHD ? 2 : 1, seq = 3 - head;
    int code = check_tensors(r, head, seq);

    if (code)
        return code;
    fill_problem(r, head, seq);
    code = run_take_numbers(r);
    if (!code)
        code = check_pairs(r, TOOL_MASK, &p->mask, p->mask_extent);
    if (!code)
        code = check_pairs(r, TOOL_BIAS, &p->bias, p->bias_extent);
    if (!code)
        code = check_heads(r);
    return code ? code : check_expected(r);
}

int run_read_input(struct run *r)
{
    int code = read_files(r);

    if (!code)
        code = choose_dtypes(r);
    if (!code)
        code = check_shapes(r);
    return code ? code : convert_all(r);
}
