"""A product in two ways: the plain one, and from the PREPARE_AT-th call on another, if that was measured as faster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import cupy

from cvrarray.core import clocks, devices
from cvrarray.core.arrays import Run
from cvrarray.core.timing import by_turns

PREPARE_AT = 16  # the product at which the other way is set up, which costs what about 30 products save by it
LEAST_SLOTS = 1 << 22  # smaller matrices do not make up for the time that filling shared memory takes
MOST_COLUMNS = 1 << 27  # each has a counter while the other way is set up
WORTH_IT = 0.95  # of the plain product's time, which the other one may take at most
SAMPLES, CALLS = 3, 4  # measurements, and calls in each: several in a row, so that the host's time does not count


def autotuned(n_slots: int, n_cols: int, plain: Run, prepare: Callable[[], Run | None]) -> Run:
    """``run(x, y, alpha, beta)``: `plain`, and from the PREPARE_AT-th call on what ``prepare()`` makes, if that is
    faster.

    Both must give the same bits. ``prepare()`` may give None.
    """
    if n_slots < LEAST_SLOTS or n_cols > MOST_COLUMNS:
        return plain
    run, n_calls = plain, 0

    def counting(x, y, alpha, beta):
        nonlocal run, n_calls
        n_calls += 1
        if n_calls == PREPARE_AT:
            if cupy.cuda.get_current_stream().is_capturing():  # to prepare is to wait for the device
                n_calls -= 1
            else:
                with suppress(cupy.cuda.memory.OutOfMemoryError):  # then the plain product stays
                    candidate = prepare()
                    if candidate is not None and _is_faster(candidate, plain, x, y):
                        run = candidate
        run(x, y, alpha, beta)

    if hasattr(plain, "renew"):
        counting.renew = plain.renew  # type: ignore[attr-defined]  # which serves both ways
    return counting


def _is_faster(candidate: Run, plain: Run, x: cupy.ndarray, y: cupy.ndarray) -> bool:
    """Whether `candidate` makes up for what it took to set up, after a call of each that does not count; `y` stays."""
    sample = clocks.GPUClock(devices.of(x)).sample
    calls = [partial(run, x, cupy.empty_like(y), y.dtype.type(1), y.dtype.type(0)) for run in (candidate, plain)]
    for call in calls:
        call()
    seconds, plain_seconds = by_turns([partial(sample, call, CALLS) for call in calls], SAMPLES)
    return seconds < WORTH_IT * plain_seconds
