// SPDX-License-Identifier: Apache-2.0
/// @file tune.h
/// Measured tiles: a readable file, a line for each kind of problem on each device, in which
/// contexts look up the tile of a plan before the planner's rules choose one. The program
/// clattn-tune measures and writes it; these are the calls that it is made of. docs/planner.md
/// describes the format.
///
/// A line holds for one device with one version of its driver and of this library, one algorithm,
/// head dimensions, types, kind of mask, pages or none, and a range of rows (queries times query
/// heads of a key head) and of keys.
#ifndef CLATTN_TUNE_H
#define CLATTN_TUNE_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What was measured for a kind of problem.
typedef struct clattn_tuning {
    size_t struct_size; ///< set by the caller to sizeof(clattn_tuning)
    int32_t measured;   ///< 1 where there is such a line
    clattn_tile tile;   ///< the fastest; all zero = nothing was faster than the planner's choice
    /// Time of the planner's choice by that of the tile, 1 where nothing was faster; kept with
    /// three decimals
    double ratio;
} clattn_tuning;

/// Name of the file that contexts read by default: $XDG_CONFIG_HOME/clattn/tune.txt, else
/// $HOME/.config/clattn/tune.txt; on Windows %LOCALAPPDATA%\clattn\tune.txt.
/// @param path Receives the name with its NUL; it may have up to 1023 characters.
/// @param size Room at `path`, bytes.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; CLATTN_ERR_FILE where the environment
///         names no folder or `size` is too small, then *path is empty; CLATTN_ERR_NO_OPENCL in a
///         build without OpenCL, which has no tiles.
/// Threads: any.
CLATTN_API clattn_status clattn_tune_path(char *path, size_t size);

/// Looks up what the file at `path` says of a description on the context's device.
/// @param ctx  The device. What the context itself has read does not matter.
/// @param path NULL = clattn_tune_path(). A missing file has nothing measured.
/// @param desc As for a plan, with `algo` one that has tiles. Its `kernel` and `tile` have to be
///             valid, and make no difference.
/// @param out  Receives the answer.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL and an algorithm without tiles, and what
///         clattn_attention_plan_create() says of the fields of `desc`; CLATTN_ERR_STRUCT_SIZE;
///         CLATTN_ERR_FILE for a file that is broken or not to be trusted, with line and reason in
///         the log; CLATTN_ERR_NO_OPENCL on the built-in CPU path; CLATTN_ERR_OUT_OF_MEMORY.
/// Threads: any.
CLATTN_API clattn_status clattn_tune_read(clattn_context *ctx, const char *path,
                                          const clattn_attention_desc *desc, clattn_tuning *out);

/// Puts a measured tile into the file at `path`, which is made where it is missing, with its
/// folder. A line for the same kind of problem is replaced, other lines stay; comments do not.
/// Readers see the old file or the new one.
/// @param ctx   The device.
/// @param path  NULL = clattn_tune_path(). Its folder must be this user's and closed to others.
/// @param desc  What was measured: `algo` one that has tiles, the bounds of queries and keys say
///              which range it holds for, `tile` is the fastest tile, or all zero where nothing was
///              faster than the planner's choice, of any kernel shape: `kernel` has to be 0.
/// @param ratio Time of the planner's choice by that of the tile, 0.001 to 1000.
/// @return as clattn_tune_read(), CLATTN_ERR_FILE also for a file that cannot be written or is
///         full; CLATTN_ERR_INVALID_ARGUMENT also for a ratio out of range, missing bounds and a
///         `kernel`; CLATTN_ERR_UNSUPPORTED for a tile that device or algorithm cannot have. The
///         file is looked at last.
/// Threads: any; of two writers at once, also in different processes, the last one wins.
CLATTN_API clattn_status clattn_tune_write(clattn_context *ctx, const char *path,
                                           const clattn_attention_desc *desc, double ratio);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_TUNE_H
