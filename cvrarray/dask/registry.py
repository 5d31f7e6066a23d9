"""Our entries in Dask's registries.

Dask works on a chunk through NumPy's protocols nearly everywhere, and our arrays have those. The entries here are for
the rest: where Dask looks up a function by type, and its default would be wrong for our arrays.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
from dask.array import register_chunk_type
from dask.array.dispatch import (
    concatenate_lookup,
    einsum_lookup,
    nannumel_lookup,
    numel_lookup,
    to_cupy_dispatch,
    to_numpy_dispatch,
)
from dask.sizeof import sizeof
from dask.tokenize import normalize_token

from ..array import contractions
from ..array.base import SparseArray
from ..array.transposed import TransposedArray
from ..core import devices

_done = False
_lock = threading.Lock()


def register() -> None:
    """Make all entries, once in a process; those for distributed when it is imported."""
    global _done
    if not _done:
        with _lock:
            if not _done:
                register_chunk_type(SparseArray)
                for lookup, function in ROWS:
                    lookup.register(SparseArray, function)
                register_sizeof(sizeof)
                _done = True
    if "distributed" in sys.modules or "dask_cuda" in sys.modules:
        from . import cluster

        cluster.register()


def register_sizeof(registry: Any) -> None:
    """The size of an array is that of its tables, on either device, with those of its transpose; never found by
    pickling.
    """
    registry.register(SparseArray, _n_bytes)


def token(array: SparseArray) -> Any:
    """The data that Dask hashes: class, scalars and every byte of the tables, which are copied to the host."""
    if isinstance(array, TransposedArray):
        return "cvrarray.T", token(array.base)
    fields = []
    for name, value in array._tables._asdict().items():  # type: ignore[attr-defined]  # its class must not be imported here
        table = devices.move(value, devices.CPU) if hasattr(value, "nbytes") else value
        fields.append((name, normalize_token(table)))
    return f"cvrarray.{type(array).__name__}", array.device, fields


def _n_bytes(array: SparseArray) -> int:
    register()  # a worker makes the entries when it receives its first array
    return 64 + max(array.nbytes, array.T.nbytes)


def concatenate(arrays: Any, axis: int = 0) -> Any:
    """``numpy.concatenate``, wrapped: given that function itself, Dask copies chunks into an empty NumPy array."""
    return np.concatenate(arrays, axis=axis)


def einsum(subscripts: str, *operands: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """``numpy.einsum`` of a chunk; order, casting and optimize, which Dask passes, have no effect."""
    result = contractions.einsum(subscripts, *operands)
    return result if dtype is None or result.dtype == dtype else result.astype(dtype)


def numel(array: SparseArray, **kwargs: Any) -> Any:
    """How many entries a sum over `axis` adds, zeros included; dense, on the array's device; for ``mean``."""
    axis, dtype = kwargs.get("axis"), kwargs.get("dtype", np.float64)
    keepdims = kwargs.get("keepdims", False)
    axes = (0, 1) if axis is None else {int(a) % 2 for a in np.atleast_1d(axis)}
    count = math.prod(array.shape[a] for a in axes)
    shape = tuple(1 if a in axes else array.shape[a] for a in (0, 1) if keepdims or a not in axes)
    with array._target.use():
        return array._target.xp.full(shape, count, dtype)


def nannumel(array: SparseArray, **kwargs: Any) -> Any:
    """:func:`numel` without the entries that are nan."""
    nans = array._map(array._target.xp.isnan) if array.dtype.kind in "fc" else None
    everything = numel(array, **kwargs)
    return (
        everything if nans is None else everything - nans.sum(axis=kwargs.get("axis"), keepdims=kwargs.get("keepdims", False))
    )


def to_numpy(array: SparseArray, **kwargs: Any) -> SparseArray:
    """The array on the CPU, still sparse: for ``to_backend("numpy")``."""
    return array.to_device("cpu")


def to_cupy(array: SparseArray, **kwargs: Any) -> SparseArray:
    """The array on the current GPU, still sparse: for ``to_backend("cupy")``."""
    return array if array.device != "cpu" else array.to_device("cuda")


#: Dask's registry -> our function. For take and tensordot the default is NumPy's function, which is right.
ROWS = (
    (concatenate_lookup, concatenate),
    (einsum_lookup, einsum),
    (numel_lookup, numel),
    (nannumel_lookup, nannumel),
    (to_numpy_dispatch, to_numpy),
    (to_cupy_dispatch, to_cupy),
)
