# SPDX-License-Identifier: Apache-2.0
"""Peers that are set up by default: ONNX Runtime, OpenVINO, OpenBLAS without fusion.

A maker has facts(), clear(), and variants(problem): pairs of a name and a function that prepares
it and returns (run, result); run() computes once and waits, result() gives [batch, heads, len_q,
dim]. Buffers are made and bound before, so that a run neither allocates nor copies where the peer
lets one say so.
"""
import ctypes
import math

import numpy as np

from worker import NoWay


def stacked(problem):
    """A problem with the heads of a key head as queries of one head, which is the same where no
    mask tells queries apart; None where it does or nothing would change."""
    s = problem.shape
    if s.causal or s.heads == s.kv_heads:
        return None
    group = s.heads // s.kv_heads
    return s._replace(heads=s.kv_heads, len_q=s.len_q * group)


def query_of(problem, shape):
    return problem.q.reshape(shape.batch, shape.heads, shape.len_q, shape.dim)


class Maker:
    def __init__(self, options):
        self.threads = options["threads"]

    def clear(self):
        pass

    def shapes(self, problem):
        """The problem's own shape, and the stacked one where there is one."""
        yield "", problem.shape
        if stacked(problem):
            yield ", heads as queries", stacked(problem)


# ---- ONNX Runtime ------------------------------------------------------------------------------

class OnnxRuntime(Maker):
    def facts(self):
        import onnxruntime
        return {"version": onnxruntime.__version__}

    def variants(self, problem):
        if problem.dtype != "f32":
            raise NoWay("its CPU kernels of attention are f32 only")
        for note, shape in self.shapes(problem):
            yield "Attention" + note, lambda s=shape: self.attention(problem, s)
            if shape.heads == shape.kv_heads:
                yield "MultiHeadAttention" + note, lambda s=shape: self.multi_head(problem, s)
        if problem.shape.decode:
            yield "GroupQueryAttention", lambda: self.group_query_decode(problem)
        elif problem.shape.causal:
            yield "GroupQueryAttention", lambda: self.group_query_prompt(problem)

    def session(self, node, inputs, outputs):
        """Runs `node` on bound memory; inputs and outputs are OrtValues by name."""
        import onnx
        import onnxruntime
        helper, types = onnx.helper, onnx.TensorProto
        kinds = {"tensor(float)": types.FLOAT, "tensor(int32)": types.INT32}

        def info(name, value):
            return helper.make_tensor_value_info(name, kinds[value.data_type()], value.shape())

        graph = helper.make_graph([node], "g", [info(*x) for x in inputs.items()],
                                  [info(*x) for x in outputs.items()])
        model = helper.make_model(graph, opset_imports=[
            helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                               providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        return lambda: session.run_with_iobinding(binding)

    def value(self, array):
        import onnxruntime
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(array, order="C"))

    def packed(self, x):
        """[batch, heads, length, dim] as [batch, length, heads * dim]."""
        return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)

    def unpacked(self, value, problem, shape):
        x = value.numpy().reshape(shape.batch, shape.len_q, shape.heads, shape.dim)
        return x.transpose(0, 2, 1, 3).reshape(problem.q.shape)

    def attention(self, problem, shape):
        from onnx import helper
        node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(shape.causal))
        q = query_of(problem, shape)
        out = self.value(np.full_like(q, math.nan))
        run = self.session(node, {"q": self.value(q), "k": self.value(problem.k),
                                  "v": self.value(problem.v)}, {"o": out})
        return run, lambda: out.numpy().reshape(problem.q.shape)

    def multi_head(self, problem, shape):
        from onnx import helper
        node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"],
                                domain="com.microsoft", num_heads=shape.heads,
                                unidirectional=int(shape.causal))
        q = self.packed(query_of(problem, shape))
        out = self.value(np.full_like(q, math.nan))
        run = self.session(node, {"q": self.value(q), "k": self.value(self.packed(problem.k)),
                                  "v": self.value(self.packed(problem.v))}, {"o": out})
        return run, lambda: self.unpacked(out, problem, shape)

    def group_query(self, problem, k, v, past, room):
        """GroupQueryAttention with `past` keys in a buffer of `room` that it appends to."""
        from onnx import helper
        s = problem.shape
        node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "len", "all"],
                                ["o", "nk", "nv"], domain="com.microsoft", num_heads=s.heads,
                                kv_num_heads=s.kv_heads)
        q = self.packed(problem.q)
        out = self.value(np.full_like(q, math.nan))
        keys, values = self.value(room[0]), self.value(room[1])
        inputs = {"q": self.value(q), "k": self.value(self.packed(k)),
                  "v": self.value(self.packed(v)), "pk": keys, "pv": values,
                  "len": self.value(np.full((s.batch,), past + k.shape[2] - 1, np.int32)),
                  "all": self.value(np.array(s.len_kv, np.int32).reshape(()))}
        run = self.session(node, inputs, {"o": out, "nk": keys, "nv": values})
        return run, lambda: self.unpacked(out, problem, s)

    def group_query_decode(self, problem):
        """As a loop that generates: the cache is in place and gets the last key again."""
        k, v = problem.k, problem.v
        return self.group_query(problem, k[:, :, -1:], v[:, :, -1:], k.shape[2] - 1, (k, v))

    def group_query_prompt(self, problem):
        if problem.shape.len_q != problem.shape.len_kv:
            raise NoWay("a prompt has as many queries as keys")
        room = np.zeros_like(problem.k), np.zeros_like(problem.v)
        return self.group_query(problem, problem.k, problem.v, 0, room)


