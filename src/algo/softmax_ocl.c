// SPDX-License-Identifier: Apache-2.0
#include "abi.h"
#include "algo/softmax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/stage_ocl.h"
#include "ocl/error.h"
#include "ocl/launch.h"
#include "ref/softmax.h"
#include "util/half.h"

enum { ROW, FIRST, SUM, WRITE, KERNELS };

struct cla_softmax_kernels {
    struct cla_softmax_shape shape;
    struct cla_kernels *kernel[KERNELS]; // SUM only for safe
};

// ---- launch ------------------------------------------------------------------------------------

static clattn_status launch_one(clattn_context *ctx, const struct cla_softmax_kernels *k, int which,
                                const struct cla_softmax_args *args,
                                const struct cla_softmax_call *call, cl_command_queue queue,
                                cl_uint num_wait, const cl_event *wait, cl_event *done)
{
    const clattn_buf *const bufs[] = {&call->x, &call->y, &call->lse, &call->workspace};
    struct cla_arg arg[5] = {{sizeof *args, args}};
    for (int i = 0; i < 4; i++)
        arg[1 + i] = (struct cla_arg){
            sizeof(cl_mem), bufs[i]->kind == CLATTN_BUF_CL_MEM ? &bufs[i]->ptr : NULL};
    return cla_kernels_enqueue_groups(k->kernel[which], &ctx->log, arg, 5, queue,
                                      (uint64_t)call->rows * (uint64_t)args->parts,
                                      (size_t)k->shape.items, num_wait, wait, done);
}

// One kernel, or two or three behind each other by events, since the queue may be out of order.
static clattn_status launch(clattn_context *ctx, const struct cla_softmax *s,
                            const struct cla_softmax_kernels *k,
                            const struct cla_softmax_call *call, const struct cla_submit *submit)
{
    clattn_status st = CLATTN_OK;
    const struct cla_cl *cl = ctx->ocl->cl;
    cl_event event[2] = {NULL, NULL};
    struct cla_softmax_args args = {
        .x_offset = call->x_offset,
        .y_offset = call->y_offset,
        .lse_offset = call->lse_offset,
        .workspace_offset = call->workspace_offset,
        .stride_x = call->stride_x,
        .stride_y = call->stride_y,
        .len = call->len,
        .flags = (s->lse ? CLA_FWD_HAS_LSE : 0) |
                 (cla_softmax_streams(s, call) ? CLA_SOFTMAX_STREAM : 0),
        .scale = call->scale,
    };
    cla_softmax_parts(&k->shape, call->rows, call->len, &args.parts, &args.part_len);
    if (args.parts == 1)
        return launch_one(ctx, k, ROW, &args, call, submit->queue, submit->num_wait, submit->wait,
                          submit->done);
    CLA_TRY(launch_one(ctx, k, FIRST, &args, call, submit->queue, submit->num_wait, submit->wait,
                       &event[0]));
    if (s->algo == CLATTN_SOFTMAX_SAFE)
        CLA_TRY(launch_one(ctx, k, SUM, &args, call, submit->queue, 1, &event[0], &event[1]));
    CLA_TRY(launch_one(ctx, k, WRITE, &args, call, submit->queue, 1,
                       event[1] ? &event[1] : &event[0], submit->done));
done:
    for (int i = 0; i < 2; i++)
        if (event[i])
            cl->ReleaseEvent(event[i]);
    return st;
}

clattn_status cla_softmax_enqueue(clattn_context *ctx, const struct cla_softmax *s,
                                  const struct cla_softmax_kernels *kernels,
                                  const struct cla_softmax_call *call,
                                  const struct cla_submit *submit)
{
    return launch(ctx, s, kernels, call, submit);
}

// ---- blocking ----------------------------------------------------------------------------------

