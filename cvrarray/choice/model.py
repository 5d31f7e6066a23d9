"""The choice of a format: statistics of a matrix, and a model of what a product costs.

A product streams the tables once, so its cost is mostly the bytes of the format's tables. The model computes them from
all row lengths and, in evenly spaced windows of rows, from block fill and column spans. Costs that do not follow bytes
were measured and are constants on the formats' pages: see ``docs/measurements/choice-of-format.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..array import encoding
from ..array.blocks import expanded
from ..array.format import Sample
from ..bbcsr import BLOCK_SIZES
from ..core import devices
from ..core.profile import FITTED, FOUND_IN_L1, Profile
from ..core.tables import CSR, WARP, WINDOW, Blocks, Wanted
from ..formats import FORMATS, of_variant
from ..input import coercion

#: Nonzeros that all windows together should have; the fewest and the most windows.
SAMPLE, FEWEST_WINDOWS, MOST_WINDOWS = 1 << 14, 8, 16

SIZES = tuple(sorted({*BLOCK_SIZES} - {1}))
#: Sizes of blocks that are looked for where all rows may be of whole ones, as those of compressible flow are of 5: windows
#: would cut them, or they are rare. On a CPU those for which there are kernels.
WHOLE_SIZES = {"cpu": (8,), "cuda": (5, 7, 8)}
HEAD = 4096  #: columns by which nearly all others are refused

#: Bytes of tables that a kind of device streams in a microsecond. They serve to rank the formats: they were measured on
#: other machines.
BYTES_PER_US = {"cuda": 4.0e6, "cpu": 2.0e4}

#: Microseconds of a call, whatever the matrix. (A format's own costs on a GPU have it in them.)
CALL_US = {"cuda": 0.0, "cpu": 1.3}

#: A format whose tables are more times as large as the smallest ones is not chosen. No constant was fitted to such tables, and
#: what padding costs with many columns was seen to be twice what the model says.
HOPELESS = 3.0


class Statistics(NamedTuple):
    """Statistics by which a format is chosen. Row lengths count stored entries.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
    dtype : numpy.dtype
    empty_rows, row_min, row_max : int
    row_mean : float
    row_median, row_std : float
        nan unless exact.
    block_fill : dict of int to float
        Block size -> entries of its blocks over nonzeros; 1.0 is perfect.
    table_bytes : dict of str to int
        "cvr", "bbcsr1", "bbcsr2", ... -> bytes of the format's tables, modelled.
    sampled : bool
        Whether block_fill and table_bytes come from windows of rows, not from all rows.
    values : str
        What a conversion on this device stores values as, in words; "plain" unless exact.
    narrow_columns : float
        Share of the nonzeros whose columns fit 16 bits, in bins of 32 rows.
    sectors, lines : float
        Different groups of 8, and of 64, neighbouring columns in bins of 32 rows, over their nonzeros.
    gpu : Profile
        What predicted times take of the GPU: that of the matrix, or the H200 of the constants.

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
    row_median: float
    row_max: int
    row_std: float
    block_fill: dict[int, float]
    table_bytes: dict[str, int]
    sampled: bool
    values: str = "plain"
    narrow_columns: float = 1.0
    sectors: float = 0.0
    lines: float = 0.0
    gpu: Profile = FITTED

    @property
    def fits_l2(self) -> bool:
        """bool: whether a CSR, x and y fit the GPU's L2 cache, where a product finds what the last one has left of them.

        Examples
        --------
        >>> import scipy.sparse, cvrarray
        >>> cvrarray.statistics(scipy.sparse.eye(1000)).fits_l2
        True
        """
        return floor_bytes(self.shape, self.nnz, self.dtype.itemsize) < self.gpu.l2_bytes

    @property
    def loads(self) -> float:
        """float: different 32 bytes of x in bins of 32 rows, over nonzeros.

        8 columns of 4 bytes are 32 bytes, as `sectors` counts them. Of other entries they follow from how much fewer lines
        are, which have 8 times as many columns.

        Examples
        --------
        >>> import scipy.sparse, cvrarray
        >>> stats = cvrarray.statistics(scipy.sparse.eye(1024, dtype="float32"))
        >>> stats.sectors, stats.loads
        (0.125, 0.125)
        """
        return self._loads(self.dtype.itemsize)

    def _loads(self, entry: int) -> float:
        """The same of entries of so many bytes."""
        if not self.lines:
            return 0.0
        doublings = math.log2(entry / 4)
        return float(min(1.0, self.sectors * (self.sectors / self.lines) ** (doublings / 3)))

    def gathered(self, entry: int) -> tuple[float, float]:
        """Different 32 bytes, and groups of 64 columns, that bins of 32 rows need of an x with entries of so many bytes, over
        nonzeros. Where a multiprocessor's L1 holds x, each counts once for each of them, and in part for what it finds there.

        Examples
        --------
        >>> import scipy.sparse, cvrarray
        >>> cvrarray.statistics(scipy.sparse.eye(1024, dtype="float32")).gathered(4)
        (0.125, 0.03125)
        """
        n_bytes, needed = self.shape[1] * entry, (self._loads(entry), self.lines)
        if n_bytes > self.gpu.l1_bytes or not self.nnz:
            return needed
        once = (self.gpu.processors / self.nnz * n for n in (n_bytes / 32, self.shape[1] / 64))
        sectors, lines = (min(n, n_once + FOUND_IN_L1 * max(0.0, n - n_once)) for n, n_once in zip(needed, once, strict=True))
        return sectors, lines


