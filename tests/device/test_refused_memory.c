// SPDX-License-Identifier: Apache-2.0
// Refusals of device memory, queues and events. Of these the CPU path only has that it has none.
#include "refuse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#ifdef TEST_LINKS_OPENCL
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include "clattn/opencl.h"
#endif

// ---- device memory ------------------------------------------------------------------------------

enum { MEM_Q, MEM_K, MEM_V, MEM_MASK, MEM_O, MEM_LSE, MEMS };
static clattn_buf mem[MEMS];

static clattn_attention_call mem_call(void)
{
    static const size_t bytes[MEMS] = {COUNT_O * 4, COUNT_KV * 4, COUNT_KV * 4,
                                       COUNT_MASK,  COUNT_O * 4,  COUNT_LSE * 4};
    const void *const from[MEMS] = {fx.d.q, fx.d.k, fx.d.v, fx.d.mask};
    clattn_attention_call call = good_call();
    clattn_buf *const to[MEMS] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.mask.buf,
                                  &call.o.buf, &call.lse};
    blank_outputs();
    for (int n = 0; n < MEMS; n++) {
        const size_t guard = n < MEM_O ? 0 : GUARD * sizeof(float);
        if (!mem[n].kind)
            assert_int_equal(clattn_mem_create(fx.ctx, bytes[n] + 2 * guard, &mem[n]), CLATTN_OK);
        const void *data = n < MEM_O ? from[n] : n == MEM_O ? (void *)fx.o : (void *)fx.lse;
        assert_int_equal(clattn_mem_write(fx.ctx, &mem[n], data, bytes[n] + 2 * guard), CLATTN_OK);
        *to[n] = mem[n];
        to[n]->offset_bytes = guard;
    }
    return call;
}

static void read_outputs(void)
{
    assert_int_equal(clattn_mem_read(fx.ctx, &mem[MEM_O], fx.o, sizeof fx.o), CLATTN_OK);
    assert_int_equal(clattn_mem_read(fx.ctx, &mem[MEM_LSE], fx.lse, sizeof fx.lse), CLATTN_OK);
}

static void free_memory(void)
{
    for (int n = 0; n < MEMS; n++)
        clattn_mem_destroy(fx.ctx, &mem[n]);
}

#define G (GUARD * 4)
static const struct refusal mem_rows[] = {
    {"negative queries", INVALID, {"len_q is -1"}, {CALL(len_q, -1)}, ON_OPENCL},
    {"keys over the bound", CLATTN_ERR_OVER_BOUND, {"len_kv is 9"}, {CALL(len_kv, 9)}, ON_OPENCL},
    {"scale of NaN", INVALID, {"scale is nan"},
     {CALL(set, CLATTN_SET_SCALE), CALL(scale, NAN_BITS)}, ON_OPENCL},
    {"Q pushed over its end", CLATTN_ERR_BUFFER_TOO_SMALL, {"q needs 1540", "has 1536"},
     {CALL(q.buf.offset_bytes, 4)}, ON_OPENCL},
    {"Q pushed over its end, size of the cl_mem", CLATTN_ERR_BUFFER_TOO_SMALL,
     {"q needs 1540", "has 1536"}, {CALL(q.buf.offset_bytes, 4), CALL(q.buf.size_bytes, 0)},
     ON_OPENCL},
    {"more than the cl_mem has", CLATTN_ERR_BUFFER_TOO_SMALL, {"v.buf.size_bytes 1281", "1280"},
     {CALL(v.buf.size_bytes, 1281)}, ON_OPENCL},
    {"O short", CLATTN_ERR_BUFFER_TOO_SMALL, {"o needs 1792", "has 1791"},
     {CALL(o.buf.size_bytes, COUNT_O * 4 + G - 1)}, ON_OPENCL},
    {"odd offset", INVALID, {"o.buf.offset_bytes is 2"}, {CALL(o.buf.offset_bytes, 2)}, ON_OPENCL},
    {"O over Q", CLATTN_ERR_OVERLAP, {"o (bytes 256 to 1792)", "q (bytes 0 to 1536)"},
     {CALL_COPY(q.buf, o.buf), CALL(q.buf.offset_bytes, 0)}, ON_OPENCL},
    {"LSE in O", CLATTN_ERR_OVERLAP, {"o (bytes 256 to 1792)", "lse (bytes 1788 to"},
     {CALL_COPY(lse, o.buf), CALL(lse.offset_bytes, COUNT_O * 4 + G - 4)}, ON_OPENCL},
    {"rows of O overlap", CLATTN_ERR_STRIDE, {"o: stride 1 of axis 2"},
     {CALL(o.layout, CLATTN_LAYOUT_STRIDED), CALL(o.stride_batch, 192), CALL(o.stride_head, 48),
      CALL(o.stride_seq, 1)}, ON_OPENCL},
    {"no pointer", CLATTN_ERR_BUFFER_MISSING, {"k is absent", "ptr NULL"}, {CALL(k.buf.ptr, 0)},
     ON_OPENCL},
};

