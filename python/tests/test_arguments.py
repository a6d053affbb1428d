# SPDX-License-Identifier: Apache-2.0
"""What is no number, flag, list, queue or type is refused by name, and nothing is ignored."""
import collections
import unittest

import numpy as np

import clattn

X = np.random.default_rng(4).standard_normal((1, 2, 8, 16), np.float32)
ROWS = X[..., 0].copy()
INVALID = clattn.InvalidArgumentError
FROZEN = np.zeros(1, np.int32)
FROZEN.flags.writeable = False


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
                (TypeError, "dtype is 'bfloat16', but q is float32", {"dtype": "bfloat16"}),
                (TypeError, "dtype is 'f4,,'", {"dtype": "f4,,"}),
                (TypeError, "out_dtype is 3", {"out_dtype": 3}),
                (TypeError, "return_lse is ''", {"return_lse": ""}),
                (TypeError, "scale is '0.5'", {"scale": "0.5"}),
                (TypeError, "scale is 1000", {"scale": 10**400}),
                (TypeError, "layout is array", {"layout": np.zeros(2)}),
                (TypeError, "num_splits is True", {"num_splits": True, "algo": "split_kv"}),
                # What is written is no copy.
                (TypeError, "faults is list", {"faults": [0]}),
                (TypeError, "faults is int", {"faults": 0}),
                (TypeError, "faults is int64", {"faults": np.zeros(1, np.int64)}),
                (INVALID, r"faults has shape \(0,\)", {"faults": np.zeros(0, np.int32)}),
                (INVALID, "faults is read-only", {"faults": FROZEN}),
                (TypeError, "out is int", {"out": 3})):
            self.refuse(kind, words, clattn.attention, X, X, X,
                        **({"device": "cpu"} if "queue" not in given else {}), **given)
        self.refuse(TypeError, r"q is float64; .*\.astype\(np\.float32\)", clattn.attention,
                    X.astype(np.float64), X, X)
        self.refuse(TypeError, "k is float32 and v float16; they have one dtype", clattn.attention,
                    X, X, X.astype(np.float16))
        with self.assertRaises(TypeError) as caught:
            clattn.attention(X, X, X, out=np.empty(X.shape))
        self.assertNotIn("astype", str(caught.exception))
        want = clattn.attention(X, X, X, causal=True, device="cpu")
        for given in ({"dtype": "float32"}, {"causal": np.bool_(True)}, {"causal": np.int64(1)},
                      {"wait_for": ()}, {"wait_for": iter([])}, {"num_splits": np.int32(0)},
                      {"scale": np.float64(0.25)}, {"window": (np.int64(-1), -1)}):
            out = clattn.attention(X, X, X, **{"causal": True, "device": "cpu", **given})
            self.assertTrue((out == want).all(), given)

    def test_plan(self):
        self.refuse(TypeError, "heads_q is 'a'", clattn.Plan, heads_q="a", dim=16)
        self.refuse(TypeError, "dim is 1.5", clattn.Plan, heads_q=2, dim=1.5)
        self.refuse(INVALID, "max_batch is", clattn.Plan, heads_q=2, dim=16, max_batch=2**31)
        self.refuse(TypeError, "tile is 3", clattn.Plan, heads_q=2, dim=16, tile=3)
        self.refuse(TypeError, r"tile\.tile_q is 'x'", clattn.Plan, heads_q=2, dim=16,
                    algo="fused", tile=clattn.Tile("group", tile_q="x"))
        plan = clattn.Plan(clattn.Context("cpu"), heads_q=2, dim=16)
        self.refuse(TypeError, "causal is no argument .*: it decides about kernels", plan.run,
                    X, X, X, causal=True)
        self.refuse(TypeError, "sofcap is no argument .*: it takes .*softcap", plan.run, X, X, X,
                    sofcap=1.0)
        self.refuse(TypeError, "dtype is None", clattn.Plan, heads_q=2, dim=16, dtype=None)
        self.refuse(TypeError, "queue is 1", plan.enqueue, 1, X, X, X, out=X.copy())
        self.refuse(TypeError, "len_q is None", plan.warm_up, 1, None, 1)

    def test_what_a_plan_reads(self):
        """A plan reads what it was made for, and nothing else as if it were that."""
        ctx = clattn.Context("cpu")
        types = {"float32": np.float32, "float16": np.float16, "int8": np.int8}
        scale = np.ones(X.shape[:-1], np.float32)
        bias = np.zeros((8, 8), np.float32)
        for of_q, of_kv, of_bias in (("float32", "float32", "float32"),
                                     ("float16", "float32", "float16"),
                                     ("float32", "float16", "float32"),
                                     ("float32", "int8", "float16")):
            plan = clattn.Plan(ctx, heads_q=2, dim=16, dtype=of_q, kv_dtype=of_kv, bias=True,
                               bias_dtype=of_bias)
            right = {"q": X.astype(of_q), "k": X.astype(of_kv), "v": X.astype(of_kv),
                     "bias": bias.astype(of_bias)}
            scales = {"k_scale": scale, "v_scale": scale} if of_kv == "int8" else {}
            plan.run(**right, **scales)
            for name, array in right.items():
                for other in (*types.values(), np.float64, np.uint16):
                    if array.dtype != other:
                        with self.assertRaisesRegex(TypeError, f"{name} is "):
                            plan.run(**{**right, name: array.astype(other)}, **scales)
            if not scales:
                self.refuse(INVALID, "k_scale is given, but k and v are not int8", plan.run,
                            **right, k_scale=scale)
            else:
                self.refuse(INVALID, "int8, which needs v_scale=", plan.run, **right, k_scale=scale)
            self.refuse(INVALID, "made with bias=True, so a call needs bias=", plan.run,
                        *list(right.values())[:3], **scales)
            self.refuse(INVALID, "alibi_slopes is given, but the plan was made without alibi=True",
                        plan.run, **right, alibi_slopes=np.ones(2, np.float32), **scales)
        bits = (X.view(np.uint32) >> 16).astype(np.uint16)
        clattn.Plan(ctx, heads_q=2, dim=16, dtype="bfloat16").run(bits, bits, bits)
        paged = clattn.Plan(ctx, heads_q=2, dim=16, page_size=8, kv_lens=True)
        table = {"page_table": [[0]], "kv_lens": [4]}
        paged.run(X, X, X, **table)
        self.refuse(INVALID, "pages of 4 keys; the plan's page_size is 8", paged.run, X,
                    X[:, :, :4], X[:, :, :4], **table)
        self.refuse(INVALID, "made with page_size, so a call needs page_table=", paged.run, X, X, X,
                    kv_lens=[4])

    def test_packed(self):
        """Tokens of no sequence, and the other layout."""
        tokens, out = X[0], np.full(X[0].shape, 7, np.float32)
        packed = {"cu_seqlens_q": [1, 3, 6], "cu_seqlens_kv": [0, 4, 8], "device": "cpu"}
        got, lse = clattn.attention(tokens, tokens, tokens, return_lse=True, **packed)
        clattn.attention(tokens, tokens, tokens, out=out, **packed)
        for row in (0, 6, 7):
            self.assertTrue((got[:, row] == 0).all() and (lse[:, row] == -np.inf).all())
            self.assertTrue((out[:, row] == 7).all())
        self.assertTrue((got[:, 1:6] == out[:, 1:6]).all() and np.isfinite(lse[:, 1:6]).all())
        swapped = tokens.swapaxes(0, 1)
        self.refuse(INVALID, r'has 2 tokens; \[tokens, heads, dim\] is layout="bshd"',
                    clattn.attention, swapped, swapped, swapped, **packed)
        self.refuse(INVALID, "cu_seqlens_kv ends at 9, but k", clattn.attention, tokens, tokens,
                    tokens, **{**packed, "cu_seqlens_kv": [0, 4, 9]})
        self.refuse(INVALID, "page_table and cu_seqlens_kv are both given", clattn.attention,
                    tokens, X, X, page_table=[[0]], **packed)

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
        self.refuse(TypeError, "shape is ''", ctx.empty, "")
        self.refuse(INVALID, "which no memory holds", ctx.empty, (2**40, 2**40))
        for offset, kind in (("x", TypeError), (-4, INVALID)):
            self.refuse(kind, "offset is", clattn.DeviceArray, 4, (2,), "f4", offset=offset)
        self.refuse(TypeError, "strides is 3", clattn.DeviceArray, 4, (2,), "f4", strides=3)
        self.refuse(TypeError, "strides is 1.5", clattn.DeviceArray, 4, (2,), "f4", strides=[1.5])
        self.refuse(INVALID, "cache_dir is", clattn.Context, "cpu", cache_dir="a\0b")
        for shape in (3, np.int64(3), np.array(3), (3,), [3]):
            self.assertEqual(ctx.empty(shape, "f16").shape, (3,))
        self.assertEqual(ctx.empty(3, "f16").dtype, np.float16)
        self.assertTrue((np.asarray(ctx.upload(X)) == X).all())
        self.assertEqual(clattn.Context("cpu", cache=np.bool_(False),
                                        max_local_bytes=2**64 - 1).device.type, "builtin")

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
                (INVALID, r"lses\[0\] has 1 axes, not 2 or 3", clattn.merge, ([X], [3]), {}),
                (TypeError, r"lses\[0\] is object", clattn.merge, ([X], [None]), {}),
                (TypeError, r"but parts\[0\] is", clattn.merge, ([X], [ROWS]), {"dtype": "f16"}),
                (TypeError, "start is 'x'", clattn.rotary, (X, cos, sin), {"start": "x"}),
                (INVALID, "cos and sin belong together", clattn.rotary, (X, cos, None), {}),
                (TypeError, "but x is float32", clattn.rotary, (X, cos, sin), {"dtype": "f16"}),
                (INVALID, "cos and sin belong together", clattn.append, (X, X, *cache),
                 {"sin": sin}),
                (INVALID, "offsets and start are positions", clattn.append, (X, X, *cache),
                 {"start": 3}),
                (TypeError, "start is None", clattn.append, (X, X, *cache), {"start": None}),
                (INVALID, "pairs is 'x'", clattn.append, (X, X, *cache), {"pairs": "x"}),
                (TypeError, "faults is list", clattn.append, (X, X, *cache), {"faults": [0]}),
                (INVALID, "v_new and v_cache", clattn.append, (X, X, X.copy(), None), {}),
                (TypeError, "but k_new is", clattn.append, (X, X, *cache), {"dtype": "f16"})):
            self.refuse(kind, words, function, *args, device="cpu", **given)
        for kind, words, args in (
                (TypeError, "positions is 'x'", ("x", 4)), (INVALID, "positions is -1", (-1, 4)),
                (INVALID, "dim is 3, which is odd", (4, 3)), (INVALID, "dim is 0", (4, 0)),
                (INVALID, "base is -1.0", (4, 4, -1)), (TypeError, "base is 1000", (4, 4, 10**400)),
                (TypeError, "base is 'x'", (4, 4, "x"))):
            self.refuse(kind, words, clattn.rotary_tables, *args)
        out, lse = clattn.softmax(X, lse=np.full(X.shape[:-1], 7, np.float32), device="cpu")
        self.assertTrue((lse != 7).all() and out.shape == X.shape)  # who brings it wants it
        merged = clattn.merge(collections.deque([X]), (ROWS,), device="cpu")
        self.assertTrue((merged[0] == X).all())


if __name__ == "__main__":
    unittest.main()
