// SPDX-License-Identifier: Apache-2.0
// The text of a tuning file, read and written. docs/planner.md has an example.
#include "tune.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "util/format.h"

// ---- words -------------------------------------------------------------------------------------

// In the order of the enums, of which "" is not used here.
static const char *const algo_words[] = {"",         "fused",          "",         "",
                                         "two_loop", "fused_kv_outer", "split_kv", NULL};
static const char *const kernel_words[] = {"", "group", "vector", "subgroup", NULL};
static const char *const dtype_words[] = {"f32", "f16", "bf16", "int8", NULL};
static const char *const page_words[] = {"no", "yes", NULL};

static const struct {
    const char *word;
    int32_t kind;
} masks[] = {{"none", CLA_MASK_NONE}, {"window", CLA_MASK_WINDOW}, {"general", CLA_MASK_GENERAL}};
enum { MASKS = sizeof masks / sizeof *masks };

// The numbers of a tile.
static const struct {
    const char *word;
    size_t at;
} parts[] = {
    {"tile_q", offsetof(clattn_tile, tile_q)},   {"tile_k", offsetof(clattn_tile, tile_k)},
    {"items_q", offsetof(clattn_tile, items_q)}, {"items_k", offsetof(clattn_tile, items_k)},
    {"chunk_d", offsetof(clattn_tile, chunk_d)}, {"width", offsetof(clattn_tile, width)},
    {"vecs_q", offsetof(clattn_tile, vecs_q)},   {"block_k", offsetof(clattn_tile, block_k)},
    {"block_d", offsetof(clattn_tile, block_d)}};
enum { PARTS = sizeof parts / sizeof *parts };

static int32_t *part_of(clattn_tile *t, int n)
{
    return (int32_t *)(void *)((char *)t + parts[n].at);
}

// ---- reading -----------------------------------------------------------------------------------

// What is left of a line.
struct line {
    const char *at, *end;
    char *why;
};

CLA_PRINTF(2, 3)
static bool no(const struct line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(l->why, CLA_TUNE_WHY, format, args);
    va_end(args);
    return false;
}

static void skip_blanks(struct line *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\t'))
        l->at++;
}

// The next word; an empty one at the end of the line. False with a reason where it is too long.
static bool take_word(struct line *l, char word[32])
{
    size_t n = 0;
    skip_blanks(l);
    for (; l->at < l->end && *l->at != ' ' && *l->at != '\t'; l->at++) {
        if (n >= 31)
            return no(l, "a word of 32 characters or more");
        word[n++] = *l->at;
    }
    word[n] = '\0';
    return true;
}

static bool expect(struct line *l, const char *want)
{
    char word[32];
    return take_word(l, word) &&
           (strcmp(word, want) == 0 || no(l, "\"%s\" where \"%s\" belongs", word, want));
}

// Digits from *text on, which moves behind them. False where there are none or too many.
static bool digits(const char **text, int32_t *out)
{
    int32_t x = 0;
    int n = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        if (++n <= 9)
            x = 10 * x + (**text - '0');
    *out = x;
    return n >= 1 && n <= 9;
}

static bool take_number(struct line *l, const char *what, int32_t least, int32_t *out)
{
    char word[32];
    const char *text = word;
    return take_word(l, word) && ((digits(&text, out) && !*text && *out >= least) ||
                                  no(l, "%s is \"%s\", no whole number from %d up", what, word,
                                     (int)least));
}

// "64-127" or "64-*".
static bool take_range(struct line *l, const char *what, int32_t *lo, int32_t *hi)
{
    char word[32];
    const char *text = word;
    *hi = INT32_MAX;
    if (!expect(l, what) || !take_word(l, word))
        return false;
    bool good = digits(&text, lo) && *text == '-';
    text += good;
    if (good && *text == '*')
        text++;
    else
        good = good && digits(&text, hi);
    return (good && !*text && *lo <= *hi) ||
           no(l, "%s are \"%s\", no range such as 64-127 or 64-*", what, word);
}

