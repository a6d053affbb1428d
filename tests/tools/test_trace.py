#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-bench --trace: the file follows the format of trace viewers."""
import json
import sys

from tool_case import CPU, DEVICES, PROGRAMS, Folder, main

SHAPE = "--shape=1,2,2,40,48,16"
HOST = 1  # the process number of the host
RUNS = 3


class TraceCase(Folder):
    def trace(self, *args):
        """The events, checked for the rules of the format."""
        self.run_ok(SHAPE, "--runs=1", "--trace=t.json", *args, program=PROGRAMS.bench)
        with open(self.path("t.json"), encoding="utf-8") as file:
            whole = json.load(file)
        self.assertEqual(set(whole), {"traceEvents", "displayTimeUnit", "otherData"})
        events = whole["traceEvents"]
        names = {}
        for e in events:
            self.assertLessEqual({"ph", "name", "cat", "pid", "tid", "ts"}, set(e))
            self.assertIn(e["ph"], "XMsf")
            if e["ph"] == "M" and e["name"] == "process_name":
                names[e["pid"]] = e["args"]["name"]
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in spans}, set(names))
        for pid in names:
            self.assert_nested([e for e in spans if e["pid"] == pid])
        self.assert_arrows(events, spans)
        return whole, names, spans

    def assert_nested(self, spans):
        """Spans of one track follow each other or lie inside each other."""
        open_ends = []
        for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            self.assertGreater(e["dur"], 0, e)
            self.assertGreaterEqual(e["ts"], 0, e)
            while open_ends and open_ends[-1] <= e["ts"] + 0.0015:
                open_ends.pop()
            if open_ends:
                self.assertLessEqual(e["ts"] + e["dur"], open_ends[-1] + 0.0015, e)
            open_ends.append(e["ts"] + e["dur"])

    def assert_arrows(self, events, spans):
        """Each arrow leads from a span of the host to a later one of a queue."""
        ends = {}
        for e in events:
            if e["ph"] in "sf":
                ends.setdefault(e["id"], {})[e["ph"]] = e
        for pair in ends.values():
            self.assertEqual(set(pair), {"s", "f"})
            self.assertLessEqual(pair["s"]["ts"], pair["f"]["ts"])
            for e, host in ((pair["s"], True), (pair["f"], False)):
                around = [x for x in spans if x["pid"] == e["pid"] and
                          x["ts"] <= e["ts"] + 0.0015 and e["ts"] <= x["ts"] + x["dur"] + 0.0015]
                self.assertTrue(around, e)
                self.assertIs(e["pid"] == HOST, host)


class Trace(TraceCase):
    def test_cpu(self):
        """The CPU path has spans of the host alone."""
        whole, names, spans = self.trace("--json", *CPU)
        self.assertEqual(names, {HOST: "clattn-bench, the host"})
        self.assertNotIn("clock_doubt_us", whole["otherData"])
        calls = [e for e in spans if e["name"].startswith("clattn_attention_run: host ")]
        self.assertEqual(len(calls), RUNS)
        for name in ("open the devices", "plan and verify", "time", "1,2,2,40,48,16 auto"):
            self.assertEqual([e["name"] for e in spans].count(name), 1, name)

    def test_softmax(self):
        _, _, spans = self.trace("--algo=softmax_online,host", *CPU)
        self.assertTrue([e for e in spans if e["name"].endswith("softmax_online")])

    def test_errors(self):
        self.run_bad(SHAPE, "--trace=no/such/t.json", *CPU, program=PROGRAMS.bench,
                     says=["--trace", "no/such/t.json"])
        self.run_bad(SHAPE, "--trace=t.json", "--ratio=causal", *CPU, program=PROGRAMS.bench,
                     says=["--trace does not go with --ratio"])
        done = self.run_program(PROGRAMS.bench_faulty, SHAPE, "--runs=1", "--trace=t.json", *CPU,
                                env={"TOOL_TEST_FAULT": "nan:0"})
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("t.json", self.tree())  # a run that failed leaves none


class TraceDevices(TraceCase):
    drivers = True

    def test_queue(self):
        """Copies and kernels in their order on the queue's track, three times."""
        for device in DEVICES:
            # The clocks agree to less than a call takes, whatever the machine does beside it.
            whole, names, spans = self.trace("--device", device, "--algo=fused,host")
            self.assertLess(whole["otherData"]["clock_doubt_us"], 1e5)
            self.assertEqual(len(names), 2)
            self.assertIn(device, names[2].lower())
            queue = [e for e in spans if e["pid"] == 2]
            self.assertEqual(queue, sorted(queue, key=lambda e: e["ts"]))
            for n, kernel in enumerate(["fused "] * RUNS + ["host "] * RUNS):
                run = queue[5 * n:5 * n + 5]
                self.assertEqual([e["name"] for e in run[:3] + run[4:]],
                                 ["write Q", "write K", "write V", "read O"])
                self.assertTrue(run[3]["name"].startswith(kernel), run[3])
                self.assertEqual([e["cat"] for e in run], ["copy"] * 3 + ["kernel", "copy"])
                self.assertEqual(run[0]["args"]["bytes"], 4 * 2 * 40 * 16)
                for e in run:
                    self.assertLessEqual(e["args"]["queued_us"], e["ts"] + 0.0015)
            calls = [e["name"] for e in spans if e["pid"] == HOST]
            self.assertEqual(calls.count("clFinish"), 2 * RUNS)
            self.assertEqual(sum(name.startswith("clattn_attention_enqueue: fused")
                                 for name in calls), RUNS)


if __name__ == "__main__":
    main(sys.modules[__name__], [Trace], [TraceDevices])
