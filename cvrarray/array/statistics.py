"""Reductions beyond sums and extremes: products, variances, those that leave nan out, and where an extreme is.

As in :mod:`cvrarray.array.reductions`, entries that are not stored count as 0, results are dense and on the array's
device, and arguments are NumPy's. Over both axes an array is reduced as one row.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..core.tables import CSR
from ..input import coercion
from . import reductions


def prod(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Products over `axis`: 0 of a line that does not store every entry, nan where such a line holds nan or infinity.

    Parameters and errors as of :func:`cvrarray.array.reductions.sum_`.
    """
    axis = reductions._axis(axis)
    dtype = np.zeros(1, array.dtype).prod().dtype if dtype is None else np.dtype(dtype)
    with array._target.use(), np.errstate(all="ignore"):
        xp = array._target.xp
        csr, count = _lines(array, axis)
        work = coercion.wide(dtype)
        data = csr.data if csr.data.dtype == work else (csr.data != 0 if dtype == np.bool_ else csr.data.astype(work))
        lengths = csr.indptr[1:] - csr.indptr[:-1]
        products = xp.zeros(lengths.size, work)
        full = xp.flatnonzero(lengths == count)
        place = csr.indptr[full].astype(np.int64)[:, None] + xp.arange(count)
        products[full] = data[place].all(axis=1) if dtype == np.bool_ else data[place].prod(axis=1, dtype=work)
        if work.kind in "fc":
            before = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(~xp.isfinite(csr.data), dtype=np.int64)])
            spoiled = before[csr.indptr[1:]] > before[csr.indptr[:-1]]
            products[(lengths < count) & spoiled] = np.nan
        return _finished(array, products.astype(dtype, copy=False), axis, out, keepdims)


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
    """Variances over `axis`, by two passes as NumPy's: means, then the squares of what differs from them.

    Parameters and errors as of :func:`cvrarray.array.reductions.mean`; `ddof` (or `correction`) is subtracted from the
    count.
    """
    return _variance(array, axis, dtype, out, ddof if correction is None else correction, keepdims, skip_nan=False)


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
    """Standard deviations: the roots of :func:`var`."""
    return _root(array, var(array, axis, dtype, None, ddof, keepdims, correction=correction), out)


