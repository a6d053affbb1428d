// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clattn/softmax.h"

enum { DIM_MAX = 576, SPLITS_MAX = 65535, PAGE_MAX = 256 };

static const uint32_t FEATURES =
    CLATTN_FEATURE_CAUSAL | CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE | CLATTN_FEATURE_WINDOW |
    CLATTN_FEATURE_BIAS | CLATTN_FEATURE_ALIBI | CLATTN_FEATURE_SOFTCAP | CLATTN_FEATURE_SINKS |
    CLATTN_FEATURE_KV_LENS | CLATTN_FEATURE_PACKED_Q | CLATTN_FEATURE_PACKED_KV |
    CLATTN_FEATURE_PAGED;

// ---- description -------------------------------------------------------------------------------

// A field that only one algorithm reads.
static clattn_status check_owner(const struct cla_log *log, const clattn_attention_desc *d,
                                 const char *field, int32_t value, int32_t owner, const char *name)
{
    if (value && d->algo != owner)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %d, but algo is %d%s, not %d (%s)",
                        field, (int)value, (int)d->algo, d->algo ? "" : " (auto)", (int)owner,
                        name);
    return CLATTN_OK;
}

static clattn_status check_desc_enums(const clattn_attention_desc *d, const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(cla_check_enum(log, "dtype_q", d->dtype_q, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_kv", d->dtype_kv, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_o", d->dtype_o, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "dtype_bias", d->dtype_bias, CLATTN_DTYPE_I8));
    CLA_TRY(cla_check_enum(log, "align", d->align, CLATTN_ALIGN_TOP_LEFT));
    CLA_TRY(cla_check_enum(log, "algo", d->algo, CLATTN_ALGO_UNFUSED));
    CLA_TRY(cla_check_enum(log, "kernel", d->kernel, CLATTN_KERNEL_SUBGROUP));
    CLA_TRY(cla_check_enum(log, "precision", d->precision, CLATTN_PRECISION_FULL));
    CLA_TRY(cla_check_bits(log, "features", d->features, FEATURES));
    CLA_TRY(cla_check_bits(log, "flags", d->flags, CLATTN_NO_FALLBACK));
    CLA_TRY(cla_check_enum(log, "softmax", d->softmax, CLATTN_SOFTMAX_ONLINE));
    CLA_TRY(cla_check_enum(log, "num_splits", d->num_splits, SPLITS_MAX));
    CLA_TRY(check_owner(log, d, "num_splits", d->num_splits, CLATTN_ALGO_SPLIT_KV, "split_kv"));
    CLA_TRY(check_owner(log, d, "softmax", d->softmax, CLATTN_ALGO_UNFUSED, "unfused"));
    if (d->kernel != CLATTN_KERNEL_AUTO &&
        (d->algo == CLATTN_ALGO_HOST || d->algo == CLATTN_ALGO_REFERENCE ||
         d->algo == CLATTN_ALGO_UNFUSED))
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "kernel is %d, but algo %d has no kernel shapes", (int)d->kernel,
                         (int)d->algo));
done:
    return st;
}

static clattn_status check_desc_shape(const clattn_attention_desc *d, const struct cla_log *log)
{
    if (d->dim_qk < 1 || d->dim_qk > DIM_MAX)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "dim_qk is %d, not 1 to %d",
                        (int)d->dim_qk, DIM_MAX);
    if (d->dim_v < 0 || d->dim_v > DIM_MAX)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "dim_v is %d, not 0 to %d",
                        (int)d->dim_v, DIM_MAX);
    if (d->heads_q < 1)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "heads_q is %d, less than 1",
                        (int)d->heads_q);
    if (d->heads_kv < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "heads_kv is %d, less than 0",
                        (int)d->heads_kv);
    if (d->max_batch < 0 || d->max_len_q < 0 || d->max_len_kv < 0)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "a bound is negative: max_batch %d, max_len_q %d, max_len_kv %d",
                        (int)d->max_batch, (int)d->max_len_q, (int)d->max_len_kv);
    const int32_t heads_kv = d->heads_kv ? d->heads_kv : d->heads_q;
    if (d->heads_q % heads_kv)
        return cla_fail(log, CLATTN_ERR_SHAPE, "heads_q %d is not a multiple of heads_kv %d",
                        (int)d->heads_q, (int)heads_kv);
    return CLATTN_OK;
}

// Fields that go with a feature, and features that exclude each other.
static clattn_status check_desc_features(const clattn_attention_desc *d, const struct cla_log *log)
{
    const bool paged = (d->features & CLATTN_FEATURE_PAGED) != 0;
    if (paged && (d->page_size < 1 || d->page_size > PAGE_MAX))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "page_size is %d, not 1 to %d",
                        (int)d->page_size, PAGE_MAX);
    if (!paged && d->page_size)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "page_size is %d, but features has no CLATTN_FEATURE_PAGED",
                        (int)d->page_size);
    if (paged && (d->features & CLATTN_FEATURE_PACKED_KV))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "features has both CLATTN_FEATURE_PAGED and CLATTN_FEATURE_PACKED_KV");
    if (d->dtype_bias && !(d->features & CLATTN_FEATURE_BIAS))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "dtype_bias is %d, but features has no CLATTN_FEATURE_BIAS",
                        (int)d->dtype_bias);
    return CLATTN_OK;
}

