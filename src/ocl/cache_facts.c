// SPDX-License-Identifier: Apache-2.0
// What compiled programs depend on. A fact too many costs a build, one too few a wrong program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ocl/cache.h"
#include "ocl/device.h"
#include "util/host_facts.h"

// Variables by which drivers are told how to compile: PoCL, Intel's CPU and GPU runtimes, Mesa,
// AMD, NVIDIA. Where caches lie changes nothing.
static const char *const prefixes[] = {"POCL_",  "CL_CONFIG_", "VOLCANO_", "IGC_",  "NEO",
                                       "LP_",    "GALLIVM_",   "RUSTICL_", "MESA_", "RADEON",
                                       "NIR_",   "CLC_",       "AMD_",     "ROC",   "HSA_",
                                       "GPU_",   "CUDA_",      "OCL",      "LLVM_"};
static const char except[] = "CACHE";

struct facts {
    const struct cla_cl *cl;
    cl_device_id device;
    char *text;
    size_t size, room;
    bool failed;
};

static void add(struct facts *f, const char *name, const char *value)
{
    const size_t need = strlen(name) + strlen(value) + 32;
    if (f->failed)
        return;
    if (f->room - f->size < need) {
        char *larger = realloc(f->text, 2 * (f->room + need));
        if (!larger) {
            f->failed = true;
            return;
        }
        f->text = larger;
        f->room = 2 * (f->room + need);
    }
    f->size += (size_t)snprintf(f->text + f->size, f->room - f->size, "%s %zu:%s\n", name,
                                strlen(value), value);
}

static void add_number(struct facts *f, const char *name, unsigned long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", value);
    add(f, name, text);
}

// A text of the platform where that is not NULL, else of the device.
static void add_text(struct facts *f, cl_platform_id platform, cl_uint fact, const char *name)
{
    cl_int code = CL_SUCCESS;
    char *text = cla_cl_text(f->cl, platform, f->device, fact, &code);
    if (code == CL_OUT_OF_HOST_MEMORY)
        f->failed = true;
    add(f, name, text ? text : "?");
    free(text);
}

// Numbers of 1 to 8 bytes, zero-extended on a little-endian machine; elsewhere only their bytes
// have another order, which is still the same each time.
static void add_fixed(struct facts *f, cl_device_info fact, const char *name)
{
    unsigned long long value = 0;
    if (f->cl->GetDeviceInfo(f->device, fact, sizeof value, &value, NULL) != CL_SUCCESS)
        value = 0;
    add_number(f, name, value);
}

static void add_device(struct facts *f)
{
    add_text(f, NULL, CL_DEVICE_NAME, "device");
    add_text(f, NULL, CL_DEVICE_VENDOR, "vendor");
    add_text(f, NULL, CL_DRIVER_VERSION, "driver");
    add_text(f, NULL, CL_DEVICE_VERSION, "version");
    add_text(f, NULL, CL_DEVICE_OPENCL_C_VERSION, "language");
    add_text(f, NULL, CL_DEVICE_EXTENSIONS, "extensions");
    add_fixed(f, CL_DEVICE_TYPE, "type");
    add_fixed(f, CL_DEVICE_VENDOR_ID, "vendor id");
    add_fixed(f, CL_DEVICE_ADDRESS_BITS, "address bits");
    add_fixed(f, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, "native width");
    add_fixed(f, CL_DEVICE_MAX_WORK_GROUP_SIZE, "largest group");
    add_fixed(f, CL_DEVICE_LOCAL_MEM_TYPE, "local type");
    add_fixed(f, CL_DEVICE_LOCAL_MEM_SIZE, "local bytes");
    cl_platform_id platform = NULL;
    if (f->cl->GetDeviceInfo(f->device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) ==
            CL_SUCCESS &&
        platform) {
        add_text(f, platform, CL_PLATFORM_NAME, "platform");
        add_text(f, platform, CL_PLATFORM_VENDOR, "platform vendor");
        add_text(f, platform, CL_PLATFORM_VERSION, "platform version");
    }
}

char *cla_cache_facts(const struct cla_cl *cl, cl_device_id device)
{
    struct facts f = {.cl = cl, .device = device};
    char *cpu = cla_host_cpu();
    char *env = cla_host_env(prefixes, sizeof prefixes / sizeof *prefixes, except);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", CLATTN_VERSION_MAJOR, CLATTN_VERSION_MINOR,
             CLATTN_VERSION_PATCH);
    add_number(&f, "format", CLA_CACHE_FORMAT);
    add(&f, "clattn", version);
    add_device(&f);
    add(&f, "host", cpu ? cpu : "");
    add(&f, "environment", env ? env : "");
    if (!cpu || !env || f.failed) {
        free(f.text);
        f.text = NULL;
    }
    free(cpu);
    free(env);
    return f.text;
}
