#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what kernels load from and store to global memory, and holds it against the plan's figure.

Oclgrind, which counts the instructions of every kernel, must be a device that OpenCL sees; else
there is nothing to do. A kernel's float4 dereferences are counted, vload4() would not be.

CLATTN_TEST_SHARE=N runs each N-th problem of each list only.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from tool_case import Lines, npy_bytes

RUN = argparse.Namespace()  # run: path of clattn-run
SKIP_STATUS = 77
DEVICE = "oclgrind"

SHARE = int(os.environ.get("CLATTN_TEST_SHARE", "1"))

# Local memory, bytes, from what one work-item needs up to all that the simulator has.
SWEEP = (256, 1024, 3072, 4096, 8192, 16384, 32768)


class Problem:
    """One sequence: its shape, and what else the command line says."""

    def __init__(self, algo, len_q, len_kv, dim, heads=(1, 1), dim_v=None, options=(), local=0):
        self.algo, self.len_q, self.len_kv, self.dim = algo, len_q, len_kv, dim
        self.heads, self.dim_v = heads, dim_v or dim
        self.options, self.local = tuple(options), local
        self.lse, self.mask = "--lse" in options, "--mask" in options
        self.rows = len_q * heads[0] // heads[1]  # of a key head

    def __str__(self):
        more = " ".join(self.options) + (f" in {self.local} bytes" if self.local else "")
        return (f"{self.algo} {self.heads[0]}/{self.heads[1]} heads, {self.len_q} x {self.len_kv}, "
                f"dim {self.dim}/{self.dim_v} {more}".rstrip())

    def divided(self, plan):
        return self.rows % plan["tile_q"] == 0 and self.len_kv % plan["tile_k"] == 0


def some(*problems):
    """Those of the list that CLATTN_TEST_SHARE leaves, the first among them."""
    return problems[::SHARE]


def write_inputs(folder, p):
    for name, heads, length, dim in (("q", p.heads[0], p.len_q, p.dim),
                                     ("k", p.heads[1], p.len_kv, p.dim),
                                     ("v", p.heads[1], p.len_kv, p.dim_v)):
        values = [random.gauss(0, 1) for _ in range(heads * length * dim)]
        with open(os.path.join(folder, name + ".npy"), "wb") as file:
            file.write(npy_bytes((1, heads, length, dim), values))
    if p.mask:
        shape = (1, p.heads[0], p.len_q, p.len_kv)
        values = [random.randrange(2) for _ in range(p.heads[0] * p.len_q * p.len_kv)]
        with open(os.path.join(folder, "mask.npy"), "wb") as file:
            file.write(npy_bytes(shape, values, descr="|b1"))


def run(folder, p, repeat):
    """What clattn-run prints with the counts of all kernels before it."""
    command = [RUN.run, "-q", "q.npy", "-k", "k.npy", "-v", "v.npy", "-o", f"o{repeat}.npy",
               "--device", DEVICE, "--algo", p.algo, "--kernel", "group", "--json",
               "--runs", str(repeat)]
    for option in p.options:
        command.append(option)
        if option in ("--lse", "--mask"):
            command.append("mask.npy" if option == "--mask" else f"lse{repeat}.npy")
    env = {**os.environ, "OCLGRIND_INST_COUNTS": "1", "CLATTN_CACHE": "0"}
    env.pop("OCLGRIND_DATA_RACES", None)
    env.pop("CLATTN_MAX_LOCAL_BYTES", None)
    if p.local:
        env["CLATTN_MAX_LOCAL_BYTES"] = str(p.local)
    done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{p}: exit status {done.returncode}: {done.stderr}")
    return done.stdout


def counted(text):
    """Bytes (loaded, stored) over all kernels of a run."""
    return tuple(sum(int(n) for n in re.findall(rf"- {what} global \((\d+) bytes\)", text))
                 for what in ("load", "store"))


def measure(p):
    """The plan, and the bytes that one call loads and stores. The self-test and the trial of the
    plan run kernels too: the difference of two calls to one is a call alone."""
    with tempfile.TemporaryDirectory(prefix="clattn-test-") as folder, \
            ThreadPoolExecutor(2) as pool:
        write_inputs(folder, p)
        once, twice = pool.map(lambda repeat: run(folder, p, repeat), (1, 2))
    plan = json.loads(once[once.index("\n{"):])
    (load1, store1), (load2, store2) = counted(once), counted(twice)
    # A count that was not found would read as nothing.
    if not (load2 > load1 > 0 and store2 > store1 > 0):
        raise AssertionError(f"{p}: no counts in the output of {DEVICE}")
    return plan, load2 - load1, store2 - store1


