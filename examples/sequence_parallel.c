// SPDX-License-Identifier: Apache-2.0
// Sequence-parallel attention over MPI: each rank holds a shard of the keys and values, attends to
// it, and the partial results are merged by a reduction of MPI whose operation is clattn's merge.
// Run it with mpirun -n 1, 2, 4 ...: rank 0 compares with one process over all keys.
//
// A partial result is what clattn computes for some of the keys: O, and the log-sum-exp of each
// row, which is all that a merge needs. Merging is associative and commutative but for rounding.
#include <clattn/clattn.h>
#include <mpi.h>
#include <string.h>

#include "example.h"

enum { HEADS = 4, LEN_Q = 32, LEN_KV = 1021, DIM = 64 };
enum { NUM_Q = HEADS * LEN_Q * DIM, NUM_KV = HEADS * LEN_KV * DIM, ROWS = HEADS * LEN_Q };

// One element of the reduction.
struct partial {
    float o[NUM_Q];
    float lse[ROWS];
};

// Merging is work of the CPU path, which needs no OpenCL. A reduction's operation gets no pointer
// of the application's, hence a variable of the file.
static clattn_context *merger;

static void merge_partials(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    struct partial *a = in, *b = inout;
    for (int i = 0; i < *count; i++) {
        const clattn_tensor parts[2] = {{.buf = clattn_host_buf(a[i].o, sizeof a[i].o)},
                                        {.buf = clattn_host_buf(b[i].o, sizeof b[i].o)}};
        const clattn_buf lse[2] = {clattn_host_buf(a[i].lse, sizeof a[i].lse),
                                   clattn_host_buf(b[i].lse, sizeof b[i].lse)};
        clattn_merge_call merge;
        clattn_merge_call_init(&merge, sizeof merge);
        merge.num_parts = 2;
        merge.batch = 1;
        merge.heads = HEADS;
        merge.len_q = LEN_Q;
        merge.dim_v = DIM;
        merge.parts = parts;
        merge.parts_lse = lse;
        merge.o = parts[1]; // in place
        merge.lse = lse[1];
        TRY(clattn_merge_run(merger, &merge));
    }
}

// Attention over the keys `from` to `to`, which are none where there are more ranks than keys: then
// O is 0 and the log-sum-exp -infinity, which a merge takes for nothing.
static void attend(clattn_context *ctx, const float *q, const float *k, const float *v, int from,
                   int to, struct partial *out)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = DIM;
    desc.heads_q = HEADS;
    desc.features = CLATTN_FEATURE_LSE;
    clattn_plan *plan = NULL;
    TRY(clattn_attention_plan_create(ctx, &desc, &plan));

    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = 1;
    call.len_q = LEN_Q;
    call.len_kv = to - from;
    call.q.buf = clattn_host_buf(q, NUM_Q * sizeof(float));
    // [sequence, heads, channels]: a shard of keys is one piece of memory.
    call.k.layout = call.v.layout = CLATTN_LAYOUT_BSHD;
    call.k.buf = clattn_host_buf(k + (size_t)from * HEADS * DIM, 0);
    call.v.buf = clattn_host_buf(v + (size_t)from * HEADS * DIM, 0);
    call.o.buf = clattn_host_buf(out->o, sizeof out->o);
    call.lse = clattn_host_buf(out->lse, sizeof out->lse);
    TRY(clattn_attention_run(plan, &call));
    clattn_plan_destroy(&plan);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = "cpu";
    TRY(clattn_context_create(&desc, &merger));
    clattn_context *ctx = NULL; // the best device of this rank's machine, or CLATTN_DEVICE
    TRY(clattn_context_create(NULL, &ctx));

    // A model would have its shard only; here every rank makes all of it, from the same seeds.
    float *q = random_floats(NUM_Q, 1), *k = random_floats(NUM_KV, 2);
    float *v = random_floats(NUM_KV, 3);
    const int from = (int)((int64_t)LEN_KV * rank / ranks);
    const int to = (int)((int64_t)LEN_KV * (rank + 1) / ranks);
    struct partial *mine = calloc(1, sizeof *mine), *whole = calloc(1, sizeof *whole);
    struct partial *alone = calloc(1, sizeof *alone);
    if (!mine || !whole || !alone)
        MPI_Abort(MPI_COMM_WORLD, 1);
    attend(ctx, q, k, v, from, to, mine);

    MPI_Datatype type;
    MPI_Op op;
    MPI_Type_contiguous((int)(sizeof *mine / sizeof(float)), MPI_FLOAT, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(merge_partials, 1, &op);
    MPI_Reduce(mine, whole, 1, type, op, 0, MPI_COMM_WORLD);

    int status = 0;
    if (rank == 0) {
        attend(ctx, q, k, v, 0, LEN_KV, alone);
        printf("%d rank%s: ", ranks, ranks == 1 ? "" : "s");
        status = report("O", largest_difference(whole->o, alone->o, NUM_Q)) |
                 report("log-sum-exp", largest_difference(whole->lse, alone->lse, ROWS));
    }
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    free(q);
    free(k);
    free(v);
    free(mine);
    free(whole);
    free(alone);
    clattn_context_destroy(&ctx);
    clattn_context_destroy(&merger);
    MPI_Finalize();
    return status;
}
