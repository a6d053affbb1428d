# SPDX-License-Identifier: Apache-2.0
"""Peers that are set up when they are named: PyTorch, JAX, ggml, oneDNN. As makers.py."""
import ctypes
import glob
import math
import os
import sys

import numpy as np

from makers import Maker, query_of
from worker import NoWay


class Torch(Maker):
    def facts(self):
        import torch
        torch.set_num_threads(self.threads)
        return {"version": torch.__version__}

    def variants(self, problem):
        for note, shape in self.shapes(problem):
            yield "flash" + note, lambda s=shape: self.sdpa(problem, s, "FLASH_ATTENTION")
            yield "math" + note, lambda s=shape: self.sdpa(problem, s, "MATH")

    def sdpa(self, problem, shape, backend):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[problem.dtype]
        q, k, v = (torch.from_numpy(np.ascontiguousarray(x)).to(kind)
                   for x in (query_of(problem, shape), problem.k, problem.v))
        attention = torch.nn.functional.scaled_dot_product_attention
        held = {}

        # PyTorch has no way to give the memory of the result.
        def run():
            with torch.inference_mode(), sdpa_kernel(getattr(SDPBackend, backend)):
                held["o"] = attention(q, k, v, is_causal=shape.causal,
                                      enable_gqa=shape.heads != shape.kv_heads)

        return run, lambda: held["o"].float().numpy().reshape(problem.q.shape)


class Jax(Maker):
    def facts(self):
        import jax
        return {"version": jax.__version__}

    def variants(self, problem):
        for note, shape in self.shapes(problem):
            yield "dot_product_attention" + note, lambda s=shape: self.attention(problem, s)

    def attention(self, problem, shape):
        import jax
        import jax.numpy as jnp
        kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[problem.dtype]
        q, k, v = (jnp.asarray(np.ascontiguousarray(x.transpose(0, 2, 1, 3)), dtype=kind)
                   for x in (query_of(problem, shape), problem.k, problem.v))
        compiled = jax.jit(lambda a, b, c: jax.nn.dot_product_attention(
            a, b, c, is_causal=shape.causal))
        held = {}

        def run():
            held["o"] = compiled(q, k, v).block_until_ready()

        def result():
            out = np.asarray(held["o"].astype(jnp.float32)).transpose(0, 2, 1, 3)
            return out.reshape(problem.q.shape)

        return run, result


