"""Checks that the formats' pages share: of their tables' invariants and of their parameters."""

from __future__ import annotations

import operator
from typing import Any


def is_offsets(ptr: Any, n: int, total: int, least: int) -> bool:
    """Whether `ptr` holds n + 1 offsets from 0 to `total` with at least `least` between neighbours."""
    return ptr.size == n + 1 and int(ptr[0]) == 0 and int(ptr[-1]) == total and bool((ptr[1:] - ptr[:-1] >= least).all())


def in_range(values: Any, low: int, high: int) -> bool:
    """Whether all `values` lie in [low, high)."""
    return values.size == 0 or (int(values.min()) >= low and int(values.max()) < high)


def owner(xp: Any, counts: Any) -> Any:
    """(sum of counts,) int64: 0 counts[0] times, 1 counts[1] times, and so on."""
    ends = xp.cumsum(counts)
    return xp.searchsorted(ends, xp.arange(int(counts.sum())), side="right")


def integer(value: Any, name: str, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high], or a ValueError that says so. A bool is no number."""
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {bounds}; got {value!r}") from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {bounds}; got {number}")
    return number
