"""The loop that methods share: a method makes steps, and here is decided who goes on, and why a column ended.

Here this is array code, in which a CPU solves. A GPU has a loop of its own (:mod:`.gpu.steps`). A column that has ended
is left as it is, for its factors are 0 from then on. A method's own residual is an update: the true one is computed before
success is said, and where the update lied the column starts again from the true one.

Where A is singular, or nearly, the factors of a step may have any size, and x overflows. So an iterate is kept whenever
its residual is a tenth of that of the one before, and a column that ends worse than it began ends with what was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .ends import A_NAN, BREAKDOWN, CONVERGED, M_NAN, M_NOT_DEFINITE, RUNNING, VERIFY, Judge
from .operators import multiply
from .solution import Outcome
from .system import System, apply

#: An iterate is kept whose residual is this part of that of the one before.
BETTER = 0.1


class Method:
    """A method with one step an iteration. A subclass defines :meth:`start` and :meth:`step`."""

    #: The vectors that a subclass works with: attributes of these names.
    works_with: ClassVar[tuple[str, ...]] = ()

    def __init__(self, system: System) -> None:
        self.system, self.matrix, self.M = system, system.matrix, system.preconditioner
        self.v = system.arithmetic()
        self.xp = self.v.xp
        self.r = self.v.empty()
        for name in self.works_with:
            setattr(self, name, self.v.zeros())
        self.active: Any = None
        self.end: Any = None
        self.kept: Any = None  # iterates, and the norms of their residuals
        self.best: Any = None

    def start(self) -> None:
        """Begin from the residual ``self.r``."""
        raise NotImplementedError

    def step(self, x: Any) -> Any:
        """One iteration, which updates x; the norms of the updated residual, (columns,) on the device."""
        raise NotImplementedError

    def keep(self, x: Any, norms: Any) -> None:
        """Keep the columns of x, whose residuals have these norms, that are much better than those that are kept."""
        better = norms < BETTER * self.best
        if better.any():
            better = better & self.v.is_finite(self.v.norm(x))
            self.xp.copyto(self.kept, x, where=better)
            self.best = self.v.where(better, norms, self.best)

    def settle(self) -> None:
        """End columns that have not converged in this step and cannot make another one."""

    def update(self, matrix: Any) -> None:
        """Take another matrix of the same shape."""
        self.matrix = matrix

    def times(self, x: Any, out: Any) -> Any:
        """``out = A @ x``."""
        return multiply(self.matrix, x, out)

    def precondition(self, r: Any, out: Any) -> Any:
        """``M @ r``: `r` itself without a preconditioner, else `out`."""
        return r if self.M is None else apply(self.M, r, out)

    def stop(self, condition: Any, end: int) -> None:
        """End the columns that go on and meet the condition."""
        now = self.active & condition
        self.end = self.v.where(now, end, self.end)
        self.active = self.active & ~now

    def where_active(self, a: Any) -> Any:
        """The scalar `a`, 0 for columns that have ended."""
        return self.v.where(self.active, a, 0.0)

    def ratio(self, a: Any, b: Any) -> Any:
        """``a / b`` for columns that go on, 0 where b is 0 and for the others."""
        usable = self.active & (b != 0)
        return self.v.where(usable, a / self.v.where(usable, b, 1.0), self.v.constant(0))

    def length(self, square: Any) -> Any:
        """The root of ``r @ M @ r``, which ends columns where M is at fault."""
        v = self.v
        self.stop(~v.is_finite(square), M_NAN)
        self.stop(square < 0, M_NOT_DEFINITE)
        return v.sqrt(v.where(square > 0, square, v.constant(0)))

    def run(self, b: Any, x: Any, tolerance: np.ndarray, limit: int, callback: Callable[[Any], Any] | None = None) -> Outcome:
        """Solve, as :mod:`cvrarray.linalg.system` says; `callback(x)` is called after each iteration."""
        judge = Judge(self.v.columns, tolerance, limit)
        with np.errstate(all="ignore"):
            small = self.v.host(self.v.norm(b)) * float(np.finfo(self.system.dtype).eps) / 4
            verify_at = self.v.load(np.maximum(small, tolerance))
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
        self.xp.copyto(x, self.kept, where=self.xp.asarray(lost))
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

    def _cycle(self, x: Any, verify_at: Any, judge: Judge, callback: Callable[[Any], Any] | None) -> None:
        """Iterate until no column goes on, or one has had all its iterations."""
        self.end = self.v.load(judge.end)
        self.active = self.end == RUNNING
        done = self.v.load(judge.iterations)
        left = judge.limit - int(judge.iterations[judge.end == RUNNING].max())
        self.start()
        for _ in range(left):
            was = self.active
            norms = self.step(x)
            done = done + was
            self.keep(x, norms)
            self.stop(~self.v.is_finite(norms), A_NAN)
            self.stop(norms <= verify_at, VERIFY)
            self.settle()
            if callback is not None:
                callback(x)
            if not self.active.any():
                break
        judge.end[:], judge.iterations[:] = self.v.host(self.end), self.v.host(done)