// "1.134", in thousandths, without the locale's idea of numbers.
static bool take_ratio(struct line *l, int32_t *permille)
{
    char word[32];
    const char *text = word;
    int32_t whole = 0, part = 0;
    if (!take_word(l, word))
        return false;
    bool good = digits(&text, &whole) && whole <= 1000;
    if (good && *text == '.') {
        const char *first = ++text;
        good = digits(&text, &part) && text - first <= 3;
        for (ptrdiff_t n = text - first; good && n < 3; n++)
            part *= 10;
    }
    *permille = good ? 1000 * whole + part : 0;
    return (good && !*text && *permille > 0 && *permille <= 1000000) ||
           no(l, "the ratio is \"%s\", no number from 0.001 to 1000", word);
}

static int find_word(const char *word, size_t length, const char *const *words)
{
    for (int n = 0; words[n]; n++)
        if (words[n][0] && strlen(words[n]) == length && memcmp(words[n], word, length) == 0)
            return n;
    return -1;
}

static bool take_enum(struct line *l, const char *what, const char *const *words, int32_t *out)
{
    char word[32];
    if (!take_word(l, word))
        return false;
    *out = find_word(word, strlen(word), words);
    return *out >= 0 || no(l, "\"%s\" is no %s", word, what);
}

// "f32/int8/f32", of Q, of K and V, and of O.
static bool take_types(struct line *l, struct cla_tune_key *k)
{
    int32_t *const to[3] = {&k->dtype_q, &k->dtype_kv, &k->dtype_o};
    char word[32];
    const char *text = word;
    if (!expect(l, "types") || !take_word(l, word))
        return false;
    bool good = true;
    for (int i = 0; good && i < 3; i++) {
        const size_t n = strcspn(text, "/");
        *to[i] = find_word(text, n, dtype_words);
        text += n;
        good = *to[i] >= 0 && *text == (i < 2 ? '/' : '\0') &&
               (i == 1 || *to[i] != CLATTN_DTYPE_I8);
        text += i < 2 && good;
    }
    return good ||
           no(l, "types are \"%s\", not those of Q, K and V, and O as in f32/f32/f32", word);
}

// "64/64".
static bool take_dims(struct line *l, struct cla_tune_key *k)
{
    char word[32];
    const char *text = word;
    if (!expect(l, "dims") || !take_word(l, word))
        return false;
    bool good = digits(&text, &k->dim_qk) && *text == '/';
    text += good;
    good = good && digits(&text, &k->dim_v) && !*text && k->dim_qk >= 1 && k->dim_qk <= 576 &&
           k->dim_v >= 1 && k->dim_v <= 576;
    return good || no(l, "dims are \"%s\", not those of Q and of V as in 64/64", word);
}

static bool take_mask(struct line *l, int32_t *kind)
{
    char word[32];
    if (!expect(l, "mask") || !take_word(l, word))
        return false;
    for (int n = 0; n < MASKS; n++)
        if (strcmp(word, masks[n].word) == 0) {
            *kind = masks[n].kind;
            return true;
        }
    return no(l, "mask is \"%s\", not none, window or general", word);
}

// "tile vector tile_q 24 ... ratio 1.134", each number once, or "planner".
static bool take_tile(struct line *l, struct cla_tune_row *row)
{
    char word[32];
    bool given[PARTS] = {false};
    row->permille = 1000;
    if (!take_word(l, word))
        return false;
    if (strcmp(word, "planner") == 0)
        return true;
    if (strcmp(word, "tile") != 0)
        return no(l, "\"%s\" where \"tile\" or \"planner\" belongs", word);
    if (!take_enum(l, "kernel shape", kernel_words, &row->tile.kernel))
        return false;
    for (;;) {
        int n = 0;
        if (!take_word(l, word))
            return false;
        if (strcmp(word, "ratio") == 0)
            return take_ratio(l, &row->permille);
        while (n < PARTS && strcmp(word, parts[n].word) != 0)
            n++;
        if (n == PARTS || given[n])
            return no(l, n == PARTS ? "\"%s\" is no number of a tile" : "%s comes twice", word);
        given[n] = true;
        if (!take_number(l, parts[n].word, 0, part_of(&row->tile, n)))
            return false;
    }
}

