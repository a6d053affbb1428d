// SPDX-License-Identifier: Apache-2.0
#include "call_data.h"

#include <math.h>

#include "util/half.h"

enum { MEMORY_MOST = 1 << 20, FILL = 0xc5, FILL_SECOND = 0x3a, ROWS_MOST = 1 << 16 };

// ---- extents -----------------------------------------------------------------------------------

// A tensor of rows, a mask, or numbers that follow each other, all in elements.
struct view {
    int axes;
    int64_t extent[4], stride[4];
    int64_t dim;
    int32_t dtype;
};

static size_t bytes_of(int32_t dtype)
{
    return dtype == CLATTN_DTYPE_F32 ? 4 : dtype == CLATTN_DTYPE_I8 ? 1 : 2;
}

static clattn_tensor *tensor_of(clattn_attention_call *c, enum data_part part)
{
    switch (part) {
    case DATA_Q: return &c->q;
    case DATA_K: return &c->k;
    case DATA_V: return &c->v;
    case DATA_O: return &c->o;
    case DATA_K_SCALE: return &c->k_scale;
    case DATA_V_SCALE: return &c->v_scale;
    default: return NULL;
    }
}

static clattn_buf *buf_of(clattn_attention_call *c, enum data_part part)
{
    switch (part) {
    case DATA_LSE: return &c->lse;
    case DATA_MASK: return &c->mask.buf;
    case DATA_BIAS: return &c->bias.buf;
    case DATA_ALIBI: return &c->alibi;
    case DATA_SINKS: return &c->sinks;
    case DATA_KV_LENS: return &c->kv_lens;
    case DATA_CU_Q: return &c->cu_seqlens_q;
    case DATA_CU_KV: return &c->cu_seqlens_kv;
    case DATA_TABLE: return &c->page_table;
    default: return &tensor_of(c, part)->buf;
    }
}

static bool wanted(const clattn_attention_desc *d, enum data_part part)
{
    static const uint32_t feature[DATA_PARTS] = {
        [DATA_LSE] = CLATTN_FEATURE_LSE,         [DATA_MASK] = CLATTN_FEATURE_MASK,
        [DATA_BIAS] = CLATTN_FEATURE_BIAS,       [DATA_ALIBI] = CLATTN_FEATURE_ALIBI,
        [DATA_SINKS] = CLATTN_FEATURE_SINKS,     [DATA_KV_LENS] = CLATTN_FEATURE_KV_LENS,
        [DATA_CU_Q] = CLATTN_FEATURE_PACKED_Q,   [DATA_CU_KV] = CLATTN_FEATURE_PACKED_KV,
        [DATA_TABLE] = CLATTN_FEATURE_PAGED};
    if (part == DATA_K_SCALE || part == DATA_V_SCALE)
        return d->dtype_kv == CLATTN_DTYPE_I8;
    return part <= DATA_O || (d->features & feature[part]);
}

static void set_vector(struct view *v, int64_t count, int64_t times)
{
    v->axes = 2;
    v->dim = 1;
    v->extent[0] = times;
    v->extent[1] = count;
    v->stride[0] = count;
    v->stride[1] = 1;
}

static void set_mask(const clattn_attention_call *c, const clattn_attention_desc *d,
                     const clattn_mask *m, struct view *v)
{
    const int64_t full[4] = {c->batch, d->heads_q, c->len_q, c->len_kv};
    int64_t step = 1;
    v->axes = 4;
    v->dim = 1;
    for (int i = 3; i >= 0; i--) {
        v->extent[i] = m->extent[i] ? m->extent[i] : full[i];
        v->stride[i] = m->layout == CLATTN_LAYOUT_STRIDED ? m->stride[i] : step;
        if (v->extent[i] == 1)
            v->stride[i] = 0;
        step = (int64_t)((uint64_t)step * (uint64_t)v->extent[i]);
    }
    if (!full[0] || !full[2] || !full[3])
        v->extent[0] = 0; // nothing of it is read
}

