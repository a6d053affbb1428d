// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <stdio.h>
#include <string.h>

#include "dtype.h"

// ---- tensors -----------------------------------------------------------------------------------

static bool multiply(size_t a, size_t b, size_t *out)
{
    // Half the range, so that byte counts fit signed types as well.
    if (b && a > SIZE_MAX / 2 / b)
        return false;
    *out = a * b;
    return true;
}

static void set(int64_t e[4], int64_t a, int64_t b, int64_t c, int64_t d)
{
    e[0] = a;
    e[1] = b;
    e[2] = c;
    e[3] = d;
}

// Extents [batch, heads, sequence, channels] of queries or keys.
static void query_extents(const struct tool_problem *p, int64_t channels, int64_t e[4])
{
    set(e, p->packed_q ? 1 : p->batch, p->heads_q, p->packed_q ? p->total_q : p->len_q, channels);
}

static void key_extents(const struct tool_problem *p, int64_t channels, int64_t e[4])
{
    if (p->page_size)
        set(e, p->num_pages, p->heads_kv, p->page_size, channels);
    else
        set(e, p->packed_kv ? 1 : p->batch, p->heads_kv, p->packed_kv ? p->total_kv : p->len_kv,
            channels);
}

static void copy_extents(const int32_t from[4], int64_t e[4])
{
    set(e, from[0], from[1], from[2], from[3]);
}

// Extents of a tensor, an extent of 0 where it is not used. Returns bytes of an element.
static size_t extents_of(const struct tool_problem *p, enum tool_tensor which, int64_t e[4])
{
    const bool i8 = p->dtype_kv == CLATTN_DTYPE_I8;

    set(e, 0, 0, 0, 0);
    switch (which) {
    case TOOL_Q: query_extents(p, p->dim_qk, e); return tool_dtype_bytes(p->dtype_q);
    case TOOL_K: key_extents(p, p->dim_qk, e); return tool_dtype_bytes(p->dtype_kv);
    case TOOL_V: key_extents(p, p->dim_v, e); return tool_dtype_bytes(p->dtype_kv);
    case TOOL_O: query_extents(p, p->dim_v, e); return tool_dtype_bytes(p->dtype_o);
    case TOOL_LSE: query_extents(p, p->lse ? 1 : 0, e); return sizeof(float);
    case TOOL_K_SCALE: key_extents(p, i8 ? 1 : 0, e); return sizeof(float);
    case TOOL_V_SCALE: key_extents(p, i8 ? 1 : 0, e); return sizeof(float);
    case TOOL_MASK:
        if (p->mask)
            copy_extents(p->mask_extent, e);
        return 1;
    case TOOL_BIAS:
        if (p->bias)
            copy_extents(p->bias_extent, e);
        return tool_dtype_bytes(p->dtype_bias);
    case TOOL_ALIBI: set(e, p->alibi, p->alibi_batch ? p->batch : 1, p->heads_q, 1); return 4;
    case TOOL_SINKS: set(e, p->sinks, p->heads_q, 1, 1); return 4;
    case TOOL_KV_LENS: set(e, p->kv_lens, p->batch, 1, 1); return 4;
    case TOOL_CU_Q: set(e, p->packed_q, (int64_t)p->batch + 1, 1, 1); return 4;
    case TOOL_CU_KV: set(e, p->packed_kv, (int64_t)p->batch + 1, 1, 1); return 4;
    default: set(e, p->page_size != 0, p->batch, p->max_pages, 1); return 4; // TOOL_TABLE
    }
}

bool tool_tensor_bytes(const struct tool_problem *p, enum tool_tensor which, size_t *bytes)
{
    int64_t e[4];
    size_t n = extents_of(p, which, e);

    *bytes = 0;
    for (int i = 0; i < 4; i++) {
        if (e[i] == 0)
            return true;
    }
    for (int i = 0; i < 4; i++) {
        if (!multiply(n, (size_t)e[i], &n))
            return false;
    }
    *bytes = n;
    return true;
}

void tool_tensor_shape(const struct tool_problem *p, enum tool_tensor which, int64_t shape[4])
{
    const bool bshd = p->layout == CLATTN_LAYOUT_BSHD;
    int64_t e[4];

    extents_of(p, which, e);
    set(shape, e[0], e[bshd ? 2 : 1], e[bshd ? 1 : 2], e[3]);
}

void tool_lse_shape(const struct tool_problem *p, int64_t shape[3])
{
    int64_t e[4];

    query_extents(p, 1, e);
    memcpy(shape, e, 3 * sizeof *shape);
}

// ---- description and call ----------------------------------------------------------------------

