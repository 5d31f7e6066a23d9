"""Which format for which matrix: its statistics, a cost model, and :func:`asarray`, which acts on them.

A product streams the tables once, so the bytes of a format's tables are most of its cost. What the model knows of a matrix
is its row lengths (all of them) and, from evenly spaced windows of rows, how full its blocks are and how far its columns
span. What bytes do not tell is measured and stands in COSTS: see ``docs/decisions/0005-choice-of-format.md``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..array.base import SparseArray
from ..bbcsr import BBCSRArray
from ..core import devices
from ..core.tables import CSR, NARROW, WARP
from ..cvr import STEPS, CVRArray
from ..input import coercion

#: Block sizes that are looked at; 1 is sliced ELLPACK.
BLOCK_SIZES = (1, 2, 3, 4, 6)

#: Rows of a window (a multiple of a bin and of every block size), the nonzeros that windows should hold together, and
#: between how many windows to look at.
WINDOW, SAMPLE, FEWEST_WINDOWS, MOST_WINDOWS = 96, 1 << 15, 8, 16


class Costs(NamedTuple):
    """What a product costs on a kind of device, beside the bytes of the tables."""

    bytes_per_us: float  # that BBCSR streams
    bbcsr_us: float  # a BBCSR product's own time
    cvr_factor: float  # CVR's time over its bytes, relative to BBCSR: records, and lanes out of phase
    cvr_factor_waiting: float  # the same where a product waits for memory and little else: 8-byte values, tables over LARGE
    cvr_us: float  # a CVR product's own time: tails, and rows that are cut
    us_per_entry: float  # of BBCSR's longest row, for 4-byte values, for each warp that shares it
    warps: int  # that keep the device busy: they share bins where these are fewer (``gpu/bbcsr.py``)
    block_factor: float  # time over bytes of BBCSR with blocks of 2 or more, relative to blocks of 1


COSTS = {
    "cuda": Costs(4.0e6, 4.0, 1.4, 1.4, 10.0, 0.05, 1 << 14, 1.0),
    "cpu": Costs(2.0e4, 0.0, 1.33, 1.05, 0.0, 0.0, 1, 0.98),
}

#: Bytes of tables from which a CPU waits for memory more than for instructions.
LARGE = 1 << 23

#: Warps that share a bin at most, and entries of a row that each of them should have.
MOST_SHARERS, SHARE = 16, 8

_CLASSES = {"cvr": CVRArray, "bbcsr": BBCSRArray}


class Statistics(NamedTuple):
    """What the choice of a format rests on. Row lengths count stored entries."""

    shape: tuple[int, int]
    nnz: int
    dtype: np.dtype
    empty_rows: int
    row_min: int
    row_mean: float
    row_median: float  # nan where not asked for exactly
    row_max: int
    row_std: float  # likewise
    block_fill: dict[int, float]  # block size -> entries of its blocks over nonzeros; 1.0 is perfect
    table_bytes: dict[str, int]  # "cvr", "bbcsr1", "bbcsr2", ... -> bytes of the format's tables, modelled
    sampled: bool  # block_fill and table_bytes come from windows of rows, not from all


class Plan(NamedTuple):
    """A choice: ``format`` with ``block_size`` (None for CVR), and why."""

    format: str
    block_size: int | None
    reason: str


def statistics(obj: Any, *, exact: bool = True) -> Statistics:
    """Statistics of any matrix that :func:`asarray` takes.

    Parameters
    ----------
    obj : sparse or dense 2-D array
    exact : bool
        Look at all rows. Otherwise at some windows of WINDOW rows, which is quick on a GPU too, and give block fill only
        for sizes that could win; row lengths are exact in any case.
    """
    csr = coercion.as_csr(obj)
    device = devices.of(csr.data)
    n_rows, _ = csr.shape
    with device.use():
        xp = device.xp
        padded, empty, shortest, longest = _row_lengths(csr, device)
        lengths = xp.diff(csr.indptr) if exact else None
        median, std = (float(xp.median(lengths)), float(lengths.std())) if exact and n_rows else (math.nan, math.nan)
    window = _windows(csr, device, exact)
    if csr.nnz and not window.nnz:  # the windows lie beside all there is
        window = _windows(csr, device, exact=True)
    fill, tables = _model(window, csr, padded, exact)
    return Statistics(
        shape=csr.shape,
        nnz=csr.nnz,
        dtype=csr.data.dtype,
        empty_rows=empty,
        row_min=shortest,
        row_mean=csr.nnz / n_rows if n_rows else 0.0,
        row_median=median,
        row_max=longest,
        row_std=std,
        block_fill=fill,
        table_bytes=tables,
        sampled=window.shape != csr.shape,
    )


def choose(stats: Statistics, device: str) -> Plan:
    """The format whose product takes the least time, by the model, on a kind of device (``"cpu"`` or ``"cuda"``)."""
    if not stats.nnz:
        return Plan("cvr", None, "cvr: no nonzeros, so no padding either")
    time = predict(stats, device)
    name = min(time, key=time.get)
    per_nonzero = {n: f"{b / stats.nnz:.1f}" for n, b in stats.table_bytes.items()}
    rows = f"rows have {stats.row_min} to {stats.row_max} nonzeros"
    if name == "cvr":
        other = min((n for n in time if n != "cvr"), key=time.get)
        reason = (
            f"cvr: {per_nonzero[name]} bytes a nonzero; {rows}, so BBCSR would need {per_nonzero[other]} at best "
            f"(block size {other[5:]}) and takes the longest row in one go"
        )
        return Plan("cvr", None, reason)
    size = int(name[5:])
    why = rows if size == 1 else f"{size} x {size} blocks hold {stats.block_fill[size]:.2f} entries a nonzero"
    return Plan(
        "bbcsr", size, f"bbcsr, block size {size}: {per_nonzero[name]} bytes a nonzero, cvr {per_nonzero['cvr']}; {why}"
    )


def predict(stats: Statistics, device: str) -> dict[str, float]:
    """Microseconds of a product by format, named as in ``table_bytes``, by the model, on a kind of device.

    They rank the formats; the machine that the costs were measured on is not this one.
    """
    costs = COSTS[device]
    n_bins = -(-stats.shape[0] // WARP)
    sharers = max(1, min(MOST_SHARERS, costs.warps / max(1, n_bins), stats.row_mean / SHARE))
    waits = stats.dtype.itemsize >= 8 and stats.table_bytes["cvr"] > LARGE
    cvr_factor = costs.cvr_factor_waiting if waits else costs.cvr_factor

    def microseconds(name: str) -> float:
        streaming = stats.table_bytes[name] / costs.bytes_per_us
        if name == "cvr":
            return streaming * cvr_factor + costs.cvr_us
        if name != "bbcsr1":
            streaming *= costs.block_factor
        return streaming + costs.bbcsr_us + costs.us_per_entry * stats.dtype.itemsize / 4 * stats.row_max / sharers

    return {name: microseconds(name) for name in stats.table_bytes}


def asarray(obj: Any, format: str = "auto", device: Any = None, **parameters: Any) -> SparseArray:
    """The matrix as one of our arrays, on a GPU where there is one.

    Parameters
    ----------
    obj : sparse or dense 2-D array
        scipy.sparse, cupyx.scipy.sparse, pydata/sparse, NumPy, CuPy or an array of ours.
    format : {"auto", "cvr", "bbcsr"}
        ``"auto"`` decides from the matrix's statistics; ``plan`` and ``repr`` of the result say why.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: the GPU that `obj` lives on, else the current GPU, else the CPU.
    **parameters
        Keywords of the format's class; with ``format="auto"`` none.

    Returns
    -------
    CVRArray or BBCSRArray

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix, or a name or parameter is none that is known.
    """
    if format != "auto" and format not in _CLASSES:
        raise ValueError(f"format must be 'auto', 'cvr' or 'bbcsr'; got {format!r}")
    if format == "auto" and parameters:
        raise ValueError(
            f"format='auto' chooses parameters itself; got {', '.join(parameters)}. Name a format, or leave them out"
        )
    csr = placed(obj, device)
    if format != "auto":
        return _CLASSES[format](csr, **parameters)
    plan = choose(statistics(csr, exact=False), devices.of(csr.data).kind)
    array = CVRArray(csr) if plan.format == "cvr" else BBCSRArray(csr, block_size=plan.block_size)
    array._plan = plan.reason
    return array


def placed(obj: Any, device: Any = None) -> CSR:
    """Any matrix that :func:`asarray` takes as canonical CSR on a device: the named one, else the GPU that it lives on, else
    the current GPU, else the CPU."""
    target = None if device is None else devices.parse(device)
    csr = coercion.as_csr(obj)
    if target is None:
        home = devices.of(csr.data)
        target = home if home.kind == "cuda" else devices.default()
    return coercion.move(csr, target)


def _row_lengths(csr: CSR, device: devices.Device) -> tuple[int, int, int, int]:
    """Slots of bins of blocks of size 1, empty rows, the shortest row's length and the longest's."""
    n_rows, xp = csr.shape[0], device.xp
    if not n_rows:
        return 0, 0, 0, 0
    if device.kind == "cpu":
        return device.backend("statistics").row_lengths(csr.indptr, WARP)
    lengths = csr.indptr[1:] - csr.indptr[:-1]
    in_bins = xp.zeros(-(-n_rows // WARP) * WARP, np.int64)
    in_bins[:n_rows] = lengths
    padded = in_bins.reshape(-1, WARP).max(axis=1).sum() * WARP
    counts = [padded, (lengths == 0).sum(), lengths.min(), lengths.max()]
    return tuple(devices.move(xp.stack([c.astype(np.int64) for c in counts]), devices.CPU).tolist())


def _windows(csr: CSR, device: devices.Device, exact: bool) -> CSR:
    """Evenly spaced windows of rows, one below the other, as a CSR in host memory; its values mean nothing."""
    n_rows, xp = csr.shape[0], device.xp
    n_windows = -(-n_rows // WINDOW)
    n_samples = max(FEWEST_WINDOWS, min(MOST_WINDOWS, SAMPLE * n_windows // max(csr.nnz, 1)))
    if exact or n_windows <= n_samples:
        indptr, indices = (devices.move(a, devices.CPU) for a in (csr.indptr, csr.indices))
        return CSR(indptr, indices, indices, csr.shape)
    first = np.arange(n_samples) * (n_windows - 1) // (n_samples - 1) * WINDOW
    rows = np.minimum(first[:, None] + np.arange(WINDOW + 1), n_rows)
    with device.use():
        ptr = devices.move(csr.indptr[xp.asarray(rows)], devices.CPU).astype(np.int64)
        lengths = np.diff(ptr, axis=1).ravel()
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        position = np.repeat(ptr[:, :-1].ravel() - indptr[:-1], lengths) + np.arange(indptr[-1])
        indices = devices.move(csr.indices[xp.asarray(position)], devices.CPU)
    return CSR(indptr, indices, indices, (lengths.size, csr.shape[1]))


def _model(window: CSR, csr: CSR, padded: int, exact: bool) -> tuple[dict[int, float], dict[str, int]]:
    """Block fill, and bytes of every format's tables, of `csr` after what `window` shows; `padded` slots at block size 1."""
    counts = devices.CPU.backend("statistics")
    value, index = csr.data.dtype.itemsize, csr.indices.dtype.itemsize
    if not window.nnz:
        return {1: 1.0}, {"cvr": 0, "bbcsr1": padded * value}
    scale = csr.nnz / window.nnz
    narrow = counts.narrow_nonzeros(window.indptr, window.indices, WARP, NARROW) / window.nnz
    column = 2 * narrow + index * (1 - narrow)
    chunks = csr.nnz / (STEPS * WARP)
    bins = csr.shape[0] / WARP
    fill = {1: 1.0}
    tables = {
        "cvr": csr.nnz * (value + column + 1 / 8) + csr.shape[0] * index + chunks * (WARP * index + 40),
        "bbcsr1": padded * (value + column) + bins * 24,
    }
    for size in BLOCK_SIZES[1:]:
        least = counts.blocks_of_single_rows(window.indptr, window.indices, size) * size * scale
        if not exact and least * (value + column / size) > min(tables.values()):
            continue
        block_col = window.indices // window.indices.dtype.type(size)
        block_col = np.unique(block_col, return_inverse=True)[1] if csr.shape[1] > 2**32 else block_col  # few of so many
        n_block_cols = int(block_col.max()) + 1
        blocks, slots = counts.blocks_in_groups(window.indptr, block_col, n_block_cols, size, WARP)
        fill[size] = float(blocks) * size * size / window.nnz
        slots = slots * WARP * size * scale
        slots = max(slots, padded)  # a long row between the windows pads its bin at least
        mask = 0 if fill[size] == 1.0 else 1
        tables[f"bbcsr{size}"] = slots * (value + (column + mask) / size) + bins * 24
    return fill, {name: int(size) for name, size in tables.items()}
