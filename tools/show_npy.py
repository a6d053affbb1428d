#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows two float32 .npy arrays side by side and the largest difference, with the standard library.

usage: tools/show_npy.py COMPUTED EXPECTED [--rows N] [--columns N] [--tolerance X]

An array of at least two axes is shown as rows of its last one, spread evenly over the array. Exit
status: 0 within the tolerance, 1 not, 2 a file that can't be read.
"""
import argparse
import array
import ast
import math
import struct
import sys


def load(path):
    """The shape and the values of a little-endian float32 C-order array."""
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("not a .npy file")
        major = file.read(2)[0]
        size_format = "<H" if major == 1 else "<I"
        (size,) = struct.unpack(size_format, file.read(struct.calcsize(size_format)))
        header = ast.literal_eval(file.read(size).decode("utf-8"))
        if header["descr"] != "<f4" or header["fortran_order"]:
            raise ValueError("only float32 ('<f4') in C order is shown")
        values = array.array("f")
        values.frombytes(file.read())
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != math.prod(header["shape"]):
        raise ValueError("the file does not hold as many elements as its shape says")
    return header["shape"], values


def position(index, shape):
    """[b, h, i, d] of a flat index."""
    out = []
    for extent in reversed(shape):
        index, at = divmod(index, extent)
        out.append(at)
    return list(reversed(out))


def difference(a, b):
    """|a - b|, 0 for equal infinities and for two NaNs, else infinite where either isn't finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    d = abs(a - b)
    return d if math.isfinite(d) else math.inf


def show_rows(computed, expected, shape, rows, columns):
    width = shape[-1]
    count = len(computed) // width
    columns = min(columns, width)
    step = max(1, (count - 1) // max(1, rows - 1))
    for row in list(range(0, count, step))[:rows]:
        print(f"row {position(row, shape[:-1])}, first {columns} of {width}")
        for name, values in (("computed", computed), ("expected", expected)):
            cells = values[row * width:row * width + columns]
            print(f"  {name} " + " ".join(f"{x:10.6f}" for x in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("computed")
    parser.add_argument("expected")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    options = parser.parse_args()
    arrays = []
    for path in (options.computed, options.expected):
        try:
            arrays.append(load(path))
        except (OSError, ValueError, KeyError, IndexError, SyntaxError, struct.error) as error:
            print(f"show_npy: {path}: {error}", file=sys.stderr)
            return 2
    (shape, computed), (expected_shape, expected) = arrays
    if shape != expected_shape:
        print(f"show_npy: shapes differ: {list(shape)} and {list(expected_shape)}", file=sys.stderr)
        return 1
    print(f"shape {list(shape)}")
    if not computed:
        return 0
    show_rows(computed, expected, shape or (1,), options.rows, options.columns)
    worst, where = max((difference(a, b), -n) for n, (a, b) in enumerate(zip(computed, expected)))
    at = position(-where, shape)
    print(f"largest difference {worst:.3g} at {at}: computed {computed[-where]:.8g}, "
          f"expected {expected[-where]:.8g}; allowed {options.tolerance:g}")
    return 0 if worst <= options.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
