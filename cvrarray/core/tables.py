"""A matrix in memory: named tuples of raw arrays on one device, without behaviour.

The formats' pages (:mod:`cvrarray.cvr`, :mod:`cvrarray.bbcsr`) explain and decode them; the device modules
(:mod:`cvrarray.cpu`, :mod:`cvrarray.gpu`) fill and multiply them. ``I`` below is the index dtype of a matrix:
int32 while every row and column number fits, else int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray

WARP = 32  #: lanes of a warp: the most lanes a CVR chunk may have, and the rows of a BBCSR bin
SPLITS = ("nnz", "rows", "even")  #: where chunks of CVR end; conversions get the number: see :mod:`cvrarray.cvr`
NARROW = 1 << 16  #: a chunk or bin whose columns span less than this stores 16-bit offsets
WINDOW = 96  #: rows of a window that statistics look at: whole bins, and whole blocks of every size that is chosen
NARROW_PADDING = NARROW - 1  #: the column in a narrow BBCSR bin where there is no block


def mask_dtype(block_size: int) -> np.dtype:
    """dtype of a BBCSR block's presence bits: the smallest with `block_size` bits."""
    return np.dtype(np.uint8 if block_size <= 8 else np.uint16 if block_size <= 16 else np.uint32)


class ValueSample(NamedTuple):
    """A first look at values, on a GPU. It says nothing of others than `values`."""

    values: Array
    n_different: int  # of those that were looked at
    changes: bool  # whether the narrower dtype would change bits of some


class Survey(NamedTuple):
    """What was counted over rows, on a GPU. It says nothing of another matrix than that with these two arrays."""

    indptr: Array
    indices: Array
    asked: tuple[int, int, tuple[int, ...]] | None  # windows of rows, how many of them count, block sizes
    numbers: list[int]  # of all rows: padded slots, empty rows, the shortest, the longest row; then what windows have
    filled: Array | None = None  # int64: its last n_bins + 1 are the rows that are not empty before each bin of 32, and as many
    # more as the first of these says

    def is_of(self, csr: CSR) -> bool:
        """Was it `csr` that was looked at?"""
        return self.indptr is csr.indptr and self.indices is csr.indices


class Wanted(NamedTuple):
    """What a conversion, or the choice of a format, will want to know of a CSR: a GPU looks at it with the check."""

    windows: tuple[int, int, tuple[int, ...]] | None = None  # windows of rows, how many of them count, block sizes
    block_size: int = 0  # bins of blocks of this size; 0: none
    filled: bool = False  # how many rows are not empty


NOTHING = Wanted()


class Measured(NamedTuple):
    """Where the bins of a BBCSR lie, on a GPU. It says nothing of another matrix than that with these two arrays."""

    indptr: Array
    indices: Array
    block_size: int
    sums: Array  # int64: bin_rowptr (n_bins + 1,), then the narrow columns before each bin with as many more as the first says
    col_base: Array  # (n_bins,) I
    n_values: int
    n_narrow: int
    has_holes: bool

    def is_of(self, csr: CSR, block_size: int) -> bool:
        """Are these bins of `csr`, in blocks of this size?"""
        return self.block_size == block_size and self.indptr is csr.indptr and self.indices is csr.indices


class Bins(NamedTuple):
    """What was counted over bins of 32 rows, on a CPU. It says nothing of another matrix than that with these two arrays."""

    indptr: Array
    indices: Array
    longest: Array  # (n_bins,) I: entries of the longest row
    low: Array  # (n_bins,) I: smallest column, 0 of a bin without entries
    high: Array  # (n_bins,) I: largest column, 0 of a bin without entries

    def is_of(self, csr: CSR) -> bool:
        """Was it `csr` that was looked at?"""
        return self.indptr is csr.indptr and self.indices is csr.indices


class Seen(NamedTuple):
    """What the device found out with the check of a CSR, in the same wait or the same pass."""

    sample: ValueSample | None = None
    survey: Survey | None = None
    bins: Bins | None = None
    measured: Measured | None = None
    with_holes: int = 0  # on a GPU: blocks of this size, if it is not 0, have holes

    def of(self, indices: Array) -> Seen:
        """The same of a CSR whose columns have been cast: these are `indices` now."""
        survey = self.survey and self.survey._replace(indices=indices)
        bins = self.bins and Bins(self.bins.indptr, indices, *(part.astype(indices.dtype) for part in self.bins[2:]))
        measured = self.measured
        if measured is not None:
            measured = measured._replace(indices=indices, col_base=measured.col_base.astype(indices.dtype))
        return Seen(self.sample, survey, bins, measured, self.with_holes)


class CSR(NamedTuple):
    """A canonical CSR matrix: columns strictly increase in every row and lie in range, native byte order."""

    indptr: Array  # (n_rows + 1,) int32 or int64
    indices: Array  # (nnz,) I
    data: Array  # (nnz,) dtype
    shape: tuple[int, int]
    seen: Seen = Seen()

    @property
    def nnz(self) -> int:
        return int(self.data.size)


class Blocks(NamedTuple):
    """The places of dense square blocks, as a canonical CSR has those of numbers."""

    indptr: Array  # (n_block_rows + 1,) int64
    indices: Array  # (n_blocks,) I: block columns
    size: int  # rows and columns of a block
    shape: tuple[int, int]  # rows and columns of the matrix; blocks may reach over either edge


