# SPDX-License-Identifier: Apache-2.0
"""Errors, log, plans, contexts, threads, fork, and the page of the documentation."""
import contextlib
import gc
import io
import logging
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import unittest

import numpy as np

import clattn
import reference

Q = np.random.default_rng(0).standard_normal((1, 4, 33, 16), np.float32)
WANT = reference.attention(Q, Q, Q, causal=True)[0]


def good(out):
    return np.abs(out - WANT).max() < 3e-5


class Errors(unittest.TestCase):
    def refuse(self, cls, status, words, call):
        with self.assertRaisesRegex(cls, words) as caught:
            call()
        error = caught.exception
        self.assertIsInstance(error, clattn.Error)
        self.assertIsInstance(error, RuntimeError)
        self.assertEqual(error.status_name, status)
        self.assertIn(words.split(".*")[0], error.message)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.status), (cls, str(error), error.status))

    def test_statuses(self):
        invalid = clattn.InvalidArgumentError
        self.assertTrue(issubclass(invalid, ValueError))
        self.assertTrue(issubclass(clattn.UnsupportedError, NotImplementedError))
        self.assertTrue(issubclass(clattn.OutOfMemoryError, MemoryError))
        run = clattn.attention
        self.refuse(invalid, "ERR_INVALID_ARGUMENT", "scale.*nan",
                    lambda: run(Q, Q, Q, scale=float("nan"), device="cpu"))
        self.refuse(invalid, "ERR_INVALID_ARGUMENT", "softcap.*-1",
                    lambda: run(Q, Q, Q, softcap=-1.0, device="cpu"))
        self.refuse(invalid, "ERR_INVALID_ARGUMENT", "window.*-2",
                    lambda: run(Q, Q, Q, window=(-2, 0), device="cpu"))
        self.refuse(invalid, "ERR_SHAPE", "heads_q 4",
                    lambda: run(Q, Q[:, :3], Q[:, :3], device="cpu"))
        self.refuse(invalid, "ERR_SHAPE", "mask",
                    lambda: run(Q, Q, Q, mask=np.ones((33, 32), bool), device="cpu"))
        self.refuse(invalid, "ERR_OVERLAP", "o",
                    lambda: run(Q.copy(), Q, Q, out=Q[:, :, ::-1][:, :, ::-1], device="cpu"))
        wide = np.ones((1, 1, 2, 577), np.float32)
        self.refuse(invalid, "ERR_INVALID_ARGUMENT", "dim_qk.*577",
                    lambda: run(wide, wide, wide, device="cpu"))
        self.refuse(clattn.UnsupportedError, "ERR_UNSUPPORTED", "",
                    lambda: run(Q, Q, Q, algo="fused", device="cpu"))
        # Without OpenCL there is nothing to look through.
        have = len(clattn.devices()) > 1
        self.refuse(clattn.NoDeviceError, "ERR_NO_DEVICE" if have else "ERR_NO_OPENCL",
                    "no such device" if have else "",
                    lambda: run(Q, Q, Q, device="no such device"))

    def test_of_the_module_itself(self):
        run = clattn.attention
        self.refuse(clattn.InvalidArgumentError, "ERR_INVALID_ARGUMENT", "layout is 'sbhd'",
                    lambda: run(Q, Q, Q, layout="sbhd", device="cpu"))
        self.refuse(clattn.InvalidArgumentError, "ERR_INVALID_ARGUMENT", "algo is 'best'",
                    lambda: run(Q, Q, Q, algo="best", device="cpu"))
        self.refuse(clattn.InvalidArgumentError, "ERR_SHAPE", "only their channels",
                    lambda: run(Q, Q, Q[:, :, 1:], device="cpu"))
        self.refuse(clattn.InvalidArgumentError, "ERR_SHAPE", "out has shape",
                    lambda: run(Q, Q, Q, out=Q[0].copy()[None, :, 1:], device="cpu"))
        self.refuse(clattn.InvalidArgumentError, "ERR_SHAPE", "sinks has shape",
                    lambda: run(Q, Q, Q, sinks=[1.0], device="cpu"))
        frozen = Q.copy()
        frozen.flags.writeable = False
        self.refuse(clattn.InvalidArgumentError, "ERR_INVALID_ARGUMENT", "out is read-only",
                    lambda: run(Q, Q, Q, out=frozen, device="cpu"))
        for bad in (np.ma.masked_less(Q, 0), Q.astype(np.float64),
                    Q.astype(">f4"), Q.tolist(), Q.astype(np.complex64)):
            with self.assertRaises(TypeError):
                run(bad, Q, Q, device="cpu")
        with self.assertRaises(TypeError):
            run(Q, Q, Q, mask=np.ones((33, 33), np.float32), device="cpu")
        with self.assertRaises(TypeError):
            run(Q, Q, Q, out=np.empty(Q.shape, np.float64), device="cpu")

    def test_a_failure_leaves_the_output_and_the_next_call_works(self):
        out = np.full(Q.shape, 7, np.float32)
        with self.assertRaises(clattn.Error):
            clattn.attention(Q, Q, Q, out=out, scale=float("inf"), device="cpu")
        self.assertTrue((out == 7).all())
        self.assertTrue(good(clattn.attention(Q, Q, Q, out=out, causal=True, device="cpu")))

    def test_features_that_the_plan_has_not(self):
        with clattn.Context("cpu") as ctx:
            plan = clattn.Plan(ctx, heads_q=4, dim=16, max_len_q=32)
            with self.assertRaisesRegex(clattn.InvalidArgumentError, "mask"):
                plan.run(Q[:, :, :32], Q, Q, mask=np.ones((32, 33), bool))
            with self.assertRaises(clattn.InvalidArgumentError) as caught:
                plan.run(Q, Q, Q)
            self.assertEqual(caught.exception.status_name, "ERR_OVER_BOUND")


