"""What ``A @ X`` takes on a GPU, by the kernel that multiplies: for the choice of a format.

A row of X comes from L2 for each nonzero, or for each column of a stored block, and from L1 where neighbouring rows of A share
it. Kernels differ in what that costs, so the constants are theirs: see ``docs/decisions/0005-choice-of-format.md``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .fitted import PROCESSORS
from .tables import WARP

#: Megabytes that an H200's L2 cache holds beside what streams through it; of X, from which it does not hold all; of X, of which
#: L1 caches hold half.
IN_L2, MUCH_OF_X, IN_L1 = 40.0, 20.0, 2.0
#: Lines of LINE columns that a bin needs, over those that it would need if columns were anywhere: from then on they are.
APART, LINE = 0.8, 64
#: Rows, and entries of an average one, from which thread blocks walk over neighbouring rows of single columns: by the vectors
#: of 16 bytes that a row of X has, at least. The entries of the longest row, slots over nonzeros, and the columns where not all
#: bins are narrow, at most.
WALKED = {8: (100_000, 6), 16: (30_000, 2), 32: (30_000, 3), 64: (90_000, 6)}
WALK_STEPS, WALK_PADDING, WALKED_WIDE = 32, 1.75, 300_000


class Costs(NamedTuple):
    """Microseconds of ``A @ X``; megabytes are of A's tables, of X and of Y."""

    own_us: float
    longest: float  # for the square root of the longest row
    uneven: float  # for each power of e from the mean to the longest row
    tables: float  # a megabyte of them without padding
    padding: float  # a megabyte of rows of X, one for each slot that holds no entry
    sectors: float  # a million sectors of a column of X that bins need
    rows: float  # a megabyte of rows of X, one for each column of a stored block
    begun: float  # the square root of a megabyte of them, for each slot: until loads are under way
    apart: float  # a megabyte of those that neighbouring rows of A do not share, where L1 would not hold all of X
    beyond: float  # a megabyte of those that are far apart, where L2 does not hold all of X
    both: float  # a megabyte of X and Y
    spilled: float  # a megabyte of all that L2 does not hold
    narrow: float = 0.0  # a million entries, for each time that blocks have more columns than X has vectors a row, but one
    holes: float = 0.0  # a megabyte of rows of X, one for each entry of blocks with holes


#: Entries of an average row from which rows of a bin share no rows of X: each is elsewhere in its row at a time.
ALONE = 400

#: Columns up to which kernels have constants of their own where a row of X is no whole number of 16 bytes, so that a load has
#: fewer.
NARROW = 11

#: By the kernel that multiplies: CVR's three; those of BBCSR with single columns, and with larger blocks; where X is narrow.
COSTS = {
    "cvr": Costs(4.47, 0.0494, 0.299, 0.0581, 0, 3.11, 0.0542, 0.439, 0.0292, 0.0882, 0.0385, 0.162),
    "cvr long rows": Costs(5.25, 0.0668, 0.247, 0.292, 0.247, 1.84, 0.0447, 0, 0.0307, 0.068, 0.0791, 0.191),
    "cvr warps": Costs(5.48, 0.0931, 0.483, 0, 0.0743, 5.99, 0.0543, 0.097, 0.0111, 0.108, 0.0524, 0.145),
    "rows": Costs(2.97, 0.0806, 0.445, 0.313, 0.0188, 2.16, 0.0399, 0.318, 0.0342, 0.0883, 0.13, 0.0586),
    "rows cut": Costs(3.67, 0.072, 0, 0.331, 0.015, 5.54, 0.066, 0.206, 0.018, 0.113, 0.067, 0.012),
    "turns": Costs(0.717, 0, 0, 0.243, 0.084, 3.09, 0.026, 0.143, 0.045, 0.053, 0.247, 0),
    "walk": Costs(4.97, 0.549, 0.475, 0.257, 0.0265, 3.66, 0.0357, 0, 0.0384, 0.0555, 0.129, 0.0643),
    "copies": Costs(4.04, 0, 0, 0.117, 0, 3.63, 0, 0.406, 0, 0.088, 0.331, 0),
    "blocks": Costs(3.29, 0.127, 0.883, 0.136, 0.029, 2.13, 0.046, 0.272, 0.09, 0, 0.092, 0.107, 0.191, 0.0033),
    "uneven blocks": Costs(3.97, 0.013, 0.422, 0.176, 0, 0, 0.053, 0.533, 0.168, 0.446, 0, 0.174, 0.33, 0.0051),
    "blocks in turns": Costs(3.22, 0, 1.69, 0.197, 0, 1.83, 0.052, 0.692, 0, 0, 0.208, 0, 0, 0.055),
    "blocks staged": Costs(4.27, 0.0066, 1.67, 0.107, 0.026, 9.04, 0.067, 0.168, 0.074, 0.0029, 0.122, 0.1, 0.249),
    "narrow cvr": Costs(5.9, 0.0257, 0.448, 0.682, 0.392, 4.84, 0, 0, 0, 0.133, 0.0441, 0.202),
    "narrow rows": Costs(3.96, 0.0601, 0.174, 0.261, 0.0781, 5.67, 0.0324, 0.438, 0.09, 0.0937, 0.196, 0.0436),
    "narrow blocks": Costs(5.35, 0.0221, 0.142, 0.388, 0.0377, 1.89, 0.189, 0.128, 0, 1.4, 0.0538, 0, 0.0311, 0.00504),
}


