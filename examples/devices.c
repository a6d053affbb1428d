// SPDX-License-Identifier: Apache-2.0
// One attention over two devices: each gets half of the keys and values and gives its part of O
// with the log-sum-exp of its rows, from which clattn_merge_run() makes the whole.
//
// Takes the first two OpenCL devices; where there is one, two halves of it (sub-devices), where
// that can't be cut, or there is none, the device and the CPU path, or the CPU path twice.
#include <clattn/opencl.h>
#include <stdbool.h>

#include "example.h"

enum { HEADS = 8, LEN_Q = 16, LEN_KV = 1000, DIM = 64, FIRST_HALF = 600 };
enum { NUM_Q = HEADS * LEN_Q * DIM, NUM_KV = HEADS * LEN_KV * DIM, ROWS = HEADS * LEN_Q };

// Contexts of clattn on two halves of an OpenCL device; false where it can't be cut. The halves are
// retained by their contexts.
static bool on_halves(clattn_context *whole, clattn_context *out[2])
{
    cl_device_id device = clattn_context_cl_device(whole), halves[2];
    cl_uint units = 0, most = 0, count = 0;
    if (!device ||
        clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL) ||
        clGetDeviceInfo(device, CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most, &most, NULL) ||
        most < 2)
        return false;
    const cl_device_partition_property cut[] = {
        CL_DEVICE_PARTITION_BY_COUNTS, (cl_device_partition_property)(units / 2),
        (cl_device_partition_property)(units - units / 2), CL_DEVICE_PARTITION_BY_COUNTS_LIST_END,
        0};
    if (clCreateSubDevices(device, cut, 2, halves, &count) != CL_SUCCESS || count != 2)
        return false;
    bool right = true;
    for (int i = 0; i < 2; i++) {
        cl_int code;
        cl_context context = clCreateContext(NULL, 1, &halves[i], NULL, NULL, &code);
        right = code == CL_SUCCESS && right &&
                clattn_context_create_opencl(NULL, context, halves[i], NULL, &out[i]) == CLATTN_OK;
        if (code == CL_SUCCESS)
            clReleaseContext(context);
        clReleaseDevice(halves[i]);
    }
    if (!right)
        for (int i = 0; i < 2; i++)
            clattn_context_destroy(&out[i]);
    return right;
}

static void find_two(clattn_context *out[2])
{
    int32_t count; // OpenCL devices, and the CPU path as the last
    TRY(clattn_device_count(NULL, &count));
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "0";
    TRY(clattn_context_create(&desc, &out[0]));
    if (count == 2) {
        clattn_context *halves[2] = {NULL, NULL};
        if (on_halves(out[0], halves)) {
            clattn_context_destroy(&out[0]);
            out[0] = halves[0];
            out[1] = halves[1];
            return;
        }
    }
    desc.device = count > 1 ? "1" : "cpu";
    TRY(clattn_context_create(&desc, &out[1]));
}

// Attention over the keys `from` to `to`; lse NULL = not asked for.
static void attend(clattn_context *ctx, int32_t algo, const float *q, const float *k,
                   const float *v, int from, int to, float *o, float *lse)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.algo = algo;
    desc.features = lse ? CLATTN_FEATURE_LSE : 0;
    clattn_plan *plan = NULL;
    TRY(clattn_attention_plan_create(ctx, &desc, &plan));

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = LEN_Q;
    call.len_kv = to - from;
    call.q.buf = clattn_host_buf(q, NUM_Q * sizeof(float));
    const clattn_tensor all = {.layout = CLATTN_LAYOUT_STRIDED,
                               .stride_batch = NUM_KV,
                               .stride_head = (int64_t)LEN_KV * DIM,
                               .stride_seq = DIM};
    call.k = call.v = all;
    call.k.buf = clattn_host_buf(k, NUM_KV * sizeof(float));
    call.v.buf = clattn_host_buf(v, NUM_KV * sizeof(float));
    call.k.buf.offset_bytes = call.v.buf.offset_bytes = (size_t)from * DIM * sizeof(float);
    call.o.buf = clattn_host_buf(o, NUM_Q * sizeof(float));
    if (lse)
        call.lse = clattn_host_buf(lse, ROWS * sizeof(float));
    TRY(clattn_attention_run(plan, &call));

    clattn_device_info device = {.struct_size = sizeof device};
    clattn_plan_info info = {.struct_size = sizeof info};
    TRY(clattn_context_get_device_info(ctx, &device));
    TRY(clattn_plan_get_info(plan, &info));
    printf("keys %d to %d: %s on %s (%d compute units)\n", from, to - 1, info.algo_name,
           device.name, (int)device.compute_units);
    clattn_plan_destroy(&plan);
}

int main(void)
{
    clattn_context *ctx[2] = {NULL, NULL};
    find_two(ctx);
    float *q = random_floats(NUM_Q, 1), *k = random_floats(NUM_KV, 2);
    float *v = random_floats(NUM_KV, 3);
    float *part[2], *lse[2], *want = random_floats(NUM_Q, 4);
    for (int i = 0; i < 2; i++) {
        part[i] = random_floats(NUM_Q, 5);
        lse[i] = random_floats(ROWS, 6);
    }
    // A program that wants both at once calls from two threads, or enqueues.
    attend(ctx[0], CLATTN_ALGO_AUTO, q, k, v, 0, FIRST_HALF, part[0], lse[0]);
    attend(ctx[1], CLATTN_ALGO_AUTO, q, k, v, FIRST_HALF, LEN_KV, part[1], lse[1]);

    clattn_tensor parts[2] = {{.buf = clattn_host_buf(part[0], NUM_Q * sizeof(float))},
                              {.buf = clattn_host_buf(part[1], NUM_Q * sizeof(float))}};
    const clattn_buf parts_lse[2] = {clattn_host_buf(lse[0], ROWS * sizeof(float)),
                                     clattn_host_buf(lse[1], ROWS * sizeof(float))};
    clattn_merge_call merge;
    clattn_merge_call_init(&merge, sizeof merge);
    merge.num_parts = 2;
    merge.batch = 1;
    merge.heads = HEADS;
    merge.len_q = LEN_Q;
    merge.dim_v = DIM;
    merge.parts = parts;
    merge.parts_lse = parts_lse;
    merge.o = parts[0]; // in place
    TRY(clattn_merge_run(ctx[0], &merge));

    attend(ctx[0], CLATTN_ALGO_REFERENCE, q, k, v, 0, LEN_KV, want, NULL);
    const int status = report("two devices", largest_difference(part[0], want, NUM_Q));
    free(q);
    free(k);
    free(v);
    free(want);
    for (int i = 0; i < 2; i++) {
        free(part[i]);
        free(lse[i]);
        clattn_context_destroy(&ctx[i]);
    }
    return status;
}
