"""Our entries in distributed's and dask-cuda's registries.

Between hosts an array needs no entry: its pickle has the tables out of band, so they are sent without a copy, and every
worker can read it, whether it knows our arrays or not. Between GPUs (UCX, NVLink) the tables are sent as device buffers
by the family ``"cuda"``. For dask-cuda's spilling an array is a device object whose memory is its tables.

A worker that unpickles an array imports this module while it imports a format's page. So this module must not import
one.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize

from ..array import serialized
from ..array.base import SparseArray
from ..array.transposed import TransposedArray
from ..core import devices

_registered: set[str] = set()


def register() -> None:
    """Make all entries, once in a process; dask-cuda's when it is imported."""
    if "distributed" not in _registered:
        cuda_serialize.register(SparseArray, serialize)
        cuda_deserialize.register(SparseArray, deserialize)
        _registered.add("distributed")
    if "dask_cuda" in sys.modules and "dask_cuda" not in _registered:
        from dask_cuda.get_device_memory_objects import dispatch as get_device_memory_objects
        from dask_cuda.is_device_object import is_device_object

        is_device_object.register(SparseArray, is_on_device)
        get_device_memory_objects.register(SparseArray, memory_objects)
        _registered.add("dask_cuda")


def serialize(array: SparseArray) -> tuple[dict[str, Any], list[Any]]:
    """A header and the tables as flat buffers on their GPU, without a copy.

    Raises
    ------
    NotImplementedError
        The array is on the CPU: its pickle should be sent.
    """
    if array.device == "cpu":
        raise NotImplementedError("an array in host memory is sent by its pickle")
    transposed = isinstance(array, TransposedArray)
    header, tables = serialized.describe(_base(array))
    sent = [name for name, table in tables.items() if table.nbytes]  # an empty frame may get lost
    frames = [tables[name].reshape(-1).view(np.uint8) for name in sent]
    return {"header": header, "sent": sent, "transposed": transposed}, frames


def deserialize(header: dict[str, Any], frames: list[Any]) -> SparseArray:
    """The array whose header and buffers :func:`serialize` made; it uses the received buffers without a copy."""
    from ..formats import FORMATS

    target = devices.parse("cuda")
    xp, content = target.xp, dict(zip(header["sent"], frames, strict=True))
    tables = {}
    for name, table in header["header"]["arrays"].items():
        shape, dtype = tuple(table["shape"]), np.dtype(table["dtype"])
        values = xp.asarray(content[name]).view(dtype) if name in content else xp.empty(0, dtype)
        tables[name] = values.reshape(shape)
    array: Any = serialized.assemble(FORMATS[header["header"]["format"]], header["header"], tables)
    return TransposedArray(array) if header["transposed"] else array


def _base(array: SparseArray) -> Any:
    """The array that holds the tables: for a transposed view the array that it views."""
    return array.base if isinstance(array, TransposedArray) else array


def is_on_device(array: SparseArray) -> bool:
    """Whether dask-cuda should count the array as device memory, and spill it."""
    return array.device != "cpu"


def memory_objects(array: SparseArray) -> list[Any]:
    """The tables that take device memory."""
    return [table for table in _base(array)._tables if hasattr(table, "nbytes")] if is_on_device(array) else []
