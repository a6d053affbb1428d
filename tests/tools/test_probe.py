#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-probe."""
import copy
import ctypes
import json
import os
import pty
import select
import subprocess
import sys
import time
import unittest

from json_schema import faults
from tool_case import DEVICES, INPUTS, PROGRAMS, Folder, main, usual_signals

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs",
                      "probe.schema.json")
with open(SCHEMA, encoding="utf-8") as schema_file:
    SCHEMA = json.load(schema_file)
ADVICE = ["Debian", "Fedora", "Arch", "Windows", "Android"]


FACTS = ("index type platform name vendor driver version rank compute_units native_width_f32 "
         "max_group max_items local_bytes local_is_global host_unified global_bytes "
         "max_alloc_bytes cache_bytes has_fp16 has_subgroups vector_shape quirks works status "
         "messages kernels plans").split()


class ProbeCase(Folder):
    drivers = True

    def probe(self, *args, **more):
        done = self.run_program(PROGRAMS.probe, *args, **more)
        self.assertEqual(done.said, "")
        return done

    def report(self, *args, code=0, program=None, **more):
        """The JSON report, which must fit its schema. Drivers may print what they like."""
        done = self.run_program(program or PROGRAMS.probe, "--json", *args, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("clattn-probe:", done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(faults(report, SCHEMA), [])
        self.assertIs(report["works"] and not report["unserved"], code == 0)
        return report


class Probe(ProbeCase):
    everything = None

    def test_builtin(self):
        done = self.probe("--device", "cpu")
        self.assertEqual(done.returncode, 0)
        for text in ("built-in CPU path", "the device works", "ALGORITHM", "right"):
            self.assertIn(text, done.stdout)
        report = self.report("--device", "CPU")
        self.assertEqual(len(report["devices"]), 1)
        self.assertEqual((report["devices"][0]["index"], report["opencl_devices"]), (-1, None))
        self.assertNotIn("drivers", report)
        self.check_device(report["devices"][0])

    def probe_everything(self):
        """Exit status and report of all devices, which takes long, so it is made once."""
        if not Probe.everything:
            done = self.probe("--json")
            Probe.everything = done.returncode, json.loads(done.stdout)
            self.assertEqual(faults(Probe.everything[1], SCHEMA), [])
        return Probe.everything

    def check_device(self, device):
        self.assertLessEqual(set(FACTS), set(device))
        self.assertIs(device["works"], True)
        self.assertEqual((device["failures"], device["status"]), ([], "success"))
        self.assertEqual(len(device["quirks_in_words"]), bin(device["quirks"]).count("1"))
        self.assertGreaterEqual(device["compute_units"], 1)
        self.assertEqual([p["dim"] for p in device["plans"]], [32, 64, 80, 128, 256])
        builtin = device["type"] == "built-in CPU path"
        for plan in device["plans"]:
            self.assertEqual(plan["algo"], "host" if builtin else "fused")
            self.assertGreater(plan["tile_q"] * plan["tile_k"], 0)
            self.assertTrue(plan["reason"])
            if not builtin and plan["kernel"] == "group":
                self.assertGreater(plan["local_bytes"], 0)
                self.assertLessEqual(plan["local_bytes"], device["local_bytes"])
                self.assertLessEqual(plan["group_size"], device["max_group"])
        names = [k["kernel"] for k in device["kernels"]]
        self.assertEqual(names, ["host"] if builtin else ["group", "vector", "subgroup"])
        right = [k for k in device["kernels"] if k["result"] == "right"]
        self.assertTrue(right)
        for kernel in right:
            self.assertLessEqual(kernel["max_error"], 1e-5)
        if not builtin:
            self.assertGreater(device["programs_built"], 0)
            self.assertIn("group", [k["kernel"] for k in right])

    def test_all_devices(self):
        code, report = self.probe_everything()
        devices = report["devices"]
        self.assertEqual([d["index"] for d in devices], list(range(len(devices))))
        self.assertEqual(devices[-1]["type"], "built-in CPU path")
        self.assertEqual(len(devices), report["opencl_devices"] + 1)
        self.assertEqual(sorted(d["rank"] for d in devices), list(range(len(devices))))
        working = [d for d in devices[:-1] if d["works"]]
        self.assertEqual(code, 0 if working else 1)
        self.assertIs(report["works"], bool(working))
        self.check_device(devices[-1])
        for name in DEVICES:
            found = [d for d in devices if name in (d["platform"] + d["name"]).lower()]
            self.assertTrue(found, name)
            self.check_device(found[0])

    def test_default(self):
        if not DEVICES:
            self.skipTest("no OpenCL device")
        text = self.probe("--dim=16", env={"CLATTN_DEVICE": "cpu"}).stdout
        self.assertIn("; the default is what $CLATTN_DEVICE names, cpu\n", text)
        self.assertRegex(self.probe("--dim=16").stdout, r"; the default is \[\d+\] \S")

    def test_indices_select(self):
        for device in self.probe_everything()[1]["devices"]:
            # The reference needs no kernels, whose compilation takes long on some drivers.
            report = json.loads(self.run_ok(*INPUTS, "-o", "o.npy", "--algo=reference", "--json",
                                            f"--device={device['index']}"))
            self.assertEqual(report["device"]["name"], device["name"])
            self.assertEqual(report["device"]["index"], device["index"])

    def test_no_platforms(self):
        os.mkdir(self.path("vendors"))
        env = {"OCL_ICD_VENDORS": self.path("vendors"), "OCL_ICD_FILENAMES": ""}
        done = self.probe(env=env)
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 of 0 OpenCL devices work; the built-in CPU path remains", done.stdout)
        self.assertIn("how OpenCL was looked for\n", done.stdout)
        report = self.report(code=1, env=env)
        self.assertEqual(report["opencl_devices"], 0)
        self.assertTrue(report["messages"])
        if report["opencl_built"]:
            self.assertEqual(report["drivers"], {"folder": self.path("vendors"), "exists": True,
                                                 "from": "OCL_ICD_VENDORS", "drivers": []})
            for advice, system in zip(report["advice"], ADVICE):
                self.assertIn(system, advice["system"])
                self.assertIn(advice["system"], done.stdout)
        else:
            self.assertIn("without OpenCL", report["messages"][0])
            self.assertNotIn("advice", report)
        self.check_device(report["devices"][0])
        self.assertEqual(self.probe("--device", "0", env=env).returncode, 0)
        # There is nothing but the CPU path, and the others must find it by themselves.
        self.run_ok(*INPUTS, "-o", "o.npy", env=env)

    def test_errors(self):
        for args, says in ((["--device", "no such device"], "no such device"),
                           (["--device"], "--device needs a value"),
                           (["--device", "9999"], "9999"), (["x"], "unexpected argument x"),
                           (["--json", "--json"], "given twice"), (["-q"], "unknown option -q"),
                           (["--dev", "cpu"], "unknown option --dev"),
                           (["--dim", "0"], "--dim"), (["--dim", "64x"], "64x"),
                           (["--shape", "1,2,2,3,4"], "1,2,2,3,4"), (["--timeout", "0"], "0"),
                           (["--self-test=large"], "large")):
            self.run_bad(*args, program=PROGRAMS.probe, says=[says])

    def test_plans(self):
        """--dim and --shape in the order they were given; what cannot be planned says why."""
        shapes = ["1,8,8,2048,2048,64", "2,8,2,1,4096,100", "1,8,8,2048,2048,600",
                  "1,3,2,5,6,16", "1,8,8,2048,2048,72"]
        args = ["--dim=64", "--shape", shapes[1], "--dim", "600", "--shape", shapes[3], "--dim=72"]
        for device in ["cpu"] + DEVICES:
            report = self.report("--device", device, *args, code=1)
            self.assertEqual(report["unserved"], [shapes[2], shapes[3]])
            self.assertTrue(report["works"])
            plans = report["devices"][0]["plans"]
            self.assertEqual([p["shape"] for p in plans], shapes)
            self.assertEqual([p["dim"] for p in plans], [64, 100, 600, 16, 72])
            self.assertEqual([p["status"] == "success" for p in plans],
                             [True, True, False, False, True])
            self.assertIn("dim_qk is 600", plans[2]["messages"][0])
            self.assertIn("heads_q", plans[3]["messages"][0])
            if device == "cpu":
                self.assertTrue(plans[0]["refusals"][0].startswith("fused: "))
        text = self.probe("--device", "cpu", *args).stdout
        for shape in shapes:
            self.assertIn(shape, text)
        self.assertIn("LOCAL BYTES", text)
        self.assertIn(f"nothing serves {shapes[2]}\nnothing serves {shapes[3]}\n", text)
        # Two of them have the same tile.
        text = self.probe("--device", "cpu", *(f"--shape={b},1,1,4,4,8" for b in (1, 2)),
                          "--shape=1,1,1,4,4,256").stdout
        self.assertRegex(text, r"reason for 1,1,1,4,4,8; 2,1,1,4,4,8: ")

    def test_self_test(self):
        report = self.report("--device", "cpu", "--self-test=small", "--dim=16")
        device = report["devices"][0]
        self.check_cases(device, "small")
        self.assertEqual({c["algo"] for c in device["cases"]}, {"host"})
        text = self.probe("--device", "cpu", "--self-test", "--dim=16").stdout
        self.assertRegex(text, r"self-test \(medium\): (\d+) of \1 cases right")
        self.assertRegex(text, r"(?m)^clattn \d+\.\d+\.\d+ on ")
        for name in DEVICES:
            report = self.report("--device", name, "--self-test=small", "--dim=16")
            self.check_cases(report["devices"][0], "small")
            self.assertEqual({c["algo"] for c in report["devices"][0]["cases"]}, {"fused"})

    def check_cases(self, device, level):
        cases, summary = device["cases"], device["self_test"]
        self.assertEqual((summary["level"], summary["cases"]), (level, len(cases)))
        self.assertEqual(summary["right"], len(cases))
        self.assertGreaterEqual(len(cases), 15)
        self.assertEqual(len({c["name"] for c in cases}), len(cases))
        self.assertEqual({c["memory"] for c in cases}, {"host", "device"})
        for case in cases:
            self.assertEqual((case["result"], case["status"]), ("right", "success"))
            self.assertLessEqual(case["of_tolerance"], 1)
        self.assertEqual(max(c["of_tolerance"] for c in cases), summary["of_tolerance"])
        self.assertGreater(summary["of_tolerance"], 0)

    def test_wrong_results(self):
        """A device that computes wrong numbers, or fails, does not work."""
        args = ["--device", "cpu", "--self-test=small", "--dim=16"]
        # Element 70 is behind the guard band of a case, element 3 inside it.
        for fault, result in (("add:70", "wrong"), ("nan:3", "wrong"), ("status:13", "failed")):
            report = self.report(*args, code=1, program=PROGRAMS.probe_faulty,
                                 env={"TOOL_TEST_FAULT": fault})
            device = report["devices"][0]
            self.assertEqual(device["kernels"][0]["result"], result)
            bad = [c for c in device["cases"] if c["result"] != "right"]
            self.assertEqual({c["result"] for c in bad}, {result})
            self.assertEqual(len(bad), len(device["cases"]) - device["self_test"]["right"])
            # Where element 70 is NaN or padding, it stays so.
            self.assertGreater(len(bad), len(device["cases"]) - (5 if fault == "add:70" else 1))
            if fault == "nan:3":
                self.assertIn("wrote outside", device["cases"][0]["messages"][0])
        report = self.report(*args, program=PROGRAMS.probe_faulty)
        self.check_cases(report["devices"][0], "small")

    def test_schema_finds_faults(self):
        good = self.report("--device", "cpu", "--self-test=small", "--dim=16")

        def changed(change):
            report = copy.deepcopy(good)
            change(report)
            return faults(report, SCHEMA)

        self.assertEqual(changed(lambda r: None), [])
        for change in (lambda r: r.pop("version"), lambda r: r.update(extra=1),
                       lambda r: r.update(works="yes"), lambda r: r.update(opencl_devices=-1),
                       lambda r: r["devices"][0].update(index=True),
                       lambda r: r["devices"][0].update(type="TPU"),
                       lambda r: r["devices"][0]["kernels"][0].update(result="good"),
                       lambda r: r["devices"][0]["kernels"][0].update(max_error="big"),
                       lambda r: r["devices"][0]["plans"][0].pop("refusals"),
                       lambda r: r["devices"][0]["cases"][3].update(messages=[1])):
            self.assertEqual(len(changed(change)), 1)

    def test_colors(self):
        """On terminals only, and not where the user does not want them."""
        for env, expected in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            master, slave = pty.openpty()
            full = {**os.environ, "TERM": "xterm", **env}
            if not env:
                full.pop("NO_COLOR", None)
            with subprocess.Popen([PROGRAMS.probe, "--device", "cpu", "--dim=16"], env=full,
                                  stdin=subprocess.DEVNULL, stdout=slave) as run:
                os.close(slave)
                text = b""
                while select.select([master], [], [], 60)[0]:
                    try:
                        text += os.read(master, 4096)
                    except OSError:  # the other end was closed
                        break
                self.assertEqual(run.wait(60), 0)
            os.close(master)
            self.assertIn(b"the device works", text)
            self.assertEqual(b"\033[32m" in text, expected, env)
            self.assertEqual(b"\033" in text, expected, env)
        self.assertNotIn("\033", self.probe("--device", "cpu", "--dim=16").stdout)


class BadDrivers(ProbeCase):
    """A made-up OpenCL library that crashes and hangs."""

    def setUp(self):
        super().setUp()
        # A name that only processes of this test have on their command line.
        self.library = self.path("libfake.so")
        os.symlink(PROGRAMS.fake_opencl, self.library)
        self.args = ["--opencl-library", self.library, "--dim=16"]

    def fake(self, fault, *args, code=1):
        report = self.report(*self.args, *args, code=code, env={"FAKE_OPENCL": fault})
        self.assertEqual(self.left_over(), [])
        return report

    def left_over(self):
        """Processes that were left behind."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if self.library.encode() in file.read():
                        found.append(pid)
            except OSError:
                pass  # it has just ended
        return found

    def test_good_enough(self):
        """The library itself: it has a device, which computes nothing."""
        report = self.fake("")
        device = report["devices"][0]
        self.assertEqual((device["name"], report["opencl_devices"]), ("fake GPU", 1))
        self.assertIn(os.path.realpath(self.library), report["messages"][0])
        self.assertEqual([k["result"] for k in device["kernels"]],
                         ["failed", "failed", "refused"])
        self.assertIs(device["opened"], True)
        self.assertIn("wrong numbers", device["status"])
        self.assertEqual(device["failures"], [])
        self.assertEqual(device["plans"][0]["algo"], "host")
        self.assertGreater(len(device["plans"][0]["refusals"]), 1)
        self.assertIs(device["plans"][0]["is_fallback"], True)

    def test_tuning_file(self):
        """What is wrong with it is said of the device, once."""
        with open(self.path("tiles.txt"), "w", encoding="utf-8") as file:
            file.write("clattn-tune 1\nnonsense\n")
        done = self.run_program(
            PROGRAMS.probe, "--json", "--device=fake", *self.args,
            env={"FAKE_OPENCL": "", "CLATTN_TUNE": "1", "CLATTN_LOG": "warn",
                 "CLATTN_TUNE_FILE": self.path("tiles.txt")})
        messages = json.loads(done.stdout)["devices"][0]["messages"]
        self.assertEqual(len([m for m in messages if "is ignored: line 2" in m]), 1)
        self.assertEqual(done.stderr.count("is ignored: line 2"), 1)

    def test_no_devices(self):
        for fault, says in (("none", "no platform"), ("empty", "platform Fake (Fakers ")):
            report = self.fake(fault)
            self.assertEqual((report["opencl_devices"], len(report["devices"])), (0, 1))
            self.assertTrue(any(says in m for m in report["messages"]), report["messages"])

    def test_library_that_does_not_load(self):
        missing = self.path("missing.so")
        for library, says in ((missing, "cannot open shared object file"),
                              (PROGRAMS.fake_icd, "has no function cl")):
            report = self.report("--opencl-library", library, "--dim=16", code=1,
                                 env={"FAKE_ICD": "no"})
            self.assertEqual(report["opencl_devices"], 0)
            self.assertIn(f"no OpenCL library: {library}: ", report["messages"][0])
            self.assertIn(says, report["messages"][0])

    def test_enumeration(self):
        looking = "looking for OpenCL devices"
        for fault, what, args in (
                ("clGetPlatformIDs=segv", "killed by signal 11 (Segmentation fault)", []),
                ("clGetDeviceIDs=abort", "killed by signal 6 (Aborted)", []),
                ("clGetPlatformIDs=exit", "ended with exit status 0", []),
                ("load=segv", "killed by signal 11 (Segmentation fault)", []),
                ("load=exit", "ended with exit status 0", []),
                ("load=hang", "no answer after 1 s", ["--timeout=1"]),
                ("clGetPlatformIDs=hang", "no answer after 1 s", ["--timeout=1"])):
            report = self.fake(fault, *args)
            self.assertEqual([f["what"] for f in report["failures"]], [f"{what} while {looking}"])
            self.assertEqual(report["failures"][0]["said"],
                             ["fake driver: " + fault.split("=")[1]])
            self.assertIsNone(report["opencl_devices"])
            self.assertEqual([d["type"] for d in report["devices"]], ["built-in CPU path"])
            self.assertIs(report["devices"][0]["works"], True)
            text = self.run_program(PROGRAMS.probe, *self.args, *args, env={"FAKE_OPENCL": fault})
            self.assertEqual(text.returncode, 1)
            self.assertIn(f"{what} while {looking}", text.stdout)
            self.assertIn("no OpenCL device can be used", text.stdout)

    def test_output(self):
        """A driver may print without end: the last of it is told, and time still runs out."""
        said = "left out]"
        done = self.run_program(PROGRAMS.probe, "--json", *self.args,
                                env={"FAKE_OPENCL": "clGetPlatformIDs=noise"})
        self.assertIn(said, done.stderr)
        self.assertLess(len(done.stderr), 3 << 20)
        self.assertEqual(json.loads(done.stdout)["devices"][0]["name"], "fake GPU")
        done = self.run_program(PROGRAMS.probe, "--json", "--timeout=1", *self.args,
                                env={"FAKE_OPENCL": "clGetPlatformIDs=babble"})
        report = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no answer after 1 s while looking", report["failures"][0]["what"])
        self.assertEqual(len(report["failures"][0]["said"]), 12)
        self.assertIn(said, done.stderr)
        self.assertEqual(self.left_over(), [])

    def test_selection(self):
        """What cannot be opened is reported like the rest; none is opened to be found."""
        for selector in ("0", "fake", "FAKE gpu", "Fake", "gpu"):
            report = self.fake("clBuildProgram=abort", "--device", selector)
            self.assertEqual([d["name"] for d in report["devices"]], ["fake GPU"])
        for fault, says in (("clCreateContext=abort", "signal 6 (Aborted) while opening"),
                            ("clCreateContext=exit", "exit status 0 while opening"),
                            ("refuse", "an OpenCL call failed"), ("no-compiler", "not supported")):
            for args in ([], ["--device", "0"], ["--device", "fake"]):
                report = self.fake(fault, "--self-test=small", *args)
                self.assertEqual(len(report["devices"]), 1 if args else 2)
                device = report["devices"][0]
                self.assertEqual((device["name"], device["opened"], device["works"]),
                                 ("fake GPU", False, False))
                self.assertIn(says, device["status"])
                self.assertEqual(report["failures"], [])
        report = self.fake("clGetDeviceIDs=abort", "--device", "fake")
        self.assertEqual(report["devices"], [])
        self.assertIn("while looking for the device that", report["failures"][0]["what"])
        for selector in ("2", "fake GPU 2", "9999999999"):
            self.run_bad(*self.args, "--device", selector, program=PROGRAMS.probe,
                         says=[selector, "fits none of 2 devices"], env={"FAKE_OPENCL": ""})

    def test_nothing_behind_options(self):
        for args in (["--"], ["--device", "fake", "--"]):
            report = self.fake("", *args)
            self.assertEqual((report["failures"], report["devices"][0]["failures"]), ([], []))

    def test_opening(self):
        for fault, what in (("clCreateContext=segv", "opening the device"),
                            ("clBuildProgram=abort", "compiling and running the small self-test"),
                            ("clBuildProgram=exit", "compiling and running the small self-test"),
                            ("clEnqueueNDRangeKernel=abort", "running the small self-test kernel"),
                            ("clEnqueueNDRangeKernel=exit", "running the small self-test kernel"),
                            ("clBuildProgram=hang", "compiling and running the small self-test"),
                            ("clEnqueueNDRangeKernel=hang", "running the small self-test kernel")):
            args = ["--timeout=1"] if "hang" in fault else []
            device = self.fake(fault, *args)["devices"][0]
            self.assertIn(what, device["status"])
            self.assertIn(what, device["failures"][0]["what"])
            self.assertEqual((device["opened"], device["works"]), (False, False))

    def test_one_shape(self):
        """What crashes or hangs is named, and the rest is tried all the same."""
        for fault, result, what, args in (
                ("abort", "crashed", "killed by signal 6 (Aborted)", []),
                ("hang", "hung", "no answer after 1 s", ["--timeout=1"])):
            device = self.fake(f"clBuildProgram={fault}/fused_vector", *args)["devices"][0]
            what += " while compiling the vector shape"
            self.assertEqual([k["result"] for k in device["kernels"]],
                             ["failed", result, "refused"])
            self.assertEqual(device["kernels"][1]["status"], what)
            self.assertEqual(device["failures"][0]["what"], what)
            # The plan leaves that shape alone: behind the group shape comes the CPU path.
            self.assertEqual(device["plans"][0]["status"], "success")
            self.assertEqual(device["plans"][0]["algo"], "host")
        device = self.fake("clBuildProgram=abort/fused_group", "--dim=24", "--dim=32")["devices"][0]
        self.assertEqual([k["result"] for k in device["kernels"]],
                         ["crashed", "failed", "refused"])
        self.assertEqual([p["result"] for p in device["plans"]], ["crashed"] * 2)
        self.assertEqual(device["failures"][-1]["what"], "given up after 3 lost processes")

    def test_lost_case(self):
        device = self.fake("clBuildProgram=abort/fused_group", "--self-test=small")["devices"][0]
        self.assertEqual([c["result"] for c in device["cases"]], ["crashed"])
        self.assertIn(f"for case {device['cases'][0]['name']}", device["cases"][0]["status"])
        self.assertEqual(device["self_test"]["right"], 0)
        self.assertGreater(device["self_test"]["cases"], 15)

    def test_unloading(self):
        """What was found out before counts."""
        report = self.fake("unload=abort")
        self.assertIn("while the driver was unloaded", report["failures"][0]["what"])
        device = report["devices"][0]
        self.assertIn("while the driver was unloaded", device["failures"][0]["what"])
        self.assertEqual([k["result"] for k in device["kernels"]],
                         ["failed", "failed", "refused"])

    def test_cpu_opens_nothing(self):
        report = self.report("--opencl-library", PROGRAMS.fake_icd, "--device", "cpu", "--dim=16",
                             env={"FAKE_ICD": "load"})
        self.assertEqual(report["failures"], [])
        self.report("--opencl-library", PROGRAMS.fake_icd, "--dim=16", code=1,
                    env={"FAKE_ICD": "load"})

    def test_interrupted(self):
        """The child ends with the probe."""
        with subprocess.Popen([PROGRAMS.probe, *self.args], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "FAKE_OPENCL": "clGetPlatformIDs=hang"},
                              preexec_fn=usual_signals) as run:
            self.assertEqual(run.stderr.readline(), "fake driver: hang\n")
            self.assertEqual(len(self.left_over()), 2)
            run.terminate()
            self.assertEqual(run.wait(60), -15)
        for _ in range(100):  # a killed process is seen for a moment
            if not self.left_over():
                break
            time.sleep(0.05)
        self.assertEqual(self.left_over(), [])

    def vendors(self, **files):
        folder = self.path("vendors")
        os.makedirs(folder, exist_ok=True)
        for name, library in files.items():
            with open(os.path.join(folder, name + ".icd"), "w", encoding="utf-8") as file:
                file.write(library + "\n")
        return folder

    def test_vendor_files(self):
        """Libraries that do not load, are no drivers, or end the process."""
        folder = self.vendors(a="libclattn_missing.so", b="libm.so.6", c="", d=PROGRAMS.fake_icd)
        for from_, value in (("OCL_ICD_VENDORS", folder),
                             ("OCL_ICD_VENDORS", os.path.join(folder, "a.icd"))):
            report = self.report("--dim=16", code=1,
                                 env={"OCL_ICD_FILENAMES": "", from_: value, "FAKE_ICD": "no"})
            where = report["drivers"]
            self.assertEqual((where["folder"], where["from"], where["exists"]),
                             (value, from_, True))
            drivers = where["drivers"]
            self.assertEqual(drivers[0]["source"], os.path.join(folder, "a.icd"))
            self.assertEqual(drivers[0]["library"], "libclattn_missing.so")
            self.assertIn("cannot open shared object file", drivers[0]["why"])
        report = self.report("--dim=16", code=1, env={"OCL_ICD_VENDORS": self.path("none"),
                                                      "OCL_ICD_FILENAMES": "libm.so.6:x.so"})
        self.assertIs(report["drivers"]["exists"], False)
        self.assertEqual([(d["source"], d["library"]) for d in report["drivers"]["drivers"]],
                         [("OCL_ICD_FILENAMES", "libm.so.6"), ("OCL_ICD_FILENAMES", "x.so")])
        env = {"OCL_ICD_VENDORS": folder, "OCL_ICD_FILENAMES": ""}
        report = self.report("--dim=16", code=1, env={**env, "FAKE_ICD": "no"})
        drivers = report["drivers"]["drivers"]
        self.assertEqual([d["loads"] for d in drivers], [False, False, False, True])
        self.assertIn("no OpenCL driver", drivers[1]["why"])
        self.assertIn("names no library", drivers[2]["why"])
        self.assertEqual(drivers[3]["path"], PROGRAMS.fake_icd)

    def test_driver_that_ends_the_process(self):
        """It is told which of the drivers it is."""
        try:
            ctypes.CDLL("libOpenCL.so.1")
        except OSError as error:
            raise unittest.SkipTest("no OpenCL loader") from error
        folder = self.vendors(a=PROGRAMS.fake_icd, b="libclattn_missing.so")
        for when in ("load", "use"):
            report = self.report("--dim=16", code=1, env={
                "OCL_ICD_VENDORS": folder, "OCL_ICD_FILENAMES": "", "FAKE_ICD": when})
            self.assertIn("signal 6", report["failures"][0]["what"])
            self.assertNotIn("advice", report)
            bad, missing = report["drivers"]["drivers"]
            self.assertIs(missing["loads"], False)
            self.assertIs(bad["loads"], when == "use")
            self.assertIn("signal 6", bad["alone"] if when == "use" else bad["why"])
        # Each driver alone has a folder for as long as it is tried, also where that is cut short.
        os.mkdir(self.path("tmp"))
        env = {"OCL_ICD_VENDORS": folder, "OCL_ICD_FILENAMES": "", "FAKE_ICD": "hang",
               "TMPDIR": self.path("tmp")}
        with subprocess.Popen([PROGRAMS.probe, "--timeout=2"], env={**os.environ, **env},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              preexec_fn=usual_signals) as run:
            while not os.listdir(self.path("tmp")):
                self.assertIsNone(run.poll())
                time.sleep(0.01)
            time.sleep(0.2)
            run.terminate()
            self.assertEqual(run.wait(60), -15)
        self.assertEqual(os.listdir(self.path("tmp")), [])


if __name__ == "__main__":
    with_fakes = [BadDrivers] if any(a.startswith("--fake") for a in sys.argv) else []
    main(sys.modules[__name__], [Probe, *with_fakes])
