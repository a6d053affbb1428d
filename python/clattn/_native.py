# SPDX-License-Identifier: Apache-2.0
"""The library beside this file, its log, and statuses as exceptions."""
from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any, Callable

from . import _errors
from ._ffi import ffi

__all__ = ["after_fork", "call", "fail", "ffi", "lib", "log_callback", "logger", "new_lock", "text",
           "version"]

logger = logging.getLogger("clattn")


def _open() -> Any:
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(folder)):
        if name.startswith("_libclattn."):
            # cffi ends a call with the GIL released.
            return ffi.dlopen(os.path.join(folder, name))
    raise ImportError(f"clattn's library _libclattn is not in {folder}; this folder is a source "
                      "tree and no installed package: pip install .")


lib: Any = _open()
_version = (lib.CLATTN_VERSION_MAJOR * 10000 + lib.CLATTN_VERSION_MINOR * 100
            + lib.CLATTN_VERSION_PATCH)
if lib.clattn_version() != _version:
    raise ImportError(f"clattn's library is of version {lib.clattn_version()} and its module of "
                      f"{_version}: install clattn anew")
version = f"{_version // 10000}.{_version // 100 % 100}.{_version % 100}"

_STATUS_NAMES: dict[int, str] = {
    getattr(lib, name): name[len("CLATTN_"):]
    for name in dir(lib) if name == "CLATTN_OK" or name.startswith("CLATTN_ERR_")}
_CLASSES: dict[str, type[_errors.Error]] = {
    "ERR_UNSUPPORTED": _errors.UnsupportedError,
    "ERR_OUT_OF_MEMORY": _errors.OutOfMemoryError,
    "ERR_NO_DEVICE": _errors.NoDeviceError,
    "ERR_NO_OPENCL": _errors.NoDeviceError,
}
_CLASSES.update({name: _errors.InvalidArgumentError for name in (
    "ERR_INVALID_ARGUMENT", "ERR_SHAPE", "ERR_STRIDE", "ERR_BUFFER_MISSING",
    "ERR_BUFFER_TOO_SMALL", "ERR_OVERLAP", "ERR_OVER_BOUND", "ERR_STRUCT_SIZE",
    "ERR_WRONG_CONTEXT")})

# ---- log ---------------------------------------------------------------------------------------

_LEVELS = {lib.CLATTN_LOG_ERROR: logging.ERROR, lib.CLATTN_LOG_WARN: logging.WARNING,
           lib.CLATTN_LOG_INFO: logging.INFO, lib.CLATTN_LOG_DEBUG: logging.DEBUG}


class _ToStderr(logging.Handler):
    """What $CLATTN_LOG asks for, where the program has set up no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and logger.handlers == [self]:
            word = {"WARNING": "warn"}.get(record.levelname, record.levelname.lower())
            print(f"clattn {word}: {record.getMessage()}", file=sys.stderr)


def _obey_environment(word: str) -> None:
    levels = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO,
              "debug": logging.DEBUG}
    if not word or logger.handlers or logger.level != logging.NOTSET:
        return
    logger.addHandler(_ToStderr())
    logger.setLevel(levels.get(word.lower(), logging.WARNING))
    if word.lower() not in levels:
        logger.warning("CLATTN_LOG is %.40r, neither error, warn, info nor debug: taken as warn",
                       word)


_obey_environment(os.environ.get("CLATTN_LOG", ""))


class _Said(threading.local):
    """The call that this thread is in, and the errors that it has named so far."""

    inside = False

    def __init__(self) -> None:
        self.errors: list[str] = []


_said = _Said()


def text(pointer: Any) -> str:
    """A C string or a field of characters."""
    raw: bytes = ffi.string(pointer)
    return raw.decode("utf-8", "replace")


@ffi.callback("void(void *, clattn_log_level, const char *)")  # type: ignore[untyped-decorator]
def log_callback(_user: Any, level: int, message: Any) -> None:
    # What a call names as an error becomes the text of its exception, and is no message besides;
    # the context's worker thread is in no call.
    if level == lib.CLATTN_LOG_ERROR and _said.inside:
        _said.errors.append(text(message))
    else:
        logger.log(_LEVELS.get(level, logging.ERROR), "%s", text(message))


# ---- statuses ----------------------------------------------------------------------------------

def fail(status_name: str, message: str) -> _errors.Error:
    """The exception of a status, for what the module itself finds wrong."""
    return _CLASSES.get(status_name, _errors.DeviceError)(
        message, getattr(lib, "CLATTN_" + status_name), status_name)


def call(function: Any, *args: Any) -> None:
    """Calls a function of the library and raises the exception of its status. Errors that it got
    over are messages."""
    said = _said
    said.inside = True
    try:
        status = function(*args)
    finally:
        said.inside = False
    if status == 0 and not said.errors:
        return
    errors, said.errors = said.errors, []
    if status == 0:
        for line in errors:
            logger.error("%s", line)
        return
    name = _STATUS_NAMES.get(status, "ERR_INTERNAL")
    raise _CLASSES.get(name, _errors.DeviceError)(
        "; ".join(errors) or text(lib.clattn_status_string(status)), status, name)


# ---- fork --------------------------------------------------------------------------------------

# A lock that another thread held when the process forked would stay locked in the child, so the
# child makes new ones.
_after_fork: list[Callable[[], None]] = []


def new_lock(holder: Any, name: str) -> None:
    """Puts a lock into an attribute of an object that lives as long as the process."""
    def make() -> None:
        setattr(holder, name, threading.Lock())
    make()
    _after_fork.append(make)


def after_fork(action: Callable[[], None]) -> None:
    _after_fork.append(action)


def _in_child() -> None:
    for action in _after_fork:
        action()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
