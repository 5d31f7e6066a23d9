"""Loops whose threads stay in compiled code: every chunk is done once, whoever helps, leaves, or never comes."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest
from checks import in_threads, in_turn
from forked import Child, needs_fork

import cvrarray
from cvrarray import generate, linalg
from cvrarray.cpu import distinct
from cvrarray.cpu.runtime import native, team, threads
from cvrarray.cpu.runtime.compiler import compiled, kernel
from cvrarray.cpu.runtime.team import ROW, Steps, Team, Work, lead

ROUNDS = 300


@pytest.fixture(autouse=True)
def many_threads():
    """More threads than the machine may have, and none that is left out for being slow."""
    cvrarray.set_num_threads(4)
    yield
    cvrarray.set_num_threads(None)


@kernel
def _count(first, last, step, counts):
    for i in range(first, last):
        counts[i] += step


@kernel
def _copy(first, last, source, to):
    for i in range(first, last):
        to[i] = source[i]


@kernel
def _all_steps(memory, table, most):
    for _ in range(most):
        for row in range(len(table)):
            lead(memory.ctypes.data, table.ctypes.data + 8 * ROW * row)


def loop(steps, slots):
    """A team, and the call that does all steps n times."""
    table = steps.table()
    call = compiled(_all_steps, table[0], table, 1)
    return Team(slots), lambda group: lambda n: call(group.memory, table, n)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_every_chunk_is_done_once_in_every_round(n, monkeypatch):
    monkeypatch.setattr(threads, "LONG", 0)  # always with helpers
    counts, copies, seen = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    work = np.arange(n + 1) * team.CHUNK
    every = np.arange(n + 1)
    steps = Steps()
    steps.add((Work(_count, (3, counts), work), every), (Work(_copy, (counts, copies), work), every))
    steps.add((Work(_copy, (copies, seen), work), None))
    group, call = loop(steps, int(work[-1]))
    for k in (1, 2):
        with group:
            done = 0
            while done < ROUNDS:
                made, _ = group.rounds(call(group), ROUNDS - done)
                done += made
        assert (counts == 3 * k * ROUNDS).all() and (copies == counts).all() and (seen == counts).all()


def test_helpers_come_again_after_they_left(monkeypatch):
    monkeypatch.setattr(threads, "LONG", 0)
    monkeypatch.setattr(team, "LONG_ROUNDS", 0)
    counts, work = np.zeros(64, np.int64), np.arange(65) * team.CHUNK
    steps = Steps()
    steps.add((Work(_count, (1, counts), work), None))
    group, call = loop(steps, int(work[-1]))
    with group:
        group.rounds(call(group), 1)
        loan = group._loan
        end = time.monotonic() + 30
        while not loan.is_over:  # they find nothing to do
            assert time.monotonic() < end
            time.sleep(0.01)
        group.rounds(call(group), 1)
        assert group._loan is not loan
    assert (counts == 2).all()


def test_little_work_has_no_helpers():
    counts = np.zeros(4, np.int64)
    steps = Steps()
    steps.add((Work(_count, (1, counts), np.arange(5)), None))
    group, call = loop(steps, 4)
    with group:
        group.rounds(call(group), 5)
        assert group._loan is None


def test_a_kernel_at_its_address_takes_arrays_and_integers_alone():
    for wrong in (True, 1.0, "x"):
        with pytest.raises(TypeError, match="takes arrays and integers; got"):
            native.packed((np.zeros(1), wrong))
    with pytest.raises(ValueError, match="at most 320 arguments"):
        native.packed((tuple(range(321)),))


def system(name="poisson7"):
    csr = generate.build(name, scale="small")
    csr = abs(csr) + abs(csr).T
    csr.setdiag(np.asarray(csr.sum(axis=1)).ravel() + 1)
    return cvrarray.asarray(csr, device="cpu"), np.cos(np.arange(csr.shape[0]))


def test_solves_on_several_threads_at_once_share_the_helpers():
    A, b = system()
    expected = linalg.cg(A, b, M="jacobi", rtol=1e-10)[0]
    found = [None] * 4

    def solve(k):
        found[k] = linalg.cg(A, b, M="jacobi", rtol=1e-10)[0]

    in_threads(solve, range(4))
    for x in found:
        np.testing.assert_array_equal(x, expected)


@in_turn(
    "M, columns, format",
    [(None, None), ("jacobi", None), ("block_jacobi", None), ("chebyshev", None), ("jacobi", 3)],
    [cvrarray.CVRArray, cvrarray.BBCSRArray],
)
def test_the_same_bits_with_any_number_of_threads(format, M, columns):
    """Also with a callback, which leaves the compiled loop after every iteration, and with a history.

    A few columns are solved one after the other without a callback, and side by side with one: other bits.
    """
    A, b = system()
    A = format(A.tocsr(), device="cpu")
    b = b if columns is None else b[:, None] + np.arange(columns)
    M = linalg.chebyshev(A, 2) if M == "chebyshev" else linalg.block_jacobi(A, 2) if M == "block_jacobi" else M
    results = []
    for n in (1, 2, 4):
        cvrarray.set_num_threads(n)
        calls = []
        results.append(linalg.CG(A, M=M, rtol=1e-6, history=True).solve(b).x)
        results.append(linalg.cg(A, b, M=M, rtol=1e-6)[0])
        results.append(linalg.cg(A, b, M=M, rtol=1e-6, callback=lambda x, calls=calls: calls.append(1))[0])
        assert calls
    for number, x in enumerate(results):
        np.testing.assert_array_equal(x, results[0 if columns is None else number % 3])


@pytest.mark.parametrize("format", [cvrarray.CVRArray, cvrarray.BBCSRArray])
@pytest.mark.parametrize("few", [True, False])
def test_values_that_change_in_place(format, few, monkeypatch):
    """Also those in few bytes, which become plain: the compiled loop has addresses of their tables."""
    monkeypatch.setattr(distinct, "most_values", lambda data: 256)
    csr = generate.poisson7(12)
    if few:
        csr.data[:] = np.where(csr.indices == np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr)), 7.0, -1.0)
    A = format(csr, device="cpu")
    assert (A._tables.distinct is not None) == few
    b = A @ np.cos(np.arange(csr.shape[0]))
    solver = linalg.CG(A, iterations=7)
    first = solver.solve(b).x
    A.with_values(4 * A.tocsr().data, out=A)
    np.testing.assert_array_equal(4 * solver.solve(b).x, first)


def test_a_callback_that_raises_or_solves():
    A, b = system()
    solver = linalg.CG(A, M="jacobi", rtol=1e-8)
    expected = solver.solve(b).x

    def stop(x):
        linalg.cg(A, b, maxiter=3)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        linalg.cg(A, b, M="jacobi", callback=stop)
    np.testing.assert_array_equal(solver.solve(b).x, expected)


@needs_fork
def test_a_forked_child_solves():
    A, b = system()
    expected = linalg.cg(A, b, M="jacobi")[0]

    status, text = Child(lambda: bool((linalg.cg(A, b, M="jacobi")[0] == expected).all())).wait()
    assert (status, text) == (0, "True"), text


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer of signals here")
@pytest.mark.parametrize("cause", [KeyboardInterrupt, MemoryError])
def test_a_call_ends_after_its_helpers(cause):
    """Also where waiting for them is interrupted, or one of them fails: the arrays may be used for other things then."""

    def interrupted(*_):
        raise KeyboardInterrupt

    begun, done, caller = threading.Barrier(3), [], threading.current_thread()

    def function(first, last):
        place = begun.wait(10)
        if threading.current_thread() is caller:
            if cause is KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            return
        if cause is MemoryError and not failing.acquire(blocking=False):
            raise MemoryError
        time.sleep(0.5)
        done.append(place)

    failing = threading.Lock()
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        with pytest.raises(cause):
            threads._together(function, 3, [0, 1, 2, 3], ())
        assert len(done) == (1 if cause is MemoryError else 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
