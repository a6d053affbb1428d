# SPDX-License-Identifier: Apache-2.0
"""Softmax, merging, rotary position embedding, caches, int8."""
import unittest

import numpy as np

import clattn
import reference
from reference import Guarded, bf16_bits, from_bits


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def softmax64(x, scale=1.0):
    x = np.asarray(x, np.float64) * scale
    top = x.max(axis=-1, keepdims=True)
    e = np.exp(x - top)
    return e / e.sum(axis=-1, keepdims=True), (top + np.log(e.sum(axis=-1, keepdims=True)))[..., 0]


class Softmax(unittest.TestCase):
    def test_algorithms(self):
        x = normal(1, 3, 5, 301)
        want, want_lse = softmax64(x, 0.7)
        for algo in (None, "online", "safe", "naive"):
            for path in ("host", "reference"):
                if path == "reference" and algo not in (None, "safe"):
                    continue
                out = Guarded(x.shape, np.float32)
                got, lse = clattn.softmax(x, scale=0.7, algo=algo, path=path, out=out.array,
                                          return_lse=True, device="cpu")
                self.assertLess(np.abs(got - want).max(), 1e-6)
                self.assertLess(np.abs(lse - want_lse).max(), 1e-5)
                self.assertTrue(out.untouched())

    def test_strides_types_in_place(self):
        wide = normal(2, 40, 64)
        want = softmax64(wide[::2, :33])[0]
        self.assertLess(np.abs(clattn.softmax(wide[::2, :33], device="cpu") - want).max(), 1e-6)
        half = clattn.softmax(wide.astype(np.float16), out_dtype=np.float32, device="cpu")
        self.assertLess(np.abs(half - softmax64(wide.astype(np.float16))[0]).max(), 1e-6)
        bits = clattn.softmax(bf16_bits(wide), dtype="bfloat16", device="cpu")
        self.assertLess(np.abs(from_bits(bits) - softmax64(from_bits(bf16_bits(wide)))[0]).max(),
                        4e-3)
        copy = wide.copy()
        self.assertIs(clattn.softmax(copy, out=copy, device="cpu"), copy)
        self.assertLess(np.abs(copy - softmax64(wide)[0]).max(), 1e-6)
        self.assertEqual(clattn.softmax(np.ones(7, np.float32), device="cpu").shape, (7,))
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "contiguous"):
            clattn.softmax(wide.T, device="cpu")
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "evenly"):
            clattn.softmax(normal(3, 4, 6, 8)[:, :5], device="cpu")


class Merge(unittest.TestCase):
    def test_parts_are_the_whole(self):
        q, k, v = normal(4, 2, 4, 9, 16), normal(5, 2, 2, 77, 16), normal(6, 2, 2, 77, 12)
        sinks = normal(7, 4)
        want, want_lse = reference.attention(q, k, v, sinks=sinks)
        for cuts in ([0, 77], [0, 30, 31, 77], [*range(0, 77, 4), 77]):
            parts, lses = zip(*(clattn.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True,
                                                 device="cpu")
                                for a, b in zip(cuts, cuts[1:])))
            out, lse = clattn.merge(parts, lses, sinks=sinks, device="cpu")
            self.assertLess(np.abs(out - want).max(), 2e-5)
            self.assertLess(np.abs(lse - want_lse).max(), 2e-5)

    def test_layouts_and_empty_parts(self):
        part = normal(8, 2, 5, 3, 4)  # [batch, sequence, heads, dim]
        lse = normal(9, 2, 3, 5)
        stale = np.full_like(part, np.nan)
        nothing = np.full_like(lse, -np.inf)
        out, sums = clattn.merge([stale, part], [nothing, lse], layout="bshd", device="cpu")
        np.testing.assert_array_equal(out, part)
        np.testing.assert_array_equal(sums, lse)
        out, _ = clattn.merge([part, part], [lse, lse], layout="bshd", out=part.copy(),
                              device="cpu")
        self.assertLess(np.abs(out - part).max(), 1e-6)
        with self.assertRaises(clattn.InvalidArgumentError):
            clattn.merge([part, part[:1]], [lse, lse], layout="bshd", device="cpu")