static bool take_row(struct line *l, struct cla_tune *tune, bool builtin)
{
    struct cla_tune_row row = {.device = tune->devices - 1, .builtin = builtin};
    struct cla_tune_key *k = &row.key;
    if (!take_enum(l, "algorithm with tiles", algo_words, &k->algo) || !take_dims(l, k) ||
        !take_types(l, k) || !take_mask(l, &k->mask_kind) || !expect(l, "pages") ||
        !take_enum(l, "yes or no", page_words, &k->paged) ||
        !take_range(l, "rows", &k->rows_lo, &k->rows_hi) ||
        !take_range(l, "keys", &k->keys_lo, &k->keys_hi) || !take_tile(l, &row))
        return false;
    if (tune->devices == 0)
        return no(l, "a row before the first device");
    return cla_tune_add_row(tune, &row) || no(l, "more than %d rows, or no memory", CLA_TUNE_ROWS);
}

// A text in quotes, in which \ stands before \ and ".
static bool take_text(struct line *l, char *out, size_t size)
{
    size_t n = 0;
    skip_blanks(l);
    if (l->at == l->end || *l->at != '"')
        return no(l, "a text in quotes is missing");
    for (l->at++; l->at < l->end && *l->at != '"'; l->at++) {
        if (*l->at == '\\' && ++l->at == l->end)
            break;
        if (n + 1 >= size)
            return no(l, "a text of %zu bytes or more", size);
        out[n++] = *l->at;
    }
    if (l->at == l->end)
        return no(l, "a text without its closing quote");
    l->at++;
    out[n] = '\0';
    return true;
}

static bool take_device(struct line *l, struct cla_tune *tune)
{
    struct cla_tune_device d;
    memset(&d, 0, sizeof d);
    if (!expect(l, "device") || !take_text(l, d.platform, sizeof d.platform) ||
        !take_text(l, d.name, sizeof d.name) || !take_text(l, d.driver, sizeof d.driver) ||
        !take_text(l, d.library, sizeof d.library))
        return false;
    return cla_tune_add_device(tune, &d) ||
           no(l, "more than %d devices, or no memory", CLA_TUNE_ROWS);
}

static bool take_head(struct line *l)
{
    int32_t format = 0;
    return expect(l, "clattn-tune") && take_number(l, "the format", 1, &format) &&
           (format == CLA_TUNE_FORMAT ||
            no(l, "format %d, this library reads %d", (int)format, CLA_TUNE_FORMAT));
}

static bool take_line(struct line *l, struct cla_tune *tune, bool builtin, bool first)
{
    static const char device[] = {'d', 'e', 'v', 'i', 'c', 'e'};
    for (const char *c = l->at; c < l->end; c++)
        if ((unsigned char)*c < 0x20 && *c != '\t')
            return no(l, "a control character");
    skip_blanks(l);
    if (!first && (l->at == l->end || *l->at == '#'))
        return true;
    const bool names = (size_t)(l->end - l->at) >= sizeof device &&
                       memcmp(l->at, device, sizeof device) == 0;
    if (!(first ? take_head(l) : names ? take_device(l, tune) : take_row(l, tune, builtin)))
        return false;
    skip_blanks(l);
    return l->at == l->end || no(l, "something follows behind the end");
}

bool cla_tune_parse(const char *text, size_t size, bool builtin, struct cla_tune *tune,
                    char why[CLA_TUNE_WHY])
{
    char reason[CLA_TUNE_WHY] = "";
    const char *at = text, *end = text + size;
    int number = 1;
    snprintf(why, CLA_TUNE_WHY, "it is empty");
    if (size == 0)
        return false;
    for (; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        struct line l = {at, stop ? stop : end, reason};
        at = stop ? stop + 1 : end;
        if (l.end - l.at >= CLA_TUNE_LINE)
            no(&l, "%d bytes or more in a line", CLA_TUNE_LINE);
        if (l.end > l.at && l.end[-1] == '\r')
            l.end--;
        if (reason[0] || !take_line(&l, tune, builtin, number == 1)) {
            snprintf(why, CLA_TUNE_WHY, "line %d: %.200s", number, reason);
            return false;
        }
    }
    why[0] = '\0';
    return true;
}

