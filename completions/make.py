#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the completions of a tool for bash, zsh and fish from the tool's own sources: the table of
options that the parser has, the text of --help-all, and the lists of words that values are checked
against. An option that the help text does not have, or that only it has, ends the build.

    make.py TOOLS_FOLDER TOOL BASH ZSH FISH    writes three files; TOOL is run, probe, bench or tune
"""
import pathlib
import re
import sys
from dataclasses import dataclass, field

# The sources that have a tool's table, and help text or messages.
SOURCES = {
    "run": ["run/help.c", "run/options.c"],
    "probe": ["probe/help.c", "clattn-probe.c", "probe/cases.c"],
    "bench": ["bench/help.c", "bench/options.c", "bench/features.c"],
    "tune": ["tune/help.c", "tune/options.c"],
}
SHARED = ["lib/session.c", "lib/dtype.c"]

# Where the words of a value stand: the name of an array of words or of rows that begin with one, or
# the text of the message about a wrong word up to its list.
WORDS = {
    "--layout": "tool_layout_words",
    "--align": "tool_align_words",
    "--dtype": "tool_float_words",
    "--kv-dtype": "tool_dtype_words",
    "--bias-dtype": "tool_float_words",
    "--kernel": "tool_kernel_words",
    "--precision": "tool_precision_words",
    "--softmax": "tool_softmax_words",
    "--self-test": "probe_level_words",
}
WORDS_OF_TOOL = {
    ("run", "--causal"): "tool_align_words",
    ("run", "--algo"): "tool_algo_words",
    ("bench", "--algo"): "family[]",
    ("tune", "--algo"): "is none of auto",
    ("bench", "--ratio"): "} words[]",
    ("bench", "--sweep"): "does not begin with ",
}
# The first word of these is not for users.
LATER_WORDS = ("tool_kernel_words", "tool_softmax_words")
HIDDEN = ("--child",)  # how clattn-probe starts itself

# Where the first clause of the help text does not do alone.
ABOUT = {
    "-q": "queries, .npy",
    "-k": "keys, .npy",
    "-v": "values, .npy",
    "-o": "output file",
    "--algo": "algorithm",
    "--alibi": "slopes of ALiBi",
    "--align": "where queries stand when there are more or fewer keys",
    "--bias-dtype": "type of the bias",
    "--case": "a case of the list that the tests share",
    "--cu-seqlens-q": "where the queries of packed sequences begin",
    "--cu-seqlens-kv": "where the keys of packed sequences begin",
    "--device": "index of a device, cpu, or part of a name",
    "--dtype": "type of Q, K, V and O",
    "--kernel": "shape of the OpenCL kernels",
    "--kv-dtype": "type of K and V alone",
    "--kv-lens": "each sequence has its own number of keys",
    "--layout": "order of the axes",
    "--lse": "log-sum-exp of each query, output",
    "--mask": "boolean mask, true = visible",
    "--page-table": "pages of each sequence",
    "--ratio": "what features cost",
    "--self-test": "also runs cases of the test suite",
    "--shape": "problem sizes",
    "--sinks": "a score for each head that has no value",
    "--softmax": "softmax of --algo unfused",
    "--splits": "parts of the keys, with --algo split_kv",
    "--sweep": "values of a length, the head dimension or the batch",
    "--tolerance": "error that passes with --compare",
    "--window": "extra keys on each side of the query's own position",
}


@dataclass
class Option:
    names: list  # "-o", "--output"
    arg: str     # NONE, REQUIRED, OPTIONAL
    repeatable: bool
    value: str = ""  # FILE, N, ...
    about: str = ""
    words: list = field(default_factory=list)
    many: bool = False  # several words with commas between them

    @property
    def is_file(self):
        return self.value.startswith("FILE")


# ---- reading the sources -----------------------------------------------------------------------

def literals(text):
    """Every run of adjacent string literals as one string."""
    one = r'"(?:[^"\\\n]|\\.)*"'
    runs = re.findall(rf"{one}(?:\s*{one})*", re.sub(r"(?m)^\s*#include.*$|//.*$", "", text))
    return ["".join(s.replace(r"\n", "\n").replace(r"\"", '"') for s in re.findall(
        r'"((?:[^"\\\n]|\\.)*)"', run)) for run in runs]


def parser_table(text):
    """Options of the table that getopt_long() is given."""
    rows = re.findall(r'\[\w+\] = \{(NULL|"[\w-]+"), (0|\'\w\'), TOOL_ARG_(\w+), (true|false)\}',
                      text)
    options = []
    for name, letter, arg, repeatable in rows:
        names = ([] if letter == "0" else ["-" + letter[1]]) + \
                ([] if name == "NULL" else ["--" + name.strip('"')])
        if names[-1] not in HIDDEN:
            options.append(Option(names, arg, repeatable == "true"))
    return options


# "-o, --output FILE", "--sweep KEY=FROM:TO, --sweep KEY=N,N,...", "--causal[=ALIGN]"
HELP_OPTION = re.compile(r"(--?[\w-]+)(\[=[^\]]+\]| [A-Z]\S*?(?=,? |,?$))?(?:, (?=-)|(?= )|$)")


def help_options(text):
    """(names with their values, description) of each entry of a help text."""
    entries = []
    for line in text.split("\n"):
        if re.match(r"  --?\w", line):
            heads, at = [], 2
            while match := HELP_OPTION.match(line, at):
                value = (match[2] or "").strip()
                heads.append((match[1], value[2:-1] if value.startswith("[=") else value))
                at = match.end()
                if not match[0].endswith(", "):
                    break
            entries.append((heads, [line[at:].strip()]))
        elif not line.strip():
            entries.append(([], []))
        elif entries and line.startswith("      "):
            entries[-1][1].append(line.strip())
    return [(heads, " ".join(words).strip()) for heads, words in entries if heads]


def short(text):
    """The first clause of a description."""
    text = re.split(r"; |\. |, \[| \(|, (?=which |the |so |by )", text)[0]
    while len(text) > 72:
        text = text.rpartition(", " if ", " in text[20:] else " ")[0]
    return text.strip(" .,:")


def words_of(tool, option, text, strings):
    """The words that an option's value is one of."""
    where = WORDS_OF_TOOL.get((tool, option.names[-1])) or WORDS.get(option.names[-1])
    if not where:
        return []
    if where.endswith("_words"):
        array = re.search(rf"{where}\[\] = \{{(.*?)\}}", text, re.S)
        words = re.findall(r'"([^"]*)"', array[1])
        return words[1:] if where in LATER_WORDS else words
    if where.endswith("[]"):
        rows = text[text.index(where + " = {"):].partition("\n};")[0]
        rows = re.findall(r'\{"([\w-]+)"(.*)\}', rows)
        words = [word + ("=" if "NEEDED" in rest else "") for word, rest in rows]
        return (["all"] if where == "family[]" else []) + words
    message = next(s for s in strings if where in s)
    listed = message[message.index(where):].replace("is none of ", "").replace(
        "does not begin with ", "").replace(" or ", ", ")
    return [re.sub(r"=[A-Z].*", "=", word.strip()) for word in listed.split(",")]


