#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-bench."""
import json
import sys

from tool_case import CPU, DEVICES, PROGRAMS, Folder, main


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
                self.assertIn("CPU", row["device"])
                self.assertEqual((row["algo"], row["dtype"]), ("host", "f32"))
                self.assertIs(row["causal"], bool(args))
                self.assertTrue(row["kernel"])
                self.assertGreater(row["tile_q"] * row["tile_k"], 0)
                self.assertGreaterEqual(row["ms"], row["min_ms"])
                self.assertGreater(row["min_ms"], 0)
                self.assertGreater(row["cpu_ms"], 0)
                self.assertGreater(row["peak_gflops"], 0.1)
                self.assertLess(row["max_error"], 1e-5)
                work = 4e-9 * row["shape"][0] * row["shape"][1] * pair * row["shape"][5]
                self.assertAlmostEqual(row["gflops"] / (work / row["ms"] * 1e3), 1, places=4)
                self.assertAlmostEqual(row["percent_of_peak"],
                                       100 * row["gflops"] / row["peak_gflops"], places=3)

    def test_table(self):
        text = self.run_ok("--shape=1,1,1,33,44,16", "--algo", "reference", "--runs", "3", *CPU,
                           program=PROGRAMS.bench)
        self.assertRegex(text, r"(?m)^device +\[\d+\] ")
        self.assertRegex(text, r"(?m)^SHAPE.*GFLOP/S +PEAK +% OF PEAK +MAX ERROR$")
        self.assertRegex(text, r"(?m)^1,1,1,33,44,16 +no +reference ")

    def test_devices(self):
        self.drivers = True
        for d in DEVICES:
            for algo in (["--kernel", "group"], []):
                rows = self.lines("--shape=1,2,1,70,90,24", "--causal", *algo, "--device", d)
                self.assertEqual(rows[0]["algo"], "fused")
                self.assertGreater(rows[0]["peak_gflops"], 0)
                self.assertLess(rows[0]["max_error"], 1e-5)

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
        bad("--device=no such device", says="no such device")
        bad("--shape=1,1,1,4,4,8", "--algo=fused", *CPU, says="1,1,1,4,4,8")
        bad("x", says="unexpected argument x")


if __name__ == "__main__":
    main(sys.modules[__name__], [Bench])
