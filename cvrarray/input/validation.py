"""What must hold of the arrays of a sparse matrix before compiled code may trust them.

SciPy, CuPy and pydata/sparse convert one format to another with code that checks nothing: a wrong offset makes it read
and write outside its arrays. Their own checks leave holes (SciPy's looks at no offset of a BSR whose last one is 0),
and an object's attributes may have changed since. So every check is made here, on the raw arrays, first.

Pure functions of NumPy or CuPy arrays; index arrays are contiguous int32 or int64. No comparison can wrap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR, NOTHING, Seen, Wanted


def check_compressed(
    indptr: Any,
    indices: Any,
    n_values: int,
    n_major: int,
    n_minor: int,
    names: str = "rows columns",
    *,
    data: Any = None,
    wanted: Wanted = NOTHING,
) -> tuple[bool, Seen]:
    """Whether a CSR (or CSC, or the blocks of a BSR) is canonical; ValueError where it breaks the format's rules. And
    what else a GPU sees in the same wait: of its values `data`, and what is `wanted`.

    Parameters
    ----------
    indptr : (n_major + 1,) 0 to `n_values`, never decreasing
    indices : (n_values,) in [0, n_minor)
    n_values : int
        How many values (of a BSR: blocks) there are.
    names : str
        What is counted along and across, for messages.
    """
    along, across = names.split()
    if indptr.size != n_major + 1:
        raise ValueError(f"indptr must have n_{along} + 1 = {n_major + 1} entries; got {indptr.size}")
    if indices.size != n_values:
        raise ValueError(f"indices and data must have one length; got {indices.size} and {n_values}")
    found = devices.of(indices).backend("csr").check(indptr, indices, n_minor, data, wanted)
    first, last, bad, bad_position, canonical, seen = found
    if first != 0:
        raise ValueError(f"indptr must begin with 0; got {first}")
    if last != n_values:
        raise ValueError(f"indptr must end with the number of nonzeros, {n_values}; got {last}")
    if bad >= 0:
        raise ValueError(f"indptr must never decrease; it does from {along[:-1]} {bad} to {along[:-1]} {bad + 1}")
    if bad_position >= 0:
        raise ValueError(
            f"indices must lie in [0, {n_minor}), the {across}; got {int(indices[bad_position])} at position {bad_position}"
        )
    return bool(canonical), seen


def check_coordinates(
    row: Any, col: Any, n_values: int, shape: tuple[int, int], data: Any = None, wanted: Wanted = NOTHING
) -> tuple[bool | None, CSR | None]:
    """ValueError unless `row` and `col` name `n_values` places in a matrix of `shape`.

    Where the device finds these out with the check: whether places ascend, and, if they do, the canonical CSR of these and
    the values `data`, of which is seen what is `wanted`.
    """
    if not row.size == col.size == n_values:
        raise ValueError(f"row, col and val must have one length; got {row.size}, {col.size} and {n_values}")
    if not n_values:
        return None, None
    extent, ascends, csr = devices.of(row).backend("csr").extent(row, col, data, shape, wanted)
    for name, least, most, n in (("row", *extent[:2], shape[0]), ("col", *extent[2:], shape[1])):
        if least < 0 or most >= n:
            raise ValueError(f"{name} must lie in [0, {n}); got {least if least < 0 else most}")
    return ascends, csr


def check_blocks(indptr: Any, indices: Any, data: Any, shape: tuple[int, int]) -> None:
    """ValueError unless these are the arrays of a BSR of `shape`: `data` holds whole blocks of one size that tile it."""
    if data.ndim != 3 or 0 in data.shape[1:]:
        raise ValueError(f"data of a BSR must hold blocks, (n_blocks, rows, columns) of at least 1 x 1; got {data.shape}")
    height, width = data.shape[1:]
    if shape[0] % height or shape[1] % width:
        raise ValueError(
            f"the shape of a BSR must be a multiple of its blocks'; got {shape[0]} x {shape[1]} in blocks of "
            f"{height} x {width}. Pad the matrix, or convert it to CSR where it was made"
        )
    check_compressed(indptr, indices, data.shape[0], shape[0] // height, shape[1] // width, "block_rows block_columns")


def diagonals_inside(offsets: np.ndarray, data: Any, shape: tuple[int, int]) -> np.ndarray:
    """Which diagonals of a DIA of `shape` cross the matrix (the others hold nothing); ValueError where it breaks the
    rules.

    Parameters
    ----------
    offsets : (n_diagonals,) integers, in host memory, no two the same
    data : (n_diagonals, any) values
    """
    if data.ndim != 2 or data.shape[0] != offsets.size:
        raise ValueError(
            f"data of a DIA must have a row for each offset, ({offsets.size}, length of a diagonal); got shape {data.shape}"
        )
    in_order = np.sort(offsets)
    twice = in_order[:-1][in_order[:-1] == in_order[1:]]
    if twice.size:
        raise ValueError(f"offsets of a DIA must differ; got {int(twice[0])} twice")
    return np.flatnonzero((offsets > -shape[0]) & (offsets < shape[1]))