static clattn_status run_staged(clattn_context *ctx, const struct cla_softmax *s,
                                const struct cla_softmax_kernels *k, struct cla_softmax_call *call,
                                struct cla_stage *stage)
{
    clattn_status st = CLATTN_OK;
    cl_event event = NULL;
    void *own = NULL;
    int32_t parts;
    int64_t part_len;
    cla_softmax_parts(&k->shape, call->rows, call->len, &parts, &part_len);
    if (parts > 1 && call->workspace.kind != CLATTN_BUF_CL_MEM) {
        size_t bytes;
        if (!cla_softmax_workspace(&k->shape, call->rows, call->len, &bytes))
            CLA_TRY(cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY,
                             "no memory has room for the parts of %lld rows",
                             (long long)call->rows));
        CLA_TRY(cla_ocl_mem_create(ctx, bytes, &own));
        call->workspace = (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = own};
        call->workspace_offset = 0;
    }
    const struct cla_submit submit = {ctx->ocl->queue, 0, NULL, &event};
    st = launch(ctx, s, k, call, &submit);
    CLA_TRY(cla_stage_end(stage, st, event));
done:
    if (own)
        cla_ocl_mem_destroy(ctx, own);
    return st;
}

clattn_status cla_softmax_run(clattn_context *ctx, const struct cla_softmax *s,
                              const struct cla_softmax_kernels *kernels,
                              const struct cla_softmax_call *in)
{
    struct cla_softmax_call call = *in;
    struct cla_stage stage;
    const size_t elem_x = cla_softmax_elem_bytes(s->dtype_x);
    const size_t elem_y = cla_softmax_elem_bytes(s->dtype_y);
    // In place there is one copy, which is brought in although it is an output.
    const struct cla_buf_rows rows = {{1, 1, call.rows},
                                      {0, 0, call.rows < 2 ? 0
                                                           : call.stride_y * (int64_t)elem_y},
                                      (size_t)call.len * elem_y};
    const bool dense = call.rows < 2 || call.stride_y == call.len;
    struct cla_call_buf bufs[] = {
        {.name = "y", .buf = &call.y, .offset = &call.y_offset, .output = true,
         .begin_bytes = (size_t)call.y_offset * elem_y, .end_bytes = call.y_end_bytes,
         .rows = dense ? NULL : &rows},
        {.name = "lse", .buf = &call.lse, .offset = &call.lse_offset, .output = true,
         .begin_bytes = (size_t)call.lse_offset * 4, .end_bytes = call.lse_end_bytes},
        {.name = "x", .buf = &call.x, .offset = &call.x_offset,
         .begin_bytes = (size_t)call.x_offset * elem_x,
         .end_bytes = call.in_place ? 0 : call.x_end_bytes},
    };
    const bool turn = cla_ocl_begin_turn(ctx, false);
    clattn_status st = cla_stage_bufs(ctx, bufs, 3, call.in_place, &stage);
    if (st == CLATTN_OK) {
        for (int i = 0; i < 3; i++)
            if (stage.item[i].mem)
                *bufs[i].offset = 0;
        if (stage.item[0].dense)
            call.stride_y = call.len;
        if (call.in_place) {
            call.x = call.y;
            call.x_offset = call.y_offset;
            call.stride_x = call.stride_y;
        }
        st = run_staged(ctx, s, kernels, &call, &stage);
        cla_stage_release(&stage);
    }
    cla_ocl_end_turn(ctx, turn);
    return st;
}

// ---- build and trial ---------------------------------------------------------------------------

void cla_softmax_release(struct cla_softmax_kernels **kernels)
{
    if (!*kernels)
        return;
    for (int i = 0; i < KERNELS; i++)
        cla_kernels_destroy(&(*kernels)->kernel[i]);
    free(*kernels);
    *kernels = NULL;
}

// Rows of the types' own random bits would be NaN now and then, so the trial is in small integers,
// which every type holds exactly.
enum { TRIAL_ROWS = 3 };

static void put(void *x, int32_t dtype, int64_t at, float value)
{
    if (dtype == CLATTN_DTYPE_F32)
        ((float *)x)[at] = value;
    else
        ((uint16_t *)x)[at] =
            dtype == CLATTN_DTYPE_F16 ? cla_f32_to_f16(value) : cla_f32_to_bf16(value);
}

static bool close_enough(const struct cla_softmax *s, const void *got, const void *want, int64_t at)
{
    if (s->dtype_y == CLATTN_DTYPE_F32) {
        const float a = ((const float *)got)[at], b = ((const float *)want)[at];
        return fabsf(a - b) <= 1e-6f + 1e-5f * fabsf(b);
    }
    const int a = ((const uint16_t *)got)[at], b = ((const uint16_t *)want)[at];
    // The last bit may round the other way; naive rounds twice.
    return abs(a - b) <= (s->algo == CLATTN_SOFTMAX_NAIVE ? 2 : 1);
}

