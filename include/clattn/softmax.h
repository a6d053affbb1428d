// SPDX-License-Identifier: Apache-2.0
/// @file softmax.h
/// Row softmax on its own, by each of the three ways that lead to fused attention.
///
///     x[r,c] = scale * X[r,c]
///     Y[r,c] = e^(x[r,c] - m[r]) / d[r],   d[r] = sum over c of e^(x[r,c] - m[r])
///     LSE[r] = m[r] + ln d[r]              (natural logarithm, always float32)
///
/// * naive, m = 0: two passes, the exponentials are stored in Y and divided in place. It overflows
///   where e^x does: in float32 for x over 88.72, in float16 storage of Y for x over 11.09, and
///   gives NaN there; where all e^x underflow it gives 0 / 0 = NaN. Offered as what it is.
/// * safe, m = max over c of x[r,c]: three passes, maximum, sum, division.
/// * online: two passes, maximum and sum in one, as in Milakov & Gimelshein, "Online normalizer
///   calculation for softmax" (arXiv 1805.02867), Algorithm 3, and over the parts of a row by its
///   associative merge (equation 4):
///
///     m_j = max(m_{j-1}, x_j),   d_j = d_{j-1} * e^(m_{j-1} - m_j) + e^(x_j - m_j)
///     (m, d) + (m', d') = (M, d * e^(m - M) + d' * e^(m' - M)),   M = max(m, m')
///
/// Safe and online: an entry of -infinity has Y = 0; a row of nothing else gives Y = 0 and LSE =
/// -infinity, never NaN. NaN or +infinity in a row makes all of it NaN. Arithmetic is float32,
/// sums keep their precision for millions of entries.
#ifndef CLATTN_SOFTMAX_H
#define CLATTN_SOFTMAX_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A prepared softmax: the chosen path and its compiled kernels.
/// Thread-safety: safe; one plan may be run from several threads at once, each with its own
/// outputs and workspace. The context must outlive it.
typedef struct clattn_softmax_plan clattn_softmax_plan;

/// Which way of computing is used.
typedef enum clattn_softmax_algo {
    CLATTN_SOFTMAX_AUTO = 0,  ///< online
    CLATTN_SOFTMAX_NAIVE = 1, ///< without the maximum; overflows
    CLATTN_SOFTMAX_SAFE = 2,  ///< three passes
    CLATTN_SOFTMAX_ONLINE = 3 ///< two passes
} clattn_softmax_algo;

/// Where it is computed.
typedef enum clattn_softmax_path {
    CLATTN_SOFTMAX_PATH_AUTO = 0,     ///< the context's device, else the CPU path
    CLATTN_SOFTMAX_PATH_OPENCL = 1,   ///< the context's OpenCL device
    CLATTN_SOFTMAX_PATH_HOST = 2,     ///< portable C on the CPU
    CLATTN_SOFTMAX_PATH_REFERENCE = 3 ///< the definition in double precision (safe), for checking
} clattn_softmax_path;

/// Bits of clattn_softmax_desc.features.
enum {
    CLATTN_SOFTMAX_LSE = 1u << 0 ///< log-sum-exp is written
};

/// What the kernels are compiled for. Zero means default for every field but struct_size.
typedef struct clattn_softmax_desc {
    size_t struct_size; ///< set by clattn_softmax_desc_init()
    int32_t algo;       ///< enum clattn_softmax_algo
    int32_t path;       ///< enum clattn_softmax_path; a forced one is not replaced by another
    int32_t dtype_x;    ///< enum clattn_dtype of X: f32, f16 or bf16
    int32_t dtype_y;    ///< enum clattn_dtype of Y: f32, f16 or bf16
    uint32_t features;  ///< CLATTN_SOFTMAX_LSE
    uint32_t flags;     ///< CLATTN_NO_FALLBACK (attention.h)
    int32_t kernel;     ///< enum clattn_kernel of the OpenCL path: work-groups or vectors
    int32_t reserved;   ///< 0
    int64_t max_rows;   ///< bound of call.rows; 0 = any
    int64_t max_len;    ///< bound of call.len; 0 = any
} clattn_softmax_desc;

/// Sets every field of `desc` to its default and struct_size to `size`.
/// @param desc NULL is ignored.
/// @param size sizeof(clattn_softmax_desc) of the caller.
/// Threads: any.
CLATTN_API void clattn_softmax_desc_init(clattn_softmax_desc *desc, size_t size);

/// Bits of clattn_softmax_call.set.
enum {
    CLATTN_SOFTMAX_SET_SCALE = 1u << 0 ///< `scale` counts, else 1
};

/// One run. Memory stays the caller's and must live until the work is done.
typedef struct clattn_softmax_call {
    size_t struct_size; ///< set by clattn_softmax_call_init()
    uint32_t set;       ///< CLATTN_SOFTMAX_SET_* bits
    float scale;        ///< any finite float, with CLATTN_SOFTMAX_SET_SCALE
    int64_t rows;       ///< 0 succeeds and writes nothing
    int64_t len;        ///< entries of a row; 0 gives LSE = -infinity
    clattn_buf x;       ///< [rows, len]
    clattn_buf y;       ///< [rows, len], written. May be X itself where type and stride agree
    int64_t stride_x;   ///< elements between rows of X, >= len; 0 = len
    int64_t stride_y;   ///< elements between rows of Y, >= len; 0 = len
    clattn_buf lse;     ///< float [rows], with CLATTN_SOFTMAX_LSE
    /// As clattn_softmax_workspace_bytes() says. In clattn_softmax_run() it may be absent, clattn
    /// then allocates it for the call.
    clattn_buf workspace;
} clattn_softmax_call;

