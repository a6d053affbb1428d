#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clattn beside what computes attention on the same CPU otherwise, in turn and checked.

The peers are set up in a folder of the build (a virtual environment with packages of PyPI, and
packages of Debian unpacked there); nothing is installed in the system. Every contender has a
process of its own, which is stopped while another one computes. Rates count useful work: pairs
that see each other, or with one query the bytes of K and V once. A ratio is how many times as fast
clattn is as the best peer of that shape; above 1 clattn is ahead.

example:
  tools/peers/compare.py
  tools/peers/compare.py --shape 1,8,8,2048,2048,64 --shape 1,32,8,1,4096,128 --svg peers.svg
  tools/peers/compare.py --peers openblas,openvino,torch --device pocl --device cpu --json a.json
  tools/peers/compare.py --from a.json --markdown full
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report  # noqa: E402
import setup_peers  # noqa: E402
import shapes  # noqa: E402
from contender import Contender, Failed, measure  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = os.path.join(HERE, "worker.py")

# How tables call the peers.
TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "openblas": "OpenBLAS",
          "clblast": "CLBlast", "torch": "PyTorch", "jax": "JAX", "onednn": "oneDNN"}


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- options -----------------------------------------------------------------------------------

def peer_list(text):
    known = setup_peers.DEFAULT + setup_peers.LARGE
    wanted = []
    for name in text.split(","):
        more = {"default": setup_peers.DEFAULT, "all": known, "none": []}.get(name, [name])
        for peer in more:
            if peer not in known:
                raise argparse.ArgumentTypeError(f"'{peer}' is none of {', '.join(known)}, "
                                                 "default, all, none")
            if peer not in wanted:
                wanted.append(peer)
    return wanted


def shape(text):
    try:
        return shapes.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 on")
    return int(text)


def options(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=peer_list, default=peer_list("default"), metavar="NAME,...",
        help=f"default: {', '.join(setup_peers.DEFAULT)}; also {', '.join(setup_peers.LARGE)}, "
        "which are large (torch: 3 GB), and all, none")
    add("--shape", "--shapes", dest="shapes", type=shape, action="append",
        metavar="B,H,HKV,LQ,LKV,D[,causal]",
        help="a shape instead of the built-in ones; can be repeated")
    add("--device", action="append", metavar="SEL",
        help="only this device of clattn: cpu for the CPU path, part of a platform's or device's "
        "name, pocl, intel, none; can be repeated. Default: all but software renderers")
    add("--dtype", choices=list(shapes.DTYPES), default="f32")
    add("--threads", type=positive, default=len(os.sched_getaffinity(0)),
        help="threads, and CPUs that everybody is bound to; default: all")
    add("--repeat", type=positive, default=7, metavar="N", help="rounds; default 7")
    add("--limit", type=positive, default=120, metavar="SECONDS",
        help="what takes longer to prepare is left out; default 120")
    add("--build", metavar="DIR", help="build folder of clattn; default build, and where there is "
        "none it is built")
    add("--folder", metavar="DIR", help="where the peers are set up; default build/peers")
    add("--setup-only", action="store_true", help="sets everything up and measures nothing")
    add("--no-setup", action="store_true", help="installs nothing; what is absent is left out")
    add("--from", dest="saved", nargs="+", metavar="FILE", help="measures nothing: the shapes of "
        "these files of --json, one behind the other")
    add("--markdown", choices=["full", "short"], help="Markdown instead of aligned text: full for "
        "docs/performance.md, short for the README")
    for name in ("json", "csv", "svg"):
        add("--" + name, metavar="FILE", help=f"also writes {name.upper()}")
    chosen = parser.parse_args(words)
    chosen.shapes = chosen.shapes or shapes.DEFAULT
    if chosen.setup_only and chosen.no_setup:
        parser.error("--setup-only and --no-setup exclude each other")
    if chosen.threads > len(os.sched_getaffinity(0)):
        parser.error(f"--threads {chosen.threads}: there are {len(os.sched_getaffinity(0))} CPUs")
    return chosen


# ---- contenders --------------------------------------------------------------------------------

