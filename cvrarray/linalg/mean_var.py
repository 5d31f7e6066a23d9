"""Means and variances of columns or rows in one sweep, as scikit-learn's ``mean_variance_axis`` gives them.

Stored entries of a line are taken one after the other (Welford 1962), and the zeros that are not stored at the end (T. F.
Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", COMPSTAT 1982).
Nothing is subtracted that is much larger than the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..array import reductions
from ..core import devices
from ..core.tables import CSR
from ..input import coercion
from . import tall


class Moments(NamedTuple):
    """Of the stored entries of each line, (n_lines,): how many, their mean, the sum of squares of what differs from it."""

    count: Any
    mean: Any
    squares: Any


def mean_var(A: Any, axis: int, *, check_finite: bool = True) -> tuple[Any, Any]:
    """Mean and population variance of each column or row, entries that are not stored among them, in one sweep.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours, :class:`cvrarray.Stored`, dask array of our chunks, or any matrix
        Another matrix is converted. Of a complex one the variance is the mean of ``abs(entry - mean) ** 2``.
    axis : {0, 1, -1, -2}
        0: of columns. 1: of rows.
    check_finite : bool
        False: nan and inf are taken as numbers, and reach the results of their line.

    Returns
    -------
    mean, variance : (n_cols,) or (n_rows,) arrays of float64 (mean of a complex matrix: complex128)
        Where A lies; of a dask array NumPy's. The same bits however rows are cut into panels, chunks or tasks.

    Raises
    ------
    ValueError
        An entry is nan or inf, and the message names the first; or there is no entry along the axis.
    AxisError, TypeError
        There is no such axis; A is no matrix.

    Examples
    --------
    >>> mean, variance = cvrarray.linalg.mean_var(cvrarray.CVRArray([[1.0, 0, 2], [3, 0, 0]]), axis=0)
    >>> mean, variance
    (array([2., 0., 1.]), array([1., 0., 1.]))
    """
    A = tall.matrix(A)
    axis = reductions._one_axis(axis)
    if not A.shape[axis]:
        raise ValueError(f"a mean needs an entry; got shape {A.shape}, with none along axis {axis}")
    _, mean, variance = counted(A, axis, check_finite)
    return mean, variance


def counted(A: Any, axis: int, check_finite: bool) -> tuple[Any, Any, Any]:
    """Stored entries of each line, and what :func:`mean_var` returns."""
    with tall.device(A).use(), np.errstate(invalid="ignore", over="ignore"):
        gathered = _gathered(A, axis)
        (mean, variance), *imaginary = [_with_zeros(part, A.shape[axis]) for part in gathered]
        for other, more in imaginary:
            mean, variance = mean + 1j * other, variance + more
        if check_finite and not bool((abs(mean) + variance < np.inf).all()):
            tall.refuse_not_finite(A)
    return gathered[0].count, mean, variance


def _gathered(A: Any, axis: int) -> list[Moments]:
    """Moments of the values of A; of complex ones those of the real parts, and those of the imaginary parts."""
    parts, n_cols = ("real", "imag") if A.dtype.kind == "c" else ("real",), A.shape[1]

    def start(xp: Any, n_rows: int) -> list[Moments]:  # which is sent to workers: without A
        n = n_rows if axis == 1 else n_cols
        return [Moments(xp.zeros(n, np.int64), xp.zeros(n), xp.zeros(n)) for _ in parts]

    def take(csr: CSR, sums: list[Moments], row: int) -> None:
        moments = devices.of(csr.data).backend("gram").moments
        own = slice(row, row + csr.shape[0]) if axis == 1 else slice(None)
        for part, of in zip(parts, sums, strict=True):
            data = getattr(csr.data, part).astype(coercion.wide(csr.data.real.dtype), order="C", copy=False)
            moments(csr._replace(data=data), axis, *(numbers[own] for numbers in of))

    found: list[Moments] = tall.gathered(A, start, take, _joined if axis == 1 else _merged)
    return found


def _joined(left: list[Moments], right: list[Moments]) -> list[Moments]:
    """Moments of the rows of two groups."""
    return [Moments(*map(np.concatenate, zip(*two, strict=True))) for two in zip(left, right, strict=True)]


def _merged(left: list[Moments], right: list[Moments]) -> list[Moments]:
    """Moments of columns over the rows of two groups."""
    return [_over_both(a, b) for a, b in zip(left, right, strict=True)]


def _over_both(a: Moments, b: Moments) -> Moments:
    """Moments over two sets of entries (Chan, Golub and LeVeque)."""
    with np.errstate(invalid="ignore", over="ignore"):
        count, away = a.count + b.count, b.mean - a.mean
        share = b.count / np.maximum(count, 1)
        return Moments(count, a.mean + away * share, a.squares + b.squares + away * away * (a.count * share))


def _with_zeros(stored: Moments, n: int) -> tuple[Any, Any]:
    """Mean and variance of lines of n entries, those that are not stored among them."""
    zeros = Moments(n - stored.count, *map(np.zeros_like, stored[1:]))
    _, mean, squares = _over_both(stored, zeros)
    return mean, squares / n
