#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A test of the test: kernels with a fault put into them, which test_simulator must notice.

A fault is a barrier that is taken away, or a change of the list below, in a copy of the kernel
texts. It is noticed when Oclgrind reports something or a test fails. Oclgrind must be a device that
OpenCL sees; else there is nothing to do.

    test_kernel_faults.py --simulator PROGRAM --kernels FOLDER           a few, for CI
    test_kernel_faults.py ... --long                                     all barriers, all changes
    test_kernel_faults.py ... --only TEXT                                those whose name has TEXT
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

SKIP_STATUS = 77
REPORT = re.compile(r"data race at |Invalid (read|write) of size|divergence detected|^\s*Entity: ")
BARRIER = re.compile(r"\b(sub_group_)?barrier\(CLK_[A-Z_]*\);")

# Tests of test_simulator that run a file, the quickest first.
TESTS = {
    "append.cl": ["append"],
    "fused_group.cl": ["fused_group"],
    "fused_kv_outer_group.cl": ["fused_kv_outer_group"],
    "group_score.clh": ["fused_group"],
    "group_tile.clh": ["fused_group", "two_loop_group"],
    "group_walk.clh": ["fused_group"],
    "merge.cl": ["split_kv_group"],
    "merge_parts.cl": ["merge_parts"],
    "self_test.cl": ["rotary"],
    "softmax.cl": ["softmax"],
    "split_kv_group.cl": ["split_kv_group"],
    "two_loop_group.cl": ["two_loop_group"],
}

# Barriers that no simulator run can miss, by file and number, and why.
UNSEEN = {
    ("group_walk.clh", 1): "only with sub-groups, which Oclgrind lacks",
    ("group_walk.clh", 2): "only with sub-groups, which Oclgrind lacks",
    ("group_walk.clh", 4): "only with sub-groups, which Oclgrind lacks",
}

# Changes: file, what is there, what is put in its place, tests.
CHANGES = [
    ("append.cl", "    if (!written) // the same for all items\n        return;\n", "", ["append"]),
    ("unfused.cl", "    if (row >= c.rows)\n        return;\n", "", ["unfused"]),
    ("group_tile.clh", "if (quad < GROUP_CHUNK_QUADS && d < DIM_V)\n                store_o4",
     "if (quad < GROUP_CHUNK_QUADS)\n                store_o4", ["fused_group"]),
    ("fused_group.cl", "if (GROUP_ROW(item, n) < at.rows)", "if (true)", ["fused_group"]),
    ("two_loop_group.cl", "if (GROUP_ROW(item, n) < at.rows)", "if (true)", ["two_loop_group"]),
    ("fused_kv_outer_group.cl", "if (GROUP_ROW(item, n) < at.rows)", "if (true)",
     ["fused_kv_outer_group"]),
    ("split_kv_group.cl", "        if (r >= at.rows)\n            continue;\n", "",
     ["split_kv_group"]),
    ("split_kv_group.cl", "|| d >= DIM_V)", ")", ["split_kv_group"]),
    ("group_load.clh", "key < end - first", "true", ["fused_group"]),
    ("mask.clh", "return (int)clamp((long)i + a->win_hi + 1, 0L, (long)a->len_kv);",
     "return (int)clamp((long)i + a->win_hi + 1, 0L, (long)a->len_kv + 1);", ["fused_vector"]),
    ("split_kv_vector.cl", "n < rows->real", "n < TILE_Q", ["split_kv_vector"]),
    ("vector_tile.clh", "if (n + 1 < t->real && ++h ==", "if (++h ==", ["fused_vector"]),
    ("vector_tile.clh", "const int real = min(RK, t->keys - j);", "const int real = RK;",
     ["fused_vector"]),
    ("vector_tile.clh", "(r < real ? t->k_stride : 0)", "t->k_stride", ["fused_vector"]),
    ("split_kv_few.cl", "t->k + min(j + n, t->keys - 1) * t->k_stride",
     "t->k + (j + n) * t->k_stride", ["split_kv_few"]),
    ("split.clh", "min(keys * (uint)(part + 1), span)", "(keys * (uint)(part + 1))",
     ["split_kv_few"]),
    ("merge.cl", "if (d < DIM_V)\n            store_o4", "store_o4", ["split_kv_group"]),
    ("merge.cl", "if (first > 0 && mine < parts)", "if (first > 0)", ["split_kv_group"]),
    ("quads.clh", "    if (n >= 4) {\n        STORE_QUAD", "    if (n > 0) {\n        STORE_QUAD",
     ["merge_parts"]),
    ("rotary.cl", "const int n = half_dim - t;", "const int n = 4;", ["rotary"]),
    ("softmax.cl", "for (long v = p->item; v < p->whole; v += ITEMS)\n        STORE_MANY(weight",
     "for (long v = p->item; v <= p->whole; v += ITEMS)\n        STORE_MANY(weight", ["softmax"]),
    ("sequence.clh", "        a->lse_offset += first;\n", "", ["fused_vector"]),
    ("peak.cl", "for (; at < end; at += ITEMS)", "for (; at <= end; at += ITEMS)", ["peak"]),
]

