// SPDX-License-Identifier: Apache-2.0
#include "ocl/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "ocl/error.h"

// Names that the OpenCL 1.2 header lacks.
#define DEVICE_MAX_NUM_SUB_GROUPS 0x105C
#define DEVICE_SUB_GROUP_SIZES 0x4108 // of cl_intel_required_subgroup_size
#define PLATFORM_NOT_FOUND_KHR (-1001)

char *cla_cl_text(const struct cla_cl *cl, cl_platform_id platform, cl_device_id device,
                  cl_uint fact, cl_int *code)
{
    size_t size = 0;
    *code = platform ? cl->GetPlatformInfo(platform, fact, 0, NULL, &size)
                     : cl->GetDeviceInfo(device, fact, 0, NULL, &size);
    if (*code == CL_SUCCESS && size > CLA_CL_TEXT_MAX)
        *code = CL_INVALID_VALUE; // no text is that long
    char *text = *code == CL_SUCCESS ? calloc(size + 1, 1) : NULL;
    if (*code == CL_SUCCESS && !text)
        *code = CL_OUT_OF_HOST_MEMORY;
    if (text)
        *code = platform ? cl->GetPlatformInfo(platform, fact, size, text, NULL)
                         : cl->GetDeviceInfo(device, fact, size, text, NULL);
    if (*code != CL_SUCCESS) {
        free(text);
        text = NULL;
    }
    return text;
}

// One device being asked. A fact that cannot be had is 0, with a debug line.
struct query {
    const struct cla_cl *cl;
    const struct cla_log *log;
    cl_device_id device;
    const char *missing; // the first needed fact that could not be had, and why
    cl_int code;
};

// What decides which kernels run, and whether their results can be trusted. Every driver of OpenCL
// 1.2 has them: one that does not give them, maybe for want of memory just now, would have its
// device computed around for as long as the context lives.
static bool is_needed(cl_uint fact)
{
    switch (fact) {
    case CL_DEVICE_TYPE:
    case CL_DEVICE_PLATFORM:
    case CL_PLATFORM_NAME: // of which quirks are known
    case CL_DEVICE_VERSION:
    case CL_DEVICE_AVAILABLE:
    case CL_DEVICE_COMPILER_AVAILABLE:
    case CL_DEVICE_MAX_COMPUTE_UNITS:
    case CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT:
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
    case CL_DEVICE_LOCAL_MEM_TYPE:
    case CL_DEVICE_LOCAL_MEM_SIZE: return true;
    default: return false;
    }
}

static void unknown(struct query *q, cl_uint fact, const char *name, cl_int code)
{
    cla_logf(q->log, CLATTN_LOG_DEBUG, "device fact %s: %s (%d)", name, cla_cl_error_name(code),
             (int)code);
    if (is_needed(fact) && !q->missing) {
        q->missing = name;
        q->code = code;
    }
}

// A fact of fixed size; false and a value of 0 if it cannot be had.
static bool get(struct query *q, cl_device_info fact, const char *name, void *value,
                size_t size)
{
    cl_int code = q->cl->GetDeviceInfo(q->device, fact, size, value, NULL);
    if (code == CL_SUCCESS)
        return true;
    memset(value, 0, size);
    unknown(q, fact, name, code);
    return false;
}

static bool get_bool(struct query *q, cl_device_info fact, const char *name)
{
    cl_bool value = CL_FALSE;
    get(q, fact, name, &value, sizeof value);
    return value != CL_FALSE;
}

