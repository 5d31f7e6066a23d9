"""CG and the power iteration on the workers that hold the panels: two processes of this machine, or one rank here."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import queue
import re
import signal
import threading
import time
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from checks import until
from scipy.sparse import csr_array, diags_array, eye_array, kron, kronsum, random_array
from scipy.sparse.linalg import cg as scipy_cg

import cvrarray

pytest.importorskip("distributed")
import dask
import dask.array as da
from distributed import Client, LocalCluster, wait

from cvrarray.dask import mesh, ranks, solve, transports

pytestmark = [
    pytest.mark.xdist_group("cluster"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets that a killed worker leaves
]

GRID = 12
cg = partial(cvrarray.dask.cg, rtol=1e-8)


def grid(n: int = GRID) -> csr_array:
    """7-point stencil of an n x n x n grid, definite: a row touches those n * n before and after it."""
    line = diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    plane = kronsum(line, line)
    return csr_array(kronsum(plane, line) + 0.1 * eye_array(n**3))


def scattered(n: int = 500, seed: int = 0) -> csr_array:
    a = random_array((n, n), density=0.01, rng=np.random.default_rng(seed), format="csr")
    return csr_array(a @ a.T + eye_array(n))


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", scheduler_port=0) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def spread(client, csr, sizes, places, format="bbcsr", device="cpu"):
    """A dask array of ours, with panel k on the worker number ``places[k]``."""
    workers = sorted(client.nthreads())
    d = cvrarray.to_dask(csr, chunks=tuple(sizes), format=format, device=device)
    name = f"spread-{time.monotonic()}"
    panels = dask.compute(*d.to_delayed().ravel(), scheduler="synchronous")
    futures = {
        (name, k, 0): client.submit(_identity, panel, key=(name, k, 0), workers=[workers[place]])
        for k, (panel, place) in enumerate(zip(panels, places, strict=True))
    }
    wait(list(futures.values()), timeout=60)
    return da.Array(futures, name, d.chunks, meta=d._meta)


def _identity(panel):
    return panel


def scipy_steps(csr, b, rtol=1e-8):
    steps = []
    x, failed = scipy_cg(csr, b, rtol=rtol, callback=steps.append)
    assert not failed
    return x, len(steps)


def check_solution(found, csr, b, rtol=1e-8):
    x = found.x.compute()
    assert x.dtype == found.x.dtype
    expected, steps = scipy_steps(csr, b, rtol)
    np.testing.assert_allclose(x, expected, atol=1e-6 * abs(expected).max())
    assert abs(found.iterations - steps) <= 1
    assert found.residual <= rtol
    assert np.linalg.norm(csr @ x - b) <= 1.1 * rtol * np.linalg.norm(b)


# ------------------------------------------------------------------------------------------------ without a cluster


@pytest.mark.parametrize("persisted", [False, True])
def test_one_rank_here(persisted):
    csr = grid()
    b = np.cos(np.arange(csr.shape[0]))
    A = cvrarray.to_dask(csr, chunks=500, device="cpu")
    found = cg(A.persist() if persisted else A, b)
    assert found.traffic.transport == "none" and found.traffic.bytes_moved == 0 and found.traffic.seconds > 0
    assert found.x.chunks == (A.chunks[0],)
    check_solution(found, csr, b)


def test_start_and_limits():
    csr = grid(6)
    A = cvrarray.to_dask(csr, chunks=50, device="cpu")
    b = csr @ np.arange(216.0)
    again = cg(A, b, x0=np.arange(216.0))
    assert again.iterations == 0 and np.isnan(again.traffic.seconds)
    np.testing.assert_array_equal(again.x.compute(), np.arange(216.0))
    stopped, met = cg(A, b, rtol=0, maxiter=3), cvrarray.dask.cg(A, b)
    assert (stopped.iterations, stopped.converged, stopped.reason, stopped.info) == (3, False, "maxiter", 3)
    assert (met.converged, met.reason, met.info) == (True, "converged", 0) and 1e-8 < met.residual <= 1e-5  # as linalg.cg
    nothing = cg(A, np.zeros(216), x0=np.ones(216))
    assert nothing.residual == 0 and not nothing.x.compute().any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("M", [None, "jacobi"])
@pytest.mark.parametrize("check_every", [1, 500])
def test_no_tolerance_and_extreme_numbers(dtype, M, check_every):
    """With rtol=0 a solve ends where the precision does; and squares of b's numbers may be 0 or inf."""
    csr = grid(6).astype(dtype)
    A = cvrarray.to_dask(csr, chunks=50, device="cpu")
    b = np.cos(np.arange(216)).astype(dtype)
    limits = np.finfo(dtype)
    for exponent in (0, limits.maxexp - 10, -limits.maxexp + 40):
        scale = b.real.dtype.type(2.0**exponent)
        found = cg(A, scale * b, M=M, rtol=0, maxiter=2000, check_every=check_every)
        x = found.x.compute() / scale
        assert found.residual <= limits.eps and found.iterations < 2000
        assert np.linalg.norm(csr @ x - b) <= 50 * limits.eps * np.linalg.norm(b)


