// SPDX-License-Identifier: Apache-2.0
// Offsets beyond 2^31 elements, in mappings of 9 GB of which only the rows are ever touched: on
// host memory, and on buffers of OpenCL that lie on it where a driver works in place.
#define _DEFAULT_SOURCE // anonymous mappings
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "compare.h"
#include "data.h"
#include "open_device.h"
#include "run_case.h"
#ifdef TEST_LINKS_OPENCL
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include "clattn/opencl.h"
#endif

enum { DIM = 24, HEADS = 4, QUERIES = 5, KEYS = 36, ROOM = 1 << 14 };

// Tensors that lie in a mapping of which only their rows are ever touched. `shift` divides the
// strides, for a small trial of what a driver does with such memory.
struct sparse {
    struct attn_case c;
    struct attn_data d;
    float *in, *out, *lse; // Q, K and V lie in one mapping
    size_t floats;
    clattn_attention_call call;
};

static const struct {
    const char *name;
    int32_t batch;
    int64_t stride_batch, stride_head, stride_seq; // of K and V, and 0 = contiguous
    int64_t q_stride_head;
} forms[] = {
    // The 33rd key and the last head, and the second sequence, begin beyond 2^31 elements.
    {"keys and heads far apart", 1, 0, 0, (int64_t)1 << 26, (int64_t)3 << 28},
    {"sequences far apart", 2, ((int64_t)1 << 31) + 64, 0, 0, 0},
};
// What either takes in one allocation.
#define LEAST_BYTES (((size_t)1 << 31) * sizeof(float))
enum { FORMS = sizeof forms / sizeof *forms };

static float *map_floats(size_t floats)
{
    void *at = mmap(NULL, floats * sizeof(float), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void set_tensor(clattn_tensor *t, int64_t offset, int64_t batch, int64_t head, int64_t seq)
{
    t->layout = CLATTN_LAYOUT_STRIDED;
    t->buf.offset_bytes = (size_t)offset * sizeof(float);
    t->stride_batch = batch;
    t->stride_head = head;
    t->stride_seq = seq;
}

// Copies between rows [batch, heads, len, dim] and where a tensor has them.
static void copy_rows(float *mem, const clattn_tensor *t, float *rows, int32_t batch, int32_t heads,
                      int32_t len, bool to_mem)
{
    const size_t dim = DIM;
    const int64_t offset = (int64_t)(t->buf.offset_bytes / sizeof(float));
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < len; i++, rows += dim) {
                float *at = mem + offset + b * t->stride_batch + h * t->stride_head +
                            i * t->stride_seq;
                memcpy(to_mem ? at : rows, to_mem ? rows : at, dim * sizeof *at);
            }
}

static void sparse_close(struct sparse *s)
{
    if (s->in)
        munmap(s->in, s->floats * sizeof(float));
    if (s->out)
        munmap(s->out, s->floats * sizeof(float));
    free(s->lse);
    attn_data_free(&s->d);
}

// False where so much address space is not to be had.
static bool sparse_open(struct sparse *s, int form, int shift)
{
    memset(s, 0, sizeof *s);
    const int32_t batch = forms[form].batch;
    s->c = (struct attn_case){.dim = DIM, .batch = batch, .heads_q = HEADS,
                              .heads_kv = 1, .len_q = QUERIES, .len_kv = KEYS,
                              .causal = true, .seed = 5};
    const int64_t dim = s->c.dim;
    const int64_t far_batch = forms[form].stride_batch >> shift;
    const int64_t far_seq = forms[form].stride_seq >> shift;
    const int64_t far_head = forms[form].q_stride_head >> shift;
    const int64_t seq = far_seq ? far_seq : dim;
    const int64_t head_q = far_head ? far_head : QUERIES * dim;
    const int64_t batch_q = far_batch ? far_batch : HEADS * head_q;
    const int64_t batch_kv = far_batch ? far_batch : KEYS * seq;
    s->floats = (size_t)(far_batch ? far_batch : KEYS * seq) + 4 * ROOM;
    s->in = map_floats(s->floats);
    s->out = map_floats(s->floats);
    s->lse = malloc((size_t)(batch * HEADS * QUERIES) * sizeof(float));
    if (!s->in || !s->out)
        return false;
    assert_true(s->lse && attn_data_make(&s->c, &s->d));
    s->call = case_host_call(&s->c, s->in, s->in, s->in, NULL, s->out, s->lse);
    set_tensor(&s->call.k, 0, batch_kv, dim, seq);
    set_tensor(&s->call.v, ROOM, batch_kv, dim, seq);
    set_tensor(&s->call.q, 2 * ROOM, batch_q, head_q, dim);
    set_tensor(&s->call.o, ROOM / 2, batch_q, head_q, dim);
    copy_rows(s->in, &s->call.k, s->d.k, batch, 1, KEYS, true);
    copy_rows(s->in, &s->call.v, s->d.v, batch, 1, KEYS, true);
    copy_rows(s->in, &s->call.q, s->d.q, batch, HEADS, QUERIES, true);
    return true;
}

static void sparse_check(const struct sparse *s, const char *name)
{
    const size_t rows = (size_t)s->c.batch * HEADS * QUERIES;
    float *o = malloc(rows * DIM * sizeof *o);
    struct compare_report report;
    assert_non_null(o);
    copy_rows(s->out, &s->call.o, o, s->c.batch, HEADS, QUERIES, false);
    const bool good = compare(o, s->d.o, rows * DIM, &s->d.tol_o, &report);
    if (!good)
        compare_print("O", &report);
    if (!good || !compare(s->lse, s->d.lse, rows, &s->d.tol_lse, &report))
        fail_msg("%s: O or LSE is wrong", name);
    free(o);
}

#ifdef TEST_LINKS_OPENCL
static size_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

// Runs it on buffers that lie on the mappings. *copied receives by how much the process has grown.
static void sparse_on_device(struct test_target *t, struct sparse *s, const char *name,
                             size_t *copied)
{
    clattn_plan *plan = case_plan(t, &s->c);
    cl_context context = clattn_context_cl_context(t->device->ctx);
    cl_device_id id = clattn_context_cl_device(t->device->ctx);
    cl_int code[4];
    cl_command_queue queue = clCreateCommandQueue(context, id, 0, &code[0]);
    const size_t before = resident_bytes();
    cl_mem in = clCreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR,
                               s->floats * sizeof(float), s->in, &code[1]);
    cl_mem out = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                s->floats * sizeof(float), s->out, &code[2]);
    if (code[0] || code[1] || code[2])
        fail_msg("%s: no buffers of %zu floats: %d %d %d", name, s->floats, (int)code[0],
                 (int)code[1], (int)code[2]);
    clattn_buf *const bufs[] = {&s->call.q.buf, &s->call.k.buf, &s->call.v.buf, &s->call.o.buf};
    for (int n = 0; n < 4; n++) {
        bufs[n]->kind = CLATTN_BUF_CL_MEM;
        bufs[n]->ptr = n < 3 ? in : out;
    }
    const clattn_status st = clattn_attention_run(plan, &s->call);
    if (st != CLATTN_OK)
        fail_msg("%s: %s", name, clattn_status_string(st));
    const size_t after = resident_bytes();
    // Mapping makes what the device wrote visible.
    void *at = clEnqueueMapBuffer(queue, out, CL_TRUE, CL_MAP_READ, 0, s->floats * sizeof(float), 0,
                                  NULL, NULL, &code[3]);
    assert_int_equal(code[3], CL_SUCCESS);
    assert_ptr_equal(at, s->out);
    sparse_check(s, name);
    assert_int_equal(clEnqueueUnmapMemObject(queue, out, at, 0, NULL, NULL), CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    clReleaseMemObject(in);
    clReleaseMemObject(out);
    clReleaseCommandQueue(queue);
    *copied = after > before ? after - before : 0;
}

