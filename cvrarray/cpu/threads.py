"""Ranges of tiles (chunks, bins, rows) over a few threads that all calls of the process share.

The kernels release the GIL, so plain Python threads run them side by side. Numba's own ``parallel=True`` is not used:
it compiles for seconds, its default layer aborts when two threads call it at once (Dask does), and its OpenMP layer
does not survive a fork.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

SMALL = 1 << 16  #: work (stored slots, nonzeros) below which waking another thread costs more than it saves
RANGES = 4  #: ranges a thread, so that one that is held up leaves its share to the others


def count() -> int:
    """Threads a call may use: ``CVRARRAY_NUM_THREADS``, else the CPUs that this process may run on.

    Raises
    ------
    ValueError
        ``CVRARRAY_NUM_THREADS`` is not a whole number from 1.
    """
    wanted = os.environ.get("CVRARRAY_NUM_THREADS", "").strip()
    if not wanted:
        return _cpus()
    if not wanted.isdecimal() or int(wanted) == 0:
        raise ValueError(f"CVRARRAY_NUM_THREADS must be a whole number from 1; got {wanted!r}. Unset it to use every CPU")
    return int(wanted)


def run(function: Callable, work: np.ndarray, *args, unit: int = 1) -> None:
    """``prepare(function, work, unit)(*args)``, for what is called once."""
    prepare(function, work, unit)(*args)


def prepare(function: Callable, work: np.ndarray, unit: int = 1) -> Callable[..., None]:
    """``call(*args)``, which calls ``function(first, last, *args)`` on ranges that together cover all tiles, on some threads.

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
    splits = cache(partial(split, work))  # for each number of ranges

    def call(*args) -> None:
        n_threads = count()
        if n_threads == 1:
            function(0, n_tiles, *args)
            return
        n_ranges = min(RANGES * n_threads, most_ranges)
        bounds = splits(n_ranges)
        next_range = itertools.count()

        def take_ranges() -> None:
            while (r := next(next_range)) < n_ranges:
                function(bounds[r], bounds[r + 1], *args)

        n_helpers = min(n_threads, n_ranges) - 1
        pool = _pool(n_helpers)
        helpers = [pool.submit(take_ranges) for _ in range(n_helpers)]
        try:
            take_ranges()
        finally:
            for helper in helpers:
                if not helper.cancel():
                    helper.result()

    return call


def split(work: np.ndarray, n_ranges: int) -> list[int]:
    """First tile of each of `n_ranges` ranges, and the number of tiles: cut next to each equal share of the work."""
    total = int(work[-1] - work[0])
    shares = [int(work[0]) + total * r // n_ranges for r in range(1, n_ranges)]
    return [0, *np.searchsorted(work, shares).tolist(), len(work) - 1]


_pools: list[tuple[int, ThreadPoolExecutor]] = []  # the one pool and its size, once there is one


def _pool(n_workers: int) -> ThreadPoolExecutor:
    """The pool, of at least so many threads. A smaller one makes room: its threads end when no call has it any more."""
    if not _pools or _pools[-1][0] < n_workers:
        _pools[:] = [(n_workers, ThreadPoolExecutor(n_workers, thread_name_prefix="cvrarray"))]
    return _pools[-1][1]


@cache
def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # a forked child has the pool's object and none of its threads
    os.register_at_fork(after_in_child=_pools.clear)
