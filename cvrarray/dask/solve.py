"""Solvers over a matrix whose panels lie on several workers: panels stay, and only the needed parts of vectors move.

Each worker that holds panels runs one task for the whole solve (:mod:`cvrarray.dask.ranks`). An iteration does not
involve the scheduler, so it costs the time of the products, not of the scheduler's round trips. This module is the
caller's side: where panels lie, the tasks, and what happens if one of them fails. See
``docs/architecture.md``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from ..core import devices
from ..linalg import arguments
from ..linalg.solution import CONVERGED, MAXITER, STAGNATION, Solution
from . import mesh, ranks, registry

GRACE = 10.0  #: seconds that the other ranks have to end after the first has failed
LEAST_SILENCE = 5.0  #: seconds; a task that holds the GIL for less is no reason to give a worker up


class Traffic(NamedTuple):
    """What an iteration costs on several workers.

    Attributes
    ----------
    bytes_moved : int
        Bytes that all workers together send in an iteration: windows of a vector, and two numbers of each,
        or three with a preconditioner.
    seconds : float
        Of an iteration, the median; nan without an iteration.
    transport : str
        ``"nccl"``, ``"host"`` (the workers' connections) or ``"none"`` (one worker).

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> traffic = cvrarray.dask.cg(A, np.ones(3)).traffic
    >>> traffic.transport, traffic.bytes_moved
    ('none', 0)
    """

    bytes_moved: int
    seconds: float
    transport: str


class Eigenpair(NamedTuple):
    """What :func:`power_iteration` returns.

    Attributes
    ----------
    value : float
        The eigenvalue of largest modulus.
    x : (n,) dask array
        Its eigenvector, of length 1, in A's chunks of rows.
    iterations : int
    residual : float
        ``|A x - value x| / |value|``.
    traffic : Traffic

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> pair = cvrarray.dask.power_iteration(A)
    >>> pair.iterations > 1, pair.residual <= 1e-6, abs(pair.x.compute()).round(3)
    (True, True, array([0., 0., 1.]))
    """

    value: float
    x: da.Array
    iterations: int
    residual: float
    traffic: Traffic


def cg(
    A: da.Array,
    b: Any,
    *,
    x0: Any = None,
    M: str | None = None,
    block_size: int | None = None,
    rtol: float = 1e-5,
    maxiter: int | None = None,
    check_every: int = 1,
    timeout: float = 60,
    transport: str = "auto",
) -> Solution:
    """Solve ``A @ x = b`` by conjugate gradients, on the workers that hold A.

    Parameters
    ----------
    A : (n, n) dask array of our arrays, symmetric (Hermitian) and positive definite
        In panels of whole rows, as :func:`cvrarray.to_dask` makes them. If it is not persisted, this call persists it
        until the end. Without a distributed client everything runs in this process.
    b : (n,) dask array or array
    x0 : (n,) dask array or array, optional
        Initial guess. Default: 0.
    M : {None, "jacobi", "block_jacobi", "multigrid"}
        A preconditioner from the diagonal, or from the blocks on it: see :func:`cvrarray.linalg.block_jacobi`. Blocks
        are counted from each panel's first row, which must be a multiple of their size. ``"multigrid"``, for a real A: the
        block of each panel's own rows and columns, by a V-cycle of :func:`cvrarray.linalg.multigrid` with its defaults.
        Nothing moves for any of them, so iterations grow with the number of panels; a panel for each worker is best.
    block_size : int, optional
        Of ``"block_jacobi"`` and ``"multigrid"``. Default: that of BBCSR's panels.
    rtol : float
        The residual's norm at the end, over that of `b`. Less than a 16th of the precision (``numpy.finfo(...).eps``)
        counts as that: below it the residual that iterations update has nothing to do with the true one.
    maxiter : int, optional
        The most iterations. Default: ``10 * n``.
    check_every : int
        Iterations from one test of the residual to the next; between them no GPU waits for the host.
    timeout : float
        Seconds that workers may take to begin (each needs a free thread for the whole solve) and, with transport
        ``"host"``, to send the messages of an iteration. A worker that answers nothing at all for as long, and for at
        least 5 s, is given up.
    transport : {"auto", "nccl", "host"}
        How vectors move. ``"nccl"``: from GPU to GPU, for workers with one GPU each. ``"host"``: over the workers'
        connections, through host memory. ``"auto"``: NCCL if it can be used.

    Returns
    -------
    cvrarray.linalg.Solution
        x is a dask array in A's chunks of rows; on a cluster they lie on the workers that hold those rows. It has the dtype
        of ``A @ b``, or double precision if that is an integer dtype. ``residual`` is the true one, and ``traffic``
        what an iteration costs. Every run on the same workers gives the same bits.

    Raises
    ------
    ValueError
        Shapes or chunks do not fit; A turns out not to be positive definite, or A, b or x0 not to be finite.
    TypeError
        Chunks are not our arrays, or b or x0 is masked.
    RuntimeError
        A worker was lost, is stopped, or did not take part within `timeout`: the message names it. No task is left
        behind, except on a stopped worker, where it ends when the worker goes on.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> solution = cvrarray.dask.cg(A, np.ones(3))
    >>> solution.x.compute().round(6)
    array([1.  , 0.5 , 0.25])
    >>> solution.iterations
    3
    """
    _check_matrix(A)
    known = {"b": b} if x0 is None else {"b": b, "x0": x0}
    if not (M is None or (isinstance(M, str) and M in ranks.PRECONDITIONERS)):
        raise ValueError(f"M must be None, {' or '.join(map(repr, ranks.PRECONDITIONERS))}; got {M!r}")
    limits = arguments.tolerance(rtol, "rtol"), arguments.count(maxiter, "maxiter", 10 * A.shape[0])
    size = None if block_size is None else arguments.count(block_size, "block_size", 1, 1)
    options = (*limits, M, size, arguments.count(check_every, "check_every", 1, 1))
    x, answer = _solve("cg", A, known, options, timeout, transport)
    converged = bool(answer.residual <= rtol)
    reason = CONVERGED if converged else MAXITER if answer.iterations >= limits[1] else STAGNATION
    return Solution(x, answer.iterations, answer.residual, converged, reason, traffic=Traffic(*answer[4:]))


def power_iteration(
    A: da.Array,
    *,
    x0: Any = None,
    rtol: float = 1e-6,
    maxiter: int = 1000,
    timeout: float = 60,
    transport: str = "auto",
) -> Eigenpair:
    """The eigenvalue of largest modulus of a symmetric (Hermitian) A, and its eigenvector, on the workers that hold A.

    Parameters
    ----------
    A, timeout, transport
        As for :func:`cg`; A need not be definite.
    x0 : (n,) dask array or array, optional
        Where to begin. Default: random numbers, the same in every call.
    rtol : float
        ``|A x - value x| / |value|`` at the end; rounding hides less than about 1e-8 (1e-4 in single precision).
    maxiter : int
        Where to stop in any case: compare ``residual`` with `rtol`.

    Returns
    -------
    Eigenpair

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As for :func:`cg`.

    Examples
    --------
    >>> A = cvrarray.to_dask(np.diag([1.0, 2, 4]), chunks=2, format="cvr", device="cpu")
    >>> round(cvrarray.dask.power_iteration(A, rtol=1e-6).value, 6)
    4.0
    """
    _check_matrix(A)
    if x0 is None:
        x0 = da.random.default_rng(0).random(A.shape[0], chunks=(A.chunks[0],), dtype=_dtype(A).type(0).real.dtype)
    limits = arguments.tolerance(rtol, "rtol"), arguments.count(maxiter, "maxiter", 1000)
    x, answer = _solve("power_iteration", A, {"x0": x0}, limits, timeout, transport)
    return Eigenpair(answer.value, x, answer.iterations, answer.residual, Traffic(*answer[4:]))


def _check_matrix(A: Any) -> None:
    if not isinstance(A, da.Array) or A.ndim != 2:
        raise TypeError(f"A must be a dask array of 2 dimensions; got {type(A).__name__}. Use cvrarray.to_dask(A)")
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"A must be square; got shape {A.shape}. For least squares see examples/lsqr_dask.py")
    if A.numblocks[1] != 1:
        raise ValueError(
            f"chunks of A must be whole rows; got {A.numblocks[1]} chunks side by side. Use A.rechunk({{1: -1}}).persist()"
        )


def _dtype(*arrays: Any) -> np.dtype:
    """The vectors' dtype: the product's, or double precision if that is not a floating-point dtype."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    return dtype if dtype.kind in "fc" and dtype.itemsize >= 4 else np.dtype("f4" if dtype == np.float16 else "f8")


def _solve(
    method: str, A: da.Array, known: dict[str, Any], options: tuple[Any, ...], timeout: float, transport: str
) -> tuple[da.Array, ranks.Answer]:
    """The vector, in chunks as A's rows, and the result's other fields."""
    _check_matrix(A)
    if transport not in ("auto", "nccl", "host"):
        raise ValueError(f"transport must be 'auto', 'nccl' or 'host'; got {transport!r}")
    registry.register()
    known = {name: da.asarray(vector) for name, vector in known.items()}
    for name, vector in known.items():
        if isinstance(vector._meta, np.ma.MaskedArray):
            raise TypeError(f"{name} must hold all its values; got a masked array. Use da.ma.filled({name}, 0)")
        if vector.shape != A.shape[:1]:
            raise ValueError(f"{name} must have shape {A.shape[:1]} for A of shape {A.shape}; got {vector.shape}")
    dtype = _dtype(A, *known.values())
    known = {name: vector.rechunk((A.chunks[0],)) for name, vector in known.items()}
    ends = np.cumsum([0, *A.chunks[0]]).tolist()
    rows = list(zip(ends[:-1], ends[1:], strict=True))
    client = _client(A)
    name = f"{method}-{uuid.uuid4().hex}"
    job = ranks.Job(name, ("",), (tuple(rows),), A.shape[0], dtype, timeout, transport)
    solve = _here if client is None else partial(_on_workers, client)
    parts, answer = solve(method, job, A, known, options)
    graph = HighLevelGraph.from_collections(name, {(name, k): part for k, part in enumerate(parts)})
    meta = getattr(A._meta, "_target", devices.CPU).xp.empty(0, dtype)
    return da.Array(graph, name, (A.chunks[0],), meta=meta), answer


def _client(A: da.Array) -> Any:
    """The client that holds A, else the current one; None if there is none."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    futures = distributed.futures_of(A)
    if futures:
        return futures[0].client
    try:
        return distributed.get_client()
    except ValueError:
        return None


def _here(
    method: str, job: ranks.Job, A: da.Array, known: dict[str, da.Array], options: tuple[Any, ...]
) -> tuple[list[Any], ranks.Answer]:
    """One rank, in this process."""
    panels, vectors = dask.compute(_blocks(A), {name: _blocks(vector) for name, vector in known.items()})
    answer = ranks.run(method, job, 0, panels, vectors, options)
    return answer.parts, answer


def _blocks(array: da.Array) -> list[Any]:
    blocks: list[Any] = array.to_delayed().ravel().tolist()
    return blocks


def _on_workers(
    client: Any, method: str, job: ranks.Job, A: da.Array, known: dict[str, da.Array], options: tuple[Any, ...]
) -> tuple[list[Any], ranks.Answer]:
    """A rank on each worker that holds panels; `job` is that of a single rank."""
    A, *vectors = client.persist([A, *known.values()])
    panels, *vectors = (_futures(array) for array in (A, *vectors))
    everything = [future for futures in (panels, *vectors) for future in futures]
    _finish(client, everything, job.timeout)
    (rows,) = job.rows
    held = _placed(client.who_has(panels), panels, rows)
    job = job._replace(addresses=tuple(held), rows=tuple(tuple(rows[k] for k in numbers) for numbers in held.values()))
    seconds = 0.0  # after an error workers are told, but not waited for: one may be stopped
    try:
        silent = _tell(client, mesh.prepare, job.token, held, max(job.timeout, LEAST_SILENCE))
        if silent:
            raise _unanswered(silent) from next(iter(silent.values()))
        tasks = []
        for rank, (address, numbers) in enumerate(held.items()):
            mine = [panels[k] for k in numbers]
            pieces = {name: [vector[k] for k in numbers] for name, vector in zip(known, vectors, strict=True)}
            name = f"{job.token}-{rank}"
            tasks.append(client.submit(ranks.run, method, job, rank, mine, pieces, options, key=name, **_only(address)))
        _wait(client, tasks, job)
        parts: list[Any] = [None] * len(rows)
        for task, (address, numbers) in zip(tasks, held.items(), strict=True):
            for position, k in enumerate(numbers):
                parts[k] = client.submit(_part, task, position, key=(job.token, k), **_only(address))
        answer = client.submit(_without_parts, tasks[0], key=f"{job.token}-answer", **_only(job.addresses[0]))
        _finish(client, [*parts, answer], job.timeout)
        seconds = mesh.FAREWELL
        return parts, answer.result()
    finally:
        _tell(client, mesh.forget, job.token, _alive(client, job.addresses), seconds)


def _finish(client: Any, futures: list[Any], timeout: float) -> None:
    """Wait for tasks; raise a task's error, or :class:`RuntimeError` if a worker does not answer."""
    from distributed import TimeoutError, wait

    pulse = _Pulse(client, timeout)
    while pending := [future for future in futures if future.status == "pending"]:
        try:
            wait(pending, timeout=0.5)
        except TimeoutError:
            if silent := pulse.silent(client.nthreads()):
                raise _unanswered(silent) from None
    for future in futures:
        if future.status != "finished":
            future.result()  # raises the task's error


def _call(client: Any, function: Any, *args: Any, address: str) -> concurrent.futures.Future[Any]:
    """Begin a call on a worker's event loop. ``client.run`` would wait as long as a worker is stopped."""
    call = client.run(function, *args, workers=[address], asynchronous=True)
    return asyncio.run_coroutine_threadsafe(call, client.loop.asyncio_loop)


def _tell(client: Any, function: Any, token: str, addresses: Iterable[str], seconds: float) -> dict[str, BaseException | None]:
    """Call a function of :mod:`~cvrarray.dask.mesh` on workers: those that failed, or did not answer in so many seconds."""
    calls = _calls(client, function, token, addresses, seconds)
    causes = {address: call.exception() if call.done() else None for address, call in calls.items()}
    return {address: cause for address, cause in causes.items() if cause or not calls[address].done()}


def _calls(
    client: Any, function: Any, token: str, addresses: Iterable[str], seconds: float
) -> dict[str, concurrent.futures.Future[Any]]:
    """Of each worker the call, done or not, after so many seconds."""
    calls = {address: _call(client, function, token, address=address) for address in addresses}
    concurrent.futures.wait(calls.values(), timeout=seconds)
    return calls


def _abandon(client: Any, token: str, addresses: Iterable[str]) -> set[str]:
    """End a solve on these workers: those whose rank had not begun, as other tasks take all threads."""
    calls = _calls(client, mesh.forget, token, addresses, mesh.FAREWELL)
    answers = {address: call.result() for address, call in calls.items() if call.done() and not call.exception()}
    return {address for address, answer in answers.items() if answer.get(address) is False}


class _Pulse:
    """Asks workers' event loops for a sign of life again and again, and never waits for it."""

    def __init__(self, client: Any, timeout: float) -> None:
        self.client, self.limit = client, max(timeout, LEAST_SILENCE)
        self.asked: dict[str, tuple[concurrent.futures.Future[Any], float]] = {}

    def silent(self, addresses: Iterable[str]) -> set[str]:
        """Those of these workers that have not answered for too long."""
        now = time.monotonic()
        for address in addresses:
            call, since = self.asked.get(address, (None, now))
            if call is None or call.done():
                since = now if call is None or not call.exception() else since
                self.asked[address] = _call(self.client, _nothing, address=address), since
        return {address for address in addresses if now - self.asked[address][1] > self.limit}


def _nothing() -> None:
    """What a worker that runs can do at once."""


def _unanswered(addresses: Iterable[str]) -> RuntimeError:
    return RuntimeError(
        f"worker {', '.join(sorted(addresses))} does not answer: is its process stopped, or out of memory, or does a task"
        " hold Python's GIL? Let it go on, or end it and persist A again; or pass a larger timeout"
    )


def _only(address: str) -> dict[str, Any]:
    """Keywords that pin a task to one worker."""
    return {"workers": [address], "allow_other_workers": False, "pure": False, "retries": 0}


def _part(answer: ranks.Answer, position: int) -> Any:
    return answer.parts[position]


def _without_parts(answer: ranks.Answer) -> ranks.Answer:
    return answer._replace(parts=[])


def _futures(array: da.Array) -> list[Any]:
    """The futures of a persisted array's chunks, in order."""
    from distributed import futures_of

    found = {future.key: future for future in futures_of(array)}
    return [found[key] for key in flatten(array.__dask_keys__())]


def _placed(who_has: dict[Any, Any], panels: list[Any], rows: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    """Worker -> the numbers of the panels that it uses, workers in order of their first rows.

    If several workers hold a panel, the one with the fewest rows so far uses it.
    """
    held: dict[str, list[int]] = {}
    load: dict[str, int] = {}
    for k, (panel, (first, last)) in enumerate(zip(panels, rows, strict=True)):
        holders = who_has.get(panel.key, ())
        if not holders:
            raise RuntimeError(f"panel {k} of A is on no worker any more. Persist A again: a worker that held it was lost")
        address = min(holders, key=lambda a: (load.get(a, 0), a))
        held.setdefault(address, []).append(k)
        load[address] = load.get(address, 0) + last - first
    return held


def _alive(client: Any, addresses: tuple[str, ...]) -> list[str]:
    there = client.nthreads()
    return [address for address in addresses if address in there]


def _wait(client: Any, tasks: list[Any], job: ranks.Job) -> None:
    """Wait until all ranks are done. If one fails or its worker is lost, end the others and raise the first cause."""
    from distributed import TimeoutError, wait

    deadline, pulse = None, _Pulse(client, job.timeout)
    lost: set[str] = set()
    silent: set[str] = set()
    idle: set[str] = set()
    while pending := [task for task in tasks if task.status == "pending"]:
        try:
            wait(pending, timeout=0.5, return_when="FIRST_COMPLETED")
        except TimeoutError:
            pass
        alive = _alive(client, job.addresses)
        lost |= set(job.addresses) - set(alive)
        silent = pulse.silent(alive)
        if deadline is None and (lost or silent or any(task.status not in ("pending", "finished") for task in tasks)):
            deadline = time.monotonic() + GRACE
            _tell(client, mesh.forget, job.token, silent, 0)
            idle = _abandon(client, job.token, set(alive) - silent)
        places = zip(tasks, job.addresses, strict=True)
        going = [task for task, address in places if task.status == "pending" and address not in lost | silent | idle]
        if deadline is not None and (not going or time.monotonic() > deadline):
            break
    lost |= set(job.addresses) - set(_alive(client, job.addresses))
    errors = [task.exception() for task in tasks if task.status == "error"]
    if not lost and not errors and all(task.status == "finished" for task in tasks):
        return
    client.cancel(tasks, force=True)
    first = min(errors, key=lambda error: isinstance(error, mesh.RankLost), default=None)  # the cause of the others
    if lost:
        raise RuntimeError(
            f"worker {', '.join(sorted(lost))} was lost while it held panels of A. Persist A again, which makes them on the"
            " workers that are left, and repeat the call"
        ) from first
    if silent and (first is None or isinstance(first, mesh.RankLost)):
        raise _unanswered(silent) from first
    raise first or RuntimeError("the solve was cancelled")
