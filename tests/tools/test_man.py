#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is said of the tools' options: the help texts, the manual pages and the completions of bash,
zsh and fish name the options that the parsers have, no more and no fewer, with the words that the
parsers take. Commands and the program of the manual pages do what is said there. Shells and
programs that read manual pages are used where they are installed.
"""
import argparse
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import tool_case

TOOLS = ("run", "probe", "bench", "tune")
ARGS = argparse.Namespace()


def run(*command, env=None, **more):
    hidden = {"OCL_ICD_VENDORS": "/nonexistent", "OCL_ICD_FILENAMES": "", "CLATTN_CACHE": "0",
              "CLATTN_TUNE": "0", "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
                          stderr=subprocess.PIPE, text=True, timeout=120,
                          env={**os.environ, **hidden, **(env or {})}, **more)


def tool(name):
    return getattr(ARGS, name)


def options(name):
    return ARGS.make.read_options(ARGS.source / "tools", name)


def page(name):
    return (ARGS.source / "man" / (name + ".scd")).read_text(encoding="utf-8")


def headings(text):
    """Lines of a page that describe options, without their markup: "--sweep KEY=FROM:TO"."""
    part = text[text.index("\n# OPTIONS\n"):].split("\n# ", 2)[1]
    return [re.sub(r"(?<!\w)[*_]|[*_](?!\w)", "", line) for line in part.split("\n")
            if line.startswith("*-")]


class Help(unittest.TestCase):
    """Help texts and manual pages. completions/make.py has read the parsers' tables."""

    def test_help_has_the_options_of_the_parser(self):
        for name in TOOLS:
            done = run(tool(name), "--help-all")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            printed = [n for line in re.findall(r"(?m)^  (-.*)$", done.stdout)
                       for n in re.findall(r"(?:^|, )(--?[a-z][\w-]*)", line)]
            self.assertEqual(set(printed), {n for o in options(name) for n in o.names}, name)

    def test_pages_have_the_options_of_the_parser(self):
        for name in TOOLS:
            found = {}
            for line in headings(page(f"clattn-{name}.1")):
                for part in re.split(r", (?=-)", line):
                    words = re.fullmatch(r"(--?[\w-]+)(\[=.*\]| .*)?", part)
                    self.assertTrue(words, part)
                    found[words[1]] = (words[2] or "")[:1]
            want = {n: {"NONE": "", "REQUIRED": " ", "OPTIONAL": "["}[o.arg]
                    for o in options(name) for n in o.names}
            # "-h, --help", "-o, --output FILE": the value stands behind the last name.
            for option in options(name):
                if len(option.names) > 1:
                    self.assertEqual(found.get(option.names[0]), "", option.names)
                    found[option.names[0]] = want[option.names[0]]
            self.assertEqual(found, want, name)

    def test_pages_name_no_other_options(self):
        for name in TOOLS:
            told = set(re.findall(r"\*(--?[a-z][\w-]*)", page(f"clattn-{name}.1")))
            known = {n for o in options(name) for n in o.names}
            # "--name=value" is how options are written.
            self.assertLessEqual(told - {"--name"}, known, name)

    def test_pages_name_the_words_of_values(self):
        for name in TOOLS:
            entries = re.split(r"(?m)^(?=\*-)", page(f"clattn-{name}.1"))[1:]
            for option in options(name):
                entry = next(e for e in entries if f"*{option.names[-1]}*" in e.split("\n")[0])
                if not entry.split("\n\t")[0].count("ALIGN"):  # described with --align
                    for word in option.words:
                        self.assertIn(word.rstrip("="), entry, (name, option.names))

    def test_words_are_those_that_the_tool_takes(self):
        for name in TOOLS:
            for option in options(name):
                if not option.words:
                    continue
                done = run(tool(name), f"{option.names[-1]}=bogus")
                self.assertEqual(done.returncode, 2, done.stderr)
                listed = re.search(r"is none of (.*)|does not begin with (.*)", done.stderr)
                listed = (listed[1] or listed[2]).replace(" or ", ", ").split(", ")
                listed = [re.sub(r"=[A-Z].*", "=", word.strip()) for word in listed]
                self.assertEqual(sorted(listed), sorted(option.words), (name, option.names))
                for word in option.words:
                    if not word.endswith("="):
                        done = run(tool(name), f"{option.names[-1]}={word}", "--version")
                        self.assertEqual((done.returncode, done.stderr), (0, ""), word)

    def test_tune_takes_the_algorithms_that_have_tiles(self):
        words = {name: next(o.words for o in options(name) if o.names == ["--algo"])
                 for name in ("run", "tune")}
        for word in words["run"]:
            done = run(tool("tune"), "--algo=" + word, "--version")
            self.assertEqual(done.returncode, 0 if word in words["tune"] else 2, word)

    def test_pages_tell_the_exit_statuses_of_the_help(self):
        for name in TOOLS:
            text = run(tool(name), "--help-all").stdout
            statuses = re.search(r"Exit status: (.*)", text, re.S)[1]
            statuses = set(re.findall(r"\b([0-3])\s", statuses))
            part = page(f"clattn-{name}.1").split("# EXIT STATUS")[1].split("\n# ")[0]
            self.assertEqual(set(re.findall(r"(?m)^\*(\d)\*$", part)), statuses)


