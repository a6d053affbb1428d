#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the reference of the public headers, with the pages of docs/, by Doxygen.

usage: docs/make_reference.py [--doxygen PROGRAM] [--output FOLDER]

Headers and pages are written for somebody who reads them as they are. Copies of them in Doxygen's
own form go to FOLDER/input, and what Doxygen makes to FOLDER/html (default: build/docs). Exit
status 1 where Doxygen has anything to say, or a public function is missing or does not say what
threads may do.

Of a header, in its `///` comments:
  * the table of statuses behind `@return`, a line or more for each, becomes `@retval` commands;
  * `Threads: ...` becomes a paragraph with that title;
  * names of types, fields and constants become links; `struct.field` without such a field is a
    fault.

Of a page, links to other pages and to their headings become references, links to examples lead to
their sources, names of the library in `code` become links, and links to other files of the
repository, which the reference does not have, are written out as names. A link to nothing is a
fault.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = os.path.join("include", "clattn")
PAGES = ["README.md", "docs/guide.md", "docs/python.md", "examples/README.md", "docs/tools.md",
         "docs/features.md", "docs/math.md", "docs/kernels.md", "docs/planner.md",
         "docs/performance.md", "docs/devices.md", "docs/reliability.md"]
LAST_PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
# Looks, where they are installed (Debian: doxygen-awesome-css); else Doxygen's own.
STYLES = ["/usr/share/doxygen-awesome-css/doxygen-awesome.css",
          "/usr/share/doxygen-awesome-css/doxygen-awesome-sidebar-only.css"]
STATUSES = r"CLATTN_(?:OK|ERR_\w+)(?:, CLATTN_ERR_\w+)*"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def headers():
    names = sorted(os.listdir(os.path.join(ROOT, HEADERS)))
    return [os.path.join(HEADERS, name) for name in names if name.endswith(".h")]


def known_names():
    """The headers' (types and constants, fields as (struct, field), functions)."""
    names, fields, functions = set(), set(), set()
    for path in headers():
        text = re.sub(r"//[^\n]*", "", read(path))
        names.update(re.findall(r"\b(CLATTN_[A-Z0-9_]+) = ", text))
        names.update(re.findall(r"#define (CLATTN_[A-Z0-9_]+) \d", text))
        functions.update(re.findall(r"\b(clattn_\w+)\((?!\*)", text))
        for body, name in re.findall(r"typedef (?:struct|enum) \w+ \{(.*?)\} (\w+);", text, re.S):
            names.add(name)
            fields.update((name, field) for field in re.findall(r"(\w+)(?:\[\w+\])*;", body))
        names.update(re.findall(r"typedef struct \w+ (\w+);", text))
        names.update(re.findall(r"\(\*(clattn_\w+)\)", text))
    return names, fields, functions


NAMES, FIELDS, FUNCTIONS = known_names()
STRUCTS = {struct for struct, _ in FIELDS}


# ---- headers -------------------------------------------------------------------------------------


def link_words(text):
    """Links to names in a line of a comment, outside of `code`."""

    def field(match):
        struct, name = match.groups()
        if struct not in STRUCTS:
            return match.group(0)
        if (struct, name) not in FIELDS:
            sys.exit(f"{struct} has no field {name}")
        return f'@ref {struct}::{name} "{struct}.{name}"'

    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        part = re.sub(r"\b(clattn_\w+)\.([a-z_]+)\b(?!\()", field, parts[i])
        parts[i] = re.sub(
            r'(?<![#:"\w])(?:clattn|CLATTN)_\w+\b(?!\(|\*|::|\.[a-z])',
            lambda match: "#" + match.group(0) if match.group(0) in NAMES else match.group(0),
            part,
        )
    return "".join(parts)


def statuses(block):
    """The lines of a comment with `@return` tables as @retval commands."""
    out, table, column, rows = [], False, 0, 0
    for line in block:
        start = re.match(rf"( *)@return ({STATUSES})(?: {{2,}}(.*))?$", line)
        row = table and re.match(rf" {{{column}}}({STATUSES})(?: {{2,}}(.*))?$", line)
        if start:
            table, column = True, line.index("CLATTN_")
            names, text = start.group(2), start.group(3) or ""
        elif row:
            names, text = row.group(1), row.group(2) or ""
        elif table and line.startswith(" " * (column + 1)):
            for i in range(len(out) - rows, len(out)):
                out[i] += " " + line.strip()
            continue
        else:
            table = False
            out.append(line)
            continue
        rows = len(names.split(", "))
        out += [f" @retval {name} {text}" for name in names.split(", ")]
    return out


def threads(block):
    """The lines of a comment with what it says about threads as a titled paragraph."""
    out = []
    for line in block:
        said = re.match(r" Thread(?:s|-safety): (.*)", line)
        out += ["", " @par Threads", " " + said.group(1)] if said else [line]
    return out


def comment(block):
    out, verbatim, blank = [], False, True
    for line in threads(statuses(block)):
        indented = line.startswith("     ")
        verbatim = indented and (verbatim or blank)
        blank = not line.strip()
        line = line.replace("\\", "\\\\")
        if verbatim or line.startswith((" @param", " @retval")):
            # The first word behind these is a name already.
            head = re.match(r" @(?:param|retval) +\S+ *", line)
            line = line if verbatim else line[: head.end()] + link_words(line[head.end() :])
        elif not line.startswith(" @file"):
            line = link_words(line)
        out.append("///" + line)
    return out


def header(text):
    out, block = [], []
    for line in text.split("\n") + [""]:
        if re.match(r"///(?!<)", line):
            block.append(line[3:])
            continue
        out += comment(block)
        block = []
        inside = re.match(r"(.*///<?)(.*)$", line)
        if inside:
            line = inside.group(1) + link_words(inside.group(2).replace("\\", "\\\\"))
        out.append(line)
    return "\n".join(out[:-1])


