// SPDX-License-Identifier: Apache-2.0
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cases.h"
#include "lib/options.h"
#include "lib/output.h"
#include "lib/shape.h"

enum {
    OPT_SHAPE, OPT_CASE, OPT_SWEEP, OPT_LIST, OPT_CAUSAL, OPT_WINDOW, OPT_MASK, OPT_BIAS,
    OPT_ALIBI, OPT_SOFTCAP, OPT_SINKS, OPT_KV_LENS, OPT_PACKED, OPT_PAGE, OPT_DTYPE, OPT_KV_DTYPE,
    OPT_RATIO, OPT_ALGO, OPT_KERNEL, OPT_PRECISION, OPT_DEVICE, OPT_SOFTMAX_ROWS, OPT_PLOT,
    OPT_ROOFLINE, OPT_TRACE, OPT_THREADS, OPT_RUNS, OPT_JSON, OPT_CSV, OPT_HELP, OPT_HELP_ALL,
    OPT_VERSION, OPT_COUNT
};

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_SHAPE] = {"shape", 0, TOOL_ARG_REQUIRED, true},
    [OPT_CASE] = {"case", 0, TOOL_ARG_REQUIRED, true},
    [OPT_SWEEP] = {"sweep", 0, TOOL_ARG_REQUIRED, true},
    [OPT_LIST] = {"list", 0, TOOL_ARG_NONE, false},
    [OPT_CAUSAL] = {"causal", 0, TOOL_ARG_NONE, false},
    [OPT_WINDOW] = {"window", 0, TOOL_ARG_REQUIRED, false},
    [OPT_MASK] = {"mask", 0, TOOL_ARG_OPTIONAL, false},
    [OPT_BIAS] = {"bias", 0, TOOL_ARG_OPTIONAL, false},
    [OPT_ALIBI] = {"alibi", 0, TOOL_ARG_NONE, false},
    [OPT_SOFTCAP] = {"softcap", 0, TOOL_ARG_REQUIRED, false},
    [OPT_SINKS] = {"sinks", 0, TOOL_ARG_NONE, false},
    [OPT_KV_LENS] = {"kv-lens", 0, TOOL_ARG_NONE, false},
    [OPT_PACKED] = {"packed", 0, TOOL_ARG_NONE, false},
    [OPT_PAGE] = {"page", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DTYPE] = {"dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KV_DTYPE] = {"kv-dtype", 0, TOOL_ARG_REQUIRED, false},
    [OPT_RATIO] = {"ratio", 0, TOOL_ARG_REQUIRED, true},
    [OPT_ALGO] = {"algo", 0, TOOL_ARG_REQUIRED, false},
    [OPT_KERNEL] = {"kernel", 0, TOOL_ARG_REQUIRED, false},
    [OPT_PRECISION] = {"precision", 0, TOOL_ARG_REQUIRED, false},
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, true},
    [OPT_SOFTMAX_ROWS] = {"softmax-rows", 0, TOOL_ARG_REQUIRED, false},
    [OPT_PLOT] = {"plot", 0, TOOL_ARG_REQUIRED, false},
    [OPT_ROOFLINE] = {"roofline", 0, TOOL_ARG_REQUIRED, false},
    [OPT_TRACE] = {"trace", 0, TOOL_ARG_REQUIRED, false},
    [OPT_THREADS] = {"threads", 0, TOOL_ARG_REQUIRED, false},
    [OPT_RUNS] = {"runs", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_CSV] = {"csv", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_HELP_ALL] = {"help-all", 0, TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

// What --sweep can vary.
enum { KEY_LEN, KEY_LEN_Q, KEY_LEN_KV, KEY_DIM, KEY_BATCH, KEYS };
static const char *const key_words[] = {"len", "len_q", "len_kv", "dim", "batch", NULL};

struct sweep {
    int key, count;
    int32_t value[BENCH_ROWS_MAX];
};

struct parser {
    struct bench_options *opt;
    struct sweep sweep[KEYS];
    int sweeps;
};

// ---- shapes and cases --------------------------------------------------------------------------

void bench_item_text(const struct bench_item *item, char *text, size_t size)
{
    if (item->algo->softmax)
        snprintf(text, size, "%lldx%lld", (long long)item->row->softmax_rows,
                 (long long)item->row->softmax_len);
    else
        tool_shape_text(&item->p, text, size);
}

// Numbers from 1 up with commas between them. Returns how many, or -1.
static int take_list(const char *value, int32_t *n, int max)
{
    int count = 0;

    for (const char *at = value;; at++) {
        char number[16] = "";
        size_t size = strcspn(at, ",");
        int64_t extent = -1;
        if (size < sizeof number)
            memcpy(number, at, size);
        if (count == max || !tool_parse_int(number, 1, INT32_MAX, &extent))
            return -1;
        n[count++] = (int32_t)extent;
        at += size;
        if (!*at)
            return count;
    }
}

static int add_row(struct bench_options *opt, const char *shown, const struct bench_row *row)
{
    if (opt->rows == BENCH_ROWS_MAX)
        return tool_fail(TOOL_USE, "option %s: more than %d problems", shown, BENCH_ROWS_MAX);
    opt->row[opt->rows++] = *row;
    return 0;
}

static int take_shape(struct bench_options *opt, const char *shown, const char *value)
{
    struct bench_row row = {.packed = false};
    const int code = tool_take_shape(shown, value, &row.p);

    return code ? code : add_row(opt, shown, &row);
}

// The timed memory is contiguous and holds normal numbers.
static bool can_time(const struct attn_case *c)
{
    return c->input == IN_NORMAL && (c->layout == LAY_BHSD || c->layout == LAY_BSHD) &&
           (c->mask_form == MASK_NONE || c->mask_form == MASK_CONTIGUOUS);
}

static struct bench_row row_of(const struct attn_case *c)
{
    struct bench_row row = {
        .p = {.batch = c->batch, .heads_q = c->heads_q, .heads_kv = c->heads_kv, .len_q = c->len_q,
              .len_kv = c->len_kv, .dim_qk = c->dim, .dim_v = c->dim, .causal = c->causal,
              .align = c->align, .has_scale = c->has_scale, .scale = c->scale,
              .mask = c->mask_form != MASK_NONE,
              .layout = c->layout == LAY_BSHD ? CLATTN_LAYOUT_BSHD : CLATTN_LAYOUT_BHSD},
        .mask_bcast = c->mask_bcast};
    snprintf(row.name, sizeof row.name, "%s", c->name);
    return row;
}

// The n-th of both lists, larger problems first; NULL past the end.
static const struct attn_case *case_at(int n)
{
    int large = 0, small = 0;
    const struct attn_case *const bench = attn_bench_cases(&large), *const all = attn_cases(&small);

    if (n < large)
        return &bench[n];
    return all && n - large < small ? &all[n - large] : NULL;
}

static int take_case(struct bench_options *opt, const char *shown, const char *value)
{
    int found = 0, code = 0;
    const struct attn_case *c, *last = NULL;

    for (int n = 0; code == 0 && (c = case_at(n)); n++) {
        if (fnmatch(value, c->name, 0) != 0)
            continue;
        last = c;
        if (!can_time(c))
            continue;
        const struct bench_row row = row_of(c);
        code = add_row(opt, shown, &row);
        found++;
    }
    if (code || found)
        return code;
    if (last)
        return tool_fail(TOOL_USE, "option %s: %s has strided memory or special numbers, which are "
                                   "not timed (see --list)", shown, last->name);
    return tool_fail(TOOL_USE, "option %s: no case is called '%s' (see --list)", shown, value);
}

static void print_case_json(const struct attn_case *c, const struct bench_row *row)
{
    const struct tool_problem *p = &row->p;
    json_t *o = json_object(), *shape = json_array();
    const int32_t extents[] = {p->batch, p->heads_q, p->heads_kv, p->len_q, p->len_kv, p->dim_qk,
                               p->dim_v};

    for (size_t i = 0; i < sizeof extents / sizeof *extents; i++)
        json_array_append_new(shape, json_integer(extents[i]));
    json_object_set_new(o, "case", json_string(c->name));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "causal", json_boolean(p->causal));
    json_object_set_new(o, "mask", json_boolean(p->mask));
    tool_json_print(o, true);
}

