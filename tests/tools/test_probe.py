#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of clattn-probe."""
import json
import os
import sys

from tool_case import DEVICES, INPUTS, PROGRAMS, Folder, main


FACTS = ("index type platform name vendor driver version rank compute_units native_width_f32 "
         "max_group max_items local_bytes local_is_global host_unified global_bytes "
         "max_alloc_bytes cache_bytes has_fp16 has_subgroups vector_shape quirks works status "
         "messages kernels plans").split()


class Probe(Folder):
    drivers = True
    everything = None

    def probe(self, *args, **more):
        done = self.run_program(PROGRAMS.probe, *args, **more)
        self.assertEqual(done.said, "")
        return done

    def test_builtin(self):
        done = self.probe("--device", "cpu")
        self.assertEqual(done.returncode, 0)
        for text in ("built-in CPU path", "the device works", "ALGORITHM", "right"):
            self.assertIn(text, done.stdout)
        report = json.loads(self.probe("--device", "cpu", "--json").stdout)
        self.assertEqual(len(report["devices"]), 1)
        self.check_device(report["devices"][0])

    def probe_everything(self):
        """Exit status and report of all devices, which takes long, so it is made once."""
        if not Probe.everything:
            done = self.probe("--json")
            Probe.everything = done.returncode, json.loads(done.stdout)
        return Probe.everything

    def check_device(self, device):
        self.assertLessEqual(set(FACTS), set(device))
        self.assertIs(device["works"], True)
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
        self.assertEqual(names, ["host"] if builtin else ["group", "vector"])
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
        self.assertIn("looked for", done.stdout)
        report = json.loads(self.probe("--json", env=env).stdout)
        self.assertEqual(report["opencl_devices"], 0)
        self.check_device(report["devices"][0])
        self.assertEqual(self.probe("--device", "0", env=env).returncode, 0)
        # There is nothing but the CPU path, and the others must find it by themselves.
        self.run_ok(*INPUTS, "-o", "o.npy", env=env)

    def test_errors(self):
        for args, says in ((["--device", "no such device"], "no such device"),
                           (["--device"], "--device needs a value"),
                           (["--device", "9999"], "9999"), (["x"], "unexpected argument x"),
                           (["--json", "--json"], "given twice"), (["-q"], "unknown option -q"),
                           (["--dev", "cpu"], "unknown option --dev")):
            self.run_bad(*args, program=PROGRAMS.probe, says=[says])


if __name__ == "__main__":
    main(sys.modules[__name__], [Probe])
