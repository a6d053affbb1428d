# SPDX-License-Identifier: Apache-2.0
"""Plans and calls of attention."""
from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Optional, Sequence, Union

import numpy as np

from ._arrays import (BF16, CL_MEM, F32, I8, Axes, DeviceArray, DTypeLike, View, contiguous,
                      dtype_code, dtype_of, empty_like_kind, fill_kind, floats, ints, is_bits,
                      is_bshd, named_code, view, word, writable)
from ._context import Context, DeviceInfo, defaults, events_of, resolve
from ._native import call, fail, ffi, lib, text
from ._values import choose, flag, integer, number
from ._values import window as checked_window

_DESC_SIZE = ffi.sizeof("clattn_attention_desc")
_CALL_SIZE = ffi.sizeof("clattn_attention_call")


def _numbers(prefix: str) -> dict[str, int]:
    return {name[len(prefix):].lower(): getattr(lib, name)
            for name in dir(lib) if name.startswith(prefix)}


_ALGOS = _numbers("CLATTN_ALGO_")
_KERNELS = _numbers("CLATTN_KERNEL_")
_SOFTMAX = {name: getattr(lib, "CLATTN_SOFTMAX_" + name.upper())
            for name in ("auto", "naive", "safe", "online")}
_PRECISIONS = {"default": lib.CLATTN_PRECISION_DEFAULT, "full": lib.CLATTN_PRECISION_FULL}
_ALIGNS = {"bottom-right": lib.CLATTN_ALIGN_BOTTOM_RIGHT, "top-left": lib.CLATTN_ALIGN_TOP_LEFT}
# Features by the names that they have as parameters of Plan.
_FEATURES = {name: getattr(lib, "CLATTN_FEATURE_" + feature) for name, feature in (
    ("causal", "CAUSAL"), ("mask", "MASK"), ("return_lse", "LSE"), ("window", "WINDOW"),
    ("bias", "BIAS"), ("alibi", "ALIBI"), ("softcap", "SOFTCAP"), ("sinks", "SINKS"),
    ("kv_lens", "KV_LENS"), ("packed_q", "PACKED_Q"), ("packed_kv", "PACKED_KV"),
    ("paged", "PAGED"))}
# Arguments of calls that have other names.
_ARGUMENTS = {"alibi": "alibi_slopes", "packed_q": "cu_seqlens_q", "packed_kv": "cu_seqlens_kv",
              "paged": "page_table"}
_CAUSAL: int = _FEATURES["causal"]
_LSE: int = _FEATURES["return_lse"]
_WINDOW: int = _FEATURES["window"]
_PACKED_Q: int = _FEATURES["packed_q"]


@dataclasses.dataclass(frozen=True)
class Tile:
    """How an OpenCL kernel cuts the work; clattn/attention.h says what each number is."""

    kernel: str = "auto"
    tile_q: int = 0
    tile_k: int = 0
    items_q: int = 0
    items_k: int = 0
    chunk_d: int = 0
    width: int = 0
    vecs_q: int = 0
    block_k: int = 0
    block_d: int = 0

    @classmethod
    def _of(cls, tile: Any) -> Tile:
        names = {number: name for name, number in _KERNELS.items()}
        values = {f.name: getattr(tile, f.name) for f in dataclasses.fields(cls)}
        values["kernel"] = names.get(tile.kernel, "auto")
        return cls(**values)

    def _fill(self, tile: Any) -> None:
        for field in dataclasses.fields(self):
            if field.name != "kernel":
                setattr(tile, field.name,
                        integer(getattr(self, field.name), f"tile.{field.name}"))
        tile.kernel = choose(_KERNELS, self.kernel, "tile.kernel")


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """What a plan chose, and why not the others."""

    algorithm: str  #: "fused", "host", "split_kv", ...
    kernel: str  #: "group", "vector", "subgroup"; for "host" the instruction set
    tile: Tile
    tile_q: int
    tile_k: int
    group_size: int
    vector_width: int
    chunk_d: int
    local_bytes: int
    num_splits: int  #: parts that the keys of the bounds are cut into
    bytes_moved: int
    workspace_bytes: Optional[int]  #: the most that a call needs; None = there is no bound
    is_fallback: bool
    reason: str
    refusals: tuple[str, ...]  #: "who: why" of each better-ranked choice
    build_options: str
    device: DeviceInfo


