# SPDX-License-Identifier: Apache-2.0
"""What the tests of the tools share: .npy files made and read without NumPy, attention by its
definition, a folder for each test, and a runner that names every test.

Everything runs on the built-in CPU path, and on every OpenCL device that $CLATTN_TEST_EXPECT names,
which must then be there.
"""
import argparse
import fcntl
import math
import os
import pty
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

PROGRAMS = argparse.Namespace()  # paths by name: run, probe, ..., run_faulty, ..., data
DEVICES = []  # parts of the names of the OpenCL devices that this run expects
EXPECT = {"pocl": "portable computing language", "intel": "intel", "llvmpipe": "llvmpipe",
          "oclgrind": "oclgrind"}


def usual_signals():
    """For preexec_fn: who runs the tests in the background, or by nohup, has some ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


# ---- arrays: flat lists with a shape -----------------------------------------------------------

def size_of(shape):
    return math.prod(shape)


def npy_bytes(shape, values, descr="<f4", order="False", version=1, tuple_text=None):
    text = tuple_text or "(" + "".join(f"{n}, " for n in shape) + ")"
    head = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {text}, }}"
    prefix = 10 if version == 1 else 12
    head += " " * (-(prefix + len(head) + 1) % 64) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    code = {"<f4": "<%df", ">f4": ">%df", "<f8": "<%dd", "|b1": "%dB", "<f2": "<%de",
            "<u2": "<%dH", "<i4": "<%di", "<i8": "<%dq", ">i4": ">%di"}[descr]
    data = struct.pack(code % len(values), *values)
    return b"\x93NUMPY" + bytes([version, 0]) + length + head.encode() + data


def read_npy(path, descr="<f4"):
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\1\0", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    assert (10 + length) % 64 == 0, length
    head = eval(data[10:10 + length].decode(), {})  # the header is a Python literal
    assert head["descr"] == descr and head["fortran_order"] is False, head
    body = data[10 + length:]
    letter = {"<f4": "f", "<f2": "e", "<u2": "H"}[descr]
    assert len(body) == struct.calcsize(letter) * size_of(head["shape"])
    return head["shape"], list(struct.unpack(f"<{size_of(head['shape'])}{letter}", body))


def to_f32(values):
    return list(struct.unpack("<%df" % len(values), struct.pack("<%df" % len(values), *values)))


def to_f16(values):
    """Numbers rounded to float16."""
    return list(struct.unpack("<%de" % len(values), struct.pack("<%de" % len(values), *values)))


def bf16_bits(values):
    words = struct.unpack("<%dI" % len(values), struct.pack("<%df" % len(values), *values))
    return [(w + 0x7fff + (w >> 16 & 1)) >> 16 for w in words]


def from_bf16(bits):
    return list(struct.unpack("<%df" % len(bits),
                              struct.pack("<%dI" % len(bits), *(b << 16 for b in bits))))


def pattern(s, shape):
    """The pattern W_s of the reference cases, exact in float32."""
    return [(((13 * b + 29 * h + 17 * i + 3 * i * i + 7 * d + 5 * i * d + 11 * s) % 127) - 63) / 64
            for b in range(shape[0]) for h in range(shape[1])
            for i in range(shape[2]) for d in range(shape[3])]


def swap_axes(shape, values):
    """[b, h, i, d] -> [b, i, h, d]."""
    b, h, n, d = shape
    out = [values[((x * h + z) * n + y) * d + w]
           for x in range(b) for y in range(n) for z in range(h) for w in range(d)]
    return (b, n, h, d), out


def attention(q_shape, q, k_shape, k, v, scale=None, causal=None, mask=None, dim_v=None,
              softcap=None, bias=None, sinks=None):
    """O and LSE by the definition. causal: None or the offset; mask(b, h, i, j), what is added
    bias(b, h, i, j), a sink for each head, or None."""
    batch, heads, len_q, dim = q_shape
    heads_kv, len_kv = k_shape[1], k_shape[2]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    dim_v = dim_v or dim
    o, lse = [], []
    for b in range(batch):
        for h in range(heads):
            first = (b * heads_kv + h // (heads // heads_kv)) * len_kv
            base, base_v = first * dim, first * dim_v
            for i in range(len_q):
                row = q[((b * heads + h) * len_q + i) * dim:][:dim]
                keys = [j for j in range(len_kv)
                        if (causal is None or j <= i + causal) and (not mask or mask(b, h, i, j))]
                score = {j: scale * sum(x * y for x, y in zip(row, k[base + j * dim:]))
                         for j in keys}
                if softcap:
                    score = {j: softcap * math.tanh(x / softcap) for j, x in score.items()}
                if bias:
                    score = {j: x + bias(b, h, i, j) for j, x in score.items()}
                keys = [j for j in keys if score[j] != -math.inf]
                sink = sinks[h] if sinks else -math.inf
                top = max([score[j] for j in keys] + [sink])
                weight = {j: math.exp(score[j] - top) for j in keys}
                total = sum(weight.values()) + (math.exp(sink - top) if sink > -math.inf else 0)
                o += [sum(weight[j] * v[base_v + j * dim_v + d] for j in keys) / total
                      if total else 0.0 for d in range(dim_v)]
                lse.append(top + math.log(total) if total else -math.inf)
    return o, lse


class Folder(unittest.TestCase):
    """A test with a folder of its own and the usual three input files."""

    Q_SHAPE, K_SHAPE = (2, 4, 5, 12), (2, 2, 9, 12)

    # Starting a driver takes longer than most of what is tested on the CPU path.
    drivers = False

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="clattn-test-")
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.q = pattern(0, self.Q_SHAPE)
        self.k = pattern(1, self.K_SHAPE)
        self.v = pattern(2, self.K_SHAPE)
        self.save("q.npy", self.Q_SHAPE, self.q)
        self.save("k.npy", self.K_SHAPE, self.k)
        self.save("v.npy", self.K_SHAPE, self.v)

    def path(self, name):
        return os.path.join(self.dir, name)

    def save(self, name, shape, values, **more):
        self.save_bytes(name, npy_bytes(shape, values, **more))

    def save_bytes(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)

    def run_program(self, program, *args, env=None, stdout=subprocess.PIPE, **more):
        hidden = {} if self.drivers else {"OCL_ICD_VENDORS": self.dir, "OCL_ICD_FILENAMES": ""}
        full = {**os.environ, **hidden, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") +
                ":allocator_may_return_null=1", **(env or {})}
        done = subprocess.run([program, *args], cwd=self.dir, env=full, stdin=subprocess.DEVNULL,
                              stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=900,
                              text=True, **more)
        self.assertIn(done.returncode, (0, 1, 2, 3), done.stderr)
        # Some drivers write to stderr themselves, for instance when they compile a kernel.
        done.said = "".join(line for line in done.stderr.splitlines(True)
                            if not DEVICES or line.startswith("clattn-"))
        return done

    def on_terminal(self, program, *args, env=None, stdout=None, columns=80, code=0):
        """stdout and stderr of a run on a terminal, or stderr alone where stdout is given."""
        screen, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        hidden = {} if self.drivers else {"OCL_ICD_VENDORS": self.dir, "OCL_ICD_FILENAMES": ""}
        full = {**os.environ, **hidden, "TERM": "xterm", "CLICOLOR_FORCE": "", **(env or {})}
        full = {k: v for k, v in full.items() if v is not None}
        said = b""
        with subprocess.Popen([program, *args], stdin=subprocess.DEVNULL, cwd=self.dir,
                              stdout=end if stdout is None else stdout, stderr=end,
                              env=full) as run:
            os.close(end)
            try:
                while part := os.read(screen, 4096):
                    said += part
            except OSError:
                pass  # the other end is closed
        os.close(screen)
        self.assertEqual(run.returncode, code, said)
        return said.decode()

    def run_ok(self, *args, program=None, **more):
        done = self.run_program(program or PROGRAMS.run, *args, **more)
        self.assertEqual((done.returncode, done.said), (0, ""))
        return done.stdout

    def tree(self):
        return {name: os.lstat(self.path(name)) and self.content(name)
                for name in sorted(os.listdir(self.dir))}

    def content(self, name):
        if not stat.S_ISREG(os.lstat(self.path(name)).st_mode):
            return None
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_bad(self, *args, program=None, code=2, says=(), **more):
        """One line on stderr that says all of `says`, nothing on stdout, no file touched."""
        before = self.tree()
        done = self.run_program(program or PROGRAMS.run, *args, **more)
        self.assertEqual(done.returncode, code, (args, done.stderr))
        self.assertRegex(done.said, r"\Aclattn-(run|probe|bench|tune): [^\n]+\n\Z")
        for text in says:
            self.assertIn(text, done.said)
        self.assertIn(done.stdout, ("", None))
        self.assertEqual(self.tree(), before, args)
        return done.said

    def assert_close(self, got, want, tolerance=1e-5):
        self.assertEqual(len(got), len(want))
        for n, (x, y) in enumerate(zip(got, want)):
            same = x == y or abs(x - y) <= tolerance + tolerance * abs(y)
            self.assertTrue(same, f"element {n}: {x}, expected {y}")


INPUTS = ["-q", "q.npy", "-k", "k.npy", "-v", "v.npy"]
CPU = ["--device", "cpu"]


# ---- running -----------------------------------------------------------------------------------

class Lines(unittest.TestResult):
    """A line a test, in CMocka's form."""

    passed = 0

    def startTest(self, test):
        super().startTest(test)
        self.name = test.id().split(".", 1)[1]
        self.bad_before = len(self.failures) + len(self.errors)
        print(f"[ RUN      ] {self.name}", flush=True)

    def stopTest(self, test):
        super().stopTest(test)
        bad = len(self.failures) + len(self.errors) > self.bad_before
        for _, text in (self.failures + self.errors)[self.bad_before:]:
            print(text)
        self.passed += not bad
        print("[  FAILED  ]" if bad else "[       OK ]", self.name, flush=True)