def turn(x, cos, sin, positions, pairs):
    """x [..., len, dim] in float64; positions [len]."""
    x = np.asarray(x, np.float64)
    half = cos.shape[1]
    first, second = ((slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if pairs == "interleaved"
                     else (slice(0, half), slice(half, 2 * half)))
    c, s = cos[positions].astype(np.float64), sin[positions].astype(np.float64)
    out = x.copy()
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out


class Rotary(unittest.TestCase):
    def test_tables(self):
        cos, sin = clattn.rotary_tables(50, 12, base=100.0)
        angle = np.arange(50)[:, None] * 100.0 ** (-2 * np.arange(6) / 12)
        self.assertLess(np.abs(cos - np.cos(angle)).max(), 1e-7)
        self.assertLess(np.abs(sin - np.sin(angle)).max(), 1e-7)
        with self.assertRaises(clattn.InvalidArgumentError):
            clattn.rotary_tables(50, 13)

    def test_rotary(self):
        x = normal(10, 2, 3, 7, 20)
        cos, sin = clattn.rotary_tables(64, 16)
        for pairs in ("interleaved", "half-split"):
            out = clattn.rotary(x, cos, sin, offsets=[5, 50], start=2, pairs=pairs, device="cpu")
            for b, offset in enumerate((5, 50)):
                want = turn(x[b], cos, sin, np.arange(7) + offset + 2, pairs)
                self.assertLess(np.abs(out[b] - want).max(), 1e-6)
            same = x.copy()
            self.assertIs(clattn.rotary(same, cos, sin, offsets=[5, 50], start=2, pairs=pairs,
                                        out=same, device="cpu"), same)
            np.testing.assert_array_equal(same, out)
        with self.assertRaises(clattn.InvalidArgumentError):
            clattn.rotary(x, cos, sin, offsets=[5, 60], device="cpu")


class Cache(unittest.TestCase):
    def test_contiguous(self):
        k, v = normal(11, 2, 3, 4, 8), normal(12, 2, 3, 4, 6)
        caches = [np.full((2, 3, 10, d), np.nan, np.float32) for d in (8, 6)]
        clattn.append(k, v, *caches, lens=[0, 5], new_lens=[4, 2], device="cpu")
        for new, cache in zip((k, v), caches):
            np.testing.assert_array_equal(cache[0, :, :4], new[0])
            np.testing.assert_array_equal(cache[1, :, 5:7], new[1, :, :2])
            self.assertTrue(np.isnan(cache[0, :, 4:]).all() and np.isnan(cache[1, :, :5]).all())
        with self.assertRaises(clattn.InvalidArgumentError) as caught:
            clattn.append(k, v, *caches, lens=[0, 8], device="cpu")
        self.assertEqual(caught.exception.status_name, "ERR_SHAPE")

    def test_decoding_on_pages_is_one_causal_pass(self):
        steps, page = 11, 4
        for bshd, int8 in ((False, False), (True, False), (False, True)):
            q, k, v = normal(13, 2, 4, steps, 16), normal(14, 2, 2, steps, 16), \
                normal(15, 2, 2, steps, 16)
            cos, sin = clattn.rotary_tables(steps, 16)
            turned = [turn(x, cos, sin, np.arange(steps), "half-split").astype(np.float32)
                      for x in (q, k)]
            want = reference.attention(*turned, v, causal=True)[0]
            table = np.random.default_rng(16).permutation(7)[:6].reshape(2, 3)
            shape = (7, page, 2, 16) if bshd else (7, 2, page, 16)
            pools = [np.full(shape, 0 if int8 else np.nan, np.int8 if int8 else np.float32)
                     for _ in range(2)]
            scales = {}
            if int8:
                scales = {name: np.zeros(shape[:-1], np.float32)
                          for name in ("k_scale", "v_scale")}
            layout = "bshd" if bshd else "bhsd"

            def token(x, t):
                x = x[:, :, t:t + 1]
                return x.transpose(0, 2, 1, 3) if bshd else x
            for t in range(steps):
                clattn.append(token(k, t), token(v, t), *pools, lens=[t, t], page_table=table,
                              cos=cos, sin=sin, pairs="half-split", layout=layout, device="cpu",
                              **scales)
                out = clattn.attention(token(turned[0], t), *pools, page_table=table,
                                       kv_lens=[t + 1, t + 1], layout=layout, device="cpu",
                                       **scales)
                error = np.abs(out - token(want, t)).max()
                self.assertLess(error, 5e-2 if int8 else 2e-5)


class Int8(unittest.TestCase):
    def test_quantize(self):
        x = normal(17, 3, 5, 33)
        x[1, 1] = 0
        rounded, scale = clattn.quantize(x)
        self.assertEqual((rounded.dtype, scale.shape), (np.int8, (3, 5)))
        self.assertTrue((np.abs(x - rounded * scale[..., None]) <= scale[..., None] * 0.501).all())
        self.assertTrue((scale[1, 1] == 0) and (rounded[1, 1] == 0).all())
        x[2, 2, 2] = np.inf
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "12"):
            clattn.quantize(x)


if __name__ == "__main__":
    unittest.main()
