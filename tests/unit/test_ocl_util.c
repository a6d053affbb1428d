// SPDX-License-Identifier: Apache-2.0
// ocl/error, ocl/api and ocl/device, the last on made-up drivers.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ocl/device.h"
#include "ocl/error.h"
#include "ocl/launch.h"
#include "ocl/program.h"
#include "record_log.h"

static struct record record;

// ocl/error

static void error_names(void **state)
{
    (void)state;
#define SAME(code) assert_string_equal(cla_cl_error_name(code), #code)
    SAME(CL_SUCCESS);
    SAME(CL_DEVICE_NOT_FOUND);
    SAME(CL_COMPILER_NOT_AVAILABLE);
    SAME(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    SAME(CL_OUT_OF_RESOURCES);
    SAME(CL_OUT_OF_HOST_MEMORY);
    SAME(CL_BUILD_PROGRAM_FAILURE);
    SAME(CL_MAP_FAILURE);
    SAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
    SAME(CL_KERNEL_ARG_INFO_NOT_AVAILABLE);
    SAME(CL_INVALID_VALUE);
    SAME(CL_INVALID_CONTEXT);
    SAME(CL_INVALID_COMMAND_QUEUE);
    SAME(CL_INVALID_MEM_OBJECT);
    SAME(CL_INVALID_BINARY);
    SAME(CL_INVALID_PROGRAM_EXECUTABLE);
    SAME(CL_INVALID_KERNEL_NAME);
    SAME(CL_INVALID_ARG_SIZE);
    SAME(CL_INVALID_KERNEL_ARGS);
    SAME(CL_INVALID_WORK_GROUP_SIZE);
    SAME(CL_INVALID_WORK_ITEM_SIZE);
    SAME(CL_INVALID_EVENT);
    SAME(CL_INVALID_BUFFER_SIZE);
    SAME(CL_INVALID_GLOBAL_WORK_SIZE);
    SAME(CL_INVALID_DEVICE_PARTITION_COUNT);
#undef SAME
    assert_string_equal(cla_cl_error_name(-1001), "CL_PLATFORM_NOT_FOUND_KHR");
    assert_string_equal(cla_cl_error_name(-25), "unknown OpenCL error");
    assert_string_equal(cla_cl_error_name(1), "unknown OpenCL error");
    for (int a = 0; a > -73; a--)
        for (int b = a - 1; b > -73; b--)
            if (strncmp(cla_cl_error_name(a), "CL_", 3) == 0)
                assert_string_not_equal(cla_cl_error_name(a), cla_cl_error_name(b));
}

static clattn_status try_call(const struct cla_log *log, cl_int code, bool *reached)
{
    clattn_status st = CLATTN_OK;
    *reached = false;
    CLA_CL(code + 0);
    *reached = true;
done:
    return st;
}

static void error_status(void **state)
{
    (void)state;
    bool reached;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(try_call(&record.log, CL_SUCCESS, &reached), CLATTN_OK);
    assert_true(reached);
    assert_int_equal(record_total(&record), 0);

    assert_int_equal(try_call(&record.log, CL_INVALID_VALUE, &reached), CLATTN_ERR_OPENCL);
    assert_false(reached);
    assert_string_equal(record.text, "code + 0: CL_INVALID_VALUE (-30)\n");
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);

    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(try_call(&record.log, -12345, &reached), CLATTN_ERR_OPENCL);
    assert_string_equal(record.text, "code + 0: unknown OpenCL error (-12345)\n");
    static const cl_int memory[] = {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES,
                                    CL_OUT_OF_HOST_MEMORY};
    for (int i = 0; i < 3; i++)
        assert_int_equal(cla_cl_check(NULL, memory[i], "x"), CLATTN_ERR_OUT_OF_MEMORY);
}

// ocl/api