class Plan(NamedTuple):
    """A choice: ``format`` with ``block_size`` (None for CVR), and why."""

    format: str
    block_size: int | None
    reason: str

    @property
    def keywords(self) -> dict[str, int]:
        """The constructor's keywords."""
        return {} if self.block_size is None else {"block_size": self.block_size}


def statistics(obj: Any, *, exact: bool = True) -> Statistics:
    """Statistics of any matrix that :func:`asarray` takes.

    Parameters
    ----------
    obj : sparse or dense 2-D array
    exact : bool
        Look at all rows. Otherwise at 8 to 16 windows of 96 rows, which is quick on a GPU too, and give block fill
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
    return looked_at(coercion.as_csr(obj), exact)[0]


def looked_at(csr: CSR, exact: bool) -> tuple[Statistics, CSR]:
    """:func:`statistics` of `csr`, and `csr` with what a GPU has seen of it on the way that a conversion may want."""
    device = devices.of(csr.data)
    n_rows, _ = csr.shape
    with device.use():
        (padded, empty, shortest, longest), windows, is_sampled = _survey(csr, device, exact)
        median = std = math.nan
        if exact and n_rows:
            lengths = device.xp.diff(csr.indptr)
            median, std = float(device.xp.median(lengths)), float(lengths.std())
        divided = math.gcd(*csr.shape, shortest, longest) if csr.nnz else 1
        whole = [size for size in WHOLE_SIZES[device.kind] if divided % size == 0 and _has_whole_blocks(csr, size)]
        fill, tables = _model(windows, csr, padded, exact, whole)
    if getattr(windows, "measured", None) is not None:
        csr = csr._replace(seen=csr.seen._replace(measured=windows.measured))
    found = Statistics(
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
        sampled=is_sampled,
        values=encoding.described(csr.data, device) if exact else "plain",
        narrow_columns=_narrow(windows),
        sectors=windows.sectors / max(1, windows.nnz),
        lines=windows.lines / max(1, windows.nnz),
        gpu=device.profile(),
    )
    return found, csr


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
    sizes = sorted({*BLOCK_SIZES, size} - {1})
    windows = devices.CPU.backend("statistics").Windows(window.indptr, window.indices, n_cols, sizes)
    nnz = int(by_row[-1]) if blocks.indices.size else 0
    index = coercion.index_dtype(blocks.shape)
    about = CSR(by_row, np.empty(0, index), np.broadcast_to(np.zeros(1, dtype), nnz), blocks.shape)
    fill, tables = _model(windows, about, padded, False)
    mean = nnz / n_rows if n_rows else 0.0
    return Statistics(
        blocks.shape, nnz, dtype, empty, shortest, mean, math.nan, longest, math.nan, fill, tables, True,
        narrow_columns=_narrow(windows),
        sectors=windows.sectors / max(1, windows.nnz), lines=windows.lines / max(1, windows.nnz),
        gpu=devices.of(blocks.indices).profile(),
    )  # fmt: skip


def choose(stats: Statistics, device: str, columns: int = 1) -> Plan:
    """The format with the fastest product, by the model, on a kind of device (``"cpu"`` or ``"cuda"``).

    The product is one with so many columns; 1 is a vector.
    """
    if not stats.nnz:
        return Plan("cvr", None, "cvr: no nonzeros, so no padding either")
    time = predict(stats, device, columns)
    most = HOPELESS * min(stats.table_bytes.values())

    def rank(name: str) -> tuple[bool, float, int]:
        return stats.table_bytes[name] > most, time[name], stats.table_bytes[name]

    name = min(time, key=rank)
    cls, keywords = of_variant(name)
    others = [other for other in time if not other.startswith(cls.format) or of_variant(other)[0] is not cls]
    named = [name, *([min(others, key=rank)] if others else [])]
    beside = "".join(f" ({_label(other)}: {_rounded(time[other])})" for other in named[1:])
    size = " and ".join(f"{stats.table_bytes[other] / stats.nnz:.1f}" for other in named)
    of = "" if columns == 1 else f" with {columns} columns"
    reason = f"{_label(name)}: predicted {_rounded(time[name])} us a product{of}{beside}"
    return Plan(cls.format, keywords.get("block_size"), f"{reason}; {size} bytes a nonzero; {cls._why(name, stats)}")


def _rounded(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.2g}"


@lru_cache(256)
def _label(name: str) -> str:
    cls, keywords = of_variant(name)
    return ", ".join([cls.format, *(f"{key.replace('_', ' ')} {value}" for key, value in keywords.items())])


def floor_bytes(shape: tuple[int, int], nnz: int, itemsize: int) -> int:
    """Bytes that a CSR product of values of `itemsize` has to move when it reads `x` once, with 32-bit indices."""
    n_rows, n_cols = shape
    return nnz * (itemsize + 4) + 4 * (n_rows + 1) + itemsize * (n_rows + n_cols)


def predict(stats: Statistics, device: str, columns: int = 1) -> dict[str, float]:
    """Modelled microseconds of a product on a kind of device, by format, named as in ``table_bytes``."""
    return {name: _predicted(name, stats, device, columns) for name in stats.table_bytes}


def _predicted(name: str, stats: Statistics, device: str, columns: int) -> float:
    """:func:`predict` of one format."""
    cls = of_variant(name)[0]
    return CALL_US[device] + cls._microseconds(name, stats, device, stats.table_bytes[name] / BYTES_PER_US[device], columns)


def windows_of(shape: tuple[int, int], nnz: int) -> tuple[int, int, tuple[int, ...]]:
    """Windows of rows of a matrix, how many of them are looked at, and the block sizes for which."""
    n_windows = -(-shape[0] // WINDOW)
    n_counted = max(FEWEST_WINDOWS, min(MOST_WINDOWS, SAMPLE * n_windows // max(nnz, 1)))
    return n_windows, min(n_windows, n_counted), SIZES


def wanted_of(shape: tuple[int, int], nnz: int) -> Wanted:
    """What the choice looks at, and what a conversion to CVR, or to BBCSR with blocks of 1, would begin with."""
    return Wanted(windows_of(shape, nnz), 1, filled=True)


def _survey(csr: CSR, device: devices.Device, exact: bool) -> tuple[tuple[int, int, int, int], Any, bool]:
    """What the device's ``survey`` counts in evenly spaced windows of rows; and whether these are not all rows."""
    n_windows, n_counted, sizes = windows_of(csr.shape, csr.nnz)
    counts = device.backend("statistics")
    if not n_windows:
        nothing = np.zeros(1, np.int64)
        return (0, 0, 0, 0), devices.CPU.backend("statistics").Windows(nothing, nothing[:0], 0, sizes), False
    n_counted = n_windows if exact else n_counted
    lengths, windows = counts.survey(csr, n_windows, n_counted, sizes, None if exact else SAMPLE)
    if csr.nnz and not windows.nnz:  # they missed every nonzero
        n_counted = n_windows
        lengths, windows = counts.survey(csr, n_windows, n_counted, sizes)
    return lengths, windows, n_counted < n_windows or windows.is_part


