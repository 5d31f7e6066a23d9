"""An array as a header, which JSON can hold, and its tables: what files, stores, messages and pickles consist of.

A pickle of an array holds bytes, and no object of NumPy's::

    head      8 bytes, the checksum of the rest; then the header as JSON, with the kind of the device, the checksums of
              the buffers, and where the small tables begin in the first of them
    buffers   the small tables one after the other, then each of the others by itself, out of band where the protocol
              allows that. Where it does not, all tables count as small

Of an array that is still a CSR (:class:`cvrarray.array.format.Pending`) the three arrays of that stand for the tables.

So damage is found before anything is made of it. See :mod:`cvrarray.cpu.checksum`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..core import devices
from ..core.tables import CSR
from .base import SparseArray

MAGIC = "cvrarray"
VERSION = 2  #: the newest of headers that is read, and that of arrays whose values are stored in few bytes
PLAIN_VERSION = 1  #: that of all other arrays

_SMALL = 1 << 14  #: bytes below which a pickle joins tables: a buffer of its own costs more than a copy
_ALIGNMENT = 64  #: of tables on a CPU: a cache line
_PAD = bytes(_ALIGNMENT)
_ENCODER = json.JSONEncoder(check_circular=False, separators=(",", ":"))
_LEAD = 16  #: bytes before the first joined table: CPython's large bytes objects begin so much before a cache line


def describe(A: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header of `A`, and its tables that are arrays by name, in the order of files, where they live."""
    fields = A._tables._asdict()
    arrays = {name: fields.pop(name) for name in A._stored if fields[name] is not None}
    del fields["shape"]
    parameters = {name: int(value) for name, value in fields.items() if value is not None}
    return _header(A, arrays, parameters=parameters, plan=A.plan), arrays


