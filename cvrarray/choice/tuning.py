"""The fastest array for a matrix on a device, found by measuring, and remembered on disk.

:func:`tune` converts, times and compares. The cost model of :mod:`.model` only says where to begin and what not to try.
The fastest candidate is remembered in the user's cache folder: one small file for each matrix structure, dtype and
device, named by a digest of all that the choice depends on. A file holds a checksum, is written beside its place and
moved there in one step. So a reader finds a whole file or none, whatever other processes do, and takes a damaged one
for none. See ``docs/architecture.md``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..array.invariants import integer
from ..core import atomic, clocks, devices
from ..core.tables import CSR
from ..core.timing import by_turns
from ..formats import FORMATS, named, of_variant
from ..input import coercion
from . import construct, model

#: Numbers of chunks that are tried, over the default number.
TRIED_CHUNKS = (2.0, 0.5, 4.0)

#: Of the files' content and of what goes into their names: another version reads none of them.
SCHEMA = 3

#: Files kept; beyond that the oldest go.
MOST_FILES = 1024

#: Columns that go into a matrix's key, evenly spaced among its nonzeros.
SAMPLED = 4096

#: Tables so many times the size of the smallest are not tried, and CVR in other chunks not where CVR takes so many
#: times the best.
MOST_BYTES, HOPELESS = 2.0, 1.5

#: What a challenger has to gain, so that noise alone changes nothing.
MARGIN = 0.02

#: Rows of the matrix on which kernels are compiled.
HEAD = 256

#: Products before the first sample.
SETTLED = {"cpu": 1, "cuda": 2}

#: Seconds of a sample, by the kind of device; shorter products are repeated within it. On a GPU a sample is one product,
#: which the host has queued before the GPU begins it: small matrices differ in the GPU's time, not in the host's.
SAMPLE_SECONDS = {"cpu": 2e-4, "cuda": 0.0}
#: Samples of a comparison, fewer where the budget is short.
MOST_SAMPLES, FEWEST_SAMPLES = 15, 3


#: (call, times to call it) -> seconds a call, by the device's clock.
Sample = Callable[[Callable[[], Any], int], float]


class Candidate(NamedTuple):
    """A format and its keyword ``_tuned``: ``n_chunks`` of CVR, ``block_size`` of BBCSR; None is the format's default."""

    format: str
    parameter: int | None = None

    def build(self, csr: CSR, columns: int = 1) -> SparseArray:
        """`csr` in this format, on its device; the format's default is that for so many columns of X.

        All but the parameter is as the format chooses it for this matrix: chunks of another number end where its own do.
        """
        cls = named(self.format)
        if self.parameter is None:
            return cls(csr, **cls._for_columns(csr, columns))
        return cls(csr, **cls._for_conversion(csr, devices.of(csr.data)) | {cls._tuned: self.parameter})

    def __str__(self) -> str:
        if self.parameter is None:
            return self.format
        keyword = named(self.format)._tuned
        return f"{self.format}, " + (
            f"{self.parameter} chunks" if keyword == "n_chunks" else f"{keyword.replace('_', ' ')} {self.parameter}"
        )


class Winner(NamedTuple):
    """What measuring found: the candidate, its seconds a product, how many were tried, and what it was allowed to take."""

    candidate: Candidate
    seconds: float
    tried: int
    complete: bool  # all candidates were tried
    budget_s: float


def tune(obj: Any, *, x_dtype: Any = None, columns: int = 1, budget_s: float = 1.0, device: Any = None) -> SparseArray:
    """The matrix in the format and parameters whose ``A @ x`` is the fastest here, by measuring; remembered on disk.

    Candidates are CVR in its default and, for vectors, other numbers of chunks, and BBCSR in the block sizes that the
    cost model does not rule out. A call for a matrix of the same structure (row lengths, sampled columns), dtypes,
    number of columns and device, by the same version of this package, converts without measuring, unless a smaller
    budget cut the measuring short before. Different formats add in a different order: results may differ in the last
    bits from ``asarray``'s, which never measures and never reads what is remembered.

    Parameters
    ----------
    obj : sparse or dense 2-D array
        Whatever :func:`cvrarray.asarray` takes; an array of ours is converted anew.
    x_dtype : str or numpy.dtype, optional
        Of the vectors to come. Default: the matrix's.
    columns : int
        Measure ``A @ X`` with so many columns of X; 1 stands for vectors. The result is the array that
        ``asarray(..., columns=columns)`` would give in that format.
    budget_s : float
        Seconds for conversions and products together; compiling, once in an environment, is not counted. The candidate
        that is begun is finished; 0 measures nothing and gives what ``asarray`` does.
    device : str, optional
        As for :func:`cvrarray.asarray`.

    Returns
    -------
    CVRArray or BBCSRArray
        ``plan`` says what was measured.

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix, `x_dtype` none that products take, `columns` no whole number from 1, `budget_s` no number from
        0, or there is no such device.

    Examples
    --------
    >>> A = cvrarray.tune(np.eye(100), budget_s=0.01, device="cpu")
    >>> A.nnz, "the fastest of" in A.plan
    (100, True)
    """
    if not (isinstance(budget_s, (int, float, np.number)) and budget_s >= 0):
        raise ValueError(f"budget_s must be a number of seconds from 0; got {budget_s!r}. Leave it out for 1 second")
    columns = integer(columns, "columns", 1)
    csr = construct.placed(obj, device)
    device = devices.of(csr.data)
    x_dtype = coercion.check_dtype(csr.data.dtype if x_dtype is None else x_dtype)
    if not csr.nnz or not budget_s:
        return construct.asarray(csr, device=device, columns=columns)
    path = folder() / f"{key(csr, x_dtype, device, columns)}.json"
    known = load(path)
    with device.use():
        x = device.xp.ones(csr.shape[1] if columns == 1 else (csr.shape[1], columns), x_dtype)
        if known is not None and (known.complete or budget_s <= known.budget_s):
            with suppress(ValueError):  # parameters that no such array has: as good as a broken file
                array = known.candidate.build(csr, columns)
                if device.kind == "cuda":  # whose kernels take few products to compare
                    _settle(lambda: array @ x, array)
                return _explained(array, known, columns, f"remembered on {device}")
        array, winner = fastest(csr, x, device, budget_s)
    if winner.tried > 1:
        store(path, winner)
    return _explained(array, winner, columns, f"measured on {device}")


