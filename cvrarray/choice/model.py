"""The choice of a format: statistics of a matrix, and a model of what a product costs.

A product streams the tables once, so its cost is mostly the bytes of the format's tables. The model computes them from
all row lengths and, in evenly spaced windows of rows, from block fill and column spans. Costs that do not follow bytes
were measured and are constants on the formats' pages: see ``docs/decisions/0005-choice-of-format.md``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..array import encoding
from ..array.blocks import expanded
from ..array.format import Sample
from ..core import devices
from ..core.progress import shown
from ..core.tables import CSR, NARROW, WARP, Blocks
from ..formats import FORMATS, of_variant
from ..input import coercion

#: Rows of a window (a multiple of a bin and of every block size); nonzeros that all windows together should have; the
#: fewest and the most windows.
WINDOW, SAMPLE, FEWEST_WINDOWS, MOST_WINDOWS = 96, 1 << 15, 8, 16


#: Bytes of tables that a kind of device streams in a microsecond. They serve to rank the formats: they were measured on
#: other machines.
BYTES_PER_US = {"cuda": 4.0e6, "cpu": 2.0e4}


class Statistics(NamedTuple):
    """Statistics by which a format is chosen. Row lengths count stored entries.

    Examples
    --------
    >>> stats = cvrarray.statistics(np.kron(np.eye(64), np.ones((3, 3))))
    >>> stats.row_min, stats.row_mean, stats.row_max, stats.empty_rows
    (3, 3.0, 3, 0)
    >>> stats.block_fill[3], min(stats.table_bytes, key=stats.table_bytes.get)
    (1.0, 'bbcsr3')
    """

    shape: tuple[int, int]
    nnz: int
    dtype: np.dtype
    empty_rows: int
    row_min: int
    row_mean: float
    row_median: float  # nan unless exact
    row_max: int
    row_std: float  # nan unless exact
    block_fill: dict[int, float]  # block size -> entries of its blocks over nonzeros; 1.0 is perfect
    table_bytes: dict[str, int]  # "cvr", "bbcsr1", "bbcsr2", ... -> bytes of the format's tables, modelled
    sampled: bool  # block_fill and table_bytes come from windows of rows, not from all rows
    values: str = "plain"  # what a conversion on this device stores values as, in words; "plain" unless exact


class Plan(NamedTuple):
    """A choice: ``format`` with ``block_size`` (None for CVR), and why."""

    format: str
    block_size: int | None
    reason: str

    @property
    def keywords(self) -> dict[str, int]:
        """The constructor's keywords."""
        return {} if self.block_size is None else {"block_size": self.block_size}


@shown("looking at the matrix")
def statistics(obj: Any, *, exact: bool = True) -> Statistics:
    """Statistics of any matrix that :func:`asarray` takes.

    Parameters
    ----------
    obj : sparse or dense 2-D array
    exact : bool
        Look at all rows. Otherwise at some windows of WINDOW rows, which is quick on a GPU too, and give block fill
        only for sizes that could win; row lengths are exact in any case.

    Returns
    -------
    Statistics

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix (see :func:`cvrarray.asarray`).

    Examples
    --------
    >>> stats = cvrarray.statistics([[1.0, 0, 2], [0, 0, 0]])
    >>> stats.shape, stats.nnz, stats.row_max, stats.empty_rows
    ((2, 3), 2, 2, 1)
    """
    csr = coercion.as_csr(obj)
    device = devices.of(csr.data)
    n_rows, _ = csr.shape
    with device.use():
        xp = device.xp
        padded, empty, shortest, longest = _row_lengths(csr, device)
        median = std = math.nan
        if exact and n_rows:
            lengths = xp.diff(csr.indptr)
            median, std = float(xp.median(lengths)), float(lengths.std())
    window = _windows(csr, device, exact)
    if csr.nnz and not window.nnz:  # the windows missed every nonzero
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
        values=encoding.described(csr.data, device) if exact else "plain",
    )


