# SPDX-License-Identifier: Apache-2.0
"""What stands around attention: merging, rotary position embedding, caches, int8."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._arrays import (BF16, CL_MEM, F32, Axes, DeviceArray, DTypeLike, View, contiguous, dtype_code,
                      dtype_of, empty_like_kind, floats, ints, is_bits, is_bshd, named_code, view,
                      word, writable)
from ._attention import whose
from ._context import Context, defaults, events_of
from ._native import call, fail, ffi, lib
from ._values import choose, flag, integer, number

_PAIRS = {"interleaved": lib.CLATTN_ROTARY_INTERLEAVED, "half-split": lib.CLATTN_ROTARY_HALF_SPLIT}
_MAX_PARTS: int = lib.CLATTN_MERGE_MAX_PARTS


def launch(name: str, handle: Any, struct: Any, queue: Any, wait_for: Sequence[Any],
           views: Sequence[View], outputs: Sequence[Any],
           workspace: Optional[Callable[[], int]] = None) -> None:
    """Enqueues where all lies on the device of a queue, else runs and waits."""
    events = events_of(wait_for)
    for array in (*(found.owner for found in views), *outputs):
        if array is not None and not isinstance(array, np.ndarray):
            events += list(getattr(array, "events", ()))
    if queue is None or not all(found.kind == CL_MEM for found in views):
        for event in events:
            event.wait()
        call(getattr(lib, f"clattn_{name}_run"), handle, struct)
        return
    import pyopencl
    needed = workspace() if workspace is not None else 0
    if needed:
        # OpenCL itself keeps memory until the work that was queued with it is done.
        memory = pyopencl.Buffer(queue.context, pyopencl.mem_flags.READ_WRITE, needed)
        struct.workspace.kind = CL_MEM
        struct.workspace.ptr = ffi.cast("void *", memory.int_ptr)
    waits = ffi.new("cl_event[]", [ffi.cast("cl_event", e.int_ptr) for e in events])
    done = ffi.new("cl_event *")
    call(getattr(lib, f"clattn_{name}_enqueue"), handle, struct,
         ffi.cast("cl_command_queue", queue.int_ptr), len(events), waits if events else ffi.NULL,
         done)
    event = pyopencl.Event.from_int_ptr(int(ffi.cast("intptr_t", done[0])), False)
    for array in outputs:
        if hasattr(array, "add_event"):
            array.add_event(event)


# ---- merging -----------------------------------------------------------------------------------

def merge(parts: Sequence[Any], lses: Sequence[Any], *, sinks: Any = None, out: Any = None,
          lse: Any = None, layout: str = "bhsd", dtype: Optional[DTypeLike] = None,
          out_dtype: Optional[DTypeLike] = None, device: Union[str, int, None] = None,
          context: Optional[Context] = None, queue: Any = None, wait_for: Sequence[Any] = (),
          fallback: bool = True) -> tuple[Any, Any]:
    """Attention over sets of keys that have none in common, made one: (out, lse) of (parts, lses),
    as attention() returned them, computed without the sinks. More than 8 parts of a type other than
    float32 are rounded on the way."""
    for name, given in (("parts", parts), ("lses", lses)):
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
            raise TypeError(f"{name} is {type(given).__name__}, not a list of arrays")
    if len(parts) != len(lses) or not parts:
        raise fail("ERR_SHAPE", f"{len(parts)} parts and {len(lses)} lses")
    queue, context = whose(parts, queue, context, device)
    bshd = is_bshd(layout)
    first = Axes(view(parts[0], "parts[0]"), "parts[0]", bshd)
    bits = is_bits(dtype, {"parts[0]": parts[0], "out": out}) or first.view.bits
    code = dtype_code(first.view.dtype, bits, "parts[0]")
    out_code = code if out_dtype is None else named_code(out_dtype, "out_dtype")
    if out is not None and out_dtype is None:
        out_code = dtype_code(view(out, "out").dtype, bits or getattr(out, "bits", False), "out")
    if len(parts) > _MAX_PARTS and out_code != code:
        raise fail("ERR_UNSUPPORTED", f"more than {_MAX_PARTS} parts need an out of their type")
    # What all passes but the last write is no memory of the caller's: that may be a part's, which
    # a later pass reads.
    step, step_lse = out, lse
    made, made_lse = ((parts[0], first.view.shape, dtype_of(out_code, first.view.dtype)),
                      (lses[0], floats(lses[0], "lses[0]", (2, 3)).shape, dtype_of(F32)))
    if out is None:
        step = out = empty_like_kind(*made, context, queue)
    elif len(parts) > _MAX_PARTS:
        step = _spare(*made, context, queue)
    if lse is None:
        step_lse = lse = empty_like_kind(*made_lse, context, queue)
    elif len(parts) > _MAX_PARTS:
        step_lse = _spare(*made_lse, context, queue)
    waiting = list(parts)
    sums = list(lses)
    while True:
        few, few_lses = waiting[:_MAX_PARTS], sums[:_MAX_PARTS]
        waiting, sums = waiting[_MAX_PARTS:], sums[_MAX_PARTS:]
        if not waiting:
            step, step_lse = out, lse
        _merge_few(context, few, few_lses, None if waiting else sinks, step, step_lse, bshd,
                   (code, out_code, bits), queue, wait_for, fallback)
        if not waiting:
            return out, lse
        waiting.insert(0, step)
        sums.insert(0, step_lse)


def _spare(like: Any, shape: tuple[int, ...], dtype: np.dtype[Any], context: Context, queue: Any
           ) -> Any:
    """As empty_like_kind(), and without a queue memory of the context."""
    if queue is not None or not (isinstance(like, DeviceArray) or hasattr(like, "base_data")):
        return empty_like_kind(like, shape, dtype, context, queue)
    spare = context.empty(shape, dtype)
    spare.bits = getattr(like, "bits", False)
    return spare


def _merge_few(context: Context, parts: list[Any], lses: list[Any], sinks: Any, out: Any, lse: Any,
               bshd: bool, codes: tuple[int, int, bool], queue: Any, wait_for: Sequence[Any],
               fallback: bool) -> None:
    code, out_code, bits = codes
    c = ffi.new("clattn_merge_call *")
    lib.clattn_merge_call_init(c, ffi.sizeof("clattn_merge_call"))
    tensors = ffi.new("clattn_tensor[]", len(parts))
    bufs = ffi.new("clattn_buf[]", len(parts))
    target = Axes(writable(out, "out"), "out", bshd)
    if dtype_code(target.view.dtype, bits or target.view.bits or out_code == BF16,
                  "out") != out_code:
        raise TypeError(f"out is {target.view.dtype}, not {dtype_of(out_code)}")
    views = [target.view]
    shape = (target.batch, target.heads, target.seq)
    for n, (part, part_lse) in enumerate(zip(parts, lses)):
        axes = Axes(view(part, f"parts[{n}]"), f"parts[{n}]", bshd)
        if not axes.same_but_dim(target) or axes.dim != target.dim:
            raise fail("ERR_SHAPE", f"parts[{n}] has shape {axes.view.shape} and out "
                                    f"{target.view.shape}")
        if dtype_code(axes.view.dtype, bits or axes.view.bits, f"parts[{n}]") != code:
            raise TypeError(f"parts[{n}] is {axes.view.dtype}, not {dtype_of(code)}")
        axes.fill(tensors[n])
        found = floats(part_lse, f"lses[{n}]", (2, 3))
        _check_lse(found, f"lses[{n}]", shape)
        found.fill(bufs[n])
        views += [axes.view, found]
    c.num_parts = len(parts)
    c.batch, c.heads, c.len_q = shape
    c.dim_v = target.dim
    c.dtype_parts, c.dtype_o = code, out_code
    c.flags = 0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK
    c.parts, c.parts_lse = tensors, bufs
    target.fill(c.o)
    if sinks is not None:
        found = floats(sinks, "sinks")
        if found.shape != (target.heads,):
            raise fail("ERR_SHAPE", f"sinks has shape {found.shape}, not {(target.heads,)}")
        found.fill(c.sinks)
        views.append(found)
    total = writable(lse, "lse")
    contiguous(total, "lse")
    if total.dtype != np.float32:
        raise TypeError(f"lse is {total.dtype}, not float32")
    _check_lse(total, "lse", shape)
    total.fill(c.lse)
    launch("merge", context.handle, c, queue, wait_for, [*views, total], [out, lse])


def _check_lse(found: View, name: str, shape: tuple[int, int, int]) -> None:
    if found.shape != shape and (shape[0] != 1 or found.shape != shape[1:]):
        raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, not {shape}")


# ---- int8 --------------------------------------------------------------------------------------

def quantize(x: npt.ArrayLike) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rounds the last axis of float32 to int8 with a scale each: (int8, scale), as attention()
    takes them for k and v."""
    source = np.ascontiguousarray(x, dtype=np.float32)
    if source.ndim < 1:
        raise fail("ERR_SHAPE", "x has no axes")
    out = np.empty(source.shape, np.int8)
    scale = np.empty(source.shape[:-1], np.float32)
    desc_context = defaults.get("cpu")  # names the row in its message
    call(lib.clattn_quantize_i8, desc_context.handle, ffi.cast("float *", source.ctypes.data),
         scale.size, source.shape[-1], 0, ffi.cast("int8_t *", out.ctypes.data),
         ffi.cast("float *", scale.ctypes.data))
    return out, scale