// ---- writing -----------------------------------------------------------------------------------

struct text {
    char *data;
    size_t used, room;
};

CLA_PRINTF(2, 3)
static void put(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->data + t->used, t->room - t->used, format, args);
    va_end(args);
    if (n > 0)
        t->used += (size_t)n;
}

static void put_text(struct text *t, const char *s)
{
    put(t, " \"");
    for (; *s; s++)
        put(t, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
    put(t, "\"");
}

static void put_range(struct text *t, const char *what, int32_t lo, int32_t hi)
{
    if (hi == INT32_MAX)
        put(t, " %s %d-*", what, (int)lo);
    else
        put(t, " %s %d-%d", what, (int)lo, (int)hi);
}

static void put_row(struct text *t, const struct cla_tune_row *row)
{
    const struct cla_tune_key *k = &row->key;
    const char *mask = masks[0].word;
    for (int n = 0; n < MASKS; n++)
        if (masks[n].kind == k->mask_kind)
            mask = masks[n].word;
    put(t, "%s dims %d/%d types %s/%s/%s mask %s pages %s", algo_words[k->algo], (int)k->dim_qk,
        (int)k->dim_v, dtype_words[k->dtype_q], dtype_words[k->dtype_kv], dtype_words[k->dtype_o],
        mask, page_words[k->paged]);
    put_range(t, "rows", k->rows_lo, k->rows_hi);
    put_range(t, "keys", k->keys_lo, k->keys_hi);
    if (row->tile.kernel == CLATTN_KERNEL_AUTO) {
        put(t, " planner\n");
        return;
    }
    clattn_tile tile = row->tile;
    put(t, " tile %s", kernel_words[tile.kernel]);
    for (int n = 0; n < PARTS; n++)
        if (*part_of(&tile, n))
            put(t, " %s %d", parts[n].word, (int)*part_of(&tile, n));
    put(t, " ratio %d.%03d\n", (int)(row->permille / 1000), (int)(row->permille % 1000));
}

static const char head[] =
    "clattn-tune %d\n"
    "# Tiles that were measured, a line for each kind of problem. Written by clattn-tune, read by\n"
    "# the clattn library, which passes over what a device or a kernel can't do. Lines may be\n"
    "# changed or removed; comments are not kept.\n"
    "#\n"
    "# device \"PLATFORM\" \"DEVICE\" \"DRIVER VERSION\" \"CLATTN VERSION\", and below it\n"
    "# ALGORITHM dims QK/V types Q/KV/O mask none|window|general pages no|yes rows A-B keys A-B,\n"
    "# then tile SHAPE NUMBERS ratio (time of the planner's choice by that of the tile), or\n"
    "# planner where nothing was faster than its choice\n";

char *cla_tune_format(const struct cla_tune *tune, size_t *size)
{
    struct text t = {.room = sizeof head + 64};
    t.room += (size_t)tune->devices * CLA_TUNE_LINE + (size_t)tune->rows * (CLA_TUNE_LINE / 2);
    t.data = malloc(t.room);
    if (!t.data)
        return NULL;
    put(&t, head, CLA_TUNE_FORMAT);
    for (int d = 0; d < tune->devices; d++) {
        bool named = false;
        for (int r = 0; r < tune->rows; r++) {
            if (tune->row[r].device != d || tune->row[r].builtin)
                continue;
            if (!named) {
                put(&t, "\ndevice");
                put_text(&t, tune->device[d].platform);
                put_text(&t, tune->device[d].name);
                put_text(&t, tune->device[d].driver);
                put_text(&t, tune->device[d].library);
                put(&t, "\n");
                named = true;
            }
            put_row(&t, &tune->row[r]);
        }
    }
    *size = t.used;
    return t.data;
}
