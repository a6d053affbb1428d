// SPDX-License-Identifier: Apache-2.0
// Attention by the graph API of oneDNN, built as a shared library: two matrix products, scale,
// mask and softmax as one graph, which must come out as one partition, that is, fused.
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_graph.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dnnl_graph_logical_tensor_t logical;
enum { Q, K, V, O, SCALE, MASK, SCORES, SCALED, MASKED, WEIGHTS, NUM };

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_graph_compiled_partition_t compiled;
    size_t num_inputs;
    const_dnnl_graph_tensor_t inputs[NUM], output;
} state;

static char text[256];

const char *onednn_text(void)
{
    return text;
}

void onednn_version(int *numbers)
{
    const dnnl_version_t *version = dnnl_version();
    numbers[0] = version->major;
    numbers[1] = version->minor;
    numbers[2] = version->patch;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        dnnl_status_t status_ = (call);                                                            \
        if (status_ != dnnl_success) {                                                             \
            snprintf(text, sizeof text, "%s gives %d", #call, (int)status_);                       \
            return NULL;                                                                           \
        }                                                                                          \
    } while (0)

/// A dense tensor in the usual order.
static dnnl_status_t dense(logical *t, size_t id, dnnl_data_type_t type, int rank,
                           const dnnl_dim_t *dims)
{
    dnnl_dims_t strides = {0};
    dnnl_dim_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= dims[i];
    }
    return dnnl_graph_logical_tensor_init_with_strides(t, id, type, rank, dims, strides,
                                                       dnnl_graph_tensor_property_variable);
}

static dnnl_status_t add_op(dnnl_graph_graph_t graph, size_t id, dnnl_graph_op_kind_t kind,
                            const logical *a, const logical *b, const logical *out, int trans_b)
{
    dnnl_graph_op_t op;
    static const uint8_t yes = 1;
    static const int64_t last = -1;
    dnnl_status_t status = dnnl_graph_op_create(&op, id, kind, "op");
    if (status == dnnl_success)
        status = dnnl_graph_op_add_input(op, a);
    if (status == dnnl_success && b)
        status = dnnl_graph_op_add_input(op, b);
    if (status == dnnl_success)
        status = dnnl_graph_op_add_output(op, out);
    if (status == dnnl_success && trans_b)
        status = dnnl_graph_op_set_attr_bool(op, dnnl_graph_op_attr_transpose_b, &yes, 1);
    if (status == dnnl_success && kind == dnnl_graph_op_softmax)
        status = dnnl_graph_op_set_attr_s64(op, dnnl_graph_op_attr_axis, &last, 1);
    return status == dnnl_success ? dnnl_graph_add_op(graph, op) : status;
}

/// shape: batch, heads, key heads, len_q, len_kv, dim. Grouped heads get an axis of their own.
static dnnl_status_t describe(logical *t, dnnl_data_type_t type, const int *shape)
{
    int heads = shape[2], group = shape[1] / shape[2], rank = group > 1 ? 5 : 4;
    dnnl_dim_t dims[4][5]; // of Q and O, K and V, scores, mask
    for (int i = 0; i < 4; i++) {
        dnnl_dim_t *d = dims[i];
        int spread = i != 3;
        *d++ = spread ? shape[0] : 1;
        *d++ = spread ? heads : 1;
        if (rank == 5)
            *d++ = i == 0 || i == 2 ? group : 1;
        *d++ = i == 1 ? shape[4] : shape[3];
        *d = i >= 2 ? shape[4] : shape[5];
    }
    static const int which[NUM] = {[Q] = 0, [K] = 1, [V] = 1, [O] = 0, [MASK] = 3, [SCORES] = 2,
                                   [SCALED] = 2, [MASKED] = 2, [WEIGHTS] = 2};
    for (int i = 0; i < NUM; i++) {
        dnnl_dim_t one = 1;
        int own = i == Q || i == K || i == V || i == O || i == WEIGHTS;
        dnnl_status_t status = dense(&t[i], (size_t)i, own ? type : dnnl_f32,
                                     i == SCALE ? 1 : rank, i == SCALE ? &one : dims[which[i]]);
        if (status != dnnl_success)
            return status;
    }
    return dnnl_success;
}

/// Compiles it for this memory; NULL with onednn_text() where that fails.
void *onednn_prepare(int bf16, const int *shape, int causal, void *q, void *k, void *v, void *o,
                     void *scale, void *mask)
{
    logical t[NUM];
    TRY(describe(t, bf16 ? dnnl_bf16 : dnnl_f32, shape));
    dnnl_graph_graph_t graph;
    TRY(dnnl_graph_graph_create(&graph, dnnl_cpu));
    TRY(add_op(graph, 0, dnnl_graph_op_matmul, &t[Q], &t[K], &t[SCORES], 1));
    TRY(add_op(graph, 1, dnnl_graph_op_multiply, &t[SCORES], &t[SCALE], &t[SCALED], 0));
    if (causal)
        TRY(add_op(graph, 2, dnnl_graph_op_add, &t[SCALED], &t[MASK], &t[MASKED], 0));
    TRY(add_op(graph, 3, dnnl_graph_op_softmax, &t[causal ? MASKED : SCALED], NULL, &t[WEIGHTS],
               0));
    TRY(add_op(graph, 4, dnnl_graph_op_matmul, &t[WEIGHTS], &t[V], &t[O], 0));
    TRY(dnnl_graph_graph_finalize(graph));
    TRY(dnnl_graph_graph_filter(graph, dnnl_graph_partition_policy_fusion));
    size_t count = 0;
    TRY(dnnl_graph_graph_get_partition_num(graph, &count));
    if (count != 1) {
        snprintf(text, sizeof text, "not fused: %zu partitions", count);
        return NULL;
    }
    dnnl_graph_partition_t partition;
    TRY(dnnl_graph_graph_get_partitions(graph, 1, &partition));

    state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    TRY(dnnl_engine_create(&s->engine, dnnl_cpu, 0));
    TRY(dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags));
    TRY(dnnl_graph_compiled_partition_create(&s->compiled, partition));
    TRY(dnnl_graph_partition_get_input_ports_num(partition, &s->num_inputs));
    logical ports[NUM];
    TRY(dnnl_graph_partition_get_input_ports(partition, s->num_inputs, ports));
    void *memory[NUM] = {[Q] = q, [K] = k, [V] = v, [SCALE] = scale, [MASK] = mask};
    const logical *inputs[NUM], *output = &t[O];
    for (size_t i = 0; i < s->num_inputs; i++) {
        dnnl_graph_tensor_t tensor;
        inputs[i] = &t[ports[i].id];
        TRY(dnnl_graph_tensor_create(&tensor, inputs[i], s->engine, memory[ports[i].id]));
        s->inputs[i] = tensor;
    }
    TRY(dnnl_graph_partition_compile(partition, s->compiled, s->num_inputs, inputs, 1, &output,
                                     s->engine));
    dnnl_graph_tensor_t tensor;
    TRY(dnnl_graph_tensor_create(&tensor, output, s->engine, o));
    s->output = tensor;
    return s;
}

int onednn_run(void *handle)
{
    state *s = handle;
    dnnl_status_t status = dnnl_graph_compiled_partition_execute(
        s->compiled, s->stream, s->num_inputs, s->inputs, 1, &s->output);
    if (status == dnnl_success)
        status = dnnl_stream_wait(s->stream);
    return status != dnnl_success;
}
