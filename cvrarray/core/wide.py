"""What ``A @ X`` takes on a GPU, by the kernel that multiplies: for the choice of a format.

A row of X comes from L2 for each nonzero, or for each column of a stored block, and from L1 where neighbouring rows of A share
it. Kernels differ in what that costs, so the constants are theirs: see ``docs/decisions/0005-choice-of-format.md``.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from .fitted import PROCESSORS
from .tables import WARP

#: Megabytes that an H200's L2 cache holds beside what streams through it; of X, from which it does not hold all; of X, of which
#: L1 caches hold half.
IN_L2, MUCH_OF_X, IN_L1 = 40.0, 20.0, 2.0
#: Lines of LINE columns that a bin needs, over those that it would need if columns were anywhere: from then on they are.
APART, LINE = 0.8, 64
#: Rows, and entries of an average one, from which thread blocks walk over neighbouring rows of single columns: by the vectors
#: of 16 bytes that a row of X has, at least; and nonzeros. The entries of the longest row, and slots over nonzeros, at most.
WALKED = {
    8: ((40_000, 8), (100_000, 6)),
    16: ((30_000, 2),),
    32: ((30_000, 3),),
    64: ((40_000, 6),),
    128: ((90_000, 6),),
}
WALKED_NNZ, WALK_STEPS, WALK_PADDING = 150_000, 32, 1.75
#: CVR: bytes of a row of X from which rows of A may be long, and nonzeros of an average one from which they are: most steps
#: have no record then. Bytes of more than which a warp has a row of X; nonzeros up to which rows of A that are long have
#: their own kernel there too, and from which a warp has shorter rows of X of which lanes would load few bytes at a time.
LONG_LINE, LONG, LONG_ROW, FEW_LONG, MANY_ODD = 128, 12, 256, 1_000_000, 2_000_000


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
    "blocks": Costs(3.29, 0.127, 0.883, 0.136, 0.029, 2.13, 0.046, 0.272, 0.09, 0, 0.092, 0.107, 0.191, 0.0033),
    "uneven blocks": Costs(3.97, 0.013, 0.422, 0.176, 0, 0, 0.053, 0.533, 0.168, 0.446, 0, 0.174, 0.33, 0.0051),
    "blocks in turns": Costs(3.22, 0, 1.69, 0.197, 0, 1.83, 0.052, 0.692, 0, 0, 0.208, 0, 0, 0.055),
    "blocks staged": Costs(4.27, 0.0066, 1.67, 0.107, 0.026, 9.04, 0.067, 0.168, 0.074, 0.0029, 0.122, 0.1, 0.249),
    "narrow cvr": Costs(5.88, 0.0309, 0.349, 0.267, 0.455, 4.56, 0.0839, 0.112, 0.0223, 0.127, 0.0172, 0.188),
    "narrow rows": Costs(3.98, 0.0579, 0.0786, 0.119, 0.0739, 5.53, 0.0543, 0.509, 0.0243, 0.109, 0.248, 0.0903),
    "narrow blocks": Costs(5.05, 0.0196, 0.221, 0.22, 0.0235, 6.81, 0.188, 0.211, 0, 0, 0.105, 0.0588, 0.0547, 0.000835),
    "few cvr": Costs(4.18, 0.0361, 0.805, 0.0619, 0.0504, 3.06, 0.0565, 0.388, 0.0609, 0.125, 0.0826, 0.127),
    "few rows": Costs(3.76, 0.0897, 0.145, 0.197, 0.0871, 3.57, 0.0432, 0, 0.00792, 0.5, 0.165, 0.056),
    "few blocks": Costs(4.09, 0.119, 0.209, 0.219, 0.054, 5.87, 0.0386, 0, 0, 0, 0.164, 0.0877, 0.298),
}


class Rows(NamedTuple):
    """Of single columns."""

    shape: tuple[int, int]  # of the matrix
    nnz: int
    slots: float  # padding counted
    longest: int


def may_walk(rows: Rows, n_vectors: float) -> bool:
    """Whether thread blocks walk over neighbouring rows in ``A @ X``, with so many vectors of 16 bytes in a row of X."""
    if n_vectors < 8 or (n_vectors != 8 and n_vectors % 16):
        return False
    enough = WALKED[max(least for least in WALKED if least <= n_vectors)]
    if rows.nnz < WALKED_NNZ or not any(rows.shape[0] >= n and rows.nnz >= mean * rows.shape[0] for n, mean in enough):
        return False
    return rows.longest <= WALK_STEPS and rows.slots <= WALK_PADDING * rows.nnz


def chunks_kernel(shape: tuple[int, int], nnz: int, line: int, load: int) -> str:
    """CVR's kernel for ``A @ X`` with rows of X of `line` bytes, of which a lane loads `load` at a time: a key of COSTS.

    A warp has a long row of X. Of a large matrix it has a shorter one of which a lane loads less than 16 bytes at a time, as
    that takes many loads: but for single numbers where rows of A are short.
    """
    are_long = nnz >= LONG * shape[0]
    is_odd = nnz >= MANY_ODD and load < 16 and (load > 4 or are_long)
    least = LONG_LINE if is_odd else LONG_ROW
    if line >= LONG_LINE and are_long and (line <= least or nnz < FEW_LONG):
        return "cvr long rows"
    return "cvr warps" if line > least else "cvr"


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
    return Costs(
        own_us=1.0,
        longest=math.sqrt(stats.row_max),
        uneven=math.log(max(1.0, stats.row_max / mean)),
        tables=min(of.n_bytes, stored * (of.itemsize + (4 - 2 * stats.narrow_columns) / size)) / 1e6,
        padding=(of.slots - stored) * row,
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
    row, block = of.columns * of.itemsize, of.block_size
    if of.columns <= NARROW and row % 16:
        return "narrow cvr" if not block else "narrow rows" if block == 1 else "narrow blocks"
    name = _of_chunks(of) if not block else _of_single_columns(of) if block == 1 else _of_blocks(of)
    return f"few {name}" if row <= FEW and f"few {name}" in COSTS else name


def _of_chunks(of: Matrix) -> str:
    line = of.columns * of.itemsize
    return chunks_kernel(of.stats.shape, of.stats.nnz, line, math.gcd(line, 16))


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
    if may_walk(Rows(stats.shape, stats.nnz, slots, stats.row_max), vectors):
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