def statistics_of_blocks(blocks: Blocks, dtype: np.dtype) -> Statistics:
    """As ``statistics(exact=False)``, of dense blocks that all are stored, values of `dtype`; their size is a
    candidate.
    """
    size, (n_rows, n_cols) = blocks.size, blocks.shape
    indptr = devices.move(blocks.indptr, devices.CPU)
    by_row = np.zeros(n_rows + 1, np.int64)
    by_row[1:] = np.cumsum(np.repeat(np.diff(indptr) * size, size)[:n_rows])  # but for what reaches over the right edge
    found = devices.CPU.backend("statistics").row_lengths(by_row, WARP) if n_rows else (0, 0, 0, 0)
    padded, empty, shortest, longest = found
    step = math.lcm(WINDOW, size) // size  # block rows of a window
    n_windows = -(-(indptr.size - 1) // step)
    n_samples = min(n_windows, max(1, MOST_WINDOWS * WINDOW // (step * size)))
    rows = np.unique(np.arange(n_samples) * (n_windows - 1) // max(1, n_samples - 1)) * step
    rows = np.minimum(rows[:, None] + np.arange(step), indptr.size - 2).ravel() if n_windows else np.empty(0, int)
    lengths = np.diff(indptr)[rows]
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(indptr[rows] - ptr[:-1], lengths) + np.arange(ptr[-1])
    with devices.of(blocks.indices).use():
        indices = devices.move(blocks.indices[devices.of(blocks.indices).xp.asarray(places)], devices.CPU)
    window = expanded(Blocks(ptr, indices, size, (rows.size * size, n_cols)), 1)
    nnz = int(by_row[-1]) if blocks.indices.size else 0
    index = coercion.index_dtype(blocks.shape)
    about = CSR(by_row, np.empty(0, index), np.broadcast_to(np.zeros(1, dtype), nnz), blocks.shape)
    fill, tables = _model(window, about, padded, False, size)
    mean = nnz / n_rows if n_rows else 0.0
    return Statistics(blocks.shape, nnz, dtype, empty, shortest, mean, math.nan, longest, math.nan, fill, tables, True)


def choose(stats: Statistics, device: str, columns: int = 1) -> Plan:
    """The format with the fastest product, by the model, on a kind of device (``"cpu"`` or ``"cuda"``).

    The product is one with so many columns; 1 is a vector.
    """
    if not stats.nnz:
        return Plan("cvr", None, "cvr: no nonzeros, so no padding either")
    time = predict(stats, device, columns)
    name = min(time, key=time.__getitem__)
    cls, keywords = of_variant(name)
    others = [other for other in time if of_variant(other)[0] is not cls]
    named = [name, *([min(others, key=time.__getitem__)] if others else [])]
    beside = "".join(f" ({_label(other)}: {_rounded(time[other])})" for other in named[1:])
    size = " and ".join(f"{stats.table_bytes[other] / stats.nnz:.1f}" for other in named)
    of = "" if columns == 1 else f" with {columns} columns"
    reason = f"{_label(name)}: predicted {_rounded(time[name])} us a product{of}{beside}"
    return Plan(cls.format, keywords.get("block_size"), f"{reason}; {size} bytes a nonzero; {cls._why(name, stats)}")


def _rounded(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.2g}"


def _label(name: str) -> str:
    cls, keywords = of_variant(name)
    return ", ".join([cls.format, *(f"{key.replace('_', ' ')} {value}" for key, value in keywords.items())])


def predict(stats: Statistics, device: str, columns: int = 1) -> dict[str, float]:
    """Modelled microseconds of a product on a kind of device, by format, named as in ``table_bytes``."""
    found = {}
    for name, n_bytes in stats.table_bytes.items():
        cls, streaming = of_variant(name)[0], n_bytes / BYTES_PER_US[device]
        found[name] = cls._microseconds(name, stats, device, streaming)
        if columns > 1:
            found[name] = cls._microseconds_of_matrix(name, stats, device, found[name], columns)
    return found


def _row_lengths(csr: CSR, device: devices.Device) -> tuple[int, int, int, int]:
    """Slots of bins of blocks of size 1, empty rows, the shortest row's length and the longest's."""
    if not csr.shape[0]:
        return 0, 0, 0, 0
    found: tuple[int, int, int, int] = device.backend("statistics").row_lengths(csr.indptr, WARP)
    return found


def _windows(csr: CSR, device: devices.Device, exact: bool) -> CSR:
    """Evenly spaced windows of rows, stacked, as a CSR in host memory; its values have no meaning."""
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


def _model(window: CSR, csr: CSR, padded: int, exact: bool, block_size: int = 1) -> tuple[dict[int, float], dict[str, int]]:
    """Block fill and table bytes of every format of `csr`, modelled from `window`; `padded` slots in blocks of 1."""
    index, narrow = csr.indices.dtype.itemsize, 0.0
    if window.nnz:
        counts = devices.CPU.backend("statistics")
        narrow = counts.narrow_nonzeros(window.indptr, window.indices, WARP, NARROW) / window.nnz
    sample = Sample(
        window=window,
        shape=csr.shape,
        nnz=csr.nnz if window.nnz else 0,
        value_bytes=csr.data.dtype.itemsize,
        index_bytes=index,
        padded=padded,
        scale=csr.nnz / max(1, window.nnz),
        column_bytes=2 * narrow + index * (1 - narrow),
        exact=exact,
        block_size=block_size,
    )
    tables: dict[str, int] = {}
    fill: dict[int, float] = {}
    for cls in FORMATS.values():
        for name, (n_bytes, filled) in cls._variants(sample, min(tables.values(), default=math.inf)).items():
            tables[name] = n_bytes
            if "block_size" in (keywords := of_variant(name)[1]):
                fill[keywords["block_size"]] = filled
    return fill, tables
