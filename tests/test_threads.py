"""Threads on a CPU: who may set how many, in which order, and what other processes see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from forked import Child, needs_fork
from test_interrupted import interrupted_at

import cvrarray
from cvrarray.core import threads
from cvrarray.cpu.runtime import threads as runtime_threads

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """Nothing is set, in the process or in the environment."""
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    cvrarray.set_num_threads(None)


def helpers():
    """Python threads of ours that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("cvrarray_")]


def test_the_first_that_is_set_counts(monkeypatch):
    assert cvrarray.get_num_threads() == threads._cpus()
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    assert cvrarray.get_num_threads() == 5
    monkeypatch.setenv("CVRARRAY_NUM_THREADS", "4")
    assert cvrarray.get_num_threads() == 4
    cvrarray.set_num_threads(np.int64(3))
    assert cvrarray.get_num_threads() == 3
    assert type(cvrarray.get_num_threads()) is int
    cvrarray.set_num_threads(None)
    assert cvrarray.get_num_threads() == 4


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (0, ValueError, "at least 1 thread; got 0"),
        (-2, ValueError, "got -2"),
        (1.5, TypeError, "an integer from 1, or None; got float"),
        ("2", TypeError, "got str"),
        (True, TypeError, "got a bool"),
    ],
)
def test_numbers_that_are_none(n, error, message):
    cvrarray.set_num_threads(2)
    with pytest.raises(error, match=message):
        cvrarray.set_num_threads(n)
    assert cvrarray.get_num_threads() == 2


@pytest.mark.parametrize("name", threads.VARIABLES)
def test_variables_that_are_no_number(monkeypatch, name):
    monkeypatch.setenv(name, "many")
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1; got 'many'"):
        cvrarray.get_num_threads()


@pytest.mark.parametrize(
    ("text", "least"), [("max 100000", 1 << 20), ("150000 100000", 2), ("50000 100000", 1), ("what", 1 << 20), (None, 1 << 20)]
)
def test_a_container_s_quota_counts(tmp_path, monkeypatch, text, least):
    path = tmp_path / "cpu.max"
    if text is not None:
        path.write_text(f"{text}\n")
    monkeypatch.setattr(threads, "QUOTA", path)
    threads._cpus.cache_clear()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cvrarray.get_num_threads() == min(affinity, least)
    threads._cpus.cache_clear()


def test_products_use_as_many_as_are_set_and_agree():
    """In a fresh process, so that no earlier test has begun threads; the same bits whatever the number."""
    code = (
        "import threading, numpy as np, cvrarray\n"
        "S = cvrarray.generate.poisson7(80)\n"  # 3.5 million nonzeros: always with helpers
        "A, x = cvrarray.asarray(S, device='cpu'), np.random.default_rng(0).random(S.shape[1])\n"
        "def alive(n):\n"
        "    cvrarray.set_num_threads(n)\n"
        "    y = A @ x\n"
        "    return y, sum(t.name.startswith('cvrarray_') for t in threading.enumerate())\n"
        "cvrarray.set_num_threads(1)\n"
        "one, three, two = alive(1), alive(3), alive(2)\n"
        "assert (one[0] == three[0]).all() and (one[0] == two[0]).all()\n"
        "print(three[1], two[1])\n"
    )
    environment = os.environ | {"CVRARRAY_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert found.stdout.split() == ["2", "2"]  # beside the caller; the pool is kept


@needs_fork
def test_a_forked_child_inherits_the_setting():
    cvrarray.set_num_threads(3)
    A = cvrarray.asarray(cvrarray.generate.poisson7(60), device="cpu")
    x = np.ones(A.shape[1])
    A @ x
    status, text = Child(lambda: (cvrarray.get_num_threads(), float((A @ x).sum()), len(helpers()))).wait()
    assert status == 0, text
    count, total, alive = eval(text)
    assert count == 3
    assert total == float((A @ x).sum())
    assert alive in (0, 2)  # threads of its own, if it needed any


def test_threadpoolctl_finds_us():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    cvrarray.asarray(np.eye(3), device="cpu")  # loads the code that runs threads
    cvrarray.set_num_threads(2)

    def ours():
        return [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "cvrarray"]

    (found,) = ours()
    assert found["num_threads"] == 2
    assert found["version"] == cvrarray.__version__
    with threadpoolctl.threadpool_limits(1):
        assert cvrarray.get_num_threads() == 1
        assert ours()[0]["num_threads"] == 1
    assert cvrarray.get_num_threads() == 2
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert cvrarray.get_num_threads() == 2
    with threadpoolctl.threadpool_limits(1, user_api="cvrarray"):
        assert cvrarray.get_num_threads() == 1


def _count():
    return cvrarray.get_num_threads()


def test_joblib_s_workers_share_the_cpus():
    joblib = pytest.importorskip("joblib")
    if threads._cpus() < 2:
        pytest.skip("one CPU: every process gets one thread in any case")
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        assert joblib.Parallel(n_jobs=2)(joblib.delayed(_count)() for _ in range(2)) == [1, 1]


def test_without_threadpoolctl(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    threads.register_with_threadpoolctl.__wrapped__()


def test_without_threads_the_caller_does_it_all(monkeypatch):
    """Where the system starts none, as beyond a container's limit of processes."""
    A = cvrarray.asarray(cvrarray.generate.poisson7(40), device="cpu")
    x = np.random.default_rng(0).random(A.shape[1])
    want = A @ x

    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runtime_threads, "_pools", [])
    monkeypatch.setattr(threading.Thread, "start", refused)
    total = np.zeros(64)

    def add(first, last):
        total[first:last] += 1

    monkeypatch.setattr(threads, "_chosen", 4)
    with pytest.warns(RuntimeWarning, match=r"0 of 3 threads could be started.*set_num_threads"):
        runtime_threads._together(add, 4, list(range(0, 65, 4)), ())
    for _ in range(3):  # without another warning
        runtime_threads._together(add, 4, list(range(0, 65, 4)), ())
        np.testing.assert_array_equal(A @ x, want)
    np.testing.assert_array_equal(total, 4)
    assert runtime_threads._pools[-1].tasks.empty()


def test_an_interrupted_call_leaves_no_helper_at_work():
    """Wherever Ctrl-C comes, at any line of what hands out work and waits for it."""
    busy = []

    def work(first, last):
        busy.append(first)
        time.sleep(0.002)
        busy.remove(first)

    def call():
        runtime_threads._together(work, 3, list(range(9)), ())

    call()
    line = 1
    while interrupted_at(line, KeyboardInterrupt, call, (runtime_threads.__file__,)):
        assert not busy, f"a helper is at work after an interrupt at line {line}"
        time.sleep(0.004)
        assert not busy, f"a helper began work after an interrupt at line {line}"
        line += 1
    assert line > 20