static void test_device_memory(void **state)
{
    fixture_open(*state);
    if (on_builtin())
        skip();
    for (size_t n = 0; n < sizeof mem_rows / sizeof *mem_rows; n++) {
        clattn_attention_call call = mem_call();
        edit_struct(&call, mem_rows[n].edit);
        REFUSED(clattn_attention_run(fx.plan, &call), mem_rows[n].name, mem_rows[n].want,
                mem_rows[n].says[0], mem_rows[n].says[1]);
        read_outputs();
        assert_untouched(mem_rows[n].name);
        assert_valid_works(mem_rows[n].name);
    }
    // Memory of another context on the same device, in each place.
    char index[16];
    snprintf(index, sizeof index, "%d", fx.target->device->info.index);
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = index;
    clattn_context *other = NULL;
    clattn_buf foreign;
    assert_int_equal(clattn_context_create(&desc, &other), CLATTN_OK);
    assert_int_equal(clattn_mem_create(other, sizeof fx.o, &foreign), CLATTN_OK);
    static const char *const names[MEMS] = {"q.buf.ptr", "k.buf.ptr",  "v.buf.ptr", "mask.buf.ptr",
                                            "o.buf.ptr", "lse.buf.ptr"};
    for (int n = 0; n < MEMS; n++) {
        clattn_attention_call call = mem_call();
        clattn_buf *const to[MEMS] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.mask.buf,
                                      &call.o.buf, &call.lse};
        *to[n] = foreign;
        REFUSED(clattn_attention_run(fx.plan, &call), names[n], CLATTN_ERR_WRONG_CONTEXT, names[n],
                "another context");
        read_outputs();
        assert_untouched(names[n]);
    }
    REFUSED(clattn_mem_write(fx.ctx, &foreign, fx.o, 16), "foreign", CLATTN_ERR_WRONG_CONTEXT,
            "dst.buf.ptr", "another context");
    REFUSED(clattn_mem_read(fx.ctx, &foreign, fx.o, 16), "foreign", CLATTN_ERR_WRONG_CONTEXT,
            "src.buf.ptr", "another context");
    clattn_mem_destroy(other, &foreign);
    clattn_context_destroy(&other);
    const clattn_attention_call call = mem_call();
    assert_int_equal(clattn_attention_run(fx.plan, &call), CLATTN_OK);
    struct compare_report report;
    read_outputs();
    assert_true(compare(fx.o + GUARD, fx.d.o, COUNT_O, &fx.d.tol_o, &report));
    free_memory();
    assert_valid_works("device memory");
}

// ---- queues -------------------------------------------------------------------------------------

#ifdef TEST_LINKS_OPENCL
#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

static void refuse_enqueue(const char *name, const clattn_attention_call *call,
                           cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                           clattn_status want, const char *first, const char *second)
{
    cl_event done = NULL;
    clear_log();
    assert_refused(name, clattn_attention_enqueue(fx.plan, call, queue, num_wait, wait, &done),
                   want, SAYS(first, second));
    assert_null(done);
    read_outputs();
    assert_untouched(name);
    assert_valid_works(name);
}

