#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the pages does what the page says, with an installed clattn.

usage: tests/docs/check_blocks.py --prefix DIR [--python PROGRAM] [--only PAGE]... [--list]

DIR is the prefix of an installation, or the DESTDIR that it was staged in. What is done with a
block goes by its kind, which is the word behind ``` or, where it is indented, its first word:

  c, cpp   compiled without warnings against the installation, and run; a comment
           `// success: ...` is what it prints. `c fragment` is put into frame.c beside this file,
           where `ctx`, `plan`, `desc` and `call` are declared, and compiled only.
  python   run behind the page's blocks before it, with --python where given, which has to have the
           package; its syntax else.
  sh       commands, as indented ones. Programs that are cheap are run; of the others every option,
           file, suite and variable has to exist (`command_*` below).
  cmake, meson, ini, json, xml, dockerfile
           configured, or read.
  text     figures, formats and formulas; an indented block that begins with no command is that.

Besides, examples print what their table says; the tables of options of the tools have every option
of `--help` and no other, the table of variables those that the sources read; and options of tools
in `code` are checked, too.

--list says what became of each block, --self-test whether faults in pages are found.
"""
import argparse
import configparser
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = ["clattn-probe", "clattn-run", "clattn-bench", "clattn-tune"]
# Commands of others, which are not run: they install, build all of clattn, or need what only the
# reader has.
NOT_RUN = {".", "apt-get", "brew", "cd", "cmake", "docker", "export", "git", "ldconfig", "ninja",
           "pip", "python", "python3", "sudo", "mpirun", "pkg-config", "vcpkg", "conan", "nix",
           "spack", "podman", "gpg", "dpkg-buildpackage", "rpmbuild", "wine", "qemu-aarch64"}


class Fault(Exception):
    pass


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def pages():
    found = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/fuzz/README.md"]
    for pattern in ("docs/*.md", "examples/**/*.md", "packaging/**/*.md", "python/**/*.md"):
        found += sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))
    return found


def blocks(text):
    """(line, kind, lines) of each block; kind is None for an indented one."""
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        fence = re.match(r"( *)```+(.*)$", lines[i])
        if fence:
            end = i + 1
            while end < len(lines) and not lines[end].startswith(fence.group(1) + "```"):
                end += 1
            indent = len(fence.group(1))
            yield i + 1, fence.group(2).strip(), [line[indent:] for line in lines[i + 1 : end]]
            i = end + 1
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            end = i
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body = [line[4:] for line in lines[i:end]]
            while not body[-1].strip():
                body.pop()
            yield i + 1, None, body
            i = end
        else:
            i += 1


class Checker:
    def __init__(self, prefix, python, folder):
        self.python, self.folder = python, folder
        library = sorted(glob.glob(prefix + "/**/libclattn.so", recursive=True))
        if not library:
            sys.exit(f"{prefix} has no libclattn.so")
        libdir = os.path.dirname(library[0])
        # Beside the library's folder in the prefix, however deep that is.
        at = libdir
        while not os.path.isdir(os.path.join(at, "bin")) and len(at) > len(prefix):
            at = os.path.dirname(at)
        self.bin, self.prefix = os.path.join(at, "bin"), at
        self.env = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libdir, "pkgconfig"),
                        PATH=self.bin + os.pathsep + os.environ["PATH"],
                        CMAKE_PREFIX_PATH=at,
                        LD_LIBRARY_PATH=os.pathsep.join(
                            filter(None, [libdir, os.environ.get("LD_LIBRARY_PATH")])))
        self.flags = self.run(["pkg-config", "--cflags", "--libs", "clattn"]).split()
        self.helps = {}
        self.names = 0
        self.program = None  # the C program that a page showed last
        self.session = ""    # the Python blocks that it showed
        for file in glob.glob(ROOT + "/examples/*.*"):
            shutil.copy(file, folder)

    def run(self, command, timeout=120, shell=False, cwd=None):
        try:
            result = subprocess.run(command, shell=shell, cwd=cwd or self.folder, env=self.env,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                    stderr=subprocess.STDOUT, timeout=timeout, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Fault(str(error)) from error
        if result.returncode != 0:
            raise Fault(f"exit status {result.returncode} of {command}\n{result.stdout}")
        return result.stdout

    def new_name(self, suffix):
        self.names += 1
        return os.path.join(self.folder, f"block{self.names}{suffix}")

    # ---- programs --------------------------------------------------------------------------------

    def check_c(self, body, language="c", whole=True):
        text = "\n".join(body) + "\n"
        if not whole:
            with open(os.path.join(ROOT, "tests/docs/frame.c"), encoding="utf-8") as file:
                text = file.read().replace("// BLOCK\n", text)
        source = self.new_name("." + language)
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        compiler = ["gcc", "-std=c11"] if language == "c" else ["g++", "-std=c++17"]
        program = os.path.splitext(source)[0]
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        if not whole:
            self.run([*compiler, *strict, "-Wno-unused", "-fsyntax-only", source, *self.flags])
            return "compiled in frame.c"
        libraries = ["-lm"] + (["-lOpenCL"] if "opencl.h" in text else [])
        self.run([*compiler, *strict, source, *self.flags, *libraries, "-o", program])
        printed = self.run([program])
        expected = re.findall(r"// (success: .*)", text)
        for line in expected:
            if line not in printed.split("\n"):
                raise Fault(f"it printed\n{printed}and not {line}")
        self.program = source
        return "compiled and run" + (", with its output" if expected else "")

    def check_c_fragment(self, body):
        return self.check_c(body, whole=False)

    def check_cpp(self, body):
        return self.check_c(body, "cpp")

    def check_python(self, body):
        text = "\n".join(body) + "\n"
        try:
            compile(text, "block", "exec")
        except SyntaxError as error:
            raise Fault(str(error)) from error
        if not self.python:
            return "its syntax"
        missing = [module for module in re.findall(r"^ *(?:import|from) (\w+)", text, re.M)
                   if subprocess.run([self.python, "-c", f"import {module}"], check=False,
                                     env=self.env, capture_output=True).returncode]
        if missing and "clattn" not in missing:
            return "its syntax, without " + ", ".join(missing)
        self.session += text
        script = self.new_name(".py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(self.session)
        self.run([self.python, script])
        return "run"

    # ---- files of others -------------------------------------------------------------------------

    def check_cmake(self, body):
        if not shutil.which("cmake"):
            return "not read: no cmake"
        text = "\n".join(body) + "\n"
        if "project(" not in text:
            text = "cmake_minimum_required(VERSION 3.16)\nproject(block C)\n" + text
        return self.configure("CMakeLists.txt", text, ["cmake", "-S", ".", "-B", "build"])

    def check_meson(self, body):
        text = "\n".join(body) + "\n"
        if "project(" not in text:
            text = "project('block', 'c')\n" + text
        return self.configure("meson.build", text, ["meson", "setup", "build"])

    def configure(self, name, text, command):
        folder = self.new_name("")
        os.makedirs(folder)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        for source in re.findall(r"\b(\w+\.c)\b", text):
            shutil.copy(os.path.join(ROOT, "examples/minimal.c"), os.path.join(folder, source))
        self.run(command, cwd=folder)
        return "configured"

    def check_ini(self, body):
        try:
            configparser.ConfigParser().read_string("\n".join(body))
        except configparser.Error as error:
            raise Fault(str(error)) from error
        return "read"

    def check_json(self, body):
        try:
            json.loads("\n".join(body))
        except ValueError as error:
            raise Fault(str(error)) from error
        return "read"

    def check_xml(self, body):
        try:
            xml.etree.ElementTree.fromstring("\n".join(body))
        except xml.etree.ElementTree.ParseError as error:
            raise Fault(str(error)) from error
        return "read"

    def check_dockerfile(self, body):
        if not body or not body[0].startswith("FROM "):
            raise Fault("a Dockerfile begins with FROM")
        return "its first line"

    def check_text(self, _body):
        return "text"

    # ---- commands --------------------------------------------------------------------------------

    def check_sh(self, body):
        done = set()
        for line in command_lines(body):
            done.add(self.command(line))
        return ", ".join(sorted(done))

    check_bash = check_console = check_sh

    def command(self, line):
        if "./" in line and re.match(r"(cc|gcc|c\+\+|g\+\+) ", line):
            return self.compile_and_run(line)
        done = "checked"
        for part in re.split(r"\s*(?:&&|\|\||[|;])\s*", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                check_variable(words.pop(0).split("=")[0])
            if not words or words[0] in (".", "source", "./program"):
                continue
            name, arguments = words[0], words[1:]
            if name in TOOLS:
                done = self.tool(name, arguments)
            elif name == "meson":
                check_meson_command(arguments)
            elif "/" in name:
                check_script(name, arguments)
            elif name not in NOT_RUN:
                raise Fault(f"no such command is known here: {name}")
            if name == "sudo" and arguments and "/" in arguments[0]:
                check_script(arguments[0], arguments[1:])
        return done

    def compile_and_run(self, line):
        """cc NAME.c ...: the program that the page shows, or an example of that name."""
        source = re.search(r"\b[\w-]+\.c(pp)?\b", line).group(0)
        if not os.path.exists(os.path.join(self.folder, source)):
            if not self.program:
                raise Fault(f"the page has no program that could be {source}")
            shutil.copy(self.program, os.path.join(self.folder, source))
        self.run(line, shell=True)
        return "run"

    def help_of(self, tool):
        if tool not in self.helps:
            program = os.path.join(self.bin, tool)
            text = self.run([program, "--help"])
            if "--help-all" in text:
                text = self.run([program, "--help-all"])
            self.helps[tool] = text
        return self.helps[tool]

    def tool(self, name, arguments):
        for argument in arguments:
            option = argument.split("=")[0]
            if option.startswith("--") and option not in options_in(self.help_of(name)):
                raise Fault(f"{name} has no option {option}")
        if name == "clattn-run" and "FILE" not in " ".join(arguments):
            # On the page's device, or where there is none of that name on the best one.
            data = self.new_name("")
            shutil.copytree(ROOT + "/tests/data/minilm", data)
            try:
                self.run([os.path.join(self.bin, name), *arguments], cwd=data)
            except Fault as fault:
                if "--device" not in arguments or "fits none of" not in str(fault):
                    raise
                at = arguments.index("--device")
                self.run([os.path.join(self.bin, name), *arguments[:at], *arguments[at + 2 :]],
                         cwd=data)
            return "run"
        # Options and values are right where the device is what is found wrong.
        if name == "clattn-bench" and "--list" not in arguments:
            try:
                self.run([os.path.join(self.bin, name), *arguments, "--device", "no such device"])
            except Fault as fault:
                if "fits none of" not in str(fault):
                    raise
        return "options checked"


def options_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def command_lines(body):
    """The commands of a block without prompts, outputs and what is said about them."""
    prompts = any(line.startswith("$ ") for line in body)
    joined, text = [], ""
    for line in body:
        if prompts and not text and not line.startswith("$ "):
            continue
        line = line.removeprefix("$ ")
        line = text + line.strip() if text else line
        if line.endswith("\\"):
            text = line[:-1].rstrip() + " "
            continue
        joined.append(line)
        text = ""
    out = []
    for line in joined:
        # A line that goes on with what is said about the one above begins with blanks.
        if not line.strip() or line.startswith((" " * 4, "#")):
            continue
        line = re.split(r"\s#", line)[0]
        said = re.match(r"(\S.*?\S) {3,}\S", line)
        out.append(said.group(1) if said else line.strip())
    return [re.sub(r"\[(-[^\]]*)\]|\[[A-Z.]+\]|\.\.\.\]?", r"\1", line) for line in out]


def is_command(line):
    line = line.removeprefix("$ ")
    while re.match(r"[A-Z_]+=\S* ", line):
        line = line.split(" ", 1)[1]
    word = re.split(r"[\s(]", line)[0]
    return (word in TOOLS or word in NOT_RUN or word in ("meson", "cc", "c++", "gcc", "g++")
            or re.match(r"\./|(tools|tests|build|docs|packaging|python)/", word) is not None)


def check_variable(name):
    if not name.startswith("CLATTN_"):
        return
    for folder in ("src", "tests", "tools"):
        for path in glob.glob(f"{ROOT}/{folder}/**/*", recursive=True):
            # The pages' own test has names that nobody reads.
            here = os.path.dirname(path) == os.path.dirname(os.path.abspath(__file__))
            if path.endswith((".c", ".h", ".py", ".sh", ".build")) and not here:
                with open(path, encoding="utf-8") as file:
                    if name in file.read():
                        return
    raise Fault(f"nobody reads the variable {name}")


def meson_files():
    return "\n".join(read(path) for path in glob.glob("**/meson.build", root_dir=ROOT,
                                                      recursive=True) if "build/" not in path)


def check_meson_command(arguments):
    if arguments[0] == "setup":
        known = set(re.findall(r"^option\('(\w+)'", read("meson_options.txt"), re.M))
        known |= {"prefix", "libdir", "buildtype", "werror", "b_sanitize", "default_library",
                  "optimization", "c_args", "cross_file"}
        for argument in arguments:
            option = re.match(r"-D(\w+)=(\S*)|--(\w[\w-]*)", argument)
            name = option and (option.group(1) or option.group(3))
            if name and name not in known | {"cross-file", "native-file", "reconfigure", "wipe"}:
                raise Fault(f"there is no Meson option {name}")
    elif arguments[0] == "test":
        text = meson_files()
        for i, argument in enumerate(arguments):
            if argument == "--suite" and f"'{arguments[i + 1]}'" not in text:
                raise Fault(f"there is no suite {arguments[i + 1]}")
        names = [a for i, a in enumerate(arguments[1:]) if not a.startswith("-") and
                 arguments[i] not in ("-C", "--suite")]
        for name in names:
            if not re.search(rf"(test|benchmark)\('{name}'", text) and name.split()[0] not in text:
                raise Fault(f"there is no test {name}")
    elif arguments[0] not in ("install", "compile", "configure", "dist"):
        raise Fault(f"meson {arguments[0]} is not known here")


def check_script(name, arguments):
    """A program of this repository: the file, or the source of what is built, and its options."""
    path = name.removeprefix("./")
    built = re.match(r"build(?:/\w+)?/tests/(?:fuzz/)?(\w+)$", path)
    if built:
        name = built.group(1).removeprefix("fuzz_")
        if not glob.glob(f"{ROOT}/tests/**/{name}*.[cp]*", recursive=True):
            raise Fault(f"there is no test program {built.group(1)}")
        return
    if re.match(r"build/.*tools/clattn-\w+$", path):
        path = "tools/" + os.path.basename(path) + ".c"
    if path.startswith(("build/", "env/", "/", "..", "PREFIX/", "$")):
        return
    if not os.path.exists(os.path.join(ROOT, path)):
        raise Fault(f"there is no {path}")
    text = read(path) if os.path.isfile(os.path.join(ROOT, path)) else ""
    if "argparse" in text:
        text += subprocess.run([sys.executable, os.path.join(ROOT, path), "--help"], check=False,
                               capture_output=True, text=True).stdout
    for argument in arguments:
        if argument.startswith("--") and argument.split("=")[0] not in text and text:
            raise Fault(f"{path} has no option {argument}")
        if path == "tools/test_all.sh" and not argument.startswith("-"):
            if not re.search(rf"\b{re.escape(argument)}\b", text):
                raise Fault(f"{path} has no step {argument}")


# ---- tables of tools and variables ---------------------------------------------------------------


def reference_of_tools():
    """The page that has the tools' options and the variables, and its name."""
    name = "docs/tools.md" if os.path.exists(os.path.join(ROOT, "docs/tools.md")) else "README.md"
    return name, read(name)


