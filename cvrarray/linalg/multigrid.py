"""Multigrid: a hierarchy that pyamg has built, as a V-cycle of our arrays.

Sources: A. Brandt, "Multi-Level Adaptive Solutions to Boundary-Value Problems", Math. Comp. 31, 1977, for the cycle; P.
Vanek, J. Mandel, M. Brezina, "Algebraic Multigrid by Smoothed Aggregation", Computing 56, 1996, for such hierarchies;
M. Adams, M. Brezina, J. Hu, R. Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J. Comput.
Phys. 188, 2003.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..bbcsr import BBCSRArray
from ..choice.construct import asarray
from ..core import devices
from . import operators
from .preconditioners import Chebyshev, Preconditioner, Workspace, precision

#: Of Chebyshev's smoother: the part of the spectrum that the coarser levels do not see.
RATIO = 30.0
#: The coarsest level is inverted as a dense matrix: more rows than this would cost more than all other levels.
MOST_DENSE = 4096


class Level(NamedTuple):
    """A level but the coarsest: its matrix, the ways up and down, and its smoother."""

    A: Any
    P: Any
    R: Any
    smoother: Any


class Multigrid(Preconditioner):
    """A V-cycle: see :func:`multigrid`."""

    capturable = True

    def __init__(self, levels: list[Level], coarsest: Any, device: devices.Device) -> None:
        self.levels, self.coarsest, self.device = levels, coarsest, device  # the last is the inverse, an array of ours
        self.dtype = coarsest.dtype
        n = levels[0].A.shape[0] if levels else coarsest.shape[0]
        self.shape = (n, n)
        self._workspace = Workspace(device, self._vectors)

    def _vectors(self, shape: tuple[int, ...], dtype: np.dtype) -> list[tuple[Any, Any, Any]]:
        """Residual, right-hand side and solution of each level below the finest; the finest needs the first alone."""
        sizes = [level.A.shape[0] for level in self.levels] + [self.coarsest.shape[0]]
        return [tuple(self.device.xp.empty((n, *shape[1:]), dtype) for _ in range(3)) for n in sizes]

    def apply(self, r: Any, out: Any) -> Any:
        vectors = self._workspace(out)
        b, x = r, out
        stack = []
        for k, level in enumerate(self.levels):
            level.smoother.smooth(b, x, is_zero=True)
            left = vectors[k][0]
            operators.multiply(level.A, x, left)
            self.device.xp.subtract(b, left, out=left)
            stack.append((b, x))
            b, x = vectors[k + 1][1], vectors[k + 1][2]
            operators.multiply(level.R, left, b)
        operators.multiply(self.coarsest, b, x)
        for k in reversed(range(len(self.levels))):
            level, below = self.levels[k], x
            b, x = stack[k]
            self._add(level.P, below, x, vectors[k][0])
            level.smoother.smooth(b, x)
        return out

    def _add(self, P: Any, below: Any, x: Any, change: Any) -> None:
        """``x += P @ below``: on a GPU the product's kernel adds."""
        if self.device.kind == "cuda":
            (P.matvec if x.ndim == 1 else P.matmat)(below, out=x, beta=1)
        else:
            operators.multiply(P, below, change)
            x += change

    def update(self, A: Any) -> None:
        raise TypeError("a multigrid hierarchy belongs to its matrix. Build it anew, and make another solver")

    def astype(self, dtype: Any) -> Multigrid:
        wanted = precision(dtype, self.dtype)
        cast = [Level(*(part.astype(wanted) for part in level)) for level in self.levels]
        return Multigrid(cast, self.coarsest.astype(wanted), self.device)


