"""Our own file, ``.cvra``, version 1 or 2: an array's tables, laid out so that they can be used where they lie.

An uncompressed zip, and so an ``.npz`` that ``numpy.load`` opens::

    cvrarray.json   magic, version, format, shape, dtype, parameters (the tables' scalars), plan, and the
                    dtype and shape of every array
    step_ptr.npy    a member for every array of the format's tables (:mod:`cvrarray.core.tables`), in their order:
    val.npy         version 1.0 of the npy format, little-endian, C order
    ...

1. The arrays are those that the format's class lists in ``_stored``; one that is None in the tables has no member.
2. The first byte of an array's values stands at a multiple of 64 in the file, by a pad in the member's zip header: so
   the arrays can be used where they are, in a read-only memory map.
3. The zip's CRC-32 of each member is the checksum.
4. The same array makes the same file, byte by byte: there are no times and no names of machines in it.
5. Version 2 has an array ``distinct``: the value table holds what stands for the values (:mod:`cvrarray.core.tables`).
   An array whose values are stored as they are makes version 1.

Refused, with the member's name: a newer version, a member that is missing, surplus, compressed, displaced or not what
``cvrarray.json`` says of it, and, where the file is to be verified, a wrong checksum.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np

from ..array import serialized
from ..array.base import SparseArray
from ..array.format import FormatArray
from ..array.invariants import OPTIONAL
from ..array.serialized import MAGIC, VERSION, describe, on_disk
from ..core import devices
from ..core.distinct import NARROWER
from ..core.tables import WARP, mask_dtype
from ..formats import FORMATS
from ..input import coercion
from . import npz
from .guards import members, naming

HEADER = "cvrarray.json"  #: the member that tells a file of ours from other zips

_ALIGNMENT = 64
_LOCAL_HEADER = 30  # bytes of a zip, before a member's name
_SECRET = 0x1 | 0x20 | 0x40  # flags of what is encrypted, or a patch of something else
_HEAD = 1 << 14  # bytes of an array's member that are looked at; none has a longer header
#: dtypes that values may have
_VALUE_DTYPES = ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]


def write(file: BinaryIO, A: SparseArray) -> None:
    """Write `A` to an empty `file`; an array on a GPU is copied to the host table by table."""
    assert isinstance(A, FormatArray)
    header, arrays = describe(A)
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open(_aligned_member(HEADER, file.tell()), "w", force_zip64=True) as stream:
            stream.write(json.dumps(header).encode())
        for name, array in arrays.items():
            host = np.ascontiguousarray(devices.move(array, devices.CPU), on_disk(array.dtype))
            with archive.open(_aligned_member(f"{name}.npy", file.tell()), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, host, (1, 0))


def read(file: BinaryIO, archive: zipfile.ZipFile, verify: bool) -> SparseArray:
    """The array in `file`, a zip, its tables mapped; the checksums are compared where `verify` says so, the invariants never.

    Raises
    ------
    ValueError
        See the module.
    zipfile.BadZipFile
        The zip itself is damaged.
    """
    listed = members(archive)
    if HEADER not in listed:
        raise ValueError(f"must be a file of cvrarray.save; it has no member {HEADER}. Try cvrarray.read")
    mapped = np.memmap(file, np.uint8, mode="r")
    buffer = mapped.view(np.ndarray)  # slices of a memmap take ten times as long
    with naming(f"member {HEADER}"):
        header = json.loads(buffer[_content(buffer, listed[HEADER], verify=True)].tobytes())
        check_header(header)
    wanted = {HEADER, *(f"{name}.npy" for name in header["arrays"])}
    if listed.keys() != wanted:
        odd = ", ".join(sorted(listed.keys() ^ wanted))
        raise ValueError(f"must have the members that {HEADER} lists and no other; missing or surplus: {odd}")
    arrays = {}
    for name, found in header["arrays"].items():
        with naming(f"member {name}.npy"):
            arrays[name] = _map_array(mapped, buffer, listed[f"{name}.npy"], found["dtype"], tuple(found["shape"]), verify)
    return assemble(header, arrays)


def assemble(header: dict[str, Any], arrays: dict[str, Any]) -> SparseArray:
    """The array that a checked header describes, around its arrays as they are, on their device."""
    return serialized.assemble(FORMATS[header["format"]], header, arrays)


# ------------------------------------------------------------------------------------------------ members


def _aligned_member(name: str, offset: int) -> zipfile.ZipInfo:
    """A zip member whose content begins at a multiple of 64 when its header stands at `offset`.

    The pad is the extra field 0xD935 (alignment, then zeros), known to Android's zipalign and Apache Commons Compress.
    An npy header is a multiple of 64 long, so the values are aligned too.
    """
    pad_header, zip64_extra = 6, 20
    pad = -(offset + _LOCAL_HEADER + len(name) + pad_header + zip64_extra) % _ALIGNMENT
    member = zipfile.ZipInfo(name)
    member.create_system = 3  # Unix, wherever we are: so that the same array makes the same file
    member.extra = struct.pack("<HHH", 0xD935, 2 + pad, _ALIGNMENT) + bytes(pad)
    return member


def _content(buffer: np.ndarray, member: zipfile.ZipInfo, verify: bool) -> slice:
    """Where a member's content lies in `buffer`, the mapped file."""
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _SECRET:
        raise ValueError("is compressed or encrypted, and so cannot be mapped. Save the array again")
    name = member.filename.encode()
    local = buffer[member.header_offset :][: _LOCAL_HEADER + len(name)].tobytes()
    name_size, extra_size = struct.unpack_from("<HH", local, 26) if len(local) >= _LOCAL_HEADER else (0, 0)
    begin = member.header_offset + _LOCAL_HEADER + name_size + extra_size
    is_there = local[:4] == b"PK\3\4" and local[_LOCAL_HEADER:] == name and name_size == len(name)
    if not is_there or member.compress_size != member.file_size or begin + member.file_size > buffer.size:
        raise ValueError("is not where the zip's directory says. The file is damaged")
    content = slice(begin, begin + member.file_size)
    if verify and zlib.crc32(buffer[content]) != member.CRC:
        raise ValueError("does not match its checksum. The file is damaged")
    return content


