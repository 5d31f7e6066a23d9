"""Methods on a GPU whose steps are a few kernels: batches of steps, of which the device decides who takes part.

What a method does is written in ``kernels/<method>.cu``. Batches are CUDA graphs where the matrix and the preconditioner
can be captured. The host looks at the columns one batch late. Steps after the end leave vectors as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import cupy
import numpy as np

from cvrarray.gpu.launches import NULL
from cvrarray.linalg.ends import BREAKDOWN, CONVERGED, RUNNING, Judge
from cvrarray.linalg.gpu.cg import captured
from cvrarray.linalg.gpu.layout import Layout
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, IDENTITY, Lookout, can_be_captured, preconditioner_kind
from cvrarray.linalg.gpu.vectors import DeviceVectors
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System, apply

#: Steps of a batch. Methods that take turns with two or three vectors have them back in their places after it.
BATCH = 6
#: Where the struct Course of ``kernels/methods.cuh`` is in a column's words.
NORM, VERIFY_AT, ITERATIONS, LIMIT, REASON, MOVES = range(-6, 0)
SUMS = 3  # of a column in a kernel, at most
#: An iterate is kept whose residual is this part of that of the one before.
BETTER = 0.1


class Steps:
    """A method whose :meth:`launch` is a step on the device. A subclass fills the columns' scalars in :meth:`start`.

    A method's own residual is an update: the true one is computed before success is said, and where the update lied the
    column starts again from the true one. Where A is singular, or nearly, the factors of a step may have any size, and x
    overflows. So an iterate is kept whenever its residual is a tenth of that of the one before, and a column that ends
    worse than it began ends with what was kept.
    """

    #: Words of 8 bytes of a column's state.
    words: ClassVar[int]

    def __init__(self, system: System) -> None:
        self.system, self.matrix, self.M = system, system.matrix, system.preconditioner
        self.v = DeviceVectors(system.device, system.shape, system.dtype)
        self.r = self.v.empty()
        self.active: Any = None
        self.end: Any = None
        self.kept: Any = None  # iterates, and the norms of their residuals
        self.best: Any = None
        kind = preconditioner_kind(self.M)
        self.kind = GIVEN if kind == BLOCKS else kind
        self.inverse: Any = NULL
        if self.kind == DIAGONAL:
            self.inverse = cupy.ascontiguousarray(self.M.inverse.astype(system.dtype))
        self.layout = Layout.of(system.n, self.v.columns)
        self.partials = self.layout.partials(SUMS)
        self.columns = cupy.zeros((self.v.columns, self.words))
        self._lookout = Lookout(self.columns)

    def start(self) -> None:
        """Begin from the residual ``self.r``."""
        raise NotImplementedError

    def keep(self, x: Any, norms: Any) -> None:
        """Keep the columns of x, whose residuals have these norms, that are much better than those that are kept."""
        better = norms < BETTER * self.best
        if better.any():
            better = better & cupy.isfinite(self.v.norm(x))
            cupy.copyto(self.kept, x, where=better)
            self.best = cupy.where(better, norms, self.best)

    def times(self, x: Any, out: Any) -> Any:
        """``out = A @ x``."""
        return multiply(self.matrix, x, out)

    def precondition(self, r: Any, out: Any) -> Any:
        """``M @ r``: `r` itself without a preconditioner, else `out`."""
        return r if self.M is None else apply(self.M, r, out)

    def stop(self, condition: Any, end: int) -> None:
        """End the columns that go on and meet the condition."""
        now = self.active & condition
        self.end = cupy.where(now, end, self.end)
        self.active = self.active & ~now

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve, as :mod:`cvrarray.linalg.system` says; `callback(x)` is called after each iteration."""
        judge = Judge(self.v.columns, tolerance, limit)
        with np.errstate(all="ignore"):
            small = self.v.host(self.v.norm(b)) * float(np.finfo(self.system.dtype).eps) / 4
            verify_at = cupy.asarray(np.maximum(small, tolerance))
            true = first = self.best = self._true(b, x)
            self.kept = x.copy()
            going = judge.judge(self.v.host(true))
            while going:
                self._cycle(x, verify_at, judge, callback)
                true = self._true(b, x)
                going = judge.judge(self.v.host(true))
                if going:
                    self.keep(x, true)
            norms = self._put_back(b, x, self.v.host(first), self.v.host(true), judge)
        return Outcome(judge.iterations, norms, judge.reasons())

    def _put_back(self, b: Any, x: Any, first: np.ndarray, norms: np.ndarray, judge: Judge) -> np.ndarray:
        """Give columns whose residuals are larger than the first ones, or that are not finite, what was kept; the norms."""
        lost = ~((norms <= first) & np.isfinite(self.v.host(self.v.norm(x))))
        if not lost.any():
            return norms
        cupy.copyto(x, self.kept, where=cupy.asarray(lost))
        judge.end[lost & (judge.end == CONVERGED)] = BREAKDOWN
        return np.where(lost, self.v.host(self._true(b, x)), norms)

    def _true(self, b: Any, x: Any) -> Any:
        """``self.r = b - A @ x``, and its norms."""
        if bool(x.any()):
            self.times(x, self.r)
            one = self.v.constant(1)
            self.v.combine(one, b, -one, self.r, self.r)
        else:
            self.r[...] = b
        return self.v.norm(self.r)

    def launch(self, x: Any, number: int) -> None:
        """Launch step `number`, counted from 0, which updates x."""
        raise NotImplementedError

    def _cycle(self, x: Any, verify_at: Any, judge: Judge, callback: Callable[[Any], Any] | None) -> None:
        """Steps until no column goes on, or one has had all its iterations."""
        self.end = cupy.asarray(judge.end)
        self.active = self.end == RUNNING
        left = judge.limit - int(judge.iterations[judge.end == RUNNING].max())
        self.start()
        whole = self.columns.view(np.int64)
        self.columns[:, NORM], self.columns[:, VERIFY_AT] = self.v.norm(self.r), verify_at
        whole[:, ITERATIONS], whole[:, LIMIT], whole[:, REASON], whole[:, MOVES] = 0, left, self.end, 0
        self._iterate(x, left, callback)
        self._lookout.send(0)
        words = self._lookout.received(0).view(np.int64)
        judge.end[:] = words[:, REASON]
        judge.iterations += words[:, ITERATIONS]

    def _iterate(self, x: Any, left: int, callback: Callable[[Any], Any] | None) -> None:
        """Steps until no column goes on, `left` at most."""
        if callback is not None:
            for number in range(left):
                self.launch(x, number)
                callback(x)
                self._lookout.send(0)
                if not _go_on(self._lookout.received(0)):
                    return
            return
        steps = count()

        def step() -> None:
            self.launch(x, next(steps))

        in_batches(step, left, can_be_captured(self.matrix, self.M, (IDENTITY, DIAGONAL)), self._lookout, _go_on)


def _go_on(words: np.ndarray) -> bool:
    return bool((words.view(np.int64)[:, REASON] == RUNNING).any())


def in_batches(
    step: Callable[[], None], most: int, is_graph: bool, lookout: Lookout, go_on: Callable[[np.ndarray], bool]
) -> None:
    """Launch steps, at least `most` of them, in batches; end where what `lookout` has received says so.

    Batches are launched as a graph where they can be captured, but for the first: it compiles and prepares what no
    capture can.
    """
    graph = None
    for number in range(-(-most // BATCH)):
        if is_graph and number:
            if graph is None:
                graph = captured(lambda: _repeat(step))
            graph.launch(cupy.cuda.get_current_stream())
        else:
            _repeat(step)
        lookout.send(number % 2)
        if number and not go_on(lookout.received((number - 1) % 2)):
            return


def _repeat(step: Callable[[], None]) -> None:
    for _ in range(BATCH):
        step()
