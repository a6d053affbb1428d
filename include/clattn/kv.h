// SPDX-License-Identifier: Apache-2.0
/// @file kv.h
/// What stands around attention: merging results over disjoint keys, rotary position embedding,
/// appending new keys and values to a cache, int8.
///
/// Each operation runs on the context's OpenCL device, or on the CPU path where the context is the
/// built-in one. Its kernel is compiled when a call first needs it, and kept by the context. Where
/// that fails the CPU path takes over with a warning, unless CLATTN_NO_FALLBACK forbids it. A call
/// of one row compiles what larger ones of the same types need.
///
/// In the blocking calls each buffer is host memory, clattn_mem_create()'s or the application's
/// cl_mem; the calls for queues are in opencl.h. Memory stays the caller's and must live until the
/// work is done. What is found wrong before the work begins leaves every output as it was; a
/// message of the log names the field and its value.
///
/// Status of clattn_merge_run(), clattn_rotary_run() and clattn_append_run():
///
///     CLATTN_OK                    done
///     CLATTN_ERR_INVALID_ARGUMENT  NULL; a negative count, a head or channel count below 1;
///                                  unknown enum values, bits, layouts or kinds of buffer;
///                                  reserved fields that are not 0; what the fields say beside
///     CLATTN_ERR_STRUCT_SIZE       call->struct_size
///     CLATTN_ERR_SHAPE             a product of extents overflows; what the fields say beside
///     CLATTN_ERR_STRIDE            a stride is negative or reaches beyond 64 bits, or elements of
///                                  an output overlap; one is set beside another layout
///     CLATTN_ERR_BUFFER_MISSING    a buffer that is needed is absent; a cl_mem without OpenCL
///     CLATTN_ERR_BUFFER_TOO_SMALL  one of them is short
///     CLATTN_ERR_OVERLAP           an output overlaps another buffer without being it
///     CLATTN_ERR_WRONG_CONTEXT     a cl_mem is of another cl_context
///     CLATTN_ERR_UNSUPPORTED       int8, where only caches may have it; more than 2^30 channels;
///                                  more rows than a launch on a 32-bit host can have
///     CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///     CLATTN_ERR_FILE, CLATTN_ERR_BUILD  the kernel, with CLATTN_NO_FALLBACK
///     CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
///     CLATTN_ERR_OPENCL            another OpenCL failure; the output is undefined
#ifndef CLATTN_KV_H
#define CLATTN_KV_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- merging -----------------------------------------------------------------------------------

/// The bound of clattn_merge_call.num_parts.
enum {
    CLATTN_MERGE_MAX_PARTS = 8 ///< in one call; more are merged in several, in place
};

/// Attention over several sets of keys that have none in common, made one, as if it had been
/// computed over all of them. Part k has O_k and LSE_k, computed without the sink:
///
///     m   = max over k of LSE_k (and of the sink)
///     w_k = e^(LSE_k - m),   l = sum over k of w_k (+ e^(sink[h] - m))
///     O   = sum over k of w_k / l * O_k,   LSE = m + ln l
///
/// A row with LSE_k = -infinity is empty (+infinity counts as that too): its O_k is not read. A row
/// of one part that is not empty, without a sink, stays bit for bit what it was; with none at all
/// O = 0 and LSE = -infinity, or the sink. NaN in LSE_k makes the row NaN, as does a sink of NaN or
/// +infinity; a sink of -infinity is none.
typedef struct clattn_merge_call {
    size_t struct_size;   ///< set by clattn_merge_call_init()
    uint32_t flags;       ///< CLATTN_NO_FALLBACK (attention.h)
    int32_t num_parts;    ///< 1 to CLATTN_MERGE_MAX_PARTS
    int32_t batch;        ///< 0 succeeds and writes nothing
    int32_t heads;        ///< query heads, at least 1
    int32_t len_q;        ///< queries; 0 succeeds and writes nothing
    int32_t dim_v;        ///< channels of O, at least 1
    int32_t dtype_parts;  ///< enum clattn_dtype of every O_k: f32, f16 or bf16
    int32_t dtype_o;      ///< enum clattn_dtype of O: f32, f16 or bf16
    /// [num_parts] tensors O_k [batch, heads, len_q, dim_v]
    const clattn_tensor *parts;
    const clattn_buf *parts_lse; ///< [num_parts] buffers LSE_k, float [batch, heads, len_q]
    clattn_buf sinks;     ///< optional, float [heads]
    /// [batch, heads, len_q, dim_v], written. May be one of the parts: the same memory, strides and
    /// type
    clattn_tensor o;
    clattn_buf lse; ///< optional, float [batch, heads, len_q], written; may be one of parts_lse
} clattn_merge_call;

/// Sets every field of `call` to its default and struct_size to `size`.
/// @param call NULL is ignored.
/// @param size sizeof(clattn_merge_call) of the caller.
/// Threads: any.
CLATTN_API void clattn_merge_call_init(clattn_merge_call *call, size_t size);