class Rows(NamedTuple):
    """Of single columns."""

    shape: tuple[int, int]  # of the matrix
    nnz: int
    slots: float  # padding counted
    longest: int
    is_narrow: bool  # whether all bins are


def may_walk(rows: Rows, n_vectors: float) -> bool:
    """Whether thread blocks walk over neighbouring rows in ``A @ X``, with so many vectors of 16 bytes in a row of X."""
    if n_vectors < 8 or (n_vectors != 8 and n_vectors % 16):
        return False
    n_rows, mean = WALKED[max(least for least in WALKED if least <= n_vectors)]
    if rows.shape[0] < n_rows or rows.nnz < mean * rows.shape[0] or rows.longest > WALK_STEPS:
        return False
    return rows.slots <= WALK_PADDING * rows.nnz and (rows.is_narrow or rows.shape[1] <= WALKED_WIDE)


class Matrix(NamedTuple):
    """What is known of one in some format."""

    stats: Any  # a cvrarray.Statistics
    n_bytes: int  # of the format's tables
    block_size: int  # 0: CVR
    columns: int  # of X

    @property
    def itemsize(self) -> int:
        size: int = self.stats.dtype.itemsize
        return size

    @property
    def stored(self) -> float:
        """Entries of the blocks that are stored."""
        return float(self.stats.nnz * (self.stats.block_fill[self.block_size] if self.block_size > 1 else 1.0))

    @property
    def slots(self) -> float:
        """The same with padding, or what else tables hold."""
        return max(self.stored, slots(self.stats, self.n_bytes, max(1, self.block_size)))


def slots(stats: Any, n_bytes: int, block_size: int) -> float:
    """That tables of so many bytes have, padding counted, where most blocks have holes."""
    return float(n_bytes / (stats.dtype.itemsize + (4 - 2 * stats.narrow_columns + (block_size > 1)) / block_size))


def microseconds(of: Matrix) -> float:
    """Of ``A @ X``, by the model."""
    stats, costs, size = of.stats, COSTS[kernel(of)], max(1, of.block_size)
    row, stored = of.columns * of.itemsize / 1e6, of.stored
    n_rows, n_cols = stats.shape
    x, both = n_cols * row, (n_rows + n_cols) * row
    rows = stored / size * row
    mean = max(1.0, stats.nnz / max(1, n_rows - stats.empty_rows))
    entries = min(of.n_bytes, stored * (of.itemsize + (4 - 2 * stats.narrow_columns) / size)) / 1e6
    sectors, lines = (1.0, 1.0) if mean >= ALONE else (stats.sectors, stats.lines)
    apart = min(1.0, sectors * size) * x / (x + IN_L1)
    beyond = min(1.0, lines * size) * max(0.0, 1 - MUCH_OF_X / max(MUCH_OF_X, x))
    return float(
        costs.own_us
        + costs.longest * math.sqrt(stats.row_max)
        + costs.uneven * math.log(max(1.0, stats.row_max / mean))
        + costs.tables * entries
        + costs.padding * (of.slots - stored) * row
        + costs.sectors * stats.sectors * stats.nnz / 1e6
        + (costs.rows + costs.apart * apart + costs.beyond * beyond) * rows
        + costs.begun * math.sqrt(stored * row)
        + costs.both * both
        + costs.spilled * max(0.0, both + of.n_bytes / 1e6 - IN_L2)
        + costs.narrow * stored / 1e6 * max(0.0, size / max(1.0, row * 1e6 / 16) - 1)
        + costs.holes * (stored > stats.nnz) * stored * row
    )


