// SPDX-License-Identifier: Apache-2.0
// ocl/source, ocl/program and ocl/launch on every OpenCL device.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "clattn/opencl.h"
#include "ocl/error.h"
#include "ocl/launch.h"
#include "ocl/program.h"
#include "ocl/source.h"
#include "open_device.h"
#include "record_log.h"
#include "thread.h"

enum { MANY = 70 }; // threads: more than a pool has slots

static struct cla_cl *real;  // the loader's functions
static struct cla_cl hooked; // what the tests pass on: `real` with some functions replaced

// The device that the group of tests runs on.
static struct {
    struct test_device *device;
    cl_context context;
    cl_device_id id;
    cl_command_queue queue;
    struct cla_programs *programs;
} on;

static struct record record;

static const char store_text[] = "__kernel void store(int x, __global int *to)\n"
                                 "{\n"
                                 "    if (to)\n"
                                 "        to[get_global_id(0)] = x + VALUE;\n"
                                 "}\n";

static atomic_int builds, kernels_made, kernels_freed;
static cl_int build_code; // answered by clBuildProgram where it is no success
static int build_ms;      // what a build takes longer
static pthread_barrier_t *meet_in_build, *meet_in_enqueue;
static cl_kernel seen_kernels[MANY];
static atomic_int num_seen;

static cl_int CL_API_CALL hook_build(cl_program program, cl_uint n, const cl_device_id *devices,
                                     const char *options,
                                     void(CL_CALLBACK *notify)(cl_program, void *), void *user)
{
    atomic_fetch_add(&builds, 1);
    if (meet_in_build)
        pthread_barrier_wait(meet_in_build);
    if (build_ms)
        sleep_ms(build_ms);
    if (build_code != CL_SUCCESS)
        return build_code;
    return real->BuildProgram(program, n, devices, options, notify, user);
}

static cl_kernel CL_API_CALL hook_create_kernel(cl_program program, const char *name, cl_int *code)
{
    cl_kernel kernel = real->CreateKernel(program, name, code);
    if (kernel)
        atomic_fetch_add(&kernels_made, 1);
    return kernel;
}

static cl_int CL_API_CALL hook_release_kernel(cl_kernel kernel)
{
    atomic_fetch_add(&kernels_freed, 1);
    return real->ReleaseKernel(kernel);
}

static cl_int CL_API_CALL hook_enqueue(cl_command_queue queue, cl_kernel kernel, cl_uint dims,
                                       const size_t *offset, const size_t *global,
                                       const size_t *local, cl_uint num_wait, const cl_event *wait,
                                       cl_event *done)
{
    if (meet_in_enqueue) {
        seen_kernels[atomic_fetch_add(&num_seen, 1)] = kernel;
        pthread_barrier_wait(meet_in_enqueue); // all callers hold their kernels now
    }
    return real->EnqueueNDRangeKernel(queue, kernel, dims, offset, global, local, num_wait, wait,
                                      done);
}

static int set_up(void **state)
{
    (void)state;
    watchdog("test_programs", 300);
    hooked = *real;
    hooked.BuildProgram = hook_build;
    hooked.CreateKernel = hook_create_kernel;
    hooked.ReleaseKernel = hook_release_kernel;
    hooked.EnqueueNDRangeKernel = hook_enqueue;
    builds = kernels_made = kernels_freed = num_seen = 0;
    build_code = CL_SUCCESS;
    build_ms = 0;
    meet_in_build = meet_in_enqueue = NULL;
    record_start(&record, CLATTN_LOG_DEBUG);
    return cla_programs_create(&hooked, on.context, on.id, NULL, &record.log, &on.programs);
}

static int tear_down(void **state)
{
    (void)state;
    cla_programs_destroy(&on.programs);
    watchdog("test_programs", 0);
    return on.programs != NULL;
}

// Programs

static cl_program get(const char *text, const char *options)
{
    cl_program program = NULL;
    clattn_status st =
        cla_programs_get(on.programs, "store", text, options, CLATTN_LOG_ERROR, &program);
    if (st != CLATTN_OK)
        fail_msg("%s: %s", clattn_status_string(st), record.text);
    assert_non_null(program);
    return program;
}