class Pages(unittest.TestCase):
    """What is in the manual pages beside options."""

    def test_environment(self):
        text = "".join(file.read_text(encoding="utf-8") for file in
                       (ARGS.source / "src").rglob("*.c"))
        read = set(re.findall(r'"(CLATTN_(?!FEATURE)[A-Z_]+|XDG_[A-Z_]+)"', text))
        self.assertIn("CLATTN_LOG", read)
        part = page("clattn.7").split("# ENVIRONMENT")[1].split("\n# ")[0]
        told = set(re.findall(r"CLATTN_[A-Z_]+|XDG_[A-Z_]+", part))
        self.assertEqual(told, read)
        for name in TOOLS:
            self.assertLessEqual(set(re.findall(r"\bCLATTN_[A-Z_]+", page(f"clattn-{name}.1"))),
                                 read)

    def test_statuses_and_functions(self):
        headers = {file.name: file.read_text(encoding="utf-8")
                   for file in (ARGS.source / "include" / "clattn").glob("*.h")}
        text = page("clattn.3")
        statuses = set(re.findall(r"\b(CLATTN_(?:OK|ERR_\w+)) = \d", headers["base.h"]))
        self.assertEqual(set(re.findall(r"\*(CLATTN_(?:OK|ERR_\w+))\*", text)), statuses)
        parts = re.split(r"clattn/(\w+\.h)\n", text.split("# FUNCTIONS")[1].split("# RETURN")[0])
        self.assertEqual(set(parts[1::2]), set(headers) - {"clattn.h"})
        for header, listed in zip(parts[1::2], parts[2::2]):
            names = re.findall(r"\*(clattn_\w+)\*\(\)", listed)
            self.assertTrue(names, header)
            for function in names:
                self.assertIn(function + "(", headers[header])
        for function in re.findall(r"\*(clattn_\w+)\*\(\)", text):
            self.assertTrue(any(function + "(" in h for h in headers.values()), function)
        # Every function under its header, but those that are no part of the interface yet.
        for header, listed in zip(parts[1::2], parts[2::2]):
            code = re.sub(r"(?s)#ifdef CLATTN_EXPERIMENTAL\n.*?\n#endif", "", headers[header])
            public = re.findall(r"(?m)^(?:CLATTN_API|static inline) [^;(]*?\b(clattn_\w+)\(", code)
            self.assertTrue(public, header)
            self.assertLessEqual(set(public), set(re.findall(r"\*(clattn_\w+)\*\(\)", listed)))

    def examples(self):
        """Commands of the examples."""
        for name in TOOLS:
            part = page(f"clattn-{name}.1").split("# EXAMPLES")[1].split("# SEE ALSO")[0]
            commands = re.findall(r"```\n(.*?)\n```", part, re.S)
            self.assertGreater(len(commands), 2)
            for command in commands:
                words = shlex.split(command)
                self.assertEqual(words[0], "clattn-" + name)
                yield name, words[1:]

    def test_examples_are_understood(self):
        for name, words in self.examples():
            done = run(tool(name), *words, "--version")
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)

    def test_examples_of_run(self):
        folder = tempfile.TemporaryDirectory(prefix="clattn-test-")
        self.addCleanup(folder.cleanup)
        at = pathlib.Path(folder.name)
        shape = (1, 2, 6, 8)
        for n, name in enumerate("qkv"):
            (at / (name + ".npy")).write_bytes(
                tool_case.npy_bytes(shape, tool_case.pattern(n, shape)))
        for name, words in self.examples():
            if name != "run":
                continue
            # The first example leaves a causal result in o.npy, which the others are not.
            done = run(tool(name), *words, cwd=at)
            self.assertIn(done.returncode, (0, 1) if "--compare" in words else (0,), done.stderr)
            self.assertEqual(done.stderr, "", words)
        self.assertEqual({file.name for file in at.glob("*")},
                         {"q.npy", "k.npy", "v.npy", "o.npy", "lse.npy", "reference.npy"})

    def test_program(self):
        if not ARGS.library:
            self.skipTest("no library that a program can be linked with")
        code = re.search(r"```\n(#include.*?)\n```", page("clattn.3"), re.S)[1]
        folder = tempfile.TemporaryDirectory(prefix="clattn-test-")
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "program"
        program.with_suffix(".c").write_text(code.replace("\\\\", "\\"), encoding="utf-8")
        done = run(*ARGS.cc.split(), "-Wall", "-Wextra", "-Werror", "-I",
                   str(ARGS.source / "include"), str(program) + ".c", "-o", str(program),
                   ARGS.library, "-Wl,-rpath," + os.path.dirname(ARGS.library))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(str(program))
        self.assertEqual((done.returncode, done.stdout), (0, "success: 2 20\n"), done.stderr)
        self.assertIn("// " + done.stdout.strip(), code)

    def test_readers_have_nothing_against_the_pages(self):
        if not ARGS.man:
            self.skipTest("pages are not built")
        pages = sorted(ARGS.man.glob("*.[137]"))
        self.assertEqual(len(pages), 6)
        for file in pages:
            text = file.read_text(encoding="utf-8")
            self.assertNotRegex(text, r"@[A-Z]+@")
            if shutil.which("mandoc"):
                done = run("mandoc", "-Tlint", "-Wwarning", str(file))
                self.assertEqual((done.returncode, done.stdout), (0, ""))
            if shutil.which("man"):
                done = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(file))
                self.assertEqual((done.returncode, done.stderr), (0, ""))


