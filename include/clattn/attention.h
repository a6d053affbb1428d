// SPDX-License-Identifier: Apache-2.0
/// @file attention.h
/// Scaled dot-product attention: a description fixes the kernels, a plan holds them, a call runs
/// them on memory.
///
/// Notation: b batch, h query head, g = floor(h / (heads_q / heads_kv)) key/value head, i query,
/// j key, d channel.
///
///     x[i,j] = scale * sum_d Q[b,h,i,d] * K[b,g,j,d]
///     x      = softcap > 0 ? softcap * tanh(x / softcap) : x
///     x      = x - slope[h] * |i + off - j| + bias[b,h,i,j]
///     l[i]   = sum over visible j of e^(x[i,j] - m[i])  (+ e^(sink[h] - m[i])),
///     m[i]   = max over visible j of x[i,j] (and of the sink)
///     O[i,d] = sum over visible j of e^(x[i,j] - m[i]) / l[i] * V[b,g,j,d]
///     LSE[i] = m[i] + ln l[i]                (natural logarithm, always float32)
///
/// Query i stands at key i + off, where off = len_kv - len_q (bottom-right alignment, the default)
/// or 0 (top-left); each sequence has its own where lengths differ. Key j is visible to it when
/// j < len_kv, i + off - left <= j <= i + off + right in a window (causal: right = 0), the boolean
/// mask is non-zero there and the bias is not -infinity. A pair whose score is -infinity is not
/// visible either.
///
/// A query that sees no key gives O = 0 and LSE = -infinity, never NaN; with a sink LSE = sink.
/// Keys that are hidden contribute nothing, whatever lies in K and V there: NaN or infinity behind
/// mask, window, length or bias never reaches the output. A visible NaN does.
#ifndef CLATTN_ATTENTION_H
#define CLATTN_ATTENTION_H

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A prepared attention: the chosen algorithm, its tile sizes and its compiled kernels.
/// Thread-safety: safe; one plan may be run from several threads at once, each with its own
/// outputs and workspace. The context must outlive it.
typedef struct clattn_plan clattn_plan;

/// Which way of computing is used.
typedef enum clattn_algo {
    CLATTN_ALGO_AUTO = 0,  ///< the best that works on the device
    CLATTN_ALGO_FUSED = 1, ///< one pass over K and V, tiled, on OpenCL (FlashAttention-2 order)
    CLATTN_ALGO_HOST = 2,  ///< the same on the CPU in portable C, no OpenCL
    CLATTN_ALGO_REFERENCE = 3, ///< the definition in double precision, slow; for checking
    /// Two loops over the keys on OpenCL: maximum and sum of each row, then the weighted sum
    CLATTN_ALGO_TWO_LOOP = 4,
    /// Keys in the outer loop, queries inside, on OpenCL (FlashAttention-1 order)
    CLATTN_ALGO_FUSED_KV_OUTER = 5,
    /// As fused, the keys cut into parts that are merged: few queries, long context; on OpenCL
    CLATTN_ALGO_SPLIT_KV = 6,
    /// Scores in memory: a matrix product, softmax of rows, a matrix product, on OpenCL. Needs the
    /// library CLBlast when the plan is made, which compiles for seconds then. Its limits: the
    /// workspace of a call may have up to 2^31 - 1 floats; CLBlast takes device memory of its own
    /// besides, up to as much again; it keeps what it has compiled, and so the cl_context, until
    /// the process ends; calls from several threads take turns while they are queued; on a queue
    /// that is out of order, what was queued before is waited for as by a barrier.
    CLATTN_ALGO_UNFUSED = 7
} clattn_algo;

/// Which shape of the OpenCL kernels is used.
typedef enum clattn_kernel {
    CLATTN_KERNEL_AUTO = 0,  ///< by device facts
    CLATTN_KERNEL_GROUP = 1, ///< a work-group with K/V tiles in local memory (GPUs)
    CLATTN_KERNEL_VECTOR = 2, ///< a work-item with vector lanes as rows (CPUs)
    CLATTN_KERNEL_SUBGROUP = 3 ///< as group, a sub-group owns whole rows; of fused attention
} clattn_kernel;

/// Where query i stands among the keys when len_q != len_kv.
typedef enum clattn_align {
    CLATTN_ALIGN_BOTTOM_RIGHT = 0, ///< at key i + len_kv - len_q (flash-attention 2.1 and later)
    CLATTN_ALIGN_TOP_LEFT = 1      ///< at key i (PyTorch's is_causal)
} clattn_align;