// A request that fails, whose status is returned.
static clattn_status get_failing(const char *text, const char *options, clattn_log_level level)
{
    cl_program program = (cl_program)&record;
    clattn_status st = cla_programs_get(on.programs, "top.cl", text, options, level, &program);
    assert_null(program);
    return st;
}

static void one_build_for_one_text(void **state)
{
    (void)state;
    cl_program first = get(store_text, "-DVALUE=1");
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);
    assert_non_null(strstr(record.text, "store compiled in "));
    assert_non_null(strstr(record.text, "-DVALUE=1"));
    char *copy = strdup(store_text); // equal, but elsewhere
    cl_program again = get(copy, "-DVALUE=1");
    assert_ptr_equal(first, again);
    assert_int_equal(atomic_load(&builds), 1);
    assert_int_equal(cla_programs_build_count(on.programs), 1);
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);

    cl_program other_options = get(store_text, "-DVALUE=2");
    copy[strlen(copy) - 1] = ' ';
    cl_program other_text = get(copy, "-DVALUE=1");
    copy[strlen(copy) - 1] = '\0'; // one character less
    cl_program shorter = get(copy, "-DVALUE=1");
    free(copy);
    assert_ptr_not_equal(first, other_options);
    assert_ptr_not_equal(first, other_text);
    assert_ptr_not_equal(other_text, shorter);
    assert_int_equal(cla_programs_build_count(on.programs), 4);
    assert_ptr_equal(get(store_text, "-DVALUE=1"), first);
    assert_int_equal(cla_programs_build_count(on.programs), 4);

    cl_program all[] = {first, again, other_options, other_text, shorter, first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(real->ReleaseProgram(all[i]), CL_SUCCESS);
}

struct request {
    const char *text, *options;
    clattn_status st;
    cl_program program;
};

static void request(void *arg)
{
    struct request *r = arg;
    r->st =
        cla_programs_get(on.programs, "store", r->text, r->options, CLATTN_LOG_ERROR, &r->program);
}

static void run_requests(struct request *requests, int n)
{
    struct test_thread *threads[4];
    for (int i = 0; i < n; i++)
        threads[i] = thread_start(request, &requests[i]);
    for (int i = 0; i < n; i++)
        thread_join(threads[i]);
}

static void one_build_for_four_threads(void **state)
{
    (void)state;
    struct request r[4];
    for (int i = 0; i < 4; i++)
        r[i] = (struct request){.text = store_text, .options = "-DVALUE=3"};
    build_ms = 100; // all of them ask meanwhile
    run_requests(r, 4);
    assert_int_equal(atomic_load(&builds), 1);
    assert_int_equal(cla_programs_build_count(on.programs), 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].st, CLATTN_OK);
        assert_ptr_equal(r[i].program, r[0].program);
    }
    // Each caller has a reference of its own, and the cache one more.
    for (int i = 0; i < 4; i++)
        assert_int_equal(real->ReleaseProgram(r[i].program), CL_SUCCESS);
    cl_program again = get(store_text, "-DVALUE=3");
    assert_ptr_equal(again, r[0].program);
    assert_int_equal(real->ReleaseProgram(again), CL_SUCCESS);
}

static void other_programs_are_not_held_up(void **state)
{
    (void)state;
    static const char *const options[] = {"-DVALUE=4", "-DVALUE=5", "-DVALUE=6"};
    struct request r[3];
    for (int i = 0; i < 3; i++)
        r[i] = (struct request){.text = store_text, .options = options[i]};
    pthread_barrier_t meet; // opens only when all three are inside clBuildProgram
    assert_int_equal(pthread_barrier_init(&meet, NULL, 3), 0);
    meet_in_build = &meet;
    run_requests(r, 3);
    meet_in_build = NULL;
    pthread_barrier_destroy(&meet);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].st, CLATTN_OK);
        assert_int_equal(real->ReleaseProgram(r[i].program), CL_SUCCESS);
    }
    assert_int_equal(cla_programs_build_count(on.programs), 3);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

