#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes cffi's description of the public headers.

usage: make_ffi.py FFI.py LAYOUT.c HEADER...

FFI.py is cffi's own form of it, which is read without a parser at run time. LAYOUT.c has the
compiler check that every struct, field and number is where cffi takes it to be. What this script
does not understand in a header is an error: nothing is left out in silence.
"""
import os
import re
import sys

import cffi

# What the headers ask of the preprocessor, and the answers; a condition that is not here is an
# error. They are those of a C program on a Unix without experimental declarations: what differs
# elsewhere are words in front of functions.
CONDITIONS = {
    "ifdef __cplusplus": False,
    "ifdef CLATTN_EXPERIMENTAL": False,
    "ifndef CL_TARGET_OPENCL_VERSION": False,
    "if defined(_WIN32)": False,
    "if defined(CLATTN_BUILD)": False,
    "elif defined(CLATTN_STATIC)": False,
    "elif defined(__GNUC__)": True,
    "if defined(__APPLE__)": False,
}
# Handles of OpenCL are pointers.
OPENCL_TYPES = """
typedef void *cl_context;
typedef void *cl_device_id;
typedef void *cl_command_queue;
typedef void *cl_event;
typedef uint32_t cl_uint;
"""
# Functions whose text is in the header and not in the library.
INLINE = {"clattn_host_buf"}


def fail(path, number, text):
    sys.exit(f"{path}:{number}: {text}")


def without_comments(text):
    def blank(match):
        return "\n" * match.group().count("\n") or " "
    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def preprocess(path, macros):
    """The declarations of a header, as lines; numbers that it defines go to macros."""
    with open(path, encoding="utf-8") as file:
        text = without_comments(file.read()).replace("\\\n", " ")
    lines = []
    stack = []  # of [is this branch taken, was one taken before]
    guards = 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        taken = all(entry[0] for entry in stack)
        if not line.lstrip().startswith("#"):
            if taken:
                lines.append(line)
            continue
        directive = re.sub(r"\s+", " ", line.strip()[1:].strip())
        word = directive.split(" ")[0]
        if word in ("if", "ifdef", "ifndef"):
            guard = re.fullmatch(r"ifndef CLATTN_\w+_H", directive)
            guards += bool(guard)
            if not guard and directive not in CONDITIONS:
                fail(path, number, f"a condition that is not known: #{directive}")
            value = bool(guard) or CONDITIONS[directive]
            stack.append([value, value])
        elif word == "elif":
            if directive not in CONDITIONS:
                fail(path, number, f"a condition that is not known: #{directive}")
            value = CONDITIONS[directive] and not stack[-1][1]
            stack[-1] = [value, stack[-1][1] or value]
        elif word == "else":
            stack[-1] = [not stack[-1][1], True]
        elif word == "endif":
            stack.pop()
        elif word == "define" and taken:
            match = re.fullmatch(r"define (\w+)(?: (.*))?", directive)
            name, value = match.groups() if match else (None, None)
            if name and re.fullmatch(r"\d+", value or ""):
                macros[name] = int(value)
            elif name != "CLATTN_API" and not (name or "").endswith("_H"):
                fail(path, number, f"a macro that is no number: #{directive}")
        elif word != "include" and taken:
            fail(path, number, f"a directive that is not known: #{directive}")
    if stack or guards != 1:
        fail(path, 0, "conditions that do not end, or not one include guard")
    return "\n".join(lines)


def without_inline(path, text):
    """Leaves out the functions of INLINE, whose bodies begin and end in the first column."""
    def check(match):
        if match.group(1) not in INLINE:
            fail(path, 0, f"an inline function that is not known: {match.group(1)}")
        return ""
    text = re.sub(r"^static inline [^;{]*?(\w+)\([^;{]*\)\n\{\n.*?^\}\n", check, text,
                  flags=re.DOTALL | re.MULTILINE)
    if re.search(r"\b(inline|static|extern|__attribute__)\b", text):
        fail(path, 0, "a declaration of a kind that is not known")
    return text


def layout_checks(ffi, declarations):
    """C that does not compile where the compiler lays structs out in another way, and a table of
    the functions, which does not compile where cffi takes one to be of another type."""
    out = []
    names = sorted(ffi.list_types()[0])
    for name in names:
        kind = ffi.typeof(name)
        if kind.kind == "struct" and kind.fields is not None:
            out.append(f"_Static_assert(sizeof({name}) == {ffi.sizeof(name)}, \"{name}\");")
            for field, what in kind.fields:
                out.append(f"_Static_assert(offsetof({name}, {field}) == {what.offset} &&\n"
                           f"    sizeof((({name} *)0)->{field}) == {ffi.sizeof(what.type)}, "
                           f"\"{name}.{field}\");")
        elif kind.kind == "enum":
            out.append(f"_Static_assert(sizeof({name}) == {ffi.sizeof(name)}, \"{name}\");")
            for number, element in sorted(kind.elements.items()):
                out.append(f"_Static_assert({element} == {number}, \"{element}\");")
    # Declared a second time, as cffi read it: a difference is an error of the compiler.
    out += [f"{line};" for line in declarations]
    return out


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out_ffi, out_layout, headers = sys.argv[1], sys.argv[2], sys.argv[3:]
    macros = {}
    parts = []
    for path in headers:
        parts.append(without_inline(path, preprocess(path, macros)))
    text = re.sub(r"\bCLATTN_API\b\s*", "", "\n".join(parts))
    functions = re.findall(r"^[A-Za-z_][^;{}]*?\bclattn_\w+\([^;{}]*\)(?=;)", text, re.MULTILINE)
    functions = [" ".join(f.split()) for f in functions if not f.startswith("typedef")]

    numbers = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    module = os.path.splitext(os.path.basename(out_ffi))[0]
    ffi = cffi.FFI()
    ffi.cdef(OPENCL_TYPES + numbers + text)
    ffi.set_source(f"clattn.{module}", None)
    ffi.emit_python_code(out_ffi)

    checks = layout_checks(ffi, functions)
    checks += [f"_Static_assert({name} == {value}, \"{name}\");" for name, value in macros.items()]
    with open(out_layout, "w", encoding="utf-8") as file:
        file.write("// Made by make_ffi.py: what cffi takes the headers to say.\n"
                   "#include <clattn/clattn.h>\n#include <stddef.h>\n")
        for path in headers:
            if os.path.basename(path) != "opencl.h":
                file.write(f"#include <clattn/{os.path.basename(path)}>\n")
        file.write("#pragma GCC diagnostic ignored \"-Wredundant-decls\"\n"
                   "typedef void *cl_context, *cl_device_id, *cl_command_queue, *cl_event;\n"
                   "typedef uint32_t cl_uint;\n")
        file.write("\n".join(checks) + "\n")


if __name__ == "__main__":
    main()