/// Merges and waits.
/// @param ctx  The device.
/// @param call Extents and memory.
/// @return see the head of kv.h.
/// Threads: any, each with its own outputs.
CLATTN_API clattn_status clattn_merge_run(clattn_context *ctx, const clattn_merge_call *call);

// ---- int8 --------------------------------------------------------------------------------------

/// Rounds rows of floats in host memory to int8 with a scale each, as CLATTN_DTYPE_I8 of attention
/// takes them:
///
///     scale[r] = max over d of |x[r,d]| / 127,   out[r,d] = x[r,d] / scale[r], to the nearest
///
/// ties to even, -127 to 127. A row of zeros has the scale 0. |x - scale * out| is at most half of
/// the scale, but for float's own rounding.
/// @param ctx    Its log receives the message of a failure; NULL = silent.
/// @param x      Rows of `dim` floats, `stride` floats apart.
/// @param rows   How many; 0 writes nothing.
/// @param dim    Channels of a row.
/// @param stride At least `dim`; 0 = dim.
/// @param out    [rows, dim], contiguous.
/// @param scale  [rows]
/// @return CLATTN_OK                    done
///         CLATTN_ERR_INVALID_ARGUMENT  NULL, a negative number, the stride's too, dim below 1, or
///                                      an element that is not finite, whose row the message
///                                      names; nothing was written
///         CLATTN_ERR_STRIDE            stride below dim, or rows * stride overflows
/// Threads: any.
CLATTN_API clattn_status clattn_quantize_i8(clattn_context *ctx, const float *x, int64_t rows,
                                            int64_t dim, int64_t stride, int8_t *out, float *scale);

// ---- rotary position embedding -----------------------------------------------------------------

/// Which channels are turned together.
typedef enum clattn_rotary_pairs {
    CLATTN_ROTARY_INTERLEAVED = 0, ///< 2t and 2t + 1
    CLATTN_ROTARY_HALF_SPLIT = 1   ///< t and t + R/2
} clattn_rotary_pairs;

/// Bits that clattn_rotary_call.faults and clattn_append_call.faults receive beside CLATTN_FAULT_*
/// of attention.h.
enum {
    CLATTN_FAULT_POSITION = 8, ///< a position outside the tables; the nearest one counted
    CLATTN_FAULT_ROOM = 16     ///< a new row lies behind the cache; it was not written
};

/// Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864): of the R = `dim` first
/// channels, pair t of the token at position p is turned by an angle that the tables hold as
/// cos[p][t] and sin[p][t], usually p * base^(-2t/R):
///
///     x' = x * cos - y * sin,   y' = x * sin + y * cos        for the pair (x, y)
///
/// Token i of sequence b is at position start + offsets[b] + i.
typedef struct clattn_rotary {
    int32_t dim;       ///< R: even, up to the tensor's channels; the channels behind pass
    int32_t pairs;     ///< enum clattn_rotary_pairs
    int32_t positions; ///< rows of the tables, at least 1
    int32_t start;     ///< added to every position
    /// int32 [batch]; absent = 0, of an append the length before. In host memory a position
    /// outside the tables is refused (CLATTN_ERR_SHAPE); else CLATTN_FAULT_POSITION says so.
    clattn_buf offsets;
    clattn_buf cos_table; ///< float [positions, R/2]
    clattn_buf sin_table; ///< float [positions, R/2]
} clattn_rotary;

/// Computes tables for clattn_rotary in double precision: the cosine and sine of p * base^(-2t/R),
/// [positions, R/2].
/// @param positions  Rows of the tables; 0 writes nothing.
/// @param rotary_dim R.
/// @param base       0 = 10000, else over 0 and finite.
/// @param cos_table  [positions, R/2], written
/// @param sin_table  [positions, R/2], written
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL, a negative number of positions, an R
///         that is odd or below 2, or the base.
/// Threads: any.
CLATTN_API clattn_status clattn_rotary_tables(int32_t positions, int32_t rotary_dim, double base,
                                              float *cos_table, float *sin_table);

/// One rotation of queries or keys.
typedef struct clattn_rotary_call {
    size_t struct_size; ///< set by clattn_rotary_call_init()
    uint32_t flags;     ///< CLATTN_NO_FALLBACK (attention.h)
    int32_t dtype;      ///< enum clattn_dtype of X and Y: f32, f16 or bf16
    int32_t batch;      ///< 0 succeeds and writes nothing
    int32_t heads;      ///< at least 1
    int32_t len;        ///< tokens; 0 succeeds and writes nothing
    int32_t dim;        ///< channels
    clattn_rotary rotary; ///< `dim` of it may not be 0
    clattn_tensor x;    ///< [batch, heads, len, dim]
    clattn_tensor y;    ///< likewise, written; may be X: the same memory and strides
    clattn_buf faults;  ///< optional int32, receives CLATTN_FAULT_POSITION by OR; clear it first
} clattn_rotary_call;

