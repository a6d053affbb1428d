// SPDX-License-Identifier: Apache-2.0
// Dimensions, storage types and paging are literals of the kernels, and each set of them is a
// program that takes far longer to compile than to run. Cases therefore take both from one short
// list of formats; what kernels decide as they run varies freely.
#include "feature_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

// ---- who serves what ----------------------------------------------------------------------------

const char *const feature_need_name[NEED_COUNT] = {
    "f16 or bf16 storage", "int8 keys and values", "a window", "a bias", "ALiBi", "a soft-cap",
    "sinks", "key lengths of each sequence", "packed sequences", "paged keys and values"};

uint32_t algo_lacks(int32_t algo)
{
    switch (algo) {
    case CLATTN_ALGO_TWO_LOOP:
    case CLATTN_ALGO_FUSED_KV_OUTER:
    case CLATTN_ALGO_UNFUSED: return 1u << NEED_INT8 | 1u << NEED_PACKED | 1u << NEED_PAGED;
    default: return 0;
    }
}

static bool is_16_bit(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F16 || dtype == CLATTN_DTYPE_BF16;
}

uint32_t feature_needs(const struct feature_case *c)
{
    const bool needs[NEED_COUNT] = {
        [NEED_16_BIT] = is_16_bit(c->dtype_q) || is_16_bit(c->dtype_kv) || is_16_bit(c->dtype_o),
        [NEED_INT8] = c->dtype_kv == CLATTN_DTYPE_I8,
        [NEED_WINDOW] = c->window,
        [NEED_BIAS] = c->bias.used,
        [NEED_ALIBI] = c->alibi != 0,
        [NEED_SOFTCAP] = c->has_softcap,
        [NEED_SINKS] = c->sinks != SINKS_NONE,
        [NEED_KV_LENS] = c->kv_lens,
        [NEED_PACKED] = c->packed_q || c->packed_kv,
        [NEED_PAGED] = c->page_size > 0};
    uint32_t bits = 0;
    for (int n = 0; n < NEED_COUNT; n++)
        bits |= needs[n] ? 1u << n : 0;
    return bits;
}

// ---- axes ---------------------------------------------------------------------------------------

static const struct format {
    const char *name;
    int32_t q, kv, o, dim_qk, dim_v;
} formats[] = {
    {"f32-24", CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, 24, 24},
    {"f32-64", CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, CLATTN_DTYPE_F32, 64, 64},
    {"f16-24", CLATTN_DTYPE_F16, CLATTN_DTYPE_F16, CLATTN_DTYPE_F16, 24, 24},
    {"bf16-64", CLATTN_DTYPE_BF16, CLATTN_DTYPE_BF16, CLATTN_DTYPE_BF16, 64, 64},
    {"f32-bf16-f32-40/24", CLATTN_DTYPE_F32, CLATTN_DTYPE_BF16, CLATTN_DTYPE_F32, 40, 24},
    {"f32-i8-f32-64", CLATTN_DTYPE_F32, CLATTN_DTYPE_I8, CLATTN_DTYPE_F32, 64, 64},
    {"bf16-i8-f16-24", CLATTN_DTYPE_BF16, CLATTN_DTYPE_I8, CLATTN_DTYPE_F16, 24, 24},
    {"bf16-f16-f32-64", CLATTN_DTYPE_BF16, CLATTN_DTYPE_F16, CLATTN_DTYPE_F32, 64, 64},
};

static const struct {
    int32_t batch, heads_q, heads_kv;
} heads[] = {{2, 4, 2}, {3, 3, 3}, {1, 6, 1}, {2, 2, 2}};

static const int32_t lengths[][2] = {{37, 75}, {1, 130}, {70, 33}, {5, 64}, {33, 97}, {97, 161}};
static const int32_t windows[][2] = {{0, 0}, {7, 3}, {20, -1}, {-1, 4}, {0, 0}, {-1, -1}};
static const int32_t pages[] = {16, 1, 7, 256};
static const float scales[] = {0, -0.3f, 1.5f, 0};
static const float caps[] = {0, 3.5f, 0};

