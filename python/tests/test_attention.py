# SPDX-License-Identifier: Apache-2.0
"""attention() on NumPy arrays against its definition in float64."""
import itertools
import unittest

import numpy as np

import clattn
import reference
from reference import Guarded, bf16_bits, from_bits

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

BATCH, HEADS, HEADS_KV, LEN_Q, LEN_KV, DIM, DIM_V = 2, 6, 2, 37, 53, 24, 17


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


class Problem:
    """Inputs of all features, drawn once for each seed."""

    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        self.q = normal(rng, BATCH, HEADS, LEN_Q, DIM)
        self.k = normal(rng, BATCH, HEADS_KV, LEN_KV, DIM)
        self.v = normal(rng, BATCH, HEADS_KV, LEN_KV, DIM_V)
        mask = rng.random((BATCH, 1, LEN_Q, LEN_KV)) < 0.7
        mask[0, 0, 3] = False  # a query that sees nothing
        bias = normal(rng, HEADS, LEN_Q, LEN_KV)
        bias[:, :, 5] = -np.inf
        slopes = np.float32(0.5) ** np.arange(1, HEADS + 1, dtype=np.float32)
        sinks = normal(rng, HEADS)
        lens = np.array([LEN_KV - 20, LEN_KV], np.int32)
        # Names as attention() has them: (arguments, arguments of the reference).
        self.features = {
            "causal": ({"causal": True}, {"causal": True}),
            "top-left": ({"align": "top-left"}, {"align": "top-left"}),
            "window": ({"window": (7, 4)}, {"window": (7, 4)}),
            "scale": ({"scale": 0.0}, {"scale": 0.0}),
            "softcap": ({"softcap": 1.5}, {"softcap": 1.5}),
            "mask": ({"mask": mask}, {"mask": mask}),
            "bias": ({"bias": bias}, {"bias": bias}),
            "alibi": ({"alibi_slopes": slopes}, {"slopes": slopes}),
            "sinks": ({"sinks": sinks}, {"sinks": sinks}),
            "kv_lens": ({"kv_lens": lens}, {"kv_lens": lens}),
        }


class Case(unittest.TestCase):
    def compare(self, got, expected, tolerance=3e-5, what=""):
        out, lse = got
        want, want_lse = expected
        self.assertEqual(out.shape, want.shape, what)
        error = np.abs(np.asarray(out, np.float64) - want).max(initial=0)
        self.assertLess(error, tolerance, what)
        finite = np.isfinite(want_lse)
        np.testing.assert_array_equal(np.isfinite(lse), finite, what)
        self.assertLess(np.abs(lse[finite] - want_lse[finite]).max(initial=0), 1e-4, what)