class CVRTables(NamedTuple):
    """The chunks of a CVR matrix, concatenated. Slot ``step * n_lanes + lane`` counts through all chunks."""

    shape: tuple[int, int]
    nnz: int
    n_lanes: int
    step_ptr: Array  # (n_chunks + 1,) int64: chunk k's steps are step_ptr[k] .. step_ptr[k + 1]
    val: Array  # (n_steps * n_lanes,) dtype; a pad is 0
    col_base: Array  # (n_chunks,) I: smallest column of a narrow chunk, -1 for a wide one
    col_ptr: Array  # (n_chunks,) int64: where the chunk's columns begin, in col_narrow or in col_wide
    col_narrow: Array  # uint16: column - col_base[k], slot by slot; a pad has the chunk's smallest column
    col_wide: Array  # I: column, slot by slot; a pad has the chunk's smallest column
    rec_mask: Array  # (n_steps,) uint32: bit l is set where a record stands at (step, lane l)
    rec_ptr: Array  # (n_chunks + 1,) int64: chunk k's records are rec_ptr[k] .. rec_ptr[k + 1]
    rec_wb: Array  # (n_records,) I: the row, or ~entry, an entry of the chunk's tail
    tail: Array  # (n_chunks, n_lanes) I: a row, or -1 for a lane that never had one
    carry_row: Array  # (n_chunks,) I: the row that the chunk's start cuts, or -1
    cut_row: Array  # (n_cut,) I: the rows that some chunk's start cuts, ascending
    cut_ptr: Array  # (n_cut, 2) int64: the chunks [first, last) whose carries add into cut_row
    empty_row: Array  # (n_empty,) I: rows without a nonzero, ascending
    distinct: Array | None = None  # what the numbers in val stand for, where they are not the values: see below


class BBCSRTables(NamedTuple):
    """The bins of a BBCSR matrix, concatenated; see :mod:`cvrarray.bbcsr`."""

    shape: tuple[int, int]
    nnz: int
    block_size: int
    bin_rowptr: Array  # (n_bins + 1,) int64: offset of a bin's first value in data
    data: Array  # (bin_rowptr[-1],) dtype; padding and holes are 0
    col_base: Array  # (n_bins,) I: smallest block column of a narrow bin, -1 for a wide one
    col_ptr: Array  # (n_bins,) int64: where the bin's block columns begin, in col_narrow or in col_wide
    col_narrow: Array  # uint16: block column - col_base; padding is NARROW_PADDING
    col_wide: Array  # I: block column (scalar column // block_size); padding is -1
    present: Array | None  # (data.size // block_size,) uint8, uint16 or uint32: bit j is set where column j of the
    # block is a stored entry; None where every column of every block is (always so for block_size 1)
    distinct: Array | None = None  # what the numbers in data stand for, where they are not the values: see below


# Values in few bytes. The value table (val, data) of either format holds the values, of the matrix's dtype, while
# `distinct` is None. Otherwise the matrix's dtype is that of `distinct`, and with so many elements of it
#
#   0         the value table has the values in a narrower dtype: float64 as float32, complex128 as complex64
#   1         the value table is empty (uint8): all values are distinct[0]
#   2 .. 256  the value table has numbers (uint8): a value is distinct[number]; a pad or a hole has number 0
#
# distinct[0] is 0, or finite with no sign bit set (in either part of a complex number): so a product that multiplies
# pads and holes by 0 adds what it would add with a stored 0, and has the same bits. It is +0 where the table has room.


class Runs(NamedTuple):
    """Where CVR's slots have their values in the order of a canonical CSR: a lane has runs of it, one number a step.

    A segment is one run, or several where other lanes stole from it.
    """

    mask: Array  # (n_steps,) uint32: bit l is set where a run of lane l ends
    ptr: Array  # (n_chunks + 1,) int64: chunk k's runs are ptr[k] .. ptr[k + 1], by the steps at which they end
    starts: Array  # (n_runs,) int64: at a step s, counted through all chunks, a run has number starts[run] + s


class Sources(NamedTuple):
    """What each slot of a value table is the sum of. A slot of blocks is one row of one block: `unit` numbers side by
    side.

    Slot s has the numbers ``unit * (32 * (s // 32)) + s % 32 + 32 * j`` of the value table, j from 0 to before `unit`.
    A unit of the data has a number from 1, in `source`; 0 is none: a pad.

    ======  ======  ===========================================================================================================
    first   order   what `source` holds
    ======  ======  ===========================================================================================================
    None    None    (n_slots,) the unit that the slot is
    given   None    the units whose sum the slot is: ``source[first[s // 32] + s % 32 + 32 * k]``, as many k for 32 slots as the
                    one with the most has units; first is (ceil(n_slots / 32) + 1,) int64
    given   given   (n_slots,) a place, from 1: place m is the sum of the units ``order[first[m - 1]]`` .. (from 0) of the data;
                    first is (n_places + 1,), order (n_units,)
    ======  ======  ===========================================================================================================
    """

    source: Array  # int32 while every number of the data fits, else int64; so are the other two where there is an order
    first: Array | None
    order: Array | None
    unit: int
