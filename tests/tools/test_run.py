#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-run: results on the CPU path and on devices, reports, output files."""
import json
import math
import os
import resource
import signal
import stat
import subprocess
import sys
import time

from tool_case import (CPU, DEVICES, INPUTS, PROGRAMS, Folder, attention, main, npy_bytes, pattern,
                       read_npy, size_of, swap_axes, usual_signals)


class RunResults(Folder):
    broadcasts = range(16)  # bit n: axis n of the mask has its full extent
    targets = [["--device", "cpu"], ["--device=cpu", "--algo=reference"],
               ["--device", "CPU", "--algo", "host", "--threads", "1"]]

    def check(self, want, lse, *args):
        for target in self.targets:
            with self.subTest(target=target, args=args):
                self.run_ok(*INPUTS, "-o", "o.npy", "--lse=lse.npy", *target, *args)
                shape, got = read_npy(self.path("o.npy"))
                self.assertEqual(shape, self.Q_SHAPE)
                self.assert_close(got, want)
                shape, got = read_npy(self.path("lse.npy"))
                self.assertEqual(shape, self.Q_SHAPE[:3])
                self.assert_close(got, lse)

    def inputs(self, q_shape, k_shape, q, k, v):
        self.Q_SHAPE, self.K_SHAPE = q_shape, k_shape
        fill = lambda x, shape: [float(x)] * size_of(shape) if isinstance(x, int) else x
        self.q, self.k, self.v = fill(q, q_shape), fill(k, k_shape), fill(v, k_shape)
        self.save("q.npy", q_shape, self.q)
        self.save("k.npy", k_shape, self.k)
        self.save("v.npy", k_shape, self.v)

    def test_definition(self):
        self.check(*attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v))

    def test_scale(self):
        for scale in ("0.75", "-2", "0", "1e-3"):
            want = attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v, float(scale))
            self.check(*want, "--scale", scale)

    def test_causal(self):
        off = self.K_SHAPE[2] - self.Q_SHAPE[2]
        full = (self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v)
        self.check(*attention(*full, causal=off), "--causal")
        self.check(*attention(*full, causal=off), "--causal=bottom-right")
        self.check(*attention(*full, causal=0), "--causal=top-left")
        self.check(*attention(*full, causal=0), "--causal", "--align", "top-left")
        self.check(*attention(*full), "--align", "top-left")

    def test_causal_by_hand(self):
        steps = [float(j) for j in range(5) for _ in range(8)]
        self.inputs((1, 1, 2, 8), (1, 1, 5, 8), 0, 1, steps)
        self.check([1.5] * 8 + [2.0] * 8, [math.log(4), math.log(5)], "--causal")
        self.check([0.0] * 8 + [0.5] * 8, [0, math.log(2)], "--causal=top-left")

    def test_rows_that_see_nothing(self):
        self.inputs((1, 1, 5, 8), (1, 1, 2, 8), 0, 1, [10.0] * 8 + [20.0] * 8)
        self.check([0.0] * 24 + [10.0] * 8 + [15.0] * 8, [-math.inf] * 3 + [0, 0.693147],
                   "--causal")

    def test_head_mapping(self):
        self.inputs((1, 6, 2, 8), (1, 2, 7, 8), 0, 0, [10.0] * 56 + [20.0] * 56)
        self.check([10.0] * 48 + [20.0] * 48, [math.log(7)] * 12)

    def test_large_scores(self):
        k = [10000.0 * j if d == 0 else 0.0 for j in range(4) for d in range(8)]
        v = [float(j) for j in range(4) for d in range(8)]
        self.inputs((1, 1, 1, 8), (1, 1, 4, 8), [1.0] + [0.0] * 7, k, v)
        self.check([3.0] * 8, [30000.0], "--scale", "1")

    def test_mask_by_hand(self):
        self.inputs((1, 1, 4, 8), (1, 1, 6, 8), pattern(0, (1, 1, 4, 8)), pattern(1, (1, 1, 6, 8)),
                    pattern(2, (1, 1, 6, 8)))
        self.save("m.npy", (1, 1, 4, 6), [int(j != 5 and i != 2) for i in range(4)
                                          for j in range(6)], descr="|b1")
        rows = [-0.399573, -0.153024, -0.165640, 0.080909, 0.113597, -0.134566, 0.111983, 0.099367,
                -0.270478, -0.015145, -0.134481, 0.120852, 0.128415, -0.004921, 0.250412, 0.131075]
        last = [-0.111188, 0.154920, -0.162443, 0.103666, 0.029698, 0.021903, 0.288012, -0.029352]
        self.check(rows + [0.0] * 8 + last, [1.927442, 1.829461, -math.inf, 1.530746],
                   "--mask", "m.npy")

    def test_mask_broadcast(self):
        full = self.Q_SHAPE[:3] + (self.K_SHAPE[2],)
        for bits in self.broadcasts:
            shape = tuple(n if bits >> axis & 1 else 1 for axis, n in enumerate(full))
            values = [int((7 * n + n // 5) % 3 != 0) for n in range(size_of(shape))]
            self.save("m.npy", shape, values, descr="|b1")

            def visible(*index):
                flat = 0
                for n, i in zip(shape, index):
                    flat = flat * n + (i if n > 1 else 0)
                return values[flat]
            want = attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v, mask=visible)
            self.check(*want, "--mask", "m.npy")

    def test_layout(self):
        o, lse = attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v)
        shape, want = swap_axes(self.Q_SHAPE, o)
        for name, x, values in (("q", self.Q_SHAPE, self.q), ("k", self.K_SHAPE, self.k),
                                ("v", self.K_SHAPE, self.v)):
            self.save(name + ".npy", *swap_axes(x, values))
        for target in self.targets:
            self.run_ok(*INPUTS, "-o", "o.npy", "--lse", "l.npy", "--layout=bshd", *target)
            self.assertEqual(read_npy(self.path("o.npy"))[0], shape)
            self.assert_close(read_npy(self.path("o.npy"))[1], want)
            self.assertEqual(read_npy(self.path("l.npy"))[0], self.Q_SHAPE[:3])
            self.assert_close(read_npy(self.path("l.npy"))[1], lse)

    def test_empty_problems(self):
        for q, k in (((0, 4, 5, 12), (0, 2, 9, 12)), ((2, 4, 0, 12), (2, 2, 9, 12)),
                     ((2, 4, 5, 12), (2, 2, 0, 12)), ((2, 4, 0, 12), (2, 2, 0, 12))):
            self.inputs(q, k, 1, 1, 1)
            count = size_of(q[:3])
            self.check([0.0] * size_of(q), [-math.inf] * count)

    def test_every_dimension_class(self):
        for dim in (1, 3, 7, 8, 17, 64, 100, 255, 256, 320, 576):
            q, k = (1, 2, 3, dim), (1, 1, 35, dim)
            self.inputs(q, k, pattern(0, q), pattern(1, k), pattern(2, k))
            self.check(*attention(q, self.q, k, self.k, self.v))

    def test_values_with_their_own_dimension(self):
        for dim_v in (1, 13, 40):
            v_shape = self.K_SHAPE[:3] + (dim_v,)
            v = pattern(3, v_shape)
            self.save("v.npy", v_shape, v)
            o, lse = attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, v, dim_v=dim_v)
            self.run_ok(*INPUTS, "-o", "o.npy", "--lse", "l.npy", *CPU)
            self.assertEqual(read_npy(self.path("o.npy"))[0], self.Q_SHAPE[:3] + (dim_v,))
            self.assert_close(read_npy(self.path("o.npy"))[1], o)
            self.assert_close(read_npy(self.path("l.npy"))[1], lse)

    def test_format_versions_and_one_file_for_all(self):
        want = attention(self.K_SHAPE, self.k, self.K_SHAPE, self.k, self.k)[0]
        for version in (1, 2, 3):
            self.save("x.npy", self.K_SHAPE, self.k, version=version)
            self.run_ok("-q", "x.npy", "-k", "x.npy", "-v", "x.npy", "-o", "o.npy", *CPU)
            self.assert_close(read_npy(self.path("o.npy"))[1], want)

    def test_nan_stays_behind_the_mask(self):
        k, v = list(self.k), list(self.v)
        for head in range(4):
            for d in range(12):
                k[(head * 9 + 8) * 12 + d] = v[(head * 9 + 8) * 12 + d] = math.nan
        want = attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v,
                         mask=lambda b, h, i, j: j != 8)
        self.inputs(self.Q_SHAPE, self.K_SHAPE, self.q, k, v)
        self.save("m.npy", (1, 1, 1, 9), [1] * 8 + [0], descr="|b1")
        self.check(*want, "--mask=m.npy")

    def test_real_input(self):
        data = PROGRAMS.data
        for target in self.targets:
            text = self.run_ok("-q", f"{data}/q.npy", "-k", f"{data}/k.npy", "-v", f"{data}/v.npy",
                               "--mask", f"{data}/mask.npy", "--compare", f"{data}/o.npy",
                               "-o", "o.npy", "--lse", "lse.npy", *target)
            self.assertRegex(text, r"compare +passed: 0 of 67584 elements")
            self.assert_close(read_npy(self.path("o.npy"))[1], read_npy(f"{data}/o.npy")[1])
            self.assert_close(read_npy(self.path("lse.npy"))[1], read_npy(f"{data}/lse.npy")[1])


