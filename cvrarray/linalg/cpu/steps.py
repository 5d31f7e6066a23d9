"""Methods on a CPU whose steps are few passes over vectors, for one right-hand side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cvrarray.linalg.cpu.vectors import Blocks, reals, total, version_of
from cvrarray.linalg.ends import A_NAN, RUNNING, VERIFY, Judge
from cvrarray.linalg.iteration import Method
from cvrarray.linalg.system import System


class Steps(Method):
    """A method whose :meth:`step` calls kernels of this package; numbers are plain ones.

    How a method begins, and what follows from its end, is the method's own text.
    """

    inverse: np.ndarray  # of a diagonal preconditioner, which kernels apply, by real numbers; else empty
    is_separate: bool  # whether M is an operator

    def __init__(self, system: System) -> None:
        super().__init__(system)
        like = reals(self.r)
        diagonal = getattr(system.preconditioner, "inverse", None)
        is_diagonal = diagonal is not None and diagonal.ndim == 1 and diagonal.dtype.kind != "c"
        self.is_separate = system.preconditioner is not None and not is_diagonal
        self.inverse = like[:0]
        if is_diagonal:
            inverse = np.ascontiguousarray(diagonal, like.dtype)
            self.inverse = np.repeat(inverse, 2) if system.dtype.kind == "c" else inverse
        self._blocks = Blocks(len(like), None)
        self._sum = version_of(total, self._blocks.partial, 0)

    def prepare(self, kernel: str | Callable[..., Any], *args: Any) -> Callable[..., None]:
        """``call(*args)`` of a kernel with arguments like these and, after them, where it leaves the sums of blocks."""
        partial, call = self._blocks.partial, self._blocks.prepare(kernel, *args, self._blocks.partial)
        return lambda *args: call(*args, partial)

    def total(self, column: int) -> float:
        """A sum that the last kernel has left."""
        partial = self._blocks.partial
        return float(partial.item(0, column) if len(partial) == 1 else self._sum(partial, column))

    def stop(self, condition: Any, end: int) -> None:
        """See :class:`Method`."""
        if condition and self.active:
            self.end, self.active = end, False

    def end_here(self, end: int) -> float:
        """End; vectors stay as they are."""
        self.stop(True, end)
        return float(self.v.norm(self.r))

    def _cycle(self, x: Any, verify_at: Any, judge: Judge, callback: Callable[[Any], Any] | None) -> None:
        """See :class:`Method`: the same for plain numbers."""
        self.end, self.active = RUNNING, True
        verify_at = float(verify_at)
        self.start()
        for _ in range(judge.limit - int(judge.iterations[0])):
            if not self.active:
                break
            judge.iterations[0] += 1
            norm = self.step(x)
            self.keep(x, np.float64(norm))
            if not math.isfinite(norm):
                self.stop(True, A_NAN)
            elif norm <= verify_at:
                self.stop(True, VERIFY)
            if self.active:
                self.settle()
            if callback is not None:
                callback(x)
        judge.end[0] = self.end
