"""Panels of rows: where a matrix is cut so that each panel stores its share of the bytes, and cutting it there."""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import numpy as np

from ..core import devices
from ..core.tables import CSR, WARP

#: Bytes of a panel where nothing else is asked for: twice Dask's own chunk size, so that a GPU takes longer to multiply
#: a panel (50 us on an H200) than the host to launch it.
PANEL_BYTES = 256 << 20

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def n_bytes(text: Any, name: str) -> int:
    """``"128 MiB"``, ``"2GB"`` or a count of bytes as an int of at least 1.

    Raises
    ------
    ValueError
        It is neither; the message calls it `name`.
    """
    if isinstance(text, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?i?)b?\s*", text.lower())
        size = float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else 0.0
        count = int(size) if math.isfinite(size) else 0
    else:
        try:
            count = 0 if isinstance(text, bool) else operator.index(text)
        except TypeError:
            count = 0
    if count < 1:
        raise ValueError(f"{name} must be a number of bytes, such as '128 MiB' or 1 << 27; got {text!r}")
    return count


def alignment(block_size: int = 1) -> int:
    """A multiple of these rows is both a multiple of a bin's and of a block's."""
    return math.lcm(WARP, block_size)


def bytes_before(row_lengths: np.ndarray, value_bytes: int, index_bytes: int, block_size: int | None = None) -> np.ndarray:
    """(n_rows + 1,) float64: bytes that rows 0 .. r - 1 take in CVR or, where `block_size` is given, in BBCSR; a model.

    Parameters
    ----------
    row_lengths : (n_rows,) integers, in host memory
    """
    lengths = row_lengths.astype(np.float64)
    if block_size is None:
        cost = lengths * (value_bytes + index_bytes) + index_bytes
    else:  # a bin is as long as its longest row
        in_bins = np.zeros(-(-lengths.size // WARP) * WARP)
        in_bins[: lengths.size] = lengths
        longest = np.repeat(in_bins.reshape(-1, WARP).max(axis=1), WARP)[: lengths.size]
        cost = longest * (value_bytes + index_bytes / block_size) + 1
    return np.concatenate(([0.0], np.cumsum(cost)))


def cut(before: np.ndarray, target: int, align: int) -> np.ndarray:
    """(n_panels + 1,) int64: the first row of each panel, and n_rows; panels begin at multiples of `align`.

    Parameters
    ----------
    before : (n_rows + 1,) bytes that the rows before each one take
    target : int
        Bytes that a panel should have at most; one with a single group of `align` rows may have more.
    align : int
    """
    n_rows = before.size - 1
    n_panels = max(1, math.ceil(before[-1] / target))
    wanted = before[-1] * np.arange(1, n_panels) / n_panels
    row = np.searchsorted(before, wanted)  # the first row with so much before it
    below, above = (row - 1) // align * align, np.minimum(-(-row // align) * align, n_rows)
    nearest = np.where(wanted - before[below] <= before[above] - wanted, below, above)
    return np.unique(np.concatenate(([0], nearest, [n_rows]))) if n_rows else np.zeros(2, np.int64)


def rows(csr: CSR, first: int, last: int) -> CSR:
    """Rows ``first .. last - 1`` of a canonical CSR; indices and data are views."""
    with devices.of(csr.data).use():
        start, stop = int(csr.indptr[first]), int(csr.indptr[last])
        indptr = csr.indptr[first : last + 1] - csr.indptr[first]
    return CSR(indptr, csr.indices[start:stop], csr.data[start:stop], (last - first, csr.shape[1]))


def lengths(csr: CSR) -> np.ndarray:
    """(n_rows,) stored entries of each row, in host memory."""
    indptr = devices.move(csr.indptr, devices.CPU)
    lengths: np.ndarray = indptr[1:] - indptr[:-1]
    return lengths
