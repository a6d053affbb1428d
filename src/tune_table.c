// SPDX-License-Identifier: Apache-2.0
// Tiles that were measured for devices at hand and beat the planner's choice, in the format of a
// tuning file. A row is only here with what was measured; docs/planner.md says how.
#include "tune.h"

const char cla_tune_table[] =
    "clattn-tune 1\n"
    // 2 cores with AVX2; 8 heads, one query, 8192 keys: x 1.185 and x 1.141, the planner's choice
    // beside itself x 1.030.
    "device \"Intel(R) OpenCL\" \"AMD EPYC*\" \"2026.22*\" \"*\"\n"
    "split_kv dims 64/64 types f32/f32/f32 mask none pages no rows 1-1 keys 1024-16384 "
    "tile vector tile_q 1 tile_k 16 width 8 ratio 1.141\n";
