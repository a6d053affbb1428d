# SPDX-License-Identifier: Apache-2.0
"""The CPU path's object for AVX512_BF16 has the instructions where its time goes, and the objects
for other processors have none of them.

Usage: test_dot_object.py OBJDUMP LEAST DOT_LIBRARY OTHER_LIBRARY...
LEAST: instructions that a register block has, as many as accumulators where loops are unrolled.
"""
import re
import subprocess
import sys

WANTED = {"dot_score_block": "vdpbf16ps", "dot_pv_block": "vdpbf16ps",
          "dot_pack_weights": "vcvtne2ps2bf16"}


def count(objdump, library):
    """Maps (function, instruction) to how often it is there."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    found, function = {}, ""
    for line in text.splitlines():
        start = re.match(r"[0-9a-f]+ <(\w+)", line)
        if start:
            function = start.group(1)
        for word in re.findall(r"\bv(?:dpbf16ps|cvtne2?ps2bf16)\b", line):
            found[function, word] = found.get((function, word), 0) + 1
    return found


def main():
    objdump, blocks, dot, *others = sys.argv[1:]
    faults = []
    found = count(objdump, dot)
    for function, word in WANTED.items():
        least = int(blocks) if function.endswith("_block") else 1
        here = found.get((function, word), 0)
        print(f"{function}: {here} of {word}")
        if here < least:
            faults.append(f"{function} has {here} of {word}, not {least} or more")
    for library in others:
        if count(objdump, library):
            faults.append(f"{library} has instructions that its processors may lack")
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
