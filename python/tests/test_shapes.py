# SPDX-License-Identifier: Apache-2.0
"""Axes without elements and strides of every kind: refused before anything is written, or used as a
contiguous copy would be. To the library a 0 is often a default, which no shape may bring about."""
import unittest

import numpy as np

import clattn

BAND = 256  # elements on both sides of an array that nothing may touch
INVALID = clattn.InvalidArgumentError


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def strided(memory, shape, strides, first=0):
    size = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory[BAND + first:], shape,
                                           [stride * size for stride in strides])


def laid(memory, shape, kind, axis):
    """An array of this shape in the midst of a memory: `kind` is about one axis."""
    extents = list(shape)
    extents[axis] = {"empty": 0, "gap": 2 * shape[axis]}.get(kind, shape[axis])
    steps, step = [], 1
    for extent in extents[::-1]:
        steps.insert(0, step)
        step *= max(extent, 1)
    first = 0
    if kind == "empty":
        shape = extents
    elif kind == "gap":
        steps[axis] *= 2
    elif kind == "broadcast":
        steps[axis] = 0
    elif kind == "overlap":
        steps[axis] = max(steps[axis] - 1, 0)
    elif kind == "reversed":
        first = (shape[axis] - 1) * steps[axis]
        steps[axis] *= -1
    return strided(memory, shape, steps, first)


KINDS = ("empty", "broadcast", "overlap", "reversed", "gap")


class Laid:
    """A copy of an array in guarded memory, and where in it no element of the array is."""

    def __init__(self, array, kind, axis):
        count = 2 * array.size + 2 * BAND
        self.memory = np.empty(count, array.dtype)
        self.memory.view(np.uint8)[:] = 0x7F
        self.array = laid(self.memory, array.shape, kind, axis)
        self.array[...] = array if kind != "empty" else 0
        self.own = np.zeros(count, bool)
        laid(self.own, array.shape, kind, axis)[...] = True
        self.before = self.memory.copy()

    def same(self, where=None):
        now, before = self.memory, self.before
        if where is not None:
            now, before = now[where], before[where]
        return now.tobytes() == before.tobytes()


def attention(q, k, v, **given):
    clattn.attention(q, k, v, device="cpu", **given)


def softmax(x, out, lse):
    clattn.softmax(x, out=out, lse=lse, device="cpu")


def merge(part, other, lse_part, lse_other, **given):
    clattn.merge([part, other], [lse_part, lse_other], device="cpu", **given)


def merge_many(part, other, lse_part, lse_other, **given):
    clattn.merge([other] * 9 + [part], [lse_other] * 9 + [lse_part], device="cpu", **given)


def rotary(x, cos, sin, **given):
    clattn.rotary(x, cos, sin, start=1, device="cpu", **given)


def append(k_new, v_new, k_cache, v_cache, **given):
    clattn.append(k_new, v_new, k_cache, v_cache, device="cpu", **given)


