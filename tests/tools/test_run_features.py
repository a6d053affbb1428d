#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-run: types of storage, window, bias, ALiBi, soft-cap, sinks, sequences of their
own lengths, pages. Expectations are computed by the definition in this file."""
import json
import math
import os
import struct
import sys
import tempfile
import unittest.mock

from tool_case import (CPU, DEVICES, INPUTS, Folder, attention, bf16_bits, from_bf16, main, pattern,
                       read_npy, size_of, swap_axes, to_f16, to_f32)

REFERENCE = ["--algo=reference", *CPU]


def rows_of(shape, values, b, first, count):
    """The tokens first.. of sequence b of [batch, heads, length, dim]."""
    _, heads, length, dim = shape
    out = []
    for h in range(heads):
        at = ((b * heads + h) * length + first) * dim
        out += values[at:at + count * dim]
    return (1, heads, count, dim), out


def join(parts):
    """Sequences [1, heads, length, dim] one after the other along the length."""
    heads, dim = parts[0][0][1], parts[0][0][3]
    out = []
    for h in range(heads):
        for (_, _, length, _), values in parts:
            out += values[h * length * dim:(h + 1) * length * dim]
    return (1, heads, sum(shape[2] for shape, _ in parts), dim), out


def random_numbers(count, seed):
    return [((n * n * 7919 + n * 104729 + seed * 31) % 1009) / 504.5 - 1 for n in range(count)]


def quantized(values, dim):
    """int8 with a scale a row, as what it stands for."""
    out = []
    for at in range(0, len(values), dim):
        row = values[at:at + dim]
        scale = to_f32([max(map(abs, row)) / 127])[0]
        out += [scale * max(-127, min(127, round(to_f32([x / scale])[0]))) if scale else 0.0
                for x in row]
    return out


class Features(Folder):
    """On the CPU path and by the double reference."""

    targets = [CPU, REFERENCE]

    def full(self):
        return self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v

    def check(self, want, lse, *args, o_shape=None, lse_shape=None, tolerance=1e-5, inputs=INPUTS):
        o_shape = o_shape or self.Q_SHAPE
        for target in self.targets:
            with self.subTest(target=target, args=args):
                self.run_ok(*inputs, "-o", "o.npy", "--lse=lse.npy", *target, *args)
                shape, got = read_npy(self.path("o.npy"))
                self.assertEqual(shape, o_shape)
                self.assert_close(got, want, tolerance)
                shape, got = read_npy(self.path("lse.npy"))
                self.assertEqual(shape, lse_shape or o_shape[:3])
                self.assert_close(got, lse, tolerance)

    # ---- scores --------------------------------------------------------------------------------

    def test_window(self):
        off = self.K_SHAPE[2] - self.Q_SHAPE[2]
        inside = lambda left, right, at: lambda b, h, i, j: (
            (left < 0 or j >= i + at - left) and (right < 0 or j <= i + at + right))
        for text, args, left, right, at in (
                ("2,1", [], 2, 1, off), ("0,0", [], 0, 0, off), ("-1,2", [], -1, 2, off),
                ("3,-1", [], 3, -1, off), ("1,1", ["--align=top-left"], 1, 1, 0),
                ("2,3", ["--causal"], 2, 0, off), ("-1,-1", [], -1, -1, off)):
            want = attention(*self.full(), mask=inside(left, right, at))
            self.check(*want, "--window", text, *args)

    def test_softcap(self):
        self.check(*attention(*self.full(), softcap=0.5, scale=3), "--softcap=0.5", "--scale=3")
        self.check(*attention(*self.full()), "--softcap=0")

    def bias_of(self, shape, values):
        def bias(*index):
            flat = 0
            for n, i in zip(shape, index):
                flat = flat * n + (i if n > 1 else 0)
            return values[flat]
        return bias

    def test_bias(self):
        full = self.Q_SHAPE[:3] + (self.K_SHAPE[2],)
        for bits in (15, 12, 0, 6, 9):
            shape = tuple(n if bits >> axis & 1 else 1 for axis, n in enumerate(full))
            values = random_numbers(size_of(shape), bits)
            if bits:
                values[::5] = [-math.inf] * len(values[::5])
            self.save("b.npy", shape, values)
            want = attention(*self.full(), bias=self.bias_of(shape, values), softcap=1)
            self.check(*want, "--bias", "b.npy", "--softcap=1")
            half = to_f16(values)
            want = attention(*self.full(), bias=self.bias_of(shape, half))
            self.save("h.npy", shape, half, descr="<f2")
            self.check(*want, "--bias", "h.npy")
            self.check(*want, "--bias=b.npy", "--bias-dtype=f16")
            bits16 = bf16_bits(values)
            want = attention(*self.full(), bias=self.bias_of(shape, from_bf16(bits16)))
            self.save("u.npy", shape, bits16, descr="<u2")
            self.check(*want, "--bias=u.npy", "--bias-dtype=bf16")

    def test_alibi(self):
        off = self.K_SHAPE[2] - self.Q_SHAPE[2]
        slopes = [0.5, 0.25, 0.125, 1.5, 0.75, 0.0, 2.0, 0.0625]
        self.save("one.npy", (4,), slopes[:4])
        self.save("all.npy", (2, 4), slopes)
        for name, batch in (("one.npy", 0), ("all.npy", 1)):
            for args, at in (([], off), (["--align=top-left"], 0)):
                want = attention(*self.full(), bias=lambda b, h, i, j:
                                 -slopes[batch * b * 4 + h] * abs(i + at - j))
                self.check(*want, "--alibi", name, *args)

    def test_sinks(self):
        sinks = [0.5, -math.inf, 3.0, -1.0]
        self.save("s.npy", (4,), sinks)
        self.check(*attention(*self.full(), sinks=sinks), "--sinks", "s.npy")
        self.save("m.npy", (1, 1, 1, 1), [0], descr="|b1")
        count = size_of(self.Q_SHAPE)
        self.check([0.0] * count, [sinks[n // 5 % 4] for n in range(count // 12)],
                   "--sinks=s.npy", "--mask=m.npy")

    # ---- types ---------------------------------------------------------------------------------

    def save_all(self, convert, descr):
        for name, shape, values in (("q", self.Q_SHAPE, self.q), ("k", self.K_SHAPE, self.k),
                                    ("v", self.K_SHAPE, self.v)):
            self.save(name + ".npy", shape, convert(values), descr=descr)

    def check_type(self, want, lse, descr, convert, *args):
        for target in self.targets:
            self.run_ok(*INPUTS, "-o", "o.npy", "--lse=l.npy", *target, *args)
            shape, got = read_npy(self.path("o.npy"), descr)
            self.assertEqual(shape, self.Q_SHAPE)
            self.assert_close(convert(got), want, 1e-3 if descr == "<f2" else 8e-3)
            # Scores and sums are float32 or at most products of 16 bits.
            self.assert_close(read_npy(self.path("l.npy"))[1], lse, 1e-3)

    def test_f16(self):
        self.q, self.k, self.v = (random_numbers(len(x), n) for n, x in
                                  enumerate((self.q, self.k, self.v)))
        # Files of f32 are rounded when they are read.
        self.save_all(list, "<f4")
        self.q, self.k, self.v = map(to_f16, (self.q, self.k, self.v))
        want = attention(*self.full())
        self.check_type(*want, "<f2", list, "--dtype=f16")
        self.save_all(list, "<f2")
        self.check_type(*want, "<f2", list)
        self.check_type(*want, "<f2", list, "--dtype", "f16")
        self.check(*want, "--dtype=f32")
        self.save("want.npy", self.Q_SHAPE, want[0])
        self.save("want16.npy", self.Q_SHAPE, to_f16(want[0]), descr="<f2")
        for name in ("want.npy", "want16.npy"):
            text = self.run_ok(*INPUTS, "--compare", name, *REFERENCE)
            self.assertRegex(text, r"compare +passed: 0 of 480 elements are over 0.002 ")
            self.assertRegex(text, r"(?m)^types +f16$")

    def test_bf16(self):
        self.q, self.k, self.v = (random_numbers(len(x), n) for n, x in
                                  enumerate((self.q, self.k, self.v)))
        self.save_all(list, "<f4")
        self.q, self.k, self.v = (from_bf16(bf16_bits(x)) for x in (self.q, self.k, self.v))
        want = attention(*self.full())
        self.check_type(*want, "<u2", from_bf16, "--dtype=bf16")
        self.save_all(bf16_bits, "<u2")
        self.check_type(*want, "<u2", from_bf16, "--dtype=bf16")
        self.save("want.npy", self.Q_SHAPE, bf16_bits(want[0]), descr="<u2")
        report = json.loads(self.run_ok(*INPUTS, "--compare", "want.npy", "--dtype=bf16", "--json",
                                        *REFERENCE))
        self.assertEqual((report["dtype"], report["kv_dtype"]), ("bf16", "bf16"))
        self.assertEqual(report["compare"]["tolerance"], 1.6e-2)
        # K and V alone, whatever the files of Q.
        self.save("q.npy", self.Q_SHAPE, self.q)
        self.check(*want, "--kv-dtype=bf16")

    def test_rounding(self):
        """Every kind of number by way of O: one key, whose V comes out unchanged."""
        halves = [n for n in range(0x7c00)] + [0x8000 + n for n in range(0x7c00)]
        numbers = [struct.unpack("<e", struct.pack("<H", h))[0] for h in halves]
        # Between two numbers, on the tie, and a little to both sides of it.
        near = []
        for x, y in zip(numbers[:0x7bff:97], numbers[1:0x7c00:97]):
            near += [(x + y) / 2, to_f32([(x + y) / 2 * (1 + 1e-6)])[0],
                     to_f32([(x + y) / 2 * (1 - 1e-6)])[0]]
        numbers += near + [-x for x in near]
        count = -(-len(numbers) // 512)
        numbers += [0.0] * (512 * count - len(numbers))
        self.save("q.npy", (1, count, 1, 1), [0.0] * count)
        self.save("k.npy", (1, count, 1, 1), [0.0] * count)
        self.save("v.npy", (1, count, 1, 512), numbers)
        self.run_ok(*INPUTS, "-o", "o.npy", "--dtype=f16", *REFERENCE)
        self.assertEqual(read_npy(self.path("o.npy"), "<f2")[1], to_f16(numbers))
        self.run_ok(*INPUTS, "-o", "o.npy", "--dtype=bf16", *REFERENCE)
        self.assertEqual(from_bf16(read_npy(self.path("o.npy"), "<u2")[1]),
                         from_bf16(bf16_bits(numbers)))

    def test_int8(self):
        self.k[:12], self.v[12:24] = [0.0] * 12, [0.0] * 12  # a row of zeros
        self.v = [x * 10 for x in self.v]
        self.save_all(list, "<f4")
        exact = attention(*self.full())[0]
        k, v = quantized(self.k, 12), quantized(self.v, 12)
        want = attention(self.Q_SHAPE, self.q, self.K_SHAPE, k, v)
        self.check(*want, "--kv-dtype=int8")
        for layout, shape in (("bshd", (2, 9, 2, 12)),):
            for name, x, values in (("q", self.Q_SHAPE, self.q), ("k", self.K_SHAPE, self.k),
                                    ("v", self.K_SHAPE, self.v)):
                self.save(name + ".npy", *swap_axes(x, values))
            self.check(swap_axes(self.Q_SHAPE, want[0])[1], want[1], "--kv-dtype=int8",
                       "--layout=bshd", o_shape=(2, 5, 4, 12), lse_shape=(2, 4, 5))
        self.save("want.npy", *swap_axes(self.Q_SHAPE, exact))
        text = self.run_ok(*INPUTS, "--layout=bshd", "--compare=want.npy", "--kv-dtype=int8",
                           *REFERENCE)
        self.assertRegex(text, r"(?m)^types +f32, K and V int8$")

    # ---- sequences -----------------------------------------------------------------------------

    def sequence(self, b, q_first, q_count, k_first, k_count, **more):
        """O and LSE of one sequence; bottom-right alignment where it is causal."""
        q = rows_of(self.Q_SHAPE, self.q, b, q_first, q_count)
        k = rows_of(self.K_SHAPE, self.k, b, k_first, k_count)
        v = rows_of(self.K_SHAPE, self.v, b, k_first, k_count)
        if more.pop("is_causal", False):
            more["causal"] = k_count - q_count
        return attention(*q, *k, v[1], **more)

    def test_kv_lens(self):
        for lens in ((9, 4), (0, 7), (3, 9)):
            for descr in ("<i4", "<i8"):
                self.save("lens.npy", (2,), lens, descr=descr)
                for args, causal in (([], False), (["--causal"], True)):
                    parts = [self.sequence(b, 0, 5, 0, n, is_causal=causal)
                             for b, n in enumerate(lens)]
                    self.check(parts[0][0] + parts[1][0], parts[0][1] + parts[1][1],
                               "--kv-lens=lens.npy", *args)

    def test_packed(self):
        """Ten tokens of queries and eighteen of keys in three sequences, one of them empty."""
        lens_q, lens_kv = (3, 0, 6), (4, 5, 9)
        cu_q, cu_kv = (0, 3, 3, 9), (0, 4, 9, 18)
        q_shape, k_shape = (1, 4, 10, 12), (1, 2, 18, 12)
        q, k, v = pattern(0, q_shape), pattern(1, k_shape), pattern(2, k_shape)
        self.Q_SHAPE, self.K_SHAPE, self.q, self.k, self.v = q_shape, k_shape, q, k, v
        self.save_all(list, "<f4")
        self.save("cu_q.npy", (4,), cu_q, descr="<i4")
        self.save("cu_kv.npy", (4,), cu_kv, descr="<i8")
        packed = ["--cu-seqlens-q=cu_q.npy", "--cu-seqlens-kv", "cu_kv.npy"]
        for args, causal in (([], False), (["--causal"], True)):
            parts, lse = [], []
            for n in range(3):
                o, l = self.sequence(0, cu_q[n], lens_q[n], cu_kv[n], lens_kv[n], is_causal=causal)
                parts.append(((1, 4, lens_q[n], 12), o))
                lse.append(((1, 4, lens_q[n], 1), l))
            # The last token belongs to no sequence.
            parts.append(((1, 4, 1, 12), [0.0] * 48))
            lse.append(((1, 4, 1, 1), [-math.inf] * 4))
            want, want_lse = join(parts), join(lse)
            self.check(want[1], want_lse[1], *packed, *args)
        for name, x, values in (("q", q_shape, q), ("k", k_shape, k), ("v", k_shape, v)):
            self.save(name + ".npy", *swap_axes(x, values))
        self.check(swap_axes(*want)[1], want_lse[1], *packed, "--causal", "--layout=bshd",
                   o_shape=(1, 10, 4, 12), lse_shape=(1, 4, 10))
        # Mask and bias by positions inside the sequences, the longest of which has 6 and 9.
        bias = random_numbers(3 * 6 * 9, 1)
        self.save("b.npy", (3, 1, 6, 9), bias)
        parts = [((1, 4, lens_q[n], 12),
                  self.sequence(0, cu_q[n], lens_q[n], cu_kv[n], lens_kv[n], bias=lambda b, h, i, j:
                                bias[(n * 6 + i) * 9 + j])[0]) for n in range(3)]
        want = join(parts + [((1, 4, 1, 12), [0.0] * 48)])
        for target in self.targets:
            self.run_ok(*INPUTS, *packed, "--bias=b.npy", "--layout=bshd", "-o", "o.npy", *target)
            self.assert_close(read_npy(self.path("o.npy"))[1], swap_axes(*want)[1])

    def test_packed_queries_alone(self):
        """Keys padded, with lengths."""
        self.Q_SHAPE = (1, 4, 5, 12)
        self.q = pattern(0, self.Q_SHAPE)
        self.save("q.npy", self.Q_SHAPE, self.q)
        self.save("cu.npy", (3,), (0, 2, 5), descr="<i4")
        self.save("lens.npy", (2,), (9, 6), descr="<i4")
        parts = []
        for b, first, count, keys in ((0, 0, 2, 9), (1, 2, 3, 6)):
            q = rows_of(self.Q_SHAPE, self.q, 0, first, count)
            k = rows_of(self.K_SHAPE, self.k, b, 0, keys)
            v = rows_of(self.K_SHAPE, self.v, b, 0, keys)
            parts.append((q[0], attention(*q, *k, v[1])[0]))
        for target in self.targets:
            self.run_ok(*INPUTS, "--cu-seqlens-q=cu.npy", "--kv-lens=lens.npy", "-o", "o.npy",
                        *target)
            self.assert_close(read_npy(self.path("o.npy"))[1], join(parts)[1])

    def test_nothing_to_do(self):
        """No sequences, only empty ones, no keys, no pages: zeros and -inf."""
        self.save("none.npy", (0, 2, 3, 4), [])
        self.save("k.npy", (1, 2, 3, 4), [1.0] * 24)
        for name, cu in (("cu1", (0,)), ("cu3", (0, 0, 0)), ("cu_kv", (0, 1, 3)),
                         ("some", (0, 1, 2))):
            self.save(name + ".npy", (len(cu),), cu, descr="<i4")
        for total in (2, 0):
            self.save("q.npy", (1, 2, total, 4), [1.0] * (8 * total))
            for k, args in (("none", ["--cu-seqlens-q=cu1.npy"]),
                            ("k", ["--cu-seqlens-q=cu1.npy", "--cu-seqlens-kv=cu1.npy"]),
                            ("k", ["--cu-seqlens-q=cu3.npy", "--cu-seqlens-kv=cu_kv.npy"]),
                            ("k", ["--cu-seqlens-q=cu3.npy", "--cu-seqlens-kv=cu3.npy"]),
                            *([("k", ["--cu-seqlens-q=some.npy", "--cu-seqlens-kv=cu3.npy"])]
                              if total else [])):
                self.check([0.0] * (8 * total), [-math.inf] * (2 * total), *args,
                           inputs=["-q", "q.npy", "-k", k + ".npy", "-v", k + ".npy"],
                           o_shape=(1, 2, total, 4))
        self.save("q.npy", (2, 2, 1, 4), [1.0] * 16)
        self.save("lens.npy", (2,), (0, 0), descr="<i4")
        for pages, width in ((0, 0), (1, 1)):
            self.save("k.npy", (pages, 2, 4, 4), [math.nan] * (32 * pages))
            self.save("table.npy", (2, width), [9] * (2 * width), descr="<i4")
            self.check([0.0] * 16, [-math.inf] * 4, "--page-table=table.npy", "--kv-lens=lens.npy",
                       inputs=["-q", "q.npy", "-k", "k.npy", "-v", "k.npy"], o_shape=(2, 2, 1, 4))

    def test_pages(self):
        """Pages of 4 keys in another order, NaN where nothing may be read."""
        lens, table = (9, 5), ((4, 0, 3, -7), (2, 5, 99, 99))
        parts = [self.sequence(b, 0, 5, 0, n, is_causal=True) for b, n in enumerate(lens)]
        want, lse = parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        pool = (6, 2, 4, 12)
        for name, values in (("k", self.k), ("v", self.v)):
            for fill, kind in ((math.nan, "nan"), (0.0, "zero")):
                pages = [fill] * size_of(pool)
                for b, n in enumerate(lens):
                    for j in range(n):
                        for h in range(2):
                            to = ((table[b][j // 4] * 2 + h) * 4 + j % 4) * 12
                            at = ((b * 2 + h) * 9 + j) * 12
                            pages[to:to + 12] = values[at:at + 12]
                self.save(f"{name}.{kind}.npy", pool, pages)
                self.save(f"{name}.{kind}.bshd.npy", *swap_axes(pool, pages))
        self.save("lens.npy", (2,), lens, descr="<i8")
        self.save("table.npy", (2, 4), table[0] + table[1], descr="<i4")
        self.save("q.bshd.npy", *swap_axes(self.Q_SHAPE, self.q))
        args = ["--page-table=table.npy", "--kv-lens", "lens.npy", "--causal"]
        inputs = ["-q", "q.npy", "-k", "k.nan.npy", "-v", "v.nan.npy"]
        self.check(want, lse, *args, inputs=inputs)
        bshd = [x.replace(".npy", ".bshd.npy") for x in inputs]
        self.check(swap_axes(self.Q_SHAPE, want)[1], lse, *args, "--layout=bshd", inputs=bshd,
                   o_shape=(2, 5, 4, 12), lse_shape=(2, 4, 5))
        parts = [attention(*rows_of(self.Q_SHAPE, self.q, b, 0, 5),
                           *rows_of(self.K_SHAPE, quantized(self.k, 12), b, 0, n),
                           rows_of(self.K_SHAPE, quantized(self.v, 12), b, 0, n)[1],
                           causal=n - 5) for b, n in enumerate(lens)]
        self.check(parts[0][0] + parts[1][0], parts[0][1] + parts[1][1], *args, "--kv-dtype=int8",
                   inputs=[x.replace("nan", "zero") for x in inputs])

    def test_reports(self):
        self.save("lens.npy", (2,), (9, 3), descr="<i4")
        self.save("a.npy", (4,), (1, 1, 1, 1))
        args = [*INPUTS, "-o", "o.npy", "--causal", "--window=4,-1", "--softcap=20",
                "--kv-lens=lens.npy", "--alibi=a.npy", "--kv-dtype=f16", *REFERENCE]
        text = self.run_ok(*args)
        self.assertRegex(text, r"(?m)^features +causal, window 4,-1, alibi, softcap 20, "
                               r"kv lengths$")
        self.assertRegex(text, r"(?m)^types +f32, K and V f16$")
        report = json.loads(self.run_ok(*args, "--json"))
        self.assertEqual((report["window"], report["softcap"], report["kv_dtype"]),
                         ([4, -1], 20, "f16"))
        self.assertEqual([report[key] for key in ("causal", "alibi", "kv_lens", "sinks", "mask",
                                                  "packed_q", "page_size", "bias")],
                         [True, True, True, False, False, False, None, None])
        self.assertRegex(self.run_ok(*INPUTS, "-o", "o.npy", *CPU), r"(?m)^features +none$")


class FeaturesOnDevice(Features):
    """On the devices that are expected, by their own choice: what brings buffers of its own to
    them. Numbers are the matter of the device tests. Programs are kept between the runs, each of
    which compiles them otherwise."""

    drivers = True
    test_rounding = test_reports = test_window = test_softcap = test_f16 = test_sinks = None
    test_packed_queries_alone = test_kv_lens = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="clattn-test-cache-")
        cls.addClassCleanup(folder.cleanup)
        for name, value in (("CLATTN_CACHE", "1"), ("CLATTN_CACHE_DIR", folder.name)):
            patch = unittest.mock.patch.dict(os.environ, {name: value})
            patch.start()
            cls.addClassCleanup(patch.stop)

    def setUp(self):
        super().setUp()
        self.targets = [["--device", d] for d in DEVICES]


class FeatureErrors(Folder):
    def bad(self, *args, says, inputs=INPUTS):
        self.run_bad(*inputs, "-o", "o.npy", *args, *CPU, says=says)

    def test_types(self):
        bits = bf16_bits(self.q)
        self.save("u.npy", self.Q_SHAPE, bits, descr="<u2")
        rest = ["-k", "k.npy", "-v", "v.npy"]
        self.bad(inputs=["-q", "u.npy", *rest],
                 says=["-q u.npy: dtype: it is uint16 ('<u2'), which needs --dtype bf16"])
        self.bad("--dtype=f16", inputs=["-q", "u.npy", *rest], says=["needs --dtype bf16"])
        self.save("u.npy", self.K_SHAPE, bf16_bits(self.k), descr="<u2")
        for args in ([], ["--kv-dtype=int8"], ["--dtype=f32"]):
            self.bad(*args, inputs=["-q", "q.npy", "-k", "u.npy", "-v", "v.npy"],
                     says=["-k u.npy: dtype", "--kv-dtype bf16"])
        self.save("h.npy", self.K_SHAPE, to_f16(self.k), descr="<f2")
        self.bad(inputs=["-q", "q.npy", "-k", "h.npy", "-v", "v.npy"],
                 says=["-v v.npy: dtype: it is float32 ('<f4'), that of -k float16 ('<f2')"])
        self.save("want.npy", self.Q_SHAPE, bits, descr="<u2")
        self.bad("--compare=want.npy", says=["--compare want.npy: dtype", "--dtype bf16"])
        self.k[17] = 70000
        self.save("k.npy", self.K_SHAPE, self.k)
        self.bad("--dtype=f16", says=["-k k.npy: data: element (0, 0, 1, 5) is 70000, which f16"])
        for descr in ("<i4", "<f8", "|b1"):
            self.save("bad.npy", self.Q_SHAPE, [1] * 480, descr=descr)
            self.bad(inputs=["-q", "bad.npy", *rest], says=["-q bad.npy: dtype: it is", "float16"])

    def test_bias_and_vectors(self):
        self.save("b.npy", (1, 1, 5, 8), [0.0] * 40)
        self.bad("--bias=b.npy", says=["--bias b.npy: shape (1, 1, 5, 8): axis 3 (len_kv) must be"])
        self.save("b.npy", (5, 9), [0.0] * 45)
        self.bad("--bias=b.npy", says=["--bias b.npy: shape: it has 2 axes, but 4"])
        self.save("b.npy", (1, 1, 5, 9), [1] * 45, descr="|b1")
        self.bad("--bias=b.npy", says=["--bias b.npy: dtype: it is '|b1', but float32"])
        self.save("b.npy", (1, 1, 5, 9), [0] * 45, descr="<u2")
        self.bad("--bias=b.npy", says=["--bias b.npy: dtype: it is uint16", "--bias-dtype bf16"])
        for option in ("--alibi", "--sinks"):
            for shape, descr in (((3,), "<f4"), ((1, 1, 4), "<f4"), ((4,), "<i4"), ((4,), "<f2"),
                                 ((4, 2), "<f4"), ((), "<f4")):
                self.save("x.npy", shape, [1] * size_of(shape), descr=descr)
                self.bad(option + "=x.npy", says=[option + " x.npy: "])
        self.save("x.npy", (2, 4), [1.0] * 8)
        self.bad("--sinks=x.npy", says=["--sinks x.npy: shape: it has 2 axes"])

    def test_lengths(self):
        for values, descr, says in (((9, 10), "<i4", "element 1 is 10, not 0 to 9"),
                                    ((-1, 3), "<i8", "element 0 is -1, not 0 to 9"),
                                    ((9, 1 << 40), "<i8", "element 1 is 1099511627776, over"),
                                    ((9,), "<i4", "shape (1,): it must be (2,)"),
                                    ((9.0, 9.0), "<f4", "dtype: it is '<f4', but int32 ('<i4') or"),
                                    ((9, 9), ">i4", "big-endian")):
            self.save("l.npy", (len(values),), values, descr=descr)
            self.bad("--kv-lens=l.npy", says=["--kv-lens l.npy: ", says])
        self.save("l.npy", (2, 1), (9, 9), descr="<i4")
        self.bad("--kv-lens=l.npy", says=["--kv-lens l.npy: shape: it has 2 axes, but 1"])

    def test_offsets(self):
        self.save("cu.npy", (3,), (0, 2, 5), descr="<i4")
        self.bad("--cu-seqlens-q=cu.npy", says=["-q q.npy: shape", "batch must be 1 with --cu-se"])
        self.bad("--cu-seqlens-kv=cu.npy", says=["-k k.npy: shape", "batch must be 1 with --cu-se"])
        self.save("q.npy", (1, 4, 10, 12), pattern(0, (1, 4, 10, 12)))
        self.save("one.npy", (1, 2, 18, 12), pattern(1, (1, 2, 18, 12)))
        packed = ["-q", "q.npy", "-k", "one.npy", "-v", "one.npy"]
        self.save("kv.npy", (3,), (0, 9, 18), descr="<i4")
        for values, says in (((0, 5, 11), "element 2 is 11, not 0 to 10"),
                             ((0, 6, 5), "element 2 is 5, less than the one in front"),
                             ((-1, 5, 10), "element 0 is -1"), ((), "batch + 1 offsets")):
            self.save("cu.npy", (len(values),), values, descr="<i8")
            self.bad("--cu-seqlens-q=cu.npy", "--cu-seqlens-kv=kv.npy", inputs=packed,
                     says=["--cu-seqlens-q cu.npy: ", says])
        self.save("cu.npy", (4,), (0, 5, 8, 10), descr="<i4")
        self.bad("--cu-seqlens-q=cu.npy", "--cu-seqlens-kv=kv.npy", inputs=packed,
                 says=["--cu-seqlens-kv kv.npy: shape (3,)", "as many offsets as --cu-seqlens-q"])
        self.bad("--cu-seqlens-q=cu.npy", says=["-k k.npy: shape", "sequences of --cu-seqlens-q"])
        self.save("q.npy", (1, 4, 10, 12), pattern(0, (1, 4, 10, 12)))
        self.bad("--cu-seqlens-kv=kv.npy", inputs=packed,
                 says=["--cu-seqlens-kv kv.npy: shape (3,)", "1 offset more than the batch of -q"])

    def test_pages(self):
        pool = (3, 2, 4, 12)
        self.save("k.npy", pool, pattern(1, pool))
        self.save("v.npy", pool, pattern(2, pool))
        args = ["--page-table=t.npy", "--kv-lens=l.npy"]
        for table, lens, says in (((0, 3, 1, 2), (5, 4), "element (0, 1) is 3, but -k has 3 pages"),
                                  ((0, 1, -1, 2), (5, 4), "element (1, 0) is -1, but -k has 3"),
                                  ((0, 1, 2, 2), (9, 4), "element 0 is 9, not 0 to 8")):
            self.save("t.npy", (2, 2), table, descr="<i4")
            self.save("l.npy", (2,), lens, descr="<i4")
            self.bad(*args, says=["t.npy" if "but" in says else "l.npy", says])
        self.save("t.npy", (1, 2), (0, 1), descr="<i4")
        self.bad(*args, says=["--page-table t.npy: shape (1, 2): it must have 2 rows"])
        self.save("t.npy", (2, 2), (0, 1, 2, 2), descr="<i8")
        self.bad(*args, says=["--page-table t.npy: dtype: it is '<i8', but int32"])
        self.save("t.npy", (4,), (0, 1, 2, 2), descr="<i4")
        self.bad(*args, says=["--page-table t.npy: shape: it has 1 axes, but 2"])
        self.save("t.npy", (2, 1), (0, 1), descr="<i4")
        self.save("k.npy", (3, 1, 257, 1), [0.0] * 771)
        self.save("v.npy", (3, 1, 257, 1), [0.0] * 771)
        self.save("q.npy", (2, 1, 1, 1), [0.0, 0.0])
        self.bad(*args, says=["-k k.npy: shape (3, 1, 257, 1): a page must have 1 to 256 keys"])

    def test_inputs_are_not_replaced(self):
        self.save("l.npy", (2,), (9, 9), descr="<i4")
        self.run_bad(*INPUTS, "--kv-lens=l.npy", "-o", "l.npy", *CPU,
                     says=["-o and --kv-lens name the same file l.npy"])


if __name__ == "__main__":
    main(sys.modules[__name__], [Features, FeatureErrors], [FeaturesOnDevice])
