// SPDX-License-Identifier: Apache-2.0
// As cl/append.cl.
#include "host/int8.h"
#include "host/kv.h"
#include "host/rotary.h"

struct append {
    const struct cla_append_data *data;
    void *const *ptr;
};

enum {
    K_NEW, V_NEW, LENS, NEW_LENS, TABLE, OFFSETS, COS, SIN, K_CACHE, V_CACHE, K_SCALE, V_SCALE,
    FAULTS
};

static int64_t row_at(const struct cla_fwd_tensor *t, int64_t b, int64_t h, int64_t s)
{
    return b * t->stride_b + h * t->stride_h + s * t->stride_s;
}

static int32_t clamp_length(int64_t x, int64_t most, int32_t *fault)
{
    if (x >= 0 && x <= most)
        return (int32_t)x;
    *fault |= CLA_FAULT_LENGTH;
    return (int32_t)(x < 0 ? 0 : most);
}

static bool find_row(const struct append *t, int64_t b, int64_t j, int64_t *page, int64_t *row,
                     int32_t *fault)
{
    const struct cla_append_args *a = &t->data->args;
    const int32_t *table = t->ptr[TABLE];
    *page = b;
    *row = j;
    if (j >= (a->page_size ? (int64_t)a->page_size * a->max_pages : (int64_t)a->capacity)) {
        *fault |= CLA_FAULT_ROOM;
        return false;
    }
    if (a->page_size == 0)
        return true;
    *page = table[b * a->max_pages + j / a->page_size];
    *row = j % a->page_size;
    if (*page >= 0 && *page < a->num_pages)
        return true;
    *fault |= CLA_FAULT_PAGE;
    return false;
}

static void store_row(const struct append *t, const struct cla_turn *x, bool is_v, int64_t page,
                      int64_t h, int64_t row)
{
    const struct cla_append_args *a = &t->data->args;
    const int64_t to = row_at(is_v ? &a->v_cache : &a->k_cache, page, h, row);
    void *cache = t->ptr[is_v ? V_CACHE : K_CACHE];
    float v[CLA_ROW_CHUNK];
    if (t->data->dtype_cache != CLATTN_DTYPE_I8) {
        for (int32_t d = 0, n; d < x->dim; d += n) {
            n = cla_turn_chunk(x, d, v);
            cla_row_store(cache, to + d, t->data->dtype_cache, n, v);
        }
        return;
    }
    float largest = 0.0f;
    for (int32_t d = 0, n; d < x->dim; d += n) {
        n = cla_turn_chunk(x, d, v);
        for (int32_t k = 0; k < n; k++)
            largest = cla_larger(v[k], largest);
    }
    const float scale = cla_i8_scale(largest);
    for (int32_t d = 0, n; d < x->dim; d += n) {
        n = cla_turn_chunk(x, d, v);
        for (int32_t k = 0; k < n; k++)
            ((int8_t *)cache)[to + d + k] = scale > 0.0f ? cla_to_i8(v[k], scale) : 0;
    }
    float *scales = t->ptr[is_v ? V_SCALE : K_SCALE];
    scales[row_at(is_v ? &a->v_scale : &a->k_scale, page, h, row)] = scale;
}

static void one_row(const void *what, int64_t id)
{
    const struct append *t = what;
    const struct cla_append_args *a = &t->data->args;
    const int64_t rows = (int64_t)a->batch * a->heads * a->len;
    const bool is_v = id >= rows;
    const int64_t n = is_v ? id - rows : id;
    const int64_t i = n % a->len, h = n / a->len % a->heads, b = n / a->len / a->heads;
    const int32_t *lens = t->ptr[LENS], *new_lens = t->ptr[NEW_LENS], *offsets = t->ptr[OFFSETS];
    const int64_t most = a->page_size ? (int64_t)a->page_size * a->max_pages : a->capacity;
    int32_t fault = 0;
    const int32_t len =
        lens ? clamp_length(lens[b], most < INT32_MAX ? most : INT32_MAX, &fault) : 0;
    const int32_t count = new_lens ? clamp_length(new_lens[b], a->len, &fault) : a->len;
    struct cla_turn x = {.rotary = &a->rotary,
                         .mem = t->ptr[is_v ? V_NEW : K_NEW],
                         .at = row_at(is_v ? &a->v_new : &a->k_new, b, h, i),
                         .dtype = t->data->dtype_new,
                         .dim = is_v ? a->dim_v : a->dim_k,
                         .turned = is_v ? 0 : a->rotary.dim};
    int64_t page, row;
    const bool written = i < count && find_row(t, b, (int64_t)len + i, &page, &row, &fault);
    if (written && x.turned) {
        const int64_t at = cla_rotary_row(&a->rotary, offsets ? offsets[b] : len, i, &fault) *
                           (x.turned / 2);
        x.cos_row = (const float *)t->ptr[COS] + at;
        x.sin_row = (const float *)t->ptr[SIN] + at;
    }
    if (fault && t->ptr[FAULTS])
        cla_host_raise(t->ptr[FAULTS], fault);
    if (written)
        store_row(t, &x, is_v, page, h, row);
}

void cla_host_append(const struct cla_append_data *data, void *const *ptr, int32_t threads)
{
    const struct append t = {data, ptr};
    cla_host_each_row(data->rows, data->args.dim_k, threads, one_row, &t);
}