# ---- rotary position embedding -----------------------------------------------------------------

def rotary_tables(positions: int, dim: int, base: float = 0.0
                  ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(cos, sin) of position * base^(-2t/dim), [positions, dim/2]; base 0 = 10000."""
    positions, dim = integer(positions, "positions", 0), integer(dim, "dim", 2)
    if dim % 2:
        raise fail("ERR_INVALID_ARGUMENT", f"dim is {dim}, which is odd: channels turn in pairs")
    base = number(base, "base") or 0.0
    if not 0 <= base < np.inf:
        raise fail("ERR_INVALID_ARGUMENT", f"base is {base}, neither 0, which stands for 10000, "
                                           "nor over 0 and finite")
    tables = [np.empty((positions, dim // 2), np.float32) for _ in range(2)]
    call(lib.clattn_rotary_tables, positions, dim, base,
         *(ffi.cast("float *", table.ctypes.data) for table in tables))
    return tables[0], tables[1]


def _fill_rotary(rotary: Any, cos: Any, sin: Any, offsets: Any, start: int, pairs: str
                 ) -> list[View]:
    if cos is None or sin is None:
        raise fail("ERR_BUFFER_MISSING", "cos and sin belong together, as rotary_tables() has them")
    tables = [floats(cos, "cos", (2,)), floats(sin, "sin", (2,))]
    if tables[0].shape != tables[1].shape:
        raise fail("ERR_SHAPE", f"cos has shape {tables[0].shape} and sin {tables[1].shape}")
    if not tables[0].shape[1]:
        # The library reads a rotary.dim of 0 as keys that are not turned.
        raise fail("ERR_SHAPE", f"cos and sin have shape {tables[0].shape}, with no pairs")
    rotary.positions, rotary.dim = tables[0].shape[0], tables[0].shape[1] * 2
    rotary.pairs = choose(_PAIRS, pairs, "pairs")
    rotary.start = integer(start, "start")
    tables[0].fill(rotary.cos_table)
    tables[1].fill(rotary.sin_table)
    if offsets is not None:
        tables.append(ints(offsets, "offsets"))
        tables[-1].fill(rotary.offsets)
    return tables


def _check_batch(found: View, name: str, batch: int) -> None:
    if found.shape != (batch,):
        raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, not {(batch,)}")


def rotary(x: Any, cos: Any, sin: Any, *, offsets: Any = None, start: int = 0,
           pairs: str = "interleaved", out: Any = None, layout: str = "bhsd",
           dtype: Optional[DTypeLike] = None, device: Union[str, int, None] = None,
           context: Optional[Context] = None, queue: Any = None, wait_for: Sequence[Any] = (),
           fallback: bool = True) -> Any:
    """Rotary position embedding of queries or keys, with tables of rotary_tables(). Token i of
    sequence b is at start + offsets[b] + i. pairs: "interleaved" (2t, 2t + 1) or "half-split"
    (t, t + dim/2). out may be x."""
    queue, context = whose((x,), queue, context, device)
    source = Axes(view(x, "x"), "x", is_bshd(layout))
    bits = is_bits(dtype, {"x": x}) or source.view.bits
    c = ffi.new("clattn_rotary_call *")
    lib.clattn_rotary_call_init(c, ffi.sizeof("clattn_rotary_call"))
    c.dtype = dtype_code(source.view.dtype, bits, "x")
    if out is None:
        out = empty_like_kind(x, source.view.shape, source.view.dtype, context, queue)
    target = Axes(writable(out, "out"), "out", is_bshd(layout))
    if target.view.shape != source.view.shape or target.view.dtype != source.view.dtype:
        raise fail("ERR_SHAPE", f"out is {target.view.dtype} {target.view.shape} and x "
                                f"{source.view.dtype} {source.view.shape}")
    c.flags = 0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK
    c.batch, c.heads, c.len, c.dim = source.batch, source.heads, source.seq, source.dim
    views = [source.view, target.view, *_fill_rotary(c.rotary, cos, sin, offsets, start, pairs)]
    if offsets is not None:
        _check_batch(views[-1], "offsets", source.batch)
    source.fill(c.x)
    target.fill(c.y)
    launch("rotary", context.handle, c, queue, wait_for, views, [out])
    return out


# ---- appending to a cache ----------------------------------------------------------------------

def append(k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, *, lens: Any = None,
           new_lens: Any = None, page_table: Any = None, k_scale: Any = None, v_scale: Any = None,
           cos: Any = None, sin: Any = None, offsets: Any = None, start: int = 0,
           pairs: str = "interleaved", layout: str = "bhsd", dtype: Optional[DTypeLike] = None,
           device: Union[str, int, None] = None, context: Optional[Context] = None,
           queue: Any = None, wait_for: Sequence[Any] = (), fallback: bool = True,
           faults: Any = None) -> None:
    """Writes new keys and values behind those that a cache holds: token i of sequence b becomes row
    lens[b] + i, of [batch, heads, capacity, dim], or with page_table of pages [pages, heads,
    page_size, dim], in place. A cache of int8 gets its scales into k_scale and v_scale. With cos
    and sin (rotary_tables()) the keys are turned on the way, token i to position start + offsets[b]
    + i, or start + lens[b] + i without offsets; pairs as in rotary(). lens None: the caches are
    empty; new_lens: how many of the new tokens of each sequence count. The caller's lens stay as
    they are. v_new and v_cache None: keys alone."""
    queue, context = whose((k_cache, v_cache, k_new), queue, context, device)
    bshd = is_bshd(layout)
    c = ffi.new("clattn_append_call *")
    lib.clattn_append_call_init(c, ffi.sizeof("clattn_append_call"))
    new = {"k_new": Axes(view(k_new, "k_new"), "k_new", bshd)}
    cache = {"k_cache": Axes(writable(k_cache, "k_cache"), "k_cache", bshd)}
    if (v_new is None) != (v_cache is None):
        raise fail("ERR_BUFFER_MISSING", "v_new and v_cache belong together")
    if v_new is not None:
        new["v_new"] = Axes(view(v_new, "v_new"), "v_new", bshd)
        cache["v_cache"] = Axes(writable(v_cache, "v_cache"), "v_cache", bshd)
    k, pool = new["k_new"], cache["k_cache"]
    codes = []
    bits = is_bits(dtype, {"k_new": k_new, "v_new": v_new, "k_cache": k_cache, "v_cache": v_cache})
    for tensors in (new, cache):
        found = {dtype_code(a.view.dtype, bits or a.view.bits, name)
                 for name, a in tensors.items()}
        if len(found) != 1:
            raise TypeError(f"{' and '.join(tensors)} have different dtypes")
        codes.append(found.pop())
        if not all(a.same_but_dim(next(iter(tensors.values()))) for a in tensors.values()):
            raise fail("ERR_SHAPE", f"{' and '.join(tensors)} differ in more than channels")
    if [a.dim for a in new.values()] != [a.dim for a in cache.values()] or k.heads != pool.heads:
        raise fail("ERR_SHAPE", f"k_new has shape {k.view.shape} and k_cache {pool.view.shape}")
    c.dtype_new, c.dtype_cache = codes
    c.flags = 0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK
    c.batch, c.heads, c.len_new, c.dim_k = k.batch, k.heads, k.seq, k.dim
    c.dim_v = new["v_new"].dim if v_new is not None else 0
    views = []
    for name, axes in (*new.items(), *cache.items()):
        axes.fill(getattr(c, name))
        views.append(axes.view)
    for name, array in (("k_scale", k_scale), ("v_scale", v_scale)):
        if array is not None:
            axes = Axes(writable(array, name), name, bshd, channel=False)
            if not axes.same_but_dim(pool) or axes.view.dtype != np.float32:
                raise fail("ERR_SHAPE", f"{name} is {axes.view.dtype} {axes.view.shape}, not "
                                        "float32 of the cache's shape without channels")
            axes.fill(getattr(c, name))
            views.append(axes.view)
    if page_table is not None:
        table = ints(page_table, "page_table", (2,))
        if table.shape[0] != k.batch:
            raise fail("ERR_SHAPE", f"page_table has {table.shape[0]} rows for {k.batch} sequences")
        if not pool.seq:
            # The library reads a page_size of 0 as a cache without pages.
            raise fail("ERR_SHAPE", f"k_cache has shape {pool.view.shape}, with pages of no rows")
        c.page_size, c.num_pages, c.max_pages = pool.seq, pool.batch, table.shape[1]
        table.fill(c.page_table)
        views.append(table)
    else:
        if pool.batch != k.batch:
            raise fail("ERR_SHAPE", f"k_new has {k.batch} sequences and k_cache {pool.batch}")
        c.capacity = pool.seq
    for name, array in (("lens", lens), ("new_lens", new_lens)):
        if array is not None:
            found_ints = ints(array, name)
            _check_batch(found_ints, name, k.batch)
            found_ints.fill(getattr(c, name))
            views.append(found_ints)
    start = integer(start, "start")
    choose(_PAIRS, pairs, "pairs")
    if cos is not None or sin is not None:
        views += _fill_rotary(c.rotary, cos, sin, offsets, start, pairs)
        if offsets is not None:
            _check_batch(views[-1], "offsets", k.batch)
    elif offsets is not None or start != 0:
        raise fail("ERR_INVALID_ARGUMENT", "offsets and start are positions in cos and sin, which "
                                           "are not given")
    if faults is not None:
        faults_word = word(faults, "faults")
        faults_word.fill(c.faults)
        views.append(faults_word)
    launch("append", context.handle, c, queue, wait_for, views, [k_cache, v_cache])
