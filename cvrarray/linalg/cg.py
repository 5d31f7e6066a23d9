"""Conjugate gradients for symmetric (Hermitian) positive definite systems: ``cg``, and ``CG`` for many solves.

Sources: M. R. Hestenes, E. Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems", J. Res. NBS 49, 1952;
Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd ed., SIAM 2003, algorithm 9.1, for the preconditioned
method.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..array.stack import Stack
from ..input import coercion
from . import arguments, operators, preconditioners, solving, stacked
from .arguments import Arguments
from .solution import Outcome, Solution
from .system import Lanes

PRECISIONS = (None, "mixed")
#: Columns from which the kernels for columns are faster on a CPU, whatever the matrix.
THIN = 8
#: Fewer columns are faster side by side where a matrix has so many nonzeros a row, and so many times their number: fewer
#: cost less than a pass over all vectors, or than the arithmetic of arrays of a number for each column.
NONZEROS_A_ROW, NONZEROS = 24, 1 << 20


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    precision: str | None = None,
) -> tuple[Any, Any]:
    """Solve ``A @ x = b`` by conjugate gradients, for a symmetric (Hermitian) positive definite A.

    Parameters
    ----------
    A : (n, n) array of ours, sparse or dense matrix, or operator
        A sparse matrix of another package is converted to an array of ours first: for many calls make that yourself. An
        operator has ``shape``, ``dtype`` and ``matvec(x, out=)``; SciPy's and CuPy's LinearOperators are such.
        A stack (``A.stack(V)``) is as many systems, solved side by side: b, x0 and x are (batch, n), `info` has a number for
        each, M is None or one of the names, and there is no `callback`. One that fails leaves the others as they are.
    b : (n,) or (n, k) array on A's device
        k columns are k systems, solved side by side through ``A @ X``; each stops by its own tolerance. Any numeric
        dtype: the solution is in single precision where A and b are; integers and float16 count as float64.
    x0 : array like b, optional
        Where to start; ``"Mb"`` for ``M @ b``. Default: 0.
    rtol, atol : float
        A column has converged where ``|b - A @ x| <= max(rtol * |b|, atol)``, computed from x itself.
    maxiter : int, optional
        The most iterations. Default: ``10 * n``.
    M : like A, or a preconditioner of this module, or ``"jacobi"`` or ``"block_jacobi"``, optional
        An approximation of A's inverse, symmetric (Hermitian) and positive definite.
    callback : function, optional
        Called as ``callback(x)`` after each iteration.
    precision : {None, "mixed"}
        ``"mixed"``: on a GPU iterations in single precision, refined in double precision until the tolerance holds.
        All is in double precision on a CPU, and where a GPU holds the system in its shared memory: it is as fast there.
        A is ours.

    Returns
    -------
    x : array like b
    info : int
        0: converged. Above 0: iterations that did not meet the tolerance. Below 0: a failure, see :mod:`cvrarray.linalg`.

    Raises
    ------
    TypeError, ValueError
        Devices, shapes or dtypes do not fit, or an argument is out of range. Nothing has run then.

    Notes
    -----
    The same system gives the same bits in every run, on a CPU with any number of threads, where A and M do.

    Examples
    --------
    >>> A = cvrarray.asarray(np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]]), device="cpu")
    >>> x, info = cvrarray.linalg.cg(A, np.array([6.0, 10, 8]), rtol=1e-12, M="jacobi")
    >>> x.round(9), info
    (array([1., 2., 3.]), 0)
    """
    solver = CG(A, M=M, rtol=rtol, atol=atol, maxiter=maxiter, precision=precision)
    found = solver._solve(b, x0, None, callback)
    return found.x, stacked.infos(found) if isinstance(A, Stack) else found.info


class _Taken(NamedTuple):
    """What a solver solves with: updates replace it as a whole, and a solve has one from its beginning to its end."""

    matrix: Any
    M: Any


class _Lane:
    """The engine of a thread and stream, and what it was prepared for; None while it is being prepared."""

    def __init__(self, engine: Any, prepared: tuple[Any, Any]) -> None:
        self.engine = engine
        self.prepared: tuple[Any, Any] | None = prepared
        self.runs = False

    def run(self, *args: Any) -> Outcome:
        """See :mod:`.system`. M, or a signal's handler, may solve meanwhile: with an engine of its own."""
        try:
            self.runs = True
            found: Outcome = self.engine.run(*args)
            return found
        finally:
            self.runs = False

    def is_for(self, wanted: tuple[Any, Any]) -> bool:
        """Whether nothing has been updated since."""
        prepared = self.prepared
        return prepared is not None and prepared[0] is wanted[0] and prepared[1] is wanted[1]


