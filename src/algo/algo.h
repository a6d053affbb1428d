// SPDX-License-Identifier: Apache-2.0
// One algorithm: what it proposes for a problem on a device, how a proposal is made ready, and how
// a call runs on it. Only files of this folder know both attention and OpenCL.
#ifndef CLA_ALGO_ALGO_H
#define CLA_ALGO_ALGO_H

#include "caps.h"
#include "context.h"
#include "problem.h"
#include "tile.h"
#include "util/notes.h"

// What prepare() leaves for the calls, private to the algorithm.
struct cla_prepared;

// Where an asynchronous call goes. The OpenCL types are hidden so that this header needs none:
// queue is a cl_command_queue, wait a const cl_event *, done a cl_event *.
struct cla_submit {
    void *queue;
    uint32_t num_wait;
    const void *wait;
    void *done;
};

// Lengths of a call; under `bound` of all calls up to these, of which the greediest counts.
struct cla_extent {
    int32_t batch, len_q, len_kv;
    bool bound;
};

// What a plan is told of its calls: the bounds, and one sequence where there is none.
static inline struct cla_extent cla_bounds_of(const struct cla_problem *p)
{
    const int32_t batch = p->max_batch == INT32_MAX ? 1 : p->max_batch;
    const struct cla_extent e = {batch, p->max_len_q, p->max_len_kv, true};
    return e;
}

struct cla_tiled; // algo/tiled_ocl.h

enum { CLA_PROGRAMS_NAME = 32 };

struct cla_algo {
    int32_t id; // enum clattn_algo
    const char *name;
    bool by_name_only; // CLATTN_ALGO_AUTO does not take it
    uint32_t lacks; // CLA_NEEDS_* bits of what it does not serve
    const struct cla_tiled *tiled; // NULL where it is not made of tiles
    // Pure. Writes at most `max` tiles, best first; 0 with a note where it cannot serve.
    int (*propose)(const struct cla_algo *self, const struct cla_problem *p,
                   const struct cla_caps *caps, struct cla_tile *out, int max,
                   struct cla_notes *refusals);
    // Builds what the proposal needs. `options` receives the build options; `why` what a failure's
    // status does not say, else it stays as it is.
    clattn_status (*prepare)(clattn_context *ctx, const struct cla_algo *self,
                             const struct cla_problem *p, const struct cla_tile *tile,
                             struct cla_prepared **out, char *options, size_t options_size,
                             char *why, size_t why_size);
    // The programs of what prepare() made, by bytes that name no others in this context. False
    // where they have no such name just now. NULL = never.
    bool (*identify)(clattn_context *ctx, const struct cla_prepared *prepared,
                     unsigned char name[CLA_PROGRAMS_NAME]);
    // For what prepare() made and that failed its trial: builds anew, in place, what had come from
    // the program cache on disk. False where nothing had, or it doesn't build.
    bool (*renew)(clattn_context *ctx, struct cla_prepared *prepared, const char *options);
    void (*release)(struct cla_prepared *prepared);
    // Bytes of workspace; UINT64_MAX where they go beyond 64 bits. NULL = never any.
    uint64_t (*workspace)(const clattn_context *ctx, const struct cla_problem *p,
                          const struct cla_prepared *prepared, const struct cla_extent *e);
    // Bytes that one sequence (all heads) moves to and from global memory; NULL = cla_tile_bytes().
    double (*bytes)(const struct cla_problem *p, const struct cla_caps *caps,
                    const struct cla_tile *tile, int64_t len_q, int64_t len_kv);
    // Parts that the keys of a call of these lengths are cut into, 1 where a length under `bound`
    // is INT32_MAX; NULL = always 1.
    int32_t (*num_splits)(const struct cla_problem *p, const struct cla_caps *caps,
                          const struct cla_tile *tile, const struct cla_extent *e);
    // Runs on host memory and cl_mem, and waits.
    clattn_status (*run)(clattn_context *ctx, const struct cla_problem *p,
                         const struct cla_prepared *prepared, const struct cla_call *call);
    // Enqueues on cl_mem and returns.
    clattn_status (*enqueue)(clattn_context *ctx, const struct cla_problem *p,
                             const struct cla_prepared *prepared, const struct cla_call *call,
                             const struct cla_submit *submit);
};

// In the order in which they are tried.
extern const struct cla_algo *const cla_algos[];
extern const int cla_algos_count;

