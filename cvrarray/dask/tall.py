"""Sweeps over the rows of a dask array of our chunks: what :mod:`cvrarray.linalg.tall` asks for, as tasks.

Sums are added pairwise, neighbours first, so their order depends on how many there are, and not on which worker is first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import dask
import numpy as np

from ..core import devices
from ..linalg import tall
from . import registry

#: Groups of rows that are summed on their own, at most, and rows of a group, at least.
GROUPS, ROWS = 32, 4096


def gathered(A: Any, start: Callable[..., Any], take: Callable[..., None], add: Callable[[Any, Any], Any]) -> Any:
    """As :func:`cvrarray.linalg.tall.gathered`, of groups of rows that the shape alone decides."""
    blocks, ends = _blocks(A)
    height = max(ROWS, -(-A.shape[0] // GROUPS))
    parts = []
    for first in range(0, max(1, A.shape[0]), height):
        last = min(first + height, A.shape[0])
        mine = [k for k, (begin, end) in enumerate(pairwise(ends)) if begin < last and end > first] or [0]
        spans = [(max(first, ends[k]) - ends[k], min(last, ends[k + 1]) - ends[k]) for k in mine]
        parts.append(dask.delayed(_gather, pure=False)([blocks[k] for k in mine], spans, start, take))
    return _sum(parts, add).compute()


def _gather(panels: list[Any], spans: list[tuple[int, int]], start: Callable[..., Any], take: Callable[..., None]) -> Any:
    """The sums of the rows `spans` of neighbouring panels, in host memory."""
    target, row = panels[0]._target, 0
    with target.use():
        sums = start(target.xp, sum(last - first for first, last in spans))
        for panel, (first, last) in zip(panels, spans, strict=True):
            tall.gather(panel, first, last, sums, take, row)
            row += last - first
        return _on_host(sums)


def _on_host(sums: Any) -> Any:
    if not isinstance(sums, list | tuple):
        return devices.move(sums, devices.CPU)
    parts = map(_on_host, sums)
    return type(sums)(*parts) if hasattr(sums, "_fields") else list(parts)


def refuse_not_finite(A: Any) -> None:
    """As :func:`cvrarray.linalg.tall.refuse_not_finite`."""
    blocks, ends = _blocks(A)
    for row, place in zip(ends, dask.compute(*(dask.delayed(tall.first_not_finite)(block) for block in blocks)), strict=False):
        if place is not None:
            raise tall.not_finite(row + place[0], *place[1:])


def times(A: Any, x: np.ndarray, shift: Any) -> np.ndarray:
    """``A @ x``, less `shift` in each row."""
    x = dask.delayed(x)  # sent once
    parts = dask.compute(*(dask.delayed(_call, pure=False)(tall.forward, block, x, shift) for block in _blocks(A)[0]))
    return np.concatenate(parts)


def adjoint(A: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``A.H @ y``, and the sums over rows of y."""
    blocks, ends = _blocks(A)
    rows = [y[first:last] for first, last in pairwise(ends)]
    parts = [dask.delayed(_call, pure=False)(tall.backward, *two, False) for two in zip(blocks, rows, strict=True)]
    return _sum(parts, np.add).compute(), y.sum(axis=0)


def normal(A: Any, x: np.ndarray, shift: Any) -> tuple[np.ndarray, np.ndarray]:
    """``A.H @ y``, and the sums over rows of y, for ``y = A @ x - shift``."""
    x = dask.delayed(x)
    parts = [dask.delayed(_call, pure=False)(tall.normal, block, x, shift, False) for block in _blocks(A)[0]]
    back, sums = _sum(parts, _add_both).compute()
    return back, sums


def _add_both(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    return left[0] + right[0], left[1] + right[1]


def _call(function: Callable[..., Any], panel: Any, operand: np.ndarray, *others: Any) -> Any:
    """``function(panel, operand, *others)`` on the panel's device, with the result in host memory."""
    with panel._target.use():
        moved = [devices.move(other, panel._target) if isinstance(other, np.ndarray) else other for other in (operand, *others)]
        found = function(panel, *moved)
        return tuple(map(_on_host, found)) if isinstance(found, tuple) else _on_host(found)


def _blocks(A: Any) -> tuple[list[Any], list[int]]:
    """The chunks of whole rows, as delayed values, and the first row of each, and n_rows.

    Raises
    ------
    ValueError
        How many rows chunks have is not known.
    """
    registry.register()
    if len(A.chunks[1]) > 1:
        A = A.rechunk({1: -1})
    if any(np.isnan(size) for size in A.chunks[0]):
        raise ValueError("chunks of A must have known rows; some are nan. Call A.compute_chunk_sizes() first")
    return A.to_delayed().ravel().tolist(), [0, *np.cumsum(A.chunks[0]).tolist()]


def _sum(parts: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The sum of delayed values, neighbours first."""
    joined = dask.delayed(add, pure=False)
    while len(parts) > 1:
        parts = [joined(*two) if len(two) == 2 else two[0] for two in (parts[k : k + 2] for k in range(0, len(parts), 2))]
    return parts[0]
