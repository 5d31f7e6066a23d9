"""Smoothed aggregation: from a matrix to a hierarchy of coarser ones, on the matrix's device.

For each level: strong connections -> aggregates of nodes -> candidates, orthonormal in each aggregate: the tentative
prolongator T -> ``P = (I - omega / rho D^-1 A) T``, D the diagonal -> the next level ``P^T A P``. A node has one or
several unknowns, so matrices are sparse in dense blocks. All is computed in double precision.

Sources: P. Vanek, J. Mandel, M. Brezina, "Algebraic Multigrid by Smoothed Aggregation for Second and Fourth Order
Elliptic Problems", Computing 56, 1996, sections 2 to 4; N. Bell, S. Dalton, L. N. Olson, "Exposing Fine-Grained
Parallelism in Algebraic Multigrid Methods", SIAM J. Sci. Comput. 34, 2012, section 4: aggregates in parallel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import reduce
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import get_lapack_funcs

from ..bbcsr import BBCSRArray
from ..choice.construct import asarray
from ..core import devices
from ..core.tables import CSR
from .preconditioners import Chebyshev, spectrum

#: Of diagonals, for levels of these numbers: squares of what is less vanish, and of more than its inverse overflow. In
#: single precision levels are not squared.
TINY = {"float64": 1e-140, "float32": 1e-32}
#: The prolongator's smoother takes omega over the largest eigenvalue of ``D^-1 A``: Vanek et al., section 3.
OMEGA = 4 / 3
#: Candidates whose length after the others are taken out is less than this part of what it was depend on these.
DEPENDENT = 1e-10
#: A coarse unknown whose diagonal is less than this part of the finer ones has no energy: its aggregate floats, or its
#: candidate depends on others.
NOTHING = 1e-13
#: P is smoothed along entries of at least this part of what is strong, for the row or for both: those that matter to the
#: row of a prolongator are more than those that nodes are aggregated along.
FILTERED = 0.25
#: Weak entries are dropped, and not added to the diagonal, where less than this part of that would be left.
LEAST_LUMPED = 0.1
#: The next level has at most this part of a level's rows: else it is no progress.
PROGRESS = 0.9
#: A product has at most so many numbers for each of A's, or as many as the coarsest level may: hubs of a graph, as rows of
#: P, connect everything with everything.
MOST_GROWTH = 50
#: The coarsest level is inverted as a dense matrix: more rows than this would cost more than all other levels.
MOST_DENSE = 4096
#: Pivots and eigenvalues of the coarsest level less than this part of the largest are 0.
SINGULAR = 1e-12


class Level(NamedTuple):
    """A level but the coarsest: its matrix, the ways up and down, and its smoother."""

    A: Any
    P: Any
    R: Any
    smoother: Any


class Blocked(NamedTuple):
    """A matrix sparse in dense blocks: raw arrays on one device."""

    ptr: Any  # (n_rows + 1,) int64
    idx: Any  # (n_blocks,) int32
    data: Any  # (n_blocks, height, width) float64


class Coarsening(NamedTuple):
    """What the structure of a level decides, and its candidates."""

    aggregate: Any  # (n,) int32, of each node; -1: none
    basis: Any  # (n, height, k): the block of T in the row of each node
    n_coarse: int
    strong: Any  # ptr and idx of the graph that P is smoothed along, its diagonal, the candidate; None: A's
    T: Blocked
    P: tuple[Any, Any]  # ptr and idx
    R: tuple[Any, Any, Any]  # and which block of P each of its blocks is
    AP: tuple[Any, Any]
    coarse: tuple[Any, Any]
    of_root: Any  # (n_coarse,) a node of each aggregate


class Options(NamedTuple):
    """Of :func:`cvrarray.linalg.multigrid`."""

    strength: float
    degree: int
    ratio: float
    max_coarse: int
    dtype: np.dtype


class Made(NamedTuple):
    """What a setup or an update gives."""

    levels: list[Level]
    coarsest: Any  # an array that multiplies by the inverse of the last matrix
    sizes: list[tuple[int, int, int]]  # of each level: rows, nonzeros, unknowns of a node
    seconds: dict[str, float]  # of each phase
    source: str  # where the hierarchy comes from


class Hierarchy:
    """What A's structure, its strong connections and the candidates decide. :meth:`made` gives levels of values.

    Parameters
    ----------
    device : Device
    candidates : (n_nodes, size, k) float64 on the device
        The near null space.
    """

    def __init__(self, device: devices.Device, candidates: Any, options: Options) -> None:
        self.device, self.options, self._candidates, self._size = device, options, candidates, candidates.shape[1]
        self._coarsenings: list[Coarsening] = []
        self._on_diagonal: list[Any] = []  # of each level: where the blocks on the diagonal are
        self._structure: Any = None  # what tells A's from others
        self._in_blocks: Any = None  # of A: ptr and idx of its blocks, and where each entry lies in them

    def astype(self, dtype: np.dtype) -> Hierarchy:
        """The same, of levels in another precision."""
        other = copy(self)
        other.options = self.options._replace(dtype=dtype)
        return other

    def made(self, A: Any, old: list[Level] | None = None) -> Made:
        """The levels for these values; `old` are those of others in the same structure, if any were made before."""
        options, candidates, kernels, phase = self.options, self._candidates, _kernels(self.device), self._phase
        xp = self.device.xp
        levels: list[Level] = []
        sizes: list[tuple[int, int, int]] = []
        seconds: dict[str, float] = {}
        finer: Any = None  # of each coarse unknown: the size of diagonals on the level above
        with phase(seconds, "blocks"):
            fine, array = self._of_array(A), A if A.dtype == options.dtype else A.astype(options.dtype)
        while True:
            k, (n, height) = len(levels), (fine.ptr.size - 1, fine.data.shape[1])
            sizes.append((n * height, fine.data.size if k else A.nnz, height))
            with phase(seconds, "smoothers"):
                diagonal = self._diagonal(fine, k, finer)
            if k == len(self._coarsenings) if old is not None else n * height <= options.max_coarse:
                break
            with phase(seconds, "arrays"):
                array = self._array(fine, n * height, old and old[k].A) if k else array
            with phase(seconds, "smoothers"):
                inverse = (1 / diagonal).reshape(-1)
                largest, bound = spectrum(array, inverse, self.device)
                smoother = Chebyshev(array, options.degree, options.ratio, bound, inverse.astype(options.dtype))
            if old is None:
                with phase(seconds, "aggregates"):
                    graph = kernels.strength(*fine, options.strength / 2**k)  # Vanek et al., section 4
                    aggregate, n_coarse = kernels.aggregate(*graph)
                if not 0 < n_coarse * candidates.shape[2] <= PROGRESS * n * height:
                    break
                with phase(seconds, "structure"):
                    strong = None
                    is_scalar = height == candidates.shape[2] == 1  # rotations need all blocks
                    if is_scalar and graph[1].size < fine.idx.size:
                        strong = kernels.strength(*fine, FILTERED * options.strength / 2**k, True)[:2]
                        strong = strong if strong[1].size < fine.idx.size else None
                    most = max(MOST_GROWTH * A.nnz, MOST_DENSE**2) // candidates.shape[2] ** 2
                    how, candidates = _coarsening(kernels, fine, strong, aggregate, n_coarse, candidates, most)
                    self._coarsenings.append(how)
            how = self._coarsenings[k]
            with phase(seconds, "products"):
                P, R, coarse = _values(kernels, fine, how, OMEGA / largest, diagonal, self._on_diagonal[k])
                finer = reduce(xp.maximum, diagonal[how.of_root].T)[:, None]
            with phase(seconds, "arrays"):
                P = self._array(P, how.n_coarse * P.data.shape[2], old and old[k].P)
                R = self._array(R, n * height, old and old[k].R)
            levels.append(Level(array, P, R, smoother))
            fine = coarse
        with phase(seconds, "coarsest"):
            return Made(levels, self._inverse(fine, len(levels)), sizes, seconds, "smoothed aggregation")

    @contextmanager
    def _phase(self, seconds: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.device.wait()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

    def _of_array(self, A: Any) -> Blocked:
        xp, csr = self.device.xp, A._canonical_csr()
        structure = self.device.backend("assembly").fingerprint(csr.indptr, csr.indices)
        if self._structure not in (None, structure):
            raise ValueError(f"A must have its entries, {A.nnz} now, where those from before were. Make a new multigrid(A)")
        self._structure = structure
        wanted = zip(csr[:3], (np.int64, np.int32, np.float64), strict=True)
        ptr, idx, data = (part.astype(dtype, copy=False) for part, dtype in wanted)  # nobody writes to them
        if self._size == 1:
            return Blocked(ptr, idx, data.reshape(-1, 1, 1))
        if self._in_blocks is None:
            self._in_blocks = _kernels(self.device).blocks_structure(ptr, idx, self._size)
        ptr, idx, place = self._in_blocks
        blocks = xp.zeros((idx.size, self._size, self._size))
        blocks.reshape(-1)[place] = data
        return Blocked(ptr, idx, blocks)

    def _array(self, matrix: Blocked, n_cols: int, like: Any = None) -> Any:
        """The matrix as one of our arrays: in a new structure, or in that of `like`."""
        kernels, (ptr, idx, data) = _kernels(self.device), matrix
        is_scalar = data.shape[1:] == (1, 1)
        values = (data.reshape(-1) if is_scalar else kernels.entries(ptr, data)).astype(self.options.dtype, copy=False)
        if like is not None:
            return like.with_values(values)
        indptr, indices = (ptr, idx) if is_scalar else kernels.entries_structure(ptr, idx, *data.shape[1:])
        return asarray(CSR(indptr, indices, values, (indptr.size - 1, n_cols)), device=str(self.device))

    def _diagonal(self, fine: Blocked, k: int, finer: Any) -> Any:
        """(n, height), positive. Coarse unknowns without energy get the diagonal `finer` (n, 1): nothing is restricted to them
        that an equation could use.
        """
        xp, (n_blocks, height, _) = self.device.xp, fine.data.shape
        if k == len(self._on_diagonal):
            self._on_diagonal.append(_kernels(self.device).on_diagonal(fine.ptr, fine.idx))
        places, numbers = self._on_diagonal[k], fine.data.reshape(n_blocks, height**2)[:, :: height + 1]
        own = xp.where(places[:, None] >= 0, numbers[places], 0.0) if n_blocks else xp.zeros((places.size, height))
        if finer is not None:
            own = xp.where(own <= NOTHING * finer, finer, own)
            numbers[places] = own
        dtype = self.options.dtype
        tiny = TINY[dtype.name]
        is_within = (own > tiny) & (own < 1 / tiny)
        if not bool(is_within.all()):
            row, of = int(xp.flatnonzero(~is_within)[0]), "A" if k == 0 else f"the matrix of level {k}"
            raise ValueError(
                f"multigrid needs a positive definite A, whose diagonal lies between {tiny} and {1 / tiny:g} for levels of "
                f"{dtype}; entry [{row}, {row}] of {of} is {float(own.reshape(-1)[row])}. Use minres, or jacobi, or scale A"
            )
        return own

    def _inverse(self, last: Blocked, k: int) -> Any:
        """The coarsest matrix's inverse."""
        n, height = last.ptr.size - 1, last.data.shape[1]
        xp, n_rows = self.device.xp, n * height
        if last.idx.size == n and bool((last.idx == xp.arange(n)).all()):  # nothing is connected
            blocks = devices.move(last.data, devices.CPU)
            inverse = np.linalg.pinv(blocks, rcond=SINGULAR, hermitian=True) if n else blocks
            return self._array(last._replace(data=devices.move(np.ascontiguousarray(inverse), self.device)), n_rows)
        if n_rows > MOST_DENSE:
            raise ValueError(
                f"level {k} has {n_rows} rows, and aggregates of strong neighbours give no smaller one (strength="
                f"{self.options.strength:g}). Lower strength, give fewer near_nullspace vectors, or use jacobi"
            )
        ptr, idx, data = (devices.move(part, devices.CPU) for part in last)
        dense = np.zeros((n, height, n, height))
        dense[np.repeat(np.arange(n), np.diff(ptr)), :, idx] = data
        return inverted(dense.reshape(n_rows, n_rows), self.options.dtype, self.device)


