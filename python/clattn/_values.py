# SPDX-License-Identifier: Apache-2.0
"""Numbers, flags and names among the arguments, checked before they reach the library."""
from __future__ import annotations

import operator
from typing import Any, Optional

import numpy as np

from ._native import fail


def flag(value: Any, name: str, instead: str = "") -> bool:
    """A text is always true, which is seldom what was meant."""
    if isinstance(value, (int, np.integer, np.bool_)) and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name} is {value!r}, not True or False{instead}")


def number(value: Any, name: str) -> Optional[float]:
    if value is None:
        return None
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{name} is {value!r}, not a number of double precision")


def integer(value: Any, name: str, least: int = -2**31, most: int = 2**31 - 1) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, not a whole number") from None
    if not least <= found <= most:
        raise fail("ERR_INVALID_ARGUMENT", f"{name} is {found}, not {least} to {most}")
    return found


def choose(table: dict[str, int], value: Optional[str], name: str) -> int:
    if value is None:
        return 0
    found = table.get(value) if isinstance(value, str) else None
    if found is None:
        raise fail("ERR_INVALID_ARGUMENT", f"{name} is {value!r}, not one of "
                                           f"{', '.join(sorted(table))}")
    return found


def window(value: Any) -> Optional[tuple[int, int]]:
    if value is None:
        return None
    try:
        left, right = map(operator.index, value)
    except (TypeError, ValueError):
        raise TypeError(f"window is {value!r}, not (left, right): how many keys before and behind "
                        "its own a query sees, -1 for all") from None
    return integer(left, "window[0]"), integer(right, "window[1]")
