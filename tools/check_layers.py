#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the order of the layers and the rules of style that a machine can check.

usage: tools/check_layers.py [ROOT]     every file of the tree; one line for each fault
       tools/check_layers.py --self-test  that each rule finds what it is for

Layers of src, a file may include what lies to its right:

    attention -> plan -> algo/ -> context -> { ocl/, host/, ref/ } -> { problem, caps, tile, tune }
    -> util/ -> include/

`abi.h` is free for all. ocl/ takes no more than caps.h, util/ and clattn/base.h. OpenCL is
called through the table of ocl/api.h, and the deciding files do not see it at all.
"""
import os
import re
import sys
import tempfile

FILE_LINES = 600
FUNCTION_LINES = 60
KERNEL_LINES = 200
COLUMNS = 100

# Layer of a file of src by its folder or, for files of src itself, by its name without extension.
LAYER_OF_FOLDER = {"util": 1, "ocl": 3, "host": 3, "ref": 3, "algo": 5}
LAYER_OF_NAME = {
    "base": 1, "problem": 2, "call": 2, "call_memory": 2, "caller": 2, "sequence": 2,
    "softmax_call": 2, "caps": 2, "tile": 2, "tune": 2, "device_rank": 2,
    "tile_check": 2, "tune_table": 2, "tune_text": 2,
    "context": 4, "context_state": 4, "tune_file": 4, "context_ocl": 4, "function_ocl": 4,
    "measure_ocl": 4,
    "plan": 6, "list_tiles": 7,
    "attention": 7, "attention_ocl": 7, "warm_up": 7, "softmax": 7, "softmax_ocl": 7,
    "softmax_plan": 7,
    "kv": 7, "kv_ocl": 7, "merge_parts": 7, "rotary": 7, "append": 7, "quantize": 7,
    "no_ocl": 7,  # stands in for files of several layers in a build without OpenCL
}
# Files that must not know that OpenCL exists.
DECIDING = {"problem", "call", "call_memory", "caller", "sequence", "caps", "tile", "tile_check",
            "tune", "tune_table", "tune_text", "device_rank", "plan", "list_tiles"}
# Layers whose modules do not include each other.
SEPARATE = {3}

TEXT_SUFFIXES = (".c", ".h", ".cl", ".clh", ".cpp", ".py", ".sh", ".md", ".in", ".build", ".txt",
                 ".yml", ".toml", ".ld", ".map", ".wrap")
TEXT_NAMES = {"meson.build", "meson_options.txt", ".clang-format", ".editorconfig", ".gitignore",
              "run", "LICENSE"}
# Files in whose format the licence cannot be said, or that are the licence.
NO_SPDX = {"LICENSE"}
SKIP_FOLDERS = {".git", "__pycache__", ".cache"}

# Written in two pieces, for this file is checked too.
FORBIDDEN = [
    ("/wo" "rk/", "a path of one machine"), ("/opt/int" "elcl", "a path of one machine"),
    ("/roo" "t/", "a path of one machine"), ("/tm" "p/", "a path of one machine"),
    ("py" "pi.org", "a registry's host"), ("python" "hosted.org", "a registry's host"),
    ("deb.deb" "ian.org", "a registry's host"), ("npm" "js.org", "a registry's host"),
    ("proxy.gol" "ang.org", "a registry's host"), ("crat" "es.io", "a registry's host"),
    ("localho" "st:", "a host of one machine"),
]
CALLS = {
    "printf": "prints", "vprintf": "prints", "puts": "prints", "putchar": "prints",
    "fprintf": "prints", "fputs": "prints", "vfprintf": "prints", "perror": "prints",
    "abort": "ends the process", "exit": "ends the process", "_exit": "ends the process",
    "quick_exit": "ends the process", "sprintf": "has no bound", "vsprintf": "has no bound",
    "gets": "has no bound", "alloca": "has no bound",
}
PRINTING_FILES = {"src/util/log.c"}  # writes to stderr when the environment asks for it

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
CL_CALL = re.compile(r"(?<![\w.>])(cl[A-Z]\w*)\s*\(")
CALL = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(CALLS))


class Checker:
    def __init__(self, root):
        self.root = root
        self.faults = []

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")

    # ---- what is checked where ----

    def run(self):
        includes = {}
        for path in self.files():
            with open(os.path.join(self.root, path), "rb") as file:
                data = file.read()
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                self.fault(path, 0, "not UTF-8")
                continue
            self.check_text(path, text)
            if path.startswith(("src/", "include/")) and path.endswith((".c", ".h")):
                code = without_comments(text)
                includes[path] = self.check_source(path, code)
            if path.startswith(("src/", "cl/")) and text.count("\n") > FILE_LINES:
                self.fault(path, 0, f"{text.count(chr(10))} lines, more than {FILE_LINES}")
            if path.endswith((".c", ".h")) and path.startswith(("src/", "tools/")):
                self.check_functions(path, text, FUNCTION_LINES)
            if path.endswith((".cl", ".clh")):
                self.check_functions(path, text, KERNEL_LINES)
        self.check_cycles(includes)
        return self.faults

    def files(self):
        found = []
        for folder, names, files in os.walk(self.root):
            names[:] = sorted(n for n in names if n not in SKIP_FOLDERS
                              and not (folder == self.root and n.startswith("build")))
            for name in sorted(files):
                if name.endswith(TEXT_SUFFIXES) or name in TEXT_NAMES:
                    path = os.path.relpath(os.path.join(folder, name), self.root)
                    found.append(path.replace(os.sep, "/"))
        return found

    # ---- text ----

    def check_text(self, path, text):
        lines = text.split("\n")
        prose = path.endswith(".md")
        if os.path.basename(path) not in NO_SPDX:
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
                self.fault(path, 1, "no SPDX line")
        if text and not text.endswith("\n"):
            self.fault(path, len(lines), "no newline at the end")
        for number, line in enumerate(lines, 1):
            if "\t" in line:
                self.fault(path, number, "a tab")
            if "\r" in line:
                self.fault(path, number, "a carriage return")
            if line != line.rstrip():
                self.fault(path, number, "a space at the end")
            if len(line) > COLUMNS and not prose and os.path.basename(path) != "LICENSE":
                self.fault(path, number, f"{len(line)} columns, more than {COLUMNS}")
            for word, why in FORBIDDEN:
                if word in line.replace("#!/usr/bin", ""):
                    self.fault(path, number, f"{word}: {why}")

    # ---- C ----

    def check_source(self, path, code):
        headers = []
        for match in INCLUDE.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            headers.append((match.group(1), line))
        if path.startswith("include/"):
            for name, line in headers:
                if name.startswith("CL/") and path != "include/clattn/opencl.h":
                    self.fault(path, line, "only opencl.h may include OpenCL headers")
            return [n for n, _ in headers]
        for name, line in headers:
            self.check_include(path, name, line)
        plain = without_strings(code)
        if path not in ("src/ocl/api.h", "src/ocl/api.c"):
            for match in CL_CALL.finditer(plain):
                self.fault(path, plain.count("\n", 0, match.start()) + 1,
                           f"{match.group(1)}() is called past the table of ocl/api.h")
        for match in CALL.finditer(plain):
            if path in PRINTING_FILES and CALLS[match.group(1)] == "prints":
                continue
            self.fault(path, plain.count("\n", 0, match.start()) + 1,
                       f"{match.group(1)}() {CALLS[match.group(1)]}")
        return [n for n, _ in headers]

    def check_include(self, path, name, line):
        mine = place(path)
        if mine is None:
            self.fault(path, line, "this file belongs to no layer that check_layers.py knows")
            return
        layer, module = mine
        opencl = name.startswith(("CL/", "OpenCL/", "ocl/")) or name == "clattn/opencl.h"
        if opencl and module in DECIDING:
            self.fault(path, line, f"{name}: a deciding file must not see OpenCL")
        if name.startswith(("CL/", "OpenCL/")) and path != "src/ocl/api.h":
            self.fault(path, line, f"{name}: OpenCL comes through ocl/api.h")
        if module == "ocl" and name.startswith("clattn/") and name != "clattn/base.h":
            self.fault(path, line, f"{name}: ocl/ takes caps.h, util/ and clattn/base.h only")
        target = place("src/" + name)
        if target is None or not os.path.exists(os.path.join(self.root, "src", name)):
            return  # the system's, the public headers, or cl/
        other, other_module = target
        if os.path.basename(path).startswith("no_ocl"):
            return
        if other > layer:
            self.fault(path, line, f"{name} lies to the left of this file's layer")
        elif other == layer and layer in SEPARATE and module != other_module:
            self.fault(path, line,
                       f"{name}: {module}/ and {other_module}/ know nothing of each other")
        elif module == "ocl" and other == 2 and other_module != "caps":
            self.fault(path, line, f"{name}: ocl/ takes caps.h, util/ and clattn/base.h only")
        elif layer > 4 and other_module == "ocl" and module != "algo" and not is_ocl_side(path):
            self.fault(path, line, f"{name}: only algo/ and the context know OpenCL and attention")

    def check_cycles(self, includes):
        graph = {p: [f"src/{n}" for n in names if f"src/{n}" in includes]
                 for p, names in includes.items() if p.endswith(".h")}
        state = {}

        def visit(path, trail):
            if state.get(path) == "done":
                return
            if state.get(path) == "open":
                self.fault(path, 0, "includes itself: " + " -> ".join(trail + [path]))
                return
            state[path] = "open"
            for other in graph.get(path, []):
                visit(other, trail + [path])
            state[path] = "done"

        for path in graph:
            visit(path, [])

    # A function's brace stands on a line of its own, and so does its end.
    def check_functions(self, path, text, limit):
        start = None
        for number, line in enumerate(text.split("\n"), 1):
            if line == "{":
                start = number
            elif line == "}" and start is not None:
                if number - start - 1 > limit:
                    self.fault(path, start, f"a function of {number - start - 1} lines, more than "
                               f"{limit}")
                start = None


def place(path):
    """(layer, module) of a file of src, or None."""
    parts = path.split("/")
    if len(parts) > 2:
        return (LAYER_OF_FOLDER[parts[1]], parts[1]) if parts[1] in LAYER_OF_FOLDER else None
    name = parts[1].rsplit(".", 1)[0]
    return (LAYER_OF_NAME[name], name) if name in LAYER_OF_NAME else None


def is_ocl_side(path):
    """The half of a file that is left out of a build without OpenCL."""
    return path.rsplit(".", 1)[0].endswith("_ocl")


def without_comments(text):
    def blank(match):
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found[0] == "/" else found
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', blank, text,
                  flags=re.DOTALL)


def without_strings(code):
    return re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group(0)) - 2) + '"', code)


# ---- self-test -----------------------------------------------------------------------------------

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
GOOD = {
    "include/clattn/base.h": SPDX + "#include <stddef.h>\n",
    "include/clattn/opencl.h": SPDX + "#include <CL/cl.h>\n",
    "src/util/log.h": SPDX + '#include "clattn/base.h"\n',
    "src/util/log.c": SPDX + '#include "util/log.h"\nvoid f(void)\n{\n    fputs("x", 0);\n}\n',
    "src/caps.h": SPDX,
    "src/problem.h": SPDX + '#include "caps.h"\n',
    "src/tile.h": SPDX + '#include "problem.h"\n',
    "src/ocl/api.h": SPDX + "#include <CL/cl.h>\n",
    "src/ocl/device.h": SPDX + '#include "caps.h"\n#include "ocl/api.h"\n#include "util/log.h"\n',
    "src/host/host.h": SPDX + '#include "problem.h"\n',
    "src/context.h": SPDX + '#include "caps.h"\n',
    "src/algo/fused.c": SPDX + '#include "ocl/device.h"\n#include "tile.h"\n#include "abi.h"\n'
                        '// clFinish() is only named here\nvoid g(void)\n{\n'
                        '    cl->Finish(q, "clFinish(q)");\n    snprintf(a, 1, "");\n}\n',
    "src/attention.c": SPDX + '#include "algo/algo.h"\n#include "context.h"\n',
}
BAD = [
    ("src/util/log.h", SPDX + '#include "problem.h"\n', "lies to the left"),
    ("src/problem.h", SPDX + '#include "context.h"\n', "lies to the left"),
    ("src/problem.h", SPDX + '#include "tile.h"\n', "includes itself"),
    ("src/tile.h", SPDX + '#include "ocl/api.h"\n', "must not see OpenCL"),
    ("src/plan.c", SPDX + '#include "clattn/opencl.h"\n', "must not see OpenCL"),
    ("src/ocl/device.h", SPDX + '#include "problem.h"\n', "ocl/ takes caps.h"),
    ("src/ocl/device.h", SPDX + '#include "clattn/attention.h"\n', "ocl/ takes caps.h"),
    ("src/ocl/device.h", SPDX + '#include "host/host.h"\n', "know nothing of each other"),
    ("src/host/host.h", SPDX + '#include "ocl/api.h"\n', "know nothing of each other"),
    ("src/attention.c", SPDX + '#include "ocl/device.h"\n', "only algo/ and the context"),
    ("src/algo/fused.c", SPDX + "#include <CL/cl.h>\n", "through ocl/api.h"),
    ("src/unknown.c", SPDX + '#include "caps.h"\n', "no layer"),
    ("src/algo/fused.c", SPDX + "void f(void)\n{\n    clFinish(q);\n}\n", "past the table"),
    ("src/algo/fused.c", SPDX + "void f(void)\n{\n    x = clFinish (q);\n}\n", "past the table"),
    ("src/problem.c", SPDX + 'void f(void)\n{\n    printf("x");\n}\n', "printf() prints"),
    ("src/problem.c", SPDX + "void f(void)\n{\n    abort();\n}\n", "abort() ends"),
    ("src/util/log.c", SPDX + "void f(void)\n{\n    exit(1);\n}\n", "exit() ends"),
    ("include/clattn/base.h", SPDX + "#include <CL/cl.h>\n", "only opencl.h"),
    ("src/caps.h", "int x;\n", "no SPDX line"),
    ("docs/page.md", "# A page\n", "no SPDX line"),
    ("src/caps.h", SPDX + "int\tx;\n", "a tab"),
    ("src/caps.h", SPDX + "int x; \n", "a space at the end"),
    ("src/caps.h", SPDX + "int x;", "no newline"),
    ("src/caps.h", SPDX + "// " + "x" * COLUMNS + "\n", "columns"),
    ("src/problem.c", SPDX + "int x;\n" * FILE_LINES, "lines, more than"),
    ("src/problem.c", SPDX + "void f(void)\n{\n" + "    x;\n" * 61 + "}\n", "a function of 61"),
    ("cl/fused.cl", SPDX + "void f(void)\n{\n" + "    x;\n" * 201 + "}\n", "a function of 201"),
    ("README.md", "see " + FORBIDDEN[0][0] + "x\n", "a path of one machine"),
    ("tools/get.sh", "# SPDX-License-Identifier: Apache-2.0\ncurl " + FORBIDDEN[4][0] + "\n",
     "a registry's host"),
]


def check_tree(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        return Checker(root).run()


def self_test():
    failed = 0
    faults = check_tree(GOOD)
    for fault in faults:
        print(f"a fault in a good tree: {fault}")
        failed += 1
    for path, text, expected in BAD:
        faults = check_tree({**GOOD, path: text})
        if not any(fault.startswith(path) and expected in fault for fault in faults):
            print(f'{path}: "{expected}" was not found, but {faults}')
            failed += 1
    print(f"{len(BAD) + 1} trees, {failed} failures")
    return failed


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults = Checker(sys.argv[1] if len(sys.argv) > 1 else here).run()
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