/// Sets every field of `call` to its default and struct_size to `size`.
/// @param call NULL is ignored.
/// @param size sizeof(clattn_rotary_call) of the caller.
/// Threads: any.
CLATTN_API void clattn_rotary_call_init(clattn_rotary_call *call, size_t size);

/// Rotates and waits.
/// @param ctx  The device.
/// @param call Extents and memory.
/// @return see the head of kv.h.
/// Threads: any, each with its own outputs.
CLATTN_API clattn_status clattn_rotary_run(clattn_context *ctx, const clattn_rotary_call *call);

// ---- appending to a cache ----------------------------------------------------------------------

/// New keys and values, written behind those that a cache holds: token i of sequence b becomes row
/// lens[b] + i. After it the caller's lengths count: clattn does not change them.
///
/// The cache is contiguous, or pages as CLATTN_FEATURE_PAGED has them: row j of sequence b is row
/// j % page_size of page page_table[b][j / page_size]. In int8 (CLATTN_DTYPE_I8) each row gets a
/// scale as clattn_quantize_i8() gives it, to the last bit where the device divides exactly, as
/// CPUs do, else to 2.5 ulp and a step next to ties; one that is not finite gets zeros and the
/// scale NaN. Keys can be turned on the way, before they are rounded to the cache's type.
///
/// Sequences may share pages that are read, as of a common beginning, but a page that gets rows
/// must be one sequence's: where two write the same row, each element and scale is of one or the
/// other.
///
/// Numbers in host memory are checked: a row without room or without a page is refused before
/// anything is written. Those in a cl_mem are checked by the kernel: a length below 0 counts as 0,
/// one above the cache or above len_new as that, a row without room or page is not written, and
/// `faults` says so.
///
/// Where both caches are host memory the CPU path does it, without moving them to a device; but
/// attention on a device copies such a cache in each call, so it is better in a
/// clattn_mem_create(). Caches
/// of K and V may interleave in one memory, as [num_pages, 2, page_size, heads, dim] does it, if
/// they have the same strides; there is no fallback to the CPU path then.
typedef struct clattn_append_call {
    size_t struct_size;   ///< set by clattn_append_call_init()
    uint32_t flags;       ///< CLATTN_NO_FALLBACK (attention.h)
    int32_t dtype_new;    ///< enum clattn_dtype of k_new and v_new: f32, f16 or bf16
    int32_t dtype_cache;  ///< enum clattn_dtype of the caches
    int32_t batch;        ///< sequences; 0 succeeds and writes nothing
    int32_t heads;        ///< key/value heads, at least 1
    int32_t len_new;      ///< tokens that k_new and v_new have for each; 0 writes nothing
    int32_t dim_k;        ///< channels of K
    int32_t dim_v;        ///< channels of V; 0 = dim_k
    int32_t capacity;     ///< contiguous: rows of a cache; of pages 0
    int32_t page_size;    ///< rows in a page; 0 = contiguous
    int32_t num_pages;    ///< pages in the pool
    int32_t max_pages;    ///< entries in a row of the page table
    clattn_tensor k_new;  ///< [batch, heads, len_new, dim_k]
    clattn_tensor v_new;  ///< likewise with dim_v; absent with v_cache = keys only
    /// [batch, heads, capacity, dim_k], or the pool [num_pages, heads, page_size, dim_k]; written
    clattn_tensor k_cache;
    clattn_tensor v_cache; ///< likewise with dim_v
    clattn_tensor k_scale; ///< with CLATTN_DTYPE_I8: float, of the cache's shape without channel
    clattn_tensor v_scale; ///< see k_scale
    clattn_buf page_table; ///< with pages: int32 [batch, max_pages]
    clattn_buf lens;       ///< int32 [batch], rows that are there already; absent = 0
    clattn_buf new_lens;   ///< int32 [batch], tokens that count, 0 to len_new; absent = len_new
    clattn_rotary rotary;  ///< of K; its `dim` 0 = not turned
    clattn_buf faults;     ///< optional int32, receives CLATTN_FAULT_* by OR; clear it first
} clattn_append_call;

/// Sets every field of `call` to its default and struct_size to `size`.
/// @param call NULL is ignored.
/// @param size sizeof(clattn_append_call) of the caller.
/// Threads: any.
CLATTN_API void clattn_append_call_init(clattn_append_call *call, size_t size);

/// Appends and waits.
/// @param ctx  The device.
/// @param call Extents and memory.
/// @return see the head of kv.h; CLATTN_ERR_SHAPE where a sequence has no room,
///         CLATTN_ERR_INVALID_ARGUMENT where a page is missing.
/// Threads: any, each with its own rows of the caches.
CLATTN_API clattn_status clattn_append_run(clattn_context *ctx, const clattn_append_call *call);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_KV_H