class Log(unittest.TestCase):
    def test_messages(self):
        with self.assertLogs("clattn", logging.DEBUG) as seen:
            clattn.Plan(clattn.Context("cpu"), heads_q=1, dim=8)
        self.assertTrue(all(record.name == "clattn" for record in seen.records))
        self.assertTrue(any("host" in line for line in seen.output), seen.output)

    def test_environment(self):
        """$CLATTN_LOG shows messages where the program has no logging of its own, once."""
        script = ("import sys, logging\n"
                  "if sys.argv[1] == 'own': logging.basicConfig(stream=sys.stdout, level=20)\n"
                  "import numpy, clattn\n"
                  "if sys.argv[1] == 'late': logging.basicConfig(stream=sys.stdout)\n"
                  "x = numpy.ones((1, 1, 2, 4), numpy.float32)\n"
                  "clattn.attention(x, x, x, device='cpu')\n")

        def said(word, how=""):
            env = {**os.environ, "CLATTN_LOG": word}
            done = subprocess.run([sys.executable, "-c", script, how], env=env, check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            return done.stderr, done.stdout
        err, out = said("info")
        self.assertRegex(err, r"\Aclattn info: plan: f32, .*; why: ")
        self.assertEqual((err.count("plan: "), out), (1, ""))
        self.assertEqual(said("INFO")[0].count("plan: "), 1)
        for word in ("", "error", "warn"):
            self.assertEqual(said(word), ("", ""))
        self.assertRegex(said("loud")[0], r"\Aclattn warn: CLATTN_LOG is 'loud', .*\n\Z")
        for how in ("own", "late"):
            err, out = said("info", how)
            self.assertEqual((err, out.count("plan: ")), ("", 1), how)

    def test_an_error_is_an_exception_and_no_message(self):
        with self.assertNoLogs("clattn", logging.WARNING) if hasattr(self, "assertNoLogs") \
                else self.subTest():
            with self.assertRaises(clattn.Error):
                clattn.attention(Q, Q, Q, scale=float("nan"), device="cpu")


class Objects(unittest.TestCase):
    def test_devices(self):
        found = clattn.devices()
        self.assertEqual([d.index for d in found], list(range(len(found))))
        self.assertEqual(found[-1].type, "builtin")
        self.assertEqual(sorted(d.rank for d in found), list(range(len(found))))
        self.assertGreater(found[-1].compute_units, 0)
        self.assertRegex(clattn.version, r"^\d+\.\d+\.\d+$")
        self.assertEqual(clattn.__version__, clattn.version)

    def test_plan(self):
        ctx = clattn.Context("cpu", threads=1)
        self.assertEqual(ctx.device.compute_units, 1)
        plan = clattn.Plan(ctx, heads_q=4, dim=16, causal=True, return_lse=True)
        self.assertEqual(plan.info.algorithm, "host")
        self.assertEqual(plan.info.device, ctx.device)
        self.assertEqual(plan.info.workspace_bytes, 0)
        self.assertGreater(plan.info.tile_q, 0)
        self.assertTrue(plan.info.reason)
        out, lse = plan.run(Q, Q, Q)
        self.assertTrue(good(out))
        self.assertEqual(lse.shape, Q.shape[:3])
        plan.warm_up(1, 5, 5)
        bounded = clattn.Plan(ctx, heads_q=4, dim=16, max_batch=1, max_len_q=64, max_len_kv=64)
        self.assertEqual(bounded.info.workspace_bytes, 0)
        self.assertIn("host", repr(plan))
        self.assertEqual(plan.workspace_bytes(Q, Q, Q), 0)
        # A plan outlives the name of its context, also a closed one.
        ctx.close()
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "closed"):
            clattn.attention(Q, Q, Q, context=ctx)
        del ctx
        gc.collect()
        self.assertTrue(good(plan.run(Q, Q, Q)[0]))

    def test_plans_are_kept(self):
        ctx = clattn.Context("cpu")
        for _ in range(3):
            clattn.attention(Q, Q, Q, context=ctx)
            clattn.attention(Q, Q, Q[..., :5], context=ctx)
        self.assertEqual(len(ctx._plans), 2)
        for dim in range(1, 100):
            x = np.ones((1, 1, 2, dim), np.float32)
            self.assertLess(np.abs(clattn.attention(x, x, x, context=ctx) - 1).max(), 1e-5)
        self.assertEqual(len(ctx._plans), 64)

    def test_memory(self):
        ctx = clattn.Context("cpu")
        q = ctx.upload(Q)
        np.testing.assert_array_equal(q.read(), Q)
        out = clattn.attention(q, q, Q, causal=True)
        self.assertIsInstance(out, clattn.DeviceArray)
        self.assertTrue(good(out.read()))
        # A part of memory, by offset and strides.
        two = ctx.upload(np.concatenate([Q * 0, Q], axis=2))
        part = clattn.DeviceArray(two.buffer, Q.shape, np.float32, offset=Q[0, 0].nbytes,
                                  strides=(two.strides))
        self.assertTrue(good(clattn.attention(part, part, part, causal=True).read()))
        with self.assertRaises(clattn.InvalidArgumentError) as caught:
            clattn.attention(q, q, clattn.DeviceArray(q.buffer, (1, 4, 33, 17), np.float32))
        self.assertEqual(caught.exception.status_name, "ERR_BUFFER_TOO_SMALL")
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "float64"):
            q.write(Q.astype(np.float64))

    def test_dlpack(self):
        class Foreign:
            def __dlpack__(self, **options):
                return Q.__dlpack__(**options)

            def __dlpack_device__(self):
                return Q.__dlpack_device__()
        self.assertTrue(good(clattn.attention(Foreign(), Foreign(), Foreign(), causal=True,
                                              device="cpu")))