def problems():
    """Name -> (function, its arrays, names of those that are written)."""
    q, k, v = normal(1, 2, 4, 5, 8), normal(2, 2, 2, 6, 8), normal(3, 2, 2, 6, 4)
    out, lse = np.zeros((2, 4, 5, 4), np.float32), np.zeros((2, 4, 5), np.float32)
    results = {"out": out, "lse": lse}
    rng = np.random.default_rng(4)
    scores = (2, 4, 5, 6)
    bytes_k, scale_k = clattn.quantize(k)
    bytes_v, scale_v = clattn.quantize(v)
    cos, sin = clattn.rotary_tables(9, 6)
    table = np.array([[1, 0], [2, 3]], np.int32)
    pool_k, pool_v = normal(5, 4, 2, 3, 8), normal(6, 4, 2, 3, 4)
    new = {"k_new": k[:, :, :3], "v_new": v[:, :, :3]}
    cache = {"k_cache": normal(7, 2, 2, 7, 8), "v_cache": normal(8, 2, 2, 7, 4)}
    lens = {"lens": np.array([2, 3], np.int32), "new_lens": np.array([3, 2], np.int32)}
    bytes_cache = {name: rng.integers(-9, 9, x.shape, np.int8) for name, x in cache.items()}
    scales = {name: normal(9, 2, 2, 7) for name in ("k_scale", "v_scale")}
    parts = {"part": normal(10, *out.shape), "other": normal(11, *out.shape),
             "lse_part": normal(12, *lse.shape), "lse_other": normal(13, *lse.shape)}
    turn = {"cos": cos, "sin": sin, "offsets": np.array([2, 3], np.int32)}
    word = {"faults": np.zeros(3, np.int32)}
    return {
        "attention": (attention, {
            "q": q, "k": k, "v": v, "mask": rng.random(scores) < 0.7, "bias": normal(14, *scores),
            "alibi_slopes": normal(15, 2, 4), "sinks": normal(16, 4),
            "kv_lens": np.array([6, 4], np.int32), **word, **results}, ("out", "lse", "faults")),
        "int8": (attention, {"q": q, "k": bytes_k, "v": bytes_v, "k_scale": scale_k,
                             "v_scale": scale_v, **results}, ("out", "lse")),
        "packed": (attention, {
            "q": q[0], "k": k[0], "v": v[0], "cu_seqlens_q": np.array([0, 2, 5], np.int32),
            "cu_seqlens_kv": np.array([0, 4, 6], np.int32), "out": out[0], "lse": lse[0]},
            ("out", "lse")),
        "paged": (attention, {"q": q, "k": pool_k, "v": pool_v, "page_table": table,
                              "kv_lens": np.array([6, 4], np.int32), **results}, ("out", "lse")),
        "softmax": (softmax, {"x": normal(17, 3, 4, 6), "out": np.zeros((3, 4, 6), np.float32),
                              "lse": np.zeros((3, 4), np.float32)}, ("out", "lse")),
        "merge": (merge, {**parts, "sinks": normal(16, 4), **results}, ("out", "lse")),
        "merge of 10": (merge_many, {**parts, **results}, ("out", "lse")),
        "rotary": (rotary, {"x": q, **turn, "out": np.zeros(q.shape, np.float32)}, ("out",)),
        "append": (append, {**new, **cache, **lens, **turn, **word},
                   ("k_cache", "v_cache", "faults")),
        "append int8": (append, {**new, **bytes_cache, **scales, **lens},
                        ("k_cache", "v_cache", "k_scale", "v_scale")),
        "append paged": (append, {**new, "k_cache": pool_k, "v_cache": pool_v, "lens": lens["lens"],
                                  "page_table": table}, ("k_cache", "v_cache")),
    }


class Table(unittest.TestCase):
    def one(self, function, arrays, outputs, name, kind, axis):
        """True where the call took the array."""
        odd = Laid(arrays[name], kind, axis)
        laid_out = {key: odd if key == name else Laid(arrays[key], "plain", 0) for key in outputs}
        given = {**arrays, **{key: found.array for key, found in laid_out.items()},
                 name: odd.array}
        try:
            function(**given)
        except (clattn.Error, TypeError):
            for found in (odd, *laid_out.values()):
                self.assertTrue(found.same(), "refused, but written to")
            return False
        for key, found in laid_out.items():
            self.assertTrue(found.same(~found.own), f"{key}: written beside it")
        if name not in outputs:
            self.assertTrue(odd.same(), f"{name}: an input was written to")
        else:
            self.assertNotIn(kind, ("broadcast", "overlap"))
        plain = {key: x.copy() for key, x in arrays.items()}
        plain[name] = (odd.before[odd.own].reshape(0) if odd.array.size == 0
                       else odd.array.copy() if name not in outputs else arrays[name].copy())
        plain[name] = plain[name].reshape(odd.array.shape)
        function(**plain)
        for key in outputs:
            np.testing.assert_allclose(given[key], plain[key], rtol=0, atol=1e-6)
        return True

    def test_every_array(self):
        for what, (function, arrays, outputs) in problems().items():
            taken = set()
            for name, array in arrays.items():
                for axis in range(array.ndim):
                    for kind in KINDS:
                        if name == "faults" and kind != "empty":
                            continue  # one number, so no stride counts
                        with self.subTest(what, name=name, axis=axis, kind=kind):
                            if self.one(function, arrays, outputs, name, kind, axis):
                                taken.add((name, axis - array.ndim, kind))
            with self.subTest(what):
                # No array alone has an axis without elements.
                self.assertEqual({t for t in taken if t[2] == "empty"}, set())
                for name, array in arrays.items():
                    if array.ndim == 4:  # what NumPy's strides are there for
                        self.assertIn((name, -4, "gap"), taken)
                        self.assertIn((name, -2, "gap"), taken)
                        self.assertEqual((name, -4, "broadcast") in taken, name not in outputs)


