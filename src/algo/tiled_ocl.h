// SPDX-License-Identifier: Apache-2.0
// What the algorithms that walk over tiles of rows and keys on OpenCL have in common: the choice of
// a tile, building, the argument block, and blocking calls. Each brings its kernels and its launch.
#ifndef CLA_ALGO_TILED_OCL_H
#define CLA_ALGO_TILED_OCL_H

#include "abi.h"
#include "algo/algo.h"
#include "context_ocl.h"
#include "ocl/launch.h"

enum { CLA_TILED_KERNELS = 3 };

// A kernel and the file that it is in.
struct cla_tiled_kernel {
    const char *file;
    const char *function;
};

struct cla_tiled {
    // NULL ends both lists. All kernels are built with the same options, and limited by the tile.
    struct cla_tiled_kernel group[CLA_TILED_KERNELS];
    struct cla_tiled_kernel vector[CLA_TILED_KERNELS];
    struct cla_tiled_kernel few[CLA_TILED_KERNELS]; // vector tiles whose lanes are channels
    bool subgroups; // the group shape has a version with sub-groups
    // Passes over the keys, for drivers that count the iterations of a work-item.
    int passes;
    // Kernels of its own beside the tiled ones, of which it keeps what it likes in `more`; or NULL.
    // `why` receives what a failure's status does not say.
    clattn_status (*prepare_more)(clattn_context *ctx, const struct cla_problem *p,
                                  struct cla_prepared *prepared, char *why, size_t why_size);
    void (*release_more)(struct cla_prepared *prepared);
    // Enqueues. Every buffer is a cl_mem; the workspace is there where the call needs one.
    clattn_status (*launch)(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call,
                            const struct cla_submit *submit);
};

struct cla_prepared {
    const struct cla_algo *algo;
    struct cla_tile tile;
    struct cla_kernels *kernels[CLA_TILED_KERNELS];
    uint64_t rebuilds; // cla_programs_rebuild_count() before there were kernels
    void *more;
};

// Whether kernels can be compiled for the device at all; a note where not.
bool cla_tiled_compiles(const struct cla_algo *self, const struct cla_caps *caps,
                        struct cla_notes *refusals);

// The options that the kernels of a tile are built with.
void cla_tiled_options(const struct cla_problem *p, const struct cla_tile *t,
                       const struct cla_caps *caps, char *options, size_t size);

// The members of struct cla_algo.
int cla_tiled_propose(const struct cla_algo *self, const struct cla_problem *p,
                      const struct cla_caps *caps, struct cla_tile *out, int max,
                      struct cla_notes *refusals);
clattn_status cla_tiled_prepare(clattn_context *ctx, const struct cla_algo *self,
                                const struct cla_problem *p, const struct cla_tile *tile,
                                struct cla_prepared **out, char *options, size_t options_size,
                                char *why, size_t why_size);
bool cla_tiled_identify(clattn_context *ctx, const struct cla_prepared *prepared,
                        unsigned char name[CLA_PROGRAMS_NAME]);
bool cla_tiled_renew(clattn_context *ctx, struct cla_prepared *prepared, const char *options);
void cla_tiled_release(struct cla_prepared *prepared);
clattn_status cla_tiled_run(clattn_context *ctx, const struct cla_problem *p,
                            const struct cla_prepared *prepared, const struct cla_call *call);
clattn_status cla_tiled_enqueue(clattn_context *ctx, const struct cla_problem *p,
                                const struct cla_prepared *prepared, const struct cla_call *call,
                                const struct cla_submit *submit);

// The argument block of a call, and the ND-range of a work-group for each tile of rows.
void cla_tiled_args(const struct cla_problem *p, const struct cla_tile *tile,
                    const struct cla_call *call, struct cla_fwd_args *args);
size_t cla_tiled_local(const struct cla_tile *tile);

// Enqueues kernel `which`, which has all slots of abi.h, in one dimension of `groups` work-groups.
clattn_status cla_tiled_launch(clattn_context *ctx, const struct cla_prepared *prepared, int which,
                               const struct cla_fwd_args *args, const struct cla_call *call,
                               uint64_t groups, const struct cla_submit *submit);

// The launch of an algorithm of one kernel without workspace, a work-group for each tile of rows.
clattn_status cla_tiled_launch_rows(clattn_context *ctx, const struct cla_problem *p,
                                    const struct cla_prepared *prepared,
                                    const struct cla_call *call, const struct cla_submit *submit);

#endif // CLA_ALGO_TILED_OCL_H