/// Bits of clattn_attention_desc.features: what the calls of this plan will bring.
enum {
    CLATTN_FEATURE_CAUSAL = 1u << 0, ///< key j is hidden when j > i + off
    CLATTN_FEATURE_MASK = 1u << 1,   ///< a boolean mask
    CLATTN_FEATURE_LSE = 1u << 2,    ///< log-sum-exp is written
    CLATTN_FEATURE_WINDOW = 1u << 3, ///< call.window_left and call.window_right
    CLATTN_FEATURE_BIAS = 1u << 4,   ///< an additive bias of desc.dtype_bias
    CLATTN_FEATURE_ALIBI = 1u << 5,  ///< slopes of ALiBi (Press et al., arXiv 2108.12409)
    CLATTN_FEATURE_SOFTCAP = 1u << 6, ///< call.softcap
    /// A score per head that takes weight and has no value (attention sink)
    CLATTN_FEATURE_SINKS = 1u << 7,
    CLATTN_FEATURE_KV_LENS = 1u << 8, ///< each sequence has its own number of keys
    /// Sequences of queries follow each other without padding: call.cu_seqlens_q
    CLATTN_FEATURE_PACKED_Q = 1u << 9,
    /// Sequences of keys follow each other without padding: call.cu_seqlens_kv
    CLATTN_FEATURE_PACKED_KV = 1u << 10,
    CLATTN_FEATURE_PAGED = 1u << 11 ///< K and V are pools of pages of desc.page_size keys
};

/// Bits of clattn_attention_desc.flags.
enum {
    /// Refuse with CLATTN_ERR_UNSUPPORTED rather than fall back from OpenCL to the CPU path.
    CLATTN_NO_FALLBACK = 1u << 0
};

/// Precision of products; see `precision` in clattn_attention_desc.
typedef enum clattn_precision {
    /// float32 arithmetic; but where Q, K, V and O are all bf16, the CPU path multiplies pairs of
    /// such numbers if the CPU can (kernel_name "avx512bf16"): sums and LSE stay float32, weights
    /// are rounded to bf16, which is of the size of the rounding of O, and denormals count as
    /// zeros. Where all are f16, or on OpenCL, a later version may do the like
    CLATTN_PRECISION_DEFAULT = 0,
    CLATTN_PRECISION_FULL = 1     ///< float32 arithmetic always
} clattn_precision;

/// A tile of an OpenCL kernel: how the work is cut, and so what its compiler is given. All zero =
/// the planner's choice. Fields that a kernel shape does not use are 0. docs/planner.md says what
/// they mean; clattn_attention_list_tiles() gives tiles that are worth a try.
typedef struct clattn_tile {
    int32_t kernel;  ///< enum clattn_kernel, AUTO = no tile
    int32_t tile_q;  ///< rows (query, head of a group) a work-group owns
    int32_t tile_k;  ///< keys in a tile
    int32_t items_q; ///< group and subgroup: work-items along rows; a work-group has
                     ///< items_q * items_k
    int32_t items_k; ///< group and subgroup: work-items along keys and channels
    int32_t chunk_d; ///< group and subgroup: channels in local memory at once
    int32_t width;   ///< vector: floats in a vector
    int32_t vecs_q;  ///< vector: vectors of rows; 0 where lanes are channels (split_kv, few rows)
    int32_t block_k; ///< vector: keys whose scores are in registers at a time; 0 likewise
    int32_t block_d; ///< vector: channels of O in registers at a time; 0 likewise
    int32_t reserved[6]; ///< 0
} clattn_tile;