static void refuse_on_queue(cl_context cl, cl_device_id device, cl_command_queue queue)
{
    cl_int code;
    cl_context other = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CL_OK(code);
    cl_command_queue foreign = clCreateCommandQueue(other, device, 0, &code);
    CL_OK(code);
    cl_event events[2] = {NULL, NULL};
    CL_OK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &events[0]));
    clattn_attention_call call = mem_call();
    refuse_enqueue("no queue", &call, NULL, 0, NULL, INVALID, "queue is NULL", NULL);
    refuse_enqueue("foreign queue", &call, foreign, 0, NULL, CLATTN_ERR_WRONG_CONTEXT,
                   "queue is of cl_context", NULL);
    refuse_enqueue("a count without a list", &call, queue, 2, NULL, INVALID, "num_wait is 2",
                   "wait is NULL");
    refuse_enqueue("a list without a count", &call, queue, 0, events, INVALID, "num_wait is 0",
                   "wait is set");
    refuse_enqueue("a gap in the list", &call, queue, 2, events, INVALID, "wait[1] is NULL", NULL);
    CL_OK(clEnqueueMarkerWithWaitList(foreign, 0, NULL, &events[1]));
    CL_OK(clFinish(foreign));
    refuse_enqueue("foreign event", &call, queue, 2, events, CLATTN_ERR_WRONG_CONTEXT,
                   "wait[1] is of cl_context", NULL);
    refuse_enqueue("no call", NULL, queue, 0, NULL, INVALID, "call is NULL", NULL);
    for (int n = 0; n < MEMS; n++) {
        static const char *const names[MEMS] = {"q.buf.kind is 1", "k.buf.kind is 1",
                                                "v.buf.kind is 1", "mask.buf.kind is 1",
                                                "o.buf.kind is 1", "lse.buf.kind is 1"};
        const clattn_attention_call on_host = good_call();
        const clattn_buf from[MEMS] = {on_host.q.buf,    on_host.k.buf, on_host.v.buf,
                                       on_host.mask.buf, on_host.o.buf, on_host.lse};
        call = mem_call();
        clattn_buf *const to[MEMS] = {&call.q.buf, &call.k.buf, &call.v.buf, &call.mask.buf,
                                      &call.o.buf, &call.lse};
        *to[n] = from[n];
        refuse_enqueue("host memory", &call, queue, 0, NULL, CLATTN_ERR_BUFFER_MISSING, names[n],
                       "needs a cl_mem");
    }
    call = mem_call();
    call.v.buf.ptr = clCreateBuffer(other, CL_MEM_READ_WRITE, 1 << 16, NULL, &code);
    CL_OK(code);
    refuse_enqueue("foreign cl_mem", &call, queue, 0, NULL, CLATTN_ERR_WRONG_CONTEXT, "v.buf.ptr",
                   "another context");
    clReleaseMemObject(call.v.buf.ptr);
    const cl_image_format format = {CL_RGBA, CL_FLOAT};
    const cl_image_desc image = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64,
                                 .image_height = 64};
    call = mem_call();
    call.k.buf = (clattn_buf){.kind = CLATTN_BUF_CL_MEM};
    call.k.buf.ptr = clCreateImage(cl, CL_MEM_READ_WRITE, &format, &image, NULL, &code);
    if (code == CL_SUCCESS) {
        refuse_enqueue("an image", &call, queue, 0, NULL, CLATTN_ERR_BUFFER_MISSING, "k.buf.ptr",
                       "none that is a buffer");
        clReleaseMemObject(call.k.buf.ptr);
    } else {
        printf("    no images here (%d)\n", (int)code);
    }
    clReleaseEvent(events[0]);
    clReleaseEvent(events[1]);
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
}