class Ggml(Maker):
    """flash_attn_ext of the CPU backend that the wheel of pywhispercpp carries, called as llama.cpp
    does: Q and O are f32, K and V of the data type, a causal mask is f16."""
    F32, F16, BF16 = 0, 1, 30
    PREC_F32 = 10

    class Parameters(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p),
                    ("no_alloc", ctypes.c_bool)]

    def __init__(self, options):
        super().__init__(options)
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        base, cpu = self.library("ggml-base"), self.library("ggml-cpu")
        real = ctypes.c_float

        def take(lib, name, result, *arguments):
            function = getattr(lib, "ggml_" + name)
            function.restype, function.argtypes = result, list(arguments)
            setattr(self, name, function)

        try:
            take(base, "init", pointer, self.Parameters)
            take(base, "free", None, pointer)
            take(base, "new_tensor_4d", pointer, pointer, integer, *[ctypes.c_int64] * 4)
            take(base, "flash_attn_ext", pointer, *[pointer] * 5, real, real, real)
            take(base, "flash_attn_ext_set_prec", None, pointer, integer)
            take(base, "new_graph", pointer, pointer)
            take(base, "build_forward_expand", None, pointer, pointer)
            take(base, "backend_alloc_ctx_tensors", pointer, pointer, pointer)
            take(base, "backend_buffer_free", None, pointer)
            take(base, "backend_tensor_set", None, pointer, pointer, size, size)
            take(base, "backend_tensor_get", None, pointer, pointer, size, size)
            take(base, "backend_graph_compute", integer, pointer, pointer)
            take(cpu, "backend_cpu_init", pointer)
            take(cpu, "backend_cpu_set_n_threads", None, pointer, integer)
        except AttributeError as error:
            raise NoWay(f"its library lacks a function: {error}") from error
        self.base = base
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, self.threads)
        self.context = self.buffer = None

    @staticmethod
    def library(name):
        found = sorted(glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "**",
                                              f"lib{name}*.so*"), recursive=True))
        if not found:
            raise NoWay(f"no lib{name}.so in the wheel")
        return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)

    def facts(self):
        try:
            self.base.ggml_version.restype = ctypes.c_char_p
            return {"version": self.base.ggml_version().decode()}
        except AttributeError:
            return {"version": "?"}

    def clear(self):
        if self.buffer:
            self.backend_buffer_free(self.buffer)
        if self.context:
            self.free(self.context)
        self.buffer = self.context = None

    def variants(self, problem):
        yield "flash_attn_ext", lambda: self.attention(problem)

    def attention(self, problem):
        s = problem.shape
        self.context = context = self.init(self.Parameters(16 << 20, None, True))
        kind = {"f32": self.F32, "bf16": self.BF16}[problem.dtype]
        narrow = problem.narrow if problem.dtype == "bf16" else (lambda x: x)
        q = self.new_tensor_4d(context, self.F32, s.dim, s.len_q, s.heads, s.batch)
        k, v = (self.new_tensor_4d(context, kind, s.dim, s.len_kv, s.kv_heads, s.batch)
                for _ in range(2))
        mask = None
        if s.causal:
            mask = self.new_tensor_4d(context, self.F16, s.len_kv, s.len_q, 1, 1)
        out = self.flash_attn_ext(context, q, k, v, mask, 1 / math.sqrt(s.dim), 0.0, 0.0)
        self.flash_attn_ext_set_prec(out, self.PREC_F32)
        graph = self.new_graph(context)
        self.build_forward_expand(graph, out)
        self.buffer = self.backend_alloc_ctx_tensors(context, self.backend)
        if not self.buffer:
            raise NoWay("no memory")
        data = [(q, problem.q), (k, narrow(problem.k)), (v, narrow(problem.v))]
        if mask:
            seen = np.tril(np.ones((s.len_q, s.len_kv), bool), s.len_kv - s.len_q)
            hidden = np.where(seen, 0, -np.inf).astype(np.float16)
            data.append((mask, hidden))
        for tensor, array in data:
            array = np.ascontiguousarray(array)
            self.backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)

        def run():
            if self.backend_graph_compute(self.backend, graph):
                raise NoWay("ggml_backend_graph_compute failed")

        def result():
            rows = np.empty((s.batch, s.len_q, s.heads, s.dim), np.float32)
            self.backend_tensor_get(out, rows.ctypes.data, 0, rows.nbytes)
            return rows.transpose(0, 2, 1, 3)

        return run, result


class OneDnn(Maker):
    """Attention as one fused partition of the graph API, through onednn_peer.c."""

    def __init__(self, options):
        super().__init__(options)
        self.lib = ctypes.CDLL(options["helper"])
        self.lib.onednn_prepare.restype = ctypes.c_void_p
        self.lib.onednn_prepare.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int] + \
            [ctypes.c_void_p] * 6
        self.lib.onednn_run.argtypes = [ctypes.c_void_p]
        self.lib.onednn_text.restype = ctypes.c_char_p

    def facts(self):
        numbers = (ctypes.c_int * 3)()
        self.lib.onednn_version(numbers)
        return {"version": ".".join(str(n) for n in numbers)}

    def variants(self, problem):
        for note, shape in self.shapes(problem):
            yield "graph" + note, lambda s=shape: self.graph(problem, s)

    def graph(self, problem, shape):
        s = shape
        wide = problem.dtype == "f32"
        narrow = (lambda x: x) if wide else problem.narrow
        q, k, v = (np.ascontiguousarray(narrow(x))
                   for x in (query_of(problem, s), problem.k, problem.v))
        out = np.full(q.shape, math.nan, np.float32)
        if not wide:
            out = problem.narrow(out)
        scale = np.array([1 / math.sqrt(s.dim)], np.float32)
        mask = None
        if s.causal:
            seen = np.tril(np.ones((s.len_q, s.len_kv), bool), s.len_kv - s.len_q)
            mask = np.where(seen, 0, -1e30).astype(np.float32)
        numbers = (ctypes.c_int * 6)(*s[:6])
        arrays = (q, k, v, out, scale, mask)
        handle = self.lib.onednn_prepare(int(not wide), numbers, int(s.causal),
                                         *[None if a is None else a.ctypes.data for a in arrays])
        if not handle:
            raise NoWay(self.lib.onednn_text().decode())

        def run(keep=arrays):
            if self.lib.onednn_run(handle):
                raise NoWay("execution failed")

        return run, lambda: (out if wide else problem.widen(out)).reshape(problem.q.shape)


PEERS = {"torch": Torch, "jax": Jax, "ggml": Ggml, "onednn": OneDnn}