def inverted(dense: np.ndarray, dtype: np.dtype, device: devices.Device, may_be_indefinite: bool = False) -> Any:
    """The inverse of the coarsest matrix as an array of ours: by Cholesky, or where that is singular the pseudo-inverse."""
    dense = (dense + dense.conj().T) / 2
    try:
        factor = np.linalg.cholesky(dense)
        is_singular = bool((np.diagonal(factor).real ** 2 < SINGULAR * np.diagonal(dense).real).any())
    except np.linalg.LinAlgError:
        is_singular = True
    if is_singular:
        values, vectors = np.linalg.eigh(dense)
        largest = abs(values).max(initial=0)
        if not may_be_indefinite and values[0] < -(SINGULAR**0.5) * largest:
            raise ValueError(
                f"multigrid needs a positive definite A; eigenvalues of the coarsest level go from {values[0]:.3g} to "
                f"{values[-1]:.3g}. Use minres, or jacobi"
            )
        kept = abs(values) > SINGULAR * largest
        inverse = vectors[:, kept] / values[kept] @ vectors[:, kept].conj().T
    else:
        (potri,) = get_lapack_funcs(("potri",), (factor,))
        inverse = np.tril(potri(factor, lower=True)[0] if factor.size else factor)
        inverse += np.tril(inverse, -1).conj().T
    with np.errstate(over="ignore"):
        inverse = inverse.astype(dtype)
    if not np.isfinite(inverse).all():
        raise ValueError(f"the inverse of the coarsest level is too large for {dtype}. Scale A, or use dtype='float64'")
    # its product takes no memory, BLAS's may
    return BBCSRArray(inverse, block_size=1, device=str(device))


