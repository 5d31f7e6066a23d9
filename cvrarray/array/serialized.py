"""An array as a header, which JSON can hold, and its tables: what files, stores, messages and pickles consist of.

A pickle of an array holds bytes, and no object of NumPy's::

    head      8 bytes, the checksum of the rest; then the header as JSON, with the kind of the device, the checksums of
              the buffers, and where the small tables begin in the first of them
    buffers   the small tables one after the other, then each of the others by itself, out of band where the protocol
              allows that. Where it does not, all tables count as small

So damage is found before anything is made of it. See :mod:`cvrarray.cpu.checksum`.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import __version__
from ..core import devices
from .base import SparseArray

MAGIC = "cvrarray"
VERSION = 1  #: of the headers that are made, and the newest that is read

_SMALL = 1 << 14  #: bytes below which a pickle joins tables: a buffer of its own costs more than a copy
_ALIGNMENT = 64  #: of tables on a CPU: a cache line
_LEAD = 16  #: bytes before the first joined table: CPython's large bytes objects begin so much before a cache line


def describe(A: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of `A`, and its tables that are arrays by name, in the order of files, where they live."""
    fields = A._tables._asdict()
    arrays = {name: fields.pop(name) for name in A._stored if fields[name] is not None}
    header = {
        "magic": MAGIC,
        "version": VERSION,
        "format": A.format,
        "shape": [int(n) for n in fields.pop("shape")],
        "dtype": on_disk(A.dtype).str,
        "parameters": {name: int(value) for name, value in fields.items() if value is not None},
        "plan": A.plan,
        "arrays": {name: {"dtype": on_disk(a.dtype).str, "shape": list(a.shape)} for name, a in arrays.items()},
    }
    return header, arrays


def assemble(array_class: Any, header: dict[str, Any], arrays: dict[str, Any]) -> SparseArray:
    """The array that a checked header describes, around its arrays as they are, on their device."""
    fields = {"shape": tuple(header["shape"]), **dict.fromkeys(array_class._stored), **header["parameters"]}
    array: SparseArray = array_class._from_tables(array_class._table_type(**fields | arrays), header["plan"])
    return array


def on_disk(dtype: np.dtype) -> np.dtype:
    """`dtype` in the byte order of files."""
    return dtype.newbyteorder("<")


# ------------------------------------------------------------------------------------------------ pickles


def packed(A: Any, protocol: int) -> tuple[Any, ...]:
    """The head and the buffers of a pickle. The buffers are the tables themselves where `protocol` has room for such."""
    header, arrays = describe(A.to_device(devices.CPU))
    joined: list[Any] = []
    alone: list[Any] = []
    offsets, end = {}, 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array, on_disk(array.dtype)).reshape(-1).view(np.uint8)
        if protocol >= 5 and content.size >= _SMALL:
            alone.append(content)
        else:
            begin = _LEAD if not joined else end + -(end - _LEAD) % _ALIGNMENT
            joined += [bytes(begin - end), content.data]
            offsets[name], end = begin, begin + content.size
    buffers = [b"".join(joined), *alone]
    header |= {"device": A._target.kind, "joined": offsets, "checksums": [_checksum(buffer) for buffer in buffers]}
    text = json.dumps(header).encode()
    return _checksum(text).to_bytes(8, "little") + text, *(map(pickle.PickleBuffer, buffers) if protocol >= 5 else buffers)


def unpacked(array_class: Any, head: bytes, buffers: Sequence[Any]) -> SparseArray:
    """The array whose pickle has this head and these buffers, on the kind of device where it was.

    Raises
    ------
    ValueError
        The pickle is damaged, or of a newer version.
    """
    try:
        header = _header(array_class, head)
        if [_checksum(buffer) for buffer in buffers] != header["checksums"]:
            raise ValueError("its tables do not match their checksums")
    except (TypeError, ValueError, BufferError) as error:
        raise ValueError(f"the pickle of an array is damaged: {error}. Make it anew") from None
    if header["version"] > VERSION:
        raise ValueError(f"the pickle has version {header['version']}; cvrarray {__version__} reads up to {VERSION}. Update it")
    joined, *alone = (np.frombuffer(buffer, np.uint8) for buffer in buffers)
    joined, left, arrays = _aligned(joined[_LEAD:]), iter(alone), {}
    for name, table in header["arrays"].items():
        shape, dtype, begin = table["shape"], np.dtype(table["dtype"]), header["joined"].get(name)
        if begin is None:
            content = _aligned(next(left))
        else:
            content = joined[begin - _LEAD :][: math.prod(shape) * dtype.itemsize]
        arrays[name] = content.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    array = assemble(array_class, header, arrays)
    return array if header["device"] == "cpu" else array.to_device(header["device"])


def _header(array_class: Any, head: Any) -> dict[str, Any]:
    """The header in a pickle's head; ValueError where a byte of it is damaged."""
    if not isinstance(head, bytes) or _checksum(head[8:]).to_bytes(8, "little") != head[:8]:
        raise ValueError("its header does not match its checksum")
    header: dict[str, Any] = json.loads(head[8:])
    if getattr(array_class, "format", None) != header["format"]:
        raise ValueError(f"it names {array_class!r} for the format {header['format']}")
    return header


def _checksum(buffer: Any) -> int:
    checksum: int = devices.CPU.backend("checksum").checksum(np.frombuffer(buffer, np.uint8))
    return checksum


def _aligned(content: np.ndarray) -> np.ndarray:
    """`content`, or a copy of it that begins at a cache line, as the CPU's kernels want it."""
    if not content.ctypes.data % _ALIGNMENT:
        return content
    own: np.ndarray = devices.CPU.backend("runtime.memory").empty(content.size, np.uint8)
    np.copyto(own, content)
    return own