class RunResultsOnDevice(RunResults):
    """On OpenCL devices: their own choice, the CPU path on their memory, once the group shape."""

    drivers = True
    broadcasts = (6, 8)
    # The kernels have tests of their own; here is what the tool adds.
    test_scale = test_causal_by_hand = test_head_mapping = test_large_scores = None
    test_every_dimension_class = test_nan_stays_behind_the_mask = None
    test_format_versions_and_one_file_for_all = None

    def setUp(self):
        super().setUp()
        self.targets = [["--device", d, *algo] for d in DEVICES
                        for algo in ([], ["--algo", "host"])]

    def test_shape(self):
        self.targets = [["--device", d, "--algo=fused", "--kernel", "group"] for d in DEVICES]
        self.test_definition()

    def test_json_names_the_kernel(self):
        for d in DEVICES:
            report = json.loads(self.run_ok(*INPUTS, "-o", "o.npy", "--device", d, "--json"))
            self.assertIn(d, (report["device"]["platform"] + report["device"]["name"]).lower())
            self.assertEqual(report["algo"], "fused")
            self.assertIn(report["kernel"], ("group", "vector"))

    def test_broken_kernels_are_a_device_failure(self):
        os.mkdir(self.path("cl"))
        for name in ("self_test.cl", "fused_group.cl", "fused_vector.cl"):
            self.save_bytes(os.path.join("cl", name), b"this is no OpenCL C\n")
        for d in DEVICES:
            before = self.tree()
            done = self.run_program(PROGRAMS.run, *INPUTS, "-o", "o.npy", "--device", d,
                                    env={"CLATTN_KERNEL_DIR": self.path("cl")})
            self.assertEqual(done.returncode, 3)
            self.assertRegex(done.said, r"\Aclattn-run: ")
            self.assertEqual(self.tree(), before)
            done = self.run_program(PROGRAMS.probe, "--device", d,
                                    env={"CLATTN_KERNEL_DIR": self.path("cl")})
            self.assertEqual(done.returncode, 1)
            self.assertIn("does NOT work", done.stdout)


