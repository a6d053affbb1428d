#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what all tools have in common: help, versions, names of options, JSON, colours."""
import json
import re
import shlex
import sys

from tool_case import CPU, INPUTS, PROGRAMS, Folder, main

NAMES = ("probe", "run", "bench", "tune")
COMMON = {"--device", "--json", "--help", "--help-all", "--version", "-h"}
SMALL = ["--shape", "1,2,2,16,16,8"]


def options_of(text):
    """Options in the left column of a help text."""
    found = set()
    for line in text.splitlines():
        if line.startswith("  -"):
            left = re.split(r"\s{2,}", line.strip())[0]
            found |= {re.match(r"-{1,2}[a-z][a-z-]*", part).group()
                      for part in re.split(r"[,\s]+(?=-)", left)}
    return found


class Options(Folder):
    def help_of(self, name, option="--help"):
        return self.run_ok(option, program=getattr(PROGRAMS, name))

    def test_help(self):
        """A screen with an example and the exit statuses; -h is the same."""
        for name in NAMES:
            text = self.help_of(name)
            lines = text.splitlines()
            self.assertLessEqual(len(lines), 40, name)
            self.assertLessEqual(max(map(len, lines)), 80, name)
            self.assertTrue(lines[0].startswith(f"Usage: clattn-{name} "))
            self.assertTrue(lines[2].startswith(f"Example: clattn-{name} "))
            self.assertRegex(text, r"\nExit status: 0 [^;]+; 1 [^;]+; 2 wrong use")
            self.assertEqual(text, self.help_of(name, "-h"))
            more = self.help_of(name, "--help-all")
            self.assertLessEqual(max(map(len, more.splitlines())), 80, name)
            self.assertGreater(len(more), 1.5 * len(text))
            self.assertRegex(self.help_of(name, "--version"),
                             rf"\Aclattn-{name} \d+\.\d+\.\d+ \(library \d+\.\d+\.\d+\)\n\Z")

    def test_same_options(self):
        """Both texts name the same options, each is accepted, and the common ones are there."""
        for name in NAMES:
            options = options_of(self.help_of(name))
            self.assertEqual(options, options_of(self.help_of(name, "--help-all")), name)
            self.assertLessEqual(COMMON, options, name)
            for option in options:
                done = self.run_program(getattr(PROGRAMS, name), option, "--no-such-option")
                self.assertEqual(done.returncode, 2)
                self.assertNotIn(f"unknown option {option} ", done.said)

    def test_examples(self):
        """The command of --help is one that is understood: what is wrong is only that files or
        devices are not there."""
        for name in NAMES:
            line = self.help_of(name).splitlines()[2]
            args = shlex.split(line.removeprefix("Example: "))[1:]
            if name in ("probe", "bench"):  # the device and the sizes of the example take too long
                args = [*CPU, "--version"] + [a for a in args if a not in ("--device", "0")]
                self.run_ok(*args, program=getattr(PROGRAMS, name))
            elif name == "run":
                self.run_ok(*args, *CPU)
            else:
                self.run_bad(*args, *CPU, program=PROGRAMS.tune, says=["built-in CPU path"])

    def test_errors_help(self):
        """A message names the option and its value, and what would be right."""
        for name in ("run", "bench", "tune"):
            self.run_bad("--algo", "fussed", program=getattr(PROGRAMS, name),
                         says=["--algo", "'fussed'", "auto", "split_kv"])
            self.run_bad("--kernel", "big", program=getattr(PROGRAMS, name),
                         says=["--kernel", "'big'", "group, vector, subgroup"])
        for name in ("probe", "bench", "tune"):
            self.run_bad("--shape", "1,2,3", program=getattr(PROGRAMS, name),
                         says=["--shape", "'1,2,3'", "B,H,HKV,LQ,LKV,D[,DV]", "1,8,8,2048,2048,64"])
        for name in ("run", "bench"):
            self.run_bad("--precision", "high", program=getattr(PROGRAMS, name),
                         says=["--precision", "'high'", "default, full"])
        self.run_bad("-q", "none.npy", "-k", "k.npy", "-v", "v.npy", "-o", "o.npy",
                     says=["-q none.npy", "No such file"])
        for name in NAMES:
            self.run_bad("--no-such", program=getattr(PROGRAMS, name),
                         says=["unknown option --no-such", "--help"])

    def test_json(self):
        """Nothing but JSON on stdout, also of lists."""
        run = json.loads(self.run_ok(*INPUTS, "-o", "o.npy", "--json", *CPU))
        self.assertEqual((run["algo"], run["runs"]), ("host", 1))
        probe = json.loads(self.run_ok("--json", "--dim=16", *CPU, program=PROGRAMS.probe))
        self.assertEqual(probe["unserved"], [])
        rows = [json.loads(line) for line in
                self.run_ok("--json", "--list", program=PROGRAMS.bench).splitlines()]
        self.assertGreater(len(rows), 50)
        table = self.run_ok("--list", program=PROGRAMS.bench).splitlines()
        self.assertEqual(len(rows), len(table) - 1)
        for row, line in zip(rows, table[1:]):
            case, shape, causal, mask = line.split()
            dims = [int(n) for n in shape.split(",")]
            self.assertEqual((row["case"], row["shape"]),
                             (case, dims if len(dims) == 7 else [*dims, dims[-1]]))
            self.assertEqual((row["causal"], row["mask"]), (causal == "yes", mask == "yes"))

    def test_help_beside_contradictions(self):
        """Who asks for help or the version gets it, whatever the other options say together."""
        for name, args in (("run", ["--tolerance=1"]), ("bench", ["--json", "--csv"]),
                           ("bench", ["--plot=x.svg"]), ("tune", ["--dry-run", "--again"])):
            for option in ("--help", "--help-all", "--version"):
                self.assertEqual(self.run_ok(*args, option, program=getattr(PROGRAMS, name)),
                                 self.help_of(name, option))

    def test_log_level(self):
        """A word that is no level is said once, also where the probe starts processes, and counts
        as warn."""
        for name in NAMES:
            args = CPU if name == "probe" else ["--version"]
            done = self.run_program(getattr(PROGRAMS, name), *args, env={"CLATTN_LOG": "loud"})
            self.assertEqual(done.returncode, 0, done.said)
            self.assertEqual(done.said, f'clattn-{name}: warning: CLATTN_LOG is "loud", neither '
                             "error, warn, info nor debug: taken as warn\n")

    def test_precision(self):
        """The option reaches the plan: bf16 products are only made where they are allowed."""
        for name, args in (("run", [*INPUTS, "-o", "o.npy"]), ("bench", [*SMALL, "--runs=1"])):
            for mode in ("default", "full"):
                text = self.run_ok(*args, "--dtype", "bf16", "--precision", mode, "--json", *CPU,
                                   program=getattr(PROGRAMS, name))
                self.assertEqual(json.loads(text)["precision"], mode)
                if mode == "full":
                    self.assertNotIn("bf16", json.loads(text)["kernel"])

    def test_colors(self):
        """None in a pipe, unless they are asked for; never against $NO_COLOR."""
        for env, expected in (({}, False), ({"CLICOLOR_FORCE": "1"}, True),
                              ({"CLICOLOR_FORCE": "0"}, False),
                              ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False)):
            text = self.run_ok("--dim=16", *CPU, program=PROGRAMS.probe,
                               env={"NO_COLOR": "", "CLICOLOR_FORCE": "", **env})
            self.assertEqual("\033[" in text, expected, env)

    def screen(self, text):
        """What is left on a terminal of 80 columns."""
        lines = [[]]
        column = 0
        for c in text:
            if c == "\r":
                column = 0
            elif c == "\n":
                lines.append([])
                column = 0
            else:
                self.assertLessEqual(column, 80, text)
                lines[-1][column:column + 1] = [c]
                column += 1
        return ["".join(line).rstrip() for line in lines]

    def test_progress(self):
        """A line on a terminal, with the time left, that is gone in the end; nothing in a pipe."""
        args = [*SMALL, "--algo=softmax_naive,softmax_safe,host", "--runs=1", *CPU]
        env = {"NO_COLOR": "1"}
        with open(self.path("out.txt"), "w", encoding="utf-8") as out:
            said = self.on_terminal(PROGRAMS.bench, *args, env=env, stdout=out)
        self.assertIn("\r[1/3] 32x16, softmax_naive", said)
        self.assertIn("\r[3/3] 1,2,2,16,16,8, host, about ", said)
        self.assertRegex(said, r"\[2/3\] 32x16, softmax_safe, about \d+ s left")
        self.assertEqual(self.screen(said), [""])
        with open(self.path("out.txt"), encoding="utf-8") as out:
            self.assertNotIn("[1/3]", out.read())
        # With the table on the same terminal nothing of it stays between the lines.
        both = self.screen(self.on_terminal(PROGRAMS.bench, *SMALL, "--list", env=env))
        self.assertTrue(both[0].startswith("CASE"))
        said = self.on_terminal(PROGRAMS.bench, *SMALL, "--ratio=plain,alibi", "--runs=1",
                                "--json", *CPU, env=env, columns=500)
        self.assertIn("\r[2/2] 1,2,2,16,16,8, alibi, about ", said)
        rows = [line for line in re.split(r"[\r\n]+", said) if line.startswith("{")]
        self.assertEqual([json.loads(row)["variant"] for row in rows], ["plain", "alibi"])
        # JSON for a program, and no terminal at all.
        with open(self.path("out.txt"), "w", encoding="utf-8") as out:
            said = self.on_terminal(PROGRAMS.bench, *SMALL, "--runs=1", "--json", *CPU, env=env,
                                    stdout=out)
        self.assertEqual(said, "")
        self.run_ok(*SMALL, "--runs=1", *CPU, program=PROGRAMS.bench)  # nothing on stderr

    def test_narrow(self):
        """On 80 columns no line is longer, and none is broken inside a word; in a pipe none is."""
        shapes = ["--shape=1,8,8,2048,2048,64", "--dim=128", "--dim=600"]
        for program, args, code in ((PROGRAMS.probe, shapes, 1),
                                    (PROGRAMS.bench, [*SMALL, "--runs=1", "--mask"], 0),
                                    (PROGRAMS.bench, [*SMALL, "--runs=1", "--ratio=causal"], 0),
                                    (PROGRAMS.run, [*INPUTS, "--compare=q.npy"], 1)):
            said = self.on_terminal(program, *args, *CPU, env={"NO_COLOR": "1"}, code=code)
            shown = self.screen(said)
            self.assertNotIn("\\x", said)
            self.assertLessEqual(max(map(len, shown)), 80, said)
            done = self.run_program(program, *args, *CPU)
            words = set(done.stdout.split())
            columns = done.stdout.split()
            odd = [w for w in " ".join(shown).split() if w not in words and
                   not re.search(r"\d", w)]
            left_out = "left out of 80 columns:" in said
            self.assertTrue(not odd or left_out, odd)
            self.assertEqual(left_out, "MAX" in columns and "QUARTILES" in columns, said)

    def test_advice(self):
        """What to install is broken between words."""
        shown = self.screen(self.on_terminal(PROGRAMS.probe, "--dim=16", env={"NO_COLOR": "1"},
                                             code=1))
        self.assertLessEqual(max(map(len, shown)), 80)
        if shown[0].endswith("without OpenCL"):  # nothing to install helps that build
            self.assertIn("  looked for: this build of clattn is without OpenCL", shown)
            return
        self.assertIn("what to install", shown)
        text = re.sub(r"\s+", " ", " ".join(shown))
        for word in ("mesa-opencl-icd", "intel-opencl-icd", "ocl-icd-libopencl1"):
            self.assertIn(word, text)

    def test_progress_and_messages(self):
        """A message does not stand behind the rest of a line of progress."""
        said = self.on_terminal(PROGRAMS.bench_faulty, *SMALL, "--sweep=len=8,16", "--runs=1", *CPU,
                                env={"NO_COLOR": "1", "TOOL_TEST_FAULT": "nan:0"}, code=1,
                                columns=300)
        lines = [line for line in said.replace("\r", "\n").split("\n") if "wrong result" in line]
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertTrue(line.startswith("clattn-bench"), line)


if __name__ == "__main__":
    main(sys.modules[__name__], [Options])