enum axis {
    AXIS_FORMAT, AXIS_CAUSAL, AXIS_WINDOW, AXIS_MASK, AXIS_BIAS, AXIS_ALIBI, AXIS_SOFTCAP,
    AXIS_SINKS, AXIS_KV_LENS, AXIS_KEYS, AXIS_QUERIES, AXIS_LAYOUT, AXIS_LSE, AXIS_SCALE,
    AXIS_MEMORY, AXIS_LENGTHS, AXIS_HEADS, AXIS_INPUT, AXES
};

// Value 0 of an axis is the absence of what it is about.
static const struct {
    const char *name;
    int values;
} axes[AXES] = {
    [AXIS_FORMAT] = {"format", COUNT(formats)},
    [AXIS_CAUSAL] = {"causal", 4},
    [AXIS_WINDOW] = {"window", COUNT(windows)},
    [AXIS_MASK] = {"mask", 4},
    [AXIS_BIAS] = {"bias", 4},
    [AXIS_ALIBI] = {"alibi", 3},
    [AXIS_SOFTCAP] = {"softcap", COUNT(caps)},
    [AXIS_SINKS] = {"sinks", 3},
    [AXIS_KV_LENS] = {"kv_lens", 2},
    [AXIS_KEYS] = {"keys", 2 + COUNT(pages)}, // plain, packed, paged
    [AXIS_QUERIES] = {"queries", 2},          // plain, packed
    [AXIS_LAYOUT] = {"layout", FORM_COUNT},
    [AXIS_LSE] = {"lse", 2}, // with, without
    [AXIS_SCALE] = {"scale", COUNT(scales)},
    [AXIS_MEMORY] = {"memory", 4},
    [AXIS_LENGTHS] = {"lengths", COUNT(lengths)},
    [AXIS_HEADS] = {"heads", COUNT(heads)},
    [AXIS_INPUT] = {"input", INPUT_COUNT},
};
enum { VALUES_MAX = 8 };

static struct feature_case of_values(const int value[AXES])
{
    static const struct feature_array arrays[][4] = {
        {{false, 0, false}, {true, 0, false}, {true, 3, false}, {true, 4, true}},
        {{false, 0, false}, {true, 0, false}, {true, 3, true}, {true, 4, false}}};
    const struct format *f = &formats[value[AXIS_FORMAT]];
    const int keys = value[AXIS_KEYS];
    struct feature_case c = {
        .dtype_q = f->q, .dtype_kv = f->kv, .dtype_o = f->o,
        .dtype_bias = value[AXIS_BIAS] > 1 ? value[AXIS_BIAS] - 1 : CLATTN_DTYPE_F32,
        .dim_qk = f->dim_qk, .dim_v = f->dim_v,
        .batch = heads[value[AXIS_HEADS]].batch,
        .heads_q = heads[value[AXIS_HEADS]].heads_q,
        .heads_kv = heads[value[AXIS_HEADS]].heads_kv,
        .len_q = lengths[value[AXIS_LENGTHS]][0],
        .len_kv = lengths[value[AXIS_LENGTHS]][1],
        .causal = value[AXIS_CAUSAL] == 1 || value[AXIS_CAUSAL] == 2,
        .align = value[AXIS_CAUSAL] > 1 ? CLATTN_ALIGN_TOP_LEFT : CLATTN_ALIGN_BOTTOM_RIGHT,
        .window = value[AXIS_WINDOW] > 0,
        .left = windows[value[AXIS_WINDOW]][0],
        .right = windows[value[AXIS_WINDOW]][1],
        .mask = arrays[0][value[AXIS_MASK]],
        .bias = arrays[1][value[AXIS_BIAS]],
        .alibi = value[AXIS_ALIBI],
        .has_softcap = value[AXIS_SOFTCAP] > 0,
        .softcap = caps[value[AXIS_SOFTCAP]],
        .sinks = value[AXIS_SINKS],
        .kv_lens = value[AXIS_KV_LENS] > 0,
        .packed_kv = keys == 1,
        .page_size = keys > 1 ? pages[keys - 2] : 0,
        .packed_q = value[AXIS_QUERIES] > 0,
        .layout = value[AXIS_LAYOUT],
        .lse = value[AXIS_LSE] == 0,
        .has_scale = value[AXIS_SCALE] > 0,
        .scale = scales[value[AXIS_SCALE]],
        .on_device = value[AXIS_MEMORY] == 1 || value[AXIS_MEMORY] == 3,
        .ints_on_device = value[AXIS_MEMORY] == 1 || value[AXIS_MEMORY] == 2,
        .input = value[AXIS_INPUT],
    };
    return c;
}

