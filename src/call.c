// SPDX-License-Identifier: Apache-2.0
// A call becomes a checked call. Numbers in host memory that say where things lie are checked too.
#include <math.h>

#include "abi.h"
#include "call_memory.h"

// ---- fields ------------------------------------------------------------------------------------

static clattn_status check_lengths(const struct cla_problem *p, const clattn_attention_call *call,
                                   const struct cla_log *log)
{
    const struct {
        const char *name;
        int32_t value, bound;
    } f[3] = {{"batch", call->batch, p->max_batch},
              {"len_q", call->len_q, p->max_len_q},
              {"len_kv", call->len_kv, p->max_len_kv}};
    for (int i = 0; i < 3; i++) {
        if (f[i].value < 0)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %d, negative", f[i].name,
                            (int)f[i].value);
        if (f[i].value > f[i].bound)
            return cla_fail(log, CLATTN_ERR_OVER_BOUND, "%s is %d, the plan's bound is %d",
                            f[i].name, (int)f[i].value, (int)f[i].bound);
    }
    if ((int64_t)call->len_q * p->group > INT32_MAX)
        return cla_fail(log, CLATTN_ERR_SHAPE,
                        "len_q %d times %d query heads a key head is over 2^31 - 1",
                        (int)call->len_q, (int)p->group);
    return CLATTN_OK;
}

static clattn_status check_window(const struct cla_problem *p, const clattn_attention_call *call,
                                  const struct cla_log *log)
{
    const bool set = (call->set & CLATTN_SET_WINDOW) != 0;
    if (set && !p->window)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "call.set has CLATTN_SET_WINDOW, but the plan is without "
                        "CLATTN_FEATURE_WINDOW");
    if (set && (call->window_left < -1 || call->window_right < -1))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "window is (%d, %d), below -1",
                        (int)call->window_left, (int)call->window_right);
    if (!set && (call->window_left || call->window_right))
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                        "window is (%d, %d), but CLATTN_SET_WINDOW is not in call.set",
                        (int)call->window_left, (int)call->window_right);
    return CLATTN_OK;
}

// Counts that go with a feature.
static clattn_status check_counts(const struct cla_problem *p, const clattn_attention_call *call,
                                  const struct cla_log *log)
{
    const struct {
        const char *name;
        int32_t value;
        bool wanted;
        const char *feature;
    } f[] = {{"num_pages", call->num_pages, p->paged, "PAGED"},
             {"max_pages", call->max_pages, p->paged, "PAGED"},
             {"total_q", call->total_q, p->packed_q, "PACKED_Q"},
             {"total_kv", call->total_kv, p->packed_kv, "PACKED_KV"},
             {"alibi_batch", call->alibi_batch, p->alibi, "ALIBI"}};
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        if (f[i].value < 0)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %d, negative", f[i].name,
                            (int)f[i].value);
        if (f[i].value && !f[i].wanted)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                            "%s is %d, but the plan is without CLATTN_FEATURE_%s", f[i].name,
                            (int)f[i].value, f[i].feature);
    }
    if (call->alibi_batch > 1)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "alibi_batch is %d, not 0 or 1",
                        (int)call->alibi_batch);
    if (p->paged && call->num_pages == 0 && call->len_kv > 0)
        return cla_fail(log, CLATTN_ERR_SHAPE, "num_pages is 0, but len_kv is %d",
                        (int)call->len_kv);
    if (p->paged && (int64_t)call->max_pages * p->page_size < call->len_kv)
        return cla_fail(log, CLATTN_ERR_SHAPE, "max_pages %d of %d keys are less than len_kv %d",
                        (int)call->max_pages, (int)p->page_size, (int)call->len_kv);
    return CLATTN_OK;
}

