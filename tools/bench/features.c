// SPDX-License-Identifier: Apache-2.0
// Features of the problems that are timed: by options for all of them, by words for --ratio.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lib/dtype.h"
#include "lib/options.h"

// ---- words -------------------------------------------------------------------------------------

// "qk": the axes with their full extents. *bcast receives the bits of the others.
static int take_axes(const char *shown, const char *value, uint32_t *bcast)
{
    static const char axes[] = "bhqk";

    *bcast = 0;
    if (!value)
        return 0;
    if (value[strspn(value, axes)] || !value[0])
        return tool_fail(TOOL_USE, "option %s: '%s' has letters other than b, h, q, k", shown,
                         value);
    for (int i = 0; i < 4; i++)
        *bcast |= strchr(value, axes[i]) ? 0u : 1u << i;
    return 0;
}

static int take_softcap(const char *shown, const char *value, float *out)
{
    double x = 30;

    if (value && (!tool_parse_number(value, &x) || (float)x <= 0))
        return tool_fail(TOOL_USE, "option %s: '%s' is not a finite number over 0", shown, value);
    *out = (float)x;
    return 0;
}

// How a feature is told: without a value, with one, or both.
enum value { NONE, OPTIONAL, NEEDED };

static const struct word {
    const char *name;
    enum bench_feature feature;
    enum value value;
    int dtype;
} words[] = {
    {"plain", BENCH_PLAIN, NONE, 0},
    {"causal", BENCH_CAUSAL, NONE, 0},
    {"window", BENCH_WINDOW, NEEDED, 0},
    {"mask", BENCH_MASK, OPTIONAL, 0},
    {"bias", BENCH_BIAS, OPTIONAL, 0},
    {"alibi", BENCH_ALIBI, NONE, 0},
    {"softcap", BENCH_SOFTCAP, OPTIONAL, 0},
    {"sinks", BENCH_SINKS, NONE, 0},
    {"kv-lens", BENCH_KV_LENS, NONE, 0},
    {"packed", BENCH_PACKED, NONE, 0},
    {"page", BENCH_PAGE, NEEDED, 0},
    {"f16", BENCH_DTYPE, NONE, CLATTN_DTYPE_F16},
    {"bf16", BENCH_DTYPE, NONE, CLATTN_DTYPE_BF16},
    {"kv-f16", BENCH_KV_DTYPE, NONE, CLATTN_DTYPE_F16},
    {"kv-bf16", BENCH_KV_DTYPE, NONE, CLATTN_DTYPE_BF16},
    {"int8", BENCH_KV_DTYPE, NONE, CLATTN_DTYPE_I8},
};

int bench_take_feature(struct bench_features *f, enum bench_feature feature, const char *shown,
                       const char *value, char between)
{
    switch (feature) {
    case BENCH_CAUSAL: f->causal = true; return 0;
    case BENCH_WINDOW:
        f->window = true;
        return tool_take_window(shown, value, between, &f->left, &f->right);
    case BENCH_MASK: f->mask = true; return take_axes(shown, value, &f->mask_bcast);
    case BENCH_BIAS: f->bias = true; return take_axes(shown, value, &f->bias_bcast);
    case BENCH_ALIBI: f->alibi = true; return 0;
    case BENCH_SOFTCAP: return take_softcap(shown, value, &f->softcap);
    case BENCH_SINKS: f->sinks = true; return 0;
    case BENCH_KV_LENS: f->kv_lens = true; return 0;
    case BENCH_PACKED: f->packed = true; return 0;
    case BENCH_PAGE: return tool_take_int32(shown, value, 1, 256, &f->page);
    case BENCH_DTYPE:
        f->has_dtype = true;
        return tool_take_word(shown, value, tool_float_words, &f->dtype);
    case BENCH_KV_DTYPE:
        f->has_kv_dtype = true;
        return tool_take_word(shown, value, tool_dtype_words, &f->kv_dtype);
    default: return 0; // BENCH_PLAIN
    }
}

// "window=256:0": one part of a variant.
static int take_word(struct bench_features *f, const char *shown, const char *text)
{
    const char *equals = strchr(text, '=');
    const size_t size = equals ? (size_t)(equals - text) : strlen(text);
    const char *value = equals ? equals + 1 : NULL;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const struct word *w = &words[i];
        if (strlen(w->name) != size || strncmp(w->name, text, size) != 0)
            continue;
        if ((value && w->value == NONE) || (!value && w->value == NEEDED))
            return tool_fail(TOOL_USE, "option %s: %s %s", shown, w->name,
                             value ? "takes no value" : "needs a value");
        if (w->dtype)
            value = tool_dtype_words[w->dtype];
        return bench_take_feature(f, w->feature, shown, value, ':');
    }
    return tool_fail(TOOL_USE, "option %s: '%s' is none of plain, causal, window=L:R, mask, bias, "
                               "alibi, softcap, sinks, kv-lens, packed, page=N, f16, bf16, kv-f16, "
                               "kv-bf16, int8", shown, text);
}