// The same rows whole and in parts of `shape`, against the definition.
static clattn_status trial(clattn_context *ctx, const struct cla_softmax *s,
                           const struct cla_softmax_kernels *k, int64_t len)
{
    clattn_status st = CLATTN_OK;
    const size_t n = (size_t)(TRIAL_ROWS * len);
    // Naive sums what was rounded on its way into Y.
    const bool coarse = s->algo == CLATTN_SOFTMAX_NAIVE && s->dtype_y != CLATTN_DTYPE_F32;
    const float lse_off = coarse ? 5e-3f : 1e-4f;
    const size_t elem_x = cla_softmax_elem_bytes(s->dtype_x);
    const size_t elem_y = cla_softmax_elem_bytes(s->dtype_y);
    float lse[TRIAL_ROWS], want_lse[TRIAL_ROWS];
    void *x = malloc(n * elem_x), *y = malloc(n * elem_y), *want = malloc(n * elem_y);
    if (!x || !y || !want)
        CLA_TRY(cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "softmax trial: no memory"));
    memset(y, 0xff, n * elem_y); // NaN
    for (size_t i = 0; i < n; i++)
        put(x, s->dtype_x, (int64_t)i, (float)((int)(i * 37 % 19) - 9));
    struct cla_softmax_call call = {
        .rows = TRIAL_ROWS, .len = len, .stride_x = len, .stride_y = len, .scale = 0.5f,
        .x = clattn_host_buf(x, 0), .y = clattn_host_buf(y, 0), .lse = clattn_host_buf(lse, 0),
        .x_end_bytes = n * elem_x, .y_end_bytes = n * elem_y,
        .lse_end_bytes = s->lse ? sizeof lse : 0};
    if (!s->lse)
        call.lse = (clattn_buf){0};
    cla_ref_softmax(s, &call, x, want, want_lse);
    CLA_TRY(cla_softmax_run(ctx, s, k, &call));
    for (size_t i = 0; i < n; i++) {
        if (!close_enough(s, y, want, (int64_t)i)) {
            cla_logf(&ctx->log, CLATTN_LOG_WARN,
                     "softmax trial: entry %zu of rows of %lld is wrong", i, (long long)len);
            st = CLATTN_ERR_SELF_TEST;
            goto done;
        }
    }
    for (int r = 0; s->lse && r < TRIAL_ROWS; r++) {
        if (!(fabsf(lse[r] - want_lse[r]) <= lse_off)) {
            cla_logf(&ctx->log, CLATTN_LOG_WARN, "softmax trial: lse[%d] is %g, expected %g", r,
                     (double)lse[r], (double)want_lse[r]);
            st = CLATTN_ERR_SELF_TEST;
            goto done;
        }
    }
done:
    free(x);
    free(y);
    free(want);
    return st;
}

static const char *const kernel_name[KERNELS] = {"softmax_row", "softmax_first", "softmax_sum",
                                                 "softmax_write"};

static clattn_status make_kernels(clattn_context *ctx, const struct cla_softmax *s,
                                  cl_program program, struct cla_softmax_kernels *k)
{
    for (int i = 0; i < KERNELS; i++) {
        if (i == SUM && s->algo != CLATTN_SOFTMAX_SAFE)
            continue;
        clattn_status st = cla_kernels_create(ctx->ocl->cl, program, kernel_name[i], &ctx->log,
                                              &k->kernel[i]);
        if (st != CLATTN_OK)
            return st;
    }
    return CLATTN_OK;
}

// Rows whole, then in parts, of a size that does not take long.
static clattn_status trials(clattn_context *ctx, const struct cla_softmax *s,
                            struct cla_softmax_kernels *k)
{
    const int64_t unit = (int64_t)k->shape.items * k->shape.width;
    const int64_t whole = k->shape.least_part;
    clattn_status st = trial(ctx, s, k, 9 * unit + 5);
    k->shape.least_part = unit;
    if (st == CLATTN_OK)
        st = trial(ctx, s, k, 4 * unit + 3);
    k->shape.least_part = whole;
    return st;
}

