# SPDX-License-Identifier: Apache-2.0
"""Row softmax on its own."""
from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Union

import numpy as np

from ._arrays import (BF16, F32, DTypeLike, View, contiguous, dtype_code, dtype_of,
                      empty_like_kind, is_bits, named_code, view, writable)
from ._attention import whose
from ._context import Context
from ._kv import launch
from ._native import call, fail, ffi, lib
from ._values import choose, flag, number

_ALGOS = {name: getattr(lib, "CLATTN_SOFTMAX_" + name.upper())
          for name in ("auto", "naive", "safe", "online")}
_PATHS = {name: getattr(lib, "CLATTN_SOFTMAX_PATH_" + name.upper())
          for name in ("auto", "opencl", "host", "reference")}


class _SoftmaxPlan:
    def __init__(self, context: Context, key: tuple[Any, ...]) -> None:
        desc = ffi.new("clattn_softmax_desc *")
        lib.clattn_softmax_desc_init(desc, ffi.sizeof("clattn_softmax_desc"))
        desc.algo, desc.path, desc.dtype_x, desc.dtype_y, desc.features, desc.flags = key[1:]
        handle = context.handle
        out = ffi.new("clattn_softmax_plan **")
        call(lib.clattn_softmax_plan_create, handle, desc, out)

        def destroy(pointer: Any, _context: Any = handle) -> None:
            lib.clattn_softmax_plan_destroy(ffi.new("clattn_softmax_plan **", pointer))
        self.handle: Any = ffi.gc(out[0], destroy)


def _rows(found: View, name: str) -> tuple[int, int, int]:
    """Rows, entries of one, and elements between rows."""
    if not found.shape:
        raise fail("ERR_SHAPE", f"{name} has no axes")
    rows, length, stride = math.prod(found.shape[:-1]), found.shape[-1], 0
    if not rows or not length:
        return rows, length, 0  # no element, and no stride that would count
    rows = 1
    for extent, step in zip(reversed(found.shape[:-1]), reversed(found.strides[:-1])):
        if extent > 1 and rows > 1 and step != stride * rows:
            raise fail("ERR_STRIDE", f"{name}: rows are not evenly spaced")
        if extent > 1 and rows == 1:
            stride = step
        rows *= extent
    if found.strides[-1] != 1 and length > 1:
        raise fail("ERR_STRIDE", f"{name}: entries of a row are not contiguous")
    if rows > 1 and stride < length:
        # The library reads 0, of rows that were broadcast, as the length.
        raise fail("ERR_STRIDE", f"{name}: rows of {length} lie {stride} elements apart")
    return rows, length, stride


def softmax(x: Any, *, scale: Optional[float] = None, algo: Optional[str] = None,
            path: Optional[str] = None, dtype: Optional[DTypeLike] = None,
            out_dtype: Optional[DTypeLike] = None, return_lse: bool = False, out: Any = None,
            lse: Any = None, device: Union[str, int, None] = None,
            context: Optional[Context] = None, queue: Any = None, wait_for: Sequence[Any] = (),
            fallback: bool = True) -> Any:
    """softmax(scale * x) over the last axis; clattn/softmax.h says how.

    algo: "online" (the default), "safe", or "naive", which overflows. path: "opencl", "host" or
    "reference" instead of what suits. out may be x. Returns out, or (out, lse) with return_lse.
    """
    return_lse = flag(return_lse, "return_lse") or lse is not None
    source = view(x, "x")
    rows, length, stride = _rows(source, "x")
    bits = is_bits(dtype, {"x": x, "out": out}) or source.bits
    code = dtype_code(source.dtype, bits, "x")
    out_code = code
    if out_dtype is not None:
        out_code = named_code(out_dtype, "out_dtype")
    elif out is not None:
        out_code = dtype_code(view(out, "out").dtype, bits or getattr(out, "bits", False), "out")
    queue, context = whose((x,), queue, context, device)
    key = ("softmax", choose(_ALGOS, algo, "algo"), choose(_PATHS, path, "path"), code, out_code,
           lib.CLATTN_SOFTMAX_LSE if return_lse else 0,
           0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK)
    plan: _SoftmaxPlan = context.plan(key, lambda: _SoftmaxPlan(context, key))

    if out is None:
        out = empty_like_kind(x, source.shape, dtype_of(out_code, source.dtype), context, queue)
    target = writable(out, "out")
    if target.shape != source.shape:
        raise fail("ERR_SHAPE", f"out has shape {target.shape} and x {source.shape}")
    if dtype_code(target.dtype, bits or target.bits or out_code == BF16, "out") != out_code:
        raise TypeError(f"out is {target.dtype}, not {dtype_of(out_code)}")
    c = ffi.new("clattn_softmax_call *")
    lib.clattn_softmax_call_init(c, ffi.sizeof("clattn_softmax_call"))
    c.rows, c.len = rows, length
    if scale is not None:
        c.scale = number(scale, "scale")
        c.set = lib.CLATTN_SOFTMAX_SET_SCALE
    source.fill(c.x)
    target.fill(c.y)
    c.stride_x, c.stride_y = stride, _rows(target, "out")[2]
    views = [source, target]
    if return_lse:
        if lse is None:
            lse = empty_like_kind(x, source.shape[:-1], dtype_of(F32), context, queue)
        sums = writable(lse, "lse")
        if sums.shape != source.shape[:-1] or sums.dtype != np.float32:
            raise fail("ERR_SHAPE", f"lse is {sums.dtype} {sums.shape}, not float32 "
                                    f"{source.shape[:-1]}")
        contiguous(sums, "lse")
        sums.fill(c.lse)
        views.append(sums)

    def workspace() -> int:
        size = ffi.new("size_t *")
        call(lib.clattn_softmax_workspace_bytes, plan.handle, rows, length, size)
        return int(size[0])
    launch("softmax", plan.handle, c, queue, wait_for, views, [out, lse], workspace)
    return (out, lse) if return_lse else out
