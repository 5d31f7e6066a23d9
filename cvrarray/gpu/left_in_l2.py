"""What ``A @ x`` leaves of a matrix's tables in L2, for the next product to find.

Products mostly follow each other, as in a solver. What is read once need not stay in L2: it makes room first, before x and
what others left there. But the tables of a small matrix may all stay. Of a large one L2 holds no more than what a product
read last, which the next one would read last again: so every second product begins with the last rows. No bit depends on
that. Measured: ``docs/measurements/gpu-products.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np

from ..core.tables import BBCSRTables, CVRTables
from .launches import argument
from .properties import attribute

#: The part of L2 that tables may take which stay there; and where x is elsewhere.
KEPT, KEPT_ALONE = 0.4, 0.8
#: Of tables that have more than the part LARGE of L2 so much stays at either end. With less a single product loses, for all
#: that it displaces, what one of many gains.
LARGE, KEPT_AT_AN_END = 0.9, 0.5

NONE, ENDS, ALL = range(3)
FORWARDS, BACKWARDS = argument(np.int32(0)), argument(np.int32(1))


def bytes_of_tables(t: BBCSRTables | CVRTables) -> int:
    """Of those that a product reads for each nonzero."""
    values = t.data if isinstance(t, BBCSRTables) else t.val
    return int(values.nbytes + t.col_narrow.nbytes + t.col_wide.nbytes)


def keeps(n_bytes: int, alone: bool = False) -> bool:
    """Whether all of tables of so many bytes stay in L2. `alone`: x does not need it."""
    return n_bytes <= (KEPT_ALONE if alone else KEPT) * attribute("L2CacheSize")


def kept_at_ends(t: BBCSRTables, n: int) -> int:
    """Of the tables' `n` bins so many stay in L2 from the first one on, and so many up to the last one."""
    n_bytes, l2 = bytes_of_tables(t), attribute("L2CacheSize")
    if n_bytes <= KEPT * l2:
        return n
    return int(n * KEPT_AT_AN_END * l2 / n_bytes) if n_bytes > LARGE * l2 else 0


def kept(n_kept: int, n: int) -> int:
    """The kernel file's ``Kept``: whether none, some or all of `n` bins stay, where `n_kept` do at either end."""
    return NONE if not n_kept else ALL if 2 * n_kept >= n else ENDS


def turns() -> Iterator[Any]:
    """For each product in turn, whether it goes backwards: an argument of kernels."""
    return cycle((FORWARDS, BACKWARDS))