static void set_tensor(const clattn_attention_call *c, const clattn_attention_desc *d,
                       enum data_part part, struct view *v)
{
    const clattn_tensor *t = tensor_of((clattn_attention_call *)(uintptr_t)c, part);
    const bool query = part == DATA_Q || part == DATA_O;
    const bool paged = d->features & CLATTN_FEATURE_PAGED;
    const bool packed = d->features & (query ? CLATTN_FEATURE_PACKED_Q : CLATTN_FEATURE_PACKED_KV);
    const bool empty = !c->batch || !c->len_q || (!query && !c->len_kv);
    v->axes = 3;
    v->dim = part == DATA_Q || part == DATA_K ? d->dim_qk
             : part == DATA_V || part == DATA_O ? d->dim_v
                                                : 1;
    v->dtype = part == DATA_Q   ? d->dtype_q
               : part == DATA_O ? d->dtype_o
               : part <= DATA_V ? d->dtype_kv
                                : CLATTN_DTYPE_F32;
    v->extent[0] = !query && paged ? c->num_pages : packed ? 1 : c->batch;
    v->extent[1] = query ? d->heads_q : d->heads_kv;
    v->extent[2] = empty                             ? 0
                   : !query && paged                 ? d->page_size
                   : packed                          ? (query ? c->total_q : c->total_kv)
                                                     : (query ? c->len_q : c->len_kv);
    const uint64_t heads = (uint64_t)v->extent[1], len = (uint64_t)v->extent[2];
    const uint64_t dim = (uint64_t)v->dim;
    const bool bshd = t->layout == CLATTN_LAYOUT_BSHD;
    v->stride[0] = (int64_t)(heads * len * dim);
    v->stride[1] = (int64_t)(bshd ? dim : len * dim);
    v->stride[2] = (int64_t)(bshd ? heads * dim : dim);
    if (t->layout == CLATTN_LAYOUT_STRIDED) {
        v->stride[0] = t->stride_batch;
        v->stride[1] = t->stride_head;
        v->stride[2] = t->stride_seq;
    }
}

static struct view view_of(const clattn_attention_call *c, const clattn_attention_desc *d,
                           enum data_part part)
{
    struct view v = {.dtype = CLATTN_DTYPE_F32};
    const int64_t batch = c->batch;
    switch (part) {
    case DATA_LSE:
        set_vector(&v, d->features & CLATTN_FEATURE_PACKED_Q ? c->total_q : batch * c->len_q,
                   d->heads_q);
        if (!batch || !c->len_q)
            v.extent[0] = 0;
        break;
    case DATA_MASK:
        set_mask(c, d, &c->mask, &v);
        v.dtype = CLATTN_DTYPE_I8;
        break;
    case DATA_BIAS:
        set_mask(c, d, &c->bias, &v);
        v.dtype = d->dtype_bias;
        break;
    case DATA_ALIBI: set_vector(&v, d->heads_q, c->alibi_batch ? batch : 1); break;
    case DATA_SINKS: set_vector(&v, d->heads_q, 1); break;
    case DATA_KV_LENS: set_vector(&v, batch, 1); break;
    case DATA_CU_Q:
    case DATA_CU_KV: set_vector(&v, batch + 1, 1); break;
    case DATA_TABLE: set_vector(&v, c->max_pages, c->len_kv ? batch : 0); break;
    default: set_tensor(c, d, part, &v); break;
    }
    return v;
}

// Bytes from the start of the memory; 0 where there are no elements, -1 where it is no size.
static int64_t reach_of(const struct view *v, size_t offset)
{
    long double last = (long double)v->dim; // exact as far as it counts
    for (int i = 0; i < v->axes; i++)
        if (v->extent[i] == 0)
            return 0; // whatever the strides
    for (int i = 0; i < v->axes; i++) {
        if (v->extent[i] < 0 || v->stride[i] < 0)
            return -1;
        last += (long double)(v->extent[i] - 1) * (long double)v->stride[i];
        if (last >= 0x1p63L)
            return -1;
    }
    last = last * (long double)bytes_of(v->dtype) + (long double)offset;
    return last >= 0x1p63L ? -1 : (int64_t)last;
}

// ---- fields ------------------------------------------------------------------------------------