def _explained(array: SparseArray, winner: Winner, columns: int, how: str) -> SparseArray:
    of = "" if columns == 1 else f" with {columns} columns"
    array._plan = f"{winner.candidate}: {winner.seconds * 1e6:.3g} us{of}, the fastest of {winner.tried} candidates {how}"
    return array


def candidates(csr: CSR, device: str, columns: int = 1) -> list[Candidate]:
    """What to try on a kind of device, the cost model's choice first; CVR's numbers of chunks come later, if at all."""
    stats = model.statistics(csr, exact=False)
    plan = model.choose(stats, device, columns)
    sizes = sorted(stats.table_bytes.items(), key=lambda item: item[1])
    names = [name for name, n_bytes in sizes if n_bytes <= MOST_BYTES * sizes[0][1] or name == "cvr"]
    found = [Candidate(plan.format, plan.block_size)]
    for cls, keywords in map(of_variant, names):
        found.append(Candidate(cls.format, keywords.get(cls._tuned)))
    return list(dict.fromkeys(found))


def chunk_counts(csr: CSR) -> list[Candidate]:
    """CVR in other numbers of chunks than its default."""
    default = named("cvr")._for_conversion(csr, devices.of(csr.data))["n_chunks"]
    counts = dict.fromkeys(min(csr.nnz, max(1, round(default * factor))) for factor in TRIED_CHUNKS)
    return [Candidate("cvr", count) for count in counts if count != default]


def fastest(csr: CSR, x: Any, device: devices.Device, budget_s: float) -> tuple[SparseArray, Winner]:
    """Build and compare candidates until all are done or the time is up: the best array for `x`, and what is known of it.

    The best so far meets each challenger, sample by sample in turn, so that a noisy moment hits both; two arrays live
    at a time.
    """
    deadline = time.perf_counter() + budget_s
    columns = math.prod(x.shape[1:])
    sample = clocks.of(device).settled
    queue = candidates(csr, device.kind, columns)
    more = chunk_counts(csr) if columns == 1 else []  # tried last, and only where CVR is near
    candidate = queue.pop(0)
    deadline += _compile(candidate, csr, x)
    best = candidate.build(csr, columns)
    seconds, tried = _alone(best, x, sample), 1
    cvr_seconds = seconds if candidate.format == "cvr" else math.inf
    while queue or more:
        if time.perf_counter() >= deadline:
            return best, Winner(candidate, seconds, tried, False, budget_s)
        if not queue:
            if cvr_seconds > HOPELESS * seconds:
                break
            queue, more = more, []
        rival = queue.pop(0)
        deadline += _compile(rival, csr, x)
        challenger = rival.build(csr, columns)
        share = (deadline - time.perf_counter()) / (1 + len(queue) + len(more))
        seconds, rival_seconds = _compare(best, challenger, x, sample, share)
        tried += 1
        if rival == Candidate("cvr"):
            cvr_seconds = rival_seconds
        if rival_seconds < (1 - MARGIN) * seconds:
            candidate, best, seconds = rival, challenger, rival_seconds
    return best, Winner(candidate, seconds, tried, True, budget_s)