// A text whose line 5 of an included file is wrong; the caller frees it.
static char *broken_text(void)
{
    char dir[] = P_tmpdir "/cla_programs_XXXXXX";
    assert_non_null(mkdtemp(dir));
    write_file(dir, "fine.clh", "// nothing\n// here\n");
    write_file(dir, "broken.clh",
               "// 1\n#include \"fine.clh\"\n// 3\n// 4\nint f(void) { return "
               "no_such_name; }\n");
    write_file(dir, "top.cl",
               "#include \"fine.clh\"\n#include \"broken.clh\"\n"
               "__kernel void k(__global int *p) { *p = f(); }\n");
    char *text = NULL;
    assert_int_equal(cla_source_expand(dir, false, "top.cl", NULL, &text), CLATTN_OK);
    static const char *const names[] = {"fine.clh", "broken.clh", "top.cl"};
    for (int i = 0; i < 3; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return text;
}

static void a_failed_build_says_where(void **state)
{
    (void)state;
    char *text = broken_text();
    assert_int_equal(get_failing(text, "-DX=17", CLATTN_LOG_ERROR), CLATTN_ERR_BUILD);
    assert_int_equal(record_total(&record), 1);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
    // Oclgrind's compiler counts the lines of the whole text, whatever #line says.
    bool heeds_line = strcmp(on.device->info.platform, "Oclgrind") != 0;
    const char *const parts[] = {
        "top.cl does not compile",
        "-DX=17",
        on.device->info.name,
        on.device->info.driver,
        heeds_line ? "broken.clh:5" : "no_such_name",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(record.text, parts[i]))
            fail_msg("\"%s\" is not in \"%s\"", parts[i], record.text);

    // A trial says the same quietly, and the failure was not kept.
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(get_failing(text, "-DX=17", CLATTN_LOG_DEBUG), CLATTN_ERR_BUILD);
    assert_int_equal(cla_programs_build_count(on.programs), 2);
    assert_int_equal(record_total(&record), 1);
    assert_int_equal(record.count[CLATTN_LOG_DEBUG], 1);
    free(text);
    assert_int_equal(real->ReleaseProgram(get(store_text, "-DVALUE=7")), CL_SUCCESS);
}

static void a_failed_build_fails_for_all(void **state)
{
    (void)state;
    char *text = broken_text();
    struct request r[4];
    for (int i = 0; i < 4; i++)
        r[i] = (struct request){.text = text, .options = "", .program = (cl_program)&record};
    build_ms = 20;
    run_requests(r, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].st, CLATTN_ERR_BUILD);
        assert_null(r[i].program);
    }
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 4); // each caller hears why its call failed
    free(text);
}

static cl_program CL_API_CALL no_program(cl_context context, cl_uint n, const char **texts,
                                         const size_t *sizes, cl_int *code)
{
    (void)context;
    (void)n;
    (void)texts;
    (void)sizes;
    *code = CL_INVALID_CONTEXT;
    return NULL;
}

static cl_int CL_API_CALL no_retain(cl_program program)
{
    (void)program;
    return CL_OUT_OF_HOST_MEMORY;
}

static void other_failures_of_the_driver(void **state)
{
    (void)state;
    static const char options[] = "-DVALUE=8";
    build_code = CL_OUT_OF_HOST_MEMORY;
    assert_int_equal(get_failing(store_text, options, CLATTN_LOG_ERROR), CLATTN_ERR_OUT_OF_MEMORY);
    build_code = CL_OUT_OF_RESOURCES;
    assert_int_equal(get_failing(store_text, options, CLATTN_LOG_ERROR), CLATTN_ERR_BUILD);
    build_code = CL_SUCCESS;
    hooked.CreateProgramWithSource = no_program;
    assert_int_equal(get_failing(store_text, options, CLATTN_LOG_ERROR), CLATTN_ERR_OPENCL);
    hooked.CreateProgramWithSource = real->CreateProgramWithSource;
    hooked.RetainProgram = no_retain;
    assert_int_equal(get_failing(store_text, options, CLATTN_LOG_ERROR), CLATTN_ERR_OUT_OF_MEMORY);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 4);
    hooked.RetainProgram = real->RetainProgram;
    // The last build succeeded and was kept.
    assert_int_equal(real->ReleaseProgram(get(store_text, options)), CL_SUCCESS);
    assert_int_equal(cla_programs_build_count(on.programs), 4);
}

// Programs on disk

static cl_program CL_API_CALL refused(cl_context context, cl_uint n, const cl_device_id *devices,
                                      const size_t *sizes, const unsigned char **binaries,
                                      cl_int *status, cl_int *code)
{
    cl_program program =
        real->CreateProgramWithBinary(context, n, devices, sizes, binaries, status, code);
    if (program)
        real->ReleaseProgram(program);
    *status = CL_INVALID_BINARY;
    *code = CL_SUCCESS; // some drivers say it in one place, some in the other
    return NULL;
}

