# SPDX-License-Identifier: Apache-2.0
"""Devices and contexts."""
from __future__ import annotations

import atexit
import collections
import dataclasses
import operator
import os
import threading
import weakref
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._arrays import DeviceArray, DTypeLike, Memory
from ._native import after_fork, call, fail, ffi, lib, log_callback, new_lock, text
from ._values import flag, integer

_DEVICE_TYPES = {
    lib.CLATTN_DEVICE_BUILTIN_CPU: "builtin", lib.CLATTN_DEVICE_CPU: "cpu",
    lib.CLATTN_DEVICE_GPU: "gpu", lib.CLATTN_DEVICE_ACCELERATOR: "accelerator",
    lib.CLATTN_DEVICE_OTHER: "other"}
# The last plans of each kind that a context keeps for the calls that make none of their own.
MAX_PLANS = 64
MAX_ADOPTED = 8


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """The facts about a device that planning uses; clattn/context.h says what each means."""

    index: int
    type: str  #: "builtin" (the CPU path), "cpu", "gpu", "accelerator", "other"
    platform: str
    name: str
    vendor: str
    driver: str
    version: str
    compute_units: int
    native_width_f32: int
    max_group: int
    max_items: tuple[int, int, int]
    local_bytes: int
    local_is_global: bool
    host_unified: bool
    global_bytes: int
    max_alloc_bytes: int
    cache_bytes: int
    has_fp16: bool
    has_subgroups: bool
    vector_shape: bool
    quirks: int
    rank: int  #: 0 = the device that is taken without a selector

    @classmethod
    def _of(cls, info: Any) -> DeviceInfo:
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = getattr(info, field.name)
            if field.type == "str" and field.name != "type":
                value = text(value)
            elif field.type == "bool":
                value = bool(value)
            values[field.name] = value
        values["type"] = _DEVICE_TYPES.get(info.type, "other")
        values["max_items"] = tuple(info.max_items)
        return cls(**values)


def _new_desc() -> Any:
    desc = ffi.new("clattn_context_desc *")
    lib.clattn_context_desc_init(desc, ffi.sizeof("clattn_context_desc"))
    desc.log = log_callback
    desc.log_level = lib.CLATTN_LOG_DEBUG
    return desc


def _new_info() -> Any:
    info = ffi.new("clattn_device_info *")
    info.struct_size = ffi.sizeof("clattn_device_info")
    return info


def devices() -> list[DeviceInfo]:
    """All OpenCL devices, and last the built-in CPU path. The index of one is a selector."""
    desc = _new_desc()
    count = ffi.new("int32_t *")
    call(lib.clattn_device_count, desc, count)
    found = []
    for index in range(count[0]):
        info = _new_info()
        call(lib.clattn_device_get_info, desc, index, info)
        found.append(DeviceInfo._of(info))
    return found


_FLAGS = {
    "opencl": "CLATTN_CONTEXT_NO_OPENCL", "self_test": "CLATTN_CONTEXT_NO_SELF_TEST",
    "cache": "CLATTN_CONTEXT_NO_CACHE", "local_memory": "CLATTN_CONTEXT_NO_LOCAL_MEMORY",
    "tuning": "CLATTN_CONTEXT_NO_TUNING"}


