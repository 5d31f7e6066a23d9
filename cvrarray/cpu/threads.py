"""Ranges of tiles (chunks, bins, rows) over a few threads that all calls of the process share.

The kernels release the GIL, so plain Python threads run them side by side. Numba's own ``parallel=True`` is not used:
it compiles for seconds, its default layer aborts when two threads call it at once (Dask does), and OpenMP does not
survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

SMALL = 1 << 16  #: work (stored slots, nonzeros) below which waking another thread costs more than it saves


def count() -> int:
    """Threads a call may use: ``CVRARRAY_NUM_THREADS``, else the CPUs that this process may run on.

    Raises
    ------
    ValueError
        ``CVRARRAY_NUM_THREADS`` is not a positive whole number.
    """
    wanted = os.environ.get("CVRARRAY_NUM_THREADS", "").strip()
    if wanted:
        if not wanted.isdecimal() or int(wanted) == 0:
            raise ValueError(
                f"CVRARRAY_NUM_THREADS must be a whole number from 1; got {wanted!r}. Unset it to use every CPU"
            )
        return int(wanted)
    return _cpus()


def run(function: Callable, offsets: np.ndarray, *args) -> None:
    """Call ``function(first, last, *args)`` on ranges that together cover all tiles, one range a thread.

    Parameters
    ----------
    function
        Compiled with ``nogil=True``. What it writes for a tile must not depend on the range that the tile is in:
        then the result has the same bits whatever the number of threads.
    offsets : (n_tiles + 1,) integers, not decreasing
        Work before each tile; ranges get nearly equal shares of it.

    Notes
    -----
    The caller works too, and takes back what no thread has begun: calls from many threads at once (Dask) never wait
    for one another's queue.
    """
    n_tiles = len(offsets) - 1
    n_ranges = min(count(), n_tiles) if offsets[-1] - offsets[0] >= SMALL else 1
    if n_ranges == 1 or n_tiles == 0:
        function(0, n_tiles, *args)
        return
    bounds = _bounds(offsets, n_ranges)
    pool = _pool(n_ranges - 1)
    others = [(pool.submit(function, first, last, *args), first, last) for first, last in bounds[1:]]
    function(*bounds[0], *args)
    for future, first, last in others:
        if future.cancel():
            function(first, last, *args)
        else:
            future.result()


def _bounds(offsets: np.ndarray, n_ranges: int) -> list[tuple[int, int]]:
    """`n_ranges` contiguous ranges of tiles, cut at the tile nearest below each equal share of the work."""
    total = int(offsets[-1] - offsets[0])
    shares = [int(offsets[0]) + total * t // n_ranges for t in range(1, n_ranges)]
    cuts = [0, *np.searchsorted(offsets, shares).tolist(), len(offsets) - 1]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


@cache
def _pool(n_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_workers, thread_name_prefix="cvrarray")


@cache
def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # a forked child has the pool's object and none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
