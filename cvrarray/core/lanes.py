"""Where ``A @ x`` of a CVR array goes row by row on a GPU: by counts alone, which the choice of a format knows as well."""

from __future__ import annotations

#: Slots of a lane: nonzeros of rows, on average, that they are for.
LEAST_LENGTH = {8: 16, 4: 4}
MOST_LANES = 500_000  # of all rows: some three times as many as an H200 holds at once


def slots_of_lanes(nnz: int, n_filled: int) -> int:
    """Slots of a lane, of so many nonzeros in rows that are not empty: more leave more of them empty, and fewer make more
    lanes. 0: rows are too short for any.
    """
    return next((slots for slots, length in LEAST_LENGTH.items() if nnz >= length * max(1, n_filled)), 0)


def are_few(nnz: int, n_filled: int) -> bool:
    """Whether rows fill their lanes, and these are so few that a product waits for loads and not for their bytes."""
    slots = slots_of_lanes(nnz, n_filled)
    return slots > 0 and nnz // slots + n_filled // 2 <= MOST_LANES