class Plan:
    """Attention of one kind on a device: what the kernels are compiled for. Runs on any lengths up
    to its bounds, from several threads at once.

    Each of mask, bias, alibi, softcap, window, sinks, kv_lens, packed_q, packed_kv says that calls
    will bring such a thing. max_* = 0 is no bound; with all three, decoding may be cut over keys.
    """

    def __init__(self, context: Optional[Context] = None, *, heads_q: int, dim: int,
                 heads_kv: int = 0, dim_v: int = 0, dtype: DTypeLike = "float32",
                 kv_dtype: Optional[DTypeLike] = None, out_dtype: Optional[DTypeLike] = None,
                 bias_dtype: DTypeLike = "float32", causal: bool = False, window: bool = False,
                 mask: bool = False, bias: bool = False, alibi: bool = False,
                 softcap: bool = False, sinks: bool = False, kv_lens: bool = False,
                 packed_q: bool = False, packed_kv: bool = False, page_size: int = 0,
                 return_lse: bool = False, align: str = "bottom-right", max_batch: int = 0,
                 max_len_q: int = 0, max_len_kv: int = 0, algo: Optional[str] = None,
                 kernel: Optional[str] = None, precision: str = "default", fallback: bool = True,
                 num_splits: int = 0, softmax: Optional[str] = None,
                 tile: Optional[Tile] = None) -> None:
        code = named_code(dtype, "dtype")
        if tile is not None and not isinstance(tile, Tile):
            raise TypeError(f"tile is {tile!r}, not a clattn.Tile")
        heads_q, heads_kv = integer(heads_q, "heads_q"), integer(heads_kv, "heads_kv")
        dim, dim_v = integer(dim, "dim"), integer(dim_v, "dim_v")
        max_batch = integer(max_batch, "max_batch")
        max_len_q, max_len_kv = integer(max_len_q, "max_len_q"), integer(max_len_kv, "max_len_kv")
        page_size, num_splits = integer(page_size, "page_size"), integer(num_splits, "num_splits")
        wanted = {"causal": causal, "window": window, "mask": mask, "bias": bias, "alibi": alibi,
                  "softcap": softcap, "sinks": sinks, "kv_lens": kv_lens, "packed_q": packed_q,
                  "packed_kv": packed_kv, "paged": page_size != 0, "return_lse": return_lse}
        self._make(resolve(context, None), (
            code, code if kv_dtype is None else named_code(kv_dtype, "kv_dtype"),
            code if out_dtype is None else named_code(out_dtype, "out_dtype"), dim, dim_v, heads_q,
            heads_kv, max_batch, max_len_q, max_len_kv,
            sum(_FEATURES[name] for name, given in wanted.items() if flag(given, name)),
            choose(_ALIGNS, align, "align"), choose(_ALGOS, algo, "algo"),
            choose(_KERNELS, kernel, "kernel"), choose(_PRECISIONS, precision, "precision"),
            0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK, num_splits,
            choose(_SOFTMAX, softmax, "softmax"), named_code(bias_dtype, "bias_dtype"), page_size,
            tile))

    def _make(self, context: Context, key: tuple[Any, ...]) -> None:
        desc = ffi.new("clattn_attention_desc *")
        lib.clattn_attention_desc_init(desc, _DESC_SIZE)
        (desc.dtype_q, desc.dtype_kv, desc.dtype_o, desc.dim_qk, desc.dim_v, desc.heads_q,
         desc.heads_kv, desc.max_batch, desc.max_len_q, desc.max_len_kv, desc.features, desc.align,
         desc.algo, desc.kernel, desc.precision, desc.flags, desc.num_splits, desc.softmax,
         desc.dtype_bias, desc.page_size, tile) = key
        if tile is not None:
            tile._fill(desc.tile)
        self.context = context
        handle = context.handle
        out = ffi.new("clattn_plan **")
        call(lib.clattn_attention_plan_create, handle, desc, out)

        def destroy(pointer: Any, _context: Any = handle) -> None:
            lib.clattn_plan_destroy(ffi.new("clattn_plan **", pointer))

        # The context's handle lives on as long as the plan's.
        self._handle: Any = ffi.gc(out[0], destroy)
        self._dtype_o: int = desc.dtype_o
        self._dtypes: tuple[int, int, int] = (desc.dtype_q, desc.dtype_kv, desc.dtype_bias)
        self._page_size: int = desc.page_size
        self._features: int = desc.features
        self._dims: tuple[int, int] = (desc.dim_qk, desc.dim_v or desc.dim_qk)
        self._heads: tuple[int, int] = (desc.heads_q, desc.heads_kv or desc.heads_q)
        self._info: Optional[PlanInfo] = None

    @property
    def info(self) -> PlanInfo:
        if self._info is None:
            info = ffi.new("clattn_plan_info *")
            info.struct_size = ffi.sizeof("clattn_plan_info")
            call(lib.clattn_plan_get_info, self._handle, info)
            size = ffi.new("size_t *")
            status = lib.clattn_plan_workspace_bytes(self._handle, ffi.NULL, size)
            refusals = tuple(text(lib.clattn_plan_get_refusal(self._handle, n))
                             for n in range(info.num_refusals))
            self._info = PlanInfo(
                algorithm=text(info.algo_name), kernel=text(info.kernel_name),
                tile=Tile._of(info.tile), tile_q=info.tile_q, tile_k=info.tile_k,
                group_size=info.group_size, vector_width=info.vector_width, chunk_d=info.chunk_d,
                local_bytes=info.local_bytes, num_splits=info.num_splits,
                bytes_moved=info.bytes_moved, workspace_bytes=None if status else size[0],
                is_fallback=bool(info.is_fallback), reason=text(info.reason), refusals=refusals,
                build_options=text(info.build_options), device=self.context.device)
        return self._info

    def warm_up(self, batch: int, len_q: int, len_kv: int) -> None:
        """Does what the first call of these lengths would do beside its work."""
        call(lib.clattn_plan_warm_up, self._handle, integer(batch, "batch"),
             integer(len_q, "len_q"), integer(len_kv, "len_kv"))

    def run(self, q: Any, k: Any, v: Any, **arguments: Any) -> Any:
        """One pass; waits for it. Takes what attention() takes for a call: out, lse, scale, window,
        softcap, mask, bias, alibi_slopes, sinks, kv_lens, cu_seqlens_q, cu_seqlens_kv, max_len_q,
        max_len_kv, page_table, k_scale, v_scale, layout, dtype, workspace, faults.

        Returns out, or (out, lse) where the plan has return_lse.
        """
        problem = _Call.of(q, k, v, arguments)
        return problem.run(self, None, ())

    def enqueue(self, queue: Any, q: Any, k: Any, v: Any, *, wait_for: Sequence[Any] = (),
                **arguments: Any) -> Any:
        """As run(), on a pyopencl.CommandQueue, without waiting. Every array lies on the device,
        with out (and lse) among the arguments. Returns the event that covers the work."""
        check_queue(queue)
        problem = _Call.of(q, k, v, arguments)
        if problem.out is None or (problem.lse is None and self._features & _LSE):
            raise fail("ERR_INVALID_ARGUMENT", "enqueue() needs out, and lse where there is one")
        return problem.enqueue(self, queue, wait_for)

    def workspace_bytes(self, q: Any, k: Any, v: Any, **arguments: Any) -> int:
        """Bytes that a call with these arguments, out among them, needs as `workspace`."""
        problem = _Call.of(q, k, v, arguments)
        problem.allocate(self, None)
        return problem.workspace_bytes(self)

    def __repr__(self) -> str:
        info = self.info
        return f"<clattn.Plan {info.algorithm} {info.kernel} on {info.device.name}>"