static int32_t get_int(struct query *q, cl_device_info fact, const char *name)
{
    cl_uint value = 0;
    get(q, fact, name, &value, sizeof value);
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static size_t get_size(struct query *q, cl_device_info fact, const char *name)
{
    size_t value = 0;
    get(q, fact, name, &value, sizeof value);
    return value;
}

static size_t get_bytes(struct query *q, cl_device_info fact, const char *name)
{
    cl_ulong value = 0;
    get(q, fact, name, &value, sizeof value);
    return value > SIZE_MAX ? SIZE_MAX : (size_t)value;
}

// A text of any length, which the caller frees; NULL if it cannot be had. `platform` is asked
// where it is not NULL, else the device.
static char *get_text(struct query *q, cl_platform_id platform, cl_uint fact,
                      const char *name)
{
    cl_int code = CL_SUCCESS;
    char *text = cla_cl_text(q->cl, platform, q->device, fact, &code);
    if (code != CL_SUCCESS)
        unknown(q, fact, name, code);
    return text;
}

// Cuts to the field and drops the blanks that some names are padded with.
static void copy_text(struct query *q, cl_platform_id platform, cl_uint fact,
                      const char *name, char out[128])
{
    out[0] = '\0';
    char *text = get_text(q, platform, fact, name);
    if (!text)
        return;
    const char *start = text + strspn(text, " \t");
    size_t length = strlen(start);
    if (length > 127)
        length = 127;
    while (length > 0 && strchr(" \t\r\n", start[length - 1]))
        length--;
    memcpy(out, start, length);
    out[length] = '\0';
    free(text);
}

// Whole words only: the name of one extension may begin that of another.
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *p = list; (p = strstr(p, word)) != NULL; p += length) {
        bool starts = p == list || p[-1] == ' ';
        bool ends = p[length] == '\0' || p[length] == ' ';
        if (starts && ends)
            return true;
    }
    return false;
}

// False where the text says nothing.
static bool version_of(const char *version, int *major, int *minor)
{
    return sscanf(version, "OpenCL %3d.%3d", major, minor) == 2;
}

static bool version_at_least(const char *version, int major, int minor)
{
    int a = 0, b = 0;
    return version_of(version, &a, &b) && (a > major || (a == major && b >= minor));
}

// A driver of OpenCL 1.0 or 1.1 lacks functions that are called here, and a loader jumps to where
// they are not.
static bool too_old(const char *version)
{
    int major = 0, minor = 0;
    return version_of(version, &major, &minor) && !version_at_least(version, 1, 2);
}

// Sizes of sub-groups that a kernel can ask for. One below 8 would leave most of a row's items to
// other sub-groups.
static int32_t smallest_subgroup(struct query *q)
{
    size_t sizes[16] = {0}, bytes = 0, least = 0;
    if (q->cl->GetDeviceInfo(q->device, DEVICE_SUB_GROUP_SIZES, sizeof sizes, sizes, &bytes) !=
        CL_SUCCESS)
        return 0;
    if (bytes > sizeof sizes)
        return 0;
    for (size_t i = 0; i < bytes / sizeof sizes[0]; i++)
        if (sizes[i] >= 8 && (least == 0 || sizes[i] < least))
            least = sizes[i];
    return least <= 64 ? (int32_t)least : 0;
}

static void fill_extensions(struct query *q, struct cla_caps *caps)
{
    char *list = get_text(q, NULL, CL_DEVICE_EXTENSIONS, "CL_DEVICE_EXTENSIONS");
    if (list) {
        caps->has_fp16 = has_word(list, "cl_khr_fp16");
        caps->has_subgroups =
            has_word(list, "cl_khr_subgroups") || has_word(list, "cl_intel_subgroups");
        if (caps->has_subgroups && has_word(list, "cl_intel_required_subgroup_size"))
            caps->subgroups = CLA_SUBGROUPS_REQUIRED;
        else if (caps->has_subgroups && (has_word(list, "cl_khr_subgroup_shuffle") ||
                                         has_word(list, "cl_intel_subgroups")))
            caps->subgroups = CLA_SUBGROUPS_SHUFFLE;
        if (caps->subgroups == CLA_SUBGROUPS_REQUIRED)
            caps->subgroup_size = smallest_subgroup(q);
        free(list);
    }
    // Core since 2.1, and optional again in 3.0, where 0 says that there are none.
    if (!caps->has_subgroups && version_at_least(caps->version, 2, 1))
        caps->has_subgroups =
            get_int(q, DEVICE_MAX_NUM_SUB_GROUPS, "CL_DEVICE_MAX_NUM_SUB_GROUPS") > 0;
}

