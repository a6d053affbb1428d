#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library in workers that Python's multiprocessing forks off a process that has used it.

usage: test_multiprocessing.py LIBRARY

The parent computes on the CPU path with threads, then on the best device, which opens OpenCL where
there is one. Its workers compute the same: with the context that they have from the parent, with
one of their own, and without one; all on the CPU path, with the same bits.
"""
import ctypes
import multiprocessing
import os
import random
import sys

HEADS, LEN_Q, LEN_KV, DIM = 1, 3, 6000, 32  # split between threads
SECONDS = 120

FLOATS_Q = ctypes.c_float * (HEADS * LEN_Q * DIM)
FLOATS_KV = ctypes.c_float * (HEADS * LEN_KV * DIM)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.clattn_attention_f32.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int32] * 7
        self.lib.clattn_context_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.lib.clattn_context_destroy.argtypes = [ctypes.c_void_p]
        make = random.Random(1).uniform
        self.q = FLOATS_Q(*(make(-1, 1) for _ in range(len(FLOATS_Q()))))
        self.k = FLOATS_KV(*(make(-1, 1) for _ in range(len(FLOATS_KV()))))
        self.v = FLOATS_KV(*(make(-1, 1) for _ in range(len(FLOATS_KV()))))

    def create(self):
        ctx = ctypes.c_void_p()
        status = self.lib.clattn_context_create(None, ctypes.byref(ctx))
        assert status == 0, status
        return ctx

    def destroy(self, ctx):
        self.lib.clattn_context_destroy(ctypes.byref(ctx))

    def attention(self, ctx):
        o = FLOATS_Q(*[float("nan")] * len(FLOATS_Q()))
        status = self.lib.clattn_attention_f32(ctx, self.q, self.k, self.v, o, 1, HEADS, HEADS,
                                               LEN_Q, LEN_KV, DIM, 0)
        assert status == 0, status
        return bytes(o)


library = None
inherited = None


def compute(kind):
    """In a worker: the bytes of one result."""
    if kind == "inherited":
        return library.attention(inherited)
    if kind == "own":
        ctx = library.create()
        result = library.attention(ctx)
        library.destroy(ctx)
        return result
    return library.attention(None)


def main():
    global library, inherited
    os.environ["CLATTN_DEVICE"] = "cpu"
    library = Library(sys.argv[1])
    inherited = library.create()
    want = library.attention(inherited)
    os.environ.pop("CLATTN_DEVICE")
    best = library.create()
    library.attention(best)

    kinds = ["inherited", "own", "none"] * 4
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map_async(compute, kinds, chunksize=1).get(timeout=SECONDS)
    wrong = [kind for kind, result in zip(kinds, results) if result != want]
    library.attention(best)
    library.destroy(best)
    library.destroy(inherited)
    print(f"{len(results)} results of workers, {len(wrong)} of them wrong {wrong or ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