class Features(Case):
    def run_guarded(self, q, k, v, names, features, **more):
        arguments, expected = {}, {}
        for name in names:
            arguments.update(features[name][0])
            expected.update(features[name][1])
        out = Guarded((*q.shape[:-1], v.shape[-1]), np.float32, gap=3)
        lse = Guarded(q.shape[:-1], np.float32)
        result = clattn.attention(q, k, v, out=out.array, lse=lse.array, return_lse=True,
                                  device="cpu", **arguments, **more)
        self.assertIs(result[0], out.array)
        self.assertIs(result[1], lse.array)
        self.assertTrue(out.untouched() and lse.untouched(), names)
        self.compare(result, reference.attention(q, k, v, **expected), what=names)

    def test_none_each_and_all_pairs(self):
        p = Problem()
        for count in (0, 1, 2):
            for names in itertools.combinations(p.features, count):
                self.run_guarded(p.q, p.k, p.v, names, p.features)

    def test_everything_at_once(self):
        p = Problem(2)
        names = [name for name in p.features if name != "scale"]
        self.run_guarded(p.q, p.k, p.v, names, p.features)
        self.run_guarded(p.q, p.k, p.v, names, p.features, algo="reference")

    def test_odd_sizes(self):
        rng = np.random.default_rng(3)
        for len_q, len_kv, dim, dim_v in ((1, 1, 1, 1), (1, 200, 64, 64), (3, 2, 5, 9),
                                          (65, 129, 33, 40), (130, 1, 96, 96)):
            q, k, v = normal(rng, 1, 4, len_q, dim), normal(rng, 1, 4, len_kv, dim), \
                normal(rng, 1, 4, len_kv, dim_v)
            for causal in (False, True):
                got = clattn.attention(q, k, v, causal=causal, return_lse=True, device="cpu")
                self.compare(got, reference.attention(q, k, v, causal=causal))

    def test_empty(self):
        q, k = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 0, 4), np.float32)
        out, lse = clattn.attention(q, k, k, return_lse=True, device="cpu")
        self.assertTrue((out == 0).all() and (lse == -np.inf).all())
        self.assertEqual(clattn.attention(q[:0], k[:0], k[:0], device="cpu").shape, (0, 2, 3, 4))
        self.assertEqual(clattn.attention(q[:, :, :0], q, q, device="cpu").shape, (1, 2, 0, 4))

    def test_three_axes(self):
        p = Problem(4)
        out, lse = clattn.attention(p.q[0], p.k[0], p.v[0], causal=True, return_lse=True,
                                    device="cpu")
        self.compare((out, lse), reference.sequence(p.q[0], p.k[0], p.v[0], causal=True))

    def test_types(self):
        p = Problem(5)
        # The bound is the rounding of inputs that the reference sees too, and of the output.
        for dtype, tolerance in ((np.float16, 2e-3), ("bfloat16", 2e-2)):
            names = ["causal", "mask", "sinks", "softcap"]
            arguments = {k: v for n in names for k, v in p.features[n][0].items()}
            expected = {k: v for n in names for k, v in p.features[n][1].items()}
            if dtype == "bfloat16":
                q, k, v = (bf16_bits(x) for x in (p.q, p.k, p.v))
                want = reference.attention(*(from_bits(x) for x in (q, k, v)), **expected)
                out, lse = clattn.attention(q, k, v, dtype="bfloat16", return_lse=True,
                                            device="cpu", **arguments)
                self.assertEqual(out.dtype, np.uint16)
                self.compare((from_bits(out), lse), want, tolerance)
                full = clattn.attention(q, k, v, dtype="bfloat16", out_dtype=np.float32,
                                        return_lse=True, device="cpu", precision="full",
                                        **arguments)
                self.assertEqual(full[0].dtype, np.float32)
                self.compare(full, want)
                with self.assertRaisesRegex(TypeError, "bfloat16"):
                    clattn.attention(q, k, v, device="cpu")
                continue
            q, k, v = (x.astype(dtype) for x in (p.q, p.k, p.v))
            got = clattn.attention(q, k, v, return_lse=True, device="cpu", **arguments)
            self.assertEqual(got[0].dtype, dtype)
            self.compare(got, reference.attention(q, k, v, **expected), tolerance)
            mixed = clattn.attention(p.q, k, v, return_lse=True, device="cpu", **arguments)
            self.assertEqual(mixed[0].dtype, np.float32)
            self.compare(mixed, reference.attention(p.q, k, v, **expected))

    @unittest.skipUnless(ml_dtypes, "ml_dtypes is not installed")
    def test_ml_dtypes(self):
        p = Problem(6)
        q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (p.q, p.k, p.v))
        got = clattn.attention(q, k, v, causal=True, return_lse=True, device="cpu")
        self.assertEqual(got[0].dtype, ml_dtypes.bfloat16)
        self.compare(got, reference.attention(q, k, v, causal=True), 2e-2)
        bits = clattn.attention(*(x.view(np.uint16) for x in (q, k, v)), causal=True,
                                dtype="bfloat16", device="cpu")
        np.testing.assert_array_equal(bits, got[0].view(np.uint16))

    def test_bias_types(self):
        p = Problem(7)
        bias = p.features["bias"][0]["bias"]
        half = bias.astype(np.float16)
        got = clattn.attention(p.q, p.k, p.v, bias=half, return_lse=True, device="cpu")
        self.compare(got, reference.attention(p.q, p.k, p.v, bias=half))
        got = clattn.attention(p.q, p.k, p.v, bias=bf16_bits(bias), dtype="bfloat16",
                               return_lse=True, device="cpu")
        self.compare(got, reference.attention(p.q, p.k, p.v, bias=from_bits(bf16_bits(bias))))

    def test_alibi_of_each_sequence(self):
        p = Problem(8)
        slopes = np.random.default_rng(8).random((BATCH, HEADS), np.float32)
        got = clattn.attention(p.q, p.k, p.v, alibi_slopes=slopes, return_lse=True, device="cpu")
        self.compare(got, reference.attention(p.q, p.k, p.v, slopes=slopes))

    def test_broadcast_masks(self):
        p = Problem(9)
        rng = np.random.default_rng(9)
        for shape in ((LEN_KV,), (LEN_Q, 1), (HEADS, 1, LEN_KV), (BATCH, 1, 1, LEN_KV),
                      (1, 1, 1, 1)):
            mask = rng.random(shape) < 0.8
            for given in (mask, mask.astype(np.uint8) * 3):
                got = clattn.attention(p.q, p.k, p.v, mask=given, return_lse=True, device="cpu")
                self.compare(got, reference.attention(p.q, p.k, p.v, mask=mask), what=shape)
        turned = (rng.random((LEN_KV, LEN_Q)) < 0.8).T
        got = clattn.attention(p.q, p.k, p.v, mask=turned, return_lse=True, device="cpu")
        self.compare(got, reference.attention(p.q, p.k, p.v, mask=turned))

    def test_nothing_is_loaded_behind_lengths(self):
        p = Problem(10)
        lens = [LEN_KV - 9, 0]
        k, v = p.k.copy(), p.v.copy()
        for b, n in enumerate(lens):
            k[b, :, n:] = np.nan
            v[b, :, n:] = np.nan
        got = clattn.attention(p.q, k, v, kv_lens=lens, return_lse=True, device="cpu")
        self.compare(got, reference.attention(p.q, p.k, p.v, kv_lens=lens))