def _bound(length: int) -> int:
    """A power of two, so that one plan serves lengths that grow."""
    if length <= 1:
        return 1
    return 1 << (length - 1).bit_length() if length <= 2**30 else 0


class _Call:
    """The arguments of a call, as views."""

    @staticmethod
    def of(q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> _Call:
        """The arguments of a call of a plan."""
        for name in arguments:
            if name not in _CALL_ARGUMENTS:
                whose_own = ("it decides about kernels, and is the plan's own"
                             if name in _PLAN_ARGUMENTS else
                             f"it takes {', '.join(sorted(_CALL_ARGUMENTS - {'q', 'k', 'v'}))}")
                raise TypeError(f"{name} is no argument of a call of a plan: {whose_own}")
        return _Call(q, k, v, **arguments)

    def __init__(self, q: Any, k: Any, v: Any, *, out: Any = None, lse: Any = None,
                 scale: Optional[float] = None, window: Optional[tuple[int, int]] = None,
                 softcap: Optional[float] = None, mask: Any = None, bias: Any = None,
                 alibi_slopes: Any = None, sinks: Any = None, kv_lens: Any = None,
                 cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
                 max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None,
                 page_table: Any = None, k_scale: Any = None, v_scale: Any = None,
                 layout: str = "bhsd", dtype: Optional[DTypeLike] = None, workspace: Any = None,
                 faults: Any = None) -> None:
        self.bshd = is_bshd(layout)
        packed_q, packed_kv = cu_seqlens_q is not None, cu_seqlens_kv is not None
        self.q = Axes(view(q, "q"), "q", self.bshd)
        self.k = Axes(view(k, "k"), "k", self.bshd)
        self.v = Axes(view(v, "v"), "v", self.bshd)
        self.bits = is_bits(dtype, {"q": q, "k": k, "v": v, "bias": bias, "out": out})
        if not self.k.same_but_dim(self.v):
            raise fail("ERR_SHAPE", f"k has shape {self.k.view.shape} and v {self.v.view.shape}; "
                                    "only their channels may differ")
        if self.q.dim != self.k.dim:
            raise fail("ERR_SHAPE", f"q has {self.q.dim} channels and k {self.k.dim}")
        self.scale, self.softcap = number(scale, "scale"), number(softcap, "softcap")
        self.window = checked_window(window)
        self.mask = None if mask is None else view(mask, "mask")
        self.bias = None if bias is None else view(bias, "bias")
        self.alibi = None if alibi_slopes is None else floats(alibi_slopes, "alibi_slopes", (1, 2))
        self.sinks = None if sinks is None else floats(sinks, "sinks")
        self.kv_lens = None if kv_lens is None else ints(kv_lens, "kv_lens")
        self.cu_q = None if cu_seqlens_q is None else ints(cu_seqlens_q, "cu_seqlens_q")
        self.cu_kv = None if cu_seqlens_kv is None else ints(cu_seqlens_kv, "cu_seqlens_kv")
        self.pages = None if page_table is None else ints(page_table, "page_table", (2,))
        self.k_scale = self._scales(k_scale, "k_scale")
        self.v_scale = self._scales(v_scale, "v_scale")
        self.workspace = None if workspace is None else writable(workspace, "workspace")
        self.faults = None if faults is None else word(faults, "faults")
        self.out, self.lse = out, lse
        self._lengths(packed_q, packed_kv, max_len_q, max_len_kv)

    def _scales(self, array: Any, name: str) -> Optional[Axes]:
        if array is None:
            return None
        found = view(array, name)
        if found.dtype != np.float32:
            raise TypeError(f"{name} is {found.dtype}, not float32")
        axes = Axes(found, name, self.bshd, channel=False)
        if not axes.same_but_dim(self.k):
            raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, where k has "
                                    f"{self.k.view.shape}: it has k's axes without the channels")
        return axes

    def _lengths(self, packed_q: bool, packed_kv: bool, max_len_q: Optional[int],
                 max_len_kv: Optional[int]) -> None:
        if self.pages is not None and packed_kv:
            raise fail("ERR_INVALID_ARGUMENT", "page_table and cu_seqlens_kv are both given; with "
                                               "pages kv_lens says how many keys there are")
        for name, offsets, axes in (("q", self.cu_q, self.q), ("kv", self.cu_kv, self.k)):
            end = _end_of(offsets)
            if end > axes.seq:
                hint = "" if self.bshd else '; [tokens, heads, dim] is layout="bshd"'
                raise fail("ERR_SHAPE", f"cu_seqlens_{name} ends at {end}, but {name[0]} of shape "
                                        f"{axes.view.shape} has {axes.seq} tokens{hint}")
        counts = {}
        for name, found, fewer in (("cu_seqlens_q", self.cu_q, 1), ("kv_lens", self.kv_lens, 0),
                                   ("cu_seqlens_kv", self.cu_kv, 1), ("page_table", self.pages, 0)):
            if found is not None:
                counts[name] = found.shape[0] - fewer
        if not packed_q:
            counts["q"] = self.q.batch
        if not packed_kv and self.pages is None:
            counts["k"] = self.k.batch
        if len(set(counts.values())) != 1 or min(counts.values()) < 0:
            raise fail("ERR_SHAPE", "the number of sequences differs: " + ", ".join(
                f"{count} by {name}" for name, count in counts.items()))
        self.batch = next(iter(counts.values()))
        if max_len_q is not None and not packed_q:
            raise fail("ERR_INVALID_ARGUMENT", "max_len_q is for cu_seqlens_q, which is not given")
        if max_len_kv is not None and not packed_kv and self.pages is None:
            raise fail("ERR_INVALID_ARGUMENT", "max_len_kv is for cu_seqlens_kv or page_table; "
                                               "neither is given")
        for name, axes, packed in (("q", self.q, packed_q), ("k", self.k, packed_kv)):
            if packed and axes.batch != 1:
                raise fail("ERR_SHAPE", f"{name} has shape {axes.view.shape}: packed sequences "
                                        "have no batch, or one of 1")
        self.len_q = self.q.seq
        if self.cu_q is not None:
            self.len_q = _longest(self.cu_q, max_len_q, "max_len_q")
        if self.cu_kv is not None:
            self.len_kv = _longest(self.cu_kv, max_len_kv, "max_len_kv")
        elif self.pages is None:
            self.len_kv = self.k.seq
        elif max_len_kv is not None:
            self.len_kv = integer(max_len_kv, "max_len_kv", 0)
        else:
            # Entries of a row of the table behind the last key are not looked at.
            self.len_kv = self.pages.shape[1] * self.k.seq
            if self.kv_lens is not None and isinstance(self.kv_lens.owner, np.ndarray):
                self.len_kv = int(self.kv_lens.owner.max(initial=0))

    # ---- the plan ----

    def key(self, causal: bool, align: Optional[str], algo: Optional[str], kernel: Optional[str],
            precision: str, fallback: bool, num_splits: int, out_dtype: Optional[DTypeLike],
            return_lse: bool) -> tuple[Any, ...]:
        causal = flag(causal, "causal", '; the alignment is align="top-left"')
        features: int = (_CAUSAL if causal else 0) | (
            _LSE if flag(return_lse, "return_lse") else 0)
        for name, given in self._given().items():
            if given is not None:
                features |= _FEATURES[name]
        q, k, v = self.q.view, self.k.view, self.v.view
        code = dtype_code(q.dtype, self.bits or q.bits, "q")
        kv_code = dtype_code(k.dtype, self.bits or k.bits, "k")
        if dtype_code(v.dtype, self.bits or v.bits, "v") != kv_code:
            raise TypeError(f"k is {k.dtype} and v {v.dtype}; they have one dtype")
        out_code = code
        if out_dtype is not None:
            out_code = named_code(out_dtype, "out_dtype")
        elif self.out is not None:
            out_code = dtype_code(view(self.out, "out").dtype, self.bits or code == BF16, "out")
        bias_code = F32
        if self.bias is not None:
            if self.bias.dtype == np.bool_:
                raise TypeError("bias is bool, which would be added to the scores; a boolean mask "
                                "is mask=")
            bias_code = dtype_code(self.bias.dtype, self.bits or self.bias.bits, "bias")
        return (code, kv_code, out_code, self.q.dim, self.v.dim, self.q.heads, self.k.heads,
                _bound(self.batch), _bound(self.len_q), _bound(self.len_kv), features,
                choose(_ALIGNS, align, "align"), choose(_ALGOS, algo, "algo"),
                choose(_KERNELS, kernel, "kernel"), choose(_PRECISIONS, precision, "precision"),
                0 if flag(fallback, "fallback") else lib.CLATTN_NO_FALLBACK,
                integer(num_splits, "num_splits"), 0, bias_code,
                self.k.seq if self.pages is not None else 0, None)

    # ---- the call ----

    def allocate(self, plan: Plan, queue: Any) -> None:
        """Outputs that were not given: of q's kind, layout and number of axes."""
        like = self.q.view.owner
        if self.out is None:
            shape = (*self.q.view.shape[:-1], self.v.dim)
            self.out = empty_like_kind(like, shape, dtype_of(plan._dtype_o, self.q.view.dtype),
                                       plan.context, queue)
            if self.cu_q is not None:  # tokens of no sequence are not written
                fill_kind(self.out, 0, queue)
        if self.lse is None and plan._features & _LSE:
            rows: tuple[int, ...] = (self.q.heads, self.q.seq)
            if len(self.q.view.shape) == 4 and self.cu_q is None:
                rows = (self.q.batch, *rows)
            self.lse = empty_like_kind(like, rows, dtype_of(F32), plan.context, queue)
            if self.cu_q is not None:
                fill_kind(self.lse, -np.inf, queue)

    def _check_dtypes(self, plan: Plan) -> None:
        of_q, of_kv, of_bias = plan._dtypes
        for name, found, code, option in (
                ("q", self.q.view, of_q, "dtype"), ("k", self.k.view, of_kv, "kv_dtype"),
                ("v", self.v.view, of_kv, "kv_dtype"), ("bias", self.bias, of_bias, "bias_dtype")):
            if found is None:
                continue
            if dtype_code(found.dtype, self.bits or found.bits or code == BF16, name) != code:
                raise TypeError(f"{name} is {found.dtype}, where the plan reads {dtype_of(code)} "
                                f"({option} of the plan)")

    def _given(self) -> dict[str, Any]:
        """Arguments that are features, by the names that these have in a plan."""
        return {"window": self.window, "mask": self.mask, "bias": self.bias, "alibi": self.alibi,
                "softcap": self.softcap, "sinks": self.sinks, "kv_lens": self.kv_lens,
                "packed_q": self.cu_q, "packed_kv": self.cu_kv, "paged": self.pages}

    def _check_features(self, plan: Plan) -> None:
        """What the plan was made for is what the call brings."""
        for name, given in self._given().items():
            has = plan._features & _FEATURES[name]
            if (given is not None) == (has != 0) or (has and name in ("window", "softcap")):
                continue
            argument = _ARGUMENTS.get(name, name)
            option = "page_size" if name == "paged" else f"{name}=True"
            if has:
                raise fail("ERR_BUFFER_MISSING",
                           f"the plan was made with {option}, so a call needs {argument}=")
            raise fail("ERR_INVALID_ARGUMENT",
                       f"{argument} is given, but the plan was made without {option}")
        is_int8 = plan._dtypes[1] == I8
        for name, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            if is_int8 and scale is None:
                raise fail("ERR_BUFFER_MISSING", f"k and v are int8, which needs {name}=, as "
                                                 "clattn.quantize() returns it")
            if scale is not None and not is_int8:
                raise fail("ERR_INVALID_ARGUMENT", f"{name} is given, but k and v are not int8")
        if self.pages is not None and self.k.seq != plan._page_size:
            raise fail("ERR_SHAPE", f"k has pages of {self.k.seq} keys; the plan's page_size is "
                                    f"{plan._page_size}")
        if not plan.context.is_opencl and any(found.kind == CL_MEM for found in self.inputs()):
            raise fail("ERR_INVALID_ARGUMENT", "an array lies on an OpenCL device, but the context "
                                               "is the built-in CPU path")

    def fill(self, plan: Plan) -> Any:
        """The library's struct. What it points to is held by this object."""
        self._check_dtypes(plan)
        self._check_features(plan)
        if (self.q.dim, self.v.dim) != plan._dims:
            raise fail("ERR_SHAPE", f"q has {self.q.dim} channels and v {self.v.dim}; the plan's "
                                    f"dim is {plan._dims[0]} and its dim_v {plan._dims[1]}")
        if (self.q.heads, self.k.heads) != plan._heads:
            raise fail("ERR_SHAPE", f"q has {self.q.heads} heads and k {self.k.heads}; the plan's "
                                    f"heads_q is {plan._heads[0]} and its heads_kv "
                                    f"{plan._heads[1]}")
        out = Axes(writable(self.out, "out"), "out", self.bshd)
        bits = self.bits or out.view.bits or plan._dtype_o == BF16
        if dtype_code(out.view.dtype, bits, "out") != plan._dtype_o:
            raise TypeError(f"out is {out.view.dtype}, where the plan writes "
                            f"{dtype_of(plan._dtype_o)}")
        if not out.same_but_dim(self.q) or out.dim != self.v.dim:
            raise fail("ERR_SHAPE", f"out has shape {out.view.shape}, where q has "
                                    f"{self.q.view.shape} and v {self.v.dim} channels")
        self.views = [out.view]
        c = ffi.new("clattn_attention_call *")
        lib.clattn_attention_call_init(c, _CALL_SIZE)
        c.batch, c.len_q, c.len_kv = self.batch, self.len_q, self.len_kv
        for axes, tensor in ((self.q, c.q), (self.k, c.k), (self.v, c.v), (out, c.o),
                             (self.k_scale, c.k_scale), (self.v_scale, c.v_scale)):
            if axes is not None:
                axes.fill(tensor)
        if self.scale is not None:
            c.scale = self.scale
            c.set |= lib.CLATTN_SET_SCALE
        if self.window is not None:
            c.window_left, c.window_right = self.window
            c.set |= lib.CLATTN_SET_WINDOW
        if self.softcap is not None:
            c.softcap = self.softcap
        if self.mask is not None:
            if self.mask.dtype.itemsize != 1 or self.mask.dtype.kind not in "biu":
                raise TypeError(f"mask is {self.mask.dtype}, not bool or 8-bit integers; what is "
                                "added to the scores is bias=")
            self._fill_mask(self.mask, c.mask, "mask")
        if self.bias is not None:
            self._fill_mask(self.bias, c.bias, "bias")
        if self.lse is not None:
            self._fill_lse(c)
        if self.alibi is not None:
            self._check(self.alibi, "alibi_slopes", (self.q.heads,), (self.batch, self.q.heads))
            c.alibi_batch = len(self.alibi.shape) - 1
            self.alibi.fill(c.alibi)
        if self.sinks is not None:
            self._check(self.sinks, "sinks", (self.q.heads,))
            self.sinks.fill(c.sinks)
        for found, buf in ((self.kv_lens, c.kv_lens), (self.cu_q, c.cu_seqlens_q),
                           (self.cu_kv, c.cu_seqlens_kv), (self.pages, c.page_table),
                           (self.faults, c.faults)):
            if found is not None:
                found.fill(buf)
        # One of no bytes is none: a size of 0 would say that nobody knows it.
        if self.workspace is not None and self.workspace.owner.nbytes:
            contiguous(self.workspace, "workspace")
            self.workspace.fill(c.workspace)
            c.workspace.size_bytes = self.workspace.offset + self.workspace.owner.nbytes
        if self.cu_q is not None:
            c.total_q = self.q.seq
        if self.cu_kv is not None:
            c.total_kv = self.k.seq
        if self.pages is not None:
            c.num_pages, c.max_pages = self.k.batch, self.pages.shape[1]
        return c

    def _fill_mask(self, found: View, mask: Any, name: str) -> None:
        missing = 4 - len(found.shape)
        if missing < 0:
            raise fail("ERR_SHAPE", f"{name} has {len(found.shape)} axes; more than 4")
        extent = (*(1,) * missing, *found.shape)
        if 0 in extent:
            # The library reads 0 as the call's own extent.
            wanted = (self.batch, self.q.heads, self.len_q, self.len_kv)
            if any(own == 0 != full for own, full in zip(extent, wanted)):
                raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, which does not broadcast "
                                        f"to {wanted}")
        found.fill(mask.buf)
        mask.layout = lib.CLATTN_LAYOUT_STRIDED
        mask.extent = extent
        mask.stride = (*(0,) * missing, *(0 if extent == 1 else stride
                                          for extent, stride in zip(found.shape, found.strides)))

    def _fill_lse(self, c: Any) -> None:
        lse = writable(self.lse, "lse")
        if lse.dtype != np.float32:
            raise TypeError(f"lse is {lse.dtype}, not float32")
        batch = 1 if self.cu_q is not None else self.batch
        shapes: list[tuple[int, ...]] = [(batch, self.q.heads, self.q.seq)]
        if batch == 1:
            shapes.append((self.q.heads, self.q.seq))
        self._check(lse, "lse", *shapes)
        contiguous(lse, "lse")
        self.views.append(lse)
        lse.fill(c.lse)

    @staticmethod
    def _check(found: View, name: str, *shapes: tuple[int, ...]) -> None:
        if found.shape not in shapes:
            raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, not "
                                    + " or ".join(map(str, shapes)))

    def run(self, plan: Plan, queue: Any, wait_for: Sequence[Any]) -> Any:
        self.allocate(plan, queue)
        c = self.fill(plan)
        for event in (*events_of(wait_for), *self.events()):
            event.wait()
        call(lib.clattn_attention_run, plan._handle, c)
        return self.result(plan)

    def result(self, plan: Plan) -> Any:
        return (self.out, self.lse) if plan._features & _LSE else self.out

    def workspace_bytes(self, plan: Plan, c: Any = None) -> int:
        size = ffi.new("size_t *")
        call(lib.clattn_plan_workspace_bytes, plan._handle, c or self.fill(plan), size)
        return int(size[0])

    def inputs(self) -> list[View]:
        axes = [a.view for a in (self.q, self.k, self.v, self.k_scale, self.v_scale)
                if a is not None]
        return axes + [found for found in (
            self.mask, self.bias, self.alibi, self.sinks, self.kv_lens, self.cu_q, self.cu_kv,
            self.pages, self.faults, self.workspace) if found is not None]

    def events(self) -> list[Any]:
        """What arrays of pyopencl, or results of clattn, are still waiting for."""
        found = []
        for array in (*(v.owner for v in self.inputs()), self.out, self.lse):
            if not isinstance(array, np.ndarray) and array is not None:
                found += list(getattr(array, "events", ()))
        return found

    def on_device(self) -> bool:
        return all(found.kind == CL_MEM for found in self.inputs())

    def enqueue(self, plan: Plan, queue: Any, wait_for: Sequence[Any]) -> Any:
        import pyopencl
        self.allocate(plan, queue)
        c = self.fill(plan)
        if self.workspace is None:
            needed = self.workspace_bytes(plan, c)
            if needed:
                # OpenCL itself keeps memory until the work that was queued with it is done.
                memory = DeviceArray(pyopencl.Buffer(
                    queue.context, pyopencl.mem_flags.READ_WRITE, needed), needed, np.uint8)
                self.workspace = View(memory, "workspace")
                self.workspace.fill(c.workspace)
        events = [*events_of(wait_for), *self.events()]
        waits = ffi.new("cl_event[]", [ffi.cast("cl_event", e.int_ptr) for e in events])
        done = ffi.new("cl_event *")
        call(lib.clattn_attention_enqueue, plan._handle, c,
             ffi.cast("cl_command_queue", queue.int_ptr), len(events),
             waits if events else ffi.NULL, done)
        event = pyopencl.Event.from_int_ptr(int(ffi.cast("intptr_t", done[0])), False)
        for array in (self.out, self.lse):
            if hasattr(array, "add_event"):
                array.add_event(event)
        return event