bool cla_algo_has_tiles(int32_t algo)
{
    return algo == CLATTN_ALGO_FUSED || algo == CLATTN_ALGO_SPLIT_KV ||
           algo == CLATTN_ALGO_TWO_LOOP || algo == CLATTN_ALGO_FUSED_KV_OUTER;
}

// What no device could make anything of. Whether the tile suits the device shows in planning.
static clattn_status check_desc_tile(const clattn_attention_desc *d, const struct cla_log *log)
{
    const clattn_tile *t = &d->tile;
    const int32_t numbers[] = {t->tile_q, t->tile_k, t->items_q, t->items_k, t->chunk_d,
                               t->width,  t->vecs_q, t->block_k, t->block_d};
    bool any = false;
    clattn_status st = cla_check_enum(log, "tile.kernel", t->kernel, CLATTN_KERNEL_SUBGROUP);
    for (size_t i = 0; st == CLATTN_OK && i < sizeof numbers / sizeof *numbers; i++) {
        any = any || numbers[i];
        if (numbers[i] < 0)
            st = cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "a field of tile is %d, negative",
                          (int)numbers[i]);
    }
    for (size_t i = 0; st == CLATTN_OK && i < sizeof t->reserved / sizeof *t->reserved; i++)
        if (t->reserved[i])
            st = cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "tile.reserved[%zu] is %d, not 0", i,
                          (int)t->reserved[i]);
    if (st != CLATTN_OK || (!t->kernel && !any))
        return st;
    if (!t->kernel)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "tile has numbers, but its kernel is 0");
    if (!cla_algo_has_tiles(d->algo))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "tile is given, but algo is %d%s, which is none with tiles", (int)d->algo,
                        d->algo ? "" : " (auto)");
    if (d->kernel && d->kernel != t->kernel)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "tile.kernel is %d, but kernel is %d",
                        (int)t->kernel, (int)d->kernel);
    return CLATTN_OK;
}

static clattn_status check_desc_reserved(const clattn_attention_desc *d, const struct cla_log *log)
{
    const struct {
        const char *name;
        int32_t dtype;
    } f[3] = {{"dtype_q", d->dtype_q}, {"dtype_o", d->dtype_o}, {"dtype_bias", d->dtype_bias}};
    for (int i = 0; i < 3; i++)
        if (f[i].dtype == CLATTN_DTYPE_I8)
            return cla_fail(log, CLATTN_ERR_UNSUPPORTED, "%s is %d (int8): only K and V may be",
                            f[i].name, (int)f[i].dtype);
    if (d->direction)
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED, "direction is %d: only 0 (forward) is served",
                        (int)d->direction);
    if (!(d->dropout_p == 0.0f))
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED, "dropout_p is %g: only 0 is served",
                        (double)d->dropout_p);
    return CLATTN_OK;
}

clattn_status cla_problem_from_desc(const clattn_attention_desc *desc, const struct cla_log *log,
                                    struct cla_problem *out)
{
    clattn_status st = CLATTN_OK;
    clattn_attention_desc d;
    if (!desc)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "desc is NULL");
    CLA_TRY(cla_struct_in("clattn_attention_desc", desc,
                          CLA_SIZE_TO(clattn_attention_desc, dropout_p), &d, sizeof d, log));
    CLA_TRY(check_desc_enums(&d, log));
    CLA_TRY(check_desc_shape(&d, log));
    CLA_TRY(check_desc_features(&d, log));
    CLA_TRY(check_desc_tile(&d, log));
    CLA_TRY(check_desc_reserved(&d, log));

    const int32_t heads_kv = d.heads_kv ? d.heads_kv : d.heads_q;
    *out = (struct cla_problem){
        .dtype_q = d.dtype_q,
        .dtype_kv = d.dtype_kv,
        .dtype_o = d.dtype_o,
        .dtype_bias = d.dtype_bias,
        .dim_qk = d.dim_qk,
        .dim_v = d.dim_v ? d.dim_v : d.dim_qk,
        .heads_q = d.heads_q,
        .heads_kv = heads_kv,
        .group = d.heads_q / heads_kv,
        .max_batch = d.max_batch ? d.max_batch : INT32_MAX,
        .max_len_q = d.max_len_q ? d.max_len_q : INT32_MAX,
        .max_len_kv = d.max_len_kv ? d.max_len_kv : INT32_MAX,
        .causal = (d.features & CLATTN_FEATURE_CAUSAL) != 0,
        .mask = (d.features & CLATTN_FEATURE_MASK) != 0,
        .lse = (d.features & CLATTN_FEATURE_LSE) != 0,
        .window = (d.features & CLATTN_FEATURE_WINDOW) != 0,
        .bias = (d.features & CLATTN_FEATURE_BIAS) != 0,
        .alibi = (d.features & CLATTN_FEATURE_ALIBI) != 0,
        .softcap = (d.features & CLATTN_FEATURE_SOFTCAP) != 0,
        .sinks = (d.features & CLATTN_FEATURE_SINKS) != 0,
        .kv_lens = (d.features & CLATTN_FEATURE_KV_LENS) != 0,
        .packed_q = (d.features & CLATTN_FEATURE_PACKED_Q) != 0,
        .packed_kv = (d.features & CLATTN_FEATURE_PACKED_KV) != 0,
        .paged = (d.features & CLATTN_FEATURE_PAGED) != 0,
        .page_size = d.page_size,
        .align = d.align,
        .algo = d.algo,
        .kernel = d.kernel,
        .precision = d.precision,
        .num_splits = d.num_splits,
        .softmax = d.softmax ? d.softmax : CLATTN_SOFTMAX_SAFE,
        .no_fallback = (d.flags & CLATTN_NO_FALLBACK) != 0,
        .tile = d.tile,
    };