static void take_layout(struct bytes *b, const clattn_attention_desc *d, enum data_part part,
                        struct call_data *c)
{
    static const int order[6][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2},
                                    {0, 1, 2}};
    clattn_tensor *t = tensor_of(&c->call, part);
    int64_t *const stride[3] = {&t->stride_batch, &t->stride_head, &t->stride_seq};
    const uint32_t form = take_byte(b);
    t->buf.offset_bytes = take_below(b, 4) * bytes_of(view_of(&c->call, d, part).dtype);
    t->layout = form % 4 < 3 ? (int32_t)(form % 4) : CLATTN_LAYOUT_STRIDED;
    if (t->layout != CLATTN_LAYOUT_STRIDED)
        return;
    const struct view v = view_of(&c->call, d, part);
    int64_t step = v.dim + take_below(b, 10);
    for (int i = 0; i < 3; i++) {
        const int axis = order[form / 4 % 6][i];
        *stride[axis] = step;
        step *= v.extent[axis] > 0 ? v.extent[axis] : 1;
        step += form / 24 % 3;
    }
    if (part != DATA_O && form > 200)
        *stride[form % 3] = 0;
}

static void take_mask(struct bytes *b, const clattn_attention_desc *d, clattn_mask *m,
                      const clattn_attention_call *c, size_t elem)
{
    const int32_t full[4] = {c->batch, d->heads_q, c->len_q, c->len_kv};
    const uint32_t form = take_byte(b);
    const bool strided = form & 16; // else the strides are the layout's own
    int64_t step = strided ? 1 + (form >> 7) : 1;
    m->layout = strided ? CLATTN_LAYOUT_STRIDED : CLATTN_LAYOUT_BHSD;
    for (int i = 3; i >= 0; i--) {
        m->extent[i] = form >> i & 1 ? 1 : form & 32 ? full[i] : 0;
        m->stride[i] = strided && form & 64 && i == 2 ? 0 : step;
        step *= m->extent[i] == 1 ? 1 : full[i] > 0 ? full[i] : 1;
    }
    m->buf.offset_bytes = take_below(b, 4) * elem;
}

static float take_float(struct bytes *b)
{
    static const float list[] = {0, 1, -1, 0.125f, 1e-3f, 30, 100, -0.5f, 1e30f, 1e-40f, 3e38f,
                                 INFINITY, NAN};
    return list[take_below(b, 13)];
}

static void take_scalars(struct bytes *b, const clattn_attention_desc *d,
                         clattn_attention_call *call)
{
    static const int32_t batches[] = {1, 1, 2, 3, 2, 1, 3, 0};
    static const int32_t lens_q[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 23, 24, 25, 33, 0};
    static const int32_t lens_kv[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 119, 120, 121,
                                      130, 241, 0};
    static const int32_t sides[] = {-1, 0, 1, 2, 3, 7, 16, 100, INT32_MAX};
    const uint32_t given = take_byte(b);
    call->batch = TAKE_OF(b, batches);
    call->len_q = TAKE_OF(b, lens_q);
    call->len_kv = TAKE_OF(b, lens_kv);
    if (given & 1) {
        call->set |= CLATTN_SET_SCALE;
        call->scale = take_float(b);
    }
    if (d->features & CLATTN_FEATURE_WINDOW && given & 2) {
        call->set |= CLATTN_SET_WINDOW;
        call->window_left = TAKE_OF(b, sides);
        call->window_right = TAKE_OF(b, sides);
    }
    if (d->features & CLATTN_FEATURE_SOFTCAP)
        call->softcap = fabsf(take_float(b));
    if (d->features & CLATTN_FEATURE_ALIBI)
        call->alibi_batch = given >> 2 & 1;
    if (d->features & CLATTN_FEATURE_PAGED) {
        call->num_pages = 1 + take_below(b, 9);
        call->max_pages = (call->len_kv + d->page_size - 1) / d->page_size + take_below(b, 3);
    }
}

// 0 would mean that the size is not known.
static void shrink(clattn_buf *buf, uint64_t x)
{
    if (buf->size_bytes)
        buf->size_bytes = (size_t)(x % buf->size_bytes) + 1;
}

