# SPDX-License-Identifier: Apache-2.0
"""That make_ffi.py refuses what it does not understand, and that its checks of the layout bite."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = [ROOT / "include/clattn" / f"{name}.h"
           for name in ("base", "context", "attention", "softmax", "kv", "opencl")]


class MakeFfi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, *headers):
        return subprocess.run(
            [sys.executable, str(ROOT / "python/make_ffi.py"), str(self.folder / "_ffi.py"),
             str(self.folder / "layout.c"), *map(str, headers)],
            capture_output=True, text=True, check=False)

    def test_what_is_not_known_is_refused(self):
        for line, words in (("#if FOO\n#endif", "condition"), ("#define CLATTN_F(x) (x)", "macro"),
                            ("#pragma pack(1)", "directive"), ("#ifdef __cplusplus", "end"),
                            ("static inline int f(void)\n{\n    return 1;\n}", "declaration"),
                            ("struct clattn_x { _Bool y : };", "")):
            header = self.folder / "x.h"
            header.write_text(f"#ifndef CLATTN_X_H\n#define CLATTN_X_H\n{line}\n#endif\n")
            done = self.make(header)
            self.assertNotEqual(done.returncode, 0, line)
            self.assertIn(words, done.stderr)

    @unittest.skipUnless(shutil.which("cc"), "there is no cc")
    def test_another_layout_does_not_compile(self):
        self.assertEqual(self.make(*HEADERS).returncode, 0)
        command = ["cc", "-std=c11", "-fsyntax-only", "-Wall", "-Werror",
                   str(self.folder / "layout.c"), "-I"]
        self.assertEqual(subprocess.run([*command, str(ROOT / "include")], check=False,
                                        capture_output=True).returncode, 0)
        shutil.copytree(ROOT / "include", self.folder / "include")
        base = self.folder / "include/clattn/base.h"
        text = base.read_text()
        for old, new in (("    int32_t kind; ", "    int64_t kind; "),
                         ("CLATTN_ERR_SHAPE = 2", "CLATTN_ERR_SHAPE = 22"),
                         ("int clattn_version(void)", "long clattn_version(void)")):
            self.assertIn(old, text)
            base.write_text(text.replace(old, new))
            done = subprocess.run([*command, str(self.folder / "include")], check=False,
                                  capture_output=True)
            self.assertNotEqual(done.returncode, 0, new)


if __name__ == "__main__":
    unittest.main()