/// What the kernels are compiled for. Zero means default or absent for every field but
/// struct_size, the head counts and the dimensions.
typedef struct clattn_attention_desc {
    size_t struct_size;    ///< set by clattn_attention_desc_init()
    int32_t dtype_q;       ///< enum clattn_dtype of Q; not I8
    int32_t dtype_kv;      ///< enum clattn_dtype of K and V; I8 with call.k_scale and v_scale
    int32_t dtype_o;       ///< enum clattn_dtype of O; not I8
    int32_t dim_qk;        ///< channels of Q and K, 1 to 576
    int32_t dim_v;         ///< channels of V and O, 1 to 576; 0 = dim_qk
    int32_t heads_q;       ///< query heads, at least 1
    int32_t heads_kv;      ///< key/value heads, a divisor of heads_q; 0 = heads_q
    int32_t max_batch;     ///< bound of call.batch; 0 = any
    /// Bound of call.len_q; 0 = any. Tiles are chosen for it, and with all three bounds auto takes
    /// split_kv where few queries and many keys ask for it (decoding)
    int32_t max_len_q;
    int32_t max_len_kv;    ///< bound of call.len_kv; 0 = any. Likewise
    uint32_t features;     ///< CLATTN_FEATURE_* bits
    int32_t align;         ///< enum clattn_align
    int32_t algo;          ///< enum clattn_algo; a forced one is not replaced by another
    int32_t kernel;        ///< enum clattn_kernel; a forced one is not replaced by another
    int32_t precision;     ///< enum clattn_precision
    uint32_t flags;        ///< CLATTN_NO_FALLBACK
    int32_t direction;     ///< 0 = forward; others reserved
    float dropout_p;       ///< reserved, 0
    int32_t num_splits;    ///< split_kv: parts of the keys, 0 = as many as suit; up to 65535
    /// unfused: enum clattn_softmax_algo; 0 = safe. naive overflows from scores of 89 on: O and LSE
    /// of such a row are NaN
    int32_t softmax;
    int32_t dtype_bias; ///< enum clattn_dtype of the bias; not I8
    int32_t page_size;  ///< keys in a page, 1 to 256, with CLATTN_FEATURE_PAGED
    /// Exactly this tile, with `algo` fused, split_kv, two_loop or fused_kv_outer; nothing else is
    /// tried. All zero = one that was measured for this device and these bounds (clattn/tune.h),
    /// else the planner's choice
    clattn_tile tile;
} clattn_attention_desc;

/// Sets every field of `desc` to its default and struct_size to `size`.
/// @param desc NULL is ignored.
/// @param size sizeof(clattn_attention_desc) of the caller.
/// Threads: any.
CLATTN_API void clattn_attention_desc_init(clattn_attention_desc *desc, size_t size);

/// Order of a tensor's axes in memory.
typedef enum clattn_layout {
    CLATTN_LAYOUT_BHSD = 0,   ///< [batch, heads, sequence, dim], contiguous
    CLATTN_LAYOUT_BSHD = 1,   ///< [batch, sequence, heads, dim], contiguous
    CLATTN_LAYOUT_STRIDED = 2 ///< the strides are taken literally, 0 included
} clattn_layout;

/// Memory of Q, K, V or O. The channel axis is contiguous.
typedef struct clattn_tensor {
    clattn_buf buf;       ///< the memory
    int32_t layout;       ///< enum clattn_layout
    int32_t reserved;     ///< 0
    /// Elements, >= 0, read with CLATTN_LAYOUT_STRIDED; else 0, or what the layout makes it
    int64_t stride_batch;
    int64_t stride_head;  ///< likewise; 0 on batch or head of K and V broadcasts
    int64_t stride_seq;   ///< likewise
} clattn_tensor;

/// A boolean mask (one byte an element, non-zero = visible) or an additive bias (added to the
/// score, -infinity = hidden), [batch, heads_q, len_q, len_kv]. Where sequences have lengths of
/// their own, i and j count inside the sequence and what lies beyond its lengths is not read.
typedef struct clattn_mask {
    clattn_buf buf;     ///< the memory
    int32_t layout;     ///< CLATTN_LAYOUT_BHSD (contiguous) or CLATTN_LAYOUT_STRIDED
    int32_t reserved;   ///< 0
    /// Extents [batch, head, query, key]: 1 broadcasts along that axis, else it must be the
    /// call's own; 0 = the call's own.
    int32_t extent[4];
    /// Elements (of a mask: bytes), >= 0, 0 broadcasts, read with CLATTN_LAYOUT_STRIDED; else 0,
    /// or what the layout makes it
    int64_t stride[4];
} clattn_mask;

/// Bits of clattn_attention_call.set: fields that were given although 0 is a legal value.
enum {
    CLATTN_SET_SCALE = 1u << 0, ///< `scale` counts, else 1 / sqrt(dim_qk)
    CLATTN_SET_WINDOW = 1u << 1 ///< window_left and window_right count, else both are -1
};

