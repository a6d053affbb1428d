#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of the fuzz targets into tests/fuzz/corpus.

What else lies there was found by libFuzzer (the name is a hash) and is kept because it reaches code
that the others do not, or because it was a find (the name begins with find_).
"""
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def put(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def structured():
    """Targets that take fields from bytes: any bytes are a problem."""
    dice = random.Random(1)
    for target, count, size in (("descriptor", 4, 120), ("call", 4, 200)):
        for n in range(count):
            put(target, f"seed_{n:02}", bytes(dice.randrange(256) for _ in range(size)))


def tune_files():
    head = "clattn-tune 1\n"
    device = 'device "PoCL" "cpu-\\"x\\" \\\\ y" "3.1 *" "0.1.0"\n'
    rows = (
        "fused dims 64/64 types f32/f32/f32 mask none pages no rows 64-127 keys 512-* "
        "tile vector tile_q 24 tile_k 64 width 8 vecs_q 3 block_k 4 block_d 4 ratio 1.134\n",
        "split_kv dims 128/96 types bf16/int8/f16 mask general pages yes rows 1-1 keys 0-999999999 "
        "planner\n",
        "two_loop dims 576/1 types f16/f16/f32 mask window pages no rows 2-3 keys 4-5 "
        "tile subgroup tile_q 1 tile_k 4 items_q 1 items_k 1 chunk_d 4 ratio 1000\n",
        "fused_kv_outer dims 1/576 types f32/f32/bf16 mask none pages no rows 8-* keys 8-* "
        "tile group tile_q 64 tile_k 32 items_q 32 items_k 8 chunk_d 32 ratio 0.001\n",
    )
    put("tune_file", "seed_empty", head)
    put("tune_file", "seed_whole", head + "# comment\n\n" + device + "".join(rows))
    put("tune_file", "seed_crlf", (head + device + rows[0]).replace("\n", "\r\n"))
    put("tune_file", "seed_two", head + device + rows[1] + device + rows[1] + rows[2])
    put("tune_file", "seed_no_device", head + rows[0])
    for n, row in enumerate(rows):
        put("tune_file", f"seed_row_{n}", head + device + row)


def cache_files():
    key, data = b"4:kind\n5:facts\n", b"payload"
    file = b"clattn\r\n" + struct.pack("<IIQQ", 1, 0, len(key), len(data)) + key + data + bytes(8)
    for n, how in enumerate((0, 1, 3, 7, 15, 11, 9)):
        put("cache_file", f"seed_raw_{n}", bytes((0, how)) + file)
    kinds = (b"", b"\0", b"\1\5\0\3\0\0\7", b"\2\5\0\3\0\1\2\1", b"\1\5\0\0\0\2")
    for n, changes in enumerate(kinds):
        put("cache_file", f"seed_changed_{n}", bytes((150, 4, 5)) + b"keysdatas" + changes)
        put("cache_file", f"seed_folder_{n}", bytes((254, 5)) + b"datas" + changes)
    # One bit of the payload, which only the checksum knows.
    flip = struct.pack("<BHHBB", 1, 38, 0, 0, 1)
    put("cache_file", "seed_changed_bit", bytes((150, 4, 5)) + b"keysdatas" + flip)
    flip = struct.pack("<BHHBB", 1, 66, 0, 0, 1)
    put("cache_file", "seed_folder_bit", bytes((254, 5)) + b"datas" + flip)
    put("cache_file", "seed_mode", bytes((254, 5)) + b"datas\0\xff")


def npy(descr, shape, data, version=1, more="", quote="'"):
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, %s}\n" % (descr, shape, more)
    header = header.replace("'", quote).encode()
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes((version, 0)) + size + header + data


def npy_files():
    floats = struct.pack("<8f", *range(8))
    files = {
        "f32": npy("<f4", "(1, 2, 2, 2)", floats),
        "vector": npy("<f4", "(8,)", floats),
        "matrix": npy("<f2", "(4, 4)", floats),
        "bool": npy("|b1", "(1, 1, 4, 8)", floats, quote='"'),
        "u16": npy("<u2", "(2L, 2L, 2L, 2L)", floats, version=2),
        "i32": npy("<i4", "(8,)", floats, version=3),
        "i64": npy("<i8", "(4,)", floats),
        "none": npy("<f4", "(0, 9223372036854775807)", b""),
        "huge": npy("<f4", "(9223372036854775807, 9223372036854775807)", floats),
        "short": npy("<f4", "(1, 2, 2, 3)", floats),
        "long": npy("<f4", "(1, 2, 2, 1)", floats),
        "big": npy(">f4", "(8,)", floats),
        "order": npy("<f4", "(8,)", floats).replace(b"False", b"True"),
        "record": npy("<f4", "(8,)", floats).replace(b"'<f4'", b"[('a', '<f4')]"),
        "twice": npy("<f4", "(8,)", floats, more="'descr': '<f4'"),
        "other": npy("<f4", "(8,)", floats, more="'other': 1"),
        "number": npy("<f4", "(8)", floats),
        "scalar": npy("<f4", "()", floats[:4]),
        "cut": npy("<f4", "(8,)", floats)[:40],
        "version": npy("<f4", "(8,)", floats, version=4),
    }
    for n, (name, file) in enumerate(sorted(files.items())):
        put("npy", "seed_" + name, bytes((0, (4, 1, 0, 2)[n % 4])) + file)
    put("npy", "seed_f32_of_4", bytes((0, 4)) + files["f32"])
    put("npy", "seed_only_bool", bytes((2, 4)) + files["bool"])


def command_lines():
    lines = (
        "-q q -k k -v v -o o",
        "-q q16 -k k16 -v k16 --dtype f16 --kv-dtype int8 --lse l -o o --json",
        "-q q -k k -v v --compare q --tolerance 1e-3 --runs 3 --threads 2 --device cpu",
        "-q q -k k -v v -o o --causal=top-left --align top-left --window 3,-1 --softcap 30",
        "-q q -k k -v v -o o --causal --mask m --bias b16 --bias-dtype f16 --alibi a2 --sinks a",
        "-q q -k k -v v -o o --kv-lens l --scale -0.5 --layout bhsd",
        "-q qp -k kp -v kp --cu-seqlens-q cq --cu-seqlens-kv ck -o o --algo reference",
        "-q q -k pool -v pool --page-table t --kv-lens l -o o --algo fused --kernel group",
        "-q q -k pool -v pool --page-table t --kv-lens l64 -o o --algo split_kv --splits 7",
        "-qq -kk -vv -oo --algo unfused --softmax online --kv-lens=l64",
        "-q empty -k k -v v -o o --layout=bshd --dtype=bf16",
        "-q wide -k wide -v wide -o o",
        "-q q -k k -v v -o o --splits 7",
        "-q q -k k -v v -o o --softmax safe --bias-dtype f16 --tolerance 1",
        "-q q -k k -v v -o o --algo host --kernel group",
        "-q q -k k -v v -o o --causal=top-left --align bottom-right",
        "-q q -k k -v v -o o --page-table t",
        "--help",
        "--version",
        "-q q -k k",
        "-q q -q q",
        "--scale",
        "--wind 1,2",
        "-q q -k k -v v -o o stray",
        "--window 1",
        "--splits 0",
        "-x",
        "--",
    )
    for n, line in enumerate(lines):
        put("options", f"seed_{n:02}", line.replace(" ", "\n"))


structured()
tune_files()
cache_files()
npy_files()
command_lines()
