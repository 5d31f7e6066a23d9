"""Zips with right checksums, quicker than ``zipfile`` and more willing to lie."""

from __future__ import annotations

import functools
import struct
import zlib

import numpy as np


def pack(members: dict[str, bytes], deflate: bool = False, alignment: int = 0) -> bytes:
    """A zip of `members`; with `alignment` their contents begin at multiples of it."""
    content, directory = bytearray(), bytearray()
    for name, data in members.items():
        coded, offset = name.encode(), len(content)
        stored = zlib.compress(data, 1)[2:-4] if deflate else data
        sizes = struct.pack("<IIIH", zlib.crc32(data), len(stored), len(data), len(coded))
        head = struct.pack("<HHHHH", 20, 0, 8 if deflate else 0, 0, 0x21)
        extra = b""
        if alignment:
            pad = -(offset + 30 + len(coded) + 6) % alignment
            extra = struct.pack("<HHH", 0xD935, 2 + pad, alignment) + bytes(pad)
        content += b"PK\3\4" + head + sizes + struct.pack("<H", len(extra)) + coded + extra + stored
        directory += b"PK\1\2" + struct.pack("<H", 20) + head + sizes
        directory += struct.pack("<HHHHII", 0, 0, 0, 0, 0, offset) + coded
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(content), 0)
    return bytes(content + directory + b"PK\5\6" + end)


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An array as a file, in C order; `shape` is what its header claims."""
    return _head(array.dtype.str, array.shape if shape is None else shape) + array.tobytes()


@functools.lru_cache(4096)
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode("latin-1")