def _compile(candidate: Candidate, csr: CSR, x: Any) -> float:
    """Seconds that it took to convert and multiply the first rows alone, after which the kernels are there."""
    start = time.perf_counter()
    n_rows = min(HEAD, csr.shape[0])
    nnz = int(csr.indptr[n_rows])
    if nnz:
        head = CSR(csr.indptr[: n_rows + 1], csr.indices[:nnz], csr.data[:nnz], (n_rows, csr.shape[1]))
        candidate.build(head, math.prod(x.shape[1:])) @ x
    return time.perf_counter() - start


def _alone(array: SparseArray, x: Any, sample: Sample) -> float:
    def call() -> Any:
        return array @ x

    _settle(call, array)
    number = _number(call, array, sample)
    (seconds,) = by_turns([partial(sample, call, number)], FEWEST_SAMPLES)
    return seconds


def _compare(best: SparseArray, challenger: SparseArray, x: Any, sample: Sample, share: float) -> tuple[float, float]:
    """Median seconds of both, sampled in turn for about `share` seconds."""
    calls = [lambda: best @ x, lambda: challenger @ x]
    _settle(calls[1], challenger)
    number = max(_number(call, best, sample) for call in calls)
    seconds, rival_seconds = by_turns([partial(sample, call, number) for call in calls], MOST_SAMPLES, FEWEST_SAMPLES, share)
    return seconds, rival_seconds


def _settle(call: Callable[[], Any], array: SparseArray) -> None:
    target = array._target
    with target.comparing():
        for _ in range(SETTLED[target.kind]):
            call()


def _number(call: Callable[[], Any], array: SparseArray, sample: Sample) -> int:
    """Calls that fill a sample."""
    seconds = SAMPLE_SECONDS[array._target.kind]
    return max(1, math.ceil(seconds / max(sample(call, 1), 1e-7)))


def folder() -> Path:
    """Where winners are kept: ``cvrarray/tune`` in the user's cache folder. It need not exist."""
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base or Path.home() / "AppData" / "Local") / "cvrarray" / "tune"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as the XDG specification has it: a relative one counts as none
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "cvrarray" / "tune"


def key(csr: CSR, x_dtype: np.dtype, device: devices.Device, columns: int = 1) -> str:
    """A digest of all that a choice depends on: the matrix's structure, dtypes, device, this package's version."""
    from .. import __version__

    position = np.arange(min(SAMPLED, csr.nnz), dtype=np.int64) * csr.nnz // max(1, min(SAMPLED, csr.nnz))
    with device.use():
        sampled = devices.move(csr.indices[device.xp.asarray(position)], devices.CPU)
        lengths = devices.move(csr.indptr[1:] - csr.indptr[:-1], devices.CPU)
    facts = [SCHEMA, __version__, list(csr.shape), csr.nnz, csr.data.dtype.str, x_dtype.str, csr.indices.dtype.str]
    digest = hashlib.blake2b(json.dumps([*facts, columns, describe(device)]).encode(), digest_size=20)
    for part in (lengths, sampled):
        digest.update(np.ascontiguousarray(part, "<i8"))
    return digest.hexdigest()


def describe(device: devices.Device) -> list[Any]:
    """What a device is called, and how many multiprocessors or threads there are."""
    if device.kind == "cuda":
        properties = device.xp.cuda.runtime.getDeviceProperties(device.index)
        return ["cuda", properties["name"].decode(), properties["multiProcessorCount"]]
    from llvmlite import binding

    return ["cpu", binding.get_host_cpu_name(), device.backend("runtime.threads").count()]


def load(path: Path) -> Winner | None:
    """The winner in a file; None where there is none, or it is not whole, or not ours."""
    try:
        outer = json.loads(path.read_bytes())
        content = outer["content"]
        if not isinstance(content, str) or outer["checksum"] != _checksum(content):
            return None
        winner = Winner(**json.loads(content))
        candidate = Candidate(*winner.candidate)
        if candidate.format not in FORMATS or type(winner.tried) is not int:
            return None
        if type(candidate.parameter) is not int and (candidate.format, candidate.parameter) != ("cvr", None):
            return None
        return winner._replace(candidate=candidate, seconds=float(winner.seconds), budget_s=float(winner.budget_s))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def store(path: Path, winner: Winner) -> None:
    """Write a winner to a file, in one step; where that cannot be done, nothing happens: it is measured again then."""
    content = json.dumps(winner._asdict())
    text = json.dumps({"content": content, "checksum": _checksum(content)})
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(str(path)) as file:
            file.write(text.encode())
        _forget_oldest(path.parent)


def _checksum(content: str) -> str:
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _forget_oldest(where: Path) -> None:
    """Remove the oldest files beyond MOST_FILES, with files that a killed writer left unfinished among them."""
    found = list(_files(where))
    for _, path in sorted(found)[: max(0, len(found) - MOST_FILES)]:
        path.unlink(missing_ok=True)


def _files(where: Path) -> Iterator[tuple[int, Path]]:
    for path in where.iterdir():
        if path.suffix in (".json", ".tmp"):
            with suppress(FileNotFoundError):  # another process was quicker
                yield path.stat().st_mtime_ns, path
