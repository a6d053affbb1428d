// SPDX-License-Identifier: Apache-2.0
// What the host and the kernels must agree on: the argument block, buffer slots and the
// local-memory bill. Read by C11 and by OpenCL C 1.2, so only fixed-width scalars, 64-bit first.
#ifndef CLA_ABI_H
#define CLA_ABI_H

#ifdef __OPENCL_VERSION__
typedef long cla_i64;
typedef int cla_i32;
typedef uint cla_u32;
#else
#include <stdint.h>
typedef int64_t cla_i64;
typedef int32_t cla_i32;
typedef uint32_t cla_u32;
#endif

#ifdef __OPENCL_VERSION__
// Attribute of a kernel. SUBGROUP_LANES, a literal of all kernels on devices whose compiler would
// give an item too few registers: items of a sub-group (cla_caps_lanes()).
#ifdef SUBGROUP_LANES
#define FEW_LANES __attribute__((intel_reqd_sub_group_size(SUBGROUP_LANES)))
#else
#define FEW_LANES
#endif
#endif

// A strided tensor: offsets and strides in elements, the channel is contiguous.
struct cla_fwd_tensor {
    cla_i64 offset;
    cla_i64 stride_b;
    cla_i64 stride_h;
    cla_i64 stride_s;
};

// The boolean mask or the bias: offsets and strides in elements; 0 broadcasts.
struct cla_fwd_mask {
    cla_i64 offset;
    cla_i64 stride_b;
    cla_i64 stride_h;
    cla_i64 stride_q;
    cla_i64 stride_k;
};

// Argument block of every forward kernel, passed by value in slot CLA_SLOT_ARGS.
//
// A tile row is a pair (query, head of the group): row r of key head g is query i = r / group,
// query head h = g * group + r % group, so that grouped heads share every read of K and V.
struct cla_fwd_args {
    struct cla_fwd_tensor q;
    struct cla_fwd_tensor k;
    struct cla_fwd_tensor v;
    struct cla_fwd_tensor o;
    struct cla_fwd_tensor k_scale; // of int8 keys, a float for each
    struct cla_fwd_tensor v_scale;
    struct cla_fwd_mask mask;
    struct cla_fwd_mask bias;
    cla_i64 lse_offset; // floats
    cla_i64 lse_stride_b;
    cla_i64 lse_stride_h;
    cla_i64 workspace_offset; // floats
    cla_i64 alibi_offset; // floats
    cla_i64 alibi_stride_b;
    cla_i64 sinks_offset;  // floats
    cla_i64 kv_lens_offset; // ints, as all below
    cla_i64 cu_q_offset;
    cla_i64 cu_kv_offset;
    cla_i64 table_offset;
    cla_i64 faults_offset;
    cla_i32 batch;
    cla_i32 heads_q;
    cla_i32 heads_kv;
    cla_i32 group; // heads_q / heads_kv
    // Lengths of the longest sequence, until enter_sequence() makes them those of one: the same for
    // off, win_lo, win_hi.
    cla_i32 len_q;
    cla_i32 len_kv;
    cla_i32 max_len_q; // of the longest sequence always: rows of the workspace
    cla_i32 off; // query i stands at key i + off
    cla_i32 left; // extra keys of the window, -1 = unlimited; causal is right = 0
    cla_i32 right;
    // Query i sees key j when win_lo <= j - i <= win_hi (and j < len_kv). Causal: win_hi = off.
    // Unlimited sides are CLA_WIN_MIN / CLA_WIN_MAX; i + win_hi is computed in 64 bits.
    cla_i32 win_lo;
    cla_i32 win_hi;
    cla_i32 total_q; // tokens of packed sequences
    cla_i32 total_kv;
    cla_i32 page_size;
    cla_i32 num_pages; // in the pool
    cla_i32 max_pages; // entries of a row of the table
    float softcap; // 0 = none
    // The score is post_scale * dot(scale * Q, K); one of the two is 1, see score.clh.
    float scale;
    float post_scale;
    cla_u32 flags; // CLA_FWD_* bits
    cla_i32 num_tiles; // query tiles per (batch, key head)
    cla_i32 num_splits; // parts that the keys are cut into, 1 where an algorithm doesn't cut them
    cla_i32 reserved; // no padding at the end: Mesa's rusticl leaves it out of the argument's size
};

// Workspace of split keys, in floats from workspace_offset on. Row r of (batch b, key head g) is
// n = (b * heads_kv + g) * max_len_q * group + r of `rows` = batch * heads_q * max_len_q.
//   O of part k of row n at CLA_PART_O, normalised; its maximum m and then its sum l at CLA_PART_ML
#define CLA_PART_O(n, k, num_splits, dim_v) (((n) * (num_splits) + (k)) * (dim_v))
#define CLA_PART_ML(rows, n, k, num_splits, dim_v)                                                 \
    ((rows) * (num_splits) * (dim_v) + 2 * ((n) * (num_splits) + (k)))