class Context:
    """One device with its compiled kernels; may be used from several threads at once.

    device: an index, "cpu" for the built-in path without a look at OpenCL, or a part of a
    platform's or device's name; None = $CLATTN_DEVICE, else the best device.
    threads: of the CPU path, 0 = as many as OpenMP would take. opencl, self_test, cache,
    local_memory, tuning: False leaves the thing out. The other parameters are the fields of
    clattn_context_desc (clattn/context.h).
    """

    def __init__(self, device: Union[str, int, None] = None, *, threads: int = 0,
                 opencl: bool = True, self_test: bool = True, cache: bool = True,
                 local_memory: bool = True, tuning: bool = True,
                 cache_dir: Optional[str] = None, cache_max_bytes: int = 0,
                 opencl_library: Optional[str] = None, tune_file: Optional[str] = None,
                 max_local_bytes: int = 0, max_group: int = 0) -> None:
        wanted = {"opencl": opencl, "self_test": self_test, "cache": cache,
                  "local_memory": local_memory, "tuning": tuning}
        desc = _new_desc()
        keep = []
        for name, value in (("device", None if device is None else str(device)),
                            ("cache_dir", cache_dir), ("opencl_library", opencl_library),
                            ("tune_file", tune_file)):
            if value is not None:
                if not isinstance(value, (str, bytes, os.PathLike)):
                    raise TypeError(f"{name} is {value!r}, not a path")
                if 0 in os.fsencode(value):
                    raise fail("ERR_INVALID_ARGUMENT", f"{name} is {value!r}, with a NUL")
                keep.append(ffi.new("char[]", os.fsencode(value)))
                setattr(desc, name, keep[-1])
        for name, given in wanted.items():
            if not flag(given, name):
                desc.flags |= getattr(lib, _FLAGS[name])
        desc.threads = integer(threads, "threads")
        desc.cache_max_bytes = integer(cache_max_bytes, "cache_max_bytes", 0, 2**64 - 1)
        desc.max_local_bytes = integer(max_local_bytes, "max_local_bytes", 0, 2**64 - 1)
        desc.max_group = integer(max_group, "max_group", 0)
        out = ffi.new("clattn_context **")
        call(lib.clattn_context_create, desc, out)
        self._adopt(out[0])

    @classmethod
    def from_opencl(cls, context: Any, device: Any = None, queue: Any = None) -> Context:
        """A context on the application's own: pyopencl objects, or their addresses as int.

        device: None = the only or first one of `context`. queue: for calls that wait, None = one
        of clattn's own.
        """
        if device is None:
            if not hasattr(context, "devices"):
                raise TypeError(f"context is {context!r}, not a pyopencl.Context; an address needs "
                                "its device")
            device = context.devices[0]
        out = ffi.new("clattn_context **")
        call(lib.clattn_context_create_opencl, _new_desc(),
             ffi.cast("cl_context", address(context, "context", "Context")),
             ffi.cast("cl_device_id", address(device, "device", "Device")),
             ffi.cast("cl_command_queue",
                      0 if queue is None else address(queue, "queue", "CommandQueue")), out)
        self = cls.__new__(cls)
        self._adopt(out[0])
        return self

    def _adopt(self, handle: Any) -> None:
        def destroy(pointer: Any) -> None:
            lib.clattn_context_destroy(ffi.new("clattn_context **", pointer))

        # Freed when nobody holds it: neither this object, nor a plan, nor a call in another thread.
        self._handle: Any = ffi.gc(handle, destroy)
        info = _new_info()
        call(lib.clattn_context_get_device_info, self._handle, info)
        self.device = DeviceInfo._of(info)
        self._plans: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._make_locks()
        _contexts.add(self)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()  # of _plans
        self._making = threading.Lock()  # one plan is made at a time

    @property
    def handle(self) -> Any:
        if self._handle is None:
            raise fail("ERR_INVALID_ARGUMENT", "the context is closed")
        return self._handle

    @property
    def is_opencl(self) -> bool:
        return self.device.type != "builtin"

    @property
    def build_count(self) -> int:
        """How many OpenCL programs this context has compiled."""
        return int(lib.clattn_context_build_count(self.handle))

    def plan(self, key: Any, make: Callable[[], Any]) -> Any:
        """The plan that is kept under the key, or a new one; the longest unused ones go."""
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
        with self._making:
            with self._lock:
                found = self._plans.get(key)
            if found is None:
                found = make()
                with self._lock:
                    self._plans[key] = found
                    while len(self._plans) > MAX_PLANS:
                        self._plans.popitem(last=False)
        return found

    def empty(self, shape: Union[int, Sequence[int]], dtype: DTypeLike = "float32") -> DeviceArray:
        """Memory on the device, which lives as long as the array: for caches of keys and values."""
        made = DeviceArray(None, shape, dtype)
        made.buffer = Memory(self, made.nbytes)
        return made

    def upload(self, array: npt.ArrayLike) -> DeviceArray:
        """A copy of an array on the device."""
        source = np.asarray(array)
        return self.empty(source.shape, source.dtype).write(source)

    def close(self) -> None:
        """Lets go of the device. Work of other threads and plans that are still held end first."""
        self._plans.clear()
        self._handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._handle is not None else ", closed"
        return f"<clattn.Context on {self.device.name} ({self.device.platform}){state}>"