done:
    return st;
}

// ---- needs -------------------------------------------------------------------------------------

static bool is_16_bit(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F16 || dtype == CLATTN_DTYPE_BF16;
}

uint32_t cla_problem_needs(const struct cla_problem *p)
{
    const struct {
        bool needed;
        uint32_t bit;
    } n[] = {{is_16_bit(p->dtype_q) || is_16_bit(p->dtype_kv) || is_16_bit(p->dtype_o),
              CLA_NEEDS_16_BIT},
             {p->dtype_kv == CLATTN_DTYPE_I8, CLA_NEEDS_INT8},
             {p->window, CLA_NEEDS_WINDOW},
             {p->bias, CLA_NEEDS_BIAS},
             {p->alibi, CLA_NEEDS_ALIBI},
             {p->softcap, CLA_NEEDS_SOFTCAP},
             {p->sinks, CLA_NEEDS_SINKS},
             {p->kv_lens, CLA_NEEDS_KV_LENS},
             {p->packed_q || p->packed_kv, CLA_NEEDS_PACKED},
             {p->paged, CLA_NEEDS_PAGED}};
    uint32_t bits = 0;
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        bits |= n[i].needed ? n[i].bit : 0;
    return bits;
}

const char *cla_need_name(int bit)
{
    static const char *const name[CLA_NEEDS_COUNT] = {
        "f16 or bf16 storage", "int8 keys and values", "a window", "a bias", "ALiBi", "a soft-cap",
        "sinks", "key lengths of each sequence", "packed sequences", "paged keys and values"};
    return bit >= 0 && bit < CLA_NEEDS_COUNT ? name[bit] : "";
}

// ---- text --------------------------------------------------------------------------------------

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static void add(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

static void add_types(const struct cla_problem *p, char *text, size_t size)
{
    static const char *const names[] = {"f32", "f16", "bf16", "int8"};
    add(text, size, "%s", names[p->dtype_q]);
    if (p->dtype_kv != p->dtype_q)
        add(text, size, ", K and V %s", names[p->dtype_kv]);
    if (p->dtype_o != p->dtype_q)
        add(text, size, ", O %s", names[p->dtype_o]);
    if (p->bias)
        add(text, size, ", bias %s", names[p->dtype_bias]);
}

static void add_bound(char *text, size_t size, const char *what, int32_t bound)
{
    if (bound != INT32_MAX)
        add(text, size, ", %s to %d", what, (int)bound);
}

void cla_problem_text(const struct cla_problem *p, char *text, size_t size)
{
    const struct {
        bool wanted;
        const char *name;
    } f[] = {{p->causal, "causal"},       {p->window, "window"},
             {p->align == CLATTN_ALIGN_TOP_LEFT, "top-left"},
             {p->mask, "mask"},           {p->alibi, "alibi"},
             {p->softcap, "softcap"},     {p->sinks, "sinks"},
             {p->kv_lens, "kv lengths"},  {p->packed_q, "packed queries"},
             {p->packed_kv, "packed keys"}, {p->lse, "lse"},
             {p->precision == CLATTN_PRECISION_FULL, "full precision"},
             {p->no_fallback, "no fallback"}};
    text[0] = '\0';
    add_types(p, text, size);
    add(text, size, ", heads %d/%d, dim %d", (int)p->heads_q, (int)p->heads_kv, (int)p->dim_qk);
    if (p->dim_v != p->dim_qk)
        add(text, size, "/%d", (int)p->dim_v);
    add_bound(text, size, "batch", p->max_batch);
    add_bound(text, size, "queries", p->max_len_q);
    add_bound(text, size, "keys", p->max_len_kv);
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        if (f[i].wanted)
            add(text, size, ", %s", f[i].name);
    if (p->paged)
        add(text, size, ", pages of %d", (int)p->page_size);
}
