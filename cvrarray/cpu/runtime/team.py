"""A loop whose threads stay in compiled code from one step to the next.

``threads.prepare`` hands each call to helpers, which need the interpreter to take it: tens of microseconds, as much as
a product of a small matrix. Here helpers join once, and stay for many steps.

A *step* is one kernel, or two of which the second uses what the first has just written, over chunks of work. Each
thread has a share of the chunks, the same one in every step, so that its part of the vectors stays in its cache. A
thread that has done its share takes chunks of others', and nobody waits for a helper that has begun nothing: the loop
goes on at full speed on one thread where the system gives the other CPUs to somebody else.

What a kernel writes for a chunk must not depend on the other chunks of its step. Then results have the same bits
whatever the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.timing import Faster
from cvrarray.cpu.runtime import memory, native, threads
from cvrarray.cpu.runtime.compiler import compiled, helper, kernel
from cvrarray.cpu.runtime.native import call, call_with_few, fetch_add, number_at, publish, read

CHUNK = 1 << 14  #: least work (slots) of a chunk: a few microseconds
MOST_CHUNKS = 512  #: of a step: each costs its beginning and its end
SMALL = 1 << 15  #: least work of a round of steps that has helpers
LONG_ROUNDS = 5e-3  #: seconds; rounds of a loop that take this long together are one measurement
IDLE_READS = 200_000  #: reads, of about 1 ns each, before a helper that finds nothing to do leaves

#: Numbers of the table of steps: a row is a step, followed by what its one or two kernels are called with.
WHAT, CHUNKS, CALLS, HEAD = 0, 1, 2, 3
FUNCTION, ARGUMENTS, IS_SHORT, BOUNDS, CALL = 0, 1, 2, 3, 4
ROW = HEAD + 2 * CALL
MOST = (1 << 32) - 1
STEP = -1  #: WHAT a row is; a loop gives other numbers a meaning of its own

#: Places in the team's memory, each in a pair of cache lines of its own: whether the loop has ended; how many chunks of
#: the step are done; the step's row; how many shares there are; then the next chunk of each share, and its end.
LINE = 16
OVER, DONE, NOW, SHARES, FIRST = (LINE * k for k in range(5))


class Work(NamedTuple):
    """A kernel's call over ranges of what it works on: ``function(first, last, *args)``."""

    function: Callable  # a kernel, as it was defined
    args: tuple[Any, ...]
    work: np.ndarray  # (n + 1,) integers, not decreasing: work before each of n places
    unit: int = 1  # slots that one of `work` stands for

    @property
    def slots(self) -> int:
        """All of it."""
        return int(self.work[-1] - self.work[0]) * self.unit


class Keeper:
    """The base of an array that is to keep others, as it has their addresses."""

    def __init__(self, array: np.ndarray, kept: list[Any]) -> None:
        self._kept = array, kept
        self.__array_interface__ = array.__array_interface__