// Items of a work-group that all kernels take.
static clattn_status items_taken(clattn_context *ctx, const struct cla_softmax_kernels *k,
                                 size_t *items)
{
    clattn_status st = CLATTN_OK;
    *items = SIZE_MAX;
    for (int i = 0; i < KERNELS && st == CLATTN_OK; i++) {
        size_t most = 0;
        if (!k->kernel[i])
            continue;
        st = cla_ocl_items_taken(ctx, k->kernel[i], &most);
        *items = most < *items ? most : *items;
    }
    return st;
}

// CLATTN_ERR_UNSUPPORTED, and *items, where the kernels take fewer items than the shape has.
static clattn_status make_and_try(clattn_context *ctx, const struct cla_softmax *s,
                                  cl_program program, struct cla_softmax_kernels *k, size_t *items)
{
    clattn_status st = make_kernels(ctx, s, program, k);
    if (st == CLATTN_OK)
        st = items_taken(ctx, k, items);
    if (st == CLATTN_OK && *items < (size_t)k->shape.items)
        return CLATTN_ERR_UNSUPPORTED;
    return st == CLATTN_OK ? trials(ctx, s, k) : st;
}

static void destroy_kernels(struct cla_softmax_kernels *k)
{
    for (int i = 0; i < KERNELS; i++)
        cla_kernels_destroy(&k->kernel[i]);
}

// With the shape that these figures of the device give.
static clattn_status build_and_try(clattn_context *ctx, const struct cla_softmax *s,
                                   const struct cla_caps *caps, struct cla_softmax_kernels *k,
                                   size_t *items)
{
    clattn_status st = CLATTN_OK;
    cl_program program = NULL, again = NULL;
    char options[160];
    k->shape = cla_softmax_shape(caps, s->kernel);
    cla_softmax_options(s, &k->shape, caps, options, sizeof options);
    CLA_TRY(cla_ocl_build(ctx, "softmax.cl", options, CLATTN_LOG_WARN, &program));
    st = make_and_try(ctx, s, program, k, items);
    // The fault may be in what was kept on disk.
    if (st != CLATTN_OK && st != CLATTN_ERR_OUT_OF_MEMORY && st != CLATTN_ERR_UNSUPPORTED &&
        cla_ocl_rebuild(ctx, "softmax.cl", options, CLATTN_LOG_WARN, &again) == CLATTN_OK &&
        again) {
        destroy_kernels(k);
        st = make_and_try(ctx, s, again, k, items);
    }
done:
    if (program)
        ctx->ocl->cl->ReleaseProgram(program);
    if (again)
        ctx->ocl->cl->ReleaseProgram(again);
    return st;
}

void cla_softmax_options(const struct cla_softmax *s, const struct cla_softmax_shape *shape,
                         const struct cla_caps *caps, char *options, size_t size)
{
    snprintf(options, size,
             "-cl-std=CL1.2 -w -DDTYPE_X=%d -DDTYPE_Y=%d -DSOFTMAX_ALGO=%d -DW=%d -DITEMS=%d%s",
             (int)s->dtype_x, (int)s->dtype_y, (int)s->algo, (int)shape->width, (int)shape->items,
             // CPU drivers compile with clang and know its store; others may not.
             cla_caps_vector_shape(caps) ? " -DHAS_STREAM" : "");
}

clattn_status cla_softmax_prepare(clattn_context *ctx, const struct cla_softmax *s,
                                  struct cla_softmax_shape *shape,
                                  struct cla_softmax_kernels **out)
{
    clattn_status st = CLATTN_OK;
    struct cla_caps caps = ctx->caps;
    struct cla_softmax_kernels *k = calloc(1, sizeof *k);
    if (!k)
        return cla_fail(&ctx->log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for softmax kernels");
    for (size_t items = 0;;) {
        st = build_and_try(ctx, s, &caps, k, &items);
        if (st != CLATTN_ERR_UNSUPPORTED || items < 1)
            break;
        destroy_kernels(k);
        caps.max_group = items;
    }
    CLA_TRY(st);
    *shape = k->shape;
    *out = k;
    k = NULL;
done:
    cla_softmax_release(&k);
    return st;
}