void tool_desc_init(const struct tool_problem *p, clattn_attention_desc *desc)
{
    const struct {
        bool wanted;
        uint32_t bit;
    } f[] = {{p->causal, CLATTN_FEATURE_CAUSAL},       {p->mask, CLATTN_FEATURE_MASK},
             {p->lse, CLATTN_FEATURE_LSE},             {p->window, CLATTN_FEATURE_WINDOW},
             {p->bias, CLATTN_FEATURE_BIAS},           {p->alibi, CLATTN_FEATURE_ALIBI},
             {p->softcap > 0, CLATTN_FEATURE_SOFTCAP}, {p->sinks, CLATTN_FEATURE_SINKS},
             {p->kv_lens, CLATTN_FEATURE_KV_LENS},     {p->packed_q, CLATTN_FEATURE_PACKED_Q},
             {p->packed_kv, CLATTN_FEATURE_PACKED_KV}, {p->page_size > 0, CLATTN_FEATURE_PAGED}};

    clattn_attention_desc_init(desc, sizeof *desc);
    for (size_t i = 0; i < sizeof f / sizeof *f; i++)
        desc->features |= f[i].wanted ? f[i].bit : 0u;
    desc->dtype_q = p->dtype_q;
    desc->dtype_kv = p->dtype_kv;
    desc->dtype_o = p->dtype_o;
    desc->dtype_bias = p->bias ? p->dtype_bias : 0;
    desc->dim_qk = p->dim_qk;
    desc->dim_v = p->dim_v;
    desc->heads_q = p->heads_q;
    desc->heads_kv = p->heads_kv;
    desc->max_batch = p->batch;
    desc->max_len_q = p->len_q;
    desc->max_len_kv = p->len_kv;
    desc->align = p->align;
    desc->algo = p->algo;
    desc->kernel = p->kernel;
    desc->precision = p->precision;
    desc->flags = p->flags;
    desc->num_splits = p->num_splits;
    desc->softmax = p->softmax;
    desc->page_size = p->page_size;
    desc->tile = p->tile;
}

void tool_call_fill(const struct tool_problem *p, const clattn_buf buf[TOOL_TENSORS],
                    clattn_attention_call *call)
{
    const struct {
        clattn_tensor *t;
        enum tool_tensor which;
    } tensors[] = {{&call->q, TOOL_Q}, {&call->k, TOOL_K}, {&call->v, TOOL_V}, {&call->o, TOOL_O},
                   {&call->k_scale, TOOL_K_SCALE}, {&call->v_scale, TOOL_V_SCALE}};

    clattn_attention_call_init(call, sizeof *call);
    call->batch = p->batch;
    call->len_q = p->len_q;
    call->len_kv = p->len_kv;
    if (p->has_scale) {
        call->set |= CLATTN_SET_SCALE;
        call->scale = p->scale;
    }
    if (p->window) {
        call->set |= CLATTN_SET_WINDOW;
        call->window_left = p->window_left;
        call->window_right = p->window_right;
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        tensors[i].t->layout = p->layout;
        tensors[i].t->buf = buf[tensors[i].which];
    }
    call->softcap = p->softcap;
    call->num_pages = p->num_pages;
    call->max_pages = p->max_pages;
    call->total_q = p->total_q;
    call->total_kv = p->total_kv;
    call->alibi_batch = p->alibi_batch;
    call->mask.buf = buf[TOOL_MASK];
    call->bias.buf = buf[TOOL_BIAS];
    if (p->mask)
        memcpy(call->mask.extent, p->mask_extent, sizeof p->mask_extent);
    if (p->bias)
        memcpy(call->bias.extent, p->bias_extent, sizeof p->bias_extent);
    call->lse = buf[TOOL_LSE];
    call->alibi = buf[TOOL_ALIBI];
    call->sinks = buf[TOOL_SINKS];
    call->kv_lens = buf[TOOL_KV_LENS];
    call->cu_seqlens_q = buf[TOOL_CU_Q];
    call->cu_seqlens_kv = buf[TOOL_CU_KV];
    call->page_table = buf[TOOL_TABLE];
}

// ---- text --------------------------------------------------------------------------------------

void tool_features_text(const struct tool_problem *p, char *text, size_t size)
{
    char window[48], softcap[32], pages[32], bias[16];
    const char *const packed = p->packed_q && p->packed_kv ? "packed"
                               : p->packed_q               ? "packed queries"
                                                           : "packed keys";
    const struct {
        bool wanted;
        const char *name;
    } f[] = {{p->causal, "causal"},           {p->window, window},
             {p->mask, "mask"},               {p->bias, bias},
             {p->alibi, "alibi"},             {p->softcap > 0, softcap},
             {p->sinks, "sinks"},             {p->kv_lens, "kv lengths"},
             {p->packed_q || p->packed_kv, packed}, {p->page_size > 0, pages},
             {p->align == CLATTN_ALIGN_TOP_LEFT, "top-left"}, {p->lse, "lse"},
             {p->precision == CLATTN_PRECISION_FULL, "full precision"}};
    size_t used = 0;

    snprintf(window, sizeof window, "window %d,%d", (int)p->window_left, (int)p->window_right);
    snprintf(softcap, sizeof softcap, "softcap %g", (double)p->softcap);
    snprintf(pages, sizeof pages, "pages of %d", (int)p->page_size);
    snprintf(bias, sizeof bias, "bias%s%s", p->dtype_bias ? " " : "",
             p->dtype_bias ? tool_dtype_words[p->dtype_bias] : "");
    snprintf(text, size, "none");
    for (size_t i = 0; i < sizeof f / sizeof *f && used < size; i++) {
        if (f[i].wanted)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", f[i].name);
    }
}

void tool_dtypes_text(const struct tool_problem *p, char *text, size_t size)
{
    const char *q = tool_dtype_words[p->dtype_q], *kv = tool_dtype_words[p->dtype_kv];
    const char *o = tool_dtype_words[p->dtype_o];

    snprintf(text, size, "%s%s%s%s%s", q, q == kv ? "" : ", K and V ", q == kv ? "" : kv,
             q == o ? "" : ", O ", q == o ? "" : o);
}
