#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison with peers, without any peer: contenders are small programs of this test.

What is computed by real peers is checked by the comparison itself whenever it runs.
"""
import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

from tool_case import Lines

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "peers")
sys.path.insert(0, TOOLS)
import compare  # noqa: E402
import report  # noqa: E402
import shapes  # noqa: E402
import worker  # noqa: E402
from contender import Contender, Failed, measure, ratio  # noqa: E402

# A contender that does as its options say, and writes down who was running beside it.
FAKE = r"""
import glob, os, sys, time
sys.path.insert(0, sys.argv[1])
import worker

class Fake(worker.Server):
    def open(self, request):
        self.options = request
        with open(os.path.join(request["folder"], request["name"] + ".pid"), "w") as file:
            file.write(str(os.getpid()))
        print("a library prints what it likes")
        return {"version": "1"}

    def prepare(self, request):
        if self.options.get("hang"):
            time.sleep(60)
        if self.options.get("refuse"):
            raise worker.NoWay("too wide")
        return {"variant": "", "error": 1e-7, "seconds": 0.01, "refusals": []}

    def times(self, request):
        if self.options.get("crash"):
            os.abort()
        states = []
        for path in glob.glob(os.path.join(self.options["folder"], "*.pid")):
            stat = "/proc/" + open(path).read() + "/stat"
            if os.path.exists(stat) and not path.endswith("/" + self.options["name"] + ".pid"):
                with open(stat) as file:
                    states.append(file.read().rpartition(")")[2].split()[0])
        with open(os.path.join(self.options["folder"], "log"), "a") as file:
            file.write(self.options["name"] + " " + "".join(states) + "\n")
        return {"times": [self.options["seconds"]] * request["n"]}

    def measure(self, request):
        return {"value": 30.0 if request["bytes"] else 100.0}

worker.serve(Fake())
"""
SQUARE = shapes.parse("1,2,2,100,100,50")
DECODE = shapes.parse("1,4,2,1,1000,50")


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="clattn-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.program = os.path.join(self.folder, "fake.py")
        with open(self.program, "w", encoding="utf-8") as file:
            file.write(FAKE)

    def contender(self, name, kind="peer", limit=20, **options):
        made = Contender(name, kind, [sys.executable, "-S", "-B", self.program, TOOLS],
                         dict(os.environ),
                         {"name": name, "folder": self.folder, **options})
        self.addCleanup(made.stop)
        made.start()
        made.limit = limit
        return made

    def test_they_run_in_turn_while_the_others_are_stopped(self):
        everybody = [self.contender(n, seconds=s) for n, s in (("a", 0.3), ("b", 0.1), ("c", 0.2))]
        meter = self.contender("meter", seconds=1)
        result = measure(everybody, SQUARE, "f32", 3, meter)
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            lines = [line.split() for line in file]
        self.assertEqual([name for name, _ in lines], list("abcbcacab"))
        self.assertEqual({states for _, states in lines}, {"TTT"})
        self.assertEqual([c["seconds"] for c in result["cells"]], [0.3, 0.1, 0.2])
        self.assertEqual([c["runs"] for c in result["cells"]], [12, 12, 12])
        self.assertEqual((result["peak"], "read" in result), (100.0, False))
        self.assertEqual(measure([], DECODE, "f32", 1, meter)["read"], 30.0)

    def test_who_fails_is_named_and_the_others_go_on(self):
        everybody = [self.contender("good", seconds=0.1), self.contender("bad", crash=True),
                     self.contender("hung", hang=True, limit=0.1),
                     self.contender("narrow", refuse=True)]
        said = []
        result = measure(everybody, SQUARE, "f32", 3, say=said.append)
        good, bad, hung, narrow = result["cells"]
        self.assertEqual(len(good["rounds"]), 3)
        self.assertIn("signal 6 (SIGABRT)", bad["reason"])
        self.assertEqual(hung["reason"], "took over 0.1 s")
        self.assertEqual(narrow["reason"], "too wide")
        self.assertNotIn("seconds", bad)
        self.assertEqual(len(said), 3)
        # One that was ended is started again for the next shape.
        self.assertEqual(measure(everybody[1:2], SQUARE, "f32", 1)["cells"][0]["first"], 0.01)

    def test_who_is_stopped_ends_with_its_driver(self):
        driver = f"""