@pytest.mark.parametrize("format", ["bbcsr", "cvr"])
@pytest.mark.parametrize("M", ["jacobi", "block_jacobi"])
@pytest.mark.parametrize("check_every", [1, 7])
def test_preconditioners(format, M, check_every, device):
    """As cvrarray.linalg has them, but for blocks that a panel's end would cut."""
    csr = grid()
    scale = diags_array(10.0 ** (np.arange(csr.shape[0]) % 4))
    csr = csr_array(scale @ csr @ scale)
    b = np.cos(np.arange(csr.shape[0]))
    A = cvrarray.to_dask(csr, chunks=480, format=format, device=device)
    found = cg(A, b, M=M, block_size=4 if M == "block_jacobi" else None, check_every=check_every)
    x = cvrarray.core.devices.move(found.x.compute(), cvrarray.core.devices.CPU)
    assert np.linalg.norm(csr @ x - b) <= 1.1e-8 * np.linalg.norm(b)
    inner = cvrarray.CVRArray(csr)
    preconditioner = cvrarray.linalg.jacobi(inner) if M == "jacobi" else cvrarray.linalg.block_jacobi(inner, 4)
    one = cvrarray.linalg.CG(inner, M=preconditioner, rtol=1e-8).solve(b)
    assert one.iterations - 1 <= found.iterations <= one.iterations + check_every
    start = cg(A, b, x0=x, M="jacobi", check_every=3)
    assert start.iterations <= 3


@pytest.mark.parametrize("format", ["bbcsr", "cvr"])
def test_multigrid(format, device):
    """Each panel's square is a V-cycle's: of one panel that of cvrarray.linalg, of four still much better than Jacobi."""
    csr = csr_array(grid(16) - 0.1 * eye_array(16**3))
    b = np.cos(np.arange(csr.shape[0]))
    A = cvrarray.to_dask(csr, chunks=csr.shape[0], format=format, device=device)
    whole, quarters = cg(A, b, M="multigrid"), cg(A.rechunk((1024, csr.shape[0])), b, M="multigrid")
    inner = cvrarray.CVRArray(csr, device="cpu")
    one = cvrarray.linalg.CG(inner, M=cvrarray.linalg.multigrid(inner), rtol=1e-8).solve(b)
    assert abs(whole.iterations - one.iterations) <= 1
    for found in (whole, quarters):
        x = cvrarray.core.devices.move(found.x.compute(), cvrarray.core.devices.CPU)
        assert np.linalg.norm(csr @ x - b) <= 1.1e-8 * np.linalg.norm(b)
    assert whole.iterations < quarters.iterations < 0.7 * cg(A, b, M="jacobi").iterations