def read_options(folder, tool):
    """All options of a tool, in the order of its help text."""
    own = "\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES[tool])
    text = own + "\n".join((folder / name).read_text(encoding="utf-8") for name in SHARED)
    strings = literals(text)
    # The text of --help-all is in parts.
    parts = text[text.index(f"{tool}_help_all[] = {{"):].partition("NULL};")[0]
    helped = help_options("".join(literals(parts.replace('",\n', '"\n'))))
    table = {name: option for option in parser_table(own) for name in option.names}
    order = []
    for heads, about in helped:
        different = list(dict.fromkeys(name for name, _ in heads if len(name) > 2)) or [heads[0][0]]
        parts = re.split(r", (?![^(]*\))", about)
        for name, value in heads:
            option = table.get(name)
            if not option:
                sys.exit(f"clattn-{tool}: the help text has {name}, the parser has not")
            several = len(different) > 1 and len(parts) == len(different)
            option.value = option.value or value
            about_it = parts[different.index(name)] if several else about
            option.about = option.about or ABOUT.get(name) or short(about_it)
            option.many = option.many or value.endswith(",...") and "=" not in value
            if option not in order:
                order.append(option)
    for option in table.values():
        if option not in order:
            sys.exit(f"clattn-{tool}: the help text lacks {option.names[-1]}")
        if bool(option.value) != (option.arg != "NONE"):
            sys.exit(f"clattn-{tool}: help text and parser differ about {option.names[-1]}'s value")
        option.words = words_of(tool, option, text, strings)
    return order


# ---- bash --------------------------------------------------------------------------------------

BASH = """\
# SPDX-License-Identifier: Apache-2.0
# Completion of @TOOL@ for bash. Made from its sources.
# shellcheck shell=bash
@FUNCTION@()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local given=" ${COMP_WORDS[*]:1:COMP_CWORD-1} " option equals='' words='' word=''
    COMPREPLY=()
    # "=" is a word of its own where a line is cut.
    if [[ $cur == "=" ]]; then
        option=$prev equals=yes cur=''
    elif [[ $prev == "=" ]]; then
        option=${COMP_WORDS[COMP_CWORD-2]} equals=yes
    else
        option=$prev
    fi
    case $option in
@VALUES@
    esac
    if [[ $equals ]]; then
        return
    fi
    for word in @OPTIONS@; do
        [[ $given == *" ${word%=} "* && " @REPEATABLE@ " != *" $word "* ]] || words+=" $word"
    done
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -F @FUNCTION@ @TOOL@
"""
BASH_WORDS = """\
        mapfile -t COMPREPLY < <(compgen -W "@WORDS@" -- "$cur")"""
