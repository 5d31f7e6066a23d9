"""Arrays put side by side: concatenate, vstack, hstack, block, on canonical CSR and on the arrays' own device.

Nothing is sorted. Stacking rows concatenates the tables where they fit together, else the three arrays of each CSR.
Stacking columns copies each entry to a position that follows from the row lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices
from ..core.arrays import Casting
from ..core.tables import CSR
from ..input import coercion
from .indexing import axis_number


def concatenate(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Casting = "same_kind") -> Any:
    """``numpy.concatenate`` of 2-D arrays of any kind on one device, in the format of the first that is ours.

    Raises
    ------
    ValueError
        There are no arrays, one is not 2-D, or their shapes do not fit together; AxisError: there is no such axis.
    TypeError
        The arrays live on different devices, none is ours, values cannot be cast, or ``out`` is given.
    """
    if out is not None:
        raise TypeError("out must be left out: arrays of ours are immutable")
    if axis is None:
        raise ValueError("concatenate needs axis 0 or 1; None would give one dimension. Call todense() first")
    axis = axis_number(axis)
    arrays = list(arrays)
    first = _first_of_ours(arrays)
    with first._target.use():
        return first._like(_joined(_members(arrays, first), axis, dtype, casting))


def vstack(arrays: Any, *, dtype: Any = None, casting: Casting = "same_kind") -> Any:
    """Rows below rows: :func:`concatenate` along axis 0. A dense vector is a row."""
    arrays = [array[None] if getattr(array, "ndim", 2) == 1 else array for array in arrays]
    return concatenate(arrays, 0, dtype=dtype, casting=casting)


def hstack(arrays: Any, *, dtype: Any = None, casting: Casting = "same_kind") -> Any:
    """Columns beside columns: :func:`concatenate` along axis 1."""
    return concatenate(arrays, 1, dtype=dtype, casting=casting)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` behind `arr` along an axis: :func:`concatenate` of both."""
    if axis is None:
        raise TypeError("append needs axis=0 or axis=1: entries of flattened arrays make no matrix. Call todense() first")
    return concatenate([arr, values], axis)


def block(arrays: Any) -> Any:
    """An array made of blocks: a list of lists of arrays, row by row; a list of arrays side by side; or one array.

    The format is that of the first array of ours. Errors as of :func:`concatenate`.
    """
    if not isinstance(arrays, list):
        return concatenate([arrays], 0)
    nested = [isinstance(row, list) for row in arrays]
    if any(nested) and not all(nested):
        raise ValueError("block needs lists of one depth; got arrays and lists of arrays side by side")
    rows = arrays if any(nested) else [arrays]
    if not all(rows) or not arrays:
        raise ValueError("block needs at least one array in every list; got an empty list")
    if any(isinstance(array, list) for row in rows for array in row):
        raise ValueError("block makes arrays of 2 dimensions; got lists nested more deeply")
    first = _first_of_ours([array for row in rows for array in row])
    with first._target.use():
        return first._like(_joined([_joined(_members(row, first), 1) for row in rows], 0))


def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Casting = "same_kind") -> Any:
    """Always an error: the result would have three dimensions."""
    raise ValueError("stack would give an array of 3 dimensions; arrays of ours have 2. Use concatenate, vstack or hstack")


def _first_of_ours(arrays: list[Any]) -> Any:
    if not arrays:
        raise ValueError("need at least one array to concatenate")
    for array in arrays:
        if coercion.is_ours(array):
            return array
    raise TypeError("one of the arrays must be an array of ours; got none. Convert the first with cvrarray.asarray")


def _members(arrays: list[Any], first: Any) -> list[CSR]:
    """Each array as a CSR on the device of the first one that is ours."""
    members = []
    for number, array in enumerate(arrays):
        csr = coercion.as_csr(array)
        device = devices.of(csr.data)
        if device != first._target:
            raise TypeError(
                f"arrays must be on one device, {first._target}; the one at index {number} is on {device}. Use A.to_device"
            )
        members.append(csr)
    return members


def _joined(members: list[CSR], axis: int, dtype: Any = None, casting: Casting = "same_kind") -> CSR:
    """Several CSRs on one device joined along `axis`."""
    xp = devices.of(members[0].data).xp
    other = 1 - axis
    for number, csr in enumerate(members):
        if csr.shape[other] != members[0].shape[other]:
            raise ValueError(
                "all the input array dimensions except for the concatenation axis must match exactly, but along dimension "
                f"{other}, the array at index 0 has size {members[0].shape[other]} and the array at index {number} has size "
                f"{csr.shape[other]}"
            )
    dtype = np.result_type(*[csr.data.dtype for csr in members]) if dtype is None else np.dtype(dtype)
    for csr in members:
        if not np.can_cast(csr.data.dtype, dtype, casting):
            raise TypeError(f"cannot cast from {csr.data.dtype} to {dtype} according to the rule {casting!r}")
    dtype = coercion.check_dtype(dtype)
    length = sum(csr.shape[axis] for csr in members)
    shape = coercion.check_shape((length, members[0].shape[1]) if axis == 0 else (members[0].shape[0], length))
    wide = coercion.index_dtype(shape)
    if axis == 0:
        return _rows_below_rows(members, shape, wide, dtype)
    target = devices.of(members[0].data)
    if target.kind == "cpu" and (beside := target.backend("taking").beside(members, dtype, wide)) is not None:
        found: CSR = beside
        return found
    indptr = sum(csr.indptr.astype(np.int64) for csr in members)
    nnz = sum(csr.nnz for csr in members)
    indices, data = xp.empty(nnz, wide), xp.empty(nnz, dtype)
    free, first_col = indptr[:-1].copy(), 0  # the next free position of every row
    for csr in members:
        row = coercion.rows(csr)
        place = xp.arange(csr.nnz) + (free - csr.indptr[:-1])[row]
        indices[place] = csr.indices.astype(wide, copy=False) + wide.type(first_col)
        data[place] = csr.data
        free += csr.indptr[1:] - csr.indptr[:-1]
        first_col += csr.shape[1]
    return CSR(indptr, indices, data, shape)


def _rows_below_rows(members: list[CSR], shape: tuple[int, int], index: np.dtype, dtype: np.dtype) -> CSR:
    target, nnz = devices.of(members[0].data), sum(csr.nnz for csr in members)
    xp, empty, pointer = target.xp, target.xp.empty, np.dtype(np.int64)
    if target.kind == "cpu":
        empty, pointer = target.backend("runtime.memory").empty, target.backend("csr").offset_dtype(nnz, index)
    indptr, row, before = empty(shape[0] + 1, pointer), 0, 0
    for csr in members:
        xp.add(csr.indptr[:-1], before, out=indptr[row : row + csr.shape[0]], dtype=pointer)
        row, before = row + csr.shape[0], before + csr.nnz
    indptr[row] = nnz
    indices = xp.concatenate([csr.indices.astype(index, copy=False) for csr in members], out=empty(nnz, index))
    data = xp.concatenate([csr.data.astype(dtype, copy=False) for csr in members], out=empty(nnz, dtype))
    return CSR(indptr, indices, data, shape)
