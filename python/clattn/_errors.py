# SPDX-License-Identifier: Apache-2.0
"""Exceptions of clattn, by the status of the library's call."""
from __future__ import annotations


class Error(RuntimeError):
    """A call of the library failed. The text says which field was wrong and what it held.

    status: the number, as clattn/base.h has it; status_name: its name without CLATTN_;
    message: the library's own message.
    """

    def __init__(self, message: str, status: int, status_name: str) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.status_name = status_name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.status, self.status_name)


class InvalidArgumentError(Error, ValueError):
    """A value, shape, stride or buffer is not legal; nothing was written."""


class UnsupportedError(Error, NotImplementedError):
    """The problem is legal, but what was asked for does not serve it; nothing was written."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory ran out."""


class NoDeviceError(Error):
    """No device fits the selector, or there is no OpenCL, or a fork has cut it off."""


class DeviceError(Error):
    """A driver failed: a kernel did not build, an OpenCL call failed, numbers were wrong."""