// A field that anybody could have set to anything.
static void spoil(struct bytes *b, struct call_data *c)
{
    clattn_attention_call *call = &c->call;
    int32_t *const field[] = {&call->batch, &call->len_q, &call->len_kv, &call->num_pages,
                              &call->max_pages, &call->total_q, &call->total_kv,
                              &call->alibi_batch, &call->window_left, &call->window_right,
                              &call->q.layout, &call->o.layout, &call->v.reserved,
                              &call->mask.layout, &call->bias.reserved};
    clattn_buf *buf = buf_of(call, (enum data_part)take_below(b, DATA_PARTS));
    clattn_tensor *t = tensor_of(call, (enum data_part)take_below(b, 4));
    clattn_mask *m = take_once_in(b, 2) ? &call->mask : &call->bias;
    const int64_t x = take_edge(b);
    c->spoilt = true;
    switch (take_below(b, 14)) {
    case 0: t->stride_batch = x; break;
    case 1: t->stride_head = x; break;
    case 2: t->stride_seq = x; break;
    case 3: m->stride[take_below(b, 4)] = x; break;
    case 4: m->extent[take_below(b, 4)] = (int32_t)x; break;
    case 5: buf->offset_bytes = (size_t)x; break;
    case 6: buf->kind = (int32_t)x; break;
    case 7: buf->reserved = (uint32_t)x; break;
    case 8: shrink(buf, (uint64_t)x); break;
    case 9: call->set = (uint32_t)x; break;
    case 10: memcpy(take_once_in(b, 2) ? &call->scale : &call->softcap, &x, 4); break;
    case 11: call->reserved = (uint32_t)x; break;
    case 12: // an older caller's struct, or nonsense
        call->struct_size = (size_t)x > 65536 ? (size_t)x : (size_t)x % sizeof *call;
        if (call->struct_size < sizeof *call)
            memset((char *)call + (call->struct_size > 8 ? call->struct_size : 8), 0,
                   sizeof *call - (call->struct_size > 8 ? call->struct_size : 8));
        break;
    default: *field[take_below(b, 15)] = (int32_t)x; break;
    }
}

// ---- numbers in memory -------------------------------------------------------------------------

FUZZ_SILENT
static void store(char *at, int32_t dtype, float x)
{
    const uint16_t f16 = cla_f32_to_f16(x), bf16 = cla_f32_to_bf16(x);
    const int8_t i8 = (int8_t)(isfinite(x) ? fmaxf(-127, fminf(127, x)) : 0);
    switch (dtype) {
    case CLATTN_DTYPE_F16: memcpy(at, &f16, 2); break;
    case CLATTN_DTYPE_BF16: memcpy(at, &bf16, 2); break;
    case CLATTN_DTYPE_I8: memcpy(at, &i8, 1); break;
    default: memcpy(at, &x, 4); break;
    }
}

FUZZ_SILENT
static double load(const char *at, int32_t dtype)
{
    float x;
    uint16_t h;
    memcpy(&h, at, 2);
    if (dtype == CLATTN_DTYPE_F16)
        return (double)cla_f16_to_f32(h);
    if (dtype == CLATTN_DTYPE_BF16)
        return (double)cla_bf16_to_f32(h);
    memcpy(&x, at, 4);
    return (double)x;
}

struct numbers {
    uint64_t state;
    float size;    // of most
    bool special; // some are of another kind
};

FUZZ_SILENT
static float next_number(struct numbers *n)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 1e-40f, 60000, 1e30f};
    const uint64_t r = next_random(&n->state);
    if (n->special && r % 61 == 0)
        return special[r >> 8 & 7];
    return n->size * ((float)(int32_t)(r >> 32) * 0x1p-31f);
}

