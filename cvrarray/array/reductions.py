"""What reduces axes, with NumPy's signatures: methods of an array say what they do. Entries that are not stored count as 0.

Sums over rows and columns are products with ones, ``A @ 1`` and ``A.T @ 1``, and so have the same bits in every run.
Counts are sums of the array ``A != 0``. Row maxima use a sparse table (doubling): the maxima of 1, 2, 4, ...
neighbouring entries; two overlapping ones cover any row. Over both axes, rows are reduced first.

Results are dense and on the array's device: a scalar (a 0-d array on a GPU), (n_rows,) or (n_cols,); with ``keepdims``
2-D.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from . import indexing

#: For an axis longer than this, and longer than nnz, no vector of ones is made.
LONG = 2**26


def sum_(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """``A.sum``. Without `dtype`, but with `out`, it is computed in what the dtypes of both promote to, as NumPy has it."""
    axis = _axis(axis)
    if dtype is None:
        dtype = (
            np.zeros(1, array.dtype).sum().dtype
            if out is None
            else np.result_type(array.dtype, getattr(out, "dtype", array.dtype))
        )
    return _delivered(array, _sums(array, axis, np.dtype(dtype)), axis, out, keepdims)


def mean(array: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """``A.mean``."""
    axis = _axis(axis)
    dtype = np.zeros(1, array.dtype).mean().dtype if dtype is None else np.dtype(dtype)
    count = _count(array, axis)
    if not count:
        warnings.warn("Mean of empty slice", RuntimeWarning, stacklevel=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = _sums(array, axis, coercion.wide(dtype)) / np.zeros(1, _real(coercion.wide(dtype))).mean().dtype.type(count)
    return _delivered(array, means.astype(dtype, copy=False), axis, out, keepdims)


def max_(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
    """``A.max``."""
    return _extreme(array, np.maximum, _axis(axis), out, keepdims, explicit)


def min_(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, explicit: bool = False) -> Any:
    """``A.min``."""
    return _extreme(array, np.minimum, _axis(axis), out, keepdims, explicit)


def any_(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """``A.any``."""
    axis = _axis(axis)
    return _delivered(array, _counts(array, axis) > 0, axis, out, keepdims)


def all_(array: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """``A.all``."""
    axis = _axis(axis)
    count = min(_count(array, axis), np.iinfo(np.int64).max)  # CuPy cannot compare with a larger number
    return _delivered(array, _counts(array, axis) == count, axis, out, keepdims)


def count_nonzero(array: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """``A.count_nonzero``."""
    axis = _axis(axis)
    return _delivered(array, _counts(array, axis), axis, None, keepdims)


def diagonal(array: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The dense diagonal ``array[i, i + offset]``, or with the axes exchanged ``array[i + offset, i]``.

    Raises
    ------
    AxisError, ValueError
        There is no such axis, or both are the same.
    """
    first, second = _one_axis(axis1), _one_axis(axis2)
    if first == second:
        raise ValueError("axis1 and axis2 must differ")
    offset = operator.index(offset) * (1 if first == 0 else -1)
    with array._target.use():
        return array._diagonal(offset)


