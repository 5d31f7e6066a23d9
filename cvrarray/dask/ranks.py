"""What each worker runs in a solve: conjugate gradients and the power iteration, on the rows that it holds.

Every rank keeps one vector ``p`` of full length, so that the columns of its panels keep their numbers. The rank owns
the elements of its own rows. Of the others it needs those at the columns of its nonzeros. They arrive before each
product in *windows*: contiguous pieces, short gaps included, that go from the owner's vector to the receiver's without
packing. A grid needs thin windows; a matrix with scattered columns needs everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..core import devices
from ..linalg import multigrid, preconditioners
from . import vectors
from .transports import NullTransport, connected

WINDOWS = 256  #: a gap of more than 1 / WINDOWS of the vector is not sent; this bounds the number of windows
#: Of the precision: a residual that is updated to this part of b says nothing more about the true one.
FLOOR = 1 / 16
Rows = tuple[tuple[int, int], ...]  #: (first, last) of each panel that a rank holds, in order


class Job(NamedTuple):
    """The description of a solve, the same for all ranks."""

    token: str
    addresses: tuple[str, ...]  # of the workers, one for each rank
    rows: tuple[Rows, ...]  # of each rank
    n: int
    dtype: np.dtype
    timeout: float
    transport: str


class Answer(NamedTuple):
    """A rank's result: `parts` are its own, all else is the same on all ranks."""

    parts: list[Any]  # a piece of the vector for each panel
    value: float  # an eigenvalue; 0 for a linear system
    iterations: int
    residual: float
    bytes_moved: int
    seconds: float
    transport: str


def run(method: str, job: Job, rank: int, panels: list[SparseArray], known: dict[str, list[Any]], options: Any) -> Answer:
    """Rank `rank` of a solve, in a task of its own.

    Parameters
    ----------
    method : {"cg", "power_iteration"}
    panels : list of our arrays
        The rank's panels, in the order of ``job.rows[rank]``.
    known : dict of list of (rows,) array
        Known vectors, cut as `panels` are.
    """
    for panel in panels:
        if not isinstance(panel, SparseArray):
            raise TypeError(f"chunks of A must be cvrarray's arrays; got {type(panel).__name__}. Use cvrarray.to_dask(A)")
    homes = {panel._target for panel in panels}
    if len(homes) != 1:
        names = ", ".join(sorted(map(str, homes)))
        raise ValueError(f"panels of one worker must be on one device; got {names}. Start a worker for each GPU")
    (device,) = homes
    with device.use(), connected(job.token, rank, job.addresses, job.timeout, device, job.transport) as transport:
        return METHODS[method](Part(job, rank, panels, device, transport), known, *options)