/// Bits that a call sets in clattn_attention_call.faults.
enum {
    CLATTN_FAULT_LENGTH = 1, ///< a length below 0 or above the tensor was clamped
    CLATTN_FAULT_OFFSETS = 2, ///< offsets of packed sequences were clamped or made monotonic
    CLATTN_FAULT_PAGE = 4    ///< a page number out of the pool; keys there counted as zeros
};

/// One run. Memory stays the caller's and must live until the work is done.
///
/// Lengths, offsets and page numbers in host memory are checked. Those in a cl_mem cannot be: they
/// are clamped to the tensors by the kernels, which say so in `faults`.
typedef struct clattn_attention_call {
    size_t struct_size; ///< set by clattn_attention_call_init()
    uint32_t set;       ///< CLATTN_SET_* bits
    int32_t batch;      ///< sequences; 0 succeeds and writes nothing
    int32_t len_q;      ///< queries, of the longest sequence; 0 succeeds and writes nothing
    int32_t len_kv;     ///< keys, of the longest sequence; 0 gives O = 0 and LSE = -infinity
    float scale;        ///< any finite float, with CLATTN_SET_SCALE
    uint32_t reserved;  ///< 0
    clattn_tensor q;    ///< [batch, heads_q, len_q, dim_qk]; packed [1, heads_q, total_q, dim_qk]
    /// [batch, heads_kv, len_kv, dim_qk]; packed [1, heads_kv, total_kv, dim_qk]; paged [num_pages,
    /// heads_kv, page_size, dim_qk], where `sequence` is the place in the page
    clattn_tensor k;
    clattn_tensor v;    ///< as K with dim_v channels; may lie in K's memory (latent attention)
    /// As Q with dim_v channels, written; fused_kv_outer and unfused also read what they
    /// wrote, for which a cl_mem must not be CL_MEM_WRITE_ONLY
    clattn_tensor o;
    clattn_mask mask;   ///< with CLATTN_FEATURE_MASK
    /// float [batch, heads_q, len_q] contiguous, packed [heads_q, total_q], with CLATTN_FEATURE_LSE
    clattn_buf lse;
    /// A cl_mem of clattn_plan_workspace_bytes() that kernels may read and write, of nobody else
    /// during the call; its contents count neither before nor after. clattn_attention_run()
    /// allocates one where it is absent, clattn_attention_enqueue() refuses. fused, two_loop, host
    /// and reference need none; fused_kv_outer a few floats a row (and O where it is no float),
    /// unfused the scores, split_kv what the parts leave, where it cuts the keys.
    /// CLATTN_ALGO_AUTO can come to split_kv.
    clattn_buf workspace;

    /// With CLATTN_FEATURE_WINDOW and CLATTN_SET_WINDOW: EXTRA keys that a query sees on either
    /// side of its own position, -1 = unlimited. With CLATTN_FEATURE_CAUSAL the right side is 0.
    int32_t window_left;
    int32_t window_right; ///< see window_left
    float softcap;      ///< with CLATTN_FEATURE_SOFTCAP: finite, >= 0; 0 = no cap
    int32_t num_pages;  ///< with CLATTN_FEATURE_PAGED: pages in the pool, 0 only without keys
    /// With CLATTN_FEATURE_PAGED: entries in a row of the page table; len_kv is at most max_pages
    /// times page_size
    int32_t max_pages;
    int32_t total_q;    ///< with CLATTN_FEATURE_PACKED_Q: tokens that Q, O and LSE have room for
    int32_t total_kv;   ///< with CLATTN_FEATURE_PACKED_KV: tokens that K and V have room for
    int32_t alibi_batch; ///< 0: slopes are [heads_q]; 1: [batch, heads_q]
    clattn_mask bias;   ///< with CLATTN_FEATURE_BIAS, of desc.dtype_bias
    clattn_buf alibi;   ///< with CLATTN_FEATURE_ALIBI: float [heads_q] or [batch, heads_q]
    clattn_buf sinks;   ///< with CLATTN_FEATURE_SINKS: float [heads_q]; -infinity = none
    /// With CLATTN_FEATURE_KV_LENS: int32 [batch], keys of each sequence, 0 to len_kv; of packed
    /// keys the first ones of each sequence
    clattn_buf kv_lens;
    /// With CLATTN_FEATURE_PACKED_Q: int32 [batch + 1], not decreasing, 0 to total_q; sequence b
    /// has the tokens cu[b] to cu[b + 1] - 1, at most len_q. O and LSE elsewhere are not written.
    clattn_buf cu_seqlens_q;
    clattn_buf cu_seqlens_kv; ///< with CLATTN_FEATURE_PACKED_KV, likewise by total_kv and len_kv
    /// With CLATTN_FEATURE_PAGED: int32 [batch, max_pages]; key j of sequence b lies in page
    /// table[b][j / page_size] at j % page_size. Entries behind the last key are not read.
    clattn_buf page_table;
    /// With CLATTN_DTYPE_I8: K = k_scale * k8 and V = v_scale * v8. Float, one number for each key,
    /// of K's shape without the channel: [batch, heads_kv, len_kv], packed [1, heads_kv, total_kv],
    /// paged [num_pages, heads_kv, page_size]. The products must be within float; NaN marks a row
    /// that was not finite
    clattn_tensor k_scale;
    clattn_tensor v_scale; ///< see k_scale
    /// Optional, int32, only where lengths, offsets or the table are in a cl_mem: receives
    /// CLATTN_FAULT_* bits by OR, so the caller clears it first
    clattn_buf faults;
} clattn_attention_call;

