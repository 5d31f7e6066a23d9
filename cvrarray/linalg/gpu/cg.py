"""Conjugate gradients on the GPU: the loop of :mod:`cvrarray.linalg.system`'s engine.

The device decides when a column ends (``kernels/cg.cuh``), and the host reads its decision one batch of iterations
late. A batch is one launch: of a CUDA graph of products and of the kernels in ``kernels/cg.cu``, or of one kernel that
does all of it (:mod:`.persistent`). Iterations that come after the end leave everything as it is.

Passes over vectors in an iteration with a diagonal preconditioner, beside the product's own two: in a graph 8 to 10 in
one kernel, whose blocks wait for each other's sums (:mod:`.advance`), or 12 in three, where that cannot be; in one
kernel of all, 8, most of them in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import cupy
import numpy as np

from cvrarray.array.format import FormatArray
from cvrarray.core.tables import BBCSRTables
from cvrarray.gpu.captures import CAPTURES, synchronize
from cvrarray.gpu.compiler import Kernel
from cvrarray.gpu.launches import NULL
from cvrarray.linalg import solution
from cvrarray.linalg.ends import ENDS, RUNNING, STAGNATION
from cvrarray.linalg.gpu import persistent
from cvrarray.linalg.gpu.advance import advance
from cvrarray.linalg.gpu.layout import VECTORS, Layout
from cvrarray.linalg.gpu.state import BLOCKS, DIAGONAL, GIVEN, KINDS, State, Words, can_be_captured, preconditioner_kind
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System, apply

EACH_KIND = [(dtype, kind, is_stack) for (dtype,) in VECTORS for kind in KINDS for is_stack in (False, True)]
#: Dtypes of b and of the vectors, kind, and whether each column is a system of a stack.
RESIDUAL = Kernel(
    "cg",
    "cg_residual",
    [(dtype, dtype, kind, is_stack) for dtype, kind, is_stack in EACH_KIND]
    + [(wide, dtype, kind, False) for wide, dtype in (("float64", "float32"), ("complex128", "complex64")) for kind in KINDS],
)
EACH = [(dtype, is_stack) for (dtype,) in VECTORS for is_stack in (False, True)]
CURVATURE = Kernel("cg", "cg_curvature", EACH)
STEP = Kernel("cg", "cg_step", EACH_KIND)
WEIGH = Kernel("cg", "cg_weigh", EACH)
TURN = Kernel("cg", "cg_turn", EACH_KIND)

#: Below this part of the true residual that they began from, residuals that iterations update are rounding alone, by the
#: bytes of a real number. They are tested against the true one there, whatever the tolerance: they would go on to
#: numbers whose squares vanish.
ROUNDING = {4: 7.5e-9, 8: 1.4e-17}

#: Iterations of a batch: as many as take about BATCH_BYTES of traffic, so that the host keeps ahead of the device.
LEAST_BATCH, MOST_BATCH, BATCH_BYTES = 4, 32, 1 << 29

#: Arrays of more bytes take a graph, as one kernel of all leaves their gathers fewer warps (0.85 to 1.7 times its time); but
#: for BBCSR with narrow bins, whose gathers hit caches (0.6 to 0.99).
MOST_BYTES = 1 << 26

Callback = Callable[[Any], Any]


class Loop(Protocol):
    """A way to run iterations: of it there is a new one for each matrix."""

    batch: int  #: iterations of a launch, at most
    stops: bool  #: whether a launch ends where the columns do

    def launch(self, count: int) -> None:
        """Run a batch, of `count` iterations where the loop can stop anywhere, on the current stream."""


class Engine:
    """The loop for one system, with all memory that it takes: see :mod:`cvrarray.linalg.system`.

    One solve at a time. After ``iterations=N`` nothing waits for the device, and solves may be captured in a graph,
    which then needs the engine: its vectors are the engine's.
    """

    #: Whether directions go on where residuals are replaced by the true ones.
    turns = False

    def __init__(self, system: System, loop: str = "fastest") -> None:
        self.system, self._wanted = system, loop
        self._wide = np.dtype(system.dtype)  # of b
        self._part = ROUNDING[np.zeros(0, system.dtype).real.itemsize]
        with system.device.use():
            self._kind = preconditioner_kind(system.preconditioner)
            laid_out = Layout.of_stack if system.is_stack else Layout.of
            self._layout = laid_out(system.n, system.columns or 1, self._block_size())
            self._loop: Any = None
            self._state = State(self._layout, system.dtype, self._kind, self._block_size())
            self._advance: Any = None
            self.update(system.matrix, system.preconditioner)

    def _block_size(self) -> int:
        return int(self.system.preconditioner.block_size) if self._kind == BLOCKS else 1

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """Take another matrix of the same shape, and the preconditioner for it. Memory stays; a graph is captured again,
        when it is launched.
        """
        with self.system.device.use():
            synchronize()  # what is replaced may be freed
            self.system = replace(self.system, matrix=matrix, preconditioner=preconditioner)
            self._matrix, self._has_steps = matrix, False
            if self._kind in (DIAGONAL, BLOCKS):
                self._state.set_inverse(preconditioner.inverse)
            self._prepare()
            self._loop = self._fastest()
            self._replays = Replays()
            synchronize()

    def _prepare(self) -> None:
        """Compile what is to be launched, and prepare products: none of it can be done in a capture."""
        self._residual = RESIDUAL(self._wide, self.system.dtype, self._kind, self.system.is_stack)
        self._multiply(self._state.p, self._state.q)
        if self._kind == GIVEN:
            self._precondition()

    def _prepare_steps(self) -> None:
        """The same for :meth:`step`, which a loop in one kernel does without."""
        if self._has_steps:
            return
        if self._advance is None and not self.system.is_stack:
            self._advance = advance(self._state, self._layout, self._kind)
        if self._advance is None:
            for kernel in (STEP, TURN):
                kernel(self.system.dtype, self._kind, self.system.is_stack)
            for kernel in (CURVATURE, WEIGH):
                kernel(self.system.dtype, self.system.is_stack)
        self._has_steps = True

    def _shaped(self, vector: cupy.ndarray) -> cupy.ndarray:
        shape = self.system.shape
        return vector.reshape(shape[::-1]).T if self.system.is_stack else vector.reshape(shape)

    def _multiply(self, x: cupy.ndarray, out: cupy.ndarray) -> None:
        multiply(self._matrix, self._shaped(x), self._shaped(out))

    def _precondition(self) -> None:
        apply(self.system.preconditioner, self._shaped(self._state.r), self._shaped(self._state.z))

    def run(self, b: Any, x: Any, tolerance: Any, limit: int, callback: Callback | None = None) -> Outcome:
        """Solve; x holds the start and receives the solution. `callback(x)` is called after each iteration."""
        with self.system.device.use():
            state = self._state
            if tolerance is None:
                count = limit if self.system.iterations is None else self.system.iterations
                state.begin(None, count, self.system.history)
                return self._exactly(b, x, count, callback)
            refuse_capture()
            b = cupy.asfortranarray(b) if self.system.is_stack else b
            state.begin(tolerance, limit, self.system.history)
            _copy(x, state.x)
            return self._to_tolerance(b, x, limit, callback)

    def _exactly(self, b: Any, x: Any, count: int, callback: Callback | None) -> Outcome:
        in_a_graph = callback is None and not isinstance(self._loop, Launches) and count <= self._loop.batch
        key = (b.data.ptr, x.data.ptr, count, self._state.key()) if in_a_graph else None
        if not self._replays.launch(key, lambda: self._run(b, x, count, None)):
            self._run(b, x, count, callback)
        columns = self._layout.k
        return Outcome(
            np.full(columns, count), self._state.norms(), [solution.ITERATIONS] * columns, self._state.history_until(count)
        )

    def _run(self, b: Any, x: Any, count: int, callback: Callback | None) -> None:
        """`count` iterations, and nothing tested."""
        _copy(x, self._state.x)
        self._begin(b, first=True)
        if count:
            self._iterate(count, callback, looks=False)
        _copy(self._state.x, x)

    def _to_tolerance(self, b: Any, x: Any, limit: int, callback: Callback | None) -> Outcome:
        words, reasons = self._until_all_end(b, limit, callback)
        _copy(self._state.x, x)
        history = self._state.history_until(int(words.iterations.max(initial=0)))
        return Outcome(words.iterations, words.norm, reasons, history)

    def _until_all_end(
        self, b: Any, limit: int, callback: Callback | None, rounds: int = 1, is_watched: bool = False
    ) -> tuple[Words, list[str]]:
        """Iterate until the true residual says that every column has ended, and why.

        A round are iterations and a true residual. The first `rounds` are launched without a look at the device; also the
        first iterations, unless somebody watches: as a rule columns do not end before they begin.
        """
        state, n_done = self._state, -1
        self._begin(b, first=True)
        is_watched |= callback is not None or isinstance(self._loop, Launches)
        words = state.read() if is_watched else state.assumed()
        while (words.reason == RUNNING).any():
            running = words.iterations[words.reason == RUNNING]
            if words.iterations.sum() == n_done:  # no step is long enough to change anything
                break
            n_done = words.iterations.sum()
            for _ in range(rounds if self._loop.stops else 1):
                self._iterate(limit - int(running.min()), callback, looks=True)
                self._begin(b, first=False)
            rounds, words = 1, state.read()
        return words, [ENDS[STAGNATION if reason == RUNNING else reason] for reason in words.reason]

    def _begin(self, b: Any, first: bool) -> None:
        """``r = b - A x`` and ``p = M r`` for columns that begin, or that seem to be done; these go on if they are not."""
        self._multiply(self._state.x, self._state.q)
        self._judge(b, self._state.q, first, NULL)

    def _judge(self, b: Any, product: Any, first: bool, scale: Any) -> None:
        """Go on from ``r = (b - product) / scale``, or end."""
        state, layout = self._state, self._layout
        layout.launch(
            self._residual,
            (state.sums, state.columns, state.inverse, state.block_size, b, product, state.r, state.z, state.p, scale,
             state.tolerance, self._part, np.int64(state.limit), first, self.turns and not first, state.history),
            shared_mem=state.shared_mem,
        )  # fmt: skip
        if self._kind == GIVEN:
            self._precondition()
            layout.launch(
                WEIGH(self.system.dtype, self.system.is_stack), (state.sums, state.columns, state.r, state.z, state.p)
            )

    def _iterate(self, limit: int, callback: Callback | None, looks: bool) -> None:
        """Iterations until all columns have ended, `limit` at most; those of a launch, where it `stops`."""
        if callback is not None:
            for _ in range(limit):
                self.step()
                callback(self._shaped(self._state.x).copy())
                if looks and not (self._state.read().reason == RUNNING).any():
                    return
            return
        loop, done, number = self._loop, 0, 0
        while done < limit:
            count = min(loop.batch, limit - done)
            loop.launch(count)
            done += count
            if looks and loop.stops:
                return
            if looks:
                self._state.send(number % 2)
                if number and not (self._state.received((number - 1) % 2).reason == RUNNING).any():
                    return
                number += 1

    def _fastest(self) -> Loop:
        """One kernel where the system fits, else a graph; else launches, of operators that may do what no graph can
        hold. The two add in another order, so the structure decides and not a measurement.
        """
        if self._wanted == "persistent" or (self._wanted == "fastest" and not self._waits_for_gathers()):
            if self.system.is_stack:
                found = persistent.of_stack(self._matrix.stack, self._state, self._kind)
            else:
                found = persistent.loop(self._matrix, self._state, self._layout, self._kind, self._loop)
            if found is not None:
                return found
        self._prepare_steps()
        if self._wanted != "launches" and (self.system.is_stack or can_be_captured(self._matrix, self.system.preconditioner)):
            return Batches(self, self._default_batch())
        return Launches(self)

    def _waits_for_gathers(self) -> bool:
        if not isinstance(self._matrix, FormatArray) or self._matrix.nbytes <= MOST_BYTES:
            return False
        t = self._matrix._tables
        return not isinstance(t, BBCSRTables) or t.col_wide.size > t.col_narrow.size

    def _default_batch(self) -> int:
        traffic = self._matrix.nbytes + 12 * self._state.x.nbytes
        return max(LEAST_BATCH, min(MOST_BATCH, BATCH_BYTES // max(1, traffic)))

    def step(self) -> None:
        """The launches of one iteration."""
        self._prepare_steps()
        state, layout, dtype, is_stack = self._state, self._layout, self.system.dtype, self.system.is_stack
        self._multiply(state.p, state.q)
        if self._advance is not None:
            self._advance.launch()
            return
        layout.launch(CURVATURE(dtype, is_stack), (state.sums, state.columns, state.p, state.q))
        layout.launch(
            STEP(dtype, self._kind, is_stack),
            (state.sums, state.columns, state.inverse, state.block_size, state.q, state.r, state.z, state.history),
            shared_mem=state.shared_mem,
        )
        if self._kind == GIVEN:
            self._precondition()
            layout.launch(WEIGH(dtype, is_stack), (state.sums, state.columns, state.r, state.z, state.p))
        layout.launch(TURN(dtype, self._kind, is_stack), (state.columns, state.inverse, state.r, state.z, state.x, state.p))


def _copy(source: cupy.ndarray, to: cupy.ndarray) -> None:
    """Of contiguous vectors of one dtype."""
    to.data.copy_from_device_async(source.data, source.nbytes)


def refuse_capture() -> None:
    """Raise RuntimeError in a capture."""
    if cupy.cuda.get_current_stream().is_capturing():
        raise RuntimeError("A solve with a tolerance looks at the device, so it cannot be captured. Use CG(A, iterations=N)")


class Replays:
    """A solve as one graph: for the one that comes again and again, with the same arrays."""

    def __init__(self) -> None:
        self._last: Any = None
        self._kept: tuple[Any, Any] = (None, None)  # a key and its graph

    def launch(self, key: Any, solve: Callable[[], None]) -> bool:
        """Launch the graph of what ``solve()`` launches; False if there is none, as the last key was another one, or
        None.
        """
        stream = cupy.cuda.get_current_stream()
        if key is None or stream.is_capturing():
            return False
        if key != self._kept[0]:
            if key != self._last:
                self._last = key
                return False
            self._kept = key, captured(solve)
        self._kept[1].launch(stream)
        return True


def captured(work: Callable[[], None]) -> Any:
    """The graph of what ``work()`` launches."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with CAPTURES, stream:
        stream.begin_capture()
        try:
            work()
        finally:
            graph = stream.end_capture()
    return graph


class Launches:
    """Iterations launched one by one."""

    batch, stops = 1, False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def launch(self, count: int) -> None:
        """Run an iteration."""
        self._engine.step()


class Batches:
    """Iterations in a CUDA graph, captured when it is first launched; in a user's capture they are launched one by one."""

    stops = False

    def __init__(self, engine: Engine, batch: int) -> None:
        self.batch, self._engine, self._graph = batch, engine, None
        self._state_key: Any = None

    def launch(self, count: int) -> None:
        """Run `count` iterations; after less than a batch the device has reached its limit, so the rest does nothing."""
        engine, stream = self._engine, cupy.cuda.get_current_stream()
        if stream.is_capturing():
            for _ in range(count):
                engine.step()
            return
        if self._graph is None or self._state_key != engine._state.key():
            self._capture()
        self._graph.launch(stream)

    def _capture(self) -> None:
        engine = self._engine
        self._graph = captured(lambda: [engine.step() for _ in range(self.batch)])
        self._state_key = engine._state.key()