FUZZ_SILENT
static void fill_view(const struct view *v, enum data_part part, struct numbers *n,
                      struct call_data *c)
{
    const size_t elem = bytes_of(v->dtype), offset = buf_of(&c->call, part)->offset_bytes;
    const int64_t *e = v->extent, fourth = v->axes > 3 ? e[3] : 1, third = v->axes > 2 ? e[2] : 1;
    if ((double)e[0] * (double)e[1] * (double)third * (double)fourth > ROWS_MOST)
        return;
    for (int64_t r = 0; r < e[0] * e[1] * third * fourth; r++) {
        const int64_t at = r / (fourth * third * e[1]) * v->stride[0] +
                           r / (fourth * third) % e[1] * v->stride[1] +
                           (v->axes > 2 ? r / fourth % third * v->stride[2] : 0) +
                           (v->axes > 3 ? r % fourth * v->stride[3] : 0);
        for (int64_t k = 0; k < v->dim; k++) {
            float x = next_number(n);
            if (part == DATA_MASK)
                x = x > -0.6f * n->size ? 1 : 0;
            else if (part == DATA_ALIBI)
                x = fabsf(x) / 4;
            else if (part == DATA_K_SCALE || part == DATA_V_SCALE)
                x = isinf(x) ? NAN : fabsf(x) / 127; // NaN stands for a row that is not finite
            else if (v->dtype == CLATTN_DTYPE_I8)
                x = x / n->size * 127;
            else if (part == DATA_BIAS && x > 0.8f * n->size)
                x = -INFINITY;
            char *to = c->memory[part] + offset + (size_t)(at + k) * elem;
            store(to, v->dtype, x);
            if (v->dtype != CLATTN_DTYPE_I8) {
                const float stored = v->dtype == CLATTN_DTYPE_F32   ? x
                         : v->dtype == CLATTN_DTYPE_F16 ? cla_f16_to_f32(cla_f32_to_f16(x))
                                                        : cla_bf16_to_f32(cla_f32_to_bf16(x));
                if (isfinite(stored) && fabs((double)stored) > c->largest[part])
                    c->largest[part] = fabs((double)stored);
            }
        }
    }
}

FUZZ_SILENT
static void fill_ints(struct bytes *b, const clattn_attention_desc *d, struct call_data *c,
                      const int32_t lens[CALL_BATCH], int32_t cu[2][CALL_BATCH + 1],
                      uint64_t *seed)
{
    const int32_t batch = c->call.batch;
    for (int part = DATA_KV_LENS; part <= DATA_TABLE; part++) {
        const size_t n = c->memory[part] ? c->size[part] / 4 : 0;
        const size_t skip = buf_of(&c->call, (enum data_part)part)->offset_bytes / 4;
        for (size_t i = skip; i < n; i++) {
            const size_t k = i - skip;
            int32_t x = (int32_t)next_random(seed);
            if (part == DATA_KV_LENS && k < CALL_BATCH)
                x = lens[k];
            else if ((part == DATA_CU_Q || part == DATA_CU_KV) && k <= CALL_BATCH)
                x = cu[part == DATA_CU_KV][k];
            else if (part == DATA_TABLE && c->call.max_pages > 0 && c->call.num_pages > 0) {
                const int64_t page = (int64_t)k % c->call.max_pages;
                const int64_t s = (int64_t)k / c->call.max_pages;
                if (s < batch && page * d->page_size < lens[s])
                    x = (int32_t)((uint32_t)x % (uint32_t)c->call.num_pages);
            }
            if (take_once_in(b, 250)) {
                x = (int32_t)take_edge(b);
                c->spoilt = true;
            }
            memcpy(c->memory[part] + 4 * i, &x, 4);
        }
    }
}

// Lengths of sequences by the features; those that were not asked for are the call's.
static void take_lengths(struct bytes *b, const clattn_attention_desc *d, struct call_data *c,
                         int32_t lens[CALL_BATCH], int32_t cu[2][CALL_BATCH + 1])
{
    clattn_attention_call *call = &c->call;
    const bool packed_q = d->features & CLATTN_FEATURE_PACKED_Q;
    const bool packed_kv = d->features & CLATTN_FEATURE_PACKED_KV;
    cu[0][0] = take_below(b, 3);
    cu[1][0] = take_below(b, 3);
    for (int32_t s = 0; s < call->batch && s < CALL_BATCH; s++) {
        c->own_q[s] = packed_q ? take_below(b, call->len_q + 1) : call->len_q;
        c->first_q[s] = packed_q ? cu[0][s] : 0;
        lens[s] = packed_kv ? take_below(b, call->len_kv + 1) : call->len_kv;
        cu[0][s + 1] = cu[0][s] + c->own_q[s];
        cu[1][s + 1] = cu[1][s] + lens[s];
        if (d->features & CLATTN_FEATURE_KV_LENS)
            lens[s] = take_below(b, lens[s] + 1);
    }
    call->total_q = packed_q ? cu[0][call->batch] + take_below(b, 3) : 0;
    call->total_kv = packed_kv ? cu[1][call->batch] + take_below(b, 3) : 0;
}