#if defined(_WIN32)
#define OTHER_LIBRARY "kernel32.dll" // one that is there and is no loader
#define USUAL_NAMES {"OpenCL.dll"}
#define SEPARATOR '\\'
#else
#define OTHER_LIBRARY "libm.so.6"
#define USUAL_NAMES {"libOpenCL.so.1", "libOpenCL.so:"}
#define SEPARATOR '/'
#endif

static void loader_is_missing(void **state)
{
    (void)state;
    struct cla_cl *cl = (struct cla_cl *)&record;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_cl_open("libcla_missing.so", &record.log, &cl), CLATTN_ERR_NO_OPENCL);
    assert_null(cl);
    assert_int_equal(record_total(&record), 1);
    assert_int_equal(record.count[CLATTN_LOG_WARN], 1);
    assert_non_null(strstr(record.text, "libcla_missing.so"));
    assert_null(strstr(record.text, "libOpenCL")); // nothing but what was asked for
}

static void loader_lacks_functions(void **state)
{
    (void)state;
    struct cla_cl *cl = NULL;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_cl_open(OTHER_LIBRARY, &record.log, &cl), CLATTN_ERR_NO_OPENCL);
    assert_null(cl);
    assert_int_equal(record.count[CLATTN_LOG_WARN], 1);
    assert_non_null(strstr(record.text, OTHER_LIBRARY));
    assert_non_null(strstr(record.text, "clGetPlatformIDs"));
    assert_int_equal(cla_cl_open(OTHER_LIBRARY, NULL, &cl), CLATTN_ERR_NO_OPENCL);
}

static void loader_by_usual_names(void **state)
{
    (void)state;
    struct cla_cl *cl = NULL;
    record_start(&record, CLATTN_LOG_DEBUG);
    clattn_status st = cla_cl_open(NULL, &record.log, &cl);
    if (st == CLATTN_ERR_NO_OPENCL) { // a machine without OpenCL
        assert_null(cl);
        static const char *const names[] = USUAL_NAMES;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            assert_non_null(strstr(record.text, names[i]));
    } else {
        assert_int_equal(st, CLATTN_OK);
        assert_non_null(cl->lib);
#define FILLED(name) assert_true(cl->name != NULL);
        CLA_CL_FUNCTIONS(FILLED)
#undef FILLED
        assert_int_equal(record_total(&record), 1); // which library it is
        assert_int_equal(record.count[CLATTN_LOG_INFO], 1);
        assert_non_null(strchr(record.text, SEPARATOR));
    }
    cla_cl_close(&cl);
    assert_null(cl);
    cla_cl_close(&cl);
    cla_cl_close(NULL);
}

// ocl/device on a made-up driver. Platforms and devices are indices into these tables.

struct fact {
    cl_device_info name;
    cl_int code;
    const void *value;
    size_t size;
};

struct fake_device {
    const struct fact *facts; // up to one of size 0; what is not listed is CL_INVALID_VALUE
};

struct fake_platform {
    const char *name;
    cl_int code; // of clGetDeviceIDs
    const struct fake_device *devices;
    cl_uint num_devices;
};

static const struct fake_platform *fake_platforms;
static cl_uint fake_count;
static cl_int fake_code; // of clGetPlatformIDs

static cl_int CL_API_CALL fake_platform_ids(cl_uint room, cl_platform_id *ids, cl_uint *count)
{
    if (fake_code != CL_SUCCESS)
        return fake_code;
    if (count)
        *count = fake_count;
    for (cl_uint i = 0; ids && i < room && i < fake_count; i++)
        ids[i] = (cl_platform_id)(uintptr_t)&fake_platforms[i];
    return CL_SUCCESS;
}

static cl_int CL_API_CALL fake_device_ids(cl_platform_id platform, cl_device_type type,
                                          cl_uint room, cl_device_id *ids, cl_uint *count)
{
    const struct fake_platform *p = (const struct fake_platform *)platform;
    assert_true(type == CL_DEVICE_TYPE_ALL);
    if (p->code != CL_SUCCESS)
        return p->code;
    if (count)
        *count = p->num_devices;
    for (cl_uint i = 0; ids && i < room && i < p->num_devices; i++)
        ids[i] = (cl_device_id)(uintptr_t)&p->devices[i];
    return CL_SUCCESS;
}