void bench_print_cases(bool json)
{
    static const struct tool_column columns[] = {{"CASE", false, false}, {"SHAPE", false, false},
                                                 {"CAUSAL", false, false}, {"MASK", false, false}};
    struct libscols_table *table = json ? NULL : tool_table_create(columns, 4, true);
    const struct attn_case *c;

    for (int n = 0; (c = case_at(n)); n++) {
        char shape[96];
        if (!can_time(c))
            continue;
        const struct bench_row row = row_of(c);
        if (json) {
            print_case_json(c, &row);
            continue;
        }
        tool_shape_text(&row.p, shape, sizeof shape);
        tool_table_row(table, (const char *[]){c->name, shape, c->causal ? "yes" : "no",
                                               c->mask_form ? "yes" : "no"}, 4);
    }
    tool_table_print(table);
}

// ---- sweeps ------------------------------------------------------------------------------------

// "256:16384" -> 256, 512, ... while not over; "100,200" -> these.
static bool take_values(struct sweep *s, const char *text)
{
    const char *colon = strchr(text, ':');
    char first[16] = "";
    int64_t from = 0, to = 0;

    if (!colon) {
        s->count = take_list(text, s->value, BENCH_ROWS_MAX);
        return s->count > 0;
    }
    if ((size_t)(colon - text) >= sizeof first)
        return false;
    memcpy(first, text, (size_t)(colon - text));
    if (!tool_parse_int(first, 1, INT32_MAX, &from) ||
        !tool_parse_int(colon + 1, from, INT32_MAX, &to))
        return false;
    for (; from <= to; from *= 2)
        s->value[s->count++] = (int32_t)from;
    return true;
}

