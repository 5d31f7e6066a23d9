"""Arrays whose entries stand elsewhere: reshape, roll, tile, repeat, pad, rot90, kron, outer, diff, powers, and parts.

Most compute new rows and columns of the stored entries, and let them be sorted. The result has the format of the first
array of ours and lives on its device. A result that would not have two dimensions raises.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..core import devices
from ..input import coercion
from . import elementwise, indexing, joining, products, structure
from .indexing import axis_number


def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """The entries in a matrix of another shape, in the same row-major (``order="F"``: column-major) order.

    Parameters
    ----------
    shape : (n_rows, n_cols)
        Of the same size; one of them may be -1.

    Raises
    ------
    ValueError
        The sizes differ, the new shape is no matrix, or has 2^63 places or more; ``copy=False`` and another shape is
        asked for.
    """
    shape = _new_shape(a, shape)
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be 'C' or 'F'; got {order!r}")
    if shape == a.shape:
        return a.copy() if copy else a
    if copy is False:
        raise ValueError("an array of ours cannot be reshaped without a copy. Leave out copy=False")
    if a.size >= 2**63:
        raise ValueError(f"reshape numbers the places in 64 bits; shape {a.shape} has more. Use A.tocoo()")

    def place(row: Any, col: Any) -> tuple[Any, Any]:
        if order == "F":
            number = col * a.shape[0] + row
            return number % shape[0], number // shape[0]
        number = row * a.shape[1] + col
        return number // shape[1], number % shape[1]

    return _placed(a, place, shape)


def _new_shape(a: Any, shape: Any) -> tuple[int, int]:
    numbers = shape if isinstance(shape, tuple | list) else (shape,)
    if len(numbers) != 2:
        raise TypeError(
            f"arrays of ours have 2 dimensions; got the shape {tuple(numbers)}. Call todense() first, or use "
            f"A.tocoo().reshape(shape)"
        )
    m, n = (operator.index(k) for k in numbers)
    if m == n == -1:
        raise ValueError("can only specify one unknown dimension; got (-1, -1)")
    if m < 0 or n < 0:
        known = max(m, n)
        if min(m, n) != -1 or (known == 0 and a.size) or (known and a.size % known):
            raise ValueError(f"cannot reshape array of size {a.size} into shape {(m, n)}")
        m, n = ((a.size // known if known else 0) if k == -1 else k for k in (m, n))
    if m * n != a.size:
        raise ValueError(f"cannot reshape array of size {a.size} into shape {(m, n)}")
    return coercion.check_shape((m, n))


def squeeze(a: Any, axis: Any = None) -> Any:
    """The array itself, or without axes of length 1 what is left: a dense vector, or a scalar."""
    ones = [k for k, n in enumerate(a.shape) if n == 1]
    axes = ones if axis is None else [axis_number(k) for k in np.atleast_1d(axis).tolist()]
    for k in axes:
        if a.shape[k] != 1:
            raise ValueError(f"cannot select an axis to squeeze out which has size not equal to one; got axis {k} of {a.shape}")
    return indexing.getitem(a, tuple(0 if k in axes else slice(None) for k in (0, 1)))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """``numpy.moveaxis``: the array, or its transpose."""
    sources, destinations = ([axis_number(k) for k in np.atleast_1d(axes).tolist()] for axes in (source, destination))
    if len(sources) != len(destinations) or len(set(sources)) < len(sources) or len(set(destinations)) < len(destinations):
        raise ValueError(f"source and destination must name as many different axes; got {source} and {destination}")
    return a if sources == destinations else a.T


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """``numpy.rollaxis``: the array, or its transpose."""
    start = operator.index(start)
    if not -2 <= start <= 2:
        raise np.exceptions.AxisError(start, 3)
    return a.T if (axis_number(axis), start % 2 if start < 2 else 2) in ((1, 0), (0, 2)) else a


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """The array rotated by `k` times 90 degrees, from the first of `axes` towards the second."""
    first, second = (axis_number(axis) for axis in axes)
    if first == second:
        raise ValueError(f"axes must differ; got {axes}")
    k = operator.index(k) % 4 if first == 0 else -operator.index(k) % 4
    backwards = slice(None, None, -1)
    if k == 2:
        return m[::-1, ::-1]
    return m if k == 0 else indexing.getitem(m.T, (backwards, slice(None)) if k == 1 else (slice(None), backwards))


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """The entries moved along `axis` by `shift`, round the end; with ``axis=None`` in row-major order."""
    if axis is None:
        n = a.size
        if n >= 2**63:
            raise ValueError(f"roll numbers the places in 64 bits; shape {a.shape} has more. Name an axis")
        moves = int(np.sum(shift)) % n if n else 0

        def place(row: Any, col: Any) -> tuple[Any, Any]:
            number = row * a.shape[1] + col  # a sum with moves might not fit
            number = a._target.xp.where(number < n - moves, number + moves, number - (n - moves))
            return number // a.shape[1], number % a.shape[1]

        return _placed(a, place, a.shape)
    shifts, axes = np.broadcast_arrays(np.atleast_1d(shift), np.atleast_1d(axis))
    by = [0, 0]
    for s, k in zip(shifts.tolist(), axes.tolist(), strict=True):
        by[axis_number(k)] += operator.index(s)
    by = [s % n if n else 0 for s, n in zip(by, a.shape, strict=True)]
    return _placed(a, lambda row, col: ((row + by[0]) % a.shape[0], (col + by[1]) % a.shape[1]), a.shape)


def tile(A: Any, reps: Any) -> Any:
    """The array beside and below itself, ``reps = (below, beside)``; one number is `beside`."""
    reps = (1, *np.atleast_1d(reps).tolist())[-2:] if np.size(reps) < 2 else tuple(reps)
    if len(reps) != 2:
        raise TypeError(f"reps must name two axes; got {reps}. Call todense() first")
    below, beside = (max(0, operator.index(n)) for n in reps)
    if not below or not beside:
        return structure.zeros_like(A, shape=(A.shape[0] * below, A.shape[1] * beside))
    return joining.block([[A] * beside] * below)


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    """Each row (``axis=0``) or column (``axis=1``) as often as `repeats` says, one number or one for each."""
    if axis is None:
        raise TypeError("repeat needs axis=0 or axis=1: entries of the flattened array make no matrix. Call todense() first")
    axis = axis_number(axis)
    places = np.repeat(np.arange(a.shape[axis]), devices.move(repeats, devices.CPU) if hasattr(repeats, "get") else repeats)
    return indexing.getitem(a, places if axis == 0 else (slice(None), places))


def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    """Rows and columns of zeros around the array; `pad_width` as NumPy's.

    Raises
    ------
    TypeError
        Another mode or other values than 0 are asked for.
    """
    if mode != "constant" or np.any(np.asarray(constant_values) != 0):
        raise TypeError("pad of a sparse array takes mode='constant' and constant_values=0. Call todense() first")
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(k, pad_width.get(k - 2, (0, 0))) for k in (0, 1)]
        pad_width = [(w, w) if np.ndim(w) == 0 else w for w in pad_width]
    widths = np.broadcast_to(np.asarray(pad_width), (2, 2)).tolist()
    (top, bottom), (left, right) = ((operator.index(n) for n in pair) for pair in widths)
    if min(top, bottom, left, right) < 0:
        raise ValueError(f"index can't contain negative values; got pad_width={pad_width}")
    shape = (array.shape[0] + top + bottom, array.shape[1] + left + right)
    return _placed(array, lambda row, col: (row + top, col + left), shape)


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """The array with an axis of length 1 repeated; a copy, where NumPy gives a view."""
    shape = shape if isinstance(shape, tuple | list) else (shape,)
    if len(shape) != 2:
        raise TypeError(f"arrays of ours have 2 dimensions; got the shape {tuple(shape)}. Call todense() first")
    shape = coercion.check_shape(shape)
    if any(m not in (1, n) for m, n in zip(array.shape, shape, strict=True)):
        raise ValueError(f"an array of shape {array.shape} does not broadcast to {shape}")
    if shape == array.shape:
        return array
    with array._target.use():
        return array._like(elementwise._broadcast(array._canonical_csr(), shape))


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product of two matrices of which at least one is sparse, sparse itself."""
    if np.ndim(a) == 0 or np.ndim(b) == 0:
        return elementwise.binary(np.multiply, a, b)
    ours = a if coercion.is_ours(a) else b
    left, right = (coercion.as_csr(_matrix(value, ours)) for value in (a, b))
    target = coercion.same_device(left=left.data, right=right.data)
    (m, n), (p, q) = left.shape, right.shape
    shape = coercion.check_shape((m * p, n * q))
    with target.use():
        rows = [coercion.rows(csr).astype(np.int64) for csr in (left, right)]
        columns = [csr.indices.astype(np.int64) for csr in (left, right)]
        row = (rows[0][:, None] * p + rows[1]).ravel()
        col = (columns[0][:, None] * q + columns[1]).ravel()
        dtype = np.result_type(left.data.dtype, right.data.dtype)
        values = (left.data.astype(dtype, copy=False)[:, None] * right.data.astype(dtype, copy=False)).ravel()
        return ours._like(coercion.from_triplets(row, col, values, shape))


