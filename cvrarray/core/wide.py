"""What ``A @ X`` takes on a GPU, by the family of the kernel that multiplies: for the choice of a format.

A row of X comes from L2 for each nonzero, or for each column of a stored block, and from L1 where neighbouring rows of A share
it. Families differ in what that costs, so the constants are theirs. They are of one GPU, and scaled by :mod:`.profile`.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

#: The parts of L2 that stay beside what streams through it, and that X may have before it does not hold all; megabytes of X, of
#: which L1 caches hold half.
IN_L2, MUCH_OF_X, IN_L1 = 2 / 3, 1 / 3, 2.0


class Costs(NamedTuple):
    """Microseconds of ``A @ X``; megabytes are of A's tables, of X and of Y."""

    own_us: float
    longest: float  # for the square root of the longest row
    uneven: float  # for each power of e from the mean to the longest row
    tables: float  # a megabyte of them without padding
    padding: float  # a megabyte of rows of X, one for each column of a block that is padding
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

#: By the family of the kernel that multiplies: CVR's, and those of BBCSR with single columns and with larger blocks.
COSTS = {
    "cvr": Costs(5.26, 0.0383, 0.463, 0.328, 0.107, 3.88, 0.0431, 0.156, 0.0266, 0.0782, 0.0534, 0.173),
    "rows": Costs(3.72, 0.0532, 0.305, 0.298, 0.0214, 4.2, 0.0302, 0.364, 0.0327, 0.0766, 0.12, 0.0896),
    "blocks": Costs(4.38, 0.0317, 0.336, 0.27, 0.0219, 4.97, 0.0429, 0.401, 0.152, 0, 0.0274, 0.18, 0.0503, 0.00476),
}


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
    return float(sum(map(operator.mul, COSTS[kernel(of)], counts(of))))


def counts(of: Matrix) -> Costs:
    """What each constant is multiplied by."""
    stats, size = of.stats, max(1, of.block_size)
    row, stored = of.columns * of.itemsize / 1e6, of.stored
    n_rows, n_cols = stats.shape
    x, both = n_cols * row, (n_rows + n_cols) * row
    rows = stored / size * row
    mean = max(1.0, stats.nnz / max(1, n_rows - stats.empty_rows))
    sectors, lines = (1.0, 1.0) if mean >= ALONE else (stats.sectors, stats.lines)
    memory, gathers, l2 = stats.gpu.slower_memory, stats.gpu.slower_gathers, stats.gpu.l2_bytes / (1 << 20)
    return Costs(
        own_us=1.0,
        longest=math.sqrt(stats.row_max),
        uneven=math.log(max(1.0, stats.row_max / mean)),
        tables=min(of.n_bytes, stored * (of.itemsize + (4 - 2 * stats.narrow_columns) / size)) / 1e6 * memory,
        padding=(of.slots - stored) / size * row * gathers,
        sectors=stats.sectors * stats.nnz / 1e6 * gathers,
        rows=rows * gathers,
        begun=math.sqrt(stored * row),
        apart=min(1.0, sectors * size) * x / (x + IN_L1) * rows * gathers,
        beyond=min(1.0, lines * size) * max(0.0, 1 - MUCH_OF_X * l2 / max(MUCH_OF_X * l2, x)) * rows * memory,
        both=both * memory,
        spilled=max(0.0, both + of.n_bytes / 1e6 - IN_L2 * l2) * memory,
        narrow=gathers * stored / 1e6 * max(0.0, size / max(1.0, row * 1e6 / 16) - 1),
        holes=(stored > stats.nnz) * stored * row * gathers,
    )


def kernel(of: Matrix) -> str:
    """The family of the one that multiplies."""
    return ("cvr", "rows", "blocks")[min(of.block_size, 2)]