def expected_devices():
    """Selectors for what $CLATTN_TEST_EXPECT names."""
    names = [n.strip() for n in os.environ.get("CLATTN_TEST_EXPECT", "").split(",") if n.strip()]
    unknown = [n for n in names if n not in EXPECT]
    if unknown:
        sys.exit(f"CLATTN_TEST_EXPECT names {unknown[0]}, but only {', '.join(EXPECT)} are known")
    return [EXPECT[n] for n in names if n != "none"]


def main(module, classes, device_classes=()):
    """Runs the test classes of a script, and those for devices where devices are expected."""
    parser = argparse.ArgumentParser(description=module.__doc__.splitlines()[0])
    for name in ("run", "probe", "bench", "tune", "run-faulty", "bench-faulty", "probe-faulty",
                 "data"):
        parser.add_argument("--" + name, required=True, type=os.path.abspath)
    # Only in builds with OpenCL.
    parser.add_argument("--fake-opencl", type=os.path.abspath)
    parser.add_argument("--fake-icd", type=os.path.abspath)
    parser.add_argument("only", nargs="*", help="Class or Class.test")
    parser.parse_args(namespace=PROGRAMS)
    DEVICES.extend(expected_devices())
    os.environ.pop("CLATTN_DEVICE", None)
    os.environ.pop("CLATTN_LOG", None)
    os.environ["CLATTN_CACHE"] = "0"  # also where a test is run by hand
    os.environ["CLATTN_TUNE"] = "0"

    loader = unittest.TestLoader()
    if PROGRAMS.only:
        suite = loader.loadTestsFromNames(PROGRAMS.only, module)
    else:
        classes = list(classes) + (list(device_classes) if DEVICES else [])
        suite = unittest.TestSuite(map(loader.loadTestsFromTestCase, classes))
    wanted = suite.countTestCases()
    result = Lines()
    suite.run(result)
    print(f"{result.passed} of {wanted} tests passed; OpenCL devices: {DEVICES or 'none expected'}")
    sys.exit(0 if wanted > 0 and result.passed == wanted == result.testsRun else 1)
