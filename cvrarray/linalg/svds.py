"""Leading singular values and vectors, and principal components, of tall matrices: block Krylov iteration, checked at the end.

The iteration finds the leading eigenvectors of the normal matrix ``H = A.H @ A`` (n_cols, n_cols) in the space of X, H X,
H H X, ... for a random block X (C. Musco, C. Musco, "Randomized Block Krylov Methods for Stronger and Faster Approximate
Singular Value Decomposition", NIPS 2015; N. Halko, P.-G. Martinsson, J. A. Tropp, SIAM Review 53(2), 2011). The space is kept
orthonormal, and begins anew from its best vectors where it gets large. H is

* the dense :func:`gram` matrix, where A has few columns and short rows: an iteration costs little beside it, and up to 2048
  columns its eigenvectors are computed without one;
* else a product with A and one with its adjoint, in one sweep over the rows.

Vectors V found so give singular triplets by the decomposition of A V (Rayleigh and Ritz), whose residuals are then computed
with A itself. H squares what A is: it tells nothing of singular values below the root of the precision. So triplets whose
residual is too large are iterated again, with A, in the space orthogonal to all others, where H is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from ..array.base import SparseArray
from ..core import devices
from ..core.progress import Update, shown
from ..core.tables import CSR
from ..input import coercion
from . import arguments, tall
from .gram import normal_matrix, prepared

EXTRA = 10  #: vectors beyond those that are wanted (Halko, Martinsson and Tropp, section 4.2)
MOST_COLUMNS = 8192  #: of A, up to which the Gram matrix is made: 0.5 GB
#: Stored entries a row, for each vector of a block, up to which the Gram matrix takes less time than the products it spares.
SHORT_ROWS = 16
SMALL = 2048  #: columns up to which the eigenvectors of the Gram matrix take less time than an iteration
SPACE = 1 << 28  #: bytes of the space's vectors, and as many for their products with H; at least three blocks
RANGE = 1e-140, 1e140  #: of the largest singular value: squares, and those of residuals, neither overflow nor underflow
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-10}
SPACES = 5  #: blocks of vectors that the space has at most
ROUNDING = 32 * float(np.finfo(np.float64).eps)
NEARLY = 0.5  #: least eigenvalue of the scalar products of nearly orthogonal vectors of length 1
LOOK = 2  #: products after which it is looked whether the vectors are good enough
LOST = 1e-12  #: of a vector: what is left of it beside the others is rounding, if it is less
ROUNDS = 6  #: of iterations in the space that is left, each with vectors that those before did not find


@dataclass(frozen=True)
class SVD:
    """What :func:`svds` returns. It unpacks as SciPy's: ``U, s, Vt = svds(A, k)``.

    Attributes
    ----------
    U : (n_rows, k) array, or None
        Left singular vectors, orthonormal columns, on A's device.
    s : (k,) array
        Singular values, from the largest down. Those of SciPy's ARPACK ascend.
    Vt : (k, n_cols) array, or None
        Right singular vectors, orthonormal rows.
    residuals : (k,) array of float64, in host memory
        ``max(|A v - s u|, |A.H u - s v|)`` of each triplet, over the largest singular value: computed at the end.
    iterations : int
        Products with the normal matrix, of a block of vectors each; 0 where its eigenvectors were computed at once.
    converged : bool
        Whether all residuals are at most the tolerance.

    Examples
    --------
    >>> result = cvrarray.linalg.svds(cvrarray.CVRArray(np.diag([3.0, 2, 1])), k=2)
    >>> result.s, result.Vt.round(12) + 0.0, result.converged
    (array([3., 2.]), array([[1., 0., 0.],
           [0., 1., 0.]]), True)
    """

    U: Any
    s: Any
    Vt: Any
    residuals: np.ndarray
    iterations: int
    converged: bool

    def __iter__(self) -> Iterator[Any]:
        return iter((self.U, self.s, self.Vt))


def svds(
    A: Any,
    k: int = 6,
    center: bool = False,
    scale: Any = None,
    *,
    tol: float | None = None,
    maxiter: int | None = None,
    seed: Any = 0,
    return_singular_vectors: bool | str = True,
    check_finite: bool = True,
) -> SVD:
    """The `k` largest singular values of A, or of its centred and scaled columns, and their vectors.

    Parameters
    ----------
    A : (n_rows, n_cols) array of ours, :class:`cvrarray.Stored`, dask array of our chunks, or any matrix
    k : int
        From 1 to the smaller of n_rows and n_cols.
    center : bool
        True: of A less the mean of each column, as principal components want it. A stays sparse: the means are taken from
        products.
    scale : {None, "std"} or (n_cols,) array
        What columns are divided by, as in :func:`gram`.
    tol : float, optional
        Of the residuals, relative to the largest singular value. Default: 1e-5 for float32 and complex64, else 1e-10.
    maxiter : int, optional
        Products of a block with the normal matrix, at most. Each is a sweep over A, or a product with the Gram matrix, which
        is made in one sweep: of up to 8192 columns, and of arrays with short rows. Default: 300.
    seed : int or numpy.random.Generator
        Where the random block comes from. The same one gives the same bits.
    return_singular_vectors : {True, False, "u", "vh"}
        Which vectors are wanted. Without the left ones, ``"vh"`` or False, no array of n_rows numbers is made from a store or
        from Dask, and singular values and residuals are those of the normal matrix: right to the root of the precision.
    check_finite : bool
        False: nan and inf are not looked for.

    Returns
    -------
    SVD
        U, s, Vt, from the largest singular value down, and how good they are. The entry of each right vector that is largest
        in size is positive, as of scikit-learn's ``svd_flip(u_based_decision=False)``. Numbers have A's dtype, float64 for
        integers; they are computed in double precision. Of a dask array they are NumPy's. The same bits in every run, with
        any number of threads or workers; other panels or chunks may change the last ones.

    Raises
    ------
    ValueError
        `k` is out of range, an entry is nan or inf, `scale` does not fit, there are no rows, or entries are so large or small
        that their squares overflow or underflow.
    TypeError
        A is no matrix.

    Notes
    -----
    Beside A and the vectors that are returned, in numbers of 8 bytes (complex: 16): n_rows times k three times over while
    residuals are computed; the square of n_cols up to 8192 columns; and 20 times n_cols times k + 10, or 15 times where that
    is more than 1 GB. A product with an array makes n_rows times k + 10, too, and keeps tables of the transpose, as for
    ``A.T @ X``.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[2.0, 0], [0, 1], [0, 1]])
    >>> U, s, Vt = cvrarray.linalg.svds(A, k=2)
    >>> s.round(6)
    array([2.      , 1.414214])
    """
    A = tall.matrix(A)
    k = count_of(k, A.shape)
    if return_singular_vectors not in (True, False, "u", "vh"):
        raise ValueError(f"return_singular_vectors must be True, False, 'u' or 'vh'; got {return_singular_vectors!r}")
    if not center and scale is None and isinstance(A, SparseArray) and A.shape[0] < A.shape[1]:
        turned = {"u": "vh", "vh": "u"}.get(return_singular_vectors, return_singular_vectors)  # type: ignore[arg-type]
        of = svds(A.T, k, tol=tol, maxiter=maxiter, seed=seed, return_singular_vectors=turned, check_finite=check_finite)
        U, V = (None if vectors is None else vectors.T for vectors in (of.Vt, of.U))
        if V is not None:
            with A._target.use():
                U, V = _signed(U, V.conj().T, A._target.xp)
                V = V.conj().T
        return SVD(U, of.s, V, of.residuals, of.iterations, of.converged)
    found, _ = decomposed(A, k, center, scale, tol, maxiter, seed, return_singular_vectors in (True, "u"), check_finite)
    if return_singular_vectors in (True, "vh"):
        return found
    return replace(found, U=found.U if return_singular_vectors else None, Vt=None)


def decomposed(
    A: Any, k: int, center: bool, scale: Any, tol: Any, maxiter: Any, seed: Any, wants_left: bool, check_finite: bool
) -> tuple[SVD, tall.Centred]:
    """The triplets, with U where it is wanted, and the product that they are of."""
    dtype = coercion.wide(A.dtype if A.dtype.kind in "fc" else np.dtype(np.float64))
    real = np.finfo(dtype).dtype
    tol = TOLERANCE[real] if tol is None else arguments.tolerance(tol, "tol")
    most = arguments.count(maxiter, "maxiter", 300, least=1)
    with tall.device(A).use(), np.errstate(invalid="ignore", over="ignore"):
        xp, product = tall.device(A).xp, tall.Centred(A, prepared(A, center, scale, check_finite))
        U, s, V, residuals, steps = _search(product, k, tol, most, seed, wants_left, check_finite)
        if not RANGE[0] < s[0] < RANGE[1]:
            _refuse_out_of_range(A)
        U, V = _signed(U, V, xp)
        U = None if U is None else xp.ascontiguousarray(U, dtype)
        Vt = xp.ascontiguousarray(V.conj().T, dtype)
    return SVD(U, s.astype(real), Vt, residuals, steps, bool((residuals <= tol).all())), product


def _refuse_out_of_range(A: Any) -> None:
    """ValueError if squares of A's entries overflow or underflow; nothing happens where all are 0, or one is inf or nan."""

    def take(csr: CSR, sums: Any, row: int) -> None:
        if csr.data.size:
            sums[:1] = np.maximum(sums, abs(csr.data).max())

    largest = float(tall.gathered(A, lambda xp, n_rows: xp.zeros(1), take, np.maximum)[0])
    if 0 < largest < RANGE[0] or RANGE[1] < largest < np.inf:
        least, most = RANGE
        raise ValueError(
            f"the largest entry of A must be between {least:g} and {most:g} in size, as entries are squared; got {largest:g}. "
            f"Use svds(A / {largest:g}, ...)"
        )