static cl_int answer(const void *from, size_t from_size, size_t size, void *value, size_t *got)
{
    if (value && size < from_size)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, from_size);
    if (got)
        *got = from_size;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL fake_platform_info(cl_platform_id platform, cl_platform_info name,
                                             size_t size, void *value, size_t *got)
{
    const struct fake_platform *p = (const struct fake_platform *)platform;
    if (name != CL_PLATFORM_NAME)
        return CL_INVALID_VALUE;
    return answer(p->name, strlen(p->name) + 1, size, value, got);
}

static cl_int CL_API_CALL fake_device_info(cl_device_id device, cl_device_info name, size_t size,
                                           void *value, size_t *got)
{
    const struct fake_device *d = (const struct fake_device *)device;
    if (name == CL_DEVICE_PLATFORM) { // the one that has the device
        for (cl_uint i = 0; i < fake_count; i++) {
            const struct fake_platform *p = &fake_platforms[i];
            for (cl_uint n = 0; n < p->num_devices; n++)
                if (&p->devices[n] == d)
                    return answer(&p, sizeof p, size, value, got);
        }
    }
    for (const struct fact *f = d->facts; f->size; f++)
        if (f->name == name)
            return f->code ? f->code : answer(f->value, f->size, size, value, got);
    return CL_INVALID_VALUE;
}

static const struct cla_cl fake_cl = {
    .GetPlatformIDs = fake_platform_ids,
    .GetPlatformInfo = fake_platform_info,
    .GetDeviceIDs = fake_device_ids,
    .GetDeviceInfo = fake_device_info,
};

#define TEXT(name, text)                                                                           \
    {                                                                                              \
        name, 0, text, sizeof text                                                                 \
    }
#define VALUE(name, type, ...)                                                                     \
    {                                                                                              \
        name, 0, &(const type){__VA_ARGS__}, sizeof(type)                                          \
    }
#define END                                                                                        \
    {                                                                                              \
        0, 0, NULL, 0                                                                              \
    }

struct three_sizes {
    size_t n[3];
};

// What no device is taken without, as little of it as there may be; the first of two facts counts.
#define NEEDED                                                                                     \
    VALUE(CL_DEVICE_AVAILABLE, cl_bool, CL_TRUE),                                                  \
        VALUE(CL_DEVICE_COMPILER_AVAILABLE, cl_bool, CL_TRUE),                                     \
        VALUE(CL_DEVICE_MAX_COMPUTE_UNITS, cl_uint, 1),                                            \
        VALUE(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, cl_uint, 1),                                    \
        VALUE(CL_DEVICE_MAX_WORK_GROUP_SIZE, size_t, 1),                                           \
        VALUE(CL_DEVICE_MAX_WORK_ITEM_SIZES, struct three_sizes, {1, 1, 1}),                       \
        VALUE(CL_DEVICE_LOCAL_MEM_TYPE, cl_device_local_mem_type, CL_LOCAL),                       \
        VALUE(CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong, 1024)

