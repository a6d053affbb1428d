// SPDX-License-Identifier: Apache-2.0
// Lengths, offsets and page numbers. They are checked here, where a message can name the file; in
// device memory nobody could check them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

static int bad_number(const struct run *r, enum tool_tensor which, int64_t index, const char *rule)
{
    const struct tool_npy *npy = &r->in[which];
    const int32_t *data = npy->data;

    if (npy->ndim == 2)
        return tool_fail(TOOL_USE, "%s %s: data: element (%lld, %lld) is %d, %s", run_shown(which),
                         r->opt.file[which], (long long)(index / npy->shape[1]),
                         (long long)(index % npy->shape[1]), (int)data[index], rule);
    return tool_fail(TOOL_USE, "%s %s: data: element %lld is %d, %s", run_shown(which),
                     r->opt.file[which], (long long)index, (int)data[index], rule);
}

static int bad_count(const struct run *r, enum tool_tensor which, const char *rule)
{
    return run_bad_shape(run_shown(which), r->opt.file[which], &r->in[which], rule);
}

// int64 as int32.
static int narrow(struct run *r, enum tool_tensor which)
{
    struct tool_npy *npy = &r->in[which];
    const int64_t *wide = npy->data;

    if (npy->dtype != TOOL_NPY_I64)
        return 0;
    int32_t *out = malloc((npy->count + 1) * sizeof *out);
    if (!out)
        return tool_fail(TOOL_DEVICE, "%s %s: out of memory", run_shown(which),
                         r->opt.file[which]);
    for (size_t i = 0; i < npy->count; i++) {
        if (wide[i] < INT32_MIN || wide[i] > INT32_MAX) {
            free(out);
            return tool_fail(TOOL_USE, "%s %s: data: element %zu is %lld, over 2^31 - 1",
                             run_shown(which), r->opt.file[which], i, (long long)wide[i]);
        }
        out[i] = (int32_t)wide[i];
    }
    free(npy->data);
    npy->data = out;
    npy->dtype = TOOL_NPY_I32;
    npy->bytes = npy->count * sizeof *out;
    return 0;
}

// Offsets of packed sequences; *longest receives the most tokens of one.
static int take_offsets(struct run *r, enum tool_tensor which, int32_t total, int32_t *longest)
{
    const struct tool_npy *npy = &r->in[which];
    int code = narrow(r, which);
    char rule[96];

    if (code)
        return code;
    if (npy->shape[0] < 1 || npy->shape[0] > INT32_MAX)
        return bad_count(r, which, "it must have batch + 1 offsets");
    const int32_t *cu = npy->data;
    *longest = 0;
    for (int64_t b = 0; b < npy->shape[0]; b++) {
        if (cu[b] < 0 || cu[b] > total) {
            snprintf(rule, sizeof rule, "not 0 to %d, the tokens there are", (int)total);
            return bad_number(r, which, b, rule);
        }
        if (b > 0 && cu[b] < cu[b - 1])
            return bad_number(r, which, b, "less than the one in front of it");
        if (b > 0 && cu[b] - cu[b - 1] > *longest)
            *longest = cu[b] - cu[b - 1];
    }
    return 0;
}