class Steps:
    """A table of steps, for compiled loops."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._slots: list[int] = []  # work of each row
        self._kept: list[Any] = []  # what the rows have addresses of
        self._arguments: dict[int, np.ndarray] = {}  # of a step's last kernel

    def add(self, *parts: tuple[Work, np.ndarray | None]) -> None:
        """A step: one kernel, or two on the same chunks.

        With each comes where chunks may be cut, in its own places; None: everywhere. Of two they are as many.
        """
        work, places = parts[0]
        before = work.work if places is None else work.work[places]
        n_chunks = max(1, min(len(before) - 1, work.slots // CHUNK, MOST_CHUNKS))
        cuts = np.unique(threads.split(before, n_chunks)) if n_chunks > 1 else np.array([0, len(before) - 1])
        calls = [self._call(one, cuts if its is None else its[cuts]) for one, its in parts]
        self._arguments[len(self._rows)] = self._kept[-1]
        numbers = [number for numbers in calls for number in numbers]
        self._append([STEP, len(cuts) - 1, len(parts), *numbers], sum(one.slots for one, _ in parts))

    def __len__(self) -> int:
        return len(self._rows)

    def replace(self, step: int, args: tuple[Any, ...]) -> None:
        """Other arguments, of the same types, for the one kernel of a step. They are not kept."""
        self._arguments[step][:] = native.packed(args)

    def mark(self, what: int) -> None:
        """A row that a loop does itself."""
        self._append([what], 0)

    def table(self) -> np.ndarray:
        """(n, ROW) int64. It keeps what it has addresses of."""
        return np.asarray(Keeper(np.array(self._rows, np.int64).reshape(-1, ROW), self._kept))

    def slots(self, begin: int, end: int) -> int:
        """The work of some rows."""
        return sum(self._slots[begin:end])

    def _append(self, row: list[int], slots: int) -> None:
        self._rows.append(row + [0] * (ROW - len(row)))
        self._slots.append(slots)

    def _call(self, work: Work, bounds: np.ndarray) -> list[int]:
        arguments, bounds = native.packed(work.args), np.ascontiguousarray(bounds, np.int64)
        self._kept += [work, bounds, arguments]
        at = native.address(work.function, 0, 0, *work.args)
        return [at, arguments.ctypes.data, int(len(arguments) == native.FEW), bounds.ctypes.data]


class Team:
    """The threads of a loop whose rounds have so much work; ``with team:`` around the loop.

    ``least`` is the work from which it has helpers: more where they leave after each round, and must be woken for the next.
    """

    def __init__(self, slots: int) -> None:
        self.slots, self.least = slots, SMALL
        self._choices: dict[int, Faster] = {}  # for each number of threads
        self._most_rounds = 1
        self._n_threads = 1
        self._loan: threads.Loan | None = None

    def __enter__(self) -> Team:
        self._n_threads = threads.count() if self.slots >= self.least else 1
        self.memory = memory.empty(FIRST + LINE * self._n_threads, np.int64)  # not the last loop's: its helpers may read it
        self.memory[:] = 0
        self.memory[SHARES] = 1
        return self

    def __exit__(self, *error: object) -> None:
        self.memory[OVER] = 1
        if self._loan is not None:
            self._loan.take_back()
            self._loan = None

    def rounds(self, call: Callable[[int], Any], most: int) -> tuple[int, Any]:
        """``call(n)``, which makes n rounds, at most `most`, with helpers or without, as is faster; n and its result."""
        n = min(most, self._most_rounds)
        way = self._way()
        self.memory[SHARES] = 1 if way == threads.ALONE else self._n_threads
        start = time.perf_counter()
        found = call(n)
        seconds = time.perf_counter() - start
        if seconds < LONG_ROUNDS and n == self._most_rounds:
            self._most_rounds *= 2
        if self._n_threads in self._choices:
            self._choices[self._n_threads].record(way, seconds / n)
        return n, found

    def _way(self) -> int:
        if self._n_threads == 1:
            return threads.ALONE
        way = 0
        if self.slots < threads.LONG:
            choice = self._choices.get(self._n_threads)
            if choice is None:
                choice = self._choices[self._n_threads] = threads.helpers_or_alone()
            way = choice.choose()
        if way != threads.ALONE and (self._loan is None or self._loan.is_over):
            join = compiled(_help, self.memory, 1)
            self._loan = threads.Loan([partial(join, self.memory, k) for k in range(1, self._n_threads)])
        return way


@helper
def _chunk(row, chunk):
    """A chunk of the step whose row is at the address `row`."""
    for k in range(number_at(row, CALLS)):
        at = row + 8 * (HEAD + k * CALL)
        bounds = number_at(at, BOUNDS)
        first, last = number_at(bounds, chunk), number_at(bounds, chunk + 1)
        if number_at(at, IS_SHORT):
            call_with_few(number_at(at, FUNCTION), first, last, number_at(at, ARGUMENTS))
        else:
            call(number_at(at, FUNCTION), first, last, number_at(at, ARGUMENTS))


@helper
def _do_chunks(team, mine):
    """Do the chunks that nobody has begun, those of the share `mine` first; how many.

    A share is one number: its next chunk, and in the upper half its end. Who adds 1 to it has the chunk, and whoever
    has a chunk keeps the step from ending, so the row that is read afterwards is the chunk's.
    """
    n_shares, done = read(team, SHARES), 0
    for k in range(n_shares):
        share = FIRST + LINE * ((mine + k) % n_shares)
        number = read(team, share)
        while (number & MOST) < number >> 32:
            number = fetch_add(team, share)
            if (number & MOST) >= number >> 32:
                break
            _chunk(read(team, NOW), number & MOST)
            fetch_add(team, DONE)
            done += 1
            number = read(team, share)
    return done


@helper
def lead(team, row):
    """Do the step whose row is at the address `row`, with the helpers that are there."""
    n_chunks, n_shares = number_at(row, CHUNKS), read(team, SHARES)
    if n_chunks == 1 or n_shares == 1:
        for chunk in range(n_chunks):
            _chunk(row, chunk)
        return
    publish(team, DONE, 0)
    publish(team, NOW, row)
    for k in range(n_shares):
        publish(team, FIRST + LINE * k, (n_chunks * (k + 1) // n_shares) << 32 | n_chunks * k // n_shares)
    _do_chunks(team, 0)
    while read(team, DONE) < n_chunks:
        pass


@kernel
def _help(memory, mine):
    """Take part in all steps until the loop is over, or nothing comes for a while."""
    team, idle = memory.ctypes.data, 0
    while idle < IDLE_READS and not read(team, OVER):
        idle = 0 if _do_chunks(team, mine) else idle + 1