static const struct fact gpu_facts[] = {
    VALUE(CL_DEVICE_TYPE, cl_device_type, CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT),
    TEXT(CL_DEVICE_NAME, "  Some GPU  "),
    TEXT(CL_DEVICE_VENDOR, "Vendor"),
    TEXT(CL_DRIVER_VERSION, "1.2.3"),
    TEXT(CL_DEVICE_VERSION, "OpenCL 2.1 x"),
    TEXT(CL_DEVICE_EXTENSIONS, "cl_khr_fp16_not cl_khr_fp16 cl_khr_subgroups_not"),
    VALUE(CL_DEVICE_AVAILABLE, cl_bool, CL_TRUE),
    VALUE(CL_DEVICE_COMPILER_AVAILABLE, cl_bool, CL_TRUE),
    VALUE(CL_DEVICE_MAX_COMPUTE_UNITS, cl_uint, 40),
    VALUE(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, cl_uint, 1),
    VALUE(CL_DEVICE_MAX_WORK_GROUP_SIZE, size_t, 1024),
    VALUE(CL_DEVICE_MAX_WORK_ITEM_SIZES, struct three_sizes, {1024, 512, 64}),
    VALUE(CL_DEVICE_LOCAL_MEM_TYPE, cl_device_local_mem_type, CL_LOCAL),
    VALUE(CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong, 49152),
    VALUE(CL_DEVICE_HOST_UNIFIED_MEMORY, cl_bool, CL_FALSE),
    VALUE(CL_DEVICE_GLOBAL_MEM_SIZE, cl_ulong, 8589934592),
    VALUE(CL_DEVICE_MAX_MEM_ALLOC_SIZE, cl_ulong, 2147483648),
    VALUE(CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, cl_ulong, 3145728),
    VALUE(0x105C, cl_uint, 32), // CL_DEVICE_MAX_NUM_SUB_GROUPS
    END,
};

// As little as a driver may say, with another code for one fact.
static const struct fact bare_facts[] = {
    VALUE(CL_DEVICE_TYPE, cl_device_type, CL_DEVICE_TYPE_CPU),
    {CL_DEVICE_NAME, CL_OUT_OF_HOST_MEMORY, NULL, 1},
    TEXT(CL_DEVICE_VERSION, "OpenCL 1.2 "),
    VALUE(0x105C, cl_uint, 32), // not believed: a 1.2 device has no such fact
    NEEDED,
    END,
};

// The type bits of a simulator, no local memory, OpenCL 3.0 without sub-groups, a compiler on a
// device that is not available.
static const struct fact odd_facts[] = {
    VALUE(CL_DEVICE_TYPE, cl_device_type,
          CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR),
    TEXT(CL_DEVICE_NAME, "0123456789012345678901234567890123456789012345678901234567890123456789"
                         "01234567890123456789012345678901234567890123456789012345 789abcdef"),
    TEXT(CL_DEVICE_VERSION, "OpenCL 3.0"),
    TEXT(CL_DEVICE_EXTENSIONS, ""),
    VALUE(CL_DEVICE_AVAILABLE, cl_bool, CL_FALSE),
    VALUE(CL_DEVICE_COMPILER_AVAILABLE, cl_bool, CL_TRUE),
    VALUE(CL_DEVICE_LOCAL_MEM_TYPE, cl_device_local_mem_type, CL_NONE),
    VALUE(CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong, 4096),
    VALUE(CL_DEVICE_HOST_UNIFIED_MEMORY, cl_bool, CL_TRUE),
    VALUE(0x105C, cl_uint, 0),
    NEEDED,
    END,
};

static const struct fact mobile_facts[] = {
    VALUE(CL_DEVICE_TYPE, cl_device_type, CL_DEVICE_TYPE_ACCELERATOR),
    TEXT(CL_DEVICE_VERSION, "OpenCL 1.2 x"),
    TEXT(CL_DEVICE_EXTENSIONS, "cl_khr_icd cl_intel_subgroups"),
    VALUE(CL_DEVICE_LOCAL_MEM_TYPE, cl_device_local_mem_type, CL_GLOBAL),
    VALUE(CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong, 32768),
    NEEDED,
    END,
};

static const struct fact dead_facts[] = {
    {CL_DEVICE_TYPE, CL_INVALID_DEVICE, NULL, 1},
    END,
};

static const struct fake_device one_gpu[] = {{gpu_facts}};
static const struct fake_device three_devices[] = {{bare_facts}, {dead_facts}, {odd_facts}};
static const struct fake_device one_mobile[] = {{mobile_facts}};