// A device that claims to be of several types (an emulator) is of none of them.
static void fill_type(cl_device_type bits, struct cla_caps *caps)
{
    caps->type_has_cpu_bit = (bits & CL_DEVICE_TYPE_CPU) != 0;
    switch (bits & (CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR)) {
    case CL_DEVICE_TYPE_CPU:
        caps->type = CLA_DEVICE_CPU;
        break;
    case CL_DEVICE_TYPE_GPU:
        caps->type = CLA_DEVICE_GPU;
        break;
    case CL_DEVICE_TYPE_ACCELERATOR:
        caps->type = CLA_DEVICE_ACCELERATOR;
        break;
    default:
        caps->type = CLA_DEVICE_OTHER;
        break;
    }
}

static void fill_groups(struct query *q, struct cla_caps *caps)
{
    caps->max_group = get_size(q, CL_DEVICE_MAX_WORK_GROUP_SIZE, "CL_DEVICE_MAX_WORK_GROUP_SIZE");

    size_t items[16] = {0};
    size_t size = 0;
    cl_int code =
        q->cl->GetDeviceInfo(q->device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof items, items, &size);
    if (code == CL_SUCCESS)
        for (size_t i = 0; i < 3 && (i + 1) * sizeof *items <= size; i++)
            caps->max_items[i] = items[i];
    else
        unknown(q, CL_DEVICE_MAX_WORK_ITEM_SIZES, "CL_DEVICE_MAX_WORK_ITEM_SIZES", code);
}

static void fill_memory(struct query *q, struct cla_caps *caps)
{
    cl_device_local_mem_type kind = CL_NONE;
    get(q, CL_DEVICE_LOCAL_MEM_TYPE, "CL_DEVICE_LOCAL_MEM_TYPE", &kind, sizeof kind);
    caps->local_is_global = kind == CL_GLOBAL;
    if (kind != CL_NONE)
        caps->local_bytes = get_bytes(q, CL_DEVICE_LOCAL_MEM_SIZE, "CL_DEVICE_LOCAL_MEM_SIZE");
    caps->host_unified =
        get_bool(q, CL_DEVICE_HOST_UNIFIED_MEMORY, "CL_DEVICE_HOST_UNIFIED_MEMORY");
    caps->global_bytes = get_bytes(q, CL_DEVICE_GLOBAL_MEM_SIZE, "CL_DEVICE_GLOBAL_MEM_SIZE");
    caps->max_alloc_bytes =
        get_bytes(q, CL_DEVICE_MAX_MEM_ALLOC_SIZE, "CL_DEVICE_MAX_MEM_ALLOC_SIZE");
    caps->cache_bytes =
        get_bytes(q, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, "CL_DEVICE_GLOBAL_MEM_CACHE_SIZE");
}

// Measured: rusticl (Mesa 22.3, llvmpipe) answers a work-group limit of 32 for kernels that run
// with 256 and twice the local memory they use; PoCL 3.1 answers 4096 work-items for every kernel,
// which is the device's limit and excludes nothing that the device does not. rusticl's NIR has no
// vectors wide enough for rows, whatever native width llvmpipe names (1 in Mesa 22.3), and the way
// through SPIR-V ends the process at clang's prefetch.
// PoCL 3.1 keeps kernels on disk itself; to give a binary it compiles them once more, for groups of
// any size: 1.5 s more at the first build, to save some 60 ms a program at the next.
static uint32_t quirks(const struct cla_caps *caps)
{
    if (strcmp(caps->platform, "Portable Computing Language") == 0)
        return CLA_QUIRK_OWN_CACHE;
    if (strcmp(caps->platform, "rusticl") != 0)
        return 0;
    // llvmpipe: a row of 10^6 keys stopped after 61440, where its loops had run 65535 times.
    const bool llvmpipe = caps->type_has_cpu_bit;
    return CLA_QUIRK_KERNEL_QUERIES_LIE | CLA_QUIRK_ONE_THREAD |
           (llvmpipe ? CLA_QUIRK_SCALARIZES | CLA_QUIRK_LOOP_LIMIT : 0);
}