/// Sets every field of `call` to its default and struct_size to `size`.
/// @param call NULL is ignored.
/// @param size sizeof(clattn_softmax_call) of the caller.
/// Threads: any.
CLATTN_API void clattn_softmax_call_init(clattn_softmax_call *call, size_t size);

/// Checks the description and compiles what it needs.
///
/// @param ctx  Must outlive the plan.
/// @param desc See its fields.
/// @param out  Receives the plan; NULL on failure. Destroy it with clattn_softmax_plan_destroy().
/// @return CLATTN_OK                    there is a plan
///         CLATTN_ERR_INVALID_ARGUMENT  NULL, a negative bound, unknown enum values or bits
///         CLATTN_ERR_STRUCT_SIZE       desc->struct_size
///         CLATTN_ERR_UNSUPPORTED       the forced path can't serve it, or a type other than f32,
///                                      f16 and bf16
///         CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///         CLATTN_ERR_OUT_OF_MEMORY, CLATTN_ERR_BUILD, CLATTN_ERR_FILE, CLATTN_ERR_OPENCL,
///         CLATTN_ERR_SELF_TEST         of a forced path; otherwise the CPU path takes over
/// Threads: any.
CLATTN_API clattn_status clattn_softmax_plan_create(clattn_context *ctx,
                                                    const clattn_softmax_desc *desc,
                                                    clattn_softmax_plan **out);

/// Frees the plan. Work that was enqueued goes on.
/// @param plan Receives NULL. NULL and pointers to NULL are ignored.
/// Threads: any, when no other uses the plan.
CLATTN_API void clattn_softmax_plan_destroy(clattn_softmax_plan **plan);

/// Bytes of workspace a call needs: 8 for each part of each row, where rows are cut into parts.
/// Parts are a pure function of plan, rows and len.
/// @param plan  From clattn_softmax_plan_create().
/// @param rows  As in the call.
/// @param len   As in the call.
/// @param bytes Receives the number, 0 where none is needed.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; or what is wrong with the call.
/// Threads: any.
CLATTN_API clattn_status clattn_softmax_workspace_bytes(const clattn_softmax_plan *plan,
                                                        int64_t rows, int64_t len, size_t *bytes);

/// What a plan chose.
typedef struct clattn_softmax_info {
    size_t struct_size;   ///< set by the caller to sizeof(clattn_softmax_info)
    int32_t algo;         ///< enum clattn_softmax_algo, not AUTO
    int32_t path;         ///< enum clattn_softmax_path, not AUTO
    char algo_name[32];   ///< "naive", "safe", "online"
    char path_name[32];   ///< "opencl", "host", "reference"
    int32_t group_size;   ///< work-items in a work-group; 1 on the CPU
    int32_t vector_width; ///< floats in a vector
    int32_t is_fallback;  ///< 1 where the OpenCL device was refused or failed
    int32_t passes;       ///< passes over a row: reads of X or Y, without the write of Y
    char reason[256];     ///< why this choice, and what failed before
} clattn_softmax_info;

/// Says what a plan chose.
/// @param plan From clattn_softmax_plan_create().
/// @param info Its struct_size is set by the caller.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; CLATTN_ERR_STRUCT_SIZE.
/// Threads: any.
CLATTN_API clattn_status clattn_softmax_get_info(const clattn_softmax_plan *plan,
                                                 clattn_softmax_info *info);

/// Runs and waits. Each buffer is host memory, clattn_mem_create()'s or the application's cl_mem.
///
/// @param plan From clattn_softmax_plan_create().
/// @param call Lengths within the plan's bounds, and memory.
/// @return CLATTN_OK                    done
///         CLATTN_ERR_INVALID_ARGUMENT  NULL; a negative length; a scale that is not finite, or is
///                                      given without its bit; unknown bits or kinds of buffer; an
///                                      lse that the plan has not
///         CLATTN_ERR_STRUCT_SIZE       call->struct_size
///         CLATTN_ERR_OVER_BOUND        rows or len over the plan's bound
///         CLATTN_ERR_STRIDE            a stride below len, or rows * stride overflows
///         CLATTN_ERR_BUFFER_MISSING    x, y, lse absent; a cl_mem without an OpenCL device
///         CLATTN_ERR_BUFFER_TOO_SMALL  one of them is short
///         CLATTN_ERR_OVERLAP           Y overlaps X without being X; LSE or the workspace overlaps
///                                      one of the others
///         CLATTN_ERR_WRONG_CONTEXT     a cl_mem is of another cl_context than the plan's
///         CLATTN_ERR_UNSUPPORTED       more rows than one launch on a 32-bit host can have
///         CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///         CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
///         CLATTN_ERR_OPENCL            another OpenCL failure; the output is undefined
/// Threads: one plan may be run from several threads, each with its own outputs and workspace.
CLATTN_API clattn_status clattn_softmax_run(const clattn_softmax_plan *plan,
                                            const clattn_softmax_call *call);

/// Everything in one line, on contiguous host memory in float32.
/// @param ctx  NULL = the built-in CPU path.
/// @param algo enum clattn_softmax_algo.
/// @param x    [rows, len]
/// @param y    [rows, len], written; may be `x`
/// @param rows Rows.
/// @param len  Entries of a row.
/// @return as clattn_softmax_plan_create() and clattn_softmax_run().
/// Threads: any.
CLATTN_API clattn_status clattn_softmax_f32(clattn_context *ctx, int32_t algo, const float *x,
                                            float *y, int64_t rows, int64_t len);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_SOFTMAX_H