#define CLA_WIN_MIN (-2147483647)
#define CLA_WIN_MAX (2147483647)

// cla_fwd_args.flags
#define CLA_FWD_HAS_LSE 1u  // slot CLA_SLOT_LSE is bound
#define CLA_FWD_HAS_MASK 2u // slot CLA_SLOT_MASK is bound
#define CLA_FWD_ALIGNED16 4u // dims, offsets and strides of q, k, v, o are multiples of 4 floats
#define CLA_FWD_LONG_ROWS 8u // fused_kv_outer: the workspace has room for rounding errors
#define CLA_FWD_HAS_BIAS 16u
#define CLA_FWD_BIAS_F16 32u // its type; neither of the two: float
#define CLA_FWD_BIAS_BF16 64u
#define CLA_FWD_HAS_ALIBI 128u
#define CLA_FWD_HAS_SINKS 256u
#define CLA_FWD_HAS_KV_LENS 512u
#define CLA_FWD_PACKED_Q 1024u
#define CLA_FWD_PACKED_KV 2048u
#define CLA_FWD_RAGGED (CLA_FWD_HAS_KV_LENS | CLA_FWD_PACKED_Q | CLA_FWD_PACKED_KV)
#define CLA_FWD_TOP_LEFT 4096u // alignment, else bottom-right
#define CLA_FWD_HAS_FAULTS 8192u

// Kernel argument slots, the same in every forward kernel. An absent buffer is a NULL cl_mem.
#define CLA_SLOT_ARGS 0
#define CLA_SLOT_Q 1
#define CLA_SLOT_K 2
#define CLA_SLOT_V 3
#define CLA_SLOT_O 4
#define CLA_SLOT_LSE 5
#define CLA_SLOT_MASK 6
#define CLA_SLOT_WORKSPACE 7
#define CLA_SLOT_BIAS 8
#define CLA_SLOT_ALIBI 9
#define CLA_SLOT_SINKS 10
#define CLA_SLOT_KV_LENS 11
#define CLA_SLOT_CU_Q 12
#define CLA_SLOT_CU_KV 13
#define CLA_SLOT_TABLE 14
#define CLA_SLOT_K_SCALE 15
#define CLA_SLOT_V_SCALE 16
#define CLA_SLOT_FAULTS 17
#define CLA_SLOTS 18

// What went wrong with numbers on the device; equal to CLATTN_FAULT_*.
#define CLA_FAULT_LENGTH 1
#define CLA_FAULT_OFFSETS 2
#define CLA_FAULT_PAGE 4

// Behind these in unfused_scores and unfused_finish: struct cla_unfused_args.
#define CLA_UNFUSED_SLOT CLA_SLOTS

// MASK_KIND, a literal of the forward kernels.
#define CLA_MASK_NONE 0    // only j < len_kv
#define CLA_MASK_WINDOW 1  // causal or window: win_lo, win_hi
#define CLA_MASK_GENERAL 2 // window, boolean mask, bias, ALiBi and soft-cap, each where it is there

// SUBGROUPS, a literal of the group shape.
#define CLA_SUBGROUPS_NONE 0
#define CLA_SUBGROUPS_REQUIRED 1 // of the size that is asked for
#define CLA_SUBGROUPS_SHUFFLE 2  // of the device's own size, values go between lanes

// Argument block of the row softmax kernels, by value in slot 0; then X, Y, LSE, workspace.
// Offsets, strides and lengths in elements. A row is cut into `parts` parts of `part_len`, the last
// one may be shorter; the workspace has a maximum and a sum for each part of each row.
struct cla_softmax_args {
    cla_i64 x_offset;
    cla_i64 y_offset;
    cla_i64 lse_offset;
    cla_i64 workspace_offset;
    cla_i64 stride_x;
    cla_i64 stride_y;
    cla_i64 len;
    cla_i64 part_len;
    cla_i32 parts;
    cla_u32 flags; // CLA_FWD_HAS_LSE, CLA_SOFTMAX_STREAM
    float scale;
    cla_i32 reserved;
};

// cla_softmax_args.flags, beside CLA_FWD_HAS_LSE
#define CLA_SOFTMAX_STREAM 2u // Y is larger than caches and is not X