def trace(array: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """``A.trace``."""
    with array._target.use():
        return diagonal(array, offset, axis1, axis2).sum(dtype=dtype, out=out)


# ---------------------------------------------------------------------------------------------------- axes and results


def _axis(axis: Any) -> int | None:
    """0, 1, or None for both."""
    if axis is None:
        return None
    if not isinstance(axis, tuple):
        return _one_axis(axis)
    axes = [_one_axis(a) for a in axis]
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis must name each axis once; got duplicate value in {axis}")
    if not axes:
        raise ValueError("axis must name an axis; got (), which would reduce nothing")
    return axes[0] if len(axes) == 1 else None


def _one_axis(axis: Any) -> int:
    if isinstance(axis, (bool, np.bool_)):
        raise TypeError(f"axis must be an integer; got {axis}")
    return indexing.axis_number(axis)


def _count(array: Any, axis: int | None) -> int:
    """How many values are reduced to one."""
    return int(array.size if axis is None else array.shape[axis])


def _delivered(array: Any, result: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    """`result` in the requested shape, in `out` if given."""
    if keepdims:
        shape = tuple(1 if axis in (None, k) else n for k, n in enumerate(array.shape))
        result = array._target.xp.asarray(result).reshape(shape)
    if out is None:
        return result
    _checked_out(array, out, result.shape, result.dtype)
    with array._target.use():
        out[...] = result
    return out


def _checked_out(array: Any, out: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """`out`, once it is a dense array on the array's device that can take a result of this shape and dtype."""
    if not isinstance(out, array._target.xp.ndarray) or devices.of(out) != array._target:
        raise TypeError(
            f"out must be a dense array on the array's device, {array.device}; got {type(out).__name__} on {devices.of(out)}"
        )
    if out.shape != shape:
        raise ValueError(f"out must have the result's shape, {shape}; got {out.shape}")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"out must have a dtype that {dtype} casts to; got {out.dtype}")
    return out


# ---------------------------------------------------------------------------------------------------- sums and counts


def _sums(array: Any, axis: int | None, dtype: np.dtype) -> Any:
    """(n,) sums of rows or columns, or the sum of all, in `dtype`."""
    if dtype == np.bool_:
        return _counts(array, axis) > 0
    if array.dtype.kind == "c" and dtype.kind == "c":
        # real and imaginary parts apart: a complex factor of 1 would turn inf into nan
        xp = array._target.xp
        real, imag = (
            _sums(array._map(lambda values, part=part: xp.ascontiguousarray(getattr(values, part))), axis, _real(dtype))
            for part in ("real", "imag")
        )
        with array._target.use():
            sums = xp.stack([xp.asarray(real), xp.asarray(imag)], axis=-1).view(dtype)[..., 0]
        return sums if sums.ndim else sums[()]
    work = coercion.wide(_real(dtype)) if array.dtype.kind != "c" else dtype
    if np.result_type(array.dtype, work) != work:
        array = array._map(lambda values: values.astype(work))
    with array._target.use():
        if axis is None:
            sums = _line_sums(_flipped(array) if array.shape[0] > LONG else array, work).sum(dtype=work)
        else:
            sums = _line_sums(array if axis == 1 else _flipped(array), work)
        return sums.astype(dtype, copy=False)


def _flipped(array: Any) -> Any:
    """``array.T`` for one product, for which nothing is converted."""
    once = getattr(type(array.T), "once", None)
    return once(array) if once else array.T


def _line_sums(array: Any, dtype: np.dtype) -> Any:
    """(n_rows,) sums of rows."""
    if array.shape[1] > max(LONG, array.nnz):  # only an entry's row matters: number the columns within each row
        csr, xp = array._canonical_csr(), array._target.xp
        row_start = csr.indptr[:-1].astype(np.int64)
        lengths = csr.indptr[1:] - csr.indptr[:-1]
        within, _ = indexing._runs(xp, xp.zeros_like(row_start), lengths)
        array = array._like(indexing._csr_of(csr.indptr, within, csr.data, (csr.shape[0], max(1, csr.nnz))))
    sums: Any = array._row_sums(dtype)
    return array.matvec(array._target.xp.ones(array.shape[1], dtype)) if sums is None else sums


def _counts(array: Any, axis: int | None) -> Any:
    """(n,) numbers of nonzero values of rows or columns, or of all."""
    return _sums(array._map(lambda values: values != 0), axis, np.dtype(np.int64))


def _real(dtype: np.dtype) -> np.dtype:
    """The dtype of the parts of complex numbers; any other as it is."""
    return np.zeros(0, dtype).real.dtype


# ---------------------------------------------------------------------------------------------------- extremes


def _extreme(array: Any, ufunc: np.ufunc, axis: int | None, out: Any, keepdims: bool, explicit: bool) -> Any:
    target = array._target
    count = _count(array, axis)
    if not count:
        raise ValueError(f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    with target.use():
        if axis is None:
            values = array._canonical_csr().data
            zero = target.xp.zeros((), array.dtype)
            if values.size:
                result = values.max() if ufunc is np.maximum else values.min()
                result = result if explicit or values.size == count else getattr(target.xp, ufunc.__name__)(result, zero)
            else:
                result = zero[()]
        else:
            result = _line_extremes(
                (array if axis == 1 else array.T)._canonical_csr(), getattr(target.xp, ufunc.__name__), target.xp, explicit
            )
    return _delivered(array, result, axis, out, keepdims)


def _line_extremes(csr: CSR, ufunc: Any, xp: Any, explicit: bool = False) -> Any:
    """(n_rows,) extremes of rows, of stored entries alone if `explicit`.

    CuPy has no ``reduceat``: there the first and the last 2^k entries cover a row of 2^k to 2^(k+1) - 1 entries.
    """
    start, end = csr.indptr[:-1].astype(np.int64), csr.indptr[1:].astype(np.int64)
    lengths = end - start
    result = xp.zeros(lengths.size, csr.data.dtype)
    if xp is np:
        rows = np.flatnonzero(lengths)
        if rows.size:
            result[rows] = ufunc.reduceat(csr.data, start[rows])
    else:
        longest = int(lengths.max()) if lengths.size else 0
        neighbours = csr.data  # neighbours[i]: the extreme of the 2^k entries from i on
        for k in range(longest.bit_length()):
            rows = xp.flatnonzero((lengths >> k) == 1)
            result[rows] = ufunc(neighbours[start[rows]], neighbours[end[rows] - (1 << k)])
            if longest >> k > 1:
                neighbours = ufunc(neighbours[: -(1 << k)], neighbours[1 << k :])
    return result if explicit else xp.where(lengths < csr.shape[1], ufunc(result, xp.zeros_like(result)), result)