class Defaults(unittest.TestCase):
    """What the library would take for a default."""

    def refuse(self, status, words, function, *args, **kwargs):
        with self.subTest(words=words):
            with self.assertRaisesRegex(INVALID, words) as caught:
                function(*args, device="cpu", **kwargs)
            self.assertEqual(caught.exception.status_name, status)

    def test_mask_and_bias(self):
        x = normal(20, 1, 2, 33, 8)
        for name, dtype in (("mask", bool), ("bias", np.float32)):
            for shape in ((0, 33), (33, 0), (0, 0), (0, 33, 33), (0, 1, 1, 1), (1, 0, 33, 33),
                          (0,)):
                self.refuse("ERR_SHAPE", fr"{name} has shape \({shape[0]},", clattn.attention, x, x,
                            x, **{name: np.ones(shape, dtype)})
            # Where the call has no elements either it's as it should be.
            for shape in ((33, 0), (1, 0), (1, 2, 33, 0), (1, 1)):
                out, lse = clattn.attention(x, x[:, :, :0], x[:, :, :0], return_lse=True,
                                            device="cpu", **{name: np.ones(shape, dtype)})
                self.assertTrue((out == 0).all() and (lse == -np.inf).all())
            self.refuse("ERR_SHAPE", name, clattn.attention, x, x[:, :, :0], x[:, :, :0],
                        **{name: np.ones((0, 0), dtype)})
            out, lse = clattn.attention(x[:, :, :0], x, x, return_lse=True, device="cpu",
                                        **{name: np.ones((0, 33), dtype)})
            self.assertEqual((out.shape, lse.shape), ((1, 2, 0, 8), (1, 2, 0)))

    def test_channels_and_heads(self):
        x = normal(21, 1, 2, 5, 8)
        none, headless = x[..., :0], x[:, :0]
        for q, k, v in ((x, x, none), (none, none, x), (x, headless, headless),
                        (headless, x, x)):
            self.refuse("ERR_SHAPE", "with no (channels|heads)", clattn.attention, q, k, v)
        caches = x.copy(), np.zeros((1, 2, 5, 0), np.float32)
        self.refuse("ERR_SHAPE", "v_new .* no channels", clattn.append, x, none, *caches)
        # Of one row, so that no stride gives it away.
        self.refuse("ERR_SHAPE", "v_new .* no channels", clattn.append, x[:, :1, :1],
                    none[:, :1, :1], caches[0][:, :1, :1], caches[1][:, :1, :1])
        self.refuse("ERR_SHAPE", "k_new .* no channels", clattn.append, none, x, *caches[::-1])
        lse = x[..., 0]
        self.refuse("ERR_SHAPE", "no channels", clattn.merge, [none, none], [lse, lse])
        plan = clattn.Plan(clattn.Context("cpu"), heads_q=2, dim=8)
        with self.assertRaisesRegex(INVALID, "no channels"):
            plan.run(x, x, none)

    def test_rotary(self):
        x = normal(22, 1, 2, 3, 8)
        tables = np.zeros((9, 0), np.float32), np.zeros((9, 0), np.float32)
        keep = x.copy()
        for function, args in ((clattn.rotary, (x,)), (clattn.append, (x, x, keep, keep.copy()))):
            self.refuse("ERR_SHAPE", r"cos and sin have shape \(9, 0\)", function,
                        *args, cos=tables[0], sin=tables[1])
        self.refuse("ERR_INVALID_ARGUMENT", "positions is 0", clattn.append, x, x, keep,
                    keep.copy(), cos=tables[0].reshape(0, 4), sin=tables[1].reshape(0, 4))

    def test_pages(self):
        x, pool = normal(23, 1, 2, 3, 8), np.zeros((4, 2, 0, 8), np.float32)
        for table in (np.zeros((1, 2), np.int32), np.zeros((1, 0), np.int32)):
            self.refuse("ERR_SHAPE", "pages of no rows", clattn.append, x, x, pool, pool.copy(),
                        page_table=table)
            self.refuse("ERR_INVALID_ARGUMENT", "page_size is 0", clattn.attention, x, pool, pool,
                        page_table=table)

    def test_longest(self):
        x = normal(24, 2, 5, 8)
        packed = {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_kv": [0, 2, 5]}
        for name in ("max_len_q", "max_len_kv"):
            self.refuse("ERR_SHAPE", f"{name} is 0", clattn.attention, x, x, x, **packed,
                        **{name: 0})
        out = clattn.attention(x, x, x, max_len_q=0, device="cpu",
                               **{**packed, "cu_seqlens_q": [0, 0, 0]})
        self.assertTrue((out == 0).all())
        np.testing.assert_array_equal(
            clattn.attention(x, x, x, max_len_q=np.int64(4), device="cpu", **packed),
            clattn.attention(x, x, x, device="cpu", **packed))

    def test_workspace(self):
        x, memory = normal(25, 1, 2, 5, 8), np.zeros(400, np.uint8)
        plan = clattn.Plan(clattn.Context("cpu"), heads_q=2, dim=8)
        want = plan.run(x, x, x)
        for space in (memory, memory[:0]):
            np.testing.assert_array_equal(plan.run(x, x, x, workspace=space), want)
        # From where the first byte is there is less memory than that, or none.
        for space in (memory[::-1], memory[::2], memory.reshape(20, 20).T):
            with self.assertRaisesRegex(INVALID, "workspace is not contiguous"):
                plan.run(x, x, x, workspace=space)


class Softmax(unittest.TestCase):
    def refused(self, x, out, lse, name, *memories):
        before = [memory.copy() for memory in memories]
        with self.assertRaisesRegex(INVALID, f"^{name}") as caught:
            clattn.softmax(x, out=out, lse=lse, device="cpu")
        self.assertEqual(caught.exception.status_name, "ERR_STRIDE")
        for memory, was in zip(memories, before):
            np.testing.assert_array_equal(memory, was)

    def test_sums(self):
        x = normal(30, 4, 5, 6)
        memory, out = np.full(400, 7, np.float32), np.full(x.shape, 7, np.float32)
        sums = memory[100:120].reshape(4, 5)
        for lse in (memory[100:140].reshape(4, 10)[:, ::2], memory[100:140].reshape(4, 10)[:, :5],
                    sums[::-1], sums[:, ::-1], memory[100:120].reshape(5, 4).T):
            self.refused(x, out, lse, "lse", memory, out)
        flat = memory[100:140:2]
        self.refused(x.reshape(20, 6), out.reshape(20, 6), flat, "lse", memory, out)
        clattn.softmax(x, out=out, lse=sums, device="cpu")
        np.testing.assert_allclose(sums, np.log(np.exp(x).sum(axis=-1)), atol=1e-5)
        self.assertTrue((memory[:100] == 7).all() and (memory[120:] == 7).all())

    def test_rows(self):
        x = normal(31, 4, 6)
        memory = np.full(400, 7, np.float32)
        out, lse = np.full(x.shape, 7, np.float32), np.full(4, 7, np.float32)
        for step in (0, 1, 5, -6, -7):
            rows = strided(memory, (4, 6), (step, 1))
            self.refused(rows, out, lse, "x: rows of 6", memory, out, lse)
            self.refused(x, rows, lse, "out: rows of 6", memory, lse)
        self.refused(np.broadcast_to(x[0], (4, 6)), out, lse, "x", out)
        self.refused(np.broadcast_to(x[0], (2, 4, 6)), np.zeros((2, 4, 6), np.float32), None, "x")
        # One row, or none, has no stride.
        want = clattn.softmax(x, device="cpu")
        for step in (0, 3, -6):
            rows = strided(memory, (1, 6), (step, 1))
            rows[...] = x[:1]
            np.testing.assert_allclose(clattn.softmax(rows, device="cpu"), want[:1], atol=1e-6)
        for shape in ((3, 0), (2, 3, 0), (0, 3, 4), (3, 0, 4), (0, 0)):
            for empty in (np.zeros(shape, np.float32), np.zeros(shape, np.float32)[::-1]):
                got, lse = clattn.softmax(empty, return_lse=True, device="cpu")
                self.assertEqual((got.shape, lse.shape), (shape, shape[:-1]))
                self.assertTrue((lse == -np.inf).all())


class Merge(unittest.TestCase):
    def test_out_is_a_part(self):
        """Whichever part it is, and however many there are."""
        for count in (3, 8, 9, 10, 20):
            parts = [normal(40 + n, 2, 3, 4, 5) for n in range(count)]
            lses = [normal(80 + n, 2, 3, 4) for n in range(count)]
            want = clattn.merge(parts, lses, device="cpu")
            for n in {0, 1, 7, 8, 9, count - 1} & set(range(count)):
                for of_out, of_lse in ((True, True), (True, False), (False, True)):
                    with self.subTest(count=count, n=n, out=of_out, lse=of_lse):
                        own, sums = [p.copy() for p in parts], [s.copy() for s in lses]
                        given = {"out": own[n] if of_out else None,
                                 "lse": sums[n] if of_lse else None}
                        got = clattn.merge(own, sums, device="cpu", **given)
                        for result, expected in zip(got, want):
                            np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)
                        for m in range(count):
                            self.assertTrue(m == n or ((own[m] == parts[m]).all()
                                                       and (sums[m] == lses[m]).all()))

    def test_out_of_the_context(self):
        ctx = clattn.Context("cpu")
        parts = [normal(60 + n, 1, 2, 3, 4) for n in range(11)]
        lses = [normal(100 + n, 1, 2, 3) for n in range(11)]
        want = clattn.merge(parts, lses, device="cpu")
        own, sums = [ctx.upload(p) for p in parts], [ctx.upload(s) for s in lses]
        clattn.merge(own, sums, out=own[9], lse=sums[10])
        np.testing.assert_allclose(own[9].read(), want[0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(sums[10].read(), want[1], rtol=0, atol=1e-6)


class Device(unittest.TestCase):
    """Memory of a context."""

    def test_dtypes(self):
        ctx = clattn.Context("cpu")
        for dtype in ("O", object, [("a", "f4"), ("b", "O")], "V0", "S0", "U0", [],
                      ("f4", (0,))):
            with self.assertRaisesRegex(TypeError, "dtype is"):
                ctx.empty(3, dtype)
            with self.assertRaisesRegex(TypeError, "dtype is"):
                clattn.DeviceArray(8, (3,), dtype)
        with self.assertRaisesRegex(TypeError, "dtype is object"):
            ctx.upload(np.array([None, {}], object))
        with self.assertRaises((TypeError, INVALID)):
            nothing = np.zeros((1, 2, 3, 4), "V0")
            clattn.attention(nothing, nothing, nothing, device="cpu")

    def test_write_waits(self):
        ctx = clattn.Context("cpu")
        array = ctx.upload(np.zeros(4, np.float32))

        class Event:
            """Work that is still going to write."""

            waited = 0

            def wait(self):
                self.waited += 1
                events, array.events = array.events, []
                array.write(np.full(4, 9, np.float32))
                array.events = events

        event = Event()
        array.add_event(event)
        array.write(np.ones(4, np.float32))
        self.assertEqual(event.waited, 1)
        array.events = []
        np.testing.assert_array_equal(array.read(), np.ones(4, np.float32))


if __name__ == "__main__":
    unittest.main()