extern const struct cla_algo cla_algo_fused;
extern const struct cla_algo cla_algo_two_loop;
extern const struct cla_algo cla_algo_fused_kv_outer;
extern const struct cla_algo cla_algo_host;
extern const struct cla_algo cla_algo_reference;
extern const struct cla_algo cla_algo_unfused;
extern const struct cla_algo cla_algo_split_kv;

// Bytes of workspace by the algorithm's count; 0 where there is nothing to compute.
uint64_t cla_workspace_need(const clattn_context *ctx, const struct cla_algo *algo,
                            const struct cla_problem *p, const struct cla_prepared *prepared,
                            const struct cla_extent *e);

// A tiny problem with every feature of `p`, run on `prepared` and compared with the reference; once
// for the same programs with the same features in one context.
// CLATTN_ERR_SELF_TEST, with the worst element in `why`, where the numbers are wrong.
clattn_status cla_trial(clattn_context *ctx, const struct cla_problem *p,
                        const struct cla_algo *algo, const struct cla_prepared *prepared,
                        const struct cla_tile *tile, char *why, size_t why_size);

// The CPU path on cl_mem. `reference` picks the double reference.
clattn_status cla_host_on_mem(clattn_context *ctx, const struct cla_problem *p,
                              const struct cla_call *call, bool reference);
clattn_status cla_host_enqueue(clattn_context *ctx, const struct cla_problem *p,
                               const struct cla_call *call, bool reference,
                               const struct cla_submit *submit);

// Computes on host pointers at element 0.
clattn_status cla_host_compute(const clattn_context *ctx, const struct cla_problem *p,
                               const struct cla_call *call, const struct cla_host_mem *mem,
                               bool reference);

// A buffer of a call, to walk over them. Absent ones have end_bytes 0.
struct cla_call_buf {
    const char *name;
    clattn_buf *buf;
    size_t begin_bytes; // offset of element 0
    size_t end_bytes;   // bytes from the start of the memory that are reached
    int64_t *offset;    // of element 0 in elements, for who moves it; may be NULL
    bool output;
    bool keeps;         // of an output: some of it stays as it was
    // An output whose rows do not follow each other: what lies between may be another's, so it must
    // neither be read nor written. NULL where they do.
    const struct cla_buf_rows *rows;
};

// Rows of `row_bytes`, at the sum of index * stride from element 0 on.
struct cla_buf_rows {
    int64_t extent[3];
    int64_t stride_bytes[3];
    size_t row_bytes;
};

// The buffers of a call of attention, by number.
enum {
    CLA_BUF_Q, CLA_BUF_K, CLA_BUF_V, CLA_BUF_MASK, CLA_BUF_O, CLA_BUF_LSE, CLA_BUF_BIAS,
    CLA_BUF_ALIBI, CLA_BUF_SINKS, CLA_BUF_KV_LENS, CLA_BUF_CU_Q, CLA_BUF_CU_KV, CLA_BUF_TABLE,
    CLA_BUF_K_SCALE, CLA_BUF_V_SCALE, CLA_BUF_FAULTS, CLA_CALL_BUFS
};
void cla_call_bufs(const struct cla_problem *p, struct cla_call *call,
                   struct cla_call_buf out[CLA_CALL_BUFS]);

// Work of the CPU path on the buffers of a call, some of which are cl_mem. `data` is copied.
struct cla_host_work {
    clattn_status (*compute)(clattn_context *ctx, const void *data, void *const *ptr);
    const void *data;
    size_t data_bytes;
    const struct cla_call_buf *bufs; // CLA_WORK_BUFS at most
    int num_bufs;
};
enum { CLA_WORK_BUFS = 20 };
_Static_assert((int)CLA_CALL_BUFS <= (int)CLA_WORK_BUFS, "a call of attention is such work");

// Maps what is a cl_mem, computes with a pointer to element 0 of each buffer (NULL where absent),
// unmaps: before it returns, or behind an event, where every buffer must be a cl_mem. Without
// OpenCL these say so.
clattn_status cla_host_work_run(clattn_context *ctx, const struct cla_host_work *work);
clattn_status cla_host_work_enqueue(clattn_context *ctx, const struct cla_host_work *work,
                                    const struct cla_submit *submit);

#endif // CLA_ALGO_ALGO_H