class Threads(unittest.TestCase):
    def test_many_at_once(self):
        ctx = clattn.Context("cpu", threads=1)
        wrong = []

        def work(seed):
            rng = np.random.default_rng(seed)
            for step in range(12):
                if step % 4 == 3:
                    try:
                        clattn.attention(Q, Q, Q, softcap=-float(seed), context=ctx)
                        wrong.append("no error")
                    except clattn.Error as error:
                        # Each thread gets the message of its own call.
                        if f"-{seed}" not in str(error):
                            wrong.append(str(error))
                    continue
                dim = int(rng.integers(1, 40))
                x = rng.standard_normal((1, 2, 19, dim), np.float32)
                out = clattn.attention(x, x, x, context=ctx)
                if np.abs(out - reference.attention(x, x, x)[0]).max() > 3e-5:
                    wrong.append(dim)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_the_interpreter_runs_on(self):
        # A call gives up the GIL: another thread counts while it computes.
        x = np.ones((1, 1, 1000, 64), np.float32)
        counted = [0]
        stop = threading.Event()

        def count():
            while not stop.is_set():
                counted[0] += 1
        thread = threading.Thread(target=count)
        thread.start()
        before = counted[0]
        clattn.attention(x, x, x, device="cpu", algo="reference")
        during = counted[0] - before
        stop.set()
        thread.join()
        self.assertGreater(during, 1000)