def _kernels(device: devices.Device) -> ModuleType:
    if device.kind == "cpu":
        from .cpu import aggregation

        return aggregation
    from .gpu import aggregation as on_gpu

    return on_gpu


def _coarsening(
    kernels: ModuleType, fine: Blocked, strong: Any, aggregate: Any, n_coarse: int, candidates: Any, most: int
) -> tuple[Coarsening, Any]:
    """What the aggregates decide, and the candidates of the next level."""
    xp = devices.of(aggregate).xp
    near = candidates.reshape(-1)
    basis, candidates, of_root = kernels.tentative(aggregate, n_coarse, candidates, DEPENDENT)
    has_one = aggregate >= 0
    t_ptr, kept = xp.zeros(aggregate.size + 1, np.int64), xp.flatnonzero(has_one)
    t_ptr[1:] = xp.cumsum(has_one)
    T = Blocked(t_ptr, aggregate[kept], basis[kept])
    P = kernels.product_structure(*(strong or fine[:2]), T.ptr, T.idx, n_coarse)
    R = kernels.transposed(*P, n_coarse)
    _require_sparse(kernels.n_terms(*fine[:2], P[0]), aggregate.size, n_coarse, most)
    AP = kernels.product_structure(fine.ptr, fine.idx, *P, n_coarse, ascends=False)  # on a CPU nobody needs that
    _require_sparse(kernels.n_terms(*R[:2], AP[0]), n_coarse, n_coarse, most)
    coarse = kernels.product_structure(*R[:2], *AP, n_coarse)
    strong = strong and (*strong, kernels.on_diagonal(*strong), near)
    return Coarsening(aggregate, basis, n_coarse, strong, T, P, R, AP, coarse, of_root), candidates


