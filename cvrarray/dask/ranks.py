"""What each worker runs in a solve: conjugate gradients and the power iteration, on the rows that it holds.

Every rank keeps one vector ``p`` of full length, so that the columns of its panels keep their numbers. The rank owns
the elements of its own rows. Of the others it needs those at the columns of its nonzeros. They arrive before each
product in *windows*: contiguous pieces, short gaps included, that go from the owner's vector to the receiver's without
packing. A grid needs thin windows; a matrix with scattered columns needs everything. Rows that need nothing from others
are multiplied while windows are on their way.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..core import devices
from ..linalg import preconditioners
from ..linalg.ends import PROGRESS
from . import vectors
from .transports import Connection, NullTransport

WINDOWS = 256  #: a gap of more than 1 / WINDOWS of the vector is not sent; this bounds the number of windows
MOST_TWICE = 0.25  #: of a panel's rows are computed twice, so that the others need not wait for other ranks
Product = tuple[SparseArray, int, int]  #: a matrix, and the first and last of the rank's rows that it gives
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
    with device.use(), Connection(job.token, rank, job.addresses, job.timeout, device, job.transport) as transport:
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
        arrive = self.transport.exchange()
        for matrix, first, last in self.early:
            matrix.matvec(self.p, out=q[first:last])
        arrive()
        for matrix, first, last in self.late:
            matrix.matvec(self.p, out=q[first:last])

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
        """Note the time: once before the first iteration, and at the end of each."""
        self.seconds.append(time.perf_counter())

    def _place(self) -> None:
        """Tell the other ranks which windows this one needs, learn theirs, and fix what is sent."""
        self.window_bytes = 0
        self.early: list[Product] = []  # made while others' elements are on their way
        self.late: list[Product] = []  # and when they are there
        if len(self.job.rows) == 1:
            self.early = [(panel, *ends) for panel, ends in zip(self.panels, pairwise(self.ends), strict=True)]
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
        for panel, (first, last) in zip(self.panels, pairwise(self.ends), strict=True):
            row, column = panel._coo()[:2]
            needed[column] = True
            waits = xp.zeros(panel.shape[0], bool)
            waits[row[~own[column]]] = True
            self._order(panel, first, last, _host(xp.flatnonzero(waits)))
        columns = xp.flatnonzero(needed & ~own)
        if not columns.size:
            return []
        run = xp.searchsorted(xp.asarray([first for first, _, _ in theirs]), columns, side="right") - 1
        cuts = _host(xp.flatnonzero((xp.diff(columns) > 1 + n // WINDOWS) | (xp.diff(run) != 0)))
        firsts, lasts = xp.asarray(np.r_[0, cuts + 1]), xp.asarray(np.r_[cuts, columns.size - 1])
        found = zip(*(_host(a).tolist() for a in (run[firsts], columns[firsts], columns[lasts])), strict=True)
        unit = max(1, 16 // self.job.dtype.itemsize)  # NCCL copies unaligned windows byte by byte
        return [(theirs[k][2], max(theirs[k][0], first // unit * unit), last + 1) for k, first, last in found]

    def _order(self, panel: SparseArray, first: int, last: int, waiting: np.ndarray) -> None:
        """Note when the product of a panel's rows is made, of which `waiting` need elements of other ranks.

        Where these are few, and at the panel's ends, the whole panel is early, and they alone are computed again.
        """
        marks = np.r_[-1, waiting, panel.shape[0]]
        longest = int(np.diff(marks).argmax())
        low, high = int(marks[longest]) + 1, int(marks[longest + 1])  # the rows between need nothing
        ends = [(begin, end) for begin, end in ((0, low), (high, panel.shape[0])) if begin < end]
        if sum(end - begin for begin, end in ends) > MOST_TWICE * panel.shape[0]:
            self.late.append((panel, first, last))
            return
        self.early.append((panel, first, last))
        self.late += [(panel[begin:end], first + begin, first + end) for begin, end in ends]


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


class Precondition:
    """``z = M r`` for a rank's rows, from the squares of its panels that lie on A's diagonal; nothing moves for it."""

    def __init__(self, part: Part, name: str, block_size: int | None) -> None:
        self.part = part
        self.parts: list[Any] = []
        for panel, (first, last) in zip(part.panels, part.rows, strict=True):
            size = getattr(panel, "block_size", None) if block_size is None else block_size
            if name == "block_jacobi" and size is None:
                raise ValueError("M='block_jacobi' needs block_size for panels without blocks. Pass block_size=")
            square = panel[:, first:last]
            self.parts.append(
                preconditioners.jacobi(square) if name == "jacobi" else preconditioners.block_jacobi(square, size)
            )

    def __call__(self, r: Any, z: Any) -> None:
        for one, source, to in zip(self.parts, self.part.pieces(r), self.part.pieces(z), strict=True):
            one.apply(source, to)


class Options(NamedTuple):
    """How :func:`cg` solves."""

    rtol: float
    max_iterations: int
    M: str | None = None
    block_size: int | None = None
    check_every: int = 1


class Descent:
    """The state of conjugate gradients: vectors of the rank's rows, and scalars as arrays of a number of each rank."""

    def __init__(self, part: Part, known: dict[str, list[Any]], options: Options) -> None:
        self.part, self.known = part, known
        self.x, self.r, self.q = part.empty(), part.empty(), part.empty()
        self.precondition = None if options.M is None else Precondition(part, options.M, options.block_size)
        self.z = self.r if self.precondition is None else part.empty()
        self.curvature, self.old, self.new = part.scalars(), part.scalars(), part.scalars()
        self.squares = self.new if self.precondition is None else part.scalars()

    def start(self, has_x: bool) -> float:
        """Begin from ``r = b - A x``; its norm."""
        part, p = self.part, self.part.own
        part.load(self.known["b"], self.r)
        if has_x:
            p[...] = self.x
            part.product(self.q)
            self.r -= self.q
        norm: float = part.total(self.r, self.r) ** 0.5
        self._weigh(self.old)
        p[...] = self.z
        return norm

    def _weigh(self, numbers: tuple[Any, Any]) -> None:
        """``z = M r``, and `numbers` are r @ z of each rank."""
        if self.precondition is not None:
            self.precondition(self.r, self.z)
        self.part.arithmetic.dot(self.r, self.z, numbers[1])
        self.part.transport.gather(numbers[0])

    def step(self, is_looked_at: bool) -> Any:
        """An iteration; what reads p @ A @ p and r @ r where they are looked at, else None."""
        part, do, p = self.part, self.part.arithmetic, self.part.own
        part.product(self.q)
        do.dot(p, self.q, self.curvature[1])
        part.transport.gather(self.curvature[0])
        if self.precondition is None:
            self.squares = self.new
        do.update_solution(self.old[0], self.curvature[0], p, self.q, self.x, self.r, self.squares[1])
        part.transport.gather(self.squares[0])
        if self.precondition is not None:
            self._weigh(self.new)
        numbers = do.read(self.curvature[0], self.squares[0]) if is_looked_at else None
        do.update_direction(self.new[0], self.old[0], self.z, p)  # the GPU is busy with it while the host tests the numbers
        self.old, self.new = self.new, self.old
        return numbers