# ---- OpenVINO ----------------------------------------------------------------------------------

class OpenVino(Maker):
    def facts(self):
        import openvino
        return {"version": openvino.__version__.split("-")[0]}

    def variants(self, problem):
        for note, shape in self.shapes(problem):
            yield "ScaledDotProductAttention" + note, lambda s=shape: self.sdpa(problem, s)

    def sdpa(self, problem, shape):
        import openvino as ov
        from openvino import opset13 as op
        arrays = [np.ascontiguousarray(x)
                  for x in (query_of(problem, shape), problem.k, problem.v)]
        q, k, v = parameters = [op.parameter(list(a.shape), np.float32) for a in arrays]
        group = shape.heads // shape.kv_heads
        if group > 1:  # the pattern that models have for grouped heads
            b, h, n, d = problem.k.shape

            def spread(x):
                x = op.broadcast(op.unsqueeze(x, np.array([2])), np.array([b, h, group, n, d]))
                return op.reshape(x, np.array([b, h * group, n, d]), False)
            k, v = spread(k), spread(v)
        node = op.scaled_dot_product_attention(q, k, v, causal=shape.causal)
        model = ov.Model([node], parameters)
        compiled = ov.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": str(self.threads), "NUM_STREAMS": "1",
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": problem.dtype})
        request = compiled.create_infer_request()
        tensors = [ov.Tensor(a, shared_memory=True) for a in arrays]
        for i, tensor in enumerate(tensors):
            request.set_input_tensor(i, tensor)
        out = np.full(arrays[0].shape, math.nan, np.float32)
        request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))
        keep = (arrays, tensors, compiled)
        return (lambda keep=keep: request.infer()), lambda: out.reshape(problem.q.shape)


# ---- OpenBLAS ----------------------------------------------------------------------------------

class OpenBlas(Maker):
    """sgemm, a softmax in C, sgemm: in blocks of rows over threads with a BLAS of one thread, or
    one after the other with the threads of the BLAS."""
    BLOCKS = (64, 128, 256, 1 << 30)

    def __init__(self, options):
        super().__init__(options)
        for path in options.get("preload", []):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.blas = ctypes.CDLL(options["openblas"])
        self.helper = ctypes.CDLL(options["helper"])
        self.blas.openblas_get_config.restype = ctypes.c_char_p
        self.blas.openblas_get_corename.restype = ctypes.c_char_p

    def facts(self):
        config = self.blas.openblas_get_config().decode().split()
        return {"version": config[1] if len(config) > 1 else "?",
                "device": self.blas.openblas_get_corename().decode()}

    def variants(self, problem):
        if problem.dtype != "f32":
            raise NoWay("sgemm is f32")
        s = problem.shape
        rows = s.len_q if s.causal else s.len_q * s.heads // s.kv_heads
        for block in sorted({min(block, rows) for block in self.BLOCKS}):
            yield (f"blocks of {block} rows over threads",
                   lambda b=block: self.attention(problem, b, self.threads, 1))
        if self.threads > 1:
            yield (f"blocks of {rows} rows, threads of the BLAS",
                   lambda: self.attention(problem, rows, 1, self.threads))

    def attention(self, problem, block, threads, blas_threads):
        s = problem.shape
        numbers = (ctypes.c_int * 6)(*s[:6])
        out = np.full_like(problem.q, math.nan)
        scores = np.zeros((threads, block, s.len_kv), np.float32)
        arrays = (problem.q, problem.k, problem.v, out, scores)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
        gemm = ctypes.cast(self.blas.cblas_sgemm, ctypes.c_void_p)

        def run(keep=arrays):
            self.blas.openblas_set_num_threads(blas_threads)
            self.helper.blas_attention(gemm, numbers, int(s.causal), block, threads, *pointers)

        return run, lambda: out


PEERS = {"onnxruntime": OnnxRuntime, "openvino": OpenVino, "openblas": OpenBlas}
