"""CVR: Compressed Vectorization-oriented sparse Row.

Source: B. Xie, J. Zhan, X. Liu, W. Gao, Z. Jia, X. He, L. Zhang, "CVR: Efficient Vectorization of SpMV on X86
Processors", CGO 2018, doi:10.1145/3168818. This page follows a later dialect of it, in which a lane's part of a row is
finished by a *record* and lanes that run dry steal.

The idea
--------
The nonzeros, in row-major order, are cut into **chunks**. A chunk is laid out over ``n_lanes`` **lanes** in
``n_steps = ceil(nnz_chunk / n_lanes)`` **steps**, so that one vector instruction (or one warp) takes one step. Each
lane works through whole rows, one after the other. A lane that runs dry is *fed* the next row; when rows run out it
*steals* its share from the front of a lane that has too much. Rows 0 to 3 of lengths 3, 1, 2 and 4 on two lanes::

    row 0: a b c      lane 0 | a b c i j |   records (pos, wb): (1, row 1), (4, row 0), (5, entry 1), (8, entry 0), (9, entry 0)
    row 1: d          lane 1 | d e f g h |   tail = [3, 2],  lr_rec = 5
    row 2: e f
    row 3: g h i j    Before step 3 both lanes are dry. Lane 0 takes row 3, the last one. Lane 1 finds no row, so it steals
                      the first two of row 3; both parts add into entry 0 of tail, which is row 3.

Slot ``pos = step * n_lanes + lane`` is ``val[lane, step]`` of a :class:`Chunk`, which says what the arrays of a chunk are.

Conversion of one chunk
-----------------------
1. *Feed.* Before step i every lane with nothing left, in lane order, takes the next non-empty row (its part inside the
   chunk).
2. *Record.* A lane that has just finished something appends ``(pos, wb)``, wb being its row or, in tail mode, its
   entry.
3. *Last row.* When the chunk's last row is fed, ``tail`` takes all lanes' rows, and lane l's wb becomes the entry l.
4. *Steal.* A dry lane with no row left to feed takes ``average = n_steps - i`` elements from the front of the lowest
   lane that has more than that, and the victim's wb. If there is none the lane pads to the end.
5. *Pads* hold value 0 and the chunk's smallest column. They follow a lane's last record, so no sum ever includes them,
   whatever ``x`` holds there.

Where chunks end
----------------
With q = nnz // n_chunks, ``split="nnz"`` cuts every q nonzeros (the first ``nnz % n_chunks`` chunks have one more).
``split="rows"`` moves each of these cuts to the nearest end of a group of ``n_lanes`` non-empty rows, so that lanes
stay in phase (neighbouring rows advance together and find ``x`` in cache); where that is q / 2 away or more, to the
nearest end of a row; where a row is that long too, it leaves the cut inside the row.
``split="even"`` is for GPUs, which multiply all chunks at once and wait for the longest. There a non-empty row counts
as one more nonzero, for its record, if q is 4 or more: chunks have equal numbers q' of nonzeros and rows together, of
which a row's own comes last. And a cut moves only to an end of a row less than q' / 4 nonzeros and less than 16 steps
away.

Invariants, as :meth:`CVRArray.check` verifies them
---------------------------------------------------
``check`` verifies what reading the entries relies on, reads them, converts them anew with chunks of the same sizes, and
compares the tables. So every product, ``tocsr`` and every other way to read them find the same matrix. One choice is
left free: a pad may hold -0.0.

0. ``shape`` and ``nnz`` are counts, ``n_lanes`` is 1 to 32; every table has its dtype, its dimensions, and C order.
1. ``step_ptr`` and ``rec_ptr`` begin with 0, increase, and fit the tables they point into.
2. Narrow and wide chunks fill their column tables exactly.
3. A record is one bit of ``rec_mask`` below ``n_lanes``; ``rec_wb`` names a row or an entry of tail that is not -1.

The conversion has these besides:

4. Carries: ``carry_row`` is -1 or the last row of the chunk before; ``cut_row`` and ``cut_ptr`` list exactly the chunks
   that carry.
5. Every row has one owner: one chunk that stores it, or ``empty_row``. Rows ascend, in a chunk as they are fed.
6. Slots up to each lane's last record in its chunk count ``nnz``; each chunk has fewer than ``n_lanes`` pads. They hold
   0 and the chunk's smallest column.
7. Columns lie in [0, n_cols) and increase in every row, over the lanes that share it and the chunks that cut it: no
   entry is stored twice. ``col_base`` is the smallest of a chunk that spans less than 65536 columns, else -1.
8. Records, ``rec_wb`` and ``tail`` are those that feeding and stealing lead to: every row and every entry of tail is
   complete once.

Cost
----
Bytes a nonzero: the value, 2 or 4 for the column, 1/8 for the record mask; a row: 4 for ``rec_wb``; a chunk: 4 a lane
for ``tail`` and some 40 more. CVR wins where row lengths vary: it never pads a row. On rows of equal length BBCSR with
``block_size=1`` (sliced ELLPACK) moves as few bytes with less bookkeeping; on dense blocks BBCSR stores fewer columns.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .array import encoding
from .array.format import FormatArray, Sample
from .array.invariants import are_converted, are_tables, in_range, integer, is_offsets, packs
from .core import devices, few_columns, lanes, short_rows, wide
from .core.tables import CSR, SPLITS, WARP, CVRTables, Runs, Wanted
from .input import coercion

#: Steps that a chunk has in the cost model. The devices' modules choose: ``default_n_chunks`` of cpu/cvr and gpu/cvr.
STEPS = 64

#: Bytes of tables from which a CPU waits for memory more than for instructions.
LARGE = 1 << 23

#: On a CPU, time over that of streaming the tables, for records and lanes out of phase; and where a product mostly
#: waits for memory: 8-byte values, tables over LARGE. See ``docs/measurements/choice-of-format.md``.
FACTOR, FACTOR_WAITING = 1.33, 1.05


class VectorCosts(NamedTuple):
    """Microseconds of ``A @ x`` on a GPU: see ``docs/measurements/choice-of-format.md``. 0: too little to count."""

    own_us: float
    tables: float  # a megabyte of tables, of lanes with the slots that rows leave empty
    sectors: float  # a million sectors of x
    vectors: float = 0.0  # a megabyte of x and y
    nonzeros: float = 0.0  # a million nonzeros
    longest: float = 0.0  # the same, for each power of e from the mean to the longest row


#: Where it goes by chunks, and where it goes row by row, in lanes (:mod:`cvrarray.core.lanes`).
VECTOR_COSTS = {
    "chunks": VectorCosts(5.91, 0.2, 3.85, vectors=0.251, nonzeros=0.225, longest=0.144),
    "lanes": VectorCosts(4.45, 0.29, 2.8),
}
#: A megabyte of tables of a matrix that fits L2, but may not be there; where thread blocks have parts of a row in lanes, and
#: wait for one another.
COLD, CUT = 0.0258, 0.566
LONGER_ENTRIES = 0.35  #: By chunks, for a million sectors of x and each byte that an entry has more than a value.
LIKE_LINES = 32.0  #: So many times WARP rows need about as many sectors of x as WARP rows need lines.


class Chunk(NamedTuple):
    """One chunk of a CVR array as the format defines it; arrays on the array's device.

    Attributes
    ----------
    val : (n_lanes, n_steps) array of the array's dtype
    col_idx : (n_lanes, n_steps) int32 or int64
    tail : (n_lanes,) integers
        The row that each lane had when no row was left; -1 for none.
    rec_pos : (n_records,) int64
        The slot, ``step * n_lanes + lane``, after which a sum is complete; increasing.
    rec_wb : (n_records,) integers
        Where it goes: a row, and from slot `lr_rec` on an entry of `tail`.
    lr_rec : int
        The slot of the first lane that found no row to feed.

    Examples
    --------
    >>> A = cvrarray.CVRArray([[1.0, 2, 3], [0, 4, 0], [5, 6, 0]], n_lanes=2)
    >>> chunk = A.chunk(0)
    >>> chunk.val  # a row for each lane
    array([[1., 2., 3.],
           [4., 5., 6.]])
    >>> chunk.rec_pos.tolist(), chunk.rec_wb.tolist(), chunk.tail.tolist(), chunk.lr_rec
    ([1, 4, 5], [1, 0, 1], [0, 2], 4)
    """

    val: Any
    col_idx: Any
    tail: Any
    rec_pos: Any
    rec_wb: Any
    lr_rec: int


class CVRArray(FormatArray):
    """A sparse array in CVR format.

    Parameters
    ----------
    obj : sparse or dense 2-D array, or a tuple
        scipy.sparse, cupyx.scipy.sparse, pydata/sparse, NumPy, CuPy or an array of ours. Duplicates are summed. A tuple
        is, as for SciPy's constructors, ``(data, (row, col))``, ``(data, indices, indptr)`` or the shape of an empty
        matrix.
    n_lanes : int, optional
        Lanes a chunk, 1 to 32. Default: 32.
    n_chunks : int, optional
        Chunks, at most one a nonzero. Default: by size, row length, dtype and kind of device.
    split : {"rows", "nnz", "even"}, optional
        Where chunks end: see the module's page. Default: ``"rows"``, but ``"even"`` on a GPU that multiplies all chunks at
        about the same time.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. Default: where `obj` lives.
    shape : (n_rows, n_cols), optional
        Of a matrix in parts. Default: as large as they need.
    dtype : data type, optional
        To which values are cast. Default: theirs.
    copy : ignored; SciPy has it. The tables are new ones always.
    values : {"auto", "plain"}
        ``"auto"`` stores values in fewer bytes where that pays: one value once, at most 256 different ones as 8-bit
        numbers, float64 that is exactly float32 as such. Every result has the same bits as with ``"plain"``.

    Raises
    ------
    TypeError, ValueError
        `obj` is no matrix (see :func:`cvrarray.asarray`) or a parameter is out of range.

    Examples
    --------
    >>> import cvrarray, numpy as np, scipy.sparse
    >>> A = cvrarray.CVRArray(scipy.sparse.diags_array(np.arange(1.0, 101.0)), n_chunks=2)
    >>> A.format, A.shape, A.nnz, A.n_chunks, A.n_lanes
    ('cvr', (100, 100), 100, 2, 32)
    >>> (A @ np.ones(100))[:4]
    array([1., 2., 3., 4.])
    """

    format = "cvr"
    _table_type = CVRTables
    _value_table = "val"
    _stored: ClassVar = {
        "step_ptr": ("<i8", 1),
        "val": ("value", 1),
        "col_base": ("index", 1),
        "col_ptr": ("<i8", 1),
        "col_narrow": ("<u2", 1),
        "col_wide": ("index", 1),
        "rec_mask": ("<u4", 1),
        "rec_ptr": ("<i8", 1),
        "rec_wb": ("index", 1),
        "tail": ("index", 2),
        "carry_row": ("index", 1),
        "cut_row": ("index", 1),
        "cut_ptr": ("<i8", 2),
        "empty_row": ("index", 1),
        "distinct": ("value", 1),
    }
    _tuned = "n_chunks"

    _tables: CVRTables
    _last_rows: Any = None  # (n_chunks,) the last row of each chunk, once a row is asked for

    def __init__(
        self,
        obj: Any,
        *,
        n_lanes: int | None = None,
        n_chunks: int | None = None,
        split: str | None = None,
        device: Any = None,
        shape: Any = None,
        dtype: Any = None,
        copy: bool | None = None,
        values: str = "auto",
    ):
        if n_lanes is not None:
            n_lanes = integer(n_lanes, "n_lanes", 1, WARP)
        if split is not None and split not in SPLITS:
            raise ValueError(f"split must be 'rows', 'nnz' or 'even'; got {split!r}")
        if n_chunks is not None:
            n_chunks = integer(n_chunks, "n_chunks", 1)
        of = {"shape": shape, "dtype": dtype, "device": device, "values": values}
        super().__init__(obj, n_lanes=n_lanes, n_chunks=n_chunks, split=split, **of)

    @classmethod
    def _wants(cls, **keywords: Any) -> coercion.Wants:
        return lambda shape, nnz: Wanted(filled=True)

    @classmethod
    def _for_conversion(cls, csr: CSR, target: devices.Device, **keywords: Any) -> dict[str, Any]:
        module = cls._module(target)
        n_lanes = keywords.get("n_lanes") or module.default_n_lanes(csr)
        n_chunks = keywords.get("n_chunks") or module.default_n_chunks(csr, n_lanes)
        split = keywords.get("split") or ("rows" if keywords.get("n_chunks") else module.default_split(csr, n_lanes))
        return {"n_lanes": n_lanes, "n_chunks": min(n_chunks, csr.nnz), "split": split}

    @classmethod
    def _n_slots(cls, tables: CVRTables) -> int:
        return int(tables.rec_mask.size) * tables.n_lanes

    def _parameters(self) -> dict[str, Any]:
        return {"n_lanes": self.n_lanes}

    @property
    def n_lanes(self) -> int:
        """Lanes a chunk."""
        return self._tables.n_lanes

    @property
    def n_chunks(self) -> int:
        """Chunks; 0 for an array without nonzeros."""
        return int(self._tables.tail.shape[0])

    def chunk(self, k: int) -> Chunk:
        """Chunk `k` as the format defines it: ``val`` and ``col_idx`` by lane and step, records and tail.

        Raises
        ------
        IndexError
            There is no chunk `k`.
        TypeError
            `k` is no integer.

        Examples
        --------
        >>> A = cvrarray.CVRArray([[1.0, 2, 3], [0, 4, 0], [5, 6, 0]], n_lanes=2)
        >>> A.chunk(0).col_idx.tolist(), A.chunk(0).rec_pos.tolist()
        ([[0, 1, 2], [1, 0, 1]], [1, 4, 5])
        """
        t, k = self._tables, operator.index(k)
        if not 0 <= k < self.n_chunks:
            raise IndexError(f"chunk must lie in [0, {self.n_chunks}); got {k}")
        with self._target.use():
            first, last = (int(step) for step in t.step_ptr[k : k + 2])
            slots = slice(first * t.n_lanes, last * t.n_lanes)
            start, n_slots, base = int(t.col_ptr[k]), slots.stop - slots.start, int(t.col_base[k])
            if base >= 0:
                col = t.col_narrow[start : start + n_slots].astype(t.col_wide.dtype) + t.col_base[k]
            else:
                col = t.col_wide[start : start + n_slots]
            rec_pos = _positions(self._target.xp, t.rec_mask[first:last], t.n_lanes)
            wb = t.rec_wb[int(t.rec_ptr[k]) : int(t.rec_ptr[k + 1])]
            in_tail = wb < 0
            lr_rec = 0 if bool((t.tail[k] < 0).any()) else int(rec_pos[in_tail][0])
            by_lane = (last - first, t.n_lanes)
            return Chunk(
                val=encoding.plain(self)[slots].reshape(by_lane).T,
                col_idx=col.reshape(by_lane).T,
                tail=t.tail[k],
                rec_pos=rec_pos,
                rec_wb=self._target.xp.where(in_tail, ~wb, wb),
                lr_rec=lr_rec,
            )

    def _part(self, first: int, last: int) -> tuple[CVRTables, int]:
        t, xp = self._tables, self._target.xp
        if self._last_rows is None:  # rows ascend from chunk to chunk, and a chunk's tail holds its last one
            self._last_rows = t.tail.max(axis=1)
        low, high = xp.searchsorted(self._last_rows, xp.asarray([first, last], self._last_rows.dtype)).tolist()
        high = min(high + 1, self.n_chunks)  # a row may go on in the chunk after those that end with it
        start, end = int(t.step_ptr[low]), int(t.step_ptr[high])
        steps = t.step_ptr[low : high + 1] - start
        if self._target.kind == "cpu":  # as that of whole arrays, for which the decoder is compiled
            steps.setflags(write=False)
        return t._replace(
            step_ptr=steps,
            val=t.val[start * t.n_lanes : end * t.n_lanes],
            col_base=t.col_base[low:high],
            col_ptr=t.col_ptr[low:high],
            rec_mask=t.rec_mask[start:end],
            rec_ptr=t.rec_ptr[low : high + 1],
            tail=t.tail[low:high],
            carry_row=t.carry_row[low:high],
        ), 0

    def _order(self, slots: CSR) -> Runs:
        t, xp = self._tables, self._target.xp
        number = xp.full(self._n_slots(t), -1, np.int64)
        number[slots.data] = xp.arange(t.nnz)
        number = number.reshape(-1, t.n_lanes)
        ends = number >= 0
        ends[:-1] &= number[1:] != number[:-1] + 1
        ends[t.step_ptr[1:] - 1] = number[t.step_ptr[1:] - 1] >= 0
        step, lane = xp.nonzero(ends)
        mask = (ends * (xp.uint32(1) << xp.arange(t.n_lanes, dtype=np.uint32))).sum(axis=1, dtype=np.uint32)
        return Runs(mask, xp.searchsorted(step, t.step_ptr), number[step, lane] - step)

    def _layout(self) -> str:
        return f"{self.n_chunks} chunks of {self.n_lanes} lanes"

    def _invariants(self) -> Iterator[tuple[str, Any]]:
        yield from are_tables(self._tables, self._stored, self._value_table)
        t = encoding.numbered(type(self), self._tables)
        n_cols = t.shape[1]
        n_chunks, n_lanes = self.n_chunks, t.n_lanes
        n_steps, n_records = t.rec_mask.size, t.rec_wb.size

        yield "1: tail has a row a chunk and a column a lane", t.tail.shape == (n_chunks, n_lanes)
        yield "1: step_ptr starts at 0 and increases", is_offsets(t.step_ptr, n_chunks, n_steps, least=1)
        yield "1: val has n_steps * n_lanes slots", t.val.size == n_steps * n_lanes
        yield "1: rec_ptr starts at 0 and increases", is_offsets(t.rec_ptr, n_chunks, n_records, least=1)

        slots = (t.step_ptr[1:] - t.step_ptr[:-1]) * n_lanes
        yield "2: col_base and col_ptr have one entry a chunk", t.col_base.size == t.col_ptr.size == n_chunks
        yield "2: col_base is a column, or -1", in_range(t.col_base, -1, n_cols)
        packed = packs(t.col_ptr, t.col_base, slots, t.col_narrow.size, t.col_wide.size)
        yield "2: col_ptr packs narrow and wide chunks without gaps", packed

        yield "3: rec_mask has no bit at or above n_lanes", in_range(t.rec_mask, 0, 1 << n_lanes)
        counts = np.add.reduceat(np.bitwise_count(t.rec_mask), t.step_ptr[:-1], dtype=np.int64)
        yield "3: rec_mask has one bit a record", np.array_equal(counts, np.diff(t.rec_ptr))
        yield "3: rec_wb names rows and entries of tail", in_range(t.rec_wb, -n_lanes, t.shape[0])
        yield "3: tail holds rows, or -1", in_range(t.tail, -1, t.shape[0])
        yield "4: carry_row has an entry a chunk", t.carry_row.size == n_chunks
        # else a shape could ask for any memory
        yield "5: every row has an owner", t.shape[0] <= n_records + t.tail.size + t.empty_row.size
        yield "of nnz: it counts the entries of all records", devices.CPU.backend("cvr_conversion").entry_ptr(t)[-1] == t.nnz
        yield from are_converted(t, self._module(devices.CPU))

    @classmethod
    def _variants(cls, sample: Sample, smallest: float) -> dict[str, tuple[int, float]]:
        n_rows, nnz, index = sample.shape[0], sample.nnz, sample.index_bytes
        chunks = nnz / (STEPS * WARP)
        entries = nnz * (sample.value_bytes + sample.column_bytes + 1 / 8)
        return {"cvr": (int(entries + n_rows * index + chunks * (WARP * index + 40)) if nnz else 0, 1.0)}

    @classmethod
    def _microseconds(cls, name: str, stats: Any, device: str, streaming: float, columns: int) -> float:
        if device != "cuda":
            is_waiting = stats.dtype.itemsize >= 8 and stats.table_bytes[name] > LARGE
            return columns * streaming * (FACTOR_WAITING if is_waiting else FACTOR)
        if columns == 1:
            return _microseconds(stats, stats.dtype.itemsize)
        n_bytes, n_rows = few_columns.row_bytes(stats.dtype, columns), stats.shape[0] - stats.empty_rows
        slots = lanes.slots_of_products(stats.nnz, n_rows, n_bytes, stats.row_max, stats.gpu.processors)
        if few_columns.suit_chunks(n_bytes, is_row_by_row=slots > 0):
            return _microseconds(stats, n_bytes)
        return wide.microseconds(wide.Matrix(stats, stats.table_bytes[name], 0, columns))

    @classmethod
    def _for_columns(cls, csr: CSR, columns: int) -> dict[str, Any]:
        device = devices.of(csr.data)
        if device.kind != "cuda" or columns == 1 or not csr.nnz:
            return {}
        module = cls._module(device)
        with device.use():
            chunks: dict[str, Any] = module.chunks_for_columns(csr, module.default_n_lanes(csr), columns)
            return chunks


def _microseconds(stats: Any, item: int) -> float:
    """``A @ x`` on a GPU, of a vector whose entries have so many bytes."""
    n_bytes = stats.table_bytes["cvr"]
    n_rows, millions = stats.shape[0] - stats.empty_rows, stats.nnz / 1e6
    n, mean = stats.gpu.processors, max(1.0, stats.nnz / max(1, n_rows))
    slots = lanes.slots_of_products(stats.nnz, n_rows, item, stats.row_max, n)
    costs, (sectors, lines) = VECTOR_COSTS["lanes" if slots else "chunks"], stats.gathered(item)
    memory, gathers = stats.gpu.slower_memory, stats.gpu.slower_gathers
    time = COLD * stats.fits_l2 * n_bytes * memory / 1e6
    if lanes.may_have_lanes(stats.nnz, n_rows, n) and short_rows.suit(stats.shape[0], stats.nnz, stats.row_max, n):
        return short_rows.microseconds(stats, item)
    elif slots:
        n_bytes *= lanes.slots_a_nonzero(slots, mean, stats.row_max)
        time += CUT * lanes.are_cut(slots, stats.row_max)
    else:  # a chunk's rows: as few as WARP need their sectors, LIKE_LINES times as many about their lines
        time += LONGER_ENTRIES * (item - stats.dtype.itemsize) * stats.loads * millions * gathers
        share = min(1.0, max(0.0, math.log(STEPS / mean) / math.log(LIKE_LINES)))
        sectors = sectors ** (1 - share) * lines**share
    spread = math.log(max(1.0, stats.row_max / mean))
    time += costs.own_us
    time += ((costs.nonzeros + costs.longest * spread) * memory + costs.sectors * sectors * gathers) * millions
    return float(time + (costs.tables * n_bytes + costs.vectors * sum(stats.shape) * item) * memory / 1e6)


def _positions(xp: Any, rec_mask: Any, n_lanes: int) -> Any:
    """(n_records,) int64 slots at which `rec_mask` (n_steps,) has a bit, ascending."""
    bits = xp.unpackbits(rec_mask.view(xp.uint8), bitorder="little").reshape(-1, WARP)
    return xp.flatnonzero(bits[:, :n_lanes])
