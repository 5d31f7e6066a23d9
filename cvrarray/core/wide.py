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
    """Microseconds of ``A @ X``; megabytes are of A's tables, of X and of Y. 0: too little to count for the choice."""

    own_us: float
    longest: float = 0.0  # for the square root of the longest row
    uneven: float = 0.0  # for each power of e from the mean to the longest row
    tables: float = 0.0  # a megabyte of them without padding
    padding: float = 0.0  # a megabyte of rows of X, one for each column of a block that is padding
    sectors: float = 0.0  # a million sectors of a column of X that bins need
    rows: float = 0.0  # a megabyte of rows of X, one for each column of a stored block
    begun: float = 0.0  # the square root of a megabyte of them, for each slot: until loads are under way
    apart: float = 0.0  # a megabyte of those that neighbouring rows of A do not share, where L1 would not hold all of X
    beyond: float = 0.0  # a megabyte of those that are far apart, where L2 does not hold all of X
    both: float = 0.0  # a megabyte of X and Y
    spilled: float = 0.0  # a megabyte of all that L2 does not hold
    holes: float = 0.0  # a megabyte of rows of X, one for each entry of blocks with holes


#: Entries of an average row from which rows of a bin share no rows of X: each is elsewhere in its row at a time.
ALONE = 400

#: By the family of the kernel that multiplies: CVR's, and those of BBCSR with single columns and with larger blocks.
COSTS = {
    "cvr": Costs(
        6.16, longest=0.0242, uneven=0.102, tables=0.352, sectors=4.77, rows=0.0555, beyond=0.107, both=0.089, spilled=0.153
    ),
    "rows": Costs(
        4.43, longest=0.035, tables=0.317, padding=0.0201, sectors=5.11, rows=0.0386, begun=0.271, beyond=0.119, both=0.117,
        spilled=0.0885,
    ),
    "blocks": Costs(5.07, tables=0.318, rows=0.0507, begun=0.43, apart=0.172, spilled=0.236, holes=0.00266),
}  # fmt: skip


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
        holes=(stored > stats.nnz) * stored * row * gathers,
    )


def kernel(of: Matrix) -> str:
    """The family of the one that multiplies."""
    return ("cvr", "rows", "blocks")[min(of.block_size, 2)]