def count_of(k: Any, shape: tuple[int, int], name: str = "k") -> int:
    """`k`, once it is as many triplets as a matrix of this shape has."""
    if not min(shape):
        raise ValueError(f"A must have a row and a column; got shape {shape}")
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= min(shape):
        raise ValueError(f"{name} must be an integer from 1 to {min(shape)}, the smaller side of shape {shape}; got {k!r}")
    return int(k)


def _search(
    product: tall.Centred, k: int, tol: float, most: int, seed: Any, wants_left: bool, check_finite: bool
) -> tuple[Any, Any, Any, np.ndarray, int]:
    """U (n_rows, k) or None, s, V (n_cols, k), residuals over the largest of s, and how many products there were."""
    xp, n, rng = product.device.xp, product.shape[1], np.random.default_rng(seed)
    width = min(n, k + EXTRA)

    def random(columns: int) -> Any:
        return xp.asarray(rng.standard_normal((n, columns)), product.dtype)

    H = _gram(product, width, check_finite)
    multiply = product.normal if H is None else H.__matmul__
    kept, rest, largest, steps = random(0), random(width), 0.0, 0
    with shown("singular vectors", most, "iterations") as update:
        for round_ in range(ROUNDS):
            enough = Enough(tol, largest, wants_left)
            if H is not None and n <= SMALL and not round_:
                found, used = _leading(H, width), 0
            else:
                wanted, left = k - kept.shape[1], most - steps
                found, used = _krylov(multiply, rest, kept, wanted, enough, left, partial(_shifted, update, steps))
            steps += used
            V = xp.linalg.qr(xp.concatenate([kept, found[:, : k - kept.shape[1]]], axis=1))[0]
            U, s, V, residuals = (_triplets if wants_left else _eigenpairs)(product, V)
            if check_finite and not round_ and not bool(xp.isfinite(s).all()):
                tall.refuse_not_finite(product.A)
            largest, here = float(s[0]), float(s[kept.shape[1]])
            # below it, H cannot tell which vectors come first
            floor = math.sqrt(ROUNDING * largest * here) if wants_left else 0.0
            is_good: np.ndarray = (residuals <= max(tol, ROUNDING)) & (_on_host(s) >= (floor if floor > tol * largest else 0))
            if is_good.all() or steps >= most or not here < np.inf:
                break
            # these are iterated with A, where only what is left of it counts, from vectors that no others were found from
            multiply, good = product.normal, xp.asarray(is_good)
            kept = V[:, good]
            rest = xp.concatenate([V[:, ~good], random(width)], axis=1)[:, : width - kept.shape[1]]
    return U, s, V, residuals, steps


