# SPDX-License-Identifier: Apache-2.0
"""clattn itself as a contender, through clattn_peer.c."""
import ctypes

from worker import NoWay

ALGOS = {"auto": 0, "unfused": 7}
DTYPES = {"f32": 0, "bf16": 2}


def library(path):
    lib = ctypes.CDLL(path)
    lib.peer_open.restype = ctypes.c_void_p
    lib.peer_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
    lib.peer_text.restype = ctypes.c_char_p
    lib.peer_text.argtypes = [ctypes.c_void_p]
    lib.peer_failed.argtypes = lib.peer_clear.argtypes = [ctypes.c_void_p]
    lib.peer_run.argtypes = [ctypes.c_void_p]
    lib.peer_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.peer_measure.restype = ctypes.c_double
    lib.peer_measure.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    lib.peer_prepare.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                                 ctypes.c_int] + [ctypes.c_void_p] * 3
    lib.peer_clear.restype = None
    return lib


def devices(path):
    """What clattn sees here: a list of dicts, the CPU path last."""
    lib, found = library(path), []
    text = ctypes.create_string_buffer(2048)
    while lib.peer_device(len(found), text, len(text)):
        kind, platform, name, driver, rank = text.value.decode(errors="replace").split("\n")
        found.append({"index": len(found), "type": int(kind), "platform": platform, "name": name,
                      "driver": driver, "rank": int(rank)})
    return found


class Clattn:
    def __init__(self, options):
        self.lib = library(options["library"])
        self.options = options
        self.algo = ALGOS[options.get("algo", "auto")]
        self.handle = self.lib.peer_open(options["selector"].encode(), options["threads"])
        if not self.handle or self.lib.peer_failed(self.handle):
            raise NoWay(self.text() if self.handle else "no memory")

    def text(self):
        return self.lib.peer_text(self.handle).decode(errors="replace")

    def facts(self):
        return {}

    def clear(self):
        self.lib.peer_clear(self.handle)

    def measure(self, size, brief):
        return self.lib.peer_measure(self.handle, size, brief)

    def variants(self, problem):
        import numpy as np
        shape, dtype = problem.shape, problem.dtype
        data = [problem.q, problem.k, problem.v]
        if dtype == "bf16":
            data = [problem.narrow(x) for x in data]
        numbers = (ctypes.c_int * 6)(*shape[:6])
        if self.lib.peer_prepare(self.handle, DTYPES[dtype], self.algo, numbers, shape.causal,
                                 *[x.ctypes.data for x in data]):
            raise NoWay(self.text())
        chosen = self.text()

        def run():
            if self.lib.peer_run(self.handle):
                raise NoWay(self.text())

        def result():
            out = np.empty(problem.q.shape, np.float32 if dtype == "f32" else np.uint16)
            if self.lib.peer_read(self.handle, out.ctypes.data):
                raise NoWay("the result cannot be read: " + self.text())
            return out if dtype == "f32" else problem.widen(out)

        yield chosen, lambda: (run, result)