/// Sets every field of `call` to its default and struct_size to `size`.
/// @param call NULL is ignored.
/// @param size sizeof(clattn_attention_call) of the caller.
/// Threads: any.
CLATTN_API void clattn_attention_call_init(clattn_attention_call *call, size_t size);

/// Checks the description, ranks what could serve it, and prepares the first choice that builds,
/// fits and passes its trial. Compiles OpenCL kernels, so it can take a second.
///
/// @param ctx  Must outlive the plan.
/// @param desc See its fields.
/// @param out  Receives the plan; NULL on failure. Destroy it with clattn_plan_destroy().
/// @return CLATTN_OK                    there is a plan; clattn_plan_get_info() says which
///         CLATTN_ERR_INVALID_ARGUMENT  NULL; a dimension or head count below 1 or over the
///                                      limit; a negative bound; unknown enum values or bits; a
///                                      kernel shape for an algorithm that has none; num_splits
///                                      or softmax for another algorithm, or out of range; a tile
///                                      without the name of an algorithm that has tiles, with
///                                      negative or reserved fields, or of another shape than
///                                      `kernel`
///         CLATTN_ERR_STRUCT_SIZE       desc->struct_size
///         CLATTN_ERR_SHAPE             heads_q is not a multiple of heads_kv
///         CLATTN_ERR_UNSUPPORTED       what is forced can't serve it (a tile that is over the
///                                      device's limits or none of the kernel's, too), or nothing
///                                      can without the fallback that is forbidden, or a reserved
///                                      feature
///         CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///         CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
///         CLATTN_ERR_FILE              a kernel file, or what it includes, can't be read
///         CLATTN_ERR_BUILD, CLATTN_ERR_SELF_TEST, CLATTN_ERR_OPENCL  every choice failed, the last
///                                      one in this way: to build, in the numbers of its trial, or
///                                      in an OpenCL call
/// Threads: any.
CLATTN_API clattn_status clattn_attention_plan_create(clattn_context *ctx,
                                                      const clattn_attention_desc *desc,
                                                      clattn_plan **out);

/// Lists tiles that are worth measuring for the description: the planner's own choice first, then
/// others near its choices, all within the device's limits. Compiles nothing, so a tile of the list
/// may still fail to build; a plan of it says so.
///
/// @param ctx   The device.
/// @param desc  As for a plan, with `algo` fused, split_kv, two_loop or fused_kv_outer; its
///              `kernel` narrows the list to one shape. `tile` is all zero.
/// @param tiles Receives the first `max` of them; may be NULL where `max` is 0.
/// @param max   Room in `tiles`.
/// @param count Receives how many there are, 0 where none can serve.
/// @return CLATTN_OK; what clattn_attention_plan_create() says of the fields of `desc`;
///         CLATTN_ERR_INVALID_ARGUMENT also for NULL, a negative `max`, a tile in `desc`, and an
///         algorithm without tiles; CLATTN_ERR_OUT_OF_MEMORY
/// Threads: any.
CLATTN_API clattn_status clattn_attention_list_tiles(clattn_context *ctx,
                                                     const clattn_attention_desc *desc,
                                                     clattn_tile *tiles, int32_t max,
                                                     int32_t *count);

