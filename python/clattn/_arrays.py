# SPDX-License-Identifier: Apache-2.0
"""Arrays as the library sees them: NumPy's, pyopencl's, and memory of a context."""
from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._native import call, fail, ffi, lib
from ._values import integer

if TYPE_CHECKING:
    from ._context import Context

_VOID_POINTER = ffi.typeof("void *")
HOST: int = lib.CLATTN_BUF_HOST
CL_MEM: int = lib.CLATTN_BUF_CL_MEM
F32: int = lib.CLATTN_DTYPE_F32
F16: int = lib.CLATTN_DTYPE_F16
BF16: int = lib.CLATTN_DTYPE_BF16
I8: int = lib.CLATTN_DTYPE_I8

DTypeLike = Union[npt.DTypeLike, str]
# By dtypes of this machine's byte order; bfloat16 of ml_dtypes joins when it is first seen.
_CODES: dict[Any, int] = {
    np.dtype(np.float32): F32, np.dtype(np.float16): F16, np.dtype(np.int8): I8}
_NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16", I8: "int8"}
_UINT16 = np.dtype(np.uint16)


def dtype_code(dtype: Any, bits: bool, name: str) -> int:
    """The library's number of a dtype. bits: uint16 holds bfloat16."""
    code = _CODES.get(dtype)
    if code is not None:
        return code
    if dtype == _UINT16:
        if bits:
            return BF16
        raise TypeError(f"{name} is uint16; if that is bfloat16, say dtype='bfloat16'")
    if getattr(dtype, "name", "") == "bfloat16":
        _CODES[dtype] = BF16
        return BF16
    convert = "" if name == "out" or name.endswith("dtype") else "; .astype(np.float32) converts"
    raise TypeError(f"{name} is {dtype}; clattn computes with float32, float16, bfloat16 and, of K "
                    f"and V, int8, in this machine's byte order{convert}")


def named(dtype: DTypeLike, name: str) -> Optional[np.dtype[Any]]:
    """Of a dtype or a name; None is bfloat16, which needs no ml_dtypes. NumPy's "f16" would have 16
    bytes, the tools' has 16 bits."""
    if isinstance(dtype, str):
        dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}.get(dtype, dtype)
        if dtype == "bfloat16":
            return None
    try:
        if dtype is not None:
            return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        pass
    raise TypeError(f"{name} is {dtype!r}, not float32, float16, bfloat16 or int8")


def named_code(dtype: DTypeLike, name: str) -> int:
    found = named(dtype, name)
    return BF16 if found is None else dtype_code(found, False, name)


def is_bits(dtype: Optional[DTypeLike], arrays: dict[str, Any]) -> bool:
    """Whether `dtype` says that uint16 holds bfloat16, which one of the arrays has to be. Another
    type has to be that of the first, since nothing is converted."""
    if dtype is None:
        return False
    wanted = named_code(dtype, "dtype")
    views = {name: view(array, name) for name, array in arrays.items() if array is not None}
    name, first = next(iter(views.items()))
    if (any(dtype_is_bf16(found.dtype) for found in views.values()) if wanted == BF16
            else dtype_code(first.dtype, first.bits, name) == wanted):
        return wanted == BF16
    raise TypeError(f"dtype is {dtype!r}, but {name} is {first.dtype}: dtype says what uint16 "
                    "holds, and converts nothing")


def dtype_of(code: int, like: Optional[np.dtype[Any]] = None) -> np.dtype[Any]:
    """A NumPy dtype for the library's number: bfloat16 as `like` is, else ml_dtypes', or bits."""
    if code != BF16:
        return np.dtype(_NAMES[code])
    if like is not None and dtype_is_bf16(like):
        return like
    try:
        import ml_dtypes
    except ImportError:
        return _UINT16
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def dtype_is_bf16(dtype: Any) -> bool:
    return dtype == _UINT16 or getattr(dtype, "name", "") == "bfloat16"


# ---- memory of a device ------------------------------------------------------------------------

class Memory:
    """Bytes on the device of a context, of clattn's own."""

    def __init__(self, context: Context, nbytes: int) -> None:
        self.context = context
        self.nbytes = nbytes
        handle = context.handle
        buf = ffi.new("clattn_buf *")
        call(lib.clattn_mem_create, handle, max(nbytes, 1), buf)

        def destroy(pointer: Any, handle: Any = handle) -> None:
            lib.clattn_mem_destroy(handle, pointer)
        self.buf: Any = ffi.gc(buf, destroy)