static void fake_driver(const struct fake_platform *platforms, cl_uint count, cl_int code)
{
    fake_platforms = platforms;
    fake_count = count;
    fake_code = code;
    record_start(&record, CLATTN_LOG_WARN);
}

static void no_devices(void **state)
{
    (void)state;
    static const struct fake_platform empty[] = {
        {"Clover", CL_DEVICE_NOT_FOUND, NULL, 0},
        {"zero", CL_SUCCESS, NULL, 0},
    };
    static const struct {
        cl_uint count;
        cl_int code;
    } cases[] = {{0, -1001}, {0, CL_SUCCESS}, {2, CL_SUCCESS}};
    for (int i = 0; i < 3; i++) {
        struct cla_cl_device *list = (struct cla_cl_device *)&record;
        int32_t count = 99;
        fake_driver(empty, cases[i].count, cases[i].code);
        assert_int_equal(cla_cl_devices(&fake_cl, &record.log, &list, &count), CLATTN_OK);
        assert_int_equal(count, 0);
        assert_int_equal(record_total(&record), 0);
        free(list);

        // What was found instead is said to those who ask.
        fake_driver(empty, cases[i].count, cases[i].code);
        record_start(&record, CLATTN_LOG_INFO);
        assert_int_equal(cla_cl_devices(&fake_cl, &record.log, &list, &count), CLATTN_OK);
        assert_int_equal(record.count[CLATTN_LOG_INFO], record_total(&record));
        if (cases[i].count == 0) {
            assert_int_equal(record_total(&record), 1);
            assert_non_null(strstr(record.text, "no platform"));
        } else {
            assert_int_equal(record_total(&record), 2);
            assert_non_null(strstr(record.text, "platform Clover has no devices\n"));
            assert_non_null(strstr(record.text, "platform zero has no devices\n"));
        }
        free(list);
    }
}

static void broken_loader(void **state)
{
    (void)state;
    struct cla_cl_device *list = (struct cla_cl_device *)&record;
    int32_t count = 99;
    fake_driver(NULL, 0, CL_INVALID_VALUE);
    assert_int_equal(cla_cl_devices(&fake_cl, &record.log, &list, &count), CLATTN_ERR_OPENCL);
    assert_null(list);
    assert_int_equal(count, 0);
    assert_string_equal(record.text, "clGetPlatformIDs: CL_INVALID_VALUE (-30)\n");
    fake_driver(NULL, 0, CL_OUT_OF_HOST_MEMORY);
    assert_int_equal(cla_cl_devices(&fake_cl, &record.log, &list, &count),
                     CLATTN_ERR_OUT_OF_MEMORY);
}

static void devices_in_order(void **state)
{
    (void)state;
    static const struct fake_platform platforms[] = {
        {"first", CL_SUCCESS, one_gpu, 1},
        {"empty", CL_DEVICE_NOT_FOUND, NULL, 0},
        {"broken", CL_INVALID_PLATFORM, NULL, 0},
        {"rusticl", CL_SUCCESS, three_devices, 3},
    };
    struct cla_cl_device *list = NULL;
    int32_t count = 0;
    fake_driver(platforms, 4, CL_SUCCESS);
    assert_int_equal(cla_cl_devices(&fake_cl, &record.log, &list, &count), CLATTN_OK);
    assert_int_equal(count, 3); // the dead device is left out
    assert_ptr_equal(list[0].platform, &platforms[0]);
    assert_ptr_equal(list[0].device, &one_gpu[0]);
    assert_string_equal(list[0].caps.platform, "first");
    assert_int_equal(list[0].caps.quirks, 0);
    assert_ptr_equal(list[1].platform, &platforms[3]);
    assert_ptr_equal(list[1].device, &three_devices[0]);
    assert_int_equal(list[1].caps.quirks, CLA_QUIRK_KERNEL_QUERIES_LIE | CLA_QUIRK_SCALARIZES |
                                                 CLA_QUIRK_LOOP_LIMIT | CLA_QUIRK_ONE_THREAD);
    assert_ptr_equal(list[2].device, &three_devices[2]);
    assert_int_equal(record.count[CLATTN_LOG_WARN], 2); // the broken platform, the dead device
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 0);
    assert_non_null(strstr(record.text, "platform broken was passed over"));
    assert_non_null(strstr(record.text, "CL_INVALID_PLATFORM"));
    assert_non_null(strstr(record.text, "device 1 of platform rusticl was passed over"));
    assert_non_null(strstr(record.text, "CL_INVALID_DEVICE"));
    free(list);
}