static int take_sweep(struct parser *p, const char *shown, const char *value)
{
    const char *equals = strchr(value, '=');
    char key[16] = "";
    struct sweep *s = &p->sweep[p->sweeps];

    if (equals && (size_t)(equals - value) < sizeof key)
        memcpy(key, value, (size_t)(equals - value));
    const int word = tool_parse_word(key, key_words);
    if (word < 0)
        return tool_fail(TOOL_USE, "option %s: '%s' does not begin with len=, len_q=, len_kv=, "
                                   "dim= or batch=", shown, value);
    for (int i = 0; i < p->sweeps; i++) {
        if (p->sweep[i].key == word)
            return tool_fail(TOOL_USE, "option %s: %s is swept twice", shown, key);
    }
    *s = (struct sweep){.key = word};
    if (!take_values(s, equals + 1))
        return tool_fail(TOOL_USE, "option %s: '%s' is neither FROM:TO nor a list of whole numbers "
                                   "from 1 up", shown, value);
    p->sweeps++;
    return 0;
}

static void set_value(struct tool_problem *p, int key, int32_t value)
{
    if (key == KEY_LEN || key == KEY_LEN_Q)
        p->len_q = value;
    if (key == KEY_LEN || key == KEY_LEN_KV)
        p->len_kv = value;
    if (key == KEY_DIM)
        p->dim_qk = p->dim_v = value;
    if (key == KEY_BATCH)
        p->batch = value;
}

// Every row becomes one for each value of the sweep.
static int apply_sweep(struct bench_options *opt, const struct sweep *s)
{
    const int rows = opt->rows;
    struct bench_row *old = malloc((size_t)rows * sizeof *old);
    int code = old ? 0 : tool_fail(TOOL_DEVICE, "no memory for %d problems", rows);

    if (old)
        memcpy(old, opt->row, (size_t)rows * sizeof *old);
    opt->rows = 0;
    for (int i = 0; code == 0 && i < rows * s->count; i++) {
        struct bench_row row = old[i / s->count];
        set_value(&row.p, s->key, s->value[i % s->count]);
        code = add_row(opt, "--sweep", &row);
    }
    free(old);
    return code;
}

// ---- algorithms --------------------------------------------------------------------------------

// In the order of a table of all of them, along the line of ideas.
static const struct bench_algo family[] = {
    {"softmax_naive", 0, CLATTN_SOFTMAX_NAIVE},
    {"softmax_safe", 0, CLATTN_SOFTMAX_SAFE},
    {"softmax_online", 0, CLATTN_SOFTMAX_ONLINE},
    {"unfused", CLATTN_ALGO_UNFUSED, 0},
    {"two_loop", CLATTN_ALGO_TWO_LOOP, 0},
    {"fused_kv_outer", CLATTN_ALGO_FUSED_KV_OUTER, 0},
    {"fused", CLATTN_ALGO_FUSED, 0},
    {"split_kv", CLATTN_ALGO_SPLIT_KV, 0},
    {"host", CLATTN_ALGO_HOST, 0},
    // Not among "all": it is for checking, and takes minutes where the others take a second.
    {"reference", CLATTN_ALGO_REFERENCE, 0},
    {"auto", CLATTN_ALGO_AUTO, 0},
};
enum { FAMILY = sizeof family / sizeof *family, FAMILY_OF_ALL = FAMILY - 2 };