def test_multigrid_in_blocks():
    body = csr_array(kron(grid(8), np.array([[2.0, 1, 0], [1, 2, 1], [0, 1, 2]])))
    A = cvrarray.to_dask(body, chunks=768, format="cvr", device="cpu")
    assert cg(A, np.ones(1536), M="multigrid", block_size=3).converged
    with pytest.raises(ValueError, match="block_size must divide the number of rows, 768; got 5"):
        cg(A.blocks[0][:, :768], np.ones(768), M="multigrid", block_size=5)
    with pytest.raises(TypeError, match="multigrid needs real numbers"):
        cg(A.astype(complex), np.ones(1536), M="multigrid")


@pytest.mark.parametrize("M", ["block_jacobi", "multigrid"])
def test_panels_begin_with_a_block(M):
    """Else their blocks are none of A's, and block Jacobi takes more iterations than Jacobi."""
    body = csr_array(kron(grid(8), np.array([[2.0, 1, 0], [1, 2, 1], [0, 1, 2]])))
    A = cvrarray.to_dask(body, chunks=1000, format="bbcsr", block_size=3, device="cpu")
    size = 3 if M == "multigrid" else None
    message = (
        rf"for M='{M}'; panel 1 begins at row 1000, the block size is 3\. "
        r"Use A\.rechunk\(\{0: 1002\}\)\.persist\(\), or chunks= that are multiples of 3"
    )
    with pytest.raises(ValueError, match=message):
        cg(A, np.ones(1536), M=M, block_size=size)
    found = cg(A.rechunk({0: 1002}).persist(), np.ones(1536), M=M, block_size=size)
    assert found.converged and found.x.chunks == ((1002, 534),)


def test_iterations_after_the_solution_change_nothing():
    A = cvrarray.to_dask(2 * np.eye(6), chunks=2, device="cpu")
    found = cg(A, np.ones(6), check_every=5)
    np.testing.assert_array_equal(found.x.compute(), np.full(6, 0.5))
    assert found.residual == 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("M", "check_every"), [(None, 1), ("jacobi", 7)])
def test_without_a_tolerance_rounding_is_the_end(dtype, M, check_every, device):
    """What iterations update goes on to numbers whose squares vanish; the true residual does not."""
    csr = grid(6)
    b = csr @ np.arange(216.0)
    A = cvrarray.to_dask(csr.astype(dtype), chunks=50, device=device)
    found = cg(A, b.astype(dtype), rtol=0, M=M, check_every=check_every, maxiter=3000)
    assert found.iterations < 1000
    x = cvrarray.core.devices.move(found.x.compute(), cvrarray.core.devices.CPU)
    true = np.linalg.norm(csr @ x - b) / np.linalg.norm(b)
    assert true < 20 * np.finfo(dtype).eps
    assert 0 <= found.residual < 20 * np.finfo(dtype).eps