static void say_small(const struct test_target *t, size_t bytes)
{
    printf("    the device allows %zu bytes in one allocation, this takes %zu\n",
           t->device->info.max_alloc_bytes, bytes);
}

// Whether a device works on the memory that it is given rather than on a copy, as a small trial
// with strides of a 64th shows.
static bool works_in_place(struct test_target *t)
{
    struct sparse s;
    size_t copied = 0;
    if (!sparse_open(&s, 0, 6))
        return false;
    sparse_on_device(t, &s, "a small trial", &copied);
    const bool in_place = copied < s.floats * sizeof(float) / 4;
    printf("    with %zu MB of memory that is not touched the process grew by %zu MB\n",
           2 * s.floats * sizeof(float) >> 20, copied >> 20);
    sparse_close(&s);
    return in_place;
}
#endif

// The device's own form of the test; false with a line saying why where it cannot be had.
static bool sparse_form(struct test_target *t, struct sparse *s, int form)
{
    if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU) {
        clattn_plan *plan = case_plan(t, &s->c);
        const clattn_status st = clattn_attention_run(plan, &s->call);
        if (st != CLATTN_OK)
            fail_msg("%s: %s", forms[form].name, clattn_status_string(st));
        sparse_check(s, forms[form].name);
        return true;
    }
#ifdef TEST_LINKS_OPENCL
    size_t copied = 0;
    if (t->device->info.max_alloc_bytes < s->floats * sizeof(float)) {
        say_small(t, s->floats * sizeof(float));
        return false;
    }
    sparse_on_device(t, s, forms[form].name, &copied);
    printf("    %s: the process grew by %zu MB\n", forms[form].name, copied >> 20);
    return true;
#else
    printf("    this build links no OpenCL to make such buffers with\n");
    return false;
#endif
}

static void test_far_offsets(void **state)
{
    struct test_target *t = *state;
    bool ran = false;
#ifdef TEST_LINKS_OPENCL
    const bool builtin = t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU;
    if (!builtin && t->device->info.max_alloc_bytes < LEAST_BYTES) {
        say_small(t, LEAST_BYTES);
        skip();
    }
    if (!builtin && !works_in_place(t)) {
        printf("    the driver copies what it is given: that would take 20 GB\n");
        skip();
    }
#endif
    for (int form = 0; form < FORMS; form++) {
        struct sparse s;
        if (!sparse_open(&s, form, 0))
            printf("    no mapping of %zu floats is to be had\n", s.floats);
        else
            ran = sparse_form(t, &s, form) || ran;
        sparse_close(&s);
    }
    if (!ran)
        skip();
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"offsets beyond 2^31 elements", test_far_offsets, LEVEL_SMALL},
    };
    return targets_main("offsets", argc, argv, tests, sizeof tests / sizeof *tests);
}