def _matrix(value: Any, ours: Any) -> Any:
    """An operand with two dimensions; a vector is a row."""
    if coercion.package(value) in coercion.SPARSE_PACKAGES:
        return value
    value = products.operand(ours, value, "an operand")
    return value.reshape(1, -1) if value.ndim < 2 else value


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """``numpy.outer``: the product of each entry of one with each entry of the other, both in row-major order; sparse."""
    if out is not None:
        raise TypeError("out must be left out of outer: its result is sparse")
    ours = a if coercion.is_ours(a) else b
    left, right = (_matrix(value, ours) for value in (a, b))
    return kron(left.reshape(math.prod(left.shape), 1), right.reshape(1, math.prod(right.shape)))


def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    """The differences of neighbouring rows (``axis=0``) or columns, `n` times; for bool whether they differ."""
    n, axis = operator.index(n), axis_number(axis)
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    later, earlier = slice(1, None), slice(None, -1)
    for _ in range(n):
        keys = [(k, slice(None)) if axis == 0 else (slice(None), k) for k in (later, earlier)]
        subtract = np.not_equal if a.dtype == np.bool_ else np.subtract
        a = elementwise.binary(subtract, *(indexing.getitem(a, key) for key in keys))
    return a


def matrix_power(a: Any, n: int) -> Any:
    """The product of `n` factors `a`, a square matrix; `n` is at least 1.

    Raises
    ------
    TypeError
        `n` is 0, whose result is the identity, or negative.
    ValueError
        The matrix is not square.
    """
    n = operator.index(n)
    if a.shape[0] != a.shape[1]:
        raise ValueError(f"a power needs a square matrix; got shape {a.shape}")
    if n < 1:
        raise TypeError(f"a power of a sparse array must be at least 1; got {n}. Use scipy.sparse.linalg with A.tocsc()")
    power = None
    while n:
        if n & 1:
            power = a if power is None else products.multiply_sparse(power, a)
        n >>= 1
        if n:
            a = products.multiply_sparse(a, a)
    return power