def _map_array(
    mapped: np.memmap, buffer: np.ndarray, member: zipfile.ZipInfo, dtype: str, shape: tuple[int, ...], verify: bool
) -> np.ndarray:
    """A member's array where it lies in the mapped file, which `buffer` views; on a big-endian machine a copy."""
    content = _content(buffer, member, verify)
    head = buffer[content][:_HEAD].tobytes()
    first = content.start + _read_header(head, dtype, shape)
    if content.stop - first != math.prod(shape) * np.dtype(dtype).itemsize:
        raise ValueError(f"must hold {dtype} of shape {shape}; it holds {content.stop - first} bytes")
    if first % _ALIGNMENT:
        raise ValueError(f"must have values at a multiple of {_ALIGNMENT} bytes; got {first}. Save the array again")
    array = np.ndarray(shape, dtype, mapped, first)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_header(head: bytes, dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an npy header; ValueError unless it is that of such an array."""
    stream = io.BytesIO(head)
    found = npz.read_npy_header(stream)
    if found != (shape, False, np.dtype(dtype)):
        raise ValueError(f"must hold {dtype} of shape {shape}, as {HEADER} says; got {found[2].str}, {found[0]}")
    return stream.tell()


# ------------------------------------------------------------------------------------------------ cvrarray.json


def check_header(header: Any) -> None:
    """ValueError unless every entry of the JSON member is there and of the right kind."""
    if not isinstance(header, dict) or header.get("magic") != MAGIC:
        raise ValueError(f"must hold the magic {MAGIC!r}")
    version: Any = header.get("version")
    if _is_count(version) and version > VERSION:
        from .. import __version__

        raise ValueError(
            f"has version {version} of the file format; cvrarray {__version__} reads versions up to {VERSION}. "
            "Update cvrarray, or save the array with this one"
        )
    _require(header, "version", _is_count(version) and version > 0, f"a version up to {VERSION}")
    _require(header, "format", header.get("format") in list(FORMATS), f"one of {', '.join(FORMATS)}")
    _require(header, "shape", _is_shape(header.get("shape"), 2), "two counts")
    _require(header, "dtype", header.get("dtype") in _VALUE_DTYPES, f"one of {', '.join(_VALUE_DTYPES)}")
    _require(header, "plan", isinstance(header.get("plan"), str | None), "a text or null")

    kinds, tables = FORMATS[header["format"]]._stored, FORMATS[header["format"]]._table_type
    scalars = set(tables._fields) - {"shape"} - kinds.keys()
    parameters: Any = header.get("parameters")
    counts = isinstance(parameters, dict) and parameters.keys() == scalars and all(map(_is_count, parameters.values()))
    in_range = counts and all(1 <= parameters[name] <= WARP for name in scalars - {"nnz"})
    _require(header, "parameters", in_range, f"counts of {', '.join(sorted(scalars))}, all but nnz from 1 to {WARP}")

    arrays: Any = header.get("arrays")
    complete = isinstance(arrays, dict) and kinds.keys() - set(OPTIONAL) <= arrays.keys() <= kinds.keys()
    _require(header, "arrays", complete, f"the dtypes and shapes of {', '.join(kinds)}")
    index = on_disk(coercion.index_dtype(tuple(header["shape"]))).str
    own = {"index": index, "value": header["dtype"], "mask": on_disk(mask_dtype(parameters.get("block_size", 1))).str}
    stored = _stored_dtype(header)
    for name, found in arrays.items():
        kind, ndim = kinds[name]
        dtype = stored if name == FORMATS[header["format"]]._value_table else own.get(kind, kind)
        fits = isinstance(found, dict) and found.get("dtype") == dtype and _is_shape(found.get("shape"), ndim)
        _require(arrays, name, fits, f"{ndim}-dimensional of {dtype}")


def _stored_dtype(header: dict[str, Any]) -> str:
    """dtype of the value table: the values', or that of what stands for them."""
    distinct: Any = header["arrays"].get("distinct")
    if distinct is None:
        return str(header["dtype"])
    _require(header, "version", header["version"] > 1, "2, for there is an array distinct")
    shape = distinct.get("shape") if isinstance(distinct, dict) else None
    if shape != [0]:
        return "|u1"
    dtype = np.dtype(header["dtype"])
    _require(header, "dtype", dtype in NARROWER, "one that has a narrower one, where distinct is empty")
    return on_disk(NARROWER[dtype]).str


def _require(entries: dict[str, Any], key: str, holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{key} must be {what}; got {entries.get(key)!r}")


def _is_shape(value: Any, ndim: int) -> bool:
    return isinstance(value, list) and len(value) == ndim and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    """Whether `value` is an int (and no bool) from 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value < 1 << 63
