// SPDX-License-Identifier: Apache-2.0
// Each distinct (dim, mask kind) is one kernel build, which takes far longer than a run: the
// families below therefore meet again and again on the few dimensions of `core_dims`, and all
// other dimensions appear with one kind of mask each.
#include "cases.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clattn/attention.h"

enum { CASES_MAX = 512 };
static struct attn_case list[CASES_MAX];
static int list_count;

// A dimension that fills no vector, and one that does.
static const int32_t core_dims[] = {20, 64};

// Both sides of every tile edge that a planner is likely to take.
static const int32_t lengths[] = {1,  2,  3,  5,  15,  16,  17,  31,  32,  33,  63,
                                  64, 65, 95, 96, 97, 127, 128, 129, 191, 193, 257};

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

// Kinds of mask, as the kernels are compiled for them.
enum kind { KIND_NONE, KIND_CAUSAL, KIND_MASK, KIND_COUNT };

CASE_PRINTF(2, 3)
static struct attn_case *add(struct attn_case base, const char *format, ...)
{
    static struct attn_case spill; // takes what is over CASES_MAX; attn_cases() then fails
    struct attn_case *c = list_count < CASES_MAX ? &list[list_count] : &spill;
    list_count++;
    *c = base;
    va_list ap;
    va_start(ap, format);
    vsnprintf(c->name, sizeof c->name, format, ap);
    va_end(ap);
    c->seed = 1000u + (uint64_t)list_count;
    return c;
}

static struct attn_case shape(int32_t dim, int32_t batch, int32_t heads_q, int32_t heads_kv,
                              int32_t len_q, int32_t len_kv, enum kind kind)
{
    struct attn_case c = {.dim = dim,
                          .batch = batch,
                          .heads_q = heads_q,
                          .heads_kv = heads_kv,
                          .len_q = len_q,
                          .len_kv = len_kv,
                          .causal = kind == KIND_CAUSAL,
                          .mask_form = kind == KIND_MASK ? MASK_CONTIGUOUS : MASK_NONE,
                          .level = LEVEL_FULL};
    return c;
}

