"""How many threads a call may use on a CPU: the public functions, the environment, containers, and threadpoolctl.

The threads themselves are in :mod:`cvrarray.cpu.runtime.threads`.
"""

from __future__ import annotations

import math
import operator
import os
from functools import cache
from pathlib import Path
from typing import SupportsIndex

#: Variables that are read at each call, the first that is set counts. joblib sets the second for its worker processes.
VARIABLES = ("CVRARRAY_NUM_THREADS", "NUMBA_NUM_THREADS")

#: Where Linux says how much CPU time a container may take: "max 100000", or microseconds of each period.
QUOTA = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None


def set_num_threads(n: SupportsIndex | None) -> None:
    """Set how many threads each later call of this process may use on a CPU.

    Results do not depend on it: the same product gives the same bits on any number of threads. Calls that are under way
    keep what they have. A forked child inherits the setting; processes that are started anew do not (set
    ``CVRARRAY_NUM_THREADS`` in their environment).

    Parameters
    ----------
    n : int or None
        At least 1, the calling thread included. None takes the setting back: see :func:`get_num_threads`.

    Raises
    ------
    TypeError
        `n` is no integer.
    ValueError
        It is below 1.

    Examples
    --------
    >>> cvrarray.set_num_threads(1)
    >>> cvrarray.get_num_threads()
    1
    >>> cvrarray.set_num_threads(None)
    """
    global _chosen
    if n is not None:
        if isinstance(n, bool):
            raise TypeError("set_num_threads needs an integer from 1, or None; got a bool")
        try:
            n = operator.index(n)
        except TypeError:
            raise TypeError(f"set_num_threads needs an integer from 1, or None; got {type(n).__name__}") from None
        if n < 1:
            raise ValueError(f"set_num_threads needs at least 1 thread; got {n}. None uses every CPU")
    _chosen = n


def get_num_threads() -> int:
    """How many threads a call may use on a CPU.

    The first of these that there is: what :func:`set_num_threads` or threadpoolctl set; the environment variable
    ``CVRARRAY_NUM_THREADS``; ``NUMBA_NUM_THREADS``, which joblib sets for its worker processes; the CPUs that this
    process may use, by its affinity and its container's quota.

    Raises
    ------
    ValueError
        The variable is not a whole number from 1.

    Examples
    --------
    >>> cvrarray.get_num_threads() >= 1
    True
    """
    if _chosen is not None:
        return _chosen
    for name in VARIABLES:
        wanted = os.environ.get(name, "").strip()
        if wanted:
            if not wanted.isdecimal() or int(wanted) == 0:
                raise ValueError(f"{name} must be a whole number from 1; got {wanted!r}. Unset it to use every CPU")
            return int(wanted)
    return _cpus()


@cache
def _cpus() -> int:
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(found, _quota()))


def _quota() -> int:
    """CPUs that the container's quota allows, rounded up; a large number where there is none."""
    try:
        quota, period = QUOTA.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such system, or "max"
        return 1 << 20


@cache
def register_with_threadpoolctl() -> None:
    """Let ``threadpoolctl`` show and limit our threads, where it is installed; its ``user_api`` is ``"cvrarray"``.

    threadpoolctl looks for shared libraries, and ours is compiled code of the process: it is found by LLVM's, which is
    loaded wherever our code is.
    """
    try:
        import threadpoolctl
    except ImportError:
        return
    if not hasattr(threadpoolctl, "LibController"):  # before 3.2 it knows its own libraries alone
        return

    class Controller(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = internal_api = "cvrarray"
        filename_prefixes = ("libllvmlite", "llvmlite")

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            set_num_threads(num_threads)

        def get_version(self) -> str:
            from cvrarray import __version__

            return __version__

    threadpoolctl.register(Controller)