def _sequence(values: Any, name: str) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r}, not a sequence of whole numbers")
    return tuple(values)


def _extents(shape: Any) -> tuple[int, ...]:
    try:
        return (integer(operator.index(shape), "shape", 0, 2**62),)
    except TypeError:
        return tuple(integer(extent, "shape", 0, 2**62) for extent in _sequence(shape, "shape"))


class DeviceArray:
    """A shape in the memory of a device: of Context.empty() and Context.upload(), or around an
    application's pyopencl.Buffer (or the address of a cl_mem). Nothing is copied.

    offset and strides are in bytes, as NumPy has them; no strides = C order.
    """

    def __init__(self, buffer: Any, shape: Union[int, Sequence[int]], dtype: DTypeLike, *,
                 offset: int = 0, strides: Optional[Sequence[int]] = None) -> None:
        self.buffer = buffer
        self.shape = _extents(shape)
        found = named(dtype, "dtype")
        self.bits = found is None
        self.dtype: np.dtype[Any] = dtype_of(BF16) if found is None else found
        if self.dtype.hasobject or not self.dtype.itemsize:
            raise TypeError(f"dtype is {self.dtype}, whose elements are no bytes of their own")
        if self.nbytes >= 2**63:
            raise fail("ERR_SHAPE", f"shape is {self.shape}, which no memory holds")
        self.offset = integer(offset, "offset", 0, 2**63 - 1)
        self.events: list[Any] = []
        if strides is None:
            step = self.dtype.itemsize
            steps = []
            for extent in reversed(self.shape):
                steps.append(step)
                step *= extent
            strides = steps[::-1]
        self.strides = tuple(integer(stride, "strides", -2**62, 2**62) for stride in
                             _sequence(strides, "strides"))
        if len(self.strides) != len(self.shape):
            raise fail("ERR_STRIDE", f"{len(self.shape)} axes, and {len(self.strides)} strides")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def context(self) -> Optional[Context]:
        return self.buffer.context if isinstance(self.buffer, Memory) else None

    def add_event(self, event: Any) -> None:
        # What wrote here before is among the things that this event waited for.
        self.events = [event]

    def _own(self) -> tuple[Context, Any]:
        context = self.context
        steps, step = [], self.dtype.itemsize
        for extent in reversed(self.shape):
            steps.append(step)
            step *= extent
        if context is None or self.strides != tuple(steps[::-1]):
            raise fail("ERR_INVALID_ARGUMENT",
                       "only memory of a context, in C order, is read and written by clattn")
        buf = ffi.new("clattn_buf *", self.buffer.buf[0])
        buf.offset_bytes = self.offset
        return context, buf

    def _wait(self) -> None:
        for event in self.events:
            event.wait()

    def write(self, array: npt.ArrayLike) -> DeviceArray:
        """Copies an array of the same shape and dtype to the device; waits."""
        source = np.ascontiguousarray(array)
        if source.shape != self.shape or source.dtype != self.dtype:
            raise fail("ERR_SHAPE", f"an array of {source.dtype} {source.shape} for one of "
                                    f"{self.dtype} {self.shape}")
        context, buf = self._own()
        self._wait()
        if source.nbytes:
            call(lib.clattn_mem_write, context.handle, buf, host_pointer(source), source.nbytes)
        return self

    def read(self) -> npt.NDArray[Any]:
        """Copies it from the device; waits."""
        context, buf = self._own()
        self._wait()
        out = np.empty(self.shape, self.dtype)
        if out.nbytes:
            call(lib.clattn_mem_read, context.handle, buf, host_pointer(out), out.nbytes)
        return out

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a clattn.DeviceArray is copied from the device")
        found = self.read()
        return found if dtype is None else found.astype(dtype)

    def __repr__(self) -> str:
        return f"<clattn.DeviceArray {self.dtype} {self.shape}>"


def host_pointer(array: npt.NDArray[Any]) -> Any:
    return ffi.cast("void *", array.ctypes.data)


# ---- views -------------------------------------------------------------------------------------