def test_power_iteration_here():
    csr = csr_array(diags_array(np.r_[np.linspace(0, 1, 99), -1.5]))
    found = cvrarray.dask.power_iteration(cvrarray.to_dask(csr, chunks=30, format="cvr", device="cpu"))
    assert found.value == pytest.approx(-1.5, rel=1e-10)
    np.testing.assert_allclose(abs(found.x.compute()), np.eye(100)[99], atol=1e-5)
    csr.data[3] = np.nan  # it ended at maxiter, with eigenvalue nan
    with pytest.raises(ValueError, match=r"A must be finite; got .* in iteration 1"):
        cvrarray.dask.power_iteration(cvrarray.to_dask(csr, chunks=30, format="cvr", device="cpu"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"A": np.eye(3)}, TypeError, r"A must be a dask array .*to_dask\(A\)"),
        ({"A": lambda: cvrarray.to_dask(np.ones((4, 3)), device="cpu")}, ValueError, r"A must be square; got shape \(4, 3\)"),
        ({"A": da.ones((4, 4), chunks=(4, 2))}, ValueError, "whole rows; got 2 chunks side by side. Use A.rechunk"),
        ({"A": da.eye(4, chunks=4)}, TypeError, "chunks of A must be cvrarray's arrays; got ndarray. Use cvrarray.to_dask"),
        ({"b": np.ones(3)}, ValueError, r"b must have shape \(4,\) for A of shape \(4, 4\); got \(3,\)"),
        ({"x0": np.ones((4, 1))}, ValueError, r"x0 must have shape \(4,\)"),
        ({"b": np.ma.masked_equal(np.arange(4.0), 2)}, TypeError, "b must hold all its values; got a masked array"),
        ({"x0": da.ma.masked_equal(da.ones(4), 2)}, TypeError, "x0 must hold all its values; got a masked array"),
        ({"transport": "mpi"}, ValueError, "transport must be 'auto', 'nccl' or 'host'; got 'mpi'"),
        ({"M": "ilu"}, ValueError, "M must be None, 'jacobi' or 'block_jacobi' or 'multigrid'; got 'ilu'"),
        ({"M": np.eye(4)}, ValueError, "M must be None, 'jacobi' or 'block_jacobi' or 'multigrid'; got array"),
        ({"x0": np.full(4, np.nan)}, ValueError, "A and x0 must be finite; got p @ A @ p = nan in iteration 1"),
        ({"check_every": 0}, ValueError, "check_every must be a whole number from 1; got 0"),
        ({"M": "block_jacobi", "block_size": 0}, ValueError, "block_size must be a whole number from 1; got 0"),
        ({"rtol": -1}, ValueError, "rtol must be a real number from 0; got -1"),
        ({"maxiter": 1.5}, ValueError, "maxiter must be a whole number from 0; got 1.5"),
        ({"b": np.full(4, np.nan)}, ValueError, "b must be finite; its length is nan"),
        (
            {"A": lambda: cvrarray.to_dask(-np.eye(4), device="cpu")},
            ValueError,
            "A must be positive definite .* iteration 1",
        ),
    ],
)
def test_errors(change, error, message):
    arguments = {"A": cvrarray.to_dask(np.eye(4), device="cpu"), "b": np.ones(4)} | change
    A, b = arguments.pop("A"), arguments.pop("b")
    with pytest.raises(error, match=message):
        cg(A() if callable(A) else A, b, **arguments)


def test_runs_of_rows():
    assert ranks.runs(((0, 3), (3, 3), (3, 5), (7, 9))) == [(0, 5), (7, 9)]
    assert ranks.runs(((2, 2),)) == []


# ------------------------------------------------------------------------------------------------ two workers


@pytest.mark.parametrize("places", [(0, 1), (0, 0, 1, 1), (1, 0, 1, 0)], ids=str)
def test_two_workers(places, client):
    csr = grid()
    n = csr.shape[0]
    b = np.cos(np.arange(n))
    size = n // len(places)
    A = spread(client, csr, [size] * len(places), places)
    found = cg(A, b)
    assert holders(client, found.x) == holders(client, A)  # before a compute makes copies
    check_solution(found, csr, b)
    assert found.traffic.transport == "host"
    borders = sum(a != b for a, b in zip(places[:-1], places[1:], strict=True))
    # over each border between ranks a plane of the grid goes either way; two ranks tell each other two numbers
    assert found.traffic.bytes_moved == 8 * (2 * borders * GRID**2 + 2 * 2)
    again = cg(A, b)
    np.testing.assert_array_equal(found.x.compute(), again.x.compute())
    assert found.residual == again.residual


def holders(client, array):
    """Panel -> the workers that hold it."""
    return {key[1]: set(addresses) for key, addresses in client.who_has(client.futures_of(array)).items()}


def test_a_preconditioner_on_two_workers(client):
    csr = grid()
    b = np.sin(np.arange(csr.shape[0]))
    A = spread(client, csr, [480, 480, 480, 288], [0, 1, 1, 0])
    found = cg(A, b, M="block_jacobi", block_size=6, check_every=4)
    x = found.x.compute()
    assert np.linalg.norm(csr @ x - b) <= 1.1e-8 * np.linalg.norm(b)
    again = cg(A, b, M="block_jacobi", block_size=6, check_every=4).x.compute()
    np.testing.assert_array_equal(x, again)
    cycles = [cg(A, b, M="multigrid") for _ in range(2)]
    assert cycles[0].converged and cycles[0].iterations < found.iterations
    np.testing.assert_array_equal(*(cycle.x.compute() for cycle in cycles))