def _has_whole_blocks(csr: CSR, size: int) -> bool:
    """Whether all entries of a CSR, whose shape is a multiple of `size`, lie in blocks of `size` that have no holes."""

    def in_groups(columns: Any) -> bool:
        groups = columns[: columns.size // size * size].reshape(-1, size)
        return bool((groups[:, 0] % size == 0).all() and (groups[:, 1:] - groups[:, :-1] == 1).all())

    device = devices.of(csr.data)
    lengths = device.xp.diff(csr.indptr).reshape(-1, size)
    if not (in_groups(csr.indices[:HEAD]) and in_groups(csr.indices) and bool((lengths == lengths[:, :1]).all())):
        return False
    row = device.backend("csr").row_of_nonzero(csr.indptr, csr.indices)
    from_first = (csr.indptr[:-1] - csr.indptr[:-1:size].repeat(size))[row]  # of the block row's first row
    return bool((csr.indices == csr.indices[device.xp.arange(csr.nnz) - from_first]).all())


def _narrow(windows: Any) -> float:
    """The share of the nonzeros of some windows whose columns fit 16 bits, in bins of 32 rows."""
    return float(windows.narrow / max(1, windows.nnz))


def _model(
    windows: Any, csr: CSR, padded: int, exact: bool, whole: Sequence[int] = ()
) -> tuple[dict[int, float], dict[str, int]]:
    """Block fill and table bytes of every format, modelled from `windows` of `csr`; `padded` and `whole` are as in Sample."""
    index, narrow = csr.indices.dtype.itemsize, _narrow(windows)
    sample = Sample(
        windows=windows,
        shape=csr.shape,
        nnz=csr.nnz if windows.nnz else 0,
        value_bytes=csr.data.dtype.itemsize,
        index_bytes=index,
        padded=padded,
        scale=csr.nnz / max(1, windows.nnz),
        column_bytes=2 * narrow + index * (1 - narrow),
        exact=exact,
        whole=whole,
    )
    tables: dict[str, int] = {}
    fill: dict[int, float] = {}
    for cls in FORMATS.values():
        for name, (n_bytes, filled) in cls._variants(sample, min(tables.values(), default=math.inf)).items():
            tables[name] = n_bytes
            if "block_size" in (keywords := of_variant(name)[1]):
                fill[keywords["block_size"]] = filled
    return fill, tables
