// SPDX-License-Identifier: Apache-2.0
// Argument blocks of the operations around attention, by value in slot 0; the buffers follow in the
// order in which each kernel names them, an absent one is NULL. As abi.h: C11 and OpenCL C 1.2,
// 64-bit fields first. Offsets and strides in elements.
#ifndef CLA_KV_ABI_H
#define CLA_KV_ABI_H

#include "abi.h"

#define CLA_FAULT_POSITION 8 // equal to CLATTN_FAULT_POSITION
#define CLA_FAULT_ROOM 16    // equal to CLATTN_FAULT_ROOM

// Flags beside CLA_FWD_*.
#define CLA_KV_HALF_SPLIT 1u  // pairs of channels are t and t + dim / 2, else 2t and 2t + 1
#define CLA_KV_HAS_OFFSETS 2u // the slot of the sequences' first positions is bound
#define CLA_KV_HAS_LENS 4u    // likewise of their lengths
#define CLA_KV_HAS_NEW 8u     // likewise of their numbers of new tokens

// ---- rotary.clh --------------------------------------------------------------------------------

struct cla_rotary_args {
    cla_i64 offsets; // ints, with CLA_KV_HAS_OFFSETS
    cla_i64 cos_table; // floats
    cla_i64 sin_table;
    cla_i32 dim; // channels that are turned, 0 = none
    cla_i32 positions;
    cla_i32 start;
    cla_u32 flags; // CLA_KV_HALF_SPLIT, CLA_KV_HAS_OFFSETS
};

// ---- rotary.cl ---------------------------------------------------------------------------------

struct cla_rotate_args {
    struct cla_fwd_tensor x;
    struct cla_fwd_tensor y;
    struct cla_rotary_args rotary;
    cla_i64 faults; // ints
    cla_i32 heads;
    cla_i32 len;
    cla_i32 dim;
    cla_u32 flags; // CLA_FWD_HAS_FAULTS
};

// ---- append.cl ---------------------------------------------------------------------------------

struct cla_append_args {
    struct cla_fwd_tensor k_new;
    struct cla_fwd_tensor v_new;
    struct cla_fwd_tensor k_cache;
    struct cla_fwd_tensor v_cache;
    struct cla_fwd_tensor k_scale;
    struct cla_fwd_tensor v_scale;
    struct cla_rotary_args rotary;
    cla_i64 lens; // ints, as all below
    cla_i64 new_lens;
    cla_i64 table;
    cla_i64 faults;
    cla_i32 batch;
    cla_i32 heads;
    cla_i32 len; // tokens that k_new has room for
    cla_i32 dim_k;
    cla_i32 dim_v;
    cla_i32 capacity;  // rows of a contiguous cache
    cla_i32 page_size; // 0 = contiguous
    cla_i32 num_pages;
    cla_i32 max_pages;
    cla_u32 flags; // CLA_KV_HAS_LENS, CLA_KV_HAS_NEW, CLA_FWD_HAS_FAULTS
};

// ---- merge_parts.cl ----------------------------------------------------------------------------

#define CLA_MERGE_PARTS 8 // equal to CLATTN_MERGE_MAX_PARTS

struct cla_merge_args {
    struct cla_fwd_tensor part[CLA_MERGE_PARTS];
    struct cla_fwd_tensor o;
    cla_i64 part_lse[CLA_MERGE_PARTS]; // floats
    cla_i64 sinks;
    cla_i64 lse;
    cla_i32 num_parts;
    cla_i32 heads;
    cla_i32 len;
    cla_i32 dim;
    cla_u32 flags; // CLA_FWD_HAS_LSE, CLA_FWD_HAS_SINKS
    cla_i32 reserved;
};

#endif // CLA_KV_ABI_H
