// SPDX-License-Identifier: Apache-2.0
// Tiles that were measured for devices at hand and beat the planner's choice, in the format of a
// tuning file. A row is only here with what was measured; docs/planner.md says how.
#include "tune.h"

const char cla_tune_table[] =
    "clattn-tune 1\n"
    // 2 cores with AVX2; one query, 4, 8 and 32 heads, 8192 and 16384 keys: x 1.04 to 1.18 by
    // processor time. With fewer keys, where all of K and V are in a cache, x 0.97 to 1.03.
    "device \"Intel(R) OpenCL\" \"AMD EPYC*\" \"2026.22*\" \"*\"\n"
    "split_kv dims 64/64 types f32/f32/f32 mask none pages no rows 1-1 keys 8192-16384 "
    "tile vector tile_q 1 tile_k 16 width 8 ratio 1.120\n";
