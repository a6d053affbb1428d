# SPDX-License-Identifier: Apache-2.0
"""Processes that compute one after the other: all but the one whose turn it is are stopped, so
that waiting threads, however they wait, disturb nobody."""
import json
import os
import selectors
import signal
import statistics
import subprocess
import time


class Failed(Exception):
    """A contender cannot do what was asked; the text says why."""


class Contender:
    """One process of worker.py. `kind` is "device" for clattn and "peer" for what it is compared
    with."""

    def __init__(self, name, kind, command, env, options, log=None, limit=60):
        self.name, self.kind, self.limit = name, kind, limit
        self.command, self.env, self.options, self.log = command, env, options, log
        self.process = None
        self.facts = {}

    def start(self):
        """Starts the process and asks it for its facts."""
        self.launch()
        self.facts = self.ask({"do": "open", **self.options})

    def launch(self):
        """Starts the process, which is stopped between requests."""
        stderr = open(self.log, "ab") if self.log else subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                self.command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr, start_new_session=True)
        except OSError as error:
            raise Failed(str(error)) from error
        finally:
            if self.log:
                stderr.close()
        self.pause()

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def pause(self):
        """Stops the process and returns when its last thread stands still, or it has ended."""
        self.signal(signal.SIGSTOP)
        pid = self.process.pid
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        # Takes the message that it was stopped; that it has ended is left to Popen.
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)

    def ask(self, request, limit=None):
        """Lets the process run until it has answered. It is ended where it takes too long."""
        if self.process is None:
            self.start()
        limit = limit or self.limit
        self.signal(signal.SIGCONT)
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            raise Failed(self.end()) from None
        line = self.read_line(limit)
        self.pause()
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise Failed(answer["reason"])
        return answer

    def read_line(self, limit):
        data, deadline = b"", time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not data.endswith(b"\n"):
                if not selector.select(max(0, deadline - time.monotonic())):
                    self.stop()
                    raise Failed(f"took over {limit:g} s")
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    raise Failed(self.end())
                data += part
        return data

    def end(self):
        """What a process that went by itself died of."""
        code = self.process.wait()
        self.stop()
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with {code}"
        return f"its process ended {how}" + (f", see {self.log}" if self.log else "")

    def stop(self):
        if self.process is None:
            return
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None


def cells(contenders, shape, dtype, say):
    """Prepares each contender for the shape: a list of (contender, cell); a cell that has a reason
    takes no further part."""
    found = []
    for contender in contenders:
        cell = {"name": contender.name, "kind": contender.kind}
        try:
            answer = contender.ask({"do": "prepare", "shape": list(shape), "dtype": dtype})
            cell.update(variant=answer["variant"], error=answer["error"],
                        first=answer["seconds"], refusals=answer["refusals"], rounds=[])
        except Failed as reason:
            cell["reason"] = str(reason)
            say(f"  {contender.name}: {reason}")
        found.append((contender, cell))
    return found


def measure(contenders, shape, dtype, repeat, meter=None, say=lambda text: None, budget=20.0):
    """Runs all contenders in turn, `repeat` rounds of it, and returns a dict of the shape with a
    cell for each of them. `meter` measures the machine between the rounds.

    A round of one contender is a warm-up of 10 ms (none where a run is longer than 200 ms), then as
    many timed runs as take 40 ms; the round counts with their median. Who would need more than
    `budget` seconds in all takes part in fewer rounds, three at least, as the cell says.
    """
    pairs = cells(contenders, shape, dtype, say)
    peaks, reads = [], []

    def look(turn):
        peaks.append(meter.ask({"do": "measure", "bytes": 0, "brief": True})["value"])
        if shape.decode and turn % 3 == 0:
            reads.append(meter.ask({"do": "measure", "bytes": shape.kv_bytes(dtype)})["value"])

    for turn in range(repeat):
        if meter:
            look(turn)
        # Each round starts with another one, so that nobody always follows the same neighbour.
        start = turn % max(1, len(pairs))
        for contender, cell in pairs[start:] + pairs[:start]:
            if "reason" in cell:
                continue
            if turn >= 3 and cell["first"] * 2 * repeat > budget:
                continue
            count = max(1, min(50, int(0.04 / max(cell["first"], 1e-6))))
            try:
                warm = 0.01 if cell["first"] < 0.2 else 0
                answer = contender.ask({"do": "run", "warm": warm, "n": count})
            except Failed as reason:
                cell["reason"] = str(reason)
                say(f"  {contender.name}: {reason}")
                continue
            cell["rounds"].append([turn, statistics.median(answer["times"])])
            cell["runs"] = cell.get("runs", 0) + count
    result = {"shape": shape.name, "dtype": dtype, "flops": shape.flops, "decode": shape.decode,
              "kv_bytes": shape.kv_bytes(dtype), "cells": [cell for _, cell in pairs]}
    if meter:
        look(0)
        result["peak"] = max(peaks)
        if reads:
            result["read"] = max(reads)
    for cell in result["cells"]:
        if "reason" not in cell:
            cell["seconds"] = statistics.median(seconds for _, seconds in cell["rounds"])
    return result


def ratio(slow, fast):
    """How many times as fast `fast` is as `slow`: the median over the rounds both took part in, so
    that a machine that changes its speed between rounds does not tell against either."""
    other = dict(fast["rounds"])
    pairs = [seconds / other[turn] for turn, seconds in slow["rounds"] if turn in other]
    return statistics.median(pairs)
