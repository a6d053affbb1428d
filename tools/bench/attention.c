// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "bench/bench.h"
#include "lib/say.h"

clattn_status bench_attention_run(const void *a)
{
    const struct bench_attention *attention = a;

    return clattn_attention_run(attention->plan, &attention->call);
}

clattn_status bench_attention_open(struct tool_session *s, const struct tool_problem *p,
                                   struct bench_attention *a)
{
    struct bench_data data;

    memset(a, 0, sizeof *a);
    memset(&data, 0, sizeof data);
    a->p = *p;
    a->info.struct_size = sizeof a->info;
    clattn_status st = tool_plan_create(s, p, &a->plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(a->plan, &a->info);
    if (st == CLATTN_OK)
        st = tool_memory_create(s, p, a->plan, &a->memory);
    if (st == CLATTN_OK)
        st = bench_fill(s, p, &a->memory, &data);
    if (st == CLATTN_OK)
        st = bench_check(s, p, a->plan, &a->memory, &data, &a->max_error, &a->over);
    a->pairs = data.pairs;
    a->gflop = 2e-9 * a->pairs * ((double)p->dim_qk + (double)p->dim_v);
    bench_data_free(&data);
    tool_call_init(p, &a->memory, &a->call);
    if (st == CLATTN_OK)
        st = clattn_plan_workspace_bytes(a->plan, &a->call, &a->workspace);
    return st;
}

void bench_attention_close(struct tool_session *s, struct bench_attention *a)
{
    tool_memory_destroy(s, &a->memory);
    clattn_plan_destroy(&a->plan);
}

int bench_wrong(const char *what, size_t over, double max_error, const clattn_plan_info *info)
{
    return tool_fail(TOOL_WRONG, "%s: wrong result, not timed: %zu elements are off, by %.3g at "
                                 "worst (%s, %s)",
                     what, over, max_error, info->algo_name, info->kernel_name);
}
