#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a wheel has what belongs into it, and nothing else.

usage: check_wheel.py WHEEL VERSION
"""
import pathlib
import re
import sys
import zipfile

MODULE = {path.name for path in pathlib.Path(__file__).with_name("clattn").iterdir()
          if path.suffix in (".py", ".pyi", ".typed")}


def main():
    path, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    faults = []
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        info = f"clattn-{version}.dist-info/"
        wanted = {f"clattn/{name}" for name in MODULE | {"_ffi.py"}}
        found = {name for name in names if not name.startswith(info)}
        libraries = {name for name in found
                     if re.fullmatch(r"clattn/_libclattn\.(abi3\.)?(so|dylib|dll)", name)}
        if len(libraries) != 1:
            faults.append(f"not one library: {sorted(libraries)}")
        faults += [f"lacks {name}" for name in sorted(wanted - found)]
        faults += [f"has {name} besides" for name in sorted(found - wanted - libraries)]
        metadata = wheel.read(info + "METADATA").decode() if info + "METADATA" in names else ""
        if f"\nVersion: {version}\n" not in metadata:
            faults.append(f"is not of version {version}")
        for name in libraries:
            # The kernels are inside, and no folder of them is looked for.
            if b"fused_group.cl" not in wheel.read(name):
                faults.append("has a library without kernels")
    for fault in faults:
        print(f"{path.name} {fault}")
    print(f"{path.name}: {path.stat().st_size // 1024} KiB, {len(names)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