def _require_sparse(n_terms: int, n_rows: int, n_cols: int, most: int) -> None:
    """ValueError where a product may have more than so many blocks: it would take the memory, and the time."""
    n_blocks = min(n_terms, n_rows * n_cols)
    if n_blocks > most:
        raise ValueError(
            f"coarser levels of A are not sparse: a product may have {n_blocks:,} blocks, of at most {most:,}. Rows with "
            "very many entries do that; use jacobi or chebyshev"
        )


def _values(
    kernels: ModuleType, fine: Blocked, how: Coarsening, weight: float, diagonal: Any, on_diagonal: Any
) -> tuple[Blocked, Blocked, Blocked]:
    """P, its transpose, and the next level's matrix. Weak entries are added to the diagonal before P is smoothed: A^F of
    Vanek et al., section 3.2, but so that A's product with the candidate stays, which is not constant on coarser levels;
    and not in rows where little would be left of the diagonal.
    """
    n, strong, xp = how.n_coarse, fine, devices.of(diagonal).xp
    if how.strong is not None:
        ptr, idx, places, near = how.strong
        strong = Blocked(ptr, idx, kernels.filtered(*fine, ptr, idx, near))
        own = strong.data[places, 0]
        diagonal = xp.where(own < LEAST_LUMPED * diagonal, fine.data[on_diagonal, 0], own)
        strong.data[places, 0] = diagonal
    P = Blocked(*how.P, kernels.product(*strong, *how.T, *how.P, n))
    kernels.smooth(*P, weight / diagonal, how.aggregate, how.basis)
    R = Blocked(*how.R[:2], kernels.taken(P.data, how.R[2]))
    AP = Blocked(*how.AP, kernels.product(*fine, *P, *how.AP, n))
    return P, R, Blocked(*how.coarse, kernels.product(*R, *AP, *how.coarse, n))