class RunReports(Folder):
    def expected(self, **more):
        return attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v, **more)[0]

    def test_text(self):
        self.drivers = True  # the built-in path beside whatever devices are there
        text = self.run_ok(*INPUTS, "-o", "o.npy", "--lse", "l.npy", "--runs=3", *CPU)
        for line in (r"device +\[(\d+|cpu)\] .*CPU", r"algorithm +host",
                     r"tile +\d+ rows x \d+ keys", r"time +\d+\.\d+ ms \(median of 3\)",
                     r"written +o.npy", r"written +l.npy"):
            self.assertRegex(text, "(?m)^" + line)

    def test_json(self):
        self.save("want.npy", self.Q_SHAPE, self.expected())
        text = self.run_ok(*INPUTS, "--compare", "want.npy", "--json", "--runs", "2", *CPU)
        report = json.loads(text)
        self.assertEqual(report["algo"], "host")
        self.assertEqual(report["runs"], 2)
        self.assertGreater(report["ms"], 0)
        self.assertGreater(report["tile_q"], 0)
        self.assertIn("CPU", report["device"]["name"])
        self.assertIs(report["is_fallback"], False)
        self.assertIs(report["compare"]["passed"], True)
        self.assertEqual(report["compare"]["count"], size_of(self.Q_SHAPE))

    def test_comparison_fails(self):
        want = self.expected()
        at = ((1 * 4 + 2) * 5 + 3) * 12 + 7
        for error, code in ((0.0, 0), (1e-6, 0), (0.01, 1), (-0.01, 1), (math.nan, 1),
                            (math.inf, 1), (-math.inf, 1)):
            other = list(want)
            other[at] += error
            self.save("want.npy", self.Q_SHAPE, other)
            for layout in ("bhsd", "bshd"):
                args = [*INPUTS, "--compare", "want.npy", *CPU]
                if layout == "bshd":
                    for name, x, values in (
                            ("q", self.Q_SHAPE, self.q), ("k", self.K_SHAPE, self.k),
                            ("v", self.K_SHAPE, self.v), ("want", self.Q_SHAPE, other)):
                        self.save(f"{name}.b.npy", *swap_axes(x, values))
                    args = [a.replace(".npy", ".b.npy") for a in args] + ["--layout", "bshd"]
                done = self.run_program(PROGRAMS.run, *args)
                self.assertEqual((done.returncode, done.said), (code, ""))
                verdict = "FAILED: 1 of" if code else "passed: 0 of"
                self.assertRegex(done.stdout, "compare +" + verdict)
                if code:
                    self.assertIn("at [b,h,i,d] = [1,2,3,7]:", done.stdout)
                report = self.run_program(PROGRAMS.run, *args, "--json")
                self.assertEqual(report.returncode, code)
                compare = json.loads(report.stdout)["compare"]
                self.assertIs(compare["passed"], code == 0)
                self.assertEqual(compare["over"], code)
                if code:
                    self.assertEqual(compare["worst_index"], [1, 2, 3, 7])

    def test_result_that_is_not_finite_fails(self):
        self.v[:12] = [math.nan] * 12
        self.save("v.npy", self.K_SHAPE, self.v)
        self.save("want.npy", self.Q_SHAPE, [0.0] * size_of(self.Q_SHAPE))
        args = [*INPUTS, "--compare=want.npy", "--tolerance=1e6", *CPU]
        done = self.run_program(PROGRAMS.run, *args)
        self.assertEqual(done.returncode, 1)
        self.assertIn("worst error inf", done.stdout)
        # The same NaN on both sides is what was expected.
        self.run_ok(*INPUTS, "-o", "o.npy", *CPU)
        self.run_ok(*INPUTS, "--compare", "o.npy", "--tolerance", "1e-6", *CPU)

    def test_tolerance(self):
        want = [x + 1e-3 for x in self.expected()]
        self.save("want.npy", self.Q_SHAPE, want)
        for tolerance, code in (("1e-2", 0), ("1e-4", 1), ("0", 1)):
            done = self.run_program(PROGRAMS.run, *INPUTS, "--compare", "want.npy", "--tolerance",
                                    tolerance, "-o", "o.npy", *CPU)
            self.assertEqual(done.returncode, code)
            self.assert_close(read_npy(self.path("o.npy"))[1], self.expected())

    def test_help_and_version(self):
        for program in (PROGRAMS.run, PROGRAMS.probe, PROGRAMS.bench):
            for option in ("-h", "--help"):
                text = self.run_ok(option, program=program)
                self.assertRegex(text, r"\AUsage: clattn-\w+ ")
                self.assertIn("Exit status: 0", text)
                self.assertLessEqual(max(map(len, text.splitlines())), 100)
            self.assertRegex(self.run_ok("--version", program=program),
                             r"\Aclattn-\w+ \d+\.\d+\.\d+ \(library \d+\.\d+\.\d+\)\n\Z")

    def test_output_files(self):
        want = self.expected()
        self.save_bytes("o.npy", b"old")
        os.chmod(self.path("o.npy"), 0o640)
        os.symlink("o.npy", self.path("link.npy"))
        os.mkdir(self.path("sub"))
        for name in ("o.npy", "link.npy", "sub/new.npy", self.path("sub/absolute.npy"),
                     "./sub/../dots.npy", "-odd", "with space.npy"):
            self.run_ok(*INPUTS, "-o", name, *CPU) if name[0] != "-" else \
                self.run_ok(*INPUTS, "-o-odd", *CPU)
            self.assert_close(read_npy(os.path.join(self.dir, name))[1], want)
        self.assertTrue(os.path.islink(self.path("link.npy")))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("o.npy")).st_mode), 0o640)
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("sub/new.npy")).st_mode), 0o666 & ~umask)
        self.assertEqual(sorted(os.listdir(self.path("sub"))), ["absolute.npy", "new.npy"])
        # An input is not replaced: who names it as an output has most likely mistyped.
        self.run_bad(*INPUTS, "-o", "q.npy", *CPU, says=["-o and -q", "same file q.npy"])

    def test_output_devices(self):
        self.run_ok(*INPUTS, "-o", "/dev/null", "--lse", "/dev/null", *CPU)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        self.run_bad(*INPUTS, "-o", "/dev/full", *CPU, says=["-o /dev/full", "No space left"])
        with open("/dev/full", "w") as full:
            done = self.run_program(PROGRAMS.run, *INPUTS, "-o", "o.npy", *CPU, stdout=full)
        self.assertEqual(done.returncode, 2)
        self.assertIn("standard output", done.stderr)

    def test_output_pipes(self):
        """A pipe has no path, as of a shell's >(gzip). Where the report goes nothing else does."""
        self.run_ok(*INPUTS, "-o", "o.npy", *CPU)
        source, sink = os.pipe()
        self.run_ok(*INPUTS, "-o", f"/dev/fd/{sink}", *CPU, pass_fds=[sink])
        os.close(sink)
        with open(source, "rb") as file:
            self.assertEqual(file.read(), self.content("o.npy"))
        for option in ("-o", "--lse"):
            self.run_bad(*INPUTS, option, "/dev/stdout", *CPU, says=[f"{option} /dev/stdout",
                                                                     "it is standard output"])
        before = self.tree()
        with open(self.path("o.npy"), "r+", encoding="utf-8") as file:
            done = self.run_program(PROGRAMS.run, *INPUTS, "-o", "o.npy", *CPU, stdout=file)
        self.assertEqual((done.returncode, self.tree()), (2, before))
        with open("/dev/null", "w", encoding="utf-8") as null:
            done = self.run_program(PROGRAMS.run, *INPUTS, "-o", "/dev/null", *CPU, stdout=null)
        self.assertEqual((done.returncode, done.said), (0, ""))

    def test_signals_wait_for_the_files(self):
        """However many threads there are: what Ctrl-C meets half written is still put in place."""
        many = (1, 1, 4096, 16)
        for name in "qkv":
            self.save(f"{name}.npy", many, [0.5] * size_of(many))
        before = sorted(os.listdir(self.dir))
        for number, times in ((signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 1),
                              (signal.SIGINT, 2)):
            os.mkfifo(self.path("lse.npy"))
            with subprocess.Popen([PROGRAMS.run, *INPUTS, "-o", "o.npy", "--lse", "lse.npy",
                                   "--device=cpu", "--threads=3"], cwd=self.dir,
                                  stdout=subprocess.DEVNULL, preexec_fn=usual_signals) as child:
                while not any(name.startswith(".clattn-") for name in os.listdir(self.dir)):
                    self.assertIsNone(child.poll())
                    time.sleep(0.001)
                time.sleep(0.1)  # O is written now, and LSE's pipe waits for a reader
                for _ in range(times):
                    child.send_signal(number)
                    time.sleep(0.1)
                if times == 1:  # a second one would not wait
                    self.assertIsNone(child.poll())
                    with open(self.path("lse.npy"), "rb") as file:
                        self.assertEqual(len(file.read()), 128 + 4 * 4096)
                self.assertEqual(child.wait(60), -number)
            os.unlink(self.path("lse.npy"))
            if times == 1:
                self.assertEqual(read_npy(self.path("o.npy"))[0], many)
                os.unlink(self.path("o.npy"))
                self.assertEqual(sorted(os.listdir(self.dir)), before)

    def test_disk_full_leaves_nothing(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
        self.run_bad(*INPUTS, "-o", "o.npy", *CPU, preexec_fn=limit, says=["-o o.npy", "written"])
        # LSE would fit, O does not: neither appears.
        self.run_bad(*INPUTS, "--lse", "l.npy", "-o", "o.npy", *CPU, says=["-o o.npy"],
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)))


if __name__ == "__main__":
    main(sys.modules[__name__], [RunResults, RunReports], [RunResultsOnDevice])