// Buffers that the plan does not expect.
static clattn_status check_absent(const struct cla_problem *p, const clattn_attention_call *call,
                                  const struct cla_log *log)
{
    const bool i8 = p->dtype_kv == CLATTN_DTYPE_I8;
    const struct {
        const char *name;
        const clattn_buf *buf;
        bool wanted;
        const char *what;
    } f[] = {{"mask", &call->mask.buf, p->mask, "CLATTN_FEATURE_MASK"},
             {"lse", &call->lse, p->lse, "CLATTN_FEATURE_LSE"},
             {"bias", &call->bias.buf, p->bias, "CLATTN_FEATURE_BIAS"},
             {"alibi", &call->alibi, p->alibi, "CLATTN_FEATURE_ALIBI"},
             {"sinks", &call->sinks, p->sinks, "CLATTN_FEATURE_SINKS"},
             {"kv_lens", &call->kv_lens, p->kv_lens, "CLATTN_FEATURE_KV_LENS"},
             {"cu_seqlens_q", &call->cu_seqlens_q, p->packed_q, "CLATTN_FEATURE_PACKED_Q"},
             {"cu_seqlens_kv", &call->cu_seqlens_kv, p->packed_kv, "CLATTN_FEATURE_PACKED_KV"},
             {"page_table", &call->page_table, p->paged, "CLATTN_FEATURE_PAGED"},
             {"k_scale", &call->k_scale.buf, i8, "dtype_kv CLATTN_DTYPE_I8"},
             {"v_scale", &call->v_scale.buf, i8, "dtype_kv CLATTN_DTYPE_I8"}};
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++)
        if (!f[i].wanted && f[i].buf->kind != CLATTN_BUF_ABSENT)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                            "%s is given (kind %d), but the plan is without %s", f[i].name,
                            (int)f[i].buf->kind, f[i].what);
    return CLATTN_OK;
}

static clattn_status check_fields(const struct cla_problem *p, const clattn_attention_call *call,
                                  const struct cla_log *log)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(cla_check_bits(log, "call.set", call->set, CLATTN_SET_SCALE | CLATTN_SET_WINDOW));
    CLA_TRY(cla_check_bits(log, "call.reserved", call->reserved, 0));
    if ((call->set & CLATTN_SET_SCALE) && !isfinite(call->scale))
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "scale is %g, not finite",
                         (double)call->scale));
    if (!(call->set & CLATTN_SET_SCALE) && call->scale != 0.0f)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "scale is %g, but CLATTN_SET_SCALE is not in call.set",
                         (double)call->scale));
    if (!isfinite(call->softcap) || call->softcap < 0.0f)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "softcap is %g, not finite and >= 0",
                         (double)call->softcap));
    if (call->softcap != 0.0f && !p->softcap)
        CLA_TRY(cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                         "softcap is %g, but the plan is without CLATTN_FEATURE_SOFTCAP",
                         (double)call->softcap));
    CLA_TRY(check_lengths(p, call, log));
    CLA_TRY(check_window(p, call, log));
    CLA_TRY(check_counts(p, call, log));
    CLA_TRY(check_absent(p, call, log));
done:
    return st;
}

// ---- buffers -----------------------------------------------------------------------------------

static clattn_status check_main(const struct cla_checker *c, const clattn_attention_call *in,
                                struct cla_call *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_problem *p = c->p;
    // An empty problem writes nothing, and its inputs are not read either. Without keys Q still
    // has elements, which kernels load before they count keys.
    const int64_t nq = in->batch ? in->len_q : 0, nk = nq ? in->len_kv : 0;
    const int64_t q[3] = {p->packed_q ? 1 : in->batch, p->heads_q,
                          p->packed_q && nq ? in->total_q : nq};
    const int64_t kv[3] = {p->paged ? in->num_pages : p->packed_kv ? 1 : in->batch, p->heads_kv,
                           nk == 0        ? 0
                           : p->paged     ? p->page_size
                           : p->packed_kv ? in->total_kv
                                          : nk};
    CLA_TRY(cla_check_tensor(c, "q", &in->q, q, p->dim_qk, p->dtype_q, false, &out->q));
    CLA_TRY(cla_check_tensor(c, "k", &in->k, kv, p->dim_qk, p->dtype_kv, false, &out->k));
    CLA_TRY(cla_check_tensor(c, "v", &in->v, kv, p->dim_v, p->dtype_kv, false, &out->v));
    CLA_TRY(cla_check_tensor(c, "o", &in->o, q, p->dim_v, p->dtype_o, true, &out->o));
    if (p->dtype_kv == CLATTN_DTYPE_I8) {
        CLA_TRY(cla_check_tensor(c, "k_scale", &in->k_scale, kv, 1, CLATTN_DTYPE_F32, false,
                                 &out->k_scale));
        CLA_TRY(cla_check_tensor(c, "v_scale", &in->v_scale, kv, 1, CLATTN_DTYPE_F32, false,
                                 &out->v_scale));
    }
    if (p->packed_q)
        out->q.stride[0] = out->o.stride[0] = 0;
    if (p->packed_kv)
        out->k.stride[0] = out->v.stride[0] = out->k_scale.stride[0] = out->v_scale.stride[0] = 0;
    if (p->lse) {
        struct cla_vector lse;
        CLA_TRY(cla_check_vector(c, "lse", &in->lse, q, sizeof(float), &lse));
        out->lse = in->lse;
        out->lse_offset = (int64_t)(in->lse.offset_bytes / sizeof(float));
        out->lse_end_bytes = lse.end_bytes;
        out->lse_stride[0] = p->packed_q ? 0 : p->heads_q * q[2];
        out->lse_stride[1] = q[2];
    }
done:
    return st;
}

