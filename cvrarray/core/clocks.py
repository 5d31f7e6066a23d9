"""The clock of a device: seconds of calls.

``of(device)`` is a :class:`HostClock` (wall-clock time) or a :class:`GPUClock` (CUDA events), with the same methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import devices

Call = Callable[[], Any]

#: Seconds of a sample on the host; a short call is repeated to fill them. Idle threads of MKL's pool and of ours spin
#: for less than that: the untimed sample before each timed one outlasts the spinning of another library's threads.
SAMPLE_SECONDS = 2e-3

#: Writes of the buffer before a sample on a GPU, at most: tens of milliseconds.
MOST_FILLS = 1000


class Timing(NamedTuple):
    """Seconds per call over several samples."""

    median: float
    low: float  # first quartile
    high: float  # third quartile

    @property
    def spread(self) -> float:
        """Between the quartiles, over the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def of(device: devices.Device) -> HostClock | GPUClock:
    """The clock of `device`."""
    return HostClock() if device.kind == "cpu" else GPUClock(device)


def times(clock: HostClock | GPUClock, calls: dict[Any, Call], repeats: int) -> dict[Any, Timing]:
    """Time each of `calls`, in turn, `repeats` times, so that noise affects all of them alike."""
    number = {name: clock.calls_a_sample(call) for name, call in calls.items()}
    samples: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(clock.settled(call, number[name]))
    quartiles = {name: np.quantile(found, (0.5, 0.25, 0.75)).tolist() for name, found in samples.items()}
    return {name: Timing(*found) for name, found in quartiles.items()}


def until_done(call: Call, device: devices.Device) -> float:
    """Wall-clock seconds of a call, and of what it leaves `device` to do."""
    with device.use():
        device.wait()
        start = time.perf_counter()
        call()
        device.wait()
        return time.perf_counter() - start


class HostClock:
    """Wall-clock time."""

    def sample(self, call: Call, number: int = 1) -> float:
        """Seconds per call of `number` consecutive ones."""
        start = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - start) / number

    def settled(self, call: Call, number: int = 1) -> float:
        """A sample after an untimed one: caches are as in a sequence of calls, and other libraries' threads asleep."""
        self.sample(call, number)
        return self.sample(call, number)

    def calls_a_sample(self, call: Call) -> int:
        """How many calls fill SAMPLE_SECONDS, measured after one that compiles."""
        call()
        return max(1, int(SAMPLE_SECONDS / max(self.sample(call), 1e-7)))


class GPUClock:
    """CUDA events around a call, on the current stream."""

    def __init__(self, device: devices.Device):
        self.device = device
        self.cupy = device.xp

    def sample(self, call: Call, number: int = 1) -> float:
        """The device's seconds per call of `number` consecutive ones, waits for the host's launches included."""
        with self.device.use():
            start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            for _ in range(number):
                call()
            stop.record()
            stop.synchronize()
            return float(self.cupy.cuda.get_elapsed_time(start, stop)) * 1e-3 / number

    def settled(self, call: Call, number: int = 1) -> float:
        """A sample after an untimed call, the host far ahead of the GPU: neither launches nor allocations count."""
        with self.device.use():
            self.occupy(call, number)
            call()
            return self.sample(call, number)

    def occupy(self, call: Call, number: int = 1) -> None:
        """Have the GPU write a buffer, for longer than the host takes to queue `number` calls."""
        start = time.perf_counter()
        call()
        seconds = 4 * (number + 1) * (time.perf_counter() - start)
        for _ in range(min(1 + int(seconds / self._fill_seconds), MOST_FILLS)):
            self._ballast.fill(0)

    def calls_a_sample(self, call: Call) -> int:
        """One, after one that compiles."""
        with self.device.use():
            call()
        return 1

    @cached_property
    def _ballast(self) -> Any:
        """The buffer to write: larger than the L2 cache."""
        return self.cupy.empty(1 << 28, self.cupy.uint8)

    @cached_property
    def _fill_seconds(self) -> float:
        self._ballast.fill(0)
        return self.sample(lambda: self._ballast.fill(0), 5)
