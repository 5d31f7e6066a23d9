"""How near to one another the columns of wide tiles (chunks, bins) lie: it decides how a product loads x."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP
from cvrarray.cpu import lanes, threads
from cvrarray.cpu.caching import njit

STEPS = 4  #: steps of a tile that are looked at, in its middle
SHARE = 8  #: one entry in so many must find its cache line loaded just before


def near(
    tile_ptr: np.ndarray, unit: tuple[int, int], col_base: np.ndarray, col_ptr: np.ndarray, col_wide: np.ndarray, width: int
) -> np.ndarray:
    """(n_tiles,) uint8: 1 where x is best loaded entry by entry, 0 for gathers. Tiles with narrow columns have 1.

    Loads are quicker than a gather where x comes from L1 or L2. A gather keeps more misses in flight.

    Parameters
    ----------
    tile_ptr : (n_tiles + 1,) int64
        Tile i has ``(tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]`` columns, a multiple of 32 of them.
    col_base, col_ptr, col_wide
        Of the tables.
    width
        Bytes of x that a column stands for.
    """
    is_near = np.ones(len(col_base), np.uint8)
    if len(col_wide):
        args = (tile_ptr, unit, col_base, col_ptr, col_wide, max(lanes.LINE // width, 1).bit_length() - 1, is_near)
        threads.run(_near, tile_ptr, *args, unit=unit[0])
    return is_near


@njit(**lanes.OPTIONS)
def _near(first, last, tile_ptr, unit, col_base, col_ptr, col_wide, shift, is_near):
    """An entry's cache line was loaded just before if it is that of the lane, or of the step, before."""
    for i in range(first, last):
        if col_base[i] >= 0:
            continue
        n_steps = (tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1] // WARP
        begin = max(min(n_steps // 2, n_steps - STEPS - 1), 0)
        end = min(begin + STEPS + 1, n_steps)
        columns = lanes.pointer(col_wide, col_ptr[i] + begin * WARP)
        found = 0
        for j in range(WARP, (end - begin) * WARP):
            line = columns[j] >> shift
            found += (line == columns[j - 1] >> shift) | (line == columns[j - WARP] >> shift)
        is_near[i] = found * SHARE >= (end - begin - 1) * WARP