class View:
    """An array of any kind: where it lies, its extents, strides in elements, dtype."""

    __slots__ = ("owner", "kind", "ptr", "offset", "nbytes", "shape", "strides", "dtype", "bits")

    def __init__(self, array: Any, name: str) -> None:
        self.owner = array  # lives as long as the view
        self.offset = 0
        self.nbytes = 0  # of the memory, 0 = the array's owner has seen to it
        self.bits = False
        even = False
        if isinstance(array, np.ndarray):
            self.kind = HOST
            self.ptr = array.__array_interface__["data"][0]  # a third faster than ctypes.data
            even = array.flags.c_contiguous
        elif isinstance(array, DeviceArray):
            self.offset = array.offset
            self.bits = array.bits
            if isinstance(array.buffer, Memory):
                buf = array.buffer.buf
                self.kind = buf.kind
                self.ptr = int(ffi.cast("uintptr_t", buf.ptr))
                self.nbytes = buf.size_bytes
            else:
                self.kind = CL_MEM
                self.ptr = cl_address(array.buffer, name)
        elif hasattr(array, "base_data") and hasattr(array, "queue"):  # pyopencl.array.Array
            self.kind = CL_MEM
            # An array without elements has no memory.
            self.ptr = 0 if array.base_data is None else cl_address(array.base_data, name)
            self.offset = array.offset
        else:
            raise TypeError(f"{name} is {type(array).__name__}; give a numpy.ndarray, a "
                            "pyopencl.array.Array or a clattn.DeviceArray (around a Buffer)")
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype
        size = self.dtype.itemsize or 1  # an empty record is refused for its dtype
        strides = array.strides
        self.strides: tuple[int, ...] = tuple([s // size for s in strides])
        if not even and size > 1 and any([s % size for s in strides]):
            raise fail("ERR_STRIDE", f"{name}: strides of {strides} bytes are no multiples of an "
                                     f"element's {size}")

    def fill(self, buf: Any) -> None:
        if self.ptr:
            buf.kind = self.kind
            buf.ptr = ffi.cast(_VOID_POINTER, self.ptr)
            buf.offset_bytes = self.offset
            buf.size_bytes = self.nbytes


def cl_address(buffer: Any, name: str) -> int:
    if isinstance(buffer, int):
        return buffer
    pointer = getattr(buffer, "int_ptr", None)
    if pointer is None:
        raise TypeError(f"{name} lies in {type(buffer).__name__}, which is no buffer of OpenCL")
    return int(pointer)


def view(array: Any, name: str) -> View:
    if type(array) is not np.ndarray:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would not count; give a mask=")
        if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack_device__"):
            # Tensors of other libraries in host memory, as they lie there.
            try:
                array = np.from_dlpack(array)
            except (BufferError, RuntimeError, TypeError) as error:
                raise TypeError(f"{name} is {type(array).__name__}, which NumPy cannot look into "
                                f"({error}); give a copy in host memory") from error
    return View(array, name)


def contiguous(found: View, name: str) -> None:
    step = 1
    if 0 in found.shape:
        return
    for extent, stride in zip(reversed(found.shape), reversed(found.strides)):
        if extent > 1 and stride != step:
            raise fail("ERR_STRIDE", f"{name} is not contiguous")
        step *= extent


def writable(array: Any, name: str) -> View:
    found = view(array, name)
    if isinstance(found.owner, np.ndarray) and not found.owner.flags.writeable:
        raise fail("ERR_INVALID_ARGUMENT", f"{name} is read-only")
    return found


_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)


def small(array: Any, dtype: np.dtype[Any], name: str, ndims: Sequence[int]) -> View:
    """Numbers beside the tensors. On the host anything that NumPy makes an array of, converted
    where all values keep their meaning; on a device as they are."""
    if isinstance(array, (DeviceArray,)) or hasattr(array, "base_data"):
        found = View(array, name)
        if found.dtype != dtype:
            raise TypeError(f"{name} is {found.dtype}, not {dtype}")
        contiguous(found, name)
    else:
        source = np.asarray(array)
        if source.dtype != dtype:
            kind = "iu" if dtype == _INT32 else "iuf"
            if source.dtype.kind not in kind and source.size:
                raise TypeError(f"{name} is {source.dtype}, not {dtype}")
            if dtype == _INT32 and source.size and (int(source.max()) > 2**31 - 1
                                                    or int(source.min()) < -2**31):
                raise fail("ERR_INVALID_ARGUMENT", f"{name} has numbers beyond int32")
        found = View(np.ascontiguousarray(source, dtype=dtype), name)
    if len(found.shape) not in ndims:
        raise fail("ERR_SHAPE", f"{name} has {len(found.shape)} axes, not "
                                f"{' or '.join(map(str, ndims))}")
    return found


def ints(array: Any, name: str, ndims: Sequence[int] = (1,)) -> View:
    return small(array, _INT32, name, ndims)


def word(array: Any, name: str) -> View:
    """An int32 that is written, so no copy will do."""
    found = writable(array, name)
    if found.dtype != _INT32:
        raise TypeError(f"{name} is {found.dtype}, not int32")
    if 0 in found.shape:
        raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, no element")
    return found


def floats(array: Any, name: str, ndims: Sequence[int] = (1,)) -> View:
    return small(array, _FLOAT32, name, ndims)


class Axes:
    """A tensor's extents and strides as [batch, heads, sequence, channel]."""

    __slots__ = ("view", "batch", "heads", "seq", "dim", "strides")

    def __init__(self, found: View, name: str, bshd: bool, channel: bool = True) -> None:
        shape, strides = found.shape, found.strides
        if not channel:
            shape, strides = (*shape, 1), (*strides, 1)
        if len(shape) == 3:
            shape, strides = (1, *shape), (0, *strides)
        elif len(shape) != 4:
            axes = 4 if channel else 3
            raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, where {axes} axes are meant, "
                                    f"or {axes - 1} without the batch")
        if bshd:
            self.batch, self.seq, self.heads, self.dim = shape
            sb, ss, sh, sd = strides
        else:
            self.batch, self.heads, self.seq, self.dim = shape
            sb, sh, ss, sd = strides
        if 0 in shape:
            if not self.heads or not self.dim:
                # The library reads 0 as its default, the number of another tensor's.
                raise fail("ERR_SHAPE", f"{name} has shape {found.shape}, with no "
                                        f"{'channels' if self.heads else 'heads'}")
            sb = ss = sh = 0
        elif sd != 1 and self.dim > 1:
            raise fail("ERR_STRIDE", f"{name}: channels lie {sd} elements apart; they must be "
                                     "contiguous")
        # NumPy's strides of an axis of one element mean nothing.
        self.strides = (sb if self.batch > 1 else 0, sh if self.heads > 1 else 0,
                        ss if self.seq > 1 else 0)
        self.view = found

    def fill(self, tensor: Any) -> None:
        self.view.fill(tensor.buf)
        tensor.layout = lib.CLATTN_LAYOUT_STRIDED
        tensor.stride_batch, tensor.stride_head, tensor.stride_seq = self.strides

    def same_but_dim(self, other: Axes) -> bool:
        return (self.batch == other.batch and self.heads == other.heads and self.seq == other.seq)