/// Frees the plan. Work that was enqueued goes on; the plan may be destroyed before it is done.
/// @param plan Receives NULL. NULL and pointers to NULL are ignored.
/// Threads: any, when no other uses the plan.
CLATTN_API void clattn_plan_destroy(clattn_plan **plan);

/// Bytes of workspace a call needs, or with NULL `call` the most any call within the bounds needs.
/// @param plan  From clattn_attention_plan_create().
/// @param call  As for the run; it need not have a workspace here. NULL = any within the bounds.
/// @param bytes Receives the number, 0 where none is needed.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; CLATTN_ERR_OVER_BOUND where it is over
///         SIZE_MAX, or without `call` where the plan, and so the workspace, has no bound; or
///         what clattn_attention_run() would say of the call's fields and buffers (not of what an
///         algorithm can't do). Then *bytes is not written.
/// Threads: any.
CLATTN_API clattn_status clattn_plan_workspace_bytes(const clattn_plan *plan,
                                                     const clattn_attention_call *call,
                                                     size_t *bytes);

/// What a plan chose, and why not the others.
typedef struct clattn_plan_info {
    size_t struct_size;  ///< set by the caller to sizeof(clattn_plan_info)
    int32_t algo;        ///< enum clattn_algo
    int32_t kernel;      ///< enum clattn_kernel; AUTO where the algorithm has no OpenCL kernel
    char algo_name[32];  ///< "fused", "host", "two_loop", ... as the enum says
    char kernel_name[32]; ///< "group", "vector", "subgroup"; for "host" the instruction set
    int32_t tile_q;      ///< rows (query, head of a group) a work-group or thread owns at once
    int32_t tile_k;      ///< keys in a tile
    int32_t group_size;  ///< work-items in a work-group; 1 for "host"
    int32_t vector_width; ///< floats in a vector of the kernel; 0 = scalar work-items
    int32_t chunk_d;     ///< channels of K or V in local memory at once; 0 = no local memory
    size_t local_bytes;  ///< local memory of a work-group, by clattn's own bill
    int32_t is_fallback; ///< 1 where a better-ranked choice was refused or failed
    int32_t num_refusals; ///< for clattn_plan_get_refusal()
    char reason[256];    ///< why this choice
    char build_options[1024]; ///< options the kernel was compiled with; empty without one
    /// Bytes that one sequence (all heads) of max_len_q and max_len_kv moves to and from global
    /// memory, as if no key were hidden; docs/math.md has the formula of each algorithm. 0 where
    /// either bound is absent.
    uint64_t bytes_moved;
    /// Parts that the keys of max_batch sequences (one, where that is absent) of max_len_q and
    /// max_len_kv are cut into; 1 where they are not cut or a bound that decides it is absent.
    int32_t num_splits;
    /// The tile, as clattn_attention_desc.tile takes it; all zero where the algorithm has none
    clattn_tile tile;
} clattn_plan_info;

/// Says what a plan chose.
/// @param plan From clattn_attention_plan_create().
/// @param info Its struct_size is set by the caller.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; CLATTN_ERR_STRUCT_SIZE for one that
///         ends before `build_options` does; one larger than this library's gets what there is.
/// Threads: any.
CLATTN_API clattn_status clattn_plan_get_info(const clattn_plan *plan, clattn_plan_info *info);

/// One of the choices that rank before the plan's own, and why it was not taken.
/// @param plan From clattn_attention_plan_create().
/// @param n    0 to num_refusals - 1 of clattn_plan_info.
/// @return "who: why", which lives as long as the plan; NULL past the end.
/// Threads: any.
CLATTN_API const char *clattn_plan_get_refusal(const clattn_plan *plan, int32_t n);