static clattn_status check_more(const struct cla_checker *c, const clattn_attention_call *in,
                                struct cla_call *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_problem *p = c->p;
    const int64_t b = in->batch;
    const int64_t pairs[4] = {b, p->heads_q, in->len_q, in->len_kv};
    const bool empty = !b || !in->len_q;
    const struct {
        const char *name;
        const clattn_buf *buf;
        bool wanted;
        int64_t count, times;
        struct cla_vector *out;
    } f[] = {
        {"alibi", &in->alibi, p->alibi, p->heads_q, in->alibi_batch ? b : 1, &out->alibi},
        {"sinks", &in->sinks, p->sinks, p->heads_q, 1, &out->sinks},
        {"kv_lens", &in->kv_lens, p->kv_lens, b, 1, &out->kv_lens},
        {"cu_seqlens_q", &in->cu_seqlens_q, p->packed_q, b + 1, 1, &out->cu_q},
        {"cu_seqlens_kv", &in->cu_seqlens_kv, p->packed_kv, b + 1, 1, &out->cu_kv},
        {"page_table", &in->page_table, p->paged && in->len_kv, in->max_pages, b, &out->table},
        {"faults", &in->faults, in->faults.kind != CLATTN_BUF_ABSENT, 1, 1, &out->faults},
    };
    if (p->mask)
        CLA_TRY(cla_check_mask(c, "mask", &in->mask, pairs, 1, &out->mask));
    if (p->bias)
        CLA_TRY(cla_check_mask(c, "bias", &in->bias, pairs, cla_dtype_bytes(p->dtype_bias),
                               &out->bias));
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        const int64_t extent[3] = {f[i].count, f[i].times, 1};
        if (f[i].wanted && !empty) // float and int32 have 4 bytes
            CLA_TRY(cla_check_vector(c, f[i].name, f[i].buf, extent, 4, f[i].out));
    }
    out->alibi_stride = in->alibi_batch ? p->heads_q : 0;
    // How much is needed is the algorithm's to say; what is brought has to be memory in any case.
    out->workspace = in->workspace;
    if (in->workspace.kind != CLATTN_BUF_ABSENT)
        CLA_TRY(cla_check_buf(c, "workspace", &in->workspace, 1, 0, NULL));
done:
    return st;
}

// ---- numbers in host memory --------------------------------------------------------------------

// NULL where they are on the device, or not there.
static const int32_t *host_ints(const struct cla_vector *v)
{
    return v->end_bytes && v->buf.kind == CLATTN_BUF_HOST ? (const int32_t *)v->buf.ptr + v->offset
                                                          : NULL;
}

static clattn_status check_offsets(const char *name, const struct cla_vector *v, int32_t batch,
                                   int32_t total, int32_t longest, const struct cla_log *log)
{
    const int32_t *cu = host_ints(v);
    for (int64_t b = 0; cu && b <= batch; b++) {
        if (cu[b] < 0 || cu[b] > total)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s[%d] is %d, not 0 to %d", name,
                            (int)b, (int)cu[b], (int)total);
        if (b > 0 && cu[b] < cu[b - 1])
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                            "%s[%d] is %d, less than %d in front of it", name, (int)b, (int)cu[b],
                            (int)cu[b - 1]);
        if (b > 0 && cu[b] - cu[b - 1] > longest)
            return cla_fail(log, CLATTN_ERR_SHAPE,
                            "%s: sequence %d has %d tokens, the longest one should have %d", name,
                            (int)(b - 1), (int)(cu[b] - cu[b - 1]), (int)longest);
    }
    return CLATTN_OK;
}