_CALL_ARGUMENTS = frozenset(inspect.signature(_Call.__init__).parameters) - {"self"}
_PLAN_ARGUMENTS = frozenset(inspect.signature(Plan.__init__).parameters) - {"self"}


def check_queue(queue: Any) -> None:
    if not all(hasattr(queue, name) for name in ("int_ptr", "context", "device")):
        raise TypeError(f"queue is {queue!r}, not a pyopencl.CommandQueue")


def whose(arrays: Sequence[Any], queue: Any, context: Optional[Context],
          device: Union[str, int, None]) -> tuple[Any, Context]:
    """The queue, and the context: what was given, else those of the arrays, else the device's."""
    if queue is not None:
        check_queue(queue)
    if context is None and device is None:
        for array in arrays:
            if isinstance(array, DeviceArray) and array.context is not None:
                return queue, array.context
    if queue is None:
        queue = next((array.queue for array in arrays if hasattr(array, "base_data")), None)
    if queue is not None and context is None and device is None:
        return queue, defaults.of_queue(queue)
    return queue, resolve(context, device)


def _end_of(offsets: Optional[View]) -> int:
    """Where the last sequence ends; 0 where nobody can look."""
    if offsets is None or not isinstance(offsets.owner, np.ndarray) or not offsets.owner.size:
        return 0
    return int(offsets.owner[-1])


