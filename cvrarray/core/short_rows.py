"""Where ``A @ x`` has as many slots for every row on a GPU, and what it takes: by counts alone, for the choice of a format."""

from __future__ import annotations

from typing import Any, NamedTuple

from .tables import WARP

#: Slots of a row, at most; of all rows, for each multiprocessor; and of these that are empty. Beyond a bin's, no more than half
#: are.
WIDEST, MOST_SLOTS, MOST_EMPTY = 16, 5960, 1990


class Costs(NamedTuple):
    """Microseconds of ``A @ x``: see ``docs/measurements/choice-of-format.md``."""

    own_us: float
    slots: float  # a megabyte of them, empty ones too
    sectors: float  # a million sectors of x


COSTS = Costs(4.06, 0.182, 3.74)


def n_slots(n_rows: int, width: int) -> int:
    """Of all rows, as many as whole warps have, with so many each."""
    return -(-n_rows // WARP) * WARP * width


def may_suit(n_rows: int, nnz: int, processors: int) -> bool:
    """Whether all rows may have as many slots as the longest one, as far as the average row tells."""
    return 0 < nnz <= WIDEST * n_rows and n_slots(n_rows, -(-nnz // n_rows)) <= MOST_SLOTS * processors


def suit(n_rows: int, nnz: int, longest: int, processors: int) -> bool:
    """Whether they have."""
    most = min(MOST_SLOTS * processors, nnz + max(WARP * longest, min(nnz, MOST_EMPTY * processors)))
    return may_suit(n_rows, nnz, processors) and longest <= WIDEST and n_slots(n_rows, longest) <= most


def microseconds(stats: Any, entry: int) -> float:
    """Of a product with entries of so many bytes, by the model, where rows suit; `stats` are the matrix's Statistics."""
    n_bytes = n_slots(stats.shape[0], stats.row_max) * (stats.dtype.itemsize + 4)
    memory, gathers = stats.gpu.slower_memory, stats.gpu.slower_gathers
    sectors = COSTS.sectors * gathers * stats.gathered(entry)[0] * stats.nnz
    return float(COSTS.own_us + (COSTS.slots * memory * n_bytes + sectors) / 1e6)