def _gram(product: tall.Centred, width: int, check_finite: bool) -> Any:
    """H, if it takes less time to make than the products with A and its adjoint that it spares; else None."""
    A, (n_rows, n) = product.A, product.shape
    is_short = not isinstance(A, SparseArray) or A.nnz <= SHORT_ROWS * width * n_rows
    if n > min(MOST_COLUMNS, n_rows) or not is_short:
        return None
    H = product.device.xp.empty((n, n), product.dtype)
    normal_matrix(A, product.columns, H, check_finite)
    return H


def _leading(H: Any, count: int) -> Any:
    """The eigenvectors of so many of the largest eigenvalues of a small H."""
    if not bool(np.isfinite(H).all()):
        return devices.of(H).xp.eye(len(H), count, dtype=H.dtype)
    if isinstance(H, np.ndarray):
        return scipy.linalg.eigh(H, subset_by_index=[len(H) - count, len(H) - 1])[1][:, ::-1]
    return np.linalg.eigh(H)[1][:, ::-1][:, :count]


def _shifted(update: Update, before: int, steps: int) -> None:
    update(before + steps)


class Enough(NamedTuple):
    """When an eigenpair of H, with theta = s^2, is good enough for its triplet to be tried."""

    tol: float
    largest: float  # singular value of A, where H is what is left of it; else 0
    wants_left: bool

    def of(self, s: np.ndarray) -> np.ndarray:
        """The norm that ``H v - theta v`` may have. It is no smaller than what rounding leaves."""
        most = max(self.largest, s[0])
        size = s if self.wants_left else most
        limit: np.ndarray = np.maximum(self.tol / 2 * most * size, ROUNDING * s[0] * most)
        return limit


