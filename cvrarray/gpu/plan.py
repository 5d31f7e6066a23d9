"""Which of several ways to multiply is the fastest on this machine: measured, on the caller's own operands.

All ways of a product give the same bits, so that what is measured decides nothing but time. A product begins with its first
candidate. After so many calls that timing all of them costs little beside it, they are timed into scratch memory, and the
fastest stays, for every array of the structure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import cupy
from cupy.cuda.memory import OutOfMemoryError

from ..core.arrays import Run
from ..core.remembered import Remembered
from ..core.timing import by_turns
from .captures import aside

#: The product at which candidates are timed. Timing takes as long as some 10 products for each: a tenth of what was spent.
MEASURED_AT = 256
SAMPLES, CALLS = 3, 3  # measurements, and calls in each: several in a row, so that the host's time does not count
WORTH_IT = 0.97  # of the first candidate's time, which another one may take at most

#: By the table of a structure: what was :class:`Measured`.
_FASTEST = Remembered()
#: ``measured`` is a list where this thread's products measure at once: see :func:`at_once`.
_SETTINGS = threading.local()


class Measured(NamedTuple):
    """What came of a measurement."""

    fastest: str  #: the candidate that stays
    milliseconds: dict[str, float]  #: by candidate; the first one first


class Candidate(NamedTuple):
    """A way to multiply."""

    name: str  #: of a kernel and its layout, which CVRARRAY_KERNEL may ask for
    make: Callable[[], Run | None]  #: ``run(x, y, alpha, beta)``; None where it does not pay or does not fit


def fastest(candidates: Sequence[Candidate], table: cupy.ndarray, key: Hashable) -> Run:
    """``run(x, y, alpha, beta)`` by the first candidate, and once measured by the fastest.

    `table` is the structure's, which arrays with other values share, and `key` tells the product from others of it.
    CVRARRAY_KERNEL names the candidates that take part; CVRARRAY_MEASURE=0 leaves all products to the first one.
    """
    ways = {candidate.name: candidate.make for candidate in _asked_for(candidates)}
    first, *others = ways
    run: Run = ways[first]()  # type: ignore[assignment]  # the first one always fits
    known = _FASTEST.known(table, key, None)
    if known is not None and known.fastest in others:
        is_capturing = cupy.cuda.get_current_stream().is_capturing()
        with suppress(OutOfMemoryError), aside() if is_capturing else nullcontext():  # else the first one stays
            run = ways[known.fastest]() or run
    if not others or known is not None or os.environ.get("CVRARRAY_MEASURE") == "0":
        return run
    plain, n_left = run, MEASURED_AT  # graphs that hold the first way need its memory as long as this product lives

    def counting(x, y, alpha, beta):
        nonlocal run, n_left
        if n_left:
            at_once = getattr(_SETTINGS, "measured", None)
            n_left = n_left - 1 if at_once is None else 0
            if not n_left and cupy.cuda.get_current_stream().is_capturing():  # to time is to wait for the device
                n_left = 1
            elif not n_left:
                measured, run = _measure(ways, plain, x, y)
                if measured is not None:
                    _FASTEST.of(table, key, lambda: measured)
                    if at_once is not None:
                        at_once.append(measured)
        run(x, y, alpha, beta)

    if hasattr(run, "renew"):
        counting.renew = run.renew  # type: ignore[attr-defined]  # which serves all ways
    return counting


@contextmanager
def at_once() -> Iterator[list[Measured]]:
    """Products of this thread that have not been measured are, at their next call, and what came of it is listed."""
    before = getattr(_SETTINGS, "measured", None)
    _SETTINGS.measured = found = []
    try:
        yield found
    finally:
        _SETTINGS.measured = before


def _asked_for(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Those whose name begins as CVRARRAY_KERNEL says, or with a minus sign before does not; all if none would be left."""
    wanted = os.environ.get("CVRARRAY_KERNEL", "")
    name = wanted.removeprefix("-")
    found = [one for one in candidates if one.name.startswith(name) != wanted.startswith("-")] if name else candidates
    return found or candidates


def _measure(ways: dict[str, Callable[[], Run | None]], plain: Run, x: Any, y: Any) -> tuple[Measured | None, Run]:
    """The fastest of `ways`, whose first is `plain`, after a call of each that does not count; `y` stays. None, and `plain`,
    where memory ends meanwhile.
    """
    first, *others = ways
    with suppress(OutOfMemoryError):
        runs = {first: plain} | {name: run for name in others if (run := ways[name]()) is not None}
        out = cupy.empty_like(y)
        calls = [partial(run, x, out, y.dtype.type(1), y.dtype.type(0)) for run in runs.values()]
        for call in calls:
            call()
        times = dict(zip(runs, by_turns([partial(_milliseconds, call) for call in calls], SAMPLES), strict=True))
        best = min(times, key=times.__getitem__)
        name = best if times[best] < WORTH_IT * times[first] else first
        return Measured(name, times), runs[name]
    return None, plain


def _milliseconds(call: Callable[[], None]) -> float:
    """Of CALLS calls on the device."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(CALLS):
        call()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop))
