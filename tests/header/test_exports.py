# SPDX-License-Identifier: Apache-2.0
"""The shared library exports the functions that the public headers declare, every one of them and
nothing else; the archive, whose names meet those of an application, has none but clattn's; and
nothing is linked but the C library, its maths, threads and the program loader.

Usage: test_exports.py NM READELF SHARED_LIBRARY ARCHIVE HEADER...

READELF is objdump where the library is one of Windows.
"""
import pathlib
import re
import subprocess
import sys

LIBRARIES = (r"(libc|libm|libgomp|libomp|libpthread|libdl|ld-linux[-\w]*|ld64)\.so[.\d]*|"
             r"(kernel32|msvcrt|ucrtbase|api-ms-win-crt-[-\w]*|libgomp-1|libwinpthread-1|"
             r"libgcc_s_\w+-1)\.dll")


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# Names that compilers make, merged where several objects have them; no application can have them.
COMPILERS = r"\.refptr\.|__x86\.get_pc_thunk\."


def defined(nm, *arguments):
    lines = output_of(nm, "--defined-only", "--extern-only", "--format=posix", *arguments)
    return {words[0] for words in map(str.split, lines.splitlines()) if len(words) > 2}


def declared(text):
    """Names of the functions behind CLATTN_API in a header."""
    code = re.sub(r"//.*|^[ \t]*#.*", "", text, flags=re.MULTILINE)
    return set(re.findall(r"\bCLATTN_API\b[^();]*?(\w+)\s*\(", code))


def faults_of(wanted, exported, archive, linked):
    faults = [f"{name} is declared and not exported" for name in sorted(wanted - exported)]
    faults += [f"{name} is exported and not declared" for name in sorted(exported - wanted)]
    faults += [f"{name} of the archive may be an application's name" for name in sorted(archive)
               if not re.match(r"(clattn|cla)_", name) and not re.match(COMPILERS, name)]
    faults += [f"{name} is linked" for name in sorted(linked)
               if not re.fullmatch(LIBRARIES, name, re.IGNORECASE)]
    return faults


def of_windows(objdump, library):
    """Exported names and linked libraries of a DLL."""
    text = output_of(objdump, "-p", library)
    table = text.partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    return (set(re.findall(r"^\s*\[ *\d+\].*\s(\w+)$", table, flags=re.MULTILINE)),
            re.findall(r"DLL Name: (\S+)", text))


def check_the_check():
    """Each kind of fault is found."""
    text = ("#define CLATTN_API x(y)\n// CLATTN_API void clattn_comment(void);\n"
            "CLATTN_API const char *clattn_a(int x);\nCLATTN_API clattn_status\n"
            "    clattn_b(const void *f, void (*g)(int));\nvoid clattn_inline(void);\n")
    names = {"clattn_a", "clattn_b"}
    assert declared(text) == names, declared(text)
    made = {"cla_x", ".refptr.__imp_x", "__x86.get_pc_thunk.bx"}
    assert not faults_of(names, names, made, {"libm.so.6", "libgomp.so.1"})
    for faulty in [(names, {"clattn_a"}, {"cla_x"}, set()),
                   (names, names | {"cla_x"}, {"cla_x"}, set()),
                   (names, names, {"tile"}, set()), (names, names, {"__x86.tile"}, set()),
                   (names, names, set(), {"libOpenCL.so.1"})]:
        assert len(faults_of(*faulty)) == 1, faulty


def main():
    nm, readelf, library, archive, *headers = sys.argv[1:]
    check_the_check()
    wanted = set().union(*(declared(pathlib.Path(header).read_text(encoding="utf-8"))
                           for header in headers))
    if library.endswith(".dll"):
        exported, linked = of_windows(readelf, library)
    else:
        linked = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of(readelf, "-d", library))
        exported = defined(nm, "--dynamic", library)
    names = defined(nm, archive)
    if not (wanted and exported and names and linked):
        print(f"{len(wanted)} declared, {len(exported)} exported, {len(names)} in the archive, "
              f"{len(linked)} linked: nothing is compared")
        return 1
    faults = faults_of(wanted, exported, names, linked)
    print("\n".join(faults))
    print(f"{len(exported)} functions are exported, {len(wanted)} declared")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