def is_bshd(layout: str) -> bool:
    if not isinstance(layout, str):
        raise TypeError(f"layout is {layout!r}, not 'bhsd' or 'bshd'")
    if layout == "bshd":
        return True
    if layout == "bhsd":
        return False
    raise fail("ERR_INVALID_ARGUMENT", f"layout is {layout!r}, not 'bhsd' or 'bshd'")


# ---- new arrays --------------------------------------------------------------------------------

def empty_like_kind(like: Any, shape: tuple[int, ...], dtype: np.dtype[Any], context: Context,
                    queue: Any) -> Any:
    """An array of the kind of `like`: NumPy's, pyopencl's, or memory of the context."""
    if isinstance(like, DeviceArray):
        if isinstance(like.buffer, Memory):
            made = DeviceArray(Memory(context, math.prod(shape) * dtype.itemsize), shape, dtype)
        else:
            if queue is None:
                raise fail("ERR_INVALID_ARGUMENT", "out or queue is needed with a bare Buffer")
            import pyopencl
            memory = pyopencl.Buffer(queue.context, pyopencl.mem_flags.READ_WRITE,
                                     max(math.prod(shape) * dtype.itemsize, 1))
            made = DeviceArray(memory, shape, dtype)
        made.bits = like.bits and dtype_is_bf16(dtype)
        return made
    if hasattr(like, "base_data"):
        import pyopencl.array
        return pyopencl.array.empty(queue, shape, dtype)
    return np.empty(shape, dtype)


def fill_kind(array: Any, value: float, queue: Any) -> None:
    """Writes a value into all of an array that empty_like_kind() made."""
    if isinstance(array, np.ndarray):
        array.fill(value)
    elif isinstance(array, DeviceArray) and isinstance(array.buffer, Memory):
        array.write(np.full(array.shape, value, array.dtype))
    elif array.nbytes:
        import pyopencl
        memory = array.buffer if isinstance(array, DeviceArray) else array.base_data
        pattern = np.zeros(1, np.uint8) if value == 0 else np.array([value], array.dtype)
        array.add_event(pyopencl.enqueue_fill_buffer(queue, memory, pattern, 0, array.nbytes))
