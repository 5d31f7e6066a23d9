"""Multigrid: a cycle over levels of our arrays, from smoothed aggregation of a matrix, or from a hierarchy of pyamg's.

Sources: A. Brandt, "Multi-Level Adaptive Solutions to Boundary-Value Problems", Math. Comp. 31, 1977, for the cycle;
M. Adams, M. Brezina, J. Hu, R. Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J. Comput.
Phys. 188, 2003, for the smoother. The setup is in :mod:`.aggregation`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..array.base import SparseArray
from ..array.invariants import integer
from ..bbcsr import BBCSRArray
from ..choice.construct import asarray
from ..core import devices
from . import operators
from .aggregation import MOST_DENSE, Hierarchy, Level, Made, Options, inverted
from .arguments import real
from .preconditioners import Chebyshev, Preconditioner, Workspace, precision, vectors_of

#: Of Chebyshev's smoother: the part of the spectrum that the coarser levels do not see. Damped Jacobi is its step of
#: degree 1 where that is 2: a weight of 4/3 over the largest eigenvalue.
RATIO = {"chebyshev": 30.0, "jacobi": 2.0}
#: Visits of the next level in a cycle.
CYCLES = {"V": 1, "W": 2}
#: Of nodes of one unknown: Vanek et al., section 4.
STRENGTH = 0.08
#: What ``x^T A y`` and ``y^T A x`` may differ by, over the largest number of ``A x`` and ``A y``, for each root of a row.
UNSYMMETRIC = 1e-5


class Multigrid(Preconditioner):
    """A cycle: see :func:`multigrid`."""

    capturable = True

    def __init__(self, made: Made, device: devices.Device, cycle: str = "V", hierarchy: Hierarchy | None = None) -> None:
        self._made, self.device, self.cycle, self._hierarchy = made, device, cycle, hierarchy
        self.dtype = made.coarsest.dtype
        self.shape = (made.sizes[0][0],) * 2
        self._workspace = Workspace(device, self._vectors)

    @property
    def levels(self) -> list[Level]:
        """From the finest down, without the coarsest."""
        return self._made.levels

    @property
    def coarsest(self) -> Any:
        """An array that multiplies by the inverse of the coarsest matrix."""
        return self._made.coarsest

    def _vectors(self, shape: tuple[int, ...], dtype: np.dtype) -> list[tuple[Any, Any, Any]]:
        """Residual, right-hand side and solution of each level below the finest; the finest needs the first alone."""
        sizes = [level.A.shape[0] for level in self.levels] + [self.coarsest.shape[0]]
        return [tuple(self.device.xp.empty((n, *shape[1:]), dtype) for _ in range(3)) for n in sizes]

    def apply(self, r: Any, out: Any) -> Any:
        self._visit(0, r, out, self._workspace(out), True)
        return out

    def _visit(self, k: int, b: Any, x: Any, vectors: list[tuple[Any, Any, Any]], is_zero: bool) -> None:
        """Improve x, or 0, on level k."""
        if k == len(self.levels):
            operators.multiply(self.coarsest, b, x)
            return
        level, left, (_, below_b, below_x) = self.levels[k], vectors[k][0], vectors[k + 1]
        level.smoother.smooth(b, x, is_zero=is_zero)
        operators.multiply(level.A, x, left)
        self.device.xp.subtract(b, left, out=left)
        operators.multiply(level.R, left, below_b)
        for visit in range(CYCLES[self.cycle] if k + 1 < len(self.levels) else 1):  # the coarsest is solved at once
            self._visit(k + 1, below_b, below_x, vectors, visit == 0)
        self._add(level.P, below_x, x, left)
        level.smoother.smooth(b, x)

    def _add(self, P: Any, below: Any, x: Any, change: Any) -> None:
        """``x += P @ below``: on a GPU the product's kernel adds."""
        if self.device.kind == "cuda":
            (P.matvec if x.ndim == 1 else P.matmat)(below, out=x, beta=1)
        else:
            operators.multiply(P, below, change)
            x += change

    def update(self, A: Any) -> None:
        """Take new values of a matrix of the same structure: aggregates and structures stay, values are computed anew.

        Raises
        ------
        TypeError
            The hierarchy is pyamg's; or A is complex, or on another device.
        ValueError
            A's shape or structure is another one, or its values are none that :func:`multigrid` takes. The
            preconditioner stays as it was.
        """
        if self._hierarchy is None:
            raise TypeError("a hierarchy of pyamg's belongs to its matrix. Build it anew, or use multigrid(A)")
        with self.device.use():
            A = A if isinstance(A, SparseArray) else asarray(A, device=str(self.device))
            self.require_shape(A)
            A = _checked(A, self.device)
            made = self._hierarchy.made(A, self.levels)
        self._swap(_made=made)

    def astype(self, dtype: Any) -> Multigrid:
        now, wanted = self.frozen(), precision(dtype, self.dtype)
        cast = [Level(*(part.astype(wanted) for part in level)) for level in now.levels]
        made = now._made._replace(levels=cast, coarsest=now.coarsest.astype(wanted))
        hierarchy = now._hierarchy and now._hierarchy.astype(wanted)
        return Multigrid(made, now.device, now.cycle, hierarchy)

    def __repr__(self) -> str:
        made, sizes = self._made, self._made.sizes
        lines = [
            f"<Multigrid {self.shape[0]} x {self.shape[1]}, {self.dtype}, {self.cycle}-cycle, {made.source}, {self.device}"
        ]
        lines += [f"  {'level':>5} {'rows':>12} {'nonzeros':>14} {'a row':>7} {'block':>5}"]
        for k, (rows, nonzeros, block) in enumerate(sizes):
            lines += [f"  {k:>5} {rows:>12,} {nonzeros:>14,} {nonzeros / max(rows, 1):>7.1f} {block:>5}"]
        whole = [sum(size[i] for size in sizes) / max(sizes[0][i], 1) for i in (0, 1)]
        lines += [f"  complexity: {whole[1]:.2f} of nonzeros, {whole[0]:.2f} of rows"]
        if made.seconds:
            phases = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in made.seconds.items())
            lines += [f"  ms: {1e3 * sum(made.seconds.values()):.1f} = {phases}"]
        return "\n".join(lines) + ">"