def environment(threads):
    """The caller's, with the same number of threads for everybody and nothing that slows a peer."""
    env = {k: v for k, v in os.environ.items()
           if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "CLATTN_DEVICE",
                        "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_WAIT_POLICY")}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                 "POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"):
        env[name] = str(threads)
    env["JAX_PLATFORMS"] = "cpu"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def with_path(env, *folders):
    parts = [f for f in folders if f] + [p for p in [env.get("LD_LIBRARY_PATH")] if p]
    return {**env, "LD_LIBRARY_PATH": ":".join(parts)}


def label(device):
    """How a device is called in tables."""
    if device["type"] == 0:
        return "CPU path"
    if device["platform"].startswith("Portable Computing"):
        return "PoCL" if "pthread" in device["name"] or "cpu" in device["name"] else "PoCL GPU"
    if device["platform"].startswith("Intel") and device["type"] == 1:
        return "Intel"
    return device["name"]


def wanted(device, selectors):
    if not selectors:
        return not any(word in device["platform"].lower() for word in ("rusticl", "clover"))
    for selector in selectors:
        if selector == "cpu":
            if device["type"] == 0:
                return True
        elif selector.lower() in f"{label(device)}\n{device['platform']}\n{device['name']}".lower():
            return True
    return False


class Field:
    """Everybody who takes part, and why the others don't."""

    def __init__(self, chosen, setup):
        self.chosen, self.setup = chosen, setup
        self.contenders, self.skipped, self.versions = [], [], []
        self.meter = None
        self.env = environment(chosen.threads)

    def skip(self, name, reason):
        self.skipped.append({"name": name, "reason": str(reason)})
        say(f"{name}: left out: {reason}")

    def contender(self, name, kind, env, settings):
        settings = {"threads": self.chosen.threads, **settings}
        return Contender(name, kind, [self.setup.python, "-B", WORKER], env, settings,
                         os.path.join(self.setup.folder, "workers.log"), self.chosen.limit)

    def join(self, contender, version=""):
        """Starts a contender; it is left out with the reason where that fails."""
        try:
            contender.start()
        except Failed as reason:
            contender.stop()
            self.skip(contender.name, reason)
            return
        self.contenders.append(contender)
        facts = contender.facts
        text = " ".join(x for x in (version or facts.get("version"), facts.get("device")) if x)
        self.versions.append({"name": contender.name, "version": text})

    def devices(self, library):
        """Devices of the system, and Intel's runtime for CPUs out of the virtual environment."""
        places = [self.env]
        selectors = self.chosen.device
        if not selectors or any(s.lower() in "intel" for s in selectors):
            try:
                places.append(self.intel())
            except setup_peers.Missing as reason:
                self.skip("Intel", reason)
        found = {}
        for env in places:
            probe = self.contender("devices", "device", env, {})
            try:
                probe.launch()
                for device in probe.ask({"do": "devices", "library": library})["devices"]:
                    if wanted(device, selectors):
                        found.setdefault(label(device), (env, device))
            except Failed as reason:
                self.skip("devices", reason)
            probe.stop()
        # The CPU path stands behind the OpenCL devices.
        for name in sorted(found, key=lambda n: not report.is_opencl(n)):
            env, device = found[name]
            selector = str(device["index"]) if device["type"] else "cpu"
            self.join(self.contender(name, "device", env, {
                "peer": "clattn", "library": library, "selector": selector}), device["driver"])

    def peers(self, library):
        for name in self.chosen.peers:
            try:
                settings = {"peer": name, **self.setup.peer(name)}
                env = self.intel() if name == "onednn" else self.env
            except setup_peers.Missing as reason:
                self.skip(TITLES.get(name, name), reason)
                continue
            if name == "clblast":
                self.clblast(library, settings["clblast"])
                continue
            self.join(self.contender(TITLES.get(name, name), "peer", env, settings))

    def intel(self):
        """The environment with Intel's OpenCL runtime alone, by which oneDNN finds the CPU too."""
        return with_path({**self.env, "OCL_ICD_VENDORS": self.setup.intel_vendors()},
                         os.path.join(self.setup.venv, "lib"))

    def clblast(self, library, path):
        """Two matrix products of CLBlast with a softmax between, on each OpenCL device."""
        for device in [c for c in self.contenders
                       if c.kind == "device" and report.is_opencl(c.name)]:
            env = with_path(device.env, os.path.dirname(path)) if path.startswith(
                self.setup.folder) else device.env
            self.join(self.contender(f"CLBlast, {device.name}", "peer", env, {
                "peer": "clattn", "library": library, "algo": "unfused",
                "selector": device.options["selector"]}), self.clblast_version(path))

    @staticmethod
    def clblast_version(path):
        return os.path.basename(os.path.realpath(path)).partition(".so.")[2]

    def close(self):
        for contender in self.contenders + [self.meter]:
            if contender:
                contender.stop()