// ---- making ------------------------------------------------------------------------------------

static void take_memory(struct bytes *b, const clattn_attention_desc *d, struct call_data *c)
{
    for (int part = 0; part < DATA_PARTS; part++) {
        clattn_buf *buf = buf_of(&c->call, (enum data_part)part);
        if (!wanted(d, (enum data_part)part))
            continue;
        if (part > DATA_BIAS || part == DATA_LSE)
            if (part < DATA_K_SCALE)
                buf->offset_bytes = 4 * (size_t)take_below(b, 3);
        const struct view v = view_of(&c->call, d, (enum data_part)part);
        int64_t need = reach_of(&v, buf->offset_bytes);
        if (need < 0 || need > MEMORY_MOST) {
            c->spoilt = true;
            need = 64;
        }
        if (need == 0) {
            buf->offset_bytes = 0;
            continue;
        }
        size_t size = (size_t)need;
        const uint32_t other = take_byte(b);
        if (other >= 240 && size > 1) {
            size -= other < 252 ? 1 : size / 2;
            c->spoilt = true;
        } else if (other >= 224) {
            size += other % 16;
        }
        c->memory[part] = malloc(size);
        FUZZ_CHECK(c->memory[part], "memory");
        c->size[part] = size;
        memset(c->memory[part], part == DATA_O || part == DATA_LSE ? FILL : 0xff, size);
        *buf = (clattn_buf){CLATTN_BUF_HOST, 0, c->memory[part], buf->offset_bytes, size};
    }
}

static void fill(struct bytes *b, const clattn_attention_desc *d, struct call_data *c)
{
    static const float sizes[] = {1, 0.1f, 3, 20, 200, 1e-20f};
    struct numbers n = {.state = take_number(b, 2)};
    const uint32_t kind = take_byte(b);
    n.special = kind >= 200;
    for (int part = 0; part < DATA_PARTS; part++) {
        const struct view v = view_of(&c->call, d, (enum data_part)part);
        const int64_t need = reach_of(&v, buf_of(&c->call, (enum data_part)part)->offset_bytes);
        n.size = part == DATA_MASK ? 1 : sizes[part == DATA_Q ? kind % 6 : kind / 6 % 6];
        const bool numbers = part != DATA_O && part != DATA_LSE &&
                             (part < DATA_KV_LENS || part > DATA_TABLE);
        if (numbers && c->memory[part] && need > 0 && (size_t)need <= c->size[part])
            fill_view(&v, (enum data_part)part, &n, c);
    }
    if (d->dtype_kv == CLATTN_DTYPE_I8) {
        c->largest[DATA_K] = 127 * c->largest[DATA_K_SCALE];
        c->largest[DATA_V] = 127 * c->largest[DATA_V_SCALE];
    }
}

static char *another(const char *memory, size_t size)
{
    char *copy = memory ? malloc(size) : NULL;
    if (copy)
        memset(copy, FILL_SECOND, size);
    return copy;
}