@pytest.mark.parametrize("format", ["cvr", "bbcsr"])
def test_scattered_columns(format, client):
    csr = scattered()
    b = np.random.default_rng(1).random(500)
    A = spread(client, csr, (200, 100, 0, 200), (0, 1, 0, 1), format)
    found = cg(A, da.from_array(b, chunks=70))
    check_solution(found, csr, b)
    assert 8 * 400 < found.traffic.bytes_moved <= 8 * (500 + 4)


def test_what_nobody_touches_does_not_move(client):
    csr = csr_array(diags_array(np.arange(1.0, 101)))
    found = cg(spread(client, csr, (50, 50), (1, 0)), np.ones(100))
    assert found.traffic.bytes_moved == 8 * 4
    np.testing.assert_allclose(found.x.compute(), 1 / np.arange(1.0, 101), rtol=1e-6)


def test_power_iteration_on_two_workers(client):
    csr = scattered()
    found = cvrarray.dask.power_iteration(spread(client, csr, (250, 250), (0, 1)), rtol=1e-7)
    assert found.value == pytest.approx(np.linalg.eigvalsh(csr.toarray())[-1], rel=1e-9)
    assert found.traffic.transport == "host" and found.residual <= 1e-7


def test_panels_are_not_converted_again(client):
    csr = grid()
    A = spread(client, csr, [GRID**3 // 2] * 2, (0, 1))
    client.run(_count_conversions)
    cg(A, np.ones(GRID**3))
    assert sum(client.run(_conversions).values()) == 0


def _count_conversions():
    from cvrarray.choice import model

    plain, model.conversions = cvrarray.BBCSRArray.__init__, 0

    def counted(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        model.conversions += self.nnz

    cvrarray.BBCSRArray.__init__ = counted


def _conversions():
    from cvrarray.choice import model

    return model.conversions


def test_a_matrix_that_is_not_persisted(client):
    csr = grid()
    found = cg(cvrarray.to_dask(csr, chunks=500, device="cpu"), da.ones(csr.shape[0], chunks=100))
    check_solution(found, csr, np.ones(csr.shape[0]))


def test_workers_in_one_process():
    """Threads as workers, which talk through queues."""
    csr = grid(6)
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            found = cg(spread(client, csr, (72, 72, 72), (2, 1, 0)), np.ones(216))
            assert found.traffic.transport == "host" and found.traffic.bytes_moved == 8 * (4 * 36 + 2 * 6)
            check_solution(found, csr, np.ones(216))


class Threads:
    """In place of NCCL, for ranks that are threads: its calls, on NumPy's memory."""

    NCCL_INT8 = 0

    def __init__(self):
        self.queues, self.groups, self.ended = defaultdict(queue.Queue), threading.local(), []

    def get_unique_id(self):
        return b"name"

    def groupStart(self):
        self.groups.receives = []

    def groupEnd(self):
        for source, target, address, size in self.groups.receives:
            ctypes.memmove(address, self.queues[source, target].get(timeout=30), size)

    def NcclCommunicator(self, n_ranks, name, rank):
        assert name == b"name" and type(name) is bytes
        return SimpleNamespace(
            send=lambda address, size, kind, peer, stream: self.queues[rank, peer].put(ctypes.string_at(address, size)),
            recv=lambda address, size, kind, peer, stream: self.groups.receives.append((peer, rank, address, size)),
            allGather=lambda own, begin, size, kind, stream: self.gather(n_ranks, rank, own, begin, size),
            check_async_error=lambda: None,
            destroy=lambda: self.ended.append("destroy"),
            abort=lambda: self.ended.append("abort"),
        )

    def gather(self, n_ranks, rank, own, begin, size):
        assert own == begin + rank * size
        for peer in range(n_ranks):
            self.queues[rank, peer, "all"].put(ctypes.string_at(own, size))
        for peer in range(n_ranks):
            ctypes.memmove(begin + peer * size, self.queues[peer, rank, "all"].get(timeout=30), size)


def test_what_nccl_is_told(monkeypatch):
    """The whole way with NCCL, but for NCCL and the GPU: the same bits as through the workers' connections."""
    csr = grid(6)
    fake = Threads()
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            A = spread(client, csr, (36, 36, 72, 36, 36), (2, 1, 0, 1, 2))
            expected = cg(A, np.ones(216))
            monkeypatch.setattr(transports, "nccl", lambda: fake)
            monkeypatch.setattr(transports, "_gpu", lambda device: threading.get_ident())
            monkeypatch.setattr(transports, "_stream", lambda: 0)
            monkeypatch.setattr(transports, "_address", lambda array: array.ctypes.data)
            found = cg(A, np.ones(216))
            assert found.traffic.transport == "nccl" and fake.ended == ["destroy"] * 3
            assert found.traffic.bytes_moved == expected.traffic.bytes_moved and found.iterations == expected.iterations
            np.testing.assert_array_equal(found.x.compute(), expected.x.compute())
            with pytest.raises(ValueError, match="A must be positive definite"):
                cg(-A, np.ones(216))
            assert fake.ended[3:] == ["abort"] * 3


# ------------------------------------------------------------------------------------------------ what goes wrong


def endless(client, meanwhile=lambda: None, **options):
    """A solve in a thread that does not end by itself, and what it raises."""
    A = spread(client, grid(), [GRID**3 // 2] * 2, (0, 1))
    meanwhile()
    raised = []

    def solve_it():
        try:
            b = np.cos(np.arange(GRID**3))  # nobody looks at the residual before the last iteration
            cg(A, b, rtol=0, maxiter=10**9, check_every=10**9, **options)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=solve_it)
    thread.start()
    return thread, raised


def _working(dask_worker):
    return bool(dask_worker.state.executing)


def test_a_rank_that_fails_ends_all(client):
    """Indefinite: all ranks notice. A chunk of another type: one does, and the caller gets that one's error."""
    csr = grid()
    csr.data *= np.where(np.arange(csr.nnz) < csr.nnz // 2, 1, -1)
    with pytest.raises(ValueError, match="A must be positive definite"):
        cg(spread(client, csr, [GRID**3 // 2] * 2, (0, 1)), np.ones(GRID**3))
    A = spread(client, grid(), [GRID**3 // 2] * 2, (0, 1))
    mixed = A.map_blocks(_dense_last, dtype=A.dtype, meta=A._meta).persist()
    with pytest.raises(TypeError, match="chunks of A must be cvrarray's arrays; got ndarray"):
        cg(mixed, np.ones(GRID**3))
    with pytest.raises(ValueError, match="transport 'nccl' needs a GPU of its own for each worker"):
        cg(A, np.ones(GRID**3), transport="nccl")
    until(lambda: not any(client.run(_working).values()))


def _dense_last(chunk, block_id=None):
    return chunk.todense() if block_id[0] else chunk


def test_a_worker_without_a_free_thread(client):
    A = spread(client, grid(), [GRID**3 // 2] * 2, (0, 1))
    busy = client.submit(time.sleep, 8, workers=[sorted(client.nthreads())[1]], pure=False)
    until(lambda: any(client.run(_working).values()))
    with pytest.raises(RuntimeError, match=r"rank 1 on tcp://.* sent nothing for 0.5 s: is the worker busy"):
        cg(A, np.ones(GRID**3), timeout=0.5)
    assert not busy.done()  # a rank that has not begun is not waited for
    busy.result(timeout=60)
    until(lambda: not any(client.run(_working).values()))
    assert cg(A, np.ones(GRID**3)).residual < 1e-8  # nothing is left of the first call


def test_a_worker_killed_in_mid_solve(client):
    thread, raised = endless(client)
    until(lambda: sum(client.run(_working).values()) == 2)
    time.sleep(0.5)
    killed, pid = min(client.run(os.getpid).items())
    os.kill(pid, 9)
    thread.join(timeout=40)
    assert not thread.is_alive()
    assert isinstance(raised[0], RuntimeError), raised
    assert f"worker {killed} was lost while it held panels of A. Persist A again" in str(raised[0])
    client.wait_for_workers(2, timeout=60)
    until(lambda: not any(client.run(_working).values()))


@pytest.mark.parametrize("at", ["start", "solve"])
def test_a_worker_that_is_stopped(at, client, monkeypatch):
    """As one that swaps: it closes no connection, so nothing but its silence tells."""
    monkeypatch.setattr("cvrarray.dask.solve.LEAST_SILENCE", 1.0)
    (stopped, pid), (other, _) = sorted(client.run(os.getpid).items())

    def stop(when):
        if when == at:
            os.kill(pid, signal.SIGSTOP)

    try:
        thread, raised = endless(client, meanwhile=lambda: stop("start"), timeout=1)
        until(lambda: at == "start" or sum(client.run(_working).values()) == 2)
        stop("solve")
        begin = time.monotonic()
        thread.join(timeout=20)
        assert time.monotonic() - begin < 4  # nobody waits for the stopped one's farewell
        assert isinstance(raised[0], RuntimeError), raised
        assert re.search(f"{stopped} (does not answer|sent nothing)", str(raised[0])), raised
        assert client.submit(len, "abc", workers=[other], pure=False).result(timeout=10) == 3
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not any(client.run(_working).values()))
    A = spread(client, grid(), [GRID**3 // 2] * 2, (0, 1))
    assert cg(A, np.ones(GRID**3)).residual < 1e-8


def _watching(token, rank, addresses, fails):
    """A rank that is busy elsewhere, as with NCCL, and looks from time to time whether all are well: how it ended."""
    own, error = mesh.Mesh(token, rank, addresses, 10), None
    try:
        assert own.gather(rank * 10) == [0, 10]
        assert type(own.gather(b"bytes")[1 - rank]) is bytes  # as NCCL's names are
        assert set(own.gather(("host", "0000:01:00.0"))) == {("host", "0000:01:00.0")}  # as GPUs are told apart
        own.watch()
        if fails and rank == 1:
            raise ValueError("on purpose")
        end = time.monotonic() + (5 if fails else 0.2)
        while time.monotonic() < end:
            own.check()
            time.sleep(0.01)
    except Exception as found:
        error = found
    own.close(error)
    return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("fails", [False, True])
def test_a_watching_rank_learns_what_happened_elsewhere(fails, client):
    addresses = tuple(sorted(client.nthreads()))
    client.run(mesh.prepare, "watch")
    tasks = [client.submit(_watching, "watch", k, addresses, fails, workers=[a], pure=False) for k, a in enumerate(addresses)]
    ends = client.gather(tasks)
    client.run(mesh.forget, "watch")
    if fails:
        assert ends[0] == f"RankLost: rank 1 on {addresses[1]} ended with ValueError: on purpose"
        assert ends[1] == "ValueError: on purpose"
    else:
        assert ends == ["NoneType: None"] * 2


# ------------------------------------------------------------------------------------------------ GPUs


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_one_device(dtype, device):
    csr = grid().astype(dtype) if dtype != "int64" else csr_array((10 * grid()).astype(dtype))
    n = csr.shape[0]
    if dtype == "complex128":
        csr = csr_array(csr + 0.01j * diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[1, -1]))
    b = np.cos(np.arange(n)).astype("float32" if dtype == "float32" else "float64")
    A = cvrarray.to_dask(csr, chunks=500, format="cvr" if dtype == "int64" else "bbcsr", device=device).persist()
    found, again = (cg(A, b, rtol=1e-5) for _ in range(2))
    x = found.x.compute()
    assert cvrarray.core.devices.of(x) == cvrarray.core.devices.parse(device) and x.dtype == np.result_type(dtype, b.dtype)
    x = _to_host(x)
    np.testing.assert_array_equal(x, _to_host(again.x.compute()))
    assert np.linalg.norm(csr @ x - b) < 2e-5 * np.linalg.norm(b)
    assert abs(found.iterations - scipy_steps(csr.astype("complex128"), b, 1e-5)[1]) <= 2
    with pytest.raises(ValueError, match="A must be positive definite"):
        cg(cvrarray.to_dask(-csr, chunks=500, device=device), b)
    if dtype in ("float32", "float64"):
        largest = 0.1 + 3 * (2 + 2 * np.cos(np.pi / (GRID + 1)))
        assert cvrarray.dask.power_iteration(A, rtol=1e-2).value == pytest.approx(largest, rel=2e-2)


def test_an_abandoned_connection_is_not_reported(caplog):
    """asyncio logs the error of a future that nobody has looked at."""

    async def abandon():
        meeting = mesh.Meeting()
        assert not meeting.comms[1].done()
        meeting.end()
        with pytest.raises(mesh.RankLost, match="given up"):
            await meeting.wait_for(0)

    asyncio.run(abandon())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_distributed_without_what_the_mesh_uses_is_named():
    with pytest.raises(RuntimeError, match=r"distributed's Worker\.connection_args, which distributed \d+\.\S+ does not have"):
        asyncio.run(mesh.prepare("token", SimpleNamespace(address="tcp://a", handlers={})))


class OneRank:
    """A mesh of one: what NCCL needs of it, without a cluster."""

    rank, addresses = 0, ("here",)

    def gather(self, value):
        return [value]

    def watch(self):
        pass

    check = watch


def test_nccl(gpu):
    """One rank that sends to itself: CuPy's calls are the right ones. NCCL allows no two ranks on a GPU."""
    if transports.nccl() is None:
        pytest.skip("CuPy finds no NCCL: pip install nvidia-nccl-cu13")
    xp = cvrarray.core.devices.parse(gpu).xp
    device = cvrarray.core.devices.parse(gpu)
    with device.use():
        direct = transports.NcclTransport(OneRank())
        assert transports._gpu(device) is not None
        vector = xp.arange(10.0)
        direct.place([(0, vector[:3]), (0, vector[4:5])], [(0, vector[5:8]), (0, vector[9:])])
        direct.exchange()
        numbers = xp.full(1, 7.0)
        others = xp.full(1, 8.0)
        direct.gather(numbers, others)
        direct.check()
        np.testing.assert_array_equal(vector.get(), [0, 1, 2, 3, 4, 0, 1, 2, 8, 4])
        np.testing.assert_array_equal(xp.concatenate([numbers, others]).get(), [7, 8])
        direct.comm.destroy()


def test_two_workers_on_one_gpu(client, gpu):
    """Through host memory."""
    csr = grid()
    b = np.cos(np.arange(csr.shape[0]))
    found = cg(spread(client, csr, [500, 364, 864], (0, 1, 0), device=gpu), b)
    assert found.traffic.transport == "host"
    x = found.x.map_blocks(_to_host, dtype=float).compute()
    assert np.linalg.norm(csr @ x - b) < 1.1e-8 * np.linalg.norm(b)


def _to_host(chunk):
    return chunk.get() if hasattr(chunk, "get") else chunk


def test_the_client_that_holds_the_matrix(client):
    assert solve._client(spread(client, grid(4), (64,), (0,))) is client


def test_convergence_is_of_the_true_residual():
    """What updates of the residual promise and rounding does not keep is no success; from the true one it goes on."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    S = q @ np.diag(np.logspace(0, -8, 60)) @ q.T
    S, b = (S + S.T) / 2, rng.standard_normal(60)
    for rtol, reason in ((1e-10, "stagnation"), (1e-5, "converged")):
        found = cg(cvrarray.to_dask(S, chunks=30, format="cvr", device="cpu"), b, rtol=rtol, maxiter=6000)
        true = np.linalg.norm(b - S @ found.x.compute()) / np.linalg.norm(b)
        assert found.reason == reason
        assert found.residual == pytest.approx(true, rel=0.2)
    exact = cg(cvrarray.to_dask(np.diag(np.arange(1.0, 9)), chunks=3, format="cvr", device="cpu"), np.ones(8), rtol=0)
    assert not exact.converged or exact.residual == 0