class Part:
    """A rank's rows of the matrix, and its vectors: ``p`` (n,), of which ``own`` (rows,) is the rank's."""

    def __init__(self, job: Job, rank: int, panels: list[SparseArray], device: devices.Device, transport: NullTransport):
        self.job, self.rank, self.panels, self.device, self.transport = job, rank, panels, device, transport
        self.rows = job.rows[rank]
        self.ends = np.cumsum([0] + [last - first for first, last in self.rows]).tolist()
        self.runs = runs(self.rows)
        self.arithmetic = vectors.of(device, job.dtype)
        self.p = device.xp.zeros(job.n, job.dtype)
        alone = len(self.runs) == 1  # then the rank's own elements are contiguous, and need no copy
        self.own = self.p[slice(*self.runs[0])] if alone else self.empty()
        self.seconds: list[float] = []
        self._place()

    def empty(self) -> Any:
        """A vector of the rank's own rows."""
        return self.device.xp.empty(self.ends[-1], self.job.dtype)

    def scalars(self) -> tuple[Any, Any]:
        """An array of one number for each rank, and a view of this rank's number."""
        numbers = self.device.xp.zeros(len(self.job.rows))
        return numbers, numbers[self.rank : self.rank + 1]

    def load(self, pieces: list[Any], vector: Any) -> None:
        """Copy the pieces of a known vector into `vector`."""
        for piece, (first, last) in zip(pieces, pairwise(self.ends), strict=True):
            vector[first:last] = devices.move(piece, self.device)

    def pieces(self, vector: Any) -> list[Any]:
        """A vector of the rank's own rows, cut as the panels are."""
        return [vector[first:last] for first, last in pairwise(self.ends)]

    def product(self, q: Any) -> None:
        """``q = A p`` for the rank's rows, after every rank has written its ``own``."""
        if len(self.runs) > 1:
            begin = 0
            for first, last in self.runs:
                self.p[first:last] = self.own[begin : begin + last - first]
                begin += last - first
        self.transport.exchange()
        for panel, piece in zip(self.panels, self.pieces(q), strict=True):
            panel.matvec(self.p, out=piece)

    def total(self, x: Any, y: Any) -> float:
        """``(conj(x) @ y).real`` over all ranks; the host waits for it."""
        everyone, mine = self.scalars()
        self.arithmetic.dot(x, y, mine)
        self.transport.gather(everyone)
        return self.arithmetic.read(everyone)(self.transport)[0]

    def answer(self, vector: Any, residual: float, sums: int, value: float = 0.0) -> Answer:
        """The result, after iterations that each exchanged windows once and gathered `sums` numbers."""
        times = np.diff(self.seconds)
        n_ranks = len(self.job.rows)
        moved = self.window_bytes + 8 * sums * n_ranks * (n_ranks - 1)
        seconds = float(np.median(times)) if times.size else float("nan")
        return Answer(self.pieces(vector), value, max(0, len(self.seconds) - 1), residual, moved, seconds, self.transport.name)

    def tick(self) -> None:
        """Note the time: once before the first iteration, and at the end of each. The host is at most one ahead."""
        self.arithmetic.pace(self.transport)
        self.seconds.append(time.perf_counter())

    def _place(self) -> None:
        """Tell the other ranks which windows this one needs, learn theirs, and fix what is sent."""
        self.window_bytes = 0
        if len(self.job.rows) == 1:
            return
        wanted = self.transport.gather_objects(self._wanted())  # of each rank: (owner, first, last) in order of rows
        sends = [(k, self.p[a:b]) for k, windows in enumerate(wanted) for owner, a, b in windows if owner == self.rank]
        receives = [(owner, self.p[a:b]) for owner, a, b in wanted[self.rank]]
        self.transport.place(sends, receives)
        self.window_bytes = sum(b - a for windows in wanted for _, a, b in windows) * self.job.dtype.itemsize

    def _wanted(self) -> list[tuple[int, int, int]]:
        """(owner, first, last) of each window that the panels of this rank need, in order of columns."""
        xp, n = self.device.xp, self.job.n
        own = xp.zeros(n, bool)
        for first, last in self.runs:
            own[first:last] = True
        theirs = [(*run, owner) for owner, rows in enumerate(self.job.rows) if owner != self.rank for run in runs(rows)]
        theirs.sort()
        needed = xp.zeros(n, bool)
        for panel in self.panels:
            needed[panel._coo()[1]] = True
        columns = xp.flatnonzero(needed & ~own)
        if not columns.size:
            return []
        run = xp.searchsorted(xp.asarray([first for first, _, _ in theirs]), columns, side="right") - 1
        cuts = _host(xp.flatnonzero((xp.diff(columns) > 1 + n // WINDOWS) | (xp.diff(run) != 0)))
        firsts, lasts = xp.asarray(np.r_[0, cuts + 1]), xp.asarray(np.r_[cuts, columns.size - 1])
        found = zip(*(_host(a).tolist() for a in (run[firsts], columns[firsts], columns[lasts])), strict=True)
        unit = max(1, 16 // self.job.dtype.itemsize)  # NCCL copies unaligned windows byte by byte
        return [(theirs[k][2], max(theirs[k][0], first // unit * unit), last + 1) for k, first, last in found]


def runs(rows: Rows) -> list[tuple[int, int]]:
    """Ranges of rows; adjacent ones are joined, empty ones left out."""
    joined: list[tuple[int, int]] = []
    for first, last in rows:
        if first == last:
            continue
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _host(array: Any) -> np.ndarray:
    host: np.ndarray = devices.move(array, devices.CPU)
    return host


#: Of a panel's square and the size of its blocks.
PRECONDITIONERS: dict[str, Callable[[Any, Any], Any]] = {
    "jacobi": lambda A, size: preconditioners.jacobi(A),
    "block_jacobi": preconditioners.block_jacobi,
    "multigrid": lambda A, size: multigrid(A, block_size=size),
}


class Precondition:
    """``z = M r`` for a rank's rows, from the squares of its panels that lie on A's diagonal; nothing moves for it."""

    def __init__(self, part: Part, name: str, block_size: int | None) -> None:
        self.part = part
        sizes = [block_size or getattr(panel, "block_size", None) for panel in part.panels]
        if name == "block_jacobi" and None in sizes:
            raise ValueError("M='block_jacobi' needs block_size for panels without blocks. Pass block_size=")
        if name == "block_jacobi" or block_size is not None:
            for rows, size in zip(part.rows, sizes, strict=True):  # of all panels before the first is prepared
                _check_begin(name, part.job, rows, size)
        if name == "multigrid":
            sizes = [block_size] * len(sizes)  # of a square of blocks its own, where it has whole ones
        self.parts: list[Any] = []
        for panel, (first, last), size in zip(part.panels, part.rows, sizes, strict=True):
            self.parts.append(PRECONDITIONERS[name](panel[:, first:last], size))

    def __call__(self, r: Any, z: Any) -> None:
        for one, source, to in zip(self.parts, self.part.pieces(r), self.part.pieces(z), strict=True):
            one.apply(source, to)


def _check_begin(name: str, job: Job, rows: tuple[int, int], size: Any) -> None:
    """ValueError where a panel begins within a block: its blocks would be none of A's, and M no better than Jacobi's."""
    first, last = rows
    if first < last and first % size:
        panels = sorted(panel for held in job.rows for panel in held)
        longest = max(end - begin for begin, end in panels)
        raise ValueError(
            f"panels must begin at multiples of the block size for M={name!r}; panel {panels.index(rows)} begins at row "
            f"{first}, the block size is {size}. Use A.rechunk({{0: {-(-longest // size) * size}}}).persist(), or chunks= that "
            f"are multiples of {size}, or another block_size="
        )


class Options(NamedTuple):
    """How :func:`cg` solves."""

    rtol: float
    maxiter: int
    M: str | None = None
    block_size: int | None = None
    check_every: int = 1


def cg(part: Part, known: dict[str, list[Any]], *options: Any) -> Answer:
    """Conjugate gradients (Hestenes and Stiefel). The host tests the residual every ``check_every`` iterations, and is at
    most one iteration ahead of a GPU.
    """
    rtol, maxiter, M, block_size, check_every = Options(*options)
    do, transport, p = part.arithmetic, part.transport, part.own
    x, r, q = part.empty(), part.empty(), part.empty()
    part.load(known["b"], r)
    length, scale = _scaled(part, r)
    x[...] = 0
    sums = 2 if M is None else 3
    if length == 0:
        return part.answer(x, 0.0, sums)
    if "x0" in known:
        part.load(known["x0"], x)
        x *= scale
        p[...] = x
        part.product(q)
        r -= q
    (old, my_old), (new, my_new), (curvature, my_curvature) = (part.scalars() for _ in range(3))
    squares, my_square = (new, my_new) if M is None else part.scalars()
    precondition = None if M is None else Precondition(part, M, block_size)
    z = r if precondition is None else part.empty()

    def multiply() -> None:
        """``q = A p``, and the curvature, ``p @ q``."""
        part.product(q)
        do.dot(p, q, my_curvature)
        transport.gather(curvature)

    limits, iteration, before = np.finfo(part.job.dtype), 0, np.inf
    enough, vanished = max(rtol, FLOOR * float(limits.eps)), float(limits.tiny / limits.eps)
    while True:  # r is the true residual, b - A x: the iteration goes on from it as long as that makes it half as large
        residual = updated = part.total(r, r) ** 0.5 / length
        if iteration >= maxiter or residual <= enough or residual > before / 2:
            break
        before = residual
        if precondition is not None:
            precondition(r, z)
        p[...] = z
        do.dot(r, z, my_old)
        transport.gather(old)
        if not iteration:
            part.tick()
        is_multiplied = False
        while iteration < maxiter and not updated <= enough:
            if not is_multiplied:
                multiply()
            iteration += 1
            if precondition is None:
                squares, my_square = new, my_new
            do.update_solution(old, curvature, p, q, x, r, my_square)
            if precondition is None:
                transport.gather(new)
            else:
                precondition(r, z)
                do.dot(r, z, my_new)
                transport.gather(squares, new)
            is_looked_at = iteration % check_every == 0 or iteration == maxiter
            numbers = do.read(curvature, squares) if is_looked_at else None
            do.update_direction(new, old, z, p)
            is_multiplied = do.is_ahead and iteration < maxiter
            if is_multiplied:
                multiply()  # for the next iteration: the GPU is busy while the host tests the numbers
            if numbers is not None:
                bend, rr = numbers(transport)
                updated = rr**0.5 / length
                if not (bend > 0 or (updated <= enough and -bend <= vanished)):
                    raise _not_definite(bend, iteration)
            part.tick()
            old, my_old, new, my_new = new, my_new, old, my_old
        p[...] = x
        part.product(q)
        part.load(known["b"], r)
        r *= scale
        r -= q
    x *= 1 / scale
    return part.answer(x, residual, sums)


def _scaled(part: Part, b: Any) -> tuple[float, Any]:
    """Scale b by a power of 2 where squares of numbers of its size are 0 or inf: its length then, and that power."""
    with np.errstate(all="ignore"):
        length = part.total(b, b) ** 0.5
    limits = np.finfo(part.job.dtype)
    usual = float(limits.max) ** 0.3
    if 1 / usual < length < usual:
        return length, b.real.dtype.type(1)
    everyone, mine = part.scalars()
    if b.size:
        mine[...] = abs(b.view(b.real.dtype)).max() / len(part.job.rows)
    part.transport.gather(everyone)
    (largest,) = part.arithmetic.read(everyone)(part.transport)  # or less, by at most the number of ranks
    if not np.isfinite(largest):
        raise ValueError(f"b must be finite; its length is {length}. Look for nan and inf in it")
    exponent = -np.floor(np.log2(largest)) if largest > 0 else 0
    scale = b.real.dtype.type(2 ** np.clip(exponent, 2 - limits.maxexp, limits.maxexp - 2))
    b *= scale
    return part.total(b, b) ** 0.5, scale


def _not_definite(bend: float, iteration: int) -> ValueError:
    if not np.isfinite(bend):
        return ValueError(f"A and x0 must be finite; got p @ A @ p = {bend} in iteration {iteration}. Look for nan and inf")
    return ValueError(
        f"A must be positive definite (and symmetric); got p @ A @ p = {bend:.3g} in iteration {iteration}."
        " Use a method for indefinite matrices, such as cvrarray.linalg.minres"
    )


def power_iteration(part: Part, known: dict[str, list[Any]], rtol: float, maxiter: int) -> Answer:
    """Power iteration with the Rayleigh quotient of each step."""
    do, transport, p = part.arithmetic, part.transport, part.own
    q = part.empty()
    part.load(known["x0"], q)
    squares, my_square = part.scalars()
    quotient, my_quotient = part.scalars()
    do.dot(q, q, my_square)
    transport.gather(squares)
    residual, value = float("inf"), 0.0
    if not 0 < do.read(squares)(transport)[0] < float("inf"):
        raise ValueError("x0 must be finite and not zero. Pass another one")
    part.tick()
    for iteration in range(1, maxiter + 1):
        do.scale(squares, q, p)
        part.product(q)
        do.dot(p, q, my_quotient)
        do.dot(q, q, my_square)
        transport.gather(quotient, squares)
        value, square = do.read(quotient, squares)(transport)
        part.tick()
        if not np.isfinite(square):
            raise ValueError(f"A must be finite; got |A @ x|^2 = {square} in iteration {iteration}. Look for nan and inf")
        # |A p - value p|^2, for p of length 1
        residual = max(0.0, square - value**2) ** 0.5 / max(abs(value), 1e-300)
        if residual <= rtol:
            break
    return part.answer(p.copy(), residual, 2, value)


METHODS = {"cg": cg, "power_iteration": power_iteration}