# ---- pages ---------------------------------------------------------------------------------------


def slug(title):
    """A heading's name in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")


def page_id(path):
    return "page_" + re.sub(r"\W", "_", os.path.splitext(path)[0].lower())


def target(path, link):
    """What a link of the page `path` is in the reference; None where that has no such file."""
    file, _, anchor = link.partition("#")
    file = os.path.relpath(os.path.join(ROOT, os.path.dirname(path), file), ROOT) if file else path
    if not os.path.exists(os.path.join(ROOT, file)):
        sys.exit(f"{path}: there is no {link}")
    folder, name = os.path.split(file)
    if name.endswith(".md") and (folder in ("", "docs") or file == "examples/README.md"):
        if anchor:
            return f"@ref {page_id(file)}_{anchor}"
        return "@ref index" if file == "README.md" else f"@ref {page_id(file)}"
    if folder == "examples" and name.endswith((".c", ".cpp")):
        return name.replace(".", "_8") + "-example.html"
    return None


def page(path, text):
    def link(match):
        words, where = match.groups()
        if re.match(r"\w+:", where):
            return match.group(0)
        reference = target(path, where)
        if reference:
            return f"[{words}]({reference})"
        name = os.path.normpath(os.path.join(os.path.dirname(path), where))
        return words if name in words else f"{words} (`{name}`)"

    def code(match):
        name = match.group(1)
        word = name.removesuffix("()")
        known = word in FUNCTIONS if name.endswith("()") else word in NAMES
        if known:
            return f"<tt>[{name}](@ref {word})</tt>"
        struct, _, field = name.partition(".")
        if (struct, field) in FIELDS:
            return f"<tt>[{name}](@ref {struct}::{field})</tt>"
        return match.group(0)

    out, fenced = [], False
    for line in text.split("\n"):
        if line.startswith("<!--") and line.rstrip().endswith("-->"):
            continue
        if line.startswith("```"):
            fenced = not fenced
            line = line.split()[0]
        elif not fenced and not line.startswith("    "):
            heading = re.match(r"(#+) (.*)", line)
            if heading and len(heading.group(1)) == 1 and path != "README.md":
                line += " {#" + page_id(path) + "}\n\n[TOC]"
            elif heading and len(heading.group(1)) == 1:
                pass
            elif heading:
                line += " {#" + page_id(path) + "_" + slug(heading.group(2)) + "}"
            else:
                line = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)", link, line)
                line = re.sub(r"(?<![\[\w`])`([^`]+)`(?!\])", code, line)
        out.append(line)
    return "\n".join(out)


# ---- all of it -----------------------------------------------------------------------------------


def pages():
    others = ["docs/" + name for name in sorted(os.listdir(os.path.join(ROOT, "docs")))]
    others = [path for path in others if path.endswith(".md") and path not in PAGES]
    return PAGES + others + LAST_PAGES


def example_pages():
    """A page for the source of each example, with what the table of examples/README.md says."""
    rows = re.findall(r"^\| \[(\S+)\]\(\S+\) \| ([^|]*) \|", read("examples/README.md"), re.M)
    rows = [(name, what.replace("::", "\\::")) for name, what in rows]
    return "".join(f"/// @example {name} {what}\n\n" for name, what in rows)


def write_inputs(folder):
    """Writes the copies; returns their names, in the order of the menu."""
    texts = {path: header(read(path)) for path in headers()}
    texts.update((path, page(path, read(path))) for path in pages())
    texts["examples.dox"] = example_pages()
    for path, text in texts.items():
        copy = os.path.join(folder, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text)
    return list(texts)


def missing(html):
    """Faults: public functions without a place in the reference, or without a word on threads."""
    faults = []
    for path in headers():
        declaration = r"^((?:///.*\n)*)CLATTN_API [\w *]*?\b(clattn_\w+)\("
        declared = re.findall(declaration, read(path), re.M)
        name = os.path.basename(path)
        page_name = os.path.join(html, name.replace(".", "_8") + ".html")
        made = ""
        if os.path.exists(page_name):
            with open(page_name, encoding="utf-8") as file:
                made = file.read()
        for text, function in declared:
            if f"</a></span>{function}()" not in made:
                faults.append(f"{name}: {function}() is not in the reference")
            if not re.search(r"^/// Threads: ", text, re.M):
                faults.append(f"{name}: {function}() does not say what threads may do")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--doxygen", default="doxygen")
    parser.add_argument("--output", default=os.path.join(ROOT, "build", "docs"))
    arguments = parser.parse_args()
    output = os.path.abspath(arguments.output)
    inputs, html = os.path.join(output, "input"), os.path.join(output, "html")
    for folder in (inputs, html):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(html)

    version = re.findall(r"#define CLATTN_VERSION_\w+ (\d+)", read(HEADERS + "/base.h"))
    values = {
        "version": ".".join(version),
        "output": output,
        "inputs": inputs,
        "input": " ".join(f'"{inputs}/{path}"' for path in write_inputs(inputs)),
        "root": ROOT,
        "stylesheets": " ".join(style for style in STYLES if os.path.exists(style)),
    }
    doxyfile = os.path.join(output, "Doxyfile")
    with open(doxyfile, "w", encoding="utf-8") as file:
        template = read("docs/Doxyfile.in")
        file.write(re.sub(r"@(\w+)@", lambda match: values[match.group(1)], template))
    result = subprocess.run([arguments.doxygen, doxyfile], cwd=inputs, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    faults = result.stdout.splitlines() + missing(html)
    for fault in faults:
        print(fault)
    if not faults and result.returncode == 0:
        print(os.path.join(html, "index.html"))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
