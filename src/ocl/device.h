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

#endif // CLA_OCL_DEVICE_H