// Only float32 of 24 channels has programs without the masks that kernels decide on as they run:
// elsewhere a soft-cap of 0, which caps nothing, asks for the others.
static void share_programs(struct feature_case *c, uint32_t lacks)
{
    const bool general = c->mask.used || c->bias.used || c->alibi || c->has_softcap;
    const bool own = c->dim_qk == 24 && c->dtype_q == CLATTN_DTYPE_F32;
    if (!general && !own && !(lacks >> NEED_SOFTCAP & 1))
        c->has_softcap = true;
}

struct feature_case feature_plain(void)
{
    const int value[AXES] = {0};
    struct feature_case c = of_values(value);
    snprintf(c.name, sizeof c.name, "plain");
    c.seed = 1;
    return c;
}

static bool is_served(const struct feature_case *c, uint32_t lacks)
{
    return (feature_needs(c) & lacks) == 0;
}

// ---- each alone ---------------------------------------------------------------------------------

static bool value_is_served(int axis, int v, uint32_t lacks)
{
    int value[AXES] = {0};
    value[axis] = v;
    const struct feature_case c = of_values(value);
    return is_served(&c, lacks);
}

int feature_alone(uint32_t lacks, bool small, struct feature_case *out, int max)
{
    int n = 0;
    for (int axis = 0; axis < AXES; axis++)
        for (int v = axis == 0 ? 0 : 1; v < axes[axis].values; v++) {
            if (!value_is_served(axis, v, lacks) || n == max)
                continue;
            // A simulator has time for one value of each axis, and for both ways to store keys.
            if (small && (axis == AXIS_FORMAT || axis == AXIS_LENGTHS || axis == AXIS_HEADS ||
                          v > (axis == AXIS_KEYS ? 2 : 1)))
                continue;
            int value[AXES] = {0};
            value[axis] = v;
            out[n] = of_values(value);
            if (small) {
                out[n].len_q = 5;
                out[n].len_kv = 35;
                out[n].batch = 2;
                out[n].heads_q = 2;
                out[n].heads_kv = 1;
            }
            share_programs(&out[n], lacks);
            out[n].seed = 1000u + (uint64_t)n;
            snprintf(out[n].name, sizeof out[n].name, "alone: %s %d", axes[axis].name, v);
            n++;
        }
    return n;
}

// ---- all pairs ----------------------------------------------------------------------------------

// Which pairs are still to be met, with the axis of the smaller number first.
struct cover {
    bool open[AXES][VALUES_MAX][AXES][VALUES_MAX];
    int left;
};

static bool *pair_of(struct cover *cover, int axis, int value, int other, int other_value)
{
    return axis < other ? &cover->open[axis][value][other][other_value]
                        : &cover->open[other][other_value][axis][value];
}

static void open_pairs(struct cover *cover, uint32_t lacks)
{
    for (int a = 0; a < AXES; a++)
        for (int v = 0; v < axes[a].values; v++)
            for (int b = a + 1; b < AXES; b++)
                for (int w = 0; w < axes[b].values; w++)
                    if (value_is_served(a, v, lacks) && value_is_served(b, w, lacks)) {
                        cover->open[a][v][b][w] = true;
                        cover->left++;
                    }
}

// Open pairs that value v of an axis would meet with the values chosen so far, -1 = not chosen.
static int gain(struct cover *cover, const int value[AXES], int axis, int v)
{
    int n = 0;
    for (int other = 0; other < AXES; other++)
        if (other != axis && value[other] >= 0)
            n += *pair_of(cover, axis, v, other, value[other]);
    return n;
}