static struct cla_caps caps_of(const struct fake_device *device, clattn_status expected)
{
    static struct fake_platform platform;
    struct cla_caps caps;
    platform = (struct fake_platform){"P", CL_SUCCESS, device, 1};
    memset(&caps, 0xa5, sizeof caps);
    fake_driver(&platform, 1, CL_SUCCESS);
    assert_int_equal(
        cla_cl_device_caps(&fake_cl, &record.log, (cl_device_id)(uintptr_t)device, &caps),
        expected);
    return caps;
}

static void facts_of_a_gpu(void **state)
{
    (void)state;
    struct cla_caps c = caps_of(&one_gpu[0], CLATTN_OK);
    assert_string_equal(c.name, "Some GPU");
    assert_string_equal(c.vendor, "Vendor");
    assert_string_equal(c.driver, "1.2.3");
    assert_string_equal(c.version, "OpenCL 2.1 x");
    assert_int_equal(c.type, CLA_DEVICE_GPU);
    assert_false(c.type_has_cpu_bit);
    assert_true(c.compiler);
    assert_int_equal(c.compute_units, 40);
    assert_int_equal(c.native_width_f32, 1);
    assert_int_equal(c.max_group, 1024);
    assert_int_equal(c.max_items[0], 1024);
    assert_int_equal(c.max_items[1], 512);
    assert_int_equal(c.max_items[2], 64);
    assert_int_equal(c.local_bytes, 49152);
    assert_false(c.local_is_global);
    assert_false(c.host_unified);
    assert_int_equal(c.global_bytes, SIZE_MAX < 8589934592 ? SIZE_MAX : 8589934592);
    assert_int_equal(c.max_alloc_bytes, 2147483648);
    assert_int_equal(c.cache_bytes, 3145728);
    assert_true(c.has_fp16);
    assert_true(c.has_subgroups); // from the version: the list only has a longer name
    assert_int_equal(record_total(&record), 0);
}

static void unknown_facts_are_zero(void **state)
{
    (void)state;
    struct cla_caps c = caps_of(&three_devices[0], CLATTN_OK);
    struct cla_caps known;
    memset(&known, 0, sizeof known);
    strcpy(known.platform, "P");
    strcpy(known.version, "OpenCL 1.2");
    known.type = CLA_DEVICE_CPU;
    known.type_has_cpu_bit = known.compiler = true;
    known.compute_units = known.native_width_f32 = 1;
    known.max_group = known.max_items[0] = known.max_items[1] = known.max_items[2] = 1;
    known.local_bytes = 1024;
    assert_memory_equal(&c, &known, sizeof c);
    assert_int_equal(record_total(&record), 0); // no fact is worth a warning
}

