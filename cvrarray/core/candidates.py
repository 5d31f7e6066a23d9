"""Candidates: several ways to make a product, all with the same bits, the fastest of which is measured. For both devices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

WORTH_IT = 0.97  #: of the first candidate's time, which another one may take at most

_SETTINGS = threading.local()


def asked_for(names: Iterable[str]) -> list[str]:
    """Those that begin as CVRARRAY_KERNEL says, or with a minus sign before do not; all if none would be left."""
    names, wanted = list(names), os.environ.get("CVRARRAY_KERNEL", "")
    start = wanted.removeprefix("-")
    return [name for name in names if name.startswith(start) != wanted.startswith("-")] or names if start else names


def are_measured() -> bool:
    """Whether products measure their candidates: not with CVRARRAY_MEASURE=0."""
    return os.environ.get("CVRARRAY_MEASURE") != "0"


def best(times: dict[str, float]) -> str:
    """The name of the fastest; the first where no other is clearly faster."""
    first = next(iter(times))
    fastest = min(times, key=times.__getitem__)
    return fastest if times[fastest] < WORTH_IT * times[first] else first


@contextmanager
def at_once() -> Iterator[None]:
    """Products of this thread that have not been measured are, at their next call."""
    before = is_at_once()
    _SETTINGS.at_once = True
    try:
        yield
    finally:
        _SETTINGS.at_once = before


def is_at_once() -> bool:
    """Whether this thread is in :func:`at_once`."""
    return getattr(_SETTINGS, "at_once", False)
