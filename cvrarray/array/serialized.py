"""An array as a header, which JSON can hold, and its tables: what files, stores, messages and pickles consist of.

A pickle has the header as JSON and a buffer for each table that is not empty, out of band where the protocol allows
that. It holds no object of NumPy's. Of an array that is still a CSR (:class:`cvrarray.array.kept.Pending`) the three
arrays of that stand for the tables.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR
from .base import SparseArray
from .kept import Pending

MAGIC = "cvrarray"
VERSION = 2  #: the newest of headers that is read, and that of arrays whose values are stored in few bytes
PLAIN_VERSION = 1  #: that of all other arrays


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


def packed(A: Any, protocol: int) -> tuple[Any, ...]:
    """The header and the buffers of a pickle: the tables themselves where `protocol` has room for such."""
    pending = A._origin.pending
    if pending is not None and all(isinstance(value, int | str | None) for value in pending.keywords.values()):
        header, arrays = _describe_csr(A, *pending)
    else:
        header, arrays = describe(A.to_device(devices.CPU))
    # transports may lose empty buffers
    tables = [np.ascontiguousarray(table, on_disk(table.dtype)) for table in arrays.values() if table.size]
    buffers = [pickle.PickleBuffer(table) if protocol >= 5 else table.tobytes() for table in tables]
    return json.dumps(header | {"device": A._target.kind}).encode(), *buffers


def unpacked(array_class: Any, text: bytes, buffers: Sequence[Any]) -> SparseArray:
    """The array whose pickle has this header and these buffers, on the kind of device where it was.

    Raises
    ------
    ValueError
        The pickle is of a newer version, or a buffer is too short.
    """
    header: dict[str, Any] = json.loads(text)
    if header["version"] > VERSION:
        from .. import __version__

        raise ValueError(f"the pickle has version {header['version']}; cvrarray {__version__} reads up to {VERSION}. Update it")
    arrays = {name: np.empty(of["shape"], of["dtype"]) for name, of in header["arrays"].items() if 0 in of["shape"]}
    sent = [name for name in header["arrays"] if name not in arrays]
    arrays |= {name: _table(name, buffer, **header["arrays"][name]) for name, buffer in zip(sent, buffers, strict=True)}
    if "keywords" in header:
        csr = CSR(arrays["indptr"], arrays["indices"], arrays["data"], tuple(header["shape"]))
        put_off: SparseArray = array_class._from_tables(Pending(csr, header["keywords"]))
        return put_off
    own = assemble(array_class, header, arrays)
    return own if header["device"] == "cpu" else own.to_device(header["device"])


def _table(name: str, buffer: Any, dtype: str, shape: list[int]) -> np.ndarray:
    """The table in a buffer, or a copy of it that begins at a cache line, as the CPU's kernels want it."""
    memory = devices.CPU.backend("runtime.memory")
    try:
        table = np.ndarray(shape, dtype, buffer)
    except TypeError as error:
        raise ValueError(f"the pickle of an array is damaged: {name} has {shape} {dtype}; {error}. Make it anew") from error
    if memory.begins_at_line(table) and table.dtype.isnative:
        return table
    own: np.ndarray = memory.empty(table.size, table.dtype.newbyteorder("=")).reshape(shape)
    own[...] = table
    return own
