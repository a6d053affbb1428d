#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the binary interface of the public headers with the one on record, by libabigail.

usage: tools/check_abi.py              says what differs from tests/abi/libclattn.abi
       tools/check_abi.py --update     writes that file anew; where programs that use the library
                                       on record would break, only with a new soversion
       tools/check_abi.py --self-test  shows that changes of each kind are found

What is compared is a library of empty functions made from the headers, with all of their structs
and enums, so that neither the options nor the insides of a real build can be seen in it. That the
real library has these very functions is a test of its own, tests/header/test_exports.py.

The exit status is 0 where nothing differs, 1 where something does, 77 without libabigail, gcc or
the headers of OpenCL.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "abi" / "libclattn.abi"

# What abidiff says where something was added: functions, enums, enumerators, and fields behind all
# others of a struct whose size the caller tells. Any other line means that programs break.
HARMLESS = re.compile("|".join([
    r"(Functions|Variables) changes summary: 0 Removed, .*",
    r"\d+ (functions?|Changed|Added) .*:", r"\[A\] .*",
    r"\[C\] .* (was changed|has some indirect sub-type changes):",
    r"(parameter \d+ of|in( unqualified)? (pointed to|underlying)) type .*:",
    r"type of variable changed:", r"type size hasn't changed",
    r"\d+ (enumerator|data member) insertions?:", r"'\w+::\w+' value '-?\d+'",
    r"unqualified underlying type .* changed, as reported earlier"]))


def library_source(headers):
    """C text that defines all functions, and a variable of each enum, of these {name: text}."""
    lines = ["#define CLATTN_EXPERIMENTAL"] + [f'#include "clattn/{name}"' for name in headers]
    for text in headers.values():
        code = re.sub(r"//.*|^[ \t]*#.*", "", text, flags=re.MULTILINE)
        lines += [f"enum {name} clattn_of_{name};"
                  for name in re.findall(r"\benum (\w+)\s*{", code)]
        lines += [" ".join(function.split()) + " { __builtin_trap(); }"
                  for function in re.findall(r"\bCLATTN_API\b([^;]*);", code)]
    return "\n".join(lines) + "\n"


def dump(headers, soversion):
    """The text of libabigail about these {name: text}."""
    # An enum without a name gets that of its first constant, so that a variable can have it.
    headers = {name: re.sub(r"\benum\s*{((?:\s|//[^\n]*)*)(\w+)", r"enum bits_\2 {\1\2", text)
               for name, text in headers.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "clattn").mkdir()
        for header, text in headers.items():
            (folder / "clattn" / header).write_text(text, encoding="utf-8")
        (folder / "clattn.c").write_text(library_source(headers), encoding="utf-8")
        # The same whatever a project or a user asks of compilers.
        subprocess.run(["gcc", "-std=c11", "-g", "-O0", "-w", "-shared", "-fPIC", "-I.", "clattn.c",
                        f"-Wl,-soname,libclattn.so.{soversion}", "-o", "clattn.so"],
                       cwd=folder, check=True)
        subprocess.run(["abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path",
                        "--no-elf-needed", "--no-architecture", "--drop-private-types",
                        "--headers-dir", "clattn", "--out-file", "clattn.abi", "clattn.so"],
                       cwd=folder, check=True)
        return (folder / "clattn.abi").read_text(encoding="utf-8")


def compare(old, new):
    """(what abidiff says, those of its lines that mean a break) of two dumps; ("", []) for none."""
    with tempfile.TemporaryDirectory() as name:
        files = [pathlib.Path(name) / "old.abi", pathlib.Path(name) / "new.abi"]
        for file, text in zip(files, (old, new)):
            file.write_text(text, encoding="utf-8")
        run = subprocess.run(["abidiff", "--harmless", *files], check=False, text=True,
                             stdout=subprocess.PIPE)
    if run.returncode & 3:
        sys.exit(f"abidiff failed with {run.returncode}: {run.stdout}")
    if run.returncode == 0:
        return "", []
    # Only structs that begin with their size may grow.
    growing = set(re.findall(r"<class-decl name='(\w+)'[^>]*>\s*<data-member[^>]*>\s*"
                             r"<var-decl name='struct_size'", old))
    breaks, old_bits = [], None
    for line in map(str.strip, run.stdout.splitlines()):
        changed = re.fullmatch(r"underlying type 'struct (\w+)' changed:", line)
        size = re.fullmatch(r"type size changed from (\d+) to (\d+) \(in bits\)", line)
        field = re.fullmatch(r"'[^']*', at offset (\d+) \(in bits\)", line)
        if changed:
            old_bits = None
            fine = changed[1] in growing
        elif size:
            old_bits = int(size[1])
            fine = old_bits < int(size[2])
        elif field:
            fine = old_bits is not None and int(field[1]) >= old_bits
        else:
            fine = not line or HARMLESS.fullmatch(line)
        if not fine:
            breaks.append(line)
    return run.stdout, breaks


