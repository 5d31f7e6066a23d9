"""Methods on a GPU whose steps are a few kernels: batches of steps, of which the device decides who takes part.

What a method does is written in ``kernels/<method>.cu``; how it begins is the text that a CPU runs too. Batches are CUDA
graphs where the matrix and the preconditioner can be captured. The host looks at the columns one batch late. Steps after
the end leave vectors as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import cupy
import numpy as np

from cvrarray.gpu.launches import NULL
from cvrarray.linalg.ends import RUNNING, Judge
from cvrarray.linalg.gpu.cg import captured
from cvrarray.linalg.gpu.layout import Layout
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, IDENTITY, Lookout, can_be_captured, preconditioner_kind
from cvrarray.linalg.iteration import Method
from cvrarray.linalg.system import System

#: Steps of a batch. Methods that take turns with two or three vectors have them back in their places after it.
BATCH = 6
#: Where the struct Course of ``kernels/methods.cuh`` is in a column's words.
NORM, VERIFY_AT, ITERATIONS, LIMIT, REASON, MOVES = range(-6, 0)
SUMS = 3  # of a column in a kernel, at most


class Steps(Method):
    """A method whose :meth:`launch` is a step on the device. A subclass fills the columns' scalars in :meth:`start`."""

    #: Words of 8 bytes of a column's state.
    words: ClassVar[int]

    def __init__(self, system: System) -> None:
        super().__init__(system)
        preconditioner, dtype = system.preconditioner, system.dtype
        kind = preconditioner_kind(preconditioner)
        self.kind = GIVEN if kind == BLOCKS else kind
        self.inverse: Any = NULL
        if self.kind == DIAGONAL:
            self.inverse = cupy.ascontiguousarray(preconditioner.inverse.astype(dtype))
        self.layout = Layout.of(system.n, self.v.columns)
        self.partials = self.layout.partials(SUMS)
        self.columns = cupy.zeros((self.v.columns, self.words))
        self._lookout = Lookout(self.columns)

    def launch(self, x: Any, number: int) -> None:
        """Launch step `number`, counted from 0, which updates x."""
        raise NotImplementedError

    def _cycle(self, x: Any, verify_at: Any, judge: Judge, callback: Callable[[Any], Any] | None) -> None:
        """See :class:`Method`."""
        self.end = self.v.load(judge.end)
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