def multigrid(levels: Any, *, device: Any = None, degree: int = 2) -> Multigrid:
    """A V-cycle from a hierarchy of pyamg's, with matrices, smoothers and the dense coarsest level on one device.

    Parameters
    ----------
    levels : pyamg's MultilevelSolver, or its ``levels``
        Each has A; each but the coarsest P and R too. For a Hermitian A, R must be ``P^H``, as in
        ``pyamg.smoothed_aggregation_solver(S)`` and ``pyamg.ruge_stuben_solver(S)``. pyamg's own smoothers are not
        used.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the current GPU if there is one, else the CPU.
    degree : int
        Of Chebyshev's polynomial, which smooths before and after each coarser level.

    Returns
    -------
    Multigrid
        Symmetric, so that conjugate gradients take it: ``apply(r, out)``, ``matvec(x)``, ``astype(dtype)``.

    Raises
    ------
    TypeError, ValueError
        `levels` is no hierarchy; shapes do not fit; the coarsest level has more than 4096 rows; a keyword is out of
        range.

    Notes
    -----
    ``pip install 'cvrarray[amg]'`` installs pyamg.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> S = np.diag(np.full(8, 2.0)) - np.diag(np.ones(7), 1) - np.diag(np.ones(7), -1)
    >>> P = np.repeat(np.eye(4), 2, axis=0)  # what pyamg would find: pairs
    >>> levels = [SimpleNamespace(A=S, P=P, R=P.T), SimpleNamespace(A=P.T @ S @ P)]
    >>> M = cvrarray.linalg.multigrid(levels, device="cpu")
    >>> x, info = cvrarray.linalg.cg(cvrarray.asarray(S, device="cpu"), S @ np.arange(8.0), rtol=1e-10, M=M)
    >>> (x + 1).round(6), info
    (array([1., 2., 3., 4., 5., 6., 7., 8.]), 0)
    """
    if isinstance(degree, bool) or int(degree) != degree or degree < 1:
        raise ValueError(f"degree must be a whole number from 1; got {degree!r}")
    given = getattr(levels, "levels", levels)
    given = list(given) if isinstance(given, Iterable) else []
    if not given or not all(hasattr(level, "A") for level in given):
        raise TypeError("levels must be a hierarchy of pyamg's, such as pyamg.smoothed_aggregation_solver(S) returns")
    target = devices.default() if device is None else devices.parse(device)
    with target.use():
        made = [_level(level, int(degree), target) for level in given[:-1]]
        coarsest = _inverse(given[-1].A, target)
        for k, level in enumerate(made):
            n, below = level.A.shape[0], (made[k + 1].A.shape if k + 1 < len(made) else coarsest.shape)[0]
            shapes = level.P.shape, level.R.shape
            if shapes != ((n, below), (below, n)):
                raise ValueError(f"P and R of level {k} must have shapes {(n, below)} and {(below, n)}; got {shapes}")
        return Multigrid(made, coarsest, target)


def _level(level: Any, degree: int, target: devices.Device) -> Level:
    for name in ("P", "R"):
        if not hasattr(level, name):
            raise TypeError(f"each level but the coarsest must have A, P and R; {name} is missing")
    A, P, R = (asarray(matrix, device=str(target)) for matrix in (level.A, level.P, level.R))
    operators.check_square(A.shape, "A of a level")
    return Level(A, P, R, Chebyshev(A, degree, RATIO))


def _inverse(A: Any, target: devices.Device) -> Any:
    """The dense inverse of the coarsest matrix, by its pseudo-inverse: it is singular where A leaves constants free."""
    n = operators.check_square(A.shape, "the coarsest A")
    if n > MOST_DENSE:
        raise ValueError(
            f"the coarsest level must have at most {MOST_DENSE} rows; got {n}. Let pyamg coarsen on: max_coarse=500"
        )
    dense = np.asarray(A.toarray() if hasattr(A, "toarray") else A)
    dtype = operators.vector_dtype(dense.dtype)
    if not np.isfinite(dense).all():
        raise ValueError("the coarsest level must be finite; it holds nan or inf")
    dense = dense.astype(np.result_type(dtype, np.float64))
    inverse = np.linalg.pinv(dense, hermitian=_is_hermitian(dense, np.finfo(dtype).eps))
    # its product takes no memory, BLAS's may
    return BBCSRArray(inverse.astype(dtype), block_size=1, device=str(target))


def _is_hermitian(dense: np.ndarray, eps: float) -> bool:
    """But for rounding: pyamg adds up products of sparse matrices, in no symmetric order."""
    return bool(abs(dense - dense.conj().T).max(initial=0) <= 100 * eps * abs(dense).max(initial=0))