def check(update):
    build = (ROOT / "meson.build").read_text(encoding="utf-8")
    soversion = re.search(r"^soversion = '(\d+)'", build, re.MULTILINE)[1]
    headers = sorted((ROOT / "include" / "clattn").glob("*.h"))
    now = dump({file.name: file.read_text(encoding="utf-8") for file in headers}, soversion)
    old = RECORD.read_text(encoding="utf-8")
    report, breaks = compare(old, now)
    renamed = f"soname='libclattn.so.{soversion}'" not in old
    print(report, end="")
    if breaks and not renamed:
        print("programs that were linked with the library on record break; undo it, or raise "
              "soversion in meson.build:", *breaks, sep="\n  ")
    if not update:
        if report:
            print("The interface differs from the one on record: tools/check_abi.py --update takes "
                  "it over, and CHANGELOG.md says so to users.")
        return int(bool(report))
    if breaks and not renamed:
        return 1
    RECORD.write_text(now, encoding="utf-8")
    return 0


SAMPLE = """
#define CLATTN_API
#include <stddef.h>
enum {
    /// A bit.
    CLATTN_BIT = 1u << 0,
    CLATTN_OTHER_BIT = 1u << 1
};
typedef enum clattn_kind { CLATTN_ROUND = 0, CLATTN_FLAT = 1 } clattn_kind;
typedef struct clattn_thing clattn_thing;
typedef struct clattn_part { float x, y; } clattn_part;
typedef struct clattn_desc {
    size_t struct_size;
    int count;
    clattn_part part;
    double last;
} clattn_desc;
CLATTN_API int clattn_make(const clattn_desc *desc, clattn_part *parts, int count,
                           clattn_thing **out);
CLATTN_API void clattn_drop(clattn_thing *thing);
"""
# What is changed, into what, and whether programs break.
CHANGES = [
    ("double last;", "double last; int more;", False),
    ("CLATTN_API void", "CLATTN_API void clattn_more(int);\nCLATTN_API void", False),
    ("CLATTN_FLAT = 1 }", "CLATTN_FLAT = 1, CLATTN_SQUARE = 2 }", False),
    ("CLATTN_OTHER_BIT = 1u << 1", "CLATTN_OTHER_BIT = 1u << 1, CLATTN_THIRD = 1u << 2", False),
    ("typedef struct", "enum clattn_more { CLATTN_MORE };\ntypedef struct", False),
    ("CLATTN_API void clattn_drop(clattn_thing *thing);", "", True),
    ("CLATTN_API int clattn_make", "CLATTN_API long clattn_make", True),
    ("int count,", "long count,", True),
    ("int count,", "int count, int more,", True),
    ("const clattn_desc *desc", "const clattn_part *desc", True),
    ("    int count;", "", True),
    ("    int count;", "    float count;", True),
    ("    int count;", "    int total;", True),
    ("    int count;", "    int count, more;", True),
    ("double last;", "float last;", True),
    ("float x, y;", "float x, y, z;", True),
    ("CLATTN_FLAT = 1", "CLATTN_FLAT = 2", True),
    (", CLATTN_FLAT = 1", "", True),
    ("CLATTN_OTHER_BIT = 1u << 1", "CLATTN_OTHER_BIT = 1u << 2", True),
]


def self_test():
    faults = []
    old = dump({"sample.h": SAMPLE}, "0")
    if compare(old, dump({"sample.h": SAMPLE.replace("A bit", "A comment")}, "0")) != ("", []):
        faults.append("the same interface differs")
    for was, becomes, breaking in CHANGES:
        assert was in SAMPLE, was
        report, breaks = compare(old, dump({"sample.h": SAMPLE.replace(was, becomes, 1)}, "0"))
        if not report:
            faults.append(f"not seen: {was} -> {becomes}")
        elif bool(breaks) != breaking:
            faults.append(f"{was} -> {becomes}: breaks by {breaks}:\n{report}")
    print(*faults, f"{len(CHANGES)} changes, {len(faults)} faults", sep="\n")
    return int(bool(faults))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if not all(map(shutil.which, ("gcc", "abidw", "abidiff"))) or subprocess.run(
            ["gcc", "-xc", "-E", "-"], input="#include <CL/cl.h>", text=True, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        print("needs gcc, libabigail's abidw and abidiff, and CL/cl.h", file=sys.stderr)
        return 77
    return self_test() if options.self_test else check(options.update)


if __name__ == "__main__":
    sys.exit(main())
