#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How tools/gpu_compile_check reads lists and compilers' words. No compiler is run.

  test_gpu_compile_check.py LIST_VARIANTS
"""
import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "tools" / "gpu_compile_check"
loader = importlib.machinery.SourceFileLoader("gpu_compile_check", str(SCRIPT))
check = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(check)
LISTER = sys.argv.pop(1)

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax_row' for 'sm_75'
ptxas info    : Function properties for softmax_row
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 63 registers, used 1 barriers, 2048 bytes smem, 456 bytes cmem[0]
ptxas info    : Compiling entry function 'softmax_write' for 'sm_75'
ptxas info    : Function properties for softmax_write
    144 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, 456 bytes cmem[0]
"""
GCN = """\
\t.amdhsa_kernel unfused_copy
\t\t.amdhsa_group_segment_fixed_size 0
\t.end_amdhsa_kernel
; NumSgprs: 40
; NumVgprs: 19
; NumAgprs: 0
; TotalNumVgprs: 19
; ScratchSize: 0
; LDSByteSize: 0 bytes/workgroup (compile time only)
; Occupancy: 8
\t.amdhsa_kernel fused_group
; NumVgprs: 128
; NumAgprs: 60
; TotalNumVgprs: 188
; ScratchSize: 96
; LDSByteSize: 25104 bytes/workgroup (compile time only)
; Occupancy: 2
\t.amdhsa_kernel two_loop_group
; NumVgprs: 142
; ScratchSize: 36
; LDSByteSize: 34832 bytes/workgroup (compile time only)
; Occupancy: 2
    .name:           unfused_copy
    .sgpr_spill_count: 0
    .vgpr_spill_count: 0
    .name:           fused_group
    .sgpr_spill_count: 2
    .vgpr_spill_count: 24
    .name:           two_loop_group
    .sgpr_spill_count: 8
    .vgpr_spill_count: 0
"""
OCLOC = """\

warning: kernel fused_group  compiled SIMD8 allocated 128 regs and spilled around 10

Build succeeded.
"""


class Compilers(unittest.TestCase):
    def test_ptxas(self):
        self.assertEqual(check.parse_ptxas(PTXAS),
                         {"softmax_row": {"regs": 63, "spill": 0, "local": 2048},
                          "softmax_write": {"regs": 255, "spill": 144, "local": 0}})

    def test_gcn(self):
        self.assertEqual(check.parse_gcn(GCN),
                         {"unfused_copy": {"regs": 19, "spill": 0, "local": 0, "occupancy": 8},
                          "fused_group": {"regs": 188, "spill": 96, "local": 25104,
                                          "occupancy": 2},
                          "two_loop_group": {"regs": 142, "spill": 0, "local": 34832,
                                             "occupancy": 2}})

    def test_ocloc(self):
        self.assertEqual(check.parse_ocloc(OCLOC), {"fused_group": {"spill": 10, "simd": 8}})
        self.assertEqual(check.parse_ocloc("Build succeeded.\n"), {})

    def test_kernels_of_a_text(self):
        text = ("// a __kernel void no(\n__kernel __attribute__((reqd_work_group_size(N, 1, 1)))\n"
                "LANES void one(int x)\n{}\n__kernel void two (int y) {}\n")
        self.assertEqual(check.kernels_in(text), ["one", "two"])

    def test_warps_by_registers_local_memory_and_groups(self):
        # 128 registers: 16 warps of a multiprocessor; 23056 bytes: 2 groups of 64 KiB.
        self.assertEqual(check.warps_per_unit("sm_75", 126, 23056, 128), 8)
        self.assertEqual(check.warps_per_unit("sm_90", 128, 23056, 128), 16)
        self.assertEqual(check.warps_per_unit("sm_90", 32, 0, 64), 64)
        self.assertEqual(check.warps_per_unit("sm_86", 32, 0, 32), 16)


class Verdicts(unittest.TestCase):
    row = {"error": "", "local": 1000, "bill": 1000, "device": "nvidia", "choice": 0, "spill": 0}

    def test_what_fails(self):
        self.assertEqual(check.judge(self.row), "")
        for change, word in (({"error": "x"}, "compile"), ({"spill": 4}, "spills"),
                             ({"local": 1001}, "bill"), ({"local": 49153, "bill": 0}, "device")):
            self.assertIn(word, check.judge(self.row | change))

    def test_what_passes(self):
        self.assertEqual(check.judge(self.row | {"spill": 4, "choice": 1}), "")
        self.assertEqual(check.judge(self.row | {"local": 65536, "bill": 0,
                                                 "device": "intel-xe-hpc"}), "")