import os, sys
sys.path.insert(0, {TOOLS!r})
from contender import Contender
c = Contender("x", "peer", [sys.executable, "-S", "-B", {self.program!r}, {TOOLS!r}], None,
              {{"name": "x", "folder": {self.folder!r}}})
c.start()
os.kill(os.getpid(), 9)
"""
        subprocess.run([sys.executable, "-B", "-c", driver], check=False)
        with open(os.path.join(self.folder, "x.pid"), encoding="utf-8") as file:
            pid = int(file.read())
        for _ in range(500):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state == "Z":
                return
            worker.time.sleep(0.01)
        os.kill(pid, 9)
        self.fail(f"it is still there in state {state}")

    def test_a_program_that_is_not_there(self):
        absent = Contender("x", "peer", [self.folder + "/none"], {}, {})
        self.assertRaises(Failed, absent.start)

    def test_slow_ones_take_part_in_three_rounds(self):
        slow = self.contender("slow", seconds=9)
        cell = measure([slow], SQUARE, "f32", 7, budget=0.1)["cells"][0]
        self.assertEqual(len(cell["rounds"]), 3)


class Variants(unittest.TestCase):
    class Problem:
        tolerance = 1e-3

        @staticmethod
        def error(out):
            return out

    class Peer:
        def __init__(self, *ways):
            self.ways = ways

        def variants(self, _):
            for name, seconds, error in self.ways:
                if error is None:
                    yield name, lambda: 1 // 0
                else:
                    yield name, lambda s=seconds, e=error: (lambda: worker.time.sleep(s),
                                                            lambda: e)

    def test_the_fastest_right_one_is_taken(self):
        peer = self.Peer(("slow", 0.02, 1e-6), ("wrong", 0, 1.0), ("nan", 0, float("nan")),
                         ("fast", 0.002, 1e-5), ("broken", 0, None))
        name, _, error, seconds, refusals = worker.choose(peer, self.Problem)
        self.assertEqual((name, error), ("fast", 1e-5))
        self.assertTrue(0.002 <= seconds < 0.02, seconds)
        self.assertEqual([r.split(":")[0] for r in refusals], ["wrong", "nan", "broken"])
        self.assertIn("off by 1.0e+00", refusals[0])
        self.assertIn("ZeroDivisionError", refusals[2])

    def test_none_is_right(self):
        with self.assertRaisesRegex(worker.NoWay, "wrong result"):
            worker.choose(self.Peer(("wrong", 0, 1.0)), self.Problem)


class Shapes(unittest.TestCase):
    def test_pairs(self):
        self.assertEqual(shapes.parse("1,1,1,3,5,1,causal").pairs, 3 + 4 + 5)
        self.assertEqual(shapes.parse("2,3,1,3,5,1").pairs, 2 * 3 * 15)
        self.assertEqual(SQUARE.flops, 4 * 2 * 100 * 100 * 50)
        self.assertEqual(DECODE.kv_bytes("bf16"), 2 * 2 * 1000 * 50 * 2)

    def test_names_are_read_back(self):
        for shape in shapes.DEFAULT:
            self.assertEqual(shapes.parse(shape.name), shape)

    def test_what_is_no_shape(self):
        for text in ("1,2,3", "1,3,2,8,8,8", "1,2,2,9,8,8,causal", "0,1,1,1,1,1", "a"):
            self.assertRaises(ValueError, shapes.parse, text)


def cell(name, kind, *seconds):
    return {"name": name, "kind": kind, "variant": "way of " + name, "error": 2e-7, "first": 1,
            "refusals": [], "rounds": [[i, s] for i, s in enumerate(seconds)], "runs": 9,
            "seconds": sorted(seconds)[len(seconds) // 2]}


def results():
    """Two shapes: clattn ahead on one device, the peer ahead on the other shape."""
    first = [cell("PoCL", "device", 1, 2, 1), cell("Intel", "device", 4, 8, 4),
             cell("CPU path", "device", 2, 4, 2), cell("fast", "peer", 3, 6, 3),
             cell("slow", "peer", 30, 30, 30)]
    second = [cell("PoCL", "device", 4, 4, 4), cell("Intel", "device", 5, 5, 5),
              cell("CPU path", "device", 8, 8, 8), cell("fast", "peer", 9, 9, 9),
              cell("slow", "peer", 2, 2, 2)]
    second.append({"name": "odd", "kind": "peer", "reason": "took over 3 s"})

    def one(shape, cells):
        return {"shape": shape.name, "dtype": "f32", "flops": 10 ** 9, "decode": shape.decode,
                "kv_bytes": 10 ** 9, "peak": 4.0, "read": 1.0, "cells": cells}
    return {"date": "2000-01-01", "threads": 2, "dtype": "f32", "repeat": 3, "tolerance": 2e-5,
            "machine": {"cpu": "CPU of a test", "isa": "AVX2", "cores": 2, "system": "Debian"},
            "versions": [{"name": "clattn", "version": "0"}, {"name": "fast", "version": "1"}],
            "skipped": [{"name": "gone", "reason": "no such package"}],
            "shapes": [one(SQUARE, first), one(DECODE, second)]}


class Reports(unittest.TestCase):
    def test_a_ratio_compares_within_rounds(self):
        steady, other = cell("a", "device", 1, 10, 1), cell("b", "peer", 2, 20, 2)
        other["rounds"].append([7, 99])
        self.assertEqual(ratio(other, steady), 2)
        self.assertEqual(ratio(steady, other), 0.5)

    def test_who_is_ahead(self):
        rows = [report.row_of(shape) for shape in results()["shapes"]]
        self.assertEqual([r["peer"]["name"] for r in rows], ["fast", "slow"])
        self.assertEqual(rows[0]["ratios"], {"PoCL": 3, "Intel": 0.75, "CPU path": 1.5})
        self.assertEqual([r["winner"] for r in rows], ["clattn (PoCL)", "slow"])
        self.assertEqual([r["opencl"] for r in rows], ["PoCL", "PoCL"])

    def test_text(self):
        text = report.as_text(results())
        for part in (r"100,50 .* fast +3000\.0 +0 GFLOP/s +3\.00 +3\.00 +0\.75 +1\.50 +clattn",
                     r"1000,50 .* slow +2000\.0 +0 GB/s +0\.50 +0\.50 +0\.40 +0\.25 +slow",
                     r" 4 GFLOP/s +25 % +8 %", r" 1 GB/s +25 % +50 %",
                     "gone: no such package", "odd: took over 3 s", "way of fast",
                     r"2\.0e-07 \(2e-05 allowed\)"):
            self.assertRegex(text, part)

    def test_markdown(self):
        for text in (report.as_markdown(results()), report.as_short_markdown(results())):
            rows = [line for line in text.split("\n") if line.startswith("|")]
            self.assertGreaterEqual(len(rows), 4)
            for i, row in enumerate(rows[1:], 1):
                if not row.startswith(("| shape", "| batch")):
                    self.assertEqual(row.count("|"), rows[i - 1].count("|"), row)
        self.assertIn("| fast, 0 GFLOP/s | 3.00 (PoCL) | 1.50 |",
                      report.as_short_markdown(results()))

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(report.as_csv(results()))))
        self.assertEqual(len(rows), 11)
        self.assertEqual((rows[0]["name"], rows[0]["of_best_peer"], rows[0]["share"]),
                         ("PoCL", "3.000", "0.250"))
        self.assertEqual((rows[-1]["reason"], rows[-1]["median_ms"]), ("took over 3 s", ""))

    def test_without_a_peer_times_are_shown(self):
        alone = results()
        for shape in alone["shapes"]:
            shape["cells"] = [c for c in shape["cells"] if c["kind"] == "device"]
        self.assertRegex(report.as_text(alone), r"100,50 .* none +- +- +- +- +- +- +-\n")


class CommandLine(unittest.TestCase):
    def run_it(self, *words):
        """As the program does, in this process: the exit status and what was written."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = compare.main(words)
            except SystemExit as left:
                status = left.code
        return argparse.Namespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())

    def test_wrong_use(self):
        for words in (["--peers", "nobody"], ["--shapes", "1,2"], ["--threads", "0"],
                      ["--threads", "100000"], ["--setup-only", "--no-setup"],
                      ["--peers", "none", "--device", "none"], ["--from", "/nowhere"]):
            with self.subTest(words):
                done = self.run_it(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)

    def test_help_has_an_example(self):
        done = subprocess.run([sys.executable, os.path.join(TOOLS, "compare.py"), "--help"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("example:\n  tools/peers/compare.py", done.stdout)

    def test_without_setup_nothing_is_installed(self):
        with tempfile.TemporaryDirectory(prefix="clattn-test-") as folder:
            done = self.run_it("--no-setup", "--folder", os.path.join(folder, "peers"))
            self.assertEqual((done.returncode, os.listdir(folder)), (1, []), done.stderr)
            self.assertIn("run without --no-setup", done.stderr)

    def test_saved_results_are_shown_again_and_joined(self):
        with tempfile.TemporaryDirectory(prefix="clattn-test-") as folder:
            path, copy = os.path.join(folder, "a.json"), os.path.join(folder, "b.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(results(), file)
            done = self.run_it("--from", path, "--json", copy)
            self.assertEqual((done.returncode, done.stdout), (0, report.as_text(results())))
            done = self.run_it("--from", path, copy, "--markdown", "full")
            twice = results()
            twice["shapes"] *= 2
            self.assertEqual(done.stdout, report.as_markdown(twice))

    def test_peers_by_name(self):
        self.assertEqual(compare.peer_list("default,torch")[-1], "torch")
        self.assertEqual(compare.peer_list("none"), [])
        self.assertEqual(compare.peer_list("openblas,openblas"), ["openblas"])

    def test_variables_that_slow_a_peer_are_not_passed_on(self):
        os.environ["OPENBLAS_CORETYPE"] = "Prescott"
        self.addCleanup(os.environ.pop, "OPENBLAS_CORETYPE")
        env = compare.environment(3)
        self.assertNotIn("OPENBLAS_CORETYPE", env)
        self.assertEqual(env["OMP_NUM_THREADS"], "3")

    def test_devices_by_name(self):
        pocl = {"type": 1, "platform": "Portable Computing Language", "name": "pthread-x"}
        soft = {"type": 1, "platform": "rusticl", "name": "llvmpipe"}
        path = {"type": 0, "platform": "clattn", "name": "built-in"}
        self.assertEqual([compare.label(d) for d in (pocl, soft, path)],
                         ["PoCL", "llvmpipe", "CPU path"])
        for selectors, expected in ((None, [True, False, True]), (["pocl"], [True, False, False]),
                                    (["cpu"], [False, False, True]),
                                    (["llvm", "pthread"], [True, True, False]),
                                    (["none"], [False] * 3)):
            self.assertEqual([compare.wanted(d, selectors) for d in (pocl, soft, path)], expected)


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    outcome = Lines()
    suite.run(outcome)
    print(f"{outcome.passed} of {outcome.testsRun} tests passed")
    sys.exit(0 if outcome.passed == outcome.testsRun > 0 else 1)
