"""Conjugate gradients on the CPU: the product, and three passes over vectors an iteration, in BBCSR two.

There the thread that has computed some rows of ``q = A p`` adds up their part of ``p @ q`` at once.

Hestenes and Stiefel's recurrences (J. Res. NBS 49, 1952), preconditioned. The update of x waits for that of p, which
reads the same vector; a diagonal preconditioner is applied inside the passes. Factors and sums are arrays of one entry
a column; a vector is one column.

An iteration is a table of steps (:mod:`cvrarray.cpu.runtime.team`), which one compiled loop does for all formats and
dtypes. Python is between them only where the product or the preconditioner is a call of Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cvrarray.bbcsr import BBCSRArray
from cvrarray.core.tables import WARP
from cvrarray.cpu import bbcsr, cvr
from cvrarray.cpu.runtime import compiler, threads
from cvrarray.cpu.runtime.team import ROW, SMALL, STEP, WHAT, Steps, Team, Work, lead
from cvrarray.cvr import CVRArray
from cvrarray.linalg.cpu import vectors
from cvrarray.linalg.ends import (
    A_NAN,
    COUNTED,
    M_NAN,
    M_NOT_DEFINITE,
    M_SINGULAR,
    NOT_DEFINITE,
    RUNNING,
    VERIFY,
    Judge,
)
from cvrarray.linalg.operators import multiply
from cvrarray.linalg.solution import Outcome
from cvrarray.linalg.system import System, apply

#: Rows of an iteration's table that compute numbers of the columns, in the order in which they come.
FACTORS, NORMS, RATIOS = range(3)
STOPPED = -1
VECTORS = [np.dtype(name) for name in ("float32", "float64", "complex64", "complex128")]


class State(NamedTuple):
    """What the scalar kernels know of each column. A complex column is two real ones for the vectors' kernels."""

    end: np.ndarray  # (columns,) int64
    iterations: np.ndarray  # (columns,) int64
    verify_at: np.ndarray  # (columns,): the updated residual's norm at which the true one is computed
    square: np.ndarray  # (columns,): r @ r
    weighted: np.ndarray  # (columns,): r @ M @ r
    factor: np.ndarray  # (columns,) or (2 columns,): of q in r and of p in x; 0 where a column has ended
    ratio: np.ndarray  # the same: of p in the new p
    tests: np.ndarray  # (1,) bool: whether ends are looked for
    vanished: np.ndarray  # (columns,): where none are, r @ r at which a column is done


class Part(NamedTuple):
    """Rows of an iteration's table that compiled code does without Python between them."""

    begin: int
    end: int
    team: Team


class Rounds(NamedTuple):
    """The table of an iteration's steps, and the parts of it that compiled code does at once. It is made whole: a table
    has addresses of what its own steps keep.
    """

    tables: Any  # the matrix's, as they were
    steps: Steps
    table: np.ndarray
    parts: list[Callable[[], Any] | Part]
    turn: Work  # its first p is to be x
    last: Work  # its second p is to be x
    cycles: Callable[..., int]


