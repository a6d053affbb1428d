// SPDX-License-Identifier: Apache-2.0
/// @file clattn.h
/// Umbrella of the headers that need no OpenCL types; include opencl.h beside it for those.
#ifndef CLATTN_CLATTN_H
#define CLATTN_CLATTN_H

#include "attention.h"
#include "base.h"
#include "context.h"
#include "kv.h"
#include "softmax.h"
#include "tune.h"

#endif // CLATTN_CLATTN_H