static clattn_status check_kv_lens(const struct cla_call *c, const struct cla_log *log)
{
    const int32_t *lens = host_ints(&c->kv_lens), *cu = host_ints(&c->cu_kv);
    for (int32_t b = 0; lens && b < c->batch; b++) {
        const int32_t most = cu ? cu[b + 1] - cu[b] : c->len_kv;
        if (lens[b] < 0)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "kv_lens[%d] is %d, negative",
                            (int)b, (int)lens[b]);
        if (lens[b] > most)
            return cla_fail(log, CLATTN_ERR_SHAPE, "kv_lens[%d] is %d, more than %d keys", (int)b,
                            (int)lens[b], (int)most);
    }
    return CLATTN_OK;
}

// Entries that are read: where lengths are on the device only the kernels know these.
static clattn_status check_table(const struct cla_problem *p, const struct cla_call *c,
                                 const struct cla_log *log)
{
    const int32_t *lens = host_ints(&c->kv_lens), *table = host_ints(&c->table);
    if (!table || (p->kv_lens && !lens))
        return CLATTN_OK;
    for (int32_t b = 0; b < c->batch; b++) {
        const int64_t keys = lens ? lens[b] : c->len_kv;
        for (int64_t n = 0; n < (keys + p->page_size - 1) / p->page_size; n++) {
            const int32_t page = table[(int64_t)b * c->max_pages + n];
            if (page < 0 || page >= c->num_pages)
                return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT,
                                "page_table[%d][%lld] is %d, the pool has %d pages", (int)b,
                                (long long)n, (int)page, (int)c->num_pages);
        }
    }
    return CLATTN_OK;
}

static clattn_status check_numbers(const struct cla_checker *c, const struct cla_call *call)
{
    clattn_status st = CLATTN_OK;
    CLA_TRY(check_offsets("cu_seqlens_q", &call->cu_q, call->batch, call->total_q, call->len_q,
                          c->log));
    CLA_TRY(check_offsets("cu_seqlens_kv", &call->cu_kv, call->batch, call->total_kv,
                          call->len_kv, c->log));
    CLA_TRY(check_kv_lens(call, c->log));
    CLA_TRY(check_table(c->p, call, c->log));
done:
    return st;
}

// ---- call --------------------------------------------------------------------------------------

static int32_t clamp_window(int64_t x)
{
    return x < CLA_WIN_MIN ? CLA_WIN_MIN : x > CLA_WIN_MAX ? CLA_WIN_MAX : (int32_t)x;
}

void cla_call_set_window(const struct cla_problem *p, struct cla_call *call)
{
    const int64_t off = p->align == CLATTN_ALIGN_TOP_LEFT ? 0 : call->len_kv - call->len_q;
    call->off = (int32_t)off;
    call->win_lo = call->left < 0 ? CLA_WIN_MIN : clamp_window(off - call->left);
    call->win_hi = call->right < 0 ? CLA_WIN_MAX : clamp_window(off + call->right);
}

clattn_status cla_call_check(const struct cla_problem *p, const clattn_attention_call *in,
                             cla_mem_fn mem_facts, void *user, const struct cla_log *log,
                             struct cla_call *out)
{
    clattn_status st = CLATTN_OK;
    const struct cla_checker c = {p, log, mem_facts, user};
    clattn_attention_call call;
    if (!in)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "call is NULL");
    CLA_TRY(cla_struct_in("clattn_attention_call", in,
                          CLA_SIZE_TO(clattn_attention_call, workspace), &call, sizeof call, log));
    CLA_TRY(check_fields(p, &call, log));

    const bool windowed = (call.set & CLATTN_SET_WINDOW) != 0;
    *out = (struct cla_call){
        .batch = call.batch,
        .len_q = call.len_q,
        .len_kv = call.len_kv,
        .scale = call.set & CLATTN_SET_SCALE ? call.scale
                                             : (float)(1.0 / sqrt((double)p->dim_qk)),
        .softcap = call.softcap,
        .left = windowed ? call.window_left : -1,
        .right = p->causal ? 0 : windowed ? call.window_right : -1,
        .total_q = call.total_q,
        .total_kv = call.total_kv,
        .num_pages = call.num_pages,
        .max_pages = call.max_pages,
    };
    cla_call_set_window(p, out);
    CLA_TRY(check_main(&c, &call, out));
    CLA_TRY(check_more(&c, &call, out));
    CLA_TRY(cla_check_overlaps(&c, out));
    CLA_TRY(check_numbers(&c, out));
done:
    return st;
}
