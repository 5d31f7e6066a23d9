"""Gram and covariance matrices of tall matrices: dense ``A.H @ A``, without a product of sparse matrices.

Each row of A adds ``conj(a_i) * a_j`` for every two of its entries to the result, on and above the diagonal
(:mod:`cvrarray.cpu.gram`, :mod:`cvrarray.gpu.gram`): as many multiplications as entries times half a row's length. So a
matrix that is 5% full takes a four-hundredth of the multiplications of the dense product.

Centring needs no dense matrix: ``(A - 1 m')' (A - 1 m') = A' A - n m m'`` for the means m of n rows. What this loses is
bounded by how full a column is: where it has entries in a share d of the rows, ``n m^2 <= d * sum(a^2)`` (Cauchy and
Schwarz), so the difference is at least ``1 - d`` of what it is taken from. Sums are made in float64, and a column without
any gap, whose d is 1, has its mean subtracted from its entries first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..array import products
from ..core import devices
from ..core.tables import CSR
from ..input import coercion, limits
from . import operators, tall
from .mean_var import counted

BLOCK = 512  #: rows of the result whose other half is filled in at a time


def gram(
    A: Any, center: bool = False, scale: Any = None, *, dtype: Any = None, out: Any = None, check_finite: bool = True
) -> Any:
    """``A.H @ A``, or the covariance of the columns of A, as a dense (n_cols, n_cols) array.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours, :class:`cvrarray.Stored`, dask array of our chunks, or any matrix
        Of a dask array the tasks run now, on its scheduler. Another matrix is converted.
    center : bool
        True: the covariance, ``numpy.cov(A, rowvar=False)``, which takes a sweep for the means before.
    scale : {None, "std"} or (n_cols,) array
        What columns are divided by. ``"std"``: the population's standard deviation, as scikit-learn's ``StandardScaler``
        does; a column whose deviation is 0, up to rounding, is divided by 1.
    dtype : data type, optional
        Of the result, in which numbers are summed: ``"float64"`` for sums of a float32 matrix. Default: that of
        ``A.T @ A``; with `center` or `scale` a floating one, and sums are made in double precision.
    out : (n_cols, n_cols) array, optional
        Where the result goes: in C order, of its dtype, where A lies.
    check_finite : bool
        False: nan and inf are taken as numbers. The check costs no sweep where there are none.

    Returns
    -------
    (n_cols, n_cols) array
        Symmetric (Hermitian), where A lies; of a dask array NumPy's. The same bits however the rows of an array or a store are
        cut into panels, in every run and with any number of threads; of a dask array for any chunks and workers, which add
        groups of rows and may differ from those of an array in the last bits.

    Raises
    ------
    ValueError
        An entry is nan or inf, and the message names the first; `scale` or `out` does not fit; a covariance of fewer than
        two rows is asked for.
    TypeError
        A is no matrix, or `out` cannot hold the result.
    MemoryError
        The message says how much is needed.

    Notes
    -----
    Beside the result and A, a panel of about 500,000 entries is held as CSR and by columns, on a GPU 8 million: 12 to 28 bytes
    an entry for either, 0.5 GB in all. A `Stored` has the panels that it reads ahead. Of a dask array each worker holds a
    result of its own, and about 8 wait until they are added. With `center` or `scale` and a narrower `dtype` the sums are a
    matrix of their own. Matrices more than 20% full are faster as dense ones: ``D = A.todense(); D.T @ D``.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0]])
    >>> cvrarray.linalg.gram(A)
    array([[1., 0., 2.],
           [0., 9., 0.],
           [2., 0., 4.]])
    >>> cvrarray.linalg.gram(A, center=True)
    array([[ 0.5, -1.5,  1. ],
           [-1.5,  4.5, -3. ],
           [ 1. , -3. ,  2. ]])
    """
    A = tall.matrix(A)
    (n_rows, n), device = A.shape, tall.device(A)
    is_plain = not center and scale is None
    exact = A.dtype if is_plain or A.dtype.kind in "fc" else np.dtype(np.float64)
    dtype = exact if dtype is None else _result_dtype(dtype, exact)
    if center and n_rows < 2:
        raise ValueError(f"a covariance needs two rows; got shape {A.shape}")
    work = products.product_dtype(dtype, dtype)[1] if is_plain else np.result_type(dtype, np.float64)
    with device.use(), np.errstate(invalid="ignore", over="ignore"), _naming_memory(n, work, device):
        total = device.xp.empty((n, n), work) if out is None or _checked(out, n, dtype, device).dtype != work else out
        columns = prepared(A, center, scale, check_finite)
        normal_matrix(A, columns, total, check_finite)
        if center:
            total /= n_rows - 1
        if out is None:
            return coercion.narrowed(total, dtype)
        if total is not out:
            out[...] = coercion.narrowed(total, dtype)
    return out


@contextmanager
def _naming_memory(n: int, dtype: np.dtype, device: devices.Device) -> Iterator[None]:
    """A MemoryError says how much is needed. It comes first where a system would promise more than it has."""
    needed = n * n * dtype.itemsize
    try:
        if device.kind == "cpu" and needed > limits.installed():
            raise MemoryError(f"there are {limits.installed() / 1e9:.3g} GB")
        yield
    except MemoryError as error:
        raise MemoryError(
            f"a Gram matrix of {n} columns needs {needed / 1e9:.3g} GB, and up to 0.5 GB for a panel: {error}. "
            "Take fewer columns, or use svds, which makes none of many columns"
        ) from error


class Columns(NamedTuple):
    """What is subtracted from columns, and what they are divided by; None for nothing. Each is (n_cols,)."""

    mean: Any = None
    divisor: Any = None
    variance: Any = None  # of the columns as they are, where means or deviations were wanted
    is_full: Any = None  # whether every entry is stored, likewise


def prepared(A: Any, center: bool, scale: Any, check_finite: bool) -> Columns:
    """The columns of A, by a sweep over it where that is needed."""
    divisor, means = divisors(scale, A.shape[1], tall.device(A)), Columns()
    if center or divisor is STD:
        if not A.shape[0]:
            raise ValueError(f"means need a row; got shape {A.shape}")
        count, mean, variance = counted(A, 0, check_finite)
        means = Columns(mean if center else None, None, variance, count == A.shape[0])
        divisor = deviations(mean, variance, A.shape[0]) if divisor is STD else divisor
    return means._replace(divisor=divisor)


def normal_matrix(A: Any, columns: Columns, total: Any, check_finite: bool) -> None:
    """``C.H @ C`` in `total`, for the columns C of A centred and scaled."""
    (n_rows, n), mean, xp = A.shape, columns.mean, tall.device(A).xp
    shift = xp.where(columns.is_full, mean, 0) if mean is not None and bool(columns.is_full.any()) else None
    _sum(A, shift, total)
    if check_finite and not bool(xp.isfinite(total.diagonal()).all()):
        tall.refuse_not_finite(A)
    rest = mean if shift is None else mean - shift
    for first in range(0, n, BLOCK):
        rows, part = slice(first, first + BLOCK), total[first : first + BLOCK]
        if mean is not None:
            part -= n_rows * rest[rows, None].conj() * rest
        if columns.divisor is not None:
            part /= columns.divisor[rows, None]
            part /= columns.divisor
    _mirror(total, xp)


STD = "std"


def divisors(scale: Any, n: int, device: devices.Device) -> Any:
    """What n columns are divided by, as float64 on the device; None for nothing, STD for deviations that are not known yet."""
    if scale is None or (isinstance(scale, str) and scale == STD):
        return scale
    if not isinstance(scale, str):
        found = device.xp.asarray(operators.dense_vector(scale, "scale", device))
        if found.shape == (n,) and found.dtype.kind != "c" and bool(((found != 0) & device.xp.isfinite(found)).all()):
            return found.astype(np.float64)
    raise ValueError(f"scale must be None, 'std', or a real divisor for each of {n} columns, finite and not 0; got {scale!r}")


def deviations(mean: Any, variance: Any, n_rows: int) -> Any:
    """What ``"std"`` divides by: a column whose deviation is 0, or no more than rounding, stays as it is."""
    root = np.sqrt(variance)
    root[root <= n_rows * np.finfo(np.float64).eps * abs(mean)] = 1  # scikit-learn's bound
    return root


def _result_dtype(dtype: Any, exact: np.dtype) -> np.dtype:
    wanted: np.dtype = coercion.check_dtype(dtype)
    if not np.can_cast(exact, wanted, "same_kind"):
        raise TypeError(f"dtype must be one that {exact} casts to; got {wanted}")
    return wanted


def _checked(out: Any, n: int, dtype: np.dtype, device: devices.Device) -> Any:
    """`out`, once it can take the result as it is."""
    like = device.xp.broadcast_to(device.xp.zeros((), dtype), (n, n))
    operators.check_out(out, like, "A", device)
    return out


def _sum(A: Any, shift: Any, total: Any) -> None:
    """Sum up ``A.H @ A`` in `total`, on and above the diagonal, after `shift` was subtracted from what columns store."""
    shape, work = total.shape, total.dtype

    def start(xp: Any, n_rows: int) -> Any:
        return xp.zeros(shape, work)

    def take(csr: CSR, sums: Any, row: int) -> None:
        device = devices.of(csr.data)
        if shift is not None:
            csr = csr._replace(data=csr.data - device.xp.asarray(shift)[csr.indices])
        device.backend("gram").add(csr, sums)

    if tall.is_dask(A):
        total[...] = tall.gathered(A, start, take, operator.add)
    else:
        total.fill(0)
        tall.gathered(A, lambda xp, n_rows: total, take, operator.add)


def _mirror(total: Any, xp: Any) -> None:
    """Fill in the half below the diagonal, which is real: fused multiplications leave rounding in its imaginary parts."""
    if total.dtype.kind == "c":
        diagonal = total.reshape(-1)[:: len(total) + 1]
        diagonal[...] = diagonal.real.copy()
    for first in range(0, len(total), BLOCK):
        last = first + BLOCK
        total[last:, first:last] = total[first:last, last:].conj().T
        square = total[first:last, first:last]
        square[...] = xp.triu(square) + xp.triu(square, 1).conj().T
