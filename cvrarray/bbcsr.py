"""BBCSR: Bin Blocked Compressed Sparse Row.

Source: D. Weber, J. Bender, M. Schnoes, A. Stork, D. Fellner, "Efficient GPU Data Structures and Methods to Solve
Sparse Linear Systems in Dynamics Applications", Computer Graphics Forum 32(1), 2013,
doi:10.1111/j.1467-8659.2012.03227.x, where it is called BIN-CSR.

The idea
--------
32 consecutive scalar rows form a **bin**, which a warp (or a few vectors) multiplies in step: entry k of all 32 rows
lies side by side in memory. Rows of a bin are padded to the longest. Of every ``block_size x block_size`` **block**
only one column is stored a row. Two block rows of size 3 (their blocks A, B, C) in one bin; digits are a row's scalar
columns::

    rows 0-2 | A A A B B B |     data:   A00 A10 A20 C00 C10 C20 ...   A01 A11 A21 C01 ...   (row after row, then the next k)
    rows 3-5 | . . . C C C |     colptr:  0   0   0   3   3   3  ...    3   3   3  -1  -1  -1   (one a block and row)

``block_size=1`` is sliced ELLPACK: no blocks, one column a value.

Arrays
------
=============  ============================  ==============================================================================
bin_rowptr     (n_bins + 1,) int64           ``n_bins = ceil(n_rows / 32)``; prefix sum of ``32 * bin_len``, where ``bin_len``
                                             is block_size times the most blocks in any block row that touches the bin
rowptr         (32 * (n_bins + 1),) int64    ``bin_rowptr[r // 32] + r % 32``; row r ends at ``rowptr[r + 32]``
data           (bin_rowptr[-1],)             entry k of row r is ``data[rowptr[r] + 32 * k]``; padding is 0
colptr         (data.size // block_size,)    block b of row r begins at scalar column
                                             ``colptr[(rowptr[r] - r % 32) // block_size + r % 32 + 32 * b]``; padding
                                             is < 0
=============  ============================  ==============================================================================

Blocks of a row stand in ascending column order. 32 is no multiple of 3 or 6: a block row can lie in two bins. Shapes
need be no multiple of ``block_size``; the last block of a row may reach over the right edge.

Holes
-----
A block that lacks some of its entries has *holes*. They hold 0 and, unlike a stored zero, must never meet ``x``: 0 *
inf would poison a row. Where any block has a hole, ``present`` has a bit a column for every block and row, and product
and way back use only what is marked. A matrix of full blocks has none and pays nothing.

Invariants, as :meth:`BBCSRArray.check` verifies them
-----------------------------------------------------
``check`` verifies what reading the entries relies on, reads them, converts them anew, and compares the tables. So every
product, ``tocsr`` and every other way to read them find the same matrix.

0. ``shape`` and ``nnz`` are counts, ``block_size`` is 1 to 32; every table has its dtype, one dimension, and C order.
1. ``bin_rowptr`` begins with 0 and grows by multiples of ``32 * block_size``; ``data`` has ``bin_rowptr[-1]`` values.
2. Narrow and wide bins fill their column tables exactly, and ``present`` has an entry a block and row.

The conversion has these besides:

3. Blocks of a row ascend, padding follows them, and rows from n_rows on are padding. Rows of one block row have the
   same blocks, also where they lie in two bins, for lanes of one block row share what they load. A bin is as long as
   its longest row. Block columns lie in [0, ceil(n_cols / block_size)); ``col_base`` is the smallest of a bin that
   spans less than 65535 of them, else -1.
4. ``present`` marks no column of padding and none beyond n_cols; there is none where every block is whole. Marked
   entries count ``nnz``.
5. Padding and holes hold 0.

Cost
----
Bytes a stored slot: the value, and (2 or 4) / block_size for its column; with holes 1, 2 or 4 bytes a block and row
more. Slots over nonzeros is :attr:`BBCSRArray.fill_ratio`. BBCSR wins on dense blocks (FEM with 3 or 6 unknowns a node)
and, with ``block_size=1``, on rows of equal length; it loses where one long row pads 31 others: there CVR is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from .array import encoding
from .array.blocks import expanded
from .array.format import FormatArray, Sample
from .array.invariants import are_converted, are_tables, in_range, integer, is_offsets, packs
from .core import devices, extensions, few_columns, sharing, short_rows, wide
from .core.tables import CSR, NARROW_PADDING, WARP, BBCSRTables, Blocks, Wanted
from .input import coercion

#: Block sizes that ``asarray(format="auto")`` looks at; 1 is sliced ELLPACK.
BLOCK_SIZES = (1, 2, 3, 4, 6)
DEFAULT_BLOCK_SIZE = 6


class VectorCosts(NamedTuple):
    """Microseconds of ``A @ x`` on a GPU: see ``docs/measurements/choice-of-format.md``. 0: too little to count."""

    own_us: float
    ramp: float  # until memory is as busy as it can be, which takes some RAMP_MB
    vectors: float  # a megabyte of x and y
    #: These add as sides of a right angle: of a megabyte of tables, in blocks of 1 without padding;
    streamed: float
    round: float  # of a round of loads: cvrarray.core.sharing
    tables: float = 0.0  # a megabyte of tables
    cold: float = 0.0  # of tables of a matrix that fits L2, but may not be there
    sectors: float = 0.0  # a million sectors of x
    lines: float = 0.0  # and lines


#: With blocks of 1, and larger ones.
VECTOR_COSTS = (
    VectorCosts(3.86, 1.03, 0.149, 0.109, 0.503, tables=0.0932, cold=0.0481, sectors=1.11, lines=2.56),
    VectorCosts(3.7, 1.82, 0.202, 0.199, 0.555),
)
RAMP_MB = 8.5
BLOCK_FACTOR = 0.98  #: on a CPU, time over that of streaming with blocks of 2 or more, relative to blocks of 1


class BBCSRArray(FormatArray):
    """A sparse array in BBCSR format.

    Parameters
    ----------
    block_size : int
        Rows and columns of a block, 1 to 32: 6 for shells and rigid bodies, 3 for solids, 1 for no blocks.
    obj, device, shape, dtype, copy, values
        As of :class:`cvrarray.CVRArray`.

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix (see :func:`cvrarray.asarray`) or a parameter is out of range.

    Examples
    --------
    >>> import cvrarray, numpy as np
    >>> A = cvrarray.BBCSRArray(np.kron(np.eye(32), np.ones((2, 2))), block_size=2)
    >>> A.format, A.shape, A.nnz, A.block_size, A.n_bins, A.fill_ratio
    ('bbcsr', (64, 64), 128, 2, 2, 1.0)
    >>> (A @ np.arange(64.0))[:4]
    array([1., 1., 5., 5.])
    >>> A.bin_rowptr.tolist(), A.rowptr[:3].tolist(), A.colptr[:6].tolist(), A.padded_data[:3]
    ([0, 64, 128], [0, 1, 2], [0, 0, 2, 2, 4, 4], array([1., 1., 1.]))
    """

    format = "bbcsr"
    _table_type = BBCSRTables
    _value_table = "data"
    _stored: ClassVar = {
        "bin_rowptr": ("<i8", 1),
        "data": ("value", 1),
        "col_base": ("index", 1),
        "col_ptr": ("<i8", 1),
        "col_narrow": ("<u2", 1),
        "col_wide": ("index", 1),
        "present": ("mask", 1),
        "distinct": ("value", 1),
    }
    _tuned = "block_size"

    _tables: BBCSRTables

    def __init__(
        self,
        obj: Any,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        device: Any = None,
        shape: Any = None,
        dtype: Any = None,
        copy: bool | None = None,
        values: str = "auto",
    ):
        size = integer(block_size, "block_size", 1, WARP)
        super().__init__(obj, shape=shape, dtype=dtype, device=device, values=values, block_size=size)

    @classmethod
    def from_blocks(
        cls,
        block_rows: Any,
        block_cols: Any,
        blocks: Any,
        *,
        shape: tuple[int, int] | None = None,
        device: Any = None,
        values: str = "auto",
    ) -> Self:
        """An array from pairs (block row, block column) and their dense blocks, in any order; duplicates add up.

        Parameters
        ----------
        block_rows, block_cols : (n_blocks,) integers
        blocks : (n_blocks, block_size, block_size) values
            All of them are stored entries, zeros too.
        shape : (n_rows, n_cols), optional
            Default: just large enough for the blocks. Entries of blocks that reach over it are left out.
        device : str, optional
            Default: where all three live.
        values : {"auto", "plain"}
            As for the constructor.

        Raises
        ------
        ValueError
            `blocks` is not (n_blocks, b, b) with b from 1 to 32, the lengths disagree, or a pair lies outside `shape`.

        Examples
        --------
        >>> blocks = np.array([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]])
        >>> cvrarray.BBCSRArray.from_blocks([0, 1], [1, 0], blocks).todense()
        array([[0., 0., 1., 2.],
               [0., 0., 3., 4.],
               [5., 6., 0., 0.],
               [7., 8., 0., 0.]])
        """
        encodes = encoding.checked(values)
        blocks = blocks if hasattr(blocks, "dtype") else np.asarray(blocks)
        if blocks.ndim != 3 or blocks.shape[1] != blocks.shape[2]:
            raise ValueError(f"blocks must have shape (n_blocks, block_size, block_size); got {blocks.shape}")
        coercion.check_dtype(blocks.dtype)
        devices.check_aligned(blocks, "blocks")
        plan = extensions.load("assembly").Assembly(
            block_rows, block_cols, shape=shape, block_size=blocks.shape[1], format="bbcsr", device=device
        )
        array: Self = plan(blocks if device is None else devices.move(blocks, plan._target))
        array = encoding.encoded(array) if encodes else array
        return array if type(array) is cls else cls._from_tables(array._tables)

    @classmethod
    def _of_blocks(cls, blocks: Blocks, target: devices.Device) -> tuple[BBCSRTables, Any]:
        """The tables of blocks, but for their values, and the row of a block that each slot of blocks has.

        Row i of block e has the number ``e * size + i + 1``, and padding 0. No block may reach over the right edge. For
        use on the current device.
        """
        size, n_rows, xp = blocks.size, blocks.shape[0], target.xp
        # a row of a block as one number: the columns of these are those of the blocks
        t = cls._module(target).convert(expanded(blocks, size), 1)
        # of each block row, inside the shape
        rows_of = xp.minimum(size, n_rows - size * xp.arange(blocks.indptr.size - 1))
        nnz = int((xp.diff(blocks.indptr) * rows_of).sum()) * size
        values = xp.broadcast_to(xp.zeros(1, bool), t.data.size * size)
        return t._replace(
            shape=blocks.shape, nnz=nnz, block_size=size, bin_rowptr=t.bin_rowptr * size, data=values, present=None
        ), t.data

    @classmethod
    def _wants(cls, **keywords: Any) -> coercion.Wants:
        size = integer(keywords.get("block_size", 6), "block_size", 1, WARP)
        return lambda shape, nnz: Wanted(block_size=size)

    @classmethod
    def _n_slots(cls, tables: BBCSRTables) -> int:
        return int(tables.data.size or tables.bin_rowptr[-1])  # of some bins too, whose columns are those of all

    def _parameters(self) -> dict[str, Any]:
        return {"block_size": self.block_size}

    @property
    def block_size(self) -> int:
        """Rows and columns of a block."""
        return self._tables.block_size

    @property
    def n_bins(self) -> int:
        """Bins of 32 rows."""
        return int(self._tables.bin_rowptr.size) - 1

    @property
    def bin_rowptr(self) -> Any:
        """(n_bins + 1,) int64: where each bin begins in :attr:`padded_data`."""
        return self._tables.bin_rowptr

    @property
    def padded_data(self) -> Any:
        """(bin_rowptr[-1],) array: the table ``data`` of the format, values in its order, padding and holes included.

        Do not write to it. :attr:`data` has the nonzeros alone. Values that are stored in fewer bytes are decoded for
        each call.
        """
        with self._target.use():
            return encoding.plain(self)

    @property
    def rowptr(self) -> Any:
        """(32 * (n_bins + 1),) int64: where each row begins in :attr:`padded_data`; row r ends at ``rowptr[r + 32]``."""
        xp = self._target.xp
        with self._target.use():
            return (self._tables.bin_rowptr[:, None] + xp.arange(WARP)).ravel()

    @property
    def colptr(self) -> Any:
        """(padded_data.size // block_size,) int32 or int64: scalar column of every block of every row; -1 is padding."""
        with self._target.use():
            block_col = _block_columns(self._tables, self._target.xp)
            return self._target.xp.where(block_col < 0, block_col, block_col * block_col.dtype.type(self.block_size))

    @property
    def fill_ratio(self) -> float:
        """Stored slots over nonzeros; 1.0 is perfect, nan without nonzeros."""
        return self._n_slots(self._tables) / self.nnz if self.nnz else float("nan")

    def _part(self, first: int, last: int) -> tuple[BBCSRTables, int]:
        t, low, high = self._tables, first // WARP, -(-last // WARP)
        start, end = int(t.bin_rowptr[low]), int(t.bin_rowptr[high])
        offsets = t.bin_rowptr[low : high + 1] - start
        if self._target.kind == "cpu":  # as that of whole arrays, for which the decoder is compiled
            offsets.setflags(write=False)
        return t._replace(
            bin_rowptr=offsets,
            data=t.data[start:end],
            col_base=t.col_base[low:high],
            col_ptr=t.col_ptr[low:high],
            present=None if t.present is None else t.present[start // t.block_size : end // t.block_size],
        ), low * WARP

    def _order(self, slots: CSR) -> Any:
        return slots.indptr if self._target.kind == "cpu" else slots.indptr.astype(np.int64, copy=False)

    def _layout(self) -> str:
        return f"{self.n_bins} bins, blocks of {self.block_size}, fill ratio {self.fill_ratio:.3g}"

    def _invariants(self) -> Iterator[tuple[str, Any]]:
        yield from are_tables(self._tables, self._stored, self._value_table)
        t = self._tables
        if t.distinct is not None and t.distinct.size == 1:  # then no table of values bounds the number of slots
            slots, end = (t.col_narrow.size + t.col_wide.size) * t.block_size, t.bin_rowptr[-1:]
            yield "1: bin_rowptr ends where columns do", end.size == 1 and in_range(end, 0, slots + 1)
        t = encoding.numbered(type(self), t)
        size, (n_rows, n_cols) = t.block_size, t.shape
        n_bins, n_block_cols = -(-n_rows // WARP), -(-n_cols // size)
        yield "1: bin_rowptr starts at 0 and never decreases", is_offsets(t.bin_rowptr, n_bins, t.data.size, least=0)
        yield "1: bins are multiples of 32 * block_size long", bool((t.bin_rowptr % (WARP * size) == 0).all())

        yield "2: col_base and col_ptr have one entry a bin", t.col_base.size == t.col_ptr.size == n_bins
        yield "2: col_base is a block column, or -1", in_range(t.col_base, -1, max(n_block_cols, 1))
        slots = (t.bin_rowptr[1:] - t.bin_rowptr[:-1]) // size
        packed = packs(t.col_ptr, t.col_base, slots, t.col_narrow.size, t.col_wide.size)
        yield "2: col_ptr packs narrow and wide bins without gaps", packed
        yield "2: present has an entry a block and row", t.present is None or t.present.size == t.data.size // size
        yield "2: present has no bit at or above block_size", t.present is None or in_range(t.present, 0, 1 << size)

        yield from are_converted(t, self._module(devices.CPU))

    @classmethod
    def _variants(cls, sample: Sample, smallest: float) -> dict[str, tuple[int, float]]:
        value, column, bins = sample.value_bytes, sample.column_bytes, sample.shape[0] / WARP
        if not sample.nnz:
            return {"bbcsr1": (sample.padded * value, 1.0)}
        found = {f"bbcsr{size}": (sample.padded * (value + column / size) + bins * 24, 1.0) for size in (1, *sample.whole)}
        windows = sample.windows
        # what blocks take that hold nothing else
        least = {size: n * size * sample.scale * (value + column / size) for size, n in windows.single_rows.items()}
        best = min(smallest, found["bbcsr1"][0])
        in_groups = windows.in_groups([size for size in least if sample.exact or least[size] <= best])
        for size, (blocks, slots) in in_groups.items():
            if not sample.exact and least[size] > best:
                continue
            fill = float(blocks) * size * size / windows.nnz
            # a long row between the windows pads its bin
            padded = max(slots * WARP * size * sample.scale, sample.padded)
            mask = 0 if fill == 1.0 else 1
            found[f"bbcsr{size}"] = padded * (value + (column + mask) / size) + bins * 24, fill
            best = min(best, found[f"bbcsr{size}"][0])
        return {name: (int(n_bytes), fill) for name, (n_bytes, fill) in found.items()}

    @classmethod
    def _microseconds(cls, name: str, stats: Any, device: str, streaming: float, columns: int) -> float:
        size = _block_size(name)
        if device != "cuda":
            return columns * streaming * (1.0 if size == 1 else BLOCK_FACTOR)
        if columns == 1:
            return _microseconds(name, stats, stats.dtype.itemsize)
        if n_bytes := few_columns.row_bytes(stats.dtype, columns):
            n_bins, blocks, slots = _bins(name, stats, size)
            bins = few_columns.Bins(n_bins, size, blocks, stats.row_max / size, slots / stats.nnz)
            if few_columns.suit_bins(n_bytes, stats.dtype.itemsize, bins):
                return _microseconds(name, stats, n_bytes)
        return wide.microseconds(wide.Matrix(stats, stats.table_bytes[name], size, columns))

    @classmethod
    def _why(cls, name: str, stats: Any) -> str:
        size = _block_size(name)
        if size == 1:
            return super()._why(name, stats)
        return f"{size} x {size} blocks hold {stats.block_fill[size]:.2f} entries a nonzero"


def _block_size(name: str) -> int:
    """That of a variant."""
    return int(name.removeprefix("bbcsr"))


def _microseconds(name: str, stats: Any, entry: int) -> float:
    """``A @ x`` with a variant on a GPU, of a vector whose entries have so many bytes."""
    size, item = _block_size(name), stats.dtype.itemsize
    if size == 1 and short_rows.suit(stats.shape[0], stats.nnz, stats.row_max, stats.gpu.processors):
        return short_rows.microseconds(stats, entry)
    costs, millions, (sectors, lines) = VECTOR_COSTS[size > 1], stats.nnz / 1e6, stats.gathered(entry)
    tables, vectors, column = stats.table_bytes[name] / 1e6, sum(stats.shape) * entry / 1e6, 4 - 2 * stats.narrow_columns
    n_bins, blocks, _ = _bins(name, stats, size)
    is_wide = size == 1 and stats.narrow_columns < 0.5
    bins = sharing.Bins(n_bins, blocks, stats.row_max / size, size, entry, is_wide)
    rounds = sharing.least(bins, stats.gpu.processors).rounds
    memory, gathers = stats.gpu.slower_memory, stats.gpu.slower_gathers
    alone = costs.own_us - costs.ramp * math.expm1(-(tables + vectors) / RAMP_MB)
    alone += ((costs.tables + costs.cold * stats.fits_l2) * tables + costs.vectors * vectors) * memory
    alone += (costs.sectors * sectors + costs.lines * lines) * millions * gathers
    streamed = min(tables, millions * (item + column)) if size == 1 else tables
    return float(alone + math.hypot(costs.streamed * streamed * memory, costs.round * rounds))


def _bins(name: str, stats: Any, block_size: int) -> tuple[int, float, float]:
    """Bins of a variant, and blocks of a row and slots in all of them with padding."""
    n_bins, slots = max(1, -(-stats.shape[0] // WARP)), wide.slots(stats, stats.table_bytes[name], block_size)
    return n_bins, slots / (block_size * WARP * n_bins), slots


def _block_columns(t: BBCSRTables, xp: Any) -> Any:
    """(n_blocks,) block column of every block and row, -1 for padding."""
    n_blocks = t.col_narrow.size + t.col_wide.size
    bin_of = xp.searchsorted(t.bin_rowptr[1:] // t.block_size, xp.arange(n_blocks), side="right")
    is_narrow = (t.col_base >= 0)[bin_of]
    block_col = xp.empty(n_blocks, t.col_wide.dtype)
    block_col[~is_narrow] = t.col_wide
    offset = t.col_narrow.astype(block_col.dtype)
    base = t.col_base[bin_of[is_narrow]]
    block_col[is_narrow] = xp.where(t.col_narrow == NARROW_PADDING, -1, offset + base)
    return block_col