# ---- completions -------------------------------------------------------------------------------

def on_a_terminal(shell, start, typed, until):
    """What a shell shows on a terminal when a line is typed, up to a text."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PATH"] = f"{os.path.dirname(ARGS.run)}:{os.environ['PATH']}"
        os.environ["TERM"] = "dumb"
        os.execvp(shell[0], shell)
    shown = ""
    try:
        for text, sign in ((start + "; echo re''ady\n", "ready"), (typed, until)):
            os.write(terminal, text.encode())
            shown, end = "", time.monotonic() + 20
            while sign not in shown and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        pass  # the shell has ended
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return shown


# "clattn_word" as the last words of a line, and what some of the completions must be.
EXPECTED = [
    (["clattn-run", "--al"], {"--algo", "--alibi", "--align"}),
    (["clattn-run", "--algo", "fus"], {"fused", "fused_kv_outer"}),
    (["clattn-run", "--kernel", ""], {"group", "vector", "subgroup"}),
    (["clattn-run", "--kv-dtype", ""], {"f32", "f16", "bf16", "int8"}),
    (["clattn-run", "--device", "c"], {"cpu"}),
    (["clattn-bench", "--dtype", "b"], {"bf16"}),
    (["clattn-bench", "--algo", "host,fus"], {"host,fused", "host,fused_kv_outer"}),
    (["clattn-bench", "--case", "bench-2048-d64"], {"bench-2048-d64", "bench-2048-d64-causal"}),
    (["clattn-tune", "--algo", "f"], {"fused", "fused_kv_outer"}),
    (["clattn-tune", "--dr"], {"--dry-run"}),
    (["clattn-probe", "--self"], {"--self-test"}),
]


class Completions(unittest.TestCase):
    def file(self, pattern, name):
        return (ARGS.completions / pattern.replace("*", "clattn-" + name)).read_text("utf-8")

    def setUp(self):
        if not ARGS.completions:
            self.skipTest("completions are not built")

    def need(self, shell):
        if not shutil.which(shell):
            self.skipTest(f"there is no {shell}")

    def test_files_have_the_options(self):
        for name in TOOLS:
            names = {n for o in options(name) for n in o.names}
            listed = re.search(r"for word in (.*); do", self.file("*", name))[1]
            self.assertEqual({n.rstrip("=") for n in listed.split()}, names)
            zsh = re.findall(r"(?m)^    '(?:\*|\([^)]*\))?(--?[\w-]+)=?-?\[", self.file("_*", name))
            self.assertEqual(set(zsh), names)
            fish = re.findall(r" -(?:l|s) ([\w-]+)(?= )", re.sub(r"'(?:\\.|[^'\\])*'", "''",
                                                                self.file("*.fish", name)))
            self.assertEqual({("--" if len(n) > 1 else "-") + n for n in fish}, names)

    def complete_bash(self, words):
        """By the function, as bash calls it."""
        name = words[0].replace("-", "_")
        script = (f"compopt() {{ :; }}; source {shlex.quote(str(ARGS.completions / words[0]))}; "
                  f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _{name}; "
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = run("bash", "--norc", "-c", script,
                   env={"PATH": f"{os.path.dirname(ARGS.bench)}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return set(done.stdout.split())

    def test_bash(self):
        self.need("bash")
        for words, want in EXPECTED:
            got = self.complete_bash(words)
            self.assertEqual({g.rstrip("=") for g in got}, want, words)
        # "=" is a word of its own; a value that may be left out comes behind it only.
        self.assertEqual(self.complete_bash(["clattn-run", "--causal", "=", "t"]), {"top-left"})
        self.assertEqual(self.complete_bash(["clattn-run", "--algo", "="]),
                         self.complete_bash(["clattn-run", "--algo", ""]))
        self.assertIn("--align", self.complete_bash(["clattn-run", "--causal", ""]))
        # What is given already is not offered again unless it can be.
        self.assertEqual(self.complete_bash(["clattn-run", "--json", "--js"]), set())
        self.assertEqual(self.complete_bash(["clattn-probe", "--dim", "8", "--di"]), {"--dim"})
        # A number is not completed.
        self.assertEqual(self.complete_bash(["clattn-run", "--threads", ""]), set())
        self.assertIn(str(ARGS.source / "README.md"),
                      self.complete_bash(["clattn-run", "-q", str(ARGS.source / "READ")]))

    def test_bash_on_a_terminal(self):
        self.need("bash")
        file = shlex.quote(str(ARGS.completions / "clattn-run"))
        shown = on_a_terminal(["bash", "--norc", "-i"], f"source {file}",
                              "clattn-run --al\t\t", "--algo")
        self.assertIn("--algo", shown)

    def test_zsh_on_a_terminal(self):
        self.need("zsh")
        start = f"fpath=({shlex.quote(str(ARGS.completions))} $fpath); autoload -U compinit; " \
                "compinit -u -D"
        for typed, want in (("clattn-run --al\t", "slopes of ALiBi"),
                            ("clattn-run --algo fus\t\t", "fused_kv_outer"),
                            ("clattn-bench --algo host,fus\t\t", "fused_kv_outer")):
            self.assertIn(want, on_a_terminal(["zsh", "-f", "-i"], start, typed, want))

    def test_fish(self):
        self.need("fish")
        script = f"set -p fish_complete_path {shlex.quote(str(ARGS.completions))}; "
        script += "; echo ---; ".join(f"complete -C '{' '.join(words)}'" for words, _ in EXPECTED)
        home = tempfile.TemporaryDirectory(prefix="clattn-test-")
        self.addCleanup(home.cleanup)
        done = run("fish", "--no-config", "-c", script,
                   env={"PATH": f"{os.path.dirname(ARGS.run)}:{os.environ['PATH']}",
                        "HOME": home.name})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for (words, want), got in zip(EXPECTED, done.stdout.split("---\n")):
            found = {line.split("\t")[0].rstrip("=") for line in got.splitlines()}
            self.assertEqual(found, want, words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in TOOLS:
        parser.add_argument("--" + name, required=True, type=os.path.abspath)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--man", type=pathlib.Path, help="folder of the pages that were built")
    parser.add_argument("--completions", type=pathlib.Path, help="likewise")
    parser.add_argument("--library", type=os.path.abspath, help="shared library")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("only", nargs="*", help="Class or Class.test")
    parser.parse_args(namespace=ARGS)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ARGS.source / "completions"))
    ARGS.make = __import__("make")
    module = sys.modules[__name__]
    classes = (Help, Pages, Completions)
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(ARGS.only, module) if ARGS.only else unittest.TestSuite(
        map(loader.loadTestsFromTestCase, classes))
    wanted = suite.countTestCases()
    result = tool_case.Lines()
    suite.run(result)
    for test, why in result.skipped:
        print(f"left out: {test.id()}: {why}")
    print(f"{result.passed} of {wanted} tests passed, {len(result.skipped)} of them left out")
    sys.exit(0 if wanted > 0 and result.passed == wanted == result.testsRun else 1)


if __name__ == "__main__":
    main()
