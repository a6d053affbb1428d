// SPDX-License-Identifier: Apache-2.0
#include "shape.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

int tool_take_shape(const char *shown, const char *value, struct tool_problem *p)
{
    int32_t n[7] = {0};
    int count = 0;
    const char *at = value;

    for (bool more = true; more && count < 7; count++) {
        char number[16] = "";
        size_t size = strcspn(at, ",");
        int64_t extent = -1;
        // Lengths and the batch may be 0 elsewhere, but there is nothing to plan or time then.
        if (size < sizeof number)
            memcpy(number, at, size);
        if (!tool_parse_int(number, 1, INT32_MAX, &extent))
            break;
        n[count] = (int32_t)extent;
        more = at[size] == ',';
        at += size + more;
    }
    if (*at || at[-1] == ',' || count < 6)
        return tool_fail(TOOL_USE,
                         "option %s: '%s' is not B,H,HKV,LQ,LKV,D[,DV] in whole numbers from 1 "
                         "up: batch, heads, key/value heads, queries, keys, dimension, that of V, "
                         "as in 1,8,8,2048,2048,64", shown, value);
    *p = (struct tool_problem){.batch = n[0], .heads_q = n[1], .heads_kv = n[2], .len_q = n[3],
                               .len_kv = n[4], .dim_qk = n[5], .dim_v = n[6] ? n[6] : n[5]};
    return 0;
}

void tool_shape_text(const struct tool_problem *p, char *text, size_t size)
{
    int used = snprintf(text, size, "%d,%d,%d,%d,%d,%d", (int)p->batch, (int)p->heads_q,
                        (int)p->heads_kv, (int)p->len_q, (int)p->len_kv, (int)p->dim_qk);
    if (p->dim_v != p->dim_qk && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, ",%d", (int)p->dim_v);
}
