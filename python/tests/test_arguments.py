# SPDX-License-Identifier: Apache-2.0
"""What is no number, flag, list, queue or type is refused by name, and nothing is ignored."""
import unittest

import numpy as np

import clattn

X = np.random.default_rng(4).standard_normal((1, 2, 8, 16), np.float32)
ROWS = X[..., 0].copy()
INVALID = clattn.InvalidArgumentError


class Arguments(unittest.TestCase):
    def refuse(self, kind, words, function, *args, **kwargs):
        with self.subTest(words=words):
            with self.assertRaisesRegex(kind, words):
                function(*args, **kwargs)

    def test_attention(self):
        for kind, words, given in (
                (TypeError, r"queue is 1, not a pyopencl\.CommandQueue", {"queue": 1}),
                (TypeError, "wait_for is 3, not a list", {"wait_for": 3}),
                (TypeError, r"wait_for\[0\] is 3, not a pyopencl\.Event", {"wait_for": [3]}),
                (TypeError, "num_splits is 'x'", {"num_splits": "x", "algo": "split_kv"}),
                (TypeError, "num_splits is 1.5", {"num_splits": 1.5, "algo": "split_kv"}),
                (INVALID, r"num_splits is 3, but algo is 0 \(auto\)", {"num_splits": 3}),
                (INVALID, "num_splits is 2147483648, not", {"num_splits": 2**31}),
                (INVALID, r"window\[0\] is", {"window": (2**40, 0)}),
                (INVALID, r"algo is \[\], not one of", {"algo": []}),
                (INVALID, "max_len_q is for cu_seqlens_q", {"max_len_q": 8}),
                (INVALID, "max_len_kv is for cu_seqlens_kv or page_table", {"max_len_kv": 8}),
                (TypeError, "dtype is 'float33'", {"dtype": "float33"}),
                (TypeError, "dtype is 'float16', but q is float32", {"dtype": "float16"}),
                (TypeError, "out_dtype is 3", {"out_dtype": 3}),
                (TypeError, "out is int", {"out": 3})):
            self.refuse(kind, words, clattn.attention, X, X, X,
                        **({"device": "cpu"} if "queue" not in given else {}), **given)
        self.refuse(TypeError, r"q is float64; .*\.astype\(np\.float32\)", clattn.attention,
                    X.astype(np.float64), X, X)
        self.refuse(TypeError, "k is float32 and v float16; they have one dtype", clattn.attention,
                    X, X, X.astype(np.float16))
        out = clattn.attention(X, X, X, dtype="float32", device="cpu")  # its own is none to convert
        self.assertTrue((out == clattn.attention(X, X, X, device="cpu")).all())

    def test_plan(self):
        self.refuse(TypeError, "heads_q is 'a'", clattn.Plan, heads_q="a", dim=16)
        self.refuse(TypeError, "dim is 1.5", clattn.Plan, heads_q=2, dim=1.5)
        self.refuse(INVALID, "max_batch is", clattn.Plan, heads_q=2, dim=16, max_batch=2**31)
        self.refuse(TypeError, "tile is 3", clattn.Plan, heads_q=2, dim=16, tile=3)
        self.refuse(TypeError, r"tile\.tile_q is 'x'", clattn.Plan, heads_q=2, dim=16,
                    algo="fused", tile=clattn.Tile("group", tile_q="x"))
        plan = clattn.Plan(clattn.Context("cpu"), heads_q=2, dim=16)
        self.refuse(TypeError, "causal is no argument of a call", plan.run, X, X, X, causal=True)
        self.refuse(TypeError, "queue is 1", plan.enqueue, 1, X, X, X, out=X.copy())
        self.refuse(TypeError, "len_q is None", plan.warm_up, 1, None, 1)

    def test_context(self):
        self.refuse(TypeError, "threads is 'x'", clattn.Context, "cpu", threads="x")
        self.refuse(TypeError, "cache is 'off'", clattn.Context, "cpu", cache="off")
        self.refuse(TypeError, "cache_dir is 3", clattn.Context, "cpu", cache_dir=3)
        self.refuse(INVALID, "max_group is -1", clattn.Context, "cpu", max_group=-1)
        self.refuse(INVALID, "threads is -1", clattn.Context, "cpu", threads=-1)
        self.refuse(TypeError, "context is 3, not a pyopencl", clattn.Context.from_opencl, 3)
        self.refuse(TypeError, "device is 'a', not a pyopencl", clattn.Context.from_opencl, 3, "a")
        ctx = clattn.Context("cpu")
        self.refuse(INVALID, "shape is -1", ctx.empty, (2, -1))
        self.refuse(TypeError, "shape is 'x'", ctx.empty, "x")
        self.assertEqual(ctx.empty(np.int64(3)).shape, (3,))

    def test_around(self):
        cos, sin = clattn.rotary_tables(16, 16)
        cache = X.copy(), X.copy()
        for kind, words, function, args, given in (
                (TypeError, "return_lse is 'no'", clattn.softmax, (X,), {"return_lse": "no"}),
                (TypeError, "fallback is 'no'", clattn.softmax, (X,), {"fallback": "no"}),
                (TypeError, "scale is 'a'", clattn.softmax, (X,), {"scale": "a"}),
                (TypeError, "dtype is 'f16', but x is float32", clattn.softmax, (X,),
                 {"dtype": "f16"}),
                (TypeError, "out is int", clattn.softmax, (X,), {"out": 3}),
                (TypeError, "parts is ndarray, not a list", clattn.merge, (X, ROWS), {}),
                (TypeError, "lses is int, not a list", clattn.merge, ([X], 2), {}),
                (TypeError, "fallback is 'x'", clattn.merge, ([X], [ROWS]), {"fallback": "x"}),
                (TypeError, "out is int", clattn.merge, ([X], [ROWS]), {"out": 3}),
                (TypeError, r"but parts\[0\] is", clattn.merge, ([X], [ROWS]), {"dtype": "f16"}),
                (TypeError, "start is 'x'", clattn.rotary, (X, cos, sin), {"start": "x"}),
                (INVALID, "cos and sin belong together", clattn.rotary, (X, cos, None), {}),
                (TypeError, "but x is float32", clattn.rotary, (X, cos, sin), {"dtype": "f16"}),
                (INVALID, "cos and sin belong together", clattn.append, (X, X, *cache),
                 {"sin": sin}),
                (INVALID, "offsets and start are positions", clattn.append, (X, X, *cache),
                 {"start": 3}),
                (INVALID, "v_new and v_cache", clattn.append, (X, X, X.copy(), None), {}),
                (TypeError, "but k_new is", clattn.append, (X, X, *cache), {"dtype": "f16"})):
            self.refuse(kind, words, function, *args, device="cpu", **given)
        for kind, words, args in (
                (TypeError, "positions is 'x'", ("x", 4)), (INVALID, "positions is -1", (-1, 4)),
                (INVALID, "dim is 3, which is odd", (4, 3)), (INVALID, "dim is 0", (4, 0)),
                (INVALID, "base is -1.0", (4, 4, -1)), (TypeError, "base is 'x'", (4, 4, "x"))):
            self.refuse(kind, words, clattn.rotary_tables, *args)


if __name__ == "__main__":
    unittest.main()