// The first pair that is open.
static void start_row(const struct cover *cover, int value[AXES])
{
    for (int a = 0; a < AXES; a++)
        for (int v = 0; v < axes[a].values; v++)
            for (int b = a + 1; b < AXES; b++)
                for (int w = 0; w < axes[b].values; w++)
                    if (cover->open[a][v][b][w]) {
                        value[a] = v;
                        value[b] = w;
                        return;
                    }
}

// One row: an open pair, and for each other axis, in a random order, the value that meets most.
static void make_row(struct cover *cover, uint32_t lacks, uint64_t *rng, int value[AXES])
{
    for (int a = 0; a < AXES; a++)
        value[a] = -1;
    start_row(cover, value);
    const int start = (int)(rng_next(rng) % AXES);
    for (int n = 0; n < AXES; n++) {
        const int axis = (start + n * 5) % AXES; // 5 and the number of axes have no common factor
        if (value[axis] >= 0)
            continue;
        int best = 0, best_gain = -1;
        const int first = (int)(rng_next(rng) % (uint64_t)axes[axis].values);
        for (int k = 0; k < axes[axis].values; k++) {
            const int v = (first + k) % axes[axis].values;
            const int g = value_is_served(axis, v, lacks) ? gain(cover, value, axis, v) : -2;
            if (g > best_gain) {
                best = v;
                best_gain = g;
            }
        }
        value[axis] = best;
    }
}

static void close_pairs(struct cover *cover, const int value[AXES])
{
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) {
            bool *open = &cover->open[a][value[a]][b][value[b]];
            cover->left -= *open;
            *open = false;
        }
}

int feature_pairs(uint32_t lacks, struct feature_case *out, int max, int *pairs)
{
    struct cover *cover = calloc(1, sizeof *cover);
    uint64_t rng = 77;
    int n = 0;
    if (!cover)
        return 0;
    open_pairs(cover, lacks);
    *pairs = cover->left;
    while (cover->left > 0 && n < max) {
        int best[AXES], most = -1;
        for (int tries = 0; tries < 8; tries++) {
            int value[AXES], g = 0;
            make_row(cover, lacks, &rng, value);
            for (int a = 0; a < AXES; a++)
                g += gain(cover, value, a, value[a]);
            if (g > most) {
                memcpy(best, value, sizeof best);
                most = g;
            }
        }
        close_pairs(cover, best);
        out[n] = of_values(best);
        share_programs(&out[n], lacks);
        out[n].seed = 2000u + (uint64_t)n;
        snprintf(out[n].name, sizeof out[n].name, "pairs %d", n);
        n++;
    }
    const bool all = cover->left == 0;
    free(cover);
    return all ? n : 0;
}

// ---- random -------------------------------------------------------------------------------------

static int32_t below(uint64_t *rng, int32_t n)
{
    return (int32_t)(rng_next(rng) % (uint64_t)n);
}

// Numbers that the lists above hold few of.
static void vary(struct feature_case *c, uint64_t *rng, bool small)
{
    c->len_q = 1 + below(rng, small ? 6 : 90);
    c->len_kv = below(rng, 12) ? 1 + below(rng, small ? 50 : 200) : 0;
    if (c->window) {
        c->left = below(rng, 40) - 1;
        c->right = below(rng, 40) - 1;
    }
    if (c->page_size)
        c->page_size = 1 + below(rng, below(rng, 2) ? 256 : 20);
    if (c->has_softcap && c->softcap > 0)
        c->softcap = (float)(0.5 + 20 * rng_uniform(rng));
    if (c->has_scale && c->scale != 0)
        c->scale = (float)(4 * rng_uniform(rng) - 2);
    c->mask.bcast = c->mask.used ? (uint32_t)below(rng, 16) : 0;
    c->bias.bcast = c->bias.used ? (uint32_t)below(rng, 16) : 0;
    c->mask.strided = below(rng, 2);
    c->bias.strided = below(rng, 2);
    c->num_splits = below(rng, 2) ? 1 + below(rng, 9) : 0;
}

