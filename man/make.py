#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a manual page from its text: fills in what the build knows, runs scdoc, and mends what
scdoc's output has against mandoc and groff: empty paragraphs, hyphens in options, and words that
are hyphenated because .TH switches that on again.

    make.py SCDOC INPUT OUTPUT NAME=VALUE...
"""
import re
import subprocess
import sys


def bare_minus(text):
    """'-' as it is typed, not a typographer's hyphen."""
    return re.sub(r"(?<!\\)-", r"\\-", text)


def mend(page):
    lines = page.split("\n")
    # What ends an indented block belongs before the paragraph that follows it.
    for n in range(len(lines) - 1):
        if lines[n] == ".P" and lines[n + 1] == ".RE":
            lines[n], lines[n + 1] = lines[n + 1], lines[n]
    out, literal = [], False
    for n, line in enumerate(lines):
        after = lines[n + 1] if n + 1 < len(lines) else ""
        before = out[-1] if out else ""
        if line == ".P" and (after[:3] in (".SH", ".SS", ".P", "") or before[:3] in
                             (".SH", ".SS", ".TH")):
            continue
        literal = line == ".nf" or (literal and line != ".fi")
        if literal or re.match(r"clattn-\w+ -", line) or line.startswith("cc "):
            line = line if line.startswith(".") else bare_minus(line)
        else:
            line = re.sub(r"\\f[BI].*?\\fR", lambda m: bare_minus(m[0]), line)
        out.append(line)
        if line.startswith(".TH"):
            out += [".nh", ".ad l"]
    return "\n".join(out)


def main(scdoc, source, target, *values):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    for value in values:
        name, _, meaning = value.partition("=")
        text = text.replace(f"@{name}@", meaning)
    left = re.search(r"@[A-Z]+@", text)
    if left:
        sys.exit(f"{source}: {left[0]} has no value")
    done = subprocess.run([scdoc], input=text, stdout=subprocess.PIPE, check=False, text=True,
                          encoding="utf-8")
    if done.returncode:
        sys.exit(f"{source}: scdoc failed")
    with open(target, "w", encoding="utf-8") as file:
        file.write(mend(done.stdout))


if __name__ == "__main__":
    main(*sys.argv[1:])