// A device that does not tell what decides about kernels is refused, and the fact named, whatever
// the reason is.
static void needed_facts(void **state)
{
    (void)state;
    static const char *const names[] = {
        "CL_DEVICE_TYPE", "CL_DEVICE_VERSION", "CL_DEVICE_AVAILABLE",
        "CL_DEVICE_COMPILER_AVAILABLE", "CL_DEVICE_MAX_COMPUTE_UNITS",
        "CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT", "CL_DEVICE_MAX_WORK_GROUP_SIZE",
        "CL_DEVICE_MAX_WORK_ITEM_SIZES", "CL_DEVICE_LOCAL_MEM_TYPE", "CL_DEVICE_LOCAL_MEM_SIZE"};
    static const cl_device_info facts[] = {
        CL_DEVICE_TYPE, CL_DEVICE_VERSION, CL_DEVICE_AVAILABLE, CL_DEVICE_COMPILER_AVAILABLE,
        CL_DEVICE_MAX_COMPUTE_UNITS, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT,
        CL_DEVICE_MAX_WORK_GROUP_SIZE, CL_DEVICE_MAX_WORK_ITEM_SIZES, CL_DEVICE_LOCAL_MEM_TYPE,
        CL_DEVICE_LOCAL_MEM_SIZE};
    static struct fact some[sizeof gpu_facts / sizeof *gpu_facts];
    static const struct fake_device device = {some};
    for (size_t n = 0; n < sizeof facts / sizeof *facts; n++)
        for (int again = 0; again < 2; again++) {
            char call[96];
            memcpy(some, gpu_facts, sizeof some);
            for (struct fact *f = some; f->size; f++)
                if (f->name == facts[n])
                    f->code = again ? CL_OUT_OF_HOST_MEMORY : CL_INVALID_VALUE;
            caps_of(&device, again ? CLATTN_ERR_OUT_OF_MEMORY : CLATTN_ERR_OPENCL);
            assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
            snprintf(call, sizeof call, "clGetDeviceInfo(%s): ", names[n]);
            if (!strstr(record.text, call))
                fail_msg("'%s' is not in: %s", call, record.text);
        }
    // Which driver it is, too, since known faults go by that.
    static const struct fake_platform other = {"P", CL_SUCCESS, one_mobile, 1};
    struct cla_caps caps;
    fake_driver(&other, 1, CL_SUCCESS);
    assert_int_equal(cla_cl_device_caps(&fake_cl, &record.log,
                                        (cl_device_id)(uintptr_t)&one_gpu[0], &caps),
                     CLATTN_ERR_OPENCL);
    assert_non_null(strstr(record.text, "CL_DEVICE_PLATFORM"));
}

static void odd_facts_are_understood(void **state)
{
    (void)state;
    struct cla_caps c = caps_of(&three_devices[2], CLATTN_OK);
    assert_int_equal(c.type, CLA_DEVICE_OTHER);
    assert_true(c.type_has_cpu_bit);
    assert_int_equal(strlen(c.name), 126); // cut to 127, of which the last is a blank
    assert_false(c.compiler);
    assert_int_equal(c.local_bytes, 0);
    assert_true(c.host_unified);
    assert_false(c.has_fp16);
    assert_false(c.has_subgroups);

    c = caps_of(&one_mobile[0], CLATTN_OK);
    assert_int_equal(c.type, CLA_DEVICE_ACCELERATOR);
    assert_true(c.has_subgroups);
    assert_true(c.local_is_global);
    assert_int_equal(c.local_bytes, 32768);

    caps_of(&three_devices[1], CLATTN_ERR_OPENCL);
    assert_int_equal(record.count[CLATTN_LOG_ERROR], 1);
}

static cl_int CL_API_CALL boasting_info(cl_device_id device, cl_device_info name, size_t size,
                                        void *value, size_t *got)
{
    if (name != 0x4108) // CL_DEVICE_SUB_GROUP_SIZES_INTEL
        return fake_device_info(device, name, size, value, got);
    if (value) {
        memset(value, 0, size);
        *(size_t *)value = 16;
    }
    if (got)
        *got = (size_t)1 << 30;
    return CL_SUCCESS;
}

static const struct fact boasting_facts[] = {
    VALUE(CL_DEVICE_TYPE, cl_device_type, CL_DEVICE_TYPE_GPU),
    TEXT(CL_DEVICE_VERSION, "OpenCL 2.1 x"),
    TEXT(CL_DEVICE_EXTENSIONS, "cl_khr_subgroups cl_intel_required_subgroup_size"),
    NEEDED,
    END,
};

