# SPDX-License-Identifier: Apache-2.0
"""What -Dhardening=true promises is in the files: relocations are read-only and done at the start,
no stack is executable, no code is written to, functions with buffers check their stack, and the C
library checks sizes.

Usage: test_hardening.py READELF fortified|plain FILE...
"""
import subprocess
import sys


def read(readelf, what, path):
    return subprocess.run([readelf, "-W", what, path], check=True, stdout=subprocess.PIPE,
                          text=True, env={"LC_ALL": "C"}).stdout


def faults_of(readelf, fortified, path):
    segments, dynamic = read(readelf, "-l", path), read(readelf, "-d", path)
    symbols = read(readelf, "--dyn-syms", path)
    stack = [line.split()[-2] for line in segments.splitlines() if "GNU_STACK" in line]
    checks = {
        "its relocations are not read-only": "GNU_RELRO" in segments,
        "its symbols are bound late": "BIND_NOW" in dynamic,
        "its stack is executable": stack == ["RW"],
        "it writes to its code": "TEXTREL" not in dynamic,
        "no function checks its stack": "__stack_chk_fail" in symbols,
        "no size is checked": "_chk@" in symbols.replace("__stack_chk_fail", "") or not fortified,
        "it is no file that can lie anywhere": "DYN (" in read(readelf, "-h", path),
    }
    return [f"{path}: {fault}" for fault, good in checks.items() if not good]


def main():
    readelf, kind, *files = sys.argv[1:]
    faults = [f for path in files for f in faults_of(readelf, kind == "fortified", path)]
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
