"""How many sectors of x the rows of a matrix gather: what a GPU loads from L2 for a product, beside the tables.

Nonzeros that a thread block multiplies meet in L1, where they need the same sector. So their number counts, and how far
their columns are apart. Both are counted over windows of rows: different sectors of a bin, and of a window's bins. Each
sector marks a bit that a hash chooses, and the number of bits that stay clear tells how many different ones there were:
K.-Y. Whang, B. T. Vander-Zanden, H. M. Taylor, "A Linear-Time Probabilistic Counting Algorithm for Database
Applications", ACM TODS 15(2), 1990. Both devices count the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Bits of a bitmap; nonzeros of a bin that are looked at, its first ones.
BITS, MOST = 1 << 14, 1 << 12
#: Bytes of a sector, of which a GPU loads whole ones; columns of one with values of less than 8 bytes and others.
SECTOR, COLUMNS = 32, (8, 4)


class Counted(NamedTuple):
    """What was counted over bins, or over windows, that have nonzeros."""

    number: int  # of bins
    nonzeros: int  # that were looked at
    marks: int  # bits that are set, summed over bins

    @property
    def mean(self) -> tuple[float, float]:
        """Nonzeros and different sectors of one, on average."""
        number = max(1, self.number)
        share = min(self.marks / number, BITS - 1) / BITS
        return self.nonzeros / number, -BITS * math.log1p(-share)


class Locality(NamedTuple):
    """Different sectors of x that neighbouring nonzeros gather, of a few and of some more, on average."""

    few: float
    of_few: float
    more: float
    of_more: float

    def sectors(self, nonzeros: float) -> float:
        """Different sectors a nonzero, of so many neighbouring ones: between 0 and 1, by a power law through both
        numbers.
        """
        if not self.of_few:
            return 0.0
        power, first = 1.0, min(1.0, self.of_few / self.few)
        if self.more > self.few:
            power = min(1.0, max(0.0, math.log(self.of_more / self.of_few) / math.log(self.more / self.few)))
        return min(1.0, first * (max(1.0, nonzeros) / self.few) ** (power - 1))


def locality(bins: Counted, windows: Counted) -> Locality:
    """Of what was counted over bins, and over windows of them."""
    return Locality(*bins.mean, *windows.mean)
