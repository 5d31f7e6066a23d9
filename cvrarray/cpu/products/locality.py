"""How near to one another the columns of wide tiles (chunks, bins) lie: it decides how a product loads x."""

from __future__ import annotations

import numpy as np

from cvrarray.core.tables import WARP, BBCSRTables, CVRTables
from cvrarray.cpu import simd
from cvrarray.cpu.runtime import threads
from cvrarray.cpu.runtime.compiler import kernel

SAMPLED_STEPS = 4  #: steps of a tile that are looked at, in its middle
SHARE = 8  #: one entry in so many must find its cache line loaded just before


def prefers_scalar_loads(
    tile_ptr: np.ndarray, unit: tuple[int, int], tables: CVRTables | BBCSRTables, width: int
) -> np.ndarray:
    """(n_tiles,) uint8: 1 where x is best loaded entry by entry, 0 for gathers. Tiles with narrow columns have 1.

    Scalar loads are quicker than a gather where x comes from L1 or L2. A gather keeps more misses in flight.

    Parameters
    ----------
    tile_ptr : (n_tiles + 1,) int64
        Tile i has ``(tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1]`` columns, a multiple of 32 of them.
    tables
        Those of either format: their columns count.
    width
        Bytes of x that a column stands for.
    """
    t = tables
    scalar = np.ones(len(t.col_base), np.uint8)
    if len(t.col_wide):
        shift = max(simd.LINE_BYTES // width, 1).bit_length() - 1
        threads.run(_look, tile_ptr, tile_ptr, unit, t.col_base, t.col_ptr, t.col_wide, shift, scalar, unit=unit[0])
    return scalar


@kernel
def _look(first, last, tile_ptr, unit, col_base, col_ptr, col_wide, shift, scalar):
    """An entry's cache line was loaded just before if it is that of the neighbouring row, or of the step before."""
    for i in range(first, last):
        if col_base[i] >= 0:
            continue
        n_steps = (tile_ptr[i + 1] - tile_ptr[i]) * unit[0] // unit[1] // WARP
        begin = max(min(n_steps // 2, n_steps - SAMPLED_STEPS - 1), 0)
        end = min(begin + SAMPLED_STEPS + 1, n_steps)
        columns = simd.pointer(col_wide, col_ptr[i] + begin * WARP)
        found = 0
        for j in range(WARP, (end - begin) * WARP):
            line = columns[j] >> shift
            found += (line == columns[j - 1] >> shift) | (line == columns[j - WARP] >> shift)
        scalar[i] = found * SHARE >= (end - begin - 1) * WARP
