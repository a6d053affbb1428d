#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-bench."""
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

from tool_case import CPU, DEVICES, PROGRAMS, Folder, main


def moved(row):
    """Bytes of a run by the documented formula, without a mask."""
    batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v = row["shape"]
    group = heads_q // heads_kv
    rows = group * len_q
    keys = 0
    for first in range(0, rows, row["tile_q"]):
        last = (min(first + row["tile_q"], rows) - 1) // group
        seen = max(0, last + len_kv - len_q + 1) if row["causal"] else len_kv
        keys += min(len_kv, -(-seen // row["tile_k"]) * row["tile_k"])
    return 4 * (dim_qk + dim_v) * batch * heads_kv * (rows + keys)


FAMILY = ["softmax_naive", "softmax_safe", "softmax_online", "unfused", "two_loop",
          "fused_kv_outer", "fused", "split_kv", "host"]
# Passes of a softmax over its rows, reads and writes.
PASSES = {"softmax_naive": 4, "softmax_safe": 4, "softmax_online": 3}


class Bench(Folder):
    def lines(self, *args, **more):
        text = self.run_ok(*args, "--json", "--runs=1", program=PROGRAMS.bench, **more)
        return [json.loads(line) for line in text.splitlines()]

    def test_json(self):
        for args in ([], ["--causal"]):
            rows = self.lines("--shape", "1,2,1,70,90,24", "--shape=2,3,3,40,8,5,5", *args, *CPU,
                              "--threads", "1")
            self.assertEqual([r["shape"] for r in rows], [[1, 2, 1, 70, 90, 24, 24],
                                                          [2, 3, 3, 40, 8, 5, 5]])
            pairs = [70 * 90, 40 * 8]
            if args:
                pairs = [sum(i + 21 for i in range(70)), sum(range(1, 9))]
            for row, pair in zip(rows, pairs):
                self.assertIn("CPU", row["device"].pop("name"))
                self.assertEqual(row["device"].pop("type"), "built-in CPU path")
                self.assertEqual(row["device"].pop("platform"), "clattn")
                self.assertEqual(list(row["device"]), ["index"])
                self.assertEqual((row["algo"], row["dtype"]), ("host", "f32"))
                self.assertIs(row["causal"], bool(args))
                self.assertTrue(row["kernel"])
                self.assertGreater(row["tile_q"] * row["tile_k"], 0)
                self.assertGreaterEqual(row["ms"], row["min_ms"])
                self.assertGreater(row["min_ms"], 0)
                self.assertGreater(row["cpu_ms"], 0)
                self.assertTrue(row["min_ms"] <= row["q1_ms"] <= row["ms"] <= row["q3_ms"]
                                <= row["max_ms"], row)
                self.assertGreater(row["peak_gflops"], 0.1)
                # No peak of a pair is over the largest.
                self.assertGreaterEqual(1.00001 * row["percent_of_peak_paired"],
                                        row["percent_of_peak"])
                self.assertIsNone(row["case"])
                self.assertEqual(row["bytes"], moved(row))
                self.assertAlmostEqual(row["gbytes_per_s"] / (1e-6 * row["bytes"] / row["ms"]), 1,
                                       places=4)
                self.assertLess(row["max_error"], 1e-5)
                work = 4e-9 * row["shape"][0] * row["shape"][1] * pair * row["shape"][5]
                self.assertAlmostEqual(row["gflops"] / (work / row["ms"] * 1e3), 1, places=4)
                self.assertAlmostEqual(row["percent_of_peak"],
                                       100 * row["gflops"] / row["peak_gflops"], places=3)

    def test_share_of_reading(self):
        rows = self.lines("--shape=1,4,2,1,300,16", "--shape=1,4,1,3,300,16", *CPU)
        self.assertGreater(rows[0]["percent_of_read_paired"], 0)
        # More rows of a head than read it once.
        self.assertIsNone(rows[1]["percent_of_read_paired"])
        text = self.run_ok("--shape=1,4,2,1,300,16", "--shape=1,4,1,3,300,16", "--runs=1", *CPU,
                           program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^SHAPE.*% PAIRED +% OF READ +GB/S")
        self.assertRegex(text, r"(?m)^1,4,1,3,300,16 .* - +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.e-]+$")

    def test_table(self):
        text = self.run_ok("--shape=1,1,1,33,44,16", "--algo", "reference", "--runs", "3", *CPU,
                           program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^device +\[(\d+|cpu)\] ")
        self.assertRegex(text, r"(?m)^SHAPE.*MS +QUARTILES +MIN MS +RUNS +GFLOP/S +PEAK +"
                               r"% OF PEAK +% PAIRED +GB/S +MB +WORKSPACE MB +MAX ERROR$")
        self.assertRegex(text, r"(?m)^1,1,1,33,44,16 +no +reference ")

    def test_list(self):
        text = self.run_ok("--list", program=PROGRAMS.bench)
        lines = [line.split() for line in text.splitlines()]
        self.assertEqual(lines[0], ["CASE", "SHAPE", "CAUSAL", "MASK"])
        names = [line[0] for line in lines[1:]]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(names), 100)
        self.assertIn(["bench-2048-d64-causal", "1,8,8,2048,2048,64", "yes", "no"], lines)
        self.assertIn(["causal-tl-7x100-d20", "1,2,2,7,100,20", "yes", "no"], lines)
        for name in ("layout-3-d20", "input-5-37x70-d20"):  # strided, special numbers
            self.assertNotIn(name, names)

    def test_cases(self):
        rows = self.lines("--case=causal-tl-*x5-d20", "--case", "layout-1-d64-causal",
                          "--case=causal-tl-7x100-d20", "--case=scale--0.7-1", *CPU)
        self.assertEqual([(r["case"], r["align"], r["layout"]) for r in rows],
                         [("causal-tl-129x5-d20", "top-left", "bhsd"),
                          ("layout-1-d64-causal", "bottom-right", "bshd"),
                          ("causal-tl-7x100-d20", "top-left", "bhsd"),
                          ("scale--0.7-1", "bottom-right", "bhsd")])
        pairs = [sum(min(i + 1, 5) for i in range(129)), sum(i + 36 for i in range(35)),
                 sum(range(1, 8)), sum(i + 50 for i in range(18))]
        for row, pair in zip(rows, pairs):
            work = 4e-9 * row["shape"][0] * row["shape"][1] * pair * row["shape"][5]
            self.assertAlmostEqual(row["gflops"] / (work / row["ms"] * 1e3), 1, places=4)
            self.assertLess(row["max_error"], 1e-5)

    def test_masks(self):
        """Verified with every kind of broadcast; what is hidden is no work."""
        rows = self.lines("--case=mask-bcast-0[069]-causal", "--case=mask-bcast-15-d20", *CPU)
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertTrue(row["mask"])
            self.assertLess(row["max_error"], 1e-5)
            batch, heads, _, len_q, len_kv, dim, _ = row["shape"]
            most = sum(max(0, i + len_kv - len_q + 1) if row["causal"] else len_kv
                       for i in range(len_q))
            part = row["gflops"] * row["ms"] / (4e-6 * batch * heads * dim * most)
            if not row["case"].startswith("mask-bcast-15"):  # that one has a single element
                self.assertTrue(0.8 < part < 0.95, row)
            self.assertGreater(row["bytes"], moved(row))
        for fault in ("add:0", "nan:77"):
            self.run_bad("--case=mask-bcast-06-causal", *CPU, "--json", "--runs=1",
                         program=PROGRAMS.bench_faulty, code=1, says=["wrong result, not timed",
                                                                      "mask-bcast-06-causal"],
                         env={"TOOL_TEST_FAULT": fault})

    def work(self, row):
        """Pairs of a query and a key that the row counts as work, by its time and rate."""
        dims = row["shape"][5] + row["shape"][6]
        return row["gflops"] * row["ms"] / (2e-6 * dims)

    def test_features(self):
        """Verified, named, and only pairs inside windows and lengths are work."""
        batch, heads, len_q, len_kv = 3, 2, 37, 70
        off = len_kv - len_q
        full = batch * heads * len_q * len_kv
        window = batch * heads * sum(len(range(max(0, i + off - 20), min(len_kv, i + off + 4)))
                                     for i in range(len_q))
        shape = f"--shape={batch},{heads},1,{len_q},{len_kv},24,16"
        named = {"dtype": "f32", "kv_dtype": "f32", "window": None, "softcap": None, "bias": None,
                 "alibi": False, "sinks": False, "kv_lens": False, "packed_q": False,
                 "packed_kv": False, "page_size": None, "mask": False, "causal": False}
        for args, more, least, most in (
                (["--window=20,3", "--alibi", "--sinks"],
                 {"window": [20, 3], "alibi": True, "sinks": True}, window, window),
                (["--bias", "--softcap=5", "--page=7", "--dtype=f16"],
                 {"bias": "f32", "softcap": 5, "page_size": 7, "dtype": "f16", "kv_dtype": "f16"},
                 full, full),
                (["--mask=qk", "--kv-lens", "--kv-dtype=int8"],
                 {"mask": True, "kv_lens": True, "kv_dtype": "int8"}, full / 2, 0.9 * full),
                (["--packed", "--dtype=bf16", "--bias=hk"],
                 {"packed_q": True, "packed_kv": True, "bias": "f32", "dtype": "bf16",
                  "kv_dtype": "bf16"}, full / 2, 0.95 * full),
                (["--packed", "--page=16", "--causal"],
                 {"packed_q": True, "kv_lens": True, "page_size": 16, "causal": True}, full / 4,
                 0.8 * full)):
            row = self.lines(shape, *args, "--algo=reference", *CPU)[0]
            self.assertEqual({key: row[key] for key in named}, {**named, **more})
            self.assertTrue(0.999 * least <= self.work(row) <= 1.001 * most, (args, row))
            # The reference computes what it is compared with, but for the rounding of O.
            self.assertLess(row["max_error"], 1e-5 if row["dtype"] == "f32" else 2e-2)
            self.assertGreater(row["bytes"], 0)
        text = self.run_ok(shape, "--window=1,1", "--dtype=f16", "--algo=reference", *CPU,
                           "--runs=1", program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^SHAPE +CAUSAL +TYPES +FEATURES +ALGORITHM ")
        self.assertRegex(text, r"(?m)^3,2,1,37,70,24,16 +no +f16 +window 1,1 +reference ")
        text = self.run_ok(shape, "--window=1,1", "--csv", "--algo=reference", *CPU, "--runs=1",
                           program=PROGRAMS.bench)
        row = next(csv.DictReader(io.StringIO(text)))
        self.assertEqual((row["kv_dtype"], row["features"], row["algo"], row["status"]),
                         ("f32", "window 1,1", "reference", "ok"))

    def test_wrong_features_get_no_time(self):
        """Rows of every kind are compared, not only those of plain problems."""
        last = 2 * 50 * 8 - 1
        for args in (["--page=16"], ["--packed"]):
            for fault in ("add:0", f"nan:{last}"):
                self.run_bad("--shape=1,2,1,50,60,8", *args, *CPU, "--algo=host", "--json",
                             "--runs=1", program=PROGRAMS.bench_faulty, code=1,
                             says=["wrong result, not timed"], env={"TOOL_TEST_FAULT": fault})

    def test_ratio(self):
        args = ["--shape=1,2,2,64,64,16", "--algo=reference", *CPU]
        rows = self.lines(*args, "--ratio=plain,causal+f16", "--ratio", "window=3:0+softcap=9")
        self.assertEqual([(r["variant"], r["dtype"], r["causal"], r["window"], r["softcap"])
                          for r in rows],
                         [("plain", "f32", False, None, None),
                          ("causal+f16", "f16", True, None, None),
                          ("window=3:0+softcap=9", "f32", False, [3, 0], 9)])
        part = [1, 65 / 128, (4 * 64 - 6) / 4096]
        for row, work in zip(rows, part):
            self.assertGreater(row["pairs"], 0)
            self.assertGreater(row["cpu_speed"], 0)
            self.assertTrue(row["q1_speed"] <= row["speed"] <= row["q3_speed"], row)
            self.assertAlmostEqual(row["work_speed"], row["speed"] * work, places=4)
        # A causal problem has half the work; by far not that of the window.
        self.assertLess(rows[2]["ms"], rows[2]["plain_ms"])
        self.assertGreater(rows[2]["speed"], 1)
        text = self.run_ok(*args, "--ratio=plain,alibi", "--runs=1", program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^DEVICE +SHAPE +ALGORITHM +VARIANT +PLAIN MS +MS +SPEED ")
        self.assertRegex(text, r"(?m)^\[(\d+|cpu)\] +1,2,2,64,64,16 +reference, - +alibi ")

    def test_ratio_errors(self):
        bad = lambda *args, says: self.run_bad(*args, program=PROGRAMS.bench, says=[says])
        for words in ("", ",", "x", "causal,", "causal+", "+causal", "causal=1", "window",
                      "window=1", "window=1,2", "page=0", "page=257", "page", "softcap=0",
                      "softcap=x", "mask=x", "mask=", "bias=bhqkx", "f32", "f16+x", "f" * 70,
                      ",".join(["plain"] * 33)):
            bad(f"--ratio={words}", says="--ratio")
        bad("--ratio=f16", "--csv", says="--csv does not go with --ratio")
        bad("--ratio=f16", "--algo=softmax_safe", says="--algo softmax_safe")
        for option in ("--window=1", "--window=1:2", "--softcap=0", "--mask=x", "--bias=z",
                       "--page=0", "--page=300", "--dtype=int8", "--kv-dtype=x"):
            bad(option, says=option.split("=")[0])

    def test_sweeps(self):
        shapes = lambda *args: [r["shape"] for r in self.lines(*args, *CPU)]
        self.assertEqual(shapes("--shape=1,2,1,9,9,8", "--sweep=len=8:35"),
                         [[1, 2, 1, n, n, 8, 8] for n in (8, 16, 32)])
        self.assertEqual(shapes("--shape=1,1,1,9,7,8", "--sweep", "len_kv=5,100"),
                         [[1, 1, 1, 9, n, 8, 8] for n in (5, 100)])
        self.assertEqual(shapes("--shape=3,1,1,9,7,8", "--sweep", "dim=4:4", "--sweep=batch=1:2"),
                         [[n, 1, 1, 9, 7, 4, 4] for n in (1, 2)])
        rows = self.lines("--case=mask-bcast-04-d20", "--sweep=len_q=3,40", *CPU)
        self.assertEqual([(r["case"], r["shape"][3]) for r in rows],
                         [("mask-bcast-04-d20", 3), ("mask-bcast-04-d20", 40)])

    def test_csv(self):
        text = self.run_ok("--shape=1,2,1,9,7,8", "--case=causal-br-7x100-d20", "--csv", "--runs=1",
                           *CPU, program=PROGRAMS.bench)
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(len(rows), 2)
        self.assertEqual(text.count("\n"), 3)
        for row in rows:
            self.assertNotIn(None, row)
            self.assertNotIn(None, row.values())
            self.assertIn("CPU", row["device"])
            self.assertEqual((row["algo"], row["dtype"]), ("host", "f32"))
            share = 100 * float(row["gflops"]) / float(row["peak_gflops"])
            self.assertAlmostEqual(float(row["percent_of_peak"]), share, delta=0.01)
            for key in ("ms", "q1_ms", "q3_ms", "min_ms", "max_ms", "cpu_ms", "runs", "bytes",
                        "gbytes_per_s", "percent_of_peak_paired"):
                self.assertGreater(float(row[key]), 0)
        self.assertEqual([rows[0][k] for k in ("case", "batch", "heads_q", "heads_kv", "len_q",
                                               "len_kv", "dim_qk", "dim_v", "causal", "mask")],
                         ["", "1", "2", "1", "9", "7", "8", "8", "0", "0"])
        self.assertEqual((rows[1]["case"], rows[1]["causal"]), ("causal-br-7x100-d20", "1"))

    def test_side_by_side(self):
        """Two devices, which may be one and the same."""
        args = ["--shape=1,1,1,20,20,8", "--shape=1,1,1,30,20,8", *CPU, "--device=0"]
        rows = self.lines(*args)
        self.assertEqual([r["shape"][3] for r in rows], [20, 20, 30, 30])
        text = self.run_ok(*args, "--runs=1", program=PROGRAMS.bench)
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("device ")]), 2)
        self.assertRegex(text, r"(?m)^DEVICE SHAPE ")
        for name in ("[0]", "[cpu]"):
            self.assertEqual(len([line for line in text.splitlines() if name + " 1,1,1," in line]),
                             2)

    def test_terminal(self):
        args = ["--shape=1,1,1,20,20,8", *CPU, "--device=0", "--runs=1"]
        said = self.on_terminal(PROGRAMS.bench, *args, env={"NO_COLOR": None})
        self.assertIn("[1/2] 1,1,1,20,20,8", said)
        self.assertIn("[2/2] 1,1,1,20,20,8", said)
        self.assertIn("\x1b[", said)
        for env in ({"NO_COLOR": "1"}, {"NO_COLOR": None, "TERM": "dumb"}):
            self.assertNotIn("\x1b", self.on_terminal(PROGRAMS.bench, *args, env=env))
        self.assertNotIn("\x1b", self.run_ok(*args, program=PROGRAMS.bench,
                                             env={"TERM": "xterm"}))

    def test_devices_side_by_side(self):
        self.drivers = True
        for d in DEVICES:
            rows = self.lines("--shape=1,2,1,70,90,24", "--device", d, *CPU)
            self.assertEqual([r["algo"] for r in rows], ["fused", "host"])
            self.assertEqual([r["bytes"] for r in rows], [moved(r) for r in rows])

    def test_devices(self):
        self.drivers = True
        for d in DEVICES:
            for algo in (["--kernel", "group"], []):
                rows = self.lines("--shape=1,2,1,70,90,24", "--causal", *algo, "--device", d)
                self.assertEqual(rows[0]["algo"], "fused")
                self.assertGreater(rows[0]["peak_gflops"], 0)
                self.assertLess(rows[0]["max_error"], 1e-5)

    def check_family(self, rows, shape, softmax_shape, served):
        """All algorithms in their order, each with a result or a reason."""
        self.assertEqual([r["algo"] for r in rows], FAMILY)
        for row in rows:
            softmax = row["algo"].startswith("softmax_")
            self.assertEqual(row["operation"], "softmax" if softmax else "attention")
            self.assertEqual(row["shape"], softmax_shape if softmax else shape)
            if row["status"] == "refused":
                self.assertNotIn(row["algo"], served)
                self.assertTrue(row["reason"])
                self.assertNotIn("ms", row)
                continue
            self.assertEqual(row["status"], "ok")
            self.assertGreater(row["ms"], 0)
            self.assertGreater(row["bytes"], 0)
            self.assertGreaterEqual(row["workspace_bytes"], 0)
            self.assertLess(row["max_error"], 1e-5)
            if softmax:
                self.assertEqual(row["bytes"], 4 * softmax_shape[0] * softmax_shape[1] *
                                 PASSES[row["algo"]])
                self.assertIsNone(row["gflops"])
            else:
                self.assertGreater(row["gflops"], 0)
            if row["algo"] in ("fused", "host"):
                self.assertEqual(row["bytes"], moved(row))
        self.assertLessEqual(set(served), {r["algo"] for r in rows if r["status"] == "ok"})

    def test_all_on_cpu(self):
        rows = self.lines("--shape=2,2,1,7,40,8", "--algo=all", *CPU)
        self.check_family(rows, [2, 2, 1, 7, 40, 8, 8], [28, 40], [*PASSES, "host"])
        self.assertEqual([r["status"] for r in rows[3:8]], ["refused"] * 5)
        text = self.run_ok("--shape=2,2,1,7,40,8", "--algo=all", "--softmax-rows=3,500",
                           "--runs=1", *CPU, program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^3x500 +- +softmax_online +host +- ")
        self.assertRegex(text, r"(?m)^2,2,1,7,40,8 +no +host ")
        refused = [line for line in text.splitlines() if line.startswith("refused ")]
        self.assertEqual(len(refused), 5)
        self.assertRegex(refused[3], r"^refused 2,2,1,7,40,8 fused: .*the built-in CPU path")

    def test_list_of_algorithms(self):
        args = ["--shape=1,2,1,9,30,8", "--algo=fused,softmax_safe,host", *CPU]
        self.assertEqual([(r["algo"], r["status"]) for r in self.lines(*args)],
                         [("fused", "refused"), ("softmax_safe", "ok"), ("host", "ok")])
        text = self.run_ok(*args, "--csv", "--runs=1", "--softmax-rows=5,70",
                           program=PROGRAMS.bench)
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([(r["algo"], r["status"]) for r in rows],
                         [("fused", "refused"), ("softmax_safe", "ok"), ("host", "ok")])
        for row in rows:
            self.assertNotIn(None, row)
            self.assertNotIn(None, row.values())
        self.assertIn("the built-in CPU path", rows[0]["reason"])
        self.assertEqual((rows[0]["len_q"], rows[0]["ms"]), ("9", ""))
        self.assertEqual((rows[1]["len_q"], rows[1]["len_kv"], rows[1]["bytes"]),
                         ("5", "70", str(4 * 5 * 70 * 4)))
        self.assertGreater(float(rows[2]["ms"]), 0)
        done = self.run_program(PROGRAMS.bench, "--shape=1,1,1,4,4,8", "--algo=fused,two_loop",
                                *CPU)
        self.assertEqual(done.returncode, 2)
        self.assertIn("every algorithm was refused", done.said)
        self.assertRegex(done.stdout, r"(?m)^refused 1,1,1,4,4,8 two_loop: .")

    def test_all_on_devices(self):
        self.drivers = True
        for d in DEVICES[:1]:
            rows = self.lines("--shape=1,2,1,30,70,16", "--algo=all", "--device", d)
            self.check_family(rows, [1, 2, 1, 30, 70, 16, 16], [60, 70],
                              [*PASSES, "fused", "host"])

    def test_plot(self):
        """A line for each algorithm in both panels, and a file that is whole or not there."""
        if not shutil.which("gnuplot"):
            self.fail("gnuplot is not installed (tools/setup.sh test)")
        path = os.path.join(self.dir, "plot.svg")
        args = ["--shape=1,1,1,8,8,8", "--sweep=len=16,32", "--runs=1", *CPU]
        algos = ["--algo=host,fused,softmax_online"]
        self.run_ok(*args, *algos, "--plot", path, program=PROGRAMS.bench)
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual([titles.count(name) for name in ("host", "softmax_online", "fused")],
                         [2, 2, 0])
        self.assertIn("attention 1,1,1,N,N,8", "".join(root.itertext()))
        self.run_ok("--shape=1,1,1,9,8,8", "--sweep=len_kv=16,32", "--runs=1", *CPU, "--plot", path,
                    program=PROGRAMS.bench)
        drawn = "".join(xml.etree.ElementTree.parse(path).getroot().itertext())
        self.assertIn("attention 1,1,1,9,N,8", drawn)
        self.assertIn("len_kv: number of keys, N", drawn)
        self.assertEqual([name for name in os.listdir(self.dir) if "plot" in name or
                          name.startswith(".clattn")], ["plot.svg"])
        path = os.path.join(self.dir, "plot.png")
        self.run_ok(*args, "--json", "--plot", path, program=PROGRAMS.bench)
        with open(path, "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        for more, says in ((["--plot=x.pdf"], ".svg"), (["--plot=no/such/x.svg"], "no/such/x.svg"),
                           (["--plot=x.svg", "--shape=1,1,1,4,4,4"], "2 shapes"),
                           (["--plot=x.svg", "--sweep=dim=4,8"], "no other sweep")):
            self.run_bad(*args, *more, program=PROGRAMS.bench, says=["--plot", says])
        for sweep in ([], ["--sweep=len=16"], ["--sweep=dim=4,8"]):
            self.run_bad("--shape=1,1,1,8,8,8", *sweep, "--plot=x.svg", *CPU,
                         program=PROGRAMS.bench, says=["needs --sweep"])
        self.run_bad(*args, "--plot=x.svg", program=PROGRAMS.bench, env={"PATH": self.dir},
                     says=["gnuplot cannot be started", "gnuplot-nox"])

    def test_roofline(self):
        """Roofs with their figures, a point for each algorithm, axes with units, the device."""
        svg = "{http://www.w3.org/2000/svg}"
        path = os.path.join(self.dir, "r.svg")
        self.run_ok("--shape=1,1,1,32,32,8", "--causal", "--runs=1", "--algo=host,softmax_online",
                    *CPU, "--roofline", path, program=PROGRAMS.bench)
        root = xml.etree.ElementTree.parse(path).getroot()
        texts = ["".join(t.itertext()) for t in root.iter(f"{svg}text")]
        for text in ("attention 1,1,1,32,32,8, f32, causal", "[cpu] clattn: built-in CPU path",
                     "arithmetic intensity, FLOP for each byte moved", "speed, GFLOP/s"):
            self.assertTrue([t for t in texts if text in t], (text, texts))
        roof, = [t for t in texts if "roof of built-in" in t]
        self.assertRegex(roof, r"[1-9][\d.e+]* GFLOP/s, [1-9][\d.e+]* GB/s")
        self.assertTrue([t for t in texts if re.search(r"host, \S+ GFLOP/s, \S+ % of", t)], texts)
        path = os.path.join(self.dir, "r.png")
        self.run_ok("--shape=1,1,1,8,8,8", "--sweep=len=16,32", "--runs=1", "--json",
                    "--roofline", path, *CPU, program=PROGRAMS.bench)
        with open(path, "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
        for args, says in ((["--roofline=x.pdf"], ".svg"),
                           (["--roofline=x.svg", "--ratio=causal"], "--ratio")):
            self.run_bad(*args, *CPU, program=PROGRAMS.bench, says=["--roofline", says])
        done = self.run_program(PROGRAMS.bench, "--shape=1,1,1,8,8,8", "--runs=1", *CPU,
                                "--algo=softmax_safe", "--roofline=x.svg")
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing was timed that has GFLOP/s", done.said)

    def test_failed_plot(self):
        """gnuplot that fails leaves nothing, and what was there stays."""
        script = os.path.join(self.dir, "gnuplot")
        with open(script, "w") as file:
            file.write('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho half\nexit 5\n')
        os.chmod(script, 0o755)
        path = os.path.join(self.dir, "plot.svg")
        with open(path, "w") as file:
            file.write("old")
        done = self.run_program(PROGRAMS.bench, "--shape=1,1,1,8,8,8", "--sweep=len=16,32",
                                "--runs=1", *CPU, "--plot", path,
                                env={"PATH": self.dir + ":" + os.environ["PATH"]})
        self.assertEqual(done.returncode, 3)
        self.assertIn("gnuplot failed (exit status 5)", done.said)
        with open(path) as file:
            self.assertEqual(file.read(), "old")
        self.assertFalse([name for name in os.listdir(self.dir) if name.startswith(".clattn")])

    def test_wrong_softmax_gets_no_time(self):
        args = ["--shape=1,1,1,8,8,8", "--algo=softmax_online", "--softmax-rows=50,60", *CPU,
                "--json", "--runs=1"]
        self.run_ok(*args, program=PROGRAMS.bench_faulty)
        for fault in ("add:0", "add:2999", "nan:0", "nan:2999", "nan:1234"):
            said = self.run_bad(*args, program=PROGRAMS.bench_faulty, code=1,
                                says=["wrong result, not timed"], env={"TOOL_TEST_FAULT": fault})
            self.assertIn("50x60", said)

    def test_wrong_results_get_no_time(self):
        """Faults in rows that are looked at, and NaN anywhere."""
        args = ["--shape=1,4,2,500,60,8", *CPU, "--json", "--runs=1"]
        last = 4 * 500 * 8 - 1
        self.run_ok(*args, program=PROGRAMS.bench_faulty)
        for fault in ("add:0", "add:7", f"add:{last}", f"add:{500 * 8}", "nan:0", f"nan:{last}",
                      "nan:1234", "nan:12345"):
            said = self.run_bad(*args, program=PROGRAMS.bench_faulty, code=1,
                                says=["wrong result, not timed"], env={"TOOL_TEST_FAULT": fault})
            self.assertIn("1,4,2,500,60,8", said)
        for causal in ([], ["--causal"]):
            self.run_bad(*args, *causal, program=PROGRAMS.bench_faulty, code=1,
                         env={"TOOL_TEST_FAULT": f"add:{last}"})
        self.run_bad(*args, program=PROGRAMS.bench_faulty, code=3,
                     env={"TOOL_TEST_FAULT": "status:13"})

    def test_errors(self):
        bad = lambda *args, says: self.run_bad(*args, program=PROGRAMS.bench, says=[says])
        for shape in ("", "1", "1,1,1,1,1", "1,1,1,1,1,", "1,1,1,1,1,1,1,1", "1,1,1,1,1,x",
                      "1,1,1,1,1,0", "0,1,1,1,1,1", "1,-1,1,1,1,1", "1,1,1,1,1,1,", "1 ,1,1,1,1,1",
                      "1,1,1,1,1,1;", "1,1,1,1,99999999999999,1", "1,,1,1,1,1", ",1,1,1,1,1,1"):
            bad(f"--shape={shape}", says="--shape")
        bad("--shape=1,3,2,4,4,8", *CPU, says="1,3,2,4,4,8: ")
        bad("--shape=1,2,2,4,4,577", *CPU, says="577")
        for option in ("--runs=0", "--threads=0", "--kernel=auto", "--algo=x", "--runs=x"):
            bad(option, says=option.split("=")[0])
        bad("--algo=host", "--kernel=group", says="--kernel")
        bad("--algo=fused,host", "--kernel=group", says="--kernel")
        for algos in ("fused,", ",fused", "fused,,host", "all,host", "softmax", ""):
            bad(f"--algo={algos}", says="--algo")
        bad("--algo=host,fused,host", says="host is there twice")
        for rows in ("5", "5,", "0,5", "5,6,7", "x,5", ",5"):
            bad("--algo=softmax_safe", f"--softmax-rows={rows}", says="--softmax-rows")
        bad("--softmax-rows=5,6", says="--algo names no softmax")
        bad("--device=no such device", says="no such device")
        bad("--shape=1,1,1,4,4,8", "--algo=fused", *CPU, says="1,1,1,4,4,8")
        bad("x", says="unexpected argument x")
        for sweep in ("x", "len", "len=", "len=x", "len=1:", "len=:4", "len=8:4", "len=0:4",
                      "len=1,", "len=,1", "len=1,,2", "len=-1", "width=1:4", "=1:4", "len=1:2:4",
                      "len=1:99999999999"):
            bad(f"--sweep={sweep}", says="--sweep")
        bad("--sweep=len=1:2", "--sweep=len=4,5", says="len is swept twice")
        bad("--sweep=len=" + ",".join("1" * 600), "--sweep=dim=1,2", says="more than 1024 problems")
        bad("--case=no-such-case", says="no case is called 'no-such-case'")
        bad("--case=layout-3-d20", says="layout-3-d20 has strided memory")
        bad("--json", "--csv", says="--csv does not go with --json")
        bad("--device=cpu", "--device=no such device", says="no such device")
        bad(*["--device=cpu"] * 17, says="more than 16 devices")


if __name__ == "__main__":
    main(sys.modules[__name__], [Bench])
