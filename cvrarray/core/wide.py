"""What ``A @ X`` takes on a GPU, by the kernel that multiplies: for the choice of a format.

A row of X comes from L2 for each nonzero, or for each column of a stored block, and from L1 where neighbouring rows of A share
it. Kernels differ in what that costs, so the constants are theirs: see ``docs/measurements/choice-of-format.md``.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from . import matmat_kernels
from .tables import WARP

#: Megabytes that an H200's L2 cache holds beside what streams through it; of X, from which it does not hold all; of X, of which
#: L1 caches hold half.
IN_L2, MUCH_OF_X, IN_L1 = 40.0, 20.0, 2.0
#: Lines of LINE columns that a bin needs, over those that it would need if columns were anywhere: from then on they are.
APART, LINE = 0.8, 64

#: The GPU that the constants are of.
H200 = matmat_kernels.GPU()


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

#: Columns up to which kernels have constants of their own where a row of X is no whole number of 16 bytes, so that a load has
#: fewer; and bytes of one, whole ones, up to which others have: one load, or two.
NARROW, FEW = 11, 32

#: By the kernel that multiplies: CVR's three; those of BBCSR with single columns, and with larger blocks; where X is narrow,
#: and where it has few columns.
COSTS = {
    "cvr": Costs(4.47, 0.0494, 0.299, 0.0581, 0, 3.11, 0.0542, 0.439, 0.0292, 0.0882, 0.0385, 0.162),
    "cvr long rows": Costs(5.25, 0.0668, 0.247, 0.292, 0.247, 1.84, 0.0447, 0, 0.0307, 0.068, 0.0791, 0.191),
    "cvr warps": Costs(5.4, 0.0804, 0.323, 0.45, 0.0374, 8.19, 0.0547, 0.0503, 0.00562, 0.0942, 0.0867, 0.122),
    "rows": Costs(3.18, 0.0968, 0.466, 0.276, 0.0198, 2.4, 0.0409, 0.247, 0.0328, 0.0897, 0.157, 0.0292),
    "rows cut": Costs(3.67, 0.0562, 0.0809, 0.281, 0.0159, 3.83, 0.0402, 0.428, 0.0447, 0.0877, 0.046, 0.0859),
    "turns": Costs(5.55, 0, 0, 0.121, 0.0643, 3.2, 0.0471, 0.0713, 0.0242, 0.0564, 0.143, 0.0755),
    "walk": Costs(3.51, 0.572, 0.599, 0.23, 0.0264, 2.97, 0.0376, 0.059, 0.0265, 0.0669, 0.143, 0.0326),
    "copies": Costs(4.04, 0, 0, 0.117, 0, 3.63, 0, 0.406, 0, 0.088, 0.331, 0),
    "blocks": Costs(2.98, 0.197, 0.413, 0.182, 0.0489, 0.0656, 0.0333, 0.304, 0.162, 0, 0.151, 0.0939, 0.145, 0.0047),
    "uneven blocks": Costs(3.97, 0.013, 0.422, 0.176, 0, 0, 0.053, 0.533, 0.168, 0.446, 0, 0.174, 0.33, 0.0051),
    "blocks in turns": Costs(3.22, 0, 1.69, 0.197, 0, 1.83, 0.052, 0.692, 0, 0, 0.208, 0, 0, 0.055),
    "blocks staged": Costs(4.27, 0.0066, 1.67, 0.107, 0.076, 9.04, 0.067, 0.168, 0.074, 0.0029, 0.122, 0.1, 0.249),
    "narrow cvr": Costs(5.88, 0.0309, 0.349, 0.267, 0.455, 4.56, 0.0839, 0.112, 0.0223, 0.127, 0.0172, 0.188),
    "narrow rows": Costs(3.98, 0.0579, 0.0786, 0.119, 0.0739, 5.53, 0.0543, 0.509, 0.0243, 0.109, 0.248, 0.0903),
    "narrow blocks": Costs(5, 0.0298, 0.11, 0.226, 0.1, 4.73, 0.134, 0.289, 0.19, 0, 0.139, 0.0651, 0.0395, 0.0011),
    "few cvr": Costs(4.18, 0.0361, 0.805, 0.0619, 0.0504, 3.06, 0.0565, 0.388, 0.0609, 0.125, 0.0826, 0.127),
    "few rows": Costs(3.76, 0.0897, 0.145, 0.197, 0.0871, 3.57, 0.0432, 0, 0.00792, 0.5, 0.165, 0.056),
    "few blocks": Costs(4.18, 0.11, 0.155, 0.215, 0.0983, 7.9, 0.0387, 0, 0, 0, 0.166, 0.0871, 0.408),
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

    @property
    def width(self) -> int:
        """Numbers in a vector load of X."""
        return math.gcd(self.columns, matmat_kernels.vector_width(self.itemsize))


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
    return Costs(
        own_us=1.0,
        longest=math.sqrt(stats.row_max),
        uneven=math.log(max(1.0, stats.row_max / mean)),
        tables=min(of.n_bytes, stored * (of.itemsize + (4 - 2 * stats.narrow_columns) / size)) / 1e6,
        padding=(of.slots - stored) / size * row,
        sectors=stats.sectors * stats.nnz / 1e6,
        rows=rows,
        begun=math.sqrt(stored * row),
        apart=min(1.0, sectors * size) * x / (x + IN_L1) * rows,
        beyond=min(1.0, lines * size) * max(0.0, 1 - MUCH_OF_X / max(MUCH_OF_X, x)) * rows,
        both=both,
        spilled=max(0.0, both + of.n_bytes / 1e6 - IN_L2),
        narrow=stored / 1e6 * max(0.0, size / max(1.0, row * 1e6 / 16) - 1),
        holes=(stored > stats.nnz) * stored * row,
    )


def kernel(of: Matrix) -> str:
    """The one that multiplies, where X is in C order and begins at a multiple of 16 bytes: as :mod:`cvrarray.gpu.bbcsr_matmat`
    and :mod:`cvrarray.gpu.cvr_matmat` choose, as far as statistics tell. Those of a narrow X have one name a format; with few
    columns some have another.
    """
    row, (family, rule) = of.columns * of.itemsize, _FAMILIES[min(of.block_size, 2)]
    if of.columns <= NARROW and row % matmat_kernels.LOAD:
        return f"narrow {family}"
    name = rule(of)
    return f"few {family}" if row <= FEW and name == family else name


def _of_chunks(of: Matrix) -> str:
    return matmat_kernels.of_chunks(of.stats.shape, of.stats.nnz, of.columns * of.itemsize, of.width * of.itemsize)


def _of_single_columns(of: Matrix) -> str:
    stats = of.stats
    rows = matmat_kernels.Rows(stats.shape, stats.nnz, int(of.slots), stats.row_max)
    x = matmat_kernels.RowOfX(of.columns // of.width, of.width * of.itemsize)
    if matmat_kernels.may_take_lines(rows, x, H200) and _are_apart(stats):
        return "turns"
    if matmat_kernels.may_walk(rows, x):
        return "walk"
    if matmat_kernels.may_copy(rows, x, of.itemsize + (2 if stats.narrow_columns == 1 else 4)):
        return "copies"
    if matmat_kernels.takes_turns(rows, x, H200):
        return "turns"
    longest = matmat_kernels.longest_whole_row(1, rows.slots, rows.mean, H200)
    return "rows cut" if stats.row_max > longest else "rows"


def _are_apart(stats: Any) -> bool:
    """Whether rows of a bin read X far apart."""
    entries, n_lines = WARP * max(1.0, stats.nnz / stats.shape[0]), stats.shape[1] / LINE
    return bool(stats.lines >= APART * n_lines / entries * -math.expm1(-entries / n_lines))


def _of_blocks(of: Matrix) -> str:
    stats, size = of.stats, of.block_size
    n_bins = max(1, -(-stats.shape[0] // WARP))
    mean = int(of.slots) // (WARP * size * n_bins)
    rows = matmat_kernels.BlockRows(-(-stats.shape[0] // size), mean, -(-stats.row_max // size))
    staged = matmat_kernels.tiles_of_staged(size, of.itemsize, of.columns, of.width)
    if staged is not None and stats.block_fill[size] == 1 and matmat_kernels.sharers(rows, staged, H200):
        return "blocks staged"
    groups = matmat_kernels.tiles_of_groups(size, of.columns, of.width, n_bins)
    if groups is None:
        return "blocks in turns"
    return "blocks" if matmat_kernels.sharers(rows, groups, H200) else "uneven blocks"


#: By the block size, 0 to 2 and larger: names of constants, and which of them.
_FAMILIES = ("cvr", _of_chunks), ("rows", _of_single_columns), ("blocks", _of_blocks)