def nanvar(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    """:func:`var` of the entries that are not nan; nan of a line without any, with NumPy's RuntimeWarning."""
    return _variance(array, axis, dtype, out, ddof, keepdims, skip_nan=True)


def nanstd(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    """Standard deviations of the entries that are not nan: the roots of :func:`nanvar`."""
    return _root(array, nanvar(array, axis, dtype, None, ddof, keepdims), out)


def nansum(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """:func:`cvrarray.array.reductions.sum_` with 0 for nan."""
    return reductions.sum_(_filled(array, 0), axis, dtype, out, keepdims)


def nanprod(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """:func:`prod` with 1 for nan."""
    return prod(_filled(array, 1), axis, dtype, out, keepdims)


def nanmean(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """Means of the entries that are not nan; nan of a line without any, with NumPy's RuntimeWarning."""
    if array.dtype.kind not in "fc":
        return reductions.mean(array, axis, dtype, out, keepdims)
    axis = reductions._axis(axis)
    dtype = np.zeros(1, array.dtype).mean().dtype if dtype is None else np.dtype(dtype)
    with array._target.use(), np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        counts = _present(array, axis)
        if bool((counts == 0).any()):
            warnings.warn("Mean of empty slice", RuntimeWarning, stacklevel=2)
        sums = reductions._sums(_filled(array, 0), axis, coercion.wide(dtype))
        means = (sums / counts.astype(reductions._real(coercion.wide(dtype)))).astype(dtype)
        return reductions._delivered(array, means, axis, out, keepdims)


def nanmax(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
    """The largest entries over `axis` that are not nan; nan of a line without any, with NumPy's RuntimeWarning."""
    return _nan_extreme(array, reductions.max_, -np.inf, axis, out, keepdims, explicit)


def nanmin(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
    """The smallest entries over `axis` that are not nan: see :func:`nanmax`."""
    return _nan_extreme(array, reductions.min_, np.inf, axis, out, keepdims, explicit)


def argmax(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
    """Where the largest entry over `axis` is, the first of several, as int64; the first nan where there is one.

    Parameters
    ----------
    axis : None or int
        None: the position in the array as one row, ``row * n_cols + column``.
    explicit : bool
        Whether entries that are not stored are left out; 0 of a line without any.

    Raises
    ------
    ValueError
        There are no entries along the axis.
    """
    return _position(array, np.maximum, axis, out, keepdims, explicit)


def argmin(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False, explicit: bool = False) -> Any:
    """Where the smallest entry over `axis` is: see :func:`argmax`."""
    return _position(array, np.minimum, axis, out, keepdims, explicit)


def nanargmax(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """:func:`argmax` of the entries that are not nan.

    Raises
    ------
    ValueError
        All entries of a line are nan.
    """
    return argmax(_never(array, -np.inf, axis), axis, out, keepdims=keepdims)


def nanargmin(array: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """:func:`argmin` of the entries that are not nan: see :func:`nanargmax`."""
    return argmin(_never(array, np.inf, axis), axis, out, keepdims=keepdims)


def _never(array: Any, number: float, axis: Any) -> Any:
    """The array with a number for nan; ValueError where a line is nan throughout."""
    if array.dtype.kind not in "fc":
        return array
    with array._target.use():
        if bool((_present(array, None if axis is None else reductions._one_axis(axis)) == 0).any()):
            raise ValueError("All-NaN slice encountered")
    return _filled(array, number)


# ---------------------------------------------------------------------------------------------------- lines


def _lines(array: Any, axis: int | None) -> tuple[CSR, int]:
    """A CSR whose rows are what is reduced, and how many entries each has. Over both axes it has one row.

    Of that one row the columns are those of an array, and mean nothing.
    """
    csr = (array.T if axis == 0 else array)._canonical_csr()
    if axis is None:
        xp = array._target.xp
        csr = csr._replace(indptr=xp.asarray([0, csr.nnz], dtype=np.int64))
    return csr, reductions._count(array, axis)


def _finished(array: Any, found: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    return reductions._delivered(array, found[0] if axis is None else found, axis, out, keepdims)


def _filled(array: Any, number: complex) -> Any:
    """The array with a number for nan."""
    if array.dtype.kind not in "fc":
        return array
    xp = array._target.xp
    return array._map(lambda values: xp.where(xp.isnan(values), array.dtype.type(number), values))


def _present(array: Any, axis: int | None) -> Any:
    """How many entries of each line, stored or not, are not nan: int64, a 0-d array over both axes."""
    xp = array._target.xp
    return reductions._count(array, axis) - xp.asarray(reductions._counts(_nans(array), axis))


def _nans(array: Any) -> Any:
    return array._map(array._target.xp.isnan)


# ---------------------------------------------------------------------------------------------------- variances


def _variance(array: Any, axis: Any, dtype: Any, out: Any, ddof: float, keepdims: bool, *, skip_nan: bool) -> Any:
    axis = reductions._axis(axis)
    skip_nan = skip_nan and array.dtype.kind in "fc"
    dtype = np.zeros(1, array.dtype).mean().dtype if dtype is None else np.dtype(dtype)
    work = coercion.wide(dtype)
    with array._target.use(), np.errstate(invalid="ignore", divide="ignore", over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the means
        xp = array._target.xp
        mean = nanmean if skip_nan else reductions.mean
        means = xp.asarray(mean(array, axis, work)).reshape(-1)
        counts = _present(array, axis).reshape(-1) if skip_nan else xp.asarray([reductions._count(array, axis)])
        total = squares(array, means, axis, skip_nan=skip_nan)
        divisor = counts - ddof
        found = (total / xp.where(divisor > 0, divisor, 0).astype(total.dtype)).astype(reductions._real(dtype))
    if bool((divisor <= 0).any()):
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=3)
        found = xp.where(divisor <= 0, found.dtype.type(np.nan), found) if skip_nan else found
    return _finished(array, found, axis, out, keepdims)


def squares(array: Any, means: Any, axis: int | None, *, skip_nan: bool = False) -> Any:
    """(n_lines,) sums of ``abs(entry - mean of its line) ** 2``, entries that are not stored among them.

    Parameters
    ----------
    means : (n_lines,) array
        Of rows (``axis=1``), columns (``axis=0``), or the one of all entries.
    skip_nan : bool
        Whether nan is left out.
    """
    xp = array._target.xp
    csr = array._canonical_csr()
    line = 0 if axis is None else csr.indices if axis == 0 else coercion.rows(csr)
    stored = abs(csr.data - means[line]) ** 2
    # entries of each line not stored
    nothing = reductions._count(array, axis) - xp.asarray(_lengths(array, axis)).reshape(-1)
    if skip_nan:
        stored = xp.where(xp.isnan(csr.data), stored.dtype.type(0), stored)
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


def _root(array: Any, variance: Any, out: Any) -> Any:
    with array._target.use():
        root = array._target.xp.sqrt(variance)
        if out is None:
            return root
        out[...] = root
        return out


# ---------------------------------------------------------------------------------------------------- extremes


def _nan_extreme(array: Any, extreme: Any, never: float, axis: Any, out: Any, keepdims: bool, explicit: bool) -> Any:
    if array.dtype.kind not in "fc":
        return extreme(array, axis, out, keepdims, explicit=explicit)
    number = never if array.dtype.kind == "f" else complex(never, never)
    with array._target.use():
        xp = array._target.xp
        found = xp.asarray(extreme(_filled(array, number), axis, None, explicit=explicit))
        nans = xp.asarray(reductions._counts(_nans(array), reductions._axis(axis)))
        nothing = nans == reductions._count(array, reductions._axis(axis))
        if explicit:
            nothing |= (nans > 0) & (nans == xp.asarray(_lengths(array, reductions._axis(axis))))
        if bool(nothing.any()):
            warnings.warn("All-NaN slice encountered", RuntimeWarning, stacklevel=3)
        found = xp.where(nothing, array.dtype.type(np.nan), found)[()]
    return reductions._delivered(array, found, reductions._axis(axis), out, keepdims)


def _position(array: Any, ufunc: np.ufunc, axis: Any, out: Any, keepdims: bool, explicit: bool) -> Any:
    both = axis is None
    axis = None if both else reductions._one_axis(axis)
    if not reductions._count(array, axis):
        raise ValueError(f"attempt to get arg{ufunc.__name__[:3]} of an empty sequence: no entries along axis {axis}")
    with array._target.use():
        xp = array._target.xp
        csr = (array.T if axis == 0 else array)._canonical_csr()
        place, values = _first_extremes(csr, getattr(xp, ufunc.__name__), xp, explicit)
        if both:
            if explicit:  # rows that store nothing do not count
                rows = xp.flatnonzero(csr.indptr[1:] > csr.indptr[:-1])
                rows = rows if rows.size else xp.zeros(1, np.int64)
            else:
                rows = xp.arange(values.size)
            first = rows[(values[rows].argmax if ufunc is np.maximum else values[rows].argmin)()]
            place = first * array.shape[1] + place[first]
    return reductions._delivered(array, place, axis, out, keepdims)


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


def unique_values(x: Any) -> Any:
    """``numpy.unique_values``: the different entries in ascending order, 0 among them unless all entries are stored."""
    return unique(x, equal_nan=False)


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