# ---------------------------------------------------------------------------------------------------- parts


def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """The rows (``axis=0``) or columns where `condition` is true; it may be shorter than the axis."""
    if axis is None or out is not None:
        raise TypeError("compress of a sparse array needs axis=0 or axis=1, and takes no out. Call todense() first")
    axis = axis_number(axis)
    places = np.flatnonzero(devices.move(condition, devices.CPU) if hasattr(condition, "get") else condition)
    return indexing.getitem(a, places if axis == 0 else (slice(None), places))


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """The array without some rows (``axis=0``) or columns: an int, a slice, or an index array or mask of them."""
    if axis is None:
        raise TypeError("delete needs axis=0 or axis=1: entries of the flattened array make no matrix. Call todense() first")
    axis = axis_number(axis)
    kept = np.delete(np.arange(arr.shape[axis]), obj)
    return indexing.getitem(arr, kept if axis == 0 else (slice(None), kept))


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Panels of rows (``axis=0``) or of columns, as NumPy cuts them."""
    axis = axis_number(axis)
    parts = np.array_split(np.arange(ary.shape[axis]), indices_or_sections)
    return [_range(ary, part, axis) for part in parts]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """:func:`array_split` into panels of one size."""
    axis = axis_number(axis)
    parts = np.split(np.arange(ary.shape[axis]), indices_or_sections)
    return [_range(ary, part, axis) for part in parts]


def _range(array: Any, places: np.ndarray, axis: int) -> Any:
    chosen = slice(int(places[0]), int(places[-1]) + 1) if places.size else slice(0, 0)
    return indexing.getitem(array, chosen if axis == 0 else (slice(None), chosen))


# ---------------------------------------------------------------------------------------------------- new places


def _placed(array: Any, place: Any, shape: tuple[int, int]) -> Any:
    """The array of `shape` whose entries stand at ``place(rows, columns)``."""
    with array._target.use():
        row, col, val = array._coo()
        row, col = place(row.astype(np.int64), col.astype(np.int64))
        return array._like(coercion.from_triplets(row, col, val, shape))