def multigrid(
    A: Any,
    near_nullspace: Any = None,
    *,
    block_size: int | None = None,
    strength: float | None = None,
    cycle: str = "V",
    smoother: str = "chebyshev",
    degree: int = 2,
    max_coarse: int = 200,
    dtype: Any = None,
    device: Any = None,
) -> Multigrid:
    """Multigrid by smoothed aggregation, set up on A's device; or the same cycle from a hierarchy of pyamg's.

    Parameters
    ----------
    A : (n, n) array of ours, or sparse or dense matrix; or pyamg's MultilevelSolver, or its ``levels``
        Real, symmetric, positive definite; or semidefinite, such as a Neumann problem's. Of pyamg's levels each has A;
        each but the coarsest P and R too, ``R = P^T`` (``P^H``). pyamg's own smoothers are not used, and keywords that
        concern the setup mean nothing then.
    near_nullspace : (n,) or (n, k) array on A's device, optional
        Vectors x for which ``A @ x`` is nearly 0: :func:`rigid_body_modes` of an elastic body. Where nodes are held by
        a penalty, a huge number on the diagonal, set their rows to 0: fewer iterations. Default: constants, one for each
        of the `block_size` unknowns of a node.
    block_size : int, optional
        Unknowns of a node, 1 to 32, which stay together. Default: that of a BBCSR array whose blocks have no holes,
        else 1.
    strength : float, optional
        Nodes are aggregated along entries (of blocks: Frobenius norms) with ``|a_ij| >= strength * sqrt(a_ii a_jj)``;
        0: along all. Each coarser level takes half. Default: 0.08 for nodes of one unknown, which suits anisotropy and
        jumping coefficients too; else 0.
    cycle : {"V", "W"}
        How often a level visits the next: once, or twice.
    smoother : {"chebyshev", "jacobi"}
        Before and after each coarser level: a polynomial of `degree`, or one step of damped Jacobi.
    degree : int
        Of Chebyshev's polynomial.
    max_coarse : int
        A level with at most so many rows, up to 4096, is the coarsest; it is inverted as a dense matrix.
    dtype : data type, optional
        float32 or float64: of the levels. Default: A's. Vectors keep theirs, so float32 levels take half the time to
        read in a solve in double precision.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: A's; of pyamg's hierarchy the current GPU if there is one.

    Returns
    -------
    Multigrid
        Symmetric, so that conjugate gradients take it: ``apply(r, out)``, ``matvec(x)``, ``astype(dtype)``, and
        ``update(A)`` for new values in the same structure. Its ``repr`` is a table of the levels, with the time that
        each phase of the setup took.

    Raises
    ------
    TypeError
        A has no entries that can be read, or complex ones; or a list is no hierarchy.
    ValueError
        A is not symmetric, not finite, or has a diagonal that does not lie between 1e-140 and 1e140 (1e-32 and 1e32 for
        float32 levels); aggregates give no smaller level, or hubs of a graph dense ones; a keyword is out of range; shapes
        do not fit.

    Notes
    -----
    Where A is singular the coarsest level has a pseudo-inverse: a solve converges if b is in A's range, for a Neumann
    problem if its sum is 0. Rows without strong neighbours are in no aggregate; the smoother alone improves them.

    The same matrix gives the same bits, with any number of our threads; those of LAPACK, which inverts the coarsest level, may
    change the last ones. Sources: P. Vanek, J. Mandel, M. Brezina, Computing
    56, 1996, sections 2 to 4; N. Bell, S. Dalton, L. N. Olson, SIAM J. Sci. Comput. 34, 2012, section 4.

    Examples
    --------
    >>> S = np.diag(np.full(500, 2.0)) - np.diag(np.ones(499), 1) - np.diag(np.ones(499), -1)
    >>> A = cvrarray.asarray(S, device="cpu")
    >>> M = cvrarray.linalg.multigrid(A)
    >>> x, info = cvrarray.linalg.cg(A, S @ np.ones(500), rtol=1e-10, M=M)
    >>> abs(x - 1).max() < 1e-6, info
    (np.True_, 0)
    >>> M.update(2 * A)
    >>> cvrarray.linalg.cg(2 * A, S @ np.ones(500), rtol=1e-10, M=M)[1]
    0
    """
    degree = integer(degree, "degree", 1)
    for name, value, known in (("cycle", cycle, CYCLES), ("smoother", smoother, RATIO)):
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"{name} must be {' or '.join(map(repr, known))}; got {value!r}")
    degree, ratio = (degree, RATIO[smoother]) if smoother == "chebyshev" else (1, RATIO[smoother])
    target = None if device is None else devices.parse(device)
    if hasattr(A, "levels") or isinstance(A, (list, tuple)):
        return _of_levels(A, degree, ratio, cycle, target or devices.default())
    max_coarse = integer(max_coarse, "max_coarse", 1, MOST_DENSE)
    if strength is not None and not 0 <= real(strength, "strength") < 1:
        raise ValueError(f"strength must be at least 0 and below 1; got {strength!r}")
    if target is not None:
        A = A.to_device(str(target)) if isinstance(A, SparseArray) else asarray(A, device=str(target))
    A = operators.diagonal_source(A, "multigrid")
    target = A._target
    dtype = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    if dtype not in (None, np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64; got {dtype}")
    with target.use():
        size = _block_size(A, block_size)
        A = _checked(A, target)
        candidates = _candidates(near_nullspace, A.shape[0], size, target)
        if strength is None:
            strength = STRENGTH if candidates.shape[1:] == (1, 1) else 0.0
        hierarchy = Hierarchy(target, candidates, Options(float(strength), degree, ratio, max_coarse, dtype or A.dtype))
        return Multigrid(hierarchy.made(A), target, cycle, hierarchy)


def _checked(A: Any, target: devices.Device) -> Any:
    """A as an array of floating-point numbers, found to be symmetric by products with two vectors."""
    if A.dtype.kind == "c":
        raise TypeError(f"multigrid needs real numbers; got {A.dtype}. Of a complex A multigrid takes pyamg's hierarchy")
    if A._target != target:
        raise TypeError(f"A must be on the preconditioner's device, {target}; got {A.device}. Use A.to_device")
    n, xp = operators.check_square(A.shape), target.xp
    if n >= 2**31:
        raise ValueError(f"multigrid takes matrices of less than 2^31 rows; got {n}")
    A = (
        asarray(A, dtype=operators.vector_dtype(A.dtype), device=str(target))
        if A.dtype.kind != "f" or A.dtype.itemsize < 4
        else A
    )
    if not n:
        return A
    x, y = vectors_of(target).scattered(2 * n).reshape(2, n)
    with np.errstate(all="ignore"):
        Ax, Ay = A @ x, A @ y
        numbers = xp.stack([abs(xp.vdot(y, Ax) - xp.vdot(x, Ay)), abs(Ax).max(), abs(Ay).max()])
    difference, *sizes = devices.move(numbers, devices.CPU).tolist()
    if not np.isfinite(sizes).all():
        raise ValueError("A must be finite; a product with it gave nan or inf")
    if difference > UNSYMMETRIC * max(sizes) * np.sqrt(n):
        raise ValueError(
            "multigrid needs a symmetric A. Make M of the symmetric part, (A + A.T) / 2, and use gmres or bicgstab"
        )
    return A


def _block_size(A: Any, block_size: int | None) -> int:
    """The unknowns of a node."""
    n = A.shape[0]
    if block_size is None:
        own = A.block_size if isinstance(A, BBCSRArray) and A._tables.present is None else 1
        return own if n % own == 0 else 1
    size = integer(block_size, "block_size", 1, 32)
    if n % size:
        raise ValueError(f"block_size must divide the number of rows, {n}; got {size}")
    return size


def _candidates(vectors: Any, n: int, size: int, target: devices.Device) -> Any:
    """(n / size, size, k) float64."""
    xp = target.xp
    if vectors is None:
        return xp.ascontiguousarray(xp.broadcast_to(xp.eye(size), (n // size, size, size)))
    given = operators.dense_vector(vectors, "near_nullspace", target)
    if given.ndim not in (1, 2) or len(given) != n or not 1 <= given[:1].size <= 32 or given.dtype.kind == "c":
        raise ValueError(
            f"near_nullspace must be real, of shape ({n},) or ({n}, k), k from 1 to 32; got {given.shape} of {given.dtype}"
        )
    given = xp.ascontiguousarray(given.reshape(n, -1), np.float64)
    if not bool(xp.isfinite(given).all()):
        raise ValueError("near_nullspace must be finite; it holds nan or inf")
    if not bool((given != 0).any()):
        raise ValueError("near_nullspace must have a vector that is not 0")
    given = xp.ldexp(given, -xp.frexp(abs(given).max(axis=0))[1])  # squares neither overflow nor vanish
    return given.reshape(n // size, size, -1)


def rigid_body_modes(coordinates: Any) -> Any:
    """Translations and rotations of an elastic body: what :func:`multigrid` takes as `near_nullspace`.

    Parameters
    ----------
    coordinates : (n_nodes, 2) or (n_nodes, 3) array
        Of the nodes, in the order of the matrix, whose unknowns are the displacements of one node after the other.

    Returns
    -------
    (2 * n_nodes, 3) or (3 * n_nodes, 6) float64 array, where `coordinates` is
        Columns: the translations, then the rotations about the center. In 2D there is one rotation.

    Raises
    ------
    ValueError
        `coordinates` has another shape, or holds nan or inf.

    Examples
    --------
    >>> cvrarray.linalg.rigid_body_modes(np.array([[0.0, 0.0], [2.0, 0.0]]))
    array([[ 1.,  0., -0.],
           [ 0.,  1., -1.],
           [ 1.,  0., -0.],
           [ 0.,  1.,  1.]])
    """
    target = devices.of(coordinates)
    with target.use():
        xp, given = target.xp, operators.dense_vector(coordinates, "coordinates", target)
        if given.ndim != 2 or given.shape[1] not in (2, 3) or given.dtype.kind == "c":
            raise ValueError(f"coordinates must be real, of shape (n_nodes, 2) or (n_nodes, 3); got {given.shape}")
        if not bool(xp.isfinite(given).all()):
            raise ValueError("coordinates must be finite; they hold nan or inf")
        n, d = given.shape
        place = given.astype(np.float64)
        place = place - place.mean(axis=0) if n else place
        modes = xp.zeros((n, d, 3 * (d - 1)))
        for k in range(d):
            modes[:, k, k] = 1
        for k, (i, j) in enumerate([(0, 1)] if d == 2 else [(1, 2), (2, 0), (0, 1)]):
            modes[:, i, d + k], modes[:, j, d + k] = -place[:, j], place[:, i]
        return modes.reshape(n * d, -1)


def _of_levels(levels: Any, degree: int, ratio: float, cycle: str, target: devices.Device) -> Multigrid:
    """A cycle from pyamg's levels."""
    given = getattr(levels, "levels", levels)
    given = list(given) if isinstance(given, Iterable) else []
    if not given or not all(hasattr(level, "A") for level in given):
        raise TypeError("levels must be a hierarchy of pyamg's, such as pyamg.smoothed_aggregation_solver(S) returns")
    with target.use():
        made = [_level(level, degree, ratio, target) for level in given[:-1]]
        coarsest = _inverse(given[-1].A, target)
        for k, level in enumerate(made):
            n, below = level.A.shape[0], (made[k + 1].A.shape if k + 1 < len(made) else coarsest.shape)[0]
            shapes = level.P.shape, level.R.shape
            if shapes != ((n, below), (below, n)):
                raise ValueError(f"P and R of level {k} must have shapes {(n, below)} and {(below, n)}; got {shapes}")
        sizes = [(level.A.shape[0], int(getattr(level.A, "nnz", level.A.size)), 1) for level in given]
        return Multigrid(Made(made, coarsest, sizes, {}, "pyamg's hierarchy"), target, cycle)


def _level(level: Any, degree: int, ratio: float, target: devices.Device) -> Level:
    for name in ("P", "R"):
        if not hasattr(level, name):
            raise TypeError(f"each level but the coarsest must have A, P and R; {name} is missing")
    A, P, R = (asarray(matrix, device=str(target)) for matrix in (level.A, level.P, level.R))
    operators.check_square(A.shape, "A of a level")
    return Level(A, P, R, Chebyshev(A, degree, ratio))


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
    if _is_hermitian(dense, np.finfo(dtype).eps):
        return inverted(dense, dtype, target, may_be_indefinite=True)
    return BBCSRArray(np.linalg.pinv(dense).astype(dtype), block_size=1, device=str(target))


def _is_hermitian(dense: np.ndarray, eps: float) -> bool:
    """But for rounding: pyamg adds up products of sparse matrices, in no symmetric order."""
    return bool(abs(dense - dense.conj().T).max(initial=0) <= 100 * eps * abs(dense).max(initial=0))