class Engine:
    """The loop for one system, with all memory that it takes: see :mod:`cvrarray.linalg.system`."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.p, self.q, self.r = (vectors.empty(system.shape, system.dtype) for _ in range(3))
        self.z = self.r
        self._prepare()
        self.update(system.matrix, system.preconditioner)

    def _prepare(self) -> None:
        system = self.system
        p, q, r = map(vectors.reals, (self.p, self.q, self.r))
        columns = 1 if system.columns is None else system.columns
        wide = columns if system.columns is None else r.shape[1]
        self.state = State(
            *(np.zeros(columns, np.int64) for _ in range(2)),
            *(np.zeros(columns) for _ in range(3)),
            *(np.zeros(wide) for _ in range(2)),
            np.array([True]),
            np.zeros(columns),
        )
        blocks = vectors.Blocks(len(r), None if system.columns is None else wide)
        self.partial = blocks.partial
        self._blocks = blocks
        self._dot = blocks.prepare("dot", p, q, self.partial)
        self._residual = blocks.prepare("residual", q, r, self.partial)

    def _prepared_rounds(self) -> Rounds:
        state, blocks, sums, inverse = self.state, self._blocks, self.partial, self.inverse
        p, q, r, z = map(vectors.reals, (self.p, self.q, self.r, self.z))
        tables = getattr(self.system.matrix, "_tables", None)
        steps, parts = Steps(), list[Callable[[], Any] | Part]()
        self._add_product(steps, parts, tables)
        steps.mark(FACTORS)
        steps.add((blocks.work("descend", state.factor, q, r, inverse, sums), None))
        steps.mark(NORMS)
        if self.is_separate:
            self._add_preconditioner(steps, parts)
            steps.add((blocks.work("dot", r, z, sums), None))
        steps.mark(RATIOS)
        turn, last = blocks.work("turn", state.factor, state.ratio, p, p, z, inverse), blocks.work("move", state.factor, p, p)
        steps.add((turn, None))
        steps.add((last, None))
        _close(steps, parts)
        table = steps.table()
        cycles = vectors.version_of(_cycles, table[0], table, 0, 0, 0, sums, state, 1)
        return Rounds(tables, steps, table, parts, turn, last, cycles)

    def _add_product(self, steps: Steps, parts: list[Callable[[], Any] | Part], tables: Any) -> None:
        """``q = A p``, and the blocks' sums of ``p @ q``."""
        matrix = self.system.matrix
        works, dot = (
            self._work_of_product(tables),
            self._blocks.work("dot", *map(vectors.reals, (self.p, self.q)), self.partial),
        )
        if works is None:
            parts.append(lambda: multiply(matrix, self.p, self.q))
            steps.add((dot, None))
            return
        *others, last = works
        for work in others:
            steps.add((work, None))
        rows = self._blocks.rows // (2 if self.system.dtype.kind == "c" and self.system.columns is None else 1)
        if isinstance(matrix, BBCSRArray) and rows % WARP == 0:
            bins = np.minimum(np.arange(len(self.partial) + 1) * (rows // WARP), len(last.work) - 1)
            steps.add((last, bins), (dot, None))
        else:
            steps.add((last, None))
            steps.add((dot, None))

    def _work_of_product(self, tables: Any) -> list[Work] | None:
        """None for a product that is a call of Python's."""
        matrix, dtype = self.system.matrix, self.system.dtype
        if not isinstance(matrix, BBCSRArray | CVRArray) or matrix.dtype not in VECTORS or not self.p.size:
            return None
        if np.result_type(matrix.dtype, dtype) != dtype:
            return None
        if isinstance(matrix, BBCSRArray):
            return bbcsr.work_of_product(tables, self.p, self.q)
        return cvr.work_of_product(tables, self.p, self.q) if self.p.ndim == 1 else None

    def _add_preconditioner(self, steps: Steps, parts: list[Callable[[], Any] | Part]) -> None:
        """``z = M @ r``."""
        preconditioner = self.system.preconditioner
        works = preconditioner.work(self.r, self.z) if hasattr(preconditioner, "work") else None
        if works is None:
            _close(steps, parts)
            parts.append(lambda: apply(preconditioner, self.r, self.z))
            return
        for work in works:
            steps.add((work, None))

    def update(self, matrix: Any, preconditioner: Any) -> None:
        """Take another matrix of the same shape, and the preconditioner for it."""
        system = self.system = replace(self.system, matrix=matrix, preconditioner=preconditioner)
        real, inverse = vectors.reals(self.r), getattr(preconditioner, "inverse", None)
        self.is_diagonal = inverse is not None and inverse.ndim == 1 and inverse.dtype.kind != "c"
        self.is_separate = preconditioner is not None and not self.is_diagonal
        if not self.is_separate:
            self.z = self.r
        elif self.z is self.r:
            self.z = vectors.empty(system.shape, system.dtype)
        if self.is_diagonal:
            inverse = np.ascontiguousarray(inverse, real.dtype)
            self.inverse = np.repeat(inverse, 2) if system.columns is None and system.dtype.kind == "c" else inverse
        else:
            self.inverse = real[:0] if system.columns is None else real[:0, 0].copy()
        self._rounds = self._prepared_rounds()

    def run(self, b: np.ndarray, x: np.ndarray, tolerance: np.ndarray | None, limit: int, callback=None) -> Outcome:
        """Solve; x holds the start and receives the solution. `callback(x)` is called after each iteration."""
        state, system = self.state, self.system
        if getattr(system.matrix, "_tables", None) is not self._rounds.tables:  # with_values(out=A) made few values plain
            self._rounds = self._prepared_rounds()
        judge = Judge(len(state.end), tolerance, limit, (state.end, state.iterations))
        history: list[np.ndarray] = []
        state.tests[0] = tolerance is not None
        if tolerance is not None:
            self.r[...] = 0
            state.verify_at[:] = np.maximum(tolerance, self._true(b) * np.finfo(self.system.dtype).eps / 4)
        true = self._start(b, x)
        history.append(true)
        state.vanished[:] = self._vanished(true)
        while judge.judge(true):
            state.square[:] = true * true
            if self._turn_to_residual():
                self._iterate(x, limit, history, callback)
            if tolerance is None:
                state.end[state.end == RUNNING] = COUNTED
                state.iterations[:] = limit
                true = np.sqrt(state.square)
                history += [true] * (limit + 1 - len(history))
                break
            true = self._start(b, x)
        kept = np.array(history) if self.system.history else None
        return Outcome(state.iterations.copy(), true, judge.reasons(), kept)

    def _true(self, b: np.ndarray) -> np.ndarray:
        """``r = b - r``; the norms of its columns."""
        self._residual(vectors.reals(b), vectors.reals(self.r), self.partial)
        return np.sqrt(_column_sums(self.partial, self.state))

    def _start(self, b: np.ndarray, x: np.ndarray) -> np.ndarray:
        """``r = b - A @ x``, and its norms."""
        if x.any():
            multiply(self.system.matrix, x, self.r)
        else:
            self.r[...] = 0
        return self._true(b)

    def _vanished(self, true: np.ndarray) -> np.ndarray:
        """Squares of the norms at which a column that counts iterations is done: the rest of them would not change x.

        So far beyond convergence numbers of single precision are denormal, which makes an iteration several times as
        slow. In double precision the squares have become 0 before.
        """
        info = np.finfo(self.system.dtype)
        return np.minimum(float(info.tiny) / float(info.eps) ** 2, float(info.eps) ** 2 * true) ** 2

    def _turn_to_residual(self) -> int:
        """``p = M @ r``, the direction of a first iteration; the columns that go on."""
        apply(self.system.preconditioner, self.r, self.p)
        self._dot(vectors.reals(self.r), vectors.reals(self.p), self.partial)
        table = self._rounds.table
        (row,) = np.flatnonzero(table[:, WHAT] == RATIOS)
        return self._rounds.cycles(table[0], table, row, row + 1, 0, self.partial, self.state, 1)

    def _iterate(self, x: np.ndarray, limit: int, history: list[np.ndarray], callback=None) -> None:
        """Iterate until every column has ended, is to be verified, or has had `limit` iterations."""
        state, system, rounds = self.state, self.system, self._rounds
        rows, factor, ratio, _, *others = rounds.turn.args
        rounds.steps.replace(len(rounds.table) - 2, (rows, factor, ratio, vectors.reals(x), *others))
        rounds.steps.replace(len(rounds.table) - 1, (*rounds.last.args[:-1], vectors.reals(x)))
        left = limit - int(state.iterations.max(where=state.end == RUNNING, initial=0))
        first = rounds.parts[0]
        stays = len(rounds.parts) == 1 and callback is None  # helpers that stayed would be missed by calls of Python's
        for part in rounds.parts:
            if isinstance(part, Part):
                part.team.least = SMALL if stays else threads.FEW * threads.SMALL
        with first.team if stays and isinstance(first, Part) else nullcontext():
            while left:
                done, running = self._iterations(left if stays and not system.history else 1, stays)
                left -= done
                if running == STOPPED:
                    return
                if system.history:
                    history.append(np.sqrt(state.square))
                if callback is not None:
                    callback(x)
                if not running:
                    return

    def _iterations(self, most: int, stays: bool) -> tuple[int, int]:
        """Iterations, at most so many: how many, and what :func:`_cycles` returns."""
        at = len(self.state.factor) if self.is_diagonal else 0
        done, running, table = 1, 1, self._rounds.table
        for part in self._rounds.parts:
            if isinstance(part, Part):
                begin = part.begin if running else len(table) - 1
                with nullcontext() if stays else part.team:
                    args = part.team.memory, table, begin, part.end, at, self.partial, self.state
                    done, running = part.team.rounds(partial(self._rounds.cycles, *args), most)
                if running == STOPPED:
                    break
            elif running:
                part()
        return done, running


def _close(steps: Steps, parts: list[Callable[[], Any] | Part]) -> None:
    """The steps since the last call of Python's are a part."""
    begin = max((part.end for part in parts if isinstance(part, Part)), default=0)
    parts.append(Part(begin, len(steps), Team(steps.slots(begin, len(steps)))))


@compiler.kernel
def _sum(partial, first, width):
    """The sum of `width` columns of `partial`, block by block."""
    total = 0.0
    for block in range(len(partial)):
        for j in range(first, first + width):
            total += partial[block, j]
    return total


def _column_sums(partial: np.ndarray, state: State) -> np.ndarray:
    columns, width = len(state.end), len(state.factor) // max(len(state.end), 1)
    return np.array([_sum(partial, j * width, width) for j in range(columns)])


@compiler.kernel
def _cycles(memory, table, begin, end, at, partial, state, most):
    """Iterations, or parts of one, as the table's rows from `begin` to before `end` say; at most so many.

    How many columns go on; STOPPED where the last iteration ended before it changed anything. `at` is the column of
    `partial` at which the sums of ``r @ M @ r`` begin. The table's last row ends a loop: x takes its last step.
    """
    team, rows, final = memory.ctypes.data, table.ctypes.data, len(table) - 1
    running = 0 if begin == final else 1
    for _ in range(most):
        row = begin
        while row < end and (row < final or running == 0):
            what = table[row, WHAT]
            if what == STEP:
                lead(team, rows + 8 * ROW * row)
            elif what == FACTORS:
                if _factors(partial, state) == 0:
                    return STOPPED
            elif what == NORMS:
                running = _norms(partial, state)
                if running == 0:
                    row = final - 1
            else:
                running = _ratios(partial, at, state)
            row += 1
        if running == 0:
            break
    return running


@compiler.helper
def _factors(partial, state):
    """The step along p, ``r @ M @ r / (p @ A @ p)``; how many columns go on."""
    running = 0
    width = len(state.factor) // max(len(state.end), 1)
    for j in range(len(state.end)):
        factor = 0.0
        if state.end[j] == RUNNING:
            curvature = _sum(partial, j * width, width)
            if state.tests[0] and not np.isfinite(curvature):
                state.end[j] = A_NAN
            elif state.tests[0] and curvature <= 0:
                state.end[j] = NOT_DEFINITE
            else:
                factor = state.weighted[j] / curvature if curvature != 0 else 0.0
                running += 1
        for i in range(j * width, (j + 1) * width):
            state.factor[i] = factor
    return running


@compiler.helper
def _norms(partial, state):
    """``r @ r``, and whether the residual is small enough to be verified; how many columns go on."""
    running = 0
    width = len(state.factor) // max(len(state.end), 1)
    for j in range(len(state.end)):
        if state.end[j] == RUNNING:
            state.iterations[j] += 1
            square = _sum(partial, j * width, width)
            state.square[j] = square
            if state.tests[0] and not np.isfinite(square):
                state.end[j] = A_NAN
            elif state.tests[0] and np.sqrt(square) <= state.verify_at[j]:
                state.end[j] = VERIFY
            elif not state.tests[0] and square <= state.vanished[j]:
                state.end[j] = COUNTED
            else:
                running += 1
    return running


@compiler.helper
def _ratios(partial, at, state):
    """``r @ M @ r`` over what it was, from the sums that begin at column `at`; how many columns go on."""
    running = 0
    width = len(state.factor) // max(len(state.end), 1)
    for j in range(len(state.end)):
        ratio = 0.0
        if state.end[j] == RUNNING:
            weighted = _sum(partial, at + j * width, width)
            if state.tests[0] and not np.isfinite(weighted):
                state.end[j] = M_NAN
            elif state.tests[0] and weighted < 0:
                state.end[j] = M_NOT_DEFINITE
            elif state.tests[0] and weighted == 0:
                state.end[j] = M_SINGULAR
            else:
                ratio = weighted / state.weighted[j] if state.weighted[j] != 0 else 0.0
                running += 1
            state.weighted[j] = weighted
        for i in range(j * width, (j + 1) * width):
            state.ratio[i] = ratio
    return running
