"""``A @ X`` with BBCSR on a GPU where rows differ in length: the host's side of ``kernels/pieces.cuh``.

A product ends with its longest row. So long rows have thread blocks of their own, one for each piece, and groups of lanes
share the others by their lengths: ``docs/measurements/matrix-products.md``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cupy
import numpy as np

from ..core.tables import WARP
from .captures import aside
from .compiler import constant
from .launches import matrix_grid, struct
from .streams import Meeting

BLOCK = WARP * constant("pieces.cuh", "PIECE_WARPS")  # threads
#: Steps that a group may take of a row: the least for which all rows have no more threads than there are enough of. No
#: more than all steps would take these threads.
ROUNDS = (4, 6, 8, 12, 16, 24, 32, 48)
MOST_SHARES = 1 << 20  # groups that a table says the share of

#: As the structures of those names in ``kernels/pieces.cuh``.
PIECE = np.dtype([("row", np.int64), ("number", np.int32), ("n_pieces", np.int32)])
SHARE = np.dtype([("row", np.int32), ("part", np.uint16), ("sharers", np.uint16)])


class Schedule(NamedTuple):
    """How rows are shared: those longer than `longest` are cut in pieces."""

    longest: int
    n_steps: int  # of a piece
    share: np.ndarray | None = None  # (n,) SHARE of each group of lanes, whole thread blocks of them; None: all rows in turn


def evened_out(lengths: np.ndarray, lanes: int, tiles: int, enough: int) -> Schedule:
    """Rows of these lengths for groups of `lanes` lanes, and so many tiles of columns, in at most `enough` threads.

    All groups then take about as many steps. A row has a power of two of them; what a warp has no room for is cut.
    """
    steps, n_rows = np.unique(lengths, return_counts=True)
    in_warp, in_block = WARP // lanes, BLOCK // lanes
    rounds = most = max(ROUNDS[0], int(lengths.sum() * lanes * tiles // enough))
    for rounds in (*(found for found in ROUNDS if found < most), most):
        sharers, is_cut = _sharers(steps, rounds), steps > rounds * in_warp
        n_groups = np.where(is_cut, -(-steps // (rounds * in_block)) * in_block, sharers) * n_rows
        if int(n_groups.sum()) * lanes * tiles <= enough:
            break
    of_list = int(n_groups[~is_cut].sum())
    if of_list > MOST_SHARES or (sharers[~is_cut] <= 1).all():
        return Schedule(rounds, rounds * in_block)
    return Schedule(rounds * in_warp, rounds * in_block, _shares(lengths, rounds, in_warp, in_block))


def _sharers(steps: np.ndarray, rounds: int) -> np.ndarray:
    """Groups, a power of two, of which each takes at most so many steps of a row."""
    return 1 << np.ceil(np.log2(np.maximum(1, -(-steps // rounds)))).astype(np.int64)


def _shares(lengths: np.ndarray, rounds: int, most: int, in_block: int) -> np.ndarray:
    """What each group has of the rows that at most `most` of them share; the most shared rows come first."""
    sharers = _sharers(lengths, rounds)
    rows = np.flatnonzero(sharers <= most)
    rows = rows[np.argsort(-sharers[rows], kind="stable")]
    sharers = sharers[rows]
    first = np.cumsum(sharers) - sharers
    n_groups = int(sharers.sum())
    share = np.zeros(-(-n_groups // in_block) * in_block, SHARE)
    share["row"][:n_groups], share["row"][n_groups:] = np.repeat(rows, sharers), -1
    share["part"][:n_groups] = np.arange(n_groups) - np.repeat(first, sharers)
    share["sharers"][:n_groups], share["sharers"][n_groups:] = np.repeat(sharers, sharers), 1
    return share


class Pieces:
    """Long rows, cut in pieces, and the shares of others: the structure of ``kernels/pieces.cuh``.

    Parameters
    ----------
    lengths : (n,) array of int
        Steps of each row, counted as the kernel does.
    schedule : Schedule
    tiles : int
        Of columns.
    sums : tuple of two int
        What a thread block adds up, each of `dtype`: so many times, so many at a time.
    """

    def __init__(self, lengths: np.ndarray, schedule: Schedule, tiles: int, sums: tuple[int, int], dtype: np.dtype) -> None:
        rows = np.flatnonzero(lengths > schedule.longest)
        each = -(-lengths[rows] // schedule.n_steps)
        longest_first = np.argsort(-each, kind="stable")
        rows, each = rows[longest_first], each[longest_first]
        table = np.empty(int(each.sum()), PIECE)
        table["row"], table["n_pieces"] = np.repeat(rows, each), np.repeat(each, each)
        table["number"] = np.arange(table.size) - np.repeat(np.cumsum(each) - each, each)
        self.n, self.share = table.size, schedule.share
        n_cut = int(each[each > 1].sum())
        #: of shared memory that a thread block takes
        self.shared_bytes = BLOCK // WARP * math.prod(sums) * dtype.itemsize if self.n else 0
        with aside():
            pieces, share = (_on_device(of) for of in (table, schedule.share))
        fields = pieces, self.n, n_cut, schedule.n_steps, schedule.longest
        n_tiles = math.prod(matrix_grid(1, tiles)[1:])
        #: the kernel's structure; where a row is cut, ``take()`` gives one for each launch, and sums that live until then
        self.plain = None if n_cut else struct(*fields, None, None, share)
        self.take = Meeting(
            lambda: struct(*fields, cupy.zeros((n_tiles, n_cut), np.uint32), None, share),
            len(fields) + 1,
            n_tiles * n_cut * math.prod(sums) * dtype.itemsize,
        ).take


def _on_device(table: np.ndarray | None) -> cupy.ndarray | None:
    return cupy.asarray(table.view(np.int64)) if table is not None and table.size else None