static struct feature_case random_case(uint32_t lacks, bool small, uint64_t seed)
{
    uint64_t rng = seed;
    int value[AXES];
    for (int a = 0; a < AXES; a++) {
        const bool of_program = a == AXIS_FORMAT || a == AXIS_KEYS;
        do
            value[a] = small && of_program ? 0
                       : below(&rng, 2)    ? 0
                                           : below(&rng, axes[a].values);
        while (!value_is_served(a, value[a], lacks));
    }
    struct feature_case c = of_values(value);
    vary(&c, &rng, small);
    if (small && !(lacks >> NEED_SOFTCAP & 1))
        c.has_softcap = true;
    c.seed = seed;
    snprintf(c.name, sizeof c.name, "random, seed %llu", (unsigned long long)seed);
    return c;
}

struct feature_case feature_random(uint32_t lacks, bool small, uint64_t seed)
{
    struct feature_case c = random_case(lacks, small, seed);
    share_programs(&c, lacks);
    return c;
}

struct feature_case feature_random_dim(uint32_t lacks, int32_t dim, uint64_t seed)
{
    struct feature_case c = random_case(lacks, false, seed);
    c.dim_qk = dim;
    c.dim_v = dim;
    snprintf(c.name, sizeof c.name, "dimension %d, seed %llu", dim, (unsigned long long)seed);
    return c;
}

// ---- stress -------------------------------------------------------------------------------------

// Many pairs of lengths are short, some are as long as the plans allow on one side.
static void stretch(struct feature_case *c, uint64_t *rng)
{
    const int32_t way = below(rng, 8), longest = STRESS_LEN_MAX - 40;
    c->len_max = STRESS_LEN_MAX;
    if (way < 3) {
        c->len_q = 1 + below(rng, 8);
        c->len_kv = below(rng, 20);
    } else if (way == 3) {
        c->len_q = 1 + below(rng, 12);
        c->len_kv = 200 + below(rng, longest - 200);
    } else if (way == 4) {
        c->len_q = 200 + below(rng, longest - 200);
        c->len_kv = 1 + below(rng, 12);
    }
    if (way == 3 || way == 4) {
        c->batch = 1;
        c->heads_q = 2;
        c->heads_kv = 1 + below(rng, 2);
    }
}

// Sizes of numbers that leave scores near 1.
static void resize(struct feature_case *c, uint64_t *rng)
{
    const bool half = c->dtype_q == CLATTN_DTYPE_F16 || c->dtype_kv == CLATTN_DTYPE_F16;
    const int32_t most = half ? 4 : 30;
    if (below(rng, 2) || c->layout == FORM_V_IN_K)
        return;
    c->exp_q = below(rng, 2 * most + 1) - most;
    c->exp_k = below(rng, 4) - 1 - c->exp_q;
    c->exp_v = below(rng, 2 * most + 1) - most;
    if (c->dtype_o == CLATTN_DTYPE_F16)
        c->exp_v = c->exp_v % 8;
}

struct feature_case feature_stress(uint32_t lacks, uint64_t seed, uint64_t n, uint64_t run)
{
    uint64_t rng = (seed << 32) + n;
    int value[AXES];
    for (int a = 0; a < AXES; a++)
        do
            value[a] = below(&rng, 2) ? 0 : below(&rng, axes[a].values);
        while (!value_is_served(a, value[a], lacks));
    // What makes a program: seed and n choose the format, the next one where it is not served.
    for (int k = (int)((seed + n / run) % COUNT(formats));; k = (k + 1) % COUNT(formats)) {
        value[AXIS_FORMAT] = k;
        if (value_is_served(AXIS_FORMAT, k, lacks))
            break;
    }
    const bool paged = n % run >= run / 2 && !(lacks >> NEED_PAGED & 1);
    if (paged)
        value[AXIS_KEYS] = 2;
    else if (value[AXIS_KEYS] > 1)
        value[AXIS_KEYS] = 0;
    struct feature_case c = of_values(value);
    vary(&c, &rng, false);
    stretch(&c, &rng);
    resize(&c, &rng);
    c.has_softcap = true; // a soft-cap of 0 shares the program
    c.seed = (seed << 32) + n;
    snprintf(c.name, sizeof c.name, "stress, problem %llu", (unsigned long long)n);
    return c;
}