class CG:
    """Conjugate gradients for one matrix and any number of right-hand sides: memory is taken, and all prepared, once, for
    each thread and stream that solves. Several threads may use one at once: a solve that runs beside an :meth:`update` goes
    on with the matrix and M that it began with.

    Parameters
    ----------
    A, M, rtol, atol, maxiter, precision
        As of :func:`cg`.
    iterations : int, optional
        Run exactly so many iterations and test nothing: on a GPU nothing waits for the host, and :meth:`solve` can be
        captured in a CUDA graph. On a CPU those so far beyond convergence that they would change nothing are left out.
    history : bool
        Keep the norms of residuals.

    Raises
    ------
    TypeError, ValueError
        As :func:`cg`.

    Examples
    --------
    >>> A = cvrarray.asarray(np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]]), device="cpu")
    >>> solver = cvrarray.linalg.CG(A, M="jacobi", rtol=1e-12, history=True)
    >>> found = solver.solve(np.array([6.0, 10, 8]))
    >>> found.x.round(9), found.reason, found.history.shape == (found.iterations + 1,)
    (array([1., 2., 3.]), 'converged', True)
    >>> solver.update(A.with_values(2 * A.tocsr().data))
    >>> solver.solve(np.array([6.0, 10, 8]), x0=found.x).x.round(9)
    array([0.5, 1. , 1.5])
    """

    def __init__(
        self,
        A: Any,
        *,
        M: Any = None,
        rtol: float = 1e-5,
        atol: float = 0.0,
        maxiter: int | None = None,
        iterations: int | None = None,
        history: bool = False,
        precision: str | None = None,
    ) -> None:
        if coercion.package(A) in coercion.SPARSE_PACKAGES and not hasattr(A, "matvec"):
            A = operators.diagonal_source(A, "A")  # converted once
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be None or 'mixed'; got {precision!r}")
        if precision == "mixed" and not isinstance(A, SparseArray):
            raise TypeError(f"precision='mixed' needs a sparse matrix, which can be cast; got {type(A).__name__}. Use asarray")
        if precision == "mixed" and iterations is not None:
            raise ValueError("precision='mixed' refines until a tolerance holds; it excludes iterations")
        shape = getattr(A, "shape", None) or np.shape(A)
        operators.check_square(shape[1:] if isinstance(A, Stack) else shape)
        self._precision, self._history = precision, bool(history)
        self._named = M if isinstance(M, str) else None
        self._taken = _Taken(A, self._preconditioner(M, A))
        self._tolerances = arguments.tolerance(rtol, "rtol"), arguments.tolerance(atol, "atol")
        self._maxiter = None if maxiter is None else arguments.count(maxiter, "maxiter", 0)
        self._iterations = None if iterations is None else arguments.count(iterations, "iterations", 0)
        self._lanes = Lanes()

    @staticmethod
    def _preconditioner(M: Any, A: Any) -> Any:
        if isinstance(A, Stack):
            return stacked.preconditioner(M, A)
        return preconditioners.named(M, A) if isinstance(M, str) else M

    def __getstate__(self) -> dict[str, Any]:
        """Copies do not share solver memory."""
        return {**self.__dict__, "_lanes": Lanes()}

    def solve(self, b: Any, x0: Any = None, out: Any = None) -> Solution:
        """Solve ``A @ x = b``.

        Parameters
        ----------
        b, x0
            As of :func:`cg`.
        out : array like b, optional
            Where x goes, contiguous, of the solution's dtype; it may be `x0`. New where left out.

        Returns
        -------
        Solution
            Its ``x`` is `out` where given. With ``iterations`` the numbers in it are those of the updated residual;
            while a CUDA graph is captured there are none. Such a solve needs `out`, and a solver that has solved
            before, with the matrix and M that it has now: the graph keeps to them.

        Raises
        ------
        TypeError, ValueError
            As :func:`cg`.

        Examples
        --------
        >>> solver = cvrarray.linalg.CG(np.diag([1.0, 2, 4]), iterations=2)
        >>> found = solver.solve(np.ones(3), out=np.empty(3))
        >>> found.iterations, found.reason, bool(found.residual < 0.3)
        (2, 'iterations', True)
        """
        return self._solve(b, x0, out, None)

    def update(self, A: Any) -> None:
        """Take another matrix of the same shape and dtype, as after :meth:`with_values
        <cvrarray.CVRArray.with_values>`.

        A preconditioner that was given by name follows; one that was given as an object keeps its numbers: call its own
        ``update`` before, which costs less than making it again. An update that is interrupted, or fails, has changed
        nothing, or all.

        Raises
        ------
        TypeError, ValueError
            The shape, dtype, device or kind is another one.

        Examples
        --------
        >>> A = cvrarray.asarray(np.diag([1.0, 2, 4]), device="cpu")
        >>> solver = cvrarray.linalg.CG(A, M="jacobi")
        >>> solver.update(A.with_values(np.array([2.0, 4, 8])))
        >>> solver.solve(np.ones(3)).x
        array([0.5  , 0.25 , 0.125])
        """
        old, M = self._taken
        if isinstance(old, Stack) and not isinstance(A, Stack):
            raise TypeError(f"A must be a Stack, as it was; got {type(A).__name__}. Use A.stack(V)")
        if isinstance(old, SparseArray) and not isinstance(A, SparseArray):
            raise TypeError(f"A must be an array of ours, as it was; got {type(A).__name__}. Use cvrarray.asarray")
        if tuple(A.shape) != tuple(old.shape) or A.dtype != old.dtype:
            raise ValueError(f"A must have shape {tuple(old.shape)} and dtype {old.dtype}; got {tuple(A.shape)} and {A.dtype}")
        is_ours = isinstance(old, SparseArray | Stack)
        if is_ours and A.device != old.device:
            raise TypeError(f"A must be on {old.device}; got {A.device}. Use A.to_device")
        if is_ours:
            with old._target.use():
                old._target.wait()  # other streams will read A
        if isinstance(A, Stack):
            M = stacked.preconditioner(self._named, A)
        elif self._named is not None:
            M = M.frozen()
            M.update(A)
        self._taken = _Taken(A, M)

    def _solve(self, b: Any, x0: Any, out: Any, callback: Callable[[Any], Any] | None) -> Solution:
        taken = self._taken
        if isinstance(taken.matrix, Stack):
            if callback is not None:
                raise ValueError(
                    "callback must be left out of a solve with a Stack. Use history=True, or solve with S[i] one by one"
                )
            given = stacked.system(taken.matrix, taken.M, b, x0, out)
        else:
            given = arguments.system(taken.matrix, b, x0, taken.M, out)
        wanted = taken, getattr(given.preconditioner, "version", None)
        limit = 10 * given.b.shape[0] if self._maxiter is None else self._maxiter
        with np.errstate(all="ignore"), given.device.use():
            if self._iterations is not None:
                return _as_given(self._counted(given, wanted), taken.matrix)
            if callback is None and not self._history and _is_thin(given):
                return _one_by_one(lambda one: self._engine(one, wanted), given, self._tolerances, limit)
            found = solving.run(lambda: self._engine(given, wanted), given, self._tolerances, limit, callback)
        return _as_given(found._replace(history=found.history if self._history else None), taken.matrix)

    def _counted(self, given: Arguments, wanted: tuple[Any, Any]) -> Solution:
        """Exactly as many iterations as were asked for."""
        outcome = self._engine(given, wanted).run(given.b, given.x, None, self._iterations)
        if given.device.is_capturing():
            return solving.answer(given, outcome._replace(residual=None, history=None), None)
        return solving.answer(given, outcome, given.device.xp.sqrt((abs(given.b.reshape(len(given.b), -1)) ** 2).sum(axis=0)))

    def _engine(self, given: Arguments, wanted: tuple[Any, Any]) -> _Lane:
        """Of this thread and stream, prepared for what `given` has: `wanted` are what an update and M's update replace."""
        kind = (None if given.b.ndim == 1 else given.b.shape[1], given.b.dtype, given.device)
        key = (*kind, *given.device.lane())
        lane: _Lane | None = self._lanes.get(key)
        if given.device.is_capturing():
            ready: list[_Lane] = [one for one in (lane, *self._lanes.others(kind)) if one is not None and one.is_for(wanted)]
            if not ready:  # which takes memory, or waits for the device
                raise RuntimeError("a solve in a CUDA graph must be prepared: solve once before the capture, after an update")
            self._lanes.captured(id(ready[0]), lambda: ready[0])
            return ready[0]
        if lane is None or lane.runs:
            lane = _Lane(self._made(given), wanted)
            self._lanes.put(key, lane)
        elif not lane.is_for(wanted):
            lane.prepared = None
            lane.engine.update(given.matrix, given.preconditioner)
            lane.prepared = wanted
        return lane

    def _made(self, given: Arguments) -> Any:
        is_stack = isinstance(given.matrix, stacked.Columns)
        system = solving.described(given, iterations=self._iterations, history=self._history, is_stack=is_stack)
        engine: Any
        if system.device.kind == "cpu" and is_stack:
            engine = stacked.InTurn
        elif system.device.kind == "cpu":
            from .cpu.cg import Engine as engine
        else:
            from .gpu.cg import Engine as engine
            from .gpu.refined import Engine as Mixed
            from .gpu.refined import pays

            if self._precision == "mixed" and system.dtype not in operators.SINGLE and pays(system):
                engine = Mixed
        return engine(system)


