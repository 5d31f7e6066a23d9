"""Ranges of tiles (chunks, bins, rows) over a few threads that all calls of the process share.

The kernels release the GIL, so plain Python threads run them side by side. Numba's own ``parallel=True`` is not used:
it compiles for seconds, its default layer aborts when two threads call it at once (Dask does), and its OpenMP layer
does not survive a fork.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from cvrarray.core.threads import get_num_threads, register_with_threadpoolctl
from cvrarray.core.timing import Faster
from cvrarray.cpu.runtime.spin import spin_wait

SMALL = 1 << 16  #: least work (stored slots, nonzeros) of a range: less costs another thread more than it saves
#: Ranges of so much work from which others help with a call that is made once: by default, and where it does little with
#: each entry. Helpers that sleep take up to 100 us to wake, and find nothing in their caches.
FEW, QUICK = 2, 16
LONG = 1 << 21  #: work of a call that always has helpers
#: Calls with helpers, and without, that tell how fast a way is: helpers wake during the first two or three.
RECENT = (9, 3)
SPIN_READS = 200_000  #: reads, of about 1 ns each, before a waiting thread goes to sleep
LEAVE_READS = 20_000  #: reads until a thread that has signalled another has left the interpreter
RANGES = 4  #: ranges a thread, so that a thread that is delayed leaves its share to the others
ALONE = 1  #: the way of a short call without helpers; 0 is the way with helpers

count = get_num_threads  #: threads a call may use


def run(function: Callable, work: np.ndarray, *args, unit: int = 1, least: int = FEW) -> None:
    """``prepare(function, work, unit)(*args)``, for what is called once; alone where there are not `least` ranges of work."""
    if _is_short((work.item(-1) - work.item(0)) * unit, least):  # most conversions are small: no time to prepare
        function(0, len(work) - 1, *args)
    else:
        prepare(function, work, unit)(*args)


def run_groups(function: Callable, work: np.ndarray, size: int, *args) -> None:
    """:func:`run`, for QUICK work, with groups of `size` tiles of `work` as tiles, the last of which may be smaller."""
    n_groups = -(-(len(work) - 1) // size)
    if _is_short(work.item(-1) - work.item(0), QUICK):
        function(0, n_groups, *args)
    else:
        prepare(function, work[np.minimum(np.arange(n_groups + 1) * size, len(work) - 1)])(*args)


def _is_short(work: int, least: int) -> bool:
    """Whether there are not `least` ranges of work. A wrong number of threads is told of as soon as there are FEW."""
    return work < FEW * SMALL or (work < least * SMALL and count() > 0)


def prepare(function: Callable, work: np.ndarray, unit: int = 1) -> Callable[..., None]:
    """``call(*args)``, which calls ``function(first, last, *args)`` on ranges that cover all tiles, on some threads.

    Parameters
    ----------
    function
        Compiled with ``nogil=True``. What it writes for a tile must not depend on the range that the tile is in:
        then the result has the same bits whatever the number of threads.
    work : (n_tiles + 1,) integers, not decreasing
        Work before each tile. Ranges get nearly equal shares of it.
    unit
        Slots or nonzeros that one of `work` stands for.

    Notes
    -----
    The caller works too, and waits only for what another thread has begun: calls from many threads at once (Dask) do
    not wait for one another's queues.
    """
    n_tiles = len(work) - 1
    most_ranges = min(n_tiles, int(work[-1] - work[0]) * unit // SMALL)
    if most_ranges < 2:
        return partial(function, 0, n_tiles)
    is_long = int(work[-1] - work[0]) * unit >= LONG
    choices: dict[int, Faster] = {}  # for each number of threads

    @cache
    def bounds(n_threads: int) -> list[int]:
        n_ranges = min(RANGES * n_threads, most_ranges)
        return split(work, n_ranges - n_ranges % n_threads if n_ranges > n_threads else n_ranges)  # as many for each

    def call(*args) -> None:
        n_threads = count()
        if n_threads == 1:
            function(0, n_tiles, *args)
        elif is_long:
            _together(function, n_threads, bounds(n_threads), args)
        else:
            choice = choices.get(n_threads) or choices.setdefault(n_threads, helpers_or_alone())
            way = choice.choose()
            start = time.perf_counter()
            if way == ALONE:
                function(0, n_tiles, *args)
            else:
                _together(function, n_threads, bounds(n_threads), args)
            choice.record(way, time.perf_counter() - start)

    return call


def split(work: np.ndarray, n_ranges: int) -> list[int]:
    """First tile of each of `n_ranges` ranges, and the number of tiles: cut next to each equal share of the work."""
    total = int(work[-1] - work[0])
    shares = [int(work[0]) + total * r // n_ranges for r in range(1, n_ranges)]
    return [0, *np.searchsorted(work, shares).tolist(), len(work) - 1]


def _together(function: Callable, n_threads: int, bounds: list[int], args: tuple) -> None:
    """Call ``function(first, last, *args)`` on the ranges between `bounds`, on helpers and the caller."""
    n_ranges = len(bounds) - 1
    next_range = itertools.count()

    def take_ranges() -> None:
        while (r := next(next_range)) < n_ranges:
            function(bounds[r], bounds[r + 1], *args)

    helpers = [_Task(take_ranges) for _ in range(min(n_threads, n_ranges) - 1)]
    try:
        try:  # an interrupt while tasks are given leaves some that run
            _pool(len(helpers)).give(helpers)
            take_ranges()
        finally:
            _finish(helpers)
    except BaseException:  # an interrupt may come in "finally", before there is anything that waits
        _finish(helpers)
        raise


def _finish(helpers: list[_Task]) -> None:
    """Wait for all helpers, though one fails or control-C is pressed: whoever goes on may use the arrays that they write."""
    errors: list[BaseException] = []
    while True:  # again after an interrupt: a task that is finished is so at once
        try:
            for helper in helpers:
                helper.finish()
            errors += [helper.error for helper in helpers if helper.error is not None]
            break
        except KeyboardInterrupt as error:
            errors.append(error)
    if errors:
        raise errors[0]


def helpers_or_alone() -> Faster:
    """Whether short calls are faster with helpers, who may have no CPU to themselves, or without: both are tried."""
    return Faster(RECENT)


class _Task:
    """A call for a helper: run once, by whoever claims it first."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.owner: dict[str, str] = {}  # who has claimed it
        self.done = threading.Lock()
        self.done.acquire()
        self.flag = np.zeros(1, np.int64)  # 1 when done, for the caller that spins
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim("helper"):
            return
        try:
            self.function()
        except BaseException as error:
            self.error = error
        self.flag[0] = 1
        self.done.release()

    def take_back(self) -> bool:
        """Whether no helper has begun it, nor will."""
        return self._claim("caller")

    def finish(self) -> None:
        """Take the task back where no helper has begun it, else wait until it is done. May be called again."""
        if self.take_back():
            return
        spin_wait(self.flag, 0, SPIN_READS, LEAVE_READS)
        if not self.flag[0]:
            with self.done:  # which lets the next call in too
                pass

    def _claim(self, who: str) -> bool:
        return self.owner.setdefault("is", who) == who  # one step for all threads