// More sizes than there was room for: none of them is believed.
static void a_boasting_driver(void **state)
{
    (void)state;
    static const struct fake_device device = {boasting_facts};
    static const struct fake_platform platform = {"P", CL_SUCCESS, &device, 1};
    struct cla_cl boasting = fake_cl;
    struct cla_caps caps;
    boasting.GetDeviceInfo = boasting_info;
    fake_driver(&platform, 1, CL_SUCCESS);
    assert_int_equal(cla_cl_device_caps(&boasting, &record.log, (cl_device_id)(uintptr_t)&device,
                                        &caps), CLATTN_OK);
    assert_int_equal(caps.subgroup_size, 0);
}

// ---- options of programs -----------------------------------------------------------------------

static void options_are_numbers(void **state)
{
    (void)state;
    static const char *const good[] = {
        "", "-w", "-cl-std=CL1.2", "-cl-std=CL1.2 -w -DDIM_QK=64 -DHAS_PREFETCH", "-DX=-1",
        "-DX=0 -DY=1234567890123456789", "-DX",
    };
    static const char *const bad[] = {
        "-I/etc", "-cl-std=CL2.0", "-cl-std=CL1.2x", "-wx", "-DX=", "-DX=-", "-DX=1.5", "-DX=a",
        "-DX=1;rm", "-Dx=1", "-D", "-D=1", "-D X=1", "-DX=1\t-w", "-DX=1\n", "-DX=\"a\"",
        "-DX=(1)", "-DX=12345678901234567890", "-include x", "x", " -w x", "-w -", "-DX=1-w",
        "-DF(x)=1", "-DX=0x10",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!cla_programs_takes(good[i]))
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (cla_programs_takes(bad[i]))
            fail_msg("taken: %s", bad[i]);
    // Nothing reaches a driver: this table of functions is empty.
    static const struct cla_cl none;
    struct cla_programs *programs = NULL;
    cl_program program = NULL;
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_int_equal(cla_programs_create(&none, NULL, NULL, NULL, &record.log, &programs),
                     CLATTN_OK);
    assert_int_equal(cla_programs_get(programs, "x.cl", "text", "-DX=1 -I/etc", CLATTN_LOG_ERROR,
                                      &program), CLATTN_ERR_INTERNAL);
    assert_null(program);
    assert_non_null(strstr(record.text, "x.cl: options that are no numbers: -DX=1 -I/etc"));
    assert_true(cla_programs_build_count(programs) == 0);
    cla_programs_destroy(&programs);
}

static void launches_are_counted_in_size_t(void **state)
{
    (void)state;
    record_start(&record, CLATTN_LOG_WARN);
    const uint64_t groups = SIZE_MAX / 64 + (uint64_t)1;
    assert_int_equal(cla_kernels_enqueue_groups(NULL, &record.log, NULL, 0, NULL, groups, 64, 0,
                                                NULL, NULL), CLATTN_ERR_UNSUPPORTED);
    assert_non_null(strstr(record.text, "work-groups of 64 work-items"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_numbers),
        cmocka_unit_test(launches_are_counted_in_size_t),
        cmocka_unit_test(error_names),
        cmocka_unit_test(error_status),
        cmocka_unit_test(loader_is_missing),
        cmocka_unit_test(loader_lacks_functions),
        cmocka_unit_test(loader_by_usual_names),
        cmocka_unit_test(no_devices),
        cmocka_unit_test(broken_loader),
        cmocka_unit_test(devices_in_order),
        cmocka_unit_test(facts_of_a_gpu),
        cmocka_unit_test(unknown_facts_are_zero),
        cmocka_unit_test(needed_facts),
        cmocka_unit_test(odd_facts_are_understood),
        cmocka_unit_test(a_boasting_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
