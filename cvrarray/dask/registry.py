"""Our rows in Dask's registries.

What Dask does with a chunk is NumPy's protocols nearly everywhere, and those are our arrays' own. The rows here are what
is left: where Dask asks a registry by type, and its default would be wrong for us.
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
    take_lookup,
    tensordot_lookup,
    to_cupy_dispatch,
    to_numpy_dispatch,
)
from dask.sizeof import sizeof
from dask.tokenize import normalize_token

from .. import _device
from .._array import SparseArray
from .._transposed import TransposedArray

_done = False
_lock = threading.Lock()


def register() -> None:
    """All rows, once a process; those of distributed once that is imported."""
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
    """The size of an array is that of its tables; wherever they are, and never counted by pickling."""
    registry.register(SparseArray, _n_bytes)


def token(array: SparseArray) -> Any:
    """What Dask hashes: the class, the scalars and every byte of the tables, which are copied to the host for it."""
    if isinstance(array, TransposedArray):
        return "cvrarray.T", token(array.base)
    fields = []
    for name, value in array._tables._asdict().items():
        table = _device.move(value, _device.CPU) if hasattr(value, "nbytes") else value
        fields.append((name, normalize_token(table)))
    return f"cvrarray.{type(array).__name__}", array.device, fields


def _n_bytes(array: SparseArray) -> int:
    register()  # a worker learns of the rows when it holds its first array
    return sys.getsizeof(array, 64) + array.nbytes


def concatenate(arrays: Any, axis: int = 0) -> SparseArray:
    """Chunks below (axis 0) or beside (axis 1) one another."""
    return np.concatenate(arrays, axis=axis)


def take(array: SparseArray, indices: Any, axis: int = 0) -> SparseArray:
    """Rows (axis 0) or columns (axis 1) by number."""
    if axis not in (0, 1):
        raise ValueError(f"axis must be 0 or 1; got {axis}")
    return array[indices] if axis == 0 else array[:, indices]


def tensordot(left: Any, right: Any, axes: Any = 2) -> Any:
    """A contraction over one axis of each: a product. Over both it would be a sum of products of entries.

    Raises
    ------
    TypeError
        More than one axis is contracted.
    """
    if isinstance(axes, int):
        axes = list(range(left.ndim - axes, left.ndim)), list(range(axes))
    left_axes, right_axes = (list(np.atleast_1d(a)) for a in axes)
    if len(left_axes) != 1 or len(right_axes) != 1:
        raise TypeError(f"tensordot of a sparse array contracts one axis of each operand; got axes={axes}. Use (A * B).sum()")
    if left_axes[0] % left.ndim == 0 and left.ndim == 2:
        left = left.T
    if right_axes[0] % right.ndim == 1:
        right = right.T
    return left @ right


def einsum(subscripts: str, *operands: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """The sums of products that are a product, a sum or a transpose; ``kwargs`` (order, casting, optimize) do not matter.

    Raises
    ------
    TypeError
        Any other.
    """
    inputs, _, output = subscripts.replace(" ", "").partition("->")
    inputs = inputs.split(",")
    result = _einsum(inputs, output, operands)
    if result is None:
        raise TypeError(
            f"einsum of sparse arrays is offered for 'ij,j->i', 'ij,jk->ik', 'ij->ji', 'ij->', 'ij->i' and what is the same "
            f"in other letters; got {subscripts!r}. Use @, .T and .sum()"
        )
    return result if dtype is None or result.dtype == dtype else result.astype(dtype)


def _einsum(inputs: list[str], output: str, operands: tuple[Any, ...]) -> Any:
    if any(len(set(letters)) != len(letters) for letters in (*inputs, output)) or "." in "".join(inputs):
        return None
    if len(inputs) == 1:
        (letters,), (array,) = inputs, operands
        if set(output) == set(letters):
            return array if output == letters else array.T
        axis = tuple(i for i, letter in enumerate(letters) if letter not in output)
        return array.sum(axis=axis if len(axis) < 2 else None)
    if len(inputs) != 2:
        return None
    shared = set(inputs[0]) & set(inputs[1])
    if len(shared) == 1 and set(output) == set(inputs[0]) ^ set(inputs[1]):  # a product over the shared letter
        (letter,) = shared
        product = tensordot(*operands, axes=([inputs[0].index(letter)], [inputs[1].index(letter)]))
        letters = (inputs[0] + inputs[1]).replace(letter, "")
    elif len(shared) == 2 and len(output) < 3 and set(output) <= shared:  # entry by entry, then sums
        left, right = operands
        product = left * (right if inputs[0] == inputs[1] else right.T)
        return _einsum([inputs[0]], output, (product,))
    elif shared and len(output) == 2 and set(output) == shared:
        return None
    else:
        return None
    return product if letters == output else product.T


def numel(array: SparseArray, **kwargs: Any) -> Any:
    """How many entries a sum over `axis` adds, zeros too: dense, on the array's device, for ``mean``."""
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


#: Dask's registry -> what it shall find for our arrays.
ROWS = (
    (concatenate_lookup, concatenate),
    (take_lookup, take),
    (tensordot_lookup, tensordot),
    (einsum_lookup, einsum),
    (numel_lookup, numel),
    (nannumel_lookup, nannumel),
    (to_numpy_dispatch, to_numpy),
    (to_cupy_dispatch, to_cupy),
)
