// SPDX-License-Identifier: Apache-2.0
// How a device shares out rows; pure.
#include "algo/softmax.h"

#include <stdio.h>

enum {
    ITEMS_MAX = 256,
    LEAST_PART = 32768,   // entries; half of that was no faster than one part on two cores
    GROUPS_PER_UNIT = 4,  // so that units that finish early find more to do
    ITEM_VECTORS = 4096   // of one part, where the driver stops long loops
};

struct cla_softmax_shape cla_softmax_shape(const struct cla_caps *caps, int32_t kernel)
{
    struct cla_softmax_shape s = {.least_part = LEAST_PART};
    // A driver may say anything.
    s.groups = caps->compute_units < INT32_MAX / GROUPS_PER_UNIT
                   ? caps->compute_units * GROUPS_PER_UNIT
                   : INT32_MAX;
    if (kernel == CLATTN_KERNEL_VECTOR ||
        (kernel == CLATTN_KERNEL_AUTO && cla_caps_vector_shape(caps))) {
        s.width = caps->native_width_f32 >= 16 ? 16 : caps->native_width_f32 >= 8 ? 8 : 4;
        s.items = 1;
        snprintf(s.reason, sizeof s.reason, "a work-item a row, vectors of %d entries",
                 (int)s.width);
    } else {
        size_t most = cla_caps_items(caps);
        if (most > caps->local_bytes / 8)
            most = caps->local_bytes / 8; // a maximum and a sum of each item
        s.width = 4;
        s.items = 1;
        while (s.items < ITEMS_MAX && 2 * (size_t)s.items <= most)
            s.items *= 2;
        snprintf(s.reason, sizeof s.reason,
                 "a work-group of %d items a row, vectors of 4 entries, %d bytes of local memory",
                 (int)s.items, s.items > 1 ? 8 * (int)s.items : 0);
    }
    if (caps->quirks & CLA_QUIRK_LOOP_LIMIT)
        s.most_part = (int64_t)s.items * s.width * ITEM_VECTORS;
    return s;
}

void cla_softmax_parts(const struct cla_softmax_shape *shape, int64_t rows, int64_t len,
                       int32_t *parts, int64_t *part_len)
{
    int64_t n = 1;
    if (rows > 0 && rows < shape->groups) {
        const int64_t wanted = (shape->groups + rows - 1) / rows;
        const int64_t most = len / shape->least_part;
        n = wanted < most ? wanted : most < 1 ? 1 : most;
    }
    if (shape->most_part && len > n * shape->most_part)
        n = (len - 1) / shape->most_part + 1;
    n = n < INT32_MAX ? n : INT32_MAX; // no memory holds such a row
    // Whole vectors for every item, so that parts start where vectors do.
    const int64_t unit = (int64_t)shape->items * shape->width;
    int64_t each = len > 0 ? (len - 1) / n + 1 : 1;
    each = (each - 1) / unit * unit + unit;
    *part_len = each;
    *parts = len > 0 ? (int32_t)((len - 1) / each + 1) : 1;
}

bool cla_softmax_workspace(const struct cla_softmax_shape *shape, int64_t rows, int64_t len,
                           size_t *bytes)
{
    int32_t parts;
    int64_t part_len, all = 0;
    cla_softmax_parts(shape, rows, len, &parts, &part_len);
    const bool fits = parts < 2 || (!__builtin_mul_overflow(rows, (int64_t)parts * 8, &all) &&
                                    (uint64_t)all < SIZE_MAX);
    *bytes = fits ? (size_t)all : SIZE_MAX;
    return fits;
}
