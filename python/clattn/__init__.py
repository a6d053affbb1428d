# SPDX-License-Identifier: Apache-2.0
"""Attention on any OpenCL device and on CPUs, on NumPy arrays and arrays of pyopencl.

    import clattn
    out = clattn.attention(q, k, v, causal=True)

docs/python.md says more; the C headers define every number.
"""
from ._arrays import DeviceArray
from ._attention import Plan, PlanInfo, Tile, attention
from ._context import Context, DeviceInfo, devices
from ._errors import (DeviceError, Error, InvalidArgumentError, NoDeviceError, OutOfMemoryError,
                      UnsupportedError)
from ._kv import append, merge, quantize, rotary, rotary_tables
from ._native import version
from ._softmax import softmax

__version__ = version

__all__ = [
    "Context", "DeviceArray", "DeviceError", "DeviceInfo", "Error", "InvalidArgumentError",
    "NoDeviceError", "OutOfMemoryError", "Plan", "PlanInfo", "Tile", "UnsupportedError", "append",
    "attention", "devices", "merge", "quantize", "rotary", "rotary_tables", "softmax", "version",
]