def address(thing: Any, name: str, kind: str) -> int:
    """Of an object of pyopencl, or itself."""
    try:
        return operator.index(getattr(thing, "int_ptr", thing))
    except TypeError:
        raise TypeError(f"{name} is {thing!r}, not a pyopencl.{kind}, nor the address of one"
                        ) from None


def events_of(wait_for: Any) -> list[Any]:
    """What a call was told to wait for."""
    try:
        found = list(wait_for)
    except TypeError:
        raise TypeError(f"wait_for is {wait_for!r}, not a list of pyopencl.Event") from None
    for n, event in enumerate(found):
        if not (hasattr(event, "wait") and hasattr(event, "int_ptr")):
            raise TypeError(f"wait_for[{n}] is {event!r}, not a pyopencl.Event")
    return found


# ---- contexts that functions without one use ---------------------------------------------------

_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


class _Defaults:
    """A context for each selector, and for each device of the application, that was used."""

    lock: Any

    def __init__(self) -> None:
        self.by_device: dict[Optional[str], Context] = {}
        self.adopted: collections.OrderedDict[tuple[int, int], Context] = collections.OrderedDict()
        self.parents: list[Context] = []
        new_lock(self, "lock")
        after_fork(self.in_child)
        atexit.register(self.clear)

    def get(self, device: Union[str, int, None]) -> Context:
        key = str(device) if device is not None else os.environ.get("CLATTN_DEVICE") or None
        found = self.by_device.get(key)
        if found is None:
            with self.lock:
                found = self.by_device.get(key)
                if found is None:
                    found = self.by_device[key] = Context(device)
        return found

    def of_queue(self, queue: Any) -> Context:
        context, device = queue.context, queue.device
        key = (address(context, "context", "Context"), address(device, "device", "Device"))
        with self.lock:
            found = self.adopted.get(key)
            if found is None:
                found = self.adopted[key] = Context.from_opencl(context, device)
                if len(self.adopted) > MAX_ADOPTED:
                    self.adopted.popitem(last=False)
            self.adopted.move_to_end(key)
            return found

    def in_child(self) -> None:
        # OpenCL does not outlive a fork; the CPU path does.
        for context in list(_contexts):
            context._make_locks()
        self.parents += [c for c in self.by_device.values() if c.is_opencl]
        self.parents += self.adopted.values()
        self.by_device = {k: c for k, c in self.by_device.items() if not c.is_opencl}
        self.adopted.clear()

    def clear(self) -> None:
        # Before the interpreter takes itself apart, for drivers have threads.
        for context in (*self.by_device.values(), *self.adopted.values()):
            context._plans.clear()
        self.by_device.clear()
        self.adopted.clear()


defaults = _Defaults()


def resolve(context: Optional[Context], device: Union[str, int, None]) -> Context:
    """The context that a function was given, or the one of its device."""
    if context is None:
        if isinstance(device, Context):
            raise TypeError("device is a Context; give it as context=")
        return defaults.get(device)
    if not isinstance(context, Context):
        raise TypeError(f"context is {context!r}, not a clattn.Context; an index or a part of a "
                        "name is device=")
    if device is not None:
        raise fail("ERR_INVALID_ARGUMENT", "both context and device are given")
    return context
