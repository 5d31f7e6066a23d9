"""The clock that all is timed by."""

import os
import re
import time

import pytest

from asv_bench.record.clocks import ColdClock, OtherLoad, host_seconds
from cvrarray.core import clocks, devices

# ---------------------------------------------------------------------------------------------------------- the clock


def test_clock_takes_medians_and_turns(device):
    clock = clocks.of(devices.parse(device))
    turns = []
    calls = {name: (lambda name=name: turns.append(name)) for name in "ab"}
    times = clocks.times(clock, calls, 3)
    assert times.keys() == {"a", "b"}
    for found in times.values():
        assert 0 <= found.low <= found.median <= found.high
    # both are called in every repeat, so neither has the better half of the run to itself
    assert len(re.findall("(?:a+b+){3}$", "".join(turns))) == 1


def test_other_load():
    """Busy seconds less our own, over the wall's; never below nothing."""
    load = OtherLoad()
    if load.start is None:
        pytest.skip("this system has no /proc/stat")
    busy, own, wall = load.start
    load.start = (busy - 10, own - 4, wall - 3)
    assert 2 * 0.9 <= load.cpus() <= os.cpu_count() + 2
    load.start = (busy, own - 1e6, wall - 3)
    assert load.cpus() == 0


def test_gpu_times_are_the_devices_own(gpu):
    """A copy's time follows from its bytes, however long the host dawdles."""
    cupy, device = pytest.importorskip("cupy"), devices.parse(gpu)
    source = cupy.ones(1 << 24)
    target = cupy.empty_like(source)

    def dawdle():
        time.sleep(2e-3)
        cupy.copyto(target, source)

    calls = {"quick": lambda: cupy.copyto(target, source), "dawdle": dawdle}
    assert host_seconds(calls, device)["dawdle"] > 2e-3
    for clock in (clocks.of(device), ColdClock(device)):
        times = clocks.times(clock, calls, 9)
        assert times["dawdle"].median < 2 * times["quick"].median
    assert clocks.until_done(dawdle, device) > 2e-3


def test_settled_samples_of_a_gpu_are_without_the_host(gpu):
    """Such as of a product that takes less time than its launch."""
    cupy = pytest.importorskip("cupy")
    source = cupy.ones(1 << 10)
    target = cupy.empty_like(source)

    def slowly_launched():
        end = time.perf_counter() + 1e-5
        while time.perf_counter() < end:
            pass
        cupy.copyto(target, source)

    clock = clocks.of(devices.parse(gpu))
    assert min(clock.settled(slowly_launched) for _ in range(9)) < 1e-5
