#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests in a JSON log of `meson test`, and shows the output of those that failed.

usage: tools/test_summary.py LOG.json [--forbid REGEX]

Prints "PASSED FAILED SKIPPED" to standard output, and failures to standard error. A CMocka program,
and one that says "N of M tests passed", counts as the tests it ran, any other as one test. With
--forbid a program whose output matches the pattern counts as failed whatever its exit status. A log
without any test counts as one failure, for a run that tested nothing must not look like a good one.
"""
import argparse
import json
import re
import sys

SHOWN_LINES = 40


def output_of(test):
    return (test.get("stdout") or "") + (test.get("stderr") or "")


def count(test, forbid):
    """(passed, failed, skipped) of one program."""
    # CMocka gives each test a line on standard output and repeats some on standard error.
    lines = test.get("stdout") or ""
    passed = len(re.findall(r"^\[       OK \] ", lines, re.MULTILINE))
    failed = len(re.findall(r"^\[  FAILED  \] ", lines, re.MULTILINE))
    skipped = len(re.findall(r"^\[  SKIPPED \] ", lines, re.MULTILINE))
    own_count = re.search(r"^(\d+) of (\d+) tests passed", lines, re.MULTILINE)
    if own_count:
        passed, failed = int(own_count[1]), int(own_count[2]) - int(own_count[1])
    good = test["result"] in ("OK", "SKIP", "EXPECTEDFAIL")
    if good and forbid and forbid.search(output_of(test)):
        good = False
    if not good:
        return passed, max(1, failed), skipped
    if test["result"] == "SKIP":
        return passed, 0, max(1, skipped)
    return (passed, 0, skipped) if passed + skipped else (1, 0, 0)


def show(test, forbid):
    print(f"  {test['result']}: {test['name']} (exit status {test.get('returncode')})",
          file=sys.stderr)
    # A driver may flood standard error, so each stream has lines of its own.
    for stream in ("stdout", "stderr"):
        lines = (test.get(stream) or "").splitlines()
        hits = [n for n, line in enumerate(lines) if forbid and forbid.search(line)]
        start = max(0, hits[0] - 4) if hits else max(0, len(lines) - SHOWN_LINES)
        for line in lines[start:start + SHOWN_LINES]:
            print("    | " + line, file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--forbid")
    options = parser.parse_args()
    forbid = re.compile(options.forbid, re.MULTILINE) if options.forbid else None
    totals = [0, 0, 0]
    tests = 0
    try:
        with open(options.log, encoding="utf-8", errors="replace") as file:
            for line in filter(str.strip, file):
                test = json.loads(line)
                tests += 1
                counts = count(test, forbid)
                totals = [a + b for a, b in zip(totals, counts)]
                if counts[1]:
                    show(test, forbid)
    except (OSError, ValueError, KeyError) as error:
        print(f"  {options.log}: {error}", file=sys.stderr)
        totals[1] += 1
    if tests == 0:
        print(f"  {options.log}: no test ran", file=sys.stderr)
        totals[1] = max(1, totals[1])
    print(*totals)


if __name__ == "__main__":
    main()
