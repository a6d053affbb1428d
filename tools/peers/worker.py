# SPDX-License-Identifier: Apache-2.0
"""One contender in a process of its own: takes requests as lines of JSON, answers likewise.

    {"do": "devices", "library": FILE}     -> the devices that clattn sees
    {"do": "open", ...}                    -> facts: version, device
    {"do": "prepare", "shape": ..., ...}   -> which variant was taken, its error, its time
    {"do": "run", "warm": S, "n": N}       -> N times in seconds, after S seconds that do not count
    {"do": "measure", "bytes": N}          -> multiply-add peak, or the rate of reading N bytes

A contender may know several ways of computing the same (the variants of its maker): each is
checked, and the fastest stands for it. Whatever a library prints goes to stderr.
"""
import ctypes
import json
import os
import sys
import time


class NoWay(Exception):
    """This contender cannot compute that; the text says why."""


def words(error):
    text = str(error) if isinstance(error, NoWay) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def make(options):
    """The contender that `options` ask for."""
    if options["peer"] == "clattn":
        import clattn_peer
        return clattn_peer.Clattn(options)
    import makers
    import makers_large
    table = {**makers.PEERS, **makers_large.PEERS}
    return table[options["peer"]](options)


class Problem:
    """Inputs that are the same in every process, and the check of an output."""
    ROWS = 24  # sampled in each output

    def __init__(self, shape, dtype, tolerance):
        import numpy as np
        self.np, self.shape, self.dtype, self.tolerance = np, shape, dtype, tolerance
        random = np.random.default_rng(1)
        s = shape
        sizes = ((s.batch, s.heads, s.len_q, s.dim), (s.batch, s.kv_heads, s.len_kv, s.dim))
        self.q, self.k, self.v = (
            self.rounded(random.standard_normal(size, dtype=np.float32))
            for size in (sizes[0], sizes[1], sizes[1]))

    def rounded(self, x):
        """float32 numbers that the data type can hold."""
        if self.dtype == "f32":
            return x
        return self.widen(self.narrow(x))

    def narrow(self, x):
        """float32 to the bits of bf16, to nearest even."""
        bits = x.view(self.np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(self.np.uint16)

    def widen(self, bits):
        return (bits.astype(self.np.uint32) << 16).view(self.np.float32)

    def error(self, out):
        """Largest difference of sampled rows of [batch, heads, len_q, dim] from double precision;
        first and last row are among them."""
        np, s = self.np, self.shape
        out = np.asarray(out)
        expected_shape = (s.batch, s.heads, s.len_q, s.dim)
        if out.shape != expected_shape:
            raise NoWay(f"the output has the shape {out.shape} instead of {expected_shape}")
        random = np.random.default_rng(7)
        sample = [(0, 0, 0), (s.batch - 1, s.heads - 1, s.len_q - 1)]
        while len(sample) < self.ROWS:
            sample.append(tuple(int(random.integers(n)) for n in expected_shape[:3]))
        worst = 0.0
        for b, h, i in sample:
            g = h // (s.heads // s.kv_heads)
            seen = i + 1 + s.len_kv - s.len_q if s.causal else s.len_kv
            x = self.k[b, g, :seen].astype(float) @ self.q[b, h, i].astype(float) / s.dim ** 0.5
            p = np.exp(x - x.max())
            expected = (p / p.sum()) @ self.v[b, g, :seen].astype(float)
            difference = np.abs(expected - out[b, h, i].astype(float)).max()
            worst = max(worst, float(difference)) if difference == difference else float("nan")
            if worst != worst:
                break
        return worst


def choose(peer, problem):
    """Checks every variant and returns (name, (run, result), error, seconds, refusals) of the
    fastest."""
    best, refusals = None, []
    for name, prepare in peer.variants(problem):
        try:
            run, result = prepare()
            run()
            error = problem.error(result())
            if not error <= problem.tolerance:
                raise NoWay(f"wrong result, off by {error:.1e} of {problem.tolerance:g} allowed")
            times = []
            while len(times) < 3 or (sum(times) < 0.2 and len(times) < 30):
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
                if sum(times) > 0.5:
                    break
        except Exception as reason:  # whatever a peer throws is the reason why it is left out
            refusals.append((f"{name}: " if name else "") + words(reason))
            continue
        seconds = sorted(times)[len(times) // 2]
        if best is None or seconds < best[3]:
            # Memory that the peer writes may belong to `result` alone.
            best = (name, (run, result), error, seconds)
        del run, result
    if best is None:
        raise NoWay("; ".join(refusals) or "no way to compute this shape")
    return best + (refusals,)


class Server:
    def __init__(self):
        self.peer = self.chosen = None

    def open(self, request):
        self.peer = make(request)
        return self.peer.facts()

    def devices(self, request):
        import clattn_peer
        return {"devices": clattn_peer.devices(request["library"])}

    def prepare(self, request):
        from shapes import TOLERANCE, Shape
        self.chosen = None
        self.peer.clear()
        problem = Problem(Shape(*request["shape"]), request["dtype"], TOLERANCE[request["dtype"]])
        name, self.chosen, error, seconds, refusals = choose(self.peer, problem)
        return {"variant": name, "error": error, "seconds": seconds, "refusals": refusals}

    def times(self, request):
        clock = time.perf_counter
        run, times = self.chosen[0], []
        start = clock()
        while clock() - start < request["warm"]:
            run()
        for _ in range(request["n"]):
            start = clock()
            run()
            times.append(clock() - start)
        return {"times": times}

    def measure(self, request):
        return {"value": self.peer.measure(request["bytes"], request.get("brief", False))}


def serve(server):
    """Answers until stdin ends; stdout is kept for the answers alone."""
    # One that is stopped would outlive a driver that is killed: prctl(PR_SET_PDEATHSIG, SIGKILL).
    ctypes.CDLL(None).prctl(1, 9)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    handlers = {"open": server.open, "devices": server.devices, "prepare": server.prepare,
                "run": server.times, "measure": server.measure}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request["do"]](request)
            answer["ok"] = True
        except Exception as reason:  # the driver goes on with the other contenders
            answer = {"ok": False, "reason": words(reason)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # drivers that crash in their destructors have nothing to say here


if __name__ == "__main__":
    # As the module that the makers import, so that there is one class NoWay.
    import worker
    worker.serve(worker.Server())
