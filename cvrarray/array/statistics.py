"""Reductions beyond sums and extremes: variances, where an extreme is, and which entries there are.

As in :mod:`cvrarray.array.reductions`, entries that are not stored count as 0, results are dense and on the array's
device, and arguments are NumPy's. Over both axes an array is reduced as one row.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ..core.tables import CSR
from ..input import coercion
from . import reductions


def var(
    array: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """``A.var``, by two passes as NumPy's: means, then the squares of what differs from them."""
    axis = reductions._axis(axis)
    dtype = np.zeros(1, array.dtype).mean().dtype if dtype is None else np.dtype(dtype)
    divisor = reductions._count(array, axis) - (ddof if correction is None else correction)
    with array._target.use(), np.errstate(invalid="ignore", divide="ignore", over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the means
        means = array._target.xp.asarray(reductions.mean(array, axis, coercion.wide(dtype))).reshape(-1)
        total = squares(array, means, axis)
        found = (total / total.dtype.type(max(divisor, 0))).astype(reductions._real(dtype))
    if divisor <= 0:
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=2)
    return reductions._delivered(array, found[0] if axis is None else found, axis, out, keepdims)


def std(
    array: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """``A.std``."""
    with array._target.use():
        root = array._target.xp.sqrt(var(array, axis, dtype, None, ddof, keepdims, correction=correction))
    return reductions._delivered(array, root, None, out, keepdims=False)


def nan_extreme(array: Any, function: Any, axis: Any, out: Any, keepdims: bool, explicit: bool) -> Any:
    """``numpy.nanmax`` or ``numpy.nanmin``; with `explicit` of the stored entries alone, as SciPy has it."""
    if not explicit:
        return function(array, axis, out=out, keepdims=keepdims)
    found = getattr(array.to_scipy(), function.__name__)(axis, explicit=True)
    found = array._target.xp.asarray(found.toarray() if hasattr(found, "toarray") else found)[()]
    return reductions._delivered(array, found, reductions._axis(axis), out, keepdims)


def argmax(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
    """``A.argmax``."""
    return _position(array, np.maximum, axis, out, keepdims, explicit)


def argmin(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
    """``A.argmin``."""
    return _position(array, np.minimum, axis, out, keepdims, explicit)


# ------------------------------------------------------------------------------------------------------- variances


def squares(array: Any, means: Any, axis: int | None) -> Any:
    """(n_lines,) sums of ``abs(entry - mean of its line) ** 2``, entries that are not stored among them.

    Parameters
    ----------
    means : (n_lines,) array
        Of rows (``axis=1``), columns (``axis=0``), or the one of all entries.
    """
    xp = array._target.xp
    csr = array._canonical_csr()
    line = 0 if axis is None else csr.indices if axis == 0 else coercion.rows(csr)
    stored = abs(csr.data - means[line]) ** 2
    # entries of each line not stored
    nothing = reductions._count(array, axis) - xp.asarray(_lengths(array, axis)).reshape(-1)
    total = xp.asarray(reductions._sums(array.with_values(stored), axis, stored.dtype)).reshape(-1)
    return total + xp.where(nothing > 0, nothing * abs(means) ** 2, 0)


def _lengths(array: Any, axis: int | None) -> Any:
    """How many entries of each line are stored: (n_lines,) int64, a number over both axes."""
    if axis is None:
        return array.nnz
    csr, xp = array._canonical_csr(), array._target.xp
    if axis == 0:
        return xp.bincount(csr.indices, minlength=csr.shape[1])
    return (csr.indptr[1:] - csr.indptr[:-1]).astype(np.int64)


# ---------------------------------------------------------------------------------------------------- extremes


def _position(array: Any, ufunc: np.ufunc, axis: Any, out: Any, keepdims: bool, explicit: bool) -> Any:
    axis = None if axis is None else reductions._one_axis(axis)
    if not reductions._count(array, axis):
        raise ValueError(f"attempt to get arg{ufunc.__name__[:3]} of an empty sequence: no entries along axis {axis}")
    with array._target.use():
        xp = array._target.xp
        csr = (array.T if axis == 0 else array)._canonical_csr()
        if axis is None:
            place = _first_of_all(csr, getattr(xp, ufunc.__name__), xp, explicit)
        else:
            place, _ = _first_extremes(csr, getattr(xp, ufunc.__name__), xp, explicit)
    return reductions._delivered(array, place, axis, out, keepdims)


def _first_of_all(csr: CSR, ufunc: Any, xp: Any, explicit: bool) -> Any:
    """The place of the first extreme of all entries, ``row * n_cols + column``, as int64."""
    if not csr.nnz:
        return xp.zeros((), np.int64)[()]
    first = (csr.data.argmax if ufunc is xp.maximum else csr.data.argmin)()
    row = xp.searchsorted(csr.indptr, first, side="right").astype(np.int64) - 1
    place, value, zero = row * csr.shape[1] + csr.indices[first], csr.data[first], xp.zeros((), csr.data.dtype)
    if explicit or csr.nnz == math.prod(csr.shape) or bool(ufunc(value, zero) != zero):
        return place
    gaps = xp.flatnonzero(coercion.rows(csr).astype(np.int64) * csr.shape[1] + csr.indices != xp.arange(csr.nnz))
    gap = gaps[0] if gaps.size else xp.full((), csr.nnz, np.int64)[()]  # the first place that is not stored
    return xp.minimum(gap, place) if bool(value == zero) else gap


def _first_extremes(csr: CSR, ufunc: Any, xp: Any, explicit: bool) -> tuple[Any, Any]:
    """(n_rows,) the column of the first extreme of each row, as int64, and the extremes; `csr` has columns."""
    values = reductions._line_extremes(csr, ufunc, xp, explicit)
    row = coercion.rows(csr)
    wanted = values[row]
    equal = csr.data == wanted
    if csr.data.dtype.kind in "fc":
        equal |= xp.isnan(csr.data) & xp.isnan(wanted)
    column = _first_in_row(csr, equal, xp)
    if explicit:
        return xp.where(column < 0, 0, column), values
    number = xp.arange(csr.nnz) - csr.indptr[:-1].astype(np.int64)[row]  # of an entry in its row
    before_gap = _first_in_row(csr, csr.indices != number, xp, number)
    lengths = (csr.indptr[1:] - csr.indptr[:-1]).astype(np.int64)
    free = xp.where(before_gap < 0, lengths, before_gap)  # the first column that is not stored
    has_free = (values == 0) & (lengths < csr.shape[1])
    return xp.where(has_free & ((column < 0) | (free < column)), free, column), values


def _first_in_row(csr: CSR, marks: Any, xp: Any, numbers: Any = None) -> Any:
    """(n_rows,) the column (or number) of the first marked entry of each row, or -1."""
    marked = xp.flatnonzero(marks)
    numbers = csr.indices if numbers is None else numbers
    if not marked.size:
        return xp.full(csr.shape[0], -1, np.int64)
    first = xp.searchsorted(marked, csr.indptr[:-1].astype(np.int64))
    found = marked[xp.minimum(first, marked.size - 1)]
    inside = (first < marked.size) & (found < csr.indptr[1:])
    return xp.where(inside, numbers[found].astype(np.int64), -1)


def unique(ar: Any, *, return_counts: bool = False, equal_nan: bool = True) -> Any:
    """``numpy.unique`` of all entries, and how often each occurs where ``return_counts`` asks for it."""
    with ar._target.use():
        xp = ar._target.xp
        data, missing = ar._canonical_csr().data, ar.size - ar.nnz
        if missing:
            data = xp.concatenate([data, xp.zeros(1, ar.dtype)])
        if not return_counts:
            return xp.unique(data, equal_nan=equal_nan)
        values, counts = xp.unique(data, return_counts=True, equal_nan=equal_nan)
        if missing:
            counts[values == 0] += missing - 1
        return values, counts