def _describe_csr(A: Any, csr: CSR, keywords: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same of an array that is still a CSR, which has keywords instead of parameters."""
    arrays = {"indptr": csr.indptr, "indices": csr.indices, "data": csr.data}
    return _header(A, arrays, keywords=keywords), arrays


def _header(A: Any, arrays: dict[str, Any], **own: Any) -> dict[str, Any]:
    """What all headers have, and what is their own."""
    return {
        "magic": MAGIC,
        "version": VERSION if "distinct" in arrays else PLAIN_VERSION,
        "format": A.format,
        "shape": [int(n) for n in A.shape],
        "dtype": _name_on_disk(A.dtype),
        **own,
        "arrays": {name: {"dtype": _name_on_disk(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()},
    }


def assemble(array_class: Any, header: dict[str, Any], arrays: dict[str, Any]) -> SparseArray:
    """The array that a checked header describes, around its arrays as they are, on their device."""
    fields = {"shape": tuple(header["shape"]), **dict.fromkeys(array_class._stored), **header["parameters"]}
    array: SparseArray = array_class._from_tables(array_class._table_type(**fields | arrays), header["plan"])
    return array


def on_disk(dtype: np.dtype) -> np.dtype:
    """`dtype` in the byte order of files."""
    return dtype.newbyteorder("<")


@cache
def _name_on_disk(dtype: np.dtype) -> str:
    return on_disk(dtype).str


@lru_cache(256)
def _dtype(name: str) -> np.dtype:
    return np.dtype(name)


# ------------------------------------------------------------------------------------------------ pickles


class Packed(NamedTuple):
    """What an array on the CPU remembers of its last pickle: programs send one array to many workers."""

    key: Any  # what the head says of the array beside its matrix, and the version of the values
    head: bytes
    buffers: list[Any]  # the joined tables, and the others as they are


def packed(A: Any, protocol: int) -> tuple[Any, ...]:
    """The head and the buffers of a pickle. The buffers are the tables themselves where `protocol` has room for such."""
    if protocol < 5:
        head, buffers = _written(A, every=True)
        return head, *buffers
    known, key = A._packed, (A.plan, A._version)
    if known is None or known.key != key or A._version is None:
        known = Packed(key, *_written(A, every=False))
        if A._target == devices.CPU and A._pending is None:
            A._packed = known
    return known.head, *map(pickle.PickleBuffer, known.buffers)


def _written(A: Any, every: bool) -> tuple[bytes, list[Any]]:
    """The head and the buffers; `every` table is joined with the others, or the small ones."""
    pending = A._pending
    if pending is not None and all(isinstance(value, int | str | None) for value in pending.keywords.values()):
        header, arrays = _describe_csr(A, *pending)
    else:
        header, arrays = describe(A.to_device(devices.CPU))
    joined, alone, offsets, end = [_PAD[:_LEAD]], [], {}, _LEAD
    for name, table in arrays.items():
        if not table.flags.c_contiguous or not np.little_endian:
            table = np.ascontiguousarray(table, on_disk(table.dtype))
        if every or table.nbytes < _SMALL:
            pad = -(end - _LEAD) % _ALIGNMENT
            joined += (_PAD[:pad], table) if pad else (table,)
            offsets[name] = end + pad
            end += pad + table.nbytes
        else:
            alone.append(table)
    buffers = [b"".join(joined), *alone]
    header |= {"device": A._target.kind, "joined": offsets, "checksums": [_checksum(buffer) for buffer in buffers]}
    text = _ENCODER.encode(header).encode()
    return _checksum(text).to_bytes(8, "little") + text, buffers


def unpacked(array_class: Any, head: bytes, buffers: Sequence[Any]) -> SparseArray:
    """The array whose pickle has this head and these buffers, on the kind of device where it was.

    Raises
    ------
    ValueError
        The pickle is damaged, or of a newer version.
    """
    header, is_earlier = _read_header(array_class, head)
    try:
        joined, *alone = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    except (TypeError, ValueError, BufferError) as error:  # they are no buffers
        raise _damaged(str(error)) from error
    contents, checksums = [_aligned(joined[_LEAD:])[0]], [_checksum(joined)]
    for buffer in alone:
        content, checksum = _aligned(buffer)
        contents.append(content)
        checksums.append(checksum)
    if is_earlier:
        checksums = [_earlier(buffer) for buffer in (joined, *alone)]
    if checksums != header["checksums"]:
        raise _damaged("its tables do not match their checksums")
    offsets, arrays, left = header["joined"], {}, iter(contents[1:])
    for name, table in header["arrays"].items():
        content, begin = (contents[0], offsets[name] - _LEAD) if name in offsets else (next(left), 0)
        array = np.ndarray(table["shape"], _dtype(table["dtype"]), content, begin)
        arrays[name] = array if np.little_endian else array.astype(array.dtype.newbyteorder("="))
    if "keywords" in header:
        csr = CSR(arrays["indptr"], arrays["indices"], arrays["data"], tuple(header["shape"]))
        put_off: SparseArray = array_class._from_pending(csr, header["keywords"])
        return put_off
    own = assemble(array_class, header, arrays)
    return own if header["device"] == "cpu" else own.to_device(header["device"])


def _read_header(array_class: Any, head: Any) -> tuple[dict[str, Any], bool]:
    """The header in a pickle's head, and whether it has checksums of before; errors as of :func:`unpacked`."""
    if not isinstance(head, bytes):
        raise _damaged("its header is no bytes")
    checksum, text = int.from_bytes(head[:8], "little"), head[8:]
    is_earlier = checksum != _checksum(text)
    if is_earlier and checksum != _earlier(text):
        raise _damaged("its header does not match its checksum")
    header: dict[str, Any] = json.loads(head[8:])
    if header["version"] > VERSION:
        from .. import __version__

        raise ValueError(f"the pickle has version {header['version']}; cvrarray {__version__} reads up to {VERSION}. Update it")
    if getattr(array_class, "format", None) != header["format"]:
        raise _damaged(f"it names {array_class!r} for the format {header['format']}")
    return header, is_earlier


def _damaged(why: str) -> ValueError:
    return ValueError(f"the pickle of an array is damaged: {why}. Make it anew")


def _checksum(buffer: Any) -> int:
    content = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    checksum: int = devices.CPU.backend("checksum").checksum(content)
    return checksum


def _earlier(buffer: Any) -> int:
    """The checksum of pickles of before, which are read still."""
    checksum: int = devices.CPU.backend("checksum").earlier(np.frombuffer(buffer, np.uint8))
    return checksum


def _aligned(content: np.ndarray) -> tuple[np.ndarray, int]:
    """`content`, or a copy of it that begins at a cache line, as the CPU's kernels want it; and its checksum."""
    if devices.CPU.backend("runtime.memory").begins_at_line(content):
        return content, _checksum(content)
    copied: tuple[np.ndarray, int] = devices.CPU.backend("checksum").copied(content)
    return copied