void call_data_take(struct bytes *b, const clattn_attention_desc *d, struct call_data *c)
{
    int32_t lens[CALL_BATCH] = {0}, cu[2][CALL_BATCH + 1] = {{0}};
    memset(c, 0, sizeof *c);
    c->heads_q = d->heads_q;
    clattn_attention_call_init(&c->call, sizeof c->call);
    take_scalars(b, d, &c->call);
    c->spoilt = d->max_batch || d->max_len_q || d->max_len_kv || !isfinite(c->call.scale) ||
                !isfinite(c->call.softcap) || d->heads_q > 4096;
    take_lengths(b, d, c, lens, cu);
    for (int part = 0; part < DATA_PARTS; part++)
        if (tensor_of(&c->call, (enum data_part)part) && wanted(d, (enum data_part)part))
            take_layout(b, d, (enum data_part)part, c);
    if (d->features & CLATTN_FEATURE_MASK)
        take_mask(b, d, &c->call.mask, &c->call, 1);
    if (d->features & CLATTN_FEATURE_BIAS)
        take_mask(b, d, &c->call.bias, &c->call, bytes_of(d->dtype_bias));
    if (take_once_in(b, 8)) // memory follows
        spoil(b, c);
    const clattn_attention_call made_for = c->call;
    take_memory(b, d, c);
    uint64_t seed = take_number(b, 2);
    if (!c->spoilt || made_for.batch <= CALL_BATCH)
        fill_ints(b, d, c, lens, cu, &seed);
    fill(b, d, c);
    c->second_o = another(c->memory[DATA_O], c->size[DATA_O]);
    c->second_lse = another(c->memory[DATA_LSE], c->size[DATA_LSE]);
    if (take_once_in(b, 64)) { // O where an input is
        c->call.o.buf = c->call.k.buf;
        c->spoilt = true;
    }
    while (take_once_in(b, 4)) // memory does not follow
        spoil(b, c);
}

void call_data_free(struct call_data *c)
{
    for (int part = 0; part < DATA_PARTS; part++)
        free(c->memory[part]);
    free(c->second_o);
    free(c->second_lse);
}

// ---- promises ----------------------------------------------------------------------------------

void call_data_check_reach(const clattn_attention_desc *d, const struct call_data *c)
{
    clattn_attention_call *call = (clattn_attention_call *)(uintptr_t)&c->call;
    for (int part = 0; part < DATA_PARTS; part++) {
        const clattn_buf *buf = buf_of(call, (enum data_part)part);
        if (!wanted(d, (enum data_part)part) || !call->batch || !call->len_q)
            continue;
        const struct view v = view_of(call, d, (enum data_part)part);
        const int64_t need = reach_of(&v, buf->offset_bytes);
        const int from = part == DATA_O && buf->ptr == c->memory[DATA_K] ? DATA_K : part;
        FUZZ_CHECK(need >= 0 && (need == 0 || (size_t)need <= buf->size_bytes) &&
                       (need == 0 || buf->size_bytes <= c->size[from]),
                   "part %d: %lld of %zu bytes are accepted", part, (long long)need,
                   buf->size_bytes);
        FUZZ_CHECK(need == 0 || buf->offset_bytes % bytes_of(v.dtype) == 0, "part %d: offset",
                   part);
    }
    const struct view o = view_of(call, d, DATA_O), k = view_of(call, d, DATA_K);
    const int64_t o_end = reach_of(&o, call->o.buf.offset_bytes);
    const int64_t k_end = reach_of(&k, call->k.buf.offset_bytes);
    FUZZ_CHECK(call->o.buf.ptr != call->k.buf.ptr || o_end <= 0 || k_end <= 0 ||
                   o_end <= (int64_t)call->k.buf.offset_bytes ||
                   k_end <= (int64_t)call->o.buf.offset_bytes,
               "O in K");
}

bool call_data_bounded(struct call_data *c)
{
    const clattn_attention_call *call = &c->call;
    const int32_t *cu = (const int32_t *)(const void *)c->memory[DATA_CU_Q];
    if (call->batch < 0 || call->batch > CALL_BATCH || call->o.buf.ptr != c->memory[DATA_O])
        return false;
    // What was accepted counts, not what was meant.
    for (int32_t b = 0; b < call->batch; b++) {
        c->own_q[b] = call->len_q;
        c->first_q[b] = 0;
        if (call->cu_seqlens_q.kind && call->len_q) {
            const size_t skip = call->cu_seqlens_q.offset_bytes / 4;
            c->first_q[b] = cu[skip + (size_t)b];
            c->own_q[b] = cu[skip + (size_t)b + 1] - cu[skip + (size_t)b];
        }
    }
    return true;
}

