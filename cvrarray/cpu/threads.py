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
from functools import cache

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
    """Call ``function(first, last, *args)`` on ranges that together cover all tiles, on several threads.

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
    n_ranges = min(RANGES * count(), n_tiles, int(work[-1] - work[0]) * unit // SMALL)
    if n_ranges < 2:
        function(0, n_tiles, *args)
        return
    bounds = split(work, n_ranges)
    next_range = itertools.count()

    def take_ranges() -> None:
        while (r := next(next_range)) < n_ranges:
            function(bounds[r], bounds[r + 1], *args)

    n_helpers = min(count(), n_ranges) - 1
    helpers = [_pool(n_helpers).submit(take_ranges) for _ in range(n_helpers)]
    try:
        take_ranges()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()


def split(work: np.ndarray, n_ranges: int) -> list[int]:
    """First tile of each of `n_ranges` ranges, and the number of tiles: cut next to each equal share of the work."""
    total = int(work[-1] - work[0])
    shares = [int(work[0]) + total * r // n_ranges for r in range(1, n_ranges)]
    return [0, *np.searchsorted(work, shares).tolist(), len(work) - 1]


@cache
def _pool(n_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_workers, thread_name_prefix="cvrarray")


@cache
def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # a forked child has the pool's object and none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