static int take_packed(struct run *r)
{
    struct tool_problem *p = &r->problem;
    const struct tool_npy *cu_q = &r->in[TOOL_CU_Q], *cu_kv = &r->in[TOOL_CU_KV];
    int code = 0;

    p->packed_q = r->opt.file[TOOL_CU_Q] != NULL;
    p->packed_kv = r->opt.file[TOOL_CU_KV] != NULL;
    if (p->packed_q) {
        p->total_q = p->len_q;
        code = take_offsets(r, TOOL_CU_Q, p->total_q, &p->len_q);
        if (code)
            return code;
        p->batch = (int32_t)(cu_q->shape[0] - 1);
        r->first_q = ((const int32_t *)cu_q->data)[0];
        r->end_q = ((const int32_t *)cu_q->data)[p->batch];
    }
    if (p->packed_kv) {
        p->total_kv = p->len_kv;
        code = take_offsets(r, TOOL_CU_KV, p->total_kv, &p->len_kv);
        if (!code && p->packed_q && cu_kv->shape[0] != cu_q->shape[0])
            code = bad_count(r, TOOL_CU_KV, "it must have as many offsets as --cu-seqlens-q");
        if (!code && !p->packed_q && cu_kv->shape[0] - 1 != p->batch)
            code = bad_count(r, TOOL_CU_KV, "it must have 1 offset more than the batch of -q");
    } else if (p->packed_q && !r->opt.file[TOOL_TABLE] && r->in[TOOL_K].shape[0] != p->batch) {
        code = run_bad_shape("-k", r->opt.file[TOOL_K], &r->in[TOOL_K],
                             "batch differs from the sequences of --cu-seqlens-q");
    }
    return code;
}

// Keys that sequence b has room for.
static int32_t room_of(const struct run *r, int64_t b)
{
    const struct tool_problem *p = &r->problem;
    const int32_t *cu = r->in[TOOL_CU_KV].data;

    return p->packed_kv ? cu[b + 1] - cu[b] : p->len_kv;
}

static int take_kv_lens(struct run *r)
{
    const struct tool_problem *p = &r->problem;
    char rule[96];
    int code = narrow(r, TOOL_KV_LENS);

    if (code)
        return code;
    if (r->in[TOOL_KV_LENS].shape[0] != p->batch) {
        snprintf(rule, sizeof rule, "it must be (%d,), a length for each sequence",
                 (int)p->batch);
        return bad_count(r, TOOL_KV_LENS, rule);
    }
    const int32_t *lens = r->in[TOOL_KV_LENS].data;
    for (int32_t b = 0; b < p->batch; b++) {
        if (lens[b] < 0 || lens[b] > room_of(r, b)) {
            snprintf(rule, sizeof rule, "not 0 to %d, the keys there are", (int)room_of(r, b));
            return bad_number(r, TOOL_KV_LENS, b, rule);
        }
    }
    return 0;
}

// Sequences can be as long as their row of the table; what behind the last page stands is not read.
static int take_table(struct run *r)
{
    const struct tool_npy *table = &r->in[TOOL_TABLE];
    struct tool_problem *p = &r->problem;
    const int64_t *k = r->in[TOOL_K].shape;
    char rule[96];

    p->page_size = p->len_kv;
    p->num_pages = (int32_t)k[0];
    if (table->shape[0] != p->batch) {
        snprintf(rule, sizeof rule, "it must have %d rows, one for each sequence", (int)p->batch);
        return bad_count(r, TOOL_TABLE, rule);
    }
    if (table->shape[1] > INT32_MAX / p->page_size)
        return bad_count(r, TOOL_TABLE, "a row of pages is over 2^31 - 1 keys");
    p->max_pages = (int32_t)table->shape[1];
    p->len_kv = p->max_pages * p->page_size;
    int code = take_kv_lens(r);
    if (code)
        return code;
    const int32_t *lens = r->in[TOOL_KV_LENS].data, *page = table->data;
    p->len_kv = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        p->len_kv = lens[b] > p->len_kv ? lens[b] : p->len_kv;
        for (int64_t n = 0; n * p->page_size < lens[b]; n++) {
            const int64_t at = b * p->max_pages + n;
            if (page[at] < 0 || page[at] >= p->num_pages) {
                snprintf(rule, sizeof rule, "but -k has %d pages", (int)p->num_pages);
                return bad_number(r, TOOL_TABLE, at, rule);
            }
        }
    }
    return 0;
}

int run_take_numbers(struct run *r)
{
    int code = take_packed(r);

    r->problem.kv_lens = r->opt.file[TOOL_KV_LENS] != NULL;
    if (!code && r->opt.file[TOOL_TABLE])
        return take_table(r);
    return !code && r->problem.kv_lens ? take_kv_lens(r) : code;
}