def _as_given(found: Solution, A: Any) -> Solution:
    """With x as b was given."""
    return found._replace(x=found.x.T) if isinstance(A, Stack) else found


def _is_thin(given: Arguments) -> bool:
    """Whether columns are so few, and rows so short, that one after the other is faster, by kernels for one column."""
    b, matrix = given.b, given.matrix
    if given.device.kind != "cpu" or b.ndim == 1 or not 0 < b.shape[1] < THIN or not isinstance(matrix, SparseArray):
        return False
    return matrix.nnz < NONZEROS_A_ROW * len(b) or matrix.nnz * b.shape[1] < NONZEROS


def _one_by_one(engine: Callable[[Arguments], Any], given: Arguments, tolerances: tuple[float, float], limit: int) -> Solution:
    """:func:`.solving.run` for each column by itself, with the engine that is made for the first."""
    columns = [given._replace(b=b.copy(), x=x.copy()) for b, x in zip(given.b.T, given.x.T, strict=True)]
    made = cache(lambda: engine(columns[0]))
    ends = [solving.run(made, column, tolerances, limit) for column in columns]
    given.x[...] = np.stack([end.x for end in ends], axis=1)
    iterations, residual, converged = (np.array([end[field] for end in ends]) for field in range(1, 4))
    return Solution(given.x, iterations, residual, converged, [end.reason for end in ends])