// Every class of head dimension, each with one kind of mask. The kinds are those that other tests
// use with the same dimension, where there are such.
static void add_dims(void)
{
    static const struct {
        int32_t dim;
        enum kind kind;
        int level;
    } rows[] = {
        {1, KIND_NONE, LEVEL_MEDIUM},   {2, KIND_CAUSAL, LEVEL_FULL},
        {3, KIND_NONE, LEVEL_MEDIUM},   {4, KIND_MASK, LEVEL_FULL},
        {5, KIND_NONE, LEVEL_MEDIUM},   {7, KIND_MASK, LEVEL_FULL},
        {8, KIND_CAUSAL, LEVEL_MEDIUM}, {9, KIND_CAUSAL, LEVEL_FULL},
        {12, KIND_MASK, LEVEL_FULL},    {16, KIND_NONE, LEVEL_SMALL},
        {16, KIND_MASK, LEVEL_SMALL},   {20, KIND_NONE, LEVEL_MEDIUM},
        {24, KIND_CAUSAL, LEVEL_SMALL}, {31, KIND_MASK, LEVEL_MEDIUM},
        {32, KIND_NONE, LEVEL_MEDIUM},  {33, KIND_CAUSAL, LEVEL_FULL},
        {40, KIND_NONE, LEVEL_MEDIUM},  {48, KIND_CAUSAL, LEVEL_FULL},
        {59, KIND_MASK, LEVEL_FULL},    {64, KIND_NONE, LEVEL_MEDIUM},
        {65, KIND_CAUSAL, LEVEL_FULL},  {72, KIND_NONE, LEVEL_MEDIUM},
        {80, KIND_NONE, LEVEL_MEDIUM},  {96, KIND_NONE, LEVEL_MEDIUM},
        {100, KIND_MASK, LEVEL_FULL},   {112, KIND_CAUSAL, LEVEL_FULL},
        {127, KIND_MASK, LEVEL_MEDIUM}, {128, KIND_MASK, LEVEL_FULL},
        {129, KIND_CAUSAL, LEVEL_FULL}, {160, KIND_MASK, LEVEL_FULL},
        {192, KIND_CAUSAL, LEVEL_FULL}, {200, KIND_NONE, LEVEL_FULL},
        {255, KIND_MASK, LEVEL_FULL},   {256, KIND_NONE, LEVEL_SMALL},
        {320, KIND_CAUSAL, LEVEL_FULL}, {512, KIND_NONE, LEVEL_FULL},
        {576, KIND_MASK, LEVEL_FULL},
    };
    int full = 0;
    for (int n = 0; n < COUNT(rows); n++) {
        const int32_t d = rows[n].dim;
        const bool small = rows[n].level == LEVEL_SMALL;
        struct attn_case *c = add(shape(d, 2, 2, 2, 5, small ? 40 : 130, rows[n].kind),
                                  "dim-%d-short-%d", d, n);
        c->level = rows[n].level;
        c->share = rows[n].level == LEVEL_FULL ? 1 + full++ % 4 : 0;
        const int32_t share = c->share;
        c = add(shape(d, 1, 4, 2, 37, 75, rows[n].kind), "dim-%d-%d", d, n);
        c->level = small ? LEVEL_MEDIUM : rows[n].level;
        c->share = share;
    }
    for (int n = 0; n < COUNT(core_dims); n++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            add(shape(core_dims[n], 3, 2, 1, 33, 66, (enum kind)kind), "core-%d-%d", core_dims[n],
                kind)
                ->level = LEVEL_MEDIUM;
}

// V with channels of its own: the pairs of multi-head latent attention, one above the other, and
// both sides of the chunks and vectors.
static void add_dims_v(void)
{
    static const struct {
        int32_t dim, dim_v;
        enum kind kind;
        int level;
    } rows[] = {
        {24, 16, KIND_CAUSAL, LEVEL_SMALL}, {16, 72, KIND_NONE, LEVEL_MEDIUM},
        {5, 33, KIND_MASK, LEVEL_FULL},     {100, 1, KIND_NONE, LEVEL_FULL},
        {192, 128, KIND_CAUSAL, LEVEL_FULL}, {64, 320, KIND_MASK, LEVEL_FULL},
        {576, 512, KIND_NONE, LEVEL_FULL},
    };
    for (int n = 0; n < COUNT(rows); n++) {
        const int32_t d = rows[n].dim, e = rows[n].dim_v;
        struct attn_case *c = add(shape(d, 2, 4, 2, 5, 40, rows[n].kind), "dim-%d-%d-short", d, e);
        c->dim_v = e;
        c->level = rows[n].level;
        c = add(shape(d, 1, 2, 2, 37, 75, rows[n].kind), "dim-%d-%d", d, e);
        c->dim_v = e;
        c->level = rows[n].level == LEVEL_SMALL ? LEVEL_MEDIUM : rows[n].level;
        c->layout = n % 2 ? LAY_BSHD : LAY_PADDED;
        c = add(shape(d, 1, 2, 1, 9, 70, rows[n].kind), "dim-%d-%d-v-partly-nan", d, e);
        c->dim_v = e;
        c->level = rows[n].level == LEVEL_SMALL ? LEVEL_MEDIUM : rows[n].level;
        c->input = rows[n].kind == KIND_NONE ? IN_LARGE : IN_V_PARTLY_NAN;
    }
}

static void add_lengths(void)
{
    for (int n = 0; n < COUNT(lengths); n++) {
        // 9 has no factor in common with 22, so each length comes once on either side.
        const int32_t q = lengths[n], k = lengths[(n * 9 + 4) % COUNT(lengths)];
        add(shape(64, 1, 1, 1, q, k, KIND_NONE), "len-%dx%d-d64", q, k)->level = LEVEL_MEDIUM;
        add(shape(20, 1, 2, 1, k, q, KIND_CAUSAL), "len-%dx%d-d20-causal", k, q)->level =
            n % 2 ? LEVEL_MEDIUM : LEVEL_FULL;
        add(shape(128, 1, 1, 1, q, k, KIND_MASK), "len-%dx%d-d128-mask", q, k);
        add(shape(20, 2, 1, 1, q, q, KIND_NONE), "len-%dx%d-d20", q, q);
    }
    add(shape(24, 1, 2, 2, 3, 33, KIND_CAUSAL), "len-3x33-d24-causal")->level = LEVEL_SMALL;
    add(shape(16, 1, 2, 1, 17, 16, KIND_MASK), "len-17x16-d16-mask")->level = LEVEL_SMALL;
    add(shape(16, 1, 1, 1, 33, 65, KIND_NONE), "len-33x65-d16")->level = LEVEL_SMALL;
}

static void add_groups(void)
{
    static const int32_t groups[] = {1, 2, 3, 4, 8};
    static const int32_t lens[][2] = {{1, 97}, {5, 64}, {17, 33}, {65, 129}};
    for (int n = 0; n < COUNT(groups); n++)
        for (int m = 0; m < COUNT(lens); m++) {
            const int32_t g = groups[n], q = lens[m][0], k = lens[m][1];
            const int32_t kv = 1 + (n + m) % 2, batch = 1 + (n + m) % 3;
            add(shape(64, batch, g * kv, kv, q, k, KIND_NONE), "group-%d-%dx%d", g, q, k)->level =
                m == 1 ? LEVEL_MEDIUM : LEVEL_FULL;
            add(shape(20, batch, g * kv, kv, q, k, KIND_CAUSAL), "group-%d-%dx%d-causal", g, q, k)
                ->level = m != 0 ? LEVEL_MEDIUM : LEVEL_FULL;
        }
    add(shape(16, 2, 6, 2, 5, 19, KIND_MASK), "group-3-5x19-mask")->level = LEVEL_SMALL;
    add(shape(24, 1, 8, 1, 4, 9, KIND_CAUSAL), "group-8-4x9-causal")->level = LEVEL_SMALL;
}

static void add_causal(void)
{
    static const int32_t lens[][2] = {{1, 257}, {7, 100}, {64, 128}, {65, 66}, {33, 33}, {128, 128},
                                      {129, 5}, {100, 99}, {66, 1},  {257, 64}};
    for (int n = 0; n < COUNT(lens); n++)
        for (int align = 0; align < 2; align++) {
            const int32_t q = lens[n][0], k = lens[n][1];
            struct attn_case *c = add(shape(20, 1, 2, 2, q, k, KIND_CAUSAL),
                                      "causal-%s-%dx%d-d20", align ? "tl" : "br", q, k);
            c->align = align;
            c->level = LEVEL_MEDIUM;
            c = add(shape(64, 2, 3, 1, q, k, KIND_CAUSAL), "causal-%s-%dx%d-d64",
                    align ? "tl" : "br", q, k);
            c->align = align;
        }
    struct attn_case *c = add(shape(24, 1, 2, 2, 33, 9, KIND_CAUSAL), "causal-br-33x9-d24");
    c->level = LEVEL_SMALL;
    c = add(shape(24, 1, 2, 2, 9, 33, KIND_CAUSAL), "causal-tl-9x33-d24");
    c->level = LEVEL_SMALL;
    c->align = CLATTN_ALIGN_TOP_LEFT;
}

static void add_masks(void)
{
    for (uint32_t bcast = 0; bcast < 16; bcast++) {
        struct attn_case *c =
            add(shape(20, 2, 4, 2, 19, 70, KIND_MASK), "mask-bcast-%02u-d20", bcast);
        c->mask_bcast = bcast;
        c->level = bcast % 2 ? LEVEL_FULL : LEVEL_MEDIUM;
        c = add(shape(20, 2, 4, 2, 35, 67, KIND_MASK), "mask-bcast-%02u-causal", bcast);
        c->mask_bcast = bcast;
        c->causal = true;
        c->level = bcast % 4 ? LEVEL_FULL : LEVEL_MEDIUM;
        c = add(shape(64, 2, 2, 1, 34, 65, KIND_MASK), "mask-bcast-%02u-stride-2", bcast);
        c->mask_bcast = bcast;
        c->mask_form = MASK_KEY_STRIDE_2;
        c = add(shape(64, 3, 2, 2, 9, 129, KIND_MASK), "mask-bcast-%02u-stride-0", bcast);
        c->mask_bcast = bcast;
        c->mask_form = MASK_STRIDE_0;
    }
    struct attn_case *c = add(shape(16, 2, 2, 2, 3, 17, KIND_MASK), "mask-stride-2-d16");
    c->mask_form = MASK_KEY_STRIDE_2;
    c->mask_bcast = 1u << 2;
    c->level = LEVEL_SMALL;
}

static void add_layouts(void)
{
    for (int layout = 1; layout < LAY_COUNT; layout++) {
        const bool packed = layout == LAY_PACKED_QKV;
        struct attn_case *c = add(shape(20, 2, 2, packed ? 2 : 1, 37, packed ? 37 : 66, KIND_NONE),
                                  "layout-%d-d20", layout);
        c->layout = layout;
        c->level = LEVEL_MEDIUM;
        c = add(shape(64, 2, 6, packed ? 6 : 3, 35, packed ? 35 : 70, KIND_CAUSAL),
                "layout-%d-d64-causal", layout);
        c->layout = layout;
        c = add(shape(128, 2, 2, 2, 33, packed ? 33 : 40, KIND_MASK), "layout-%d-d128-mask",
                layout);
        c->layout = layout;
        c = add(shape(16, 2, 2, packed ? 2 : 1, 7, packed ? 7 : 20, KIND_NONE), "layout-%d-d16",
                layout);
        c->layout = layout;
        c->level = layout == LAY_PADDED || layout == LAY_PACKED_QKV ? LEVEL_SMALL : LEVEL_FULL;
    }
}

// One case per input kind on a shape whose rows and keys both cross tile edges.
static void add_inputs(int32_t dim, int32_t len_q, int32_t len_kv, int32_t level)
{
    static const enum kind kind_of[] = {
        [IN_NORMAL] = KIND_NONE,       [IN_LARGE] = KIND_NONE,
        [IN_EQUAL] = KIND_NONE,        [IN_ONE_HOT] = KIND_NONE,
        [IN_EMPTY_ROWS] = KIND_MASK,   [IN_HIDDEN_NAN] = KIND_MASK,
        [IN_V_PARTLY_NAN] = KIND_MASK, [IN_VISIBLE_NAN] = KIND_NONE,
        [IN_NEG_INF] = KIND_NONE,      [IN_NEG_BIG] = KIND_NONE};
    for (int input = 0; input < COUNT(kind_of); input++)
        for (int causal = 0; causal < 2; causal++) {
            // The two kinds that live on hidden keys have a causal case of their own.
            const enum kind kind = kind_of[input] == KIND_NONE && causal ? KIND_CAUSAL
                                                                         : kind_of[input];
            struct attn_case *c = add(shape(dim, 2, 4, 2, len_q, len_kv, kind),
                                      "input-%d-%dx%d-d%d%s", input, len_q, len_kv, dim,
                                      causal ? "-causal" : "");
            c->input = input;
            c->causal = causal;
            c->level = level;
            if (input == IN_NEG_BIG) {
                c->has_scale = true;
                c->scale = 1;
            }
        }
    struct attn_case *c = add(shape(dim, 1, 2, 2, len_q, len_kv, KIND_CAUSAL),
                              "hidden-nan-causal-%dx%d-d%d", len_q, len_kv, dim);
    c->input = IN_HIDDEN_NAN;
    c->align = CLATTN_ALIGN_TOP_LEFT;
    c->level = level;
    c = add(shape(dim, 1, 2, 1, len_q, len_kv, KIND_CAUSAL), "v-partly-nan-causal-%dx%d-d%d", len_q,
            len_kv, dim);
    c->input = IN_V_PARTLY_NAN;
    c->level = level;
}

// The kinds that decide about hidden values, on builds with a mask.
static void add_mask_inputs(int32_t dim, int32_t len_q, int32_t len_kv, int32_t level)
{
    static const int kinds[] = {IN_EMPTY_ROWS, IN_HIDDEN_NAN, IN_V_PARTLY_NAN, IN_VISIBLE_NAN,
                                IN_NEG_INF};
    for (int n = 0; n < COUNT(kinds); n++) {
        struct attn_case *c = add(shape(dim, 1, 2, 1, len_q, len_kv, KIND_MASK),
                                  "mask-input-%d-%dx%d-d%d", kinds[n], len_q, len_kv, dim);
        c->input = kinds[n];
        c->level = level;
    }
}

static void add_scales(void)
{
    static const float scales[] = {0.0f, -0.0f, -0.7f, 2.5f, 1e-20f};
    for (int n = 0; n < COUNT(scales); n++)
        for (int kind = 0; kind < 2; kind++) {
            struct attn_case *c = add(shape(20, 1, 2, 2, 18, 67, (enum kind)kind),
                                      "scale-%g-%d", (double)scales[n], kind);
            c->has_scale = true;
            c->scale = scales[n];
            c->level = LEVEL_MEDIUM;
        }
}

const struct attn_case *attn_cases(int *count)
{
    if (list_count == 0) {
        add_dims();
        add_dims_v();
        add_lengths();
        add_groups();
        add_causal();
        add_masks();
        add_layouts();
        add_inputs(20, 37, 70, LEVEL_MEDIUM);
        add_inputs(64, 65, 97, LEVEL_FULL);
        add_inputs(20, 19, 130, LEVEL_FULL);
        add_mask_inputs(16, 9, 18, LEVEL_SMALL);
        add_mask_inputs(128, 19, 130, LEVEL_FULL);
        add_mask_inputs(255, 19, 40, LEVEL_FULL);
        struct attn_case *c = add(shape(24, 1, 2, 1, 9, 18, KIND_CAUSAL), "v-partly-nan-9x18-d24");
        c->input = IN_V_PARTLY_NAN;
        c->level = LEVEL_SMALL;
        add_scales();
    }
    *count = list_count;
    return list_count <= CASES_MAX ? list : NULL;
}

const struct attn_case *attn_bench_cases(int *count)
{
#define LARGE(name_, dim_, batch_, heads, kv, q, k, causal_)                                       \
    {                                                                                              \
        .name = name_, .dim = dim_, .batch = batch_, .heads_q = heads, .heads_kv = kv, .len_q = q, \
        .len_kv = k, .causal = causal_, .seed = 1, .level = LEVEL_FULL                             \
    }
    static const struct attn_case large[] = {
        LARGE("bench-2048-d64", 64, 1, 8, 8, 2048, 2048, false),
        LARGE("bench-2048-d64-causal", 64, 1, 8, 8, 2048, 2048, true),
        LARGE("bench-1024-d128", 128, 1, 8, 8, 1024, 1024, false),
        LARGE("bench-1024-d128-causal", 128, 1, 8, 8, 1024, 1024, true),
        LARGE("bench-512-d256", 256, 1, 8, 8, 512, 512, false),
        LARGE("bench-1024-d80", 80, 1, 8, 8, 1024, 1024, false),
        LARGE("bench-group-4-1024-d128-causal", 128, 1, 8, 2, 1024, 1024, true),
        LARGE("bench-batch-64-128-d64", 64, 64, 12, 12, 128, 128, false),
        LARGE("bench-decode-4096-d128", 128, 1, 32, 8, 1, 4096, false),
        LARGE("bench-decode-batch-8-4096-d128", 128, 8, 32, 8, 1, 4096, false),
        LARGE("bench-cross-77-4096-d64", 64, 2, 8, 8, 4096, 77, false),
    };
#undef LARGE
    *count = COUNT(large);
    return large;
}
