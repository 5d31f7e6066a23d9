"""What recorded runs ask of a clock beside :mod:`cvrarray.core.clocks`: cold samples, the host's share, other load."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from cvrarray.core import devices
from cvrarray.core.clocks import Call, GPUClock, HostClock

LONG_SECONDS = 1e-3  # of a call on a GPU, from which its time on the host is measured in fewer calls
LOOKS = 3  # samples of a contender that is looked at before it takes part


class ColdClock(GPUClock):
    """A sample follows the buffer, which is larger than the L2 cache, instead of a call of its kind."""

    def settled(self, call: Call, number: int = 1) -> float:
        """A sample after the buffer, the host far ahead of the GPU."""
        with self.device.use():
            self.occupy(call, number)
            return self.sample(call, number)


def quickest(clock: HostClock | GPUClock, call: Call) -> float:
    """The least of LOOKS samples: one alone may have met other work. For whether a contender is worth its time."""
    return min(clock.sample(call) for _ in range(LOOKS))


def host_seconds(calls: dict[Any, Call], device: devices.Device) -> dict[Any, float]:
    """Seconds until each of `calls` returns; the device's queue is empty at first and never full."""

    def sample(call: Call, number: int) -> float:
        device.wait()
        found = HostClock().sample(call, number)
        device.wait()
        return found

    found = {}
    with device.use():
        for name, call in calls.items():
            call()
            turns, number = (7, 10) if sample(call, 1) < LONG_SECONDS else (3, 2)
            found[name] = statistics.median(sample(call, number) for _ in range(turns))
    return found


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