BASH_NO_SPACE = """
        [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace"""
BASH_MANY = """\
        [[ $cur != *,* ]] || word=${cur%,*},
        mapfile -t COMPREPLY < <(compgen -P "$word" -W "@WORDS@" -- "${cur##*,}")
        compopt -o nospace"""
BASH_FILES = """\
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")"""
CASES = '$(@TOOL@ --list 2>/dev/null | sed -n "2,\\$s/ .*//p")'


def bash_value(tool, option):
    if option.is_file:
        return BASH_FILES
    words = CASES.replace("@TOOL@", "clattn-" + tool) if option.names == ["--case"] else \
        "cpu" if option.value == "SEL" else " ".join(option.words)
    body = BASH_MANY if option.many else BASH_WORDS
    if any(word.endswith("=") for word in option.words) and not option.many:
        body += BASH_NO_SPACE
    return body.replace("@WORDS@", words) if words else ""


def bash(tool, options):
    bodies = {}  # options by what completes their values
    for option in options:
        body = bash_value(tool, option)
        if option.arg == "OPTIONAL" and body:
            body = body.replace("\n", "\n    ")
            body = f"        if [[ $equals ]]; then\n    {body}\n        fi\n"
        elif option.arg == "REQUIRED":
            body += "\n" * bool(body) + "        return\n"
        if option.arg != "NONE" and body:
            bodies.setdefault(body, []).extend(option.names)
    values = [f"    {'|'.join(names)})\n{body}        ;;" for body, names in bodies.items()]
    names = [name + ("=" if option.arg == "OPTIONAL" and with_value else "")
             for option in options for name in option.names
             for with_value in ([False, True] if option.arg == "OPTIONAL" else [False])]
    repeatable = [name for option in options if option.repeatable for name in option.names]
    text = BASH.replace("@VALUES@", "\n".join(values)).replace("@OPTIONS@", " ".join(names))
    return text.replace("@REPEATABLE@", " ".join(repeatable))


# ---- zsh ---------------------------------------------------------------------------------------

def zsh_quoted(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_action(tool, option):
    if option.names == ["--case"]:
        return "{compadd -- ${${(f)\"$(clattn-" + tool + " --list 2>/dev/null)\"}[2,-1]%% *}}"
    if option.is_file:
        return "_files"
    if option.value == "SEL":
        return "(cpu)"
    if option.many:
        return "_sequence compadd - " + " ".join(option.words)
    return "(" + " ".join(option.words) + ")" if option.words else " "


def zsh(tool, options):
    specs = []
    for option in options:
        for name in option.names:
            spec = "*" if option.repeatable else ""
            if len(option.names) > 1 and not option.repeatable:
                spec = f"({' '.join(option.names)})"
            spec += name
            if option.arg == "OPTIONAL":
                spec += "=-"
            elif option.arg == "REQUIRED":
                spec += "=" if name.startswith("--") else ""
            spec += f"[{zsh_quoted(option.about)}]"
            if option.arg != "NONE":
                spec += ("::" if option.arg == "OPTIONAL" else ":") + zsh_quoted(option.value)
                spec += ":" + zsh_action(tool, option)
            specs.append(f"    '{spec}'")
    return (f"#compdef clattn-{tool}\n# SPDX-License-Identifier: Apache-2.0\n"
            f"# Completion of clattn-{tool} for zsh. Made from its sources.\n"
            "_arguments \\\n" + " \\\n".join(specs) + "\n")


# ---- fish --------------------------------------------------------------------------------------

def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(tool, options):
    lines = [f"# SPDX-License-Identifier: Apache-2.0\n# Completion of clattn-{tool} for fish. "
             "Made from its sources.", f"complete -c clattn-{tool} -f"]
    for option in options:
        line = f"complete -c clattn-{tool}"
        for name in option.names:
            line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
        if option.arg == "REQUIRED":
            line += " -r -F" if option.is_file else " -x"
        words = "cpu" if option.value == "SEL" else " ".join(option.words)
        if option.names == ["--case"]:
            words = f'(clattn-{tool} --list 2>/dev/null | string replace -r " .*" "")[2..]'
        if option.many:
            words = f"(__fish_append , {words})"
        if words:
            line += " -a " + fish_quoted(words)
        lines.append(line + " -d " + fish_quoted(option.about))
    return "\n".join(lines) + "\n"


def main(folder, tool, *targets):
    options = read_options(pathlib.Path(folder), tool)
    for target, make in zip(targets, (bash, zsh, fish)):
        text = make(tool, options)
        text = text.replace("@FUNCTION@", "_clattn_" + tool).replace("@TOOL@", "clattn-" + tool)
        pathlib.Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
