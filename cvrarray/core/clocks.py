"""The clock of a device: seconds of calls that are made in turn, so that noise affects all of them alike.

``of(device)`` is a :class:`HostClock` (wall-clock time) or a :class:`GPUClock` (CUDA events), with the same methods.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import devices

Call = Callable[[], Any]

#: A call's name -> the context in which its samples are taken.
Setting = Callable[[Any], AbstractContextManager[Any]]

#: Seconds of a sample on the host; a short call is repeated to fill them. Idle threads of MKL's pool and of ours spin
#: for less than that: the untimed sample before each timed one outlasts the spinning of another library's threads.
SAMPLE_SECONDS = 2e-3
STEADY = 0.2  # spread of samples, between their quartiles over their median, with which figures may be trusted
LONG_SECONDS = 1e-3  # of a call on a GPU, from which its time on the host is measured in fewer calls
LOOKS = 3  # samples of a contender that is looked at before it takes part
CONVERSION_SECONDS = 0.05  # of conversions, at least: one interruption could cover five of 0.1 ms


class Timing(NamedTuple):
    """Seconds per call over the samples that count: on the device, and on the host until the call returns."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    host: float
    turns: int = 0  # samples that were taken; the fastest count, as many as repeats were asked for

    @property
    def spread(self) -> float:
        """Between the quartiles, over the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Conversion(NamedTuple):
    """Median seconds of a conversion, until it is done."""

    seconds: float
    products: float | None = None  # that take as long, timed alternately; None on a GPU


def of(device: devices.Device) -> HostClock | GPUClock:
    """The clock of `device`."""
    return HostClock() if device.kind == "cpu" else GPUClock(device)


class Clock:
    """What both clocks share."""

    def sample(self, call: Call, number: int = 1) -> float:
        """Seconds per call of `number` consecutive ones."""
        raise NotImplementedError

    def quickest(self, call: Call) -> float:
        """The least of LOOKS samples: one alone may have met other work. For whether a contender is worth its time."""
        return min(self.sample(call) for _ in range(LOOKS))


class HostClock(Clock):
    """Wall-clock time."""

    def times(
        self,
        calls: dict[Any, Call],
        repeats: int,
        setting: Setting = lambda name: nullcontext(),
        seconds: float = 0.0,
    ) -> dict[Any, Timing]:
        """Time each of `calls`, in turn, `repeats` times, within its ``setting(name)``.

        An untimed sample of the same call precedes each timed one: caches are as in a sequence of products, and the
        threads of the previous call are asleep.

        While the spread of a call is above STEADY, all take further turns, for up to `seconds` of them. Of each call
        its fastest `repeats` samples count: on a machine with other work they are those that it disturbed least.
        """
        number = {}
        for name, call in calls.items():
            with setting(name):
                number[name] = self._calls_a_sample(call)
        samples: dict[Any, list[float]] = {name: [] for name in calls}
        found: dict[Any, Timing] = {}
        turns, end = 0, math.inf
        while turns < repeats or (time.perf_counter() < end and any(timing.spread > STEADY for timing in found.values())):
            for name, call in calls.items():
                with setting(name):
                    samples[name].append(self.settled(call, number[name]))
            turns += 1
            if turns >= repeats:
                end = min(end, time.perf_counter() + seconds)
                fastest = {name: sorted(values)[:repeats] for name, values in samples.items()}
                found = {name: _timing(values, statistics.median(values), turns) for name, values in fastest.items()}
        return found

    def sample(self, call: Call, number: int = 1) -> float:
        """Seconds per call of `number` consecutive ones."""
        start = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - start) / number

    def settled(self, call: Call, number: int = 1) -> float:
        """A sample after an untimed one."""
        self.sample(call, number)
        return self.sample(call, number)

    def conversion(self, convert: Call, repeats: int, product: Call) -> Conversion:
        """Time `convert` in turn with `product`, `repeats` times and for CONVERSION_SECONDS, after a run that compiles.

        The faster halves of both are compared: other programs disturbed these less.
        """
        convert()
        number = self._calls_a_sample(product)
        samples: list[float] = []
        products: list[float] = []
        for _ in range(repeats):
            end = time.perf_counter() + CONVERSION_SECONDS / repeats
            taken = len(samples)
            while len(samples) == taken or time.perf_counter() < end:
                samples.append(self.sample(convert))
            products.append(self.settled(product, number))
        seconds, unit = (statistics.median(sorted(times)[: -(-len(times) // 2)]) for times in (samples, products))
        return Conversion(seconds, seconds / max(unit, 1e-9))

    def _calls_a_sample(self, call: Call) -> int:
        """How many calls fill SAMPLE_SECONDS, measured after one that compiles."""
        call()
        return max(1, int(SAMPLE_SECONDS / max(self.sample(call), 1e-7)))


class GPUClock(Clock):
    """CUDA events around a call, on the current stream, while the host is far ahead of the GPU.

    Before every sample the GPU writes a buffer, which takes longer than the host takes to queue the sample. So neither
    allocations nor launches count in the device's time, ours or a peer's. The host's time is measured separately. A
    timed call follows another one of its kind, so the L2 cache is as in a sequence of products. A cold one follows the
    buffer, which is larger than that cache.
    """

    def __init__(self, device: devices.Device):
        self.device = device
        self.cupy = device.xp

    def times(
        self,
        calls: dict[Any, Call],
        repeats: int,
        setting: Setting = lambda name: nullcontext(),
        cold: bool = False,
        seconds: float = 0.0,
    ) -> dict[Any, Timing]:
        """Time each of `calls`, in turn, `repeats` times, within its ``setting(name)``.

        `seconds` has no effect: other work on the host does not change a GPU's times.
        """
        with self.device.use():
            for call in calls.values():
                call()
            host = {name: self._settled_host(call) for name, call in calls.items()}
            n_fills = 1 + int(4 * max(host.values()) / self._fill_seconds)
            samples: dict[Any, list[float]] = {name: [] for name in calls}
            for _ in range(repeats):
                for name, call in calls.items():
                    with setting(name):
                        for _ in range(n_fills):
                            self._ballast.fill(0)
                        if not cold:
                            call()
                        samples[name].append(self.sample(call))
            return {name: _timing(values, host[name], repeats) for name, values in samples.items()}

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
        """A sample after an untimed call, the host ahead of the GPU: none of its launches counts, if `number` is small."""
        with self.device.use():
            self._ballast.fill(0)
            call()
            return self.sample(call, number)

    def conversion(self, convert: Call, repeats: int, product: Call | None = None) -> Conversion:
        """Time `convert` until the GPU is done, after a run that compiles.

        No `product` is timed in turn with it: a GPU's speed does not depend on other processes on the host.
        """
        with self.device.use():
            convert()
            return Conversion(statistics.median(self._finished(convert) for _ in range(repeats)))

    @cached_property
    def _ballast(self) -> Any:
        """The buffer to write: larger than the L2 cache, and long enough to cover the host's launches."""
        return self.cupy.empty(1 << 28, self.cupy.uint8)

    @cached_property
    def _fill_seconds(self) -> float:
        self._ballast.fill(0)
        return statistics.median(self.sample(lambda: self._ballast.fill(0)) for _ in range(5))

    def _finished(self, call: Call) -> float:
        self.cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        call()
        self.cupy.cuda.get_current_stream().synchronize()
        return time.perf_counter() - start

    def _settled_host(self, call: Call) -> float:
        """The median of several samples of ``_host``; fewer of a call that takes long on the device."""
        turns, number = (7, 10) if self.sample(call) < LONG_SECONDS else (3, 2)
        return statistics.median(self._host(call, number) for _ in range(turns))

    def _host(self, call: Call, number: int) -> float:
        """Seconds until `call` returns; the GPU's queue is empty at first and never full."""
        self.cupy.cuda.get_current_stream().synchronize()
        start = time.perf_counter()
        for _ in range(number):
            call()
        seconds = (time.perf_counter() - start) / number
        self.cupy.cuda.get_current_stream().synchronize()
        return seconds


class OtherLoad:
    """How many CPUs other processes have kept busy since this object was made."""

    def __init__(self) -> None:
        self.start = self._clocks()

    def cpus(self) -> float | None:
        """CPUs, on average; None where the system does not report it."""
        now = self._clocks()
        if self.start is None or now is None:
            return None
        busy, own, wall = (late - early for late, early in zip(now, self.start, strict=True))
        return max(0.0, busy - own) / wall

    @staticmethod
    def _clocks() -> tuple[float, float, float] | None:
        """Seconds: busy time of all CPUs, CPU time of this process, wall-clock time."""
        try:
            with open("/proc/stat") as file:
                user, nice, system, _, _, *rest = map(int, file.readline().split()[1:9])  # left out: idle, waiting
        except OSError:
            return None
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK"), time.process_time(), time.monotonic()


def _timing(samples: list[float], host: float, turns: int) -> Timing:
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return Timing(median, low, high, host, turns)
