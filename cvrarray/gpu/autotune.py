"""A product in two ways: the plain one, and from the PREPARE_AT-th call on another one where that was measured to be faster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import cupy

PREPARE_AT = 16  # the product at which the other way is set up, which costs what about 30 products save by it
LEAST_SLOTS = 1 << 22  # smaller matrices do not make up for the time that filling shared memory takes
MOST_COLUMNS = 1 << 27  # each has a counter while the other way is set up
WORTH_IT = 0.95  # of the plain product's time, which the other one may take at most
SAMPLES, CALLS = 3, 4  # measurements, and calls in each: several in a row, so that the host's time does not count

Run = Callable[..., None]


def autotuned(n_slots: int, n_cols: int, plain: Run, prepare: Callable[[], Run | None]) -> Run:
    """``run(x, y, alpha, beta)``: `plain`, and from the PREPARE_AT-th call on what ``prepare()`` makes, if that is faster.

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
                    if candidate is not None and _seconds(candidate, x, y) < WORTH_IT * _seconds(plain, x, y):
                        run = candidate
        run(x, y, alpha, beta)

    if hasattr(plain, "renew"):
        counting.renew = plain.renew  # type: ignore[attr-defined]  # which serves both ways
    return counting


def _seconds(run: Run, x: cupy.ndarray, y: cupy.ndarray) -> float:
    """The time of a product: the least of SAMPLES, after a call that does not count. `y` is not touched."""
    out, one, zero = cupy.empty_like(y), y.dtype.type(1), y.dtype.type(0)
    run(x, out, one, zero)
    samples = []
    for _ in range(SAMPLES):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(CALLS):
            run(x, out, one, zero)
        stop.record()
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / CALLS)
    return min(samples)
