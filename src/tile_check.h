// SPDX-License-Identifier: Apache-2.0
// Tiles that somebody names: whether a device and a kernel can have one, and which are near those
// of the planner. Pure.
#ifndef CLA_TILE_CHECK_H
#define CLA_TILE_CHECK_H

#include "tile.h"

// The caller's tile as the planner's, for the algorithm of the problem (not auto). False with the
// reason where it breaks a limit of the device or a rule of the kernels.
bool cla_tile_check(const struct cla_problem *p, const struct cla_caps *caps,
                    const clattn_tile *want, struct cla_tile *out, char *why, size_t why_size);

// The planner's tile as the caller's; all zero for one without a kernel shape.
clattn_tile cla_tile_named(const struct cla_tile *t);

bool cla_tile_same(const clattn_tile *a, const clattn_tile *b);

// "vector 24 x 64, width 8, 3 vectors, blocks of 4 keys and 4 channels".
void cla_tile_text(const clattn_tile *t, char *text, size_t size);

// Writes `base` tiles, which are the planner's own, then those that pass cla_tile_check() and
// differ from one of them in one step (half or twice as many rows, ...), then in two. At most
// `max`; how many there are is the result.
int cla_tile_near(const struct cla_problem *p, const struct cla_caps *caps, const clattn_tile *base,
                  int num_base, clattn_tile *out, int max);

#endif // CLA_TILE_CHECK_H
