"""Memory of large arrays, which is kept when these are gone and given to the next ones.

The system clears fresh memory, a page at a time, when it is first written: that takes longer than writing a table. Loops
that convert, or that renew values, need as much in every turn as the turn before gave back. (The allocator keeps smaller
blocks than its threshold, which moves, but gives the end of its heap back again and again.) What is kept is marked with
``MADV_FREE``: the system takes it without a word where any process needs memory, and fresh pages come in its place. A few
small regions are kept as they are, because marking them would take as long as using them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from functools import cache
from pathlib import Path

import numpy as np

SMALLEST = 1 << 20  #: bytes; the memory of smaller arrays is the allocator's
MARKED = 1 << 25  #: bytes from which a region that is kept is marked; smaller ones are so many together, at most
SLACK = 4  #: a region serves arrays from 1 / (1 + 1 / SLACK) of its bytes on
SHARE = 8  #: no more than this part of the machine's memory is kept
_HAS_REGIONS = hasattr(mmap, "MADV_FREE") and hasattr(mmap, "MAP_ANONYMOUS")


class _Region:
    """Pages of this process alone."""

    __slots__ = ("pages", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self.pages.madvise(mmap.MADV_HUGEPAGE)
        self.view = np.frombuffer(self.pages, np.uint8)


class _Lease:
    """What the arrays in a region hold on to; with the last of them it goes, and the region is kept."""

    __slots__ = ("__array_interface__", "_region")

    def __init__(self, region: _Region) -> None:
        self._region, self.__array_interface__ = region, region.view.__array_interface__

    def __del__(self) -> None:
        _keep(self._region)


#: Regions that no array is in, the oldest first. Any thread, at any time, may end an array: so there is no lock, and each
#: step is one that the interpreter does not divide.
_kept: list[_Region] = []


def empty(size: int) -> np.ndarray:
    """Uninitialised array of `size` bytes, or some more, that begins at a page. Small ones are ``numpy.empty``'s."""
    if size < SMALLEST or not _HAS_REGIONS:
        return np.empty(size, np.uint8)
    region = _kept_one(size)
    if region is None:
        _make_room(size, size < MARKED)
        try:
            region = _Region(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        except OSError:  # no memory left: NumPy has an error that says how much was wanted
            return np.empty(size, np.uint8)
    return np.asarray(_Lease(region))


def is_own(memory: np.ndarray) -> bool:
    """Whether an array that is no view of another lies in memory of NumPy's, or of :func:`empty`'s: not in a file's."""
    return isinstance(memory.base, _Lease) or (memory.base is None and bool(memory.flags.owndata))


def _kept_one(size: int) -> _Region | None:
    """The smallest region that `size` bytes fit, taken from those that are kept; None where there is none."""
    while True:
        fit = [region for region in _kept if size <= region.size <= size + size // SLACK]
        if not fit:
            return None
        region = min(fit, key=lambda region: region.size)
        with contextlib.suppress(ValueError):  # another thread was quicker
            _kept.remove(region)
            return region


def _make_room(size: int, is_small: bool) -> None:
    """Give `size` bytes of the small regions, or of the others, back to the system: so there are never more than arrays
    once had together.
    """
    for region in list(_kept):
        if size > 0 and (region.size < MARKED) == is_small:
            with contextlib.suppress(ValueError):  # another thread was quicker
                _kept.remove(region)
                size -= region.size


def _keep(region: _Region) -> None:
    is_small = region.size < MARKED
    try:  # one page of a small one too: a kernel that cannot mark it keeps neither
        region.pages.madvise(mmap.MADV_FREE, 0, mmap.PAGESIZE if is_small else region.size)
    except (OSError, ValueError):
        return
    _kept.append(region)
    of_kind = sum(other.size for other in list(_kept) if (other.size < MARKED) == is_small)
    _make_room(of_kind - min(MARKED if is_small else installed(), installed() // SHARE), is_small)


@cache
def installed() -> int:
    """Bytes of memory that this process may use: the machine's, or what a container leaves of it."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):  # not on this system
        found = [1 << 32]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2 and 1
        try:
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such file, or no limit in it
            continue
    return min(found)
