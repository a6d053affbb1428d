# SPDX-License-Identifier: Apache-2.0
"""The shapes that are compared, and what each of them is worth."""
import re
from collections import namedtuple

DTYPES = {"f32": 4, "bf16": 2}
# Largest difference from the double result; inputs are normal numbers, so outputs are below 6.
TOLERANCE = {"f32": 2e-5, "bf16": 2e-2}


class Shape(namedtuple("Shape", "batch heads kv_heads len_q len_kv dim causal")):
    """Bottom-right aligned: query i sees key j <= i + len_kv - len_q where causal."""

    @property
    def name(self):
        return ",".join(str(n) for n in self[:6]) + (",causal" if self.causal else "")

    @property
    def decode(self):
        return self.len_q == 1

    @property
    def pairs(self):
        """Pairs of a query and a key that see each other, over all heads."""
        one = self.len_q * self.len_kv
        if self.causal:
            hidden = self.len_q - 1
            one -= hidden * (hidden + 1) // 2
        return self.batch * self.heads * one

    @property
    def flops(self):
        return 4 * self.pairs * self.dim

    def kv_bytes(self, dtype):
        return 2 * self.batch * self.kv_heads * self.len_kv * self.dim * DTYPES[dtype]


def parse(text):
    """B,H,HKV,LQ,LKV,D with ,causal behind it where it is. ValueError says what is wrong."""
    match = re.fullmatch(r"(\d+(?:,\d+){5})(,causal)?", text.strip())
    if not match:
        raise ValueError(f"'{text}' is not B,H,HKV,LQ,LKV,D or B,H,HKV,LQ,LKV,D,causal")
    numbers = [int(n) for n in match.group(1).split(",")]
    if min(numbers) < 1 or numbers[1] % numbers[2] or (match.group(2) and numbers[4] < numbers[3]):
        raise ValueError(f"'{text}': numbers start at 1, HKV divides H, causal needs LKV >= LQ")
    return Shape(*numbers, bool(match.group(2)))


DEFAULT = [parse(text) for text in (
    "1,8,8,512,512,64",
    "1,8,8,2048,2048,64",
    "1,8,8,2048,2048,64,causal",
    "1,8,8,1024,1024,128",
    "1,8,8,1024,1024,128,causal",
    "8,8,8,128,128,64",
    "1,8,1,1024,1024,80,causal",
    "1,4,4,8192,8192,64,causal",
    "1,32,8,1,4096,128",
    "1,32,8,1,16384,128",
    "16,32,8,1,1024,128",
)]
