# SPDX-License-Identifier: Apache-2.0
# _ffi.py is made from the headers when the module is built.
from typing import Any

ffi: Any