static int add_algo(void *user, const char *shown, const char *word)
{
    struct bench_options *opt = user;
    int n = 0;

    while (n < FAMILY && strcmp(word, family[n].name) != 0)
        n++;
    if (n == FAMILY && strcmp(word, "all") == 0)
        return tool_fail(TOOL_USE, "option %s: 'all' stands alone", shown);
    if (n == FAMILY)
        return tool_fail(TOOL_USE, "option %s: '%s' is none of all, auto, host, reference, fused, "
                                   "split_kv, two_loop, fused_kv_outer, unfused, softmax_naive, "
                                   "softmax_safe, softmax_online", shown, word);
    for (int i = 0; i < opt->algos; i++) {
        if (opt->algo[i].name == family[n].name)
            return tool_fail(TOOL_USE, "option %s: %s is there twice", shown, word);
    }
    opt->algo[opt->algos++] = family[n];
    return 0;
}

static int take_algos(struct bench_options *opt, const char *shown, const char *value)
{
    if (strcmp(value, "all") == 0) {
        memcpy(opt->algo, family, FAMILY_OF_ALL * sizeof *family);
        opt->algos = FAMILY_OF_ALL;
        return 0;
    }
    return tool_take_list(shown, value, add_algo, opt);
}

static int take_softmax_rows(struct bench_options *opt, const char *shown, const char *value)
{
    int32_t n[2];

    if (take_list(value, n, 2) != 2)
        return tool_fail(TOOL_USE, "option %s: '%s' is not ROWS,LEN in whole numbers from 1 up",
                         shown, value);
    opt->softmax_rows = n[0];
    opt->softmax_len = n[1];
    return 0;
}

// ---- the command line --------------------------------------------------------------------------

// The feature that an option adds to all rows; BENCH_PLAIN = none.
static enum bench_feature feature_of(int index)
{
    static const enum bench_feature features[OPT_COUNT] = {
        [OPT_CAUSAL] = BENCH_CAUSAL,   [OPT_WINDOW] = BENCH_WINDOW, [OPT_MASK] = BENCH_MASK,
        [OPT_BIAS] = BENCH_BIAS,       [OPT_ALIBI] = BENCH_ALIBI,   [OPT_SOFTCAP] = BENCH_SOFTCAP,
        [OPT_SINKS] = BENCH_SINKS,     [OPT_PACKED] = BENCH_PACKED, [OPT_PAGE] = BENCH_PAGE,
        [OPT_KV_LENS] = BENCH_KV_LENS, [OPT_DTYPE] = BENCH_DTYPE,
        [OPT_KV_DTYPE] = BENCH_KV_DTYPE};

    return features[index];
}

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct parser *parser = user;
    struct bench_options *opt = parser->opt;

    if (feature_of(index))
        return bench_take_feature(&opt->features, feature_of(index), shown, value, ',');

    switch (index) {
    case OPT_SHAPE: return take_shape(opt, shown, value);
    case OPT_CASE: return take_case(opt, shown, value);
    case OPT_SWEEP: return take_sweep(parser, shown, value);
    case OPT_LIST: opt->list = true; return 0;
    case OPT_RATIO: return bench_take_variants(opt, shown, value);
    case OPT_ALGO: return take_algos(opt, shown, value);
    case OPT_SOFTMAX_ROWS: return take_softmax_rows(opt, shown, value);
    case OPT_PLOT: opt->plot = value; return 0;
    case OPT_ROOFLINE: opt->roofline = value; return 0;
    case OPT_TRACE: opt->trace = value; return 0;
    case OPT_KERNEL: return tool_take_later_word(shown, value, tool_kernel_words, &opt->kernel);
    case OPT_PRECISION:
        return tool_take_word(shown, value, tool_precision_words, &opt->precision);
    case OPT_DEVICE:
        if (opt->devices == BENCH_DEVICES_MAX)
            return tool_fail(TOOL_USE, "option %s: more than %d devices", shown,
                             BENCH_DEVICES_MAX);
        opt->device[opt->devices++] = value;
        return 0;
    case OPT_THREADS: return tool_take_int32(shown, value, 1, 4096, &opt->threads);
    case OPT_RUNS: return tool_take_int32(shown, value, 1, BENCH_RUNS_MAX, &opt->runs);
    case OPT_JSON: opt->json = true; return 0;
    case OPT_CSV: opt->csv = true; return 0;
    case OPT_HELP: opt->help = 1; return 0;
    case OPT_HELP_ALL: opt->help = 2; return 0;
    default: opt->version = true; return 0;
    }
}