def _longest(offsets: View, given: Optional[int], name: str) -> int:
    on_host = isinstance(offsets.owner, np.ndarray)
    asked = None if given is None else integer(given, name, 0)
    if asked is not None and (asked or not on_host):
        return asked
    if not on_host:
        raise fail("ERR_INVALID_ARGUMENT", f"{name} is needed where offsets lie on the device")
    longest = max(int(np.diff(offsets.owner).max(initial=0)), 0)
    if asked is not None and longest:
        # The library looks at no offsets then.
        raise fail("ERR_SHAPE", f"{name} is 0, but a sequence has {longest} tokens")
    return longest


def attention(q: Any, k: Any, v: Any, *, causal: bool = False,
              window: Optional[tuple[int, int]] = None, scale: Optional[float] = None,
              softcap: Optional[float] = None, mask: Any = None, bias: Any = None,
              alibi_slopes: Any = None, sinks: Any = None, kv_lens: Any = None,
              cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None,
              max_len_q: Optional[int] = None, max_len_kv: Optional[int] = None,
              page_table: Any = None, k_scale: Any = None, v_scale: Any = None,
              layout: str = "bhsd", align: str = "bottom-right",
              dtype: Optional[DTypeLike] = None, out_dtype: Optional[DTypeLike] = None,
              return_lse: bool = False, out: Any = None, lse: Any = None,
              device: Union[str, int, None] = None, context: Optional[Context] = None,
              queue: Any = None, wait_for: Sequence[Any] = (), algo: Optional[str] = None,
              kernel: Optional[str] = None, precision: str = "default", fallback: bool = True,
              num_splits: int = 0, faults: Any = None) -> Any:
    """softmax(mask(scale * Q K^T)) V, in one pass that stores no scores.

    q [batch, heads_q, len_q, dim], k and v [batch, heads_kv, len_kv, dim (v: its own)], with
    layout="bshd" [batch, sequence, heads, dim]; three axes are a batch of one. float32, float16,
    bfloat16 (of ml_dtypes, or uint16 with dtype="bfloat16"), k and v also int8 with k_scale and
    v_scale, float32 of their shape without channels. Any strides whose channels are contiguous.
    Nothing is converted, and arrays are used as they lie (a device with memory of its own gets a
    copy of NumPy's); what the library can't take is refused.

    causal: key j is hidden from query i when j > i + off, where off is len_kv - len_q, or 0 with
    align="top-left". window: (left, right), extra keys on either side, -1 = unlimited. scale:
    1/sqrt(dim) without. softcap: scores become softcap * tanh(score / softcap). mask: bool, True =
    visible, and bias: added to the scores; both broadcast to [batch, heads_q, len_q, len_kv].
    alibi_slopes: [heads_q] or [batch, heads_q]. sinks: [heads_q]. kv_lens: [batch], the keys
    that count.

    Packed sequences: cu_seqlens_q and cu_seqlens_kv [batch + 1] with q [heads, tokens, dim]
    ("bshd": [tokens, heads, dim]) and k, v likewise. Pages: page_table [batch, max_pages] with k, v
    [pages, heads_kv, page_size, dim] ("bshd": [pages, page_size, heads_kv, dim]). max_len_q,
    max_len_kv: the longest sequence, needed only where numbers lie on the device.

    Returns out, of q's kind, layout and dtype (or out_dtype), or (out, lse) with return_lse: lse
    float32 [batch, heads_q, len_q], packed [heads_q, tokens]. out and lse can be given; lse alone
    is return_lse, too. Packed tokens of no sequence are 0, their lse -inf, or stay what they are
    in an out that is given.

    device: an index, "cpu", or a part of a name; context: a Context, which keeps its plans. algo
    ("fused", "split_kv", "two_loop", "fused_kv_outer", "unfused", "host", "reference"), kernel
    ("group", "vector", "subgroup") and num_splits (parts of the keys, of split_kv) are chosen where
    they are not given; precision="full" takes no products of bfloat16; fallback=False refuses what
    the device's kernels do not serve, where else the CPU path does. faults: int32, a number to
    which bits are added where lengths, offsets or pages had to be clamped.

    Arrays of pyopencl (and a DeviceArray around a Buffer, with queue) are enqueued on their queue,
    behind their events and wait_for, without waiting; the result has the event. Where some of the
    arrays are NumPy's the call waits.
    """
    problem = _Call(
        q, k, v, out=out, lse=lse, scale=scale, window=window, softcap=softcap, mask=mask,
        bias=bias, alibi_slopes=alibi_slopes, sinks=sinks, kv_lens=kv_lens,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, max_len_q=max_len_q,
        max_len_kv=max_len_kv, page_table=page_table, k_scale=k_scale, v_scale=v_scale,
        layout=layout, dtype=dtype, faults=faults)
    queue, context = whose((q, k, v), queue, context, device)
    key = problem.key(causal, align, algo, kernel, precision, fallback, num_splits, out_dtype,
                      flag(return_lse, "return_lse") or lse is not None)

    def make() -> Plan:
        plan = Plan.__new__(Plan)
        plan._make(context, key)
        return plan
    plan: Plan = context.plan(key, make)
    if queue is not None and problem.on_device():
        problem.enqueue(plan, queue, wait_for)
        return problem.result(plan)
    return problem.run(plan, queue, wait_for)
