// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set, with the compiler flags and the block sizes that suit it
// (meson.build). Everything is file-local but one struct, cla_host_kernel_<CLA_HOST_ISA>.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/kernel.h"
#include "host/vec.h"

#if !defined(CLA_HOST_ISA) || !defined(CLA_HOST_ISA_TEXT)
#error "host/kernel.c: CLA_HOST_ISA, suffix of the exported name; CLA_HOST_ISA_TEXT, its string"
#endif
#ifndef CLA_HOST_QV
#error "host/kernel.c: CLA_HOST_QV, vectors of rows a tile has"
#endif
#ifndef CLA_HOST_RK
#error "host/kernel.c: CLA_HOST_RK, keys in a register block of Q*K^T (1 to 8)"
#endif
#ifndef CLA_HOST_RD
#error "host/kernel.c: CLA_HOST_RD, channels in a register block of P*V (1 to 8)"
#endif
#ifndef CLA_HOST_TILE_K
#error "host/kernel.c: CLA_HOST_TILE_K, most keys in a tile, a multiple of CLA_HOST_RK"
#endif

#ifndef CLA_HOST_DOT
#define CLA_HOST_DOT 0 // whether products of 16 bits are taken where they may be
#endif

#define QV CLA_HOST_QV
#define RK CLA_HOST_RK
#define RD CLA_HOST_RD
#define TILE_K CLA_HOST_TILE_K

_Static_assert(RK >= 1 && RK <= 8 && RD >= 1 && RD <= 8, "the rests are switches up to 7");
_Static_assert(TILE_K % RK == 0, "register blocks fill a tile");

#include "host/convert_impl.h"

#include "host/score_impl.h"

#include "host/block_impl.h"

#include "host/tile_impl.h"

#include "host/few_impl.h"

#include "host/peak_impl.h"

#include "host/softmax_impl.h"

static size_t scratch_floats(const struct cla_problem *p)
{
    const size_t tile = tile_floats(p);
    const size_t few = few_floats(p);
    return ((tile > few ? tile : few) + 15) / 16 * 16;
}

#define CONCAT(a, b) a##b
#define NAME(isa) CONCAT(cla_host_kernel_, isa)

extern const struct cla_host_kernel NAME(CLA_HOST_ISA);
const struct cla_host_kernel NAME(CLA_HOST_ISA) = {
    .isa = CLA_HOST_ISA_TEXT,
    .dot = CLA_HOST_DOT,
    .width = W,
    .tile_q = TQ,
    .few_rows = FEW_MAX < W ? FEW_MAX : W,
    .tiles = tile_count,
    .tile_k = tile_keys,
    .scratch_floats = scratch_floats,
    .tile = run_tile,
    .few = run_few,
    .fma_loop = run_fma_loop,
    .read_loop = run_read_loop,
    .row_max = row_max,
    .row_sum = row_sum,
    .row_write = row_write,
    .row_exp = row_exp,
    .row_total = row_total,
    .row_divide = row_divide,
};
