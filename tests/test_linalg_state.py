"""Solvers and preconditioners swap whole states: an update that is interrupted anywhere, or runs beside solves."""

import gc
import os
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from checks import PRECISIONS, assert_same_bits, get, put
from test_team import _copy, loop

import cvrarray
from cvrarray import linalg
from cvrarray.cpu.runtime.team import Steps, Work
from cvrarray.linalg import system

PACKAGE = os.path.dirname(cvrarray.__file__)
N = 300
OLD = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
NEW = (OLD @ OLD + 3 * scipy.sparse.eye_array(N)).multiply(abs(OLD) > 0).tocsr()  # the same structure
NAMES = "jacobi", "block_jacobi"
MAKE = {"jacobi": linalg.jacobi, "block_jacobi": lambda A: linalg.block_jacobi(A, 2), "chebyshev": linalg.chebyshev}


def matrices(device):
    A = cvrarray.BBCSRArray(OLD, block_size=2, device=device)
    return A, cvrarray.BBCSRArray(NEW, block_size=2, device=device)


class Stop:
    """Raises in the line number `at` of this package that `call` runs; how many lines there were."""

    def __init__(self, at, error):
        self.at, self.error, self.n = at, error, 0

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.n += 1
            if self.n == self.at:
                raise self.error
        return self

    def run(self, call):
        """Whether `call` was stopped."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except (KeyboardInterrupt, MemoryError):
            return True
        finally:
            sys.settrace(before)
        return False


def lines(make_call, samples):
    """Numbers of lines at which to stop what `make_call` makes: the last ones, and some before."""
    counter = Stop(0, None)
    make_call()()  # what is compiled or remembered once
    counter.run(make_call())
    return sorted({*np.linspace(1, counter.n, samples).astype(int).tolist(), *range(max(1, counter.n - 8), counter.n + 1)})


def is_solved(S, x, b, rtol):
    return np.linalg.norm(b - S @ get(x)) <= rtol * np.linalg.norm(b)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("M", [None, *NAMES])
def test_an_interrupted_update_leaves_the_old_system_or_the_new(M, error, device):
    A, B = matrices(device)
    b = np.sin(np.arange(1.0, N + 1))
    for precision in PRECISIONS[device]:
        solver = linalg.CG(A, M=M, rtol=1e-9, precision=precision)
        solver.solve(put(b, device))

        def updated_and_solved(A=B, solver=solver):
            solver.update(A)
            return solver.solve(put(b, device))

        for at in lines(lambda call=updated_and_solved: call, 12):
            updated_and_solved(A)
            if Stop(at, error).run(updated_and_solved):
                gc.collect()
            found = solver.solve(put(b, device))
            assert found.converged, (at, found.reason)
            assert is_solved(OLD, found.x, b, 1.1e-9) or is_solved(NEW, found.x, b, 1.1e-9), at


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", MAKE)
def test_an_interrupted_update_of_a_preconditioner_changes_nothing_or_all(name, error, device):
    A, B = matrices(device)
    r = put(np.cos(np.arange(float(N))), device)
    old, new = (get(MAKE[name](one).matvec(r)).copy() for one in (A, B))
    for at in lines(lambda: lambda: MAKE[name](A).update(B), 30):
        M = MAKE[name](A)
        Stop(at, error).run(lambda M=M: M.update(B))
        found = get(M.matvec(r))
        assert np.array_equal(found, old) or np.array_equal(found, new), at
        assert linalg.CG(A, M=M, rtol=1e-8).solve(r).converged


@pytest.mark.parametrize("name", MAKE)
def test_a_solve_keeps_the_preconditioner_that_it_began_with(name, device):
    """Updated from a callback, which is a thread beside it that comes at the worst time: the same bits as without."""
    A, B = matrices(device)
    b = put(np.sin(np.arange(1.0, N + 1)), device)
    for solve in (linalg.cg, partial(linalg.gmres, callback_type="pr_norm"), linalg.minres, linalg.bicgstab):
        M = MAKE[name](A)
        expected, info = solve(A, b, M=M, rtol=1e-9, callback=lambda x: None)
        found, again = solve(A, b, M=M, rtol=1e-9, callback=lambda x, M=M: M.update(B))
        assert info == again == 0
        assert_same_bits(found, expected)


@pytest.mark.parametrize("name", MAKE)
def test_a_solver_takes_the_numbers_that_its_preconditioner_has_now(name, device):
    A, B = matrices(device)
    b = put(np.sin(np.arange(1.0, N + 1)), device)
    M = MAKE[name](A)
    solver = linalg.CG(A, M=M, rtol=1e-9)
    solver.solve(b)
    M.update(B)
    assert_same_bits(solver.solve(b).x, linalg.CG(A, M=MAKE[name](B), rtol=1e-9).solve(b).x)


@pytest.mark.parametrize("M", MAKE)
def test_updates_beside_solves(M, device):
    A, B = matrices(device)
    b, errors, over = np.sin(np.arange(1.0, N + 1)), [], threading.Event()
    owned = None if M in NAMES else MAKE[M](A)
    solver = linalg.CG(A, M=M if owned is None else owned, rtol=1e-9)
    solver.solve(put(b, device))

    def solve(columns):
        try:
            side = put(np.repeat(b[:, None], columns, axis=1), device) if columns else put(b, device)
            for _ in range(15):
                found = solver.solve(side)
                x = get(found.x).reshape(N, -1)
                for column in x.T:
                    assert is_solved(OLD, column, b, 1.1e-9) or is_solved(NEW, column, b, 1.1e-9), found.reason
        except BaseException as error:
            errors.append(error)

    def update():
        try:
            while not over.is_set():
                for one in (B, A):
                    if owned is not None:
                        owned.update(one)
                    solver.update(one)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        updating, *solving = [
            threading.Thread(target=update),
            *(threading.Thread(target=solve, args=(columns,)) for columns in (0, 0, 2, 9)),
        ]
        for thread in (updating, *solving):
            thread.start()
        for thread in solving:
            thread.join()
    finally:
        over.set()
        updating.join()
        sys.setswitchinterval(interval)
    assert not errors, errors


def test_a_solve_within_a_solve(device):
    """M updates the solver that applies it, and solves with it."""
    A, B = matrices(device)
    b, inner = put(np.ones(N), device), []

    def within(x):
        if not inner:
            inner.append(None)
            solver.update(B)
            inner[0] = solver.solve(b)
        return x

    M = SimpleNamespace(shape=(N, N), dtype=np.dtype(float), matvec=within)
    solver = linalg.CG(A, M=M, rtol=1e-9)
    found = solver.solve(b)
    assert is_solved(OLD, found.x, np.ones(N), 1.1e-9) and is_solved(NEW, inner[0].x, np.ones(N), 1.1e-9)


def test_a_table_keeps_what_it_points_to():
    source, to = np.arange(8), np.zeros(8, np.int64)
    steps = Steps()
    steps.add((Work(_copy, (source, to), np.arange(9)), None))
    group, call = loop(steps, 8)
    seen = sys.getrefcount(to)
    del steps
    gc.collect()
    assert sys.getrefcount(to) == seen
    with group:
        group.rounds(call(group), 1)
    assert (to == source).all()
    del call
    gc.collect()
    assert sys.getrefcount(to) < seen


@pytest.mark.parametrize("skew", [0, 1e-6, 0.9])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_coarsest_level_need_not_be_symmetric(skew, dtype, device):
    S = np.diag(np.full(8, 3.0)) - (1 + skew) * np.diag(np.ones(7), 1) - (1 - skew) * np.diag(np.ones(7), -1)
    S = S.astype(dtype) if dtype == "float64" else S + 1j * skew * np.eye(8)
    b = np.arange(1.0, 9).astype(dtype)
    M = linalg.multigrid([SimpleNamespace(A=S)], device=device)
    np.testing.assert_allclose(S @ get(M.matvec(put(b, device))), b, rtol=1e-12)


def test_memory_of_threads_that_are_gone_is_given_back(monkeypatch):
    monkeypatch.setattr(system, "MOST_LANES", 2)
    A, b = matrices("cpu")[0], np.ones(N)
    M = linalg.chebyshev(A)
    solver, engines, vectors, together = linalg.CG(A, M=M), [], [], threading.Barrier(4)

    def solve():
        together.wait()  # one after the other may have the same number
        assert solver.solve(b).converged
        engines.append(weakref.ref(next(reversed(solver._lanes._recent.values()))))
        vectors.append(weakref.ref(next(reversed(M._workspace._sets._recent.values()))[0]))

    threads = [threading.Thread(target=solve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len({one() for one in engines} - {None}) <= 2
    assert len({id(one()) for one in vectors if one() is not None}) <= 2
