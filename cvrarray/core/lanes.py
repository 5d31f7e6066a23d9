"""Where ``A @ x`` of a CVR array goes row by row on a GPU: by counts alone, which the choice of a format knows as well."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Of lanes: which rows they are for, by nonzeros on average, and the most lanes of all rows for each multiprocessor."""

    length: int  # of a row, at least
    narrow: int  # lanes where products have at most 4 bytes
    wide: int  # where they have more, which takes registers
    uneven: int  # where rows are uneven, whatever products have,
    uneven_from: int  # and have so many nonzeros


#: By the slots of a lane. A multiprocessor of an H200 holds 1,300 to 1,700 lanes at once.
SHAPES = {8: Shape(16, 3790, 2120, 3790, 16), 4: Shape(4, 2270, 2270, 3940, 6)}

#: Rows are uneven where the longest one has so many times the nonzeros of the average: the lanes of a chunk steal much, and
#: rows rarely read what their neighbours do.
UNEVEN = 16

#: Slots where products have at most 4 bytes, so that they take few registers, and rows are so long, on average.
MOST_SLOTS, MANY_SLOTS_FROM = 16, 40

#: Lanes that a part of rows in turn may leave empty before a row, so as not to cut it; on average they are.
SPARE = 8

#: Rows are even, all but some, where the longest one has less than so many times the nonzeros of the average.
EVEN = 1.05


def may_have_lanes(nnz: int, n_filled: int, processors: int) -> bool:
    """Whether :func:`slots_of_lanes` may find any, with so many nonzeros in rows that are not empty."""
    return slots_of_lanes(nnz, n_filled, 1, nnz, processors) > 0


def slots_of_lanes(nnz: int, n_filled: int, itemsize: int, longest: int, processors: int) -> int:
    """Slots of a lane, of so many nonzeros in rows that are not empty: more leave more of them empty, and fewer make more
    lanes. 0: rows are too short, or too many, as a product should wait for loads and not for their bytes. `itemsize` is
    that of the product, `longest` the nonzeros of the longest row.
    """
    n_filled = max(1, n_filled)
    for slots, shape in SHAPES.items():
        if nnz >= shape.length * n_filled:
            is_uneven = longest * n_filled >= UNEVEN * nnz and nnz >= shape.uneven_from * n_filled
            most = shape.uneven if is_uneven else shape.narrow if itemsize <= 4 else shape.wide
            return slots if nnz // slots + n_filled // 2 <= most * processors else 0
    return 0


def slots_of_products(nnz: int, n_filled: int, itemsize: int, longest: int, processors: int) -> int:
    """The same, and more slots where long rows and short numbers allow it."""
    slots = slots_of_lanes(nnz, n_filled, itemsize, longest, processors)
    return MOST_SLOTS if slots and itemsize <= 4 and nnz >= MANY_SLOTS_FROM * n_filled else slots


def slots_a_nonzero(slots: int, mean: float, longest: int) -> float:
    """Slots that lanes of so many hold for each nonzero of rows whose last lane is not full: all of even ones, and else half of
    the slots but one.
    """
    return slots * -(-longest // slots) / mean if longest < EVEN * mean else 1 + (slots - 1) / (2 * mean)


def are_cut(slots: int, longest: int) -> float:
    """Whether rows are cut between thread blocks of lanes with so many slots: 0 up to SPARE lanes a row, as then all begin with
    one, and 1 from twice as many on, where some block surely ends within a row.
    """
    return min(1.0, max(0.0, longest / slots / SPARE - 1))
