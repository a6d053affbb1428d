// SPDX-License-Identifier: Apache-2.0
#include "ocl/launch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl/error.h"

// More than the threads that launch one kernel at the same moment, which is all that counts: a
// kernel is back in its slot as soon as the call is queued.
enum { NUM_SLOTS = 64 };

struct pool {
    _Atomic(cl_kernel) slots[NUM_SLOTS]; // NULL = empty
};

struct cla_kernels {
    const struct cla_cl *cl;
    const struct cla_log *log;
    cl_program program;
    char *function;
    struct pool *pool; // apart, since taking from it does not change what the object is
};

// A kernel of the caller's own; NULL with a message if none could be made.
static cl_kernel take(const struct cla_kernels *k, const struct cla_log *log, cl_int *code)
{
    *code = CL_SUCCESS;
    for (int i = 0; i < NUM_SLOTS; i++) {
        cl_kernel kernel = atomic_exchange(&k->pool->slots[i], NULL);
        if (kernel)
            return kernel;
    }
    cl_kernel kernel = k->cl->CreateKernel(k->program, k->function, code);
    if (kernel && *code == CL_SUCCESS)
        return kernel;
    if (*code == CL_SUCCESS)
        *code = CL_OUT_OF_HOST_MEMORY;
    char call[160];
    snprintf(call, sizeof call, "clCreateKernel(%s)", k->function);
    cla_cl_check(log, *code, call);
    return NULL;
}

static void put(const struct cla_kernels *k, cl_kernel kernel)
{
    for (int i = 0; i < NUM_SLOTS; i++) {
        cl_kernel empty = NULL;
        if (atomic_compare_exchange_strong(&k->pool->slots[i], &empty, kernel))
            return;
    }
    k->cl->ReleaseKernel(kernel);
}

clattn_status cla_kernels_create(const struct cla_cl *cl, cl_program program, const char *function,
                                 const struct cla_log *log, struct cla_kernels **out)
{
    *out = NULL;
    struct cla_kernels *k = calloc(1, sizeof *k);
    if (!k)
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for kernel %s", function);
    clattn_status st = CLATTN_OK;
    size_t size = strlen(function) + 1;
    k->cl = cl;
    k->log = log;
    k->function = malloc(size);
    k->pool = malloc(sizeof *k->pool);
    if (!k->function || !k->pool) {
        st = cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for kernel %s", function);
        goto done;
    }
    memcpy(k->function, function, size);
    for (int i = 0; i < NUM_SLOTS; i++)
        atomic_init(&k->pool->slots[i], NULL);

    CLA_TRY(cla_cl_check(log, cl->RetainProgram(program), "clRetainProgram"));
    k->program = program;
    cl_int code;
    cl_kernel first = take(k, log, &code); // here, so that a wrong name is found early
    CLA_TRY(cla_cl_status(code));
    put(k, first);
    *out = k;
    k = NULL;
done:
    cla_kernels_destroy(&k);
    return st;
}

void cla_kernels_destroy(struct cla_kernels **kernels)
{
    if (!kernels || !*kernels)
        return;
    struct cla_kernels *k = *kernels;
    if (k->program) { // else the slots were not filled either
        for (int i = 0; i < NUM_SLOTS; i++) {
            cl_kernel kernel = atomic_load(&k->pool->slots[i]);
            if (kernel)
                k->cl->ReleaseKernel(kernel);
        }
        k->cl->ReleaseProgram(k->program);
    }
    free(k->pool);
    free(k->function);
    free(k);
    *kernels = NULL;
}

cl_program cla_kernels_program(const struct cla_kernels *k)
{
    return k->program;
}

clattn_status cla_kernels_limits(const struct cla_kernels *k, cl_device_id device,
                                 size_t *max_group, size_t *local_bytes)
{
    const struct cla_log *log = k->log;
    clattn_status st = CLATTN_OK;
    cl_ulong local = 0;
    cl_int code;
    cl_kernel kernel = take(k, log, &code);
    CLA_TRY(cla_cl_status(code));
    CLA_CL(k->cl->GetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE,
                                         sizeof *max_group, max_group, NULL));
    CLA_CL(k->cl->GetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local,
                                         &local, NULL));
    *local_bytes = local > SIZE_MAX ? SIZE_MAX : (size_t)local;
done:
    if (kernel)
        put(k, kernel);
    return st;
}

static clattn_status bind(const struct cla_kernels *k, const struct cla_log *log, cl_kernel kernel,
                          const struct cla_arg *args, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        cl_int code = k->cl->SetKernelArg(kernel, i, args[i].size, args[i].value);
        if (code != CL_SUCCESS) {
            char call[160];
            snprintf(call, sizeof call, "clSetKernelArg(%s, slot %u, %zu bytes)", k->function, i,
                     args[i].size);
            return cla_cl_check(log, code, call);
        }
    }
    return CLATTN_OK;
}

clattn_status cla_kernels_enqueue(const struct cla_kernels *k, const struct cla_log *log,
                                  const struct cla_arg *args, unsigned n, cl_command_queue queue,
                                  unsigned dims, const size_t *global, const size_t *local,
                                  cl_uint num_wait, const cl_event *wait, cl_event *done)
{
    cl_int code;
    cl_kernel kernel = take(k, log, &code);
    if (!kernel)
        return cla_cl_status(code);
    clattn_status st = bind(k, log, kernel, args, n);
    if (st == CLATTN_OK) {
        code = k->cl->EnqueueNDRangeKernel(queue, kernel, dims, NULL, global, local, num_wait, wait,
                                           done);
        if (code != CL_SUCCESS) {
            char call[160];
            snprintf(call, sizeof call, "clEnqueueNDRangeKernel(%s)", k->function);
            st = cla_cl_check(log, code, call);
        }
    }
    put(k, kernel);
    return st;
}

clattn_status cla_kernels_enqueue_groups(const struct cla_kernels *k, const struct cla_log *log,
                                         const struct cla_arg *args, unsigned n,
                                         cl_command_queue queue, uint64_t groups, size_t local,
                                         cl_uint num_wait, const cl_event *wait, cl_event *done)
{
    size_t global = 0;
    if (__builtin_mul_overflow(groups, local, &global))
        return cla_fail(log, CLATTN_ERR_UNSUPPORTED,
                        "%llu work-groups of %zu work-items are more than a launch can have here",
                        (unsigned long long)groups, local);
    return cla_kernels_enqueue(k, log, args, n, queue, 1, &global, &local, num_wait, wait, done);
}
