// SPDX-License-Identifier: Apache-2.0
// Tiles that were measured for devices at hand and beat the planner's choice, in the format of a
// tuning file. A row is only here with what was measured; docs/planner.md says how.
#include "tune.h"

const char cla_tune_table[] = "clattn-tune 1\n";