// ---- descriptions -------------------------------------------------------------------------------

clattn_attention_desc feature_desc(const struct feature_case *c)
{
    const struct {
        bool used;
        uint32_t bit;
    } f[] = {{c->causal, CLATTN_FEATURE_CAUSAL},       {c->mask.used, CLATTN_FEATURE_MASK},
             {c->lse, CLATTN_FEATURE_LSE},             {c->window, CLATTN_FEATURE_WINDOW},
             {c->bias.used, CLATTN_FEATURE_BIAS},      {c->alibi != 0, CLATTN_FEATURE_ALIBI},
             {c->has_softcap, CLATTN_FEATURE_SOFTCAP}, {c->sinks != 0, CLATTN_FEATURE_SINKS},
             {c->kv_lens, CLATTN_FEATURE_KV_LENS},     {c->packed_q, CLATTN_FEATURE_PACKED_Q},
             {c->packed_kv, CLATTN_FEATURE_PACKED_KV}, {c->page_size > 0, CLATTN_FEATURE_PAGED}};
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    for (int n = 0; n < COUNT(f); n++)
        desc.features |= f[n].used ? f[n].bit : 0;
    desc.dtype_q = c->dtype_q;
    desc.dtype_kv = c->dtype_kv;
    desc.dtype_o = c->dtype_o;
    desc.dtype_bias = c->bias.used ? c->dtype_bias : 0;
    desc.dim_qk = c->dim_qk;
    desc.dim_v = c->dim_v;
    desc.heads_q = c->heads_q;
    desc.heads_kv = c->heads_kv;
    desc.align = c->align;
    desc.page_size = c->page_size;
    desc.max_len_q = desc.max_len_kv = c->len_max ? c->len_max : FEATURE_LEN_MAX;
    return desc;
}

void feature_text(const struct feature_case *c, char *text, size_t size)
{
    static const char *const type[] = {"f32", "f16", "bf16", "i8"};
    static const char *const form[] = {"bhsd", "bshd", "padded", "padded 8", "seq first",
                                       "broadcast head", "V in K"};
    snprintf(text, size,
             "%s: types %s/%s/%s dim %d/%d batch %d heads %d/%d len %d x %d%s%s window %s(%d, %d) "
             "mask %d bcast %u strided %d, bias %d %s bcast %u strided %d, alibi %d softcap %s%g "
             "sinks %d%s%s%s page %d, %s, input %d, lse %d, scale %s%g, %s memory, numbers %s, "
             "splits %d, sizes 2^%d 2^%d 2^%d, seed %llu",
             c->name, type[c->dtype_q], type[c->dtype_kv], type[c->dtype_o], c->dim_qk, c->dim_v,
             c->batch, c->heads_q, c->heads_kv, c->len_q, c->len_kv, c->causal ? " causal" : "",
             c->align ? " top-left" : "", c->window ? "" : "no ", c->left, c->right, c->mask.used,
             c->mask.bcast, c->mask.strided, c->bias.used, type[c->dtype_bias], c->bias.bcast,
             c->bias.strided, c->alibi, c->has_softcap ? "" : "no ", (double)c->softcap, c->sinks,
             c->kv_lens ? " kv_lens" : "", c->packed_q ? " packed_q" : "",
             c->packed_kv ? " packed_kv" : "", c->page_size, form[c->layout], c->input, c->lse,
             c->has_scale ? "" : "no ", (double)c->scale, c->on_device ? "device" : "host",
             c->ints_on_device ? "on the device" : "on the host", c->num_splits,
             c->exp_q, c->exp_k, c->exp_v, (unsigned long long)c->seed);
}