static cl_int CL_API_CALL no_info(cl_program program, cl_program_info what, size_t size,
                                  void *value, size_t *needed)
{
    return what == CL_PROGRAM_BINARIES ? CL_OUT_OF_RESOURCES
                                       : real->GetProgramInfo(program, what, size, value, needed);
}

// As if the process had begun anew.
static void start_again(const struct cla_cache *cache)
{
    cla_programs_destroy(&on.programs);
    record_start(&record, CLATTN_LOG_DEBUG);
    builds = 0;
    assert_int_equal(cla_programs_create(&hooked, on.context, on.id, cache, &record.log,
                                         &on.programs),
                     CLATTN_OK);
}

static void expect(uint64_t builds_from_source, int warnings, const char *message)
{
    assert_int_equal(real->ReleaseProgram(get(store_text, "-DVALUE=9")), CL_SUCCESS);
    assert_int_equal(cla_programs_build_count(on.programs), builds_from_source);
    assert_int_equal(record.count[CLATTN_LOG_WARN], warnings);
    if (!strstr(record.text, message))
        fail_msg("\"%s\" is not in \"%s\"", message, record.text);
}

static void programs_on_disk(void **state)
{
    (void)state;
    char dir[] = P_tmpdir "/cla_programs_XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    unsetenv("CLATTN_CACHE");
    const struct cla_cache_settings settings = {.dir = dir};
    struct cla_cache *cache = cla_cache_open(&settings, "facts", &record.log);
    assert_non_null(cache);

    hooked.GetProgramInfo = no_info;
    start_again(cache);
    expect(1, 0, "the driver gives no binary");
    hooked.GetProgramInfo = real->GetProgramInfo;
    start_again(cache);
    expect(1, 0, "compiled in");
    start_again(cache);
    expect(0, 0, "taken from the program cache");
    expect(0, 0, "taken from the program cache"); // now it is in memory
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);

    hooked.CreateProgramWithBinary = refused;
    start_again(cache);
    expect(1, 1, "the driver does not take it: CL_INVALID_BINARY");
    hooked.CreateProgramWithBinary = real->CreateProgramWithBinary;
    start_again(cache); // it was written anew
    expect(0, 0, "taken from the program cache");

    // What does not work is built again, once, and only if it came from disk.
    cl_program again = NULL;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cla_programs_rebuild(on.programs, "store", store_text, "-DVALUE=9",
                                              CLATTN_LOG_ERROR, &again),
                         CLATTN_OK);
        assert_true((again != NULL) == (i == 0));
        if (again)
            assert_int_equal(real->ReleaseProgram(again), CL_SUCCESS);
        assert_int_equal(cla_programs_build_count(on.programs), 1);
    }
    start_again(NULL);
    cla_cache_close(&cache);
    setenv("CLATTN_CACHE", "0", 1);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

// Kernels

static struct cla_kernels *store_kernels(void)
{
    cl_program program = get(store_text, "-DVALUE=100");
    struct cla_kernels *k = NULL;
    assert_int_equal(cla_kernels_create(&hooked, program, "store", &record.log, &k), CLATTN_OK);
    assert_int_equal(real->ReleaseProgram(program), CL_SUCCESS); // the pool has its own reference
    return k;
}