/// Runs one forward pass and waits for it. Each buffer is host memory or clattn_mem_create()'s or
/// the application's cl_mem. Host memory is copied to and from the device where it must be, each
/// buffer whole in each call: a cache of keys and values that lives longer belongs in a
/// clattn_mem_create() or cl_mem, while Q, O, lengths and tables may stay in host memory.
///
/// @param plan From clattn_attention_plan_create().
/// @param call Lengths within the plan's bounds, and memory.
/// @return CLATTN_OK                    done
///         CLATTN_ERR_INVALID_ARGUMENT  NULL; a negative length; a scale that is not finite, or is
///                                      given without its bit; unknown bits, layouts or kinds of
///                                      buffer; reserved fields that are not 0; a host pointer or
///                                      an offset that is not a multiple of the element size; a
///                                      buffer or count of a feature that the plan has not; a
///                                      soft-cap or window out of range; offsets that fall or leave
///                                      the tensor; a page number out of the pool
///         CLATTN_ERR_STRUCT_SIZE       call->struct_size
///         CLATTN_ERR_OVER_BOUND        batch, len_q or len_kv over the plan's bound
///         CLATTN_ERR_SHAPE             a mask or bias extent; batch * heads * length overflows, or
///                                      len_q times query heads a key head is over 2^31 - 1; a
///                                      sequence is longer than len_q or len_kv; len_kv is more
///                                      than the page table has room for, or there are no pages
///         CLATTN_ERR_STRIDE            a stride is negative or reaches beyond 64 bits, or elements
///                                      of O overlap; one is set and the layout, which is not
///                                      CLATTN_LAYOUT_STRIDED, makes it another
///         CLATTN_ERR_BUFFER_MISSING    a buffer that the plan's features ask for is absent or its
///                                      pointer NULL; a cl_mem that is no buffer, or without
///                                      OpenCL;
///                                      a workspace that is needed and host memory
///         CLATTN_ERR_BUFFER_TOO_SMALL  one of them is short, or its offset beyond its end
///         CLATTN_ERR_OVERLAP           O, LSE or workspace overlaps an input or each other, also
///                                      through sub-buffers of one cl_mem
///         CLATTN_ERR_WRONG_CONTEXT     a cl_mem is of another cl_context than the plan's
///         CLATTN_ERR_UNSUPPORTED       a fault of the driver bars so many keys, and the CPU path,
///                                      which would take over, was ruled out; or the scores of
///                                      CLATTN_ALGO_UNFUSED are too many, or the rows for one
///                                      launch on a 32-bit host; nothing was written
///         CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///         CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
///         CLATTN_ERR_OPENCL            another OpenCL failure; the output is undefined
/// Threads: one plan may be run from several threads, each with its own outputs and workspace.
CLATTN_API clattn_status clattn_attention_run(const clattn_plan *plan,
                                              const clattn_attention_call *call);

/// Does everything ahead that the first call of these lengths would do beside its work: runs one
/// such call on memory of its own, whose contents are of no interest. Drivers that compile a second
/// time at launch (PoCL, for large ranges), and CLBlast for another size, have done so then. A call
/// needs no warm-up; clattn itself compiles nothing after clattn_attention_plan_create().
///
/// Takes memory for O, LSE and a workspace of a call of these lengths; inputs are broadcast from
/// one row.
/// @param plan   From clattn_attention_plan_create().
/// @param batch  Sequences of the calls to come.
/// @param len_q  Their queries.
/// @param len_kv Their keys.
/// @return CLATTN_OK, also where a length is 0 (nothing is done); what clattn_attention_run() says.
/// Threads: as clattn_attention_run().
CLATTN_API clattn_status clattn_plan_warm_up(const clattn_plan *plan, int32_t batch, int32_t len_q,
                                             int32_t len_kv);

/// Everything in one line, on contiguous [batch, heads, length, dim] host memory in float32 with
/// the default scale. Makes a plan, or takes the one that the context keeps from an equal call.
///
/// @param ctx NULL = a context for this call alone, on the best device, which costs its start-up
///            each time.
/// @param q   [batch, heads_q, len_q, dim]
/// @param k   [batch, heads_kv, len_kv, dim]
/// @param v   [batch, heads_kv, len_kv, dim]
/// @param o   [batch, heads_q, len_q, dim], written
/// @param batch    Sequences.
/// @param heads_q  Query heads, a multiple of heads_kv.
/// @param heads_kv Key/value heads, at least 1.
/// @param len_q    Queries of each sequence.
/// @param len_kv   Keys of each sequence.
/// @param dim      Channels, 1 to 576.
/// @param causal   Not 0 = causal, bottom-right aligned.
/// @return as clattn_attention_plan_create() and clattn_attention_run(), where `ctx` is NULL as
///         clattn_context_create() too; CLATTN_ERR_INVALID_ARGUMENT also for heads_kv 0.
/// Threads: any.
CLATTN_API clattn_status clattn_attention_f32(clattn_context *ctx, const float *q, const float *k,
                                              const float *v, float *o, int32_t batch,
                                              int32_t heads_q, int32_t heads_kv, int32_t len_q,
                                              int32_t len_kv, int32_t dim, int causal);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_ATTENTION_H
