#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-run: wrong use, bad input, outputs that cannot be written, failing devices."""
import os
import sys

from tool_case import CPU, INPUTS, PROGRAMS, Folder, attention, main, npy_bytes, size_of


class RunErrors(Folder):
    def bad(self, *args, **more):
        return self.run_bad(*args, "-o", "o.npy", *CPU, **more)

    def test_options(self):
        q = ["-q", "q.npy"]
        rest = ["-k", "k.npy", "-v", "v.npy"]
        self.run_bad(says=["-q"])
        self.bad(*rest, says=["option -q is missing"])
        self.bad(*q, "-v", "v.npy", says=["option -k is missing"])
        self.bad(*q, "-k", "k.npy", says=["option -v is missing"])
        self.run_bad(*INPUTS, *CPU, says=["nothing to do", "-o O.npy", "--lse L.npy", "--compare"])
        self.bad(*INPUTS, *q, says=["option -q is given twice"])
        self.bad(*INPUTS, "--causal", "--causal", says=["option --causal is given twice"])
        self.bad(*INPUTS, "--json", "--json", says=["option --json is given twice"])
        self.bad(*INPUTS, "extra", says=["unexpected argument extra"])
        self.bad(*INPUTS, "--causal", "top-left",
                 says=["unexpected argument top-left", "is given as --causal=top-left"])
        self.bad(*INPUTS, "--", says=["unexpected argument -o"])
        for option in ("--nonsense", "--nonsense=3", "-x", "--caus", "--lay=bhsd", "--tol=1", "-"):
            self.bad(*INPUTS, option, says=[option.split("=")[0]])
        self.run_bad(*rest, "-q", says=["option -q needs a value"])
        for option in ("-o", "--output", "--lse", "--scale", "--device", "--threads", "--mask",
                       "--bias", "--window", "--cu-seqlens-q", "--kv-dtype"):
            self.run_bad(*INPUTS, option, says=[f"option {option} needs a value"])
        self.run_bad(*INPUTS, "-o", "--lse", "x.npy", says=["-o needs a value, --lse"])
        self.run_bad(*INPUTS, "-o", "o.npy", "--output=p.npy", says=["--output is given twice"])
        self.run_bad("-q", "-k", "k.npy", says=["-q needs a value, -k"])
        for option in ("--json=1", "--help=x", "--version=1"):
            self.bad(*INPUTS, option, says=["takes no value"])
        for option in ("--lse=", "--device=", "--mask=", "--scale=", "--causal="):
            self.bad(*INPUTS, option, says=[option[:-1], "empty"])

    def test_values(self):
        self.bad(*INPUTS, "--window=5", says=["-1 up, as in 4,0"])
        for option, values in (
                ("--scale", ("x", "1x", " 1", "1 ", "nan", "inf", "-inf", "1e39", "1e999", "1,5")),
                ("--tolerance", ("x", "-1", "nan", "inf", "1e-5 ")),
                ("--threads", ("0", "-1", "x", "1.5", "1x", " 1", "+", "99999999999999999999",
                               "5000")),
                ("--runs", ("0", "-3", "x", "1e3", "2147483648")),
                ("--layout", ("BHSD", "bhsd ", "sbhd", "0")),
                ("--algo", ("Fused", "fast", "1")),
                ("--kernel", ("auto", "Vector", "1")),
                ("--align", ("right", "topleft")),
                ("--causal", ("yes", "top_left", "1")),
                ("--window", ("1", "1,", ",1", "-2,0", "0,-2", "1,2,3", "1;2", "x,1", "1, 2",
                              "99999999999,0")),
                ("--softcap", ("x", "-1", "nan", "inf", "1e39", "1e-50")),
                ("--dtype", ("int8", "F16", "fp16", "half")),
                ("--kv-dtype", ("i8", "uint8")),
                ("--bias-dtype", ("int8", "x"))):
            for value in values:
                self.bad(*INPUTS, f"{option}={value}", says=[f"option {option}: '{value}'"])
        self.bad(*INPUTS, "--causal=top-left", "--align=bottom-right", says=["contradict"])
        self.bad(*INPUTS, "--tolerance", "1", says=["--tolerance needs --compare"])
        self.bad(*INPUTS, "--bias-dtype", "f16", says=["--bias-dtype needs --bias"])
        self.bad(*INPUTS, "--page-table", "x", says=["--page-table needs --kv-lens"])
        self.bad(*INPUTS, "--page-table", "x", "--kv-lens", "x", "--cu-seqlens-kv", "x",
                 says=["--cu-seqlens-kv does not go with --page-table"])
        for algo in ("host", "reference"):
            self.bad(*INPUTS, "--kernel", "group", "--algo", algo, says=["--kernel", algo])
        # The last alternatives that are legal.
        self.run_ok(*INPUTS, "-o", "o.npy", *CPU, "--causal=top-left", "--align=top-left",
                    "--threads=1", "--runs=1", "--scale=1e38", "--algo=auto")

    def test_devices(self):
        self.run_bad(*INPUTS, "-o", "o.npy", "--device", "no such device",
                     says=["--device no such device"])
        self.run_bad(*INPUTS, "-o", "o.npy", "--device", "9999", says=["9999"])
        self.run_bad(*INPUTS, "-o", "o.npy", says=["no such device"],
                     env={"CLATTN_DEVICE": "no such device"})
        self.bad(*INPUTS, "--algo", "fused", says=["--algo fused"])
        self.bad(*INPUTS, "--kernel", "vector", says=["--kernel vector"])

    def test_files_that_are_no_arrays(self):
        good = npy_bytes(self.Q_SHAPE, self.q)
        os.mkdir(self.path("folder.npy"))
        for name, data, says in (
                ("empty.npy", b"", "not a .npy file"),
                ("text.npy", b"1 2 3\n", "not a .npy file"),
                ("zip.npz", b"PK\3\4" + bytes(100), "not a .npy file"),
                ("cut.npy", good[:5], "not a .npy file"),
                ("cut.npy", good[:40], "header: the file is truncated"),
                ("cut.npy", good[:128], "data: the file is truncated"),
                ("cut.npy", good[:-1], "data: the file is truncated"),
                ("long.npy", good + b"\0", "data:"),
                ("v4.npy", good[:6] + b"\4" + good[7:], "version: it is 4.0"),
                ("f8.npy", npy_bytes(self.Q_SHAPE, self.q, "<f8"), "dtype: it is '<f8'"),
                ("be.npy", npy_bytes(self.Q_SHAPE, self.q, ">f4"), "dtype: it is big-endian"),
                ("bool.npy", npy_bytes(self.Q_SHAPE, [1] * len(self.q), "|b1"),
                 "dtype: it is '|b1'"),
                ("fortran.npy", npy_bytes(self.Q_SHAPE, self.q, order="True"),
                 "fortran_order: it is True"),
                ("neg.npy", npy_bytes((), self.q, tuple_text="(2, -4, 5, 12)"), "shape:"),
                ("huge.npy", npy_bytes((), self.q, tuple_text="(2147483647, 2147483647, 9, 12)"),
                 "shape: the array is too large"),
                ("more.npy", npy_bytes((), self.q, tuple_text="(2000000, 4, 5, 12)"),
                 "data: the file is truncated"),
                ("header.npy", b"\x93NUMPY\2\0\xff\xff\xff\xff" + good[10:], "header: its length"),
                ("dims.npy", npy_bytes(self.Q_SHAPE[1:], self.q[:240]),
                 "shape: it has 3 axes, but 4")):
            self.save_bytes(name, data)
            for option, rest in (("-q", ["-k", "k.npy", "-v", "v.npy"]),
                                 ("-k", ["-q", "q.npy", "-v", "v.npy"]),
                                 ("-v", ["-q", "q.npy", "-k", "k.npy"]),
                                 ("--compare", INPUTS)):
                self.bad(*rest, option, name, says=[f"{option} {name}: ", says])
        for name, says in (("missing.npy", "No such file"), ("folder.npy", "it is a directory"),
                           ("no/such/folder.npy", "No such file"), ("q.npy/x", "Not a directory"),
                           ("x" * 300, "too long")):
            self.bad("-q", name, "-k", "k.npy", "-v", "v.npy", says=[f"-q {name}: ", says])
        self.bad("-q", "new\nline.npy", "-k", "k.npy", "-v", "v.npy", says=["new?line.npy"])

    def test_unreadable_file(self):
        os.chmod(self.path("k.npy"), 0)
        if os.access(self.path("k.npy"), os.R_OK):
            os.unlink(self.path("k.npy"))  # root reads everything
        done = self.run_program(PROGRAMS.run, *INPUTS, "-o", "o.npy", *CPU)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.said, r"\Aclattn-run: -k k.npy: it cannot be opened: [^\n]+\n\Z")

    def test_shapes(self):
        def case(name, shape, says):
            self.save("bad.npy", shape, [0.0] * size_of(shape))
            args = [x if x != name + ".npy" else "bad.npy" for x in INPUTS]
            self.bad(*args, says=["bad.npy", *says])
        case("q", (2, 0, 5, 12), ["-q", "shape (2, 0, 5, 12)", "head"])
        case("q", (2, 4, 5, 0), ["-q", "shape (2, 4, 5, 0)", "dim"])
        case("k", (2, 0, 9, 12), ["-k", "head"])
        case("k", (1, 2, 9, 12), ["-k", "batch"])
        case("k", (2, 3, 9, 12), ["-k", "shape (2, 3, 9, 12)", "do not divide", "-q, (2, 4, 5, 12)",
                                 "--layout bshd [batch, sequence, heads, dim]"])
        case("k", (2, 8, 9, 12), ["-k", "do not divide"])
        case("k", (2, 2, 9, 11), ["-k", "dim"])
        case("v", (2, 2, 8, 12), ["-v", "shape (2, 2, 8, 12)", "sequence"])
        case("v", (2, 1, 9, 12), ["-v", "heads"])
        case("v", (1, 2, 9, 12), ["-v", "batch"])
        case("v", (2, 2, 9, 0), ["-v", "dim"])
        self.save("want.npy", (2, 4, 5, 11), [0.0] * 440)
        self.bad(*INPUTS, "--compare", "want.npy",
                 says=["--compare want.npy: shape (2, 4, 5, 11)", "(2, 4, 5, 12)"])
        for name in "qkv":
            shape = (1, 1, 2, 577)
            self.save(name + ".npy", shape, [0.0] * size_of(shape))
        self.bad(*INPUTS, says=["577", "q.npy"])

    def test_mask(self):
        ok = (2, 4, 5, 9)
        for shape, says in (((3, 1, 1, 9), "axis 0 (batch) must be 1 or 2"),
                            ((1, 2, 1, 9), "axis 1 (heads_q) must be 1 or 4"),
                            ((1, 1, 4, 9), "axis 2 (len_q) must be 1 or 5"),
                            ((1, 1, 1, 8), "axis 3 (len_kv) must be 1 or 9"),
                            ((1, 1, 0, 9), "axis 2")):
            self.save("m.npy", shape, [1] * size_of(shape), descr="|b1")
            self.bad(*INPUTS, "--mask", "m.npy", says=["--mask m.npy: shape (", says])
        self.save("m.npy", (1, 9), [1] * 9, descr="|b1")
        self.bad(*INPUTS, "--mask", "m.npy",
                 says=["--mask m.npy: shape: it has 2 axes", "[1, 1, len_q, len_kv] serves all"])
        self.save("m.npy", ok, [1.0] * size_of(ok))
        self.bad(*INPUTS, "--mask", "m.npy", says=["--mask m.npy: dtype: it is '<f4', but bool",
                                                 "added to the scores are --bias"])

    def test_outputs(self):
        os.mkdir(self.path("folder"))
        os.symlink("nowhere", self.path("dangling"))
        self.save("want.npy", self.Q_SHAPE, self.q)
        for option in ("-o", "--lse"):
            for name, says in (("no/such/o.npy", "folder cannot be used"),
                               ("folder", "it is a directory"), ("folder/", "directory"),
                               ("new/", "folder"), ("q.npy/o.npy", "Not a directory"),
                               ("dangling", "symbolic link"), ("x" * 300, "too long")):
                self.run_bad(*INPUTS, option, name, *CPU, says=[f"{option} {name}: ", says])
        self.run_bad(*INPUTS, "-o", "x.npy", "--lse", "./folder/../x.npy", *CPU, says=["same file"])
        self.run_bad(*INPUTS, "-o", "want.npy", "--compare", "want.npy", *CPU, says=["same file"])
        self.run_bad(*INPUTS, "-o", "q.npy", *CPU, says=["-o and -q", "same file"])
        self.run_bad(*INPUTS, "--lse", "./v.npy", *CPU, says=["--lse and -v", "same file"])
        self.run_bad(*INPUTS, "--lse", "want.npy", "--compare", "want.npy", *CPU,
                     says=["same file"])
        # Found before anything is computed: a bad folder wins over a device that does not exist.
        self.run_bad(*INPUTS, "-o", "no/such/o.npy", "--device", "no such device",
                     says=["no/such/o.npy"])
        if os.geteuid() != 0:
            os.chmod(self.path("folder"), 0o500)
            self.run_bad(*INPUTS, "-o", "folder/o.npy", *CPU, says=["not writable"])
            os.chmod(self.path("want.npy"), 0o400)
            self.run_bad(*INPUTS, "-o", "want.npy", *CPU, says=["not writable"])

    def test_failing_device(self):
        args = [*INPUTS, "-o", "o.npy", *CPU]
        for status, code in ((13, 3), (11, 3), (18, 3), (6, 2)):
            self.run_bad(*args, program=PROGRAMS.run_faulty, code=code,
                         env={"TOOL_TEST_FAULT": f"status:{status}"})
        self.save("want.npy", self.Q_SHAPE,
                  attention(self.Q_SHAPE, self.q, self.K_SHAPE, self.k, self.v)[0])
        for fault, code in (("add:17", 1), ("nan:17", 1), ("", 0)):
            done = self.run_program(PROGRAMS.run_faulty, *args, "--compare", "want.npy",
                                    env={"TOOL_TEST_FAULT": fault} if fault else {})
            self.assertEqual(done.returncode, code)
            self.assertIn("[0,0,1,5]" if code else "passed", done.stdout)


if __name__ == "__main__":
    main(sys.modules[__name__], [RunErrors])
