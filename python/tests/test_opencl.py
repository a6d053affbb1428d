# SPDX-License-Identifier: Apache-2.0
"""On the first OpenCL device, alone and with pyopencl. Few kinds of problems, for each compiles
kernels."""
import os
import unittest

import numpy as np

import clattn
import reference
from reference import Guarded

DEVICES = [d for d in clattn.devices() if d.type != "builtin"]
WHY = "there is no OpenCL device"
try:
    import pyopencl
    import pyopencl.array
    WHY_NOT_PYOPENCL = None if DEVICES else WHY
except ImportError:
    pyopencl = None
    WHY_NOT_PYOPENCL = "pyopencl is not installed"
if WHY_NOT_PYOPENCL and os.environ.get("CLATTN_TEST_EXPECT"):
    raise RuntimeError(WHY_NOT_PYOPENCL)  # where a device was promised, nothing is skipped

RNG = np.random.default_rng(30)
Q = RNG.standard_normal((2, 4, 37, 16), np.float32)
K = RNG.standard_normal((2, 2, 45, 16), np.float32)
V = RNG.standard_normal((2, 2, 45, 16), np.float32)
LENS = np.array([33, 45], np.int32)
MASK = RNG.random((37, 45)) < 0.8
WANT = reference.attention(Q, K, V, causal=True)
WANT_MASKED = reference.attention(Q, K, V, causal=True, mask=MASK, kv_lens=LENS)


def close(got, want):
    # Rows that see no key have a log-sum-exp of -infinity.
    return np.allclose(got, want, rtol=0, atol=3e-5)


@unittest.skipUnless(DEVICES, WHY)
class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ctx = clattn.Context(DEVICES[0].index)
        cls.features = {"causal": True, "context": cls.ctx, "fallback": False}

    def test_host_arrays(self):
        out = Guarded(Q.shape, np.float32, gap=5)
        clattn.attention(Q, K, V, out=out.array, **self.features)
        self.assertTrue(out.untouched() and close(out.array, WANT[0]))
        plan = next(iter(self.ctx._plans.values()))
        self.assertTrue(plan.info.build_options)
        self.assertNotEqual(plan.info.algorithm, "host")

    def test_build_count(self):
        ctx = clattn.Context(DEVICES[0].index, cache=False)
        counts = [ctx.build_count]
        for softcap in (None, None, 1.5, 1.5):
            clattn.attention(Q, K, V, softcap=softcap, context=ctx, fallback=False)
            counts.append(ctx.build_count)
        # A plan of one's own, whose kernels are there.
        clattn.Plan(ctx, heads_q=4, heads_kv=2, dim=16, softcap=True, max_batch=2, max_len_q=64,
                    max_len_kv=64, fallback=False).run(Q, K, V, softcap=1.5)
        counts.append(ctx.build_count)
        grown = [after > before for before, after in zip(counts, counts[1:])]
        self.assertEqual(grown, [True, False, True, False, False])
        ctx.close()

    def test_memory_of_the_device(self):
        k, v = self.ctx.upload(K), self.ctx.upload(V)
        out, lse = clattn.attention(Q, k, v, mask=MASK, kv_lens=LENS, return_lse=True,
                                    **self.features)
        self.assertIsInstance(out, np.ndarray)
        self.assertTrue(close(out, WANT_MASKED[0]) and close(lse, WANT_MASKED[1]))
        out, lse = clattn.attention(self.ctx.upload(Q), k, v, mask=self.ctx.upload(MASK),
                                    kv_lens=self.ctx.upload(LENS), return_lse=True,
                                    **self.features)
        self.assertTrue(close(out.read(), WANT_MASKED[0]) and close(lse.read(), WANT_MASKED[1]))

    def test_lengths_on_the_device_raise_a_flag(self):
        faults = self.ctx.upload(np.zeros(1, np.int32))
        clattn.attention(Q, K, V, kv_lens=self.ctx.upload(np.array([33, 99], np.int32)), mask=MASK,
                         return_lse=True, faults=faults, **self.features)
        self.assertEqual(faults.read()[0], 1)

    def test_a_child_of_fork_is_refused(self):
        pid = os.fork()
        if pid == 0:
            try:
                clattn.attention(Q, K, V, **self.features)
            except clattn.NoDeviceError:
                # What has no device of its own goes on, on the CPU path.
                os._exit(0 if close(clattn.attention(Q, K, V, causal=True), WANT[0]) else 2)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


