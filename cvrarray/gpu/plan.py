"""Which of several ways to multiply is the fastest on this machine: measured, on the caller's own operands.

All ways of a product give the same bits, so that what is measured decides nothing but time. A product begins with its first
candidate. After so many calls that timing all of them costs little beside it, they are timed into scratch memory, and the
fastest stays, for every array of the structure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import cupy
from cupy.cuda.memory import OutOfMemoryError

from ..core.arrays import Run
from ..core.candidates import are_measured, asked_for, best, is_at_once
from ..core.remembered import Remembered
from ..core.timing import by_turns
from .captures import aside

#: The product at which candidates are timed. Timing takes as long as some 10 products for each: a tenth of what was spent.
MEASURED_AT = 256
SAMPLES, CALLS = 3, 3  # measurements, and calls in each: several in a row, so that the host's time does not count

#: By the table of a structure: the name of its fastest candidate.
_FASTEST = Remembered()


class Candidate(NamedTuple):
    """A way to multiply."""

    name: str  #: of a kernel and its layout, which CVRARRAY_KERNEL may ask for
    make: Callable[[], Run | None]  #: ``run(x, y, alpha, beta)``; None where it does not pay or does not fit


def fastest(candidates: Sequence[Candidate], table: cupy.ndarray, key: Hashable) -> Run:
    """``run(x, y, alpha, beta)`` by the first candidate, and once measured by the fastest.

    `table` is the structure's, which arrays with other values share, and `key` tells the product from others of it.
    CVRARRAY_KERNEL names the candidates that take part; CVRARRAY_MEASURE=0 leaves all products to the first one.
    """
    make = {candidate.name: candidate.make for candidate in candidates}
    ways = {name: make[name] for name in asked_for(make)}
    first, *others = ways
    run: Run = ways[first]()  # type: ignore[assignment]  # the first one always fits
    known = _FASTEST.known(table, key, None)
    if known in others:
        is_capturing = cupy.cuda.get_current_stream().is_capturing()
        with suppress(OutOfMemoryError), aside() if is_capturing else nullcontext():  # else the first one stays
            run = ways[known]() or run
    if not others or known is not None or not are_measured():
        return run
    plain, n_left = run, MEASURED_AT  # graphs that hold the first way need its memory as long as this product lives

    def counting(x, y, alpha, beta):
        nonlocal run, n_left
        if n_left > 0:  # threads may count at once
            n_left = 0 if is_at_once() else n_left - 1
            if not n_left and cupy.cuda.get_current_stream().is_capturing():  # to time is to wait for the device
                n_left = 1
            elif not n_left:
                name, run = _measured(ways, plain, x, y)
                if name is not None:
                    _FASTEST.of(table, key, lambda: name)
        run(x, y, alpha, beta)

    if hasattr(run, "renew"):
        counting.renew = run.renew  # type: ignore[attr-defined]  # which serves all ways
    return counting


def _measured(ways: dict[str, Callable[[], Run | None]], plain: Run, x: Any, y: Any) -> tuple[str | None, Run]:
    """The fastest of `ways`, whose first is `plain`, after a call of each that does not count; `y` stays. No name, and `plain`,
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
        name = best(times)
        return name, runs[name]
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
