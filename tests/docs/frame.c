// SPDX-License-Identifier: Apache-2.0
// What a fragment of a page is compiled in by check_blocks.py.
#include <clattn/clattn.h>
#include <clattn/opencl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fragment(clattn_context *ctx, clattn_plan *plan, float *q, float *k, float *v, float *o,
              cl_context cl_ctx, cl_device_id device, cl_command_queue queue, cl_mem mem);

void fragment(clattn_context *ctx, clattn_plan *plan, float *q, float *k, float *v, float *o,
              cl_context cl_ctx, cl_device_id device, cl_command_queue queue, cl_mem mem)
{
    enum { BATCH = 2, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, LEN = 16, PAGE_SIZE = 16, PAGES = 4 };
    clattn_status st = CLATTN_OK;
    clattn_attention_desc desc;
    clattn_attention_call call;
    clattn_append_call append;
    clattn_attention_desc_init(&desc, sizeof desc);
    clattn_attention_call_init(&call, sizeof call);
    clattn_append_call_init(&append, sizeof append);
// BLOCK
}
