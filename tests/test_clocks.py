"""The clock that all is timed by, and the check of a product against double precision."""

import math
import os
import re
import time
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse

from cvrarray.cli import bench, rounding
from cvrarray.core import clocks, devices


@pytest.fixture
def matrix():
    """Rows of 0 to 9 nonzeros, some of them explicit zeros."""
    matrix = scipy.sparse.random_array((60, 50), density=0.08, format="csr", rng=np.random.default_rng(3))
    matrix.data[::7] = 0
    return matrix


# ---------------------------------------------------------------------------------------------------------- the clock


def test_clock_takes_medians_and_turns(device):
    clock = clocks.of(devices.parse(device))
    turns = []
    calls = {name: (lambda name=name: turns.append(name)) for name in "ab"}
    times = clock.times(calls, 3)
    assert times.keys() == {"a", "b"}
    for found in times.values():
        assert 0 <= found.low <= found.median <= found.high
    # both are called in every repeat, so neither has the better half of the run to itself
    assert len(re.findall("(?:a+b+){3}$", "".join(turns))) == 1


def test_host_samples_follow_an_untimed_one_in_their_setting():
    """A call's setting holds while it runs, and only then; each sample comes after as many calls that are not timed."""
    settings, seen = [None], []

    @contextmanager
    def setting(name):
        settings.append(name)
        yield
        settings.pop()

    calls = {name: (lambda name=name: (seen.append((name, settings[-1])), time.sleep(3e-3))) for name in ("a", "b")}
    clocks.HostClock().times(calls, 3, setting)
    assert seen == [("a", "a")] * 2 + [("b", "b")] * 2 + ([("a", "a")] * 2 + [("b", "b")] * 2) * 3
    assert settings == [None]


def test_unsteady_calls_take_more_turns(monkeypatch):
    """All calls do, as their turns are one; the fastest samples count; never for longer than is said."""
    samples = {"steady": iter([1.0] * 99), "shaken": iter([9.0, 1.0, 5.0, 1.1, 1.05, 1.02] + [7.0] * 99)}
    monkeypatch.setattr(clocks.HostClock, "_calls_a_sample", lambda self, call: 1)
    monkeypatch.setattr(clocks.HostClock, "settled", lambda self, call, number: next(samples[call()]))
    found = clocks.HostClock().times({name: (lambda name=name: name) for name in samples}, 3, seconds=60)
    assert {name: timing.turns for name, timing in found.items()} == {"steady": 5, "shaken": 5}
    assert found["shaken"].median == 1.05
    assert found["shaken"].spread < clocks.STEADY
    samples["shaken"] = iter([1.0, 5.0, 9.0] * 999)
    found = clocks.HostClock().times({"shaken": lambda: "shaken"}, 3, seconds=0)
    assert found["shaken"].turns == 3
    assert found["shaken"].spread > clocks.STEADY


def test_other_load():
    """Busy seconds less our own, over the wall's; never below nothing."""
    load = clocks.OtherLoad()
    if load.start is None:
        pytest.skip("this system has no /proc/stat")
    busy, own, wall = load.start
    load.start = (busy - 10, own - 4, wall - 3)
    assert 2 * 0.9 <= load.cpus() <= os.cpu_count() + 2
    load.start = (busy, own - 1e6, wall - 3)
    assert load.cpus() == 0


def test_gpu_times_are_the_devices_own(gpu):
    """A copy's time follows from its bytes, however long the host dawdles."""
    cupy = pytest.importorskip("cupy")
    source = cupy.ones(1 << 24)
    target = cupy.empty_like(source)

    def dawdle():
        time.sleep(2e-3)
        cupy.copyto(target, source)

    times = clocks.of(devices.parse(gpu)).times({"quick": lambda: cupy.copyto(target, source), "dawdle": dawdle}, 9)
    assert times["dawdle"].host > 2e-3
    assert times["dawdle"].median < 2 * times["quick"].median


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


def test_conversions_are_timed_in_turn_with_products():
    """What slows a machine down for a while slows both down: their ratio holds."""
    now, slow = [0.0], [1]

    def takes(seconds):
        def call():
            now[0] += slow[0] * seconds

        return call

    def convert():
        takes(0.05)()
        slow[0] = 3 if now[0] > 0.3 else 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks.time, "perf_counter", lambda: now[0])
        found = clocks.HostClock().conversion(convert, 5, takes(0.01))
    assert found.products == pytest.approx(5)


# ---------------------------------------------------------------------------------------------------------- the check


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_worst_error(matrix, dtype):
    matrix = matrix.astype(dtype)
    x = bench.random_vector(50, np.dtype(dtype), seed=1)
    y = matrix @ x
    assert rounding.worst_error(matrix, x, y) <= 1
    row = np.diff(matrix.indptr).argmax()
    size = (abs(matrix) @ abs(x))[row]
    allowed = rounding.ALLOWED * np.diff(matrix.indptr)[row] * np.finfo(dtype).eps * size
    for times, wrong in ((0.5, False), (2, True)):
        off = y.copy()
        off[row] += times * allowed
        assert (rounding.worst_error(matrix, x, off) > 1) == wrong
    empty = np.diff(matrix.indptr).argmin()
    for place, value in ((row, np.nan), (row, np.inf), (empty, 1e-30)):
        off = y.copy()
        off[place] = value
        assert rounding.worst_error(matrix, x, off) == math.inf


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("where", ["matrix", "x"])
def test_worst_error_compares_inf_and_nan_by_place(matrix, dtype, where):
    """What inf and nan reach must hold them, nothing else may, and all other rows are compared as ever."""
    matrix = matrix.astype(dtype)
    matrix.data[matrix.data == 0] = 1
    x = bench.random_vector(50, np.dtype(dtype), seed=1)
    if where == "x":
        x[[3, 7]] = np.inf, np.nan
    else:
        matrix.data[[10, 50]] = -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        y = matrix @ x
    special = ~np.isfinite(y)
    assert 1 < special.sum() < 40
    assert rounding.worst_error(matrix, x, y) <= 1
    there, beside = np.flatnonzero(special)[0], np.flatnonzero(~special & (np.diff(matrix.indptr) > 0))[0]
    wrong = [(there, 0), (beside, np.nan), (beside, np.inf), (beside, 2 * y[beside])]
    if y.dtype.kind == "f":
        infinite, undefined = np.flatnonzero(np.isinf(y))[0], np.flatnonzero(np.isnan(y))[0]
        wrong += [(infinite, -y[infinite]), (infinite, np.nan), (undefined, np.inf)]
    for place, value in wrong:
        off = y.copy()
        off[place] = value
        assert rounding.worst_error(matrix, x, off) > 1, (place, value)


def test_worst_error_lets_sums_overflow():
    """3e38 and 3e38 have a sum in double precision; in single precision it is inf, and nobody is to blame."""
    matrix = scipy.sparse.csr_array(np.array([[3e38, 3e38, 0], [0, 1, 2]], np.float32))
    x = np.ones(3, np.float32)
    assert rounding.worst_error(matrix, x, np.array([np.inf, 3], np.float32)) == 0
    assert rounding.worst_error(matrix, x, np.array([np.inf, 4], np.float32)) > 1