def fused_formula(p, plan):
    """Q and O once, K and V once for each tile of rows."""
    tiles = -(-p.rows // plan["tile_q"])
    return p.heads[1] * 4 * (p.rows * (p.dim + p.dim_v + p.lse) +
                             tiles * p.len_kv * (p.dim + p.dim_v))


def chunks_again(p, plan):
    """Bytes of Q that come again with each tile of keys where not all channels fit at once."""
    if plan["chunk_d"] >= p.dim:
        return 0
    return p.heads[1] * 4 * p.rows * p.dim * (p.len_kv // plan["tile_k"] - 1)


class Traffic(unittest.TestCase):
    def measure(self, p):
        plan, load, store = measure(p)
        self.assertEqual((plan["algo"], plan["kernel"]), (p.algo, "group"))
        print(f"    {p}: tile {plan['tile_q']} x {plan['tile_k']}, {plan['chunk_d']} channels: "
              f"loads {load}, stores {store}, plan {plan['bytes_moved']}")
        return plan, load, store

    def check_equal(self, p):
        plan, load, store = self.measure(p)
        self.assertTrue(p.divided(plan), f"{p}: the tile does not divide it")
        self.assertGreaterEqual(plan["chunk_d"], p.dim, str(p))
        self.assertEqual(load + store, plan["bytes_moved"], str(p))
        return plan, load, store

    def check_at_most(self, p):
        plan, load, store = self.measure(p)
        self.assertLessEqual(load + store, plan["bytes_moved"], str(p))

    def test_fused_moves_what_the_formula_says(self):
        for p in some(Problem("fused", 64, 64, 16), Problem("fused", 128, 96, 32),
                      Problem("fused", 64, 64, 32, options=["--lse"]),
                      Problem("fused", 64, 32, 16, dim_v=32),
                      Problem("fused", 32, 64, 16, heads=(4, 2))):
            plan, load, store = self.check_equal(p)
            self.assertEqual(load + store, fused_formula(p, plan), str(p))
            # Nothing but O is written, and the log-sum-exp where it is asked for.
            self.assertEqual(store, p.heads[0] * 4 * p.len_q * (p.dim_v + p.lse), str(p))

    def test_fused_moves_no_more_at_the_edges(self):
        for p in some(Problem("fused", 70, 45, 16), Problem("fused", 33, 65, 32),
                      Problem("fused", 64, 64, 16, options=["--causal"]),
                      Problem("fused", 50, 70, 16, options=["--causal", "--lse"]),
                      Problem("fused", 70, 45, 16, options=["--mask"])):
            self.check_at_most(p)

    def test_traffic_falls_as_local_memory_grows(self):
        last_rows = last_bytes = None
        for local in some(*SWEEP):
            p = Problem("fused", 64, 64, 32, local=local)
            plan, load, store = self.measure(p)
            self.assertTrue(p.divided(plan))
            self.assertLessEqual(plan["local_bytes"], local)
            self.assertEqual(plan["bytes_moved"], fused_formula(p, plan))
            self.assertEqual(load + store, plan["bytes_moved"] + chunks_again(p, plan))
            self.assertEqual(store, 4 * p.len_q * p.dim)
            if last_rows:
                self.assertGreaterEqual(plan["tile_q"], last_rows)
                self.assertLessEqual(load + store, last_bytes)
            last_rows, last_bytes = plan["tile_q"], load + store
            first = locals().get("first", last_bytes)
        self.assertLess(8 * last_bytes, first)

    def check_other(self, algo, *options):
        # Tiles that divide 64 rows and keys, with LSE and with grouped heads.
        for p in some(Problem(algo, 64, 64, 16, options=options),
                      Problem(algo, 64, 64, 32, options=(*options, "--lse")),
                      Problem(algo, 32, 128, 16, heads=(4, 2), options=options)):
            self.check_equal(p)
        for p in some(Problem(algo, 70, 45, 16, options=options),
                      Problem(algo, 64, 64, 16, options=(*options, "--causal"))):
            self.check_at_most(p)

    def test_two_loop(self):
        self.check_other("two_loop")

    def test_fused_kv_outer(self):
        self.check_other("fused_kv_outer")

    def test_split_kv(self):
        self.check_other("split_kv", "--splits", "2")


def sees_simulator():
    """Whether the simulator is there; says what clattn-run said where it is not."""
    with tempfile.TemporaryDirectory(prefix="clattn-test-") as folder:
        write_inputs(folder, Problem("host", 1, 1, 4))
        done = subprocess.run([RUN.run, "-q", "q.npy", "-k", "k.npy", "-v", "v.npy", "-o", "o.npy",
                               "--device", DEVICE, "--algo", "host"], cwd=folder, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=120, text=True)
    print(done.stderr, end="")
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, type=os.path.abspath)
    parser.add_argument("only", nargs="*", help="Traffic.test")
    parser.parse_args(namespace=RUN)
    random.seed(5)
    if not sees_simulator():
        print(f"there is no {DEVICE}, which counts loads and stores")
        expected = DEVICE in os.environ.get("CLATTN_TEST_EXPECT", "")
        sys.exit(1 if expected else SKIP_STATUS)
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(RUN.only, sys.modules[__name__]) if RUN.only else \
        loader.loadTestsFromTestCase(Traffic)
    wanted = suite.countTestCases()
    result = Lines()
    suite.run(result)
    print(f"{result.passed} of {wanted} tests passed")
    sys.exit(0 if wanted > 0 and result.passed == wanted == result.testsRun else 1)


if __name__ == "__main__":
    main()
