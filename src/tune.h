// SPDX-License-Identifier: Apache-2.0
// Measured tiles: the text of a tuning file, and looking up a problem in it. Pure; tune_file.c
// reads and writes the files. docs/planner.md describes the format.
#ifndef CLA_TUNE_H
#define CLA_TUNE_H

#include "caps.h"
#include "problem.h"

enum {
    CLA_TUNE_FORMAT = 1,
    CLA_TUNE_LINE = 1024,       // bytes of a line, at most
    CLA_TUNE_BYTES = 1 << 20,   // of a file
    CLA_TUNE_ROWS = 4096,       // rows, and as many devices
    CLA_TUNE_WHY = 256,
    CLA_TUNE_SOURCE = 72
};

// The problems that a row holds for.
struct cla_tune_key {
    int32_t algo;      // enum clattn_algo
    int32_t dim_qk, dim_v;
    int32_t dtype_q, dtype_kv, dtype_o;
    int32_t mask_kind; // CLA_MASK_* of abi.h
    int32_t paged;     // 0 or 1
    int32_t rows_lo, rows_hi; // queries times query heads of a key head; INT32_MAX = and more
    int32_t keys_lo, keys_hi; // likewise
};

struct cla_tune_row {
    struct cla_tune_key key;
    clattn_tile tile;  // all zero: nothing was faster than the planner's choice
    int32_t permille;  // time of the planner's choice by that of the tile
    int32_t device;    // index into cla_tune.device
    bool builtin;
};

// Texts as the file has them; what is no plain character is a '?'. One that ends with '*' stands
// for all that begin with what is before it.
struct cla_tune_device {
    char platform[128], name[128], driver[128];
    char library[32]; // version of clattn
};

struct cla_tune {
    struct cla_tune_row *row;
    int rows, row_room;
    struct cla_tune_device *device;
    int devices, device_room;
    char source[CLA_TUNE_SOURCE]; // for messages: the end of the file's name
};

// Adds what a whole text says. On failure false with the line and the reason in `why`, and the rest
// of `tune` is to be thrown away. Any bytes are safe.
bool cla_tune_parse(const char *text, size_t size, bool builtin, struct cla_tune *tune,
                    char why[CLA_TUNE_WHY]);

// The whole text, which the caller frees; NULL if memory ran out. Rows that are built in are left
// out.
char *cla_tune_format(const struct cla_tune *tune, size_t *size);

void cla_tune_free(struct cla_tune *tune);

// Device and library as a section of the file names them.
void cla_tune_device_of(const struct cla_caps *caps, struct cla_tune_device *out);

// Leaves only the rows of this device. *stale counts those of the same device that were measured
// with another version of its driver or of the library.
void cla_tune_select(struct cla_tune *tune, const struct cla_tune_device *device, int *stale);

// The range of problems that a measurement of `p` holds for.
void cla_tune_key_of(const struct cla_problem *p, int32_t algo, struct cla_tune_key *key);

// Appends; false where there are too many or memory ran out.
bool cla_tune_add_device(struct cla_tune *tune, const struct cla_tune_device *device);
bool cla_tune_add_row(struct cla_tune *tune, const struct cla_tune_row *row);

// Puts a row in the place of one of the same device and key, else behind the others. False if there
// are too many or memory ran out.
bool cla_tune_put(struct cla_tune *tune, const struct cla_tune_device *device,
                  const struct cla_tune_row *row);

// The row of exactly this device and key, or the first one that holds for a problem, of the rows
// that were selected; NULL if there is none.
const struct cla_tune_row *cla_tune_find(const struct cla_tune *tune,
                                         const struct cla_tune_device *device,
                                         const struct cla_tune_key *key);
const struct cla_tune_row *cla_tune_look_up(const struct cla_tune *tune,
                                            const struct cla_problem *p, int32_t algo);

// The next one behind `row` that holds for the problem.
const struct cla_tune_row *cla_tune_next(const struct cla_tune *tune, const struct cla_problem *p,
                                         int32_t algo, const struct cla_tune_row *row);

// What was measured by the authors, as the text of a file.
extern const char cla_tune_table[];

// Appends its rows for this device. *left_out counts those that there is no room for, since a file
// may be full. False if memory ran out.
bool cla_tune_add_builtin(struct cla_tune *tune, const struct cla_tune_device *device,
                          int *left_out);

#endif // CLA_TUNE_H
