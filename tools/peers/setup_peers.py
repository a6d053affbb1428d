# SPDX-License-Identifier: Apache-2.0
"""Sets the peers up in one folder: a virtual environment for what comes from PyPI, packages of
Debian unpacked beside it, and the small C helpers. Nothing is installed in the system."""
import glob
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

BASE = ["numpy", "matplotlib"]
INTEL = ["intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0"]
# What each peer takes from PyPI, and from Debian.
PYPI = {
    "onnxruntime": ["onnxruntime", "onnx"], "openvino": ["openvino"], "openblas": [],
    "clblast": [], "torch": ["torch"], "jax": ["jax"], "ggml": ["pywhispercpp"],
    "onednn": ["onednn", "onednn-devel"],
}
DEBIAN = {
    "openblas": ["libopenblas0-pthread", "libgfortran5", "libquadmath0"],
    "clblast": ["libclblast1"],
}
DEFAULT = ["onnxruntime", "openvino", "openblas", "clblast"]
LARGE = ["torch", "jax", "ggml", "onednn"]


class Missing(Exception):
    """Something cannot be had; the text says why."""


class Setup:
    def __init__(self, folder, say, install=True):
        self.folder, self.say, self.install = os.path.abspath(folder), say, install
        self.venv = os.path.join(self.folder, "venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.debian = os.path.join(self.folder, "debian")

    def command(self, what, words, **more):
        """Runs a command whose output goes to setup.log; Missing with its error if it fails."""
        log = os.path.join(self.folder, "setup.log")
        with open(log, "ab") as file:
            begin = file.tell()
            file.write(("$ " + " ".join(words) + "\n").encode())
            file.flush()
            try:
                code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT,
                                      stdin=subprocess.DEVNULL, check=False, **more).returncode
            except OSError as error:
                raise Missing(f"{what}: {error}") from error
        if code:
            with open(log, "rb") as file:
                file.seek(begin)
                lines = file.read().decode(errors="replace").strip().split("\n")[1:]
            errors = [x for x in lines if x.startswith(("ERROR", "E:")) or "error:" in x]
            told = (errors[:1] or lines[-1:] or ["nothing was said"])[0].strip()
            raise Missing(f"{what} failed: {told[:200]} (see {log})")

    # ---- PyPI ----------------------------------------------------------------------------------

    def environment(self):
        """The virtual environment with NumPy, which every process of a comparison needs."""
        if not os.path.exists(self.python):
            if not self.install:
                raise Missing(f"no virtual environment in {self.folder}; run without --no-setup")
            self.say(f"setting up a virtual environment in {self.folder}")
            os.makedirs(self.folder, exist_ok=True)
            self.command("python3 -m venv (Debian: python3-venv)",
                         [sys.executable, "-m", "venv", self.venv])
        self.pip("numpy and matplotlib", BASE)

    def pip(self, what, packages):
        """Installs those packages that are not there yet."""
        absent = [p for p in packages if not self.version(p)]
        if not absent:
            return
        if not self.install:
            raise Missing("not installed; run without --no-setup")
        self.say(f"installing {what} from PyPI: {' '.join(absent)}")
        self.command("pip install " + " ".join(absent),
                     [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                      "--only-binary", ":all:", *absent])

    def version(self, package):
        """Version of an installed package, or an empty string."""
        name, _, wanted = package.partition("==")
        pattern = re.sub("[-_.]", "[-_.]", name)
        for path in glob.glob(os.path.join(self.venv, "lib", "python3*", "site-packages",
                                           "*.dist-info")):
            match = re.fullmatch(pattern + r"-(.+)\.dist-info", os.path.basename(path), re.I)
            if match and wanted in ("", match.group(1)):
                return match.group(1)
        return ""

    # ---- Debian --------------------------------------------------------------------------------

    def system_library(self, name):
        """Path of a shared library that the loader knows or that was unpacked here, or None."""
        text = ""
        for ldconfig in ("ldconfig", "/sbin/ldconfig"):
            if shutil.which(ldconfig):
                text = subprocess.run([ldconfig, "-p"], capture_output=True, text=True,
                                      check=False).stdout
                break
        for line in text.split("\n"):
            if line.strip().startswith(name + " ") and " => " in line:
                return line.split(" => ")[1].strip()
        found = sorted(glob.glob(os.path.join(self.debian, "usr", "lib", "**", name),
                                 recursive=True))
        return found[0] if found else None

    def library(self, name, packages):
        """Path of a library of Debian, unpacked here where the system does not have it."""
        path = self.system_library(name)
        if path:
            return path
        if not self.install:
            raise Missing(f"{name} is not installed; run without --no-setup")
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise Missing(f"{name} is not installed, and there is no apt-get here")
        self.say(f"unpacking from Debian: {' '.join(packages)}")
        debs = os.path.join(self.folder, "debs")
        os.makedirs(debs, exist_ok=True)
        self.command("apt-get download", ["apt-get", "download", *packages], cwd=debs)
        for deb in glob.glob(os.path.join(debs, "*.deb")):
            self.command("dpkg-deb -x", ["dpkg-deb", "-x", deb, self.debian])
        path = self.system_library(name)
        if not path:
            raise Missing(f"{name} is not in the packages {' '.join(packages)}")
        return path

    # ---- C helpers -----------------------------------------------------------------------------

    def compile(self, source, flags):
        """Path of a shared library made of a C file beside this one."""
        path = os.path.join(self.folder, source.replace(".c", ".so"))
        origin = os.path.join(HERE, source)
        stamp = path + ".flags"
        same = os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == " ".join(flags)
        if not same or os.path.getmtime(path) < os.path.getmtime(origin):
            self.command(f"compiling {source}", [os.environ.get("CC", "cc"), "-shared", "-fPIC",
                                                 origin, "-o", path, *flags])
            with open(stamp, "w", encoding="utf-8") as file:
                file.write(" ".join(flags))
        return path

    def clattn(self, build):
        """clattn_peer.so against libclattn.so of `build`, which is built here where it is None."""
        if build is None:
            build = os.path.join(ROOT, "build")
            if not os.path.exists(os.path.join(build, "libclattn.so")):
                build = os.path.join(self.folder, "clattn")
                if not os.path.exists(os.path.join(build, "build.ninja")):
                    self.command("meson setup (tools/setup.sh run installs what it needs)",
                                 ["meson", "setup", build, ROOT, "--buildtype=release",
                                  "-Dtests=disabled", "-Dtools=disabled"])
                self.say(f"building clattn in {build}")
                self.command("ninja", ["ninja", "-C", build])
        build = os.path.abspath(build)
        if not os.path.exists(os.path.join(build, "libclattn.so")):
            raise Missing(f"no libclattn.so in {build}")
        return self.compile("clattn_peer.c", ["-O2", "-std=c11", "-Wall", "-I" + ROOT + "/include",
                                              "-L" + build, "-lclattn", "-Wl,-rpath," + build])

    # ---- peers ---------------------------------------------------------------------------------

    def intel_vendors(self):
        """A folder of ICD files with Intel's CPU runtime alone."""
        self.pip("Intel's OpenCL runtime for CPUs", INTEL)
        vendors = os.path.join(self.folder, "vendors")
        os.makedirs(vendors, exist_ok=True)
        with open(os.path.join(vendors, "intel.icd"), "w", encoding="utf-8") as file:
            file.write(os.path.join(self.venv, "lib", "libintelocl.so") + "\n")
        return vendors

    def peer(self, name):
        """Options for worker.py beside the peer's name."""
        self.pip(name, PYPI[name])
        if name == "openblas":
            preload = [self.library(lib, DEBIAN["openblas"])
                       for lib in ("libquadmath.so.0", "libgfortran.so.5")]
            return {"openblas": self.library("libopenblas.so.0", DEBIAN["openblas"]),
                    "preload": preload,
                    "helper": self.compile("blas_peer.c", ["-Ofast", "-march=native", "-fopenmp",
                                                           "-std=c11", "-Wall", "-lm"])}
        if name == "clblast":
            return {"clblast": self.library("libclblast.so.1", DEBIAN["clblast"])}
        if name == "onednn":
            lib = os.path.join(self.venv, "lib")
            return {"helper": self.compile("onednn_peer.c", [
                "-O2", "-std=c11", "-I" + os.path.join(self.venv, "include"), "-L" + lib, "-ldnnl",
                "-Wl,--disable-new-dtags,-rpath," + lib,
                "-Wl,--unresolved-symbols=ignore-in-shared-libs"])}
        return {}
