// SPDX-License-Identifier: Apache-2.0
// Where each work-item of the group shape reads and writes local memory. Read by the kernel and by
// the unit test that counts bank conflicts, so C11 and OpenCL C 1.2.
//
// The including file defines TILE_Q, TILE_K, ITEMS_Q, ITEMS_K and CHUNK_D: literals in the kernel,
// variables in the test. Indices are in quads (float4), those of `part` in floats where they say
// so.
//
// Items are numbered along the keys first: item = row * ITEMS_K + column. Item (row, column) has
//   the rows         row + a * ITEMS_Q             of Q, S, P and O,   a < GROUP_ROWS
//   the K positions  column + c * ITEMS_K          of S,               c < GROUP_KEYS
//   the P quads      column + n * ITEMS_K          it writes,          n < GROUP_KEYS / 4
//   the V quads      column + n * ITEMS_K          of a chunk of O,    n < GROUP_VALUES
// so that neighbouring items read neighbouring rows of K and quads of V, and the same row of Q and
// P. The scores of 4 positions become one quad of P, so K lies in local memory in that order: the
// key of a position is GROUP_KEY_AT. V lies in the order of the keys.
#ifndef CLA_GROUP_INDEX_H
#define CLA_GROUP_INDEX_H

#include "abi.h"

#define GROUP_ITEMS (ITEMS_Q * ITEMS_K)
#define GROUP_ROWS (TILE_Q / ITEMS_Q)
#define GROUP_KEYS (TILE_K / ITEMS_K)
#define GROUP_CHUNK_QUADS CLA_QUADS(CHUNK_D)
#define GROUP_VALUES ((GROUP_CHUNK_QUADS + ITEMS_K - 1) / ITEMS_K)
#define GROUP_PITCH_QUADS (CLA_GROUP_PITCH(CHUNK_D) / 4)
#define GROUP_PITCH_P_QUADS (CLA_GROUP_PITCH_P(TILE_K) / 4)

// Row of the tile; key of the tile at a position, and that of an item's c-th score.
#define GROUP_ROW(item, a) ((item) / ITEMS_K + (a)*ITEMS_Q)
#define GROUP_KEY_AT(position)                                                                     \
    ((position) / (4 * ITEMS_K) * (4 * ITEMS_K) + (position) % ITEMS_K * 4 +                       \
     (position) / ITEMS_K % 4)
#define GROUP_KEY(item, c) GROUP_KEY_AT((item) % ITEMS_K + (c)*ITEMS_K)

// Filling Q, K or V: step n = item, item + GROUP_ITEMS, ... below rows * GROUP_FILL_SPAN writes one
// quad, or nothing where GROUP_FILL_QUAD(n) >= GROUP_CHUNK_QUADS. 8 items in a row must not meet:
// they lie side by side in one row if it is a multiple of 8 quads, else the pad takes a step too.
#define GROUP_FILL_SPAN (GROUP_CHUNK_QUADS % 8 == 0 ? GROUP_CHUNK_QUADS : GROUP_PITCH_QUADS)
#define GROUP_FILL_ROW(n) ((n) / GROUP_FILL_SPAN)
#define GROUP_FILL_QUAD(n) ((n) % GROUP_FILL_SPAN)
#define GROUP_FILL_AT(n) (GROUP_FILL_ROW(n) * GROUP_PITCH_QUADS + GROUP_FILL_QUAD(n))

// Reading Q and K for the scores: quad d of the chunk.
#define GROUP_Q_AT(item, a, d) (GROUP_ROW(item, a) * GROUP_PITCH_QUADS + (d))
#define GROUP_K_AT(item, c, d) (((item) % ITEMS_K + (c)*ITEMS_K) * GROUP_PITCH_QUADS + (d))

// Writing the n-th quad of P; reading quad j of it, keys 4j..4j+3.
#define GROUP_P_PUT(item, a, n)                                                                    \
    (GROUP_ROW(item, a) * GROUP_PITCH_P_QUADS + (item) % ITEMS_K + (n)*ITEMS_K)
#define GROUP_P_AT(item, a, j) (GROUP_ROW(item, a) * GROUP_PITCH_P_QUADS + (j))

// Reading the n-th quad of key j of V. An item past the end of the chunk repeats the last quad.
#define GROUP_VALUE_QUAD(item, n) ((item) % ITEMS_K + (n)*ITEMS_K)
#define GROUP_V_AT(item, j, n)                                                                     \
    ((j)*GROUP_PITCH_QUADS + (GROUP_VALUE_QUAD(item, n) < GROUP_CHUNK_QUADS                        \
                                  ? GROUP_VALUE_QUAD(item, n)                                      \
                                  : GROUP_CHUNK_QUADS - 1))

// Parts of a row's maximum or sum: one float an item, read as floats or as quads.
#define GROUP_PART_PUT(item, a) (GROUP_ROW(item, a) * ITEMS_K + (item) % ITEMS_K)
#define GROUP_PART_AT(item, a, t) (GROUP_ROW(item, a) * ITEMS_K + (t))

#endif // CLA_GROUP_INDEX_H