static void fill_texts(struct query *q, struct cla_caps *caps)
{
    cl_platform_id platform = NULL;
    get(q, CL_DEVICE_PLATFORM, "CL_DEVICE_PLATFORM", &platform, sizeof platform);
    if (platform)
        copy_text(q, platform, CL_PLATFORM_NAME, "CL_PLATFORM_NAME", caps->platform);
    copy_text(q, NULL, CL_DEVICE_NAME, "CL_DEVICE_NAME", caps->name);
    copy_text(q, NULL, CL_DEVICE_VENDOR, "CL_DEVICE_VENDOR", caps->vendor);
    copy_text(q, NULL, CL_DRIVER_VERSION, "CL_DRIVER_VERSION", caps->driver);
    copy_text(q, NULL, CL_DEVICE_VERSION, "CL_DEVICE_VERSION", caps->version);
}

// False where a needed fact could not be had: q->missing.
static bool fill_caps(struct query *q, struct cla_caps *caps)
{
    memset(caps, 0, sizeof *caps);
    cl_device_type type = 0;
    if (!get(q, CL_DEVICE_TYPE, "CL_DEVICE_TYPE", &type, sizeof type))
        return false;
    fill_type(type, caps);
    fill_texts(q, caps);
    caps->compiler = !too_old(caps->version) &&
                     get_bool(q, CL_DEVICE_AVAILABLE, "CL_DEVICE_AVAILABLE") &&
                     get_bool(q, CL_DEVICE_COMPILER_AVAILABLE, "CL_DEVICE_COMPILER_AVAILABLE");
    caps->compute_units = get_int(q, CL_DEVICE_MAX_COMPUTE_UNITS, "CL_DEVICE_MAX_COMPUTE_UNITS");
    caps->native_width_f32 =
        get_int(q, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, "CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT");
    fill_groups(q, caps);
    fill_memory(q, caps);
    fill_extensions(q, caps);
    caps->quirks = quirks(caps);
    return !q->missing;
}

clattn_status cla_cl_device_caps(const struct cla_cl *cl, const struct cla_log *log,
                                 cl_device_id device, struct cla_caps *caps)
{
    struct query q = {.cl = cl, .log = log, .device = device};
    char call[96];
    if (fill_caps(&q, caps))
        return CLATTN_OK;
    snprintf(call, sizeof call, "clGetDeviceInfo(%s)", q.missing);
    return cla_cl_check(log, q.code, call);
}

// "name (vendor)" of a platform, for messages.
static void platform_text(const struct cla_cl *cl, const struct cla_log *log,
                          cl_platform_id platform, char *text, size_t size)
{
    struct query q = {.cl = cl, .log = log};
    char name[128], vendor[128];
    copy_text(&q, platform, CL_PLATFORM_NAME, "CL_PLATFORM_NAME", name);
    copy_text(&q, platform, CL_PLATFORM_VENDOR, "CL_PLATFORM_VENDOR", vendor);
    snprintf(text, size, "%s%s%s%s", name[0] ? name : "without a name", vendor[0] ? " (" : "",
             vendor, vendor[0] ? ")" : "");
}