def check_option_tables(checker):
    """The tables under the tools' headings have the options of --help."""
    name, text = reference_of_tools()
    faults = [f"{name}: {tool} has no section" for tool in TOOLS
              if not re.search(rf"^##+ {tool}$", text, re.M)]
    for section in re.split(r"^##+ ", text, flags=re.M)[1:]:
        tool = section.split("\n")[0].strip()
        if tool not in TOOLS:
            continue
        rows = re.findall(r"^\| (`-.*?) \| ", section, re.M)
        if not rows:
            faults.append(f"{name}: {tool} has no table of options")
            continue
        named = options_in(" ".join(rows))
        known = options_in(checker.help_of(tool)) - {"--help", "--help-all", "--version"}
        for option in sorted(named - known):
            faults.append(f"{name}: {tool} has no option {option}")
        for option in sorted(known - options_in(section)):
            faults.append(f"{name}: {option} of {tool} is missing")
    return faults


def check_variable_table():
    """The table of variables has those that the library reads."""
    name, text = reference_of_tools()
    table = text.split("\n## Environment")[1].split("\n## ")[0]
    named = set(re.findall(r"`(CLATTN_\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    known = set()
    for path in glob.glob(ROOT + "/src/**/*.c", recursive=True):
        with open(path, encoding="utf-8") as file:
            known.update(re.findall(r'"(CLATTN_(?!FEATURE|ERR)[A-Z_]+)"', file.read()))
    return ([f"{name}: nobody reads {variable}" for variable in sorted(named - known)] +
            [f"{name}: {variable} is missing" for variable in sorted(known - named)])


def check_examples(checker):
    """Each program of examples/ is in the table of its page, and prints what that says."""
    text = read("examples/README.md")
    rows = re.findall(r"^\| \[(\S+)\]\(\S+\) \| [^|]* \| `([^`]*)` \|", text, re.M)
    files = {os.path.basename(path) for path in glob.glob(ROOT + "/examples/*.c*")}
    faults = [f"examples/README.md: {name} is missing" for name in files - {row[0] for row in rows}]
    for name, printed in rows:
        source = read("examples/" + name)
        compiler = ["g++", "-std=c++17"] if name.endswith(".cpp") else ["gcc", "-std=c11"]
        command = [os.path.join(checker.folder, "example")]
        if "mpi.h" in source:
            if not shutil.which("mpicc") or not shutil.which("mpirun"):
                continue
            compiler = ["mpicc", "-std=c11"]
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *command]
        elif "opencl.hpp" in source and not os.path.exists("/usr/include/CL/opencl.hpp"):
            continue
        libraries = ["-lOpenCL"] if "opencl.h" in source else []
        try:
            checker.run([*compiler, name, *checker.flags, *libraries, "-lm", "-o", "example"])
            lines = checker.run(command).split("\n")
        except Fault as fault:
            faults.append(f"examples/{name}: {fault}")
            continue
        pattern = ".*".join(re.escape(part) for part in printed.split("..."))
        if not any(re.fullmatch(pattern, line.strip()) for line in lines):
            faults.append(f"examples/{name} printed {lines} and not {printed}")
    return faults


# ---- all of it -----------------------------------------------------------------------------------


def check_page(checker, path, tell, text=None):
    faults, count = [], 0
    text = read(path) if text is None else text
    checker.program, checker.session = None, ""
    for line, kind, body in sorted(blocks(text), key=lambda block: block[1] is None):
        if kind is None:
            kind = "sh" if body and is_command(body[0]) else "text"
            if kind == "text" and any(re.match(r"\S+ (.* )?--[a-z]+[ =]", row) for row in body):
                faults.append(f"{path}:{line}: is this a command? {body[0]}")
        check = getattr(checker, "check_" + (kind.replace(" ", "_") or "?"), None)
        count += 1
        try:
            if not check:
                raise Fault(f"a block of no known kind: {kind!r}")
            said = check(body)
        except Fault as fault:
            faults.append(f"{path}:{line}: {fault}")
            said = "FAULT"
        if tell:
            print(f"{path}:{line}: {kind}: {said}")
    for tool, rest in re.findall(r"`(clattn-(?:probe|run|bench|tune)) ([^`]*--[^`]*)`", text):
        for option in sorted(options_in(rest) - options_in(checker.help_of(tool))):
            faults.append(f"{path}: {tool} has no option {option}")
    return faults, count


SELF_TEST = [
    ("```c fragment\nclattn_attention_dest desc2;\n```\n", "clattn_attention_dest"),
    ("```c\ncall.batch = 1;\n```\n", "call"),
    ("```c\nint main(void) { return 3; }\n```\n", "exit status 3"),
    ('```c\n#include <stdio.h>\nint main(void) { puts("success: 1"); return 0; }\n'
     "// success: 2\n```\n", "and not success: 2"),
    ("```python\nif True print(1)\n```\n", "invalid syntax"),
    ("```cmake\nfind_package(clattn 99 REQUIRED)\n```\n", "exit status"),
    ("```meson\ndependency('clatnn')\n```\n", "exit status"),
    ("```ini\nno section\n```\n", "section"),
    ("```json\n{,}\n```\n", "property name"),
    ("```\nwhat is this\n```\n", "no known kind"),
    ("    clattn-bench --no-such-option\n", "no option --no-such-option"),
    ("    clattn-bench --shape 1,2\n", "--shape"),
    ("    clattn-run -q q.npy -k k.npy -v v.npy --compare q.npy --tolerance 1e-9\n",
     "exit status 1"),
    ("    tools/no_such_tool.sh\n", "there is no tools/no_such_tool.sh"),
    ("    tools/test_all.sh nostep\n", "no step nostep"),
    ("    meson setup build -Dnosuch=1\n", "no Meson option nosuch"),
    ("    meson test -C build --suite nosuch\n", "no suite nosuch"),
    ("    CLATTN_NO_SUCH=1 clattn-probe\n", "CLATTN_NO_SUCH"),
    ("Use `clattn-bench --nosuch`.\n", "no option --nosuch"),
    ("    frobnicate --all 3\n", "is this a command"),
    ("    build/tests/test_nosuch\n", "no test program test_nosuch"),
]


def self_test(checker):
    wrong = 0
    for text, expected in SELF_TEST:
        faults, _ = check_page(checker, "self-test", False, text)
        if len(faults) != 1 or expected not in faults[0]:
            print(f"{text}{faults}: not as expected: {expected}")
            wrong += 1
    print(f"{len(SELF_TEST)} faults put in, {wrong} not found as expected")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--python")
    parser.add_argument("--only", action="append", help="a page, from the root of the repository")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true", help="faults in pages are found")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checker = Checker(os.path.abspath(arguments.prefix), arguments.python, folder)
        if arguments.self_test:
            return self_test(checker)
        faults, count = [], 0
        for path in arguments.only or pages():
            found, blocks_of_page = check_page(checker, path, arguments.list)
            faults += found
            count += blocks_of_page
        if not arguments.only or "examples/README.md" in arguments.only:
            faults += check_examples(checker)
        if not arguments.only or reference_of_tools()[0] in arguments.only:
            faults += check_option_tables(checker) + check_variable_table()
    for fault in faults:
        print(fault)
    print(f"{count} blocks, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
