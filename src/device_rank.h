// SPDX-License-Identifier: Apache-2.0
// Which device is best, from facts alone; pure.
#ifndef CLA_DEVICE_RANK_H
#define CLA_DEVICE_RANK_H

#include "caps.h"

// Writes into order[0..count) the indices of caps[0..count), best first. Stable: among equals the
// one that was listed first.
void cla_device_rank(const struct cla_caps *caps, int32_t count, int32_t *order);

// Whether a selector names the built-in path, which needs no list.
bool cla_device_is_builtin(const char *selector);

// Index of the first device that `selector` fits, -1 if none: digits = index, "cpu" = the built-in
// path, else part of the platform's or device's name in any case.
int32_t cla_device_select(const struct cla_caps *caps, int32_t count, const char *selector);

#endif // CLA_DEVICE_RANK_H