// Ids of a platform's devices, which the caller frees; none is no error.
static clattn_status platform_devices(const struct cla_cl *cl, const struct cla_log *log,
                                      cl_platform_id platform, cl_device_id **ids, cl_uint *count)
{
    *ids = NULL;
    *count = 0;
    cl_uint n = 0, given = 0;
    char name[300];
    cl_device_id *found = NULL;
    cl_int code = cl->GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &n);
    if (code == CL_SUCCESS && n > CLA_CL_COUNT_MAX)
        code = CL_INVALID_VALUE;
    if (code == CL_SUCCESS && n > 0) {
        found = calloc(n, sizeof *found);
        if (!found)
            return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %u devices", n);
        // There can be fewer by now, and a driver may have told what is not so.
        code = cl->GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, n, found, &given);
    }
    if (code == CL_SUCCESS && given > 0) {
        *ids = found;
        *count = given < n ? given : n;
        return CLATTN_OK;
    }
    free(found);
    platform_text(cl, log, platform, name, sizeof name);
    if (code == CL_SUCCESS || code == CL_DEVICE_NOT_FOUND)
        cla_logf(log, CLATTN_LOG_INFO, "platform %s has no devices%s", name,
                 strncmp(name, "rusticl", 7) == 0
                     ? ": it takes the drivers that RUSTICL_ENABLE names (iris, radeonsi, ...)"
                     : "");
    else // one broken platform does not hide the others
        cla_logf(log, CLATTN_LOG_WARN, "platform %s was passed over: clGetDeviceIDs: %s (%d)",
                 name, cla_cl_error_name(code), (int)code);
    return CLATTN_OK;
}

// Appends the devices of one platform; those that don't answer are left out with a warning.
static clattn_status add_platform(const struct cla_cl *cl, const struct cla_log *log,
                                  cl_platform_id platform, struct cla_cl_device **list,
                                  int32_t *count)
{
    cl_device_id *ids = NULL;
    cl_uint n = 0;
    clattn_status st = platform_devices(cl, log, platform, &ids, &n);
    if (st != CLATTN_OK || n == 0)
        return st;

    struct cla_cl_device *longer = realloc(*list, ((size_t)*count + n) * sizeof *longer);
    if (!longer) {
        free(ids);
        return cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %u devices", n);
    }
    *list = longer;
    for (cl_uint i = 0; i < n; i++) {
        struct cla_cl_device *d = &longer[*count];
        d->platform = platform;
        d->device = ids[i];
        struct query q = {.cl = cl, .log = log, .device = ids[i]};
        if (fill_caps(&q, &d->caps)) {
            ++*count;
            continue;
        }
        char name[300];
        platform_text(cl, log, platform, name, sizeof name);
        cla_logf(log, CLATTN_LOG_WARN,
                 "device %u of platform %s was passed over: clGetDeviceInfo(%s): %s (%d)", i, name,
                 q.missing, cla_cl_error_name(q.code), (int)q.code);
    }
    free(ids);
    return CLATTN_OK;
}

clattn_status cla_cl_devices(const struct cla_cl *cl, const struct cla_log *log,
                             struct cla_cl_device **list, int32_t *count)
{
    *list = NULL;
    *count = 0;
    clattn_status st = CLATTN_OK;
    cl_platform_id *platforms = NULL;
    cl_uint n = 0;

    cl_int code = cl->GetPlatformIDs(0, NULL, &n);
    if (code == PLATFORM_NOT_FOUND_KHR || (code == CL_SUCCESS && n == 0)) {
        cla_logf(log, CLATTN_LOG_INFO,
                 "the OpenCL library knows no platform: no driver is installed, or none loads");
        goto done;
    }
    CLA_TRY(cla_cl_check(log, code, "clGetPlatformIDs"));
    n = n < CLA_CL_COUNT_MAX ? n : CLA_CL_COUNT_MAX;
    platforms = calloc(n, sizeof *platforms);
    if (!platforms) {
        st = cla_fail(log, CLATTN_ERR_OUT_OF_MEMORY, "no memory for %u platforms", n);
        goto done;
    }
    cl_uint given = 0;
    CLA_CL(cl->GetPlatformIDs(n, platforms, &given));
    for (cl_uint i = 0; i < n && i < given; i++)
        CLA_TRY(add_platform(cl, log, platforms[i], list, count));
done:
    free(platforms);
    if (st != CLATTN_OK) {
        free(*list);
        *list = NULL;
        *count = 0;
    }
    return st;
}