class Layouts(Case):
    """Strides of all kinds; nothing is copied, so what NumPy reaches the library must."""

    def test_bshd(self):
        p = Problem(11)
        q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (p.q, p.k, p.v))
        out, lse = clattn.attention(q, k, v, layout="bshd", causal=True, return_lse=True,
                                    device="cpu")
        self.assertEqual(out.shape, (BATCH, LEN_Q, HEADS, DIM_V))
        want = reference.attention(p.q, p.k, p.v, causal=True)
        self.compare((out.transpose(0, 2, 1, 3), lse), want)
        # The same memory, seen as the other layout.
        got = clattn.attention(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), causal=True,
                               return_lse=True, device="cpu")
        self.compare(got, want)

    def test_views(self):
        rng = np.random.default_rng(12)
        fused = normal(rng, BATCH, LEN_Q, 3, HEADS, DIM)  # as a model projects it
        q, k, v = (fused[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
        self.compare(clattn.attention(q, k, v, return_lse=True, device="cpu"),
                     reference.attention(q, k, v))
        wide = normal(rng, BATCH, HEADS, 2 * LEN_KV, DIM + 5)
        k, v = wide[:, ::3, ::2, :DIM], wide[:, ::3, 1::2, 5:]
        self.compare(clattn.attention(q, k, v, return_lse=True, device="cpu"),
                     reference.attention(q, k, v))

    def test_broadcast_keys(self):
        p = Problem(13)
        k = np.broadcast_to(p.k[:1, :1], p.k.shape)
        v = np.broadcast_to(p.v[:1, :1], p.v.shape)
        self.compare(clattn.attention(p.q, k, v, return_lse=True, device="cpu"),
                     reference.attention(p.q, k, v))

    def test_out_with_strides(self):
        p = Problem(14)
        memory = np.full((LEN_Q, BATCH, HEADS, 2 * DIM_V), np.nan, np.float32)
        out = memory[..., :DIM_V].transpose(1, 2, 0, 3)
        clattn.attention(p.q, p.k, p.v, out=out, device="cpu")
        self.assertLess(np.abs(out - reference.attention(p.q, p.k, p.v)[0]).max(), 3e-5)
        self.assertTrue(np.isnan(memory[..., DIM_V:]).all())

    def test_axes_of_one_element(self):
        # NumPy may have any stride there.
        q = np.lib.stride_tricks.as_strided(np.ones((8, 4), np.float32), (1, 1, 8, 4),
                                            (12, -20, 16, 4))
        out = np.lib.stride_tricks.as_strided(np.zeros((8, 4), np.float32), (1, 1, 8, 4),
                                              (4, 0, 16, 4))
        clattn.attention(q, q, q, out=out, device="cpu")
        self.assertLess(np.abs(out - 1).max(), 1e-6)

    def test_refused_strides(self):
        p = Problem(15)
        for bad, words in ((p.k[..., ::2], "contiguous"), (p.k[:, :, ::-1], "negative")):
            q = p.q[..., :bad.shape[-1]]
            with self.assertRaisesRegex(clattn.InvalidArgumentError, words) as caught:
                clattn.attention(q, bad, bad, device="cpu")
            self.assertEqual(caught.exception.status_name, "ERR_STRIDE")
        record = np.zeros(LEN_KV, [("x", np.float32, (DIM,)), ("y", np.int16)])["x"]
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "multiples"):
            clattn.attention(p.q[0], record[None], record[None], device="cpu")


class Sequences(Case):
    """Lengths that differ: padded, packed, on pages."""

    LENS_Q = [5, 0, 37, 1]
    LENS_KV = [21, 13, 37, 64]

    def setUp(self):
        rng = np.random.default_rng(20)
        self.qs = [normal(rng, HEADS, n, DIM) for n in self.LENS_Q]
        self.ks = [normal(rng, HEADS_KV, n, DIM) for n in self.LENS_KV]
        self.vs = [normal(rng, HEADS_KV, n, DIM_V) for n in self.LENS_KV]
        self.cu_q = np.cumsum([0, *self.LENS_Q])
        self.cu_kv = np.cumsum([0, *self.LENS_KV])
        self.slopes = rng.random(HEADS, np.float32)
        self.want = [reference.sequence(q, k, v, causal=True, slopes=self.slopes, window=(30, -1))
                     for q, k, v in zip(self.qs, self.ks, self.vs)]
        self.features = dict(causal=True, alibi_slopes=self.slopes, window=(30, -1),
                             return_lse=True, device="cpu")

    def check(self, out, lse):
        """out [heads, tokens, dim]"""
        for b, want in enumerate(self.want):
            part = slice(self.cu_q[b], self.cu_q[b + 1])
            self.compare((out[:, part], lse[:, part]), want, what=b)

    def test_packed(self):
        q, k, v = (np.concatenate(x, axis=1) for x in (self.qs, self.ks, self.vs))
        out, lse = clattn.attention(q, k, v, cu_seqlens_q=self.cu_q, cu_seqlens_kv=self.cu_kv,
                                    **self.features)
        self.assertEqual(lse.shape, (HEADS, self.cu_q[-1]))
        self.check(out, lse)
        out, lse = clattn.attention(*(x.transpose(1, 0, 2).copy() for x in (q, k, v)),
                                    cu_seqlens_q=self.cu_q.astype(np.int32),
                                    cu_seqlens_kv=list(self.cu_kv), layout="bshd",
                                    **self.features)
        self.check(out.transpose(1, 0, 2), lse)

    def test_packed_queries_on_padded_keys(self):
        k, v = (np.full((4, HEADS_KV, 70, d), np.nan, np.float32) for d in (DIM, DIM_V))
        for b, n in enumerate(self.LENS_KV):
            k[b, :, :n], v[b, :, :n] = self.ks[b], self.vs[b]
        out, lse = clattn.attention(np.concatenate(self.qs, axis=1), k, v, cu_seqlens_q=self.cu_q,
                                    kv_lens=self.LENS_KV, **self.features)
        self.check(out, lse)

    def paged(self, page, bshd):
        """Pools and a table, in an order that is none, with entries that nobody looks at."""
        rng = np.random.default_rng(21)
        needed = [-(-n // page) for n in self.LENS_KV]
        order = rng.permutation(sum(needed) + 2)
        table = np.full((4, max(needed) + 1), 10**6, np.int32)
        pools = [np.full((len(order), HEADS_KV, page, d), np.nan, np.float32)
                 for d in (DIM, DIM_V)]
        taken = 0
        for b, pages in enumerate(needed):
            table[b, :pages] = order[taken:taken + pages]
            taken += pages
            for pool, xs in zip(pools, (self.ks, self.vs)):
                for n in range(pages):
                    rows = xs[b][:, n * page:(n + 1) * page]
                    pool[table[b, n], :, :rows.shape[1]] = rows
        if bshd:
            pools = [np.ascontiguousarray(pool.transpose(0, 2, 1, 3)) for pool in pools]
        return pools, table

    def test_pages(self):
        for page, bshd in ((1, False), (16, False), (16, True)):
            pools, table = self.paged(page, bshd)
            q = np.concatenate(self.qs, axis=1)
            if bshd:
                q = np.ascontiguousarray(q.transpose(1, 0, 2))
            out, lse = clattn.attention(q, *pools, cu_seqlens_q=self.cu_q, page_table=table,
                                        kv_lens=self.LENS_KV, layout="bshd" if bshd else "bhsd",
                                        **self.features)
            self.check(out.transpose(1, 0, 2) if bshd else out, lse)
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "page"):
            table[2, 0] = -1
            clattn.attention(q, *pools, cu_seqlens_q=self.cu_q, page_table=table,
                             kv_lens=self.LENS_KV, layout="bshd", **self.features)

    def test_int8(self):
        p = Problem(22)
        k, k_scale = clattn.quantize(p.k)
        v, v_scale = clattn.quantize(p.v)
        want = reference.attention(p.q, k * k_scale[..., None], v * v_scale[..., None],
                                   causal=True)
        got = clattn.attention(p.q, k, v, k_scale=k_scale, v_scale=v_scale, causal=True,
                               return_lse=True, device="cpu")
        self.compare(got, want)
        turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (p.q, k, v, k_scale, v_scale)]
        out, lse = clattn.attention(*turned[:3], k_scale=turned[3], v_scale=turned[4],
                                    layout="bshd", causal=True, return_lse=True, device="cpu")
        self.compare((out.transpose(0, 2, 1, 3), lse), want)

    def test_wrong_types_name_the_argument(self):
        """What another library takes, or what is easily mixed up, and what to give instead."""
        q, k, v = self.qs[0][None], self.ks[0][None], self.vs[0][None]
        pairs = (1, 1, q.shape[2], k.shape[2])
        for given, words in (({"window": 5}, r"window is 5, not \(left, right\)"),
                             ({"window": (1, 2, 3)}, "window is"), ({"window": (1.5, 0)}, "window"),
                             ({"scale": "a"}, "scale is 'a', not a number"),
                             ({"causal": "top-left"}, 'the alignment is align="top-left"'),
                             ({"return_lse": "no"}, "return_lse is 'no'"),
                             ({"fallback": 2}, "fallback is 2"),
                             ({"softcap": [1, 2]}, "softcap is"),
                             ({"bias": np.ones(pairs, bool)}, "boolean mask is mask="),
                             ({"mask": np.ones(pairs, np.float32)}, "scores is bias=")):
            with self.assertRaisesRegex(TypeError, words):
                clattn.attention(q, k, v, device="cpu", **given)
        with self.assertRaisesRegex(TypeError, "q is list; give a numpy.ndarray"):
            clattn.attention(q.tolist(), k, v, device="cpu")

        plan = clattn.Plan(clattn.Context("cpu"), dim=q.shape[3], heads_q=q.shape[1],
                           heads_kv=k.shape[1], dim_v=v.shape[3])
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "v 3; the plan's dim is .* dim_v"):
            plan.run(q, k, v[..., :3])
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "q has 1 heads"):
            plan.run(q[:, :1], k[:, :1], v[:, :1])
        for given, words in (({"context": 3}, "is device="), ({"device": clattn.Context("cpu")},
                                                              "give it as context=")):
            with self.assertRaisesRegex(TypeError, words):
                clattn.attention(q, k, v, **given)
        # Words of the tools, one of which NumPy takes for another type.
        half = clattn.attention(q, k, v, device="cpu", out_dtype="f16")
        self.assertEqual(half.dtype, np.float16)

        class Elsewhere:
            """An array in memory that the processor does not see."""

            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, **_):
                raise BufferError("it is on a GPU")

        with self.assertRaisesRegex(TypeError, "k is Elsewhere.*give a copy in host memory"):
            clattn.attention(q, Elsewhere(), v, device="cpu")

    def test_refused_sequences(self):
        q, k, v = (np.concatenate(x, axis=1) for x in (self.qs, self.ks, self.vs))
        for cu_q, words in (([0, 5, 4, 9, 43], "cu_seqlens_q"), ([0, 5, 9], "number of sequences"),
                            ([0, 5, 5, 42, 10**6], "cu_seqlens_q")):
            with self.assertRaisesRegex(clattn.InvalidArgumentError, words):
                clattn.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=self.cu_kv,
                                 device="cpu")
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "int32"):
            clattn.attention(q[None], k[None], v[None], kv_lens=[2**40], device="cpu")
        with self.assertRaises(TypeError):
            clattn.attention(q[None], k[None], v[None], kv_lens=[1.5], device="cpu")


if __name__ == "__main__":
    unittest.main()