// "causal+f16": *out receives all its parts.
static int take_variant(struct bench_variant *out, const char *shown, const char *text, size_t size)
{
    char copy[BENCH_VARIANT_TEXT] = "";
    int code = 0;

    if (size >= sizeof copy)
        return tool_fail(TOOL_USE, "option %s: '%.*s' is too long", shown, (int)size, text);
    memcpy(copy, text, size);
    *out = (struct bench_variant){.name = ""};
    memcpy(out->name, copy, sizeof copy);
    for (char *at = copy, *next = copy; !code && next; at = next) {
        next = strchr(at, '+');
        if (next)
            *next++ = 0;
        code = take_word(&out->features, shown, at);
    }
    return code;
}

int bench_take_variants(struct bench_options *opt, const char *shown, const char *value)
{
    int code = 0;

    for (const char *at = value; !code; at++) {
        const size_t size = strcspn(at, ",");
        if (opt->variants == BENCH_VARIANTS_MAX)
            return tool_fail(TOOL_USE, "option %s: more than %d variants", shown,
                             BENCH_VARIANTS_MAX);
        code = take_variant(&opt->variant[opt->variants++], shown, at, size);
        at += size;
        if (!*at)
            break;
    }
    return code;
}

// ---- problems ----------------------------------------------------------------------------------

void bench_apply(const struct bench_features *f, struct bench_row *row)
{
    struct tool_problem *p = &row->p;

    p->causal = p->causal || f->causal;
    if (f->window) {
        p->window = true;
        p->window_left = f->left;
        p->window_right = f->right;
    }
    if (f->mask && !p->mask)
        row->mask_bcast = f->mask_bcast;
    if (f->bias && !p->bias)
        row->bias_bcast = f->bias_bcast;
    p->mask = p->mask || f->mask;
    p->bias = p->bias || f->bias;
    p->alibi = p->alibi || f->alibi;
    p->sinks = p->sinks || f->sinks;
    p->softcap = f->softcap > 0 ? f->softcap : p->softcap;
    p->kv_lens = p->kv_lens || f->kv_lens;
    p->page_size = f->page ? f->page : p->page_size;
    row->packed = row->packed || f->packed;
    if (f->has_dtype)
        p->dtype_q = p->dtype_kv = p->dtype_o = f->dtype;
    if (f->has_kv_dtype)
        p->dtype_kv = f->kv_dtype;
    bench_finish(row);
}

// A row's length of sequence b: the whole one of the first, between a half and the whole of others.
static int32_t draw(int32_t length, int32_t b)
{
    uint64_t x = ((uint64_t)b + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    const double part = (double)(x >> 40) / 16777216.0;
    return b == 0 ? length : length - (int32_t)(part * (length / 2 + 1));
}

// Tokens before sequence b. One sequence after the other is asked for, so the last sum is kept.
struct tokens {
    int32_t length, b;
    int64_t sum;
};

static int64_t tokens_before(struct tokens *last, int32_t length, int32_t b)
{
    if (last->length != length || last->b > b)
        *last = (struct tokens){.length = length};
    for (; last->b < b; last->b++)
        last->sum += draw(length, last->b);
    return last->sum;
}

static struct tokens queries, keys;

struct bench_sequence bench_sequence(const struct tool_problem *p, int32_t b)
{
    const bool ragged_kv = p->packed_kv || p->kv_lens;
    struct bench_sequence s = {.len_q = p->packed_q ? draw(p->len_q, b) : p->len_q,
                               .len_kv = ragged_kv ? draw(p->len_kv, b) : p->len_kv};

    s.first_q = p->packed_q ? tokens_before(&queries, p->len_q, b) : 0;
    s.first_kv = p->packed_kv ? tokens_before(&keys, p->len_kv, b) : 0;
    s.off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : (int64_t)s.len_kv - s.len_q;
    return s;
}

void bench_range(const struct tool_problem *p, const struct bench_sequence *s, int64_t i,
                 int64_t *first, int64_t *last)
{
    const int64_t at = i + s->off;

    *first = p->window && p->window_left >= 0 && at - p->window_left > 0 ? at - p->window_left : 0;
    *last = s->len_kv - 1;
    if (p->window && p->window_right >= 0 && at + p->window_right < *last)
        *last = at + p->window_right;
    if (p->causal && at < *last)
        *last = at;
}

// As the library counts tokens and pages.
static int32_t count(int64_t n)
{
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

void bench_finish(struct bench_row *row)
{
    struct tool_problem *p = &row->p;
    const int32_t extent[4] = {p->batch, p->heads_q, p->len_q, p->len_kv};

    for (int i = 0; i < 4; i++) {
        p->mask_extent[i] = row->mask_bcast & 1u << i ? 1 : extent[i];
        p->bias_extent[i] = row->bias_bcast & 1u << i ? 1 : extent[i];
    }
    // Keys in pages have no place of their own for packed sequences, but lengths.
    p->packed_q = row->packed;
    p->packed_kv = row->packed && !p->page_size;
    p->kv_lens = p->kv_lens || (row->packed && p->page_size);
    p->total_q = p->packed_q ? count(tokens_before(&queries, p->len_q, p->batch)) : 0;
    p->total_kv = p->packed_kv ? count(tokens_before(&keys, p->len_kv, p->batch)) : 0;
    p->max_pages =
        p->page_size ? count(((int64_t)p->len_kv + p->page_size - 1) / p->page_size) : 0;
    p->num_pages = count((int64_t)p->max_pages * p->batch);
}

bool bench_counts(const struct tool_problem *p)
{
    return p->total_q < INT32_MAX && p->total_kv < INT32_MAX && p->num_pages < INT32_MAX;
}
