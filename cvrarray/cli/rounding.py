"""Whether a product is right: its error, row by row, over what rounding may cause."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Rounding errors allowed a row, in units of n * eps * sum |a_ij x_j| over its n nonzeros: 2 n + 13 unit roundoffs
#: cover any order of the sum, complex products, and what the double precision reference itself rounds.
ALLOWED = 8


def worst_error(csr: Any, x: np.ndarray, y: np.ndarray) -> float:
    """The largest error of a row of ``y = csr @ x``, over what rounding may cause there: right up to 1, else up to inf.

    A row that inf or nan reaches must have what the double precision reference has there, inf of its sign or nan (of
    complex numbers something that is not finite: which, depends on how one writes their product). A row of numbers so
    large that their sum may overflow is not compared.

    Parameters
    ----------
    csr : (n_rows, n_cols) scipy CSR
    x : (n_cols,) or (n_cols, k)
    y : (n_rows,) or (n_rows, k) in the dtype that was computed in
    """
    if x.ndim == 2:
        return max((worst_error(csr, x[:, j], y[:, j]) for j in range(x.shape[1])), default=0.0)
    wide = np.complex128 if y.dtype.kind == "c" else np.float64
    matrix = csr.astype(wide)
    per_row = np.diff(csr.indptr)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = matrix @ x.astype(wide)
        size = abs(matrix) @ np.abs(x).astype(np.float64)
        error = np.abs(y - expected)
        bound = ALLOWED * np.maximum(per_row, 1) * np.finfo(y.dtype).eps * size
        ratio = np.divide(error, bound, out=np.where(error == 0, 0.0, np.inf), where=bound > 0)
        ratio = np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
    if not (size <= np.finfo(y.dtype).max).all():
        special = ~(np.isfinite(csr.data) & np.isfinite(x)[csr.indices])
        reached = np.bincount(np.repeat(np.arange(y.size), per_row)[special], minlength=y.size) > 0
        same = ~np.isfinite(y) if y.dtype.kind == "c" else (y == expected) | (np.isnan(y) & np.isnan(expected))
        ratio = np.where(reached, np.where(same, 0.0, np.inf), np.where(size <= np.finfo(y.dtype).max, ratio, 0.0))
    return float(ratio.max(initial=0.0))