# What CI has seconds for.
IN_CI = ["merge_parts.cl barrier 1", "append.cl barrier 1", "rotary.cl: const int n",
         "quads.clh: if (n >= 4)"]


class Fault:
    def __init__(self, file, name, text, tests):
        self.file, self.name, self.text, self.tests = file, name, text, tests


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def read(folder, file):
    with open(os.path.join(folder, file), encoding="utf-8") as f:
        return f.read()


def barriers(kernels):
    """One fault for each barrier; those that cannot be seen have no tests."""
    for file in sorted(os.listdir(kernels)):
        text = read(kernels, file)
        for n, m in enumerate(BARRIER.finditer(text), 1):
            tests = [] if (file, n) in UNSEEN else TESTS[file]
            yield Fault(file, f"{file} barrier {n} (line {line_of(text, m.start())})",
                        text[:m.start()] + ";" + text[m.end():], tests)


def changes(kernels):
    for file, there, instead, tests in CHANGES:
        text = read(kernels, file)
        if text.count(there) != 1:
            sys.exit(f"{file} has {text.count(there)} times, not once: {there!r}")
        name = f"{file}: {' '.join(there.split())[:50]}"
        yield Fault(file, name, text.replace(there, instead), tests)


def run(simulator, test, kernels, pairs):
    """The first line that says that something is wrong, "" where all is well; or None without
    Oclgrind. The program is stopped there."""
    # Some show only where two values of literals meet.
    env = dict(os.environ, OCLGRIND_DATA_RACES="1", CLATTN_KERNEL_DIR=kernels,
               **({"CLATTN_TEST_PAIRS": "1"} if pairs else {}))
    with subprocess.Popen([simulator, "oclgrind", test], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as p:
        ran = False
        for line in p.stdout:
            ran = ran or line.startswith("[ RUN ")
            found = REPORT.search(line)
            if found or "FAILED" in line:
                p.send_signal(signal.SIGKILL)
                return line.strip()
        status = p.wait()
    if status == SKIP_STATUS:
        return None
    if status == 0 and not ran:
        sys.exit(f"test_simulator has no test {test}")
    return f"exit status {status}" if status else ""


def try_fault(simulator, kernels, fault, pairs):
    begin = time.monotonic()
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "cl")
        shutil.copytree(kernels, copy)
        with open(os.path.join(copy, fault.file), "w", encoding="utf-8") as f:
            f.write(fault.text)
        for test in fault.tests:
            said = run(simulator, test, copy, pairs)
            if said != "":
                said = said and f"{test}: {said}"
                break
    return said, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulator", required=True)
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    faults = list(barriers(options.kernels)) + list(changes(options.kernels))
    if not options.long:
        faults = [f for f in faults if any(f.name.startswith(name) for name in IN_CI)]
        if len(faults) != len(IN_CI):
            sys.exit("a fault of IN_CI is not there")
    faults = [f for f in faults if options.only in f.name]

    # A fault that is "noticed" where nothing is wrong says nothing.
    for test in sorted({t for f in faults for t in f.tests}):
        said = run(options.simulator, test, options.kernels, options.long)
        if said is None:
            print("no Oclgrind device")
            return SKIP_STATUS
        if said:
            sys.exit(f"{test} fails without any fault: {said}")

    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [(f, pool.submit(try_fault, options.simulator, options.kernels, f, options.long))
                for f in faults]
        for fault, job in jobs:
            said, seconds = job.result()
            if not fault.tests:
                said = "not run: " + next((why for (file, n), why in UNSEEN.items() if
                                           fault.name.startswith(f"{file} barrier {n} ")),
                                          "no test")
            missed += not said
            print(f"{'MISSED ' if not said else ''}{fault.name}: {said} ({seconds:.1f} s)",
                  flush=True)
    print(f"{len(faults)} faults, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
