"""How a product loads x: the ways give the same bits, and the fastest on this processor is measured.

The first way is right for most matrices on the processors that were measured. A product that has taken as long as a
kernel takes to compile times the others too, on the caller's operands. The fastest stays, for every array of the
structure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cvrarray.core.candidates import are_measured, asked_for, best, is_at_once
from cvrarray.core.remembered import Remembered
from cvrarray.core.tables import BBCSRTables, CVRTables
from cvrarray.core.timing import by_turns
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import compiled

SECONDS = 1.0  #: in a product until its candidates are timed: about what it takes to compile one
SAMPLES = 7  #: calls of each that are timed

#: By the table of a structure: the name of its fastest candidate.
_FASTEST = Remembered()


class Ways(NamedTuple):
    """Ways to load x, for :func:`.simd.take`; () where there are no such columns, and where x is 1 everywhere."""

    narrow: tuple[int, ...]  # for 16-bit columns
    wide: tuple[int, ...]


NONE = Ways((), ())


class Product(NamedTuple):
    """A kernel that has several ways to load x: ``kernel(first, last, *args(ways), *operands)``."""

    kernel: Callable
    args: Callable[[Ways], tuple[Any, ...]]
    operands: tuple[np.ndarray, ...]  # arrays of their dtypes
    values: Any  # of the matrix, as the kernel takes them
    candidates: dict[str, Ways]  # by name; the first is right without measurement
    work: np.ndarray  # as for threads.prepare; a table of the structure
    unit: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it apart from other products of the structure: how values are stored, and the dtypes."""
        return self.kernel, self.operands[0].dtype, type(self.values), getattr(self.values, "dtype", None)

    def version(self, ways: Ways) -> Callable:
        """The kernel, compiled for these ways."""
        return compiled(self.kernel, 0, 0, *self.args(ways), *self.operands)

    def prepared(self, ways: Ways) -> Callable:
        """``call(*operands)``, on some threads."""
        return partial(threads.prepare(self.version(ways), self.work, self.unit), *self.args(ways))

    def chosen(self) -> Ways:
        """The way to take now: the fastest where that is known, else the first."""
        return next(iter(_taking_part(self).values()))


def candidates(t: CVRTables | BBCSRTables, usual: tuple[int, ...]) -> dict[str, Ways]:
    """The ways for these tables, first the `usual` one, which suits the format.

    With AVX-512 wide columns are gathered first: gathers keep more cache misses in flight. Those of AVX2 are hardly faster
    than loads, or slower.
    """
    found = {"loads": (simd.LOADS, simd.LOADS), "runs": (simd.RUNS, simd.RUNS)}
    found = dict(sorted(found.items(), key=lambda item: item[1][0] != usual))
    if len(t.col_wide):
        gathers = {"gathers": (usual, simd.GATHERS)}
        found = gathers | found if simd.AVX512 else found | gathers
    of_columns = bool(len(t.col_narrow)), bool(len(t.col_wide))
    return {
        name: Ways(*(way if there else () for way, there in zip(ways, of_columns, strict=True))) for name, ways in found.items()
    }


def _taking_part(product: Product) -> dict[str, Ways]:
    """The candidates that CVRARRAY_KERNEL leaves, or the fastest, where that is known; of a short product the first one."""
    if int(product.work[-1] - product.work[0]) * product.unit < threads.FEW * threads.SMALL:
        return dict([next(iter(product.candidates.items()))])
    ways = {name: product.candidates[name] for name in asked_for(product.candidates)}
    known = _FASTEST.known(product.work, product.key, None)
    return {known: ways[known]} if known in ways else ways


def fastest(product: Product) -> Callable:
    """``call(*operands)`` by the first candidate, and once measured by the fastest."""
    ways = _taking_part(product)
    call = product.prepared(next(iter(ways.values())))
    if len(ways) == 1 or not are_measured():
        return call
    left = SECONDS

    def measuring(*operands: np.ndarray) -> None:
        nonlocal call, left
        if left <= 0:
            call(*operands)
            return
        start = time.perf_counter()
        call(*operands)
        left = 0.0 if is_at_once() else left - (time.perf_counter() - start)
        if left <= 0:
            try:
                _FASTEST.of(product.work, product.key, lambda: _measured(product, ways, operands))
                call = product.prepared(product.chosen())
            except (MemoryError, OSError):  # the product is done, and the first way stays
                return
            except BaseException:
                left = SECONDS
                raise

    return measuring


def _measured(product: Product, ways: dict[str, Ways], operands: tuple[np.ndarray, ...]) -> str:
    """The name of the fastest, on the calling thread alone. All write the bits that are there already."""
    calls = {name: partial(product.version(way), 0, len(product.work) - 1, *product.args(way)) for name, way in ways.items()}
    times = by_turns([partial(_seconds, call, operands) for call in calls.values()], SAMPLES)
    return best(dict(zip(calls, times, strict=True)))


def _seconds(call: Callable, operands: tuple[np.ndarray, ...]) -> float:
    start = time.perf_counter()
    call(*operands)
    return time.perf_counter() - start
