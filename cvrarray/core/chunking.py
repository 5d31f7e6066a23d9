"""How many chunks a CVR matrix has on a GPU for ``A @ x``: the conversion makes them, and the choice counts with them."""

from __future__ import annotations

from .tables import WARP

#: Steps a chunk should have: STEPS, fewer (to MIN_STEPS) where there would not be ENOUGH_CHUNKS to keep the device
#: busy, more (to MAX_STEPS) where rows are longer. Measured: ``docs/decisions/0003-gpu-products.md``.
MIN_STEPS, STEPS, MAX_STEPS, ENOUGH_CHUNKS = 32, 64, 512, 7392
#: Chunks that are under way at once, with values of at most 4 bytes and longer ones: 92% of the warps that an H200's
#: 132 multiprocessors hold, as some of them store empty rows. A few chunks more would wait for all of these. So a
#: matrix of less than FEW_WAVES times as many chunks gets a whole multiple, or chunks of LEAST_STEPS where that is
#: fewer.
WAVE, FEW_WAVES, LEAST_STEPS = (3880, 2910), 3, 12


def wave(itemsize: int) -> int:
    """Chunks that are under way at once."""
    return WAVE[itemsize > 4]


def number(n_rows: int, nnz: int, itemsize: int, n_lanes: int = WARP) -> int:
    """Chunks for a matrix: whole groups of `n_lanes` average rows, in about STEPS steps.

    A group of long rows is cut where it would leave too few chunks for the device, or have more than MAX_STEPS steps.
    Small matrices fill the device a whole number of times: see WAVE.
    """
    waves = nnz / (n_lanes * STEPS * wave(itemsize))
    if waves < FEW_WAVES:
        return max(1, min(wave(itemsize) * max(1, round(waves)), round(nnz / (n_lanes * LEAST_STEPS))))
    mean, share = max(1.0, nnz / max(1, n_rows)), nnz / (n_lanes * ENOUGH_CHUNKS)
    wanted = min(max(share, MIN_STEPS), STEPS)
    steps = min(mean * max(1, round(wanted / mean)), max(share, wanted), MAX_STEPS)
    return max(1, round(nnz / (steps * n_lanes)))