static cl_mem make_buffer(void)
{
    cl_int code;
    cl_mem m = real->CreateBuffer(on.context, CL_MEM_READ_WRITE, sizeof(cl_int), NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return m;
}

static clattn_status enqueue(const struct cla_kernels *k, unsigned dims, size_t x_size,
                             const void *x, const void *to)
{
    const struct cla_arg args[] = {{x_size, x}, {sizeof(cl_mem), to}};
    const size_t one = 1;
    return cla_kernels_enqueue(k, &record.log, args, 2, on.queue, dims, &one, NULL, 0, NULL, NULL);
}

struct launch {
    const struct cla_kernels *kernels;
    cl_int x;
    cl_mem to;
    clattn_status st;
};

static void launch(void *arg)
{
    struct launch *l = arg;
    l->st = enqueue(l->kernels, 1, sizeof l->x, &l->x, &l->to);
}

static void check_stored(struct launch *l)
{
    cl_int y = 0;
    assert_int_equal(l->st, CLATTN_OK);
    assert_int_equal(
        real->EnqueueReadBuffer(on.queue, l->to, CL_TRUE, 0, sizeof y, &y, 0, NULL, NULL),
        CL_SUCCESS);
    assert_int_equal(y, l->x + 100);
}

// All callers are inside clEnqueueNDRangeKernel() at once: each must have a kernel of its own.
static void launch_together(struct launch *l, int n)
{
    struct test_thread *threads[MANY];
    pthread_barrier_t meet;
    assert_int_equal(pthread_barrier_init(&meet, NULL, (unsigned)n), 0);
    num_seen = 0;
    meet_in_enqueue = &meet;
    for (int i = 0; i < n; i++)
        threads[i] = thread_start(launch, &l[i]);
    for (int i = 0; i < n; i++)
        thread_join(threads[i]);
    meet_in_enqueue = NULL;
    pthread_barrier_destroy(&meet);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            assert_ptr_not_equal(seen_kernels[i], seen_kernels[j]);
    for (int i = 0; i < n; i++)
        check_stored(&l[i]);
}

static void each_caller_has_a_kernel_of_its_own(void **state)
{
    (void)state;
    if (!takes_threads(&on.device->info))
        skip();
    static struct launch l[MANY];
    struct cla_kernels *k = store_kernels();
    for (int i = 0; i < MANY; i++)
        l[i] = (struct launch){.kernels = k, .x = 1000 * i, .to = make_buffer()};
    assert_int_equal(atomic_load(&kernels_made), 1);
    launch_together(l, 8);
    assert_int_equal(atomic_load(&kernels_made), 8);
    for (int i = 0; i < 8; i++)
        l[i].x += 7;
    launch_together(l, 8); // the same eight serve again
    assert_int_equal(atomic_load(&kernels_made), 8);
    assert_int_equal(atomic_load(&kernels_freed), 0);
    launch_together(l, MANY); // past the pool's slots
    assert_int_equal(atomic_load(&kernels_made), MANY);
    assert_true(atomic_load(&kernels_freed) > 0);
    assert_true(atomic_load(&kernels_freed) < MANY / 2);
    cla_kernels_destroy(&k);
    assert_null(k);
    assert_int_equal(atomic_load(&kernels_freed), atomic_load(&kernels_made));
    cla_kernels_destroy(&k);
    cla_kernels_destroy(NULL);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(real->ReleaseMemObject(l[i].to), CL_SUCCESS);
}

static void kernels_that_do_not_exist(void **state)
{
    (void)state;
    cl_program program = get(store_text, "-DVALUE=100");
    struct cla_kernels *k = (struct cla_kernels *)&record;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_kernels_create(&hooked, program, "stare", &record.log, &k),
                     CLATTN_ERR_OPENCL);
    assert_null(k);
    assert_int_equal(record_total(&record), 1);
    assert_non_null(strstr(record.text, "clCreateKernel(stare): CL_INVALID_KERNEL_NAME"));
    assert_int_equal(real->ReleaseProgram(program), CL_SUCCESS);
}

static void absent_buffers_and_wrong_arguments(void **state)
{
    (void)state;
    struct cla_kernels *k = store_kernels();
    struct launch l = {.kernels = k, .x = 5, .to = make_buffer()};
    record_start(&record, CLATTN_LOG_WARN);
    assert_int_equal(enqueue(k, 1, sizeof l.x, &l.x, NULL), CLATTN_OK);
    assert_int_equal(real->Finish(on.queue), CL_SUCCESS);
    assert_int_equal(record_total(&record), 0);

    assert_int_equal(enqueue(k, 1, 1, &l.x, &l.to), CLATTN_ERR_OPENCL);
    assert_int_equal(record_total(&record), 1);
    assert_non_null(strstr(record.text, "clSetKernelArg(store, slot 0, 1 bytes)"));
    record_start(&record, CLATTN_LOG_WARN);
    assert_int_equal(enqueue(k, 4, sizeof l.x, &l.x, &l.to), CLATTN_ERR_OPENCL);
    assert_int_equal(record_total(&record), 1);
    assert_non_null(strstr(record.text, "clEnqueueNDRangeKernel(store): CL_INVALID_WORK_DIM"));

    launch(&l); // the pool is none the worse for it
    check_stored(&l);
    assert_int_equal(atomic_load(&kernels_made), 1);
    assert_int_equal(real->ReleaseMemObject(l.to), CL_SUCCESS);
    cla_kernels_destroy(&k);
}

