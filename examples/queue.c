// SPDX-License-Identifier: Apache-2.0
// Attention between other work on the application's own out-of-order queue: events say what waits
// for what, and the host waits once, at the end.
#include <clattn/opencl.h>
#include <stdbool.h>

#include "example.h"

enum { HEADS = 4, LEN = 200, DIM = 64, COUNT = HEADS * LEN * DIM };

#define TRY_CL(call)                                                                               \
    do {                                                                                           \
        const cl_int try_code = (call);                                                            \
        if (try_code != CL_SUCCESS) {                                                              \
            fprintf(stderr, "%s:%d: OpenCL error %d\n", __FILE__, __LINE__, (int)try_code);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static cl_device_id find_device(void)
{
    cl_platform_id platforms[16];
    cl_device_id device;
    cl_uint count = 0;
    if (clGetPlatformIDs(16, platforms, &count) != CL_SUCCESS)
        count = 0;
    for (cl_uint i = 0; i < count && i < 16; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS)
            return device;
    fprintf(stderr, "no OpenCL device\n");
    exit(1);
}

// A queue of any order where the device has one.
static cl_command_queue make_queue(cl_context context, cl_device_id device)
{
    cl_command_queue_properties can = 0;
    cl_int code;
    TRY_CL(clGetDeviceInfo(device, CL_DEVICE_QUEUE_PROPERTIES, sizeof can, &can, NULL));
    cl_command_queue queue = clCreateCommandQueue(
        context, device, can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    TRY_CL(code);
    return queue;
}

static clattn_buf mem_buf(cl_mem mem)
{
    return (clattn_buf){.kind = CLATTN_BUF_CL_MEM, .ptr = mem};
}

int main(void)
{
    const cl_device_id device = find_device();
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    TRY_CL(code);
    cl_command_queue queue = make_queue(context, device);

    clattn_context *ctx = NULL;
    TRY(clattn_context_create_opencl(NULL, context, device, NULL, &ctx));
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    clattn_plan *plan = NULL;
    TRY(clattn_attention_plan_create(ctx, &desc, &plan));

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = call.len_kv = LEN;

    // Three writes, each with an event; attention waits for them; the read waits for attention.
    float *in[3], *got = random_floats(COUNT, 9), *want = random_floats(COUNT, 9);
    cl_mem mem[4];
    cl_event written[3], attended, read;
    for (int i = 0; i < 4; i++) {
        mem[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, COUNT * sizeof(float), NULL, &code);
        TRY_CL(code);
    }
    for (int i = 0; i < 3; i++) {
        in[i] = random_floats(COUNT, (uint32_t)i);
        TRY_CL(clEnqueueWriteBuffer(queue, mem[i], CL_FALSE, 0, COUNT * sizeof(float), in[i], 0,
                                    NULL, &written[i]));
    }
    call.q.buf = mem_buf(mem[0]);
    call.k.buf = mem_buf(mem[1]);
    call.v.buf = mem_buf(mem[2]);
    call.o.buf = mem_buf(mem[3]);

    // What is enqueued brings its workspace. This call needs none; one of few queries and many keys
    // (split_kv), or of an algorithm chosen by its name, may need one.
    size_t workspace_bytes;
    TRY(clattn_plan_workspace_bytes(plan, &call, &workspace_bytes));
    cl_mem workspace = NULL;
    if (workspace_bytes > 0) {
        workspace = clCreateBuffer(context, CL_MEM_READ_WRITE, workspace_bytes, NULL, &code);
        TRY_CL(code);
        call.workspace = mem_buf(workspace);
    }

    // An out-of-order queue runs commands in any order that their events allow.
    TRY(clattn_attention_enqueue(plan, &call, queue, 3, written, &attended));
    TRY_CL(clEnqueueReadBuffer(queue, mem[3], CL_FALSE, 0, COUNT * sizeof(float), got, 1, &attended,
                               &read));
    TRY_CL(clWaitForEvents(1, &read));

    // The same by the definition, in double precision, on host memory.
    clattn_plan *reference = NULL;
    desc.algo = CLATTN_ALGO_REFERENCE;
    TRY(clattn_attention_plan_create(ctx, &desc, &reference));
    call.q.buf = clattn_host_buf(in[0], COUNT * sizeof(float));
    call.k.buf = clattn_host_buf(in[1], COUNT * sizeof(float));
    call.v.buf = clattn_host_buf(in[2], COUNT * sizeof(float));
    call.o.buf = clattn_host_buf(want, COUNT * sizeof(float));
    call.workspace = (clattn_buf){.kind = CLATTN_BUF_ABSENT};
    TRY(clattn_attention_run(reference, &call));
    const int status = report("attention between events", largest_difference(got, want, COUNT));

    for (int i = 0; i < 3; i++) {
        clReleaseEvent(written[i]);
        free(in[i]);
    }
    clReleaseEvent(attended);
    clReleaseEvent(read);
    for (int i = 0; i < 4; i++)
        clReleaseMemObject(mem[i]);
    free(got);
    free(want);
    if (workspace)
        clReleaseMemObject(workspace);
    clattn_plan_destroy(&reference);
    clattn_plan_destroy(&plan);
    clattn_context_destroy(&ctx);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return status;
}
