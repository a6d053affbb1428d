// SPDX-License-Identifier: Apache-2.0
// Tile sizes from the device's own figures. Pure: (problem, caps) -> ranked choices and refusals.
#ifndef CLA_TILE_H
#define CLA_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "caps.h"
#include "problem.h"
#include "util/notes.h"

// Keys of a row from which sums in one register lose precision (docs/math.md); the group shape then
// carries rounding errors along.
enum { CLA_LONG_ROWS_KEYS = 16384 };

// Tile of a fused OpenCL kernel. Fields that a shape does not use are 0.
struct cla_tile {
    int32_t kernel;  // CLATTN_KERNEL_GROUP or _VECTOR; with `subgroups` also _GROUP
    int32_t tile_q;  // rows a work-group owns
    int32_t tile_k;  // keys in a tile
    int32_t items_q; // group: work-items along rows    (work-group = items_q * items_k)
    int32_t items_k; // group: work-items along keys and channels
    int32_t chunk_d; // group: channels in local memory at once
    int32_t subgroups; // group: CLA_SUBGROUPS_* of abi.h
    int32_t width;   // vector: floats in a vector (W)
    int32_t vecs_q;  // vector: vectors of rows (QV), tile_q = W * QV; 0 where lanes are channels
    int32_t block_k; // vector: keys in a register block of Q*K^T (RK)
    int32_t block_d; // vector: channels in a register block of P*V (RD)
    bool named;      // by the caller or a tuning file, not by the planner
    size_t local_bytes; // CLA_GROUP_LOCAL_BYTES and what else stays, 0 for the vector shape
    char reason[192];
};

// Whether a row can have so many tiles of the group shape that the rounding errors of its sum are
// to be carried along: over 512, and over CLA_LONG_ROWS_KEYS keys in any case.
static inline bool cla_tile_has_long_rows(int32_t tile_k, int32_t keys)
{
    return keys > CLA_LONG_ROWS_KEYS || keys > 512 * (int64_t)tile_k;
}

// The larger head dimension.
static inline int32_t cla_tile_dim(const struct cla_problem *p)
{
    return p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
}

// Lanes of the vector shape: the device's own width, as far as there are kernels for it.
static inline int32_t cla_tile_width(const struct cla_caps *caps)
{
    return caps->native_width_f32 >= 16 ? 16 : caps->native_width_f32 >= 8 ? 8 : 4;
}

// A vector tile whose lanes are channels.
static inline bool cla_tile_is_few(const struct cla_tile *t)
{
    return t->kernel == CLATTN_KERNEL_VECTOR && t->vecs_q == 0;
}

// Writes at most `max` tiles, best first, of the kernel shape `kernel` (not AUTO), and a note for
// each candidate that breaks a limit. Returns how many; 0 with a note saying why.
int cla_tile_rank(const struct cla_problem *p, const struct cla_caps *caps, int32_t kernel,
                  struct cla_tile *out, int max, struct cla_notes *refusals);

// The same for few rows, of the vector shape with channels as lanes: one tile at most, none where
// the rows of the problem are unbounded or too many, or the compiler takes vectors apart.
int cla_tile_rank_few(const struct cla_problem *p, const struct cla_caps *caps,
                      struct cla_tile *out, struct cla_notes *refusals);

// Whether the compiled kernel's own figures (CL_KERNEL_WORK_GROUP_SIZE, CL_KERNEL_LOCAL_MEM_SIZE)
// leave room for the tile; `why` receives why not. Where a driver's figures are known to be wrong
// the answer is yes.
bool cla_tile_fits_kernel(const struct cla_tile *t, const struct cla_caps *caps,
                          size_t kernel_group, size_t kernel_local_bytes, char *why,
                          size_t why_size);

// Of a given tile, by the rules that the ranking follows: local memory that a work-group of the
// group shape takes; whether the items of a row can be a sub-group; whether it is so large that
// compute units are left without work, though a smaller one would do.
size_t cla_tile_group_bytes(const struct cla_problem *p, const struct cla_tile *t);
bool cla_tile_suits_subgroups(const struct cla_caps *caps, const struct cla_tile *t);
bool cla_tile_leaves_idle(const struct cla_problem *p, const struct cla_caps *caps,
                          const struct cla_tile *t);

// Bytes of a key in K or V, which has `dim` channels: the elements, and the scale of int8.
static inline double cla_key_bytes(const struct cla_problem *p, int32_t dim)
{
    const double scale = p->dtype_kv == CLATTN_DTYPE_I8 ? 4.0 : 0.0;
    return (double)cla_dtype_bytes(p->dtype_kv) * dim + scale;
}

// Bytes that mask and bias have for a pair of query and key.
static inline double cla_pair_bytes(const struct cla_problem *p)
{
    return (p->mask ? 1.0 : 0.0) + (p->bias ? (double)cla_dtype_bytes(p->dtype_bias) : 0.0);
}

// Bytes that one sequence (all heads) of these lengths moves to and from global memory: Q, O, the
// LSE, mask and bias once, K and V with their scales and page numbers once for each tile of rows.
// Exact below 2^53.
//
//   heads_kv * (R * (e_q * dim_qk + e_o * dim_v + 4 * lse + len_kv * (mask + e_b * bias))
//               + ceil(R / tile_q) * (len_kv * (e_kv * (dim_qk + dim_v) + 8 * int8)
//                                     + 4 * ceil(len_kv / page_size))),   R = len_q * group
//
// e_q, e_kv, e_o and e_b are the bytes of an element. What a kernel reads again at once from its
// cache is not counted (a chunk of Q for the next tile of keys, the page numbers of K for V, the
// bias that was looked at for -infinity), nor what a window or mask spares it, nor what there is
// one of for a sequence or a head (lengths, offsets, slopes, sinks).
double cla_tile_bytes(const struct cla_problem *p, const struct cla_tile *t, int64_t len_q,
                      int64_t len_kv);

#endif // CLA_TILE_H
