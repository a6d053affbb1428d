#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-tune."""
import json
import os
import re
import signal
import subprocess
import sys

from tool_case import CPU, DEVICES, PROGRAMS, Folder, main, usual_signals

# Two or three tiles where lanes are channels, so that a whole run takes seconds.
FEW = "1,2,1,1,16,4"
MANY = "1,2,1,40,300,16"


class Tune(Folder):
    def test_texts(self):
        text = self.run_ok("--help", program=PROGRAMS.tune)
        self.assertLess(max(map(len, text.splitlines())), 100)
        for word in ("--shape", "--budget", "--output", "--again", "--dry-run", "Exit status"):
            self.assertIn(word, text)
        self.assertRegex(self.run_ok("--version", program=PROGRAMS.tune), r"\Aclattn-tune \d")

    def test_wrong_use(self):
        for args, says in ((["--shape", "1,2"], "--shape"), (["--algo", "host"], "'host'"),
                           (["--algo", "fused,fused"], "twice"),
                           (["--algo", "auto,fused"], "auto stands alone"),
                           (["--budget", "0"], "--budget"), (["--budget", "1x"], "--budget"),
                           (["--runs", "0"], "--runs"), (["--dtype", "int8"], "--dtype"),
                           (["--kernel", "auto"], "--kernel"), (["--page", "300"], "--page"),
                           (["--output", "x" * 1100, *CPU], "CPU path"), (["more"], "more"),
                           (CPU, "built-in CPU path has no tiles")):
            self.run_bad(*args, program=PROGRAMS.tune, says=[says])


