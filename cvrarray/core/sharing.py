"""How many warps of a GPU share a bin of BBCSR in ``A @ x``, and how long they wait.

Few bins wait for memory rather than for its bandwidth. A warp waits for where its bin lies, and then once for each
round of blocks that it loads together. Bins beyond those that the device holds at once wait for these, and the longest
bin ends last: the later the fewer share it. Fitted to 284 matrices and formats: ``docs/measurements/choice-of-format.md``.
"""

from __future__ import annotations

from typing import NamedTuple

from .profile import FITTED

#: Of warps that share a bin; the most bins with which any do.
SHARERS, MOST_BINS = (1, 2, 4, 8, 16), 1 << 15
#: A multiprocessor, where bins are wide: their warps read other parts of x, and sharing makes no more of them.
WIDE_WARPS = 144
#: In rounds: until a warp knows where its bin lies; for each doubling of the sharers, as blocks of threads get larger and
#: their sums are added; and of a warp's loads at least, however few they are.
START, A_DOUBLING, LEAST = 0.3, 0.15, 0.9


class Bins(NamedTuple):
    """The bins of a matrix."""

    n_bins: int
    mean: float  # blocks of a bin
    longest: float
    block_size: int
    itemsize: int  # of the product's dtype
    is_wide: bool  # most of them, of single columns


class Wait(NamedTuple):
    """How many rounds a product waits, and with how many sharers: the number with which it waits least, if it is allowed."""

    rounds: float
    sharers: int


def least(bins: Bins, processors: int = FITTED.processors) -> Wait:
    """By the model of this page."""
    in_a_round = blocks_in_flight(bins.block_size, bins.itemsize)
    at_once = warps_at_once(bins.block_size, bins.itemsize) * processors
    mean, longest = bins.mean / in_a_round, max(bins.longest, bins.mean) / in_a_round
    n_bins = bins.n_bins

    def rounds(doublings: int) -> float:
        sharers = SHARERS[doublings]
        waves, in_turn = -(-n_bins * sharers // at_once) or 1, mean / sharers
        a_wave = START + A_DOUBLING * doublings + (in_turn if in_turn > LEAST else LEAST)
        return waves * a_wave + (longest - mean) / sharers

    doublings = min(range(len(SHARERS)), key=rounds) if 0 < n_bins <= MOST_BINS else 0
    while bins.is_wide and doublings and n_bins * SHARERS[doublings] > WIDE_WARPS * processors:
        doublings -= 1
    return Wait(rounds(doublings), SHARERS[doublings])


def blocks_in_flight(block_size: int, itemsize: int) -> int:
    """Blocks of a narrow bin that a warp loads before it uses the first: ``docs/measurements/gpu-products.md``."""
    if block_size == 1:
        return 8 if itemsize <= 4 else 4
    return 4 if block_size <= 3 else 2 if block_size <= 6 else 1


def warps_at_once(block_size: int, itemsize: int) -> int:
    """Warps that a multiprocessor has registers for."""
    return 64 if block_size == 1 and itemsize <= 4 else 48 if block_size in (1, 2, 4) else 40
