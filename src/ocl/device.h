// SPDX-License-Identifier: Apache-2.0
// cl_device_id -> cla_caps. Driver quirks are decided here only, by facts.
#ifndef CLA_OCL_DEVICE_H
#define CLA_OCL_DEVICE_H

#include "caps.h"
#include "ocl/api.h"

struct cla_cl_device {
    cl_platform_id platform;
    cl_device_id device;
    struct cla_caps caps;
};

// All devices of all platforms, in order. CLATTN_OK with *count = 0 where there is none (platforms
// without devices and the loader's "no platforms" code are no errors). The caller frees *list.
clattn_status cla_cl_devices(const struct cla_cl *cl, const struct cla_log *log,
                             struct cla_cl_device **list, int32_t *count);

// Facts of one device.
clattn_status cla_cl_device_caps(const struct cla_cl *cl, const struct cla_log *log,
                                 cl_device_id device, struct cla_caps *caps);

// What a driver says of sizes and counts may be nonsense: more than this is an error.
enum { CLA_CL_TEXT_MAX = 1 << 20, CLA_CL_COUNT_MAX = 1024 };

// A text of the platform where that is not NULL, else of the device, which the caller frees. NULL
// where it cannot be had, with the code, or with CL_SUCCESS where memory ran out.
char *cla_cl_text(const struct cla_cl *cl, cl_platform_id platform, cl_device_id device,
                  cl_uint fact, cl_int *code);

#endif // CLA_OCL_DEVICE_H