// O in a part of Q that has a cl_mem of its own.
static void test_sub_buffer(void **state)
{
    fixture_open(*state);
    if (on_builtin())
        skip();
    clattn_attention_call call = mem_call();
    const cl_buffer_region region = {0, COUNT_O * 4};
    cl_int code = CL_SUCCESS;
    cl_mem part = clCreateSubBuffer((cl_mem)mem[MEM_Q].ptr, CL_MEM_READ_WRITE,
                                    CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    assert_int_equal(code, CL_SUCCESS);
    call.o.buf.ptr = part;
    call.o.buf.offset_bytes = call.o.buf.size_bytes = 0;
    REFUSED(clattn_attention_run(fx.plan, &call), "O in a sub-buffer of Q", CLATTN_ERR_OVERLAP,
            "o (bytes 0 to 1536)", "q (bytes 0 to 1536)");
    read_outputs();
    assert_untouched("O in a sub-buffer of Q");
    assert_int_equal(clReleaseMemObject(part), CL_SUCCESS);
    assert_valid_works("O in a sub-buffer of Q");
    free_memory();
}

static void test_queues(void **state)
{
    fixture_open(*state);
    if (on_builtin()) {
        const clattn_attention_call call = good_call();
        cl_event done = NULL;
        blank_outputs();
        REFUSED(clattn_attention_enqueue(fx.plan, &call, NULL, 0, NULL, &done), "CPU path",
                CLATTN_ERR_NO_OPENCL, "built-in CPU path");
        assert_null(done);
        assert_int_equal(clattn_attention_enqueue(NULL, &call, NULL, 0, NULL, &done), INVALID);
        assert_untouched("no queue");
        assert_null(clattn_context_cl_context(fx.ctx));
        assert_null(clattn_context_cl_device(fx.ctx));
        assert_valid_works("no queue");
        return;
    }
    cl_int code;
    const cl_context cl = clattn_context_cl_context(fx.ctx);
    const cl_device_id device = clattn_context_cl_device(fx.ctx);
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, &code);
    CL_OK(code);
    for (size_t n = 0; n < sizeof mem_rows / sizeof *mem_rows; n++) {
        clattn_attention_call call = mem_call();
        edit_struct(&call, mem_rows[n].edit);
        refuse_enqueue(mem_rows[n].name, &call, queue, 0, NULL, mem_rows[n].want,
                       mem_rows[n].says[0], mem_rows[n].says[1]);
    }
    refuse_on_queue(cl, device, queue);
    // Oclgrind cannot serve the CPU path's asynchronous way; see test_opencl_api.
    if (fx.target->algo == CLATTN_ALGO_FUSED ||
        strcmp(fx.target->device->info.platform, "Oclgrind") != 0) {
        clattn_attention_call call = mem_call();
        cl_event done = NULL;
        size_t bytes = 0;
        assert_int_equal(clattn_plan_workspace_bytes(fx.plan, &call, &bytes), CLATTN_OK);
        if (bytes)
            assert_int_equal(clattn_mem_create(fx.ctx, bytes, &call.workspace), CLATTN_OK);
        assert_int_equal(clattn_attention_enqueue(fx.plan, &call, queue, 0, NULL, &done),
                         CLATTN_OK);
        // rusticl's clFinish() does not wait for the marker behind the CPU path's user event.
        CL_OK(clWaitForEvents(1, &done));
        clReleaseEvent(done);
        clattn_mem_destroy(fx.ctx, &call.workspace);
        struct compare_report ro, rl;
        read_outputs();
        const bool good_o = compare(fx.o + GUARD, fx.d.o, COUNT_O, &fx.d.tol_o, &ro);
        if (!compare(fx.lse + GUARD, fx.d.lse, COUNT_LSE, &fx.d.tol_lse, &rl) || !good_o) {
            compare_print("O", &ro);
            compare_print("LSE", &rl);
            fail_msg("a valid call after those on the queue is wrong");
        }
    }
    clReleaseCommandQueue(queue);
    free_memory();
}

static void test_adopting(void **state)
{
    fixture_open(*state);
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = log_capture;
    desc.log_user = &fx.log;
    clattn_context *ctx = (clattn_context *)(uintptr_t)1;
    if (on_builtin())
        skip();
    cl_int code;
    cl_device_id device = clattn_context_cl_device(fx.ctx);
    cl_context mine = clattn_context_cl_context(fx.ctx);
    cl_context other = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CL_OK(code);
    cl_command_queue foreign = clCreateCommandQueue(other, device, 0, &code);
    CL_OK(code);
    REFUSED(clattn_context_create_opencl(&desc, NULL, device, NULL, &ctx), "no context", INVALID,
            "cl_ctx is NULL");
    assert_null(ctx);
    REFUSED(clattn_context_create_opencl(&desc, mine, NULL, NULL, &ctx), "no device", INVALID,
            "cl_dev is NULL");
    REFUSED(clattn_context_create_opencl(&desc, mine, device, NULL, NULL), "no out", INVALID,
            "out is NULL");
    REFUSED(clattn_context_create_opencl(&desc, mine, device, foreign, &ctx), "foreign queue",
            CLATTN_ERR_WRONG_CONTEXT, "queue is of cl_context");
    assert_null(ctx);
    clReleaseCommandQueue(foreign);
    clReleaseContext(other);
    assert_valid_works("adopting");
}
#endif

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"device memory", test_device_memory, LEVEL_SMALL},
#ifdef TEST_LINKS_OPENCL
        {"sub-buffer", test_sub_buffer, LEVEL_SMALL},
        {"queues", test_queues, LEVEL_SMALL},
        {"adopting", test_adopting, LEVEL_SMALL},
#endif
    };
    const int status =
        targets_main("refused memory", argc, argv, tests, sizeof tests / sizeof *tests);
    fixture_close();
    return status;
}
