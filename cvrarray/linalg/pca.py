"""Principal components of tall matrices: :func:`cvrarray.linalg.svds` of the centred columns, and what they explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import tall
from .svds import SVD, count_of, decomposed


@dataclass(frozen=True)
class Components:
    """What :func:`pca` returns: arrays on A's device, of a dask array NumPy's.

    Attributes
    ----------
    scores : (n_rows, k) array, or None
        The rows of A, centred and scaled, along each component.
    components : (k, n_cols) array
        Orthonormal rows, the one that explains most first.
    explained_variance, explained_variance_ratio : (k,) arrays of float64
        The variance along each component, with ``n_rows - 1`` as divisor, and its share of that of all columns.
    mean : (n_cols,) array
        Of the columns of A.
    svd : SVD
        Singular values, residuals, iterations, and whether these converged.

    Examples
    --------
    >>> found = cvrarray.linalg.pca(cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0], [4, 0, 0]]), k=2)
    >>> found.scores.shape, found.components.shape, found.explained_variance_ratio.round(2)
    ((3, 2), (2, 3), array([0.72, 0.28]))
    """

    scores: Any
    components: Any
    explained_variance: Any
    explained_variance_ratio: Any
    mean: Any
    svd: SVD


def pca(
    A: Any,
    k: int,
    scale: Any = None,
    *,
    scores: bool = True,
    tol: float | None = None,
    maxiter: int | None = None,
    seed: Any = 0,
    check_finite: bool = True,
) -> Components:
    """The `k` directions along which the rows of A vary most, without making the centred matrix.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours, :class:`cvrarray.Stored`, dask array of our chunks, or any matrix
        With at least two rows.
    k : int
        From 1 to the smaller of n_rows and n_cols.
    scale : {None, "std"} or (n_cols,) array
        What columns are divided by, as in :func:`gram`: ``"std"`` gives the components of the correlations.
    scores : bool
        False: (n_rows, k) numbers are not made; from a store that saves a sweep. The tolerance then is that of
        ``svds(..., return_singular_vectors="vh")``.
    tol, maxiter, seed, check_finite
        As of :func:`svds`.

    Returns
    -------
    Components

    Raises
    ------
    ValueError
        As of :func:`svds`; A has fewer than two rows.
    TypeError
        A is no matrix.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 0, 2], [0, 3, 0], [4, 0, 0]])
    >>> found = cvrarray.linalg.pca(A, k=1)
    >>> np.allclose(found.scores, (A.todense() - found.mean) @ found.components.T)
    True
    """
    A = tall.matrix(A)
    if A.shape[0] < 2:
        raise ValueError(f"variances need two rows; got shape {A.shape}")
    found, product = decomposed(A, count_of(k, A.shape), True, scale, tol, maxiter, seed, scores, check_finite)
    with product.device.use():
        variance = found.s.astype(np.float64) ** 2 / (A.shape[0] - 1)
        columns = product.columns.variance if product.divisor is None else product.columns.variance / product.divisor**2
        total = columns.sum() * (A.shape[0] / (A.shape[0] - 1))
        share = variance / total if bool(total > 0) else variance * 0
        along = found.U * found.s if scores else None
    return Components(along, found.Vt, variance, share, product.mean, found)