def _krylov(
    multiply: Callable[[Any], Any], X: Any, kept: Any, k: int, enough: Enough, most: int, update: Callable[[int], None]
) -> tuple[Any, int]:
    """The leading eigenvectors of H in the space orthogonal to the columns `kept`, as many as X has; and how many products.

    It ends when the first `k` of them are good enough, or after `most` products.
    """
    (n, width), n_kept = X.shape, kept.shape[1]
    limit = min(n - n_kept, max(3 * width, min(SPACES * width, SPACE // (X.itemsize * n))))
    # columns `kept`, and the basis after them; in the other array the products of the basis: leading columns are contiguous
    space, images = (devices.of(X).xp.empty((n, columns), X.dtype, order="F") for columns in (n_kept + limit, limit))
    space[:, :n_kept] = kept
    block, held, steps = _orthonormal(X, kept), 0, 0
    while True:
        new = multiply(block)
        if not bool(np.isfinite(new).all()):
            return block, steps + 1
        new -= kept @ (kept.conj().T @ new)
        steps += 1
        update(steps)
        begin, held = held, held + block.shape[1]
        space[:, n_kept + begin : n_kept + held], images[:, begin:held] = block, new
        block = _orthonormal(new, space[:, : n_kept + held])
        is_last = steps >= most or not block.shape[1]
        is_full = held + block.shape[1] > limit
        if not is_last and not is_full and (held < k or steps % LOOK):
            continue
        vectors, products, theta = _ritz(space[:, n_kept : n_kept + held], images[:, :held], width)
        sizes = _on_host(_norms(products[:, :k] - vectors[:, :k] * _like(theta[:k], X)))
        if is_last or (len(theta) >= k and bool((sizes <= enough.of(np.sqrt(theta[:k]))).all())):
            return vectors, steps
        if is_full:
            held = vectors.shape[1]
            space[:, n_kept : n_kept + held], images[:, :held] = vectors, products


def _ritz(basis: Any, image: Any, count: int) -> tuple[Any, Any, np.ndarray]:
    """The leading eigenvectors of H in the span of `basis`, their products with H, and the eigenvalues."""
    projected = _on_host(basis.conj().T @ image)
    theta, Y = np.linalg.eigh((projected + projected.conj().T) / 2)
    Y = _like(np.ascontiguousarray(Y[:, ::-1][:, :count]), basis)
    return basis @ Y, image @ Y, np.maximum(theta[::-1][:count], 0)


def _orthonormal(X: Any, others: Any) -> Any:
    """Orthonormal columns that span what X has beside the orthonormal `others`; fewer than X has, if that is less."""
    sizes = _norms(X)
    X = X / (sizes + (sizes == 0))
    for _ in range(2):
        X = X - others @ (others.conj().T @ X)
        Q, R = np.linalg.qr(X)
        left, sizes, _ = scipy.linalg.svd(_on_host(R))
        X = Q @ _like(left[:, sizes > LOST], Q)
    return X


def _triplets(product: tall.Centred, V: Any) -> tuple[Any, Any, Any, np.ndarray]:
    """The singular triplets of A in the span of V: U, s, V, and their residuals over the largest s."""
    Q, R = _decomposed(product.times(V))
    if not np.isfinite(R).all():
        return Q, _like(np.full(len(R), np.nan), V), V, np.full(len(R), np.nan)
    left, s, right = (_like(part, V) for part in np.linalg.svd(R))
    U, V = Q @ left, V @ right.conj().T
    residuals = _on_host(_norms(product.adjoint(U) - V * s))
    return U, s, V, residuals / max(float(s[0]), np.finfo(float).tiny)


def _decomposed(W: Any) -> tuple[Any, np.ndarray]:
    """Orthonormal Q and, in host memory, R with ``Q @ R = W``.

    Columns that are nearly orthogonal are made so by Cholesky's decomposition of their scalar products, twice (Y. Yamamoto et
    al., ETNA 44, 2015): it reads W a few times. Others by Householder's reflections.
    """
    sizes = _norms(W)
    sizes += sizes == 0
    Q, R = W / sizes, np.diag(_on_host(sizes)).astype(W.dtype)
    for _ in range(2):
        products = _on_host(Q.conj().T @ Q)
        if not np.isfinite(products).all() or np.linalg.eigvalsh(products)[0] < NEARLY:
            Q, upper = np.linalg.qr(Q)
            return Q, _on_host(upper) @ R
        upper = np.linalg.cholesky(products).conj().T
        Q, R = Q @ _like(np.linalg.inv(upper), Q), upper @ R
    return Q, R


def _eigenpairs(product: tall.Centred, V: Any) -> tuple[None, Any, Any, np.ndarray]:
    """The same of the normal matrix: no left vectors, and residuals ``|H v - s^2 v|`` over the square of the largest s."""
    image = product.normal(V)
    projected = V.conj().T @ image
    if not bool(np.isfinite(projected).all()):
        return None, projected.diagonal().real * np.nan, V, np.full(len(projected), np.nan)
    theta, Y = np.linalg.eigh((projected + projected.conj().T) / 2)
    theta, Y = np.maximum(theta[::-1], 0), Y[:, ::-1]
    residuals = _on_host(_norms(image @ Y - (V @ Y) * theta))
    return None, np.sqrt(theta), V @ Y, residuals / max(float(theta[0]), np.finfo(float).tiny)


def _signed(U: Any, V: Any, xp: Any) -> tuple[Any, Any]:
    """The vectors with the largest entry of each column of V positive."""
    at = V[abs(V).argmax(axis=0), xp.arange(V.shape[1])]
    phase = at / xp.maximum(abs(at), np.finfo(float).tiny)
    return None if U is None else U * phase.conj(), V * phase.conj()


def _norms(X: Any) -> Any:
    """Euclidean norms of columns."""
    return np.sqrt((abs(X) ** 2).sum(axis=0))


def _on_host(X: Any) -> np.ndarray:
    return devices.move(X, devices.CPU)  # type: ignore[no-any-return]


def _like(X: np.ndarray, other: Any) -> Any:
    return devices.move(X, devices.of(other))
