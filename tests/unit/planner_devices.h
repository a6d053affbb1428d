// SPDX-License-Identifier: Apache-2.0
// Devices made up from the published figures of real ones, as their OpenCL drivers report them.
// docs/planner.md names the source of each.
#ifndef TESTS_PLANNER_DEVICES_H
#define TESTS_PLANNER_DEVICES_H

#include "caps.h"

#define PLANNER_DEVICE(title_, type_, units_, width_, group_, items_, local_, global_)             \
    {.name = title_, .type = (type_), .type_has_cpu_bit = (type_) == CLA_DEVICE_CPU,               \
     .compiler = true, .compute_units = (units_), .native_width_f32 = (width_),                    \
     .max_group = (group_), .max_items = {(items_), (items_), (items_)},                           \
     .local_bytes = (local_), .local_is_global = (global_)}

enum planner_device {
    DEV_RDNA2, DEV_RDNA3, DEV_CDNA2, DEV_CDNA3, DEV_ARC, DEV_XE_LP, DEV_XE_HPC, DEV_GEFORCE,
    DEV_HOPPER, DEV_ADRENO, DEV_MALI, DEV_APPLE_CPU, DEV_POCL, DEV_INTEL_CPU, DEV_LLVMPIPE,
    DEV_TINY, DEV_NO_LOCAL, DEV_COUNT
};

// Columns: type, compute units, native float width, work-items of a group, per dimension, bytes of
// local memory, whether that is ordinary memory.
static const struct cla_caps planner_devices[DEV_COUNT] = {
    [DEV_RDNA2] = PLANNER_DEVICE("RX 6900 XT", CLA_DEVICE_GPU, 40, 1, 256, 1024, 65536, false),
    [DEV_RDNA3] = PLANNER_DEVICE("RX 7900 XTX", CLA_DEVICE_GPU, 48, 1, 256, 1024, 65536, false),
    [DEV_CDNA2] = PLANNER_DEVICE("MI250X die", CLA_DEVICE_GPU, 110, 1, 256, 1024, 65536, false),
    [DEV_CDNA3] = PLANNER_DEVICE("MI300X", CLA_DEVICE_GPU, 304, 1, 256, 1024, 65536, false),
    [DEV_ARC] = PLANNER_DEVICE("Arc A770", CLA_DEVICE_GPU, 512, 1, 1024, 1024, 65536, false),
    [DEV_XE_LP] = PLANNER_DEVICE("Iris Xe", CLA_DEVICE_GPU, 96, 1, 512, 512, 65536, false),
    [DEV_XE_HPC] = PLANNER_DEVICE("Max 1550", CLA_DEVICE_GPU, 1024, 1, 1024, 1024, 131072, false),
    [DEV_GEFORCE] = PLANNER_DEVICE("RTX 4090", CLA_DEVICE_GPU, 128, 1, 1024, 1024, 49152, false),
    [DEV_HOPPER] = PLANNER_DEVICE("H100 SXM", CLA_DEVICE_GPU, 132, 1, 1024, 1024, 49152, false),
    [DEV_ADRENO] = PLANNER_DEVICE("Adreno 630", CLA_DEVICE_GPU, 2, 1, 1024, 1024, 32768, false),
    [DEV_MALI] = PLANNER_DEVICE("Mali-G71", CLA_DEVICE_GPU, 8, 4, 384, 256, 32768, true),
    [DEV_APPLE_CPU] = PLANNER_DEVICE("Apple CPU", CLA_DEVICE_CPU, 8, 4, 1, 1, 32768, true),
    [DEV_POCL] = PLANNER_DEVICE("PoCL", CLA_DEVICE_CPU, 2, 8, 4096, 4096, 524288, true),
    [DEV_INTEL_CPU] = PLANNER_DEVICE("Xeon", CLA_DEVICE_CPU, 64, 16, 8192, 8192, 262144, true),
    [DEV_LLVMPIPE] = PLANNER_DEVICE("llvmpipe", CLA_DEVICE_CPU, 8, 1, 1024, 1024, 32768, true),
    [DEV_TINY] = PLANNER_DEVICE("1 KiB, 16 items", CLA_DEVICE_GPU, 1, 1, 16, 16, 1024, false),
    [DEV_NO_LOCAL] = PLANNER_DEVICE("no local memory", CLA_DEVICE_GPU, 4, 1, 256, 256, 0, false),
};

#endif // TESTS_PLANNER_DEVICES_H