// Rows of unfused attention that are copied into the workspace: a tensor of [batch, heads, len]
// rows of `dim`. `to`, `marks` and `any` are floats (or ints) from the start of the workspace's
// memory.
struct cla_unfused_copy {
    struct cla_fwd_tensor from;
    cla_i64 to;
    cla_i64 ld;    // floats between rows
    cla_i64 marks; // one int a row, not 0 where the row is not finite
    cla_i64 any;   // one int for each (batch, head), not 0 where a row of it is not finite
    cla_i64 rows;  // batch * heads * len
    cla_i32 heads;
    cla_i32 len;
    cla_i32 dim;
    cla_i32 mark; // not 0 = rows that are not finite are 0 in the copy, and marked
    cla_i32 dtype; // CLA_DTYPE_* of what is copied, to float
    cla_i32 reserved; // no padding at the end: Mesa's rusticl leaves it out of the argument's size
};

// Where things are in the workspace of unfused attention, as above.
struct cla_unfused_args {
    cla_i64 scores; // [batch * heads_q * len_q] rows of len_kv
    cla_i64 ld_scores;
    cla_i64 o; // likewise rows of dim_v, `parts_o` times
    cla_i64 ld_o;
    cla_i64 marks;
    cla_i64 any;
    cla_i64 rows; // batch * heads_q * len_q
    cla_i32 parts_o; // of the keys, whose outputs are summed up; 0 = O itself has the sum
    cla_i32 naive; // not 0 = rows that see nothing are 0 / 0 after softmax
};

// SOFTMAX_ALGO, a literal of softmax.cl; equal to enum clattn_softmax_algo.
#define CLA_SOFTMAX_NAIVE 1
#define CLA_SOFTMAX_SAFE 2
#define CLA_SOFTMAX_ONLINE 3

// DTYPE_*, literals of the kernels; equal to enum clattn_dtype.
#define CLA_DTYPE_F32 0
#define CLA_DTYPE_F16 1
#define CLA_DTYPE_BF16 2
#define CLA_DTYPE_I8 3

// Group shape: floats between the starts of neighbouring rows of Q, K or V in local memory. Rows
// are read and written as quads (float4); an odd number of quads to a row lets 8 rows that follow
// each other start in 8 different groups of 4 banks.
#define CLA_ROUND_UP4(x) (((x) + 3) / 4 * 4)
#define CLA_QUADS(n) (((n) + 3) / 4)
#define CLA_GROUP_PITCH(chunk_d) (4 * (CLA_QUADS(chunk_d) | 1))

// The same for a row of P. Under 8 quads neighbouring items reach over several rows, which then
// must follow each other without a gap.
#define CLA_GROUP_PITCH_P(tile_k)                                                                  \
    (4 * (CLA_QUADS(tile_k) < 8 ? CLA_QUADS(tile_k) : (CLA_QUADS(tile_k) | 1)))

// Group shape: the local-memory bill of a work-group in bytes. tile_q x tile_k is the tile, chunk_d
// the channels of Q, K or V that lie in local memory at once (K and V share one buffer); all three
// are multiples of 4 but tile_q, which may be anything.
//   Q chunk   [tile_q][pitch(chunk_d)]   float
//   K/V chunk [tile_k][pitch(chunk_d)]   float
//   P         [tile_q][pitch_p(tile_k)]  float
//   part      [tile_q][tile_k / 4]       float   each item's part of a row's maximum or sum,
//                                                rounded up to 4 in all
//   flag      [4]                        int
#define CLA_GROUP_LOCAL_FLOATS(tile_q, tile_k, chunk_d)                                            \
    ((tile_q)*CLA_GROUP_PITCH(chunk_d) + (tile_k)*CLA_GROUP_PITCH(chunk_d) +                       \
     (tile_q)*CLA_GROUP_PITCH_P(tile_k) + CLA_ROUND_UP4((tile_q) * ((tile_k) / 4)) + 4)
#define CLA_GROUP_LOCAL_BYTES(tile_q, tile_k, chunk_d)                                             \
    (4 * CLA_GROUP_LOCAL_FLOATS(tile_q, tile_k, chunk_d))

// fused_kv_outer: a chunk that has all channels of Q, K and V lets a tile of K and one of V stay in
// local memory side by side, the one beside the bill above.
#define CLA_GROUP_KEPT_BYTES(tile_k, chunk_d) (4 * (tile_k)*CLA_GROUP_PITCH(chunk_d))

// fused_kv_outer: floats of workspace for each row of a tile of rows, real or not. A tile has
//   m [tile_q], l [tile_q], under CLA_FWD_LONG_ROWS the rounding errors of l [tile_q] and of half
//   of O [tile_q * dim_v rounded up to 4], and where O's type is no float O itself, likewise
#define CLA_KV_OUTER_ROW_FLOATS(dim_v, long_rows, own_o)                                           \
    (((long_rows) ? 3 + CLA_ROUND_UP4(dim_v) : 2) + ((own_o) ? CLA_ROUND_UP4(dim_v) : 0))

#endif // CLA_ABI_H