static void events_pass_through(void **state)
{
    (void)state;
    struct cla_kernels *k = store_kernels();
    struct launch l = {.kernels = k, .x = 9, .to = make_buffer()};
    const struct cla_arg args[] = {{sizeof l.x, &l.x}, {sizeof l.to, &l.to}};
    const size_t one = 1;
    cl_int code, done_status = 0;
    cl_event gate = real->CreateUserEvent(on.context, &code), done = NULL;
    assert_int_equal(code, CL_SUCCESS);
    l.st = cla_kernels_enqueue(k, &record.log, args, 2, on.queue, 1, &one, NULL, 1, &gate, &done);
    assert_int_equal(l.st, CLATTN_OK);
    assert_non_null(done);
    sleep_ms(20);
    assert_int_equal(real->GetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof done_status,
                                        &done_status, NULL),
                     CL_SUCCESS);
    assert_int_not_equal(done_status, CL_COMPLETE);
    assert_int_equal(real->SetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(real->WaitForEvents(1, &done), CL_SUCCESS);
    check_stored(&l);
    real->ReleaseEvent(gate);
    real->ReleaseEvent(done);
    assert_int_equal(real->ReleaseMemObject(l.to), CL_SUCCESS);
    cla_kernels_destroy(&k);
}

static void limits_of_a_kernel(void **state)
{
    (void)state;
    cl_program program = get("__kernel __attribute__((reqd_work_group_size(16, 1, 1)))\n"
                             "void limited(__global int *p)\n"
                             "{\n"
                             "    __local int t[1024];\n"
                             "    t[get_local_id(0)] = p[get_local_id(0)];\n"
                             "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                             "    p[get_local_id(0)] = t[15 - get_local_id(0)];\n"
                             "}\n",
                             "");
    struct cla_kernels *k = NULL;
    assert_int_equal(cla_kernels_create(&hooked, program, "limited", &record.log, &k), CLATTN_OK);
    size_t group = 0, local = 0;
    assert_int_equal(cla_kernels_limits(k, on.id, &group, &local), CLATTN_OK);
    assert_true(group >= 16 && group <= on.device->info.max_group);
    assert_true(local >= 4096);
    cla_kernels_destroy(&k);
    assert_int_equal(atomic_load(&kernels_freed), atomic_load(&kernels_made));
    assert_int_equal(real->ReleaseProgram(program), CL_SUCCESS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static int run_on(struct test_device *device)
{
    const struct CMUnitTest tests[] = {
        TEST(one_build_for_one_text),
        TEST(one_build_for_four_threads),
        TEST(other_programs_are_not_held_up),
        TEST(a_failed_build_says_where),
        TEST(a_failed_build_fails_for_all),
        TEST(other_failures_of_the_driver),
        TEST(programs_on_disk),
        TEST(each_caller_has_a_kernel_of_its_own),
        TEST(kernels_that_do_not_exist),
        TEST(absent_buffers_and_wrong_arguments),
        TEST(events_pass_through),
        TEST(limits_of_a_kernel),
    };
    cl_int code;
    on.device = device;
    on.context = clattn_context_cl_context(device->ctx);
    on.id = clattn_context_cl_device(device->ctx);
    on.queue = real->CreateCommandQueue(on.context, on.id, 0, &code);
    if (code != CL_SUCCESS) {
        printf("%s: clCreateCommandQueue: %s\n", device->tag, cla_cl_error_name(code));
        return 1;
    }
    int failed = cmocka_run_group_tests_name(device->tag, tests, NULL, NULL);
    real->ReleaseCommandQueue(on.queue);
    return failed;
}

int main(void)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0;
    if (!devices_open(devices, &count))
        return 1;
    if (count == 0) {
        printf("no OpenCL device\n");
        return SKIP_STATUS;
    }
    if (cla_cl_open(NULL, NULL, &real) != CLATTN_OK) {
        printf("there are devices, and no loader\n");
        return 1;
    }
    for (int i = 0; i < count; i++)
        failed += run_on(&devices[i]);
    cla_cl_close(&real);
    devices_close(devices, count);
    return failed ? 1 : 0;
}