void call_data_use_second(struct call_data *c)
{
    c->call.o.buf.ptr = c->second_o;
    c->call.lse.ptr = c->second_lse;
}

FUZZ_SILENT
static size_t o_at(const clattn_attention_desc *d, const struct call_data *c, const struct row *r)
{
    const struct view v = view_of(&c->call, d, DATA_O);
    const int64_t outer = d->features & CLATTN_FEATURE_PACKED_Q ? 0 : r->b;
    return c->call.o.buf.offset_bytes +
           (size_t)(outer * v.stride[0] + r->h * v.stride[1] + r->at * v.stride[2]) *
               bytes_of(v.dtype);
}

FUZZ_SILENT
static size_t lse_at(const struct call_data *c, const struct row *r)
{
    const clattn_attention_call *call = &c->call;
    const bool packed = call->cu_seqlens_q.kind != CLATTN_BUF_ABSENT;
    const int64_t len = packed ? call->total_q : call->len_q;
    const int64_t rows = packed ? r->h : (int64_t)r->b * c->heads_q + r->h;
    return call->lse.offset_bytes + 4 * (size_t)(rows * len + r->at);
}

FUZZ_SILENT
double call_data_o(const clattn_attention_desc *d, const struct call_data *c, int which,
                   const struct row *row, int32_t n)
{
    const char *memory = which ? c->second_o : c->memory[DATA_O];
    char elem[4] = {0};
    memcpy(elem, memory + o_at(d, c, row) + (size_t)n * bytes_of(d->dtype_o),
           bytes_of(d->dtype_o));
    return load(elem, d->dtype_o);
}

FUZZ_SILENT
double call_data_lse(const struct call_data *c, int which, const struct row *row)
{
    return load((which ? c->second_lse : c->memory[DATA_LSE]) + lse_at(c, row), CLATTN_DTYPE_F32);
}

// Bytes that nobody owns.
FUZZ_SILENT
static bool others_kept(const char *memory, const bool *owned, size_t size, int fill_byte)
{
    for (size_t i = 0; memory && i < size; i++)
        if (!(owned && owned[i]) && (unsigned char)memory[i] != fill_byte)
            return false;
    return true;
}

FUZZ_SILENT
bool call_data_untouched(const clattn_attention_desc *d, const struct call_data *c, bool ran)
{
    const bool lse = ran && c->memory[DATA_LSE];
    if (!ran)
        return others_kept(c->memory[DATA_O], NULL, c->size[DATA_O], FILL) &&
               others_kept(c->memory[DATA_LSE], NULL, c->size[DATA_LSE], FILL);
    bool *own_o = calloc(c->size[DATA_O] + 1, 1), *own_lse = calloc(c->size[DATA_LSE] + 1, 1);
    const size_t row_bytes = (size_t)d->dim_v * bytes_of(d->dtype_o);
    FUZZ_CHECK(own_o && own_lse, "memory");
    for (int32_t b = 0; b < c->call.batch; b++)
        for (int32_t h = 0; h < d->heads_q; h++)
            for (int32_t i = 0; i < c->own_q[b]; i++) {
                const struct row r = {b, h, i, c->first_q[b] + i};
                const size_t at = o_at(d, c, &r);
                for (size_t n = 0; n < row_bytes; n++) {
                    FUZZ_CHECK(!own_o[at + n], "elements of O that overlap are accepted");
                    own_o[at + n] = true;
                }
                if (lse)
                    memset(own_lse + lse_at(c, &r), 1, 4);
            }
    const bool kept = others_kept(c->memory[DATA_O], own_o, c->size[DATA_O], FILL) &&
                      others_kept(c->second_o, own_o, c->size[DATA_O], FILL_SECOND) &&
                      others_kept(c->memory[DATA_LSE], own_lse, c->size[DATA_LSE], FILL) &&
                      others_kept(c->second_lse, own_lse, c->size[DATA_LSE], FILL_SECOND);
    free(own_o);
    free(own_lse);
    return kept;
}