# ---- measuring ---------------------------------------------------------------------------------

def machine():
    facts = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = set(facts.get("flags", "").split())
    isa = next((name for flag, name in (("amx_bf16", "AMX"), ("avx512f", "AVX-512"),
                                        ("avx2", "AVX2")) if flag in flags), platform.machine())
    system = platform.system()
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        pass
    return {"cpu": facts.get("model name", platform.processor() or "?"), "isa": isa,
            "cores": len(os.sched_getaffinity(0)), "system": system}


def clattn_version():
    words = [sys.executable, os.path.join(setup_peers.ROOT, "tools", "version.py")]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def compare(chosen, field, library, facts):
    field.meter = field.contender("meter", "device", field.env, {
        "peer": "clattn", "library": library, "selector": "cpu"})
    try:
        field.meter.start()
    except Failed as reason:
        field.skip("multiply-add peak", reason)
        field.meter = None
    results = {"date": datetime.date.today().isoformat(), "machine": facts,
               "threads": chosen.threads, "dtype": chosen.dtype, "repeat": chosen.repeat,
               "tolerance": shapes.TOLERANCE[chosen.dtype],
               "versions": [{"name": "clattn", "version": clattn_version()}] + field.versions,
               "skipped": field.skipped, "shapes": []}
    for number, one in enumerate(chosen.shapes):
        say(f"{one.name} ({number + 1} of {len(chosen.shapes)})")
        results["shapes"].append(measure(field.contenders, one, chosen.dtype, chosen.repeat,
                                         field.meter, say))
    return results


def joined(paths):
    """The results of several files, whose shapes follow each other."""
    every = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            every.append(json.load(file))
    results = every[0]
    for more in every[1:]:
        results["shapes"] += more["shapes"]
        for key in ("versions", "skipped"):
            results[key] += [x for x in more[key] if x not in results[key]]
    return results


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def show(chosen, results, setup):
    if chosen.json:
        write(chosen.json, json.dumps(results, indent=1) + "\n")
    if chosen.csv:
        write(chosen.csv, report.as_csv(results))
    if chosen.svg:
        text = json.dumps(results)
        plot = [setup.python, "-B", os.path.join(HERE, "plot.py"), chosen.svg]
        done = subprocess.run(plot, input=text, text=True, check=False)
        if done.returncode:
            say(f"{chosen.svg} could not be drawn")
            return 1
    style = {None: report.as_text, "full": report.as_markdown, "short": report.as_short_markdown}
    print(style[chosen.markdown](results), end="")
    return 0


def main(words):
    chosen = options(words)
    folder = chosen.folder or os.path.join(chosen.build or os.path.join(setup_peers.ROOT, "build"),
                                           "peers")
    if chosen.saved:
        try:
            results = joined(chosen.saved)
        except (OSError, ValueError, KeyError) as error:
            say(f"compare: {error}")
            return 2
        return show(chosen, results, setup_peers.Setup(folder, say))
    if not chosen.peers and chosen.device == ["none"]:
        say("compare: no peer and no device: nothing to run")
        return 2
    setup = setup_peers.Setup(folder, say, install=not chosen.no_setup)
    field = Field(chosen, setup)
    facts = machine()
    try:
        setup.environment()
        library = setup.clattn(chosen.build)
    except setup_peers.Missing as reason:
        say(f"compare: {reason}")
        return 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:chosen.threads])
    try:
        field.devices(library)
        field.peers(library)
        if chosen.setup_only:
            return 0
        results = compare(chosen, field, library, facts)
    finally:
        field.close()
    return show(chosen, results, setup)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