class Loan:
    """Helpers that each call one of `functions` when they are free: what is done must not need any of them."""

    def __init__(self, functions: list[Callable[[], None]]) -> None:
        self._tasks = [_Task(function) for function in functions]
        _pool(len(functions)).give(self._tasks)

    @property
    def is_over(self) -> bool:
        """Whether all calls have returned."""
        return all(task.flag[0] for task in self._tasks)

    def take_back(self) -> None:
        """Take the calls back that no helper has begun."""
        for task in self._tasks:
            task.take_back()


class _Pool:
    """Threads that do tasks. After each task they spin for a while, in case another comes, before they sleep.

    Waking a sleeping thread takes the system 20 to over 100 us, as long as many products; products come in sequences.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.given = np.zeros(1, np.int64)  # changes when tasks are given
        self.n_started = 0
        for k in range(size):
            thread = threading.Thread(target=_serve, args=(self.tasks, self.given), name=f"cvrarray_{k}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit of processes, as containers have: callers take back what nobody begins
                warnings.warn(
                    f"only {k} of {size} threads could be started ({error}): the calling thread does their work. Raise the"
                    " limit of processes, or call set_num_threads(1)",
                    RuntimeWarning,
                    stacklevel=2,
                )
                break
            self.n_started = k + 1

    def give(self, tasks: list[_Task]) -> None:
        for task in tasks if self.n_started else ():  # nobody would ever take them
            self.tasks.put(task)
        self.given[0] += 1

    def __del__(self) -> None:
        for _ in range(self.size):
            self.tasks.put(None)


def _serve(tasks: queue.SimpleQueue[_Task | None], given: np.ndarray) -> None:
    while True:
        seen = int(given[0])
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            if spin_wait(given, seen, SPIN_READS, LEAVE_READS):
                continue
            task = tasks.get()
        if task is None:
            return
        task.run()
        del task  # and with it the call's arrays


_pools: list[_Pool] = []  # the one pool, once there is one


def _pool(size: int) -> _Pool:
    """The pool, of at least so many threads. A smaller one makes room: its threads end when no call has it any more."""
    if not _pools or _pools[-1].size < size:
        _pools[:] = [_Pool(size)]
    return _pools[-1]


if hasattr(os, "register_at_fork"):  # a forked child has the pool's object and none of its threads
    os.register_at_fork(after_in_child=_pools.clear)

register_with_threadpoolctl()