@unittest.skipIf(WHY_NOT_PYOPENCL, WHY_NOT_PYOPENCL)
class PyOpenCL(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        device = next(d for p in pyopencl.get_platforms() for d in p.get_devices()
                      if d.name.strip() == DEVICES[0].name.strip())
        cls.context = pyopencl.Context([device])
        cls.queue = pyopencl.CommandQueue(cls.context)

    def arrays(self, *arrays):
        return [pyopencl.array.to_device(self.queue, x) for x in arrays]

    def test_arrays(self):
        q, k, v, mask, lens = self.arrays(Q, K, V, MASK.astype(np.uint8), LENS)
        out, lse = clattn.attention(q, k, v, causal=True, mask=mask, kv_lens=lens, return_lse=True)
        self.assertIsInstance(out, pyopencl.array.Array)
        self.assertEqual(len(out.events), 1)
        self.assertTrue(close(out.get(), WANT_MASKED[0]) and close(lse.get(), WANT_MASKED[1]))
        # Some numbers on the host: they are checked, and the call waits.
        out, lse = clattn.attention(q, k, v, causal=True, mask=MASK, kv_lens=LENS, return_lse=True)
        self.assertTrue(close(out.get(), WANT_MASKED[0]))
        with self.assertRaisesRegex(clattn.InvalidArgumentError, "kv_lens"):
            clattn.attention(q, k, v, causal=True, mask=MASK, kv_lens=[1, 99], return_lse=True)

    def test_buffers_queue_events(self):
        flags = pyopencl.mem_flags
        queue = pyopencl.CommandQueue(
            self.context,
            properties=pyopencl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
        # Everything in one buffer, which is filled only when an event of the user is set.
        host = np.concatenate([x.ravel() for x in (Q, K, V)])
        buffer = pyopencl.Buffer(self.context, flags.READ_ONLY, host.nbytes)
        gate = pyopencl.UserEvent(self.context)
        filled = pyopencl.enqueue_copy(queue, buffer, host, is_blocking=False, wait_for=[gate])
        at, parts = 0, []
        for x in (Q, K, V):
            parts.append(clattn.DeviceArray(buffer, x.shape, x.dtype, offset=at))
            at += x.nbytes
        result = pyopencl.Buffer(self.context, flags.WRITE_ONLY, Q.nbytes)
        out = clattn.DeviceArray(result, Q.shape, Q.dtype)
        got = clattn.attention(*parts, causal=True, out=out, queue=queue,
                               wait_for=(event for event in [filled]))
        self.assertIs(got, out)
        back = np.empty(Q.shape, Q.dtype)
        copied = pyopencl.enqueue_copy(queue, back, result, is_blocking=False, wait_for=out.events)
        gate.set_status(pyopencl.command_execution_status.COMPLETE)
        copied.wait()
        self.assertTrue(close(back, WANT[0]))

    def test_plan(self):
        ctx = clattn.Context.from_opencl(self.context, queue=self.queue)
        plan = clattn.Plan(ctx, heads_q=4, heads_kv=2, dim=16, causal=True, max_batch=2,
                           max_len_q=64, max_len_kv=64)
        q, k, v, out = self.arrays(Q, K, V, np.full(Q.shape, np.nan, np.float32))
        event = plan.enqueue(self.queue, q, k, v, out=out)
        event.wait()
        self.assertTrue(close(out.get(), WANT[0]))
        other = pyopencl.Context([self.queue.device])
        with self.assertRaises(clattn.InvalidArgumentError) as caught:
            plan.enqueue(pyopencl.CommandQueue(other), q, k, v, out=out)
        self.assertEqual(caught.exception.status_name, "ERR_WRONG_CONTEXT")
        with self.assertRaisesRegex(clattn.Error, "out"):
            plan.enqueue(self.queue, q, k, v)

    def test_workspace(self):
        # Keys are cut into parts here, which leave something for their merge.
        q, k, v = self.arrays(Q[:, :, :1].copy(), K, V)
        want = reference.attention(Q[:, :, :1], K, V)[0]
        out = clattn.attention(q, k, v, algo="split_kv", num_splits=3)
        self.assertTrue(close(out.get(), want))

    def test_workspace_of_no_bytes(self):
        ctx = clattn.Context.from_opencl(self.context, queue=self.queue)
        plan = clattn.Plan(ctx, heads_q=4, heads_kv=2, dim=16, algo="split_kv", num_splits=3,
                           max_batch=2, max_len_q=1, max_len_kv=64)
        q = Q[:, :, :1].copy()
        need = plan.workspace_bytes(q, K, V)
        self.assertGreater(need, 0)
        want = reference.attention(q, K, V)[0]
        arrays = self.arrays(q, K, V, np.empty_like(q))
        spaces = self.arrays(np.zeros(need, np.uint8), np.zeros(need - 4, np.uint8))
        # In one of no bytes nothing is written.
        self.assertTrue(close(plan.run(q, K, V, workspace=np.zeros(0, np.uint8)), want))
        plan.enqueue(self.queue, *arrays[:3], out=arrays[3], workspace=spaces[0]).wait()
        self.assertTrue(close(arrays[3].get(), want))
        empty = clattn.DeviceArray(spaces[0].base_data, (0,), np.uint8)
        for space in (spaces[1], empty):
            with self.assertRaisesRegex(clattn.InvalidArgumentError, "workspace"):
                plan.enqueue(self.queue, *arrays[:3], out=arrays[3], workspace=space)

    def test_merge_into_a_part(self):
        parts = [np.random.default_rng(n).standard_normal(Q.shape, np.float32) for n in range(18)]
        lses = [part[..., 0].copy() for part in parts]
        want = clattn.merge(parts, lses, device="cpu")
        own, sums = self.arrays(*parts), self.arrays(*lses)
        clattn.merge(own, sums, out=own[9], lse=sums[17])
        self.assertTrue(close(own[9].get(), want[0]) and close(sums[17].get(), want[1]))
        # Bare memory, without a queue.
        own = [clattn.DeviceArray(x.base_data, Q.shape, "f4") for x in self.arrays(*parts)]
        sums = [clattn.DeviceArray(x.base_data, Q.shape[:-1], "f4") for x in self.arrays(*lses)]
        back = np.empty(Q.shape, np.float32)
        self.queue.finish()
        ctx = clattn.Context.from_opencl(self.context, queue=self.queue)
        clattn.merge(own, sums, out=own[8], lse=sums[8], context=ctx)
        pyopencl.enqueue_copy(self.queue, back, own[8].buffer)
        self.assertTrue(close(back, want[0]))

    def test_softmax_and_merge(self):
        x, = self.arrays(Q)
        sums = np.exp(Q.astype(np.float64)).sum(axis=-1)
        out, lse = clattn.softmax(x, return_lse=True)
        self.assertTrue(close(out.get(), np.exp(Q) / sums[..., None])
                        and close(lse.get(), np.log(sums)))
        merged, total = clattn.merge([x, x], [lse, lse])
        self.assertTrue(close(merged.get(), Q))
        self.assertTrue(close(total.get(), np.log(2 * sums)))


if __name__ == "__main__":
    unittest.main()
