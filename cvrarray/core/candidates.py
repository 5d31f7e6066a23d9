"""Candidates: several ways to make a product, all with the same bits, the fastest of which is measured. For both devices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

WORTH_IT = 0.97  #: of the first candidate's time, which another one may take at most

_SETTINGS = threading.local()


class Measured(NamedTuple):
    """What came of a measurement."""

    fastest: str  #: the candidate that stays
    times: dict[str, float]  #: by candidate; the first one first


def asked_for(names: Iterable[str]) -> list[str]:
    """Those that begin as CVRARRAY_KERNEL says, or with a minus sign before do not; all if none would be left."""
    names, wanted = list(names), os.environ.get("CVRARRAY_KERNEL", "")
    start = wanted.removeprefix("-")
    return [name for name in names if name.startswith(start) != wanted.startswith("-")] or names if start else names


def are_measured() -> bool:
    """Whether products measure their candidates: not with CVRARRAY_MEASURE=0."""
    return os.environ.get("CVRARRAY_MEASURE") != "0"


def best(times: dict[str, float]) -> str:
    """The name of the fastest; the first where no other is clearly faster. Inside of :func:`at_once` it is listed."""
    first = next(iter(times))
    fastest = min(times, key=times.__getitem__)
    name = fastest if times[fastest] < WORTH_IT * times[first] else first
    if is_at_once():
        _SETTINGS.measured.append(Measured(name, times))
    return name


@contextmanager
def at_once() -> Iterator[list[Measured]]:
    """Products of this thread that have not been measured are, at their next call; what came of it is listed."""
    before = getattr(_SETTINGS, "measured", None)
    found: list[Measured] = []
    _SETTINGS.measured = found
    try:
        yield found
    finally:
        _SETTINGS.measured = before


def is_at_once() -> bool:
    """Whether this thread is in :func:`at_once`."""
    return getattr(_SETTINGS, "measured", None) is not None