def kernel(of: Matrix) -> str:
    """The one that multiplies, where X is in C order and begins at a multiple of 16 bytes: as :mod:`cvrarray.gpu.bbcsr_matmat`
    and :mod:`cvrarray.gpu.cvr_matmat` choose, as far as statistics tell. Those of a narrow X have one name a format.
    """
    if of.columns <= NARROW and of.columns * of.itemsize % 16:
        return "narrow cvr" if not of.block_size else "narrow rows" if of.block_size == 1 else "narrow blocks"
    return _of_chunks(of) if not of.block_size else _of_single_columns(of) if of.block_size == 1 else _of_blocks(of)


def _of_chunks(of: Matrix) -> str:
    line = of.columns * of.itemsize
    if line >= 128 and of.stats.nnz >= 12 * of.stats.shape[0] and (line <= 256 or of.stats.nnz < 1_000_000):
        return "cvr long rows"
    return "cvr warps" if line > 256 else "cvr"


def _of_single_columns(of: Matrix) -> str:
    stats, slots = of.stats, of.slots
    n_bins = max(1.0, stats.shape[0] / WARP)
    vectors, n_steps = of.columns * of.itemsize / 16, slots / (WARP * n_bins)
    is_late = stats.row_max * 16 * PROCESSORS * WARP > 2 * slots
    x = stats.shape[1] * of.columns * of.itemsize / 1e6
    entries, n_lines = WARP * max(1.0, stats.nnz / stats.shape[0]), stats.shape[1] / LINE
    is_apart = stats.lines >= APART * n_lines / entries * -math.expm1(-entries / n_lines)
    is_reused = stats.nnz >= (12 if vectors % 8 else 2) * stats.shape[1]
    if vectors >= 16 and x >= IN_L2 and stats.shape[1] <= 1_200_000 and slots <= 2 * stats.nnz and is_apart and is_reused:
        if not is_late:
            return "turns"
    if may_walk(Rows(stats.shape, stats.nnz, slots, stats.row_max, stats.narrow_columns == 1), vectors):
        return "walk"
    is_even = slots <= 1.25 * stats.nnz
    if n_bins >= 12_000 and stats.row_max <= 8 and vectors <= 4 and of.itemsize + (2 if stats.narrow_columns == 1 else 6) <= 11:
        return "copies"
    most = 4 if not is_even else 8 if stats.row_max <= 8 or n_steps > 16 else 16
    if not is_late and n_bins >= 12_000 and vectors <= most:
        return "turns"
    share = slots * 16 / (16 * WARP * PROCESSORS)
    return "rows cut" if stats.row_max > max(64, min(2 * n_steps, max(1024, share))) else "rows"


def _of_blocks(of: Matrix) -> str:
    stats, size = of.stats, of.block_size
    block_rows = max(1.0, stats.shape[0] / size)
    vectors = max(1, of.columns * of.itemsize // 16)
    few = vectors == 1 and stats.shape[0] < 2000 * WARP
    lanes = 2 if few else min(16, 1 << (vectors - 1).bit_length())
    if lanes < 2:
        return "blocks in turns"
    mean, longest = of.slots / size**2 / block_rows, stats.row_max / size
    threads, enough, sharers = block_rows * lanes, 16 * WARP * PROCESSORS, 1
    while 2 * sharers * lanes <= WARP and 2 * sharers * threads <= enough and 4 * sharers <= mean:
        sharers *= 2
    is_uneven = longest > sharers * max(8, 2 * mean * threads / enough)
    if size == 6 and of.itemsize == 8 and stats.block_fill[size] == 1 and lanes >= 4 and not is_uneven:
        return "blocks staged"
    return "uneven blocks" if is_uneven else "blocks"