class TuneDevices(Folder):
    drivers = True

    def setUp(self):
        super().setUp()
        self.file = self.path("tiles.txt")

    def lines(self, device, *args):
        text = self.run_ok("--json", "--runs=1", "--device", device, "-o", self.file, *args,
                           program=PROGRAMS.tune)
        return [json.loads(line) for line in text.splitlines()]

    def vector_devices(self):
        for device in DEVICES:
            row, = self.lines(device, "--shape", FEW, "--algo=split_kv", "--dry-run")
            if row["candidates"][0]["kernel"] == "vector":
                yield device

    def test_dry_run(self):
        for device in DEVICES:
            one, two = self.lines(device, "--shape", MANY, "--shape", FEW, "--causal",
                                  "--algo=fused", "--dry-run")
            self.assertEqual(one["shape"], [1, 2, 1, 40, 300, 16, 16])
            self.assertEqual(list(one["device"]), ["index", "type", "platform", "name"])
            self.assertIn(device, (one["device"]["platform"] + one["device"]["name"]).lower())
            self.assertIs(one["causal"], True)
            self.assertEqual((one["algo"], two["algo"]), ("fused", "fused"))
            self.assertGreater(len(one["candidates"]), 2)
            self.assertEqual({c["status"] for c in one["candidates"]}, {"candidate"})
            self.assertEqual([c["planner"] for c in one["candidates"]].index(True), 0)
            self.assertEqual(sum(c["planner"] for c in one["candidates"]), 1)
            self.assertIsNone(one["ratio"])
            self.assertFalse(os.path.exists(self.file))
            text = self.run_ok("--shape", MANY, "--algo=fused", "--dry-run", "--device", device,
                               program=PROGRAMS.tune)
            self.assertIn("the planner's choice", text)

    def test_dry_run_of_many(self):
        """A line a shape and the sum; the tiles are those of one alone."""
        for device in DEVICES:
            text = self.run_ok("--shape", MANY, "--shape", FEW, "--algo=fused", "--dry-run",
                               "--device", device, program=PROGRAMS.tune)
            counts = [int(n) for n in re.findall(r": (\d+) tiles?$", text, re.M)]
            self.assertEqual(len(counts), 2, text)
            self.assertIn(f"\n{sum(counts)} tiles, each to be compiled", text)
            self.assertNotIn("NOTE", text)  # no table

    def test_whole_run(self):
        """Measured, written, found again, and left out by the next run."""
        for device in self.vector_devices():
            row, = self.lines(device, "--shape", FEW)
            self.assertEqual((row["algo"], row["resumed"], row["stopped"]),
                             ("split_kv", False, False))
            done = [c for c in row["candidates"] if c["status"] == "measured"]
            self.assertEqual(len(done), len(row["candidates"]))
            for c in done:
                self.assertLess(c["max_error"], 1e-5)
                self.assertGreater(c["ms"], 0)
                self.assertGreater(c["planner_ms"], 0)
                self.assertGreater(c["ratio"], 0)
            if row["tile"]:
                self.assertGreater(row["ratio"], 1.03)
            with open(self.file, encoding="utf-8") as file:
                text = file.read()
            self.assertRegex(text, r"\Aclattn-tune 1\n")
            rows = [line for line in text.splitlines() if line.startswith("split_kv ")]
            self.assertEqual(len(rows), 1)
            self.assertIn("dims 4/4 types f32/f32/f32 mask none pages no rows 2-2 keys 1-255 ",
                          rows[0])
            again, = self.lines(device, "--shape", FEW)
            self.assertIs(again["resumed"], True)
            self.assertEqual(again["tile"], row["tile"])
            self.assertAlmostEqual(again["ratio"], row["ratio"], delta=2e-3)
            with open(self.file, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)
            anew, = self.lines(device, "--shape", FEW, "--again")
            self.assertIs(anew["resumed"], False)
            os.remove(self.file)

    def test_budget(self):
        """The time is over after the first tile: nothing is written of what is not finished."""
        for device in DEVICES[:1]:
            rows = self.lines(device, "--shape", MANY, "--shape", FEW, "--budget=0.001")
            self.assertEqual([row["stopped"] for row in rows], [True])
            states = [c["status"] for c in rows[0]["candidates"]]
            self.assertEqual((states[0], set(states[1:])), ("measured", {"candidate"}))
            done = self.run_program(PROGRAMS.tune, "--device", device, "--shape", MANY, "-o",
                                    self.file, "--budget=0.001")
            self.assertEqual(done.returncode, 0)
            self.assertIn("the time is over: 0 of 1 done", done.stdout)
            rows = [line for line in done.stdout.splitlines() if " items, " in line
                    or " rows, blocks " in line]
            self.assertEqual(len(rows), 1)  # what was not measured is none
            self.assertIn("the planner's choice", rows[0])
            self.assertFalse(os.path.exists(self.file))

    def test_stop_and_resume(self):
        for device in list(self.vector_devices())[:1]:
            args = ["--json", "--runs=1", "--device", device, "-o", self.file, "--shape", FEW,
                    "--shape", MANY]
            with subprocess.Popen([PROGRAMS.tune, *args], cwd=self.dir, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  preexec_fn=usual_signals) as child:
                first = json.loads(child.stdout.readline())
                child.send_signal(signal.SIGINT)
                rest = child.stdout.read()
                self.assertEqual(child.wait(), -signal.SIGINT)
            self.assertIs(first["stopped"], False)
            for line in rest.splitlines():
                self.assertIs(json.loads(line)["stopped"], True)
            row, = self.lines(device, "--shape", FEW)
            self.assertIs(row["resumed"], True)
            with open(self.file, encoding="utf-8") as file:
                self.assertNotIn("dims 16/16", file.read())

    def test_kernel(self):
        """Candidates of one shape stand behind the free choice, and only a winner is written."""
        for device in list(self.vector_devices())[:1]:
            row, = self.lines(device, "--shape", FEW, "--kernel=group", "--dry-run")
            kernels = [c["kernel"] for c in row["candidates"]]
            self.assertEqual((kernels[0], set(kernels[1:])), ("vector", {"group"}))
            row, = self.lines(device, "--shape", FEW, "--kernel=vector")
            self.assertEqual("file" in row, row["tile"] is not None)
            self.assertEqual(os.path.exists(self.file), row["tile"] is not None)

    def test_no_place_for_the_file(self):
        """Said before anything is measured, once, and no other shape is tried."""
        plain = self.path("plain")
        with open(plain, "w", encoding="utf-8"):
            pass
        for device in DEVICES[:1]:
            self.run_bad("--json", "--device", device, "--shape", MANY, "--shape", FEW, "-o",
                         plain + "/tiles.txt", program=PROGRAMS.tune,
                         says=["name another file with --output"])

    def test_broken_file(self):
        for device in DEVICES[:1]:
            for text, says in (("clattn-tune 1\nnonsense\n", "line 2"), ("\n", "line 1")):
                with open(self.file, "w", encoding="utf-8") as file:
                    file.write(text)
                for again in ((), ("--again",)):
                    self.run_bad("--json", "--device", device, "--shape", FEW, "-o", self.file,
                                 *again, program=PROGRAMS.tune, says=["tuning file", says])
            self.run_bad("--json", "--device", device, "--shape", FEW, "-o", self.dir + "/",
                         program=PROGRAMS.tune, says=["ends with a slash"])
            self.run_bad("--json", "--device", device, "-o", "x" * 1100, program=PROGRAMS.tune,
                         says=["--output", "1023"])

    def test_progress(self):
        """The tile in work and the time left, on a terminal only; it is gone in the end."""
        for device in list(self.vector_devices())[:1]:
            with open(self.path("out.txt"), "w", encoding="utf-8") as out:
                said = self.on_terminal(PROGRAMS.tune, "--device", device, "--shape", FEW,
                                        "--algo=split_kv", "--runs=1", "-o", self.file,
                                        stdout=out, env={"NO_COLOR": "1"})
            self.assertIn("\r[1/1] 1,2,1,1,16,4", said)
            self.assertRegex(said, r": tile 2 of \d+, about \d+ s left")
            self.assertRegex(said, r"\r +\r\Z")
            with open(self.path("out.txt"), encoding="utf-8") as out:
                self.assertNotIn("tile 2 of", out.read())


if __name__ == "__main__":
    main(sys.modules[__name__], [Tune], [TuneDevices])