// What is the same for all rows, and what follows from the rest.
static int finish_row(const struct bench_options *opt, struct bench_row *row)
{
    const struct tool_problem *p = &row->p;

    bench_apply(&opt->features, row);
    row->softmax_rows = opt->softmax_rows ? opt->softmax_rows
                                          : (int64_t)p->batch * p->heads_q * p->len_q;
    row->softmax_len = opt->softmax_len ? opt->softmax_len : p->len_kv;
    if (!bench_counts(p))
        return tool_fail(TOOL_USE, "a problem of batch %d, %d queries and %d keys has 2^31 packed "
                                   "tokens or pages, or more", (int)p->batch, (int)p->len_q,
                         (int)p->len_kv);
    return 0;
}

// --kernel is for all that are named, but with "all" for those that have shapes.
static int check_algos(const struct bench_options *opt)
{
    bool softmax = false;

    for (int i = 0; i < opt->algos; i++) {
        const struct bench_algo *a = &opt->algo[i];
        const bool has_shapes = a->softmax || tool_algo_has_shapes(a->attention);
        softmax = softmax || a->softmax;
        if (opt->kernel > 0 && !has_shapes && opt->algos < FAMILY_OF_ALL)
            return tool_fail(TOOL_USE, "option --kernel does not go with --algo %s", a->name);
    }
    if (opt->softmax_rows && !softmax)
        return tool_fail(TOOL_USE, "option --softmax-rows: --algo names no softmax");
    return 0;
}

// Tables of variants are made for a terminal or as JSON.
static int check_ratio(const struct bench_options *opt)
{
    if (!opt->variants)
        return 0;
    if (opt->csv || opt->plot || opt->roofline || opt->trace)
        return tool_fail(TOOL_USE, "option %s does not go with --ratio",
                         opt->csv        ? "--csv"
                         : opt->plot     ? "--plot"
                         : opt->roofline ? "--roofline"
                                         : "--trace");
    for (int i = 0; i < opt->algos; i++) {
        if (opt->algo[i].softmax)
            return tool_fail(TOOL_USE, "option --ratio does not go with --algo %s",
                             opt->algo[i].name);
    }
    return 0;
}

// A line of a plot is one problem at several lengths.
static int check_plot(struct bench_options *opt, const struct parser *parser)
{
    const struct sweep *s = &parser->sweep[0];

    if (parser->sweeps == 1)
        opt->plot_key = key_words[s->key];
    if (!opt->plot)
        return 0;
    if (parser->sweeps != 1 || s->key > KEY_LEN_KV || s->count < 2)
        return tool_fail(TOOL_USE, "option --plot: needs --sweep of len, len_q or len_kv with two "
                                   "lengths at least, and no other sweep");
    if (opt->rows > 1)
        return tool_fail(TOOL_USE, "option --plot: %d shapes and cases; one can be drawn",
                         opt->rows);
    return 0;
}

int bench_options(int argc, char **argv, struct bench_options *opt)
{
    struct parser *parser = calloc(1, sizeof *parser);

    opt->row = calloc(BENCH_ROWS_MAX, sizeof *opt->row);
    if (!parser || !opt->row) {
        free(parser);
        return tool_fail(TOOL_DEVICE, "no memory for the options");
    }
    parser->opt = opt;
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, parser);
    if (code || opt->help || opt->version) {
        free(parser);
        return code;
    }
    if (opt->algos == 0)
        code = add_algo(opt, "--algo", "auto");
    if (!code)
        code = check_algos(opt);
    if (!code && opt->json && opt->csv)
        code = tool_fail(TOOL_USE, "option --csv does not go with --json");
    if (!code)
        code = check_ratio(opt);
    if (!code && opt->rows == 0) {
        take_shape(opt, "--shape", "1,8,8,2048,2048,64");
        if (!opt->plot && !opt->roofline)
            take_shape(opt, "--shape", "1,8,8,1024,1024,128");
    }
    if (!code)
        code = check_plot(opt, parser);
    for (int i = 0; !code && i < parser->sweeps; i++)
        code = apply_sweep(opt, &parser->sweep[i]);
    for (int i = 0; !code && i < opt->rows; i++)
        code = finish_row(opt, &opt->row[i]);
    free(parser);
    return code;
}
