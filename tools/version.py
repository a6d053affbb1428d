#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the version that include/clattn/base.h states, the one place where it is written."""
import pathlib
import re

header = pathlib.Path(__file__).resolve().parent.parent / "include/clattn/base.h"
fields = dict(re.findall(r"#define CLATTN_VERSION_(MAJOR|MINOR|PATCH) (\d+)", header.read_text()))
print(".".join(fields[name] for name in ("MAJOR", "MINOR", "PATCH")))
