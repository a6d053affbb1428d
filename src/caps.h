// SPDX-License-Identifier: Apache-2.0
// Plain facts about a device: all that planning may know of it.
#ifndef CLA_CAPS_H
#define CLA_CAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cla_device_type { // equal to enum clattn_device_type
    CLA_DEVICE_BUILTIN = 0,
    CLA_DEVICE_CPU = 1,
    CLA_DEVICE_GPU = 2,
    CLA_DEVICE_ACCELERATOR = 3,
    CLA_DEVICE_OTHER = 4
};

// Driver quirks, decided in ocl/device.c only, by facts and measurements.
enum {
    // The per-kernel queries (work-group size, local memory) do not tell the truth.
    CLA_QUIRK_KERNEL_QUERIES_LIE = 1u << 0,
    // The compiler turns each vector into as many scalars: 30 s and 0.8 GB for the smallest tile of
    // the vector shape were measured on llvmpipe.
    CLA_QUIRK_SCALARIZES = 1u << 1,
    // A work-item is stopped without a word after CLA_LOOP_LIMIT iterations of all its loops.
    CLA_QUIRK_LOOP_LIMIT = 1u << 2,
    // Calls from several threads at once now and then give wrong numbers.
    CLA_QUIRK_ONE_THREAD = 1u << 3,
    // Its own cache on disk is nearly as good, and asking it for a binary costs much.
    CLA_QUIRK_OWN_CACHE = 1u << 4,
};

enum { CLA_LOOP_LIMIT = 65535 };

struct cla_caps {
    char platform[128];
    char name[128];
    char vendor[128];
    char driver[128];
    char version[128];
    int type; // enum cla_device_type
    bool type_has_cpu_bit; // CL_DEVICE_TYPE_CPU is among the type bits
    bool compiler;         // CL_DEVICE_COMPILER_AVAILABLE, CL_DEVICE_AVAILABLE, OpenCL 1.2 or later
    int32_t compute_units;
    int32_t native_width_f32; // CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT
    size_t max_group;         // CL_DEVICE_MAX_WORK_GROUP_SIZE
    size_t max_items[3];      // CL_DEVICE_MAX_WORK_ITEM_SIZES
    size_t local_bytes;       // 0 = none
    bool local_is_global;     // CL_DEVICE_LOCAL_MEM_TYPE is CL_GLOBAL: no faster than global memory
    bool host_unified;
    size_t global_bytes;
    size_t max_alloc_bytes;
    size_t cache_bytes; // CL_DEVICE_GLOBAL_MEM_CACHE_SIZE
    bool has_fp16;
    bool has_subgroups;
    int32_t subgroups; // CLA_SUBGROUPS_* of abi.h: how the group shape can use them
    // Work-items of the smallest sub-group, from 8 on, that can be asked for; 0 = not known.
    int32_t subgroup_size;
    uint32_t quirks;
};

// CPU-shaped: vector lanes as rows are faster than work-groups that share local memory. Never by
// vendor name: llvmpipe is of type CPU too, but executes scalar work-items (width 1), and a driver
// that takes vectors apart does so at whatever width it names.
static inline bool cla_caps_vector_shape(const struct cla_caps *c)
{
    return c->type_has_cpu_bit && c->native_width_f32 >= 4 && !(c->quirks & CLA_QUIRK_SCALARIZES);
}

// The most work-items that a work-group of one dimension can have.
static inline size_t cla_caps_items(const struct cla_caps *c)
{
    return c->max_group < c->max_items[0] ? c->max_group : c->max_items[0];
}

// The size of sub-groups that kernels without sub-groups ask for; 0 = the compiler's choice. Where
// the smallest is 16, an item of it has 128 registers and one of the next size, which Intel's
// compiler takes first, 64: of the kernels here those that need more spilled.
static inline int32_t cla_caps_lanes(const struct cla_caps *c)
{
    return c->type == CLA_DEVICE_GPU && c->subgroup_size >= 16 ? c->subgroup_size : 0;
}

#endif // CLA_CAPS_H