class Lists(unittest.TestCase):
    def test_options_are_numbers(self):
        said = subprocess.run([LISTER], check=True, capture_output=True, text=True).stdout
        option = r"(-cl-std=CL1\.2|-w|-D[A-Z_]+(=-?[0-9]+)?)"
        for line in said.splitlines():
            options = line.split("\t")[-1]
            self.assertRegex(options, f"^{option}( {option})+$")

    @classmethod
    def setUpClass(cls):
        said = subprocess.run([LISTER], check=True, capture_output=True, text=True).stdout
        cls.variants = check.parse_variants(said)

    def test_every_device_has_every_kernel(self):
        files = {"fused_group.cl", "split_kv_group.cl", "merge.cl", "two_loop_group.cl",
                 "fused_kv_outer_group.cl", "unfused.cl", "softmax.cl", "append.cl", "rotary.cl",
                 "merge_parts.cl", "fused_vector.cl", "split_kv_few.cl"}
        for device in check.LOCAL_LIMIT:
            core = [v for v in self.variants if v["device"] == device and v["set"] == "core"]
            self.assertEqual({v["file"] for v in core}, files)
            self.assertTrue(all(v["choice"] == ("vector" in v["tile"]) for v in core))

    def test_no_variant_comes_twice_or_over_the_limit(self):
        keys = [(v["device"], v["file"], v["options"]) for v in self.variants]
        self.assertEqual(len(keys), len(set(keys)))
        for v in self.variants:
            self.assertLessEqual(v["bill"], check.LOCAL_LIMIT[v["device"]])

    def test_each_shape_has_its_literals(self):
        group = ["TILE_Q", "ITEMS_Q", "ITEMS_K", "CHUNK_D", "LONG_ROWS", "SUBGROUPS"]
        literals = {"vector": ["W", "QV", "RK", "RD"], "few": ["W", "ROWS"], "group": group}
        seen = set()
        for v in self.variants:
            shape = re.search(r"_(vector|few|group)\.cl$", v["file"])
            if shape:
                seen.add((v["device"], shape[1]))
                for name in literals[shape[1]] + ["DIM_QK", "DIM_V", "MASK_KIND", "TILE_K"]:
                    self.assertRegex(v["options"], r" -D%s=\d+( |$)" % name)
        self.assertEqual(len(seen), 15)  # five devices, three shapes

    def test_few_lanes_only_where_the_smallest_subgroup_is_16(self):
        for v in self.variants:
            wants = v["device"] == "intel-xe-hpc" and v["file"] != "softmax.cl"
            self.assertEqual("-DSUBGROUP_LANES=16" in v["options"], wants, v)

    def test_text_of_a_file(self):
        text = subprocess.run([LISTER, "fused_group.cl"], check=True, capture_output=True,
                              text=True).stdout
        self.assertNotIn('#include "', text)
        self.assertEqual(check.kernels_in(text), ["fused_group"])
        self.assertNotEqual(subprocess.run([LISTER, "none.cl"], capture_output=True,
                                           check=False).returncode, 0)

    def test_rows_and_table(self):
        v = next(v for v in self.variants if v["file"] == "fused_group.cl"
                 and v["device"] == "nvidia")
        good = {"kernels": {"fused_group": {"regs": 126, "spill": 0, "local": v["bill"]}}}
        rows = check.rows_of(v, "sm_75", good) + check.rows_of(v, "sm_90", {"error": "no\n"})
        for r in rows:
            r["wrong"] = check.judge(r)
        self.assertEqual([bool(r["wrong"]) for r in rows], [False, True])
        lines = check.table(rows).splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(len({line.index("first") for line in lines[1:]}), 1)
        self.assertIn("126", lines[1])


class Missing(unittest.TestCase):
    def test_nothing_to_check_is_77_and_a_required_vendor_1(self):
        with tempfile.TemporaryDirectory() as folder:
            build = str(pathlib.Path(LISTER).parents[2])
            command = [sys.executable, "-B", str(SCRIPT), "--no-fetch", "--tools", folder,
                       "--build", build, "--targets", "intel"]
            env = {"PATH": folder}
            got = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            self.assertEqual(got.returncode, 77, got.stderr)
            self.assertIn("intel is left out: no ocloc", got.stderr)
            got = subprocess.run(command + ["--require", "intel"], env=env, capture_output=True,
                                 text=True, check=False)
            self.assertEqual(got.returncode, 1)


if __name__ == "__main__":
    unittest.main()