def cg(part: Part, known: dict[str, list[Any]], *given: Any) -> Answer:
    """Conjugate gradients (Hestenes and Stiefel). The host waits every ``check_every`` iterations, for the residual.

    An updated residual that is rounding alone, beside the true one that it began from, is replaced by the true one: it
    would go on to numbers whose squares vanish. Where that has not halved the true one, it is the end.
    """
    options = Options(*given)
    descent, sums = Descent(part, known, options), 2 if options.M is None else 3
    part.load(known["b"], descent.r)
    length = part.total(descent.r, descent.r) ** 0.5
    descent.x[...] = 0
    if not np.isfinite(length):
        raise ValueError(f"b must be finite; its length is {length}. Look for nan and inf in it")
    if length == 0:
        return part.answer(descent.x, 0.0, sums)
    if "x0" in known:
        part.load(known["x0"], descent.x)
    residual = true = descent.start("x0" in known) / length
    part.tick()
    iteration = 0
    while iteration < options.max_iterations and not residual <= options.rtol:
        iteration += 1
        numbers = descent.step(iteration % options.check_every == 0 or iteration == options.max_iterations)
        if numbers is not None:
            bend, rr = numbers(part.transport)
            residual = rr**0.5 / length
            is_rounding = residual <= float(np.finfo(part.job.dtype).eps) / 16 * true
            _check_bend(bend, is_rounding, iteration)
            if is_rounding and (residual > options.rtol or options.rtol == 0):
                before = true
                residual = true = descent.start(True) / length
                if true > PROGRESS * before:
                    break
        part.tick()
    return part.answer(descent.x, residual, sums)


def _check_bend(bend: float, may_vanish: bool, iteration: int) -> None:
    """Raise ValueError where A shows that it is not positive definite."""
    if not (bend > 0 or (bend == 0 and may_vanish)):
        raise ValueError(
            f"A must be positive definite (and symmetric); got p @ A @ p = {bend:.3g} in iteration {iteration}."
            " Use a method for indefinite matrices, such as cvrarray.linalg.minres"
        )


def power_iteration(part: Part, known: dict[str, list[Any]], rtol: float, max_iterations: int) -> Answer:
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
    for _ in range(max_iterations):
        do.scale(squares, q, p)
        part.product(q)
        do.dot(p, q, my_quotient)
        do.dot(q, q, my_square)
        transport.gather(quotient)
        transport.gather(squares)
        value, square = do.read(quotient, squares)(transport)
        part.tick()
        # |A p - value p|^2, for p of length 1
        residual = max(0.0, square - value**2) ** 0.5 / max(abs(value), 1e-300)
        if residual <= rtol:
            break
    return part.answer(p.copy(), residual, 2, value)


METHODS = {"cg": cg, "power_iteration": power_iteration}