def in_child(device):
    return clattn.attention(Q, Q, Q, causal=True, device=device), clattn.devices()[-1].type


@unittest.skipUnless(hasattr(os, "fork"), "no fork here")
class Processes(unittest.TestCase):
    def children(self, method, device):
        with multiprocessing.get_context(method).Pool(2) as pool:
            for out, kind in pool.map(in_child, [device] * 4):
                self.assertTrue(good(out))
                self.assertEqual(kind, "builtin")

    def test_fork(self):
        self.assertTrue(good(in_child("cpu")[0]))
        self.children("fork", "cpu")

    def test_spawn(self):
        self.children("spawn", "cpu")

    def test_fork_while_a_lock_is_held(self):
        ctx = clattn.Context("cpu")
        ctx._lock.acquire()
        with clattn._context.defaults.lock:
            pid = os.fork()
            if pid == 0:
                ok = good(clattn.attention(Q, Q, Q, causal=True, context=ctx))
                ok = ok and good(in_child("cpu")[0])
                os._exit(0 if ok else 1)
        ctx._lock.release()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_end_of_the_interpreter(self):
        program = ("import threading, numpy, clattn\n"
                   "x = numpy.ones((1, 1, 500, 64), numpy.float32)\n"
                   "ctx = clattn.Context('cpu')\n"
                   "plan = clattn.Plan(ctx, heads_q=1, dim=64)\n"
                   "cycle = [plan, ctx]; cycle.append(cycle)\n"
                   "def forever():\n"
                   "    while True: plan.run(x, x, x); clattn.attention(x, x, x, device='cpu')\n"
                   "threading.Thread(target=forever, daemon=True).start()\n"
                   "plan.run(x, x, x)\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


DOCS = os.environ.get("CLATTN_TEST_DOCS")


@unittest.skipUnless(DOCS, "CLATTN_TEST_DOCS does not name docs/python.md")
class Docs(unittest.TestCase):
    def test_blocks_run(self):
        text = pathlib.Path(DOCS).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        self.assertGreater(len(blocks), 3)
        names = {"__name__": "docs"}
        for block in blocks:
            if "pyopencl" in block:
                try:
                    import pyopencl
                    pyopencl.get_platforms()[0].get_devices()
                except Exception as error:  # whatever is missing, there is no device of OpenCL
                    print(f"a block of pyopencl is left out: {error!r}", file=sys.stderr)
                    continue
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, DOCS, "exec"), names)


if __name__ == "__main__":
    unittest.main()
